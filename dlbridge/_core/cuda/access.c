/* The access tracker: who uses one piece of CUDA memory, what must be waited for, and
 * when the memory may go back; see cuda.h. */
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "memory/lock.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    dlb_stream_id stream;
    bool writes;
    int32_t borrowers; /* exports that are alive; 0: our own work */
    uint64_t seen; /* the version of the memory that it comes after, with its readers
                      if it writes; 0: none, it was captured */
} use_t;

typedef struct {
    CUevent event; /* NULL: unknown, until all work on the device is over */
    bool writes;
    uint64_t synchronisations; /* of the device, then */
} done_t;

enum { FIRST_ROWS = 2 };

struct dlb_access {
    _Atomic bool is_locked;
    int32_t device;
    bool is_stream_ordered;
    dlb_stream_id ready, owner;
    dlb_buffer *kept;
    uint64_t version; /* counts changes of what must be waited for */
    int32_t use_count, use_room, done_count, done_room;
    use_t *uses, first_uses[FIRST_ROWS];
    done_t *done, first_done[FIRST_ROWS];
};

/* Each exchange takes it several times, and two threads rarely want the same one. */
static inline bool try_lock(dlb_access *access) {
    return !atomic_exchange_explicit(&access->is_locked, true, memory_order_acquire);
}

static inline void lock(dlb_access *access) {
    while (!try_lock(access))
        sched_yield();
}

static inline void unlock(dlb_access *access) {
    atomic_store_explicit(&access->is_locked, false, memory_order_release);
}

static inline use_t *find_use(dlb_access *access, dlb_stream_id id) {
    for (int32_t i = 0; i < access->use_count; i++)
        if (dlb_stream_is_same(access->uses[i].stream, id))
            return &access->uses[i];
    return NULL;
}

/* The last row moves here: iterate from the last to the first. */
static inline void drop_use(dlb_access *access, use_t *use) {
    *use = access->uses[--access->use_count];
}

/* Whoever waits for the owner's stream also waits for what follows `ready` on it. */
static inline bool is_owners(const dlb_access *access, dlb_stream_id id) {
    return dlb_stream_is_same(id, access->owner) &&
           dlb_stream_is_same(id, access->ready);
}

/* ---- life, and what the producer said ---- */

dlb_access *dlb_access_new(int32_t device) {
    dlb_access *access = malloc(sizeof *access);
    if (access == NULL)
        return NULL;
    atomic_init(&access->is_locked, false);
    access->device = device;
    access->is_stream_ordered = false;
    access->kept = NULL;
    access->ready = access->owner = dlb_stream_identify(DLB_STREAM_NONE);
    access->version = 1;
    access->use_count = access->done_count = 0;
    access->use_room = access->done_room = FIRST_ROWS;
    access->uses = access->first_uses;
    access->done = access->first_done;
    dlb_count_live(accesses, 1);
    return access;
}

/* The last row moves here: iterate from the last to the first. */
static void drop_done(dlb_access *access, int32_t i) {
    if (access->done[i].event != NULL)
        dlb_cuda_reuse_event(access->device, access->done[i].event);
    access->done[i] = access->done[--access->done_count];
}

void dlb_access_free(dlb_access *access) {
    while (access->done_count > 0)
        drop_done(access, access->done_count - 1);
    if (access->kept != NULL)
        dlb_buffer_drop(access->kept);
    if (access->uses != access->first_uses)
        free(access->uses);
    if (access->done != access->first_done)
        free(access->done);
    dlb_count_live(accesses, -1);
    free(access);
}

int32_t dlb_access_device(const dlb_access *access) {
    return access->device;
}

bool dlb_access_is_stream_ordered(const dlb_access *access) {
    return access->is_stream_ordered;
}

dlb_stream_id dlb_access_ready(dlb_access *access) {
    lock(access);
    dlb_stream_id ready = access->ready;
    unlock(access);
    return ready;
}

/* No lock: only the producer has the memory so far. */
void dlb_access_set_streams(dlb_access *access, dlb_stream ready, dlb_stream owner) {
    access->ready = dlb_stream_identify_on(access->device, ready);
    access->owner = dlb_stream_identify_on(access->device, owner);
    access->version++;
}

void dlb_access_keep(dlb_access *access, dlb_buffer *kept) {
    access->kept = kept;
}

void dlb_access_set_stream_ordered(dlb_access *access, dlb_stream owner) {
    dlb_access_set_streams(access, owner, owner);
    access->is_stream_ordered = true;
}

/* ---- room for uses and events ---- */

static int grow(void **rows, void *first, int32_t count, int32_t *room, size_t size) {
    if (count < *room)
        return 0;
    void *grown = realloc(*rows == first ? NULL : *rows, 2 * (size_t)*room * size);
    if (grown == NULL)
        return dlb_cuda_fail(DLB_CUDA_MEMORY);
    if (*rows == first)
        memcpy(grown, first, (size_t)count * size);
    *rows = grown;
    *room *= 2;
    return 0;
}

static bool is_done(const dlb_access *access, const done_t *done) {
    if (done->event != NULL)
        return dlb_cuda_is_over(access->device, done->event);
    return dlb_cuda_synchronisations(access->device) > done->synchronisations;
}

static void drop_what_is_done(dlb_access *access) {
    for (int32_t i = access->done_count - 1; i >= 0; i--)
        if (is_done(access, &access->done[i]))
            drop_done(access, i);
}

/* Forget finished events first: memory that is lent often must not collect them. */
static int make_room_for_done(dlb_access *access) {
    if (access->done_count == access->done_room)
        drop_what_is_done(access);
    return grow((void **)&access->done, access->first_done, access->done_count,
                &access->done_room, sizeof(done_t));
}

/* Room for one more; the others may move. */
static int make_room_for_use(dlb_access *access) {
    return grow((void **)&access->uses, access->first_uses, access->use_count,
                &access->use_room, sizeof(use_t));
}

/* ---- buffers ---- */

bool dlb_buffer_track(dlb_buffer *buffer, DLDevice device) {
    if (!dlb_has_streams(device))
        return true;
    buffer->access = dlb_access_new(device.device_id);
    if (buffer->access == NULL)
        return false;
    if (dlb_is_cuda(device))
        dlb_access_set_streams(buffer->access, DLB_STREAM_LEGACY, DLB_STREAM_NONE);
    return true;
}

/* ---- what must be waited for ---- */

/* Whether other work must wait for a use; not if waiting for `ready` includes it. */
static bool matters(const dlb_access *access, const use_t *use, const use_t *own,
                    bool writes, bool *at_ready) {
    if (use == own || !(writes || use->writes))
        return false;
    if (!dlb_stream_is_same(use->stream, access->ready))
        return true;
    *at_ready |= use->borrowers > 0 || !use->writes;
    return false;
}

static int note_order(int status, bool *is_captured) {
    *is_captured |= status > 0;
    return status < 0 ? -1 : 0;
}

/* Order `id` after earlier writes and, before it writes, after reads. 1: that needs a
 * call to the driver, and `may_call` is false. */
static int catch_up(dlb_access *access, dlb_stream_id id, bool writes, bool may_call,
                    bool *is_captured) {
    const use_t *own = find_use(access, id);
    bool has_seen = own && own->seen == access->version && (own->writes || !writes);
    bool after_ready = !has_seen;
    for (int32_t i = 0; i < access->use_count; i++) {
        if (!matters(access, &access->uses[i], own, writes, &after_ready))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_order(access->device, access->uses[i].stream, id),
                       is_captured) < 0)
            return -1;
    }
    for (int32_t i = 0; i < access->done_count && !has_seen; i++) {
        if (access->done[i].event == NULL || !(writes || access->done[i].writes))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_wait(access->device, id, access->done[i].event),
                       is_captured) < 0)
            return -1;
    }
    if (!after_ready || access->ready.handle == DLB_STREAM_NONE ||
        dlb_stream_is_same(access->ready, id))
        return 0;
    if (!may_call)
        return 1;
    return note_order(dlb_cuda_order(access->device, access->ready, id), is_captured);
}

/* ---- a use begins ---- */

static void note_use(dlb_access *access, dlb_stream_id id, bool writes,
                     int32_t borrowers, uint64_t seen) {
    use_t *use = find_use(access, id);
    if (use == NULL) {
        use = &access->uses[access->use_count++];
        *use = (use_t){.stream = id};
    }
    use->writes |= writes;
    use->borrowers += borrowers;
    use->seen = seen;
}

static void forget_done(dlb_access *access) {
    for (int32_t i = access->done_count - 1; i >= 0; i--)
        if (access->done[i].event != NULL)
            drop_done(access, i);
}

/* Everything earlier is ordered before the work on `id`. */
static void forget_past(dlb_access *access, dlb_stream_id id) {
    forget_done(access);
    for (int32_t i = access->use_count - 1; i >= 0; i--)
        if (access->uses[i].borrowers == 0)
            drop_use(access, &access->uses[i]);
    access->ready = id;
    access->version++;
}

static int begin_locked(dlb_access *access, dlb_stream_id id, dlb_stream_id worker,
                        bool writes, int32_t borrowers, bool may_call) {
    if (dlb_cuda_is_forked())
        return dlb_cuda_fail(DLB_CUDA_MISSING);
    if (make_room_for_use(access) < 0)
        return -1;
    bool is_captured = false; /* into a graph, which nothing is ordered before */
    int status = catch_up(access, id, writes, may_call, &is_captured);
    if (status != 0)
        return status;
    if (writes && borrowers == 0 && !is_captured)
        forget_past(access, id);
    else if (writes && !is_captured && dlb_stream_is_same(id, access->ready))
        forget_done(access); /* waiting for `ready` includes them */
    /* On the owner's stream the use follows `ready`: all others wait for `ready` again.
     */
    if (borrowers == 0 && !is_captured && is_owners(access, id))
        access->version++;
    else if (!dlb_stream_is_same(id, worker)) /* the worker comes later, on its own */
        note_use(access, worker, writes, borrowers, 0);
    else
        note_use(access, id, writes, borrowers, is_captured ? 0 : access->version);
    return 0;
}

static int begin(dlb_access *access, dlb_stream on, bool writes) {
    if (on == DLB_STREAM_NONE)
        return 0;
    lock(access);
    dlb_stream_id id = dlb_stream_identify_on(access->device, on);
    int status = begin_locked(access, id, id, writes, 0, true);
    unlock(access);
    return status;
}

int dlb_access_read(dlb_access *access, dlb_stream on) {
    return begin(access, on, false);
}

int dlb_access_write(dlb_access *access, dlb_stream on) {
    return begin(access, on, true);
}

int dlb_access_lend(dlb_access *access, dlb_stream to, dlb_stream worker, bool writes,
                    bool may_call, dlb_stream_id *borrowed) {
    dlb_stream_id ready = dlb_stream_identify(to);
    *borrowed = to == DLB_STREAM_NONE ? ready : dlb_stream_identify(worker);
    if (to == DLB_STREAM_NONE)
        return 0;
    if (may_call)
        lock(access);
    else if (!try_lock(access))
        return 1;
    int status = begin_locked(access, ready, *borrowed, writes, 1, may_call);
    unlock(access);
    return status;
}

/* Consumers of the CUDA array interface mostly use the legacy default stream, or one
 * that it waits for, so it stands for them. */
int dlb_access_publish(dlb_access *access, dlb_stream *ready) {
    lock(access);
    dlb_stream_id id = access->ready;
    if (id.handle == DLB_STREAM_NONE || !dlb_stream_scope_is_open(id.scope) ||
        id.thread != 0)
        id = dlb_stream_identify(DLB_STREAM_LEGACY);
    bool is_captured = false, may_call = !dlb_cuda_is_forked();
    int status = make_room_for_use(access) < 0
                     ? -1
                     : catch_up(access, id, false, may_call, &is_captured);
    dlb_stream_id legacy = dlb_stream_identify(DLB_STREAM_LEGACY);
    if (status == 0 && !dlb_stream_is_same(legacy, access->owner))
        note_use(access, legacy, true, 0, 0);
    *ready = id.handle;
    unlock(access);
    return status;
}

/* ---- a use ends, and memory may go back ---- */

/* Record the event now: the consumer may destroy its stream as soon as it has returned
 * the memory. False: none can be recorded before a capture ends. */
static bool mark_end(dlb_access *access, const use_t *use) {
    CUevent event = NULL;
    if (make_room_for_done(access) < 0)
        return false;
    bool failed = dlb_cuda_mark(access->device, use->stream, &event) < 0;
    if (failed && dlb_cuda_is_gone())
        return true;
    if (!failed && event == NULL)
        return false;
    access->done[access->done_count++] =
        (done_t){event, use->writes, dlb_cuda_synchronisations(access->device)};
    access->version++;
    return true;
}

void dlb_access_take_back(dlb_access *access, dlb_stream_id borrowed, bool writes) {
    if (borrowed.handle == DLB_STREAM_NONE || dlb_cuda_is_forked())
        return;
    lock(access);
    use_t *use = find_use(access, borrowed);
    if (use != NULL && --use->borrowers == 0) {
        use->writes |= writes;
        bool needs_event = !is_owners(access, borrowed);
        access->version++;
        if (!needs_event || mark_end(access, use))
            drop_use(access, use);
    }
    unlock(access);
}

bool dlb_access_is_busy(dlb_access *access) {
    bool is_busy = false;
    if (dlb_cuda_is_forked())
        return false;
    lock(access);
    for (int32_t i = 0; i < access->use_count && !is_busy; i++)
        is_busy = access->uses[i].borrowers > 0 &&
                  !dlb_cuda_is_through(access->device, access->uses[i].stream);
    unlock(access);
    return is_busy;
}

/* Nobody else has the memory any more, so the lock is not needed. Our own uses end with
 * the last reference. */
static void end_uses(dlb_access *access) {
    for (int32_t i = access->use_count - 1; i >= 0; i--) {
        use_t *use = &access->uses[i];
        bool is_closed = !dlb_stream_scope_is_open(use->stream.scope);
        if (is_closed ? dlb_stream_scope_is_over(use->stream.scope)
                      : mark_end(access, use))
            drop_use(access, use);
    }
}

bool dlb_access_is_over(dlb_access *access) {
    if (dlb_cuda_is_forked())
        return true;
    end_uses(access);
    drop_what_is_done(access);
    return access->use_count == 0 && access->done_count == 0;
}

bool dlb_access_make_wait(dlb_access *access, dlb_stream stream) {
    bool waits = false;
    for (int32_t i = 0; i < access->done_count; i++)
        waits |= access->done[i].event != NULL &&
                 dlb_cuda_wait(access->device, dlb_stream_identify(stream),
                               access->done[i].event) == 0;
    return waits;
}

/* ---- memory of ours, freed in the order of its stream ---- */

/* If the stream may be destroyed, one of ours replaces it. */
static int find_owner(dlb_access *access) {
    dlb_stream_id old = access->owner;
    if (dlb_stream_scope_is_open(old.scope))
        return 0;
    dlb_stream side = dlb_cuda_side_stream(access->device, DLB_CUDA_FREEING);
    if (side == 0)
        return -1;
    access->owner = dlb_stream_identify(side);
    return dlb_cuda_order(access->device, old, access->owner);
}

/* Whether a thread's default stream uses the memory. Drivers (580, CUDA 13.0) never
 * come to the end of a later synchronisation once memory was freed on a stream that
 * waits for such a one, be its thread alive or not, and other threads with such streams
 * have ended since: this memory goes back when events say that its uses are over. */
static bool is_used_by_threads(const dlb_access *access) {
    for (int32_t i = 0; i < access->use_count; i++)
        if (access->uses[i].stream.thread != 0)
            return true;
    return false;
}

static int end_on_owner(dlb_access *access) {
    bool is_captured = false; /* work outside its graph has no order */
    dlb_cuda_scope scope;     /* default streams are those of the current context */
    for (int32_t i = 0; i < access->done_count; i++)
        if (access->done[i].event == NULL)
            return dlb_cuda_check(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord");
    if (access->owner.thread == 0 && is_used_by_threads(access))
        return dlb_cuda_check(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord");
    if (find_owner(access) < 0 || dlb_cuda_enter(access->device, &scope) < 0)
        return -1;
    int status = catch_up(access, access->owner, true, true, &is_captured);
    dlb_cuda_leave(&scope);
    return status == 0 && is_captured ? dlb_cuda_fail(DLB_CUDA_CAPTURE) : status;
}

int dlb_access_end_on_owner(dlb_access *access, dlb_stream_id *owner) {
    if (dlb_cuda_is_forked())
        return 0;
    lock(access);
    int status = end_on_owner(access);
    *owner = access->owner;
    unlock(access);
    return status;
}

dlb_stream_id dlb_access_owner(dlb_access *access) {
    find_owner(access);
    return access->owner;
}

/* ---- memory that the host reads or writes ---- */

/* Forget finished uses. True: one is not finished, and this is its event. */
static bool find_pending(dlb_access *access, bool writes, CUevent *event) {
    for (int32_t i = access->done_count - 1; i >= 0; i--) {
        if (!writes && !access->done[i].writes)
            continue;
        *event = access->done[i].event;
        if (!is_done(access, &access->done[i]))
            return true;
        drop_done(access, i);
    }
    return false;
}

/* Record an event at the end of a use, even if its stream may be destroyed. */
static bool mark_now(dlb_access *access, use_t use) {
    if (!dlb_stream_scope_is_open(use.stream.scope)) {
        dlb_stream side = dlb_cuda_side_stream(access->device, DLB_CUDA_FREEING);
        dlb_stream_id after = dlb_stream_identify(side);
        if (side == 0 || dlb_cuda_order(access->device, use.stream, after) < 0)
            return false;
        use.stream = after;
    }
    return mark_end(access, &use);
}

#define MANY 16

int dlb_access_finish(dlb_access *access, dlb_stream on, bool writes) {
    CUevent event;
    lock(access);
    dlb_stream_id id = dlb_stream_identify_on(access->device, on);
    if (access->done_count >= MANY)
        find_pending(access, true, &event);
    if (mark_end(access, &(use_t){.stream = id, .writes = writes})) {
        use_t *use = find_use(access, id);
        if (use != NULL && use->borrowers == 0)
            drop_use(access, use);
        if (dlb_stream_is_same(access->ready, id))
            access->ready = dlb_stream_identify(DLB_STREAM_NONE);
    }
    unlock(access);
    return 0;
}

/* Record an event for every use that has none yet. */
static bool mark_pending(dlb_access *access, bool writes) {
    if (access->ready.handle != DLB_STREAM_NONE) {
        if (!mark_now(access, (use_t){.stream = access->ready, .writes = true}))
            return false;
        access->ready = dlb_stream_identify(DLB_STREAM_NONE);
    }
    for (int32_t i = access->use_count - 1; i >= 0; i--) {
        use_t use = access->uses[i];
        if (!writes && !use.writes)
            continue;
        if (!mark_now(access, use))
            return false;
        if (use.borrowers == 0)
            drop_use(access, &access->uses[i]);
    }
    return true;
}

/* Without the lock, which another thread may need to release the memory. An event that
 * is reused meanwhile only makes the wait longer. */
static int wait_for(int32_t device, CUevent event) {
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int mode = dlb_cuda_relax();
    int status =
        event != NULL
            ? dlb_cuda_check(dlb_cuda_get()->cuEventSynchronize(event),
                             "cuEventSynchronize")
            : dlb_cuda_check(dlb_cuda_get()->cuCtxSynchronize(), "cuCtxSynchronize");
    dlb_cuda_unrelax(mode);
    if (status == 0 && event == NULL)
        dlb_cuda_synchronised(device);
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_access_wait(dlb_access *access, bool writes) {
    CUevent event;
    lock(access);
    int status = mark_pending(access, writes) ? 0 : dlb_cuda_fail(DLB_CUDA_CAPTURE);
    bool is_pending = status == 0 && find_pending(access, writes, &event);
    unlock(access);
    while (status == 0 && is_pending) {
        status = wait_for(access->device, event);
        lock(access);
        is_pending = find_pending(access, writes, &event);
        unlock(access);
    }
    return status;
}

/* ---- memory that nobody holds any more, but that kernels may still use ----
 *
 * It goes back to its producer when they have finished. A producer may hand it out
 * again on any stream, so waiting on one stream is not enough.
 *
 * Nothing waits for the kernels. Finished memory is found whenever memory is given back
 * or allocated; and a stream of ours, on which nothing else runs, waits for one piece
 * of the rest and calls back. */

typedef struct waiting {
    struct waiting *next;
    dlb_buffer *buffer;
} waiting;

/* How many are checked whenever memory comes back: thousands that come back must not
 * check thousands each time. */
#define ON_THE_WAY 8

DLB_LOCK_RENEWED(waiting_lock)
static waiting *first, **end = &first; /* oldest first */
static _Atomic int64_t count;
static _Atomic bool is_watching;
static _Atomic int64_t gone_since; /* the last watch began */
_Atomic(dlb_cuda_waker) dlb_cuda_wake;

/* ---- the list ---- */

static void push(waiting *entry) {
    entry->next = NULL;
    pthread_mutex_lock(&waiting_lock);
    *end = entry;
    end = &entry->next;
    pthread_mutex_unlock(&waiting_lock);
}

static waiting *pop(void) {
    pthread_mutex_lock(&waiting_lock);
    waiting *entry = first;
    if (entry != NULL) {
        first = entry->next;
        if (first == NULL)
            end = &first;
    }
    pthread_mutex_unlock(&waiting_lock);
    return entry;
}

static void give_back(dlb_buffer *buffer) {
    dlb_access *access = buffer->access;
    buffer->release(buffer);
    dlb_access_free(access);
}

/* Outside of the lock: a deleter may come back here. */
static void collect(int64_t at_most) {
    for (int64_t left = atomic_load(&count); left > 0 && at_most > 0;
         left--, at_most--) {
        waiting *entry = pop();
        if (entry == NULL)
            break;
        if (!dlb_access_is_over(entry->buffer->access)) {
            push(entry);
            continue;
        }
        atomic_fetch_sub(&count, 1);
        give_back(entry->buffer);
        free(entry);
        atomic_fetch_add(&gone_since, 1);
    }
}

/* ---- being called back ---- */

/* Runs on a thread of the driver, from which the driver must not be called. */
static void wake_up(void *unused) {
    (void)unused;
    atomic_store(&is_watching, false);
    dlb_cuda_waker wake = atomic_load(&dlb_cuda_wake); /* drained at the same time? */
    if (wake != NULL)
        wake();
}

static bool watch(dlb_access *access) {
    dlb_cuda_scope scope;
    int32_t device = dlb_access_device(access);
    dlb_stream side = dlb_cuda_side_stream(device, DLB_CUDA_WATCHING);
    if (side == 0 || !dlb_access_make_wait(access, side) ||
        dlb_cuda_enter(device, &scope) < 0)
        return false;
    int status =
        dlb_cuda_check(dlb_cuda_get()->cuLaunchHostFunc((CUstream)side, wake_up, NULL),
                       "cuLaunchHostFunc");
    dlb_cuda_leave(&scope);
    return status == 0;
}

/* One at a time: the callback checks the others. */
static void watch_one(dlb_access *access) {
    if (atomic_exchange(&is_watching, true))
        return;
    atomic_store(&gone_since, 0);
    if (!watch(access))
        atomic_store(&is_watching, false);
}

/* ---- in and out ---- */

static bool may_go(dlb_access *access) {
    dlb_stream_id owner;
    return (dlb_access_is_stream_ordered(access) &&
            dlb_access_end_on_owner(access, &owner) == 0) ||
           dlb_access_is_over(access);
}

void dlb_buffer_release_later(dlb_buffer *buffer) {
    if (atomic_load(&count) > 0)
        collect(ON_THE_WAY);
    if (may_go(buffer->access)) {
        give_back(buffer);
        return;
    }
    waiting *entry = malloc(sizeof *entry);
    if (entry == NULL)
        return; /* leaked: better than freed too early */
    entry->buffer = buffer;
    watch_one(buffer->access); /* before another thread can give it back */
    atomic_fetch_add(&count, 1);
    push(entry);
}

/* Nothing is watched again before something was given back: callbacks without effect
 * would never end. */
int64_t dlb_cuda_collect(void) {
    collect(INT64_MAX);
    bool is_idle = !atomic_load(&is_watching) && atomic_load(&gone_since) > 0;
    waiting *entry = is_idle ? pop() : NULL;
    if (entry != NULL) {
        watch_one(entry->buffer->access);
        push(entry);
    }
    return atomic_load(&count);
}

/* ---- the end of the process ---- */

bool dlb_cuda_wait_for_one(void) {
    dlb_cuda_scope scope;
    bool has_waited = false;
    waiting *entry = pop();
    if (entry == NULL)
        return false;
    int32_t device = dlb_access_device(entry->buffer->access);
    dlb_stream side = dlb_cuda_side_stream(device, DLB_CUDA_WATCHING);
    if (side != 0 && dlb_access_make_wait(entry->buffer->access, side) &&
        dlb_cuda_enter(device, &scope) == 0) {
        int mode = dlb_cuda_relax();
        dlb_cuda_get()->cuStreamSynchronize((CUstream)side);
        dlb_cuda_unrelax(mode);
        dlb_cuda_leave(&scope);
        has_waited = true;
    }
    push(entry);
    return has_waited;
}

/* The access tracker: who uses one piece of CUDA memory, and what must be waited for;
 * see cuda.h. */
#include "cuda/cuda.h"
#include "layout/layout.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

typedef struct {
    dlb_place place;
    bool writes;
    int32_t lent;  /* exports that are alive; 0: our own work */
    uint64_t seen; /* the version of the memory that it comes after, with its readers
                      if it writes; 0: none, it was captured */
} use_t;

typedef struct {
    CUevent event; /* NULL: nobody can tell, until all work on the device is over */
    bool writes;
    uint64_t synchronisations; /* of the device, then */
} done_t;

enum { FIRST_ROWS = 2 };

struct dlb_work {
    _Atomic bool is_locked;
    int32_t device;
    bool is_own;
    dlb_place ready, home;
    dlb_buffer *kept;
    uint64_t version; /* of what must be waited for, beside what still goes on */
    int32_t use_count, use_room, done_count, done_room;
    use_t *uses, first_uses[FIRST_ROWS];
    done_t *done, first_done[FIRST_ROWS];
};

/* Each exchange takes it several times; hardly ever do two threads want the same. */
static inline bool try_lock(dlb_work *work) {
    return !atomic_exchange_explicit(&work->is_locked, true, memory_order_acquire);
}

static inline void lock(dlb_work *work) {
    while (!try_lock(work))
        sched_yield();
}

static inline void unlock(dlb_work *work) {
    atomic_store_explicit(&work->is_locked, false, memory_order_release);
}

static inline use_t *find_use(dlb_work *work, dlb_place place) {
    for (int32_t i = 0; i < work->use_count; i++)
        if (dlb_cuda_same_place(work->uses[i].place, place))
            return &work->uses[i];
    return NULL;
}

/* Another takes its row: go through them from the last to the first. */
static inline void drop_use(dlb_work *work, use_t *use) {
    *use = work->uses[--work->use_count];
}

/* At home, what comes after `ready` is waited for with it. */
static inline bool is_owners(const dlb_work *work, dlb_place place) {
    return dlb_cuda_same_place(place, work->home) &&
           dlb_cuda_same_place(place, work->ready);
}

/* ---- life, and what the producer said ---- */

dlb_work *dlb_work_new(int32_t device) {
    dlb_work *work = malloc(sizeof *work);
    if (work == NULL)
        return NULL;
    atomic_init(&work->is_locked, false);
    work->device = device;
    work->is_own = false;
    work->kept = NULL;
    work->ready = work->home = dlb_cuda_place(DLB_STREAM_NONE);
    work->version = 1;
    work->use_count = work->done_count = 0;
    work->use_room = work->done_room = FIRST_ROWS;
    work->uses = work->first_uses;
    work->done = work->first_done;
    return work;
}

/* The last one takes its row: go through them from the last to the first. */
static void drop_done(dlb_work *work, int32_t i) {
    if (work->done[i].event != NULL)
        dlb_cuda_reuse_event(work->device, work->done[i].event);
    work->done[i] = work->done[--work->done_count];
}

void dlb_work_free(dlb_work *work) {
    while (work->done_count > 0)
        drop_done(work, work->done_count - 1);
    if (work->kept != NULL)
        dlb_buffer_drop(work->kept);
    if (work->uses != work->first_uses)
        free(work->uses);
    if (work->done != work->first_done)
        free(work->done);
    free(work);
}

int32_t dlb_work_device(const dlb_work *work) {
    return work->device;
}

bool dlb_work_is_own(const dlb_work *work) {
    return work->is_own;
}

dlb_place dlb_work_ready(dlb_work *work) {
    lock(work);
    dlb_place ready = work->ready;
    unlock(work);
    return ready;
}

/* Only its maker has the memory so far. */
void dlb_work_set(dlb_work *work, dlb_stream ready, dlb_stream home) {
    work->ready = dlb_cuda_place_on(work->device, ready);
    work->home = dlb_cuda_place_on(work->device, home);
    work->version++;
}

void dlb_work_keep(dlb_work *work, dlb_buffer *kept) {
    work->kept = kept;
}

void dlb_work_own(dlb_work *work, dlb_stream home) {
    dlb_work_set(work, home, home);
    work->is_own = true;
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

static bool is_done(const dlb_work *work, const done_t *done) {
    if (done->event != NULL)
        return dlb_cuda_is_over(work->device, done->event);
    return dlb_cuda_synchronisations(work->device) > done->synchronisations;
}

static void drop_what_is_done(dlb_work *work) {
    for (int32_t i = work->done_count - 1; i >= 0; i--)
        if (is_done(work, &work->done[i]))
            drop_done(work, i);
}

/* Memory that is lent again and again keeps account of what still runs, no more. */
static int make_room_for_done(dlb_work *work) {
    if (work->done_count == work->done_room)
        drop_what_is_done(work);
    return grow((void **)&work->done, work->first_done, work->done_count,
                &work->done_room, sizeof(done_t));
}

/* Room for one more; the others may move. */
static int make_room_for_use(dlb_work *work) {
    return grow((void **)&work->uses, work->first_uses, work->use_count,
                &work->use_room, sizeof(use_t));
}

/* ---- buffers ---- */

bool dlb_buffer_watch(dlb_buffer *buffer, DLDevice device) {
    if (!dlb_has_streams(device))
        return true;
    buffer->work = dlb_work_new(device.device_id);
    if (buffer->work == NULL)
        return false;
    if (dlb_is_cuda(device))
        dlb_work_set(buffer->work, DLB_STREAM_LEGACY, DLB_STREAM_NONE);
    return true;
}

/* ---- what must be waited for ---- */

/* Whether a use must be waited for by other work; not if waiting for `ready` does. */
static bool matters(const dlb_work *work, const use_t *use, const use_t *own,
                    bool writes, bool *at_ready) {
    if (use == own || !(writes || use->writes))
        return false;
    if (!dlb_cuda_same_place(use->place, work->ready))
        return true;
    *at_ready |= use->lent > 0 || !use->writes;
    return false;
}

static int note_order(int status, bool *is_captured) {
    *is_captured |= status > 0;
    return status < 0 ? -1 : 0;
}

/* `place` after what was written before, and, to write, after what reads. Without a
 * call to the driver if `may_call` is false: 1 if it takes one. */
static int catch_up(dlb_work *work, dlb_place place, bool writes, bool may_call,
                    bool *is_captured) {
    const use_t *own = find_use(work, place);
    bool has_seen = own && own->seen == work->version && (own->writes || !writes);
    bool after_ready = !has_seen;
    for (int32_t i = 0; i < work->use_count; i++) {
        if (!matters(work, &work->uses[i], own, writes, &after_ready))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_order(work->device, work->uses[i].place, place),
                       is_captured) < 0)
            return -1;
    }
    for (int32_t i = 0; i < work->done_count && !has_seen; i++) {
        if (work->done[i].event == NULL || !(writes || work->done[i].writes))
            continue;
        if (!may_call)
            return 1;
        if (note_order(dlb_cuda_wait(work->device, place, work->done[i].event),
                       is_captured) < 0)
            return -1;
    }
    if (!after_ready || work->ready.stream == DLB_STREAM_NONE ||
        dlb_cuda_same_place(work->ready, place))
        return 0;
    if (!may_call)
        return 1;
    return note_order(dlb_cuda_order(work->device, work->ready, place), is_captured);
}

/* ---- a use begins ---- */

static void note_use(dlb_work *work, dlb_place place, bool writes, int32_t lent,
                     uint64_t seen) {
    use_t *use = find_use(work, place);
    if (use == NULL) {
        use = &work->uses[work->use_count++];
        *use = (use_t){.place = place};
    }
    use->writes |= writes;
    use->lent += lent;
    use->seen = seen;
}

static void forget_done(dlb_work *work) {
    for (int32_t i = work->done_count - 1; i >= 0; i--)
        if (work->done[i].event != NULL)
            drop_done(work, i);
}

/* All that was before is ordered before the work on `place`. */
static void forget_past(dlb_work *work, dlb_place place) {
    forget_done(work);
    for (int32_t i = work->use_count - 1; i >= 0; i--)
        if (work->uses[i].lent == 0)
            drop_use(work, &work->uses[i]);
    work->ready = place;
    work->version++;
}

static int begin_locked(dlb_work *work, dlb_place place, bool writes, int32_t lent,
                        bool may_call) {
    if (dlb_cuda_is_forked())
        return dlb_cuda_fail(DLB_CUDA_MISSING);
    if (make_room_for_use(work) < 0)
        return -1;
    bool is_captured = false; /* into a graph, which nothing is ordered before */
    int status = catch_up(work, place, writes, may_call, &is_captured);
    if (status != 0)
        return status;
    if (writes && lent == 0 && !is_captured)
        forget_past(work, place);
    else if (writes && !is_captured && dlb_cuda_same_place(place, work->ready))
        forget_done(work); /* who waits for `ready` waits for them, too */
    /* At home, what comes after `ready` is waited for with it, by all once more. */
    if (lent == 0 && !is_captured && is_owners(work, place))
        work->version++;
    else
        note_use(work, place, writes, lent, is_captured ? 0 : work->version);
    return 0;
}

static int begin(dlb_work *work, dlb_stream on, bool writes) {
    if (on == DLB_STREAM_NONE)
        return 0;
    lock(work);
    dlb_place place = dlb_cuda_place_on(work->device, on);
    int status = begin_locked(work, place, writes, 0, true);
    unlock(work);
    return status;
}

int dlb_work_read(dlb_work *work, dlb_stream on) {
    return begin(work, on, false);
}

int dlb_work_write(dlb_work *work, dlb_stream on) {
    return begin(work, on, true);
}

int dlb_work_lend(dlb_work *work, dlb_stream to, bool writes, bool may_call,
                  dlb_place *lent) {
    *lent = dlb_cuda_place(to);
    if (to == DLB_STREAM_NONE)
        return 0;
    if (may_call)
        lock(work);
    else if (!try_lock(work))
        return 1;
    int status = begin_locked(work, *lent, writes, 1, may_call);
    unlock(work);
    return status;
}

/* Consumers of the CUDA array interface mostly work on the legacy default stream, or on
 * one that it waits for: it stands for them. */
int dlb_work_publish(dlb_work *work, dlb_stream *ready) {
    lock(work);
    dlb_place place = work->ready;
    if (place.stream == DLB_STREAM_NONE || !dlb_span_is_open(place.span) ||
        place.thread != 0)
        place = dlb_cuda_place(DLB_STREAM_LEGACY);
    bool is_captured = false, may_call = !dlb_cuda_is_forked();
    int status = make_room_for_use(work) < 0
                     ? -1
                     : catch_up(work, place, false, may_call, &is_captured);
    dlb_place legacy = dlb_cuda_place(DLB_STREAM_LEGACY);
    if (status == 0 && !dlb_cuda_same_place(legacy, work->home))
        note_use(work, legacy, true, 0, 0);
    *ready = place.stream;
    unlock(work);
    return status;
}

/* ---- a use ends, and memory may go back ---- */

/* An event now: the consumer may destroy its stream as soon as it has given the memory
 * back. False: none can be recorded before a capture ends. */
static bool mark_end(dlb_work *work, const use_t *use) {
    CUevent event = NULL;
    if (make_room_for_done(work) < 0)
        return false;
    bool failed = dlb_cuda_mark(work->device, use->place, &event) < 0;
    if (failed && dlb_cuda_is_gone())
        return true;
    if (!failed && event == NULL)
        return false;
    work->done[work->done_count++] =
        (done_t){event, use->writes, dlb_cuda_synchronisations(work->device)};
    work->version++;
    return true;
}

void dlb_work_take_back(dlb_work *work, dlb_place lent, bool writes) {
    if (lent.stream == DLB_STREAM_NONE || dlb_cuda_is_forked())
        return;
    lock(work);
    use_t *use = find_use(work, lent);
    if (use != NULL && --use->lent == 0) {
        use->writes |= writes;
        bool needs_event = !is_owners(work, lent);
        work->version++;
        if (!needs_event || mark_end(work, use))
            drop_use(work, use);
    }
    unlock(work);
}

/* From here on nobody else has the memory, so that nothing needs the lock. Our own uses
 * end with the last reference. */
static void end_uses(dlb_work *work) {
    for (int32_t i = work->use_count - 1; i >= 0; i--) {
        use_t *use = &work->uses[i];
        bool is_closed = !dlb_span_is_open(use->place.span);
        if (is_closed ? dlb_span_is_over(use->place.span) : mark_end(work, use))
            drop_use(work, use);
    }
}

bool dlb_work_is_over(dlb_work *work) {
    if (dlb_cuda_is_forked())
        return true;
    end_uses(work);
    drop_what_is_done(work);
    return work->use_count == 0 && work->done_count == 0;
}

bool dlb_work_watch(dlb_work *work, dlb_stream stream) {
    bool waits = false;
    for (int32_t i = 0; i < work->done_count; i++)
        waits |= work->done[i].event != NULL &&
                 dlb_cuda_wait(work->device, dlb_cuda_place(stream),
                               work->done[i].event) == 0;
    return waits;
}

/* ---- memory of ours, freed in the order of its home ---- */

/* A stream of ours takes the place of one that may be gone. */
static int find_home(dlb_work *work) {
    dlb_place old = work->home;
    if (dlb_span_is_open(old.span))
        return 0;
    dlb_stream side = dlb_cuda_side_stream(work->device, DLB_CUDA_FREEING);
    if (side == 0)
        return -1;
    work->home = dlb_cuda_place(side);
    return dlb_cuda_order(work->device, old, work->home);
}

static int end_on_home(dlb_work *work) {
    bool is_captured = false; /* what is outside of its graph stays without order */
    dlb_cuda_scope scope;     /* default streams are those of the current context */
    for (int32_t i = 0; i < work->done_count; i++)
        if (work->done[i].event == NULL)
            return dlb_cuda_check(CUDA_ERROR_INVALID_HANDLE, "cuEventRecord");
    if (find_home(work) < 0 || dlb_cuda_enter(work->device, &scope) < 0)
        return -1;
    int status = catch_up(work, work->home, true, true, &is_captured);
    dlb_cuda_leave(&scope);
    return status == 0 && is_captured ? dlb_cuda_fail(DLB_CUDA_CAPTURE) : status;
}

int dlb_work_end_on_home(dlb_work *work, dlb_place *home) {
    if (dlb_cuda_is_forked())
        return 0;
    lock(work);
    int status = end_on_home(work);
    *home = work->home;
    unlock(work);
    return status;
}

dlb_place dlb_work_home(dlb_work *work) {
    find_home(work);
    return work->home;
}

/* ---- memory that the host reads or writes ---- */

/* Forget what is over; whether something is not, and its event. */
static bool find_pending(dlb_work *work, bool writes, CUevent *event) {
    for (int32_t i = work->done_count - 1; i >= 0; i--) {
        if (!writes && !work->done[i].writes)
            continue;
        *event = work->done[i].event;
        if (!is_done(work, &work->done[i]))
            return true;
        drop_done(work, i);
    }
    return false;
}

/* An event at the end of what is there now, also where the stream may be gone. */
static bool mark_now(dlb_work *work, use_t use) {
    if (!dlb_span_is_open(use.place.span)) {
        dlb_stream side = dlb_cuda_side_stream(work->device, DLB_CUDA_FREEING);
        dlb_place after = dlb_cuda_place(side);
        if (side == 0 || dlb_cuda_order(work->device, use.place, after) < 0)
            return false;
        use.place = after;
    }
    return mark_end(work, &use);
}

#define MANY 16

int dlb_work_finish(dlb_work *work, dlb_stream on, bool writes) {
    CUevent event;
    lock(work);
    dlb_place place = dlb_cuda_place_on(work->device, on);
    if (work->done_count >= MANY)
        find_pending(work, true, &event);
    if (mark_end(work, &(use_t){.place = place, .writes = writes})) {
        use_t *use = find_use(work, place);
        if (use != NULL && use->lent == 0)
            drop_use(work, use);
        if (dlb_cuda_same_place(work->ready, place))
            work->ready = dlb_cuda_place(DLB_STREAM_NONE);
    }
    unlock(work);
    return 0;
}

/* An event at the end of all that is not marked by one yet. */
static bool mark_pending(dlb_work *work, bool writes) {
    if (work->ready.stream != DLB_STREAM_NONE) {
        if (!mark_now(work, (use_t){.place = work->ready, .writes = true}))
            return false;
        work->ready = dlb_cuda_place(DLB_STREAM_NONE);
    }
    for (int32_t i = work->use_count - 1; i >= 0; i--) {
        use_t use = work->uses[i];
        if (!writes && !use.writes)
            continue;
        if (!mark_now(work, use))
            return false;
        if (use.lent == 0)
            drop_use(work, &work->uses[i]);
    }
    return true;
}

/* Without the lock: another thread may need it to let go of the memory. An event that
 * is used anew in between only makes the wait longer. */
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

int dlb_work_wait(dlb_work *work, bool writes) {
    CUevent event;
    lock(work);
    int status = mark_pending(work, writes) ? 0 : dlb_cuda_fail(DLB_CUDA_CAPTURE);
    bool is_pending = status == 0 && find_pending(work, writes, &event);
    unlock(work);
    while (status == 0 && is_pending) {
        status = wait_for(work->device, event);
        lock(work);
        is_pending = find_pending(work, writes, &event);
        unlock(work);
    }
    return status;
}

/* Streams: their identity, capture, events, the order between them, and the scopes in
 * which they are known to live. */
#include "cuda/cuda.h"
#include "memory/lock.h"

#include <stdlib.h>

/* ---- identity ---- */

/* Threads by number, because addresses of thread-local memory are reused. */
static uintptr_t own_number(void) {
    static _Atomic uintptr_t count;
    static _Thread_local uintptr_t number;
    if (number == 0)
        number = atomic_fetch_add(&count, 1) + 1;
    return number;
}

/* A thread's default stream ends with it. Drivers (580, CUDA 13.0) never come to the
 * end of a later synchronisation if memory is then still to be allocated or freed in
 * stream order after work on it, be it on another stream that waits for this one: so a
 * thread whose stream was used here waits for it at its end. C++ ends thread-local
 * objects, of which this counts as one, before the driver ends the stream. */
#ifdef __GLIBC__
extern int __cxa_thread_atexit_impl(void (*end)(void *), void *object, void *library);
extern void *__dso_handle;

static void end_thread(void *object) {
    (void)object;
    dlb_cuda_finish_thread();
}

static void watch_thread(void) {
    static _Thread_local bool is_watched;
    if (!is_watched)
        is_watched =
            __cxa_thread_atexit_impl(end_thread, &is_watched, &__dso_handle) == 0;
}
#else /* no driver there */
static void watch_thread(void) {
}
#endif

dlb_stream_id dlb_stream_identify(dlb_stream stream) {
    bool is_own = stream == DLB_STREAM_PER_THREAD;
    if (is_own)
        watch_thread();
    return (dlb_stream_id){stream, is_own ? own_number() : 0, 0};
}

dlb_stream_id dlb_stream_identify_on(int32_t device, dlb_stream stream) {
    dlb_stream_id id = dlb_stream_identify(stream);
    if (stream > DLB_STREAM_PER_THREAD && stream != DLB_STREAM_NONE)
        id.scope = dlb_stream_scope_find(device, stream);
    return id;
}

/* Another thread's default stream has none; the legacy default stream waits for it, and
 * it for the legacy one. */
dlb_stream dlb_stream_handle(dlb_stream_id id) {
    bool is_elsewhere = id.thread != 0 && id.thread != own_number();
    return is_elsewhere ? DLB_STREAM_LEGACY : id.handle;
}

static CUstream handle_of(dlb_stream_id id) {
    return (CUstream)dlb_stream_handle(id);
}

/* ---- capture ---- */

/* The legacy default stream is never captured. */
int dlb_cuda_capture(dlb_stream stream, uint64_t *id) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    *id = 0;
    if (stream == DLB_STREAM_LEGACY || stream == DLB_STREAM_NONE || driver == NULL)
        return 0;
    if (dlb_cuda_check(driver->cuStreamGetCaptureInfo((CUstream)stream, &status, id,
                                                      NULL, NULL, NULL),
                       "cuStreamGetCaptureInfo") < 0)
        return -1;
    if (status == CU_STREAM_CAPTURE_STATUS_NONE)
        *id = 0;
    return 0;
}

/* Whether the legacy default stream is out of use now. To ask does no harm, to use it
 * would end the capture. */
static bool is_blocked(CUstream stream) {
    int status;
    return (dlb_stream)stream == DLB_STREAM_LEGACY &&
           dlb_cuda_get()->cuStreamIsCapturing(stream, &status) ==
               CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
}

int dlb_cuda_check_usable(dlb_stream stream) {
    return is_blocked((CUstream)stream) ? dlb_cuda_fail(DLB_CUDA_BLOCKED) : 0;
}

/* ---- events ---- */

static int take_event(int32_t device, CUevent *event) {
    *event = dlb_cuda_spare_event(device);
    if (*event != NULL)
        return 0;
    return dlb_cuda_check(dlb_cuda_get()->cuEventCreate(event, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

/* An event may be recorded again as soon as its waits are enqueued: they refer to the
 * earlier record. */
void dlb_cuda_reuse_event(int32_t device, CUevent event) {
    if (dlb_cuda_get() != NULL && !dlb_cuda_keep_event(device, event))
        dlb_cuda_get()->cuEventDestroy(event);
}

static int record(int32_t device, CUstream stream, CUevent *event) {
    if (take_event(device, event) < 0)
        return -1;
    if (dlb_cuda_check(dlb_cuda_get()->cuEventRecord(*event, stream),
                       "cuEventRecord") == 0)
        return 0;
    dlb_cuda_reuse_event(device, *event);
    return -1;
}

static int wait(CUstream stream, CUevent event) {
    return dlb_cuda_check(dlb_cuda_get()->cuStreamWaitEvent(stream, event, 0),
                          "cuStreamWaitEvent");
}

static int join(int32_t device, CUstream before, CUstream after) {
    CUevent event;
    if (record(device, before, &event) < 0)
        return -1;
    int status = wait(after, event);
    dlb_cuda_reuse_event(device, event);
    return status;
}

static int order(int32_t device, CUstream before, CUstream after) {
    uint64_t captured, capturing;
    if (dlb_cuda_capture((dlb_stream)before, &captured) < 0 ||
        dlb_cuda_capture((dlb_stream)after, &capturing) < 0)
        return -1;
    if (captured != 0 && captured != capturing)
        return dlb_cuda_fail(DLB_CUDA_CAPTURE);
    if (captured != capturing)
        return 1;
    if (is_blocked(before) || is_blocked(after))
        return dlb_cuda_fail(DLB_CUDA_BLOCKED);
    return join(device, before, after);
}

int dlb_cuda_order(int32_t device, dlb_stream_id before, dlb_stream_id after) {
    dlb_cuda_scope scope;
    if (before.handle == DLB_STREAM_NONE || after.handle == DLB_STREAM_NONE ||
        dlb_stream_is_same(before, after))
        return 0;
    if (!dlb_stream_scope_is_open(before.scope))
        return dlb_stream_scope_wait(before.scope, device, after);
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int status = order(device, handle_of(before), handle_of(after));
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_mark(int32_t device, dlb_stream_id id, CUevent *event) {
    dlb_cuda_scope scope;
    uint64_t captured;
    *event = NULL;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    CUstream stream = handle_of(id);
    int status = dlb_cuda_capture((dlb_stream)stream, &captured);
    if (status == 0 && captured == 0 && !is_blocked(stream) &&
        record(device, stream, event) < 0) {
        *event = NULL;
        status = -1;
    }
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_wait(int32_t device, dlb_stream_id id, CUevent event) {
    dlb_cuda_scope scope;
    uint64_t capturing;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    CUstream stream = handle_of(id);
    int status = dlb_cuda_capture((dlb_stream)stream, &capturing);
    if (status == 0 && capturing != 0)
        status = 1;
    else if (status == 0)
        status =
            is_blocked(stream) ? dlb_cuda_fail(DLB_CUDA_BLOCKED) : wait(stream, event);
    dlb_cuda_leave(&scope);
    return status;
}

/* Asking is forbidden to a thread that captures, and while any captures in the global
 * mode, though the event has nothing to do with it. */
bool dlb_cuda_is_over(int32_t device, CUevent event) {
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) < 0)
        return dlb_cuda_is_gone();
    int mode = dlb_cuda_relax();
    int status = dlb_cuda_check(dlb_cuda_get()->cuEventQuery(event), "cuEventQuery");
    dlb_cuda_unrelax(mode);
    dlb_cuda_leave(&scope);
    return status == 0 || dlb_cuda_is_gone();
}

/* Whether all work of a stream is over; false for one that is captured. An event that
 * is recorded to ask would be pending, however long the stream has had nothing to do.
 */
bool dlb_cuda_is_through(int32_t device, dlb_stream_id id) {
    dlb_cuda_scope scope;
    uint64_t captured;
    if (dlb_cuda_enter(device, &scope) < 0)
        return dlb_cuda_is_gone();
    CUstream stream = handle_of(id);
    int mode = dlb_cuda_relax();
    bool is_through =
        dlb_cuda_capture((dlb_stream)stream, &captured) == 0 && captured == 0 &&
        !is_blocked(stream) &&
        dlb_cuda_check(dlb_cuda_get()->cuStreamQuery(stream), "cuStreamQuery") == 0;
    dlb_cuda_unrelax(mode);
    dlb_cuda_leave(&scope);
    return is_through || dlb_cuda_is_gone();
}

/* ---- scopes ----
 *
 * A scope is a block of Python that works on a stream: `with dlbridge.cuda.stream(s)`.
 * Whoever opens a scope promises that the stream lives until its end. Records of work
 * on the stream name the scope. When it closes, an event replaces the stream until that
 * event is over. */

/* A scope is a number that is never reused; modulo SLOTS it is the scope's slot while
 * it is open. */
#define SLOTS 256
#define NESTED 16

typedef struct {
    _Atomic uint64_t scope; /* 0: free */
    int32_t device;
    dlb_stream stream;
    _Atomic bool is_used;
    bool is_left; /* it has ended, in a capture */
} slot_t;

typedef struct {
    uint64_t scope;
    int32_t device;
    CUevent event;
} end_t;

typedef struct {
    uint64_t scope;
    int32_t device;
    dlb_stream stream;
} opened_t;

DLB_LOCK_RENEWED(lock)
static slot_t slots[SLOTS];
static uint64_t count;
static end_t *ends; /* of closed scopes; those that are not here are over */
static int32_t end_count, end_room;
static _Thread_local opened_t opened[NESTED]; /* innermost last */
static _Thread_local int32_t depth;

static slot_t *slot_of(uint64_t scope) {
    return &slots[scope % SLOTS];
}

bool dlb_stream_scope_is_open(uint64_t scope) {
    return scope == 0 ||
           atomic_load_explicit(&slot_of(scope)->scope, memory_order_acquire) == scope;
}

/* ---- a scope opens ---- */

/* A free slot, or else one that a capture left open: nothing can be ordered after work
 * in a graph, so it may count as over. NULL: there is none. */
static slot_t *find_slot(void) {
    slot_t *left = NULL;
    for (int32_t i = 0; i < SLOTS; i++) {
        if (atomic_load(&slots[i].scope) == 0)
            return &slots[i];
        if (slots[i].is_left)
            left = &slots[i];
    }
    return left;
}

static uint64_t take_slot(int32_t device, dlb_stream stream) {
    uint64_t scope = 0;
    pthread_mutex_lock(&lock);
    slot_t *slot = find_slot();
    if (slot != NULL) {
        scope = ++count * SLOTS + (uint64_t)(slot - slots);
        slot->device = device;
        slot->stream = stream;
        slot->is_left = false;
        atomic_store(&slot->is_used, false);
        atomic_store_explicit(&slot->scope, scope, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return scope;
}

/* Another thread may have closed a scope of this one. */
static void drop_closed(void) {
    while (depth > 0 && !dlb_stream_scope_is_open(opened[depth - 1].scope))
        depth--;
}

/* The default streams live as long as their device or thread. */
uint64_t dlb_stream_scope_open(int32_t device, dlb_stream stream) {
    drop_closed();
    bool is_made =
        stream != 0 && stream > DLB_STREAM_PER_THREAD && stream != DLB_STREAM_NONE;
    uint64_t scope = is_made && depth < NESTED ? take_slot(device, stream) : 0;
    if (scope != 0)
        opened[depth++] = (opened_t){scope, device, stream};
    return scope;
}

uint64_t dlb_stream_scope_find(int32_t device, dlb_stream stream) {
    for (int32_t i = depth - 1; i >= 0; i--) {
        const opened_t *one = &opened[i];
        if (one->stream == stream && one->device == device &&
            dlb_stream_scope_is_open(one->scope)) {
            atomic_store_explicit(&slot_of(one->scope)->is_used, true,
                                  memory_order_relaxed);
            return one->scope;
        }
    }
    return 0;
}

/* ---- and closes ---- */

static bool grow(void) {
    if (end_count < end_room)
        return true;
    int32_t room = end_room ? 2 * end_room : 16;
    end_t *grown = realloc(ends, (size_t)room * sizeof *grown);
    if (grown == NULL)
        return false;
    ends = grown;
    end_room = room;
    return true;
}

static void forget_come(void) {
    for (int32_t i = end_count - 1; i >= 0; i--)
        if (dlb_cuda_is_over(ends[i].device, ends[i].event)) {
            dlb_cuda_reuse_event(ends[i].device, ends[i].event);
            ends[i] = ends[--end_count];
        }
}

/* False: the stream has to stand for itself, since it is being captured. */
static bool note_end(const slot_t *slot, uint64_t scope) {
    CUevent event;
    if (end_count == end_room)
        forget_come();
    if (!grow() ||
        dlb_cuda_mark(slot->device, dlb_stream_identify(slot->stream), &event) < 0)
        return dlb_cuda_is_gone();
    if (event != NULL)
        ends[end_count++] = (end_t){scope, slot->device, event};
    return event != NULL;
}

void dlb_stream_scope_close(uint64_t scope) {
    slot_t *slot = slot_of(scope);
    if (scope == 0 || dlb_cuda_is_forked())
        return;
    pthread_mutex_lock(&lock);
    if (dlb_stream_scope_is_open(scope)) {
        slot->is_left = atomic_load(&slot->is_used) && !note_end(slot, scope);
        if (!slot->is_left)
            atomic_store_explicit(&slot->scope, 0, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    for (int32_t i = 0; i < depth; i++)
        if (opened[i].scope == scope) {
            for (depth--; i < depth; i++)
                opened[i] = opened[i + 1];
            break;
        }
}

/* Under the lock. */
static end_t *find_end(uint64_t scope) {
    for (int32_t i = 0; i < end_count; i++)
        if (ends[i].scope == scope)
            return &ends[i];
    return NULL;
}

int dlb_stream_scope_wait(uint64_t scope, int32_t device, dlb_stream_id after) {
    pthread_mutex_lock(&lock);
    const end_t *end = find_end(scope);
    int status = end ? dlb_cuda_wait(device, after, end->event) : 0;
    pthread_mutex_unlock(&lock);
    return status;
}

bool dlb_stream_scope_is_over(uint64_t scope) {
    pthread_mutex_lock(&lock);
    end_t *end = find_end(scope);
    bool is_over = end == NULL || dlb_cuda_is_over(end->device, end->event);
    if (end != NULL && is_over) {
        dlb_cuda_reuse_event(end->device, end->event);
        *end = ends[--end_count];
    }
    pthread_mutex_unlock(&lock);
    return is_over;
}

void dlb_stream_scope_forget_all(void) {
    pthread_mutex_lock(&lock);
    while (end_count > 0) {
        end_count--;
        dlb_cuda_reuse_event(ends[end_count].device, ends[end_count].event);
    }
    for (int32_t i = 0; i < SLOTS; i++)
        atomic_store(&slots[i].scope, 0);
    pthread_mutex_unlock(&lock);
}

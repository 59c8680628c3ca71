/* Streams: what they are to a thread, whether they are captured, events, the order
 * between them, and scopes in which they are known to live. */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

/* ---- identity ---- */

/* Threads by number: an address of thread-local memory may come again. */
static uintptr_t own_number(void) {
    static _Atomic uintptr_t count;
    static _Thread_local uintptr_t number;
    if (number == 0)
        number = atomic_fetch_add(&count, 1) + 1;
    return number;
}

dlb_place dlb_cuda_place(dlb_stream stream) {
    bool is_own = stream == DLB_STREAM_PER_THREAD;
    return (dlb_place){stream, is_own ? own_number() : 0, 0};
}

dlb_place dlb_cuda_place_on(int32_t device, dlb_stream stream) {
    dlb_place place = dlb_cuda_place(stream);
    if (stream > DLB_STREAM_PER_THREAD && stream != DLB_STREAM_NONE)
        place.span = dlb_span_find(device, stream);
    return place;
}

/* Another thread's default stream has none; the legacy default stream waits for it, and
 * it for the legacy one. */
dlb_stream dlb_cuda_handle(dlb_place place) {
    bool is_elsewhere = place.thread != 0 && place.thread != own_number();
    return is_elsewhere ? DLB_STREAM_LEGACY : place.stream;
}

static CUstream handle_of(dlb_place place) {
    return (CUstream)dlb_cuda_handle(place);
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

/* An event may be recorded anew as soon as its waits are enqueued: they hold on to what
 * it was. */
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

int dlb_cuda_order(int32_t device, dlb_place before, dlb_place after) {
    dlb_cuda_scope scope;
    if (before.stream == DLB_STREAM_NONE || after.stream == DLB_STREAM_NONE ||
        dlb_cuda_same_place(before, after))
        return 0;
    if (!dlb_span_is_open(before.span))
        return dlb_span_wait(before.span, device, after);
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int status = order(device, handle_of(before), handle_of(after));
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_mark(int32_t device, dlb_place place, CUevent *event) {
    dlb_cuda_scope scope;
    uint64_t captured;
    *event = NULL;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    CUstream stream = handle_of(place);
    int status = dlb_cuda_capture((dlb_stream)stream, &captured);
    if (status == 0 && captured == 0 && !is_blocked(stream) &&
        record(device, stream, event) < 0) {
        *event = NULL;
        status = -1;
    }
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_wait(int32_t device, dlb_place place, CUevent event) {
    dlb_cuda_scope scope;
    uint64_t capturing;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    CUstream stream = handle_of(place);
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

/* ---- scopes: blocks of Python that work on a stream, `with dlbridge.cuda.stream(s)`
 * ----
 *
 * Whoever opens one promises that the stream lives until its end. What is noted of work
 * on the stream names the scope; when it is closed, an event takes the stream's place,
 * for as long as it has not come. */

/* A span is a number that never comes again, and the slot that it has while it is open.
 */
#define SLOTS 256
#define NESTED 16

typedef struct {
    _Atomic uint64_t span; /* 0: free */
    int32_t device;
    dlb_stream stream;
    _Atomic bool is_used;
    bool is_left; /* its block has ended, in a capture */
} slot_t;

typedef struct {
    uint64_t span;
    int32_t device;
    CUevent event;
} end_t;

typedef struct {
    uint64_t span;
    int32_t device;
    dlb_stream stream;
} block_t;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static slot_t slots[SLOTS];
static uint64_t count;
static end_t *ends; /* of closed spans; those that are not here are over */
static int32_t end_count, end_room;
static _Thread_local block_t blocks[NESTED]; /* innermost last */
static _Thread_local int32_t depth;

static slot_t *slot_of(uint64_t span) {
    return &slots[span % SLOTS];
}

bool dlb_span_is_open(uint64_t span) {
    return span == 0 ||
           atomic_load_explicit(&slot_of(span)->span, memory_order_acquire) == span;
}

/* ---- a scope opens ---- */

/* A free one, or else one that a capture left open: nothing can be ordered after work
 * in a graph, so that it may as well count as over. NULL: there is none. */
static slot_t *find_slot(void) {
    slot_t *left = NULL;
    for (int32_t i = 0; i < SLOTS; i++) {
        if (atomic_load(&slots[i].span) == 0)
            return &slots[i];
        if (slots[i].is_left)
            left = &slots[i];
    }
    return left;
}

static uint64_t take_slot(int32_t device, dlb_stream stream) {
    uint64_t span = 0;
    pthread_mutex_lock(&lock);
    slot_t *slot = find_slot();
    if (slot != NULL) {
        span = ++count * SLOTS + (uint64_t)(slot - slots);
        slot->device = device;
        slot->stream = stream;
        slot->is_left = false;
        atomic_store(&slot->is_used, false);
        atomic_store_explicit(&slot->span, span, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    return span;
}

/* A block may be closed by another thread than opened it. */
static void drop_closed_blocks(void) {
    while (depth > 0 && !dlb_span_is_open(blocks[depth - 1].span))
        depth--;
}

/* The default streams live as long as their device or thread. */
uint64_t dlb_span_open(int32_t device, dlb_stream stream) {
    drop_closed_blocks();
    bool is_made =
        stream != 0 && stream > DLB_STREAM_PER_THREAD && stream != DLB_STREAM_NONE;
    uint64_t span = is_made && depth < NESTED ? take_slot(device, stream) : 0;
    if (span != 0)
        blocks[depth++] = (block_t){span, device, stream};
    return span;
}

uint64_t dlb_span_find(int32_t device, dlb_stream stream) {
    for (int32_t i = depth - 1; i >= 0; i--) {
        const block_t *block = &blocks[i];
        if (block->stream == stream && block->device == device &&
            dlb_span_is_open(block->span)) {
            atomic_store_explicit(&slot_of(block->span)->is_used, true,
                                  memory_order_relaxed);
            return block->span;
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
static bool note_end(const slot_t *slot, uint64_t span) {
    CUevent event;
    if (end_count == end_room)
        forget_come();
    if (!grow() ||
        dlb_cuda_mark(slot->device, dlb_cuda_place(slot->stream), &event) < 0)
        return dlb_cuda_is_gone();
    if (event != NULL)
        ends[end_count++] = (end_t){span, slot->device, event};
    return event != NULL;
}

void dlb_span_close(uint64_t span) {
    slot_t *slot = slot_of(span);
    if (span == 0 || dlb_cuda_is_forked())
        return;
    pthread_mutex_lock(&lock);
    if (dlb_span_is_open(span)) {
        slot->is_left = atomic_load(&slot->is_used) && !note_end(slot, span);
        if (!slot->is_left)
            atomic_store_explicit(&slot->span, 0, memory_order_release);
    }
    pthread_mutex_unlock(&lock);
    for (int32_t i = 0; i < depth; i++)
        if (blocks[i].span == span) {
            for (depth--; i < depth; i++)
                blocks[i] = blocks[i + 1];
            break;
        }
}

/* Under the lock. */
static end_t *find_end(uint64_t span) {
    for (int32_t i = 0; i < end_count; i++)
        if (ends[i].span == span)
            return &ends[i];
    return NULL;
}

int dlb_span_wait(uint64_t span, int32_t device, dlb_place after) {
    pthread_mutex_lock(&lock);
    const end_t *end = find_end(span);
    int status = end ? dlb_cuda_wait(device, after, end->event) : 0;
    pthread_mutex_unlock(&lock);
    return status;
}

bool dlb_span_is_over(uint64_t span) {
    pthread_mutex_lock(&lock);
    end_t *end = find_end(span);
    bool is_over = end == NULL || dlb_cuda_is_over(end->device, end->event);
    if (end != NULL && is_over) {
        dlb_cuda_reuse_event(end->device, end->event);
        *end = ends[--end_count];
    }
    pthread_mutex_unlock(&lock);
    return is_over;
}

void dlb_span_forget(void) {
    pthread_mutex_lock(&lock);
    while (end_count > 0) {
        end_count--;
        dlb_cuda_reuse_event(ends[end_count].device, ends[end_count].event);
    }
    for (int32_t i = 0; i < SLOTS; i++)
        atomic_store(&slots[i].span, 0);
    pthread_mutex_unlock(&lock);
}

/* Order between streams, by events. */
#include "cuda/cuda.h"

/* ---- places ---- */

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

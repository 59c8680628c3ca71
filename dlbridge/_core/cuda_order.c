/* Order between streams, by events; contexts and events are kept for the whole process.
 */
#include "cuda.h"

#include <pthread.h>
#include <stdlib.h>

#define MAX_DEVICES 64

typedef struct {
    CUcontext context; /* the primary one; NULL: not asked for yet */
    pthread_mutex_t lock;
    CUevent *events; /* free ones */
    int32_t event_count, event_room;
} device_t;

static device_t devices[MAX_DEVICES] = {
    [0 ... MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static _Thread_local dlb_cuda_failure_t failure;
static _Thread_local dlb_stream current[MAX_DEVICES]; /* 0: legacy */

/* ---- failures ---- */

dlb_cuda_failure_t *dlb_cuda_failure(void) {
    return &failure;
}

int dlb_cuda_check(CUresult code, const char *function) {
    if (code == 0)
        return 0;
    failure = (dlb_cuda_failure_t){DLB_CUDA_CALL, code, function};
    return -1;
}

int dlb_cuda_fail(dlb_cuda_failure_kind kind) {
    failure = (dlb_cuda_failure_t){kind, 0, ""};
    return -1;
}

/* ---- contexts ---- */

CUcontext dlb_cuda_context(int32_t device) {
    const dlb_cuda_driver *driver = dlb_cuda_open(NULL);
    CUdevice number;
    if (driver == NULL) {
        dlb_cuda_fail(DLB_CUDA_MISSING);
        return NULL;
    }
    if (device < 0 || device >= MAX_DEVICES) {
        dlb_cuda_check(CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet");
        return NULL;
    }
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    if (known->context == NULL &&
        dlb_cuda_check(driver->cuDeviceGet(&number, device), "cuDeviceGet") == 0 &&
        dlb_cuda_check(driver->cuDevicePrimaryCtxRetain(&known->context, number),
                       "cuDevicePrimaryCtxRetain") != 0)
        known->context = NULL;
    CUcontext found = known->context;
    pthread_mutex_unlock(&known->lock);
    return found;
}

int dlb_cuda_enter(int32_t device, dlb_cuda_scope *scope) {
    CUcontext wanted = dlb_cuda_context(device), now = NULL;
    if (wanted == NULL)
        return -1;
    const dlb_cuda_driver *driver = dlb_cuda_get();
    if (dlb_cuda_check(driver->cuCtxGetCurrent(&now), "cuCtxGetCurrent") < 0)
        return -1;
    scope->is_pushed = now != wanted;
    return scope->is_pushed
               ? dlb_cuda_check(driver->cuCtxPushCurrent(wanted), "cuCtxPushCurrent")
               : 0;
}

void dlb_cuda_leave(const dlb_cuda_scope *scope) {
    CUcontext popped;
    if (scope->is_pushed)
        dlb_cuda_get()->cuCtxPopCurrent(&popped);
}

void dlb_cuda_forget_devices(void) {
    for (int i = 0; i < MAX_DEVICES; i++) {
        devices[i].context = NULL;
        devices[i].event_count = 0; /* they went with the driver */
    }
}

/* ---- places ---- */

dlb_place dlb_cuda_place(dlb_stream stream) {
    bool is_own = stream == DLB_STREAM_PER_THREAD;
    return (dlb_place){stream, is_own ? (uintptr_t)&failure : 0};
}

bool dlb_cuda_same_place(dlb_place a, dlb_place b) {
    return a.stream == b.stream && a.thread == b.thread;
}

/* The handle by which this thread reaches a place. Another thread's default stream has
 * none; the legacy default stream waits for it, and it for the legacy one. */
static CUstream handle_of(dlb_place place) {
    bool is_elsewhere = place.thread != 0 && place.thread != (uintptr_t)&failure;
    return (CUstream)(is_elsewhere ? DLB_STREAM_LEGACY : place.stream);
}

dlb_stream dlb_cuda_current_stream(int32_t device) {
    bool is_set = device >= 0 && device < MAX_DEVICES && current[device] != 0;
    return is_set ? current[device] : DLB_STREAM_LEGACY;
}

dlb_stream dlb_cuda_set_current_stream(int32_t device, dlb_stream stream) {
    dlb_stream before = dlb_cuda_current_stream(device);
    if (device >= 0 && device < MAX_DEVICES)
        current[device] = stream;
    return before;
}

/* ---- capture ---- */

/* The legacy default stream is never captured, and must not be asked while another one
 * is. */
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

/* ---- events ---- */

static int take_event(int32_t device, CUevent *event) {
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    *event = known->event_count > 0 ? known->events[--known->event_count] : NULL;
    pthread_mutex_unlock(&known->lock);
    if (*event != NULL)
        return 0;
    return dlb_cuda_check(dlb_cuda_get()->cuEventCreate(event, CU_EVENT_DISABLE_TIMING),
                          "cuEventCreate");
}

/* An event may be recorded anew as soon as its waits are enqueued: they hold on to what
 * it was. */
void dlb_cuda_reuse_event(int32_t device, CUevent event) {
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    if (known->event_count == known->event_room) {
        int32_t room = known->event_room ? 2 * known->event_room : 16;
        CUevent *grown = realloc(known->events, (size_t)room * sizeof *grown);
        if (grown != NULL) {
            known->events = grown;
            known->event_room = room;
        }
    }
    bool is_kept = known->event_count < known->event_room;
    if (is_kept)
        known->events[known->event_count++] = event;
    pthread_mutex_unlock(&known->lock);
    if (!is_kept)
        dlb_cuda_get()->cuEventDestroy(event);
}

static int record(int32_t device, dlb_place place, CUevent *event) {
    if (take_event(device, event) < 0)
        return -1;
    if (dlb_cuda_check(dlb_cuda_get()->cuEventRecord(*event, handle_of(place)),
                       "cuEventRecord") == 0)
        return 0;
    dlb_cuda_reuse_event(device, *event);
    return -1;
}

static int wait(dlb_place place, CUevent event) {
    return dlb_cuda_check(dlb_cuda_get()->cuStreamWaitEvent(handle_of(place), event, 0),
                          "cuStreamWaitEvent");
}

static int join(int32_t device, dlb_place before, dlb_place after) {
    CUevent event;
    if (record(device, before, &event) < 0)
        return -1;
    int status = wait(after, event);
    dlb_cuda_reuse_event(device, event);
    return status;
}

int dlb_cuda_order(int32_t device, dlb_place before, dlb_place after) {
    dlb_cuda_scope scope;
    uint64_t captured, capturing;
    if (before.stream == DLB_STREAM_NONE || after.stream == DLB_STREAM_NONE ||
        dlb_cuda_same_place(before, after))
        return 0;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int status = dlb_cuda_capture(before.stream, &captured) |
                 dlb_cuda_capture(after.stream, &capturing);
    if (status == 0 && captured != 0 && captured != capturing)
        status = dlb_cuda_fail(DLB_CUDA_CAPTURE);
    else if (status == 0 && captured == capturing)
        status = join(device, before, after);
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_mark(int32_t device, dlb_place place, CUevent *event) {
    dlb_cuda_scope scope;
    uint64_t captured;
    *event = NULL;
    if (dlb_cuda_enter(device, &scope) < 0)
        return -1;
    int status = dlb_cuda_capture(place.stream, &captured);
    if (status == 0 && captured == 0 && record(device, place, event) < 0) {
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
    int status = dlb_cuda_capture(place.stream, &capturing);
    if (status == 0 && capturing == 0)
        status = wait(place, event);
    dlb_cuda_leave(&scope);
    return status;
}

bool dlb_cuda_is_over(int32_t device, CUevent event) {
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) < 0)
        return true; /* without a driver nothing runs any more */
    CUresult status = dlb_cuda_get()->cuEventQuery(event);
    dlb_cuda_leave(&scope);
    return status != CUDA_ERROR_NOT_READY;
}

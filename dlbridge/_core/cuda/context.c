/* State of each device: its primary context, spare events, streams of our own. State of
 * each thread: its last failure and its current streams.
 */
#include "cuda/cuda.h"

#include <pthread.h>
#include <stdlib.h>

typedef struct {
    _Atomic(CUcontext) context; /* the primary one; NULL: not asked for yet */
    pthread_mutex_t lock;
    CUevent *events; /* spare ones */
    int32_t event_count, event_room;
    dlb_stream sides[DLB_CUDA_SIDES];
    _Atomic uint64_t synchronisations;
} device_t;

static device_t devices[DLB_MAX_DEVICES] = {
    [0 ... DLB_MAX_DEVICES - 1] = {.lock = PTHREAD_MUTEX_INITIALIZER}};
static _Thread_local dlb_cuda_failure_t failure;
static _Thread_local dlb_stream current[DLB_MAX_DEVICES]; /* 0: legacy */

static bool is_device(int32_t device) {
    return device >= 0 && device < DLB_MAX_DEVICES;
}

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

bool dlb_cuda_is_gone(void) {
    bool is_broken = failure.code >= CUDA_ERROR_ILLEGAL_ADDRESS &&
                     failure.code < CUDA_ERROR_NOT_SUPPORTED &&
                     failure.code != CUDA_ERROR_CONTEXT_IS_DESTROYED;
    return failure.kind == DLB_CUDA_MISSING ||
           (failure.kind == DLB_CUDA_CALL &&
            (is_broken || failure.code == CUDA_ERROR_DEINITIALIZED ||
             failure.code == CUDA_ERROR_NOT_INITIALIZED));
}

/* ---- contexts ---- */

static CUcontext retain_context(const dlb_cuda_driver *driver, int32_t device) {
    CUdevice number;
    CUcontext context = NULL;
    if (dlb_cuda_check(driver->cuDeviceGet(&number, device), "cuDeviceGet") < 0 ||
        dlb_cuda_check(driver->cuDevicePrimaryCtxRetain(&context, number),
                       "cuDevicePrimaryCtxRetain") < 0)
        return NULL;
    return context;
}

CUcontext dlb_cuda_context(int32_t device) {
    const dlb_cuda_driver *driver = dlb_cuda_open(NULL);
    if (driver == NULL) {
        dlb_cuda_fail(DLB_CUDA_MISSING);
        return NULL;
    }
    if (!is_device(device)) {
        dlb_cuda_check(CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet");
        return NULL;
    }
    device_t *known = &devices[device];
    CUcontext found = atomic_load_explicit(&known->context, memory_order_acquire);
    if (found != NULL)
        return found;
    pthread_mutex_lock(&known->lock);
    found = atomic_load(&known->context);
    if (found == NULL) {
        found = retain_context(driver, device);
        atomic_store_explicit(&known->context, found, memory_order_release);
    }
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

int dlb_cuda_relax(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    dlb_cuda_get()->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void dlb_cuda_unrelax(int mode) {
    dlb_cuda_get()->cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- spare events, streams of our own ---- */

CUevent dlb_cuda_spare_event(int32_t device) {
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    CUevent event = known->event_count > 0 ? known->events[--known->event_count] : NULL;
    pthread_mutex_unlock(&known->lock);
    return event;
}

bool dlb_cuda_keep_event(int32_t device, CUevent event) {
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    if (known->event_count == known->event_room) {
        int32_t room = known->event_room ? 2 * known->event_room : 16;
        CUevent *grown = realloc(known->events, (size_t)room * sizeof(CUevent));
        if (grown != NULL) {
            known->events = grown;
            known->event_room = room;
        }
    }
    bool is_kept = known->event_count < known->event_room;
    if (is_kept)
        known->events[known->event_count++] = event;
    pthread_mutex_unlock(&known->lock);
    return is_kept;
}

static dlb_stream make_stream(void) {
    CUstream made = NULL;
    int mode = dlb_cuda_relax();
    int status =
        dlb_cuda_check(dlb_cuda_get()->cuStreamCreate(&made, CU_STREAM_NON_BLOCKING),
                       "cuStreamCreate");
    dlb_cuda_unrelax(mode);
    return status == 0 ? (dlb_stream)made : 0;
}

dlb_stream dlb_cuda_side_stream(int32_t device, dlb_cuda_side side) {
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) < 0)
        return 0;
    device_t *known = &devices[device];
    pthread_mutex_lock(&known->lock);
    if (known->sides[side] == 0)
        known->sides[side] = make_stream();
    dlb_stream found = known->sides[side];
    pthread_mutex_unlock(&known->lock);
    dlb_cuda_leave(&scope);
    return found;
}

static void forget_device(int32_t device) {
    device_t *known = &devices[device];
    dlb_cuda_scope scope;
    if (dlb_cuda_enter(device, &scope) == 0) {
        while (known->event_count > 0)
            dlb_cuda_get()->cuEventDestroy(known->events[--known->event_count]);
        for (int i = 0; i < DLB_CUDA_SIDES; i++)
            if (known->sides[i] != 0)
                dlb_cuda_get()->cuStreamDestroy((CUstream)known->sides[i]);
        dlb_cuda_leave(&scope);
    }
    known->event_count = 0;
    for (int i = 0; i < DLB_CUDA_SIDES; i++)
        known->sides[i] = 0;
    atomic_store(&known->context, NULL);
}

void dlb_cuda_forget_devices(void) {
    dlb_stream_scope_forget_all();
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++)
        if (atomic_load(&devices[i].context) != NULL)
            forget_device(i);
}

uint64_t dlb_cuda_synchronisations(int32_t device) {
    return is_device(device) ? atomic_load(&devices[device].synchronisations) : 0;
}

void dlb_cuda_synchronised(int32_t device) {
    if (is_device(device))
        atomic_fetch_add(&devices[device].synchronisations, 1);
}

/* ---- the current stream ---- */

dlb_stream dlb_cuda_current_stream(int32_t device) {
    return is_device(device) && current[device] != 0 ? current[device]
                                                     : DLB_STREAM_LEGACY;
}

dlb_stream dlb_cuda_set_current_stream(int32_t device, dlb_stream stream) {
    dlb_stream before = dlb_cuda_current_stream(device);
    if (is_device(device))
        current[device] = stream;
    return before;
}

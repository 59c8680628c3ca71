/* The CUDA driver, found when the first tensor needs it, never linked. State of each
 * device: its primary context, spare events, streams of our own. State of each thread:
 * its last failure and its current streams. */
#include "cuda/cuda.h"
#include "memory/lock.h"

#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ENTRY(member, symbol) {symbol, offsetof(dlb_cuda_driver, member), false}
#define NEW(member) {#member, offsetof(dlb_cuda_driver, member), true}
#define SAME(member) ENTRY(member, #member)

/* A suffix is the version of the interface: without it the symbol is that of CUDA 3.1.
 */
static const struct {
    const char *symbol;
    size_t offset;
    bool is_optional;
} entries[] = {
    SAME(cuInit),
    SAME(cuDriverGetVersion),
    SAME(cuGetErrorName),
    SAME(cuGetErrorString),
    SAME(cuDeviceGetCount),
    SAME(cuDeviceGet),
    SAME(cuDeviceGetName),
    ENTRY(cuDeviceGetUuid, "cuDeviceGetUuid_v2"),
    SAME(cuDeviceGetAttribute),
    SAME(cuDeviceCanAccessPeer),
    SAME(cuDeviceGetDefaultMemPool),
    SAME(cuDevicePrimaryCtxRetain),
    SAME(cuCtxGetCurrent),
    ENTRY(cuCtxPushCurrent, "cuCtxPushCurrent_v2"),
    ENTRY(cuCtxPopCurrent, "cuCtxPopCurrent_v2"),
    SAME(cuCtxSynchronize),
    SAME(cuCtxEnablePeerAccess),
    ENTRY(cuMemGetInfo, "cuMemGetInfo_v2"),
    SAME(cuPointerGetAttribute),
    ENTRY(cuMemAlloc, "cuMemAlloc_v2"),
    ENTRY(cuMemFree, "cuMemFree_v2"),
    SAME(cuMemAllocAsync),
    SAME(cuMemFreeAsync),
    SAME(cuMemAllocManaged),
    SAME(cuMemHostAlloc),
    SAME(cuMemFreeHost),
    SAME(cuMemPoolTrimTo),
    SAME(cuMemPoolSetAttribute),
    SAME(cuMemcpyAsync),
    SAME(cuMemcpyPeerAsync),
    ENTRY(cuMemcpy2DAsync, "cuMemcpy2DAsync_v2"),
    ENTRY(cuMemcpy3DAsync, "cuMemcpy3DAsync_v2"),
    SAME(cuMemsetD8Async),
    SAME(cuEventCreate),
    ENTRY(cuEventDestroy, "cuEventDestroy_v2"),
    SAME(cuEventRecord),
    SAME(cuEventQuery),
    SAME(cuEventSynchronize),
    SAME(cuStreamCreate),
    ENTRY(cuStreamDestroy, "cuStreamDestroy_v2"),
    SAME(cuStreamQuery),
    SAME(cuStreamSynchronize),
    SAME(cuStreamWaitEvent),
    SAME(cuStreamIsCapturing),
    ENTRY(cuStreamGetCaptureInfo, "cuStreamGetCaptureInfo_v2"),
    SAME(cuThreadExchangeStreamCaptureMode),
    SAME(cuLaunchHostFunc),
    SAME(cuLaunchKernel),
    SAME(cuModuleLoadData),
    SAME(cuModuleUnload),
    SAME(cuModuleGetFunction),
    SAME(cuFuncGetAttribute),
    SAME(cuFuncSetAttribute),
    SAME(cuIpcGetMemHandle),
    ENTRY(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2"),
    SAME(cuIpcCloseMemHandle),
    SAME(cuIpcGetEventHandle),
    SAME(cuIpcOpenEventHandle),
    NEW(cuFuncGetParamInfo),
};

DLB_LOCK_RENEWED(opening)
static dlb_cuda_driver table;
static _Atomic(const dlb_cuda_driver *) driver;
static bool was_tried, is_watching_forks, is_forked;

DLB_LOCK(telling)
static char reason[256] = "nobody has asked for it yet";

const dlb_cuda_driver *dlb_cuda_get(void) {
    return atomic_load_explicit(&driver, memory_order_acquire);
}

/* A copy of this thread's own: another one may try again meanwhile. */
const char *dlb_cuda_missing(void) {
    static _Thread_local char copy[sizeof reason];
    pthread_mutex_lock(&telling);
    memcpy(copy, reason, sizeof reason);
    pthread_mutex_unlock(&telling);
    return copy;
}

__attribute__((format(printf, 1, 2))) static void tell(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    pthread_mutex_lock(&telling);
    vsnprintf(reason, sizeof reason, format, arguments);
    pthread_mutex_unlock(&telling);
    va_end(arguments);
}

static void *open_library(const char *path) {
    const char *given = path != NULL ? path : getenv("DLBRIDGE_CUDA_DRIVER");
    void *library =
        dlopen(given != NULL ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        tell("%s", dlerror());
    return library;
}

static bool fill_table(void *library) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *address = dlsym(library, entries[i].symbol);
        if (address == NULL && !entries[i].is_optional) {
            tell("the driver is too old: it has no %s", entries[i].symbol);
            return false;
        }
        memcpy((char *)&table + entries[i].offset, &address, sizeof address);
    }
    return true;
}

/* The library stays open: its memory may live as long as the process.
 */
static bool open_driver(const char *path) {
    void *library = open_library(path);
    if (library == NULL || !fill_table(library))
        return false;
    CUresult status = table.cuInit(0);
    if (status == 0)
        return true;
    const char *name = NULL;
    if (table.cuGetErrorName(status, &name) != 0 || name == NULL)
        name = "an unknown error";
    tell("cuInit failed with %s", name);
    return false;
}

/* A driver that was opened before a fork is of no use to the child. */
static void forget_after_fork(void) {
    if (dlb_cuda_get() == NULL)
        return;
    atomic_store(&driver, NULL);
    is_forked = true;
    tell("it was opened before this process was forked; start processes with "
         "multiprocessing's \"spawn\"");
}

bool dlb_cuda_is_forked(void) {
    return is_forked;
}

const dlb_cuda_driver *dlb_cuda_open(const char *path) {
    const dlb_cuda_driver *found = dlb_cuda_get();
    if (found != NULL && path == NULL)
        return found;
    pthread_mutex_lock(&opening);
    found = dlb_cuda_get();
    if (!is_forked && (path != NULL || (found == NULL && !was_tried))) {
        if (!is_watching_forks)
            pthread_atfork(NULL, NULL, forget_after_fork);
        was_tried = is_watching_forks = true;
        found = open_driver(path) ? &table : NULL;
        atomic_store_explicit(&driver, found, memory_order_release);
    }
    pthread_mutex_unlock(&opening);
    return found;
}

void dlb_cuda_close(void) {
    if (dlb_cuda_get() != NULL) {
        dlb_cuda_forget_memory();
        dlb_cuda_forget_peers();
        dlb_cuda_forget_kernels();
    }
    pthread_mutex_lock(&opening);
    if (dlb_cuda_get() != NULL)
        dlb_cuda_forget_devices();
    atomic_store_explicit(&driver, NULL, memory_order_release);
    was_tried = false;
    pthread_mutex_unlock(&opening);
}

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

/* The codes after which, by cuda.h, all further work of the process fails with the same
 * code. Their neighbours (peer access that is already enabled, a launch too large, a
 * call that a host function may not make) leave kernels running. */
static bool is_sticky(CUresult code) {
    switch (code) {
    case CUDA_ERROR_CONTAINED:
    case CUDA_ERROR_ILLEGAL_ADDRESS:
    case CUDA_ERROR_LAUNCH_TIMEOUT:
    case CUDA_ERROR_ASSERT:
    case CUDA_ERROR_HARDWARE_STACK_ERROR:
    case CUDA_ERROR_ILLEGAL_INSTRUCTION:
    case CUDA_ERROR_MISALIGNED_ADDRESS:
    case CUDA_ERROR_INVALID_ADDRESS_SPACE:
    case CUDA_ERROR_INVALID_PC:
    case CUDA_ERROR_LAUNCH_FAILED:
    case CUDA_ERROR_TENSOR_MEMORY_LEAK:
        return true;
    default:
        return false;
    }
}

bool dlb_cuda_is_gone(void) {
    return failure.kind == DLB_CUDA_MISSING ||
           (failure.kind == DLB_CUDA_CALL &&
            (is_sticky(failure.code) || failure.code == CUDA_ERROR_DEINITIALIZED ||
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

/* Attributes are of the one address space of all devices: any context will do. */
static int enter_any(int32_t device, dlb_cuda_scope *scope) {
    CUcontext now = NULL;
    int count = 0;
    scope->is_pushed = false;
    const dlb_cuda_driver *driver = dlb_cuda_get();
    if (dlb_cuda_check(driver->cuCtxGetCurrent(&now), "cuCtxGetCurrent") < 0)
        return -1;
    if (now != NULL)
        return 0;
    if (dlb_cuda_check(driver->cuDeviceGetCount(&count), "cuDeviceGetCount") < 0)
        return -1;
    return dlb_cuda_enter(device >= 0 && device < count ? device : 0, scope);
}

static int read_attributes(const void *address, DLDevice *found) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    static const int attributes[] = {CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                     CU_POINTER_ATTRIBUTE_IS_MANAGED,
                                     CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL};
    unsigned int values[3] = {0};
    for (int i = 0; i < 3; i++) {
        CUresult code = driver->cuPointerGetAttribute(&values[i], attributes[i],
                                                      (CUdeviceptr)(uintptr_t)address);
        if (code == CUDA_ERROR_INVALID_VALUE)
            return 0;
        if (dlb_cuda_check(code, "cuPointerGetAttribute") < 0)
            return -1;
    }
    bool is_pinned = values[0] == CU_MEMORYTYPE_HOST;
    *found = values[1]   ? (DLDevice){kDLCUDAManaged, (int32_t)values[2]}
             : is_pinned ? (DLDevice){kDLCUDAHost, 0}
                         : (DLDevice){kDLCUDA, (int32_t)values[2]};
    return 1;
}

int dlb_cuda_locate(const void *address, int32_t device, DLDevice *found) {
    dlb_cuda_scope scope;
    if (dlb_cuda_open(NULL) == NULL)
        return dlb_cuda_fail(DLB_CUDA_MISSING);
    if (enter_any(device, &scope) < 0)
        return -1;
    int status = read_attributes(address, found);
    dlb_cuda_leave(&scope);
    return status;
}

int dlb_cuda_relax(void) {
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    dlb_cuda_get()->cuThreadExchangeStreamCaptureMode(&mode);
    return mode;
}

void dlb_cuda_unrelax(int mode) {
    dlb_cuda_get()->cuThreadExchangeStreamCaptureMode(&mode);
}

/* ---- the end of a thread ---- */

/* What is being captured cannot be waited for, and runs on another stream later. */
static bool is_pending(const dlb_cuda_driver *known, CUstream stream) {
    int status = CU_STREAM_CAPTURE_STATUS_NONE;
    return known->cuStreamIsCapturing(stream, &status) == 0 &&
           status == CU_STREAM_CAPTURE_STATUS_NONE &&
           known->cuStreamQuery(stream) == CUDA_ERROR_NOT_READY;
}

static void finish_default_stream(const dlb_cuda_driver *known, int32_t device) {
    CUcontext context = atomic_load(&devices[device].context), popped;
    CUstream own = (CUstream)DLB_STREAM_PER_THREAD;
    int mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    if (context == NULL || known->cuCtxPushCurrent(context) != 0)
        return;
    known->cuThreadExchangeStreamCaptureMode(&mode);
    if (is_pending(known, own)) {
        dlb_cuda_synchronised(device);
        known->cuStreamSynchronize(own);
    }
    known->cuCtxPopCurrent(&popped);
}

/* Another thread may close the driver meanwhile, whose functions stay. */
void dlb_cuda_finish_thread(void) {
    const dlb_cuda_driver *known = dlb_cuda_get();
    for (int32_t i = 0; known != NULL && i < DLB_MAX_DEVICES; i++)
        finish_default_stream(known, i);
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

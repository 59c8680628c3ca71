/* The CUDA driver: found when the first tensor needs it, never linked. */
#include "cuda/copy.h"

#include <dlfcn.h>
#include <pthread.h>
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
    SAME(cuFuncSetAttribute),
    SAME(cuIpcGetMemHandle),
    ENTRY(cuIpcOpenMemHandle, "cuIpcOpenMemHandle_v2"),
    SAME(cuIpcCloseMemHandle),
    SAME(cuIpcGetEventHandle),
    SAME(cuIpcOpenEventHandle),
    NEW(cuFuncGetParamInfo),
};

static pthread_mutex_t opening = PTHREAD_MUTEX_INITIALIZER;
static dlb_cuda_driver table;
static _Atomic(const dlb_cuda_driver *) driver;
static bool was_tried, is_watching_forks, is_forked;
static char reason[256] = "nobody has asked for it yet";

const dlb_cuda_driver *dlb_cuda_get(void) {
    return atomic_load_explicit(&driver, memory_order_acquire);
}

const char *dlb_cuda_missing(void) {
    return reason;
}

static void *open_library(const char *path) {
    const char *given = path != NULL ? path : getenv("DLBRIDGE_CUDA_DRIVER");
    void *library =
        dlopen(given != NULL ? given : "libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        snprintf(reason, sizeof reason, "%s", dlerror());
    return library;
}

static bool fill_table(void *library) {
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++) {
        void *address = dlsym(library, entries[i].symbol);
        if (address == NULL && !entries[i].is_optional) {
            snprintf(reason, sizeof reason, "the driver is too old: it has no %s",
                     entries[i].symbol);
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
    snprintf(reason, sizeof reason, "cuInit failed with %s", name);
    return false;
}

/* A driver that was opened before a fork is of no use to the child, and other threads'
 * locks stay locked in it. */
static void forget_after_fork(void) {
    pthread_mutex_init(&opening, NULL);
    if (dlb_cuda_get() == NULL)
        return;
    atomic_store(&driver, NULL);
    is_forked = true;
    snprintf(reason, sizeof reason,
             "it was opened before this process was forked; start processes with "
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
    }
    pthread_mutex_lock(&opening);
    if (dlb_cuda_get() != NULL)
        dlb_cuda_forget_devices();
    atomic_store_explicit(&driver, NULL, memory_order_release);
    was_tried = false;
    pthread_mutex_unlock(&opening);
}

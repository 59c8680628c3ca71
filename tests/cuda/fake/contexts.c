/* Devices, primary contexts, and which of them is current. */
#include "fake.h"

#include <stdio.h>

int32_t device_count = 2;
static bool has_peers = true;
static struct context *primary[MAX_DEVICES];

/* Each thread has a stack of contexts. */
static _Thread_local struct context *stack[64];
static _Thread_local int32_t depth;
static _Thread_local uint32_t epoch_seen;
static uint32_t epoch; /* of fake_reset */

static struct context **top(void) {
    if (epoch_seen != epoch) {
        epoch_seen = epoch;
        depth = 0;
    }
    return depth > 0 ? &stack[depth - 1] : NULL;
}

struct context *context_current(void) {
    struct context **found = top();
    return found ? *found : NULL;
}

bool device_is(CUdevice device) {
    return device >= 0 && device < device_count;
}

struct context *context_primary(int32_t device) {
    if (primary[device] == NULL) {
        primary[device] = handle_new(ANY_CONTEXT, sizeof **primary);
        primary[device]->device = device;
    }
    return primary[device];
}

void contexts_reset(void) {
    memset(primary, 0, sizeof primary);
    epoch++;
}

/* ---- devices ---- */

API CUresult cuDriverGetVersion(int *version) {
    CALL(QUIET, "cuDriverGetVersion")
    *version = 13000;
    return call_end(&call, SUCCESS);
}

API CUresult cuDeviceGetCount(int *count) {
    CALL(SAFE, "cuDeviceGetCount")
    *count = device_count;
    return call_end(&call, SUCCESS);
}

API CUresult cuDeviceGet(CUdevice *device, int ordinal) {
    CALL(SAFE, "cuDeviceGet", .device = ordinal)
    *device = ordinal;
    return call_end(&call, device_is(ordinal) ? SUCCESS : INVALID_DEVICE);
}

API CUresult cuDeviceGetName(char *name, int length, CUdevice device) {
    CALL(SAFE, "cuDeviceGetName", .device = device)
    snprintf(name, (size_t)length, "Fake GPU %d", device);
    return call_end(&call, device_is(device) ? SUCCESS : INVALID_DEVICE);
}

API CUresult cuDeviceGetUuid_v2(CUuuid *uuid, CUdevice device) {
    CALL(SAFE, "cuDeviceGetUuid", .device = device)
    memset(uuid, 0xFA, sizeof *uuid);
    uuid->bytes[15] = (unsigned char)device;
    return call_end(&call, device_is(device) ? SUCCESS : INVALID_DEVICE);
}

API CUresult cuDeviceTotalMem_v2(size_t *nbytes, CUdevice device) {
    CALL(SAFE, "cuDeviceTotalMem", .device = device)
    if (!device_is(device))
        return call_end(&call, INVALID_DEVICE);
    *nbytes = memory_limit[device];
    return call_end(&call, SUCCESS);
}

static const struct {
    int attribute, value;
} attributes[] = {
    {1, 1024},        /* MAX_THREADS_PER_BLOCK */
    {2, 1024},        /* MAX_BLOCK_DIM_X */
    {3, 1024},        /* MAX_BLOCK_DIM_Y */
    {4, 64},          /* MAX_BLOCK_DIM_Z */
    {5, 2147483647},  /* MAX_GRID_DIM_X */
    {6, 65535},       /* MAX_GRID_DIM_Y */
    {7, 65535},       /* MAX_GRID_DIM_Z */
    {8, 49152},       /* MAX_SHARED_MEMORY_PER_BLOCK */
    {10, 32},         /* WARP_SIZE */
    {11, 2147483647}, /* MAX_PITCH */
    {12, 65536},      /* MAX_REGISTERS_PER_BLOCK */
    {16, 132},        /* MULTIPROCESSOR_COUNT */
    {19, 1},          /* CAN_MAP_HOST_MEMORY */
    {31, 1},          /* CONCURRENT_KERNELS */
    {39, 2048},       /* MAX_THREADS_PER_MULTIPROCESSOR */
    {40, 2},          /* ASYNC_ENGINE_COUNT */
    {41, 1},          /* UNIFIED_ADDRESSING */
    {75, 9},          /* COMPUTE_CAPABILITY_MAJOR */
    {76, 0},          /* COMPUTE_CAPABILITY_MINOR */
    {78, 1},          /* STREAM_PRIORITIES_SUPPORTED */
    {81, 233472},     /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    {83, 1},          /* MANAGED_MEMORY */
    {89, 1},          /* CONCURRENT_MANAGED_ACCESS */
    {97, 232448},     /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    {115, 1},         /* MEMORY_POOLS_SUPPORTED */
};

API CUresult cuDeviceGetAttribute(int *value, int attribute, CUdevice device) {
    CALL(SAFE, "cuDeviceGetAttribute", .device = device)
    if (!device_is(device))
        return call_end(&call, INVALID_DEVICE);
    *value = 0;
    for (size_t i = 0; i < sizeof attributes / sizeof *attributes; i++)
        if (attributes[i].attribute == attribute)
            *value = attributes[i].value;
    return call_end(&call, SUCCESS);
}

/* ---- contexts ---- */

API CUresult cuDevicePrimaryCtxRetain(CUcontext *context, CUdevice device) {
    CALL(SAFE, "cuDevicePrimaryCtxRetain", .device = device)
    if (!device_is(device))
        return call_end(&call, INVALID_DEVICE);
    *context = context_primary(device);
    (*context)->retained++;
    return call_end(&call, SUCCESS);
}

API CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    CALL(SAFE, "cuDevicePrimaryCtxRelease", .device = device)
    if (!device_is(device) || primary[device] == NULL || primary[device]->retained <= 0)
        return call_end(
            &call, refuse(INVALID_CONTEXT, "device %d is not retained", (int)device));
    primary[device]->retained--;
    return call_end(&call, SUCCESS);
}

API CUresult cuDevicePrimaryCtxGetState(CUdevice device, unsigned int *flags,
                                        int *is_active) {
    CALL(SAFE, "cuDevicePrimaryCtxGetState", .device = device)
    if (!device_is(device))
        return call_end(&call, INVALID_DEVICE);
    *flags = 0;
    *is_active = primary[device] != NULL && primary[device]->retained > 0;
    return call_end(&call, SUCCESS);
}

API CUresult cuCtxGetCurrent(CUcontext *context) {
    CALL(SAFE, "cuCtxGetCurrent")
    *context = context_current();
    return call_end(&call, SUCCESS);
}

static CUresult check_context(CUcontext context) {
    if (context == NULL || handle_is(context, ANY_CONTEXT))
        return SUCCESS;
    return refuse(INVALID_CONTEXT, "%p is no context", (void *)context);
}

API CUresult cuCtxSetCurrent(CUcontext context) {
    CALL(SAFE, "cuCtxSetCurrent")
    CUresult result = check_context(context);
    struct context **current = top();
    if (result == SUCCESS && current == NULL)
        stack[depth++] = context;
    else if (result == SUCCESS)
        *current = context;
    return call_end(&call, result);
}

API CUresult cuCtxPushCurrent_v2(CUcontext context) {
    CALL(SAFE, "cuCtxPushCurrent")
    CUresult result = check_context(context);
    top();
    if (result == SUCCESS && depth == 64)
        result = refuse(INVALID_CONTEXT, "64 contexts were pushed and never popped");
    if (result == SUCCESS)
        stack[depth++] = context;
    return call_end(&call, result);
}

API CUresult cuCtxPopCurrent_v2(CUcontext *context) {
    CALL(SAFE, "cuCtxPopCurrent")
    struct context **current = top();
    if (current == NULL)
        return call_end(&call, refuse(INVALID_CONTEXT, "nothing was pushed"));
    if (context != NULL)
        *context = *current;
    depth--;
    return call_end(&call, SUCCESS);
}

/* How many contexts this thread has on its stack. */
API int32_t fake_context_depth(void) {
    top();
    return depth;
}

API CUresult cuCtxGetDevice(CUdevice *device) {
    CALL(SAFE, "cuCtxGetDevice")
    struct context *current = context_current();
    if (current != NULL)
        *device = current->device;
    return call_end(&call,
                    current ? SUCCESS : refuse(INVALID_CONTEXT, "no current context"));
}

API CUresult cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer) {
    CALL(SAFE, "cuDeviceCanAccessPeer", .device = device)
    *can = has_peers && device != peer;
    return call_end(&call,
                    device_is(device) && device_is(peer) ? SUCCESS : INVALID_DEVICE);
}

API CUresult cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    CALL(SAFE, "cuCtxEnablePeerAccess")
    struct context *current = context_current();
    if (current == NULL || !handle_is(peer, ANY_CONTEXT) || peer == current)
        return call_end(&call, refuse(INVALID_CONTEXT, "no peer of another device"));
    if (!has_peers || flags != 0)
        return call_end(&call,
                        flags ? INVALID_VALUE : 217); /* PEER_ACCESS_UNSUPPORTED */
    if (current->peers >> peer->device & 1)
        return call_end(&call, PEER_ACCESS_ALREADY_ENABLED);
    current->peers |= 1u << peer->device;
    return call_end(&call, SUCCESS);
}

API void fake_set_devices(int32_t count, int peers) {
    device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
    has_peers = peers;
}

/* The attributes of a pointer. */
#include "fake.h"

enum {
    CONTEXT = 1,
    MEMORY_TYPE,
    DEVICE_POINTER,
    HOST_POINTER,
    BUFFER_ID = 7,
    IS_MANAGED,
    DEVICE_ORDINAL,
    IS_LEGACY_IPC_CAPABLE,
    RANGE_START,
    RANGE_SIZE,
    MAPPED,
    ALLOWED_HANDLES,
    ACCESS_FLAGS = 16,
    MEMPOOL_HANDLE = 17,
    MAPPING_SIZE,
    MAPPING_START,
};

static void put(void *value, const void *found, size_t size) {
    memcpy(value, found, size);
}

static void put_int(void *value, unsigned int found) {
    put(value, &found, sizeof found);
}

static void put_bool(void *value, bool found) {
    put(value, &found, sizeof found);
}

static void put_address(void *value, uint64_t found) {
    put(value, &found, sizeof found);
}

static CUresult get(void *value, int attribute, CUdeviceptr pointer,
                    const block *memory) {
    bool is_host = memory->kind == PINNED;
    switch (attribute) {
    case CONTEXT:
        put_address(value, (uintptr_t)context_primary(memory->device));
        return SUCCESS;
    case MEMORY_TYPE:
        put_int(value, is_host ? KIND_HOST : KIND_DEVICE);
        return SUCCESS;
    case HOST_POINTER:
        if (!is_host && memory->kind != MANAGED)
            return INVALID_VALUE;
        put_address(value, pointer);
        return SUCCESS;
    case DEVICE_POINTER:
        put_address(value, pointer);
        return SUCCESS;
    case BUFFER_ID:
        put_address(value, memory->address);
        return SUCCESS;
    case IS_MANAGED:
        put_int(value, memory->kind == MANAGED);
        return SUCCESS;
    case DEVICE_ORDINAL:
        put_int(value, (unsigned int)memory->device);
        return SUCCESS;
    case IS_LEGACY_IPC_CAPABLE:
        put_bool(value, memory->kind == DEVICE_MEMORY);
        return SUCCESS;
    case RANGE_START:
        put_address(value, memory->range_start);
        return SUCCESS;
    case RANGE_SIZE:
        put_address(value, memory->range_nbytes);
        return SUCCESS;
    case MAPPING_START:
        put_address(value, memory->address);
        return SUCCESS;
    case MAPPING_SIZE:
        put_address(value, memory->nbytes);
        return SUCCESS;
    case MAPPED:
        put_bool(value, true);
        return SUCCESS;
    case ALLOWED_HANDLES:
        put_address(value, 0);
        return SUCCESS;
    case ACCESS_FLAGS:
        put_int(value, 3);
        return SUCCESS;
    case MEMPOOL_HANDLE:
        put_address(value, (uintptr_t)memory->pool);
        return SUCCESS;
    default:
        return INVALID_VALUE;
    }
}

static const block *live_block(CUdeviceptr pointer) {
    const block *memory = block_find(pointer);
    return memory != NULL && !memory->is_freed ? memory : NULL;
}

/* Drivers may want a current context, of whichever device. */
static CUresult check_context(void) {
    return context_current() != NULL
               ? SUCCESS
               : refuse(INVALID_CONTEXT, "no current context to ask for a pointer");
}

API CUresult cuPointerGetAttribute(void *value, int attribute, CUdeviceptr pointer) {
    CALL(SAFE, "cuPointerGetAttribute", .address = pointer)
    CUresult result = check_context();
    const block *memory = live_block(pointer);
    if (result == SUCCESS)
        result = memory ? get(value, attribute, pointer, memory) : INVALID_VALUE;
    return call_end(&call, result);
}

static size_t size_of(int attribute) {
    switch (attribute) {
    case MEMORY_TYPE:
    case IS_MANAGED:
    case DEVICE_ORDINAL:
    case ACCESS_FLAGS:
        return 4;
    case IS_LEGACY_IPC_CAPABLE:
    case MAPPED:
        return 1;
    default:
        return 8;
    }
}

/* An attribute without an answer is 0; a device is -2 where there is none. */
API CUresult cuPointerGetAttributes(unsigned int count, int *attributes, void **values,
                                    CUdeviceptr pointer) {
    CALL(SAFE, "cuPointerGetAttributes", .address = pointer)
    CUresult result = check_context();
    if (result != SUCCESS)
        return call_end(&call, result);
    const block *memory = live_block(pointer);
    for (unsigned int i = 0; i < count; i++) {
        memset(values[i], 0, size_of(attributes[i]));
        if (memory != NULL)
            get(values[i], attributes[i], pointer, memory);
        else if (attributes[i] == DEVICE_ORDINAL)
            put_int(values[i], (unsigned int)-2);
    }
    return call_end(&call, SUCCESS);
}

API CUresult cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *nbytes,
                                     CUdeviceptr pointer) {
    CALL(SAFE, "cuMemGetAddressRange", .address = pointer)
    const block *memory = live_block(pointer);
    if (memory != NULL && start != NULL)
        *start = memory->address;
    if (memory != NULL && nbytes != NULL)
        *nbytes = memory->nbytes;
    return call_end(&call, memory ? SUCCESS : NOT_FOUND);
}

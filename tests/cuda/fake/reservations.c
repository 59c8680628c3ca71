/* Address space that is reserved, and memory that is mapped into it: what the pools of
 * some frameworks are made of. */
#include "fake.h"

#define GRANULE (2ull << 20)

typedef struct {
    int type, device; /* DEVICE is 1 */
} location;

typedef struct {
    int type, handle_types; /* PINNED is 1 */
    location location;
    void *windows;
    unsigned char flags[8];
} allocation_properties;

typedef struct {
    location location;
    int flags; /* READ 1, READWRITE 3 */
} access_description;

struct allocation {
    int32_t device, mappings;
    uint64_t nbytes;
    bool is_released;
};

typedef struct reservation {
    struct reservation *next;
    uint64_t start, nbytes;
} reservation;

static reservation *reservations;

static bool is_whole(uint64_t number) {
    return number > 0 && number % GRANULE == 0;
}

/* ---- address space ---- */

static reservation *reservation_of(uint64_t start, uint64_t nbytes) {
    for (reservation *at = reservations; at != NULL; at = at->next)
        if (start >= at->start && start + nbytes <= at->start + at->nbytes)
            return at;
    return NULL;
}

static CUresult reserve(CUdeviceptr *pointer, uint64_t nbytes, size_t alignment) {
    uint64_t unit = alignment > GRANULE ? alignment : GRANULE;
    if (!is_whole(nbytes) || (unit & (unit - 1)) != 0)
        return INVALID_VALUE;
    uint64_t start = arena_take(nbytes + unit);
    if (start == 0)
        return OUT_OF_MEMORY;
    reservation *new = malloc(sizeof *new);
    *new = (reservation){reservations, (start + unit - 1) / unit * unit, nbytes};
    reservations = new;
    *pointer = new->start;
    return SUCCESS;
}

API CUresult cuMemAddressReserve(CUdeviceptr *pointer, size_t nbytes, size_t alignment,
                                 CUdeviceptr wish, unsigned long long flags) {
    CALL(SAFE, "cuMemAddressReserve", .nbytes = nbytes)(void) wish; /* only a hint */
    return call_end(&call,
                    flags == 0 ? reserve(pointer, nbytes, alignment) : INVALID_VALUE);
}

API CUresult cuMemAddressFree(CUdeviceptr start, size_t nbytes) {
    CALL(SAFE, "cuMemAddressFree", .address = start, .nbytes = nbytes)
    for (reservation **at = &reservations; *at != NULL; at = &(*at)->next)
        if ((*at)->start == start && (*at)->nbytes == nbytes) {
            if (!blocks_forget(start, nbytes))
                break;
            reservation *found = *at;
            *at = found->next;
            free(found);
            return call_end(&call, SUCCESS);
        }
    return call_end(
        &call, refuse(INVALID_VALUE, "%#llx is not reserved so, or in use", start));
}

/* ---- memory ---- */

API CUresult cuMemGetAllocationGranularity(size_t *nbytes,
                                           const allocation_properties *properties,
                                           int option) {
    CALL(SAFE, "cuMemGetAllocationGranularity")(void) properties, (void)option;
    *nbytes = GRANULE;
    return call_end(&call, SUCCESS);
}

API CUresult cuMemCreate(struct allocation **handle, size_t nbytes,
                         const allocation_properties *properties,
                         unsigned long long flags) {
    CALL(SAFE, "cuMemCreate", .nbytes = nbytes)
    int device = properties->location.device;
    if (!is_whole(nbytes) || properties->type != 1 || properties->location.type != 1 ||
        !device_is(device) || flags != 0)
        return call_end(&call, INVALID_VALUE);
    CUresult result = memory_charge(device, nbytes);
    if (result == SUCCESS) {
        *handle = handle_new(ANY_ALLOCATION, sizeof **handle);
        **handle = (struct allocation){.device = device, .nbytes = nbytes};
    }
    return call_end(&call, result);
}

/* It is there until it is also mapped nowhere. */
static void let_go(struct allocation *memory) {
    if (memory->is_released && memory->mappings == 0)
        memory_refund(memory->device, memory->nbytes);
}

API CUresult cuMemRelease(struct allocation *handle) {
    CALL(SAFE, "cuMemRelease")
    if (!handle_is(handle, ANY_ALLOCATION))
        return call_end(&call,
                        refuse(INVALID_VALUE, "%p is no allocation", (void *)handle));
    handle_retire(handle, ANY_ALLOCATION);
    handle->is_released = true;
    let_go(handle);
    return call_end(&call, SUCCESS);
}

/* ---- the one in the other ---- */

static CUresult map(uint64_t start, uint64_t nbytes, struct allocation *memory) {
    const reservation *range = reservation_of(start, nbytes);
    if (!handle_is(memory, ANY_ALLOCATION) || nbytes != memory->nbytes ||
        start % GRANULE != 0 || range == NULL || !blocks_forget(start, nbytes))
        return refuse(INVALID_VALUE, "%#llx cannot be mapped so",
                      (unsigned long long)start);
    block *new = block_map(start, nbytes, memory->device);
    new->range_start = range->start;
    new->range_nbytes = range->nbytes;
    new->allocation = memory;
    memory->mappings++;
    op op;
    op_of_host(&op);
    access_begin_life(new, &op);
    clock_free(&op.now);
    return SUCCESS;
}

API CUresult cuMemMap(CUdeviceptr start, size_t nbytes, size_t offset,
                      struct allocation *handle, unsigned long long flags) {
    CALL(SAFE, "cuMemMap", .address = start, .nbytes = nbytes)
    return call_end(&call, offset == 0 && flags == 0 ? map(start, nbytes, handle)
                                                     : INVALID_VALUE);
}

static block *mapping_at(uint64_t start, uint64_t nbytes) {
    block *found = block_find(start);
    bool is_it = found != NULL && !found->is_freed && found->kind == MAPPED_MEMORY &&
                 found->address == start && found->nbytes == nbytes;
    if (!is_it)
        refuse(INVALID_VALUE, "%#llx is not mapped so", (unsigned long long)start);
    return is_it ? found : NULL;
}

/* No device may touch a mapping before. */
API CUresult cuMemSetAccess(CUdeviceptr start, size_t nbytes,
                            const access_description *rows, size_t count) {
    CALL(SAFE, "cuMemSetAccess", .address = start, .nbytes = nbytes)
    block *memory = mapping_at(start, nbytes);
    for (size_t i = 0; memory != NULL && i < count; i++) {
        if (rows[i].location.type != 1 || !device_is(rows[i].location.device))
            return call_end(&call, INVALID_VALUE);
        uint32_t bit = 1u << rows[i].location.device;
        memory->access =
            rows[i].flags == 3 ? memory->access | bit : memory->access & ~bit;
    }
    return call_end(&call, memory != NULL ? SUCCESS : INVALID_VALUE);
}

API CUresult cuMemUnmap(CUdeviceptr start, size_t nbytes) {
    CALL(SAFE, "cuMemUnmap", .address = start, .nbytes = nbytes)
    block *memory = mapping_at(start, nbytes);
    if (memory == NULL)
        return call_end(&call, INVALID_VALUE);
    op op;
    deferred_flush(NULL);
    op_of_host(&op);
    access_all(&op, memory, true, "unmaps");
    clock_free(&op.now);
    block_free(memory);
    memory->allocation->mappings--;
    let_go(memory->allocation);
    return call_end(&call, SUCCESS);
}

void reservations_reset(void) {
    while (reservations != NULL) {
        reservation *first = reservations;
        reservations = first->next;
        free(first);
    }
}

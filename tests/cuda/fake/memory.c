/* Blocks of memory, pools, and how much a device has. */
#include "fake.h"

uint64_t memory_limit[MAX_DEVICES];
static uint64_t in_use[MAX_DEVICES]; /* without pools */
static struct pool *pools[MAX_DEVICES];

static block **blocks; /* by address; foreign ones apart */
static int64_t block_count, block_room, block_alive;

/* ---- blocks ---- */

/* The first block that ends after the address. */
static int64_t position(uint64_t address) {
    int64_t low = 0, high = block_count;
    while (low < high) {
        int64_t middle = (low + high) / 2;
        if (blocks[middle]->address + blocks[middle]->nbytes <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

block *block_find(uint64_t address) {
    int64_t at = position(address);
    return at < block_count && blocks[at]->address <= address ? blocks[at] : NULL;
}

static block *insert(uint64_t address, uint64_t nbytes, memory_kind kind,
                     int32_t device) {
    if (block_count == block_room) {
        block_room = block_room ? 2 * block_room : 256;
        blocks = realloc(blocks, (size_t)block_room * sizeof *blocks);
    }
    int64_t at = position(address);
    memmove(blocks + at + 1, blocks + at, (size_t)(block_count - at) * sizeof *blocks);
    block *self = calloc(1, sizeof *self);
    *self =
        (block){.address = address, .nbytes = nbytes, .kind = kind, .device = device};
    self->range_start = address;
    self->range_nbytes = nbytes;
    self->exported = -1;
    blocks[at] = self;
    block_count++;
    block_alive++;
    return self;
}

block *block_adopt(uint64_t address, uint64_t nbytes, int32_t device) {
    block *known = block_find(address);
    if (known != NULL && known->address == address) { /* opened once more */
        known->is_freed = false;
        block_alive++;
        return known;
    }
    return insert(address, nbytes, FOREIGN, device);
}

static uint64_t taken(int32_t device) {
    return in_use[device] + pool_default(device)->used + pool_default(device)->kept;
}

uint64_t memory_free(int32_t device) {
    uint64_t busy = taken(device);
    return busy < memory_limit[device] ? memory_limit[device] - busy : 0;
}

/* Memory that a pool keeps serves it again. */
static CUresult charge(int32_t device, uint64_t nbytes, struct pool *pool) {
    uint64_t *count = pool != NULL ? &pool->used : &in_use[device];
    uint64_t again = pool == NULL ? 0 : pool->kept < nbytes ? pool->kept : nbytes;
    if (nbytes - again > memory_free(device))
        return OUT_OF_MEMORY;
    if (pool != NULL)
        pool->kept -= again;
    *count += nbytes;
    if (pool != NULL && pool->used > pool->high)
        pool->high = pool->used;
    return SUCCESS;
}

CUresult memory_charge(int32_t device, uint64_t nbytes) {
    return charge(device, nbytes, NULL);
}

void memory_refund(int32_t device, uint64_t nbytes) {
    in_use[device] -= nbytes;
}

/* What was unmapped there is no more. */
bool blocks_forget(uint64_t start, uint64_t nbytes) {
    int64_t first = position(start), end = first;
    for (; end < block_count && blocks[end]->address < start + nbytes; end++)
        if (!blocks[end]->is_freed)
            return false;
    memmove(blocks + first, blocks + end, (size_t)(block_count - end) * sizeof *blocks);
    block_count -= end - first;
    return true;
}

block *block_map(uint64_t address, uint64_t nbytes, int32_t device) {
    return insert(address, nbytes, MAPPED_MEMORY, device);
}

CUresult block_new(memory_kind kind, int32_t device, uint64_t nbytes, struct pool *pool,
                   block **out) {
    if (nbytes == 0)
        return INVALID_VALUE;
    CUresult result = kind == PINNED ? SUCCESS : charge(device, nbytes, pool);
    if (result != SUCCESS)
        return result;
    uint64_t address = arena_take(nbytes);
    if (address == 0)
        return OUT_OF_MEMORY;
    *out = insert(address, nbytes, kind, device);
    (*out)->pool = pool;
    return SUCCESS;
}

/* A pool gives memory that a stream frees to the next caller, whenever it happens. */
void block_discount(block *self) {
    if (self->is_discounted || self->kind == FOREIGN || self->kind == PINNED ||
        self->kind == MAPPED_MEMORY)
        return;
    self->is_discounted = true;
    if (self->pool != NULL) {
        self->pool->used -= self->nbytes;
        self->pool->kept += self->nbytes;
    } else
        in_use[self->device] -= self->nbytes;
}

void block_free(block *self) {
    self->is_freed = true;
    self->freed_by = call_number();
    block_alive--;
    if (self->kind == FOREIGN)
        return;
    if (!self->is_graphs)
        arena_give(self->address, self->nbytes);
    block_discount(self);
}

/* Each launch of a graph has its allocations at the same addresses. */
void block_revive(block *self) {
    if (!self->is_freed)
        return;
    self->is_freed = self->is_discounted = false;
    self->pool->used += self->nbytes;
    self->pool->kept -= self->nbytes;
    block_alive++;
}

int64_t blocks_alive(void) {
    return block_alive;
}

uint64_t bytes_alive(int32_t device) {
    return in_use[device] + pool_default(device)->used;
}

void memory_reset(void) {
    for (int64_t i = 0; i < block_count; i++) {
        for (int32_t j = 0; j < blocks[i]->segment_count; j++)
            free(blocks[i]->segments[j].reads);
        free(blocks[i]->segments);
        free(blocks[i]);
    }
    block_count = block_alive = 0;
    memset(pools, 0, sizeof pools);
    memset(in_use, 0, sizeof in_use);
    for (int i = 0; i < MAX_DEVICES; i++)
        memory_limit[i] = 16ull << 30;
    arena_reset();
}

/* ---- pools ---- */

struct pool *pool_default(int32_t device) {
    if (pools[device] == NULL) {
        pools[device] = handle_new(ANY_POOL, sizeof **pools);
        pools[device]->device = device;
    }
    return pools[device];
}

/* A pool gives back what it keeps beyond its threshold whenever the host waits. */
void memory_synchronised(void) {
    for (int i = 0; i < device_count; i++) {
        struct pool *pool = pool_default(i);
        if (pool->kept + pool->used > pool->threshold)
            pool->kept =
                pool->used > pool->threshold ? 0 : pool->threshold - pool->used;
    }
}

API CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *pool, CUdevice device) {
    CALL(SAFE, "cuDeviceGetDefaultMemPool", .device = device)
    if (!device_is(device))
        return call_end(&call, INVALID_DEVICE);
    *pool = pool_default(device);
    return call_end(&call, SUCCESS);
}

API CUresult cuDeviceGetMemPool(CUmemoryPool *pool, CUdevice device) {
    return cuDeviceGetDefaultMemPool(pool, device);
}

API CUresult cuMemPoolTrimTo(CUmemoryPool pool, size_t nbytes) {
    CALL(SAFE, "cuMemPoolTrimTo", .nbytes = nbytes)
    if (!handle_is(pool, ANY_POOL))
        return call_end(&call, refuse(INVALID_HANDLE, "no memory pool"));
    if (pool->used + pool->kept > nbytes)
        pool->kept = pool->used > nbytes ? 0 : nbytes - pool->used;
    return call_end(&call, SUCCESS);
}

/* REUSE_… 1 to 3, RELEASE_THRESHOLD 4, RESERVED_MEM_CURRENT 5, …_HIGH 6,
 * USED_MEM_CURRENT 7, …_HIGH 8 */
API CUresult cuMemPoolSetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CALL(SAFE, "cuMemPoolSetAttribute")
    if (!handle_is(pool, ANY_POOL))
        return call_end(&call, refuse(INVALID_HANDLE, "no memory pool"));
    if (attribute == 4)
        memcpy(&pool->threshold, value, sizeof pool->threshold);
    return call_end(&call, attribute >= 1 && attribute <= 8 ? SUCCESS : INVALID_VALUE);
}

API CUresult cuMemPoolGetAttribute(CUmemoryPool pool, int attribute, void *value) {
    CALL(SAFE, "cuMemPoolGetAttribute")
    if (!handle_is(pool, ANY_POOL))
        return call_end(&call, refuse(INVALID_HANDLE, "no memory pool"));
    if (attribute < 1 || attribute > 8)
        return call_end(&call, INVALID_VALUE);
    if (attribute < 4) {
        *(int *)value = 1;
        return call_end(&call, SUCCESS);
    }
    uint64_t reserved = pool->used + pool->kept;
    uint64_t known[] = {pool->threshold, reserved, reserved, pool->used, pool->high};
    memcpy(value, &known[attribute - 4], sizeof *known);
    return call_end(&call, SUCCESS);
}

typedef struct {
    int location_type, device, flags; /* a device is 1; READWRITE is 3 */
} access_row;

API CUresult cuMemPoolSetAccess(CUmemoryPool pool, const access_row *rows,
                                size_t count) {
    CALL(SAFE, "cuMemPoolSetAccess")
    if (!handle_is(pool, ANY_POOL))
        return call_end(&call, refuse(INVALID_HANDLE, "no memory pool"));
    for (size_t i = 0; i < count; i++) {
        if (rows[i].location_type != 1 || !device_is(rows[i].device))
            return call_end(&call, INVALID_VALUE);
        uint32_t bit = 1u << rows[i].device;
        pool->peers = rows[i].flags == 3 ? pool->peers | bit : pool->peers & ~bit;
    }
    return call_end(&call, SUCCESS);
}

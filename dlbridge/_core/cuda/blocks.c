/* Blocks of CUDA memory: from the driver, and kept for reuse. */
#include "cuda/blocks.h"

#include <pthread.h>
#include <stdlib.h>

#define SMALLEST 12 /* a kept block has at least 2**12 bytes */

typedef struct {
    CUmemoryPool pool; /* NULL: the device has none */
    bool was_asked;
} pool_state;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pool_state pools[DLB_MAX_DEVICES];
static dlb_block *kept[DLB_BLOCK_KINDS][DLB_MAX_DEVICES][64]; /* by size class */

/* ---- the driver's pool ---- */

/* What is freed stays in the pool, instead of going back to the system whenever
 * somebody synchronises. */
static CUmemoryPool ask_pool(int32_t device) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdevice number;
    CUmemoryPool pool;
    int is_supported = 0;
    uint64_t threshold = UINT64_MAX;
    if (driver->cuDeviceGet(&number, device) != 0 ||
        driver->cuDeviceGetAttribute(
            &is_supported, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, number) != 0 ||
        !is_supported || driver->cuDeviceGetDefaultMemPool(&pool, number) != 0)
        return NULL;
    driver->cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold);
    return pool;
}

static CUmemoryPool pool_of(int32_t device) {
    pthread_mutex_lock(&lock);
    if (!pools[device].was_asked)
        pools[device] = (pool_state){ask_pool(device), true};
    CUmemoryPool pool = pools[device].pool;
    pthread_mutex_unlock(&lock);
    return pool;
}

/* ---- blocks from the driver ---- */

static int get_device(dlb_block *made) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdeviceptr address = 0;
    int status;
    made->is_pooled = pool_of(made->device) != NULL;
    if (made->is_pooled)
        status = dlb_cuda_check(driver->cuMemAllocAsync(&address, (size_t)made->nbytes,
                                                        (CUstream)made->home.stream),
                                "cuMemAllocAsync");
    else
        status = dlb_cuda_check(driver->cuMemAlloc(&address, (size_t)made->nbytes),
                                "cuMemAlloc");
    made->address = (void *)(uintptr_t)address;
    return status;
}

static int get_pinned(dlb_block *made) {
    return dlb_cuda_check(dlb_cuda_get()->cuMemHostAlloc(&made->address,
                                                         (size_t)1 << made->size_class,
                                                         CU_MEMHOSTALLOC_PORTABLE),
                          "cuMemHostAlloc");
}

static int get_managed(dlb_block *made) {
    CUdeviceptr address = 0;
    int status = dlb_cuda_check(
        dlb_cuda_get()->cuMemAllocManaged(&address, (size_t)1 << made->size_class,
                                          CU_MEM_ATTACH_GLOBAL),
        "cuMemAllocManaged");
    made->address = (void *)(uintptr_t)address;
    return status;
}

static int (*const getters[DLB_BLOCK_KINDS])(dlb_block *) = {get_device, get_pinned,
                                                             get_managed};

int dlb_block_get(dlb_block *made) {
    int mode = dlb_cuda_relax(); /* a capture elsewhere is no reason to fail */
    int status = getters[made->kind](made);
    dlb_cuda_unrelax(mode);
    return status;
}

/* At the end of a process the driver may be gone, and the memory with it. */
void dlb_block_free(dlb_block *old) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)old->address;
    dlb_cuda_scope scope;
    if (old->address != NULL && driver != NULL &&
        dlb_cuda_enter(old->device, &scope) == 0) {
        int mode = dlb_cuda_relax(); /* not to end a capture elsewhere */
        if (old->kind == DLB_BLOCK_PINNED)
            driver->cuMemFreeHost(old->address);
        else if (old->is_pooled)
            driver->cuMemFreeAsync(address, (CUstream)dlb_cuda_handle(old->home));
        else
            driver->cuMemFree(address);
        dlb_cuda_unrelax(mode);
        dlb_cuda_leave(&scope);
    }
    free(old);
}

/* ---- blocks that are kept ---- */

int32_t dlb_block_size_class(int64_t nbytes) {
    int32_t found = SMALLEST;
    while (found < 62 && (int64_t)1 << found < nbytes)
        found++;
    return found;
}

bool dlb_block_take_kept(dlb_block *wanted) {
    dlb_block **first = &kept[wanted->kind][wanted->device][wanted->size_class];
    pthread_mutex_lock(&lock);
    dlb_block *found = *first;
    if (found != NULL)
        *first = found->next;
    pthread_mutex_unlock(&lock);
    if (found != NULL)
        wanted->address = found->address;
    free(found);
    return wanted->address != NULL;
}

void dlb_block_keep(dlb_block *old) {
    dlb_block **first = &kept[old->kind][old->device][old->size_class];
    pthread_mutex_lock(&lock);
    old->next = *first;
    *first = old;
    pthread_mutex_unlock(&lock);
}

static dlb_block *take_all_kept(void) {
    dlb_block *all = NULL;
    pthread_mutex_lock(&lock);
    for (int32_t i = 0; i < DLB_BLOCK_KINDS * DLB_MAX_DEVICES * 64; i++) {
        dlb_block **first =
            &kept[i / 64 / DLB_MAX_DEVICES][i / 64 % DLB_MAX_DEVICES][i % 64];
        while (*first != NULL) {
            dlb_block *moved = *first;
            *first = moved->next;
            moved->next = all;
            all = moved;
        }
    }
    pthread_mutex_unlock(&lock);
    return all;
}

static void free_all(dlb_block *first) {
    while (first != NULL) {
        dlb_block *next = first->next;
        dlb_block_free(first);
        first = next;
    }
}

void dlb_block_free_kept(void) {
    free_all(take_all_kept());
}

void dlb_block_trim(void) {
    dlb_block_free_kept();
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++) {
        dlb_cuda_scope scope;
        if (pools[i].pool == NULL || dlb_cuda_enter(i, &scope) < 0)
            continue;
        int mode = dlb_cuda_relax();
        dlb_cuda_get()->cuMemPoolTrimTo(pools[i].pool, 0);
        dlb_cuda_unrelax(mode);
        dlb_cuda_leave(&scope);
    }
}

void dlb_block_forget_pools(void) {
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++)
        pools[i] = (pool_state){NULL, false};
}

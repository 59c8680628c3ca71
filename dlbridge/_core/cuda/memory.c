/* Memory of CUDA devices. Device memory comes from the driver's pool and goes back to
 * it in the order of a stream. Getting and freeing pinned and managed memory stops the
 * device, so that blocks of these are kept for reuse. */
#include "cuda/cuda.h"
#include "memory/lock.h"

#include <stdlib.h>

enum { DEVICE, PINNED, MANAGED, KINDS };

typedef struct block {
    struct block *next;
    void *address;
    int64_t nbytes; /* as asked for */
    int32_t kind, device, size_class;
    dlb_stream_id stream;
    uint64_t graph; /* the capture that it was allocated in, or 0 */
    bool is_pooled;
} block;

#define SMALLEST 12 /* a kept block has at least 2**12 bytes */

typedef struct {
    CUmemoryPool pool; /* NULL: the device has none */
    bool was_asked;
} pool_state;

DLB_LOCK_RENEWED(block_lock)
static pool_state pools[DLB_MAX_DEVICES];
static block *kept[KINDS][DLB_MAX_DEVICES][64]; /* by size class */

/* ---- the driver's pool ---- */

/* Freed memory stays in the pool, instead of going back to the system at each
 * synchronisation. */
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
    pthread_mutex_lock(&block_lock);
    if (!pools[device].was_asked)
        pools[device] = (pool_state){ask_pool(device), true};
    CUmemoryPool pool = pools[device].pool;
    pthread_mutex_unlock(&block_lock);
    return pool;
}

/* ---- blocks from the driver ---- */

/* Whether the device has less memory than that. While a driver tries (580, CUDA 13.0),
 * a third of a second, it takes all there is, and other processes find none. */
static bool is_beyond_device(int64_t nbytes) {
    size_t unused, total;
    return nbytes > (int64_t)1 << 30 &&
           dlb_cuda_get()->cuMemGetInfo(&unused, &total) == 0 && (size_t)nbytes > total;
}

static int get_device(block *made) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdeviceptr address = 0;
    int status;
    if (is_beyond_device(made->nbytes))
        return dlb_cuda_check(CUDA_ERROR_OUT_OF_MEMORY, "cuMemAllocAsync");
    made->is_pooled = pool_of(made->device) != NULL;
    if (made->is_pooled)
        status = dlb_cuda_check(driver->cuMemAllocAsync(&address, (size_t)made->nbytes,
                                                        (CUstream)made->stream.handle),
                                "cuMemAllocAsync");
    else
        status = dlb_cuda_check(driver->cuMemAlloc(&address, (size_t)made->nbytes),
                                "cuMemAlloc");
    made->address = (void *)(uintptr_t)address;
    return status;
}

static int get_pinned(block *made) {
    return dlb_cuda_check(dlb_cuda_get()->cuMemHostAlloc(&made->address,
                                                         (size_t)1 << made->size_class,
                                                         CU_MEMHOSTALLOC_PORTABLE),
                          "cuMemHostAlloc");
}

static int get_managed(block *made) {
    CUdeviceptr address = 0;
    int status = dlb_cuda_check(
        dlb_cuda_get()->cuMemAllocManaged(&address, (size_t)1 << made->size_class,
                                          CU_MEM_ATTACH_GLOBAL),
        "cuMemAllocManaged");
    made->address = (void *)(uintptr_t)address;
    return status;
}

static int (*const getters[KINDS])(block *) = {get_device, get_pinned, get_managed};

/* In the context of its device. */
static int get_block(block *made) {
    int mode = dlb_cuda_relax(); /* a capture elsewhere is no reason to fail */
    int status = getters[made->kind](made);
    dlb_cuda_unrelax(mode);
    return status;
}

/* At the end of a process the driver may be gone, and the memory with it. */
static void free_block(block *old) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdeviceptr address = (CUdeviceptr)(uintptr_t)old->address;
    dlb_cuda_scope scope;
    if (old->address != NULL && driver != NULL &&
        dlb_cuda_enter(old->device, &scope) == 0) {
        int mode = dlb_cuda_relax(); /* not to end a capture elsewhere */
        if (old->kind == PINNED)
            driver->cuMemFreeHost(old->address);
        else if (old->is_pooled)
            driver->cuMemFreeAsync(address, (CUstream)dlb_stream_handle(old->stream));
        else
            driver->cuMemFree(address);
        dlb_cuda_unrelax(mode);
        dlb_cuda_leave(&scope);
    }
    free(old);
}

/* ---- blocks that are kept ---- */

/* Pinned and managed blocks have a power of two of bytes. */
static int32_t size_class_of(int64_t nbytes) {
    int32_t found = SMALLEST;
    while (found < 62 && (int64_t)1 << found < nbytes)
        found++;
    return found;
}

static bool take_kept(block *wanted) {
    block **first = &kept[wanted->kind][wanted->device][wanted->size_class];
    pthread_mutex_lock(&block_lock);
    block *found = *first;
    if (found != NULL)
        *first = found->next;
    pthread_mutex_unlock(&block_lock);
    if (found != NULL)
        wanted->address = found->address;
    free(found);
    return wanted->address != NULL;
}

static void keep(block *old) {
    block **first = &kept[old->kind][old->device][old->size_class];
    pthread_mutex_lock(&block_lock);
    old->next = *first;
    *first = old;
    pthread_mutex_unlock(&block_lock);
}

static block *take_all_kept(void) {
    block *all = NULL;
    pthread_mutex_lock(&block_lock);
    for (int32_t i = 0; i < KINDS * DLB_MAX_DEVICES * 64; i++) {
        block **first =
            &kept[i / 64 / DLB_MAX_DEVICES][i / 64 % DLB_MAX_DEVICES][i % 64];
        while (*first != NULL) {
            block *moved = *first;
            *first = moved->next;
            moved->next = all;
            all = moved;
        }
    }
    pthread_mutex_unlock(&block_lock);
    return all;
}

static void free_all(block *first) {
    while (first != NULL) {
        block *next = first->next;
        free_block(first);
        first = next;
    }
}

static void free_kept(void) {
    free_all(take_all_kept());
}

static void trim_pools(void) {
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

static void forget_pools(void) {
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++)
        pools[i] = (pool_state){NULL, false};
}

/* ---- buffers of them ---- */

DLB_LOCK_RENEWED(postponed_lock)
static dlb_allocator_statistics statistics[KINDS][DLB_MAX_DEVICES];
static block *postponed;
static _Atomic bool has_postponed;

static int32_t kind_of(DLDeviceType type) {
    switch (type) {
    case kDLCUDA:
        return DEVICE;
    case kDLCUDAHost:
        return PINNED;
    case kDLCUDAManaged:
        return MANAGED;
    default:
        return -1;
    }
}

bool dlb_cuda_has_memory(DLDevice device) {
    return kind_of(device.device_type) >= 0;
}

dlb_allocator_statistics *dlb_cuda_statistics(DLDevice device) {
    int32_t kind = kind_of(device.device_type);
    bool is_known =
        kind >= 0 && device.device_id >= 0 && device.device_id < DLB_MAX_DEVICES;
    return is_known ? &statistics[kind][device.device_id] : NULL;
}

/* ---- the way back ---- */

/* Whether memory can be freed on its stream now. Not while the stream is being captured
 * and the memory is none of that graph's; and not on the legacy default stream while
 * any stream that it waits for is, which would end the capture. */
static bool is_free_to_go(const block *old) {
    uint64_t graph = 0;
    dlb_cuda_scope scope;
    if (dlb_cuda_get() == NULL || dlb_cuda_enter(old->device, &scope) < 0)
        return true;
    dlb_stream stream = dlb_stream_handle(old->stream);
    bool is_fine =
        dlb_cuda_capture(stream, &graph) < 0 || graph == 0 || graph == old->graph;
    is_fine = is_fine && dlb_cuda_check_usable(stream) == 0;
    dlb_cuda_leave(&scope);
    return is_fine;
}

/* One of our streams, which waits for the block's, replaces a stream whose scope may
 * have ended since, and a thread's default stream (see `pick_stream`). */
static void leave_stream(block *old) {
    uint64_t graph = 0;
    bool is_closed = !dlb_stream_scope_is_open(old->stream.scope);
    bool is_threads = old->is_pooled && old->stream.handle == DLB_STREAM_PER_THREAD &&
                      old->graph == 0 &&
                      dlb_cuda_capture(DLB_STREAM_PER_THREAD, &graph) == 0 &&
                      graph == 0;
    if (!is_closed && !is_threads)
        return;
    dlb_stream side = dlb_cuda_side_stream(old->device, DLB_CUDA_FREEING);
    dlb_stream_id id = dlb_stream_identify(side);
    if (side != 0 && dlb_cuda_order(old->device, old->stream, id) == 0)
        old->stream = id;
}

static void give_back(block *old) {
    leave_stream(old);
    if (old->kind != DEVICE) {
        keep(old);
        return;
    }
    if (!old->is_pooled || is_free_to_go(old)) {
        free_block(old);
        return;
    }
    pthread_mutex_lock(&postponed_lock);
    old->next = postponed;
    postponed = old;
    pthread_mutex_unlock(&postponed_lock);
    atomic_store(&has_postponed, true);
}

void dlb_cuda_free_postponed(void) {
    if (!atomic_exchange(&has_postponed, false))
        return;
    pthread_mutex_lock(&postponed_lock);
    block *first = postponed;
    postponed = NULL;
    pthread_mutex_unlock(&postponed_lock);
    while (first != NULL) {
        block *next = first->next;
        give_back(first);
        first = next;
    }
}

void dlb_cuda_trim(void) {
    dlb_cuda_free_postponed();
    free_kept();
    trim_pools();
}

void dlb_cuda_forget_memory(void) {
    dlb_cuda_free_postponed();
    free_kept();
    forget_pools();
}

static void count(const block *of, int64_t nbytes, int64_t blocks) {
    dlb_count_blocks(&statistics[of->kind][of->device], nbytes, blocks);
}

static void release_block(dlb_buffer *buffer) {
    block *old = buffer->owner;
    count(old, -old->nbytes, -1);
    if (old->is_pooled) /* the stream of a block that ended may be gone */
        old->stream = dlb_access_owner(buffer->access);
    dlb_buffer_free(buffer);
    if (old->address == NULL)
        free(old);
    else
        give_back(old);
}

bool dlb_cuda_is_ours(const dlb_buffer *buffer) {
    return buffer->release == release_block;
}

/* ---- new memory ---- */

/* The stream in whose order device memory is allocated: the caller's, or one of ours in
 * the place of a thread's default stream. Once a thread has ended whose default stream
 * still had memory to allocate or to free, drivers (580, CUDA 13.0) never come to the
 * end of a later synchronisation. In a capture nothing is done on the stream itself.
 * For the same reason memory that a thread's default stream has used is freed when an
 * event says that this is over, and not in its order: see `end_on_owner` in access.c.
 */
static dlb_stream pick_stream(int32_t device) {
    uint64_t graph = 0;
    dlb_cuda_scope scope;
    dlb_stream own = dlb_cuda_current_stream(device);
    if (own != DLB_STREAM_PER_THREAD || dlb_cuda_enter(device, &scope) < 0)
        return own;
    bool is_captured = dlb_cuda_capture(own, &graph) < 0 || graph != 0;
    dlb_cuda_leave(&scope);
    dlb_stream side = is_captured ? 0 : dlb_cuda_side_stream(device, DLB_CUDA_FREEING);
    return side != 0 ? side : own;
}

static int get(block *made) {
    dlb_cuda_scope scope;
    if (made->nbytes == 0 || (made->kind != DEVICE && take_kept(made)))
        return 0;
    if (dlb_cuda_enter(made->device, &scope) < 0)
        return -1;
    int status =
        made->kind == DEVICE ? dlb_cuda_capture(made->stream.handle, &made->graph) : 0;
    if (status == 0 && made->kind == DEVICE)
        status = dlb_cuda_check_usable(made->stream.handle);
    if (status == 0)
        status = get_block(made);
    dlb_cuda_leave(&scope);
    return status;
}

static int get_again(block *made) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    if (failure->kind != DLB_CUDA_CALL || failure->code != CUDA_ERROR_OUT_OF_MEMORY)
        return -1;
    dlb_cuda_collect();
    dlb_cuda_trim();
    return get(made);
}

static dlb_buffer *make_buffer(block *made) {
    dlb_buffer *buffer =
        dlb_buffer_new(release_block, made, made->address, made->nbytes);
    if (buffer == NULL)
        return NULL;
    buffer->access = dlb_access_new(made->device);
    if (buffer->access == NULL) {
        dlb_buffer_free(buffer);
        return NULL;
    }
    if (made->kind == DEVICE && made->is_pooled)
        dlb_access_set_stream_ordered(buffer->access, made->stream.handle);
    else if (made->kind == DEVICE)
        dlb_access_set_streams(buffer->access, made->stream.handle, DLB_STREAM_NONE);
    count(made, made->nbytes, 1);
    return buffer;
}

dlb_buffer *dlb_cuda_allocate(DLDevice device, int64_t nbytes) {
    if (device.device_id < 0 || device.device_id >= DLB_MAX_DEVICES) {
        dlb_cuda_check(CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet");
        return NULL;
    }
    dlb_cuda_free_postponed();
    block *made = calloc(1, sizeof *made);
    if (made == NULL) {
        dlb_cuda_fail(DLB_CUDA_MEMORY);
        return NULL;
    }
    made->kind = kind_of(device.device_type);
    made->device = device.device_id;
    made->nbytes = nbytes;
    made->size_class = size_class_of(nbytes);
    made->stream = dlb_stream_identify(made->kind == DEVICE
                                           ? pick_stream(made->device)
                                           : dlb_cuda_current_stream(made->device));
    if (get(made) < 0 && get_again(made) < 0) {
        free(made);
        return NULL;
    }
    dlb_buffer *buffer = make_buffer(made);
    if (buffer == NULL) {
        dlb_cuda_fail(DLB_CUDA_MEMORY);
        free_block(made);
    }
    return buffer;
}

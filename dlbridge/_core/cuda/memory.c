/* Memory of CUDA devices. Device memory comes from the driver's pool and goes back to
 * it in the order of a stream. Getting and freeing pinned and managed memory stops the
 * device, so that blocks of these are kept for reuse. */
#include "cuda/blocks.h"

#include <pthread.h>
#include <stdlib.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static dlb_allocator_statistics statistics[DLB_BLOCK_KINDS][DLB_MAX_DEVICES];
static dlb_block *postponed;
static _Atomic bool has_postponed;

static int32_t kind_of(DLDeviceType type) {
    switch (type) {
    case kDLCUDA:
        return DLB_BLOCK_DEVICE;
    case kDLCUDAHost:
        return DLB_BLOCK_PINNED;
    case kDLCUDAManaged:
        return DLB_BLOCK_MANAGED;
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
static bool is_free_to_go(const dlb_block *old) {
    uint64_t graph = 0;
    dlb_cuda_scope scope;
    if (dlb_cuda_get() == NULL || dlb_cuda_enter(old->device, &scope) < 0)
        return true;
    dlb_stream stream = dlb_cuda_handle(old->home);
    bool is_fine =
        dlb_cuda_capture(stream, &graph) < 0 || graph == 0 || graph == old->graph;
    is_fine = is_fine && dlb_cuda_check_usable(stream) == 0;
    dlb_cuda_leave(&scope);
    return is_fine;
}

/* The block of Python that had the stream may have ended since: one of ours that waits
 * for its end takes its place. */
static void leave_closed_span(dlb_block *old) {
    if (dlb_span_is_open(old->home.span))
        return;
    dlb_stream side = dlb_cuda_side_stream(old->device, DLB_CUDA_FREEING);
    dlb_place place = dlb_cuda_place(side);
    if (side != 0 && dlb_cuda_order(old->device, old->home, place) == 0)
        old->home = place;
}

static void give_back(dlb_block *old) {
    leave_closed_span(old);
    if (old->kind != DLB_BLOCK_DEVICE) {
        dlb_block_keep(old);
        return;
    }
    if (!old->is_pooled || is_free_to_go(old)) {
        dlb_block_free(old);
        return;
    }
    pthread_mutex_lock(&lock);
    old->next = postponed;
    postponed = old;
    pthread_mutex_unlock(&lock);
    atomic_store(&has_postponed, true);
}

void dlb_cuda_free_postponed(void) {
    if (!atomic_exchange(&has_postponed, false))
        return;
    pthread_mutex_lock(&lock);
    dlb_block *first = postponed;
    postponed = NULL;
    pthread_mutex_unlock(&lock);
    while (first != NULL) {
        dlb_block *next = first->next;
        give_back(first);
        first = next;
    }
}

void dlb_cuda_trim(void) {
    dlb_cuda_free_postponed();
    dlb_block_trim();
}

void dlb_cuda_forget_memory(void) {
    dlb_cuda_free_postponed();
    dlb_block_free_kept();
    dlb_block_forget_pools();
    dlb_cuda_forget_peers();
}

static void count(const dlb_block *of, int64_t nbytes, int64_t blocks) {
    dlb_allocator_statistics *s = &statistics[of->kind][of->device];
    int64_t now = atomic_fetch_add(&s->bytes_in_use, nbytes) + nbytes;
    int64_t peak = atomic_load(&s->peak_bytes_in_use);
    while (peak < now &&
           !atomic_compare_exchange_weak(&s->peak_bytes_in_use, &peak, now))
        ;
    atomic_fetch_add(&s->count, blocks);
    atomic_fetch_add(&s->total, blocks > 0 ? blocks : 0);
}

static void release_block(dlb_buffer *buffer) {
    dlb_block *old = buffer->owner;
    count(old, -old->nbytes, -1);
    if (old->is_pooled) /* the stream of a block that ended may be gone */
        old->home = dlb_work_home(buffer->work);
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

static int get(dlb_block *made) {
    dlb_cuda_scope scope;
    if (made->nbytes == 0 ||
        (made->kind != DLB_BLOCK_DEVICE && dlb_block_take_kept(made)))
        return 0;
    if (dlb_cuda_enter(made->device, &scope) < 0)
        return -1;
    int status = made->kind == DLB_BLOCK_DEVICE
                     ? dlb_cuda_capture(made->home.stream, &made->graph)
                     : 0;
    if (status == 0 && made->kind == DLB_BLOCK_DEVICE)
        status = dlb_cuda_check_usable(made->home.stream);
    if (status == 0)
        status = dlb_block_get(made);
    dlb_cuda_leave(&scope);
    return status;
}

static int get_again(dlb_block *made) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    if (failure->kind != DLB_CUDA_CALL || failure->code != CUDA_ERROR_OUT_OF_MEMORY)
        return -1;
    dlb_cuda_collect();
    dlb_cuda_trim();
    return get(made);
}

static dlb_buffer *make_buffer(dlb_block *made) {
    dlb_buffer *buffer =
        dlb_buffer_new(release_block, made, made->address, made->nbytes);
    if (buffer == NULL)
        return NULL;
    buffer->work = dlb_work_new(made->device);
    if (buffer->work == NULL) {
        dlb_buffer_free(buffer);
        return NULL;
    }
    if (made->kind == DLB_BLOCK_DEVICE && made->is_pooled)
        dlb_work_own(buffer->work, made->home.stream);
    else if (made->kind == DLB_BLOCK_DEVICE)
        dlb_work_set(buffer->work, made->home.stream, DLB_STREAM_NONE);
    count(made, made->nbytes, 1);
    return buffer;
}

dlb_buffer *dlb_cuda_allocate(DLDevice device, int64_t nbytes) {
    if (device.device_id < 0 || device.device_id >= DLB_MAX_DEVICES) {
        dlb_cuda_check(CUDA_ERROR_INVALID_DEVICE, "cuDeviceGet");
        return NULL;
    }
    dlb_cuda_free_postponed();
    dlb_block *made = calloc(1, sizeof *made);
    if (made == NULL) {
        dlb_cuda_fail(DLB_CUDA_MEMORY);
        return NULL;
    }
    made->kind = kind_of(device.device_type);
    made->device = device.device_id;
    made->nbytes = nbytes;
    made->size_class = dlb_block_size_class(nbytes);
    made->home = dlb_cuda_place(dlb_cuda_current_stream(device.device_id));
    if (get(made) < 0 && get_again(made) < 0) {
        free(made);
        return NULL;
    }
    dlb_buffer *buffer = make_buffer(made);
    if (buffer == NULL) {
        dlb_cuda_fail(DLB_CUDA_MEMORY);
        dlb_block_free(made);
    }
    return buffer;
}

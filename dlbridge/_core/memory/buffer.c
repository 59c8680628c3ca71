/* Counted memory and the default CPU allocator. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include "memory/buffer.h"
#include "memory/block.h"

#include <string.h>

#ifdef DLB_FREE_THREADED
dlb_live_part dlb_live[DLB_LIVE_PARTS];
_Thread_local dlb_live_counts *dlb_live_own;

dlb_live_counts *dlb_live_choose(void) {
    static _Atomic unsigned threads;
    unsigned number = atomic_fetch_add_explicit(&threads, 1, memory_order_relaxed);
    return dlb_live_own = &dlb_live[number % DLB_LIVE_PARTS].counts;
}

dlb_live_counts dlb_live_sum(void) {
    dlb_live_counts sum = {0};
    for (int i = 0; i < DLB_LIVE_PARTS; i++) {
        dlb_live_counts *part = &dlb_live[i].counts;
#define ADD(kind) sum.kind += atomic_load_explicit(&part->kind, memory_order_relaxed);
        DLB_LIVE_ANYWHERE(ADD)
        DLB_LIVE_OBJECTS(ADD)
#undef ADD
    }
    return sum;
}
#else
dlb_live_counts dlb_live;

dlb_live_counts dlb_live_sum(void) {
    return dlb_live;
}
#endif

dlb_allocator_statistics dlb_cpu_statistics;

void (*dlb_buffer_release_tracked)(dlb_buffer *buffer);

/* ---- memory on loan ---- */

static void release_loan(dlb_buffer *buffer) {
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_loan(void) {
    return dlb_buffer_new(release_loan, NULL, NULL, 0);
}

/* ---- memory of the default allocator ---- */

void dlb_count_blocks(dlb_allocator_statistics *s, int64_t nbytes, int64_t blocks) {
    int64_t now =
        atomic_fetch_add_explicit(&s->bytes_in_use, nbytes, memory_order_relaxed) +
        nbytes;
    int64_t peak = atomic_load_explicit(&s->peak_bytes_in_use, memory_order_relaxed);
    while (peak < now &&
           !atomic_compare_exchange_weak(&s->peak_bytes_in_use, &peak, now))
        ;
    atomic_fetch_add_explicit(&s->count, blocks, memory_order_relaxed);
    if (blocks > 0)
        atomic_fetch_add_explicit(&s->total, blocks, memory_order_relaxed);
}

static void release_block(dlb_buffer *buffer) {
    dlb_count_blocks(&dlb_cpu_statistics, -buffer->nbytes, -1);
    dlb_block_put(buffer->owner, (size_t)buffer->nbytes);
    dlb_buffer_free(buffer);
}

/* With an alignment that blocks do not have. */
static void release_aligned(dlb_buffer *buffer) {
    dlb_count_blocks(&dlb_cpu_statistics, -buffer->nbytes, -1);
    free(buffer->owner);
    dlb_buffer_free(buffer);
}

static void *allocate_aligned(size_t nbytes, size_t alignment, bool zero) {
    void *memory = NULL;
    if (nbytes > SIZE_MAX / 2 ||
        posix_memalign(&memory, alignment, nbytes ? nbytes : 1) != 0)
        return NULL;
    return zero ? memset(memory, 0, nbytes) : memory;
}

dlb_buffer *dlb_buffer_allocate(int64_t nbytes, size_t alignment, bool zero) {
    bool is_block = alignment <= DLB_BLOCK_ALIGNMENT;
    void *memory = is_block ? dlb_block_get((size_t)nbytes, zero)
                            : allocate_aligned((size_t)nbytes, alignment, zero);
    if (memory == NULL)
        return NULL;
    dlb_buffer *buffer = dlb_buffer_new(is_block ? release_block : release_aligned,
                                        memory, memory, nbytes);
    if (buffer == NULL) {
        if (is_block)
            dlb_block_put(memory, (size_t)nbytes);
        else
            free(memory);
        return NULL;
    }
    dlb_count_blocks(&dlb_cpu_statistics, nbytes, 1);
    return buffer;
}

const char *dlb_buffer_kind(const dlb_buffer *buffer) {
    if (buffer->release == release_loan)
        return "loan";
    bool is_ours =
        buffer->release == release_block || buffer->release == release_aligned;
    return is_ours ? "allocator" : "managed";
}

/* Counted memory and the default CPU allocator. */
#define _POSIX_C_SOURCE 200809L /* posix_memalign */
#include "memory/buffer.h"

dlb_live_counts dlb_live;
dlb_allocator_statistics dlb_cpu_statistics;

void (*dlb_buffer_release_tracked)(dlb_buffer *buffer);

/* ---- managed tensors ---- */

static void release_managed(dlb_buffer *buffer) {
    DLManagedTensorVersioned *managed = buffer->owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
    dlb_buffer_free(buffer);
}

static void release_legacy(dlb_buffer *buffer) {
    DLManagedTensor *managed = buffer->owner;
    if (managed->deleter != NULL)
        managed->deleter(managed);
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_managed(DLManagedTensorVersioned *managed) {
    return dlb_buffer_new(release_managed, managed, NULL, 0);
}

dlb_buffer *dlb_buffer_of_legacy(DLManagedTensor *managed) {
    return dlb_buffer_new(release_legacy, managed, NULL, 0);
}

/* ---- memory on loan ---- */

static void release_loan(dlb_buffer *buffer) {
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_loan(void) {
    return dlb_buffer_new(release_loan, NULL, NULL, 0);
}

/* ---- memory of the default allocator ---- */

static void release_allocation(dlb_buffer *buffer) {
    atomic_fetch_sub_explicit(&dlb_cpu_statistics.bytes_in_use, buffer->nbytes,
                              memory_order_relaxed);
    atomic_fetch_sub_explicit(&dlb_cpu_statistics.count, 1, memory_order_relaxed);
    free(buffer->owner);
    dlb_buffer_free(buffer);
}

static void count_allocation(int64_t nbytes) {
    dlb_allocator_statistics *s = &dlb_cpu_statistics;
    int64_t now = atomic_fetch_add(&s->bytes_in_use, nbytes) + nbytes;
    int64_t peak = atomic_load(&s->peak_bytes_in_use);
    while (peak < now &&
           !atomic_compare_exchange_weak(&s->peak_bytes_in_use, &peak, now))
        ;
    atomic_fetch_add(&s->count, 1);
    atomic_fetch_add(&s->total, 1);
}

/* Zeroed memory comes from calloc, whose pages cost nothing until touched; the
 * alignment is made by hand there, since no aligned calloc exists. */
dlb_buffer *dlb_buffer_allocate(int64_t nbytes, size_t alignment, bool zero) {
    size_t wanted = nbytes ? (size_t)nbytes : 1;
    void *memory = NULL, *data;
    if (wanted > SIZE_MAX / 2)
        return NULL;
    if (zero) {
        memory = calloc(1, wanted + alignment - 1);
        data =
            (void *)(((uintptr_t)memory + alignment - 1) & ~(uintptr_t)(alignment - 1));
    } else if (posix_memalign(&memory, alignment, wanted) != 0) {
        memory = NULL;
    } else {
        data = memory;
    }
    if (memory == NULL)
        return NULL;
    dlb_buffer *buffer = dlb_buffer_new(release_allocation, memory, data, nbytes);
    if (buffer == NULL) {
        free(memory);
        return NULL;
    }
    count_allocation(nbytes);
    return buffer;
}

const char *dlb_buffer_kind(const dlb_buffer *buffer) {
    if (buffer->release == release_loan)
        return "loan";
    return buffer->release == release_allocation ? "allocator" : "managed";
}

/* Counted memory, and the default allocator of the CPU. No Python here. */
#ifndef DLBRIDGE_CORE_MEMORY_BUFFER_H_
#define DLBRIDGE_CORE_MEMORY_BUFFER_H_

#include <stdlib.h>

#include "core.h"
#include "memory/ledger.h"

typedef struct dlb_buffer {
    _Atomic int64_t references;
    void (*release)(struct dlb_buffer *self); /* frees `owner`, then self */
    void *owner;
    void *data;
    int64_t nbytes;
    struct dlb_access *access; /* the access tracker of CUDA memory, else NULL */
} dlb_buffer;

typedef struct {
    _Atomic int64_t bytes_in_use, peak_bytes_in_use, count, total;
} dlb_allocator_statistics;
extern dlb_allocator_statistics dlb_cpu_statistics;
/* Both numbers are negative when memory comes back. */
void dlb_count_blocks(dlb_allocator_statistics *statistics, int64_t nbytes,
                      int64_t blocks);

/* How many there are of each kind of allocation that the core makes: counted on any
 * thread, or, as objects of Python, under the GIL, where counting costs next to
 * nothing. Without a GIL each thread counts in one of several parts, as a line of
 * memory that all write would take them as long as the rest of an exchange. */
#define DLB_LIVE_ANYWHERE(kind)                                                        \
    kind(buffers)                    /* but those that keep Python objects */          \
        kind(exports) kind(accesses) /* trackers of CUDA memory */                     \
        kind(loans)                  /* tensors lent to tvm-ffi */                     \
        kind(scratch)                /* memory for the time of a call */               \
        kind(kernels) kind(nodes)    /* of TensorFlow's graphs */
#define DLB_LIVE_OBJECTS(kind)                                                         \
    kind(tensors) kind(references) /* Python objects that buffers keep */              \
        kind(views)                /* Py_buffers of Tensors */                         \
        kind(plans)                /* how kernels take their arguments */              \
        kind(programs)             /* of graphs, and their loops */

typedef struct {
#define DLB_LIVE_FIELD(kind) _Atomic int64_t kind;
    DLB_LIVE_ANYWHERE(DLB_LIVE_FIELD)
#undef DLB_LIVE_FIELD
#ifdef DLB_FREE_THREADED
#define DLB_LIVE_FIELD(kind) _Atomic int64_t kind;
#else
#define DLB_LIVE_FIELD(kind) int64_t kind;
#endif
    DLB_LIVE_OBJECTS(DLB_LIVE_FIELD)
#undef DLB_LIVE_FIELD
} dlb_live_counts;

#ifdef DLB_FREE_THREADED
enum { DLB_LIVE_PARTS = 64 };
typedef struct {
    _Alignas(128) dlb_live_counts counts;
} dlb_live_part;
extern dlb_live_part dlb_live[DLB_LIVE_PARTS];
extern _Thread_local dlb_live_counts *dlb_live_own;
dlb_live_counts *dlb_live_choose(void); /* the part of this thread, from now on */
static inline int dlb_live_part_number(void) {
    dlb_live_counts *own = dlb_live_own != NULL ? dlb_live_own : dlb_live_choose();
    return (int)((dlb_live_part *)own - dlb_live);
}

#define dlb_count_live(kind, change)                                                   \
    atomic_fetch_add_explicit(                                                         \
        &(dlb_live_own != NULL ? dlb_live_own : dlb_live_choose())->kind, (change),    \
        memory_order_relaxed)
#define dlb_count_object(kind, change) dlb_count_live(kind, change)
#else
extern dlb_live_counts dlb_live;

#define dlb_count_live(kind, change)                                                   \
    atomic_fetch_add_explicit(&dlb_live.kind, (change), memory_order_relaxed)
#define dlb_count_object(kind, change) (dlb_live.kind += (change))
#endif

dlb_live_counts dlb_live_sum(void);

/* In the header, since every exchange makes one and frees one. NULL: no memory. Who
 * makes one that is not counted here, or is of another size, counts it by itself, and
 * discards it. */
static inline dlb_buffer *dlb_buffer_make(size_t size, void (*release)(dlb_buffer *),
                                          void *owner, void *data, int64_t nbytes) {
    dlb_buffer *buffer = malloc(size);
    if (buffer == NULL)
        return NULL;
    atomic_init(&buffer->references, 1);
    buffer->release = release;
    buffer->owner = owner;
    buffer->data = data;
    buffer->nbytes = nbytes;
    buffer->access = NULL;
    dlb_ledger_born(buffer, NULL);
    return buffer;
}

static inline void dlb_buffer_discard(dlb_buffer *buffer) {
    dlb_ledger_died(buffer, true);
    free(buffer);
}

static inline dlb_buffer *dlb_buffer_new(void (*release)(dlb_buffer *), void *owner,
                                         void *data, int64_t nbytes) {
    dlb_buffer *buffer = dlb_buffer_make(sizeof *buffer, release, owner, data, nbytes);
    if (buffer != NULL)
        dlb_count_live(buffers, 1);
    return buffer;
}

/* The struct alone, for `release`. */
static inline void dlb_buffer_free(dlb_buffer *buffer) {
    dlb_buffer_discard(buffer);
    dlb_count_live(buffers, -1);
}

dlb_buffer *dlb_buffer_allocate(int64_t nbytes, size_t alignment, bool zero);
/* Memory on loan: nobody frees it, only who holds it is counted. */
dlb_buffer *dlb_buffer_of_loan(void);
/* "allocator", "loan", or "managed" for memory of any other origin. */
const char *dlb_buffer_kind(const dlb_buffer *buffer);
/* Gets CUDA memory whose last reference was dropped: kernels may still use it. Set
 * once, by module.c, to the function of cuda/access.c. */
extern void (*dlb_buffer_release_tracked)(dlb_buffer *buffer);

static inline dlb_buffer *dlb_buffer_retain(dlb_buffer *buffer) {
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
    return buffer;
}

/* Who holds the only reference needs no atomic write: nobody else can add one
 * meanwhile. */
static inline void dlb_buffer_drop(dlb_buffer *buffer) {
    if (atomic_load_explicit(&buffer->references, memory_order_acquire) == 1 ||
        atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) == 1) {
        if (buffer->access != NULL)
            dlb_buffer_release_tracked(buffer);
        else
            buffer->release(buffer);
    }
}

#endif /* DLBRIDGE_CORE_MEMORY_BUFFER_H_ */

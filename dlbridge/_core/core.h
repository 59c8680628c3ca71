/* The contract of the core.
 *
 * Ownership. Memory belongs to a `dlb_buffer`, counted by reference with atomics. A
 * Tensor, an exported managed tensor and a view each hold one reference. Whoever drops
 * the last one releases the memory, on any thread, with or without the GIL. `dlb_view`
 * is the currency between the ways in (take_*) and the ways out (give_*): a described
 * tensor plus one reference to its buffer.
 *
 * GIL. Functions that take or return a PyObject need it; all others neither need nor
 * take it. Releasing a buffer that keeps a Python object takes the GIL itself, and
 * leaks the object when the interpreter is gone.
 *
 * Failure. A function that returns a pointer returns NULL, one that returns int returns
 * -1, with a Python exception set. `take_*` functions may also return DLB_DECLINED:
 * nothing was consumed, no exception is set, and the caller asks the Python path, which
 * either succeeds or says why not. Layout functions need no Python: they return NULL or
 * a reason code, a static string that is a key of `dlbridge.errors.REASONS`.
 */
#ifndef DLBRIDGE_CORE_H_
#define DLBRIDGE_CORE_H_

#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "dlpack.h"

#define DLB_MAX_NDIM 254 /* the rank limit of the shape record, too */
#define DLB_KNOWN_FLAGS 7
#define DLB_DECLINED 1

static inline uint32_t dlb_dtype_key(DLDataType dtype) {
    return dtype.code | (uint32_t)dtype.bits << 8 | (uint32_t)dtype.lanes << 16;
}

/* ---- layout.c: arithmetic and checks on a DLTensor
 * ------------------------------------------ */

/* Refuse what no consumer may touch: NULL shape, negative or overflowing dims, unknown
 * dtype, device or flag. Strides may be NULL. */
const char *dlb_layout_check(const DLTensor *tensor, uint64_t flags);
/* Memory that is the CPU's own or pinned for a device. */
bool dlb_is_host(DLDevice device);
/* Move the start by so many bytes: the pointer where `data` is one, else (OpenCL,
 * Vulkan, Metal, WebGPU: a handle) the byte_offset. */
void dlb_advance(DLTensor *tensor, int64_t bytes);
/* Elements; only valid after dlb_layout_check. */
int64_t dlb_element_count(const DLTensor *tensor);
/* Bits that one element takes in memory: lanes included, padded sub-byte types rounded
 * up. */
int64_t dlb_element_bits(DLDataType dtype, uint64_t flags);
/* Bytes of `count` packed elements, rounded up to whole bytes. */
int64_t dlb_packed_bytes(DLDataType dtype, uint64_t flags, int64_t count);
/* Compact row-major strides, in elements. */
void dlb_row_major_strides(int32_t ndim, const int64_t *shape, int64_t *strides);
/* Dimensions of one element and tensors without elements fit any stride. */
bool dlb_is_row_major(const DLTensor *tensor);
/* Some permutation of the dimensions is compact. */
bool dlb_is_permutation(const DLTensor *tensor);
bool dlb_is_column_major(const DLTensor *tensor);
bool dlb_has_negative_stride(const DLTensor *tensor);

/* The CRC-32C that follows `crc` (0 at first) after more bytes. */
uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size);

enum dlb_special { DLB_SPECIAL_ERF, DLB_SPECIAL_ERFC, DLB_SPECIAL_LOG_GAMMA };

/* Apply one of them to `count` numbers, double or float, in compact memory. */
void dlb_special(int function, bool is_float, const void *in, void *out, size_t count);

enum dlb_layout {
    DLB_LAYOUT_ANY,
    DLB_LAYOUT_NON_NEGATIVE, /* no negative stride on a dimension of more than one
                                element */
    DLB_LAYOUT_PERMUTATION,  /* compact in some order of dimensions */
    DLB_LAYOUT_COMPACT,      /* row-major or column-major */
    DLB_LAYOUT_ROW_MAJOR
};

/* What a consumer can represent; one row per framework, filled by its adapter. */
typedef struct {
    uint16_t widths[18]; /* by type code: bit k set when 2**k bits wide is fine; bit 15:
                            6 bits */
    uint32_t
        packed_key; /* one further dtype key with lanes (torch's float4 pairs), or 0 */
    bool any_dtype;
    uint64_t devices; /* bit t set when device type t is fine */
    int32_t max_ndim;
    uint32_t alignment; /* bytes */
    enum dlb_layout layout;
    bool protects_readonly; /* memory marked read-only is not written through it */
    bool padded; /* takes sub-byte elements padded to bytes, instead of packed */
} dlb_limits;

const char *dlb_limits_refusal(const dlb_limits *limits, const DLTensor *tensor,
                               uint64_t flags);

/* ---- copy.c
 * ---------------------------------------------------------------------------------- */

/* Copy element by element on the CPU; shapes and dtypes are equal, both layouts were
 * checked, both data pointers include their byte_offset. Packed sub-byte elements are
 * copied bit by bit where the layout demands it; one side may be padded and the other
 * packed (flags). */
void dlb_copy(const DLTensor *destination, uint64_t destination_flags,
              const DLTensor *source, uint64_t source_flags);

/* ---- buffer.c: counted memory, and the default allocator
 * -------------------------------------- */

typedef struct dlb_buffer {
    _Atomic int64_t references;
    void (*release)(
        struct dlb_buffer *self); /* frees what `owner` stands for, then self */
    void *owner;
    void *data;
    int64_t nbytes;
    struct dlb_work *work; /* of CUDA memory: see cuda.h; else NULL */
} dlb_buffer;

dlb_buffer *dlb_buffer_new(void (*release)(dlb_buffer *), void *owner, void *data,
                           int64_t nbytes);
void dlb_buffer_free(dlb_buffer *buffer); /* the struct alone, for `release` */
dlb_buffer *dlb_buffer_allocate(int64_t nbytes, size_t alignment, bool zero);
dlb_buffer *dlb_buffer_of_managed(DLManagedTensorVersioned *managed);
dlb_buffer *dlb_buffer_of_legacy(DLManagedTensor *managed);
/* Memory on loan: nobody frees it, only who holds it is counted. */
dlb_buffer *dlb_buffer_of_loan(void);
const char *dlb_buffer_kind(const dlb_buffer *buffer);
/* Keep account of the streams that use memory of a CUDA device; of other devices
 * nothing is kept. The contents are taken to be there for the legacy default stream.
 * False: no memory. */
bool dlb_buffer_watch(dlb_buffer *buffer, DLDevice device);
void dlb_buffer_release_later(dlb_buffer *buffer); /* cuda_release.c */

static inline dlb_buffer *dlb_buffer_retain(dlb_buffer *buffer) {
    atomic_fetch_add_explicit(&buffer->references, 1, memory_order_relaxed);
    return buffer;
}

/* Who holds the only reference needs no atomic write: nobody else can add one
 * meanwhile. */
static inline void dlb_buffer_drop(dlb_buffer *buffer) {
    if (atomic_load_explicit(&buffer->references, memory_order_acquire) == 1 ||
        atomic_fetch_sub_explicit(&buffer->references, 1, memory_order_acq_rel) == 1) {
        if (buffer->work != NULL)
            dlb_buffer_release_later(buffer);
        else
            buffer->release(buffer);
    }
}

typedef struct {
    _Atomic int64_t bytes_in_use, peak_bytes_in_use, count, total;
} dlb_allocator_statistics;
extern dlb_allocator_statistics dlb_cpu_statistics;

typedef struct {
    _Atomic int64_t buffers, exports;
    int64_t tensors; /* Python objects: under the GIL */
} dlb_live_counts;
extern dlb_live_counts dlb_live;

/* ---- the view
 * -------------------------------------------------------------------------------- */

/* A stream of a device as a number; see cuda.h. `thread` says whose default stream it
 * is, where each thread has one; else it is 0. `span` is the block of Python that
 * promises that the stream lives (cuda_span.c), or 0. */
typedef uintptr_t dlb_stream;
typedef struct {
    dlb_stream stream;
    uintptr_t thread;
    uint64_t span;
} dlb_place;

typedef struct {
    DLTensor dl; /* byte_offset 0, strides set; shape and strides live in `scratch` or
                    the buffer */
    uint64_t flags;
    DLPackVersion version;
    dlb_buffer
        *buffer;    /* one reference, passed on or dropped by whoever holds the view */
    dlb_place lent; /* to a consumer's stream, by dlb_view_lend; stream 0: to none */
    int64_t scratch[DLB_MAX_NDIM];
} dlb_view;

/* ---- managed.c: managed tensors in and out
 * ----------------------------------------------------- */

/* Take ownership of a managed tensor: whatever happens, its deleter is called exactly
 * once. On success the view owns it. On failure it was released; the reason is
 * returned. */
const char *dlb_take_managed(DLManagedTensorVersioned *managed, dlb_view *view);
const char *dlb_take_legacy(DLManagedTensor *managed, dlb_view *view);
/* A managed tensor of ours over the view's tensor; steals the view's buffer reference
 * even on failure (NULL, no Python error set: out of memory). */
DLManagedTensorVersioned *dlb_export_managed(dlb_view *view, uint64_t flags);
DLManagedTensor *dlb_export_legacy(dlb_view *view);
/* Keep something else until the deleter has run; `context` is the manager_ctx of an
 * export of ours. Steals the reference. */
void dlb_export_keep(void *context, dlb_buffer *kept);

#endif /* DLBRIDGE_CORE_H_ */

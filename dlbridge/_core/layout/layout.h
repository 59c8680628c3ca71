/* Arithmetic and checks on a DLTensor. No Python here. */
#ifndef DLBRIDGE_CORE_LAYOUT_LAYOUT_H_
#define DLBRIDGE_CORE_LAYOUT_LAYOUT_H_

#include "core.h"

/* Refuse tensors that no consumer may use: NULL shape, negative or overflowing dims,
 * impossible dtype, device or flag. Codes of dtypes and devices that are newer than
 * DLPack 1.3 pass. Strides may be NULL. */
const char *dlb_layout_check(const DLTensor *tensor, uint64_t flags);
/* The part of it about sizes: "shape", "overflow" or "null_data". Tensors that are
 * borrowed for a call, without any check, may be views of more elements than there is
 * memory in the world: torch's expand() makes them. */
const char *dlb_extent_check(const DLTensor *tensor, uint64_t flags);
/* Memory that is the CPU's own or pinned for a device. */
bool dlb_is_host(DLDevice device);
/* Move the start by so many bytes: the pointer where `data` is one, else (OpenCL,
 * Vulkan, Metal, WebGPU: a handle; what is not known may be one) the byte_offset. */
void dlb_advance(DLTensor *tensor, int64_t bytes);
/* Elements; only valid after dlb_layout_check. */
int64_t dlb_element_count(const DLTensor *tensor);
/* Bits that one element takes in memory: lanes included, padded sub-byte types rounded
 * up. */
int64_t dlb_element_bits(DLDataType dtype, uint64_t flags);
/* Bytes of `count` packed elements, rounded up to whole bytes. */
int64_t dlb_packed_bytes(DLDataType dtype, uint64_t flags, int64_t count);
/* Compact row-major strides, in elements; an extent of 0 counts as 1, as in PyTorch. */
void dlb_row_major_strides(int32_t ndim, const int64_t *shape, int64_t *strides);
/* Dimensions of one element and tensors without elements fit any stride. */
bool dlb_is_row_major(const DLTensor *tensor);
/* Some permutation of the dimensions is compact. */
bool dlb_is_permutation(const DLTensor *tensor);
bool dlb_is_column_major(const DLTensor *tensor);
/* Begin at the lowest address, the first element being byte_offset behind it. */
void dlb_from_lowest(DLTensor *tensor);
bool dlb_has_negative_stride(const DLTensor *tensor);

/* Memory of a CUDA device; pinned memory is the host's. */
static inline bool dlb_is_cuda(DLDevice device) {
    return device.device_type == kDLCUDA || device.device_type == kDLCUDAManaged;
}
/* Memory that streams of CUDA read and write. */
static inline bool dlb_has_streams(DLDevice device) {
    return dlb_is_cuda(device) || device.device_type == kDLCUDAHost;
}

/* ---- limits of a consumer ---- */

enum dlb_layout {
    DLB_LAYOUT_ANY,
    DLB_LAYOUT_NON_NEGATIVE, /* no negative stride on a dimension of more than one
                                element */
    DLB_LAYOUT_PERMUTATION,  /* compact in some order of dimensions */
    DLB_LAYOUT_COMPACT,      /* row-major or column-major */
    DLB_LAYOUT_ROW_MAJOR
};

/* The layouts that a consumer can represent; one row per framework, filled by its
 * adapter. */
typedef struct {
    uint16_t widths[DLB_DTYPE_CODES]; /* by type code: bit k set when 2**k bits wide is
                            fine; bit 15: 6 bits */
    uint32_t
        packed_key; /* one further dtype key with lanes (torch's float4 pairs), or 0 */
    bool any_dtype;
    uint64_t devices; /* bit t set when device type t is fine */
    int32_t max_ndim;
    uint32_t alignment;      /* bytes */
    uint32_t wide_alignment; /* bytes, where elements have 128 bits */
    enum dlb_layout layout;
    bool protects_readonly; /* memory marked read-only is not written through it */
    bool padded; /* takes sub-byte elements padded to bytes, instead of packed */
} dlb_limits;

const char *dlb_limits_refusal(const dlb_limits *limits, const DLTensor *tensor,
                               uint64_t flags);

/* ---- whether tensors share memory ---- */

/* Whether two elements may share a bit. Exact for the usual views, else on the safe
 * side: true. */
bool dlb_share_memory(const DLTensor *a, uint64_t a_flags, const DLTensor *b,
                      uint64_t b_flags);
bool dlb_overlaps_itself(const DLTensor *tensor);

#endif /* DLBRIDGE_CORE_LAYOUT_LAYOUT_H_ */

/* Arithmetic and checks on a DLTensor; no Python. */
#include "layout/layout.h"

/* Widths each type code may have: bit k stands for 2**k bits, bit 15 for 6 bits. */
#define SIX_BITS (1 << 15)
static const uint16_t standard_widths[DLB_DTYPE_CODES] = {
    [kDLInt] = 0x7f, /* 1, 2, 4, 8, 16, 32, 64 */
    [kDLUInt] = 0x7f,
    [kDLFloat] = 1 << 4 | 1 << 5 | 1 << 6,
    [kDLOpaqueHandle] = 1 << 5 | 1 << 6,
    [kDLBfloat] = 1 << 4,
    [kDLComplex] = 1 << 5 | 1 << 6 | 1 << 7,
    [kDLBool] = 1 << 0 | 1 << 3,
    [kDLFloat8_e3m4] = 1 << 3,
    [kDLFloat8_e4m3] = 1 << 3,
    [kDLFloat8_e4m3b11fnuz] = 1 << 3,
    [kDLFloat8_e4m3fn] = 1 << 3,
    [kDLFloat8_e4m3fnuz] = 1 << 3,
    [kDLFloat8_e5m2] = 1 << 3,
    [kDLFloat8_e5m2fnuz] = 1 << 3,
    [kDLFloat8_e8m0fnu] = 1 << 3,
    [kDLFloat6_e2m3fn] = SIX_BITS,
    [kDLFloat6_e3m2fn] = SIX_BITS,
    [kDLFloat4_e2m1fn] = 1 << 2,
    [kDLBcomplex] = 1 << 5,
};

#define DEVICE_BIT(type) (UINT64_C(1) << (type))
static const uint64_t standard_devices =
    DEVICE_BIT(kDLCPU) | DEVICE_BIT(kDLCUDA) | DEVICE_BIT(kDLCUDAHost) |
    DEVICE_BIT(kDLOpenCL) | DEVICE_BIT(kDLVulkan) | DEVICE_BIT(kDLMetal) |
    DEVICE_BIT(kDLVPI) | DEVICE_BIT(kDLROCM) | DEVICE_BIT(kDLROCMHost) |
    DEVICE_BIT(kDLExtDev) | DEVICE_BIT(kDLCUDAManaged) | DEVICE_BIT(kDLOneAPI) |
    DEVICE_BIT(kDLWebGPU) | DEVICE_BIT(kDLHexagon) | DEVICE_BIT(kDLMAIA) |
    DEVICE_BIT(kDLTrn) | DEVICE_BIT(kDLTPU) | DEVICE_BIT(kDLTPUHost) |
    DEVICE_BIT(kDLAscend);
#define LAST_DEVICE kDLAscend

/* Codes that a later version of the standard may define: carried, and shown by their
 * numbers. */
static bool is_later_dtype(DLDataType dtype) {
    return dtype.code >= DLB_DTYPE_CODES;
}

static bool is_later_device(DLDevice device) {
    return (int32_t)device.device_type > (int32_t)LAST_DEVICE;
}

static bool has_device(uint64_t set, DLDevice device) {
    unsigned type = (unsigned)device.device_type;
    return type < 64 && (set & DEVICE_BIT(type));
}

static uint16_t width_bit(uint8_t bits) {
    if (bits == 6)
        return SIX_BITS;
    if (bits == 0 || (bits & (bits - 1)) != 0)
        return 0;
    return (uint16_t)(1 << __builtin_ctz(bits));
}

static const char *check_dtype(DLDataType dtype) {
    if (dtype.lanes == 0)
        return "lanes";
    if (is_later_dtype(dtype))
        return dtype.bits == 0 ? "dtype" : NULL;
    return standard_widths[dtype.code] & width_bit(dtype.bits) ? NULL : "dtype";
}

/* Shape product and the reach of the strides with the last element, both in bits, must
 * fit 63 bits, rounded up to whole bytes. */
const char *dlb_extent_check(const DLTensor *tensor, uint64_t flags) {
    int64_t element = dlb_element_bits(tensor->dtype, flags), count = 1, reach = 0,
            step;
    bool overflow = false, empty = false;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t extent = tensor->shape[i];
        if (extent < 0)
            return "shape";
        empty |= extent == 0;
        overflow |= __builtin_mul_overflow(count, extent ? extent : 1, &count);
        if (tensor->strides == NULL || extent < 2)
            continue;
        int64_t stride = tensor->strides[i];
        overflow |= stride == INT64_MIN;
        stride = stride < 0 && stride != INT64_MIN ? -stride : stride;
        overflow |= __builtin_mul_overflow(extent - 1, stride, &step);
        overflow |= __builtin_add_overflow(reach, step, &reach);
    }
    overflow |= __builtin_add_overflow(reach, 1, &reach);
    overflow |= __builtin_mul_overflow(count, element, &count);
    overflow |= __builtin_mul_overflow(reach, element, &reach);
    if (overflow || count > INT64_MAX - 7 || reach > INT64_MAX - 7)
        return "overflow";
    return !empty && tensor->data == NULL ? "null_data" : NULL;
}

const char *dlb_layout_check(const DLTensor *tensor, uint64_t flags) {
    if (tensor->ndim < 0 || tensor->ndim > DLB_MAX_NDIM)
        return "ndim";
    if (tensor->ndim > 0 && tensor->shape == NULL)
        return "null_shape";
    if (flags & ~(DLB_KNOWN_FLAGS | DLB_IMMUTABLE))
        return "flags";
    uint64_t start;
    if (__builtin_add_overflow((uint64_t)(uintptr_t)tensor->data, tensor->byte_offset,
                               &start) ||
        start > INT64_MAX)
        return "overflow";
    if (!has_device(standard_devices, tensor->device) &&
        !is_later_device(tensor->device))
        return "device";
    const char *reason = check_dtype(tensor->dtype);
    return reason ? reason : dlb_extent_check(tensor, flags);
}

bool dlb_is_host(DLDevice device) {
    static const uint64_t host = DEVICE_BIT(kDLCPU) | DEVICE_BIT(kDLCUDAHost) |
                                 DEVICE_BIT(kDLROCMHost) | DEVICE_BIT(kDLTPUHost);
    return has_device(host, device);
}

void dlb_advance(DLTensor *tensor, int64_t bytes) {
    static const uint64_t handles = DEVICE_BIT(kDLOpenCL) | DEVICE_BIT(kDLVulkan) |
                                    DEVICE_BIT(kDLMetal) | DEVICE_BIT(kDLWebGPU);
    if (has_device(handles, tensor->device) || is_later_device(tensor->device))
        tensor->byte_offset += (uint64_t)bytes;
    else if (tensor->data != NULL)
        tensor->data = (void *)((uintptr_t)tensor->data + (uintptr_t)bytes);
}

int64_t dlb_element_count(const DLTensor *tensor) {
    int64_t count = 1;
    for (int32_t i = 0; i < tensor->ndim; i++)
        count *= tensor->shape[i];
    return count;
}

int64_t dlb_element_bits(DLDataType dtype, uint64_t flags) {
    int64_t bits = dtype.bits;
    if (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
        bits = (bits + 7) / 8 * 8;
    return bits * dtype.lanes;
}

int64_t dlb_packed_bytes(DLDataType dtype, uint64_t flags, int64_t count) {
    int64_t bits = dlb_element_bits(dtype, flags);
    if ((bits & 7) == 0)
        return count * (bits / 8);
    return count / 8 * bits + (count % 8 * bits + 7) / 8;
}

void dlb_row_major_strides(int32_t ndim, const int64_t *shape, int64_t *strides) {
    uint64_t step = 1; /* wraps, in shapes that are refused later */
    for (int32_t i = ndim - 1; i >= 0; i--) {
        strides[i] = (int64_t)step;
        step *= shape[i] == 0 ? 1 : (uint64_t)shape[i];
    }
}

bool dlb_is_row_major(const DLTensor *tensor) {
    int64_t expected = 1;
    bool row_major = true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        int64_t extent = tensor->shape[i];
        if (extent == 0)
            return true;
        if (extent == 1)
            continue;
        row_major &= tensor->strides == NULL || tensor->strides[i] == expected;
        expected *= extent;
    }
    return row_major;
}

void dlb_from_lowest(DLTensor *tensor) {
    int64_t below = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return;
        if (tensor->shape[i] > 1 && tensor->strides[i] < 0)
            below -= (tensor->shape[i] - 1) * tensor->strides[i];
    }
    int64_t bytes = below * dlb_element_bits(tensor->dtype, 0) / 8;
    /* In integers: the strides of another producer may reach below address 0. */
    tensor->data = (void *)((uintptr_t)tensor->data - (uintptr_t)bytes);
    tensor->byte_offset += (uint64_t)bytes;
}

bool dlb_is_column_major(const DLTensor *tensor) {
    int64_t expected = 1;
    bool column_major = true;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t extent = tensor->shape[i];
        if (extent == 0)
            return true;
        if (extent == 1)
            continue;
        column_major &= tensor->strides != NULL && tensor->strides[i] == expected;
        expected *= extent;
    }
    return column_major;
}

/* Walk from the innermost dimension out: each next stride must be what the dimensions
 * so far span. Ranks are small, so the search is quadratic and allocates nothing. */
bool dlb_is_permutation(const DLTensor *tensor) {
    if (dlb_is_row_major(tensor))
        return true;
    int32_t left = 0;
    for (int32_t i = 0; i < tensor->ndim; i++)
        left += tensor->shape[i] > 1;
    for (int64_t expected = 1; left > 0; left--) {
        int32_t found = -1;
        for (int32_t i = 0; i < tensor->ndim && found < 0; i++)
            if (tensor->shape[i] > 1 && tensor->strides[i] == expected)
                found = i;
        if (found < 0)
            return false;
        expected *= tensor->shape[found];
    }
    return true;
}

bool dlb_has_negative_stride(const DLTensor *tensor) {
    bool negative = false;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        if (tensor->shape[i] == 0)
            return false;
        negative |=
            tensor->shape[i] > 1 && tensor->strides != NULL && tensor->strides[i] < 0;
    }
    return negative;
}

static bool layout_fits(enum dlb_layout layout, const DLTensor *tensor) {
    switch (layout) {
    case DLB_LAYOUT_ANY:
        return true;
    case DLB_LAYOUT_NON_NEGATIVE:
        return !dlb_has_negative_stride(tensor);
    case DLB_LAYOUT_PERMUTATION:
        return dlb_is_permutation(tensor);
    case DLB_LAYOUT_COMPACT:
        return dlb_is_row_major(tensor) || dlb_is_column_major(tensor);
    case DLB_LAYOUT_ROW_MAJOR:
        return dlb_is_row_major(tensor);
    }
    return false;
}

const char *dlb_limits_refusal(const dlb_limits *limits, const DLTensor *tensor,
                               uint64_t flags) {
    DLDataType dtype = tensor->dtype;
    bool scalar_fits = dtype.lanes == 1 && !is_later_dtype(dtype) &&
                       (limits->widths[dtype.code] & width_bit(dtype.bits));
    bool sub_byte = dtype.bits < 8 && dtype.code != kDLBool;
    bool is_padded = flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (!limits->any_dtype && !scalar_fits &&
        dlb_dtype_key(dtype) != limits->packed_key)
        return dtype.lanes == 1 ? "dtype" : "lanes";
    if (sub_byte && is_padded != limits->padded)
        return "dtype";
    if (limits->devices != UINT64_MAX && !has_device(limits->devices, tensor->device))
        return "device";
    if (tensor->ndim > limits->max_ndim)
        return "ndim";
    if ((flags & DLPACK_FLAG_BITMASK_READ_ONLY) && !limits->protects_readonly)
        return "readonly";
    if (!layout_fits(limits->layout, tensor))
        return "strides";
    uint32_t alignment = dtype.bits == 128 && limits->alignment < limits->wide_alignment
                             ? limits->wide_alignment
                             : limits->alignment;
    if ((uintptr_t)tensor->data & (alignment - 1))
        return "alignment";
    return NULL;
}

/* ---- whether tensors share memory: arithmetic on addresses, in bits ---- */

typedef struct { /* blocks of `size` bits, one at each sum of multiples of the steps */
    int64_t start, size;
    int32_t count;
    int64_t steps[DLB_MAX_NDIM], extents[DLB_MAX_NDIM];
} lattice;

static void remove_step(lattice *blocks, int32_t index) {
    blocks->count--;
    blocks->steps[index] = blocks->steps[blocks->count];
    blocks->extents[index] = blocks->extents[blocks->count];
}

/* All steps positive, dimensions that continue a block merged into it. False: so far
 * from the origin that bits cannot be counted. */
static bool make_lattice(const DLTensor *tensor, uint64_t flags, uintptr_t origin,
                         lattice *blocks) {
    const int64_t farthest = INT64_MAX / 4;
    int64_t bits = dlb_element_bits(tensor->dtype, flags);
    int64_t distance = (int64_t)((uintptr_t)tensor->data - origin);
    if (distance > farthest / 8 || distance < -farthest / 8)
        return false;
    int64_t reach = bits;
    blocks->start = distance * 8;
    blocks->size = bits;
    blocks->count = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t extent = tensor->shape[i];
        if (extent < 2)
            continue; /* its stride may be any number */
        int64_t step = tensor->strides[i] * bits;
        if (__builtin_add_overflow(reach, (extent - 1) * (step < 0 ? -step : step),
                                   &reach) ||
            reach > farthest)
            return false;
        if (step < 0) {
            blocks->start += (extent - 1) * step;
            step = -step;
        }
        blocks->extents[blocks->count] = extent;
        blocks->steps[blocks->count++] = step;
    }
    for (int32_t i = 0; i < blocks->count;) {
        if (blocks->steps[i] > blocks->size) {
            i++;
            continue;
        }
        blocks->size += blocks->steps[i] * (blocks->extents[i] - 1);
        remove_step(blocks, i);
        i = 0; /* the larger block may now reach what it did not before */
    }
    return true;
}

static int64_t common_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

/* Every block of both lies at its start modulo the common divisor of all steps: where
 * the starts keep the blocks apart there, as in interleaved views and columns, nothing
 * is shared. */
bool dlb_share_memory(const DLTensor *a, uint64_t a_flags, const DLTensor *b,
                      uint64_t b_flags) {
    lattice first, second;
    uintptr_t origin = (uintptr_t)a->data;
    if (!make_lattice(a, a_flags, origin, &first) ||
        !make_lattice(b, b_flags, origin, &second))
        return true;
    int64_t divisor = 0;
    for (int32_t i = 0; i < first.count; i++)
        divisor = common_divisor(divisor, first.steps[i]);
    for (int32_t i = 0; i < second.count; i++)
        divisor = common_divisor(divisor, second.steps[i]);
    if (divisor == 0) /* two blocks */
        return first.start < second.start + second.size &&
               second.start < first.start + first.size;
    int64_t distance = (second.start - first.start) % divisor;
    distance += distance < 0 ? divisor : 0;
    return distance < first.size || divisor - distance < second.size;
}

/* In order of their strides, each dimension must step over all that the smaller ones
 * reach. The search is quadratic, ranks are small. */
bool dlb_overlaps_itself(const DLTensor *tensor) {
    int64_t reach = 0, last = -1;
    int32_t last_index = -1;
    for (;;) {
        int64_t least = INT64_MAX;
        int32_t found = -1;
        for (int32_t i = 0; i < tensor->ndim; i++) {
            if (tensor->shape[i] == 0)
                return false;
            if (tensor->shape[i] == 1)
                continue; /* its stride may be any number */
            int64_t stride =
                tensor->strides[i] < 0 ? -tensor->strides[i] : tensor->strides[i];
            bool is_next = stride > last || (stride == last && i > last_index);
            if (is_next && stride < least) {
                least = stride;
                found = i;
            }
        }
        if (found < 0)
            return false;
        if (least <= reach)
            return true;
        reach += (tensor->shape[found] - 1) * least;
        last = least;
        last_index = found;
    }
}

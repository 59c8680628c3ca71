/* What no kernel may be called with: checked for every call, before any side effect. */
#include "kernel/kernel.h"
#include "layout/layout.h"

#define READ_ONLY (uintptr_t)DLPACK_FLAG_BITMASK_READ_ONLY
#define BIT(i) (UINT32_C(1) << (i))

typedef struct { /* addresses low <= a < high; low == high == 0: no elements */
    uintptr_t low, high;
} span;

static inline int64_t element_bits(const DLTensor *tensor, uint64_t flags) {
    if (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
        return dlb_element_bits(tensor->dtype, flags);
    return tensor->dtype.bits * tensor->dtype.lanes;
}

static span measure_strided(const DLTensor *tensor, uint64_t flags) {
    int64_t low = 0, high = 0, bits = element_bits(tensor, flags);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t step = (tensor->shape[i] - 1) * tensor->strides[i];
        if (step < 0)
            low += step;
        else
            high += step;
    }
    return (span){(uintptr_t)tensor->data + (uintptr_t)(low * bits >> 3),
                  (uintptr_t)tensor->data + (uintptr_t)(((high + 1) * bits + 7) >> 3)};
}

/* Returns whether the tensor is row-major, too: one loop for both. */
static inline bool measure(const DLTensor *tensor, uint64_t flags, span *reach) {
    int64_t count = 1;
    bool row_major = true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        int64_t extent = tensor->shape[i];
        row_major &= (tensor->strides[i] == count) | (extent == 1);
        count *= extent;
    }
    if (count == 0)
        *reach = (span){0, 0};
    else if (!row_major)
        *reach = measure_strided(tensor, flags);
    else
        *reach =
            (span){(uintptr_t)tensor->data,
                   (uintptr_t)tensor->data +
                       ((uintptr_t)(count * element_bits(tensor, flags) + 7) >> 3)};
    return row_major | (count == 0);
}

/* ---- each tensor alone ---- */

/* Pinned memory is the CPU's, and the CPU is one device whatever its number; managed
 * memory is its GPU's. */
static bool same_device(DLDevice a, DLDevice b) {
    if (a.device_type == b.device_type || (dlb_is_cuda(a) && dlb_is_cuda(b)))
        return a.device_id == b.device_id || a.device_type == kDLCPU;
    return dlb_is_host(a) && dlb_is_host(b);
}

/* NULL, or why tensor `index` can never be passed. */
static const char *find_fault(const DLTensor *tensor, uint64_t flags, const span *reach,
                              DLDevice device, bool is_written) {
    if (!same_device(tensor->device, device))
        return "device";
    if (tensor->data == NULL && reach->low != reach->high)
        return "null_data";
    if (is_written && (flags & DLPACK_FLAG_BITMASK_READ_ONLY))
        return "readonly";
    return NULL;
}

/* Kernels see no flags, so that elements padded to bytes would be taken for packed. */
static inline bool needs_copy(const dlb_kernel *kernel, const DLTensor *tensor,
                              uint64_t flags, bool is_row_major) {
    return (kernel->contiguous && !is_row_major) ||
           ((uintptr_t)tensor->data & (kernel->alignment - 1)) != 0 ||
           ((flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) &&
            tensor->dtype.bits % 8 != 0);
}

/* ---- tensors that are written ---- */

static inline int check_overlap(const dlb_kernel *kernel, dlb_frame *frame,
                                int32_t index, uint32_t written, const span *spans) {
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        if (spans[i].low >= spans[index].high || spans[index].low >= spans[i].high)
            continue;
        /* Of two that are written, the later one looks at the earlier. */
        if (i == index || ((written & BIT(i)) && i > index))
            continue;
        if (dlb_share_memory(&frame->tensors[index], frame->flags[index],
                             &frame->tensors[i], frame->flags[i]))
            return dlb_frame_refuse(kernel, frame, index, "overlap", i);
    }
    return 0;
}

static int check_written(const dlb_kernel *kernel, dlb_frame *frame, uint32_t written,
                         const span *spans, uint32_t row_major) {
    for (uint32_t left = written; left != 0; left &= left - 1) {
        int32_t i = __builtin_ctz(left);
        if (spans[i].low == spans[i].high)
            continue;
        if (!(row_major & BIT(i)) && dlb_overlaps_itself(&frame->tensors[i]))
            return dlb_frame_refuse(kernel, frame, i, "overlap", i);
        if (!kernel->may_overlap && check_overlap(kernel, frame, i, written, spans) < 0)
            return -1;
    }
    return 0;
}

/* ---- all of them ---- */

static int check_all(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device,
                     uint32_t written, uint32_t *staged) {
    span spans[DLB_MAX_TENSORS];
    uint32_t row_major = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        uint64_t flags = frame->flags[i];
        spans[i] = (span){0, 0};
        if (tensor->ndim < 0)
            continue;
        bool is_row_major = measure(tensor, flags, &spans[i]);
        const char *fault =
            find_fault(tensor, flags, &spans[i], device, (written & BIT(i)) != 0);
        if (fault != NULL)
            return dlb_frame_refuse(kernel, frame, i, fault, -1);
        row_major |= (uint32_t)is_row_major << i;
        if (needs_copy(kernel, tensor, flags, is_row_major) &&
            spans[i].low != spans[i].high)
            *staged |= BIT(i);
    }
    return check_written(kernel, frame, written, spans, row_major);
}

/* The usual call, in few instructions: row-major tensors without flags on one device,
 * aligned, nothing left out, nothing written that overlaps. Whatever it does not see
 * through, the others look at again. */
static bool is_plain(const dlb_kernel *kernel, const dlb_frame *frame, DLDevice device,
                     uint32_t written) {
    uintptr_t low[DLB_MAX_TENSORS], high[DLB_MAX_TENSORS];
    uintptr_t flags = 0, addresses = 0, has_fault = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        int64_t count = 1;
        for (int32_t k = tensor->ndim - 1; k >= 0; k--) {
            has_fault |= (tensor->strides[k] != count) & (tensor->shape[k] != 1);
            count *= tensor->shape[k];
        }
        flags |= frame->flags[i] & ~((written >> i & 1) ? 0 : READ_ONLY);
        addresses |= (uintptr_t)tensor->data;
        has_fault |= (tensor->ndim < 0) | (tensor->data == NULL) |
                     (tensor->device.device_type != device.device_type) |
                     (tensor->device.device_id != device.device_id);
        count *= tensor->dtype.bits * tensor->dtype.lanes;
        low[i] = (uintptr_t)tensor->data;
        high[i] = low[i] + ((uintptr_t)(count + 7) >> 3);
    }
    if (has_fault | flags | (addresses & (kernel->alignment - 1)))
        return false;
    for (; written != 0; written &= written - 1) {
        int32_t place = __builtin_ctz(written);
        for (int32_t i = 0; i < frame->tensor_count; i++)
            if (low[i] < high[place] && low[place] < high[i] && i != place)
                return false;
    }
    return true;
}

int dlb_frame_check(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device,
                    uint32_t written, uint32_t *staged) {
    return is_plain(kernel, frame, device, written)
               ? 0
               : check_all(kernel, frame, device, written, staged);
}

/* What no kernel may be called with: checked for every call, before any side effect. */
#include "kernel.h"

#define BIT(i) (UINT32_C(1) << (i))

/* Pinned memory is the CPU's, and the CPU is one device whatever its number. */
static inline bool same_device(DLDevice a, DLDevice b) {
    if (a.device_type == b.device_type)
        return a.device_id == b.device_id || a.device_type == kDLCPU;
    return dlb_is_host(a) && dlb_is_host(b);
}

/* NULL, or why tensor `index` can never be passed. */
static inline const char *find_fault(const DLTensor *tensor, uint64_t flags,
                                     const dlb_span *span, const DLTensor *first,
                                     bool is_written) {
    if (!same_device(tensor->device, first->device))
        return "device";
    if (tensor->data == NULL && span->low != span->high)
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

static int check_overlap(const dlb_kernel *kernel, dlb_frame *frame, int32_t index,
                         uint32_t written, const dlb_span *spans) {
    const DLTensor *tensor = &frame->tensors[index];
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        /* Of two that are written, the later one looks at the earlier. */
        if (i == index || ((written & BIT(i)) && i > index))
            continue;
        if (spans[i].low < spans[index].high && spans[index].low < spans[i].high &&
            dlb_share_memory(tensor, frame->flags[index], &frame->tensors[i],
                             frame->flags[i]))
            return dlb_frame_refuse(kernel, frame, index, "overlap", i);
    }
    return 0;
}

static int check_written(const dlb_kernel *kernel, dlb_frame *frame, uint32_t written,
                         const dlb_span *spans, uint32_t row_major) {
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        if (!(written & BIT(i)) || spans[i].low == spans[i].high)
            continue;
        if (!(row_major & BIT(i)) && dlb_overlaps_itself(&frame->tensors[i]))
            return dlb_frame_refuse(kernel, frame, i, "overlap", i);
        if (!kernel->may_overlap && check_overlap(kernel, frame, i, written, spans) < 0)
            return -1;
    }
    return 0;
}

int dlb_frame_check(const dlb_kernel *kernel, dlb_frame *frame, uint32_t written,
                    uint32_t *staged) {
    dlb_span spans[DLB_MAX_TENSORS];
    const DLTensor *first = NULL;
    uint32_t row_major = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        spans[i] = (dlb_span){0, 0};
        if (tensor->ndim < 0)
            continue;
        first = first ? first : tensor;
        bool is_row_major = dlb_measure(tensor, frame->flags[i], &spans[i]);
        const char *fault = find_fault(tensor, frame->flags[i], &spans[i], first,
                                       (written & BIT(i)) != 0);
        if (fault != NULL)
            return dlb_frame_refuse(kernel, frame, i, fault, -1);
        row_major |= is_row_major ? BIT(i) : 0;
        if (spans[i].low != spans[i].high &&
            needs_copy(kernel, tensor, frame->flags[i], is_row_major))
            *staged |= BIT(i);
    }
    return written == 0 ? 0 : check_written(kernel, frame, written, spans, row_major);
}

/* The run of one call: checks, copies of what the kernel cannot take as it lies in
 * memory, the order on a CUDA device, the kernel. */
#include "cuda/cuda.h"
#include "kernel/kernel.h"
#include "layout/layout.h"
#include "memory/copy.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* ---- errors ---- */

/* A kernel that failed and did not say how in a way of its own. */
static int fail_with_status(const dlb_kernel *kernel, dlb_frame *frame, int status,
                            const char *text) {
    if (text[0] == 0)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: the kernel returned status %d", kernel->name,
                              status);
    if (status == -1) /* what dlb_set_error returns */
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: %s", kernel->name, text);
    return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: %s (status %d)", kernel->name,
                          text, status);
}

/* ---- room for the calls of large kernels ---- */

/* Returns room for `count` items of `size` bytes in the block, and adds it to `used`.
 * If the block is NULL, the result is as well: only the size is computed. */
static void *cut(char *block, size_t *used, size_t count, size_t size) {
    char *found = block ? block + *used : NULL;
    *used += (count * size + 15) / 16 * 16;
    return found;
}

/* Lays the arrays of a frame into one block, which begins with the spans of a check and
 * as many to sort them. Returns how many bytes that takes. */
static size_t lay_out(const dlb_signature *signature, dlb_frame *frame, char *block) {
    size_t tensors = (size_t)frame->room, names = (size_t)signature->name_count;
    size_t packs = (size_t)signature->pack_count, used = 0;
    cut(block, &used, 2 * tensors, sizeof(dlb_span));
    frame->tensors = cut(block, &used, tensors, sizeof *frame->tensors);
    frame->flags = cut(block, &used, tensors, sizeof *frame->flags);
    frame->accesses = cut(block, &used, tensors, sizeof *frame->accesses);
    frame->written = cut(block, &used, tensors / 32 + 1, sizeof(uint32_t));
    frame->watched = cut(block, &used, tensors / 32 + 1, sizeof(uint32_t));
    frame->bindings.has_name = cut(block, &used, names / 32 + 1, sizeof(uint32_t));
    frame->bindings.has_pack = cut(block, &used, packs / 32 + 1, sizeof(uint32_t));
    frame->bindings.names = cut(block, &used, names, sizeof(int64_t));
    frame->bindings.packs = cut(block, &used, packs, sizeof(dlb_pack));
    return used;
}

int dlb_frame_make_room(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    int32_t count = signature->input_count + signature->result_count;
    dlb_frame sized;
    sized.room = count > DLB_MAX_TENSORS ? count : DLB_MAX_TENSORS;
    void *block = malloc(lay_out(signature, &sized, NULL));
    if (block == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: out of memory",
                              kernel->name);
    dlb_count_live(scratch, 1);
    frame->large = block;
    frame->room = sized.room;
    lay_out(signature, frame, block);
    dlb_set_clear(frame->written, frame->room);
    dlb_set_clear(frame->watched, frame->room);
    return 0;
}

void dlb_frame_drop_room(dlb_frame *frame) {
    free(frame->large);
    frame->large = NULL;
    dlb_count_live(scratch, -1);
}

/* Room for the spans of all tensors, and behind them for as many again; `few` where
 * that is enough. */
static dlb_span *spans_of(const dlb_frame *frame, dlb_span *few) {
    return frame->tensor_count > DLB_MAX_TENSORS ? frame->large : few;
}

/* ---- arguments against the signature ---- */

dlb_list_room *dlb_frame_add_list(dlb_frame *frame, dlb_scalar_kind kind,
                                  dlb_scalar *scalar) {
    if (frame->list_count == DLB_MAX_LISTS)
        return NULL;
    dlb_list_room *room = &frame->lists[frame->list_count++];
    bool is_float = kind == DLB_FLOATS;
    room->list = (dlb_list){0, is_float ? NULL : room->values.ints,
                            is_float ? room->values.floats : NULL};
    *scalar = (dlb_scalar){kind, {.list = &room->list}};
    return room;
}

/* A decimal number of int64, or the bits of a double in 16 hexadecimal digits, up to a
 * comma or the end; NULL: it is neither. */
static const char *read_listed(const char *text, bool is_float, int64_t *bits) {
    size_t length = strcspn(text, ",");
    const char *digits = is_float ? "0123456789abcdef" : "0123456789";
    size_t sign = !is_float && *text == '-';
    errno = 0;
    *bits = is_float ? (int64_t)strtoull(text, NULL, 16) : strtoll(text, NULL, 10);
    bool fits = length > sign && strspn(text + sign, digits) == length - sign;
    return fits && errno == 0 && (!is_float || length == 16) ? text + length : NULL;
}

/* A list that comes as a text. False: it is none. */
static bool read_list(dlb_frame *frame, dlb_scalar_kind kind, dlb_scalar *scalar) {
    const char *text = scalar->value.s;
    dlb_list_room *room = dlb_frame_add_list(frame, kind, scalar);
    while (room != NULL && *text != 0) {
        int64_t count = room->list.count++;
        if (count == DLB_MAX_LISTED)
            return false;
        text = read_listed(text, kind == DLB_FLOATS, &room->values.ints[count]);
        if (text == NULL || (*text == ',' && *++text == 0))
            return false;
    }
    return room != NULL;
}

static int bind_list(const dlb_kernel *kernel, dlb_frame *frame, int32_t index) {
    const dlb_scalar_parameter *parameter = &kernel->signature->scalars[index];
    dlb_scalar *scalar = &frame->scalars[index];
    if (scalar->kind == DLB_NONE && parameter->optional)
        return 0;
    bool fits =
        scalar->kind == (int64_t)parameter->kind ||
        (scalar->kind == DLB_STRING && read_list(frame, parameter->kind, scalar));
    if (fits && (parameter->count < 0 || scalar->value.list->count == parameter->count))
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_TYPE, "%s: scalar %d: expected a list of %s",
                          kernel->name, (int)index,
                          parameter->kind == DLB_INTS ? "int" : "float");
}

static int bind_scalar(const dlb_kernel *kernel, dlb_frame *frame, int32_t index) {
    const dlb_scalar_parameter *parameter = &kernel->signature->scalars[index];
    dlb_scalar *scalar = &frame->scalars[index];
    if (parameter->kind >= DLB_INTS)
        return bind_list(kernel, frame, index);
    if (scalar->kind == (int64_t)parameter->kind ||
        (scalar->kind == DLB_NONE && parameter->optional))
        return 0;
    if (scalar->kind == DLB_INT && parameter->kind == DLB_FLOAT) {
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = (double)scalar->value.i}};
        return 0;
    }
    static const char *const kinds[] = {"none", "int",   "float",
                                        "str",  "int[]", "float[]"};
    return dlb_frame_fail(frame, DLB_ERROR_TYPE, "%s: scalar %d: expected %s, got %s",
                          kernel->name, (int)index, kinds[parameter->kind],
                          kinds[scalar->kind]);
}

int dlb_frame_bind(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    if (signature == NULL)
        return 0;
    if (frame->input_count != signature->input_count ||
        frame->scalar_count != signature->scalar_count)
        return dlb_frame_fail(
            frame, DLB_ERROR_TYPE,
            "%s: expected %d tensors and %d scalars, got %d tensors and %d scalars",
            kernel->name, (int)signature->input_count, (int)signature->scalar_count,
            (int)frame->input_count, (int)frame->scalar_count);
    for (int32_t i = 0; i < signature->scalar_count; i++)
        if (bind_scalar(kernel, frame, i) < 0)
            return -1;
    int index =
        dlb_signature_bind(signature, frame->tensors, frame->scalars, &frame->bindings);
    return index < 0 ? 0 : dlb_frame_refuse(kernel, frame, index, "mismatch", -1);
}

static int check_result_count(const dlb_kernel *kernel, dlb_frame *frame) {
    int32_t results = frame->tensor_count - frame->input_count;
    if (results == kernel->signature->result_count)
        return 0;
    return dlb_frame_fail(frame, DLB_ERROR_TYPE, "%s: expected %d results, got %d",
                          kernel->name, (int)kernel->signature->result_count,
                          (int)results);
}

int dlb_frame_check_results(const dlb_kernel *kernel, dlb_frame *frame) {
    const dlb_signature *signature = kernel->signature;
    if (signature == NULL)
        return 0;
    if (check_result_count(kernel, frame) < 0)
        return -1;
    for (int32_t i = 0; i < signature->result_count; i++) {
        int32_t index = signature->input_count + i;
        if (!dlb_signature_fits_result(signature, i, &frame->tensors[index],
                                       &frame->bindings))
            return dlb_frame_refuse(kernel, frame, index, "mismatch", -1);
    }
    return 0;
}

/* ---- checks before any side effect ---- */

#define READ_ONLY (uintptr_t)DLPACK_FLAG_BITMASK_READ_ONLY

static inline int64_t element_bits(const DLTensor *tensor, uint64_t flags) {
    if (flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED)
        return dlb_element_bits(tensor->dtype, flags);
    return tensor->dtype.bits * tensor->dtype.lanes;
}

static dlb_span measure_strided(const DLTensor *tensor, uint64_t flags) {
    int64_t low = 0, high = 0, bits = element_bits(tensor, flags);
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t step = (tensor->shape[i] - 1) * tensor->strides[i];
        if (step < 0)
            low += step;
        else
            high += step;
    }
    return (dlb_span){(uintptr_t)tensor->data + (uintptr_t)(low * bits >> 3),
                      (uintptr_t)tensor->data +
                          (uintptr_t)(((high + 1) * bits + 7) >> 3)};
}

/* Returns whether the tensor is also row-major: one loop for both. */
static inline bool measure(const DLTensor *tensor, uint64_t flags, dlb_span *reach) {
    int64_t count = 1;
    bool row_major = true;
    for (int32_t i = tensor->ndim - 1; i >= 0; i--) {
        int64_t extent = tensor->shape[i];
        row_major &= (tensor->strides[i] == count) | (extent == 1);
        count *= extent;
    }
    if (count == 0)
        *reach = (dlb_span){0, 0};
    else if (!row_major)
        *reach = measure_strided(tensor, flags);
    else
        *reach =
            (dlb_span){(uintptr_t)tensor->data,
                       (uintptr_t)tensor->data +
                           ((uintptr_t)(count * element_bits(tensor, flags) + 7) >> 3)};
    return row_major | (count == 0);
}

/* Pinned memory is the CPU's, and the CPU is one device whatever its number; managed
 * memory is its GPU's. */
static bool same_device(DLDevice a, DLDevice b) {
    if (a.device_type == b.device_type || (dlb_is_cuda(a) && dlb_is_cuda(b)))
        return a.device_id == b.device_id || a.device_type == kDLCPU;
    return dlb_is_host(a) && dlb_is_host(b);
}

/* NULL, or why tensor `index` can never be passed. */
static const char *find_fault(const DLTensor *tensor, uint64_t flags,
                              const dlb_span *reach, DLDevice device, bool is_written) {
    if (!same_device(tensor->device, device))
        return "device";
    if (tensor->data == NULL && reach->low != reach->high)
        return "null_data";
    if (is_written && (flags & DLPACK_FLAG_BITMASK_READ_ONLY))
        return "readonly";
    return NULL;
}

/* Among the flags of a tensor: the kernel gets a copy. */
#define STAGED (UINT64_C(1) << 63)

/* Kernels see no flags, so that elements padded to bytes would be taken for packed. */
static inline bool needs_copy(const dlb_kernel *kernel, const DLTensor *tensor,
                              uint64_t flags, bool is_row_major) {
    return (kernel->contiguous && !is_row_major) ||
           !dlb_is_aligned(kernel, (uintptr_t)tensor->data) ||
           ((flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) &&
            tensor->dtype.bits % 8 != 0);
}

static inline int check_overlap(const dlb_kernel *kernel, dlb_frame *frame,
                                int32_t index, const dlb_span *spans) {
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        if (!dlb_spans_meet(spans[i], spans[index]))
            continue;
        /* Of two that are written, the later one looks at the earlier. */
        if (i == index || (i > index && dlb_set_has(frame->written, i)))
            continue;
        if (dlb_share_memory(&frame->tensors[index], frame->flags[index],
                             &frame->tensors[i], frame->flags[i]))
            return dlb_frame_refuse(kernel, frame, index, "overlap", i);
    }
    return 0;
}

typedef struct {
    dlb_span span;
    bool is_written;
} marked_span;

static int compare_spans(const void *a, const void *b) {
    uintptr_t first = ((const marked_span *)a)->span.low;
    uintptr_t second = ((const marked_span *)b)->span.low;
    return (first > second) - (first < second);
}

/* As dlb_spans_are_apart, of any number of them: sorted by address, each is compared
 * with what reaches furthest before it. Also false if sorting fails to allocate: the
 * caller then compares all pairs. */
static bool are_many_apart(const dlb_kernel *kernel, const dlb_frame *frame,
                           const dlb_span *spans) {
    int32_t count = 0;
    if (kernel->may_overlap)
        return true;
    marked_span *sorted = malloc((size_t)frame->tensor_count * sizeof *sorted);
    if (sorted == NULL)
        return false;
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (spans[i].low != spans[i].high)
            sorted[count++] = (marked_span){spans[i], dlb_set_has(frame->written, i)};
    qsort(sorted, (size_t)count, sizeof *sorted, compare_spans);
    uintptr_t any = 0, written = 0;
    bool meet = false;
    for (int32_t i = 0; i < count; i++) {
        dlb_span span = sorted[i].span;
        meet |= span.low < (sorted[i].is_written ? any : written);
        any = span.high > any ? span.high : any;
        if (sorted[i].is_written && span.high > written)
            written = span.high;
    }
    free(sorted);
    return !meet;
}

static bool are_apart(const dlb_kernel *kernel, const dlb_frame *frame,
                      const dlb_span *spans) {
    return frame->tensor_count > DLB_MAX_TENSORS
               ? are_many_apart(kernel, frame, spans)
               : dlb_spans_are_apart(kernel, spans, frame->tensor_count,
                                     *frame->written);
}

static int check_written(const dlb_kernel *kernel, dlb_frame *frame,
                         const dlb_span *spans, bool are_row_major) {
    if (are_row_major && are_apart(kernel, frame, spans))
        return 0;
    int32_t count = frame->tensor_count;
    for (int32_t i = dlb_set_next(frame->written, count, 0); i < count;
         i = dlb_set_next(frame->written, count, i + 1)) {
        if (spans[i].low == spans[i].high)
            continue;
        const DLTensor *tensor = &frame->tensors[i];
        if (!dlb_is_row_major(tensor) && dlb_overlaps_itself(tensor))
            return dlb_frame_refuse(kernel, frame, i, "overlap", i);
        if (!kernel->may_overlap && check_overlap(kernel, frame, i, spans) < 0)
            return -1;
    }
    return 0;
}

/* Returns how many tensors must be copied, which are marked; or -1. */
static int check_all(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device) {
    dlb_span few[DLB_MAX_TENSORS], *spans = spans_of(frame, few);
    bool are_row_major = true;
    int staged = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        uint64_t flags = frame->flags[i];
        spans[i] = (dlb_span){0, 0};
        if (tensor->ndim < 0)
            continue;
        const char *reason = dlb_extent_check(tensor, flags);
        if (reason != NULL && strcmp(reason, "null_data") != 0) /* which comes later */
            return dlb_frame_refuse(kernel, frame, i, reason, -1);
        bool is_row_major = measure(tensor, flags, &spans[i]);
        const char *fault = find_fault(tensor, flags, &spans[i], device,
                                       dlb_set_has(frame->written, i));
        if (fault != NULL)
            return dlb_frame_refuse(kernel, frame, i, fault, -1);
        are_row_major &= is_row_major;
        if (needs_copy(kernel, tensor, flags, is_row_major) &&
            spans[i].low != spans[i].high) {
            frame->flags[i] |= STAGED;
            staged++;
        }
    }
    return check_written(kernel, frame, spans, are_row_major) < 0 ? -1 : staged;
}

/* The usual call, in few instructions: row-major tensors without flags on one device,
 * aligned, nothing left out, nothing written that overlaps. Whatever it does not see
 * through, the others look at again. */
static bool is_plain(const dlb_kernel *kernel, const dlb_frame *frame,
                     DLDevice device) {
    dlb_span few[DLB_MAX_TENSORS], *spans = spans_of(frame, few);
    const uint32_t *written = frame->written;
    const uint64_t *all_flags = frame->flags;
    const DLTensor *tensor = frame->tensors;
    int32_t tensor_count = frame->tensor_count;
    uintptr_t flags = 0, addresses = 0, has_fault = 0;
    for (int32_t i = 0; i < tensor_count; i++, tensor++) {
        uint64_t count = 1; /* which may wrap, but not where the strides are as here */
        for (int32_t k = tensor->ndim - 1; k >= 0; k--) {
            has_fault |=
                ((uint64_t)tensor->strides[k] != count) & (tensor->shape[k] != 1);
            count *= (uint64_t)tensor->shape[k];
        }
        flags |= all_flags[i] & ~(dlb_set_has(written, i) ? 0 : READ_ONLY);
        addresses |= (uintptr_t)tensor->data;
        has_fault |= (tensor->ndim < 0) | (tensor->data == NULL) |
                     (tensor->device.device_type != device.device_type) |
                     (tensor->device.device_id != device.device_id);
        count *= (uint64_t)tensor->dtype.bits * tensor->dtype.lanes;
        spans[i].low = (uintptr_t)tensor->data;
        spans[i].high = spans[i].low + (uintptr_t)((count + 7) >> 3);
    }
    return !(has_fault | flags) && dlb_is_aligned(kernel, addresses) &&
           are_apart(kernel, frame, spans);
}

/* Devices, NULL data, read-only memory and overlap. Returns how many tensors the kernel
 * gets copies of; or -1. */
static int check(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device) {
    return is_plain(kernel, frame, device) ? 0 : check_all(kernel, frame, device);
}

/* ---- the call, without checks ---- */

static const DLTensor *find_first(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return &frame->tensors[i];
    return NULL;
}

/* ---- results whose first extent the kernel says ---- */

static void *find_count(const dlb_frame *frame, int32_t result) {
    const DLTensor *tensor = &frame->tensors[frame->input_count + result];
    return (char *)tensor->data + tensor->byte_offset;
}

int64_t dlb_frame_said(const dlb_kernel *kernel, const dlb_frame *frame,
                       int32_t index) {
    int64_t extent = frame->tensors[index].shape[0];
    int32_t result = index - frame->input_count;
    if (result >= 0 && kernel->says_extents && kernel->said_by[result] >= 0)
        memcpy(&extent, find_count(frame, kernel->said_by[result]), sizeof extent);
    return extent;
}

static bool says(const dlb_kernel *kernel, const dlb_target *target) {
    return kernel->says_extents && target->device_type == kDLCPU;
}

/* So that a kernel which says nothing is found out. */
static void forget_extents(const dlb_kernel *kernel, const dlb_frame *frame) {
    int64_t none = -1;
    for (int32_t i = 0; i < frame->tensor_count - frame->input_count; i++)
        if (kernel->said_by[i] >= 0)
            memcpy(find_count(frame, kernel->said_by[i]), &none, sizeof none);
}

static int check_extents(const dlb_kernel *kernel, dlb_frame *frame) {
    for (int32_t i = frame->input_count; i < frame->tensor_count; i++) {
        int32_t by = kernel->said_by[i - frame->input_count];
        if (by < 0)
            continue;
        int64_t said = dlb_frame_said(kernel, frame, i);
        int64_t room = frame->tensors[i].shape[0];
        if (said < 0 || said > room)
            return dlb_frame_report(kernel, frame, frame->input_count + by, "extent",
                                    said, room);
    }
    return 0;
}

/* ---- the function ---- */

int dlb_frame_call(const dlb_kernel *kernel, const dlb_target *target,
                   dlb_frame *frame) {
    char text[DLB_ERROR_SIZE];
    text[0] = 0;
    dlb_context context = {
        .size = sizeof context,
        .kernel = kernel->name,
        .user = target->user,
        .stream = frame->stream,
        .scalars = frame->scalars,
        .scalar_count = frame->scalar_count,
        .error = text,
        .error_size = sizeof text,
        .counts = kernel->count_count > 0 ? kernel->counts : NULL,
        .count_count = kernel->count_count,
    };
    if (says(kernel, target))
        forget_extents(kernel, frame);
    int status = target->invoke(kernel, target, frame, &context);
    if (status == 0)
        return says(kernel, target) ? check_extents(kernel, frame) : 0;
    if (frame->error.kind != DLB_ERROR_NONE)
        return -1;
    text[sizeof text - 1] = 0;
    return fail_with_status(kernel, frame, status, text);
}

/* Tensors of other frameworks are ready on the stream of the caller, and stay its own.
 */
static int order_tensors(const dlb_frame *frame, dlb_stream stream) {
    int32_t count = frame->tensor_count;
    for (int32_t i = dlb_set_next(frame->watched, count, 0); i < count;
         i = dlb_set_next(frame->watched, count, i + 1)) {
        int status = dlb_set_has(frame->written, i)
                         ? dlb_access_write(frame->accesses[i], stream)
                         : dlb_access_read(frame->accesses[i], stream);
        if (status < 0)
            return -1;
    }
    return 0;
}

/* The caller's own work before and after a kernel on another stream of its device. */
static int order_stream(int32_t device, dlb_stream before, dlb_stream after) {
    return dlb_cuda_order(device, dlb_stream_identify(before),
                          dlb_stream_identify(after));
}

static int run_on(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
                  int32_t device, dlb_stream caller) {
    dlb_stream stream = kernel->on_default_stream ? DLB_STREAM_LEGACY : caller;
    if (order_stream(device, caller, stream) < 0 || order_tensors(frame, stream) < 0)
        return dlb_frame_fail_cuda(kernel, frame);
    frame->stream = (void *)stream;
    int status = dlb_frame_call(kernel, target, frame);
    if (order_stream(device, stream, caller) < 0 && status == 0)
        status = dlb_frame_fail_cuda(kernel, frame);
    return status;
}

__attribute__((noinline)) static int
call_on_cuda(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame) {
    dlb_cuda_scope scope;
    const DLTensor *first = find_first(frame);
    void *given = frame->stream;
    /* Without a driver nothing runs on a GPU: there is nothing to order. Without a
     * tensor the call runs where its caller is. */
    if (first == NULL || dlb_cuda_open(NULL) == NULL)
        return dlb_frame_call(kernel, target, frame);
    int32_t device = first->device.device_id;
    if (dlb_cuda_enter(device, &scope) < 0)
        return dlb_frame_fail_cuda(kernel, frame);
    dlb_stream caller = given ? (dlb_stream)given : dlb_cuda_current_stream(device);
    int status = run_on(kernel, target, frame, device, caller);
    frame->stream = given;
    dlb_cuda_leave(&scope);
    return status;
}

/* CUDA's devices, and in debug mode the CPU: one test for both. */
int dlb_frame_invoke(const dlb_kernel *kernel, const dlb_target *target,
                     dlb_frame *frame) {
    uint64_t detours = atomic_load_explicit(&dlb_detours, memory_order_relaxed);
    if (!(detours >> (target->device_type & 63) & 1))
        return dlb_frame_call(kernel, target, frame);
    return target->device_type == kDLCUDA ? call_on_cuda(kernel, target, frame)
                                          : dlb_debug_invoke(kernel, target, frame);
}

/* ---- the GIL ---- */

/* In bytes, or as `cost` says; -1: it is not known. */
static int64_t find_cost(const dlb_kernel *kernel, const dlb_frame *frame) {
    int64_t cost = 0;
    if (kernel->cost != NULL) {
        for (int32_t i = 0; i < kernel->cost_length; i++)
            if (kernel->cost[i].operation == 'n' &&
                !dlb_set_has(frame->bindings.has_name, kernel->cost[i].value))
                return -1;
        bool is_known = dlb_steps_run(kernel->cost, kernel->cost_length,
                                      frame->bindings.names, &cost);
        return is_known ? cost : -1;
    }
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        if (tensor->ndim < 0)
            continue;
        const char *reason = dlb_extent_check(tensor, 0); /* nobody looked so far */
        if ((reason != NULL && strcmp(reason, "null_data") != 0) ||
            __builtin_add_overflow(
                cost, dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor)),
                &cost))
            return -1;
    }
    return cost;
}

bool dlb_frame_holds_gil(const dlb_kernel *kernel, const dlb_frame *frame) {
    if (kernel->needs_gil || !kernel->releases_gil)
        return true;
    const DLTensor *first = kernel->holds_below > 0 ? find_first(frame) : NULL;
    if (first == NULL || first->device.device_type != kDLCPU)
        return false;
    int64_t cost = find_cost(kernel, frame);
    return cost >= 0 && cost < kernel->holds_below;
}

/* ---- copies ----
 *
 * For tensors that a kernel cannot take as they lie in memory. Written copies
 * go back only after the kernel succeeded. On a GPU all of it is enqueued on the stream
 * of the caller. */

/* A small copy for a function in C, which sees it during the call alone, lies in the
 * stage itself. */
enum { SMALL_BYTES = 256, SMALL_NDIM = 8, SMALL_ALIGNMENT = 64 };

typedef struct {
    int32_t index; /* in the frame */
    uint64_t flags;
    DLTensor original, copy;
    dlb_access *access;           /* of the original, or NULL */
    dlb_buffer *memory, *strides; /* of the copy; NULL: these two, or none yet */
    int64_t small_strides[SMALL_NDIM];
    _Alignas(SMALL_ALIGNMENT) char small[SMALL_BYTES];
} stage;

static dlb_buffer *allocate(const dlb_kernel *kernel, DLDevice device, int64_t nbytes) {
    size_t alignment = kernel->alignment > 64 ? kernel->alignment : 64;
    return dlb_is_cuda(device) ? dlb_cuda_allocate(device, nbytes)
                               : dlb_buffer_allocate(nbytes, alignment, false);
}

static bool is_small(const dlb_kernel *kernel, const DLTensor *copy, int64_t nbytes) {
    return !kernel->needs_gil && !dlb_is_cuda(copy->device) && nbytes <= SMALL_BYTES &&
           copy->ndim <= SMALL_NDIM && kernel->alignment <= SMALL_ALIGNMENT;
}

/* Elements as the kernel wants them: packed, row-major, aligned. */
static int make_copy(const dlb_kernel *kernel, dlb_frame *frame, stage *staged) {
    DLTensor *copy = &staged->copy;
    int64_t nbytes =
        dlb_packed_bytes(copy->dtype, 0, dlb_element_count(&staged->original));
    if (!dlb_is_cuda(copy->device))
        copy->device = (DLDevice){kDLCPU, 0};
    if (is_small(kernel, copy, nbytes)) {
        copy->data = staged->small;
        copy->strides = staged->small_strides;
    } else {
        staged->strides =
            dlb_buffer_allocate((int64_t)sizeof(int64_t) * copy->ndim, 8, false);
        staged->memory =
            staged->strides ? allocate(kernel, copy->device, nbytes) : NULL;
        if (staged->memory == NULL)
            return dlb_frame_fail(frame, DLB_ERROR_MEMORY,
                                  "%s: no memory for a copy of tensor %d on its device",
                                  kernel->name, (int)staged->index);
        copy->data = staged->memory->data;
        copy->strides = staged->strides->data;
    }
    dlb_row_major_strides(copy->ndim, copy->shape, copy->strides);
    return dlb_is_aligned(kernel, (uintptr_t)copy->data)
               ? 0
               : dlb_frame_refuse(kernel, frame, staged->index, "alignment", -1);
}

static int copy_elements(const dlb_kernel *kernel, dlb_frame *frame,
                         const dlb_cuda_operand *to, const dlb_cuda_operand *from) {
    if (!dlb_is_cuda(to->dl->device)) {
        dlb_copy(to->dl, to->flags, from->dl, from->flags);
        return 0;
    }
    return dlb_cuda_copy(to, from) < 0 ? dlb_frame_fail_cuda(kernel, frame) : 0;
}

/* Of the copy, or NULL. */
static dlb_access *access_of(const stage *staged) {
    return staged->memory ? staged->memory->access : NULL;
}

static dlb_cuda_operand copy_of(const stage *staged) {
    return (dlb_cuda_operand){&staged->copy, 0, access_of(staged)};
}

static dlb_cuda_operand original_of(const stage *staged) {
    return (dlb_cuda_operand){&staged->original, staged->flags, staged->access};
}

static void replace(dlb_frame *frame, const stage *staged, const DLTensor *tensor,
                    uint64_t flags, dlb_access *access) {
    frame->tensors[staged->index] = *tensor;
    frame->flags[staged->index] = flags;
    frame->accesses[staged->index] = access;
    if (access != NULL)
        dlb_set_add(frame->watched, staged->index);
    else
        dlb_set_remove(frame->watched, staged->index);
}

/* Without a schema nobody said for sure what the kernel writes, and no device compares
 * afterwards. */
static bool is_possible(const dlb_kernel *kernel, DLDevice device) {
    return dlb_is_host(device) ||
           (dlb_is_cuda(device) && kernel->signature != NULL && dlb_cuda_get() != NULL);
}

static int stage_tensor(const dlb_kernel *kernel, dlb_frame *frame, int32_t index,
                        stage *staged) {
    DLTensor *tensor = &frame->tensors[index];
    bool is_watched = dlb_set_has(frame->watched, index);
    staged->index = index;
    staged->flags = frame->flags[index] &= ~STAGED;
    staged->original = staged->copy = *tensor;
    staged->access = is_watched ? frame->accesses[index] : NULL;
    staged->memory = staged->strides = NULL;
    if (!is_possible(kernel, tensor->device))
        return dlb_frame_refuse(kernel, frame, index,
                                dlb_is_row_major(tensor) ? "alignment" : "strides", -1);
    if (make_copy(kernel, frame, staged) < 0)
        return -1;
    const dlb_cuda_operand copy = copy_of(staged), original = original_of(staged);
    if (index < frame->input_count &&
        copy_elements(kernel, frame, &copy, &original) < 0)
        return -1;
    replace(frame, staged, &staged->copy, 0, access_of(staged));
    return 0;
}

/* The frame is as it was before. */
static int unstage(const dlb_kernel *kernel, dlb_frame *frame, const stage *staged,
                   bool copy_back) {
    int status = 0;
    if (copy_back) {
        const dlb_cuda_operand copy = copy_of(staged), original = original_of(staged);
        status = copy_elements(kernel, frame, &original, &copy);
    }
    replace(frame, staged, &staged->original, staged->flags, staged->access);
    if (staged->memory != NULL)
        dlb_buffer_drop(staged->memory);
    if (staged->strides != NULL)
        dlb_buffer_drop(staged->strides);
    return status;
}

/* Whether the copy of an input has other values than the input by now. */
static bool has_changed(const stage *staged) {
    DLTensor again = staged->copy;
    int64_t nbytes = dlb_packed_bytes(again.dtype, 0, dlb_element_count(&again));
    dlb_buffer *memory = dlb_buffer_allocate(nbytes, 64, true);
    if (memory == NULL)
        return true;
    again.data = memory->data;
    dlb_copy(&again, 0, &staged->original, staged->flags);
    bool differs = memcmp(again.data, staged->copy.data, (size_t)nbytes) != 0;
    dlb_buffer_drop(memory);
    return differs;
}

/* Without a schema nobody said for sure what the kernel writes: a write into a copy
 * must not get lost. */
static bool must_go_back(const dlb_kernel *kernel, const dlb_frame *frame,
                         const stage *staged) {
    if (dlb_set_has(frame->written, staged->index))
        return true;
    return kernel->writes_last && !(staged->flags & DLPACK_FLAG_BITMASK_READ_ONLY) &&
           has_changed(staged);
}

/* Copies of `count` tensors, which are the first of `stages` in the end. Returns how
 * many there are by then, with `status`. */
static int stage_all(const dlb_kernel *kernel, dlb_frame *frame, stage *stages,
                     int *status) {
    int count = 0;
    for (int32_t i = 0; i < frame->tensor_count && *status == 0; i++)
        if (frame->flags[i] & STAGED)
            *status = stage_tensor(kernel, frame, i, &stages[count++]);
    return count;
}

static int run_with_copies(const dlb_kernel *kernel, const dlb_target *target,
                           dlb_frame *frame, stage *stages) {
    int status = 0;
    int count = stage_all(kernel, frame, stages, &status);
    if (status == 0)
        status = dlb_frame_invoke(kernel, target, frame);
    for (int i = 0; i < count; i++) {
        bool copy_back = status == 0 && must_go_back(kernel, frame, &stages[i]);
        if (unstage(kernel, frame, &stages[i], copy_back) < 0)
            status = -1;
    }
    return status;
}

/* Copies work on the current stream of dlbridge: the caller's, for as long. */
static int run_on_stream(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, stage *stages, DLDevice device) {
    if (!dlb_is_cuda(device) || frame->stream == NULL)
        return run_with_copies(kernel, target, frame, stages);
    dlb_stream before =
        dlb_cuda_set_current_stream(device.device_id, (dlb_stream)frame->stream);
    int status = run_with_copies(kernel, target, frame, stages);
    dlb_cuda_set_current_stream(device.device_id, before);
    return status;
}

/* `objects`: room for one of each tensor. Copies have none: the objects of the frame do
 * not have their memory. */
static int run_hidden(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, stage *stages, void **objects,
                      DLDevice device) {
    void *const *own = frame->objects;
    for (int32_t i = 0; own != NULL && i < frame->tensor_count; i++) {
        objects[i] = frame->flags[i] & STAGED ? NULL : own[i];
    }
    frame->objects = own ? objects : NULL;
    int status = run_on_stream(kernel, target, frame, stages, device);
    frame->objects = own;
    return status;
}

__attribute__((noinline)) static int run_few_staged(const dlb_kernel *kernel,
                                                    const dlb_target *target,
                                                    dlb_frame *frame, DLDevice device) {
    stage stages[DLB_MAX_TENSORS];
    void *objects[DLB_MAX_TENSORS];
    return run_hidden(kernel, target, frame, stages, objects, device);
}

static int run_staged(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, int staged, DLDevice device) {
    if (frame->tensor_count <= DLB_MAX_TENSORS)
        return run_few_staged(kernel, target, frame, device);
    size_t count = (size_t)frame->tensor_count;
    void **objects = malloc(count * sizeof *objects);
    stage *stages = aligned_alloc(_Alignof(stage), (size_t)staged * sizeof *stages);
    int status =
        objects == NULL || stages == NULL
            ? dlb_frame_fail(frame, DLB_ERROR_MEMORY, "%s: out of memory", kernel->name)
            : run_hidden(kernel, target, frame, stages, objects, device);
    free(stages);
    free(objects);
    return status;
}

/* ---- the run ---- */

static const dlb_target *find_target(const dlb_kernel *kernel, DLDeviceType type) {
    for (int32_t i = 0; i < kernel->target_count; i++)
        if (kernel->targets[i].device_type == type)
            return &kernel->targets[i];
    return NULL;
}

const dlb_target *dlb_kernel_target(const dlb_kernel *kernel, DLDevice device) {
    const dlb_target *target = find_target(kernel, device.device_type);
    if (target == NULL && dlb_is_host(device))
        return find_target(kernel, kDLCPU);
    return target == NULL && dlb_is_cuda(device) ? find_target(kernel, kDLCUDA)
                                                 : target;
}

/* Where the call runs: with the first tensor, or without tensors where it can. */
static DLDevice find_device(const dlb_kernel *kernel, const dlb_frame *frame) {
    const DLTensor *first = find_first(frame);
    return first ? first->device : (DLDevice){kernel->targets[0].device_type, 0};
}

static int fail_without_target(const dlb_kernel *kernel, dlb_frame *frame) {
    const DLTensor *tensor = find_first(frame);
    if (kernel->target_count == 0 || tensor == NULL)
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: the kernel is gone",
                              kernel->name);
    return dlb_frame_refuse(kernel, frame, (int)(tensor - frame->tensors), "device",
                            -1);
}

int dlb_frame_run(const dlb_kernel *kernel, dlb_frame *frame) {
    if (kernel->signature != NULL && check_result_count(kernel, frame) < 0)
        return -1;
    DLDevice device = find_device(kernel, frame);
    const dlb_target *target = dlb_kernel_target(kernel, device);
    if (target == NULL)
        return fail_without_target(kernel, frame);
    dlb_mark_written(kernel, frame);
    int staged = check(kernel, frame, device);
    if (staged != 0)
        return staged < 0 ? -1 : run_staged(kernel, target, frame, staged, device);
    return dlb_frame_invoke(kernel, target, frame);
}

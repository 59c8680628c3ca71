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
#define BIT(i) (UINT32_C(1) << (i))

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

/* Kernels see no flags, so that elements padded to bytes would be taken for packed. */
static inline bool needs_copy(const dlb_kernel *kernel, const DLTensor *tensor,
                              uint64_t flags, bool is_row_major) {
    return (kernel->contiguous && !is_row_major) ||
           !dlb_is_aligned(kernel, (uintptr_t)tensor->data) ||
           ((flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) &&
            tensor->dtype.bits % 8 != 0);
}

static inline int check_overlap(const dlb_kernel *kernel, dlb_frame *frame,
                                int32_t index, uint32_t written,
                                const dlb_span *spans) {
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        if (!dlb_spans_meet(spans[i], spans[index]))
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
                         const dlb_span *spans, uint32_t row_major) {
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

static int check_all(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device,
                     uint32_t written, uint32_t *staged) {
    dlb_span spans[DLB_MAX_TENSORS];
    uint32_t row_major = 0;
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
    dlb_span spans[DLB_MAX_TENSORS];
    uintptr_t flags = 0, addresses = 0, has_fault = 0;
    for (int32_t i = 0; i < frame->tensor_count; i++) {
        const DLTensor *tensor = &frame->tensors[i];
        uint64_t count = 1; /* which may wrap, but not where the strides are as here */
        for (int32_t k = tensor->ndim - 1; k >= 0; k--) {
            has_fault |=
                ((uint64_t)tensor->strides[k] != count) & (tensor->shape[k] != 1);
            count *= (uint64_t)tensor->shape[k];
        }
        flags |= frame->flags[i] & ~((written >> i & 1) ? 0 : READ_ONLY);
        addresses |= (uintptr_t)tensor->data;
        has_fault |= (tensor->ndim < 0) | (tensor->data == NULL) |
                     (tensor->device.device_type != device.device_type) |
                     (tensor->device.device_id != device.device_id);
        count *= (uint64_t)tensor->dtype.bits * tensor->dtype.lanes;
        spans[i].low = (uintptr_t)tensor->data;
        spans[i].high = spans[i].low + (uintptr_t)((count + 7) >> 3);
    }
    return !(has_fault | flags) && dlb_is_aligned(kernel, addresses) &&
           dlb_spans_are_apart(kernel, spans, frame->tensor_count, written);
}

/* Devices, NULL data, read-only memory and overlap. `staged` gets a bit for each tensor
 * that the kernel cannot take as it lies in memory. */
static int check(const dlb_kernel *kernel, dlb_frame *frame, DLDevice device,
                 uint32_t written, uint32_t *staged) {
    return is_plain(kernel, frame, device, written)
               ? 0
               : check_all(kernel, frame, device, written, staged);
}

/* ---- the call, without checks ---- */

static const DLTensor *find_first(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return &frame->tensors[i];
    return NULL;
}

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
    int status = target->invoke(kernel, target, frame, &context);
    if (status == 0)
        return 0;
    if (frame->error.kind != DLB_ERROR_NONE)
        return -1;
    text[sizeof text - 1] = 0;
    return fail_with_status(kernel, frame, status, text);
}

/* Tensors of other frameworks are ready on the stream of the caller, and stay its own.
 */
static int order_tensors(const dlb_frame *frame, dlb_stream stream) {
    for (uint32_t left = frame->watched; left != 0; left &= left - 1) {
        int32_t i = __builtin_ctz(left);
        int status = frame->written >> i & 1
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
                !(frame->bindings.has_name & BIT(kernel->cost[i].value)))
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
    uint32_t bit = UINT32_C(1) << staged->index;
    frame->tensors[staged->index] = *tensor;
    frame->flags[staged->index] = flags;
    frame->accesses[staged->index] = access;
    frame->watched = access ? frame->watched | bit : frame->watched & ~bit;
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
    bool is_watched = frame->watched >> index & 1;
    staged->index = index;
    staged->flags = frame->flags[index];
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
static bool must_go_back(const dlb_kernel *kernel, const stage *staged,
                         uint32_t written) {
    if (written >> staged->index & 1)
        return true;
    return kernel->writes_last && !(staged->flags & DLPACK_FLAG_BITMASK_READ_ONLY) &&
           has_changed(staged);
}

/* The objects of the frame, but none for copies: they do not have their memory. */
static void hide_objects(const dlb_frame *frame, uint32_t staged, void **objects) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        objects[i] = staged >> i & 1 ? NULL : frame->objects[i];
}

static int run_with_copies(const dlb_kernel *kernel, const dlb_target *target,
                           dlb_frame *frame, uint32_t written, uint32_t staged) {
    stage stages[DLB_MAX_TENSORS];
    int32_t count = 0;
    int status = 0;
    for (int32_t i = 0; i < frame->tensor_count && status == 0; i++)
        if (staged >> i & 1)
            status = stage_tensor(kernel, frame, i, &stages[count++]);
    if (status == 0)
        status = dlb_frame_invoke(kernel, target, frame);
    for (int32_t i = 0; i < count; i++) {
        bool copy_back = status == 0 && must_go_back(kernel, &stages[i], written);
        if (unstage(kernel, frame, &stages[i], copy_back) < 0)
            status = -1;
    }
    return status;
}

/* Copies work on the current stream of dlbridge: the caller's, for as long. */
static int run_on_stream(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, uint32_t written, uint32_t staged) {
    DLDevice device = frame->tensors[__builtin_ctz(staged)].device;
    if (!dlb_is_cuda(device) || frame->stream == NULL)
        return run_with_copies(kernel, target, frame, written, staged);
    dlb_stream before =
        dlb_cuda_set_current_stream(device.device_id, (dlb_stream)frame->stream);
    int status = run_with_copies(kernel, target, frame, written, staged);
    dlb_cuda_set_current_stream(device.device_id, before);
    return status;
}

static int run_staged(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, uint32_t written, uint32_t staged) {
    void *objects[DLB_MAX_TENSORS], *const *own = frame->objects;
    if (own != NULL) {
        hide_objects(frame, staged, objects);
        frame->objects = objects;
    }
    int status = run_on_stream(kernel, target, frame, written, staged);
    frame->objects = own;
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
    uint32_t written = dlb_written_tensors(kernel, frame), staged = 0;
    frame->written = written;
    if (check(kernel, frame, device, written, &staged) < 0)
        return -1;
    if (staged != 0)
        return run_staged(kernel, target, frame, written, staged);
    return dlb_frame_invoke(kernel, target, frame);
}

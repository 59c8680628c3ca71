/* A call like the one before: contiguous tensors of the same shapes and dtypes, and the
 * same scalars where they are dimensions. What the signature said then still holds, so
 * only the memory is looked at: where it is,
 * that it may be written, that nothing overlaps. Whatever is different takes the
 * general path, and is what the next call is compared with. */
#include "call.h"

#include <string.h>

typedef struct {
    uintptr_t low, high;
} span;

static bool matches(const dlb_remembered *known, const DLTensor *tensor) {
    if (tensor->ndim != known->ndim ||
        dlb_dtype_key(tensor->dtype) != dlb_dtype_key(known->dtype))
        return false;
    int64_t count = 1;
    for (int32_t i = known->ndim - 1; i >= 0; i--) {
        if (tensor->shape[i] != known->shape[i] ||
            (tensor->strides[i] != count && known->shape[i] != 1))
            return false;
        count *= known->shape[i];
    }
    return true;
}

static bool recall_one(dlb_call *call, const dlb_remembered *known, int index,
                       PyObject *x, bool is_written, span *reach) {
    DLTensor *tensor = &call->frame.tensors[index];
    call->objects[index] = x;
    call->frame.flags[index] = 0;
    if (call->family == DLB_FAMILY_NUMPY) {
        if (!dlb_recall_numpy(x, known, is_written, tensor,
                              call->dims + index * DLB_RECALL_NDIM))
            return false;
    } else if (!dlb_torch_is_exact(x) ||
               !dlb_torch_is_ordinary(x, call->thread, is_written) ||
               dlb_torch_borrow(x, tensor) != 0 || !matches(known, tensor) ||
               !dlb_torch_has_memory(x, tensor)) {
        return false;
    }
    reach->low = (uintptr_t)tensor->data;
    reach->high = reach->low + known->nbytes;
    return reach->low != 0;
}

static bool is_apart(const dlb_kernel *kernel, const span *spans, int32_t count,
                     uint32_t written) {
    uintptr_t addresses = 0;
    for (int32_t i = 0; i < count; i++)
        addresses |= spans[i].low;
    if (addresses & (kernel->alignment - 1))
        return false;
    for (; written != 0 && !kernel->may_overlap; written &= written - 1) {
        const span *place = &spans[__builtin_ctz(written)];
        for (int32_t i = 0; i < count; i++)
            if (spans[i].low < place->high && place->low < spans[i].high &&
                place != &spans[i])
                return false;
    }
    return true;
}

/* New results; allocating may run other Python code, which may call this very kernel
 * and change what is remembered: hence the copy. */
static bool recall_new(dlb_call *call, const dlb_memory *memory, span *spans) {
    dlb_remembered known[DLB_RECALL_TENSORS];
    int32_t first = memory->input_count, count = memory->result_count;
    memcpy(known, memory->tensors + first, (size_t)count * sizeof *known);
    for (int32_t i = 0; i < count; i++) {
        PyObject *made = dlb_call_allocate(call->family, known[i].ndim, known[i].shape,
                                           known[i].dtype);
        if (made == NULL) {
            PyErr_Clear(); /* the general path meets it again */
            return false;
        }
        bool fits =
            recall_one(call, &known[i], first + i, made, true, &spans[first + i]);
        call->made_count++;
        if (!fits)
            return false;
    }
    return true;
}

static bool recall_all(const dlb_kernel *kernel, const dlb_memory *memory,
                       dlb_call *call, PyObject *const *tensors, PyObject *out) {
    span spans[DLB_RECALL_TENSORS];
    int32_t inputs = memory->input_count, count = inputs + memory->result_count;
    uint32_t written = memory->written;
    for (int32_t i = 0; i < inputs; i++)
        if (!recall_one(call, &memory->tensors[i], i, tensors[i], written >> i & 1,
                        &spans[i]))
            return false;
    for (int32_t i = inputs; out != NULL && i < count; i++) {
        PyObject *given = dlb_call_out_item(out, memory->result_count, i - inputs);
        if (given == NULL ||
            !recall_one(call, &memory->tensors[i], i, given, true, &spans[i]))
            return false;
    }
    call->frame.input_count = inputs;
    call->frame.tensor_count = count;
    if (out == NULL && inputs < count && !recall_new(call, memory, spans))
        return false;
    return is_apart(kernel, spans, count, written);
}

static bool has_same_sizes(const dlb_signature *signature, const dlb_memory *memory,
                           const dlb_scalar *scalars) {
    for (int32_t i = 0; signature->has_sizes && i < signature->scalar_count; i++)
        if (signature->scalars[i].name >= 0 && scalars[i].value.i != memory->sizes[i])
            return false;
    return true;
}

bool dlb_recall(const dlb_kernel *kernel, const dlb_memory *memory, dlb_call *call,
                PyObject *const *tensors, PyObject *out) {
    if (memory->family == DLB_FAMILY_NONE ||
        (call->wanted != DLB_FAMILY_NONE && call->wanted != memory->family) ||
        !has_same_sizes(kernel->signature, memory, call->frame.scalars))
        return false;
    call->family = memory->family;
    if (call->family == DLB_FAMILY_TORCH)
        call->thread = dlb_torch_thread_state();
    if (recall_all(kernel, memory, call, tensors, out)) {
        call->target = memory->target;
        return true;
    }
    if (call->made_count > 0)
        dlb_call_drop_results(call);
    call->family = DLB_FAMILY_NONE;
    return false;
}

/* ---- what to remember ---- */

static const dlb_target *find_host_target(const dlb_kernel *kernel) {
    for (int32_t i = 0; i < kernel->target_count; i++)
        if (kernel->targets[i].device_type == kDLCPU)
            return &kernel->targets[i];
    return NULL;
}

static bool remember_one(dlb_remembered *known, const DLTensor *tensor) {
    if (tensor->ndim < 0 || tensor->ndim > DLB_RECALL_NDIM ||
        tensor->device.device_type != kDLCPU)
        return false;
    known->dtype = tensor->dtype;
    known->ndim = tensor->ndim;
    memcpy(known->shape, tensor->shape, (size_t)tensor->ndim * sizeof *known->shape);
    known->nbytes =
        (uint64_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    return known->nbytes > 0;
}

void dlb_remember(const dlb_kernel *kernel, dlb_memory *memory, const dlb_call *call,
                  uint32_t written) {
    const dlb_frame *frame = &call->frame;
    int32_t count = frame->tensor_count;
    memory->family = DLB_FAMILY_NONE;
    if (count > DLB_RECALL_TENSORS ||
        (call->family != DLB_FAMILY_NUMPY && call->family != DLB_FAMILY_TORCH))
        return;
    memory->target = find_host_target(kernel);
    for (int32_t i = 0; i < count; i++)
        if (!remember_one(&memory->tensors[i], &frame->tensors[i]) ||
            (call->family == DLB_FAMILY_NUMPY &&
             !dlb_remember_numpy(call->objects[i], &memory->tensors[i])))
            return;
    for (int32_t i = 0; i < frame->scalar_count; i++)
        memory->sizes[i] = frame->scalars[i].value.i;
    memory->input_count = frame->input_count;
    memory->result_count = count - frame->input_count;
    memory->written =
        written | (((UINT32_C(1) << memory->result_count) - 1) << frame->input_count);
    if (memory->target != NULL)
        memory->family = call->family;
}

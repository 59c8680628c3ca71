/* A call like the one before: contiguous tensors of the same shapes and dtypes, and the
 * same scalars where they are dimensions. What the signature said then still holds, so
 * only the memory is looked at: where it is,
 * that it may be written, that nothing overlaps. Whatever is different takes the
 * general path, and is what the next call is compared with. */
#include "call/call.h"
#include "layout/layout.h"

#include <string.h>

static bool same_device(DLDevice a, DLDevice b) {
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

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

static bool recall_torch(dlb_call *call, const dlb_memory *memory, int32_t first,
                         int32_t count) {
    const dlb_remembered *known = memory->tensors + first;
    for (int32_t i = first; i < first + count; i++, known++) {
        PyObject *x = call->objects[i];
        DLTensor *tensor = &call->frame.tensors[i];
        if (!dlb_torch_is_exact(x) ||
            !dlb_torch_is_ordinary(x, call->thread, memory->written >> i & 1) ||
            dlb_torch_borrow(x, tensor) != 0 || !matches(known, tensor) ||
            !same_device(tensor->device, memory->device) || tensor->data == NULL ||
            !dlb_torch_has_memory(x, tensor))
            return false;
        call->frame.flags[i] = 0;
        call->addresses |= (uintptr_t)tensor->data;
    }
    return true;
}

static bool recall_cupy(dlb_call *call, const dlb_memory *memory, int32_t first,
                        int32_t count) {
    const dlb_remembered *known = memory->tensors + first;
    for (int32_t i = first; i < first + count; i++, known++) {
        const DLTensor *tensor = &call->frame.tensors[i];
        if (dlb_borrow_cupy(call, i, call->objects[i]) != 0 ||
            !matches(known, tensor) || !same_device(tensor->device, memory->device) ||
            tensor->data == NULL)
            return false;
        call->addresses |= (uintptr_t)tensor->data;
    }
    return true;
}

static bool recall_own(dlb_call *call, const dlb_memory *memory, int32_t first,
                       int32_t count) {
    const dlb_remembered *known = memory->tensors + first;
    for (int32_t i = first; i < first + count; i++, known++) {
        PyObject *x = call->objects[i];
        const DLTensor *tensor = &call->frame.tensors[i];
        if (!dlb_is_tensor(x))
            return false;
        dlb_frame_put(&call->frame, i, (const dlb_tensor *)x);
        uint64_t allowed =
            memory->written >> i & 1 ? 0 : (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
        if (!matches(known, tensor) || !same_device(tensor->device, memory->device) ||
            tensor->data == NULL || (call->frame.flags[i] & ~allowed))
            return false;
        call->addresses |= (uintptr_t)tensor->data;
    }
    return true;
}

/* Objects `first` and following. */
static bool recall_some(dlb_call *call, const dlb_memory *memory, int32_t first,
                        int32_t count) {
    const dlb_remembered *known = memory->tensors + first;
    if (call->family == DLB_FAMILY_NUMPY)
        return dlb_recall_numpy(call, known, first, count, memory->written);
    if (call->family == DLB_FAMILY_OWN)
        return recall_own(call, memory, first, count);
    if (call->family == DLB_FAMILY_CUPY)
        return recall_cupy(call, memory, first, count);
    return call->family == DLB_FAMILY_TORCH ? recall_torch(call, memory, first, count)
                                            : dlb_recall_jax(call, known, count);
}

/* All addresses are as the kernel wants them, and nothing that is written overlaps. */
static bool is_apart(const dlb_kernel *kernel, const dlb_memory *memory,
                     const dlb_call *call) {
    const DLTensor *tensors = call->frame.tensors;
    int32_t count = memory->input_count + memory->result_count;
    if (call->addresses & (kernel->alignment - 1))
        return false;
    uint32_t written = kernel->may_overlap ? 0 : memory->written;
    for (; written != 0; written &= written - 1) {
        int32_t place = __builtin_ctz(written);
        uintptr_t low = (uintptr_t)tensors[place].data;
        uintptr_t high = low + memory->tensors[place].nbytes;
        for (int32_t i = 0; i < count; i++) {
            uintptr_t other = (uintptr_t)tensors[i].data;
            if (other < high && low < other + memory->tensors[i].nbytes && i != place)
                return false;
        }
    }
    return true;
}

static bool recall_new(dlb_call *call, const dlb_memory *memory) {
    int32_t first = memory->input_count;
    for (int32_t i = first; i < first + memory->result_count; i++) {
        const dlb_remembered *known = &memory->tensors[i];
        PyObject *made = dlb_call_allocate(call->family, known->ndim, known->shape,
                                           known->dtype, memory->device);
        if (made == NULL)
            return false;
        call->objects[i] = made;
        call->made_count++;
    }
    return recall_some(call, memory, first, memory->result_count);
}

static bool recall_given(dlb_call *call, const dlb_memory *memory, PyObject *out) {
    int32_t first = memory->input_count, count = memory->result_count;
    for (int32_t i = 0; i < count; i++) {
        call->objects[first + i] = dlb_call_out_item(out, count, i);
        if (call->objects[first + i] == NULL)
            return false;
    }
    return recall_some(call, memory, first, count);
}

static bool recall_all(const dlb_kernel *kernel, const dlb_memory *memory,
                       dlb_call *call, PyObject *const *tensors, PyObject *out) {
    int32_t inputs = memory->input_count;
    memcpy(call->objects, tensors, (size_t)inputs * sizeof *tensors);
    call->addresses = 0;
    call->frame.input_count = inputs;
    call->frame.tensor_count = inputs + memory->result_count;
    if (!recall_some(call, memory, 0, inputs))
        return false;
    if (memory->result_count > 0 &&
        !(out ? recall_given(call, memory, out) : recall_new(call, memory)))
        return false;
    return is_apart(kernel, memory, call);
}

static bool has_same_sizes(const dlb_signature *signature, const dlb_memory *memory,
                           const dlb_scalar *scalars) {
    for (int32_t i = 0; signature->has_sizes && i < signature->scalar_count; i++)
        if (signature->scalars[i].name >= 0 && scalars[i].value.i != memory->sizes[i])
            return false;
    return true;
}

static bool recall(const dlb_kernel *kernel, const dlb_memory *memory, dlb_call *call,
                   PyObject *const *tensors, PyObject *out) {
    call->family = memory->family;
    if (call->family == DLB_FAMILY_TORCH)
        call->thread = dlb_torch_thread_state();
    if (recall_all(kernel, memory, call, tensors, out)) {
        call->target = memory->target;
        call->frame.written = memory->written;
        return true;
    }
    PyErr_Clear(); /* the general path meets it again */
    dlb_call_drop_results(call);
    dlb_call_give_back(call);
    call->family = DLB_FAMILY_NONE;
    call->dim_count = 0;
    call->frame.watched = 0;
    call->frame.stream = NULL;
    return false;
}

bool dlb_recall(const dlb_kernel *kernel, const dlb_memory *memory, dlb_call *call,
                PyObject *const *tensors, PyObject *out) {
    if (memory->family == DLB_FAMILY_NONE ||
        (call->wanted != DLB_FAMILY_NONE && call->wanted != memory->family) ||
        !has_same_sizes(kernel->signature, memory, call->frame.scalars))
        return false;
    bool may_run_python = memory->family == DLB_FAMILY_JAX ||
                          memory->family == DLB_FAMILY_CUPY ||
                          (memory->result_count > 0 && out == NULL);
    if (!may_run_python)
        return recall(kernel, memory, call, tensors, out);
    /* Lending a buffer lets other threads run, and allocating other code: either may
     * call this very kernel, and change what is remembered. */
    dlb_memory before = *memory;
    return recall(kernel, &before, call, tensors, out);
}

/* ---- what to remember ---- */

static bool remember_one(dlb_remembered *known, const DLTensor *tensor,
                         DLDevice device) {
    if (tensor->ndim < 0 || tensor->ndim > DLB_RECALL_NDIM ||
        !same_device(tensor->device, device))
        return false;
    known->dtype = tensor->dtype;
    known->ndim = tensor->ndim;
    for (int32_t i = 0; i < tensor->ndim; i++) /* `shape` may be NULL for none */
        known->shape[i] = tensor->shape[i];
    known->nbytes =
        (uint64_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    return known->nbytes > 0;
}

static bool remember_own(dlb_remembered *known, const dlb_call *call, int32_t index) {
    switch (call->family) {
    case DLB_FAMILY_NUMPY:
        return dlb_remember_numpy(call->objects[index], known);
    case DLB_FAMILY_JAX:
        return dlb_remember_jax(call, index, known);
    default:
        return true;
    }
}

void dlb_remember(const dlb_kernel *kernel, dlb_memory *memory, const dlb_call *call,
                  uint32_t written) {
    const dlb_frame *frame = &call->frame;
    int32_t count = frame->tensor_count;
    memory->family = DLB_FAMILY_NONE;
    if (count == 0 || count > DLB_RECALL_TENSORS)
        return;
    memory->device = frame->tensors[0].device;
    memory->target = dlb_kernel_target(kernel, memory->device);
    for (int32_t i = 0; i < count; i++)
        if (!remember_one(&memory->tensors[i], &frame->tensors[i], memory->device) ||
            !remember_own(&memory->tensors[i], call, i))
            return;
    for (int32_t i = 0; i < frame->scalar_count; i++)
        memory->sizes[i] = frame->scalars[i].value.i;
    memory->input_count = frame->input_count;
    memory->result_count = count - frame->input_count;
    memory->written =
        written | (((UINT32_C(1) << memory->result_count) - 1) << frame->input_count);
    memory->family = call->family;
}

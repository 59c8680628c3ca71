/* Objects of the frameworks as tensors of one call: their memory is lent, not shared.
 * The caller's references keep it for as long as the call lasts. */
#include "call/call.h"
#include "exchange/exchange.h"

#include <string.h>

static PyTypeObject *jax_array; /* jaxlib's ArrayImpl; NULL: not met yet */

/* jax_direct_open(ArrayImpl): the adapter vouches for its buffer protocol. */
PyObject *dlb_jax_direct_open(PyObject *Py_UNUSED(module), PyObject *type) {
    Py_XSETREF(jax_array, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

/* ---- one family each ---- */

static int borrow_numpy(dlb_call *call, int index, PyObject *x) {
    dlb_frame *frame = &call->frame;
    DLTensor *tensor = &frame->tensors[index];
    if (dlb_borrow_numpy(x, tensor, &frame->flags[index], call->dims + call->dim_count,
                         DLB_CALL_DIMS - call->dim_count) != 0)
        return DLB_DECLINED;
    call->dim_count += tensor->ndim;
    return 0;
}

static int borrow_torch(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    if (!dlb_torch_is_exact(x) || !dlb_torch_is_ordinary(x, call->thread, false))
        return DLB_DECLINED;
    call->frame.flags[index] = 0;
    return dlb_torch_borrow(x, tensor) == 0 && dlb_torch_has_memory(x, tensor)
               ? 0
               : DLB_DECLINED;
}

static int borrow_own(dlb_call *call, int index, PyObject *x) {
    if (!dlb_is_tensor(x))
        return DLB_DECLINED;
    dlb_frame_put(&call->frame, index, (const dlb_tensor *)x);
    return 0;
}

/* Row-major arrays only: jaxlib takes a quarter longer to tell strides. */
static Py_buffer *lend_buffer(dlb_call *call, PyObject *x) {
    dlb_loan *loan = &call->loans[call->loan_count];
    if (PyObject_GetBuffer(x, &loan->memory.protocol, PyBUF_ND | PyBUF_FORMAT) < 0)
        return NULL;
    loan->is_buffer = true;
    call->loan_count++;
    return &loan->memory.protocol;
}

static void fill_from_buffer(dlb_call *call, int index, const Py_buffer *buffer) {
    DLTensor *tensor = &call->frame.tensors[index];
    call->frame.flags[index] = DLPACK_FLAG_BITMASK_READ_ONLY;
    tensor->data = buffer->buf;
    tensor->device = (DLDevice){kDLCPU, 0};
    tensor->ndim = buffer->ndim;
    tensor->shape = (int64_t *)buffer->shape;
    tensor->strides = call->dims + call->dim_count;
    tensor->byte_offset = 0;
    dlb_row_major_strides(tensor->ndim, tensor->shape, tensor->strides);
    call->dim_count += tensor->ndim;
}

static int borrow_buffer(dlb_call *call, int index, PyObject *x) {
    const Py_buffer *buffer = lend_buffer(call, x);
    DLDataType *dtype = &call->frame.tensors[index].dtype;
    if (buffer == NULL)
        return -1;
    if (dlb_buffer_format(buffer->format, buffer->itemsize, dtype) < 0 ||
        call->dim_count + buffer->ndim > DLB_CALL_DIMS)
        return DLB_DECLINED;
    fill_from_buffer(call, index, buffer);
    return 0;
}

static int keep_dims(dlb_call *call, const DLTensor *from, DLTensor *tensor) {
    size_t bytes = (size_t)from->ndim * sizeof *from->shape;
    if (call->dim_count + 2 * from->ndim > DLB_CALL_DIMS)
        return DLB_DECLINED;
    *tensor = *from;
    tensor->shape = call->dims + call->dim_count;
    tensor->strides = tensor->shape + from->ndim;
    if (bytes > 0) { /* the pointers may be NULL */
        memcpy(tensor->shape, from->shape, bytes);
        memcpy(tensor->strides, from->strides, bytes);
    }
    call->dim_count += 2 * from->ndim;
    return 0;
}

/* For other layouts, and dtypes without a buffer format (bfloat16, float8): the way of
 * `from_dlpack`. */
static int borrow_view(dlb_call *call, int index, PyObject *x) {
    dlb_view view;
    dlb_loan *loan = &call->loans[call->loan_count];
    int status = dlb_take(x, &view);
    if (status != 0)
        return status;
    *loan = (dlb_loan){.is_buffer = false, .memory.core = view.buffer};
    call->loan_count++;
    call->frame.flags[index] = DLPACK_FLAG_BITMASK_READ_ONLY;
    return view.dl.device.device_type == kDLCPU
               ? keep_dims(call, &view.dl, &call->frame.tensors[index])
               : DLB_DECLINED;
}

static int borrow_jax(dlb_call *call, int index, PyObject *x) {
    if (Py_TYPE(x) != jax_array)
        return DLB_DECLINED;
    int status = borrow_buffer(call, index, x);
    if (status >= 0)
        return status;
    if (!PyErr_ExceptionMatches(PyExc_Exception))
        return -1;
    PyErr_Clear();
    return borrow_view(call, index, x);
}

/* ---- JAX arrays like those before; see recall.c ---- */

bool dlb_recall_jax(dlb_call *call, const dlb_remembered *known, int32_t count) {
    for (int32_t i = 0; i < count; i++, known++) {
        PyObject *x = call->objects[i];
        const Py_buffer *buffer = Py_TYPE(x) == jax_array ? lend_buffer(call, x) : NULL;
        if (buffer == NULL || buffer->format != known->descr ||
            buffer->ndim != known->ndim || buffer->buf == NULL)
            return false;
        for (int k = 0; k < known->ndim; k++)
            if (buffer->shape[k] != known->shape[k])
                return false;
        fill_from_buffer(call, i, buffer);
        call->frame.tensors[i].dtype = known->dtype;
        call->addresses |= (uintptr_t)buffer->buf;
    }
    return true;
}

/* jaxlib has one text for each format, which it never frees. */
bool dlb_remember_jax(const dlb_call *call, int32_t index, dlb_remembered *known) {
    bool is_lent =
        call->loan_count == call->frame.tensor_count && call->loans[index].is_buffer;
    known->descr = is_lent ? call->loans[index].memory.protocol.format : NULL;
    return known->descr != NULL;
}

/* ---- any family ---- */

/* A type that is not known yet may only not have been met: its adapter opens the guard
 * of torch, or the way of jax. Asked once, or once more after a clash. */
static int meet(PyTypeObject *type) {
    static const void *met[16];
    const void **slot = &met[((uintptr_t)type >> 4) % 16];
    if (*slot == type)
        return 0;
    *slot = type;
    return dlb_meet_type(type);
}

static dlb_family family_of(PyObject *x) {
    if (dlb_is_numpy(x))
        return DLB_FAMILY_NUMPY;
    if (dlb_torch_is_exact(x))
        return DLB_FAMILY_TORCH;
    if (Py_TYPE(x) == jax_array)
        return DLB_FAMILY_JAX;
    if (dlb_is_cupy(x))
        return DLB_FAMILY_CUPY;
    return dlb_is_tensor(x) ? DLB_FAMILY_OWN : DLB_FAMILY_NONE;
}

static const char *const sources[] = {
    [DLB_FAMILY_NONE] = NULL,
    [DLB_FAMILY_NUMPY] = "numpy.ndarray",
    [DLB_FAMILY_TORCH] = "torch.Tensor",
    [DLB_FAMILY_JAX] = "jax.Array",
    [DLB_FAMILY_OWN] = "dlbridge.Tensor",
    [DLB_FAMILY_CUPY] = "cupy.ndarray",
};

static int choose_family(dlb_call *call, PyObject *x) {
    dlb_family family = family_of(x);
    if (family == DLB_FAMILY_NONE) {
        if (meet(Py_TYPE(x)) < 0)
            return -1;
        family = family_of(x);
    }
    if (family == DLB_FAMILY_NONE ||
        (call->wanted != DLB_FAMILY_NONE && call->wanted != family))
        return DLB_DECLINED;
    call->family = family;
    call->frame.source = sources[family];
    if (family == DLB_FAMILY_TORCH)
        call->thread = dlb_torch_thread_state();
    return 0;
}

int dlb_borrow(dlb_call *call, int index, PyObject *x) {
    if (call->family == DLB_FAMILY_NONE) {
        int status = choose_family(call, x);
        if (status != 0)
            return status;
    }
    call->objects[index] = x;
    switch (call->family) {
    case DLB_FAMILY_NUMPY:
        return borrow_numpy(call, index, x);
    case DLB_FAMILY_TORCH:
        return borrow_torch(call, index, x);
    case DLB_FAMILY_JAX:
        return borrow_jax(call, index, x);
    case DLB_FAMILY_OWN:
        return borrow_own(call, index, x);
    case DLB_FAMILY_CUPY:
        return dlb_borrow_cupy(call, index, x);
    case DLB_FAMILY_NONE:
    case DLB_FAMILY_OTHER:
        break;
    }
    return DLB_DECLINED;
}

int dlb_borrow_to_write(const dlb_call *call, int index) {
    if (call->frame.tensors[index].ndim < 0)
        return 0;
    if (call->frame.flags[index] & DLPACK_FLAG_BITMASK_READ_ONLY)
        return DLB_DECLINED;
    if (call->family != DLB_FAMILY_TORCH)
        return 0;
    return dlb_torch_is_ordinary(call->objects[index], call->thread, true)
               ? 0
               : DLB_DECLINED;
}

void dlb_call_give_back(dlb_call *call) {
    for (int32_t i = 0; i < call->loan_count; i++) {
        dlb_loan *loan = &call->loans[i];
        if (loan->is_buffer)
            PyBuffer_Release(&loan->memory.protocol);
        else
            dlb_buffer_drop(loan->memory.core);
    }
    call->loan_count = 0;
}

/* jax.Array. */
#include "peers/borrowing.h"

/* jaxlib's capsules keep the Array, but not the buffer behind it: Array.delete ends the
 * process while such a capsule lives. What its buffer protocol gives, and its views for
 * NumPy, keep the buffer itself. */

/* The NumPy array over the memory of x, for dtypes without a buffer format; a new
 * reference. NULL without an exception: it would be a copy. */
static PyObject *view_by_method(PyObject *x, PyObject *method) {
    PyObject *answer = PyObject_CallMethodNoArgs(x, method), *array = NULL;
    if (answer == NULL)
        return NULL;
    if (PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2 &&
        PyTuple_GET_ITEM(answer, 1) == Py_False)
        array = Py_NewRef(PyTuple_GET_ITEM(answer, 0));
    Py_DECREF(answer);
    return array;
}

/* Row-major first: strides take jaxlib a quarter longer. */
static int take_jax_buffer(PyObject *x, dlb_view *view) {
    Py_buffer in;
    if (PyObject_GetBuffer(x, &in, PyBUF_ND | PyBUF_FORMAT) < 0) {
        if (dlb_clear_error() < 0)
            return -1;
        if (PyObject_GetBuffer(x, &in, PyBUF_FULL_RO) < 0)
            return -1;
    }
    view->dl = (DLTensor){.data = in.buf, .device = {kDLCPU, 0}, .ndim = in.ndim};
    view->dl.shape = (int64_t *)in.shape;
    view->dl.strides = view->scratch;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    if (in.ndim > DLB_MAX_NDIM ||
        dlb_buffer_format(in.format, in.itemsize, &view->dl.dtype) < 0 ||
        (in.strides != NULL && dlb_fill_from_buffer(&in, view) < 0)) {
        PyBuffer_Release(&in);
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    }
    if (in.strides == NULL)
        dlb_row_major_strides(in.ndim, view->dl.shape, view->scratch);
    view->flags = 0;
    view->buffer = dlb_buffer_of_pybuffer(&in);
    return view->buffer ? 0 : -1;
}

/* `dtype` says where an Array has it, and `dtypes` has (code, bits, lanes) of each that
 * has no buffer format, or None where the Python path decides: none of NumPy's own;
 * only an Array on one of the accepted devices has memory that the host may read,
 * others are lent. */
static int take_jax_array(PyObject *x, PyObject *payload, dlb_view *view) {
    int passes =
        dlb_passes_guard(x, PyTuple_GET_ITEM(payload, 0), PyTuple_GET_ITEM(payload, 1));
    if (passes < 0)
        return -1;
    if (!passes)
        return dlb_take_by_lending(x, PyTuple_GET_ITEM(payload, 5), view);
    DLDataType kind;
    PyObject *descr = dlb_read_attribute(x, PyTuple_GET_ITEM(payload, 3)),
             *dtype = NULL;
    if (descr != NULL && !dlb_numpy_dtype(descr, &kind))
        dtype = PyDict_GetItemWithError(PyTuple_GET_ITEM(payload, 4), descr);
    Py_XDECREF(descr);
    if (dtype == NULL && PyErr_Occurred())
        return -1;
    if (dtype == NULL)
        return take_jax_buffer(x, view);
    if (dtype == Py_None)
        return DLB_DECLINED;
    PyObject *array = view_by_method(x, PyTuple_GET_ITEM(payload, 2));
    if (array == NULL)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    int status =
        dlb_parse_dtype(dtype, &kind) < 0 ? -1 : dlb_take_numpy_as(array, kind, view);
    Py_DECREF(array);
    return status;
}

/* What JAX itself says of its memory depends on its version. */
static int take_jax(PyObject *x, const dlb_known_type *known, bool Py_UNUSED(detaches),
                    dlb_view *view) {
    int status = dlb_take_with_payload(take_jax_array, x, known, view);
    if (status == 0)
        view->flags |= DLPACK_FLAG_BITMASK_READ_ONLY | DLB_IMMUTABLE;
    return status;
}

static int accept_jax(dlb_known_type *made) {
    return dlb_expect_payload(
        made->payload, 6,
        "jax needs (guard, accepted, view_method, dtype, dtypes, lend)");
}

const dlb_peer dlb_jax_peer = {
    .name = "jax",
    .is_framework = true,
    .accept = accept_jax,
    .take = take_jax,
};

/* ---- kernels: inputs only ---- */

/* jaxlib's ArrayImpl; NULL: not met yet. Only its address is looked at. */
static _Atomic(PyTypeObject *) jax_array;

/* jax_direct_open(ArrayImpl): the adapter vouches for its buffer protocol. */
PyObject *dlb_jax_direct_open(PyObject *Py_UNUSED(module), PyObject *type) {
    Py_XDECREF(atomic_exchange(&jax_array, (PyTypeObject *)Py_NewRef(type)));
    Py_RETURN_NONE;
}

/* Asked directly, jaxlib itself refuses what is not in the CPU's memory. */
int dlb_jax_take_result(PyObject *x, dlb_view *view) {
    if (Py_TYPE(x) != atomic_load_explicit(&jax_array, memory_order_relaxed))
        return DLB_DECLINED;
    int status = take_jax_buffer(x, view);
    if (status != -1)
        return status;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

/* Row-major arrays only: strides take jaxlib a quarter longer. */
static Py_buffer *borrow_pybuffer(dlb_call *call, PyObject *x) {
    dlb_borrowed *borrowed = &call->borrowed[call->borrowed_count];
    if (PyObject_GetBuffer(x, &borrowed->memory.protocol, PyBUF_ND | PyBUF_FORMAT) < 0)
        return NULL;
    borrowed->is_buffer = true;
    call->borrowed_count++;
    return &borrowed->memory.protocol;
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
    const Py_buffer *buffer = borrow_pybuffer(call, x);
    DLDataType *dtype = &call->frame.tensors[index].dtype;
    if (buffer == NULL)
        return -1;
    if (dlb_buffer_format(buffer->format, buffer->itemsize, dtype) < 0 ||
        call->dim_count + buffer->ndim > call->dim_room)
        return DLB_DECLINED;
    fill_from_buffer(call, index, buffer);
    return 0;
}

/* As `from_dlpack` takes it. */
static int take_view(PyObject *x, dlb_view *view) {
    const dlb_known_type *known = dlb_is_recorded() ? NULL : dlb_type_of(x);
    int status = known != NULL ? known->peer->take(x, known, false, view) : -1;
    if (status != -1)
        return status;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED; /* the slow path meets it again */
}

/* For other layouts, and dtypes without a buffer format (bfloat16, float8). */
static int borrow_view(dlb_call *call, int index, PyObject *x) {
    dlb_view view;
    dlb_borrowed *borrowed = &call->borrowed[call->borrowed_count];
    int status = take_view(x, &view);
    if (status != 0)
        return status;
    *borrowed = (dlb_borrowed){.is_buffer = false, .memory.core = view.buffer};
    call->borrowed_count++;
    call->frame.flags[index] = DLPACK_FLAG_BITMASK_READ_ONLY;
    DLTensor *tensor = &call->frame.tensors[index];
    *tensor = view.dl;
    if (tensor->device.device_type != kDLCPU ||
        !dlb_copy_dims(tensor, call->dims + call->dim_count,
                       call->dim_room - call->dim_count))
        return DLB_DECLINED;
    call->dim_count += 2 * tensor->ndim;
    return 0;
}

static int borrow_jax(dlb_call *call, int index, PyObject *x) {
    if (Py_TYPE(x) != jax_array)
        return DLB_DECLINED;
    int status = borrow_buffer(call, index, x);
    if (status >= 0)
        return status;
    return dlb_clear_error() < 0 ? -1 : borrow_view(call, index, x);
}

static bool is_jax(PyObject *x) {
    return Py_TYPE(x) == atomic_load_explicit(&jax_array, memory_order_relaxed);
}

const dlb_lender dlb_jax_lender = {
    .framework = "jax",
    .source = "jax.Array",
    .owns = is_jax,
    .borrow = borrow_jax,
};

/* cupy.ndarray. */
#include "cuda/cuda.h"
#include "peers/borrowing.h"

static int take(PyObject *x, const dlb_known_type *known, bool Py_UNUSED(detaches),
                dlb_view *view) {
    return dlb_take_with_payload(dlb_take_by_lending, x, known, view);
}

/* The payload is the function of `dlb_take_by_lending`. */
const dlb_peer dlb_cupy_peer = {
    .name = "cupy",
    .is_framework = true,
    .take = take,
};

/* ---- kernels ----
 *
 * Arrays are read by their public attributes, so that a call needs neither a capsule
 * nor an event, and are used on the stream that CuPy works on. */

static struct {
    _Atomic(PyTypeObject *) type; /* cupy.ndarray, set last; NULL: not met yet */
    PyObject *current_stream;     /* cupy.cuda.get_current_stream */
    PyObject *data, *device_id, *dtype, *ptr, *shape, *strides; /* names */
} cupy;

/* cupy_open(ndarray, get_current_stream): the binding vouches for CUDA, not ROCm. */
PyObject *dlb_cupy_open(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *type, *function;
    PyObject **const names[] = {&cupy.data, &cupy.device_id, &cupy.dtype,
                                &cupy.ptr,  &cupy.shape,     &cupy.strides};
    static const char *const texts[] = {"data", "device_id", "dtype",
                                        "ptr",  "shape",     "strides"};
    if (!PyArg_ParseTuple(args, "O!O:cupy_open", &PyType_Type, &type, &function))
        return NULL;
    for (int i = 0; i < 6; i++)
        if (*names[i] == NULL &&
            (*names[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return NULL;
    if (cupy.type == (PyTypeObject *)type && cupy.current_stream == function)
        Py_RETURN_NONE;
    Py_XSETREF(cupy.current_stream, Py_NewRef(function));
    Py_XDECREF(atomic_exchange(&cupy.type, (PyTypeObject *)Py_NewRef(type)));
    Py_RETURN_NONE;
}

static bool is_cupy(PyObject *x) {
    return Py_TYPE(x) == atomic_load_explicit(&cupy.type, memory_order_acquire);
}

/* Attributes: -1 with an exception. */
static int read_number(PyObject *object, PyObject *name, unsigned long long *number) {
    PyObject *value = PyObject_GetAttr(object, name);
    *number = value ? PyLong_AsUnsignedLongLong(value) : 0;
    Py_XDECREF(value);
    return *number == (unsigned long long)-1 || value == NULL ? -1 : 0;
}

/* A tuple of integers, into the room that the call has for dimensions. */
static int read_dims(dlb_call *call, PyObject *x, PyObject *name, int32_t *count,
                     int64_t **dims) {
    PyObject *found = PyObject_GetAttr(x, name);
    int status = found != NULL && PyTuple_Check(found) ? 0 : -1;
    *count = status == 0 ? (int32_t)PyTuple_GET_SIZE(found) : 0;
    *dims = call->dims + call->dim_count;
    if (*count > call->dim_room - call->dim_count)
        status = -1;
    for (int32_t i = 0; status == 0 && i < *count; i++)
        (*dims)[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(found, i));
    Py_XDECREF(found);
    call->dim_count += status == 0 ? *count : 0;
    return status < 0 || PyErr_Occurred() ? -1 : 0;
}

static int read_memory(PyObject *x, DLTensor *tensor) {
    unsigned long long address = 0, device = 0;
    PyObject *memory = PyObject_GetAttr(x, cupy.data);
    int status = memory == NULL || read_number(memory, cupy.ptr, &address) < 0 ||
                         read_number(memory, cupy.device_id, &device) < 0
                     ? -1
                     : 0;
    Py_XDECREF(memory);
    tensor->data = (void *)(uintptr_t)address;
    tensor->device = (DLDevice){kDLCUDA, (int32_t)device};
    return status;
}

static int read_dtype(PyObject *x, DLTensor *tensor) {
    PyObject *descr = PyObject_GetAttr(x, cupy.dtype);
    bool is_known = descr != NULL && dlb_numpy_dtype(descr, &tensor->dtype);
    Py_XDECREF(descr);
    return is_known ? 0 : -1;
}

/* Strides are in bytes there; false: not of whole elements. */
static bool divide_strides(DLTensor *tensor) {
    int64_t size = tensor->dtype.bits / 8, rest = 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        rest |= tensor->strides[i] % size;
        tensor->strides[i] /= size;
    }
    return rest == 0;
}

static int read_stream(dlb_frame *frame, int32_t device) {
    unsigned long long handle = 0;
    PyObject *stream = PyObject_CallFunction(cupy.current_stream, "i", (int)device);
    int status = stream ? read_number(stream, cupy.ptr, &handle) : -1;
    Py_XDECREF(stream);
    frame->stream = (void *)(handle ? (uintptr_t)handle : DLB_STREAM_LEGACY);
    return status;
}

static int read_cupy(dlb_call *call, PyObject *x, DLTensor *tensor) {
    int32_t count;
    if (read_memory(x, tensor) < 0 || read_dtype(x, tensor) < 0 ||
        read_dims(call, x, cupy.shape, &tensor->ndim, &tensor->shape) < 0 ||
        read_dims(call, x, cupy.strides, &count, &tensor->strides) < 0 ||
        count != tensor->ndim || !divide_strides(tensor))
        return -1;
    return call->frame.stream == NULL
               ? read_stream(&call->frame, tensor->device.device_id)
               : 0;
}

static int borrow_cupy(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    tensor->byte_offset = 0;
    call->frame.flags[index] = 0;
    if (is_cupy(x) && read_cupy(call, x, tensor) == 0)
        return 0;
    /* The slow path meets it again. */
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

/* CuPy allocates on the device of the current context. */
static PyObject *allocate_cupy(int32_t ndim, const int64_t *dims, DLDataType kind,
                               DLDevice device) {
    dlb_cuda_scope scope;
    PyObject *descr = dlb_numpy_descr(kind);
    PyObject *extents = descr ? dlb_dims_tuple(dims, ndim) : NULL;
    PyObject *made = NULL;
    if (extents != NULL && dlb_cuda_enter(device.device_id, &scope) == 0) {
        made =
            PyObject_CallFunctionObjArgs((PyObject *)cupy.type, extents, descr, NULL);
        dlb_cuda_leave(&scope);
    }
    Py_XDECREF(extents);
    Py_XDECREF(descr);
    return made;
}

static bool always(const dlb_call *Py_UNUSED(call)) {
    return true;
}

const dlb_lender dlb_cupy_lender = {
    .framework = "cupy",
    .source = "cupy.ndarray",
    .runs_python = always,
    .owns = is_cupy,
    .borrow = borrow_cupy,
    .allocate = allocate_cupy,
};

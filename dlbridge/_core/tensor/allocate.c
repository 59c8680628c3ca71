/* CUDA memory in Python: Tensors over new memory, and the exceptions of having none. */
#include "tensor/tensor.h"
#include "cuda/memory.h"
#include "layout/layout.h"

/* Set by the Python package. */
static PyObject *no_memory;   /* no_memory(call, nbytes, device type, device id) */
static PyObject *read_pair;   /* the pair (type, id) of what Device takes */
static PyObject *known_pairs; /* by name or Device */
static PyTypeObject *device_type;

/* ---- exceptions ---- */

PyObject *dlb_raise_no_memory(const char *call, DLDevice device, int64_t nbytes) {
    if (no_memory == NULL)
        return PyErr_NoMemory();
    PyObject *exception =
        PyObject_CallFunction(no_memory, "sLii", call, (long long)nbytes,
                              (int)device.device_type, (int)device.device_id);
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

PyObject *dlb_cuda_raise_memory(const char *call, DLDevice device, int64_t nbytes) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    bool is_full =
        failure->kind == DLB_CUDA_CALL && failure->code == CUDA_ERROR_OUT_OF_MEMORY;
    return is_full ? dlb_raise_no_memory(call, device, nbytes) : dlb_cuda_raise(call);
}

PyObject *dlb_refuse_move(const char *call, dlb_tensor *tensor) {
    PyObject *device = PyObject_GetAttrString((PyObject *)tensor, "device");
    if (device == NULL)
        return NULL;
    dlb_refuse("device",
               "%s: the data is on %S, and dlbridge moves it between the CPU "
               "and CUDA devices only; use the framework that it comes from",
               call, device);
    Py_DECREF(device);
    return NULL;
}

/* ---- devices ---- */

int dlb_read_device(PyObject *given, DLDevice *device) {
    bool is_known = PyUnicode_CheckExact(given) || Py_TYPE(given) == device_type;
    PyObject *pair =
        is_known ? Py_XNewRef(PyDict_GetItemWithError(known_pairs, given)) : NULL;
    if (pair == NULL && !PyErr_Occurred())
        pair = PyObject_CallOneArg(read_pair, given);
    if (pair == NULL)
        return -1;
    int status = dlb_parse_device(pair, device);
    if (status == 0 && is_known)
        status = PyDict_SetItem(known_pairs, given, pair);
    Py_DECREF(pair);
    return status;
}

/* ---- memory ---- */

/* allocator(nbytes, (type, id)): a uint8 Tensor of another allocator, or None for the
 * driver's memory. */
static PyObject *allocator;

static int ask_allocator(dlb_view *view, int64_t nbytes) {
    PyObject *made = PyObject_CallFunction(allocator, "L(ii)", (long long)nbytes,
                                           (int)view->dl.device.device_type,
                                           (int)view->dl.device.device_id);
    if (made == NULL)
        return -1;
    if (dlb_is_tensor(made)) {
        view->buffer = dlb_buffer_retain(((dlb_tensor *)made)->buffer);
        view->dl.data = ((dlb_tensor *)made)->dl.data;
    }
    Py_DECREF(made);
    return 0;
}

static int ask_driver(dlb_view *view, int64_t nbytes, const char *call) {
    Py_BEGIN_ALLOW_THREADS
    view->buffer = dlb_cuda_allocate(view->dl.device, nbytes);
    Py_END_ALLOW_THREADS
    if (view->buffer == NULL) {
        dlb_cuda_raise_memory(call, view->dl.device, nbytes);
        return -1;
    }
    view->dl.data = view->buffer->data;
    return 0;
}

int dlb_cuda_fill_view(dlb_view *view, const char *call) {
    int64_t nbytes =
        dlb_packed_bytes(view->dl.dtype, view->flags, dlb_element_count(&view->dl));
    view->buffer = NULL;
    if (allocator != NULL && ask_allocator(view, nbytes) < 0)
        return -1;
    if (view->buffer == NULL && ask_driver(view, nbytes, call) < 0)
        return -1;
    view->dl.byte_offset = 0;
    dlb_row_major_strides(view->dl.ndim, view->dl.shape, view->scratch);
    view->dl.strides = view->scratch;
    return 0;
}

static PyObject *set_allocator(PyObject *Py_UNUSED(module), PyObject *hook) {
    Py_XSETREF(allocator, hook == Py_None ? NULL : Py_NewRef(hook));
    Py_RETURN_NONE;
}

/* cuda_allocate(shape, dtype, device, flags=0) */
static PyObject *allocate(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *shape, *dtype, *device;
    unsigned long long flags = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (!PyArg_ParseTuple(args, "OOO|K:cuda_allocate", &shape, &dtype, &device, &flags))
        return NULL;
    view.flags = flags;
    view.dl.ndim = dlb_parse_dims(shape, dims, "shape");
    if (view.dl.ndim < 0 || dlb_parse_dtype(dtype, &view.dl.dtype) < 0 ||
        dlb_parse_device(device, &view.dl.device) < 0)
        return NULL;
    view.dl.shape = dims;
    view.dl.data = dims;
    const char *reason = dlb_layout_check(&view.dl, flags);
    if (reason != NULL)
        return dlb_refuse_layout(reason, "cuda_allocate", &view.dl);
    if (!dlb_cuda_has_memory(view.dl.device))
        return dlb_refuse("device", "cuda_allocate: device (%d, %d) is none of CUDA's",
                          (int)view.dl.device.device_type,
                          (int)view.dl.device.device_id);
    int64_t nbytes =
        dlb_packed_bytes(view.dl.dtype, flags, dlb_element_count(&view.dl));
    if (ask_driver(&view, nbytes, "empty") < 0)
        return NULL;
    dlb_row_major_strides(view.dl.ndim, dims, view.scratch);
    view.dl.strides = view.scratch;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *trim(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    if (dlb_cuda_get() != NULL) {
        Py_BEGIN_ALLOW_THREADS
        dlb_cuda_collect();
        dlb_cuda_trim();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *statistics(PyObject *Py_UNUSED(module), PyObject *pair) {
    DLDevice device;
    if (dlb_parse_device(pair, &device) < 0)
        return NULL;
    dlb_allocator_statistics *s = dlb_cuda_statistics(device);
    if (s == NULL)
        return PyErr_Format(PyExc_ValueError, "cuda_statistics: no such device");
    return Py_BuildValue("LLLL", (long long)s->bytes_in_use,
                         (long long)s->peak_bytes_in_use, (long long)s->count,
                         (long long)s->total);
}

static PyObject *set_hooks(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *raise, *read, *type;
    if (!PyArg_ParseTuple(args, "OOO!:set_cuda_memory_hooks", &raise, &read,
                          &PyType_Type, &type))
        return NULL;
    if (known_pairs == NULL && (known_pairs = PyDict_New()) == NULL)
        return NULL;
    Py_XSETREF(no_memory, Py_NewRef(raise));
    Py_XSETREF(read_pair, Py_NewRef(read));
    Py_XSETREF(device_type, (PyTypeObject *)Py_NewRef(type));
    Py_RETURN_NONE;
}

PyMethodDef dlb_cuda_memory_functions[] = {
    {"cuda_allocate", allocate, METH_VARARGS,
     "cuda_allocate(shape, dtype, device, flags=0): a new C-contiguous Tensor."},
    {"cuda_trim", trim, METH_NOARGS, "Free all that is kept for reuse."},
    {"cuda_statistics", statistics, METH_O,
     "(bytes in use, peak, blocks, total) of a device."},
    {"set_cuda_allocator", set_allocator, METH_O,
     "set_cuda_allocator(allocator or None): for memory of results."},
    {"set_cuda_memory_hooks", set_hooks, METH_VARARGS,
     "set_cuda_memory_hooks(no_memory, read_pair, device_type)"},
    {NULL, NULL, 0, NULL},
};

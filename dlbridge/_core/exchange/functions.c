/* The functions of the native module that are not hot: ways in and out by name, memory.
 */
#include "exchange/exchange.h"
#include "cuda/cuda.h"

/* ---- ways in that are not hot ---- */

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    int status = dlb_take(x, &view);
    if (status == 0)
        return dlb_tensor_new(dlb.tensor_type, &view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *take_capsule(PyObject *Py_UNUSED(module), PyObject *capsule) {
    dlb_view view;
    if (dlb_take_capsule(capsule, &view, "from_dlpack") < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *take_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *x, *capsule;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "OO:take_table", &x, &capsule))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || dlb_take_table(x, table, &view) < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

/* Strides in bytes become strides in elements, or the layout cannot be named. */
static int fill_from_buffer(const Py_buffer *in, dlb_view *view) {
    view->dl.ndim = in->ndim;
    view->dl.shape = (int64_t *)in->shape;
    view->dl.strides = view->scratch;
    view->dl.data = in->buf;
    view->flags = in->readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
    for (int i = 0; i < in->ndim; i++) {
        if (in->suboffsets != NULL && in->suboffsets[i] >= 0) {
            dlb_refuse("strides", "buffer: dimension %d is reached through pointers",
                       i);
            return -1;
        }
        if (in->itemsize == 0 || in->strides[i] % in->itemsize) {
            dlb_refuse("strides",
                       "buffer: stride %zd is no multiple of the item size %zd",
                       in->strides[i], in->itemsize);
            return -1;
        }
        view->scratch[i] = in->strides[i] / in->itemsize;
    }
    return 0;
}

static PyObject *take_buffer(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view = {.dl.device = {kDLCPU, 0},
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    PyObject *memory = PyMemoryView_FromObject(x);
    if (memory == NULL)
        return NULL;
    Py_buffer *in = PyMemoryView_GET_BUFFER(memory);
    if (dlb_buffer_format(in->format, in->itemsize, &view.dl.dtype) < 0)
        dlb_refuse("dtype", "buffer: format '%s' has no DLPack dtype",
                   in->format ? in->format : "B");
    else if (fill_from_buffer(in, &view) == 0)
        view.buffer = dlb_buffer_of_object(memory);
    Py_DECREF(memory);
    if (view.buffer == NULL)
        return NULL;
    const char *reason = dlb_layout_check(&view.dl, view.flags);
    if (reason == NULL)
        return dlb_tensor_new(dlb.tensor_type, &view);
    dlb_buffer_drop(view.buffer);
    return dlb_refuse_layout(reason, "buffer", &view.dl);
}

static PyObject *take_object(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *owner, *shape, *strides, *dtype, *device;
    unsigned long long address, flags = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (!PyArg_ParseTuple(args, "OKOOOO|K:take_object", &owner, &address, &shape,
                          &strides, &dtype, &device, &flags))
        return NULL;
    view.dl.ndim = dlb_parse_dims(shape, dims, "shape");
    if (view.dl.ndim < 0 || dlb_parse_dtype(dtype, &view.dl.dtype) < 0 ||
        dlb_parse_device(device, &view.dl.device) < 0)
        return NULL;
    view.dl.data = (void *)(uintptr_t)address;
    view.dl.shape = dims;
    view.flags = flags;
    if (strides != Py_None) {
        int count = dlb_parse_dims(strides, view.scratch, "strides");
        if (count < 0)
            return NULL;
        if (count != view.dl.ndim)
            return PyErr_Format(PyExc_ValueError,
                                "take_object: %d dimensions but %d strides",
                                (int)view.dl.ndim, count);
        view.dl.strides = view.scratch;
    }
    const char *reason = dlb_layout_check(&view.dl, flags);
    if (reason != NULL)
        return dlb_refuse_layout(reason, "take_object", &view.dl);
    if (strides == Py_None)
        dlb_row_major_strides(view.dl.ndim, dims, view.scratch);
    view.dl.strides = view.scratch;
    view.buffer = dlb_buffer_of_object(owner);
    if (view.buffer == NULL)
        return NULL;
    if (dlb_buffer_track(view.buffer, view.dl.device))
        return dlb_tensor_new(dlb.tensor_type, &view);
    dlb_buffer_drop(view.buffer);
    return PyErr_NoMemory();
}

/* ---- ways out that are not hot ---- */

static int parse_tensor(PyObject *object, const char *call) {
    if (dlb_is_tensor(object))
        return 0;
    PyErr_Format(PyExc_TypeError, "%s: expected a Tensor, got %s", call,
                 Py_TYPE(object)->tp_name);
    return -1;
}

/* give_table(tensor, table, stream=None): None asks the table for the stream. */
static PyObject *give_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *capsule, *stream = Py_None;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "OO|O:give_table", &tensor, &capsule, &stream))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || parse_tensor(tensor, "give_table") < 0)
        return NULL;
    dlb_stream to = stream == Py_None ? 0 : (dlb_stream)PyLong_AsLongLong(stream);
    if (PyErr_Occurred())
        return NULL;
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    return dlb_give_table(&view, table, to ? &to : NULL);
}

static PyObject *give_numpy(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *descr = Py_None;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "O|O:give_numpy", &tensor, &descr) ||
        parse_tensor(tensor, "give_numpy") < 0)
        return NULL;
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    return dlb_give_numpy(&view, descr);
}

/* ---- memory ---- */

static PyObject *allocate(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *shape, *dtype;
    Py_ssize_t alignment = 64;
    int zero = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view = {.dl.device = {kDLCPU, 0},
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (!PyArg_ParseTuple(args, "OO|np:allocate", &shape, &dtype, &alignment, &zero))
        return NULL;
    view.dl.ndim = dlb_parse_dims(shape, dims, "shape");
    if (view.dl.ndim < 0 || dlb_parse_dtype(dtype, &view.dl.dtype) < 0)
        return NULL;
    if (alignment < (Py_ssize_t)sizeof(void *) || (alignment & (alignment - 1)))
        return PyErr_Format(
            PyExc_ValueError,
            "allocate: alignment must be a power of two of at least 8, got %zd",
            alignment);
    view.dl.shape = dims;
    view.dl.data = dims;
    const char *reason = dlb_layout_check(&view.dl, 0);
    if (reason != NULL)
        return dlb_refuse_layout(reason, "allocate", &view.dl);
    int64_t nbytes = dlb_packed_bytes(view.dl.dtype, 0, dlb_element_count(&view.dl));
    dlb_row_major_strides(view.dl.ndim, dims, view.scratch);
    view.dl.strides = view.scratch;
    view.buffer = dlb_buffer_allocate(nbytes, (size_t)alignment, zero);
    if (view.buffer == NULL)
        return PyErr_Format(PyExc_MemoryError, "allocate: %lld bytes could not be had",
                            (long long)nbytes);
    view.dl.data = view.buffer->data;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *allocator_statistics(PyObject *Py_UNUSED(module),
                                      PyObject *Py_UNUSED(unused)) {
    dlb_allocator_statistics *s = &dlb_cpu_statistics;
    return Py_BuildValue("{sLsLsLsL}", "bytes_in_use", (long long)s->bytes_in_use,
                         "peak_bytes_in_use", (long long)s->peak_bytes_in_use, "count",
                         (long long)s->count, "total", (long long)s->total);
}

static PyObject *live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return Py_BuildValue("{sLsLsL}", "buffers", (long long)dlb_live.buffers, "exports",
                         (long long)dlb_live.exports, "tensors",
                         (long long)dlb_live.tensors);
}

/* ---- the table ---- */

PyMethodDef dlb_functions[] = {
    {"take", take, METH_O,
     "take($module, x, /)\n--\n\nA Tensor of a known type's object, or None when a "
     "guard declines."},
    {"take_capsule", take_capsule, METH_O,
     "take_capsule($module, capsule, /)\n--\n\nConsume a capsule of either kind."},
    {"take_table", take_table, METH_VARARGS,
     "take_table($module, x, table, /)\n--\n\nA Tensor through an object's exchange "
     "table."},
    {"take_buffer", take_buffer, METH_O,
     "take_buffer($module, x, /)\n--\n\nA Tensor through the buffer protocol."},
    {"take_object", take_object, METH_VARARGS,
     "take_object($module, owner, data_ptr, shape, strides, dtype, device, flags=0, "
     "/)\n--\n\nA Tensor over memory that an object keeps."},
    {"give_table", give_table, METH_VARARGS,
     "give_table($module, tensor, table, stream=None, /)\n--\n\nAn object of the "
     "exchange table's framework, for its current stream or one given."},
    {"give_numpy", give_numpy, METH_VARARGS,
     "give_numpy($module, tensor, descr=None, /)\n--\n\nA NumPy array over the "
     "Tensor's memory."},
    {"allocate", allocate, METH_VARARGS,
     "allocate($module, shape, dtype, alignment=64, zero=False, /)\n--\n\nA new "
     "C-contiguous Tensor in CPU memory."},
    {"allocator_statistics", allocator_statistics, METH_NOARGS,
     "allocator_statistics($module, /)\n--\n\nOf the default allocator."},
    {"live", live, METH_NOARGS,
     "live($module, /)\n--\n\nHow many buffers, exports and tensors are alive."},
    {NULL, NULL, 0, NULL},
};

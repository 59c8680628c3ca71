/* TensorBase: one DLTensor and one reference to the buffer behind it. */
#include "tensor/tensor.h"
#include "cuda/memory.h"
#include "layout/layout.h"

#include <structmember.h>
#include <string.h>

static inline dlb_tensor *as_tensor(PyObject *self) {
    return (dlb_tensor *)self;
}

/* ---- life ---- */

/* Types without room of their own need no zeroed memory: every field is set below. */
static dlb_tensor *allocate_object(PyTypeObject *type, int32_t ndim) {
    if (type->tp_basicsize == sizeof(dlb_tensor) && !PyType_IS_GC(type))
        return PyObject_NewVar(dlb_tensor, type, 2 * ndim);
    return (dlb_tensor *)type->tp_alloc(type, 2 * ndim);
}

PyObject *dlb_tensor_new(PyTypeObject *type, dlb_view *view) {
    int32_t ndim = view->dl.ndim;
    dlb_tensor *self = allocate_object(type, ndim);
    if (self == NULL) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    self->dl = view->dl;
    self->dl.shape = self->dims;
    self->dl.strides = self->dims + ndim;
    for (int32_t i = 0; i < ndim; i++) {
        self->dl.shape[i] = view->dl.shape[i];
        self->dl.strides[i] = view->dl.strides[i];
    }
    self->flags = view->flags;
    self->version = view->version;
    self->buffer = view->buffer;
    self->weak_references = NULL;
    dlb_live.tensors++;
    return (PyObject *)self;
}

static void tensor_dealloc(PyObject *self) {
    dlb_tensor *tensor = as_tensor(self);
    PyTypeObject *type = Py_TYPE(self);
    if (tensor->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    if (tensor->buffer != NULL) {
        dlb_live.tensors--;
        /* A foreign deleter may run Python; an exception that is on its way must
         * survive it. */
        if (PyErr_Occurred()) {
            PyObject *kind, *value, *trace;
            PyErr_Fetch(&kind, &value, &trace);
            dlb_buffer_drop(tensor->buffer);
            PyErr_Restore(kind, value, trace);
        } else {
            dlb_buffer_drop(tensor->buffer);
        }
    }
    type->tp_free(self);
}

void dlb_tensor_view(dlb_tensor *tensor, dlb_view *view) {
    view->dl = tensor->dl;
    view->flags = tensor->flags;
    view->version = tensor->version;
    view->buffer = dlb_buffer_retain(tensor->buffer);
    view->lent = (dlb_place){0};
}

/* ---- attributes ---- */

static PyObject *get_shape(PyObject *self, void *Py_UNUSED(closure)) {
    return dlb_dims_tuple(as_tensor(self)->dl.shape, as_tensor(self)->dl.ndim);
}

static PyObject *get_strides(PyObject *self, void *Py_UNUSED(closure)) {
    return dlb_dims_tuple(as_tensor(self)->dl.strides, as_tensor(self)->dl.ndim);
}

static PyObject *get_dtype_triple(PyObject *self, void *Py_UNUSED(closure)) {
    DLDataType dtype = as_tensor(self)->dl.dtype;
    return Py_BuildValue("iii", dtype.code, dtype.bits, dtype.lanes);
}

static PyObject *get_device_pair(PyObject *self, void *Py_UNUSED(closure)) {
    DLDevice device = as_tensor(self)->dl.device;
    return Py_BuildValue("ii", (int)device.device_type, (int)device.device_id);
}

/* The Python value object for `key`, made once by `make(*numbers)`. */
static PyObject *cached(PyObject *cache, long long key, PyObject *make,
                        PyObject *numbers) {
    PyObject *key_object = PyLong_FromLongLong(key);
    if (key_object == NULL || numbers == NULL) {
        Py_XDECREF(key_object);
        Py_XDECREF(numbers);
        return NULL;
    }
    PyObject *value = Py_XNewRef(PyDict_GetItemWithError(cache, key_object));
    if (value == NULL && !PyErr_Occurred()) {
        value = make ? PyObject_CallObject(make, numbers) : Py_NewRef(numbers);
        if (value != NULL && PyDict_SetItem(cache, key_object, value) < 0)
            Py_CLEAR(value);
    }
    Py_DECREF(key_object);
    Py_DECREF(numbers);
    return value;
}

static PyObject *get_dtype(PyObject *self, void *Py_UNUSED(closure)) {
    return cached(dlb.dtypes, dlb_dtype_key(as_tensor(self)->dl.dtype), dlb.make_dtype,
                  get_dtype_triple(self, NULL));
}

static PyObject *get_device(PyObject *self, void *Py_UNUSED(closure)) {
    DLDevice device = as_tensor(self)->dl.device;
    return cached(dlb.devices,
                  (long long)device.device_type << 32 | (uint32_t)device.device_id,
                  dlb.make_device, get_device_pair(self, NULL));
}

static PyObject *get_ndim(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(as_tensor(self)->dl.ndim);
}

static PyObject *get_size(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(dlb_element_count(&as_tensor(self)->dl));
}

static PyObject *get_itemsize(PyObject *self, void *Py_UNUSED(closure)) {
    dlb_tensor *tensor = as_tensor(self);
    return PyLong_FromLongLong((dlb_element_bits(tensor->dl.dtype, tensor->flags) + 7) /
                               8);
}

static PyObject *get_nbytes(PyObject *self, void *Py_UNUSED(closure)) {
    dlb_tensor *tensor = as_tensor(self);
    return PyLong_FromLongLong(dlb_packed_bytes(tensor->dl.dtype, tensor->flags,
                                                dlb_element_count(&tensor->dl)));
}

static PyObject *get_data_ptr(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromVoidPtr(as_tensor(self)->dl.data);
}

static PyObject *get_readonly(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(as_tensor(self)->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
}

static PyObject *get_is_contiguous(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(dlb_is_row_major(&as_tensor(self)->dl));
}

static PyObject *get_flags(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(as_tensor(self)->flags);
}

static PyObject *get_version(PyObject *self, void *Py_UNUSED(closure)) {
    DLPackVersion version = as_tensor(self)->version;
    return Py_BuildValue("II", version.major, version.minor);
}

static PyObject *get_dltensor_address(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromVoidPtr(&as_tensor(self)->dl);
}

typedef struct {
    PyObject_HEAD
    dlb_buffer *buffer;
} buffer_object;

static PyObject *get_buffer(PyObject *self, void *Py_UNUSED(closure)) {
    buffer_object *object = PyObject_New(buffer_object, &dlb_BufferType);
    if (object != NULL)
        object->buffer = dlb_buffer_retain(as_tensor(self)->buffer);
    return (PyObject *)object;
}

static PyObject *tensor_dlpack_device(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return get_device_pair(self, NULL);
}

static PyGetSetDef tensor_attributes[] = {
    {"shape", get_shape, NULL, "Extent of each dimension, a tuple of int.", NULL},
    {"strides", get_strides, NULL, "Step of each dimension, in elements.", NULL},
    {"dtype", get_dtype, NULL, "The element type, a DType.", NULL},
    {"device", get_device, NULL, "Where the memory is, a Device.", NULL},
    {"ndim", get_ndim, NULL, "Number of dimensions.", NULL},
    {"size", get_size, NULL, "Number of elements.", NULL},
    {"itemsize", get_itemsize, NULL, "Bytes of one element, rounded up.", NULL},
    {"nbytes", get_nbytes, NULL, "Bytes of all elements, packed and rounded up.", NULL},
    {"data_ptr", get_data_ptr, NULL,
     "Address of the first element, byte_offset included.", NULL},
    {"readonly", get_readonly, NULL, "Whether the memory must not be written.", NULL},
    {"is_contiguous", get_is_contiguous, NULL,
     "Whether the layout is compact row-major.", NULL},
    {"flags", get_flags, NULL, "The bits of DLManagedTensorVersioned.flags.", NULL},
    {"version", get_version, NULL, "DLPack version (major, minor) it came in with.",
     NULL},
    {"buffer", get_buffer, NULL, "The TensorBuffer that keeps the memory.", NULL},
    {"_dtype_triple", get_dtype_triple, NULL, "(code, bits, lanes).", NULL},
    {"_device_pair", get_device_pair, NULL, "(device_type, device_id).", NULL},
    {"_dltensor_address", get_dltensor_address, NULL, "Address of the DLTensor.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

#define KEYWORDS (METH_FASTCALL | METH_KEYWORDS)
static PyMethodDef tensor_methods[] = {
    {"__dlpack__", (PyCFunction)(void (*)(void))dlb_tensor_dlpack, KEYWORDS,
     "__dlpack__($self, /, *, stream=None, max_version=None, dl_device=None, "
     "copy=None)\n--\n\n"
     "Export a capsule of this memory (DLPack Python specification).\n\n"
     "The capsule is versioned when max_version is (1, 0) or higher, else legacy. The "
     "memory is\n"
     "shared unless copy=True, and stays valid until the consumer calls the deleter. "
     "Every refusal\n"
     "is an ExchangeError (a BufferError) and leaves nothing behind."},
    {"__dlpack_device__", tensor_dlpack_device, METH_NOARGS,
     "__dlpack_device__($self, /)\n--\n\nReturn (device_type, device_id) as integers."},
    {"to", (PyCFunction)(void (*)(void))dlb_tensor_to, KEYWORDS,
     "to($self, /, device, *, copy=False)\n--\n\n"
     "Return the tensor itself when it is on `device`, else, or if `copy` is true, a "
     "copy "
     "there.\n\n"
     "The copy is compact, its dimensions lie in the order of the tensor's, and it is "
     "writable. Between\n"
     "CPU memory, CUDA devices, pinned (\"cuda_host\") and managed (\"cuda_managed\") "
     "memory. It is enqueued\n"
     "on the current stream of the device (`dlbridge.cuda.stream`), behind all work on "
     "the tensor that is\n"
     "known, and the host does not wait, except to read memory that is not pinned, or "
     "to "
     "have the values\n"
     "in it. Pinned memory that is the result is waited for when the host reads it.\n\n"
     "Raises ExchangeError with reason \"device\" for memory of other devices, which "
     "the "
     "framework that\n"
     "owns it moves, AllocationError when there is no memory, CUDAError when there is "
     "no "
     "driver."},
    {"copy", (PyCFunction)(void (*)(void))dlb_tensor_copy, METH_VARARGS | METH_KEYWORDS,
     "copy($self, /, order=\"C\")\n--\n\n"
     "Return a writable copy in memory of its own: on the same CUDA device, in managed "
     "memory, or, of\n"
     "host memory, in CPU memory, 64-byte aligned.\n\n"
     "order: \"C\" for row-major, \"F\" for column-major, \"K\" to keep the order of "
     "dimensions. Padded\n"
     "elements are packed. On a CUDA device the copy is enqueued on its current "
     "stream.\n\n"
     "Raises AllocationError: there is no memory, as for a view that broadcasts to "
     "terabytes."},
    {"_view", (PyCFunction)(void (*)(void))dlb_tensor_subview,
     METH_VARARGS | METH_KEYWORDS,
     "_view($self, /, shape, strides, byte_offset=0, dtype=None, set_flags=0, "
     "cls=None,\n"
     "      clear_flags=0)\n--\n\n"
     "A Tensor over the same buffer; the caller answers for the layout."},
    {"_capsule", (PyCFunction)(void (*)(void))dlb_tensor_capsule,
     METH_VARARGS | METH_KEYWORDS,
     "_capsule($self, /, versioned, flags=0, force_readonly=False, stream=-1, "
     "kept=None)\n--\n\n"
     "A new capsule over the same buffer, for a consumer that works on `stream`; "
     "`kept` "
     "lives until\n"
     "the consumer gives the memory back."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_TensorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TensorBase",
    .tp_doc = "One DLTensor and one reference to the buffer that keeps its memory.",
    .tp_basicsize = sizeof(dlb_tensor),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = tensor_dealloc,
    .tp_free = PyObject_Free,
    .tp_weaklistoffset = offsetof(dlb_tensor, weak_references),
    .tp_getset = tensor_attributes,
    .tp_methods = tensor_methods,
    .tp_as_buffer = &dlb_tensor_buffer_protocol,
};

/* ---- TensorBuffer ---- */

static void buffer_dealloc(PyObject *self) {
    dlb_buffer_drop(((buffer_object *)self)->buffer);
    PyObject_Free(self);
}

static PyObject *buffer_data_ptr(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromVoidPtr(((buffer_object *)self)->buffer->data);
}

static PyObject *buffer_nbytes(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(((buffer_object *)self)->buffer->nbytes);
}

/* Without the reference that the Python object itself holds. */
static PyObject *buffer_refcount(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromLongLong(
        atomic_load(&((buffer_object *)self)->buffer->references) - 1);
}

static const char *find_kind(const dlb_buffer *buffer) {
    if (dlb_buffer_object(buffer) != NULL)
        return "object";
    return dlb_cuda_is_ours(buffer) ? "allocator" : dlb_buffer_kind(buffer);
}

static PyObject *buffer_kind(PyObject *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(find_kind(((buffer_object *)self)->buffer));
}

static PyObject *buffer_owner(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *owner = dlb_buffer_object(((buffer_object *)self)->buffer);
    return Py_NewRef(owner ? owner : Py_None);
}

static PyGetSetDef buffer_attributes[] = {
    {"data_ptr", buffer_data_ptr, NULL, "Address of the allocation; 0 when not ours.",
     NULL},
    {"nbytes", buffer_nbytes, NULL, "Bytes of the allocation; 0 when not ours.", NULL},
    {"refcount", buffer_refcount, NULL, "Tensors and exports that share it.", NULL},
    {"kind", buffer_kind, NULL, "'allocator', 'managed', 'object' or 'loan'.", NULL},
    {"owner", buffer_owner, NULL, "The Python object kept alive, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject dlb_BufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TensorBuffer",
    .tp_doc =
        "The memory behind one or more Tensors and exports, counted by reference.",
    .tp_basicsize = sizeof(buffer_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = buffer_dealloc,
    .tp_getset = buffer_attributes,
};

/* TensorBase: one DLTensor and one reference to the buffer behind it. */
#include "tensor/tensor.h"
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "python/numpy.h"

#include <structmember.h>
#include <string.h>

static inline dlb_tensor *as_tensor(PyObject *self) {
    return (dlb_tensor *)self;
}

/* ---- life ---- */

/* Only a Tensor whose memory is kept by an object that can refer back to it takes part
 * in garbage collection; for all others the collector's header and lists would cost as
 * much as the exchange. So one type has objects with a header and without, which
 * tensor_is_gc tells apart: free_tensor marks the types for which
 * this holds. Subclasses made in Python always have the header. */
static void free_tensor(void *self) {
    PyObject_Free(self);
}

static inline bool has_own_layout(PyTypeObject *type) {
    return type->tp_free == free_tensor;
}

static int tensor_is_gc(PyObject *self) {
    return !has_own_layout(Py_TYPE(self)) ||
           dlb_is_collectable(as_tensor(self)->buffer);
}

/* A buffer holds one reference to its object, which only one Tensor can show to the
 * collector. */
static int tensor_traverse(PyObject *self, visitproc visit, void *arg) {
    dlb_buffer *buffer = as_tensor(self)->buffer;
    if (buffer != NULL && dlb_is_collectable(buffer) &&
        atomic_load(&buffer->references) == 1)
        Py_VISIT(dlb_buffer_object(buffer));
    return 0;
}

/* So each Tensor over such an object has a buffer to itself. The view keeps its
 * reference. */
static int unshare(dlb_view *view) {
    dlb_buffer *shared = view->buffer;
    if (atomic_load(&shared->references) == 1 || shared->access != NULL)
        return 0;
    dlb_buffer *own = dlb_buffer_of_object(dlb_buffer_object(shared));
    if (own == NULL)
        return -1;
    view->buffer = own;
    dlb_buffer_drop(shared);
    return 0;
}

/* Types without room of their own need no zeroed memory: every field is set below. */
static dlb_tensor *allocate_object(PyTypeObject *type, dlb_view *view) {
    Py_ssize_t dims = 2 * (Py_ssize_t)view->dl.ndim;
    bool is_collectable = dlb_is_collectable(view->buffer);
    if (is_collectable && unshare(view) < 0)
        return NULL;
    if (!has_own_layout(type))
        return (dlb_tensor *)type->tp_alloc(type, dims);
    return is_collectable ? PyObject_GC_NewVar(dlb_tensor, type, dims)
                          : PyObject_NewVar(dlb_tensor, type, dims);
}

dlb_tensor *dlb_expect_tensor(PyObject *x, const char *call) {
    if (dlb_is_tensor(x))
        return (dlb_tensor *)x;
    PyErr_Format(PyExc_TypeError, "%s: expected a Tensor, got %s", call,
                 Py_TYPE(x)->tp_name);
    return NULL;
}

PyObject *dlb_tensor_new(PyTypeObject *type, dlb_view *view) {
    int32_t ndim = view->dl.ndim;
    dlb_tensor *self = allocate_object(type, view);
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
    dlb_count_object(tensors, 1);
    if (has_own_layout(type) && dlb_is_collectable(self->buffer))
        PyObject_GC_Track(self);
    return (PyObject *)self;
}

static void tensor_dealloc(PyObject *self) {
    dlb_tensor *tensor = as_tensor(self);
    PyTypeObject *type = Py_TYPE(self);
    bool is_gc = tensor_is_gc(self);
    if (is_gc)
        PyObject_GC_UnTrack(self);
    if (tensor->weak_references != NULL)
        PyObject_ClearWeakRefs(self);
    if (tensor->buffer != NULL) {
        dlb_count_object(tensors, -1);
        dlb_buffer_drop(tensor->buffer);
    }
    if (is_gc)
        PyObject_GC_Del(self);
    else
        type->tp_free(self);
}

/* Of types made in Python each object holds a reference to its type. */
static void heap_tensor_dealloc(PyObject *self) {
    PyTypeObject *type = Py_TYPE(self);
    tensor_dealloc(self);
    Py_DECREF(type);
}

void dlb_tensor_adopt(PyTypeObject *type) {
    if (type->tp_basicsize != sizeof(dlb_tensor) || has_own_layout(type))
        return;
    type->tp_dealloc = heap_tensor_dealloc;
    type->tp_free = free_tensor;
}

void dlb_tensor_view(dlb_tensor *tensor, dlb_view *view) {
    view->dl = tensor->dl;
    view->flags = tensor->flags;
    view->version = tensor->version;
    view->buffer = dlb_buffer_retain(tensor->buffer);
    view->borrowed = (dlb_stream_id){0};
}

static PyObject *tensor_subview(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"shape",     "strides", "byte_offset", "dtype",
                            "set_flags", "cls",     "clear_flags", NULL};
    PyObject *shape, *strides, *dtype = Py_None, *cls = Py_None;
    Py_ssize_t byte_offset = 0;
    unsigned long long set_flags = 0, clear_flags = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO|nOKOK:_view", names, &shape,
                                     &strides, &byte_offset, &dtype, &set_flags, &cls,
                                     &clear_flags))
        return NULL;
    PyTypeObject *type = cls == Py_None ? Py_TYPE(self) : (PyTypeObject *)cls;
    if (cls != Py_None &&
        (!PyType_Check(cls) || !PyType_IsSubtype((PyTypeObject *)cls, &dlb_TensorType)))
        return PyErr_Format(PyExc_TypeError, "_view: cls must be a Tensor type, got %R",
                            cls);
    dlb_tensor_view((dlb_tensor *)self, &view);
    int ndim = dlb_parse_dims(shape, dims, "shape");
    int stride_count = ndim < 0 ? -1 : dlb_parse_dims(strides, view.scratch, "strides");
    if (ndim < 0 || stride_count < 0 ||
        (dtype != Py_None && dlb_parse_dtype(dtype, &view.dl.dtype) < 0))
        goto failed;
    if (ndim != stride_count) {
        PyErr_Format(PyExc_ValueError, "_view: %d dimensions but %d strides", ndim,
                     stride_count);
        goto failed;
    }
    view.dl.ndim = ndim;
    view.dl.shape = dims;
    view.dl.strides = view.scratch;
    if ((set_flags | clear_flags) & DLPACK_FLAG_BITMASK_READ_ONLY)
        view.flags &= ~DLB_IMMUTABLE; /* it is said, one way or the other */
    view.flags = (view.flags | set_flags) & ~clear_flags;
    dlb_advance(&view.dl, byte_offset);
    const char *reason = dlb_layout_check(&view.dl, view.flags);
    if (reason == NULL)
        return dlb_tensor_new(type, &view);
    dlb_refuse_layout(reason, "_view", &view.dl);
failed:
    dlb_buffer_drop(view.buffer);
    return NULL;
}

/* ---- the buffer protocol ---- */

/* PEP 3118 formats; the types that have none cannot go this way. */
static const struct {
    uint8_t code, bits;
    const char *format;
} formats[] = {
    {kDLFloat, 32, "f"},    {kDLFloat, 64, "d"},     {kDLInt, 64, "q"},
    {kDLInt, 32, "i"},      {kDLUInt, 8, "B"},       {kDLBool, 8, "?"},
    {kDLInt, 8, "b"},       {kDLInt, 16, "h"},       {kDLUInt, 16, "H"},
    {kDLUInt, 32, "I"},     {kDLUInt, 64, "Q"},      {kDLFloat, 16, "e"},
    {kDLComplex, 64, "Zf"}, {kDLComplex, 128, "Zd"},
};

static const char *buffer_format(DLDataType dtype) {
    for (size_t i = 0; i < sizeof formats / sizeof *formats; i++)
        if (formats[i].code == dtype.code && formats[i].bits == dtype.bits &&
            dtype.lanes == 1)
            return formats[i].format;
    return NULL;
}

/* The sizes of an element are a set of bytes: that of 'l' differs between platforms,
 * and with '<', which ctypes writes before the platform's own. */
#define LETTER(letter, code, sizes) [letter] = {true, code, sizes}
static const struct {
    bool is_known;
    uint8_t code, sizes;
} letters[128] = {
    LETTER('b', kDLInt, 1),      LETTER('B', kDLUInt, 1),    LETTER('c', kDLUInt, 1),
    LETTER('h', kDLInt, 2),      LETTER('H', kDLUInt, 2),    LETTER('i', kDLInt, 4),
    LETTER('I', kDLUInt, 4),     LETTER('l', kDLInt, 4 | 8), LETTER('q', kDLInt, 8),
    LETTER('L', kDLUInt, 4 | 8), LETTER('Q', kDLUInt, 8),    LETTER('n', kDLInt, 8),
    LETTER('N', kDLUInt, 8),     LETTER('e', kDLFloat, 2),   LETTER('f', kDLFloat, 4),
    LETTER('d', kDLFloat, 8),    LETTER('?', kDLBool, 1),
};

static bool has_size(char letter, Py_ssize_t size) {
    if (letter & 128 || !letters[(int)letter].is_known)
        return false;
    return size > 0 && (size & (size - 1)) == 0 && (letters[(int)letter].sizes & size);
}

int dlb_buffer_format(const char *format, Py_ssize_t itemsize, DLDataType *dtype) {
    const char *at = format == NULL ? "B" : format;
    if (*at == '@' || *at == '=' ||
        *at == '<') /* native order on the machines we build for */
        at++;
    bool is_complex = at[0] == 'Z' && (at[1] == 'f' || at[1] == 'd');
    if (is_complex)
        at++;
    /* Of a ctypes Union or a packed Structure, the format is that of a single byte. */
    if (!has_size(at[0], is_complex ? itemsize / 2 : itemsize) || at[1] != 0)
        return -1;
    uint8_t code = is_complex ? kDLComplex : letters[(int)at[0]].code;
    *dtype = (DLDataType){code, (uint8_t)(itemsize * 8), 1};
    return 0;
}

static int refuse_buffer(Py_buffer *out, const char *reason, const char *text) {
    out->obj = NULL;
    dlb_refuse(reason, "buffer protocol: %s", text);
    return -1;
}

static bool asks(int request, int flags) {
    return (request & flags) == flags;
}

static bool contiguity_fits(const DLTensor *dl, int request) {
    bool row_major = dlb_is_row_major(dl), column_major = dlb_is_column_major(dl);
    if (!asks(request, PyBUF_STRIDES) || asks(request, PyBUF_C_CONTIGUOUS))
        return row_major;
    if (asks(request, PyBUF_F_CONTIGUOUS))
        return column_major;
    return !asks(request, PyBUF_ANY_CONTIGUOUS) || row_major || column_major;
}

static int check_request(const dlb_tensor *tensor, Py_buffer *out, int request) {
    const DLTensor *dl = &tensor->dl;
    if (dl->device.device_type != kDLCPU)
        return refuse_buffer(out, "device",
                             "the tensor is not in CPU memory; pass .to(\"cpu\")");
    if (buffer_format(dl->dtype) == NULL)
        return refuse_buffer(out, "dtype",
                             "the dtype has no format in PEP 3118; "
                             "pass .view(\"uint8\") for the bytes");
    if ((tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) && (request & PyBUF_WRITABLE))
        return refuse_buffer(out, "readonly", "the tensor is read-only");
    if (dl->ndim > PyBUF_MAX_NDIM)
        return refuse_buffer(out, "ndim", "a buffer has at most 64 dimensions");
    if (!contiguity_fits(dl, request))
        return refuse_buffer(
            out, "strides",
            "the consumer asks for contiguous memory; pass .contiguous()");
    return 0;
}

/* Of a dimension with one element, a stride may be any number. */
static int64_t byte_stride(const DLTensor *dl, int32_t i, int64_t itemsize) {
    return (int64_t)((uint64_t)dl->strides[i] * (uint64_t)itemsize);
}

static int tensor_getbuffer(PyObject *self, Py_buffer *out, int request) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    DLTensor *dl = &tensor->dl;
    if (check_request(tensor, out, request) < 0)
        return -1;
    Py_ssize_t itemsize = dl->dtype.bits / 8;
    Py_ssize_t *strides = PyMem_Malloc(((size_t)dl->ndim + 1) * sizeof *strides);
    if (strides == NULL) {
        out->obj = NULL;
        PyErr_NoMemory();
        return -1;
    }
    for (int32_t i = 0; i < dl->ndim; i++)
        strides[i] = byte_stride(dl, i, itemsize);
    bool scalar = dl->ndim == 0; /* which has no shape and no strides, says PEP 3118 */
    out->obj = Py_NewRef(self);
    out->buf = dl->data ? dl->data : (void *)dl; /* never read: there are no elements */
    out->len = dlb_element_count(dl) * itemsize;
    out->readonly = (tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY) != 0;
    out->itemsize = itemsize;
    out->format = request & PyBUF_FORMAT ? (char *)buffer_format(dl->dtype) : NULL;
    out->ndim = request & PyBUF_ND ? dl->ndim : 1;
    out->shape = request & PyBUF_ND && !scalar ? (Py_ssize_t *)dl->shape : NULL;
    out->strides = asks(request, PyBUF_STRIDES) && !scalar ? strides : NULL;
    out->suboffsets = NULL;
    out->internal = strides;
    dlb_count_object(views, 1);
    return 0;
}

static void tensor_releasebuffer(PyObject *Py_UNUSED(self), Py_buffer *out) {
    dlb_count_object(views, -1);
    PyMem_Free(out->internal);
}

static PyBufferProcs buffer_protocol = {tensor_getbuffer, tensor_releasebuffer};

/* ---- NumPy's array interface as a struct ---- */

typedef struct {
    PyArrayInterface interface;
    dlb_buffer *buffer;
    Py_intptr_t dims[]; /* shape, then strides in bytes */
} array_struct;

static const char kinds[] = {[kDLInt] = 'i',
                             [kDLUInt] = 'u',
                             [kDLFloat] = 'f',
                             [kDLComplex] = 'c',
                             [kDLBool] = 'b'};

static int array_flags(const DLTensor *dl, uint64_t flags) {
    int number = dl->dtype.bits / 8 / (dl->dtype.code == kDLComplex ? 2 : 1);
    bool is_aligned = (uintptr_t)dl->data % (uintptr_t)number == 0;
    bool is_readonly = flags & DLPACK_FLAG_BITMASK_READ_ONLY;
    return NPY_ARRAY_NOTSWAPPED | (is_aligned ? NPY_ARRAY_ALIGNED : 0) |
           (is_readonly ? 0 : NPY_ARRAY_WRITEABLE) |
           (dlb_is_row_major(dl) ? NPY_ARRAY_C_CONTIGUOUS : 0) |
           (dlb_is_column_major(dl) ? NPY_ARRAY_F_CONTIGUOUS : 0);
}

static void destroy_array_struct(PyObject *capsule) {
    array_struct *made = PyCapsule_GetPointer(capsule, NULL);
    dlb_count_object(views, -1);
    dlb_buffer_drop(made->buffer);
    free(made);
}

/* NumPy wants readers to keep the object; the capsule keeps the memory even so. */
static PyObject *make_array_struct(dlb_view *view) {
    const DLTensor *dl = &view->dl;
    int32_t ndim = dl->ndim;
    array_struct *made = malloc(sizeof *made + 2 * (size_t)ndim * sizeof *made->dims);
    PyObject *capsule = NULL;
    if (made == NULL)
        PyErr_NoMemory();
    else
        capsule = PyCapsule_New(made, NULL, destroy_array_struct);
    if (capsule == NULL) {
        free(made);
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    int itemsize = dl->dtype.bits / 8;
    for (int32_t i = 0; i < ndim; i++) {
        made->dims[i] = dl->shape[i];
        made->dims[ndim + i] = byte_stride(dl, i, itemsize);
    }
    made->buffer = view->buffer;
    made->interface = (PyArrayInterface){.two = 2,
                                         .nd = ndim,
                                         .typekind = kinds[dl->dtype.code],
                                         .itemsize = itemsize,
                                         .flags = array_flags(dl, view->flags),
                                         .shape = made->dims,
                                         .strides = made->dims + ndim,
                                         .data = dl->data};
    dlb_count_object(views, 1);
    return capsule;
}

/* AttributeError means that there is none: NumPy then looks for another protocol. */
static PyObject *get_array_struct(PyObject *self, void *Py_UNUSED(closure)) {
    dlb_tensor *tensor = as_tensor(self);
    if (!dlb_is_host(tensor->dl.device) || buffer_format(tensor->dl.dtype) == NULL)
        return PyErr_Format(PyExc_AttributeError,
                            "__array_struct__: NumPy has no name for DLPack's dtype "
                            "(%d, %d, %d) on device (%d, %d)",
                            tensor->dl.dtype.code, tensor->dl.dtype.bits,
                            tensor->dl.dtype.lanes, (int)tensor->dl.device.device_type,
                            (int)tensor->dl.device.device_id);
    dlb_view view;
    dlb_tensor_view(tensor, &view);
    if (dlb_lend_to(&view, DLB_STREAM_NONE, "__array_struct__") < 0) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    return make_array_struct(&view);
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
    PyObject *value = dlb_cache_get(cache, key_object);
    if (value == NULL && !PyErr_Occurred()) {
        value = make ? PyObject_CallObject(make, numbers) : Py_NewRef(numbers);
        dlb_share(key_object); /* a dict counts its keys where it looks */
        value = dlb_cache_put(cache, key_object, value);
    }
    Py_DECREF(key_object);
    Py_DECREF(numbers);
    return value;
}

PyObject *dlb_dtype_object(DLDataType dtype) {
    return cached(dlb.dtypes, dlb_dtype_key(dtype), dlb.make_dtype,
                  Py_BuildValue("(iii)", dtype.code, dtype.bits, dtype.lanes));
}

static PyObject *get_dtype(PyObject *self, void *Py_UNUSED(closure)) {
    return dlb_dtype_object(as_tensor(self)->dl.dtype);
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

static PyObject *get_is_immutable(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong((as_tensor(self)->flags & DLB_IMMUTABLE) != 0);
}

static PyObject *get_readonly(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(as_tensor(self)->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
}

static PyObject *get_is_contiguous(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(dlb_is_row_major(&as_tensor(self)->dl));
}

static PyObject *get_flags(PyObject *self, void *Py_UNUSED(closure)) {
    return PyLong_FromUnsignedLongLong(as_tensor(self)->flags & DLB_KNOWN_FLAGS);
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
    {"_is_immutable", get_is_immutable, NULL, "Whether DLB_IMMUTABLE is set.", NULL},
    {"flags", get_flags, NULL, "The bits of DLManagedTensorVersioned.flags.", NULL},
    {"version", get_version, NULL, "DLPack version (major, minor) it came in with.",
     NULL},
    {"buffer", get_buffer, NULL, "The TensorBuffer that keeps the memory.", NULL},
    {"__array_struct__", get_array_struct, NULL,
     "NumPy's array interface as a C struct: a PyCapsule without a name that holds a\n"
     "PyArrayInterface and keeps the memory. Absent unless the memory is the CPU's.",
     NULL},
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
     "is an ExchangeError (a BufferError) and leaves nothing behind. A keyword that "
     "means nothing is\n"
     "a TypeError, or for `copy` an ArgumentError. Memory of a SYCL device is copied, "
     "and made ready\n"
     "for a dpctl.SyclQueue as the stream, by dpnp where that is imported."},
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
     "To and from SYCL devices dpnp copies, where it is imported.\n\n"
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
    {"reshape", (PyCFunction)(void (*)(void))dlb_tensor_reshape, KEYWORDS,
     "reshape($self, /, *shape)\n--\n\n"
     "Return a view of another shape, one extent of which may be -1.\n\n"
     "Raises ViewError where the strides do not allow it without a copy, which\n"
     "`contiguous().reshape()` makes, and ArgumentError where the number of elements\n"
     "differs."},
    {"_view", (PyCFunction)(void (*)(void))tensor_subview, METH_VARARGS | METH_KEYWORDS,
     "_view($self, /, shape, strides, byte_offset=0, dtype=None, set_flags=0, "
     "cls=None,\n"
     "      clear_flags=0)\n--\n\n"
     "A Tensor over the same buffer; the caller answers for the layout."},
    {"_capsule", (PyCFunction)(void (*)(void))dlb_tensor_capsule,
     METH_VARARGS | METH_KEYWORDS,
     "_capsule($self, /, versioned, flags=0, force_readonly=False, stream=-1, "
     "kept=None, worker=0)\n--\n\n"
     "A new capsule over the same buffer, for a consumer that works on `stream`; "
     "`kept` "
     "lives until\n"
     "the consumer gives the memory back."},
    {NULL, NULL, 0, NULL},
};

static PyMappingMethods subscription = {.mp_subscript = dlb_tensor_item};

PyTypeObject dlb_TensorType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TensorBase",
    .tp_doc = "One DLTensor and one reference to the buffer that keeps its memory.",
    .tp_basicsize = sizeof(dlb_tensor),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = tensor_dealloc,
    .tp_traverse = tensor_traverse,
    .tp_is_gc = tensor_is_gc,
    .tp_free = free_tensor,
    .tp_weaklistoffset = offsetof(dlb_tensor, weak_references),
    .tp_getset = tensor_attributes,
    .tp_methods = tensor_methods,
    .tp_as_buffer = &buffer_protocol,
    .tp_as_mapping = &subscription,
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

const char *dlb_kind_of_buffer(const dlb_buffer *buffer) {
    if (dlb_buffer_object(buffer) != NULL)
        return "object";
    return dlb_cuda_is_ours(buffer) ? "allocator" : dlb_buffer_kind(buffer);
}

static PyObject *buffer_kind(PyObject *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(dlb_kind_of_buffer(((buffer_object *)self)->buffer));
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

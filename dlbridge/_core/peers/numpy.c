/* numpy.ndarray, through NumPy's C API. */
#include "cuda/cuda.h"
#include "peers/borrowing.h"
#include "python/numpy.h"

#include <string.h>

#define DTYPE(code, bits) {code, bits, 1}
static const DLDataType by_type_number[] = {
    [NPY_BOOL] = DTYPE(kDLBool, 8),
    [NPY_BYTE] = DTYPE(kDLInt, 8),
    [NPY_UBYTE] = DTYPE(kDLUInt, 8),
    [NPY_SHORT] = DTYPE(kDLInt, 16),
    [NPY_USHORT] = DTYPE(kDLUInt, 16),
    [NPY_INT] = DTYPE(kDLInt, 32),
    [NPY_UINT] = DTYPE(kDLUInt, 32),
    [NPY_LONG] = DTYPE(kDLInt, 8 * sizeof(long)),
    [NPY_ULONG] = DTYPE(kDLUInt, 8 * sizeof(long)),
    [NPY_LONGLONG] = DTYPE(kDLInt, 64),
    [NPY_ULONGLONG] = DTYPE(kDLUInt, 64),
    [NPY_FLOAT] = DTYPE(kDLFloat, 32),
    [NPY_DOUBLE] = DTYPE(kDLFloat, 64),
    [NPY_CFLOAT] = DTYPE(kDLComplex, 64),
    [NPY_CDOUBLE] = DTYPE(kDLComplex, 128),
    [NPY_HALF] = DTYPE(kDLFloat, 16),
};
#define TYPE_NUMBERS (int)(sizeof by_type_number / sizeof *by_type_number)

bool dlb_is_numpy(PyObject *x) {
    return PyArray_CheckExact(x);
}

bool dlb_numpy_has_objects(PyObject *x) {
    return PyArray_Check(x) && PyArray_TYPE((PyArrayObject *)x) == NPY_OBJECT;
}

int dlb_borrow_numpy(PyObject *x, DLTensor *tensor, uint64_t *flags, int64_t *strides,
                     int32_t room) {
    if (!PyArray_CheckExact(x))
        return DLB_DECLINED;
    PyArrayObject *array = (PyArrayObject *)x;
    unsigned number = (unsigned)PyArray_TYPE(array);
    int ndim = PyArray_NDIM(array);
    if (number >= TYPE_NUMBERS || by_type_number[number].bits == 0 || ndim > room ||
        PyArray_ISBYTESWAPPED(array))
        return DLB_DECLINED;
    int shift = __builtin_ctz(by_type_number[number].bits) - 3;
    npy_intp remainders = 0;
    for (int i = 0; i < ndim; i++) {
        npy_intp stride = PyArray_STRIDE(array, i);
        remainders |= stride & ((1 << shift) - 1);
        strides[i] = stride >> shift;
    }
    *tensor = (DLTensor){.data = PyArray_DATA(array),
                         .device = {kDLCPU, 0},
                         .ndim = ndim,
                         .dtype = by_type_number[number],
                         .shape = (int64_t *)PyArray_DIMS(array),
                         .strides = strides};
    *flags = PyArray_ISWRITEABLE(array) ? 0 : DLPACK_FLAG_BITMASK_READ_ONLY;
    return remainders ? DLB_DECLINED : 0;
}

bool dlb_numpy_keeps_memory(PyObject *array) {
    PyObject *base = PyArray_BASE((PyArrayObject *)array);
    if (base != NULL && PyArray_CheckExact(base))
        base = PyArray_BASE((PyArrayObject *)base);
    return base == NULL || dlb_is_tensor(base);
}

/* NumPy gives the buffer behind an array back at once, so that a mmap or SharedMemory
 * may be closed, or a bytearray resized, under it. Such an array is kept together with
 * the buffer of its base, and these calls are refused. */
dlb_buffer *dlb_buffer_of_array(PyObject *keeper, PyObject *array) {
    PyObject *base = PyArray_BASE((PyArrayObject *)array);
    while (base != NULL && PyArray_Check(base))
        base = PyArray_BASE((PyArrayObject *)base);
    if (base == NULL || dlb_is_tensor(base) || !PyObject_CheckBuffer(base) ||
        PyBytes_Check(base))
        return dlb_buffer_of_object(keeper);
    bool is_light = !PyObject_IS_GC(keeper); /* as arrays are */
    PyObject *held = dlb_hold_buffer(base, is_light ? keeper : NULL);
    if (held == NULL) {
        if (dlb_clear_error() < 0)
            return NULL;
        return dlb_buffer_of_object(keeper);
    }
    PyObject *both = is_light ? Py_NewRef(held) : PyTuple_Pack(2, keeper, held);
    Py_DECREF(held);
    dlb_buffer *buffer = both ? dlb_buffer_of_object(both) : NULL;
    Py_XDECREF(both);
    return buffer;
}

static int view_array(PyArrayObject *array, DLDataType dtype, uint64_t flags,
                      dlb_view *view) {
    int ndim = PyArray_NDIM(array);
    npy_intp itemsize = PyArray_ITEMSIZE(array);
    if (ndim > DLB_MAX_NDIM || 8 * itemsize != dlb_element_bits(dtype, flags))
        return DLB_DECLINED;
    *view = (dlb_view){.dl = {.data = PyArray_DATA(array),
                              .device = {kDLCPU, 0},
                              .ndim = ndim,
                              .dtype = dtype,
                              .shape = (int64_t *)PyArray_DIMS(array)},
                       .flags = flags};
    view->dl.strides = view->scratch;
    for (int i = 0; i < ndim; i++) {
        if (PyArray_STRIDE(array, i) % itemsize != 0)
            return DLB_DECLINED;
        view->scratch[i] = PyArray_STRIDE(array, i) / itemsize;
    }
    return 0;
}

/* DLPack's dtypes by the numbers that NumPy gave to types of other packages, for good;
 * of no bits: not known. Of one word, so that they are read without a lock. */
enum { REGISTERED = 64 };
static _Atomic(DLDataType) registered_types[REGISTERED];

/* DLB_DECLINED for a type that DLPack does not have. */
static int find_registered_type(PyArray_Descr *descr, DLDataType *dtype) {
    unsigned index = (unsigned)descr->type_num - NPY_USERDEF;
    if (index >= REGISTERED || dlb.numpy_fields == NULL)
        return DLB_DECLINED;
    *dtype = atomic_load_explicit(&registered_types[index], memory_order_relaxed);
    if (dtype->bits != 0)
        return 0;
    PyObject *fields = PyObject_CallOneArg(dlb.numpy_fields, (PyObject *)descr);
    int status = fields == NULL ? -1 : fields == Py_None ? DLB_DECLINED : 0;
    if (status == 0)
        status = dlb_parse_dtype(fields, dtype);
    if (status == 0)
        atomic_store_explicit(&registered_types[index], *dtype, memory_order_relaxed);
    Py_XDECREF(fields);
    return status;
}

/* Those narrower than a byte have one each. Not inlined, for the sake of NumPy's own.
 */
__attribute__((noinline)) static int view_registered(PyObject *x, dlb_view *view) {
    PyArrayObject *array = (PyArrayObject *)x;
    if (!PyArray_CheckExact(x) || PyArray_ISBYTESWAPPED(array))
        return DLB_DECLINED;
    DLDataType dtype;
    int status = find_registered_type(PyArray_DESCR(array), &dtype);
    if (status != 0)
        return status;
    uint64_t flags =
        dtype.bits < 8 ? (uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED : 0;
    if (!PyArray_ISWRITEABLE(array))
        flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    return view_array(array, dtype, flags, view);
}

int dlb_take_numpy(PyObject *x, dlb_view *view) {
    int status =
        dlb_borrow_numpy(x, &view->dl, &view->flags, view->scratch, DLB_MAX_NDIM);
    if (status != 0)
        status = view_registered(x, view);
    if (status != 0)
        return status;
    view->borrowed = (dlb_stream_id){0};
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->buffer = dlb_buffer_of_array(x, x);
    return view->buffer ? 0 : -1;
}

int dlb_take_numpy_as(PyObject *x, DLDataType dtype, dlb_view *view) {
    int status = PyArray_CheckExact(x) ? view_array((PyArrayObject *)x, dtype, 0, view)
                                       : DLB_DECLINED;
    if (status != 0)
        return status;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->buffer = dlb_buffer_of_object(x);
    return view->buffer ? 0 : -1;
}

/* Type numbers by code and log2 of the bytes. */
static int type_number(DLDataType dtype) {
    static const signed char numbers[][5] = {
        [kDLInt] = {NPY_INT8, NPY_INT16, NPY_INT32, NPY_INT64, -1},
        [kDLUInt] = {NPY_UINT8, NPY_UINT16, NPY_UINT32, NPY_UINT64, -1},
        [kDLFloat] = {-1, NPY_HALF, NPY_FLOAT, NPY_DOUBLE, -1},
        [kDLOpaqueHandle] = {-1, -1, -1, -1, -1},
        [kDLBfloat] = {-1, -1, -1, -1, -1},
        [kDLComplex] = {-1, -1, -1, NPY_CFLOAT, NPY_CDOUBLE},
        [kDLBool] = {NPY_BOOL, -1, -1, -1, -1},
    };
    if (dtype.code > kDLBool || dtype.lanes != 1 || dtype.bits < 8)
        return -1;
    return numbers[dtype.code][__builtin_ctz(dtype.bits) - 3];
}

#define MAX_NDIM 64 /* NumPy 2's; older ones refuse from 33 on */

/* A dtype that NumPy itself lacks: the Python side knows which package has it. */
static PyArray_Descr *foreign_descr(DLDataType dtype) {
    PyObject *key = PyLong_FromUnsignedLong(dlb_dtype_key(dtype));
    PyObject *descr = key ? dlb_cache_get(dlb.descrs, key) : NULL;
    if (key != NULL && descr == NULL && !PyErr_Occurred() && dlb.numpy_descr != NULL) {
        descr = PyObject_CallFunction(dlb.numpy_descr, "iii", dtype.code, dtype.bits,
                                      dtype.lanes);
        descr = dlb_cache_put(dlb.descrs, key, descr);
    }
    Py_XDECREF(key);
    if (descr != NULL && !PyArray_DescrCheck(descr)) {
        Py_DECREF(descr);
        descr = NULL;
        dlb_refuse("dtype", "to_numpy: no NumPy dtype for code %d, %d bits, %d lanes",
                   dtype.code, dtype.bits, dtype.lanes);
    }
    return (PyArray_Descr *)descr;
}

static const char *numpy_refusal(const DLTensor *dl) {
    static const uint64_t host = 1 << kDLCPU | 1 << kDLCUDAHost | 1 << kDLROCMHost |
                                 1 << kDLCUDAManaged | 1 << kDLTPUHost;
    unsigned type = (unsigned)dl->device.device_type;
    if (type >= 64 || (host >> type & 1) == 0)
        return "device";
    return dl->ndim > MAX_NDIM ? "ndim" : NULL;
}

/* The dtype asked for, or ours; either must have the size of the elements in memory. */
static PyArray_Descr *find_descr(const dlb_view *view, PyObject *wanted) {
    int number = type_number(view->dl.dtype);
    PyArray_Descr *descr = NULL;
    if (wanted == NULL || wanted == Py_None)
        descr =
            number >= 0 ? PyArray_DescrFromType(number) : foreign_descr(view->dl.dtype);
    else if (PyArray_DescrCheck(wanted))
        descr = (PyArray_Descr *)Py_NewRef(wanted);
    else
        PyErr_Format(PyExc_TypeError, "to_numpy: expected a NumPy dtype, got %R",
                     wanted);
    if (descr == NULL)
        return NULL;
    if (8 * PyDataType_ELSIZE(descr) == dlb_element_bits(view->dl.dtype, view->flags))
        return descr;
    dlb_refuse("dtype", "to_numpy: %R has another size than the elements in memory",
               descr);
    Py_DECREF(descr);
    return NULL;
}

static PyObject *wrap_memory(PyObject *owner, PyArray_Descr *descr,
                             npy_intp *byte_strides) {
    dlb_tensor *tensor = (dlb_tensor *)owner;
    DLTensor *dl = &tensor->dl;
    int flags = tensor->flags & DLPACK_FLAG_BITMASK_READ_ONLY ? 0 : NPY_ARRAY_WRITEABLE;
    void *data = dl->data ? dl->data : (void *)dl; /* NULL would make NumPy allocate */
    PyObject *array = PyArray_NewFromDescr(&PyArray_Type, descr, dl->ndim, dl->shape,
                                           byte_strides, data, flags, NULL);
    if (array == NULL)
        Py_DECREF(owner);
    else if (PyArray_SetBaseObject((PyArrayObject *)array, owner) < 0)
        Py_CLEAR(array);
    return array;
}

/* Dimensions of which all versions of NumPy have so many. */
enum { ORDINARY_NDIM = 32 };

PyObject *dlb_numpy_within(PyObject *owner, const DLTensor *dl) {
    int number = type_number(dl->dtype);
    if (number < 0 || dl->ndim > ORDINARY_NDIM)
        return NULL;
    PyObject *array = PyArray_NewFromDescr(
        &PyArray_Type, PyArray_DescrFromType(number), dl->ndim, dl->shape, NULL,
        dl->data, NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED, NULL);
    if (array != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)array, Py_NewRef(owner)) < 0)
        Py_CLEAR(array);
    return array;
}

/* Copies into pinned memory and kernels on managed memory may still be at work. */
static int wait_for_values(dlb_view *view) {
    int status = 0;
    if (view->buffer->access != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = dlb_access_wait(view->buffer->access, true);
        Py_END_ALLOW_THREADS
    }
    if (status < 0)
        dlb_cuda_raise("to_numpy");
    return status;
}

PyObject *dlb_give_numpy(dlb_view *view, PyObject *wanted) {
    npy_intp byte_strides[MAX_NDIM];
    const char *reason = numpy_refusal(&view->dl);
    if (reason != NULL)
        dlb_refuse_layout(reason, "to_numpy", &view->dl);
    PyArray_Descr *descr = reason ? NULL : find_descr(view, wanted);
    if (descr != NULL && wait_for_values(view) < 0)
        Py_CLEAR(descr);
    if (descr == NULL) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    npy_intp itemsize = PyDataType_ELSIZE(descr);
    for (int32_t i = 0; i < view->dl.ndim; i++)
        byte_strides[i] = /* of a single element any number, which may wrap */
            (npy_intp)((uint64_t)view->dl.strides[i] * (uint64_t)itemsize);
    PyObject *owner = dlb_tensor_new(dlb.tensor_type, view);
    if (owner == NULL) {
        Py_DECREF(descr);
        return NULL;
    }
    return wrap_memory(owner, descr, byte_strides);
}

/* ---- the arguments and results of kernels ---- */

bool dlb_numpy_dtype(PyObject *descr, DLDataType *dtype) {
    unsigned number =
        PyArray_DescrCheck(descr) ? (unsigned)((PyArray_Descr *)descr)->type_num : ~0u;
    if (number >= TYPE_NUMBERS || by_type_number[number].bits == 0 ||
        PyDataType_ISBYTESWAPPED((PyArray_Descr *)descr))
        return false;
    *dtype = by_type_number[number];
    return true;
}

PyObject *dlb_numpy_descr(DLDataType dtype) {
    int number = type_number(dtype);
    return number < 0 ? NULL : (PyObject *)PyArray_DescrFromType(number);
}

PyObject *dlb_numpy_allocate(int32_t ndim, const int64_t *shape, DLDataType dtype) {
    int number = type_number(dtype);
    if (number < 0 || ndim > MAX_NDIM)
        return NULL;
    return PyArray_Empty(ndim, shape, PyArray_DescrFromType(number), 0);
}

/* ---- arrays over a Tensor ---- */

dlb_tensor *dlb_numpy_base(PyObject *array) {
    PyObject *base = PyArray_BASE((PyArrayObject *)array);
    return base != NULL && dlb_is_tensor(base) ? (dlb_tensor *)base : NULL;
}

/* NumPy has no function for it; the pointer is the first field in every version. */
void dlb_numpy_set_data(PyObject *array, void *data) {
    struct {
        PyObject_HEAD
        char *data;
    } *fields = (void *)array;
    fields->data = data;
}

static int take(PyObject *x, const dlb_known_type *Py_UNUSED(known),
                bool Py_UNUSED(detaches), dlb_view *view) {
    return dlb_take_numpy(x, view);
}

const dlb_peer dlb_numpy_peer = {
    .name = "numpy",
    .is_framework = true,
    .take = take,
};

/* ---- kernels ---- */

static int borrow_numpy(dlb_call *call, int index, PyObject *x) {
    dlb_frame *frame = &call->frame;
    DLTensor *tensor = &frame->tensors[index];
    if (dlb_borrow_numpy(x, tensor, &frame->flags[index], call->dims + call->dim_count,
                         call->dim_room - call->dim_count) != 0)
        return DLB_DECLINED;
    call->dim_count += tensor->ndim;
    return 0;
}

static inline bool match_array(PyObject *x, PyTypeObject *type,
                               const dlb_cached_tensor *cached, DLTensor *tensor,
                               int64_t *room) {
    PyArrayObject *array = (PyArrayObject *)x;
    int32_t ndim = cached->dl.ndim;
    if (Py_TYPE(x) != type || PyArray_DESCR(array) != cached->descr ||
        PyArray_NDIM(array) != ndim || PyArray_DATA(array) == NULL ||
        (PyArray_FLAGS(array) & cached->needed) != cached->needed)
        return false;
    for (int32_t k = 0; k < ndim; k++)
        if (PyArray_DIM(array, k) != cached->shape[k])
            return false;
    *tensor = cached->dl;
    tensor->data = PyArray_DATA(array);
    dlb_use_dims(tensor, cached, room);
    return true;
}

bool dlb_match_numpy(dlb_call *call, const dlb_cached_tensor *cached, int32_t first,
                     int32_t count) {
    PyObject *const *objects = call->objects;
    DLTensor *tensors = call->frame.tensors;
    uint64_t *flags = call->frame.flags;
    int64_t *kept = call->kept_dims + (size_t)first * DLB_ROOM;
    for (int32_t i = first; i < first + count; i++, kept += DLB_ROOM) {
        if (!match_array(objects[i], &PyArray_Type, cached++, &tensors[i], kept))
            return false;
        flags[i] = 0;
    }
    return true;
}

/* Only descriptors that live as long as NumPy are known by their address. */
bool dlb_cache_numpy(PyObject *x, dlb_cached_tensor *cached) {
    PyArray_Descr *own = PyArray_DescrFromType(PyArray_TYPE((PyArrayObject *)x));
    cached->descr = own;
    Py_XDECREF(own);
    return PyArray_DESCR((PyArrayObject *)x) == own;
}

bool dlb_match_arrays(const dlb_call_cache *cache, dlb_frame *frame,
                      PyObject *const *arrays, int64_t *room) {
    PyTypeObject *type = &PyArray_Type;
    int32_t count = cache->input_count;
    for (int32_t i = 0; i < count; i++, room += DLB_ROOM)
        if (!match_array(arrays[i], type, &cache->tensors[i], &frame->tensors[i], room))
            return false;
    return true;
}

static PyObject *allocate_numpy(int32_t ndim, const int64_t *shape, DLDataType dtype,
                                DLDevice Py_UNUSED(device)) {
    return dlb_numpy_allocate(ndim, shape, dtype);
}

const dlb_lender dlb_numpy_lender = {
    .framework = "numpy",
    .source = "numpy.ndarray",
    .owns = dlb_is_numpy,
    .borrow = borrow_numpy,
    .allocate = allocate_numpy,
};

/* ---- by name, from Python ---- */

static PyObject *take_numpy(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    int status = dlb_take_numpy(x, &view);
    if (status == 0)
        return dlb_tensor_new(dlb.tensor_type, &view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *give_numpy(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *descr = Py_None;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "O|O:give_numpy", &tensor, &descr) ||
        dlb_expect_tensor(tensor, "give_numpy") == NULL)
        return NULL;
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    return dlb_give_numpy(&view, descr);
}

PyMethodDef dlb_numpy_functions[] = {
    {"take_numpy", take_numpy, METH_O,
     "take_numpy($module, x, /)\n--\n\nA Tensor over the memory of a NumPy array; None "
     "for all but plain arrays of numbers that DLPack has."},
    {"give_numpy", give_numpy, METH_VARARGS,
     "give_numpy($module, tensor, descr=None, /)\n--\n\nA NumPy array over the "
     "Tensor's memory."},
    {NULL, NULL, 0, NULL},
};

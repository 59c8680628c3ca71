/* NumPy arrays through NumPy's C API. */
#include "exchange/exchange.h"
#include "cuda/cuda.h"
#include "memory/block.h"
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

/* ---- memory of NumPy's own arrays, from our blocks (NEP 49) ---- */

/* Before the data lies how many bytes the block has: NumPy's own idea of the size of an
 * array can change. */
enum { HEADER = DLB_BLOCK_ALIGNMENT };

static void *get_block(size_t nbytes, bool zero) {
    char *block = nbytes < SIZE_MAX / 4 ? dlb_block_get(nbytes + HEADER, zero) : NULL;
    if (block == NULL)
        return NULL;
    *(size_t *)block = nbytes + HEADER;
    return block + HEADER;
}

static void *numpy_malloc(void *Py_UNUSED(context), size_t nbytes) {
    return get_block(nbytes, false);
}

static void *numpy_calloc(void *Py_UNUSED(context), size_t count, size_t size) {
    size_t nbytes;
    return __builtin_mul_overflow(count, size, &nbytes) ? NULL
                                                        : get_block(nbytes, true);
}

static void numpy_free(void *Py_UNUSED(context), void *data, size_t Py_UNUSED(nbytes)) {
    char *block = data ? (char *)data - HEADER : NULL;
    if (block != NULL)
        dlb_block_put(block, *(size_t *)block);
}

static void *numpy_realloc(void *context, void *data, size_t nbytes) {
    size_t *size = data ? (size_t *)((char *)data - HEADER) : NULL;
    if (size != NULL && nbytes < SIZE_MAX / 4 &&
        dlb_block_capacity(*size) == dlb_block_capacity(nbytes + HEADER)) {
        *size = nbytes + HEADER;
        return data;
    }
    void *moved = get_block(nbytes, false);
    if (moved == NULL || size == NULL)
        return moved;
    size_t before = *size - HEADER;
    memcpy(moved, data, before < nbytes ? before : nbytes);
    numpy_free(context, data, before);
    return moved;
}

static PyDataMem_Handler numpy_handler = {
    "dlbridge_aligned",
    1,
    {NULL, numpy_malloc, numpy_calloc, numpy_realloc, numpy_free},
};

/* A handler that refuses large arrays, and has the memory of others from `inner`. The
 * arrays keep the capsule, and it keeps that of `inner`. */
typedef struct {
    PyDataMem_Handler handler;
    PyObject *before; /* the capsule of `inner` */
    const PyDataMemAllocator *inner;
    size_t most; /* bytes of one array */
} limited_handler;

static void *limited_malloc(void *context, size_t nbytes) {
    const limited_handler *self = context;
    return nbytes > self->most ? NULL : self->inner->malloc(self->inner->ctx, nbytes);
}

static void *limited_calloc(void *context, size_t count, size_t size) {
    const limited_handler *self = context;
    size_t nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes) || nbytes > self->most)
        return NULL;
    return self->inner->calloc(self->inner->ctx, count, size);
}

static void limited_free(void *context, void *data, size_t nbytes) {
    const limited_handler *self = context;
    self->inner->free(self->inner->ctx, data, nbytes);
}

static void *limited_realloc(void *context, void *data, size_t nbytes) {
    const limited_handler *self = context;
    return nbytes > self->most ? NULL
                               : self->inner->realloc(self->inner->ctx, data, nbytes);
}

static void free_limited(PyObject *capsule) {
    limited_handler *self = PyCapsule_GetPointer(capsule, "mem_handler");
    Py_DECREF(self->before);
    PyMem_Free(self);
}

/* The capsule of a handler over the current one. */
static PyObject *new_limited(size_t most) {
    PyObject *before = PyDataMem_GetHandler();
    PyDataMem_Handler *inner =
        before ? PyCapsule_GetPointer(before, "mem_handler") : NULL;
    limited_handler *self = inner ? PyMem_Calloc(1, sizeof *self) : NULL;
    if (self == NULL) {
        Py_XDECREF(before);
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    *self = (limited_handler){
        {"dlbridge_limited",
         1,
         {self, limited_malloc, limited_calloc, limited_realloc, limited_free}},
        before,
        &inner->allocator,
        most,
    };
    PyObject *capsule = PyCapsule_New(&self->handler, "mem_handler", free_limited);
    if (capsule == NULL) {
        Py_DECREF(before);
        PyMem_Free(self);
    }
    return capsule;
}

/* A handler that has large arrays from an arena, and the memory of others from our
 * blocks. The arrays keep the capsule, and it keeps the arena. */
typedef struct {
    PyDataMem_Handler handler;
    dlb_arena *arena;
    size_t least; /* bytes of an array in the arena */
} arena_handler;

static void *arena_malloc(void *context, size_t nbytes) {
    const arena_handler *self = context;
    void *found = nbytes < self->least ? NULL : dlb_arena_get(self->arena, nbytes);
    return found != NULL ? found : numpy_malloc(NULL, nbytes);
}

/* Pages of the arena may have been used before. */
static void *arena_calloc(void *context, size_t count, size_t size) {
    const arena_handler *self = context;
    size_t nbytes;
    if (__builtin_mul_overflow(count, size, &nbytes))
        return NULL;
    void *found = nbytes < self->least ? NULL : dlb_arena_get(self->arena, nbytes);
    return found != NULL ? memset(found, 0, nbytes) : numpy_calloc(NULL, count, size);
}

static void arena_free(void *context, void *data, size_t nbytes) {
    const arena_handler *self = context;
    if (!dlb_arena_put(self->arena, data))
        numpy_free(NULL, data, nbytes);
}

/* NumPy does not say how many bytes there were: what has grown is elsewhere. */
static void *arena_realloc(void *context, void *data, size_t nbytes) {
    const arena_handler *self = context;
    size_t before = dlb_arena_capacity(self->arena, data);
    if (before == 0)
        return numpy_realloc(NULL, data, nbytes);
    void *moved = arena_malloc(context, nbytes);
    if (moved == NULL)
        return NULL;
    memcpy(moved, data, before < nbytes ? before : nbytes);
    dlb_arena_put(self->arena, data);
    return moved;
}

static void free_arena_handler(PyObject *capsule) {
    arena_handler *self = PyCapsule_GetPointer(capsule, "mem_handler");
    dlb_arena_drop(self->arena);
    PyMem_Free(self);
}

PyObject *dlb_numpy_arena_handler(dlb_arena *arena, size_t least) {
    arena_handler *self = PyMem_Calloc(1, sizeof *self);
    if (self == NULL)
        return PyErr_NoMemory();
    *self = (arena_handler){
        {"dlbridge_arena",
         1,
         {self, arena_malloc, arena_calloc, arena_realloc, arena_free}},
        dlb_arena_retain(arena),
        least,
    };
    PyObject *capsule =
        PyCapsule_New(&self->handler, "mem_handler", free_arena_handler);
    if (capsule == NULL) {
        dlb_arena_drop(arena);
        PyMem_Free(self);
    }
    return capsule;
}

bool dlb_numpy_in_arena(PyObject *array) {
    PyObject *capsule = PyArray_HANDLER((PyArrayObject *)array);
    if (capsule == NULL || !PyArray_CHKFLAGS((PyArrayObject *)array, NPY_ARRAY_OWNDATA))
        return false;
    const PyDataMem_Handler *handler = PyCapsule_GetPointer(capsule, "mem_handler");
    if (handler == NULL)
        PyErr_Clear();
    return handler != NULL && handler->allocator.free == arena_free;
}

/* Make `handler`, or for NULL ours, the current one of this context; the one before. */
static PyObject *set_handler(PyObject *handler) {
    PyObject *ours =
        handler ? NULL : PyCapsule_New(&numpy_handler, "mem_handler", NULL);
    if (handler == NULL && ours == NULL)
        return NULL;
    PyObject *before = PyDataMem_SetHandler(handler ? handler : ours);
    Py_XDECREF(ours);
    return before;
}

PyObject *dlb_numpy_bytes(size_t nbytes) {
    npy_intp length = (npy_intp)nbytes;
    PyObject *before = set_handler(NULL);
    if (before == NULL)
        return NULL;
    PyObject *made = PyArray_SimpleNew(1, &length, NPY_UINT8);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *ours = PyDataMem_SetHandler(before);
    Py_DECREF(before);
    if (ours == NULL)
        Py_CLEAR(made);
    Py_XDECREF(ours);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    return made;
}

static PyObject *set_aligned_numpy(PyObject *Py_UNUSED(module), PyObject *enabled) {
    int is_on = PyObject_IsTrue(enabled);
    PyObject *before = NULL;
    if (is_on >= 0)
        before = is_on ? set_handler(NULL) : PyDataMem_SetHandler(NULL);
    if (before == NULL)
        return NULL;
    const PyDataMem_Handler *known = PyCapsule_GetPointer(before, "mem_handler");
    Py_DECREF(before);
    return known ? PyBool_FromLong(known == &numpy_handler) : NULL;
}

typedef struct {
    PyObject_HEAD
    PyObject *before; /* a list of handlers, one for each block that is open */
    size_t most;      /* of limited_numpy */
} aligned_object;

static PyObject *aligned_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, ":aligned_numpy", names))
        return NULL;
    aligned_object *self = (aligned_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->before = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static PyObject *limited_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"max_bytes", NULL};
    Py_ssize_t most;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "n:limited_numpy", names, &most))
        return NULL;
    if (most < 0)
        return PyErr_Format(PyExc_ValueError,
                            "limited_numpy: max_bytes must be at least 0, got %zd",
                            most);
    aligned_object *self = (aligned_object *)type->tp_alloc(type, 0);
    if (self != NULL && (self->before = PyList_New(0)) == NULL)
        Py_CLEAR(self);
    if (self != NULL)
        self->most = (size_t)most;
    return (PyObject *)self;
}

static PyObject *enter(PyObject *object) {
    bool limited = Py_TYPE(object) == &dlb_LimitedNumpyType;
    PyObject *own = limited ? new_limited(((aligned_object *)object)->most) : NULL;
    if (limited && own == NULL)
        return NULL;
    PyObject *list = ((aligned_object *)object)->before;
    PyObject *before = PyDataMem_GetHandler();
    PyObject *replaced = NULL;
    if (before != NULL && PyList_Append(list, before) == 0) {
        replaced = set_handler(own);
        if (replaced == NULL) { /* without memory, but maybe changed all the same */
            PyObject *type, *error, *traceback;
            PyErr_Fetch(&type, &error, &traceback);
            Py_XDECREF(PyDataMem_SetHandler(before));
            Py_ssize_t last = PyList_GET_SIZE(list) - 1;
            PyList_SetSlice(list, last, last + 1, NULL);
            PyErr_Restore(type, error, traceback);
        }
    }
    Py_XDECREF(own);
    Py_XDECREF(before);
    Py_XDECREF(replaced);
    return replaced ? Py_NewRef(Py_None) : NULL;
}

static PyObject *aligned_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(object);
    result = enter(object);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *leave(PyObject *object) {
    PyObject *list = ((aligned_object *)object)->before;
    Py_ssize_t last = PyList_GET_SIZE(list) - 1;
    if (last < 0)
        return PyErr_Format(PyExc_RuntimeError,
                            "aligned_numpy: __exit__ without __enter__");
    PyObject *before = dlb_list_item(list, last);
    if (before == NULL)
        return NULL;
    PyObject *replaced =
        PyList_SetSlice(list, last, last + 1, NULL) == 0 ? set_handler(before) : NULL;
    Py_DECREF(before);
    Py_XDECREF(replaced);
    return replaced ? Py_NewRef(Py_None) : NULL;
}

static PyObject *aligned_exit(PyObject *object, PyObject *Py_UNUSED(args)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(object);
    result = leave(object);
    DLB_END_EXCLUSIVE();
    return result;
}

static void aligned_dealloc(PyObject *object) {
    Py_XDECREF(((aligned_object *)object)->before);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef aligned_methods[] = {
    {"__enter__", aligned_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", aligned_exit, METH_VARARGS, "__exit__($self, /, *exception)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_AlignedNumpyType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.aligned_numpy",
    .tp_doc =
        "aligned_numpy()\n--\n\n"
        "Allocate the memory of NumPy's new arrays so that JAX and TensorFlow can "
        "share "
        "it.\n\n"
        "Inside the `with` block NumPy's memory handler (NEP 49) is dlbridge's: arrays "
        "begin at a\n"
        "multiple of 64 bytes, large ones lie in huge pages, and freed memory is kept "
        "for reuse\n"
        "(`dlbridge.trim`). Without it NumPy aligns to 16 bytes, and the way to JAX "
        "and "
        "TensorFlow\n"
        "copies. Arrays keep their memory after the block, and free it where it came "
        "from.\n\n"
        "NumPy keeps the handler in a context variable: the block is for this thread "
        "or "
        "task alone, and\n"
        "a thread begins with NumPy's own handler. Blocks nest.\n"
        "`dlbridge.set_aligned_numpy()` is the\n"
        "same without a block.\n\n"
        "Example:\n"
        "    >>> import numpy, dlbridge\n"
        "    >>> with dlbridge.aligned_numpy():\n"
        "    ...     x = numpy.ones(1000)\n"
        "    >>> x.ctypes.data % 64\n"
        "    0",
    .tp_basicsize = sizeof(aligned_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = aligned_new,
    .tp_dealloc = aligned_dealloc,
    .tp_methods = aligned_methods,
};

PyTypeObject dlb_LimitedNumpyType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.limited_numpy",
    .tp_doc = "limited_numpy(max_bytes)\n--\n\n"
              "Let NumPy fail with MemoryError where a new array would be larger.\n\n"
              "The memory comes from the handler before (NEP 49). The block is for "
              "this thread or task\n"
              "alone. Blocks nest.",
    .tp_basicsize = sizeof(aligned_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = limited_new,
    .tp_dealloc = aligned_dealloc,
    .tp_methods = aligned_methods,
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
    {"set_aligned_numpy", set_aligned_numpy, METH_O,
     "set_aligned_numpy($module, enabled, /)\n--\n\nUse our memory for NumPy's arrays "
     "in this context, or NumPy's own; whether it was ours."},
    {"take_numpy", take_numpy, METH_O,
     "take_numpy($module, x, /)\n--\n\nA Tensor over the memory of a NumPy array; None "
     "for all but plain arrays of numbers that DLPack has."},
    {"give_numpy", give_numpy, METH_VARARGS,
     "give_numpy($module, tensor, descr=None, /)\n--\n\nA NumPy array over the "
     "Tensor's memory."},
    {NULL, NULL, 0, NULL},
};

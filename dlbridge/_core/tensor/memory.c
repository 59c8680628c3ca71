/* New memory for Tensors, of the CPU and of CUDA devices, and copies: into another
 * Tensor, on their own device, to another device. */
#include "tensor/tensor.h"
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "memory/block.h"
#include "memory/copy.h"

#include <math.h>
#include <string.h>

#define READ_ONLY (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY
#define PADDED (uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

/* Set by the Python package. */
static PyObject *no_memory;   /* no_memory(call, nbytes, device type, device id) */
static PyObject *read_pair;   /* read_pair(device, call): the pair (type, id) */
static PyObject *known_pairs; /* by name or Device */
static PyTypeObject *device_type;
/* allocator(nbytes, (type, id)): a uint8 Tensor of another allocator, or None for the
 * driver's memory. What was set before stays alive: another thread may be calling it.
 */
static _Atomic(PyObject *) allocator;

/* ---- exceptions ---- */

static PyObject *raise_no_memory(const char *call, DLDevice device, int64_t nbytes) {
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

static PyObject *raise_cuda_memory(const char *call, DLDevice device, int64_t nbytes) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    bool is_full =
        failure->kind == DLB_CUDA_CALL && failure->code == CUDA_ERROR_OUT_OF_MEMORY;
    return is_full ? raise_no_memory(call, device, nbytes) : dlb_cuda_raise(call);
}

static PyObject *refuse_move(const char *call, dlb_tensor *tensor) {
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

/* `call` begins the texts of refusals. */
int dlb_read_device(PyObject *given, DLDevice *device, const char *call) {
    bool is_known = PyUnicode_CheckExact(given) || Py_TYPE(given) == device_type;
    PyObject *pair = is_known ? dlb_cache_get(known_pairs, given) : NULL;
    if (pair == NULL && !PyErr_Occurred())
        pair = PyObject_CallFunction(read_pair, "Os", given, call);
    if (pair == NULL)
        return -1;
    int status = dlb_parse_device(pair, device);
    if (status == 0 && is_known) {
        pair = dlb_cache_put(known_pairs, given, pair);
        status = pair != NULL ? 0 : -1;
    }
    Py_XDECREF(pair);
    return status;
}

bool dlb_is_device(PyObject *x) {
    return Py_TYPE(x) == device_type;
}

/* ---- new memory ---- */

void dlb_view_set_row_major(dlb_view *view) {
    view->dl.byte_offset = 0;
    dlb_row_major_strides(view->dl.ndim, view->dl.shape, view->scratch);
    view->dl.strides = view->scratch;
}

static int ask_allocator(PyObject *allocator, dlb_view *view, int64_t nbytes) {
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
        raise_cuda_memory(call, view->dl.device, nbytes);
        return -1;
    }
    view->dl.data = view->buffer->data;
    return 0;
}

int dlb_cuda_fill_view(dlb_view *view, const char *call) {
    int64_t nbytes =
        dlb_packed_bytes(view->dl.dtype, view->flags, dlb_element_count(&view->dl));
    view->buffer = NULL;
    PyObject *asked = atomic_load_explicit(&allocator, memory_order_acquire);
    if (asked != NULL && ask_allocator(asked, view, nbytes) < 0)
        return -1;
    if (view->buffer == NULL && ask_driver(view, nbytes, call) < 0)
        return -1;
    dlb_view_set_row_major(view);
    return 0;
}

int dlb_cpu_fill_view(dlb_view *view, size_t alignment, bool zero) {
    int64_t nbytes =
        dlb_packed_bytes(view->dl.dtype, view->flags, dlb_element_count(&view->dl));
    view->buffer = dlb_buffer_allocate(nbytes, alignment, zero);
    if (view->buffer == NULL)
        return -1;
    view->dl.data = view->buffer->data;
    dlb_view_set_row_major(view);
    return 0;
}

static int fill_cpu_view(dlb_view *view, const char *call) {
    if (dlb_cpu_fill_view(view, 64, false) == 0)
        return 0;
    raise_no_memory(
        call, view->dl.device,
        dlb_packed_bytes(view->dl.dtype, view->flags, dlb_element_count(&view->dl)));
    return -1;
}

/* ---- from memory to memory ---- */

static bool is_reached(DLDevice device) {
    return dlb_is_host(device) || dlb_cuda_has_memory(device);
}

static bool needs_driver(const dlb_buffer *buffer, DLDevice device) {
    return buffer->access != NULL || dlb_is_cuda(device);
}

bool dlb_can_move(DLDevice to, DLDevice from) {
    return (to.device_type == kDLCPU || dlb_cuda_has_memory(to)) && is_reached(from);
}

bool dlb_may_ask(DLDevice to, DLDevice from) {
    return dlb.slow_copied != NULL &&
           (to.device_type == kDLOneAPI || from.device_type == kDLOneAPI) &&
           (to.device_type == kDLOneAPI || to.device_type == kDLCPU) &&
           (from.device_type == kDLOneAPI || dlb_is_host(from));
}

void dlb_copy_on_host(const DLTensor *to, uint64_t to_flags, const DLTensor *from,
                      uint64_t from_flags) {
    enum { SMALL = 1 << 15 };
    if (dlb_packed_bytes(to->dtype, to_flags, dlb_element_count(to)) <= SMALL) {
        dlb_copy(to, to_flags, from, from_flags);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    dlb_copy(to, to_flags, from, from_flags);
    Py_END_ALLOW_THREADS
}

/* Into the view; with the exception set on failure. */
static int move(dlb_view *to, const dlb_tensor *from, const char *call) {
    int status = 0;
    if (!needs_driver(to->buffer, to->dl.device) &&
        !needs_driver(from->buffer, from->dl.device)) {
        dlb_copy_on_host(&to->dl, to->flags, &from->dl, from->flags);
        return 0;
    }
    dlb_cuda_operand target = {&to->dl, to->flags, to->buffer->access};
    dlb_cuda_operand source = {&from->dl, from->flags, from->buffer->access};
    Py_BEGIN_ALLOW_THREADS
    status = dlb_cuda_copy(&target, &source);
    Py_END_ALLOW_THREADS
    if (status < 0)
        dlb_cuda_raise(call);
    return status;
}

/* Memory for a compact copy of the source; NULL with an exception. */
static dlb_buffer *allocate_copy(const DLTensor *source, DLDataType dtype,
                                 const char *call) {
    int64_t nbytes = dlb_packed_bytes(dtype, 0, dlb_element_count(source));
    dlb_buffer *fresh = dlb_buffer_allocate(nbytes, 64, false);
    if (fresh == NULL)
        raise_no_memory(call, source->device, nbytes);
    return fresh;
}

/* Have the view, of this shape, lie compactly in the memory. */
static void put_in(dlb_view *view, dlb_buffer *fresh, DLDataType dtype) {
    view->dl.data = fresh->data;
    view->dl.dtype = dtype;
    dlb_view_set_row_major(view);
    view->buffer = fresh;
    view->flags = 0;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
}

int dlb_copy_view(dlb_view *view, const char *call) {
    int64_t strides[DLB_MAX_NDIM];
    DLTensor made = view->dl;
    dlb_buffer *fresh = allocate_copy(&view->dl, view->dl.dtype, call);
    if (fresh == NULL)
        return -1;
    made.data = fresh->data;
    made.strides = strides;
    dlb_row_major_strides(made.ndim, made.shape, strides);
    dlb_copy_on_host(&made, 0, &view->dl, view->flags);
    put_in(view, fresh, view->dl.dtype);
    return 0;
}

int dlb_narrow_view(dlb_view *view, const char *call) {
    DLDataType narrower;
    bool is_kept;
    if (!dlb_narrower(view->dl.dtype, &narrower))
        return DLB_DECLINED;
    dlb_buffer *fresh = allocate_copy(&view->dl, narrower, call);
    if (fresh == NULL)
        return -1;
    Py_BEGIN_ALLOW_THREADS
    is_kept = dlb_copy_narrowed(fresh->data, &view->dl);
    Py_END_ALLOW_THREADS
    if (is_kept)
        put_in(view, fresh, narrower);
    else
        dlb_buffer_drop(fresh);
    return is_kept ? 0 : DLB_DECLINED;
}

/* ---- the order of dimensions ---- */

static uint64_t magnitude(int64_t value) {
    return value < 0 ? -(uint64_t)value : (uint64_t)value;
}

/* axes[i]: the dimension that lies i-th from outside. */
static void order_axes(const DLTensor *dl, char order, int32_t *axes) {
    for (int32_t i = 0; i < dl->ndim; i++) {
        int32_t at = i;
        axes[i] = order == 'F' ? dl->ndim - 1 - i : i;
        if (order != 'K')
            continue;
        for (;
             at > 0 && magnitude(dl->strides[axes[at - 1]]) < magnitude(dl->strides[i]);
             at--)
            axes[at] = axes[at - 1];
        axes[at] = i;
    }
}

/* The shape of `from` in this order, then, once there is memory, strides for it. */
static void set_shape(dlb_view *view, const DLTensor *from, const int32_t *axes,
                      int64_t *shape) {
    for (int32_t i = 0; i < from->ndim; i++)
        shape[i] = from->shape[axes[i]];
    view->dl.shape = shape;
}

static void set_order(dlb_view *view, const DLTensor *from, const int32_t *axes) {
    int64_t compact[DLB_MAX_NDIM];
    memcpy(compact, view->scratch, (size_t)from->ndim * sizeof *compact);
    for (int32_t i = 0; i < from->ndim; i++)
        view->scratch[axes[i]] = compact[i];
    view->dl.shape = from->shape;
}

static PyObject *ask_framework(dlb_tensor *from, DLDevice device, char order,
                               const char *call) {
    if (!dlb_may_ask(device, from->dl.device))
        return refuse_move(call, from);
    PyObject *made =
        PyObject_CallFunction(dlb.slow_copied, "O(ii)C", from, (int)device.device_type,
                              (int)device.device_id, (int)order);
    if (made == NULL || dlb_is_tensor(made))
        return made;
    Py_DECREF(made);
    return refuse_move(call, from);
}

PyObject *dlb_copied(dlb_tensor *from, DLDevice device, char order, uint64_t flags,
                     const char *call) {
    if (!dlb_can_move(device, from->dl.device))
        return ask_framework(from, device, order, call);
    int32_t axes[DLB_MAX_NDIM];
    int64_t shape[DLB_MAX_NDIM];
    dlb_view view = {.dl = from->dl,
                     .flags = flags,
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    view.dl.device = device;
    order_axes(&from->dl, order, axes);
    set_shape(&view, &from->dl, axes, shape);
    int status = device.device_type == kDLCPU ? fill_cpu_view(&view, call)
                                              : dlb_cuda_fill_view(&view, call);
    if (status < 0)
        return NULL;
    set_order(&view, &from->dl, axes);
    if (move(&view, from, call) < 0) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    return dlb_tensor_new(Py_TYPE(from), &view);
}

/* ---- Tensor.copy, Tensor.to ---- */

/* The device of a copy that stays: pinned memory is copied to the CPU's. */
static DLDevice own_device(DLDevice device) {
    return dlb_is_host(device) ? (DLDevice){kDLCPU, 0} : device;
}

PyObject *dlb_tensor_copy(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"order", NULL};
    PyObject *order = NULL;
    dlb_tensor *tensor = (dlb_tensor *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:copy", names, &order))
        return dlb_refuse_arguments("Tensor.copy", names);
    Py_UCS4 letter = 'C';
    if (order != NULL) {
        bool is_letter = PyUnicode_Check(order) && PyUnicode_GET_LENGTH(order) == 1;
        letter = is_letter ? PyUnicode_READ_CHAR(order, 0) : 0;
    }
    if (letter != 'C' && letter != 'F' && letter != 'K')
        return dlb_raise_error("ArgumentError",
                               "copy: order must be one of C, F, K, got %R", order);
    return dlb_copied(tensor, own_device(tensor->dl.device), (char)letter, 0, "copy");
}

/* A bool, of Python or NumPy. */
static int read_flag(PyObject *value, bool *flag) {
    if (!PyBool_Check(value) &&
        strncmp(Py_TYPE(value)->tp_name, "numpy.bool", 10) != 0) {
        dlb_raise_error("ArgumentError", "to: copy must be True or False, got %R",
                        value);
        return -1;
    }
    int truth = PyObject_IsTrue(value);
    *flag = truth > 0;
    return truth < 0 ? -1 : 0;
}

static int parse_to(PyObject *const *args, Py_ssize_t count, PyObject *names,
                    PyObject **device, bool *copies) {
    static char *const known[] = {"device", "copy", NULL};
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    *device = count == 1 ? args[0] : NULL;
    *copies = false;
    for (Py_ssize_t i = 0; i < named && count <= 1; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[count + i];
        if (PyUnicode_CompareWithASCIIString(name, "copy") == 0) {
            if (read_flag(value, copies) < 0)
                return -1;
        } else if (*device == NULL &&
                   PyUnicode_CompareWithASCIIString(name, "device") == 0) {
            *device = value;
        } else {
            PyErr_Format(PyExc_TypeError, "to() got an unexpected keyword argument %R",
                         name);
            dlb_refuse_arguments("Tensor.to", known);
            return -1;
        }
    }
    if (*device != NULL && count <= 1)
        return 0;
    PyErr_Format(PyExc_TypeError,
                 "Tensor.to() takes one device, and copy by name; %zd were given by "
                 "position",
                 count);
    return -1;
}

PyObject *dlb_tensor_to(PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    DLDevice own = tensor->dl.device, wanted;
    PyObject *device;
    bool copies;
    if (parse_to(args, count, names, &device, &copies) < 0 ||
        dlb_read_device(device, &wanted, "to") < 0)
        return NULL;
    bool is_here = wanted.device_type == own.device_type &&
                   (wanted.device_id == own.device_id || own.device_type == kDLCPU);
    if (is_here && !copies)
        return Py_NewRef(self);
    if (wanted.device_type == kDLCPU)
        wanted.device_id = 0;
    return dlb_copied(tensor, wanted, 'K', tensor->flags & PADDED, "to");
}

/* ---- functions that copy ---- */

static int parse_pair(PyObject *args, dlb_tensor **to, dlb_tensor **from) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, "OO:copy_into", &first, &second))
        return -1;
    *to = dlb_expect_tensor(first, "copy_into");
    *from = *to ? dlb_expect_tensor(second, "copy_into") : NULL;
    return *from ? 0 : -1;
}

static PyObject *copy_into(PyObject *Py_UNUSED(module), PyObject *args) {
    dlb_tensor *to, *from;
    dlb_view view;
    if (parse_pair(args, &to, &from) < 0)
        return NULL;
    if (to->flags & READ_ONLY)
        return dlb_refuse("readonly", "copy_into: the destination is read-only");
    if (!is_reached(to->dl.device) || !is_reached(from->dl.device))
        return dlb_refuse(
            "device",
            "copy_into: both tensors must be in memory of the CPU or of CUDA");
    if (dlb_dtype_key(to->dl.dtype) != dlb_dtype_key(from->dl.dtype))
        return dlb_refuse("dtype", "copy_into: the dtypes differ");
    if (to->dl.ndim != from->dl.ndim ||
        memcmp(to->dl.shape, from->dl.shape, (size_t)to->dl.ndim * sizeof(int64_t)) !=
            0)
        return dlb_refuse("shape", "copy_into: the shapes differ");
    dlb_tensor_view(to, &view);
    int status = move(&view, from, "copy_into");
    dlb_buffer_drop(view.buffer);
    return status < 0 ? NULL : Py_NewRef(Py_None);
}

/* copied(tensor, device, order, flags): compact, in new memory there. */
static PyObject *copied(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *pair;
    DLDevice device;
    const char *order;
    unsigned long long flags = 0;
    if (!PyArg_ParseTuple(args, "OOsK:copied", &tensor, &pair, &order, &flags) ||
        dlb_parse_device(pair, &device) < 0)
        return NULL;
    if (dlb_expect_tensor(tensor, "copied") == NULL)
        return NULL;
    return dlb_copied((dlb_tensor *)tensor, device, order[0], flags, "copy");
}

/* fill(tensor, byte): all bytes of a contiguous tensor. */
static PyObject *fill(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object;
    int value, status;
    if (!PyArg_ParseTuple(args, "Oi:fill", &object, &value))
        return NULL;
    dlb_tensor *tensor = (dlb_tensor *)object;
    if (!dlb_is_tensor(object) || !dlb_is_row_major(&tensor->dl) ||
        !is_reached(tensor->dl.device))
        return PyErr_Format(PyExc_ValueError, "fill: a contiguous Tensor is required");
    dlb_cuda_operand side = {&tensor->dl, tensor->flags, tensor->buffer->access};
    Py_BEGIN_ALLOW_THREADS
    status = dlb_cuda_fill(&side, value);
    Py_END_ALLOW_THREADS
    return status < 0 ? dlb_cuda_raise("fill") : Py_NewRef(Py_None);
}

/* cuda_wait(tensor, writes, may_be_captured=False): until the host may read pinned
 * memory, or write it; work that is being captured is an error, or is left to its
 * graph. */
static PyObject *wait(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object;
    int writes, may_be_captured = 0, status = 0;
    if (!PyArg_ParseTuple(args, "Op|p:cuda_wait", &object, &writes, &may_be_captured))
        return NULL;
    dlb_access *access =
        dlb_is_tensor(object) ? ((dlb_tensor *)object)->buffer->access : NULL;
    if (access != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = dlb_access_wait(access, writes);
        Py_END_ALLOW_THREADS
    }
    if (status < 0 && may_be_captured && dlb_cuda_failure()->kind == DLB_CUDA_CAPTURE)
        status = 0;
    return status < 0 ? dlb_cuda_raise("reading values") : Py_NewRef(Py_None);
}

/* ---- empty, zeros, ones, full: plain arguments without a Python frame ---- */

/* Dtypes as they were given before: of what is kept, a name, a DType or a type, none
 * changes its meaning. They are found by their address, and names without a GIL by what
 * they say: any number of equal ones, put together at run time, take one place. */
typedef struct { /* immutable */
    PyObject *given;
    DLDataType dtype;
} known_dtype;

/* With a GIL the latest one takes its place. Without, another thread may be reading
 * what is there, so that it stays for good: there are more places, and several for each
 * address. */
#ifdef Py_GIL_DISABLED
enum { KNOWN_DTYPES = 512, PLACES = 8 };
#else
enum { KNOWN_DTYPES = 64, PLACES = 1 };
#endif
static _Atomic(const known_dtype *) known_dtypes[KNOWN_DTYPES];

static bool is_name(PyObject *given) {
    return PyUnicode_CheckExact(given);
}

static bool is_found_by_value(PyObject *given) {
#ifdef Py_GIL_DISABLED
    return is_name(given);
#else
    return (void)given, false;
#endif
}

static _Atomic(const known_dtype *) *place_of(PyObject *given, int number) {
    uintptr_t from = is_found_by_value(given) ? (uintptr_t)PyObject_Hash(given)
                                              : (uintptr_t)given >> 4;
    return &known_dtypes[(from + (uintptr_t)number) % KNOWN_DTYPES];
}

static bool is_same(PyObject *one, PyObject *other) {
    return one == other || (is_found_by_value(one) && is_name(other) &&
                            PyUnicode_Compare(one, other) == 0);
}

static const known_dtype *find_dtype(PyObject *given) {
    for (int i = 0; i < PLACES; i++) {
        const known_dtype *known =
            atomic_load_explicit(place_of(given, i), memory_order_acquire);
        if (known == NULL || is_same(given, known->given))
            return known;
    }
    return NULL;
}

static void free_dtype(const known_dtype *known) {
    if (known == NULL)
        return;
    Py_DECREF(known->given);
    PyMem_Free((void *)known);
}

static void keep_dtype(PyObject *given, DLDataType dtype) {
    known_dtype *made = PyMem_Malloc(sizeof *made);
    if (made == NULL)
        return;
    *made = (known_dtype){Py_NewRef(given), dtype};
#ifdef Py_GIL_DISABLED
    for (int i = 0; i < PLACES; i++) {
        const known_dtype *there = NULL;
        if (atomic_compare_exchange_strong(place_of(given, i), &there, made))
            return;
        if (is_same(given, there->given))
            break;
    }
    free_dtype(made);
#else
    free_dtype(atomic_exchange(place_of(given, 0), made));
#endif
}

static int learn_dtype(PyObject *given, PyObject *made) {
    bool is_kept = is_name(given) || PyType_CheckExact(given);
    if (!is_kept) {
        PyObject *dtype = PyObject_GetAttrString(made, "dtype");
        is_kept = dtype == given; /* there is one object for each DType */
        Py_XDECREF(dtype);
        if (dlb_clear_error() < 0)
            return -1;
    }
    if (is_kept && dlb_is_tensor(made))
        keep_dtype(given, ((dlb_tensor *)made)->dl.dtype);
    return 0;
}

/* -1: something else than a plain int or a tuple of them, or none that fits. */
static int32_t plain_shape(PyObject *given, int64_t *dims) {
    enum { MOST = 32 };
    bool is_tuple = PyTuple_CheckExact(given);
    Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(given) : 1;
    if (count > MOST)
        return -1;
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = is_tuple ? PyTuple_GET_ITEM(given, i) : given;
        int overflows = 0;
        if (!PyLong_CheckExact(item))
            return -1;
        dims[i] = PyLong_AsLongLongAndOverflow(item, &overflows);
        if (dims[i] < 0)
            return -1;
    }
    return (int32_t)count;
}

/* One element's bits, `nbytes` of them; those of 0 need no writing in new memory. */
typedef struct {
    size_t nbytes;
    uint64_t bits;
} element;

static bool encode_integer(int64_t value, DLDataType dtype, uint64_t *bits) {
    bool is_signed = dtype.code == kDLInt;
    int free_bits = 64 - dtype.bits;
    uint64_t raw = (uint64_t)value;
    bool fits = is_signed ? (int64_t)(raw << free_bits) >> free_bits == value
                          : value >= 0 && raw << free_bits >> free_bits == raw;
    *bits = raw << free_bits >> free_bits;
    return fits;
}

/* False where NumPy would warn of an overflow or an underflow. */
static bool encode_float(float value, bool is_exactly_zero, uint64_t *bits) {
    uint32_t raw;
    memcpy(&raw, &value, sizeof raw);
    *bits = raw;
    return isnormal(value) || is_exactly_zero;
}

static bool encode_double(double value, uint64_t *bits) {
    memcpy(bits, &value, sizeof *bits);
    return true;
}

static bool is_width(uint8_t bits) {
    return bits == 8 || bits == 16 || bits == 32 || bits == 64;
}

static bool is_number(PyObject *x) {
    return PyBool_Check(x) || PyFloat_CheckExact(x) || PyLong_CheckExact(x);
}

/* Encode one of Python's numbers as `assign` in tensor/values.py does; false where that
 * refuses, or has to be asked. */
static bool encode(PyObject *number, DLDataType dtype, element *out) {
    bool is_bool = PyBool_Check(number), is_float = PyFloat_CheckExact(number);
    int overflows = 0;
    int64_t integer = 0;
    out->nbytes = dtype.bits / 8;
    if (dtype.lanes != 1 || !is_width(dtype.bits) || !is_number(number))
        return false;
    if (!is_float)
        integer = PyLong_AsLongLongAndOverflow(number, &overflows);
    double real = is_float ? PyFloat_AS_DOUBLE(number) : (double)integer;
    if (overflows)
        return false;
    if (dtype.code == kDLFloat && dtype.bits == 64)
        return encode_double(real, &out->bits);
    if (dtype.code == kDLFloat && dtype.bits == 32)
        return encode_float(is_float ? (float)real : (float)integer, real == 0,
                            &out->bits);
    if (dtype.code == kDLBool && dtype.bits == 8) {
        out->bits = (uint64_t)integer;
        return is_bool;
    }
    bool is_integer = dtype.code == kDLInt || dtype.code == kDLUInt;
    return is_integer && !is_float && encode_integer(integer, dtype, &out->bits);
}

#define FILL(type)                                                                     \
    for (size_t i = 0; i < count; i++)                                                 \
    ((type *)data)[i] = (type)value.bits

static void fill_elements(void *data, size_t count, element value) {
    switch (value.nbytes) {
    case 1:
        memset(data, (int)value.bits, count);
        break;
    case 2:
        FILL(uint16_t);
        break;
    case 4:
        FILL(uint32_t);
        break;
    case 8:
        FILL(uint64_t);
        break;
    default:
        break;
    }
}

/* Without the GIL, where that takes longer than to release it. */
static void fill_view(const dlb_view *view, element value) {
    size_t count = (size_t)dlb_element_count(&view->dl);
    if (count * value.nbytes < 1 << 16) {
        fill_elements(view->dl.data, count, value);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    fill_elements(view->dl.data, count, value);
    Py_END_ALLOW_THREADS
}

/* Of all functions for new memory: what they put into it is `is_zero`, or a number, or
 * undefined. NULL without an error: Python decides. */
static PyObject *try_new(PyObject *shape, PyObject *dtype, bool is_zero,
                         PyObject *number) {
    const known_dtype *known = find_dtype(dtype);
    int64_t dims[DLB_MAX_NDIM];
    element value = {0};
    dlb_view view;
    if (known == NULL || (number != NULL && !encode(number, known->dtype, &value)))
        return NULL;
    view.dl = (DLTensor){.data = dims,
                         .device = {kDLCPU, 0},
                         .ndim = plain_shape(shape, dims),
                         .dtype = known->dtype,
                         .shape = dims};
    view.flags = 0;
    view.version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    is_zero = is_zero || (number != NULL && value.bits == 0);
    if (view.dl.ndim < 0 || dlb_layout_check(&view.dl, 0) != NULL ||
        dlb_cpu_fill_view(&view, 64, is_zero) < 0)
        return NULL;
    if (number != NULL && !is_zero)
        fill_view(&view, value);
    return dlb_tensor_new(dlb.tensor_type, &view);
}

/* A call with nothing but `count` arguments by position, the last of which may be the
 * dtype, and dtype= and device="cpu". */
typedef struct {
    PyObject *dtype; /* NULL: none given */
    bool is_plain;
} new_arguments;

static new_arguments read_arguments(PyObject *const *args, Py_ssize_t count,
                                    PyObject *names, Py_ssize_t before_dtype) {
    new_arguments out = {.is_plain =
                             count == before_dtype || count == before_dtype + 1};
    Py_ssize_t named = names == NULL ? 0 : PyTuple_GET_SIZE(names);
    if (count == before_dtype + 1)
        out.dtype = args[before_dtype];
    for (Py_ssize_t i = 0; out.is_plain && i < named; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[count + i];
        bool is_device = PyUnicode_CompareWithASCIIString(name, "device") == 0;
        if (is_device && PyUnicode_CheckExact(value) &&
            PyUnicode_CompareWithASCIIString(value, "cpu") == 0)
            continue;
        out.is_plain =
            out.dtype == NULL && PyUnicode_CompareWithASCIIString(name, "dtype") == 0;
        out.dtype = value;
    }
    return out;
}

/* The Python path also makes the errors. */
static PyObject *go_slow(PyObject *function, PyObject *const *args, Py_ssize_t count,
                         PyObject *names, PyObject *dtype) {
    if (function == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    PyObject *made = PyObject_Vectorcall(function, args, (size_t)count, names);
    if (made != NULL && dtype != NULL && learn_dtype(dtype, made) < 0)
        Py_CLEAR(made);
    return made;
}

static PyObject *make_new(PyObject *slow, PyObject *const *args, Py_ssize_t count,
                          PyObject *names, bool is_zero, PyObject *number) {
    new_arguments given = read_arguments(args, count, names, 1);
    PyObject *dtype = given.is_plain ? given.dtype : NULL;
    PyObject *made = dtype != NULL ? try_new(args[0], dtype, is_zero, number) : NULL;
    return made != NULL || PyErr_Occurred() ? made
                                            : go_slow(slow, args, count, names, dtype);
}

PyObject *dlb_empty(PyObject *Py_UNUSED(module), PyObject *const *args,
                    Py_ssize_t count, PyObject *names) {
    return make_new(dlb.slow_empty, args, count, names, false, NULL);
}

PyObject *dlb_zeros(PyObject *Py_UNUSED(module), PyObject *const *args,
                    Py_ssize_t count, PyObject *names) {
    return make_new(dlb.slow_zeros, args, count, names, true, NULL);
}

PyObject *dlb_ones(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                   PyObject *names) {
    return make_new(dlb.slow_ones, args, count, names, false, Py_True);
}

/* Without a dtype, it is that which the type of the number stands for. */
PyObject *dlb_full(PyObject *Py_UNUSED(module), PyObject *const *args, Py_ssize_t count,
                   PyObject *names) {
    new_arguments given = read_arguments(args, count, names, 2);
    PyObject *dtype = NULL;
    if (given.is_plain && is_number(args[1]))
        dtype = given.dtype == NULL || given.dtype == Py_None
                    ? (PyObject *)Py_TYPE(args[1])
                    : given.dtype;
    PyObject *made = dtype != NULL ? try_new(args[0], dtype, false, args[1]) : NULL;
    return made != NULL || PyErr_Occurred()
               ? made
               : go_slow(dlb.slow_full, args, count, names, dtype);
}

/* ---- functions of the CPU's memory ---- */

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
    if (dlb_cpu_fill_view(&view, (size_t)alignment, zero) < 0)
        return PyErr_Format(
            PyExc_MemoryError, "allocate: %lld bytes could not be had",
            (long long)dlb_packed_bytes(view.dl.dtype, 0, dlb_element_count(&view.dl)));
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *allocator_statistics(PyObject *Py_UNUSED(module),
                                      PyObject *Py_UNUSED(unused)) {
    dlb_allocator_statistics *s = &dlb_cpu_statistics;
    return Py_BuildValue("{sLsLsLsL}", "bytes_in_use", (long long)s->bytes_in_use,
                         "peak_bytes_in_use", (long long)s->peak_bytes_in_use, "count",
                         (long long)s->count, "total", (long long)s->total);
}

static PyObject *cached_bytes(PyObject *Py_UNUSED(module),
                              PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(dlb_block_kept());
}

static PyObject *trim(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    int64_t freed;
    Py_BEGIN_ALLOW_THREADS
    freed = dlb_block_trim(0);
    Py_END_ALLOW_THREADS
    return PyLong_FromLongLong(freed);
}

static int add_count(PyObject *counts, const char *kind, int64_t count) {
    PyObject *number = PyLong_FromLongLong(count);
    int status = number ? PyDict_SetItemString(counts, kind, number) : -1;
    Py_XDECREF(number);
    return status;
}

static PyObject *live(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    PyObject *counts = PyDict_New();
    dlb_live_counts now = dlb_live_sum();
#define ADD(kind)                                                                      \
    if (counts != NULL && add_count(counts, #kind, now.kind) < 0)                      \
        Py_CLEAR(counts);
    DLB_LIVE_OBJECTS(ADD)
    DLB_LIVE_ANYWHERE(ADD)
#undef ADD
    return counts;
}

/* ---- functions of CUDA's memory ---- */

/* cuda_allocate(shape, dtype, device, flags=0) */
static PyObject *allocate_cuda(PyObject *Py_UNUSED(module), PyObject *args) {
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
    dlb_view_set_row_major(&view);
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *trim_cuda(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    if (dlb_cuda_get() != NULL) {
        Py_BEGIN_ALLOW_THREADS
        dlb_cuda_collect();
        dlb_cuda_trim();
        Py_END_ALLOW_THREADS
    }
    Py_RETURN_NONE;
}

static PyObject *cuda_statistics(PyObject *Py_UNUSED(module), PyObject *pair) {
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

static PyObject *set_allocator(PyObject *module, PyObject *hook) {
    PyObject *chosen = hook == Py_None ? NULL : hook;
    static PyObject *last; /* the package has but one: kept once, not for each change */
    (void)module;          /* where there is a GIL */
    DLB_BEGIN_EXCLUSIVE(module);
    if (chosen != NULL && chosen != last)
        last = Py_NewRef(chosen);
    DLB_END_EXCLUSIVE();
    atomic_store_explicit(&allocator, chosen, memory_order_release);
    Py_RETURN_NONE;
}

PyMethodDef dlb_memory_functions[] = {
    {"allocate", allocate, METH_VARARGS,
     "allocate($module, shape, dtype, alignment=64, zero=False, /)\n--\n\nA new "
     "C-contiguous Tensor in CPU memory."},
    {"allocator_statistics", allocator_statistics, METH_NOARGS,
     "allocator_statistics($module, /)\n--\n\nOf the default allocator."},
    {"cached_bytes", cached_bytes, METH_NOARGS,
     "cached_bytes($module, /)\n--\n\nBytes of freed CPU memory that are kept for "
     "reuse."},
    {"trim", trim, METH_NOARGS,
     "trim($module, /)\n--\n\nFree CPU memory that is kept for reuse; returns its "
     "bytes."},
    {"live", live, METH_NOARGS,
     "live($module, /)\n--\n\nHow many there are of each kind of allocation that the "
     "core makes."},
    {"copy_into", copy_into, METH_VARARGS,
     "copy_into($module, destination, source, /)\n--\n\nCopy element by element "
     "between tensors of the CPU's memory or CUDA's."},
    {"copied", copied, METH_VARARGS,
     "copied($module, tensor, device, order, flags, /)\n--\n\n"},
    {"fill", fill, METH_VARARGS, "fill($module, tensor, byte, /)\n--\n\n"},
    {"cuda_wait", wait, METH_VARARGS,
     "cuda_wait($module, tensor, writes, may_be_captured=False, /)\n--\n\n"},
    {"cuda_allocate", allocate_cuda, METH_VARARGS,
     "cuda_allocate($module, shape, dtype, device, flags=0, /)\n--\n\nA new "
     "C-contiguous Tensor."},
    {"cuda_trim", trim_cuda, METH_NOARGS,
     "cuda_trim($module, /)\n--\n\nFree all that is kept for reuse."},
    {"cuda_statistics", cuda_statistics, METH_O,
     "cuda_statistics($module, device, /)\n--\n\n(bytes in use, peak, blocks, total) "
     "of a device."},
    {"set_cuda_allocator", set_allocator, METH_O,
     "set_cuda_allocator($module, allocator, /)\n--\n\nFor memory of results."},
    {"set_cuda_memory_hooks", set_hooks, METH_VARARGS,
     "set_cuda_memory_hooks($module, no_memory, read_pair, device_type, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

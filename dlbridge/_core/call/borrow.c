/* The part of a direct call that differs between frameworks: their objects as tensors
 * of the call, compared with those of an earlier call, and new ones for results. */
#include "call/call.h"
#include "cuda/cuda.h"
#include "exchange/exchange.h"
#include "layout/layout.h"
#include "python/numpy.h"

#include <string.h>

/* ---- the call-site cache, of any framework ---- */

static bool same_device(DLDevice a, DLDevice b) {
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

static bool matches(const dlb_cached_tensor *cached, const DLTensor *tensor) {
    if (tensor->ndim != cached->dl.ndim ||
        dlb_dtype_key(tensor->dtype) != dlb_dtype_key(cached->dl.dtype))
        return false;
    for (int32_t i = 0; i < cached->dl.ndim; i++)
        if (tensor->shape[i] != cached->shape[i] ||
            (tensor->strides[i] != cached->strides[i] && cached->shape[i] != 1))
            return false;
    return true;
}

/* Dims of a cached tensor in `room`, of DLB_ROOM numbers for each tensor: a fixed size
 * is copied in a few instructions. */
#define DLB_ROOM (2 * (size_t)DLB_CACHED_NDIM)

static inline void use_dims(DLTensor *tensor, const dlb_cached_tensor *cached,
                            int64_t *room) {
    memcpy(room, cached->shape, sizeof cached->shape + sizeof cached->strides);
    tensor->shape = room;
    tensor->strides = room + DLB_CACHED_NDIM;
}

/* ---- dlbridge.Tensor ---- */

void dlb_borrow_tensor(dlb_frame *frame, int index, const dlb_tensor *tensor) {
    if (tensor == NULL) {
        frame->tensors[index] = (DLTensor){.ndim = -1};
        frame->flags[index] = 0;
        return;
    }
    frame->tensors[index] = tensor->dl;
    frame->flags[index] = tensor->flags & DLB_KNOWN_FLAGS;
    frame->accesses[index] = tensor->buffer->access;
    if (tensor->buffer->access != NULL)
        dlb_set_add(frame->watched, index);
}

static int borrow_own(dlb_call *call, int index, PyObject *x) {
    if (!dlb_is_tensor(x))
        return DLB_DECLINED;
    dlb_borrow_tensor(&call->frame, index, (const dlb_tensor *)x);
    return 0;
}

static PyObject *allocate_own(int32_t ndim, const int64_t *shape, DLDataType dtype,
                              DLDevice device) {
    dlb_view view = {.dl = {.device = device,
                            .ndim = ndim,
                            .dtype = dtype,
                            .shape = (int64_t *)shape,
                            .data = (void *)shape}, /* for the check: some memory */
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (dlb_layout_check(&view.dl, 0) != NULL)
        return NULL;
    int status = dlb_is_cuda(device)            ? dlb_cuda_fill_view(&view, "empty")
                 : device.device_type == kDLCPU ? dlb_cpu_fill_view(&view, 64, false)
                                                : -1;
    return status < 0 ? NULL : dlb_tensor_new(dlb.tensor_type, &view);
}

/* ---- NumPy ---- */

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
    use_dims(tensor, cached, room);
    return true;
}

static bool match_numpy(dlb_call *call, const dlb_cached_tensor *cached, int32_t first,
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
static bool cache_numpy(PyObject *x, dlb_cached_tensor *cached) {
    PyArray_Descr *own = PyArray_DescrFromType(PyArray_TYPE((PyArrayObject *)x));
    cached->descr = own;
    Py_XDECREF(own);
    return PyArray_DESCR((PyArrayObject *)x) == own;
}

/* ---- torch ----
 *
 * Where its internals are not proved, torch is queried: see torch/queries.c. The memory
 * of such tensors is looked at again just before the run. */

static bool is_torch(PyObject *x) {
    return dlb_torch_is_exact(x) || dlb_torch_is_queried(x);
}

/* The state by which `x`, the first tensor, is judged; a thread that is QUERIED is
 * still to be queried. */
static dlb_torch_thread thread_for(PyObject *x) {
    return dlb_torch_is_exact(x) ? dlb_torch_thread_state() : DLB_TORCH_QUERIED;
}

static int borrow_queried(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    bool is_new = index >= call->frame.input_count && call->made_count > 0;
    int fits = dlb_torch_is_queried(x);
    if (fits == 1 && !is_new) /* else it is as torch.empty makes it */
        fits = dlb_torch_query_ordinary(x);
    if (fits == 1)
        fits = dlb_torch_query_memory(x, tensor) == 0;
    call->frame.flags[index] = 0;
    if (fits == 1 && !dlb_copy_dims(tensor, call->dims + call->dim_count,
                                    call->dim_room - call->dim_count))
        fits = 0;
    if (fits == 1) {
        call->dim_count += 2 * tensor->ndim;
        fits = is_new ? 1 : dlb_torch_query_byte(x, tensor);
    }
    /* the slow path meets an error again */
    return fits == 1 ? 0 : dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static int borrow_torch(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    if (call->thread == DLB_TORCH_QUERIED)
        return borrow_queried(call, index, x);
    if (!dlb_torch_is_exact(x) || !dlb_torch_is_ordinary(x, call->thread, false))
        return DLB_DECLINED;
    call->frame.flags[index] = 0;
    return dlb_torch_borrow(x, tensor) == 0 && dlb_torch_has_memory(x, tensor)
               ? 0
               : DLB_DECLINED;
}

/* Queries serve tensors of the CPU alone. */
static PyObject *allocate_torch(int32_t ndim, const int64_t *shape, DLDataType dtype,
                                DLDevice device) {
    PyObject *made = dlb_torch_allocate(device, ndim, shape, dtype);
    if (made != NULL || PyErr_Occurred() || !dlb_torch_may_query() ||
        device.device_type != kDLCPU)
        return made;
    return dlb_torch_query_empty(ndim, shape, dtype);
}

/* ---- JAX: inputs only ---- */

/* jaxlib's ArrayImpl; NULL: not met yet. Only its address is looked at. */
static _Atomic(PyTypeObject *) jax_array;

/* jax_direct_open(ArrayImpl): the adapter vouches for its buffer protocol. */
PyObject *dlb_jax_direct_open(PyObject *Py_UNUSED(module), PyObject *type) {
    Py_XDECREF(atomic_exchange(&jax_array, (PyTypeObject *)Py_NewRef(type)));
    Py_RETURN_NONE;
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

/* For other layouts, and dtypes without a buffer format (bfloat16, float8): the way of
 * `from_dlpack`. */
static int borrow_view(dlb_call *call, int index, PyObject *x) {
    dlb_view view;
    dlb_borrowed *borrowed = &call->borrowed[call->borrowed_count];
    int status = dlb_take(x, &view);
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

/* ---- CuPy ----
 *
 * Its arrays are read by their public attributes, so that a call needs neither a
 * capsule nor an event, and are used on the stream that CuPy works on. */

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

/* ---- any family ---- */

/* An unknown type may only not have been met: its adapter opens the guard
 * of torch, or the way of jax. Asked once, or once more after a clash. */
static int meet(PyTypeObject *type) {
    static _Atomic(const void *) met[16];
    _Atomic(const void *) *slot = &met[((uintptr_t)type >> 4) % 16];
    if (atomic_load_explicit(slot, memory_order_relaxed) == type)
        return 0;
    atomic_store_explicit(slot, type, memory_order_relaxed);
    return dlb_meet_type(type);
}

static dlb_family family_of(PyObject *x) {
    if (dlb_is_numpy(x))
        return DLB_FAMILY_NUMPY;
    if (is_torch(x))
        return DLB_FAMILY_TORCH;
    if (Py_TYPE(x) == atomic_load_explicit(&jax_array, memory_order_relaxed))
        return DLB_FAMILY_JAX;
    if (is_cupy(x))
        return DLB_FAMILY_CUPY;
    return dlb_is_tensor(x) ? DLB_FAMILY_OWN : DLB_FAMILY_NONE;
}

static const struct {
    const char *framework, *source; /* its name; its tensors in texts */
} families[] = {
    [DLB_FAMILY_NUMPY] = {"numpy", "numpy.ndarray"},
    [DLB_FAMILY_TORCH] = {"torch", "torch.Tensor"},
    [DLB_FAMILY_JAX] = {"jax", "jax.Array"},
    [DLB_FAMILY_OWN] = {"dlbridge", "dlbridge.Tensor"},
    [DLB_FAMILY_CUPY] = {"cupy", "cupy.ndarray"},
};

dlb_family dlb_family_of_framework(PyObject *framework) {
    if (framework == NULL)
        return DLB_FAMILY_NONE;
    for (int family = DLB_FAMILY_NONE + 1; family < DLB_FAMILY_OTHER; family++)
        if (PyUnicode_CompareWithASCIIString(framework, families[family].framework) ==
            0)
            return (dlb_family)family;
    return DLB_FAMILY_OTHER;
}

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
    call->frame.source = families[family].source;
    if (family != DLB_FAMILY_TORCH)
        return 0;
    call->thread = thread_for(x);
    if (call->thread != DLB_TORCH_QUERIED || dlb_torch_query_thread() == 1)
        return 0;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
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
        return borrow_cupy(call, index, x);
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
    if (call->family != DLB_FAMILY_TORCH || call->thread == DLB_TORCH_QUERIED)
        return 0;
    return dlb_torch_may_be_written(call->objects[index], call->thread) ? 0
                                                                        : DLB_DECLINED;
}

bool dlb_copy_dims(DLTensor *tensor, int64_t *room, int64_t size) {
    int32_t ndim = tensor->ndim;
    if (2 * ndim > size)
        return false;
    for (int32_t i = 0; i < ndim; i++) {
        room[i] = tensor->shape[i];
        room[ndim + i] = tensor->strides[i];
    }
    tensor->shape = room;
    tensor->strides = room + ndim;
    return true;
}

void dlb_give_back(dlb_call *call) {
    for (int32_t i = 0; i < call->borrowed_count; i++) {
        dlb_borrowed *borrowed = &call->borrowed[i];
        if (borrowed->is_buffer)
            PyBuffer_Release(&borrowed->memory.protocol);
        else
            dlb_buffer_drop(borrowed->memory.core);
    }
    call->borrowed_count = 0;
}

/* ---- results ---- */

PyObject *dlb_allocate_result(dlb_family family, int32_t ndim, const int64_t *shape,
                              DLDataType dtype, DLDevice device) {
    switch (family) {
    case DLB_FAMILY_NUMPY:
        return dlb_numpy_allocate(ndim, shape, dtype);
    case DLB_FAMILY_TORCH:
        return allocate_torch(ndim, shape, dtype, device);
    case DLB_FAMILY_OWN:
        return allocate_own(ndim, shape, dtype, device);
    case DLB_FAMILY_CUPY:
        return allocate_cupy(ndim, shape, dtype, device);
    case DLB_FAMILY_JAX:
    case DLB_FAMILY_NONE:
    case DLB_FAMILY_OTHER:
        break;
    }
    return NULL;
}

PyObject *dlb_out_item(PyObject *out, int32_t count, int index) {
    if (count == 1)
        return out;
    bool fits = PyTuple_CheckExact(out) && PyTuple_GET_SIZE(out) == count;
    return fits ? PyTuple_GET_ITEM(out, index) : NULL;
}

void dlb_drop_results(dlb_call *call) {
    for (int32_t i = 0; i < call->made_count; i++)
        Py_DECREF(call->objects[call->frame.input_count + i]);
    call->made_count = 0;
}

/* ---- a call as the one before ---- */

/* All addresses are as the kernel wants them, and nothing that is written overlaps. */
static inline bool is_apart(const dlb_kernel *kernel, const dlb_call_cache *cache,
                            const dlb_frame *frame) {
    dlb_span spans[DLB_CACHED_TENSORS];
    const DLTensor *tensors = frame->tensors;
    uintptr_t addresses = 0;
    int32_t count = cache->input_count + cache->result_count;
    for (int32_t i = 0; i < count; i++) {
        uintptr_t low = (uintptr_t)tensors[i].data;
        spans[i] = (dlb_span){low, low + cache->tensors[i].nbytes};
        addresses |= low;
    }
    return dlb_is_aligned(kernel, addresses) &&
           dlb_spans_are_apart(kernel, spans, count, cache->written);
}

/* Whether tensors `first` and following, which were borrowed, are as in the cache. */
static bool match_borrowed(const dlb_call *call, const dlb_call_cache *cache,
                           int32_t first, int32_t count) {
    for (int32_t i = first; i < first + count; i++) {
        const DLTensor *tensor = &call->frame.tensors[i];
        bool is_written = cache->written >> i & 1;
        uint64_t allowed = is_written ? 0 : (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY;
        if (!matches(&cache->tensors[i], tensor) ||
            !same_device(tensor->device, cache->device) || tensor->data == NULL ||
            (call->frame.flags[i] & ~allowed) ||
            (is_written && dlb_borrow_to_write(call, i) != 0))
            return false;
    }
    return true;
}

/* The inputs: arrays of NumPy are compared as they are, others were borrowed. */
static bool match_inputs(dlb_call *call, const dlb_call_cache *cache,
                         PyObject *const *tensors) {
    int32_t inputs = cache->input_count;
    if (call->family != DLB_FAMILY_NONE)
        return call->family == cache->family && match_borrowed(call, cache, 0, inputs);
    if (cache->family != DLB_FAMILY_NUMPY)
        return false;
    memcpy(call->objects, tensors, (size_t)inputs * sizeof *tensors);
    if (!match_numpy(call, cache->tensors, 0, inputs))
        return false;
    call->family = DLB_FAMILY_NUMPY;
    return true;
}

/* Result `i` of the call: given, or made. */
static bool match_result(dlb_call *call, const dlb_call_cache *cache, int32_t i,
                         PyObject *x) {
    if (call->family != DLB_FAMILY_NUMPY)
        return dlb_borrow(call, i, x) == 0 && match_borrowed(call, cache, i, 1);
    call->objects[i] = x;
    return match_numpy(call, &cache->tensors[i], i, 1);
}

static bool match_new(dlb_call *call, const dlb_call_cache *cache, int32_t i) {
    const dlb_cached_tensor *cached = &cache->tensors[i];
    PyObject *made = dlb_allocate_result(call->family, cached->dl.ndim, cached->shape,
                                         cached->dl.dtype, cache->device);
    if (made == NULL)
        return false;
    call->objects[i] = made;
    call->made_count++;
    return match_result(call, cache, i, made);
}

static bool match_results(dlb_call *call, const dlb_call_cache *cache, PyObject *out) {
    int32_t count = cache->result_count;
    for (int32_t i = 0; i < count; i++) {
        int32_t place = cache->input_count + i;
        PyObject *given = out != NULL ? dlb_out_item(out, count, i) : NULL;
        bool is_matched =
            out == NULL ? match_new(call, cache, place)
                        : given != NULL && match_result(call, cache, place, given);
        if (!is_matched)
            return false;
    }
    return true;
}

/* The shapes and strides of a call like the one in the cache are those. */
static void use_all_dims(dlb_call *call, const dlb_call_cache *cache) {
    int32_t count = cache->input_count + cache->result_count;
    for (int32_t i = 0; i < count; i++)
        use_dims(&call->frame.tensors[i], &cache->tensors[i],
                 call->kept_dims + (size_t)i * DLB_ROOM);
}

static bool has_same_sizes(const dlb_signature *signature, const dlb_call_cache *cache,
                           const dlb_scalar *scalars) {
    if (signature == NULL || !signature->has_sizes)
        return true;
    for (int32_t i = 0; i < signature->scalar_count; i++)
        if ((signature->scalars[i].name >= 0 || signature->scalars[i].dtype >= 0) &&
            scalars[i].value.i != cache->sizes[i])
            return false;
    return true;
}

/* The inputs, and what is known of them, are as before. */
static void forget_results(dlb_call *call, int32_t inputs, int32_t dim_count) {
    dlb_frame *frame = &call->frame;
    dlb_clear_error(); /* the general path meets it again; an interrupt comes only once
                        */
    dlb_drop_results(call);
    for (int32_t i = inputs; i < frame->tensor_count; i++)
        dlb_set_remove(frame->watched, i);
    call->dim_count = dim_count;
    if (call->family == DLB_FAMILY_NUMPY) { /* its inputs were not borrowed */
        call->family = DLB_FAMILY_NONE;
        inputs = 0;
    }
    frame->tensor_count = frame->input_count = inputs;
}

static bool use_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                      dlb_call *call, PyObject *out) {
    int32_t dim_count = call->dim_count, inputs = cache->input_count;
    call->frame.input_count = inputs;
    call->frame.tensor_count = inputs + cache->result_count;
    if (match_results(call, cache, out) && is_apart(kernel, cache, &call->frame)) {
        if (call->family != DLB_FAMILY_NUMPY)
            use_all_dims(call, cache);
        call->target = cache->target;
        call->holds_gil = cache->holds_gil;
        *call->frame.written = cache->written;
        return true;
    }
    forget_results(call, inputs, dim_count);
    return false;
}

bool dlb_use_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                   dlb_call *call, PyObject *const *tensors, PyObject *out) {
    if ((call->wanted != DLB_FAMILY_NONE && call->wanted != cache->family) ||
        !has_same_sizes(kernel->signature, cache, call->frame.scalars) ||
        !match_inputs(call, cache, tensors))
        return false;
    bool runs_python =
        out == NULL || call->family == DLB_FAMILY_CUPY ||
        (call->family == DLB_FAMILY_TORCH && call->thread == DLB_TORCH_QUERIED);
    if (cache->result_count == 0 || !runs_python)
        return use_cache(kernel, cache, call, out);
    /* To allocate a result, or to borrow it so, lets other code run: it may call this
     * very kernel, and replace the cache. */
    dlb_call_cache before;
    size_t count = (size_t)(cache->input_count + cache->result_count);
    memcpy(&before, cache,
           offsetof(dlb_call_cache, tensors) + count * sizeof *cache->tensors);
    return use_cache(kernel, &before, call, out);
}

bool dlb_use_array_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                         dlb_frame *frame, PyObject *const *arrays, int64_t *room) {
    PyTypeObject *type = &PyArray_Type;
    int32_t count = cache->input_count;
    for (int32_t i = 0; i < count; i++, room += DLB_ROOM)
        if (!match_array(arrays[i], type, &cache->tensors[i], &frame->tensors[i], room))
            return false;
    frame->tensor_count = frame->input_count = count;
    *frame->written = cache->written;
    return is_apart(kernel, cache, frame);
}

/* ---- filling the cache ---- */

static bool cache_tensor(dlb_cached_tensor *cached, const DLTensor *tensor,
                         DLDevice device) {
    if (tensor->ndim < 0 || tensor->ndim > DLB_CACHED_NDIM ||
        !same_device(tensor->device, device))
        return false;
    cached->dl = *tensor;
    for (int32_t i = 0; i < tensor->ndim; i++) /* `shape` may be NULL for none */
        cached->shape[i] = tensor->shape[i];
    dlb_row_major_strides(tensor->ndim, cached->shape, cached->strides);
    if (!matches(cached, tensor)) /* strided: it would never be met again */
        return false;
    cached->descr = NULL;
    cached->nbytes =
        (uint64_t)dlb_packed_bytes(tensor->dtype, 0, dlb_element_count(tensor));
    return cached->nbytes > 0;
}

bool dlb_fill_cache(const dlb_kernel *kernel, dlb_call_cache *cache,
                    const dlb_call *call, uint32_t written) {
    const dlb_frame *frame = &call->frame;
    int32_t count = frame->tensor_count;
    if (count == 0 || count > DLB_CACHED_TENSORS ||
        (kernel->signature == NULL ? frame->scalar_count > 0
                                   : kernel->signature->has_packs))
        return false;
    cache->device = frame->tensors[0].device;
    cache->target = dlb_kernel_target(kernel, cache->device);
    for (int32_t i = 0; i < count; i++)
        if (!cache_tensor(&cache->tensors[i], &frame->tensors[i], cache->device) ||
            (call->family == DLB_FAMILY_NUMPY &&
             !cache_numpy(call->objects[i], &cache->tensors[i])))
            return false;
    for (int32_t i = 0; i < frame->scalar_count; i++)
        cache->sizes[i] = frame->scalars[i].value.i;
    cache->input_count = frame->input_count;
    cache->result_count = count - frame->input_count;
    cache->holds_gil = call->holds_gil;
    cache->is_simple = call->family == DLB_FAMILY_NUMPY && cache->result_count == 0 &&
                       frame->scalar_count == 0;
    cache->written =
        written | (((UINT32_C(1) << cache->result_count) - 1) << frame->input_count);
    for (int32_t i = 0; i < count; i++)
        cache->tensors[i].needed = NPY_ARRAY_C_CONTIGUOUS |
                                   (cache->written >> i & 1 ? NPY_ARRAY_WRITEABLE : 0);
    cache->family = call->family;
    return true;
}

bool dlb_is_same_cache(const dlb_kernel *kernel, const dlb_call_cache *a,
                       const dlb_call_cache *b, const dlb_call *call) {
    if (a->family != b->family || a->input_count != b->input_count ||
        a->result_count != b->result_count || a->written != b->written ||
        !same_device(a->device, b->device) ||
        !has_same_sizes(kernel->signature, a, call->frame.scalars))
        return false;
    for (int32_t i = 0; i < a->input_count + a->result_count; i++)
        if (a->tensors[i].descr != b->tensors[i].descr ||
            !matches(&a->tensors[i], &b->tensors[i].dl))
            return false;
    return true;
}

/* Copies of Tensors: into another one, on their own device, to another device. */
#include "tensor/tensor.h"
#include "cuda/copy.h"
#include "layout/layout.h"

#include <string.h>

#define READ_ONLY (uint64_t)DLPACK_FLAG_BITMASK_READ_ONLY
#define PADDED (uint64_t)DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

/* ---- the memory ---- */

static bool is_reached(DLDevice device) {
    return dlb_is_host(device) || dlb_cuda_has_memory(device);
}

static bool is_cuda(const dlb_buffer *buffer, DLDevice device) {
    return buffer->work != NULL || dlb_is_cuda(device);
}

bool dlb_can_move(DLDevice to, DLDevice from) {
    return (to.device_type == kDLCPU || dlb_cuda_has_memory(to)) && is_reached(from);
}

int dlb_move(dlb_view *to, const dlb_tensor *from, const char *call) {
    int status = 0;
    if (!is_cuda(to->buffer, to->dl.device) &&
        !is_cuda(from->buffer, from->dl.device)) {
        Py_BEGIN_ALLOW_THREADS
        dlb_copy(&to->dl, to->flags, &from->dl, from->flags);
        Py_END_ALLOW_THREADS
        return 0;
    }
    dlb_cuda_operand target = {&to->dl, to->flags, to->buffer->work};
    dlb_cuda_operand source = {&from->dl, from->flags, from->buffer->work};
    Py_BEGIN_ALLOW_THREADS
    status = dlb_cuda_copy(&target, &source);
    Py_END_ALLOW_THREADS
    if (status < 0)
        dlb_cuda_raise(call);
    return status;
}

static int fill_cpu_view(dlb_view *view, const char *call) {
    int64_t nbytes =
        dlb_packed_bytes(view->dl.dtype, view->flags, dlb_element_count(&view->dl));
    view->buffer = dlb_buffer_allocate(nbytes, 64, false);
    if (view->buffer == NULL) {
        dlb_raise_no_memory(call, view->dl.device, nbytes);
        return -1;
    }
    view->dl.data = view->buffer->data;
    view->dl.byte_offset = 0;
    dlb_row_major_strides(view->dl.ndim, view->dl.shape, view->scratch);
    view->dl.strides = view->scratch;
    return 0;
}

/* ---- the order of dimensions ---- */

static int64_t magnitude(int64_t value) {
    return value < 0 ? -value : value;
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

PyObject *dlb_copied(dlb_tensor *from, DLDevice device, char order, uint64_t flags,
                     const char *call) {
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
    if (dlb_move(&view, from, call) < 0) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    return dlb_tensor_new(Py_TYPE(from), &view);
}

/* ---- methods ---- */

/* What a copy on the spot has: of pinned memory one of the CPU's. */
static DLDevice own_device(DLDevice device) {
    return dlb_is_cuda(device) ? device : (DLDevice){kDLCPU, 0};
}

static PyObject *refuse_order(PyObject *order) {
    PyObject *errors = PyImport_ImportModule("dlbridge.errors");
    PyObject *type = errors ? PyObject_GetAttrString(errors, "ArgumentError") : NULL;
    if (type != NULL)
        PyErr_Format(type, "copy: order must be one of C, F, K, got %R", order);
    Py_XDECREF(errors);
    Py_XDECREF(type);
    return NULL;
}

PyObject *dlb_tensor_copy(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"order", NULL};
    PyObject *order = NULL;
    dlb_tensor *tensor = (dlb_tensor *)self;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:copy", names, &order))
        return NULL;
    if (!is_reached(tensor->dl.device))
        return dlb_refuse_move("copy", tensor);
    Py_UCS4 letter = 'C';
    if (order != NULL) {
        bool is_letter = PyUnicode_Check(order) && PyUnicode_GET_LENGTH(order) == 1;
        letter = is_letter ? PyUnicode_READ_CHAR(order, 0) : 0;
    }
    if (letter != 'C' && letter != 'F' && letter != 'K')
        return refuse_order(order);
    return dlb_copied(tensor, own_device(tensor->dl.device), (char)letter, 0, "copy");
}

static int parse_to(PyObject *const *args, Py_ssize_t count, PyObject *names,
                    PyObject **device, bool *copies) {
    Py_ssize_t named = names ? PyTuple_GET_SIZE(names) : 0;
    *device = count == 1 ? args[0] : NULL;
    *copies = false;
    for (Py_ssize_t i = 0; i < named && count <= 1; i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i), *value = args[count + i];
        int truth = 0;
        if (PyUnicode_CompareWithASCIIString(name, "copy") == 0) {
            if ((truth = PyObject_IsTrue(value)) < 0)
                return -1;
            *copies = truth;
        } else if (*device == NULL &&
                   PyUnicode_CompareWithASCIIString(name, "device") == 0) {
            *device = value;
        } else {
            PyErr_Format(PyExc_TypeError, "to() got an unexpected argument %R", name);
            return -1;
        }
    }
    if (*device != NULL && count <= 1)
        return 0;
    PyErr_SetString(PyExc_TypeError, "to() takes one device");
    return -1;
}

PyObject *dlb_tensor_to(PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    DLDevice own = tensor->dl.device, wanted;
    PyObject *device;
    bool copies;
    if (parse_to(args, count, names, &device, &copies) < 0 ||
        dlb_read_device(device, &wanted) < 0)
        return NULL;
    bool is_here = wanted.device_type == own.device_type &&
                   (wanted.device_id == own.device_id || own.device_type == kDLCPU);
    if (is_here && !copies)
        return Py_NewRef(self);
    if (!dlb_can_move(wanted, own))
        return dlb_refuse_move("to", tensor);
    if (wanted.device_type == kDLCPU)
        wanted.device_id = 0;
    return dlb_copied(tensor, wanted, 'K', tensor->flags & PADDED, "to");
}

/* ---- functions ---- */

static int parse_pair(PyObject *args, dlb_tensor **to, dlb_tensor **from) {
    PyObject *first, *second;
    if (!PyArg_ParseTuple(args, "OO:copy_into", &first, &second))
        return -1;
    if (!dlb_is_tensor(first) || !dlb_is_tensor(second)) {
        PyErr_Format(PyExc_TypeError, "copy_into: expected a Tensor, got %s",
                     Py_TYPE(dlb_is_tensor(first) ? second : first)->tp_name);
        return -1;
    }
    *to = (dlb_tensor *)first;
    *from = (dlb_tensor *)second;
    return 0;
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
    int status = dlb_move(&view, from, "copy_into");
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
    if (!dlb_is_tensor(tensor))
        return PyErr_Format(PyExc_TypeError, "copied: expected a Tensor, got %s",
                            Py_TYPE(tensor)->tp_name);
    if (!dlb_can_move(device, ((dlb_tensor *)tensor)->dl.device))
        return dlb_refuse_move("copied", (dlb_tensor *)tensor);
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
    dlb_cuda_operand side = {&tensor->dl, tensor->flags, tensor->buffer->work};
    Py_BEGIN_ALLOW_THREADS
    status = dlb_cuda_fill(&side, value);
    Py_END_ALLOW_THREADS
    return status < 0 ? dlb_cuda_raise("fill") : Py_NewRef(Py_None);
}

/* wait(tensor, writes): until the host may read pinned memory, or write it. */
static PyObject *wait(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *object;
    int writes, status = 0;
    if (!PyArg_ParseTuple(args, "Op:cuda_wait", &object, &writes))
        return NULL;
    dlb_work *work =
        dlb_is_tensor(object) ? ((dlb_tensor *)object)->buffer->work : NULL;
    if (work != NULL) {
        Py_BEGIN_ALLOW_THREADS
        status = dlb_work_wait(work, writes);
        Py_END_ALLOW_THREADS
    }
    return status < 0 ? dlb_cuda_raise("reading values") : Py_NewRef(Py_None);
}

PyMethodDef dlb_move_functions[] = {
    {"copy_into", copy_into, METH_VARARGS,
     "Copy element by element between tensors of the CPU's memory or CUDA's."},
    {"copied", copied, METH_VARARGS, "copied(tensor, device, order, flags)"},
    {"fill", fill, METH_VARARGS, "fill(tensor, byte)"},
    {"cuda_wait", wait, METH_VARARGS, "cuda_wait(tensor, writes)"},
    {NULL, NULL, 0, NULL},
};

/* The C paths in: each type's objects are taken as its peer takes them. */
#include "exchange/exchange.h"
#include "exchange/receipt.h"
#include "python/numpy.h"

/* The Python path says precisely what is wrong; only interrupts pass through. */
static int or_declined(int status) {
    if (status != -1)
        return status;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static inline int take_as(PyObject *x, const dlb_known_type *known, bool detaches,
                          dlb_view *view) {
    return known->peer->take(x, known, detaches, view);
}

static int take_any(PyObject *x, dlb_view *view) {
    const dlb_known_type *known = dlb_type_of(x);
    return or_declined(known ? take_as(x, known, false, view) : -1);
}

int dlb_take(PyObject *x, dlb_view *view) {
    return dlb_is_recorded() ? DLB_DECLINED : take_any(x, view);
}

int dlb_look(PyObject *x, dlb_view *view) {
    return take_any(x, view);
}

int dlb_look_address(PyObject *x, const void **address) {
    const dlb_known_type *known = dlb_type_of(x);
    if (known != NULL && known->peer->look_address != NULL) {
        int status = or_declined(known->peer->look_address(x, address));
        if (status != DLB_UNKNOWN)
            return status;
    }
    dlb_view view;
    int status = take_any(x, &view);
    if (status == 0) {
        *address = view.dl.data;
        dlb_buffer_drop(view.buffer);
    }
    return status;
}

static int take_detached(PyObject *x, dlb_view *view) {
    PyObject *detached = dlb_torch_detach(x);
    int status = detached == NULL ? -1 : take_any(detached, view);
    Py_XDECREF(detached);
    return or_declined(status);
}

/* Take an object whose memory DLPack cannot describe by value: `values(x)` is a NumPy
 * array of its own, or None where Python decides. Not inlined: the
 * registers that it needs would be saved in every call. */
__attribute__((noinline)) static int take_values(PyObject *x, dlb_view *view) {
    const dlb_known_type *known = dlb_find_type(Py_TYPE(x));
    if (known == NULL || known->values == NULL)
        return DLB_DECLINED;
    PyObject *values = Py_NewRef(known->values);
    PyObject *array = PyObject_CallOneArg(values, x);
    int status = array == NULL ? -1 : dlb_take_numpy(array, view);
    Py_XDECREF(array);
    Py_DECREF(values);
    return or_declined(status);
}

PyObject *dlb_take_source(PyObject *x, const dlb_view *view, const char **taken) {
    const dlb_known_type *known = dlb_find_type(Py_TYPE(x));
    *taken = NULL;
    if (known == NULL || known->peer == &dlb_own_peer) /* or a subclass of it */
        return Py_NewRef(dlb.tensor_type);
    if (known->peer->entry != NULL)
        *taken = known->peer->entry(known, view);
    return Py_NewRef(known->source != NULL ? known->source : (PyObject *)Py_TYPE(x));
}

int dlb_take_for(PyObject *call, bool detaches, bool may_copy, PyObject *x,
                 dlb_view *view) {
    const dlb_known_type *known = dlb_type_of(x);
    if (known != NULL && known->peer->ask != NULL)
        return call == NULL ? DLB_DECLINED : known->peer->ask(x, known, call, view);
    bool is_detached = detaches && known != NULL && known->peer->has_gradients;
    int status = or_declined(known ? take_as(x, known, detaches, view) : -1);
    if (status == DLB_DECLINED && is_detached)
        status = take_detached(x, view);
    return status == DLB_DECLINED && may_copy ? take_values(x, view) : status;
}

/* ---- by name, from Python ---- */

static PyObject *new_tensor(int status, dlb_view *view) {
    if (status == 0)
        return dlb_tensor_new(dlb.tensor_type, view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return new_tensor(dlb_take(x, &view), &view);
}

/* Receipts look at what was given out. */
static PyObject *look(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return new_tensor(dlb_look(x, &view), &view);
}

static PyObject *take_capsule(PyObject *Py_UNUSED(module), PyObject *capsule) {
    dlb_view view;
    if (dlb_take_capsule(capsule, &view, "from_dlpack") < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *take_buffer(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return dlb_take_buffer(x, &view) < 0 ? NULL
                                         : dlb_tensor_new(dlb.tensor_type, &view);
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
    view.buffer = PyArray_Check(owner) ? dlb_buffer_of_array(owner, owner)
                                       : dlb_buffer_of_object(owner);
    if (view.buffer == NULL)
        return NULL;
    if (dlb_buffer_track(view.buffer, view.dl.device))
        return dlb_tensor_new(dlb.tensor_type, &view);
    dlb_buffer_drop(view.buffer);
    return PyErr_NoMemory();
}

PyMethodDef dlb_take_functions[] = {
    {"take", take, METH_O,
     "take($module, x, /)\n--\n\nA Tensor of a known type's object, or None when a "
     "guard declines."},
    {"look", look, METH_O,
     "look($module, x, /)\n--\n\nLike take, also while a receipt log is open."},
    {"take_capsule", take_capsule, METH_O,
     "take_capsule($module, capsule, /)\n--\n\nConsume a capsule of either kind."},
    {"take_buffer", take_buffer, METH_O,
     "take_buffer($module, x, /)\n--\n\nA Tensor through the buffer protocol."},
    {"take_object", take_object, METH_VARARGS,
     "take_object($module, owner, data_ptr, shape, strides, dtype, device, flags=0, "
     "/)\n--\n\nA Tensor over memory that an object keeps."},
    {NULL, NULL, 0, NULL},
};

/* Views by exact integers, slices, None and `...`, and other shapes of row-major
 * memory. Everything else, and every error, is Python's: tensor/views.py is the home of
 * the rules, and tests hold the two together. */
#include "layout/layout.h"
#include "tensor/tensor.h"

/* An exact integer in the range of int64; false: Python decides. */
static bool read_int(PyObject *item, int64_t *out) {
    int overflow = 0;
    if (!PyLong_CheckExact(item))
        return false;
    *out = PyLong_AsLongLongAndOverflow(item, &overflow);
    return overflow == 0;
}

static bool is_bound(PyObject *item) {
    return item == Py_None || PyLong_CheckExact(item);
}

/* A view on its way: dimensions of the tensor up to `dim` are dealt with. */
typedef struct {
    const DLTensor *of;
    int32_t dim, ndim;
    int64_t offset;
    int64_t shape[DLB_MAX_NDIM], strides[DLB_MAX_NDIM];
    bool is_new[DLB_MAX_NDIM]; /* by None, without a stride yet */
} subview;

static bool add(subview *view, int64_t extent, int64_t stride, bool is_new) {
    if (view->ndim == DLB_MAX_NDIM)
        return false;
    view->shape[view->ndim] = extent;
    view->strides[view->ndim] = stride;
    view->is_new[view->ndim++] = is_new;
    return true;
}

static bool add_slice(subview *view, PyObject *item) {
    PySliceObject *slice = (PySliceObject *)item;
    Py_ssize_t start, stop, step;
    int64_t stride = view->of->strides[view->dim];
    if (!is_bound(slice->start) || !is_bound(slice->stop) || !is_bound(slice->step))
        return false;
    if (PySlice_Unpack(item, &start, &stop, &step) < 0) {
        PyErr_Clear();
        return false;
    }
    Py_ssize_t count =
        PySlice_AdjustIndices(view->of->shape[view->dim], &start, &stop, step);
    view->offset += count ? start * stride : 0;
    view->dim++;
    return add(view, count, count > 1 ? stride * step : stride, false);
}

static bool add_position(subview *view, PyObject *item) {
    int64_t position, extent = view->of->shape[view->dim];
    if (!read_int(item, &position) || position < -extent || position >= extent)
        return false;
    view->offset +=
        (position < 0 ? position + extent : position) * view->of->strides[view->dim++];
    return true;
}

static bool add_dimensions(subview *view, int32_t end) {
    for (; view->dim < end; view->dim++)
        if (!add(view, view->of->shape[view->dim], view->of->strides[view->dim], false))
            return false;
    return true;
}

/* How many dimensions the items behind an ellipsis take; -1: there is another. */
static int32_t count_after(PyObject *const *items, Py_ssize_t count) {
    int32_t taken = 0;
    for (Py_ssize_t i = 0; i < count; i++)
        if (items[i] == Py_Ellipsis)
            return -1;
        else
            taken += items[i] != Py_None;
    return taken;
}

static bool add_item(subview *view, PyObject *const *items, Py_ssize_t count) {
    PyObject *item = items[0];
    if (item == Py_None)
        return add(view, 1, 0, true);
    if (item == Py_Ellipsis) {
        int32_t taken = count_after(items + 1, count - 1);
        return taken >= 0 && add_dimensions(view, view->of->ndim - taken);
    }
    if (view->dim == view->of->ndim)
        return false;
    return PySlice_Check(item) ? add_slice(view, item) : add_position(view, item);
}

/* New dimensions of one element take the stride that row-major memory would have. */
static bool fill_strides(subview *view) {
    int64_t tidy = 1;
    for (int32_t i = view->ndim - 1; i >= 0; i--) {
        if (view->is_new[i])
            view->strides[i] = tidy;
        if (__builtin_mul_overflow(view->strides[i], view->shape[i], &tidy))
            return false;
    }
    return true;
}

static PyObject *make(PyObject *self, int32_t ndim, int64_t *shape,
                      const int64_t *strides, int64_t bytes) {
    dlb_view view;
    dlb_tensor_view((dlb_tensor *)self, &view);
    view.dl.ndim = ndim;
    view.dl.shape = shape;
    view.dl.strides = (int64_t *)strides;
    dlb_advance(&view.dl, bytes);
    const char *reason = dlb_layout_check(&view.dl, view.flags);
    if (reason == NULL)
        return dlb_tensor_new(Py_TYPE(self), &view);
    dlb_buffer_drop(view.buffer);
    return NULL;
}

PyObject *dlb_tensor_item(PyObject *self, PyObject *key) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    bool is_tuple = PyTuple_CheckExact(key);
    PyObject *const *items = is_tuple ? &PyTuple_GET_ITEM(key, 0) : &key;
    Py_ssize_t count = is_tuple ? PyTuple_GET_SIZE(key) : 1;
    int64_t bits = dlb_element_bits(tensor->dl.dtype, tensor->flags);
    subview view;
    view.of = &tensor->dl;
    view.dim = view.ndim = 0;
    view.offset = 0;
    bool is_known = bits % 8 == 0;
    for (Py_ssize_t i = 0; is_known && i < count; i++)
        is_known = add_item(&view, items + i, count - i);
    if (is_known && add_dimensions(&view, tensor->dl.ndim) && fill_strides(&view)) {
        for (int32_t i = 0; i < view.ndim; i++)
            if (view.shape[i] == 0)
                view.offset = 0;
        PyObject *made =
            make(self, view.ndim, view.shape, view.strides, view.offset * (bits / 8));
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    return PyObject_CallMethod(self, "_index", "(O)", key);
}

/* The extents, with -1 worked out; false: Python decides. */
static bool read_shape(PyObject *const *items, Py_ssize_t count, int64_t size,
                       int64_t *shape) {
    int64_t known = 1;
    Py_ssize_t unknown = -1;
    if (count > DLB_MAX_NDIM)
        return false;
    for (Py_ssize_t i = 0; i < count; i++) {
        if (!read_int(items[i], &shape[i]) || shape[i] < -1 ||
            (shape[i] == -1 && unknown >= 0))
            return false;
        if (shape[i] == -1)
            unknown = i;
        else if (__builtin_mul_overflow(known, shape[i], &known))
            return false;
    }
    if (unknown < 0)
        return known == size && size > 0;
    if (size == 0 || known == 0 || size % known)
        return false;
    shape[unknown] = size / known;
    return true;
}

PyObject *dlb_tensor_reshape(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names) {
    if (names != NULL && PyTuple_GET_SIZE(names) > 0) {
        static char *const known[] = {"shape", NULL};
        PyObject *name = PyTuple_GET_ITEM(names, 0);
        if (PyUnicode_CompareWithASCIIString(name, "shape") != 0 || count > 0) {
            PyErr_Format(PyExc_TypeError,
                         "reshape() got an unexpected keyword argument %R", name);
            return dlb_refuse_arguments("Tensor.reshape", known);
        }
        count = 1; /* reshape(shape=…) */
    }
    dlb_tensor *tensor = (dlb_tensor *)self;
    int64_t shape[DLB_MAX_NDIM], strides[DLB_MAX_NDIM];
    PyObject *const *items = args;
    Py_ssize_t ndim = count;
    if (count == 1 && PyTuple_CheckExact(args[0])) {
        items = &PyTuple_GET_ITEM(args[0], 0);
        ndim = PyTuple_GET_SIZE(args[0]);
    }
    if (dlb_is_row_major(&tensor->dl) &&
        read_shape(items, ndim, dlb_element_count(&tensor->dl), shape)) {
        dlb_row_major_strides((int32_t)ndim, shape, strides);
        PyObject *made = make(self, (int32_t)ndim, shape, strides, 0);
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    PyObject *slow = PyObject_GetAttrString(self, "_reshape");
    PyObject *made = slow ? PyObject_Vectorcall(slow, args, (size_t)count, NULL) : NULL;
    Py_XDECREF(slow);
    return made;
}

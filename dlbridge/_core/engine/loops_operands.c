/* What the arrays of a call are like: their forms, or that only NumPy knows. */
#include "engine/loops.h"

#include <string.h>

/* False where only NumPy knows what to do. */
static bool take_operand(PyArray_Descr *descr, PyObject *value,
                         dlb_loops_operand *operand) {
    if (!PyArray_CheckExact(value)) {
        if (Py_TYPE(value) != descr->typeobj)
            return false;
        PyArray_ScalarAsCtype(value, operand->cell);
        operand->data = operand->cell;
        operand->count = 1;
        return true;
    }
    const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    PyArrayObject *array = (PyArrayObject *)value;
    operand->data = PyArray_DATA(array);
    operand->count = PyArray_SIZE(array);
    return (PyArray_FLAGS(array) & needed) == needed &&
           (PyArray_DESCR(array) == descr ||
            PyArray_EquivTypes(PyArray_DESCR(array), descr));
}

static int rank(PyObject *value) {
    return PyArray_CheckExact(value) ? PyArray_NDIM((PyArrayObject *)value) : 0;
}

/* One element widens nothing, not even what has no elements. */
static npy_intp width(PyArrayObject *array) {
    npy_intp size = PyArray_SIZE(array);
    return size == 1 ? -1 : size;
}

static bool is_wider(PyArrayObject *array, PyArrayObject *other) {
    return other == NULL || PyArray_NDIM(array) > PyArray_NDIM(other) ||
           (PyArray_NDIM(array) == PyArray_NDIM(other) && width(array) > width(other));
}

/* The dims of `array`, without ones in front, are the last of `widest`. */
static bool is_suffix(PyArrayObject *array, PyArrayObject *widest) {
    int ndim = PyArray_NDIM(array);
    const npy_intp *dims = PyArray_DIMS(array);
    while (ndim > 0 && *dims == 1) {
        dims++;
        ndim--;
    }
    const npy_intp *last = PyArray_DIMS(widest) + PyArray_NDIM(widest) - ndim;
    return memcmp(dims, last, (size_t)ndim * sizeof *dims) == 0;
}

/* A form, or -1 where shapes are mixed in another way. */
static int find_form(const dlb_loops_call *at, PyArrayObject *array, npy_intp count) {
    PyArrayObject *widest = at->widest;
    int ndim = PyArray_NDIM(array);
    if (ndim == PyArray_NDIM(widest) &&
        memcmp(PyArray_DIMS(array), PyArray_DIMS(widest),
               (size_t)ndim * sizeof(npy_intp)) == 0)
        return DLB_FORM_FULL;
    if (count == 1 && at->frame.count != 1)
        return DLB_FORM_ONE;
    return is_suffix(array, widest) ? DLB_FORM_SUFFIX : -1;
}

bool dlb_loops_take(dlb_loops_call *at) {
    int32_t count = at->loops->input_count;
    for (int32_t i = 0; i < count; i++) {
        PyObject *value = at->values[i];
        if (!take_operand(at->loops->descrs[i], value, &at->operands[i]))
            return false;
        if (rank(value) > 0 && is_wider((PyArrayObject *)value, at->widest))
            at->widest = (PyArrayObject *)value;
    }
    at->frame.count = at->widest == NULL ? 0 : PyArray_SIZE(at->widest);
    for (int32_t i = 0; i < count; i++) {
        PyObject *value = at->values[i];
        int form = 0;
        if (rank(value) > 0)
            form = find_form(at, (PyArrayObject *)value, at->operands[i].count);
        if (form < 0)
            return false;
        at->forms[i] = at->operands[i].form = (unsigned char)form;
    }
    return true;
}

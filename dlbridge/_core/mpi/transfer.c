/* Tensors of the CPU in and out: memory of arguments, of `out=`, and of results. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "mpi/calls.h"

#include <limits.h>
#include <string.h>

static int take_known(PyObject *x, size_t most, source *out) {
    out->converter = PyTuple_GET_ITEM(out->known, 0);
    out->guard = PyTuple_GET_ITEM(out->known, 1);
    if (out->guard != Py_None) {
        PyObject *is_clean = PyObject_CallNoArgs(out->guard);
        if (is_clean == NULL)
            return -1;
        Py_DECREF(is_clean);
        if (is_clean != Py_True)
            return 0;
    }
    int status = dlb_take(x, &out->view);
    if (status != 0)
        return status < 0 ? -1 : 0;
    const DLTensor *dl = &out->view.dl;
    out->nbytes =
        (size_t)dlb_packed_bytes(dl->dtype, out->view.flags, dlb_element_count(dl));
    if (out->view.buffer->access == NULL && dl->device.device_type == kDLCPU &&
        !(out->view.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) &&
        out->nbytes > 0 && out->nbytes <= most && dl->ndim < MOST_DIMENSIONS &&
        dl->dtype.bits % 8 == 0 && dlb_is_row_major(dl))
        return 1;
    dlb_buffer_drop(out->view.buffer);
    return 0;
}

int dlb_source_take(const quick *self, PyObject *x, size_t most, source *out) {
    out->known = dlb_cache_get(self->types, (PyObject *)Py_TYPE(x));
    if (out->known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int taken = take_known(x, most, out);
    if (taken <= 0)
        Py_DECREF(out->known);
    return taken;
}

int dlb_source_take_out(const quick *self, PyObject *x, source *out) {
    int taken = dlb_source_take(self, x, INT_MAX, out);
    if (taken <= 0 ||
        (PyTuple_GET_ITEM(out->known, 2) == Py_True &&
         !(out->view.flags & DLPACK_FLAG_BITMASK_READ_ONLY) &&
         (dlb_is_row_major(&out->view.dl) || !dlb_overlaps_itself(&out->view.dl))))
        return taken;
    dlb_source_drop(out);
    return 0;
}

PyObject *dlb_find_converter(PyObject *name) {
    if (!PyUnicode_CheckExact(name) || dlb.converters == NULL)
        return NULL;
    if (PyUnicode_CompareWithASCIIString(name, "dlbridge") == 0)
        return Py_NewRef(Py_None);
    PyObject *found = dlb_cache_get(dlb.converters, name);
    bool is_known = found != NULL && Py_TYPE(found) == &dlb_ConverterType;
    if (!is_known)
        Py_CLEAR(found);
    return found;
}

PyObject *dlb_type_converter(const quick *self, PyObject *x) {
    PyObject *known = dlb_cache_get(self->types, (PyObject *)Py_TYPE(x));
    PyObject *found = known == NULL ? NULL : Py_NewRef(PyTuple_GET_ITEM(known, 0));
    Py_XDECREF(known);
    return found;
}

/* Python values to C values and back. */
#include "python/python.h"

#include <string.h>

int dlb_parse_dims(PyObject *sequence, int64_t *dims, const char *name) {
    PyObject *items =
        PySequence_Tuple(sequence); /* a list could change under __index__ */
    if (items == NULL)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (count > DLB_MAX_NDIM) {
        Py_DECREF(items);
        dlb_refuse("ndim", "%s: %zd dimensions; at most %d are supported", name, count,
                   DLB_MAX_NDIM);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(items, i));
        if (dims[i] == -1 && PyErr_Occurred()) {
            Py_DECREF(items);
            return -1;
        }
    }
    Py_DECREF(items);
    return (int)count;
}

static int parse_longs(PyObject *tuple, long *values, int count, const char *name) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of %d integers, got %R", name,
                     count, tuple);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        values[i] = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

int dlb_parse_dtype(PyObject *triple, DLDataType *dtype) {
    long values[3];
    if (parse_longs(triple, values, 3, "dtype") < 0)
        return -1;
    if (values[0] < 0 || values[0] > 255 || values[1] < 0 || values[1] > 255 ||
        values[2] < 0 || values[2] > 65535) {
        dlb_refuse("dtype", "dtype %R is outside of DLDataType's fields", triple);
        return -1;
    }
    *dtype = (DLDataType){(uint8_t)values[0], (uint8_t)values[1], (uint16_t)values[2]};
    return 0;
}

int dlb_parse_device(PyObject *pair, DLDevice *device) {
    long values[2];
    if (parse_longs(pair, values, 2, "device") < 0)
        return -1;
    if (values[0] < 0 || values[0] > 63 || values[1] < INT32_MIN ||
        values[1] > INT32_MAX) {
        dlb_refuse("device", "device %R is not one of DLPack's", pair);
        return -1;
    }
    *device = (DLDevice){(DLDeviceType)values[0], (int32_t)values[1]};
    return 0;
}

PyObject *dlb_dims_tuple(const int64_t *dims, int32_t ndim) {
    PyObject *tuple = PyTuple_New(ndim);
    for (int32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *item = PyLong_FromLongLong(dims[i]);
        if (item == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

/* The table or an older one behind it whose major version we know. */
const DLPackExchangeAPI *dlb_parse_table(PyObject *capsule) {
    DLPackExchangeAPIHeader *header =
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (header == NULL)
        return NULL;
    while (header != NULL && header->version.major != DLPACK_MAJOR_VERSION)
        header = header->prev_api;
    if (header == NULL)
        dlb_refuse("version", "the C exchange table has no version of major %d",
                   DLPACK_MAJOR_VERSION);
    return (const DLPackExchangeAPI *)header;
}

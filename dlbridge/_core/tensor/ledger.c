/* The ledger for Python: where each entry was made, and the context manager that
 * records.
 */
#include "memory/ledger.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- places: code objects and lines outside of the package ----
 *
 * Static variables of this file are under DLB_EXCLUSIVE of the type. */

static PyObject *places;        /* a list of (code object, line) */
static PyObject *place_numbers; /* of each of them */
static PyObject *own_folder;    /* the frames of files below it are ours */

static int32_t add_place(PyObject *code, int line) {
    PyObject *key = places ? Py_BuildValue("Oi", code, line) : NULL;
    PyObject *known = key ? dlb_cache_get(place_numbers, key) : NULL;
    Py_ssize_t number = -1;
    if (known != NULL) {
        number = PyLong_AsSsize_t(known);
        Py_DECREF(known);
    } else if (key != NULL && !PyErr_Occurred()) {
        number = PyList_GET_SIZE(places);
        PyObject *value = PyLong_FromSsize_t(number);
        if (value == NULL || PyList_Append(places, key) < 0)
            number = -1;
        else if (PyDict_SetItem(place_numbers, key, value) < 0)
            PyErr_Clear(); /* the same place gets another number the next time */
        Py_XDECREF(value);
    }
    Py_XDECREF(key);
    return number > INT32_MAX ? -1 : (int32_t)number;
}

static int32_t number_of(PyObject *code, int line) {
    int32_t number;
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    number = add_place(code, line);
    DLB_END_EXCLUSIVE();
    return number;
}

static PyObject *folder_of_package(void) {
    PyObject *folder;
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    folder = Py_XNewRef(own_folder);
    DLB_END_EXCLUSIVE();
    return folder;
}

/* The nearest frame of this thread that is not ours. No collection, which could run any
 * code, happens here: callers may be in the middle of something. (Without a GIL none
 * happens but between two lines of Python.) */
static int32_t place_of_caller(void) {
    if (!Py_IsInitialized() || dlb_interpreter_is_gone() || !PyGILState_Check())
        return -1;
    PyObject *folder = folder_of_package();
    if (folder == NULL)
        return -1;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    int32_t number = -1;
#ifndef Py_GIL_DISABLED
    int collects = PyGC_Disable();
#endif
    PyFrameObject *frame = PyEval_GetFrame();
    Py_XINCREF(frame);
    while (frame != NULL) {
        PyCodeObject *code = PyFrame_GetCode(frame);
        PyObject *file = code->co_filename;
        Py_ssize_t is_ours =
            PyUnicode_Tailmatch(file, folder, 0, PyUnicode_GET_LENGTH(file), -1);
        if (is_ours != 1)
            number = number_of((PyObject *)code, PyFrame_GetLineNumber(frame));
        Py_DECREF(code);
        if (is_ours != 1)
            break;
        PyFrameObject *back = PyFrame_GetBack(frame);
        Py_DECREF(frame);
        frame = back;
    }
    Py_XDECREF(frame);
#ifndef Py_GIL_DISABLED
    if (collects)
        PyGC_Enable();
#endif
    Py_DECREF(folder);
    PyErr_Restore(type, value, traceback);
    return number;
}

static PyObject *place_tuple(int32_t number) {
    PyObject *pair = NULL;
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    if (number >= 0 && places != NULL && number < PyList_GET_SIZE(places))
        pair = dlb_list_item(places, number);
    DLB_END_EXCLUSIVE();
    if (pair == NULL)
        return Py_NewRef(Py_None);
    PyCodeObject *code = (PyCodeObject *)PyTuple_GET_ITEM(pair, 0);
    PyObject *place = Py_BuildValue("OOO", code->co_filename, PyTuple_GET_ITEM(pair, 1),
                                    code->co_qualname);
    Py_DECREF(pair);
    return place;
}

void dlb_ledger_start(void) {
    dlb_ledger_place = place_of_caller;
    dlb_ledger_kind = dlb_kind_of_buffer;
}

/* ---- the context manager ---- */

typedef struct {
    PyObject_HEAD
    int64_t first, last; /* serials; what was recorded lies between */
    enum { IS_NEW, IS_OPEN, IS_OVER } state;
} recording;

static Py_ssize_t askers; /* recordings that may be asked */

static int prepare_places(void) {
    if (places != NULL)
        return 0;
    PyObject *module = PyImport_ImportModule("dlbridge");
    PyObject *paths = module ? PyObject_GetAttrString(module, "__path__") : NULL;
    PyObject *path = paths ? PySequence_GetItem(paths, 0) : NULL;
    PyObject *folder = path ? PyUnicode_FromFormat("%U/", path) : NULL;
    PyObject *list = folder ? PyList_New(0) : NULL;
    PyObject *numbers = list ? PyDict_New() : NULL;
    Py_XDECREF(module);
    Py_XDECREF(paths);
    Py_XDECREF(path);
    if (numbers == NULL) {
        Py_XDECREF(folder);
        Py_XDECREF(list);
        return -1;
    }
    own_folder = folder;
    place_numbers = numbers;
    places = list;
    return 0;
}

static int start(recording *self) {
    if (self->state != IS_NEW) {
        PyErr_Format(PyExc_RuntimeError,
                     "ledger: each is for one `with` block; make another");
        return -1;
    }
    if (prepare_places() < 0)
        return -1;
    askers++;
    self->first = dlb_ledger_open();
    self->state = IS_OPEN;
    return 0;
}

static PyObject *recording_enter(PyObject *object, PyObject *Py_UNUSED(unused)) {
    int status;
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    status = start((recording *)object);
    DLB_END_EXCLUSIVE();
    return status < 0 ? NULL : Py_NewRef(object);
}

static void stop(recording *self) {
    if (self->state != IS_OPEN)
        return;
    self->last = dlb_ledger_close();
    self->state = IS_OVER;
}

static PyObject *recording_exit(PyObject *object, PyObject *Py_UNUSED(exception)) {
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    stop((recording *)object);
    DLB_END_EXCLUSIVE();
    Py_RETURN_NONE;
}

static void recording_dealloc(PyObject *object) {
    recording *self = (recording *)object;
    PyObject *unused[3] = {NULL};
    DLB_BEGIN_EXCLUSIVE(&dlb_RecordingType);
    stop(self);
    if (self->state == IS_OVER && --askers == 0) {
        dlb_ledger_clear();
        unused[0] = places;
        unused[1] = place_numbers;
        unused[2] = own_folder;
        places = place_numbers = own_folder = NULL;
    }
    DLB_END_EXCLUSIVE();
    for (int i = 0; i < 3; i++)
        Py_XDECREF(unused[i]);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *row_tuple(const dlb_ledger_row *row) {
    PyObject *place = place_tuple(row->place);
    PyObject *event_place = place ? place_tuple(row->event_place) : NULL;
    PyObject *tensor = NULL;
    if (event_place != NULL && row->ndim < 0) {
        tensor = Py_NewRef(Py_None);
    } else if (event_place != NULL) {
        PyObject *shape =
            PyTuple_New(row->ndim < DLB_LEDGER_DIMS ? row->ndim : DLB_LEDGER_DIMS);
        for (Py_ssize_t d = 0; shape != NULL && d < PyTuple_GET_SIZE(shape); d++) {
            PyObject *extent = PyLong_FromLongLong(row->shape[d]);
            if (extent == NULL)
                Py_CLEAR(shape);
            else
                PyTuple_SET_ITEM(shape, d, extent);
        }
        if (shape != NULL)
            tensor = Py_BuildValue("(iii)(ii)Ni", row->dtype.code, row->dtype.bits,
                                   row->dtype.lanes, (int)row->device.device_type,
                                   (int)row->device.device_id, shape, (int)row->ndim);
    }
    if (tensor == NULL) {
        Py_XDECREF(place);
        Py_XDECREF(event_place);
        return NULL;
    }
    return Py_BuildValue("LsLNiNN", (long long)row->serial, row->kind,
                         (long long)row->nbytes, place, (int)row->misuse, event_place,
                         tensor);
}

static int64_t last_of(const recording *self) {
    return self->state == IS_OPEN ? dlb_ledger_now() : self->last;
}

static PyObject *rows_list(recording *self,
                           dlb_ledger_row *(*rows_of)(int64_t, int64_t, int64_t *)) {
    if (self->state == IS_NEW)
        return PyList_New(0);
    int64_t count;
    dlb_ledger_row *rows = rows_of(self->first, last_of(self), &count);
    if (rows == NULL)
        return PyErr_NoMemory();
    PyObject *list = PyList_New((Py_ssize_t)count);
    for (int64_t i = 0; list != NULL && i < count; i++) {
        PyObject *row = row_tuple(&rows[i]);
        if (row == NULL)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, row);
    }
    free(rows);
    return list;
}

static PyObject *recording_alive(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return rows_list((recording *)self, dlb_ledger_alive);
}

static PyObject *recording_misuses(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return rows_list((recording *)self, dlb_ledger_events);
}

static PyObject *recording_made(PyObject *object, PyObject *Py_UNUSED(unused)) {
    recording *self = (recording *)object;
    return PyLong_FromLongLong(
        self->state == IS_NEW ? 0 : dlb_ledger_births(self->first, last_of(self)));
}

static PyObject *recording_lost(PyObject *Py_UNUSED(self),
                                PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(dlb_ledger_lost());
}

static PyMethodDef recording_methods[] = {
    {"__enter__", recording_enter, METH_NOARGS, "__enter__($self, /)\n--\n\n"},
    {"__exit__", recording_exit, METH_VARARGS,
     "__exit__($self, /, *exception)\n--\n\n"},
    {"_alive", recording_alive, METH_NOARGS,
     "_alive($self, /)\n--\n\nRows of what was made here and is alive."},
    {"_misuses", recording_misuses, METH_NOARGS,
     "_misuses($self, /)\n--\n\nRows of what was misused."},
    {"_made", recording_made, METH_NOARGS,
     "_made($self, /)\n--\n\nHow many buffers and exports were made."},
    {"_lost", recording_lost, METH_NOARGS,
     "_lost($self, /)\n--\n\nHow much could not be recorded."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_RecordingType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Recording",
    .tp_doc = "Recording()\n--\n\nRecords buffers and exports in a `with` block.",
    .tp_basicsize = sizeof(recording),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = recording_dealloc,
    .tp_methods = recording_methods,
};

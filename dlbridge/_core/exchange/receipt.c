/* Receipts of exchanges that C makes: numbers and names, of which Python makes the
 * fields once somebody reads them. */
#include "exchange/receipt.h"

#include <stddef.h>

/* Immutable once it is written, but for `fields`. It is in no cycle: `source` is a
 * name, or a type that lives as long as its framework. */
typedef struct {
    PyObject_VAR_HEAD PyObject *source, *target;
    const char *taken, *why;
    uintptr_t in, out;
    DLDataType dtype;
    bool is_identity, has_out;
    _Atomic(PyObject *) fields; /* NULL: nobody has read them */
    int64_t shape[];
} record;

static const char *const names[] = {
    "source",       "target", "route", "shared", "copied_by", "why",    "data_ptr_in",
    "data_ptr_out", "nbytes", "shape", "dtype",  "device",    "stream", "ordered"};
enum { FIELDS = sizeof names / sizeof *names };

/* What Python gives at its start: the type of the records, (description) -> fields,
 * (array) -> address of its memory or None. */
static struct {
    PyTypeObject *type;
    PyObject *fields, *address;
} package;

/* ---- writing ---- */

PyObject *dlb_receipts_find(void) {
    PyObject *logs = NULL;
    if (package.type == NULL || dlb.receipt_logs == NULL)
        return NULL;
    if (PyContextVar_Get(dlb.receipt_logs, NULL, &logs) < 0)
        PyErr_Clear();
    if (logs != NULL && (!PyTuple_CheckExact(logs) || PyTuple_GET_SIZE(logs) == 0))
        Py_CLEAR(logs);
    return logs;
}

PyObject *dlb_receipt_new(PyObject *source, const char *taken, PyObject *target,
                          const DLTensor *dl) {
    record *made = (record *)package.type->tp_alloc(package.type, dl->ndim);
    if (made == NULL)
        return NULL;
    made->source = Py_NewRef(source);
    made->target = Py_NewRef(target);
    made->taken = taken;
    made->in = (uintptr_t)dl->data;
    made->dtype = dl->dtype;
    for (int32_t i = 0; i < dl->ndim; i++)
        made->shape[i] = dl->shape[i];
    return (PyObject *)made;
}

void dlb_receipt_is_identity(PyObject *receipt) {
    record *self = (record *)receipt;
    self->is_identity = self->has_out = true;
    self->out = self->in;
}

void dlb_receipt_copied(PyObject *receipt, const char *why) {
    ((record *)receipt)->why = why;
}

void dlb_receipt_seen(PyObject *receipt, const void *data) {
    record *self = (record *)receipt;
    self->out = (uintptr_t)data;
    self->has_out = true;
}

/* Ask the adapter of the result where its memory is, unless that is known. */
static int find_out(record *self, PyObject *result) {
    if (self->has_out)
        return 0;
    PyObject *address = PyObject_CallOneArg(package.address, result);
    if (address == NULL)
        return -1;
    if (address != Py_None) {
        self->out = (uintptr_t)PyLong_AsUnsignedLongLong(address);
        self->has_out = true;
    }
    Py_DECREF(address);
    return PyErr_Occurred() ? -1 : 0;
}

int dlb_receipt_write(PyObject *receipt, PyObject *logs, PyObject *result) {
    if (find_out((record *)receipt, result) < 0)
        return -1;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(logs); i++)
        if (PyList_Append(PyTuple_GET_ITEM(logs, i), receipt) < 0)
            return -1;
    return 0;
}

/* ---- reading ---- */

/* (source, taken, target, is_identity, why, in, out, shape, dtype) */
static PyObject *describe(const record *self) {
    PyObject *shape = dlb_dims_tuple(self->shape, (int32_t)Py_SIZE(self));
    PyObject *dtype = dlb_dtype_object(self->dtype);
    PyObject *out =
        self->has_out ? PyLong_FromUnsignedLongLong(self->out) : Py_NewRef(Py_None);
    PyObject *made = NULL;
    if (shape != NULL && dtype != NULL && out != NULL)
        made = Py_BuildValue("OzOOzKOOO", self->source, self->taken, self->target,
                             self->is_identity ? Py_True : Py_False, self->why,
                             (unsigned long long)self->in, out, shape, dtype);
    Py_XDECREF(shape);
    Py_XDECREF(dtype);
    Py_XDECREF(out);
    return made;
}

static PyObject *make_fields(const record *self) {
    if (self->source == NULL)
        return PyErr_Format(PyExc_AttributeError, "the receipt has no fields");
    PyObject *description = describe(self);
    PyObject *made =
        description ? PyObject_CallOneArg(package.fields, description) : NULL;
    Py_XDECREF(description);
    if (made == NULL || (PyTuple_Check(made) && PyTuple_GET_SIZE(made) == FIELDS))
        return made;
    Py_DECREF(made);
    return PyErr_Format(PyExc_TypeError, "a receipt has %d fields", FIELDS);
}

/* Borrowed; NULL with an error. */
static PyObject *read_fields(record *self) {
    PyObject *fields = atomic_load(&self->fields), *none = NULL;
    if (fields != NULL)
        return fields;
    PyObject *made = make_fields(self);
    if (made == NULL || atomic_compare_exchange_strong(&self->fields, &none, made))
        return made;
    Py_DECREF(made); /* another thread was first */
    return none;
}

static PyObject *get_field(PyObject *self, void *index) {
    PyObject *fields = read_fields((record *)self);
    return fields ? Py_NewRef(PyTuple_GET_ITEM(fields, (intptr_t)index)) : NULL;
}

static PyObject *get_all(PyObject *self, PyObject *Py_UNUSED(unused)) {
    return Py_XNewRef(read_fields((record *)self));
}

/* ---- the type ---- */

static int record_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *keywords[] = {"fields", NULL};
    PyObject *fields, *none = NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!:Record", keywords, &PyTuple_Type,
                                     &fields))
        return -1;
    if (PyTuple_GET_SIZE(fields) != FIELDS) {
        PyErr_Format(PyExc_ValueError, "Record: a receipt has %d fields, got %zd",
                     FIELDS, PyTuple_GET_SIZE(fields));
        return -1;
    }
    if (atomic_compare_exchange_strong(&((record *)self)->fields, &none, fields))
        Py_INCREF(fields);
    return 0;
}

static void record_dealloc(PyObject *object) {
    record *self = (record *)object;
    Py_XDECREF(self->source);
    Py_XDECREF(self->target);
    Py_XDECREF(atomic_load(&self->fields));
    Py_TYPE(object)->tp_free(object);
}

static PyGetSetDef record_attributes[FIELDS + 1];

static PyMethodDef record_methods[] = {
    {"fields", get_all, METH_NOARGS,
     "fields($self, /)\n--\n\nAll fields, in their order."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_RecordType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Record",
    .tp_doc = "The fields of a receipt.",
    .tp_basicsize = offsetof(record, shape),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE,
    .tp_new = PyType_GenericNew,
    .tp_init = record_init,
    .tp_dealloc = record_dealloc,
    .tp_methods = record_methods,
    .tp_getset = record_attributes,
};

void dlb_receipt_prepare(void) {
    for (intptr_t i = 0; i < FIELDS; i++)
        record_attributes[i] =
            (PyGetSetDef){names[i], get_field, NULL, NULL, (void *)i};
}

static PyObject *start_receipts(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *type, *fields, *source, *address;
    if (!PyArg_ParseTuple(args, "O!OOO:start_receipts", &PyType_Type, &type, &fields,
                          &source, &address))
        return NULL;
    if (!PyType_IsSubtype((PyTypeObject *)type, &dlb_RecordType))
        return PyErr_Format(PyExc_TypeError, "start_receipts: %R is no Record", type);
    Py_XSETREF(package.fields, Py_NewRef(fields));
    Py_XSETREF(dlb.type_source, Py_NewRef(source));
    Py_XSETREF(package.address, Py_NewRef(address));
    PyTypeObject *old = package.type;
    package.type = (PyTypeObject *)Py_NewRef(type);
    Py_XDECREF(old);
    Py_RETURN_NONE;
}

PyMethodDef dlb_receipt_functions[] = {
    {"start_receipts", start_receipts, METH_VARARGS,
     "start_receipts($module, record, fields, source, address, /)\n--\n\nSay what "
     "makes "
     "receipts of what C writes down."},
    {NULL, NULL, 0, NULL},
};

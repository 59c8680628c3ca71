/* native.Quiet and native.Lookup: calls that would otherwise need Python frames in each
 * run of a plan. What they do not recognise, a function in Python does. */
#include "engine/engine.h"

#include <structmember.h>

/* ==== Quiet: a function that runs while NumPy warns of nothing ====
 *
 * NumPy 2 has in a context variable how it treats floating-point errors. Where that is
 * as NumPy begins with, another value takes its place during the call, as in a block of
 * np.errstate(all="ignore"). */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *function, *slow;
    PyObject *variable, *usual,
        *quiet; /* the context variable, and two of its values */
} quiet_call;

/* Put the variable back, unless that fails; takes `token` and `result`, and keeps an
 * exception. */
static PyObject *restore(const quiet_call *self, PyObject *token, PyObject *result) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    if (PyContextVar_Reset(self->variable, token) < 0)
        Py_CLEAR(result);
    Py_DECREF(token);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    return result;
}

static PyObject *call_quiet(PyObject *object, PyObject *const *values, size_t flagged,
                            PyObject *names) {
    const quiet_call *self = (quiet_call *)object;
    PyObject *now = NULL;
    if (PyContextVar_Get(self->variable, NULL, &now) < 0)
        return NULL;
    bool is_quiet = now == self->quiet, is_usual = now == self->usual;
    Py_XDECREF(now);
    if (!is_quiet && !is_usual)
        return PyObject_Vectorcall(self->slow, values, flagged, names);
    if (is_quiet)
        return PyObject_Vectorcall(self->function, values, flagged, names);
    PyObject *token = PyContextVar_Set(self->variable, self->quiet);
    if (token == NULL)
        return NULL;
    Py_INCREF(object);
    PyObject *result = PyObject_Vectorcall(self->function, values, flagged, names);
    result = restore(self, token, result);
    Py_DECREF(object);
    return result;
}

static PyObject *new_quiet(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function", "slow", "variable", "usual", "quiet", NULL};
    PyObject *function, *slow, *variable, *usual, *quiet;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO!OO:Quiet", names, &function,
                                     &slow, &PyContextVar_Type, &variable, &usual,
                                     &quiet))
        return NULL;
    quiet_call *self = (quiet_call *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_quiet;
    self->function = Py_NewRef(function);
    self->slow = Py_NewRef(slow);
    self->variable = Py_NewRef(variable);
    self->usual = Py_NewRef(usual);
    self->quiet = Py_NewRef(quiet);
    return (PyObject *)self;
}

static int traverse_quiet(PyObject *object, visitproc visit, void *arg) {
    quiet_call *self = (quiet_call *)object;
    Py_VISIT(self->function);
    Py_VISIT(self->slow);
    Py_VISIT(self->variable);
    return 0;
}

/* The variable and its values are NumPy's, and part of no cycle with the functions. */
static int clear_quiet(PyObject *object) {
    quiet_call *self = (quiet_call *)object;
    Py_XSETREF(self->function, Py_NewRef(Py_None));
    Py_XSETREF(self->slow, Py_NewRef(Py_None));
    return 0;
}

static void dealloc_quiet(PyObject *object) {
    quiet_call *self = (quiet_call *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->function);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->variable);
    Py_XDECREF(self->usual);
    Py_XDECREF(self->quiet);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_QuietType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Quiet",
    .tp_doc = "A function that runs while NumPy warns of no floating-point errors.",
    .tp_basicsize = sizeof(quiet_call),
    .tp_vectorcall_offset = offsetof(quiet_call, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_quiet,
    .tp_traverse = traverse_quiet,
    .tp_clear = clear_quiet,
    .tp_dealloc = dealloc_quiet,
};

/* ==== Lookup: what the dict of an object has for a key ==== */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *key, *slow;
} lookup;

static PyObject *call_lookup(PyObject *object, PyObject *const *values, size_t flagged,
                             PyObject *names) {
    const lookup *self = (lookup *)object;
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Lookup: expected one value");
    PyObject *table = PyObject_GetAttr(values[0], self->name), *found = NULL;
    if (table == NULL)
        return NULL;
    if (PyDict_CheckExact(table))
        found = dlb_cache_get(table, self->key);
    Py_DECREF(table);
    if (found != NULL || PyErr_Occurred())
        return found;
    return PyObject_CallOneArg(self->slow, values[0]);
}

static PyObject *new_lookup(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "key", "slow", NULL};
    PyObject *name, *key, *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UOO:Lookup", names, &name, &key,
                                     &slow))
        return NULL;
    lookup *self = (lookup *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_lookup;
    self->name = Py_NewRef(name);
    PyUnicode_InternInPlace(&self->name);
    self->key = Py_NewRef(key);
    self->slow = Py_NewRef(slow);
    return (PyObject *)self;
}

static int traverse_lookup(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((lookup *)object)->key);
    Py_VISIT(((lookup *)object)->slow);
    return 0;
}

static int clear_lookup(PyObject *object) {
    Py_XSETREF(((lookup *)object)->slow, Py_NewRef(Py_None));
    return 0;
}

static void dealloc_lookup(PyObject *object) {
    lookup *self = (lookup *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->name);
    Py_XDECREF(self->key);
    Py_XDECREF(self->slow);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_LookupType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Lookup",
    .tp_doc = "What a dict that is an attribute of its argument has for one key.",
    .tp_basicsize = sizeof(lookup),
    .tp_vectorcall_offset = offsetof(lookup, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_lookup,
    .tp_traverse = traverse_lookup,
    .tp_clear = clear_lookup,
    .tp_dealloc = dealloc_lookup,
};

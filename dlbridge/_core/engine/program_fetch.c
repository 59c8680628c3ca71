/* native.Fetch: what a run gives its user, who may keep it and write into it.
 *
 * An array that nobody but the run knows is handed out as it is. Steps see the one
 * reference of their slot, so 1 means that; a constant has a second one (dlb_program.
 * kept) for that reason, and what a user fed is also the user's. */
#include "engine/program.h"
#include "python/numpy.h"

#include <structmember.h>

#define WASTE 4096 /* bytes that a view may keep alive for nothing */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *slow;
} fetch;

static bool is_private(PyArrayObject *array) {
    const int needed = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_WRITEABLE | NPY_ARRAY_ALIGNED;
    if (Py_REFCNT(array) != 1 || (PyArray_FLAGS(array) & needed) != needed)
        return false;
    PyArrayObject *base = (PyArrayObject *)PyArray_BASE(array);
    if (base == NULL)
        return PyArray_CHKFLAGS(array, NPY_ARRAY_OWNDATA);
    return PyArray_CheckExact((PyObject *)base) && Py_REFCNT(base) == 1 &&
           PyArray_BASE(base) == NULL &&
           PyArray_CHKFLAGS(base, NPY_ARRAY_OWNDATA | NPY_ARRAY_WRITEABLE) &&
           PyArray_NBYTES(base) - PyArray_NBYTES(array) <= WASTE;
}

static PyObject *call(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Fetch: expected one value");
    PyObject *value = values[0];
    if (PyArray_IsScalar(value, Generic))
        return Py_NewRef(value);
    if (!PyArray_CheckExact(value))
        return PyObject_CallOneArg(((fetch *)object)->slow, value);
    PyArrayObject *array = (PyArrayObject *)value;
    if (PyArray_NDIM(array) == 0)
        return PyArray_ToScalar(PyArray_DATA(array), array);
    if (is_private(array))
        return Py_NewRef(value);
    return PyArray_NewCopy(array, NPY_CORDER);
}

/* ---- the type ---- */

static PyObject *new_fetch(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slow", NULL};
    PyObject *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Fetch", names, &slow))
        return NULL;
    fetch *self = (fetch *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call;
        self->slow = Py_NewRef(slow);
    }
    return (PyObject *)self;
}

static int traverse(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((fetch *)object)->slow);
    return 0;
}

static int clear(PyObject *object) {
    Py_XSETREF(((fetch *)object)->slow, Py_NewRef(Py_None));
    return 0;
}

static void dealloc(PyObject *object) {
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((fetch *)object)->slow);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(fetch, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_FetchType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Fetch",
    .tp_doc = "A value of a run as its user gets it.",
    .tp_basicsize = sizeof(fetch),
    .tp_vectorcall_offset = offsetof(fetch, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_fetch,
    .tp_traverse = traverse,
    .tp_clear = clear,
    .tp_dealloc = dealloc,
    .tp_members = members,
};

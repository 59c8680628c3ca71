/* Values of a run: what a user feeds becomes an array of the dtype and shape of a
 * placeholder; what a user fetches may be kept and written into. */
#include "engine/engine.h"
#include "layout/shape.h"
#include "python/numpy.h"

#include <float.h>
#include <math.h>
#include <string.h>
#include <structmember.h>

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyArray_Descr *descr;
    PyObject *slow;
    dlb_shape shape; /* as far as it is known: the record of TensorShape */
} feed;

/* ---- arrays ---- */

static bool fits(const feed *self, PyArrayObject *array) {
    if (PyArray_DESCR(array) != self->descr &&
        !PyArray_EquivTypes(PyArray_DESCR(array), self->descr))
        return false;
    return dlb_shape_fits(&self->shape, PyArray_NDIM(array),
                          (const int64_t *)PyArray_DIMS(array));
}

/* ---- Python's numbers ---- */

typedef union {
    npy_bool b;
    npy_int8 i8;
    npy_int16 i16;
    npy_int32 i32;
    npy_int64 i64;
    float f32;
    double f64;
} element;

/* Whether an integer dtype holds the value; of uint64 only the range of int64. */
static bool integer_fits(const PyArray_Descr *descr, long long value) {
    int bits = 8 * (int)PyDataType_ELSIZE(descr);
    if (descr->kind == 'u')
        return value >= 0 && (bits == 64 || value >> bits == 0);
    return bits == 64 || (value >= -(1LL << (bits - 1)) && value < 1LL << (bits - 1));
}

static bool store_integer(int size, long long value, element *element) {
    switch (size) {
    case 1:
        element->i8 = (npy_int8)value;
        return true;
    case 2:
        element->i16 = (npy_int16)value;
        return true;
    case 4:
        element->i32 = (npy_int32)value;
        return true;
    default:
        element->i64 = value;
        return size == 8;
    }
}

/* A finite number stays finite. */
static bool store_float(int type, double value, element *element) {
    if (type == NPY_DOUBLE) {
        element->f64 = value;
        return true;
    }
    if (type != NPY_FLOAT || (isfinite(value) && fabs(value) > (double)FLT_MAX))
        return false;
    element->f32 = (float)value;
    return true;
}

/* False: the Python side decides. */
static bool store_number(const feed *self, PyObject *value, element *element) {
    int type = self->descr->type_num;
    if (PyFloat_CheckExact(value))
        return store_float(type, PyFloat_AS_DOUBLE(value), element);
    if (PyBool_Check(value)) {
        element->b = value == Py_True;
        return type == NPY_BOOL;
    }
    if (!PyLong_CheckExact(value))
        return false;
    int overflow;
    long long number = PyLong_AsLongLongAndOverflow(value, &overflow);
    if (overflow != 0)
        return false;
    if (self->descr->kind == 'f') { /* only integers that it holds exactly */
        long long most = type == NPY_FLOAT ? 1LL << 24 : 1LL << 53;
        return number >= -most && number <= most &&
               store_float(type, (double)number, element);
    }
    return (self->descr->kind == 'i' || self->descr->kind == 'u') &&
           integer_fits(self->descr, number) &&
           store_integer((int)PyDataType_ELSIZE(self->descr), number, element);
}

static PyObject *new_scalar(const feed *self, const element *element) {
    Py_INCREF(self->descr);
    PyObject *array =
        PyArray_NewFromDescr(&PyArray_Type, self->descr, 0, NULL, NULL, NULL, 0, NULL);
    if (array != NULL)
        memcpy(PyArray_DATA((PyArrayObject *)array), element,
               (size_t)PyDataType_ELSIZE(self->descr));
    return array;
}

/* ---- native.Feed ---- */

static PyObject *call_feed(PyObject *object, PyObject *const *values, size_t flagged,
                           PyObject *names) {
    const feed *self = (feed *)object;
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Feed: expected one value");
    PyObject *value = values[0];
    element element;
    if (PyArray_CheckExact(value)) {
        if (fits(self, (PyArrayObject *)value))
            return Py_NewRef(value);
    } else if (dlb_shape_rank(&self->shape) <= 0 && store_number(self, value, &element))
        return new_scalar(self, &element);
    return PyObject_CallOneArg(self->slow, value);
}

static int parse_shape(feed *self, PyObject *shape) {
    int64_t dims[DLB_SHAPE_MAX_RANK];
    Py_ssize_t rank = PyTuple_Check(shape) ? PyTuple_GET_SIZE(shape) : -1;
    if (rank < 0 && shape != Py_None) {
        PyErr_Format(PyExc_TypeError, "Feed: shape must be a tuple or None, got %R",
                     shape);
        return -1;
    }
    for (Py_ssize_t i = 0; i < rank && i < DLB_SHAPE_MAX_RANK; i++) {
        PyObject *dim = PyTuple_GET_ITEM(shape, i);
        dims[i] = dim == Py_None ? -1 : PyLong_AsLongLong(dim);
        if (dim != Py_None && dims[i] < 0) {
            if (!PyErr_Occurred())
                PyErr_Format(PyExc_ValueError,
                             "Feed: a dimension is None or at least 0, got %R", dim);
            return -1;
        }
    }
    if (rank > DLB_SHAPE_MAX_RANK)
        PyErr_Format(PyExc_ValueError, "Feed: %zd dimensions are too many", rank);
    else if (dlb_shape_pack(&self->shape, (int32_t)rank, dims) != NULL)
        PyErr_NoMemory();
    return PyErr_Occurred() ? -1 : 0;
}

static PyObject *new_feed(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"dtype", "shape", "slow", NULL};
    PyObject *descr, *shape, *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!OO:Feed", names,
                                     &PyArrayDescr_Type, &descr, &shape, &slow))
        return NULL;
    feed *self = (feed *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_feed;
    self->descr = (PyArray_Descr *)Py_NewRef(descr);
    self->slow = Py_NewRef(slow);
    if (parse_shape(self, shape) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static int traverse_feed(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((feed *)object)->slow);
    return 0;
}

static int clear_feed(PyObject *object) {
    Py_XSETREF(((feed *)object)->slow, Py_NewRef(Py_None));
    return 0;
}

static void dealloc_feed(PyObject *object) {
    feed *self = (feed *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->slow);
    Py_XDECREF(self->descr);
    dlb_shape_release(&self->shape);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef feed_members[] = {
    {"__vectorcalloffset__", T_PYSSIZET, offsetof(feed, vectorcall), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_FeedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Feed",
    .tp_doc = "What is fed, as an array of one dtype and shape.",
    .tp_basicsize = sizeof(feed),
    .tp_vectorcall_offset = offsetof(feed, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_feed,
    .tp_traverse = traverse_feed,
    .tp_clear = clear_feed,
    .tp_dealloc = dealloc_feed,
    .tp_members = feed_members,
};

/* ---- native.Fetch ----
 *
 * An array that nobody but the run knows is handed out as it is. Steps see the one
 * reference of their slot, so 1 means that; a constant has a second one (`kept` of the
 * program) for that reason, and what a user fed is also the user's. */

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

static PyObject *call_fetch(PyObject *object, PyObject *const *values, size_t flagged,
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

static PyObject *new_fetch(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"slow", NULL};
    PyObject *slow;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Fetch", names, &slow))
        return NULL;
    fetch *self = (fetch *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call_fetch;
        self->slow = Py_NewRef(slow);
    }
    return (PyObject *)self;
}

static int traverse_fetch(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((fetch *)object)->slow);
    return 0;
}

static int clear_fetch(PyObject *object) {
    Py_XSETREF(((fetch *)object)->slow, Py_NewRef(Py_None));
    return 0;
}

static void dealloc_fetch(PyObject *object) {
    PyObject_GC_UnTrack(object);
    Py_XDECREF(((fetch *)object)->slow);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef fetch_members[] = {
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
    .tp_traverse = traverse_fetch,
    .tp_clear = clear_fetch,
    .tp_dealloc = dealloc_fetch,
    .tp_members = fetch_members,
};

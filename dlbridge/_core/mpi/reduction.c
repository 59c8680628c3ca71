/* What an op does to elements of each dtype: loops of NumPy and ml_dtypes reduce them,
 * and a mean divides the sum. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/mpi.h"
#include "peers/peers.h"
#include "python/numpy.h"

#include <numpy/ufuncobject.h>
#include <stdatomic.h>
#include <string.h>

enum {
    TYPES = NPY_HALF + 1,        /* numbers of NumPy's own dtypes are below this */
    MOST_LEARNT = 32,            /* dtypes of ml_dtypes: there are twenty */
    LARGE = 64 * 1024,           /* bytes that are divided without the GIL */
    LONGEST_DIVIDED_BY_TABLE = 2 /* bytes of an element */
};

typedef struct {
    PyObject_HEAD
    uint8_t call[16];
    PyObject *ufunc;
    PyObject *quotients; /* of a mean: a function of a dtype and a divisor, or NULL */
    dlb_combine loops[TYPES];
    struct {
        DLDataType dtype;
        dlb_combine loop;
    } learnt[MOST_LEARNT];
    _Atomic int count; /* of those that are learnt, which are only ever added */
} reduction;

/* ---- finding loops ---- */

/* Whether a loop takes two values of a type to one of the same. */
static bool is_of(int type, int first, int second, int result) {
    return first == type && second == type && result == type;
}

static dlb_combine find_own_loop(const PyUFuncObject *ufunc, int type) {
    for (int row = 0; row < ufunc->ntypes; row++) {
        const char *types = ufunc->types + row * 3;
        if (is_of(type, types[0], types[1], types[2]))
            return (dlb_combine){.loop = (dlb_inner_loop)ufunc->functions[row],
                                 .data = (void *)ufunc->data[row]};
    }
    return (dlb_combine){0};
}

/* One that PyUFunc_RegisterLoopForType has added; perhaps with an exception. */
static dlb_combine find_added_loop(const PyUFuncObject *ufunc, int type) {
    dlb_combine found = {0};
    PyObject *number = PyLong_FromLong(type), *added = NULL;
    if (number != NULL && ufunc->userloops != NULL)
        added = PyDict_GetItemWithError(ufunc->userloops, number);
    Py_XDECREF(number);
    const PyUFunc_Loop1d *each =
        added != NULL && PyCapsule_CheckExact(added)
            ? PyCapsule_GetPointer(added, PyCapsule_GetName(added))
            : NULL;
    for (; each != NULL && found.loop == NULL; each = each->next)
        if (is_of(type, each->arg_types[0], each->arg_types[1], each->arg_types[2])) {
            found.loop = (dlb_inner_loop)each->func;
            found.data = each->data;
        }
    return found;
}

static void set_itemsize(dlb_combine *loop, int type) {
    PyArray_Descr *descr = PyArray_DescrFromType(type);
    if (descr != NULL)
        loop->itemsize = PyDataType_ELSIZE(descr);
    Py_XDECREF(descr);
}

static PyObject *new_reduction(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"call", "ufunc", "types", "quotients", NULL};
    const char *call;
    Py_ssize_t size;
    PyObject *ufunc, *types, *quotients = Py_None;
    int failed; /* a table of each C file */
    DLB_BEGIN_EXCLUSIVE(type);
    failed = PyUFunc_API == NULL && _import_umath() < 0;
    DLB_END_EXCLUSIVE();
    if (failed)
        return NULL;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y#O!O!|O:Reduction", names, &call,
                                     &size, &PyUFunc_Type, &ufunc, &PyTuple_Type,
                                     &types, &quotients))
        return NULL;
    const PyUFuncObject *known = (PyUFuncObject *)ufunc;
    if (size != 16 || known->nin != 2 || known->nout != 1)
        return PyErr_Format(PyExc_ValueError,
                            "Reduction: a digest of 16 bytes and a ufunc of two values "
                            "are required");
    reduction *self = (reduction *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy(self->call, call, sizeof self->call);
    self->ufunc = Py_NewRef(ufunc);
    if (quotients != Py_None)
        self->quotients = Py_NewRef(quotients);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(types); i++) {
        long number = PyLong_AsLong(PyTuple_GET_ITEM(types, i));
        if (number >= 0 && number < TYPES && dlb_numpy_is_plain((int)number)) {
            self->loops[number] = find_own_loop(known, (int)number);
            set_itemsize(&self->loops[number], (int)number);
        } else if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "Reduction: no type %ld", number);
        if (PyErr_Occurred()) {
            Py_DECREF(self);
            return NULL;
        }
    }
    return (PyObject *)self;
}

static void dealloc_reduction(PyObject *object) {
    Py_XDECREF(((reduction *)object)->ufunc);
    Py_XDECREF(((reduction *)object)->quotients);
    Py_TYPE(object)->tp_free(object);
}

static const dlb_combine *find_learnt(const reduction *self, DLDataType dtype) {
    int count = atomic_load(&self->count);
    for (int i = 0; i < count; i++)
        if (memcmp(&self->learnt[i].dtype, &dtype, sizeof dtype) == 0)
            return &self->learnt[i].loop;
    return NULL;
}

const uint8_t *dlb_reduction_call(PyObject *object) {
    return ((reduction *)object)->call;
}

const dlb_combine *dlb_reduction_loop(PyObject *object, DLDataType dtype) {
    const reduction *self = (reduction *)object;
    PyArray_Descr *descr = (PyArray_Descr *)dlb_numpy_descr(dtype);
    if (descr == NULL)
        return find_learnt(self, dtype);
    int type = descr->type_num;
    Py_DECREF(descr);
    bool is_known = type >= 0 && type < TYPES && self->loops[type].loop != NULL;
    return is_known ? &self->loops[type] : NULL;
}

static PyObject *learn(PyObject *object, PyObject *args) {
    reduction *self = (reduction *)object;
    PyObject *given;
    DLDataType dtype;
    int type;
    if (!PyArg_ParseTuple(args, "Oi:learn", &given, &type) ||
        dlb_parse_dtype(given, &dtype) < 0)
        return NULL;
    dlb_combine loop = find_added_loop((PyUFuncObject *)self->ufunc, type);
    if (!PyErr_Occurred())
        set_itemsize(&loop, type);
    if (PyErr_Occurred())
        return NULL;
    if (loop.loop == NULL)
        return PyErr_Format(PyExc_ValueError, "Reduction: no loop for the type %d",
                            type);
    DLB_BEGIN_EXCLUSIVE(object);
    int count = atomic_load(&self->count);
    if (find_learnt(self, dtype) == NULL && count < MOST_LEARNT) {
        self->learnt[count].dtype = dtype;
        self->learnt[count].loop = loop;
        atomic_store(&self->count, count + 1);
    }
    DLB_END_EXCLUSIVE();
    return Py_NewRef(Py_None);
}

/* ---- means ---- */

/* The dtype that is divided: of complex numbers, that of their parts. */
static DLDataType part_of(DLDataType dtype) {
    if (dtype.code == kDLComplex || dtype.code == kDLBcomplex) {
        dtype.code = dtype.code == kDLComplex ? kDLFloat : kDLBfloat;
        dtype.bits /= 2;
    }
    return dtype;
}

int dlb_quotients(PyObject *object, DLDataType dtype, int by, PyObject **made) {
    const reduction *self = (reduction *)object;
    *made = NULL;
    if (self->quotients == NULL)
        return 0;
    dtype = part_of(dtype);
    size_t width = dtype.bits / 8u;
    if (width > LONGEST_DIVIDED_BY_TABLE) {
        *made = Py_NewRef(Py_None);
        return 0;
    }
    *made = PyObject_CallFunction(self->quotients, "(iii)i", dtype.code, dtype.bits,
                                  dtype.lanes, by);
    if (*made == NULL)
        return -1;
    if (PyBytes_CheckExact(*made) &&
        (size_t)PyBytes_GET_SIZE(*made) == width << dtype.bits)
        return 0;
    Py_CLEAR(*made);
    PyErr_SetString(PyExc_ValueError,
                    "Reduction: quotients must return one value for each bit pattern");
    return -1;
}

static void divide_numbers(size_t width, char *data, size_t count, int by) {
    if (width == sizeof(float)) {
        float *numbers = (float *)data;
        for (size_t i = 0; i < count; i++)
            numbers[i] /= (float)by;
        return;
    }
    double *numbers = (double *)data;
    for (size_t i = 0; i < count; i++)
        numbers[i] /= (double)by;
}

static void look_up(size_t width, char *data, size_t count, const char *quotients) {
    if (width == 1) {
        for (size_t i = 0; i < count; i++)
            data[i] = quotients[(uint8_t)data[i]];
        return;
    }
    uint16_t *numbers = (uint16_t *)data;
    for (size_t i = 0; i < count; i++)
        memcpy(&numbers[i], quotients + 2 * (size_t)numbers[i], 2);
}

void dlb_divide(DLDataType dtype, char *data, size_t nbytes, int by,
                PyObject *quotients) {
    size_t width = part_of(dtype).bits / 8u;
    PyThreadState *thread = nbytes < LARGE ? NULL : PyEval_SaveThread();
    if (PyBytes_CheckExact(quotients))
        look_up(width, data, nbytes / width, PyBytes_AS_STRING(quotients));
    else
        divide_numbers(width, data, nbytes / width, by);
    if (thread != NULL)
        PyEval_RestoreThread(thread);
}

static PyMethodDef methods[] = {
    {"learn", learn, METH_VARARGS,
     "learn($self, dtype, number, /)\n--\n\nReduce elements of a dtype by the loop "
     "added to the ufunc for the NumPy type of this number."},
    {0},
};

PyTypeObject dlb_ReductionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Reduction",
    .tp_doc = "Reduction(call, ufunc, types, quotients=None)\n--\n\n"
              "A reduction by loops of NumPy, for these type numbers. "
              "quotients(dtype, size), for\na mean, returns every number of a small "
              "dtype, divided by size, as bytes.",
    .tp_basicsize = sizeof(reduction),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = methods,
    .tp_new = new_reduction,
    .tp_dealloc = dealloc_reduction,
};

/* Limits: what a consumer can represent. */
#include "exchange/exchange.h"

#include <string.h>

static int add_dtype(dlb_limits *limits, PyObject *triple) {
    DLDataType dtype;
    if (dlb_parse_dtype(triple, &dtype) < 0)
        return -1;
    if (dtype.lanes != 1)
        limits->packed_key = dlb_dtype_key(dtype);
    else if (dtype.code < DLB_DTYPE_CODES)
        limits->widths[dtype.code] |=
            (uint16_t)(dtype.bits == 6
                           ? 1 << 15
                           : 1 << __builtin_ctz(dtype.bits ? dtype.bits : 1));
    return 0;
}

static int add_device(dlb_limits *limits, PyObject *item) {
    long type = PyLong_AsLong(item);
    if (type == -1 && PyErr_Occurred())
        return -1;
    if (type >= 0 && type < 64)
        limits->devices |= UINT64_C(1) << type;
    return 0;
}

static int add_all(dlb_limits *limits, PyObject *items,
                   int (*add)(dlb_limits *, PyObject *)) {
    PyObject *iterator = PyObject_GetIter(items), *item;
    int failed = iterator == NULL;
    while (!failed && (item = PyIter_Next(iterator)) != NULL) {
        failed = add(limits, item) < 0;
        Py_DECREF(item);
    }
    Py_XDECREF(iterator);
    return failed || PyErr_Occurred() ? -1 : 0;
}

static int parse_layout(const char *name, enum dlb_layout *layout) {
    static const char *const names[] = {"any", "non_negative", "permutation", "compact",
                                        "row_major"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (strcmp(name, names[i]) == 0) {
            *layout = (enum dlb_layout)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "Limits: unknown layout '%s'", name);
    return -1;
}

static int check_alignment(const char *name, int alignment) {
    if (alignment >= 1 && (alignment & (alignment - 1)) == 0)
        return 0;
    PyErr_Format(PyExc_ValueError, "Limits: %s must be a power of two, got %d", name,
                 alignment);
    return -1;
}

static int limits_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name",
                            "dtypes",
                            "devices",
                            "max_ndim",
                            "alignment",
                            "layout",
                            "protects_readonly",
                            "padded",
                            "needed_by",
                            "wide_alignment",
                            NULL};
    dlb_limits_object *object = (dlb_limits_object *)self;
    PyObject *name, *dtypes = Py_None, *devices = Py_None, *needed_by = NULL;
    int max_ndim = DLB_MAX_NDIM, alignment = 1, wide = 1, protects = 0, padded = 0;
    const char *layout = "any";
    dlb_limits limits = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|$OOiisppUi:Limits", names, &name,
                                     &dtypes, &devices, &max_ndim, &alignment, &layout,
                                     &protects, &padded, &needed_by, &wide) ||
        check_alignment("alignment", alignment) < 0 ||
        check_alignment("wide_alignment", wide) < 0)
        return -1;
    limits.max_ndim = max_ndim;
    limits.alignment = (uint32_t)alignment;
    limits.wide_alignment = (uint32_t)wide;
    limits.protects_readonly = protects;
    limits.padded = padded;
    limits.any_dtype = dtypes == Py_None;
    if (devices == Py_None)
        limits.devices = UINT64_MAX;
    if (parse_layout(layout, &limits.layout) < 0 ||
        (dtypes != Py_None && add_all(&limits, dtypes, add_dtype) < 0) ||
        (devices != Py_None && add_all(&limits, devices, add_device) < 0))
        return -1;
    object->limits = limits;
    Py_XSETREF(object->name, Py_NewRef(name));
    Py_XSETREF(object->needed_by, Py_XNewRef(needed_by));
    return 0;
}

static PyObject *limits_refusal(PyObject *self, PyObject *tensor) {
    dlb_tensor *t = dlb_expect_tensor(tensor, "refusal");
    if (t == NULL)
        return NULL;
    const char *reason =
        dlb_limits_refusal(&((dlb_limits_object *)self)->limits, &t->dl, t->flags);
    if (reason == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(reason);
}

static PyObject *limits_name(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *name = ((dlb_limits_object *)self)->name;
    return Py_NewRef(name ? name : Py_None);
}

static void limits_dealloc(PyObject *self) {
    Py_XDECREF(((dlb_limits_object *)self)->name);
    Py_XDECREF(((dlb_limits_object *)self)->needed_by);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef limits_methods[] = {
    {"refusal", limits_refusal, METH_O,
     "refusal($self, tensor, /)\n--\n\nThe reason why tensor cannot go here as it is, "
     "or None."},
    {NULL, NULL, 0, NULL},
};

static PyObject *limits_protects(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((dlb_limits_object *)self)->limits.protects_readonly);
}

static PyGetSetDef limits_attributes[] = {
    {"name", limits_name, NULL, "The consumer's name.", NULL},
    {"protects_readonly", limits_protects, NULL,
     "Whether memory marked read-only is not written through it.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject dlb_LimitsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Limits",
    .tp_doc =
        "The tensors that a consumer can represent; the one place where layouts are "
        "judged for it.",
    .tp_basicsize = sizeof(dlb_limits_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = limits_init,
    .tp_dealloc = limits_dealloc,
    .tp_methods = limits_methods,
    .tp_getset = limits_attributes,
};

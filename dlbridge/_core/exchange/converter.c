/* Limits and Converter. The C paths through: one argument and no policy goes from one
 * framework to the other without a Python frame. Whatever is out of the ordinary goes
 * to Python, which also makes the errors. */
#include "exchange/exchange.h"

#include <string.h>
#include <structmember.h>

/* ---- Limits: what a consumer can represent ---- */

typedef struct {
    PyObject_HEAD
    PyObject *name;
    dlb_limits limits;
} limits_object;

static int add_dtype(dlb_limits *limits, PyObject *triple) {
    DLDataType dtype;
    if (dlb_parse_dtype(triple, &dtype) < 0)
        return -1;
    if (dtype.lanes != 1)
        limits->packed_key = dlb_dtype_key(dtype);
    else if (dtype.code < 18)
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
    limits->devices |= UINT64_C(1) << (type & 63);
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

static int limits_init(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name",      "dtypes", "devices",           "max_ndim",
                            "alignment", "layout", "protects_readonly", "padded",
                            NULL};
    limits_object *object = (limits_object *)self;
    PyObject *name, *dtypes = Py_None, *devices = Py_None;
    int max_ndim = DLB_MAX_NDIM, alignment = 1, protects = 0, padded = 0;
    const char *layout = "any";
    dlb_limits limits = {0};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "U|$OOiispp:Limits", names, &name,
                                     &dtypes, &devices, &max_ndim, &alignment, &layout,
                                     &protects, &padded))
        return -1;
    if (alignment < 1 || (alignment & (alignment - 1))) {
        PyErr_Format(PyExc_ValueError,
                     "Limits: alignment must be a power of two, got %d", alignment);
        return -1;
    }
    limits.max_ndim = max_ndim;
    limits.alignment = (uint32_t)alignment;
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
    return 0;
}

static PyObject *limits_refusal(PyObject *self, PyObject *tensor) {
    dlb_tensor *t = dlb_expect_tensor(tensor, "refusal");
    if (t == NULL)
        return NULL;
    const char *reason =
        dlb_limits_refusal(&((limits_object *)self)->limits, &t->dl, t->flags);
    if (reason == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(reason);
}

static PyObject *limits_name(PyObject *self, void *Py_UNUSED(closure)) {
    PyObject *name = ((limits_object *)self)->name;
    return Py_NewRef(name ? name : Py_None);
}

static void limits_dealloc(PyObject *self) {
    Py_XDECREF(((limits_object *)self)->name);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef limits_methods[] = {
    {"refusal", limits_refusal, METH_O,
     "refusal($self, tensor, /)\n--\n\nThe reason why tensor cannot go here as it is, "
     "or None."},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef limits_attributes[] = {
    {"name", limits_name, NULL, "The consumer's name.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

PyTypeObject dlb_LimitsType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Limits",
    .tp_doc =
        "What a consumer can represent; the one place where a layout is judged for it.",
    .tp_basicsize = sizeof(limits_object),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_init = limits_init,
    .tp_dealloc = limits_dealloc,
    .tp_methods = limits_methods,
    .tp_getset = limits_attributes,
};

/* ---- Converter ---- */

typedef enum { CLOSED, TO_TENSOR, TO_NUMPY, TO_TABLE, TO_CAPSULE } give_kind;

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    PyObject *name, *doc, *qualified_name;
    give_kind kind;
    dlb_limits limits;
    PyTypeObject *own_type; /* its objects are returned as they are */
    PyObject *consumer;
    const DLPackExchangeAPI *table;
    PyObject *extra; /* tuple: further arguments of the consumer */
} converter;

/* ---- giving ---- */

static PyObject *give_capsule(dlb_view *view, converter *self) {
    PyObject *arguments[8];
    PyObject *capsule = dlb_capsule_of_view(view, false, 0);
    if (capsule == NULL)
        return NULL;
    PyObject *consumer = Py_NewRef(self->consumer); /* `activate` may come meanwhile */
    PyObject *extra = Py_NewRef(self->extra);
    Py_ssize_t count = PyTuple_GET_SIZE(extra);
    arguments[0] = capsule;
    for (Py_ssize_t i = 0; i < count; i++)
        arguments[i + 1] = PyTuple_GET_ITEM(extra, i);
    PyObject *result =
        PyObject_Vectorcall(consumer, arguments, (size_t)count + 1, NULL);
    Py_DECREF(extra);
    Py_DECREF(consumer);
    Py_DECREF(capsule);
    return result;
}

static PyObject *give(dlb_view *view, converter *self) {
    switch (self->kind) {
    case TO_TENSOR:
        return dlb_tensor_new(dlb.tensor_type, view);
    case TO_NUMPY:
        return dlb_give_numpy(view, NULL);
    case TO_TABLE:
        return dlb_give_table(view, self->table, NULL);
    case TO_CAPSULE:
        return give_capsule(view, self);
    case CLOSED:
        break;
    }
    dlb_buffer_drop(view->buffer);
    PyErr_SetString(PyExc_SystemError, "converter without a way out");
    return NULL;
}

/* A consumer of capsules says in Python only which stream it works on. */
static bool needs_stream(const converter *self, const dlb_view *view) {
    return self->kind == TO_CAPSULE && view->buffer->access != NULL;
}

/* Whether a copy is what `fit` would make of the refusal (exchange/fitting.py). */
static bool is_copied(const char *reason, const dlb_view *view) {
    bool helps = strcmp(reason, "alignment") == 0 || strcmp(reason, "strides") == 0;
    return helps && view->dl.device.device_type == kDLCPU &&
           !(view->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
}

/* The source is kept until the end, as the view's shape may lie in it. */
static PyObject *give_copy(dlb_view *view, converter *self) {
    dlb_buffer *source = view->buffer;
    PyObject *result = NULL;
    if (dlb_copy_view(view, "convert") == 0)
        result = give(view, self);
    dlb_buffer_drop(source);
    return result;
}

/* A result, NULL with an error, or NULL without one: declined. */
static PyObject *try_fast(converter *self, PyObject *x) {
    dlb_view view;
    PyObject *result;
    if (self->kind == CLOSED)
        return NULL;
    if (Py_TYPE(x) == self->own_type && !dlb.watchers)
        return Py_NewRef(x);
    if (dlb_take(x, &view) != 0)
        return NULL;
    const char *reason = dlb_limits_refusal(&self->limits, &view.dl, view.flags);
    if (needs_stream(self, &view) || (reason != NULL && !is_copied(reason, &view))) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    result = reason == NULL ? give(&view, self) : give_copy(&view, self);
    if (result == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear(); /* Python tries again and explains */
    return result;
}

/* slow_convert(x, name, **policies) */
static PyObject *go_slow(converter *self, PyObject *const *args, Py_ssize_t count,
                         PyObject *names) {
    Py_ssize_t keywords = names ? PyTuple_GET_SIZE(names) : 0;
    if (count != 1)
        return PyErr_Format(PyExc_TypeError,
                            "%U() takes exactly one positional argument (%zd given)",
                            self->qualified_name, count);
    if (dlb.slow_convert == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    PyObject *stack[16] = {args[0], self->name};
    if (keywords > 14)
        return PyErr_Format(PyExc_TypeError, "%U(): too many keyword arguments",
                            self->qualified_name);
    for (Py_ssize_t i = 0; i < keywords; i++)
        stack[i + 2] = args[i + 1];
    return PyObject_Vectorcall(dlb.slow_convert, stack, 2, names);
}

static PyObject *converter_vectorcall(PyObject *callable, PyObject *const *args,
                                      size_t flags, PyObject *names) {
    converter *self = (converter *)callable;
    Py_ssize_t count = PyVectorcall_NARGS(flags);
    if (count == 1 && names == NULL) {
        PyObject *result = try_fast(self, args[0]);
        if (result != NULL || PyErr_Occurred())
            return result;
    }
    return go_slow(self, args, count, names);
}

/* ---- for kernels ---- */

const char *dlb_converter_refusal(PyObject *object, const dlb_view *view) {
    const converter *self = (converter *)object;
    if (self->kind == CLOSED)
        return NULL;
    return dlb_limits_refusal(&self->limits, &view->dl, view->flags);
}

/* slow_convert(tensor, name, copy=False): writes would not reach a copied tensor.
 */
static PyObject *give_slowly(const converter *self, dlb_view *view) {
    PyObject *tensor = dlb_tensor_new(dlb.tensor_type, view);
    PyObject *names = tensor ? Py_BuildValue("(s)", "copy") : NULL;
    PyObject *stack[] = {tensor, self->name, Py_False};
    PyObject *result =
        names ? PyObject_Vectorcall(dlb.slow_convert, stack, 2, names) : NULL;
    Py_XDECREF(names);
    Py_XDECREF(tensor);
    return result;
}

PyObject *dlb_converter_give(PyObject *object, dlb_view *view) {
    converter *self = (converter *)object;
    if (dlb_converter_refusal(object, view) == NULL && self->kind != CLOSED &&
        !needs_stream(self, view))
        return give(view, self);
    return give_slowly(self, view);
}

/* ---- the type ---- */

static PyObject *converter_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"name", "doc", NULL};
    PyObject *name, *doc;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UU:Converter", names, &name, &doc))
        return NULL;
    converter *self = (converter *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = converter_vectorcall;
    self->name = Py_NewRef(name);
    self->doc = Py_NewRef(doc);
    self->qualified_name = PyUnicode_FromFormat("to_%U", name);
    if (self->qualified_name == NULL)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* activate(kind, limits, consumer=None, own_type=None, *extra) */
static PyObject *converter_activate(PyObject *object, PyObject *args) {
    static const char *const kinds[] = {"closed", "tensor", "numpy", "table",
                                        "capsule"};
    converter *self = (converter *)object;
    Py_ssize_t count = PyTuple_GET_SIZE(args);
    PyObject *kind, *limits, *consumer = Py_None, *own_type = Py_None, *extra;
    PyObject *fixed = PyTuple_GetSlice(args, 0, count < 4 ? count : 4);
    int parsed =
        fixed && PyArg_ParseTuple(fixed, "UO!|OO:activate", &kind, &dlb_LimitsType,
                                  &limits, &consumer, &own_type);
    Py_XDECREF(fixed);
    extra = parsed ? PyTuple_GetSlice(args, 4, count) : NULL;
    if (extra == NULL)
        return NULL;
    int index = 0;
    while (index < 5 && PyUnicode_CompareWithASCIIString(kind, kinds[index]) != 0)
        index++;
    const DLPackExchangeAPI *table = NULL;
    if (index == TO_TABLE)
        table = dlb_parse_table(consumer);
    if (index == 5 || PyTuple_GET_SIZE(extra) > 7 ||
        (index == TO_TABLE && table == NULL)) {
        Py_DECREF(extra);
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_ValueError,
                         "activate: kind %R or its arguments are wrong", kind);
        return NULL;
    }
    self->kind = (give_kind)index;
    self->limits = ((limits_object *)limits)->limits;
    self->table = table;
    Py_XSETREF(self->own_type,
               own_type == Py_None ? NULL : (PyTypeObject *)Py_NewRef(own_type));
    Py_XSETREF(self->consumer, Py_NewRef(consumer));
    Py_XSETREF(self->extra, extra);
    Py_RETURN_NONE;
}

static PyObject *converter_close(PyObject *object, PyObject *Py_UNUSED(unused)) {
    ((converter *)object)->kind = CLOSED;
    Py_RETURN_NONE;
}

/* Pickled by name, as functions are. */
static PyObject *converter_reduce(PyObject *object, PyObject *Py_UNUSED(unused)) {
    return Py_NewRef(((converter *)object)->qualified_name);
}

static PyObject *converter_module(PyObject *Py_UNUSED(object),
                                  void *Py_UNUSED(closure)) {
    return PyUnicode_FromString("dlbridge");
}

/* Made in Python, since `inspect` is too much to import for a signature nobody asks
 * for. */
static PyObject *converter_signature(PyObject *Py_UNUSED(object),
                                     void *Py_UNUSED(closure)) {
    PyObject *module = PyImport_ImportModule("dlbridge.frameworks.conversions");
    PyObject *signature =
        module ? PyObject_CallMethod(module, "signature", NULL) : NULL;
    Py_XDECREF(module);
    return signature;
}

static PyObject *converter_repr(PyObject *object) {
    return PyUnicode_FromFormat("<dlbridge converter %U>",
                                ((converter *)object)->qualified_name);
}

static void converter_dealloc(PyObject *object) {
    converter *self = (converter *)object;
    Py_XDECREF(self->name);
    Py_XDECREF(self->doc);
    Py_XDECREF(self->qualified_name);
    Py_XDECREF(self->own_type);
    Py_XDECREF(self->consumer);
    Py_XDECREF(self->extra);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef converter_members[] = {
    {"__name__", T_OBJECT, offsetof(converter, qualified_name), READONLY, NULL},
    {"__qualname__", T_OBJECT, offsetof(converter, qualified_name), READONLY, NULL},
    {"__doc__", T_OBJECT, offsetof(converter, doc), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef converter_attributes[] = {
    {"__module__", converter_module, NULL, NULL, NULL},
    {"__signature__", converter_signature, NULL, NULL, NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef converter_methods[] = {
    {"__reduce__", converter_reduce, METH_NOARGS, "Pickle by name."},
    {"activate", converter_activate, METH_VARARGS,
     "activate($self, kind, limits, consumer=None, own_type=None, /, "
     "*extra)\n--\n\nOpen the C path."},
    {"close", converter_close, METH_NOARGS,
     "close($self, /)\n--\n\nClose the C path: everything goes through Python."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_ConverterType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Converter",
    .tp_basicsize = sizeof(converter),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_vectorcall_offset = offsetof(converter, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_new = converter_new,
    .tp_dealloc = converter_dealloc,
    .tp_repr = converter_repr,
    .tp_members = converter_members,
    .tp_methods = converter_methods,
    .tp_getset = converter_attributes,
};

/* ---- from_dlpack and convert ---- */

PyObject *dlb_from_dlpack(PyObject *Py_UNUSED(module), PyObject *const *args,
                          Py_ssize_t count, PyObject *names) {
    dlb_view view;
    if (count == 1 && names == NULL) {
        if (dlb_take(args[0], &view) == 0)
            return dlb_tensor_new(dlb.tensor_type, &view);
        if (PyErr_Occurred())
            return NULL;
    }
    if (dlb.slow_from_dlpack == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    return PyObject_Vectorcall(dlb.slow_from_dlpack, args, (size_t)count, names);
}

/* convert(x, to, /, **policies): a name that has a converter takes its C path. */
PyObject *dlb_convert(PyObject *Py_UNUSED(module), PyObject *const *args,
                      Py_ssize_t count, PyObject *names) {
    if (dlb.slow_convert == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    if (count == 2 && names == NULL && PyUnicode_Check(args[1]) &&
        dlb.converters != NULL) {
        PyObject *found = PyDict_GetItemWithError(dlb.converters, args[1]);
        bool known = found != NULL && Py_TYPE(found) == &dlb_ConverterType;
        PyObject *result = known ? try_fast((converter *)found, args[0]) : NULL;
        if (result != NULL || PyErr_Occurred())
            return result;
    }
    return PyObject_Vectorcall(dlb.slow_convert, args, (size_t)count, names);
}

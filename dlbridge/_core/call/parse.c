/* The arguments of KernelBase, checked, to a dlb_kernel. */
#include "call/parse.h"
#include "abi/abi.h"

#include <stdlib.h>
#include <string.h>

static int refuse(PyObject *type, const char *what, PyObject *object) {
    PyErr_Format(type, "KernelBase: %s, got %R", what, object);
    return -1;
}

/* ---- targets ---- */

typedef struct {
    const char *name;
    dlb_invoke invoke;
    const char *(*check)(const dlb_kernel *); /* why not, or NULL; may be NULL */
    PyTypeObject *user; /* that of `user`, instead of a function */
} convention;

static const char *check_pointers(const dlb_kernel *kernel) {
    const dlb_signature *signature = kernel->signature;
    if (signature != NULL && signature->scalar_count > 0)
        return "\"pointers\" takes no scalars";
    if (signature != NULL &&
        signature->input_count + signature->result_count > DLB_MAX_POINTERS)
        return "\"pointers\" takes at most 16 tensors";
    return NULL;
}

static const char *check_tvm_ffi(const dlb_kernel *kernel) {
    (void)kernel;
    return dlb_tvm_ffi_open() ? NULL : "libtvm_ffi.so is not loaded; import tvm_ffi";
}

static const char *check_launch(const dlb_kernel *kernel) {
    return kernel->signature ? NULL : "\"cuda\" needs a signature";
}

static const convention conventions[] = {
    {"dltensors", dlb_invoke_dltensors, NULL, NULL},
    {"pointers", dlb_invoke_pointers, check_pointers, NULL},
    {"tvm_ffi", dlb_invoke_tvm_ffi, check_tvm_ffi, NULL},
    {"cuda", dlb_invoke_launch, check_launch, &dlb_LaunchType},
    {"python", dlb_invoke_python, NULL, &dlb_PythonFunctionType},
};

static const convention *find_convention(PyObject *name) {
    for (size_t i = 0; i < sizeof conventions / sizeof *conventions; i++)
        if (PyUnicode_CompareWithASCIIString(name, conventions[i].name) == 0)
            return &conventions[i];
    refuse(PyExc_ValueError, "there is no such calling convention", name);
    return NULL;
}

/* An address, or None for NULL. */
static int parse_address(PyObject *object, void **address) {
    *address = object == Py_None ? NULL : PyLong_AsVoidPtr(object);
    return *address == NULL && PyErr_Occurred() ? -1 : 0;
}

/* (device_type, convention, function, user); the kernel's `keeps` holds the tuple */
static int parse_target(dlb_kernel *kernel, PyObject *item) {
    int device_type;
    PyObject *name, *function, *user;
    dlb_target *target = &kernel->targets[kernel->target_count++];
    if (!PyTuple_Check(item))
        return refuse(PyExc_TypeError, "a target must be a tuple", item);
    if (!PyArg_ParseTuple(item, "iUOO;KernelBase: a target has four items",
                          &device_type, &name, &function, &user))
        return -1;
    const convention *how = find_convention(name);
    if (how == NULL || parse_address(function, &target->function) < 0)
        return -1;
    const char *why = how->check ? how->check(kernel) : NULL;
    if (why != NULL)
        return refuse(PyExc_ValueError, why, item);
    if (how->user ? !PyObject_TypeCheck(user, how->user) : target->function == NULL)
        return refuse(PyExc_TypeError, "a target needs a function", item);
    kernel->needs_gil |= how->user == &dlb_PythonFunctionType;
    target->device_type = (DLDeviceType)device_type;
    target->invoke = how->invoke;
    target->user = user == Py_None ? NULL : user;
    if (how->user == NULL && PyLong_Check(user))
        return parse_address(user, &target->user);
    return 0;
}

static int parse_targets(dlb_kernel *kernel, PyObject *targets) {
    Py_ssize_t count = PyTuple_GET_SIZE(targets);
    Py_ssize_t most = sizeof kernel->targets / sizeof *kernel->targets;
    if (count < 1 || count > most)
        return refuse(PyExc_ValueError, "there must be one to four targets", targets);
    for (Py_ssize_t i = 0; i < count; i++)
        if (parse_target(kernel, PyTuple_GET_ITEM(targets, i)) < 0)
            return -1;
    return 0;
}

/* ---- arguments ---- */

/* (name, kind, index, keyword_only, has_default, default) of each: their order */
static int parse_order(dlb_kernel *kernel, PyObject *arguments) {
    const dlb_signature *signature = kernel->signature;
    int32_t *count = &kernel->order_count;
    if (PyTuple_GET_SIZE(arguments) != signature->input_count + signature->scalar_count)
        return refuse(PyExc_ValueError, "arguments do not match the signature",
                      arguments);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(arguments); i++) {
        PyObject *item = PyTuple_GET_ITEM(arguments, i), *name, *kind, *value;
        int index, keyword_only, has_default;
        if (!PyTuple_Check(item))
            return refuse(PyExc_TypeError, "an argument must be a tuple", item);
        if (!PyArg_ParseTuple(item, "UUippO;KernelBase: an argument has six items",
                              &name, &kind, &index, &keyword_only, &has_default,
                              &value))
            return -1;
        bool is_tensor = PyUnicode_CompareWithASCIIString(kind, "tensor") == 0;
        int32_t limit = is_tensor ? signature->input_count : signature->scalar_count;
        if (index < 0 || index >= limit)
            return refuse(PyExc_ValueError, "the index of an argument is wrong", item);
        kernel->order[(*count)++] = (int8_t)(is_tensor ? index : -1 - index);
    }
    for (int32_t i = 0; i < signature->result_count; i++)
        kernel->order[(*count)++] = (int8_t)(signature->input_count + i);
    return 0;
}

/* Which inputs are written: as the signature says, or else by index. */
static int parse_mutates(dlb_kernel *kernel, PyObject *mutates) {
    const dlb_signature *signature = kernel->signature;
    Py_ssize_t count = PyTuple_GET_SIZE(mutates);
    if (signature != NULL && count > 0)
        return refuse(PyExc_ValueError, "the signature says what is mutated", mutates);
    for (Py_ssize_t i = 0; i < count; i++) {
        long index = PyLong_AsLong(PyTuple_GET_ITEM(mutates, i));
        if (index == -1 && PyErr_Occurred())
            return -1;
        if (index < 0 || index >= DLB_MAX_TENSORS)
            return refuse(PyExc_ValueError, "mutates has an index from 0 to 31",
                          mutates);
        kernel->written |= UINT32_C(1) << index;
    }
    for (int32_t i = 0; signature != NULL && i < signature->input_count; i++)
        if (signature->parameters[i].mutated)
            kernel->written |= UINT32_C(1) << i;
    return 0;
}

/* ---- all of it ---- */

typedef struct {
    PyObject *name, *signature, *arguments, *targets, *schema, *keeps, *mutates;
    unsigned int alignment;
    int contiguous, may_overlap, releases_gil, on_default_stream;
} given;

static int fill_name(dlb_kernel *kernel, PyObject *name) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(name, &length);
    if (text == NULL)
        return -1;
    if (length == 0 || strlen(text) != (size_t)length)
        return refuse(PyExc_ValueError, "a name has at least one character, and no NUL",
                      name);
    kernel->name = malloc((size_t)length + 1);
    if (kernel->name == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memcpy(kernel->name, text, (size_t)length + 1);
    return 0;
}

static int fill(dlb_kernel *kernel, const given *in) {
    if (in->alignment == 0 || (in->alignment & (in->alignment - 1)) != 0) {
        PyErr_Format(PyExc_ValueError,
                     "KernelBase: alignment must be a power of two, got %u",
                     in->alignment);
        return -1;
    }
    kernel->alignment = in->alignment;
    kernel->contiguous = in->contiguous;
    kernel->may_overlap = in->may_overlap;
    kernel->releases_gil = in->releases_gil;
    kernel->on_default_stream = in->on_default_stream;
    if (fill_name(kernel, in->name) < 0)
        return -1;
    if (in->signature != Py_None &&
        (kernel->signature = dlb_parse_signature(in->signature)) == NULL)
        return -1;
    if ((in->signature == Py_None) != (in->arguments == Py_None))
        return refuse(PyExc_TypeError, "signature and arguments go together",
                      in->arguments);
    if (kernel->signature != NULL && parse_order(kernel, in->arguments) < 0)
        return -1;
    if (parse_mutates(kernel, in->mutates) < 0 ||
        parse_targets(kernel, in->targets) < 0)
        return -1;
    kernel->schema = in->schema == Py_None ? NULL : Py_NewRef(in->schema);
    kernel->keeps = PyTuple_Pack(2, in->keeps, in->targets);
    return kernel->keeps ? 0 : -1;
}

static int check_arguments(const given *in) {
    if (in->arguments == Py_None || PyTuple_Check(in->arguments))
        return 0;
    return refuse(PyExc_TypeError, "arguments must be a tuple or None", in->arguments);
}

static _Atomic uint64_t last_serial;

/* Sequences become tuples: nobody can change those later. */
static dlb_kernel *make_kernel(given *in) {
    in->targets = PySequence_Tuple(in->targets);
    bool writes_last = in->mutates == Py_None && in->signature == Py_None;
    in->mutates =
        in->mutates == Py_None ? PyTuple_New(0) : PySequence_Tuple(in->mutates);
    dlb_kernel *kernel = calloc(1, sizeof *kernel);
    if (kernel == NULL)
        PyErr_NoMemory();
    if (kernel != NULL) {
        atomic_init(&kernel->references, 1);
        kernel->serial = atomic_fetch_add(&last_serial, 1) + 1;
        kernel->writes_last = writes_last;
        if (in->targets == NULL || in->mutates == NULL || check_arguments(in) < 0 ||
            fill(kernel, in) < 0) {
            dlb_kernel_drop(kernel);
            kernel = NULL;
        }
    }
    Py_XDECREF(in->mutates);
    Py_XDECREF(in->targets);
    return kernel;
}

dlb_kernel *dlb_parse_kernel(PyObject *args, PyObject *kwargs, PyObject **arguments) {
    static char *names[] = {
        "name",    "signature",         "arguments",  "targets",     "schema",
        "keeps",   "alignment",         "contiguous", "may_overlap", "releases_gil",
        "mutates", "on_default_stream", NULL};
    given in = {.schema = Py_None,
                .keeps = Py_None,
                .mutates = Py_None,
                .alignment = 1,
                .contiguous = true,
                .releases_gil = true};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "UOOO|$OOIpppOp:KernelBase", names,
                                     &in.name, &in.signature, &in.arguments,
                                     &in.targets, &in.schema, &in.keeps, &in.alignment,
                                     &in.contiguous, &in.may_overlap, &in.releases_gil,
                                     &in.mutates, &in.on_default_stream))
        return NULL;
    dlb_kernel *kernel = make_kernel(&in);
    if (kernel != NULL && in.arguments != Py_None)
        *arguments = Py_NewRef(in.arguments);
    return kernel;
}

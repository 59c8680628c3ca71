/* native.KernelBase: one wrapped kernel as a Python object. */
#include "abi/abi.h"
#include "call/call.h"
#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static dlb_kernel_object *as_kernel(PyObject *self) {
    return (dlb_kernel_object *)self;
}

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

static const char *check_signature(const dlb_kernel *kernel) {
    return kernel->signature ? NULL : "\"c\" and \"cuda\" need a signature";
}

static const convention conventions[] = {
    {"dltensors", dlb_invoke_dltensors, NULL, NULL},
    {"pointers", dlb_invoke_pointers, check_pointers, NULL},
    {"tvm_ffi", dlb_invoke_tvm_ffi, check_tvm_ffi, NULL},
    {"c", dlb_invoke_c, check_signature, &dlb_CCallType},
    {"cuda", dlb_invoke_launch, check_signature, &dlb_LaunchType},
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
    bool has_function =
        target->function != NULL || (how->user && how->invoke != dlb_invoke_c);
    if (!has_function || (how->user && !PyObject_TypeCheck(user, how->user)))
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
    if (count > most || (count == 0 && kernel->signature != NULL))
        return refuse(PyExc_ValueError, "there must be one to four targets", targets);
    kernel->needs_gil =
        count == 0; /* then every call is Python's: see kernels/lists.py */
    for (Py_ssize_t i = 0; i < count; i++)
        if (parse_target(kernel, PyTuple_GET_ITEM(targets, i)) < 0)
            return -1;
    return 0;
}

/* Which inputs are written: as the signature says, or else by index. */
static int parse_mutates(dlb_kernel *kernel, PyObject *mutates) {
    const dlb_signature *signature = kernel->signature;
    Py_ssize_t count = PyTuple_GET_SIZE(mutates);
    int32_t inputs = signature ? signature->input_count : DLB_MAX_TENSORS;
    kernel->written =
        calloc((size_t)dlb_set_words(inputs) + 1, sizeof *kernel->written);
    if (kernel->written == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (signature != NULL && count > 0)
        return refuse(PyExc_ValueError, "the signature says what is mutated", mutates);
    for (Py_ssize_t i = 0; i < count; i++) {
        long index = PyLong_AsLong(PyTuple_GET_ITEM(mutates, i));
        if (index == -1 && PyErr_Occurred())
            return -1;
        if (index < 0 || index >= DLB_MAX_TENSORS)
            return refuse(PyExc_ValueError, "mutates has an index from 0 to 31",
                          mutates);
        dlb_set_add(kernel->written, index);
    }
    for (int32_t i = 0; signature != NULL && i < signature->input_count; i++)
        if (signature->parameters[i].mutated)
            dlb_set_add(kernel->written, i);
    return 0;
}

typedef struct {
    PyObject *name, *signature, *arguments, *targets, *schema, *keeps, *mutates, *cost;
    PyObject *counts, *said_by;
    long long holds_below;
    unsigned int alignment;
    int contiguous, may_overlap, releases_gil, on_default_stream, casts;
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

/* Steps over the names of the signature, or None. */
static int parse_cost(dlb_kernel *kernel, PyObject *cost) {
    if (cost == Py_None)
        return 0;
    if (kernel->signature == NULL || !PyTuple_Check(cost))
        return refuse(PyExc_TypeError, "cost is a tuple, with a signature", cost);
    int32_t room = (int32_t)Py_MIN(PyTuple_GET_SIZE(cost), INT16_MAX);
    kernel->cost = calloc((size_t)room + 1, sizeof *kernel->cost);
    if (kernel->cost == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    kernel->cost_length =
        dlb_parse_steps(cost, kernel->signature->name_count, kernel->cost, room);
    return kernel->cost_length < 0 ? -1 : 0;
}

/* Of how many tensors each argument and result is, or None. */
static int parse_counts(dlb_kernel *kernel, PyObject *counts) {
    if (counts == Py_None)
        return 0;
    if (!PyList_Check(counts) || PyList_GET_SIZE(counts) > DLB_MAX_TENSORS)
        return refuse(PyExc_TypeError, "counts is a list of at most 32", counts);
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(counts); i++) {
        long count = PyLong_AsLong(PyList_GET_ITEM(counts, i));
        if (count == -1 && PyErr_Occurred())
            return -1;
        if (count < 0 || count > DLB_MOST_TENSORS)
            return refuse(PyExc_ValueError, "a list has at most 4096 tensors", counts);
        kernel->counts[kernel->count_count++] = (int32_t)count;
    }
    return 0;
}

/* Whether result `place` can hold an extent: an int64 without dimensions. */
static bool holds_extent(const dlb_signature *signature, long place) {
    const dlb_parameter *result =
        &signature->parameters[signature->input_count + place];
    const dlb_dtype_set *dtype = &signature->dtypes[result->dtype];
    DLDataType int64 = {kDLInt, 64, 1};
    return result->dim_count == 0 && dtype->key_count == 1 &&
           dtype->keys[0] == dlb_dtype_key(int64);
}

/* Of each result, which result has its first extent, or None: see dlb_kernel. */
static int parse_said_by(dlb_kernel *kernel, PyObject *said_by) {
    memset(kernel->said_by, -1, sizeof kernel->said_by);
    if (said_by == Py_None)
        return 0;
    int32_t count = kernel->signature ? kernel->signature->result_count : 0;
    if (!PyList_Check(said_by) || count > DLB_MAX_TENSORS ||
        PyList_GET_SIZE(said_by) != count)
        return refuse(PyExc_TypeError, "said_by is a list, an item for each result",
                      said_by);
    for (int32_t i = 0; i < count; i++) {
        long by = PyLong_AsLong(PyList_GET_ITEM(said_by, i));
        if (by == -1 && PyErr_Occurred())
            return -1;
        const dlb_parameter *own =
            &kernel->signature->parameters[kernel->signature->input_count + i];
        if (by < -1 || by >= count ||
            (by >= 0 && (own->dim_count == 0 || own->dims[0].kind == DLB_DIM_PACK ||
                         !holds_extent(kernel->signature, by))))
            return refuse(PyExc_ValueError,
                          "said_by has places of int64 results, or -1", said_by);
        kernel->said_by[i] = (int8_t)by;
        kernel->says_extents |= by >= 0;
    }
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
    kernel->casts = in->casts;
    kernel->holds_below = in->holds_below;
    if (fill_name(kernel, in->name) < 0)
        return -1;
    if (in->signature != Py_None &&
        (kernel->signature = dlb_parse_signature(in->signature)) == NULL)
        return -1;
    if ((in->signature == Py_None) != (in->arguments == Py_None))
        return refuse(PyExc_TypeError, "signature and arguments go together",
                      in->arguments);
    if (parse_cost(kernel, in->cost) < 0 || parse_mutates(kernel, in->mutates) < 0 ||
        parse_targets(kernel, in->targets) < 0 ||
        parse_counts(kernel, in->counts) < 0 || parse_said_by(kernel, in->said_by) < 0)
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
        dlb_count_live(kernels, 1);
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

static int parse_arguments(PyObject *args, PyObject *kwargs, given *in) {
    static char *names[] = {"name",         "signature",  "arguments",
                            "targets",      "schema",     "keeps",
                            "alignment",    "contiguous", "may_overlap",
                            "releases_gil", "mutates",    "on_default_stream",
                            "holds_below",  "cost",       "counts",
                            "said_by",      "casts",      NULL};
    *in = (given){.schema = Py_None,
                  .keeps = Py_None,
                  .mutates = Py_None,
                  .cost = Py_None,
                  .counts = Py_None,
                  .said_by = Py_None,
                  .alignment = 1,
                  .contiguous = true,
                  .releases_gil = true};
    return PyArg_ParseTupleAndKeywords(
        args, kwargs, "UOOO|$OOIpppOpLOOOp:KernelBase", names, &in->name,
        &in->signature, &in->arguments, &in->targets, &in->schema, &in->keeps,
        &in->alignment, &in->contiguous, &in->may_overlap, &in->releases_gil,
        &in->mutates, &in->on_default_stream, &in->holds_below, &in->cost, &in->counts,
        &in->said_by, &in->casts);
}

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    given in;
    if (!parse_arguments(args, kwargs, &in))
        return NULL;
    dlb_kernel_object *self = (dlb_kernel_object *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = dlb_kernel_vectorcall;
    self->kernel = make_kernel(&in);
    if (self->kernel != NULL) {
        self->arguments = in.arguments == Py_None ? NULL : Py_NewRef(in.arguments);
        self->plan = dlb_make_call_plan(self->kernel, self->arguments);
    }
    if (self->plan == NULL)
        Py_CLEAR(self);
    else
        dlb_share((PyObject *)self);
    return (PyObject *)self;
}

/* ---- run ---- */

static int put_tensors(const dlb_kernel *kernel, dlb_frame *frame, PyObject *tensors) {
    Py_ssize_t count = PyTuple_GET_SIZE(tensors);
    if (count > frame->room)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: takes at most %d tensors, got %zd", kernel->name,
                              (int)frame->room, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tensors, i);
        if (item != Py_None && !dlb_is_tensor(item))
            return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                                  "%s: tensor %zd: expected a Tensor or None, got %s",
                                  kernel->name, i, Py_TYPE(item)->tp_name);
        dlb_borrow_tensor(frame, (int)i, item == Py_None ? NULL : (dlb_tensor *)item);
    }
    frame->tensor_count = (int32_t)count;
    frame->input_count = frame->tensor_count;
    if (kernel->signature != NULL && count >= kernel->signature->input_count)
        frame->input_count = kernel->signature->input_count;
    return 0;
}

static int put_scalars(const dlb_kernel *kernel, dlb_frame *frame, PyObject *scalars) {
    const dlb_signature *signature = kernel->signature;
    Py_ssize_t count = PyTuple_GET_SIZE(scalars);
    if (count > DLB_MAX_SCALARS)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: takes at most %d scalars, got %zd", kernel->name,
                              DLB_MAX_SCALARS, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        bool is_known = signature != NULL && i < signature->scalar_count;
        PyObject *item = PyTuple_GET_ITEM(scalars, i);
        int status = dlb_parse_scalar(item, is_known ? &signature->scalars[i] : NULL,
                                      frame, &frame->scalars[i]);
        if (status < 0)
            return dlb_error_catch(&frame->error, kernel->name);
        if (status == DLB_DECLINED)
            return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                                  "%s: scalar %zd: a value of type %s is not taken",
                                  kernel->name, i, Py_TYPE(item)->tp_name);
    }
    frame->scalar_count = (int32_t)count;
    return 0;
}

static int run_frame(const dlb_kernel *kernel, dlb_frame *frame) {
    if (dlb_frame_bind(kernel, frame) < 0 || dlb_frame_check_results(kernel, frame) < 0)
        return -1;
    if (dlb_frame_holds_gil(kernel, frame))
        return dlb_frame_run(kernel, frame);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = dlb_frame_run(kernel, frame);
    Py_END_ALLOW_THREADS
    return status;
}

/* A tuple of what an argument of `run` lists. A Tensor is not a list of its rows. */
static PyObject *list_of(const char *name, const char *argument, const char *what,
                         PyObject *given) {
    bool is_one =
        dlb_is_tensor(given) || PyUnicode_Check(given) || PyBytes_Check(given);
    PyObject *tuple = is_one ? NULL : PySequence_Tuple(given);
    if (tuple != NULL ||
        (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_TypeError)) ||
        dlb_clear_error() < 0)
        return tuple;
    return dlb_raise_error("UnsupportedTypeError",
                           "%s: run: %s must be a list of %s, got %s", name, argument,
                           what, Py_TYPE(given)->tp_name);
}

/* The tuples keep what the frame points to. */
static PyObject *run(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tensors", "scalars", "source", NULL};
    PyObject *tensors, *scalars = NULL;
    const char *source = NULL;
    dlb_frame frame;
    const char *name = as_kernel(self)->kernel->name;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Oz:run", names, &tensors,
                                     &scalars, &source))
        return dlb_refuse_arguments("Kernel.run", names);
    tensors = list_of(name, "tensors", "Tensors", tensors);
    scalars = tensors == NULL   ? NULL
              : scalars == NULL ? PyTuple_New(0)
                                : list_of(name, "scalars", "scalars", scalars);
    int status = -1;
    dlb_frame_start(&frame, source);
    if (scalars != NULL) {
        const dlb_kernel *kernel = as_kernel(self)->kernel;
        frame.objects = (void *const *)&PyTuple_GET_ITEM(tensors, 0);
        status = dlb_frame_fit(kernel, &frame);
        status = status < 0 ? status : put_tensors(kernel, &frame, tensors);
        status = status < 0 ? status : put_scalars(kernel, &frame, scalars);
        status = status < 0 ? status : run_frame(kernel, &frame);
        if (status < 0)
            dlb_raise(&frame.error);
    }
    dlb_frame_end(&frame);
    Py_XDECREF(scalars);
    Py_XDECREF(tensors);
    if (status == 0)
        return frame.returned ? frame.returned : Py_NewRef(Py_None);
    Py_XDECREF((PyObject *)frame.returned);
    return NULL;
}

/* publish(key): compiled programs that hold this key call the kernel from now on */
static PyObject *publish(PyObject *self, PyObject *key) {
    if (!PyUnicode_Check(key))
        return dlb_raise_error("UnsupportedTypeError",
                               "%s: publish: key must be a string, got %R",
                               as_kernel(self)->kernel->name, key);
    const char *text = PyUnicode_AsUTF8(key);
    if (text == NULL)
        return NULL;
    dlb_entry *entry = dlb_registry_add(text);
    if (entry == NULL)
        return PyErr_NoMemory();
    dlb_entry_set(entry, as_kernel(self)->kernel);
    Py_RETURN_NONE;
}

/* serve_lists(places, kernels): for each argument by position whether it is a list of
 * tensors; and by the lengths of the lists the kernel that serves them, with the
 * lengths of its results. */
static PyObject *serve_lists(PyObject *self, PyObject *args) {
    PyObject *places, *kernels;
    if (!PyArg_ParseTuple(args, "O!O!:serve_lists", &PyTuple_Type, &places,
                          &PyDict_Type, &kernels))
        return NULL;
    if (as_kernel(self)->list_places != NULL ||
        PyTuple_GET_SIZE(places) > DLB_MAX_TENSORS + DLB_MAX_SCALARS)
        return PyErr_Format(PyExc_ValueError, "serve_lists: twice, or too many places");
    as_kernel(self)->list_kernels = Py_NewRef(kernels);
    as_kernel(self)->list_places = Py_NewRef(places);
    Py_RETURN_NONE;
}

/* serve_numbers(kernel, are_numbers): the kernel that has tensors in place of numbers,
 * and for each result whether it is one. */
static PyObject *serve_numbers(PyObject *self, PyObject *args) {
    PyObject *kernel, *are_numbers, *none = NULL;
    if (!PyArg_ParseTuple(args, "O!O!:serve_numbers", &dlb_KernelType, &kernel,
                          &PyTuple_Type, &are_numbers))
        return NULL;
    const dlb_signature *signature = as_kernel(kernel)->kernel->signature;
    if (signature != NULL && signature->result_count != PyTuple_GET_SIZE(are_numbers))
        return PyErr_Format(PyExc_ValueError, "serve_numbers: one for each result");
    if (!atomic_compare_exchange_strong(&as_kernel(self)->numbers, &none,
                                        Py_NewRef(args))) {
        Py_DECREF(args);
        return PyErr_Format(PyExc_ValueError, "serve_numbers: twice");
    }
    Py_RETURN_NONE;
}

static PyObject *get_name(PyObject *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(as_kernel(self)->kernel->name);
}

/* ---- life ---- */

/* Whether the kernel's references are this object's alone, as nobody else keeps the
 * kernel. */
static bool owns_kernel(const dlb_kernel_object *self) {
    return self->kernel != NULL && atomic_load(&self->kernel->references) == 1;
}

static PyObject *jax_of(dlb_kernel_object *self) {
    return atomic_load(&self->jax);
}

static int kernel_traverse(PyObject *object, visitproc visit, void *arg) {
    dlb_kernel_object *self = as_kernel(object);
    Py_VISIT(self->arguments);
    Py_VISIT(self->list_kernels);
    Py_VISIT(atomic_load(&self->numbers));
    Py_VISIT(jax_of(self));
    if (owns_kernel(self)) {
        Py_VISIT((PyObject *)self->kernel->schema);
        Py_VISIT((PyObject *)self->kernel->keeps);
    }
    return 0;
}

/* Without what it keeps, the kernel cannot run: it must not be called any more. */
static int kernel_clear(PyObject *object) {
    dlb_kernel_object *self = as_kernel(object);
    Py_CLEAR(self->arguments);
    Py_CLEAR(self->list_places);
    Py_CLEAR(self->list_kernels);
    Py_XDECREF(atomic_exchange(&self->jax, NULL));
    Py_XDECREF(atomic_exchange(&self->numbers, NULL));
    if (owns_kernel(self)) {
        PyObject *schema = self->kernel->schema, *keeps = self->kernel->keeps;
        self->kernel->schema = self->kernel->keeps = NULL;
        self->kernel->target_count = 0;
        Py_XDECREF(schema);
        Py_XDECREF(keeps);
    }
    return 0;
}

static void kernel_dealloc(PyObject *object) {
    dlb_kernel_object *self = as_kernel(object);
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    if (self->weak_references != NULL)
        PyObject_ClearWeakRefs(object);
    Py_CLEAR(self->arguments);
    Py_CLEAR(self->list_places);
    Py_CLEAR(self->list_kernels);
    Py_XDECREF(atomic_exchange(&self->jax, NULL));
    Py_XDECREF(atomic_exchange(&self->numbers, NULL));
    dlb_free_call_plan(self->plan);
    if (self->kernel != NULL)
        dlb_kernel_drop(self->kernel);
    type->tp_free(object);
}

static PyGetSetDef attributes[] = {
    {"name", get_name, NULL, "The name it is published under, \"namespace::name\".",
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyMethodDef methods[] = {
    {"run", (PyCFunction)(void (*)(void))run, METH_VARARGS | METH_KEYWORDS,
     "run($self, /, tensors, scalars=(), source=None)\n--\n\n"
     "Run on Tensors (or None): the inputs, then the results, which are written."},
    {"publish", publish, METH_O,
     "publish($self, key, /)\n--\n\n"
     "Make this kernel what its name means from now on, in the whole process."},
    {"serve_lists", serve_lists, METH_VARARGS,
     "serve_lists($self, places, kernels, /)\n--\n\n"
     "Call the kernels for lists of tensors by the lengths of the lists."},
    {"serve_numbers", serve_numbers, METH_VARARGS,
     "serve_numbers($self, kernel, are_numbers, /)\n--\n\n"
     "Call the kernel that has tensors in place of numbers, and read them."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_KernelType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.KernelBase",
    .tp_doc = "One wrapped kernel: what it takes, its functions, how they are called.",
    .tp_basicsize = sizeof(dlb_kernel_object),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_BASETYPE | Py_TPFLAGS_HAVE_GC |
                Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_call = PyVectorcall_Call,
    .tp_new = kernel_new,
    .tp_dealloc = kernel_dealloc,
    .tp_traverse = kernel_traverse,
    .tp_clear = kernel_clear,
    .tp_weaklistoffset = offsetof(dlb_kernel_object, weak_references),
    .tp_vectorcall_offset = offsetof(dlb_kernel_object, vectorcall),
    .tp_getset = attributes,
    .tp_methods = methods,
};

/* ==== bound calls: builtin functions, since torch.compile can substitute no other ====
 */

/* The `__self__` of such a function. */
typedef struct {
    PyObject_HEAD
    PyObject *kernel;    /* a KernelBase */
    PyObject *framework; /* its name, a str; NULL: any */
    dlb_family family;
    PyMethodDef definition;
    PyObject *name, *doc; /* whose texts the definition points to */
} bound_call;

static PyObject *call_bound(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    const bound_call *bound = (const bound_call *)self;
    return dlb_call_as(bound->kernel, bound->family, bound->framework, args, count,
                       names);
}

static int bound_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((bound_call *)self)->kernel);
    return 0;
}

/* Nothing is cleared: the kernel, which is in every cycle, clears itself. */
static void bound_dealloc(PyObject *self) {
    bound_call *bound = (bound_call *)self;
    PyObject_GC_UnTrack(self);
    Py_XDECREF(bound->kernel);
    Py_XDECREF(bound->framework);
    Py_XDECREF(bound->name);
    Py_XDECREF(bound->doc);
    Py_TYPE(self)->tp_free(self);
}

static PyMemberDef bound_members[] = {
    {"kernel", T_OBJECT_EX, offsetof(bound_call, kernel), READONLY,
     "The kernel that is called."},
    {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_BoundCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.BoundCall",
    .tp_doc = "A kernel, called with the tensors of one framework or of any.",
    .tp_basicsize = sizeof(bound_call),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_dealloc = bound_dealloc,
    .tp_traverse = bound_traverse,
    .tp_members = bound_members,
};

/* bind_kernel(kernel, framework, name, doc, module=None) -> builtin function */
static PyObject *bind_kernel(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *kernel, *framework, *name, *doc, *home = NULL;
    if (!PyArg_ParseTuple(args, "O!OUU|U:bind_kernel", &dlb_KernelType, &kernel,
                          &framework, &name, &doc, &home))
        return NULL;
    const char *name_text = PyUnicode_AsUTF8(name), *doc_text = PyUnicode_AsUTF8(doc);
    if (name_text == NULL || doc_text == NULL)
        return NULL;
    if (framework != Py_None && !PyUnicode_Check(framework))
        return PyErr_Format(PyExc_TypeError,
                            "bind_kernel: framework must be a str or None, got %R",
                            framework);
    bound_call *self = (bound_call *)dlb_BoundCallType.tp_alloc(&dlb_BoundCallType, 0);
    if (self == NULL)
        return NULL;
    self->kernel = Py_NewRef(kernel);
    self->framework = framework == Py_None ? NULL : Py_NewRef(framework);
    self->family = dlb_family_of_framework(self->framework);
    self->name = Py_NewRef(name);
    self->doc = Py_NewRef(doc);
    self->definition = (PyMethodDef){name_text, (PyCFunction)(void (*)(void))call_bound,
                                     METH_FASTCALL | METH_KEYWORDS, doc_text};
    PyObject *function = PyCFunction_NewEx(&self->definition, (PyObject *)self, home);
    Py_DECREF(self);
    if (function != NULL)
        dlb_share(function);
    return function;
}

/* ==== functions of the module ==== */

/* seal_kernel_type(type): a subclass of KernelBase whose `__call__` is written in
 * Python, for compilers that look into it, is called in C all the same. */
static PyObject *seal_kernel_type(PyObject *Py_UNUSED(module), PyObject *type) {
    PyTypeObject *sealed = (PyTypeObject *)type;
    if (!PyType_Check(type) || !PyType_IsSubtype(sealed, &dlb_KernelType))
        return PyErr_Format(PyExc_TypeError,
                            "seal_kernel_type: expected a subclass of KernelBase");
    sealed->tp_call = PyVectorcall_Call;
    sealed->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    Py_RETURN_NONE;
}

PyMethodDef dlb_call_functions[] = {
    {"bind_kernel", bind_kernel, METH_VARARGS,
     "bind_kernel($module, kernel, framework, name, doc, module=..., /)\n--\n\nThe "
     "call of a kernel as a builtin function."},
    {"call_giving", (PyCFunction)(void (*)(void))dlb_call_giving, METH_FASTCALL,
     "call_giving($module, kernel, give, /, *arrays)\n--\n\nCall a kernel with arrays "
     "of "
     "JAX, or return NotImplemented."},
    {"seal_kernel_type", seal_kernel_type, METH_O,
     "seal_kernel_type($module, kind, /)\n--\n\nCall a subclass's kernels in C "
     "although its `__call__` is Python."},
    {"jax_direct_open", dlb_jax_direct_open, METH_O,
     "jax_direct_open($module, kind, /)\n--\n\nLend the memory of this array type to "
     "kernels."},
    {"cupy_open", dlb_cupy_open, METH_VARARGS,
     "cupy_open($module, kind, current_stream, /)\n--\n\nLend the memory of CuPy's "
     "arrays."},
    {NULL, NULL, 0, NULL},
};

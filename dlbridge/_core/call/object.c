/* native.KernelBase: one wrapped kernel as a Python object. */
#include "call/call.h"
#include "call/parse.h"

#include <stdlib.h>
#include <string.h>
#include <structmember.h>

static dlb_kernel_object *as_kernel(PyObject *self) {
    return (dlb_kernel_object *)self;
}

/* ---- scalars and tensors of a call ---- */

static int parse_str(PyObject *object, dlb_scalar *scalar) {
    Py_ssize_t length;
    const char *text = PyUnicode_AsUTF8AndSize(object, &length);
    if (text == NULL)
        return -1;
    *scalar = (dlb_scalar){DLB_STRING, {.s = text}};
    return strlen(text) == (size_t)length ? 0 : DLB_DECLINED;
}

static int parse_int(PyObject *object, dlb_scalar *scalar) {
    int overflow;
    int64_t value = PyLong_AsLongLongAndOverflow(object, &overflow);
    *scalar = (dlb_scalar){DLB_INT, {.i = value}};
    return overflow ? DLB_DECLINED : 0;
}

int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_scalar *scalar) {
    dlb_scalar_kind wanted = parameter ? parameter->kind : DLB_NONE;
    bool wants_bool = parameter != NULL && parameter->is_bool;
    int status = DLB_DECLINED;
    *scalar = (dlb_scalar){DLB_NONE, {0}};
    if (object == Py_None)
        return parameter == NULL || parameter->optional ? 0 : DLB_DECLINED;
    if (PyBool_Check(object) ? parameter == NULL || wants_bool
                             : PyLong_CheckExact(object) && !wants_bool)
        status = parse_int(object, scalar);
    else if (PyFloat_CheckExact(object))
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = PyFloat_AS_DOUBLE(object)}}, status = 0;
    else if (PyUnicode_CheckExact(object))
        status = parse_str(object, scalar);
    if (status == 0 && wanted == DLB_FLOAT && scalar->kind == DLB_INT)
        *scalar = (dlb_scalar){DLB_FLOAT, {.f = (double)scalar->value.i}};
    if (status == 0 && wanted != DLB_NONE && scalar->kind != (int64_t)wanted)
        return DLB_DECLINED;
    return status;
}

void dlb_frame_put(dlb_frame *frame, int index, const dlb_tensor *tensor) {
    if (tensor == NULL) {
        frame->tensors[index] = (DLTensor){.ndim = -1};
        frame->flags[index] = 0;
        return;
    }
    frame->tensors[index] = tensor->dl;
    frame->flags[index] = tensor->flags;
    frame->accesses[index] = tensor->buffer->access;
    frame->watched |= (uint32_t)(tensor->buffer->access != NULL) << index;
}

/* ---- run ---- */

static int put_tensors(const dlb_kernel *kernel, dlb_frame *frame, PyObject *tensors) {
    Py_ssize_t count = PyTuple_GET_SIZE(tensors);
    if (count > DLB_MAX_TENSORS)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: takes at most %d tensors, got %zd", kernel->name,
                              DLB_MAX_TENSORS, count);
    for (Py_ssize_t i = 0; i < count; i++) {
        PyObject *item = PyTuple_GET_ITEM(tensors, i);
        if (item != Py_None && !dlb_is_tensor(item))
            return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                                  "%s: tensor %zd: expected a Tensor or None, got %s",
                                  kernel->name, i, Py_TYPE(item)->tp_name);
        dlb_frame_put(frame, (int)i, item == Py_None ? NULL : (dlb_tensor *)item);
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
                                      &frame->scalars[i]);
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
    if (kernel->needs_gil || !kernel->releases_gil)
        return dlb_frame_run(kernel, frame);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = dlb_frame_run(kernel, frame);
    Py_END_ALLOW_THREADS
    return status;
}

/* The tuples keep what the frame points to. */
static PyObject *run(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tensors", "scalars", "source", NULL};
    PyObject *tensors, *scalars = NULL;
    const char *source = NULL;
    dlb_frame frame;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O|Oz:run", names, &tensors,
                                     &scalars, &source))
        return NULL;
    tensors = PySequence_Tuple(tensors);
    scalars = tensors == NULL   ? NULL
              : scalars == NULL ? PyTuple_New(0)
                                : PySequence_Tuple(scalars);
    int status = -1;
    dlb_frame_start(&frame, source);
    if (scalars != NULL) {
        const dlb_kernel *kernel = as_kernel(self)->kernel;
        frame.objects = (void *const *)&PyTuple_GET_ITEM(tensors, 0);
        status = put_tensors(kernel, &frame, tensors);
        status = status < 0 ? status : put_scalars(kernel, &frame, scalars);
        status = status < 0 ? status : run_frame(kernel, &frame);
        if (status < 0)
            dlb_raise(&frame.error);
    }
    Py_XDECREF(scalars);
    Py_XDECREF(tensors);
    if (status < 0)
        return NULL;
    return frame.returned ? frame.returned : Py_NewRef(Py_None);
}

static PyObject *publish(PyObject *self, PyObject *Py_UNUSED(unused)) {
    dlb_kernel *kernel = as_kernel(self)->kernel;
    dlb_entry *entry = dlb_registry_add(kernel->name);
    if (entry == NULL)
        return PyErr_NoMemory();
    dlb_entry_set(entry, kernel);
    Py_RETURN_NONE;
}

static PyObject *get_name(PyObject *self, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(as_kernel(self)->kernel->name);
}

/* ---- life ---- */

static PyObject *kernel_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    PyObject *arguments = NULL;
    dlb_kernel *kernel = dlb_parse_kernel(args, kwargs, &arguments);
    dlb_kernel_object *self =
        kernel ? (dlb_kernel_object *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        if (kernel != NULL)
            dlb_kernel_drop(kernel);
        Py_XDECREF(arguments);
        return NULL;
    }
    self->kernel = kernel;
    self->arguments = arguments;
    self->vectorcall = dlb_kernel_vectorcall;
    if (dlb_call_plan_make(self) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* What the kernel keeps is this object's alone unless someone else keeps the kernel. */
static bool owns_kernel(const dlb_kernel_object *self) {
    return self->kernel != NULL && atomic_load(&self->kernel->references) == 1;
}

static int kernel_traverse(PyObject *object, visitproc visit, void *arg) {
    dlb_kernel_object *self = as_kernel(object);
    Py_VISIT(self->arguments);
    Py_VISIT(self->jax);
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
    Py_CLEAR(self->jax);
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
    Py_CLEAR(self->jax);
    free(self->call);
    dlb_bound_free(self);
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
    {"publish", publish, METH_NOARGS,
     "publish($self, /)\n--\n\n"
     "Make this kernel what its name means from now on, in the whole process."},
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

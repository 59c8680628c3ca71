/* Python functions as kernels: the way from any thread into Python and back.
 *
 * The function is called with tensors of its own framework over the caller's memory,
 * on loan for the call; scalars go by keyword. It writes its results into `out=`, or
 * returns them and they are copied. */
#include "abi/abi.h"
#include "abi/python.h"
#include "exchange/exchange.h"

#include <string.h>
#include <structmember.h>

/* ---- arguments ---- */

static PyObject *scalar_object(const dlb_python_call *call, int index) {
    const dlb_scalar *scalar = &call->frame->scalars[index];
    switch (scalar->kind) {
    case DLB_INT:
        if (call->kernel->signature && call->kernel->signature->scalars[index].is_bool)
            return PyBool_FromLong(scalar->value.i != 0);
        return PyLong_FromLongLong(scalar->value.i);
    case DLB_FLOAT:
        return PyFloat_FromDouble(scalar->value.f);
    case DLB_STRING:
        return PyUnicode_FromString(scalar->value.s);
    default:
        Py_RETURN_NONE;
    }
}

static PyObject *out_object(const dlb_python_call *call) {
    const dlb_python_loan *first = &call->loans[call->argument_count];
    if (call->result_count == 1)
        return Py_NewRef(first->object);
    PyObject *tuple = PyTuple_New(call->result_count);
    for (int i = 0; tuple != NULL && i < call->result_count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(first[i].object));
    return tuple;
}

/* Keywords, in the order of keyword_names; NULL in `stack` ends with an error. */
static int push_keywords(const dlb_python_call *call, PyObject **stack) {
    int count = 0, scalars = call->frame->scalar_count;
    for (int i = 0; i < scalars; i++)
        if ((stack[count++] = scalar_object(call, i)) == NULL)
            return count;
    if (call->self->takes_stream)
        if ((stack[count++] = PyLong_FromVoidPtr(call->frame->stream)) == NULL)
            return count;
    if (call->self->takes_out)
        stack[count++] = out_object(call);
    return count;
}

/* ---- the call ---- */

static PyObject *call_function(const dlb_python_call *call) {
    PyObject *room[1 + DLB_MAX_TENSORS + DLB_MAX_SCALARS + 2], **stack = room + 1;
    int given = call->argument_count;
    for (int i = 0; i < given; i++)
        stack[i] = call->loans[i].object;
    int keywords = push_keywords(call, stack + given);
    bool complete = keywords == 0 || stack[given + keywords - 1] != NULL;
    PyObject *value = NULL;
    if (complete)
        value = PyObject_Vectorcall(call->self->function, stack,
                                    (size_t)given | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                    keywords ? call->self->keyword_names : NULL);
    for (int i = 0; i < keywords; i++)
        Py_XDECREF(stack[given + i]);
    return value;
}

static int lend_all(dlb_python_call *call) {
    int count = call->argument_count + (call->self->takes_out ? call->result_count : 0);
    for (int i = 0; i < count; i++)
        if (dlb_lend(call, i) < 0)
            return -1;
    return 0;
}

/* On a device, the framework's current stream and device are the caller's for as long
 * as the call lasts. NULL without an exception: there is nothing to switch. */
static PyObject *enter_device(const dlb_python_call *call) {
    const dlb_frame *frame = call->frame;
    const DLTensor *first = frame->tensor_count > 0 ? &frame->tensors[0] : NULL;
    if (first == NULL || dlb_is_host(first->device))
        return NULL;
    return PyObject_CallMethod(
        call->self->support, "enter", "iiN", (int)first->device.device_type,
        (int)first->device.device_id, PyLong_FromVoidPtr(frame->stream));
}

static void leave_device(PyObject *scope) {
    PyObject *done = scope ? PyObject_CallMethod(scope, "close", NULL) : NULL;
    if (scope != NULL && done == NULL)
        PyErr_WriteUnraisable(scope);
    Py_XDECREF(done);
    Py_XDECREF(scope);
}

static int run_in_scope(dlb_python_call *call) {
    PyObject *value = lend_all(call) == 0 ? call_function(call) : NULL;
    int status = value ? 0 : -1;
    if (value != NULL && !call->self->takes_out)
        status = dlb_return_results(call, value);
    Py_XDECREF(value);
    if (status == 0)
        status = dlb_loans_write_back(call);
    if (PyErr_Occurred())
        dlb_error_catch(&call->frame->error, call->kernel->name);
    return dlb_loans_end(call) < 0 ? -1 : status;
}

static int run_call(dlb_python_call *call) {
    PyObject *scope = enter_device(call);
    if (PyErr_Occurred())
        return dlb_error_catch(&call->frame->error, call->kernel->name);
    int status = run_in_scope(call);
    leave_device(scope);
    return status;
}

static int check_scalars(const dlb_python_call *call) {
    Py_ssize_t expected = PyTuple_GET_SIZE(call->self->keyword_names);
    expected -= call->self->takes_stream + call->self->takes_out;
    if (call->frame->scalar_count == expected)
        return 0;
    return dlb_frame_fail(call->frame, DLB_ERROR_KERNEL,
                          "%s: called with %d scalars, its function takes %d",
                          call->kernel->name, (int)call->frame->scalar_count,
                          (int)expected);
}

/* XLA's threads come without the GIL; JAX itself must not be entered from them, since
 * it may wait for one of them. */
static _Thread_local int xla_depth;

PyObject *dlb_inside_xla(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(xla_depth > 0);
}

static bool is_from_xla(const dlb_frame *frame, bool held_the_gil) {
    return !held_the_gil && frame->source != NULL &&
           strncmp(frame->source, "jax", 3) == 0;
}

int dlb_invoke_python(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *Py_UNUSED(context)) {
    int state;
    bool held_the_gil = Py_IsInitialized() && PyGILState_Check();
    if (!dlb_enter_python(&state))
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: the interpreter is shutting down", kernel->name);
    dlb_python_call call;
    call.kernel = kernel;
    call.self = target->user;
    call.frame = frame;
    call.lent = 0;
    call.result_count = kernel->signature ? kernel->signature->result_count : 0;
    call.argument_count = frame->tensor_count - call.result_count;
    int from_xla = is_from_xla(frame, held_the_gil);
    xla_depth += from_xla;
    int status = check_scalars(&call) < 0 ? -1 : run_call(&call);
    xla_depth -= from_xla;
    dlb_leave_python(state);
    return status;
}

/* ---- the type ---- */

static PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function",
                            "converter",
                            "framework",
                            "support",
                            "tensor_names",
                            "keyword_names",
                            "takes_stream",
                            "takes_out",
                            "protects",
                            "counts_versions",
                            NULL};
    dlb_python_function made = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO!UOO!O!$pppp:PythonFunction", names, &made.function,
            &dlb_ConverterType, &made.converter, &made.framework, &made.support,
            &PyTuple_Type, &made.tensor_names, &PyTuple_Type, &made.keyword_names,
            &made.takes_stream, &made.takes_out, &made.protects, &made.counts_versions))
        return NULL;
    dlb_python_function *self = (dlb_python_function *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    made.ob_base = self->ob_base;
    *self = made;
    Py_INCREF(self->function);
    Py_INCREF(self->converter);
    Py_INCREF(self->framework);
    Py_INCREF(self->support);
    Py_INCREF(self->tensor_names);
    Py_INCREF(self->keyword_names);
    return (PyObject *)self;
}

static void function_dealloc(PyObject *object) {
    dlb_python_function *self = (dlb_python_function *)object;
    Py_DECREF(self->function);
    Py_DECREF(self->converter);
    Py_DECREF(self->framework);
    Py_DECREF(self->support);
    Py_DECREF(self->tensor_names);
    Py_DECREF(self->keyword_names);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *function_repr(PyObject *object) {
    dlb_python_function *self = (dlb_python_function *)object;
    return PyUnicode_FromFormat("<%U function %R as a kernel>", self->framework,
                                self->function);
}

#define MEMBER(name, type)                                                             \
    {#name, type, offsetof(dlb_python_function, name), READONLY, NULL}
static PyMemberDef function_members[] = {
    MEMBER(function, T_OBJECT),      MEMBER(framework, T_OBJECT),
    MEMBER(support, T_OBJECT),       MEMBER(tensor_names, T_OBJECT),
    MEMBER(keyword_names, T_OBJECT), MEMBER(takes_out, T_INT),
    MEMBER(takes_stream, T_INT),     {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_PythonFunctionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.PythonFunction",
    .tp_doc = "A Python function and how it wants to be called as a kernel.",
    .tp_basicsize = sizeof(dlb_python_function),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = function_new,
    .tp_dealloc = function_dealloc,
    .tp_repr = function_repr,
    .tp_members = function_members,
};

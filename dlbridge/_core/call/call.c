/* The direct call of a kernel: arguments, results, the run, what comes back. */
#include "call/call.h"

static uint32_t find_written(const dlb_kernel *kernel, const dlb_frame *frame) {
    uint32_t last = kernel->writes_last && frame->input_count > 0
                        ? UINT32_C(1) << (frame->input_count - 1)
                        : 0;
    return kernel->written | last;
}

static int prepare(const dlb_kernel_object *self, dlb_call *call, PyObject *const *args,
                   Py_ssize_t count, PyObject *names, PyObject **out) {
    const dlb_kernel *kernel = self->kernel;
    int status = dlb_call_arguments(self, call, args, count, names, out);
    if (status != 0 || call->target != NULL)
        return status;
    if (call->family == DLB_FAMILY_NONE)
        return DLB_DECLINED;
    uint32_t written = find_written(kernel, &call->frame);
    for (int i = 0; i < call->frame.input_count; i++)
        if ((written >> i & 1) && dlb_borrow_to_write(call, i) != 0)
            return DLB_DECLINED;
    call->is_understood = true;
    if (kernel->signature == NULL)
        return 0;
    int refused = dlb_signature_bind(kernel->signature, call->frame.tensors,
                                     call->frame.scalars, &call->frame.bindings);
    return refused < 0 ? dlb_call_results(kernel, call, *out) : DLB_DECLINED;
}

/* Shapes and strides lie in the objects. As soon as the GIL is released, another thread
 * may give an array a new shape: the kernel must not see it, nor memory that is free.
 * False: too many dimensions. */
static bool keep_dims(dlb_call *call) {
    int64_t *room = call->kept_dims;
    for (int32_t i = 0; i < call->frame.tensor_count; i++) {
        DLTensor *tensor = &call->frame.tensors[i];
        int32_t ndim = tensor->ndim;
        if (ndim > 0 && room + 2 * ndim > call->kept_dims + DLB_CALL_DIMS)
            return false;
        for (int32_t k = 0; k < ndim; k++) {
            room[k] = tensor->shape[k];
            room[ndim + k] = tensor->strides[k];
        }
        if (ndim > 0) {
            tensor->shape = room;
            tensor->strides = room + ndim;
            room += 2 * ndim;
        }
    }
    return true;
}

/* torch's current stream, if the call is on CUDA. False: it is not known. */
static bool find_stream(dlb_call *call) {
    dlb_frame *frame = &call->frame;
    int32_t i = 0;
    while (i < frame->tensor_count && frame->tensors[i].ndim < 0)
        i++;
    if (call->family != DLB_FAMILY_TORCH || i == frame->tensor_count ||
        frame->tensors[i].device.device_type != kDLCUDA)
        return true;
    frame->stream = (void *)dlb_torch_stream(frame->tensors[i].device.device_id);
    return frame->stream != NULL;
}

static int run_now(const dlb_kernel *kernel, dlb_call *call) {
    return call->target ? dlb_frame_invoke(kernel, call->target, &call->frame)
                        : dlb_frame_run(kernel, &call->frame);
}

static int run(const dlb_kernel *kernel, dlb_call *call) {
    call->frame.objects = (void *const *)call->objects;
    if (kernel->needs_gil || !kernel->releases_gil)
        return run_now(kernel, call);
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = run_now(kernel, call);
    Py_END_ALLOW_THREADS
    return status;
}

/* A kernel that failed may have written all the same; new results have no past. */
static void bump_versions(const dlb_kernel *kernel, dlb_call *call, bool are_given) {
    const dlb_frame *frame = &call->frame;
    uint32_t written = find_written(kernel, frame);
    int32_t count = are_given ? frame->tensor_count : frame->input_count;
    for (int i = 0; i < count; i++)
        if (((written >> i & 1) || i >= frame->input_count) &&
            frame->tensors[i].ndim >= 0)
            dlb_torch_bump_version(call->objects[i]);
}

static PyObject *finish(const dlb_kernel_object *self, dlb_call *call, int status,
                        PyObject *out) {
    const dlb_kernel *kernel = self->kernel;
    if (call->family == DLB_FAMILY_TORCH &&
        (status == 0 || call->frame.error.kind != DLB_ERROR_BUFFER))
        bump_versions(kernel, call, out != NULL);
    if (status != 0) {
        Py_XDECREF((PyObject *)call->frame.returned);
        return dlb_raise(&call->frame.error);
    }
    if (call->target == NULL)
        dlb_call_remember(self, call, find_written(kernel, &call->frame));
    return dlb_call_return(call, out);
}

/* The result, NULL with an exception, or NULL without one: declined. `family` is what
 * was called for, and then that of all arguments, if they are of one. */
static PyObject *call_directly(const dlb_kernel_object *self, dlb_family *family,
                               PyObject *const *args, Py_ssize_t count,
                               PyObject *names) {
    dlb_call call;
    PyObject *out = NULL, *result = NULL;
    dlb_call_start(&call, *family);
    int status = prepare(self, &call, args, count, names, &out);
    if (status == 0 && find_stream(&call) && keep_dims(&call))
        result = finish(self, &call, run(self->kernel, &call), out);
    if (result == NULL && call.made_count > 0)
        dlb_call_drop_results(&call);
    if (call.loan_count > 0)
        dlb_call_give_back(&call);
    *family = call.is_understood && out == NULL ? call.family : DLB_FAMILY_NONE;
    return result;
}

PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family wanted,
                            PyObject *const *args, Py_ssize_t count, PyObject *names) {
    return call_directly(self, &wanted, args, count, names);
}

/* ---- what is out of the ordinary ---- */

/* slow_call(kernel, framework or None, args, kwargs) */
static PyObject *call_slowly(PyObject *self, const char *framework,
                             PyObject *const *args, Py_ssize_t count, PyObject *names) {
    PyObject *result = NULL;
    if (dlb_hooks.slow_call == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge.kernels is not initialised");
    PyObject *positional = PyTuple_New(count);
    PyObject *keywords = PyDict_New();
    for (Py_ssize_t i = 0; positional != NULL && i < count; i++)
        PyTuple_SET_ITEM(positional, i, Py_NewRef(args[i]));
    Py_ssize_t name_count = names ? PyTuple_GET_SIZE(names) : 0;
    int failed = positional == NULL || keywords == NULL;
    for (Py_ssize_t i = 0; !failed && i < name_count; i++)
        failed = PyDict_SetItem(keywords, PyTuple_GET_ITEM(names, i), args[count + i]);
    if (!failed)
        result = PyObject_CallFunction(dlb_hooks.slow_call, "OzOO", self, framework,
                                       positional, keywords);
    Py_XDECREF(positional);
    Py_XDECREF(keywords);
    return result;
}

/* What `kernel.jax` is keeps compiled programs, and finds them sooner than the hook. */
static PyObject *call_jax(PyObject *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *names) {
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("jax")) == NULL)
        return NULL;
    PyObject *function = PyObject_GetAttr(self, name);
    if (function == NULL) {
        if (!PyErr_ExceptionMatches(PyExc_AttributeError))
            return NULL;
        PyErr_Clear();
        return call_slowly(self, NULL, args, count, names);
    }
    PyObject *result = PyObject_Vectorcall(function, args, (size_t)count, names);
    Py_DECREF(function);
    return result;
}

PyObject *dlb_call_as(PyObject *self, dlb_family family, const char *framework,
                      PyObject *const *args, Py_ssize_t count, PyObject *names) {
    const dlb_kernel_object *object = (const dlb_kernel_object *)self;
    if (family == DLB_FAMILY_OTHER || object->kernel->needs_gil)
        return call_slowly(self, framework, args, count, names);
    PyObject *result = call_directly(object, &family, args, count, names);
    if (result != NULL || PyErr_Occurred())
        return result;
    if (family == DLB_FAMILY_JAX && framework == NULL && object->arguments != NULL)
        return call_jax(self, args, count, names);
    return call_slowly(self, framework, args, count, names);
}

PyObject *dlb_kernel_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                PyObject *names) {
    PyObject *jax = ((const dlb_kernel_object *)self)->jax;
    Py_ssize_t positional = PyVectorcall_NARGS(flags);
    Py_ssize_t count = positional + (names ? PyTuple_GET_SIZE(names) : 0);
    if (jax != NULL && dlb_jax_serves(jax, args, count))
        return dlb_jax_call(jax, args, positional, names);
    return dlb_call_as(self, DLB_FAMILY_NONE, NULL, args, PyVectorcall_NARGS(flags),
                       names);
}

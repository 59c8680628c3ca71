/* Kernels as Python objects, and what the callers of kernels need of Python. */
#ifndef DLBRIDGE_KERNEL_OBJECT_H_
#define DLBRIDGE_KERNEL_OBJECT_H_

#include "kernel.h"
#include "object.h"

/* native.KernelBase. Immutable once made. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* call.c; NULL: the type's own `__call__` */
    dlb_kernel *kernel;        /* one reference */
    PyObject *arguments; /* Schema.encode_arguments(), a tuple; NULL without a schema */
    PyObject *jax; /* a JaxCaller that serves calls with nothing but JAX arrays, or NULL
                    */
    void *call;    /* what call_arguments.c makes of them; freed by free() */
    void *bound;   /* see bind.c */
    PyObject *weak_references;
} dlb_kernel_object;

extern PyTypeObject dlb_KernelType;
static inline bool dlb_is_kernel(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_KernelType);
}

/* Set once by dlbridge.kernels (native.set_kernel_hooks); each may be NULL.
 *
 * explain(name, schema, tensors, scalars, index, reason, other) -> exception
 *     name: str; schema: Schema or None; tensors: inputs, then results, each None or
 *     (shape, (code, bits, lanes), source or None, (device_type, device_id));
 *     scalars: integers, None for others;
 *     index: the tensor that is refused; reason: "mismatch" or a key of errors.REASONS;
 *     other: index of a second tensor that has to do with it, or -1.
 * slow_call(kernel, framework, args, kwargs) -> result
 *     framework: str or None; args: tuple; kwargs: dict. */
typedef struct {
    PyObject *explain, *slow_call;
    PyObject *type_error, *value_error, *kernel_error, *memory_error; /* classes */
} dlb_kernel_hooks;
extern dlb_kernel_hooks dlb_hooks;

/* ---- kernel_python.c: errors between C and Python, the GIL ---- */

/* Take the GIL, unless this thread holds it. False: there is no interpreter any more,
 * and nothing may touch Python. */
bool dlb_enter_python(int *state);
void dlb_leave_python(int state);
/* Raise what the error says, and clear it. Always NULL. */
PyObject *dlb_raise(dlb_error *error);
/* Turn the Python exception that is set into the error; `name` is the kernel's. Needs
 * the GIL. Always -1. */
int dlb_error_catch(dlb_error *error, const char *name);
PyObject *dlb_set_kernel_hooks(PyObject *module, PyObject *args, PyObject *kwargs);

/* ---- kernel_object.c ---- */

/* A Python scalar: None, bool, int, float or str, of exactly or nearly (an int for a
 * float) the kind that `parameter` has; NULL: any. The text of a str lives as long as
 * the object. -1 with an exception. */
int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_scalar *scalar);
/* "int", "float", "bool" or "str"; DLB_NONE with an exception for anything else. */
dlb_scalar_kind dlb_parse_scalar_kind(PyObject *name);
/* A Tensor (or None) as tensor `index` of a frame, whose memory the caller keeps. */
void dlb_frame_put(dlb_frame *frame, int index, const dlb_tensor *tensor);

/* ---- signature_parse.c ---- */
dlb_signature *dlb_parse_signature(PyObject *encoded); /* free() it */
/* A tuple of steps, into `steps` (room for its length; NULL: it is only checked). */
int dlb_parse_steps(PyObject *program, int32_t name_count, dlb_step *steps);

/* ---- xla_python.c, jax_call.c ---- */
PyObject *dlb_xla_handler(PyObject *module, PyObject *platform);
PyObject *dlb_xla_call_eagerly(PyObject *module, PyObject *const *args,
                               Py_ssize_t count);
extern PyTypeObject dlb_JaxCallerType;
/* Whether a caller (or NULL) serves these arguments: JAX arrays and plain scalars. */
bool dlb_jax_serves(PyObject *caller, PyObject *const *args, Py_ssize_t count);
PyObject *dlb_jax_call(PyObject *caller, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names);

/* ---- cuda_launch_parse.c ---- */
extern PyTypeObject dlb_LaunchType; /* native.CudaLaunch */

/* ---- tensorflow_python.c ---- */
extern PyMethodDef dlb_tensorflow_functions[];

#endif /* DLBRIDGE_KERNEL_OBJECT_H_ */

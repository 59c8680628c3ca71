/* Kernels as Python objects, and their calls. */
#ifndef DLBRIDGE_CORE_CALL_CALL_H_
#define DLBRIDGE_CORE_CALL_CALL_H_

#include "kernel/python.h"

typedef struct dlb_call_plan dlb_call_plan;
typedef struct dlb_bound_call dlb_bound_call;

/* native.KernelBase. Immutable once made. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* call.c; NULL: the type's own `__call__` */
    dlb_kernel *kernel;        /* one reference */
    PyObject *arguments; /* Schema.encode_arguments(), a tuple; NULL without a schema */
    PyObject *jax; /* a JaxCaller for calls with nothing but JAX arrays, or NULL */
    dlb_call_plan *plan;   /* of call.c, NULL without a schema; freed by free() */
    dlb_bound_call *bound; /* of bind.c */
    PyObject *weak_references;
} dlb_kernel_object;

extern PyTypeObject dlb_KernelType;
static inline bool dlb_is_kernel(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_KernelType);
}

/* ---- call.c: the direct call, from Python arguments to a kernel and back in C ----
 *
 * A call is direct when all its tensors are plain ones of one framework, whose results
 * C can allocate. Everything else is declined before any side effect, and goes to the
 * `slow_call` hook with the very same arguments; that one also makes the texts of
 * errors. Only what the kernel or the checks before it refuse is raised from here. */

typedef enum {
    DLB_FAMILY_NONE, /* any, or no tensor seen yet */
    DLB_FAMILY_NUMPY,
    DLB_FAMILY_TORCH,
    DLB_FAMILY_JAX, /* inputs only */
    DLB_FAMILY_OWN, /* dlbridge.Tensor */
    DLB_FAMILY_CUPY,
    DLB_FAMILY_OTHER, /* never called directly */
} dlb_family;

/* The result, NULL with an exception, or NULL without one: declined. */
PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family wanted,
                            PyObject *const *args, Py_ssize_t count, PyObject *names);
/* The call for tensors of a family, by whichever way serves it. */
PyObject *dlb_call_as(PyObject *self, dlb_family family, const char *framework,
                      PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *dlb_kernel_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                PyObject *names);
/* Read the rows of Schema.encode_arguments(): the kernel gets the order of its
 * arguments. NULL with an exception. */
dlb_call_plan *dlb_make_call_plan(dlb_kernel *kernel, PyObject *rows);
/* A Python scalar: None, bool, int, float or str, of exactly or nearly (an int for a
 * float) the kind that `parameter` has; NULL: any. The text of a str lives as long as
 * the object. 0, DLB_DECLINED, or -1 with an exception. */
int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_scalar *scalar);

/* ---- bind.c: calls as builtin functions, one per framework ---- */
void dlb_free_bound_calls(dlb_kernel_object *self);
extern PyMethodDef dlb_call_functions[];

/* ---- jax.c ---- */
extern PyTypeObject dlb_JaxCallerType;
/* Whether a caller (or NULL) serves these arguments: JAX arrays and plain scalars. */
bool dlb_jax_serves(PyObject *caller, PyObject *const *args, Py_ssize_t count);
PyObject *dlb_jax_call(PyObject *caller, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names);

#endif /* DLBRIDGE_CORE_CALL_CALL_H_ */

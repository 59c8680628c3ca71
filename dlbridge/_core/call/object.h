/* Kernels as Python objects. */
#ifndef DLBRIDGE_CORE_CALL_OBJECT_H_
#define DLBRIDGE_CORE_CALL_OBJECT_H_

#include "kernel/python.h"
#include "tensor/tensor.h"

/* native.KernelBase. Immutable once made. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* call.c; NULL: the type's own `__call__` */
    dlb_kernel *kernel;        /* one reference */
    PyObject *arguments; /* Schema.encode_arguments(), a tuple; NULL without a schema */
    PyObject *jax; /* a JaxCaller that serves calls with nothing but JAX arrays, or NULL
                    */
    void *call;    /* what arguments.c makes of them; freed by free() */
    void *bound;   /* see bind.c */
    PyObject *weak_references;
} dlb_kernel_object;

extern PyTypeObject dlb_KernelType;
static inline bool dlb_is_kernel(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_KernelType);
}

/* A Python scalar: None, bool, int, float or str, of exactly or nearly (an int for a
 * float) the kind that `parameter` has; NULL: any. The text of a str lives as long as
 * the object. -1 with an exception. */
int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_scalar *scalar);
/* A Tensor (or None) as tensor `index` of a frame, whose memory the caller keeps. */
void dlb_frame_put(dlb_frame *frame, int index, const dlb_tensor *tensor);

/* ---- jax.c ---- */
extern PyTypeObject dlb_JaxCallerType;
/* Whether a caller (or NULL) serves these arguments: JAX arrays and plain scalars. */
bool dlb_jax_serves(PyObject *caller, PyObject *const *args, Py_ssize_t count);
PyObject *dlb_jax_call(PyObject *caller, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names);

#endif /* DLBRIDGE_CORE_CALL_OBJECT_H_ */

/* Kernels and Python: errors in both directions, the hooks, schemas. */
#ifndef DLBRIDGE_CORE_KERNEL_PYTHON_H_
#define DLBRIDGE_CORE_KERNEL_PYTHON_H_

#include "kernel/kernel.h"
#include "python/python.h"

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

/* ---- python.c ---- */
/* Raise what the error says, and clear it. Always NULL. */
PyObject *dlb_raise(dlb_error *error);
/* Turn the Python exception that is set into the error; `name` is the kernel's. Needs
 * the GIL. Always -1. */
int dlb_error_catch(dlb_error *error, const char *name);
PyObject *dlb_set_kernel_hooks(PyObject *module, PyObject *args, PyObject *kwargs);

/* ---- signature.c ---- */
dlb_signature *dlb_parse_signature(PyObject *encoded); /* free() it */
/* A tuple of steps, into `steps`, which has `room`. Returns how many, or -1. */
int dlb_parse_steps(PyObject *program, int32_t name_count, dlb_step *steps,
                    int32_t room);

#endif /* DLBRIDGE_CORE_KERNEL_PYTHON_H_ */

/* Kernels as Python objects, and their calls. */
#ifndef DLBRIDGE_CORE_CALL_CALL_H_
#define DLBRIDGE_CORE_CALL_CALL_H_

#include "kernel/kernel.h"
#include "peers/borrowing.h"

typedef struct dlb_call_plan dlb_call_plan;

/* native.KernelBase. Immutable once made, but for `jax` and the caches. */
typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall; /* call.c; NULL: the type's own `__call__` */
    dlb_kernel *kernel;        /* one reference */
    PyObject *arguments; /* Schema.encode_arguments(), a tuple; NULL without a schema */
    /* A JaxCaller for calls with nothing but JAX arrays, or NULL; set once. */
    _Atomic(PyObject *) jax;
    /* Of a kernel with lists of tensors: see lists.c; NULL: it has none. Set once. */
    PyObject *list_places, *list_kernels;
    /* Of a kernel whose results are numbers: the kernel that has tensors in their
     * place, and for each result whether it is one. A tuple; NULL: it has none. Set
     * once. */
    _Atomic(PyObject *) numbers;
    dlb_call_plan *plan; /* of call.c, with the call-site caches */
    PyObject *weak_references;
} dlb_kernel_object;

extern PyTypeObject dlb_KernelType, dlb_BoundCallType;
extern PyMethodDef dlb_call_functions[];
static inline bool dlb_is_kernel(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_KernelType);
}

/* ---- call.c: the direct call, from Python arguments to a kernel and back in C ----
 *
 * A call is direct when all its tensors are plain ones of one framework, whose results
 * C can allocate. Everything else is declined before any side effect, and goes to the
 * `slow_call` hook with the very same arguments; that one also makes the texts of
 * errors. Only what the kernel or the checks before it refuse is raised from here. */

/* The result, NULL with an exception, or NULL without one: declined. `family` is what
 * was called for, and then that of all arguments, if they are of one. */
PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family *family,
                            PyObject *const *args, Py_ssize_t count, PyObject *names);
/* call_giving(kernel, give, *arrays): the direct call with arrays of JAX, in the thread
 * of the caller; give(Tensor) makes a result of new memory that nobody else has.
 * NotImplemented: declined. */
PyObject *dlb_call_giving(PyObject *module, PyObject *const *args, Py_ssize_t count);
/* The call for each of `size` >= 1 elements of a batch of torch tensors in the memory
 * of the CPU. The arguments, `out` among them, are those of the first element; `steps`
 * says, for each tensor (results last), how many bytes further the next one lies. 0,
 * DLB_DECLINED, or -1 with an exception. */
int dlb_call_batch(const dlb_kernel_object *self, const int64_t *steps,
                   Py_ssize_t step_count, Py_ssize_t size, PyObject *const *args,
                   Py_ssize_t count, PyObject *names);
/* The call for tensors of a family, by whichever way serves it. */
PyObject *dlb_call_as(PyObject *self, dlb_family family, PyObject *framework,
                      PyObject *const *args, Py_ssize_t count, PyObject *names);
PyObject *dlb_kernel_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                PyObject *names);
/* The arguments of a vectorcall as a tuple and a dict, new references; -1 with an
 * exception. */
int dlb_pack_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **positional, PyObject **keywords);
/* Read the rows of Schema.encode_arguments(), NULL without a schema: the kernel gets
 * the order of its arguments. NULL with an exception. */
dlb_call_plan *dlb_make_call_plan(dlb_kernel *kernel, PyObject *rows);
void dlb_free_call_plan(dlb_call_plan *plan);
/* A Python scalar: None, bool, int, float or str, of exactly or nearly (an int for a
 * float) the kind that `parameter` has; NULL: any. The text of a str lives as long as
 * the object, the numbers of a list are in the frame. 0, DLB_DECLINED, or -1 with an
 * exception. */
int dlb_parse_scalar(PyObject *object, const dlb_scalar_parameter *parameter,
                     dlb_frame *frame, dlb_scalar *scalar);

/* ---- lists.c: calls with lists of tensors ---- */

/* The call of the kernel that serves lists of these lengths, where there is one by now
 * and the call is direct. NULL without an exception: declined. */
PyObject *dlb_call_lists(const dlb_kernel_object *self, dlb_family family,
                         PyObject *const *args, Py_ssize_t count, PyObject *names);
bool dlb_has_out(PyObject *names); /* of a vectorcall */

/* ---- jax.c ---- */
extern PyTypeObject dlb_JaxCallerType;
/* Whether a caller (or NULL) serves these arguments: JAX arrays and plain scalars. */
bool dlb_jax_serves(PyObject *caller, PyObject *const *args, Py_ssize_t count);
PyObject *dlb_jax_call(PyObject *caller, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names);

/* ---- borrow.c: borrowing of any framework's tensors, and the call-site cache ---- */

/* All return 0, DLB_DECLINED, or -1 with an exception. */

/* `x` as tensor `index`; the first one decides on the family. */
int dlb_borrow(dlb_call *call, int index, PyObject *x);
/* Whether tensor `index` may be written, or the slow path must say why not. */
int dlb_borrow_to_write(const dlb_call *call, int index);
void dlb_give_back(dlb_call *call);

/* The family of a framework by its name, a str; NULL: NONE. One without a fast path
 * here is OTHER. */
dlb_family dlb_family_of_framework(PyObject *framework);
/* A new tensor of a family; NULL, perhaps with an exception: the slow path must make
 * it. */
PyObject *dlb_allocate_result(const dlb_call *call, int32_t ndim, const int64_t *shape,
                              DLDataType dtype, DLDevice device);
/* Item `index` of the `count` that `out` should have; borrowed, or NULL. */
PyObject *dlb_out_item(PyObject *out, int32_t count, int index);
void dlb_drop_results(dlb_call *call);

/* Fill the frame's tensors, results among them, and call->target if all are as in the
 * cache. `tensors` are the inputs: arrays of NumPy, or what was borrowed. False:
 * nothing happened, or an interrupt is set. */
bool dlb_use_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                   dlb_call *call, PyObject *const *tensors, PyObject *out);
/* The same for a simple cache and as many arrays; `room`: DLB_CALL_DIMS numbers. False:
 * they are not as in the cache. */
bool dlb_use_array_cache(const dlb_kernel *kernel, const dlb_call_cache *cache,
                         dlb_frame *frame, PyObject *const *arrays, int64_t *room);
/* After a call that passed all checks. False: such calls are not cached. */
bool dlb_fill_cache(const dlb_kernel *kernel, dlb_call_cache *cache,
                    const dlb_call *call, uint32_t written);

/* Whether `a` is as `b`, which `call` has filled: of the same shapes, dtypes and sizes.
 */
bool dlb_is_same_cache(const dlb_kernel *kernel, const dlb_call_cache *a,
                       const dlb_call_cache *b, const dlb_call *call);

#endif /* DLBRIDGE_CORE_CALL_CALL_H_ */

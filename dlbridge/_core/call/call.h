/* Kernels as Python objects, and their calls. */
#ifndef DLBRIDGE_CORE_CALL_CALL_H_
#define DLBRIDGE_CORE_CALL_CALL_H_

#include "kernel/kernel.h"
#include "tensor/tensor.h"
#include "torch/torch.h"

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

typedef enum {
    DLB_FAMILY_NONE, /* any, or no tensor seen yet */
    DLB_FAMILY_NUMPY,
    DLB_FAMILY_TORCH,
    DLB_FAMILY_JAX, /* inputs only */
    DLB_FAMILY_OWN, /* dlbridge.Tensor */
    DLB_FAMILY_CUPY,
    DLB_FAMILY_OTHER, /* never called directly */
} dlb_family;

/* The result, NULL with an exception, or NULL without one: declined. `family` is what
 * was called for, and then that of all arguments, if they are of one. */
PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family *family,
                            PyObject *const *args, Py_ssize_t count, PyObject *names);
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

/* ---- jax.c ---- */
extern PyTypeObject dlb_JaxCallerType;
/* Whether a caller (or NULL) serves these arguments: JAX arrays and plain scalars. */
bool dlb_jax_serves(PyObject *caller, PyObject *const *args, Py_ssize_t count);
PyObject *dlb_jax_call(PyObject *caller, PyObject *const *args, Py_ssize_t positional,
                       PyObject *names);

/* ---- borrow.c: objects of the frameworks as tensors of one call ----
 *
 * Their memory is borrowed for as long as the call lasts. */

#define DLB_CALL_DIMS 256 /* strides of all tensors that need room for them */
#define DLB_EACH_DIMS 16  /* the same for each tensor of a large kernel */

_Static_assert(DLB_CALL_DIMS >= DLB_MAX_NDIM, "the strides of any rank find room");

/* Memory that must be given back after the call. */
typedef struct {
    bool is_buffer; /* of the buffer protocol; else of the core */
    union {
        Py_buffer protocol;
        dlb_buffer *core;
    } memory;
} dlb_borrowed;

/* Lives on the stack of one call. */
typedef struct {
    dlb_frame frame;
    dlb_family family, wanted; /* wanted: NONE for any */
    bool is_understood;        /* all arguments are of the family */
    bool holds_gil;            /* while the kernel runs */
    dlb_torch_thread thread;   /* valid in the torch family */
    const dlb_target *target;  /* of a cached call; NULL: to be checked and found */
    PyObject **objects;        /* of frame.tensors; borrowed, or NULL */
    int32_t dim_count, borrowed_count;
    int32_t made_count; /* new results, of which the call owns one reference */
    int32_t dim_room;   /* of `dims` and of `kept_dims` */
    int64_t *dims;
    /* Shapes and strides lie in the objects. As soon as other Python code runs, an
     * array may get a new shape: the kernel must not see it, nor memory that is free.
     * So it is called with copies. */
    int64_t *kept_dims;
    dlb_borrowed *borrowed;
    int16_t order[DLB_MAX_TENSORS + DLB_MAX_SCALARS];
    void *large; /* where the arrays lie that the pointers above have; NULL: here */
    PyObject **sorted; /* there: room for all tensors, and for all arguments */
    PyObject *own_objects[DLB_MAX_TENSORS];
    int64_t own_dims[DLB_CALL_DIMS], own_kept_dims[DLB_CALL_DIMS];
    dlb_borrowed own_borrowed[DLB_MAX_TENSORS];
} dlb_call;

/* All return 0, DLB_DECLINED, or -1 with an exception. */

/* `x` as tensor `index`; the first one decides on the family. */
int dlb_borrow(dlb_call *call, int index, PyObject *x);
/* Whether tensor `index` may be written, or the slow path must say why not. */
int dlb_borrow_to_write(const dlb_call *call, int index);
/* A Tensor, or NULL for one that is left out, whose memory the caller keeps. */
void dlb_borrow_tensor(dlb_frame *frame, int index, const dlb_tensor *tensor);
void dlb_give_back(dlb_call *call);

/* The family of a framework by its name, a str; NULL: NONE. One without a fast path
 * here is OTHER. */
dlb_family dlb_family_of_framework(PyObject *framework);
/* A new tensor of a family; NULL, perhaps with an exception: the slow path must make
 * it. */
PyObject *dlb_allocate_result(dlb_family family, int32_t ndim, const int64_t *shape,
                              DLDataType dtype, DLDevice device);
/* Item `index` of the `count` that `out` should have; borrowed, or NULL. */
PyObject *dlb_out_item(PyObject *out, int32_t count, int index);
void dlb_drop_results(dlb_call *call);

/* Copy the shape and strides of a tensor into `room`. False: it is too small. */
bool dlb_copy_dims(DLTensor *tensor, int64_t *room, int64_t size);

/* ---- the call-site cache ----
 *
 * A call like one before: contiguous tensors of the same shapes and dtypes, and the
 * same scalars where they are dimensions. The signature then holds again, so only
 * the memory is looked at: where it is, that it may be written, that nothing
 * overlaps. Whatever is different takes the general path, and is cached. */

#define DLB_CACHED_TENSORS 8
#define DLB_CACHED_NDIM 4

typedef struct {
    DLTensor dl;     /* as it was; of each call are its data, and copies of the dims */
    uint64_t nbytes; /* at least 1 */
    const void *descr; /* NumPy's own for the dtype, never freed; NULL: no array */
    int needed;        /* of NumPy's flags */
    int64_t shape[DLB_CACHED_NDIM], strides[DLB_CACHED_NDIM]; /* row-major */
} dlb_cached_tensor;

typedef struct dlb_call_cache {
    struct dlb_call_cache *before; /* see call.c: put_cache */
    dlb_family family;             /* NONE: the cache is empty */
    int32_t input_count, result_count;
    bool holds_gil;   /* see dlb_call */
    bool is_simple;   /* NumPy arrays alone, in their order, and no new results */
    uint32_t written; /* bits of inputs and results */
    DLDevice device;  /* of them all */
    const dlb_target *target;
    int64_t sizes[DLB_MAX_SCALARS]; /* of scalars: those that are dimensions or dtypes
                                       are compared */
    dlb_cached_tensor tensors[DLB_CACHED_TENSORS];
} dlb_call_cache;

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

/* Called by the adapters of frameworks. */
PyObject *dlb_jax_direct_open(PyObject *module, PyObject *type);
PyObject *dlb_cupy_open(PyObject *module, PyObject *args);

#endif /* DLBRIDGE_CORE_CALL_CALL_H_ */

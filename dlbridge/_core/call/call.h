/* The direct call: from Python arguments to a kernel and back without Python code.
 *
 * A call is direct when all its tensors are plain ones of one framework, whose results
 * C can allocate. Everything else is DLB_DECLINED before any side effect, and goes to
 * the `slow_call` hook with the very same arguments; that one also makes the texts of
 * errors. Only what the kernel or the checks before it refuse is raised from here. */
#ifndef DLBRIDGE_CORE_CALL_CALL_H_
#define DLBRIDGE_CORE_CALL_CALL_H_

#include "call/object.h"
#include "torch/torch.h"

#define DLB_CALL_DIMS 256 /* strides of all tensors that need room for them */

typedef enum {
    DLB_FAMILY_NONE, /* no tensor seen yet */
    DLB_FAMILY_NUMPY,
    DLB_FAMILY_TORCH,
    DLB_FAMILY_JAX, /* inputs only */
    DLB_FAMILY_OWN, /* dlbridge.Tensor */
    DLB_FAMILY_CUPY,
    DLB_FAMILY_OTHER, /* never called directly */
} dlb_family;

/* What must be given back after the call. */
typedef struct {
    bool is_buffer; /* of the buffer protocol; else of the core */
    union {
        Py_buffer protocol;
        dlb_buffer *core;
    } memory;
} dlb_loan;

/* Lives on the stack of one call. */
typedef struct {
    dlb_frame frame;
    dlb_family family, wanted;          /* wanted: NONE for any */
    bool is_understood;                 /* all arguments are of the family */
    dlb_torch_thread thread;            /* valid in the torch family */
    const dlb_target *target;           /* recalled; NULL: to be checked and found */
    PyObject *objects[DLB_MAX_TENSORS]; /* of frame.tensors; borrowed, or NULL */
    int8_t order[DLB_MAX_TENSORS + DLB_MAX_SCALARS];
    uintptr_t addresses; /* of all tensors of a recalled call, or-ed */
    int32_t dim_count, loan_count;
    int32_t made_count; /* new results, of which the call owns one reference */
    int64_t dims[DLB_CALL_DIMS];
    int64_t kept_dims[DLB_CALL_DIMS]; /* shapes and strides while others may run */
    dlb_loan loans[DLB_MAX_TENSORS];
} dlb_call;

static inline void dlb_call_start(dlb_call *call, dlb_family wanted) {
    dlb_frame_start(&call->frame, NULL);
    call->family = DLB_FAMILY_NONE;
    call->wanted = wanted;
    call->is_understood = false;
    call->target = NULL;
    call->dim_count = call->loan_count = call->made_count = 0;
}

/* ---- borrow.c: objects of the frameworks as tensors of the frame ----
 * All return 0, DLB_DECLINED, or -1 with an exception. */

/* `x` as tensor `index`; the first one decides on the family. */
int dlb_borrow(dlb_call *call, int index, PyObject *x);
/* Whether tensor `index` may be written, or the slow path must say why not. */
int dlb_borrow_to_write(const dlb_call *call, int index);
void dlb_call_give_back(dlb_call *call);
PyObject *dlb_jax_direct_open(PyObject *module, PyObject *type);

/* cupy.c */
PyObject *dlb_cupy_open(PyObject *module, PyObject *args);
bool dlb_is_cupy(PyObject *x);
/* The first one of a call sets the frame's stream. */
int dlb_borrow_cupy(dlb_call *call, int index, PyObject *x);
PyObject *dlb_cupy_allocate(int32_t ndim, const int64_t *shape, DLDataType dtype,
                            DLDevice device);

/* ---- recall.c: what the last call of a kernel was like ---- */

#define DLB_RECALL_TENSORS 8
#define DLB_RECALL_NDIM 4

typedef struct {
    DLDataType dtype;
    int32_t ndim;
    uint64_t nbytes;   /* at least 1 */
    const void *descr; /* NumPy's own for the dtype, which lives for ever */
    int64_t shape[DLB_RECALL_NDIM];
} dlb_remembered;

typedef struct {
    dlb_family family; /* NONE: nothing is remembered */
    int32_t input_count, result_count;
    uint32_t written; /* bits of inputs and results */
    DLDevice device;  /* of them all */
    const dlb_target *target;
    int64_t sizes[DLB_MAX_SCALARS]; /* of the scalars that are dimensions */
    dlb_remembered tensors[DLB_RECALL_TENSORS];
} dlb_memory;

/* Fill the frame's tensors, results among them, if all are as they were. False: nothing
 * happened. `tensors` are the inputs. */
bool dlb_recall(const dlb_kernel *kernel, const dlb_memory *memory, dlb_call *call,
                PyObject *const *tensors, PyObject *out);
void dlb_remember(const dlb_kernel *kernel, dlb_memory *memory, const dlb_call *call,
                  uint32_t written);
/* numpy.c */
bool dlb_recall_numpy(dlb_call *call, const dlb_remembered *known, int32_t first,
                      int32_t count, uint32_t written);
/* borrow.c: only of calls that have no results and write nothing */
bool dlb_recall_jax(dlb_call *call, const dlb_remembered *known, int32_t count);
bool dlb_remember_jax(const dlb_call *call, int32_t index, dlb_remembered *known);
bool dlb_remember_numpy(PyObject *x, dlb_remembered *known);

/* ---- arguments.c: which argument is which ---- */

typedef struct dlb_call_plan dlb_call_plan; /* dlb_kernel_object.call */
int dlb_call_plan_make(dlb_kernel_object *self);
/* Fill the frame's inputs and scalars: 0, DLB_DECLINED, or -1 with an exception. `out`
 * is the argument of that name, borrowed, or NULL. If the call could be recalled, its
 * results are there, too, and call->target is set. */
int dlb_call_arguments(const dlb_kernel_object *self, dlb_call *call,
                       PyObject *const *args, Py_ssize_t count, PyObject *names,
                       PyObject **out);
void dlb_call_remember(const dlb_kernel_object *self, const dlb_call *call,
                       uint32_t written);

/* ---- results.c ---- */

/* The results, new ones or those of `out` (NULL: none given), as tensors of the frame
 * after its inputs. New ones are owned by the caller. */
int dlb_call_results(const dlb_kernel *kernel, dlb_call *call, PyObject *out);
/* One new tensor; NULL, perhaps with an exception: the slow path must make it. */
PyObject *dlb_call_allocate(dlb_family family, int32_t ndim, const int64_t *shape,
                            DLDataType dtype, DLDevice device);
/* Item `index` of the `count` that `out` should have; borrowed, or NULL. */
PyObject *dlb_call_out_item(PyObject *out, int32_t count, int index);
/* What the call returns; takes over the new results. */
PyObject *dlb_call_return(dlb_call *call, PyObject *out);
void dlb_call_drop_results(dlb_call *call);

/* ---- call.c ---- */

/* The result, NULL with an exception, or NULL without one: declined. */
PyObject *dlb_call_directly(const dlb_kernel_object *self, dlb_family wanted,
                            PyObject *const *args, Py_ssize_t count, PyObject *names);

PyObject *dlb_kernel_vectorcall(PyObject *self, PyObject *const *args, size_t flags,
                                PyObject *names);
PyObject *dlb_seal_kernel_type(PyObject *module, PyObject *type);

/* ---- bind.c ---- */

/* The call of one framework, or of any, as a builtin function whose `__self__` is the
 * kernel. */
PyObject *dlb_bind_kernel(PyObject *module, PyObject *args);
void dlb_bound_free(dlb_kernel_object *self);
PyObject *dlb_call_as(PyObject *self, dlb_family family, const char *framework,
                      PyObject *const *args, Py_ssize_t count, PyObject *names);

extern PyMethodDef dlb_call_functions[];

#endif /* DLBRIDGE_CORE_CALL_CALL_H_ */

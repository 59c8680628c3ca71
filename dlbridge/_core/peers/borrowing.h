/* Tensors of frameworks as the arguments and results of one call of a kernel.
 *
 * Their memory is borrowed for as long as the call lasts. A `dlb_lender` is all that is
 * special to a framework in that; call/borrow.c does what is the same for all. */
#ifndef DLBRIDGE_CORE_PEERS_BORROWING_H_
#define DLBRIDGE_CORE_PEERS_BORROWING_H_

#include "kernel/kernel.h"
#include "peers/peers.h"
#include "torch/torch.h"

#include <string.h>

typedef enum {
    DLB_FAMILY_NONE, /* any, or no tensor seen yet */
    DLB_FAMILY_NUMPY,
    DLB_FAMILY_TORCH,
    DLB_FAMILY_JAX, /* inputs only */
    DLB_FAMILY_OWN, /* dlbridge.Tensor */
    DLB_FAMILY_CUPY,
    DLB_FAMILY_OTHER, /* never called directly */
} dlb_family;

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
    bool casts;                /* torch.autocast may cast arguments */
    dlb_torch_thread thread;   /* valid in the torch family */
    const dlb_target *target;  /* of a cached call; NULL: to be checked and found */
    PyObject *give; /* makes the results of new Tensors; NULL: they are of the family */
    PyObject **objects; /* of frame.tensors; borrowed, or NULL */
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

static inline bool dlb_is_same_device(DLDevice a, DLDevice b) {
    return a.device_type == b.device_type && a.device_id == b.device_id;
}

/* Whether dtype, shape and strides are as they were. */
static inline bool dlb_is_as_cached(const dlb_cached_tensor *cached,
                                    const DLTensor *tensor) {
    if (tensor->ndim != cached->dl.ndim ||
        dlb_dtype_key(tensor->dtype) != dlb_dtype_key(cached->dl.dtype))
        return false;
    for (int32_t i = 0; i < cached->dl.ndim; i++)
        if (tensor->shape[i] != cached->shape[i] ||
            (tensor->strides[i] != cached->strides[i] && cached->shape[i] != 1))
            return false;
    return true;
}

/* Dims of a cached tensor in `room`, of DLB_ROOM numbers for each tensor: a fixed size
 * is copied in a few instructions. */
#define DLB_ROOM (2 * (size_t)DLB_CACHED_NDIM)

static inline void dlb_use_dims(DLTensor *tensor, const dlb_cached_tensor *cached,
                                int64_t *room) {
    memcpy(room, cached->shape, sizeof cached->shape + sizeof cached->strides);
    tensor->shape = room;
    tensor->strides = room + DLB_CACHED_NDIM;
}

/* ---- what is special to a framework ---- */

typedef struct {
    const char *framework, *source; /* its name; its tensors in texts */
    bool (*owns)(PyObject *x);      /* whether x is one of its tensors, by its type */
    /* Before the first tensor of a call, which is x: by what all are judged, and
     * whether such a call may be direct now. 0, DLB_DECLINED, or -1. NULL: it may. */
    int (*begin)(dlb_call *call, PyObject *x);
    /* `x` as tensor `index`: 0, DLB_DECLINED, or -1 with an exception. */
    int (*borrow)(dlb_call *call, int index, PyObject *x);
    /* Whether to borrow runs Python code. NULL: it does not. */
    bool (*runs_python)(const dlb_call *call);
    /* Whether tensor `index` may be written. NULL: unless it is read-only. */
    bool (*may_write)(const dlb_call *call, int index);
    /* A new tensor; NULL, perhaps with an exception: the slow path must make it. NULL:
     * C can make none. */
    PyObject *(*allocate)(int32_t ndim, const int64_t *shape, DLDataType dtype,
                          DLDevice device);
} dlb_lender;

extern const dlb_lender dlb_numpy_lender, dlb_torch_lender, dlb_jax_lender,
    dlb_own_lender, dlb_cupy_lender;

/* Objects `first` and following, as NumPy arrays like those in the cache, from `cached`
 * on; they need not have been borrowed. */
bool dlb_match_numpy(dlb_call *call, const dlb_cached_tensor *cached, int32_t first,
                     int32_t count);
/* Keep in the cache by what an array's dtype is known; false: by nothing. */
bool dlb_cache_numpy(PyObject *x, dlb_cached_tensor *cached);
/* NumPy arrays as those of a cache without results; `room`: DLB_ROOM numbers each. */
bool dlb_match_arrays(const dlb_call_cache *cache, dlb_frame *frame,
                      PyObject *const *arrays, int64_t *room);
/* A Tensor, or NULL for one that is left out, whose memory the caller keeps. */
void dlb_borrow_tensor(dlb_frame *frame, int index, const dlb_tensor *tensor);
/* Copy the shape and strides of a tensor into `room`. False: it is too small. */
static inline bool dlb_copy_dims(DLTensor *tensor, int64_t *room, int64_t size) {
    int32_t ndim = tensor->ndim;
    if (2 * ndim > size)
        return false;
    for (int32_t i = 0; i < ndim; i++) {
        room[i] = tensor->shape[i];
        room[ndim + i] = tensor->strides[i];
    }
    tensor->shape = room;
    tensor->strides = room + ndim;
    return true;
}

/* Called by the adapters of frameworks. */
PyObject *dlb_jax_direct_open(PyObject *module, PyObject *type);
PyObject *dlb_cupy_open(PyObject *module, PyObject *args);

#endif /* DLBRIDGE_CORE_PEERS_BORROWING_H_ */

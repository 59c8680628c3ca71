/* The view, the Tensor and its methods, memory for new ones, managed tensors and
 * capsules in and out. */
#ifndef DLBRIDGE_CORE_TENSOR_TENSOR_H_
#define DLBRIDGE_CORE_TENSOR_TENSOR_H_

#include "cuda/cuda.h"
#include "python/python.h"

#include <stddef.h>
#include <string.h>

typedef struct {
    DLTensor dl; /* byte_offset 0, strides set; shape and strides live in `scratch` or
                    the buffer */
    uint64_t flags;
    DLPackVersion version;
    dlb_buffer
        *buffer; /* one reference, passed on or dropped by whoever holds the view */
    dlb_stream_id
        borrowed; /* to a consumer's stream, by dlb_view_lend; stream 0: to none */
    int64_t scratch[DLB_MAX_NDIM]; /* for the strides; a shape in it stands behind them,
                                      as others may write new strides to its start */
} dlb_view;

/* Set what describes compact memory of the CPU, and the other fields to 0; not the
 * scratch, as that takes longer than all else. */
static inline void dlb_view_set_memory(dlb_view *view, void *data, DLDataType dtype,
                                       int32_t ndim, const int64_t *shape) {
    memset(view, 0, offsetof(dlb_view, scratch));
    view->dl.data = data;
    view->dl.device = (DLDevice){kDLCPU, 0};
    view->dl.ndim = ndim;
    view->dl.dtype = dtype;
    view->dl.shape = (int64_t *)shape;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
}

typedef struct {
    PyObject_VAR_HEAD /* Py_SIZE is 2 * ndim */
        DLTensor dl;  /* shape and strides point into dims */
    uint64_t flags;
    DLPackVersion version; /* of the producer's struct; ours for memory of our own */
    dlb_buffer *buffer;
    PyObject *weak_references;
    int64_t dims[];
} dlb_tensor;

extern PyTypeObject dlb_TensorType, dlb_BufferType, dlb_RecordingType;

/* ---- tensor.c ---- */
static inline bool dlb_is_tensor(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_TensorType);
}
/* The object, borrowed; NULL with a TypeError where it is none. */
PyObject *dlb_dtype_object(DLDataType dtype); /* its DType */
dlb_tensor *dlb_expect_tensor(PyObject *x, const char *call);
PyObject *dlb_tensor_new(PyTypeObject *type,
                         dlb_view *view); /* steals the view's reference */
/* Make a type written in Python, without room of its own, as light as TensorBase. */
void dlb_tensor_adopt(PyTypeObject *type);
void dlb_tensor_view(dlb_tensor *tensor, dlb_view *view); /* retains the buffer */
/* "allocator", "managed", "object" or "loan". Without the GIL. */
const char *dlb_kind_of_buffer(const dlb_buffer *buffer);
int dlb_buffer_format(const char *format, Py_ssize_t itemsize, DLDataType *dtype);

/* ---- views.c: the ordinary cases of tensor/views.py, which does all others ---- */
PyObject *dlb_tensor_item(PyObject *self, PyObject *key);
PyObject *dlb_tensor_reshape(PyObject *self, PyObject *const *args, Py_ssize_t count,
                             PyObject *names);

/* ---- capsule.c ---- */
/* A deleter that adds one to the first 8 bytes of the managed tensor, and frees
 * nothing. */
void dlb_count_deletion(void *managed);
/* Take ownership of a managed tensor: whatever happens, its deleter is called exactly
 * once. On success the view owns it. On failure it was released; the reason is
 * returned. */
const char *dlb_take_managed(DLManagedTensorVersioned *managed, dlb_view *view);
const char *dlb_take_legacy(DLManagedTensor *managed, dlb_view *view);
/* Like dlb_take_managed, for a view whose tensor is already set; `buffer` keeps its
 * memory, and the reference is stolen even on failure. */
const char *dlb_take_held(dlb_buffer *buffer, dlb_view *view);
/* A managed tensor of ours over the view's tensor; steals the view's buffer reference
 * even on failure (NULL, no Python error set: out of memory). */
DLManagedTensorVersioned *dlb_export_managed(dlb_view *view, uint64_t flags);
DLManagedTensor *dlb_export_legacy(dlb_view *view);
/* Keep something else until the deleter has run; `context` is the manager_ctx of an
 * export of ours. Steals the reference. */
void dlb_export_keep(void *context, dlb_buffer *kept);

/* Lend the view's memory to a consumer's stream before it is exported; the
 * export's deleter takes it back. Nothing happens to memory of other devices. Returns 1
 * as dlb_access_lend does. On failure the view is as it was. */
int dlb_view_lend(dlb_view *view, dlb_stream to, dlb_stream worker, bool may_call);

PyObject *dlb_capsule_of_view(dlb_view *view, bool versioned, uint64_t flags);
int dlb_take_capsule(PyObject *capsule, dlb_view *view, const char *call);
PyObject *dlb_tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names);
PyObject *dlb_tensor_capsule(PyObject *self, PyObject *args, PyObject *kwargs);

/* ---- ledger.c ---- */
void dlb_ledger_start(void);

/* ---- memory.c ---- */
bool dlb_can_move(DLDevice to, DLDevice from);
/* dlb_copy of the CPU's memory by a thread that has the GIL, which others may take
 * meanwhile, unless the copy is over before they could start. */
void dlb_copy_on_host(const DLTensor *to, uint64_t to_flags, const DLTensor *from,
                      uint64_t from_flags);
/* Whether a framework may be asked for the copy, since only that reaches the memory. */
bool dlb_may_ask(DLDevice to, DLDevice from);
/* Make the view one of new CPU memory with the same elements, compact and writable. It
 * gets a reference to that; the one to the buffer that it had, in CPU memory, stays the
 * caller's, and its shape may still lie there. */
int dlb_copy_view(dlb_view *view, const char *call);
/* The same with 32-bit numbers in the place of 64-bit ones, as `dlb_narrower` has them.
 * DLB_DECLINED: a value would be lost, and the view is as it was. */
int dlb_narrow_view(dlb_view *view, const char *call);
/* A compact Tensor in new memory, its dimensions in this order ('C', 'F', 'K'); by the
 * framework that reaches the memory, where the core does not. */
PyObject *dlb_copied(dlb_tensor *from, DLDevice device, char order, uint64_t flags,
                     const char *call);
PyObject *dlb_tensor_copy(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *dlb_tensor_to(PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names);
/* Anything that Device takes; names are read once. */
int dlb_read_device(PyObject *given, DLDevice *device, const char *call);
bool dlb_is_device(PyObject *x); /* a dlbridge.Device */
/* New compact memory for a view that has a shape, dtype, flags and device; on the CPU
 * -1 comes without an exception. */
int dlb_cuda_fill_view(dlb_view *view, const char *call);
/* Set the strides of a compact tensor, in the view itself. */
void dlb_view_set_row_major(dlb_view *view);
int dlb_cpu_fill_view(dlb_view *view, size_t alignment, bool zero);
PyObject *dlb_empty(PyObject *module, PyObject *const *args, Py_ssize_t count,
                    PyObject *names);
PyObject *dlb_zeros(PyObject *module, PyObject *const *args, Py_ssize_t count,
                    PyObject *names);
PyObject *dlb_ones(PyObject *module, PyObject *const *args, Py_ssize_t count,
                   PyObject *names);
PyObject *dlb_full(PyObject *module, PyObject *const *args, Py_ssize_t count,
                   PyObject *names);
extern PyMethodDef dlb_memory_functions[];

/* ---- streams.c ---- */
/* dlb_view_lend under the GIL, which is released for the driver; -1 with an exception.
 */
PyObject *dlb_stream_number(uintptr_t stream);
int dlb_lend_to(dlb_view *view, dlb_stream to, const char *call);
int dlb_lend_to_worker(dlb_view *view, dlb_stream to, dlb_stream worker,
                       const char *call);
/* A stream as `__dlpack__` and its like take it: the number that the standard gives it.
 */
int dlb_parse_stream(PyObject *stream, DLDevice device, uintptr_t *out,
                     const char *call);
extern PyMethodDef dlb_cuda_functions[];
/* Have the main thread collect. On any thread, without the GIL. */
void dlb_cuda_collect_soon(void);

#endif /* DLBRIDGE_CORE_TENSOR_TENSOR_H_ */

/* What the files about torch know of each other: no torch headers, one binary for many
 * versions. Every address here was found by name or by probing, and tried on known
 * tensors before anything relies on it. */
#ifndef DLBRIDGE_CORE_TORCH_TORCH_H_
#define DLBRIDGE_CORE_TORCH_TORCH_H_

#include "python/python.h"

/* ---- tensor.c ---- */
/* Where the at::Tensor (one pointer) lies in a torch.Tensor; 0: not known. */
extern Py_ssize_t dlb_torch_word;

static inline const void *dlb_torch_handle(PyObject *tensor) {
    return (const char *)tensor + dlb_torch_word;
}
static inline const char *dlb_torch_impl(PyObject *tensor) {
    return *(const char *const *)dlb_torch_handle(tensor);
}

PyObject *dlb_torch_guard_open(PyObject *module, PyObject *args);
PyObject *dlb_torch_guard_allows(PyObject *module, PyObject *tensor);
bool dlb_torch_is_plain(PyObject *tensor);
/* Not known to reach beyond its storage. */
bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl);
bool dlb_torch_is_byte_type(
    PyObject *tensor); /* int8 or uint8, not an odd width shown as such */

/* ---- guard.c: may a kernel be called with these tensors, behind the back of
 * torch's dispatcher? ---- */

/* What the calling thread has switched on. Only in the first two does the dispatcher do
 * nothing but call the kernel of the CPU. */
typedef enum {
    DLB_TORCH_DEFAULT,
    DLB_TORCH_INFERENCE, /* torch.inference_mode */
    DLB_TORCH_ODD,       /* a mode, a transform, autocast, a profiler, tracing, … */
} dlb_torch_thread;

dlb_torch_thread dlb_torch_thread_state(void);
/* torch.Tensor or torch.nn.Parameter, no other subclass. */
bool dlb_torch_is_exact(PyObject *x);
/* A dense tensor of the CPU or, once that was tried on one, of CUDA, whose memory is
 * its values, that needs no gradient now. `written`: one that may be written in this
 * state, too. Trying runs Python. */
bool dlb_torch_is_ordinary(PyObject *tensor, dlb_torch_thread state, bool written);
/* One of CUDA, of those that are ordinary. */
bool dlb_torch_is_cuda(const char *impl);
/* Whether the storage still reaches as far as the tensor does; of ordinary ones only.
 */
bool dlb_torch_has_memory(PyObject *tensor, const DLTensor *dl);
void dlb_torch_bump_version(PyObject *tensor);
/* The dispatch keys of a plain tensor of the CPU or of CUDA, which no lazy one has. */
bool dlb_torch_has_plain_keys(const char *impl);

PyObject *dlb_torch_direct_open(PyObject *module, PyObject *args);
PyObject *dlb_torch_direct_learn(PyObject *module, PyObject *sample);
PyObject *dlb_torch_direct_allows(PyObject *module, PyObject *args);
PyObject *dlb_torch_direct_cuda(PyObject *module, PyObject *args);
PyObject *dlb_torch_direct_close(PyObject *module, PyObject *unused);

/* ---- memory.c ---- */

PyObject *dlb_torch_memory_open(PyObject *module, PyObject *args);
PyObject *dlb_torch_memory_close(PyObject *module, PyObject *args);
/* The tensor as it lies in memory, which stays torch's: 0, or DLB_DECLINED. */
int dlb_torch_borrow(PyObject *tensor, DLTensor *lent);
PyObject *dlb_torch_borrow_call(PyObject *module, PyObject *tensor);
/* A new tensor as torch.empty makes it. NULL without an exception: ask torch.empty. */
PyObject *dlb_torch_allocate(DLDevice device, int32_t ndim, const int64_t *shape,
                             DLDataType dtype);
/* The calling thread's current stream on a CUDA device, as a dlb_stream; 0: unknown. */
uintptr_t dlb_torch_stream(int32_t device);
PyObject *dlb_torch_stream_open(PyObject *module, PyObject *path);
PyObject *dlb_torch_stream_call(PyObject *module, PyObject *device);
PyObject *dlb_torch_allocate_call(PyObject *module, PyObject *args);

#endif /* DLBRIDGE_CORE_TORCH_TORCH_H_ */

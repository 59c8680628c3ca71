/* torch.Tensors without torch's headers: what may be done with one, and its memory. */
#ifndef DLBRIDGE_CORE_TORCH_TORCH_H_
#define DLBRIDGE_CORE_TORCH_TORCH_H_

#include "python/python.h"

/* ---- internals.c ---- */

/* Where the at::Tensor (one pointer) lies in a torch.Tensor; 0: all is closed. */
extern Py_ssize_t dlb_torch_word;

static inline const void *dlb_torch_handle(PyObject *tensor) {
    return (const char *)tensor + dlb_torch_word;
}
static inline const char *dlb_torch_impl(PyObject *tensor) {
    return *(const char *const *)dlb_torch_handle(tensor);
}

/* May the exchange table export it? */
bool dlb_torch_is_plain(PyObject *tensor);
/* Not known to reach beyond its storage. */
bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl);
/* int8 or uint8, not another width that looks like it */
bool dlb_torch_is_byte_type(PyObject *tensor);

/* May a kernel be called with it, without torch's dispatcher? */

/* What the calling thread has switched on. Only in the first two does the dispatcher do
 * nothing but call the kernel of the CPU. */
typedef enum {
    DLB_TORCH_DEFAULT,
    DLB_TORCH_INFERENCE, /* torch.inference_mode */
    DLB_TORCH_OTHER,     /* a mode, a transform, autocast, a profiler, tracing, … */
} dlb_torch_thread;

dlb_torch_thread dlb_torch_thread_state(void);
/* torch.Tensor or torch.nn.Parameter, no other subclass. */
bool dlb_torch_is_exact(PyObject *x);
/* A dense tensor of the CPU or, once that was tried on one, of CUDA, whose memory is
 * its values, that needs no gradient now. `written`: that may also be written in this
 * state. Trying runs Python. */
bool dlb_torch_is_ordinary(PyObject *tensor, dlb_torch_thread state, bool written);
/* One of CUDA, of those that are ordinary. */
bool dlb_torch_is_cuda(const char *impl);
/* Whether the storage still reaches as far as the tensor does; of ordinary ones only.
 */
bool dlb_torch_has_memory(PyObject *tensor, const DLTensor *dl);
void dlb_torch_bump_version(PyObject *tensor);

extern PyMethodDef dlb_torch_functions[];

/* ---- memory.c ---- */

/* The tensor as it lies in memory, which stays torch's: 0, or DLB_DECLINED. */
int dlb_torch_borrow(PyObject *tensor, DLTensor *borrowed);
/* A new tensor as torch.empty makes it. NULL without an exception: ask torch.empty. */
PyObject *dlb_torch_allocate(DLDevice device, int32_t ndim, const int64_t *shape,
                             DLDataType dtype);
/* The calling thread's current stream on a CUDA device, as a dlb_stream; 0: unknown. */
uintptr_t dlb_torch_stream(int32_t device);

extern PyMethodDef dlb_torch_memory_functions[];

#endif /* DLBRIDGE_CORE_TORCH_TORCH_H_ */

/* What the Python half of CUDA memory shares. */
#ifndef DLBRIDGE_CORE_CUDA_PYTHON_H_
#define DLBRIDGE_CORE_CUDA_PYTHON_H_

#include "object.h"

extern PyMethodDef dlb_cuda_memory_functions[], dlb_move_functions[];

/* ---- cuda_python.c ---- */
/* Have the main thread collect. On any thread, without the GIL. */
void dlb_cuda_collect_soon(void);

/* ---- moves.c ---- */
bool dlb_can_move(DLDevice to, DLDevice from);
/* Copy into the view; with the exception set on failure. */
int dlb_move(dlb_view *to, const dlb_tensor *from, const char *call);
/* A compact Tensor in new memory, its dimensions in this order ('C', 'F', 'K'). */
PyObject *dlb_copied(dlb_tensor *from, DLDevice device, char order, uint64_t flags,
                     const char *call);
PyObject *dlb_tensor_copy(PyObject *self, PyObject *args, PyObject *kwargs);
PyObject *dlb_tensor_to(PyObject *self, PyObject *const *args, Py_ssize_t count,
                        PyObject *names);

/* ---- cuda_allocate.c ---- */
/* What Device reads as a device; names are read once. */
int dlb_read_device(PyObject *given, DLDevice *device);
PyObject *dlb_refuse_move(const char *call, dlb_tensor *tensor);
PyObject *dlb_raise_no_memory(const char *call, DLDevice device, int64_t nbytes);
/* The exception of dlb_cuda_allocate; NULL. */
PyObject *dlb_cuda_raise_memory(const char *call, DLDevice device, int64_t nbytes);
/* New compact memory for a view that has a shape, dtype, flags and device. */
int dlb_cuda_fill_view(dlb_view *view, const char *call);

#endif /* DLBRIDGE_CORE_CUDA_PYTHON_H_ */

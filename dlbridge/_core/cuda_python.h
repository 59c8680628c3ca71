/* What the Python half of CUDA memory shares. */
#ifndef DLBRIDGE_CORE_CUDA_PYTHON_H_
#define DLBRIDGE_CORE_CUDA_PYTHON_H_

#include "object.h"

extern PyMethodDef dlb_cuda_memory_functions[], dlb_cuda_copy_functions[];

/* ---- cuda_allocate.c ---- */
/* The exception of dlb_cuda_allocate; NULL. */
PyObject *dlb_cuda_raise_memory(const char *call, DLDevice device, int64_t nbytes);
/* New compact memory for a view that has a shape, dtype, flags and device. */
int dlb_cuda_fill_view(dlb_view *view, const char *call);

#endif /* DLBRIDGE_CORE_CUDA_PYTHON_H_ */

/* The calling conventions: how a kernel's function gets its tensors. */
#ifndef DLBRIDGE_CORE_ABI_ABI_H_
#define DLBRIDGE_CORE_ABI_ABI_H_

#include "kernel/kernel.h"

#define DLB_MAX_POINTERS 16  /* arguments of dlb_invoke_pointers */
bool dlb_tvm_ffi_open(void); /* false: libtvm_ffi.so is not loaded in this process */

int dlb_invoke_dltensors(const dlb_kernel *, const dlb_target *, dlb_frame *,
                         dlb_context *); /* int f(void *ctx, DLTensor *args, int n) */
int dlb_invoke_pointers(const dlb_kernel *, const dlb_target *, dlb_frame *,
                        dlb_context *); /* int f(DLTensor *, …): inputs, results */
int dlb_invoke_c(const dlb_kernel *, const dlb_target *, dlb_frame *,
                 dlb_context *); /* any C function; user: a native.CCall */
int dlb_invoke_tvm_ffi(const dlb_kernel *, const dlb_target *, dlb_frame *,
                       dlb_context *); /* function: a TVMFFIObjectHandle */
int dlb_invoke_python(const dlb_kernel *, const dlb_target *, dlb_frame *,
                      dlb_context *); /* user: a native.PythonFunction */
int dlb_invoke_launch(const dlb_kernel *, const dlb_target *, dlb_frame *,
                      dlb_context *); /* user: a native.CudaLaunch */
extern PyTypeObject dlb_PythonFunctionType, dlb_LaunchType, dlb_CCallType;

/* python.c: whether this thread is one of XLA's, on which a Python kernel runs. */
PyObject *dlb_inside_xla(PyObject *module, PyObject *unused);

#endif /* DLBRIDGE_CORE_ABI_ABI_H_ */

/* Operators of torch's dispatcher whose body is a kernel, without torch's headers. */
#ifndef DLBRIDGE_CORE_TORCH_OP_OP_H_
#define DLBRIDGE_CORE_TORCH_OP_OP_H_

#include "python/python.h"
#include "torch/shim.h"

#define DLB_TORCH_OPS 8192 /* the size of the pool, at most */

/* ---- op.c ---- */
void dlb_torch_run(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs,
                   int number);
extern PyMethodDef dlb_torch_op_functions[];

/* ---- trampolines.c ---- */
extern const int dlb_torch_pool_size; /* DLB_TORCH_OPS or less */
dlb_torch_boxed dlb_torch_trampoline(int number);

#endif /* DLBRIDGE_CORE_TORCH_OP_OP_H_ */

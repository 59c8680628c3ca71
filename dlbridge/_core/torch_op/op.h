/* Operators of torch's dispatcher whose body is a kernel: no torch headers. libtorch
 * exports a C interface meant for extensions that outlive its versions; its functions
 * are found by name in the library that is loaded. What is not found decides which
 * schemas can be served here; torch.library serves the rest, in Python.
 *
 * torch's boxed functions carry no data. Each operator gets a function of its own out
 * of a pool (trampolines.c), which knows nothing but its number. A number stays
 * with its name for good, as compiled graphs may call it until the process ends; which
 * kernel it runs is looked up in the registry on every call. */
#ifndef DLBRIDGE_CORE_TORCH_OP_OP_H_
#define DLBRIDGE_CORE_TORCH_OP_OP_H_

#include "kernel/python.h"
#include "torch/shim.h"

#define DLB_TORCH_OPS 8192 /* the size of the pool, at most */

/* ---- op.c: the body ---- */

/* What the arguments of an operator are, in order. Letters: t tensor, i int, f float, b
 * bool, s str; capitals: optional. Its `out` overload has the buffers for the results
 * before argument number `out_at`. */
typedef struct {
    dlb_entry *entry;
    int out_at;
    char letters[DLB_MAX_TENSORS + DLB_MAX_SCALARS + 1];
} dlb_torch_layout;

/* Immutable and never freed, since calls read them without a lock. NULL: none yet. */
extern _Atomic(const dlb_torch_layout *) dlb_torch_layouts[DLB_TORCH_OPS];

void dlb_torch_run(dlb_torch_value *stack, uint64_t inputs, uint64_t outputs,
                   int number);

/* ---- trampolines.c ---- */
extern const int dlb_torch_pool_size; /* DLB_TORCH_OPS or less */
dlb_torch_boxed dlb_torch_trampoline(int number);

/* ---- register.c ---- */

/* What the last failed operator of this thread left for the caller that waits for it,
 * who raises it instead of torch's RuntimeError. */
typedef struct {
    bool awaited;
    dlb_error error;
} dlb_torch_failure;
extern _Thread_local dlb_torch_failure dlb_torch_failed;

extern PyMethodDef dlb_torch_op_functions[];

#endif /* DLBRIDGE_CORE_TORCH_OP_OP_H_ */

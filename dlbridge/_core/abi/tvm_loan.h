/* Tensors lent to functions of tvm-ffi: real objects, since much of tvm-ffi cannot take
 * a bare DLTensor, over memory that is the caller's. */
#ifndef DLBRIDGE_CORE_ABI_TVM_LOAN_H_
#define DLBRIDGE_CORE_ABI_TVM_LOAN_H_

#include "kernel/kernel.h"

typedef struct dlb_tvm_loan dlb_tvm_loan;

/* tvm-ffi's own functions. */
typedef struct {
    int (*make)(DLManagedTensor *from, int32_t alignment, int32_t contiguous,
                void **out);
    int (*drop)(void *object);
} dlb_tvm_objects;

/* A new tensor object in `object`, one reference. With `is_compact` its strides are
 * those of compact memory also where there is but one element. NULL: out of memory. */
dlb_tvm_loan *dlb_tvm_lend(const dlb_tvm_objects *api, const DLTensor *tensor,
                           bool is_compact, void **object);
/* Drop our reference. Whoever kept the object has `owner` (a PyObject, or NULL) kept
 * alive for it; without an owner it is given a copy of the values. False: it was kept,
 * and there was no owner. */
bool dlb_tvm_end(const dlb_tvm_objects *api, dlb_tvm_loan *loan, void *object,
                 void *owner);

#endif /* DLBRIDGE_CORE_ABI_TVM_LOAN_H_ */

/* The handler of XLA's typed FFI.
 *
 * One target, "dlbridge", serves every kernel. A call carries these attributes:
 *
 *     kernel     string: the name in the registry, never a pointer
 *     s00, s01…  scalar 0, 1… of the kernel: int64, float64, bool or string; none for
 * an optional scalar that was left out layout     string, only where operands are not
 * just the kernel's tensors in order: one letter for each tensor. t: an operand; m: an
 * operand written in place, whose new value is one more result, at the same address; -:
 * left out, no operand. Then, for scalars that are operands, `A`, `B`… for scalar 0, 1…
 * with an operand of rank 0 each, or `#` with pairs such as `Af` `Bi`: one uint32
 * operand that holds 64 bits for each eager      bool: the caller is dlbridge, and asks
 * for the exception itself */
#ifndef DLBRIDGE_CORE_XLA_XLA_H_
#define DLBRIDGE_CORE_XLA_XLA_H_

#include "kernel/kernel.h"
#include "xla/abi.h"

/* ---- xla.c: what XLA calls, one for each platform ---- */
void *dlb_xla_execute_cpu(dlb_xla_call *call);
void *dlb_xla_execute_cuda(dlb_xla_call *call);
void *dlb_xla_execute_rocm(dlb_xla_call *call);

/* ---- python.c: errors of eager calls, kept until their callers ask ---- */
/* Move the error out of `error`; return a number that is never 0. */
uint64_t dlb_xla_keep_failure(dlb_error *error);
/* If the exception that is set came out of XLA with such a number: raise what failed
 * there instead. */
void dlb_xla_raise_failure(void);

#endif /* DLBRIDGE_CORE_XLA_XLA_H_ */

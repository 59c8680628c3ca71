/* The handler of XLA's typed FFI: what its files need of each other.
 *
 * One target, "dlbridge", serves every kernel. A call carries these attributes:
 *     kernel     string, the name in the registry; never a pointer
 *     s00, s01…  scalar 0, 1… of the kernel: int64, float64, bool or string; an
 * optional scalar that was left out has none layout     string, only where operands are
 * not just the kernel's tensors in order: one letter for each tensor: t, m (in place:
 * its new value is one more result, at the same address) or - (left out: no operand);
 * then, for scalars that are operands, `A`, `B`… for scalar 0, 1… with an operand of
 * rank 0 each, or `#` with pairs such as `Af` `Bi`: one uint32 operand that holds 64
 * bits for each eager      bool: the caller is dlbridge, and will ask for the exception
 * itself
 */
#ifndef DLBRIDGE_CORE_XLA_XLA_H_
#define DLBRIDGE_CORE_XLA_XLA_H_

#include "kernel/kernel.h"
#include "xla/abi.h"

enum {
    DLB_XLA_KNOWN = 16,
    DLB_XLA_KNOWN_TENSORS = 6,
    DLB_XLA_KNOWN_RANK = 4,
    DLB_XLA_ENTRIES = 16
};

typedef struct {
    int32_t xla_dtype, rank;
    DLDataType dtype;
    int64_t dims[DLB_XLA_KNOWN_RANK], strides[DLB_XLA_KNOWN_RANK];
} dlb_xla_known_tensor;

typedef struct {
    uint64_t serial; /* of the kernel; 0: free */
    DLDeviceType device_type;
    const dlb_target *target;
    int32_t count, input_count;
    dlb_xla_known_tensor tensors[DLB_XLA_KNOWN_TENSORS];
} dlb_xla_known;

/* What a thread keeps from call to call. */
typedef struct {
    struct { /* entries live as long as the process */
        dlb_entry *entry;
        size_t length;
    } entries[DLB_XLA_ENTRIES];
    dlb_xla_known known[DLB_XLA_KNOWN];
} dlb_xla_thread;

typedef struct {
    dlb_frame frame;
    dlb_xla_thread *thread;
    const dlb_xla_call *call;
    const dlb_kernel *kernel; /* of run_kernel */
    DLDevice device;
    const dlb_xla_span *kernel_name, *layout;
    uint32_t mutated, missing; /* bit i: input i is written, was left out */
    int32_t mutated_count;
    bool is_eager;
    int64_t *room, *room_end; /* for strides and strings: `first_room`, or `heap` */
    struct dlb_xla_heap *heap;
    int64_t first_room[256];
} dlb_xla_run;

/* Each fills a part of the frame: 0, or -1 or NULL with the frame's error set. */

/* ---- scalars.c ---- */
int64_t *dlb_xla_get_room(dlb_xla_run *run, size_t bytes); /* until dlb_xla_free_room */
void dlb_xla_free_room(dlb_xla_run *run);
dlb_scalar *dlb_xla_new_scalar(dlb_xla_run *run, int index);
int dlb_xla_read_scalar(dlb_xla_run *run, dlb_scalar *scalar, int dtype,
                        const void *value);
int dlb_xla_read_attributes(dlb_xla_run *run);

/* ---- operands.c ---- */
int dlb_xla_read_operands(dlb_xla_run *run);

/* ---- device.c: what only devices with streams need ---- */
/* Fill in stream and device. NULL, or an error of XLA's. */
void *dlb_xla_read_device(dlb_xla_run *run);
/* Copy on the stream of the call. */
int dlb_xla_copy(dlb_xla_run *run, void *to, const void *from, size_t nbytes);

/* ---- known.c ---- */
/* Run a call like one that was learnt; false: it is not. */
bool dlb_xla_run_known(dlb_xla_run *run, const dlb_kernel *kernel, int *status);
void dlb_xla_learn(dlb_xla_run *run,
                   const dlb_kernel *kernel); /* it passed all checks */

/* ---- xla.c: what XLA calls, one for each platform ---- */
void *dlb_xla_execute_cpu(dlb_xla_call *call);
void *dlb_xla_execute_cuda(dlb_xla_call *call);
void *dlb_xla_execute_rocm(dlb_xla_call *call);

/* ---- python.c: errors of eager calls, kept until their callers ask ---- */
/* Moves the error out of `error`; returns a number that is never 0. */
uint64_t dlb_xla_keep_failure(dlb_error *error);
/* If the exception that is set came out of XLA with such a number: raise what failed
 * there instead. */
void dlb_xla_raise_failure(void);

#endif /* DLBRIDGE_CORE_XLA_XLA_H_ */

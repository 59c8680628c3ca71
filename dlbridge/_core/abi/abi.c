/* The calling conventions of plain C functions. */
#include "abi/abi.h"

int dlb_invoke_dltensors(const dlb_kernel *kernel, const dlb_target *target,
                         dlb_frame *frame, dlb_context *context) {
    (void)kernel;
    return ((int (*)(void *, DLTensor *, int))target->function)(context, frame->tensors,
                                                                frame->tensor_count);
}

/* ---- one DLTensor * per tensor: a cast for each count ---- */

#define TYPES_1 DLTensor *
#define TYPES_2 TYPES_1, DLTensor *
#define TYPES_3 TYPES_2, DLTensor *
#define TYPES_4 TYPES_3, DLTensor *
#define TYPES_5 TYPES_4, DLTensor *
#define TYPES_6 TYPES_5, DLTensor *
#define TYPES_7 TYPES_6, DLTensor *
#define TYPES_8 TYPES_7, DLTensor *
#define TYPES_9 TYPES_8, DLTensor *
#define TYPES_10 TYPES_9, DLTensor *
#define TYPES_11 TYPES_10, DLTensor *
#define TYPES_12 TYPES_11, DLTensor *
#define TYPES_13 TYPES_12, DLTensor *
#define TYPES_14 TYPES_13, DLTensor *
#define TYPES_15 TYPES_14, DLTensor *
#define TYPES_16 TYPES_15, DLTensor *

#define VALUES_1 t
#define VALUES_2 VALUES_1, t + 1
#define VALUES_3 VALUES_2, t + 2
#define VALUES_4 VALUES_3, t + 3
#define VALUES_5 VALUES_4, t + 4
#define VALUES_6 VALUES_5, t + 5
#define VALUES_7 VALUES_6, t + 6
#define VALUES_8 VALUES_7, t + 7
#define VALUES_9 VALUES_8, t + 8
#define VALUES_10 VALUES_9, t + 9
#define VALUES_11 VALUES_10, t + 10
#define VALUES_12 VALUES_11, t + 11
#define VALUES_13 VALUES_12, t + 12
#define VALUES_14 VALUES_13, t + 13
#define VALUES_15 VALUES_14, t + 14
#define VALUES_16 VALUES_15, t + 15

#define CALL(n)                                                                        \
    static int call_##n(void *function, DLTensor *t) {                                 \
        return ((int (*)(TYPES_##n))function)(VALUES_##n);                             \
    }
CALL(1)
CALL(2)
CALL(3)
CALL(4)
CALL(5)
CALL(6)
CALL(7)
CALL(8)
CALL(9)
CALL(10)
CALL(11)
CALL(12)
CALL(13)
CALL(14)
CALL(15)
CALL(16)

static int call_0(void *function, DLTensor *t) {
    (void)t;
    return ((int (*)(void))function)();
}

static int (*const calls[DLB_MAX_POINTERS + 1])(void *, DLTensor *) = {
    call_0, call_1,  call_2,  call_3,  call_4,  call_5,  call_6,  call_7, call_8,
    call_9, call_10, call_11, call_12, call_13, call_14, call_15, call_16};

int dlb_invoke_pointers(const dlb_kernel *kernel, const dlb_target *target,
                        dlb_frame *frame, dlb_context *context) {
    (void)context;
    if (frame->tensor_count > DLB_MAX_POINTERS || frame->scalar_count > 0)
        return dlb_frame_fail(frame, DLB_ERROR_TYPE,
                              "%s: takes at most %d tensors and no scalars, got %d "
                              "tensors and %d scalars",
                              kernel->name, DLB_MAX_POINTERS, (int)frame->tensor_count,
                              (int)frame->scalar_count);
    return calls[frame->tensor_count](target->function, frame->tensors);
}

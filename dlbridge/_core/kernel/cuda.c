/* Kernels on CUDA devices: on which stream, after what, in which context. */
#include "kernel/kernel.h"
#include "cuda/cuda.h"

/* False: no tensor tells, and the call runs where its caller is. */
static bool find_device(const dlb_frame *frame, int32_t *device) {
    for (int32_t i = 0; i < frame->tensor_count; i++)
        if (frame->tensors[i].ndim >= 0) {
            *device = frame->tensors[i].device.device_id;
            return true;
        }
    return false;
}

/* Tensors of other frameworks are ready on the stream of the caller, and stay its own.
 */
static int order_tensors(const dlb_frame *frame, dlb_stream stream) {
    for (uint32_t left = frame->watched; left != 0; left &= left - 1) {
        int32_t i = __builtin_ctz(left);
        int status = frame->written >> i & 1
                         ? dlb_access_write(frame->accesses[i], stream)
                         : dlb_access_read(frame->accesses[i], stream);
        if (status < 0)
            return -1;
    }
    return 0;
}

/* The caller's own work before and after a kernel on another stream of its device. */
static int order_stream(int32_t device, dlb_stream before, dlb_stream after) {
    return dlb_cuda_order(device, dlb_stream_identify(before),
                          dlb_stream_identify(after));
}

static int run_on(const dlb_kernel *kernel, const dlb_target *target, dlb_frame *frame,
                  int32_t device, dlb_stream caller) {
    dlb_stream stream = kernel->on_default_stream ? DLB_STREAM_LEGACY : caller;
    if (order_stream(device, caller, stream) < 0 || order_tensors(frame, stream) < 0)
        return dlb_frame_fail_cuda(kernel, frame);
    frame->stream = (void *)stream;
    int status = dlb_frame_call(kernel, target, frame);
    if (order_stream(device, stream, caller) < 0 && status == 0)
        status = dlb_frame_fail_cuda(kernel, frame);
    return status;
}

int dlb_cuda_invoke(const dlb_kernel *kernel, const dlb_target *target,
                    dlb_frame *frame) {
    dlb_cuda_scope scope;
    int32_t device;
    void *given = frame->stream;
    /* Without a driver nothing runs on a GPU: there is nothing to order. */
    if (!find_device(frame, &device) || dlb_cuda_open(NULL) == NULL)
        return dlb_frame_call(kernel, target, frame);
    if (dlb_cuda_enter(device, &scope) < 0)
        return dlb_frame_fail_cuda(kernel, frame);
    dlb_stream caller = given ? (dlb_stream)given : dlb_cuda_current_stream(device);
    int status = run_on(kernel, target, frame, device, caller);
    frame->stream = given;
    dlb_cuda_leave(&scope);
    return status;
}

/* Calls on a device: its stream, its number, copies on that stream. The host waits for
 * nothing here. No Python here. */
#include "xla/xla.h"
#include "cuda/cuda.h"

/* XLA calls the default stream 0, which means another one to code compiled for
 * per-thread default streams. */
static void *read_stream(dlb_xla_run *run) {
    const dlb_xla_call *call = run->call;
    dlb_xla_stream_arguments arguments = {.size = sizeof arguments,
                                          .context = call->context};
    void *error = call->api->get_stream(&arguments);
    run->frame.stream = arguments.stream;
    if (run->device.device_type == kDLCUDA && arguments.stream == NULL)
        run->frame.stream = (void *)DLB_STREAM_LEGACY;
    return error;
}

/* Where the memory is, for an XLA that does not tell the number of its device. */
static int32_t find_device(const dlb_xla_buffers *buffers) {
    const dlb_cuda_driver *driver = dlb_cuda_open(NULL);
    int32_t ordinal = 0;
    for (int64_t i = 0; driver != NULL && i < buffers->count; i++)
        if (buffers->buffers[i]->data != NULL &&
            driver->cuPointerGetAttribute(&ordinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
                                          (CUdeviceptr)buffers->buffers[i]->data) == 0)
            return ordinal;
    return -1;
}

void *dlb_xla_read_device(dlb_xla_run *run) {
    const dlb_xla_call *call = run->call;
    const dlb_xla_api *api = call->api;
    void *error = read_stream(run);
    if (error != NULL)
        return error;
    if (api->size >= offsetof(dlb_xla_api, get_device) + sizeof api->get_device) {
        dlb_xla_device_arguments arguments = {.size = sizeof arguments,
                                              .context = call->context};
        error = api->get_device(&arguments);
        run->device.device_id = arguments.ordinal;
    } else if (run->device.device_type == kDLCUDA) {
        int32_t found = find_device(&call->arguments);
        found = found < 0 ? find_device(&call->results) : found;
        run->device.device_id = found < 0 ? 0 : found;
    }
    return error;
}

/* ---- copies ---- */

int dlb_xla_copy(dlb_xla_run *run, void *to, const void *from, size_t nbytes) {
    dlb_cuda_scope scope;
    if (run->device.device_type != kDLCUDA)
        return dlb_frame_fail(&run->frame, DLB_ERROR_BUFFER,
                              "dlbridge: XLA did not alias a tensor that is written in "
                              "place, and dlbridge cannot copy on this device");
    if (nbytes == 0)
        return 0;
    if (dlb_cuda_enter(run->device.device_id, &scope) < 0)
        return dlb_frame_fail_cuda(run->kernel, &run->frame);
    int status = dlb_cuda_check(
        dlb_cuda_get()->cuMemcpyAsync((CUdeviceptr)to, (CUdeviceptr)from, nbytes,
                                      (CUstream)run->frame.stream),
        "cuMemcpyAsync");
    dlb_cuda_leave(&scope);
    return status < 0 ? dlb_frame_fail_cuda(run->kernel, &run->frame) : 0;
}

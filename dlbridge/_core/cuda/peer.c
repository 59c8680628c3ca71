/* Copies from one CUDA device to another, and the order between their streams. */
#include "cuda/copy.h"

#include <pthread.h>

int dlb_cuda_join(int32_t before_device, dlb_stream before, int32_t after_device,
                  dlb_stream after) {
    CUevent event;
    if (dlb_cuda_mark(before_device, dlb_cuda_place(before), &event) < 0)
        return -1;
    if (event == NULL)
        return dlb_cuda_fail(DLB_CUDA_CAPTURE);
    int status = dlb_cuda_wait(after_device, dlb_cuda_place(after), event);
    dlb_cuda_reuse_event(before_device, event);
    return status < 0 ? -1 : 0;
}

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static uint64_t met[DLB_MAX_DEVICES]; /* bit k: with device k it was tried */

void dlb_cuda_forget_peers(void) {
    for (int32_t i = 0; i < DLB_MAX_DEVICES; i++)
        met[i] = 0;
}

/* With access, copies go straight over the bus between the devices; without, the driver
 * sends them by way of the host. */
static void meet_peer(int32_t device, int32_t peer, CUcontext peer_context) {
    const dlb_cuda_driver *driver = dlb_cuda_get();
    CUdevice here, there;
    int can = 0;
    pthread_mutex_lock(&lock);
    bool was_tried = met[device] >> peer & 1;
    met[device] |= UINT64_C(1) << peer;
    pthread_mutex_unlock(&lock);
    if (!was_tried && driver->cuDeviceGet(&here, device) == 0 &&
        driver->cuDeviceGet(&there, peer) == 0 &&
        driver->cuDeviceCanAccessPeer(&can, here, there) == 0 && can) {
        int mode = dlb_cuda_relax();
        driver->cuCtxEnablePeerAccess(peer_context, 0);
        dlb_cuda_unrelax(mode);
    }
}

static int copy_to_peer(const dlb_cuda_route *on, void *to, const void *from,
                        int64_t nbytes) {
    CUcontext here = dlb_cuda_context(on->from.device);
    CUcontext there = dlb_cuda_context(on->to.device);
    if (here == NULL || there == NULL)
        return -1;
    meet_peer(on->from.device, on->to.device, there);
    return dlb_cuda_check(
        dlb_cuda_get()->cuMemcpyPeerAsync((CUdeviceptr)(uintptr_t)to, there,
                                          (CUdeviceptr)(uintptr_t)from, here,
                                          (size_t)nbytes, (CUstream)on->stream),
        "cuMemcpyPeerAsync");
}

static int spread(const dlb_cuda_route *on, const dlb_copy_plan *out,
                  const dlb_buffer *middle, dlb_stream there) {
    dlb_cuda_scope scope;
    if (dlb_cuda_join(on->device, on->stream, on->to.device, there) < 0 ||
        dlb_work_read(middle->work, there) < 0 ||
        dlb_cuda_enter(on->to.device, &scope) < 0)
        return -1;
    int status = dlb_cuda_issue(out, there);
    dlb_cuda_leave(&scope);
    return status;
}

/* Packed here, sent, and spread out there; a side that is compact needs no memory. */
int dlb_cuda_send(const dlb_cuda_route *on, const dlb_copy_plan *plan) {
    int64_t total = dlb_copy_count(plan);
    dlb_stream there = dlb_cuda_current_stream(on->to.device);
    dlb_copy_plan in, out;
    dlb_copy_through(plan, NULL, &in, &out);
    dlb_buffer *packed = NULL, *arrived = NULL;
    char *from = (char *)(uintptr_t)in.source + in.source_start;
    char *to = out.destination + out.destination_start;
    int status = 0;
    if (in.ndim > 0) {
        packed = dlb_cuda_allocate((DLDevice){kDLCUDA, on->from.device}, total);
        status = packed == NULL ? -1 : 0;
        if (status == 0)
            in.destination = from = packed->data;
    }
    if (status == 0 && out.ndim > 0) {
        arrived = dlb_cuda_allocate((DLDevice){kDLCUDA, on->to.device}, total);
        status = arrived == NULL
                     ? -1
                     : dlb_cuda_join(on->to.device, there, on->device, on->stream);
        if (status == 0)
            out.source = to = arrived->data;
    }
    if (status == 0 && packed != NULL)
        status = dlb_cuda_issue(&in, on->stream);
    if (status == 0)
        status = copy_to_peer(on, to, from, total);
    if (status == 0 && arrived != NULL)
        status = spread(on, &out, arrived, there);
    if (packed != NULL)
        dlb_buffer_drop(packed);
    if (arrived != NULL)
        dlb_buffer_drop(arrived);
    return status;
}

/* dlbridge.Tensor. */
#include "cuda/cuda.h"
#include "peers/borrowing.h"

static int take_own(PyObject *x, const dlb_known_type *Py_UNUSED(known),
                    bool Py_UNUSED(detaches), dlb_view *view) {
    dlb_tensor_view((dlb_tensor *)x, view);
    return 0;
}

const dlb_peer dlb_own_peer = {.name = "tensor", .take = take_own};

/* ---- kernels ---- */

static bool is_own(PyObject *x) {
    return dlb_is_tensor(x);
}

void dlb_borrow_tensor(dlb_frame *frame, int index, const dlb_tensor *tensor) {
    if (tensor == NULL) {
        frame->tensors[index] = (DLTensor){.ndim = -1};
        frame->flags[index] = 0;
        return;
    }
    frame->tensors[index] = tensor->dl;
    frame->flags[index] = tensor->flags & DLB_KNOWN_FLAGS;
    frame->accesses[index] = tensor->buffer->access;
    if (tensor->buffer->access != NULL)
        dlb_set_add(frame->watched, index);
}

static int borrow_own(dlb_call *call, int index, PyObject *x) {
    if (!dlb_is_tensor(x))
        return DLB_DECLINED;
    dlb_borrow_tensor(&call->frame, index, (const dlb_tensor *)x);
    return 0;
}

static PyObject *allocate_own(int32_t ndim, const int64_t *shape, DLDataType dtype,
                              DLDevice device) {
    dlb_view view = {.dl = {.device = device,
                            .ndim = ndim,
                            .dtype = dtype,
                            .shape = (int64_t *)shape,
                            .data = (void *)shape}, /* for the check: some memory */
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (dlb_layout_check(&view.dl, 0) != NULL)
        return NULL;
    int status = dlb_is_cuda(device)            ? dlb_cuda_fill_view(&view, "empty")
                 : device.device_type == kDLCPU ? dlb_cpu_fill_view(&view, 64, false)
                                                : -1;
    return status < 0 ? NULL : dlb_tensor_new(dlb.tensor_type, &view);
}

const dlb_lender dlb_own_lender = {
    .framework = "dlbridge",
    .source = "dlbridge.Tensor",
    .owns = is_own,
    .borrow = borrow_own,
    .allocate = allocate_own,
};

/* The results of a direct call: allocated by the framework of its tensors, or given. */
#include "call/call.h"
#include "exchange/exchange.h"

/* New compact memory for a view that has a shape, dtype and device. NULL, perhaps
 * without an exception: Python knows a way, or why there is none. */
static dlb_buffer *allocate_for(dlb_view *view) {
    if (dlb_is_cuda(view->dl.device))
        return dlb_cuda_fill_view(view, "empty") < 0 ? NULL : view->buffer;
    if (view->dl.device.device_type != kDLCPU)
        return NULL;
    int64_t count = dlb_element_count(&view->dl);
    view->buffer =
        dlb_buffer_allocate(dlb_packed_bytes(view->dl.dtype, 0, count), 64, false);
    if (view->buffer == NULL)
        return NULL;
    view->dl.data = view->buffer->data;
    dlb_row_major_strides(view->dl.ndim, view->dl.shape, view->scratch);
    view->dl.strides = view->scratch;
    return view->buffer;
}

static PyObject *allocate_own(int32_t ndim, const int64_t *shape, DLDataType dtype,
                              DLDevice device) {
    dlb_view view = {.dl = {.device = device,
                            .ndim = ndim,
                            .dtype = dtype,
                            .shape = (int64_t *)shape,
                            .data = (void *)shape}, /* for the check: some memory */
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (dlb_layout_check(&view.dl, 0) != NULL || allocate_for(&view) == NULL)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

PyObject *dlb_call_allocate(dlb_family family, int32_t ndim, const int64_t *shape,
                            DLDataType dtype, DLDevice device) {
    switch (family) {
    case DLB_FAMILY_NUMPY:
        return dlb_numpy_allocate(ndim, shape, dtype);
    case DLB_FAMILY_TORCH:
        return dlb_torch_allocate(device, ndim, shape, dtype);
    case DLB_FAMILY_OWN:
        return allocate_own(ndim, shape, dtype, device);
    case DLB_FAMILY_CUPY:
        return dlb_cupy_allocate(ndim, shape, dtype, device);
    case DLB_FAMILY_JAX:
    case DLB_FAMILY_NONE:
    case DLB_FAMILY_OTHER:
        break;
    }
    return NULL;
}

/* Results are where the arguments are; those in pinned or managed memory leave the
 * choice to Python. */
static DLDevice find_device(const dlb_frame *frame) {
    for (int32_t i = 0; i < frame->input_count; i++)
        if (frame->tensors[i].ndim >= 0)
            return frame->tensors[i].device;
    return (DLDevice){kDLCPU, 0};
}

static int add_new(const dlb_kernel *kernel, dlb_call *call, int result) {
    int64_t shape[DLB_MAX_NDIM];
    DLDataType dtype;
    int32_t index = call->frame.tensor_count;
    int32_t ndim = dlb_signature_result(kernel->signature, result,
                                        &call->frame.bindings, &dtype, shape);
    PyObject *made = ndim < 0 ? NULL
                              : dlb_call_allocate(call->family, ndim, shape, dtype,
                                                  find_device(&call->frame));
    if (made == NULL) {
        if (PyErr_Occurred() && !PyErr_ExceptionMatches(PyExc_Exception))
            return -1;
        PyErr_Clear(); /* the framework itself says why */
        return DLB_DECLINED;
    }
    int status = dlb_borrow(call, index, made);
    call->objects[index] = made;
    call->made_count++;
    call->frame.tensor_count++;
    return status;
}

static int add_given(const dlb_kernel *kernel, dlb_call *call, int result,
                     PyObject *given) {
    int32_t index = call->frame.tensor_count;
    int status = dlb_borrow(call, index, given);
    if (status != 0)
        return status;
    call->frame.tensor_count++;
    return dlb_signature_fits_result(kernel->signature, result,
                                     &call->frame.tensors[index], &call->frame.bindings)
               ? dlb_borrow_to_write(call, index)
               : DLB_DECLINED;
}

PyObject *dlb_call_out_item(PyObject *out, int32_t count, int index) {
    if (count == 1)
        return out;
    bool fits = PyTuple_CheckExact(out) && PyTuple_GET_SIZE(out) == count;
    return fits ? PyTuple_GET_ITEM(out, index) : NULL;
}

int dlb_call_results(const dlb_kernel *kernel, dlb_call *call, PyObject *out) {
    int32_t count = kernel->signature ? kernel->signature->result_count : 0;
    if (count == 0)
        return 0;
    if (call->family == DLB_FAMILY_JAX || call->family == DLB_FAMILY_NONE)
        return DLB_DECLINED;
    for (int32_t i = 0; i < count; i++) {
        PyObject *given = out ? dlb_call_out_item(out, count, i) : NULL;
        if (out != NULL && given == NULL)
            return DLB_DECLINED;
        int status =
            given ? add_given(kernel, call, i, given) : add_new(kernel, call, i);
        if (status != 0)
            return status;
    }
    return 0;
}

void dlb_call_drop_results(dlb_call *call) {
    for (int32_t i = 0; i < call->made_count; i++)
        Py_DECREF(call->objects[call->frame.input_count + i]);
    call->made_count = 0;
}

PyObject *dlb_call_return(dlb_call *call, PyObject *out) {
    int32_t first = call->frame.input_count;
    int32_t count = call->frame.tensor_count - first;
    if (out != NULL)
        return Py_NewRef(out);
    if (count == 0)
        return call->frame.returned ? call->frame.returned : Py_NewRef(Py_None);
    if (count == 1)
        return call->objects[first];
    PyObject *all = PyTuple_New(count);
    if (all == NULL)
        return NULL;
    for (int32_t i = 0; i < count; i++)
        PyTuple_SET_ITEM(all, i, call->objects[first + i]);
    return all;
}

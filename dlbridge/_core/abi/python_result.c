/* What a Python kernel returns: taken from whatever framework it is of, compared with
 * the result that the caller expects, copied into it. */
#include "abi/python.h"
#include "exchange/exchange.h"
#include "memory/copy.h"

#include <string.h>

/* ---- taking ---- */

/* The Tensor must outlive the view, which points to its dims. */
static PyObject *take_slowly(const dlb_python_call *call, PyObject *value,
                             dlb_view *view) {
    PyObject *tensor = PyObject_CallMethod(call->self->support, "take", "O", value);
    if (tensor != NULL && !dlb_is_tensor(tensor)) {
        PyErr_Format(PyExc_TypeError, "Support.take returned %R", tensor);
        Py_CLEAR(tensor);
    }
    if (tensor != NULL)
        dlb_tensor_view((dlb_tensor *)tensor, view);
    return tensor;
}

/* ---- checking ---- */

/* The text is that of any tensor which does not fit: the returned one stands in for the
 * result meanwhile. -1, with the error in the frame. */
static int refuse_result(const dlb_python_call *call, int position, const DLTensor *got,
                         PyObject *value) {
    dlb_frame *frame = call->frame;
    const char *source = frame->source;
    DLTensor expected = frame->tensors[position];
    PyObject *name = PyObject_CallMethod(call->self->support, "source", "O", value);
    frame->source = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    PyErr_Clear();
    frame->tensors[position] = *got;
    dlb_frame_refuse(call->kernel, frame, position, "mismatch", -1);
    frame->tensors[position] = expected;
    frame->source = source;
    Py_XDECREF(name);
    return -1;
}

static bool is_as_expected(const DLTensor *expected, const DLTensor *got) {
    return dlb_dtype_key(expected->dtype) == dlb_dtype_key(got->dtype) &&
           expected->ndim == got->ndim &&
           (got->ndim == 0 || memcmp(expected->shape, got->shape,
                                     (size_t)got->ndim * sizeof(int64_t)) == 0);
}

/* ---- copying ---- */

#define WORTH_RELEASING 65536 /* bytes: below, a copy is faster than the GIL */

static void copy_on_host(const DLTensor *to, uint64_t flags, const dlb_view *view) {
    if (dlb_packed_bytes(to->dtype, flags, dlb_element_count(to)) < WORTH_RELEASING) {
        dlb_copy(to, flags, &view->dl, view->flags);
        return;
    }
    Py_BEGIN_ALLOW_THREADS
    dlb_copy(to, flags, &view->dl, view->flags);
    Py_END_ALLOW_THREADS
}

/* On a device, Python copies into a Tensor over the result. */
static int copy_on_device(dlb_python_call *call, int index, PyObject *value) {
    const dlb_frame *frame = call->frame;
    int position = call->argument_count + index;
    dlb_view view = {.dl = frame->tensors[position],
                     .flags = frame->flags[position],
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                     .buffer = dlb_new_loan(call, position)};
    if (view.buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    dlb_buffer *loan = dlb_buffer_retain(view.buffer);
    PyObject *made = dlb_tensor_new(dlb.tensor_type, &view);
    PyObject *done =
        made ? PyObject_CallMethod(call->self->support, "copy", "OOK", made, value,
                                   (unsigned long long)(uintptr_t)frame->stream)
             : NULL;
    Py_XDECREF(made);
    Py_XDECREF(done);
    int status = dlb_end_loan(call, loan);
    return done ? status : -1;
}

static int return_one(dlb_python_call *call, int index, PyObject *value) {
    int position = call->argument_count + index;
    const DLTensor *to = &call->frame->tensors[position];
    PyObject *tensor = NULL;
    dlb_view view;
    int status = dlb_take(value, &view);
    if (status == DLB_DECLINED) {
        tensor = take_slowly(call, value, &view);
        status = tensor ? 0 : -1;
    }
    if (status < 0)
        return -1;
    if (!is_as_expected(to, &view.dl))
        status = refuse_result(call, position, &view.dl, value);
    else if (!dlb_is_host(to->device))
        status = copy_on_device(call, index, value);
    else if (dlb_is_host(view.dl.device))
        copy_on_host(to, call->frame->flags[position], &view);
    else
        status = refuse_result(call, position, &view.dl, value);
    dlb_buffer_drop(view.buffer);
    Py_XDECREF(tensor);
    return status;
}

/* ---- one or several ---- */

int dlb_return_results(dlb_python_call *call, PyObject *value) {
    bool is_sequence = PyTuple_Check(value) || PyList_Check(value);
    if (call->result_count == 0)
        return 0;
    if (call->result_count == 1 && !is_sequence)
        return return_one(call, 0, value);
    Py_ssize_t count = is_sequence ? PySequence_Fast_GET_SIZE(value) : 1;
    if (count != call->result_count) {
        PyObject *error = PyObject_CallMethod(call->self->support, "wrong_count", "in",
                                              call->result_count, count);
        if (error != NULL)
            PyErr_SetObject((PyObject *)Py_TYPE(error), error);
        Py_XDECREF(error);
        return -1;
    }
    PyObject *sequence = PySequence_Tuple(value);
    int status = sequence ? 0 : -1;
    for (int i = 0; status == 0 && i < call->result_count; i++)
        status = return_one(call, i, PyTuple_GET_ITEM(sequence, i));
    Py_XDECREF(sequence);
    return status;
}

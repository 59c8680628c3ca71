/* Tensors on loan to a Python kernel. The memory belongs to the caller and may be gone
 * after the call: what the function keeps is found, saved where that is possible, and
 * reported. */
#include "abi/python.h"
#include "cuda/cuda.h"
#include "exchange/exchange.h"
#include "memory/copy.h"

#include <string.h>
#include <threads.h>

/* ---- lending ---- */

static bool is_writable(const dlb_python_call *call, int index) {
    if (call->frame->flags[index] & DLPACK_FLAG_BITMASK_READ_ONLY)
        return false;
    const dlb_signature *signature = call->kernel->signature;
    return signature == NULL || index >= call->argument_count ||
           signature->parameters[index].mutated;
}

/* The framework cannot represent this layout: give it a row-major, aligned copy. */
static int lend_copy(dlb_python_loan *loan, const DLTensor *tensor, dlb_view *view) {
    int64_t nbytes =
        dlb_packed_bytes(tensor->dtype, view->flags, dlb_element_count(tensor));
    dlb_buffer *fresh = dlb_buffer_allocate(nbytes, 64, false);
    if (fresh == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    dlb_buffer_drop(view->buffer);
    view->buffer = fresh;
    view->dl.data = fresh->data;
    dlb_row_major_strides(tensor->ndim, tensor->shape, view->scratch);
    view->dl.strides = view->scratch;
    dlb_copy(&view->dl, view->flags, tensor, view->flags);
    loan->is_copy = true;
    loan->write_back = !loan->watched;
    return 0;
}

/* On CUDA the contents are there on the caller's stream, and that is where the caller
 * goes on with them. */
dlb_buffer *dlb_new_loan(const dlb_python_call *call, int index) {
    const DLTensor *tensor = &call->frame->tensors[index];
    dlb_stream stream = (dlb_stream)call->frame->stream;
    dlb_buffer *loan = dlb_buffer_of_loan();
    if (loan != NULL && !dlb_buffer_track(loan, tensor->device)) {
        dlb_buffer_drop(loan);
        return NULL;
    }
    if (loan != NULL && loan->access != NULL && stream != 0)
        dlb_access_set_streams(loan->access, stream, stream);
    return loan;
}

static bool is_layout(const char *reason) {
    return strcmp(reason, "strides") == 0 || strcmp(reason, "alignment") == 0;
}

static int make_object(const dlb_python_call *call, dlb_python_loan *loan, int index) {
    const DLTensor *tensor = &call->frame->tensors[index];
    PyObject *converter = call->self->converter;
    dlb_view view;
    view.dl = *tensor;
    view.version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view.flags = call->frame->flags[index] & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (loan->watched && call->self->protects)
        view.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    view.buffer = dlb_new_loan(call, index);
    if (view.buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    const char *reason = dlb_converter_refusal(converter, &view);
    if (reason != NULL && is_layout(reason) && dlb_is_host(tensor->device) &&
        lend_copy(loan, tensor, &view) < 0) {
        dlb_buffer_drop(view.buffer);
        return -1;
    }
    loan->buffer = dlb_buffer_retain(view.buffer);
    loan->object = dlb_converter_give(converter, &view);
    return loan->object ? 0 : -1;
}

int dlb_lend(dlb_python_call *call, int index) {
    dlb_python_loan *loan = &call->loans[index];
    *loan = (dlb_python_loan){.watched = !is_writable(call, index)};
    call->lent = index + 1;
    const DLTensor *tensor = &call->frame->tensors[index];
    if (tensor->ndim < 0) { /* an optional argument that was left out */
        loan->object = Py_NewRef(Py_None);
        return 0;
    }
    return make_object(call, loan, index);
}

int dlb_loans_write_back(dlb_python_call *call) {
    int64_t strides[DLB_MAX_NDIM];
    for (int i = 0; i < call->lent; i++) {
        const dlb_python_loan *loan = &call->loans[i];
        if (!loan->write_back)
            continue;
        const DLTensor *tensor = &call->frame->tensors[i];
        uint64_t flags = call->frame->flags[i];
        DLTensor copy = *tensor;
        copy.data = loan->buffer->data;
        copy.strides = strides;
        dlb_row_major_strides(copy.ndim, copy.shape, strides);
        dlb_copy(tensor, flags, &copy, flags);
    }
    return 0;
}

/* ---- what was written against the rules ---- */

const char *dlb_tensor_name(const dlb_python_call *call, int index, char room[32]) {
    PyObject *names = call->self->tensor_names;
    const char *name = NULL;
    if (index < PyTuple_GET_SIZE(names))
        name = PyUnicode_AsUTF8(PyTuple_GET_ITEM(names, index));
    if (name != NULL)
        return name;
    PyErr_Clear();
    PyOS_snprintf(room, 32, "argument %d", index);
    return room;
}

/* A tensor made for this call has version 0; inference tensors have none. */
static bool was_written(PyObject *tensor) {
    static PyObject *name;
    if (name == NULL)
        name = PyUnicode_InternFromString("_version");
    PyObject *version = name ? PyObject_GetAttr(tensor, name) : NULL;
    bool written = version != NULL && PyLong_AsLong(version) > 0;
    Py_XDECREF(version);
    PyErr_Clear();
    return written;
}

static void report_written(const dlb_python_call *call) {
    char room[32];
    for (int i = 0; i < call->lent; i++) {
        const dlb_python_loan *loan = &call->loans[i];
        if (loan->watched && loan->object != Py_None && loan->object != NULL &&
            !loan->is_copy && was_written(loan->object)) {
            dlb_frame_fail(call->frame, DLB_ERROR_KERNEL,
                           "%s wrote into '%s', which is not declared to be written; "
                           "mark it with ! in the schema, or copy it first",
                           call->kernel->name, dlb_tensor_name(call, i, room));
            return;
        }
    }
}

/* ---- what was kept ---- */

/* What the function had other streams do comes before the caller's next work. */
int dlb_end_loan(dlb_python_call *call, dlb_buffer *loan) {
    dlb_stream_id owner;
    int status = 0;
    if (loan->access != NULL && dlb_access_end_on_owner(loan->access, &owner) < 0) {
        status = -1;
        if (call->frame->error.kind == DLB_ERROR_NONE)
            dlb_frame_fail_cuda(call->kernel, call->frame);
    }
    dlb_buffer_drop(loan);
    return status;
}

/* Take back what nobody holds any more; return how many are still held. An object that
 * others hold, too, stays with us, so that its memory can be saved. */
static int take_back(dlb_python_call *call) {
    int kept = 0;
    for (int i = 0; i < call->lent; i++) {
        dlb_python_loan *loan = &call->loans[i];
        if (loan->object != NULL &&
            (loan->is_copy || loan->object == Py_None || Py_REFCNT(loan->object) == 1))
            Py_CLEAR(loan->object);
        if (loan->buffer == NULL)
            continue;
        if (loan->object == NULL &&
            (loan->is_copy || atomic_load(&loan->buffer->references) == 1)) {
            dlb_end_loan(call, loan->buffer);
            loan->buffer = NULL;
        } else {
            kept++;
        }
    }
    return kept;
}

/* Call a function of the Python half; its own failure is of no interest. */
static void ask_support(const dlb_python_call *call, const char *name, PyObject *x) {
    PyObject *done =
        PyObject_CallMethod(call->self->support, name, "O", x ? x : Py_None);
    Py_XDECREF(done);
    PyErr_Clear();
}

/* Most of what is held is held by accident: by the frames of a traceback, by what the
 * framework has yet to release, by cycles, by work that is not done yet. */
static int take_back_patiently(dlb_python_call *call) {
    int kept = take_back(call);
    if (kept && call->frame->error.exception != NULL) {
        ask_support(call, "clear_frames", call->frame->error.exception);
        kept = take_back(call);
    }
    if (kept) {
        ask_support(call, "settle", NULL);
        kept = take_back(call);
    }
    if (kept) {
        ask_support(call, "collect", NULL);
        kept = take_back(call);
    }
    for (int i = 0; kept && i < 200; i++) {
        Py_BEGIN_ALLOW_THREADS
        thrd_sleep(&(struct timespec){.tv_nsec = i < 100 ? 50000 : 5000000}, NULL);
        Py_END_ALLOW_THREADS
        kept = take_back(call);
    }
    return kept;
}

static void save_memory(const dlb_python_call *call, int index) {
    const dlb_python_loan *loan = &call->loans[index];
    const DLTensor *tensor = &call->frame->tensors[index];
    if (loan->object != NULL && dlb_save(loan->object, tensor))
        return;
    PyObject *done = PyObject_CallMethod(call->self->support, "save", "OK",
                                         loan->object ? loan->object : Py_None,
                                         (unsigned long long)(uintptr_t)tensor->data);
    Py_XDECREF(done);
    PyErr_Clear();
}

static void report_kept(dlb_python_call *call) {
    char room[32], text[256];
    const char *name = NULL;
    for (int i = 0; i < call->lent; i++) {
        dlb_python_loan *loan = &call->loans[i];
        if (loan->buffer == NULL)
            continue;
        if (name == NULL)
            name = dlb_tensor_name(call, i, room);
        save_memory(call, i);
        Py_CLEAR(loan->object);
        dlb_end_loan(call, loan->buffer);
        loan->buffer = NULL;
    }
    dlb_error *error = &call->frame->error;
    if (error->kind == DLB_ERROR_NONE) {
        dlb_frame_fail(call->frame, DLB_ERROR_KERNEL,
                       "%s kept '%s' alive: it is on loan until the function returns; "
                       "copy it",
                       call->kernel->name, name);
        return;
    }
    PyOS_snprintf(text, sizeof text, "%s also kept '%s' alive: copy it",
                  call->kernel->name, name);
    PyObject *done = error->exception
                         ? PyObject_CallMethod(error->exception, "add_note", "s", text)
                         : NULL;
    Py_XDECREF(done);
    PyErr_Clear();
}

int dlb_loans_end(dlb_python_call *call) {
    if (call->self->counts_versions && call->frame->error.kind == DLB_ERROR_NONE)
        report_written(call);
    if (take_back(call) && take_back_patiently(call))
        report_kept(call);
    return call->frame->error.kind == DLB_ERROR_NONE ? 0 : -1;
}

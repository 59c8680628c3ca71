/* Python functions as kernels: the way from any thread into Python and back.
 *
 * The function is called with tensors of its own framework over the caller's memory,
 * borrowed for the call; scalars go by keyword. It writes its results into `out=`, or
 * returns them and they are copied. All of this needs the GIL. */
#include "abi/abi.h"
#include "cuda/cuda.h"
#include "exchange/exchange.h"
#include "memory/copy.h"

#include <string.h>
#include <structmember.h>
#include <threads.h>

/* A function, and how it wants to be called; `dlb_target.user` of the convention
 * "python". Made by dlbridge/kernels/kinds/python_kernel.py. */
typedef struct {
    PyObject_HEAD
    PyObject *function;
    PyObject *converter;     /* makes what the function is given */
    PyObject *framework;     /* its name, a str */
    PyObject *support;       /* the Python half of what is rare, see `Support` */
    PyObject *tensor_names;  /* inputs, then results; empty without a schema */
    PyObject *keyword_names; /* the scalars, then "stream" and "out" as wanted */
    int takes_stream;
    int takes_out;  /* writes its results into `out=`, instead of returning them */
    int protects;   /* the framework keeps read-only memory from being written */
    int only_reads; /* the function itself writes no argument: no copy guards them */
    int counts_versions; /* or tells afterwards: its tensors have `_version` */
} python_function;
/* One borrowed tensor. The memory is the caller's, or a copy in row-major order: where
 * the framework could not represent it, or would let the function write what must never
 * change. */
typedef struct {
    PyObject *object;   /* what the function gets */
    dlb_buffer *buffer; /* our reference: the last one, once it is returned */
    bool is_copy;       /* of memory that is counted: may be kept */
    bool write_back;    /* a copy of what the function writes */
    bool watched;       /* must not be written */
    bool guarded; /* a copy of what must never change, since nothing else protects it */
} borrowed_tensor;

typedef struct {
    const dlb_kernel *kernel;
    const python_function *self;
    dlb_frame *frame;
    int argument_count, result_count; /* tensors; without a schema all are arguments */
    int borrowed_count;               /* how many of `borrowed` are filled in */
    borrowed_tensor *borrowed;
    PyObject **room; /* what the function is called with */
} python_call;

/* ---- memory for tensors that the function kept against the rules ---- */

/* The bytes from the lowest to the highest element; `first` is how far the first one is
 * from the lowest. */
static int64_t span_of(const DLTensor *tensor, int64_t *first) {
    int64_t itemsize = dlb_element_bits(tensor->dtype, 0) / 8;
    int64_t low = 0, high = itemsize;
    *first = 0;
    if (dlb_element_count(tensor) == 0)
        return 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i] * itemsize;
        *(reach < 0 ? &low : &high) += reach;
    }
    *first = -low;
    return high - low;
}

/* New memory for `to`, which has another layout of the same elements, on the device of
 * `from`, with its values; on CUDA in the order of the caller's stream. NULL: no
 * memory, or the driver failed. */
static dlb_buffer *copy_to_new(DLTensor *to, const DLTensor *from, uint64_t flags,
                               dlb_access *access) {
    int64_t nbytes = dlb_packed_bytes(from->dtype, flags, dlb_element_count(from));
    bool on_host = dlb_is_host(from->device);
    dlb_buffer *fresh = on_host ? dlb_buffer_allocate(nbytes, 64, false)
                                : dlb_cuda_allocate(from->device, nbytes);
    if (fresh == NULL)
        return NULL;
    to->data = fresh->data;
    const dlb_cuda_operand target = {to, flags, fresh->access};
    const dlb_cuda_operand source = {from, flags, access};
    if (on_host) {
        dlb_copy(to, flags, from, flags);
    } else if (nbytes > 0 && dlb_cuda_copy(&target, &source) < 0) {
        dlb_buffer_drop(fresh);
        return NULL;
    }
    return fresh;
}

static dlb_buffer *copy_bytes(void *start, int64_t nbytes, DLDevice device,
                              dlb_access *access) {
    int64_t step = 1;
    const DLTensor from = {.data = start,
                           .device = device,
                           .ndim = 1,
                           .dtype = {kDLUInt, 8, 1},
                           .shape = &nbytes,
                           .strides = &step};
    DLTensor to = from;
    return copy_to_new(&to, &from, 0, access);
}

/* Give a Tensor, or a NumPy array over one, memory of its own with the values of
 * `tensor`, over whose memory it lies: a copy that has the strides of the original,
 * since the object keeps its own. Views of it keep the old address: they cannot be
 * found. False: it is something else. */
static bool give_own_memory(PyObject *object, const DLTensor *tensor) {
    bool is_array = dlb_is_numpy(object);
    dlb_tensor *kept = is_array ? dlb_numpy_base(object)
                                : (dlb_is_tensor(object) ? (dlb_tensor *)object : NULL);
    if (kept == NULL || kept->dl.data != tensor->data ||
        !(dlb_is_host(tensor->device) || dlb_cuda_has_memory(tensor->device)) ||
        dlb_element_bits(tensor->dtype, 0) % 8)
        return false;
    int64_t first, nbytes = span_of(tensor, &first);
    dlb_buffer *fresh = copy_bytes((char *)tensor->data - first, nbytes, tensor->device,
                                   kept->buffer->access);
    if (fresh == NULL)
        return false;
    kept->dl.data = (char *)fresh->data + first;
    if (is_array)
        dlb_numpy_set_data(object, kept->dl.data);
    dlb_buffer *original = kept->buffer;
    kept->buffer = fresh;
    dlb_buffer_drop(original);
    return true;
}

/* ---- borrowed tensors ----
 *
 * The memory belongs to the caller and may be gone after the call: what the function
 * keeps is found, saved where that is possible, and reported. */

static bool is_writable(const python_call *call, int index) {
    if (call->frame->flags[index] & DLPACK_FLAG_BITMASK_READ_ONLY)
        return false;
    const dlb_signature *signature = call->kernel->signature;
    return signature == NULL || index >= call->argument_count ||
           signature->parameters[index].mutated;
}

/* A row-major, aligned copy instead of the original. */
static int borrow_copy(borrowed_tensor *borrowed, const DLTensor *tensor,
                       dlb_view *view) {
    dlb_row_major_strides(tensor->ndim, tensor->shape, view->scratch);
    view->dl.strides = view->scratch;
    dlb_buffer *fresh =
        copy_to_new(&view->dl, tensor, view->flags, view->buffer->access);
    if (fresh == NULL) {
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return -1;
    }
    dlb_buffer_drop(view->buffer);
    view->buffer = fresh;
    borrowed->is_copy = true;
    borrowed->write_back = !borrowed->watched;
    return 0;
}

/* The caller's tensor of that index as borrowed memory; NULL: no memory. On CUDA the
 * contents are there on the caller's stream, and that is where the caller
 * goes on with them. */
static dlb_buffer *new_borrowed(const python_call *call, int index) {
    const DLTensor *tensor = &call->frame->tensors[index];
    dlb_stream stream = (dlb_stream)call->frame->stream;
    dlb_buffer *borrowed = dlb_buffer_of_loan();
    if (borrowed != NULL && !dlb_buffer_track(borrowed, tensor->device)) {
        dlb_buffer_drop(borrowed);
        return NULL;
    }
    if (borrowed != NULL && borrowed->access != NULL && stream != 0)
        dlb_access_set_streams(borrowed->access, stream, stream);
    return borrowed;
}

static bool is_layout(const char *reason) {
    return strcmp(reason, "strides") == 0 || strcmp(reason, "alignment") == 0;
}

/* Whether only a copy keeps the function from changing what must never change: values
 * of JAX and TensorFlow, and read-only memory. */
static bool needs_guard(const python_call *call, const borrowed_tensor *borrowed,
                        int index) {
    DLDevice device = call->frame->tensors[index].device;
    return borrowed->watched && !call->self->protects && !call->self->only_reads &&
           (call->frame->flags[index] & DLPACK_FLAG_BITMASK_READ_ONLY) &&
           (dlb_is_host(device) || dlb_cuda_has_memory(device));
}

static const char *tensor_name(const python_call *call, int index, char room[32]) {
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

/* The framework refused a tensor: the error that is set names kernel and argument. */
static void name_argument(const python_call *call, int index) {
    PyObject *type, *error, *traceback;
    char room[32];
    if (dlb.refusal == NULL || !PyErr_ExceptionMatches(dlb.refusal))
        return;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *named = PyObject_CallMethod(call->self->support, "refused", "sO",
                                          tensor_name(call, index, room), error);
    if (named != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(named), named);
    Py_XDECREF(named);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
}

/* Whether the error that is set refuses a layout, of which a copy would be taken; then
 * it is cleared. */
static bool was_layout_refused(void) {
    PyObject *type, *error, *traceback;
    if (dlb.refusal == NULL || !PyErr_ExceptionMatches(dlb.refusal))
        return false;
    PyErr_Fetch(&type, &error, &traceback);
    PyErr_NormalizeException(&type, &error, &traceback);
    PyObject *reason = error ? PyObject_GetAttrString(error, "reason") : NULL;
    const char *text = reason ? PyUnicode_AsUTF8(reason) : NULL;
    bool is_refused = text != NULL && is_layout(text);
    Py_XDECREF(reason);
    PyErr_Clear();
    if (!is_refused) {
        PyErr_Restore(type, error, traceback);
        return false;
    }
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(traceback);
    return true;
}

static int make_object(const python_call *call, borrowed_tensor *borrowed, int index,
                       bool copies) {
    const DLTensor *tensor = &call->frame->tensors[index];
    PyObject *converter = call->self->converter;
    dlb_view view;
    view.dl = *tensor;
    view.version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view.flags = call->frame->flags[index] & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    if (borrowed->watched && call->self->protects)
        view.flags |= DLPACK_FLAG_BITMASK_READ_ONLY;
    view.buffer = new_borrowed(call, index);
    if (view.buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    const char *reason = dlb_converter_refusal(converter, &view);
    borrowed->guarded = needs_guard(call, borrowed, index);
    copies |= reason != NULL && is_layout(reason) && dlb_is_host(tensor->device);
    if ((borrowed->guarded || copies) && borrow_copy(borrowed, tensor, &view) < 0) {
        dlb_buffer_drop(view.buffer);
        return -1;
    }
    borrowed->buffer = dlb_buffer_retain(view.buffer);
    borrowed->object = dlb_converter_give(converter, &view);
    if (borrowed->object != NULL)
        return 0;
    if (!borrowed->is_copy && dlb_is_host(tensor->device) && was_layout_refused()) {
        /* by Python: C does not know the limits of this version */
        dlb_buffer_drop(borrowed->buffer);
        borrowed->buffer = NULL;
        return make_object(call, borrowed, index, true);
    }
    name_argument(call, index);
    return -1;
}

static int borrow(python_call *call, int index) {
    borrowed_tensor *borrowed = &call->borrowed[index];
    *borrowed = (borrowed_tensor){.watched = !is_writable(call, index)};
    call->borrowed_count = index + 1;
    const DLTensor *tensor = &call->frame->tensors[index];
    if (tensor->ndim < 0) { /* an optional argument that was left out */
        borrowed->object = Py_NewRef(Py_None);
        return 0;
    }
    return make_object(call, borrowed, index, false);
}

/* Copy back what was written into copies. */
static void write_back(const python_call *call) {
    int64_t strides[DLB_MAX_NDIM];
    for (int i = 0; i < call->borrowed_count; i++) {
        const borrowed_tensor *borrowed = &call->borrowed[i];
        if (!borrowed->write_back)
            continue;
        const DLTensor *tensor = &call->frame->tensors[i];
        uint64_t flags = call->frame->flags[i];
        DLTensor copy = *tensor;
        copy.data = borrowed->buffer->data;
        copy.strides = strides;
        dlb_row_major_strides(copy.ndim, copy.shape, strides);
        dlb_copy(tensor, flags, &copy, flags);
    }
}

/* ---- writes against the rules ---- */

/* A tensor made for this call has version 0; inference tensors have none. */
static bool was_written(PyObject *tensor) {
    static _Atomic(PyObject *) kept;
    PyObject *name = dlb_kept_name(&kept, "_version");
    PyObject *version = name ? PyObject_GetAttr(tensor, name) : NULL;
    bool written = version != NULL && PyLong_AsLong(version) > 0;
    Py_XDECREF(version);
    PyErr_Clear();
    return written;
}

static void report_written(const python_call *call) {
    char room[32];
    for (int i = 0; i < call->borrowed_count; i++) {
        const borrowed_tensor *borrowed = &call->borrowed[i];
        if (borrowed->watched && borrowed->object != Py_None &&
            borrowed->object != NULL && (!borrowed->is_copy || borrowed->guarded) &&
            was_written(borrowed->object)) {
            dlb_frame_fail(call->frame, DLB_ERROR_KERNEL,
                           "%s wrote into '%s', which is not declared to be written; "
                           "mark it with ! in the schema, or copy it first%s",
                           call->kernel->name, tensor_name(call, i, room),
                           borrowed->is_copy ? "" : " (its values have changed)");
            return;
        }
    }
}

/* ---- tensors that were kept ---- */

/* The function's work on other streams comes before the caller's next work. */
static int return_buffer(python_call *call, dlb_buffer *borrowed) {
    dlb_stream_id home;
    int status = 0;
    if (borrowed->access != NULL &&
        dlb_access_end_on_owner(borrowed->access, &home) < 0) {
        status = -1;
        if (call->frame->error.kind == DLB_ERROR_NONE)
            dlb_frame_fail_cuda(call->kernel, call->frame);
    }
    dlb_buffer_drop(borrowed);
    return status;
}

/* Take back what nobody holds any more; return how many are still held. An object that
 * others also hold stays with us, so that its memory can be saved. */
static int take_back(python_call *call) {
    int kept = 0;
    for (int i = 0; i < call->borrowed_count; i++) {
        borrowed_tensor *borrowed = &call->borrowed[i];
        if (borrowed->object != NULL &&
            (borrowed->is_copy || borrowed->object == Py_None ||
             Py_REFCNT(borrowed->object) == 1))
            Py_CLEAR(borrowed->object);
        if (borrowed->buffer == NULL)
            continue;
        if (borrowed->object == NULL &&
            (borrowed->is_copy || atomic_load(&borrowed->buffer->references) == 1)) {
            return_buffer(call, borrowed->buffer);
            borrowed->buffer = NULL;
        } else {
            kept++;
        }
    }
    return kept;
}

/* XLA holds memory until its kernels on it are through. Nobody waits for these: the
 * caller's next work comes after them. Return how many are held for another reason. */
static int leave_to_device(python_call *call) {
    int kept = 0;
    for (int i = 0; i < call->borrowed_count; i++) {
        borrowed_tensor *borrowed = &call->borrowed[i];
        if (borrowed->buffer == NULL)
            continue;
        dlb_access *access = borrowed->buffer->access;
        if (borrowed->object != NULL || access == NULL || !dlb_access_is_busy(access)) {
            kept++;
            continue;
        }
        return_buffer(call, borrowed->buffer);
        borrowed->buffer = NULL;
    }
    return kept;
}

/* An error of the Python half is of no interest, but an interrupt meanwhile is that of
 * the call. */
static void drop_error(const python_call *call) {
    if (dlb_clear_error() == 0)
        return;
    if (call->frame->error.kind == DLB_ERROR_NONE)
        dlb_error_catch(&call->frame->error, call->kernel->name);
    PyErr_Clear();
}

static void ask_support(const python_call *call, const char *name, PyObject *x) {
    PyObject *done =
        PyObject_CallMethod(call->self->support, name, "O", x ? x : Py_None);
    Py_XDECREF(done);
    drop_error(call);
}

/* Most of what is held is held by accident: by the frames of a traceback, by what the
 * framework has yet to release, by cycles, by work that is not done yet. */
static int take_back_patiently(python_call *call) {
    int kept = take_back(call);
    if (kept && call->frame->error.exception != NULL) {
        ask_support(call, "clear_frames", call->frame->error.exception);
        kept = take_back(call);
    }
    if (kept) {
        ask_support(call, "settle", NULL);
        kept = take_back(call) == 0 ? 0 : leave_to_device(call);
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

static void save_memory(const python_call *call, int index) {
    const borrowed_tensor *borrowed = &call->borrowed[index];
    const DLTensor *tensor = &call->frame->tensors[index];
    if (borrowed->object != NULL && give_own_memory(borrowed->object, tensor))
        return;
    PyObject *done = PyObject_CallMethod(call->self->support, "save", "OK",
                                         borrowed->object ? borrowed->object : Py_None,
                                         (unsigned long long)(uintptr_t)tensor->data);
    Py_XDECREF(done);
    drop_error(call);
}

static void report_kept(python_call *call) {
    char room[32], text[256];
    const char *name = NULL;
    for (int i = 0; i < call->borrowed_count; i++) {
        borrowed_tensor *borrowed = &call->borrowed[i];
        if (borrowed->buffer == NULL)
            continue;
        if (name == NULL)
            name = tensor_name(call, i, room);
        save_memory(call, i);
        Py_CLEAR(borrowed->object);
        return_buffer(call, borrowed->buffer);
        borrowed->buffer = NULL;
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
    dlb_drop_error();
}

/* Return everything, whatever happened; what was kept or written against the rules
 * is an error in the frame: -1. No Python error is set before or after. */
static int return_all(python_call *call) {
    if (call->self->counts_versions && call->frame->error.kind == DLB_ERROR_NONE)
        report_written(call);
    if (take_back(call) && take_back_patiently(call))
        report_kept(call);
    return call->frame->error.kind == DLB_ERROR_NONE ? 0 : -1;
}

/* ---- results ----
 *
 * The returned value is taken from whatever framework it is of, compared with
 * the result that the caller expects, and copied into it. */

/* The Tensor must outlive the view, which points to its dims. */
static PyObject *take_slowly(const python_call *call, PyObject *value, dlb_view *view) {
    PyObject *tensor = PyObject_CallMethod(call->self->support, "take", "O", value);
    if (tensor != NULL && !dlb_is_tensor(tensor)) {
        PyErr_Format(PyExc_TypeError, "Support.take returned %R", tensor);
        Py_CLEAR(tensor);
    }
    if (tensor != NULL)
        dlb_tensor_view((dlb_tensor *)tensor, view);
    return tensor;
}

/* The text is that of any tensor which does not fit: the returned one stands in for the
 * result meanwhile. -1, with the error in the frame. */
static int refuse_result(const python_call *call, int position, const DLTensor *got,
                         PyObject *value) {
    dlb_frame *frame = call->frame;
    const char *source = frame->source;
    DLTensor expected = frame->tensors[position];
    PyObject *name = PyObject_CallMethod(call->self->support, "source", "O", value);
    frame->source = name && PyUnicode_Check(name) ? PyUnicode_AsUTF8(name) : NULL;
    dlb_drop_error();
    frame->tensors[position] = *got;
    dlb_frame_refuse(call->kernel, frame, position, "returned", -1);
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

/* On a device, Python copies into a Tensor over the result. */
static int copy_on_device(python_call *call, int index, PyObject *value) {
    const dlb_frame *frame = call->frame;
    int position = call->argument_count + index;
    dlb_view view = {.dl = frame->tensors[position],
                     .flags = frame->flags[position],
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
                     .buffer = new_borrowed(call, position)};
    if (view.buffer == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    dlb_buffer *borrowed = dlb_buffer_retain(view.buffer);
    PyObject *made = dlb_tensor_new(dlb.tensor_type, &view);
    PyObject *done =
        made ? PyObject_CallMethod(call->self->support, "copy", "OOK", made, value,
                                   (unsigned long long)(uintptr_t)frame->stream)
             : NULL;
    Py_XDECREF(made);
    Py_XDECREF(done);
    int status = return_buffer(call, borrowed);
    return done ? status : -1;
}

static int return_one(python_call *call, int index, PyObject *value) {
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
        dlb_copy_on_host(to, call->frame->flags[position], &view.dl, view.flags);
    else
        status = refuse_result(call, position, &view.dl, value);
    dlb_buffer_drop(view.buffer);
    Py_XDECREF(tensor);
    return status;
}

/* -1 with a Python error. */
static int return_results(python_call *call, PyObject *value) {
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

/* ---- arguments ---- */

/* As the function's framework has it. */
static PyObject *dtype_object(const python_call *call, uint32_t key) {
    PyObject *dtype = dlb_dtype_object(dlb_dtype_of_key(key));
    return dtype ? PyObject_CallMethod(call->self->support, "own_dtype", "N", dtype)
                 : NULL;
}

static PyObject *scalar_object(const python_call *call, int index) {
    const dlb_scalar *scalar = &call->frame->scalars[index];
    const dlb_signature *signature = call->kernel->signature;
    const dlb_scalar_parameter *parameter =
        signature ? &signature->scalars[index] : NULL;
    switch (scalar->kind) {
    case DLB_INT:
        if (parameter != NULL && parameter->is_dtype)
            return dtype_object(call, (uint32_t)scalar->value.i);
        if (parameter != NULL && parameter->is_bool)
            return PyBool_FromLong(scalar->value.i != 0);
        return PyLong_FromLongLong(scalar->value.i);
    case DLB_FLOAT:
        return PyFloat_FromDouble(scalar->value.f);
    case DLB_STRING:
        return PyUnicode_FromString(scalar->value.s);
    case DLB_INTS:
    case DLB_FLOATS:
        return dlb_list_object(scalar->value.list);
    default:
        Py_RETURN_NONE;
    }
}

static PyObject *out_object(const python_call *call) {
    const borrowed_tensor *first = &call->borrowed[call->argument_count];
    if (call->result_count == 1)
        return Py_NewRef(first->object);
    PyObject *tuple = PyTuple_New(call->result_count);
    for (int i = 0; tuple != NULL && i < call->result_count; i++)
        PyTuple_SET_ITEM(tuple, i, Py_NewRef(first[i].object));
    return tuple;
}

/* Keywords, in the order of keyword_names; NULL in `stack` ends with an error. */
static int push_keywords(const python_call *call, PyObject **stack) {
    int count = 0, scalars = call->frame->scalar_count;
    for (int i = 0; i < scalars; i++)
        if ((stack[count++] = scalar_object(call, i)) == NULL)
            return count;
    if (call->self->takes_stream)
        if ((stack[count++] = PyLong_FromVoidPtr(call->frame->stream)) == NULL)
            return count;
    if (call->self->takes_out)
        stack[count++] = out_object(call);
    return count;
}

/* ---- the call ---- */

static PyObject *call_function(const python_call *call) {
    PyObject **stack = call->room + 1;
    int given = call->argument_count;
    for (int i = 0; i < given; i++)
        stack[i] = call->borrowed[i].object;
    int keywords = push_keywords(call, stack + given);
    bool complete = keywords == 0 || stack[given + keywords - 1] != NULL;
    PyObject *value = NULL;
    if (complete)
        value = PyObject_Vectorcall(call->self->function, stack,
                                    (size_t)given | PY_VECTORCALL_ARGUMENTS_OFFSET,
                                    keywords ? call->self->keyword_names : NULL);
    for (int i = 0; i < keywords; i++)
        Py_XDECREF(stack[given + i]);
    return value;
}

static int borrow_all(python_call *call) {
    int count = call->argument_count + (call->self->takes_out ? call->result_count : 0);
    for (int i = 0; i < count; i++)
        if (borrow(call, i) < 0)
            return -1;
    return 0;
}

/* On a device, the framework's current stream and device are the caller's for as long
 * as the call lasts. NULL without an exception: there is nothing to switch. */
static PyObject *enter_device(const python_call *call) {
    const dlb_frame *frame = call->frame;
    const DLTensor *first = frame->tensor_count > 0 ? &frame->tensors[0] : NULL;
    if (first == NULL || dlb_is_host(first->device))
        return NULL;
    return PyObject_CallMethod(
        call->self->support, "enter", "iiN", (int)first->device.device_type,
        (int)first->device.device_id, PyLong_FromVoidPtr(frame->stream));
}

static void leave_device(PyObject *scope) {
    PyObject *done = scope ? PyObject_CallMethod(scope, "close", NULL) : NULL;
    if (scope != NULL && done == NULL)
        PyErr_WriteUnraisable(scope);
    Py_XDECREF(done);
    Py_XDECREF(scope);
}

static int run_in_scope(python_call *call) {
    PyObject *value = borrow_all(call) == 0 ? call_function(call) : NULL;
    int status = value ? 0 : -1;
    if (value != NULL && !call->self->takes_out)
        status = return_results(call, value);
    Py_XDECREF(value);
    if (status == 0)
        write_back(call);
    if (PyErr_Occurred())
        dlb_error_catch(&call->frame->error, call->kernel->name);
    return return_all(call) < 0 ? -1 : status;
}

static int run_call(python_call *call) {
    PyObject *scope = enter_device(call);
    if (PyErr_Occurred())
        return dlb_error_catch(&call->frame->error, call->kernel->name);
    int status = run_in_scope(call);
    leave_device(scope);
    return status;
}

static int check_scalars(const python_call *call) {
    Py_ssize_t expected = PyTuple_GET_SIZE(call->self->keyword_names);
    expected -= call->self->takes_stream + call->self->takes_out;
    if (call->frame->scalar_count == expected)
        return 0;
    return dlb_frame_fail(call->frame, DLB_ERROR_KERNEL,
                          "%s: called with %d scalars, its function takes %d",
                          call->kernel->name, (int)call->frame->scalar_count,
                          (int)expected);
}

/* XLA's threads come without the GIL; JAX itself must not be entered from them, since
 * it may wait for one of them. */
static _Thread_local int xla_depth;

PyObject *dlb_inside_xla(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(xla_depth > 0);
}

static bool is_from_xla(const dlb_frame *frame, bool held_the_gil) {
    return !held_the_gil && frame->source != NULL &&
           strncmp(frame->source, "jax", 3) == 0;
}

#define SPARE (1 + DLB_MAX_SCALARS + 2) /* arguments that are not tensors */

static int run_few(python_call *call) {
    borrowed_tensor borrowed[DLB_MAX_TENSORS];
    PyObject *room[DLB_MAX_TENSORS + SPARE];
    call->borrowed = borrowed;
    call->room = room;
    return run_call(call);
}

static int run_many(python_call *call) {
    size_t count = (size_t)call->frame->tensor_count;
    call->borrowed = malloc(count * sizeof *call->borrowed);
    call->room = malloc((count + SPARE) * sizeof *call->room);
    int status = call->borrowed == NULL || call->room == NULL
                     ? dlb_frame_fail(call->frame, DLB_ERROR_MEMORY,
                                      "%s: out of memory", call->kernel->name)
                     : run_call(call);
    free(call->room);
    free(call->borrowed);
    return status;
}

int dlb_invoke_python(const dlb_kernel *kernel, const dlb_target *target,
                      dlb_frame *frame, dlb_context *Py_UNUSED(context)) {
    int state;
    bool held_the_gil = Py_IsInitialized() && PyGILState_Check();
    if (!dlb_enter_python(&state))
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL,
                              "%s: the interpreter is shutting down", kernel->name);
    python_call call;
    call.kernel = kernel;
    call.self = target->user;
    call.frame = frame;
    call.borrowed_count = 0;
    call.result_count = kernel->signature ? kernel->signature->result_count : 0;
    call.argument_count = frame->tensor_count - call.result_count;
    int from_xla = is_from_xla(frame, held_the_gil);
    xla_depth += from_xla;
    dlb_kernel_depth++;
    int status = check_scalars(&call);
    if (status == 0)
        status =
            frame->tensor_count > DLB_MAX_TENSORS ? run_many(&call) : run_few(&call);
    dlb_kernel_depth--;
    xla_depth -= from_xla;
    dlb_leave_python(state);
    return status;
}

/* ---- the type ---- */

static PyObject *function_new(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"function",        "converter",    "framework",
                            "support",         "tensor_names", "keyword_names",
                            "takes_stream",    "takes_out",    "protects",
                            "counts_versions", "only_reads",   NULL};
    python_function made = {0};
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "OO!UOO!O!$ppppp:PythonFunction", names, &made.function,
            &dlb_ConverterType, &made.converter, &made.framework, &made.support,
            &PyTuple_Type, &made.tensor_names, &PyTuple_Type, &made.keyword_names,
            &made.takes_stream, &made.takes_out, &made.protects, &made.counts_versions,
            &made.only_reads))
        return NULL;
    python_function *self = (python_function *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    made.ob_base = self->ob_base;
    *self = made;
    Py_INCREF(self->function);
    Py_INCREF(self->converter);
    Py_INCREF(self->framework);
    Py_INCREF(self->support);
    Py_INCREF(self->tensor_names);
    Py_INCREF(self->keyword_names);
    return (PyObject *)self;
}

static void function_dealloc(PyObject *object) {
    python_function *self = (python_function *)object;
    Py_DECREF(self->function);
    Py_DECREF(self->converter);
    Py_DECREF(self->framework);
    Py_DECREF(self->support);
    Py_DECREF(self->tensor_names);
    Py_DECREF(self->keyword_names);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *function_repr(PyObject *object) {
    python_function *self = (python_function *)object;
    return PyUnicode_FromFormat("<%U function %R as a kernel>", self->framework,
                                self->function);
}

#define MEMBER(name, type)                                                             \
    {#name, type, offsetof(python_function, name), READONLY, NULL}
static PyMemberDef function_members[] = {
    MEMBER(function, T_OBJECT),      MEMBER(framework, T_OBJECT),
    MEMBER(support, T_OBJECT),       MEMBER(tensor_names, T_OBJECT),
    MEMBER(keyword_names, T_OBJECT), MEMBER(takes_out, T_INT),
    MEMBER(takes_stream, T_INT),     {NULL, 0, 0, 0, NULL},
};

PyTypeObject dlb_PythonFunctionType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.PythonFunction",
    .tp_doc = "A Python function and how it wants to be called as a kernel.",
    .tp_basicsize = sizeof(python_function),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = function_new,
    .tp_dealloc = function_dealloc,
    .tp_repr = function_repr,
    .tp_members = function_members,
};

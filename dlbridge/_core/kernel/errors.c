/* The errors of a call: made in C without Python, turned into exceptions and back, and
 * explained by Python. */
#include "cuda/cuda.h"
#include "kernel/kernel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

dlb_kernel_hooks dlb_hooks;

/* ---- references ---- */

/* Drop references whose finalisers may run Python, while an exception may be on its
 * way. */
static void drop_objects(PyObject *first, PyObject *second) {
    PyObject *kind, *value, *trace;
    int state;
    if ((first == NULL && second == NULL) || !dlb_enter_python(&state))
        return;
    PyErr_Fetch(&kind, &value, &trace);
    Py_XDECREF(first);
    Py_XDECREF(second);
    PyErr_Restore(kind, value, trace);
    dlb_leave_python(state);
}

void dlb_kernel_drop(dlb_kernel *kernel) {
    if (atomic_fetch_sub_explicit(&kernel->references, 1, memory_order_acq_rel) != 1)
        return;
    PyObject *schema = kernel->schema, *keeps = kernel->keeps;
    free((void *)kernel->signature);
    free(kernel->cost);
    free(kernel->written);
    free(kernel->order);
    free(kernel->name);
    dlb_count_live(kernels, -1);
    free(kernel);
    drop_objects(schema, keeps);
}

void dlb_error_clear(dlb_error *error) {
    PyObject *exception = error->exception;
    error->exception = NULL;
    error->kind = DLB_ERROR_NONE;
    drop_objects(exception, NULL);
}

/* ---- texts without control characters ---- */

/* Those of dlbridge/text.py that are not shown even in texts of several lines. */
static bool is_control(unsigned code) {
    return (code < ' ' && code != '\n' && code != '\t') ||
           (code >= 0x7f && code <= 0x9f) || code == 0x61c || code == 0x200e ||
           code == 0x200f || (code >= 0x2028 && code <= 0x202e) ||
           (code >= 0x2066 && code <= 0x2069) || (code >= 0xd800 && code <= 0xdfff) ||
           code == 0xfeff;
}

/* The character at `text`, in UTF-8, and how many bytes it has; of bytes that are none
 * each stands for itself. Characters of four bytes are no control characters. */
static unsigned read_character(const unsigned char *text, size_t *length) {
    bool goes_on = (text[1] & 0xc0) == 0x80;
    *length = 1;
    if (text[0] >= 0xc2 && text[0] < 0xe0 && goes_on) {
        *length = 2;
        return (text[0] & 0x1fu) << 6 | (text[1] & 0x3fu);
    }
    if (text[0] >> 4 == 0xe && goes_on && (text[2] & 0xc0) == 0x80) {
        *length = 3;
        return (text[0] & 0xfu) << 12 | (text[1] & 0x3fu) << 6 | (text[2] & 0x3fu);
    }
    if (text[0] >= 0xf0 && goes_on && (text[2] & 0xc0) == 0x80 &&
        (text[3] & 0xc0) == 0x80) {
        *length = 4;
        return 0x10000;
    }
    return text[0];
}

/* A kernel or an exception may quote what came from outside. Frameworks show the text
 * as it is. What becomes too long is cut. */
static void escape_controls(dlb_error *error) {
    char escaped[DLB_ERROR_SIZE];
    size_t at = 0, length;
    for (const char *from = error->text; *from != 0; from += length) {
        unsigned code = read_character((const unsigned char *)from, &length);
        if (at + sizeof "\\uNNNN" > sizeof escaped)
            break;
        if (!is_control(code)) {
            memcpy(escaped + at, from, length);
            at += length;
            continue;
        }
        if (code == '\r')
            at += (size_t)snprintf(escaped + at, sizeof escaped - at, "\\r");
        else
            at += (size_t)snprintf(escaped + at, sizeof escaped - at,
                                   code < 0x100 ? "\\x%02x" : "\\u%04x", code);
    }
    escaped[at] = 0;
    memcpy(error->text, escaped, at + 1);
}

/* ---- made in C ---- */

int dlb_frame_fail(dlb_frame *frame, dlb_error_class kind, const char *format, ...) {
    va_list arguments;
    frame->error.kind = kind;
    va_start(arguments, format);
    vsnprintf(frame->error.text, sizeof frame->error.text, format, arguments);
    va_end(arguments);
    escape_controls(&frame->error);
    return -1;
}

const char *dlb_show_name(char *text, size_t room, const char *name, size_t length) {
    static const char digits[] = "0123456789abcdef";
    size_t at = 0;
    for (size_t i = 0; i < length && at + sizeof "\\xNN" <= room; i++) {
        unsigned char byte = (unsigned char)name[i];
        if (byte >= ' ' && byte < 0x7f) {
            text[at++] = (char)byte;
            continue;
        }
        text[at++] = '\\';
        text[at++] = 'x';
        text[at++] = digits[byte >> 4];
        text[at++] = digits[byte & 15];
    }
    text[at] = 0;
    return text;
}

/* ---- C error to Python exception ---- */

static PyObject *class_of(dlb_error_class kind) {
    struct {
        PyObject *hook, *standard;
    } classes[] = {
        [DLB_ERROR_NONE] = {NULL, PyExc_SystemError},
        [DLB_ERROR_TYPE] = {dlb_hooks.type_error, PyExc_TypeError},
        [DLB_ERROR_VALUE] = {dlb_hooks.value_error, PyExc_ValueError},
        [DLB_ERROR_BUFFER] = {NULL, PyExc_BufferError},
        [DLB_ERROR_KERNEL] = {dlb_hooks.kernel_error, PyExc_RuntimeError},
        [DLB_ERROR_PYTHON] = {NULL, PyExc_RuntimeError},
        [DLB_ERROR_MEMORY] = {dlb_hooks.memory_error, PyExc_MemoryError},
    };
    return classes[kind].hook ? classes[kind].hook : classes[kind].standard;
}

/* With the traceback that it had. */
static void raise_again(PyObject *exception) {
    PyErr_Restore(Py_NewRef((PyObject *)Py_TYPE(exception)), Py_NewRef(exception),
                  PyException_GetTraceback(exception));
}

PyObject *dlb_raise(dlb_error *error) {
    /* A kernel's text may be in any encoding, and cut off anywhere. */
    PyObject *text = error->exception
                         ? NULL
                         : PyUnicode_DecodeUTF8(
                               error->text, (Py_ssize_t)strlen(error->text), "replace");
    if (error->exception != NULL)
        raise_again(error->exception);
    else if (text != NULL && error->kind == DLB_ERROR_BUFFER)
        dlb_refuse(error->reason ? error->reason : "consumer", "%U", text);
    else if (text != NULL)
        PyErr_SetObject(class_of(error->kind), text);
    Py_XDECREF(text);
    dlb_error_clear(error);
    return NULL;
}

/* ---- Python exception to C error ---- */

/* str(exception), after `before`; never fails. */
static void write_text(dlb_error *error, const char *before, const char *separator,
                       PyObject *exception) {
    PyObject *text = PyObject_Str(exception);
    PyObject *bytes = text ? PyUnicode_AsEncodedString(text, "utf-8", "replace") : NULL;
    dlb_drop_error();
    snprintf(error->text, sizeof error->text, "%s%s%s", before, separator,
             bytes ? PyBytes_AS_STRING(bytes) : Py_TYPE(exception)->tp_name);
    escape_controls(error);
    Py_XDECREF(bytes);
    Py_XDECREF(text);
}

int dlb_error_catch(dlb_error *error, const char *name) {
    char before[DLB_ERROR_SIZE / 2];
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_SystemError, "a failure without an exception");
    PyObject *exception = dlb_take_exception();
    snprintf(before, sizeof before, "%s: %s", name, Py_TYPE(exception)->tp_name);
    write_text(error, before, ": ", exception);
    error->kind = DLB_ERROR_PYTHON;
    error->exception = exception;
    return -1;
}

int dlb_frame_fail_cuda(const dlb_kernel *kernel, dlb_frame *frame) {
    int state;
    const dlb_cuda_failure_t failed = *dlb_cuda_failure();
    if (!dlb_enter_python(&state))
        return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: %s failed with CUresult %d",
                              kernel->name, failed.function, failed.code);
    dlb_cuda_raise(kernel->name);
    dlb_error_catch(&frame->error, kernel->name);
    dlb_leave_python(state);
    return -1;
}

/* ---- texts of refused tensors ---- */

static PyObject *describe(const DLTensor *tensor, const char *source) {
    if (tensor->ndim < 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(N(iii)z(ii))", dlb_dims_tuple(tensor->shape, tensor->ndim),
                         tensor->dtype.code, tensor->dtype.bits, tensor->dtype.lanes,
                         source, (int)tensor->device.device_type,
                         (int)tensor->device.device_id);
}

static PyObject *describe_all(const dlb_frame *frame) {
    int32_t count = frame->tensor_count > frame->input_count ? frame->tensor_count
                                                             : frame->input_count;
    PyObject *all = PyTuple_New(count);
    for (int32_t i = 0; all != NULL && i < count; i++) {
        PyObject *item = describe(&frame->tensors[i], frame->source);
        if (item == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, item);
    }
    return all;
}

PyObject *dlb_list_object(const dlb_list *list) {
    PyObject *tuple = PyTuple_New((Py_ssize_t)list->count);
    for (Py_ssize_t i = 0; tuple != NULL && i < list->count; i++) {
        PyObject *item = list->ints ? PyLong_FromLongLong(list->ints[i])
                                    : PyFloat_FromDouble(list->floats[i]);
        if (item == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

/* Integers and lists, of which some may be dimensions; None for the others. */
static PyObject *list_sizes(const dlb_frame *frame) {
    PyObject *all = PyTuple_New(frame->scalar_count);
    for (int32_t i = 0; all != NULL && i < frame->scalar_count; i++) {
        const dlb_scalar *scalar = &frame->scalars[i];
        PyObject *item = scalar->kind == DLB_INTS ? dlb_list_object(scalar->value.list)
                         : scalar->kind == DLB_INT
                             ? PyLong_FromLongLong(scalar->value.i)
                             : Py_NewRef(Py_None);
        if (item == NULL)
            Py_CLEAR(all);
        else
            PyTuple_SET_ITEM(all, i, item);
    }
    return all;
}

static dlb_error_class kind_of(PyObject *exception) {
    if (PyObject_TypeCheck(exception, (PyTypeObject *)PyExc_BufferError))
        return DLB_ERROR_BUFFER;
    if (PyObject_TypeCheck(exception, (PyTypeObject *)PyExc_TypeError))
        return DLB_ERROR_TYPE;
    if (PyObject_TypeCheck(exception, (PyTypeObject *)PyExc_ValueError))
        return DLB_ERROR_VALUE;
    return DLB_ERROR_PYTHON;
}

/* False where there is no hook to ask. */
static bool explain(const dlb_kernel *kernel, dlb_frame *frame, int index,
                    const char *reason, int other, int64_t count, int64_t place) {
    if (dlb_hooks.explain == NULL)
        return false;
    PyObject *schema = kernel->schema ? kernel->schema : Py_None;
    PyObject *exception = PyObject_CallFunction(
        dlb_hooks.explain, "sONNisiLL", kernel->name, schema, describe_all(frame),
        list_sizes(frame), index, reason, other, (long long)count, (long long)place);
    if (exception == NULL || !PyExceptionInstance_Check(exception)) {
        if (exception != NULL)
            PyErr_Format(PyExc_TypeError, "explain must return an exception, got %R",
                         exception);
        Py_XDECREF(exception);
        dlb_error_catch(&frame->error, kernel->name);
        return true;
    }
    write_text(&frame->error, "", "", exception);
    frame->error.kind = kind_of(exception);
    frame->error.reason = reason;
    frame->error.exception = exception;
    return true;
}

/* The same on any thread. */
static bool explain_anywhere(const dlb_kernel *kernel, dlb_frame *frame, int index,
                             const char *reason, int other, int64_t count,
                             int64_t place) {
    int state;
    if (!dlb_enter_python(&state))
        return false;
    bool is_explained = explain(kernel, frame, index, reason, other, count, place);
    dlb_leave_python(state);
    return is_explained;
}

int dlb_frame_report(const dlb_kernel *kernel, dlb_frame *frame, int index,
                     const char *reason, int64_t count, int64_t place) {
    if (explain_anywhere(kernel, frame, index, reason, -1, count, place))
        return -1;
    return dlb_frame_fail(frame, DLB_ERROR_KERNEL, "%s: tensor %d: %s", kernel->name,
                          index, reason);
}

int dlb_frame_refuse(const dlb_kernel *kernel, dlb_frame *frame, int index,
                     const char *reason, int other) {
    if (explain_anywhere(kernel, frame, index, reason, other, 0, 0))
        return -1;
    bool is_mismatch =
        strcmp(reason, "mismatch") == 0 || strcmp(reason, "returned") == 0;
    frame->error.reason = reason;
    return dlb_frame_fail(frame, is_mismatch ? DLB_ERROR_VALUE : DLB_ERROR_BUFFER,
                          "%s: tensor %d: %s", kernel->name, index, reason);
}

/* ---- hooks ---- */

static void ask_for_kernel(const char *name, size_t length) {
    int state;
    if (dlb_hooks.find == NULL || !dlb_enter_python(&state))
        return;
    PyObject *done =
        PyObject_CallFunction(dlb_hooks.find, "s#", name, (Py_ssize_t)length);
    if (done == NULL)
        PyErr_WriteUnraisable(dlb_hooks.find);
    Py_XDECREF(done);
    dlb_leave_python(state);
}

PyObject *dlb_set_kernel_hooks(PyObject *Py_UNUSED(module), PyObject *args,
                               PyObject *kwargs) {
    static char *names[] = {
        "explain",      "slow_call", "type_error", "value_error", "kernel_error",
        "memory_error", "dtype",     "find",       "dtypes",      NULL};
    PyObject **targets[] = {
        &dlb_hooks.explain,     &dlb_hooks.slow_call,    &dlb_hooks.type_error,
        &dlb_hooks.value_error, &dlb_hooks.kernel_error, &dlb_hooks.memory_error,
        &dlb_hooks.dtype,       &dlb_hooks.find,         &dlb_hooks.dtypes};
    PyObject *values[9] = {NULL};
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$OOOOOOOOO:set_kernel_hooks",
                                     names, &values[0], &values[1], &values[2],
                                     &values[3], &values[4], &values[5], &values[6],
                                     &values[7], &values[8]))
        return NULL;
    for (int i = 0; i < 9; i++)
        if (values[i] != NULL)
            Py_XSETREF(*targets[i], Py_NewRef(values[i]));
    dlb_ask_for_kernel = ask_for_kernel;
    Py_RETURN_NONE;
}

/* Refusals: one exception type, a reason code, a text. */
#include "python/python.h"
#include "cuda/cuda.h"

#include <stdarg.h>
#include <string.h>

static void raise(const char *reason, PyObject *text) {
    if (text == NULL)
        return;
    PyObject *type = dlb.refusal ? dlb.refusal : PyExc_BufferError;
    PyObject *exception = dlb.refusal ? PyObject_CallFunction(type, "sO", reason, text)
                                      : PyObject_CallOneArg(type, text);
    if (exception != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
    Py_XDECREF(exception);
    Py_DECREF(text);
}

PyObject *dlb_refuse(const char *reason, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    raise(reason, PyUnicode_FromFormatV(format, arguments));
    va_end(arguments);
    return NULL;
}

PyObject *dlb_refuse_take(const char *reason, const char *call,
                          const DLTensor *tensor) {
    if (strcmp(reason, "memory") == 0)
        return PyErr_NoMemory();
    /* Of another major version nothing was read. */
    return dlb_refuse_layout(reason, call, strcmp(reason, "version") ? tensor : NULL);
}

PyObject *dlb_refuse_layout(const char *reason, const char *call,
                            const DLTensor *tensor) {
    PyObject *errors = PyImport_ImportModule("dlbridge.errors");
    PyObject *reasons = errors ? PyObject_GetAttrString(errors, "REASONS") : NULL;
    PyObject *sentence = reasons ? PyMapping_GetItemString(reasons, reason) : NULL;
    if (sentence != NULL && tensor != NULL)
        raise(reason,
              PyUnicode_FromFormat(
                  "%s: %U (ndim %d, dtype code %d, %d bits, %d lanes, device (%d, %d))",
                  call, sentence, (int)tensor->ndim, tensor->dtype.code,
                  tensor->dtype.bits, tensor->dtype.lanes,
                  (int)tensor->device.device_type, (int)tensor->device.device_id));
    else if (sentence != NULL)
        raise(reason, PyUnicode_FromFormat("%s: %U", call, sentence));
    Py_XDECREF(sentence);
    Py_XDECREF(reasons);
    Py_XDECREF(errors);
    return NULL;
}

/* ---- failures of the CUDA driver ---- */

PyObject *dlb_cuda_raise(const char *call) {
    const dlb_cuda_failure_t *failure = dlb_cuda_failure();
    if (failure->kind == DLB_CUDA_MEMORY)
        return PyErr_NoMemory();
    if (dlb.cuda_failure == NULL)
        return PyErr_Format(PyExc_RuntimeError, "%s: %s failed with CUresult %d", call,
                            failure->function, failure->code);
    PyObject *exception = PyObject_CallFunction(
        dlb.cuda_failure, "siiss", call, (int)failure->kind, failure->code,
        failure->function, failure->kind == DLB_CUDA_MISSING ? dlb_cuda_missing() : "");
    if (exception != NULL) {
        PyErr_SetObject((PyObject *)Py_TYPE(exception), exception);
        Py_DECREF(exception);
    }
    return NULL;
}

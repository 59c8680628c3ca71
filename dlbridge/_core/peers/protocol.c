/* Types that have only __dlpack__: the standard itself. */
#include "peers/peers.h"

/* Names and arguments of the calls, made once; interned, so that they are found by
 * their addresses. */
static PyObject *device_name, *dlpack_name, *version_keyword, *version;

static int make_dlpack_words(void) {
    if (version != NULL)
        return 0;
    PyObject *keyword = PyUnicode_InternFromString("max_version");
    if (device_name == NULL)
        device_name = PyUnicode_InternFromString("__dlpack_device__");
    if (dlpack_name == NULL)
        dlpack_name = PyUnicode_InternFromString("__dlpack__");
    if (version_keyword == NULL && keyword != NULL)
        version_keyword = PyTuple_Pack(1, keyword);
    Py_XDECREF(keyword);
    if (device_name == NULL || dlpack_name == NULL || version_keyword == NULL)
        return -1;
    version = Py_BuildValue("(ii)", DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION);
    return version == NULL ? -1 : 0;
}

/* Whether x says that its memory is that of the CPU; -1 with an error. */
static int is_said_on_cpu(PyObject *x) {
    PyObject *device = PyObject_CallMethodNoArgs(x, device_name);
    if (device == NULL)
        return -1;
    long type = 0;
    if (PyTuple_Check(device) && PyTuple_GET_SIZE(device) == 2)
        type = PyLong_AsLong(PyTuple_GET_ITEM(device, 0));
    Py_DECREF(device);
    return type == -1 && PyErr_Occurred() ? -1 : type == kDLCPU;
}

/* What `exported` in exchange/protocol.py makes of the error that is set: the capsule
 * of a producer that knows no max_version, or the refusal of the call. */
static PyObject *answer_error(PyObject *x, PyObject *call) {
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    PyErr_NormalizeException(&type, &error, &trace);
    if (trace != NULL)
        PyException_SetTraceback(error, trace);
    PyObject *answer = PyObject_CallFunctionObjArgs(dlb.exported, x, error, call, NULL);
    Py_XDECREF(type);
    Py_XDECREF(error);
    Py_XDECREF(trace);
    return answer;
}

/* Steals the capsule, whose destructor must not run while an error is set. */
static int consume_answer(PyObject *x, PyObject *capsule, PyObject *call,
                          dlb_view *view) {
    int status = dlb_take_capsule(capsule, view, "from_dlpack");
    if (status < 0) {
        PyObject *other = answer_error(x, call); /* raises it in the name of the call */
        Py_XDECREF(other);
    }
    PyObject *type, *error, *trace;
    PyErr_Fetch(&type, &error, &trace);
    Py_DECREF(capsule);
    PyErr_Restore(type, error, trace);
    return status;
}

/* A producer is asked once: its refusal is that of the call. Python asks for what is
 * not in the CPU's memory, with a stream. */
static int ask_protocol(PyObject *x, const dlb_known_type *known, PyObject *call,
                        dlb_view *view) {
    bool is_old = known->payload == Py_True;
    int is_on_cpu = make_dlpack_words() < 0 ? -1 : is_said_on_cpu(x);
    if (is_on_cpu < 0)
        return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
    if (!is_on_cpu)
        return DLB_DECLINED;
    PyObject *arguments[] = {x, version};
    PyObject *capsule =
        is_old ? PyObject_CallMethodNoArgs(x, dlpack_name)
               : PyObject_VectorcallMethod(dlpack_name, arguments, 1, version_keyword);
    if (capsule == NULL && PyErr_ExceptionMatches(PyExc_Exception))
        capsule = answer_error(x, call);
    if (capsule == NULL || consume_answer(x, capsule, call, view) < 0)
        return -1;
    if (view->buffer->access == NULL && view->dl.device.device_type == kDLCPU)
        return 0;
    dlb_buffer_drop(view->buffer);
    return DLB_DECLINED;
}

/* Asked in the name of a call alone. */
static int take_protocol(PyObject *Py_UNUSED(x), const dlb_known_type *Py_UNUSED(known),
                         bool Py_UNUSED(detaches), dlb_view *Py_UNUSED(view)) {
    return DLB_DECLINED;
}

static const char *entry_of_protocol(const dlb_known_type *Py_UNUSED(known),
                                     const dlb_view *Py_UNUSED(view)) {
    return "__dlpack__";
}

/* The payload: whether the type's __dlpack__ takes no max_version. */
const dlb_peer dlb_protocol_peer = {
    .name = "dlpack",
    .is_named = true,
    .is_kept_weakly = true,
    .take = take_protocol,
    .ask = ask_protocol,
    .entry = entry_of_protocol,
};

/* Types that the Python path takes. */
const dlb_peer dlb_slow_peer = {.name = "slow", .take = take_protocol};

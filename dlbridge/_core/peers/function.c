/* Frameworks whose adapter names a function that exports their tensors. */
#include "cuda/cuda.h"
#include "peers/peers.h"

/* ---- memory with streams ---- */

/* Whether the driver knows the memory where the producer says that it is, and the host
 * has nothing to wait for. The Python path says what is wrong. */
static bool is_where_said(const dlb_view *view) {
    DLDevice said = view->dl.device, found;
    if (view->buffer->access == NULL || said.device_type == kDLCUDAHost)
        return false;
    if (dlb_element_count(&view->dl) == 0 || dlb_cuda_open(NULL) == NULL)
        return true;
    return dlb_cuda_locate(view->dl.data, said.device_id, &found) == 1 &&
           (found.device_type == kDLCUDAManaged ||
            (found.device_type == said.device_type &&
             found.device_id == said.device_id));
}

static int keep_stream(dlb_view *view, PyObject *stream) {
    if (stream == Py_None)
        return 0;
    dlb_buffer *kept = dlb_buffer_of_object(stream);
    if (kept == NULL)
        return -1;
    dlb_access_keep(view->buffer->access, kept);
    return 0;
}

/* `lend` returns (capsule, ready, owner, kept), or None where the Python path decides:
 * the stream for which the memory is ready, and the one on which its producer uses it
 * again, -1 for none that is known, both as in __dlpack__; what keeps the stream alive,
 * or None. */
int dlb_take_by_lending(PyObject *x, PyObject *lend, dlb_view *view) {
    PyObject *capsule, *kept, *answer = PyObject_CallOneArg(lend, x);
    long long ready, owner;
    if (answer == NULL || answer == Py_None) {
        Py_XDECREF(answer);
        return answer == NULL ? -1 : DLB_DECLINED;
    }
    int status = -1;
    if (PyArg_ParseTuple(answer, "OLLO:lend", &capsule, &ready, &owner, &kept))
        status = dlb_take_capsule(capsule, view, "from_dlpack");
    if (status == 0) {
        status = is_where_said(view) ? keep_stream(view, kept) : DLB_DECLINED;
        if (status == 0)
            dlb_access_set_streams(view->buffer->access, (dlb_stream)ready,
                                   (dlb_stream)owner);
        else
            dlb_buffer_drop(view->buffer);
    }
    Py_DECREF(answer);
    return status;
}

PyObject *dlb_read_attribute(PyObject *x, PyObject *name) {
    if (!PyTuple_Check(name))
        return PyObject_GetAttr(x, name);
    PyObject *first = PyObject_GetAttr(x, PyTuple_GET_ITEM(name, 0));
    PyObject *value = first ? PyObject_GetAttr(first, PyTuple_GET_ITEM(name, 1)) : NULL;
    Py_XDECREF(first);
    return value;
}

/* The payload of a function is (function, guard, accepted, declined_code, flags, lend);
 * with `lend`, not None, it is `dlb_take_by_lending` that takes what has streams. The
 * function itself looks at nothing, so the guard does: the attribute of that name must
 * be of exactly the type `accepted`, or equal to it where it is an integer, or, where
 * it is a frozenset, the method of that name must return a member of it; for a pair of
 * names, the attribute of the attribute must be a member; None asks for no guard. A
 * tensor whose dtype has `declined_code` goes the Python way (-1: none). The flags are
 * added to those of the capsule. */
int dlb_passes_guard(PyObject *x, PyObject *guard, PyObject *accepted) {
    if (guard == Py_None)
        return 1;
    bool is_set = PyFrozenSet_Check(accepted);
    PyObject *value = is_set && !PyTuple_Check(guard)
                          ? PyObject_CallMethodNoArgs(x, guard)
                          : dlb_read_attribute(x, guard);
    if (value == NULL)
        return -1;
    int passes = is_set ? PySet_Contains(accepted, value)
                 : PyLong_CheckExact(accepted)
                     ? PyObject_RichCompareBool(value, accepted, Py_EQ)
                     : (PyObject *)Py_TYPE(value) == accepted;
    Py_DECREF(value);
    return passes;
}

static int take_by_function(PyObject *x, PyObject *payload, dlb_view *view) {
    int passes =
        dlb_passes_guard(x, PyTuple_GET_ITEM(payload, 1), PyTuple_GET_ITEM(payload, 2));
    if (passes <= 0)
        return passes < 0 ? -1 : DLB_DECLINED;
    PyObject *capsule = PyObject_CallOneArg(PyTuple_GET_ITEM(payload, 0), x);
    if (capsule == NULL)
        return -1;
    int status = dlb_take_capsule(capsule, view, "from_dlpack");
    /* Renamed, the capsule owns nothing. The destructors of the functions that adapters
     * vouch for do nothing else; jaxlib's would make an exception only to find that
     * out. */
    if (status == 0)
        PyCapsule_SetDestructor(capsule, NULL);
    else
        dlb_clear_error(); /* the Python path says it again */
    Py_DECREF(capsule);
    if (status < 0)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    bool has_streams = view->buffer->access != NULL; /* asked again, with a stream */
    PyObject *lend = PyTuple_GET_ITEM(payload, 5);
    if (has_streams ||
        view->dl.dtype.code == PyLong_AsLong(PyTuple_GET_ITEM(payload, 3))) {
        dlb_buffer_drop(view->buffer);
        return has_streams && lend != Py_None ? dlb_take_by_lending(x, lend, view)
                                              : DLB_DECLINED;
    }
    view->flags |= PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(payload, 4));
    return 0;
}

static int take_capsule(PyObject *x, const dlb_known_type *known,
                        bool Py_UNUSED(detaches), dlb_view *view) {
    return dlb_take_with_payload(take_by_function, x, known, view);
}

static int accept_function(dlb_known_type *made) {
    return dlb_expect_payload(
        made->payload, 6,
        "a capsule needs (function, guard, accepted, declined_code, flags, lend)");
}

const dlb_peer dlb_function_peer = {
    .name = "capsule",
    .is_framework = true,
    .accept = accept_function,
    .take = take_capsule,
};

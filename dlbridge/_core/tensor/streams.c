/* CUDA's streams in Python: numbers in, exceptions out. */
#include "tensor/tensor.h"
#include "cuda/cuda.h"
#include "layout/layout.h"

int dlb_lend_to_worker(dlb_view *view, dlb_stream to, dlb_stream worker,
                       const char *call) {
    int status = view->buffer->access ? dlb_view_lend(view, to, worker, false) : 0;
    if (status == 1) {
        Py_BEGIN_ALLOW_THREADS
        status = dlb_view_lend(view, to, worker, true);
        Py_END_ALLOW_THREADS
    }
    if (status < 0)
        dlb_cuda_raise(call);
    return status;
}

int dlb_lend_to(dlb_view *view, dlb_stream to, const char *call) {
    return dlb_lend_to_worker(view, to, to, call);
}

/* ---- streams ---- */

static int refuse_stream(PyObject *stream, DLDevice device, const char *call) {
    if (!PyLong_Check(stream) || PyBool_Check(stream))
        dlb_raise_error("UnsupportedTypeError",
                        "%s: stream must be None or an integer, got %R", call, stream);
    else if (device.device_type == kDLCPU)
        dlb_refuse("stream", "%s: stream must be None on the CPU, got %R", call,
                   stream);
    else if (dlb_has_streams(device))
        dlb_refuse(
            "stream",
            "%s: stream must be None, 1 (legacy default), 2 (per-thread default), "
            "-1 (no order) or the address of a CUDA stream, got %R%s",
            call, stream,
            PyLong_Check(stream) && !PyObject_IsTrue(stream)
                ? "; 0 is ambiguous: pass 1 or 2"
                : "");
    else
        dlb_refuse(
            "stream",
            "%s: stream %R on device (%d, %d) needs an ordering between streams; "
            "pass stream=-1 and synchronise yourself",
            call, stream, (int)device.device_type, (int)device.device_id);
    return -1;
}

int dlb_parse_stream(PyObject *stream, DLDevice device, uintptr_t *out,
                     const char *call) {
    *out = device.device_type == kDLCPU ? DLB_STREAM_NONE : DLB_STREAM_LEGACY;
    if (stream == Py_None)
        return 0;
    if (device.device_type == kDLCPU || !PyLong_Check(stream) || PyBool_Check(stream))
        return refuse_stream(stream, device, call);
    long long value = PyLong_AsLongLong(stream);
    if (value == -1 && !PyErr_Occurred()) {
        *out = DLB_STREAM_NONE;
        return 0;
    }
    PyErr_Clear();
    if (value <= 0 || !dlb_has_streams(device))
        return refuse_stream(stream, device, call);
    *out = (uintptr_t)value;
    return 0;
}

PyObject *dlb_stream_number(dlb_stream stream) {
    return stream == DLB_STREAM_NONE ? PyLong_FromLong(-1)
                                     : PyLong_FromUnsignedLongLong(stream);
}

static PyObject *current_stream(PyObject *Py_UNUSED(module), PyObject *device) {
    int number = PyLong_AsLong(device);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return dlb_stream_number(dlb_cuda_current_stream(number));
}

static PyObject *set_current_stream(PyObject *Py_UNUSED(module), PyObject *args) {
    int device;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "iK:cuda_set_current_stream", &device, &stream))
        return NULL;
    return dlb_stream_number(dlb_cuda_set_current_stream(device, (dlb_stream)stream));
}

/* ---- memory ---- */

static dlb_access *access_of(PyObject *tensor) {
    if (!dlb_is_tensor(tensor)) {
        PyErr_Format(PyExc_TypeError, "expected a Tensor, got %s",
                     Py_TYPE(tensor)->tp_name);
        return NULL;
    }
    dlb_access *access = ((dlb_tensor *)tensor)->buffer->access;
    if (access == NULL)
        PyErr_SetString(PyExc_ValueError, "the tensor is not in CUDA memory");
    return access;
}

static PyObject *ready_stream(PyObject *Py_UNUSED(module), PyObject *tensor) {
    dlb_access *access = access_of(tensor);
    return access ? dlb_stream_number(dlb_access_ready(access).handle) : NULL;
}

/* cuda_set_streams(tensor, ready, owner): as its producer said; -1: nothing to wait
 * for, unknown. */
static PyObject *set_streams(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor;
    long long ready, owner;
    if (!PyArg_ParseTuple(args, "OLL:cuda_set_streams", &tensor, &ready, &owner))
        return NULL;
    dlb_access *access = access_of(tensor);
    if (access == NULL)
        return NULL;
    dlb_access_set_streams(access, (dlb_stream)ready, (dlb_stream)owner);
    Py_RETURN_NONE;
}

/* cuda_begin(tensor, stream, writes): before work on it is enqueued by someone else. */
static PyObject *begin(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor;
    long long stream;
    int writes, status;
    if (!PyArg_ParseTuple(args, "OLp:cuda_begin", &tensor, &stream, &writes))
        return NULL;
    dlb_access *access = access_of(tensor);
    if (access == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = writes ? dlb_access_write(access, (dlb_stream)stream)
                    : dlb_access_read(access, (dlb_stream)stream);
    Py_END_ALLOW_THREADS
    if (status < 0)
        return dlb_cuda_raise("cuda_begin");
    Py_RETURN_NONE;
}

/* cuda_keep(tensor, object): as long as the memory. */
static PyObject *keep(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *object;
    if (!PyArg_ParseTuple(args, "OO:cuda_keep", &tensor, &object))
        return NULL;
    dlb_access *access = access_of(tensor);
    dlb_buffer *kept = access ? dlb_buffer_of_object(object) : NULL;
    if (kept == NULL)
        return NULL;
    dlb_access_keep(access, kept);
    Py_RETURN_NONE;
}

/* cuda_publish(tensor): the stream to wait for, for a consumer that will not say when
 * it has finished. */
static PyObject *publish(PyObject *Py_UNUSED(module), PyObject *tensor) {
    dlb_access *access = access_of(tensor);
    dlb_stream ready;
    int status;
    if (access == NULL)
        return NULL;
    Py_BEGIN_ALLOW_THREADS
    status = dlb_access_publish(access, &ready);
    Py_END_ALLOW_THREADS
    return status < 0 ? dlb_cuda_raise("__cuda_array_interface__")
                      : dlb_stream_number(ready);
}

/* ---- scopes of streams ---- */

/* cuda_open_scope(device, stream): (the stream before, the scope to close). */
static PyObject *open_scope(PyObject *Py_UNUSED(module), PyObject *args) {
    int device;
    unsigned long long stream;
    if (!PyArg_ParseTuple(args, "iK:cuda_open_scope", &device, &stream))
        return NULL;
    unsigned long long scope = dlb_stream_scope_open(device, (dlb_stream)stream);
    unsigned long long before = dlb_cuda_set_current_stream(device, (dlb_stream)stream);
    return Py_BuildValue("KK", before, scope);
}

static PyObject *close_scope(PyObject *Py_UNUSED(module), PyObject *args) {
    int device;
    unsigned long long before, scope;
    if (!PyArg_ParseTuple(args, "iKK:cuda_close_scope", &device, &before, &scope))
        return NULL;
    dlb_cuda_set_current_stream(device, (dlb_stream)before);
    Py_BEGIN_ALLOW_THREADS
    dlb_stream_scope_close(scope);
    Py_END_ALLOW_THREADS
    Py_RETURN_NONE;
}

/* ---- memory that waits ---- */

static PyObject *collect(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyLong_FromLongLong(dlb_cuda_collect());
}

static int collect_now(void *Py_UNUSED(unused)) {
    dlb_cuda_collect();
    return 0;
}

/* On any thread, without the GIL. A full queue does no harm: the pending call in it
 * collects.
 */
void dlb_cuda_collect_soon(void) {
    if (!dlb_interpreter_is_gone())
        Py_AddPendingCall(collect_now, NULL);
}

/* cuda_drain(): give back waiting memory, at the end of the process. */
static PyObject *drain(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    int64_t before, left = INT64_MAX;
    bool has_waited;
    dlb_cuda_wake = NULL;
    do {
        before = left;
        left = dlb_cuda_collect();
        Py_BEGIN_ALLOW_THREADS
        has_waited = left > 0 && left < before && dlb_cuda_wait_for_one();
        Py_END_ALLOW_THREADS
    } while (has_waited);
    return PyLong_FromLongLong(left);
}

static PyObject *synchronised(PyObject *Py_UNUSED(module), PyObject *device) {
    int number = PyLong_AsLong(device);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    dlb_cuda_synchronised(number);
    Py_RETURN_NONE;
}

/* ---- the driver ---- */

static PyObject *open_driver(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *path = NULL;
    if (!PyArg_ParseTuple(args, "|z:cuda_open", &path))
        return NULL;
    const dlb_cuda_driver *found = dlb_cuda_open(path);
    if (found == NULL)
        return PyUnicode_FromString(dlb_cuda_missing());
    dlb_cuda_wake = dlb_cuda_collect_soon;
    Py_RETURN_NONE;
}

static PyObject *close_driver(PyObject *Py_UNUSED(module),
                              PyObject *Py_UNUSED(unused)) {
    dlb_cuda_close();
    Py_RETURN_NONE;
}

PyMethodDef dlb_cuda_functions[] = {
    {"cuda_open", open_driver, METH_VARARGS,
     "cuda_open($module, path=None, /)\n--\n\nNone, or why there is no driver."},
    {"cuda_close", close_driver, METH_NOARGS,
     "cuda_close($module, /)\n--\n\nForget the driver; for tests."},
    {"cuda_current_stream", current_stream, METH_O,
     "cuda_current_stream($module, device, /)\n--\n\nOf this thread on a device."},
    {"cuda_set_current_stream", set_current_stream, METH_VARARGS,
     "cuda_set_current_stream($module, device, stream, /)\n--\n\nThe one before."},
    {"cuda_ready_stream", ready_stream, METH_O,
     "cuda_ready_stream($module, tensor, /)\n--\n\nThe stream a tensor is ready on, or "
     "-1."},
    {"cuda_set_streams", set_streams, METH_VARARGS,
     "cuda_set_streams($module, tensor, ready, owner, /)\n--\n\n"},
    {"cuda_begin", begin, METH_VARARGS,
     "cuda_begin($module, tensor, stream, writes, /)\n--\n\n"},
    {"cuda_keep", keep, METH_VARARGS, "cuda_keep($module, tensor, kept, /)\n--\n\n"},
    {"cuda_publish", publish, METH_O,
     "cuda_publish($module, tensor, /)\n--\n\nThe stream to wait for before the memory "
     "is used by who will not say when he is through."},
    {"cuda_open_scope", open_scope, METH_VARARGS,
     "cuda_open_scope($module, device, stream, /)\n--\n\n"},
    {"cuda_close_scope", close_scope, METH_VARARGS,
     "cuda_close_scope($module, device, before, scope, /)\n--\n\n"},
    {"cuda_collect", collect, METH_NOARGS,
     "cuda_collect($module, /)\n--\n\nGive back memory whose kernels are through; how "
     "many buffers still wait."},
    {"cuda_drain", drain, METH_NOARGS,
     "cuda_drain($module, /)\n--\n\nWait for all kernels and give back what waits for "
     "them, at the end."},
    {"cuda_synchronised", synchronised, METH_O,
     "cuda_synchronised($module, device, /)\n--\n\nSomebody has waited for all work on "
     "a device."},
    {NULL, NULL, 0, NULL},
};

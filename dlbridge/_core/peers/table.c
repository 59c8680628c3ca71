/* The C exchange table: ours for others, theirs for us. */
#include "cuda/cuda.h"
#include "peers/peers.h"

#include <string.h>

/* ---- ours ---- */

static int table_allocate(DLTensor *prototype, DLManagedTensorVersioned **out,
                          void *error_ctx,
                          void (*set_error)(void *, const char *, const char *)) {
    dlb_view view = {.dl = *prototype,
                     .version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    view.dl.data = &view; /* the prototype has no memory: let the check see some */
    view.dl.strides = NULL;
    view.dl.byte_offset = 0;
    const char *reason = dlb_layout_check(&view.dl, 0);
    if (reason != NULL || prototype->device.device_type != kDLCPU) {
        set_error(error_ctx, "BufferError",
                  reason ? reason : "dlbridge allocates on the CPU only");
        return -1;
    }
    *out = NULL;
    if (dlb_cpu_fill_view(&view, 64, false) == 0)
        *out = dlb_export_managed(&view, 0);
    if (*out == NULL)
        set_error(error_ctx, "MemoryError", "dlbridge: out of memory");
    return *out == NULL ? -1 : 0;
}

/* A borrowed DLTensor has no flags, and the one known consumer of managed tensors from
 * a table, tvm-ffi, drops them: read-only memory would come back writable. It is
 * refused in both. No policy can be given here for the values of JAX and TensorFlow,
 * which are shared as by default. */
static int expect_writable_tensor(void *object) {
    if (!dlb_is_tensor(object)) {
        PyErr_Format(PyExc_TypeError, "expected a dlbridge Tensor, got %s",
                     Py_TYPE((PyObject *)object)->tp_name);
        return -1;
    }
    uint64_t flags = ((dlb_tensor *)object)->flags;
    if ((flags & DLPACK_FLAG_BITMASK_READ_ONLY) && !(flags & DLB_IMMUTABLE)) {
        dlb_refuse("readonly",
                   "exchange table: its consumers do not keep memory read-only; pass a "
                   "copy, or convert with readonly=\"share\"");
        return -1;
    }
    return 0;
}

static int table_from_object(void *object, DLManagedTensorVersioned **out) {
    dlb_view view;
    if (expect_writable_tensor(object) < 0)
        return -1;
    dlb_tensor_view(object, &view);
    /* Consumers of the table ask it for the stream to use. */
    if (dlb_lend_to(&view, dlb_cuda_current_stream(view.dl.device.device_id),
                    "exchange table") < 0) {
        dlb_buffer_drop(view.buffer);
        return -1;
    }
    *out = dlb_export_managed(&view,
                              view.flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_COPIED);
    if (*out == NULL)
        PyErr_NoMemory();
    return *out == NULL ? -1 : 0;
}

static int table_to_object(DLManagedTensorVersioned *managed, void **out) {
    dlb_view view;
    const char *reason = dlb_take_managed(managed, &view);
    if (reason != NULL) {
        dlb_refuse_take(reason, "exchange table", &view.dl, view.version);
        return -1;
    }
    if (view.buffer->access != NULL && view.dl.device.device_type != kDLCUDAHost)
        dlb_access_set_streams(view.buffer->access,
                               dlb_cuda_current_stream(view.dl.device.device_id),
                               DLB_STREAM_NONE);
    *out = dlb_tensor_new(dlb.tensor_type, &view);
    return *out == NULL ? -1 : 0;
}

/* Work on a borrowed tensor runs on our stream, like a kernel of ours; in
 * pinned memory the host may do it, at once. */
static int begin_on_current(dlb_access *access, DLDevice device) {
    int status;
    Py_BEGIN_ALLOW_THREADS
    status = device.device_type == kDLCUDAHost
                 ? dlb_access_wait(access, true)
                 : dlb_access_write(access, dlb_cuda_current_stream(device.device_id));
    Py_END_ALLOW_THREADS
    if (status < 0)
        dlb_cuda_raise("exchange table");
    return status;
}

static int table_borrow(void *object, DLTensor *out) {
    if (expect_writable_tensor(object) < 0)
        return -1;
    dlb_tensor *tensor = object;
    if (tensor->buffer->access != NULL &&
        begin_on_current(tensor->buffer->access, tensor->dl.device) < 0)
        return -1;
    *out = tensor->dl;
    return 0;
}

static int table_stream(DLDeviceType type, int32_t id, void **out) {
    bool has_streams = dlb_is_cuda((DLDevice){type, id});
    dlb_stream stream = has_streams ? dlb_cuda_current_stream(id) : 0;
    *out = stream == DLB_STREAM_LEGACY ? NULL : (void *)stream;
    return 0;
}

static DLPackExchangeAPI our_table = {
    .header = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION},
               .prev_api = NULL},
    .managed_tensor_allocator = table_allocate,
    .managed_tensor_from_py_object_no_sync = table_from_object,
    .managed_tensor_to_py_object_no_sync = table_to_object,
    .dltensor_from_py_object_no_sync = table_borrow,
    .current_work_stream = table_stream,
};

int dlb_add_exchange_table(PyTypeObject *type) {
    PyObject *capsule = PyCapsule_New(&our_table, "dlpack_exchange_api", NULL);
    if (capsule == NULL)
        return -1;
    int failed =
        PyDict_SetItemString(type->tp_dict, "__dlpack_c_exchange_api__", capsule);
    Py_DECREF(capsule);
    PyType_Modified(type);
    return failed;
}

/* ---- theirs ---- */

/* The stream that a table's framework works on; DLB_STREAM_NONE on devices without. */
static int ask_stream(const DLPackExchangeAPI *table, DLDevice device,
                      dlb_stream *stream) {
    void *found = NULL;
    if (table->current_work_stream(device.device_type, device.device_id, &found) != 0) {
        if (!PyErr_Occurred())
            dlb_refuse("stream", "the exchange table gave no stream and no error");
        return -1;
    }
    *stream = found ? (dlb_stream)found : DLB_STREAM_LEGACY;
    return 0;
}

/* The framework's work is on its current stream, where it also uses the memory
 * again. */
static int note_stream(const DLPackExchangeAPI *table, dlb_view *view) {
    dlb_stream stream;
    if (view->buffer->access == NULL || view->dl.device.device_type == kDLCUDAHost)
        return 0; /* no stream has pinned memory */
    if (ask_stream(table, view->dl.device, &stream) < 0) {
        dlb_buffer_drop(view->buffer);
        return -1;
    }
    dlb_access_set_streams(view->buffer->access, stream, stream);
    return 0;
}

int dlb_take_table(PyObject *x, const DLPackExchangeAPI *table, dlb_view *view) {
    DLManagedTensorVersioned *managed = NULL;
    if (table->managed_tensor_from_py_object_no_sync(x, &managed) != 0 ||
        managed == NULL) {
        if (!PyErr_Occurred())
            dlb_refuse("producer",
                       "the exchange table of %s gave no tensor and no error",
                       Py_TYPE(x)->tp_name);
        return -1;
    }
    const char *reason = dlb_take_managed(managed, view);
    if (reason == NULL)
        return note_stream(table, view);
    dlb_refuse_take(reason, "exchange table", &view->dl, view->version);
    return -1;
}

static int take(PyObject *x, const dlb_known_type *known, bool Py_UNUSED(detaches),
                dlb_view *view) {
    return dlb_take_table(x, known->table, view);
}

int dlb_accept_table(dlb_known_type *known) {
    known->table = dlb_parse_table(known->payload);
    return known->table ? 0 : -1;
}

static const char *entry_of_table(const dlb_known_type *Py_UNUSED(known),
                                  const dlb_view *Py_UNUSED(view)) {
    return "C exchange table";
}

const dlb_peer dlb_table_peer = {
    .name = "table",
    .is_named = true,
    .accept = dlb_accept_table,
    .take = take,
    .entry = entry_of_table,
};

static int lend(dlb_view *view, const DLPackExchangeAPI *table, const dlb_stream *to) {
    dlb_stream asked;
    if (view->buffer->access == NULL)
        return 0;
    if (to == NULL && ask_stream(table, view->dl.device, &asked) < 0)
        return -1;
    return dlb_lend_to(view, to ? *to : asked, "exchange table");
}

PyObject *dlb_give_table(dlb_view *view, const DLPackExchangeAPI *table,
                         const dlb_stream *to) {
    void *out = NULL;
    if (lend(view, table, to) < 0) {
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    DLManagedTensorVersioned *managed = dlb_export_managed(view, view->flags);
    if (managed == NULL)
        return PyErr_NoMemory();
    if (table->managed_tensor_to_py_object_no_sync(managed, &out) == 0 && out != NULL)
        return out;
    if (!PyErr_Occurred())
        dlb_refuse("consumer", "the exchange table made no object and set no error");
    /* Stolen or not: torch leaves it to nobody. A second call of our deleter does no
     * harm. */
    managed->deleter(managed);
    return NULL;
}

typedef struct {
    char kind[32], message[512];
} allocation_error;

static void keep_error(void *context, const char *kind, const char *message) {
    allocation_error *error = context;
    PyOS_snprintf(error->kind, sizeof error->kind, "%s", kind ? kind : "");
    PyOS_snprintf(error->message, sizeof error->message, "%s", message ? message : "");
}

/* allocate_table(table, shape, dtype, device): memory of another framework's allocator.
 */
static PyObject *allocate_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *capsule, *shape, *dtype, *device;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view = {0};
    allocation_error error = {"", "no reason given"};
    DLManagedTensorVersioned *managed = NULL;
    if (!PyArg_ParseTuple(args, "OOOO:allocate_table", &capsule, &shape, &dtype,
                          &device))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || dlb_parse_dtype(dtype, &view.dl.dtype) < 0 ||
        dlb_parse_device(device, &view.dl.device) < 0)
        return NULL;
    view.dl.ndim = dlb_parse_dims(shape, dims, "shape");
    if (view.dl.ndim < 0)
        return NULL;
    view.dl.shape = dims;
    view.dl.data = &view;
    const char *reason = dlb_layout_check(&view.dl, 0);
    if (reason != NULL)
        return dlb_refuse_layout(reason, "allocate", &view.dl);
    view.dl.data = NULL;
    dlb_row_major_strides(view.dl.ndim, dims, view.scratch);
    view.dl.strides = view.scratch;
    if (table->managed_tensor_allocator(&view.dl, &managed, &error, keep_error) != 0 ||
        managed == NULL) {
        if (PyErr_Occurred()) /* an error where the standard has set_error (cuda.core
                                 does it) */
            return NULL;
        return PyErr_Format(PyExc_MemoryError,
                            "the framework's allocator failed: %s: %s", error.kind,
                            error.message);
    }
    reason = dlb_take_managed(managed, &view);
    if (reason != NULL)
        return dlb_refuse_take(reason, "allocate", &view.dl, view.version);
    if (note_stream(table, &view) < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *take_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *x, *capsule;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "OO:take_table", &x, &capsule))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || dlb_take_table(x, table, &view) < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

/* give_table(tensor, table, stream=None): None asks the table for the stream. */
static PyObject *give_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *capsule, *stream = Py_None;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "OO|O:give_table", &tensor, &capsule, &stream))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || dlb_expect_tensor(tensor, "give_table") == NULL)
        return NULL;
    dlb_stream to = stream == Py_None ? 0 : (dlb_stream)PyLong_AsLongLong(stream);
    if (PyErr_Occurred())
        return NULL;
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    return dlb_give_table(&view, table, to ? &to : NULL);
}

static PyObject *stream_of_table(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *capsule, *pair;
    DLDevice device;
    dlb_stream stream;
    if (!PyArg_ParseTuple(args, "OO:table_stream", &capsule, &pair))
        return NULL;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL || dlb_parse_device(pair, &device) < 0 ||
        ask_stream(table, device, &stream) < 0)
        return NULL;
    return dlb_stream_number(stream);
}

PyMethodDef dlb_table_functions[] = {
    {"take_table", take_table, METH_VARARGS,
     "take_table($module, x, table, /)\n--\n\nA Tensor through an object's exchange "
     "table."},
    {"give_table", give_table, METH_VARARGS,
     "give_table($module, tensor, table, stream=None, /)\n--\n\nAn object of the "
     "exchange table's framework, for its current stream or one given."},
    {"allocate_table", allocate_table, METH_VARARGS,
     "allocate_table($module, table, shape, dtype, device, /)\n--\n\nA Tensor from a "
     "table's allocator."},
    {"table_stream", stream_of_table, METH_VARARGS,
     "table_stream($module, table, device, /)\n--\n\nThe current stream of the "
     "exchange table's framework on a device."},
    {NULL, NULL, 0, NULL},
};

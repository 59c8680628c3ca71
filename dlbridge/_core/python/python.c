/* Python in the core: the state that the package sets, memory that an object keeps, the
 * GIL, refusals, arguments, NumPy's table. */
#define DLB_NUMPY_HOME
#include "python/python.h"
#include "cuda/cuda.h"
#include "python/numpy.h"

#include <stdarg.h>
#include <string.h>

dlb_state dlb;

bool dlb_is_recorded(void) {
    if (!atomic_load_explicit(&dlb.watchers, memory_order_relaxed))
        return false;
    PyObject *logs = NULL;
    if (dlb.receipt_logs == NULL ||
        PyContextVar_Get(dlb.receipt_logs, NULL, &logs) < 0) {
        PyErr_Clear();
        return true;
    }
    bool is_open = logs != NULL && PyTuple_Check(logs) && PyTuple_GET_SIZE(logs) > 0;
    Py_XDECREF(logs);
    return is_open;
}

/* ---- the GIL ---- */

bool dlb_interpreter_is_gone(void) {
#if PY_VERSION_HEX >= 0x030d0000
    return !Py_IsInitialized() || Py_IsFinalizing();
#else
    return !Py_IsInitialized() || _Py_IsFinalizing();
#endif
}

enum { HELD_BEFORE = -1 };

/* While finalising, taking the GIL would end a foreign thread. The thread that
 * finalises still holds it, and may drop references until the very end. */
bool dlb_enter_python(int *state) {
    *state = HELD_BEFORE;
    if (!Py_IsInitialized())
        return false;
    if (PyGILState_Check())
        return true;
    if (dlb_interpreter_is_gone())
        return false;
    *state = (int)PyGILState_Ensure();
    return true;
}

void dlb_leave_python(int state) {
    if (state != HELD_BEFORE)
        PyGILState_Release((PyGILState_STATE)state);
}

/* ---- memory of producers and of Python objects ---- */

typedef struct {
    PyObject *type, *value, *trace;
    bool is_set;
} pending;

/* A release may run Python, which must neither meet nor end an exception that is on its
 * way in this thread. */
static pending put_aside(bool has_gil) {
    pending error = {NULL, NULL, NULL, false};
    if (has_gil && PyErr_Occurred()) {
        PyErr_Fetch(&error.type, &error.value, &error.trace);
        error.is_set = true;
    }
    return error;
}

static void put_back(pending error) {
    if (error.is_set)
        PyErr_Restore(error.type, error.value, error.trace);
}

void dlb_call_release(void (*function)(void *), void *argument) {
    pending error = put_aside(Py_IsInitialized() && PyGILState_Check());
    function(argument);
    put_back(error);
}

static void release_managed(dlb_buffer *buffer) {
    DLManagedTensorVersioned *managed = buffer->owner;
    if (managed->deleter != NULL) {
        pending error = put_aside(Py_IsInitialized() && PyGILState_Check());
        managed->deleter(managed);
        put_back(error);
    }
    dlb_buffer_free(buffer);
}

static void release_legacy(dlb_buffer *buffer) {
    DLManagedTensor *managed = buffer->owner;
    if (managed->deleter != NULL) {
        pending error = put_aside(Py_IsInitialized() && PyGILState_Check());
        managed->deleter(managed);
        put_back(error);
    }
    dlb_buffer_free(buffer);
}

dlb_buffer *dlb_buffer_of_managed(DLManagedTensorVersioned *managed) {
    return dlb_buffer_new(release_managed, managed, NULL, 0);
}

bool dlb_buffer_is_managed(const dlb_buffer *buffer) {
    return buffer->release == release_managed;
}

dlb_buffer *dlb_buffer_of_legacy(DLManagedTensor *managed) {
    return dlb_buffer_new(release_legacy, managed, NULL, 0);
}

/* Buffers of these two kinds are counted as `references`, under the GIL. Without an
 * interpreter the object is leaked. */
static void release_object(dlb_buffer *buffer) {
    PyObject *object = buffer->owner;
    int state;
    dlb_buffer_discard(buffer);
    if (!dlb_enter_python(&state))
        return;
    pending error = put_aside(true);
    dlb_count_object(references, -1);
    Py_DECREF(object);
    put_back(error);
    dlb_leave_python(state);
}

void dlb_release_collectable(dlb_buffer *buffer) {
    release_object(buffer);
}

dlb_buffer *dlb_buffer_of_object(PyObject *object) {
    /* Not memoryviews: CPython's collector crashes on those that have exports. */
    bool is_collectable = PyType_IS_GC(Py_TYPE(object)) && PyObject_IS_GC(object) &&
                          !PyMemoryView_Check(object);
    dlb_buffer *buffer = dlb_buffer_make(
        sizeof *buffer, is_collectable ? dlb_release_collectable : release_object,
        Py_NewRef(object), NULL, 0);
    if (buffer == NULL) {
        Py_DECREF(object);
        PyErr_NoMemory();
        return NULL;
    }
    dlb_count_object(references, 1);
    return buffer;
}

typedef struct {
    dlb_buffer buffer;
    Py_buffer view;
} lent_buffer;

static void release_pybuffer(dlb_buffer *buffer) {
    int state;
    if (!dlb_enter_python(&state)) {
        dlb_buffer_discard(buffer);
        return;
    }
    pending error = put_aside(true);
    dlb_count_object(references, -1);
    PyBuffer_Release(&((lent_buffer *)buffer)->view);
    put_back(error);
    dlb_leave_python(state);
    dlb_buffer_discard(buffer);
}

dlb_buffer *dlb_buffer_of_pybuffer(Py_buffer *view) {
    dlb_buffer *buffer =
        dlb_buffer_make(sizeof(lent_buffer), release_pybuffer, NULL, NULL, 0);
    if (buffer == NULL) {
        PyBuffer_Release(view);
        PyErr_NoMemory();
        return NULL;
    }
    ((lent_buffer *)buffer)->view = *view;
    dlb_count_object(references, 1);
    return buffer;
}

PyObject *dlb_buffer_object(const dlb_buffer *buffer) {
    return buffer->release == release_object || dlb_is_collectable(buffer)
               ? buffer->owner
               : NULL;
}

/* ---- without a GIL ---- */

PyObject *dlb_cache_get(PyObject *cache, PyObject *key) {
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *found;
    return PyDict_GetItemRef(cache, key, &found) < 0 ? NULL : found;
#else
    return Py_XNewRef(PyDict_GetItemWithError(cache, key));
#endif
}

PyObject *dlb_cache_put(PyObject *cache, PyObject *key, PyObject *value) {
    PyObject *kept = NULL;
    if (value == NULL)
        return NULL;
#if PY_VERSION_HEX >= 0x030d0000
    if (PyDict_SetDefaultRef(cache, key, value, &kept) < 0)
        kept = NULL;
#else
    kept = Py_XNewRef(PyDict_SetDefault(cache, key, value));
#endif
    Py_DECREF(value);
    return kept;
}

#ifdef Py_GIL_DISABLED
static bool is_gil_off(void) {
    PyObject *ask = PySys_GetObject("_is_gil_enabled"); /* borrowed */
    PyObject *is_on = ask ? PyObject_CallNoArgs(ask) : NULL;
    bool is_off = is_on == Py_False;
    Py_XDECREF(is_on);
    PyErr_Clear();
    return is_off;
}

void dlb_share(PyObject *object) {
    if (!is_gil_off())
        return;
#if PY_VERSION_HEX >= 0x030e0000
    PyUnstable_Object_EnableDeferredRefcount(object);
#else
    if (object->ob_tid == _Py_ThreadId()) /* nobody else writes the number */
        _Py_atomic_store_uint32_relaxed(&object->ob_ref_local, UINT32_MAX);
#endif
}
#else
void dlb_share(PyObject *Py_UNUSED(object)) {
}
#endif

PyObject *dlb_kept_name(_Atomic(PyObject *) *kept, const char *text) {
    PyObject *name = atomic_load_explicit(kept, memory_order_acquire);
    if (name != NULL)
        return name;
    PyObject *made = PyUnicode_InternFromString(text);
    if (made == NULL || atomic_compare_exchange_strong(kept, &name, made))
        return made;
    Py_DECREF(made); /* another thread was first */
    return name;
}

PyObject *dlb_list_item(PyObject *list, Py_ssize_t index) {
#if PY_VERSION_HEX >= 0x030d0000
    return PyList_GetItemRef(list, index);
#else
    return Py_XNewRef(PyList_GetItem(list, index));
#endif
}

/* ---- refusals: one exception type, a reason code, a text ---- */

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

PyObject *dlb_raise_error(const char *error, const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    PyObject *errors = PyImport_ImportModule("dlbridge.errors");
    PyObject *type = errors ? PyObject_GetAttrString(errors, error) : NULL;
    if (type != NULL)
        PyErr_FormatV(type, format, arguments);
    Py_XDECREF(type);
    Py_XDECREF(errors);
    va_end(arguments);
    return NULL;
}

PyObject *dlb_refuse_arguments(const char *call, char *const *names) {
    if (!PyErr_ExceptionMatches(PyExc_TypeError))
        return NULL;
    PyObject *type, *value, *trace, *known = PyList_New(0);
    PyErr_Fetch(&type, &value, &trace);
    for (; known != NULL && *names != NULL; names++) {
        PyObject *name = PyUnicode_FromString(*names);
        if (name == NULL || PyList_Append(known, name) < 0)
            Py_CLEAR(known);
        Py_XDECREF(name);
    }
    PyObject *calls = known ? PyImport_ImportModule("dlbridge.calls") : NULL;
    PyObject *text = calls ? PyObject_CallMethod(calls, "native_refusal", "OsO",
                                                 value ? value : Py_None, call, known)
                           : NULL;
    if (text != NULL)
        PyErr_SetObject(PyExc_TypeError, text);
    Py_XDECREF(text);
    Py_XDECREF(calls);
    Py_XDECREF(known);
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(trace);
    return NULL;
}

/* Refuse with the sentence of errors.REASONS, the numbers of `tensor`, and `advice`.
 * Its shape may be gone: who exported it has had it back. */
static PyObject *refuse(const char *reason, const char *call, const DLTensor *tensor,
                        const char *advice) {
    PyObject *errors = PyImport_ImportModule("dlbridge.errors");
    PyObject *reasons = errors ? PyObject_GetAttrString(errors, "REASONS") : NULL;
    PyObject *sentence = reasons ? PyMapping_GetItemString(reasons, reason) : NULL;
    if (sentence != NULL)
        raise(
            reason,
            PyUnicode_FromFormat(
                "%s: %U: got ndim %d, dtype code %d, %d bits, %d lanes, device (%d, %d)"
                "%s",
                call, sentence, (int)tensor->ndim, tensor->dtype.code,
                tensor->dtype.bits, tensor->dtype.lanes,
                (int)tensor->device.device_type, (int)tensor->device.device_id,
                advice));
    Py_XDECREF(sentence);
    Py_XDECREF(reasons);
    Py_XDECREF(errors);
    return NULL;
}

PyObject *dlb_refuse_take(const char *reason, const char *call, const DLTensor *tensor,
                          DLPackVersion version) {
    if (strcmp(reason, "memory") == 0)
        return PyErr_NoMemory();
    if (strcmp(reason, "version") == 0) /* nothing else was read of it */
        return dlb_refuse(
            reason,
            "%s: dlbridge reads DLPack %d.x, got a tensor of %u.%u; export "
            "it with max_version=(1, 3), or update dlbridge",
            call, DLPACK_MAJOR_VERSION, version.major, version.minor);
    return refuse(reason, call, tensor,
                  "; the producer exports what no consumer can read: see "
                  "dlbridge.inspect(x)");
}

PyObject *dlb_refuse_layout(const char *reason, const char *call,
                            const DLTensor *tensor) {
    return refuse(reason, call, tensor, "");
}

/* ---- failures of the CUDA driver ---- */

PyObject *dlb_take_exception(void) {
    PyObject *type, *value, *trace;
    PyErr_Fetch(&type, &value, &trace);
    PyErr_NormalizeException(&type, &value, &trace);
    if (trace != NULL)
        PyException_SetTraceback(value, trace);
    Py_XDECREF(type);
    Py_XDECREF(trace);
    return value;
}

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

/* ---- Python values to C values and back ---- */

int dlb_parse_dims(PyObject *sequence, int64_t *dims, const char *name) {
    PyObject *items =
        PySequence_Tuple(sequence); /* a list could change under __index__ */
    if (items == NULL)
        return -1;
    Py_ssize_t count = PyTuple_GET_SIZE(items);
    if (count > DLB_MAX_NDIM) {
        Py_DECREF(items);
        dlb_refuse("ndim", "%s: %zd dimensions; at most %d are supported", name, count,
                   DLB_MAX_NDIM);
        return -1;
    }
    for (Py_ssize_t i = 0; i < count; i++) {
        dims[i] = PyLong_AsLongLong(PyTuple_GET_ITEM(items, i));
        if (dims[i] == -1 && PyErr_Occurred()) {
            Py_DECREF(items);
            return -1;
        }
    }
    Py_DECREF(items);
    return (int)count;
}

static int parse_longs(PyObject *tuple, long *values, int count, const char *name) {
    if (!PyTuple_Check(tuple) || PyTuple_GET_SIZE(tuple) != count) {
        PyErr_Format(PyExc_TypeError, "%s must be a tuple of %d integers, got %R", name,
                     count, tuple);
        return -1;
    }
    for (int i = 0; i < count; i++) {
        values[i] = PyLong_AsLong(PyTuple_GET_ITEM(tuple, i));
        if (values[i] == -1 && PyErr_Occurred())
            return -1;
    }
    return 0;
}

int dlb_parse_dtype(PyObject *triple, DLDataType *dtype) {
    long values[3];
    if (parse_longs(triple, values, 3, "dtype") < 0)
        return -1;
    if (values[0] < 0 || values[0] > 255 || values[1] < 0 || values[1] > 255 ||
        values[2] < 0 || values[2] > 65535) {
        dlb_refuse("dtype", "dtype %R is outside of DLDataType's fields", triple);
        return -1;
    }
    *dtype = (DLDataType){(uint8_t)values[0], (uint8_t)values[1], (uint16_t)values[2]};
    return 0;
}

int dlb_parse_device(PyObject *pair, DLDevice *device) {
    long values[2];
    if (parse_longs(pair, values, 2, "device") < 0)
        return -1;
    if (values[0] < 0 || values[0] > INT32_MAX || values[1] < INT32_MIN ||
        values[1] > INT32_MAX) {
        dlb_refuse("device", "device %R is not one of DLPack's", pair);
        return -1;
    }
    *device = (DLDevice){(DLDeviceType)values[0], (int32_t)values[1]};
    return 0;
}

PyObject *dlb_dims_tuple(const int64_t *dims, int32_t ndim) {
    PyObject *tuple = PyTuple_New(ndim);
    for (int32_t i = 0; tuple != NULL && i < ndim; i++) {
        PyObject *item = PyLong_FromLongLong(dims[i]);
        if (item == NULL)
            Py_CLEAR(tuple);
        else
            PyTuple_SET_ITEM(tuple, i, item);
    }
    return tuple;
}

/* The first function that the standard demands of a table and that is NULL here, of
 * those that make objects or of all. */
static const char *missing_function(const DLPackExchangeAPI *table, bool only_gives) {
    if (!only_gives && table->managed_tensor_allocator == NULL)
        return "managed_tensor_allocator";
    if (!only_gives && table->managed_tensor_from_py_object_no_sync == NULL)
        return "managed_tensor_from_py_object_no_sync";
    if (table->managed_tensor_to_py_object_no_sync == NULL)
        return "managed_tensor_to_py_object_no_sync";
    return table->current_work_stream == NULL ? "current_work_stream" : NULL;
}

/* A longer chain leads in a circle. */
enum { MOST_TABLES = 64 };

/* The table or an older one behind it whose major version we know. */
static const DLPackExchangeAPI *find_table(PyObject *capsule) {
    DLPackExchangeAPIHeader *header =
        PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    if (header == NULL)
        return NULL;
    for (int i = 0; header != NULL && header->version.major != DLPACK_MAJOR_VERSION;
         i++)
        header = i < MOST_TABLES ? header->prev_api : NULL;
    if (header == NULL)
        dlb_refuse("version", "the C exchange table has no version of major %d",
                   DLPACK_MAJOR_VERSION);
    return (const DLPackExchangeAPI *)header;
}

static const DLPackExchangeAPI *parse_table(PyObject *capsule, bool only_gives) {
    const DLPackExchangeAPI *table = find_table(capsule);
    const char *missing = table != NULL ? missing_function(table, only_gives) : NULL;
    if (missing == NULL)
        return table;
    dlb_refuse("producer",
               "the C exchange table has no %s, which DLPack demands of every table; "
               "report it to the framework that offers it",
               missing);
    return NULL;
}

const DLPackExchangeAPI *dlb_parse_table(PyObject *capsule) {
    return parse_table(capsule, false);
}

const DLPackExchangeAPI *dlb_parse_giving_table(PyObject *capsule) {
    return parse_table(capsule, true);
}

_Thread_local int dlb_kernel_depth;

/* ---- dicts that are as they were ---- */

static bool has_items(PyObject *dict, PyObject *contents) {
    PyObject *key, *value, *own_key, *own_value;
    Py_ssize_t at = 0, own_at = 0;
    if (PyDict_GET_SIZE(dict) != PyDict_GET_SIZE(contents))
        return false;
    while (PyDict_Next(contents, &at, &key, &value))
        if (!PyDict_Next(dict, &own_at, &own_key, &own_value) || key != own_key ||
            value != own_value)
            return false;
    return true;
}

/* 1, 0, or -1 with an exception. */
static int have_attributes(PyObject *objects, PyObject *dicts) {
    Py_ssize_t count = PyTuple_GET_SIZE(objects);
    Py_ssize_t each = count ? PyTuple_GET_SIZE(dicts) / count : 0;
    int status = 1;
    for (Py_ssize_t i = 0; status == 1 && i < count; i++) {
        PyObject *own = PyObject_GenericGetDict(PyTuple_GET_ITEM(objects, i), NULL);
        status = own ? own == PyTuple_GET_ITEM(dicts, i * each) : -1;
        Py_XDECREF(own);
    }
    return status;
}

PyObject *dlb_have_items(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *objects, *dicts, *contents;
    if (!PyArg_ParseTuple(args, "O!O!O!:have_items", &PyTuple_Type, &objects,
                          &PyTuple_Type, &dicts, &PyTuple_Type, &contents))
        return NULL;
    if (PyTuple_GET_SIZE(dicts) != PyTuple_GET_SIZE(contents))
        return PyErr_Format(PyExc_ValueError, "have_items: contents of other dicts");
    int status = have_attributes(objects, dicts);
    for (Py_ssize_t i = 0; status == 1 && i < PyTuple_GET_SIZE(dicts); i++) {
        PyObject *dict = PyTuple_GET_ITEM(dicts, i);
        PyObject *expected = PyTuple_GET_ITEM(contents, i);
        if (!PyDict_Check(dict) || !PyDict_Check(expected))
            return PyErr_Format(PyExc_TypeError, "have_items: %R is not a dict",
                                PyDict_Check(dict) ? expected : dict);
        DLB_BEGIN_EXCLUSIVE(dict);
        status = has_items(dict, expected);
        DLB_END_EXCLUSIVE();
    }
    return status < 0 ? NULL : PyBool_FromLong(status);
}

/* ---- NumPy's C API ---- */

int dlb_numpy_start(void) {
    import_array1(-1);
    return 0;
}

/* Capsules: the Python protocol's way out and in. */
#include "tensor/tensor.h"
#include "cuda/cuda.h"
#include "layout/layout.h"

#include <string.h>

static const char legacy_name[] = "dltensor", used_legacy_name[] = "used_dltensor";
static const char versioned_name[] = "dltensor_versioned";
static const char used_versioned_name[] = "used_dltensor_versioned";

/* ---- out ---- */

/* A consumer renames the capsule it takes; under the first name nobody took it. */
static void destroy_legacy(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, legacy_name))
        return;
    DLManagedTensor *managed = PyCapsule_GetPointer(capsule, legacy_name);
    managed->deleter(managed);
}

static void destroy_versioned(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, versioned_name))
        return;
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, versioned_name);
    managed->deleter(managed);
}

PyObject *dlb_capsule_of_view(dlb_view *view, bool versioned, uint64_t flags) {
    PyObject *capsule;
    if (versioned) {
        DLManagedTensorVersioned *managed = dlb_export_managed(view, flags);
        if (managed == NULL)
            return PyErr_NoMemory();
        capsule = PyCapsule_New(managed, versioned_name, destroy_versioned);
        if (capsule == NULL)
            managed->deleter(managed);
    } else {
        DLManagedTensor *managed = dlb_export_legacy(view);
        if (managed == NULL)
            return PyErr_NoMemory();
        capsule = PyCapsule_New(managed, legacy_name, destroy_legacy);
        if (capsule == NULL)
            managed->deleter(managed);
    }
    return capsule;
}

static PyObject *refuse_padded(void) {
    return dlb_refuse("version",
                      "__dlpack__: a legacy capsule cannot say that sub-byte "
                      "elements are padded; ask with max_version=(1, 0)");
}

static PyObject *export_tensor(dlb_tensor *tensor, bool versioned, uint64_t flags,
                               bool force_readonly, bool as_host, dlb_stream to) {
    uint64_t all = (tensor->flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_COPIED) | flags;
    if (!versioned && (all & DLPACK_FLAG_BITMASK_READ_ONLY) && !force_readonly)
        return dlb_refuse("readonly",
                          "__dlpack__: a legacy capsule cannot say that the memory is "
                          "read-only; ask with max_version=(1, 0) or export a copy");
    if (!versioned && (all & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED))
        return refuse_padded();
    dlb_view view;
    dlb_tensor_view(tensor, &view);
    if (dlb_lend_to(&view, to, "__dlpack__") < 0) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    if (as_host) /* pinned memory is also the CPU's */
        view.dl.device = (DLDevice){kDLCPU, 0};
    return dlb_capsule_of_view(&view, versioned, all);
}

static int keep(PyObject *capsule, bool versioned, PyObject *object) {
    dlb_buffer *kept = dlb_buffer_of_object(object);
    if (kept == NULL)
        return -1;
    void *managed = PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule));
    dlb_export_keep(versioned ? ((DLManagedTensorVersioned *)managed)->manager_ctx
                              : ((DLManagedTensor *)managed)->manager_ctx,
                    kept);
    return 0;
}

PyObject *dlb_tensor_capsule(PyObject *self, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"versioned", "flags", "force_readonly",
                            "stream",    "kept",  NULL};
    PyObject *kept = Py_None;
    int versioned, force_readonly = 0;
    unsigned long long flags = 0;
    long long stream = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "p|KpLO:_capsule", names, &versioned,
                                     &flags, &force_readonly, &stream, &kept))
        return NULL;
    PyObject *capsule = export_tensor((dlb_tensor *)self, versioned, flags,
                                      force_readonly, false, (dlb_stream)stream);
    if (capsule != NULL && kept != Py_None && keep(capsule, versioned, kept) < 0)
        Py_CLEAR(capsule);
    return capsule;
}

/* ---- __dlpack__ ---- */

typedef struct {
    PyObject *stream, *max_version, *dl_device, *copy;
} dlpack_arguments;

static int parse_arguments(PyObject *const *args, Py_ssize_t count, PyObject *names,
                           dlpack_arguments *out) {
    static const char *const known[] = {"stream", "max_version", "dl_device", "copy"};
    PyObject **slots[] = {&out->stream, &out->max_version, &out->dl_device, &out->copy};
    *out = (dlpack_arguments){Py_None, Py_None, Py_None, Py_None};
    if (count > 0) {
        PyErr_SetString(PyExc_TypeError, "__dlpack__() takes keyword arguments only");
        return -1;
    }
    for (Py_ssize_t i = 0; names != NULL && i < PyTuple_GET_SIZE(names); i++) {
        PyObject *name = PyTuple_GET_ITEM(names, i);
        int k = 0;
        while (k < 4 && PyUnicode_CompareWithASCIIString(name, known[k]) != 0)
            k++;
        if (k == 4) {
            PyErr_Format(PyExc_TypeError,
                         "__dlpack__() got an unexpected keyword argument %R", name);
            return -1;
        }
        *slots[k] = args[i];
    }
    return 0;
}

/* The consumer's highest version; anything from 1.0 on means that it reads versioned
 * structs. */
static int wants_versioned(PyObject *max_version) {
    if (max_version == Py_None)
        return 0;
    if (!PyTuple_Check(max_version) || PyTuple_GET_SIZE(max_version) != 2) {
        dlb_refuse("version",
                   "__dlpack__: max_version must be a tuple (major, minor), got %R",
                   max_version);
        return -1;
    }
    long major = PyLong_AsLong(PyTuple_GET_ITEM(max_version, 0));
    if (major == -1 && PyErr_Occurred()) {
        PyErr_Clear();
        dlb_refuse("version", "__dlpack__: max_version must hold integers, got %R",
                   max_version);
        return -1;
    }
    return major >= 1;
}

typedef enum { AS_IT_IS, AS_HOST, BY_COPY } way_out;

static bool read_device(PyObject *pair, DLDevice *device) {
    PyObject *type = NULL, *id = NULL;
    if (PyTuple_Check(pair) && PyTuple_GET_SIZE(pair) == 2) {
        type = PyTuple_GET_ITEM(pair, 0);
        id = PyTuple_GET_ITEM(pair, 1);
    }
    long wanted_type = type ? PyLong_AsLong(type) : -1;
    long wanted_id = id && id != Py_None && !PyErr_Occurred() ? PyLong_AsLong(id) : 0;
    *device = (DLDevice){(DLDeviceType)wanted_type, (int32_t)wanted_id};
    bool is_fine = type != NULL && !PyErr_Occurred();
    PyErr_Clear();
    return is_fine;
}

/* Pinned memory is the CPU's by another name. Where the memory is not, a copy of it
 * goes out, as far as it may. */
static int choose_way(PyObject *dl_device, PyObject *copy, DLDevice own,
                      DLDevice *wanted) {
    *wanted = own;
    if (dl_device == Py_None)
        return copy == Py_True ? BY_COPY : AS_IT_IS;
    bool is_read = read_device(dl_device, wanted);
    bool is_own = wanted->device_type == own.device_type &&
                  (wanted->device_id == own.device_id || own.device_type == kDLCPU);
    if (is_read && is_own)
        return copy == Py_True ? BY_COPY : AS_IT_IS;
    if (is_read && wanted->device_type == kDLCPU && dlb_is_host(own))
        return copy == Py_True ? BY_COPY : AS_HOST;
    if (is_read && copy != Py_False && dlb_can_move(*wanted, own))
        return BY_COPY;
    dlb_refuse(
        "device", "__dlpack__: dl_device %R asked for, the memory is on (%d, %d); %s",
        dl_device, (int)own.device_type, (int)own.device_id,
        copy == Py_False ? "copy=False forbids the copy" : "copy it there first");
    return -1;
}

/* In fresh memory, by the core itself: a subclass may override `copy`. */
static PyObject *export_copy(dlb_tensor *tensor, bool versioned, DLDevice device,
                             dlb_stream to) {
    uint64_t padded = tensor->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED;
    DLDevice there = dlb_is_host(device) && device.device_type != kDLCUDAHost
                         ? (DLDevice){kDLCPU, 0}
                         : device;
    if (!versioned && padded)
        return refuse_padded();
    if (!dlb_can_move(there, tensor->dl.device))
        return dlb_refuse(
            "device", "__dlpack__: copy=True needs the data in memory of the CPU or "
                      "of CUDA");
    bool is_host = dlb_is_host(there) && dlb_is_host(tensor->dl.device);
    if ((!is_host || there.device_type == kDLCUDAHost) && dlb_cuda_open(NULL) == NULL)
        return dlb_refuse("device",
                          "__dlpack__: a copy from or to a CUDA device needs the CUDA "
                          "driver, and there is none (%s)",
                          dlb_cuda_missing());
    PyObject *copied = dlb_copied(tensor, there, 'C', padded, "__dlpack__");
    if (copied == NULL)
        return NULL;
    PyObject *capsule = export_tensor((dlb_tensor *)copied, versioned,
                                      DLPACK_FLAG_BITMASK_IS_COPIED, false, false, to);
    Py_DECREF(copied);
    return capsule;
}

PyObject *dlb_tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names) {
    dlb_tensor *tensor = (dlb_tensor *)self;
    dlpack_arguments given;
    if (parse_arguments(args, count, names, &given) < 0)
        return NULL;
    int versioned = wants_versioned(given.max_version);
    if (versioned < 0)
        return NULL;
    if (strcmp(Py_TYPE(given.copy)->tp_name, "numpy.bool") == 0 ||
        strcmp(Py_TYPE(given.copy)->tp_name, "numpy.bool_") == 0) {
        int is_true = PyObject_IsTrue(given.copy);
        if (is_true < 0)
            return NULL;
        given.copy = is_true ? Py_True : Py_False;
    }
    if (given.copy != Py_None && given.copy != Py_True && given.copy != Py_False)
        return dlb_refuse("copy_required",
                          "__dlpack__: copy must be True, False or None, got %R",
                          given.copy);
    DLDevice own = tensor->dl.device, device;
    int way = choose_way(given.dl_device, given.copy, own, &device);
    if (way < 0)
        return NULL;
    /* From the CPU, which has no streams, the data may go to where there are some. */
    DLDevice streams = own.device_type == kDLCPU ? device : own;
    dlb_stream to;
    if (dlb_parse_stream(given.stream, streams, &to, "__dlpack__") < 0)
        return NULL;
    if (way == BY_COPY)
        return export_copy(tensor, versioned, device, to);
    return export_tensor(tensor, versioned, 0, false, way == AS_HOST, to);
}

/* ---- in ---- */

/* The name says what it holds, whatever was asked for. Ownership changes with the
 * rename; from there on every failure releases. */
int dlb_take_capsule(PyObject *capsule, dlb_view *view, const char *call) {
    const char *reason,
        *name = PyCapsule_CheckExact(capsule) ? PyCapsule_GetName(capsule) : NULL;
    if (name != NULL && strcmp(name, legacy_name) == 0) {
        void *managed = PyCapsule_GetPointer(capsule, name);
        if (PyCapsule_SetName(capsule, used_legacy_name) < 0)
            return -1;
        reason = dlb_take_legacy(managed, view);
    } else if (name != NULL && strcmp(name, versioned_name) == 0) {
        void *managed = PyCapsule_GetPointer(capsule, name);
        if (PyCapsule_SetName(capsule, used_versioned_name) < 0)
            return -1;
        reason = dlb_take_managed(managed, view);
    } else if (name != NULL && (strcmp(name, used_legacy_name) == 0 ||
                                strcmp(name, used_versioned_name) == 0)) {
        dlb_refuse("consumed", "%s: this capsule was consumed before; export a new one",
                   call);
        return -1;
    } else {
        PyErr_Clear();
        dlb_refuse("producer", "%s: expected a DLPack capsule, got %R", call, capsule);
        return -1;
    }
    if (reason == NULL)
        return 0;
    dlb_refuse_take(reason, call, &view->dl);
    return -1;
}

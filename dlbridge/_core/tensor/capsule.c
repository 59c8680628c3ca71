/* Managed tensors: owning one of either version that came in, making one of ours to go
 * out; and the capsules that carry them. */
#include "cuda/cuda.h"
#include "layout/layout.h"
#include "tensor/tensor.h"

#include <stdlib.h>
#include <string.h>

/* ---- in ---- */

/* Fold the offset into the pointer and fill in absent strides, so that nobody after us
 * needs to know of either. CPU memory is one device, whatever index its framework gives
 * it. */
static const char *normalise(dlb_view *view) {
    DLTensor *dl = &view->dl;
    if (view->flags & DLB_IMMUTABLE) /* which no producer knows */
        return "flags";
    const char *reason = dlb_layout_check(dl, view->flags);
    if (reason != NULL)
        return reason;
    uint64_t offset = dl->byte_offset;
    dl->byte_offset = 0;
    dlb_advance(dl, (int64_t)offset);
    if (dl->strides == NULL || dl->ndim == 0) {
        dlb_row_major_strides(dl->ndim, dl->shape, view->scratch);
        dl->strides = view->scratch;
    }
    if (dl->shape == NULL)
        dl->shape = view->scratch;
    if (dl->device.device_type == kDLCPU)
        dl->device.device_id = 0;
    return NULL;
}

/* ---- out ---- */

typedef struct {
    union {
        DLManagedTensor legacy;
        DLManagedTensorVersioned versioned;
    };
    _Atomic(dlb_buffer *) buffer; /* NULL once the deleter ran */
    dlb_buffer *kept;             /* keeps the consumer's stream alive */
    dlb_stream_id borrowed;       /* the consumer's stream; 0: not known */
    bool writes;
    int64_t dims[]; /* shape, then strides */
} export_t;

/* Broken consumers call a deleter and leave the capsule as it was, whose destructor
 * then calls it again (TensorFlow 2.21 and torch 2.13 do, on devices they refuse). The
 * struct therefore outlives its release a little: a ring holds the latest ones, so that
 * a second call finds the NULL. */
#define RING_SIZE 64
typedef struct {
    _Alignas(128) _Atomic unsigned next;
    _Atomic(export_t *) slots[RING_SIZE];
} ring;

/* Without a GIL, few threads share one. */
#ifdef DLB_FREE_THREADED
static ring rings[DLB_LIVE_PARTS];
#define OWN_RING (&rings[dlb_live_part_number()])
#else
static ring rings[1];
#define OWN_RING (&rings[0])
#endif

int dlb_view_lend(dlb_view *view, dlb_stream to, dlb_stream worker, bool may_call) {
    bool writes = !(view->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    if (view->buffer->access == NULL)
        return 0;
    if (view->dl.device.device_type == kDLCUDAHost) /* the host may read it at once */
        return may_call ? dlb_access_wait(view->buffer->access, writes) : 1;
    if (to == DLB_STREAM_NONE)
        return 0;
    dlb_stream_id borrowed;
    int status =
        dlb_access_lend(view->buffer->access, to, worker, writes, may_call, &borrowed);
    if (status == 0)
        view->borrowed = borrowed;
    return status;
}

static void take_back(dlb_buffer *buffer, dlb_stream_id borrowed, bool writes) {
    if (buffer->access != NULL && borrowed.handle != 0)
        dlb_access_take_back(buffer->access, borrowed, writes);
}

static void retire(export_t *export) {
    dlb_buffer *buffer = atomic_exchange(&export->buffer, NULL);
    if (buffer == NULL) {
        dlb_ledger_misused(export, 0, DLB_DELETED_TWICE);
        return;
    }
    dlb_ledger_died(export, false);
    take_back(buffer, export->borrowed, export->writes);
    dlb_buffer_drop(buffer);
    if (export->kept != NULL)
        dlb_buffer_drop(export->kept);
    dlb_count_live(exports, -1);
    ring *own = OWN_RING;
    /* Not one atomic step, which takes longer. Where threads race, a slot is used twice
     * or early: the ring only has to hold most structs for a while. */
    unsigned slot = atomic_load_explicit(&own->next, memory_order_relaxed);
    atomic_store_explicit(&own->next, (slot + 1) % RING_SIZE, memory_order_relaxed);
    export_t *oldest = atomic_exchange(&own->slots[slot], export);
    if (oldest != NULL)
        dlb_ledger_died(oldest, true);
    free(oldest);
}

static void delete_versioned(DLManagedTensorVersioned *managed) {
    retire(managed->manager_ctx);
}

static void delete_legacy(DLManagedTensor *managed) {
    retire(managed->manager_ctx);
}

void dlb_count_deletion(void *managed) {
    atomic_fetch_add((_Atomic int64_t *)managed, 1);
}

static export_t *make_export(dlb_view *view, DLTensor *(*tensor_of)(export_t *)) {
    int32_t ndim = view->dl.ndim;
    size_t dims = (size_t)ndim * sizeof(int64_t);
    export_t *export = malloc(sizeof *export + 2 * dims);
    if (export == NULL) {
        take_back(view->buffer, view->borrowed, false);
        dlb_buffer_drop(view->buffer);
        return NULL;
    }
    if (dims > 0) { /* without dimensions the pointers may be NULL, which memcpy does
                       not take */
        memcpy(export->dims, view->dl.shape, dims);
        memcpy(export->dims + ndim, view->dl.strides, dims);
    }
    DLTensor *out = tensor_of(export);
    *out = view->dl;
    out->shape = export->dims;
    out->strides = export->dims + ndim;
    if (out->device.device_type == kDLOneAPI) /* as dpnp exports and imports it */
        dlb_from_lowest(out);
    atomic_init(&export->buffer, view->buffer);
    export->kept = NULL;
    export->borrowed = view->borrowed;
    export->writes = !(view->flags & DLPACK_FLAG_BITMASK_READ_ONLY);
    dlb_count_live(exports, 1);
    dlb_ledger_born(export, out);
    return export;
}

static DLTensor *legacy_tensor(export_t *export) {
    return &export->legacy.dl_tensor;
}

static DLTensor *versioned_tensor(export_t *export) {
    return &export->versioned.dl_tensor;
}

DLManagedTensorVersioned *dlb_export_managed(dlb_view *view, uint64_t flags) {
    export_t *export = make_export(view, versioned_tensor);
    if (export == NULL)
        return NULL;
    export->versioned.version =
        (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    export->versioned.manager_ctx = export;
    export->versioned.deleter = delete_versioned;
    export->versioned.flags = flags & DLB_KNOWN_FLAGS;
    return &export->versioned;
}

DLManagedTensor *dlb_export_legacy(dlb_view *view) {
    export_t *export = make_export(view, legacy_tensor);
    if (export == NULL)
        return NULL;
    export->legacy.manager_ctx = export;
    export->legacy.deleter = delete_legacy;
    return &export->legacy;
}

void dlb_export_keep(void *context, dlb_buffer *kept) {
    ((export_t *)context)->kept = kept;
}

/* ---- in, continued: both take ownership first ---- */

const char *dlb_take_held(dlb_buffer *buffer, dlb_view *view) {
    const char *reason = normalise(view);
    if (reason == NULL && !dlb_buffer_track(buffer, view->dl.device))
        reason = "memory";
    if (reason != NULL)
        dlb_buffer_drop(buffer);
    else
        view->buffer = buffer;
    return reason;
}

const char *dlb_take_managed(DLManagedTensorVersioned *managed, dlb_view *view) {
    dlb_buffer *buffer = dlb_buffer_of_managed(managed);
    view->version = managed->version;
    if (buffer == NULL || managed->version.major != DLPACK_MAJOR_VERSION) {
        if (buffer != NULL)
            dlb_buffer_drop(buffer);
        else if (managed->deleter != NULL)
            managed->deleter(managed);
        return buffer == NULL ? "memory" : "version";
    }
    view->dl = managed->dl_tensor;
    view->flags = managed->flags;
    view->borrowed = (dlb_stream_id){0};
    return dlb_take_held(buffer, view);
}

const char *dlb_take_legacy(DLManagedTensor *managed, dlb_view *view) {
    dlb_buffer *buffer = dlb_buffer_of_legacy(managed);
    if (buffer == NULL) {
        if (managed->deleter != NULL)
            managed->deleter(managed);
        return "memory";
    }
    view->dl = managed->dl_tensor;
    view->flags = 0;
    view->version = (DLPackVersion){0, 8};
    view->borrowed = (dlb_stream_id){0};
    return dlb_take_held(buffer, view);
}

static const char legacy_name[] = "dltensor", used_legacy_name[] = "used_dltensor";
static const char versioned_name[] = "dltensor_versioned";
static const char used_versioned_name[] = "used_dltensor_versioned";

/* ---- out ---- */

/* A consumer renames the capsule it takes; under the first name nobody took it. */
static void destroy_legacy(PyObject *capsule);
static void destroy_versioned(PyObject *capsule);

/* The ledger's number of a capsule of ours that was made while one was open, else 0:
 * the struct of a consumed capsule may be gone, and its address another's. An export
 * has the address of its struct. */
static int64_t serial_of(PyObject *capsule) {
    PyCapsule_Destructor destroy = PyCapsule_GetDestructor(capsule);
    bool is_ours = destroy == destroy_legacy || destroy == destroy_versioned;
    return is_ours ? (int64_t)(intptr_t)PyCapsule_GetContext(capsule) : 0;
}

static void destroy_legacy(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, legacy_name))
        return;
    DLManagedTensor *managed = PyCapsule_GetPointer(capsule, legacy_name);
    dlb_ledger_misused(managed, serial_of(capsule), DLB_NEVER_CONSUMED);
    managed->deleter(managed);
}

static void destroy_versioned(PyObject *capsule) {
    if (!PyCapsule_IsValid(capsule, versioned_name))
        return;
    DLManagedTensorVersioned *managed = PyCapsule_GetPointer(capsule, versioned_name);
    dlb_ledger_misused(managed, serial_of(capsule), DLB_NEVER_CONSUMED);
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
    if (capsule != NULL && dlb_ledger_is_open != 0)
        PyCapsule_SetContext(
            capsule, (void *)(intptr_t)dlb_ledger_serial(
                         PyCapsule_GetPointer(capsule, PyCapsule_GetName(capsule))));
    return capsule;
}

static PyObject *refuse_padded(void) {
    return dlb_refuse("version",
                      "__dlpack__: a legacy capsule cannot say that sub-byte "
                      "elements are padded; ask with max_version=(1, 0)");
}

/* `as` is what the memory is called to the consumer; NULL: by its own device. */
static PyObject *export_tensor(dlb_tensor *tensor, bool versioned, uint64_t flags,
                               bool force_readonly, const DLDevice *as, dlb_stream to,
                               dlb_stream worker) {
    uint64_t all = (tensor->flags & ~(uint64_t)DLPACK_FLAG_BITMASK_IS_COPIED) | flags;
    bool is_said = (all & DLPACK_FLAG_BITMASK_READ_ONLY) && !(all & DLB_IMMUTABLE);
    if (!versioned && is_said && !force_readonly)
        return dlb_refuse(
            "readonly",
            "__dlpack__: a legacy capsule cannot say that the memory is "
            "read-only; ask with max_version=(1, 0), or for a copy with copy=True");
    if (!versioned && (all & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED))
        return refuse_padded();
    dlb_view view;
    dlb_tensor_view(tensor, &view);
    if (dlb_lend_to_worker(&view, to, worker, "__dlpack__") < 0) {
        dlb_buffer_drop(view.buffer);
        return NULL;
    }
    if (as != NULL)
        view.dl.device = *as;
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
    static char *names[] = {"versioned", "flags", "force_readonly", "stream", "kept",
                            "worker",    NULL};
    PyObject *kept = Py_None;
    int versioned, force_readonly = 0;
    unsigned long long flags = 0;
    long long stream = -1;
    unsigned long long worker = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "p|KpLOK:_capsule", names,
                                     &versioned, &flags, &force_readonly, &stream,
                                     &kept, &worker))
        return NULL;
    dlb_stream to = (dlb_stream)stream;
    PyObject *capsule =
        export_tensor((dlb_tensor *)self, versioned, flags, force_readonly, NULL, to,
                      worker != 0 ? (dlb_stream)worker : to);
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

static bool is_pair(PyObject *x) {
    return PyTuple_Check(x) && PyTuple_GET_SIZE(x) == 2;
}

/* The consumer's highest version; anything from 1.0 on means that it reads versioned
 * structs. */
static int wants_versioned(PyObject *max_version) {
    if (max_version == Py_None)
        return 0;
    if (!is_pair(max_version) || !PyIndex_Check(PyTuple_GET_ITEM(max_version, 0)) ||
        !PyIndex_Check(PyTuple_GET_ITEM(max_version, 1))) {
        dlb_raise_error(
            "UnsupportedTypeError",
            "__dlpack__: max_version must be a tuple of integers (major, minor), "
            "got %R",
            max_version);
        return -1;
    }
    long major = PyLong_AsLong(PyTuple_GET_ITEM(max_version, 0));
    if (major == -1 && PyErr_Occurred()) {
        if (dlb_clear_error() == 0)
            dlb_refuse("version", "__dlpack__: no version of DLPack is %R",
                       max_version);
        return -1;
    }
    return major >= 1;
}

typedef enum { AS_IT_IS, BY_COPY } way_out;

/* False for numbers that no device has, or with the exception of an interrupt. */
static bool read_device(PyObject *pair, DLDevice *device) {
    PyObject *id = PyTuple_GET_ITEM(pair, 1);
    long wanted_type = PyLong_AsLong(PyTuple_GET_ITEM(pair, 0));
    long wanted_id = id == Py_None || PyErr_Occurred() ? 0 : PyLong_AsLong(id);
    bool is_fine = !PyErr_Occurred() && wanted_type >= 0 && wanted_type < 64 &&
                   wanted_id >= 0 && wanted_id <= INT32_MAX;
    dlb_clear_error();
    *device = (DLDevice){(DLDeviceType)wanted_type, (int32_t)wanted_id};
    return is_fine;
}

/* Frameworks number the CPU for their own bookkeeping, but no machine has so many. */
static bool is_cpu(DLDevice device) {
    return device.device_type == kDLCPU && device.device_id < 1 << 16;
}

static bool is_same(DLDevice wanted, DLDevice own) {
    if (own.device_type == kDLCPU)
        return is_cpu(wanted);
    return wanted.device_type == own.device_type && wanted.device_id == own.device_id;
}

/* Pinned memory is the CPU's by another name. Where the memory is not, a copy of it
 * goes out, as far as it may. */
static int choose_way(PyObject *dl_device, PyObject *copy, DLDevice own,
                      DLDevice *wanted) {
    *wanted = own;
    if (dl_device == Py_None)
        return copy == Py_True ? BY_COPY : AS_IT_IS;
    PyObject *id = is_pair(dl_device) ? PyTuple_GET_ITEM(dl_device, 1) : NULL;
    if (id == NULL || !PyIndex_Check(PyTuple_GET_ITEM(dl_device, 0)) ||
        (id != Py_None && !PyIndex_Check(id))) {
        dlb_raise_error(
            "UnsupportedTypeError",
            "__dlpack__: dl_device must be a tuple of integers (device type, id), "
            "got %R",
            dl_device);
        return -1;
    }
    bool is_read = read_device(dl_device, wanted);
    if (!is_read && PyErr_Occurred())
        return -1;
    if (is_read && is_same(*wanted, own))
        return copy == Py_True ? BY_COPY : AS_IT_IS;
    if (is_read && is_cpu(*wanted) && dlb_is_host(own))
        return copy == Py_True ? BY_COPY : AS_IT_IS;
    bool is_moved = dlb_can_move(*wanted, own) || dlb_may_ask(*wanted, own);
    if (is_read && copy != Py_False && is_moved &&
        (wanted->device_type != kDLCPU || is_cpu(*wanted)))
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
    bool is_host = dlb_is_host(there) && dlb_is_host(tensor->dl.device);
    if ((!is_host || there.device_type == kDLCUDAHost) &&
        dlb_can_move(there, tensor->dl.device) && dlb_cuda_open(NULL) == NULL)
        return dlb_refuse("device",
                          "__dlpack__: a copy from or to a CUDA device needs the CUDA "
                          "driver, and there is none (%s)",
                          dlb_cuda_missing());
    PyObject *copied = dlb_copied(tensor, there, 'C', padded, "__dlpack__");
    if (copied == NULL)
        return NULL;
    PyObject *capsule =
        export_tensor((dlb_tensor *)copied, versioned, DLPACK_FLAG_BITMASK_IS_COPIED,
                      false, device.device_type == kDLCPU ? &device : NULL, to, to);
    Py_DECREF(copied);
    return capsule;
}

/* A queue of SYCL waits for the memory by the framework that knows it; then nothing is
 * left to be done. A copy is over when it goes out. */
static int order_queue(PyObject *self, PyObject **stream) {
    if (*stream == Py_None || dlb.slow_stream == NULL)
        return 0;
    PyObject *is_ordered =
        PyObject_CallFunctionObjArgs(dlb.slow_stream, self, *stream, NULL);
    if (is_ordered == NULL)
        return -1;
    if (is_ordered == Py_True)
        *stream = Py_None;
    Py_DECREF(is_ordered);
    return 0;
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
        return dlb_raise_error("ArgumentError",
                               "__dlpack__: copy must be True, False or None, got %R",
                               given.copy);
    DLDevice own = tensor->dl.device, device;
    int way = choose_way(given.dl_device, given.copy, own, &device);
    if (way < 0)
        return NULL;
    /* From the CPU, which has no streams, the data may go to where there are some. */
    DLDevice streams = own.device_type == kDLCPU ? device : own;
    dlb_stream to;
    if (streams.device_type == kDLOneAPI && !PyLong_Check(given.stream) &&
        order_queue(self, &given.stream) < 0)
        return NULL;
    if (dlb_parse_stream(given.stream, streams, &to, "__dlpack__") < 0)
        return NULL;
    if (way == BY_COPY)
        return export_copy(tensor, versioned, device, to);
    /* Pinned memory is also the CPU's, and the CPU has the number that was asked for.
     */
    return export_tensor(tensor, versioned, 0, false, &device, to, to);
}

/* ---- in ---- */

/* The name says what it holds, whatever was asked for. Ownership changes with the
 * rename; from there on every failure releases. */
typedef enum { OTHER, LEGACY, VERSIONED, USED, FAILED } capsule_kind;

static capsule_kind kind_of(const char *name) {
    if (name == NULL)
        return OTHER;
    if (strcmp(name, legacy_name) == 0)
        return LEGACY;
    if (strcmp(name, versioned_name) == 0)
        return VERSIONED;
    bool is_used =
        strcmp(name, used_legacy_name) == 0 || strcmp(name, used_versioned_name) == 0;
    return is_used ? USED : OTHER;
}

/* Look at the name and change it, as one step: of two threads one gets the memory. */
static capsule_kind claim(PyObject *capsule, void **managed) {
    capsule_kind kind;
    DLB_BEGIN_EXCLUSIVE(capsule);
    const char *name = PyCapsule_GetName(capsule);
    kind = kind_of(name);
    *managed = kind == OTHER ? NULL : PyCapsule_GetPointer(capsule, name);
    if (kind == LEGACY || kind == VERSIONED) {
        name = kind == LEGACY ? used_legacy_name : used_versioned_name;
        if (PyCapsule_SetName(capsule, name) < 0)
            kind = FAILED;
    }
    DLB_END_EXCLUSIVE();
    return kind;
}

int dlb_take_capsule(PyObject *capsule, dlb_view *view, const char *call) {
    const char *reason = NULL;
    void *managed;
    switch (PyCapsule_CheckExact(capsule) ? claim(capsule, &managed) : OTHER) {
    case LEGACY:
        reason = dlb_take_legacy(managed, view);
        break;
    case VERSIONED:
        reason = dlb_take_managed(managed, view);
        break;
    case USED:
        dlb_ledger_misused(managed, serial_of(capsule), DLB_CONSUMED_TWICE);
        dlb_refuse("consumed", "%s: this capsule was consumed before; export a new one",
                   call);
        return -1;
    case OTHER:
        PyErr_Clear();
        dlb_refuse("producer", "%s: expected a DLPack capsule, got %R", call, capsule);
        return -1;
    case FAILED:
        return -1;
    }
    if (reason == NULL)
        return 0;
    dlb_refuse_take(reason, call, &view->dl, view->version);
    return -1;
}

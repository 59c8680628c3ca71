/* The C paths in. A type is classified once, by the adapters in Python; afterwards its
 * objects are taken by the function found here. */
#include "exchange/exchange.h"
#include "exchange/receipt.h"
#include "cuda/cuda.h"
#include "python/numpy.h"
#include "torch/torch.h"

typedef enum {
    SLOW,
    TENSOR,
    NUMPY,
    TORCH,
    TORCH_PUBLIC, /* of a version that is not proved */
    JAX,
    TABLE,
    CAPSULE,
    BUFFER,
    STREAMED,
    DLPACK, /* has only __dlpack__ */
} take_kind;

/* Immutable. */
typedef struct {
    PyTypeObject *type;  /* a strong reference, so that the address cannot be reused */
    PyObject *reference; /* weak, in its place: ends the entry with the type; or NULL */
    take_kind kind;
    const DLPackExchangeAPI *table;
    /* The table's capsule; a function's tuple, see below; for DLPACK whether its
     * __dlpack__ takes no max_version. */
    PyObject *payload;
    PyObject *values; /* see take_values; or NULL */
    PyObject *source; /* for DLPACK and TABLE: its name in receipts */
} entry_t;

/* A type has one set of places. When that is full its oldest entry is thrown out, and
 * the type of that one is classified again. Without a GIL another thread may be reading
 * it, so that it stays, and a type which finds no place goes the Python way. */
#ifdef Py_GIL_DISABLED
enum { SETS = 64, PLACES = 8 };
#else
enum { SETS = 128, PLACES = 4 };
#endif
static _Atomic(const entry_t *) entries[SETS][PLACES];

static inline _Atomic(const entry_t *) *set_of(PyTypeObject *type) {
    return entries[((uintptr_t)type >> 4) % SETS];
}

/* Not inlined: most types are in the first place. */
__attribute__((noinline)) static const entry_t *find_further(PyTypeObject *type) {
    for (int i = 1; i < PLACES; i++) {
        const entry_t *entry =
            atomic_load_explicit(&set_of(type)[i], memory_order_acquire);
        if (entry != NULL && entry->type == type)
            return entry;
    }
    return NULL;
}

/* NULL: not known. What is returned stays until Python code runs. */
static inline const entry_t *find(PyTypeObject *type) {
    const entry_t *entry = atomic_load_explicit(set_of(type), memory_order_acquire);
    return entry != NULL && entry->type == type ? entry : find_further(type);
}

static void free_entry(const entry_t *entry) {
    if (entry == NULL)
        return;
    if (entry->reference == NULL)
        Py_XDECREF(entry->type);
    Py_XDECREF(entry->reference);
    Py_XDECREF(entry->payload);
    Py_XDECREF(entry->values);
    Py_XDECREF(entry->source);
    PyMem_Free((void *)entry);
}

static void keep(const entry_t *made) {
    _Atomic(const entry_t *) *set = set_of(made->type);
#ifdef Py_GIL_DISABLED
    for (int i = 0; i < PLACES; i++) {
        const entry_t *there = NULL;
        if (atomic_compare_exchange_strong(&set[i], &there, made))
            return;
        if (there->type == made->type)
            break;
    }
    free_entry(made);
#else
    /* The new one comes first. Those before the first gap, or before an older one of
     * its type, move on by a place; without either the last leaves. */
    const entry_t *moved = made;
    for (int i = 0; i < PLACES && moved != NULL; i++) {
        moved = atomic_exchange(&set[i], moved);
        if (moved != NULL && moved->type == made->type)
            break;
    }
    free_entry(moved); /* may run Python code */
#endif
}

static int parse_kind(PyObject *name, take_kind *kind) {
    static const char *const names[] = {"slow",         "tensor",   "numpy", "torch",
                                        "torch_public", "jax",      "table", "capsule",
                                        "buffer",       "streamed", "dlpack"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++)
        if (PyUnicode_Check(name) &&
            PyUnicode_CompareWithASCIIString(name, names[i]) == 0) {
            *kind = (take_kind)i;
            return 0;
        }
    PyErr_Format(PyExc_ValueError, "classify returned the unknown kind %R", name);
    return -1;
}

static int expect_payload(PyObject *payload, Py_ssize_t count, const char *needs) {
    if (PyTuple_Check(payload) && PyTuple_GET_SIZE(payload) == count)
        return 0;
    PyErr_Format(PyExc_TypeError, "classify: %s", needs);
    return -1;
}

static int parse_answer(PyObject *answer, entry_t *made) {
    Py_ssize_t count = PyTuple_Check(answer) ? PyTuple_GET_SIZE(answer) : 0;
    if (count != 2 && count != 3) {
        PyErr_SetString(PyExc_TypeError,
                        "classify must return None or (kind, payload[, values])");
        return -1;
    }
    made->payload = PyTuple_GET_ITEM(answer, 1);
    made->values = count == 3 ? PyTuple_GET_ITEM(answer, 2) : NULL;
    if (parse_kind(PyTuple_GET_ITEM(answer, 0), &made->kind) < 0)
        return -1;
    if (made->kind == TORCH && made->payload == Py_None)
        return 0; /* before 2.10 torch had no table */
    if (made->kind == TORCH || made->kind == TABLE) {
        made->table = dlb_parse_table(made->payload);
        return made->table ? 0 : -1;
    }
    if (made->kind == TORCH_PUBLIC)
        return expect_payload(made->payload, 2, "torch_public needs (export, hold)");
    if (made->kind == CAPSULE)
        return expect_payload(
            made->payload, 6,
            "a capsule needs (function, guard, accepted, declined_code, flags, lend)");
    if (made->kind == JAX)
        return expect_payload(
            made->payload, 6,
            "jax needs (guard, accepted, view_method, dtype, dtypes, lend)");
    return 0;
}

/* A type that was kept weakly has died. */
static PyObject *end_entry(PyObject *Py_UNUSED(module), PyObject *reference) {
    for (size_t i = 0; i < SETS * PLACES; i++) {
        _Atomic(const entry_t *) *place = &entries[i / PLACES][i % PLACES];
        const entry_t *entry = atomic_load(place);
        if (entry != NULL && entry->reference == reference) {
            atomic_store(place, NULL);
#ifndef Py_GIL_DISABLED /* else another thread may be reading it */
            free_entry(entry);
#endif
            break;
        }
    }
    Py_RETURN_NONE;
}

static PyMethodDef end_entry_method = {"end_entry", end_entry, METH_O, NULL};
static PyObject *forget_dead;

static int learn(PyTypeObject *type, PyObject *answer) {
    entry_t read = {.type = type};
    if (forget_dead == NULL &&
        (forget_dead = PyCFunction_New(&end_entry_method, NULL)) == NULL)
        return -1;
    if (parse_answer(answer, &read) < 0)
        return -1;
    if (read.kind == DLPACK || read.kind == TABLE) {
        read.source = dlb_receipt_source(type);
        if (read.source == NULL)
            return -1;
    }
    entry_t *made = PyMem_Malloc(sizeof *made);
    if (made == NULL) {
        Py_XDECREF(read.source);
        PyErr_NoMemory();
        return -1;
    }
    *made = read;
    if (made->kind == DLPACK) {
        made->reference = PyWeakref_NewRef((PyObject *)type, forget_dead);
        if (made->reference == NULL) {
            Py_XDECREF(made->source);
            PyMem_Free(made);
            return -1;
        }
    } else
        Py_INCREF(made->type);
    Py_INCREF(made->payload);
    Py_XINCREF(made->values);
    keep(made);
    return 0;
}

/* Only types with a C path are kept: users make classes of their own, and subclasses of
 * Tensor, by the dozen. Those that speak the standard alone are kept weakly, as a kept
 * type is never freed. */
static const entry_t slow_entry = {.kind = SLOW}, tensor_entry = {.kind = TENSOR};

static const entry_t *classify(PyTypeObject *type) {
    if (PyType_IsSubtype(type, &dlb_TensorType))
        return &tensor_entry;
    if (dlb.classify == NULL)
        return &slow_entry;
    PyObject *answer = PyObject_CallOneArg(dlb.classify, (PyObject *)type);
    if (answer == NULL)
        return NULL;
    int failed = answer == Py_None ? 0 : learn(type, answer);
    Py_DECREF(answer);
    if (failed)
        return NULL;
    /* Others may have taken its place meanwhile; the next call asks again. */
    const entry_t *entry = find(type);
    return entry != NULL ? entry : &slow_entry;
}

bool dlb_is_framework_type(PyTypeObject *type) {
    if (type == (PyTypeObject *)dlb.tensor_type)
        return true;
    const entry_t *entry = find(type);
    return entry != NULL && entry->type == type && entry->kind != SLOW &&
           entry->kind != TENSOR && entry->kind != TABLE && entry->kind != DLPACK;
}

int dlb_meet_type(PyTypeObject *type) {
    if (find(type) != NULL || classify(type) != NULL)
        return 0;
    return dlb_clear_error();
}

static PyObject *detach(PyObject *x) {
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("detach")) == NULL)
        return NULL;
    return PyObject_CallMethodNoArgs(x, name);
}

/* By the exchange table, which keeps the tensor that it is given: an alias, so that the
 * storage stays whatever becomes of x. */
static int take_torch_alias(PyObject *x, const DLPackExchangeAPI *table,
                            dlb_view *view) {
    PyObject *alias = detach(x);
    if (alias == NULL)
        return -1;
    int status = DLB_DECLINED;
    if (dlb_torch_is_exact(alias) && dlb_torch_is_plain(alias))
        status = dlb_take_table(alias, table, view);
    if (status == 0) {
        bool is_odd = view->dl.dtype.bits == 8 && view->dl.dtype.code <= kDLUInt &&
                      !dlb_torch_is_byte_type(x);
        if (is_odd || !dlb_torch_fits_storage(x, &view->dl)) {
            dlb_buffer_drop(view->buffer);
            status = DLB_DECLINED;
        }
    }
    Py_DECREF(alias);
    return status;
}

static int take_torch(PyObject *x, const DLPackExchangeAPI *table, dlb_view *view) {
    if (!dlb_torch_is_plain(x))
        return DLB_DECLINED;
    int status = dlb_torch_is_traced();
    if (status != 0) /* the Python way warns */
        return status < 0 ? -1 : DLB_DECLINED;
    status = dlb_torch_take(x, view);
    if (status != DLB_DECLINED || table == NULL)
        return status;
    status = take_torch_alias(x, table, view);
    if (status == 0 && view->dl.device.device_type == kDLCPU)
        dlb_torch_fix_size(x);
    return status;
}

/* ---- torch of a version that is not proved ----
 *
 * What the Python path asks in `_take_memory` of frameworks/torch/__init__.py is asked
 * here, of plain tensors in the CPU's memory: see torch/queries.c. The payload is
 * (export, hold): the exchange table's capsule, or before 2.10
 * torch.utils.dlpack.to_dlpack; `hold` of frameworks/torch/sharing.py. */

enum { DETACH, STORAGE, RESIZABLE, TO_NUMPY, NAMES };
static PyObject *torch_names[NAMES];

static int make_torch_names(void) {
    static const char *const texts[] = {"detach", "untyped_storage", "resizable",
                                        "numpy"};
    for (int i = 0; i < NAMES; i++)
        if (torch_names[i] == NULL &&
            (torch_names[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return -1;
    return 0;
}

/* Have torch refuse to resize the storage of x: 0, or -1 with an error. */
static int fix_size(PyObject *x, PyObject *storage) {
    int fixed = dlb_torch_is_result(
        PyObject_CallMethodNoArgs(storage, torch_names[RESIZABLE]), Py_False);
    if (fixed != 0)
        return fixed < 0 ? -1 : 0;
    /* as after Tensor.numpy(); the Python path knows a way for every dtype */
    PyObject *array = PyObject_CallMethodNoArgs(x, torch_names[TO_NUMPY]);
    Py_XDECREF(array);
    return array ? 0 : -1;
}

/* Whether the storage reaches as far as the tensor does, and can be resized no more:
 * 0, -1 with an error, DLB_DECLINED. */
static int settle_storage(PyObject *alias, PyObject *storage, const DLTensor *dl) {
    int reaches = dlb_torch_query_reach(alias, storage, dl);
    if (reaches != 1)
        return reaches < 0 ? -1 : DLB_DECLINED;
    return fix_size(alias, storage);
}

/* Have the view keep `memory` besides what it keeps. */
static int keep_besides(dlb_view *view, PyObject *memory) {
    PyObject *tensor = dlb_tensor_new(dlb.tensor_type, view);
    PyObject *both = tensor ? PyTuple_Pack(2, tensor, memory) : NULL;
    Py_XDECREF(tensor);
    dlb_buffer *buffer = both ? dlb_buffer_of_object(both) : NULL;
    if (buffer != NULL) {
        dlb_tensor_view((dlb_tensor *)tensor, view);
        dlb_buffer_drop(view->buffer);
        view->buffer = buffer;
    }
    Py_XDECREF(both);
    return buffer ? 0 : -1;
}

static int take_exported(PyObject *alias, PyObject *export, dlb_view *view) {
    if (PyCapsule_CheckExact(export)) {
        const DLPackExchangeAPI *table = dlb_parse_table(export);
        return table == NULL ? -1 : dlb_take_table(alias, table, view);
    }
    PyObject *capsule = PyObject_CallOneArg(export, alias);
    if (capsule == NULL)
        return -1;
    int status = dlb_take_capsule(capsule, view, "from_dlpack");
    if (status < 0)
        dlb_clear_error(); /* the destructor must not run while an error is set */
    Py_DECREF(capsule);
    if (status < 0)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    return 0;
}

static int take_alias(PyObject *alias, PyObject *payload, dlb_view *view) {
    PyObject *storage = PyObject_CallMethodNoArgs(alias, torch_names[STORAGE]);
    if (storage == NULL)
        return -1;
    int status = take_exported(alias, PyTuple_GET_ITEM(payload, 0), view);
    if (status != 0) {
        Py_DECREF(storage);
        return status;
    }
    bool is_on_cpu = view->dl.device.device_type == kDLCPU && !view->buffer->access;
    status = is_on_cpu ? 0 : DLB_DECLINED;
    bool has_elements = dlb_torch_extent(&view->dl) != 0;
    if (status == 0 && has_elements)
        status = settle_storage(alias, storage, &view->dl);
    if (status == 0 && has_elements) {
        PyObject *memory = PyObject_CallOneArg(PyTuple_GET_ITEM(payload, 1), storage);
        status = memory == NULL      ? -1
                 : memory == Py_None ? 0
                                     : keep_besides(view, memory);
        if (status < 0 && memory != NULL) { /* which dropped the view's buffer */
            Py_DECREF(memory);
            Py_DECREF(storage);
            return -1;
        }
        Py_XDECREF(memory);
    }
    Py_DECREF(storage);
    if (status != 0)
        dlb_buffer_drop(view->buffer);
    return status;
}

static int take_public_alias(PyObject *x, PyObject *payload, dlb_view *view) {
    PyObject *alias = PyObject_CallMethodNoArgs(x, torch_names[DETACH]);
    if (alias == NULL)
        return -1;
    /* A mode or a transform may have made something else of it; that of a Parameter is
     * a Tensor. */
    int plain =
        PyObject_TypeCheck(x, Py_TYPE(alias)) ? dlb_torch_query_plain(alias) : 0;
    int status = plain < 0    ? -1
                 : plain == 0 ? DLB_DECLINED
                              : take_alias(alias, payload, view);
    Py_DECREF(alias);
    return status;
}

/* What keeps the memory of a storage, which has elements, whatever becomes of its
 * tensors: `hold` of it, or the storage itself where torch moves it no more. */
static PyObject *keeper_of(PyObject *x, PyObject *storage, PyObject *payload) {
    PyObject *held = dlb_torch_hold_storage(storage);
    if (held != NULL || PyErr_Occurred() || fix_size(x, storage) < 0)
        return held;
    held = PyObject_CallOneArg(PyTuple_GET_ITEM(payload, 1), storage);
    if (held != Py_None)
        return held;
    Py_DECREF(held);
    return Py_NewRef(storage);
}

/* The memory, and no tensor, is what the view keeps. It is looked at before and after
 * its storage was asked for, as Python code may run meanwhile. */
static int take_public_storage(PyObject *x, PyObject *payload, dlb_view *view) {
    int status = dlb_torch_query_memory(x, &view->dl);
    if (status == 0 && !dlb_torch_copy_dims(view))
        status = DLB_DECLINED;
    if (status != 0)
        return status;
    bool has_elements = dlb_torch_extent(&view->dl) != 0;
    PyObject *storage = PyObject_CallMethodNoArgs(x, torch_names[STORAGE]);
    PyObject *keeper = storage == NULL || !has_elements
                           ? Py_XNewRef(storage)
                           : keeper_of(x, storage, payload);
    int is_there = keeper ? dlb_torch_is_where(x, storage, &view->dl) : -1;
    view->flags = 0;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    view->buffer = is_there == 1 ? dlb_buffer_of_object(keeper) : NULL;
    Py_XDECREF(keeper);
    Py_XDECREF(storage);
    if (is_there != 1)
        return is_there < 0 ? -1 : DLB_DECLINED;
    return view->buffer ? 0 : -1;
}

static int take_torch_public(PyObject *x, PyObject *payload, bool detaches,
                             dlb_view *view) {
    if (make_torch_names() < 0)
        return -1;
    bool may_query = dlb_torch_may_query();
    int plain = may_query ? dlb_torch_query_lendable(x, detaches)
                          : dlb_torch_query_untracked(x);
    if (plain != 1)
        return plain < 0 ? -1 : DLB_DECLINED;
    return may_query ? take_public_storage(x, payload, view)
                     : take_public_alias(x, payload, view);
}

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
static int take_by_lending(PyObject *x, PyObject *lend, dlb_view *view) {
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

/* The attribute of x of this name; for a pair of names, that of the attribute. */
static PyObject *read_attribute(PyObject *x, PyObject *name) {
    if (!PyTuple_Check(name))
        return PyObject_GetAttr(x, name);
    PyObject *first = PyObject_GetAttr(x, PyTuple_GET_ITEM(name, 0));
    PyObject *value = first ? PyObject_GetAttr(first, PyTuple_GET_ITEM(name, 1)) : NULL;
    Py_XDECREF(first);
    return value;
}

/* The payload of a function is (function, guard, accepted, declined_code, flags, lend);
 * with `lend`, not None, it is `take_by_lending` that takes what has streams. The
 * function itself looks at nothing, so the guard does: the attribute of that name must
 * be of exactly the type `accepted`, or equal to it where it is an integer, or, where
 * it is a frozenset, the method of that name must return a member of it; for a pair of
 * names, the attribute of the attribute must be a member; None asks for no guard. A
 * tensor whose dtype has `declined_code` goes the Python way (-1: none). The flags are
 * added to those of the capsule. */
static int passes_guard(PyObject *x, PyObject *guard, PyObject *accepted) {
    if (guard == Py_None)
        return 1;
    bool is_set = PyFrozenSet_Check(accepted);
    PyObject *value = is_set && !PyTuple_Check(guard)
                          ? PyObject_CallMethodNoArgs(x, guard)
                          : read_attribute(x, guard);
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
        passes_guard(x, PyTuple_GET_ITEM(payload, 1), PyTuple_GET_ITEM(payload, 2));
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
        return has_streams && lend != Py_None ? take_by_lending(x, lend, view)
                                              : DLB_DECLINED;
    }
    view->flags |= PyLong_AsUnsignedLongLong(PyTuple_GET_ITEM(payload, 4));
    return 0;
}

/* Strides in bytes become strides in elements, or the layout cannot be named. */
static int fill_from_buffer(const Py_buffer *in, dlb_view *view) {
    view->dl.ndim = in->ndim;
    view->dl.shape = (int64_t *)in->shape;
    view->dl.strides = view->scratch;
    view->dl.data = in->buf;
    view->flags = in->readonly ? DLPACK_FLAG_BITMASK_READ_ONLY : 0;
    for (int i = 0; i < in->ndim; i++) {
        if (in->suboffsets != NULL && in->suboffsets[i] >= 0) {
            dlb_refuse("strides", "buffer: dimension %d is reached through pointers",
                       i);
            return -1;
        }
        if (in->itemsize == 0 || in->strides[i] % in->itemsize) {
            dlb_refuse("strides",
                       "buffer: stride %zd is no multiple of the item size %zd",
                       in->strides[i], in->itemsize);
            return -1;
        }
        view->scratch[i] = in->strides[i] / in->itemsize;
    }
    return 0;
}

/* The buffer of an object, held without a memoryview: that costs two objects more, and
 * the collector could not pass it. */
typedef struct {
    PyObject_VAR_HEAD Py_buffer view;
    PyObject *kept;  /* besides, without a collector's header; or NULL */
    int64_t shape[]; /* that of a memoryview which is gone */
} held_buffer;

static void held_dealloc(PyObject *self) {
    PyBuffer_Release(&((held_buffer *)self)->view);
    Py_XDECREF(((held_buffer *)self)->kept);
    PyObject_Free(self);
}

static void collectable_dealloc(PyObject *self) {
    PyObject_GC_UnTrack(self);
    PyBuffer_Release(&((held_buffer *)self)->view);
    PyObject_GC_Del(self);
}

static int collectable_traverse(PyObject *self, visitproc visit, void *arg) {
    Py_VISIT(((held_buffer *)self)->view.obj);
    return 0;
}

PyTypeObject dlb_HeldBufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.HeldBuffer",
    .tp_doc = "The buffer of an object, for as long as a Tensor is over it.",
    .tp_basicsize = sizeof(held_buffer),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = held_dealloc,
};

PyTypeObject dlb_CollectableBufferType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.CollectableBuffer",
    .tp_doc = "The buffer of an object that may refer back to a Tensor over it.",
    .tp_basicsize = sizeof(held_buffer),
    .tp_itemsize = sizeof(int64_t),
    .tp_flags =
        Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = collectable_dealloc,
    .tp_traverse = collectable_traverse,
};

/* Objects of classes written in Python may refer to anything. */
static bool may_refer_back(PyObject *x) {
    return PyObject_IS_GC(x) && PyType_HasFeature(Py_TYPE(x), Py_TPFLAGS_HEAPTYPE);
}

/* The buffer of x, not yet seen by the collector; NULL with an error. */
static held_buffer *hold_buffer(PyObject *x, bool is_collectable, Py_ssize_t ndim) {
    held_buffer *held =
        is_collectable
            ? PyObject_GC_NewVar(held_buffer, &dlb_CollectableBufferType, ndim)
            : PyObject_New(held_buffer, &dlb_HeldBufferType);
    if (held == NULL)
        return NULL;
    held->view.obj = NULL;
    held->kept = NULL;
    if (PyObject_GetBuffer(x, &held->view, PyBUF_FULL_RO) == 0)
        return held;
    held->view.obj = NULL;
    Py_DECREF(held);
    return NULL;
}

PyObject *dlb_hold_buffer(PyObject *x, PyObject *kept) {
    held_buffer *held = hold_buffer(x, false, 0);
    if (held != NULL)
        held->kept = Py_XNewRef(kept);
    return (PyObject *)held;
}

/* Whether the buffer is x's own, with all that a memoryview would fill in. */
static bool is_complete(const Py_buffer *in, PyObject *x) {
    return in->obj == x && in->ndim >= 0 && in->ndim <= PyBUF_MAX_NDIM &&
           (in->ndim == 0 || (in->shape != NULL && in->strides != NULL));
}

/* A new reference to what keeps the memory of a memoryview: the exporter's own buffer
 * if it can refer back and gives the same memory again, else the memoryview. */
static PyObject *keep_memory(PyObject *memory, dlb_view *view) {
    Py_buffer *in = PyMemoryView_GET_BUFFER(memory);
    PyObject *exporter = in->obj;
    if (exporter == NULL || !may_refer_back(exporter))
        return Py_NewRef(memory);
    held_buffer *held = hold_buffer(exporter, true, in->ndim);
    if (held == NULL)
        return dlb_clear_error() < 0 ? NULL : Py_NewRef(memory);
    const char *start = held->view.buf, *at = in->buf;
    if (held->view.obj != exporter || at < start || at > start + held->view.len) {
        Py_DECREF(held);
        return Py_NewRef(memory);
    }
    for (int i = 0; i < in->ndim; i++)
        held->shape[i] = in->shape[i];
    view->dl.shape = held->shape;
    PyObject_GC_Track(held);
    return (PyObject *)held;
}

/* The view of a buffer, without its keeper. */
static int read_buffer(const Py_buffer *in, dlb_view *view) {
    if (dlb_buffer_format(in->format, in->itemsize, &view->dl.dtype) == 0)
        return fill_from_buffer(in, view);
    dlb_refuse("dtype",
               "buffer: elements of %zd bytes in the format '%s' have no DLPack dtype",
               in->itemsize, in->format ? in->format : "B");
    return -1;
}

/* The object that keeps the memory of x, or NULL with an error. */
static PyObject *take_memoryview(PyObject *x, dlb_view *view) {
    PyObject *memory = PyMemoryView_FromObject(x), *keeper = NULL;
    if (memory != NULL && read_buffer(PyMemoryView_GET_BUFFER(memory), view) == 0)
        keeper = keep_memory(memory, view);
    Py_XDECREF(memory);
    return keeper;
}

static PyObject *take_own_buffer(PyObject *x, dlb_view *view) {
    bool is_collectable = may_refer_back(x);
    held_buffer *held = hold_buffer(x, is_collectable, 0);
    if (held == NULL)
        return NULL;
    PyObject *keeper = NULL;
    if (!is_complete(&held->view, x))
        keeper = take_memoryview(x, view);
    else if (read_buffer(&held->view, view) == 0)
        keeper = Py_NewRef(held);
    if (is_collectable)
        PyObject_GC_Track(held);
    Py_DECREF(held);
    return keeper;
}

static int take_memory(PyObject *x, dlb_view *view) {
    view->dl = (DLTensor){.device = {kDLCPU, 0}};
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    view->buffer = NULL;
    /* A memoryview can be released while a Tensor is over its memory. */
    bool is_own = PyObject_CheckBuffer(x) && !PyMemoryView_Check(x);
    PyObject *keeper = is_own ? take_own_buffer(x, view) : take_memoryview(x, view);
    PyObject *exporter = PyMemoryView_Check(x) ? PyMemoryView_GET_BASE(x) : x;
    bool is_array = exporter != NULL && PyArray_Check(exporter);
    if (keeper != NULL)
        view->buffer = is_array ? dlb_buffer_of_array(keeper, exporter)
                                : dlb_buffer_of_object(keeper);
    Py_XDECREF(keeper);
    if (view->buffer == NULL)
        return -1;
    const char *reason = dlb_layout_check(&view->dl, view->flags);
    if (reason == NULL)
        return 0;
    dlb_refuse_layout(reason, "buffer", &view->dl);
    dlb_buffer_drop(view->buffer);
    return -1;
}

/* ---- jax.Array ----
 *
 * jaxlib's capsules keep the Array, but not the buffer behind it: Array.delete ends the
 * process while such a capsule lives. What its buffer protocol gives, and its views for
 * NumPy, keep the buffer itself. */

/* The NumPy array over the memory of x, for dtypes without a buffer format; a new
 * reference. NULL without an exception: it would be a copy. */
static PyObject *view_by_method(PyObject *x, PyObject *method) {
    PyObject *answer = PyObject_CallMethodNoArgs(x, method), *array = NULL;
    if (answer == NULL)
        return NULL;
    if (PyTuple_Check(answer) && PyTuple_GET_SIZE(answer) == 2 &&
        PyTuple_GET_ITEM(answer, 1) == Py_False)
        array = Py_NewRef(PyTuple_GET_ITEM(answer, 0));
    Py_DECREF(answer);
    return array;
}

/* Row-major first: strides take jaxlib a quarter longer. */
static int take_jax_buffer(PyObject *x, dlb_view *view) {
    Py_buffer in;
    if (PyObject_GetBuffer(x, &in, PyBUF_ND | PyBUF_FORMAT) < 0) {
        if (dlb_clear_error() < 0)
            return -1;
        if (PyObject_GetBuffer(x, &in, PyBUF_FULL_RO) < 0)
            return -1;
    }
    view->dl = (DLTensor){.data = in.buf, .device = {kDLCPU, 0}, .ndim = in.ndim};
    view->dl.shape = (int64_t *)in.shape;
    view->dl.strides = view->scratch;
    view->version = (DLPackVersion){DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
    view->borrowed = (dlb_stream_id){0};
    if (in.ndim > DLB_MAX_NDIM ||
        dlb_buffer_format(in.format, in.itemsize, &view->dl.dtype) < 0 ||
        (in.strides != NULL && fill_from_buffer(&in, view) < 0)) {
        PyBuffer_Release(&in);
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    }
    if (in.strides == NULL)
        dlb_row_major_strides(in.ndim, view->dl.shape, view->scratch);
    view->flags = 0;
    view->buffer = dlb_buffer_of_pybuffer(&in);
    return view->buffer ? 0 : -1;
}

/* `dtype` says where an Array has it, and `dtypes` has (code, bits, lanes) of each that
 * has no buffer format, or None where the Python path decides: none of NumPy's own;
 * only an Array on one of the accepted devices has memory that the host may read,
 * others are lent. */
static int take_jax_array(PyObject *x, PyObject *payload, dlb_view *view) {
    int passes =
        passes_guard(x, PyTuple_GET_ITEM(payload, 0), PyTuple_GET_ITEM(payload, 1));
    if (passes < 0)
        return -1;
    if (!passes)
        return take_by_lending(x, PyTuple_GET_ITEM(payload, 5), view);
    DLDataType kind;
    PyObject *descr = read_attribute(x, PyTuple_GET_ITEM(payload, 3)), *dtype = NULL;
    if (descr != NULL && !dlb_numpy_dtype(descr, &kind))
        dtype = PyDict_GetItemWithError(PyTuple_GET_ITEM(payload, 4), descr);
    Py_XDECREF(descr);
    if (dtype == NULL && PyErr_Occurred())
        return -1;
    if (dtype == NULL)
        return take_jax_buffer(x, view);
    if (dtype == Py_None)
        return DLB_DECLINED;
    PyObject *array = view_by_method(x, PyTuple_GET_ITEM(payload, 2));
    if (array == NULL)
        return PyErr_Occurred() ? -1 : DLB_DECLINED;
    int status =
        dlb_parse_dtype(dtype, &kind) < 0 ? -1 : dlb_take_numpy_as(array, kind, view);
    Py_DECREF(array);
    return status;
}

/* What JAX itself says of its memory depends on its version. */
static int take_jax(PyObject *x, PyObject *payload, dlb_view *view) {
    int status = take_jax_array(x, payload, view);
    if (status == 0)
        view->flags |= DLPACK_FLAG_BITMASK_READ_ONLY | DLB_IMMUTABLE;
    return status;
}

/* ---- the standard alone ---- */

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
static int take_by_protocol(PyObject *x, bool is_old, PyObject *call, dlb_view *view) {
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

static int take_by_kind(PyObject *x, const entry_t *entry, bool detaches,
                        dlb_view *view) {
    switch (entry->kind) {
    case TENSOR:
        dlb_tensor_view((dlb_tensor *)x, view);
        return 0;
    case NUMPY:
        return dlb_take_numpy(x, view);
    case TORCH:
        return take_torch(x, entry->table, view);
    case TABLE:
        return dlb_take_table(x, entry->table, view);
    case TORCH_PUBLIC: {
        PyObject *payload = Py_NewRef(entry->payload); /* as below */
        int status = take_torch_public(x, payload, detaches, view);
        Py_DECREF(payload);
        return status;
    }
    case JAX: {
        PyObject *payload = Py_NewRef(entry->payload); /* as below */
        int status = take_jax(x, payload, view);
        Py_DECREF(payload);
        return status;
    }
    case CAPSULE: {
        PyObject *payload =
            Py_NewRef(entry->payload); /* the slot may change under Python code */
        int status = take_by_function(x, payload, view);
        Py_DECREF(payload);
        return status;
    }
    case STREAMED: {
        PyObject *lend = Py_NewRef(entry->payload);
        int status = take_by_lending(x, lend, view);
        Py_DECREF(lend);
        return status;
    }
    case BUFFER:
        return take_memory(x, view);
    case DLPACK: /* dlb_take_for */
    case SLOW:
        break;
    }
    return DLB_DECLINED;
}

/* The Python path says precisely what is wrong; only interrupts pass through. */
static int or_declined(int status) {
    if (status != -1)
        return status;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static inline const entry_t *entry_of(PyObject *x) {
    const entry_t *entry = find(Py_TYPE(x));
    return entry != NULL ? entry : classify(Py_TYPE(x));
}

static int take_any(PyObject *x, dlb_view *view) {
    const entry_t *entry = entry_of(x);
    return or_declined(entry ? take_by_kind(x, entry, false, view) : -1);
}

int dlb_take(PyObject *x, dlb_view *view) {
    return dlb_is_recorded() ? DLB_DECLINED : take_any(x, view);
}

int dlb_look(PyObject *x, dlb_view *view) {
    return take_any(x, view);
}

int dlb_look_address(PyObject *x, const void **address) {
    const entry_t *entry = entry_of(x);
    bool is_queried =
        entry != NULL && entry->kind == TORCH_PUBLIC && dlb_torch_may_query();
    dlb_view view;
    int status;
    if (is_queried) { /* to lend it would fix its size */
        int is_lendable = dlb_torch_query_lendable(x, true);
        status = is_lendable == 1  ? dlb_torch_query_memory(x, &view.dl)
                 : is_lendable < 0 ? -1
                                   : DLB_DECLINED;
        status = or_declined(status);
    } else
        status = take_any(x, &view);
    if (status == 0)
        *address = view.dl.data;
    if (status == 0 && !is_queried)
        dlb_buffer_drop(view.buffer);
    return status;
}

static int take_detached(PyObject *x, dlb_view *view) {
    PyObject *detached = detach(x);
    int status = detached == NULL ? -1 : take_any(detached, view);
    Py_XDECREF(detached);
    return or_declined(status);
}

/* Take an object whose memory DLPack cannot describe by value: `values(x)` is a NumPy
 * array of its own, or None where Python decides. Not inlined: the
 * registers that it needs would be saved in every call. */
__attribute__((noinline)) static int take_values(PyObject *x, dlb_view *view) {
    const entry_t *entry = find(Py_TYPE(x));
    if (entry == NULL || entry->values == NULL)
        return DLB_DECLINED;
    PyObject *values = Py_NewRef(entry->values);
    PyObject *array = PyObject_CallOneArg(values, x);
    int status = array == NULL ? -1 : dlb_take_numpy(array, view);
    Py_XDECREF(array);
    Py_DECREF(values);
    return or_declined(status);
}

PyObject *dlb_take_source(PyObject *x, const dlb_view *view, const char **taken) {
    const entry_t *entry = find(Py_TYPE(x));
    take_kind kind = entry != NULL ? entry->kind : TENSOR; /* or a subclass of it */
    *taken = NULL;
    PyObject *table =
        kind == TORCH_PUBLIC ? PyTuple_GET_ITEM(entry->payload, 0) : Py_None;
    if (kind == TORCH_PUBLIC || (kind == TORCH && dlb_buffer_is_managed(view->buffer)))
        *taken =
            kind == TORCH || table != Py_None ? "torch C exchange table" : "__dlpack__";
    if (kind == TENSOR)
        return Py_NewRef(dlb.tensor_type);
    if (kind != DLPACK && kind != TABLE)
        return Py_NewRef(Py_TYPE(x));
    *taken = kind == TABLE ? "C exchange table" : "__dlpack__";
    return Py_NewRef(entry->source);
}

int dlb_take_for(PyObject *call, bool detaches, bool may_copy, PyObject *x,
                 dlb_view *view) {
    const entry_t *entry = entry_of(x);
    if (entry != NULL && entry->kind == DLPACK)
        return call == NULL
                   ? DLB_DECLINED
                   : take_by_protocol(x, entry->payload == Py_True, call, view);
    bool is_detached = detaches && entry != NULL &&
                       (entry->kind == TORCH || entry->kind == TORCH_PUBLIC);
    int status = or_declined(entry ? take_by_kind(x, entry, detaches, view) : -1);
    if (status == DLB_DECLINED && is_detached)
        status = take_detached(x, view);
    return status == DLB_DECLINED && may_copy ? take_values(x, view) : status;
}

/* ---- by name, from Python ---- */

static PyObject *new_tensor(int status, dlb_view *view) {
    if (status == 0)
        return dlb_tensor_new(dlb.tensor_type, view);
    if (status < 0)
        return NULL;
    Py_RETURN_NONE;
}

static PyObject *take(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return new_tensor(dlb_take(x, &view), &view);
}

/* Receipts look at what was given out. */
static PyObject *look(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return new_tensor(dlb_look(x, &view), &view);
}

static PyObject *take_capsule(PyObject *Py_UNUSED(module), PyObject *capsule) {
    dlb_view view;
    if (dlb_take_capsule(capsule, &view, "from_dlpack") < 0)
        return NULL;
    return dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *take_buffer(PyObject *Py_UNUSED(module), PyObject *x) {
    dlb_view view;
    return take_memory(x, &view) < 0 ? NULL : dlb_tensor_new(dlb.tensor_type, &view);
}

static PyObject *take_object(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *owner, *shape, *strides, *dtype, *device;
    unsigned long long address, flags = 0;
    int64_t dims[DLB_MAX_NDIM];
    dlb_view view = {.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION}};
    if (!PyArg_ParseTuple(args, "OKOOOO|K:take_object", &owner, &address, &shape,
                          &strides, &dtype, &device, &flags))
        return NULL;
    view.dl.ndim = dlb_parse_dims(shape, dims, "shape");
    if (view.dl.ndim < 0 || dlb_parse_dtype(dtype, &view.dl.dtype) < 0 ||
        dlb_parse_device(device, &view.dl.device) < 0)
        return NULL;
    view.dl.data = (void *)(uintptr_t)address;
    view.dl.shape = dims;
    view.flags = flags;
    if (strides != Py_None) {
        int count = dlb_parse_dims(strides, view.scratch, "strides");
        if (count < 0)
            return NULL;
        if (count != view.dl.ndim)
            return PyErr_Format(PyExc_ValueError,
                                "take_object: %d dimensions but %d strides",
                                (int)view.dl.ndim, count);
        view.dl.strides = view.scratch;
    }
    const char *reason = dlb_layout_check(&view.dl, flags);
    if (reason != NULL)
        return dlb_refuse_layout(reason, "take_object", &view.dl);
    if (strides == Py_None)
        dlb_row_major_strides(view.dl.ndim, dims, view.scratch);
    view.dl.strides = view.scratch;
    view.buffer = PyArray_Check(owner) ? dlb_buffer_of_array(owner, owner)
                                       : dlb_buffer_of_object(owner);
    if (view.buffer == NULL)
        return NULL;
    if (dlb_buffer_track(view.buffer, view.dl.device))
        return dlb_tensor_new(dlb.tensor_type, &view);
    dlb_buffer_drop(view.buffer);
    return PyErr_NoMemory();
}

static PyObject *forget_types(PyObject *Py_UNUSED(module),
                              PyObject *Py_UNUSED(unused)) {
    for (size_t i = 0; i < SETS * PLACES; i++) {
        _Atomic(const entry_t *) *place = &entries[i / PLACES][i % PLACES];
        const entry_t *old = atomic_exchange(place, NULL);
#ifndef Py_GIL_DISABLED
        free_entry(old);
#else
        (void)old;
#endif
    }
    Py_RETURN_NONE;
}

PyMethodDef dlb_take_functions[] = {
    {"take", take, METH_O,
     "take($module, x, /)\n--\n\nA Tensor of a known type's object, or None when a "
     "guard declines."},
    {"look", look, METH_O,
     "look($module, x, /)\n--\n\nLike take, also while a receipt log is open."},
    {"take_capsule", take_capsule, METH_O,
     "take_capsule($module, capsule, /)\n--\n\nConsume a capsule of either kind."},
    {"take_buffer", take_buffer, METH_O,
     "take_buffer($module, x, /)\n--\n\nA Tensor through the buffer protocol."},
    {"take_object", take_object, METH_VARARGS,
     "take_object($module, owner, data_ptr, shape, strides, dtype, device, flags=0, "
     "/)\n--\n\nA Tensor over memory that an object keeps."},
    {"forget_types", forget_types, METH_NOARGS,
     "forget_types($module, /)\n--\n\nClassify every type again."},
    {NULL, NULL, 0, NULL},
};

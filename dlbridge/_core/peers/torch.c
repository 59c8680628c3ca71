/* torch.Tensor. Where the inside of torch is proved, it is read; else torch is asked by
 * its public functions, see torch/queries.c. */
#include "peers/borrowing.h"

PyObject *dlb_torch_detach(PyObject *x) {
    static PyObject *name;
    if (name == NULL && (name = PyUnicode_InternFromString("detach")) == NULL)
        return NULL;
    return PyObject_CallMethodNoArgs(x, name);
}

/* By the exchange table, which keeps the tensor that it is given: an alias, so that the
 * storage stays whatever becomes of x. */
static int take_torch_alias(PyObject *x, const DLPackExchangeAPI *table,
                            dlb_view *view) {
    PyObject *alias = dlb_torch_detach(x);
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

static int take_torch(PyObject *x, const dlb_known_type *known,
                      bool Py_UNUSED(detaches), dlb_view *view) {
    const DLPackExchangeAPI *table = known->table;
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
    /* Tensor.numpy() fixes the size as well; for dtypes that NumPy lacks, the Python
     * path has other means */
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

static int take_untracked(PyObject *x, PyObject *payload, bool detaches,
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

static int take_torch_public(PyObject *x, const dlb_known_type *known, bool detaches,
                             dlb_view *view) {
    PyObject *payload = Py_NewRef(known->payload); /* its place may change meanwhile */
    int status = take_untracked(x, payload, detaches, view);
    Py_DECREF(payload);
    return status;
}

/* To lend it would fix its size. */
static int look_address(PyObject *x, const void **address) {
    if (!dlb_torch_may_query())
        return DLB_UNKNOWN;
    DLTensor dl;
    int is_lendable = dlb_torch_query_lendable(x, true);
    int status = is_lendable == 1  ? dlb_torch_query_memory(x, &dl)
                 : is_lendable < 0 ? -1
                                   : DLB_DECLINED;
    if (status == 0)
        *address = dl.data;
    return status;
}

static int accept_torch(dlb_known_type *made) {
    return made->payload == Py_None /* before 2.10 torch had no table */
               ? 0
               : dlb_accept_table(made);
}

static int accept_public(dlb_known_type *made) {
    return dlb_expect_payload(made->payload, 2, "torch_public needs (export, hold)");
}

static const char *entry_of_torch(const dlb_known_type *Py_UNUSED(known),
                                  const dlb_view *view) {
    return dlb_buffer_is_managed(view->buffer) ? "torch C exchange table" : NULL;
}

static const char *entry_of_public(const dlb_known_type *known,
                                   const dlb_view *Py_UNUSED(view)) {
    return PyTuple_GET_ITEM(known->payload, 0) != Py_None ? "torch C exchange table"
                                                          : "__dlpack__";
}

const dlb_peer dlb_torch_peer = {
    .name = "torch",
    .is_framework = true,
    .has_gradients = true,
    .accept = accept_torch,
    .take = take_torch,
    .entry = entry_of_torch,
};

/* Of a version that is not proved. */
const dlb_peer dlb_torch_public_peer = {
    .name = "torch_public",
    .is_framework = true,
    .has_gradients = true,
    .accept = accept_public,
    .take = take_torch_public,
    .look_address = look_address,
    .entry = entry_of_public,
};

/* ---- kernels ----
 *
 * Where its internals are not proved, torch is queried: see torch/queries.c. The memory
 * of such tensors is looked at again just before the run. */

static bool is_torch(PyObject *x) {
    return dlb_torch_is_exact(x) || dlb_torch_is_queried(x);
}

static int begin_torch(dlb_call *call, PyObject *x) {
    bool is_proved = dlb_torch_is_exact(x);
    call->thread = is_proved ? dlb_torch_thread_state(call->casts) : DLB_TORCH_QUERIED;
    if (is_proved || dlb_torch_query_thread(call->casts) == 1)
        return 0;
    return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static int borrow_queried(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    bool is_new = index >= call->frame.input_count && call->made_count > 0;
    int fits = dlb_torch_is_queried(x);
    if (fits == 1 && !is_new) /* else it is as torch.empty makes it */
        fits = dlb_torch_query_ordinary(x);
    if (fits == 1)
        fits = dlb_torch_query_memory(x, tensor) == 0;
    call->frame.flags[index] = 0;
    if (fits == 1 && !dlb_copy_dims(tensor, call->dims + call->dim_count,
                                    call->dim_room - call->dim_count))
        fits = 0;
    if (fits == 1) {
        call->dim_count += 2 * tensor->ndim;
        fits = is_new ? 1 : dlb_torch_query_byte(x, tensor);
    }
    /* the slow path meets an error again */
    return fits == 1 ? 0 : dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
}

static int borrow_torch(dlb_call *call, int index, PyObject *x) {
    DLTensor *tensor = &call->frame.tensors[index];
    if (call->thread == DLB_TORCH_QUERIED)
        return borrow_queried(call, index, x);
    if (!dlb_torch_is_exact(x) || !dlb_torch_is_ordinary(x, call->thread, false))
        return DLB_DECLINED;
    call->frame.flags[index] = 0;
    return dlb_torch_borrow(x, tensor) == 0 && dlb_torch_has_memory(x, tensor)
               ? 0
               : DLB_DECLINED;
}

/* Queries serve tensors of the CPU alone. */
static PyObject *allocate_torch(int32_t ndim, const int64_t *shape, DLDataType dtype,
                                DLDevice device) {
    PyObject *made = dlb_torch_allocate(device, ndim, shape, dtype);
    if (made != NULL || PyErr_Occurred() || !dlb_torch_may_query() ||
        device.device_type != kDLCPU)
        return made;
    return dlb_torch_query_empty(ndim, shape, dtype);
}

static bool is_queried(const dlb_call *call) {
    return call->thread == DLB_TORCH_QUERIED;
}

static bool may_write_torch(const dlb_call *call, int index) {
    return call->thread == DLB_TORCH_QUERIED ||
           dlb_torch_may_be_written(call->objects[index], call->thread);
}

const dlb_lender dlb_torch_lender = {
    .framework = "torch",
    .source = "torch.Tensor",
    .owns = is_torch,
    .begin = begin_torch,
    .borrow = borrow_torch,
    .runs_python = is_queried,
    .may_write = may_write_torch,
    .allocate = allocate_torch,
};

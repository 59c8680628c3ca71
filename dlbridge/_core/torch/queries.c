/* Queries of torch's public functions and attributes, and of its exchange table, about
 * tensors and the calling thread, for versions whose internals are not proved. Where a
 * version lacks one, a query fails with an exception, never with a wrong address. Where
 * all C++ functions of functions.c are there, they serve, in a third of the time.
 *
 * The dispatcher chooses by the keys of the tensors and of the thread. internals.c
 * reads the same words from memory; here they are queried.
 *
 * A query may run Python code (a garbage collection does), which may give any tensor
 * another memory and shape. So what is known of memory holds only until the next query:
 * see dlb_torch_is_unchanged. */
#include "torch/torch.h"
#include "layout/layout.h"

static struct {
    bool is_known; /* which words are those of plain tensors */
    bool may_call; /* whether kernels are called so */
    PyObject *tensor_type, *parameter_type;
    PyObject *capsule;                    /* of the table, or None */
    const DLPackExchangeAPI *table;       /* or NULL */
    PyObject *keys, *included, *excluded; /* of a tensor, and of the thread */
    PyObject *is_inference_enabled;
    PyObject *function_modes, *is_profiled, *is_grad_enabled, *is_traced;
    PyObject *empty, *increment_version;
    PyObject *forward_levels;  /* a dict with the name "_current_level" */
    PyObject *dtypes, *made;   /* a set, and a dict by dlb_dtype_key */
    uint64_t plain, inference; /* words of tensors of the CPU */
    uint64_t thread_included, thread_excluded; /* words of a thread without modes */
    uint64_t inference_included, inference_excluded; /* and in inference mode */
} torch;

enum { REPR, REQUIRES_GRAD, DTYPE, STORAGE, NBYTES, OFFSET, LEVEL, NAMES };
static PyObject *names[NAMES];

static int make_names(void) {
    static const char *const texts[NAMES] = {
        [REPR] = "raw_repr",        [REQUIRES_GRAD] = "requires_grad",
        [DTYPE] = "dtype",          [STORAGE] = "untyped_storage",
        [NBYTES] = "nbytes",        [OFFSET] = "storage_offset",
        [LEVEL] = "_current_level",
    };
    for (int i = 0; i < NAMES; i++)
        if (names[i] == NULL &&
            (names[i] = PyUnicode_InternFromString(texts[i])) == NULL)
            return -1;
    return 0;
}

/* ---- results ---- */

int dlb_torch_is_result(PyObject *result, PyObject *wanted) {
    if (result == NULL)
        return -1;
    Py_DECREF(result);
    return result == wanted;
}

/* The word of a set of keys, which this takes: 0, or -1. */
static int read_word(PyObject *keys, uint64_t *word) {
    PyObject *number = keys ? PyObject_CallMethodNoArgs(keys, names[REPR]) : NULL;
    Py_XDECREF(keys);
    *word = number ? PyLong_AsUnsignedLongLong(number) : 0;
    Py_XDECREF(number);
    return number == NULL || (*word == UINT64_MAX && PyErr_Occurred()) ? -1 : 0;
}

static int has_word(PyObject *keys, uint64_t wanted) {
    uint64_t word;
    return read_word(keys, &word) < 0 ? -1 : word == wanted;
}

static int64_t query_number(PyObject *x, PyObject *name) {
    PyObject *result = PyObject_CallMethodNoArgs(x, name);
    int64_t number = result ? PyLong_AsLongLong(result) : -1;
    Py_XDECREF(result);
    return number;
}

/* ---- the thread ---- */

/* As forward_ad counts: a level that was entered in another way is not seen. */
static int has_no_forward_level(void) {
    PyObject *level = PyDict_GetItemWithError(torch.forward_levels, names[LEVEL]);
    if (level == NULL)
        return PyErr_Occurred() ? -1 : 0;
    long number = PyLong_AsLong(level);
    return number == -1 && PyErr_Occurred() ? -1 : number < 0;
}

static int has_no_function_modes(void) {
    PyObject *count = PyObject_CallNoArgs(torch.function_modes);
    int is_none = count == NULL ? -1 : PyObject_Not(count);
    Py_XDECREF(count);
    return is_none == 0 ? dlb_torch_has_device_modes_only() : is_none;
}

/* Those of a thread without modes, or in inference mode. */
static int has_usual_keys(uint64_t ignored) {
    uint64_t included, excluded;
    if (read_word(PyObject_CallNoArgs(torch.included), &included) < 0 ||
        read_word(PyObject_CallNoArgs(torch.excluded), &excluded) < 0)
        return -1;
    excluded |= ignored;
    return (included == torch.thread_included &&
            excluded == (torch.thread_excluded | ignored)) ||
           (included == torch.inference_included &&
            excluded == (torch.inference_excluded | ignored));
}

int dlb_torch_query_thread(bool casts) {
    int is_plain = torch.may_call;
    if (is_plain == 1 && dlb_torch_has_functions())
        return dlb_torch_has_no_modes(casts) ? has_no_forward_level() : 0;
    if (is_plain == 1)
        is_plain = has_usual_keys(dlb_torch_autocast(casts));
    if (is_plain == 1)
        is_plain = has_no_function_modes();
    if (is_plain == 1)
        is_plain = has_no_forward_level();
    if (is_plain == 1)
        is_plain =
            dlb_torch_is_result(PyObject_CallNoArgs(torch.is_profiled), Py_False);
    return is_plain;
}

/* ---- tensors ---- */

bool dlb_torch_may_query(void) {
    return torch.may_call;
}

bool dlb_torch_is_queried(PyObject *x) {
    return torch.may_call && ((PyObject *)Py_TYPE(x) == torch.tensor_type ||
                              (PyObject *)Py_TYPE(x) == torch.parameter_type);
}

static int has_own_dtype(PyObject *x) {
    PyObject *dtype = PyObject_GetAttr(x, names[DTYPE]);
    int is_own = dtype ? PySet_Contains(torch.dtypes, dtype) : -1;
    Py_XDECREF(dtype);
    return is_own;
}

/* `impl`: NULL where there are no C++ functions. */
static int is_untracked(PyObject *x, const void *impl, bool detaches) {
    if (impl != NULL) {
        int is_traced = dlb_torch_is_traced();
        if (is_traced != 0)
            return is_traced < 0 ? -1 : 0;
        return detaches || !dlb_internals.requires_grad(impl);
    }
    int untracked = 1;
    if (!detaches)
        untracked =
            dlb_torch_is_result(PyObject_GetAttr(x, names[REQUIRES_GRAD]), Py_False);
    if (untracked == 1)
        untracked = dlb_torch_is_result(PyObject_CallNoArgs(torch.is_traced), Py_None);
    return untracked;
}

static int is_plain(PyObject *x, const void *impl) {
    uint64_t word;
    if (impl != NULL)
        return dlb_torch_holds_values(impl) && dlb_torch_has_known_dtype(impl);
    if (read_word(PyObject_CallOneArg(torch.keys, x), &word) < 0)
        return -1;
    return word == torch.plain || word == torch.inference ? has_own_dtype(x) : 0;
}

/* Its TensorImpl where there are C++ functions, else NULL: 1; 0: torch is not known. */
static int find_impl(PyObject *x, const void **impl) {
    *impl = NULL;
    if (torch.is_known && dlb_torch_has_functions() &&
        (*impl = dlb_torch_query_impl(x)) == NULL)
        return -1;
    return torch.is_known;
}

int dlb_torch_query_untracked(PyObject *x) {
    const void *impl;
    int is_known = find_impl(x, &impl);
    return is_known == 1 ? is_untracked(x, impl, false) : is_known;
}

int dlb_torch_query_plain(PyObject *x) {
    const void *impl;
    int is_known = find_impl(x, &impl);
    return is_known == 1 ? is_plain(x, impl) : is_known;
}

int dlb_torch_query_lendable(PyObject *x, bool detaches) {
    const void *impl;
    int is_lendable = find_impl(x, &impl);
    if (is_lendable == 1)
        is_lendable = is_untracked(x, impl, detaches);
    return is_lendable == 1 ? is_plain(x, impl) : is_lendable;
}

int dlb_torch_query_ordinary(PyObject *x) {
    if (dlb_torch_has_functions()) {
        const void *impl = dlb_torch_query_impl(x);
        return impl ? dlb_torch_is_usual(impl) : -1;
    }
    uint64_t word;
    if (read_word(PyObject_CallOneArg(torch.keys, x), &word) < 0)
        return -1;
    int is_plain = word == torch.plain;
    if (word == torch.inference)
        is_plain = dlb_torch_is_result(PyObject_CallNoArgs(torch.is_inference_enabled),
                                       Py_True);
    if (is_plain != 1)
        return is_plain;
    int needs_none =
        dlb_torch_is_result(PyObject_GetAttr(x, names[REQUIRES_GRAD]), Py_False);
    if (needs_none != 0)
        return needs_none;
    return dlb_torch_is_result(PyObject_CallNoArgs(torch.is_grad_enabled), Py_False);
}

/* ---- memory ---- */

/* Runs no Python code, unless it fails. */
int dlb_torch_query_memory(PyObject *x, DLTensor *dl) {
    if (torch.table->dltensor_from_py_object_no_sync(x, dl) != 0)
        return dlb_clear_error() < 0 ? -1 : DLB_DECLINED;
    return dl->device.device_type == kDLCPU && dl->ndim <= DLB_MAX_NDIM &&
                   (dl->ndim == 0 || dl->strides != NULL)
               ? 0
               : DLB_DECLINED;
}

int dlb_torch_query_byte(PyObject *x, const DLTensor *dl) {
    bool may_be_narrow = dl->dtype.bits == 8 && dl->dtype.code <= kDLUInt;
    if (may_be_narrow && dlb_torch_has_functions()) {
        const void *impl = dlb_torch_query_impl(x);
        return impl ? dlb_torch_has_known_dtype(impl) : -1;
    }
    return may_be_narrow ? has_own_dtype(x) : 1;
}

int dlb_torch_query_reach(PyObject *x, PyObject *storage, const DLTensor *dl) {
    if (dlb_torch_has_functions()) {
        const void *impl = dlb_torch_query_impl(x);
        return impl ? dlb_torch_is_reached(impl, dl) : -1;
    }
    int64_t extent = dlb_torch_extent(dl);
    int64_t offset = query_number(x, names[OFFSET]);
    int64_t held = offset < 0 ? -1 : query_number(storage, names[NBYTES]);
    if (held < 0)
        return PyErr_Occurred() ? -1 : 0;
    return extent == 0 || (dl->data != NULL &&
                           dlb_packed_bytes(dl->dtype, 0, offset + extent) <= held);
}

static bool has_same_dims(const DLTensor *a, const DLTensor *b) {
    for (int32_t i = 0; i < a->ndim; i++)
        if (a->shape[i] != b->shape[i] ||
            (a->strides[i] != b->strides[i] && a->shape[i] != 1))
            return false;
    return true;
}

int dlb_torch_is_where(PyObject *x, PyObject *storage, const DLTensor *before) {
    DLTensor dl;
    if (dlb_torch_has_functions()) {
        const void *impl = dlb_torch_query_impl(x);
        return impl ? dlb_torch_lies_at(impl, before) : -1;
    }
    int status = dlb_torch_query_memory(x, &dl);
    if (status != 0)
        return status < 0 ? -1 : 0;
    bool is_same = dl.data == before->data && dl.byte_offset == before->byte_offset &&
                   dl.ndim == before->ndim &&
                   dlb_dtype_key(dl.dtype) == dlb_dtype_key(before->dtype) &&
                   has_same_dims(&dl, before);
    return is_same ? dlb_torch_query_reach(x, storage, &dl) : 0;
}

/* Storages first: to make the object of one may collect garbage. The queries after it
 * make nothing but integers. */
int dlb_torch_is_unchanged(PyObject *const *objects, const DLTensor *tensors,
                           int32_t count, PyObject **storages) {
    int status = 1;
    bool has_functions = dlb_torch_has_functions(); /* which need no objects */
    for (int32_t i = 0; i < count; i++) {
        bool is_there = status == 1 && tensors[i].ndim >= 0 && !has_functions;
        storages[i] =
            is_there ? PyObject_CallMethodNoArgs(objects[i], names[STORAGE]) : NULL;
        if (is_there && storages[i] == NULL)
            status = -1;
    }
    for (int32_t i = 0; status == 1 && i < count; i++)
        if (tensors[i].ndim >= 0)
            status = dlb_torch_is_where(objects[i], storages[i], &tensors[i]);
    for (int32_t i = 0; i < count; i++)
        Py_XDECREF(storages[i]); /* which their tensors keep */
    return status;
}

/* ---- new tensors, and versions ---- */

PyObject *dlb_torch_query_empty(int32_t ndim, const int64_t *shape, DLDataType dtype) {
    static PyObject *keywords;
    if (keywords == NULL && (keywords = Py_BuildValue("(s)", "dtype")) == NULL)
        return NULL;
    PyObject *key = PyLong_FromLong(dlb_dtype_key(dtype));
    PyObject *made = key ? PyDict_GetItemWithError(torch.made, key) : NULL;
    Py_XDECREF(key);
    PyObject *dims = made ? dlb_dims_tuple(shape, ndim) : NULL;
    if (dims == NULL)
        return NULL;
    PyObject *arguments[] = {dims, made};
    PyObject *tensor = PyObject_Vectorcall(torch.empty, arguments, 1, keywords);
    Py_DECREF(dims);
    return tensor;
}

int dlb_torch_query_version(PyObject *x) {
    if (dlb_torch_has_functions()) {
        const void *impl = dlb_torch_query_impl(x);
        if (impl != NULL && !dlb_internals.is_inference(&impl))
            dlb_internals.bump_version(&impl);
        return impl ? 0 : -1;
    }
    int is_inference = has_word(PyObject_CallOneArg(torch.keys, x), torch.inference);
    if (is_inference != 0) /* such tensors have no version */
        return is_inference < 0 ? -1 : 0;
    PyObject *result = PyObject_CallOneArg(torch.increment_version, x);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* ---- opening it, for Python ---- */

static void keep(PyObject **place, PyObject *object) {
    Py_XSETREF(*place, Py_NewRef(object));
}

static int read_table(PyObject *capsule) {
    torch.table = NULL;
    if (capsule == Py_None)
        return 0;
    const DLPackExchangeAPI *table = dlb_parse_table(capsule);
    if (table == NULL)
        return -1;
    keep(&torch.capsule, capsule);
    if (table->dltensor_from_py_object_no_sync != NULL)
        torch.table = table;
    return 0;
}

/* From (code, bits, lanes) to torch's own. */
static int keep_dtypes(PyObject *by_triple) {
    PyObject *triple, *own, *by_key = PyDict_New();
    Py_ssize_t at = 0;
    int status = by_key == NULL ? -1 : 0;
    while (status == 0 && PyDict_Next(by_triple, &at, &triple, &own)) {
        DLDataType dtype;
        PyObject *key = dlb_parse_dtype(triple, &dtype) < 0
                            ? NULL
                            : PyLong_FromLong(dlb_dtype_key(dtype));
        status = key == NULL ? -1 : PyDict_SetItem(by_key, key, own);
        Py_XDECREF(key);
    }
    if (status == 0)
        keep(&torch.made, by_key);
    Py_XDECREF(by_key);
    return status;
}

/* torch_queries(types, table, functions, forward_levels, dtypes, made, samples, words):
 * the functions to query, and a plain tensor and one of inference mode to learn from,
 * in a thread without modes; what is included and excluded in inference mode. */
static PyObject *set_queries(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor_type, *parameter_type, *capsule, *levels, *dtypes, *made;
    PyObject *plain, *inference, *f[10];
    unsigned long long included, excluded;
    PyObject **const places[] = {
        &torch.keys,
        &torch.included,
        &torch.excluded,
        &torch.function_modes,
        &torch.is_profiled,
        &torch.is_grad_enabled,
        &torch.is_traced,
        &torch.empty,
        &torch.increment_version,
        &torch.is_inference_enabled,
    };
    torch.is_known = torch.may_call = false;
    if (!PyArg_ParseTuple(args, "(OO)O(OOOOOOOOOO)O!OO!(OO)(KK):torch_queries",
                          &tensor_type, &parameter_type, &capsule, &f[0], &f[1], &f[2],
                          &f[3], &f[4], &f[5], &f[6], &f[7], &f[8], &f[9], &PyDict_Type,
                          &levels, &dtypes, &PyDict_Type, &made, &plain, &inference,
                          &included, &excluded) ||
        make_names() < 0 || read_table(capsule) < 0)
        return NULL;
    for (int i = 0; i < 10; i++)
        keep(places[i], f[i]);
    torch.inference_included = included;
    torch.inference_excluded = excluded;
    keep(&torch.tensor_type, tensor_type);
    keep(&torch.parameter_type, parameter_type);
    keep(&torch.forward_levels, levels);
    keep(&torch.dtypes, dtypes);
    if (keep_dtypes(made) < 0)
        return NULL;
    if (read_word(PyObject_CallOneArg(f[0], plain), &torch.plain) < 0 ||
        read_word(PyObject_CallOneArg(f[0], inference), &torch.inference) < 0 ||
        read_word(PyObject_CallNoArgs(f[1]), &torch.thread_included) < 0 ||
        read_word(PyObject_CallNoArgs(f[2]), &torch.thread_excluded) < 0)
        return NULL;
    torch.is_known = torch.plain != torch.inference;
#ifndef Py_GIL_DISABLED
    /* else another thread may change a shape that is being read */
    torch.may_call =
        torch.is_known && torch.table != NULL && torch.increment_version != Py_None;
#endif
    return PyBool_FromLong(torch.is_known);
}

/* torch_queries_close(calls): where it is true, kernels are not called so. */
static PyObject *close_queries(PyObject *Py_UNUSED(module), PyObject *calls) {
    if (calls == Py_True)
        torch.may_call = false;
    Py_RETURN_NONE;
}

int dlb_torch_query_allows(PyObject *x, bool casts) {
    DLTensor dl;
    int is_allowed = dlb_torch_is_queried(x) ? dlb_torch_query_thread(casts) : 0;
    if (is_allowed == 1)
        is_allowed = dlb_torch_query_ordinary(x);
    if (is_allowed != 1)
        return is_allowed;
    int status = dlb_torch_query_memory(x, &dl);
    return status < 0 ? -1 : status == 0 && (dl.data != NULL || !dlb_torch_extent(&dl));
}

/* torch_query_fits(tensor) -> whether a kernel may get its dtype, and its storage
 * reaches as far as it does. */
static PyObject *query_fits(PyObject *Py_UNUSED(module), PyObject *x) {
    DLTensor dl;
    PyObject *storage = NULL;
    int fits = dlb_torch_is_queried(x) ? dlb_torch_query_memory(x, &dl) == 0 : 0;
    if (fits == 1)
        fits = dlb_torch_query_byte(x, &dl);
    if (fits == 1) {
        storage = PyObject_CallMethodNoArgs(x, names[STORAGE]);
        fits = storage ? dlb_torch_query_reach(x, storage, &dl) : -1;
    }
    Py_XDECREF(storage);
    return fits < 0 || PyErr_Occurred() ? NULL : PyBool_FromLong(fits);
}

/* torch_query_wrote(tensor): count one more version. */
static PyObject *query_wrote(PyObject *Py_UNUSED(module), PyObject *x) {
    if (dlb_torch_query_version(x) < 0)
        return NULL;
    Py_RETURN_NONE;
}

PyMethodDef dlb_torch_query_functions[] = {
    {"torch_query_fits", query_fits, METH_O,
     "torch_query_fits($module, tensor, /)\n--\n\nWhether its dtype and its storage "
     "are "
     "as a kernel needs them."},
    {"torch_query_wrote", query_wrote, METH_O,
     "torch_query_wrote($module, tensor, /)\n--\n\nCount one more version of it."},
    {"torch_queries", set_queries, METH_VARARGS,
     "torch_queries($module, types, table, functions, forward_levels, dtypes, made, "
     "samples, words, /)\n--\n\nSet the functions that queries call, and learn the "
     "keys of "
     "plain tensors and threads."},
    {"torch_queries_close", close_queries, METH_O,
     "torch_queries_close($module, calls, /)\n--\n\nCall no kernel by queries of "
     "torch."},
    {NULL, NULL, 0, NULL},
};

/* The policies by their names and words, and the decision for Python. */
#include "exchange/policy.h"

/* ---- the table ---- */

bool dlb_is_word(PyObject *value, const char *word) {
    return PyUnicode_Check(value) && /* also members of a StrEnum */
           PyUnicode_CompareWithASCIIString(value, word) == 0;
}

static bool read_copy(PyObject *value, dlb_policy *out) {
    out->copies = value == Py_True;
    out->shares = value == Py_False;
    return out->copies || out->shares || value == Py_None;
}

/* Which of several CPU devices of a framework is meant is left to Python. */
static bool read_device(PyObject *value, dlb_policy *out) {
    DLDevice device;
    if (value == Py_None)
        return true;
    if (dlb_is_word(value, "cpu")) /* what is nearly always passed */
        return out->on_cpu = true;
    if (dlb_read_device(value, &device, "Device") < 0) {
        dlb_clear_error(); /* Python says it again */
        return false;
    }
    out->names_own = !PyUnicode_CheckExact(value) && !dlb_is_device(value);
    if (PyUnicode_CheckExact(value) &&
        PyUnicode_FindChar(value, ':', 0, PyUnicode_GET_LENGTH(value), 1) >= 0)
        return false;
    return out->on_cpu = device.device_type == kDLCPU && device.device_id == 0;
}

static bool read_stream(PyObject *value, dlb_policy *Py_UNUSED(out)) {
    return value == Py_None;
}

enum { WORDS = 3 };

/* Those of from_dlpack come first. Words are numbered from 0; None counts as 0 where it
 * may be passed. */
static const struct {
    const char *name;
    bool (*read)(PyObject *value, dlb_policy *out); /* NULL: one of the words */
    bool may_be_none;
    size_t at; /* in the policy */
    const char *words[WORDS];
} policies[DLB_POLICIES] = {
    {.name = "copy", .read = read_copy},
    {.name = "device", .read = read_device},
    {.name = "stream", .read = read_stream},
    {.name = "readonly",
     .at = offsetof(dlb_policy, readonly),
     .words = {"respect", "share", "copy"}},
    {.name = "immutable",
     .at = offsetof(dlb_policy, immutable),
     .words = {"respect", "share", "copy"}},
    {.name = "grad", .at = offsetof(dlb_policy, grad), .words = {"refuse", "detach"}},
    {.name = "layout",
     .at = offsetof(dlb_policy, layout),
     .may_be_none = true,
     .words = {NULL, "any", "contiguous"}},
    {.name = "narrow",
     .at = offsetof(dlb_policy, narrow),
     .may_be_none = true,
     .words = {NULL, "checked"}},
};

/* Keyword names are interned, so comparing addresses is nearly always enough. */
static PyObject *interned[DLB_POLICIES];

static bool read_word(int policy, PyObject *value, dlb_policy *out) {
    int *chosen = (int *)((char *)out + policies[policy].at);
    if (value == Py_None) {
        *chosen = 0;
        return policies[policy].may_be_none;
    }
    for (int word = 0; word < WORDS; word++)
        if (policies[policy].words[word] != NULL &&
            dlb_is_word(value, policies[policy].words[word])) {
            *chosen = word;
            return true;
        }
    return false;
}

static bool read_one(int policy, PyObject *value, dlb_policy *out) {
    return policies[policy].read != NULL ? policies[policy].read(value, out)
                                         : read_word(policy, value, out);
}

/* Return the index of a policy among the first `known`, or `known` if there is none. */
static int find_policy(PyObject *name, int known) {
    int at = 0;
    while (at < known && interned[at] != name)
        at++;
    if (at == known)
        for (at = 0; at < known && !dlb_is_word(name, policies[at].name); at++)
            ;
    return at;
}

bool dlb_read_policy(PyObject *const *values, PyObject *names, int known,
                     dlb_policy *out) {
    *out = dlb_no_policy;
    out->is_default = false;
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(names); i++) {
        int at = find_policy(PyTuple_GET_ITEM(names, i), known);
        if (at == known || !read_one(at, values[i], out))
            return false;
    }
    return true;
}

/* {"readonly": ("respect", "share", "copy"), ...} */
static PyObject *list_words(void) {
    PyObject *all = PyDict_New();
    for (int i = 0; all != NULL && i < DLB_POLICIES; i++) {
        if (policies[i].read != NULL)
            continue;
        PyObject *words = PyList_New(0);
        int failed = words == NULL ||
                     (policies[i].may_be_none && PyList_Append(words, Py_None) < 0);
        for (int word = 0; !failed && word < WORDS; word++) {
            if (policies[i].words[word] == NULL)
                continue;
            PyObject *text = PyUnicode_InternFromString(policies[i].words[word]);
            failed = text == NULL || PyList_Append(words, text) < 0;
            Py_XDECREF(text);
        }
        PyObject *fixed = failed ? NULL : PyList_AsTuple(words);
        Py_XDECREF(words);
        if (fixed == NULL || PyDict_SetItemString(all, policies[i].name, fixed) < 0)
            Py_CLEAR(all);
        Py_XDECREF(fixed);
    }
    return all;
}

int dlb_policy_start(PyObject *module) {
    for (int i = 0; i < DLB_POLICIES; i++)
        if (interned[i] == NULL &&
            (interned[i] = PyUnicode_InternFromString(policies[i].name)) == NULL)
            return -1;
    PyObject *words = list_words();
    int failed =
        words == NULL || PyModule_AddObjectRef(module, "POLICY_WORDS", words) < 0;
    Py_XDECREF(words);
    return failed ? -1 : 0;
}

/* ---- decide(tensor, policy, refusal, protects_readonly, is_copied) ---- */

/* A consumer that is asked in Python: `refusal(tensor)`; None refuses nothing. */
typedef struct {
    PyObject *refusal, *tensor; /* the tensor as it is */
    PyObject *reason;           /* the last one, which keeps its text */
    bool failed;
} python_consumer;

static PyObject *tensor_with_flags(PyObject *tensor, uint64_t flags) {
    dlb_view view;
    if (((dlb_tensor *)tensor)->flags == flags)
        return Py_NewRef(tensor);
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    view.flags = flags;
    return dlb_tensor_new(Py_TYPE(tensor), &view);
}

static const char *ask_python(const void *consumer, const dlb_view *view) {
    python_consumer *asked = (python_consumer *)(uintptr_t)consumer;
    if (asked->refusal == Py_None || asked->failed)
        return NULL;
    PyObject *tensor = tensor_with_flags(asked->tensor, view->flags);
    PyObject *reason = tensor ? PyObject_CallOneArg(asked->refusal, tensor) : NULL;
    Py_XDECREF(tensor);
    const char *text =
        reason == NULL || reason == Py_None ? NULL : PyUnicode_AsUTF8(reason);
    asked->failed = PyErr_Occurred() != NULL;
    Py_XSETREF(asked->reason, reason);
    return text;
}

static bool read_attributes(PyObject *object, dlb_policy *out) {
    *out = dlb_no_policy;
    out->is_default = false;
    for (int i = 0; i < DLB_POLICIES; i++) {
        if (policies[i].read != NULL && policies[i].read != read_copy)
            continue;
        PyObject *value = PyObject_GetAttr(object, interned[i]);
        bool is_known = value != NULL && read_one(i, value, out);
        if (!is_known && !PyErr_Occurred())
            PyErr_Format(PyExc_ValueError, "decide: %s=%R is not one of POLICY_WORDS",
                         policies[i].name, value);
        Py_XDECREF(value);
        if (!is_known)
            return false;
    }
    return true;
}

static PyObject *decide(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *tensor, *object, *result = NULL;
    python_consumer consumer = {0};
    int protects, is_copied;
    dlb_policy with;
    dlb_view view;
    if (!PyArg_ParseTuple(args, "O!OOpp:decide", &dlb_TensorType, &tensor, &object,
                          &consumer.refusal, &protects, &is_copied) ||
        !read_attributes(object, &with))
        return NULL;
    consumer.tensor = tensor;
    dlb_tensor_view((dlb_tensor *)tensor, &view);
    dlb_decision made =
        dlb_decide(&with, protects, is_copied, ask_python, &consumer, &view);
    PyObject *settled = consumer.failed ? NULL : tensor_with_flags(tensor, view.flags);
    if (settled != NULL)
        result = Py_BuildValue("Nzz", settled, made.copied, made.refused);
    dlb_buffer_drop(view.buffer);
    Py_XDECREF(consumer.reason);
    return result;
}

PyMethodDef dlb_policy_functions[] = {
    {"decide", decide, METH_VARARGS,
     "decide($module, tensor, policy, refusal, protects_readonly, is_copied, /)\n--\n\n"
     "Return the tensor as it is shared, why it must be copied, and why it is "
     "refused."},
    {NULL, NULL, 0, NULL},
};

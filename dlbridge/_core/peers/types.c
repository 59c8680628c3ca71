/* The types of tensors: each is classified once, by the adapters in Python; afterwards
 * its objects are taken as the peer that was found here takes them. */
#include "peers/peers.h"

_Atomic(const dlb_known_type *) dlb_known_types[DLB_TYPE_SETS][DLB_TYPE_PLACES];

const dlb_known_type *dlb_find_further_type(PyTypeObject *type) {
    for (int i = 1; i < DLB_TYPE_PLACES; i++) {
        const dlb_known_type *known =
            atomic_load_explicit(&dlb_type_set(type)[i], memory_order_acquire);
        if (known != NULL && known->type == type)
            return known;
    }
    return NULL;
}

static void free_entry(const dlb_known_type *entry) {
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

static void keep(const dlb_known_type *made) {
    _Atomic(const dlb_known_type *) *set = dlb_type_set(made->type);
#ifdef Py_GIL_DISABLED
    for (int i = 0; i < DLB_TYPE_PLACES; i++) {
        const dlb_known_type *there = NULL;
        if (atomic_compare_exchange_strong(&set[i], &there, made))
            return;
        if (there->type == made->type)
            break;
    }
    free_entry(made);
#else
    /* The new one comes first. Those before the first gap, or before an older one of
     * its type, move on by a place; without either the last leaves. */
    const dlb_known_type *moved = made;
    for (int i = 0; i < DLB_TYPE_PLACES && moved != NULL; i++) {
        moved = atomic_exchange(&set[i], moved);
        if (moved != NULL && moved->type == made->type)
            break;
    }
    free_entry(moved); /* may run Python code */
#endif
}

/* By the name that an adapter answers with. */
static const dlb_peer *const peers[] = {
    &dlb_numpy_peer,    &dlb_torch_peer,    &dlb_torch_public_peer, &dlb_jax_peer,
    &dlb_table_peer,    &dlb_function_peer, &dlb_cupy_peer,         &dlb_buffer_peer,
    &dlb_protocol_peer, &dlb_tvm_peer,      &dlb_slow_peer,
};

static const dlb_peer *find_peer(PyObject *name) {
    for (size_t i = 0; i < sizeof peers / sizeof *peers; i++)
        if (PyUnicode_Check(name) &&
            PyUnicode_CompareWithASCIIString(name, peers[i]->name) == 0)
            return peers[i];
    PyErr_Format(PyExc_ValueError, "classify returned the unknown kind %R", name);
    return NULL;
}

int dlb_expect_payload(PyObject *payload, Py_ssize_t count, const char *needs) {
    if (PyTuple_Check(payload) && PyTuple_GET_SIZE(payload) == count)
        return 0;
    PyErr_Format(PyExc_TypeError, "classify: %s", needs);
    return -1;
}

static int parse_answer(PyObject *answer, dlb_known_type *made) {
    Py_ssize_t count = PyTuple_Check(answer) ? PyTuple_GET_SIZE(answer) : 0;
    if (count != 2 && count != 3) {
        PyErr_SetString(PyExc_TypeError,
                        "classify must return None or (kind, payload[, values])");
        return -1;
    }
    made->payload = PyTuple_GET_ITEM(answer, 1);
    made->values = count == 3 ? PyTuple_GET_ITEM(answer, 2) : NULL;
    made->peer = find_peer(PyTuple_GET_ITEM(answer, 0));
    if (made->peer == NULL)
        return -1;
    return made->peer->accept != NULL ? made->peer->accept(made) : 0;
}

/* A type that was kept weakly has died. */
static PyObject *end_entry(PyObject *Py_UNUSED(module), PyObject *reference) {
    for (size_t i = 0; i < DLB_TYPE_SETS * DLB_TYPE_PLACES; i++) {
        _Atomic(const dlb_known_type *) *place =
            &dlb_known_types[i / DLB_TYPE_PLACES][i % DLB_TYPE_PLACES];
        const dlb_known_type *entry = atomic_load(place);
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

/* For a type that no adapter knows; NULL with an error. */
static PyObject *name_source(PyTypeObject *type) {
    if (dlb.type_source == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    return PyObject_CallOneArg(dlb.type_source, (PyObject *)type);
}

static int learn(PyTypeObject *type, PyObject *answer) {
    dlb_known_type read = {.type = type};
    if (forget_dead == NULL &&
        (forget_dead = PyCFunction_New(&end_entry_method, NULL)) == NULL)
        return -1;
    if (parse_answer(answer, &read) < 0)
        return -1;
    if (read.peer->is_named) {
        read.source = name_source(type);
        if (read.source == NULL)
            return -1;
    }
    dlb_known_type *made = PyMem_Malloc(sizeof *made);
    if (made == NULL) {
        Py_XDECREF(read.source);
        PyErr_NoMemory();
        return -1;
    }
    *made = read;
    if (read.peer->is_kept_weakly) {
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
static const dlb_known_type slow_entry = {.peer = &dlb_slow_peer},
                            tensor_entry = {.peer = &dlb_own_peer};

const dlb_known_type *dlb_classify_type(PyTypeObject *type) {
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
    const dlb_known_type *entry = dlb_find_type(type);
    return entry != NULL ? entry : &slow_entry;
}

bool dlb_is_framework_type(PyTypeObject *type) {
    if (type == (PyTypeObject *)dlb.tensor_type)
        return true;
    const dlb_known_type *known = dlb_find_type(type);
    return known != NULL && known->peer->is_framework;
}

int dlb_meet_type(PyTypeObject *type) {
    if (dlb_find_type(type) != NULL || dlb_classify_type(type) != NULL)
        return 0;
    return dlb_clear_error();
}

static PyObject *forget_types(PyObject *Py_UNUSED(module),
                              PyObject *Py_UNUSED(unused)) {
    for (size_t i = 0; i < DLB_TYPE_SETS * DLB_TYPE_PLACES; i++) {
        _Atomic(const dlb_known_type *) *place =
            &dlb_known_types[i / DLB_TYPE_PLACES][i % DLB_TYPE_PLACES];
        const dlb_known_type *old = atomic_exchange(place, NULL);
#ifndef Py_GIL_DISABLED
        free_entry(old);
#else
        (void)old;
#endif
    }
    Py_RETURN_NONE;
}

PyMethodDef dlb_type_functions[] = {
    {"forget_types", forget_types, METH_NOARGS,
     "forget_types($module, /)\n--\n\nClassify every type again."},
    {NULL, NULL, 0, NULL},
};

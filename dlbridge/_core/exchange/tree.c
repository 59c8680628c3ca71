/* Trees of plain containers: exact dict, list and tuple, and namedtuples. Everything
 * else, and every error, is Python's: exchange/trees.py is the home of the rules. */
#include "exchange/exchange.h"

/* A container around the present node, and where in it the node is. */
typedef struct place {
    const struct place *up;
    PyObject *container, *key; /* NULL: at `index` */
    Py_ssize_t index;
} place;

typedef struct {
    PyObject *converter; /* a Converter, or None */
    PyObject *const *values;
    PyObject *names; /* of policies, or NULL */
    PyObject *slow;  /* (node, path, addresses of the containers around it) */
    PyObject *is_namedtuple;
    PyTypeObject *known; /* a type of which that was true */
} walk;

static PyObject *convert_node(walk *w, PyObject *node, const place *up);

static PyObject *make_path(const place *at) {
    if (at == NULL)
        return PyUnicode_FromString("");
    PyObject *before = make_path(at->up), *path = NULL;
    if (before != NULL)
        path = at->key ? PyUnicode_FromFormat("%U[%R]", before, at->key)
                       : PyUnicode_FromFormat("%U[%zd]", before, at->index);
    Py_XDECREF(before);
    return path;
}

static PyObject *list_above(const place *at) {
    PyObject *above = PyList_New(0);
    for (; above != NULL && at != NULL; at = at->up) {
        PyObject *address = PyLong_FromVoidPtr(at->container);
        if (address == NULL || PyList_Append(above, address) < 0)
            Py_CLEAR(above);
        Py_XDECREF(address);
    }
    return above;
}

static PyObject *go_slow(walk *w, PyObject *node, const place *up) {
    PyObject *path = make_path(up), *above = path ? list_above(up) : NULL;
    PyObject *made =
        above ? PyObject_CallFunctionObjArgs(w->slow, node, path, above, NULL) : NULL;
    Py_XDECREF(path);
    Py_XDECREF(above);
    return made;
}

/* Its items are read from `items`: the dict, or a copy where other threads can change
 * the dict at any time. */
static PyObject *convert_items(walk *w, PyObject *node, PyObject *items,
                               const place *up) {
    place here = {.up = up, .container = node};
    PyObject *made = PyDict_New(), *key, *value;
    Py_ssize_t at = 0, size = PyDict_GET_SIZE(node);
    while (made != NULL && PyDict_Next(items, &at, &key, &value)) {
        here.key = Py_NewRef(key);
        Py_INCREF(value);
        PyObject *item = convert_node(w, value, &here);
        if (item == NULL || PyDict_SetItem(made, key, item) < 0)
            Py_CLEAR(made);
        else if (PyDict_GET_SIZE(node) != size) {
            PyErr_SetString(PyExc_RuntimeError,
                            "convert_tree: a dict changed its size meanwhile");
            Py_CLEAR(made);
        }
        Py_XDECREF(item);
        Py_DECREF(value);
        Py_DECREF(here.key);
    }
    return made;
}

static PyObject *convert_dict(walk *w, PyObject *node, const place *up) {
#ifdef Py_GIL_DISABLED
    PyObject *items = PyDict_Copy(node);
    PyObject *made = items != NULL ? convert_items(w, node, items, up) : NULL;
    Py_XDECREF(items);
    return made;
#else
    return convert_items(w, node, node, up);
#endif
}

static PyObject *convert_list(walk *w, PyObject *node, const place *up) {
    place here = {.up = up, .container = node};
    PyObject *made = PyList_New(0);
    for (; made != NULL && here.index < PyList_GET_SIZE(node); here.index++) {
        PyObject *value = dlb_list_item(node, here.index);
        if (value == NULL) { /* it has become shorter meanwhile */
            PyErr_Clear();
            break;
        }
        PyObject *item = convert_node(w, value, &here);
        if (item == NULL || PyList_Append(made, item) < 0)
            Py_CLEAR(made);
        Py_XDECREF(item);
        Py_DECREF(value);
    }
    return made;
}

/* Without tensors it stays as it is. */
static PyObject *convert_tuple(walk *w, PyObject *node, const place *up) {
    place here = {.up = up, .container = node};
    Py_ssize_t count = PyTuple_GET_SIZE(node);
    PyObject *made = PyTuple_New(count);
    bool is_same = true;
    for (; made != NULL && here.index < count; here.index++) {
        PyObject *value = PyTuple_GET_ITEM(node, here.index);
        PyObject *item = convert_node(w, value, &here);
        is_same = is_same && item == value;
        if (item == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, here.index, item);
    }
    if (made != NULL && is_same) {
        Py_DECREF(made);
        return Py_NewRef(node);
    }
    if (made == NULL || PyTuple_CheckExact(node))
        return made;
    PyObject *args = PyTuple_Pack(1, made), *named = NULL;
    if (args != NULL)
        named = PyTuple_Type.tp_new(Py_TYPE(node), args, NULL);
    Py_XDECREF(args);
    Py_DECREF(made);
    return named;
}

typedef PyObject *(*way)(walk *, PyObject *, const place *);

/* NULL: not a container that is walked here, or, where `failed` is set, an exception.
 */
static way find_way(walk *w, PyObject *node, bool *failed) {
    if (PyDict_CheckExact(node))
        return convert_dict;
    if (PyList_CheckExact(node))
        return convert_list;
    if (PyTuple_CheckExact(node) || Py_TYPE(node) == w->known)
        return convert_tuple;
    if (!PyTuple_Check(node))
        return NULL;
    PyObject *answer = PyObject_CallOneArg(w->is_namedtuple, node);
    *failed = answer == NULL;
    bool is_named = answer == Py_True;
    Py_XDECREF(answer);
    if (!is_named)
        return NULL;
    w->known = Py_TYPE(node);
    return convert_tuple;
}

static bool is_plain(PyObject *node) {
    return node == Py_None || PyBool_Check(node) || PyLong_CheckExact(node) ||
           PyFloat_CheckExact(node) || PyUnicode_CheckExact(node) ||
           PyBytes_CheckExact(node) || PyComplex_CheckExact(node);
}

static bool is_above(PyObject *node, const place *at) {
    while (at != NULL && at->container != node)
        at = at->up;
    return at != NULL;
}

static PyObject *convert_node(walk *w, PyObject *node, const place *up) {
    bool failed = false;
    if (is_plain(node))
        return Py_NewRef(node);
    way convert = find_way(w, node, &failed);
    if (failed)
        return NULL;
    if (convert != NULL && !is_above(node, up)) {
        if (Py_EnterRecursiveCall(" in convert_tree"))
            return NULL;
        PyObject *made = convert(w, node, up);
        Py_LeaveRecursiveCall();
        return made;
    }
    if (convert == NULL && w->converter != Py_None && !PyByteArray_CheckExact(node)) {
        PyObject *made = dlb_converter_try(w->converter, node, w->values, w->names);
        if (made != NULL || PyErr_Occurred())
            return made;
    }
    return go_slow(w, node, up);
}

/* convert_tree(tree, converter, slow, is_namedtuple, **policies) */
static PyObject *convert_tree(PyObject *Py_UNUSED(module), PyObject *const *args,
                              Py_ssize_t count, PyObject *names) {
    if (count != 4 || (args[1] != Py_None && Py_TYPE(args[1]) != &dlb_ConverterType)) {
        PyErr_SetString(
            PyExc_TypeError,
            "convert_tree: expected (tree, converter, slow, is_namedtuple)");
        return NULL;
    }
    walk w = {.converter = args[1],
              .values = args + count,
              .names = names,
              .slow = args[2],
              .is_namedtuple = args[3]};
    return convert_node(&w, args[0], NULL);
}

PyMethodDef dlb_tree_functions[] = {
    {"convert_tree", (PyCFunction)(void (*)(void))convert_tree,
     METH_FASTCALL | METH_KEYWORDS,
     "convert_tree($module, tree, converter, slow, is_namedtuple, /, "
     "**policies)\n--\n\n"
     "The tree with its tensors converted; slow(node, path, above) for what C "
     "declines."},
    {NULL, NULL, 0, NULL},
};

/* Trees of plain containers: exact dict, list and tuple, and namedtuples. Everything
 * else, and every error, is Python's: exchange/trees.py is the home of the rules. */
#include "exchange/exchange.h"

/* ---- TreeMemo: an object that occurs twice in a tree occurs twice in the result ----
 */

typedef struct {
    PyObject *node, *made; /* strong references: an address must not be reused */
} pair_t;

/* A hash table of addresses with open addressing, at most half full. */
typedef struct {
    PyObject_HEAD
    pair_t *pairs;
    size_t used, size; /* a power of two, or 0 */
} memo_t;

enum { FIRST_SIZE = 32 };

static pair_t *find_pair(pair_t *pairs, size_t size, PyObject *node) {
    size_t at = ((uintptr_t)node >> 4) * (size_t)0x9e3779b97f4a7c15;
    at ^= at >> 32;
    while (pairs[at & (size - 1)].node != NULL && pairs[at & (size - 1)].node != node)
        at++;
    return &pairs[at & (size - 1)];
}

static int grow(memo_t *memo) {
    size_t size = memo->size ? 4 * memo->size : FIRST_SIZE;
    pair_t *pairs = PyMem_Calloc(size, sizeof *pairs);
    if (pairs == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (size_t i = 0; i < memo->size; i++)
        if (memo->pairs[i].node != NULL)
            *find_pair(pairs, size, memo->pairs[i].node) = memo->pairs[i];
    PyMem_Free(memo->pairs);
    memo->pairs = pairs;
    memo->size = size;
    return 0;
}

/* A borrowed reference, or NULL. */
static PyObject *remembered(const memo_t *memo, PyObject *node) {
    return memo->size ? find_pair(memo->pairs, memo->size, node)->made : NULL;
}

static int remember(memo_t *memo, PyObject *node, PyObject *made) {
    if (node == made)
        return 0;
    if (2 * (memo->used + 1) > memo->size && grow(memo) < 0)
        return -1;
    pair_t *pair = find_pair(memo->pairs, memo->size, node);
    if (pair->node == NULL) {
        pair->node = Py_NewRef(node);
        memo->used++;
    }
    PyObject *before = pair->made;
    pair->made = Py_NewRef(made);
    Py_XDECREF(before);
    return 0;
}

static void forget_all(memo_t *memo) {
    pair_t *pairs = memo->pairs;
    size_t size = memo->size;
    memo->pairs = NULL;
    memo->used = memo->size = 0;
    for (size_t i = 0; i < size; i++) {
        Py_XDECREF(pairs[i].node);
        Py_XDECREF(pairs[i].made);
    }
    PyMem_Free(pairs);
}

static PyObject *memo_find(PyObject *self, PyObject *node) {
    PyObject *made = remembered((memo_t *)self, node);
    return Py_NewRef(made ? made : Py_None);
}

static PyObject *memo_keep(PyObject *self, PyObject *const *args, Py_ssize_t count) {
    if (count != 2) {
        PyErr_SetString(PyExc_TypeError, "TreeMemo.keep: expected (node, made)");
        return NULL;
    }
    if (remember((memo_t *)self, args[0], args[1]) < 0)
        return NULL;
    Py_RETURN_NONE;
}

static void memo_dealloc(PyObject *self) {
    forget_all((memo_t *)self);
    Py_TYPE(self)->tp_free(self);
}

static PyMethodDef memo_methods[] = {
    {"find", memo_find, METH_O,
     "find($self, node, /)\n--\n\nWhat was made of node, or None."},
    {"keep", (PyCFunction)(void (*)(void))memo_keep, METH_FASTCALL,
     "keep($self, node, made, /)\n--\n\nRemember what was made of node."},
    {NULL, NULL, 0, NULL},
};

PyTypeObject dlb_TreeMemoType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TreeMemo",
    .tp_doc = "What a walk through a tree has made of its tensors and containers.",
    .tp_basicsize = sizeof(memo_t),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = PyType_GenericNew,
    .tp_dealloc = memo_dealloc,
    .tp_methods = memo_methods,
};

/* ---- the walk ---- */

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
    PyObject *slow;  /* (node, path, addresses of the containers around it, memo) */
    PyObject *is_ordinary;
    PyTypeObject *tuple, *leaf; /* types of which that was true */
    memo_t *memo;               /* NULL: nothing to remember yet */
    PyObject *path, *above; /* of the first node, where Python's walk began; or NULL */
} walk;

static PyObject *convert_node(walk *w, PyObject *node, const place *up);

static PyObject *make_path(const walk *w, const place *at) {
    if (at == NULL)
        return w->path ? Py_NewRef(w->path) : PyUnicode_FromString("");
    PyObject *before = make_path(w, at->up), *path = NULL;
    if (before != NULL)
        path = at->key ? PyUnicode_FromFormat("%U[%R]", before, at->key)
                       : PyUnicode_FromFormat("%U[%zd]", before, at->index);
    Py_XDECREF(before);
    return path;
}

static PyObject *find_above(const walk *w, const place *at) {
    PyObject *above = PySet_New(w->above);
    for (; above != NULL && at != NULL; at = at->up) {
        PyObject *address = PyLong_FromVoidPtr(at->container);
        if (address == NULL || PySet_Add(above, address) < 0)
            Py_CLEAR(above);
        Py_XDECREF(address);
    }
    return above;
}

static int start_memo(walk *w) {
    if (w->memo == NULL)
        w->memo = (memo_t *)PyType_GenericNew(&dlb_TreeMemoType, NULL, NULL);
    return w->memo == NULL ? -1 : 0;
}

static PyObject *go_slow(walk *w, PyObject *node, const place *up) {
    PyObject *path = make_path(w, up), *above = path ? find_above(w, up) : NULL;
    PyObject *made = NULL;
    if (above != NULL && start_memo(w) == 0)
        made = PyObject_CallFunctionObjArgs(w->slow, node, path, above, w->memo, NULL);
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

/* Whether trees.py leaves objects of this class to C; `known` is a class of which it
 * said so. -1 with an exception. */
static int is_ordinary(const walk *w, PyObject *node, PyTypeObject **known) {
    if (Py_TYPE(node) == *known)
        return 1;
    PyObject *answer = PyObject_CallOneArg(w->is_ordinary, node);
    if (answer == NULL)
        return -1;
    bool is_true = answer == Py_True;
    Py_DECREF(answer);
    if (is_true)
        *known = Py_TYPE(node);
    return is_true;
}

static bool is_plain(PyObject *node) {
    return node == Py_None || PyBool_Check(node) || PyLong_CheckExact(node) ||
           PyFloat_CheckExact(node) || PyUnicode_CheckExact(node) ||
           PyBytes_CheckExact(node) || PyComplex_CheckExact(node);
}

/* A key may be, or hold, a tensor. */
static bool has_plain_keys(PyObject *node) {
    PyObject *key;
    Py_ssize_t at = 0;
    bool are_plain = true;
#ifdef Py_GIL_DISABLED
    PyObject *keys = PyDict_Keys(node); /* other threads can change the dict */
    for (; keys != NULL && are_plain && at < PyList_GET_SIZE(keys); at++) {
        key = PyList_GET_ITEM(keys, at);
        are_plain = is_plain(key);
    }
    are_plain = are_plain && keys != NULL;
    if (keys == NULL)
        PyErr_Clear();
    Py_XDECREF(keys);
#else
    while (are_plain && PyDict_Next(node, &at, &key, NULL))
        are_plain = is_plain(key);
#endif
    return are_plain;
}

/* NULL: not a container that is walked here, or, where `failed` is set, an exception.
 */
static way find_way(walk *w, PyObject *node, bool *failed) {
    if (PyDict_CheckExact(node))
        return has_plain_keys(node) ? convert_dict : NULL;
    if (PyList_CheckExact(node))
        return convert_list;
    if (PyTuple_CheckExact(node))
        return convert_tuple;
    if (!PyTuple_Check(node))
        return NULL;
    int answer = is_ordinary(w, node, &w->tuple);
    *failed = answer < 0;
    return answer > 0 ? convert_tuple : NULL;
}

/* -1 with an exception. */
static int is_above(const walk *w, PyObject *node, const place *at) {
    while (at != NULL && at->container != node)
        at = at->up;
    if (at != NULL || w->above == NULL)
        return at != NULL;
    PyObject *address = PyLong_FromVoidPtr(node);
    int is_found = address ? PySet_Contains(w->above, address) : -1;
    Py_XDECREF(address);
    return is_found;
}

static PyObject *walk_container(walk *w, way convert, PyObject *node, const place *up) {
    if (Py_EnterRecursiveCall(" in convert_tree"))
        return NULL;
    PyObject *made = convert(w, node, up);
    Py_LeaveRecursiveCall();
    return made;
}

/* NULL without an exception: Python decides. */
static PyObject *convert_leaf(walk *w, PyObject *node) {
    if (w->converter == Py_None || PyByteArray_CheckExact(node) ||
        dlb_numpy_has_objects(node))
        return NULL;
    /* Who registers a class calls it a container. */
    if (!dlb_is_framework_type(Py_TYPE(node))) {
        int answer = is_ordinary(w, node, &w->leaf);
        if (answer <= 0)
            return NULL;
    }
    return dlb_converter_try(w->converter, false, node, w->values, w->names);
}

static PyObject *convert_node(walk *w, PyObject *node, const place *up) {
    bool failed = false;
    if (is_plain(node))
        return Py_NewRef(node);
    way convert = find_way(w, node, &failed);
    if (failed)
        return NULL;
    int contains_itself = convert != NULL ? is_above(w, node, up) : 0;
    if (contains_itself != 0)
        return contains_itself < 0 ? NULL : go_slow(w, node, up);
    PyObject *made = w->memo != NULL ? remembered(w->memo, node) : NULL;
    if (made != NULL)
        return Py_NewRef(made);
    made = convert != NULL      ? walk_container(w, convert, node, up)
           : PyDict_Check(node) ? NULL
                                : convert_leaf(w, node);
    if (made == NULL)
        return PyErr_Occurred() ? NULL : go_slow(w, node, up);
    bool is_alone = up == NULL && w->memo == NULL;
    if (!is_alone && (start_memo(w) < 0 || remember(w->memo, node, made) < 0))
        Py_CLEAR(made);
    return made;
}

static bool are_arguments(PyObject *const *args, Py_ssize_t count) {
    if (count != 4 && count != 7)
        return false;
    if (args[1] != Py_None && Py_TYPE(args[1]) != &dlb_ConverterType)
        return false;
    return count == 4 || (Py_TYPE(args[4]) == &dlb_TreeMemoType &&
                          PyUnicode_Check(args[5]) && PyAnySet_Check(args[6]));
}

/* convert_tree(tree, converter, slow, is_ordinary, **policies), and within a walk also
 * its memo, the path of the tree and the addresses of the containers around it. */
static PyObject *convert_tree(PyObject *Py_UNUSED(module), PyObject *const *args,
                              Py_ssize_t count, PyObject *names) {
    if (!are_arguments(args, count)) {
        PyErr_SetString(PyExc_TypeError,
                        "convert_tree: expected (tree, converter, slow, is_ordinary) "
                        "and, within a walk, (…, memo, path, above)");
        return NULL;
    }
    bool is_inner = count == 7;
    walk w = {.converter = args[1],
              .values = args + count,
              .names = names,
              .slow = args[2],
              .is_ordinary = args[3],
              .memo = is_inner ? (memo_t *)args[4] : NULL,
              .path = is_inner ? args[5] : NULL,
              .above = is_inner ? args[6] : NULL};
    PyObject *made = convert_node(&w, args[0], NULL);
    if (!is_inner && w.memo != NULL) {
        forget_all(w.memo); /* tracebacks keep the object */
        Py_DECREF(w.memo);
    }
    return made;
}

PyMethodDef dlb_tree_functions[] = {
    {"convert_tree", (PyCFunction)(void (*)(void))convert_tree,
     METH_FASTCALL | METH_KEYWORDS,
     "convert_tree($module, tree, converter, slow, is_ordinary, memo=None, path='', "
     "above=None, /, **policies)\n--\n\n"
     "The tree with its tensors converted; slow(node, path, above, memo) for what C "
     "declines."},
    {NULL, NULL, 0, NULL},
};

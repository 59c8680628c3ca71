/* A tree of tensors that is reduced, broadcast or gathered in one call.
 *
 * Large tensors are sent from where they are, or from copies that collective.c makes,
 * and received where their results lie. Small ones are packed first, by dtype if they
 * are reduced, and their results share memory. The layout depends only on shapes and
 * dtypes, so it is the same on all ranks. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "mpi/calls.h"
#include "peers/peers.h"
#include "tensor/tensor.h"

#include <limits.h>
#include <stdlib.h>
#include <string.h>

enum {
    ALIGNED = 64,            /* bytes: where tensors begin that share memory */
    DIRECT = 256 * 1024,     /* bytes from which a tensor is sent from its place, */
    ALONE = 4 * 1024 * 1024, /* and from which its result shares no memory */
    MOST_SHARED = 16 * 1024 * 1024, /* bytes that are packed, or shared, together */
};

/* ---- TreePlan: what is known of trees that are made alike ---- */

/* One tensor. Its result lies at `start` of a block, or at `start` times the number of
 * ranks in a gather. */
typedef struct {
    DLDataType dtype;
    int32_t ndim;
    int64_t *shape;
    size_t nbytes, start;
    Py_ssize_t block, group; /* group: of packed ones, else -1 */
} leaf_kind;

/* Tensors that are packed together; their results lie at the start of a block. */
typedef struct {
    size_t size;
    Py_ssize_t block;
    const dlb_combine *how; /* NULL: the tensors are only copied */
} leaf_group;

typedef enum { DICT, ORDERED_DICT, KEY, LIST, TUPLE, LEAF, PLAIN } token_kind;

/* A node of a tree, followed by its items. The items of an OrderedDict, such as torch's
 * state dict, are followed by a dict of its attributes. */
typedef struct {
    token_kind kind;
    Py_ssize_t number;    /* of what is in it, or of the value */
    Py_ssize_t unchanged; /* of a tuple without tensors: the number of it as a value */
    PyObject *object;     /* a key, or the type of a value */
} token;

struct dlb_tree_plan {
    PyObject_HEAD
    uint8_t call[16];
    PyObject *arguments; /* str */
    PyObject *how;       /* a Reduction, "bcast" or "gather" */
    dlb_tree_kind kind;
    int root;
    Py_ssize_t count; /* of tensors */
    leaf_kind *leaves;
    leaf_group *groups;
    size_t *blocks; /* their bytes; those of groups first */
    Py_ssize_t group_count, block_count;
    size_t nbytes; /* of all tensors */
    bool fits;     /* C can make the call */
    token *tokens;
    Py_ssize_t token_count,
        value_count; /* token_count 0: no tree of plain containers */
};

static size_t aligned(size_t nbytes) {
    return (nbytes + ALIGNED - 1) / ALIGNED * ALIGNED;
}

/* The group for a small tensor; -1 with an exception. */
static Py_ssize_t find_group(dlb_tree_plan *self, const leaf_kind *leaf,
                             const dlb_combine *how) {
    for (Py_ssize_t i = self->group_count - 1; i >= 0; i--)
        if (self->groups[i].how == how) {
            if (self->groups[i].size + aligned(leaf->nbytes) <= MOST_SHARED)
                return i;
            break;
        }
    leaf_group *made = PyMem_Realloc(self->groups, (size_t)(self->group_count + 1) *
                                                       sizeof *self->groups);
    if (made == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->groups = made;
    made[self->group_count] = (leaf_group){.how = how, .block = self->group_count};
    return self->group_count++;
}

/* Whether C can send a tensor; `*how`: the loop that reduces it, or NULL. */
static bool may_send(const dlb_tree_plan *self, const leaf_kind *leaf,
                     const dlb_combine **how) {
    *how = NULL;
    if (self->kind != DLB_TREE_REDUCED)
        return leaf->dtype.bits % 8 == 0 && leaf->ndim < DLB_MAX_NDIM;
    *how = dlb_reduction_loop(self->how, leaf->dtype);
    return *how != NULL && leaf->nbytes <= INT_MAX;
}

/* Lay out the results. */
static int arrange(dlb_tree_plan *self) {
    for (Py_ssize_t i = 0; i < self->count; i++) {
        leaf_kind *leaf = &self->leaves[i];
        const dlb_combine *how;
        self->nbytes += leaf->nbytes;
        if (!may_send(self, leaf, &how))
            return PyErr_Occurred() ? -1 : 0;
        leaf->group = -1;
        if (leaf->nbytes >= DIRECT)
            continue;
        if ((leaf->group = find_group(self, leaf, how)) < 0)
            return -1;
        leaf_group *group = &self->groups[leaf->group];
        leaf->block = group->block;
        leaf->start = group->size;
        group->size += aligned(leaf->nbytes);
    }
    self->blocks = PyMem_Calloc((size_t)(self->group_count + self->count + 1),
                                sizeof *self->blocks);
    if (self->blocks == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (Py_ssize_t i = 0; i < self->group_count; i++)
        self->blocks[self->block_count++] = self->groups[i].size;
    Py_ssize_t open = -1;
    for (Py_ssize_t i = 0; i < self->count; i++) {
        leaf_kind *leaf = &self->leaves[i];
        if (leaf->group >= 0)
            continue;
        bool is_alone = leaf->nbytes >= ALONE;
        if (is_alone || open < 0 ||
            self->blocks[open] + aligned(leaf->nbytes) > MOST_SHARED)
            leaf->block = self->block_count++;
        else
            leaf->block = open;
        if (!is_alone)
            open = leaf->block;
        leaf->start = self->blocks[leaf->block];
        self->blocks[leaf->block] += aligned(leaf->nbytes);
    }
    self->fits = self->count > 0;
    return 0;
}

static int copy_kind(leaf_kind *to, const dlb_tensor *from) {
    to->dtype = from->dl.dtype;
    to->ndim = from->dl.ndim;
    to->nbytes = (size_t)dlb_packed_bytes(from->dl.dtype, from->flags,
                                          dlb_element_count(&from->dl));
    size_t size = (size_t)to->ndim * sizeof *to->shape;
    to->shape = PyMem_Malloc(size + 1);
    if (to->shape == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    if (size > 0)
        memcpy(to->shape, from->dl.shape, size);
    return 0;
}

/* ---- recording the containers ---- */

typedef struct {
    dlb_tree_plan *plan;
    PyObject *const *leaves;
    PyObject *seen; /* dict: address -> number of a leaf, or None */
    Py_ssize_t next, size;
} recorder;

static token *add_token(recorder *by, token_kind kind, Py_ssize_t number,
                        PyObject *object) {
    dlb_tree_plan *plan = by->plan;
    if (plan->token_count == by->size) {
        by->size = 2 * by->size + 16;
        token *made = PyMem_Realloc(plan->tokens, (size_t)by->size * sizeof *made);
        if (made == NULL) {
            PyErr_NoMemory();
            return NULL;
        }
        plan->tokens = made;
    }
    token *made = &plan->tokens[plan->token_count++];
    *made = (token){kind, number, -1, Py_XNewRef(object)};
    return made;
}

static bool is_plain(PyObject *x) {
    return x == Py_None || PyBool_Check(x) || PyLong_CheckExact(x) ||
           PyFloat_CheckExact(x) || PyComplex_CheckExact(x) ||
           PyUnicode_CheckExact(x) || PyBytes_CheckExact(x);
}

/* The number of a node that was seen; -1: it was not; -2: it is a container, or with an
 * exception. It is seen now, under this number. */
static Py_ssize_t see(recorder *by, PyObject *node, Py_ssize_t number) {
    PyObject *address = PyLong_FromVoidPtr(node), *found = NULL;
    Py_ssize_t before = -2;
    if (address != NULL && (found = PyDict_GetItemWithError(by->seen, address)) != NULL)
        before = PyLong_AsSsize_t(found);
    else if (address != NULL && !PyErr_Occurred()) {
        PyObject *value = PyLong_FromSsize_t(number);
        if (value != NULL && PyDict_SetItem(by->seen, address, value) == 0)
            before = -1;
        Py_XDECREF(value);
    }
    Py_XDECREF(address);
    return before;
}

static int record(recorder *by, PyObject *node);

/* The next one, or one that occurs once more. */
static int record_leaf(recorder *by, PyObject *node) {
    bool is_next = by->next < by->plan->count && node == by->leaves[by->next];
    Py_ssize_t number = see(by, node, is_next ? by->next : -2);
    if (number == -1 && is_next)
        number = by->next++;
    if (number < 0)
        return PyErr_Occurred() ? -1 : 0;
    return add_token(by, LEAF, number, (PyObject *)Py_TYPE(node)) == NULL ? -1 : 1;
}

static int record_dict(recorder *by, PyObject *node) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    int done = add_token(by, DICT, PyDict_GET_SIZE(node), NULL) == NULL ? -1 : 1;
    while (done > 0 && PyDict_Next(node, &at, &key, &value)) {
        if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key))
            return 0;
        Py_INCREF(value);
        done = add_token(by, KEY, 0, key) == NULL ? -1 : record(by, value);
        Py_DECREF(value);
    }
    return done;
}

/* In the order of the OrderedDict, which PyDict_Next does not follow. */
static int record_ordered_dict(recorder *by, PyObject *node) {
    PyObject *keys = PyObject_GetIter(node), *key;
    if (keys == NULL)
        return -1;
    int done =
        add_token(by, ORDERED_DICT, PyDict_GET_SIZE(node), NULL) == NULL ? -1 : 1;
    while (done > 0 && (key = PyIter_Next(keys)) != NULL) {
        PyObject *value = PyObject_GetItem(node, key);
        if (value == NULL)
            done = -1;
        else if (!PyUnicode_CheckExact(key) && !PyLong_CheckExact(key))
            done = 0;
        else
            done = add_token(by, KEY, 0, key) == NULL ? -1 : record(by, value);
        Py_XDECREF(value);
        Py_DECREF(key);
    }
    Py_DECREF(keys);
    PyObject *attributes = NULL;
    if (done > 0 && !PyErr_Occurred())
        attributes = PyObject_GenericGetDict(node, NULL);
    if (attributes != NULL)
        done = record(by, attributes);
    Py_XDECREF(attributes);
    return PyErr_Occurred() ? -1 : done;
}

static int record_items(recorder *by, PyObject *node) {
    bool is_tuple = PyTuple_CheckExact(node);
    Py_ssize_t at = by->plan->token_count, first = by->next;
    Py_ssize_t count = PySequence_Fast_GET_SIZE(node);
    int done = add_token(by, is_tuple ? TUPLE : LIST, count, NULL) == NULL ? -1 : 1;
    for (Py_ssize_t i = 0; done > 0 && i < PySequence_Fast_GET_SIZE(node); i++) {
        PyObject *item = Py_NewRef(PySequence_Fast_GET_ITEM(node, i));
        done = record(by, item);
        Py_DECREF(item);
    }
    bool has_leaf = by->next > first;
    for (Py_ssize_t i = at + 1; i < by->plan->token_count; i++)
        has_leaf = has_leaf || by->plan->tokens[i].kind == LEAF;
    if (done > 0 && is_tuple && !has_leaf)
        by->plan->tokens[at].unchanged = by->plan->value_count++;
    return done;
}

/* 1: recorded; 0: there is more than plain containers; -1 with an exception. */
static int record(recorder *by, PyObject *node) {
    bool is_dict = PyDict_CheckExact(node), is_ordered = PyODict_CheckExact(node);
    if (is_dict || is_ordered || PyList_CheckExact(node) || PyTuple_CheckExact(node)) {
        bool is_empty_tuple = PyTuple_CheckExact(node) && PyTuple_GET_SIZE(node) == 0;
        if (!is_empty_tuple && see(by, node, -2) != -1) /* else there is one such */
            return PyErr_Occurred() ? -1 : 0;
        if (Py_EnterRecursiveCall(" in a tree"))
            return -1;
        int done = is_dict      ? record_dict(by, node)
                   : is_ordered ? record_ordered_dict(by, node)
                                : record_items(by, node);
        Py_LeaveRecursiveCall();
        return done;
    }
    if (!is_plain(node))
        return record_leaf(by, node);
    Py_ssize_t number = by->plan->value_count++;
    return add_token(by, PLAIN, number, (PyObject *)Py_TYPE(node)) == NULL ? -1 : 1;
}

static void forget_tokens(dlb_tree_plan *self) {
    for (Py_ssize_t i = 0; i < self->token_count; i++)
        Py_XDECREF(self->tokens[i].object);
    PyMem_Free(self->tokens);
    self->tokens = NULL;
    self->token_count = 0;
}

static int record_all(dlb_tree_plan *self, PyObject *tree, PyObject *leaves) {
    recorder by = {
        .plan = self, .leaves = &PyList_GET_ITEM(leaves, 0), .seen = PyDict_New()};
    self->value_count = self->count;
    int done = by.seen == NULL ? -1 : record(&by, tree);
    Py_XDECREF(by.seen);
    if (done <= 0 || by.next != self->count)
        forget_tokens(self);
    return done < 0 ? -1 : 0;
}

static int fill_plan(dlb_tree_plan *self, PyObject *tree, PyObject *leaves,
                     PyObject *tensors) {
    Py_ssize_t count = PyList_GET_SIZE(tensors);
    if (PyList_GET_SIZE(leaves) != count) {
        PyErr_SetString(PyExc_ValueError, "TreePlan: a tensor for each leaf");
        return -1;
    }
    self->leaves = PyMem_Calloc((size_t)count + 1, sizeof *self->leaves);
    if (self->leaves == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    for (; self->count < count; self->count++) {
        dlb_tensor *tensor =
            dlb_expect_tensor(PyList_GET_ITEM(tensors, self->count), "TreePlan");
        if (tensor == NULL || copy_kind(&self->leaves[self->count], tensor) < 0)
            return -1;
    }
    return arrange(self) < 0 ? -1 : record_all(self, tree, leaves);
}

static const char *const NAMES[] = {[DLB_TREE_REDUCED] = "allreduce",
                                    [DLB_TREE_BCAST] = "bcast",
                                    [DLB_TREE_GATHERED] = "gather"};

/* From a Reduction, "bcast" or "gather"; false, with an exception, for others. */
static bool read_kind(PyObject *how, dlb_tree_kind *kind) {
    if (Py_TYPE(how) == &dlb_ReductionType) {
        *kind = DLB_TREE_REDUCED;
        return true;
    }
    for (*kind = DLB_TREE_BCAST; *kind <= DLB_TREE_GATHERED; ++*kind)
        if (PyUnicode_Check(how) &&
            PyUnicode_CompareWithASCIIString(how, NAMES[*kind]) == 0)
            return true;
    PyErr_SetString(PyExc_ValueError,
                    "TreePlan: how must be a Reduction, \"bcast\" or \"gather\"");
    return false;
}

static PyObject *new_plan(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"tree",      "leaves", "tensors", "call",
                            "arguments", "how",    "root",    NULL};
    PyObject *tree, *leaves, *tensors, *arguments, *how;
    const char *call;
    Py_ssize_t size;
    dlb_tree_kind kind;
    int root = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OO!O!y#UO|i:TreePlan", names, &tree,
                                     &PyList_Type, &leaves, &PyList_Type, &tensors,
                                     &call, &size, &arguments, &how, &root) ||
        !read_kind(how, &kind))
        return NULL;
    if (size != 16)
        return PyErr_Format(PyExc_ValueError, "TreePlan: a digest of 16 bytes");
    dlb_tree_plan *self = (dlb_tree_plan *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    memcpy(self->call, call, sizeof self->call);
    self->arguments = Py_NewRef(arguments);
    self->how = Py_NewRef(how);
    self->kind = kind;
    self->root = root;
    if (fill_plan(self, tree, leaves, tensors) < 0)
        Py_CLEAR(self);
    return (PyObject *)self;
}

static void dealloc_plan(PyObject *object) {
    dlb_tree_plan *self = (dlb_tree_plan *)object;
    forget_tokens(self);
    for (Py_ssize_t i = 0; i < self->count; i++)
        PyMem_Free(self->leaves[i].shape);
    PyMem_Free(self->leaves);
    PyMem_Free(self->groups);
    PyMem_Free(self->blocks);
    Py_XDECREF(self->arguments);
    Py_XDECREF(self->how);
    Py_TYPE(object)->tp_free(object);
}

dlb_tree_kind dlb_tree_kind_of(const dlb_tree_plan *self) {
    return self->kind;
}

Py_ssize_t dlb_tree_count(const dlb_tree_plan *self) {
    return self->count;
}

size_t dlb_tree_nbytes(const dlb_tree_plan *self) {
    return self->nbytes;
}

static bool has_shape(const leaf_kind *leaf, int32_t ndim, const int64_t *shape) {
    return leaf->ndim == ndim &&
           (ndim == 0 || memcmp(leaf->shape, shape, (size_t)ndim * sizeof *shape) == 0);
}

bool dlb_tree_has(const dlb_tree_plan *self, Py_ssize_t number, const DLTensor *dl) {
    const leaf_kind *leaf = &self->leaves[number];
    return memcmp(&leaf->dtype, &dl->dtype, sizeof dl->dtype) == 0 &&
           has_shape(leaf, dl->ndim, dl->shape);
}

bool dlb_tree_packs(const dlb_tree_plan *self, Py_ssize_t number) {
    const leaf_kind *leaf = &self->leaves[number];
    return leaf->group >= 0 && leaf->nbytes > 0;
}

bool dlb_tree_has_result(const dlb_tree_plan *self, Py_ssize_t number,
                         const dlb_peers *over, const DLTensor *dl) {
    const leaf_kind *leaf = &self->leaves[number];
    if (self->kind != DLB_TREE_GATHERED)
        return dlb_tree_has(self, number, dl);
    return memcmp(&leaf->dtype, &dl->dtype, sizeof dl->dtype) == 0 && dl->ndim > 0 &&
           dl->shape[0] == over->size && has_shape(leaf, dl->ndim - 1, dl->shape + 1);
}

bool dlb_tree_fits(const dlb_tree_plan *self, const dlb_peers *over) {
    if (!self->fits || self->root < 0 || self->root >= over->size)
        return false;
    return self->kind == DLB_TREE_REDUCED
               ? self->nbytes <= DLB_MANY_RANKS_MOST || over->size <= DLB_FEW_RANKS
               : over->is_direct;
}

bool dlb_tree_gives(const dlb_tree_plan *self, const dlb_peers *over) {
    return self->kind == DLB_TREE_REDUCED ||
           (self->kind == DLB_TREE_BCAST) == (over->rank != self->root);
}

static PyObject *plan_fits(PyObject *self, PyObject *over) {
    if (Py_TYPE(over) != &dlb_PeersType)
        return PyErr_Format(PyExc_TypeError, "TreePlan.fits: Peers are required");
    return PyBool_FromLong(dlb_tree_fits((dlb_tree_plan *)self, (dlb_peers *)over));
}

static PyObject *get_plain(PyObject *self, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((dlb_tree_plan *)self)->token_count > 0);
}

static PyMethodDef plan_methods[] = {
    {"fits", plan_fits, METH_O,
     "fits($self, peers, /)\n--\n\nReturn whether such a call is made by a "
     "TreeBallot."},
    {0},
};

static PyGetSetDef plan_fields[] = {
    {"is_plain", get_plain, NULL, "Whether C finds the tensors in such trees.", NULL},
    {0},
};

PyTypeObject dlb_TreePlanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TreePlan",
    .tp_doc = "TreePlan(tree, leaves, tensors, call, arguments, how, root=0)\n--\n\n"
              "How trees that are made alike are reduced, broadcast or gathered.",
    .tp_basicsize = sizeof(dlb_tree_plan),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = plan_methods,
    .tp_getset = plan_fields,
    .tp_new = new_plan,
    .tp_dealloc = dealloc_plan,
};

/* ---- finding the tensors of a tree ---- */

typedef struct {
    const dlb_tree_plan *plan;
    Py_ssize_t at;     /* of the tokens */
    PyObject **values; /* references: the tensors, then what is kept */
    PyObject **seen;   /* addresses, a hash table */
    size_t size;       /* of that, a power of two */
} finder;

/* Whether a node was not seen before. */
static bool is_new(finder *by, PyObject *node) {
    size_t at = ((uintptr_t)node >> 4) * (size_t)0x9e3779b97f4a7c15;
    for (at ^= at >> 32; by->seen[at & (by->size - 1)] != NULL; at++)
        if (by->seen[at & (by->size - 1)] == node)
            return false;
    by->seen[at & (by->size - 1)] = node;
    return true;
}

static bool match(finder *by, PyObject *node);

static bool is_key(const token *wanted, PyObject *key) {
    PyObject *known = wanted->object;
    if (key == known)
        return true;
    if (Py_TYPE(key) != Py_TYPE(known))
        return false;
    if (PyUnicode_CheckExact(key))
        return PyUnicode_Compare(key, known) == 0;
    return PyObject_RichCompareBool(key, known, Py_EQ) == 1; /* of exact int */
}

/* Garbage may be collected meanwhile, and its finalizers may change the dict. */
static bool match_items(finder *by, PyObject *items, Py_ssize_t count) {
    PyObject *key, *value;
    Py_ssize_t at = 0;
    bool is_same = true;
    while (is_same && count > 0 && PyDict_Next(items, &at, &key, &value)) {
        Py_INCREF(value);
        is_same = is_key(&by->plan->tokens[by->at++], key) && match(by, value);
        Py_DECREF(value);
        count--;
    }
    return is_same && count == 0;
}

static bool match_dict(finder *by, const token *wanted, PyObject *node) {
    if (!PyDict_CheckExact(node) || PyDict_GET_SIZE(node) != wanted->number ||
        !is_new(by, node))
        return false;
#ifdef Py_GIL_DISABLED
    PyObject *items = PyDict_Copy(node);
    bool found = items != NULL && PyDict_GET_SIZE(items) == wanted->number &&
                 match_items(by, items, wanted->number);
    Py_XDECREF(items);
    PyErr_Clear();
    return found;
#else
    return match_items(by, node, wanted->number);
#endif
}

static bool match_ordered_dict(finder *by, const token *wanted, PyObject *node) {
    if (!PyODict_CheckExact(node) || PyDict_GET_SIZE(node) != wanted->number ||
        !is_new(by, node))
        return false;
    PyObject *keys = PyObject_GetIter(node), *key, *attributes = NULL;
    bool is_same = keys != NULL;
    for (Py_ssize_t i = 0; is_same && i < wanted->number; i++) {
        key = PyIter_Next(keys);
        /* Before the lookup, which may run Python code for other types of keys. */
        is_same = key != NULL && is_key(&by->plan->tokens[by->at++], key);
        PyObject *value = is_same ? PyObject_GetItem(node, key) : NULL;
        is_same = value != NULL && match(by, value);
        Py_XDECREF(value);
        Py_XDECREF(key);
    }
    if (is_same)
        attributes = PyObject_GenericGetDict(node, NULL);
    is_same = attributes != NULL && match(by, attributes);
    Py_XDECREF(attributes);
    Py_XDECREF(keys);
    PyErr_Clear();
    return is_same;
}

static bool match_list(finder *by, const token *wanted, PyObject *node) {
    bool is_same = PyList_CheckExact(node) && PyList_GET_SIZE(node) == wanted->number &&
                   is_new(by, node);
    for (Py_ssize_t i = 0; is_same && i < wanted->number; i++) {
        PyObject *item = dlb_list_item(node, i);
        is_same = item != NULL && match(by, item);
        Py_XDECREF(item);
    }
    PyErr_Clear();
    return is_same;
}

static bool match_tuple(finder *by, const token *wanted, PyObject *node) {
    if (!PyTuple_CheckExact(node) || PyTuple_GET_SIZE(node) != wanted->number ||
        (wanted->number > 0 && !is_new(by, node)))
        return false;
    if (wanted->unchanged >= 0)
        by->values[wanted->unchanged] = Py_NewRef(node);
    for (Py_ssize_t i = 0; i < wanted->number; i++)
        if (!match(by, PyTuple_GET_ITEM(node, i)))
            return false;
    return true;
}

static bool match_value(finder *by, const token *wanted, PyObject *node) {
    if ((PyObject *)Py_TYPE(node) != wanted->object)
        return false;
    PyObject **value = &by->values[wanted->number];
    if (wanted->kind == LEAF && *value != NULL) /* it occurs twice */
        return *value == node;
    *value = Py_NewRef(node);
    return wanted->kind == PLAIN || is_new(by, node);
}

static bool match(finder *by, PyObject *node) {
    const token *wanted = &by->plan->tokens[by->at++];
    switch (wanted->kind) {
    case DICT:
        return match_dict(by, wanted, node);
    case ORDERED_DICT:
        return match_ordered_dict(by, wanted, node);
    case LIST:
        return match_list(by, wanted, node);
    case TUPLE:
        return match_tuple(by, wanted, node);
    default:
        return match_value(by, wanted, node);
    }
}

void dlb_tree_drop(const dlb_tree_plan *self, PyObject **values) {
    for (Py_ssize_t i = 0; values != NULL && i < self->value_count; i++)
        Py_XDECREF(values[i]);
    PyMem_Free(values);
}

PyObject **dlb_tree_find(const dlb_tree_plan *self, PyObject *tree) {
    if (self->token_count == 0)
        return NULL;
    finder by = {.plan = self, .size = 16};
    while (by.size < 2 * (size_t)self->token_count)
        by.size *= 2;
    by.values = PyMem_Calloc((size_t)self->value_count + 1, sizeof *by.values);
    by.seen = PyMem_Calloc(by.size, sizeof *by.seen);
    bool is_same = by.values != NULL && by.seen != NULL && match(&by, tree);
    PyMem_Free(by.seen);
    if (!is_same) {
        dlb_tree_drop(self, by.values);
        by.values = NULL;
    }
    return by.values;
}

/* ---- making a tree ---- */

typedef struct {
    const dlb_tree_plan *plan;
    Py_ssize_t at;
    PyObject *const *tensors, *const *values;
} builder;

static PyObject *build(builder *by);

static PyObject *build_dict(builder *by, Py_ssize_t count) {
    PyObject *made = PyDict_New();
    while (made != NULL && count-- > 0) {
        PyObject *key = by->plan->tokens[by->at++].object, *value = build(by);
        if (value == NULL || PyDict_SetItem(made, key, value) < 0)
            Py_CLEAR(made);
        Py_XDECREF(value);
    }
    return made;
}

static PyObject *build_ordered_dict(builder *by, Py_ssize_t count) {
    PyObject *made = PyODict_New();
    while (made != NULL && count-- > 0) {
        PyObject *key = by->plan->tokens[by->at++].object, *value = build(by);
        if (value == NULL || PyODict_SetItem(made, key, value) < 0)
            Py_CLEAR(made);
        Py_XDECREF(value);
    }
    PyObject *attributes = made == NULL ? NULL : build(by);
    if (attributes == NULL || (PyDict_GET_SIZE(attributes) > 0 &&
                               PyObject_GenericSetDict(made, attributes, NULL) < 0))
        Py_CLEAR(made);
    Py_XDECREF(attributes);
    return made;
}

static PyObject *build_list(builder *by, Py_ssize_t count) {
    PyObject *made = PyList_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *value = build(by);
        if (value == NULL)
            Py_CLEAR(made);
        else
            PyList_SET_ITEM(made, i, value);
    }
    return made;
}

static PyObject *build_tuple(builder *by, Py_ssize_t count) {
    PyObject *made = PyTuple_New(count);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        PyObject *value = build(by);
        if (value == NULL)
            Py_CLEAR(made);
        else
            PyTuple_SET_ITEM(made, i, value);
    }
    return made;
}

static PyObject *build(builder *by) {
    const token *next = &by->plan->tokens[by->at++];
    PyObject *made;
    switch (next->kind) {
    case DICT:
        return build_dict(by, next->number);
    case ORDERED_DICT:
        return build_ordered_dict(by, next->number);
    case LIST:
        return build_list(by, next->number);
    case TUPLE:
        made = build_tuple(by, next->number);
        if (made != NULL && next->unchanged >= 0)
            Py_SETREF(made, Py_NewRef(by->values[next->unchanged]));
        return made;
    case LEAF:
        return Py_NewRef(by->tensors[next->number]);
    default:
        return Py_NewRef(by->values[next->number]);
    }
}

/* A tree with these tensors, and with the other values of that one. */
static PyObject *build_tree(const dlb_tree_plan *self, PyObject *const *tensors,
                            PyObject *const *values) {
    builder by = {.plan = self, .tensors = tensors, .values = values};
    return build(&by);
}

/* ---- TreeBallot: one that is under way ---- */

struct dlb_tree_ballot {
    PyObject_HEAD
    dlb_tree_plan *plan;
    dlb_ballot *ballot;
    dlb_collective *copies; /* follows the ballot, unless it reduces */
    bool is_copying, is_settled;
    bool gives;            /* this rank receives results */
    size_t rows;           /* of each result: the number of ranks in a gather, else 1 */
    dlb_buffer **packed;   /* of each group */
    dlb_buffer **scratch;  /* of each group: what is gathered, packed by rank */
    dlb_buffer **blocks;   /* as in the plan; without some where `is_direct` */
    dlb_tree_leaf *leaves; /* with references, where a bcast copies its own; or NULL */
    dlb_tree_leaf *outs;   /* with references; NULL: the results are new */
    bool is_direct;        /* large tensors are received into `outs` */
    /* One reference per tensor, from `dlb_quotients`; NULL once it is divided, or if
     * the op is not "mean". */
    PyObject **quotients;
    bool is_settling; /* a thread completes the results, without the GIL */
    int size;         /* of the ranks */
    /* As dlb_tree_ballot_keep is given them; NULL: Python makes the result. */
    PyObject **values, **converters;
    PyObject *instead;
};

/* Where a result is. */
static dlb_tree_leaf place_of(const dlb_tree_ballot *self, Py_ssize_t number) {
    const leaf_kind *leaf = &self->plan->leaves[number];
    if (self->is_direct && leaf->group < 0)
        return self->outs[number];
    dlb_buffer *block = self->blocks[leaf->block];
    return (dlb_tree_leaf){block, (char *)block->data + self->rows * leaf->start};
}

/* Whether this rank is the root of a bcast. */
static bool is_source(const dlb_tree_ballot *self) {
    return self->plan->kind == DLB_TREE_BCAST &&
           dlb_ballot_over(self->ballot)->rank == self->plan->root;
}

/* Memory that is sent from its place, or received into. */
typedef struct {
    const char *start, *end;
    bool is_out;
} span;

static int compare_spans(const void *first, const void *second) {
    const char *a = ((const span *)first)->start, *b = ((const span *)second)->start;
    return (a > b) - (a < b);
}

static bool are_apart(span *spans, size_t count) {
    const char *end = NULL, *end_of_outs = NULL;
    qsort(spans, count, sizeof *spans, compare_spans);
    for (size_t i = 0; i < count; i++) {
        if (spans[i].start < (spans[i].is_out ? end : end_of_outs))
            return false;
        if (spans[i].end > end)
            end = spans[i].end;
        if (spans[i].is_out && spans[i].end > end_of_outs)
            end_of_outs = spans[i].end;
    }
    return true;
}

/* Whether large tensors may be received into `outs`, as others are still sent: each may
 * overlap only its own source, and only if the result is no larger. */
static bool may_be_direct(const dlb_tree_plan *plan, size_t rows,
                          const dlb_tree_leaf *leaves, const dlb_tree_leaf *outs) {
    span *spans = PyMem_Malloc(2 * (size_t)plan->count * sizeof *spans);
    size_t count = 0;
    for (Py_ssize_t i = 0; spans != NULL && i < plan->count; i++) {
        size_t nbytes = plan->leaves[i].nbytes;
        if (plan->leaves[i].group >= 0)
            continue;
        spans[count++] = (span){outs[i].data, outs[i].data + rows * nbytes, true};
        if (rows > 1 || leaves[i].data != outs[i].data)
            spans[count++] = (span){leaves[i].data, leaves[i].data + nbytes, false};
    }
    bool is_direct = spans != NULL && are_apart(spans, count);
    PyMem_Free(spans);
    return is_direct;
}

static int make_room(dlb_buffer **made, size_t nbytes) {
    *made = dlb_buffer_allocate((int64_t)nbytes, ALIGNED, false);
    if (*made == NULL)
        PyErr_NoMemory();
    return *made == NULL ? -1 : 0;
}

/* Allocate the results and the buffers of packed tensors. */
static int allocate(dlb_tree_ballot *self, bool sends) {
    const dlb_tree_plan *plan = self->plan;
    bool is_gathered = plan->kind == DLB_TREE_GATHERED;
    for (Py_ssize_t i = 0; i < plan->group_count; i++) {
        size_t size = plan->groups[i].size;
        if ((sends && make_room(&self->packed[i], size) < 0) ||
            (is_gathered && self->gives &&
             make_room(&self->scratch[i], self->rows * size) < 0))
            return -1;
        if (is_source(self)) /* its results are what it sends */
            self->blocks[i] = dlb_buffer_retain(self->packed[i]);
    }
    Py_ssize_t count = self->is_direct ? plan->group_count : plan->block_count;
    for (Py_ssize_t i = 0; self->gives && i < count; i++)
        if (self->blocks[i] == NULL &&
            make_room(&self->blocks[i], self->rows * plan->blocks[i]) < 0)
            return -1;
    return 0;
}

/* Pack the small tensors. */
static void pack(dlb_tree_ballot *self, const dlb_tree_leaf *leaves) {
    for (Py_ssize_t i = 0; i < self->plan->count; i++) {
        const leaf_kind *leaf = &self->plan->leaves[i];
        if (leaf->group < 0 || leaf->nbytes == 0)
            continue;
        char *to = (char *)self->packed[leaf->group]->data + leaf->start;
        memcpy(to, leaves[i].data, leaf->nbytes);
        memset(to + leaf->nbytes, 0, aligned(leaf->nbytes) - leaf->nbytes);
    }
}

/* Add the values of all tensors to the ballot, in the same order on all ranks. */
static int reduce_all(dlb_tree_ballot *self, const dlb_tree_leaf *leaves) {
    const dlb_tree_plan *plan = self->plan;
    for (Py_ssize_t i = 0; i < plan->group_count; i++) {
        dlb_buffer *packed = self->packed[i], *into = self->blocks[i];
        if (plan->groups[i].size > 0 &&
            dlb_ballot_add_values(self->ballot, plan->groups[i].how, packed,
                                  packed->data, into, into->data,
                                  plan->groups[i].size) < 0)
            return -1;
    }
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const leaf_kind *leaf = &plan->leaves[i];
        if (leaf->group >= 0)
            continue;
        const dlb_combine *how = dlb_reduction_loop(plan->how, leaf->dtype);
        dlb_tree_leaf into = place_of(self, i);
        if (dlb_ballot_add_values(self->ballot, how, leaves[i].buffer, leaves[i].data,
                                  into.buffer, into.data, leaf->nbytes) < 0)
            return -1;
    }
    return 0;
}

static dlb_part part_of(dlb_tree_leaf from, dlb_tree_leaf into, size_t nbytes) {
    return (dlb_part){from.buffer, into.buffer, from.data, into.data, nbytes};
}

static dlb_tree_leaf start_of(dlb_buffer *buffer) {
    return (dlb_tree_leaf){buffer, buffer == NULL ? NULL : buffer->data};
}

/* Make the collective that copies all tensors, in the same order on all ranks. */
static int copy_all(dlb_tree_ballot *self, const dlb_tree_leaf *leaves, bool sends) {
    const dlb_tree_plan *plan = self->plan;
    bool receives = self->gives && !is_source(self);
    size_t count = 0;
    dlb_part *parts =
        PyMem_Malloc((size_t)(plan->group_count + plan->count) * sizeof *parts);
    if (parts == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    dlb_buffer **into = plan->kind == DLB_TREE_GATHERED ? self->scratch : self->blocks;
    for (Py_ssize_t i = 0; i < plan->group_count; i++)
        parts[count++] =
            part_of(start_of(self->packed[i]), start_of(receives ? into[i] : NULL),
                    plan->groups[i].size);
    for (Py_ssize_t i = 0; i < plan->count; i++)
        if (plan->leaves[i].group < 0)
            parts[count++] = part_of(sends ? leaves[i] : start_of(NULL),
                                     receives ? place_of(self, i) : start_of(NULL),
                                     plan->leaves[i].nbytes);
    dlb_copy_kind kind = plan->kind == DLB_TREE_GATHERED ? DLB_GATHER : DLB_BCAST;
    self->copies = dlb_collective_new(dlb_ballot_over(self->ballot), kind, plan->root,
                                      parts, count, Py_None, NULL);
    PyMem_Free(parts);
    return self->copies == NULL ? -1 : 0;
}

/* A copy of these places, with references. */
static dlb_tree_leaf *keep_leaves(const dlb_tree_leaf *leaves, Py_ssize_t count) {
    dlb_tree_leaf *made = PyMem_Malloc((size_t)(count + 1) * sizeof *made);
    for (Py_ssize_t i = 0; made != NULL && i < count; i++) {
        made[i] = leaves[i];
        if (leaves[i].buffer != NULL)
            dlb_buffer_retain(leaves[i].buffer);
    }
    if (made == NULL)
        PyErr_NoMemory();
    return made;
}

static int find_quotients(dlb_tree_ballot *self) {
    const dlb_tree_plan *plan = self->plan;
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        DLDataType dtype = plan->leaves[i].dtype;
        if (i > 0 && memcmp(&dtype, &plan->leaves[i - 1].dtype, sizeof dtype) == 0)
            self->quotients[i] = Py_XNewRef(self->quotients[i - 1]);
        else if (dlb_quotients(plan->how, dtype, self->size, &self->quotients[i]) < 0)
            return -1;
    }
    return 0;
}

static int prepare(dlb_tree_ballot *self, dlb_peers *over, const dlb_tree_leaf *leaves,
                   const dlb_tree_leaf *outs) {
    const dlb_tree_plan *plan = self->plan;
    size_t groups = (size_t)plan->group_count + 1, count = (size_t)plan->count + 1;
    self->blocks = PyMem_Calloc((size_t)plan->block_count + 1, sizeof *self->blocks);
    self->packed = PyMem_Calloc(groups, sizeof *self->packed);
    self->scratch = PyMem_Calloc(groups, sizeof *self->scratch);
    self->quotients = PyMem_Calloc(count, sizeof *self->quotients);
    if (self->blocks == NULL || self->packed == NULL || self->scratch == NULL ||
        self->quotients == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->ballot = dlb_ballot_new(over, plan->call, NULL, 0, NULL);
    if (self->ballot == NULL ||
        (outs != NULL && (self->outs = keep_leaves(outs, plan->count)) == NULL) ||
        (is_source(self) && (self->leaves = keep_leaves(leaves, plan->count)) == NULL))
        return -1;
    self->is_direct = outs != NULL && may_be_direct(plan, self->rows, leaves, outs);
    bool reduces = plan->kind == DLB_TREE_REDUCED;
    bool sends = plan->kind != DLB_TREE_BCAST || is_source(self);
    if (allocate(self, sends) < 0)
        return -1;
    if (sends)
        pack(self, leaves);
    if (!reduces)
        return copy_all(self, leaves, sends);
    return find_quotients(self) < 0 ? -1 : reduce_all(self, leaves);
}

dlb_tree_ballot *dlb_tree_ballot_new(dlb_peers *over, dlb_tree_plan *plan,
                                     const dlb_tree_leaf *leaves,
                                     const dlb_tree_leaf *outs, bool gives) {
    dlb_tree_ballot *self =
        (dlb_tree_ballot *)dlb_TreeBallotType.tp_alloc(&dlb_TreeBallotType, 0);
    if (self == NULL)
        return NULL;
    self->plan = (dlb_tree_plan *)Py_NewRef(plan);
    self->size = over->size;
    self->gives = gives;
    self->rows = plan->kind == DLB_TREE_GATHERED ? (size_t)over->size : 1;
    if (prepare(self, over, leaves, outs) < 0)
        Py_CLEAR(self);
    return self;
}

static void divide_all(dlb_tree_ballot *self) {
    for (Py_ssize_t i = 0; i < self->plan->count; i++) {
        const leaf_kind *leaf = &self->plan->leaves[i];
        if (self->quotients[i] == NULL)
            continue;
        dlb_divide(leaf->dtype, place_of(self, i).data, leaf->nbytes, self->size,
                   self->quotients[i]);
        Py_CLEAR(self->quotients[i]);
    }
}

/* Copy gathered tensors, which came packed for each rank, to their results. */
static void unpack(const dlb_tree_ballot *self) {
    const dlb_tree_plan *plan = self->plan;
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        const leaf_kind *leaf = &plan->leaves[i];
        if (leaf->group < 0)
            continue;
        const char *from = (char *)self->scratch[leaf->group]->data + leaf->start;
        char *to = place_of(self, i).data;
        for (size_t row = 0; row < self->rows; row++)
            memcpy(to + row * leaf->nbytes, from + row * plan->groups[leaf->group].size,
                   leaf->nbytes);
    }
}

/* On the root of a bcast: copy large tensors to their results; small ones are packed
 * where their results lie. */
static void copy_own(const dlb_tree_ballot *self) {
    for (Py_ssize_t i = 0; i < self->plan->count; i++) {
        const leaf_kind *leaf = &self->plan->leaves[i];
        char *to = leaf->group < 0 ? place_of(self, i).data : self->leaves[i].data;
        if (to != self->leaves[i].data)
            memcpy(to, self->leaves[i].data, leaf->nbytes);
    }
}

/* Copy to `outs` what is not there yet. */
static void copy_out(const dlb_tree_ballot *self) {
    for (Py_ssize_t i = 0; i < self->plan->count; i++) {
        const char *from = place_of(self, i).data;
        if (from != self->outs[i].data)
            memcpy(self->outs[i].data, from, self->rows * self->plan->leaves[i].nbytes);
    }
}

/* Complete the results, without the GIL where that takes long. */
static void settle(dlb_tree_ballot *self) {
    self->is_settling = true;
    if (self->plan->kind == DLB_TREE_REDUCED)
        divide_all(self);
    if (self->gives && (self->plan->kind != DLB_TREE_REDUCED || self->outs != NULL)) {
        Py_BEGIN_ALLOW_THREADS;
        if (is_source(self))
            copy_own(self);
        else if (self->plan->kind == DLB_TREE_GATHERED)
            unpack(self);
        if (self->outs != NULL)
            copy_out(self);
        Py_END_ALLOW_THREADS;
    }
    self->is_settling = false;
    self->is_settled = true;
}

static int advance_copies(dlb_tree_ballot *self) {
    bool is_posted = self->is_copying;
    self->is_copying = true;
    if (!is_posted && dlb_collective_post(self->copies, self->ballot) < 0)
        return -1;
    return dlb_collective_advance(self->copies);
}

int dlb_tree_ballot_advance(dlb_tree_ballot *self) {
    if (self->is_settling) /* another thread goes on with it */
        return 0;
    int done = self->is_copying ? 1 : dlb_ballot_advance(self->ballot);
    if (done <= 0 || !dlb_ballot_agreed(self->ballot))
        return done;
    if (self->copies != NULL)
        done = advance_copies(self);
    if (done > 0 && !self->is_settled)
        settle(self);
    return done;
}

dlb_ballot *dlb_ballot_of(PyObject *object) {
    if (Py_TYPE(object) == &dlb_TreeBallotType)
        return ((dlb_tree_ballot *)object)->ballot;
    return Py_TYPE(object) == &dlb_BallotType ? (dlb_ballot *)object : NULL;
}

bool dlb_tree_ballot_agreed(const dlb_tree_ballot *self) {
    return dlb_ballot_agreed(self->ballot);
}

dlb_peers *dlb_tree_ballot_over(const dlb_tree_ballot *self) {
    return dlb_ballot_over(self->ballot);
}

size_t dlb_tree_ballot_nbytes(const dlb_tree_ballot *self) {
    return self->plan->nbytes;
}

/* The view of a result, with a reference to its memory; its shape is in `space`. */
static void view_result(const dlb_tree_ballot *self, Py_ssize_t number,
                        int64_t space[DLB_MAX_NDIM], dlb_view *view) {
    const leaf_kind *leaf = &self->plan->leaves[number];
    dlb_tree_leaf place = place_of(self, number);
    int more = self->plan->kind == DLB_TREE_GATHERED;
    space[0] = self->size;
    if (leaf->ndim > 0)
        memcpy(space + more, leaf->shape, (size_t)leaf->ndim * sizeof *space);
    dlb_view_set_memory(view, place.data, leaf->dtype, leaf->ndim + more, space);
    view->buffer = dlb_buffer_retain(place.buffer);
    dlb_view_set_row_major(view);
}

void dlb_tree_ballot_keep(dlb_tree_ballot *self, PyObject **values,
                          PyObject **converters, PyObject *instead) {
    self->values = values;
    self->converters = converters;
    self->instead = Py_XNewRef(instead);
}

/* The Tensor of a whole block, for all arrays of NumPy in it. */
static PyObject *owner_of(const dlb_tree_ballot *self, Py_ssize_t block,
                          PyObject **owners) {
    if (owners[block] == NULL) {
        dlb_view whole;
        int64_t size = (int64_t)(self->rows * self->plan->blocks[block]);
        dlb_view_set_memory(&whole, self->blocks[block]->data,
                            (DLDataType){kDLUInt, 8, 1}, 1, &size);
        whole.buffer = dlb_buffer_retain(self->blocks[block]);
        dlb_view_set_row_major(&whole);
        owners[block] = dlb_tensor_new(dlb.tensor_type, &whole);
    }
    return owners[block];
}

/* A new array over the memory of a result. */
static PyObject *make_array(const dlb_tree_ballot *self, Py_ssize_t number,
                            PyObject **owners) {
    dlb_view view;
    int64_t space[DLB_MAX_NDIM];
    PyObject *converter = self->converters[number], *made = NULL;
    view_result(self, number, space, &view);
    if (dlb_converter_makes_numpy(converter)) {
        PyObject *owner = owner_of(self, self->plan->leaves[number].block, owners);
        made = owner == NULL ? NULL : dlb_numpy_within(owner, &view.dl);
        if (made != NULL || PyErr_Occurred()) {
            dlb_buffer_drop(view.buffer);
            return made;
        }
    }
    return dlb_give(converter, &view);
}

/* A tree of new arrays. */
static PyObject *make_tree(const dlb_tree_ballot *self) {
    const dlb_tree_plan *plan = self->plan;
    PyObject **made = PyMem_Malloc((size_t)(plan->count + 1) * sizeof *made);
    PyObject **owners = PyMem_Calloc((size_t)plan->block_count + 1, sizeof *owners);
    PyObject *result = NULL;
    Py_ssize_t count = 0;
    for (; made != NULL && owners != NULL && count < plan->count; count++)
        if ((made[count] = make_array(self, count, owners)) == NULL)
            break;
    if (made == NULL || owners == NULL)
        PyErr_NoMemory();
    else if (count == plan->count)
        result = build_tree(plan, made, self->values);
    while (count-- > 0)
        Py_DECREF(made[count]);
    for (Py_ssize_t i = 0; owners != NULL && i < plan->block_count; i++)
        Py_XDECREF(owners[i]);
    PyMem_Free(owners);
    PyMem_Free(made);
    return result;
}

PyObject *dlb_tree_ballot_result(const dlb_tree_ballot *self) {
    return self->instead != NULL ? Py_NewRef(self->instead) : make_tree(self);
}

static PyObject *ballot_result(PyObject *object, PyObject *Py_UNUSED(none)) {
    dlb_tree_ballot *self = (dlb_tree_ballot *)object;
    if (!self->is_settled || self->values == NULL)
        return PyErr_Format(PyExc_ValueError, "TreeBallot: it has no result");
    return dlb_tree_ballot_result(self);
}

static PyObject *ballot_results(PyObject *object, PyObject *Py_UNUSED(none)) {
    dlb_tree_ballot *self = (dlb_tree_ballot *)object;
    if (!self->gives || !self->is_settled)
        return PyErr_Format(PyExc_ValueError, "TreeBallot: there are no results");
    PyObject *made = PyList_New(self->plan->count);
    for (Py_ssize_t i = 0; made != NULL && i < self->plan->count; i++) {
        dlb_view view;
        int64_t space[DLB_MAX_NDIM];
        view_result(self, i, space, &view);
        PyObject *tensor = dlb_tensor_new(dlb.tensor_type, &view);
        if (tensor == NULL)
            Py_CLEAR(made);
        else
            PyList_SET_ITEM(made, i, tensor);
    }
    return made;
}

static PyObject *tree_ballot_advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = dlb_tree_ballot_advance((dlb_tree_ballot *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *tree_ballot_agreed(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(dlb_tree_ballot_agreed((dlb_tree_ballot *)object));
}

static PyObject *tree_ballot_nbytes(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(((dlb_tree_ballot *)object)->plan->nbytes);
}

static PyObject *tree_ballot_tag(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(dlb_ballot_tag(((dlb_tree_ballot *)object)->ballot));
}

static PyObject *tree_ballot_name(PyObject *object, void *Py_UNUSED(closure)) {
    return PyUnicode_FromString(NAMES[((dlb_tree_ballot *)object)->plan->kind]);
}

static PyObject *tree_ballot_arguments(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((dlb_tree_ballot *)object)->plan->arguments);
}

static PyObject *new_tree_ballot(PyTypeObject *Py_UNUSED(type), PyObject *args,
                                 PyObject *kwargs) {
    static char *names[] = {"peers", "plan", "tensors", "gives", NULL};
    PyObject *over, *given, *tensors;
    int gives = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O!O!|p:TreeBallot", names,
                                     &dlb_PeersType, &over, &dlb_TreePlanType, &given,
                                     &PyList_Type, &tensors, &gives))
        return NULL;
    dlb_tree_plan *plan = (dlb_tree_plan *)given;
    bool is_asked = gives && plan->kind == DLB_TREE_BCAST;
    if (PyList_GET_SIZE(tensors) != plan->count ||
        !dlb_tree_fits(plan, (dlb_peers *)over) ||
        (!is_asked && (bool)gives != dlb_tree_gives(plan, (dlb_peers *)over)))
        return PyErr_Format(PyExc_ValueError, "TreeBallot: the plan is of others");
    dlb_tree_leaf *leaves = PyMem_Calloc((size_t)plan->count + 1, sizeof *leaves);
    dlb_tree_ballot *made = NULL;
    if (leaves == NULL)
        return PyErr_NoMemory();
    for (Py_ssize_t i = 0; i < plan->count; i++) {
        dlb_tensor *tensor =
            dlb_expect_tensor(PyList_GET_ITEM(tensors, i), "TreeBallot");
        if (tensor == NULL)
            goto done;
        if (!dlb_tree_has(plan, i, &tensor->dl)) {
            PyErr_SetString(PyExc_ValueError, "TreeBallot: the plan is of others");
            goto done;
        }
        leaves[i] = (dlb_tree_leaf){tensor->buffer,
                                    (char *)tensor->dl.data + tensor->dl.byte_offset};
    }
    made = dlb_tree_ballot_new((dlb_peers *)over, plan, leaves, NULL, gives);
done:
    PyMem_Free(leaves);
    return (PyObject *)made;
}

static void drop_buffers(dlb_buffer **buffers, Py_ssize_t count) {
    for (Py_ssize_t i = 0; buffers != NULL && i < count; i++)
        if (buffers[i] != NULL)
            dlb_buffer_drop(buffers[i]);
    PyMem_Free(buffers);
}

static void drop_leaves(dlb_tree_leaf *leaves, Py_ssize_t count) {
    for (Py_ssize_t i = 0; leaves != NULL && i < count; i++)
        if (leaves[i].buffer != NULL)
            dlb_buffer_drop(leaves[i].buffer);
    PyMem_Free(leaves);
}

static void dealloc_tree_ballot(PyObject *object) {
    dlb_tree_ballot *self = (dlb_tree_ballot *)object;
    Py_XDECREF(self->ballot); /* both retain memory that MPI still uses */
    Py_XDECREF(self->copies);
    drop_buffers(self->blocks, self->plan->block_count);
    drop_buffers(self->packed, self->plan->group_count);
    drop_buffers(self->scratch, self->plan->group_count);
    drop_leaves(self->leaves, self->plan->count);
    drop_leaves(self->outs, self->plan->count);
    for (Py_ssize_t i = 0; self->quotients != NULL && i < self->plan->count; i++)
        Py_XDECREF(self->quotients[i]);
    PyMem_Free(self->quotients);
    dlb_tree_drop(self->plan, self->values);
    for (Py_ssize_t i = 0; self->converters != NULL && i < self->plan->count; i++)
        Py_DECREF(self->converters[i]);
    PyMem_Free(self->converters);
    Py_XDECREF(self->instead);
    Py_DECREF(self->plan);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef tree_ballot_methods[] = {
    {"advance", tree_ballot_advance, METH_NOARGS,
     "advance($self, /)\n--\n\nGo on; return whether it is over."},
    {"result", ballot_result, METH_NOARGS,
     "result($self, /)\n--\n\nReturn what the call does, as C has begun it."},
    {"results", ballot_results, METH_NOARGS,
     "results($self, /)\n--\n\nReturn a Tensor for each one of the tree."},
    {0},
};

static PyGetSetDef tree_ballot_fields[] = {
    {"agreed", tree_ballot_agreed, NULL, "Whether all ranks make the same call.", NULL},
    {"tag", tree_ballot_tag, NULL, "That of its messages; -1: it has not begun.", NULL},
    {"nbytes", tree_ballot_nbytes, NULL, "Bytes of all tensors.", NULL},
    {"name", tree_ballot_name, NULL, "That of the call.", NULL},
    {"arguments", tree_ballot_arguments, NULL, "Those of the call, for texts.", NULL},
    {0},
};

PyTypeObject dlb_TreeBallotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.TreeBallot",
    .tp_doc = "TreeBallot(peers, plan, tensors, gives=True)\n--\n\n"
              "A call with a tree, under way.",
    .tp_basicsize = sizeof(dlb_tree_ballot),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = tree_ballot_methods,
    .tp_getset = tree_ballot_fields,
    .tp_new = new_tree_ballot,
    .tp_dealloc = dealloc_tree_ballot,
};

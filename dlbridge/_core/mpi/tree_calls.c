/* allreduce, bcast and gather of trees like one that Python has seen before. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "mpi/calls.h"
#include "peers/peers.h"
#include "torch/torch.h"

#include <limits.h>

/* The tensors that were taken from a tree. */
typedef struct {
    PyObject **values;     /* from dlb_tree_find */
    PyObject **converters; /* for each tensor, as in a `source`; references */
    dlb_tree_leaf *leaves; /* with a reference to each buffer, or NULL: borrowed */
    Py_ssize_t count;      /* of the tensors so far */
    Py_ssize_t taken;      /* of these, not borrowed */
} tensors;

static void drop_tensors(const dlb_tree_plan *plan, const tensors *from) {
    for (Py_ssize_t i = 0; i < from->count; i++) {
        if (from->converters != NULL)
            Py_DECREF(from->converters[i]);
        if (from->leaves[i].buffer != NULL)
            dlb_buffer_drop(from->leaves[i].buffer);
    }
    PyMem_Free(from->converters);
    PyMem_Free(from->leaves);
    dlb_tree_drop(plan, from->values);
}

static bool is_aligned(const void *data, DLDataType dtype) {
    return (uintptr_t)data % (dtype.bits / 8) == 0;
}

/* Whether a tensor of the tree, or of `out`, has the shape and dtype of the plan. */
static bool fits(const dlb_tree_plan *plan, const dlb_peers *over, Py_ssize_t number,
                 const source *taken, bool is_out) {
    const DLTensor *dl = &taken->view.dl;
    bool has = is_out ? dlb_tree_has_result(plan, number, over, dl)
                      : dlb_tree_has(plan, number, dl);
    return has && is_aligned(dlb_source_data(taken), dl->dtype);
}

/* How arrays of one type are borrowed. */
typedef struct {
    PyTypeObject *type;  /* NULL: none was looked at yet */
    PyObject *converter; /* a reference; NULL: such arrays are taken */
    bool is_numpy;
    dlb_torch_thread thread; /* else */
} lender;

/* Look at the type of x; what is borrowed no receipt says. */
static void find_lender(lender *made, const quick *self, PyObject *x) {
    Py_CLEAR(made->converter);
    made->type = Py_TYPE(x);
    made->is_numpy = dlb_is_numpy(x);
    if (dlb_is_recorded() || !(made->is_numpy || dlb_torch_is_exact(x)))
        return;
    PyObject *known = dlb_cache_get(self->types, (PyObject *)made->type);
    if (known != NULL && PyTuple_GET_ITEM(known, 1) == Py_None) /* without a guard */
        made->converter = Py_NewRef(PyTuple_GET_ITEM(known, 0));
    Py_XDECREF(known);
    if (!made->is_numpy)
        made->thread = dlb_torch_thread_state(false);
}

static bool borrow_any(const lender *from, PyObject *x, DLTensor *dl,
                       int64_t strides[DLB_MAX_NDIM]) {
    uint64_t flags;
    if (from->is_numpy)
        return dlb_borrow_numpy(x, dl, &flags, strides, MOST_DIMENSIONS) == 0 &&
               dlb_numpy_keeps_memory(x);
    return dlb_torch_is_ordinary(x, from->thread, false) &&
           dlb_torch_borrow(x, dl) == 0 && dl->device.device_type == kDLCPU &&
           dlb_torch_has_memory(x, dl);
}

/* Whether a small array has the shape and dtype of the plan. Its memory is packed
 * before code of Python runs that could free it: see is_still_there. */
static bool borrow(const dlb_tree_plan *plan, Py_ssize_t number, const lender *from,
                   PyObject *x, dlb_tree_leaf *leaf) {
    DLTensor dl;
    int64_t strides[DLB_MAX_NDIM];
    if (from->converter == NULL || !dlb_tree_packs(plan, number) ||
        !borrow_any(from, x, &dl, strides) || !dlb_tree_has(plan, number, &dl) ||
        !dlb_is_row_major(&dl))
        return false;
    *leaf = (dlb_tree_leaf){NULL, (char *)dl.data + dl.byte_offset};
    return is_aligned(leaf->data, dl.dtype);
}

/* 1: taken; the caller drops them. 0: declined. -1 with an exception. */
static int take_tensors(const quick *self, const dlb_peers *over,
                        const dlb_tree_plan *plan, PyObject *tree, bool is_out,
                        tensors *made) {
    size_t count = (size_t)dlb_tree_count(plan);
    *made = (tensors){.values = dlb_tree_find(plan, tree)};
    if (made->values == NULL)
        return 0;
    made->converters = PyMem_Malloc((count + 1) * sizeof *made->converters);
    made->leaves = PyMem_Malloc((count + 1) * sizeof *made->leaves);
    int taken = made->converters != NULL && made->leaves != NULL;
    lender lends = {0};
    for (; taken > 0 && (size_t)made->count < count; made->count++) {
        PyObject *x = made->values[made->count];
        source from;
        if (!is_out && Py_TYPE(x) != lends.type)
            find_lender(&lends, self, x);
        if (borrow(plan, made->count, &lends, x, &made->leaves[made->count])) {
            made->converters[made->count] = Py_NewRef(lends.converter);
            continue;
        }
        taken = is_out ? dlb_source_take_out(self, x, &from)
                       : dlb_source_take(self, x, INT_MAX, &from);
        if (taken <= 0)
            break;
        if (!fits(plan, over, made->count, &from, is_out)) {
            dlb_source_drop(&from);
            taken = 0;
            break;
        }
        made->converters[made->count] = Py_NewRef(from.converter);
        made->leaves[made->count] =
            (dlb_tree_leaf){from.view.buffer, (char *)dlb_source_data(&from)};
        made->taken++;
        Py_DECREF(from.known);
    }
    Py_XDECREF(lends.converter);
    if (taken <= 0)
        drop_tensors(plan, made);
    return taken;
}

/* Whether what was borrowed is where it was: to take another tensor may have run code
 * that moved it. */
static bool is_still_there(const quick *self, const dlb_tree_plan *plan,
                           const tensors *from) {
    lender lends = {0};
    bool found = true;
    for (Py_ssize_t i = 0; found && i < from->count; i++) {
        dlb_tree_leaf now;
        if (from->leaves[i].buffer != NULL)
            continue;
        if (Py_TYPE(from->values[i]) != lends.type)
            find_lender(&lends, self, from->values[i]);
        found = borrow(plan, i, &lends, from->values[i], &now) &&
                now.data == from->leaves[i].data;
    }
    Py_XDECREF(lends.converter);
    return found;
}

/* Make a ballot of tensors that were taken from x, and from `to`, or NULL. It takes
 * what its result is made of. */
static dlb_tree_ballot *make_ballot(dlb_peers *over, dlb_tree_plan *plan, tensors *from,
                                    const tensors *to, PyObject *x, PyObject *out) {
    bool gives = dlb_tree_gives(plan, over);
    dlb_tree_ballot *made = dlb_tree_ballot_new(
        over, plan, from->leaves, to == NULL ? NULL : to->leaves, gives || to != NULL);
    if (made == NULL)
        return NULL;
    PyObject *instead = to != NULL                                 ? out
                        : gives                                    ? NULL
                        : dlb_tree_kind_of(plan) == DLB_TREE_BCAST ? x
                                                                   : Py_None;
    dlb_tree_ballot_keep(made, from->values, from->converters, instead);
    from->values = from->converters = NULL;
    return made;
}

/* NULL without an exception: the tree does not match the plan. */
static dlb_tree_ballot *begin_by(const caller *by, dlb_peers *over, dlb_tree_plan *plan,
                                 PyObject *x, PyObject *out) {
    tensors from, to;
    bool is_gathered = dlb_tree_kind_of(plan) == DLB_TREE_GATHERED;
    bool has_out = out != Py_None && (!is_gathered || dlb_tree_gives(plan, over));
    bool is_in_place = has_out && out == x && !is_gathered;
    if (!dlb_tree_fits(plan, over) ||
        take_tensors(by->self, over, plan, x, is_in_place, &from) <= 0)
        return NULL;
    dlb_tree_ballot *made = NULL;
    if (!has_out || is_in_place) {
        if (from.taken == 0 || is_still_there(by->self, plan, &from))
            made = make_ballot(over, plan, &from, has_out ? &from : NULL, x, out);
    } else if (take_tensors(by->self, over, plan, out, true, &to) > 0) {
        if (is_still_there(by->self, plan, &from))
            made = make_ballot(over, plan, &from, &to, x, out);
        drop_tensors(plan, &to);
    }
    drop_tensors(plan, &from);
    return made;
}

/* The ballot of a call, from which nothing is sent yet. NULL: declined, perhaps with an
 * exception; Python reports to all ranks that memory is short. */
static dlb_tree_ballot *begin(const caller *by, dlb_peers *over, PyObject *key,
                              PyObject *x, PyObject *out) {
    PyObject *plans = dlb_find_call(by->self, key);
    dlb_tree_ballot *made = NULL;
    Py_XDECREF(key);
    bool is_list = plans != NULL && PyTuple_CheckExact(plans);
    for (Py_ssize_t i = 0; is_list && i < PyTuple_GET_SIZE(plans); i++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, i);
        if (Py_TYPE(plan) != &dlb_TreePlanType)
            continue;
        made = begin_by(by, over, (dlb_tree_plan *)plan, x, out);
        if (made != NULL || PyErr_Occurred())
            break;
    }
    Py_XDECREF(plans);
    if (made == NULL && PyErr_Occurred() && PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return made;
}

static int advance_tree(void *ballot) {
    return dlb_tree_ballot_advance(ballot);
}

PyObject *dlb_call_tree(const caller *by, dlb_peers *over, PyObject *key, PyObject *x,
                        PyObject *out) {
    dlb_tree_ballot *ballot = begin(by, over, key, x, out);
    if (ballot == NULL)
        return dlb_decline();
    int done =
        dlb_wait_shortly(advance_tree, ballot, over, dlb_tree_ballot_nbytes(ballot));
    PyObject *result = NULL;
    if (done == 0 || (done > 0 && !dlb_tree_ballot_agreed(ballot)))
        result = dlb_resume(by, "tree", ballot, &x, 0);
    else if (done > 0)
        result = dlb_tree_ballot_result(ballot);
    Py_DECREF(ballot);
    return result;
}

PyObject *dlb_begin_tree(const caller *by, dlb_peers *over, const char *name,
                         PyObject *key, PyObject *x, PyObject *out) {
    dlb_tree_ballot *ballot = NULL;
    if (over->is_direct)
        ballot = begin(by, over, key, x, out);
    else
        Py_XDECREF(key);
    if (ballot == NULL)
        return dlb_decline();
    PyObject *made = dlb_begin_ballot(by, name, ballot);
    Py_DECREF(ballot);
    return made;
}

bool dlb_may_be_tree(PyObject *x) {
    return PyDict_CheckExact(x) || PyODict_CheckExact(x) || PyList_CheckExact(x) ||
           PyTuple_CheckExact(x);
}

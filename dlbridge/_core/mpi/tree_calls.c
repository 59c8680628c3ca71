/* allreduce, bcast and gather of trees like one that Python has seen before. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

#include <limits.h>

/* The tensors that were taken from a tree. */
typedef struct {
    PyObject **values;     /* from dlb_tree_find */
    PyObject **known;      /* for each tensor, as in a `source`; references */
    dlb_tree_leaf *leaves; /* with a reference to each buffer */
    Py_ssize_t count;      /* of the tensors taken so far */
} tensors;

static void drop_tensors(const dlb_tree_plan *plan, const tensors *from) {
    for (Py_ssize_t i = 0; i < from->count; i++) {
        Py_DECREF(from->known[i]);
        dlb_buffer_drop(from->leaves[i].buffer);
    }
    PyMem_Free(from->known);
    PyMem_Free(from->leaves);
    dlb_tree_drop(plan, from->values);
}

/* Whether a tensor of the tree, or of `out`, has the shape and dtype of the plan. */
static bool fits(const dlb_tree_plan *plan, const dlb_peers *over, Py_ssize_t number,
                 const source *taken, bool is_out) {
    const DLTensor *dl = &taken->view.dl;
    bool has = is_out ? dlb_tree_has_result(plan, number, over, dl)
                      : dlb_tree_has(plan, number, dl);
    return has && (uintptr_t)dlb_source_data(taken) % (dl->dtype.bits / 8) == 0;
}

/* 1: taken; the caller drops them. 0: declined. -1 with an exception. */
static int take_tensors(const quick *self, const dlb_peers *over,
                        const dlb_tree_plan *plan, PyObject *tree, bool is_out,
                        tensors *made) {
    size_t count = (size_t)dlb_tree_count(plan);
    *made = (tensors){.values = dlb_tree_find(plan, tree)};
    if (made->values == NULL)
        return 0;
    made->known = PyMem_Malloc((count + 1) * sizeof *made->known);
    made->leaves = PyMem_Malloc((count + 1) * sizeof *made->leaves);
    int taken = made->known != NULL && made->leaves != NULL;
    for (; taken > 0 && (size_t)made->count < count; made->count++) {
        PyObject *x = made->values[made->count];
        source from;
        taken = is_out ? dlb_source_take_out(self, x, &from)
                       : dlb_source_take(self, x, INT_MAX, &from);
        if (taken <= 0)
            break;
        if (!fits(plan, over, made->count, &from, is_out)) {
            dlb_source_drop(&from);
            taken = 0;
            break;
        }
        made->known[made->count] = from.known;
        made->leaves[made->count] =
            (dlb_tree_leaf){from.view.buffer, (char *)dlb_source_data(&from)};
    }
    if (taken <= 0)
        drop_tensors(plan, made);
    return taken;
}

/* Make the tree of results. */
static PyObject *make_tree(const dlb_tree_plan *plan, const dlb_tree_ballot *ballot,
                           const tensors *from) {
    PyObject **made = PyMem_Malloc((size_t)(from->count + 1) * sizeof *made);
    PyObject *result = NULL;
    Py_ssize_t count = 0;
    if (made == NULL)
        return PyErr_NoMemory();
    for (; count < from->count; count++) {
        dlb_view view;
        int64_t space[DLB_MAX_NDIM];
        dlb_tree_ballot_view(ballot, count, space, &view);
        made[count] = dlb_give(PyTuple_GET_ITEM(from->known[count], 0), &view);
        if (made[count] == NULL)
            break;
    }
    if (count == from->count)
        result = dlb_tree_build(plan, made, from->values);
    while (count-- > 0)
        Py_DECREF(made[count]);
    PyMem_Free(made);
    return result;
}

static int advance_tree(void *ballot) {
    return dlb_tree_ballot_advance(ballot);
}

/* Make a call with tensors that were taken from x, and from `out` (`to`, or NULL). */
static PyObject *make_call(const caller *by, dlb_peers *over, dlb_tree_plan *plan,
                           const tensors *from, const tensors *to, PyObject *x,
                           PyObject *out) {
    bool gives = dlb_tree_gives(plan, over);
    dlb_tree_ballot *ballot = dlb_tree_ballot_new(
        over, plan, from->leaves, to == NULL ? NULL : to->leaves, gives || to != NULL);
    if (ballot == NULL) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear(); /* Python reports it to all ranks */
        return dlb_decline();
    }
    int done = dlb_wait_shortly(advance_tree, ballot, over, dlb_tree_nbytes(plan));
    PyObject *result = NULL;
    if (done == 0 || (done > 0 && !dlb_tree_ballot_agreed(ballot))) {
        PyObject *none = dlb_resume(by, "tree", ballot, &x, 0);
        done = none == NULL ? -1 : 1;
        Py_XDECREF(none);
    }
    if (done > 0 && to != NULL) {
        dlb_tree_ballot_copy_out(ballot);
        result = Py_NewRef(out);
    } else if (done > 0 && gives)
        result = make_tree(plan, ballot, from);
    else if (done > 0)
        result = Py_NewRef(dlb_tree_kind_of(plan) == DLB_TREE_BCAST ? x : Py_None);
    Py_DECREF(ballot);
    return result;
}

/* NULL without an exception: the tree does not match the plan. */
static PyObject *call_by(const caller *by, dlb_peers *over, dlb_tree_plan *plan,
                         PyObject *x, PyObject *out) {
    tensors from, to;
    bool is_gathered = dlb_tree_kind_of(plan) == DLB_TREE_GATHERED;
    bool has_out = out != Py_None && (!is_gathered || dlb_tree_gives(plan, over));
    bool is_in_place = has_out && out == x && !is_gathered;
    if (!dlb_tree_fits(plan, over) ||
        take_tensors(by->self, over, plan, x, is_in_place, &from) <= 0)
        return NULL;
    PyObject *result = NULL;
    if (!has_out || is_in_place)
        result = make_call(by, over, plan, &from, has_out ? &from : NULL, x, out);
    else if (take_tensors(by->self, over, plan, out, true, &to) > 0) {
        result = make_call(by, over, plan, &from, &to, x, out);
        drop_tensors(plan, &to);
    }
    drop_tensors(plan, &from);
    return result;
}

PyObject *dlb_call_tree(const caller *by, dlb_peers *over, PyObject *key, PyObject *x,
                        PyObject *out) {
    PyObject *plans = dlb_find_call(by->self, key), *result = NULL;
    Py_XDECREF(key);
    bool is_list = plans != NULL && PyTuple_CheckExact(plans);
    for (Py_ssize_t i = 0; is_list && i < PyTuple_GET_SIZE(plans); i++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, i);
        if (Py_TYPE(plan) != &dlb_TreePlanType)
            continue;
        result = call_by(by, over, (dlb_tree_plan *)plan, x, out);
        if (result != NULL || PyErr_Occurred())
            break;
    }
    Py_XDECREF(plans);
    return result != NULL ? result : dlb_decline();
}

bool dlb_may_be_tree(PyObject *x) {
    return PyDict_CheckExact(x) || PyODict_CheckExact(x) || PyList_CheckExact(x) ||
           PyTuple_CheckExact(x);
}

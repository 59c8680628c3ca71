/* allreduce, of trees as well, reduce, and reduce_scatter. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

#include <limits.h>
#include <string.h>

static int settled_reduction(call *self) {
    char *all = self->memory != NULL ? self->data : dlb_ballot_payload(self->ballot);
    if (self->gets == ROW)
        all += self->nbytes * (size_t)dlb_ballot_over(self->ballot)->rank;
    dlb_divide_result(self, all);
    return self->memory != NULL ? dlb_finish_call(self) : dlb_finish_with(self, all);
}

/* Have values that are too large for the ballot follow it; -1: failed to allocate. */
static int add_values(call *self, const dlb_combine *loop, const source *from) {
    PyObject *target = dlb_make_target(self, from);
    int failed = -1;
    if (target != NULL)
        failed = dlb_ballot_add_values(self->ballot, loop, from->view.buffer,
                                       dlb_source_data(from), self->memory, self->data,
                                       from->nbytes);
    if (failed == 0)
        dlb_ballot_set_result(self->ballot, target);
    Py_XDECREF(target);
    return failed;
}

/* Have the values of a call follow its ballot, or the rows of a reduce_scatter. */
static int add_what_follows(call *self, dlb_peers *over, const dlb_combine *loop,
                            const source *from) {
    if (self->gets != ROW)
        return add_values(self, loop, from);
    self->settled = dlb_settled_copy;
    return dlb_add_copies(self, over, DLB_REDUCE_SCATTER, from, true, self->nbytes,
                          loop);
}

/* Whether values, or rows, follow the ballot; others are its payload. */
static bool do_follow(const call *self, const dlb_peers *over, size_t nbytes) {
    return self->gets == ROW ? nbytes > DLB_ROWS_MOST && over->is_direct
                             : dlb_moves_values(over, nbytes);
}

static int begin_with(call *self, const quick *of, dlb_peers *over, PyObject *how,
                      const source *from, PyObject *out) {
    const DLTensor *dl = &from->view.dl;
    const dlb_combine *loop = dlb_reduction_loop(how, dl->dtype);
    int less = self->gets == ROW;
    bool follows = do_follow(self, over, from->nbytes);
    size_t most = less ? DLB_ROWS_MOST : DLB_BALLOT_MOST;
    if (loop == NULL || (!follows && from->nbytes > most) ||
        (follows && (uintptr_t)dlb_source_data(from) % (dl->dtype.bits / 8)) ||
        (less && dlb_row_bytes(over, from) == 0))
        return 0;
    dlb_describe_result(self, dl->dtype, dl->ndim - less, dl->shape + less);
    int opened = dlb_open_result(self, of, out);
    if (opened <= 0)
        return opened;
    if (self->gets == NOTHING)
        self->instead = Py_None;
    if (dlb_quotients(how, dl->dtype, over->size, &self->quotients) < 0)
        return -1;
    self->converter = Py_NewRef(from->converter);
    self->settled = settled_reduction;
    self->awaited = from->nbytes;
    uint8_t tensor[16];
    dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    self->ballot = dlb_ballot_new(over, dlb_reduction_call(how), tensor,
                                  follows ? 0 : from->nbytes, follows ? NULL : loop);
    if (self->ballot == NULL)
        return -1;
    if (follows)
        return add_what_follows(self, over, loop, from) < 0 ? -1 : 1;
    memcpy(dlb_ballot_payload(self->ballot), dlb_source_data(from), from->nbytes);
    return less && dlb_ballot_scatter(self->ballot) < 0 ? -1 : 1;
}

/* `key`, a reference or NULL: by which the reduction is known. */
static int begin_reduction(call *self, const quick *of, dlb_peers *over, PyObject *key,
                           size_t most, share gets, PyObject *x, PyObject *out) {
    PyObject *how = dlb_find_call(of, key);
    source from;
    int taken = 0;
    Py_XDECREF(key);
    self->gets = gets;
    if (how != NULL && Py_TYPE(how) == &dlb_ReductionType)
        taken = dlb_source_take(of, x, most, &from);
    if (taken > 0) {
        taken = begin_with(self, of, over, how, &from, out);
        dlb_source_drop(&from);
    }
    Py_XDECREF(how);
    return PyErr_Occurred() ? -1 : taken;
}

int dlb_begin_allreduce(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args) { /* x, op, out */
    PyObject *key = PyUnicode_CheckExact(args[1]) ? Py_NewRef(args[1]) : NULL;
    dlb_call_keep(self, args, 3);
    return begin_reduction(self, of, over, key, INT_MAX, WHOLE, args[0], args[2]);
}

int dlb_begin_reduce(call *self, const quick *of, dlb_peers *over,
                     PyObject *const *args) { /* x, op, root */
    int root = dlb_read_root(over, args[2]);
    if (!PyUnicode_CheckExact(args[1]) || root < 0)
        return 0;
    dlb_call_keep(self, args, 3);
    share gets = root == over->rank ? WHOLE : NOTHING;
    return begin_reduction(self, of, over, PyTuple_Pack(2, args[1], args[2]),
                           DLB_REDUCED_MOST, gets, args[0], Py_None);
}

int dlb_begin_reduce_scatter(call *self, const quick *of, dlb_peers *over,
                             PyObject *const *args) { /* x, op, out, key */
    if (!PyUnicode_CheckExact(args[1]))
        return 0;
    dlb_call_keep(self, args, 3);
    return begin_reduction(self, of, over, PyTuple_Pack(2, args[1], args[3]), INT_MAX,
                           ROW, args[0], args[2]);
}

/* ---- allreduce of trees ---- */

/* The tensors of a tree, taken. */
typedef struct {
    PyObject **values;     /* of dlb_tree_find */
    PyObject **known;      /* of each tensor, as in a `source`; a reference */
    dlb_tree_leaf *leaves; /* with a reference to each buffer */
    Py_ssize_t count;      /* of those that are taken */
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

/* 1: taken, and the caller drops them; 0: declined; -1. */
static int take_tensors(const quick *self, const dlb_tree_plan *plan, PyObject *tree,
                        bool is_out, tensors *made) {
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
        char *data = (char *)dlb_source_data(&from);
        if (!dlb_tree_has(plan, made->count, &from.view.dl) ||
            (uintptr_t)data % (from.view.dl.dtype.bits / 8)) {
            dlb_source_drop(&from);
            taken = 0;
            break;
        }
        made->known[made->count] = from.known;
        made->leaves[made->count] = (dlb_tree_leaf){from.view.buffer, data};
    }
    if (taken <= 0)
        drop_tensors(plan, made);
    return taken;
}

/* A tree of the results. */
static PyObject *make_tree(const dlb_tree_plan *plan, const dlb_tree_ballot *ballot,
                           const tensors *from) {
    PyObject **made = PyMem_Malloc((size_t)(from->count + 1) * sizeof *made);
    PyObject *result = NULL;
    Py_ssize_t count = 0;
    if (made == NULL)
        return PyErr_NoMemory();
    for (; count < from->count; count++) {
        dlb_view view;
        dlb_tree_ballot_view(ballot, count, &view);
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

static PyObject *reduce_tensors(const caller *by, dlb_peers *over, dlb_tree_plan *plan,
                                const tensors *from, const tensors *to,
                                PyObject *const *args) {
    dlb_tree_ballot *ballot =
        dlb_tree_ballot_new(over, plan, from->leaves, to == NULL ? NULL : to->leaves);
    if (ballot == NULL) {
        if (PyErr_ExceptionMatches(PyExc_MemoryError))
            PyErr_Clear(); /* Python reports it to all ranks */
        return dlb_decline();
    }
    int done = dlb_wait_shortly(advance_tree, ballot, over, dlb_tree_nbytes(plan));
    PyObject *result = NULL;
    if (done == 0 || (done > 0 && !dlb_tree_ballot_agreed(ballot))) {
        PyObject *none = dlb_resume(by, "allreduce of a tree", ballot, args, 0);
        done = none == NULL ? -1 : 1;
        Py_XDECREF(none);
    }
    if (done > 0 && to != NULL) {
        dlb_tree_ballot_copy_out(ballot);
        result = Py_NewRef(args[2]);
    } else if (done > 0)
        result = make_tree(plan, ballot, from);
    Py_DECREF(ballot);
    return result;
}

/* args: x, op, out. NULL, without an exception: the tree is not one of the plan. */
static PyObject *reduce_tree_by(const caller *by, dlb_peers *over, dlb_tree_plan *plan,
                                PyObject *const *args) {
    tensors from, to;
    bool has_out = args[2] != Py_None;
    if (!dlb_tree_fits(plan, over) ||
        take_tensors(by->self, plan, args[0], false, &from) <= 0)
        return NULL;
    PyObject *result = NULL;
    if (!has_out || take_tensors(by->self, plan, args[2], true, &to) > 0) {
        result = reduce_tensors(by, over, plan, &from, has_out ? &to : NULL, args);
        if (has_out)
            drop_tensors(plan, &to);
    }
    drop_tensors(plan, &from);
    return result;
}

PyObject *dlb_reduce_tree(const caller *by, dlb_peers *over, PyObject *const *args) {
    PyObject *key = Py_BuildValue("(Os)", args[1], "tree");
    PyObject *plans = dlb_find_call(by->self, key), *result = NULL;
    Py_XDECREF(key);
    bool is_list = plans != NULL && PyTuple_CheckExact(plans);
    for (Py_ssize_t i = 0; is_list && i < PyTuple_GET_SIZE(plans); i++) {
        PyObject *plan = PyTuple_GET_ITEM(plans, i);
        if (Py_TYPE(plan) != &dlb_TreePlanType)
            continue;
        result = reduce_tree_by(by, over, (dlb_tree_plan *)plan, args);
        if (result != NULL || PyErr_Occurred())
            break;
    }
    Py_XDECREF(plans);
    return result != NULL ? result : dlb_decline();
}

bool dlb_may_be_tree(PyObject *x) {
    return PyDict_CheckExact(x) || PyList_CheckExact(x) || PyTuple_CheckExact(x);
}

/* allreduce, reduce, and reduce_scatter. */
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
    size_t part = from->nbytes / (size_t)over->size;
    return less && dlb_ballot_set_rows(self->ballot, part, false) < 0 ? -1 : 1;
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
                     PyObject *const *args) { /* x, op, root, out */
    int root = dlb_read_root(over, args[2]);
    if (!PyUnicode_CheckExact(args[1]) || root < 0)
        return 0;
    dlb_call_keep(self, args, 4);
    bool is_root = root == over->rank;
    return begin_reduction(self, of, over, PyTuple_Pack(2, args[1], args[2]),
                           DLB_REDUCED_MOST, is_root ? WHOLE : NOTHING, args[0],
                           is_root ? args[3] : Py_None);
}

int dlb_begin_reduce_scatter(call *self, const quick *of, dlb_peers *over,
                             PyObject *const *args) { /* x, op, out, key */
    if (!PyUnicode_CheckExact(args[1]))
        return 0;
    dlb_call_keep(self, args, 3);
    return begin_reduction(self, of, over, PyTuple_Pack(2, args[1], args[3]), INT_MAX,
                           ROW, args[0], args[2]);
}

/* bcast and scatter, of which the root says what comes, and how that is said, also by a
 * send: Kind.pack in values.py. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "mpi/calls.h"

#include <limits.h>
#include <string.h>

char *dlb_write_kind(char *at, const DLTensor *dl) {
    description made = {dl->dtype.code, dl->dtype.bits, dl->dtype.lanes,
                        (uint32_t)dl->ndim};
    memcpy(at, &made, sizeof made);
    at += sizeof made;
    size_t size = 8 * (size_t)dl->ndim;
    if (size > 0)
        memcpy(at, dl->shape, size);
    return at + size;
}

bool dlb_read_kind(const char *data, size_t size, announced *out) {
    description said;
    if (size < sizeof said)
        return false;
    memcpy(&said, data, sizeof said);
    if (said.ndim >= MOST_DIMENSIONS || size < sizeof said + 8 * (size_t)said.ndim)
        return false;
    out->dtype = (DLDataType){said.code, said.bits, said.lanes};
    out->ndim = (int32_t)said.ndim;
    if (said.ndim > 0)
        memcpy(out->shape, data + sizeof said, 8 * (size_t)said.ndim);
    char some[1]; /* memory, for the check */
    DLTensor dl = {.data = some,
                   .device = {kDLCPU, 0},
                   .ndim = out->ndim,
                   .dtype = out->dtype,
                   .shape = out->shape};
    if (said.bits % 8 != 0 || dlb_layout_check(&dl, 0) != NULL)
        return false;
    size_t head = sizeof said + 8 * (size_t)said.ndim;
    out->contents = data + head;
    out->come = size - head;
    out->nbytes = (size_t)dlb_packed_bytes(out->dtype, 0, dlb_element_count(&dl));
    return out->nbytes > 0;
}

/* ---- bcast and scatter: the root says what comes ---- */

static const dlb_combine ROOT = {.takes = true}; /* its payload is taken */

/* In a scatter to one other rank, the root sends that rank's row alone. */
static bool sends_row(const dlb_peers *over, dlb_copy_kind kind) {
    return kind == DLB_SCATTER && over->size == 2;
}

/* Bytes of a tensor that travel with the ballot; 0: it follows. */
static size_t small_bytes(const dlb_peers *over, dlb_copy_kind kind, size_t nbytes) {
    size_t small = sends_row(over, kind) ? nbytes / 2 : nbytes;
    return small <= DLB_COPIED_MOST ? small : 0;
}

/* The ballot of the root, with a tensor that is small; NULL, perhaps with an
 * exception. */
static dlb_ballot *announce(dlb_peers *over, const uint8_t *call, const source *from,
                            dlb_copy_kind kind) {
    const DLTensor *dl = &from->view.dl;
    size_t small = small_bytes(over, kind, from->nbytes);
    size_t start = sends_row(over, kind) ? small * (size_t)(1 - over->rank) : 0;
    uint8_t tensor[16];
    dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    dlb_ballot *ballot =
        dlb_ballot_new(over, call, tensor, dlb_kind_size(dl) + small, &ROOT);
    if (ballot != NULL)
        memcpy(dlb_write_kind(dlb_ballot_payload(ballot), dl),
               (char *)dlb_source_data(from) + start, small);
    return ballot;
}

/* What the root says: false, where Python goes on. Contents come with it, or follow. */
static bool read_announced(const call *self, dlb_copy_kind kind, announced *said) {
    dlb_ballot *ballot = self->ballot;
    return dlb_read_kind(dlb_ballot_payload(ballot), dlb_ballot_size(ballot), said) &&
           dlb_ballot_is_of(ballot, said->dtype, said->ndim, said->shape) &&
           said->nbytes <= INT_MAX &&
           said->come == small_bytes(dlb_ballot_over(ballot), kind, said->nbytes);
}

/* Receive what is too large for the ballot. */
static int receive_copies(call *self, dlb_copy_kind kind) {
    dlb_peers *over = dlb_ballot_over(self->ballot);
    if (self->copies == NULL &&
        (!over->is_direct ||
         dlb_add_copies(self, over, kind, NULL, true, self->nbytes, NULL) < 0)) {
        PyErr_Clear();
        Py_CLEAR(self->copies);
        return ODD; /* Python says why, or has MPI send it */
    }
    return dlb_begin_copying(self, self->nbytes);
}

static int settled_bcast(call *self) {
    announced said;
    if (self->root == dlb_ballot_over(self->ballot)->rank) {
        if (self->copies != NULL)
            return dlb_begin_copying(self, self->nbytes);
        return self->nbytes > DLB_COPIED_MOST ? ODD : dlb_finish_call(self);
    }
    if (!read_announced(self, DLB_BCAST, &said))
        return ODD;
    dlb_describe_result(self, said.dtype, said.ndim, said.shape);
    return said.come > 0 ? dlb_finish_with(self, said.contents)
                         : receive_copies(self, DLB_BCAST);
}

/* The root's part of a bcast or a scatter, or that of another rank; `tensor` is the
 * digest of what that expects, or NULL. */
static int say_what_comes(call *self, dlb_peers *over, const uint8_t digest[16],
                          const uint8_t *tensor, const source *from,
                          dlb_copy_kind kind) {
    bool is_root = self->root == over->rank;
    self->ballot = is_root ? announce(over, digest, from, kind)
                           : dlb_ballot_new(over, digest, tensor, 0, &ROOT);
    if (self->ballot == NULL)
        return -1;
    if (is_root && small_bytes(over, kind, from->nbytes) == 0 && over->is_direct) {
        bool has_rows = kind == DLB_SCATTER;
        size_t part = has_rows ? dlb_row_bytes(over, from) : from->nbytes;
        return dlb_add_copies(self, over, kind, from, has_rows, part, NULL) < 0 ? -1
                                                                                : 1;
    }
    return 1;
}

/* What this rank knows of the result: that of `from`, if it is not NULL, or of `out`,
 * which gets it. 1; 0: declined; -1. */
static int open_whole(call *self, const quick *of, const source *from, PyObject *out) {
    destination to;
    const DLTensor *dl;
    if (from != NULL)
        dl = &from->view.dl;
    else {
        int taken = dlb_source_take_out(of, out, &to.into);
        if (taken <= 0)
            return taken;
        dl = &to.into.view.dl;
    }
    dlb_describe_result(self, dl->dtype, dl->ndim, dl->shape);
    if (from == NULL)
        dlb_source_drop(&to.into);
    return dlb_open_result(self, of, out);
}

/* On the root the result is what it sends. */
static void keep_own(call *self, const source *from, PyObject *x) {
    if (self->instead == NULL)
        self->instead = x;
    self->memory = dlb_buffer_retain(from->view.buffer);
    self->data = (char *)dlb_source_data(from);
}

int dlb_begin_bcast(call *self, const quick *of, dlb_peers *over,
                    PyObject *const *args) { /* x, root, to, out */
    uint8_t digest[16], tensor[16];
    source from;
    self->root = dlb_read_root(over, args[1]);
    if (self->root < 0 || !dlb_find_digest(of, args[1], digest) || !dlb_may_copy(over))
        return 0;
    bool is_root = self->root == over->rank, has_source = args[0] != Py_None;
    bool is_known = has_source || args[3] != Py_None;
    int begun = has_source ? dlb_source_take(of, args[0], INT_MAX, &from) : !is_root;
    if (begun <= 0)
        return begun;
    dlb_call_keep(self, args, 4);
    self->converter =
        has_source ? Py_NewRef(from.converter) : dlb_find_converter(args[2]);
    self->settled = settled_bcast;
    if (is_known) {
        begun = open_whole(self, of, has_source ? &from : NULL, args[3]);
        dlb_kind_digest(self->dtype, self->ndim, self->shape, tensor);
    }
    if (is_root)
        keep_own(self, &from, args[0]);
    if (begun > 0)
        begun = self->converter == NULL
                    ? 0
                    : say_what_comes(self, over, digest, is_known ? tensor : NULL,
                                     &from, DLB_BCAST);
    if (has_source)
        dlb_source_drop(&from);
    return begun;
}

static int settled_scatter(call *self) {
    const dlb_peers *over = dlb_ballot_over(self->ballot);
    announced said;
    if (!read_announced(self, DLB_SCATTER, &said) || said.ndim < 1 ||
        said.shape[0] != over->size)
        return ODD;
    dlb_describe_result(self, said.dtype, said.ndim - 1, said.shape + 1);
    if (said.come == 0)
        return receive_copies(self, DLB_SCATTER);
    if (!sends_row(over, DLB_SCATTER))
        return dlb_finish_with(self, said.contents + self->nbytes * (size_t)over->rank);
    return dlb_finish_with(self, self->root == over->rank ? self->data : said.contents);
}

/* Where the row of this rank goes. Returns how many dimensions of the whole it knows,
 * which are in `shape`; 0: none. `*opened` is 0 if the call is declined, -1 with an
 * exception. */
static int32_t open_row(call *self, const quick *of, const dlb_peers *over,
                        const source *from, PyObject *out, int64_t *shape,
                        int *opened) {
    destination to;
    const DLTensor *dl;
    *opened = 1;
    if (from != NULL) {
        dl = &from->view.dl;
        if (dlb_row_bytes(over, from) == 0) {
            *opened = 0;
            return 0;
        }
        dlb_describe_result(self, dl->dtype, dl->ndim - 1, dl->shape + 1);
        *opened = dlb_open_result(self, of, out);
    } else if (out != Py_None) {
        if ((*opened = dlb_source_take_out(of, out, &to.into)) <= 0)
            return 0;
        dl = &to.into.view.dl;
        dlb_describe_result(self, dl->dtype, dl->ndim, dl->shape);
        dlb_source_drop(&to.into);
        *opened = dlb_open_result(self, of, out);
    } else
        return 0;
    shape[0] = over->size;
    if (self->ndim > 0)
        memcpy(shape + 1, self->shape, (size_t)self->ndim * sizeof *shape);
    return self->ndim + 1;
}

int dlb_begin_scatter(call *self, const quick *of, dlb_peers *over,
                      PyObject *const *args) { /* x, root, to, out, key */
    uint8_t digest[16], tensor[16];
    source from;
    self->root = dlb_find_root(of, over, args[4], args[1], digest);
    if (self->root < 0 || !dlb_may_copy(over))
        return 0;
    bool is_root = self->root == over->rank, has_source = args[0] != Py_None;
    int begun = has_source ? dlb_source_take(of, args[0], INT_MAX, &from) : !is_root;
    if (begun <= 0)
        return begun;
    dlb_call_keep(self, args, 4);
    self->converter =
        has_source ? Py_NewRef(from.converter) : dlb_find_converter(args[2]);
    self->settled = settled_scatter;
    int64_t shape[MOST_DIMENSIONS + 1];
    int32_t ndim =
        open_row(self, of, over, has_source ? &from : NULL, args[3], shape, &begun);
    if (ndim > 0)
        dlb_kind_digest(self->dtype, ndim, shape, tensor);
    if (begun > 0 && is_root && sends_row(over, DLB_SCATTER) &&
        small_bytes(over, DLB_SCATTER, from.nbytes) > 0) {
        self->memory = dlb_buffer_retain(from.view.buffer);
        self->data =
            (char *)dlb_source_data(&from) + from.nbytes / 2 * (size_t)over->rank;
    }
    if (begun > 0)
        begun = self->converter == NULL
                    ? 0
                    : say_what_comes(self, over, digest, ndim > 0 ? tensor : NULL,
                                     &from, DLB_SCATTER);
    if (has_source)
        dlb_source_drop(&from);
    return begun;
}

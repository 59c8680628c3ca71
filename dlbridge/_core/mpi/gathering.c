/* allgather, alltoall, gather, and barrier. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

#include <limits.h>
#include <string.h>

/* In an alltoall of two ranks, each contributes only the row for the other rank, and
 * keeps its own row behind the gathered ones. More ranks gather whole tensors. */
static bool swaps_rows(const dlb_peers *over, dlb_copy_kind kind) {
    return kind == DLB_ALLTOALL && over->size == 2;
}

/* Bytes that each rank contributes. */
static size_t gathered_bytes(const dlb_peers *over, dlb_copy_kind kind, size_t nbytes) {
    return swaps_rows(over, kind) ? nbytes / 2 : nbytes;
}

/* The ballot in which the ranks gather small tensors. */
static dlb_ballot *gather(dlb_peers *over, dlb_copy_kind kind, const uint8_t call[16],
                          const uint8_t tensor[16], const source *from) {
    bool swaps = swaps_rows(over, kind);
    size_t part = gathered_bytes(over, kind, from->nbytes), rank = (size_t)over->rank;
    size_t size = part * ((size_t)over->size + swaps);
    dlb_ballot *ballot = dlb_ballot_new(over, call, tensor, size, NULL);
    if (ballot == NULL)
        return NULL;
    const char *data = dlb_source_data(from);
    char *rows = dlb_ballot_payload(ballot);
    memcpy(rows + part * rank, swaps ? data + part * (1 - rank) : data, part);
    if (swaps)
        memcpy(rows + 2 * part, data + part * rank, part);
    if (dlb_ballot_set_rows(ballot, part, true) < 0)
        Py_CLEAR(ballot);
    return ballot;
}

static int settled_gather(call *self) {
    return dlb_finish_with(self, dlb_ballot_payload(self->ballot));
}

/* Of an alltoall: one's own row of each rank's tensor. */
static int settled_rows(call *self) {
    const dlb_peers *over = dlb_ballot_over(self->ballot);
    char *all = dlb_ballot_payload(self->ballot), rows[DLB_GATHERED_MOST];
    size_t count = (size_t)over->size, rank = (size_t)over->rank;
    size_t part = self->nbytes / count;
    if (swaps_rows(over, DLB_ALLTOALL)) {
        memcpy(all + part * rank, all + 2 * part, part);
        return dlb_finish_with(self, all);
    }
    for (size_t i = 0; i < count; i++)
        memcpy(rows + part * i, all + self->nbytes * i + part * rank, part);
    return dlb_finish_with(self, rows);
}

/* Agree, and copy: what is small with the agreement, one exchange being faster than
 * many. */
static int begin_gathering(call *self, const quick *of, dlb_peers *over,
                           dlb_copy_kind kind, const uint8_t digest[16],
                           const source *from, PyObject *out) {
    const DLTensor *dl = &from->view.dl;
    bool by_rows = kind == DLB_ALLTOALL, gets_result = out != NULL;
    int64_t shape[MOST_DIMENSIONS];
    int32_t more = by_rows ? 0 : 1;
    shape[0] = over->size;
    if (dl->ndim > 0) /* else it may be NULL */
        memcpy(shape + more, dl->shape, (size_t)dl->ndim * sizeof *shape);
    if (by_rows && dlb_row_bytes(over, from) == 0)
        return 0;
    dlb_describe_result(self, dl->dtype, dl->ndim + more, shape);
    int opened = gets_result ? dlb_open_result(self, of, out) : 1;
    if (opened <= 0)
        return opened;
    if (!gets_result)
        self->instead = Py_None;
    self->converter = Py_NewRef(from->converter);
    size_t gathered = gathered_bytes(over, kind, from->nbytes) * (size_t)over->size;
    bool is_small =
        gathered <= (kind == DLB_GATHER ? DLB_ROWS_MOST : DLB_GATHERED_MOST);
    uint8_t tensor[16];
    dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    self->ballot = is_small ? gather(over, kind, digest, tensor, from)
                            : dlb_ballot_new(over, digest, tensor, 0, NULL);
    self->settled = !is_small ? dlb_settled_copy
                    : by_rows ? settled_rows
                              : settled_gather;
    if (self->ballot == NULL)
        return -1;
    size_t part = by_rows ? dlb_row_bytes(over, from) : from->nbytes;
    if (!is_small && over->is_direct &&
        dlb_add_copies(self, over, kind, from, gets_result, part, NULL) < 0)
        return -1;
    return 1;
}

static int begin_copy(call *self, const quick *of, dlb_peers *over, dlb_copy_kind kind,
                      PyObject *const *args) { /* x, out, key */
    uint8_t digest[16];
    source from;
    if (!dlb_find_digest(of, args[2], digest) || !dlb_may_copy(over))
        return 0;
    int begun = dlb_source_take(of, args[0], (size_t)(INT_MAX / over->size), &from);
    if (begun <= 0)
        return begun;
    dlb_call_keep(self, args, 2);
    begun = begin_gathering(self, of, over, kind, digest, &from, args[1]);
    dlb_source_drop(&from);
    return begun;
}

int dlb_begin_allgather(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args) {
    return begin_copy(self, of, over, DLB_ALLGATHER, args);
}

int dlb_begin_alltoall(call *self, const quick *of, dlb_peers *over,
                       PyObject *const *args) {
    return begin_copy(self, of, over, DLB_ALLTOALL, args);
}

int dlb_begin_gather(call *self, const quick *of, dlb_peers *over,
                     PyObject *const *args) { /* x, root, out, key */
    uint8_t digest[16];
    source from;
    self->root = dlb_find_root(of, over, args[3], args[1], digest);
    if (self->root < 0 || !dlb_may_copy(over))
        return 0;
    int begun = dlb_source_take(of, args[0], (size_t)(INT_MAX / over->size), &from);
    if (begun <= 0)
        return begun;
    dlb_call_keep(self, args, 3);
    begun = begin_gathering(self, of, over, DLB_GATHER, digest, &from,
                            self->root == over->rank ? args[2] : NULL);
    dlb_source_drop(&from);
    return begun;
}

/* ---- barrier ---- */

static int settled_barrier(call *self) {
    self->result = Py_NewRef(Py_None);
    return 1;
}

int dlb_begin_barrier(call *self, const quick *of, dlb_peers *over,
                      PyObject *const *args) { /* key */
    uint8_t digest[16];
    if (!dlb_find_digest(of, args[0], digest))
        return 0;
    self->settled = settled_barrier;
    self->ballot = dlb_ballot_new(over, digest, NULL, 0, NULL);
    return self->ballot == NULL ? -1 : 1;
}

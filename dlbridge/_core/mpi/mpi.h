/* Messages between processes: MPI's functions, what the ranks of a collective agree on,
 * and the calls of dlbridge.mpi that C makes.
 *
 * MPI's functions are those of the library that mpi4py has loaded, and its handles are
 * mpi4py's, so that no file knows an MPI header and one binary serves MPICH and
 * OpenMPI. */
#ifndef DLBRIDGE_CORE_MPI_MPI_H_
#define DLBRIDGE_CORE_MPI_MPI_H_

#include "memory/buffer.h"
#include "python/python.h"
#include "tensor/tensor.h"

/* What handles look like: an int in MPICH, a pointer in OpenMPI. Passed in a register,
 * the upper half of which MPICH does not look at. */
typedef void *dlb_mpi_handle;

typedef struct {
    int (*isend)(const void *, int, dlb_mpi_handle, int, int, dlb_mpi_handle,
                 dlb_mpi_handle *);
    int (*irecv)(void *, int, dlb_mpi_handle, int, int, dlb_mpi_handle,
                 dlb_mpi_handle *);
    int (*probe)(int, int, dlb_mpi_handle, int *, dlb_mpi_handle *, void *);
    int (*mrecv)(void *, int, dlb_mpi_handle, dlb_mpi_handle *, void *);
    int (*test)(dlb_mpi_handle *, int *, void *);
    int (*get_count)(const void *, dlb_mpi_handle, int *);
    int (*finalized)(int *);
    int (*cancel)(dlb_mpi_handle *);
    int (*test_cancelled)(const void *, int *);
} dlb_mpi;

/* Room for MPI_Status, of which only `get_count` knows the fields. */
typedef uint64_t dlb_mpi_status[8];

/* Find the functions in the library at `path`, which is loaded; -1 with an exception.
 */
int dlb_mpi_find(dlb_mpi *mpi, const char *path);
/* -1, with an MPIError; `peer`: the rank of the message, -1 for any. */
int dlb_mpi_failed(const char *function, int code, int peer);

/* ---- ballot.c: do all ranks make the same call? ---- */

/* The processes of a communicator, through private copies of it; immutable but for the
 * tags and the turns. */
typedef struct {
    PyObject_HEAD
    dlb_mpi mpi;
    dlb_mpi_handle collective, messages, payloads, byte;
    int rank, size, highest_tag, any_tag;
    _Atomic uint32_t tags[3]; /* so many were given out, by dlb_tag_use */
    _Atomic int turns;        /* collectives of Python that have yet to be posted */
    int generation;           /* of the process that made them, see dlb_is_member */
    /* Copies go from rank to rank; MPI needs fewer messages with many. */
    bool is_direct;
    bool is_near; /* all are on this host: messages take microseconds */
} dlb_peers;

/* Whether this process is one of them: not a child that was forked from one. */
bool dlb_is_member(const dlb_peers *peers);

/* What a tag is for: the ballot of a call, one that follows when all agree, or a
 * payload. They may go over one communicator. Ballots that follow are begun in the
 * order in which calls have their turn, which is not the one in which calls are begun.
 */
typedef enum { DLB_CALL_TAG, DLB_FOLLOWING_TAG, DLB_PAYLOAD_TAG } dlb_tag_use;

/* The next tag: payloads have the upper half of all tags, the others a quarter each. */
static inline uint32_t dlb_next_tag(dlb_peers *over, dlb_tag_use use) {
    uint32_t before =
        atomic_fetch_add_explicit(&over->tags[use], 1, memory_order_relaxed);
    uint32_t quarter = ((uint32_t)over->highest_tag + 1) / 4;
    uint32_t count = use == DLB_PAYLOAD_TAG ? 2 * quarter : quarter;
    return (before + 1) % count + (uint32_t)use * quarter;
}

enum {
    DLB_BALLOT_HEAD = 64,
    DLB_BALLOT_MOST = 16 * 1024, /* bytes of a payload that travels with it */
    /* Bytes that a reduce reduces whole on each rank: beyond, what others get costs too
     * much. */
    DLB_REDUCED_MOST = 1024 * 1024,
    /* Of larger values than these bytes among more than a few ranks, another algorithm,
     * MPI's, sends less in total. */
    DLB_FEW_RANKS = 4,
    DLB_MANY_RANKS_MOST = 256 * 1024,
    /* Bytes of a bcast that travel with the ballot: messages of their own are faster
     * with more. */
    DLB_COPIED_MOST = 4 * 1024,
    /* The same of a reduce_scatter and a gather, and of all rows of an allgather or
     * alltoall together. In each round, a rank sends at most half of the rows. */
    DLB_ROWS_MOST = 8 * 1024,
    DLB_GATHERED_MOST = DLB_BALLOT_MOST,
    DLB_MESSAGE_MOST = 8 * 1024, /* bytes of a tensor that travel with its message */
};

/* Seconds for which a wait yields the processor before it sleeps. */
static inline double dlb_awake(bool is_near, size_t nbytes) {
    return is_near ? 50e-6 + 5e-10 * (double)nbytes : 300e-6 + 2e-9 * (double)nbytes;
}

typedef void (*dlb_inner_loop)(char **, const Py_ssize_t *, const Py_ssize_t *, void *);

/* What becomes of the payloads: they are reduced, by a loop of NumPy or by a Python
 * function; or one rank's is taken by all. With neither, no rank has one. */
typedef struct {
    dlb_inner_loop loop; /* NULL: none */
    void *data;
    Py_ssize_t itemsize;
    PyObject *function; /* borrowed; NULL: none */
    bool takes;
} dlb_combine;

/* By its loop: `first`, of the lower ranks, and `second` into `into`, which may be one
 * of them. */
void dlb_combine_values(const dlb_combine *how, const char *first, const char *second,
                        char *into, size_t nbytes);

typedef struct dlb_ballot dlb_ballot;

extern PyTypeObject dlb_PeersType, dlb_BallotType;

/* 16 bytes that differ where shape or dtype do; shapes that differ in one dimension
 * never have the same. */
void dlb_kind_digest(DLDataType dtype, int32_t ndim, const int64_t *shape,
                     uint8_t digest[16]);

/* What this rank says: `tensor` NULL: of any shape and dtype; `size` bytes of payload,
 * which the caller writes; `combine` NULL: no rank has one. Where all agree, a payload
 * that is reduced keeps its size. */
dlb_ballot *dlb_ballot_new(dlb_peers *over, const uint8_t call[16],
                           const uint8_t *tensor, size_t size,
                           const dlb_combine *combine);
/* Declare that the payload begins with a row of `part` bytes for each rank. Unless
 * `gathers`, each rank receives its own row, reduced, and the other rows are undefined
 * afterwards. If `gathers`, each rank has written its own row and receives all of them.
 * Bytes behind the rows are not sent. -1 with a MemoryError. */
int dlb_ballot_set_rows(dlb_ballot *ballot, size_t part, bool gathers);
char *dlb_ballot_payload(dlb_ballot *ballot);
size_t dlb_ballot_size(const dlb_ballot *ballot);
bool dlb_ballot_agreed(const dlb_ballot *ballot);
dlb_peers *dlb_ballot_over(const dlb_ballot *ballot); /* borrowed; NULL: none */
/* That of its messages, -1 until it has begun; others of the call follow under it. */
int dlb_ballot_tag(const dlb_ballot *ballot);
/* Whether the ranks have agreed on this shape and dtype: what a payload says of itself
 * may be something else. */
bool dlb_ballot_is_of(const dlb_ballot *ballot, DLDataType dtype, int32_t ndim,
                      const int64_t *shape);
/* Have values that are too large for the ballot reduced in this way after all agree,
 * this rank's at `from` into `into`, of as many bytes; where that is the same place,
 * there is a copy of what comes. The ballot keeps both buffers. -1: with a MemoryError.
 */
int dlb_ballot_add_values(dlb_ballot *ballot, const dlb_combine *how,
                          dlb_buffer *buffer, const char *from, dlb_buffer *target,
                          char *into, size_t nbytes);
/* The Tensor that Python sees as its result. */
void dlb_ballot_set_result(dlb_ballot *ballot, PyObject *result);
/* Whether values of this size follow the ballot, instead of being its payload, or the
 * business of MPI. */
bool dlb_moves_values(const dlb_peers *over, size_t nbytes);
/* Go on as far as what has come allows: 1, all is said; 0, not yet; -1. */
int dlb_ballot_advance(dlb_ballot *ballot);

/* ---- reduction.c: an op, for each dtype ---- */

extern PyTypeObject dlb_ReductionType;

/* The digest of a call with that op. */
const uint8_t *dlb_reduction_call(PyObject *reduction);
/* How it reduces elements of a dtype; NULL: not by a loop. */
const dlb_combine *dlb_reduction_loop(PyObject *reduction, DLDataType dtype);
/* What `dlb_divide` needs if the op is "mean", a reference, else NULL. -1 with an
 * exception. */
int dlb_quotients(PyObject *reduction, DLDataType dtype, int by, PyObject **made);
/* Divide numbers in place, as `divide` in reductions.py does. */
void dlb_divide(DLDataType dtype, char *data, size_t nbytes, int by,
                PyObject *quotients);

/* ---- tree.c: the tensors of a tree in one call ---- */

typedef enum { DLB_TREE_REDUCED, DLB_TREE_BCAST, DLB_TREE_GATHERED } dlb_tree_kind;

/* A call with trees of the same containers, shapes and dtypes; immutable. */
typedef struct dlb_tree_plan dlb_tree_plan;
/* A call with one, under way. */
typedef struct dlb_tree_ballot dlb_tree_ballot;

/* The memory of one tensor, compact; the buffer is borrowed. */
typedef struct {
    dlb_buffer *buffer;
    char *data;
} dlb_tree_leaf;

extern PyTypeObject dlb_TreePlanType, dlb_TreeBallotType;

dlb_tree_kind dlb_tree_kind_of(const dlb_tree_plan *plan);
Py_ssize_t dlb_tree_count(const dlb_tree_plan *plan); /* of the tensors */
size_t dlb_tree_nbytes(const dlb_tree_plan *plan);    /* of all of them */
/* Whether the tensor of this number has that shape and dtype. */
bool dlb_tree_has(const dlb_tree_plan *plan, Py_ssize_t number, const DLTensor *dl);
/* Whether a tensor is copied when a call begins, and no more looked at then. */
bool dlb_tree_packs(const dlb_tree_plan *plan, Py_ssize_t number);
/* Whether the result for that tensor has the shape and dtype of `dl`. */
bool dlb_tree_has_result(const dlb_tree_plan *plan, Py_ssize_t number,
                         const dlb_peers *over, const DLTensor *dl);
/* Whether C can make the call; all ranks agree on that. */
bool dlb_tree_fits(const dlb_tree_plan *plan, const dlb_peers *over);
/* Whether this rank receives results: all but the root in a bcast, only the root in a
 * gather. */
bool dlb_tree_gives(const dlb_tree_plan *plan, const dlb_peers *over);
/* The tensors of a tree, then other values in it, to be dropped; NULL, without an
 * exception: it is made in another way. */
PyObject **dlb_tree_find(const dlb_tree_plan *plan, PyObject *tree);
void dlb_tree_drop(const dlb_tree_plan *plan, PyObject **values);
/* Begin a call. Results are written to `outs`, or to new memory if that is NULL.
 * `gives`: whether this rank receives results. */
dlb_tree_ballot *dlb_tree_ballot_new(dlb_peers *over, dlb_tree_plan *plan,
                                     const dlb_tree_leaf *leaves,
                                     const dlb_tree_leaf *outs, bool gives);
int dlb_tree_ballot_advance(dlb_tree_ballot *ballot); /* as dlb_ballot_advance */
/* That of a TreeBallot, or the Ballot itself; borrowed. NULL, without an exception: it
 * is neither. */
dlb_ballot *dlb_ballot_of(PyObject *ballot);
bool dlb_tree_ballot_agreed(const dlb_tree_ballot *ballot);
/* Between these processes; borrowed. */
dlb_peers *dlb_tree_ballot_over(const dlb_tree_ballot *ballot);
size_t dlb_tree_ballot_nbytes(const dlb_tree_ballot *ballot); /* of all tensors */
/* Keep what the result is made of: `values` as from dlb_tree_find, and for each tensor
 * a Converter or None, both of which are taken; or `instead`, if it is not NULL. */
void dlb_tree_ballot_keep(dlb_tree_ballot *ballot, PyObject **values,
                          PyObject **converters, PyObject *instead);
/* The result of a call that is over, on which all ranks agreed. */
PyObject *dlb_tree_ballot_result(const dlb_tree_ballot *ballot);

/* ---- collective.c: collectives that copy, and reduce what came ---- */

typedef enum {
    DLB_ALLGATHER,
    DLB_ALLTOALL,
    DLB_BCAST,
    DLB_GATHER,
    DLB_SCATTER,
    DLB_REDUCE_SCATTER
} dlb_copy_kind;

typedef struct dlb_collective dlb_collective;

extern PyTypeObject dlb_CollectiveType;

/* One copied tensor: `part` bytes from or to each rank, or all bytes in a bcast. `from`
 * lies in `source`, `into` in `target`; NULL where this rank sends or receives nothing.
 */
typedef struct {
    dlb_buffer *source, *target;
    const char *from;
    char *into;
    size_t part;
} dlb_part;

/* A collective that copies `count` tensors, as many on all ranks, and retains their
 * buffers. `result`: a Tensor for Python, or None. `how`: the reduction of a
 * reduce_scatter, which copies one tensor; else NULL. NULL with an exception. */
dlb_collective *dlb_collective_new(dlb_peers *over, dlb_copy_kind kind, int root,
                                   const dlb_part *copied, size_t count,
                                   PyObject *result, const dlb_combine *how);
/* Begin, as the ranks have agreed by the ballot; -1 with an exception. */
int dlb_collective_post(dlb_collective *collective, const dlb_ballot *ballot);
/* 1: it is complete; 0: not yet; -1. */
int dlb_collective_advance(dlb_collective *collective);

/* ---- quick.c, posted.c, begun.c: calls without a Python frame, see calls.h ---- */
extern PyTypeObject dlb_QuickType, dlb_PostedType, dlb_BegunType;
extern PyMethodDef dlb_begun_functions[];
/* Add the sizes that Python reads; -1 with an exception. */
int dlb_mpi_start(PyObject *module);

#endif /* DLBRIDGE_CORE_MPI_MPI_H_ */

/* Calls of dlbridge.mpi without a Python frame: what their files share.
 *
 * A call is declined, for Python to make it, before anything is sent; see quick.c. */
#ifndef DLBRIDGE_CORE_MPI_CALLS_H_
#define DLBRIDGE_CORE_MPI_CALLS_H_

#include "exchange/exchange.h"
#include "mpi/mpi.h"

#include <stdatomic.h>
#include <sched.h>
#include <stddef.h>
#include <string.h>
#include <time.h>

enum { MOST_DIMENSIONS = DLB_MAX_NDIM };

/* ---- posted.c: a message under way ---- */

/* One request of MPI. */
typedef struct {
    dlb_mpi_handle handle;
    bool is_under_way;
    int size; /* of what has come */
} request;

/* A message under way: a head, which describes the tensor and carries small contents.
 * Large contents follow in a second message. */
typedef struct {
    PyObject_HEAD
    dlb_peers *over;
    int peer;
    bool is_receive, is_busy;
    request head, contents;
    char *data;         /* of the head */
    dlb_buffer *buffer; /* of large contents; NULL: there are none, or not yet */
    size_t nbytes;      /* of large contents, or 0 */
    PyObject *result;   /* the Tensor that receives them, for Python; or NULL */
} posted;

posted *dlb_posted_new(dlb_peers *over, int peer, bool is_receive, size_t size);
int dlb_post_head(posted *self, int tag);
/* Send large contents, or receive them, from or into memory of the buffer. */
int dlb_post_contents(posted *self, dlb_buffer *buffer, char *data, size_t nbytes,
                      uint32_t number);
/* Returns 1 when the message is complete, 0 if not yet, -1 with an exception. */
int dlb_posted_advance(posted *self);
/* Take back a receive of which nothing has come: whether that was done. */
int dlb_posted_cancel(posted *self);

/* ---- quick.c: the type Quick, and short waits ---- */

/* The fields are read and set under DLB_EXCLUSIVE; the dicts are caches, see core.h. */
typedef struct {
    PyObject_HEAD
    PyObject *peers;  /* of all processes, once MPI has started; or None */
    PyObject *active; /* dict of what is under way in Python */
    PyObject *go_on;  /* advances some of it */
    PyObject *types;  /* dict: array type -> (Converter, guard or None, writable) */
    PyObject *calls;  /* dict: arguments -> Reduction, or digest */
    PyObject *resume;
    PyObject *request; /* the class of what is begun, a subclass of Begun */
    double went_on;    /* when `go_on` was called last */
} quick;

/* Returned for a call that Python makes. */
static inline PyObject *dlb_decline(void) {
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
}

static inline double dlb_now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* Seconds for which a wait yields the processor before Python waits. */
double dlb_patience(const dlb_peers *over, size_t nbytes);

enum { SPINS = 100 }; /* looks before the processor is yielded */

/* Wait for a short while: 1, it is complete; 0, Python waits for it; -1. */
static inline int dlb_wait_shortly(int (*advance)(void *), void *what,
                                   const dlb_peers *over, size_t nbytes) {
    int done;
    for (int i = 0; i < SPINS; i++)
        if ((done = advance(what)) != 0)
            return done;
    double until = dlb_now() + dlb_patience(over, nbytes);
    do {
        Py_BEGIN_ALLOW_THREADS;
        sched_yield();
        Py_END_ALLOW_THREADS;
        if ((done = advance(what)) != 0)
            return done;
    } while (dlb_now() < until);
    return 0;
}

/* Whether calls may be made here; 0: no, perhaps with an exception. */
bool dlb_is_open(quick *self, const dlb_peers *over);

/* ---- transfer.c: tensors in and out ---- */

typedef struct {
    PyObject *known;             /* what `types` has, a reference */
    PyObject *converter, *guard; /* of that; None: a Tensor, no guard */
    dlb_view view;
    size_t nbytes;
} source;

/* Where a result goes: into the array of `out=`, which is None without one. */
typedef struct {
    PyObject *out;
    source into;
} destination;

static inline void dlb_source_drop(const source *from) {
    dlb_buffer_drop(from->view.buffer);
    Py_DECREF(from->known);
}

static inline const char *dlb_source_data(const source *from) {
    return (const char *)from->view.dl.data + from->view.dl.byte_offset;
}

/* Allocate memory for a tensor; -1, without an exception, if there is none. */
static inline int dlb_make_memory(dlb_view *view, DLDataType dtype, int32_t ndim,
                                  const int64_t *shape) {
    dlb_view_set_memory(view, NULL, dtype, ndim, shape);
    return dlb_cpu_fill_view(view, 64, false);
}

/* Wrap a view in an array; takes the reference of the view. */
static inline PyObject *dlb_give(PyObject *converter, dlb_view *view) {
    return converter == Py_None ? dlb_tensor_new(dlb.tensor_type, view)
                                : dlb_converter_give(converter, view);
}

/* 1: taken, and the caller drops it; 0: declined; -1. */
int dlb_source_take(const quick *self, PyObject *x, size_t most, source *out);
/* Like dlb_source_take, for the array of `out=`; declines what must not be written. */
int dlb_source_take_out(const quick *self, PyObject *x, source *out);
/* The Converter to a framework, by its name, or None for a Tensor; a new reference.
 * NULL: not known, perhaps with an exception. */
PyObject *dlb_find_converter(PyObject *name);
/* The same, by the type of an array. */
PyObject *dlb_type_converter(const quick *self, PyObject *x);

/* ---- calls.c: a call, from its arguments to its result ---- */

/* Who makes a call: `timeout`, from `begun` on, is None or at least LONGEST. */
typedef struct {
    const quick *self;
    PyObject *timeout;
    double begun;
} caller;

/* How much of what was reduced a rank gets. */
typedef enum { NOTHING, WHOLE, ROW } share;

enum {
    ODD = 2,  /* Python goes on, with what is under way */
    NEXT = 3, /* something else is under way, and may take as long */
};

/* One call: of the frame of a blocking one, or of a Begun. */
typedef struct call {
    const char *name; /* of the blocking form, with which Python goes on */
    PyObject *given[4];
    Py_ssize_t count;              /* of those, references: what else Python needs */
    int (*settled)(struct call *); /* once all agree: as dlb_call_advance */
    dlb_ballot *ballot;
    dlb_collective *copies; /* what follows that, or NULL */
    bool is_copying;
    size_t awaited; /* bytes of what is under way */
    int root;
    share gets;
    PyObject *quotients; /* a reference, of a mean: as `dlb_quotients` returns it */
    /* Borrowed: returned in place of a new array: None, `out`, or x on the root of a
     * bcast; or NULL. */
    PyObject *instead;
    PyObject *converter;      /* a reference: the result is a new array */
    dlb_buffer *memory, *out; /* references, or NULL: of the result, and of `out` */
    char *data, *out_data;
    PyObject *result;
    DLDataType dtype; /* of the result */
    int32_t ndim;
    size_t nbytes;
    int64_t shape[MOST_DIMENSIONS]; /* last, as it is not cleared */
} call;

static inline void dlb_call_init(call *self, const char *name) {
    memset(self, 0, offsetof(call, shape));
    self->name = name;
}

static inline PyObject *dlb_call_under_way(const call *self) {
    return self->is_copying ? (PyObject *)self->copies : (PyObject *)self->ballot;
}

static inline void dlb_call_keep(call *self, PyObject *const *args, Py_ssize_t count) {
    self->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        self->given[i] = Py_NewRef(args[i]);
}

/* Divide the sum, if the op is "mean" and this rank gets the result. */
static inline void dlb_divide_result(const call *self, char *data) {
    if (self->quotients != NULL && self->gets != NOTHING)
        dlb_divide(self->dtype, data, self->nbytes, dlb_ballot_over(self->ballot)->size,
                   self->quotients);
}

/* What is known of a call with these arguments, a new reference; NULL, perhaps with an
 * exception. */
static inline PyObject *dlb_find_call(const quick *self, PyObject *key) {
    return key == NULL ? NULL : dlb_cache_get(self->calls, key);
}

/* The bytes of one of as many rows as there are ranks; 0: there are not that many. */
static inline size_t dlb_row_bytes(const dlb_peers *over, const source *from) {
    const DLTensor *dl = &from->view.dl;
    bool has_rows = dl->ndim > 0 && dl->shape[0] == over->size;
    return has_rows ? from->nbytes / (size_t)over->size : 0;
}

/* Whether a collective that copies may begin here: MPI's are begun in the order of
 * calls. */
static inline bool dlb_may_copy(const dlb_peers *over) {
    return over->is_direct || atomic_load(&over->turns) == 0;
}

/* How a call begins, with its arguments: 1; 0: declined; -1. Nothing is sent by then,
 * and what may lack memory is there. */
typedef int (*beginning)(call *self, const quick *of, dlb_peers *over,
                         PyObject *const *args);

/* Go on in Python: resume(name, what is under way, *the arguments) returns a Request.
 */
PyObject *dlb_go_on(const quick *self, const char *name, void *under_way,
                    PyObject *const *args, Py_ssize_t count);
/* Wait for it there. An interrupt ends the wait, not the call: the other ranks still
 * get what they wait for. */
PyObject *dlb_resume(const caller *by, const char *name, void *under_way,
                     PyObject *const *args, Py_ssize_t count);
/* The digest of a call that has no reduction; false, perhaps with an exception. */
bool dlb_find_digest(const quick *self, PyObject *key, uint8_t digest[16]);
/* The root of a call; -1: not a rank of these processes, which Python refuses. That a
 * call with this root is known does not suffice: another communicator may have more
 * ranks. */
int dlb_read_root(const dlb_peers *over, PyObject *root);
/* The digest of a call with a root, and that; -1: declined, perhaps with an exception.
 */
int dlb_find_root(const quick *self, const dlb_peers *over, PyObject *name,
                  PyObject *root, uint8_t digest[16]);
void dlb_call_clear(call *self);
void dlb_describe_result(call *self, DLDataType dtype, int32_t ndim,
                         const int64_t *shape);
/* The array of `out=`, which may be None, for the result that was described: 1; 0:
 * declined; -1. */
int dlb_open_result(call *self, const quick *of, PyObject *out);
/* Memory for the result, as a Tensor: that of `out` if it is given, and may be written
 * meanwhile. NULL, without an exception, if memory cannot be allocated: Python then
 * reports that to all ranks. */
PyObject *dlb_make_target(call *self, const source *from);
/* Make the result of these contents. */
int dlb_finish_with(call *self, const char *contents);
/* Make the result of its memory, where that was allocated. */
int dlb_finish_call(call *self);
/* Begin to copy, since all ranks agree. */
int dlb_begin_copying(call *self, size_t nbytes);
/* 1: it is over, with the result; 0: not yet; ODD; NEXT; -1. */
int dlb_call_advance(void *object);
/* 1: begun; 0: declined, also where memory could not be allocated, which Python then
 * reports to all ranks. Any other error stays set. */
int dlb_begin_or_decline(call *self, beginning begin, const quick *of, dlb_peers *over,
                         PyObject *const *args);
/* Make a call, and wait for it. */
PyObject *dlb_make_call(const caller *by, dlb_peers *over, const char *name,
                        beginning begin, PyObject *const *args);
/* What is too large for the ballot follows it, or is MPI's. */
int dlb_settled_copy(call *self);
/* What follows when all agree, with memory for the result if this rank gets one; -1. */
int dlb_add_copies(call *self, dlb_peers *over, dlb_copy_kind kind, const source *from,
                   bool gets_result, size_t part, const dlb_combine *how);

/* ---- reducing.c, gathering.c, announcing.c: how each collective begins ---- */

int dlb_begin_allreduce(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args);
int dlb_begin_reduce(call *self, const quick *of, dlb_peers *over,
                     PyObject *const *args);
int dlb_begin_reduce_scatter(call *self, const quick *of, dlb_peers *over,
                             PyObject *const *args);
int dlb_begin_allgather(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args);
int dlb_begin_alltoall(call *self, const quick *of, dlb_peers *over,
                       PyObject *const *args);
int dlb_begin_gather(call *self, const quick *of, dlb_peers *over,
                     PyObject *const *args);
int dlb_begin_barrier(call *self, const quick *of, dlb_peers *over,
                      PyObject *const *args);
int dlb_begin_bcast(call *self, const quick *of, dlb_peers *over,
                    PyObject *const *args);
int dlb_begin_scatter(call *self, const quick *of, dlb_peers *over,
                      PyObject *const *args);

/* ---- tree_calls.c ---- */

bool dlb_may_be_tree(PyObject *x);
/* A call with a tree. `key`: under which its plans are remembered, a reference that is
 * stolen, or NULL. */
PyObject *dlb_call_tree(const caller *by, dlb_peers *over, PyObject *key, PyObject *x,
                        PyObject *out);
/* The same, begun under this name. */
PyObject *dlb_begin_tree(const caller *by, dlb_peers *over, const char *name,
                         PyObject *key, PyObject *x, PyObject *out);

/* ---- announcing.c: what a tensor is, as messages say it (Kind.pack) ---- */

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
    uint32_t ndim;
} description;

typedef struct {
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[MOST_DIMENSIONS];
    size_t nbytes;
    const char *contents; /* that came with the head */
    size_t come;          /* their size in bytes */
} announced;

static inline size_t dlb_kind_size(const DLTensor *dl) {
    return sizeof(description) + 8 * (size_t)dl->ndim;
}

char *dlb_write_kind(char *at, const DLTensor *dl);
/* False: Python reads it, and says what is wrong. */
bool dlb_read_kind(const char *data, size_t size, announced *out);

/* ---- messages.c: messages, as messages.py writes them ---- */

typedef struct {
    uint32_t number, sender; /* number: tag of large contents */
    uint64_t tag;
} message_head;

/* What a receive needs besides its message. */
typedef struct {
    PyObject *converter; /* of a new array */
    PyObject *out;       /* the array that is written, or None */
    source into;         /* its memory */
    int source, tag;
} receiver;

/* Post a message; NULL: declined, or with an exception. */
posted *dlb_begin_send(const quick *self, dlb_peers *over, PyObject *const *args);
PyObject *dlb_send(const caller *by, dlb_peers *over, PyObject *const *args,
                   Py_ssize_t count);
/* Whether a message has the form that a send writes; `number` is set to the tag of
 * large contents. */
bool dlb_read_message(const posted *message, announced *out, uint32_t *number);
/* Whether what is announced has the shape and dtype of a tensor. */
bool dlb_fits(const announced *said, const DLTensor *dl);
/* 1: open, and the caller closes it; 0: declined; -1. */
int dlb_open_receiver(const quick *self, const dlb_peers *over, PyObject *source_,
                      PyObject *tag, PyObject *out, receiver *made);
void dlb_close_receiver(const receiver *made);
posted *dlb_new_receive(dlb_peers *over, int peer);
PyObject *dlb_recv(const caller *by, dlb_peers *over, PyObject *const *args,
                   Py_ssize_t count);
PyObject *dlb_sendrecv(const caller *by, dlb_peers *over, PyObject *const *args,
                       Py_ssize_t count);

/* ---- begun.c: calls that are not waited for yet ---- */

bool dlb_is_something_begun(void);
/* Advance so many, those first that have waited longest. */
int dlb_advance_some(Py_ssize_t count);
PyObject *dlb_isend(const caller *by, dlb_peers *over, PyObject *const *args,
                    Py_ssize_t count);
PyObject *dlb_irecv(const caller *by, dlb_peers *over, PyObject *const *args,
                    Py_ssize_t count);
/* Begin a collective: what the ranks say of it is on its way then. MPI's are begun in
 * the order of calls, which Python knows. */
PyObject *dlb_begin_call(const caller *by, dlb_peers *over, const char *name,
                         beginning begin, PyObject *const *args);
/* The same, of a call with a tree, from whose ballot nothing is sent yet. */
PyObject *dlb_begin_ballot(const caller *by, const char *name, dlb_tree_ballot *ballot);

#endif /* DLBRIDGE_CORE_MPI_CALLS_H_ */

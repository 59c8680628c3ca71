/* A collective that copies, once the ranks have agreed: each rank sends each of the
 * others directly what that one gets. A reduce_scatter is one as well: a rank reduces
 * the rows that it gets.
 *
 * The messages have the tag of the ballot, which the call was given when it began, so
 * that any number of collectives may be under way, and go on in any order.
 *
 * Within a host, MPI copies large messages from the memory of the other process, page
 * by page: from pages of 4 KiB that takes three times as long as from huge ones, in
 * which arrays of less than some MiB seldom lie. So of several tensors, those of medium
 * size are copied to huge pages in pieces, which the others receive meanwhile. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "memory/block.h"
#include "mpi/mpi.h"
#include "tensor/tensor.h"

#include <string.h>

enum {
    LARGEST = 1 << 30, /* bytes of a message; more go in several, one after the other */
    FEW = 6,           /* messages for which memory is there */
    SHORT = 16 * 1024, /* bytes to a rank for which the GIL stays */
    ALIGNED = 64,      /* bytes: where parts of a bcast begin */
    /* Tensors of these bytes are staged: copied before they are sent. */
    STAGED_LEAST = 256 * 1024,
    STAGED_MOST = 16 * 1024 * 1024,
    PIECE = 1024 * 1024,      /* bytes of a message of such a tensor */
    STAGE = 32 * 1024 * 1024, /* of all copies; other tensors wait */
};

typedef struct {
    dlb_mpi_handle handle;
    bool is_under_way, is_receive;
    int peer, nbytes;
} message;

struct dlb_collective {
    PyObject_HEAD
    dlb_peers *over;
    int tag;
    dlb_copy_kind kind;
    int root;
    dlb_part one, *copied; /* with references to their buffers */
    size_t copied_count, posted_count;
    char *stage; /* a block; NULL: nothing is staged */
    size_t stage_size, staged;
    size_t part;     /* bytes from or to each rank, of all parts together */
    dlb_combine how; /* only for reduce_scatter, of one tensor, like `space` */
    char *space;     /* a block: the rows of the other ranks; NULL: none */
    message few[FEW], *messages;
    size_t count;
    bool forwards; /* of a bcast: one's own part goes on to others once it has come */
    bool is_busy, is_under_way;
    PyObject *result; /* a Tensor that is written, or None */
};

/* ---- what goes where ---- */

/* Whether a tensor is staged, if it is sent to ranks that do not send to this one. All
 * ranks say the same of it. */
static bool may_stage(const dlb_collective *self, const dlb_part *copied) {
    return self->copied_count > 1 && self->over->is_near &&
           copied->part >= STAGED_LEAST && copied->part <= STAGED_MOST;
}

/* Bytes of a message of it, at most. */
static size_t piece_size(const dlb_collective *self, const dlb_part *copied) {
    return may_stage(self, copied) ? PIECE : LARGEST;
}

static size_t messages_of(const dlb_collective *self, const dlb_part *copied) {
    size_t most = piece_size(self, copied);
    return (copied->part + most - 1) / most;
}

/* A copy of what is sent next, or `data` itself. */
static const char *stage(dlb_collective *self, const dlb_part *copied, const char *data,
                         size_t nbytes) {
    if (self->stage == NULL || !may_stage(self, copied))
        return data;
    char *made = self->stage + self->staged;
    self->staged += nbytes;
    Py_BEGIN_ALLOW_THREADS;
    memcpy(made, data, nbytes);
    Py_END_ALLOW_THREADS;
    return made;
}

static int post(dlb_collective *self, const dlb_part *copied, bool is_receive, int peer,
                const char *data, size_t nbytes) {
    const dlb_peers *over = self->over;
    size_t most = piece_size(self, copied);
    for (size_t at = 0; at < nbytes; at += most) {
        size_t left = nbytes - at, size = left < most ? left : most;
        const char *sent = is_receive ? NULL : stage(self, copied, data + at, size);
        message *made = &self->messages[self->count++];
        made->nbytes = (int)size;
        made->is_receive = is_receive;
        made->peer = peer;
        int code =
            is_receive
                ? over->mpi.irecv((char *)data + at, made->nbytes, over->byte, peer,
                                  self->tag, over->collective, &made->handle)
                : over->mpi.isend(sent, made->nbytes, over->byte, peer, self->tag,
                                  over->collective, &made->handle);
        if (code != 0)
            return dlb_mpi_failed(is_receive ? "MPI_Irecv" : "MPI_Isend", code, peer);
        made->is_under_way = true;
    }
    return 0;
}

/* A bcast: the root cuts its tensor into a part for each of the others, which sends
 * that on to all others. So no rank sends much more than all of it. */
typedef struct {
    const char *start;
    size_t nbytes;
} piece;

static piece piece_of(const dlb_collective *self, const dlb_part *copied, int peer) {
    size_t others = (size_t)self->over->size - 1, part = copied->part;
    size_t number =
        (size_t)(peer - self->root - 1 + self->over->size) % (size_t)self->over->size;
    size_t step = (part + others - 1) / others;
    step = (step + ALIGNED - 1) / ALIGNED * ALIGNED;
    size_t start = number * step < part ? number * step : part;
    size_t end = start + step < part ? start + step : part;
    const char *data = self->over->rank == self->root ? copied->from : copied->into;
    return (piece){data + start, end - start};
}

static int post_bcast(dlb_collective *self, const dlb_part *copied) {
    int rank = self->over->rank, size = self->over->size, failed = 0;
    for (int i = 1; failed == 0 && i < size; i++) {
        int peer = (rank + i) % size;
        if (rank == self->root) {
            piece sent = piece_of(self, copied, peer);
            failed = post(self, copied, false, peer, sent.start, sent.nbytes);
        } else { /* the root has one's own part */
            piece comes = piece_of(self, copied, peer == self->root ? rank : peer);
            failed = post(self, copied, true, peer, comes.start, comes.nbytes);
        }
    }
    self->forwards = rank != self->root && size > 2;
    return failed;
}

/* Whether the root's part has come. */
static bool may_forward(const dlb_collective *self) {
    for (size_t i = 0; i < self->count; i++)
        if (self->messages[i].is_under_way && self->messages[i].peer == self->root)
            return false;
    return self->forwards;
}

static int forward(dlb_collective *self) {
    int rank = self->over->rank, size = self->over->size, failed = 0;
    self->forwards = false;
    for (size_t at = 0; at < self->copied_count; at++) {
        const dlb_part *copied = &self->copied[at];
        piece own = piece_of(self, copied, rank);
        for (int i = 1; failed == 0 && i < size; i++) {
            int peer = (rank + i) % size;
            if (peer != self->root)
                failed = post(self, copied, false, peer, own.start, own.nbytes);
        }
    }
    return failed;
}

/* Whether this rank gets something from that one, and where. */
static bool place_of_receive(const dlb_collective *self, int peer, size_t part,
                             size_t *start) {
    bool is_root = self->over->rank == self->root;
    *start = self->kind == DLB_SCATTER ? 0 : part * (size_t)peer;
    return self->kind == DLB_ALLGATHER || self->kind == DLB_ALLTOALL ||
           (self->kind == DLB_GATHER && is_root) ||
           (self->kind == DLB_SCATTER && peer == self->root) ||
           self->kind == DLB_REDUCE_SCATTER;
}

/* Whether what is sent has a part for each rank. */
static bool has_rows(dlb_copy_kind kind) {
    return kind == DLB_ALLTOALL || kind == DLB_SCATTER || kind == DLB_REDUCE_SCATTER;
}

static bool place_of_send(const dlb_collective *self, int peer, size_t part,
                          size_t *start) {
    *start = has_rows(self->kind) ? part * (size_t)peer : 0;
    return self->kind == DLB_ALLGATHER || self->kind == DLB_ALLTOALL ||
           self->kind == DLB_REDUCE_SCATTER ||
           (self->kind == DLB_GATHER && peer == self->root) ||
           (self->kind == DLB_SCATTER && self->over->rank == self->root);
}

static int post_rows(dlb_collective *self, const dlb_part *copied) {
    int rank = self->over->rank, size = self->over->size, failed = 0;
    char *into = self->space != NULL ? self->space : copied->into;
    size_t from, to, part = copied->part;
    for (int i = 1; failed == 0 && i < size; i++) {
        int peer = (rank - i + size) % size;
        if (place_of_receive(self, peer, part, &to))
            failed = post(self, copied, true, peer, into + to, part);
    }
    for (int i = 1; failed == 0 && i < size; i++) {
        int peer = (rank + i) % size;
        if (place_of_send(self, peer, part, &from))
            failed = post(self, copied, false, peer, copied->from + from, part);
    }
    return failed;
}

/* Copy what a rank sends to itself. */
static void copy_own(const dlb_collective *self) {
    int rank = self->over->rank;
    size_t from, to;
    if (self->kind == DLB_BCAST || self->space != NULL)
        return;
    for (size_t i = 0; i < self->copied_count; i++) {
        const dlb_part *copied = &self->copied[i];
        if (copied->part > 0 && place_of_send(self, rank, copied->part, &from) &&
            place_of_receive(self, rank, copied->part, &to))
            memcpy(copied->into + to, copied->from + from, copied->part);
    }
}

/* Rows of a reduce_scatter, one of each rank. */
typedef struct {
    const dlb_collective *of;
    bool is_own; /* this rank's is still where it was */
} rows;

static char *row_of(const rows *all, int rank) {
    const dlb_collective *of = all->of;
    size_t start = of->part * (size_t)rank;
    return all->is_own && rank == of->over->rank ? (char *)of->copied->from + start
                                                 : of->space + start;
}

/* Reduce the row of a rank and that of a higher one, into the first or the result. */
static void reduce_rows(rows *all, int rank, int other, bool is_last) {
    const dlb_collective *of = all->of;
    char *into = is_last ? of->copied->into : of->space + of->part * (size_t)rank;
    dlb_combine_values(&of->how, row_of(all, rank), row_of(all, other), into, of->part);
    all->is_own = all->is_own && rank != of->over->rank;
}

/* In the order in which the ranks of an allreduce do, for the same bits. */
static void reduce_all(const dlb_collective *self) {
    rows all = {self, true};
    int size = self->over->size, power = 1;
    while (2 * power <= size)
        power *= 2;
    for (int i = 0; i + power < size; i++)
        reduce_rows(&all, i, i + power, power == 1);
    for (int step = 1; step < power; step *= 2)
        for (int i = 0; i < power; i += 2 * step)
            reduce_rows(&all, i, i + step, 2 * step == power);
    if (size == 1)
        memcpy(self->copied->into, self->copied->from, self->part);
}

/* ---- Collective ---- */

static size_t space_of(const dlb_collective *self) {
    return self->part * (size_t)self->over->size;
}

/* Whether this rank sends tensors to ranks that send it none: those are staged. */
static bool may_send_staged(const dlb_collective *self) {
    bool is_root = self->over->rank == self->root;
    return (self->kind == DLB_BCAST && is_root) ||
           (self->kind == DLB_GATHER && !is_root);
}

/* A block for copies; without it, tensors are sent from where they are. */
static void make_stage(dlb_collective *self) {
    size_t size = 0;
    for (size_t i = 0; may_send_staged(self) && i < self->copied_count; i++)
        if (may_stage(self, &self->copied[i]))
            size += self->copied[i].part;
    self->stage_size = size < STAGE ? size : STAGE;
    if (size > 0)
        self->stage = dlb_block_get(self->stage_size, false);
}

/* Memory for all messages, before any is posted: other ranks rely on each of them. */
static int reserve(dlb_collective *self) {
    size_t others = (size_t)self->over->size - 1, room = 0;
    for (size_t i = 0; i < self->copied_count; i++)
        room += 2 * others * messages_of(self, &self->copied[i]);
    bool has_space = self->kind == DLB_REDUCE_SCATTER;
    self->messages = self->few;
    if (has_space)
        self->space = dlb_block_get(space_of(self), false);
    if ((has_space && self->space == NULL) ||
        (room > FEW &&
         (self->messages = PyMem_RawCalloc(room, sizeof *self->messages)) == NULL)) {
        PyErr_NoMemory();
        return -1;
    }
    return 0;
}

dlb_collective *dlb_collective_new(dlb_peers *over, dlb_copy_kind kind, int root,
                                   const dlb_part *copied, size_t count,
                                   PyObject *result, const dlb_combine *how) {
    dlb_collective *self =
        (dlb_collective *)dlb_CollectiveType.tp_alloc(&dlb_CollectiveType, 0);
    if (self == NULL)
        return NULL;
    self->over = (dlb_peers *)Py_NewRef(over);
    self->kind = kind;
    self->root = root;
    if (how != NULL)
        self->how = *how;
    self->result = Py_NewRef(result);
    self->copied = count == 1 ? &self->one : PyMem_RawMalloc(count * sizeof *copied);
    if (self->copied == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    for (; self->copied_count < count; self->copied_count++) {
        const dlb_part *each = &copied[self->copied_count];
        self->copied[self->copied_count] = *each;
        self->part += each->part;
        if (each->source != NULL)
            dlb_buffer_retain(each->source);
        if (each->target != NULL)
            dlb_buffer_retain(each->target);
    }
    if (reserve(self) < 0)
        Py_CLEAR(self);
    else
        make_stage(self);
    return self;
}

/* Post messages of as many tensors as there is room to stage. */
static int post_some(dlb_collective *self) {
    int failed = 0;
    self->staged = 0;
    while (failed == 0 && self->posted_count < self->copied_count) {
        const dlb_part *copied = &self->copied[self->posted_count];
        if (self->stage != NULL && may_stage(self, copied) &&
            self->staged + copied->part > self->stage_size)
            break;
        self->posted_count++;
        failed = self->kind == DLB_BCAST ? post_bcast(self, copied)
                                         : post_rows(self, copied);
    }
    return failed;
}

int dlb_collective_post(dlb_collective *self, const dlb_ballot *ballot) {
    self->tag = dlb_ballot_tag(ballot);
    self->is_under_way = self->is_busy = true;
    int failed = post_some(self);
    if (failed == 0) {
        Py_BEGIN_ALLOW_THREADS;
        copy_own(self);
        Py_END_ALLOW_THREADS;
    }
    self->is_busy = false;
    return failed;
}

/* 1: the message has gone, or come; 0: not yet; -1: failed, with the code of
 * `function`, which is NULL where what has come is not as long as it should be. */
static int test(const dlb_mpi *mpi, dlb_mpi_handle byte, message *tested, int *code,
                const char **function) {
    dlb_mpi_status status;
    dlb_mpi_handle before = tested->handle;
    int done = 0, came = 0;
    *function = "MPI_Test";
    if ((*code = mpi->test(&tested->handle, &done, status)) != 0) {
        tested->is_under_way = tested->handle == before; /* as in ballot.c */
        return -1;
    }
    if (!done)
        return 0;
    tested->is_under_way = false;
    *function = "MPI_Get_count";
    if (tested->is_receive && (*code = mpi->get_count(status, byte, &came)) != 0)
        return -1;
    *function = NULL;
    *code = came;
    return !tested->is_receive || came == tested->nbytes ? 1 : -1;
}

/* Test those that are under way. */
static int test_all(dlb_collective *self) {
    const dlb_peers *over = self->over;
    int done = 1, code = 0, peer = -1, wanted = 0;
    const char *function = NULL;
    bool is_short = self->part <= SHORT; /* else it may copy for long */
    PyThreadState *thread = is_short ? NULL : PyEval_SaveThread();
    for (size_t i = 0; done >= 0 && i < self->count; i++) {
        message *each = &self->messages[i];
        if (!each->is_under_way)
            continue;
        int status = test(&over->mpi, over->byte, each, &code, &function);
        peer = each->peer;
        wanted = each->nbytes;
        done = status < 0 ? -1 : done && status;
    }
    if (thread != NULL)
        PyEval_RestoreThread(thread);
    if (done >= 0)
        return done;
    if (function != NULL)
        return dlb_mpi_failed(function, code, peer);
    dlb_raise_error("MPIError",
                    "rank %d sends %d bytes of values, and %d were agreed on; run the "
                    "same dlbridge on all ranks",
                    peer, code, wanted);
    return -1;
}

int dlb_collective_advance(dlb_collective *self) {
    if (!self->is_under_way)
        return 1;
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    int done = test_all(self);
    if (done > 0 && self->posted_count < self->copied_count)
        done = post_some(self) < 0 ? -1 : 0;
    if (done >= 0 && may_forward(self))
        done = forward(self) < 0 ? -1 : test_all(self);
    if (done > 0 && self->space != NULL) {
        Py_BEGIN_ALLOW_THREADS;
        reduce_all(self);
        Py_END_ALLOW_THREADS;
    }
    self->is_busy = false;
    if (done > 0)
        self->is_under_way = false;
    return done;
}

static PyObject *advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = dlb_collective_advance((dlb_collective *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *get_result(PyObject *object, void *Py_UNUSED(closure)) {
    return Py_NewRef(((dlb_collective *)object)->result);
}

/* MPI may still use the memory of messages that are not complete: it is never freed,
 * and listed here, so that leak detectors find it. */
typedef struct kept {
    dlb_part one, *copied;
    char *space, *stage;
    struct kept *before;
} kept;
static _Atomic(kept *) all_kept;

static void keep_memory(const dlb_collective *self) {
    kept *made = PyMem_RawMalloc(sizeof *made);
    if (made == NULL)
        return; /* it is not freed all the same */
    *made = (kept){self->one, self->copied, self->space, self->stage,
                   atomic_load(&all_kept)};
    while (!atomic_compare_exchange_weak(&all_kept, &made->before, made))
        ;
}

static void dealloc(PyObject *object) {
    dlb_collective *self = (dlb_collective *)object;
    bool is_free = true;
    for (size_t i = 0; i < self->count; i++)
        is_free = is_free && !self->messages[i].is_under_way;
    if (!is_free)
        keep_memory(self);
    else {
        for (size_t i = 0; i < self->copied_count; i++) {
            if (self->copied[i].source != NULL)
                dlb_buffer_drop(self->copied[i].source);
            if (self->copied[i].target != NULL)
                dlb_buffer_drop(self->copied[i].target);
        }
        if (self->copied != &self->one)
            PyMem_RawFree(self->copied);
        if (self->space != NULL)
            dlb_block_put(self->space, space_of(self));
        if (self->stage != NULL)
            dlb_block_put(self->stage, self->stage_size);
    }
    if (self->messages != self->few)
        PyMem_RawFree(self->messages);
    Py_XDECREF(self->result);
    Py_XDECREF(self->over);
    Py_TYPE(object)->tp_free(object);
}

/* ---- for Python ---- */

static const struct {
    const char *name;
    dlb_copy_kind kind;
} KINDS[] = {{"allgather", DLB_ALLGATHER}, {"alltoall", DLB_ALLTOALL},
             {"bcast", DLB_BCAST},         {"gather", DLB_GATHER},
             {"scatter", DLB_SCATTER},     {"reduce_scatter", DLB_REDUCE_SCATTER}};

/* The memory of a compact Tensor; false, with an exception, for anything else. */
static bool read_memory(PyObject *given, dlb_buffer **buffer, char **data,
                        size_t *nbytes) {
    *buffer = NULL;
    if (given == Py_None)
        return true;
    dlb_tensor *tensor = dlb_expect_tensor(given, "Collective");
    if (tensor == NULL)
        return false;
    *buffer = tensor->buffer;
    *data = (char *)tensor->dl.data + tensor->dl.byte_offset;
    *nbytes = (size_t)dlb_packed_bytes(tensor->dl.dtype, tensor->flags,
                                       dlb_element_count(&tensor->dl));
    return true;
}

/* What goes to each rank, as far as this one knows; it is checked where both ends are
 * here. */
static bool read_part(dlb_copy_kind kind, const dlb_peers *over, int root,
                      const size_t *sent, const size_t *comes, size_t *part) {
    size_t size = (size_t)over->size;
    bool is_root = over->rank == root;
    bool sends = kind == DLB_BCAST || kind == DLB_SCATTER ? is_root : true;
    bool receives = kind == DLB_BCAST ? !is_root : kind == DLB_GATHER ? is_root : true;
    size_t rows_sent = has_rows(kind) ? size : 1;
    size_t rows_come =
        kind == DLB_ALLGATHER || kind == DLB_ALLTOALL || kind == DLB_GATHER ? size : 1;
    if ((sends && sent == NULL) || (receives && comes == NULL))
        return false;
    *part = sends ? *sent / rows_sent : *comes / rows_come;
    return (!sends || *sent == *part * rows_sent) &&
           (!receives || *comes == *part * rows_come);
}

static PyObject *new_collective(PyTypeObject *Py_UNUSED(type), PyObject *args,
                                PyObject *kwargs) {
    static char *names[] = {"peers", "name",      "source", "result",
                            "root",  "reduction", NULL};
    PyObject *given, *source, *result, *reduction = Py_None;
    const char *name;
    int root = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!sOO|iO:Collective", names,
                                     &dlb_PeersType, &given, &name, &source, &result,
                                     &root, &reduction))
        return NULL;
    dlb_peers *over = (dlb_peers *)given;
    size_t number = 0, sent = 0, comes = 0, part = 0,
           count = sizeof KINDS / sizeof *KINDS;
    while (number < count && strcmp(KINDS[number].name, name) != 0)
        number++;
    dlb_part copied = {0};
    char *from = NULL;
    if (!read_memory(source, &copied.source, &from, &sent) ||
        !read_memory(result, &copied.target, &copied.into, &comes))
        return NULL;
    copied.from = from;
    const dlb_combine *how =
        Py_TYPE(reduction) == &dlb_ReductionType && copied.source != NULL
            ? dlb_reduction_loop(reduction, ((dlb_tensor *)source)->dl.dtype)
            : NULL;
    if (number == count || root < 0 || root >= over->size ||
        (how != NULL) != (KINDS[number].kind == DLB_REDUCE_SCATTER) ||
        !read_part(KINDS[number].kind, over, root, copied.source != NULL ? &sent : NULL,
                   copied.target != NULL ? &comes : NULL, &part))
        return PyErr_Format(PyExc_ValueError,
                            "Collective: there is no %s from or to rank %d of these "
                            "sizes",
                            name, root);
    copied.part = part;
    return (PyObject *)dlb_collective_new(over, KINDS[number].kind, root, &copied, 1,
                                          result, how);
}

static PyObject *begin(PyObject *object, PyObject *given) {
    dlb_collective *self = (dlb_collective *)object;
    const dlb_ballot *ballot = dlb_ballot_of(given);
    if (ballot == NULL || dlb_ballot_over(ballot) != self->over || self->count > 0)
        return PyErr_Format(PyExc_ValueError,
                            "Collective: a ballot of the same peers is required, once");
    int failed;
    DLB_BEGIN_EXCLUSIVE(object);
    failed = dlb_collective_post(self, ballot);
    DLB_END_EXCLUSIVE();
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyMethodDef methods[] = {
    {"begin", begin, METH_O,
     "begin($self, ballot, /)\n--\n\nBegin, as all ranks have agreed by a ballot."},
    {"advance", advance, METH_NOARGS,
     "advance($self, /)\n--\n\nReturn whether all has gone and come."},
    {0},
};

static PyGetSetDef fields[] = {
    {"result", get_result, NULL, "The Tensor that it writes, or None.", NULL},
    {0},
};

PyTypeObject dlb_CollectiveType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Collective",
    .tp_doc = "Collective(peers, name, source, result, root=0, reduction=None)\n--\n\n"
              "A collective that copies, under way.",
    .tp_basicsize = sizeof(dlb_collective),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_new = new_collective,
    .tp_methods = methods,
    .tp_getset = fields,
    .tp_dealloc = dealloc,
};

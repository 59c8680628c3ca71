/* Agreement: do all ranks of a collective make the same call, with the same shape and
 * dtype?
 *
 * Each rank sends its ballot to a partner, merges what it receives, and so on with
 * partners twice as far away each time, so that after log2(n) rounds every rank knows
 * what all others said. A message has a fixed largest size, so a rank that says
 * something else does no harm. Payloads travel with the ballot and are reduced on the
 * way, always in the order of the ranks, so that all get the same bits. Values that are
 * too large for that go in the same rounds once more, when all agree.
 *
 * A ballot belongs to the call that makes it; once Python has it, each method and field
 * has it to itself. */
#include "layout/layout.h"
#include "memory/block.h"
#include "mpi/mpi.h"
#include "tensor/tensor.h"

#include <limits.h>
#include <pthread.h>
#include <string.h>

enum {
    HEAD = DLB_BALLOT_HEAD,
    SPACE = HEAD + DLB_BALLOT_MOST + 1024, /* a description may come before a payload */
};

typedef struct __attribute__((packed)) {
    uint8_t agreed, known;
    uint32_t size;
    uint8_t call[16], tensor[16];
} ballot_header;

_Static_assert(sizeof(ballot_header) == 38, "the header of a ballot");

typedef enum { RECEIVES = 1, SENDS = 2, REPLACES = 4 } round_kind;

/* Bytes of values that follow a ballot: less fit, with it, into one message that MPI
 * sends at once. */
#define LEAST_VALUES 4096

/* A request of MPI. */
typedef struct {
    dlb_mpi_handle handle;
    bool is_under_way;
} request;

/* Values that follow the ballot, of one dtype. */
typedef struct {
    dlb_buffer *buffer, *target; /* of `from` and `into` */
    const char *from;            /* this rank's; then `into`, once some were reduced */
    char *into, *space;          /* space: a block, or NULL */
    size_t nbytes;
    dlb_combine how;
    request received, sent;
    int came; /* bytes, in this round */
} ballot_values;

struct dlb_ballot {
    PyObject_HEAD
    dlb_peers *over;
    uint8_t call[16], tensor[16];
    bool known, agreed, has_begun, is_over, is_busy;
    bool follows;      /* other ballots, on which all agreed */
    bool moves_values; /* the words are over */
    ballot_values *values;
    size_t count;        /* of those */
    PyObject *result;    /* the Tensor of Python that they are reduced into, or NULL */
    dlb_combine combine; /* owns its function */
    char *block;         /* the header, then the payload */
    char *space;         /* what comes */
    size_t size;         /* bytes of the payload */
    size_t part;         /* of a row, if it has one for each rank, else 0 */
    bool gathers;        /* all ranks get each row; else each gets its own, reduced */
    char *packed;        /* the header, then the rows that go out */
    int tag, round, partner, kind;
    int came; /* bytes of what came last */
    request received, sent;
};

/* ---- digests ---- */

static uint64_t mix(uint64_t x) { /* one-to-one */
    x = (x ^ x >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
    x = (x ^ x >> 27) * UINT64_C(0x94d049bb133111eb);
    return x ^ x >> 31;
}

void dlb_kind_digest(DLDataType dtype, int32_t ndim, const int64_t *shape,
                     uint8_t digest[16]) {
    uint64_t words[2] = {UINT64_C(0x9e3779b97f4a7c15), UINT64_C(0xd1b54a32d192ed03)};
    uint64_t first = dtype.code | (uint64_t)dtype.bits << 8 |
                     (uint64_t)dtype.lanes << 16 | (uint64_t)(uint32_t)ndim << 32;
    for (int32_t i = -1; i < ndim; i++) {
        uint64_t word = i < 0 ? first : (uint64_t)shape[i];
        words[0] = mix(words[0] ^ word);
        words[1] = mix(words[1] + word + (words[0] | 1));
    }
    memcpy(digest, words, sizeof words);
}

/* ---- Peers ---- */

/* So many forks lead from the first process to this one: cheaper to ask than the kernel
 * for the number of a process. */
static _Atomic int generation;

static void count_fork(void) {
    atomic_fetch_add(&generation, 1);
}

static int watch_forks(void) {
    static _Atomic bool is_watching;
    return atomic_exchange(&is_watching, true) ? 0
                                               : pthread_atfork(NULL, NULL, count_fork);
}

bool dlb_is_member(const dlb_peers *peers) {
    return peers->generation == atomic_load_explicit(&generation, memory_order_relaxed);
}

static PyObject *new_peers(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library", "collective", "messages", "payloads",
                            "byte",    "rank",       "size",     "highest_tag",
                            "any_tag", "direct",     "near",     NULL};
    const char *library;
    unsigned long long collective, messages, payloads, byte;
    int rank, size, highest_tag, any_tag, is_direct = 1, is_near = 1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sKKKKiiii|pp:Peers", names,
                                     &library, &collective, &messages, &payloads, &byte,
                                     &rank, &size, &highest_tag, &any_tag, &is_direct,
                                     &is_near))
        return NULL;
    if (size < 1 || rank < 0 || rank >= size || highest_tag < 3)
        return PyErr_Format(PyExc_ValueError,
                            "Peers: there is no rank %d of %d, or no tag up to %d",
                            rank, size, highest_tag);
    dlb_mpi mpi;
    if (dlb_mpi_find(&mpi, library) < 0)
        return NULL;
    if (watch_forks() != 0)
        return PyErr_NoMemory();
    dlb_peers *self = (dlb_peers *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->mpi = mpi;
    self->collective = (dlb_mpi_handle)(uintptr_t)collective;
    self->messages = (dlb_mpi_handle)(uintptr_t)messages;
    self->payloads = (dlb_mpi_handle)(uintptr_t)payloads;
    self->byte = (dlb_mpi_handle)(uintptr_t)byte;
    self->rank = rank;
    self->size = size;
    self->highest_tag = highest_tag;
    self->any_tag = any_tag;
    self->is_direct = is_direct;
    self->is_near = is_near;
    self->generation = atomic_load(&generation);
    return (PyObject *)self;
}

static void dealloc_peers(PyObject *object) {
    Py_TYPE(object)->tp_free(object);
}

static PyObject *peers_payload(PyObject *object, PyObject *Py_UNUSED(none)) {
    dlb_peers *self = (dlb_peers *)object;
    return PyLong_FromUnsignedLong(dlb_next_tag(self, DLB_PAYLOAD_TAG));
}

static PyObject *peers_moves(PyObject *object, PyObject *nbytes) {
    size_t size = PyLong_AsSize_t(nbytes);
    if (size == (size_t)-1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(dlb_moves_values((dlb_peers *)object, size));
}

static PyObject *peers_has_begun(PyObject *object, PyObject *args) {
    const dlb_peers *self = (dlb_peers *)object;
    uint32_t tags = ((uint32_t)self->highest_tag + 1) / 4, later;
    unsigned int tag, calls;
    if (!PyArg_ParseTuple(args, "II:has_begun", &tag, &calls))
        return NULL;
    later = (calls % tags + tags - tag % tags) % tags;
    return PyBool_FromLong(later <= tags / 2);
}

static PyMethodDef peers_methods[] = {
    {"has_begun", peers_has_begun, METH_VARARGS,
     "has_begun($self, tag, calls, /)\n--\n\nReturn whether the collective with this "
     "tag is among the first `calls`."},
    {"moves_values", peers_moves, METH_O,
     "moves_values($self, nbytes, /)\n--\n\nReturn whether values of this size follow "
     "a "
     "Ballot."},
    {"next_payload", peers_payload, METH_NOARGS,
     "next_payload($self, /)\n--\n\nReturn the tag of a new payload that this process "
     "sends."},
    {0},
};

static PyObject *get_turns(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(atomic_load(&((dlb_peers *)object)->turns));
}

static int set_turns(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    int number = value == NULL ? -1 : (int)PyLong_AsLong(value);
    if (number < 0) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_ValueError, "turns must be a number from 0");
        return -1;
    }
    atomic_store(&((dlb_peers *)object)->turns, number);
    return 0;
}

static PyObject *get_is_direct(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((dlb_peers *)object)->is_direct);
}

static PyObject *get_calls(PyObject *object, void *Py_UNUSED(closure)) {
    dlb_peers *self = (dlb_peers *)object;
    return PyLong_FromUnsignedLong(atomic_load(&self->tags[DLB_CALL_TAG]));
}

static PyGetSetDef peers_fields[] = {
    {"calls", get_calls, NULL, "How many collectives this process has begun.", NULL},
    {"is_direct", get_is_direct, NULL,
     "Whether collectives that copy send from rank to rank, not by MPI's.", NULL},
    {"turns", get_turns, set_turns,
     "How many collectives of Python have yet to be posted.", NULL},
    {0},
};

PyTypeObject dlb_PeersType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Peers",
    .tp_doc = "Peers(library, collective, messages, payloads, byte, rank, size, "
              "highest_tag, any_tag, direct=True, near=True)\n--\n\nThe processes of a "
              "communicator.",
    .tp_basicsize = sizeof(dlb_peers),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = peers_methods,
    .tp_getset = peers_fields,
    .tp_new = new_peers,
    .tp_dealloc = dealloc_peers,
};

/* ---- Ballot ---- */

dlb_ballot *dlb_ballot_new(dlb_peers *over, const uint8_t call[16],
                           const uint8_t *tensor, size_t size,
                           const dlb_combine *combine) {
    dlb_ballot *self = (dlb_ballot *)dlb_BallotType.tp_alloc(&dlb_BallotType, 0);
    if (self == NULL)
        return NULL;
    self->over = (dlb_peers *)Py_XNewRef(over);
    self->block = PyMem_RawMalloc(HEAD + size);
    self->space = PyMem_RawMalloc(SPACE);
    if (self->block == NULL || self->space == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    memset(self->block, 0, HEAD);
    memcpy(self->call, call, sizeof self->call);
    if ((self->known = tensor != NULL))
        memcpy(self->tensor, tensor, sizeof self->tensor);
    if (combine != NULL) {
        self->combine = *combine;
        Py_XINCREF(combine->function);
    }
    self->size = size;
    self->agreed = true;
    self->tag = -1;
    return self;
}

int dlb_ballot_set_rows(dlb_ballot *self, size_t part, bool gathers) {
    self->packed = PyMem_RawMalloc(HEAD + self->size);
    if (self->packed == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(self->packed, 0, HEAD);
    self->part = part;
    self->gathers = gathers;
    return 0;
}

char *dlb_ballot_payload(dlb_ballot *self) {
    return self->block + HEAD;
}

size_t dlb_ballot_size(const dlb_ballot *self) {
    return self->size;
}

bool dlb_ballot_agreed(const dlb_ballot *self) {
    return self->agreed;
}

dlb_peers *dlb_ballot_over(const dlb_ballot *self) {
    return self->over;
}

int dlb_ballot_tag(const dlb_ballot *self) {
    return self->tag;
}

bool dlb_ballot_is_of(const dlb_ballot *self, DLDataType dtype, int32_t ndim,
                      const int64_t *shape) {
    uint8_t tensor[16];
    dlb_kind_digest(dtype, ndim, shape, tensor);
    return self->known && memcmp(tensor, self->tensor, sizeof tensor) == 0;
}

/* ---- rows, one for each rank ---- */

/* So many ranks as exceed a power of two have a partner that speaks for them. */
static int power_of(const dlb_peers *over) {
    return 1 << (31 - __builtin_clz((unsigned)over->size));
}

/* The bits in which `rank` differs from the owner of a row, or from the rank that
 * speaks for the owner. */
static int distance(const dlb_ballot *self, int row, int rank) {
    int power = power_of(self->over);
    return (row >= power ? row - power : row) ^ rank;
}

/* Whether the owner of a row is among the ranks that `rank` speaks for after this
 * round. */
static bool is_on_side(const dlb_ballot *self, int row, int rank) {
    int bit = self->partner ^ self->over->rank;
    return (distance(self, row, rank) & (2 * bit - 1)) == 0;
}

/* Whether `rank` has gathered a row before this round. */
static bool has_row(const dlb_ballot *self, int row, int rank) {
    int bit = self->partner ^ self->over->rank;
    return (distance(self, row, rank) & ~(bit - 1)) == 0;
}

static bool sends_row(const dlb_ballot *self, int row) {
    int rank = self->over->rank;
    switch (self->kind) {
    case RECEIVES | SENDS:
        return self->gathers ? has_row(self, row, rank)
                             : is_on_side(self, row, self->partner);
    case SENDS: /* the answer to a rank that this one speaks for */
        return self->gathers || row == self->partner;
    default: /* such a rank */
        return !self->gathers || row == rank;
    }
}

static bool receives_row(const dlb_ballot *self, int row) {
    int rank = self->over->rank;
    switch (self->kind) {
    case RECEIVES | SENDS:
        return self->gathers ? has_row(self, row, self->partner)
                             : is_on_side(self, row, rank);
    case RECEIVES: /* from a rank that this one speaks for */
        return !self->gathers || row == self->partner;
    default: /* such a rank */
        return self->gathers || row == rank;
    }
}

/* Bytes of the payload that comes in this round. */
static size_t expected_size(const dlb_ballot *self) {
    if (self->part == 0)
        return self->size;
    size_t size = 0;
    for (int row = 0; row < self->over->size; row++)
        size += receives_row(self, row) ? self->part : 0;
    return size;
}

static size_t pack_rows(dlb_ballot *self) {
    size_t size = 0;
    for (int row = 0; row < self->over->size; row++)
        if (sends_row(self, row)) {
            memcpy(self->packed + HEAD + size,
                   self->block + HEAD + self->part * (size_t)row, self->part);
            size += self->part;
        }
    return size;
}

/* Where what goes out is. */
static char *outgoing(dlb_ballot *self) {
    return self->part > 0 ? self->packed : self->block;
}

/* Write the header; return how many bytes go out. */
static size_t seal(dlb_ballot *self) {
    size_t size = 0;
    if (self->agreed)
        size = self->part > 0 ? pack_rows(self) : self->size;
    ballot_header made = {self->agreed, self->known, (uint32_t)size, {0}, {0}};
    memcpy(made.call, self->call, sizeof made.call);
    memcpy(made.tensor, self->tensor, sizeof made.tensor);
    memcpy(outgoing(self), &made, sizeof made);
    return HEAD + size;
}

static bool combines(const dlb_ballot *self) {
    return self->combine.loop != NULL || self->combine.function != NULL;
}

static PyObject *bytes_at(char *data, size_t size) {
    return PyMemoryView_FromMemory(data, (Py_ssize_t)size, PyBUF_WRITE);
}

void dlb_combine_values(const dlb_combine *how, const char *first, const char *second,
                        char *into, size_t nbytes) {
    Py_ssize_t step = how->itemsize, count = (Py_ssize_t)nbytes / step;
    Py_ssize_t steps[3] = {step, step, step};
    char *operands[3] = {(char *)first, (char *)second, into};
    if (count > 0)
        how->loop(operands, &count, steps, how->data);
}

static int reduce_into(dlb_ballot *self, char *own, char *other, size_t size,
                       bool is_first) {
    if (self->combine.loop != NULL) {
        dlb_combine_values(&self->combine, is_first ? own : other,
                           is_first ? other : own, own, size);
        return 0;
    }
    PyObject *views[2] = {bytes_at(own, size), bytes_at(other, size)};
    PyObject *result = NULL;
    if (views[0] != NULL && views[1] != NULL)
        result =
            PyObject_CallFunctionObjArgs(self->combine.function, views[0], views[1],
                                         is_first ? Py_True : Py_False, NULL);
    Py_XDECREF(views[0]);
    Py_XDECREF(views[1]);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Reduce what came into the payload, that of the lower ranks first. */
static int reduce(dlb_ballot *self, char *other, bool is_first) {
    char *own = self->block + HEAD;
    int failed = 0;
    if (self->part == 0)
        return reduce_into(self, own, other, self->size, is_first);
    for (int row = 0; failed == 0 && row < self->over->size; row++)
        if (receives_row(self, row)) {
            failed = reduce_into(self, own + self->part * (size_t)row, other,
                                 self->part, is_first);
            other += self->part;
        }
    return failed;
}

/* Whether the payload that came may be taken in. Where payloads are reduced or
 * gathered, it must have the size of one's own, or of the rows of this round. The
 * payload of a single rank is taken by ranks without one. A reply already includes
 * one's own ballot, and so must have the payload of one's own size. */
static bool sizes_agree(const dlb_ballot *self, size_t size, bool is_reply) {
    if (combines(self) || self->gathers)
        return size == expected_size(self);
    if (!self->combine.takes)
        return size == 0;
    if (is_reply && self->size > 0)
        return size == self->size;
    return size == 0 || self->size == 0;
}

/* Whether what came, in `nbytes`, agrees with one's own ballot; -1 with an exception
 * for what no rank says that makes the same call, or another one. No other place looks
 * at what another rank says before it is used. */
static int agrees(const dlb_ballot *self, const char *block, size_t nbytes,
                  bool is_reply, ballot_header *said) {
    bool is_whole = nbytes >= HEAD, is_same = false;
    if (is_whole) {
        memcpy(said, block, sizeof *said);
        is_whole = said->size == nbytes - HEAD;
        is_same = memcmp(said->call, self->call, sizeof said->call) == 0 &&
                  (!(self->known && said->known) ||
                   memcmp(said->tensor, self->tensor, sizeof said->tensor) == 0);
    }
    if (is_whole && (!said->agreed || !self->agreed || (!is_same && !is_reply)))
        return 0;
    if (is_whole && is_same && sizes_agree(self, said->size, is_reply))
        return 1;
    dlb_raise_error("MPIError",
                    "mpi: rank %d says of a collective, in %zu bytes, what no rank of "
                    "this version does; run the same dlbridge on all ranks",
                    self->partner, nbytes);
    return -1;
}

/* Take the rows that came in this round. */
static int take_rows(dlb_ballot *self, const char *rows) {
    for (int row = 0; row < self->over->size; row++)
        if (receives_row(self, row)) {
            memcpy(self->block + HEAD + self->part * (size_t)row, rows, self->part);
            rows += self->part;
        }
    return 0;
}

/* Take a payload instead of one's own. */
static int take_payload(dlb_ballot *self, const char *payload, size_t size) {
    if (self->part > 0)
        return take_rows(self, payload);
    if (size != self->size) {
        char *made = PyMem_RawRealloc(self->block, HEAD + size);
        if (made == NULL) {
            PyErr_NoMemory();
            return -1;
        }
        self->block = made;
        self->size = size;
    }
    memcpy(self->block + HEAD, payload, size);
    return 0;
}

/* Take in what another rank said, in `nbytes`. `is_reply`: what the others have agreed
 * on, which one's own ballot is part of already. */
static int merge(dlb_ballot *self, char *block, size_t nbytes, bool is_first,
                 bool is_reply) {
    ballot_header said;
    int status = agrees(self, block, nbytes, is_reply, &said);
    self->agreed = status > 0;
    if (status <= 0)
        return status;
    if (said.known && !self->known) {
        self->known = true;
        memcpy(self->tensor, said.tensor, sizeof said.tensor);
    }
    if (combines(self) && !is_reply)
        return reduce(self, block + HEAD, is_first);
    if (said.size > 0)
        return take_payload(self, block + HEAD, said.size);
    return 0;
}

/* The partner of a round, and what is done with it; 0: all rounds are over. */
static int plan_round(dlb_ballot *self) {
    int rank = self->over->rank, size = self->over->size;
    int power = power_of(self->over), extra = size - power;
    int at = self->round;
    if (rank >= power) {
        self->partner = rank - power;
        return at == 0 ? RECEIVES | SENDS | REPLACES : 0;
    }
    if (rank < extra && at-- == 0) {
        self->partner = rank + power;
        return RECEIVES;
    }
    if (power >> 1 >> at > 0) {
        self->partner = rank ^ 1 << at;
        return RECEIVES | SENDS;
    }
    bool answers = rank < extra && power >> at == 1;
    self->partner = rank + power;
    return answers ? SENDS : 0;
}

/* ---- values ---- */

bool dlb_moves_values(const dlb_peers *over, size_t nbytes) {
    return nbytes > LEAST_VALUES &&
           nbytes <=
               (size_t)(over->size <= DLB_FEW_RANKS ? INT_MAX : DLB_MANY_RANKS_MOST);
}

/* Where what comes is written: at first nothing else is in the result, unless it is the
 * source. */
static char *values_target(const ballot_values *values) {
    return values->from != values->into ? values->into : values->space;
}

/* Whether something comes that cannot be written to the result: from a second partner,
 * or where the result is the source. */
static bool needs_space(const dlb_ballot *self, const char *from, const char *into) {
    return self->over->size > 2 || (self->over->size == 2 && from == into);
}

int dlb_ballot_add_values(dlb_ballot *self, const dlb_combine *how, dlb_buffer *buffer,
                          const char *from, dlb_buffer *target, char *into,
                          size_t nbytes) {
    size_t size = (self->count + 1) * sizeof *self->values;
    ballot_values *made = self->values;
    if ((self->count & (self->count - 1)) == 0 && /* a power of two, or 0 */
        (made = PyMem_RawRealloc(made, 2 * size)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    self->values = made;
    char *space = NULL;
    if (needs_space(self, from, into) &&
        (space = dlb_block_get(nbytes, false)) == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    made[self->count++] = (ballot_values){.buffer = dlb_buffer_retain(buffer),
                                          .target = dlb_buffer_retain(target),
                                          .from = from,
                                          .into = into,
                                          .space = space,
                                          .nbytes = nbytes,
                                          .how = *how};
    return 0;
}

void dlb_ballot_set_result(dlb_ballot *self, PyObject *result) {
    Py_XSETREF(self->result, Py_NewRef(result));
}

static int refuse_values(const dlb_ballot *self, const ballot_values *values) {
    dlb_raise_error("MPIError",
                    "rank %d sends %d bytes of values, and %zu were agreed on; run the "
                    "same dlbridge on all ranks",
                    self->partner, values->came, values->nbytes);
    return -1;
}

/* Take in values that have come. */
static int merge_values(dlb_ballot *self, ballot_values *values) {
    if (!(self->kind & RECEIVES))
        return 0;
    if ((size_t)values->came != values->nbytes)
        return refuse_values(self, values);
    const char *other = values_target(values), *own = values->from;
    bool is_first = self->over->rank < self->partner;
    values->from = values->into;
    if (self->kind & REPLACES) {
        if (other != values->into)
            memcpy(values->into, other, values->nbytes);
        return 0;
    }
    Py_BEGIN_ALLOW_THREADS;
    dlb_combine_values(&values->how, is_first ? own : other, is_first ? other : own,
                       values->into, values->nbytes);
    Py_END_ALLOW_THREADS;
    return 0;
}

/* ---- rounds ---- */

static int post_receive(dlb_ballot *self, request *made, char *space, int most) {
    const dlb_peers *over = self->over;
    int code = over->mpi.irecv(space, most, over->byte, self->partner, self->tag,
                               over->collective, &made->handle);
    if (code != 0)
        return dlb_mpi_failed("MPI_Irecv", code, self->partner);
    made->is_under_way = true;
    return 0;
}

static int post_send(dlb_ballot *self, request *made, const char *data, int size) {
    const dlb_peers *over = self->over;
    int code = over->mpi.isend(data, size, over->byte, self->partner, self->tag,
                               over->collective, &made->handle);
    if (code != 0)
        return dlb_mpi_failed("MPI_Isend", code, self->partner);
    made->is_under_way = true;
    return 0;
}

/* Messages between two ranks with one tag come in the order in which they are sent. */
static int post_values(dlb_ballot *self, ballot_values *values) {
    int size = (int)values->nbytes;
    if (self->kind & RECEIVES) {
        char *space = values_target(values);
        if (post_receive(self, &values->received, space, size) < 0)
            return -1;
    }
    return self->kind & SENDS ? post_send(self, &values->sent, values->from, size) : 0;
}

static int post_round(dlb_ballot *self) {
    if (self->moves_values) {
        for (size_t i = 0; i < self->count; i++)
            if (post_values(self, &self->values[i]) < 0)
                return -1;
        return 0;
    }
    size_t size = self->kind & SENDS ? seal(self) : 0;
    if (self->kind & RECEIVES &&
        post_receive(self, &self->received, self->space, SPACE) < 0)
        return -1;
    return self->kind & SENDS ? post_send(self, &self->sent, outgoing(self), (int)size)
                              : 0;
}

/* MPI_Test; large values are copied within, so others may run meanwhile. A request that
 * failed is under way no more where MPI has put another handle in its place. */
static int test(const dlb_ballot *self, request *tested, dlb_mpi_status status) {
    const dlb_mpi *mpi = &self->over->mpi;
    dlb_mpi_handle before = tested->handle;
    int done = 0, code;
    if (self->moves_values) {
        Py_BEGIN_ALLOW_THREADS;
        code = mpi->test(&tested->handle, &done, status);
        Py_END_ALLOW_THREADS;
    } else
        code = mpi->test(&tested->handle, &done, status);
    if (code == 0 ? done : tested->handle != before)
        tested->is_under_way = false;
    return code == 0 ? done : dlb_mpi_failed("MPI_Test", code, self->partner);
}

/* 1 once what is received and what is sent have come and gone. */
static int finish_requests(dlb_ballot *self, request *received, request *sent) {
    dlb_mpi_status status;
    const dlb_mpi *mpi = &self->over->mpi;
    int done, code = 0;
    if (received->is_under_way) {
        done = test(self, received, status);
        if (done < 0 && sent->is_under_way &&
            mpi->test(&sent->handle, &code, status) == 0 && code)
            sent->is_under_way = false; /* so that its memory can go */
        if (done <= 0)
            return done;
        if ((code = mpi->get_count(status, self->over->byte, &self->came)) != 0)
            return dlb_mpi_failed("MPI_Get_count", code, self->partner);
    }
    return sent->is_under_way ? test(self, sent, status) : 1;
}

/* Take in what has come of a round, once all has: MPI copies little while others are
 * reduced. 1: done; 0: not yet; -1. */
static int finish_values(dlb_ballot *self) {
    bool are_done = true;
    for (size_t i = 0; i < self->count; i++) {
        ballot_values *values = &self->values[i];
        if (!values->received.is_under_way && !values->sent.is_under_way)
            continue;
        bool was_received = !values->received.is_under_way;
        int done = finish_requests(self, &values->received, &values->sent);
        if (done < 0)
            return -1;
        if (!was_received && !values->received.is_under_way)
            values->came = self->came;
        are_done = are_done && done > 0;
    }
    for (size_t i = 0; are_done && i < self->count; i++)
        if (merge_values(self, &self->values[i]) < 0)
            return -1;
    return are_done;
}

static int finish_round(dlb_ballot *self) {
    if (self->moves_values)
        return finish_values(self);
    int done = finish_requests(self, &self->received, &self->sent);
    if (done <= 0 || !(self->kind & RECEIVES))
        return done;
    bool is_first = self->over->rank < self->partner;
    return merge(self, self->space, (size_t)self->came, is_first,
                 self->kind & REPLACES) < 0
               ? -1
               : 1;
}

/* Begin with the next round, if there is one. */
static int next_round(dlb_ballot *self) {
    self->round++;
    self->kind = plan_round(self);
    if (self->kind == 0 && !self->moves_values && self->agreed && self->count > 0) {
        self->moves_values = true;
        self->round = 0;
        self->kind = plan_round(self);
    }
    if (self->kind != 0)
        return post_round(self);
    for (size_t i = 0; self->moves_values && i < self->count; i++) {
        ballot_values *values = &self->values[i];
        if (values->from != values->into) /* one rank */
            memcpy(values->into, values->from, values->nbytes);
    }
    self->is_over = true;
    return 0;
}

static int advance(dlb_ballot *self) {
    while (!self->is_over) {
        if (!self->has_begun) {
            self->has_begun = true;
            self->tag = (int)dlb_next_tag(self->over, self->follows ? DLB_FOLLOWING_TAG
                                                                    : DLB_CALL_TAG);
            self->round = -1;
        } else {
            int done = finish_round(self);
            if (done <= 0)
                return done;
        }
        if (next_round(self) < 0)
            return -1;
    }
    return 1;
}

int dlb_ballot_advance(dlb_ballot *self) {
    if (self->over == NULL) {
        PyErr_SetString(PyExc_ValueError, "Ballot: it has no peers");
        return -1;
    }
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    int done = advance(self);
    self->is_busy = false;
    return done;
}

/* The digest of (shape, dtype). */
static int read_tensor(PyObject *kind, uint8_t digest[16]) {
    int64_t shape[DLB_MAX_NDIM];
    DLDataType dtype;
    if (!PyTuple_Check(kind) || PyTuple_GET_SIZE(kind) != 2) {
        PyErr_SetString(PyExc_TypeError, "Ballot: kind must be (shape, dtype) or None");
        return -1;
    }
    int ndim = dlb_parse_dims(PyTuple_GET_ITEM(kind, 0), shape, "shape");
    if (ndim < 0 || dlb_parse_dtype(PyTuple_GET_ITEM(kind, 1), &dtype) < 0)
        return -1;
    dlb_kind_digest(dtype, ndim, shape, digest);
    return 0;
}

/* Add the values of a Ballot that Python makes: (source, result, Reduction). */
static int add_values(dlb_ballot *self, PyObject *given) {
    PyObject *source, *result, *reduction;
    if (!PyArg_ParseTuple(given, "O!O!O!:Ballot", &dlb_TensorType, &source,
                          &dlb_TensorType, &result, &dlb_ReductionType, &reduction))
        return -1;
    const dlb_tensor *from = (dlb_tensor *)source, *to = (dlb_tensor *)result;
    size_t nbytes = (size_t)dlb_packed_bytes(from->dl.dtype, from->flags,
                                             dlb_element_count(&from->dl));
    const dlb_combine *loop = dlb_reduction_loop(reduction, from->dl.dtype);
    if (loop == NULL || self->over == NULL || !dlb_moves_values(self->over, nbytes) ||
        to->dl.dtype.code != from->dl.dtype.code ||
        to->dl.dtype.bits != from->dl.dtype.bits ||
        dlb_element_count(&to->dl) != dlb_element_count(&from->dl)) {
        PyErr_SetString(PyExc_ValueError,
                        "Ballot: values are a source and a result of the same kind, "
                        "and a Reduction that has a loop for them");
        return -1;
    }
    self->result = Py_NewRef(result);
    return dlb_ballot_add_values(
        self, loop, from->buffer, (const char *)from->dl.data + from->dl.byte_offset,
        to->buffer, (char *)to->dl.data + to->dl.byte_offset, nbytes);
}

static dlb_ballot *make_ballot(PyObject *over, const Py_buffer *call, PyObject *kind,
                               const Py_buffer *payload, PyObject *combine,
                               bool takes) {
    uint8_t tensor[16];
    dlb_combine how = {.function = combine == Py_None ? NULL : combine, .takes = takes};
    if (over != Py_None && Py_TYPE(over) != &dlb_PeersType) {
        PyErr_SetString(PyExc_TypeError, "Ballot: peers must be Peers, or None");
        return NULL;
    }
    if (call->len != 16 || payload->len > SPACE - HEAD) {
        PyErr_Format(PyExc_ValueError,
                     "Ballot: a digest of 16 bytes and a payload of at most %d are "
                     "required, got %zd and %zd",
                     SPACE - HEAD, call->len, payload->len);
        return NULL;
    }
    if (kind != Py_None && read_tensor(kind, tensor) < 0)
        return NULL;
    dlb_ballot *made =
        dlb_ballot_new(over == Py_None ? NULL : (dlb_peers *)over, call->buf,
                       kind == Py_None ? NULL : tensor, (size_t)payload->len, &how);
    if (made != NULL && payload->len > 0)
        memcpy(dlb_ballot_payload(made), payload->buf, (size_t)payload->len);
    return made;
}

static PyObject *new_ballot(PyTypeObject *Py_UNUSED(type), PyObject *args,
                            PyObject *kwargs) {
    static char *names[] = {"peers",   "call",     "kind",    "payload",
                            "combine", "agreed",   "values",  "takes",
                            "follows", "scatters", "gathers", NULL};
    PyObject *over, *kind, *combine = Py_None, *values = Py_None;
    Py_buffer call, payload;
    int agreed = 1, takes = 0, follows = 0, scatters = 0, gathers = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "Oy*Oy*|OpOpppp:Ballot", names,
                                     &over, &call, &kind, &payload, &combine, &agreed,
                                     &values, &takes, &follows, &scatters, &gathers))
        return NULL;
    dlb_ballot *made = make_ballot(over, &call, kind, &payload, combine, takes);
    if (made != NULL) {
        made->agreed = agreed;
        made->follows = follows;
    }
    if (made != NULL && values != Py_None && add_values(made, values) < 0)
        Py_CLEAR(made);
    size_t part = 0; /* without peers, the payload is not divided into rows */
    if (made != NULL && made->over != NULL)
        part = made->size / (size_t)made->over->size;
    if (made != NULL && (scatters || gathers) &&
        dlb_ballot_set_rows(made, part, gathers) < 0)
        Py_CLEAR(made);
    PyBuffer_Release(&call);
    PyBuffer_Release(&payload);
    return (PyObject *)made;
}

/* MPI may still use memory of requests that are not complete, which are of the words or
 * of the values: it stays. */
static void dealloc_ballot(PyObject *object) {
    dlb_ballot *self = (dlb_ballot *)object;
    if (!self->received.is_under_way)
        PyMem_RawFree(self->space);
    if (!self->sent.is_under_way) {
        PyMem_RawFree(self->block);
        PyMem_RawFree(self->packed);
    }
    for (size_t i = 0; i < self->count; i++) {
        ballot_values *values = &self->values[i];
        if (values->received.is_under_way || values->sent.is_under_way)
            continue;
        if (values->space != NULL)
            dlb_block_put(values->space, values->nbytes);
        dlb_buffer_drop(values->buffer);
        dlb_buffer_drop(values->target);
    }
    PyMem_RawFree(self->values);
    Py_XDECREF(self->result);
    Py_XDECREF(self->over);
    Py_XDECREF(self->combine.function);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *ballot_advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done = dlb_ballot_advance((dlb_ballot *)object);
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *ballot_sealed(PyObject *object, PyObject *Py_UNUSED(none)) {
    dlb_ballot *self = (dlb_ballot *)object;
    size_t size = seal(self);
    return PyBytes_FromStringAndSize(outgoing(self), (Py_ssize_t)size);
}

static PyObject *ballot_merge(PyObject *object, PyObject *given) {
    Py_buffer block;
    if (PyObject_GetBuffer(given, &block, PyBUF_SIMPLE) < 0)
        return NULL;
    int failed = merge((dlb_ballot *)object, block.buf, (size_t)block.len, true, false);
    PyBuffer_Release(&block);
    return failed ? NULL : Py_NewRef(Py_None);
}

static PyObject *ballot_is_of(PyObject *object, PyObject *kind) {
    const dlb_ballot *self = (dlb_ballot *)object;
    uint8_t tensor[16];
    if (read_tensor(kind, tensor) < 0)
        return NULL;
    return PyBool_FromLong(self->known &&
                           memcmp(tensor, self->tensor, sizeof tensor) == 0);
}

static PyObject *get_agreed(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((dlb_ballot *)object)->agreed);
}

static PyObject *get_payload(PyObject *object, void *Py_UNUSED(closure)) {
    dlb_ballot *self = (dlb_ballot *)object;
    return PyBytes_FromStringAndSize(self->block + HEAD, (Py_ssize_t)self->size);
}

static PyObject *get_result(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *result = ((dlb_ballot *)object)->result;
    return Py_NewRef(result == NULL ? Py_None : result);
}

DLB_EXCLUSIVE(advance, ballot_advance, PyObject *)
DLB_EXCLUSIVE(sealed, ballot_sealed, PyObject *)
DLB_EXCLUSIVE(merge, ballot_merge, PyObject *)
DLB_EXCLUSIVE(is_of, ballot_is_of, PyObject *)
DLB_EXCLUSIVE(agreed, get_agreed, void *)
DLB_EXCLUSIVE(payload, get_payload, void *)

static PyMethodDef ballot_methods[] = {
    {"advance", exclusive_advance, METH_NOARGS,
     "advance($self, /)\n--\n\nGo on as far as what has come allows; return whether "
     "all "
     "is said."},
    {"sealed", exclusive_sealed, METH_NOARGS,
     "sealed($self, /)\n--\n\nReturn the message that goes out."},
    {"merge", exclusive_merge, METH_O,
     "merge($self, block, /)\n--\n\nTake in the message of a higher rank."},
    {"is_of", exclusive_is_of, METH_O,
     "is_of($self, kind, /)\n--\n\nReturn whether the ranks have agreed on this "
     "(shape, dtype)."},
    {0},
};

static PyObject *get_tag(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromLong(((dlb_ballot *)object)->tag);
}

DLB_EXCLUSIVE(tag, get_tag, void *)

static PyGetSetDef ballot_fields[] = {
    {"tag", exclusive_tag, NULL, "That of its messages; -1: it has not begun.", NULL},
    {"agreed", exclusive_agreed, NULL, "Whether all ranks make the same call.", NULL},
    {"payload", exclusive_payload, NULL, "A copy of the payload.", NULL},
    {"result", get_result, NULL, "The Tensor that the values are reduced into.", NULL},
    {0},
};

PyTypeObject dlb_BallotType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Ballot",
    .tp_doc = "Ballot(peers, call, kind, payload, combine=None, agreed=True, "
              "values=None, takes=False, follows=False, scatters=False, "
              "gathers=False)\n--\n\n"
              "What a rank says of its call, merged with what others say.",
    .tp_basicsize = sizeof(dlb_ballot),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = ballot_methods,
    .tp_getset = ballot_fields,
    .tp_new = new_ballot,
    .tp_dealloc = dealloc_ballot,
};

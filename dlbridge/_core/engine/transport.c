/* Values on their way between the tasks of a graph: messages of MPI.
 *
 * A message is a header, the shape, and up to SMALL bytes of contents; larger
 * contents follow in a message of their own, which goes straight into the memory of the
 * array that the receiver gets. That memory is made when the receiver runs the step,
 * and only if the step allows values of that size. What a header says is checked as a
 * whole before any of it is used.
 *
 * Between tasks of one host large contents stay where they are, in memory that these
 * share (memory/arena.h): the message is a loan of them, which the receiver's array,
 * read-only, gives back when it goes. What lies elsewhere is copied there first; where
 * there is no room, it is sent. Messages between these tasks go through mailboxes in
 * that memory, and by MPI where they are too long or find no room. Their numbers keep
 * the order.
 *
 * A send never waits. A receive waits for the message of its step and edge, and while
 * it waits it takes in whatever comes, also for others. All of this happens under the
 * GIL, and without one under DLB_EXCLUSIVE of the transport; both are given up while
 * MPI may copy much, and between two looks. */
#define _GNU_SOURCE /* clock_gettime */
#include "engine/engine.h"

#include <sched.h>
#include <string.h>
#include <structmember.h>
#include <time.h>
#include <unistd.h>

#include "exchange/exchange.h"
#include "mpi/mpi.h"
#include "python/numpy.h"

#define SMALL 8192              /* bytes of contents that travel with the envelope */
#define CHUNK ((size_t)1 << 30) /* counts of MPI are ints */
#define MOST_CHUNKS 64
#define BUCKETS 256
#define TAG 1
#define FAILURE UINT32_MAX /* the edge of the news that a step failed */
#define UNLIMITED (-1)
#define LEFT_OUT 64 /* looks at mailboxes for one at MPI, where all tasks have them */

/* BATCH: its contents are messages of values, each padded to 8 bytes. LENT: the
 * contents lie in the arena. */
enum kind { VALUE, LARGE, NEWS, BATCH, LENT };

typedef struct {
    uint64_t step, nbytes;
    uint32_t edge, sender, payload; /* payload: tag of the contents' own message */
    uint32_t dtype;                 /* number of the DataType; 0 are bytes */
    uint8_t kind, ndim, spare[6];
    dlb_arena_loan loan; /* of contents that are lent */
    uint32_t number;     /* among the messages of its sender to a task of its host */
    uint32_t plan;       /* of a step that all tasks make: which run it is; or 0 */
} envelope;

_Static_assert(sizeof(envelope) == 64, "the header of a message");

typedef dlb_mpi_handle handle;

/* Requests of MPI that have to end before memory is free again. */
typedef struct {
    int count;
    size_t nbytes; /* that come with the first of them, and so on; 0 of sends */
    bool is_short; /* fewer came */
    int peer;
    handle requests[MOST_CHUNKS + 1];
} pending;

typedef struct sent {
    struct sent *next;
    envelope *message; /* owned */
    PyObject *keeper;  /* of contents of their own, or NULL */
    size_t nbytes;
    pending pending;
} sent;

typedef struct arrived {
    struct arrived *next;
    envelope *message; /* owned; shape and small contents follow */
    bool is_inside;    /* the message follows in the same block of memory */
    PyObject *array;   /* of large contents, an ndarray of bytes, or NULL */
    bool posted;       /* large contents are on their way into the array */
    bool refused;      /* they are more than the step allows, and are not received */
    bool unwanted;     /* of a step that was given up */
    bool handed_on;    /* the loan is somebody else's */
    pending pending;
} arrived;

typedef struct rendezvous rendezvous;

/* Values for one rank that go out together. */
typedef struct batch {
    struct batch *next;
    int peer;
    envelope *message; /* owned: one of a value, or a BATCH; NULL: there are none */
} batch;

/* A message that came before others of its sender. */
typedef struct early {
    struct early *next; /* by their numbers */
    envelope *message;  /* owned */
} early;

#define MOST_EARLY (1 << 20) /* numbers that may be missing before it */

/* Another task of this host. */
typedef struct {
    uint32_t rank;
    uint32_t sent, expected; /* numbers of the next messages */
    early *early;
} neighbour;

typedef struct {
    PyObject_HEAD
    dlb_mpi mpi;
    handle messages, payloads, byte;
    int any_source, rank, size, highest_tag;
    PyObject *on_news, *look, *failed;
    arrived *table[BUCKETS];
    arrived *incoming; /* large ones that are not complete */
    rendezvous *begun; /* those whose steps run here */
    sent *outgoing;
    size_t bytes_under_way;
    uint32_t last_payload;
    PyObject *given_up; /* set of steps */
    pid_t process;
    dlb_arena *arena;   /* with the tasks of this host; NULL: there is none */
    dlb_arena *offered; /* until all of them have agreed */
    neighbour *neighbours;
    uint32_t neighbour_count;
    uint32_t left_out; /* looks at the mailboxes since one at MPI */
    PyObject *handler; /* of NumPy, that allocates there */
    bool is_busy;      /* a thread is taking in messages */
    uint64_t count;    /* of messages that came */
    uint64_t sent_count, sent_bytes, lent_count;
} transport;

struct rendezvous {
    PyObject_HEAD
    transport *over;
    rendezvous *next; /* of those that have begun */
    unsigned long long step;
    Py_ssize_t most; /* bytes of a message, or UNLIMITED */
    bool is_begun;
    PyObject *peers;       /* for `look`: without whom the step cannot end; or NULL */
    unsigned int plan;     /* messages of another one are not taken */
    struct batch *batches; /* one for each rank that values went to */
    double deadline;       /* of the step: when its waits raise `late`; 0: never */
    PyObject *late;
};

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    rendezvous *of;
    PyArray_Descr *descr;
    Py_ssize_t most;  /* bytes of its value, or UNLIMITED */
    PyObject *refuse; /* raises, for a shape and bytes that are too many; or NULL */
    int peer;
    uint32_t number, dtype;
    char more; /* another value for the peer follows soon: this one may wait for it */
} edge;

/* ---- messages ---- */

static int64_t *dims_of(envelope *message) {
    return (int64_t *)(message + 1);
}

static char *contents_of(envelope *message) {
    return (char *)(dims_of(message) + message->ndim);
}

/* Whether the contents are elsewhere. */
static bool is_header(const envelope *message) {
    return message->kind == LARGE || message->kind == LENT;
}

static size_t size_of(const envelope *message) {
    return sizeof *message + 8 * (size_t)message->ndim +
           (is_header(message) ? 0 : (size_t)message->nbytes);
}

static envelope *new_message(enum kind kind, uint64_t step, uint32_t number,
                             size_t nbytes) {
    envelope *made = PyMem_Malloc(sizeof *made + nbytes);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    *made = (envelope){.step = step, .nbytes = nbytes, .edge = number};
    made->kind = (uint8_t)kind;
    return made;
}

/* A value to be sent. */
typedef struct {
    enum kind kind;
    uint32_t edge, dtype;
    int ndim;
    const npy_intp *dims;
    char *data;
    size_t nbytes;
    const dlb_arena_loan *loan;
} value;

static size_t size_for(const value *what) {
    return sizeof(envelope) + 8 * (size_t)what->ndim +
           (what->kind == VALUE ? what->nbytes : 0);
}

/* Whether a message that came is one that tasks send: its sender may be of another
 * version. */
static bool is_sound(const transport *self, const envelope *message, size_t nbytes) {
    if (nbytes < sizeof *message || message->kind > LENT ||
        message->ndim > NPY_MAXDIMS || message->sender >= (uint32_t)self->size)
        return false;
    if (message->kind != NEWS && message->edge == FAILURE)
        return false;
    if (message->kind == LARGE) {
        if (message->nbytes <= SMALL || message->nbytes > CHUNK * MOST_CHUNKS ||
            message->payload < 1 || message->payload > (uint32_t)self->highest_tag)
            return false;
    } else if (message->kind == LENT) {
        if (message->nbytes <= SMALL || self->arena == NULL ||
            dlb_arena_find(self->arena, &message->loan, (size_t)message->nbytes) ==
                NULL)
            return false;
    } else if (message->nbytes > nbytes)
        return false;
    return size_of(message) == nbytes;
}

static arrived **bucket(transport *self, uint64_t step, uint32_t number) {
    return &self->table[(step * 31 + number) % BUCKETS];
}

static arrived **find(transport *self, uint64_t step, uint32_t number, uint32_t plan) {
    arrived **at = bucket(self, step, number);
    while (*at != NULL &&
           ((*at)->message->step != step || (*at)->message->edge != number ||
            (*at)->message->plan != plan))
        at = &(*at)->next;
    return at;
}

static size_t padded(size_t nbytes) {
    return (nbytes + 7) & ~(size_t)7;
}

/* The message of a batch behind another one, or the first one; NULL: there is none. */
static envelope *next_inside(envelope *batch, envelope *before) {
    char *at =
        before == NULL ? contents_of(batch) : (char *)before + padded(size_of(before));
    return at < contents_of(batch) + batch->nbytes ? (envelope *)at : NULL;
}

static void give_back(transport *self, const envelope *message) {
    if (message->kind == LENT)
        dlb_arena_give_back(self->arena, &message->loan);
}

/* Take the loans of a message that came; false: one of them was not counted. */
static bool take_loans(transport *self, envelope *message) {
    if (message->kind == LENT)
        return dlb_arena_accept(self->arena, &message->loan);
    if (message->kind != BATCH)
        return true;
    envelope *one = NULL, *end = NULL;
    while ((one = next_inside(message, one)) != NULL)
        if (one->kind == LENT && !dlb_arena_accept(self->arena, &one->loan)) {
            end = one;
            break;
        }
    if (end == NULL)
        return true;
    for (one = NULL; (one = next_inside(message, one)) != end;)
        give_back(self, one);
    return false;
}

/* Free a message that nobody takes. */
static void drop(transport *self, envelope *message) {
    give_back(self, message);
    if (message->kind == BATCH)
        for (envelope *one = NULL; (one = next_inside(message, one)) != NULL;)
            give_back(self, one);
    PyMem_Free(message);
}

static void free_arrived(transport *self, arrived *one) {
    Py_XDECREF(one->array);
    if (one->message->kind == LENT && !one->handed_on)
        dlb_arena_give_back(self->arena, &one->message->loan);
    if (!one->is_inside)
        PyMem_Free(one->message);
    PyMem_Free(one);
}

static void free_sent(sent *one) {
    Py_XDECREF(one->keeper);
    PyMem_Free(one->message);
    PyMem_Free(one);
}

/* Test the requests; 1 if all are complete, 0 if not, -1 with an exception. Without the
 * GIL where much is under way: MPI copies within. */
static int test(transport *self, pending *all) {
    uint64_t status[8];
    while (all->count > 0) {
        int done = 0, code;
        if (self->bytes_under_way > SMALL) {
            Py_BEGIN_ALLOW_THREADS;
            code = self->mpi.test(&all->requests[all->count - 1], &done, status);
            Py_END_ALLOW_THREADS;
        } else
            code = self->mpi.test(&all->requests[all->count - 1], &done, status);
        if (code != 0)
            return dlb_mpi_failed("MPI_Test", code, all->peer);
        if (!done)
            return 0;
        all->count--;
        if (all->nbytes > 0) {
            size_t left = all->nbytes - CHUNK * (size_t)all->count;
            int wanted = (int)(left < CHUNK ? left : CHUNK), came = 0;
            if (self->mpi.get_count(status, self->byte, &came) != 0 || came != wanted)
                all->is_short = true;
        }
    }
    return 1;
}

static char *data_of(const arrived *one) {
    return PyArray_DATA((PyArrayObject *)one->array);
}

static int post_chunks(transport *self, bool sends, char *data, size_t nbytes, int peer,
                       uint32_t tag, pending *all) {
    all->peer = peer;
    for (size_t start = 0; start < nbytes; start += CHUNK) {
        int length = (int)(nbytes - start < CHUNK ? nbytes - start : CHUNK);
        handle *request = &all->requests[all->count];
        *request = NULL;
        int code = sends ? self->mpi.isend(data + start, length, self->byte, peer,
                                           (int)tag, self->payloads, request)
                         : self->mpi.irecv(data + start, length, self->byte, peer,
                                           (int)tag, self->payloads, request);
        if (code != 0)
            return dlb_mpi_failed(sends ? "MPI_Isend" : "MPI_Irecv", code, peer);
        all->count++;
    }
    return 0;
}

static int is_given_up(transport *self, uint64_t step) {
    if (PySet_GET_SIZE(self->given_up) == 0)
        return 0;
    PyObject *number = PyLong_FromUnsignedLongLong(step);
    int found = number == NULL ? -1 : PySet_Contains(self->given_up, number);
    Py_XDECREF(number);
    return found;
}

static int call_news(transport *self, envelope *message) {
    PyObject *result = PyObject_CallFunction(
        self->on_news, "iKIy#", (int)message->sender, (unsigned long long)message->step,
        message->edge, contents_of(message), (Py_ssize_t)message->nbytes);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Who runs a step here; NULL: it does not run. */
static const rendezvous *runner_of(const transport *self, uint64_t step) {
    const rendezvous *of = self->begun;
    while (of != NULL && of->step != step)
        of = of->next;
    return of;
}

/* Receive large contents if their step runs here and allows them, or if they are only
 * received because their sender waits for that. */
static int admit(transport *self, arrived *one) {
    envelope *message = one->message;
    size_t nbytes = (size_t)message->nbytes;
    if (!one->unwanted) {
        const rendezvous *of = runner_of(self, message->step);
        if (of == NULL)
            return 0;
        if (of->most != UNLIMITED && nbytes > (size_t)of->most) {
            one->refused = true;
            return 0;
        }
    }
    one->array = dlb_numpy_bytes(nbytes);
    if (one->array == NULL)
        return -1;
    one->pending.nbytes = nbytes;
    int result = post_chunks(self, false, data_of(one), nbytes, (int)message->sender,
                             message->payload, &one->pending);
    if (result < 0 && one->pending.count == 0) {
        Py_CLEAR(one->array);
        return -1;
    }
    if (result < 0) /* MPI still writes there: it is dropped when that has ended */
        one->unwanted = true;
    one->posted = true;
    self->bytes_under_way += nbytes;
    return result;
}

static void put_last(arrived **at, arrived *one) {
    while (*at != NULL) /* messages of one edge stay in order */
        at = &(*at)->next;
    *at = one;
}

/* Keep a message that came, or hand it on; takes `message`. */
static int keep(transport *self, envelope *message) {
    self->count++;
    if (message->kind == NEWS) {
        int result = call_news(self, message);
        PyMem_Free(message);
        return result;
    }
    int unwanted = is_given_up(self, message->step);
    if (unwanted > 0 && message->kind != LARGE) {
        drop(self, message);
        return 0;
    }
    size_t room =
        message->kind == LARGE ? sizeof(arrived) : offsetof(arrived, pending.requests);
    arrived *one = unwanted < 0 ? NULL : PyMem_Calloc(1, room);
    if (one == NULL) {
        drop(self, message);
        if (!PyErr_Occurred())
            PyErr_NoMemory();
        return -1;
    }
    one->message = message;
    one->unwanted = unwanted > 0;
    int result = message->kind == LARGE ? admit(self, one) : 0;
    if (result < 0 && !one->posted) {
        free_arrived(self, one);
        return -1;
    }
    put_last(message->kind == LARGE ? &self->incoming
                                    : bucket(self, message->step, message->edge),
             one);
    return result;
}

static void end_step(rendezvous *of) {
    if (!of->is_begun)
        return;
    rendezvous **at = &of->over->begun;
    while (*at != of)
        at = &(*at)->next;
    *at = of->next;
    of->is_begun = false;
    if (of->over->arena != NULL)
        dlb_arena_sweep(of->over->arena);
    of->deadline = 0;
    Py_CLEAR(of->late);
    for (batch *one = of->batches; one != NULL; one = one->next) {
        PyMem_Free(one->message); /* of a step that failed */
        one->message = NULL;
    }
}

/* Whether a batch holds nothing but messages of values of its sender. */
static bool is_sound_batch(const transport *self, envelope *batch) {
    char *at = contents_of(batch), *end = at + batch->nbytes;
    if (batch->ndim != 0)
        return false;
    while (at < end) {
        const envelope *one = (const envelope *)at;
        size_t left = (size_t)(end - at);
        if (left < sizeof *one || (one->kind != VALUE && one->kind != LENT) ||
            one->sender != batch->sender || one->ndim > NPY_MAXDIMS ||
            (one->kind == VALUE && one->nbytes > left) || padded(size_of(one)) > left ||
            !is_sound(self, one, size_of(one)))
            return false;
        at += padded(size_of(one));
    }
    return true;
}

/* Keep a copy of one message of a batch. Returns 1, 0 if its step was given up, or -1
 * with an exception. */
static int keep_copy(transport *self, const envelope *message) {
    const size_t room = offsetof(arrived, pending.requests), nbytes = size_of(message);
    self->count++;
    int unwanted = is_given_up(self, message->step);
    if (unwanted != 0)
        return unwanted > 0 ? 0 : -1;
    arrived *one = PyMem_Malloc(room + nbytes);
    if (one == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    memset(one, 0, room);
    one->message = (envelope *)((char *)one + room);
    one->is_inside = true;
    memcpy(one->message, message, nbytes);
    put_last(bucket(self, message->step, message->edge), one);
    return 1;
}

/* Keep each message of a batch; takes `batch`. */
static int keep_batch(transport *self, envelope *batch) {
    int result = 0;
    for (envelope *here = NULL; (here = next_inside(batch, here)) != NULL;) {
        int kept = result < 0 ? -1 : keep_copy(self, here);
        if (kept < 0)
            result = -1;
        if (kept <= 0) /* nobody will take it */
            give_back(self, here);
    }
    PyMem_Free(batch);
    return result;
}

/* Let a step run; take in those of its large contents that are announced already. */
static int begin_step(rendezvous *of, uint64_t step) {
    end_step(of);
    transport *over = of->over;
    of->step = step;
    of->next = over->begun;
    over->begun = of;
    of->is_begun = true;
    int result = 0;
    for (arrived *one = over->incoming; one != NULL && result == 0; one = one->next)
        if (one->message->step == step && !one->posted && !one->refused)
            result = admit(over, one);
    return result;
}

/* ---- the order of messages of one host ---- */

static neighbour *neighbour_of(const transport *self, uint32_t rank) {
    for (uint32_t i = 0; i < self->neighbour_count; i++)
        if (self->neighbours[i].rank == rank)
            return &self->neighbours[i];
    return NULL;
}

static int deliver(transport *self, envelope *message) {
    return message->kind == BATCH ? keep_batch(self, message) : keep(self, message);
}

/* Put a message aside until those before it have come; takes it. */
static int keep_early(transport *self, neighbour *from, envelope *message) {
    early **at = &from->early;
    while (*at != NULL &&
           (*at)->message->number - from->expected < message->number - from->expected)
        at = &(*at)->next;
    early *one = PyMem_Malloc(sizeof *one);
    if (one == NULL) {
        drop(self, message);
        PyErr_NoMemory();
        return -1;
    }
    *one = (early){*at, message};
    *at = one;
    return 0;
}

/* Hand on the messages that waited for the one before; -1 if one cannot be, or
 * `result`. The first exception stays, and the others come through. */
static int deliver_early(transport *self, neighbour *from, int result) {
    while (from->early != NULL && from->early->message->number == from->expected) {
        early *next = from->early;
        from->early = next->next;
        from->expected++;
        PyObject *type, *error, *traceback;
        PyErr_Fetch(&type, &error, &traceback);
        if (deliver(self, next->message) < 0)
            result = -1;
        if (type != NULL)
            PyErr_Restore(type, error, traceback);
        PyMem_Free(next);
    }
    return result;
}

/* Hand on a message that came, and those that waited for it; takes it. */
static int hand_on(transport *self, envelope *message) {
    neighbour *from = neighbour_of(self, message->sender);
    if (from == NULL)
        return deliver(self, message);
    uint32_t ahead = message->number - from->expected;
    if (ahead > MOST_EARLY) {
        drop(self, message);
        dlb_raise_error("MPIError",
                        "a message of rank %u came twice, or out of order; run the "
                        "same dlbridge on all ranks",
                        from->rank);
        return -1;
    }
    if (ahead > 0)
        return keep_early(self, from, message);
    from->expected++;
    return deliver_early(self, from, deliver(self, message));
}

/* Let a message that is refused be no gap before those that come after it. */
static int pass_over(transport *self, const envelope *message, size_t nbytes,
                     uint32_t rank) {
    neighbour *from = neighbour_of(self, rank);
    if (from == NULL || nbytes < sizeof *message || message->number != from->expected)
        return 0;
    from->expected++;
    return deliver_early(self, from, 0);
}

/* ---- taking messages in ---- */

/* Check and hand on what came; takes it. `from`: who sent it, or -1. */
static int accept(transport *self, envelope *made, size_t nbytes, int from) {
    if (!is_sound(self, made, nbytes) ||
        (from >= 0 && made->sender != (uint32_t)from) ||
        (made->kind == BATCH && !is_sound_batch(self, made)) ||
        !take_loans(self, made)) {
        int result = from < 0 ? 0 : pass_over(self, made, nbytes, (uint32_t)from);
        PyMem_Free(made);
        if (result == 0)
            dlb_raise_error(
                "MPIError",
                "a message of %zu bytes came that no task of this version sends; "
                "run the same dlbridge on all ranks",
                nbytes);
        return -1;
    }
    return hand_on(self, made) < 0 ? -1 : 1;
}

static envelope *room_for(size_t nbytes) {
    envelope *made = PyMem_Malloc(nbytes > sizeof *made ? nbytes : sizeof *made);
    if (made == NULL)
        PyErr_NoMemory();
    return made;
}

/* Take a message out of a mailbox; 1 if there was one. */
static int take_in_near(transport *self) {
    for (uint32_t i = 0; i < self->neighbour_count; i++) {
        uint32_t rank = self->neighbours[i].rank;
        int64_t nbytes = dlb_arena_next(self->arena, rank);
        if (nbytes == 0)
            continue;
        if (nbytes < 0) {
            dlb_raise_error("MPIError",
                            "rank %u has written to its mailbox what no task of this "
                            "version does; run the same dlbridge on all ranks",
                            rank);
            return -1;
        }
        envelope *made = room_for((size_t)nbytes);
        if (made == NULL)
            return -1;
        dlb_arena_take(self->arena, rank, made, (size_t)nbytes);
        return accept(self, made, (size_t)nbytes, (int)rank);
    }
    return 0;
}

/* Take in one message; 1 if there was one. MPI is looked at each time, unless all tasks
 * share memory, so that few messages come that way. */
static int take_in(transport *self, bool looks) {
    if (self->neighbour_count > 0) {
        int found = take_in_near(self);
        if (found != 0)
            return found;
        bool is_rare = (int)self->neighbour_count == self->size - 1;
        if (is_rare && !looks && ++self->left_out < LEFT_OUT)
            return 0;
        self->left_out = 0;
    }
    uint64_t status[8];
    int there = 0, nbytes = 0;
    handle message = NULL;
    int code = self->mpi.probe(self->any_source, TAG, self->messages, &there, &message,
                               status);
    if (code != 0)
        return dlb_mpi_failed("MPI_Improbe", code, -1);
    if (!there)
        return 0;
    code = self->mpi.get_count(status, self->byte, &nbytes);
    if (code != 0)
        return dlb_mpi_failed("MPI_Get_count", code, -1);
    envelope *made = room_for((size_t)nbytes);
    if (made == NULL)
        return -1;
    code = self->mpi.mrecv(made, nbytes, self->byte, &message, status);
    if (code != 0) {
        PyMem_Free(made);
        return dlb_mpi_failed("MPI_Mrecv", code, -1);
    }
    return accept(self, made, (size_t)nbytes, -1);
}

static int finish_sends(transport *self) {
    for (sent **at = &self->outgoing; *at != NULL;) {
        sent *one = *at;
        int done = test(self, &one->pending);
        if (done < 0)
            return -1;
        if (done) {
            *at = one->next;
            self->bytes_under_way -= one->nbytes;
            free_sent(one);
        } else
            at = &one->next;
    }
    return 0;
}

static int finish_receives(transport *self) {
    int moved = 0;
    for (arrived **at = &self->incoming; *at != NULL;) {
        arrived *one = *at;
        int done = one->posted ? test(self, &one->pending) : one->refused;
        if (done < 0)
            return -1;
        if (!done) {
            at = &one->next;
            continue;
        }
        moved = 1;
        *at = one->next;
        one->next = NULL;
        if (one->posted)
            self->bytes_under_way -= (size_t)one->message->nbytes;
        if (one->unwanted) {
            free_arrived(self, one);
            continue;
        }
        arrived **end = bucket(self, one->message->step, one->message->edge);
        while (*end != NULL)
            end = &(*end)->next;
        *end = one;
    }
    return moved;
}

/* Take in what there is, or the next message, and end what is complete; 1 if anything
 * came. While one thread does, others leave it alone: the GIL is released within. */
static int progress(transport *self, bool one_only) {
    if (self->is_busy)
        return 0;
    self->is_busy = true;
    int moved = 0, one;
    while ((one = take_in(self, !one_only)) > 0) {
        moved = 1;
        if (one_only) {
            one = 0;
            break;
        }
    }
    if (one == 0 && self->outgoing != NULL)
        one = finish_sends(self);
    if (one == 0 && self->incoming != NULL && (one = finish_receives(self)) > 0)
        moved = 1;
    self->is_busy = false;
    return one < 0 ? -1 : moved;
}

/* Put a message into the mailbox of a task of this host; false: it has none, or there
 * is no room. */
static bool post_near(transport *self, neighbour *to, const envelope *message) {
    if (to == NULL || !dlb_arena_post(self->arena, to->rank, message, size_of(message)))
        return false;
    to->sent++;
    return true;
}

/* Send a message, which this takes, and contents of their own that `keeper` keeps. */
static int post(transport *self, int peer, envelope *message, PyObject *keeper,
                char *data) {
    neighbour *to = self->neighbour_count ? neighbour_of(self, (uint32_t)peer) : NULL;
    message->sender = (uint32_t)self->rank;
    message->number = to == NULL ? 0 : to->sent;
    if (keeper == NULL && post_near(self, to, message)) {
        self->sent_count++;
        self->sent_bytes += message->nbytes;
        PyMem_Free(message);
        return 0;
    }
    sent *one = PyMem_Calloc(1, sizeof *one);
    if (one == NULL) {
        PyMem_Free(message);
        PyErr_NoMemory();
        return -1;
    }
    one->message = message;
    if (keeper != NULL) {
        self->last_payload = self->last_payload % (uint32_t)self->highest_tag + 1;
        message->payload = self->last_payload;
    }
    if (keeper == NULL || !post_near(self, to, message)) {
        int code = self->mpi.isend(message, (int)size_of(message), self->byte, peer,
                                   TAG, self->messages, &one->pending.requests[0]);
        if (code != 0) {
            free_sent(one);
            return dlb_mpi_failed("MPI_Isend", code, peer);
        }
        one->pending.count = 1;
        one->pending.peer = peer;
        if (to != NULL)
            to->sent++;
    }
    self->sent_count++;
    self->sent_bytes += message->nbytes;
    int result = 0;
    if (keeper != NULL) {
        one->keeper = Py_NewRef(keeper);
        one->nbytes = (size_t)message->nbytes;
        self->bytes_under_way += one->nbytes;
        result = post_chunks(self, true, data, one->nbytes, peer, message->payload,
                             &one->pending);
    } else { /* mostly complete at once */
        int done = test(self, &one->pending);
        if (done > 0) {
            free_sent(one);
            return 0;
        }
        result = done;
    }
    sent **at = &self->outgoing;
    while (*at != NULL)
        at = &(*at)->next;
    *at = one;
    return result;
}

/* Send what has been put together for one rank. */
static int flush_batch(rendezvous *of, batch *one) {
    envelope *message = one->message;
    one->message = NULL;
    return message == NULL ? 0 : post(of->over, one->peer, message, NULL, NULL);
}

static int flush(rendezvous *of) {
    int result = 0;
    for (batch *one = of->batches; one != NULL && result == 0; one = one->next)
        result = flush_batch(of, one);
    return result;
}

static batch *batch_for(rendezvous *of, int peer) {
    batch *one = of->batches;
    while (one != NULL && one->peer != peer)
        one = one->next;
    if (one == NULL && (one = PyMem_Calloc(1, sizeof *one)) != NULL) {
        one->peer = peer;
        one->next = of->batches;
        of->batches = one;
    }
    return one;
}

/* Write the message of a value. */
static void write_value(envelope *message, const value *what, const rendezvous *of) {
    *message = (envelope){.step = of->step,
                          .nbytes = what->nbytes,
                          .edge = what->edge,
                          .sender = (uint32_t)of->over->rank,
                          .dtype = what->dtype,
                          .kind = (uint8_t)what->kind,
                          .ndim = (uint8_t)what->ndim,
                          .plan = of->plan};
    for (int i = 0; i < what->ndim; i++)
        dims_of(message)[i] = what->dims[i];
    if (what->kind == LENT)
        message->loan = *what->loan;
    else if (what->kind == VALUE && what->nbytes > 0)
        memcpy(contents_of(message), what->data, what->nbytes);
}

static int post_alone(rendezvous *of, int peer, const value *what, size_t nbytes,
                      PyObject *keeper) {
    envelope *message = PyMem_Malloc(nbytes);
    if (message == NULL) {
        PyErr_NoMemory();
        return -1;
    }
    write_value(message, what, of);
    return post(of->over, peer, message, keeper, keeper ? what->data : NULL);
}

static envelope *new_batch(const rendezvous *of) {
    envelope *made = PyMem_Malloc(sizeof *made + SMALL);
    if (made != NULL)
        *made = (envelope){.step = of->step, .kind = BATCH};
    return made;
}

/* Add a value to the next message for a rank; with `more`, that message waits for
 * another value. */
static int post_value(rendezvous *of, int peer, const value *what, bool more) {
    size_t nbytes = size_for(what), room = padded(nbytes);
    batch *one = batch_for(of, peer);
    int result = 0;
    /* Again, if another thread has put something there while it was sent. */
    while (result == 0 && one != NULL && one->message != NULL &&
           one->message->nbytes + room > SMALL)
        result = flush_batch(of, one);
    if (result == 0 && one != NULL && one->message == NULL) {
        if (!more || room > SMALL)
            return post_alone(of, peer, what, nbytes, NULL);
        one->message = new_batch(of);
    }
    if (one == NULL || one->message == NULL)
        PyErr_NoMemory();
    if (result < 0 || one == NULL || one->message == NULL)
        return -1;
    char *at = contents_of(one->message) + one->message->nbytes;
    write_value((envelope *)at, what, of);
    memset(at + nbytes, 0, room - nbytes);
    one->message->nbytes += room;
    return more ? 0 : flush_batch(of, one);
}

/* ---- waiting ---- */

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

/* How a wait spends its time: it looks a few times, as an answer may be on its way.
 * Then it yields for a while, then naps 20 to 200 microseconds, so that more tasks than
 * processors do not stand in each other's way. */
typedef struct {
    int spins;
    double until, next_look, length;
} patience;

#define SPINS 32       /* looks at MPI: some ten microseconds */
#define NEAR_SPINS 256 /* looks at mailboxes, where all tasks have them: as long */

#define AWAKE 250e-6
#define BETWEEN_LOOKS 0.01

static int check_deadline(const rendezvous *of, double time) {
    if (of == NULL || of->deadline == 0 || time < of->deadline)
        return 0;
    PyObject *late = Py_NewRef(of->late); /* the step may end meanwhile */
    PyErr_SetObject((PyObject *)Py_TYPE(late), late);
    Py_DECREF(late);
    return -1;
}

/* For `look`; a new reference. The field is set under DLB_EXCLUSIVE of its object. */
static PyObject *peers_of(const rendezvous *of) {
    PyObject *peers = NULL;
    if (of != NULL) {
        DLB_BEGIN_EXCLUSIVE(of);
        peers = Py_XNewRef(of->peers);
        DLB_END_EXCLUSIVE();
    }
    return peers != NULL ? peers : Py_NewRef(Py_None);
}

/* `of`: whose step waits, or NULL. */
static int rest(transport *self, patience *left, const rendezvous *of) {
    bool is_near = (int)self->neighbour_count == self->size - 1;
    if (left->spins < (is_near ? NEAR_SPINS : SPINS)) {
        left->spins++;
        return 0;
    }
    self->left_out = LEFT_OUT; /* MPI is looked at after each rest */
    double time = now();
    if (left->until == 0) {
        left->until = time + AWAKE + 5e-10 * (double)self->bytes_under_way;
        left->next_look = time + BETWEEN_LOOKS;
        left->length = 20e-6;
    }
    if (check_deadline(of, time) < 0)
        return -1;
    bool sleeps = time >= left->until;
    Py_BEGIN_ALLOW_THREADS;
    if (sleeps) {
        struct timespec nap = {0, (long)(1e9 * left->length)};
        nanosleep(&nap, NULL);
    } else
        sched_yield();
    Py_END_ALLOW_THREADS;
    if (!sleeps)
        return 0;
    left->length = left->length < 133e-6 ? 1.5 * left->length : 200e-6;
    if (PyErr_CheckSignals() < 0)
        return -1;
    if (time > left->next_look) { /* whether a peer has ended */
        left->next_look = time + BETWEEN_LOOKS;
        PyObject *peers = peers_of(of);
        PyObject *result = PyObject_CallFunction(
            self->look, "OKI", peers, (unsigned long long)(of != NULL ? of->step : 0),
            of != NULL ? of->plan : 0);
        Py_DECREF(peers);
        Py_XDECREF(result);
        return result == NULL ? -1 : 0;
    }
    return 0;
}

/* Raise what `failed` makes of the news that the step failed. */
static void raise_failure(transport *self, uint64_t step) {
    PyObject *number = PyLong_FromUnsignedLongLong(step);
    PyObject *error = number ? PyObject_CallOneArg(self->failed, number) : NULL;
    if (error != NULL && PyExceptionInstance_Check(error))
        PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    else if (error != NULL)
        PyErr_SetString(PyExc_TypeError, "Transport: failed must return an exception");
    Py_XDECREF(error);
    Py_XDECREF(number);
}

/* Wait for the message of an edge; the caller owns it. NULL with an exception where the
 * step failed elsewhere, or the wait is interrupted or takes too long. */
static arrived *await(rendezvous *of, uint32_t number) {
    transport *self = of->over;
    uint64_t step = of->step;
    patience left = {0};
    for (;;) {
        arrived **at = find(self, step, number, of->plan);
        if (*at != NULL) {
            arrived *one = *at;
            *at = one->next;
            return one;
        }
        at = find(self, step, FAILURE, 0);
        if (*at != NULL) {
            raise_failure(self, step);
            return NULL;
        }
        if (flush(of) < 0)
            return NULL;
        int moved = progress(self, true);
        if (moved < 0 || (moved == 0 && rest(self, &left, of) < 0))
            return NULL;
    }
}

/* ---- contents that are lent ---- */

/* What an array over memory of the arena keeps: it gives the loan back. */
typedef struct {
    PyObject_HEAD
    dlb_arena *arena;
    dlb_arena_loan loan;
} loan;

static void dealloc_loan(PyObject *object) {
    loan *self = (loan *)object;
    dlb_arena_give_back(self->arena, &self->loan);
    dlb_arena_drop(self->arena);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_LoanType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Loan",
    .tp_doc = "Memory that another process lends.",
    .tp_basicsize = sizeof(loan),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_dealloc = dealloc_loan,
};

static PyObject *take_loan(dlb_arena *arena, const dlb_arena_loan *from) {
    loan *made = PyObject_New(loan, &dlb_LoanType);
    if (made != NULL) {
        made->arena = dlb_arena_retain(arena);
        made->loan = *from;
    }
    return (PyObject *)made;
}

/* Count a reader of an array whose memory lies in the arena: that this task has
 * allocated there, or was lent itself. Nobody writes there any more. */
static bool lend(transport *self, PyArrayObject *array, int peer,
                 dlb_arena_loan *made) {
    const char *data = PyArray_DATA(array);
    PyObject *base = (PyObject *)array;
    while (PyArray_Check(base) && PyArray_BASE((PyArrayObject *)base) != NULL)
        base = PyArray_BASE((PyArrayObject *)base);
    if (Py_IS_TYPE(base, &dlb_LoanType) && ((loan *)base)->arena == self->arena) {
        const dlb_arena_loan *had = &((loan *)base)->loan;
        const char *start = dlb_arena_find(self->arena, had, 0);
        if (start == NULL)
            return false; /* it is none any more: somebody gave back what he had not */
        *made = *had;
        made->offset += (size_t)(data - start);
        if (dlb_arena_find(self->arena, made, (size_t)PyArray_NBYTES(array)) == NULL)
            return false; /* not aligned */
        dlb_arena_lend_on(self->arena, made, (uint32_t)peer);
        return true;
    }
    if (!PyArray_Check(base) ||
        !dlb_arena_lend(self->arena, data, (size_t)PyArray_NBYTES(array),
                        (uint32_t)peer, made))
        return false;
    for (base = (PyObject *)array; base != NULL;
         base = PyArray_BASE((PyArrayObject *)base))
        PyArray_CLEARFLAGS((PyArrayObject *)base, NPY_ARRAY_WRITEABLE);
    return true;
}

/* Put back the handler that was there before the arena's; takes it. Keeps an exception;
 * without one, `result`, which this takes, or NULL with one. */
static PyObject *leave_arena(PyObject *before, PyObject *result) {
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *ours = PyDataMem_SetHandler(before);
    Py_DECREF(before);
    if (ours == NULL)
        Py_CLEAR(result);
    Py_XDECREF(ours);
    if (type != NULL)
        PyErr_Restore(type, error, traceback);
    return result;
}

/* A compact copy of an array, in the arena if there is room. */
static PyArrayObject *copy_into_arena(transport *self, PyArrayObject *array) {
    PyObject *before = PyDataMem_SetHandler(self->handler);
    if (before == NULL)
        return NULL;
    PyArrayObject *made = (PyArrayObject *)leave_arena(
        before, PyArray_NewLikeArray(array, NPY_CORDER, NULL, 0));
    if (made != NULL && PyArray_CopyInto(made, array) < 0)
        Py_CLEAR(made);
    return made;
}

/* ---- Edge ---- */

/* Raise for a value that is larger than the session allows; NULL. */
static PyObject *refuse(const edge *self, int ndim, const npy_intp *dims,
                        size_t nbytes) {
    PyObject *shape = PyTuple_New(ndim), *result = NULL;
    for (int i = 0; i < ndim && shape != NULL; i++) {
        PyObject *extent = PyLong_FromSsize_t((Py_ssize_t)dims[i]);
        if (extent == NULL)
            Py_CLEAR(shape);
        else
            PyTuple_SET_ITEM(shape, i, extent);
    }
    if (shape != NULL && self->refuse != NULL)
        result = PyObject_CallFunction(self->refuse, "On", shape, (Py_ssize_t)nbytes);
    if (shape != NULL && !PyErr_Occurred())
        PyErr_Format(PyExc_MemoryError, "edge %u: a value of %zu bytes, allowed %zd",
                     self->number, nbytes, self->most);
    Py_XDECREF(shape);
    Py_XDECREF(result);
    return NULL;
}

static bool is_too_large(const edge *self, size_t nbytes) {
    return self->most != UNLIMITED && nbytes > (size_t)self->most;
}

/* The array of contents that came in memory of its own, which keeps `base`. */
static PyObject *over_memory(PyArray_Descr *descr, int ndim, const npy_intp *dims,
                             void *data, bool is_writable, PyObject *base) {
    int flags = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    PyObject *made =
        PyArray_NewFromDescr(&PyArray_Type, descr, ndim, dims, NULL, data,
                             is_writable ? flags | NPY_ARRAY_WRITEABLE : flags, NULL);
    if (made != NULL &&
        PyArray_SetBaseObject((PyArrayObject *)made, Py_NewRef(base)) < 0)
        Py_CLEAR(made);
    return made;
}

/* Whether values of no dimension are scalars of NumPy, as its ufuncs return them. */
static bool has_scalars(const edge *self) {
    return dlb_numpy_is_plain(self->descr->type_num) &&
           PyArray_ISNBO(self->descr->byteorder);
}

static PyObject *array_of(arrived *one, const edge *self) {
    envelope *message = one->message;
    if (message->dtype != self->dtype)
        return dlb_raise_error("MPIError",
                               "edge %u: the sender has the DataType %u, the receiver "
                               "%u; build the same graph on all ranks",
                               self->number, message->dtype, self->dtype);
    npy_intp dims[NPY_MAXDIMS];
    int64_t *extents = dims_of(message), wanted = PyDataType_ELSIZE(self->descr);
    bool fits = true, is_empty = false;
    for (int i = 0; i < message->ndim; i++) { /* extents beside a zero count as well */
        dims[i] = (npy_intp)extents[i];
        is_empty = is_empty || extents[i] == 0;
        fits =
            fits && extents[i] >= 0 &&
            (extents[i] == 0 || !__builtin_mul_overflow(wanted, extents[i], &wanted));
    }
    size_t nbytes = (size_t)message->nbytes;
    if (!fits || (is_empty ? 0 : (size_t)wanted) != nbytes)
        return dlb_raise_error("MPIError", "edge %u: shape and size do not fit",
                               self->number);
    if (one->refused || is_too_large(self, nbytes))
        return refuse(self, message->ndim, dims, nbytes);
    if (one->pending.is_short)
        return dlb_raise_error("MPIError",
                               "edge %u: fewer bytes came than the %zu announced",
                               self->number, nbytes);
    if (message->kind == VALUE && message->ndim == 0 && has_scalars(self))
        return PyArray_Scalar(contents_of(message), self->descr, NULL);
    PyArray_Descr *descr = (PyArray_Descr *)Py_NewRef(self->descr);
    if (message->kind == LENT) {
        dlb_arena *arena = self->of->over->arena;
        void *lent = dlb_arena_find(arena, &message->loan, nbytes);
        PyObject *taken = NULL, *made = NULL;
        if (lent == NULL)
            dlb_raise_error("MPIError",
                            "edge %u: rank %u lends memory that it has given back",
                            self->number, message->sender);
        else
            taken = take_loan(arena, &message->loan);
        one->handed_on = taken != NULL;
        if (taken != NULL)
            made = over_memory((PyArray_Descr *)Py_NewRef(descr), message->ndim, dims,
                               lent, false, taken);
        Py_XDECREF(taken);
        Py_DECREF(descr);
        return made;
    }
    if (one->array == NULL) {
        PyObject *made = PyArray_NewFromDescr(&PyArray_Type, descr, message->ndim, dims,
                                              NULL, NULL, 0, NULL);
        if (made != NULL && nbytes > 0)
            memcpy(PyArray_DATA((PyArrayObject *)made), contents_of(message), nbytes);
        return made;
    }
    return over_memory(descr, message->ndim, dims, data_of(one), true, one->array);
}

static PyObject *receive(PyObject *object, PyObject *const *Py_UNUSED(values),
                         size_t flagged, PyObject *names) {
    edge *self = (edge *)object;
    if (PyVectorcall_NARGS(flagged) != 0 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Edge: a receive takes no arguments");
    arrived *one = await(self->of, self->number);
    if (one == NULL)
        return NULL;
    PyObject *made = array_of(one, self);
    free_arrived(self->of->over, one);
    return made;
}

/* Send a scalar of NumPy, of which the dtype was checked. */
static int send_scalar(const edge *self, PyObject *scalar) {
    value what = {.kind = VALUE,
                  .edge = self->number,
                  .dtype = self->dtype,
                  .data = dlb_numpy_scalar_value(scalar),
                  .nbytes = (size_t)PyDataType_ELSIZE(self->descr)};
    return post_value(self->of, self->peer, &what, self->more);
}

/* Send an array whose dtype and size were checked, as a message of its kind. */
static int send_array(const edge *self, PyArrayObject *array, enum kind kind,
                      const dlb_arena_loan *loan) {
    value what = {.kind = kind,
                  .edge = self->number,
                  .dtype = self->dtype,
                  .ndim = PyArray_NDIM(array),
                  .dims = PyArray_DIMS(array),
                  .data = PyArray_DATA(array),
                  .nbytes = (size_t)PyArray_NBYTES(array),
                  .loan = loan};
    if (kind == LARGE)
        return post_alone(self->of, self->peer, &what, size_for(&what),
                          (PyObject *)array);
    return post_value(self->of, self->peer, &what, kind == VALUE && self->more);
}

/* Whether the peer reads the arena. */
static bool is_near(const edge *self) {
    const transport *over = self->of->over;
    return over->arena != NULL && self->peer >= 0 &&
           dlb_arena_reaches(over->arena, (uint32_t)self->peer);
}

/* Send an array of more than SMALL bytes; it is compact, unless the peer is near. */
static int send_large(const edge *self, PyArrayObject *array) {
    transport *over = self->of->over;
    if (!is_near(self))
        return send_array(self, array, LARGE, NULL);
    dlb_arena_loan loan = {0};
    bool is_lent =
        PyArray_IS_C_CONTIGUOUS(array) && lend(over, array, self->peer, &loan);
    PyArrayObject *copy = NULL;
    if (!is_lent) {
        if ((copy = copy_into_arena(over, array)) == NULL)
            return -1;
        array = copy;
        is_lent = lend(over, array, self->peer, &loan);
    }
    int result = send_array(self, array, is_lent ? LENT : LARGE, &loan);
    /* What MPI may have sent is the receiver's. */
    if (is_lent && result < 0 && PyErr_ExceptionMatches(PyExc_MemoryError))
        dlb_arena_withdraw(over->arena, &loan, (uint32_t)self->peer);
    else if (is_lent)
        over->lent_count++;
    Py_XDECREF(copy);
    return result;
}

static PyObject *send(PyObject *object, PyObject *const *values, size_t flagged,
                      PyObject *names) {
    edge *self = (edge *)object;
    if (PyVectorcall_NARGS(flagged) != 1 ||
        (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "Edge: a send takes one value");
    if (Py_TYPE(values[0]) == self->descr->typeobj && has_scalars(self) &&
        !is_too_large(self, (size_t)PyDataType_ELSIZE(self->descr)))
        return send_scalar(self, values[0]) < 0 ? NULL : Py_NewRef(Py_None);
    const int compact = NPY_ARRAY_C_CONTIGUOUS | NPY_ARRAY_ALIGNED;
    PyArrayObject *array = PyArray_CheckExact(values[0])
                               ? (PyArrayObject *)Py_NewRef(values[0])
                               : (PyArrayObject *)PyArray_FROM_O(values[0]);
    if (array == NULL)
        return NULL;
    size_t nbytes = (size_t)PyArray_NBYTES(array);
    bool is_sent = nbytes <= SMALL || !is_near(self); /* else its copy is compact */
    if (is_sent && (PyArray_FLAGS(array) & compact) != compact)
        Py_SETREF(array, (PyArrayObject *)PyArray_FROM_OF((PyObject *)array, compact));
    if (array == NULL)
        return NULL;
    int result = -1;
    if (PyArray_DESCR(array) != self->descr &&
        !PyArray_EquivTypes(PyArray_DESCR(array), self->descr))
        PyErr_Format(PyExc_TypeError, "edge %u: a value of dtype %R, expected %R",
                     self->number, PyArray_DESCR(array), self->descr);
    else if (nbytes > CHUNK * MOST_CHUNKS)
        PyErr_Format(PyExc_ValueError, "edge %u: %zu bytes are more than can be sent",
                     self->number, nbytes);
    else if (is_too_large(self, nbytes))
        refuse(self, PyArray_NDIM(array), PyArray_DIMS(array), nbytes);
    else
        result = nbytes > SMALL ? send_large(self, array)
                                : send_array(self, array, VALUE, NULL);
    Py_DECREF(array);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *call_edge(PyObject *object, PyObject *const *values, size_t flagged,
                           PyObject *names) {
    const edge *self = (edge *)object;
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(self->of->over);
    result = self->peer < 0 ? receive(object, values, flagged, names)
                            : send(object, values, flagged, names);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *new_edge(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rendezvous", "number",    "dtype",  "descr",
                            "peer",       "max_bytes", "refuse", NULL};
    PyObject *of, *descr, *refuse = Py_None;
    Py_ssize_t most = UNLIMITED;
    unsigned int number, dtype;
    int peer = -1;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!IIO!|inO:Edge", names,
                                     &dlb_RendezvousType, &of, &number, &dtype,
                                     &PyArrayDescr_Type, &descr, &peer, &most, &refuse))
        return NULL;
    if (PyDataType_REFCHK((PyArray_Descr *)descr))
        return PyErr_Format(PyExc_TypeError,
                            "Edge: values of dtype %R are no plain memory", descr);
    edge *self = (edge *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_edge;
    self->of = (rendezvous *)Py_NewRef(of);
    self->descr = (PyArray_Descr *)Py_NewRef(descr);
    self->most = most;
    self->refuse = refuse == Py_None ? NULL : Py_NewRef(refuse);
    self->peer = peer;
    self->number = number;
    self->dtype = dtype;
    return (PyObject *)self;
}

static void dealloc_edge(PyObject *object) {
    edge *self = (edge *)object;
    Py_XDECREF(self->of);
    Py_XDECREF(self->descr);
    Py_XDECREF(self->refuse);
    Py_TYPE(object)->tp_free(object);
}

static PyMemberDef edge_members[] = {
    {"more", T_BOOL, offsetof(edge, more), 0,
     "Whether another value for the rank follows soon."},
    {0},
};

PyTypeObject dlb_EdgeType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Edge",
    .tp_doc = "Edge(rendezvous, number, dtype, descr, peer=-1, max_bytes=-1, "
              "refuse=None)\n--\n\n"
              "Sends a value to the rank `peer`, or receives it where that is -1.",
    .tp_basicsize = sizeof(edge),
    .tp_vectorcall_offset = offsetof(edge, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_members = edge_members,
    .tp_new = new_edge,
    .tp_dealloc = dealloc_edge,
};

/* ---- InArena: a step whose large results are allocated in the arena ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    transport *over;
    PyObject *function;
} in_arena;

static PyObject *call_in_arena(PyObject *object, PyObject *const *values,
                               size_t flagged, PyObject *names) {
    const in_arena *self = (in_arena *)object;
    if (self->over->handler == NULL)
        return PyObject_Vectorcall(self->function, values, flagged, names);
    PyObject *before = PyDataMem_SetHandler(self->over->handler);
    if (before == NULL)
        return NULL;
    return leave_arena(before,
                       PyObject_Vectorcall(self->function, values, flagged, names));
}

static PyObject *new_in_arena(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"transport", "function", NULL};
    PyObject *over, *function;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!O:InArena", names,
                                     &dlb_TransportType, &over, &function))
        return NULL;
    in_arena *self = (in_arena *)type->tp_alloc(type, 0);
    if (self != NULL) {
        self->vectorcall = call_in_arena;
        self->over = (transport *)Py_NewRef(over);
        self->function = Py_NewRef(function);
    }
    return (PyObject *)self;
}

static int traverse_in_arena(PyObject *object, visitproc visit, void *arg) {
    Py_VISIT(((in_arena *)object)->function);
    return 0;
}

static int clear_in_arena(PyObject *object) {
    Py_XSETREF(((in_arena *)object)->function, Py_NewRef(Py_None));
    return 0;
}

static void dealloc_in_arena(PyObject *object) {
    in_arena *self = (in_arena *)object;
    PyObject_GC_UnTrack(object);
    Py_XDECREF(self->over);
    Py_XDECREF(self->function);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_InArenaType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.InArena",
    .tp_doc = "InArena(transport, function)\n--\n\n"
              "A function whose large arrays of NumPy are allocated in the arena.",
    .tp_basicsize = sizeof(in_arena),
    .tp_vectorcall_offset = offsetof(in_arena, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_in_arena,
    .tp_traverse = traverse_in_arena,
    .tp_clear = clear_in_arena,
    .tp_dealloc = dealloc_in_arena,
};

/* ---- Rendezvous ---- */

static PyObject *new_rendezvous(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"transport", "max_bytes", NULL};
    PyObject *over;
    Py_ssize_t most = UNLIMITED;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O!|n:Rendezvous", names,
                                     &dlb_TransportType, &over, &most))
        return NULL;
    if (most < 1 && most != UNLIMITED)
        return PyErr_Format(PyExc_ValueError,
                            "Rendezvous: max_bytes must be at least 1, or -1, got %zd",
                            most);
    rendezvous *self = (rendezvous *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->over = (transport *)Py_NewRef(over);
    self->most = most;
    return (PyObject *)self;
}

static void end_exclusively(rendezvous *self) {
    DLB_BEGIN_EXCLUSIVE(self->over);
    end_step(self);
    DLB_END_EXCLUSIVE();
}

static void dealloc_rendezvous(PyObject *object) {
    rendezvous *self = (rendezvous *)object;
    end_exclusively(self);
    for (batch *one = self->batches, *next; one != NULL; one = next) {
        next = one->next;
        PyMem_Free(one->message);
        PyMem_Free(one);
    }
    Py_XDECREF(self->over);
    Py_XDECREF(self->peers);
    Py_XDECREF(self->late);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *get_step(PyObject *object, void *Py_UNUSED(closure)) {
    unsigned long long step;
    DLB_BEGIN_EXCLUSIVE(((rendezvous *)object)->over);
    step = ((rendezvous *)object)->step;
    DLB_END_EXCLUSIVE();
    return PyLong_FromUnsignedLongLong(step);
}

static int set_step(PyObject *object, PyObject *value, void *Py_UNUSED(closure)) {
    unsigned long long step = value == NULL ? 0 : PyLong_AsUnsignedLongLong(value);
    if (value == NULL || (step == (unsigned long long)-1 && PyErr_Occurred())) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_AttributeError, "Rendezvous: step cannot be deleted");
        return -1;
    }
    int result;
    DLB_BEGIN_EXCLUSIVE(((rendezvous *)object)->over);
    result = begin_step((rendezvous *)object, step);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *rendezvous_end(PyObject *object, PyObject *Py_UNUSED(none)) {
    end_exclusively((rendezvous *)object);
    Py_RETURN_NONE;
}

static PyGetSetDef rendezvous_fields[] = {
    {"step", get_step, set_step,
     "The number of the run whose values are passed; set, the run begins.", NULL},
    {0},
};

static PyObject *rendezvous_flush(PyObject *object, PyObject *Py_UNUSED(none)) {
    int result;
    DLB_BEGIN_EXCLUSIVE(((rendezvous *)object)->over);
    result = flush((rendezvous *)object);
    DLB_END_EXCLUSIVE();
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *rendezvous_limit(PyObject *object, PyObject *args) {
    rendezvous *self = (rendezvous *)object;
    double deadline;
    PyObject *late;
    if (!PyArg_ParseTuple(args, "dO", &deadline, &late))
        return NULL;
    if (!PyExceptionInstance_Check(late) || !(deadline > 0))
        return PyErr_Format(PyExc_TypeError,
                            "Rendezvous: a time and an exception are required, got %R",
                            args);
    DLB_BEGIN_EXCLUSIVE(self->over);
    self->deadline = deadline;
    Py_XSETREF(self->late, Py_NewRef(late));
    DLB_END_EXCLUSIVE();
    Py_RETURN_NONE;
}

static PyMethodDef rendezvous_methods[] = {
    {"flush", rendezvous_flush, METH_NOARGS,
     "flush($self, /)\n--\n\nSend the values that wait for others."},
    {"limit", rendezvous_limit, METH_VARARGS,
     "limit($self, deadline, late, /)\n--\n\nLet the waits of the run that has begun "
     "raise an exception from a time on."},
    {"end", rendezvous_end, METH_NOARGS,
     "end($self, /)\n--\n\nEnd the run that has begun, if one has."},
    {0},
};

static PyMemberDef rendezvous_members[] = {
    {"plan", T_UINT, offsetof(rendezvous, plan), 0,
     "Which run its steps are, where all tasks make the same; or 0."},
    {"peers", T_OBJECT, offsetof(rendezvous, peers), 0,
     "The ranks without which the run cannot end, for `look`."},
    {0},
};

PyTypeObject dlb_RendezvousType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Rendezvous",
    .tp_doc = "Rendezvous(transport, max_bytes=-1)\n--\n\n"
              "Where the edges of one plan find each other.",
    .tp_basicsize = sizeof(rendezvous),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = rendezvous_methods,
    .tp_getset = rendezvous_fields,
    .tp_members = rendezvous_members,
    .tp_new = new_rendezvous,
    .tp_dealloc = dealloc_rendezvous,
};

/* ---- StepNumbers ---- */

typedef struct {
    PyObject_HEAD
    unsigned long long base, count, ended;
} step_numbers;

static PyObject *new_numbers(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"base", NULL};
    unsigned long long base;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "K:StepNumbers", names, &base))
        return NULL;
    step_numbers *self = (step_numbers *)type->tp_alloc(type, 0);
    if (self != NULL)
        self->base = base;
    return (PyObject *)self;
}

static void dealloc_numbers(PyObject *object) {
    Py_TYPE(object)->tp_free(object);
}

static unsigned long long next_number(step_numbers *self) {
    unsigned long long number;
    DLB_BEGIN_EXCLUSIVE(self);
    number = ++self->count;
    DLB_END_EXCLUSIVE();
    return number;
}

static void note_end(step_numbers *self, unsigned long long number) {
    DLB_BEGIN_EXCLUSIVE(self);
    if (self->ended < number) /* threads end in any order */
        self->ended = number;
    DLB_END_EXCLUSIVE();
}

static PyObject *numbers_skip(PyObject *object, PyObject *Py_UNUSED(none)) {
    step_numbers *self = (step_numbers *)object;
    note_end(self, next_number(self));
    Py_RETURN_NONE;
}

static PyMethodDef numbers_methods[] = {
    {"skip", numbers_skip, METH_NOARGS,
     "skip($self, /)\n--\n\nLet the next number be that of no step."},
    {0},
};

static PyMemberDef numbers_members[] = {
    {"base", T_ULONGLONG, offsetof(step_numbers, base), READONLY, NULL},
    {"ended", T_ULONGLONG, offsetof(step_numbers, ended), READONLY,
     "How many steps have begun before the last one that ended, and itself."},
    {0},
};

PyTypeObject dlb_StepNumbersType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.StepNumbers",
    .tp_doc = "StepNumbers(base)\n--\n\nThe numbers of steps: base | 1, base | 2, ...",
    .tp_basicsize = sizeof(step_numbers),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = numbers_methods,
    .tp_members = numbers_members,
    .tp_new = new_numbers,
    .tp_dealloc = dealloc_numbers,
};

/* ---- ClusterCall: a plan as steps of its session, without a Python frame ---- */

typedef struct {
    PyObject_HEAD
    vectorcallfunc vectorcall;
    rendezvous *of;
    step_numbers *numbers;
    PyObject *program, *acquire, *release, *check, *on_error;
    PyObject *request; /* bytes that begin the step on the ranks of `told` */
    uint32_t news;     /* their edge */
    int32_t told_count, answer_count, given_count, value_count;
    int32_t *told;     /* ranks */
    uint32_t *answers; /* edges at which they say that they are done */
    int32_t *selected; /* which of the values given the program takes */
    uint32_t rounds;   /* edges from here on end the step together; or 0 */
    uint32_t every;    /* this many steps */
    int32_t size;      /* so many tasks */
} cluster_call;

static int tell_to_begin(const cluster_call *self, uint64_t step) {
    for (int32_t i = 0; i < self->told_count; i++) {
        size_t nbytes = (size_t)PyBytes_GET_SIZE(self->request);
        envelope *message = new_message(NEWS, step, self->news, nbytes);
        if (message == NULL)
            return -1;
        memcpy(contents_of(message), PyBytes_AS_STRING(self->request), nbytes);
        if (post(self->of->over, self->told[i], message, NULL, NULL) < 0)
            return -1;
    }
    return 0;
}

static int take_empty(const cluster_call *self, uint32_t number) {
    arrived *one = await(self->of, number);
    if (one == NULL)
        return -1;
    free_arrived(self->of->over, one);
    return 0;
}

/* After log2(size) rounds each task knows that all have come. */
static int end_together(const cluster_call *self, uint64_t step) {
    transport *over = self->of->over;
    uint32_t number = self->rounds;
    for (int32_t distance = 1; distance < self->size; distance *= 2, number++) {
        envelope *message = new_message(VALUE, step, number, 0);
        if (message == NULL)
            return -1;
        message->plan = self->of->plan;
        if (post(over, (over->rank + distance) % self->size, message, NULL, NULL) < 0 ||
            take_empty(self, number) < 0)
            return -1;
    }
    return 0;
}

/* Wait until all have run the step, as far as their values do not tell it. */
static int wait_for_end(const cluster_call *self, uint64_t step) {
    uint64_t number = step - self->numbers->base;
    for (int32_t i = 0; i < self->answer_count; i++)
        if (take_empty(self, self->answers[i]) < 0)
            return -1;
    if (self->rounds != 0 && number % self->every == 0 && end_together(self, step) < 0)
        return -1;
    if (*find(self->of->over, step, FAILURE, 0) != NULL) {
        raise_failure(self->of->over, step);
        return -1;
    }
    return 0;
}

/* ---- what a run does with the transport ---- */

static int begin(const cluster_call *self, uint64_t step) {
    int result;
    DLB_BEGIN_EXCLUSIVE(self->of->over);
    result = begin_step(self->of, step) < 0 ? -1 : tell_to_begin(self, step);
    DLB_END_EXCLUSIVE();
    return result;
}

static int wait(const cluster_call *self, uint64_t step) {
    int result;
    DLB_BEGIN_EXCLUSIVE(self->of->over);
    result = flush(self->of) < 0 ? -1 : wait_for_end(self, step);
    DLB_END_EXCLUSIVE();
    return result;
}

/* Raise the exception that on_error makes of the present one. */
static void explain(const cluster_call *self, uint64_t step) {
    PyObject *cause = dlb_take_exception();
    PyObject *made =
        PyObject_CallFunction(self->on_error, "KO", (unsigned long long)step, cause);
    if (made != NULL && PyExceptionInstance_Check(made))
        PyErr_SetObject((PyObject *)Py_TYPE(made), made);
    else if (made != NULL)
        PyErr_Format(PyExc_TypeError,
                     "ClusterCall: on_error must return the exception to raise, got %R",
                     made);
    Py_XDECREF(made);
    Py_DECREF(cause);
}

static PyObject *run_step(const cluster_call *self, PyObject *const *values) {
    PyObject *chosen[16], **taken = chosen;
    size_t count = (size_t)self->value_count;
    if (count > sizeof chosen / sizeof *chosen &&
        (taken = PyMem_New(PyObject *, count)) == NULL)
        return PyErr_NoMemory();
    for (size_t i = 0; i < count; i++)
        taken[i] = values[self->selected[i]];
    unsigned long long number = next_number(self->numbers);
    uint64_t step = self->numbers->base | number;
    PyObject *result = NULL;
    if (begin(self, step) == 0)
        result = PyObject_Vectorcall(self->program, taken, count, NULL);
    if (result != NULL && wait(self, step) < 0)
        Py_CLEAR(result);
    if (result == NULL)
        explain(self, step);
    note_end(self->numbers, number);
    end_exclusively(self->of);
    if (taken != chosen)
        PyMem_Free(taken);
    return result;
}

static int check_process(const cluster_call *self) {
    const transport *over = self->of->over;
    int is_over = getpid() != over->process;
    if (!is_over)
        over->mpi.finalized(&is_over);
    if (!is_over)
        return 0;
    PyObject *result = PyObject_CallNoArgs(self->check); /* says what is wrong */
    if (result != NULL)
        PyErr_SetString(PyExc_RuntimeError, "MPI cannot be used in this process");
    Py_XDECREF(result);
    return -1;
}

static PyObject *call_cluster(PyObject *object, PyObject *const *values, size_t flagged,
                              PyObject *names) {
    cluster_call *self = (cluster_call *)object;
    Py_ssize_t count = PyVectorcall_NARGS(flagged);
    if (count != self->given_count || (names != NULL && PyTuple_GET_SIZE(names) > 0))
        return PyErr_Format(PyExc_TypeError, "ClusterCall: expected %d values, got %zd",
                            (int)self->given_count, count);
    if (check_process(self) < 0)
        return NULL;
    PyObject *locked = PyObject_CallNoArgs(self->acquire);
    if (locked == NULL)
        return NULL;
    Py_DECREF(locked);
    Py_INCREF(object); /* the session may be closed meanwhile */
    PyObject *release = Py_NewRef(self->release);
    PyObject *result = run_step(self, values);
    PyObject *type, *error, *traceback;
    PyErr_Fetch(&type, &error, &traceback);
    PyObject *unlocked = PyObject_CallNoArgs(release);
    Py_DECREF(release);
    if (unlocked == NULL)
        Py_CLEAR(result);
    Py_XDECREF(unlocked);
    if (type != NULL) { /* rather than what came of the lock */
        PyErr_Clear();
        PyErr_Restore(type, error, traceback);
    }
    Py_DECREF(object);
    return result;
}

static PyObject *call_cleared(PyObject *Py_UNUSED(self),
                              PyObject *const *Py_UNUSED(values),
                              size_t Py_UNUSED(flagged), PyObject *Py_UNUSED(names)) {
    return PyErr_Format(PyExc_RuntimeError, "ClusterCall: it is being destroyed");
}

/* A C array of the numbers in a tuple; NULL with an exception. */
static int32_t *read_numbers(PyObject *tuple, int32_t *count) {
    Py_ssize_t length = PyTuple_GET_SIZE(tuple);
    int32_t *made = PyMem_New(int32_t, (size_t)length + 1);
    if (made == NULL) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++) {
        unsigned long value = PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, i));
        if (PyErr_Occurred() || value > UINT32_MAX) {
            if (!PyErr_Occurred())
                PyErr_SetString(PyExc_OverflowError, "ClusterCall: a number too large");
            PyMem_Free(made);
            return NULL;
        }
        made[i] = (int32_t)(uint32_t)value;
    }
    *count = (int32_t)length;
    return made;
}

static PyObject *new_cluster(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"rendezvous", "numbers", "program", "given",
                            "selected",   "lock",    "check",   "on_error",
                            "told",       "news",    "request", "answers",
                            "rounds",     "every",   "size",    NULL};
    PyObject *of, *numbers, *program, *selected, *lock, *check, *on_error, *told;
    PyObject *request, *answers;
    int given, size;
    unsigned int news, rounds, every;
    if (!PyArg_ParseTupleAndKeywords(
            args, kwargs, "O!O!OiO!OOOO!IO!O!IIi:ClusterCall", names,
            &dlb_RendezvousType, &of, &dlb_StepNumbersType, &numbers, &program, &given,
            &PyTuple_Type, &selected, &lock, &check, &on_error, &PyTuple_Type, &told,
            &news, &PyBytes_Type, &request, &PyTuple_Type, &answers, &rounds, &every,
            &size))
        return NULL;
    if (every == 0)
        return PyErr_Format(PyExc_ValueError, "ClusterCall: every must be positive");
    cluster_call *self = (cluster_call *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->vectorcall = call_cluster;
    self->of = (rendezvous *)Py_NewRef(of);
    self->numbers = (step_numbers *)Py_NewRef(numbers);
    self->program = Py_NewRef(program);
    self->check = Py_NewRef(check);
    self->on_error = Py_NewRef(on_error);
    self->request = Py_NewRef(request);
    self->news = news;
    self->rounds = rounds;
    self->every = every;
    self->size = size;
    self->given_count = given;
    if ((self->acquire = PyObject_GetAttrString(lock, "acquire")) == NULL ||
        (self->release = PyObject_GetAttrString(lock, "release")) == NULL ||
        (self->told = read_numbers(told, &self->told_count)) == NULL ||
        (self->answers = (uint32_t *)read_numbers(answers, &self->answer_count)) ==
            NULL ||
        (self->selected = read_numbers(selected, &self->value_count)) == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    for (int32_t i = 0; i < self->value_count; i++)
        if (self->selected[i] < 0 || self->selected[i] >= given) {
            PyErr_SetString(PyExc_ValueError, "ClusterCall: selected is out of range");
            Py_DECREF(self);
            return NULL;
        }
    return (PyObject *)self;
}

static int traverse_cluster(PyObject *object, visitproc visit, void *arg) {
    cluster_call *self = (cluster_call *)object;
    Py_VISIT(self->program);
    Py_VISIT(self->acquire);
    Py_VISIT(self->release);
    Py_VISIT(self->check);
    Py_VISIT(self->on_error);
    return 0;
}

static int clear_cluster(PyObject *object) {
    cluster_call *self = (cluster_call *)object;
    self->vectorcall = call_cleared;
    Py_CLEAR(self->program);
    Py_CLEAR(self->acquire);
    Py_CLEAR(self->release);
    Py_CLEAR(self->check);
    Py_CLEAR(self->on_error);
    return 0;
}

static void dealloc_cluster(PyObject *object) {
    cluster_call *self = (cluster_call *)object;
    PyObject_GC_UnTrack(object);
    clear_cluster(object);
    Py_XDECREF(self->of);
    Py_XDECREF(self->numbers);
    Py_XDECREF(self->request);
    PyMem_Free(self->told);
    PyMem_Free(self->answers);
    PyMem_Free(self->selected);
    Py_TYPE(object)->tp_free(object);
}

PyTypeObject dlb_ClusterCallType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.ClusterCall",
    .tp_doc = "A plan as steps of a session: each call is one.",
    .tp_basicsize = sizeof(cluster_call),
    .tp_vectorcall_offset = offsetof(cluster_call, vectorcall),
    .tp_call = PyVectorcall_Call,
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_HAVE_VECTORCALL,
    .tp_new = new_cluster,
    .tp_traverse = traverse_cluster,
    .tp_clear = clear_cluster,
    .tp_dealloc = dealloc_cluster,
};

/* ---- Transport ---- */

static PyObject *new_transport(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"library",    "messages", "payloads", "byte",
                            "any_source", "rank",     "size",     "highest_tag",
                            "on_news",    "look",     "failed",   NULL};
    const char *library;
    unsigned long long messages, payloads, byte;
    int any_source, rank, size, highest_tag;
    PyObject *on_news, *look, *failed;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "sKKKiiiiOOO:Transport", names,
                                     &library, &messages, &payloads, &byte, &any_source,
                                     &rank, &size, &highest_tag, &on_news, &look,
                                     &failed))
        return NULL;
    if (highest_tag < 1 || size < 1)
        return PyErr_Format(PyExc_ValueError,
                            "Transport: size and highest_tag must be positive");
    dlb_mpi mpi;
    if (dlb_mpi_find(&mpi, library) < 0)
        return NULL;
    PyObject *given_up = PySet_New(NULL);
    transport *self = given_up ? (transport *)type->tp_alloc(type, 0) : NULL;
    if (self == NULL) {
        Py_XDECREF(given_up);
        return NULL;
    }
    self->mpi = mpi;
    self->messages = (handle)(uintptr_t)messages;
    self->payloads = (handle)(uintptr_t)payloads;
    self->byte = (handle)(uintptr_t)byte;
    self->any_source = any_source;
    self->rank = rank;
    self->size = size;
    self->highest_tag = highest_tag;
    self->on_news = Py_NewRef(on_news);
    self->look = Py_NewRef(look);
    self->failed = Py_NewRef(failed);
    self->given_up = given_up;
    self->process = getpid();
    return (PyObject *)self;
}

/* What MPI reads or writes stays, for as long as the process lives. */
static arrived *being_written;
static sent *being_read;

static void abandon(transport *self) {
    for (arrived *one = self->incoming, *next; one != NULL; one = next) {
        next = one->next;
        if (one->posted) {
            one->next = being_written;
            being_written = one;
        } else
            free_arrived(self, one);
    }
    for (sent *one = self->outgoing, *next; one != NULL; one = next) {
        next = one->next;
        one->next = being_read;
        being_read = one;
    }
}

static void dealloc_transport(PyObject *object) {
    transport *self = (transport *)object;
    Py_XDECREF(self->on_news);
    Py_XDECREF(self->look);
    Py_XDECREF(self->failed);
    Py_XDECREF(self->given_up);
    for (size_t i = 0; i < BUCKETS; i++)
        for (arrived *one = self->table[i], *next; one != NULL; one = next) {
            next = one->next;
            free_arrived(self, one);
        }
    for (uint32_t i = 0; i < self->neighbour_count; i++)
        for (early *one = self->neighbours[i].early, *next; one != NULL; one = next) {
            next = one->next;
            drop(self, one->message);
            PyMem_Free(one);
        }
    PyMem_Free(self->neighbours);
    DLB_BEGIN_EXCLUSIVE((PyObject *)&dlb_TransportType);
    abandon(self);
    DLB_END_EXCLUSIVE();
    Py_XDECREF(self->handler);
    for (int i = 0; i < 2; i++) {
        dlb_arena *arena = i == 0 ? self->arena : self->offered;
        if (arena != NULL)
            dlb_arena_drop(arena);
    }
    Py_TYPE(object)->tp_free(object);
}

static PyObject *post_bytes(transport *self, PyObject *args, enum kind kind) {
    int peer;
    unsigned long long step;
    unsigned int number;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "iKIy*", &peer, &step, &number, &data))
        return NULL;
    int result = -1;
    if (data.len > INT32_MAX - (Py_ssize_t)sizeof(envelope))
        PyErr_Format(PyExc_ValueError, "Transport: %zd bytes are more than can be sent",
                     data.len);
    else {
        envelope *message = new_message(kind, step, number, (size_t)data.len);
        if (message != NULL) {
            if (data.len > 0)
                memcpy(contents_of(message), data.buf, (size_t)data.len);
            result = post(self, peer, message, NULL, NULL);
        }
    }
    PyBuffer_Release(&data);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *transport_tell(PyObject *object, PyObject *args) {
    return post_bytes((transport *)object, args, NEWS);
}

static PyObject *transport_post(PyObject *object, PyObject *args) {
    return post_bytes((transport *)object, args, VALUE);
}

static PyObject *transport_runs(PyObject *object, PyObject *number) {
    unsigned long long step = PyLong_AsUnsignedLongLong(number);
    if (step == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    return PyBool_FromLong(runner_of((transport *)object, step) != NULL);
}

static PyObject *transport_progress(PyObject *object, PyObject *Py_UNUSED(none)) {
    transport *self = (transport *)object;
    int moved = progress(self, false);
    if (moved < 0)
        return NULL;
    bool is_under_way = self->outgoing != NULL;
    for (arrived *one = self->incoming; one != NULL && !is_under_way; one = one->next)
        is_under_way = one->posted;
    return PyBool_FromLong(is_under_way);
}

static PyObject *transport_wait(PyObject *object, PyObject *seconds) {
    transport *self = (transport *)object;
    double limit = PyFloat_AsDouble(seconds);
    if (limit == -1 && PyErr_Occurred())
        return NULL;
    patience left = {0};
    uint64_t before = self->count;
    double end = now() + limit;
    do {
        int moved = progress(self, true);
        if (moved < 0 || (moved == 0 && rest(self, &left, NULL) < 0))
            return NULL;
    } while (self->count == before && now() < end);
    return PyBool_FromLong(self->count != before);
}

/* Let the waits of a step fail, now or when they come. */
static PyObject *transport_fail(PyObject *object, PyObject *number) {
    transport *self = (transport *)object;
    unsigned long long step = PyLong_AsUnsignedLongLong(number);
    if (step == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (*find(self, step, FAILURE, 0) == NULL) {
        envelope *message = new_message(VALUE, step, FAILURE, 0);
        if (message == NULL || keep(self, message) < 0)
            return NULL;
    }
    Py_RETURN_NONE;
}

/* Forget a step that failed: what has come of it, and what will. */
static PyObject *transport_give_up(PyObject *object, PyObject *number) {
    transport *self = (transport *)object;
    unsigned long long step = PyLong_AsUnsignedLongLong(number);
    if (step == (unsigned long long)-1 && PyErr_Occurred())
        return NULL;
    if (PySet_Add(self->given_up, number) < 0)
        return NULL;
    for (size_t i = 0; i < BUCKETS; i++)
        for (arrived **at = &self->table[i]; *at != NULL;) {
            arrived *one = *at;
            if (one->message->step == step) {
                *at = one->next;
                free_arrived(self, one);
            } else
                at = &one->next;
        }
    for (arrived *one = self->incoming; one != NULL; one = one->next)
        if (one->message->step == step && !one->unwanted) {
            one->unwanted = true;
            if (!one->posted && !one->refused && admit(self, one) < 0)
                return NULL;
        }
    Py_RETURN_NONE;
}

static PyObject *transport_counts(PyObject *object, PyObject *Py_UNUSED(none)) {
    transport *self = (transport *)object;
    Py_ssize_t kept = 0;
    for (size_t i = 0; i < BUCKETS; i++)
        for (arrived *one = self->table[i]; one != NULL; one = one->next)
            kept++;
    for (arrived *one = self->incoming; one != NULL; one = one->next)
        kept++;
    for (uint32_t i = 0; i < self->neighbour_count; i++)
        for (early *one = self->neighbours[i].early; one != NULL; one = one->next)
            kept++;
    return Py_BuildValue("KKKn", self->sent_count, self->sent_bytes, self->count, kept);
}

static PyObject *transport_offer(PyObject *object, PyObject *size) {
    transport *self = (transport *)object;
    size_t nbytes = PyLong_AsSize_t(size);
    if (nbytes == (size_t)-1 && PyErr_Occurred())
        return NULL;
    if (self->arena != NULL || self->offered != NULL)
        return PyErr_Format(PyExc_RuntimeError, "Transport: there is an arena already");
    self->offered = dlb_arena_new((uint32_t)self->rank, (uint32_t)self->size, nbytes);
    if (self->offered == NULL)
        Py_RETURN_NONE;
    dlb_arena_address where = dlb_arena_where(self->offered);
    return PyBytes_FromStringAndSize((const char *)&where, sizeof where);
}

static PyObject *transport_attach(PyObject *object, PyObject *args) {
    transport *self = (transport *)object;
    int rank;
    Py_buffer data;
    dlb_arena_address address;
    if (!PyArg_ParseTuple(args, "iy*", &rank, &data))
        return NULL;
    bool fits = data.len == sizeof address && rank >= 0 && self->offered != NULL;
    if (fits)
        memcpy(&address, data.buf, sizeof address);
    PyBuffer_Release(&data);
    return PyBool_FromLong(
        fits && dlb_arena_attach(self->offered, (uint32_t)rank, &address) == 0);
}

static PyObject *transport_share(PyObject *object, PyObject *agreed) {
    transport *self = (transport *)object;
    int is_agreed = PyObject_IsTrue(agreed);
    dlb_arena *arena = self->offered;
    if (is_agreed < 0)
        return NULL;
    if (arena == NULL)
        Py_RETURN_NONE;
    self->offered = NULL;
    dlb_arena_close(arena);
    PyObject *handler = is_agreed ? dlb_numpy_arena_handler(arena, SMALL + 1) : NULL;
    neighbour *made = PyMem_Calloc((size_t)self->size, sizeof *made);
    if (handler == NULL || made == NULL) {
        dlb_arena_drop(arena);
        Py_XDECREF(handler);
        PyMem_Free(made);
        if (!is_agreed)
            Py_RETURN_NONE;
        return PyErr_Occurred() ? NULL : PyErr_NoMemory();
    }
    for (int rank = 0; rank < self->size; rank++)
        if (rank != self->rank && dlb_arena_reaches(arena, (uint32_t)rank))
            made[self->neighbour_count++].rank = (uint32_t)rank;
    self->neighbours = made;
    self->handler = handler;
    self->arena = arena;
    Py_RETURN_NONE;
}

static PyObject *transport_arena(PyObject *object, PyObject *Py_UNUSED(none)) {
    transport *self = (transport *)object;
    size_t room = 0, used = 0;
    uint32_t blocks = 0;
    if (self->arena != NULL) {
        dlb_arena_sweep(self->arena);
        dlb_arena_count(self->arena, &room, &used, &blocks);
    }
    return Py_BuildValue("nnIK", (Py_ssize_t)room, (Py_ssize_t)used, blocks,
                         self->lent_count);
}

/* Each method has the transport to itself. */
#define EXCLUSIVE(method) DLB_EXCLUSIVE(method, transport_##method, PyObject *)
EXCLUSIVE(tell)
EXCLUSIVE(post)
EXCLUSIVE(runs)
EXCLUSIVE(progress)
EXCLUSIVE(wait)
EXCLUSIVE(fail)
EXCLUSIVE(give_up)
EXCLUSIVE(counts)
EXCLUSIVE(offer)
EXCLUSIVE(attach)
EXCLUSIVE(share)
EXCLUSIVE(arena)
#undef EXCLUSIVE

static PyMethodDef transport_methods[] = {
    {"tell", exclusive_tell, METH_VARARGS,
     "tell($self, peer, step, edge, data, /)\n--\n\nSend bytes to `on_news` of a "
     "rank."},
    {"post", exclusive_post, METH_VARARGS,
     "post($self, peer, step, edge, data, /)\n--\n\nSend bytes to an edge of a rank."},
    {"runs", exclusive_runs, METH_O,
     "runs($self, step, /)\n--\n\nReturn whether a Rendezvous is in this step."},
    {"progress", exclusive_progress, METH_NOARGS,
     "progress($self, /)\n--\n\nTake in what has come; return whether more is under "
     "way."},
    {"wait", exclusive_wait, METH_O,
     "wait($self, seconds, /)\n--\n\nTake in messages until one has come; return "
     "whether one did."},
    {"fail", exclusive_fail, METH_O,
     "fail($self, step, /)\n--\n\nLet the waits of a step raise what `failed` "
     "returns."},
    {"give_up", exclusive_give_up, METH_O,
     "give_up($self, step, /)\n--\n\nDrop all messages of a step, also later ones."},
    {"counts", exclusive_counts, METH_NOARGS,
     "counts($self, /)\n--\n\nMessages sent, their bytes, messages received, messages "
     "kept."},
    {"offer", exclusive_offer, METH_O,
     "offer($self, size, /)\n--\n\nMake a region that other processes of the host may "
     "map; return where it is, or None."},
    {"attach", exclusive_attach, METH_VARARGS,
     "attach($self, rank, address, /)\n--\n\nMap the region of a rank; return whether "
     "that worked."},
    {"share", exclusive_share, METH_O,
     "share($self, agreed, /)\n--\n\nUse the regions from now on, or drop them."},
    {"arena", exclusive_arena, METH_NOARGS,
     "arena($self, /)\n--\n\nBytes of the own region, those in use, in how many "
     "blocks; "
     "values lent."},
    {0},
};

static PyObject *get_largest_inside(PyObject *Py_UNUSED(self),
                                    void *Py_UNUSED(closure)) {
    return PyLong_FromLong(SMALL);
}

static PyGetSetDef transport_fields[] = {
    {"largest_inside", get_largest_inside, NULL,
     "The most bytes of a value that travel in its message; larger ones may be lent.",
     NULL},
    {0},
};

PyTypeObject dlb_TransportType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Transport",
    .tp_doc = "Transport(library, messages, payloads, byte, any_source, rank, "
              "size, highest_tag, on_news, look, failed)\n--\n\n"
              "Messages between the tasks of a cluster.",
    .tp_basicsize = sizeof(transport),
    .tp_flags = Py_TPFLAGS_DEFAULT,
    .tp_methods = transport_methods,
    .tp_getset = transport_fields,
    .tp_new = new_transport,
    .tp_dealloc = dealloc_transport,
};

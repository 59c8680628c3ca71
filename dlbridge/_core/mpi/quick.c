/* Calls of dlbridge.mpi with tensors of the CPU, without a Python frame: collectives
 * and messages, waited for or not.
 *
 * What the ranks say to each other is what the Python path says, so some may be here
 * and others there. Whatever is out of the ordinary is declined before anything is
 * sent: the result is False, and Python makes the whole call. A call that has begun and
 * takes long, or on which the ranks do not agree, goes on in Python: `resume` gets what
 * is under way. */
#include "python/python.h" /* first, as it asks for clock_gettime in its own way */

#include "exchange/exchange.h"
#include "layout/layout.h"
#include "mpi/mpi.h"

#include <limits.h>
#include <sched.h>
#include <stdatomic.h>
#include <string.h>
#include <structmember.h>
#include <time.h>

enum {
    SMALL_MESSAGE = 8 * 1024, /* bytes of contents in the first message of a send */
    MOST_DIMENSIONS = DLB_MAX_NDIM,
    SPINS = 100,    /* looks before the processor is yielded */
    OTHERS = 16,    /* messages that go on meanwhile */
    TOGETHER = 256, /* messages that are waited for between two looks at signals */
};
#define LONGEST 10e-3 /* seconds of yielding, at most: nobody looks at signals */
#define PATIENCE 1.0  /* seconds in which memory may be short */
#define ASIDE 1e-3    /* seconds after which what is under way in Python goes on */

/* ---- Posted: a message under way ---- */

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

static posted *new_posted(dlb_peers *over, int peer, bool is_receive, size_t size) {
    posted *self = (posted *)dlb_PostedType.tp_alloc(&dlb_PostedType, 0);
    if (self == NULL)
        return NULL;
    self->over = (dlb_peers *)Py_NewRef(over);
    self->peer = peer;
    self->is_receive = is_receive;
    self->head.size = (int)size;
    self->data = PyMem_RawMalloc(size);
    if (self->data == NULL) {
        Py_DECREF(self);
        PyErr_NoMemory();
        return NULL;
    }
    return self;
}

static int post(posted *self, request *made, char *data, size_t size, int tag,
                dlb_mpi_handle on) {
    const dlb_peers *over = self->over;
    int code = self->is_receive ? over->mpi.irecv(data, (int)size, over->byte,
                                                  self->peer, tag, on, &made->handle)
                                : over->mpi.isend(data, (int)size, over->byte,
                                                  self->peer, tag, on, &made->handle);
    if (code != 0)
        return dlb_mpi_failed(self->is_receive ? "MPI_Irecv" : "MPI_Isend", code,
                              self->peer);
    made->is_under_way = true;
    return 0;
}

static int post_head(posted *self, int tag) {
    return post(self, &self->head, self->data, (size_t)self->head.size, tag,
                self->over->messages);
}

/* Send large contents, or receive them, from or into memory of the buffer. */
static int post_contents(posted *self, dlb_buffer *buffer, char *data, size_t nbytes,
                         uint32_t number) {
    self->buffer = dlb_buffer_retain(buffer);
    self->nbytes = nbytes;
    return post(self, &self->contents, data, nbytes, (int)number, self->over->payloads);
}

/* MPI_Test may copy large contents, so the GIL is released for them. */
static int test_request(const posted *self, request *tested, int *done,
                        dlb_mpi_status status) {
    const dlb_mpi *mpi = &self->over->mpi;
    int code;
    if (self->buffer == NULL)
        return mpi->test(&tested->handle, done, status);
    Py_BEGIN_ALLOW_THREADS;
    code = mpi->test(&tested->handle, done, status);
    Py_END_ALLOW_THREADS;
    return code;
}

static int advance_request(const posted *self, request *tested) {
    dlb_mpi_status status;
    dlb_mpi_handle before = tested->handle;
    int done = 1, code;
    if (!tested->is_under_way)
        return 1;
    if ((code = test_request(self, tested, &done, status)) != 0) {
        tested->is_under_way = tested->handle == before; /* as in ballot.c */
        return dlb_mpi_failed("MPI_Test", code, self->peer);
    }
    if (!done)
        return 0;
    tested->is_under_way = false;
    if (self->is_receive && (code = self->over->mpi.get_count(status, self->over->byte,
                                                              &tested->size)) != 0)
        return dlb_mpi_failed("MPI_Get_count", code, self->peer);
    return 1;
}

/* Returns 1 when the message is complete, 0 if not yet, -1 with an exception. */
static int advance_posted(posted *self) {
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    int done = advance_request(self, &self->head);
    if (done > 0)
        done = advance_request(self, &self->contents);
    self->is_busy = false;
    if (done <= 0 || !self->is_receive || self->buffer == NULL ||
        (size_t)self->contents.size == self->nbytes)
        return done;
    dlb_raise_error("MPIError",
                    "recv: rank %d announces %zu bytes and sends %d; run the same "
                    "dlbridge on all ranks",
                    self->peer, self->nbytes, self->contents.size);
    return -1;
}

static PyObject *posted_advance(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = advance_posted((posted *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

/* Take back a receive of which nothing has come: whether that was done. */
static int cancel_posted(posted *self) {
    const dlb_mpi *mpi = &self->over->mpi;
    dlb_mpi_status status;
    int done = 0, is_cancelled = 0, code;
    if (!self->is_receive || !self->head.is_under_way || self->is_busy)
        return 0;
    if ((code = mpi->cancel(&self->head.handle)) != 0)
        return dlb_mpi_failed("MPI_Cancel", code, self->peer);
    while (!done) /* which needs no other rank */
        if ((code = mpi->test(&self->head.handle, &done, status)) != 0)
            return dlb_mpi_failed("MPI_Test", code, self->peer);
    self->head.is_under_way = false;
    if ((code = mpi->test_cancelled(status, &is_cancelled)) != 0)
        return dlb_mpi_failed("MPI_Test_cancelled", code, self->peer);
    if (!is_cancelled &&
        (code = mpi->get_count(status, self->over->byte, &self->head.size)) != 0)
        return dlb_mpi_failed("MPI_Get_count", code, self->peer);
    return is_cancelled;
}

static PyObject *posted_cancel(PyObject *object, PyObject *Py_UNUSED(none)) {
    int done;
    DLB_BEGIN_EXCLUSIVE(object);
    done = cancel_posted((posted *)object);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *posted_data(PyObject *object, void *Py_UNUSED(closure)) {
    posted *self = (posted *)object;
    PyObject *made;
    DLB_BEGIN_EXCLUSIVE(object);
    made = PyBytes_FromStringAndSize(self->data,
                                     self->head.is_under_way ? 0 : self->head.size);
    DLB_END_EXCLUSIVE();
    return made;
}

/* Both are set before Python sees the object. */
static PyObject *posted_nbytes(PyObject *object, void *Py_UNUSED(closure)) {
    return PyLong_FromSize_t(((posted *)object)->nbytes);
}

static PyObject *posted_result(PyObject *object, void *Py_UNUSED(closure)) {
    PyObject *result = ((posted *)object)->result;
    return Py_NewRef(result == NULL ? Py_None : result);
}

/* Memory of incomplete requests is not freed: MPI may still use it. */
static void dealloc_posted(PyObject *object) {
    posted *self = (posted *)object;
    if (!self->head.is_under_way)
        PyMem_RawFree(self->data);
    if (self->buffer != NULL && !self->contents.is_under_way)
        dlb_buffer_drop(self->buffer);
    Py_XDECREF(self->result);
    Py_XDECREF(self->over);
    Py_TYPE(object)->tp_free(object);
}

static PyMethodDef posted_methods[] = {
    {"advance", posted_advance, METH_NOARGS,
     "advance($self, /)\n--\n\nReturn whether the message has gone, or come."},
    {"cancel", posted_cancel, METH_NOARGS,
     "cancel($self, /)\n--\n\nTake back a receive of which nothing has come; return "
     "whether that was done."},
    {0},
};

static PyGetSetDef posted_fields[] = {
    {"data", posted_data, NULL, "A copy of what has come, without large contents.",
     NULL},
    {"nbytes", posted_nbytes, NULL, "Bytes of large contents that are under way.",
     NULL},
    {"result", posted_result, NULL,
     "The Tensor that large contents are received into; None: another one.", NULL},
    {0},
};

PyTypeObject dlb_PostedType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Posted",
    .tp_doc = "A message under way.",
    .tp_basicsize = sizeof(posted),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .tp_methods = posted_methods,
    .tp_getset = posted_fields,
    .tp_dealloc = dealloc_posted,
};

/* ---- Quick ---- */

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

static PyObject *new_quick(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"like", NULL};
    PyObject *like = Py_None;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:Quick", names, &like))
        return NULL;
    if (like != Py_None && Py_TYPE(like) != &dlb_QuickType)
        return PyErr_Format(PyExc_TypeError, "Quick: like must be a Quick, or None");
    quick *self = (quick *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->resume = Py_NewRef(Py_None);
    self->request = Py_NewRef(Py_None);
    self->go_on = Py_NewRef(Py_None);
    self->peers = Py_NewRef(Py_None);
    self->active = PyDict_New();
    quick *shared = like == Py_None ? NULL : (quick *)like;
    self->types = shared == NULL ? PyDict_New() : Py_NewRef(shared->types);
    self->calls = shared == NULL ? PyDict_New() : Py_NewRef(shared->calls);
    if (self->active == NULL || self->types == NULL || self->calls == NULL) {
        Py_DECREF(self);
        return NULL;
    }
    return (PyObject *)self;
}

static int traverse_quick(PyObject *object, visitproc visit, void *arg) {
    quick *self = (quick *)object;
    Py_VISIT(self->peers);
    Py_VISIT(self->active);
    Py_VISIT(self->go_on);
    Py_VISIT(self->types);
    Py_VISIT(self->calls);
    Py_VISIT(self->resume);
    Py_VISIT(self->request);
    return 0;
}

static int clear_quick(PyObject *object) {
    quick *self = (quick *)object;
    Py_CLEAR(self->peers);
    Py_CLEAR(self->active);
    Py_CLEAR(self->go_on);
    Py_CLEAR(self->types);
    Py_CLEAR(self->calls);
    Py_CLEAR(self->resume);
    Py_CLEAR(self->request);
    return 0;
}

static void dealloc_quick(PyObject *object) {
    PyObject_GC_UnTrack(object);
    clear_quick(object);
    Py_TYPE(object)->tp_free(object);
}

/* Returned for a call that Python makes. */
static PyObject *decline(void) {
    return PyErr_Occurred() ? NULL : Py_NewRef(Py_False);
}

static double now(void) {
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

static int advance_some(Py_ssize_t count);
static bool is_something_begun(void);

/* Calls that are made here one after the other never wait in Python, where what is
 * under way goes on. So it does from time to time before a call; -1 with an exception.
 */
static int go_on_aside(quick *self) {
    PyObject *go_on = NULL;
    bool is_time = false;
    DLB_BEGIN_EXCLUSIVE(self);
    bool is_active = self->active != NULL && PyDict_Check(self->active) &&
                     PyDict_GET_SIZE(self->active) > 0;
    if (is_active || is_something_begun()) {
        double time = now();
        if ((is_time = time - self->went_on > ASIDE))
            self->went_on = time;
        if (is_time && is_active)
            go_on = Py_XNewRef(self->go_on);
    }
    DLB_END_EXCLUSIVE();
    if (go_on == NULL)
        return is_time ? advance_some(OTHERS) : 0;
    PyObject *none[1], *result = dlb_defer_signals(go_on, none, 0, NULL);
    Py_DECREF(go_on);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

/* Whether calls may be made here; 0: no, perhaps with an exception. */
static bool is_open(quick *self, const dlb_peers *over) {
    int is_over = 0;
    return dlb_is_member(over) && over->mpi.finalized(&is_over) == 0 && !is_over &&
           go_on_aside(self) == 0;
}

/* The peers, where a call may be made here, a new reference; NULL: it is declined,
 * perhaps with an exception. */
static dlb_peers *open_peers(quick *self) {
    dlb_peers *over;
    bool is_set;
    DLB_BEGIN_EXCLUSIVE(self);
    over = (dlb_peers *)Py_XNewRef(self->peers);
    is_set = over != NULL && Py_TYPE(over) == &dlb_PeersType;
    DLB_END_EXCLUSIVE();
    if (is_set && is_open(self, over))
        return over;
    Py_XDECREF(over);
    return NULL;
}

/* Seconds for which a wait yields the processor before Python waits. */
static double patience(const dlb_peers *over, size_t nbytes) {
    double awake =
        over->is_near ? 50e-6 + 5e-10 * (double)nbytes : 300e-6 + 2e-9 * (double)nbytes;
    return awake < LONGEST ? awake : LONGEST;
}

/* Wait for a short while: 1, it is complete; 0, Python waits for it; -1. */
static int wait_shortly(int (*advance)(void *), void *what, const dlb_peers *over,
                        size_t nbytes) {
    int done;
    for (int i = 0; i < SPINS; i++)
        if ((done = advance(what)) != 0)
            return done;
    double until = now() + patience(over, nbytes);
    do {
        Py_BEGIN_ALLOW_THREADS;
        sched_yield();
        Py_END_ALLOW_THREADS;
        if ((done = advance(what)) != 0)
            return done;
    } while (now() < until);
    return 0;
}

static int advance_message(void *message) {
    return advance_posted(message);
}

/* ---- tensors in and out ---- */

typedef struct {
    PyObject *known;             /* what `types` has, a reference */
    PyObject *converter, *guard; /* of that; None: a Tensor, no guard */
    dlb_view view;
    size_t nbytes;
} source;

static void drop_source(const source *from) {
    dlb_buffer_drop(from->view.buffer);
    Py_DECREF(from->known);
}

static int take_known(PyObject *x, size_t most, source *out) {
    out->converter = PyTuple_GET_ITEM(out->known, 0);
    out->guard = PyTuple_GET_ITEM(out->known, 1);
    if (out->guard != Py_None) {
        PyObject *is_clean = PyObject_CallNoArgs(out->guard);
        if (is_clean == NULL)
            return -1;
        Py_DECREF(is_clean);
        if (is_clean != Py_True)
            return 0;
    }
    int status = dlb_take(x, &out->view);
    if (status != 0)
        return status < 0 ? -1 : 0;
    const DLTensor *dl = &out->view.dl;
    out->nbytes =
        (size_t)dlb_packed_bytes(dl->dtype, out->view.flags, dlb_element_count(dl));
    if (out->view.buffer->access == NULL && dl->device.device_type == kDLCPU &&
        !(out->view.flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED) &&
        out->nbytes > 0 && out->nbytes <= most && dl->ndim < MOST_DIMENSIONS &&
        dl->dtype.bits % 8 == 0 && dlb_is_row_major(dl))
        return 1;
    dlb_buffer_drop(out->view.buffer);
    return 0;
}

/* 1: taken, and the caller drops it; 0: declined; -1. */
static int take_source(const quick *self, PyObject *x, size_t most, source *out) {
    out->known = dlb_cache_get(self->types, (PyObject *)Py_TYPE(x));
    if (out->known == NULL)
        return PyErr_Occurred() ? -1 : 0;
    int taken = take_known(x, most, out);
    if (taken <= 0)
        Py_DECREF(out->known);
    return taken;
}

static const char *data_of(const source *from) {
    return (const char *)from->view.dl.data + from->view.dl.byte_offset;
}

/* Like take_source, for the array of `out=`; declines what must not be written. */
static int take_out(const quick *self, PyObject *x, source *out) {
    int taken = take_source(self, x, INT_MAX, out);
    if (taken <= 0 ||
        (PyTuple_GET_ITEM(out->known, 2) == Py_True &&
         !(out->view.flags & DLPACK_FLAG_BITMASK_READ_ONLY) &&
         (dlb_is_row_major(&out->view.dl) || !dlb_overlaps_itself(&out->view.dl))))
        return taken;
    drop_source(out);
    return 0;
}

/* Where a result goes: into the array of `out=`, which is None without one. */
typedef struct {
    PyObject *out;
    source into;
} destination;

/* 1: open, and the caller closes it; 0: declined, also where it has another shape or
 * dtype, which Python refuses; -1. */
static int open_out(const quick *self, PyObject *out, DLDataType dtype, int32_t ndim,
                    const int64_t *shape, destination *made) {
    made->out = out;
    if (out == Py_None)
        return 1;
    int taken = take_out(self, out, &made->into);
    if (taken <= 0)
        return taken;
    const DLTensor *dl = &made->into.view.dl;
    if (dl->ndim == ndim && memcmp(&dl->dtype, &dtype, sizeof dtype) == 0 &&
        (ndim == 0 || memcmp(dl->shape, shape, (size_t)ndim * sizeof *shape) == 0))
        return 1;
    drop_source(&made->into);
    return 0;
}

static void close_out(const destination *made) {
    if (made->out != Py_None)
        drop_source(&made->into);
}

/* Allocate memory for a tensor; -1, without an exception, if there is none. */
static int make_memory(dlb_view *view, DLDataType dtype, int32_t ndim,
                       const int64_t *shape) {
    dlb_view_set_memory(view, NULL, dtype, ndim, shape);
    return dlb_cpu_fill_view(view, 64, false);
}

/* Wrap a view in an array; takes the reference of the view. */
static PyObject *give(PyObject *converter, dlb_view *view) {
    return converter == Py_None ? dlb_tensor_new(dlb.tensor_type, view)
                                : dlb_converter_give(converter, view);
}

/* A new array with these contents. */
static PyObject *make_result(PyObject *converter, DLDataType dtype, int32_t ndim,
                             const int64_t *shape, const char *contents,
                             size_t nbytes) {
    dlb_view view;
    if (make_memory(&view, dtype, ndim, shape) < 0)
        return PyErr_NoMemory();
    memcpy(view.dl.data, contents, nbytes);
    return give(converter, &view);
}

/* ---- collectives ---- */

/* Who makes a call: `timeout`, from `begun` on, is None or at least LONGEST. */
typedef struct {
    const quick *self;
    PyObject *timeout;
    double begun;
} caller;

/* Whether it is such a timeout; others are Python's. */
static bool set_timeout(caller *by, PyObject *timeout) {
    double seconds = LONGEST;
    by->timeout = timeout;
    if (timeout == Py_None)
        return true;
    if (PyFloat_CheckExact(timeout))
        seconds = PyFloat_AS_DOUBLE(timeout);
    else if (!PyLong_CheckExact(timeout) ||
             ((seconds = PyLong_AsDouble(timeout)) == -1.0 && PyErr_Occurred()))
        seconds = -1.0;
    PyErr_Clear();
    by->begun = now();
    return seconds >= LONGEST;
}

/* Go on in Python: resume(name, what is under way, *the arguments) returns a Request.
 */
static PyObject *go_on(const quick *self, const char *name, void *under_way,
                       PyObject *const *args, Py_ssize_t count) {
    PyObject *given[12] = {PyUnicode_FromString(name), under_way};
    if (given[0] == NULL)
        return NULL;
    memcpy(given + 2, args, (size_t)count * sizeof *args);
    PyObject *function;
    DLB_BEGIN_EXCLUSIVE(self);
    function = Py_NewRef(self->resume);
    DLB_END_EXCLUSIVE();
    PyObject *request = dlb_defer_signals(function, given, (size_t)count + 2, NULL);
    Py_DECREF(function);
    Py_DECREF(given[0]);
    return request;
}

/* Advance what is under way, one thing or two: 1, it is over; 0, not yet; -1. */
static int advance_any(PyObject *under_way) {
    if (PyTuple_CheckExact(under_way)) {
        int first = advance_any(PyTuple_GET_ITEM(under_way, 0));
        int second = first < 0 ? -1 : advance_any(PyTuple_GET_ITEM(under_way, 1));
        return second < 0 ? -1 : first && second;
    }
    if (Py_TYPE(under_way) == &dlb_PostedType)
        return advance_posted((posted *)under_way);
    if (Py_TYPE(under_way) == &dlb_TreeBallotType)
        return dlb_tree_ballot_advance((dlb_tree_ballot *)under_way);
    return Py_TYPE(under_way) == &dlb_BallotType
               ? dlb_ballot_advance((dlb_ballot *)under_way)
               : dlb_collective_advance((dlb_collective *)under_way);
}

/* Cancel a receive, of sendrecv as well, if none of its message has arrived: it would
 * take that of a later one. Returns whether it was cancelled; keeps the exception. */
static bool takes_back(PyObject *under_way) {
    PyObject *last =
        PyTuple_CheckExact(under_way) ? PyTuple_GET_ITEM(under_way, 1) : under_way;
    PyObject *error = dlb_take_exception();
    int done = Py_TYPE(last) == &dlb_PostedType ? cancel_posted((posted *)last) : 0;
    PyErr_Clear(); /* of MPI */
    PyErr_SetObject((PyObject *)Py_TYPE(error), error);
    Py_DECREF(error);
    return done > 0;
}

/* Advance for a millisecond, as Python lacks the memory to take over. -1 with an
 * exception. */
static int advance_for_now(PyObject *under_way) {
    for (int i = 0; i < 10; i++) {
        if (advance_any(under_way) < 0)
            return -1;
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){.tv_nsec = 100000}, NULL);
        Py_END_ALLOW_THREADS;
    }
    return PyErr_CheckSignals();
}

/* As `go_on`. If that runs out of memory, a receive is cancelled if none of its message
 * has arrived. All else goes on here until there is memory again, or for PATIENCE:
 * other ranks rely on it, and a message that has begun to arrive is not lost. */
static PyObject *hand_to_python(const quick *self, const char *name, void *under_way,
                                PyObject *const *args, Py_ssize_t count) {
    double until = now() + PATIENCE;
    for (;;) {
        PyObject *request = go_on(self, name, under_way, args, count);
        if (request != NULL || !PyErr_ExceptionMatches(PyExc_MemoryError) ||
            takes_back(under_way) || now() > until)
            return request;
        PyErr_Clear();
        if (advance_for_now(under_way) < 0)
            return NULL;
    }
}

/* Wait for it there. An interrupt ends the wait, not the call: the other ranks still
 * get what they wait for. */
static PyObject *resume(const caller *by, const char *name, void *under_way,
                        PyObject *const *args, Py_ssize_t count) {
    PyObject *request = hand_to_python(by->self, name, under_way, args, count);
    PyObject *result = NULL;
    if (request != NULL && by->timeout == Py_None)
        result = PyObject_CallMethod(request, "wait_or_cancel", "O", Py_None);
    else if (request != NULL)
        result =
            PyObject_CallMethod(request, "wait_since", "dO", by->begun, by->timeout);
    Py_XDECREF(request);
    return result;
}

/* The count that is wanted, or one more: a timeout. */
static bool has_count(const char *name, Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted || count == wanted + 1)
        return true;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, wanted,
                 count);
    return false;
}

/* What is known of a call with these arguments, a new reference; NULL, perhaps with an
 * exception. */
static PyObject *find_call(const quick *self, PyObject *key) {
    return key == NULL ? NULL : dlb_cache_get(self->calls, key);
}

/* How much of what was reduced a rank gets. */
typedef enum { NOTHING, WHOLE, ROW } share;

/* ---- collectives, from their arguments to their results ---- */

/* One call: of the frame of a blocking one, or of a Begun. */
typedef struct call {
    const char *name; /* of the blocking form, with which Python goes on */
    PyObject *given[4];
    Py_ssize_t count;              /* of those, references: what else Python needs */
    int (*settled)(struct call *); /* once all agree: as advance_call */
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

static void init_call(call *self, const char *name) {
    memset(self, 0, offsetof(call, shape));
    self->name = name;
}

static void clear_call(call *self) {
    for (Py_ssize_t i = 0; i < self->count; i++)
        Py_DECREF(self->given[i]);
    if (self->memory != NULL)
        dlb_buffer_drop(self->memory);
    if (self->out != NULL)
        dlb_buffer_drop(self->out);
    Py_XDECREF(self->ballot);
    Py_XDECREF(self->copies);
    Py_XDECREF(self->converter);
    Py_XDECREF(self->quotients);
    Py_XDECREF(self->result);
}

static void keep_arguments(call *self, PyObject *const *args, Py_ssize_t count) {
    self->count = count;
    for (Py_ssize_t i = 0; i < count; i++)
        self->given[i] = Py_NewRef(args[i]);
}

static PyObject *under_way_of(const call *self) {
    return self->is_copying ? (PyObject *)self->copies : (PyObject *)self->ballot;
}

/* ---- its result ---- */

static void describe_result(call *self, DLDataType dtype, int32_t ndim,
                            const int64_t *shape) {
    self->dtype = dtype;
    self->ndim = ndim;
    if (ndim > 0) /* else it may be NULL */
        memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    DLTensor dl = {.ndim = ndim, .dtype = dtype, .shape = self->shape};
    self->nbytes = (size_t)dlb_packed_bytes(dtype, 0, dlb_element_count(&dl));
}

/* The array of `out=`, which may be None, for the result that was described: 1; 0:
 * declined; -1. */
static int open_result(call *self, const quick *of, PyObject *out) {
    destination to;
    int taken = open_out(of, out, self->dtype, self->ndim, self->shape, &to);
    if (taken <= 0 || out == Py_None)
        return taken;
    self->out = dlb_buffer_retain(to.into.view.buffer);
    self->out_data = (char *)data_of(&to.into);
    self->instead = out;
    close_out(&to);
    return 1;
}

/* A view of the result, with a reference. */
static void view_result(const call *self, dlb_view *view) {
    dlb_view_set_memory(view, self->data, self->dtype, self->ndim, self->shape);
    view->buffer = dlb_buffer_retain(self->memory);
    dlb_view_set_row_major(view);
}

/* Whether the result may be written to `out` while the source is read, and be computed
 * there. */
static bool is_apart(const call *self, const source *from) {
    const char *start = self->out_data, *other = from == NULL ? NULL : data_of(from);
    if ((uintptr_t)start % (self->dtype.bits / 8))
        return false;
    return other == NULL || start + self->nbytes <= other ||
           other + from->nbytes <= start;
}

/* Memory for the result, as a Tensor: that of `out` if it is given, and may be written
 * meanwhile. NULL, without an exception, if memory cannot be allocated: Python then
 * reports that to all ranks. */
static PyObject *make_target(call *self, const source *from) {
    dlb_view view;
    if (self->out != NULL && is_apart(self, from)) {
        self->memory = dlb_buffer_retain(self->out);
        self->data = self->out_data;
    } else {
        if (make_memory(&view, self->dtype, self->ndim, self->shape) < 0)
            return NULL;
        self->memory = view.buffer;
        self->data = view.dl.data;
    }
    view_result(self, &view);
    PyObject *made = dlb_tensor_new(dlb.tensor_type, &view);
    if (made == NULL)
        PyErr_Clear();
    return made;
}

static int has_result(const call *self) {
    return self->result == NULL ? -1 : 1;
}

/* Make the result of these contents. */
static int finish_with(call *self, const char *contents) {
    if (self->out != NULL && self->out_data != contents)
        memcpy(self->out_data, contents, self->nbytes);
    self->result = self->instead != NULL
                       ? Py_NewRef(self->instead)
                       : make_result(self->converter, self->dtype, self->ndim,
                                     self->shape, contents, self->nbytes);
    return has_result(self);
}

/* Make the result of its memory, where that was allocated. */
static int finish_call(call *self) {
    if (self->instead != NULL)
        return finish_with(self, self->data);
    dlb_view view;
    view_result(self, &view);
    self->result = give(self->converter, &view);
    return has_result(self);
}

/* ---- going on with it ---- */

enum {
    ODD = 2,  /* Python goes on, with what is under way */
    NEXT = 3, /* something else is under way, and may take as long */
};

/* Make a sum, of which this rank gets the result, a mean if that is the op. */
static void divide(const call *self, char *data) {
    if (self->quotients != NULL && self->gets != NOTHING)
        dlb_divide(self->dtype, data, self->nbytes, dlb_ballot_over(self->ballot)->size,
                   self->quotients);
}

/* Begin to copy, since all ranks agree. */
static int begin_copying(call *self, size_t nbytes) {
    if (dlb_collective_post(self->copies, self->ballot) < 0)
        return -1;
    self->is_copying = true;
    self->awaited = nbytes;
    return NEXT;
}

/* 1: it is over, with the result; 0: not yet; ODD; NEXT; -1. */
static int advance_call(void *object) {
    call *self = object;
    if (self->is_copying) {
        int done = dlb_collective_advance(self->copies);
        if (done > 0)
            divide(self, self->data);
        return done > 0 ? finish_call(self) : done;
    }
    int done = dlb_ballot_advance(self->ballot);
    if (done <= 0)
        return done;
    return dlb_ballot_agreed(self->ballot) ? self->settled(self) : ODD;
}

/* How a call begins, with its arguments: 1; 0: declined; -1. Nothing is sent by then,
 * and what may lack memory is there. */
typedef int (*beginning)(call *self, const quick *of, dlb_peers *over,
                         PyObject *const *args);

/* 1: begun; 0: declined, also where memory could not be allocated, which Python then
 * reports to all ranks. Any other error stays set. */
static int begin_or_decline(call *self, beginning begin, const quick *of,
                            dlb_peers *over, PyObject *const *args) {
    int begun = begin(self, of, over, args);
    if (begun > 0)
        return 1;
    clear_call(self);
    if (begun < 0 && PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return 0;
}

/* Make a call, and wait for it. */
static PyObject *make_call(const caller *by, dlb_peers *over, const char *name,
                           beginning begin, PyObject *const *args) {
    call made;
    init_call(&made, name);
    if (begin_or_decline(&made, begin, by->self, over, args) == 0)
        return decline();
    int done;
    do
        done = wait_shortly(advance_call, &made, over, made.awaited);
    while (done == NEXT);
    PyObject *result = NULL;
    if (done == 0 || done == ODD)
        result = resume(by, name, under_way_of(&made), made.given, made.count);
    else if (done > 0)
        result = Py_NewRef(made.result);
    clear_call(&made);
    return result;
}

/* ---- what follows the ballot ---- */

/* What is too large for the ballot follows it, or is MPI's. */
static int settled_copy(call *self) {
    return self->copies == NULL ? ODD : begin_copying(self, self->awaited);
}

/* What follows when all agree, with memory for the result if this rank gets one; -1. */
static int add_copies(call *self, dlb_peers *over, dlb_copy_kind kind,
                      const source *from, bool gets_result, size_t part,
                      const dlb_combine *how) {
    PyObject *target = gets_result ? make_target(self, from) : Py_NewRef(Py_None);
    if (target == NULL)
        return -1;
    dlb_buffer *buffer = from == NULL ? NULL : from->view.buffer;
    const char *data = from == NULL ? NULL : data_of(from);
    self->copies =
        dlb_collective_new(over, kind, self->root, buffer, data, target, part, how);
    if (gets_result && self->ballot != NULL)
        dlb_ballot_set_result(self->ballot, target);
    Py_DECREF(target);
    return self->copies == NULL ? -1 : 0;
}

/* ---- reductions ---- */

/* The bytes of one of as many rows as there are ranks; 0: there are not that many. */
static size_t row_bytes(const dlb_peers *over, const source *from) {
    const DLTensor *dl = &from->view.dl;
    bool has_rows = dl->ndim > 0 && dl->shape[0] == over->size;
    return has_rows ? from->nbytes / (size_t)over->size : 0;
}

static int settled_reduction(call *self) {
    char *all = self->memory != NULL ? self->data : dlb_ballot_payload(self->ballot);
    if (self->gets == ROW)
        all += self->nbytes * (size_t)dlb_ballot_over(self->ballot)->rank;
    divide(self, all);
    return self->memory != NULL ? finish_call(self) : finish_with(self, all);
}

/* Have values that are too large for the ballot follow it; -1: failed to allocate. */
static int add_values(call *self, const dlb_combine *loop, const source *from) {
    PyObject *target = make_target(self, from);
    int failed = -1;
    if (target != NULL)
        failed =
            dlb_ballot_add_values(self->ballot, loop, from->view.buffer, data_of(from),
                                  self->memory, self->data, from->nbytes);
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
    self->settled = settled_copy;
    return add_copies(self, over, DLB_REDUCE_SCATTER, from, true, self->nbytes, loop);
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
        (follows && (uintptr_t)data_of(from) % (dl->dtype.bits / 8)) ||
        (less && row_bytes(over, from) == 0))
        return 0;
    describe_result(self, dl->dtype, dl->ndim - less, dl->shape + less);
    int opened = open_result(self, of, out);
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
    memcpy(dlb_ballot_payload(self->ballot), data_of(from), from->nbytes);
    return less && dlb_ballot_scatter(self->ballot) < 0 ? -1 : 1;
}

/* `key`, a reference or NULL: by which the reduction is known. */
static int begin_reduction(call *self, const quick *of, dlb_peers *over, PyObject *key,
                           size_t most, share gets, PyObject *x, PyObject *out) {
    PyObject *how = find_call(of, key);
    source from;
    int taken = 0;
    Py_XDECREF(key);
    self->gets = gets;
    if (how != NULL && Py_TYPE(how) == &dlb_ReductionType)
        taken = take_source(of, x, most, &from);
    if (taken > 0) {
        taken = begin_with(self, of, over, how, &from, out);
        drop_source(&from);
    }
    Py_XDECREF(how);
    return PyErr_Occurred() ? -1 : taken;
}

static int begin_allreduce(call *self, const quick *of, dlb_peers *over,
                           PyObject *const *args) { /* x, op, out */
    PyObject *key = PyUnicode_CheckExact(args[1]) ? Py_NewRef(args[1]) : NULL;
    keep_arguments(self, args, 3);
    return begin_reduction(self, of, over, key, INT_MAX, WHOLE, args[0], args[2]);
}

/* The root of a call; -1: not a rank of these processes, which Python refuses. That a
 * call with this root is known does not suffice: another communicator may have more
 * ranks. */
static int read_root(const dlb_peers *over, PyObject *root) {
    int overflow = 0;
    long rank =
        PyLong_CheckExact(root) ? PyLong_AsLongAndOverflow(root, &overflow) : -1;
    return overflow == 0 && rank >= 0 && rank < over->size ? (int)rank : -1;
}

static int begin_reduce(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args) { /* x, op, root */
    int root = read_root(over, args[2]);
    if (!PyUnicode_CheckExact(args[1]) || root < 0)
        return 0;
    keep_arguments(self, args, 3);
    share gets = root == over->rank ? WHOLE : NOTHING;
    return begin_reduction(self, of, over, PyTuple_Pack(2, args[1], args[2]),
                           DLB_REDUCED_MOST, gets, args[0], Py_None);
}

static int begin_reduce_scatter(call *self, const quick *of, dlb_peers *over,
                                PyObject *const *args) { /* x, op, out, key */
    if (!PyUnicode_CheckExact(args[1]))
        return 0;
    keep_arguments(self, args, 3);
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
        taken =
            is_out ? take_out(self, x, &from) : take_source(self, x, INT_MAX, &from);
        if (taken <= 0)
            break;
        char *data = (char *)data_of(&from);
        if (!dlb_tree_has(plan, made->count, &from.view.dl) ||
            (uintptr_t)data % (from.view.dl.dtype.bits / 8)) {
            drop_source(&from);
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
        made[count] = give(PyTuple_GET_ITEM(from->known[count], 0), &view);
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
        return decline();
    }
    int done = wait_shortly(advance_tree, ballot, over, dlb_tree_nbytes(plan));
    PyObject *result = NULL;
    if (done == 0 || (done > 0 && !dlb_tree_ballot_agreed(ballot))) {
        PyObject *none = resume(by, "allreduce of a tree", ballot, args, 0);
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

static PyObject *reduce_tree(const caller *by, dlb_peers *over, PyObject *const *args) {
    PyObject *key = Py_BuildValue("(Os)", args[1], "tree");
    PyObject *plans = find_call(by->self, key), *result = NULL;
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
    return result != NULL ? result : decline();
}

static bool may_be_tree(PyObject *x) {
    return PyDict_CheckExact(x) || PyList_CheckExact(x) || PyTuple_CheckExact(x);
}

/* The digest of a call that has no reduction; false, perhaps with an exception. */
static bool find_digest(const quick *self, PyObject *key, uint8_t digest[16]) {
    PyObject *known = find_call(self, key);
    bool is_digest =
        known != NULL && PyBytes_CheckExact(known) && PyBytes_GET_SIZE(known) == 16;
    if (is_digest)
        memcpy(digest, PyBytes_AS_STRING(known), 16);
    Py_XDECREF(known);
    return is_digest;
}

/* ---- allgather, alltoall, gather ---- */

/* All rows are zeros but one's own, and "or" puts them together. */
static void combine_bits(char **operands, const Py_ssize_t *count,
                         const Py_ssize_t *Py_UNUSED(steps), void *Py_UNUSED(data)) {
    char *restrict own = operands[2];
    const char *restrict other = operands[operands[0] == own];
    for (Py_ssize_t i = 0; i < *count; i++)
        own[i] = (char)(own[i] | other[i]);
}

/* The ballot in which the ranks gather small tensors. */
static dlb_ballot *gather(dlb_peers *over, const uint8_t call[16],
                          const uint8_t tensor[16], const source *from) {
    static const dlb_combine bits = {.loop = combine_bits, .itemsize = 1};
    size_t size = from->nbytes * (size_t)over->size;
    dlb_ballot *ballot = dlb_ballot_new(over, call, tensor, size, &bits);
    if (ballot == NULL)
        return NULL;
    char *payload = dlb_ballot_payload(ballot);
    memset(payload, 0, size);
    memcpy(payload + from->nbytes * (size_t)over->rank, data_of(from), from->nbytes);
    return ballot;
}

static int settled_gather(call *self) {
    return finish_with(self, dlb_ballot_payload(self->ballot));
}

/* Of an alltoall: one's own row of each rank's tensor. */
static int settled_rows(call *self) {
    const dlb_peers *over = dlb_ballot_over(self->ballot);
    const char *all = dlb_ballot_payload(self->ballot);
    char rows[DLB_COPIED_MOST];
    size_t count = (size_t)over->size, part = self->nbytes / count;
    for (size_t i = 0; i < count; i++)
        memcpy(rows + part * i, all + self->nbytes * i + part * (size_t)over->rank,
               part);
    return finish_with(self, rows);
}

/* Whether a collective that copies may begin here: MPI's are begun in the order of
 * calls. */
static bool may_copy(const dlb_peers *over) {
    return over->is_direct || atomic_load(&over->turns) == 0;
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
    if (by_rows && row_bytes(over, from) == 0)
        return 0;
    describe_result(self, dl->dtype, dl->ndim + more, shape);
    int opened = gets_result ? open_result(self, of, out) : 1;
    if (opened <= 0)
        return opened;
    if (!gets_result)
        self->instead = Py_None;
    self->converter = Py_NewRef(from->converter);
    bool is_small = from->nbytes * (size_t)over->size <= DLB_COPIED_MOST;
    uint8_t tensor[16];
    dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    self->ballot = is_small ? gather(over, digest, tensor, from)
                            : dlb_ballot_new(over, digest, tensor, 0, NULL);
    self->settled = !is_small ? settled_copy : by_rows ? settled_rows : settled_gather;
    if (self->ballot == NULL)
        return -1;
    size_t part = by_rows ? row_bytes(over, from) : from->nbytes;
    if (!is_small && over->is_direct &&
        add_copies(self, over, kind, from, gets_result, part, NULL) < 0)
        return -1;
    return 1;
}

static int begin_copy(call *self, const quick *of, dlb_peers *over, dlb_copy_kind kind,
                      PyObject *const *args) { /* x, out, key */
    uint8_t digest[16];
    source from;
    if (!find_digest(of, args[2], digest) || !may_copy(over))
        return 0;
    int begun = take_source(of, args[0], (size_t)(INT_MAX / over->size), &from);
    if (begun <= 0)
        return begun;
    keep_arguments(self, args, 2);
    begun = begin_gathering(self, of, over, kind, digest, &from, args[1]);
    drop_source(&from);
    return begun;
}

static int begin_allgather(call *self, const quick *of, dlb_peers *over,
                           PyObject *const *args) {
    return begin_copy(self, of, over, DLB_ALLGATHER, args);
}

static int begin_alltoall(call *self, const quick *of, dlb_peers *over,
                          PyObject *const *args) {
    return begin_copy(self, of, over, DLB_ALLTOALL, args);
}

/* The digest of a call with a root, and that; -1: declined, perhaps with an exception.
 */
static int find_root(const quick *self, const dlb_peers *over, PyObject *name,
                     PyObject *root, uint8_t digest[16]) {
    int rank = read_root(over, root);
    PyObject *key = rank >= 0 ? PyTuple_Pack(2, name, root) : NULL;
    bool is_known = key != NULL && find_digest(self, key, digest);
    Py_XDECREF(key);
    return is_known ? rank : -1;
}

static int begin_gather(call *self, const quick *of, dlb_peers *over,
                        PyObject *const *args) { /* x, root, out, key */
    uint8_t digest[16];
    source from;
    self->root = find_root(of, over, args[3], args[1], digest);
    if (self->root < 0 || !may_copy(over))
        return 0;
    int begun = take_source(of, args[0], (size_t)(INT_MAX / over->size), &from);
    if (begun <= 0)
        return begun;
    keep_arguments(self, args, 3);
    begun = begin_gathering(self, of, over, DLB_GATHER, digest, &from,
                            self->root == over->rank ? args[2] : NULL);
    drop_source(&from);
    return begun;
}

/* ---- barrier ---- */

static int settled_barrier(call *self) {
    self->result = Py_NewRef(Py_None);
    return 1;
}

static int begin_barrier(call *self, const quick *of, dlb_peers *over,
                         PyObject *const *args) { /* key */
    uint8_t digest[16];
    if (!find_digest(of, args[0], digest))
        return 0;
    self->settled = settled_barrier;
    self->ballot = dlb_ballot_new(over, digest, NULL, 0, NULL);
    return self->ballot == NULL ? -1 : 1;
}

/* ---- what a tensor is, as messages say it: Kind.pack in values.py ---- */

typedef struct {
    uint8_t code, bits;
    uint16_t lanes;
    uint32_t ndim;
} description;

static char *write_kind(char *at, const DLTensor *dl) {
    description made = {dl->dtype.code, dl->dtype.bits, dl->dtype.lanes,
                        (uint32_t)dl->ndim};
    memcpy(at, &made, sizeof made);
    at += sizeof made;
    size_t size = 8 * (size_t)dl->ndim;
    if (size > 0)
        memcpy(at, dl->shape, size);
    return at + size;
}

static size_t kind_size(const DLTensor *dl) {
    return sizeof(description) + 8 * (size_t)dl->ndim;
}

typedef struct {
    DLDataType dtype;
    int32_t ndim;
    int64_t shape[MOST_DIMENSIONS];
    size_t nbytes;
    const char *contents; /* that came with the head */
    size_t come;          /* their size in bytes */
} announced;

/* False: Python reads it, and says what is wrong. */
static bool read_kind(const char *data, size_t size, announced *out) {
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

static PyObject *find_converter(PyObject *name) {
    if (!PyUnicode_CheckExact(name) || dlb.converters == NULL)
        return NULL;
    if (PyUnicode_CompareWithASCIIString(name, "dlbridge") == 0)
        return Py_NewRef(Py_None);
    PyObject *found = dlb_cache_get(dlb.converters, name);
    bool is_known = found != NULL && Py_TYPE(found) == &dlb_ConverterType;
    if (!is_known)
        Py_CLEAR(found);
    return found;
}

/* That of the type of an array, where it is known. */
static PyObject *type_converter(const quick *self, PyObject *x) {
    PyObject *known = dlb_cache_get(self->types, (PyObject *)Py_TYPE(x));
    PyObject *found = known == NULL ? NULL : Py_NewRef(PyTuple_GET_ITEM(known, 0));
    Py_XDECREF(known);
    return found;
}

static const dlb_combine ROOT = {.takes = true}; /* its payload is taken */

/* The ballot of the root, with a tensor that is small; NULL, perhaps with an
 * exception. */
static dlb_ballot *announce(dlb_peers *over, const uint8_t *call, const source *from) {
    const DLTensor *dl = &from->view.dl;
    size_t small = from->nbytes <= DLB_COPIED_MOST ? from->nbytes : 0;
    uint8_t tensor[16];
    dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    dlb_ballot *ballot =
        dlb_ballot_new(over, call, tensor, kind_size(dl) + small, &ROOT);
    if (ballot != NULL)
        memcpy(write_kind(dlb_ballot_payload(ballot), dl), data_of(from), small);
    return ballot;
}

/* What the root says: false, where Python goes on. Contents come with it, or follow. */
static bool read_announced(const call *self, announced *said) {
    dlb_ballot *ballot = self->ballot;
    return read_kind(dlb_ballot_payload(ballot), dlb_ballot_size(ballot), said) &&
           dlb_ballot_is_of(ballot, said->dtype, said->ndim, said->shape) &&
           said->nbytes <= INT_MAX &&
           said->come == (said->nbytes <= DLB_COPIED_MOST ? said->nbytes : 0);
}

/* Receive what is too large for the ballot. */
static int receive_copies(call *self, dlb_copy_kind kind) {
    dlb_peers *over = dlb_ballot_over(self->ballot);
    if (self->copies == NULL &&
        (!over->is_direct ||
         add_copies(self, over, kind, NULL, true, self->nbytes, NULL) < 0)) {
        PyErr_Clear();
        Py_CLEAR(self->copies);
        return ODD; /* Python says why, or has MPI send it */
    }
    return begin_copying(self, self->nbytes);
}

static int settled_bcast(call *self) {
    announced said;
    if (self->instead != NULL) { /* on the root */
        if (self->copies != NULL)
            return begin_copying(self, self->nbytes);
        self->result = Py_NewRef(self->instead);
        return self->nbytes > DLB_COPIED_MOST ? ODD : 1;
    }
    if (!read_announced(self, &said))
        return ODD;
    describe_result(self, said.dtype, said.ndim, said.shape);
    return said.come > 0 ? finish_with(self, said.contents)
                         : receive_copies(self, DLB_BCAST);
}

/* The root's part of a bcast or a scatter, or that of another rank; `tensor` is the
 * digest of what that expects, or NULL. */
static int say_what_comes(call *self, dlb_peers *over, const uint8_t digest[16],
                          const uint8_t *tensor, const source *from,
                          dlb_copy_kind kind) {
    bool is_root = self->root == over->rank;
    self->ballot = is_root ? announce(over, digest, from)
                           : dlb_ballot_new(over, digest, tensor, 0, &ROOT);
    if (self->ballot == NULL)
        return -1;
    if (is_root && from->nbytes > DLB_COPIED_MOST && over->is_direct) {
        bool has_rows = kind == DLB_SCATTER;
        size_t part = has_rows ? row_bytes(over, from) : from->nbytes;
        return add_copies(self, over, kind, from, has_rows, part, NULL) < 0 ? -1 : 1;
    }
    return 1;
}

static int begin_bcast(call *self, const quick *of, dlb_peers *over,
                       PyObject *const *args) { /* x, root, to */
    uint8_t digest[16], tensor[16];
    source from;
    self->root = read_root(over, args[1]);
    if (self->root < 0 || !find_digest(of, args[1], digest) || !may_copy(over))
        return 0;
    bool is_root = self->root == over->rank, has_source = args[0] != Py_None;
    int begun = has_source ? take_source(of, args[0], INT_MAX, &from) : !is_root;
    if (begun <= 0)
        return begun;
    keep_arguments(self, args, 3);
    self->converter = has_source ? Py_NewRef(from.converter) : find_converter(args[2]);
    self->settled = settled_bcast;
    if (has_source) {
        const DLTensor *dl = &from.view.dl;
        dlb_kind_digest(dl->dtype, dl->ndim, dl->shape, tensor);
    }
    if (is_root) {
        self->instead = args[0];
        self->nbytes = from.nbytes;
    }
    begun = self->converter == NULL
                ? 0
                : say_what_comes(self, over, digest, has_source ? tensor : NULL, &from,
                                 DLB_BCAST);
    if (has_source)
        drop_source(&from);
    return begun;
}

static int settled_scatter(call *self) {
    const dlb_peers *over = dlb_ballot_over(self->ballot);
    announced said;
    if (!read_announced(self, &said) || said.ndim < 1 || said.shape[0] != over->size)
        return ODD;
    describe_result(self, said.dtype, said.ndim - 1, said.shape + 1);
    return said.come > 0
               ? finish_with(self, said.contents + self->nbytes * (size_t)over->rank)
               : receive_copies(self, DLB_SCATTER);
}

/* Where the row of this rank goes, and what it knows of the whole, into `shape`: how
 * many dimensions; 0: nothing, or with `declined` set. */
static int32_t open_row(call *self, const quick *of, const dlb_peers *over,
                        const source *from, PyObject *out, int64_t *shape,
                        int *opened) {
    destination to;
    const DLTensor *dl;
    *opened = 1;
    if (from != NULL) {
        dl = &from->view.dl;
        if (row_bytes(over, from) == 0) {
            *opened = 0;
            return 0;
        }
        describe_result(self, dl->dtype, dl->ndim - 1, dl->shape + 1);
        *opened = open_result(self, of, out);
    } else if (out != Py_None) {
        if ((*opened = take_out(of, out, &to.into)) <= 0)
            return 0;
        dl = &to.into.view.dl;
        describe_result(self, dl->dtype, dl->ndim, dl->shape);
        drop_source(&to.into);
        *opened = open_result(self, of, out);
    } else
        return 0;
    shape[0] = over->size;
    if (self->ndim > 0)
        memcpy(shape + 1, self->shape, (size_t)self->ndim * sizeof *shape);
    return self->ndim + 1;
}

static int begin_scatter(call *self, const quick *of, dlb_peers *over,
                         PyObject *const *args) { /* x, root, to, out, key */
    uint8_t digest[16], tensor[16];
    source from;
    self->root = find_root(of, over, args[4], args[1], digest);
    if (self->root < 0 || !may_copy(over))
        return 0;
    bool is_root = self->root == over->rank, has_source = args[0] != Py_None;
    int begun = has_source ? take_source(of, args[0], INT_MAX, &from) : !is_root;
    if (begun <= 0)
        return begun;
    keep_arguments(self, args, 4);
    self->converter = has_source ? Py_NewRef(from.converter) : find_converter(args[2]);
    self->settled = settled_scatter;
    int64_t shape[MOST_DIMENSIONS + 1];
    int32_t ndim =
        open_row(self, of, over, has_source ? &from : NULL, args[3], shape, &begun);
    if (ndim > 0)
        dlb_kind_digest(self->dtype, ndim, shape, tensor);
    if (begun > 0)
        begun = self->converter == NULL
                    ? 0
                    : say_what_comes(self, over, digest, ndim > 0 ? tensor : NULL,
                                     &from, DLB_SCATTER);
    if (has_source)
        drop_source(&from);
    return begun;
}

/* ---- messages, as messages.py writes them ---- */

typedef struct {
    uint32_t number, sender; /* number: tag of large contents */
    uint64_t tag;
} message_head;

/* A rank or tag; -1: declined. */
static int read_number(PyObject *given, int most) {
    if (!PyLong_CheckExact(given))
        return -1;
    int overflow;
    long number = PyLong_AsLongAndOverflow(given, &overflow);
    return overflow || number < 0 || number > most ? -1 : (int)number;
}

/* Post a message; NULL: declined, or with an exception. */
static posted *begin_send(const quick *self, dlb_peers *over,
                          PyObject *const *args) { /* x, dest, tag */
    int dest = read_number(args[1], over->size - 1);
    int tag = read_number(args[2], over->highest_tag);
    source from;
    if (dest < 0 || tag < 0 || take_source(self, args[0], INT_MAX, &from) <= 0)
        return NULL;
    const DLTensor *dl = &from.view.dl;
    size_t with_head = from.nbytes <= SMALL_MESSAGE ? from.nbytes : 0;
    size_t large = from.nbytes - with_head;
    posted *message =
        new_posted(over, dest, false, sizeof(message_head) + kind_size(dl) + with_head);
    if (message == NULL)
        goto done;
    message_head head = {dlb_next_tag(over, DLB_PAYLOAD_TAG), (uint32_t)over->rank,
                         (uint64_t)tag};
    memcpy(message->data, &head, sizeof head);
    memcpy(write_kind(message->data + sizeof head, dl), data_of(&from), with_head);
    if (post_head(message, tag) < 0 ||
        (large > 0 && post_contents(message, from.view.buffer, (char *)data_of(&from),
                                    large, head.number) < 0))
        Py_CLEAR(message);
done:
    drop_source(&from);
    return message;
}

static PyObject *quick_send(const caller *by, dlb_peers *over, PyObject *const *args,
                            Py_ssize_t Py_UNUSED(count)) {
    posted *message = begin_send(by->self, over, args);
    if (message == NULL)
        return decline();
    PyObject *result = NULL;
    int sent = wait_shortly(advance_message, message, over, message->nbytes);
    if (sent > 0)
        result = Py_NewRef(Py_None);
    else if (sent == 0)
        result = resume(by, "send", message, args + 1, 1);
    Py_DECREF(message);
    return result;
}

/* Whether a message has the form that a send writes; `number` is set to the tag of
 * large contents. */
static bool read_message(const posted *message, announced *out, uint32_t *number) {
    message_head head;
    size_t size = (size_t)message->head.size;
    if (size < sizeof head)
        return false;
    memcpy(&head, message->data, sizeof head);
    *number = head.number;
    const dlb_peers *over = message->over;
    return head.sender == (uint32_t)message->peer &&
           head.tag <= (uint64_t)over->highest_tag &&
           head.number <= (uint32_t)over->highest_tag &&
           read_kind(message->data + sizeof head, size - sizeof head, out) &&
           out->nbytes <= INT_MAX &&
           out->come == (out->nbytes <= SMALL_MESSAGE ? out->nbytes : 0);
}

/* Whether what is announced has the shape and dtype of a tensor. */
static bool fits(const announced *said, const DLTensor *dl) {
    return said->ndim == dl->ndim &&
           memcmp(&said->dtype, &dl->dtype, sizeof dl->dtype) == 0 &&
           (dl->ndim == 0 ||
            memcmp(said->shape, dl->shape, (size_t)dl->ndim * sizeof *dl->shape) == 0);
}

/* Receive large contents into a view. Returns 1 when they have arrived, 0 if Python
 * goes on, with a Tensor if the memory is new, -1 with an exception. */
static int receive_contents(posted *message, dlb_view *view, bool is_new,
                            uint32_t number, size_t nbytes) {
    char *data = (char *)view->dl.data + view->dl.byte_offset;
    if (is_new) { /* first: once they are on their way, there must be one */
        dlb_buffer_retain(view->buffer);
        message->result = dlb_tensor_new(dlb.tensor_type, view);
        if (message->result == NULL) {
            PyErr_Clear();
            return 0; /* Python reports it, and takes them in */
        }
    }
    if (post_contents(message, view->buffer, data, nbytes, number) < 0)
        return -1;
    return wait_shortly(advance_message, message, message->over, nbytes);
}

/* What a receive needs besides its message. */
typedef struct {
    PyObject *converter; /* of a new array */
    PyObject *out;       /* the array that is written, or None */
    source into;         /* its memory */
    int source, tag;
} receiver;

/* 1: open, and the caller closes it; 0: declined; -1. */
static int open_receiver(const quick *self, const dlb_peers *over, PyObject *source_,
                         PyObject *tag, PyObject *out, receiver *made) {
    bool any_tag = tag == Py_None;
    made->out = out;
    made->source = read_number(source_, over->size - 1);
    made->tag = any_tag ? over->any_tag : read_number(tag, over->highest_tag);
    if (made->source < 0 || (made->tag < 0 && !any_tag))
        return 0;
    return out == Py_None ? 1 : take_out(self, out, &made->into);
}

static void close_receiver(const receiver *made) {
    if (made->out != Py_None)
        drop_source(&made->into);
}

static posted *new_receive(dlb_peers *over, int peer) {
    return new_posted(over, peer, true,
                      sizeof(message_head) + sizeof(description) + 8 * MOST_DIMENSIONS +
                          SMALL_MESSAGE);
}

/* Receive a message that was posted: 1, with the result; 0, Python goes on; -1. */
static int receive(posted *message, receiver *to, PyObject **result) {
    announced said;
    uint32_t number;
    dlb_view made;
    source *into = to->out == Py_None ? NULL : &to->into;
    int came = wait_shortly(advance_message, message, message->over, 0);
    if (came < 0)
        return -1;
    if (came == 0 || !read_message(message, &said, &number) ||
        (into != NULL && !fits(&said, &into->view.dl)) ||
        (into == NULL && make_memory(&made, said.dtype, said.ndim, said.shape) < 0))
        return 0;
    dlb_view *view = into != NULL ? &into->view : &made;
    if (said.come > 0)
        memcpy((char *)view->dl.data + view->dl.byte_offset, said.contents, said.come);
    else
        came = receive_contents(message, view, into == NULL, number, said.nbytes);
    if (came > 0 && into == NULL) {
        *result = give(to->converter, &made);
        return *result == NULL ? -1 : 1;
    }
    if (came > 0)
        *result = Py_NewRef(to->out);
    if (into == NULL)
        dlb_buffer_drop(made.buffer);
    return came;
}

static PyObject *quick_recv(const caller *by, dlb_peers *over, PyObject *const *args,
                            Py_ssize_t count) { /* source, tag, to, out */
    receiver to;
    PyObject *result = NULL;
    posted *message = NULL;
    if (open_receiver(by->self, over, args[0], args[1], args[3], &to) <= 0)
        return decline();
    if ((to.converter = find_converter(args[2])) == NULL) {
        result = decline();
        goto done;
    }
    message = new_receive(over, to.source);
    if (message != NULL && post_head(message, to.tag) == 0 &&
        receive(message, &to, &result) == 0)
        result = resume(by, "recv", message, args, count);
    Py_XDECREF(message);
done:
    Py_XDECREF(to.converter);
    close_receiver(&to);
    return result;
}

/* Go on with both in Python, or with the send alone. */
static PyObject *resume_exchange(const caller *by, PyObject *both, PyObject *result,
                                 PyObject *const *args, Py_ssize_t count) {
    if (result == NULL)
        return resume(by, "sendrecv", both, args, count);
    PyObject *none = resume(by, "send", PyTuple_GET_ITEM(both, 0), args + 1, 1);
    if (none == NULL)
        Py_CLEAR(result);
    Py_XDECREF(none);
    return result;
}

static PyObject *
quick_sendrecv(const caller *by, dlb_peers *over, PyObject *const *args,
               Py_ssize_t count) { /* x, dest, source, sendtag, recvtag, to, out */
    PyObject *sends[3] = {args[0], args[1], args[3]}, *result = NULL, *both = NULL;
    receiver to;
    posted *sent = NULL, *received = NULL;
    if (open_receiver(by->self, over, args[2], args[4], args[6], &to) <= 0)
        return decline();
    to.converter = args[5] == Py_None ? type_converter(by->self, args[0])
                                      : find_converter(args[5]);
    if (to.converter == NULL || (received = new_receive(over, to.source)) == NULL ||
        (both = PyTuple_New(2)) == NULL ||
        (sent = begin_send(by->self, over, sends)) == NULL) {
        result = decline();
        goto done;
    }
    PyTuple_SET_ITEM(both, 0, Py_NewRef(sent));
    PyTuple_SET_ITEM(both, 1, Py_NewRef(received));
    if (post_head(received, to.tag) < 0)
        goto done;
    int came = receive(received, &to, &result);
    int gone = came < 0 ? -1 : wait_shortly(advance_message, sent, over, sent->nbytes);
    if (gone < 0)
        Py_CLEAR(result);
    else if (came == 0 || gone == 0)
        result = resume_exchange(by, both, result, args, count);
done:
    Py_XDECREF(both);
    Py_XDECREF(sent);
    Py_XDECREF(received);
    Py_XDECREF(to.converter);
    close_receiver(&to);
    return result;
}

/* ---- Begun: a call that is not waited for yet ---- */

/* What a Request stands for. C advances it until it is over, or somebody waits long for
 * it, or it is out of the ordinary: then it is Python's, an Operation. All of them are
 * read and set under DLB_EXCLUSIVE of the type. */
typedef struct begun {
    PyObject_HEAD
    quick *of;           /* that began it; NULL: Python did */
    const char *name;    /* of the call, as the user made it */
    posted *message;     /* under way, or */
    call *call;          /* a collective; neither: it is over, or Python's */
    PyObject *given[4];  /* with which Python goes on; of a send, three are NULL */
    PyObject *converter; /* of a new array that is received; or */
    dlb_tensor *into;    /* the memory of `out`, which is given[3] */
    PyObject *result, *error, *operation;
    Py_ssize_t source, tag; /* of what came */
    bool is_busy, is_listed;
    struct begun *before, *next; /* among those under way */
} begun;

#define THE_BEGUN ((PyObject *)&dlb_BegunType) /* their lock */

/* All that are under way, which own a reference each: they take place even where the
 * user has dropped them. First what goes on next. */
static struct {
    begun *first, *last;
    Py_ssize_t count;
} under_way;

static bool is_something_begun(void) {
    return under_way.first != NULL;
}

static void append(begun *self) {
    self->before = under_way.last;
    self->next = NULL;
    *(under_way.last == NULL ? &under_way.first : &under_way.last->next) = self;
    under_way.last = self;
    under_way.count++;
}

static void take_out_of_list(begun *self) {
    *(self->before == NULL ? &under_way.first : &self->before->next) = self->next;
    *(self->next == NULL ? &under_way.last : &self->next->before) = self->before;
    under_way.count--;
}

/* Whether C goes on with it. */
static bool is_here(const begun *self) {
    return self->message != NULL || self->call != NULL;
}

/* Between these processes. */
static dlb_peers *peers_of(const begun *self) {
    return self->message != NULL ? self->message->over
                                 : dlb_ballot_over(self->call->ballot);
}

static void drop_call(begun *self) {
    if (self->call != NULL) {
        clear_call(self->call);
        PyMem_Free(self->call);
        self->call = NULL;
    }
}

/* End a call here, and take it off the list of those under way. */
static void retire(begun *self) {
    bool was_listed = self->is_listed;
    self->is_listed = false;
    if (was_listed)
        take_out_of_list(self);
    Py_CLEAR(self->message);
    drop_call(self);
    if (was_listed)
        Py_DECREF(self); /* not the last one: the caller has it */
}

/* Have Python go on with it: what that has begun belongs to it from then on. */
static PyObject *pass_on_to_python(PyObject *object, PyObject *Py_UNUSED(none)) {
    begun *self = (begun *)object;
    PyObject *const *given = self->call == NULL ? self->given : self->call->given;
    PyObject *is_under_way =
        self->call == NULL ? (PyObject *)self->message : under_way_of(self->call);
    Py_ssize_t count = self->call != NULL          ? self->call->count
                       : self->message->is_receive ? 4
                                                   : 1;
    PyObject *request = go_on(self->of, self->name, is_under_way, given, count);
    if (request == NULL)
        return NULL;
    if (PyObject_TypeCheck(request, &dlb_BegunType))
        self->operation = Py_XNewRef(((begun *)request)->operation);
    Py_DECREF(request);
    if (self->operation == NULL)
        return PyErr_Format(PyExc_TypeError, "%s: a request of Python is required",
                            self->name);
    retire(self);
    return Py_NewRef(Py_None);
}

/* The same, while it is busy: 1; -1. What a handler of a signal raises comes when it is
 * Python's, else two would go on with one message. */
static int pass_on(begun *self) {
    static PyMethodDef method = {"pass_on", pass_on_to_python, METH_NOARGS, NULL};
    PyObject *none[1], *result = NULL;
    PyObject *function = PyCFunction_New(&method, (PyObject *)self);
    if (function != NULL)
        result = dlb_defer_signals(function, none, 0, NULL);
    Py_XDECREF(function);
    Py_XDECREF(result);
    return result == NULL ? -1 : 1;
}

/* The same, once no other thread is in there, which runs Python for a short time and
 * never waits for this one; 1 also where it is over by then. In a forked child that
 * thread is not there, and Python refuses. */
static int hand_over(begun *self) {
    if (!is_here(self))
        return 1;
    dlb_peers *over = (dlb_peers *)Py_NewRef(peers_of(self));
    while (self->is_busy && dlb_is_member(over)) {
        Py_BEGIN_ALLOW_THREADS;
        nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
        Py_END_ALLOW_THREADS;
    }
    Py_DECREF(over);
    if (!is_here(self))
        return 1;
    self->is_busy = true;
    int done = pass_on(self);
    self->is_busy = false;
    return done;
}

/* Keep the exception that is set, for whoever waits. -1: a handler of a signal has
 * raised another one meanwhile. */
static int keep_error(begun *self) {
    self->error = dlb_take_exception();
    PyObject *given[2] = {
        PyUnicode_FromString(self->name),
        PyLong_FromLong(self->call != NULL ? -1 : self->message->peer)};
    PyObject *explained = NULL;
    if (given[0] != NULL && given[1] != NULL)
        explained = go_on(self->of, "explain", self->error, given, 2);
    Py_XDECREF(given[0]);
    Py_XDECREF(given[1]);
    if (explained != NULL)
        Py_SETREF(self->error, explained);
    return dlb_clear_error(); /* else it stays what it was */
}

/* The array that large contents have come into. */
static int finish_contents(begun *self) {
    PyObject *made = self->message->result, *converter = self->converter;
    if (self->into != NULL)
        self->result = Py_NewRef(self->given[3]);
    else
        self->result = converter == Py_None ? Py_NewRef(made)
                                            : PyObject_CallOneArg(converter, made);
    return self->result == NULL ? -1 : 1;
}

/* Look at a message whose head has come: 1, it is over; 0, its contents follow. */
static int open_message(begun *self) {
    posted *message = self->message;
    dlb_tensor *into = self->into;
    announced said;
    uint32_t number;
    dlb_view made;
    if (!read_message(message, &said, &number) ||
        (into != NULL && !fits(&said, &into->dl)) ||
        (into == NULL && make_memory(&made, said.dtype, said.ndim, said.shape) < 0))
        return ODD;
    message_head head;
    memcpy(&head, message->data, sizeof head);
    self->source = (Py_ssize_t)head.sender;
    self->tag = (Py_ssize_t)head.tag;
    const DLTensor *dl = into != NULL ? &into->dl : &made.dl;
    char *data = (char *)dl->data + dl->byte_offset;
    if (said.come > 0) {
        memcpy(data, said.contents, said.come);
        self->result =
            into != NULL ? Py_NewRef(self->given[3]) : give(self->converter, &made);
        return self->result == NULL ? -1 : 1;
    }
    if (into == NULL) {
        message->result = dlb_tensor_new(dlb.tensor_type, &made);
        if (message->result == NULL)
            return -1;
    }
    dlb_buffer *buffer = into != NULL ? into->buffer : made.buffer;
    return post_contents(message, buffer, data, said.nbytes, number);
}

static int step_call(begun *self) {
    int done;
    do
        done = advance_call(self->call);
    while (done == NEXT);
    if (done == 1)
        self->result = Py_NewRef(self->call->result);
    return done;
}

static int step(begun *self) {
    posted *message = self->message;
    if (message == NULL)
        return step_call(self);
    int done = advance_posted(message);
    if (done > 0 && message->is_receive && message->buffer == NULL) {
        if ((done = open_message(self)) != 0)
            return done;
        done = advance_posted(message);
    }
    if (done > 0 && message->is_receive)
        return finish_contents(self);
    if (done > 0)
        self->result = Py_NewRef(Py_None);
    return done;
}

/* 1: it is over, well or not, or Python's; 0: not yet; -1: Python cannot have it, or a
 * handler of a signal has raised an exception. */
static int advance_begun(void *object) {
    begun *self = object;
    if (!is_here(self))
        return 1;
    if (self->is_busy) /* another thread is in there */
        return 0;
    self->is_busy = true;
    int done = step(self);
    if (done == ODD)
        done = pass_on(self);
    else if (done > 0 || (done < 0 && !dlb_is_interrupt())) {
        done = done > 0 ? 1 : keep_error(self) < 0 ? -1 : 1;
        retire(self);
    }
    self->is_busy = false;
    return done;
}

/* Advance so many, those first that have waited longest. */
static int advance_some(Py_ssize_t count) {
    int done = 0;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    if (count > under_way.count)
        count = under_way.count;
    while (done >= 0 && count-- > 0 && under_way.first != NULL) {
        begun *self = (begun *)Py_NewRef(under_way.first);
        take_out_of_list(self);
        append(self);
        done = advance_begun(self);
        Py_DECREF(self);
    }
    DLB_END_EXCLUSIVE();
    return done < 0 ? -1 : 0;
}

/* Whether C may go on with it, which is under way; that also advances others, after
 * which it may be over. 0: Python has it now; -1. */
static int may_go_on(begun *self) {
    if (is_open(self->of, peers_of(self)))
        return 1;
    return PyErr_Occurred() || hand_over(self) < 0 ? -1 : 0;
}

/* The same, for a wait: other ranks may wait for another collective first. */
static int advance_for_wait(void *object) {
    begun *self = object;
    int done = advance_begun(self);
    bool is_one_of_many = self->call != NULL && under_way.first != under_way.last;
    return done == 0 && is_one_of_many ? advance_some(1) : done;
}

/* The peers may go with the call. */
static int wait_here(begun *self, size_t nbytes) {
    dlb_peers *over = (dlb_peers *)Py_NewRef(peers_of(self));
    int done = wait_shortly(advance_for_wait, self, over, nbytes);
    Py_DECREF(over);
    return done;
}

/* Whether it is over; 0: Python waits for it; -1. `waits`: for a short while. */
static int finish(begun *self, bool waits) {
    int done = 1;
    if (is_here(self)) {
        size_t nbytes =
            self->call != NULL ? self->call->awaited : self->message->nbytes;
        done = waits ? wait_here(self, nbytes) : advance_begun(self);
    }
    if (done == 0 && is_here(self))
        done = hand_over(self);
    return done < 0 ? -1 : self->operation == NULL;
}

static begun *new_begun(quick *of, const char *name, PyObject *const *given,
                        Py_ssize_t count) {
    PyTypeObject *type = (PyTypeObject *)of->request;
    if (!PyType_Check(of->request) || !PyType_IsSubtype(type, &dlb_BegunType))
        return NULL;
    begun *self = (begun *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->of = (quick *)Py_NewRef(of);
    self->name = name;
    self->source = self->tag = -1;
    for (Py_ssize_t i = 0; i < count; i++)
        self->given[i] = Py_NewRef(given[i]);
    return self;
}

/* It is posted, and under way. */
static PyObject *started(begun *self) {
    self->is_listed = true;
    append((begun *)Py_NewRef(self));
    return (PyObject *)self;
}

static PyObject *quick_isend(const caller *by, dlb_peers *over, PyObject *const *args,
                             Py_ssize_t Py_UNUSED(count)) { /* x, dest, tag */
    begun *made = new_begun((quick *)by->self, "isend", args + 1, 1);
    if (made == NULL || (made->message = begin_send(by->self, over, args)) == NULL) {
        Py_XDECREF(made);
        return decline();
    }
    int gone = advance_begun(made); /* small ones at once */
    if (gone < 0)
        Py_CLEAR(made);
    return gone == 0 ? started(made) : (PyObject *)made;
}

static PyObject *quick_irecv(const caller *by, dlb_peers *over, PyObject *const *args,
                             Py_ssize_t count) { /* source, tag, to, out */
    receiver to;
    if (open_receiver(by->self, over, args[0], args[1], args[3], &to) <= 0)
        return decline();
    begun *made = new_begun((quick *)by->self, "irecv", args, count);
    if (made != NULL && args[3] != Py_None) {
        dlb_buffer_retain(to.into.view.buffer);
        made->into = (dlb_tensor *)dlb_tensor_new(dlb.tensor_type, &to.into.view);
    }
    close_receiver(&to);
    if (made == NULL || (args[3] != Py_None && made->into == NULL) ||
        (made->converter = find_converter(args[2])) == NULL) {
        Py_XDECREF(made);
        return decline();
    }
    made->message = new_receive(over, to.source);
    if (made->message == NULL || post_head(made->message, to.tag) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return started(made);
}

/* Begin a collective: what the ranks say of it is on its way then. MPI's are begun in
 * the order of calls, which Python knows. */
static PyObject *begin_call(const caller *by, dlb_peers *over, const char *name,
                            beginning begin, PyObject *const *args) {
    if (!over->is_direct)
        return decline();
    begun *made = new_begun((quick *)by->self, name, NULL, 0);
    call *begins = made == NULL ? NULL : PyMem_Malloc(sizeof *begins);
    if (begins == NULL) {
        PyErr_Clear(); /* Python reports it to all ranks */
        Py_XDECREF(made);
        return decline();
    }
    init_call(begins, name + 1); /* without the i */
    if (begin_or_decline(begins, begin, by->self, over, args) == 0) {
        PyMem_Free(begins);
        Py_DECREF(made);
        return decline();
    }
    made->call = begins;
    int gone = advance_begun(made);
    if (gone < 0) { /* it is begun all the same */
        if (made->call != NULL)
            Py_DECREF(started(made));
        else
            Py_DECREF(made);
        return NULL;
    }
    return gone == 0 ? started(made) : (PyObject *)made;
}

#define COLLECTIVE(name)                                                               \
    static PyObject *quick_##name(const caller *by, dlb_peers *over,                   \
                                  PyObject *const *args,                               \
                                  Py_ssize_t Py_UNUSED(count)) {                       \
        return make_call(by, over, #name, begin_##name, args);                         \
    }                                                                                  \
    static PyObject *quick_i##name(const caller *by, dlb_peers *over,                  \
                                   PyObject *const *args,                              \
                                   Py_ssize_t Py_UNUSED(count)) {                      \
        return begin_call(by, over, "i" #name, begin_##name, args);                    \
    }
COLLECTIVE(reduce)
COLLECTIVE(reduce_scatter)
COLLECTIVE(allgather)
COLLECTIVE(alltoall)
COLLECTIVE(bcast)
COLLECTIVE(gather)
COLLECTIVE(scatter)
COLLECTIVE(barrier)
#undef COLLECTIVE

static PyObject *quick_allreduce(const caller *by, dlb_peers *over,
                                 PyObject *const *args, Py_ssize_t Py_UNUSED(count)) {
    if (may_be_tree(args[0]) && PyUnicode_CheckExact(args[1]))
        return reduce_tree(by, over, args);
    return make_call(by, over, "allreduce", begin_allreduce, args);
}

static PyObject *quick_iallreduce(const caller *by, dlb_peers *over,
                                  PyObject *const *args, Py_ssize_t Py_UNUSED(count)) {
    return begin_call(by, over, "iallreduce", begin_allreduce, args);
}

static PyObject *make_begun(PyTypeObject *type, PyObject *args, PyObject *kwargs) {
    static char *names[] = {"operation", NULL};
    PyObject *operation;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "O:Request", names, &operation))
        return NULL;
    begun *self = (begun *)type->tp_alloc(type, 0);
    if (self == NULL)
        return NULL;
    self->operation = Py_NewRef(operation);
    return (PyObject *)self;
}

static int traverse_begun(PyObject *object, visitproc visit, void *arg) {
    begun *self = (begun *)object;
    Py_VISIT(self->of);
    Py_VISIT(self->result);
    Py_VISIT(self->error);
    Py_VISIT(self->operation);
    for (int i = 0; i < 4; i++)
        Py_VISIT(self->given[i]);
    return 0;
}

static int clear_begun(PyObject *object) {
    begun *self = (begun *)object;
    Py_CLEAR(self->result);
    Py_CLEAR(self->error);
    Py_CLEAR(self->operation);
    return 0;
}

static void dealloc_begun(PyObject *object) {
    begun *self = (begun *)object;
    PyObject_GC_UnTrack(object);
    clear_begun(object);
    Py_CLEAR(self->message);
    drop_call(self);
    Py_XDECREF(self->converter);
    Py_XDECREF(self->into);
    for (int i = 0; i < 4; i++)
        Py_XDECREF(self->given[i]);
    Py_XDECREF(self->of);
    Py_TYPE(object)->tp_free(object);
}

static PyObject *begun_finish(PyObject *object, PyObject *waits) {
    int done;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    done = is_here((begun *)object) ? may_go_on((begun *)object) : 1;
    if (done >= 0)
        done = finish((begun *)object, waits == Py_True);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *look(begun *self) {
    if (is_here(self) && (may_go_on(self) < 0 || advance_begun(self) < 0))
        return NULL;
    return self->operation != NULL ? Py_NewRef(Py_None)
                                   : PyBool_FromLong(!is_here(self));
}

static PyObject *begun_look(PyObject *object, PyObject *Py_UNUSED(none)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    result = look((begun *)object);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *take_back(begun *self) {
    if (is_here(self) && may_go_on(self) < 0)
        return NULL;
    if (self->operation != NULL)
        return Py_NewRef(Py_None);
    int done =
        self->message == NULL || self->is_busy ? 0 : cancel_posted(self->message);
    if (done > 0) {
        dlb_raise_error("MPIError", "irecv: was cancelled");
        self->error = dlb_take_exception();
        retire(self);
    } else if (done == 0)
        done = advance_begun(self) < 0 ? -1 : 0;
    return done < 0 ? NULL : PyBool_FromLong(done);
}

static PyObject *begun_take_back(PyObject *object, PyObject *Py_UNUSED(none)) {
    PyObject *result;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    result = take_back((begun *)object);
    DLB_END_EXCLUSIVE();
    return result;
}

static PyObject *begun_outcome(PyObject *object, PyObject *Py_UNUSED(none)) {
    begun *self = (begun *)object;
    if (self->error != NULL)
        PyErr_SetObject((PyObject *)Py_TYPE(self->error), self->error);
    return self->error != NULL ? NULL : Py_XNewRef(self->result);
}

/* Python's, which goes on with what is under way here. */
static PyObject *get_operation(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    int done = 0;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    if (is_here(self))
        done = hand_over(self);
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL
                    : Py_NewRef(self->operation == NULL ? Py_None : self->operation);
}

static PyObject *get_is_begun(PyObject *object, void *Py_UNUSED(closure)) {
    return PyBool_FromLong(((begun *)object)->operation == NULL);
}

static PyObject *get_is_over(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    return self->operation != NULL ? PyObject_GetAttrString(self->operation, "done")
                                   : PyBool_FromLong(!is_here(self));
}

static PyObject *get_has_failed(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    PyObject *error = self->operation == NULL
                          ? Py_XNewRef(self->error)
                          : PyObject_GetAttrString(self->operation, "error");
    if (error == NULL && PyErr_Occurred())
        return NULL;
    bool has_failed = error != NULL && error != Py_None;
    Py_XDECREF(error);
    return PyBool_FromLong(has_failed);
}

static PyObject *get_source(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    return self->operation != NULL ? PyObject_GetAttrString(self->operation, "source")
                                   : PyLong_FromSsize_t(self->source);
}

static PyObject *get_tag(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    return self->operation != NULL ? PyObject_GetAttrString(self->operation, "tag")
                                   : PyLong_FromSsize_t(self->tag);
}

static PyObject *get_call(PyObject *object, void *Py_UNUSED(closure)) {
    begun *self = (begun *)object;
    return self->operation != NULL ? PyObject_GetAttrString(self->operation, "call")
                                   : PyUnicode_FromString(self->name);
}

static PyMethodDef begun_methods[] = {
    {"_finish", begun_finish, METH_O,
     "_finish($self, waits, /)\n--\n\nReturn whether it is over, after a short wait; "
     "otherwise it is Python's."},
    {"_look", begun_look, METH_NOARGS,
     "_look($self, /)\n--\n\nReturn whether it is over; None: it is Python's."},
    {"_take_back", begun_take_back, METH_NOARGS,
     "_take_back($self, /)\n--\n\nReturn whether a receive of which nothing has come "
     "was taken back; None: it is Python's."},
    {"_outcome", begun_outcome, METH_NOARGS,
     "_outcome($self, /)\n--\n\nReturn its result, or raise its error."},
    {0},
};

static PyGetSetDef begun_fields[] = {
    {"operation", get_operation, NULL,
     "The Operation, in Python from now on; None: it is over.", NULL},
    {"_is_begun", get_is_begun, NULL, "Whether it is not Python's.", NULL},
    {"_is_over", get_is_over, NULL, "Whether it is known to be over.", NULL},
    {"_has_failed", get_has_failed, NULL, "Whether it is known to have failed.", NULL},
    {"source", get_source, NULL, "The rank that sent what was received, or -1.", NULL},
    {"tag", get_tag, NULL, "The tag of what was received, or -1.", NULL},
    {"_call", get_call, NULL, "The name of the call.", NULL},
    {0},
};

PyTypeObject dlb_BegunType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Begun",
    .tp_doc = "Begun(operation)\n--\n\nA call that may be under way.",
    .tp_basicsize = sizeof(begun),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .tp_methods = begun_methods,
    .tp_getset = begun_fields,
    .tp_new = make_begun,
    .tp_traverse = traverse_begun,
    .tp_clear = clear_begun,
    .tp_dealloc = dealloc_begun,
};

static PyObject *advance_begun_of_all(PyObject *Py_UNUSED(module), PyObject *count) {
    Py_ssize_t most = PyLong_AsSsize_t(count);
    if ((most == -1 && PyErr_Occurred()) || advance_some(most) < 0)
        return NULL;
    return PyBool_FromLong(is_something_begun());
}

static PyObject *is_begun_over(PyObject *Py_UNUSED(module), PyObject *over) {
    bool found = false;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    for (begun *each = under_way.first; each != NULL && !found; each = each->next)
        found = (PyObject *)peers_of(each) == over;
    DLB_END_EXCLUSIVE();
    return PyBool_FromLong(found);
}

static begun *request_at(PyObject *requests, Py_ssize_t i) {
    PyObject *item = PyList_GET_ITEM(requests, i);
    if (PyObject_TypeCheck(item, &dlb_BegunType))
        return (begun *)Py_NewRef(item); /* others may change the list */
    PyErr_SetString(PyExc_TypeError, "a list of requests is required");
    return NULL;
}

/* The number of the first from `start` on that is not over, or failed. */
static Py_ssize_t finish_from(PyObject *requests, Py_ssize_t start) {
    bool is_known = false; /* that C may go on */
    Py_ssize_t i = start;
    for (; i < PyList_GET_SIZE(requests) && i - start < TOGETHER; i++) {
        begun *self = request_at(requests, i);
        if (self == NULL)
            return -1;
        int done = 1;
        if (is_here(self) && !is_known)
            is_known = (done = may_go_on(self)) > 0;
        if (done >= 0)
            done = finish(self, true);
        bool is_well = done > 0 && self->error == NULL;
        Py_DECREF(self);
        if (done < 0)
            return -1;
        if (!is_well)
            break;
    }
    return i;
}

static PyObject *finish_begun(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *requests;
    Py_ssize_t start, end;
    if (!PyArg_ParseTuple(args, "O!n:finish_begun", &PyList_Type, &requests, &start))
        return NULL;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    end = finish_from(requests, start);
    DLB_END_EXCLUSIVE();
    return end < 0 ? NULL : PyLong_FromSsize_t(end);
}

static PyObject *outcomes(PyObject *Py_UNUSED(module), PyObject *requests) {
    if (!PyList_Check(requests))
        return PyErr_Format(PyExc_TypeError, "a list of requests is required");
    PyObject *made = PyList_New(0);
    for (Py_ssize_t i = 0; made != NULL && i < PyList_GET_SIZE(requests); i++) {
        begun *self = request_at(requests, i);
        PyObject *result = NULL;
        if (self != NULL)
            result = !is_here(self) && self->operation == NULL
                         ? begun_outcome((PyObject *)self, NULL)
                         : PyObject_CallMethod((PyObject *)self, "wait", NULL);
        if (result == NULL || PyList_Append(made, result) < 0)
            Py_CLEAR(made);
        Py_XDECREF(result);
        Py_XDECREF(self);
    }
    return made;
}

PyMethodDef dlb_begun_functions[] = {
    {"advance_begun", advance_begun_of_all, METH_O,
     "advance_begun($module, count, /)\n--\n\n"
     "Advance so many calls that C has begun; return whether some are under way."},
    {"is_begun_over", is_begun_over, METH_O,
     "is_begun_over($module, peers, /)\n--\n\n"
     "Return whether a call that C has begun is under way between these peers."},
    {"outcomes", outcomes, METH_O,
     "outcomes($module, requests, /)\n--\n\n"
     "Return the results of requests, or raise the error of the first that failed."},
    {"finish_begun", finish_begun, METH_VARARGS,
     "finish_begun($module, requests, start, /)\n--\n\n"
     "Wait for requests of a list, in order; return the number of the first that\n"
     "failed, or is Python's, or where signals should be looked at."},
    {0},
};

/* With the peers, for as long as the call takes; a further argument is `timeout`. */
#define OPEN(name, wanted)                                                             \
    static PyObject *open_##name(PyObject *object, PyObject *const *args,              \
                                 Py_ssize_t count) {                                   \
        caller by = {.self = (quick *)object};                                         \
        if (!has_count(#name, count, wanted))                                          \
            return NULL;                                                               \
        if (!set_timeout(&by, count > wanted ? args[wanted] : Py_None))                \
            return decline();                                                          \
        dlb_peers *over = open_peers((quick *)object);                                 \
        if (over == NULL)                                                              \
            return decline();                                                          \
        PyObject *result = quick_##name(&by, over, args, wanted);                      \
        Py_DECREF(over);                                                               \
        return result;                                                                 \
    }
OPEN(allreduce, 3)
OPEN(reduce, 3)
OPEN(reduce_scatter, 4)
OPEN(allgather, 3)
OPEN(alltoall, 3)
OPEN(bcast, 3)
OPEN(gather, 4)
OPEN(scatter, 5)
OPEN(barrier, 1)
OPEN(iallreduce, 3)
OPEN(ireduce, 3)
OPEN(ireduce_scatter, 4)
OPEN(iallgather, 3)
OPEN(ialltoall, 3)
OPEN(ibcast, 3)
OPEN(igather, 4)
OPEN(iscatter, 5)
OPEN(ibarrier, 1)
OPEN(send, 3)
OPEN(isend, 3)
OPEN(recv, 4)
OPEN(irecv, 4)
OPEN(sendrecv, 7)
#undef OPEN

#define CALL(name, parameters)                                                         \
    {#name, (PyCFunction)(void (*)(void))open_##name, METH_FASTCALL,                   \
     #name "($self, " parameters ", /)\n--\n\nThe result, or False: Python makes it."}

static PyMethodDef quick_methods[] = {
    CALL(allreduce, "x, op, out, timeout=None"),
    CALL(reduce, "x, op, root, timeout=None"),
    CALL(reduce_scatter, "x, op, out, key, timeout=None"),
    CALL(allgather, "x, out, key, timeout=None"),
    CALL(alltoall, "x, out, key, timeout=None"),
    CALL(bcast, "x, root, to, timeout=None"),
    CALL(gather, "x, root, out, key, timeout=None"),
    CALL(scatter, "x, root, to, out, key, timeout=None"),
    CALL(barrier, "key, timeout=None"),
    CALL(iallreduce, "x, op, out"),
    CALL(ireduce, "x, op, root"),
    CALL(ireduce_scatter, "x, op, out, key"),
    CALL(iallgather, "x, out, key"),
    CALL(ialltoall, "x, out, key"),
    CALL(ibcast, "x, root, to"),
    CALL(igather, "x, root, out, key"),
    CALL(iscatter, "x, root, to, out, key"),
    CALL(ibarrier, "key"),
    CALL(send, "x, dest, tag, timeout=None"),
    CALL(isend, "x, dest, tag"),
    CALL(recv, "source, tag, to, out, timeout=None"),
    CALL(irecv, "source, tag, to, out"),
    CALL(sendrecv, "x, dest, source, sendtag, recvtag, to, out, timeout=None"),
    {0},
};

static PyMemberDef quick_members[] = {
    {"peers", T_OBJECT, offsetof(quick, peers), 0,
     "Peers of all processes, once there are."},
    {"active", T_OBJECT, offsetof(quick, active), 0,
     "Dict of what is under way in Python."},
    {"go_on", T_OBJECT, offsetof(quick, go_on), 0,
     "go_on() advances some of what is under way in Python."},
    {"resume", T_OBJECT, offsetof(quick, resume), 0,
     "resume(name, under_way, *args) goes on with a call."},
    {"request", T_OBJECT, offsetof(quick, request), 0,
     "The class of what is begun, a subclass of Begun, once there is one."},
    {"types", T_OBJECT, offsetof(quick, types), READONLY,
     "Array types that are known: a Converter for results, what must return True "
     "before, or None, and whether arrays are ever written."},
    {"calls", T_OBJECT, offsetof(quick, calls), READONLY,
     "Arguments that are known: a Reduction, or a digest."},
    {0},
};

PyTypeObject dlb_QuickType = {
    PyVarObject_HEAD_INIT(NULL, 0).tp_name = "dlbridge._core._native.Quick",
    .tp_doc = "Quick(like=None)\n--\n\n"
              "Calls of dlbridge.mpi that C makes; it knows what another one learns.",
    .tp_basicsize = sizeof(quick),
    .tp_flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC,
    .tp_methods = quick_methods,
    .tp_members = quick_members,
    .tp_new = new_quick,
    .tp_traverse = traverse_quick,
    .tp_clear = clear_quick,
    .tp_dealloc = dealloc_quick,
};

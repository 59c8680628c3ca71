/* A call of a collective, from its arguments to its result, and going on in Python. How
 * each collective begins is in reducing.c, gathering.c, and announcing.c. */
#include "python/python.h" /* first, as in quick.c */

#include "layout/layout.h"
#include "mpi/calls.h"

#include <string.h>
#include <time.h>

#define PATIENCE 1.0 /* seconds in which memory may be short */

/* ---- going on in Python ---- */

PyObject *dlb_go_on(const quick *self, const char *name, void *under_way,
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
        return dlb_posted_advance((posted *)under_way);
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
    int done = Py_TYPE(last) == &dlb_PostedType ? dlb_posted_cancel((posted *)last) : 0;
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

/* As `dlb_go_on`. If that runs out of memory, a receive is cancelled if none of its
 * message has arrived. All else goes on here until there is memory again, or for
 * PATIENCE: other ranks rely on it, and a message that has begun to arrive is not lost.
 */
static PyObject *hand_to_python(const quick *self, const char *name, void *under_way,
                                PyObject *const *args, Py_ssize_t count) {
    double until = dlb_now() + PATIENCE;
    for (;;) {
        PyObject *request = dlb_go_on(self, name, under_way, args, count);
        if (request != NULL || !PyErr_ExceptionMatches(PyExc_MemoryError) ||
            takes_back(under_way) || dlb_now() > until)
            return request;
        PyErr_Clear();
        if (advance_for_now(under_way) < 0)
            return NULL;
    }
}

PyObject *dlb_resume(const caller *by, const char *name, void *under_way,
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

/* ---- a call, and what is known of it ---- */

bool dlb_find_digest(const quick *self, PyObject *key, uint8_t digest[16]) {
    PyObject *known = dlb_find_call(self, key);
    bool is_digest =
        known != NULL && PyBytes_CheckExact(known) && PyBytes_GET_SIZE(known) == 16;
    if (is_digest)
        memcpy(digest, PyBytes_AS_STRING(known), 16);
    Py_XDECREF(known);
    return is_digest;
}

int dlb_read_root(const dlb_peers *over, PyObject *root) {
    int overflow = 0;
    long rank =
        PyLong_CheckExact(root) ? PyLong_AsLongAndOverflow(root, &overflow) : -1;
    return overflow == 0 && rank >= 0 && rank < over->size ? (int)rank : -1;
}

int dlb_find_root(const quick *self, const dlb_peers *over, PyObject *name,
                  PyObject *root, uint8_t digest[16]) {
    int rank = dlb_read_root(over, root);
    PyObject *key = rank >= 0 ? PyTuple_Pack(2, name, root) : NULL;
    bool is_known = key != NULL && dlb_find_digest(self, key, digest);
    Py_XDECREF(key);
    return is_known ? rank : -1;
}

void dlb_call_clear(call *self) {
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

/* ---- its result ---- */

/* 1: open, and the caller closes it; 0: declined, also where it has another shape or
 * dtype, which Python refuses; -1. */
static int open_out(const quick *self, PyObject *out, DLDataType dtype, int32_t ndim,
                    const int64_t *shape, destination *made) {
    made->out = out;
    if (out == Py_None)
        return 1;
    int taken = dlb_source_take_out(self, out, &made->into);
    if (taken <= 0)
        return taken;
    const DLTensor *dl = &made->into.view.dl;
    if (dl->ndim == ndim && memcmp(&dl->dtype, &dtype, sizeof dtype) == 0 &&
        (ndim == 0 || memcmp(dl->shape, shape, (size_t)ndim * sizeof *shape) == 0))
        return 1;
    dlb_source_drop(&made->into);
    return 0;
}

static void close_out(const destination *made) {
    if (made->out != Py_None)
        dlb_source_drop(&made->into);
}

/* A new array with these contents. */
static PyObject *make_result(PyObject *converter, DLDataType dtype, int32_t ndim,
                             const int64_t *shape, const char *contents,
                             size_t nbytes) {
    dlb_view view;
    if (dlb_make_memory(&view, dtype, ndim, shape) < 0)
        return PyErr_NoMemory();
    memcpy(view.dl.data, contents, nbytes);
    return dlb_give(converter, &view);
}

void dlb_describe_result(call *self, DLDataType dtype, int32_t ndim,
                         const int64_t *shape) {
    self->dtype = dtype;
    self->ndim = ndim;
    if (ndim > 0) /* else it may be NULL */
        memcpy(self->shape, shape, (size_t)ndim * sizeof *shape);
    DLTensor dl = {.ndim = ndim, .dtype = dtype, .shape = self->shape};
    self->nbytes = (size_t)dlb_packed_bytes(dtype, 0, dlb_element_count(&dl));
}

int dlb_open_result(call *self, const quick *of, PyObject *out) {
    destination to;
    int taken = open_out(of, out, self->dtype, self->ndim, self->shape, &to);
    if (taken <= 0 || out == Py_None)
        return taken;
    self->out = dlb_buffer_retain(to.into.view.buffer);
    self->out_data = (char *)dlb_source_data(&to.into);
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
    const char *start = self->out_data,
               *other = from == NULL ? NULL : dlb_source_data(from);
    if ((uintptr_t)start % (self->dtype.bits / 8))
        return false;
    return other == NULL || start + self->nbytes <= other ||
           other + from->nbytes <= start;
}

PyObject *dlb_make_target(call *self, const source *from) {
    dlb_view view;
    if (self->out != NULL && is_apart(self, from)) {
        self->memory = dlb_buffer_retain(self->out);
        self->data = self->out_data;
    } else {
        if (dlb_make_memory(&view, self->dtype, self->ndim, self->shape) < 0)
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

int dlb_finish_with(call *self, const char *contents) {
    if (self->out != NULL && self->out_data != contents)
        memmove(self->out_data, contents, self->nbytes); /* `out` may overlap x */
    self->result = self->instead != NULL
                       ? Py_NewRef(self->instead)
                       : make_result(self->converter, self->dtype, self->ndim,
                                     self->shape, contents, self->nbytes);
    return has_result(self);
}

int dlb_finish_call(call *self) {
    if (self->instead != NULL)
        return dlb_finish_with(self, self->data);
    dlb_view view;
    view_result(self, &view);
    self->result = dlb_give(self->converter, &view);
    return has_result(self);
}

/* ---- going on with it ---- */

int dlb_begin_copying(call *self, size_t nbytes) {
    if (dlb_collective_post(self->copies, self->ballot) < 0)
        return -1;
    self->is_copying = true;
    self->awaited = nbytes;
    return NEXT;
}

int dlb_call_advance(void *object) {
    call *self = object;
    if (self->is_copying) {
        int done = dlb_collective_advance(self->copies);
        if (done > 0)
            dlb_divide_result(self, self->data);
        return done > 0 ? dlb_finish_call(self) : done;
    }
    int done = dlb_ballot_advance(self->ballot);
    if (done <= 0)
        return done;
    return dlb_ballot_agreed(self->ballot) ? self->settled(self) : ODD;
}

int dlb_begin_or_decline(call *self, beginning begin, const quick *of, dlb_peers *over,
                         PyObject *const *args) {
    int begun = begin(self, of, over, args);
    if (begun > 0)
        return 1;
    dlb_call_clear(self);
    if (begun < 0 && PyErr_ExceptionMatches(PyExc_MemoryError))
        PyErr_Clear();
    return 0;
}

PyObject *dlb_make_call(const caller *by, dlb_peers *over, const char *name,
                        beginning begin, PyObject *const *args) {
    call made;
    dlb_call_init(&made, name);
    if (dlb_begin_or_decline(&made, begin, by->self, over, args) == 0)
        return dlb_decline();
    int done;
    do
        done = dlb_wait_shortly(dlb_call_advance, &made, over, made.awaited);
    while (done == NEXT);
    PyObject *result = NULL;
    if (done == 0 || done == ODD)
        result =
            dlb_resume(by, name, dlb_call_under_way(&made), made.given, made.count);
    else if (done > 0)
        result = Py_NewRef(made.result);
    dlb_call_clear(&made);
    return result;
}

/* ---- what follows the ballot ---- */

int dlb_settled_copy(call *self) {
    return self->copies == NULL ? ODD : dlb_begin_copying(self, self->awaited);
}

int dlb_add_copies(call *self, dlb_peers *over, dlb_copy_kind kind, const source *from,
                   bool gets_result, size_t part, const dlb_combine *how) {
    PyObject *target = gets_result ? dlb_make_target(self, from) : Py_NewRef(Py_None);
    if (target == NULL)
        return -1;
    dlb_part copied = {.part = part};
    if (from != NULL) {
        copied.source = from->view.buffer;
        copied.from = dlb_source_data(from);
    }
    if (gets_result) {
        copied.target = self->memory;
        copied.into = self->data;
    }
    self->copies = dlb_collective_new(over, kind, self->root, &copied, 1, target, how);
    if (gets_result && self->ballot != NULL)
        dlb_ballot_set_result(self->ballot, target);
    Py_DECREF(target);
    return self->copies == NULL ? -1 : 0;
}

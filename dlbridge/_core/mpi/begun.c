/* Begun: a call that is not waited for yet. */
#include "python/python.h" /* first, as in quick.c */

#include "mpi/calls.h"

#include <string.h>
#include <time.h>

enum { TOGETHER = 256 }; /* messages that are waited for between two looks at signals */

/* What a Request stands for. C advances it until it is over, or somebody waits long for
 * it, or it is out of the ordinary: then it is Python's, an Operation. All of them are
 * read and set under DLB_EXCLUSIVE of the type. */
typedef struct begun {
    PyObject_HEAD
    quick *of;             /* that began it; NULL: Python did */
    const char *name;      /* of the call, as the user made it */
    posted *message;       /* under way, or */
    call *call;            /* a collective, or */
    dlb_tree_ballot *tree; /* that with a tree; none: it is over, or Python's */
    PyObject *given[4];    /* with which Python goes on; of a send, three are NULL */
    PyObject *converter;   /* of a new array that is received; or */
    dlb_tensor *into;      /* the memory of `out`, which is given[3] */
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

bool dlb_is_something_begun(void) {
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
    return self->message != NULL || self->call != NULL || self->tree != NULL;
}

/* Between these processes. */
static dlb_peers *peers_of(const begun *self) {
    if (self->tree != NULL)
        return dlb_tree_ballot_over(self->tree);
    return self->message != NULL ? self->message->over
                                 : dlb_ballot_over(self->call->ballot);
}

static void drop_call(begun *self) {
    Py_CLEAR(self->tree);
    if (self->call != NULL) {
        dlb_call_clear(self->call);
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
static PyObject *resume(begun *self) {
    if (self->tree != NULL) {
        PyObject *name = PyUnicode_FromString(self->name);
        PyObject *request =
            name == NULL ? NULL : dlb_go_on(self->of, "itree", self->tree, &name, 1);
        Py_XDECREF(name);
        return request;
    }
    PyObject *const *given = self->call == NULL ? self->given : self->call->given;
    PyObject *is_under_way =
        self->call == NULL ? (PyObject *)self->message : dlb_call_under_way(self->call);
    Py_ssize_t count = self->call != NULL          ? self->call->count
                       : self->message->is_receive ? 4
                                                   : 1;
    return dlb_go_on(self->of, self->name, is_under_way, given, count);
}

static PyObject *pass_on_to_python(PyObject *object, PyObject *Py_UNUSED(none)) {
    begun *self = (begun *)object;
    PyObject *request = resume(self);
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
        PyLong_FromLong(self->message == NULL ? -1 : self->message->peer)};
    PyObject *explained = NULL;
    if (given[0] != NULL && given[1] != NULL)
        explained = dlb_go_on(self->of, "explain", self->error, given, 2);
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
    if (!dlb_read_message(message, &said, &number) ||
        (into != NULL && !dlb_fits(&said, &into->dl)) ||
        (into == NULL && dlb_make_memory(&made, said.dtype, said.ndim, said.shape) < 0))
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
            into != NULL ? Py_NewRef(self->given[3]) : dlb_give(self->converter, &made);
        return self->result == NULL ? -1 : 1;
    }
    if (into == NULL) {
        message->result = dlb_tensor_new(dlb.tensor_type, &made);
        if (message->result == NULL)
            return -1;
    }
    dlb_buffer *buffer = into != NULL ? into->buffer : made.buffer;
    return dlb_post_contents(message, buffer, data, said.nbytes, number);
}

static int step_call(begun *self) {
    int done;
    do
        done = dlb_call_advance(self->call);
    while (done == NEXT);
    if (done == 1)
        self->result = Py_NewRef(self->call->result);
    return done;
}

static int step_tree(begun *self) {
    int done = dlb_tree_ballot_advance(self->tree);
    if (done <= 0)
        return done;
    if (!dlb_tree_ballot_agreed(self->tree))
        return ODD;
    self->result = dlb_tree_ballot_result(self->tree);
    return self->result == NULL ? -1 : 1;
}

static int step(begun *self) {
    posted *message = self->message;
    if (self->tree != NULL)
        return step_tree(self);
    if (message == NULL)
        return step_call(self);
    int done = dlb_posted_advance(message);
    if (done > 0 && message->is_receive && message->buffer == NULL) {
        if ((done = open_message(self)) != 0)
            return done;
        done = dlb_posted_advance(message);
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

int dlb_advance_some(Py_ssize_t count) {
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
    if (dlb_is_open(self->of, peers_of(self)))
        return 1;
    return PyErr_Occurred() || hand_over(self) < 0 ? -1 : 0;
}

/* The same, for a wait: other ranks may wait for another collective first. */
static int advance_for_wait(void *object) {
    begun *self = object;
    int done = advance_begun(self);
    bool is_one_of_many = self->message == NULL && under_way.first != under_way.last;
    return done == 0 && is_one_of_many ? dlb_advance_some(1) : done;
}

/* The peers may go with the call. */
static int wait_here(begun *self, size_t nbytes) {
    dlb_peers *over = (dlb_peers *)Py_NewRef(peers_of(self));
    int done = dlb_wait_shortly(advance_for_wait, self, over, nbytes);
    Py_DECREF(over);
    return done;
}

/* The bytes that are under way. */
static size_t awaited(const begun *self) {
    if (self->tree != NULL)
        return dlb_tree_ballot_nbytes(self->tree);
    return self->call != NULL ? self->call->awaited : self->message->nbytes;
}

/* Whether it is over; 0: Python waits for it; -1. `waits`: for a short while. */
static int finish(begun *self, bool waits) {
    int done = 1;
    if (is_here(self))
        done = waits ? wait_here(self, awaited(self)) : advance_begun(self);
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

PyObject *dlb_isend(const caller *by, dlb_peers *over, PyObject *const *args,
                    Py_ssize_t Py_UNUSED(count)) { /* x, dest, tag */
    begun *made = new_begun((quick *)by->self, "isend", args + 1, 1);
    if (made == NULL ||
        (made->message = dlb_begin_send(by->self, over, args)) == NULL) {
        Py_XDECREF(made);
        return dlb_decline();
    }
    int gone = advance_begun(made); /* small ones at once */
    if (gone < 0)
        Py_CLEAR(made);
    return gone == 0 ? started(made) : (PyObject *)made;
}

PyObject *dlb_irecv(const caller *by, dlb_peers *over, PyObject *const *args,
                    Py_ssize_t count) { /* source, tag, to, out */
    receiver to;
    if (dlb_open_receiver(by->self, over, args[0], args[1], args[3], &to) <= 0)
        return dlb_decline();
    begun *made = new_begun((quick *)by->self, "irecv", args, count);
    if (made != NULL && args[3] != Py_None) {
        dlb_buffer_retain(to.into.view.buffer);
        made->into = (dlb_tensor *)dlb_tensor_new(dlb.tensor_type, &to.into.view);
    }
    dlb_close_receiver(&to);
    if (made == NULL || (args[3] != Py_None && made->into == NULL) ||
        (made->converter = dlb_find_converter(args[2])) == NULL) {
        Py_XDECREF(made);
        return dlb_decline();
    }
    made->message = dlb_new_receive(over, to.source);
    if (made->message == NULL || dlb_post_head(made->message, to.tag) < 0) {
        Py_DECREF(made);
        return NULL;
    }
    return started(made);
}

/* A collective that has memory for all it needs: it sends what this rank says. */
static PyObject *started_at_once(begun *made) {
    int gone = advance_begun(made);
    if (gone < 0) { /* it is begun all the same */
        if (is_here(made))
            Py_DECREF(started(made));
        else
            Py_DECREF(made);
        return NULL;
    }
    return gone == 0 ? started(made) : (PyObject *)made;
}

PyObject *dlb_begin_call(const caller *by, dlb_peers *over, const char *name,
                         beginning begin, PyObject *const *args) {
    if (!over->is_direct)
        return dlb_decline();
    begun *made = new_begun((quick *)by->self, name, NULL, 0);
    call *begins = made == NULL ? NULL : PyMem_Malloc(sizeof *begins);
    if (begins == NULL) {
        PyErr_Clear(); /* Python reports it to all ranks */
        Py_XDECREF(made);
        return dlb_decline();
    }
    dlb_call_init(begins, name + 1); /* without the i */
    if (dlb_begin_or_decline(begins, begin, by->self, over, args) == 0) {
        PyMem_Free(begins);
        Py_DECREF(made);
        return dlb_decline();
    }
    made->call = begins;
    return started_at_once(made);
}

PyObject *dlb_begin_ballot(const caller *by, const char *name,
                           dlb_tree_ballot *ballot) {
    begun *made = new_begun((quick *)by->self, name, NULL, 0);
    if (made == NULL) {
        PyErr_Clear(); /* Python reports it to all ranks */
        return dlb_decline();
    }
    made->tree = (dlb_tree_ballot *)Py_NewRef(ballot);
    return started_at_once(made);
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
        self->message == NULL || self->is_busy ? 0 : dlb_posted_cancel(self->message);
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
    if ((most == -1 && PyErr_Occurred()) || dlb_advance_some(most) < 0)
        return NULL;
    return PyBool_FromLong(dlb_is_something_begun());
}

static PyObject *is_begun_over(PyObject *Py_UNUSED(module), PyObject *over) {
    bool found = false;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    for (begun *each = under_way.first; each != NULL && !found; each = each->next)
        found = (PyObject *)peers_of(each) == over;
    DLB_END_EXCLUSIVE();
    return PyBool_FromLong(found);
}

static PyObject *pass_on_begun(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(none)) {
    int done = 0;
    DLB_BEGIN_EXCLUSIVE(THE_BEGUN);
    while (under_way.first != NULL && done >= 0) {
        begun *self = (begun *)Py_NewRef(under_way.first);
        done = hand_over(self);
        Py_DECREF(self);
    }
    DLB_END_EXCLUSIVE();
    return done < 0 ? NULL : Py_NewRef(Py_None);
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

static PyObject *awake(PyObject *Py_UNUSED(module), PyObject *args) {
    int is_near;
    Py_ssize_t nbytes;
    if (!PyArg_ParseTuple(args, "pn:awake", &is_near, &nbytes))
        return NULL;
    return PyFloat_FromDouble(dlb_awake(is_near, (size_t)nbytes));
}

PyMethodDef dlb_begun_functions[] = {
    {"advance_begun", advance_begun_of_all, METH_O,
     "advance_begun($module, count, /)\n--\n\n"
     "Advance so many calls that C has begun; return whether some are under way."},
    {"is_begun_over", is_begun_over, METH_O,
     "is_begun_over($module, peers, /)\n--\n\n"
     "Return whether a call that C has begun is under way between these peers."},
    {"pass_on_begun", pass_on_begun, METH_NOARGS,
     "pass_on_begun($module, /)\n--\n\nHave Python go on with all that C has begun."},
    {"awake", awake, METH_VARARGS,
     "awake($module, near, nbytes, /)\n--\n\n"
     "Return the seconds for which a wait yields the processor before it sleeps."},
    {"outcomes", outcomes, METH_O,
     "outcomes($module, requests, /)\n--\n\n"
     "Return the results of requests, or raise the error of the first that failed."},
    {"finish_begun", finish_begun, METH_VARARGS,
     "finish_begun($module, requests, start, /)\n--\n\n"
     "Wait for requests of a list, in order; return the number of the first that\n"
     "failed, or is Python's, or where signals should be looked at."},
    {0},
};

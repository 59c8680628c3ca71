/* Calls of dlbridge.mpi with tensors of the CPU, without a Python frame: collectives
 * and messages, waited for or not.
 *
 * What the ranks say to each other is what the Python path says, so some may be here
 * and others there. Whatever is out of the ordinary is declined before anything is
 * sent: the result is False, and Python makes the whole call. A call that has begun and
 * takes long, or on which the ranks do not agree, goes on in Python: `resume` gets what
 * is under way.
 *
 * Here is the type Quick, with its methods; calls.h says what is in the other files. */
#include "python/python.h" /* first, as it asks for clock_gettime in its own way */

#include "mpi/calls.h"

#include <structmember.h>

enum { OTHERS = 16 }; /* messages that go on meanwhile */
#define LONGEST 10e-3 /* seconds of yielding, at most: nobody looks at signals */
#define ASIDE 1e-3    /* seconds after which what is under way in Python goes on */

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

/* Calls that are made here one after the other never wait in Python, where what is
 * under way goes on. So it does from time to time before a call; -1 with an exception.
 */
static int go_on_aside(quick *self) {
    PyObject *go_on = NULL;
    bool is_time = false;
    DLB_BEGIN_EXCLUSIVE(self);
    bool is_active = self->active != NULL && PyDict_Check(self->active) &&
                     PyDict_GET_SIZE(self->active) > 0;
    if (is_active || dlb_is_something_begun()) {
        double time = dlb_now();
        if ((is_time = time - self->went_on > ASIDE))
            self->went_on = time;
        if (is_time && is_active)
            go_on = Py_XNewRef(self->go_on);
    }
    DLB_END_EXCLUSIVE();
    if (go_on == NULL)
        return is_time ? dlb_advance_some(OTHERS) : 0;
    PyObject *none[1], *result = dlb_defer_signals(go_on, none, 0, NULL);
    Py_DECREF(go_on);
    Py_XDECREF(result);
    return result == NULL ? -1 : 0;
}

bool dlb_is_open(quick *self, const dlb_peers *over) {
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
    if (is_set && dlb_is_open(self, over))
        return over;
    Py_XDECREF(over);
    return NULL;
}

double dlb_patience(const dlb_peers *over, size_t nbytes) {
    double awake = dlb_awake(over->is_near, nbytes);
    return awake < LONGEST ? awake : LONGEST;
}

int dlb_mpi_start(PyObject *module) {
    static const struct {
        const char *name;
        long nbytes;
    } sizes[] = {
        {"BALLOT_MOST", DLB_BALLOT_MOST},     {"REDUCED_MOST", DLB_REDUCED_MOST},
        {"COPIED_MOST", DLB_COPIED_MOST},     {"ROWS_MOST", DLB_ROWS_MOST},
        {"GATHERED_MOST", DLB_GATHERED_MOST}, {"MESSAGE_MOST", DLB_MESSAGE_MOST}};
    for (size_t i = 0; i < sizeof sizes / sizeof *sizes; i++)
        if (PyModule_AddIntConstant(module, sizes[i].name, sizes[i].nbytes) < 0)
            return -1;
    return 0;
}

/* ---- each call ---- */

#define COLLECTIVE(name)                                                               \
    static PyObject *quick_##name(const caller *by, dlb_peers *over,                   \
                                  PyObject *const *args,                               \
                                  Py_ssize_t Py_UNUSED(count)) {                       \
        return dlb_make_call(by, over, #name, dlb_begin_##name, args);                 \
    }                                                                                  \
    static PyObject *quick_i##name(const caller *by, dlb_peers *over,                  \
                                   PyObject *const *args,                              \
                                   Py_ssize_t Py_UNUSED(count)) {                      \
        return dlb_begin_call(by, over, "i" #name, dlb_begin_##name, args);            \
    }
COLLECTIVE(reduce)
COLLECTIVE(reduce_scatter)
COLLECTIVE(allgather)
COLLECTIVE(alltoall)
COLLECTIVE(scatter)
COLLECTIVE(barrier)
#undef COLLECTIVE
#undef BEGUN

/* How a call is made with a tree of tensors, and with one tensor: waited for, or begun
 * under the name. `key` is as dlb_call_tree has it. */
static PyObject *make_either(const caller *by, dlb_peers *over, const char *name,
                             beginning begin, PyObject *const *args, PyObject *key,
                             PyObject *out) {
    bool is_begun = name[0] == 'i';
    if (key != NULL)
        return is_begun ? dlb_begin_tree(by, over, name, key, args[0], out)
                        : dlb_call_tree(by, over, key, args[0], out);
    if (PyErr_Occurred())
        return NULL;
    return is_begun ? dlb_begin_call(by, over, name, begin, args)
                    : dlb_make_call(by, over, name, begin, args);
}
static PyObject *any_allreduce(const caller *by, dlb_peers *over, const char *name,
                               PyObject *const *args) {
    PyObject *key = NULL;
    if (dlb_may_be_tree(args[0]) && PyUnicode_CheckExact(args[1]))
        key = Py_BuildValue("(Os)", args[1], "tree");
    return make_either(by, over, name, dlb_begin_allreduce, args, key, args[2]);
}

/* The key of a call with a tree, which has a root, or NULL. */
static PyObject *rooted_key(const dlb_peers *over, const char *name,
                            PyObject *const *args) {
    bool is_tree = dlb_may_be_tree(args[0]) && dlb_read_root(over, args[1]) >= 0;
    return is_tree ? Py_BuildValue("(sOs)", name, args[1], "tree") : NULL;
}

static PyObject *any_bcast(const caller *by, dlb_peers *over, const char *name,
                           PyObject *const *args) {
    PyObject *key = rooted_key(over, "bcast", args);
    return make_either(by, over, name, dlb_begin_bcast, args, key, args[3]);
}

static PyObject *any_gather(const caller *by, dlb_peers *over, const char *name,
                            PyObject *const *args) {
    PyObject *key = rooted_key(over, "gather", args);
    return make_either(by, over, name, dlb_begin_gather, args, key, args[2]);
}

#define OF_TREES_TOO(name)                                                             \
    static PyObject *quick_##name(const caller *by, dlb_peers *over,                   \
                                  PyObject *const *args,                               \
                                  Py_ssize_t Py_UNUSED(count)) {                       \
        return any_##name(by, over, #name, args);                                      \
    }                                                                                  \
    static PyObject *quick_i##name(const caller *by, dlb_peers *over,                  \
                                   PyObject *const *args,                              \
                                   Py_ssize_t Py_UNUSED(count)) {                      \
        return any_##name(by, over, "i" #name, args);                                  \
    }
OF_TREES_TOO(allreduce)
OF_TREES_TOO(bcast)
OF_TREES_TOO(gather)
#undef OF_TREES_TOO

/* The count that is wanted, or one more: a timeout. */
static bool has_count(const char *name, Py_ssize_t count, Py_ssize_t wanted) {
    if (count == wanted || count == wanted + 1)
        return true;
    PyErr_Format(PyExc_TypeError, "%s: expected %zd arguments, got %zd", name, wanted,
                 count);
    return false;
}

/* Whether it is a timeout as a `caller` has it; others are Python's. */
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
    by->begun = dlb_now();
    return seconds >= LONGEST;
}

/* With the peers, for as long as the call takes; a further argument is `timeout`. */
#define OPEN_WITH(name, function, wanted)                                              \
    static PyObject *open_##name(PyObject *object, PyObject *const *args,              \
                                 Py_ssize_t count) {                                   \
        caller by = {.self = (quick *)object};                                         \
        if (!has_count(#name, count, wanted))                                          \
            return NULL;                                                               \
        if (!set_timeout(&by, count > wanted ? args[wanted] : Py_None))                \
            return dlb_decline();                                                      \
        dlb_peers *over = open_peers((quick *)object);                                 \
        if (over == NULL)                                                              \
            return dlb_decline();                                                      \
        PyObject *result = function(&by, over, args, wanted);                          \
        Py_DECREF(over);                                                               \
        return result;                                                                 \
    }
#define OPEN(name, wanted) OPEN_WITH(name, quick_##name, wanted)
OPEN(allreduce, 3)
OPEN(reduce, 4)
OPEN(reduce_scatter, 4)
OPEN(allgather, 3)
OPEN(alltoall, 3)
OPEN(bcast, 4)
OPEN(gather, 4)
OPEN(scatter, 5)
OPEN(barrier, 1)
OPEN(iallreduce, 3)
OPEN(ireduce, 4)
OPEN(ireduce_scatter, 4)
OPEN(iallgather, 3)
OPEN(ialltoall, 3)
OPEN(ibcast, 4)
OPEN(igather, 4)
OPEN(iscatter, 5)
OPEN(ibarrier, 1)
OPEN_WITH(send, dlb_send, 3)
OPEN_WITH(isend, dlb_isend, 3)
OPEN_WITH(recv, dlb_recv, 4)
OPEN_WITH(irecv, dlb_irecv, 4)
OPEN_WITH(sendrecv, dlb_sendrecv, 7)
#undef OPEN
#undef OPEN_WITH

#define CALL(name, parameters)                                                         \
    {#name, (PyCFunction)(void (*)(void))open_##name, METH_FASTCALL,                   \
     #name "($self, " parameters ", /)\n--\n\nThe result, or False: Python makes it."}

static PyMethodDef quick_methods[] = {
    CALL(allreduce, "x, op, out, timeout=None"),
    CALL(reduce, "x, op, root, out, timeout=None"),
    CALL(reduce_scatter, "x, op, out, key, timeout=None"),
    CALL(allgather, "x, out, key, timeout=None"),
    CALL(alltoall, "x, out, key, timeout=None"),
    CALL(bcast, "x, root, to, out, timeout=None"),
    CALL(gather, "x, root, out, key, timeout=None"),
    CALL(scatter, "x, root, to, out, key, timeout=None"),
    CALL(barrier, "key, timeout=None"),
    CALL(iallreduce, "x, op, out"),
    CALL(ireduce, "x, op, root, out"),
    CALL(ireduce_scatter, "x, op, out, key"),
    CALL(iallgather, "x, out, key"),
    CALL(ialltoall, "x, out, key"),
    CALL(ibcast, "x, root, to, out"),
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

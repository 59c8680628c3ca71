/* Handlers of signals: which exceptions are theirs, and how they are deferred while
 * something is done that must not be left halfway.
 *
 * Python runs them in its main thread between any two instructions, and what they raise
 * (a KeyboardInterrupt, the TimeoutError of somebody's alarm) leaves the code that runs
 * there. Where another process would wait for the rest of it, they have to wait. */
#include "python/python.h"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The exception that is set, with its traceback, asked of the package. */
static bool is_from_handler(void) {
    PyObject *error = dlb_take_exception();
    PyObject *trace = PyException_GetTraceback(error), *answer = Py_NewRef(Py_False);
    if (trace != NULL && dlb.is_from_handler != NULL)
        Py_SETREF(answer, PyObject_CallOneArg(dlb.is_from_handler, error));
    if (answer == NULL) { /* a handler has run meanwhile */
        Py_DECREF(error);
        Py_XDECREF(trace);
        return true;
    }
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, trace);
    bool is_true = answer == Py_True;
    Py_DECREF(answer);
    return is_true;
}

bool dlb_is_interrupt(void) {
    return !PyErr_ExceptionMatches(PyExc_Exception) || is_from_handler();
}

int dlb_clear_error(void) {
    if (!PyErr_Occurred())
        return 0;
    if (dlb_is_interrupt())
        return -1;
    PyErr_Clear();
    return 0;
}

/* A pending call, which steals the exception. */
static int raise_again(void *interrupt) {
    PyObject *error = interrupt;
    PyErr_Restore(Py_NewRef(Py_TYPE(error)), error, PyException_GetTraceback(error));
    return -1;
}

void dlb_drop_error(void) {
    if (dlb_clear_error() == 0)
        return;
    PyObject *interrupt = dlb_take_exception();
    if (Py_AddPendingCall(raise_again, interrupt) < 0)
        Py_DECREF(interrupt); /* too many wait already */
}

/* ---- deferred handlers ---- */

enum { SIGNALS = 65 }; /* those of Linux are 1 to 64 */

/* A handler that waits. */
typedef struct {
    PyObject *handler;       /* or NULL */
    struct sigaction action; /* as it was, with flags that Python does not keep */
    bool came;
} waiting;

/* Of the main thread, in which alone handlers run. */
static struct {
    PyObject *get, *set; /* getsignal and signal of Python */
    PyObject *note;      /* the handler meanwhile */
    waiting signals[SIGNALS];
    unsigned long thread; /* that defers them, or 0 */
} deferred;

static PyObject *note(PyObject *Py_UNUSED(module), PyObject *args) {
    int number;
    PyObject *frame;
    if (!PyArg_ParseTuple(args, "iO", &number, &frame))
        return NULL;
    if (number > 0 && number < SIGNALS)
        deferred.signals[number].came = true;
    Py_RETURN_NONE;
}

static PyMethodDef note_method = {"note_signal", note, METH_VARARGS,
                                  "note_signal(number, frame, /)\n--\n\nA handler."};

/* Handlers run only in the main thread. Of a process whose main thread is not its first
 * one, which only programs that embed Python can have, none is deferred. */
static bool is_main_thread(void) {
#ifdef __linux__
    return syscall(SYS_gettid) == getpid();
#else
    return true; /* elsewhere `signal` refuses */
#endif
}

enum { LONGEST_CHAIN = 1000 };

/* Whether an exception is `error` or in the chain of its contexts; also if that is too
 * long to say, as one that ends nowhere. */
static bool is_in_chain(PyObject *searched, PyObject *error) {
    int length = 0;
    Py_XINCREF(error);
    while (error != NULL && error != searched && length++ < LONGEST_CHAIN) {
        PyObject *context = PyException_GetContext(error);
        Py_DECREF(error);
        error = context;
    }
    Py_XDECREF(error);
    return error != NULL;
}

/* Make an exception the context of a later one, behind what that has of its own; what
 * both have, such as an exception that is handled meanwhile, stays behind the earlier
 * one. The reference to that is stolen. */
static void set_context(PyObject *later, PyObject *earlier) {
    if (earlier == NULL || is_in_chain(later, earlier) || is_in_chain(earlier, later)) {
        Py_XDECREF(earlier); /* no circle */
        return;
    }
    PyObject *last = Py_NewRef(later), *context;
    while ((context = PyException_GetContext(last)) != NULL &&
           !is_in_chain(context, earlier)) {
        Py_DECREF(last);
        last = context;
    }
    Py_XDECREF(context);
    PyException_SetContext(last, earlier);
    Py_DECREF(last);
}

/* Keep the exception that is set, with those before as its context. */
static void keep_exception(PyObject **kept) {
    PyObject *raised = dlb_take_exception();
    set_context(raised, *kept);
    *kept = raised;
}

static bool try_to_set(int number, PyObject *handler) {
    PyObject *old = PyObject_CallFunction(deferred.set, "iO", number, handler);
    Py_XDECREF(old);
    return old != NULL;
}

/* Set the handler of a signal. Python first runs those of signals that have come, and
 * what they raise is kept for later. False: this thread can set none. */
static bool set_handler(int number, PyObject *handler, PyObject **kept) {
    int refusals = 0; /* by a ValueError, which a handler may raise as well, once */
    while (!try_to_set(number, handler)) {
        refusals = PyErr_ExceptionMatches(PyExc_ValueError) ? refusals + 1 : 0;
        if (refusals > 1) {
            PyErr_Clear();
            Py_CLEAR(*kept);
            return false;
        }
        keep_exception(kept);
    }
    return true;
}

/* The handler of a signal, if it is a function of Python; a new reference, or NULL. */
static PyObject *find_handler(int number) {
    PyObject *given = PyLong_FromLong(number); /* of those that Python keeps */
    PyObject *handler = PyObject_CallOneArg(deferred.get, given);
    Py_DECREF(given);
    if (handler == NULL)
        PyErr_Clear(); /* no such signal here */
    else if (PyLong_Check(handler) || !PyCallable_Check(handler))
        Py_CLEAR(handler);
    return handler;
}

/* The handlers that are functions of Python, also while they are deferred. */
static PyObject *signal_handlers(PyObject *Py_UNUSED(module),
                                 PyObject *Py_UNUSED(none)) {
    PyObject *found = PyList_New(0);
    for (int number = 1; found != NULL && number < SIGNALS; number++) {
        PyObject *waits = deferred.signals[number].handler;
        PyObject *handler = waits ? Py_NewRef(waits) : find_handler(number);
        if (handler != NULL && PyList_Append(found, handler) < 0)
            Py_CLEAR(found);
        Py_XDECREF(handler);
    }
    return found;
}

static void put_aside(PyObject **kept) {
    deferred.thread = PyThread_get_thread_ident();
    for (int number = 1; number < SIGNALS; number++) {
        waiting *signal = &deferred.signals[number];
        PyObject *handler = find_handler(number);
        if (handler != NULL && sigaction(number, NULL, &signal->action) == 0 &&
            set_handler(number, deferred.note, kept))
            signal->handler = handler;
        else
            Py_XDECREF(handler);
    }
}

/* A handler that was set meanwhile stays. */
static void put_back(PyObject **kept) {
    for (int number = 1; number < SIGNALS; number++) {
        waiting *signal = &deferred.signals[number];
        PyObject *handler = signal->handler;
        if (handler == NULL)
            continue;
        signal->handler = NULL;
        PyObject *current = find_handler(number);
        if (current == deferred.note && set_handler(number, handler, kept))
            sigaction(number, &signal->action, NULL);
        Py_XDECREF(current);
        Py_DECREF(handler);
    }
    deferred.thread = 0;
    for (int number = 1; number < SIGNALS; number++) {
        waiting *signal = &deferred.signals[number];
        bool came = signal->came;
        signal->came = false;
        if (came && PyErr_SetInterruptEx(number) == 0 && PyErr_CheckSignals() < 0)
            keep_exception(kept);
    }
}

PyObject *dlb_defer_signals(PyObject *function, PyObject *const *args, size_t count,
                            PyObject *names) {
    if (!is_main_thread() || deferred.thread != 0)
        return PyObject_Vectorcall(function, args, count, names);
    PyObject *raised = NULL;
    put_aside(&raised);
    PyObject *result = PyObject_Vectorcall(function, args, count, names);
    PyObject *error = result == NULL ? dlb_take_exception() : NULL;
    put_back(&raised);
    if (raised != NULL) {
        Py_XDECREF(result);
        set_context(raised, error);
        error = raised;
        result = NULL;
    }
    if (error != NULL) /* PyErr_SetObject would change its context */
        PyErr_Restore(Py_NewRef(Py_TYPE(error)), error,
                      PyException_GetTraceback(error));
    return result;
}

static PyObject *defer_signals(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count, PyObject *names) {
    if (count < 1)
        return PyErr_Format(PyExc_TypeError, "defer_signals: a function is required");
    return dlb_defer_signals(args[0], args + 1, (size_t)count - 1, names);
}

/* In a child that another thread has forked, nobody goes on with what was begun. */
static PyObject *signals_after_fork(PyObject *Py_UNUSED(module),
                                    PyObject *Py_UNUSED(none)) {
    PyObject *raised = NULL;
    if (deferred.thread != 0 && deferred.thread != PyThread_get_thread_ident()) {
        for (int number = 1; number < SIGNALS; number++)
            deferred.signals[number].came = false; /* to the parent */
        put_back(&raised);
    }
    Py_XDECREF(raised);
    Py_RETURN_NONE;
}

PyMethodDef dlb_signal_functions[] = {
    {"defer_signals", (PyCFunction)(void (*)(void))defer_signals,
     METH_FASTCALL | METH_KEYWORDS,
     "defer_signals($module, function, /, *args, **kwargs)\n--\n\n"
     "Call a function; handlers of signals that come meanwhile run when it is over.\n\n"
     "What they raise is raised then, and the result is lost. In threads other than\n"
     "the main one, where Python runs no handler, it is the plain call."},
    {"signal_handlers", signal_handlers, METH_NOARGS,
     "signal_handlers($module, /)\n--\n\n"
     "The handlers that are functions, also while they are deferred."},
    {"signals_after_fork", signals_after_fork, METH_NOARGS,
     "signals_after_fork($module, /)\n--\n\n"
     "In a forked child: defer no signals any more, unless this thread does."},
    {0},
};

int dlb_signals_start(void) {
    /* What `signal` wraps in enums, which takes many times as long. */
    PyObject *module = PyImport_ImportModule("_signal");
    if (module == NULL)
        return -1;
    deferred.get = PyObject_GetAttrString(module, "getsignal");
    deferred.set = PyObject_GetAttrString(module, "signal");
    deferred.note = PyCFunction_New(&note_method, NULL);
    Py_DECREF(module);
    bool is_there =
        deferred.get != NULL && deferred.set != NULL && deferred.note != NULL;
    return is_there ? 0 : -1;
}

/* The handler's side towards Python: its addresses, and the exceptions of eager calls.
 *
 * XLA carries an error as a text. That of an eager call ends with a number, which the
 * caller exchanges for the exception itself; one that nobody asks for is forgotten
 * after some further failures. */
#include "xla/python.h"
#include "xla/xla.h"
#include "kernel/python.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

enum { KEPT = 32 };

static struct {
    pthread_mutex_t lock;
    uint64_t last;
    uint64_t numbers[KEPT]; /* 0: none */
    dlb_error errors[KEPT];
} failures = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* The lock is never held while the GIL is waited for. */
uint64_t dlb_xla_keep_failure(dlb_error *error) {
    dlb_error old = {.kind = DLB_ERROR_NONE};
    pthread_mutex_lock(&failures.lock);
    uint64_t number = ++failures.last;
    int slot = (int)(number % KEPT);
    if (failures.numbers[slot] != 0)
        old = failures.errors[slot];
    failures.numbers[slot] = number;
    failures.errors[slot] = *error;
    pthread_mutex_unlock(&failures.lock);
    error->exception = NULL;
    dlb_error_clear(&old);
    return number;
}

static bool take_failure(uint64_t number, dlb_error *error) {
    int slot = (int)(number % KEPT);
    pthread_mutex_lock(&failures.lock);
    bool found = number != 0 && failures.numbers[slot] == number;
    if (found) {
        failures.numbers[slot] = 0;
        *error = failures.errors[slot];
    }
    pthread_mutex_unlock(&failures.lock);
    return found;
}

static uint64_t number_in(PyObject *exception) {
    static const char mark[] = " [dlbridge failure ";
    PyObject *text = PyObject_Str(exception);
    const char *found = NULL;
    uint64_t number = 0;
    if (text != NULL) {
        const char *characters = PyUnicode_AsUTF8(text);
        found = characters ? strstr(characters, mark) : NULL;
    }
    if (found != NULL)
        number = strtoull(found + sizeof mark - 1, NULL, 10);
    PyErr_Clear();
    Py_XDECREF(text);
    return number;
}

void dlb_xla_raise_failure(void) {
    PyObject *type, *value, *traceback;
    dlb_error error;
    if (!PyErr_ExceptionMatches(PyExc_RuntimeError) && /* XLA's own, by its code */
        !PyErr_ExceptionMatches(PyExc_ValueError))
        return;
    PyErr_Fetch(&type, &value, &traceback);
    PyErr_NormalizeException(&type, &value, &traceback);
    if (value != NULL && take_failure(number_in(value), &error)) {
        Py_XDECREF(type);
        Py_XDECREF(value);
        Py_XDECREF(traceback);
        dlb_raise(&error);
        return;
    }
    PyErr_Restore(type, value, traceback);
}

/* ---- addresses ---- */

PyObject *dlb_xla_handler(PyObject *Py_UNUSED(module), PyObject *platform) {
    static const struct {
        const char *platform;
        void *(*handler)(dlb_xla_call *);
    } rows[] = {{"cpu", dlb_xla_execute_cpu},
                {"CUDA", dlb_xla_execute_cuda},
                {"ROCM", dlb_xla_execute_rocm}};
    const char *name = PyUnicode_AsUTF8(platform);
    if (name == NULL)
        return NULL;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (strcmp(rows[i].platform, name) == 0)
            return PyCapsule_New((void *)rows[i].handler, NULL, NULL);
    return PyErr_Format(PyExc_ValueError, "xla_handler: no handler for %R", platform);
}

PyObject *dlb_xla_call_eagerly(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count) {
    if (count == 0)
        return PyErr_Format(PyExc_TypeError, "xla_call: no function");
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, NULL);
    if (result == NULL)
        dlb_xla_raise_failure();
    return result;
}

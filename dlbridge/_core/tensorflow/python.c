/* What the Python half of the TensorFlow binding calls: finding the C API, the
 * registration, eager ops. */
#define _GNU_SOURCE
#include "tensorflow/tensorflow.h"

#include <dlfcn.h>

dlb_tensorflow_api dlb_tf;
DLDataType dlb_tf_dtypes[DLB_TF_DTYPES];

/* NULL, or the function that the loaded library does not have, or why it is not found.
 */
static const char *find_functions(const char *library) {
    void *handle = dlopen(library, RTLD_NOLOAD | RTLD_NOW);
    if (handle == NULL)
        return "the library is not loaded";
    const struct {
        const char *name;
        void **function;
    } wanted[] = {
#define DLB_FIND(result, function, arguments)                                          \
    {"TF_" #function, (void **)(void *)&dlb_tf.function},
        DLB_TENSORFLOW_FUNCTIONS(DLB_FIND)
#undef DLB_FIND
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].function = dlsym(handle, wanted[i].name);
        if (*wanted[i].function == NULL)
            return wanted[i].name;
    }
    return NULL; /* `handle` stays open: the op refers to the library for good */
}

static int read_dtypes(PyObject *dtypes) {
    PyObject *number, *triple;
    for (Py_ssize_t next = 0; PyDict_Next(dtypes, &next, &number, &triple);) {
        long place = PyLong_AsLong(number);
        if (place == -1 && PyErr_Occurred())
            return -1;
        if (place < 0 || place >= DLB_TF_DTYPES) {
            PyErr_Format(PyExc_ValueError, "tensorflow_open: no number of a dtype: %ld",
                         place);
            return -1;
        }
        if (dlb_parse_dtype(triple, &dlb_tf_dtypes[place]) < 0)
            return -1;
    }
    return 0;
}

static PyObject *tensorflow_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *library;
    PyObject *dtypes;
    char error[DLB_ERROR_SIZE];
    if (!PyArg_ParseTuple(args, "sO!:tensorflow_open", &library, &PyDict_Type, &dtypes))
        return NULL;
    const char *missing = find_functions(library);
    if (missing != NULL)
        return PyErr_Format(PyExc_ImportError, "tensorflow_open: %s: %s", library,
                            missing);
    if (read_dtypes(dtypes) < 0)
        return NULL;
    if (dlb_tf_register(error, sizeof error) < 0)
        return PyErr_Format(PyExc_ImportError, "tensorflow_open: %s", error);
    Py_RETURN_NONE;
}

/* TensorFlow's own error is replaced by the one that our op reported on this thread. */
static PyObject *tensorflow_execute(PyObject *Py_UNUSED(module), PyObject *const *args,
                                    Py_ssize_t count) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "tensorflow_execute: a function is missing");
        return NULL;
    }
    dlb_error error;
    error.kind = DLB_ERROR_NONE;
    error.exception = NULL;
    dlb_error *before = dlb_tf_listen(&error);
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, NULL);
    dlb_tf_listen(before);
    if (error.kind == DLB_ERROR_NONE)
        return result;
    if (result != NULL) { /* somebody has dealt with the error */
        dlb_error_clear(&error);
        return result;
    }
    PyErr_Clear();
    return dlb_raise(&error);
}

PyMethodDef dlb_tensorflow_functions[] = {
    {"tensorflow_open", tensorflow_open, METH_VARARGS,
     "tensorflow_open($module, library, dtypes, /)\n--\n\nRegister the op with the "
     "loaded TensorFlow."},
    {"tensorflow_execute", (PyCFunction)(void (*)(void))tensorflow_execute,
     METH_FASTCALL,
     "tensorflow_execute($module, function, /, *args)\n--\n\nCall what runs the op "
     "eagerly, and raise our own errors."},
    {NULL, NULL, 0, NULL},
};

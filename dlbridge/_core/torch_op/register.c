/* Operators of torch, for Python: open the shim, define, implement, call. */
#include "torch_op/op.h"
#include "call/call.h"

#include <string.h>

_Thread_local dlb_torch_failure dlb_torch_failed;

static const char library_name[] = "dlbridge.torch_library";

/* torch_op_open(libtorch_cpu, libtorch_cuda, is_rocm, hidden) -> None, or the name of
 * what libtorch does not have. */
static PyObject *open_shim(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *path, *cuda_path, *hidden;
    int is_rocm;
    if (!PyArg_ParseTuple(args, "szpz:torch_op_open", &path, &cuda_path, &is_rocm,
                          &hidden))
        return NULL;
    const char *missing = dlb_shim_open(path, cuda_path, is_rocm, hidden);
    if (missing == NULL)
        Py_RETURN_NONE;
    return PyUnicode_FromString(missing);
}

static PyObject *has_strings(PyObject *Py_UNUSED(module), PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(dlb_shim.string_text != NULL &&
                           dlb_shim.delete_string != NULL);
}

/* A library object deletes what was defined or implemented through it; the capsule
 * does so only when told, as libtorch may be gone first at the end. */
static PyObject *library_capsule(dlb_torch_library library) {
    PyObject *capsule = PyCapsule_New(library, library_name, NULL);
    if (capsule == NULL)
        dlb_shim.delete_library(library);
    return capsule;
}

static int add_definition(dlb_torch_library library, const char *schema,
                          int Py_UNUSED(number)) {
    return dlb_shim.define(library, schema);
}

static int add_implementation(dlb_torch_library library, const char *name, int number) {
    return dlb_shim.implement(library, name, dlb_torch_trampoline(number));
}

/* A library object for a dispatch key, or NULL for definitions, with all of `texts` in
 * it. Without the GIL: the dispatcher has a lock of its own, and who holds that one may
 * want the GIL. */
static PyObject *make_library(const char *name_space, const char *key, PyObject *texts,
                              int (*add)(dlb_torch_library, const char *, int),
                              int number) {
    dlb_torch_library library = NULL;
    const char *text = name_space;
    Py_ssize_t count = PyTuple_GET_SIZE(texts);
    int failed;
    Py_BEGIN_ALLOW_THREADS
    failed = key != NULL
                 ? dlb_shim.library_implementation(name_space, key, __FILE__, __LINE__,
                                                   &library)
                 : dlb_shim.library_fragment(name_space, __FILE__, __LINE__, &library);
    Py_END_ALLOW_THREADS
    bool is_open = !failed;
    for (Py_ssize_t i = 0; !failed && i < count; i++) {
        text = PyUnicode_AsUTF8(PyTuple_GET_ITEM(texts, i));
        failed = text == NULL;
        if (!failed) {
            Py_BEGIN_ALLOW_THREADS
            failed = add(library, text, number);
            Py_END_ALLOW_THREADS
        }
    }
    if (!failed)
        return library_capsule(library);
    const char *reason = dlb_shim.exception_text ? dlb_shim.exception_text() : "";
    if (text != NULL)
        PyErr_Format(PyExc_RuntimeError, "torch did not take %s: %s", text, reason);
    if (is_open)
        dlb_shim.delete_library(library);
    return NULL;
}

/* torch_op_define(namespace, schemas) -> a library object */
static PyObject *define(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *name_space;
    PyObject *schemas;
    if (!PyArg_ParseTuple(args, "sO!:torch_op_define", &name_space, &PyTuple_Type,
                          &schemas))
        return NULL;
    return make_library(name_space, NULL, schemas, add_definition, 0);
}

/* ---- the pool ---- */

static int used; /* numbers given away; under the GIL */

static int set_layout(int number, PyObject *name, const char *letters, int out_at) {
    const char *text = PyUnicode_AsUTF8(name);
    dlb_torch_layout *layout = text ? PyMem_RawMalloc(sizeof *layout) : NULL;
    if (text == NULL)
        return -1;
    if (layout != NULL)
        layout->entry = dlb_registry_add(text);
    if (layout == NULL || layout->entry == NULL) {
        PyMem_RawFree(layout);
        PyErr_NoMemory();
        return -1;
    }
    strcpy(layout->letters, letters);
    layout->out_at = out_at;
    atomic_store_explicit(&dlb_torch_layouts[number], layout, memory_order_release);
    return 0;
}

/* torch_op_take(kernel name, letters, out_at) -> a number out of the pool, None: it is
 * empty */
static PyObject *take_number(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *name;
    const char *letters;
    int out_at;
    if (!PyArg_ParseTuple(args, "Usi:torch_op_take", &name, &letters, &out_at))
        return NULL;
    size_t count = strlen(letters);
    if (count >= sizeof((dlb_torch_layout *)NULL)->letters || out_at < 0 ||
        (size_t)out_at > count)
        return PyErr_Format(PyExc_ValueError, "%U: too many arguments", name);
    if (used == dlb_torch_pool_size)
        Py_RETURN_NONE;
    if (set_layout(used, name, letters, out_at) < 0)
        return NULL;
    return PyLong_FromLong(used++);
}

/* torch_op_implement(namespace, names, key, number) -> a library object */
static PyObject *implement(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *name_space, *key;
    PyObject *names;
    int number;
    if (!PyArg_ParseTuple(args, "sO!si:torch_op_implement", &name_space, &PyTuple_Type,
                          &names, &key, &number))
        return NULL;
    if (number < 0 || number >= used)
        return PyErr_Format(PyExc_ValueError, "torch_op_implement: no number %d",
                            number);
    return make_library(name_space, key, names, add_implementation, number);
}

/* torch_op_remove(library): undo what a library object did. */
static PyObject *remove_library(PyObject *Py_UNUSED(module), PyObject *capsule) {
    dlb_torch_library library = PyCapsule_GetPointer(capsule, library_name);
    int failed;
    if (library == NULL)
        return NULL;
    PyCapsule_SetName(capsule, "dlbridge.removed");
    Py_BEGIN_ALLOW_THREADS
    failed = dlb_shim.delete_library(library);
    Py_END_ALLOW_THREADS
    if (failed)
        return PyErr_Format(PyExc_RuntimeError, "torch did not remove an operator");
    Py_RETURN_NONE;
}

/* ---- calls ---- */

/* Whether torch's exception, which is set, is what became of the kernel's error: the
 * Python code of a kernel may have caught that one. */
static bool is_that_error(const char *text) {
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    PyObject *words = value ? PyObject_Str(value) : NULL;
    const char *said = words ? PyUnicode_AsUTF8(words) : NULL;
    bool found = said != NULL && strstr(said, text) != NULL;
    Py_XDECREF(words);
    PyErr_Restore(type, value, traceback);
    return found;
}

/* torch_op_call(operator, *args, **kwargs): the exception of the kernel comes out as it
 * is, where torch knows only RuntimeError. */
static PyObject *call_operator(PyObject *Py_UNUSED(module), PyObject *const *args,
                               Py_ssize_t count, PyObject *names) {
    if (count < 1) {
        PyErr_SetString(PyExc_TypeError, "torch_op_call: an operator is missing");
        return NULL;
    }
    bool awaited_before = dlb_torch_failed.awaited;
    dlb_error *error = &dlb_torch_failed.error;
    dlb_error_clear(error);
    dlb_torch_failed.awaited = true;
    PyObject *result = PyObject_Vectorcall(args[0], args + 1, (size_t)count - 1, names);
    dlb_torch_failed.awaited = awaited_before;
    if (result == NULL && error->kind != DLB_ERROR_NONE &&
        PyErr_ExceptionMatches(PyExc_RuntimeError) && is_that_error(error->text)) {
        PyErr_Clear();
        return dlb_raise(error);
    }
    dlb_error_clear(error);
    return result;
}

/* torch_call_plain(kernel, *args, **kwargs) -> the result, or NotImplemented where the
 * dispatcher must do more than call the kernel. */
static PyObject *call_plain(PyObject *Py_UNUSED(module), PyObject *const *args,
                            Py_ssize_t count, PyObject *names) {
    if (count < 1 || !dlb_is_kernel(args[0])) {
        PyErr_SetString(PyExc_TypeError, "torch_call_plain: a kernel is missing");
        return NULL;
    }
    const dlb_kernel_object *kernel = (const dlb_kernel_object *)args[0];
    if (kernel->kernel->needs_gil)
        Py_RETURN_NOTIMPLEMENTED;
    PyObject *result =
        dlb_call_directly(kernel, DLB_FAMILY_TORCH, args + 1, count - 1, names);
    if (result == NULL && !PyErr_Occurred())
        Py_RETURN_NOTIMPLEMENTED;
    return result;
}

#define FAST(function) (PyCFunction)(void (*)(void)) function
PyMethodDef dlb_torch_op_functions[] = {
    {"torch_op_open", open_shim, METH_VARARGS,
     "torch_op_open($module, libtorch_cpu, libtorch_cuda, is_rocm, hidden, "
     "/)\n--\n\nFind the functions of libtorch."},
    {"torch_op_has_strings", has_strings, METH_NOARGS,
     "torch_op_has_strings($module, /)\n--\n\nWhether operators can have str "
     "arguments."},
    {"torch_op_define", define, METH_VARARGS,
     "torch_op_define($module, namespace, schemas, /)\n--\n\nDefine operators."},
    {"torch_op_take", take_number, METH_VARARGS,
     "torch_op_take($module, kernel, letters, out_at, /)\n--\n\nTake a function out of "
     "the pool."},
    {"torch_op_implement", implement, METH_VARARGS,
     "torch_op_implement($module, namespace, names, key, number, /)\n--\n\nImplement "
     "operators."},
    {"torch_op_remove", remove_library, METH_O,
     "torch_op_remove($module, library, /)\n--\n\nRemove definitions."},
    {"torch_op_call", FAST(call_operator), METH_FASTCALL | METH_KEYWORDS,
     "torch_op_call($module, operator, /, *args, **kwargs)\n--\n\nCall an operator."},
    {"torch_call_plain", FAST(call_plain), METH_FASTCALL | METH_KEYWORDS,
     "torch_call_plain($module, kernel, /, *args, **kwargs)\n--\n\nCall a kernel with "
     "plain tensors."},
    {NULL, NULL, 0, NULL},
};

/* A kernel's calls as builtin functions, one per framework: what torch.compile can
 * substitute must be one. */
#include "call/borrow.h"

#include <stdlib.h>
#include <string.h>

/* Owned by the kernel, which every function keeps alive as its `__self__`. */
struct dlb_bound_call {
    dlb_bound_call *next;
    PyMethodDef definition;
    char texts[]; /* the name, then the documentation */
};

/* A builtin function has no room for data of its own beside `__self__`, so there is one
 * C function per framework. */
#define ENTRY(framework, family)                                                       \
    static PyObject *call_##framework(PyObject *self, PyObject *const *args,           \
                                      Py_ssize_t count, PyObject *names) {             \
        return dlb_call_as(self, family, #framework, args, count, names);              \
    }
ENTRY(numpy, DLB_FAMILY_NUMPY)
ENTRY(torch, DLB_FAMILY_TORCH)
ENTRY(jax, DLB_FAMILY_JAX)
ENTRY(dlbridge, DLB_FAMILY_OWN)
ENTRY(tensorflow, DLB_FAMILY_OTHER)
ENTRY(cupy, DLB_FAMILY_CUPY)
ENTRY(paddle, DLB_FAMILY_OTHER)
ENTRY(mxnet, DLB_FAMILY_OTHER)
ENTRY(tvm, DLB_FAMILY_OTHER)
ENTRY(mlx, DLB_FAMILY_OTHER)
ENTRY(pyarrow, DLB_FAMILY_OTHER)
ENTRY(dpnp, DLB_FAMILY_OTHER)

static PyObject *call_any(PyObject *self, PyObject *const *args, Py_ssize_t count,
                          PyObject *names) {
    return dlb_call_as(self, DLB_FAMILY_NONE, NULL, args, count, names);
}

#define ROW(framework) {#framework, call_##framework}
static const struct {
    const char *framework;
    PyObject *(*function)(PyObject *, PyObject *const *, Py_ssize_t, PyObject *);
} entries[] = {
    ROW(numpy),  ROW(torch), ROW(jax), ROW(dlbridge), ROW(tensorflow), ROW(cupy),
    ROW(paddle), ROW(mxnet), ROW(tvm), ROW(mlx),      ROW(pyarrow),    ROW(dpnp),
};

static PyCFunction find_entry(const char *framework) {
    if (framework == NULL)
        return (PyCFunction)(void (*)(void))call_any;
    for (size_t i = 0; i < sizeof entries / sizeof *entries; i++)
        if (strcmp(entries[i].framework, framework) == 0)
            return (PyCFunction)(void (*)(void))entries[i].function;
    PyErr_Format(PyExc_ValueError, "bind_kernel: no framework is called '%s'",
                 framework);
    return NULL;
}

static dlb_bound_call *make_bound(PyCFunction function, const char *name,
                                  const char *doc) {
    size_t name_size = strlen(name) + 1, doc_size = strlen(doc) + 1;
    dlb_bound_call *made = malloc(sizeof *made + name_size + doc_size);
    if (made == NULL)
        return NULL;
    memcpy(made->texts, name, name_size);
    memcpy(made->texts + name_size, doc, doc_size);
    made->definition = (PyMethodDef){
        made->texts, function, METH_FASTCALL | METH_KEYWORDS, made->texts + name_size};
    return made;
}

/* bind_kernel(kernel, framework, name, doc, module=None) -> builtin function */
static PyObject *bind_kernel(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *kernel, *home = NULL;
    const char *framework, *name, *doc;
    if (!PyArg_ParseTuple(args, "O!zss|U:bind_kernel", &dlb_KernelType, &kernel,
                          &framework, &name, &doc, &home))
        return NULL;
    PyCFunction function = find_entry(framework);
    if (function == NULL)
        return NULL;
    dlb_bound_call *made = make_bound(function, name, doc);
    if (made == NULL)
        return PyErr_NoMemory();
    dlb_kernel_object *self = (dlb_kernel_object *)kernel;
    made->next = self->bound;
    self->bound = made;
    return PyCFunction_NewEx(&made->definition, kernel, home);
}

void dlb_free_bound_calls(dlb_kernel_object *self) {
    dlb_bound_call *next;
    for (dlb_bound_call *at = self->bound; at != NULL; at = next) {
        next = at->next;
        free(at);
    }
}

/* seal_kernel_type(type): a subclass of KernelBase whose `__call__` is written in
 * Python, for compilers that look into it, is called in C all the same. */
static PyObject *seal_kernel_type(PyObject *Py_UNUSED(module), PyObject *type) {
    PyTypeObject *sealed = (PyTypeObject *)type;
    if (!PyType_Check(type) || !PyType_IsSubtype(sealed, &dlb_KernelType))
        return PyErr_Format(PyExc_TypeError,
                            "seal_kernel_type: expected a subclass of KernelBase");
    sealed->tp_call = PyVectorcall_Call;
    sealed->tp_flags |= Py_TPFLAGS_HAVE_VECTORCALL;
    Py_RETURN_NONE;
}

/* What a call of three arguments costs at least: the measure of benchmarks. */
static PyObject *do_nothing(PyObject *Py_UNUSED(module),
                            PyObject *const *Py_UNUSED(args),
                            Py_ssize_t Py_UNUSED(count)) {
    Py_RETURN_NONE;
}

PyMethodDef dlb_call_functions[] = {
    {"bind_kernel", bind_kernel, METH_VARARGS,
     "bind_kernel($module, kernel, framework, name, doc, module=..., /)\n--\n\nThe "
     "call of a kernel as a builtin function."},
    {"seal_kernel_type", seal_kernel_type, METH_O,
     "seal_kernel_type($module, kind, /)\n--\n\nCall a subclass's kernels in C "
     "although its `__call__` is Python."},
    {"do_nothing", (PyCFunction)(void (*)(void))do_nothing, METH_FASTCALL,
     "do_nothing($module, /, *args)\n--\n\nTake any arguments and return None."},
    {"jax_direct_open", dlb_jax_direct_open, METH_O,
     "jax_direct_open($module, kind, /)\n--\n\nLend the memory of this array type to "
     "kernels."},
    {"cupy_open", dlb_cupy_open, METH_VARARGS,
     "cupy_open($module, kind, current_stream, /)\n--\n\nLend the memory of CuPy's "
     "arrays."},
    {NULL, NULL, 0, NULL},
};

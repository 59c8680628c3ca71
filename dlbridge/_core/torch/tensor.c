/* What must be known of a torch.Tensor before its exchange table may export it.
 *
 * torch's table hands out conjugate, negative and gradient-tracking tensors as if they
 * were plain memory. Asking Python costs more than the export itself, so the predicates
 * are called in libtorch, found by symbol name: no torch headers, one binary for many
 * versions. The adapter tests them on known tensors before it lets this file answer;
 * without them every tensor takes the Python path. */
#include "torch/torch.h"

#include <dlfcn.h>

typedef bool (*tensor_predicate)(const void *tensor);
typedef bool (*impl_predicate)(const void *impl);

static struct {
    tensor_predicate is_neg, is_conj, is_zerotensor;
    impl_predicate requires_grad;
    PyTypeObject *type; /* torch.Tensor */
    PyObject *int8, *uint8, *dtype_name;
} guard;
Py_ssize_t dlb_torch_word;

static const struct {
    const char *library_index, *symbol;
    void **target;
} symbols[] = {
    {"cpu", "_ZN2at6native6is_negERKNS_6TensorE", (void **)&guard.is_neg},
    {"cpu", "_ZN2at6native7is_conjERKNS_6TensorE", (void **)&guard.is_conj},
    {"cpu", "_ZN2at6native14_is_zerotensorERKNS_6TensorE",
     (void **)&guard.is_zerotensor},
    {"c10", "_ZNK3c1010TensorImpl13requires_gradEv", (void **)&guard.requires_grad},
};

static int find_symbols(const char *cpu_path, const char *c10_path) {
    void *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    void *c10 = dlopen(c10_path, RTLD_LAZY | RTLD_NOLOAD);
    int missing = cpu == NULL || c10 == NULL;
    for (size_t i = 0; !missing && i < sizeof symbols / sizeof *symbols; i++) {
        *symbols[i].target =
            dlsym(symbols[i].library_index[1] == 'p' ? cpu : c10, symbols[i].symbol);
        missing = *symbols[i].target == NULL;
    }
    return missing;
}

/* The object holds an at::Tensor, which is one pointer; `_cdata` tells its value. */
static Py_ssize_t find_word(PyObject *tensor) {
    PyObject *address = PyObject_GetAttrString(tensor, "_cdata");
    void *impl = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (impl == NULL)
        return 0;
    Py_ssize_t size = Py_TYPE(tensor)->tp_basicsize;
    for (Py_ssize_t at = sizeof(PyObject); at + (Py_ssize_t)sizeof(void *) <= size;
         at += 8)
        if (*(void **)((char *)tensor + at) == impl)
            return at;
    return 0;
}

/* torch_guard_open(libtorch_cpu, libc10, sample, int8, uint8) -> whether the guard can
 * answer */
PyObject *dlb_torch_guard_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *c10_path;
    PyObject *sample, *int8, *uint8;
    dlb_torch_word = 0;
    if (!PyArg_ParseTuple(args, "zzOOO:torch_guard_open", &cpu_path, &c10_path, &sample,
                          &int8, &uint8))
        return NULL;
    if (cpu_path == NULL || c10_path == NULL || find_symbols(cpu_path, c10_path))
        Py_RETURN_FALSE;
    Py_XSETREF(guard.type, (PyTypeObject *)Py_NewRef(Py_TYPE(sample)));
    Py_XSETREF(guard.int8, Py_NewRef(int8));
    Py_XSETREF(guard.uint8, Py_NewRef(uint8));
    if (guard.dtype_name == NULL)
        guard.dtype_name = PyUnicode_InternFromString("dtype");
    dlb_torch_word = find_word(sample);
    PyErr_Clear();
    return PyBool_FromLong(dlb_torch_word != 0);
}

bool dlb_torch_is_plain(PyObject *tensor) {
    if (dlb_torch_word == 0)
        return false;
    const char *impl = dlb_torch_impl(tensor);
    const void *handle = dlb_torch_handle(tensor);
    if (impl == NULL || guard.requires_grad(impl))
        return false;
    return dlb_torch_has_plain_keys(impl) ||
           (!guard.is_neg(handle) && !guard.is_conj(handle) &&
            !guard.is_zerotensor(handle));
}

bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl) {
    return !dlb_torch_has_plain_keys(dlb_torch_impl(tensor)) ||
           dlb_torch_has_memory(tensor, dl);
}

bool dlb_torch_is_byte_type(PyObject *tensor) {
    PyObject *dtype = PyObject_GetAttr(tensor, guard.dtype_name);
    bool known = dtype != NULL && (dtype == guard.int8 || dtype == guard.uint8);
    Py_XDECREF(dtype);
    PyErr_Clear();
    return known;
}

PyObject *dlb_torch_guard_allows(PyObject *Py_UNUSED(module), PyObject *tensor) {
    if (dlb_torch_word == 0 || !PyObject_TypeCheck(tensor, guard.type))
        Py_RETURN_FALSE;
    return PyBool_FromLong(dlb_torch_is_plain(tensor));
}

/* C++ functions of torch that queries call where no place of a word is proved: each by
 * its whole mangled name, which holds the types of its arguments, so that a version
 * with other arguments has no function of that name. No word of an object is read.
 *
 * They take the TensorImpl that Tensor._cdata says, or an at::Tensor, which is one
 * pointer to it. Where torch can be asked for an at::Tensor (2.14 and later), both are
 * compared with that before anything else. The keys of a tensor have no such function.
 * Of the tensors that are exactly of type torch.Tensor, those whose memory is not their
 * values either have no memory that the exchange table exports, or are told apart here;
 * the Python side tries every kind, and closes all of it on any surprise. */
#include "torch/torch.h"
#include "layout/layout.h"

#include <dlfcn.h>
#include <string.h>

static bool is_open;
static bool (*is_functional)(const void *tensor);
static const char functional_symbol[] =
    "_ZN2at17functionalization4impl18isFunctionalTensorERKNS_6TensorE";

bool dlb_torch_has_functions(void) {
    return is_open;
}

/* The descriptor of Tensor._cdata, never released, or NULL. Looking it up takes as long
 * as reading it. */
static _Atomic(PyGetSetDescrObject *) cdata;

static void find_cdata(PyTypeObject *tensor_type) {
    PyObject *found = PyObject_GetAttrString((PyObject *)tensor_type, "_cdata");
    PyGetSetDescrObject *none = NULL;
    bool is_read = found != NULL && Py_IS_TYPE(found, &PyGetSetDescr_Type) &&
                   ((PyGetSetDescrObject *)found)->d_getset->get != NULL;
    if (!is_read ||
        !atomic_compare_exchange_strong(&cdata, &none, (PyGetSetDescrObject *)found))
        Py_XDECREF(found);
    dlb_drop_error();
}

static PyObject *read_cdata(PyObject *x) {
    static _Atomic(PyObject *) kept;
    PyGetSetDescrObject *known = atomic_load_explicit(&cdata, memory_order_acquire);
    if (known != NULL && PyObject_TypeCheck(x, PyDescr_TYPE(known)))
        return known->d_getset->get(x, known->d_getset->closure);
    PyObject *name = dlb_kept_name(&kept, "_cdata");
    return name ? PyObject_GetAttr(x, name) : NULL;
}

const void *dlb_torch_query_impl(PyObject *x) {
    PyObject *address = read_cdata(x);
    const void *impl = address ? PyLong_AsVoidPtr(address) : NULL;
    Py_XDECREF(address);
    if (impl == NULL && !PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "torch: a tensor without a TensorImpl");
    return impl;
}

bool dlb_torch_holds_values(const void *impl) {
    return !dlb_internals.is_neg(&impl) && !dlb_internals.is_conj(&impl) &&
           !dlb_internals.is_zerotensor(&impl) && !is_functional(&impl);
}

bool dlb_torch_is_usual(const void *impl) {
    return dlb_torch_holds_values(impl) && !dlb_torch_wants_gradient(&impl) &&
           (!dlb_internals.is_inference(&impl) || dlb_internals.inference_enabled());
}

bool dlb_torch_has_known_dtype(const void *impl) {
    int32_t number = -1;
    return dlb_shim.dtype((dlb_torch_tensor)(void *)&impl, &number) == 0 &&
           dlb_shim_dtype(number).bits >= 8;
}

bool dlb_torch_is_reached(const void *impl, const DLTensor *dl) {
    dlb_torch_tensor tensor = (dlb_torch_tensor)(void *)&impl;
    int64_t bytes = 0, offset = 0, extent = dlb_torch_extent(dl);
    if (extent == 0)
        return true;
    return dl->data != NULL && dlb_shim.storage_size(tensor, &bytes) == 0 &&
           dlb_shim.storage_offset(tensor, &offset) == 0 &&
           dlb_packed_bytes(dl->dtype, 0, offset + extent) <= bytes;
}

bool dlb_torch_lies_at(const void *impl, const DLTensor *dl) {
    dlb_torch_tensor tensor = (dlb_torch_tensor)(void *)&impl;
    int32_t dtype = -1, device = -1;
    int64_t ndim = -1, *shape, *strides;
    void *data;
    if (dlb_shim.dtype(tensor, &dtype) != 0 ||
        dlb_dtype_key(dlb_shim_dtype(dtype)) != dlb_dtype_key(dl->dtype) ||
        dlb_shim.device_type(tensor, &device) != 0 ||
        device != dlb_shim_device_type(kDLCPU) || dlb_shim.ndim(tensor, &ndim) != 0 ||
        ndim != dl->ndim || dlb_shim.sizes(tensor, &shape) != 0 ||
        dlb_shim.strides(tensor, &strides) != 0 ||
        dlb_shim.data_ptr(tensor, &data) != 0 ||
        data != (char *)dl->data + dl->byte_offset)
        return false;
    for (int32_t i = 0; i < dl->ndim; i++)
        if (shape[i] != dl->shape[i] || (strides[i] != dl->strides[i] && shape[i] != 1))
            return false;
    return dlb_torch_is_reached(impl, dl);
}

/* ---- opening it, for Python ---- */

/* Whether an at::Tensor is one pointer to what `_cdata` says, as far as torch can be
 * asked; -1 with an exception. */
static int is_one_pointer(void *library, PyObject *x) {
    int (*from_object)(PyObject *x, dlb_torch_tensor *tensor);
    void *found = dlsym(library, "torch_tensor_from_pyobject");
    memcpy(&from_object, &found, sizeof found);
    const void *impl = dlb_torch_query_impl(x), *first = impl;
    dlb_torch_tensor tensor = NULL;
    if (impl == NULL)
        return -1;
    if (found == NULL)
        return 1;
    if (from_object(x, &tensor) != 0 || tensor == NULL)
        return 0;
    memcpy(&first, tensor, sizeof first);
    dlb_shim.delete_tensor(tensor);
    return first == impl;
}

/* torch_functions_open(libtorch_cpu, libc10, sample) -> whether all were found and take
 * what they are given: the sample is a plain tensor with elements. */
static PyObject *open_functions(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *c10_path;
    PyObject *sample;
    is_open = false;
    if (!PyArg_ParseTuple(args, "ssO:torch_functions_open", &cpu_path, &c10_path,
                          &sample))
        return NULL;
    find_cdata(Py_TYPE(sample));
    void *library = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    void *found = library ? dlsym(library, functional_symbol) : NULL;
    memcpy(&is_functional, &found, sizeof found);
    if (found == NULL || dlb_internals_load(cpu_path, NULL) != NULL ||
        dlb_shim_open(cpu_path, NULL) != NULL || !dlb_torch_find_thread(c10_path))
        Py_RETURN_FALSE;
    int status = is_one_pointer(library, sample);
    if (status < 0)
        return NULL;
    is_open = status == 1;
    return PyBool_FromLong(is_open);
}

/* torch_functions_learn(): called under torch.inference_mode. */
static PyObject *learn_functions(PyObject *Py_UNUSED(module),
                                 PyObject *Py_UNUSED(unused)) {
    return PyBool_FromLong(is_open && dlb_torch_learn_inference());
}

/* torch_functions_close(): queries of Python's functions serve alone. */
static PyObject *close_functions(PyObject *Py_UNUSED(module),
                                 PyObject *Py_UNUSED(unused)) {
    is_open = false;
    Py_RETURN_NONE;
}

PyMethodDef dlb_torch_function_functions[] = {
    {"torch_functions_open", open_functions, METH_VARARGS,
     "torch_functions_open($module, libtorch_cpu, libc10, sample, /)\n--\n\nFind the "
     "C++ functions that queries of torch call."},
    {"torch_functions_learn", learn_functions, METH_NOARGS,
     "torch_functions_learn($module, /)\n--\n\nLearn what inference mode looks like."},
    {"torch_functions_close", close_functions, METH_NOARGS,
     "torch_functions_close($module, /)\n--\n\nCall no C++ functions in queries."},
    {NULL, NULL, 0, NULL},
};

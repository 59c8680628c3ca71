/* New tensors as torch.empty makes them, at half its price: by the stable C functions
 * of libtorch, which let no C++ exception through, and the function that makes the
 * Python object. */
#include "torch_guard.h"

#include <dlfcn.h>

typedef void *handle; /* an at::Tensor on the heap */

static struct {
    bool open;
    int32_t (*empty)(int64_t ndim, const int64_t *shape, const int64_t *strides,
                     int32_t dtype, int32_t device_type, int32_t device_index,
                     handle *made);
    int32_t (*drop)(handle tensor);
    PyObject *(*wrap)(handle tensor); /* takes a reference of its own */
} allocator;

/* Numbers of torch's dtypes, part of its ABI: by code and log2 of the bits. */
#define NONE (-1)
static const int8_t numbers[][8] = {
    [kDLInt] = {NONE, NONE, NONE, 1, 2, 3, 4, NONE},
    [kDLUInt] = {NONE, NONE, NONE, 0, 27, 28, 29, NONE},
    [kDLFloat] = {NONE, NONE, NONE, NONE, 5, 6, 7, NONE},
    [kDLOpaqueHandle] = {NONE, NONE, NONE, NONE, NONE, NONE, NONE, NONE},
    [kDLBfloat] = {NONE, NONE, NONE, NONE, 15, NONE, NONE, NONE},
    [kDLComplex] = {NONE, NONE, NONE, NONE, NONE, NONE, 9, 10},
    [kDLBool] = {NONE, NONE, NONE, 11, NONE, NONE, NONE, NONE},
};

static int32_t number_of(DLDataType dtype) {
    if (dtype.code > kDLBool || dtype.lanes != 1 || dtype.bits < 8 ||
        dtype.bits > 128 || (dtype.bits & (dtype.bits - 1)) != 0)
        return NONE;
    return numbers[dtype.code][__builtin_ctz(dtype.bits)];
}

/* torch_allocate_open(libtorch_cpu, libtorch_python) -> whether all was found */
PyObject *dlb_torch_allocate_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *python_path;
    if (!PyArg_ParseTuple(args, "ss:torch_allocate_open", &cpu_path, &python_path))
        return NULL;
    void *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    void *python = dlopen(python_path, RTLD_LAZY | RTLD_NOLOAD);
    if (cpu != NULL && python != NULL) {
        *(void **)&allocator.empty = dlsym(cpu, "aoti_torch_empty_strided");
        *(void **)&allocator.drop = dlsym(cpu, "aoti_torch_delete_tensor_object");
        *(void **)&allocator.wrap =
            dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    }
    allocator.open = allocator.empty && allocator.drop && allocator.wrap;
    return PyBool_FromLong(allocator.open);
}

PyObject *dlb_torch_allocate(int32_t ndim, const int64_t *shape, DLDataType dtype) {
    int64_t strides[DLB_MAX_NDIM];
    handle made = NULL;
    int32_t number = number_of(dtype);
    if (!allocator.open || number == NONE)
        return NULL;
    dlb_row_major_strides(ndim, shape, strides);
    if (allocator.empty(ndim, shape, strides, number, 0, 0, &made) != 0 || made == NULL)
        return NULL;
    PyObject *tensor = allocator.wrap(made);
    allocator.drop(made);
    return tensor;
}

/* torch_allocate(shape, dtype) -> a tensor, or None; (): never again */
PyObject *dlb_torch_allocate_call(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *shape, *triple;
    int64_t dims[DLB_MAX_NDIM];
    DLDataType dtype;
    if (PyTuple_GET_SIZE(args) == 0) {
        allocator.open = false;
        Py_RETURN_NONE;
    }
    if (!PyArg_ParseTuple(args, "OO:torch_allocate", &shape, &triple) ||
        dlb_parse_dtype(triple, &dtype) < 0)
        return NULL;
    int ndim = dlb_parse_dims(shape, dims, "shape");
    PyObject *tensor = ndim < 0 ? NULL : dlb_torch_allocate(ndim, dims, dtype);
    if (tensor == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return tensor;
}

/* The memory of torch.Tensors by the stable C functions of libtorch, which let no C++
 * exception through: that of a tensor lent to a kernel at a third of the price of the
 * exchange table, that of a new one at half the price of torch.empty. */
#include "torch/torch.h"
#include "cuda/cuda.h"
#include "layout/layout.h"

#include <dlfcn.h>
#include <string.h>

typedef void *handle; /* an at::Tensor on the heap */

static struct {
    bool can_borrow, can_allocate;
    int32_t (*data)(const void *tensor, void **pointer);
    int32_t (*dim)(const void *tensor, int64_t *ndim);
    int32_t (*sizes)(const void *tensor, int64_t **shape);
    int32_t (*strides)(const void *tensor, int64_t **strides);
    int32_t (*dtype)(const void *tensor, int32_t *number);
    int32_t (*device)(const void *tensor, int32_t *index);
    int32_t (*stream)(int32_t device, void **stream); /* may be missing */
    int32_t (*empty)(int64_t ndim, const int64_t *shape, const int64_t *strides,
                     int32_t dtype, int32_t device_type, int32_t device_index,
                     handle *made);
    int32_t (*drop)(handle tensor);
    PyObject *(*wrap)(handle tensor); /* takes a reference of its own */
    PyObject *capsule;                /* of the table */
    const DLPackExchangeAPI *table;
} memory;

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

/* ---- lending ---- */

/* The inverse of `numbers`; bits 0: leave it to the table. */
static DLDataType by_number[32];

static void invert_numbers(void) {
    for (int code = 0; code <= kDLBool; code++)
        for (int k = 3; k < 8; k++)
            if (numbers[code][k] != NONE)
                by_number[numbers[code][k]] =
                    (DLDataType){(uint8_t)code, (uint8_t)(1 << k), 1};
}

/* torch's table says what it has no number for; integers of odd widths look like bytes
 * to it. */
static int borrow_by_table(PyObject *x, DLTensor *lent) {
    if (memory.table->dltensor_from_py_object_no_sync(x, lent) != 0) {
        PyErr_Clear();
        return DLB_DECLINED;
    }
    return lent->dtype.bits == 8 && lent->dtype.code <= kDLUInt ? DLB_DECLINED : 0;
}

int dlb_torch_borrow(PyObject *x, DLTensor *lent) {
    const void *tensor = dlb_torch_handle(x);
    int32_t number = NONE;
    int64_t ndim;
    if (!memory.can_borrow || memory.dtype(tensor, &number) != 0 || number < 0 ||
        number >= 32 || by_number[number].bits == 0)
        return memory.table ? borrow_by_table(x, lent) : DLB_DECLINED;
    if (memory.data(tensor, &lent->data) != 0 || memory.dim(tensor, &ndim) != 0 ||
        memory.sizes(tensor, &lent->shape) != 0 ||
        memory.strides(tensor, &lent->strides) != 0)
        return DLB_DECLINED;
    lent->device = (DLDevice){kDLCPU, 0};
    if (dlb_torch_is_cuda(dlb_torch_impl(x))) {
        lent->device.device_type = kDLCUDA;
        if (memory.device(tensor, &lent->device.device_id) != 0)
            return DLB_DECLINED;
    }
    lent->ndim = (int32_t)ndim;
    lent->dtype = by_number[number];
    lent->byte_offset = 0;
    return 0;
}

/* ---- new tensors ---- */

enum { TORCH_CPU, TORCH_CUDA }; /* numbers of device types, part of torch's ABI */

PyObject *dlb_torch_allocate(DLDevice device, int32_t ndim, const int64_t *shape,
                             DLDataType dtype) {
    int32_t type = device.device_type == kDLCUDA ? TORCH_CUDA : TORCH_CPU;
    int64_t strides[DLB_MAX_NDIM];
    handle made = NULL;
    int32_t number = number_of(dtype);
    if (!memory.can_allocate || number == NONE ||
        (type == TORCH_CPU && device.device_type != kDLCPU))
        return NULL;
    dlb_row_major_strides(ndim, shape, strides);
    if (memory.empty(ndim, shape, strides, number, type, device.device_id, &made) !=
            0 ||
        made == NULL)
        return NULL;
    PyObject *tensor = memory.wrap(made);
    memory.drop(made);
    return tensor;
}

/* ---- streams ---- */

uintptr_t dlb_torch_stream(int32_t device) {
    void *stream = NULL;
    if (memory.stream == NULL || memory.stream(device, &stream) != 0)
        return 0;
    return stream ? (uintptr_t)stream : DLB_STREAM_LEGACY;
}

/* torch_stream_open(libtorch_cuda or None) -> whether streams can be asked for */
PyObject *dlb_torch_stream_open(PyObject *Py_UNUSED(module), PyObject *path) {
    const char *text = path == Py_None ? NULL : PyUnicode_AsUTF8(path);
    void *library = text ? dlopen(text, RTLD_LAZY | RTLD_NOLOAD) : NULL;
    *(void **)&memory.stream =
        library ? dlsym(library, "aoti_torch_get_current_cuda_stream") : NULL;
    return PyErr_Occurred() ? NULL : PyBool_FromLong(memory.stream != NULL);
}

/* torch_stream(device) -> the current stream's number, or 0 */
PyObject *dlb_torch_stream_call(PyObject *Py_UNUSED(module), PyObject *device) {
    int number = PyLong_AsLong(device);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(dlb_torch_stream(number));
}

/* ---- opening both ---- */

static const struct {
    const char *symbol;
    void *target;
} symbols[] = {
    {"aoti_torch_get_data_ptr", &memory.data},
    {"aoti_torch_get_dim", &memory.dim},
    {"aoti_torch_get_sizes", &memory.sizes},
    {"aoti_torch_get_strides", &memory.strides},
    {"aoti_torch_get_dtype", &memory.dtype},
    {"aoti_torch_get_device_index", &memory.device},
    {"aoti_torch_empty_strided", &memory.empty},
    {"aoti_torch_delete_tensor_object", &memory.drop},
};

/* torch_memory_open(libtorch_cpu, libtorch_python, table) -> whether all was found */
PyObject *dlb_torch_memory_open(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *python_path;
    PyObject *capsule;
    memory.can_borrow = memory.can_allocate = false;
    if (!PyArg_ParseTuple(args, "ssO:torch_memory_open", &cpu_path, &python_path,
                          &capsule))
        return NULL;
    memory.table = dlb_parse_table(capsule);
    if (memory.table == NULL)
        return NULL;
    Py_XSETREF(memory.capsule, Py_NewRef(capsule));
    if (memory.table->dltensor_from_py_object_no_sync == NULL)
        memory.table = NULL;
    void *cpu = dlopen(cpu_path, RTLD_LAZY | RTLD_NOLOAD);
    void *python = dlopen(python_path, RTLD_LAZY | RTLD_NOLOAD);
    bool found = cpu != NULL && python != NULL;
    for (size_t i = 0; found && i < sizeof symbols / sizeof *symbols; i++) {
        void *address = dlsym(cpu, symbols[i].symbol);
        memcpy(symbols[i].target, &address, sizeof address);
        found = address != NULL;
    }
    if (found)
        *(void **)&memory.wrap =
            dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    invert_numbers();
    memory.can_borrow = found;
    memory.can_allocate = found && memory.wrap != NULL;
    return PyBool_FromLong(memory.can_allocate);
}

/* torch_memory_close(borrow, allocate): never again what is True. */
PyObject *dlb_torch_memory_close(PyObject *Py_UNUSED(module), PyObject *args) {
    int borrow, allocate;
    if (!PyArg_ParseTuple(args, "pp:torch_memory_close", &borrow, &allocate))
        return NULL;
    memory.can_borrow &= !borrow;
    memory.can_allocate &= !allocate;
    Py_RETURN_NONE;
}

/* torch_borrow(tensor) -> (data, shape, strides, dtype, device), or None */
PyObject *dlb_torch_borrow_call(PyObject *Py_UNUSED(module), PyObject *tensor) {
    DLTensor lent;
    if (!dlb_torch_is_exact(tensor) || dlb_torch_borrow(tensor, &lent) != 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(KNN(iii)(ii))", (unsigned long long)(uintptr_t)lent.data,
                         dlb_dims_tuple(lent.shape, lent.ndim),
                         dlb_dims_tuple(lent.strides, lent.ndim), lent.dtype.code,
                         lent.dtype.bits, lent.dtype.lanes,
                         (int)lent.device.device_type, (int)lent.device.device_id);
}

/* torch_allocate(shape, dtype, device=(1, 0)) -> a tensor, or None */
PyObject *dlb_torch_allocate_call(PyObject *Py_UNUSED(module), PyObject *args) {
    PyObject *shape, *triple;
    int64_t dims[DLB_MAX_NDIM];
    DLDataType dtype;
    int type = kDLCPU, id = 0;
    if (!PyArg_ParseTuple(args, "OO|(ii):torch_allocate", &shape, &triple, &type,
                          &id) ||
        dlb_parse_dtype(triple, &dtype) < 0)
        return NULL;
    int ndim = dlb_parse_dims(shape, dims, "shape");
    PyObject *tensor =
        ndim < 0 ? NULL : dlb_torch_allocate((DLDevice){type, id}, ndim, dims, dtype);
    if (tensor == NULL && !PyErr_Occurred())
        Py_RETURN_NONE;
    return tensor;
}

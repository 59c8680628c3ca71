/* The memory of torch.Tensors by the stable C functions of libtorch, which let no C++
 * exception through: that of a tensor borrowed to a kernel at a third of the price of
 * the exchange table, that of a new one at half the price of torch.empty. */
#include "torch/torch.h"
#include "cuda/cuda.h"

#include <dlfcn.h>
#include <string.h>

static struct {
    bool can_borrow, can_allocate;
    PyObject *(*wrap)(const void *tensor); /* takes a reference of its own */
    PyObject *capsule;                     /* of the table */
    const DLPackExchangeAPI *table;
} memory;

/* ---- borrowing ---- */

/* torch's table says what it has no number for; integers of other widths look like
 * bytes to it. */
static int borrow_by_table(PyObject *x, DLTensor *borrowed) {
    if (memory.table->dltensor_from_py_object_no_sync(x, borrowed) != 0) {
        PyErr_Clear();
        return DLB_DECLINED;
    }
    bool is_unknown = borrowed->dtype.bits == 8 && borrowed->dtype.code <= kDLUInt;
    return is_unknown || borrowed->ndim > DLB_MAX_NDIM ? DLB_DECLINED : 0;
}

int dlb_torch_borrow(PyObject *x, DLTensor *borrowed) {
    dlb_torch_tensor tensor = (dlb_torch_tensor)dlb_torch_handle(x);
    int32_t number = -1;
    int64_t ndim;
    if (!memory.can_borrow || dlb_shim.dtype(tensor, &number) != 0 ||
        (borrowed->dtype = dlb_shim_dtype(number)).bits < 8)
        return memory.table ? borrow_by_table(x, borrowed) : DLB_DECLINED;
    if (dlb_shim.data_ptr(tensor, &borrowed->data) != 0 ||
        dlb_shim.ndim(tensor, &ndim) != 0 || ndim > DLB_MAX_NDIM ||
        dlb_shim.sizes(tensor, &borrowed->shape) != 0 ||
        dlb_shim.strides(tensor, &borrowed->strides) != 0)
        return DLB_DECLINED;
    borrowed->device = (DLDevice){kDLCPU, 0};
    if (dlb_torch_is_cuda(dlb_torch_impl(x))) {
        borrowed->device.device_type = kDLCUDA;
        if (dlb_shim.device_index(tensor, &borrowed->device.device_id) != 0)
            return DLB_DECLINED;
    }
    borrowed->ndim = (int32_t)ndim;
    borrowed->byte_offset = 0;
    return 0;
}

/* ---- new tensors ---- */

PyObject *dlb_torch_allocate(DLDevice device, int32_t ndim, const int64_t *shape,
                             DLDataType dtype) {
    dlb_torch_tensor made;
    int32_t number = dlb_shim_dtype_number(dtype);
    int32_t type = dlb_shim_device_type(device.device_type);
    if (!memory.can_allocate || number < 0 || type < 0 ||
        dlb_shim_empty(ndim, shape, number, type, device.device_id, &made) < 0)
        return NULL;
    PyObject *tensor = memory.wrap(made);
    dlb_shim.delete_tensor(made);
    return tensor;
}

/* ---- streams ---- */

uintptr_t dlb_torch_stream(int32_t device) {
    void *stream = NULL;
    if (dlb_shim.cuda_stream == NULL || dlb_shim.cuda_stream(device, &stream) != 0)
        return 0;
    return stream ? (uintptr_t)stream : DLB_STREAM_LEGACY;
}

/* torch_stream_open(libtorch_cuda or None) -> whether streams can be asked for */
static PyObject *open_stream(PyObject *Py_UNUSED(module), PyObject *path) {
    const char *text = path == Py_None ? NULL : PyUnicode_AsUTF8(path);
    bool is_found = dlb_shim_open_cuda(text);
    return PyErr_Occurred() ? NULL : PyBool_FromLong(is_found);
}

/* torch_stream(device) -> the current stream's number, or 0 */
static PyObject *current_stream(PyObject *Py_UNUSED(module), PyObject *device) {
    int number = PyLong_AsLong(device);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return PyLong_FromUnsignedLongLong(dlb_torch_stream(number));
}

/* ---- opening both ---- */

/* torch_memory_open(libtorch_cpu, libtorch_python, table or None) -> whether all was
 * found */
static PyObject *open_memory(PyObject *Py_UNUSED(module), PyObject *args) {
    const char *cpu_path, *python_path;
    PyObject *capsule;
    memory.can_borrow = memory.can_allocate = false;
    if (!PyArg_ParseTuple(args, "ssO:torch_memory_open", &cpu_path, &python_path,
                          &capsule))
        return NULL;
    memory.table = capsule == Py_None ? NULL : dlb_parse_table(capsule);
    if (memory.table == NULL && capsule != Py_None)
        return NULL;
    Py_XSETREF(memory.capsule, Py_NewRef(capsule));
    if (memory.table != NULL && memory.table->dltensor_from_py_object_no_sync == NULL)
        memory.table = NULL;
    void *python = dlopen(python_path, RTLD_LAZY | RTLD_NOLOAD);
    memory.can_borrow =
        dlb_torch_word != 0 && python != NULL && dlb_shim_open(cpu_path, NULL) == NULL;
    if (memory.can_borrow)
        *(void **)&memory.wrap =
            dlsym(python, "_Z16THPVariable_WrapRKN2at10TensorBaseE");
    memory.can_allocate = memory.can_borrow && memory.wrap != NULL;
    return PyBool_FromLong(memory.can_allocate);
}

/* torch_memory_close(borrow, allocate): never again what is True. */
static PyObject *close_memory(PyObject *Py_UNUSED(module), PyObject *args) {
    int borrow, allocate;
    if (!PyArg_ParseTuple(args, "pp:torch_memory_close", &borrow, &allocate))
        return NULL;
    memory.can_borrow &= !borrow;
    memory.can_allocate &= !allocate;
    Py_RETURN_NONE;
}

/* torch_borrow(tensor) -> (data, shape, strides, dtype, device), or None */
static PyObject *borrow(PyObject *Py_UNUSED(module), PyObject *tensor) {
    DLTensor borrowed;
    if (!dlb_torch_is_exact(tensor) || dlb_torch_borrow(tensor, &borrowed) != 0)
        Py_RETURN_NONE;
    return Py_BuildValue("(KNN(iii)(ii))", (unsigned long long)(uintptr_t)borrowed.data,
                         dlb_dims_tuple(borrowed.shape, borrowed.ndim),
                         dlb_dims_tuple(borrowed.strides, borrowed.ndim),
                         borrowed.dtype.code, borrowed.dtype.bits, borrowed.dtype.lanes,
                         (int)borrowed.device.device_type,
                         (int)borrowed.device.device_id);
}

/* torch_allocate(shape, dtype, device=(1, 0)) -> a tensor, or None */
static PyObject *allocate(PyObject *Py_UNUSED(module), PyObject *args) {
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

PyMethodDef dlb_torch_memory_functions[] = {
    {"torch_memory_open", open_memory, METH_VARARGS,
     "torch_memory_open($module, libtorch_cpu, libtorch_python, table, /)\n--\n\nFind "
     "libtorch's functions for memory."},
    {"torch_memory_close", close_memory, METH_VARARGS,
     "torch_memory_close($module, borrow, allocate, /)\n--\n\nDo without those that "
     "lend, and those that allocate."},
    {"torch_borrow", borrow, METH_O,
     "torch_borrow($module, tensor, /)\n--\n\nWhat a kernel sees of a torch.Tensor."},
    {"torch_allocate", allocate, METH_VARARGS,
     "torch_allocate($module, shape, dtype, device=(1, 0), /)\n--\n\nA tensor as "
     "torch.empty makes it."},
    {"torch_stream_open", open_stream, METH_O,
     "torch_stream_open($module, libtorch_cuda, /)\n--\n\nFind libtorch's function for "
     "current streams."},
    {"torch_stream", current_stream, METH_O,
     "torch_stream($module, device, /)\n--\n\nTorch's current stream on a CUDA device, "
     "or 0."},
    {NULL, NULL, 0, NULL},
};

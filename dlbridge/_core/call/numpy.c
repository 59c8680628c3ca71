/* The last call of a kernel, with arrays of NumPy. */
#include "call/call.h"
#include "python/numpy.h"

bool dlb_recall_numpy(dlb_call *call, const dlb_remembered *known, int32_t first,
                      int32_t count, uint32_t written) {
    uintptr_t addresses = 0;
    int64_t *strides = call->dims + first * DLB_RECALL_NDIM;
    DLTensor *tensor = call->frame.tensors + first;
    for (int32_t i = first; i < first + count; i++, known++, tensor++) {
        PyArrayObject *array = (PyArrayObject *)call->objects[i];
        int needed =
            NPY_ARRAY_C_CONTIGUOUS | (written >> i & 1 ? NPY_ARRAY_WRITEABLE : 0);
        if (!PyArray_CheckExact(array) || PyArray_DESCR(array) != known->descr ||
            PyArray_NDIM(array) != known->ndim || PyArray_DATA(array) == NULL ||
            (PyArray_FLAGS(array) & needed) != needed)
            return false;
        int64_t step = 1;
        for (int k = known->ndim - 1; k >= 0; k--) {
            if (PyArray_DIM(array, k) != known->shape[k])
                return false;
            strides[k] = step;
            step *= known->shape[k];
        }
        tensor->data = PyArray_DATA(array);
        tensor->device = (DLDevice){kDLCPU, 0};
        tensor->ndim = known->ndim;
        tensor->dtype = known->dtype;
        tensor->shape = (int64_t *)PyArray_DIMS(array);
        tensor->strides = strides;
        tensor->byte_offset = 0;
        call->frame.flags[i] = 0;
        addresses |= (uintptr_t)PyArray_DATA(array);
        strides += DLB_RECALL_NDIM;
    }
    call->addresses |= addresses;
    return true;
}

/* Only the descriptors that live as long as NumPy can be told by their address. */
bool dlb_remember_numpy(PyObject *x, dlb_remembered *known) {
    PyArray_Descr *own = PyArray_DescrFromType(PyArray_TYPE((PyArrayObject *)x));
    known->descr = own;
    Py_XDECREF(own);
    return PyArray_DESCR((PyArrayObject *)x) == own;
}

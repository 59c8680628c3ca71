/* Memory for what a Python kernel kept against the rules: a copy, before the caller's
 * own goes away. */
#include "abi/python.h"
#include "cuda/copy.h"
#include "exchange/exchange.h"

#include <string.h>

/* The bytes from the lowest to the highest element; `first` is how far the first one is
 * from the lowest. */
static int64_t span_of(const DLTensor *tensor, int64_t *first) {
    int64_t itemsize = dlb_element_bits(tensor->dtype, 0) / 8;
    int64_t low = 0, high = itemsize;
    *first = 0;
    if (dlb_element_count(tensor) == 0)
        return 0;
    for (int32_t i = 0; i < tensor->ndim; i++) {
        int64_t reach = (tensor->shape[i] - 1) * tensor->strides[i] * itemsize;
        *(reach < 0 ? &low : &high) += reach;
    }
    *first = -low;
    return high - low;
}

/* A copy of the bytes, on the device that they are on. NULL: it cannot be made now. */
static dlb_buffer *copy_bytes(void *start, int64_t nbytes, DLDevice device,
                              dlb_access *access) {
    bool on_host = dlb_is_host(device);
    dlb_buffer *fresh = on_host ? dlb_buffer_allocate(nbytes, 64, false)
                                : dlb_cuda_allocate(device, nbytes);
    if (fresh == NULL || nbytes == 0)
        return fresh;
    if (on_host) {
        memcpy(fresh->data, start, (size_t)nbytes);
        return fresh;
    }
    int64_t step = 1;
    DLTensor from = {.data = start,
                     .device = device,
                     .ndim = 1,
                     .dtype = {kDLUInt, 8, 1},
                     .shape = &nbytes,
                     .strides = &step};
    DLTensor to = from;
    to.data = fresh->data;
    if (dlb_cuda_copy(&(dlb_cuda_operand){.dl = &to, .access = fresh->access},
                      &(dlb_cuda_operand){.dl = &from, .access = access}) == 0)
        return fresh;
    dlb_buffer_drop(fresh);
    return NULL;
}

/* The copy has the strides of the original, since the object keeps its own. */
bool dlb_save(PyObject *object, const DLTensor *tensor) {
    bool is_array = dlb_is_numpy(object);
    dlb_tensor *kept = is_array ? dlb_numpy_base(object)
                                : (dlb_is_tensor(object) ? (dlb_tensor *)object : NULL);
    if (kept == NULL || kept->dl.data != tensor->data ||
        !(dlb_is_host(tensor->device) || dlb_cuda_has_memory(tensor->device)) ||
        dlb_element_bits(tensor->dtype, 0) % 8)
        return false;
    int64_t first, nbytes = span_of(tensor, &first);
    dlb_buffer *fresh = copy_bytes((char *)tensor->data - first, nbytes, tensor->device,
                                   kept->buffer->access);
    if (fresh == NULL)
        return false;
    kept->dl.data = (char *)fresh->data + first;
    if (is_array)
        dlb_numpy_set_data(object, kept->dl.data);
    dlb_buffer *lent = kept->buffer;
    kept->buffer = fresh;
    dlb_buffer_drop(lent);
    return true;
}

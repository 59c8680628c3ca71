/* Memory for what a Python kernel kept against the rules: a copy, before the caller's
 * own goes away. */
#include "python_kernel.h"

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

/* The copy has the strides of the original, since the object keeps its own. */
bool dlb_save(PyObject *object, const DLTensor *tensor) {
    bool is_array = dlb_is_numpy(object);
    dlb_tensor *kept = is_array ? dlb_numpy_base(object)
                                : (dlb_is_tensor(object) ? (dlb_tensor *)object : NULL);
    if (kept == NULL || kept->dl.data != tensor->data || !dlb_is_host(tensor->device) ||
        dlb_element_bits(tensor->dtype, 0) % 8)
        return false;
    int64_t first, nbytes = span_of(tensor, &first);
    dlb_buffer *fresh = dlb_buffer_allocate(nbytes, 64, false);
    if (fresh == NULL)
        return false;
    if (nbytes > 0)
        memcpy(fresh->data, (char *)tensor->data - first, (size_t)nbytes);
    kept->dl.data = (char *)fresh->data + first;
    if (is_array)
        dlb_numpy_set_data(object, kept->dl.data);
    dlb_buffer *lent = kept->buffer;
    kept->buffer = fresh;
    dlb_buffer_drop(lent);
    return true;
}

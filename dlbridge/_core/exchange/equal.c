/* equal: compact tensors of numbers are compared here, all others in
 * tensor/values.py. */
#include "exchange/exchange.h"

#include <string.h>

enum { BLOCK = 1024 }; /* elements compared before the first look at the result */

/* Memory of other libraries need not be aligned: a fixed-size memcpy is one load. */
#define DEFINE_SAME(NAME, TYPE)                                                        \
    static bool same_##NAME(const char *a, const char *b, size_t count) {              \
        bool is_same = true;                                                           \
        for (size_t start = 0; is_same && start < count; start += BLOCK) {             \
            size_t end = count - start < BLOCK ? count : start + BLOCK;                \
            int differing = 0;                                                         \
            for (size_t i = start; i < end; i++) {                                     \
                TYPE x, y;                                                             \
                memcpy(&x, a + i * sizeof x, sizeof x);                                \
                memcpy(&y, b + i * sizeof y, sizeof y);                                \
                differing |= !(x == y);                                                \
            }                                                                          \
            is_same = differing == 0;                                                  \
        }                                                                              \
        return is_same;                                                                \
    }

DEFINE_SAME(float, float)
DEFINE_SAME(double, double)

static bool same_bytes(const char *a, const char *b, size_t count) {
    return count == 0 || memcmp(a, b, count) == 0;
}

typedef bool (*comparison)(const char *a, const char *b, size_t count);

/* How a dtype is compared, and how many units of it an element has; NULL: in Python. */
static comparison find_comparison(DLDataType dtype, size_t *units) {
    bool is_float = dtype.code == kDLFloat || dtype.code == kDLComplex;
    bool is_integer = dtype.code == kDLInt || dtype.code == kDLUInt;
    int parts = dtype.code == kDLComplex ? 2 : 1, width = dtype.bits / parts;
    *units = is_float ? (size_t)parts : (size_t)dtype.bits / 8;
    if (dtype.lanes != 1)
        return NULL;
    if (is_integer && dtype.bits >= 8)
        return same_bytes;
    if (is_float && width == 32)
        return same_float;
    return is_float && width == 64 ? same_double : NULL;
}

static bool is_same_kind(const DLTensor *a, const DLTensor *b) {
    size_t dims = (size_t)a->ndim * sizeof *a->shape;
    return a->ndim == b->ndim && (dims == 0 || memcmp(a->shape, b->shape, dims) == 0) &&
           dlb_dtype_key(a->dtype) == dlb_dtype_key(b->dtype);
}

static bool is_compact(const dlb_view *view) {
    return view->dl.device.device_type == kDLCPU && dlb_is_row_major(&view->dl) &&
           !(view->flags & DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED);
}

/* 1 or 0; -1: Python decides. */
static int compare(const dlb_view *a, const dlb_view *b) {
    size_t units;
    if (!is_same_kind(&a->dl, &b->dl))
        return 0;
    comparison same = find_comparison(a->dl.dtype, &units);
    if (same == NULL || !is_compact(a) || !is_compact(b))
        return -1;
    size_t count = (size_t)dlb_element_count(&a->dl) * units;
    if (count < 1 << 14)
        return same(a->dl.data, b->dl.data, count);
    int result;
    Py_BEGIN_ALLOW_THREADS
    result = same(a->dl.data, b->dl.data, count);
    Py_END_ALLOW_THREADS
    return result;
}

/* As `compare`; -2 with an error that is no Exception. */
static int take_and_compare(PyObject *x, PyObject *y) {
    dlb_view a, b;
    int status = dlb_take(x, &a);
    if (status != 0)
        return status == DLB_DECLINED ? -1 : -2;
    status = dlb_take(y, &b);
    if (status == 0) {
        status = compare(&a, &b);
        dlb_buffer_drop(b.buffer);
    } else
        status = status == DLB_DECLINED ? -1 : -2;
    dlb_buffer_drop(a.buffer);
    return status;
}

PyObject *dlb_equal(PyObject *Py_UNUSED(module), PyObject *const *args,
                    Py_ssize_t count, PyObject *names) {
    int result = count == 2 && names == NULL ? take_and_compare(args[0], args[1]) : -1;
    if (result == -2)
        return NULL;
    if (result >= 0)
        return PyBool_FromLong(result);
    if (dlb.slow_equal == NULL)
        return PyErr_Format(PyExc_RuntimeError, "dlbridge is not initialised");
    return PyObject_Vectorcall(dlb.slow_equal, args, (size_t)count, names);
}

/* The Python half of the core: its types, its state, and what its files need of each
 * other. */
#ifndef DLBRIDGE_OBJECT_H_
#define DLBRIDGE_OBJECT_H_

#ifndef PY_SSIZE_T_CLEAN
#define PY_SSIZE_T_CLEAN
#endif
#include <Python.h>

#include "core.h"

typedef struct {
    PyObject_VAR_HEAD /* Py_SIZE is 2 * ndim */
        DLTensor dl;  /* shape and strides point into dims */
    uint64_t flags;
    DLPackVersion version; /* of the producer's struct; ours for memory of our own */
    dlb_buffer *buffer;
    PyObject *weak_references;
    int64_t dims[];
} dlb_tensor;

/* Set once by the Python package (module.c: set_hooks). */
typedef struct {
    PyTypeObject *tensor_type;
    PyObject *make_dtype, *make_device, *classify, *slow_from_dlpack, *slow_convert,
        *refusal, *numpy_descr, *converters, *cuda_failure;
    PyObject *dtypes, *devices, *descrs; /* caches by packed number */
    long watchers; /* receipt logs that are open: the C paths decline */
} dlb_state;
extern dlb_state dlb;

extern PyTypeObject dlb_TensorType, dlb_BufferType, dlb_LimitsType, dlb_ConverterType;

typedef struct {
    PyObject_HEAD
    PyObject *name;
    dlb_limits limits;
} dlb_limits_object;

/* ---- buffer.c ---- */
dlb_buffer *dlb_buffer_of_object(PyObject *object);
PyObject *dlb_buffer_object(const dlb_buffer *buffer); /* borrowed, or NULL */
bool dlb_interpreter_is_gone(void);

/* ---- refusal.c ---- */
PyObject *dlb_refuse(const char *reason, const char *format, ...);
/* For a reason out of layout.c: the sentence of errors.REASONS and the numbers of the
 * tensor. */
PyObject *dlb_refuse_layout(const char *reason, const char *call,
                            const DLTensor *tensor);
/* The same for a reason out of dlb_take_*, which may be "memory" or "version", too. */
PyObject *dlb_refuse_take(const char *reason, const char *call, const DLTensor *tensor);

/* ---- arguments.c: Python values to C ---- */
int dlb_parse_dims(PyObject *sequence, int64_t *dims,
                   const char *name); /* -1, or the length */
int dlb_parse_dtype(PyObject *triple, DLDataType *dtype);
int dlb_parse_device(PyObject *pair, DLDevice *device);
PyObject *dlb_dims_tuple(const int64_t *dims, int32_t ndim);
const DLPackExchangeAPI *dlb_parse_table(PyObject *capsule);

/* ---- tensor.c ---- */
static inline bool dlb_is_tensor(PyObject *x) {
    return PyObject_TypeCheck(x, &dlb_TensorType);
}
PyObject *dlb_tensor_new(PyTypeObject *type,
                         dlb_view *view); /* steals the view's reference */
void dlb_tensor_view(dlb_tensor *tensor, dlb_view *view); /* retains the buffer */
PyObject *dlb_tensor_subview(PyObject *self, PyObject *args, PyObject *kwargs);
extern PyBufferProcs dlb_tensor_buffer_protocol;
int dlb_buffer_format(const char *format, Py_ssize_t itemsize, DLDataType *dtype);

/* ---- capsule.c ---- */
PyObject *dlb_capsule_of_view(dlb_view *view, bool versioned, uint64_t flags);
int dlb_take_capsule(PyObject *capsule, dlb_view *view, const char *call);
PyObject *dlb_tensor_dlpack(PyObject *self, PyObject *const *args, Py_ssize_t count,
                            PyObject *names);
PyObject *dlb_tensor_capsule(PyObject *self, PyObject *args, PyObject *kwargs);

/* ---- table.c: our C exchange table, and the use of others' ---- */
int dlb_add_exchange_table(PyTypeObject *type);
int dlb_take_table(PyObject *x, const DLPackExchangeAPI *table, dlb_view *view);
/* `to`: the stream that its framework works on; NULL asks the table. */
PyObject *dlb_give_table(dlb_view *view, const DLPackExchangeAPI *table,
                         const uintptr_t *to);
/* table_stream(table, device): the current stream of its framework. */
PyObject *dlb_table_stream(PyObject *module, PyObject *args);
PyObject *dlb_allocate_table(PyObject *module, PyObject *args);

/* ---- cuda_python.c ---- */
/* The exception of the last failure of this thread; NULL. */
PyObject *dlb_cuda_raise(const char *call);
/* dlb_view_lend under the GIL, which is released for the driver; -1 with an exception.
 */
PyObject *dlb_stream_number(uintptr_t stream);
int dlb_lend_to(dlb_view *view, dlb_stream to, const char *call);
/* A stream as `__dlpack__` and its like take it: the number that the standard gives it.
 */
int dlb_parse_stream(PyObject *stream, DLDevice device, uintptr_t *out,
                     const char *call);
extern PyMethodDef dlb_cuda_functions[];

/* ---- numpy.c ---- */
int dlb_numpy_start(void);
bool dlb_is_numpy(PyObject *x);
int dlb_take_numpy(PyObject *array, dlb_view *view);
PyObject *dlb_give_numpy(dlb_view *view, PyObject *descr);
/* The Tensor over whose memory the array lies, borrowed, or NULL. */
dlb_tensor *dlb_numpy_base(PyObject *array);
void dlb_numpy_set_data(PyObject *array, void *data);

/* ---- torch.c: what must be known of a torch.Tensor before its table may export it
 * ---- */
PyObject *dlb_torch_guard_open(PyObject *module, PyObject *args);
PyObject *dlb_torch_guard_allows(PyObject *module, PyObject *tensor);
bool dlb_torch_is_plain(PyObject *tensor);
/* Not known to reach beyond its storage. */
bool dlb_torch_fits_storage(PyObject *tensor, const DLTensor *dl);
bool dlb_torch_is_byte_type(
    PyObject *tensor); /* int8 or uint8, not an odd width shown as such */

/* ---- functions.c ---- */
extern PyMethodDef dlb_functions[];

/* ---- join.c ---- */
PyObject *dlb_join(PyObject *module, PyObject *buffers);

/* ---- take.c: types looked up once, and the C paths in ---- */
/* 0: the view holds the tensor. DLB_DECLINED: ask Python. -1: an error that is no
 * Exception. */
int dlb_take(PyObject *x, dlb_view *view);
/* Let the adapter of this type see it, once; -1: an error that is no Exception. */
int dlb_meet_type(PyTypeObject *type);
PyObject *dlb_forget_types(PyObject *module, PyObject *unused);

/* ---- converter.c ---- */
/* Why the framework of a Converter cannot represent `view`, or NULL. */
const char *dlb_converter_refusal(PyObject *converter, const dlb_view *view);
/* The framework's tensor over `view`, whose reference is stolen; never a copy. */
PyObject *dlb_converter_give(PyObject *converter, dlb_view *view);
PyObject *dlb_from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                          PyObject *names);
PyObject *dlb_convert(PyObject *module, PyObject *const *args, Py_ssize_t count,
                      PyObject *names);

#endif /* DLBRIDGE_OBJECT_H_ */

/* from_dlpack and convert: tensors of frameworks in and out. */
#ifndef DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_
#define DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_

#include "layout/layout.h"
#include "memory/arena.h"
#include "python/python.h"
#include "tensor/tensor.h"

extern PyTypeObject dlb_LimitsType, dlb_ConverterType, dlb_AlignedNumpyType,
    dlb_LimitedNumpyType, dlb_HeldBufferType, dlb_CollectableBufferType,
    dlb_TreeMemoType;

/* ---- table.c: our C exchange table, and the use of others' ---- */
int dlb_add_exchange_table(PyTypeObject *type);
int dlb_take_table(PyObject *x, const DLPackExchangeAPI *table, dlb_view *view);
/* `to`: the stream that its framework works on; NULL asks the table. */
PyObject *dlb_give_table(dlb_view *view, const DLPackExchangeAPI *table,
                         const uintptr_t *to);
extern PyMethodDef dlb_table_functions[];

/* ---- numpy.c ---- */
bool dlb_is_numpy(PyObject *x);
bool dlb_numpy_has_objects(PyObject *x); /* an array whose elements are objects */
int dlb_take_numpy(PyObject *array, dlb_view *view);
/* `keeper` keeps the array, which may be of a subclass; what its memory is in is kept
 * too. */
dlb_buffer *dlb_buffer_of_array(PyObject *keeper, PyObject *array);
/* Of a dtype that NumPy itself does not have; its elements are of whole bytes. */
int dlb_take_numpy_as(PyObject *array, DLDataType dtype, dlb_view *view);
PyObject *dlb_give_numpy(dlb_view *view, PyObject *descr);
/* The Tensor whose memory the array shares, borrowed, or NULL. */
dlb_tensor *dlb_numpy_base(PyObject *array);
void dlb_numpy_set_data(PyObject *array, void *data);
extern PyMethodDef dlb_numpy_functions[];

/* As a kernel takes it: `strides` has room for `room` of them */
int dlb_borrow_numpy(PyObject *x, DLTensor *tensor, uint64_t *flags, int64_t *strides,
                     int32_t room);
/* A new array; NULL without an exception where NumPy has no such dtype. */
PyObject *dlb_numpy_allocate(int32_t ndim, const int64_t *shape, DLDataType dtype);
/* A new ndarray of uint8 whose memory is one of our blocks, aligned and kept for reuse;
 * no limit that the context sets on NumPy's memory applies. */
PyObject *dlb_numpy_bytes(size_t nbytes);
/* The capsule of a handler that has arrays of `least` bytes and more from an arena. */
PyObject *dlb_numpy_arena_handler(dlb_arena *arena, size_t least);
/* Whether an ndarray owns memory that it has from such a handler. */
bool dlb_numpy_in_arena(PyObject *array);

/* A dtype of NumPy's own, in native byte order. */
bool dlb_numpy_dtype(PyObject *descr, DLDataType *dtype);
PyObject *dlb_numpy_descr(DLDataType dtype); /* NULL without an exception: none */

/* ---- take.c: types looked up once, and the C paths in ---- */
/* 0: the view holds the tensor. DLB_DECLINED: ask Python. -1: an error that is no
 * Exception. */
int dlb_take(PyObject *x, dlb_view *view);
/* The same, also while receipts are written, in which it leaves none. */
int dlb_look(PyObject *x, dlb_view *view);
/* Where the memory of x begins, by the same ways. */
int dlb_look_address(PyObject *x, const void **address);
/* For receipts: whose x is that was just taken, and by which entry; see
 * `dlb_receipt_new`. A new reference, or NULL with an error. */
PyObject *dlb_take_source(PyObject *x, const dlb_view *view, const char **taken);
/* For a call of this name by the user: it also takes what has only __dlpack__, of which
 * -1 may be the refusal of the call; NULL for none. Tensors of torch that require a
 * gradient are detached or declined; objects whose memory DLPack cannot describe are
 * taken by value, or declined. Whether receipts are written is the caller's concern. */
int dlb_take_for(PyObject *call, bool detaches, bool may_copy, PyObject *x,
                 dlb_view *view);
/* Whether its objects are tensors of a framework that were taken before; false of
 * classes of users, which may speak a protocol and be something else as well. */
bool dlb_is_framework_type(PyTypeObject *type);
/* An object that has the buffer of x, so that x may not give it up, and keeps an object
 * that takes no part in garbage collection, or NULL; NULL with an error. */
PyObject *dlb_hold_buffer(PyObject *x, PyObject *kept);
/* Let the adapter of this type see it, once; -1: an error that is no Exception. */
int dlb_meet_type(PyTypeObject *type);
extern PyMethodDef dlb_take_functions[];

/* ---- converter.c ---- */
int dlb_converter_start(void);
/* Why the framework of a Converter cannot represent `view`, or NULL. */
const char *dlb_converter_refusal(PyObject *converter, const dlb_view *view);
/* `convert` by the C path alone: a result, NULL with an error, or NULL without one:
 * declined. The policies' values, and their names or NULL; `is_called` by the user, so
 * that refusals are those of the call. */
PyObject *dlb_converter_try(PyObject *converter, bool is_called, PyObject *x,
                            PyObject *const *values, PyObject *names);
/* The framework's tensor over `view`, whose reference is stolen; never a copy. */
PyObject *dlb_converter_give(PyObject *converter, dlb_view *view);
PyObject *dlb_from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                          PyObject *names);
PyObject *dlb_convert(PyObject *module, PyObject *const *args, Py_ssize_t count,
                      PyObject *names);

/* ---- equal.c ---- */
PyObject *dlb_equal(PyObject *module, PyObject *const *args, Py_ssize_t count,
                    PyObject *names);

/* ---- tree.c ---- */
extern PyMethodDef dlb_tree_functions[];

#endif /* DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_ */

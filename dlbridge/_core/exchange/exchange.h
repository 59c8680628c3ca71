/* from_dlpack and convert: tensors of frameworks in and out. */
#ifndef DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_
#define DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_

#include "layout/layout.h"
#include "peers/peers.h"
#include "python/python.h"
#include "tensor/tensor.h"

extern PyTypeObject dlb_LimitsType, dlb_ConverterType, dlb_TreeMemoType;

/* ---- limits.c ---- */
typedef struct {
    PyObject_HEAD
    PyObject *name, *needed_by;
    dlb_limits limits;
} dlb_limits_object;

/* ---- take.c: the C paths in ---- */
/* 0: the view holds the tensor. DLB_DECLINED: ask Python. -1: an error that is
 * not an Exception. */
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
extern PyMethodDef dlb_take_functions[];

/* ---- converter.c ---- */
/* Why the framework of a Converter cannot represent `view`, or NULL. */
const char *dlb_converter_refusal(PyObject *converter, const dlb_view *view);
/* `convert` by the C path alone: a result, NULL with an error, or NULL without one:
 * declined. The policies' values, and their names or NULL; `is_called` by the user, so
 * that refusals are those of the call. */
PyObject *dlb_converter_try(PyObject *converter, bool is_called, PyObject *x,
                            PyObject *const *values, PyObject *names);
/* The framework's tensor over `view`, whose reference is stolen; never a copy. */
PyObject *dlb_converter_give(PyObject *converter, dlb_view *view);
bool dlb_converter_makes_numpy(PyObject *converter);
PyObject *dlb_from_dlpack(PyObject *module, PyObject *const *args, Py_ssize_t count,
                          PyObject *names);
PyObject *dlb_convert(PyObject *module, PyObject *const *args, Py_ssize_t count,
                      PyObject *names);

/* ---- equal.c ---- */
PyObject *dlb_equal(PyObject *module, PyObject *const *args, Py_ssize_t count,
                    PyObject *names);

/* ---- loans.c ---- */
extern PyTypeObject dlb_FormsType, dlb_LoansType;
int dlb_loans_start(void);

/* ---- tree.c ---- */
extern PyMethodDef dlb_tree_functions[];

#endif /* DLBRIDGE_CORE_EXCHANGE_EXCHANGE_H_ */

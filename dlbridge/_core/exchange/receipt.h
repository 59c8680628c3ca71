/* Receipts of exchanges that C makes. */
#ifndef DLBRIDGE_CORE_EXCHANGE_RECEIPT_H_
#define DLBRIDGE_CORE_EXCHANGE_RECEIPT_H_

#include "python/python.h"
#include "tensor/tensor.h"

extern PyTypeObject dlb_RecordType;

/* The logs that are open in this thread or task, a tuple, or NULL for none; never an
 * error. */
PyObject *dlb_receipts_find(void);
static inline PyObject *dlb_receipts_open(void) {
    bool is_open = atomic_load_explicit(&dlb.watchers, memory_order_relaxed);
    return __builtin_expect(is_open, 0) ? dlb_receipts_find() : NULL;
}

/* A receipt to be: of a tensor of the CPU that was taken from `source`, a name or a
 * type that its framework's adapter knows, by the entry `taken`, or NULL for the
 * adapter's own. NULL with an error. */
PyObject *dlb_receipt_new(PyObject *source, const char *taken, PyObject *target,
                          const DLTensor *dl);
/* The object was returned as it is. */
void dlb_receipt_is_identity(PyObject *receipt);
/* dlbridge copied, for this reason. */
void dlb_receipt_copied(PyObject *receipt, const char *why);
/* Where the consumer's memory is. */
void dlb_receipt_seen(PyObject *receipt, const void *data);
/* Write the receipt of what came of the exchange to the logs; -1 with an error. */
int dlb_receipt_write(PyObject *receipt, PyObject *logs, PyObject *result);

void dlb_receipt_prepare(void); /* before the type is ready */
extern PyMethodDef dlb_receipt_functions[];

#endif /* DLBRIDGE_CORE_EXCHANGE_RECEIPT_H_ */

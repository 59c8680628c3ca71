/* XLA's handler, for Python and for eager calls. */
#ifndef DLBRIDGE_CORE_XLA_XLA_H_
#define DLBRIDGE_CORE_XLA_XLA_H_

#include "python/python.h"

PyObject *dlb_xla_handler(PyObject *module, PyObject *platform);
PyObject *dlb_xla_stream(PyObject *module, PyObject *device);
PyObject *dlb_xla_call_eagerly(PyObject *module, PyObject *const *args,
                               Py_ssize_t count);
/* If the exception that is set came out of XLA with the number of a failure: raise what
 * failed there instead. */
void dlb_xla_raise_failure(void);

#endif /* DLBRIDGE_CORE_XLA_XLA_H_ */

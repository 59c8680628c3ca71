/* XLA's handler, for Python. */
#ifndef DLBRIDGE_CORE_XLA_PYTHON_H_
#define DLBRIDGE_CORE_XLA_PYTHON_H_

#include "python/python.h"

PyObject *dlb_xla_handler(PyObject *module, PyObject *platform);
PyObject *dlb_xla_call_eagerly(PyObject *module, PyObject *const *args,
                               Py_ssize_t count);

#endif /* DLBRIDGE_CORE_XLA_PYTHON_H_ */

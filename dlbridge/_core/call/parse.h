/* Between object.c and parse.c. */
#ifndef DLBRIDGE_CORE_CALL_PARSE_H_
#define DLBRIDGE_CORE_CALL_PARSE_H_

#include "kernel/python.h"

/* The arguments of KernelBase, as a kernel with one reference; NULL with an exception.
 * `arguments` gets Schema.encode_arguments(), a reference, or NULL. */
dlb_kernel *dlb_parse_kernel(PyObject *args, PyObject *kwargs, PyObject **arguments);

#endif /* DLBRIDGE_CORE_CALL_PARSE_H_ */

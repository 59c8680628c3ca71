/* Between kernel_object.c and kernel_parse.c. */
#ifndef DLBRIDGE_KERNEL_PARSE_H_
#define DLBRIDGE_KERNEL_PARSE_H_

#include "kernel_object.h"

/* The arguments of KernelBase, as a kernel with one reference; NULL with an exception.
 * `arguments` gets Schema.encode_arguments(), a reference, or NULL. */
dlb_kernel *dlb_parse_kernel(PyObject *args, PyObject *kwargs, PyObject **arguments);

#endif /* DLBRIDGE_KERNEL_PARSE_H_ */

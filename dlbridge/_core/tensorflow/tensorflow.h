/* The op of TensorFlow whose body is a kernel. */
#ifndef DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_
#define DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_

#include "python/python.h"

extern PyMethodDef dlb_tensorflow_functions[];

#endif /* DLBRIDGE_CORE_TENSORFLOW_TENSORFLOW_H_ */

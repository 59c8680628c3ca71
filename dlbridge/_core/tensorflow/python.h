/* The op of TensorFlow, for Python. */
#ifndef DLBRIDGE_CORE_TENSORFLOW_PYTHON_H_
#define DLBRIDGE_CORE_TENSORFLOW_PYTHON_H_

#include "python/python.h"

extern PyMethodDef dlb_tensorflow_functions[];

#endif /* DLBRIDGE_CORE_TENSORFLOW_PYTHON_H_ */

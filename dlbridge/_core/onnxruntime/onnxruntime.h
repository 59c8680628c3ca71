/* Operators of ONNX Runtime whose body is a kernel. */
#ifndef DLBRIDGE_CORE_ONNXRUNTIME_ONNXRUNTIME_H_
#define DLBRIDGE_CORE_ONNXRUNTIME_ONNXRUNTIME_H_

#include "python/python.h"

extern PyMethodDef dlb_onnxruntime_functions[];

#endif /* DLBRIDGE_CORE_ONNXRUNTIME_ONNXRUNTIME_H_ */

/* Operators of torch's dispatcher whose body is a kernel. */
#ifndef DLBRIDGE_CORE_TORCH_OP_OP_H_
#define DLBRIDGE_CORE_TORCH_OP_OP_H_

#include "python/python.h"

extern PyMethodDef dlb_torch_op_functions[];

#endif /* DLBRIDGE_CORE_TORCH_OP_OP_H_ */

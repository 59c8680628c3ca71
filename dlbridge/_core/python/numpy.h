/* NumPy's C API, whose table python.c fetches once for all files. */
#ifndef DLBRIDGE_CORE_PYTHON_NUMPY_H_
#define DLBRIDGE_CORE_PYTHON_NUMPY_H_

#include "python/python.h"

#define PY_ARRAY_UNIQUE_SYMBOL dlb_numpy_api
#ifndef DLB_NUMPY_HOME
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#endif /* DLBRIDGE_CORE_PYTHON_NUMPY_H_ */

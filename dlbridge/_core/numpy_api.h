/* NumPy's C API, whose table numpy.c fetches once for all files. */
#ifndef DLBRIDGE_NUMPY_API_H_
#define DLBRIDGE_NUMPY_API_H_

#define PY_ARRAY_UNIQUE_SYMBOL dlb_numpy_api
#ifndef DLB_NUMPY_HOME
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>

#endif /* DLBRIDGE_NUMPY_API_H_ */

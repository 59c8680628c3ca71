/* NumPy's C API, whose table python.c fetches once for all files. */
#ifndef DLBRIDGE_CORE_PYTHON_NUMPY_H_
#define DLBRIDGE_CORE_PYTHON_NUMPY_H_

#include "python/python.h"

#define PY_ARRAY_UNIQUE_SYMBOL dlb_numpy_api
#ifndef DLB_NUMPY_HOME
#define NO_IMPORT_ARRAY
#endif
#include <numpy/arrayobject.h>
#include <numpy/arrayscalars.h>

#include <stddef.h>

/* Whether a dtype is of NumPy's own numbers of at most 16 bytes. */
static inline bool dlb_numpy_is_plain(int type) {
    return (type >= NPY_BOOL && type <= NPY_DOUBLE) || type == NPY_HALF ||
           type == NPY_CFLOAT || type == NPY_CDOUBLE;
}

#define DLB_SCALAR(NAME) offsetof(Py##NAME##ScalarObject, obval)
_Static_assert(DLB_SCALAR(Bool) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(Byte) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(UShort) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(Int) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(ULongLong) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(Half) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(Float) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(CFloat) == DLB_SCALAR(Double) &&
                   DLB_SCALAR(CDouble) == DLB_SCALAR(Double),
               "all plain scalars have their value at one place");

/* The value of a scalar whose type is exactly that of a plain dtype. */
static inline char *dlb_numpy_scalar_value(PyObject *scalar) {
    return (char *)scalar + DLB_SCALAR(Double);
}

#endif /* DLBRIDGE_CORE_PYTHON_NUMPY_H_ */

"""A stand-in for CuPy over the fake CUDA driver: what dlbridge uses of it, with CuPy's behaviour.

It is for tests without a GPU, in processes of their own whose path it comes first on. NumPy does
the arithmetic, on memory of the driver behind `DLBRIDGE_CUDA_DRIVER`; the driver sees each
operation as work on a stream, so that what is not ordered is found.
"""

# ruff: noqa: F401  (what CuPy exports)
from typing import Any

import numpy as _numpy

from cupy import cuda, fft, linalg
from cupy._array import ndarray
from cupy._functions import namespace as _namespace
from cupy._functions import ufunc
from cupy._outside import array, asarray, from_dlpack
from cupy._raw import RawKernel, RawModule

__version__ = "14.2.0"

_FROM_NUMPY = """
    bool_ broadcast_shapes can_cast complex64 complex128 complexfloating dtype e euler_gamma
    finfo float16 float32 float64 floating generic iinfo inexact inf int8 int16 int32 int64
    integer intp isdtype issubdtype nan newaxis number pi promote_types signedinteger uint8
    uint16 uint32 uint64 unsignedinteger
"""  # "isdtype" is of NumPy 2
globals().update(
    {name: getattr(_numpy, name) for name in _FROM_NUMPY.split() if hasattr(_numpy, name)}
)
globals().update(_namespace())


def result_type(*arrays: Any) -> Any:
    """Return the dtype that NumPy's rules give arrays and dtypes."""
    return _numpy.result_type(
        *[each.dtype if isinstance(each, ndarray) else each for each in arrays]
    )


def astype(x: Any, dtype: Any, /, *, copy: bool = True, device: Any = None) -> Any:
    """Return an array in another dtype."""
    del device
    return x.astype(dtype, copy=copy)


def copy(a: Any, order: str = "K") -> Any:
    """Return a copy."""
    del order
    return a.copy()


def ascontiguousarray(a: Any, dtype: Any = None) -> Any:
    """Return an array without gaps, itself where it has none."""
    found = asarray(a, dtype)
    return found if found.flags.c_contiguous else found.copy()


def asnumpy(a: Any, stream: Any = None, order: str = "C") -> Any:
    """Return a copy in NumPy; the host waits for the stream."""
    return a.get(stream, order) if isinstance(a, ndarray) else _numpy.asarray(a)


def get_array_module(*arguments: Any) -> Any:
    """Return CuPy if there is an array of it among the arguments, else NumPy."""
    import cupy

    return cupy if any(isinstance(each, ndarray) for each in arguments) else _numpy

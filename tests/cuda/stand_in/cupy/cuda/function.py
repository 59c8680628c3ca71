"""Modules of the driver, and their kernels."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np

from cupy import _driver
from cupy.cuda.stream import get_current_stream


class Module:
    """A loaded module."""

    def __init__(self, image: bytes) -> None:
        self._image = image + b"\0"
        self.ptr = _driver.made("cuModuleLoadData", self._image)

    def get_function(self, name: str) -> Function:
        """Return a kernel."""
        return Function(self, name)


class Function:
    """A kernel of a module; `ptr` is its CUfunction."""

    def __init__(self, module: Module, name: str) -> None:
        self.module = module
        self.ptr = _driver.made("cuModuleGetFunction", module.ptr, name.encode())

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        shared_mem: int = 0,
        stream: Any = None,
    ) -> None:
        """Launch it on the current stream, unless another one is given."""
        values = [_argument(each) for each in args]
        pointers = (ctypes.c_void_p * len(values))(*map(ctypes.addressof, values))
        where = (get_current_stream() if stream is None else stream).ptr
        sizes = (*(*grid, 1, 1)[:3], *(*block, 1, 1)[:3])
        _driver.call("cuLaunchKernel", self.ptr, *sizes, shared_mem, where, pointers, None)


def _argument(value: Any) -> Any:
    """Return an argument as CuPy passes it: arrays by address, NumPy's scalars by their bytes."""
    if hasattr(value, "__cuda_array_interface__"):
        return ctypes.c_uint64(value.data.ptr)
    if isinstance(value, np.generic):
        raw = value.tobytes()
        return (ctypes.c_char * len(raw)).from_buffer_copy(raw)
    kinds = {bool: ctypes.c_bool, int: ctypes.c_int64, float: ctypes.c_double}
    if type(value) not in kinds:
        raise TypeError(f"Unsupported type {type(value)}")
    return kinds[type(value)](value)

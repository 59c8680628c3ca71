"""Arrays from outside: NumPy's, lists, other libraries' arrays."""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy import _dlpack, _driver, _transfer
from cupy._array import ndarray
from cupy._run import run
from cupy.cuda.memory import MemoryPointer, UnownedMemory


def array(obj: Any, dtype: Any = None, copy: bool = True, order: str = "K") -> Any:
    """Return an array on the current device: of another array, or of what NumPy makes one."""
    del order
    if not isinstance(obj, ndarray) and hasattr(obj, "__cuda_array_interface__"):
        obj = _over_interface(obj)
    if isinstance(obj, ndarray):
        other = obj.data.device_id != _driver.current_device()
        found = obj.copy() if copy or other else obj
        return found if dtype is None else found.astype(dtype, copy=False)
    if isinstance(obj, list | tuple) and any(isinstance(each, ndarray) for each in obj):
        return run(np.array, obj, dtype)
    return _transfer.to_device(np.array(obj, dtype, order="C"), ndarray)


def asarray(obj: Any, dtype: Any = None, order: Any = None, *, blocking: bool = False) -> Any:
    """Return an array on the current device, itself where it is one."""
    del order, blocking
    return array(obj, dtype, copy=False)


def _over_interface(obj: Any) -> ndarray:
    """Return an array over a `__cuda_array_interface__`, whose stream the host waits for."""
    fields = obj.__cuda_array_interface__
    dtype, shape = np.dtype(fields["typestr"]), fields["shape"]
    device = -1 if np.prod(shape) else _driver.current_device()
    memory = UnownedMemory(fields["data"][0], 0, obj, device)
    if fields.get("stream") is not None:
        _driver.call("cuStreamSynchronize", fields["stream"])
    return ndarray(shape, dtype, MemoryPointer(memory, 0), fields.get("strides"))


def from_dlpack(array: Any, *, device: Any = None, copy: bool | None = None) -> Any:
    """Return an array over another one's memory, ordered after its producer's work."""
    return _dlpack.from_dlpack(ndarray, array, device, copy)

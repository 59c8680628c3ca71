"""`cupy.ndarray`: NumPy computes on the fake driver's memory, which is host memory.

Each operation happens when it is called, and is told to the driver as what it would be on a GPU: a
kernel on the current stream of the current device, which reads some memory and writes some. What
CuPy refuses is refused: NumPy's arrays as operands, implicit conversion, arrays of another device.
What CuPy does not check is not checked: indices out of range wrap around.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from cupy import _dlpack, _driver, _transfer
from cupy._operators import Arithmetic
from cupy._run import get, put, run
from cupy.cuda.device import Device
from cupy.cuda.memory import alloc
from cupy.cuda.stream import get_current_stream


class _Window:
    """Memory as NumPy takes it."""

    def __init__(self, ptr: int, shape: tuple[int, ...], strides: Any, dtype: Any) -> None:
        self.__array_interface__ = {
            "data": (ptr, False),
            "shape": shape,
            "strides": strides,
            "typestr": dtype.str,
            "version": 3,
        }


class ndarray(Arithmetic):
    """An array in the memory of a device.

    Attributes:
        data: a MemoryPointer.
        dtype: one of NumPy's.
        shape, strides: tuples, strides in bytes.
    """

    __array_priority__ = 100

    def __init__(
        self, shape: Any, dtype: Any = float, memptr: Any = None, strides: Any = None
    ) -> None:
        self.shape = (shape,) if isinstance(shape, int) else tuple(map(int, shape))
        self.dtype = np.dtype(dtype)
        self.strides = _plain(self.shape, self.dtype.itemsize) if strides is None else strides
        self.data = alloc(self.nbytes) if memptr is None else memptr
        self.base: Any = None

    # ---- what it is

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    @property
    def size(self) -> int:
        """The number of elements."""
        return int(np.prod(self.shape, dtype=np.int64))

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        """Bytes of all elements."""
        return self.size * self.dtype.itemsize

    @property
    def device(self) -> Device:
        """Where its memory is."""
        return Device(self.data.device_id)

    @property
    def flags(self) -> Any:
        """What NumPy says of an array like this."""
        return self._host().flags

    def _host(self) -> np.ndarray:
        """Return the memory as NumPy sees it, which is allowed to the driver alone."""
        if self.size == 0:
            return np.empty(self.shape, self.dtype)
        return np.asarray(_Window(self.data.ptr, self.shape, self.strides, self.dtype))

    def _range(self) -> tuple[int, int]:
        steps = [(extent - 1) * step for extent, step in zip(self.shape, self.strides, strict=True)]
        below = sum(step for step in steps if step < 0)
        above = sum(step for step in steps if step > 0)
        return self.data.ptr + below, above - below + self.itemsize

    # ---- protocols

    def __array__(self, dtype: Any = None, copy: Any = None) -> Any:
        raise TypeError(
            "Implicit conversion to a NumPy array is not allowed. "
            "Please use `.get()` to construct a NumPy array explicitly."
        )

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": self.shape,
            "typestr": self.dtype.str,
            "descr": [("", self.dtype.str)],
            "stream": get_current_stream().ptr or _driver.STREAM_LEGACY,
            "version": 3,
            "strides": None if self.flags.c_contiguous else self.strides,
            "data": (self.data.ptr if self.size else 0, False),
        }

    def __dlpack__(
        self,
        *,
        stream: Any = None,
        max_version: Any = None,
        dl_device: Any = None,
        copy: Any = None,
    ) -> Any:
        return _dlpack.export(self, stream, max_version, dl_device, copy)

    def __dlpack_device__(self) -> tuple[int, int]:
        return _dlpack.device_of(self)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **keywords: Any) -> Any:
        import cupy

        function = getattr(cupy, ufunc.__name__, None)
        if function is None or method not in ("__call__", "at"):
            return NotImplemented
        if "out" in keywords:
            (keywords["out"],) = keywords["out"]
        return (function if method == "__call__" else function.at)(*inputs, **keywords)

    def __array_namespace__(self, *, api_version: str | None = None) -> Any:
        import cupy

        return cupy

    # ---- to the host

    def get(
        self, stream: Any = None, order: str = "C", out: Any = None, blocking: bool = True
    ) -> np.ndarray:
        """Return a copy in NumPy, or copy to `out`; the host waits for the stream."""
        where = get_current_stream() if stream is None else stream
        plain = self if self.flags.c_contiguous else run(np.ascontiguousarray, self)
        made = _transfer.to_host(plain, where)
        if out is None:
            return made
        out[...] = made
        return out  # type: ignore[no-any-return]

    def set(self, arr: np.ndarray, stream: Any = None) -> None:
        """Copy an array of NumPy to it."""
        self[...] = arr

    def item(self, *at: int) -> Any:
        """Return an element as a Python number."""
        return self.get().item(*at)

    def tolist(self) -> Any:
        """Return nested lists of Python numbers."""
        return self.get().tolist()

    def __int__(self) -> int:
        return int(self.get())

    def __float__(self) -> float:
        return float(self.get())

    def __complex__(self) -> complex:
        return complex(self.get())

    def __bool__(self) -> bool:
        return bool(self.get())

    def __index__(self) -> int:
        return self.get().__index__()

    def __repr__(self) -> str:
        return repr(self.get())

    def __len__(self) -> int:
        if not self.shape:
            raise TypeError("len() of unsized object")
        return self.shape[0]

    def __iter__(self) -> Any:
        return iter([self[i] for i in range(len(self))])

    # ---- elements

    def __getitem__(self, key: Any) -> Any:
        return run(get, self, key, _allowed=np.ndarray)

    def __setitem__(self, key: Any, value: Any) -> None:
        is_whole = key is Ellipsis or key == slice(None)
        if isinstance(value, np.ndarray) and is_whole:
            value = _transfer.to_device(np.ascontiguousarray(value, self.dtype), ndarray)
        run(put, self, key, value, _writes=[self])

    def astype(
        self, dtype: Any, order: str = "K", casting: str = "unsafe", copy: bool = True
    ) -> Any:
        """Return it in another dtype; itself where that is its own and `copy` is False."""
        if not copy and self.dtype == np.dtype(dtype):
            return self
        return run(np.ndarray.astype, self, dtype, order, casting, True, True)

    def copy(self, order: str = "C") -> ndarray:
        """Return a copy on the current device; from another one, by a copy between the two."""
        if self.data.device_id != _driver.current_device():
            return _transfer.from_peer(self)
        return run(np.ndarray.copy, self, order)  # type: ignore[no-any-return]

    def fill(self, value: Any) -> None:
        """Write one value all over it."""
        run(put, self, Ellipsis, value, _writes=[self])

    def scatter_add(self, key: Any, value: Any) -> None:
        """Add to elements, also to one several times."""
        run(np.add.at, self, key, value, _writes=[self])

    def to_device(self, device: Any, /, *, stream: Any = None) -> ndarray:
        """Return it on another device."""
        del stream
        if Device(device) == self.device:
            return self
        with Device(device):
            return _transfer.from_peer(self)


def _plain(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    strides: list[int] = []
    for extent in reversed(shape):
        strides.insert(0, itemsize)
        itemsize *= max(extent, 1)
    return tuple(strides)

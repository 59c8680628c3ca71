"""Operations: NumPy computes, the driver is told what a GPU would do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy import _driver
from cupy.cuda.memory import MemoryPointer
from cupy.cuda.stream import get_current_stream


class Array:
    """The base of arrays, by which operations know them."""


def get(host: np.ndarray, key: Any) -> Any:
    parts = list(key) if isinstance(key, tuple) else [key]
    if not any(each is Ellipsis for each in parts):
        parts.append(Ellipsis)  # so that what NumPy returns is always an array
    return host[_wrapped(host.shape, parts)]


def put(host: np.ndarray, key: Any, value: Any) -> None:
    host[_wrapped(host.shape, list(key) if isinstance(key, tuple) else [key])] = value


def _wrapped(shape: tuple[int, ...], parts: list[Any]) -> tuple[Any, ...]:
    """Return an index whose arrays of integers are within range, as CuPy's kernels make them."""
    dots = next((i for i, each in enumerate(parts) if each is Ellipsis), len(parts))
    after = parts[dots + 1 :]
    taken = len([each for each in after if each is not None])
    axis, found = 0, []
    for each in parts:
        if each is Ellipsis:
            axis = len(shape) - taken
        elif isinstance(each, np.ndarray) and each.dtype.kind in "iu" and each.ndim:
            each = each % max(shape[axis], 1)
        if each is not None and each is not Ellipsis:
            is_mask = isinstance(each, np.ndarray) and each.dtype == bool
            axis += each.ndim if is_mask else 1
        found.append(each)
    return tuple(found)


# ---- operations ----------------------------------------------------------------------------------

_SHAPED_BY_VALUES = {"nonzero", "unique", "argwhere", "flatnonzero", "union1d"}


def run(function: Callable[..., Any], *arguments: Any, _writes: Any = (), **keywords: Any) -> Any:
    """Compute with NumPy, and tell the driver what a GPU would do for it.

    Args:
        function: of NumPy.
        arguments: arrays of this package as they are.
        _writes: which of the arguments it writes to.
        keywords: more arguments; `out` is also written to.
    """
    allowed = keywords.pop("_allowed", ())
    sources: list[Any] = []
    _collect((arguments, tuple(keywords.values())), sources, allowed)
    _check_devices(sources)
    written = [*_writes, *([keywords["out"]] if keywords.get("out") is not None else [])]
    stream = get_current_stream()
    if getattr(function, "__name__", "") in _SHAPED_BY_VALUES or _has_mask(function, arguments):
        stream.synchronize()  # CuPy asks the device for the shape of the result
    result = function(*_unwrap(arguments), **_unwrap(keywords))
    made: list[Any] = []
    found = _wrap(result, sources, made)
    if made or written:
        _driver.touch(stream.ptr, [each._range() for each in sources if each.size],
                      [each._range() for each in [*made, *written] if each.size])  # fmt: skip
    return found


def _has_mask(function: Any, arguments: tuple[Any, ...]) -> bool:
    if function is not get:
        return False
    keys = arguments[1] if isinstance(arguments[1], tuple) else (arguments[1],)
    return any(isinstance(each, Array) and each.dtype == bool for each in keys)


def _collect(value: Any, sources: list[Any], allowed: Any) -> None:
    if isinstance(value, Array):
        sources.append(value)
    elif isinstance(value, list | tuple):
        for each in value:
            _collect(each, sources, allowed)
    elif isinstance(value, np.ndarray) and not isinstance(value, allowed):
        raise TypeError(f"Unsupported type {type(value)}")


def _check_devices(sources: list[Any]) -> None:
    current = _driver.current_device()
    for each in sources:
        if each.data.device_id != current:
            raise ValueError(
                "Array device must be same as the current device: array device = "
                f"{each.data.device_id} while current = {current}"
            )


def _unwrap(value: Any) -> Any:
    if isinstance(value, Array):
        return value._host()
    if isinstance(value, list | tuple):
        return type(value)([_unwrap(each) for each in value])
    if isinstance(value, dict):
        return {key: _unwrap(each) for key, each in value.items()}
    return value


def _wrap(result: Any, sources: list[Any], made: list[Any]) -> Any:
    if isinstance(result, list):
        return [_wrap(each, sources, made) for each in result]
    if isinstance(result, tuple):
        parts = [_wrap(each, sources, made) for each in result]
        return type(result)(*parts) if hasattr(result, "_fields") else tuple(parts)
    if isinstance(result, np.generic):
        result = np.asarray(result)
    if not isinstance(result, np.ndarray):
        return result
    for each in sources:
        if result.size and np.may_share_memory(result, each._host()):
            return _view(result, each)
    array = _new(result.shape, result.dtype)
    if result.size:
        array._host()[...] = result
    made.append(array)
    return array


def _new(*arguments: Any) -> Any:
    from cupy._array import ndarray

    return ndarray(*arguments)


def _view(result: np.ndarray, source: Any) -> Any:
    """Return an array over the memory of another one; that one itself where it is the same."""
    address = result.__array_interface__["data"][0]
    same = (address, result.shape, result.dtype) == (source.data.ptr, source.shape, source.dtype)
    if same and result.strides == source.strides:
        return source
    pointer = MemoryPointer(source.data.mem, address - source.data.mem.ptr)
    array = _new(result.shape, result.dtype, pointer, result.strides)
    array.base = source
    return array

"""Values on their way from one framework or device to another: zero-copy wherever it can be.

On devices nothing waits: copies and kernels are put on the frameworks' current streams, and ordered
by events there. The host waits only where it needs a value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from dlbridge.device import HOST_TYPES, Device
from dlbridge.errors import ExchangeError
from dlbridge.exchange import adapter
from dlbridge.execution.devices import devices, on_device

Move = Callable[[Any], Any]


def mover(framework: str, device: Any = None, *, looks: bool = True) -> Move:
    """Return the function that makes any framework's array one of this framework.

    Args:
        framework: its name.
        device: its own device object, on which the result is; None is the host.
        looks: whether values may be on a device though the host is meant.
    """
    make = _MOVERS.get(framework)
    move = _to_framework(framework, device, looks) if make is None else make(device, looks)
    return on_device(framework, device, move)


def is_on_device(value: Any) -> bool:
    """Return whether an array of any framework is in memory that the host cannot read."""
    if isinstance(value, np.ndarray | np.generic):
        return False
    is_cuda = getattr(value, "is_cuda", None)  # torch's, which is fast
    if is_cuda is False or is_cuda is True:
        return is_cuda
    if hasattr(value, "block_until_ready"):  # JAX's, whose `__dlpack_device__` is slow
        return len(devices("jax")) > 1 and value.device.platform != "cpu"
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and int(where()[0]) not in HOST_TYPES


def _to_numpy(_device: Any, _looks: bool) -> Move:
    return to_numpy


_convert_to_numpy = adapter.converter("numpy")


def to_numpy(value: Any) -> Any:
    """Return an array of any framework in NumPy; NumPy's own arrays and scalars as they are.

    What is on a device is copied, and waited for.
    """
    if isinstance(value, np.ndarray | np.generic):
        return value
    try:
        return _convert_to_numpy(value)
    except ExchangeError:  # read-only, or on a device
        return _convert_to_numpy(value, readonly="share", device="cpu")


def settled(value: Any) -> Any:
    """Return a value of JAX when it is computed: until then JAX may read memory that was fed.

    What outlives a run must not depend on what the user does to that memory afterwards.
    """
    wait = getattr(value, "block_until_ready", None)
    return value if wait is None else wait()


def _to_framework(framework: str, device: Any, looks: bool) -> Move:
    convert = adapter.converter(framework)
    pair = None if device is None else Device(device).pair

    def move(value: Any) -> Any:
        """Take the fast path where nothing needs to be allowed."""
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if isinstance(value, np.ndarray):
            is_there = pair is None and value.flags.writeable
        elif pair is not None:
            is_there = _is_on(value, pair)
        else:
            is_there = not looks or not is_on_device(value)
        if is_there:
            return convert(value)
        return convert(value, readonly="share", device="cpu" if device is None else device)

    return move


def _is_on(value: Any, pair: tuple[int, int]) -> bool:
    where = getattr(value, "__dlpack_device__", None)
    return where is not None and tuple(where()) == pair


def _to_jax(device: Any, looks: bool) -> Move:
    move: Move = import_module("dlbridge.frameworks.jax.graph_values").mover(device, looks)
    return move


_MOVERS: dict[str, Callable[[Any, bool], Move]] = {"numpy": _to_numpy, "jax": _to_jax}

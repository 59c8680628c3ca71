"""Values on their way between frameworks and devices, and to the user: zero-copy if possible.

On devices nothing waits: copies and kernels are put on the frameworks' current streams, and ordered
by events there. The host waits only where it needs a value itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.device import HOST_TYPES, Device
from dlbridge.errors import ExchangeError
from dlbridge.exchange import adapter
from dlbridge.exchange.context import is_recording
from dlbridge.execution.backend import backend, wide
from dlbridge.execution.devices import devices, on_device

Move = Callable[[Any], Any]


def mover(framework: str, device: Any = None, *, looks: bool = True) -> Move:
    """Return the function that makes any framework's array one of this framework.

    Args:
        framework: its name.
        device: its own device object, on which the result is; None is the host.
        looks: whether values may be on a device though the host is meant.
    """
    return on_device(framework, device, backend(framework).mover(device, looks))


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

    A value that outlives a run must not depend on later changes of that memory.
    """
    wait = getattr(value, "block_until_ready", None)
    return value if wait is None else wait()


def converting_mover(framework: str, device: Any, looks: bool) -> Move:
    """Return a `mover` that converts, as of most frameworks."""
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


# ---- to the user -------------------------------------------------------------------------------


@lru_cache
def giver(framework: str, copy: bool) -> Move:
    """Return the function that makes the value of a run the user's, which nobody else writes to.

    Args:
        framework: as in `convert(x, framework)`.
        copy: whether the result must be the user's alone: not the memory of a constant, a
            variable, or of what was fed. Otherwise NumPy arrays are read-only views.
    """
    if framework == "numpy":
        return native.Fetch(_copy_to_numpy) if copy else _share_in_numpy
    adapter.adapter(framework)
    return wide(framework, _giver(framework, copy))


def _copy_to_numpy(value: Any) -> Any:
    """Copy; an array of JAX that is still computed is waited for and copied by itself fastest."""
    if type(value).__module__.startswith("jaxlib") and not is_recording():
        array = np.array(value)
    else:
        array = np.array(to_numpy(value))
    return array[()] if array.ndim == 0 else array


def _share_in_numpy(value: Any) -> Any:
    array = to_numpy(value)
    if array.ndim == 0:
        return array[()]
    array = array.view()
    array.flags.writeable = False
    return array


def _giver(framework: str, copy: bool) -> Move:
    # dlbridge's own Tensor has no converter of a name of its own.
    convert = native.convert if framework == "dlbridge" else None
    private = native.Fetch(_identity)
    own = adapter.converter(framework) if convert is None else None

    def give(value: Any) -> Any:
        is_numpy = isinstance(value, np.ndarray | np.generic)
        if is_numpy:
            value = np.asarray(private(value) if copy else value)
        keywords: dict[str, Any] = {"readonly": "share"}
        if copy and not is_numpy:
            keywords["copy"] = True
        value = settled(value)
        if own is None:
            return native.convert(value, "dlbridge", **keywords)
        return settled(own(value, **keywords))

    return give


def _identity(value: Any) -> Any:
    return value

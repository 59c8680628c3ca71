"""What a run gives its user: values in the framework asked for, which nobody else writes to."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.exchange import adapter
from dlbridge.exchange.receipts import is_recording
from dlbridge.execution.runtime import wide
from dlbridge.execution.transfer import settled, to_numpy


@lru_cache
def giver(framework: str, copy: bool) -> Callable[[Any], Any]:
    """Return the function that makes the value of a run the user's.

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


def _giver(framework: str, copy: bool) -> Callable[[Any], Any]:
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

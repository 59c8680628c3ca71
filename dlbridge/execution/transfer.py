"""Values on their way from one framework or device to another: zero-copy wherever it can be."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from dlbridge import adapter
from dlbridge.errors import ExchangeError
from dlbridge.execution.context import Context


def mover(context: Context) -> Callable[[Any], Any]:
    """Return the function that makes any framework's array one of a context, on its device."""
    return _MOVERS.get(context.framework, _to_framework)(context)


def _to_numpy(_context: Context) -> Callable[[Any], Any]:
    return to_numpy


_convert_to_numpy = adapter.converter("numpy")


def to_numpy(value: Any) -> Any:
    """Return an array of any framework in NumPy; NumPy's own arrays and scalars as they are."""
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


def _to_framework(context: Context) -> Callable[[Any], Any]:
    convert, device = adapter.converter(context.framework), context.device

    def move(value: Any) -> Any:
        """Take the fast path where nothing needs to be allowed."""
        if isinstance(value, np.generic):
            value = np.asarray(value)
        if device is None and not (isinstance(value, np.ndarray) and not value.flags.writeable):
            return convert(value)
        return convert(value, readonly="share", device=device)

    return move


def _to_jax(context: Context) -> Callable[[Any], Any]:
    move: Callable[[Any], Any] = import_module("dlbridge.execution.jax_values").mover(
        context.device
    )
    return move


_MOVERS = {"numpy": _to_numpy, "jax": _to_jax}

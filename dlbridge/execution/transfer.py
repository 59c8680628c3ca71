"""Values on their way from one framework or device to another: zero-copy wherever it can be."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from typing import Any

import numpy as np

from dlbridge import adapter
from dlbridge.execution.context import Context


def mover(context: Context) -> Callable[[Any], Any]:
    """Return the function that makes any framework's array one of a context, on its device."""
    return _MOVERS.get(context.framework, _to_framework)(context)


def _to_numpy(context: Context) -> Callable[[Any], Any]:
    return to_numpy


def to_numpy(value: Any) -> Any:
    """Return an array of any framework in NumPy; NumPy's own arrays and scalars as they are."""
    if isinstance(value, np.ndarray | np.generic):
        return value
    return adapter.converter("numpy")(value, readonly="share", device="cpu")


def _to_framework(context: Context) -> Callable[[Any], Any]:
    convert, device = adapter.converter(context.framework), context.device

    def move(value: Any) -> Any:
        if isinstance(value, np.generic):
            value = np.asarray(value)
        return convert(value, readonly="share", device=device)

    return move


def _to_jax(context: Context) -> Callable[[Any], Any]:
    module = import_module("dlbridge.execution.jax_values")
    move: Callable[[Any], Any] = module.mover(context.device)
    return move


_MOVERS = {"numpy": _to_numpy, "jax": _to_jax}

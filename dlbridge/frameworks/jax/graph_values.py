"""Values and functions of JAX with 64-bit types, which JAX leaves out by default."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import numpy as np

from dlbridge.exchange import adapter
from dlbridge.execution.transfer import is_on_device

enable_x64 = jax.enable_x64


def with_64_bits(function: Callable[..., Any], enabled: bool) -> Callable[..., Any]:
    """Return `function` called with 64-bit types enabled, or not."""

    def call(*arguments: Any) -> Any:
        with enable_x64(enabled):
            return function(*arguments)

    return call


def asarray(host: Any, device: Any = None) -> Any:
    """Return a host array in JAX, its dtype kept; under a trace it becomes a constant."""
    with enable_x64(True):
        return jax.numpy.asarray(host, device=device)


def mover(device: Any, looks: bool) -> Callable[[Any], Any]:
    """Return the function that makes any framework's array one of JAX on a device.

    Args:
        device: of JAX; None is the host.
        looks: whether values may be on a device though the host is meant.
    """
    convert = adapter.converter("jax")

    def move(value: Any) -> Any:
        if isinstance(value, jax.core.Tracer):
            return value
        if isinstance(value, np.generic):
            return asarray(value, device)
        where = "cpu" if device is None and looks and is_on_device(value) else device
        with enable_x64(True):
            return convert(value, readonly="share", device=where)

    return move

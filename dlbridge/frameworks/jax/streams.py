"""The stream on which XLA computes.

JAX tells the stream on which it waits for memory of others, one of a few that it uses in turn. Its
kernels run on another one, and it drops memory that it borrowed while they still run. So the end of
a loan is an event on the stream that computes. Nothing in JAX tells it, but XLA tells it to foreign
functions: a program with nothing but such a function asks, once for each device.
"""

from __future__ import annotations

import sys
from functools import cache
from typing import Any

from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.signals import not_from_handler

_TARGET = "dlbridge_stream"
_asked: dict[int, Any] = {}


def compute_stream(device: Any, index: int) -> int:
    """Return the stream on which XLA runs programs on a CUDA device.

    The first call for a device compiles and runs a program there, and waits for it.

    Args:
        device: JAX's.
        index: its number among CUDA's.

    Raises:
        ExchangeError: with reason "stream", if the program fails.
    """
    if _asked.get(index) is not device:  # jax.clear_backends makes new ones
        ask(device)
        _asked[index] = device
    found = native.xla_stream(index)
    if not found:
        raise _refusal(device, "it called no foreign function")
    return found


def ask(device: Any) -> None:
    """Run the program that notes the stream on a device of JAX's; ExchangeError if it fails."""
    jax = sys.modules["jax"]
    try:
        with jax.ensure_compile_time_eval(), jax.default_device(device):
            _program()().block_until_ready()
    except not_from_handler(Exception) as error:
        raise _refusal(device, error) from error


@cache
def _program() -> Any:
    jax = sys.modules["jax"]
    try:
        from jax import ffi  # since 0.5
    except not_from_handler(ImportError):
        from jax.extend import ffi
    for platform in ("cpu", "CUDA"):
        ffi.register_ffi_target(_TARGET, native.xla_handler("stream"), platform=platform)
    result = jax.ShapeDtypeStruct((), "int32")
    return jax.jit(ffi.ffi_call(_TARGET, result, has_side_effect=True))


def _refusal(device: Any, why: object) -> ExchangeError:
    return ExchangeError(
        "stream",
        f"to_jax: XLA did not tell the stream on which it computes on {device}, so that nobody "
        f"could know when memory may go back ({why}); pass a copy of JAX's own",
    )

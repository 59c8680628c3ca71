"""From recognised functions to what the core calls: one target for each platform."""

from __future__ import annotations

import sys
import threading
from collections.abc import Mapping
from typing import Any

from dlbridge.device import DeviceType
from dlbridge.errors import ArgumentError
from dlbridge.kernels.kinds import cuda_launch, python_kernel, raw
from dlbridge.kernels.kinds.cuda_launch import Launch
from dlbridge.kernels.kinds.recognition import Function
from dlbridge.kernels.schema import Schema

Target = tuple[int, str, int | None, Any]

# What code of this kind needs at least: TVM compiles for this alignment, JAX shares no other.
_ALIGNMENTS = {"tvm_ffi": 64, "python:jax": 64}


def device_type(platform: object) -> DeviceType:
    """Return the device type of a platform, "cpu", "cuda", "rocm", "oneapi" and so on."""
    known = {kind.name.lower(): kind for kind in DeviceType}
    if not isinstance(platform, str) or platform not in known:
        raise ArgumentError(
            f"wrap: platforms must be named among {', '.join(known)}, got {platform!r}"
        )
    return known[platform]


def alignment(functions: Mapping[str, Function]) -> int:
    """Return the bytes that the data of these functions must be aligned to."""
    return max(_ALIGNMENTS.get(function.abi, 1) for function in functions.values())


def make_targets(
    name: str, functions: Mapping[str, Function], schema: Schema | None, launch: Launch
) -> list[Target]:
    """Return the targets of a kernel, in the form that `native.KernelBase` takes."""
    return [
        (int(device_type(platform)), *_target(name, function, schema, launch))
        for platform, function in functions.items()
    ]


def _target(
    name: str, function: Function, schema: Schema | None, launch: Launch
) -> tuple[str, int | None, Any]:
    if function.load is not None:
        return "cuda", None, cuda_launch.target(name, function, schema, launch)
    if function.abi == "tvm_ffi":
        return function.abi, function.address, _Receiver() if schema is None else None
    if function.address and not function.is_raw:
        return function.abi, function.address, None
    if function.abi.startswith("triton"):
        target = python_kernel.target(function.callable(schema, launch), "torch", schema)
        return "python", None, target
    if function.framework is not None:
        target = python_kernel.target(function.callable, function.framework, schema)
        return "python", None, target
    caller = raw.raw_caller(function.address, function.abi, schema)
    return "python", None, python_kernel.target(caller, "dlbridge", schema)


class _Receiver:
    """Where the core leaves what a tvm-ffi function returned: it knows not every type of value."""

    def __init__(self) -> None:
        convert = sys.modules["tvm_ffi"].convert
        self._kept = threading.local()
        self._function = convert(self._keep)
        self.handle = self._function.__chandle__()

    def _keep(self, value: Any) -> None:
        self._kept.value = value

    def take(self) -> Any:
        """Return the value that this thread was given last."""
        return self._kept.__dict__.pop("value")

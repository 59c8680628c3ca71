"""How torch runs the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import numpy as np
import torch

from dlbridge.exchange.adapter import require_importable
from dlbridge.execution.backend import Backend, converting_mover, device_object
from dlbridge.execution.plan import Body
from dlbridge.frameworks.torch import internals
from dlbridge.proto.datatypes import DataType

# The ufuncs whose results IEEE 754 or two's complement define to the bit, all but which NaN it is,
# with the kinds of dtypes. Others depend on a library (exp, and torch's sqrt, which is MKL's), on
# the order of operands (the larger of -0 and 0), or on what rounding makes of denormal numbers
# where they count as zero (floor).
_EXACT = {
    **dict.fromkeys(("add", "subtract", "multiply", "negative", "absolute", "square"), "if"),
    **dict.fromkeys(("divide", "isnan", "isinf", "isfinite"), "f"),
    **dict.fromkeys(("equal", "not_equal"), "bif"),
    **dict.fromkeys(("less", "less_equal", "greater", "greater_equal"), "if"),
    **dict.fromkeys(("bitwise_and", "bitwise_or", "bitwise_xor", "invert", "maximum"), "i"),
    **dict.fromkeys(("logical_and", "logical_or", "logical_not"), "b"),
    "minimum": "i",
}
_HALVES = ("float16", "bfloat16")  # NumPy's loops are slow


class _Torch(Backend):
    name = "torch"
    namespace = "array_api_compat.torch"
    # Beyond, torch uses several threads. Up to there the loops took 0.01 to 0.5 of its time, for 2
    # to 10 nodes in float32, float64 and int64.
    small = 1 << 15

    def devices(self) -> list[tuple[str, Any]]:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [
            ("CPU:0", torch.device("cpu")),
            *((f"GPU:{i}", torch.device("cuda", i)) for i in range(count)),
        ]

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        return torch.cuda.device(device)  # type: ignore[no-any-return]

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        return converting_mover("torch", device, looks)

    @staticmethod
    def guard(function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call during which torch records nothing: a graph has no gradients of its own.

        Results are ordinary tensors, as those of `torch.inference_mode` are not.
        """

        def call(*values: Any) -> Any:
            with torch.no_grad():
                return function(*values)

        return call

    def compile(self, body: Body, count: int, device: Any) -> Callable[..., Any]:
        """Compile with NumPy arrays that torch can trace: of read-only ones it refuses views."""
        require_importable("triton", "Session: torch.compile")
        body.constants = [(number, _traceable(value)) for number, value in body.constants]
        compiled: Callable[..., Any] = torch.compile(
            lambda *values: body(values[:count], values[count:])
        )
        if not body.hosts:
            return compiled
        return lambda *values: compiled(*values[:count], *map(_traceable, values[count:]))

    def is_exact(self, ufunc: str, dtype: DataType) -> bool:
        """Only of a torch whose tensors the core can read and allocate."""
        kind = "i" if dtype.name == "uint8" else dtype.kind
        return (
            kind in _EXACT.get(ufunc, "")
            and dtype.name not in _HALVES
            and internals.guard_is_open()
        )

    def wait(self, result: Any, device: str) -> None:
        if device:
            torch.cuda.synchronize(device_object("torch", device))

    def caster(self, dtype: Any) -> Callable[[Any], Any]:
        return lambda x: x.to(dtype)

    def own(self, x: Any) -> Any:
        return x.clone()

    def put(self, how: str) -> Callable[[Any, Any, Any], Any]:
        reduction = {"Max": "amax", "Min": "amin"}.get(how)

        def put(table: Any, numbers: Any, rows: Any) -> Any:
            if how == "Update":
                table[numbers] = rows
            elif reduction:
                table.scatter_reduce_(0, numbers[:, None].expand_as(rows), rows, reduction)
            else:
                table.index_add_(0, numbers, rows, alpha=-1 if how == "Sub" else 1)
            return table

        return put

    def scatter(self, how: str) -> Callable[[Any, Any, Any], Any]:
        adds = how == "Add"
        return lambda old, numbers, rows: old.index_put((numbers,), rows, accumulate=adds)


def _traceable(value: Any) -> Any:
    """Return an array itself, or a copy of one that is read-only."""
    is_fixed = isinstance(value, np.ndarray) and not value.flags.writeable
    return value.copy() if is_fixed else value


BACKEND = _Torch()

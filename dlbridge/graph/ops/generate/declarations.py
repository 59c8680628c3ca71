"""Ranges, and tensors filled with one value."""

from __future__ import annotations

from dlbridge.graph.core.inference import Inference, require_rank, unchanged
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import FLOAT, INDEX, Shapes
from dlbridge.graph.ops.generate.ranges import count


def _range(c: Inference) -> Shapes:
    """As many elements as fit, where all three numbers are known."""
    for i in range(3):
        require_rank(c.dims(i), 0, c)
    numbers = [c.constant(i) for i in range(3)]
    if any(number is None for number in numbers):
        return [(None,)]
    start, limit, delta = (number[()] for number in numbers)
    try:
        return [(count(start, limit, delta),)]
    except ValueError as error:
        raise c.error(str(error)) from None


def filled(c: Inference) -> Shapes:
    """The shape given; -1 is as good as not known, and fails when it runs."""
    require_rank(c.dims(0), 1, c)
    dims = c.constant_dims(0)
    for dim in dims or ():
        if dim is not None and dim < 0:
            raise c.error(f"Invalid value in tensor used for shape: {dim}")
    return [dims]


def _linear(c: Inference) -> Shapes:
    for i in range(2):
        require_rank(c.dims(i), 0, c)
    number = c.integer(2)
    if number is not None and number <= 0:
        raise c.error(f"Requires num > 0: {number}")
    return [(number,)]


define(
    "Range(start: Tidx, limit: Tidx, delta: Tidx, *, Tidx: {bfloat16, float16, float32, float64, "
    "int8, int16, int32, int64, uint16, uint32, uint64} = int32) -> output: Tidx",
    shape=_range,
)
define(
    f"Fill(dims: index_type, value: T, *, T: type, index_type: {INDEX} = int32) -> output: T",
    shape=filled,
)
define(
    f"LinSpace(start: T, stop: T, num: Tidx, *, T: {FLOAT}, Tidx: {INDEX} = int32) -> output: T",
    shape=_linear,
)
define("ZerosLike(x: T, *, T: type) -> y: T", shape=unchanged)
define(
    "OnesLike(x: T, *, T: {bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, "
    "uint32, int64, uint64, complex64, complex128, bool}) -> y: T",
    shape=unchanged,
)

"""Element-wise arithmetic."""

from __future__ import annotations

from dlbridge.graph.inference import broadcast
from dlbridge.graph.opdef import define

define(
    "AddV2(x: T, y: T, *, T: {bfloat16, float16, float32, float64, uint8, uint16, uint32, uint64, "
    "int8, int16, int32, int64, complex64, complex128}) -> z: T",
    shape=broadcast,
    aggregate=True,
    commutative=True,
)

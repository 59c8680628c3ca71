"""What the op type takes and gives, and its static shape."""

from __future__ import annotations

import dlbridge.graph as tf


def _same_shape(inference):
    return [inference.dims(0)]


tf.register_op(
    "Softcap(x: T, *, cap: float = 30.0, T: {float16, float32, float64}) -> y: T",
    shape=_same_shape,
)

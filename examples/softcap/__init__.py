"""A family of op types from outside dlbridge, laid out as one in `dlbridge/graph/ops`.

Its one op type, Softcap, computes cap * tanh(x / cap): close to x where |x| is small, and at most
cap.
"""

from __future__ import annotations

from importlib import import_module

import dlbridge.graph as tf
from dlbridge.execution import registry


def _same_shape(inference):
    return [inference.dims(0)]


tf.register_op(
    "Softcap(x: T, *, cap: float = 30.0, T: {float16, float32, float64}) -> y: T",
    shape=_same_shape,
)


def softcap(x, cap=30.0, name=None):
    """Return cap * tanh(x / cap), element by element.

    Args:
        x: a Tensor of float16, float32 or float64, or what becomes one.
        cap: the bound of the results' magnitude.
        name: of the operation.
    """
    tensor = tf.convert_to_tensor(x)
    op = tensor.graph.create_op("Softcap", [tensor], name=name, attrs={"cap": cap})
    return op.outputs[0]


def _load(module: str) -> None:
    """Import the kernels when the first node runs: those for every framework, those for torch."""
    if module in ("kernels", "torch"):
        import_module(f"{__name__}.{module}")


registry.add_families(_load)

"""What users call."""

from __future__ import annotations

import dlbridge.graph as tf


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

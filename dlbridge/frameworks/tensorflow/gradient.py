"""Derivatives of the op: kernel.vjp for tapes, kernel.jvp or the transposed vjp for accumulators.

The gradient belongs to the op and finds the kernel by its name, so functions that were saved with
a model can be differentiated, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow
from tensorflow.python.eager import forwardprop

from dlbridge.errors import ExchangeError
from dlbridge.frameworks.tensorflow.node import NAMES, Node, read_node
from dlbridge.frameworks.tensorflow.op import CALL, TRANSPOSED


def register() -> None:
    """Register the gradient and the forward derivative of the op."""
    for name in (CALL, TRANSPOSED):
        tensorflow.RegisterGradient(name)(_differentiate)
    forwardprop._SPECIAL_CASES[CALL] = _push_forward


# ---- backward ----------------------------------------------------------------------------------


def _differentiate(op: Any, *cotangents: Any) -> list[Any]:
    """Return the gradient of each input of the op, None where there is none."""
    from dlbridge.kernels.gradients import gradients

    node = read_node(op)
    vjp = gradients.make_vjp(node.kernel)
    if vjp is None:
        raise gradients.no_gradient(node.kernel)
    given = [
        _dense(cotangent, result)
        for cotangent, result in zip(cotangents, node.results, strict=False)
    ]
    scalars = [_scalar_like(node, scalar, given) for scalar in node.scalars]
    found = vjp(node.primals, scalars, node.results, given)
    wanted = [found[index] for index in node.places]
    return [*wanted, *[None] * (len(op.inputs) - len(wanted))]


def _dense(cotangent: Any, result: Any) -> Any:
    """Return a cotangent as a tensor; a result that nothing depends on has zeros."""
    if cotangent is None:
        return tensorflow.zeros_like(result)
    return tensorflow.convert_to_tensor(cotangent)


def _scalar_like(node: Node, scalar: Any, cotangents: list[Any]) -> Any:
    """Return a scalar for use in the gradient; a symbolic one has the dtype of what it scales.

    Raises:
        ExchangeError: the scalar is symbolic and may depend on what is differentiated.
    """
    if not isinstance(scalar, tensorflow.Tensor) or not scalar.dtype.is_floating:
        return scalar
    if scalar.op.type != "StopGradient":
        raise ExchangeError(
            "requires_grad",
            f"{node.kernel.name}: a scalar is a symbolic tensor, whose gradient would be lost: "
            "pass a Python number, or tf.stop_gradient of the scalar",
        )
    floating = [each.dtype for each in cotangents if each.dtype.is_floating]
    return tensorflow.cast(scalar, floating[0]) if floating else scalar


# ---- forward -----------------------------------------------------------------------------------


def _push_forward(
    pairs: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], tangents: Sequence[Any]
) -> list[Any]:
    """Return the tangent of each output of the op."""
    from dlbridge.kernels.gradients import gradients

    given = dict(zip(pairs[::2], pairs[1::2], strict=True))
    node = Node({name: _text(given[name]) for name in NAMES}, inputs, outputs)
    jvp = gradients.make_jvp(node.kernel)
    if jvp is None:
        own: list[Any] = forwardprop._jvp_helper(TRANSPOSED, pairs, inputs, outputs, tangents)
        return own
    spread: list[Any] = [None] * len(node.primals)
    for index, tangent in zip(node.places, tangents, strict=False):
        spread[index] = tangent
    return list(jvp(node.primals, node.scalars, spread))


def _text(value: Any) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)

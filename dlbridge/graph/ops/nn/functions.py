"""Activations, softmax, bias: functions of `tf.nn` that are one operation."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.graph.core.default_graph import apply, convert_to_tensor, name_scope
from dlbridge.graph.core.operation import Tensor

__all__ = [
    "bias_add",
    "elu",
    "in_top_k",
    "l2_loss",
    "leaky_relu",
    "log_softmax",
    "relu",
    "relu6",
    "selu",
    "softmax",
    "softplus",
    "softsign",
]


def relu(features: Any, name: str | None = None) -> Tensor:
    """Return max(features, 0).

    Args:
        features: a tensor of real numbers, any shape.
        name: of the operation.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.nn.relu([-1.0, 2.0]))
        array([0., 2.], dtype=float32)
    """
    return apply("Relu", (features,), None, name).outputs[0]


def relu6(features: Any, name: str | None = None) -> Tensor:
    """Return features cut to 0 … 6; arguments as of `relu`."""
    return apply("Relu6", (features,), None, name).outputs[0]


def elu(features: Any, name: str | None = None) -> Tensor:
    """Return features, and exp(features) - 1 where they are negative.

    Args:
        features: a tensor of floats, any shape.
        name: of the operation.
    """
    return apply("Elu", (features,), None, name).outputs[0]


def selu(features: Any, name: str | None = None) -> Tensor:
    """Return scaled exponential linear units, which keep mean 0 and variance 1; as `elu`."""
    return apply("Selu", (features,), None, name).outputs[0]


def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Return features, and alpha * features where they are negative.

    Args:
        features: a tensor of floats, any shape; integers are taken as float32.
        alpha: slope of the negative part.
        name: of the operation.
    """
    with name_scope(name, "LeakyRelu", [features]) as full:
        x = convert_to_tensor(features, name="features")
        if x.dtype.is_integer:
            x = apply("Cast", (x,), {"DstT": "float32"}, None).outputs[0]
        return apply("LeakyRelu", (x,), {"alpha": float(alpha)}, full).outputs[0]


def softplus(features: Any, name: str | None = None) -> Tensor:
    """Return log(1 + exp(features)); arguments as of `elu`."""
    return apply("Softplus", (features,), None, name).outputs[0]


def softsign(features: Any, name: str | None = None) -> Tensor:
    """Return features / (1 + abs(features)); arguments as of `elu`."""
    return apply("Softsign", (features,), None, name).outputs[0]


def softmax(
    logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Return exp(logits), divided by their sum along an axis.

    Args:
        logits: a tensor of floats of rank 1 or more.
        axis: the dimension of the classes; None is the last. `dim` is its old name.
        name: of the operation.

    Raises:
        InvalidArgumentError: no such dimension.
    """
    return _along("Softmax", logits, dim if axis is None else axis, name)


def log_softmax(
    logits: Any, axis: int | None = None, name: str | None = None, dim: int | None = None
) -> Tensor:
    """Return the logarithm of `softmax`, with all its digits; arguments as there."""
    return _along("LogSoftmax", logits, dim if axis is None else axis, name)


def _along(op_type: str, logits: Any, axis: int | None, name: str | None) -> Tensor:
    """Apply what works on the last dimension to another one."""
    x = convert_to_tensor(logits)
    axis = -1 if axis is None else axis
    rank = x.shape.rank
    if axis == -1 or (rank is not None and axis == rank - 1):
        return apply(op_type, (x,), None, name).outputs[0]
    order = exchanged(x, axis)
    x = apply("Transpose", (x, order), None, "transpose").outputs[0]
    x = apply(op_type, (x,), None, None).outputs[0]
    return apply("Transpose", (x, order), None, name or "transpose").outputs[0]


def exchanged(x: Tensor, axis: int) -> list[int]:
    """Return the permutation that exchanges a dimension and the last one.

    Raises:
        ValueError: the rank is unknown.
        InvalidArgumentError: no such dimension.
    """
    rank = x.shape.rank
    if rank is None:
        raise ValueError(
            f"axis {axis} of {x.name!r}, whose rank is unknown: call set_shape first, or use the "
            "last axis, -1"
        )
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"`axis` must be in the range [{-rank}, {rank}), got {axis}")
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def bias_add(
    value: Any, bias: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """Return the sum of images, or of rows, and a vector along their channels.

    Args:
        value: a tensor of rank 2 or more.
        bias: a vector with as many elements as `value` has channels, of the same dtype.
        data_format: "N…C" (channels last, as for None) or "NC…" (channels in dimension 1).
        name: of the operation.

    Raises:
        ValueError: another data format; shapes that do not fit.
    """
    formats = {None: "NHWC", "NC": "NCHW"}
    layout = formats.get(data_format and data_format[:2])
    if layout is None and data_format is not None and data_format[:1] + data_format[-1:] == "NC":
        layout = "NHWC"
    if layout is None:
        raise ValueError(
            f"`data_format` must be of the form `N...C` or `NC...`, got {data_format!r}"
        )
    with name_scope(name, "BiasAdd", [value, bias]) as full:
        x = convert_to_tensor(value, name="input")
        other = convert_to_tensor(bias, x.dtype, "bias")
        return apply("BiasAdd", (x, other), {"data_format": layout.encode()}, full).outputs[0]


def l2_loss(t: Any, name: str | None = None) -> Tensor:
    """Return half the sum of squares, a scalar.

    Args:
        t: a tensor of floats, any shape.
        name: of the operation.
    """
    return apply("L2Loss", (t,), None, name).outputs[0]


def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Tensor:
    """Tell for each row whether its target is among the k largest predictions.

    Args:
        predictions: (batch, classes), float32; a row with a value that is not finite has no top.
        targets: (batch,), class numbers.
        k: how many; ties count as inside.
        name: of the operation.
    """
    with name_scope(name, "in_top_k", [predictions, targets]):
        return apply("InTopKV2", (predictions, targets, k), None, "InTopKV2").outputs[0]

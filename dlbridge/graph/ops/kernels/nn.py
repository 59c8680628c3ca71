"""Activations, losses and bias on the array API."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, number, require_rank, widened, wider

# The fixed point of Selu: mean 0 and variance 1 stay so (Klambauer et al. 2017).
SELU_ALPHA = 1.6732632423543772
SELU_SCALE = 1.0507009873554805


# ---- activations -------------------------------------------------------------------------------


@kernel("Relu")
def relu(node: Node, context: Context) -> Function:
    if node.output_types[0].is_unsigned:
        return lambda x: x
    xp = context.xp
    return lambda x: xp.where(x < 0, xp.zeros_like(x), x)


@kernel("Relu6")
def relu6(node: Node, context: Context) -> Function:
    xp = context.xp
    return lambda x: xp.clip(x, 0, 6)


@kernel("LeakyRelu")
def leaky_relu(node: Node, context: Context) -> Function:
    xp, alpha = context.xp, number(context, node.attrs["alpha"], node.output_types[0])
    return lambda x: xp.where(x < 0, x * alpha, x)


@kernel("Elu")
def elu(node: Node, context: Context) -> Function:
    xp = context.xp
    return lambda x: xp.where(x < 0, xp.expm1(xp.clip(x, None, 0)), x)


@kernel("Selu")
def selu(node: Node, context: Context) -> Function:
    xp, kind = context.xp, node.output_types[0]
    scale = number(context, SELU_SCALE, kind)
    slope = number(context, SELU_SCALE * SELU_ALPHA, kind)
    return lambda x: xp.where(x < 0, slope * xp.expm1(xp.clip(x, None, 0)), scale * x)


@kernel("Softplus")
def softplus(node: Node, context: Context) -> Function:
    """log(1 + exp(x)), of which neither end overflows nor loses digits."""
    xp = context.xp
    return lambda x: xp.clip(x, 0, None) + xp.log1p(xp.exp(-xp.abs(x)))


@kernel("Softsign")
def softsign(node: Node, context: Context) -> Function:
    xp, one = context.xp, number(context, 1, node.output_types[0])
    return lambda x: x / (one + xp.abs(x))


# ---- rows of logits ----------------------------------------------------------------------------


@kernel("Softmax")
def softmax(node: Node, context: Context) -> Function:
    xp = context.xp

    def run(logits: Any) -> Any:
        if 0 in logits.shape:
            return logits
        powers = xp.exp(logits - xp.max(logits, axis=-1, keepdims=True))
        return powers / xp.sum(powers, axis=-1, keepdims=True)

    return widened(run, node, context)


@kernel("LogSoftmax")
def log_softmax(node: Node, context: Context) -> Function:
    run = _log_softmax(context.xp)
    return widened(run, node, context)


def _log_softmax(xp: Any) -> Function:
    def run(logits: Any) -> Any:
        if 0 in logits.shape:
            return logits
        shifted = logits - xp.max(logits, axis=-1, keepdims=True)
        return shifted - xp.log(xp.sum(xp.exp(shifted), axis=-1, keepdims=True))

    return run


@kernel("SoftmaxCrossEntropyWithLogits")
def cross_entropy(node: Node, context: Context) -> Function:
    """The loss of each row, and its gradient."""
    xp = context.xp
    logarithms = _log_softmax(xp)

    def run(logits: Any, labels: Any) -> tuple[Any, Any]:
        logits = xp.broadcast_to(logits, xp.broadcast_arrays(logits, labels)[0].shape)
        require_rank(logits, 2, node, "the broadcast of features and labels")
        rows = logarithms(logits)
        return -xp.sum(labels * rows, axis=-1), xp.exp(rows) - labels

    return widened(run, node, context)


@kernel("SparseSoftmaxCrossEntropyWithLogits")
def sparse_cross_entropy(node: Node, context: Context) -> Function:
    """As with one-hot labels; NaN for a label out of range that is not looked at."""
    xp = context.xp
    logarithms = _log_softmax(xp)

    def run(logits: Any, labels: Any) -> tuple[Any, Any]:
        _check_labels(node, context, logits, labels)
        classes = logits.shape[-1]
        rows = logarithms(logits)
        numbers = xp.arange(classes, dtype=labels.dtype, device=context.device)
        chosen = numbers[None, :] == labels[:, None]
        loss = -xp.sum(xp.where(chosen, rows, xp.zeros_like(rows)), axis=-1)
        gradient = xp.exp(rows) - xp.astype(chosen, rows.dtype)
        if not context.checks:
            wrong = (labels < 0) | (labels >= classes)
            loss = xp.where(wrong, xp.nan, loss)
            gradient = xp.where(wrong[:, None], xp.nan, gradient)
        return loss, gradient

    return widened(run, node, context)


def _check_labels(node: Node, context: Context, logits: Any, labels: Any) -> None:
    rows, classes = logits.shape
    if tuple(labels.shape) != (rows,):
        raise InvalidArgumentError(
            f"logits and labels must have the same first dimension, got logits shape "
            f"[{rows},{classes}] and labels shape {list(labels.shape)}",
            node,
        )
    if not context.checks or not rows:
        return
    low, high = int(context.xp.min(labels)), int(context.xp.max(labels))
    if low < 0 or high >= classes:
        raise InvalidArgumentError(
            f"Received a label value of {low if low < 0 else high} which is outside the valid "
            f"range of [0, {classes})",
            node,
        )


@kernel("InTopK", "InTopKV2")
def in_top_k(node: Node, context: Context) -> Function:
    """Whether fewer than k predictions are above the target's; only finite ones count."""
    xp, fixed = context.xp, node.attrs.get("k")

    def run(predictions: Any, targets: Any, k: Any = fixed) -> Any:
        require_rank(predictions, 2, node, "predictions")
        require_rank(targets, 1, node, "targets")
        if fixed is None:
            require_rank(k, 0, node, "k")
        if predictions.shape[0] != targets.shape[0]:
            raise InvalidArgumentError(
                f"First dimension of predictions {predictions.shape[0]} must match length of "
                f"targets {targets.shape[0]}",
                node,
            )
        numbers = xp.arange(predictions.shape[-1], dtype=targets.dtype, device=context.device)
        chosen = numbers[None, :] == targets[:, None]
        own = xp.sum(xp.where(chosen, predictions, xp.zeros_like(predictions)), axis=-1)
        above = xp.sum(xp.astype(predictions > own[:, None], targets.dtype), axis=-1)
        known = xp.any(chosen, axis=-1) & xp.all(xp.isfinite(predictions), axis=-1)
        return (above < k) & known

    return run


# ---- bias and norms ----------------------------------------------------------------------------


@kernel("BiasAdd", "BiasAddV1")
def bias_add(node: Node, context: Context) -> Function:
    """The sum with a vector along the channels."""
    if node.attrs.get("data_format") != b"NCHW":
        add = context.xp.add

        def last(value: Any, bias: Any) -> Any:
            _check_bias(node, value.shape[-1], bias)
            return add(value, bias)

        return last
    reshape = context.xp.reshape

    def second(value: Any, bias: Any) -> Any:
        _check_bias(node, value.shape[1], bias)
        return value + reshape(bias, (-1, *(1,) * (len(value.shape) - 2)))

    return second


def _check_bias(node: Node, channels: int, bias: Any) -> None:
    if tuple(bias.shape) != (channels,):
        raise InvalidArgumentError(
            f"Must provide as many biases as the channel dimension of the input tensor: "
            f"{list(bias.shape)} vs. {channels}",
            node,
        )


@kernel("L2Loss")
def l2_loss(node: Node, context: Context) -> Function:
    """Half the sum of squares."""
    xp, half = context.xp, number(context, 0.5, wider(node.output_types[0]))
    return widened(lambda x: xp.sum(x * x) * half, node, context)

"""Losses of `tf.nn`: cross entropies of logits."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.default_graph import apply, convert_to_tensor, name_scope
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array.functions import reshape, shape, transpose
from dlbridge.graph.ops.basic.functions import stop_gradient
from dlbridge.graph.ops.functions import one_of, result
from dlbridge.graph.ops.joining.functions import concat
from dlbridge.graph.ops.nn.functions import exchanged, relu
from dlbridge.graph.ops.slicing.functions import slice as slice_of
from dlbridge.proto.datatypes import bfloat16, float16, float32
from dlbridge.shape import Dims

__all__ = [
    "sigmoid_cross_entropy_with_logits", "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2", "sparse_softmax_cross_entropy_with_logits",
    "weighted_cross_entropy_with_logits",
]  # fmt: skip


def softmax_cross_entropy_with_logits(
    labels: Any = None,
    logits: Any = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return the cross entropy of labels and softmax(logits); no gradient goes to the labels.

    Args:
        labels: probabilities, of the shape of `logits`.
        logits: floats; 16-bit ones are computed in 32 bits.
        axis: of the classes; `dim` is its old name.
        name: of the scope of its operations.

    Returns:
        A tensor without that axis, of the dtype of `logits`.
    """
    labels, logits = _given("softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "softmax_cross_entropy_with_logits_sg", [logits, labels]) as full:
        labels = stop_gradient(labels, "labels_stop_gradient")
        return softmax_cross_entropy_with_logits_v2(labels, logits, axis or dim, full)


def softmax_cross_entropy_with_logits_v2(
    labels: Any,
    logits: Any,
    axis: int | None = None,
    name: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """Return the cross entropy of labels and softmax(logits).

    Args:
        labels: probabilities, of the shape of `logits`.
        logits: floats; 16-bit ones are computed in 32 bits.
        axis: of the classes, None is the last; `dim` is its old name.
        name: of the scope of its operations.

    Returns:
        A tensor without that axis, of the dtype of `logits`.
    """
    axis = dim if axis is None else axis
    with name_scope(name, "softmax_cross_entropy_with_logits", [logits, labels]) as full:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, name="labels")
        kind = logits.dtype
        precise = _widened(logits)
        labels = _cast(labels, precise.dtype)
        if axis not in {None, -1} and axis != (precise.shape.rank or 0) - 1:
            assert axis is not None
            order = _moved_last(precise, axis)
            precise, labels = transpose(precise, order), transpose(labels, order)
        out_shape = _without_last(precise)
        flat, flat_labels = _rows(precise), _rows(labels)
        cost = apply("SoftmaxCrossEntropyWithLogits", (flat, flat_labels), None, full).outputs[0]
        dims = precise._dims
        cost = reshape(cost, out_shape)
        if dims is not None:
            cost.set_shape(dims[:-1])
        return _cast(cost, kind)


def sparse_softmax_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Return the cross entropy of softmax(logits) and labels that are class numbers.

    Args:
        labels: int32 or int64, of the shape of `logits` without its last dimension.
        logits: floats; 16-bit ones are computed in 32 bits.
        name: of the scope of its operations.

    Returns:
        A tensor of the shape of `labels` and the dtype of `logits`. A label that is no class
        number is an InvalidArgumentError when it runs, and NaN in JAX.

    Raises:
        ValueError: shapes that do not fit.
    """
    labels, logits = _given("sparse_softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "SparseSoftmaxCrossEntropyWithLogits", [labels, logits]):
        labels = convert_to_tensor(labels)
        logits = convert_to_tensor(logits)
        _check_sparse(labels._dims, logits._dims)
        kind = logits.dtype
        precise = _widened(logits)
        if precise.shape.rank == 2:
            return _cast(_sparse(precise, labels), kind)
        out_shape = shape(labels)
        cost = _sparse(_rows(precise), reshape(labels, [-1]))
        cost = reshape(cost, out_shape)
        if labels._dims is not None:
            cost.set_shape(labels._dims)
        return _cast(cost, kind)


def _sparse(logits: Tensor, labels: Tensor) -> Tensor:
    return result("SparseSoftmaxCrossEntropyWithLogits", (logits, labels))


def _check_sparse(labels: Dims | None, logits: Dims | None) -> None:
    if logits is not None and not logits:
        raise ValueError("Logits cannot be scalars - received shape ().")
    if labels is None or logits is None:
        return
    if len(labels) != len(logits) - 1:
        raise ValueError(
            f"Rank mismatch: Rank of labels (received {len(labels)}) should equal rank of logits "
            f"minus 1 (received {len(logits)})."
        )
    for one, other in zip(labels, logits[:-1], strict=True):
        if one is not None and other is not None and one != other:
            raise ValueError(
                "`labels.shape` must equal `logits.shape` except for the last dimension. "
                f"Received: labels.shape={labels} and logits.shape={logits}"
            )


def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Return the cross entropy of labels and sigmoid(logits), element by element.

    Args:
        labels: probabilities of classes that do not exclude each other.
        logits: of the same shape and dtype.
        name: of the scope of its operations.

    Raises:
        ValueError: shapes that differ.
    """
    labels, logits = _given("sigmoid_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "logistic_loss", [logits, labels]) as full:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, logits.dtype, "labels")
        _check_same("logits", logits, "labels", labels)
        zeros = result("ZerosLike", (logits,), "zeros_like")
        positive = result("GreaterEqual", (logits, zeros))
        above = result("Select", (positive, logits, zeros))
        below = result("Select", (positive, result("Neg", (logits,)), logits))
        linear = result("Sub", (above, result("Mul", (logits, labels), "mul")), "sub")
        return result("AddV2", (linear, result("Log1p", (result("Exp", (below,)),))), full)


def weighted_cross_entropy_with_logits(
    labels: Any = None,
    logits: Any = None,
    pos_weight: Any = None,
    name: str | None = None,
    targets: Any = None,
) -> Tensor:
    """Return `sigmoid_cross_entropy_with_logits` whose positive term is weighted.

    Args:
        labels: probabilities; `targets` is its old name.
        logits: of the same shape and dtype.
        pos_weight: factor of the positive term.
        name: of the scope of its operations.

    Raises:
        ValueError: shapes that differ.
    """
    labels = one_of("weighted_cross_entropy_with_logits", labels=labels, targets=targets)
    with name_scope(name, "logistic_loss", [logits, labels]) as full:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, logits.dtype, "labels")
        _check_same("logits", logits, "labels", labels)
        more = result("Mul", (result("Sub", (pos_weight, 1.0), "sub"), labels), "mul")
        factor = result("AddV2", (1.0, more), "add")
        linear = result("Mul", (result("Sub", (1.0, labels), "sub"), logits), "mul")
        below = result("Neg", (result("Abs", (logits,)),))
        logarithm = result("Log1p", (result("Exp", (below,)),))
        bend = result("AddV2", (logarithm, relu(result("Neg", (logits,)))), "add")
        return result("AddV2", (linear, result("Mul", (factor, bend), "mul")), full)


# ---- shared parts ------------------------------------------------------------------------------


def _given(call: str, labels: Any, logits: Any) -> tuple[Any, Any]:
    if labels is None or logits is None:
        raise ValueError(f"Both `labels` and `logits` must be provided to {call}, by name")
    return labels, logits


def _check_same(first: str, one: Tensor, second: str, other: Tensor) -> None:
    try:
        one.shape.merge_with(other.shape)
    except ValueError:
        raise ValueError(
            f"`{first}` and `{second}` must have the same shape, received ({one.shape} vs "
            f"{other.shape})."
        ) from None


def _widened(logits: Tensor) -> Tensor:
    return _cast(logits, float32) if logits.dtype in {float16, bfloat16} else logits


def _cast(x: Tensor, dtype: Any) -> Tensor:
    if x.dtype is dtype:
        return x
    return apply("Cast", (x,), {"DstT": dtype}).outputs[0]


def _moved_last(x: Tensor, axis: int) -> list[int]:
    """Return the permutation that moves a dimension to the end."""
    order = sorted(exchanged(x, axis))
    order.append(order.pop(axis))
    return order


def _rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, all dimensions but the last made into one."""
    dims = x._dims
    if dims is not None and dims[-1] is not None:
        return reshape(x, [-1, dims[-1]])
    whole = shape(x)
    count = apply("Rank", (x,)).outputs[0]
    last = slice_of(whole, [result("Sub", (count, 1), "sub")], [1])
    out = reshape(x, concat([[-1], last], 0))
    out.set_shape((None, None if dims is None else dims[-1]))
    return out


def _without_last(x: Tensor) -> Any:
    """Return the shape without its last dimension, a list where it is known."""
    dims = x._dims
    if dims is not None and None not in dims[:-1]:
        return list(dims[:-1])
    if dims is not None:
        return slice_of(shape(x), [0], [len(dims) - 1])
    count = apply("Rank", (x,)).outputs[0]
    return slice_of(shape(x), [0], [result("Sub", (count, 1), "sub")])

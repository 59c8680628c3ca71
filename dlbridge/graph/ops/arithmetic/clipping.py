"""Bounds on elements and on norms: what users call."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.arithmetic.functions import (
    add,
    maximum,
    minimum,
    multiply,
    subtract,
    truediv,
)
from dlbridge.graph.ops.functions import as_tensor, result, scope
from dlbridge.graph.ops.reduce.functions import reduce_sum

__all__ = ["clip_by_global_norm", "clip_by_norm", "clip_by_value", "global_norm"]


def clip_by_value(
    t: Any, clip_value_min: Any, clip_value_max: Any, name: str | None = None
) -> Tensor:
    """Return t between two bounds.

    Args:
        t: a Tensor of floating numbers or integers, or what becomes one.
        clip_value_min, clip_value_max: bounds of its dtype, broadcast to its shape. Where they
            cross, the lower one wins.
        name: of the scope.

    Returns:
        Tensor: of the shape of t. NaN stays NaN.

    Raises:
        TypeError: the dtypes differ, or are others.
        ValueError: bounds that do not fit, or would make the result larger than t.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.clip_by_value([-3.0, 0.5, 9.0], 0.0, [0.1, 0.4, 1.0]))
        array([0. , 0.4, 1. ], dtype=float32)
    """
    with scope(name, "clip_by_value", (t, clip_value_min, clip_value_max)) as full:
        t = as_tensor(t, None, "t")
        lowered = minimum(t, clip_value_max)
        lowered.shape.assert_is_compatible_with(t.shape)
        clipped = maximum(lowered, clip_value_min, full)
        t.shape.assert_is_compatible_with(clipped.shape)
        return clipped


def clip_by_norm(t: Any, clip_norm: Any, axes: Any = None, name: str | None = None) -> Tensor:
    """Return t, made shorter where its Euclidean norm is more than `clip_norm`.

    Args:
        t: a Tensor of floating numbers, or what becomes one.
        clip_norm: a positive number of the same dtype, or a tensor broadcast with the norms.
        axes: along which norms are taken; None is one norm of all elements.
        name: of the scope.

    Raises:
        TypeError: integers, or dtypes that differ.
        ValueError: axes that t does not have.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.clip_by_norm([[3.0, 4.0], [0.3, 0.4]], 1.0, axes=[1]))
        array([[0.6, 0.8],
               [0.3, 0.4]], dtype=float32)
    """
    with scope(name, "clip_by_norm", (t,)) as full:
        t = as_tensor(t, None, "t")
        squares = reduce_sum(multiply(t, t), axes, keepdims=True)
        is_positive = result("Greater", (squares, 0))
        ones = result("OnesLike", (squares,))
        # A root of 0 is avoided, since its derivative is infinite.
        root = result("Sqrt", (result("SelectV2", (is_positive, squares, ones)),))
        norm = result("SelectV2", (is_positive, root, squares))
        longest = maximum(norm, clip_norm)
        return result("RealDiv", (multiply(t, clip_norm), longest), full)


def global_norm(t_list: Sequence[Any], name: str | None = None) -> Tensor:
    """Return the Euclidean norm of all elements of several tensors, a scalar.

    Args:
        t_list: Tensors of one dtype of floating numbers, each of any shape; those that are None
            count as 0, but not all of them may be.
        name: of the scope.

    Raises:
        ValueError: no tensor at all.
        TypeError: dtypes that differ, or of no floating numbers.
    """
    given = [each for each in t_list if each is not None]
    with scope(name, "global_norm", given):
        halves = [result("L2Loss", (each,)) for each in given]
        total = reduce_sum(result("Pack", (halves,), "stack", axis=0))
        doubled = multiply(total, as_tensor(2.0, total.dtype))
        return result("Sqrt", (doubled,), "global_norm")


def clip_by_global_norm(
    t_list: Sequence[Any], clip_norm: Any, use_norm: Tensor | None = None, name: str | None = None
) -> tuple[list[Tensor | None], Tensor]:
    """Return tensors scaled so that their common norm is at most `clip_norm`, and that norm.

    Args:
        t_list: as of `global_norm`; a None stays in its place.
        clip_norm: a positive number, or a scalar Tensor.
        use_norm: the norm, if it is known already; None computes it.
        name: of the scope.

    Returns:
        tuple: a list of Tensors, and the norm before scaling. All of them become NaN where the norm
        is infinite or NaN, so that nothing wrong is passed on unseen.

    Raises:
        ValueError, TypeError: as of `global_norm`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     sides = [tf.constant([3.0]), tf.constant([4.0])]
        ...     clipped, norm = tf.clip_by_global_norm(sides, 1.0)
        ...     session.run([*clipped, norm])
        [array([0.6], dtype=float32), array([0.8], dtype=float32), np.float32(5.0)]
    """
    norm = global_norm(t_list) if use_norm is None else use_norm
    with scope(name, "clip_by_global_norm", t_list) as full:
        one = as_tensor(1.0, norm.dtype)
        smaller = minimum(truediv(one, norm), truediv(one, as_tensor(clip_norm, norm.dtype)))
        scale = add(multiply(clip_norm, smaller), subtract(norm, norm))
        clipped = [
            None if each is None else result("Identity", (multiply(each, scale),), f"{full}_{i}")
            for i, each in enumerate(t_list)
        ]
    return clipped, norm

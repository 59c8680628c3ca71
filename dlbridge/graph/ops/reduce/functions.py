"""Reductions, positions of extremes, and the largest elements: what users call."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.functions import as_index, as_tensor, at_most_one, result, scope
from dlbridge.graph.ops.unary.functions import cast
from dlbridge.proto.datatypes import as_dtype, int32, int64

__all__ = [
    "argmax",
    "argmin",
    "count_nonzero",
    "reduce_all",
    "reduce_any",
    "reduce_euclidean_norm",
    "reduce_logsumexp",
    "reduce_max",
    "reduce_mean",
    "reduce_min",
    "reduce_prod",
    "reduce_std",
    "reduce_sum",
    "reduce_variance",
]


def all_axes(x: Tensor) -> Any:
    """Return a tensor of all axes of x: a constant where the rank is known."""
    dims = x._dims
    if dims is not None:
        return as_tensor(np.arange(len(dims), dtype=np.int32), int32)
    return result("Range", (0, result("Rank", (x,)), 1), "range")


def _reduction(
    op_type: str, x: Any, axis: Any, keepdims: bool | None, name: str | None, old: tuple[Any, Any]
) -> Tensor:
    """Create a reduction; `old` are the arguments' names of early versions."""
    axis = at_most_one(op_type, None, reduction_indices=old[0], axis=axis)
    keep = bool(at_most_one(op_type, None, keep_dims=old[1], keepdims=keepdims))
    x = as_tensor(x, None, "input")
    axes = all_axes(x) if axis is None else as_index(axis)
    reduced = result(op_type, (x, axes), name, keep_dims=keep)
    if axis is None and not keep:
        reduced.set_shape(())
    return reduced


def _reducing(op_type: str, name: str, summary: str, details: str) -> Any:
    def reduce(
        input_tensor: Any,
        axis: Any = None,
        keepdims: bool | None = None,
        name: str | None = None,
        reduction_indices: Any = None,
        keep_dims: bool | None = None,
    ) -> Tensor:
        old = reduction_indices, keep_dims
        return _reduction(op_type, input_tensor, axis, keepdims, name, old)

    reduce.__doc__ = f"""{summary}

    {details}

    Args:
        input_tensor: a Tensor, or what becomes one.
        axis: an axis, several without repetition, or a Tensor of them, negative ones from the end;
            None is all. No axes at all ([]) return the tensor as it is.
        keepdims: whether the axes stay, with an extent of 1.
        name: of the operation, {op_type!r} by default.
        reduction_indices, keep_dims: the names of `axis` and `keepdims` in early versions.

    Raises:
        ValueError: an axis that the tensor does not have; both names of one argument.
        TypeError: another dtype, or axes that are no integers.

    Axes that get known only in a run, and those named twice, end it with InvalidArgumentError if
    they are wrong.
    """
    reduce.__name__ = reduce.__qualname__ = name
    return reduce


_TRUTH = "Of bool only; nothing else is converted."

reduce_sum = _reducing(
    "Sum",
    "reduce_sum",
    "Return the sum of elements along axes.",
    "Of all numbers, in their dtype: integers wrap around, halves are added in float32 and then "
    "rounded. The sum of nothing is 0.",
)
reduce_mean = _reducing(
    "Mean",
    "reduce_mean",
    "Return the mean of elements along axes.",
    "Of all numbers, in their dtype: that of integers is rounded towards zero. The mean of nothing "
    "is NaN, of integers 0.",
)
reduce_prod = _reducing(
    "Prod",
    "reduce_prod",
    "Return the product of elements along axes.",
    "Of all numbers, as of `reduce_sum`. The product of nothing is 1.",
)
reduce_max = _reducing(
    "Max",
    "reduce_max",
    "Return the greatest element along axes, NaN if there is one.",
    "Of floating numbers and integers. The greatest of nothing is -infinity, or the least integer.",
)
reduce_min = _reducing(
    "Min",
    "reduce_min",
    "Return the least element along axes, NaN if there is one.",
    "Of floating numbers and integers. The least of nothing is infinity, or the greatest integer.",
)
reduce_all = _reducing(
    "All",
    "reduce_all",
    "Return whether all elements along axes are true.",
    f"{_TRUTH} True of none.",
)
reduce_any = _reducing(
    "Any",
    "reduce_any",
    "Return whether any element along axes is true.",
    f"{_TRUTH} False of none.",
)


def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the root of the sum of squares along axes, in the dtype of the operand.

    Of all numbers: that of integers is truncated toward zero, that of complex numbers is
    complex with an imaginary part of 0. Arguments and errors as of `reduce_sum`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.math.reduce_euclidean_norm([[3.0, 4.0], [5.0, 12.0]], 1))
        array([ 5., 13.], dtype=float32)
    """
    return _reduction("EuclideanNorm", input_tensor, axis, keepdims, name, (None, None))


def reduce_logsumexp(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the logarithm of the sum of exponentials along axes, without overflow of exp.

    Of floating numbers; arguments and errors as of `reduce_sum`, but `name` is that of a scope. The
    result for nothing but -infinity is -infinity.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.reduce_logsumexp([1000.0, 1000.0]))  # 1000 + log 2
        np.float32(1000.6932)
    """
    axis = at_most_one("reduce_logsumexp", None, reduction_indices=reduction_indices, axis=axis)
    keep = bool(at_most_one("reduce_logsumexp", None, keep_dims=keep_dims, keepdims=keepdims))
    with scope(name, "ReduceLogSumExp", (input_tensor,)) as full:
        x = as_tensor(input_tensor, None, "input_tensor")
        greatest = reduce_max(x, axis, keepdims=True)
        finite = result("IsFinite", (greatest,))
        shift = result("SelectV2", (finite, greatest, 0))
        total = reduce_sum(result("Exp", (result("Sub", (x, shift)),)), axis, keepdims=keep)
        logarithm = result("Log", (total,))
        if not keep:
            shift = result("Reshape", (shift, result("Shape", (logarithm,))))
        return result("AddV2", (logarithm, shift), full)


def reduce_variance(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the mean squared distance from the mean along axes.

    The sum of squares is divided by the number of elements, not by one less. Of floating numbers,
    in their dtype, and of complex numbers, as real ones. Arguments and errors as of `reduce_sum`,
    but `name` is that of a scope.

    Raises:
        TypeError: integers, whose mean would be rounded.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.math.reduce_variance([[1.0, 3.0], [2.0, 8.0]], axis=1))
        array([1., 9.], dtype=float32)
    """
    with scope(name, "reduce_variance", (input_tensor,)):
        x = as_tensor(input_tensor, None, "input_tensor")
        if x.dtype.is_integer:
            raise TypeError(f"Input must be either real or complex, got {x.dtype!r}; cast it first")
        distance = result("Sub", (x, reduce_mean(x, axis, keepdims=True)), "sub")
        if x.dtype.is_complex:
            squares = _squared_absolute(distance)
        else:
            squares = result("Square", (distance,))
        mean: Tensor = reduce_mean(squares, axis, keepdims=keepdims)
        return mean


def _squared_absolute(x: Tensor) -> Tensor:
    product = result("Mul", (x, result("Conj", (x,))))
    return result("Real", (product,), Tout=x.dtype.base_dtype.real_dtype)


def reduce_std(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the standard deviation along axes, the root of `reduce_variance`; its rules hold."""
    with scope(name, "reduce_std", (input_tensor,)):
        x = as_tensor(input_tensor, None, "input_tensor")
        return result("Sqrt", (reduce_variance(x, axis, keepdims),))


def count_nonzero(
    input_tensor: Any = None,
    axis: Any = None,
    keepdims: bool | None = None,
    dtype: object = int64,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
    input: Any = None,
) -> Tensor:
    """Return how many elements along axes are not zero.

    Args:
        input_tensor: a Tensor of numbers, bool or strings, or what becomes one; an empty string is
            zero, NaN is not.
        axis, keepdims: as of `reduce_sum`.
        dtype: of the result; the count itself is made in int64.
        name: of the scope.
        reduction_indices, keep_dims, input: the names of `axis`, `keepdims` and `input_tensor` in
            other versions.

    Raises:
        ValueError: an axis that the tensor does not have; both names of one argument.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.count_nonzero([[0, 1], [2, 3]], axis=1))
        array([1, 2])
    """
    x = input if input_tensor is None else input_tensor
    with scope(name, "count_nonzero", (x,)):
        x = as_tensor(x, None, "input")
        zero = np.zeros((), x.dtype.base_dtype.numpy) if x.dtype.kind != "s" else b""
        differs = result("NotEqual", (x, as_tensor(zero, x.dtype.base_dtype, "zeros")))
        ones = result("Cast", (differs,), DstT=int64)
        total = reduce_sum(ones, axis, keepdims, None, reduction_indices, keep_dims)
        return cast(total, dtype)


def _position(op_type: str, x: Any, axis: Any, name: str | None, old: Any, kind: object) -> Tensor:
    where = at_most_one(op_type, None, dimension=old, axis=axis)
    attrs = {"output_type": as_dtype(kind)}
    return result(op_type, (x, as_index(0 if where is None else where)), name, **attrs)


def argmax(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the greatest element along an axis is, the first of equal ones.

    Args:
        input: a Tensor of floating numbers, integers or bool, or what becomes one.
        axis: one axis, a negative one from the end; None is 0. It may be a Tensor. The result has
            the other dimensions.
        name: of the operation, "ArgMax" by default.
        dimension: the name of `axis` in early versions.
        output_type: int64, int32, int16 or uint16.

    Raises:
        ValueError: an axis that the tensor does not have, or both its names.
        TypeError: another dtype.

    An axis without elements, and one that proves wrong only in a run, end it with
    InvalidArgumentError. NaN is passed over unless there is nothing else.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.argmax([[1.0, 5.0], [7.0, 5.0]], axis=1))
        array([1, 0])
    """
    return _position("ArgMax", input, axis, name, dimension, output_type)


def argmin(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the least element along an axis is, the first of equal ones.

    Arguments and errors as of `argmax`, but `output_type` is int64 or int32.
    """
    return _position("ArgMin", input, axis, name, dimension, output_type)


class TopK(NamedTuple):
    """Values and indices."""

    values: Tensor
    indices: Tensor


def top_k(
    input: Any, k: Any = 1, sorted: bool = True, index_type: object = int32, name: str | None = None
) -> TopK:
    """Return the k largest elements of each row, and their indices; the first of equal ones.

    Args:
        input: real numbers, rank 1 or more.
        k: how many, an int32 scalar.
        sorted: whether they come in descending order.
        index_type: of the indices: int16, int32 or int64.
        name: of the operation.

    Returns:
        A pair (values, indices).
    """
    attrs = {"sorted": sorted, "index_type": as_dtype(index_type)}
    return TopK(*apply("TopKV2", (input, k), attrs, name).outputs)

"""Reductions along axes: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_index, as_tensor, result, scope
from dlbridge.graph.ops.unary.conversions import cast
from dlbridge.proto.datatypes import int32, int64

__all__ = [
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
    return result("Range", (0, result("Rank", (x,)), 1), None, "range")


def _reduction(
    op_type: str, x: Any, axis: Any, keepdims: bool | None, name: str | None, old: tuple[Any, Any]
) -> Tensor:
    """Create a reduction; `old` are the arguments' names of early versions."""
    axis = one_of("axis", axis, "reduction_indices", old[0])
    keep = bool(one_of("keepdims", keepdims, "keep_dims", old[1]))
    x = as_tensor(x, None, "input")
    axes = all_axes(x) if axis is None else as_index(axis)
    reduced = result(op_type, (x, axes), {"keep_dims": keep}, name)
    if axis is None and not keep:
        reduced.set_shape(())
    return reduced


def one_of(name: str, value: Any, old_name: str, old_value: Any) -> Any:
    """Return the argument that was given under one of two names; ValueError if both are."""
    if old_value is None:
        return value
    if value is not None:
        raise ValueError(f"Cannot specify both {old_name!r} and {name!r}.")
    return old_value


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

    Of all numbers: that of integers loses what is behind the point, that of complex numbers is
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
    """Return the logarithm of the sum of exponentials along axes, where exp would overflow, too.

    Of floating numbers; arguments and errors as of `reduce_sum`, but `name` is that of a scope. The
    result for nothing but -infinity is -infinity.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.reduce_logsumexp([1000.0, 1000.0]))  # 1000 + log 2
        np.float32(1000.6932)
    """
    axis = one_of("axis", axis, "reduction_indices", reduction_indices)
    keep = bool(one_of("keepdims", keepdims, "keep_dims", keep_dims))
    with scope(name, "ReduceLogSumExp", (input_tensor,)) as full:
        x = as_tensor(input_tensor, None, "input_tensor")
        greatest = reduce_max(x, axis, keepdims=True)
        finite = result("IsFinite", (greatest,))
        shift = result("SelectV2", (finite, greatest, 0))
        total = reduce_sum(result("Exp", (result("Sub", (x, shift)),)), axis, keepdims=keep)
        logarithm = result("Log", (total,))
        if not keep:
            shift = result("Reshape", (shift, result("Shape", (logarithm,))))
        return result("AddV2", (logarithm, shift), None, full)


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
        distance = result("Sub", (x, reduce_mean(x, axis, keepdims=True)), None, "sub")
        if x.dtype.is_complex:
            squares = _squared_absolute(distance)
        else:
            squares = result("Square", (distance,))
        mean: Tensor = reduce_mean(squares, axis, keepdims=keepdims)
        return mean


def _squared_absolute(x: Tensor) -> Tensor:
    product = result("Mul", (x, result("Conj", (x,))))
    return result("Real", (product,), {"Tout": x.dtype.base_dtype.real_dtype})


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
        ones = result("Cast", (differs,), {"DstT": int64})
        total = reduce_sum(ones, axis, keepdims, None, reduction_indices, keep_dims)
        return cast(total, dtype)

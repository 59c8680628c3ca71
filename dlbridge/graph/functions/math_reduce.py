"""Reductions, running sums and positions: what users call."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.functions.math_support import as_index, as_tensor, result, scope
from dlbridge.graph.functions.math_unary import cast
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype, int32, int64

__all__ = [
    "argmax",
    "argmin",
    "count_nonzero",
    "cumprod",
    "cumsum",
    "cumulative_logsumexp",
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
    axis = _one_of("axis", axis, "reduction_indices", old[0])
    keep = bool(_one_of("keepdims", keepdims, "keep_dims", old[1]))
    x = as_tensor(x, None, "input")
    axes = all_axes(x) if axis is None else as_index(axis)
    reduced = result(op_type, (x, axes), {"keep_dims": keep}, name)
    if axis is None and not keep:
        reduced.set_shape(())
    return reduced


def _one_of(name: str, value: Any, old_name: str, old_value: Any) -> Any:
    if old_value is None:
        return value
    if value is not None:
        raise ValueError(f"Cannot specify both {old_name!r} and {name!r}.")
    return old_value


def _reducing(op_type: str, name: str, summary: str) -> Any:
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

    Args:
        input_tensor: a Tensor, or what becomes one.
        axis: an axis, several, or a Tensor of them, negative ones from the end; None is all.
        keepdims: whether the axes stay, with an extent of 1.
        name: of the operation, {op_type!r} by default.
        reduction_indices, keep_dims: the names of `axis` and `keepdims` in early versions.

    Raises:
        ValueError: an axis that the tensor does not have.
    """
    reduce.__name__ = reduce.__qualname__ = name
    return reduce


reduce_sum = _reducing(
    "Sum", "reduce_sum", "Return the sum of elements; halves are added in float32."
)
reduce_mean = _reducing(
    "Mean", "reduce_mean", "Return the mean; of integers, rounded towards zero."
)
reduce_prod = _reducing("Prod", "reduce_prod", "Return the product of elements.")
reduce_max = _reducing("Max", "reduce_max", "Return the greatest element, NaN if there is one.")
reduce_min = _reducing("Min", "reduce_min", "Return the least element, NaN if there is one.")
reduce_all = _reducing("All", "reduce_all", "Return whether all elements are true.")
reduce_any = _reducing("Any", "reduce_any", "Return whether any element is true.")


def reduce_euclidean_norm(
    input_tensor: Any, axis: Any = None, keepdims: bool = False, name: str | None = None
) -> Tensor:
    """Return the root of the sum of squares along axes; see `reduce_sum`."""
    return _reduction("EuclideanNorm", input_tensor, axis, keepdims, name, (None, None))


def reduce_logsumexp(
    input_tensor: Any,
    axis: Any = None,
    keepdims: bool | None = None,
    name: str | None = None,
    reduction_indices: Any = None,
    keep_dims: bool | None = None,
) -> Tensor:
    """Return the logarithm of the sum of exponentials without overflow; see `reduce_sum`."""
    axis = _one_of("axis", axis, "reduction_indices", reduction_indices)
    keep = bool(_one_of("keepdims", keepdims, "keep_dims", keep_dims))
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
    """Return the mean squared distance from the mean along axes; see `reduce_sum`.

    Raises:
        TypeError: integers, whose mean is rounded.
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
    """Return the standard deviation along axes, the root of `reduce_variance`."""
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
    """Return how many elements along axes are not zero, as `dtype`; see `reduce_sum`."""
    x = input if input_tensor is None else input_tensor
    with scope(name, "count_nonzero", (x,)):
        x = as_tensor(x, None, "input")
        zero = np.zeros((), x.dtype.base_dtype.numpy) if x.dtype.kind != "s" else b""
        differs = result("NotEqual", (x, as_tensor(zero, x.dtype.base_dtype, "zeros")))
        ones = result("Cast", (differs,), {"DstT": int64})
        total = reduce_sum(ones, axis, keepdims, None, reduction_indices, keep_dims)
        return cast(total, dtype)


# ---- positions and running sums ----------------------------------------------------------------


def _position(op_type: str, x: Any, axis: Any, name: str | None, old: Any, kind: object) -> Tensor:
    where = _one_of("axis", axis, "dimension", old)
    attrs = {"output_type": as_dtype(kind)}
    return result(op_type, (x, as_index(0 if where is None else where)), attrs, name)


def argmax(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the greatest element along an axis is (None: 0), the first of equal ones."""
    return _position("ArgMax", input, axis, name, dimension, output_type)


def argmin(
    input: Any,
    axis: Any = None,
    name: str | None = None,
    dimension: Any = None,
    output_type: object = int64,
) -> Tensor:
    """Return where the least element along an axis is (None: 0), the first of equal ones."""
    return _position("ArgMin", input, axis, name, dimension, output_type)


def _running(op_type: str, name: str, summary: str) -> Any:
    def accumulate(
        x: Any,
        axis: Any = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        attrs = {"exclusive": exclusive, "reverse": reverse}
        return result(op_type, (x, as_index(axis)), attrs, name)

    accumulate.__doc__ = (
        f"{summary} `exclusive` leaves out the element itself, `reverse` starts from the end."
    )
    accumulate.__name__ = accumulate.__qualname__ = name
    return accumulate


cumsum = _running("Cumsum", "cumsum", "Return the sums of all elements so far along an axis.")
cumprod = _running("Cumprod", "cumprod", "Return the products of all elements so far.")
cumulative_logsumexp = _running(
    "CumulativeLogsumexp",
    "cumulative_logsumexp",
    "Return the logarithms of the sums of exponentials so far.",
)

"""Reductions of whole axes, cumulative functions, and segments."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.inference import Inference, merge, require_rank, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import (
    FLOAT,
    INDEX,
    NUMBER,
    REAL,
    REAL_QUANTIZED,
    Shapes,
    as_index,
    as_tensor,
    at_most_one,
    define,
    one_of,
    result,
    scope,
)
from dlbridge.graph.ops.unary import cast
from dlbridge.proto.datatypes import as_dtype, int32, int64

__all__ = [
    "argmax", "argmin", "bincount", "count_nonzero", "cumprod", "cumsum", "cumulative_logsumexp",
    "reduce_all", "reduce_any", "reduce_euclidean_norm", "reduce_logsumexp", "reduce_max",
    "reduce_mean", "reduce_min", "reduce_prod", "reduce_std", "reduce_sum", "reduce_variance",
    "segment_max", "segment_mean", "segment_min", "segment_prod", "segment_sum",
    "unsorted_segment_max", "unsorted_segment_min", "unsorted_segment_prod", "unsorted_segment_sum",
]  # fmt: skip


# ==== op types: reductions ========================================================================


def _reduced(c: Inference) -> Shapes:
    """The axes named are gone, or 1; unless they are known only when the graph runs."""
    dims, axes, places = c.dims(0), c.constant(1), c.dims(1)
    if places is not None and len(places) > 1:
        raise c.error(f"Shape must be at most rank 1 but is rank {len(places)}")
    if dims is None:
        return [None]
    keep = c.attrs["keep_dims"]
    rank = len(dims)
    if axes is None:
        return [(None,) * rank if keep else None]
    gone = {_axis(int(axis), rank, c) for axis in axes.reshape(-1)}
    kept = [1 if i in gone else dim for i, dim in enumerate(dims) if keep or i not in gone]
    return [tuple(kept)]


def _axis(axis: int, rank: int, c: Inference) -> int:
    if not -rank <= axis < rank:
        raise c.error(f"Invalid reduction dimension {axis} for input with {rank} dimensions.")
    return axis % rank


def _without_axis(c: Inference) -> Shapes:
    """Without the axis in which the position is sought."""
    dims, axis = c.dims(0), c.integer(1)
    if dims is None:
        return [None]
    rank = len(dims)
    if rank <= 1:
        return [()]
    if axis is None:
        return [(None,) * (rank - 1)]
    if not -rank <= axis < rank:
        raise c.error(f"Dimension ({axis}) must be in the range [{-rank}, {rank})")
    return [tuple([dim for i, dim in enumerate(dims) if i != axis % rank])]


def _largest(c: Inference) -> Shapes:
    """The last dimension becomes k."""
    k = c.attrs["k"] if "k" in c.attrs else c.integer(1)
    if k is not None and k < 0:
        raise c.error(f"Need k >= 0, got {k}")
    dims = c.dims(0)
    if dims is None:
        return [None, None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    if k is not None and dims[-1] is not None and dims[-1] < k:
        raise c.error(f"input must have last dimension >= k = {k} but is {dims[-1]}")
    return [(*dims[:-1], k)] * 2


_INDEX = f"Tidx: {INDEX} = int32"
# Dtypes -> reductions of them.
_REDUCTIONS = {NUMBER: "Sum Mean Prod EuclideanNorm", REAL_QUANTIZED: "Max Min"}
for _types, _names in _REDUCTIONS.items():
    for _name in _names.split():
        define(
            f"{_name}(input: T, reduction_indices: Tidx, *, keep_dims: bool = false, T: {_types}, "
            f"{_INDEX}) -> output: T",
            shape=_reduced,
        )
for _name in ("All", "Any"):
    define(
        f"{_name}(input: bool, reduction_indices: Tidx, *, keep_dims: bool = false, {_INDEX}) "
        "-> output: bool",
        shape=_reduced,
    )
for _name, _positions, _axes in (
    ("ArgMax", "{int16, uint16, int32, int64}", "{int16, int32, int64}"),
    ("ArgMin", INDEX, INDEX),
):
    define(
        f"{_name}(input: T, dimension: Tidx, *, T: {REAL_QUANTIZED[:-1]}, bool}}, "
        f"Tidx: {_axes} = int32, output_type: {_positions} = int64) -> output: output_type",
        shape=_without_axis,
    )
define(
    f"TopKV2(input: T, k: Tk, *, sorted: bool = true, T: {REAL}, "
    "Tk: {int16, int32, int64} = int32, index_type: {int16, int32, int64} = int32) "
    "-> (values: T, indices: index_type)",
    shape=_largest,
)
define(
    f"TopK(input: T, *, k: int >= 0, sorted: bool = true, T: {REAL}) "
    "-> (values: T, indices: int32)",
    shape=_largest,
)


# ==== op types: cumulative functions ==============================================================


for _name, _types in (("Cumsum", NUMBER), ("Cumprod", NUMBER), ("CumulativeLogsumexp", FLOAT)):
    define(
        f"{_name}(x: T, axis: Tidx, *, exclusive: bool = false, reverse: bool = false, "
        f"T: {_types}, Tidx: {INDEX} = int32) -> out: T",
        shape=unchanged,
    )


# ==== op types: segments ==========================================================================


def _segments(c: Inference) -> Shapes:
    """As many rows as the last identifier says."""
    require_rank(c.dims(1), 1, c)
    dims = c.dims(0)
    if dims is None:
        return [None]
    if not dims:
        raise c.error("Shape must be at least rank 1 but is rank 0")
    return [(None, *dims[1:])]


def _unsorted_segments(c: Inference) -> Shapes:
    """The dimensions of the identifiers become one, of the number of segments."""
    data, identifiers, count = c.dims(0), c.dims(1), c.integer(2)
    if data is None or identifiers is None:
        return [None]
    if len(data) < len(identifiers):
        raise c.error(f"Shape must be at least rank {len(identifiers)} but is rank {len(data)}")
    merge(data[: len(identifiers)], identifiers, c)
    if count is not None and count < 0:
        raise c.error(f"num_segments must not be negative, but is {count}")
    return [(count, *data[len(identifiers) :])]


def _bins(c: Inference) -> Shapes:
    size = c.integer(1)
    if size is not None and size < 0:
        raise c.error(f"size ({size}) must be non-negative")
    return [(size,)]


for _name, _types in (
    ("Sum", NUMBER), ("Mean", NUMBER), ("Prod", NUMBER), ("Max", REAL), ("Min", REAL),
):  # fmt: skip
    define(
        f"Segment{_name}(data: T, segment_ids: Tindices, *, T: {_types}, Tindices: {INDEX}) "
        "-> output: T",
        shape=_segments,
    )


for _name, _types, _indices in (
    ("Sum", NUMBER, "{int16, int32, int64}"),
    ("Prod", NUMBER, INDEX),
    ("Max", REAL, INDEX),
    ("Min", REAL, INDEX),
):
    define(
        f"UnsortedSegment{_name}(data: T, segment_ids: Tindices, num_segments: Tnumsegments, *, "
        f"T: {_types}, Tindices: {_indices}, Tnumsegments: {INDEX} = int32) -> output: T",
        shape=_unsorted_segments,
    )


define(
    "Bincount(arr: int32, size: int32, weights: T, *, T: {int32, int64, float32, float64}) "
    "-> bins: T",
    shape=_bins,
)


# ==== functions: reductions =======================================================================


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
            raise TypeError(
                "Input must be either real or complex, got input_tensor of "
                f"{x.dtype!r}; cast it first"
            )
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
    x = one_of("count_nonzero", input_tensor=input_tensor, input=input)
    with scope(name, "count_nonzero", (x,)):
        x = as_tensor(x, None, "input")
        zero = np.zeros((), x.dtype.base_dtype.numpy) if x.dtype.kind != "s" else b""
        differs = result("NotEqual", (x, as_tensor(zero, x.dtype.base_dtype, "zeros")))
        ones = result("Cast", (differs,), DstT=int64)
        total = reduce_sum(ones, axis, keepdims, None, reduction_indices, keep_dims)
        counted: Tensor = cast(total, dtype)
        return counted


def _position(op_type: str, x: Any, axis: Any, name: str | None, old: Any, kind: object) -> Tensor:
    where = at_most_one(op_type, None, dimension=old, axis=axis)
    if op_type == "ArgMax" and isinstance(where, list | tuple):
        raise TypeError(f"argmax: axis must be int or Tensor with integer datatype, got {where}")
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
        TypeError: another dtype, or a list of axes.

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


# ==== functions: cumulative =======================================================================


def _running(op_type: str, name: str, summary: str, details: str, example: str = "") -> Any:
    def accumulate(
        x: Any,
        axis: Any = 0,
        exclusive: bool = False,
        reverse: bool = False,
        name: str | None = None,
    ) -> Tensor:
        attrs = {"exclusive": exclusive, "reverse": reverse}
        return result(op_type, (x, as_index(axis)), name, **attrs)

    accumulate.__doc__ = f"""{summary}

    {details}

    Args:
        x: a Tensor of at least one dimension, or what becomes one; the result has its shape.
        axis: one axis, a negative one from the end; it may be a Tensor.
        exclusive: whether an element itself is left out.
        reverse: whether to start from the end.
        name: of the operation, {op_type!r} by default.

    Raises:
        TypeError: another dtype.

    An axis that x does not have ends a run with InvalidArgumentError.
    {example}"""
    accumulate.__name__ = accumulate.__qualname__ = name
    return accumulate


cumsum = _running(
    "Cumsum",
    "cumsum",
    "Return the sums of all elements so far along an axis.",
    "Of all numbers; integers wrap around, halves are added in float32.",
    """
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.cumsum([1, 2, 3]), tf.cumsum([1, 2, 3], exclusive=True)])
        [array([1, 3, 6], dtype=int32), array([0, 1, 3], dtype=int32)]
    """,
)


cumprod = _running(
    "Cumprod",
    "cumprod",
    "Return the products of all elements so far along an axis.",
    "Of all numbers, as of `cumsum`; an exclusive product starts with 1.",
)


cumulative_logsumexp = _running(
    "CumulativeLogsumexp",
    "cumulative_logsumexp",
    "Return the logarithms of the sums of exponentials so far along an axis.",
    "Of floating numbers, without overflow; an exclusive one starts with -infinity.",
)


# ==== functions: segments =========================================================================


_EVERYWHERE = "It is computed by NumPy in every framework."


def _segment(name: str, summary: str, empty: str = "0", example: str = "") -> Any:
    def segment(data: Any, segment_ids: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids), name)

    op_type = f"Segment{name}"
    segment.__doc__ = f"""Return {summary} of rows of equal identifiers.

    Args:
        data: a Tensor of one dimension or more, or what becomes one, {_DTYPES[name]}.
        segment_ids: a vector of int32 or int64, one for each row; from 0, and never less than the
            one before.
        name: of the operation, {op_type!r} by default.

    Returns:
        Tensor: one row more than the last identifier, which its static shape cannot show. Rows that
        no identifier names are {empty}.

    Raises:
        ValueError: data without dimensions, identifiers that are no vector.
        TypeError: other dtypes.

    Identifiers that decrease, are negative, or are not as many as the rows end a run with
    InvalidArgumentError. It is computed by NumPy in every framework.
    {example}"""
    segment.__name__ = segment.__qualname__ = f"segment_{name.lower()}"
    return segment


# Name of a reduction -> the dtypes it takes.
_DTYPES = {
    **dict.fromkeys(("Sum", "Mean", "Prod"), "of all numbers"),
    **dict.fromkeys(("Max", "Min"), "of floating numbers or integers"),
}


def _unsorted_segment(
    name: str, summary: str, empty: str, where: str = _EVERYWHERE, example: str = ""
) -> Any:
    def segment(data: Any, segment_ids: Any, num_segments: Any, name: str | None = None) -> Tensor:
        return result(op_type, (data, segment_ids, num_segments), name)

    op_type = f"UnsortedSegment{name}"
    segment.__doc__ = f"""Return {summary} of the rows with equal identifiers, in any order.

    Args:
        data: a Tensor, or what becomes one, {_DTYPES[name]}.
        segment_ids: integers whose shape is that of data's first dimensions, all or some of them;
            rows with a negative one are left out.
        num_segments: the number of rows of the result, a scalar.
        name: of the operation, {op_type!r} by default.

    Returns:
        Tensor: [num_segments, then the dimensions of data that the identifiers do not have]. Rows
        that no identifier names are {empty}.

    Raises:
        ValueError: shapes that do not fit, or a negative number of segments.
        TypeError: other dtypes.

    An identifier of `num_segments` or more ends a run with InvalidArgumentError. {where}
    {example}"""
    segment.__name__ = segment.__qualname__ = f"unsorted_segment_{name.lower()}"
    return segment


segment_sum = _segment(
    "Sum",
    "the sum",
    example="""
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.segment_sum([[1, 2], [3, 4], [5, 6]], [0, 0, 2]))
        array([[4, 6],
               [0, 0],
               [5, 6]], dtype=int32)
    """,
)
segment_mean = _segment("Mean", "the mean, of integers rounded towards zero,")
segment_prod = _segment("Prod", "the product", "1")
segment_max = _segment("Max", "the greatest")
segment_min = _segment("Min", "the least")
unsorted_segment_sum = _unsorted_segment(
    "Sum",
    "the sum",
    "0",
    "In JAX, which cannot look at traced values, it is left out instead.",
    """
    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.unsorted_segment_sum([1, 2, 4, 8], [1, 0, -1, 1], 3))
        array([2, 9, 0], dtype=int32)
    """,
)
unsorted_segment_prod = _unsorted_segment("Prod", "the product", "1")
unsorted_segment_max = _unsorted_segment("Max", "the greatest", "the least number of the dtype")
unsorted_segment_min = _unsorted_segment("Min", "the least", "the greatest number of the dtype")


def bincount(
    arr: Any,
    weights: Any = None,
    minlength: Any = None,
    maxlength: Any = None,
    dtype: object = int32,
) -> Tensor:
    """Return how often each number from 0 occurs, or its weights added up.

    Args:
        arr: integers from 0, of int32 and any shape, or what becomes that.
        weights: of the shape of `arr`, in int32, int64, float32 or float64; or None to count.
        minlength, maxlength: the least and the greatest length of the result; None is no limit.
            Numbers beyond `maxlength` are not counted.
        dtype: of the counts, one of those four; weights have their own.

    Returns:
        Tensor: a vector, one longer than the greatest number.

    A negative number, or weights of another size, end a run with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.bincount([1, 1, 3]), tf.bincount([1, 1, 3], [0.5, 0.5, 2.0])])
        [array([0, 2, 0, 1], dtype=int32), array([0., 1., 0., 2.], dtype=float32)]
    """
    with scope(None, "bincount", (arr, weights, minlength, maxlength)):
        arr = as_tensor(arr, int32, "arr")
        size = result("AddV2", (reduce_max(arr), 1))
        size = result("Maximum", (size, 0))  # of nothing
        if minlength is not None:
            size = result("Maximum", (size, minlength))
        if maxlength is not None:
            size = result("Minimum", (size, maxlength))
        if weights is None:
            weights = np.zeros(0, as_dtype(dtype).numpy)
        return result("Bincount", (arr, size, weights))

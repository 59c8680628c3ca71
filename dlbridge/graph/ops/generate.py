"""Ranges and filled tensors."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.graph.core.default_graph import constant
from dlbridge.graph.core.inference import Inference, require_rank, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.shared import FLOAT, INDEX, Shapes, as_tensor, define, result, scope
from dlbridge.graph.ops.sparse_tensor import SparseTensor
from dlbridge.proto.datatypes import DataType, as_dtype, float32, float64, int32, int64
from dlbridge.shape import TensorShape
from dlbridge.signals import not_from_handler

__all__ = [
    "eye", "fill", "lin_space", "linspace", "ones", "ones_like", "range", "zeros", "zeros_like",
]  # fmt: skip


# ==== the length of a range =======================================================================


def range_length(start: Any, limit: Any, delta: Any) -> int:
    """Return the length of the range of three NumPy scalars of one dtype.

    It is computed in that dtype, as TensorFlow does, since rounding may decide about the last one.

    Raises:
        ValueError: a step of 0, or one that leads away from the limit.
    """
    if delta == 0:
        raise ValueError("Requires delta != 0")
    if (delta > 0 and start > limit) or (delta < 0 and start < limit):
        order, sign = ("<=", ">") if delta > 0 else (">=", "<")
        raise ValueError(f"Requires start {order} limit when delta {sign} 0: {start}/{limit}")
    if np.asarray(start).dtype.kind in "iu":
        return -((int(start) - int(limit)) // int(delta))
    steps = np.divide(np.subtract(limit, start), delta)
    return int(np.ceil(np.abs(steps)))


# ==== op types ====================================================================================


def _range(c: Inference) -> Shapes:
    """As many elements as fit, where all three numbers are known."""
    for i in (0, 1, 2):
        require_rank(c.dims(i), 0, c)
    numbers = [c.constant(i) for i in (0, 1, 2)]
    if any(number is None for number in numbers):
        return [(None,)]
    start, limit, delta = (number[()] for number in numbers)
    try:
        return [(range_length(start, limit, delta),)]
    except not_from_handler(ValueError) as error:
        raise c.error(str(error)) from None


def filled(c: Inference) -> Shapes:
    """The shape given; -1 is as good as not known, and fails when it runs."""
    require_rank(c.dims(0), 1, c)
    dims = c.constant_dims(0)
    for dim in dims or ():
        if dim is not None and dim < 0:
            raise c.error(f"Invalid value in tensor used for shape: {dim}")
    return [dims]


def _fill(c: Inference) -> Shapes:
    """As `filled`; extents and value are checked as far as they are known."""
    require_rank(c.dims(1), 0, c)
    extents = c.constant(0)
    if extents is not None and (extents < 0).any():
        raise c.error("Fill dimensions must be >= 0")
    return filled(c)


def _linear(c: Inference) -> Shapes:
    for i in (0, 1):
        require_rank(c.dims(i), 0, c)
    number = c.integer(2)
    if number is not None and number <= 0:
        raise c.error(f"Requires num > 0: {number}")
    return [(number,)]


define(
    "Range(start: Tidx, limit: Tidx, delta: Tidx, *, Tidx: {bfloat16, float16, float32, float64, "
    "int8, int16, int32, int64, uint16, uint32, uint64} = int32) -> output: Tidx",
    shape=_range,
)
define(
    f"Fill(dims: index_type, value: T, *, T: type, index_type: {INDEX} = int32) -> output: T",
    shape=_fill,
)
define(
    f"LinSpace(start: T, stop: T, num: Tidx, *, T: {FLOAT}, Tidx: {INDEX} = int32) -> output: T",
    shape=_linear,
)
define("ZerosLike(x: T, *, T: type) -> y: T", shape=unchanged)
define(
    "OnesLike(x: T, *, T: {bfloat16, float16, float32, float64, int8, uint8, int16, uint16, int32, "
    "uint32, int64, uint64, complex64, complex128, bool}) -> y: T",
    shape=unchanged,
)


# ==== functions ===================================================================================


# Up to so many elements a constant of one value is written out.
_SMALL = 1000
_NUMBERS = (int32, int64, float32, float64)  # a range has the last of these among its operands


def range(
    start: Any, limit: Any = None, delta: Any = 1, dtype: object = None, name: str = "range"
) -> Tensor:
    """Return numbers from `start` (0 if one number is given) up to, and without, `limit`.

    Args:
        start, limit, delta: scalars; the result has the widest of their dtypes among int32, int64,
            float32 and float64, and otherwise that of the first.
        dtype: another dtype of the result, also bfloat16, float16 or another integer.
        name: of the operation.

    Returns:
        Tensor: a vector, whose length is static where all three numbers are known.

    Raises:
        ValueError: a step of 0, or one that leads away from the limit; InvalidArgumentError when
            only a run shows it.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.range(3), tf.range(1.0, 0.0, -0.25)])
        [array([0, 1, 2], dtype=int32), array([1.  , 0.75, 0.5 , 0.25], dtype=float32)]
    """
    if limit is None:
        start, limit = 0, start
    with scope(name, "range", (start, limit, delta)) as full:
        kind = _range_type((start, limit, delta)) if dtype is None else as_dtype(dtype)
        names = ("start", "limit", "delta")
        numbers = [
            _as_number(value, kind, each)
            for value, each in zip((start, limit, delta), names, strict=True)
        ]
        return result("Range", numbers, full)


def _range_type(values: tuple[Any, ...]) -> DataType:
    kinds = [each.dtype if isinstance(each, Tensor) else _type_of(each) for each in values]
    known = [kind for kind in kinds if kind in _NUMBERS]
    return max(known, key=_NUMBERS.index) if len(known) == len(kinds) else kinds[0]


def _type_of(value: Any) -> DataType:
    if isinstance(value, np.ndarray | np.generic):
        return as_dtype(value.dtype)
    if isinstance(value, int) and not -(2**31) <= value < 2**31:
        return int64
    return as_dtype(type(value))


def _as_number(value: Any, kind: DataType, name: str) -> Tensor:
    if not isinstance(value, Tensor):
        return constant(np.asarray(value).astype(kind.numpy), kind, name=name)
    return value if value.dtype is kind else result("Cast", (value,), DstT=kind)


def fill(dims: Any, value: Any, name: str | None = None) -> Tensor:
    """Return a tensor of a shape with one value in all places.

    Args:
        dims: the shape: integers, some of which may be Tensors, a Tensor of int32 or int64, or a
            TensorShape that is known.
        value: a scalar of any dtype, which the result takes; unlike in `constant` it may be a
            Tensor.
        name: of the operation, "Fill" by default.

    Raises:
        ValueError: a negative extent, or a TensorShape with unknown ones.
        TypeError: extents that are no integers.

    A value that is no scalar, and an extent that proves negative, end a run with
    InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.fill([2, 3], "a"))[0]
        array([b'a', b'a', b'a'], dtype=object)
    """
    return result("Fill", (shape_tensor(dims), value), name)


def shape_tensor(shape: Any) -> Any:
    """Return a shape as something that becomes a tensor of integers."""
    if isinstance(shape, TensorShape):
        if not shape.is_fully_defined():
            raise ValueError(f"Cannot convert a partially known TensorShape {shape} to a Tensor.")
        shape = shape.as_list()
    if isinstance(shape, list | tuple) and not any(isinstance(dim, Tensor) for dim in shape):
        extents = np.asarray(shape)
        small = not extents.size or (extents.dtype.kind in "iu" and extents.max() < 2**31)
        return extents.astype(np.int32) if small else extents
    if isinstance(shape, list | tuple):
        return result("Pack", ([as_tensor(dim, int32) for dim in shape],), "packed", axis=0)
    return shape


def _static(shape: Any) -> list[int] | None:
    """Return the extents of a shape that is known, or None for a Tensor."""
    if isinstance(shape, TensorShape):
        shape = shape.dims
    if isinstance(shape, int | np.integer):
        return [int(shape)]
    if isinstance(shape, np.ndarray):
        shape = shape.tolist()
    if isinstance(shape, list | tuple) and all(isinstance(dim, int | np.integer) for dim in shape):
        return [int(dim) for dim in shape]
    return None


def _repeated(value: Any, shape: Any, kind: DataType, full: str) -> Tensor:
    """Return a tensor of one value, a constant where it is small."""
    extents = _static(shape)
    if extents is not None:
        if any(extent < 0 for extent in extents):
            raise ValueError(f"a shape must not be negative, got {extents}")
        if np.prod(extents, dtype=float) < _SMALL:
            return constant(value, kind, extents, full)
        dims: Any = constant(shape_tensor(extents), None, name="shape_as_tensor")
    else:
        dims = shape_tensor(shape)
    return result("Fill", (dims, constant(value, kind, name="Const")), full)


def _value(number: int, kind: DataType) -> Any:
    if kind.kind == "s":
        if number:
            raise TypeError("argument 'tensor' or 'dtype': strings have no 1")
        return b""
    return bool(number) if kind.is_bool else np.asarray(number).astype(kind.numpy)


def zeros(shape: Any, dtype: object = float32, name: str | None = None) -> Tensor:
    """Return a tensor of zeros (False, empty strings).

    Args:
        shape: as of `fill`, or one integer for a vector.
        dtype: of the result: numbers, bool or strings.
        name: of the operation: a constant where the shape is known and has fewer than 1000
            elements, and otherwise a Fill.

    Raises:
        ValueError, TypeError: as of `fill`.
    """
    kind = as_dtype(dtype).base_dtype
    with scope(name, "zeros", (shape,)) as full:
        return _repeated(_value(0, kind), shape, kind, full)


def ones(shape: Any, dtype: object = float32, name: str | None = None) -> Tensor:
    """Return a tensor of ones (True); see `zeros`. TypeError: strings."""
    kind = as_dtype(dtype).base_dtype
    with scope(name, "ones", (shape,)) as full:
        return _repeated(_value(1, kind), shape, kind, full)


def zeros_like(
    tensor: Any, dtype: object = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Return zeros of the shape, and by default the dtype, of a tensor.

    Args:
        tensor: a Tensor, what becomes one, or a SparseTensor, whose dense shape counts.
        dtype: of the result; None is that of `tensor`.
        name: of the operation.
        optimize: whether a shape known now becomes a constant; if not, or where it is not known, a
            run takes it from the tensor.
    """
    if isinstance(tensor, SparseTensor):
        known = tensor.shape if tensor.shape.is_fully_defined() else tensor.dense_shape
        return zeros(known, dtype or tensor.dtype, name or "zeros_like")
    with scope(name, "zeros_like", (tensor,)) as full:
        tensor = as_tensor(tensor, None, "tensor")
        source = tensor.dtype.base_dtype
        kind = source if dtype is None else as_dtype(dtype).base_dtype
        shape = tensor.shape
        if optimize and shape.is_fully_defined() and kind.is_numpy_compatible:
            return _repeated(_value(0, kind), shape, kind, full)
        if kind is source:
            return result("ZerosLike", (tensor,), full)
        return _repeated(_value(0, kind), result("Shape", (tensor,)), kind, full)


def ones_like(
    tensor: Any, dtype: object = None, name: str | None = None, optimize: bool = True
) -> Tensor:
    """Return ones of the shape, and by default the dtype, of a tensor.

    Arguments as of `zeros_like`. TypeError: strings.
    """
    with scope(name, "ones_like", (tensor,)) as full:
        tensor = as_tensor(tensor, None, "tensor")
        kind = (tensor.dtype if dtype is None else as_dtype(dtype)).base_dtype
        shape: Any = tensor.shape
        if optimize and shape.is_fully_defined():
            extents = shape_tensor(shape)
            shape = constant(extents, int32, name="Shape/shape_as_tensor")
        else:
            shape = result("Shape", (tensor,))
        made = _repeated(_value(1, kind), shape, kind, full)
        made.set_shape(tensor.shape)
        return made


def eye(
    num_rows: Any,
    num_columns: Any = None,
    batch_shape: Any = None,
    dtype: object = float32,
    name: str | None = None,
) -> Tensor:
    """Return identity matrices.

    Args:
        num_rows, num_columns: integers, or Tensors; the latter as many as the former by default.
        batch_shape: leading dimensions, as the shape of `fill`; none by default.
        dtype: of the result: numbers or bool.
        name: of the scope.

    Returns:
        Tensor: [*batch_shape, num_rows, num_columns], 1 where the row is the column.

    Raises:
        ValueError: a negative number.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.eye(2, 3))
        array([[1., 0., 0.],
               [0., 1., 0.]], dtype=float32)
    """
    kind = as_dtype(dtype)
    columns = num_rows if num_columns is None else num_columns
    with scope(name, "eye", (num_rows, columns, batch_shape)) as full:
        given = (num_rows, columns)
        if batch_shape is None and all(isinstance(each, int) for each in given):
            matrix = np.eye(num_rows, columns).astype(kind.numpy)
            if matrix.size < _SMALL:
                return constant(matrix, kind, name=full)
        row = result("Range", (0, num_rows, 1), "rows")
        column = result("Range", (0, columns, 1), "columns")
        equal = result("Equal", (result("ExpandDims", (row, 1)), column))
        square = result("Cast", (equal,), DstT=kind)
        if batch_shape is None:
            return result("Identity", (square,), full)
        batch = as_tensor(shape_tensor(batch_shape), int32, "batch_shape")
        shape = result("ConcatV2", ([batch, result("Shape", (square,))], 0), "concat")
        return result("BroadcastTo", (square, shape), full)


def linspace(start: Any, stop: Any, num: Any, name: str | None = None) -> Tensor:
    """Return `num` numbers at equal distances from `start` to `stop`, both included to the bit.

    Args:
        start, stop: scalars of one floating dtype; integers are not converted.
        num: how many, a positive integer or scalar Tensor; a single one is `start`.
        name: of the operation.

    Raises:
        ValueError: `num` is not positive, or an operand is no scalar; InvalidArgumentError when
            only a run shows that `num` is not.
        TypeError: dtypes that differ, or are others.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.linspace(0.0, 1.0, 5))
        array([0.  , 0.25, 0.5 , 0.75, 1.  ], dtype=float32)
    """
    return result("LinSpace", (start, stop, num), name or "linspace")


lin_space = linspace

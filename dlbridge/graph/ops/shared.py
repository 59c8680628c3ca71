"""Shared by the families: sets of dtypes, declarations, conversions of arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import numpy as np

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.core import opdef
from dlbridge.graph.core.default_graph import apply, convert_to_tensor, graph_of
from dlbridge.graph.core.inference import Inference
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.sparse_tensor import SparseTensor
from dlbridge.proto.datatypes import DataType
from dlbridge.registry import Origin
from dlbridge.shape import Dims
from dlbridge.signals import not_from_handler

Shapes = list[Dims | None]
Dim = int | None

FLOAT = "{bfloat16, float16, float32, float64}"
HALF_FIRST = "{float16, bfloat16, float32, float64}"
FLOAT_COMPLEX = "{bfloat16, float16, float32, float64, complex64, complex128}"
SIGNED = "{bfloat16, float16, float32, float64, int8, int16, int32, int64}"
SIGNED_COMPLEX = (
    "{bfloat16, float16, float32, float64, int8, int16, int32, int64, complex64, complex128}"
)
INTEGER = "{int8, int16, int32, int64, uint8, uint16, uint32, uint64}"
REAL = (
    "{float32, float64, int32, uint8, int16, int8, int64, bfloat16, uint16, float16, uint32, "
    "uint64}"
)
REAL_QUANTIZED = REAL[:-1] + ", qint8, quint8, qint32, qint16, quint16}"
NUMBER = (
    "{float32, float64, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, qint16, quint16, uint16, complex128, float16, uint32, uint64}"
)
DIVISIBLE = (
    "{bfloat16, float16, float32, float64, uint8, int8, uint16, int16, int32, uint32, uint64, "
    "int64, complex64, complex128}"
)
COMPLEX = "{complex64, complex128} = complex64"
INDEX = "{int32, int64}"
DECOMPOSABLE = "{float64, float32, float16, complex64, complex128}"
LAYOUT = 'data_format: {"NHWC", "NCHW"} = "NHWC"'


def define(declaration: str, *, shape: opdef.ShapeFunction, **flags: Any) -> None:
    """Declare an op type, as `opdef.define` does, when the first one is looked up."""
    declared: Callable[..., Any] = partial(
        opdef.define, declaration, shape=shape, origin=Origin(), **flags
    )
    opdef.on_first_use(declared)


def at_least(dims: Dims | None, rank: int, c: Inference) -> Dims | None:
    """Return the dimensions; raise where the rank is known and smaller."""
    if dims is not None and len(dims) < rank:
        raise c.error(f"Shape must be at least rank {rank} but is rank {len(dims)}")
    return dims


@contextmanager
def scope(name: str | None, default: str, inputs: Sequence[Any]) -> Iterator[str]:
    """Enter a scope of the graph of `inputs`; yield its name, which names the last operation."""
    graph = graph_of(inputs)
    with graph.as_default(), graph.name_scope(name or default) as full:
        yield full


def as_tensor(value: Any, dtype: DataType | None = None, name: str = "Const") -> Tensor:
    """Return a Tensor: itself whatever its dtype, or a constant in the current scope."""
    return value if isinstance(value, Tensor) else convert_to_tensor(value, dtype, name)


def result(op_type: str, inputs: Sequence[Any], name: str | None = None, **attrs: Any) -> Tensor:
    """Create an operation and return its first result."""
    return apply(op_type, inputs, attrs, name).outputs[0]


def as_index(axis: Any) -> Any:
    """Return axes that are no Tensor as an array of integers, int32 unless they say otherwise."""
    if isinstance(axis, Tensor):
        return axis
    array = np.asarray(axis)
    typed = isinstance(axis, np.ndarray | np.generic) and array.dtype.kind == "i"
    return array if typed else _integers(axis, array)


def _integers(axis: Any, array: Any) -> Any:
    if array.size and array.dtype.kind not in "iu":
        raise TypeError(f"an axis must be an integer, got {axis!r}")
    return array.astype(np.int32)


def unary(
    op_type: str,
    summary: str,
    name: str | None = None,
    details: str = "",
    *,
    keeps_zero: bool = False,
) -> Callable[..., Any]:
    """Return the function that creates a plain operation of one operand.

    Args:
        op_type: of the operation.
        summary: the first line of the function's docstring.
        name: of the function; None is the op type in small letters.
        details: what its docstring says next: dtypes, special values.
        keeps_zero: whether zero stays zero, so that it also takes a SparseTensor and returns one.
    """

    def function(x: Any, name: str | None = None) -> Any:
        if keeps_zero and isinstance(x, SparseTensor):
            return x.with_values(apply(op_type, (x.values,), None, name).outputs[0])
        return apply(op_type, (x,), None, name).outputs[0]

    kinds = "a Tensor, SparseTensor or what becomes a Tensor" if keeps_zero else (
        "a Tensor or what becomes one"
    )  # fmt: skip
    shared = f"The result has the shape of x, {kinds}. TypeError: another dtype"
    return _described(function, op_type, name, summary, details, shared)


def binary(
    op_type: str, summary: str, name: str | None = None, details: str = ""
) -> Callable[..., Tensor]:
    """Return the function that creates a plain operation of two operands, which are broadcast.

    Arguments as of `unary`.
    """

    def function(x: Any, y: Any, name: str | None = None) -> Tensor:
        return apply(op_type, (x, y), None, name).outputs[0]

    shared = "Operands, how they are broadcast, and errors are as of `add`"
    return _described(function, op_type, name, summary, details, shared)


def _described(
    function: Callable[..., Tensor], op_type: str, name: str | None, *texts: str
) -> Callable[..., Tensor]:
    *before, shared = [text for text in texts if text]
    paragraphs = [*before, f"{shared}. `name` is that of the operation, of type {op_type}."]
    function.__doc__ = "\n\n".join(paragraphs)
    function.__name__ = function.__qualname__ = name or op_type.lower()
    function.__module__ = sys._getframe(2).f_globals["__name__"]  # where `pickle` finds it
    return function


def as_list(name: str, value: Any) -> list[Any]:
    """Return the elements of an argument that is a list of Tensors, Variables or the like.

    Raises:
        UnsupportedTypeError: it is something else.
    """
    if isinstance(value, str | bytes | Tensor) or not isinstance(value, Iterable):
        raise UnsupportedTypeError(f"{name} must be a list, got {value!r}")
    return list(value)


def at_most_one(function: str, default: Any, **names: Any) -> Any:
    """Return the argument given under one of its names; None means not given.

    Raises:
        ValueError: two of them were given, and differ from each other in name only.
    """
    given = {name: value for name, value in names.items() if value is not None}
    if len(given) > 1:
        raise ValueError(f"{function}: Cannot specify both {' and '.join(map(repr, given))}")
    return next(iter(given.values()), default)


def one_of(call: str, **alternatives: Any) -> Any:
    """Return the one argument that was given, of two that are names of the same."""
    given = {name: value for name, value in alternatives.items() if value is not None}
    if len(given) != 1:
        names = " or ".join(alternatives)
        raise ValueError(f"{call}: required one of {names}, got {' and '.join(given) or 'none'}")
    return next(iter(given.values()))


def per_dimension(value: Any, count: int, data_format: str, call: str) -> list[int]:
    """Return strides, dilations or window extents, one for each dimension of the images.

    Args:
        value: None (all 1), one number for all spatial dimensions, one for each, or one for each
            dimension of the images.
        count: how many spatial dimensions there are.
        data_format: of the images.
        call: what to call it in errors.

    Raises:
        ValueError: another count.
    """
    if value is None:
        value = 1
    try:
        numbers = [int(each) for each in value] if isinstance(value, Sequence) else [int(value)]
    except not_from_handler(TypeError, ValueError):
        raise ValueError(f"{call} must be an integer or a list of them, got {value!r}") from None
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) == count + 2:
        return numbers
    if len(numbers) != count:
        raise ValueError(f"{call} should be of length 1, {count} or {count + 2} but was {numbers}")
    return [1, 1, *numbers] if data_format[1:2] == "C" else [1, *numbers, 1]


def padding_attributes(padding: Any, call: str) -> dict[str, Any]:
    """Return the attributes for a padding: "SAME", "VALID", or pairs for each dimension.

    Raises:
        ValueError: something else.
    """
    if isinstance(padding, str | bytes):
        text = padding if isinstance(padding, bytes) else padding.encode()
        return {"padding": text}
    try:
        pairs = [(int(before), int(after)) for before, after in padding]
    except not_from_handler(TypeError, ValueError):
        raise ValueError(
            f'{call}: padding must be "SAME", "VALID" or four pairs of numbers, got {padding!r}'
        ) from None
    if len(pairs) != 4:
        raise ValueError(f"{call}: padding must have four pairs, got {padding!r}")
    return {"padding": b"EXPLICIT", "explicit_paddings": [each for pair in pairs for each in pair]}

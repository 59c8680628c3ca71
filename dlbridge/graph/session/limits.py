"""The limit of a session on the size of values, for graphs that are not trusted.

A node's results are predicted by the shape function of its op type, called with the shapes and
values that the node gets, before its kernel runs. What that cannot know, and what NumPy's kernels
allocate on the way, NumPy's memory handler refuses. Results are looked at once more afterwards, for
the few cases that only the values decide, in other frameworks than NumPy.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from operator import index
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.execution.errors import ResourceExhaustedError
from dlbridge.graph.core.inference import Budget, Inference
from dlbridge.graph.core.operation import Tensor
from dlbridge.proto.datatypes import DataType, string
from dlbridge.proto.values import TensorValue
from dlbridge.shape import Dims
from dlbridge.signals import not_from_handler

POINTER = 8  # bytes of one string in an array, beside its text
DIGITS = 400  # of the longest number, beside its width and precision

Function = Callable[..., Any]


class Limit:
    """How many bytes one array of a run may have.

    Args:
        max_bytes: at least 1.
    """

    __slots__ = ("max_bytes",)

    def __init__(self, max_bytes: int) -> None:
        try:
            self.max_bytes = index(max_bytes)
        except not_from_handler(TypeError):
            raise UnsupportedTypeError(
                f"Session: max_bytes must be a number of bytes or None, got {max_bytes!r}"
            ) from None
        if self.max_bytes < 1:
            raise ArgumentError(f"Session: max_bytes must be at least 1, got {max_bytes!r}")

    def guard(self, function: Function) -> Function:
        """Return a call of a function during which NumPy makes no larger array."""

        def call(*values: Any) -> Any:
            with native.limited_numpy(self.max_bytes):
                return function(*values)

        return call

    def check_value(self, node: Any, shape: Sequence[int], dtype: DataType) -> None:
        """Raise if a value that is not decoded yet is too large.

        Raises:
            ResourceExhaustedError: it is.
        """
        self._check(node, tuple(shape), dtype)

    def refuse(self, node: Any, shape: Sequence[int], nbytes: int) -> None:
        """Raise for a value that a node passes from one task to another.

        Raises:
            ResourceExhaustedError: it has more than `max_bytes`.
        """
        self._refuse_above(node, nbytes, f"shape {_text(shape)}")

    def check_attributes(self, node: Any) -> None:
        """Raise if a value that a node holds itself is too large; it is not decoded for that.

        Raises:
            ResourceExhaustedError: it is.
        """
        for value in node.attrs.values():
            if isinstance(value, TensorValue):
                self._check(node, value.shape, value.dtype)

    def checked(self, node: Any, function: Function) -> Function:
        """Return what calls a node's function if no result will be too large."""
        size_of_texts = _TEXTS.get(node.type)

        def call(*values: Any) -> Any:
            for dims, dtype in zip(_predict(node, values), node.output_types, strict=True):
                self._check(node, dims, dtype)
            if size_of_texts is not None and all(map(_is_array, values)):
                self._refuse_above(node, size_of_texts(node, values), "texts")
            try:
                result = function(*values)
            except MemoryError as error:
                self._explain(node, error)
                raise
            for value in result if isinstance(result, tuple | list) else (result,):
                self._check_value(node, value)
            return result

        return call

    def _check(self, node: Any, dims: Dims | None, dtype: DataType) -> None:
        """Raise if a result of this shape is too large."""
        if dims is not None and None not in dims and dtype.kind != "h":
            size = prod(dims) * _itemsize(dtype)  # type: ignore[arg-type]
            if size > self.max_bytes:
                self._refuse_above(node, size, f"shape {_text(dims)} of {dtype.name}")

    def _check_value(self, node: Any, value: Any) -> None:
        """Raise if a value is too large that nothing predicted."""
        size: Any = getattr(value, "nbytes", 0)
        if _is_array(value) and value.dtype == object:
            size = _size_of_texts(value)
        if isinstance(size, int) and size > self.max_bytes:
            self._refuse_above(node, size, f"shape {_text(value.shape)}")

    def _explain(self, node: Any, error: MemoryError) -> None:
        """Raise if it is this limit that NumPy met."""
        shape, dtype = getattr(error, "shape", None), getattr(error, "dtype", None)
        if isinstance(shape, tuple) and isinstance(dtype, np.dtype):
            size = prod(shape) * dtype.itemsize
            what = f"shape {_text(shape)} of {dtype}, on the way to its results"
            self._refuse_above(node, size, what, error)

    def _refuse_above(
        self, node: Any, size: int, what: str, cause: BaseException | None = None
    ) -> None:
        if size > self.max_bytes:
            raise ResourceExhaustedError(
                f"{node.name} ({node.type}) needs {size} bytes for {what}; the session allows "
                f"max_bytes={self.max_bytes} for one value",
                node,
            ) from cause


def _itemsize(dtype: DataType) -> int:
    return int(np.dtype(dtype.numpy).itemsize)


def _text(dims: Sequence[int | None]) -> str:
    return f"[{','.join(map(str, dims))}]"


def _is_array(value: Any) -> bool:
    return isinstance(value, np.ndarray | np.generic)


# ---- shapes ------------------------------------------------------------------------------------


class _Unlimited(Budget):
    """Constant folding looks at values that are there, which costs no more than to run."""

    __slots__ = ()

    def take(self, steps: int) -> bool:
        return True


class _Graph:
    """The part of a graph that shape functions need."""

    _folding = _Unlimited()


class _Value:
    """A value of a run as the `attrs["value"]` of a Const."""

    __slots__ = ("array", "dtype", "shape", "size")

    def __init__(self, array: Any, dtype: DataType) -> None:
        self.array = np.asarray(array)
        self.dtype = dtype
        self.shape = self.array.shape
        self.size = self.array.size


class _Source:
    """The Operation of a value of a run: a Const if the value is in host memory."""

    __slots__ = ("attrs", "graph", "inputs", "name", "output_types", "outputs", "type")

    def __init__(self, tensor: Tensor, value: Any) -> None:
        known = _is_array(value)
        self.name = tensor.op.name
        self.type = "Const" if known else "Placeholder"
        self.attrs = {"value": _Value(value, tensor.dtype)} if known else {}
        self.graph = _Graph
        self.inputs = ()
        self.outputs = ()
        self.output_types = (tensor.dtype,)


class _Known:
    """A Tensor whose shape is that of a value of a run."""

    __slots__ = ("_dims", "dtype", "graph", "op", "value_index")

    def __init__(self, tensor: Tensor, value: Any, dims: tuple[int, ...]) -> None:
        self._dims = dims
        self.dtype = tensor.dtype
        self.graph = _Graph
        self.op = _Source(tensor, value)
        self.value_index = 0


def _predict(node: Any, values: Sequence[Any]) -> Sequence[Dims | None]:
    """Return the shapes of a node's results that its op type determines before it runs."""
    inputs = [
        tensor if dims is None else _Known(tensor, value, dims)
        for tensor, value in zip(node.inputs, values, strict=True)
        for dims in (_dims(tensor, value),)
    ]
    count = len(node.output_types)
    question = Inference(node.type, node.name, inputs, node.attrs, count)  # type: ignore[arg-type]
    try:
        found: Sequence[Dims | None] = node.definition.shape(question)
    except not_from_handler(ValueError):  # the kernel says it better
        return [None] * count
    return found


def _dims(tensor: Tensor, value: Any) -> tuple[int, ...] | None:
    """Return the shape of a value; None of a variable, which stands for itself."""
    if tensor.dtype.is_ref or tensor.dtype.kind == "h":
        return None
    return tuple(map(int, value.shape))


# ---- texts -------------------------------------------------------------------------------------


def _size_of_texts(array: Any) -> int:
    """Return the bytes of an array of strings."""
    lengths = [len(each) for each in np.asarray(array).reshape(-1).tolist()]
    return sum(lengths) + POINTER * len(lengths)


def _of_join(node: Any, values: Sequence[Any]) -> int:
    """Each input is repeated to the shape of all, and followed by a separator."""
    count = max([np.size(each) for each in values], default=0)
    texts = sum([_size_of_texts(each) * (count // max(np.size(each), 1)) for each in values])
    return int(texts + count * len(node.attrs["separator"]) * max(len(values) - 1, 0))


def _of_numbers(node: Any, values: Sequence[Any]) -> int:
    """A number has its width, or its digits and its precision; a complex one twice that."""
    (array,) = values
    widths = max(node.attrs["width"], 0), max(node.attrs["precision"], 0)
    if max(widths) == 0:
        return POINTER * int(np.size(array))
    inner = _size_of_texts(array) if node.inputs[0].dtype is string else 0
    return inner + int(np.size(array)) * int(sum(widths) + DIGITS) * 2


_TEXTS: dict[str, Callable[[Any, Sequence[Any]], int]] = {
    "AsString": _of_numbers,
    "StringJoin": _of_join,
}

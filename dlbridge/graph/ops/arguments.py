"""What functions of arithmetic share: names of composites, conversions, plain functions."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np

from dlbridge.graph.core.constants import convert_to_tensor
from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import DataType


@contextmanager
def scope(name: str | None, default: str, inputs: Sequence[Any]) -> Iterator[str]:
    """Enter a scope of the graph of `inputs`; yield its name, which names the last operation."""
    graph = graph_of(inputs)
    with graph.as_default(), graph.name_scope(name or default) as full:
        yield full


def as_tensor(value: Any, dtype: DataType | None = None, name: str = "Const") -> Tensor:
    """Return a Tensor: itself whatever its dtype, or a constant in the current scope."""
    return value if isinstance(value, Tensor) else convert_to_tensor(value, dtype, name)


def result(
    op_type: str,
    inputs: Sequence[Any],
    attrs: dict[str, Any] | None = None,
    name: str | None = None,
) -> Tensor:
    """Create an operation and return its only result."""
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
    op_type: str, summary: str, name: str | None = None, details: str = ""
) -> Callable[..., Tensor]:
    """Return the function that creates a plain operation of one operand.

    Args:
        op_type: of the operation.
        summary: the first line of the function's docstring.
        name: of the function; None is the op type in small letters.
        details: what its docstring says next: dtypes, special values.
    """

    def function(x: Any, name: str | None = None) -> Tensor:
        return apply(op_type, (x,), None, name).outputs[0]

    shared = "The result has the shape of x, a Tensor or what becomes one. TypeError: another dtype"
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
    return function

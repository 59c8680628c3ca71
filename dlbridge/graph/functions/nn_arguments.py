"""What functions of `tf.nn` share: scopes, operands, strides and paddings as users give them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from dlbridge.graph.constants import as_graph_tensor
from dlbridge.graph.graph import Graph, graph_of
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType

__all__: list[str] = []


@contextmanager
def scope(name: str | None, default: str, *values: Any) -> Iterator[tuple[Graph, str]]:
    """Enter a name scope of the graph of `values`; give the graph and the scope's name, with slash.

    An operation of the scope's own name is made by `apply` with that name. No default: no scope.
    """
    graph = graph_of([each for each in values if isinstance(each, Tensor | list | tuple)])
    if not (name or default):
        yield graph, ""
        return
    with graph.as_default(), graph.name_scope(name or default) as full:
        yield graph, full


def as_tensor(value: Any, graph: Graph, name: str | None, dtype: DataType | None = None) -> Tensor:
    """Return an operand as a Tensor: itself, or a constant of that full name (None: Const)."""
    if isinstance(value, Tensor):
        return value
    converted = getattr(value, "_as_graph_tensor", None)  # a Variable's value
    if converted is not None:
        tensor: Tensor = converted()
        return tensor
    return as_graph_tensor(value, dtype, graph, name or graph.operation_name("Const"))


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
    numbers = [int(each) for each in value] if isinstance(value, Sequence) else [int(value)]
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
    except (TypeError, ValueError):
        raise ValueError(
            f'{call}: padding must be "SAME", "VALID" or four pairs of numbers, got {padding!r}'
        ) from None
    if len(pairs) != 4:
        raise ValueError(f"{call}: padding must have four pairs, got {padding!r}")
    return {"padding": b"EXPLICIT", "explicit_paddings": [each for pair in pairs for each in pair]}

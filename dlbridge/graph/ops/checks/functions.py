"""Checks of values while a graph runs, what it prints, and strings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype

__all__ = [
    "Assert",
    "Print",
    "as_string",
    "check_numerics",
    "decode_raw",
    "string_join",
]


def Assert(  # noqa: N802
    condition: Any, data: Sequence[Any], summarize: int | None = None, name: str | None = None
) -> Operation:
    """Create an operation that fails, and shows `data`, where a condition does not hold.

    It runs where others wait for it: `with tf.control_dependencies([...])`.

    Args:
        condition: a bool scalar.
        data: tensors and strings for the message.
        summarize: how many elements of each axis are shown, 3 by default; -1 is all.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run and false.
    """
    graph = graph_of((condition, list(data)))
    with graph.as_default(), graph.name_scope(name or "Assert"):
        attrs = {"summarize": 3 if summarize is None else summarize}
        return apply("Assert", (condition, data), attrs)


def check_numerics(tensor: Any, message: str, name: str | None = None) -> Tensor:
    """Return the same tensor; fail with `message` where an element is infinite or no number."""
    return apply("CheckNumerics", (tensor,), {"message": message.encode()}, name).outputs[0]


def Print(  # noqa: N802
    input_: Any,
    data: Sequence[Any],
    message: str | None = None,
    first_n: int | None = None,
    summarize: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return the same tensor; write `message` and `data` to standard error on the way.

    Args:
        input_: of any shape.
        data: tensors to show.
        message: what comes before them.
        first_n: so many times only; always by default.
        summarize: how many elements of each axis are shown, 3 by default; -1 is all.
        name: of the operation.
    """
    attrs = {
        "message": (message or "").encode(),
        "first_n": -1 if first_n is None else first_n,
        "summarize": 3 if summarize is None else summarize,
    }
    return apply("Print", (input_, data), attrs, name).outputs[0]


# ---- strings -----------------------------------------------------------------------------------


def string_join(inputs: Sequence[Any], separator: str = "", name: str | None = None) -> Tensor:
    """Return strings joined element by element; scalars are repeated.

    Args:
        inputs: string tensors, of one shape or scalars.
        separator: what comes between.
        name: of the operation.
    """
    return apply("StringJoin", (inputs,), {"separator": separator.encode()}, name).outputs[0]


def as_string(
    input: Any,
    precision: int = -1,
    scientific: bool = False,
    shortest: bool = False,
    width: int = -1,
    fill: str = "",
    name: str | None = None,
) -> Tensor:
    """Return each element as text.

    Args:
        input: numbers, booleans or strings.
        precision: digits after the point; -1 is as many as C's printf gives.
        scientific: with an exponent.
        shortest: whichever of the two forms is shorter.
        width: of the field; -1 is as wide as the text.
        fill: a flag of printf for the field: "", " ", "+", "-", "0" or "#".
        name: of the operation.
    """
    attrs = {
        "precision": precision,
        "scientific": scientific,
        "shortest": shortest,
        "width": width,
        "fill": fill.encode(),
    }
    return apply("AsString", (input,), attrs, name).outputs[0]


def decode_raw(
    input_bytes: Any = None,
    out_type: object = None,
    little_endian: bool = True,
    name: str | None = None,
    bytes: Any = None,
) -> Tensor:
    """Return the bytes of strings as numbers, along a new last axis.

    Args:
        input_bytes: strings of one length, a multiple of the size of `out_type`.
        out_type: the dtype of the numbers.
        little_endian: the order of the bytes of each.
        name: of the operation.
        bytes: the older name of `input_bytes`.
    """
    value = bytes if input_bytes is None else input_bytes
    attrs = {"out_type": as_dtype(out_type), "little_endian": little_endian}
    return apply("DecodeRaw", (value,), attrs, name).outputs[0]

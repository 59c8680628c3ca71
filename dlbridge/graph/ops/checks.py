"""Assertions and printing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.inference import Inference, nothing, require_rank, unchanged
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.ops.shared import Shapes, define

__all__ = ["Assert", "Print", "check_numerics"]


# ==== op types ====================================================================================


def _assert(c: Inference) -> Shapes:
    require_rank(c.dims(0), 0, c)
    return nothing(c)


define(
    "Assert(condition: bool, data: list(T), *, T: list(type) >= 1, summarize: int = 3)",
    shape=_assert,
    stateful=True,
)
define(
    "CheckNumerics(tensor: T, *, T: {bfloat16, float16, float32, float64}, message: string) "
    "-> output: T",
    shape=unchanged,
    stateful=True,
)
define(
    "Print(input: T, data: list(U), *, T: type, U: list(type) >= 0, "
    'message: string = "", first_n: int = -1, summarize: int = 3) -> output: T',
    shape=unchanged,
    stateful=True,
)


# ==== functions ===================================================================================


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
    if not isinstance(message, str):
        raise UnsupportedTypeError(f"message must be a string, got {message!r}")
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

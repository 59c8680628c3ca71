"""Assertions about tensors: compared with others and with zero, their ranks and dtypes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.graph.core.default_graph import apply, graph_of
from dlbridge.graph.core.inference import constant_value
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.ops.checks import Assert
from dlbridge.graph.ops.shared import as_tensor
from dlbridge.proto.datatypes import as_dtype

__all__ = [
    "assert_equal", "assert_greater", "assert_greater_equal", "assert_less", "assert_less_equal",
    "assert_negative", "assert_non_negative", "assert_non_positive", "assert_none_equal",
    "assert_positive", "assert_rank", "assert_rank_at_least", "assert_type",
]  # fmt: skip


def _compare(function: str, op_type: str, sign: str) -> Any:
    """Return the assertion that a comparison holds for each pair of elements."""

    def check(
        x: Any,
        y: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        graph = graph_of((x, y))
        with graph.as_default(), graph.name_scope(name or function):
            one = as_tensor(x, None, "x")
            other = as_tensor(y, None if isinstance(y, Tensor) else one.dtype, "y")
            holds = apply(op_type, (one, other)).outputs[0]
            shown = data or [
                message or "",
                f"Condition x {sign} y did not hold element-wise:",
                f"x ({one.name}) = ",
                one,
                f"y ({other.name}) = ",
                other,
            ]
            return _assert_all(holds, shown, summarize, function)

    check.__name__ = check.__qualname__ = function
    check.__doc__ = f"""Create an operation that fails unless x {sign} y for all elements.

    Args:
        x, y: tensors of one dtype.
        data: what the message shows; x and y by default.
        summarize: how many elements of each axis are shown, 3 by default.
        message: what the message starts with.
        name: of the operations.

    Raises:
        InvalidArgumentError: when run, or at once where both values are known.
    """
    return check


def _assert_all(
    holds: Tensor, shown: Sequence[Any], summarize: int | None, function: str
) -> Operation:
    value = constant_value(holds)
    if value is not None and not np.all(value):
        text = " ".join(str(each) for each in shown if not isinstance(each, Tensor))
        raise InvalidArgumentError(f"{function}: {text}".strip())
    dims = holds._dims
    if dims == ():
        return Assert(holds, shown, summarize)
    if dims is None:
        count = apply("Rank", (holds,)).outputs[0]
        axes: Any = apply("Range", (0, count, 1), None, "range").outputs[0]
    else:
        axes = np.arange(len(dims), dtype=np.int32)
    return Assert(apply("All", (holds, axes)).outputs[0], shown, summarize)


assert_equal = _compare("assert_equal", "Equal", "==")
assert_none_equal = _compare("assert_none_equal", "NotEqual", "!=")
assert_less = _compare("assert_less", "Less", "<")
assert_less_equal = _compare("assert_less_equal", "LessEqual", "<=")
assert_greater = _compare("assert_greater", "Greater", ">")
assert_greater_equal = _compare("assert_greater_equal", "GreaterEqual", ">=")


def _against_zero(function: str, compare: Any, swapped: bool, words: str) -> Any:
    """Return the assertion about the sign of each element."""

    def check(
        x: Any,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        graph = graph_of((x,))
        with graph.as_default(), graph.name_scope(name or function):
            tensor = as_tensor(x, None, "x")
            if tensor.dtype.kind == "s":
                raise TypeError(f"{function}: x must be a tensor of real numbers, got {x!r}")
            zero = as_tensor(np.zeros((), tensor.dtype.numpy), tensor.dtype, "Const")
            shown = data or [message or "", f"Condition x {words} 0 did not hold:", tensor]
            pair = (zero, tensor) if swapped else (tensor, zero)
            operation: Operation = compare(*pair, data=shown, summarize=summarize)
            return operation

    check.__name__ = check.__qualname__ = function
    check.__doc__ = f"""Create an operation that fails unless x {words} 0 for all elements.

    Args:
        x: a tensor of real numbers.
        data: what the message shows; x by default.
        summarize: how many elements of each axis are shown, 3 by default.
        message: what the message starts with.
        name: of the operations.

    Raises:
        InvalidArgumentError: when run, or at once where the value is known.
    """
    return check


assert_positive = _against_zero("assert_positive", assert_less, True, ">")
assert_negative = _against_zero("assert_negative", assert_less, False, "<")
assert_non_negative = _against_zero("assert_non_negative", assert_less_equal, True, ">=")
assert_non_positive = _against_zero("assert_non_positive", assert_less_equal, False, "<=")


def _of_rank(function: str, op_type: str, words: str) -> Any:
    """Return the assertion that the rank of a tensor is `rank`, or compares with it."""

    def check(
        x: Any,
        rank: int,
        data: Sequence[Any] | None = None,
        summarize: int | None = None,
        message: str | None = None,
        name: str | None = None,
    ) -> Operation:
        graph = graph_of((x,))
        with graph.as_default(), graph.name_scope(name or function):
            tensor = as_tensor(x, None, "x")
            if tensor._dims is not None:
                found = len(tensor._dims)
                if found < rank or (found > rank and op_type == "Equal"):
                    raise ValueError(
                        f"{message or ''}{function}: tensor {tensor.name} must have rank "
                        f"{words}{rank}. Received rank {found}, shape {tensor.shape}"
                    )
                return apply("NoOp", (), None, "static_checks_determined_all_ok")
            count = apply("Rank", (tensor,)).outputs[0]
            shown = data or [message or "", f"Tensor {tensor.name} must have rank", rank, count]
            return Assert(apply(op_type, (count, rank)).outputs[0], shown, summarize)

    check.__name__ = check.__qualname__ = function
    check.__doc__ = f"""Create an operation that fails unless the rank of a tensor is {words}`rank`.

    Raises:
        ValueError: it is known at once that it is not.
        InvalidArgumentError: when run.
    """
    return check


assert_rank = _of_rank("assert_rank", "Equal", "")
assert_rank_at_least = _of_rank("assert_rank_at_least", "GreaterEqual", "at least ")


def assert_type(
    tensor: Any, tf_type: object, message: str | None = None, name: str | None = None
) -> Operation:
    """Raise TypeError at once unless a tensor is of a dtype; return an operation of no effect."""
    kind = as_dtype(tf_type)
    graph = graph_of((tensor,))
    with graph.as_default(), graph.name_scope(name or "assert_type"):
        found = as_tensor(tensor, None, "tensor").dtype
        if found is not kind:
            raise TypeError(
                f"{message or ''}assert_type: tensor must be of type {kind.name}, got {found.name}"
            )
        return apply("NoOp", (), None, "statically_determined_correct_type")

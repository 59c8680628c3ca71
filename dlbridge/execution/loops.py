"""Runs of element-wise nodes on NumPy: one callable each, on NumPy's inner loops called from C."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np

from dlbridge._core import native

Instruction = tuple[str, Sequence[int]]


@cache
def result_dtype(ufunc: str, *dtypes: np.dtype) -> np.dtype | None:
    """Return the dtype of a ufunc's result where it has an inner loop in C for these dtypes.

    None where it has not: then the node should not be part of a run, whose other nodes would lose
    their loops as well.

    >>> result_dtype("less", np.dtype("f4"), np.dtype("f4"))
    dtype('bool')
    >>> result_dtype("add", np.dtype("f4"), np.dtype("f8")) is None
    True
    """
    try:
        loops = native.Loops(
            dtypes, ((getattr(np, ufunc), (*range(len(dtypes)),)),), (len(dtypes),)
        )
    except TypeError:
        return None
    found: np.dtype = loops.dtypes[0]
    return found


def make_loops(
    inputs: Sequence[np.dtype],
    instructions: Sequence[Instruction],
    outputs: Sequence[int],
    *,
    single: bool = False,
    on_error: Callable[[int, Exception], BaseException] | None = None,
) -> Callable[..., Any]:
    """Return a callable that runs NumPy ufuncs over its arguments, in order.

    Values are numbered: the arguments, then the result of each instruction. The results are those
    of the ufuncs called one after another, to the bit, without warnings. Constants are also
    arguments. A step of a `native.Program` can be such a callable: `(callable, input slots, output
    slots, releases)`, with `single=True` and a bare output slot where there is one output.

    Args:
        inputs: the dtypes of the arguments, which are ndarrays or NumPy scalars. Other arguments,
            shapes and layouts than `native.Loops` takes are left to NumPy, array by array.
        instructions: the name of each ufunc in NumPy, and its operands.
        outputs: the values to return: arguments are returned themselves.
        single: return the only output itself, not a tuple.
        on_error: `on_error(i, exception)` returns the error to raise where instruction i fails.

    >>> f4 = np.dtype("f4")
    >>> scale = make_loops([f4, f4], [("multiply", (0, 1)), ("maximum", (2, 1))], [3], single=True)
    >>> scale(np.array([1, -2], "f4"), np.float32(3))
    array([3., 3.], dtype=float32)
    """
    steps = tuple((getattr(np, name), tuple(operands)) for name, operands in instructions)
    one_by_one = _one_by_one(len(inputs), steps, tuple(outputs), single, on_error)
    try:
        return native.Loops(tuple(inputs), steps, tuple(outputs), one_by_one, single=single)
    except TypeError:
        return one_by_one


def _one_by_one(
    count: int,
    steps: tuple[tuple[Any, tuple[int, ...]], ...],
    outputs: tuple[int, ...],
    single: bool,
    on_error: Callable[[int, Exception], BaseException] | None,
) -> Callable[..., Any]:
    """Return a callable that calls the ufuncs, and releases each array after its last use."""
    needed = set(outputs)
    plan: list[Any] = []
    for i, (ufunc, operands) in reversed(list(enumerate(steps))):
        result = count + i
        releases = tuple(set(operands) - needed)
        unused = () if result in needed else (result,)
        needed |= set(operands)
        plan.append((ufunc, operands, result, releases + unused))
    program = native.Program(
        count + len(steps),
        {},
        tuple(reversed(plan)),
        tuple(range(count)),
        outputs,
        on_error,
        single=single,
    )

    def call(*values: Any) -> Any:
        with np.errstate(all="ignore"):
            return program(*values)

    return call

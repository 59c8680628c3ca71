"""The body of a compiled run: many nodes as one function, which a framework's compiler takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from dlbridge.execution.errors import failure


class Instruction(NamedTuple):
    """One call inside of a run, over values numbered within it.

    Attributes:
        function: the kernel's, or a conversion.
        inputs: numbers of values.
        outputs: the numbers of its results.
        single: whether it returns the only result itself.
        node: the node that it computes.
        calls_user: whether the function is the user's.
    """

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    single: bool
    node: Any
    calls_user: bool = False


class Body:
    """The computation of a run, as one Python function of its arguments.

    Attributes:
        instructions: in order.
        constants: (number, value) of values that are the same in each call.
        arrays: numbers of the arguments that are arrays of the framework.
        hosts: numbers of the arguments on whose values the program depends: shapes, axes.
        results: numbers of the values it returns, as a tuple.
        keep: exceptions that say something about the compiler, not about a node.
    """

    def __init__(self) -> None:
        self.instructions: list[Instruction] = []
        self.constants: list[tuple[int, Any]] = []
        self.arrays: list[int] = []
        self.hosts: list[int] = []
        self.results: list[int] = []
        self.count = 0
        self.keep: tuple[type[Exception], ...] = ()

    def number(self) -> int:
        """Return the number of a new value."""
        self.count += 1
        return self.count - 1

    def __call__(self, arrays: Sequence[Any], hosts: Sequence[Any]) -> tuple[Any, ...]:
        """Compute the results; an error names the node that failed."""
        values: list[Any] = [None] * self.count
        for number, value in self.constants:
            values[number] = value
        for number, value in zip(self.arrays, arrays, strict=True):
            values[number] = value
        for number, value in zip(self.hosts, hosts, strict=True):
            values[number] = value
        for function, inputs, outputs, single, node, calls_user in self.instructions:
            try:
                result = function(*[values[each] for each in inputs])
            except self.keep:
                raise
            except Exception as error:
                raise failure(node, error, calls_user) from error
            for number, value in zip(outputs, (result,) if single else result, strict=True):
                values[number] = value
        return tuple([values[each] for each in self.results])


def host_key(hosts: Sequence[Any]) -> tuple[Any, ...]:
    """Return what tells host arguments apart by their values."""
    return tuple([(each.dtype.str, each.shape, each.tobytes()) for each in hosts])

"""Runs of JAX and torch: many nodes as one function, which the framework's compiler may take."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from dlbridge.exchange.receipts import is_recording
from dlbridge.execution.failures import failure
from dlbridge.execution.placement import HOST, Placed
from dlbridge.execution.plan import Step

SMALL = 4096  # bytes: up to this constants are compiled in, and arrays are passed as they are


class Instruction(NamedTuple):
    """One call inside of a run, over values numbered within it.

    Attributes:
        function: the kernel's, or a conversion.
        inputs: numbers of values.
        outputs: the numbers of its results.
        single: whether it returns the only result itself.
        node: what it computes.
        calls_user: whether the function is the user's.
    """

    function: Callable[..., Any]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    single: bool
    node: Any
    calls_user: bool = False


class Body:
    """What a run computes, as one Python function of its arguments.

    Attributes:
        instructions: in order.
        constants: (number, value) of values that are the same in each call.
        arrays: numbers of the arguments that are arrays of the framework.
        hosts: numbers of the arguments on whose values the program depends: shapes, axes.
        results: numbers of what it returns, as a tuple.
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


class Writer:
    """Writes the body of one run, and the step that calls it."""

    def __init__(self, builder: Any, nodes: Sequence[Placed]) -> None:
        self.builder = builder
        self.nodes = nodes
        self.place = next(each.place for each in nodes if each.place != HOST)
        self.context = builder.runtime.context(self.place)
        self.body = Body()
        self.numbers: dict[tuple[Any, bool], int] = {}  # (output, whether on the host)
        self.array_slots: list[int] = []
        self.host_slots: list[int] = []

    def write(self, results: Sequence[Any]) -> None:
        """Write all instructions; `results` are the outputs to return."""
        for placed in self.nodes:
            node = placed.node
            inputs = tuple(
                [
                    self.read(each, placed.place == HOST or i in placed.host, node)
                    for i, each in enumerate(placed.inputs)
                ]
            )
            outputs = tuple([self.body.number() for _ in node.outputs])
            for each, number in zip(node.outputs, outputs, strict=True):
                if each not in self.builder.values:  # else it is fed, though the node runs
                    self.numbers[each, placed.result == HOST] = number
            function = self.builder.runtime.step_function(placed)
            calls_user = placed.spec.calls_user
            self.body.instructions.append(
                Instruction(function, inputs, outputs, len(outputs) == 1, node, calls_user)
            )
        self.body.results = [self.made(each) for each in results]

    def made(self, output: Any) -> int:
        """Return the number of what a node of the run computes."""
        found = self.numbers.get((output, False))
        return self.numbers[output, True] if found is None else found

    def read(self, output: Any, host: bool, node: Any) -> int:
        """Return the number of an output, as an array of the framework or on the host."""
        found = self.numbers.get((output, host))
        if found is None:
            known = self.numbers.get((output, True))
            constant = self.builder.constant_of(output)
            if known is not None and output not in self.builder.values:
                found = self._convert(known, node)
            elif constant is not None:
                found = self._constant(output, constant, host, node)
            elif host:
                found = self._argument(
                    self.body.hosts, self.host_slots, self.builder.read(output, HOST)
                )
            else:
                slot = self.builder.read_loosely(output, self.place)
                found = self._argument(self.body.arrays, self.array_slots, slot)
            self.numbers[output, host] = found
        return found

    def _argument(self, numbers: list[int], slots: list[int], slot: int) -> int:
        numbers.append(self.body.number())
        slots.append(slot)
        return numbers[-1]

    def _constant(self, output: Any, constant: Any, host: bool, node: Any) -> int:
        value = constant.attrs["value"].array
        if not host and value.nbytes > SMALL:
            slot = self.builder.read(output, self.place)
            return self._argument(self.body.arrays, self.array_slots, slot)
        number = self.body.number()
        self.body.constants.append((number, value))
        return number if host else self._convert(number, node)

    def _convert(self, number: int, node: Any) -> int:
        found = self.body.number()
        self.body.instructions.append(
            Instruction(self.context.asarray, (number,), (found,), True, node)
        )
        return found


def add_compiled(builder: Any, nodes: Sequence[Placed]) -> None:
    """Add the step that runs nodes as one function, compiled by their framework."""
    results = builder.outside(nodes)
    if not results:
        return
    writer = Writer(builder, nodes)
    writer.write(results)
    framework = writer.place.framework
    module = import_module(f"dlbridge.frameworks.{framework}.graph_runs")
    function = module.compile_body(writer.body, len(writer.array_slots), writer.context.device)
    slots = tuple([builder.result(each, writer.place) for each in results])
    first, last = nodes[0].node.name, nodes[-1].node.name
    builder.steps.append(
        Step(
            function,
            (*writer.array_slots, *writer.host_slots),
            slots,
            tuple([placed.node for placed in nodes]),
            framework,
            first if len(nodes) == 1 else f"{first} … {last}",
            device=writer.place.device,
        )
    )


def loose_mover(move: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `move` without what is small, whose conversion a compiled call does faster."""

    def pass_or_move(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes <= SMALL and not is_recording():
            return value
        return value if isinstance(value, np.generic) else move(value)

    return pass_or_move

"""Plan: the steps of one kind of run, made once for the same fetches and feeds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.execution.errors import failure


class Step(NamedTuple):
    """One call of a run: a function over numbered values.

    Attributes:
        function: called with the values of `inputs`; None takes a value over as it is.
        inputs: numbers of values.
        outputs: the number of its result, or numbers of the items of its result; -1 is unwanted.
        nodes: the nodes it computes; () for the steps of a plan: moves, feeds, fetches.
        framework: where it runs.
        label: its name in a trace.
        calls_user: whether the function is the user's.
        moved: the output of a node whose value it takes to another framework or device, or None.
        device: the name of the device where it runs; "" is the host.
    """

    function: Callable[..., Any] | None
    inputs: tuple[int, ...]
    outputs: int | tuple[int, ...]
    nodes: tuple[Any, ...] = ()
    framework: str = ""
    label: str = ""
    calls_user: bool = False
    moved: Any = None
    device: str = ""


class Plan:
    """A run that is ready to be called with the values fed.

    Attributes:
        steps: in order; their numbers of values are those of `program`'s slots.
        releases: for each step, the values that nothing needs after it.
        constants: values that are there from the start, by their number.
        inputs: the numbers of the values fed.
        outputs: the numbers of the values returned.
        program: runs the steps; called with the values fed, it returns a tuple, or the only value.
        guards: make the blocks in which the steps must run.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        constants: dict[int, Any],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        single: bool,
        guards: Sequence[Callable[[], Any]] = (),
    ) -> None:
        releases = _last_uses(steps, outputs)
        numbers, count = _share_slots(steps, releases, constants, inputs)
        self.steps = [
            step._replace(inputs=_renumber(step.inputs, numbers), outputs=renumbered)
            for step, renumbered in zip(
                steps, [_renumber_outputs(step.outputs, numbers) for step in steps], strict=True
            )
        ]
        self.releases = [_renumber(each, numbers) for each in releases]
        self.constants = {numbers[slot]: value for slot, value in constants.items()}
        self.inputs = _renumber(inputs, numbers)
        self.outputs = _renumber(outputs, numbers)
        self.single = single
        self.guards = tuple(guards)
        rows = zip(self.steps, self.releases, strict=True)
        self.program = native.Program(
            count,
            self.constants,
            tuple([(each.function, each.inputs, each.outputs, free) for each, free in rows]),
            self.inputs,
            self.outputs,
            partial(_explain, self.steps),  # a method would tie plan and program into a cycle
            single=single,
        )
        self.call = _guarded(self.program, self.guards)

    def explain(self, number: int, error: Exception) -> Exception:
        """Return the error of a session where step `number` raised `error`."""
        return _explain(self.steps, number, error)


def _explain(steps: Sequence[Step], number: int, error: Exception) -> Exception:
    step = steps[number]
    return failure(step.nodes[-1], error, step.calls_user) if step.nodes else error


def _guarded(
    program: Callable[..., Any], guards: tuple[Callable[[], Any], ...]
) -> Callable[..., Any]:
    """Return a call of the program inside of what `guards` open."""
    if not guards:
        return program
    guard, inner = guards[0], _guarded(program, guards[1:])

    def call(*values: Any) -> Any:
        with guard():
            return inner(*values)

    return call


# ---- values and slots --------------------------------------------------------------------------


def _filled(step: Step) -> tuple[int, ...]:
    return step.outputs if isinstance(step.outputs, tuple) else (step.outputs,)


def _last_uses(steps: Sequence[Step], outputs: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Return for each step the values that it uses last, or that it makes for nobody."""
    needed = set(outputs)
    found = []
    for step in reversed(steps):
        touched = dict.fromkeys([*step.inputs, *(each for each in _filled(step) if each >= 0)])
        found.append(tuple([each for each in touched if each not in needed]))
        needed.update(touched)
    return found[::-1]


def _share_slots(
    steps: Sequence[Step],
    releases: Sequence[tuple[int, ...]],
    constants: dict[int, Any],
    inputs: tuple[int, ...],
) -> tuple[dict[int, int], int]:
    """Return the slot of each value, and how many there are; slots are used again."""
    numbers = {-1: -1}
    for each in (*constants, *inputs):
        numbers[each] = len(numbers) - 1
    lasting = set(numbers)
    count = len(numbers) - 1
    free: list[int] = []
    for step, released in zip(steps, releases, strict=True):
        for each in _filled(step):
            if each not in numbers:
                numbers[each] = free.pop() if free else count
                count = max(count, numbers[each] + 1)
        free += [numbers[each] for each in released if each not in lasting]
    return numbers, count


def _renumber(slots: tuple[int, ...], numbers: dict[int, int]) -> tuple[int, ...]:
    return tuple([numbers[each] for each in slots])


def _renumber_outputs(outputs: int | tuple[int, ...], numbers: dict[int, int]) -> Any:
    return _renumber(outputs, numbers) if isinstance(outputs, tuple) else numbers[outputs]

"""Plan: the steps of one kind of run, made once for the same fetches and feeds.

A step calls one kernel, or a function of many nodes: a Body, which a framework compiles, or a call
of NumPy's inner loops.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ExchangeError, name_call
from dlbridge.execution.concurrent import Schedule
from dlbridge.execution.errors import failure
from dlbridge.execution.quiet import without_warnings
from dlbridge.signals import not_from_handler

Guard = Callable[[Callable[..., Any]], Callable[..., Any]]


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
        guards: return a call of a function in the state in which the steps must run.
        is_concurrent: whether steps run in several threads, not in order.
    """

    def __init__(
        self,
        steps: Sequence[Step],
        constants: dict[int, Any],
        inputs: tuple[int, ...],
        outputs: tuple[int, ...],
        single: bool,
        guards: Sequence[Guard] = (),
        before: Sequence[Collection[int]] = (),
        threads: int = 1,
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
        self.is_concurrent = bool(before)
        run: Callable[..., Any] = self.program
        if before:
            schedule = Schedule(steps, before, threads)
            run = _side_by_side(schedule, constants, inputs, outputs, single, self.guards)
        self.call = self.guarded(run)

    def guarded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call of a function in the state in which the steps must run."""
        return _guarded(function, self.guards)

    def explain(self, number: int, error: Exception) -> Exception:
        """Return the error of a session where step `number` raised `error`."""
        return _explain(self.steps, number, error)


def _place_of(step: Step) -> str:
    """Return which value of a run a step without nodes takes from one framework to another."""
    if step.moved is None:
        return step.label
    return f"value {'for' if step.label.startswith('fed ') else 'of'} {step.moved.name!r}"


def _explain(steps: Sequence[Step], number: int, error: Exception) -> Exception:
    step = steps[number]
    names_itself = step.nodes or step.label.startswith("feed ")
    if isinstance(error, ExchangeError) and not names_itself:
        name_call(error, f"Session.run: {_place_of(step)}")
    return failure(step.nodes[-1], error, step.calls_user) if step.nodes else error


def _side_by_side(
    schedule: Schedule,
    constants: dict[int, Any],
    inputs: tuple[int, ...],
    outputs: tuple[int, ...],
    single: bool,
    guards: tuple[Guard, ...],
) -> Callable[..., Any]:
    """Return the call of a schedule, whose values share no slots."""
    guarded, explain = partial(_guarded, guards=guards), partial(_explain, schedule.steps)

    def call(*fed: Any) -> Any:
        values = constants | dict(zip(inputs, fed, strict=True))
        found = schedule.call(values, outputs, guarded, explain)
        return found[0] if single else found

    return call


def _guarded(function: Callable[..., Any], guards: tuple[Guard, ...]) -> Callable[..., Any]:
    """Return a call of a function within all guards, the first one outermost."""
    for guard in reversed(guards):
        function = guard(function)
    return function


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


# ---- compiled steps ----------------------------------------------------------------------------


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
            except not_from_handler(Exception) as error:
                raise failure(node, error, calls_user) from error
            for number, value in zip(outputs, (result,) if single else result, strict=True):
                values[number] = value
        return tuple([values[each] for each in self.results])


def host_key(hosts: Sequence[Any]) -> tuple[Any, ...]:
    """Return what tells host arguments apart by their values."""
    return tuple([(each.dtype.str, each.shape, each.tobytes()) for each in hosts])


# ---- steps on NumPy's inner loops --------------------------------------------------------------


class UfuncCall(NamedTuple):
    """A node of a run on NumPy's inner loops.

    Attributes:
        ufunc: its name for `find_ufunc`.
        operands: the values it takes.
        function: is called instead where the loops cannot run; by default the ufunc.
        folds: whether the ufunc is applied to any number of operands from left to right. They must
            have the same shape; where that is not certain, `function` is called, and checks it.
    """

    ufunc: str
    operands: Sequence[int]
    function: Callable[..., Any] | None = None
    folds: bool = False


def find_ufunc(name: str) -> np.ufunc:
    """Return the ufunc of a name: ours, which NumPy lacks, or NumPy's.

    >>> find_ufunc("sigmoid")(np.zeros(2, "f4"))
    array([0.5, 0.5], dtype=float32)
    """
    found: np.ufunc = native.sigmoid if name == "sigmoid" else getattr(np, name)
    return found


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
        loops = native.Loops(dtypes, ((find_ufunc(ufunc), (*range(len(dtypes)),)),), (len(dtypes),))
    except not_from_handler(TypeError):
        return None
    found: np.dtype = loops.dtypes[0]
    return found


def make_loops(
    inputs: Sequence[np.dtype],
    instructions: Sequence[UfuncCall],
    outputs: Sequence[int],
    *,
    single: bool = False,
    on_error: Callable[[int, Exception], BaseException] | None = None,
    small_torch: int = 0,
) -> Callable[..., Any]:
    """Return a callable that runs NumPy ufuncs over its arguments, in order.

    Values are numbered: the arguments, then the result of each instruction. The results are those
    of the ufuncs called one after another, to the bit, without warnings; only the sign of the sum
    of two NaN depends in NumPy 1 on where it is written. Constants are also arguments. A step of a
    `native.Program` can be such a callable: `(callable, input slots, output slots, releases)`, with
    `single=True` and a bare output slot where there is one output.

    Args:
        inputs: the dtypes of the arguments, which are ndarrays or NumPy scalars. Other arguments,
            shapes and layouts than `native.Loops` takes are left to NumPy, array by array.
        instructions: in order.
        outputs: the values to return: arguments are returned themselves.
        single: return the only output itself, not a tuple.
        on_error: `on_error(i, exception)` returns the error to raise where instruction i fails.
        small_torch: above 0 arguments and results are torch.Tensors: plain ones of at most so many
            elements run in the loops, all others in the functions of the instructions.

    >>> f4 = np.dtype("f4")
    >>> twice, most = UfuncCall("multiply", (0, 1)), UfuncCall("maximum", (2, 1))
    >>> scale = make_loops([f4, f4], [twice, most], [3], single=True)
    >>> scale(np.array([1, -2], "f4"), np.float32(3))
    array([3., 3.], dtype=float32)
    """
    called = tuple(
        [(each.function or find_ufunc(each.ufunc), tuple(each.operands)) for each in instructions]
    )
    make = partial(_one_by_one, len(inputs), called, tuple(outputs), single, on_error)
    one_by_one = make() if small_torch else _without_warnings(make)
    steps, numbers = _unfolded(len(inputs), instructions)
    try:
        return native.Loops(
            tuple(inputs),
            steps,
            tuple([numbers[each] for each in outputs]),
            one_by_one,
            single=single,
            small_torch=small_torch,
        )
    except not_from_handler(TypeError):
        return one_by_one


def _unfolded(
    count: int, instructions: Sequence[UfuncCall]
) -> tuple[tuple[tuple[Any, ...], ...], list[int]]:
    """Return the instructions of `native.Loops`, and the number of each value there."""
    steps: list[tuple[Any, ...]] = []
    numbers = list(range(count))
    for each in instructions:
        ufunc, operands = find_ufunc(each.ufunc), [numbers[k] for k in each.operands]
        if each.folds:
            total, *others = operands
            for other in others:
                steps.append((ufunc, (total, other), True))
                total = count + len(steps) - 1
        else:
            steps.append((ufunc, tuple(operands)))
        numbers.append(count + len(steps) - 1)
    return tuple(steps), numbers


def _one_by_one(
    count: int,
    steps: tuple[tuple[Any, tuple[int, ...]], ...],
    outputs: tuple[int, ...],
    single: bool,
    on_error: Callable[[int, Exception], BaseException] | None,
) -> Callable[..., Any]:
    """Return a callable that calls functions, and releases each array after its last use."""
    needed = set(outputs)
    plan: list[Any] = []
    for i, (function, operands) in reversed(list(enumerate(steps))):
        result = count + i
        releases = tuple(set(operands) - needed)
        unused = () if result in needed else (result,)
        needed |= set(operands)
        plan.append((function, operands, result, releases + unused))
    return native.Program(
        count + len(steps),
        {},
        tuple(reversed(plan)),
        tuple(range(count)),
        outputs,
        on_error,
        single=single,
    )


def _without_warnings(make: Callable[[], Callable[..., Any]]) -> Callable[..., Any]:
    """Return a call of what `make` returns, which is made when it is first called."""
    program: Callable[..., Any] | None = None

    def call(*values: Any) -> Any:
        nonlocal program
        if program is None:  # few runs need it, and it takes as much memory as the loops
            program = without_warnings(make())
        return program(*values)

    return call

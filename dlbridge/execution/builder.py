"""Builder writes the steps of a plan with the Runtime of a session; values cross as needed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Sequence
from typing import Any, Literal, Protocol

import numpy as np

from dlbridge.exchange.context import is_recording
from dlbridge.execution.backend import (
    FRAMEWORKS,
    backend,
    device_object,
    entered,
    framework_of_nodes,
    mover,
    namespace,
    on_device,
    wide,
)
from dlbridge.execution.errors import InvalidArgumentError, UnimplementedError, failure
from dlbridge.execution.placement import ANYWHERE, HOST, Place, Placed
from dlbridge.execution.plan import Body, Guard, Instruction, Step, UfuncCall, make_loops
from dlbridge.execution.queues import QueueState
from dlbridge.execution.registry import Context, Ends, Given
from dlbridge.execution.variables import VariableState, Written, is_handle, reader, typed
from dlbridge.proto.datatypes import resource, string
from dlbridge.signals import not_from_handler

RunKind = Literal["steps", "loops", "compiled"]
SMALL = 4096  # bytes: up to this constants are compiled in, and arrays are passed as they are
Feeder = Callable[[Any, str | None], Callable[[Any], Any]]
"""(output, framework or None) -> the function that checks a value fed and makes it an array of that
framework, or of any."""


class Limit(Protocol):
    """A limit on the size of values."""

    def guard(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return a call of a function that allocates no larger ones."""

    def check_attributes(self, node: Any) -> None:
        """Raise if a value that a node holds itself is too large."""

    def checked(self, node: Any, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return what calls a node's function if no result will be too large."""


class Runtime:
    """The state of a session, and contexts, constants and kernels made for its nodes.

    Attributes:
        framework: where nodes run that ask for none.
        resources: the state of variables, by name.
        seed: of the graph, or None.
        soft: whether a node whose device does not exist runs on the default one.
        compiled: the frameworks whose runs are compiled into one callable.
        logged: nodes whose place was logged; None where none is to be.
        threads: the most functions of the user that are called side by side.
        limit: on the size of values, or None; then each node runs by itself.
        ends: makes what passes values to other tasks, or None.
    """

    def __init__(
        self,
        framework: str = "numpy",
        seed: int | None = None,
        soft: bool = False,
        compiled: frozenset[str] = frozenset({"jax"}),
        log_placement: bool = False,
        threads: int = 1,
        limit: Limit | None = None,
        resources: dict[str, Any] | None = None,
        ends: Ends | None = None,
    ) -> None:
        namespace(framework)  # so that an unknown name or a missing package fails at once
        self.framework = framework_of_nodes(framework, "Session")
        self.seed = seed
        self.soft = soft
        self.compiled = compiled
        self.threads = threads
        self.limit = limit
        self.logged: set[Any] | None = set() if log_placement else None
        self.resources: dict[str, Any] = {} if resources is None else resources
        self.ends = ends
        self._contexts: dict[Place, Context] = {}
        self._constants: dict[tuple[Any, Place], Any] = {}
        self._functions: dict[tuple[Any, Place], Callable[..., Any]] = {}

    def release(self) -> None:
        """Release everything, including the state of variables."""
        for each in self.resources.values():  # others are generators of random numbers
            if isinstance(each, VariableState | QueueState):
                each.release()
        self.resources.clear()
        self._contexts = {}
        self._constants = {}
        self._functions = {}

    def context(self, place: Place) -> Context:
        """Return the context of a place, the same in all plans."""
        found = self._contexts.get(place)
        if found is None:
            framework, name = place
            device = device_object(framework, name)
            made = Context(framework, self.resources, device, self.seed, name, self.ends)
            found = self._contexts.setdefault(place, made)
        return found

    def constant(self, node: Any, place: Place) -> Any:
        """Return the value of a Const at a place; it is converted once.

        For NumPy, what lies in a GraphDef at an address that does not suit its dtype is copied: the
        inner loops do not take it as it is, and most functions would copy it in each run.
        """
        key = node, place
        found = self._constants.get(key)
        if found is None:
            if self.limit is not None:
                self.limit.check_attributes(node)
            value = node.attrs["value"].array
            if place.framework != "numpy":
                value = self.context(place).asarray(value)
            elif not value.flags.aligned:
                value = value.copy()
                value.flags.writeable = False
            found = self._constants.setdefault(key, value)
        return found

    def function(self, placed: Placed) -> Callable[..., Any]:
        """Return what computes a node; it is made once, so that random numbers go on.

        Raises:
            OpError: the attributes or dtypes are not possible there.
        """
        key = placed.node, placed.place
        found = self._functions.get(key)
        if found is None:
            context = self.context(placed.place)
            if self.limit is not None:
                self.limit.check_attributes(placed.node)
            _refuse_handles(placed)
            try:
                with entered(context.framework, context.device):
                    made = placed.spec.factory(placed.node, context)
            except not_from_handler(Exception) as error:
                raise failure(placed.node, error) from error
            made = _with_strings(placed.node, made)
            made = on_device(context.framework, context.device, made)
            if self.limit is not None:
                made = self.limit.checked(placed.node, made)
            found = self._functions.setdefault(key, made)
        return found

    def step_function(self, placed: Placed) -> Callable[..., Any]:
        """Return what computes a node with the types enabled that it needs.

        A function of the user in JAX sees 64-bit types where its node has some: elsewhere what it
        creates is to be of 32 bits, as it was written for.
        """
        function = self.function(placed)
        if placed.spec.calls_user and not _has_64_bits(placed.node):
            return wide(placed.place.framework, function, enabled=False)
        return wide(placed.place.framework, function)


def _refuse_handles(placed: Placed) -> None:
    """Require that a kernel which gets a handle of a variable is one that takes handles."""
    node, spec = placed.node, placed.spec
    if spec.forwards or node.type == "IdentityN":
        return
    for i, each in enumerate(node.inputs):
        if each.dtype is resource and i not in spec.handles:
            raise UnimplementedError(
                f"there is no kernel for op type {node.type!r} whose input {i} is a resource", node
            )


def _with_strings(node: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function`, or for results of strings one that gives arrays in every case.

    NumPy makes of an array of objects without dimensions the object itself.
    """
    if not any(each is string for each in node.output_types):
        return function
    if len(node.output_types) == 1:
        return lambda *values: _string_array(function(*values))
    return lambda *values: tuple(map(_string_array, function(*values)))


def _string_array(value: Any) -> Any:
    if not isinstance(value, bytes | str):
        return value
    made = np.empty((), object)
    made[()] = value
    return made


def _has_64_bits(node: Any) -> bool:
    kinds = [*node.output_types, *(each.dtype for each in node.inputs)]
    return any(kind.real_dtype.name in ("int64", "uint64", "float64") for kind in kinds)


class Value:
    """One output during planning: where it is, under which number.

    Attributes:
        at: place -> number.
        constant: the Const whose value it is, which can be had at any place, or None.
    """

    __slots__ = ("at", "constant")

    def __init__(self, constant: Any = None) -> None:
        self.at: dict[Place, int] = {}
        self.constant = constant


class Builder:
    """Writes the steps of one plan.

    Attributes:
        steps: so far.
        constants: number -> value.
        values: output -> Value.
        new: outputs whose memory only this run knows, in the framework where they are.
        uses: output -> how many inputs of nodes, and fetches, take it.
    """

    def __init__(
        self,
        runtime: Runtime,
        placed: Sequence[Placed],
        fetched: Sequence[Any],
        fed: Collection[Any],
    ) -> None:
        self.runtime = runtime
        self.steps: list[Step] = []
        self.constants: dict[int, Any] = {}
        self.values: dict[Any, Value] = {}
        self.new: set[Any] = set()
        self._count = 0
        self._placed = placed
        self._fed = fed
        self._written = Written([each.node for each in placed])
        for one in placed:
            if one.node.type == "Const" and one.is_no_op and one.node.outputs[0] not in fed:
                self.values[one.node.outputs[0]] = Value(one.node)
        self.uses = Counter([each for one in placed if not one.is_no_op for each in one.inputs])
        self.uses.update(fetched)
        self._places: set[Place] = set()

    def number(self) -> int:
        """Return the number of a new value."""
        self._count += 1
        return self._count - 1

    # ---- values ----

    def read(self, output: Any, place: Place) -> int:
        """Return the number of an output's value at a place; move it there first if need be."""
        value = self.values[output]
        found = value.at.get(place)
        if found is None:
            if value.constant is not None:
                found = self.number()
                self.constants[found] = self.runtime.constant(value.constant, place)
            else:
                source, slot = next(iter(value.at.items()))
                found = self._move(slot, source, place, output)
            value.at[place] = found
        return found

    def _move(self, slot: int, source: Place, place: Place, output: Any) -> int:
        found = self.number()
        self._add_move(self._mover(source, place), slot, found, source, place, output)
        return found

    def _add_move(
        self, move: Callable[[Any], Any], slot: int, to: int, source: Place, place: Place, x: Any
    ) -> None:
        framework, device = place
        label = f"{source if source.framework else 'fed'} -> {place}: {x.op.name}"
        self.steps.append(Step(move, (slot,), to, (), framework, label, moved=x, device=device))

    def _mover(self, source: Place, place: Place) -> Callable[[Any], Any]:
        looks = source is ANYWHERE or bool(source.device)
        return mover(place.framework, self.runtime.context(place).device, looks=looks)

    def read_loosely(self, output: Any, place: Place) -> int:
        """Return the number of an output's value for a compiled run at a place.

        A small NumPy array is passed as it is: the call of the run converts it faster.
        """
        value = self.values[output]
        if place in value.at or place.device or not backend(place.framework).converts_small:
            return self.read(output, place)
        loose = Place("", place.framework)
        if loose not in value.at:
            source, slot = next(iter(value.at.items()))
            move = _loose_mover(self._mover(source, place))
            value.at[loose] = self.number()
            self._add_move(move, slot, value.at[loose], source, place, output)
        return value.at[loose]

    def constant_of(self, output: Any) -> Any:
        """Return the Const whose value an output is, or None."""
        value = self.values.get(output)
        return None if value is None else value.constant

    def outside(self, nodes: Sequence[Placed]) -> list[Any]:
        """Return the outputs of nodes that other nodes take, or the user.

        A node that is needed for its run alone counts with its results, so that every node runs.
        """
        within = Counter([each for placed in nodes for each in placed.inputs])
        return [
            each
            for placed in nodes
            for each in placed.node.outputs
            if self._is_taken(each, within[each], placed.node) and each not in self.values
        ]

    def _is_taken(self, output: Any, within: int, node: Any) -> bool:
        uses = self.uses[output]
        return uses > within or (not uses and not any(map(self.uses.__getitem__, node.outputs)))

    def raw(self, output: Any) -> int:
        """Return the number of a handle or reference, which is the same everywhere."""
        for number in self.values[output].at.values():
            return number
        raise InvalidArgumentError(
            f"{output.op.name} has the dtype {output.dtype.name}, and no variable behind it",
            output.op,
        )

    def dereference(self, output: Any, place: Place) -> int:
        """Return the number of the value that the variable behind a reference has here."""
        framework, device = place
        found = self.number()
        self.steps.append(
            Step(
                self._reader(output, place),
                (self.raw(output),),
                found,
                (output.op,),
                framework,
                f"read {output.op.name}",
                device=device,
            )
        )
        return found

    def _reader(self, output: Any, place: Place) -> Callable[..., Any]:
        """Return the function that reads the variable behind a handle or reference.

        A value that was read stays as it is, though the plan may write to shared memory.
        """
        framework, device = place
        if output in self._written:
            return wide(framework, lambda state: state.read(framework, True, device))
        return wide(framework, reader(framework, device))

    def carries_state(self, output: Any) -> bool:
        """Return whether a value is a variable's handle or a reference to one: it was not fed."""
        return is_handle(output) and output not in self._fed

    def arguments(self, placed: Placed) -> tuple[int, ...]:
        """Return the numbers of a node's inputs where it takes them."""
        found = []
        for i, each in enumerate(placed.inputs):
            place = HOST if i in placed.host else placed.place
            if not self.carries_state(each):
                if i in placed.spec.handles:
                    raise _cannot_write(placed.node, each)
                found.append(self.read(each, place))
            elif each.dtype.is_ref and i not in placed.spec.handles:
                found.append(self.dereference(each, place))
            else:
                found.append(self.raw(each))
        return tuple(found)

    def result(self, output: Any, place: Place) -> int:
        """Return the number under which a step leaves an output; -1 if nobody wants it."""
        if output not in self.uses or output in self.values:
            return -1
        value = self.values[output] = Value()
        value.at[place] = self.number()
        return value.at[place]

    # ---- steps ----

    def add_feeds(self, fed: Sequence[Any], feeder: Feeder) -> tuple[int, ...]:
        """Add the checks of the values fed; return their numbers."""
        uses: dict[Any, set[Place]] = {each: set() for each in fed}
        for placed in self._placed:
            for i, each in enumerate(placed.inputs):
                if each in uses:
                    uses[each].add(HOST if i in placed.host else placed.place)
        inputs = []
        for output, places in uses.items():
            on_host = places <= {HOST}
            slot, checked = self.number(), self.number()
            function = feeder(output, "numpy" if on_host else None)
            label = f"feed {output.op.name}"
            self.steps.append(Step(function, (slot,), checked, (), "numpy", label))
            value = self.values[output] = Value()
            value.at[HOST if on_host else ANYWHERE] = checked
            inputs.append(slot)
        return tuple(inputs)

    def add_run(self, nodes: Sequence[Placed], kind: RunKind) -> None:
        """Add the steps of nodes that run together, or of one."""
        if kind == "steps":
            for placed in nodes:
                self.add_node(placed)
            return
        self._places.update(each.place for each in nodes if each.place != HOST)
        if kind == "compiled":
            self._add_compiled(nodes)
        else:
            self._add_loops(nodes)

    def _add_loops(self, nodes: Sequence[Placed]) -> None:
        """Add the step that runs element-wise nodes on NumPy's inner loops."""
        inputs, operands, made = _wire(self, nodes)
        results = self.outside(nodes)
        if not results:
            return
        count, single, place = len(inputs), len(results) == 1, nodes[0].place
        own = tuple([placed.node for placed in nodes])  # the plan keeps no more of them
        instructions = [
            UfuncCall(
                str(placed.spec.ufunc),
                [count + at if inside else at for inside, at in row],
                # NumPy's functions of element-wise nodes are the ufuncs
                self.runtime.step_function(placed) if place != HOST or placed.spec.folds else None,
                placed.spec.folds,
            )
            for placed, row in zip(nodes, operands, strict=True)
        ]
        function = make_loops(
            [dtype.numpy for dtype in inputs.values()],
            instructions,
            [count + made[each] for each in results],
            single=single,
            on_error=lambda number, error: failure(own[number], error),
            small_torch=backend(place.framework).small,
        )
        slots = tuple([self.result(each, place) for each in results])
        self.new.update(results)
        self.steps.append(
            Step(
                function,
                tuple(inputs),
                slots[0] if single else slots,
                own,
                place.framework,
                " … ".join(dict.fromkeys([own[0].name, own[-1].name])),
            )
        )

    def _add_compiled(self, nodes: Sequence[Placed]) -> None:
        """Add the step that runs nodes as one function, compiled by their framework."""
        results = self.outside(nodes)
        if not results:
            return
        writer = _BodyWriter(self, nodes)
        writer.write(results)
        framework = writer.place.framework
        count, device = len(writer.array_slots), writer.context.device
        function = backend(framework).compile(writer.body, count, device)
        slots = tuple([self.result(each, writer.place) for each in results])
        first, last = nodes[0].node.name, nodes[-1].node.name
        self.steps.append(
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

    def add_node(self, placed: Placed) -> None:
        """Add the step of a node."""
        node = placed.node
        if node.outputs:  # so that something is computed
            self._places.add(placed.place)
        inputs = self.arguments(placed)
        results = tuple([self.result(each, placed.result) for each in node.outputs])
        function = self._function(placed)
        if isinstance(function, Given):
            self.constants.update({each: function.value for each in results if each >= 0})
            return
        self.steps.append(
            Step(
                function,
                inputs,
                results[0] if len(results) == 1 else results,
                (node,),
                placed.place.framework,
                node.name,
                placed.spec.calls_user,
                device=placed.place.device,
            )
        )

    def _function(self, placed: Placed) -> Callable[..., Any]:
        node = placed.node
        if node.type == "ReadVariableOp" and node.inputs[0] in self._written:
            return typed(node, self._reader(node.inputs[0], placed.place))
        return self.runtime.step_function(placed)

    def add_fetches(
        self,
        outputs: Sequence[Any],
        give: Callable[[Any], Any],
        share: Callable[[Any], Any],
        framework: str,
    ) -> tuple[int, ...]:
        """Add the steps that give values to the user; return their numbers."""
        steps, numbers = [], []
        for output in outputs:  # what forwards its input gives the user another array than that
            if self.carries_state(output):
                slot = self.dereference(output, HOST)
            else:
                slot = self._nearest(output, framework)
            label = f"fetch {output.op.name}"
            numbers.append(self.number())
            function = share if self._is_users(output, framework) else give
            steps.append(Step(function, (slot,), numbers[-1], (), framework, label))
        self.steps += steps
        return tuple(numbers)

    def _is_users(self, output: Any, framework: str) -> bool:
        """Return whether a value can be the user's as it is; NumPy's `give` finds out itself."""
        is_new = output in self.new and self.uses[output] == 1
        return is_new and framework != "numpy" and Place(framework) in self.values[output].at

    def _nearest(self, output: Any, framework: str) -> int:
        """Return the number of an output where it is, in `framework` if possible."""
        at = self.values[output].at
        for place, slot in at.items():
            if place.framework == framework:
                return slot
        return next(iter(at.values())) if at else self.read(output, HOST)

    def guards(self) -> list[Guard]:
        """Return what makes the state in which the steps must run."""
        used = {place.framework for place in self._places}
        found = [backend(name).guard for name in FRAMEWORKS if name in used]
        limit = self.runtime.limit
        found.append(None if limit is None else limit.guard)
        return [each for each in found if each is not None]


class _BodyWriter:
    """Writes the Body of one compiled run."""

    def __init__(self, builder: Builder, nodes: Sequence[Placed]) -> None:
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
        """Return the number of a result of the run."""
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


def _loose_mover(move: Callable[[Any], Any]) -> Callable[[Any], Any]:
    """Return `move`, except for small arrays, which a compiled call converts faster."""

    def pass_or_move(value: Any) -> Any:
        if isinstance(value, np.ndarray) and value.nbytes <= SMALL and not is_recording():
            return value
        return value if isinstance(value, np.generic) else move(value)

    return pass_or_move


def _wire(
    builder: Builder, nodes: Sequence[Placed]
) -> tuple[dict[int, Any], list[list[tuple[bool, int]]], dict[Any, int]]:
    """Return how the values of element-wise nodes, with one result each, hang together.

    Returns:
        The numbers of what comes from outside, with the DataType of each; for each node its
        operands, as (whether it is the result of a node, index among those or the former); the
        index of each output among the nodes.
    """
    inputs: dict[int, Any] = {}
    position: dict[int, int] = {}
    made: dict[Any, int] = {}
    operands = []
    for number, placed in enumerate(nodes):
        row = []
        for each in placed.inputs:
            if each in made:
                row.append((True, made[each]))
                continue
            slot = builder.read(each, placed.place)
            inputs.setdefault(slot, each.dtype)
            row.append((False, position.setdefault(slot, len(position))))
        operands.append(row)
        if placed.node.outputs[0] not in builder.values:  # else it is fed, though it runs
            made[placed.node.outputs[0]] = number
    return inputs, operands, made


def _cannot_write(node: Any, output: Any) -> InvalidArgumentError:
    return InvalidArgumentError(
        f"{node.name} takes the variable {output.op.name!r} itself, but this run was fed a value "
        "in its place; leave one of the two out of the run",
        node,
    )

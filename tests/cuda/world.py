"""Random programs over streams, threads and devices that are correct if dlbridge is.

A program is a list of steps, each a few numbers, which are read modulo what there is at that point:
every list of numbers is a program, so that hypothesis can make and shrink them.

What a program may do with memory that several arrays share is what a careful user does: whoever has
the only right to it writes, several may read, and the right is handed over by an exchange alone.
All order between streams comes from dlbridge, and everything may be dropped at any moment.
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from cuda_peers import Array, Framework
from driver_calls import LEGACY, PER_THREAD
from machine import THREAD_LOCAL, Machine

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.tensor.values import READ_ONLY


class Step(NamedTuple):
    """One step: which, three numbers to choose by, on which thread, with or without slow work."""

    kind: int
    a: int
    b: int
    thread: int
    slow: bool


@dataclass(eq=False)
class Memory:
    """One piece of memory, the arrays over it, and who may use it now."""

    value: int
    device: int
    active: set[Alias] = field(default_factory=set)


@dataclass(eq=False)
class Alias:
    """A Tensor or a framework's array; `parent` is the Tensor that it was made of."""

    memory: Memory
    holds: Any
    thread: int  # the one that has to use it; -1: any
    parent: Alias | None = None
    only_reads: bool = False

    @property
    def is_tensor(self) -> bool:
        return not isinstance(self.holds, Array)


class World:
    """The world of a program: two devices, five frameworks on each, three threads."""

    THREADS = 3

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.streams = {
            device: [
                LEGACY,
                PER_THREAD,
                machine.stream(device),
                machine.stream(device),
                machine.stream(device, blocking=True),
            ]
            for device in machine.devices[:2]
        }
        self.frameworks = {
            device: [Framework(machine, stream, device) for stream in streams]
            for device, streams in self.streams.items()
        }
        self.aliases: list[Alias] = []
        self.results: list[tuple[Array, int]] = []
        self.threads = [ThreadPoolExecutor(1) for _ in range(self.THREADS)]
        self.next_value = 0

    # ---- running

    def run(self, program: list[tuple[Any, ...]]) -> None:
        """Run the steps, each on its thread, one after the other."""
        for numbers in program:
            step = Step(*numbers)
            action = STEPS[step.kind % len(STEPS)]
            alias = self.pick(action, step)
            if alias is None and action in NEEDS:
                continue
            thread = step.thread if alias is None or alias.thread < 0 else alias.thread
            step = step._replace(thread=thread)
            self.threads[thread].submit(action, self, step, alias).result(timeout=60)

    def pick(self, action: Callable[..., None], step: Step) -> Alias | None:
        fitting = NEEDS.get(action)
        found = [alias for alias in self.aliases if fitting is not None and fitting(alias)]
        return found[step.a % len(found)] if found else None

    def close(self) -> None:
        """Compare what was read, drop everything, also what a traceback keeps."""
        wrong = [result for result, value in self.results if result.value() != value]
        for holder in self.aliases:
            holder.holds = None
        self.aliases.clear()
        self.results.clear()
        for thread in self.threads:
            thread.shutdown()
        assert not wrong, f"{len(wrong)} results are not what was in the memory when it was read"

    def framework(self, device: int, number: int) -> Framework:
        return self.frameworks[device][number % 5]

    def add(self, memory: Memory, holds: Any, step: Step, stream: int, parent: Any = None) -> Alias:
        thread = step.thread if stream == PER_THREAD and isinstance(holds, Array) else -1
        alias = Alias(memory, holds, thread, parent)
        self.aliases.append(alias)
        return alias


# ---- what a step can be --------------------------------------------------------------------------


def make(world: World, step: Step, _: None) -> None:
    """A framework makes an array."""
    device = step.a % len(world.streams)
    framework = world.framework(device, step.b)
    world.next_value = world.next_value % 200 + 1
    memory = Memory(world.next_value, device)
    holds = framework.full(memory.value, slow=step.slow)
    memory.active = {world.add(memory, holds, step, framework.current)}


def take(world: World, step: Step, alias: Alias) -> None:
    """dlbridge takes an array of a framework, for work on a stream of its own."""
    memory = alias.memory
    stream = world.streams[memory.device][step.b % 5]
    with cuda.stream(stream, memory.device):
        tensor = dlbridge.from_dlpack(alias.holds)
    memory.active = {world.add(memory, tensor, step, stream)}


def take_by_table(world: World, step: Step, alias: Alias) -> None:
    """The same by the exchange table of the framework, which tells its stream."""
    kind = table_type(alias.holds.framework)
    tensor = dlbridge.from_dlpack(kind(alias.holds))
    alias.memory.active = {world.add(alias.memory, tensor, step, 0)}


def give(world: World, step: Step, alias: Alias) -> None:
    """A framework takes a Tensor, and has the right to write."""
    memory = alias.memory
    framework = world.framework(memory.device, step.b)
    given = framework.from_dlpack(alias.holds)
    memory.active = {world.add(memory, given, step, framework.current, alias)}


def give_to_another_reader(world: World, step: Step, alias: Alias) -> None:
    """A framework takes a Tensor that others read, in order to read it as well."""
    memory = alias.memory
    framework = world.framework(memory.device, step.b)
    tensor = alias.holds
    given = framework.from_dlpack(tensor._view(tensor.shape, tensor.strides, set_flags=READ_ONLY))
    reader = world.add(memory, given, step, framework.current, alias)
    reader.only_reads = True
    memory.active.add(reader)


def write(world: World, step: Step, alias: Alias) -> None:
    """The one framework that has the right to the memory writes it."""
    world.next_value = world.next_value % 200 + 1
    alias.memory.value = world.next_value
    alias.holds.write(world.next_value, slow=step.slow)


def read(world: World, step: Step, alias: Alias) -> None:
    """A framework reads, and keeps what it read."""
    world.results.append((alias.holds.copy(slow=step.slow), alias.memory.value))


def own_read(world: World, step: Step, alias: Alias) -> None:
    """A kernel of dlbridge reads."""
    launch(world, step, alias, None)
    alias.memory.active.add(alias)


def own_write(world: World, step: Step, alias: Alias) -> None:
    """A kernel of dlbridge writes, after everything that the Tensor's consumers did."""
    world.next_value = world.next_value % 200 + 1
    launch(world, step, alias, world.next_value)
    alias.memory.value = world.next_value
    alias.memory.active = {alias}


def launch(world: World, step: Step, alias: Alias, value: int | None) -> None:
    device, tensor = alias.memory.device, alias.holds
    stream = world.streams[device][step.b % 5]
    there = [(tensor.data_ptr, tensor.nbytes)]
    native.cuda_begin(tensor, stream, value is not None)
    reads, writes = (there, []) if value is None else ([], there)
    world.machine.launch(stream, reads, writes, value, slow=step.slow, device=device)


def captured(world: World, step: Step, alias: Alias) -> None:
    """A consumer writes the memory in a graph, which is captured, and launched in order."""
    memory = alias.memory
    stream = world.streams[memory.device][2 + step.b % 2]
    framework = Framework(world.machine, stream, memory.device)
    world.next_value = world.next_value % 200 + 1
    with world.machine.capture(stream, THREAD_LOCAL) as graph:
        given = framework.from_dlpack(alias.holds)
        given.write(world.next_value)
        if step.slow:
            given.free()
    native.cuda_begin(alias.holds, stream, True)
    graph.launch(stream)
    memory.value, memory.active = world.next_value, {alias}


def drop(world: World, step: Step, alias: Alias) -> None:
    """Whatever still runs. Its right to the memory ends with it, and passes to nobody."""
    world.aliases.remove(alias)
    alias.holds = None


def drop_result(world: World, step: Step, _: None) -> None:
    if world.results:
        world.results.pop(step.a % len(world.results))


def collect(world: World, step: Step, _: None) -> None:
    cuda.collect()


def finish(world: World, step: Step, _: None) -> None:
    """The devices catch up."""
    if world.machine.is_fake:
        world.machine.finish()


def table_type(framework: Framework) -> type[Any]:
    """Return the framework's type with a table, made once: tables are never freed."""
    if not hasattr(framework, "table_type"):
        framework.table_type = framework.make_table_type()
    return framework.table_type


# ---- and what it needs ---------------------------------------------------------------------------


def is_sole_array(alias: Alias) -> bool:
    return not alias.is_tensor and not alias.only_reads and alias.memory.active == {alias}


def is_reading_array(alias: Alias) -> bool:
    return not alias.is_tensor and alias in alias.memory.active


def is_tensor_in_charge(alias: Alias) -> bool:
    """All that use the memory now got it from this Tensor."""
    return alias.is_tensor and all(
        user is alias or user.parent is alias for user in alias.memory.active
    )


def is_anything(alias: Alias) -> bool:
    return True


NEEDS: dict[Callable[..., None], Callable[[Alias], bool]] = {
    take: is_sole_array,
    take_by_table: is_sole_array,
    give: is_tensor_in_charge,
    give_to_another_reader: is_tensor_in_charge,
    write: is_sole_array,
    read: is_reading_array,
    own_read: is_tensor_in_charge,
    own_write: is_tensor_in_charge,
    captured: is_tensor_in_charge,
    drop: is_anything,
}

STEPS: tuple[Callable[..., None], ...] = (
    make,
    take,
    give,
    drop,
    write,
    read,
    own_read,
    own_write,
    give_to_another_reader,
    take_by_table,
    drop_result,
    captured,
    collect,
    finish,
)

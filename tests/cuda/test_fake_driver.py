"""The fake driver finds what is out of order, and finds nothing where all is in order."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from measuring import pause

sys.path.insert(0, str(Path(__file__).resolve().parent))

from driver_calls import why_no_gpu
from fake_driver import Driver, DriverError, FakeDriver, compile_fake
from machine import KERNEL

BLOCKING, NON_BLOCKING = 0, 1
NO_TIMING = 2
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2
LEGACY, PER_THREAD = 1, 2
NOT_READY = 600


class Bench:
    """The fake driver with a context, and short names for what programs do."""

    def __init__(self, driver: Any, devices: int = 2) -> None:
        self.driver = driver
        self.reset(devices)

    def reset(self, devices: int = 2) -> None:
        self.driver.reset()
        self.contexts = [self.driver.enter(device) for device in range(devices)]
        self.streams: list[int] = []
        self.use(0)

    def use(self, device: int) -> None:
        if device >= len(self.contexts):
            pytest.skip("needs two GPUs")
        self.driver.do("cuCtxSetCurrent", self.contexts[device])

    def stream(self, flags: int = NON_BLOCKING) -> int:
        self.streams.append(self.driver.make("cuStreamCreate", flags))
        return self.streams[-1]

    def memory(self, nbytes: int = 1024) -> int:
        return self.driver.make("cuMemAlloc_v2", nbytes)

    def write(self, stream: int, address: int, nbytes: int = 1024) -> None:
        self.driver.touch(stream, writes=[(address, nbytes)], value=1)

    def read(self, stream: int, address: int, nbytes: int = 1024) -> None:
        self.driver.touch(stream, reads=[(address, nbytes)])

    def event(self, stream: int) -> int:
        event = self.driver.make("cuEventCreate", NO_TIMING)
        self.driver.do("cuEventRecord", event, stream)
        return event

    def order(self, before: int, after: int) -> None:
        self.driver.do("cuStreamWaitEvent", after, self.event(before), 0)

    def ask_until_over(self, event: int) -> None:
        """Ask for an event, which may be pending, until it is over."""
        while (code := self.driver.cuEventQuery(event)) == NOT_READY:
            pause(0)
        assert code == 0

    def begin_capture(self, stream: int, mode: int = GLOBAL) -> None:
        self.driver.do("cuStreamBeginCapture_v2", stream, mode)

    def end_capture(self, stream: int) -> int:
        graph = self.driver.make_last("cuStreamEndCapture", stream)
        return self.driver.make("cuGraphInstantiateWithFlags", graph, 0)

    def launch(self, graph: int, stream: int) -> None:
        self.driver.do("cuGraphLaunch", graph, stream)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compile_fake(tmp_path_factory.mktemp("fake"))


@pytest.fixture(params=["at once", "deferred"])
def bench(path: Path, request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Yield a driver on which work happens at once, and one on which it happens late."""
    made = Bench(FakeDriver(path))
    made.driver.fake_set_deferred(int(request.param == "deferred"))
    yield made
    made.driver.fake_reset()


# ---- programs that are in order --------------------------------------------------------------


def one_stream(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.memory()
    bench.write(stream, memory)
    bench.read(stream, memory)
    bench.write(stream, memory)


def an_event_between(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.order(one, two)
    bench.read(two, memory)
    bench.order(two, one)
    bench.write(one, memory)


def an_event_that_is_used_again(bench: Bench) -> None:
    """A wait holds on to what the event was when the wait was enqueued."""
    one, two, three, memory = *(bench.stream() for _ in range(3)), bench.memory()
    bench.write(one, memory)
    event = bench.event(one)
    bench.driver.do("cuStreamWaitEvent", two, event, 0)
    bench.driver.do("cuEventRecord", event, three)
    bench.driver.do("cuEventDestroy_v2", event)
    bench.read(two, memory)


def order_by_way_of_a_third_stream(bench: Bench) -> None:
    one, two, three, memory = *(bench.stream() for _ in range(3)), bench.memory()
    bench.write(one, memory)
    bench.order(one, two)
    bench.order(two, three)
    bench.write(three, memory)


def the_host_waits_between(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.driver.do("cuStreamSynchronize", one)
    bench.write(two, memory)
    bench.driver.do("cuCtxSynchronize")
    bench.driver.do("cuMemFree_v2", memory)


def the_host_asks_an_event(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.ask_until_over(bench.event(one))
    bench.write(two, memory)


def two_readers(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.read(one, memory)
    bench.read(two, memory)


def halves_of_one_memory(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory, 512)
    bench.write(two, memory + 512, 512)
    bench.order(one, two)
    bench.read(two, memory)


def the_legacy_default_stream_waits_for_blocking_ones(bench: Bench) -> None:
    one, two, memory = bench.stream(BLOCKING), bench.stream(BLOCKING), bench.memory()
    bench.write(one, memory)
    bench.write(LEGACY, memory)
    bench.write(PER_THREAD, memory, 10)
    bench.write(0, memory)
    bench.write(two, memory)


def memory_of_the_pool(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    memory = bench.driver.make("cuMemAllocAsync", 1024, one)
    bench.order(one, two)
    bench.write(two, memory)
    bench.order(two, one)
    bench.driver.do("cuMemFreeAsync", memory, one)


def a_peer(bench: Bench) -> None:
    memory = bench.memory()
    bench.use(1)
    stream = bench.stream()
    bench.driver.do("cuCtxEnablePeerAccess", bench.contexts[0], 0)
    bench.write(stream, memory)


def a_copy_between_devices(bench: Bench) -> None:
    memory = bench.memory()
    bench.use(1)
    stream, other = bench.stream(), bench.memory()
    bench.driver.do("cuMemcpyAsync", other, memory, 1024, stream)


def a_fork_in_a_capture(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory(2048)
    bench.begin_capture(one)
    bench.write(one, memory, 2048)
    bench.order(one, two)
    bench.write(two, memory)
    bench.write(one, memory + 1024)
    bench.order(two, one)
    bench.read(one, memory, 2048)
    graph = bench.end_capture(one)
    bench.launch(graph, one)
    bench.launch(graph, two)  # two launches of one instance never overlap


def asking_in_relaxed_mode(bench: Bench) -> None:
    """What PyTorch's allocator does to look at its events while a graph is captured."""
    one, two = bench.stream(), bench.stream()
    event = bench.event(two)
    bench.begin_capture(one)
    mode = ctypes.c_int(RELAXED)
    bench.driver.do("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    assert mode.value == GLOBAL
    bench.ask_until_over(event)
    bench.driver.do("cuThreadExchangeStreamCaptureMode", ctypes.byref(mode))
    bench.end_capture(one)


IN_ORDER = [
    one_stream,
    an_event_between,
    an_event_that_is_used_again,
    order_by_way_of_a_third_stream,
    the_host_waits_between,
    the_host_asks_an_event,
    two_readers,
    halves_of_one_memory,
    the_legacy_default_stream_waits_for_blocking_ones,
    memory_of_the_pool,
    a_peer,
    a_copy_between_devices,
    a_fork_in_a_capture,
    asking_in_relaxed_mode,
]


@pytest.mark.parametrize("program", IN_ORDER, ids=lambda each: each.__name__)
def test_a_program_in_order_has_no_faults(bench: Bench, program: Callable[[Bench], None]) -> None:
    program(bench)
    assert bench.driver.faults == []


# ---- programs that are not -------------------------------------------------------------------


def read_after_write(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.read(two, memory, 1)


def write_after_read(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.read(one, memory)
    bench.write(two, memory + 1023, 1)


def write_after_write(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.write(two, memory)


def an_event_too_early(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.order(one, two)
    bench.write(one, memory)
    bench.read(two, memory)


def a_wait_after_the_read(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.read(two, memory)
    bench.order(one, two)


def an_event_that_was_never_recorded(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    event = bench.driver.make("cuEventCreate", NO_TIMING)
    bench.driver.do("cuStreamWaitEvent", two, event, 0)
    bench.read(two, memory)


def the_second_of_two_readers(bench: Bench) -> None:
    one, two, three, memory = *(bench.stream() for _ in range(3)), bench.memory()
    bench.read(one, memory)
    bench.read(two, memory)
    bench.order(two, three)
    bench.write(three, memory)


def the_legacy_default_stream_and_a_non_blocking_one(bench: Bench) -> None:
    stream, memory = bench.stream(NON_BLOCKING), bench.memory()
    bench.write(LEGACY, memory)
    bench.read(stream, memory)


def per_thread_streams_of_two_threads(bench: Bench) -> None:
    memory = bench.memory()
    bench.write(PER_THREAD, memory)

    def work() -> None:
        bench.use(0)
        bench.write(PER_THREAD, memory)

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()


def memory_before_it_is_there(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    bench.write(two, bench.driver.make("cuMemAllocAsync", 1024, one))


def freed_while_a_kernel_reads(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    memory = bench.driver.make("cuMemAllocAsync", 1024, one)
    bench.order(one, two)
    bench.read(two, memory)
    bench.driver.do("cuMemFreeAsync", memory, one)


def freed_by_a_host_that_does_not_know(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.memory()
    bench.write(stream, memory)
    bench.driver.do("cuMemFree_v2", memory)


def a_copy_of_what_is_written_elsewhere(bench: Bench) -> None:
    one, two, memory, other = bench.stream(), bench.stream(), bench.memory(), bench.memory()
    bench.write(one, memory)
    bench.driver.do("cuMemcpyAsync", other, memory, 1024, two)


def branches_of_a_capture(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.begin_capture(one)
    bench.order(one, two)
    bench.write(two, memory)
    bench.write(one, memory)
    bench.order(two, one)
    bench.launch(bench.end_capture(one), one)


def a_graph_and_a_stream_beside_it(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.begin_capture(one)
    bench.write(one, memory)
    graph = bench.end_capture(one)
    assert bench.driver.faults == []
    bench.launch(graph, one)
    bench.read(two, memory)


def the_host_reads_pinned_memory_too_early(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.memory()
    pinned = bench.driver.make("cuMemHostAlloc", 1024, 0)
    bench.driver.do("cuMemcpyAsync", pinned, memory, 1024, stream)
    bench.driver.fake_host_access(pinned, 1024, 0)


def lazily_over(bench: Bench) -> None:
    """That nothing has asked yet whether it is over does not order anything."""
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(one, memory)
    bench.driver.fake_finish()
    bench.write(two, memory)


def use_after_free(bench: Bench) -> None:
    stream = bench.stream()
    memory = bench.driver.make("cuMemAllocAsync", 1024, stream)
    bench.driver.do("cuMemFreeAsync", memory, stream)
    bench.write(stream, memory)


def freed_twice(bench: Bench) -> None:
    memory = bench.memory()
    bench.driver.do("cuMemFree_v2", memory)
    bench.driver.cuMemFree_v2(memory)


def beyond_the_end(bench: Bench) -> None:
    bench.write(bench.stream(), bench.memory() + 1, 1024)


def memory_of_another_device(bench: Bench) -> None:
    memory = bench.memory()
    bench.use(1)
    bench.write(bench.stream(), memory)


def a_kernel_in_the_wrong_context(bench: Bench) -> None:
    stream = bench.stream()
    module = bench.driver.make("cuModuleLoadData", b"fake")
    function = bench.driver.make("cuModuleGetFunction", module, b"nothing")
    bench.use(1)
    sizes = [1] * 6
    assert bench.driver.cuLaunchKernel(function, *sizes, 0, stream, None, None) == 400


def an_event_of_another_device(bench: Bench) -> None:
    event = bench.driver.make("cuEventCreate", NO_TIMING)
    bench.use(1)
    assert bench.driver.cuEventRecord(event, bench.stream()) == 400


def a_stream_that_was_destroyed(bench: Bench) -> None:
    stream = bench.stream()
    bench.driver.do("cuStreamDestroy_v2", stream)
    assert bench.driver.cuEventRecord(bench.driver.make("cuEventCreate", 2), stream) == 400


def an_address_that_is_another_stream_by_now(bench: Bench) -> None:
    """Drivers use addresses again: an event recorded there comes after none of the old work."""
    bench.driver.fake_set_reusing(1)
    stream, other, memory = bench.stream(), bench.stream(), bench.memory()
    bench.write(stream, memory)
    bench.driver.do("cuStreamDestroy_v2", stream)
    assert bench.stream() == stream
    bench.order(stream, other)
    bench.read(other, memory)


def no_context(bench: Bench) -> None:
    bench.driver.do("cuCtxSetCurrent", 0)
    assert bench.driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 1) == 201


def waiting_in_a_capture(bench: Bench) -> None:
    stream = bench.stream()
    bench.begin_capture(stream)
    assert bench.driver.cuStreamSynchronize(stream) == 900
    with pytest.raises(DriverError, match="901"):
        bench.end_capture(stream)


def an_event_asked_in_a_capture(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    event = bench.event(two)
    bench.begin_capture(one)
    assert bench.driver.cuEventQuery(event) == 900


def plain_memory_in_a_capture(bench: Bench) -> None:
    bench.begin_capture(bench.stream())
    assert bench.driver.cuMemAlloc_v2(ctypes.byref(ctypes.c_uint64()), 1) == 900


def the_legacy_default_stream_in_a_capture(bench: Bench) -> None:
    stream, memory = bench.stream(BLOCKING), bench.memory()
    bench.begin_capture(stream)
    with pytest.raises(DriverError, match="906"):
        bench.write(LEGACY, memory)


def order_from_outside_into_a_capture(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    bench.begin_capture(one)
    with pytest.raises(DriverError, match="905"):
        bench.order(two, one)


def a_capture_that_is_not_joined(bench: Bench) -> None:
    one, two, memory = bench.stream(), bench.stream(), bench.memory()
    bench.begin_capture(one)
    bench.order(one, two)
    bench.write(two, memory)
    with pytest.raises(DriverError, match="904"):
        bench.end_capture(one)


def an_event_of_a_capture_asked(bench: Bench) -> None:
    stream = bench.stream()
    bench.begin_capture(stream, RELAXED)
    event = bench.event(stream)
    assert bench.driver.cuEventQuery(event) == 907


def a_copy_of_pageable_memory_in_a_capture(bench: Bench) -> None:
    """Drivers differ, by version and direction: what is to work with all of them leaves it out."""
    stream, memory = bench.stream(), bench.memory()
    bench.begin_capture(stream)
    host = ctypes.create_string_buffer(1024)
    assert bench.driver.cuMemcpyAsync(memory, ctypes.addressof(host), 1024, stream) == 900


FAULTY: list[tuple[str, list[Callable[[Bench], None]]]] = [
    (
        "race",
        [
            read_after_write,
            write_after_read,
            write_after_write,
            an_event_too_early,
            a_wait_after_the_read,
            an_event_that_was_never_recorded,
            the_second_of_two_readers,
            the_legacy_default_stream_and_a_non_blocking_one,
            per_thread_streams_of_two_threads,
            memory_before_it_is_there,
            freed_while_a_kernel_reads,
            freed_by_a_host_that_does_not_know,
            a_copy_of_what_is_written_elsewhere,
            branches_of_a_capture,
            a_graph_and_a_stream_beside_it,
            the_host_reads_pinned_memory_too_early,
            lazily_over,
            an_address_that_is_another_stream_by_now,
        ],
    ),
    ("use after free", [use_after_free, freed_twice]),
    ("out of bounds", [beyond_the_end]),
    ("wrong device", [memory_of_another_device]),
    (
        "invalid handle",
        [
            a_kernel_in_the_wrong_context,
            an_event_of_another_device,
            a_stream_that_was_destroyed,
        ],
    ),
    ("context", [no_context]),
    (
        "capture",
        [
            waiting_in_a_capture,
            an_event_asked_in_a_capture,
            plain_memory_in_a_capture,
            the_legacy_default_stream_in_a_capture,
            order_from_outside_into_a_capture,
            a_capture_that_is_not_joined,
            an_event_of_a_capture_asked,
            a_copy_of_pageable_memory_in_a_capture,
        ],
    ),
]
CASES = [
    pytest.param(kind, program, id=program.__name__)
    for kind, programs in FAULTY
    for program in programs
]


@pytest.mark.parametrize(("kind", "program"), CASES)
def test_each_fault_is_found(bench: Bench, kind: str, program: Callable[[Bench], None]) -> None:
    program(bench)
    assert [fault.split(":")[0] for fault in bench.driver.faults] == [kind]


# ---- what a real driver says to the same programs --------------------------------------------


class PublicDriver(Driver):
    """A driver through nothing but CUDA's own functions: work is the kernel of touch.ptx."""

    faults: ClassVar[list[str]] = []  # it sees none

    def reset(self) -> None:
        self.do("cuInit", 0)
        self._kernels: dict[int, int] = {}  # by context

    def enter(self, device: int = 0) -> int:
        context = super().enter(device)
        module = self.make("cuModuleLoadData", KERNEL.read_bytes() + b"\0")
        self._kernels[context] = self.make("cuModuleGetFunction", module, b"dlb_touch")
        return context

    def touch(
        self,
        stream: int,
        reads: Sequence[tuple[int, int]] = (),
        writes: Sequence[tuple[int, int]] = (),
        value: int = 0,
    ) -> None:
        """Enqueue a kernel that reads and writes memory, given by address and bytes."""
        numbers = [*(reads or [(0, 0)])[0], *(writes or [(0, 0)])[0], 0, value, 0]
        parameters = [ctypes.c_uint64(number) for number in numbers]
        pointers = (ctypes.c_void_p * 7)(*(ctypes.addressof(each) for each in parameters))
        kernel = self._kernels[self.make("cuCtxGetCurrent")]
        self.do("cuLaunchKernel", kernel, 1, 1, 1, 256, 1, 1, 0, stream, pointers, 0)


@pytest.fixture(params=["fake", pytest.param("real", marks=pytest.mark.gpu)])
def public(request: pytest.FixtureRequest) -> Iterator[Bench]:
    """Yield a driver of which nothing is asked that CUDA has not.

    The fake one is compiled only where it is asked for: a machine with a GPU may have no compiler.
    """
    name: str | Path = "libcuda.so.1"
    if request.param == "fake":
        name = request.getfixturevalue("path")
        FakeDriver(name).reset()
    elif why := why_no_gpu():
        pytest.skip(why)
    driver = PublicDriver(name)
    driver.do("cuInit", 0)
    made = Bench(driver, min(driver.make("cuDeviceGetCount"), 2))
    yield made
    for stream in made.streams:  # no capture may outlive its test
        driver.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_uint64()))
    for context in made.contexts:
        driver.do("cuCtxSetCurrent", context)
        driver.cuCtxSynchronize()
    if request.param == "fake":
        driver.fake_reset()


UNDEFINED = [
    memory_before_it_is_there,  # nothing may be mapped there yet, which breaks a context
    a_copy_of_pageable_memory_in_a_capture,
]
# The others ask the fake driver itself, or do what breaks a context.
SAID_BY_CODES = [
    program
    for kind, programs in [("", IN_ORDER), *FAULTY]
    for program in programs
    if kind in ("", "race", "context", "capture")
    if not any(name.startswith("fake_") for name in program.__code__.co_names)
    if program not in UNDEFINED
] + [an_event_of_another_device]


def test_a_run_on_a_gpu_compiles_no_fake_driver(request: pytest.FixtureRequest) -> None:
    """A machine with a GPU may have no compiler."""
    items = [each for each in request.session.items if each.get_closest_marker("gpu")]
    compiling = {"path", "new_fake", "fake_machine", "bench"}
    assert not [each.nodeid for each in items if compiling & {*each.fixturenames}]


@pytest.mark.parametrize("program", SAID_BY_CODES, ids=lambda each: each.__name__)
def test_programs_get_the_codes_of_a_real_driver(public: Bench, program: Any) -> None:
    """Where a real driver returns another code than the program expects, the fake one is wrong."""
    program(public)


# ---- time ------------------------------------------------------------------------------------


def test_a_slow_kernel_is_over_when_somebody_waits(bench: Bench) -> None:
    slow, other = bench.stream(), bench.stream()
    bench.driver.do("fake_hold", slow)
    event, unrelated = bench.event(slow), bench.event(other)
    assert bench.driver.cuEventQuery(event) == NOT_READY
    bench.ask_until_over(unrelated)
    bench.order(slow, other)
    assert bench.driver.cuStreamQuery(other) == NOT_READY
    bench.driver.do("cuStreamSynchronize", other)
    assert bench.driver.cuEventQuery(event) == 0
    assert bench.driver.fake_host_waits() == 1


def test_a_lazy_driver_is_over_with_nothing_by_itself(bench: Bench) -> None:
    stream = bench.stream()
    bench.driver.fake_set_lazy(1)
    event = bench.event(stream)
    assert bench.driver.cuEventQuery(event) == NOT_READY
    bench.driver.fake_finish()
    assert bench.driver.cuEventQuery(event) == 0
    assert bench.driver.cuEventQuery(bench.event(stream)) == NOT_READY


def test_deferred_work_happens_when_the_host_learns_of_it(bench: Bench) -> None:
    """A host that reuses a pinned buffer too early spoils the copy, as it would on a GPU."""
    bench.driver.fake_set_deferred(1)
    one, two, memory = bench.stream(), bench.stream(), bench.memory(2)
    pinned = bench.driver.make("cuMemHostAlloc", 2, 0)
    ctypes.memset(pinned, 1, 2)
    bench.driver.do("cuMemcpyAsync", memory, pinned, 1, one)
    event = bench.event(one)
    bench.driver.do("cuMemcpyAsync", memory + 1, pinned + 1, 1, two)
    bench.driver.do("cuEventSynchronize", event)
    ctypes.memset(pinned, 7, 2)
    bench.driver.do("cuCtxSynchronize")
    assert ctypes.string_at(memory, 2) == b"\1\7"


def test_host_functions_run_after_what_is_before_them(bench: Bench) -> None:
    stream, steps = bench.stream(), []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(lambda _: steps.append("called"))
    bench.driver.do("fake_hold", stream)
    bench.driver.do("cuLaunchHostFunc", stream, function, None)
    pause(0.02)
    steps.append("finished")
    bench.driver.fake_finish()
    bench.driver.do("cuStreamSynchronize", stream)
    assert steps == ["finished", "called"]
    assert bench.driver.faults == []


def test_host_functions_must_not_call_the_driver(bench: Bench) -> None:
    """CUDA forbids it: they hold up the stream."""
    stream, codes = bench.stream(), []

    def call(_: int | None) -> None:
        codes.append(bench.driver.cuCtxGetCurrent(ctypes.byref(ctypes.c_uint64())))

    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(call)
    bench.driver.do("cuLaunchHostFunc", stream, function, None)
    bench.driver.do("cuStreamSynchronize", stream)
    assert codes == [800]
    assert len(bench.driver.faults) == 1


# ---- memory and kernels ----------------------------------------------------------------------


def test_memory_is_limited_and_pools_keep_theirs(bench: Bench) -> None:
    driver, stream = bench.driver, bench.stream()
    driver.fake_set_memory(0, 10_000)
    held = driver.make("cuMemAllocAsync", 6000, stream)
    with pytest.raises(DriverError, match="CUresult 2"):
        bench.memory(6000)
    driver.do("cuMemFreeAsync", held, stream)
    with pytest.raises(DriverError, match="CUresult 2"):
        bench.memory(6000)  # the pool has it still
    driver.do("cuMemPoolTrimTo", driver.make("cuDeviceGetDefaultMemPool", 0), 0)
    driver.do("cuMemFree_v2", bench.memory(6000))
    assert driver.fake_blocks_alive() == 0
    assert driver.fake_bytes_alive(0) == 0
    assert driver.faults == []


def test_freed_memory_is_never_handed_out_again(bench: Bench) -> None:
    addresses = set()
    for _ in range(50):
        addresses.add(memory := bench.memory(100))
        bench.driver.do("cuMemFree_v2", memory)
    assert len(addresses) == 50


def test_strided_copies_touch_their_rows_only(bench: Bench) -> None:
    """Two streams may write the columns of one matrix."""
    one, two, memory = bench.stream(), bench.stream(), bench.memory(64)
    source = (ctypes.c_uint8 * 16)(*range(16))

    def columns(first: int, stream: int) -> None:
        at = ctypes.addressof(source)
        numbers = [0, 0, 1, at, 0, 0, 4, first, 0, 2, 0, memory, 0, 16, 4, 4]
        copy = (ctypes.c_uint64 * 16)(*numbers)
        bench.driver.do("cuMemcpy2DAsync_v2", copy, stream)

    columns(0, one)
    columns(8, two)
    bench.driver.do("cuCtxSynchronize")
    found = ctypes.string_at(memory, 64)
    assert found[16:20] == found[24:28] == bytes(range(4, 8))
    assert bench.driver.faults == []
    columns(6, one)
    columns(8, two)
    assert len(bench.driver.faults) == 1


def launch(bench: Bench, name: bytes, stream: int, *parameters: object) -> None:
    module = bench.driver.make("cuModuleLoadData", b"fake")
    function = bench.driver.make("cuModuleGetFunction", module, name)
    pointers = (ctypes.c_void_p * len(parameters))(
        *(ctypes.addressof(each) for each in parameters)  # type: ignore[arg-type]
    )
    bench.driver.do("cuLaunchKernel", function, 1, 1, 1, 256, 1, 1, 0, stream, pointers, None)


def test_kernels_compute_and_say_what_they_touch(bench: Bench) -> None:
    stream, x, out = bench.stream(), bench.memory(), bench.memory()
    ctypes.memmove(x, (ctypes.c_float * 3)(1, 2, 3), 12)
    size = ctypes.c_int64(3)
    launch(bench, b"add_one", stream, ctypes.c_uint64(x), ctypes.c_uint64(out), size)
    bench.driver.do("cuCtxSynchronize")
    assert list((ctypes.c_float * 3).from_address(out)) == [2, 3, 4]
    launch(bench, b"add_one", stream, ctypes.c_uint64(x), ctypes.c_uint64(out), size)
    assert bench.driver.faults == []
    bench.write(bench.stream(), x)
    assert len(bench.driver.faults) == 1


def test_kernels_of_tests_see_their_parameters(bench: Bench) -> None:
    seen = []

    def body(launched: int, parameters: ctypes.Array[ctypes.c_void_p]) -> None:
        address = ctypes.c_uint64.from_address(parameters[1] or 0).value
        seen.append(ctypes.c_int32.from_address(parameters[0] or 0).value)
        seen.append(bench.driver.fake_write(launched, address, 8) == address)

    bench.driver.add_kernel("mine", [4, 8], body)
    stream = bench.stream()
    launch(bench, b"mine", stream, ctypes.c_int32(7), ctypes.c_uint64(bench.memory()))
    bench.driver.do("cuCtxSynchronize")
    assert seen == [7, True]


def test_the_calls_are_listed(bench: Bench) -> None:
    one, two = bench.stream(), bench.stream()
    bench.order(one, two)
    names = [(call.name, call.stream) for call in bench.driver.calls]
    assert names[-3:] == [("cuEventCreate", 0), ("cuEventRecord", one), ("cuStreamWaitEvent", two)]


def test_a_function_fails_when_a_test_wants_it(bench: Bench) -> None:
    bench.driver.fake_fail(b"cuStreamCreate", 2, 1, 1)
    bench.stream()
    with pytest.raises(DriverError, match="CUresult 2"):
        bench.stream()
    bench.stream()
    assert bench.driver.faults == []


def test_after_the_failure_of_a_kernel_every_call_fails(bench: Bench) -> None:
    bench.driver.fake_break(700)
    for name in ("cuStreamCreate", "cuEventCreate"):
        with pytest.raises(DriverError, match="CUresult 700"):
            bench.driver.make(name, 0)


def test_a_forked_process_has_no_driver(bench: Bench) -> None:
    """CUDA's is not usable there either."""
    child = os.fork()
    if child == 0:
        os._exit(bench.driver.cuDeviceGetCount(ctypes.byref(ctypes.c_int())))
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3


def test_a_captured_graph_runs_when_it_is_launched(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.memory()
    bench.driver.touch(stream, writes=[(memory, 1024)], value=1)
    bench.begin_capture(stream)
    bench.driver.touch(stream, writes=[(memory, 1024)], value=9)
    graph = bench.end_capture(stream)
    bench.driver.do("cuCtxSynchronize")
    assert ctypes.string_at(memory, 1) == b"\1"
    bench.launch(graph, stream)
    bench.driver.do("cuCtxSynchronize")
    assert ctypes.string_at(memory, 1) == b"\t"
    assert bench.driver.faults == []


def test_host_functions_are_not_called_after_an_error(bench: Bench) -> None:
    """cuda.h says so of cuLaunchHostFunc; whoever waits for a call would never return."""
    stream, calls = bench.stream(), []
    function = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.append)
    bench.driver.do("fake_hold", stream)
    bench.driver.do("cuLaunchHostFunc", stream, function, 0)
    bench.driver.fake_break(700)
    bench.driver.fake_finish()
    pause(0.05)
    assert calls == []


def test_a_module_is_not_loaded_during_a_capture(bench: Bench) -> None:
    """cuModuleLoadData is among the calls that break a capture, unless the thread relaxes it."""
    stream = bench.stream()
    bench.begin_capture(stream)
    with pytest.raises(DriverError, match="CUresult 900"):
        bench.driver.make("cuModuleLoadData", b"fake")
    assert len(bench.driver.faults) == 1
    bench.driver.fake_forget_faults()


@pytest.mark.parametrize("flags", [0, 1])
def test_a_graph_with_memory_that_nobody_freed_is_launched_once(bench: Bench, flags: int) -> None:
    """1 is CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH."""
    stream = bench.stream()
    bench.begin_capture(stream)
    memory = bench.driver.make("cuMemAllocAsync", 64, stream)
    bench.driver.touch(stream, writes=[(memory, 64)], value=9)
    graph = bench.driver.make_last("cuStreamEndCapture", stream)
    executable = bench.driver.make("cuGraphInstantiateWithFlags", graph, flags)
    bench.driver.do("cuGraphLaunch", executable, stream)
    assert bench.driver.cuGraphLaunch(executable, stream) == (0 if flags else 1)
    bench.driver.do("cuMemFreeAsync", memory, stream)
    bench.driver.do("cuCtxSynchronize")
    assert bench.driver.faults == []


# ---- what is pending by itself ---------------------------------------------------------------


def questions(bench: Bench, event: int) -> int:
    """Ask for an event until it is over; return for how many questions it was pending."""
    count = 0
    while (code := bench.driver.cuEventQuery(event)) == NOT_READY:
        count += 1
    assert code == 0
    return count


def pending(bench: Bench, seed: int) -> list[int]:
    """Return for how many questions each of forty events was pending, recorded behind work."""
    bench.reset()
    bench.driver.fake_set_seed(seed)
    stream, memory = bench.stream(), bench.memory()
    counts = []
    for _ in range(40):
        bench.write(stream, memory)
        counts.append(questions(bench, bench.event(stream)))
    return counts


def test_an_event_may_be_pending_straight_after_its_record(bench: Bench) -> None:
    """As on a GPU: for none of the host's questions or a few, which a seed decides."""
    counts = pending(bench, 1)
    assert {*counts} == {0, 1, 2, 3}
    assert pending(bench, 1) == counts
    assert pending(bench, 2) != counts


def test_a_stream_may_be_pending_straight_after_its_work(bench: Bench) -> None:
    stream, memory, codes = bench.stream(), bench.memory(), set()
    for _ in range(40):
        bench.write(stream, memory)
        codes.add(bench.driver.cuStreamQuery(stream))
    assert codes == {0, NOT_READY}


def test_work_that_the_host_has_waited_for_is_over(bench: Bench) -> None:
    stream, memory = bench.stream(), bench.memory()
    for _ in range(40):
        bench.write(stream, memory)
        event = bench.event(stream)
        bench.driver.do("cuStreamSynchronize", stream)
        assert questions(bench, event) == 0
        bench.write(stream, memory)
        event = bench.event(stream)
        bench.driver.fake_finish()
        assert questions(bench, event) == 0


# ---- handles that are none -------------------------------------------------------------------

SIZES = [1] * 6  # of a launch
HANDLE_CALLS: list[tuple[str, str, tuple[Any, ...]]] = [
    # kind, function, arguments: HANDLE stands where the handle does, OUT for room
    ("stream", "cuStreamDestroy_v2", ("HANDLE",)),
    ("stream", "cuStreamQuery", ("HANDLE",)),
    ("stream", "cuStreamSynchronize", ("HANDLE",)),
    ("stream", "cuStreamGetCtx", ("HANDLE", "OUT")),
    ("stream", "cuStreamGetFlags", ("HANDLE", "OUT")),
    ("stream", "cuStreamGetPriority", ("HANDLE", "OUT")),
    ("stream", "cuStreamIsCapturing", ("HANDLE", "OUT")),
    ("stream", "cuStreamBeginCapture_v2", ("HANDLE", 0)),
    ("stream", "cuStreamEndCapture", ("HANDLE", "OUT")),
    ("stream", "cuLaunchHostFunc", ("HANDLE", 0, 0)),
    ("stream", "cuMemAllocAsync", ("OUT", 64, "HANDLE")),
    ("stream", "cuMemsetD8Async", (0, 0, 1, "HANDLE")),
    ("event", "cuEventDestroy_v2", ("HANDLE",)),
    ("event", "cuEventQuery", ("HANDLE",)),
    ("event", "cuEventSynchronize", ("HANDLE",)),
    ("event", "cuEventRecord", ("HANDLE", LEGACY)),
    ("event", "cuStreamWaitEvent", (LEGACY, "HANDLE", 0)),
    ("event", "cuIpcGetEventHandle", ("OUT", "HANDLE")),
    ("module", "cuModuleUnload", ("HANDLE",)),
    ("module", "cuModuleGetFunction", ("OUT", "HANDLE", b"nothing")),
    ("function", "cuFuncGetAttribute", ("OUT", 0, "HANDLE")),
    ("function", "cuFuncSetAttribute", ("HANDLE", 8, 0)),
    ("function", "cuFuncGetParamInfo", ("HANDLE", 0, "OUT", "OUT")),
    ("function", "cuFuncGetName", ("OUT", "HANDLE")),
    ("function", "cuKernelGetFunction", ("OUT", "HANDLE")),
    ("function", "cuLaunchKernel", ("HANDLE", *SIZES, 0, LEGACY, 0, 0)),
    ("graph", "cuGraphInstantiateWithFlags", ("OUT", "HANDLE", 0)),
    ("graph", "cuGraphDestroy", ("HANDLE",)),
    ("graph", "cuGraphGetNodes", ("HANDLE", 0, "OUT")),
    ("exec", "cuGraphLaunch", ("HANDLE", LEGACY)),
    ("exec", "cuGraphUpload", ("HANDLE", LEGACY)),
    ("exec", "cuGraphExecDestroy", ("HANDLE",)),
    ("pool", "cuMemPoolTrimTo", ("HANDLE", 0)),
    ("pool", "cuMemPoolGetAttribute", ("HANDLE", 4, "OUT")),
]


def destroyed(bench: Bench, kind: str) -> int:
    """Return a handle of a kind that was valid once."""
    driver = bench.driver
    module = driver.make("cuModuleLoadData", b"fake")
    if kind in ("module", "function"):
        function = driver.make("cuModuleGetFunction", module, b"nothing")
        driver.do("cuModuleUnload", module)
        return module if kind == "module" else function
    if kind == "event":
        event = driver.make("cuEventCreate", NO_TIMING)
        driver.do("cuEventDestroy_v2", event)
        return event
    stream = bench.stream()
    if kind in ("graph", "exec"):
        bench.begin_capture(stream)
        graph = driver.make_last("cuStreamEndCapture", stream)
        executable = driver.make("cuGraphInstantiateWithFlags", graph, 0)
        driver.do("cuGraphDestroy", graph)
        driver.do("cuGraphExecDestroy", executable)
        return graph if kind == "graph" else executable
    driver.do("cuStreamDestroy_v2", stream)
    return stream  # for a pool: a handle of another kind


@pytest.mark.parametrize(
    ("kind", "name", "arguments"), HANDLE_CALLS, ids=[each[1] for each in HANDLE_CALLS]
)
def test_a_handle_that_is_none_is_refused(
    bench: Bench, kind: str, name: str, arguments: tuple[Any, ...]
) -> None:
    """Destroyed, never made, or of another kind: CUDA_ERROR_INVALID_HANDLE, and nothing is read."""
    context = bench.contexts[0]  # no stream, event or module
    for handle in (destroyed(bench, kind), 0xDEAD0, context):
        given = [handle if each == "HANDLE" else each for each in arguments]
        given = [ctypes.create_string_buffer(64) if each == "OUT" else each for each in given]
        assert getattr(bench.driver, name)(*given) == 400
        assert [fault.split(":")[0] for fault in bench.driver.faults] == ["invalid handle"]
        bench.driver.fake_forget_faults()


def test_a_graph_does_not_run_kernels_of_an_unloaded_module(bench: Bench) -> None:
    stream = bench.stream()
    module = bench.driver.make("cuModuleLoadData", b"fake")
    function = bench.driver.make("cuModuleGetFunction", module, b"nothing")
    bench.begin_capture(stream)
    bench.driver.do("cuLaunchKernel", function, *SIZES, 0, stream, None, None)
    graph = bench.end_capture(stream)
    bench.launch(graph, stream)
    bench.driver.do("cuModuleUnload", module)
    assert bench.driver.cuGraphLaunch(graph, stream) == 400
    bench.driver.fake_forget_faults()


# ---- after an error --------------------------------------------------------------------------


@pytest.mark.parametrize("wait", ["cuStreamSynchronize", "cuEventSynchronize", "cuCtxSynchronize"])
def test_a_wait_ends_with_the_error_that_comes_meanwhile(bench: Bench, wait: str) -> None:
    """The host function before it breaks the context, and the one after it is not called."""
    stream, calls, is_enqueued = bench.stream(), [], threading.Event()

    def break_it(_: int | None) -> None:
        is_enqueued.wait()
        bench.driver.fake_break(700)

    first = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(break_it)
    second = ctypes.CFUNCTYPE(None, ctypes.c_void_p)(calls.append)
    bench.driver.do("cuLaunchHostFunc", stream, first, 0)
    bench.driver.do("cuLaunchHostFunc", stream, second, 0)
    event = 0
    if wait == "cuEventSynchronize":
        event = bench.event(stream)
    given = {"cuStreamSynchronize": [stream], "cuEventSynchronize": [event]}.get(wait, [])
    is_enqueued.set()
    assert getattr(bench.driver, wait)(*given) == 700
    assert bench.driver.cuLaunchHostFunc(stream, second, 0) == 700
    assert calls == []


# ---- waits that calls do by themselves -------------------------------------------------------


def test_frees_of_plain_memory_wait_for_the_device(bench: Bench) -> None:
    """cuda.h: cuMemFree may wait, but for memory of a pool."""
    driver, slow = bench.driver, bench.stream()
    plain, pinned = bench.memory(), driver.make("cuMemHostAlloc", 64, 0)
    pooled = driver.make("cuMemAllocAsync", 64, slow)
    driver.do("cuStreamSynchronize", slow)
    before = driver.fake_host_waits()
    driver.do("fake_hold", slow)
    driver.do("cuMemFree_v2", pooled)
    assert driver.fake_host_waits() == before
    assert driver.fake_held() == 1
    driver.do("cuMemFree_v2", plain)
    assert driver.fake_host_waits() == before + 1
    assert driver.fake_held() == 0
    driver.do("fake_hold", slow)
    driver.do("cuMemFreeHost", pinned)
    assert driver.fake_host_waits() == before + 2
    assert driver.fake_held() == 0


def test_a_module_goes_when_its_kernels_are_through(bench: Bench) -> None:
    module = bench.driver.make("cuModuleLoadData", b"fake")
    bench.driver.do("fake_hold", bench.stream())
    bench.driver.do("cuModuleUnload", module)
    assert bench.driver.fake_host_waits() == 1
    assert bench.driver.fake_held() == 0


# ---- reservations ----------------------------------------------------------------------------

MIB2 = 2 << 20
RANGE_START, RANGE_SIZE, MAPPING_SIZE, MAPPING_START = 11, 12, 18, 19


def attribute(driver: Any, number: int, pointer: int) -> int:
    value = ctypes.c_uint64()
    driver.do("cuPointerGetAttribute", ctypes.byref(value), number, pointer)
    return value.value


def test_the_range_of_mapped_memory_is_its_reservation(public: Bench) -> None:
    """The pools of frameworks map pieces into one reservation; its range is no one's allocation."""
    driver = public.driver
    pinned_on_device_0 = (ctypes.c_uint8 * 32)(1, 0, 0, 0, 0, 0, 0, 0, 1)
    may_write = (ctypes.c_int * 3)(1, 0, 3)
    reserved = driver.make("cuMemAddressReserve", 3 * MIB2, 0, 0, 0)
    handle = driver.make("cuMemCreate", MIB2, pinned_on_device_0, 0)
    mapped = reserved + MIB2
    driver.do("cuMemMap", mapped, MIB2, 0, handle, 0)
    driver.do("cuMemSetAccess", mapped, MIB2, may_write, 1)
    try:
        assert attribute(driver, RANGE_START, mapped + 100) == reserved
        assert attribute(driver, RANGE_SIZE, mapped + 100) == 3 * MIB2
        assert attribute(driver, MAPPING_START, mapped + 100) == mapped
        assert attribute(driver, MAPPING_SIZE, mapped + 100) == MIB2
        start, nbytes = ctypes.c_uint64(), ctypes.c_uint64()
        given = [ctypes.byref(start), ctypes.byref(nbytes), mapped + 100]
        driver.do("cuMemGetAddressRange_v2", *given)
        assert (start.value, nbytes.value) == (mapped, MIB2)
        stream = public.stream()
        public.write(stream, mapped)
        driver.do("cuStreamSynchronize", stream)
        assert driver.cuMemFree_v2(mapped) == 1
    finally:
        driver.do("cuMemUnmap", mapped, MIB2)
        driver.do("cuMemRelease", handle)
        driver.do("cuMemAddressFree", reserved, 3 * MIB2)


def test_the_range_of_an_allocation_is_its_own(public: Bench) -> None:
    memory = public.memory(MIB2)
    assert attribute(public.driver, RANGE_START, memory + 100) == memory
    assert attribute(public.driver, RANGE_SIZE, memory + 100) == MIB2
    public.driver.do("cuMemFree_v2", memory)


# ---- other processes -------------------------------------------------------------------------

RECEIVER = """
import ctypes, sys
sys.path.insert(0, sys.argv[2])
from fake_driver import FakeDriver
driver = FakeDriver(sys.argv[1])
driver.reset()
driver.enter(0)
memory, event = map(bytes.fromhex, sys.argv[3:5])

class Handle(ctypes.Structure):
    _fields_ = [("bytes", ctypes.c_char * 64)]

stream = driver.make("cuStreamCreate", 1)
address = driver.make("cuIpcOpenMemHandle_v2", Handle.from_buffer_copy(memory), 1)
opened = driver.make("cuIpcOpenEventHandle", Handle.from_buffer_copy(event))
if sys.argv[5] == "waits":
    driver.do("cuStreamWaitEvent", stream, opened, 0)
driver.touch(stream, reads=[(address, 1024)])
print(ctypes.string_at(address, 3))
driver.touch(stream, writes=[(address, 1)], value=5)
driver.do("cuStreamSynchronize", stream)
driver.do("cuIpcCloseMemHandle", address)
print(len(driver.faults) > 0)
"""


@pytest.mark.parametrize("waits", ["waits", "does not wait"])
def test_another_process_must_wait_for_the_event(bench: Bench, path: Path, waits: str) -> None:
    stream, memory = bench.stream(), bench.memory()
    bench.driver.touch(stream, writes=[(memory, 1024)], value=3)
    event = bench.driver.make("cuEventCreate", NO_TIMING | 4)
    bench.driver.do("cuEventRecord", event, stream)
    handles = [ctypes.create_string_buffer(64) for _ in range(2)]
    bench.driver.do("cuIpcGetMemHandle", handles[0], memory)
    bench.driver.do("cuIpcGetEventHandle", handles[1], event)
    command = [sys.executable, "-c", RECEIVER, str(path), str(Path(__file__).parent)]
    told = [handle.raw.hex() for handle in handles]
    done = subprocess.run([*command, *told, waits], capture_output=True, text=True, timeout=60)
    assert done.stderr == ""
    is_faulty = waits != "waits"
    assert done.stdout.split("\n")[:2] == [r"b'\x03\x03\x03'", str(is_faulty)]
    assert ctypes.string_at(memory, 2) == b"\x05\x03"


def test_memory_of_a_pool_has_no_handle(bench: Bench) -> None:
    memory = bench.driver.make("cuMemAllocAsync", 64, bench.stream())
    handle = ctypes.create_string_buffer(64)
    assert bench.driver.cuIpcGetMemHandle(handle, memory) == 1

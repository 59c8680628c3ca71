"""Machines on which the stream scenarios run: a fake driver over host memory, or a GPU.

A scenario says what enqueues work where; the machine says afterwards whether that was in order. The
fake one sees each missing order, also those that never show on a GPU. The real one has kernels that
are slow on purpose, so that what is not ordered reads other bytes than the scenario expects.
"""

from __future__ import annotations

import ctypes
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import ClassVar

import pytest
from driver_calls import LEGACY, NO_TIMING, NON_BLOCKING, PER_THREAD, DriverCalls

Ranges = Sequence[tuple[int, int]]  # (address, number of bytes)

# cuStreamBeginCapture's modes
GLOBAL, THREAD_LOCAL, RELAXED = 0, 1, 2

KERNEL = Path(__file__).with_name("touch.ptx")

# Every kind of stream there is: all but the first two are new.
STREAM_KINDS = ("legacy", "per-thread", "blocking", "non-blocking")


class Graph:
    """A graph captured from a stream; may be launched when its block has ended."""

    def __init__(self, machine: Machine, device: int, *, auto_free: bool = False) -> None:
        self.machine, self.device, self.auto_free = machine, device, auto_free
        self.graph = self.executable = 0

    def finish(self, stream: int) -> None:
        driver = self.machine.driver
        self.graph = driver_handle(driver, "cuStreamEndCapture", stream)
        self.executable = driver.make(
            "cuGraphInstantiateWithFlags", self.graph, int(self.auto_free)
        )

    def launch(self, stream: int) -> None:
        with self.machine.driver.on(self.device):
            self.machine.driver.call("cuGraphLaunch", self.executable, stream)

    def close(self) -> None:
        driver = self.machine.driver
        with driver.on(self.device):
            if self.executable:
                driver.call("cuGraphExecDestroy", self.executable)
            if self.graph:
                driver.call("cuGraphDestroy", self.graph)
        self.graph = self.executable = 0


def driver_handle(driver: DriverCalls, name: str, handle: int) -> int:
    """Call a function that takes a handle and writes another one behind it; return that."""
    made = ctypes.c_void_p()
    driver.call(name, handle, ctypes.byref(made))
    return made.value or 0


class Machine(ABC):
    """The common part of both machines: the driver's own functions.

    Attributes:
        devices: the ids of its devices.
        path: of the driver library.
    """

    is_fake: ClassVar[bool]

    def __init__(self, path: str) -> None:
        self.path = path
        self.is_open = True
        self.driver = DriverCalls(path)
        self.devices = tuple(range(self.driver.ask("cuDeviceGetCount")))
        self._streams: dict[int, int] = {}
        self._memory: dict[int, tuple[int, bool]] = {}
        self._graphs: list[Graph] = []
        self._kernels = {device: self._load(device) for device in self.devices}

    def need_devices(self, count: int) -> None:
        """Skip the test on a machine with fewer devices."""
        if len(self.devices) < count:
            pytest.skip(f"needs {count} GPUs, this machine has {len(self.devices)}")

    def need_place(self, place: str) -> None:
        """Skip the test where there is no device of the number that a place such as cuda:1 has."""
        self.need_devices(int(place.partition(":")[2] or 0) + 1)

    # ---- streams

    def stream(self, device: int = 0, *, blocking: bool = False) -> int:
        """Return a new stream; a blocking one is implicitly ordered with the legacy stream."""
        with self.driver.on(device):
            made = self.driver.make("cuStreamCreate", 0 if blocking else NON_BLOCKING)
        self._streams[made] = device
        return made

    def stream_of_kind(self, kind: str, device: int = 0) -> int:
        """Return a stream of one of STREAM_KINDS."""
        if kind in STREAM_KINDS[:2]:
            return LEGACY if kind == "legacy" else PER_THREAD
        return self.stream(device, blocking=kind == "blocking")

    def destroy_stream(self, stream: int) -> None:
        with self.driver.on(self._streams.pop(stream)):
            self.driver.call("cuStreamDestroy_v2", stream)

    @abstractmethod
    def reuse_handles(self) -> None:
        """Let the next stream have the handle of the last one that was destroyed, if it may."""

    def device_of(self, stream: int) -> int:
        """Return the device of a stream; that of 1 and 2 depends on the context: 0 here."""
        return self._streams.get(stream, 0)

    def event_order(self, before: int, after: int, device: int | None = None) -> None:
        """Order two streams as a user does: an event on the one, the other waits for it."""
        where = self.device_of(before) if device is None else device
        with self.driver.on(where):
            event = self.driver.make("cuEventCreate", NO_TIMING)
            try:
                self.driver.call("cuEventRecord", event, before)
                self.wait_event(after, event, where)
            finally:
                self.driver.call("cuEventDestroy_v2", event)

    def wait_event(self, stream: int, event: int, device: int) -> None:
        with self.driver.on(self._streams.get(stream, device)):
            self.driver.call("cuStreamWaitEvent", stream, event, 0)

    def synchronise(self) -> None:
        """Wait, as the test, for everything on every device."""
        for device in self.devices:
            with self.driver.on(device):
                self.driver.call("cuCtxSynchronize")

    def is_through(self, stream: int) -> bool:
        """Return whether all work of a stream is over."""
        with self.driver.on(self.device_of(stream)):
            return bool(self.driver.library.cuStreamQuery(stream) == 0)

    @contextmanager
    def capture(
        self, stream: int, mode: int = THREAD_LOCAL, *, auto_free: bool = False
    ) -> Iterator[Graph]:
        """Capture what the block enqueues on `stream` into the Graph that it gets.

        With `auto_free` each launch first frees what the one before has left allocated.
        """
        graph = Graph(self, self.device_of(stream), auto_free=auto_free)
        self._graphs.append(graph)
        with self.driver.on(graph.device):
            self.driver.call("cuStreamBeginCapture_v2", stream, mode)
            try:
                yield graph
            except BaseException:
                self.driver.library.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p()))
                raise
            graph.finish(stream)

    def is_capturing(self, stream: int) -> bool:
        with self.driver.on(self.device_of(stream)):
            return self.driver.ask("cuStreamIsCapturing", stream) != 0

    # ---- memory

    def alloc(self, nbytes: int, device: int = 0, stream: int | None = None) -> int:
        """Return raw driver memory; with a stream from the device's pool, in its order."""
        with self.driver.on(device):
            if stream is None:
                made = self.driver.make("cuMemAlloc_v2", nbytes)
            else:
                made = self.driver.make("cuMemAllocAsync", nbytes, stream)
        self._memory[made] = (device, stream is not None)
        return made

    def free(self, address: int, stream: int | None = None) -> None:
        device, _ = self._memory.pop(address)
        with self.driver.on(device):
            if stream is None:
                self.driver.call("cuMemFree_v2", address)
            else:
                self.driver.call("cuMemFreeAsync", address, stream)

    def fill(self, address: int, nbytes: int, value: int, stream: int = LEGACY) -> None:
        """Write a byte all over a range, by a kernel."""
        self.launch(stream, writes=[(address, nbytes)], value=value)

    def read_back(self, address: int, nbytes: int, device: int | None = None) -> bytes:
        """Wait for everything, and return what is there."""
        self.synchronise()
        where = self._memory.get(address, (0, False))[0] if device is None else device
        out = ctypes.create_string_buffer(nbytes)
        with self.driver.on(where):
            stream = self.driver.make("cuStreamCreate", NON_BLOCKING)
            self.driver.call("cuMemcpyDtoHAsync_v2", out, address, nbytes, stream)
            self.driver.call("cuStreamSynchronize", stream)
            self.driver.call("cuStreamDestroy_v2", stream)
        return out.raw

    def launch(
        self,
        stream: int,
        reads: Ranges = (),
        writes: Ranges = (),
        value: int | None = None,
        *,
        slow: bool = False,
        device: int | None = None,
    ) -> None:
        """Enqueue a kernel that reads and writes these ranges.

        Args:
            stream: as in `__dlpack__`: 1, 2 or a handle.
            reads: what it reads.
            writes: what it writes, with the byte `value`; None copies the first read range there.
            slow: it takes so long that what is not ordered after it comes first.
            device: where 1 and 2 are; default 0.
        """
        where = self.device_of(stream) if device is None else device
        first = reads[0] if reads else (0, 0)
        with self.driver.on(where):
            nanoseconds = self.slow_down(stream) if slow else 0
            for i in range(max(len(reads), len(writes), 1)):
                source = reads[i] if i < len(reads) else first
                target = writes[i] if i < len(writes) else (0, 0)
                self._touch(where, stream, source, target, nanoseconds, value)
                nanoseconds = 0

    def _touch(self, device, stream, source, target, nanoseconds, value):
        if value is None and target[1] > source[1]:
            raise ValueError("a copy needs a range to read that is as long as the one to write")
        numbers = [
            *(ctypes.c_uint64(n) for n in (*source, *target, nanoseconds)),
            *(ctypes.c_uint32(n) for n in (value or 0, value is None)),
        ]
        pointers = (ctypes.c_void_p * len(numbers))(*(ctypes.addressof(n) for n in numbers))
        grid_and_block = (1, 1, 1, 256, 1, 1)
        kernel = self._kernels[device]
        self.driver.call("cuLaunchKernel", kernel, *grid_and_block, 0, stream, pointers, None)

    def _load(self, device: int) -> int:
        """Return the kernel on a device: loaded at the start, since captures forbid it."""
        with self.driver.on(device):
            module = self.driver.make("cuModuleLoadData", KERNEL.read_bytes() + b"\0")
            return self.driver.make("cuModuleGetFunction", module, b"dlb_touch")

    @abstractmethod
    def slow_down(self, stream: int) -> int:
        """Make what comes next on the stream slow, or return for how many nanoseconds to spin."""

    # ---- afterwards

    @property
    @abstractmethod
    def host_synchronisations(self) -> int:
        """How often the host has waited for a device since the last `reset`."""

    @abstractmethod
    def reset(self) -> None:
        """Count from zero, forget faults and calls."""

    @abstractmethod
    def finish(self) -> None:
        """Let the devices catch up with all that is enqueued, the host seeing nothing of it."""

    @abstractmethod
    def check(self) -> None:
        """Raise with all that was out of order or illegal."""

    def close(self) -> None:
        """Give everything back that the test itself made."""
        self.synchronise()
        for graph in self._graphs:
            graph.close()
        for address in list(self._memory):
            self.free(address)
        for stream in list(self._streams):
            self.destroy_stream(stream)
        self._graphs.clear()
        self.is_open = False

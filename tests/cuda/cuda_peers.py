"""Frameworks with CUDA arrays that know nothing of dlbridge.

They do what torch and CuPy do, no more: arrays come from a pool that hands memory out again as soon
as it was given back, in the order of the one stream that it belongs to; `__dlpack__` puts an event
between the own stream and the consumer's; a consumer calls the deleter as soon as it drops the
array, while its kernels still run. So memory that goes back too early is overwritten at once.

    Framework   a current stream, a pool, arrays
    Array       memory of its own, or memory that came in by DLPack
"""

from __future__ import annotations

import ctypes
import itertools
import threading
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from dlpack_peers import (
    LEGACY as LEGACY_NAME,
)
from dlpack_peers import (
    VERSIONED,
    Consumer,
    Description,
    Table,
    destroy_capsule,
    lend,
    make_capsule,
)
from driver_calls import LEGACY, PER_THREAD
from machine import Machine

from dlbridge._core import native

CUDA = 2
CURRENT = object()  # the stream of the framework's current work
RUBBISH = 0xDD  # what the next owner of memory writes


class Pool:
    """Memory of one device; `eager` writes over it as soon as it is given back."""

    def __init__(self, machine: Machine, device: int, eager: bool) -> None:
        self.machine, self.device, self.eager = machine, device, eager
        self.free: dict[tuple[int, int, int], list[int]] = defaultdict(list)
        self.given_back = 0

    def take(self, nbytes: int, stream: int) -> Block:
        owner = threading.get_ident() if stream == PER_THREAD else 0
        ready = self.free[nbytes, stream, owner]
        address = ready.pop() if ready else self.machine.alloc(nbytes, self.device)
        return Block(self, address, nbytes, stream, owner)

    def give_back(self, block: Block) -> None:
        self.given_back += 1
        if self.eager and block.owner in (0, threading.get_ident()):
            self.reuse(block)
        self.free[block.nbytes, block.stream, block.owner].append(block.address)

    def reuse(self, block: Block) -> None:
        """Do what the next owner of the memory does first."""
        if not self.machine.is_open:  # the test has failed, and its traceback kept the memory
            return
        if block.stream == LEGACY or not self.machine.is_capturing(block.stream):
            there = [(block.address, block.nbytes)]
            self.machine.launch(block.stream, writes=there, value=RUBBISH, device=self.device)


class Block:
    """Memory of a pool; goes back with the last reference to it, whichever thread drops that."""

    def __init__(self, pool: Pool, address: int, nbytes: int, stream: int, owner: int) -> None:
        self.pool, self.address, self.nbytes = pool, address, nbytes
        self.stream, self.owner = stream, owner

    def __del__(self) -> None:
        self.pool.give_back(self)


class Loan:
    """Memory that came in by a capsule; the deleter is called with the last reference."""

    def __init__(self, capsule: object) -> None:
        self.consumer = Consumer(capsule)
        self.address = self.consumer.data + self.consumer.byte_offset

    def __del__(self) -> None:
        if not self.consumer.released:
            self.consumer.release()


class Keeper:
    """Memory of an object that told its address, kept as long as the array is."""

    def __init__(self, owner: object, address: int) -> None:
        self.owner, self.address = owner, address


class Framework:
    """A library with CUDA arrays on one device."""

    def __init__(
        self, machine: Machine, stream: int = LEGACY, device: int = 0, *, eager: bool = True
    ) -> None:
        self.machine, self.device = machine, device
        self.pool = Pool(machine, device, eager)
        self._default = stream
        self._local = threading.local()
        self.capsules: list[dict[str, Any]] = []  # the keywords of every `__dlpack__`

    @property
    def current(self) -> int:
        """The stream on which this thread works."""
        return getattr(self._local, "stream", self._default)

    @contextmanager
    def use(self, stream: int) -> Iterator[None]:
        before, self._local.stream = self.current, stream
        try:
            yield
        finally:
            self._local.stream = before

    def empty(self, nbytes: int = 64) -> Array:
        return Array(self, self.pool.take(nbytes, self.current), nbytes)

    def full(self, value: int, nbytes: int = 64, *, slow: bool = False) -> Array:
        return self.empty(nbytes).write(value, slow=slow)

    def order(self, before: int, after: int) -> None:
        if before != after:
            self.machine.event_order(before, after, self.device)

    def from_dlpack(self, x: Any, stream: Any = CURRENT, **keywords: Any) -> Array:
        """Take `x` for work on the current stream, or on another one, or asking for none."""
        if stream is not None:
            keywords["stream"] = self.current if stream is CURRENT else stream
        loan = Loan(x.__dlpack__(max_version=(1, 3), **keywords))
        return Array(self, loan, loan.consumer.shape[0])

    def from_interface(self, x: Any) -> Array:
        """Take `x` by its CUDA array interface, after its stream if it names one."""
        fields = x.__cuda_array_interface__
        if fields.get("stream") is not None:
            self.order(fields["stream"], self.current)
        return Array(self, Keeper(x, fields["data"][0]), fields["shape"][0])

    def make_table_type(self) -> type[Any]:
        """Return a type whose objects speak the exchange table only; called with an Array."""
        return FrameworkTable(self).make_type()


class Xla(Framework):
    """A library as XLA is on a GPU: it waits for memory on streams that it uses in turn, and
    computes on another. Memory that it borrowed it drops without waiting for either.
    """

    def __init__(self, machine: Machine, device: int = 0) -> None:
        super().__init__(machine, machine.stream(device), device)
        self.ready = [machine.stream(device) for _ in range(4)]
        self._turns = itertools.cycle(self.ready)

    def from_dlpack(self, x: Any, stream: Any = CURRENT, **keywords: Any) -> Array:
        ready = next(self._turns)
        array = super().from_dlpack(x, ready, **keywords)
        self.order(ready, self.current)
        return array


class Array:
    """Bytes on a device."""

    def __init__(self, framework: Framework, memory: Any, nbytes: int) -> None:
        self.framework, self.memory, self.nbytes = framework, memory, nbytes

    @property
    def address(self) -> int:
        return int(self.memory.address)

    @property
    def range(self) -> list[tuple[int, int]]:
        return [(self.address, self.nbytes)]

    def write(self, value: int, *, slow: bool = False) -> Array:
        self._launch([], self.range, value, slow)
        return self

    def read(self, *, slow: bool = False) -> Array:
        self._launch(self.range, [], None, slow)
        return self

    def copy(self, *, slow: bool = False) -> Array:
        """Return a copy of the same framework, made on its current stream."""
        made = self.framework.empty(self.nbytes)
        self._launch(self.range, made.range, None, slow)
        return made

    def _launch(self, reads: Any, writes: Any, value: int | None, slow: bool) -> None:
        f = self.framework
        f.machine.launch(f.current, reads, writes, value, slow=slow, device=f.device)

    def value(self) -> int:
        """Wait for all devices, and return the byte that is all over it."""
        seen = set(
            self.framework.machine.read_back(self.address, self.nbytes, self.framework.device)
        )
        assert len(seen) == 1, f"different bytes: {seen}"
        return seen.pop()

    def free(self) -> None:
        """Drop the memory, now, whatever still runs on it."""
        self.memory = None

    # ---- as a producer

    def describe(self) -> Description:
        return Description(
            shape=(self.nbytes,),
            strides=(1,),
            dtype=(1, 8, 1),
            device=(CUDA, self.framework.device),
            data=self.address,
            keeps=self.memory,
        )

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.framework.device

    def __dlpack__(self, *, stream: Any = None, max_version: Any = None, **others: Any) -> object:
        self.framework.capsules.append({"stream": stream, "max_version": max_version, **others})
        if stream == 0:
            raise BufferError("stream 0 is ambiguous")
        if stream != -1:
            self.framework.order(self.framework.current, LEGACY if stream is None else stream)
        versioned = max_version is not None and max_version[0] >= 1
        loan = lend(self.describe(), versioned)
        destructor = ctypes.cast(destroy_capsule, ctypes.c_void_p).value
        return make_capsule(loan.address, VERSIONED if versioned else LEGACY_NAME, destructor)


class Interface:
    """An Array by its CUDA array interface only; `stream` is what it says there."""

    def __init__(self, array: Array, stream: int | None) -> None:
        self.array, self.stream = array, stream
        self.device = type("Device", (), {"id": array.framework.device})()

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "shape": (self.array.nbytes,),
            "typestr": "|u1",
            "data": (self.array.address, False),
            "version": 3,
            "strides": None,
            "stream": self.stream,
        }


class FrameworkTable(Table):
    """The exchange table of a Framework: it never synchronises, and tells its current stream."""

    def __init__(self, framework: Framework) -> None:
        super().__init__()
        self.framework = framework

    def _from_py(self, x: Any, out: Any) -> int:
        out[0] = lend(x.producer.describe(), versioned=True).address
        return 0

    def _borrow(self, x: Any, out: Any) -> int:
        raise NotImplementedError

    def _to_py(self, managed: int, out: Any) -> int:
        loan = Loan(make_capsule(managed, VERSIONED))
        result = Array(self.framework, loan, loan.consumer.shape[0])
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(result))
        out[0] = id(result)
        return 0

    def _stream(self, device_type: int, device_id: int, out: Any) -> int:
        current = self.framework.current
        out[0] = None if current == LEGACY else current
        return 0


def own_kernel(
    machine: Machine, tensor: Any, stream: int, value: int | None = None, *, slow: bool = False
) -> None:
    """Launch a kernel as dlbridge does: it reads the tensor, or with a `value` writes it."""
    device = tensor.device.id
    native.cuda_begin(tensor, stream, value is not None)
    there = [(tensor.data_ptr, tensor.nbytes)]
    if value is None:
        machine.launch(stream, reads=there, slow=slow, device=device)
    else:
        machine.launch(stream, writes=there, value=value, slow=slow, device=device)

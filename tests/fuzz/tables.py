"""C exchange tables whose fields, functions and results are made up."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import dlbridge
from dlbridge._core import native
from dlbridge.errors import DLBridgeError, ExchangeError
from tests.fuzz import drawing
from tests.fuzz.capsules import Stand, check_reason

NAME = b"dlpack_exchange_api"
OTHER_NAMES = (b"dltensor", b"dltensor_versioned", b"", b"dlpack_exchange_ap", NAME + b"2")
ALLOCATE, FROM_PY, TO_PY, BORROW, STREAM = (1 << bit for bit in range(5))
ALL = ALLOCATE | FROM_PY | TO_PY | BORROW | STREAM
REQUIRED = ALL & ~BORROW
MOST_TABLES = 4


class Fuzzer:
    """What is done with a table, on one that was made up."""

    def __init__(self, stand: Stand) -> None:
        self.stand = stand
        library = stand.library
        self.fill, self.let_go = library.dlpack_fill_table, library.dlpack_let_go
        self.fill.argtypes = [ctypes.c_int, ctypes.c_uint32, ctypes.c_uint32, *[ctypes.c_int] * 2]
        self.table = library.dlpack_table
        self.table.restype, self.table.argtypes = ctypes.py_object, [ctypes.c_char_p]
        self.ours = dlbridge.from_dlpack(np.arange(6, dtype=np.float32).reshape(2, 3))
        self.live = native.live()

    def __call__(self, source: random.Random) -> str:
        is_usable = self.draw_tables(source)
        self.stand.draw(source, is_versioned=True)
        plan = self.stand.plan
        plan.status = source.choice((0, 0, 0, 0, 0, 0, -1, 1))
        plan.raises = plan.status != 0 and source.random() < 0.5
        plan.is_given = source.random() < 0.95
        plan.deletes = source.random() < 0.5
        plan.stream = source.choice((0, 1, 2, 2**63, 2**64 - 1))
        name = NAME if source.random() < 0.97 else source.choice(OTHER_NAMES)
        self.name = name  # a capsule does not copy it
        act = source.choice((self.take, self.take, self.give, self.allocate, self.ask, self.meet))
        said = act(source, self.table(name))
        if name != NAME or not is_usable:
            assert "refused" in said, said
        self.let_go()
        self.stand.forget()
        assert native.live() == self.live
        return said

    def draw_tables(self, source: random.Random) -> bool:
        """Fill the tables; return whether one of those in reach is right."""
        count = source.choice((1, 1, 1, 2, 3, 4))
        rows = []
        for i in range(count):
            major = 1 if source.random() < 0.6 else source.choice((0, 2, 3, 2**32 - 1))
            functions = ALL if source.random() < 0.8 else source.randrange(ALL + 1)
            previous = i + 1 if i + 1 < count else -1
            if source.random() < 0.03:
                previous = source.randrange(MOST_TABLES)
            rows.append((major, source.choice((0, 3, 9)), previous, functions))
        for i in range(MOST_TABLES):
            self.fill(i, *(rows[i] if i < count else (0, 0, -1, 0)))
        seen, at = set[int](), 0
        while at >= 0 and at not in seen and at < count:
            major, _, previous, functions = rows[at]
            if major == 1:
                return functions & REQUIRED == REQUIRED
            seen.add(at)
            at = previous
        return False

    def take(self, source: random.Random, table: Any) -> str:
        return self.taken(lambda: native.take_table(self, table))

    def allocate(self, source: random.Random, table: Any) -> str:
        shape, dtype = (
            drawing.shape(source),
            source.choice(((2, 32, 1), (17, 4, 1), self.stand.dtype)),
        )
        return self.taken(lambda: native.allocate_table(table, shape, dtype, (1, 0)))

    def meet(self, source: random.Random, table: Any) -> str:
        """As users do: an object of a class that has the table, here one that nobody knows."""
        x = type("Peer", (), {"__dlpack_c_exchange_api__": table})()
        return self.taken(lambda: dlbridge.from_dlpack(x))

    def taken(self, take: Callable[[], Any]) -> str:
        """Take a tensor out of the table: it says what the struct says, and is released once."""
        stand, plan = self.stand, self.stand.plan
        try:
            tensor = take()
        except ExchangeError as error:
            check_reason(error)
            said = "refused: by a reason"
        except (DLBridgeError, ValueError, TypeError, OverflowError, MemoryError) as error:
            said = f"refused: {type(error).__name__}"
        else:
            stand.check_taken(tensor)
            assert plan.is_given
            assert plan.status == 0
            said = "taken"
            del tensor
        if plan.status == 0:
            stand.check_released()
        assert plan.status == 0 or stand.deleted.value == 0  # a failure gives nothing
        return said

    def give(self, source: random.Random, table: Any) -> str:
        """Give a tensor of ours away: gone when the table let go of it."""
        stream = source.choice((None, 0, 1, 2**62))
        try:
            made = native.give_table(self.ours, table, stream)
        except (DLBridgeError, ValueError, TypeError) as error:
            return f"giving refused: {type(error).__name__}"
        assert made is None
        return "given"

    def ask(self, source: random.Random, table: Any) -> str:
        device = (source.choice((1, 2, 3, 10)), source.choice((0, 1, -1, 2**31 - 1)))
        try:
            return f"stream: {type(native.table_stream(table, device)).__name__}"
        except (DLBridgeError, ValueError, TypeError) as error:
            return f"stream refused: {type(error).__name__}"


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer(Stand(folder))

"""The arguments of pickled Tensors, changed; what is taken is read to its last byte."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlbridge.errors import DLBridgeError, ExchangeError
from dlbridge.tensor.pickling import rebuild
from dlbridge.tensor.tensor import Tensor
from tests.fuzz import drawing
from tests.fuzz.memory import Guarded

# (shape, dtype, order, flags) as `reduce` writes them, with their bytes in memory
STATES: tuple[tuple[int, tuple[Any, ...]], ...] = (
    (48, ((3, 4), (2, 32, 1), (0, 1), 0)),
    (48, ((2, 3, 4), (0, 16, 1), (2, 0, 1), 0)),
    (8, ((3, 5), (0, 4, 1), (1, 0), 0)),
    (3, ((3,), (1, 4, 1), (0,), 4)),
    (1, ((), (6, 8, 1), (), 0)),
    (0, ((0, 7), (5, 128, 1), (0, 1), 0)),
    (64, ((4,), (2, 32, 4), (0,), 0)),
    (12, ((4, 4), (15, 6, 1), (0, 1), 0)),
)
MOST_READ = 4096


class Fuzzer:
    """`rebuild` over memory with a guard behind it."""

    def __init__(self) -> None:
        self.room = Guarded(4096)

    def __call__(self, source: random.Random) -> str:
        nbytes, state = source.choice(STATES)
        for _ in range(source.choice((0, 1, 1, 2))):
            if source.random() < 0.2:
                nbytes = max(0, nbytes + source.choice((-8, -1, 1)))
            else:
                i = source.randrange(len(state))
                state = (*state[:i], drawing.changed(source, state[i]), *state[i + 1 :])
        self.room.place(source.randbytes(nbytes))
        data: Any = self.room.buffer()
        if source.random() < 0.05:
            data = source.choice((data[::2], data[:0], 5, None, "text", data.toreadonly()))
        cls: Any = Tensor if source.random() < 0.98 else source.choice((int, 5, None, object))
        try:
            tensor = rebuild(cls, data, *state)
        except DLBridgeError as error:
            return f"refused: {type(error).__name__}"
        copy = tensor.copy()
        lists = math.prod(max(extent, 1) for extent in tensor.shape)  # (2**40, 0) has 2**40 of them
        if lists < MOST_READ and tensor.dtype.name != "handle":
            try:
                copy.tolist()
            except ExchangeError as error:
                if error.reason != "dtype" or not tensor.dtype.name.startswith("code"):
                    raise
                return "taken, with elements of a code that only later versions of DLPack may have"
        return "taken"


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer()

"""Calls of XLA's foreign functions, made up: attributes, operands, results."""

from __future__ import annotations

import ctypes
import math
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dlbridge._core import native
from dlbridge.kernels import kernel as _hooks  # noqa: F401  (connects the texts)
from dlbridge.kernels.schema import Schema
from tests.fuzz import drawing
from tests.fuzz.compiling import compile_library
from tests.fuzz.memory import Guarded

F32, F64, U32, S64 = 11, 12, 8, 5
SIZES = {1: 1, 2: 1, 3: 2, 4: 4, S64: 8, 6: 1, 7: 2, U32: 4, 9: 8, 10: 2, F32: 4, F64: 8, 15: 8}
SIZES |= {16: 2, 18: 16, 19: 1, 21: 1, 22: 1}
TYPES = [*SIZES, F32, F32, F32, U32, 0, 13, 17, 34, 99, -1, 2**31 - 1]
# What a program would say of each: schema, operands, results, layout ("": none), attributes.
Program = tuple[str, list[tuple[int, tuple[int, ...]]], list[tuple[int, tuple[int, ...]]], str, Any]
X, S = (F32, (3, 4)), (F32, ())
PROGRAMS: tuple[Program, ...] = (
    ("plain(x: f32[...], y: f32[...]) -> f32[...]", [X, X], [X], "", {}),
    ("alpha(x: f32[...], *, alpha: float = 1.0) -> f32[...]", [X], [X], "", {"s00": 1.5}),
    ("write(x!: f32[...])", [X], [X], "m", {}),
    ("both(x!: f32[...], y: i64[n]? = None) -> f32[]", [X], [S, X], "m-", {}),
    ("both(x!: f32[...], y: i64[n]? = None) -> f32[]", [X, (S64, (4,))], [S, X], "mt", {}),
    ("traced(x: f32[...], a: float, b: int) -> f32[...]", [X, S, (4, ())], [X], "tAB", {}),
    ("traced(x: f32[...], a: float, b: int) -> f32[...]", [X, (U32, (4,))], [X], "t#AfBi", {}),
    ("traced(x: f32[...], a: float, b: int) -> f32[...]", [X, S], [X], "tA", {"s01": 7}),
    ("three(x!: f64[n], y!: f64[n], z!: c128[n])", [(F64, (5,)), (F64, (5,)), (18, (5,))],
     [(F64, (5,)), (F64, (5,)), (18, (5,))], "mmm", {}),
    ("text(x: any[...], s: str) -> u8[3]", [X], [(6, (3,))], "", {"s00": "abc"}),
    ("sizes(n: int) -> f32[n, 2*n]", [], [(F32, (3, 6))], "", {"s00": 3}),
    ("packed(x!: i4[n]) -> i4[n]", [(21, (5,))], [(21, (5,)), (21, (5,))], "m", {}),
)  # fmt: skip
LETTERS = "tm-ABCP#AfBi"
ATTRIBUTES = ("s00", "s01", "s15", "s16", "s99", "s!!", "s0", "kernel", "layout", "eager", "x", "k")
ROOM = 1 << 13
MOST = 40


class Fuzzer:
    """XLA's handler for the CPU, with kernels that touch every byte they are given."""

    def __init__(self, library: ctypes.CDLL) -> None:
        from xla_calls import Operand, Xla

        self.operand, self.xla = Operand, Xla(0, platform="cpu")
        address = ctypes.cast(library.touch, ctypes.c_void_p).value
        self.names = []
        for text, *_ in PROGRAMS:
            schema = Schema.parse(f"fuzz::{text}")
            self.names.append(schema.qualified)
            native.KernelBase(
                schema.qualified,
                schema.encode(),
                schema.encode_arguments(),
                [(1, "dltensors", address, None)],
                schema=schema,
            ).publish(schema.qualified)
        self.rooms = [Guarded(ROOM) for _ in range(2 * MOST)]

    def __call__(self, source: random.Random) -> str:
        index = source.randrange(len(PROGRAMS))
        _, operands, results, layout, attributes = PROGRAMS[index]
        operands, results, attributes = list(operands), list(results), dict(attributes)
        if layout:
            attributes["layout"] = layout
        for _ in range(source.choice((0, 1, 1, 2, 3))):
            self.change(source, operands, results, attributes)
        name = self.names[index] if source.random() < 0.95 else source.choice(self.names)
        rooms = iter(self.rooms)
        given = [self.place(source, next(rooms), *each) for each in operands]
        made = [self.place(source, next(rooms), *each) for each in results]
        in_place = given and made and "m" in str(attributes.get("layout", ""))
        if in_place and given[0][1:] == made[-1][1:] and source.random() < 0.5:
            made[-1] = given[0]  # XLA lets no other results have the memory of operands
        error = self.xla.run(name, given, made, attributes)
        for room in self.rooms[: len(given) + len(made)]:
            room.check()
        return "taken" if error is None else "refused"

    def change(
        self, source: random.Random, operands: list[Any], results: list[Any], attributes: Any
    ) -> None:
        kind = source.randrange(8)
        some = operands if source.random() < 0.5 else results
        if kind == 0 and some:
            i = source.randrange(len(some))
            some[i] = (source.choice(TYPES), some[i][1])
        elif kind == 1 and some:
            i = source.randrange(len(some))
            some[i] = (some[i][0], self.shape(source))
        elif kind == 2 and some:
            some.pop(source.randrange(len(some)))
        elif kind == 3:
            extra = [(source.choice(TYPES), self.shape(source))] * source.choice((1, 1, 33))
            some[source.randrange(len(some) + 1) :] = extra
            del some[MOST:]
        elif kind == 4 and attributes:
            del attributes[source.choice(sorted(attributes))]
        elif kind == 5:
            name = source.choice(ATTRIBUTES)
            number = max(-(2**63), min(drawing.number(source), 2**63 - 1))
            value = source.choice((number, source.random(), "", "a", "kernel", "m"))
            if name != "kernel":
                attributes[name] = value
        else:
            text = str(attributes.get("layout", "")) or "t" * len(operands)
            i = source.randrange(len(text) + 1)
            letters = source.choice(LETTERS) * source.choice((1, 1, 1, 40))
            attributes["layout"] = text[:i] + letters + text[i + source.randrange(2) :]

    def shape(self, source: random.Random) -> tuple[int, ...]:
        if source.random() < 0.03:
            return (1,) * source.choice((254, 255, 256, 300, 3000))
        shape = drawing.shape(source)
        return (*shape, -1) if source.random() < 0.02 else shape

    def place(
        self, source: random.Random, room: Guarded, dtype: int, shape: tuple[int, ...]
    ) -> Any:
        size = SIZES.get(dtype, 1)
        nbytes = size * math.prod(shape)
        if nbytes > ROOM and 8 * nbytes < 2**63:
            shape, nbytes = (0,), 0  # there could be such memory, but not here
        if nbytes < 0 or nbytes > ROOM:
            nbytes = 0  # it must be refused before it is read
        address = room.place(source.randbytes(nbytes))
        return self.operand(address if nbytes or source.random() < 0.5 else 0, shape, dtype)


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield Fuzzer(compile_library(Path(__file__).with_name("tensorflow_stand_in.c"), folder))

"""Nodes of TensorFlow graphs with dlbridge's op, made up, over TensorFlow's C API in a stand-in."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlbridge import dtype
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.kernels import kernel as _hooks  # noqa: F401  (connects the texts)
from dlbridge.kernels.schema import Schema
from tests.fuzz import drawing
from tests.fuzz.compiling import compile_library
from tests.fuzz.memory import Guarded

SCHEMAS = (
    "fuzz::plain(x: f32[...], y: f32[...], *, alpha: float = 1.0) -> f32[...]",
    "fuzz::write(x!: f64[n])",
    "fuzz::both(x!: f32[...], y: i64[n]? = None) -> (f32[...], i64[])",
    "fuzz::sizes(n: int, m: int) -> f32[n, m*n]",
    "fuzz::kinds(x: T[n, k], a: float, b: int, c: bool, d: str? = None) -> T[n-2, 2*k]".replace(
        "T", "number"
    ),
    "fuzz::any(x: any[...]) -> u8[3]",
    "fuzz::three(x!: f16[n], y!: f16[n], z!: c128[n, *b]) -> (c128[*b], f16[n//2])",
    "fuzz::none() -> i64[]",
    "fuzz::effect(x: bf16[...], s: str)",
)
NAMES = [Schema.parse(text).qualified for text in SCHEMAS]
SIZES = {1: 4, 2: 8, 3: 4, 4: 1, 5: 2, 6: 1, 7: 24, 8: 8, 9: 8, 10: 1, 14: 2, 17: 2, 18: 16}
SIZES |= {19: 2, 20: 64, 22: 4, 23: 8}
TYPES = [*SIZES, 1, 1, 2, 9, 19, 0, 12, 21, 24, 25, 29, 63, 64, 101, 2**31 - 1, -1]
SCALARS = (b"i1:5,", b"i2:-7,", b"f16:3ff0000000000000,", b"s1:a,", b"n0:,", b"t0:,", b"t0:,")
WORDS = (*SCALARS, b":", b",", b"s", b"18446744073709551615", b"\0", b"-1")
ROOM = 1 << 14
MOST = 33


class Tensor(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int32),
        ("ndim", ctypes.c_int32),
        ("references", ctypes.c_int32),
        ("dims", ctypes.c_int64 * 256),
        ("nbytes", ctypes.c_size_t),
        ("data", ctypes.c_void_p),
    )


class Node(ctypes.Structure):
    _fields_ = (
        ("kernel", ctypes.c_char_p),
        ("scalars", ctypes.c_char_p),
        ("present", ctypes.c_char_p),
        ("batched", ctypes.c_char_p),
        ("kernel_size", ctypes.c_int32),
        ("scalars_size", ctypes.c_int32),
        ("present_size", ctypes.c_int32),
        ("batched_size", ctypes.c_int32),
        ("input_types", ctypes.POINTER(ctypes.c_int32)),
        ("output_types", ctypes.POINTER(ctypes.c_int32)),
        ("input_count", ctypes.c_int32),
        ("output_count", ctypes.c_int32),
        ("inputs", ctypes.POINTER(Tensor)),
        ("outputs", ctypes.POINTER(Tensor)),
        ("rooms", ctypes.POINTER(ctypes.c_void_p)),
        ("room", ctypes.c_size_t),
        ("forwards", ctypes.c_bool),
        ("failed", ctypes.c_bool),
        ("code", ctypes.c_int),
        ("text", ctypes.c_char * 1200),
    )


class Fuzzer:
    """The op over a stand-in, with kernels that touch every byte they are given."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.run_node = library.run_node
        address = ctypes.cast(library.touch, ctypes.c_void_p).value
        self.schemas = [Schema.parse(text) for text in SCHEMAS]
        for schema in self.schemas:
            native.KernelBase(
                schema.qualified,
                schema.encode(),
                schema.encode_arguments(),
                [(1, "dltensors", address, None)],
                schema=schema,
            ).publish(schema.qualified)
        self.room_in = [Guarded(ROOM) for _ in range(MOST)]
        self.room_out = [Guarded(ROOM) for _ in range(MOST)]
        self.inputs, self.outputs = (Tensor * MOST)(), (Tensor * MOST)()
        self.types_in, self.types_out = (ctypes.c_int32 * MOST)(), (ctypes.c_int32 * MOST)()
        self.rooms = (ctypes.c_void_p * MOST)(*[each.end for each in self.room_out])
        self.node = Node(
            input_types=self.types_in,
            output_types=self.types_out,
            inputs=self.inputs,
            outputs=self.outputs,
            rooms=self.rooms,
            room=ROOM,
        )

    def __call__(self, source: random.Random) -> str:
        schema = source.choice(self.schemas)
        shapes, types, scalars, present, outputs = self.draw(source, schema)
        batched = self.batch(source, schema, shapes, present) if source.random() < 0.4 else b""
        self.set_text("batched", batched)
        self.set_text("scalars", scalars)
        self.set_text("present", present)
        name = schema.qualified if source.random() < 0.98 else source.choice((*NAMES, "", "a::b"))
        self.set_text("kernel", name.encode())
        for i, (shape, number) in enumerate(zip(shapes, types, strict=True)):
            self.set_input(source, i, shape, number)
        for i, room in enumerate(self.room_out[: len(outputs)]):
            room.clear()
            self.outputs[i].nbytes = 0
        self.types_out[: len(outputs)] = outputs
        self.node.input_count, self.node.output_count = len(shapes), len(outputs)
        self.node.forwards = source.random() < 0.5
        code = self.run_node(ctypes.byref(self.node))
        for i in range(len(shapes)):
            self.room_in[i].check()
        for i in range(len(outputs)):
            self.room_out[i].check(self.outputs[i].nbytes)
        return "taken" if code == 0 else f"refused: {code}"

    def draw(
        self, source: random.Random, schema: Schema
    ) -> tuple[list[tuple[int, ...]], list[int], bytes, bytes, list[int]]:
        """Return inputs and attributes that fit a schema, then perhaps changed."""
        sizes = {name: source.choice((0, 1, 2, 3, 4, 6)) for name in schema.names}
        if source.random() < 0.05:
            sizes = {name: max(0, drawing.number(source)) % 2**63 for name in sizes}
        packs = {name: drawing.shape(source, 2) for name in schema.packs}
        dtypes = {
            part.variable: source.choice(part.dtypes or (dtype.DType("float32"),))
            for part in schema.dtypes
        }
        shapes, types, flags, written = [], [], "", []
        for part in schema.tensors:
            is_there = not part.optional or source.random() < 0.5
            flags += "01"[is_there]
            if not is_there:
                continue
            shape: tuple[int, ...] = ()
            for dim in part.dims:
                if dim.kind == "pack":
                    shape += packs[str(dim.value)]
                else:
                    shape += (sizes[str(dim.value)],)
            number = dtypes[part.dtype.variable].tensorflow_number
            shapes.append(shape)
            types.append(number)
            written += [number] if part.mutated else []
        outputs = [dtypes[part.dtype.variable].tensorflow_number for part in schema.results]
        scalars = b""
        for part in schema.scalars:
            texts = {"float": SCALARS[2], "str": SCALARS[3]}
            text = texts.get(part.kind, SCALARS[0])
            if part.name in sizes:
                value = str(sizes[part.name]).encode()
                text = b"i%d:%s," % (len(value), value)
            if part.kind in ("float", "int", "bool") and source.random() < 0.3:
                text = SCALARS[5]
                shapes.append(())
                types.append(2 if part.kind == "float" else 9)
            scalars += text
        present = flags.encode() if "0" in flags or source.random() < 0.2 else b""
        outputs += written
        return self.change(source, shapes, types, scalars, present, outputs)

    def change(
        self,
        source: random.Random,
        shapes: list[tuple[int, ...]],
        types: list[int],
        scalars: bytes,
        present: bytes,
        outputs: list[int],
    ) -> tuple[list[tuple[int, ...]], list[int], bytes, bytes, list[int]]:
        for _ in range(source.choice((0, 1, 1, 2, 3))):
            kind = source.randrange(9)
            if kind == 0 and outputs:
                outputs[source.randrange(len(outputs))] = source.choice(TYPES)
            elif kind == 1:
                outputs = (outputs + [source.choice(TYPES)] * source.choice((1, 1, 40)))[:MOST]
            elif kind == 2 and outputs:
                outputs.pop()
            elif kind == 3 and types:
                types[source.randrange(len(types))] = source.choice(TYPES)
            elif kind == 4 and shapes:
                shapes[source.randrange(len(shapes))] = drawing.shape(source)
            elif kind == 5 and shapes:
                shapes.pop()
                types.pop()
            elif kind == 6:
                count = source.choice((1, 1, 40))
                shapes = (shapes + [drawing.shape(source)] * count)[:MOST]
                types = (types + [source.choice(TYPES)] * count)[:MOST]
            elif kind == 7:
                scalars = drawing.spoilt(source, scalars, WORDS)
            else:
                present = source.choice((b"0", b"1", b"00", b"01", b"10", b"1" * 40, b"0" * 300))
        return shapes, types, scalars, present, outputs

    def batch(
        self, source: random.Random, schema: Schema, shapes: list[tuple[int, ...]], present: bytes
    ) -> bytes:
        """Make some tensors batches, mostly of one size; return the attribute that says which."""
        size = source.choice((0, 1, 2, 3))
        flags = present or b"1" * len(schema.tensors)
        marks = [flag == 49 and source.random() < 0.8 for flag in flags]
        at = 0
        for flag, mark in zip(flags, marks, strict=True):
            if mark and at < len(shapes):
                extent = size if source.random() < 0.95 else source.choice((0, 1, 2, 3))
                rest = shapes[at] if source.random() < 0.95 else drawing.shape(source)[1:]
                shapes[at] = (extent, *rest)
            at += flag == 49
        text = b"".join(b"01"[mark : mark + 1] for mark in marks)
        return drawing.spoilt(source, text, (b"0", b"1", b"x", b"1" * 40)) if size == 3 else text

    def set_text(self, name: str, text: bytes) -> None:
        setattr(self.node, name, text)
        setattr(self.node, f"{name}_size", len(text))

    def set_input(
        self, source: random.Random, index: int, shape: tuple[int, ...], number: int
    ) -> None:
        """Place one; one that is too large for its room has no elements instead."""
        size = SIZES.get(number, 1)
        nbytes = size
        for extent in shape:
            nbytes *= extent
        if nbytes > ROOM:
            shape, nbytes = (*shape, 0)[-254:], 0
        product = 1
        for extent in shape:  # TensorFlow has no shapes beyond 64 bits
            product *= extent
            if product >= 2**63:
                shape, nbytes = (0,), 0
                break
        tensor = self.inputs[index]
        tensor.dtype, tensor.ndim, tensor.references, tensor.nbytes = number, len(shape), 1, nbytes
        tensor.dims[: len(shape)] = shape
        address = self.room_in[index].place(source.randbytes(nbytes))
        tensor.data = address if nbytes or source.random() < 0.5 else None
        self.types_in[index] = number


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    library = compile_library(Path(__file__).with_name("tensorflow_stand_in.c"), folder)
    known = {}
    for number in range(1, 64):
        try:
            each = dtype.DType.from_tensorflow_number(number)
        except DLBridgeError:
            continue
        if each.bits % 8 == 0:
            known[number] = (each.code, each.bits, each.lanes)
    native.tensorflow_open(library._name, known)
    yield Fuzzer(library)

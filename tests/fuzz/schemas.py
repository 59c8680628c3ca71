"""Texts of schemas, and their encoded form, changed; what is taken is called."""

from __future__ import annotations

import ctypes
import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

import dlbridge
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.kernels import kernel as _hooks  # noqa: F401  (connects the texts)
from dlbridge.kernels.schema import Schema
from tests.fuzz import drawing

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
TEXTS = (
    "a::f(x: f32[n, m], y!: f32|f64[m, *b], *, alpha: float = 1.0, k: int = -3) -> f32[n*2, *b]",
    "a::f(x: T=any[...], n: int, s: str? = 'a\\'b') -> (out: T[n, 3], more: i64[(n-1)//2])",
    "a::g(x: bf16[2, _]? = None, flag: bool = True)",
    "a::h(x: number[n + m, n - m], y: i32[n], z: u8[m]) -> bool[n//m]",
    "a::k() -> i64[]",
    "a::n(x: A=float[n, *b], y!: like x, z: like y? = None) -> (like x, more: like z)",
    "a::m(x: A=float[n], y: to[n], *, to: dtype = f32, other: dtype? = None) -> to[n]",
    "a::l(x: f32[2*n, *b], y: f32[n*(m-1) + 3]) -> f32[n, m]",
    "a::o(x: f32[*b, n], b: int[] = [2, 3], *, w: float[2]? = [0.5, -inf]) -> f32[n, *b]",
)
WORDS = tuple(
    b"( ) [ ] , : ! ? = -> * ... | :: + - // n m f32 any float int dtype to like 0 1 "
    b"9223372036854775808 None inf nan ' \" \\ \xc3\xa9 #".split()
)


@FUNCTION
def nothing(context: object, tensors: object, count: int) -> int:
    """Stand for a kernel."""
    return 0


ADDRESS = ctypes.cast(nothing, ctypes.c_void_p).value


def make(signature: Any, arguments: Any, schema: Any) -> native.KernelBase:
    return native.KernelBase(
        "a::f", signature, arguments, [(1, "dltensors", ADDRESS, None)], schema=schema
    )


@cache
def parsed(text: str) -> tuple[Schema, Any, Any]:
    """Return a text's schema and what the native core gets of it, which nothing changes."""
    schema = Schema.parse(text)
    return schema, schema.encode(), schema.encode_arguments()


def run(source: random.Random) -> str:
    text = source.choice(TEXTS)
    if source.random() < 0.5:
        return run_encoded(source, *parsed(text))
    for _ in range(source.choice((1, 1, 2, 3))):
        text = drawing.spoilt(source, text.encode(), WORDS).decode(errors="replace")
    try:
        schema = Schema.parse(text)
    except DLBridgeError as error:
        return f"text refused: {type(error).__name__}"
    assert Schema.parse(str(schema)) == schema
    make(schema.encode(), schema.encode_arguments(), schema)
    return "text taken"


def run_encoded(source: random.Random, schema: Schema, signature: Any, arguments: Any) -> str:
    """Give the native core what no schema encodes."""
    for _ in range(source.choice((1, 1, 2, 3))):
        if source.random() < 0.7:
            signature = drawing.changed(source, signature)
        else:
            arguments = drawing.changed(source, arguments)
    try:
        kernel = make(signature, arguments, schema)
    except (DLBridgeError, ValueError, TypeError, OverflowError, MemoryError) as error:
        return f"encoding refused: {type(error).__name__}"
    shapes = [drawing.shape(source, 2) for _ in range(source.randrange(4))]
    tensors = [dlbridge.empty([min(n, 9) for n in shape], dtype="float32") for shape in shapes]
    scalars = [drawing.number(source, 0) for _ in range(source.randrange(3))]
    try:
        kernel.run(tensors, scalars)
    except DLBridgeError as error:
        return f"call refused: {type(error).__name__}"
    return "call taken"


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield run

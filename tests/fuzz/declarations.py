"""Declarations of op types, changed; what is taken becomes an OpDef and its message."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from dlbridge.errors import DLBridgeError
from dlbridge.graph.core.inference import unknown
from dlbridge.graph.core.notation import Declaration, parse
from dlbridge.graph.core.opdef import OpDef
from dlbridge.proto import messages
from tests.fuzz import drawing

TEXTS = (
    "MatMul(a: T, b: T, *, transpose_a: bool = false, T: {float32, int32}) -> product: T",
    'X(a: ref T, b: N * float32, c: list(Tin), *, N: int >= 2, k: {"p", "q"} = "q")',
    "Z(*, s: shape = <unknown>, l: list(int) = [1, 2], T: type = half) -> (d: T, e: list(Tin))",
    "A>B(x: T) -> y: N * T",
    "Const(*, value: tensor, dtype: type) -> output: dtype",
    'Y(*, f: func, u: list(float) >= 0 = [-1.5, inf], v: shape = [2, -1], w: string = "a b")',
    "NoOp()",
)
WORDS = tuple(
    b"( ) [ ] { } , : * -> >= = > <unknown> ref list list( int float bool string type shape tensor "
    b'func true false inf nan 0 -1 1e39 9223372036854775808 " float32 int8_ref T N '
    b"\xc3\xa9 \x1b".split()
)


def run(source: random.Random) -> str:
    text = source.choice(TEXTS)
    for _ in range(source.choice((1, 1, 2, 3))):
        spoilt = drawing.spoilt(source, text.encode(errors="surrogateescape"), WORDS)
        text = spoilt.decode(errors=source.choice(("replace", "surrogateescape")))
    try:
        declared = parse(text)
    except DLBridgeError as error:
        return f"refused: {type(error).__name__}"
    check(declared)
    return "taken"


def check(declared: Declaration) -> None:
    """Whatever is taken holds together: names, attributes that types refer to, defaults."""
    made = OpDef(*declared, unknown)
    names = [part.name for part in (*made.inputs, *made.outputs)] + list(made.attributes)
    assert len(set(names)) == len(names)
    kinds = {name: each.kind for name, each in made.attributes.items()}
    for part in (*made.inputs, *made.outputs):
        assert (part.type, part.type_attr, part.type_list_attr).count(None) == 2
        assert part.type_attr is None or kinds[part.type_attr] == "type"
        assert part.number_attr is None or kinds[part.number_attr] == "int"
        assert part.type_list_attr is None or kinds[part.type_list_attr] == "list(type)"
    if all(name in made.defaults for name in kinds):
        assert made.signature.settle(dict(made.defaults)) == made.defaults
    contents = made.to_proto().SerializeToString()
    assert messages.OpDef.FromString(contents) == made.to_proto()


@contextmanager
def prepare(folder: Path) -> Iterator[Callable[[random.Random], str]]:
    yield run

"""Graphs spoilt at random: bytes of a GraphDef, or fields of its nodes."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

INTEGERS = (
    0,
    1,
    -1,
    2,
    -2,
    3,
    7,
    31,
    127,
    -128,
    2**31 - 1,
    -(2**31),
    2**32,
    2**62,
    2**63 - 1,
    -(2**63),
)


def spoil_bytes(source: random.Random, data: bytes) -> bytes:
    """Return bytes of which some are changed, missing, repeated or new."""
    spoilt = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 3, 8))):
        if not spoilt:
            break
        i = source.randrange(len(spoilt))
        kind = source.randrange(6)
        if kind == 0:
            spoilt[i] = source.randrange(256)
        elif kind == 1:
            spoilt[i] ^= 1 << source.randrange(8)
        elif kind == 2:
            del spoilt[i : i + source.randrange(1, 9)]
        elif kind == 3:
            spoilt[i:i] = source.randbytes(source.randrange(1, 9))
        elif kind == 4:
            j = source.randrange(len(spoilt))
            spoilt[i:i] = spoilt[j : j + source.randrange(1, 40)]
        else:
            spoilt[i] = source.choice((0, 1, 0x7F, 0x80, 0xFF))
    return bytes(spoilt[: source.randrange(len(spoilt) + 1)] if source.random() < 0.1 else spoilt)


def spoil_nodes(source: random.Random, graph_def: Any, op_types: Sequence[str]) -> None:
    """Change some nodes of a GraphDef message."""
    for _ in range(source.choice((1, 1, 2, 4))):
        node = source.choice(graph_def.node)
        if source.random() < 0.15:
            node.op = source.choice(op_types)
        else:
            source.choice(_CHANGES)(source, graph_def, node)


def _inputs(source: random.Random, graph_def: Any, node: Any) -> None:
    """Take away, repeat, exchange, or redirect inputs."""
    inputs = list(node.input)
    kind = source.randrange(4)
    if kind == 0 and inputs:
        inputs.pop(source.randrange(len(inputs)))
    elif kind == 1 and inputs:
        inputs.append(source.choice(inputs))
    elif kind == 2:
        source.shuffle(inputs)
    else:
        name = source.choice(graph_def.node).name
        suffix = source.choice(("", "", "", ":1", ":7"))
        reference = source.choice((f"{name}{suffix}", f"{name}{suffix}", f"^{name}"))
        inputs.insert(source.randint(0, len(inputs)), reference)
    node.input[:] = inputs


def _drop_attribute(source: random.Random, graph_def: Any, node: Any) -> None:
    if node.attr:
        del node.attr[source.choice(sorted(node.attr))]


def _copy_attribute(source: random.Random, graph_def: Any, node: Any) -> None:
    """Give an attribute the value of any other."""
    other = source.choice(graph_def.node)
    if node.attr and other.attr:
        value = other.attr[source.choice(sorted(other.attr))]
        node.attr[source.choice(sorted(node.attr))].CopyFrom(value)


def _number(source: random.Random, graph_def: Any, node: Any) -> None:
    """Change a number in an attribute."""
    if not node.attr:
        return
    value = node.attr[source.choice(sorted(node.attr))]
    number = source.choice(INTEGERS)
    kind = value.WhichOneof("value")
    if kind == "i":
        value.i = number
    elif kind == "b":
        value.b = not value.b
    elif kind == "type":
        value.type = source.randrange(1, 34)
    elif kind == "shape":
        _shape(source, value.shape, number)
    elif kind == "tensor":
        _tensor(source, value.tensor, number)
    elif kind == "list" and value.list.i:
        value.list.i[source.randrange(len(value.list.i))] = number
    elif kind == "list":
        value.list.i.append(number)


def _shape(source: random.Random, shape: Any, number: int) -> None:
    if shape.dim and source.random() < 0.7:
        source.choice(shape.dim).size = number
    else:
        shape.dim.add().size = number


def _tensor(source: random.Random, tensor: Any, number: int) -> None:
    kind = source.randrange(4)
    if kind == 0:
        tensor.dtype = source.randrange(1, 34)
    elif kind == 1:
        _shape(source, tensor.tensor_shape, number)
    elif kind == 2 and tensor.tensor_content:
        tensor.tensor_content = source.randbytes(len(tensor.tensor_content))
    else:
        small = max(-(2**31), min(number, 2**31 - 1))
        field = source.choice((tensor.int_val, tensor.int64_val))
        field[:] = [small] * source.choice((1, 2, 3))


_CHANGES: tuple[Callable[[random.Random, Any, Any], None], ...] = (
    _inputs,
    _drop_attribute,
    _copy_attribute,
    _number,
    _number,
    _number,
)

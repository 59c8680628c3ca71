"""What fuzzers draw: numbers near limits, shapes, and values with something in them changed."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core import opdef

# Read at import: a test may register op types of its own, and a seed draws the same after it.
OP_TYPES = tuple(opdef.names())
EDGES = (0, 1, -1, 2, 3, 7, 8, 31, 32, 33, 64, 127, 128, 254, 255, 256, 300, 65535)
HUGE = (2**31 - 1, 2**31, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64, -(2**63), 2**70)


def number(source: random.Random, huge: float = 0.3) -> int:
    """Return a number, often one at a limit."""
    if source.random() < huge:
        return source.choice(HUGE) + source.choice((-1, 0, 0, 1))
    return source.choice(EDGES) if source.random() < 0.5 else source.randrange(-4, 20)


def extent(source: random.Random) -> int:
    """Return the length of a dimension that fits in 63 bits."""
    if source.random() < 0.1:
        return source.choice((0, 1, 2**31, 2**32, 2**61, 2**62, 2**63 - 1))
    return source.choice((0, 1, 1, 2, 3, 3, 4, 5, 8, 16))


def shape(source: random.Random, most: int = 4) -> tuple[int, ...]:
    """Return a shape, most of the time of few elements."""
    if source.random() < 0.02:
        return (1,) * source.choice((63, 64, 65, 127, 128, 253, 254))
    return tuple([extent(source) for _ in range(source.randrange(most + 1))])


def anything(source: random.Random) -> Any:
    """Return a value of any type that stands in pickles."""
    kind = source.randrange(9)
    if kind == 0:
        return None
    if kind == 1:
        return source.random() < 0.5
    if kind == 2:
        return source.choice((0.0, -1.5, float("nan"), float("inf"), 1e308))
    if kind == 3:
        return source.randbytes(source.choice((0, 1, 8, 16, 63, 64, 65)))
    if kind == 4:
        return source.choice(("", "a", "\0", "../x", "é", "\ud800"))
    if kind == 5:
        return tuple([number(source) for _ in range(source.randrange(5))])
    if kind == 6:
        return [number(source)]
    return number(source)


def changed(source: random.Random, given: Any) -> Any:
    """Return a value like this one, with something in it changed."""
    if isinstance(given, tuple) and given and source.random() < 0.8:
        items = list(given)
        i = source.randrange(len(items))
        kind = source.randrange(8)
        if kind == 0:
            del items[i]
        elif kind == 1:
            items.insert(i, items[i])
        else:
            items[i] = changed(source, items[i])
        return tuple(items)
    if isinstance(given, bool) or source.random() < 0.1:
        return anything(source)
    if isinstance(given, int):
        return source.choice((number(source), given + source.choice((-1, 1, 8)), -given))
    if isinstance(given, bytes):
        return spoilt(source, given)
    if isinstance(given, str):
        return spoilt(source, given.encode(errors="replace")).decode(errors="replace")
    return anything(source)


def spoilt(source: random.Random, data: bytes, words: Sequence[bytes] = ()) -> bytes:
    """Return bytes of which some are changed, missing, repeated or new."""
    made = bytearray(data)
    for _ in range(source.choice((1, 1, 2, 4))):
        i = source.randrange(len(made) + 1)
        kind = source.randrange(5)
        if kind == 0 and i < len(made):
            made[i] = source.randrange(256)
        elif kind == 1:
            del made[i : i + source.randrange(1, 4)]
        elif kind == 2 and made:
            j = source.randrange(len(made))
            made[i:i] = made[j : j + source.randrange(1, 20)]
        elif kind == 3 and words:
            made[i:i] = source.choice(words)
        else:
            made[i:i] = str(number(source)).encode()
    return bytes(made)

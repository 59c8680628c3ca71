"""All rows of the random graphs, and graphs drawn from them."""

from __future__ import annotations

import random

from graph import random_arithmetic, random_shapes
from graph.random_graphs import NUMBERS, Drawing, Plan

STEPS = {**random_arithmetic.ROWS, **random_shapes.ROWS}
ALSO = {"reshape like another": random_shapes.reshape_like}


def draw_plan(source: random.Random, most: int = 40) -> Plan:
    """Return a random graph of 3 to `most` operations besides their constants."""
    d = Drawing(source)
    for dtype in source.sample(NUMBERS, source.randint(1, 3)):
        d.placeholder(dtype)
    rows = [*STEPS.values(), *ALSO.values()]
    for _ in range(source.randint(3, most)):
        source.choice(rows)(d)
    return d.plan

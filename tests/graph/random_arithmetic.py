"""Rows of the random graphs: arithmetic, comparisons, reductions, joining, splitting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from graph.random_graphs import FLOATS, NUMBERS, Drawing

Draw = Callable[[Drawing], object]


def unary(op: str, dtypes: Sequence[str], result: str | None = None) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.pick(dtypes)
        if x is not None:
            d.add(op, [x], [(result or d.dtype(x), d.shape(x))])

    return draw


def binary(op: str, dtypes: Sequence[str], result: str | None = None) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.pick(dtypes)
        if x is None:
            return
        fit = [
            i
            for i, v in enumerate(d.plan.values)
            if v.dtype == d.dtype(x) and broadcast(d.shape(x), v.shape) is not None
        ]
        y = d.random.choice(fit)
        shape = broadcast(d.shape(x), d.shape(y))
        assert shape is not None
        if np.prod(shape) <= 4096:
            d.add(op, [x, y], [(result or d.dtype(x), shape)])

    return draw


def broadcast(a: tuple[int, ...], b: tuple[int, ...]) -> tuple[int, ...] | None:
    try:
        return np.broadcast_shapes(a, b)
    except ValueError:
        return None


def reduction(op: str, dtypes: Sequence[str]) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.pick(dtypes)
        if x is None:
            return
        rank = len(d.shape(x))
        axes = d.random.sample(range(rank), d.random.randint(0, rank))
        given = [axis - rank if d.random.random() < 0.3 else axis for axis in axes]
        keep = d.random.random() < 0.4
        if op != "Sum" and 0 in d.shape(x):
            return  # of nothing: infinities and NaN of many kinds
        shape = [1 if i in axes else n for i, n in enumerate(d.shape(x)) if keep or i not in axes]
        d.add(op, [x, d.integers(given)], [(d.dtype(x), tuple(shape))], keep_dims=keep)

    return draw


def cast(d: Drawing) -> None:
    x = d.pick((*NUMBERS, "bool"))
    if x is not None:
        to = d.random.choice((*NUMBERS, "bool"))
        d.add("Cast", [x], [(to, d.shape(x))], DstT=to)


def reshape(d: Drawing) -> None:
    x = d.pick()
    if x is None:
        return
    size = int(np.prod(d.shape(x)))
    extents = []
    for prime in (2, 3, 2, 3, 2):
        if size and size % prime == 0 and d.random.random() < 0.6:
            extents.append(prime)
            size //= prime
    extents.append(size)
    d.random.shuffle(extents)
    given = list(extents)
    if 0 not in extents and d.random.random() < 0.5:
        given[d.random.randrange(len(given))] = -1
    d.add("Reshape", [x, d.integers(given)], [(d.dtype(x), tuple(extents))])


def transpose(d: Drawing) -> None:
    x = d.pick()
    if x is not None:
        order = list(range(len(d.shape(x))))
        d.random.shuffle(order)
        shape = tuple(d.shape(x)[i] for i in order)
        d.add("Transpose", [x, d.integers(order)], [(d.dtype(x), shape)])


def concat(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is None:
        return
    parts = [x, d.pick_like(x), d.pick_like(x)][: d.random.randint(2, 3)]
    axis = d.random.randrange(len(d.shape(x)))
    shape = list(d.shape(x))
    shape[axis] *= len(parts)
    if np.prod(shape) <= 4096:
        d.add("ConcatV2", [parts, d.integers(axis)], [(d.dtype(x), tuple(shape))])


def pack(d: Drawing) -> None:
    x = d.pick()
    if x is not None and np.prod(d.shape(x)) <= 1000:
        parts = [x, d.pick_like(x)]
        axis = d.random.randint(0, len(d.shape(x)))
        shape = (*d.shape(x)[:axis], 2, *d.shape(x)[axis:])
        d.add("Pack", [parts], [(d.dtype(x), shape)], axis=axis)


def unpack(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        axis = d.random.randrange(len(d.shape(x)))
        shape = (*d.shape(x)[:axis], *d.shape(x)[axis + 1 :])
        count = d.shape(x)[axis]
        if count:
            d.add("Unpack", [x], [(d.dtype(x), shape)] * count, num=count, axis=axis)


def split(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        axis = d.random.randrange(len(d.shape(x)))
        extent = d.shape(x)[axis]
        count = d.random.choice([n for n in (1, 2, 3, 4) if extent % n == 0])
        shape = list(d.shape(x))
        shape[axis] = extent // count
        results = [(d.dtype(x), tuple(shape))] * count
        d.add("Split", [d.constant(axis, "int32"), x], results, num_split=count)


def matmul(d: Drawing) -> None:
    fit = [i for i, v in enumerate(d.plan.values) if len(v.shape) == 2 and v.dtype in NUMBERS]
    pairs = [
        (x, y, a, b)
        for x in fit
        for y in fit
        for a in (False, True)
        for b in (False, True)
        if d.dtype(x) == d.dtype(y) and d.shape(x)[not a] == d.shape(y)[b]
    ]
    if pairs:
        x, y, a, b = d.random.choice(pairs)
        shape = (d.shape(x)[a], d.shape(y)[not b])
        d.add("MatMul", [x, y], [(d.dtype(x), shape)], transpose_a=a, transpose_b=b)


ROWS: dict[str, Draw] = {
    "AddV2": binary("AddV2", NUMBERS),
    "Sub": binary("Sub", NUMBERS),
    "Maximum": binary("Maximum", NUMBERS),
    "Minimum": binary("Minimum", NUMBERS),
    "SquaredDifference": binary("SquaredDifference", FLOATS),
    "Less": binary("Less", NUMBERS, "bool"),
    "GreaterEqual": binary("GreaterEqual", NUMBERS, "bool"),
    "Equal": binary("Equal", NUMBERS, "bool"),
    "NotEqual": binary("NotEqual", NUMBERS, "bool"),
    "LogicalAnd": binary("LogicalAnd", ("bool",)),
    "LogicalOr": binary("LogicalOr", ("bool",)),
    "LogicalNot": unary("LogicalNot", ("bool",)),
    "Neg": unary("Neg", NUMBERS),
    "Abs": unary("Abs", NUMBERS),
    "Sign": unary("Sign", NUMBERS),
    "Tanh": unary("Tanh", FLOATS),
    "Sigmoid": unary("Sigmoid", FLOATS),
    "Floor": unary("Floor", FLOATS),
    "Relu": unary("Relu", FLOATS),
    "Identity": unary("Identity", (*NUMBERS, "bool")),
    "ZerosLike": unary("ZerosLike", NUMBERS),
    "OnesLike": unary("OnesLike", NUMBERS),
    "Sum": reduction("Sum", NUMBERS),
    "Max": reduction("Max", NUMBERS),
    "Min": reduction("Min", NUMBERS),
    "Mean": reduction("Mean", FLOATS),
    "Any": reduction("Any", ("bool",)),
    "All": reduction("All", ("bool",)),
    "Cast": cast,
    "Reshape": reshape,
    "Transpose": transpose,
    "ConcatV2": concat,
    "Pack": pack,
    "Unpack": unpack,
    "Split": split,
    "MatMul": matmul,
}

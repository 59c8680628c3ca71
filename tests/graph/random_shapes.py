"""Rows of the random graphs: what slices, gathers, pads, and what is computed from shapes."""

from __future__ import annotations

import numpy as np
from graph.random_arithmetic import Draw, broadcast
from graph.random_graphs import FLOATS, INTEGERS, NUMBERS, Drawing, Input


def expand(d: Drawing) -> None:
    x = d.pick()
    if x is not None:
        axis = d.random.randint(0, len(d.shape(x)))
        shape = (*d.shape(x)[:axis], 1, *d.shape(x)[axis:])
        d.add("ExpandDims", [x, d.integers(axis)], [(d.dtype(x), shape)])


def squeeze(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        ones = [i for i, extent in enumerate(d.shape(x)) if extent == 1]
        axes = d.random.sample(ones, d.random.randint(0, len(ones)))
        gone = axes or ones
        shape = tuple(n for i, n in enumerate(d.shape(x)) if i not in gone)
        d.add("Squeeze", [x], [(d.dtype(x), shape)], squeeze_dims=sorted(axes))


def slice_(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        begin = [d.random.randint(0, extent) for extent in d.shape(x)]
        size = [d.random.randint(0, n - b) for n, b in zip(d.shape(x), begin, strict=True)]
        given = [-1 if d.random.random() < 0.3 else n for n in size]
        shape = tuple(
            extent - b if g < 0 else n
            for extent, b, n, g in zip(d.shape(x), begin, size, given, strict=True)
        )
        kind = d.random.choice(INTEGERS)
        inputs: list[Input] = [x, d.constant(begin, kind), d.constant(given, kind)]
        d.add("Slice", inputs, [(d.dtype(x), shape)])


def strided_slice(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is None:
        return
    keys, begin, end, step, mask = [], [], [], [], {"begin": 0, "end": 0, "shrink_axis": 0}
    for i, extent in enumerate(d.shape(x)):
        b, e = d.random.randint(-5, 5), d.random.randint(-5, 5)
        s = d.random.choice((-2, -1, 1, 1, 2))
        kind = d.random.choice(("plain", "begin", "end", "shrink_axis"))
        if kind == "shrink_axis" and not 0 <= b < extent:
            kind = "plain"
        if kind == "shrink_axis":
            s, e = 1, b + 1
        if kind != "plain":
            mask[kind] |= 1 << i
        keys.append(
            b if kind == "shrink_axis"
            else slice(None if kind == "begin" else b, None if kind == "end" else e, s)
        )  # fmt: skip
        begin.append(b)
        end.append(e)
        step.append(s)
    shape = np.empty(d.shape(x), np.int8)[tuple(keys)].shape
    kind = d.random.choice(INTEGERS)
    inputs: list[Input] = [x, *(d.constant(each, kind) for each in (begin, end, step))]
    masks = {f"{name}_mask": value for name, value in mask.items()}
    d.add("StridedSlice", inputs, [(d.dtype(x), shape)], **masks)


def gather(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        axis = d.random.randrange(len(d.shape(x)))
        extent = d.shape(x)[axis]
        if extent:
            shape = (2,) if d.random.random() < 0.5 else (2, 2)
            picks = [d.random.randrange(extent) for _ in range(int(np.prod(shape)))]
            indices = d.integers(np.reshape(picks, shape))
            result = (*d.shape(x)[:axis], *shape, *d.shape(x)[axis + 1 :])
            if np.prod(result) <= 4096:
                d.add("GatherV2", [x, indices, d.integers(axis)], [(d.dtype(x), result)])


def tile(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        counts = [d.random.randint(0, 3) for _ in d.shape(x)]
        shape = tuple(n * count for n, count in zip(d.shape(x), counts, strict=True))
        if np.prod(shape) <= 4096:
            d.add("Tile", [x, d.integers(counts)], [(d.dtype(x), shape)])


def pad(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        pads = [[d.random.randint(0, 2), d.random.randint(0, 2)] for _ in d.shape(x)]
        shape = tuple(n + a + b for n, (a, b) in zip(d.shape(x), pads, strict=True))
        if np.prod(shape) <= 4096:
            d.add("Pad", [x, d.integers(pads)], [(d.dtype(x), shape)])


def select(d: Drawing) -> None:
    condition = d.pick(("bool",))
    x = d.pick()
    if condition is not None and x is not None:
        y = d.pick_like(x)
        shape = broadcast(d.shape(condition), d.shape(x))
        if shape is not None and np.prod(shape) <= 4096:
            d.add("SelectV2", [condition, x, y], [(d.dtype(x), shape)])


def about_shape(op: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.pick((*NUMBERS, "bool"))
        if x is not None:
            shape = (len(d.shape(x)),) if op == "Shape" else ()
            attrs = {} if op == "Rank" else {"out_type": d.random.choice(INTEGERS)}
            d.add(op, [x], [(attrs.get("out_type", "int32"), shape)], **attrs)

    return draw


def reshape_like(d: Drawing) -> None:
    """Shapes that are computed from shapes."""
    x = d.pick()
    if x is not None:
        shape = d.add("Shape", [x], [("int32", (len(d.shape(x)),))])[0]
        y = d.pick_like(x)
        d.add("Reshape", [y, shape], [(d.dtype(y), d.shape(y))])


def fill(d: Drawing) -> None:
    x = d.pick()
    if x is not None:
        shape = d.add("Shape", [x], [("int32", (len(d.shape(x)),))])[0]
        value = d.constant(d.random.randint(-3, 3), d.random.choice(NUMBERS))
        d.add("Fill", [shape, value], [(d.dtype(value), d.shape(x))])


def range_(d: Drawing) -> None:
    start, count, step = d.random.randint(-3, 3), d.random.randint(0, 5), d.random.randint(1, 3)
    kind = d.random.choice(INTEGERS)
    numbers = [d.constant(each, kind) for each in (start, start + count * step, step)]
    d.add("Range", list(numbers), [(kind, (count,))])


def arg(op: str) -> Draw:
    def draw(d: Drawing) -> None:
        x = d.pick(rank=1)
        if x is not None:
            axis = d.random.randrange(len(d.shape(x)))
            if d.shape(x)[axis]:
                shape = (*d.shape(x)[:axis], *d.shape(x)[axis + 1 :])
                kind = d.random.choice(INTEGERS)
                d.add(op, [x, d.integers(axis)], [(kind, shape)], output_type=kind)

    return draw


def cumulative(d: Drawing) -> None:
    x = d.pick(rank=1)
    if x is not None:
        axis = d.random.randrange(len(d.shape(x)))
        flags = {name: d.random.random() < 0.5 for name in ("exclusive", "reverse")}
        d.add("Cumsum", [x, d.integers(axis)], [(d.dtype(x), d.shape(x))], **flags)


def softmax(d: Drawing) -> None:
    x = d.pick(FLOATS, rank=1)
    if x is not None:
        d.add("Softmax", [x], [(d.dtype(x), d.shape(x))])


def one_hot(d: Drawing) -> None:
    x = d.pick(INTEGERS)
    if x is not None and np.prod(d.shape(x)) <= 256:
        kind = d.random.choice(NUMBERS)
        inputs: list[Input] = [
            x, d.constant(3, "int32"), d.constant(2, kind), d.constant(-1, kind),
        ]  # fmt: skip
        d.add("OneHot", inputs, [(kind, (*d.shape(x), 3))], axis=-1)


ROWS: dict[str, Draw] = {
    "ExpandDims": expand,
    "Squeeze": squeeze,
    "Slice": slice_,
    "StridedSlice": strided_slice,
    "GatherV2": gather,
    "Tile": tile,
    "Pad": pad,
    "SelectV2": select,
    "Shape": about_shape("Shape"),
    "Size": about_shape("Size"),
    "Rank": about_shape("Rank"),
    "Fill": fill,
    "Range": range_,
    "ArgMax": arg("ArgMax"),
    "ArgMin": arg("ArgMin"),
    "Cumsum": cumulative,
    "Softmax": softmax,
    "OneHot": one_hot,
}

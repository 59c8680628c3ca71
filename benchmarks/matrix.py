"""Every pair of frameworks, memory of every kind, every policy: against code written by hand.

A cell is one exchange: from a framework to another, of a size, in a variant (plain, `copy=False`,
a tree of 100, ...). Its ratio is our time by that of the fastest of the ways that a user would
write without dlbridge and that give the right values; each is tried before it is timed.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks.exchange import QUIET, find_versions, import_module, misaligned
from benchmarks.pages import put
from benchmarks.timing import Effort, compare, describe_machine, render
from dlbridge.exchange.adapter import adapter

SIZES = {"64 B": 2**6, "64 KiB": 2**16, "16 MiB": 2**24}
QUICK = {"64 B": Effort(rounds=3, round_ns=0.1e6)}
THOROUGH = {
    "64 B": Effort(rounds=31, round_ns=0.4e6),
    "64 KiB": Effort(rounds=31, round_ns=0.4e6),
    "16 MiB": Effort(rounds=9, round_ns=1e6),
}
TREE = 100


class Side(NamedTuple):
    """One framework, by statements: `x` is its tensor, `{}` the expression of an argument."""

    make: str  # its tensor over, or of, the NumPy array `a`
    to_array: str  # a NumPy array of `x`
    of_array: str  # its tensor of a NumPy array
    of_dlpack: str | None = None  # its tensor of an object with `__dlpack__`
    views: bool = False  # whether `make` shares the memory of `a`, so that its layout is kept


def _dlpack(framework: str) -> str:
    """Return how the framework itself takes an object with `__dlpack__`."""
    expressions = adapter(framework).expressions
    assert expressions is not None
    return expressions.from_dlpack


SIDES = {
    "numpy": Side("a", "x", "{}", _dlpack("numpy"), views=True),
    "torch": Side(
        "torch.from_numpy(a)", "x.numpy()", "torch.from_numpy({})", _dlpack("torch"), views=True
    ),
    "jax": Side("jnp.array(a)", "np.asarray(x)", "jnp.asarray({})", _dlpack("jax")),
    "tensorflow": Side("tf.constant(a)", "x.numpy()", "tf.constant({})", _dlpack("tensorflow")),
    "tvm": Side(
        "tvm_ffi.from_dlpack(a)", "np.from_dlpack(x)", _dlpack("tvm"), _dlpack("tvm"), views=True
    ),
    "mlx": Side("mx.array(a)", "np.asarray(x)", "mx.array({})"),
    "pyarrow": Side("pa.Tensor.from_numpy(a)", "x.to_numpy()", "pa.Tensor.from_numpy({})"),
    "memoryview": Side("memoryview(a)", "np.asarray(x)", ""),
}
MODULES = {
    "torch": ("torch", "torch"),
    "jax": ("jax", "jax"),
    "tensorflow": ("tf", "tensorflow"),
    "tvm": ("tvm_ffi", "tvm_ffi"),
    "mlx": ("mx", "mlx.core"),
    "pyarrow": ("pa", "pyarrow"),
}
# Consumers that mark or protect memory that must not be written.
PROTECTING = ("numpy", "jax", "tensorflow", "pyarrow")
# Producers whose tensors can be views with gaps, and those whose memory can be read-only.
STRIDED = ("numpy", "torch")
READONLY = ("numpy", "memoryview")


def _plain(nbytes: int) -> np.ndarray[Any, Any]:
    with dlbridge.aligned_numpy():
        return np.ones((nbytes // 16, 4), np.float32)


def _ordinary(nbytes: int) -> np.ndarray[Any, Any]:
    return misaligned(nbytes).reshape(-1, 4)


def _strided(nbytes: int) -> np.ndarray[Any, Any]:
    return _plain(2 * nbytes)[:, ::2]


def _readonly(nbytes: int) -> np.ndarray[Any, Any]:
    array = _plain(nbytes)
    array.flags.writeable = False
    return array


class Variant(NamedTuple):
    """A kind of memory and of call."""

    memory: Callable[[int], np.ndarray[Any, Any]]
    policy: str = ""
    sources: tuple[str, ...] = tuple(SIDES)
    copies: bool = False  # by hand, a copy is made as well
    is_tree: bool = False


VARIANTS = {
    "plain": Variant(_plain),
    "ordinary memory": Variant(_ordinary, sources=("numpy", "torch", "tvm", "memoryview")),
    "copy=False": Variant(_plain, "copy=False"),
    "copy=True": Variant(_plain, "copy=True", copies=True),
    "read-only": Variant(_readonly, 'readonly="copy"', READONLY, copies=True),
    "strided": Variant(_strided, sources=STRIDED),
    "tree of 100": Variant(_plain, is_tree=True),
}


class Cell(NamedTuple):
    """One exchange, and the times of both sides in nanoseconds."""

    source: str
    target: str
    variant: str
    size: str
    ours_ns: float
    by_hand_ns: float
    by_hand: str

    @property
    def ratio(self) -> float:
        """Our time by the other."""
        return self.ours_ns / self.by_hand_ns


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print all cells, and what else is compared; return the figures."""
    efforts = QUICK if quick else THOROUGH
    names = make_names()
    cells = list(measure(names, efforts))
    rows = measure_others(names, efforts["64 B"])
    worst = sorted(cells, key=lambda cell: -cell.ratio)
    print(*(f"{name} {value}" for name, value in find_versions().items()), sep=", ")
    print_cells("worst cells", worst[:20])
    print_pairs(cells)
    above = sum(cell.ratio > 1 for cell in cells)
    print(f"\n{len(cells)} cells, {above} above 1.0, {sum(c.ratio > 1.1 for c in cells)} above 1.1")
    print_others(rows)
    return {
        "machine": describe_machine(),
        "versions": find_versions(),
        "cells": [{**cell._asdict(), "ratio": round(cell.ratio, 3)} for cell in worst],
        "others": rows,
    }


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed is absent."""
    os.environ |= QUIET | os.environ
    names: dict[str, Any] = {name: getattr(dlbridge, name) for name in dlbridge.__all__}
    names["np"] = np
    for short, module in MODULES.values():
        if found := import_module(module):
            names[short] = found
    if "jax" in names:
        names["jnp"] = names["jax"].numpy
    return names


def is_here(framework: str, names: dict[str, Any]) -> bool:
    """Return whether a framework is installed."""
    return framework not in MODULES or MODULES[framework][0] in names


# ---- cells -------------------------------------------------------------------------------------


def measure(names: dict[str, Any], efforts: dict[str, Effort]) -> Iterator[Cell]:
    """Measure each cell that exists."""
    targets = [name for name in SIDES if SIDES[name].of_array and is_here(name, names)]
    for variant, kind in VARIANTS.items():
        for size, effort in efforts.items():
            if kind.is_tree and size != "64 B":
                continue
            for source in filter(lambda name: is_here(name, names), kind.sources):
                for target in targets:
                    if target != source:
                        scope = names | make_tensor(source, kind, SIZES[size], names)
                        cell = time_cell(source, target, kind, scope, effort)
                        if cell is not None:
                            yield Cell(source, target, variant, size, *cell)


def make_tensor(source: str, kind: Variant, nbytes: int, names: dict[str, Any]) -> dict[str, Any]:
    """Return the names of a tensor, `x`, and of a tree of them."""
    array = kind.memory(nbytes)
    x = eval(SIDES[source].make, names | {"a": array})
    if not kind.is_tree:
        return {"x": x, "array": array}
    tree = {f"leaf{i}": eval(SIDES[source].make, names | {"a": array}) for i in range(TREE)}
    return {"x": x, "tree": tree, "array": array}


def time_cell(
    source: str, target: str, kind: Variant, scope: dict[str, Any], effort: Effort
) -> tuple[float, float, str] | None:
    """Return both times and the fastest way by hand; None where one side refuses the exchange."""
    comma = ", " if kind.policy else ""
    ours = f"to_{target}(x{comma}{kind.policy})"
    ways = [way for way in by_hand(source, target, kind) if is_right(way, target, scope)]
    if not ways or not is_right(ours, target, scope):
        return None
    if target == "jax" and not kind.is_tree:  # which may copy after it has returned
        ours, *ways = (f"{each}.block_until_ready()" for each in (ours, *ways))
    if kind.is_tree:
        ours = f'convert_tree(tree, "{target}")'
        ways = [f"{{key: {way} for key, x in tree.items()}}" for way in ways]
    ours_ns, *times = compare([ours, *ways], scope, effort)
    fastest = min(range(len(ways)), key=times.__getitem__)
    return ours_ns, times[fastest], ways[fastest]


def by_hand(source: str, target: str, kind: Variant) -> Iterator[str]:
    """Yield the ways that a user would write."""
    here, there = SIDES[source], SIDES[target]
    array = here.to_array
    copies = kind.copies and not ("readonly" in kind.policy and target in PROTECTING)
    if copies:
        # A consumer that copies by itself is not given a copy.
        itself = {"jax": "jnp.array({})", "tensorflow": "tf.constant({})", "mlx": "mx.array({})"}
        yield (
            itself[target].format(array)
            if target in itself
            else there.of_array.format(f"{array}.copy()")
        )
        if target == "torch" and source != "torch" and "readonly" not in kind.policy:
            yield f"torch.from_numpy({array}).clone()"
        return
    yield there.of_array.format(array)
    # TensorFlow aborts on a capsule of memory that is not aligned, or has gaps.
    if there.of_dlpack and here.of_dlpack and (target != "tensorflow" or kind.memory is _plain):
        yield there.of_dlpack.format("x")


def is_right(statement: str, target: str, scope: dict[str, Any]) -> bool:
    """Return whether the statement works here and gives the values."""
    try:
        result = eval(statement, scope)
        values = eval(SIDES[target].to_array, scope | {"x": result})
    except Exception:  # noqa: BLE001  (a framework refuses as it likes)
        return False
    return bool(np.array_equal(np.asarray(values), scope["array"]))


# ---- what is not an exchange of a pair ---------------------------------------------------------

OTHERS = [
    ("explain(a, 'torch')", "torch.from_numpy(a)", None),
    ("equal(T, U)", "torch.equal(t, u)", None),
    ("T[1:3]", "t[1:3]", 0.5),
    ("T.reshape(16)", "t.reshape(16)", 0.5),
    ("repr(T)", "repr(t)", None),
]


def measure_others(names: dict[str, Any], effort: Effort) -> list[dict[str, Any]]:
    """Measure calls of Tensors, and a block of receipts, against torch."""
    if "torch" not in names:
        return []
    array = np.ones((4, 4), np.float32)
    scope = names | {"a": array, "T": dlbridge.from_dlpack(array), "t": names["torch"].ones(4, 4)}
    scope |= {"U": dlbridge.from_dlpack(array.copy()), "u": names["torch"].ones(4, 4)}
    rows = []
    for ours, theirs, target in OTHERS:
        ours_ns, theirs_ns = compare([ours, theirs], scope, effort)
        rows.append(_row(ours, theirs, ours_ns, theirs_ns, target))
    block = "with receipts():\n    to_torch(a)"
    ours_ns, theirs_ns = compare([block, "to_torch(a)"], scope, effort)
    rows.append(_row("with receipts(): to_torch(a)", "to_torch(a)", ours_ns, theirs_ns, None))
    return rows


def _row(ours: str, theirs: str, ours_ns: float, theirs_ns: float, target: float | None) -> Any:
    return {
        "what": ours,
        "against": theirs,
        "ours_ns": round(ours_ns, 1),
        "theirs_ns": round(theirs_ns, 1),
        "ratio": round(ours_ns / theirs_ns, 3),
        "target": target,
    }


# ---- text and picture --------------------------------------------------------------------------


def print_cells(title: str, cells: list[Cell]) -> None:
    """Print cells, one a line."""
    rows = [
        [
            f"{cell.source} to {cell.target}",
            f"{cell.variant}, {cell.size}",
            cell.by_hand,
            f"{cell.ours_ns:,.0f}",
            f"{cell.by_hand_ns:,.0f}",
            f"{cell.ratio:.2f}",
        ]
        for cell in cells
    ]
    header = [title, "", "by hand", "ours/ns", "by hand/ns", "ratio"]
    print("", render(header, rows), sep="\n")


def columns(cells: list[Cell]) -> list[tuple[str, str]]:
    """Return variant and size of each column."""
    return list(dict.fromkeys((cell.variant, cell.size) for cell in cells))


def print_pairs(cells: list[Cell]) -> None:
    """Print the ratios of all cells: a line for each pair, a column for variant and size."""
    by_place = {(c.source, c.target, c.variant, c.size): c for c in cells}
    pairs = list(dict.fromkeys((cell.source, cell.target) for cell in cells))
    pairs.sort(key=lambda pair: -max(c.ratio for c in cells if (c.source, c.target) == pair))
    across = columns(cells)
    rows = []
    for pair in pairs:
        found = [by_place.get((*pair, *place)) for place in across]
        rows.append([*pair, *("" if cell is None else f"{cell.ratio:.2f}" for cell in found)])
    short = {"ordinary memory": "ordinary", "tree of 100": "tree"}
    header = ["from", "to", *(f"{short.get(variant, variant)} {size}" for variant, size in across)]
    print("", render(header, rows), sep="\n")


def print_others(rows: list[dict[str, Any]]) -> None:
    """Print the calls that are no exchange."""
    lines = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            f"{row['theirs_ns']:,.0f}",
            f"{row['ratio']:.2f}",
            "" if row["target"] is None else f"{row['target']:.2f}",
        ]
        for row in rows
    ]
    print(
        "",
        render(["dlbridge", "against", "ours/ns", "theirs/ns", "ratio", "at most"], lines),
        sep="\n",
    )


# From fast to slow: green, white at 1, red.
_SHADES = [(0.1, "#1a7f37"), (0.3, "#4ac26b"), (0.6, "#aceebb"), (1.0, "#dafbe1")]
_SLOWER = [(1.1, "#fff8c5"), (1.5, "#ffd8b5"), (3.0, "#ff9a7b"), (float("inf"), "#cf222e")]


def draw(figures: list[dict[str, Any]]) -> str:
    """Return the heat map of the ratios as SVG; `figures` as `run` returns them."""
    cells = read_cells(figures)
    across = _places(cells)
    by_place = {(c.source, c.target, c.variant, c.size): c for c in cells}
    pairs = list(dict.fromkeys((cell.source, cell.target) for cell in cells))
    wide, high, left, top = 46, 18, 185, 130
    width, height = left + wide * len(across) + 60, top + high * len(pairs) + 10
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}">',
        "<style>text {font: 11px sans-serif}</style>",
        f'<rect width="{width}" height="{height}" fill="#ffffff"/>',
    ]
    for index, (variant, size) in enumerate(across):
        x = left + wide * index + wide // 2
        parts.append(
            f'<text transform="translate({x} {top - 6}) rotate(-45)">{variant}, {size}</text>'
        )
    for line, pair in enumerate(pairs):
        y = top + high * line
        parts.append(
            f'<text x="{left - 6}" y="{y + 13}" text-anchor="end">{pair[0]} → {pair[1]}</text>'
        )
        for index, place in enumerate(across):
            cell = by_place.get((*pair, *place))
            if cell is None:
                continue
            shade = next(color for bound, color in _SHADES + _SLOWER if cell.ratio <= bound)
            ink = "#ffffff" if shade in (_SHADES[0][1], _SLOWER[-1][1]) else "#1f2328"
            x = left + wide * index
            parts.append(
                f'<rect x="{x}" y="{y}" width="{wide - 1}" height="{high - 1}" fill="{shade}"/>'
                f'<text x="{x + wide / 2 - 0.5}" y="{y + 13}" text-anchor="middle" '
                f'fill="{ink}">{cell.ratio:.2f}</text>'
            )
    return "\n".join([*parts, "</svg>", ""])


# ---- pages -------------------------------------------------------------------------------------

# Why a cell may be above 1.0: source, target, and what variant and size must be; "" is any. The
# first that fits tells.
_NOISE = 1.05
_BIG = "16 MiB"
_COPIED = "each side copies once, as fast as the memory then is"
_REASONS: list[tuple[str, str, tuple[str, ...], str]] = [
    ("", "torch", ("copy=True", _BIG), "PyTorch copies with several threads"),
    ("numpy", "torch", ("read-only", _BIG), "PyTorch copies with several threads"),
    ("", "", ("copy=True", _BIG), _COPIED),
    ("", "mlx", (_BIG,), _COPIED),
    ("torch", "tvm", (), "tvm_ffi reads PyTorch's exchange table; dlbridge owns it between"),
    ("numpy", "tvm", (), "one function makes the tensor; dlbridge owns it between"),
    ("mlx", "numpy", (), "NumPy takes MLX's buffer, which later writes change; dlbridge a capsule"),
    ("jax", "", (), "jaxlib makes a capsule; dlbridge asks for the device first and owns it"),
    ("", "numpy", (), "one function makes the array; dlbridge adds the owner of the memory"),
    ("", "pyarrow", (), "dlbridge calls the same function, `pyarrow.Tensor.from_numpy`"),
]


def find_reason(cell: Cell) -> str:
    """Return why dlbridge is slower in a cell, as far as it is known."""
    for source, target, where, reason in _REASONS:
        fits = source in ("", cell.source) and target in ("", cell.target)
        if fits and {cell.variant, cell.size}.issuperset(where):
            return reason
    return "within the noise of two runs" if cell.ratio <= _NOISE else "not explained"


def read_cells(figures: list[dict[str, Any]]) -> list[Cell]:
    """Return the cells of what `run` returned, the worst first."""
    return [Cell(**{name: row[name] for name in Cell._fields}) for row in figures]


def _places(cells: list[Cell]) -> list[tuple[str, str]]:
    """Return the variants and sizes that there are, in their order."""
    there = {(cell.variant, cell.size) for cell in cells}
    return [place for kind in VARIANTS for size in SIZES if (place := (kind, size)) in there]


def _markdown(header: list[str], rows: list[list[str]], words: int) -> str:
    marks = ["---" if index < words else "--:" for index in range(len(header))]
    lines = [" | ".join(row) for row in [header, marks, *rows]]
    return "\n".join(f"| {line} |" for line in lines)


def tell_worst(figures: dict[str, Any]) -> str:
    """Return a table of the cells above 1.0 with their reasons, the worst first."""
    cells = [cell for cell in read_cells(figures["cells"]) if cell.ratio > 1]
    rows = [
        [
            f"{cell.source} to {cell.target}",
            f"{cell.variant}, {cell.size}",
            f"`{cell.by_hand}`",
            find_reason(cell),
            f"{cell.ours_ns:,.0f}",
            f"{cell.by_hand_ns:,.0f}",
            f"{cell.ratio:.2f}",
        ]
        for cell in cells
    ]
    header = ["cell", "of", "by hand", "why", "ours/ns", "by hand/ns", "ratio"]
    return _markdown(header, rows, 4)


def tell_all(figures: dict[str, Any]) -> str:
    """Return the ratios of all cells: a line for each pair, a column for variant and size."""
    cells = read_cells(figures["cells"])
    by_place = {(c.source, c.target, c.variant, c.size): c for c in cells}
    across = _places(cells)
    rows = []
    for pair in sorted({(cell.source, cell.target) for cell in cells}):
        found = [by_place.get((*pair, *place)) for place in across]
        rows.append([*pair, *("" if cell is None else f"{cell.ratio:.2f}" for cell in found)])
    return _markdown(["from", "to", *(f"{kind}, {size}" for kind, size in across)], rows, 2)


def count_cells(figures: dict[str, Any]) -> str:
    """Return how many cells there are, and on what they were measured."""
    ratios = [cell.ratio for cell in read_cells(figures["cells"])]
    below, near = (sum(ratio <= most for ratio in ratios) for most in (1, 1.1))
    versions = ", ".join(f"{name} {value}" for name, value in figures["versions"].items())
    return (
        f"Of {len(ratios)} cells, {below} are at most 1.0 and {near} at most 1.1 "
        f"({figures['machine']['processor']}, {figures['machine']['cores']} cores, {versions})."
    )


def write_pages(figures: dict[str, Any], root: Path) -> None:
    """Put the figures into docs/performance.md."""
    above = f"{count_cells(figures)}\n\n{tell_worst(figures)}"
    put(root / "docs/performance.md", "matrix: cells above", above)
    put(root / "docs/performance.md", "matrix: all cells", tell_all(figures))

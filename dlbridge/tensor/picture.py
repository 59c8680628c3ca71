"""Where the elements of a strided tensor lie in memory: the same plan as words and as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dlbridge._core import native

_MOST_SLOTS = 96
_PER_ROW = 16


class Layout(NamedTuple):
    """How strides place the elements of a shape.

    Attributes:
        kind: "row-major", "column-major", "permuted" (dense, with the axes in another order),
            "strided" (with gaps), "overlapping" (several indices share memory) or "empty". A
            tensor with at most one element is "row-major".
        is_reversed: whether some axis runs towards lower addresses.
        low, high: the least and the greatest offset of an element from the first, in elements.
    """

    kind: str
    is_reversed: bool
    low: int
    high: int


def read_layout(shape: Sequence[int], strides: Sequence[int]) -> Layout:
    """Return the layout of a shape in elements and of strides in elements.

    Strides whose sums may meet count as overlapping, also where no two indices do meet.

    Example:
        >>> read_layout((2, 3), (1, 2)).kind, read_layout((4,), (-2,))
        ('column-major', Layout(kind='strided', is_reversed=True, low=-6, high=0))
    """
    if 0 in shape:
        return Layout("empty", False, 0, 0)
    axes = [(extent, step) for extent, step in zip(shape, strides, strict=True) if extent > 1]
    reaches = [(extent - 1) * step for extent, step in axes]
    low, high = sum(min(each, 0) for each in reaches), sum(max(each, 0) for each in reaches)
    is_reversed = any(step < 0 for _, step in axes)
    reach, is_dense = 0, True
    for step, extent in sorted((abs(step), extent) for extent, step in axes):
        if step <= reach:
            return Layout("overlapping", is_reversed, low, high)
        is_dense = is_dense and step == reach + 1
        reach += (extent - 1) * step
    kind = "strided" if not is_dense else _order([step for _, step in axes])
    return Layout(kind, is_reversed, low, high)


def _order(steps: list[int]) -> str:
    """Return the order of the axes of a dense layout."""
    sizes = [abs(step) for step in steps]
    if sizes == sorted(sizes, reverse=True):
        return "row-major"
    return "column-major" if sizes == sorted(sizes) else "permuted"


def read_slots(
    shape: Sequence[int], strides: Sequence[int], count: int
) -> dict[int, tuple[int, ...]]:
    """Return which element lies in which of the lowest `count` slots of one element each.

    Where several elements share a slot, the one with the lowest index along the axes of stride 0
    or with the first index found is named.

    Example:
        >>> read_slots((2, 2), (-3, 1), 8)
        {0: (1, 0), 1: (1, 1), 3: (0, 0), 4: (0, 1)}
    """
    if 0 in shape:
        return {}
    slots: dict[int, tuple[int, ...]] = {0: ()}
    for extent, stride in zip(shape, strides, strict=True):
        step = abs(stride)
        fit = min(extent, -(-count // step)) if step else 1
        found: dict[int, tuple[int, ...]] = {}
        for place, index in slots.items():
            for i in range(fit):
                if place + i * step < count:
                    found.setdefault(
                        place + i * step, (*index, i if stride >= 0 else extent - 1 - i)
                    )
        slots = found
    return slots


def draw(shape: Sequence[int], strides: Sequence[int], title: str) -> str:
    """Return an SVG element: the memory from the lowest element on, one slot for each element.

    Elements show their index, gaps have a dashed border, the first element of the tensor a heavy
    one. At most 96 slots are drawn; below them stands how many more there are. The colours are
    those of the text around it, so that it reads on dark pages as well.

    Args:
        shape: extents of a tensor.
        strides: in elements.
        title: what screen readers read.
    """
    layout = read_layout(shape, strides)
    total = layout.high - layout.low + 1 if layout.kind != "empty" else 0
    shown = min(total, _MOST_SLOTS)
    slots = read_slots(shape, strides, shown)
    longest = max((len(_label(index)) for index in slots.values()), default=1)
    wide, high = max(28, 7 * longest + 8), 26
    rows = -(-shown // _PER_ROW)
    width = wide * min(shown, _PER_ROW) + 2
    height = high * rows + 2 + (20 if total > shown or not total else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{max(width, 240)}" height="{height}"',
        f'viewBox="0 0 {max(width, 240)} {height}"',
        'role="img" font-family="monospace" font-size="11" fill="currentColor">',
        f"<title>{escape(title)}</title>",
    ]
    for place in range(shown):
        x, y = 1 + wide * (place % _PER_ROW), 1 + high * (place // _PER_ROW)
        index = slots.get(place)
        parts.append(_slot(x, y, wide, high, index, is_first=place == -layout.low))
    text = "no elements" if not total else f"… and {total - shown:,} more slots"
    if total > shown or not total:
        parts.append(f'<text x="2" y="{height - 6}">{text}</text>')
    return "\n".join([*parts, "</svg>"])


def show(tensor: native.TensorBase, text: str) -> str:
    """Return HTML for a notebook: a text of the values, the fields of a tensor, its memory."""
    owner = {"allocator": "dlbridge", "managed": "a DLPack producer", "object": "a Python object"}
    fields = {
        "dtype": tensor.dtype,
        "shape": tensor.shape,
        "strides": f"{tensor.strides} elements, {read_layout(tensor.shape, tensor.strides).kind}",
        "device": tensor.device,
        "read-only": tensor.readonly,
        "memory of": owner.get(tensor.buffer.kind, tensor.buffer.kind),
    }
    cells = "".join(
        f'<tr><th style="text-align:left">{name}</th>'
        f'<td style="text-align:left"><code>{escape(str(value))}</code></td></tr>'
        for name, value in fields.items()
    )
    picture = draw(tensor.shape, tensor.strides, f"memory of shape {tensor.shape}")
    return f"<pre>{escape(text)}</pre><table>{cells}</table>{picture}"


def _label(index: tuple[int, ...]) -> str:
    return ",".join(map(str, index)) if index else "·"


def _slot(
    x: int, y: int, wide: int, high: int, index: tuple[int, ...] | None, *, is_first: bool
) -> str:
    box = f'x="{x}" y="{y}" width="{wide - 3}" height="{high - 4}" rx="3"'
    if index is None:
        return (
            f'<rect {box} fill="none" stroke="currentColor" stroke-dasharray="2 3" opacity=".4"/>'
        )
    border = 'stroke="currentColor" stroke-width="2"' if is_first else 'stroke="none"'
    middle = x + (wide - 3) / 2
    return (
        f'<rect {box} fill="#4c8eda" fill-opacity=".3" {border}/>'
        f'<text x="{middle:g}" y="{y + 15}" text-anchor="middle">{_label(index)}</text>'
    )

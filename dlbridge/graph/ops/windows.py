"""Windows that slide over the dimensions of an image: extents of results, padding, layouts.

Static shapes and the kernels of convolutions and pools both ask here, so they cannot disagree.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Node
from dlbridge.signals import not_from_handler


class Axis(NamedTuple):
    """A window along one dimension.

    Attributes:
        size: extent of the input.
        window: number of taps.
        stride: distance of two neighbouring windows.
        dilation: distance of two neighbouring taps.
        before, after: elements of padding at the two ends.
        output: extent of the result.
    """

    size: int
    window: int
    stride: int
    dilation: int
    before: int
    after: int
    output: int

    @property
    def is_trivial(self) -> bool:
        """Whether the result is the input."""
        return (self.window, self.stride, self.before, self.after) == (1, 1, 0, 0)

    def tap(self, index: int) -> slice:
        """Return which elements of the padded input the tap of that index sees."""
        start = index * self.dilation
        return slice(start, start + max((self.output - 1) * self.stride + 1, 0), self.stride)

    def inner_tap(self, index: int) -> tuple[slice, slice]:
        """Return the input elements under a tap, without padding, and the results they add to."""
        start = index * self.dilation - self.before
        first = max(-(start // self.stride), 0)
        last = min((self.size - 1 - start) // self.stride + 1, self.output)
        if last <= first:
            return slice(0, 0), slice(0, 0)
        begin = start + first * self.stride
        return (
            slice(begin, begin + (last - first - 1) * self.stride + 1, self.stride),
            slice(first, last),
        )


def output_extent(
    size: int, window: int, stride: int, dilation: int, padding: bytes, explicit: tuple[int, int]
) -> int:
    """Return how many windows there are.

    Args:
        size: extent of the input.
        window: number of taps.
        stride: distance of two neighbouring windows.
        dilation: distance of two neighbouring taps.
        padding: b"SAME" (as many windows as the stride makes of the input), b"VALID" (none leaves
            the input), or b"EXPLICIT".
        explicit: padding at both ends, for b"EXPLICIT".

    Raises:
        ValueError: less than none.
    """
    if padding == b"SAME":
        return -(-size // stride)
    reach = (window - 1) * dilation + 1
    if padding == b"EXPLICIT":
        size += sum(explicit)
    extent = (size - reach + stride) // stride
    if extent < 0:
        raise ValueError(
            f"Computed output size would be negative: {extent} [input_size: {size}, "
            f"effective_filter_size: {reach}, stride: {stride}]"
        )
    return extent


def axis_of(
    size: int, window: int, stride: int, dilation: int, padding: bytes, explicit: tuple[int, int]
) -> Axis:
    """Return the Axis of such a window; arguments and errors as in `output_extent`."""
    output = output_extent(size, window, stride, dilation, padding, explicit)
    before, after = explicit if padding == b"EXPLICIT" else (0, 0)
    if padding == b"SAME":
        total = max((output - 1) * stride + (window - 1) * dilation + 1 - size, 0)
        before, after = total // 2, total - total // 2
    return Axis(size, window, stride, dilation, before, after, output)


class Layout(NamedTuple):
    """How the attributes of a convolution or a pool read, dimension by dimension of its input.

    Attributes:
        channels_first: whether channels are dimension 1; else they are the last.
        padding: b"SAME", b"VALID" or b"EXPLICIT".
        strides, dilations: one for each dimension, batch and channels included.
        explicit: padding before and after each dimension.
    """

    channels_first: bool
    padding: bytes
    strides: tuple[int, ...]
    dilations: tuple[int, ...]
    explicit: tuple[tuple[int, int], ...]

    @property
    def rank(self) -> int:
        """The rank of the input."""
        return len(self.strides)

    @property
    def channel(self) -> int:
        """The dimension of the channels."""
        return 1 if self.channels_first else self.rank - 1

    @property
    def spatial(self) -> range:
        """The dimensions over which windows slide."""
        return range(2, self.rank) if self.channels_first else range(1, self.rank - 1)

    def axis(self, dimension: int, size: int, window: int) -> Axis:
        """Return the Axis along a dimension of the input."""
        return axis_of(
            size,
            window,
            self.strides[dimension],
            self.dilations[dimension],
            self.padding,
            self.explicit[dimension],
        )

    def axes(self, shape: Sequence[int], windows: Sequence[int]) -> tuple[Axis, ...]:
        """Return the Axis of each spatial dimension, of an input and a window of these extents."""
        return tuple(
            [
                self.axis(dimension, shape[dimension], window)
                for dimension, window in zip(self.spatial, windows, strict=True)
            ]
        )


def read_layout(attrs: Mapping[str, Any], strides: Sequence[int] | None = None) -> Layout:
    """Return the Layout in the attributes of an operation, or with the strides given.

    Raises:
        ValueError: a count of strides, dilations or paddings that does not fit; a data format that
            no kernel knows; a stride or dilation below 1.
    """
    data_format = attrs.get("data_format", b"NHWC")
    rank = len(data_format)
    if rank not in {4, 5}:
        raise ValueError(f"data_format: required NHWC, NCHW or NDHWC …, got {data_format!r}")
    steps = tuple(attrs["strides"] if strides is None else strides)
    dilations = tuple(attrs.get("dilations") or (1,) * rank)
    pairs = tuple(attrs.get("explicit_paddings") or (0,) * 2 * rank)
    for what, values, count in (
        ("strides", steps, rank),
        ("dilations", dilations, rank),
        ("explicit_paddings", pairs, 2 * rank),
    ):
        if len(values) != count:
            raise ValueError(f"{what}: required {count} values, got {len(values)}: {list(values)}")
    if min(steps) < 1 or min(dilations) < 1:
        raise ValueError(
            f"strides and dilations must be positive, got {list(steps)} and {list(dilations)}"
        )
    if min(pairs) < 0:
        raise ValueError(f"explicit_paddings must not be negative, got {list(pairs)}")
    explicit = tuple(zip(pairs[::2], pairs[1::2], strict=True))
    return Layout(data_format[1:2] == b"C", attrs["padding"], steps, dilations, explicit)


def channels_last(xp: Any, x: Any) -> Any:
    """Return a view of images with channels in dimension 1 that has them last."""
    rank = len(x.shape)
    return xp.permute_dims(x, (0, *range(2, rank), 1))


def channels_first(xp: Any, x: Any) -> Any:
    """Return a view of images with channels last that has them in dimension 1."""
    rank = len(x.shape)
    return xp.permute_dims(x, (0, rank - 1, *range(1, rank - 1)))


def extended(
    xp: Any, x: Any, dimension: int, before: int, after: int, value: Any = 0, device: object = None
) -> Any:
    """Return `x` with elements of `value` added at both ends of a dimension, or `x` itself."""
    if not (before or after):
        return x
    parts = [x]
    for position, count in ((0, before), (2, after)):
        if count:
            shape = (*x.shape[:dimension], count, *x.shape[dimension + 1 :])
            parts.insert(position, xp.full(shape, value, dtype=x.dtype, device=device))
    return xp.concat(parts, axis=dimension)


def padded(xp: Any, x: Any, axes: Sequence[Axis], device: object = None) -> Any:
    """Return images with channels last, with zeros around them; `x` itself where none are."""
    for dimension, axis in enumerate(axes, 1):
        x = extended(xp, x, dimension, axis.before, axis.after, 0, device)
    return x


def tap(x: Any, axes: Sequence[Axis], indices: Sequence[int]) -> Any:
    """Return what one tap of the windows sees of padded images with channels last, as a view."""
    return x[
        (slice(None), *[axis.tap(i) for axis, i in zip(axes, indices, strict=True)], slice(None))
    ]


def layout_of(node: Node, strides: Sequence[int] | None = None) -> Layout:
    """Return the Layout of a node's attributes, checked.

    Raises:
        InvalidArgumentError: what slides over batch or channels.
    """
    try:
        layout = read_layout(node.attrs, strides)
    except not_from_handler(ValueError) as error:
        raise InvalidArgumentError(f"{node.type}: {error}", node) from None
    if "ksize" not in node.attrs and node.type != "MaxPoolV2":
        for what, values in (("strides", layout.strides), ("dilations", layout.dilations)):
            if values[0] != 1 or values[layout.channel] != 1:
                raise InvalidArgumentError(
                    f"{node.type}: {what} in the batch and depth dimensions must be 1, got "
                    f"{list(values)}",
                    node,
                )
    return layout

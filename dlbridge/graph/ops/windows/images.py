"""Arrays of images: channels moved to the end and back, padding, in any framework."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.ops.windows.geometry import Axis


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

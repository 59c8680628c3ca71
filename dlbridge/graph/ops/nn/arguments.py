"""What functions of `tf.nn` share: strides, windows and paddings as users give them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.tensor import Tensor

__all__: list[str] = []


def one_of(call: str, **alternatives: Any) -> Any:
    """Return the one argument that was given, of two that are names of the same."""
    given = {name: value for name, value in alternatives.items() if value is not None}
    if len(given) != 1:
        names = " or ".join(alternatives)
        raise ValueError(f"{call}: required one of {names}, got {' and '.join(given) or 'none'}")
    return next(iter(given.values()))


def per_dimension(value: Any, count: int, data_format: str, call: str) -> list[int]:
    """Return strides, dilations or window extents, one for each dimension of the images.

    Args:
        value: None (all 1), one number for all spatial dimensions, one for each, or one for each
            dimension of the images.
        count: how many spatial dimensions there are.
        data_format: of the images.
        call: what to call it in errors.

    Raises:
        ValueError: another count.
    """
    if value is None:
        value = 1
    numbers = [int(each) for each in value] if isinstance(value, Sequence) else [int(value)]
    if len(numbers) == 1:
        numbers *= count
    if len(numbers) == count + 2:
        return numbers
    if len(numbers) != count:
        raise ValueError(f"{call} should be of length 1, {count} or {count + 2} but was {numbers}")
    return [1, 1, *numbers] if data_format[1:2] == "C" else [1, *numbers, 1]


def padding_attributes(padding: Any, call: str) -> dict[str, Any]:
    """Return the attributes for a padding: "SAME", "VALID", or pairs for each dimension.

    Raises:
        ValueError: something else.
    """
    if isinstance(padding, str | bytes):
        text = padding if isinstance(padding, bytes) else padding.encode()
        return {"padding": text}
    try:
        pairs = [(int(before), int(after)) for before, after in padding]
    except (TypeError, ValueError):
        raise ValueError(
            f'{call}: padding must be "SAME", "VALID" or four pairs of numbers, got {padding!r}'
        ) from None
    if len(pairs) != 4:
        raise ValueError(f"{call}: padding must have four pairs, got {padding!r}")
    return {"padding": b"EXPLICIT", "explicit_paddings": [each for pair in pairs for each in pair]}


def result(op_type: str, inputs: Sequence[Any], name: str | None = None, **attrs: Any) -> Tensor:
    """Create an operation and return its first result."""
    return apply(op_type, inputs, attrs, name).outputs[0]

"""The policies of an exchange: what may be copied, shared, detached, and what must be refused."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn

import numpy as np

from dlbridge.cuda.streams import NONE, as_stream
from dlbridge.device import Device
from dlbridge.errors import ArgumentError

_CHOICES: dict[str, tuple[object, ...]] = {
    "readonly": ("respect", "share", "copy"),
    "immutable": ("share", "respect"),
    "grad": ("refuse", "detach"),
    "layout": (None, "any", "contiguous"),
    "narrow": (None, "checked"),
}


class Policy:
    """One exchange's policies, checked.

    Attributes:
        device: the Device the result must be on, or None for where the data is.
        copy: None (share, copy only where it must), False (share or refuse), True (always copy).
        readonly: for memory flagged read-only that the consumer cannot protect: "respect" refuses,
            "share" shares it anyway, "copy" copies it.
        immutable: "share" hands out the memory of JAX and TensorFlow values as it is, "respect"
            treats it as read-only.
        grad: "refuse" a tensor that requires a gradient, or "detach" it.
        layout: None, or "contiguous" for compact row-major memory, copied if it must; "any" is kept
            as None.
        narrow: None refuses 64-bit numbers where the consumer has none; "checked" copies them to 32
            bits, complex128 to complex64. Integers must fit, finite values must stay finite; the
            rest is rounded.
        stream: the stream on which the consumer works, for memory of a device that has streams: its
            number, -1 for no order at all, or None for the consumer's current one.
        kept: the object that `stream` was given as, which keeps the stream alive, or None.
        call: what was called, for error texts.
    """

    __slots__ = (
        "call",
        "copy",
        "device",
        "grad",
        "immutable",
        "kept",
        "layout",
        "narrow",
        "readonly",
        "stream",
    )

    def __init__(
        self,
        call: str,
        *,
        device: object = None,
        copy: bool | None = None,
        readonly: str = "respect",
        immutable: str = "share",
        grad: str = "refuse",
        layout: str | None = None,
        narrow: str | None = None,
        stream: Any = None,
    ) -> None:
        self.call = call
        self.copy = _check_copy(call, copy)
        self.readonly = readonly
        self.immutable = immutable
        self.grad = grad
        self.layout = layout
        self.narrow = narrow
        self.stream = _check_stream(call, stream)
        self.kept = None if stream is None or isinstance(stream, (int, str)) else stream
        for name, choices in _CHOICES.items():
            value: object = getattr(self, name)
            if not (value is None or isinstance(value, str)) or value not in choices:
                _refuse(call, name, choices, value)
        if layout == "any":
            self.layout = None
        self.device = None if device is None else Device(device)


def _check_copy(call: str, copy: Any) -> bool | None:
    """Return `copy`; by identity, since 1 == True, and an array equals nothing in particular."""
    if isinstance(copy, np.bool_):
        copy = bool(copy)
    if copy is not None and copy is not True and copy is not False:
        _refuse(call, "copy", (None, True, False), copy)
    return copy


def _check_stream(call: str, stream: Any) -> int | None:
    """Return the number of a stream; 0 is refused only where there is CUDA memory."""
    if stream is None or (isinstance(stream, str) and stream == "current"):
        return None
    if isinstance(stream, str) and stream == "none":
        return NONE
    if hasattr(stream, "__index__") and not isinstance(stream, bool) and index(stream) in (NONE, 0):
        return index(stream)
    try:
        return as_stream(stream)
    except ArgumentError:
        raise ArgumentError(
            f'{call}: stream must be "current", "none", the integer of a stream as in __dlpack__ '
            f"or the stream of a framework, got {stream!r}"
        ) from None


def _refuse(call: str, name: str, choices: tuple[object, ...], value: object) -> NoReturn:
    allowed = ", ".join(map(repr, choices))
    raise ArgumentError(f"{call}: {name} must be one of {allowed}, got {value!r}")


DEFAULT = Policy("default")

"""The policies of an exchange: what may be copied, shared, detached, and what must be refused."""

from __future__ import annotations

from operator import index
from typing import Any, NoReturn

import numpy as np

from dlbridge.device import Device
from dlbridge.errors import ArgumentError

_CHOICES: dict[str, tuple[object, ...]] = {
    "readonly": ("respect", "share", "copy"),
    "immutable": ("share", "respect"),
    "grad": ("refuse", "detach"),
    "layout": (None, "any", "contiguous"),
}


class Policy:
    """One exchange's policies, checked.

    Attributes:
        device: the Device the result must be on, or None for where the data is.
        copy: None (share, copy only where it must), False (share or refuse), True (always copy).
        readonly: for memory flagged read-only that the consumer cannot protect: "respect" refuses,
            "share" hands it out all the same, "copy" copies it.
        immutable: "share" hands out the memory of JAX and TensorFlow values as it is, "respect"
            treats it as read-only.
        grad: "refuse" a tensor that requires a gradient, or "detach" it.
        layout: None, or "contiguous" for compact row-major memory, copied if it must; None is kept
            for "any", too.
        stream: the consumer's stream for a producer on a device with streams, or None.
    """

    __slots__ = ("copy", "device", "grad", "immutable", "layout", "readonly", "stream")

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
        stream: int | None = None,
    ) -> None:
        self.copy = _check_copy(call, copy)
        self.readonly = readonly
        self.immutable = immutable
        self.grad = grad
        self.layout = layout
        self.stream = _check_stream(call, stream)
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
    if stream is None:
        return None
    try:
        return index(stream)
    except TypeError:
        raise ArgumentError(
            f"{call}: stream must be None or the integer of a stream, got {stream!r}"
        ) from None


def _refuse(call: str, name: str, choices: tuple[object, ...], value: object) -> NoReturn:
    allowed = ", ".join(map(repr, choices))
    raise ArgumentError(f"{call}: {name} must be one of {allowed}, got {value!r}")


DEFAULT = Policy("default")

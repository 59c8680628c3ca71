"""The policies of an exchange: what may be copied, shared, detached, and what must be refused."""

from __future__ import annotations

from typing import Any

from dlbridge.device import Device
from dlbridge.errors import ArgumentError

_CHOICES: dict[str, tuple[object, ...]] = {
    "copy": (None, True, False),
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
        layout: None or "any", or "contiguous" for compact row-major memory, copied if it must.
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
        self.copy = copy
        self.readonly = readonly
        self.immutable = immutable
        self.grad = grad
        self.layout = layout
        self.stream = stream
        for name, choices in _CHOICES.items():
            value: Any = getattr(self, name)
            if not any(value is choice or value == choice for choice in choices):
                allowed = ", ".join(repr(choice) for choice in choices)
                raise ArgumentError(f"{call}: {name} must be one of {allowed}, got {value!r}")
        self.device = None if device is None else Device(device)


DEFAULT = Policy("default")

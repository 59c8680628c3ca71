"""Texts for what the native core refuses: it says which tensor and why, we say what to do."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from dlbridge.device import make_device
from dlbridge.dtype import DType, make_dtype
from dlbridge.errors import DLBridgeError, ExchangeError, KernelError
from dlbridge.kernels.schema import Described, Schema, refusal

# reason -> what was wanted of a tensor, what it is instead, what to do.
QUALITIES = {
    "alignment": ("aligned", "misaligned", "copy it on its device first"),
    "null_data": ("a tensor with memory:", "NULL for", "it was not computed yet, or freed"),
    "overlap": (
        "memory of its own for",
        "memory shared with {other} for",
        "pass a copy, or wrap the kernel with overlap='allow'",
    ),
    "readonly": ("writable", "read-only", "pass a writable copy"),
    "requires_grad": (
        "detached",
        "requires_grad",
        "a call that writes would lose gradients: pass x.detach(), or use no_grad",
    ),
    "strides": ("row-major", "strided", "copy it on its device first"),
}


def explain(
    name: str,
    schema: Schema | None,
    tensors: Any,
    scalars: Any,
    index: int,
    reason: str,
    other: int,
) -> DLBridgeError:
    """Return the exception for a call that the native core refuses.

    Args:
        name: the kernel's.
        schema: its schema, or None.
        tensors: inputs, then results: None, or (shape, dtype triple, source, device pair).
        scalars: integers, None for other scalars.
        index: the tensor in question.
        reason: "mismatch" (dtype or shape), or a key of `errors.REASONS`.
        other: the index of a second tensor that has to do with it, or -1.
    """
    if reason == "mismatch":
        assert schema is not None
        return explain_mismatch(schema, tensors, scalars)
    got = _read_described(*tensors[index])
    expected = "a tensor" if schema is None else schema.part(index).expected()
    place = _place(schema, index)
    if reason == "device":
        text = _device_text(name, schema, tensors, place, expected)
        return ExchangeError(reason, text)
    wanted, found, hint = QUALITIES[reason]
    second = "itself" if other == index else repr(_place(schema, other))
    if schema is not None:
        expected = f"{wanted} {expected}"
    else:
        expected = wanted.removesuffix(" for").rstrip(":") if " " in wanted else f"{wanted} tensor"
    text = refusal(name, place, expected, f"{found.format(other=second)} {got.text()}", hint)
    return ExchangeError(reason, text)


def _device_text(name: str, schema: Schema | None, tensors: Any, place: str, expected: str) -> str:
    """Tell tensors on several devices from a device that the kernel has no function for."""
    present = [(each, number) for number, each in enumerate(tensors) if each is not None]
    first, number = present[0]
    got = next(_read_described(*each) for each, at in present if _place(schema, at) == place)
    device = _read_described(*first).device
    if got.device == device:
        expected = f"{expected} on a device that the kernel was wrapped for"
        hint = "wrap it with platforms= for this one as well, or move the tensors"
        return refusal(name, place, expected, got.text(), hint)
    expected = f"{expected} on {device} as {_place(schema, number)!r}"
    return refusal(name, place, expected, got.text(), "move the tensors to one device")


def _place(schema: Schema | None, index: int) -> str:
    return str(index) if schema is None else schema.place_name(index)


def explain_mismatch(
    schema: Schema, described: Iterable[Any], scalars: Sequence[Any] | None = None
) -> DLBridgeError:
    """Return the exception for tensors whose dtypes or shapes the native core refuses.

    Args:
        schema: the kernel's.
        described: inputs, then results if they are at hand: None for one that is left out, else
            (shape, dtype, source, device), the dtype as DType or (code, bits, lanes), the device
            as text or as (type, id).
        scalars: as for `Schema.bind`.
    """
    tensors = [None if one is None else _read_described(*one) for one in described]
    count = len(schema.tensors)
    try:
        bindings = schema.bind(tensors[:count], scalars)
        schema.results_of(bindings)
        if len(tensors) > count:
            schema.check_out(bindings, tensors[count:])
    except DLBridgeError as error:
        return error
    texts = ", ".join(["None" if one is None else one.text() for one in tensors])
    return KernelError(
        f"{schema.qualified}: the native check refused what {schema} takes: {texts}; "
        "this is a defect of dlbridge, please report it"
    )


def _read_described(shape: Any, dtype: Any, source: Any = "", device: Any = "") -> Described:
    return Described(
        shape if shape is None else tuple(shape),
        dtype if type(dtype) is DType else make_dtype(*dtype),
        source or "",
        device if isinstance(device, str) else str(make_device(*device)),
    )

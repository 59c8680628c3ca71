"""Texts for what the native core refuses: it says which tensor and why, we say what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dlbridge.device import make_device
from dlbridge.dtype import make_dtype
from dlbridge.errors import DLBridgeError, ExchangeError
from dlbridge.kernels import schema_check, schema_errors
from dlbridge.kernels.schema_parts import Described

if TYPE_CHECKING:
    from dlbridge.kernels.schema import Schema

# reason -> what was wanted of a tensor, what it is instead, what to do.
_QUALITIES = {
    "alignment": ("aligned", "misaligned", "copy it on its device first"),
    "device": ("a tensor on the device of the others and of the kernel,", "", "move it there"),
    "null_data": ("a tensor with memory,", "NULL for", "it is not computed, or was freed"),
    "overlap": (
        "memory of its own for",
        "memory shared with {other} for",
        "pass a copy, or wrap the kernel with overlap='allow'",
    ),
    "readonly": ("writable", "read-only", "pass a writable copy"),
    "strides": ("row-major", "strided", "copy it on its device first"),
}


def explain(
    name: str, schema: Schema | None, tensors: Any, index: int, reason: str, other: int
) -> DLBridgeError:
    """Return the exception for a call that the native core refuses.

    Args:
        name: the kernel's.
        schema: its schema, or None.
        tensors: inputs, then results: None, or (shape, dtype triple, source, device pair).
        index: the tensor in question.
        reason: "mismatch" (dtype or shape), or a key of `errors.REASONS`.
        other: the index of a second tensor that has to do with it, or -1.
    """
    if reason == "mismatch":
        assert schema is not None
        return schema_check.explain(schema, tensors)
    wanted, found, hint = _QUALITIES.get(reason, ("plain", reason, ""))
    got = _describe(tensors[index])
    if other == index:
        second = "itself"
    else:
        second = repr(_place(schema, other)) if other >= 0 else "another"
    quality = (wanted, found.format(other=second))
    if schema is not None:
        return schema_errors.unfit(schema, index, reason, quality, got, hint)
    expected = f"{wanted} tensor" if " " not in wanted else wanted.rstrip(",")
    return ExchangeError(
        reason,
        schema_errors.refusal(name, str(index), expected, f"{quality[1]} {got.text()}", hint),
    )


def _place(schema: Schema | None, index: int) -> str:
    return str(index) if schema is None else schema.place_name(index)


def _describe(tensor: Any) -> Described:
    shape, dtype, source, device = tensor
    return Described(tuple(shape), make_dtype(*dtype), source or "", str(make_device(*device)))

"""Every text that refuses a tensor or a scalar, in one form.

A wrong dtype, and a wrong number or kind of arguments, is a TypeError; a wrong shape or value a
ValueError; whatever concerns memory (device, layout, overlap, gradients) a BufferError.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError, UnsupportedTypeError
from dlbridge.kernels.schema.parts import Bindings, Described, Dim, Result

if TYPE_CHECKING:
    from dlbridge.kernels.schema.model import Schema


def refusal(kernel: str, argument: str, expected: str, got: str, hint: str = "") -> str:
    """Return the text that every refusal of an argument has.

    Example:
        >>> refusal("mylib::mm", "y", "f32[k=56, n]", "f64[56, 56] (torch.Tensor, cpu)")
        "mylib::mm: argument 'y': expected f32[k=56, n], got f64[56, 56] (torch.Tensor, cpu)"
    """
    text = f"{kernel}: argument {argument!r}: expected {expected}, got {got}"
    return f"{text}; {hint}" if hint else text


def mismatch(schema: Schema, place: int, got: Described | None, known: Bindings) -> DLBridgeError:
    """Return the exception for a tensor whose dtype or shape does not fit, or that is missing."""
    part = schema.part(place)
    name = schema.place_name(place)
    if got is None:
        return UnsupportedTypeError(refusal(schema.qualified, name, part.expected(known), "None"))
    assert part.dtype is not None
    fits = part.dtype.accepts(got.dtype)
    if fits:
        fits = known.dtypes.get(part.dtype.variable, got.dtype) is got.dtype
    kind = ArgumentError if fits else UnsupportedTypeError
    return kind(refusal(schema.qualified, name, part.expected(known), got.text()))


def unfit(
    schema: Schema,
    place: int,
    reason: str,
    quality: tuple[str, str],
    got: Described,
    hint: str = "",
    known: Bindings | None = None,
) -> ExchangeError:
    """Return the exception for memory that a kernel cannot take.

    Args:
        schema: the kernel's.
        place: the tensor: inputs count from 0, results follow.
        reason: a key of `errors.REASONS`.
        quality: what was wanted of it and what it has instead: ("writable", "read-only").
        got: the tensor.
        hint: what to do about it.
        known: what is bound.
    """
    wanted, found = quality
    expected = f"{wanted} {schema.part(place).expected(known)}"
    name = schema.place_name(place)
    return ExchangeError(
        reason, refusal(schema.qualified, name, expected, f"{found} {got.text()}", hint)
    )


def impossible(
    schema: Schema, result: Result, dim: Dim, why: str, bindings: Bindings
) -> ArgumentError:
    """Return the exception for a result whose size cannot be."""
    values = dict.fromkeys(f"{name}={bindings.names[name]}" for name in dim.names)
    where = f" where {', '.join(values)}" if values else ""
    return ArgumentError(
        f"{schema.qualified}: result {result.name!r}: expected {result.type_text}, "
        f"but {dim} {why}{where}"
    )


def negative(schema: Schema, name: str, value: object) -> ArgumentError:
    """Return the exception for a scalar that is a dimension and no extent."""
    hint = "it is a dimension"
    return ArgumentError(refusal(schema.qualified, name, "int >= 0", str(value), hint))


def several(count: int) -> str:
    """Return what `out` must be for so many results."""
    return "one tensor" if count == 1 else f"a tuple of {count} tensors"

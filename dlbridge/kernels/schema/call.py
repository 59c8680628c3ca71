"""A call's arguments against a schema, as Python itself would sort them; scalars are converted.

Scalars are strict: what comes must already mean what the schema says.

    int     a Python or NumPy integer of at most 64 bits
    float   a Python or NumPy integer or real number, NaN and the infinities included
    bool    a Python or NumPy bool
    str     a Python string without NUL characters

A bool is no number, a number no bool, an array of any rank no scalar.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge.errors import ArgumentError, DLBridgeError, UnsupportedTypeError
from dlbridge.kernels.schema.dims import MAX_EXTENT
from dlbridge.kernels.schema.errors import refusal, several
from dlbridge.kernels.schema.parts import MISSING, Arguments, Parameter
from dlbridge.kernels.schema.rules import is_transferable

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema

_EXACT = {"float": float, "bool": bool}  # nothing to check or convert
_SEVERAL = (tuple, list)


def arrange(
    schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any], traced: bool
) -> Arguments:
    """Sort the arguments of one call; see `Schema.arrange`."""
    given, out = _assign(schema, args, kwargs)
    tensors: list[Any] = []
    scalars: list[Any] = []
    for parameter in schema.parameters:
        value = given.get(parameter.name, parameter.default)
        if value is None or value is MISSING:
            _check_absent(schema, parameter, value)
        if parameter.kind == "tensor":
            tensors.append(value)
        elif value is None or type(value) is _EXACT.get(parameter.kind):
            scalars.append(value)
        else:
            scalars.append(_convert(schema, parameter, value, traced))
    return Arguments(tensors, scalars, None if out is None else _read_out(schema, out))


def _assign(
    schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return what each parameter was given, and `out`."""
    given = dict(zip(schema.positional, args, strict=False))
    if len(args) > len(schema.positional):
        raise _too_many(schema, len(args))
    out = None
    for name, value in kwargs.items():
        if name in given:
            raise UnsupportedTypeError(
                f"{schema.qualified}: argument {name!r}: given by position and by name"
            )
        if name == "out" and schema.results:
            out = value
        elif name not in schema.by_name:
            raise _unexpected(schema, name)
        else:
            given[name] = value
    return given, out


def _check_absent(schema: Schema, parameter: Parameter, value: Any) -> None:
    if value is None and parameter.optional:
        return
    got = "nothing" if value is MISSING else "None"
    raise UnsupportedTypeError(refusal(schema.qualified, parameter.name, parameter.type_text, got))


def _too_many(schema: Schema, count: int) -> DLBridgeError:
    limit = len(schema.positional)
    names = f" ({', '.join(schema.positional)})" if limit else ""
    by_name = [name for name in schema.by_name if name not in schema.positional]
    rest = f"; by name only: {', '.join(by_name)}" if by_name else ""
    plural = "" if limit == 1 else "s"
    return UnsupportedTypeError(
        f"{schema.qualified}: expected at most {limit} argument{plural} by position{names}, "
        f"got {count}{rest}"
    )


def _unexpected(schema: Schema, name: str) -> DLBridgeError:
    takes = [*schema.by_name, *(["out"] if schema.results else [])]
    known = f"it takes {', '.join(takes)}" if takes else "it takes none"
    if name == "out":
        known = "it has no results"
    return UnsupportedTypeError(f"{schema.qualified}: argument {name!r}: not expected; {known}")


def _read_out(schema: Schema, out: Any) -> list[Any]:
    count = len(schema.results)
    if not isinstance(out, _SEVERAL):
        if count == 1:
            return [out]
        raise UnsupportedTypeError(refusal(schema.qualified, "out", several(count), type_name(out)))
    if len(out) != count or any(one is None for one in out):
        kind = type(out).__name__
        held = ", ".join([type_name(one) for one in out])
        raise UnsupportedTypeError(
            refusal(schema.qualified, "out", several(count), f"{kind} ({held})")
        )
    return list(out)


# ---- scalars -----------------------------------------------------------------------------------


def _convert(schema: Schema, parameter: Parameter, value: Any, traced: bool) -> Any:
    if isinstance(value, bool | int | float | complex | str | np.generic):
        converted = _CONVERTERS[parameter.kind](value)
    elif traced and parameter.kind != "str" and type(value).__module__ != "builtins":
        return value
    else:
        converted = MISSING
    if converted is MISSING:
        raise refuse_scalar(schema, parameter, value)
    if converted is None:
        raise ArgumentError(
            refusal(schema.qualified, parameter.name, _LIMITS[parameter.kind], repr(value))
        )
    return converted


def refuse_scalar(schema: Schema, parameter: Parameter, value: Any) -> DLBridgeError:
    """Return the exception for a value that is no such scalar."""
    hint = "" if parameter.kind == "str" else "pass a Python number, as x.item() gives"
    if hasattr(value, "shape") and not isinstance(value, np.generic):
        got = type_name(value)
    else:
        hint = ""
        got = f"{value!r} ({type_name(value)})"
    return UnsupportedTypeError(
        refusal(schema.qualified, parameter.name, parameter.type_text, got, hint)
    )


def type_name(value: object) -> str:
    """Return what texts call the type of `value`: "torch.Tensor", "int"."""
    kind = type(value)
    module = kind.__module__.partition(".")[0]
    return kind.__name__ if module == "builtins" else f"{module}.{kind.__name__}"


# Each gives the Python object, MISSING for another kind, None for a value that does not fit.
def _to_bool(value: Any) -> Any:
    return bool(value) if isinstance(value, bool | np.bool_) else MISSING


def _to_int(value: Any) -> Any:
    if isinstance(value, np.generic):
        if not _is_number(value, "iu"):
            return MISSING
    elif isinstance(value, bool) or not isinstance(value, int):
        return MISSING
    number = int(value)
    return number if -MAX_EXTENT - 1 <= number <= MAX_EXTENT else None


def _to_float(value: Any) -> Any:
    if isinstance(value, np.generic):
        if not _is_number(value, "iuf"):
            return MISSING
    elif isinstance(value, bool) or not isinstance(value, int | float):
        return MISSING
    try:
        return float(value)
    except OverflowError:
        return None


def _is_number(value: np.generic, kinds: str) -> bool:
    """Tell whether a NumPy scalar is a number of these kinds; NumPy knows none of ml_dtypes'."""
    if type(value).__module__.startswith("ml_dtypes"):
        return "f" in kinds or "int" in value.dtype.name
    return value.dtype.kind in kinds


def _to_str(value: Any) -> Any:
    if not isinstance(value, str):
        return MISSING
    return str(value) if is_transferable(value) else None


_CONVERTERS: dict[str, Callable[[Any], Any]] = {
    "bool": _to_bool,
    "int": _to_int,
    "float": _to_float,
    "str": _to_str,
}
_LIMITS = {
    "int": "int of at most 64 bits",
    "float": "float",
    "str": "str of Unicode text without NUL characters",
}

"""A call against a schema: its arguments sorted, what its tensors bind, what the results are.

Arguments are sorted as Python itself would. Scalars are strict: a value must already be what the
schema says.

    int     a Python or NumPy integer of at most 64 bits
    float   a Python or NumPy integer or real number, NaN and the infinities included
    bool    a Python or NumPy bool
    str     a Python string without NUL characters
    dtype   a dtype of any framework, a name of one, or whatever else `dlbridge.DType` takes
    int[]   a list or tuple of at most 64 such integers; float[] likewise

A bool is no number, a number no bool, an array of any rank no scalar.

Order of checks, the same in C: scalars that are dimensions or dtypes, which bind their names; then
the tensors in turn, of each the dtype first and then the shape; expressions after all of them,
since any argument may bind their names. The first that does not fit is the one that is named. A
wrong dtype is a TypeError, a wrong shape a ValueError, and whatever concerns memory (device,
layout, overlap, gradients) a BufferError.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dlbridge import registry
from dlbridge.dtype import DType, as_dtype
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.exchange.adapter import adapter
from dlbridge.kernels.schema.parts import (
    LIST_KINDS,
    MAX_EXTENT,
    MAX_LISTED,
    MISSING,
    SEVERAL,
    Arguments,
    Bindings,
    Described,
    Dim,
    DTypeSet,
    Missing,
    Parameter,
    Result,
    is_outside,
    is_transferable,
    same_extent,
    same_shape,
    short_name,
)
from dlbridge.shape import MAX_RANK
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean

if TYPE_CHECKING:
    from dlbridge.kernels.schema.model import Schema


# ---- arguments -----------------------------------------------------------------------------------

_EXACT = {"float": float, "bool": bool, "dtype": DType}  # nothing to check or convert
_NUMBERS_AND_TEXT = (bool, int, float, complex, str, np.generic)


def arrange(
    schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any], traced: bool, symbolic: bool
) -> Arguments:
    """Sort the arguments of one call; see `Schema.arrange`."""
    given, out = _assign(schema, args, kwargs)
    tensors: list[Any] = []
    scalars: list[Any] = []
    for parameter in schema.parameters:
        value = given.get(parameter.name, parameter.default)
        # Not `is MISSING`: dynamo 2.6 cannot compare a symbolic number with an object.
        if value is None or isinstance(value, Missing):
            _check_absent(schema, parameter, value)
        if parameter.kind == "tensor":
            is_list = parameter.many is not None
            tensors.append(_to_tensors(schema, parameter.name, value) if is_list else value)
        elif value is None or type(value) is _EXACT.get(parameter.kind):
            scalars.append(value)
        elif symbolic and parameter.kind == "int" and type(value) is int:
            scalars.append(value)  # whatever compares it with a number would ask for its value
        elif symbolic and parameter.kind == "dtype":
            scalars.append(value)  # dynamo cannot look into what reads it
        elif parameter.kind in LIST_KINDS:
            scalars.append(_to_list(schema, parameter, value, traced, symbolic))
        else:
            scalars.append(_convert(schema, parameter, value, traced))
    return Arguments(tensors, scalars, None if out is None else _read_out(schema, out))


def _assign(
    schema: Schema, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> tuple[dict[str, Any], Any]:
    """Return what each parameter was given, and `out`."""
    given = dict(zip(schema.positional, args))  # noqa: B905  (dynamo 2.6 takes strict= for True)
    if len(args) > len(schema.positional):
        raise _too_many(schema, len(args))
    out = None
    for name, value in kwargs.items():
        if name in given:
            raise UnsupportedTypeError(
                f"{schema.qualified}: argument {name!r}: given by position and by name"
            )
        if name == "out" and schema.takes_out:
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
    takes = [*schema.by_name, *(["out"] if schema.takes_out else [])]
    known = f"it takes {', '.join(takes)}" if takes else "it takes none"
    if name == "out" and schema.counts:
        known = (
            f"the kernel says {schema.counts[0].value}; `.bounded` of the kernel writes into "
            "memory that has room for the bound"
        )
    elif name == "out" and schema.numbers:
        known = "a result is a number, which no memory holds; `.tensors` of the kernel takes out="
    elif name == "out":
        known = "it has no results"
    meant = did_you_mean(name, takes)
    return UnsupportedTypeError(
        f"{schema.qualified}: argument {name!r}: not expected; {known}{meant}"
    )


def _to_tensors(schema: Schema, name: str, value: Any) -> list[Any]:
    """Return a list of tensors as a list of Python; elements that are None or lists are refused."""
    if not isinstance(value, SEVERAL):
        hint = "pass [x], or [*x] for its parts" if hasattr(value, "shape") else ""
        expected = "a list or tuple of tensors"
        text = refusal(schema.qualified, name, expected, type_name(value), hint)
        raise UnsupportedTypeError(text)
    for place, each in enumerate(value):
        if each is None or isinstance(each, SEVERAL):
            hint = "a list of tensors cannot hold lists" if each is not None else ""
            text = refusal(schema.qualified, f"{name}[{place}]", "a tensor", type_name(each), hint)
            raise UnsupportedTypeError(text)
    return list(value)


def _read_out(schema: Schema, out: Any) -> list[Any]:
    count = len(schema.results)
    if count == 1 and schema.results[0].many is not None:  # dynamo of older torch: no properties
        return [_to_tensors(schema, "out", out)]
    if schema.has_lists and isinstance(out, SEVERAL) and len(out) == count:
        return [
            each
            if part.many is None
            else _optional(each)
            if part.many.kind == "if"
            else _to_tensors(schema, f"out[{place}]", each)
            for place, (part, each) in enumerate(zip(schema.results, out, strict=True))
        ]
    if not isinstance(out, SEVERAL):
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


def _optional(value: Any) -> list[Any]:
    """Return an optional result as a list of one tensor or of none."""
    return [] if value is None else [value]


# ---- scalars -----------------------------------------------------------------------------------


def _convert(schema: Schema, parameter: Parameter, value: Any, traced: bool) -> Any:
    if parameter.kind == "dtype":
        return _to_dtype(schema, parameter, value)
    if isinstance(value, _NUMBERS_AND_TEXT):
        converted = _CONVERTERS[parameter.kind](value)
    elif traced and parameter.kind != "str" and type(value).__module__ != "builtins":
        return value
    else:
        converted = MISSING
    if isinstance(converted, Missing):
        raise refuse_scalar(schema, parameter, value)
    if converted is None:
        raise ArgumentError(
            refusal(schema.qualified, parameter.name, _LIMITS[parameter.kind], repr(value))
        )
    return converted


def _to_list(
    schema: Schema, parameter: Parameter, value: Any, traced: bool, symbolic: bool
) -> tuple[Any, ...]:
    """Return the numbers as a tuple; each is what a scalar may be."""
    if not isinstance(value, SEVERAL):
        raise refuse_scalar(schema, parameter, value)
    count = len(value)
    if count > MAX_LISTED or (parameter.length is not None and count != parameter.length):
        most = f"{parameter.type_text} of at most {MAX_LISTED} numbers"
        expected = most if parameter.length is None else parameter.type_text
        text = refusal(schema.qualified, parameter.name, expected, f"{count} of them")
        raise ArgumentError(text)
    number = LIST_KINDS[parameter.kind]
    is_exact = symbolic or number is float  # see arrange
    found = []
    for place, each in enumerate(value):
        if not (is_exact and type(each) is number):
            item = Parameter(f"{parameter.name}[{place}]", parameter.kind[:-2])
            each = _convert(schema, item, each, traced)
        found.append(each)
    return tuple(found)


def _to_dtype(schema: Schema, parameter: Parameter, value: Any) -> DType:
    try:
        return as_dtype(value)
    except DLBridgeError as error:
        why = str(error).removeprefix("DType: ")
        raise refuse_scalar(schema, parameter, value, why) from error


def refuse_scalar(
    schema: Schema, parameter: Parameter, value: Any, hint: str = ""
) -> DLBridgeError:
    """Return the exception for a value that is no such scalar."""
    kind = parameter.kind
    if kind != "dtype" and hasattr(value, "shape") and not isinstance(value, np.generic):
        hint = "" if kind == "str" else f"pass a Python number, as {kind}(x) gives"
        if kind in LIST_KINDS:
            hint = "pass a list of Python numbers, as x.tolist() gives"
        got = type_name(value)
    else:
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
    except not_from_handler(OverflowError):
        return None


def _is_number(value: np.generic, kinds: str) -> bool:
    """Return whether a NumPy scalar is a number of these kinds; NumPy knows none of ml_dtypes'."""
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


Shape = tuple[Any, ...] | None
Tensors = Sequence[Described | None]
Scalars = Sequence[Any] | None


# ---- inputs ------------------------------------------------------------------------------------


def bind(schema: Schema, tensors: Tensors, scalars: Scalars = None) -> Bindings:
    """Return what tensors and scalars bind; see `Schema.bind`."""
    if len(tensors) != len(schema.tensors):
        raise UnsupportedTypeError(
            f"{schema.qualified}: expected {len(schema.tensors)} tensors, got {len(tensors)}"
        )
    bindings = _bind_scalars(schema, scalars)
    failed = _bind_all(schema, tensors, bindings)
    if failed is None:
        failed = _solve(schema, tensors, bindings)
        if failed is None:
            failed = _check_expressions(schema, tensors, bindings)
        if failed is None:
            return bindings
    else:  # what the tensors before it say, and not the parts of it that fitted
        bindings = _bind_scalars(schema, scalars)
        _bind_all(schema, tensors[:failed], bindings)
    raise mismatch(schema, failed, tensors[failed], bindings)


def _bind_scalars(schema: Schema, scalars: Scalars) -> Bindings:
    """Bind the names and dtypes that are scalars."""
    bindings = Bindings()
    for place, name in schema.sizes:
        value = None if scalars is None else scalars[place]
        if is_outside(value):
            raise negative(schema, name, value)
        bindings.names[name] = value
    for place, name in schema.typed:
        value = None if scalars is None else scalars[place]
        if value is not None:
            part = schema.by_name[name]
            if part.among is not None and not part.among.accepts(value):
                raise UnsupportedTypeError(
                    refusal(schema.qualified, name, part.type_text, short_name(value))
                )
            bindings.dtypes[name] = value
    for place, name in schema.spread:
        value = None if scalars is None else scalars[place]
        if value is None:
            continue
        for number, extent in enumerate(value):
            if is_outside(extent):
                raise negative(schema, f"{name}[{number}]", extent)
        bindings.packs[name] = tuple(value)
    return bindings


def _bind_all(schema: Schema, tensors: Tensors, bindings: Bindings) -> int | None:
    """Bind tensors in turn; return the place of the first that does not fit."""
    for place, got in enumerate(tensors):
        parameter = schema.tensors[place]
        if got is None:
            if not parameter.optional:
                return place
        elif not (
            _bind_dtype(parameter, got.dtype, bindings)
            and _bind_shape(parameter.dims, got.shape, bindings)
        ):
            return place
    return None


def _bind_dtype(parameter: Parameter, dtype: DType, bindings: Bindings) -> bool:
    assert parameter.dtype is not None
    variable = parameter.dtype.variable
    found = bindings.dtypes.get(variable)
    if found is not None:
        return found is dtype
    if not parameter.dtype.accepts(dtype):
        return False
    bindings.dtypes[variable] = dtype
    return True


def _bind_shape(dims: tuple[Dim, ...], shape: Shape, bindings: Bindings) -> bool:
    if shape is None:  # of unknown rank: it could be any
        return True
    parts = split_shape(dims, shape)
    return parts is not None and all(
        _bind_dim(dim, part, bindings) for dim, part in zip(dims, parts, strict=True)
    )


def split_shape(dims: tuple[Dim, ...], shape: tuple[Any, ...]) -> list[Any] | None:
    """Return the extent of each dim, a tuple for a pack; None where their number does not fit."""
    packs = [index for index, dim in enumerate(dims) if dim.kind == "pack"]
    if not packs:
        return list(shape) if len(shape) == len(dims) else None
    head = packs[0]
    tail = len(shape) - (len(dims) - head - 1)
    if tail < head:
        return None
    return [*shape[:head], shape[head:tail], *shape[tail:]]


def _bind_dim(dim: Dim, extent: Any, bindings: Bindings) -> bool:
    if dim.kind == "pack":
        return _bind_pack(str(dim.value), extent, bindings)
    if dim.kind == "constant":
        return same_extent(dim.value, extent)
    if dim.kind != "name":  # anything, or an expression: later
        return True
    name = str(dim.value)
    found = bindings.names.get(name)
    if found is None:
        bindings.names[name] = extent
        return True
    return same_extent(found, extent)


def _bind_pack(name: str, extents: tuple[Any, ...], bindings: Bindings) -> bool:
    found = bindings.packs.get(name)
    if found is None:
        bindings.packs[name] = extents
        return True
    if len(found) != len(extents) or not all(map(same_extent, found, extents)):
        return False
    bindings.packs[name] = tuple(
        [new if old is None else old for old, new in zip(found, extents, strict=True)]
    )
    return True


def _solve(schema: Schema, tensors: Tensors, bindings: Bindings) -> int | None:
    """Bind what expressions determine; return the place of the first without a solution."""
    for place, index, name in schema.solved:
        got = tensors[place]
        assert got is not None  # it must be passed
        if bindings.names.get(name) is not None or got.shape is None:
            continue
        dims = schema.tensors[place].dims
        extents = split_shape(dims, got.shape)
        assert extents is not None  # it fitted
        try:
            bindings.names[name] = dims[index].solve(name, extents[index], bindings.names)
        except not_from_handler(ArithmeticError):
            return place
    return None


def _check_expressions(schema: Schema, tensors: Tensors, bindings: Bindings) -> int | None:
    for place in schema.computed:
        got = tensors[place]
        if got is None or got.shape is None:
            continue
        dims = schema.tensors[place].dims
        for dim, extent in zip(dims, split_shape(dims, got.shape) or (), strict=True):
            if dim.kind == "expression" and not _is_value(dim, extent, bindings):
                return place
    return None


def _is_value(dim: Dim, extent: Any, bindings: Bindings) -> bool:
    try:
        return same_extent(dim.evaluate(bindings.names), extent)
    except not_from_handler(ArithmeticError):
        return False


# ---- results -----------------------------------------------------------------------------------


def results_of(schema: Schema, bindings: Bindings) -> list[tuple[Any, DType]]:
    """Return shape and dtype of each result; see `Schema.results_of`."""
    found = []
    for result in schema.results:
        shape = _result_shape(schema, result, bindings)
        dtype = result.dtype.only or bindings.dtypes[result.dtype.variable]
        if is_too_large(shape, dtype):
            raise ArgumentError(
                f"{schema.qualified}: result {result.name!r}: expected {result.type_text} of less "
                f"than 2**63 bits, but it would be {dtype.name}{list(shape or ())}"
            )
        found.append((shape, dtype))
    return found


def is_too_large(shape: Shape, dtype: DType) -> bool:
    """Return whether the bits of a shape, extents of 0 left out, exceed 63 bits."""
    if shape is None or any(type(extent) is not int for extent in shape):
        return False
    return math.prod([extent or 1 for extent in shape]) * dtype.bits * dtype.lanes >= 2**63


def _result_shape(schema: Schema, result: Result, bindings: Bindings) -> Shape:
    shape: list[Any] = []
    for dim in result.dims:
        if dim.kind == "pack":
            pack = bindings.packs.get(str(dim.value))
            if pack is None:
                return None
            shape += pack
            continue
        try:
            extent = dim.evaluate(bindings.names)
        except not_from_handler(ArithmeticError) as error:
            raise impossible(schema, result, dim, str(error), bindings) from None
        if is_outside(extent):
            raise impossible(schema, result, dim, f"is {extent}", bindings)
        shape.append(extent)
    if len(shape) > MAX_RANK:
        raise ArgumentError(
            f"{schema.qualified}: result {result.name!r}: expected at most {MAX_RANK} "
            f"dimensions, got {len(shape)}"
        )
    return tuple(shape)


def check_out(schema: Schema, bindings: Bindings, outs: Tensors, *, returned: bool) -> None:
    """Compare buffers for the results with what they must be; see `Schema.check_out`."""
    count = len(schema.results)
    if len(outs) != count:
        raise UnsupportedTypeError(
            refusal(schema.qualified, "out", several(count), f"{len(outs)} of them")
        )
    expected = results_of(schema, bindings)
    places = range(len(schema.tensors), len(schema.tensors) + count)
    for place, out, (shape, dtype) in zip(places, outs, expected, strict=True):
        if out is None or out.dtype is not dtype or not same_shape(shape, out.shape):
            raise mismatch(schema, place, out, bindings, returned=returned)
    if schema.counts:
        _check_counted(schema, bindings, outs)


def _check_counted(schema: Schema, bindings: Bindings, outs: Tensors) -> None:
    """Compare the extents that a kernel said with their bounds, and with each other."""
    rooms = [shape for shape, _ in results_of(schema.bounded(), bindings)]
    said: dict[str, Any] = {}
    for result, out, room in zip(schema.results, outs, rooms, strict=False):
        if not result.dims or result.dims[0].kind != "counted" or out is None or out.shape is None:
            continue
        name, extent = str(result.dims[0].value), out.shape[0]
        if not same_extent(said.setdefault(name, extent), extent):
            raise KernelError(
                f"{schema.qualified}: the function returned {extent} rows of {result.name!r}, but "
                f"{name} is {said[name]} of another result"
            )
        if room is not None and type(extent) is int and type(room[0]) is int and extent > room[0]:
            raise outside(schema.qualified, name, extent, room[0])


def outside(kernel: str, name: str, extent: int, room: int) -> KernelError:
    """Return the exception for a kernel that says more than the bound, or less than 0."""
    return KernelError(
        f"{kernel}: the kernel says {name}={extent}, which must be from 0 to {room}, the bound"
    )


# ---- texts of refusals, all in one form ----------------------------------------------------------


def refusal(kernel: str, argument: str, expected: str, got: str, hint: str = "") -> str:
    """Return the text that every refusal of an argument has.

    Example:
        >>> refusal("mylib::mm", "y", "f32[k=56, n]", "f64[56, 56] (torch.Tensor, cpu)")
        "mylib::mm: argument 'y': expected f32[k=56, n], got f64[56, 56] (torch.Tensor, cpu)"
    """
    text = f"{kernel}: argument {argument!r}: expected {expected}, got {got}"
    return f"{text}; {hint}" if hint else text


def mismatch(
    schema: Schema,
    place: int,
    got: Described | None,
    known: Bindings,
    *,
    returned: bool = False,
) -> DLBridgeError:
    """Return the exception for a tensor whose dtype or shape does not fit, or that is missing.

    Args:
        schema: the kernel's.
        place: the tensor: inputs count from 0, results follow.
        got: the tensor.
        known: what is bound.
        returned: the wrapped function returned it; else the caller passed it.
    """
    part = schema.part(place)
    name = schema.place_name(place)
    if got is None:
        return UnsupportedTypeError(refusal(schema.qualified, name, part.expected(known), "None"))
    assert part.dtype is not None
    bound = known.dtypes.get(part.dtype.variable)
    fits = part.dtype.accepts(got.dtype) if bound is None else bound is got.dtype
    kind = ArgumentError if fits else UnsupportedTypeError
    expected = part.expected(known)
    hint = ""
    if not fits:
        wanted = bound or part.dtype.only or _nearest(part.dtype, got.dtype)
        hint = _how_to_cast(part.name if returned else name, wanted, got)
        if place >= len(schema.tensors) and not returned:
            hint = f"pass one of {wanted.name}, or leave out= away"
        elif place in schema.mutated:
            hint = (
                f"pass one of {wanted.name}: a cast would be a copy, and this is written in place"
            )
    if returned:
        text = f"expected {expected}, the function returned {got.text()}"
        return kind(f"{schema.qualified}: result {part.name!r}: {text}{hint and f'; {hint}'}")
    return kind(refusal(schema.qualified, name, expected, got.text(), hint))


def _nearest(wanted: DTypeSet, got: DType) -> DType:
    """Return a dtype of a set that a tensor may be cast to."""
    of_its_kind = [dtype for dtype in wanted.dtypes if dtype.triple[0] == got.triple[0]]
    usual = [dtype for dtype in wanted.dtypes if dtype.name in _USUAL]
    found = of_its_kind or usual or wanted.dtypes
    return min(found, key=lambda dtype: abs(dtype.bits - got.bits))


_USUAL = ("float32", "int64", "bool", "complex64", "uint8")


def _how_to_cast(name: str, wanted: DType, got: Described) -> str:
    """Return how the caller casts a tensor, in the words of its framework."""
    if wanted.lanes != 1:
        return ""
    owner = registry.canonical_name(got.source.partition(".")[0])
    is_known = any(row.name == owner for row in registry.rows())
    how = adapter(owner if is_known else "dlbridge").how_to_cast(name, wanted)
    return f"cast it with {how}"


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

"""Tensors against a schema: what they bind, and what the results are.

Order of checks, the same in C: scalars that are dimensions, whose values bind their names; then the
tensors in turn, of each the dtype first and then the shape; expressions after all of them, since
any argument may bind their names. The first that does not fit is the one that is named. A wrong
dtype is a TypeError, a wrong shape a ValueError, and whatever concerns memory (device, layout,
overlap, gradients) a BufferError.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

from dlbridge.device import make_device
from dlbridge.dtype import DType, make_dtype
from dlbridge.errors import ArgumentError, DLBridgeError, KernelError, UnsupportedTypeError
from dlbridge.kernels.schema.dims import Dim, is_outside, same_extent
from dlbridge.kernels.schema.errors import impossible, mismatch, negative, several
from dlbridge.kernels.schema.errors import refusal as refusal
from dlbridge.kernels.schema.errors import unfit as unfit
from dlbridge.kernels.schema.parts import Bindings, Described, Parameter, Result
from dlbridge.kernels.schema.rules import MAX_RANK

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema

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
    bindings = _bind_sizes(schema, scalars)
    failed = _bind_all(schema, tensors, bindings)
    if failed is None:
        failed = _check_expressions(schema, tensors, bindings)
        if failed is None:
            return bindings
    else:  # what the tensors before it say, and not the parts of it that fitted
        bindings = _bind_sizes(schema, scalars)
        _bind_all(schema, tensors[:failed], bindings)
    raise mismatch(schema, failed, tensors[failed], bindings)


def _bind_sizes(schema: Schema, scalars: Scalars) -> Bindings:
    """Bind the names that are scalars."""
    bindings = Bindings()
    for place, name in schema.sizes:
        value = None if scalars is None else scalars[place]
        if is_outside(value):
            raise negative(schema, name, value)
        bindings.names[name] = value
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
    except ArithmeticError:
        return False


# ---- results -----------------------------------------------------------------------------------


def results_of(schema: Schema, bindings: Bindings) -> list[tuple[Any, DType]]:
    """Return shape and dtype of each result; see `Schema.results_of`."""
    return [
        (_result_shape(schema, result, bindings), _result_dtype(result, bindings))
        for result in schema.results
    ]


def _result_dtype(result: Result, bindings: Bindings) -> DType:
    return result.dtype.only or bindings.dtypes[result.dtype.variable]


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
        except ArithmeticError as error:
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


def check_out(schema: Schema, bindings: Bindings, outs: Tensors) -> None:
    """Compare buffers for the results with what they must be; see `Schema.check_out`."""
    count = len(schema.results)
    if len(outs) != count:
        raise UnsupportedTypeError(
            refusal(schema.qualified, "out", several(count), f"{len(outs)} of them")
        )
    expected = results_of(schema, bindings)
    places = range(len(schema.tensors), len(schema.tensors) + count)
    for place, out, (shape, dtype) in zip(places, outs, expected, strict=True):
        if out is None or out.dtype is not dtype or not _same_shape(shape, out.shape):
            raise mismatch(schema, place, out, bindings)


def _same_shape(one: Shape, other: Shape) -> bool:
    if one is None or other is None:
        return True
    return len(one) == len(other) and all(map(same_extent, one, other))


# ---- for the native core -----------------------------------------------------------------------


def explain(schema: Schema, described: Iterable[Any], scalars: Scalars = None) -> DLBridgeError:
    """Return the exception for tensors that the native core did not take.

    Args:
        schema: the kernel's.
        described: inputs, then results if they are at hand: None for one that is left out, else
            (shape, dtype, source, device), the dtype as DType or (code, bits, lanes), the device
            as text or as (type, id).
        scalars: as for `bind`.
    """
    tensors = [None if one is None else _read_described(*one) for one in described]
    count = len(schema.tensors)
    try:
        bindings = bind(schema, tensors[:count], scalars)
        results_of(schema, bindings)
        if len(tensors) > count:
            check_out(schema, bindings, tensors[count:])
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

"""Schemas made from another one: of a kernel that writes in place, of a derivative."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema.dims import Dim
from dlbridge.kernels.schema.parts import MISSING, Parameter, Result

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema


def with_mutated(schema: Schema, names: Iterable[str | int]) -> Schema:
    """Return the schema with more tensors that are written; see `Schema.with_mutated`."""
    wanted = {_tensor_name(schema, name) for name in names}
    parameters = [
        part._replace(mutated=part.mutated or part.name in wanted) for part in schema.parameters
    ]
    return type(schema)(schema.namespace, schema.name, parameters, schema.results)


def _tensor_name(schema: Schema, name: str | int) -> str:
    names = [part.name for part in schema.tensors]
    found = name in names if isinstance(name, str) else 0 <= name < len(names)
    if not found:
        raise ArgumentError(
            f"{schema.qualified}: mutates: expected tensor arguments ({', '.join(names)}), "
            f"got {name!r}"
        )
    return name if isinstance(name, str) else names[name]


def make_vjp(schema: Schema, name: str | None) -> Schema:
    """Return the schema of the vjp; see `Schema.vjp`."""
    if schema.mutated:
        written = ", ".join([schema.tensors[place].name for place in schema.mutated])
        raise _refuse(schema, f"it writes {written} in place")
    tensors = _name_dims(schema)
    cotangents = [
        Parameter(cotangent_name(schema, result), "tensor", result.dtype, result.dims)
        for result in schema.results
        if result.dtype.may_be_floating
    ]
    gradients = [
        Result(f"grad_{part.name}", part.dtype, part.dims)
        for part in tensors
        if part.dtype is not None and part.dtype.may_be_floating
    ]
    if not (cotangents and gradients):
        raise _refuse(schema, f"it has no floating {'argument' if cotangents else 'result'}")
    scalars = [part._replace(keyword_only=True) for part in schema.scalars]
    namespace, _, last = (name or f"{schema.qualified}_vjp").partition("::")
    try:
        return type(schema)(namespace, last, [*tensors, *cotangents, *scalars], gradients)
    except ArgumentError as error:
        raise _refuse(schema, str(error)) from error


def cotangent_name(schema: Schema, result: Result) -> str:
    """Return what a vjp calls the cotangent of a result."""
    return "grad" if len(schema.results) == 1 else f"grad_{result.name}"


def _name_dims(schema: Schema) -> list[Parameter]:
    """Return the tensors, passed by position, with a name for every `_` so that it is known."""
    scalars = [part.name for part in schema.scalars]  # which would be dimensions
    taken = {*schema.names, *scalars}
    tensors = []
    for part in schema.tensors:
        dims = []
        for index, dim in enumerate(part.dims):
            if dim.kind == "any":
                name = f"{part.name}_{index}"
                while name in taken:
                    name += "_"
                taken.add(name)
                dim = Dim("name", name)
            dims.append(dim)
        tensors.append(part._replace(dims=tuple(dims), default=MISSING, keyword_only=False))
    return tensors


def _refuse(schema: Schema, why: str) -> ArgumentError:
    return ArgumentError(f"{schema.qualified}: no schema of a vjp can be derived: {why}")

"""What `torch.onnx.export` writes for kernels: the operators that `register_onnxruntime` makes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Mapping
from importlib import import_module
from typing import Any

from dlbridge import registry
from dlbridge.errors import ArgumentError, FrameworkMissingError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.library import Library, kernels_of
from dlbridge.kernels.schema import LIST_KINDS, Parameter
from dlbridge.signals import not_from_handler

_Attribute = Any  # an int, a float, a str, a list of numbers, or an attribute of onnxscript
_TYPES = (
    "bool", "uint8", "int8", "uint16", "int16", "uint32", "int32", "uint64", "int64", "float16",
    "bfloat16", "float", "double", "complex64", "complex128", "float8e4m3fn", "float8e4m3fnuz",
    "float8e5m2", "float8e5m2fnuz",
)  # fmt: skip


def onnx_translations(
    kernels: Kernel | Library | Iterable[Kernel],
) -> dict[Any, Callable[..., Any]]:
    """Return what `torch.onnx.export` takes as `custom_translation_table=`.

    A call of a kernel `mylib::scale` in a model becomes a node `scale` of the domain `mylib`, which
    `register_onnxruntime` makes an operator of ONNX Runtime.

    Args:
        kernels: a kernel, several, or what `load_library` returned, of which kernels are left out
            that no model can have; each with a schema, and none that writes an argument. A model
            names one version of each domain, the highest `version` of the domain's kernels here.

    Raises:
        ArgumentError: a kernel has no schema, writes an argument, or can be no node.

    Example:
        table = dlbridge.onnx_translations([mylib.scale])
        torch.onnx.export(model, (x,), "model.onnx", dynamo=True, custom_translation_table=table)
    """
    listed = kernels_of(kernels, "onnx_translations", _check)
    from dlbridge.frameworks.torch.operators import operator  # which imports torch

    versions: dict[str, int] = {}  # of the domains, of which a model names one version each
    for kernel in listed:
        space = kernel.name.partition("::")[0]
        versions[space] = max(versions.get(space, 1), kernel.version)
    return {operator(each).default: _translation(each, versions) for each in listed}


def _check(kernel: Kernel) -> None:
    assert kernel.schema is not None
    if kernel.schema.mutated:
        raise ArgumentError(
            f"onnx_translations: {kernel.name} writes {', '.join(kernel.schema.written)}, and "
            "values of a model never change"
        )


def _translation(kernel: Kernel, versions: Mapping[str, int]) -> Callable[..., Any]:
    schema = kernel.schema
    assert schema is not None

    def translate(*args: Any, **kwargs: Any) -> Any:
        values = _import("onnxscript").values
        given = dict(zip((part.name for part in schema.parameters), args, strict=False)) | kwargs
        inputs = [given.get(part.name) for part in schema.tensors]
        while inputs and inputs[-1] is None:
            del inputs[-1]
        attributes = {
            part.name: _attribute(kernel.name, part, given[part.name])
            for part in schema.scalars
            if given.get(part.name) is not None
        }
        opset = values.Opset(schema.namespace, versions[schema.namespace])
        node = values.Op(opset, schema.name, _op_schema(kernel, attributes))
        return node(*inputs, **attributes)

    translate.__name__ = schema.name
    return translate


def _attribute(call: str, part: Parameter, value: Any) -> _Attribute:
    """Return a scalar as ONNX has it; a float64 that no attribute holds makes it text."""
    if part.kind not in LIST_KINDS:
        found = _number(call, part.name, value)
        return found if isinstance(found, str) or _is_exact(found) else repr(found)
    numbers = [_number(call, part.name, each) for each in value]
    if part.kind == "float[]":
        numbers = [float(each) for each in numbers]
    if not all(map(_is_exact, numbers)):
        return ", ".join(map(repr, numbers))
    if numbers:
        return numbers
    ir = _import("onnxscript").ir  # no element says of which kind it is
    empty: _Attribute = (ir.AttrInt64s if part.kind == "int[]" else ir.AttrFloat32s)(part.name, ())
    return empty


def _number(call: str, name: str, value: Any) -> Any:
    if isinstance(value, bool | int | float | str):
        return int(value) if isinstance(value, bool) else value
    raise ArgumentError(
        f"onnx_translations: {call}: argument {name!r} is computed by the model, and attributes of "
        "its nodes are constants"
    )


def _is_exact(number: float) -> bool:
    """Return whether an attribute holds the number."""
    if isinstance(number, int) or number != number:
        return True
    try:
        exact: bool = struct.unpack("f", struct.pack("f", number))[0] == number
    except not_from_handler(OverflowError):
        return False
    return exact


def _op_schema(kernel: Kernel, attributes: dict[str, _Attribute]) -> Any:
    """Return the operator of a call as ONNX declares operators; any dtypes, which torch knows."""
    schema = kernel.schema
    assert schema is not None
    defs = _import("onnx").defs
    kinds = defs.OpSchema.AttrType
    lists = {"int[]": kinds.INTS, "float[]": kinds.FLOATS}
    types = {int: kinds.INT, float: kinds.FLOAT, str: kinds.STRING}
    of_lists = {part.name: lists[part.kind] for part in schema.scalars if part.kind in lists}
    option = defs.OpSchema.FormalParameterOption
    parts: list[Any] = [*schema.tensors, *schema.results]
    names = {part.name: f"T{index}" for index, part in enumerate(parts)}

    def declare(part: Any) -> Any:
        optional = getattr(part, "optional", False)
        chosen = option.Optional if optional else option.Single
        return defs.OpSchema.FormalParameter(part.name, names[part.name], param_option=chosen)

    return defs.OpSchema(
        schema.name,
        schema.namespace,
        kernel.version,
        inputs=[declare(part) for part in schema.tensors],
        outputs=[declare(part) for part in schema.results],
        type_constraints=[
            (name, [f"tensor({each})" for each in _TYPES], "") for name in names.values()
        ],
        attributes=[
            defs.OpSchema.Attribute(
                name, types.get(type(value)) or of_lists[name], "", required=False
            )
            for name, value in attributes.items()
        ],
    )


def _import(name: str) -> Any:
    """Return a package that `torch.onnx.export` needs as well."""
    try:
        return registry.load(import_module, name)
    except not_from_handler(ImportError) as error:
        raise FrameworkMissingError(
            f"onnx_translations: {name} is not installed here ({error}); pip install onnxscript"
        ) from error

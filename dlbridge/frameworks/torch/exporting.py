"""What `torch.onnx.export` writes for kernels: the operators that `register_onnxruntime` makes."""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable
from importlib import import_module
from typing import Any

from dlbridge import registry
from dlbridge.errors import ArgumentError, FrameworkMissingError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.library import Library, kernels_of
from dlbridge.kernels.schema import Schema

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
        kernels: a kernel, several, or what `load_library` returned; each with a schema, and none
            that writes an argument.

    Raises:
        ArgumentError: a kernel has no schema, or writes an argument.

    Example:
        table = dlbridge.onnx_translations([mylib.scale])
        torch.onnx.export(model, (x,), "model.onnx", dynamo=True, custom_translation_table=table)
    """
    listed = kernels_of(kernels, "onnx_translations")
    for kernel in listed:
        assert kernel.schema is not None
        if kernel.schema.mutated:
            raise ArgumentError(
                f"onnx_translations: {kernel.name} writes {', '.join(kernel.schema.written)}, and "
                "values of a model never change"
            )
    from dlbridge.frameworks.torch.operators import operator  # which imports torch

    return {operator(kernel).default: _translation(kernel) for kernel in listed}


def _translation(kernel: Kernel) -> Callable[..., Any]:
    schema = kernel.schema
    assert schema is not None

    def translate(*args: Any, **kwargs: Any) -> Any:
        values = _import("onnxscript").values
        given = dict(zip((part.name for part in schema.parameters), args, strict=False)) | kwargs
        inputs = [given.get(part.name) for part in schema.tensors]
        while inputs and inputs[-1] is None:
            del inputs[-1]
        attributes = {
            part.name: _attribute(given[part.name])
            for part in schema.scalars
            if given.get(part.name) is not None
        }
        opset = values.Opset(schema.namespace, 1)
        node = values.Op(opset, schema.name, _op_schema(schema, attributes))
        return node(*inputs, **attributes)

    translate.__name__ = schema.name
    return translate


def _attribute(value: Any) -> int | float | str:
    """Return a scalar as ONNX has it; a float64 that no attribute holds is text."""
    if isinstance(value, int | str):
        return int(value) if isinstance(value, bool) else value
    number = float(value)
    try:
        is_exact = struct.unpack("f", struct.pack("f", number))[0] == number
    except OverflowError:
        is_exact = False
    return number if is_exact or number != number else repr(number)


def _op_schema(schema: Schema, attributes: dict[str, int | float | str]) -> Any:
    """Return the operator of a call as ONNX declares operators; any dtypes, which torch knows."""
    defs = _import("onnx").defs
    kinds = defs.OpSchema.AttrType
    types = {int: kinds.INT, float: kinds.FLOAT, str: kinds.STRING}
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
        1,
        inputs=[declare(part) for part in schema.tensors],
        outputs=[declare(part) for part in schema.results],
        type_constraints=[
            (name, [f"tensor({each})" for each in _TYPES], "") for name in names.values()
        ],
        attributes=[
            defs.OpSchema.Attribute(name, types[type(value)], "", required=False)
            for name, value in attributes.items()
        ],
    )


def _import(name: str) -> Any:
    """Return a package that `torch.onnx.export` needs as well."""
    try:
        return registry.load(import_module, name)
    except ImportError as error:
        raise FrameworkMissingError(
            f"onnx_translations: {name} is not installed here ({error}); pip install onnxscript"
        ) from error

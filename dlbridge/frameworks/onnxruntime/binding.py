"""Kernels in ONNX Runtime: called with OrtValues, and as operators of models.

A kernel is an operator of the domain that its namespace names, of the version that it was wrapped
with. In a model's node

    inputs      are the tensors of the schema, "" for an optional one that is left out
    outputs     are the results, then what the kernel writes in place
    attributes  are the scalars; one that is left out has its default

ONNX has no float64 among attributes: a scalar of kind float may be a float, an int, or text, and a
list of them floats, ints, or one text, its numbers with commas between.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from typing import Any
from weakref import WeakKeyDictionary

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.frameworks.onnxruntime import ELEMENT_TYPES
from dlbridge.kernels.binding import Binding
from dlbridge.kernels.kernel import Kernel, recorded
from dlbridge.kernels.library import Library, kernels_of
from dlbridge.kernels.schema import DTypeSet, Schema

_KINDS = {"int": 1, "bool": 1, "float": 2, "str": 3, "int[]": 4, "float[]": 5}
_NUMBERS = {triple: number for number, triple in ELEMENT_TYPES.items()}
_MAX_OVERLOADS = 1000
_PLANS: dict[tuple[str, ...], object] = {}
_PLANNING = registry.lock()
# What session options have: the kernels by their keys.
_REGISTERED: WeakKeyDictionary[Any, dict[str, Kernel]] = WeakKeyDictionary()


class OnnxRuntime(Binding):
    """The direct route: the kernel runs on the memory of OrtValues."""

    name = "onnxruntime"


def register_onnxruntime(
    session_options: Any, kernels: Kernel | Library | Iterable[Kernel]
) -> None:
    """Make kernels operators of the sessions that `session_options` opens.

    A kernel `mylib::scale` is the operator `scale` of the domain `mylib`. Its nodes run on the CPU,
    without Python where the kernel has none; shapes and dtypes of results are inferred from the
    schema when the model is loaded. A kernel that fails ends `session.run` with its own text.

    Args:
        session_options: an `onnxruntime.SessionOptions`.
        kernels: a kernel, several, or what `load_library` returned, of which kernels are left out
            that no model can have; each with a schema and a function for the CPU. Those of one
            namespace are passed in one call; kernels that these options have are passed over.

    Raises:
        ArgumentError: a kernel cannot be an operator, two have one name, or the options have other
            operators of the domain from an earlier call.

    Example:
        options = onnxruntime.SessionOptions()
        dlbridge.register_onnxruntime(options, [mylib.scale, mylib.rope])
        session = onnxruntime.InferenceSession("model.onnx", options)
    """
    register = getattr(session_options, "register_custom_ops_library", None)
    if register is None:
        raise ArgumentError(
            "register_onnxruntime: session_options must be an onnxruntime.SessionOptions, got "
            f"{type(session_options).__name__}"
        )
    listed = kernels_of(kernels, "register_onnxruntime", _check)
    names = [kernel.name for kernel in listed]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise ArgumentError(f"register_onnxruntime: two of the kernels are called {twice}")
    with _PLANNING:
        had = _REGISTERED.setdefault(session_options, {})
        keys = {recorded(kernel): kernel for kernel in listed}
        left = [kernel for key, kernel in keys.items() if key not in had]
        spaces = {kernel.schema.namespace: kernel.name for kernel in had.values() if kernel.schema}
        for kernel in left:
            assert kernel.schema is not None
            if kernel.schema.namespace in spaces:
                raise ArgumentError(
                    f"register_onnxruntime: {kernel.name}: these session options have "
                    f"{spaces[kernel.schema.namespace]} already, and ONNX Runtime takes a domain "
                    "once; pass all kernels of a namespace in one call"
                )
        if left:
            native.onnxruntime_register(_plan(left), register, native.__file__)
        had |= keys


def _check(kernel: Kernel) -> None:
    assert kernel.schema is not None
    call = f"register_onnxruntime: {kernel.name}"
    if "cpu" not in kernel.functions:
        raise ArgumentError(f"{call} has no function for the CPU, where its nodes would run")
    if any(part.optional and part.mutated for part in kernel.schema.tensors):
        raise ArgumentError(
            f"{call} writes a tensor that may be left out, which would be an output without a type"
        )
    if not (kernel.schema.results or kernel.schema.mutated):
        raise ArgumentError(f"{call} has no results: a model would leave its nodes out")
    _describe("", kernel)  # refuses dtypes that ONNX lacks


def _plan(kernels: Sequence[Kernel]) -> object:
    keys = tuple(map(recorded, kernels))
    if keys not in _PLANS:
        spaces: dict[str, list[Any]] = {}
        for key, kernel in zip(keys, kernels, strict=True):
            assert kernel.schema is not None
            spaces.setdefault(kernel.schema.namespace, []).append(_describe(key, kernel))
        domains = tuple(
            (name, tuple(described), sum(len(each[-1]) for each in described))
            for name, described in spaces.items()
        )
        _PLANS[keys] = native.onnxruntime_plan(ELEMENT_TYPES, domains)
    return _PLANS[keys]


def _describe(key: str, kernel: Kernel) -> tuple[Any, ...]:
    schema = kernel.schema
    assert schema is not None
    scalars = tuple(
        (
            part.name,
            _KINDS[part.kind],
            -1 if part.length is None else part.length,
            part.default if isinstance(part.default, int | float | str | tuple) else None,
            not part.optional,
        )
        for part in schema.scalars
    )
    optional = sum(1 << index for index, part in enumerate(schema.tensors) if part.optional)
    mutated = sum(1 << index for index in schema.mutated)
    head = (key, schema.name, kernel.version)
    return *head, scalars, optional, mutated, _overloads(schema)


def _overloads(schema: Schema) -> tuple[tuple[tuple[int, ...], tuple[int, ...]], ...]:
    """Return the element types of inputs and outputs, for each choice of the dtypes."""
    variables = {part.variable: _element_types(schema, part) for part in schema.dtypes}
    if math.prod(map(len, variables.values())) > _MAX_OVERLOADS:
        raise ArgumentError(
            f"register_onnxruntime: {schema.qualified} takes more than {_MAX_OVERLOADS} "
            "combinations of dtypes, each an operator of its own; narrow its sets of dtypes"
        )
    found = []
    for choice in itertools.product(*variables.values()):
        chosen = dict(zip(variables, choice, strict=True))
        inputs = [chosen[_variable(part.dtype)] for part in schema.tensors]
        results = [chosen[_variable(part.dtype)] for part in schema.results]
        found.append((tuple(inputs), (*results, *(inputs[place] for place in schema.mutated))))
    return tuple(found)


def _variable(dtype: DTypeSet | None) -> str:
    assert dtype is not None
    return dtype.variable


def _element_types(schema: Schema, part: DTypeSet) -> list[int]:
    triples = [each.triple for each in part.dtypes] or list(_NUMBERS)
    known = [_NUMBERS[each] for each in triples if each in _NUMBERS and each[1] >= 8]
    if not known:
        raise ArgumentError(
            f"register_onnxruntime: {schema.qualified} has a tensor of {part.text}, which ONNX "
            "Runtime does not have"
        )
    return known


BINDING = OnnxRuntime()

"""Python functions as kernels: `fn(x, y, *, alpha=1.0)` over the tensors of one framework.

The function is called from any thread, by C (`_core/abi/python.c`), with tensors of its own
framework over the caller's memory:

- tensors by position, in the order of the schema; None for an optional one that is left out;
- scalars by keyword; `stream=` too, the address of the device's stream, if it has that parameter;
- results are what it returns: a tensor, or a tuple of them, of any framework. If it has a parameter
  `out`, it gets the tensor, or a tuple of them, to write into.

The tensors are on loan. A function that keeps one, or a view of one, past its return fails with
KernelError; one that writes into an argument that is not declared to be written fails, too, where
its framework can tell: NumPy arrays and Tensors are read-only, torch counts versions, JAX arrays
are immutable, and CuPy cannot tell. What was kept is given memory of its own wherever its owner can
be found: torch tensors with all their views, arrays and Tensors themselves (a kept *view* of a
NumPy array or of a Tensor points to the caller's memory still); JAX arrays are deleted.

Gradients through the function are the caller's: `vjp=` says them, and results are detached. Only
tensors of the function's own framework bypass all this, see `direct_call`.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange import adapter
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.kinds.python_support import support_for
from dlbridge.kernels.schema.parts import join_parts

if TYPE_CHECKING:
    from dlbridge.kernels.schema.schema import Schema


class _Traits(NamedTuple):
    protects: bool  # keeps read-only memory from being written
    counts_versions: bool = False
    immutable: bool = False


TRAITS = {
    "numpy": _Traits(protects=True),
    "torch": _Traits(protects=False, counts_versions=True),
    "jax": _Traits(protects=True, immutable=True),
    "cupy": _Traits(protects=False),
    "dlbridge": _Traits(protects=True),
}


def target(
    function: Callable[..., Any], framework: str, schema: Schema | None
) -> native.PythonFunction:
    """Return what the core calls for a Python function of `framework`.

    Args:
        function: called as the module says.
        framework: whose tensors it takes, a key of `TRAITS`; imported here.
        schema: the kernel's, or None: all tensors by position, writable where the caller's are.

    Raises:
        UnsupportedTypeError: the function's parameters are not those of the schema.
        ArgumentError: the framework is unknown, or its tensors cannot be written as declared.
        FrameworkMissingError: the framework is not installed.
    """
    name = schema.qualified if schema is not None else name_of(function)
    traits = TRAITS.get(framework)
    if traits is None:
        raise ArgumentError(
            f"{name}: Python functions take tensors of {', '.join(TRAITS)}, got {framework!r}"
        )
    adapter.start(adapter.adapter(framework))
    has_out, has_stream = find_special(function, schema, immutable=traits.immutable)
    if schema is not None:
        _check_parameters(function, schema, has_out, has_stream, traits)
    scalars = [] if schema is None else [parameter.name for parameter in schema.scalars]
    special = (["stream"] if has_stream else []) + (["out"] if has_out else [])
    support = support_for(framework, name)
    return native.PythonFunction(
        support.prepare(function),
        _converter(framework),
        framework,
        support,
        () if schema is None else tuple(_tensor_names(schema)),
        tuple(scalars + special),
        takes_stream=has_stream,
        takes_out=has_out,
        protects=traits.protects,
        counts_versions=traits.counts_versions,
    )


def name_of(function: object) -> str:
    """Return what a function is called in texts."""
    name = getattr(function, "__name__", None)
    return name if isinstance(name, str) else describe(function)


def _tensor_names(schema: Schema) -> list[str]:
    return [part.name for part in join_parts(schema.tensors, schema.results)]


_OWN: list[native.Converter] = []


def _converter(framework: str) -> native.Converter:
    """Return the native converter to `framework`; its own for Tensors, which nobody converts to."""
    if framework != "dlbridge":
        return adapter.converter(framework)
    if not _OWN:
        made = native.Converter("dlbridge", "Tensors for Python kernels.")
        made.activate("tensor", adapter.adapter("dlbridge").limits())
        _OWN.append(made)
    return _OWN[0]


# ---- parameters --------------------------------------------------------------------------------


def find_special(
    function: Callable[..., Any], schema: Schema | None, *, immutable: bool
) -> tuple[bool, bool]:
    """Return whether the function is to be given `out=` and `stream=`, by its parameters' names.

    A builtin whose parameters cannot be read returns its results.
    """
    signature = read_signature(function)
    if signature is None or schema is None:
        return False, False
    own = {parameter.name for parameter in schema.parameters}
    named = {
        name
        for name, parameter in signature.parameters.items()
        if parameter.kind in (parameter.POSITIONAL_OR_KEYWORD, parameter.KEYWORD_ONLY)
    } - own
    has_out = "out" in named and bool(schema.results) and not immutable
    return has_out, "stream" in named


def read_signature(function: Callable[..., Any]) -> inspect.Signature | None:
    """Return the signature of a function, or None for a builtin that does not tell."""
    try:
        return inspect.signature(function)
    except (TypeError, ValueError):
        return None


def _check_parameters(
    function: Callable[..., Any], schema: Schema, has_out: bool, has_stream: bool, traits: _Traits
) -> None:
    if traits.immutable and schema.mutated:
        names = ", ".join(schema.tensors[index].name for index in schema.mutated)
        raise ArgumentError(
            f"{schema.qualified}: a function of JAX arrays cannot write into {names}; return the "
            "new value as a result instead"
        )
    signature = read_signature(function)
    if signature is None:
        return
    keywords = [parameter.name for parameter in schema.scalars]
    keywords += (["stream"] if has_stream else []) + (["out"] if has_out else [])
    try:
        signature.bind(*[None for _ in schema.tensors], **dict.fromkeys(keywords))
    except TypeError as error:
        call = [parameter.name for parameter in schema.tensors] + [f"{name}=…" for name in keywords]
        raise UnsupportedTypeError(
            f"{schema.qualified}: its schema calls the function as {name_of(function)}"
            f"({', '.join(call)}), but it takes {signature}: {error}"
        ) from None

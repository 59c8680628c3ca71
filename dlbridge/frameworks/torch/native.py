"""Kernels that are functions of torch tensors, called with torch tensors: no operator between.

torch differentiates, traces and batches them as it does any Python function. Arguments and results
are compared with the schema, and nothing else happens: no loans, no protection of arguments from
being written. See `is_native_to` for when this is so.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from inspect import Parameter
from typing import Any

import torch

from dlbridge.dtype import DType
from dlbridge.errors import UnsupportedTypeError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.kinds import read_signature
from dlbridge.kernels.schema import Arguments, Schema, described


def call(kernel: Kernel, arguments: Arguments) -> Any:
    """Call the function of a torch kernel with torch tensors, those of `arguments`.

    Raises:
        UnsupportedTypeError: a wrong dtype, or a wrong number of results.
        ArgumentError: a wrong shape.
    """
    schema = kernel.schema
    assert schema is not None
    tensors = arguments.tensors
    seen = [None if each is None else described(each) for each in tensors]
    bindings = schema.bind(seen, arguments.scalars)
    if arguments.out is not None:
        schema.check_out(bindings, [described(each) for each in arguments.out])
    function = _function_for(kernel, tensors)
    first = next((each for each in tensors if each is not None), None)
    out, place = arguments.out, _special(function, schema, "out")
    given: dict[str, Any] = (
        {} if _special(function, schema, "stream") is None else {"stream": _stream(first)}
    )
    if out is None and place is not None and place.default is place.empty:
        out = [_empty(first, *result) for result in schema.results_of(bindings)]
    if out is not None and place is not None:
        given["out"] = out[0] if len(out) == 1 else tuple(out)
        _call_with(function, schema, arguments, given)
        return _unpack(out)
    results = _several(_call_with(function, schema, arguments, given), schema)
    schema.check_out(bindings, [described(each) for each in results])
    if out is None:
        return _unpack(results)
    for destination, result in zip(out, results, strict=True):
        destination.copy_(result)
    return _unpack(out)


def traceable(kernel: Kernel) -> Callable[..., Any]:
    """Return a function that does what a call of a torch kernel does, without its checks.

    torch.compile traces it, and the kernel's own function with it.
    """
    schema = kernel.schema
    assert schema is not None
    function = next(iter(kernel.functions.values())).callable
    takes_out = _special(function, schema, "out") is not None

    def run(*args: Any, **kwargs: Any) -> Any:
        arguments = schema.arrange(args, kwargs, traced=True)
        out = arguments.out
        if out is not None and takes_out:
            given = {"out": out[0] if len(out) == 1 else tuple(out)}
            _call_with(function, schema, arguments, given)
            return _unpack(out)
        results = _several(_call_with(function, schema, arguments, {}), schema)
        for destination, result in zip(out or (), results, strict=False):
            destination.copy_(result)
        return _unpack(results if out is None else out)

    return run


def _call_with(
    function: Callable[..., Any], schema: Schema, arguments: Arguments, given: dict[str, Any]
) -> Any:
    """Return what the function returns: tensors go by position, scalars by keyword."""
    names = [part.name for part in schema.scalars]
    scalars = dict(zip(names, arguments.scalars, strict=True))
    return function(*arguments.tensors, **scalars, **given)


def _function_for(kernel: Kernel, tensors: Sequence[Any]) -> Callable[..., Any]:
    """Return the function for the device of the tensors."""
    functions = kernel.functions
    kinds = [each.device.type for each in tensors if each is not None]
    found = functions.get(kinds[0] if kinds else "cpu") or next(iter(functions.values()))
    function: Callable[..., Any] = found.callable
    return function


def _special(function: Callable[..., Any], schema: Schema, name: str) -> Parameter | None:
    """Return the function's parameter `out` or `stream`, where it has one for us to fill in."""
    signature = read_signature(function)
    own = any(part.name == name for part in schema.parameters)
    if signature is None or own or (name == "out" and not schema.results):
        return None
    found = signature.parameters.get(name)
    return found if found is not None and found.kind in _NAMED else None


_NAMED = (Parameter.POSITIONAL_OR_KEYWORD, Parameter.KEYWORD_ONLY)


def _stream(like: Any) -> int:
    if like is None or like.device.type != "cuda":
        return 0
    return int(torch.cuda.current_stream(like.device).cuda_stream)


def _empty(like: Any, shape: Any, dtype: DType) -> Any:
    device = like.device if like is not None else None
    return torch.empty(shape, dtype=dtype.to("torch"), device=device)


def _several(value: Any, schema: Schema) -> list[Any]:
    if not schema.results:
        return []
    results = list(value) if isinstance(value, tuple | list) else [value]
    if len(results) != len(schema.results):
        plural = "" if len(schema.results) == 1 else "s"
        raise UnsupportedTypeError(
            f"{schema.qualified}: the schema has {len(schema.results)} result{plural}, the "
            f"function returned {len(results)}"
        )
    return results


def _unpack(results: Sequence[Any]) -> Any:
    return tuple(results) if len(results) > 1 else (results[0] if results else None)

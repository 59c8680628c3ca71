"""`vjp="torch"` and `vjp="jax"`: derivatives of Python functions by their own framework."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from dlbridge.errors import ArgumentError
from dlbridge.kernels.gradients.rules import Rule
from dlbridge.kernels.kinds import read_signature
from dlbridge.kernels.schema import Parameter, Result, Schema, cotangent_name, join_parts

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel

Function = Callable[..., Any]


class Automatic(NamedTuple):
    """A rule to be derived by a framework from the kernel's own function.

    The vjp of a derived kernel is one: it is derived in turn once somebody differentiates twice.

    Attributes:
        framework: "torch" or "jax".
        wrap: `dlbridge.wrap`, which makes the kernel of the derivative.
    """

    framework: str
    wrap: Callable[..., Kernel]

    def derive(self, kernel: Kernel, word: str) -> Rule:
        """Return as a rule the kernel "<name>_vjp" (or _jvp): the derivative of the function.

        It is a Python function of the same framework, and can be differentiated in turn.

        Raises:
            ArgumentError: the kernel is no Python function of that framework, takes optional
                tensors or complex ones, or must write into `out`.
        """
        schema, framework = kernel.schema, self.framework
        assert schema is not None
        if framework not in _PULLBACKS:
            raise ArgumentError(
                f"{schema.qualified}: {word}= must be a Kernel, a Python function, 'torch' or "
                f"'jax', got {framework!r}"
            )
        function = _find_function(kernel, framework, word)
        _check(schema, function, framework, word)
        if word == "vjp":
            derivative = _without_clashes(schema).vjp(f"{schema.qualified}_vjp")
            made = _make_vjp(function, schema, framework)
        else:
            derivative = _jvp_schema(schema)
            made = _make_jvp(function, schema, framework)
        made.__name__ = derivative.name
        second = self.wrap(made, derivative, abi=f"python:{framework}", vjp=self)
        return Rule((), 0, second, is_derived=True)


def _find_function(kernel: Kernel, framework: str, word: str) -> Function:
    for each in kernel.functions.values():
        if each.framework == framework:
            function: Function = each.callable
            return function
    raise ArgumentError(
        f"{kernel.name}: {word}={framework!r} differentiates a Python function of {framework}, "
        f"and this is {kernel.kind}; pass a Kernel or a Python function"
    )


def _check(schema: Schema, function: Function, framework: str, word: str) -> None:
    optional = [part.name for part in schema.tensors if part.optional]
    signature = read_signature(function)
    out = signature.parameters.get("out") if signature is not None else None
    parts = join_parts(schema.tensors, schema.results)
    refusals = {
        f"the tensor {', '.join(optional)} is optional": bool(optional),
        "the function writes into `out` and returns nothing": out is not None
        and out.default is out.empty,
        "a tensor is complex, and frameworks differ in what its gradient is": any(
            dtype.is_complex for part in parts if part.dtype for dtype in part.dtype.dtypes
        ),
    }
    for why, applies in refusals.items():
        if applies:
            raise ArgumentError(
                f"{schema.qualified}: {word}={framework!r} cannot be derived: {why}; "
                "pass a Python function"
            )


# ---- schemas -----------------------------------------------------------------------------------


def _without_clashes(schema: Schema) -> Schema:
    """Return the schema with other names for arguments called as a cotangent will be.

    So they are in a derived kernel that is differentiated in turn; functions get tensors by
    position, so the names do not matter to them.
    """
    names = [part.name for part in schema.parameters]
    taken = {cotangent_name(schema, result) for result in schema.results}
    renamed = []
    for part in schema.parameters:
        name = part.name
        while name in taken or (name != part.name and name in names):
            name += "_"
        renamed.append(part._replace(name=name))
    return Schema(schema.namespace, schema.name, renamed, schema.results)


def _jvp_schema(schema: Schema) -> Schema:
    moving = _floating(schema.tensors)
    tensors = [part._replace(keyword_only=False) for part in schema.tensors]
    tangents = [
        schema.tensors[place]._replace(name=f"tangent_{schema.tensors[place].name}")
        for place in moving
    ]
    scalars = [part._replace(keyword_only=True) for part in schema.scalars]
    results = [
        schema.results[place]._replace(name=f"tangent_{schema.results[place].name}")
        for place in _floating(schema.results)
    ]
    return Schema(schema.namespace, f"{schema.name}_jvp", [*tensors, *tangents, *scalars], results)


def _floating(parts: Sequence[Parameter | Result]) -> list[int]:
    return [i for i, part in enumerate(parts) if part.dtype and part.dtype.may_be_floating]


# ---- functions ---------------------------------------------------------------------------------


def _restricted(function: Function, schema: Schema, primals: Sequence[Any]) -> Function:
    """Return `function` of its floating arguments alone, giving its floating results alone."""
    moving, wanted = _floating(schema.tensors), _floating(schema.results)

    def forward(*values: Any) -> tuple[Any, ...]:
        given = list(primals)
        for place, value in zip(moving, values, strict=True):
            given[place] = value
        found = function(*given)
        several = found if isinstance(found, tuple | list) else (found,)
        return tuple(several[place] for place in wanted)

    return forward


def _make_vjp(function: Function, schema: Schema, framework: str) -> Function:
    count, moving = len(schema.tensors), _floating(schema.tensors)
    pull_back = _PULLBACKS[framework]

    def vjp(*tensors: Any, **scalars: Any) -> tuple[Any, ...]:
        primals, cotangents = tensors[:count], tensors[count:]
        forward = _restricted(_with(function, scalars), schema, primals)
        return pull_back(forward, [primals[place] for place in moving], cotangents)

    return _compile_jax(vjp, schema) if framework == "jax" else vjp


def _make_jvp(function: Function, schema: Schema, framework: str) -> Function:
    count, moving = len(schema.tensors), _floating(schema.tensors)
    push_forward = _PUSHFORWARDS[framework]

    def jvp(*tensors: Any, **scalars: Any) -> tuple[Any, ...]:
        primals, tangents = tensors[:count], tensors[count:]
        forward = _restricted(_with(function, scalars), schema, primals)
        return push_forward(forward, [primals[place] for place in moving], tangents)

    return _compile_jax(jvp, schema) if framework == "jax" else jvp


def _with(function: Function, scalars: dict[str, Any]) -> Function:
    return lambda *tensors: function(*tensors, **scalars)


def _torch_pullback(
    forward: Function, primals: Sequence[Any], cotangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    torch: Any = sys.modules["torch"]
    found: tuple[Any, ...] = torch.func.vjp(forward, *primals)[1](cotangents)
    return found


def _torch_pushforward(
    forward: Function, primals: Sequence[Any], tangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    torch: Any = sys.modules["torch"]
    found: tuple[Any, ...] = torch.func.jvp(forward, tuple(primals), tangents)[1]
    return found


def _jax_pullback(
    forward: Function, primals: Sequence[Any], cotangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    jax: Any = sys.modules["jax"]
    found: tuple[Any, ...] = jax.vjp(forward, *primals)[1](tuple(cotangents))
    return found


def _jax_pushforward(
    forward: Function, primals: Sequence[Any], tangents: tuple[Any, ...]
) -> tuple[Any, ...]:
    jax: Any = sys.modules["jax"]
    found: tuple[Any, ...] = jax.jvp(forward, tuple(primals), tuple(tangents))[1]
    return found


def _compile_jax(function: Function, schema: Schema) -> Function:
    """Return the function jitted: scalars are static, since it may decide by them."""
    jax: Any = sys.modules["jax"]
    names = [part.name for part in schema.scalars]

    def derivative(*tensors: Any, **scalars: Any) -> Any:
        return compiled(*tensors, **scalars)

    compiled = jax.jit(function, static_argnames=names)
    return derivative


_PULLBACKS = {"torch": _torch_pullback, "jax": _jax_pullback}
_PUSHFORWARDS = {"torch": _torch_pushforward, "jax": _jax_pushforward}

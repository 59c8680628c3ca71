"""Kernels that are JAX functions themselves: called as they are, traced by JAX like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp

from dlbridge.errors import KernelError
from dlbridge.kernels import gradients
from dlbridge.kernels.jax_program import describe
from dlbridge.kernels.python_direct import is_own
from dlbridge.kernels.schema import Described

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema import Arguments


def is_native(kernel: Kernel) -> bool:
    """Return whether the kernel is a function of JAX arrays."""
    function = kernel.functions.get("cpu")
    own = function is not None and function.framework == "jax"
    return own and kernel.schema is not None


def make(kernel: Kernel, arguments: Arguments) -> Callable[..., Any]:
    """Return the kernel's function of the tensors that are present, with checks around it."""
    schema = kernel.schema
    assert schema is not None
    function = kernel.functions["cpu"].callable
    present = [each is not None for each in arguments.tensors]
    scalars = {
        part.name: value for part, value in zip(schema.scalars, arguments.scalars, strict=True)
    }

    def call(*tensors: Any) -> Any:
        left = iter(tensors)
        spread = [next(left) if given else None for given in present]
        described = [None if each is None else describe(kernel, each) for each in spread]
        expected = schema.results_of(schema.bind(described))
        made = function(*spread, **scalars)
        outcome = made if isinstance(made, tuple | list) else (() if made is None else (made,))
        _check(kernel, [describe(kernel, each) for each in outcome], expected)
        return made

    return call if is_own(kernel, "jax") else _with_rules(kernel, call, present, scalars)


def _with_rules(
    kernel: Kernel, call: Callable[..., Any], present: list[bool], scalars: dict[str, Any]
) -> Callable[..., Any]:
    """Return the call with the derivatives that the kernel was given in place of JAX's own."""
    vjp, jvp = gradients.make_vjp(kernel), gradients.make_jvp(kernel)
    values = list(scalars.values())

    def spread(tensors: Any) -> list[Any]:
        left = iter(tensors)
        return [next(left) if given else None for given in present]

    def several(outcome: Any) -> list[Any]:
        return list(outcome) if isinstance(outcome, tuple | list) else [outcome]

    def forward(*tensors: Any) -> Any:
        outcome = custom(*tensors)  # not `call`: a second derivative passes here
        return outcome, (tensors, tuple(several(outcome)))

    def backward(kept: Any, cotangents: Any) -> Any:
        tensors, results = kept
        assert vjp is not None
        found = vjp(spread(tensors), values, results, several(cotangents))
        return tuple(each for each, given in zip(found, present, strict=True) if given)

    def push(tensors: Any, tangents: Any) -> Any:
        outcome = custom(*tensors)
        assert jvp is not None
        found = jvp(spread(tensors), values, spread(tangents))
        made = [
            jnp.zeros(like.shape, like.dtype) if each is None else each
            for each, like in zip(found, several(outcome), strict=True)
        ]
        return outcome, (type(outcome)(made) if isinstance(outcome, tuple | list) else made[0])

    custom: Any = jax.custom_jvp(call) if jvp is not None else jax.custom_vjp(call)
    if jvp is not None:
        custom.defjvp(push)
    else:
        custom.defvjp(forward, backward)
    wrapped: Callable[..., Any] = custom
    return wrapped


def _check(kernel: Kernel, made: list[Described], expected: Any) -> None:
    """Compare what the function returned with the schema."""
    if len(made) != len(expected):
        raise KernelError(
            f"{kernel.name}: the function returned {len(made)} results instead of {len(expected)}"
        )
    assert kernel.schema is not None
    for index, (got, (shape, dtype)) in enumerate(zip(made, expected, strict=True)):
        wanted = Described(shape, dtype)
        if got.dtype is not dtype or (shape is not None and got.shape != tuple(shape)):
            name = kernel.schema.results[index].name
            raise KernelError(
                f"{kernel.name}: result {name!r}: expected {wanted.plain}, the function returned "
                f"{got.text()}"
            )

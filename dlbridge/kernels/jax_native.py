"""Kernels that are JAX functions themselves: called as they are, traced by JAX like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlbridge.errors import KernelError
from dlbridge.kernels.jax_program import describe
from dlbridge.kernels.schema import Described

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema import Arguments


def is_native(kernel: Kernel) -> bool:
    """Return whether JAX differentiates and batches the kernel by itself."""
    function = kernel.functions.get("cpu")
    own = function is not None and function.framework == "jax"
    return own and kernel.schema is not None and not (kernel.schema.mutated or kernel.vjp)


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

    return call


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

"""Kernels that are JAX functions themselves: called as they are, traced by JAX like any other."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.frameworks.jax.program import describe
from dlbridge.kernels.kinds import python_direct

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema.schema import Arguments


def is_native(kernel: Kernel) -> bool:
    """Return whether JAX runs, differentiates and batches the kernel by itself."""
    return python_direct.is_own(kernel, "jax")


def make(kernel: Kernel, arguments: Arguments) -> Callable[..., Any]:
    """Return the kernel's function of the tensors that are present, with checks around it."""
    schema = kernel.schema
    assert schema is not None
    function = next(iter(kernel.functions.values())).callable
    names = [part.name for part in schema.scalars]
    scalars = dict(zip(names, arguments.scalars, strict=True))
    present = [each is not None for each in arguments.tensors]

    def call(*tensors: Any) -> Any:
        left = iter(tensors)
        spread = [next(left) if given else None for given in present]
        seen = [None if each is None else describe(kernel, each) for each in spread]
        bound = schema.bind(seen, arguments.scalars)
        made = function(*spread, **scalars)
        several = list(made) if isinstance(made, tuple | list) else [made]
        outcome = several if schema.results else []
        if any(not hasattr(each, "shape") for each in outcome):
            raise UnsupportedTypeError(f"{kernel.name}: the function returned {made!r}")
        schema.check_out(bound, [describe(kernel, each) for each in outcome])
        return tuple(outcome) if len(outcome) > 1 else (outcome[0] if outcome else None)

    return call

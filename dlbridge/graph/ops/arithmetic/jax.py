"""Arithmetic in JAX: what `jax.numpy` lacks, or has under other rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element


@kernel("Complex", framework="jax")
def complex_(node: Node, context: Context) -> Function:
    """The parts are put together: arithmetic would make NaN of infinite ones."""
    return lambda real, imag: jax.lax.complex(*jnp.broadcast_arrays(real, imag))


@kernel("Pow", framework="jax")
def power(node: Node, context: Context) -> Function:
    """Integers by all bits of the exponent, of which `jnp.power` looks at six.

    Where the exponent is negative the fraction is cut off: a compiled run cannot refuse it.
    """
    if not element(node).is_integer:
        return jnp.power

    def run(x: Any, y: Any) -> Any:
        x, y = jnp.broadcast_arrays(x, y)
        is_one = (x == 1) | (y == 0) | ((x == -1) & (y & 1 == 0))
        inverse = jnp.where(is_one, 1, jnp.where(x == -1, -1, 0)).astype(x.dtype)
        _, _, found = jax.lax.while_loop(
            lambda state: (state[1] > 0).any(), _square, (x, y, jnp.ones_like(x))
        )
        return jnp.where(y < 0, inverse, found)

    return run


def _square(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Take one bit of the exponents into the product."""
    base, exponent, product = state
    return base * base, exponent >> 1, jnp.where(exponent & 1 == 1, product * base, product)

"""Arithmetic in JAX: what `jax.numpy` lacks, or has under other rules."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.kernel_support import Function, element, in_wider

_SAME = {
    "Rsqrt": jax.lax.rsqrt,
    "Erf": jax.lax.erf,
    "Erfc": jax.lax.erfc,
    "Erfinv": jax.lax.erf_inv,
    "Lgamma": jax.lax.lgamma,
    "Digamma": jax.lax.digamma,
    "Ndtri": jax.scipy.special.ndtri,
    "PopulationCount": lambda x: jax.lax.population_count(x).astype(jnp.uint8),
}


def _plain(function: Any) -> Any:
    def factory(node: Node, context: Context) -> Function:
        return function  # type: ignore[no-any-return]

    return factory


for _type, _function in _SAME.items():
    kernel(_type, framework="jax")(_plain(_function))


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


@kernel("Cholesky", framework="jax")
def cholesky(node: Node, context: Context) -> Function:
    """NaN in the lower triangle where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        return jnp.tril(jnp.linalg.cholesky(x, symmetrize_input=False))

    return in_wider(context, element(node), decompose)


@kernel("UnsortedSegmentSum", framework="jax", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; those out of range are left out, as in XLA."""

    def reduce(data: Any, identifiers: Any, number: Any) -> Any:
        count, rank = int(number), identifiers.ndim
        rows = data.reshape(-1, *data.shape[rank:])
        flat = identifiers.reshape(-1)
        out = jnp.zeros((count, *data.shape[rank:]), data.dtype)
        return out.at[jnp.where(flat < 0, count, flat)].add(rows, mode="drop")

    return reduce

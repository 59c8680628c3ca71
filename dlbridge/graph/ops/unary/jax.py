"""Element-wise functions of one operand in JAX: what `jax.numpy` lacks."""

from __future__ import annotations

import jax

from dlbridge.graph.ops.kernels import register_functions

_FUNCTIONS = {
    "Rsqrt": jax.lax.rsqrt,
    "Erf": jax.lax.erf,
    "Erfc": jax.lax.erfc,
    "Erfinv": jax.lax.erf_inv,
    "Lgamma": jax.lax.lgamma,
    "Digamma": jax.lax.digamma,
    "Ndtri": jax.scipy.special.ndtri,
}
register_functions("jax", _FUNCTIONS)

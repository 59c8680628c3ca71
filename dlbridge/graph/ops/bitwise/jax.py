"""The bits of integers in JAX."""

from __future__ import annotations

import jax
import jax.numpy as jnp

from dlbridge.graph.ops.kernels import register_functions

_FUNCTIONS = {
    "PopulationCount": lambda x: jax.lax.population_count(x).astype(jnp.uint8),
}
register_functions("jax", _FUNCTIONS)

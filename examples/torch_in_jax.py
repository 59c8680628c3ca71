"""A PyTorch function inside of jax.jit, and inside of jax.grad.

PyTorch has a mish activation, say, that a model in JAX wants. Wrapped with `abi="python:torch"`,
the function is called by XLA while the compiled program runs, with torch tensors over XLA's own
memory. `vjp="torch"` differentiates it by torch's own autograd: JAX sees a function like any other.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

import dlbridge


def torch_mish(x: torch.Tensor, *, scale: float) -> torch.Tensor:
    assert type(x) is torch.Tensor
    return scale * torch.nn.functional.mish(x)


mish = dlbridge.wrap(
    torch_mish,
    "examples::mish(x: float[...], *, scale: float = 1.0) -> float[...]",
    abi="python:torch",
    vjp="torch",
)


def jax_mish(x: jax.Array) -> jax.Array:
    return x * jnp.tanh(jax.nn.softplus(x))


def loss(activation, weights, x, y):
    hidden = activation(x @ weights[0])
    return ((hidden @ weights[1] - y) ** 2).mean()


random = np.random.default_rng(0)
x = jnp.asarray(random.standard_normal((64, 4)), jnp.float32)
y = jnp.sin(x.sum(1, keepdims=True))
start = [jnp.asarray(random.standard_normal((4, 32)), jnp.float32) / 2]
start += [jnp.asarray(random.standard_normal((32, 1)), jnp.float32) / 4]

# The value and the gradient, compiled by XLA, agree with those of the same function in JAX.
ours, theirs = (
    jax.jit(jax.value_and_grad(lambda weights, f=f: loss(f, weights, x, y)))(start)
    for f in (mish, jax_mish)
)
for one, other in zip(jax.tree.leaves(ours), jax.tree.leaves(theirs), strict=True):
    np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-6)


# So a whole training loop may run in one compiled program.
def step(weights, _):
    gradients = jax.grad(lambda w: loss(mish, w, x, y))(weights)
    return [w - 0.1 * g for w, g in zip(weights, gradients, strict=True)], None


trained = jax.jit(lambda w: jax.lax.scan(step, w, length=500)[0])(start)
before, after = (float(loss(mish, weights, x, y)) for weights in (start, trained))
assert after < before / 3

# Twice differentiated, and mapped over a batch.
second = jax.vmap(jax.grad(jax.grad(lambda x: mish(x, scale=2.0))))(x[:, 0])
expected = jax.vmap(jax.grad(jax.grad(lambda x: 2 * jax_mish(x))))(x[:, 0])
np.testing.assert_allclose(second, expected, rtol=1e-3, atol=1e-5)

print(
    f"torch's mish ran inside of jax.jit: 500 steps of one compiled training loop brought the loss "
    f"from {before:.3f} to {after:.3f}; first and second derivatives agree with JAX's."
)

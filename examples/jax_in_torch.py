"""A JAX function inside of a PyTorch training loop, gradients flowing through both.

A simulation is written in JAX: a pendulum, stepped by `jax.lax.scan`, compiled by XLA. A network in
PyTorch is to choose the initial push that brings the pendulum to a given angle. The loss is behind
the simulation, so autograd has to pass through it: `vjp="jax"` differentiates the kernel by JAX.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import torch

import dlbridge


@jax.jit
def swing(push: jax.Array) -> jax.Array:
    """Return the angles after a while of pendulums at rest that are pushed: f32[n] to f32[n]."""

    def step(state, _):
        angle, speed = state
        speed = speed - 0.05 * jnp.sin(angle) - 0.01 * speed
        return (angle + 0.05 * speed, speed), None

    (angle, _), _ = jax.lax.scan(step, (jnp.zeros_like(push), push), length=40)
    return angle


simulate = dlbridge.wrap(
    swing, "examples::swing(push: f32[n]) -> f32[n]", abi="python:jax", vjp="jax"
)

# The gradient that torch gets is the one that JAX computes.
push = torch.linspace(-1, 1, 9, requires_grad=True)
simulate(push).sum().backward()
ours = dlbridge.to_jax(push.grad)
theirs = jax.grad(lambda p: swing(p).sum())(dlbridge.to_jax(push.detach().clone()))
assert jnp.allclose(ours, theirs, rtol=1e-5)

torch.manual_seed(0)
network = torch.nn.Sequential(torch.nn.Linear(1, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))
optimizer = torch.optim.Adam(network.parameters(), lr=1e-2)
goals = torch.linspace(-1, 1, 64)[:, None]


def miss() -> torch.Tensor:
    reached = simulate(network(goals)[:, 0])
    return ((reached - goals[:, 0]) ** 2).mean()


before = miss().item()
for _ in range(200):
    optimizer.zero_grad()
    loss = miss()
    loss.backward()
    optimizer.step()
after = miss().item()
assert after < before / 100

print(
    f"A torch network learned through a simulation in JAX: the mean squared miss went from "
    f"{before:.4f} to {after:.6f} in 200 steps; the gradient through it is JAX's own."
)

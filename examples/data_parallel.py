"""Data-parallel training with PyTorch on one rank and JAX on the other.

    mpiexec -n 2 python examples/data_parallel.py

Each rank has half of the samples and the whole model: in PyTorch on even ranks, in JAX on odd ones.
After each step's backward pass `mpi.allreduce` adds up the gradients, as torch tensors here and
inside a program that JAX compiled there, so that all ranks make the same update. The losses are
those of one process that has all the samples, whatever the framework. Run without `mpiexec` it is
that one process.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

from dlbridge import mpi

SAMPLES, STEPS, RATE = 64, 20, 0.1
random = np.random.default_rng(0)
inputs = random.standard_normal((SAMPLES, 4)).astype("float32")
goals = np.sin(inputs.sum(axis=1, keepdims=True))
start = [
    (0.5 * random.standard_normal(shape)).astype("float32") for shape in ((4, 16), (16,), (16, 1))
]


def train_torch(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Return the losses over all samples before each step, with PyTorch."""
    x, y = torch.from_numpy(x), torch.from_numpy(y)
    weights = [torch.tensor(value, requires_grad=True) for value in start]
    optimizer = torch.optim.SGD(weights, lr=RATE)
    losses = []
    for _ in range(STEPS):
        first, bias, last = weights
        loss = ((torch.tanh(x @ first + bias) @ last - y) ** 2).sum() / SAMPLES
        optimizer.zero_grad()
        loss.backward()
        for weight in weights:
            mpi.allreduce(weight.grad, out=weight.grad)
        losses.append(mpi.allreduce(loss.detach()).item())
        optimizer.step()
    return losses


def train_jax(x: np.ndarray, y: np.ndarray) -> list[float]:
    """Return the same with JAX: one compiled program, collectives included."""

    def miss(weights: list[jax.Array]) -> jax.Array:
        first, bias, last = weights
        return ((jnp.tanh(x @ first + bias) @ last - y) ** 2).sum() / SAMPLES

    @jax.jit
    def step(weights: list[jax.Array]) -> tuple[list[jax.Array], jax.Array]:
        loss, gradients = jax.value_and_grad(miss)(weights)
        gradients = [mpi.allreduce(each) for each in gradients]
        loss = mpi.allreduce(loss)
        return [w - RATE * g for w, g in zip(weights, gradients, strict=True)], loss

    weights, losses = [jnp.asarray(value) for value in start], []
    for _ in range(STEPS):
        weights, loss = step(weights)
        losses.append(float(loss))
    return losses


def train_alone() -> list[float]:
    """Return the losses of one process, in NumPy with the gradients written out."""
    first, bias, last = (value.astype("float64") for value in start)
    losses = []
    for _ in range(STEPS):
        hidden = np.tanh(inputs @ first + bias)
        error = hidden @ last - goals
        losses.append(float((error**2).sum() / SAMPLES))
        back = 2 * error / SAMPLES
        before = back @ last.T * (1 - hidden**2)
        last = last - RATE * hidden.T @ back
        first = first - RATE * inputs.T @ before
        bias = bias - RATE * before.sum(axis=0)
    return losses


rank, size = mpi.rank(), mpi.size()
mine = slice(rank * SAMPLES // size, (rank + 1) * SAMPLES // size)
train = (train_torch, train_jax)[rank % 2]
losses = train(inputs[mine], goals[mine])
np.testing.assert_allclose(losses, train_alone(), rtol=1e-4)
same = mpi.allgather(np.asarray(losses))
assert (same == same[0]).all(), "all ranks get the same bits"
assert losses[-1] < losses[0] / 2
names = {train_torch: "PyTorch", train_jax: "JAX"}
print(
    f"rank {rank} of {size}, {names[train]}: the loss went from {losses[0]:.4f} to "
    f"{losses[-1]:.4f} in {STEPS} steps, as in one process with all {SAMPLES} samples.",
    flush=True,
)

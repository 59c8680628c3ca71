"""Rotary position embedding compiled by Numba, for PyTorch, JAX, TensorFlow and NumPy.

The embedding turns each pair of features by an angle that grows with the position. Turning back is
its gradient: the kernel is its own vjp, with the angles the other way round.

A Numba `@cfunc` of pointers and sizes becomes a kernel through its C signature, in which names say
what is passed: tensors and results of the schema, named dimensions, scalars.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
from numba import carray, cfunc, types

import dlbridge

floats = types.CPointer(types.float32)


@cfunc(types.void(floats, floats, types.int64, types.int64, types.int64, types.float64))
def rotate(x, out, batch, length, n, base):
    source, target = carray(x, (batch, length, n)), carray(out, (batch, length, n))
    half = n // 2
    for j in range(half):
        step = base ** (-j / half) if base > 0 else -((-base) ** (-j / half))
        for position in range(length):
            c, s = np.cos(position * step), np.sin(position * step)
            for i in range(batch):
                a, b = source[i, position, j], source[i, position, j + half]
                target[i, position, j] = a * c - b * s
                target[i, position, j + half] = a * s + b * c


def rotary_vjp(grad, base):
    """Turn back: `grad` is whatever the caller's framework has, traced or not."""
    return rotary(grad, base=-base)


rotary = dlbridge.wrap(
    rotate,
    "examples::rotary(x: f32[*batch, length, n], *, base: float = 10000.0)"
    " -> f32[*batch, length, n]",
    abi="void(const float *x, float *out, int64_t batch, int64_t length, int64_t n, double base)",
    vjp=rotary_vjp,
)


def reference(x: np.ndarray, base: float = 10000.0) -> np.ndarray:
    half = x.shape[-1] // 2
    angles = np.arange(x.shape[-2])[:, None] * base ** (-np.arange(half) / half)
    a, b = x[..., :half], x[..., half:]
    return np.concatenate(
        [a * np.cos(angles) - b * np.sin(angles), a * np.sin(angles) + b * np.cos(angles)], -1
    )


x = np.random.default_rng(0).standard_normal((2, 3, 7, 16), dtype=np.float32)
expected = reference(x)
proved = []

np.testing.assert_allclose(rotary(x), expected, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(rotary(rotary(x), base=-10000.0), x, rtol=1e-4, atol=1e-5)
np.testing.assert_allclose(rotary(x[:, 0], base=100.0), reference(x[:, 0], 100.0), 1e-4, 1e-5)
proved.append("NumPy")

if find_spec("torch"):
    import torch

    t = torch.from_numpy(x).requires_grad_()
    rotated = rotary(t)
    (rotated * rotated.detach()).sum().backward()  # the gradient of half the length: x itself
    np.testing.assert_allclose(t.grad, x, rtol=1e-4, atol=1e-5)
    proved.append("PyTorch with autograd")

if find_spec("jax"):
    import jax

    j = jax.numpy.asarray(x)
    np.testing.assert_allclose(jax.jit(rotary.jax)(j), expected, rtol=1e-4, atol=1e-5)
    energy = jax.jit(jax.grad(lambda x: (rotary(x) ** 2).sum() / 2))
    np.testing.assert_allclose(energy(j), x, rtol=1e-4, atol=1e-5)
    proved.append("JAX with jit and grad")

if find_spec("tensorflow"):
    import tensorflow

    f = tensorflow.constant(x)
    with tensorflow.GradientTape() as tape:
        tape.watch(f)
        energy = tensorflow.reduce_sum(rotary(f) ** 2) / 2
    np.testing.assert_allclose(tape.gradient(energy, f), x, rtol=1e-4, atol=1e-5)
    proved.append("TensorFlow with GradientTape")

print(f"One Numba cfunc turns embeddings, and gradients back, in: {', '.join(proved)}.")

"""One model with half of its layers in PyTorch and half in JAX, trained by JAX in one program.

`dlbridge.bridge` makes a function of JAX of the half in PyTorch, with its parameters over the same
memory. The whole is trained inside of `jax.jit`, and compared with the same model in PyTorch alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import torch

import dlbridge

torch.manual_seed(0)
lower = torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.BatchNorm1d(32), torch.nn.Tanh())
upper = torch.nn.Sequential(torch.nn.Linear(32, 32), torch.nn.Tanh(), torch.nn.Linear(32, 1))

random = np.random.default_rng(0)
x = random.standard_normal((64, 4)).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True))

# The lower half stays a module of PyTorch; the upper one is written in JAX, from the same start.
encode, params = dlbridge.bridge(lower.train(), to="jax", mutable=True)
head = {name: jnp.asarray(each.detach().numpy().copy()) for name, each in upper.named_parameters()}


def decode(head, hidden):
    hidden = jnp.tanh(hidden @ head["0.weight"].T + head["0.bias"])
    return hidden @ head["2.weight"].T + head["2.bias"]


def loss(weights, buffers):
    hidden, buffers = encode({"params": weights["lower"], "buffers": buffers}, x)
    return ((decode(weights["upper"], hidden) - y) ** 2).mean(), buffers


def step(state, _):
    weights, buffers = state
    (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(weights, buffers)
    return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), buffers), value


@jax.jit
def train(weights, buffers):
    return jax.lax.scan(step, (weights, buffers), length=100)


(weights, buffers), losses = train({"lower": params["params"], "upper": head}, params["buffers"])
jax.block_until_ready(losses)

# The same model in PyTorch alone.
whole = torch.nn.Sequential(lower, upper)
optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
for value in np.asarray(losses):
    optimizer.zero_grad()
    expected = ((whole(torch.from_numpy(x)) - torch.from_numpy(y)) ** 2).mean()
    np.testing.assert_allclose(value, expected.item(), rtol=1e-2, atol=1e-5)
    expected.backward()
    optimizer.step()
for name, tensor in lower.state_dict().items():
    ours = {**weights["lower"], **buffers}[name]
    np.testing.assert_allclose(ours, tensor.numpy(), rtol=1e-2, atol=1e-3)
assert losses[-1] < losses[0] / 3

print(
    "half of the layers in torch, half in JAX: 100 steps of one compiled loop brought the loss "
    f"from {losses[0]:.3f} to {losses[-1]:.3f}, each as of the same model in torch alone."
)

"""One model with half of its layers in JAX and half in PyTorch, trained by PyTorch in one program.

`dlbridge.bridge` makes a torch.nn.Module of the half in JAX. The whole has one optimiser of PyTorch
for both, is trained, saved and loaded as any model, and compared with the same model in one
framework: in PyTorch alone, and in JAX alone.
"""

from __future__ import annotations

import io

import jax
import jax.numpy as jnp
import numpy as np
import torch

import dlbridge

STEPS, RATE = 100, 0.1

random = np.random.default_rng(0)
x = random.standard_normal((64, 4)).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True))


def layer(rows, columns):
    w = random.standard_normal((rows, columns)).astype(np.float32) / rows**0.5
    return {"w": jnp.asarray(w), "b": jnp.zeros(columns)}


def encode(params, x):
    for name in ("first", "second"):
        x = jnp.tanh(x @ params[name]["w"] + params[name]["b"])
    return x


# The lower half is a function of JAX, the upper one a layer of PyTorch.
params = {"first": layer(4, 32), "second": layer(32, 16)}
torch.manual_seed(0)
head = torch.nn.Linear(16, 1)
start = {name: each.detach().clone() for name, each in head.named_parameters()}
model = torch.nn.Sequential(dlbridge.bridge(encode, to="torch", params=params), head)


def train(model):
    optimizer = torch.optim.SGD(model.parameters(), lr=RATE)
    losses = []
    for _ in range(STEPS):
        optimizer.zero_grad()
        loss = (model(torch.from_numpy(x)) - torch.from_numpy(y)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


losses = train(model)

# The same model in PyTorch alone.
whole = torch.nn.Sequential(
    torch.nn.Sequential(torch.nn.Linear(4, 32), torch.nn.Tanh()),
    torch.nn.Sequential(torch.nn.Linear(32, 16), torch.nn.Tanh()),
    torch.nn.Linear(16, 1),
)
with torch.no_grad():
    for own, name in zip(whole, ("first", "second"), strict=False):
        own[0].weight.copy_(dlbridge.to_torch(params[name]["w"]).T)
        own[0].bias.copy_(dlbridge.to_torch(params[name]["b"]))
whole[2].load_state_dict(start)
np.testing.assert_allclose(losses, train(whole), rtol=1e-3)
torch.testing.assert_close(model[1].weight, whole[2].weight, rtol=1e-3, atol=1e-4)
torch.testing.assert_close(model[0].first.w, whole[0][0].weight.T, rtol=1e-3, atol=1e-4)


# The same model in JAX alone.
def loss(weights):
    outcome = encode(weights["lower"], x) @ weights["weight"].T + weights["bias"]
    return ((outcome - y) ** 2).mean()


@jax.jit
def step(weights, _):
    value, gradients = jax.value_and_grad(loss)(weights)
    return jax.tree.map(lambda w, g: w - RATE * g, weights, gradients), value


weights = {"lower": params, **{name: jnp.asarray(each.numpy()) for name, each in start.items()}}
weights, expected = jax.lax.scan(step, weights, length=STEPS)
np.testing.assert_allclose(losses, expected, rtol=1e-3)

# The model is saved and loaded as others are.
file = io.BytesIO()
torch.save(model.state_dict(), file)
file.seek(0)
other = torch.nn.Sequential(
    dlbridge.bridge(encode, to="torch", params=params), torch.nn.Linear(16, 1)
)
other.load_state_dict(torch.load(file))
assert torch.equal(other(torch.from_numpy(x)), model(torch.from_numpy(x)))
assert losses[-1] < losses[0] / 3

print(
    f"half of the layers in JAX, half in torch: {STEPS} steps of one optimiser brought the loss "
    f"from {losses[0]:.3f} to {losses[-1]:.3f}, each as of the same model in one framework alone."
)

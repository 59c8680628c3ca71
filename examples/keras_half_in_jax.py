"""One model with half of its layers in Keras on TensorFlow and half in JAX, trained by JAX.

`dlbridge.bridge` makes a function of JAX of the half in Keras, with its variables over the same
memory. The whole is trained inside of `jax.jit`, and compared with the same model in Keras alone.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
import keras
import numpy as np
import tensorflow as tf

import dlbridge

keras.utils.set_random_seed(0)
lower = keras.Sequential([
    keras.layers.Input((4,)),
    keras.layers.Dense(32, name="dense"),
    keras.layers.BatchNormalization(name="norm"),
    keras.layers.Activation("tanh"),
])  # fmt: skip
upper = keras.layers.Dense(1, name="out")
whole = keras.Sequential([lower, upper])
whole.build((None, 4))

x = np.random.default_rng(0).standard_normal((64, 4)).astype(np.float32)
y = np.sin(x.sum(1, keepdims=True))

# The lower half stays a model of Keras; the upper one is written in JAX, from the same start.
encode, params = dlbridge.bridge(lower, to="jax", mutable=True)
head = [jnp.asarray(each.numpy()) for each in upper.trainable_variables]


def loss(weights, buffers):
    own = {"params": weights["lower"], "buffers": buffers}
    hidden, buffers = encode(own, x, training=True)
    kernel, bias = weights["upper"]
    return ((hidden @ kernel + bias - y) ** 2).mean(), buffers


def step(state, _):
    weights, buffers = state
    (value, buffers), gradients = jax.value_and_grad(loss, has_aux=True)(weights, buffers)
    return (jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients), buffers), value


@jax.jit
def train(weights, buffers):
    return jax.lax.scan(step, (weights, buffers), length=100)


(weights, buffers), losses = train({"lower": params["params"], "upper": head}, params["buffers"])
jax.block_until_ready(losses)

# The same model in Keras alone.
for value in np.asarray(losses):
    with tf.GradientTape() as tape:
        expected = tf.reduce_mean((whole(x, training=True) - y) ** 2)
    np.testing.assert_allclose(value, expected, rtol=1e-2, atol=1e-5)
    gradients = tape.gradient(expected, whole.trainable_variables)
    for variable, gradient in zip(whole.trainable_variables, gradients, strict=True):
        variable.assign_sub(0.1 * gradient)
for variable in lower.variables:
    ours = {**weights["lower"], **buffers}[
        variable.path.removeprefix(f"{lower.name}/").replace("/", ".")
    ]
    np.testing.assert_allclose(ours, variable, rtol=1e-2, atol=1e-3)
assert losses[-1] < losses[0] / 3

print(
    "half of the layers in Keras, half in JAX: 100 steps of one compiled loop brought the loss "
    f"from {losses[0]:.3f} to {losses[-1]:.3f}, each as of the same model in Keras alone."
)

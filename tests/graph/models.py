"""Two small models as TensorFlow users write them, for TensorFlow and for dlbridge.graph alike.

The convolutional one is code for 1.x, whose variables are frozen; the transformer is a function of
TensorFlow 2. Weights are random, drawn from a generator that the caller seeds.
"""

from __future__ import annotations

from typing import Any

import numpy as np

CLASSES = 7
VOCABULARY, LENGTH, WIDTH, HEADS, LAYERS = 50, 12, 16, 4, 2


# ---- a convolutional model ---------------------------------------------------------------------


class Layers:
    """Layers of 1.x on `tf`, whose variables get values of `random`."""

    def __init__(self, tf: Any, random: np.random.Generator) -> None:
        self.tf = tf
        self.random = random

    def variable(self, name: str, *shape: int, low: float = -1.0, high: float = 1.0) -> Any:
        """Return a variable; weights are smaller the more of them are added up."""
        fan_in = int(np.prod(shape[:-1])) or 1
        value = self.random.uniform(low, high, shape) / (1 if len(shape) == 1 else fan_in**0.5)
        value = value.astype("float32")
        return self.tf.get_variable(name, initializer=self.tf.constant(value))

    def convolution(self, x: Any, channels: int, window: int, stride: int) -> Any:
        depth = x.shape.as_list()[-1]
        weights = self.variable("weights", window, window, depth, channels)
        return self.tf.nn.conv2d(x, weights, strides=[1, stride, stride, 1], padding="SAME")

    def depthwise(self, x: Any, stride: int) -> Any:
        weights = self.variable("depthwise_weights", 3, 3, x.shape.as_list()[-1], 1)
        return self.tf.nn.depthwise_conv2d(x, weights, [1, stride, stride, 1], "SAME")

    def statistics(self, x: Any) -> tuple[Any, ...]:
        """Return scale, offset, mean and variance of the channels."""
        channels = x.shape.as_list()[-1]
        return (
            self.variable("gamma", channels, low=0.5),
            self.variable("beta", channels),
            self.variable("moving_mean", channels),
            self.variable("moving_variance", channels, low=0.5),
        )

    def fused_norm(self, x: Any) -> Any:
        return self.tf.nn.fused_batch_norm(x, *self.statistics(x), is_training=False)[0]

    def norm(self, x: Any) -> Any:
        scale, offset, mean, variance = self.statistics(x)
        return self.tf.nn.batch_normalization(x, mean, variance, offset, scale, 1e-3)


def convolutional(tf: Any, random: np.random.Generator) -> tuple[Any, Any, Any]:
    """Build a model like MobileNet in the default graph.

    Returns:
        images (?, 32, 32, 3), logits and probabilities (?, 7).
    """
    layers = Layers(tf, random)
    images = tf.placeholder(tf.float32, [None, 32, 32, 3], name="images")
    x = images * (2.0 / 255.0) - 1.0
    with tf.variable_scope("first"):
        x = tf.nn.relu6(layers.fused_norm(layers.convolution(x, 8, 3, 2)))
    for number, (channels, stride) in enumerate(((12, 1), (16, 2), (16, 1))):
        with tf.variable_scope(f"block_{number}"):
            before = x
            with tf.variable_scope("depthwise"):
                x = tf.nn.relu6(layers.norm(layers.depthwise(x, stride)))
            with tf.variable_scope("pointwise"):
                x = layers.convolution(x, channels, 1, 1)
                x = tf.nn.bias_add(x, layers.variable("bias", channels))
            if before.shape.as_list() == x.shape.as_list():
                x = tf.add(x, before)
            x = tf.nn.leaky_relu(x) if number else tf.nn.relu(x)
    x = tf.concat(
        [
            tf.nn.max_pool(x, [1, 3, 3, 1], [1, 2, 2, 1], "SAME"),
            tf.nn.avg_pool(x, [1, 2, 2, 1], [1, 2, 2, 1], "VALID"),
        ],
        axis=3,
    )
    x = tf.pad(x, [[0, 0], [1, 1], [1, 1], [0, 0]])
    x = tf.reduce_mean(x, [1, 2], keepdims=True)
    with tf.variable_scope("logits"):
        x = layers.convolution(x, CLASSES, 1, 1)
        logits = tf.squeeze(x, [1, 2], name="logits")
    return images, logits, tf.nn.softmax(logits, name="probabilities")


# ---- a transformer -----------------------------------------------------------------------------


class Transformer:
    """A decoder of TensorFlow 2 in the style of GPT, with learned positions."""

    def __init__(self, tf: Any, random: np.random.Generator) -> None:
        self.tf = tf
        self.random = random
        self.embedding = self.weights(VOCABULARY, WIDTH, scale=1.0)
        self.positions = self.weights(LENGTH, WIDTH, scale=1.0)
        self.layers = [self.layer() for _ in range(LAYERS)]
        self.final = self.norm_weights()

    def weights(self, *shape: int, scale: float | None = None) -> Any:
        value = self.random.standard_normal(shape) * (shape[0] ** -0.5 if scale is None else scale)
        return self.tf.Variable(value.astype("float32"))

    def norm_weights(self) -> tuple[Any, Any]:
        return self.weights(WIDTH), self.weights(WIDTH)

    def layer(self) -> dict[str, Any]:
        return {
            "norms": (self.norm_weights(), self.norm_weights()),
            "queries_keys_values": self.weights(WIDTH, 3 * WIDTH),
            "output": self.weights(HEADS, WIDTH // HEADS, WIDTH, scale=0.25),
            "wide": self.weights(WIDTH, 4 * WIDTH),
            "wide_bias": self.weights(4 * WIDTH),
            "narrow": self.weights(4 * WIDTH, WIDTH),
        }

    def norm(self, x: Any, weights: tuple[Any, Any]) -> Any:
        tf = self.tf
        mean, variance = tf.nn.moments(x, [-1], keepdims=True)
        return tf.nn.batch_normalization(x, mean, variance, *weights, 1e-5)

    def attention(self, x: Any, layer: dict[str, Any]) -> Any:
        """Attend with several heads, to what comes earlier alone."""
        tf = self.tf
        shape = tf.shape(x)
        together = tf.tensordot(x, layer["queries_keys_values"], [[2], [0]])
        heads = tf.reshape(together, [shape[0], shape[1], 3, HEADS, WIDTH // HEADS])
        queries, keys, values = tf.unstack(tf.transpose(heads, [2, 0, 3, 1, 4]))
        scores = tf.matmul(queries, keys, transpose_b=True) / (WIDTH // HEADS) ** 0.5
        count = tf.range(shape[1])
        allowed = count[:, tf.newaxis] >= count[tf.newaxis, :]
        scores += (1.0 - tf.cast(allowed, tf.float32)) * -1e9
        mixed = tf.matmul(tf.nn.softmax(scores), values)
        return tf.einsum("bhqd,hdo->bqo", mixed, layer["output"])

    def __call__(self, ids: Any) -> Any:
        """Return the logits of the next symbol at each place."""
        tf = self.tf
        x = tf.gather(self.embedding, ids) + self.positions[: tf.shape(ids)[1]]
        for layer in self.layers:
            first, second = layer["norms"]
            x += self.attention(self.norm(x, first), layer)
            wide = tf.tensordot(self.norm(x, second), layer["wide"], [[2], [0]])
            wide = tf.nn.gelu(tf.nn.bias_add(wide, layer["wide_bias"]), approximate=True)
            x += tf.tensordot(wide, layer["narrow"], [[2], [0]])
        return tf.einsum("bqd,vd->bqv", self.norm(x, self.final), self.embedding)

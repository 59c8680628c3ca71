"""One graph through four frameworks, and not one copy between them.

Images are prepared in NumPy, go through a module of PyTorch and a function of JAX, are scored by
a kernel in C, and come out as a tensor of PyTorch. Each node says where it runs; values cross on
DLPack. The receipts of the run prove that no crossing copied anything; the trace says how long
each step took, and the picture shows both.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import torch

import dlbridge
import dlbridge.graph as tf

torch.manual_seed(0)
features = torch.nn.Sequential(
    torch.nn.Conv2d(3, 8, kernel_size=3, padding=1), torch.nn.ReLU(), torch.nn.AvgPool2d(4)
).eval()


def embed(x: jax.Array) -> jax.Array:
    """Normalise each row, after a projection that JAX compiles with what surrounds it."""
    rows = x.reshape(x.shape[0], -1) @ projection
    return rows / jnp.linalg.norm(rows, axis=1, keepdims=True)


projection = jax.random.normal(jax.random.key(0), (8 * 8 * 8, 16), jnp.float32)

largest = dlbridge.compile_c(
    """
    #include "dlbridge_kernel.h"

    int largest(void *context, DLTensor *tensors, int count) {
        const float *x = tensors[0].data;
        float *out = tensors[1].data;
        int64_t columns = tensors[0].shape[1];
        for (int64_t i = 0; i < tensors[0].shape[0]; i++) {
            out[i] = x[i * columns];
            for (int64_t j = 1; j < columns; j++)
                if (x[i * columns + j] > out[i])
                    out[i] = x[i * columns + j];
        }
        return 0;
    }
    """,
    "largest",
    "examples::largest(x: f32[n, m]) -> f32[n]",
)

with tf.Graph().as_default() as graph:
    images = tf.placeholder(tf.uint8, [None, 32, 32, 3], name="images")
    with tf.name_scope("prepare"), tf.framework("numpy"):
        scaled = tf.cast(images, tf.float32) / 255.0 - 0.5
        planes = tf.transpose(scaled, [0, 3, 1, 2])
    maps = tf.call(features, [planes], tf.float32, "torch", shapes=[None, 8, 8, 8], name="features")
    vectors = tf.call(embed, [maps], tf.float32, "jax", shapes=[None, 16], name="embed")
    scores = tf.call(largest, [vectors], framework="numpy", name="score")

batch = np.random.default_rng(0).integers(0, 256, (4, 32, 32, 3), np.uint8)
receipts: list[dlbridge.Receipt] = []
trace = tf.Trace()
with tf.Session(graph=graph) as session:
    result = session.run(scores, {images: batch}, to="torch", receipts=receipts)
    session.run(scores, {images: batch}, to="torch", trace=trace)

# The same, by hand.
with torch.no_grad():
    by_hand = features(torch.from_numpy(batch).permute(0, 3, 1, 2).float() / 255 - 0.5)
expected = np.asarray(embed(jnp.asarray(by_hand.numpy()))).max(axis=1)
assert isinstance(result, torch.Tensor)
np.testing.assert_allclose(result.numpy(), expected, rtol=1e-5)

for receipt in receipts:
    print(f"{receipt.source:>6} -> {receipt.target:<6} {receipt.nbytes:>6} bytes, {receipt.route}")
assert receipts
assert all(receipt.shared for receipt in receipts)

assert {trace.places[op] for op in graph.get_operations() if op in trace.places} == {
    "numpy",
    "torch",
    "jax",
}
folder = Path(sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp())
(folder / "pipeline.dot").write_text(graph.to_dot(trace))
trace.save(folder / "pipeline.json")
print(f"the picture is {folder}/pipeline.dot, the trace {folder}/pipeline.json")
print(f"{len(receipts)} values crossed between frameworks; none was copied.")

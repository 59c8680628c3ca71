"""A matrix product compiled by TVM, called from PyTorch, NumPy, JAX and TensorFlow.

This is the kernel with which TVM introduced its DLPack bridge: 56 by 56 matrices, compiled by LLVM.
There it became a function of torch tensors that writes into its last argument. Here the same
module, wrapped once with a schema, is a function of every framework's tensors that returns new
ones, checks its arguments, and works under compilers and transformations.

Needs apache-tvm; the frameworks that are not installed are left out.
"""

from __future__ import annotations

from importlib.util import find_spec

import numpy as np
import tvm
from tvm import te

import dlbridge

SIZE = 56


def build() -> tvm.runtime.Executable:
    """Compile `C = A @ B` for float32 matrices of this size."""
    a = te.placeholder((SIZE, SIZE), name="A")
    b = te.placeholder((SIZE, SIZE), name="B")
    k = te.reduce_axis((0, SIZE), name="k")
    c = te.compute((SIZE, SIZE), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="C")
    return tvm.compile(te.create_prim_func([a, b, c]), target="llvm")


module = build()
matmul = dlbridge.wrap(
    module, f"examples::tvm_matmul(a: f32[{SIZE}, {SIZE}], b: f32[{SIZE}, {SIZE}])"
    f" -> f32[{SIZE}, {SIZE}]",
)  # fmt: skip

random = np.random.default_rng(0)
x, y = (random.standard_normal((SIZE, SIZE), dtype=np.float32) for _ in "xy")
expected = x @ y
proved = []


def agree(result: object, framework: str) -> None:
    np.testing.assert_allclose(np.asarray(result), expected, rtol=1e-4, atol=1e-4)
    proved.append(framework)


agree(matmul(x, y), "NumPy")
agree(matmul(x.T.copy().T, y), "NumPy with column-major memory")

if find_spec("torch"):
    import torch

    a, b = torch.from_numpy(x), torch.from_numpy(y)
    product = matmul(a, b)
    torch.testing.assert_close(product, torch.mm(a, b), rtol=1e-4, atol=1e-4)
    agree(product, "PyTorch (as torch.mm)")

    # TVM's own bridge, drop-in: positional, writes into the last argument.
    as_tvm_does = dlbridge.to_pytorch_func(module)
    destination = torch.empty(SIZE, SIZE)
    as_tvm_does(a, b, destination)
    agree(destination, "to_pytorch_func")

    # TVM's code wants memory at multiples of 64 bytes; here any view will do.
    shifted = torch.empty(SIZE * SIZE + 1)[1:].view(SIZE, SIZE).copy_(a)
    as_tvm_does(shifted, b, destination.zero_())
    agree(destination, "to_pytorch_func with a misaligned view")

if find_spec("jax"):
    import jax

    agree(matmul(jax.numpy.asarray(x), jax.numpy.asarray(y)), "JAX")
    agree(jax.jit(lambda a, b: matmul(a, b))(x, y), "jax.jit")

if find_spec("tensorflow"):
    import tensorflow

    agree(matmul(tensorflow.constant(x), tensorflow.constant(y)), "TensorFlow")
    agree(tensorflow.function(matmul.tensorflow)(x, y), "tf.function")

print(f"One TVM module, {SIZE} by {SIZE}, gave the same product in: {', '.join(proved)}.")

"""Calls around the chosen ones: receipts, trees, training, batches, new shapes, tracing, copies.

Each row has the ratio, or the nanoseconds, that it is to reach. All rows run in one process.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from statistics import median
from timeit import Timer
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from benchmarks import kernels
from benchmarks.exchange import misaligned
from benchmarks.timing import Effort, compare, describe_machine, render

QUICK = Effort(rounds=3, round_ns=0.1e6)
THOROUGH = Effort(rounds=51, round_ns=0.5e6)
SIZE, ROWS_OF_BATCH, CALLS = 16, 10_000, 100
TVM_FFI = "tvm-ffi"


class Row(NamedTuple):
    """One comparison: our statement, the peer's, the ratio or the nanoseconds to reach."""

    what: str
    ours: str
    against: str
    peer: str
    target: float | None = None
    target_ns: float | None = None
    is_slow: bool = False  # milliseconds: single calls are timed


ROWS = [
    Row("receipts block, one exchange", "record(a)", "no receipts", "to_torch(a)", target_ns=3e3),
    Row("Tensor[1:3]", "own[1:3]", "torch", "t[1:3]", 0.5),
    Row("Tensor.reshape", "own.reshape((2, 2))", "torch", "t.reshape(2, 2)", 0.5),
    Row("tree of 100, torch to NumPy", "to_numpy_tree(torch_tree)", "jax.tree.map",
        "tree_map(as_numpy, torch_tree)", 0.5),
    Row("tree of 100, JAX to torch", "to_torch_tree(jax_tree)", "jax.tree.map",
        "tree_map(torch_from_dlpack, jax_tree)", 0.5),
    Row("torch, forward of training", "product(p16, q16)", "custom_op", "custom(p16, q16)", 0.5),
    Row("torch, forward of training", "product(p16, q16)", "autograd.Function",
        "function(p16, q16)", 1.2),
    Row("torch, forward and backward", "product(p16, q16).backward(g16)", "custom_op",
        "custom(p16, q16).backward(g16)", 0.6),
    Row("torch, forward and backward", "product(p16, q16).backward(g16)", "autograd.Function",
        "function(p16, q16).backward(g16)", 1.2),
    Row("torch.vmap, 10,000 rows", "vmapped(many)", "loop in Python", "loop(many)",
        target_ns=5e6, is_slow=True),
    Row("tf.vectorized_map, 10,000 rows", "vectorized(tf_many)", "loop in Python",
        "tf_loop(tf_many)", target_ns=5e6, is_slow=True),
    Row("tf.vectorized_map in tf.function", "compiled_vectorized(tf_many)", "loop in Python",
        "tf_loop(tf_many)", target_ns=5e6, is_slow=True),
    Row("JAX eager, a scalar that varies", "scaled(j, next(numbers))", "a constant one",
        "scaled(j, 2.0)", 1.5),
    Row("JAX eager, a new shape", "functional(*next(new_shapes))", "a new shape, jitted add",
        "jitted_add(*next(new_shapes))", target_ns=3e6, is_slow=True),
    Row("torch eager, a strided input", "torch_noop(w, u, v)", TVM_FFI, "tvm_noop(w, u, v)", 0.9),
    Row("torch eager, fresh tensors", "torch_noop(next(tensors), u, v)", TVM_FFI,
        "tvm_noop(next(tensors), u, v)", 0.6),
    Row("kernel(x), schema-less, JAX", "without_schema(j, k, l)", "to_jax_func(kernel)(x)",
        "without_schema_jax(j, k, l)", 1.1),
    Row("tracing 100 calls", "trace(functional)", "jax.ffi.ffi_call", "trace(ffi_call)", 1.2,
        is_slow=True),
    Row("to_torch(m[::-1]), 64 x 64", "to_torch(m64[::-1])", "copied in NumPy",
        "torch_from_numpy(m64[::-1].copy())", 1.0),
    Row("to_torch(m[::-1]), 512 x 512", "to_torch(m512[::-1])", "copied in NumPy",
        "torch_from_numpy(m512[::-1].copy())", 1.0, is_slow=True),
    Row("misaligned 128 bytes to JAX", "to_jax(o128)", "jnp.array", "jnp_array(o128)", 1.0),
]  # fmt: skip

SOURCE = """
#include "dlbridge_kernel.h"

int multiply(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data, *y = tensors[1].data;
    float *result = tensors[2].data;
    (void)context, (void)count;
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        result[i] = x[i] * y[i];
    return 0;
}

int keep(void *context, DLTensor *tensors, int count) {
    (void)context, (void)tensors, (void)count;
    return 0;
}
"""


def run(*, quick: bool) -> dict[str, Any]:
    """Measure and print all rows; return the figures, times in nanoseconds."""
    names = make_names()
    figures = []
    for row in ROWS:
        if kernels.is_possible(row, names):
            figures.append(measure(row, names, quick))
            print(row.what, "...", flush=True)
    print_figures(figures)
    return {"machine": describe_machine(), "rows": figures}


# ---- what the statements mean --------------------------------------------------------------------


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed is absent."""
    names = kernels.make_names()
    product = dlbridge.compile_c(
        SOURCE, "multiply", "ordinary::product(x: f32[n], y: f32[n]) -> f32[n]", vjp=differentiate
    )
    names |= {
        "record": record,
        "own": dlbridge.from_dlpack(np.ones(kernels.SIZE, np.float32)),
        "product": product,
        "o128": misaligned(128),
        **{f"m{size}": np.ones((size, size), np.float32) for size in (64, 512)},
        "without_schema": dlbridge.compile_c(SOURCE, "keep"),
        "to_torch": dlbridge.to_torch,
        "to_jax": dlbridge.to_jax,
    }
    if "torch_add" in names:
        names |= make_torch_names(product)
    if "jitted" in names:
        names |= make_jax_names(names)
    if "tf_add" in names:
        names |= make_tensorflow_names(product)
    return names


def differentiate(x: Any, y: Any, grad: Any) -> tuple[Any, Any]:
    """Return the gradients of a product."""
    return grad * y, grad * x


def record(array: Any) -> list[Any]:
    """Convert an array, and keep the receipt."""
    with dlbridge.receipts() as log:
        dlbridge.to_torch(array)
    return log


def make_torch_names(product: Any) -> dict[str, Any]:
    """Return the same product as a custom_op and as an autograd.Function, and their tensors."""
    import torch

    @torch.library.custom_op(  # type: ignore[untyped-decorator,unused-ignore]
        "ordinary::custom", mutates_args=(), schema="(Tensor x, Tensor y) -> Tensor"
    )
    def custom(x: Any, y: Any) -> Any:
        return x * y

    def keep(ctx: Any, inputs: Any, output: Any) -> None:  # noqa: ARG001
        ctx.save_for_backward(*inputs)

    def go_back(ctx: Any, grad: Any) -> tuple[Any, Any]:
        x, y = ctx.saved_tensors
        return differentiate(x, y, grad)

    custom.register_autograd(go_back, setup_context=keep)

    class Function(torch.autograd.Function):  # type: ignore[misc,unused-ignore]
        @staticmethod
        def forward(ctx: Any, x: Any, y: Any) -> Any:
            ctx.save_for_backward(x, y)
            return x * y

        @staticmethod
        def backward(ctx: Any, grad: Any) -> Any:
            return go_back(ctx, grad)

    many = torch.ones(ROWS_OF_BATCH, SIZE)
    return {
        "p16": torch.ones(SIZE, requires_grad=True),
        "q16": torch.ones(SIZE, requires_grad=True),
        "g16": torch.ones(SIZE),
        "custom": custom,
        "function": Function.apply,
        "many": many,
        "vmapped": torch.vmap(lambda x: product(x, x)),
        "loop": lambda rows: torch.stack([product(row, row) for row in rows.unbind()]),
        "torch_from_numpy": torch.from_numpy,
        "torch_from_dlpack": torch.from_dlpack,
        "as_numpy": lambda x: x.numpy(),
        "torch_tree": {str(place): torch.ones(SIZE) for place in range(100)},
        "to_numpy_tree": lambda tree: dlbridge.convert_tree(tree, "numpy"),
    }


def make_jax_names(names: dict[str, Any]) -> dict[str, Any]:
    """Return kernels called with JAX arrays, and what traces chains of calls."""
    import jax

    like = jax.ShapeDtypeStruct((kernels.SIZE,), np.float32)

    def pairs() -> Iterator[tuple[Any, Any]]:
        for size in count(100):
            x = jax.device_put(np.ones(size, np.float32))
            yield x, x

    def trace(link: Callable[[Any, Any], Any]) -> None:
        def chain(x: Any, y: Any) -> Any:
            for _ in range(CALLS):
                x = link(x, y)
            return x

        jax.make_jaxpr(chain)(like, like)

    has_ffi = hasattr(jax, "ffi")  # from 0.4.36
    return ({"ffi_call": jax.ffi.ffi_call("ordinary_product", like)} if has_ffi else {}) | {
        "scaled": dlbridge.compile_c(
            SOURCE, "keep", "ordinary::scaled(x: f32[n], a: float) -> f32[n]"
        ).jax,
        "numbers": map(float, count()),
        "new_shapes": pairs(),
        "without_schema_jax": dlbridge.to_jax_func(names["without_schema"]),
        "trace": trace,
        "jnp_array": jax.numpy.array,
        "tree_map": jax.tree.map,
        "jax_tree": {str(place): jax.numpy.ones(SIZE) for place in range(100)},
        "to_torch_tree": lambda tree: dlbridge.convert_tree(tree, "torch"),
    }


def make_tensorflow_names(product: Any) -> dict[str, Any]:
    """Return the batch of TensorFlow, by vectorized_map and by a loop."""
    import tensorflow

    def vectorized(rows: Any) -> Any:
        return tensorflow.vectorized_map(lambda x: product(x, x), rows)

    return {
        "tf_many": tensorflow.ones((ROWS_OF_BATCH, SIZE)),
        "vectorized": vectorized,
        "compiled_vectorized": tensorflow.function(vectorized),
        "tf_loop": lambda rows: tensorflow.stack(
            [product(row, row) for row in tensorflow.unstack(rows)]
        ),
    }


# ---- measuring -----------------------------------------------------------------------------------


def measure(row: Row, names: dict[str, Any], quick: bool) -> dict[str, Any]:
    """Measure a row."""
    statements = [row.ours, row.peer]
    if row.is_slow:
        ours, peer = compare_single_calls(statements, names, 2 if quick else 7)
    else:
        ours, peer = compare(statements, names, QUICK if quick else THOROUGH)
    ratio = ours / peer
    reached = ratio <= row.target if row.target is not None else ours <= (row.target_ns or 0)
    return {
        "what": row.what,
        "against": row.against,
        "ours_ns": round(ours, 1),
        "peer_ns": round(peer, 1),
        "ratio": round(ratio, 5),
        "target": row.target,
        "target_ns": row.target_ns,
        "reached": reached,
    }


def compare_single_calls(statements: list[str], names: dict[str, Any], rounds: int) -> list[float]:
    """Return the median nanoseconds of each statement, called once a round, after one call each."""
    timers = [Timer(statement, globals=dict(names)) for statement in statements]
    samples = [[timer.timeit(1) * 1e9 for timer in timers] for _ in range(rounds + 1)][1:]
    return [median(column) for column in zip(*samples, strict=True)]


def print_figures(figures: list[dict[str, Any]]) -> None:
    """Print the table."""
    rows = [
        [
            row["what"],
            row["against"],
            f"{row['ours_ns']:,.0f}",
            f"{row['peer_ns']:,.0f}",
            f"{row['ratio']:.3g}",
            f"{row['target']:.2g}" if row["target"] is not None else f"{row['target_ns']:,.0f} ns",
            "yes" if row["reached"] else "NO",
        ]
        for row in figures
    ]
    header = ["call", "against", "ours/ns", "theirs/ns", "ratio", "target", "reached"]
    print(render(header, rows))

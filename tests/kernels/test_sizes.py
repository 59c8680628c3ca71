"""Scalars that are dimensions: `top_k(x: f32[n], *, k: int) -> f32[k]`, in every framework."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, DLBridgeError, UnsupportedTypeError
from dlbridge.kernels.schema import Described, Schema

SOURCE = r"""
#include "dlbridge_kernel.h"

/* Cut off, or go on with zeros. */
int resize(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    float *out = args[1].data;
    for (int64_t i = 0; i < args[1].shape[0]; i++)
        out[i] = i < args[0].shape[0] ? x[i] : 0.0f;
    return 0;
}

int ones(void *context, DLTensor *args, int count) {
    float *out = args[0].data;
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        out[i] = 1.0f;
    return 0;
}

int nothing(void *context, DLTensor *args, int count) { return 0; }
"""
REFUSED = r"sizes::resize: argument 'k': expected int >= 0, got -1; it is a dimension"


@pytest.fixture(scope="module")
def resize(compiled: Any) -> dlbridge.Kernel:
    """Return a kernel that is its own transpose, but for the sizes."""

    def vjp(x: Any, grad: Any) -> Any:
        return kernel(grad, k=x.shape[0])

    text = "sizes::resize(x: f32[n], *, k: int) -> f32[k]"
    kernel = dlbridge.compile_c(SOURCE, "resize", text, vjp=vjp)
    return kernel


@pytest.fixture(scope="module")
def ones(compiled: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(SOURCE, "ones", "sizes::ones(*, n: int) -> f32[n]")


@pytest.fixture(scope="module")
def same(compiled: Any) -> dlbridge.Kernel:
    text = "sizes::same(x: f32[k, 2*k], y: f32[k+m], *, k: int, m: int = 1)"
    return dlbridge.compile_c(SOURCE, "nothing", text)


# ---- schemas -----------------------------------------------------------------------------------


def test_a_scalar_binds_the_dimension_of_its_name() -> None:
    schema = Schema.parse("a::f(x: f32[n], *, s: float, k: int) -> f32[n, 2*k]")
    x = Described((4,), dlbridge.DType("float32"))
    assert schema.sizes == ((1, "k"),)
    assert schema.results_of(schema.bind([x], [0.5, 3]))[0][0] == (4, 6)
    assert schema.results_of(schema.bind([x], [0.5, None]))[0][0] == (4, None)


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("a::f(x: f32[k], *, k: float)", "'k' is a dimension: it must be int, not float"),
        ("a::f(x: f32[k], *, k: bool)", "'k' is a dimension: it must be int, not bool"),
        ("a::f(x: f32[k], *, k: int?)", "'k' is a dimension: it must be int, not int?"),
        ("a::f(x: f32[2*k], *, k: int = -1)", "'k' is a dimension: it cannot be -1"),
        ("a::f(x: f32[n], *, axis: int) -> f32[k]", "dimension 'k' of 'out' is not determined"),
    ],
)
def test_invalid_dimensions_are_refused(text: str, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Schema.parse(text)
    assert why in str(caught.value)


def test_scalars_of_other_names_may_be_anything() -> None:
    schema = Schema.parse("a::f(x: f32[n], *, axis: int = -1, n_: float?)")
    assert schema.sizes == ()


def test_a_derivative_has_the_same_dimensions() -> None:
    """A name that the derivative makes up must not be that of a scalar."""
    schema = Schema.parse("a::f(x: f32[_], *, x_0: int, k: int) -> f32[k]").vjp()
    assert str(schema) == (
        "a::f_vjp(x: f32[x_0_], grad: f32[k], *, x_0: int, k: int) -> (grad_x: f32[x_0_])"
    )


def test_torch_may_compile_for_all_values_at_once() -> None:
    schema = Schema.parse("a::f(x: f32[n], *, axis: int, k: int) -> f32[k]")
    assert schema.torch_schema() == "f(Tensor x, *, SymInt axis, SymInt k) -> Tensor"


# ---- calls -------------------------------------------------------------------------------------


def test_results_have_the_size_that_a_scalar_says(resize: Any) -> None:
    """Calls like the one before are remembered, also by the scalar."""
    x = np.arange(4, dtype="f4")
    for k in (2, 2, 3, 3, 0, 6):
        out = resize(x, k=k)
        assert out.shape == (k,)
        assert out[:4].tolist() == x[:k].tolist()


def test_a_negative_dimension_is_refused(resize: Any) -> None:
    x = np.arange(4, dtype="f4")
    with pytest.raises(ArgumentError, match=REFUSED):
        resize(x, k=-1)
    with pytest.raises(ArgumentError, match=REFUSED):
        resize.run([dlbridge.from_dlpack(x), dlbridge.empty((1,), dtype="float32")], [-1])


def test_buffers_are_compared_with_the_scalar(resize: Any) -> None:
    x, out = np.arange(4, dtype="f4"), np.zeros(2, "f4")
    assert resize(x, k=2, out=out) is out
    assert out.tolist() == [0, 1]
    with pytest.raises(ArgumentError, match=r"'out': expected f32\[k=3\], got f32\[2\]"):
        resize(x, k=3, out=out)


@pytest.mark.parametrize("framework_name", ["numpy", "torch", "jax", "tensorflow", "dlbridge"])
def test_arguments_are_compared_with_the_scalar(
    framework: Any, same: Any, framework_name: str
) -> None:
    if framework_name not in ("numpy", "dlbridge"):
        framework(framework_name)

    def make(*shape: int) -> Any:
        return dlbridge.convert(np.zeros(shape, "f4"), framework_name)

    for _ in range(2):
        same(make(3, 6), make(4), k=3)
        same(make(3, 6), make(5), k=3, m=2)
    with pytest.raises(DLBridgeError, match=r"'x': expected f32\[k=2, 2\*k=4\], got f32\[3, 6\]"):
        same(make(3, 6), make(4), k=2)
    with pytest.raises(DLBridgeError, match=r"'y': expected f32\[k\+m=5\], got f32\[4\]"):
        same(make(3, 6), make(4), k=3, m=2)


@pytest.mark.parametrize("framework_name", ["numpy", "torch", "jax", "tensorflow", "dlbridge"])
def test_a_kernel_without_tensors_needs_a_framework(
    framework: Any, ones: Any, framework_name: str
) -> None:
    if framework_name not in ("numpy", "dlbridge"):
        framework(framework_name)
    out = getattr(ones, framework_name)(n=3)
    assert np.asarray(out).tolist() == [1, 1, 1]
    assert dlbridge.kernels.binding.framework_name(out) == framework_name
    with pytest.raises(UnsupportedTypeError, match=r"call ones\.numpy\(…\), \.torch\(…\)"):
        ones(n=3)


@pytest.mark.parametrize("framework_name", ["numpy", "torch", "jax", "tensorflow"])
def test_python_kernels_return_the_size_that_a_scalar_says(
    framework: Any, framework_name: str
) -> None:
    if framework_name != "numpy":
        framework(framework_name)
    kernel = dlbridge.wrap(
        lambda x, *, k: np.resize(x, abs(k - 4)),
        "sizes::python(x: f32[n], *, k: int) -> f32[k]",
        abi="python:numpy",
    )
    x = dlbridge.convert(np.arange(4, dtype="f4"), framework_name)
    assert np.asarray(kernel(x, k=2)).tolist() == [0, 1]
    words = r"result 'out': expected f32\[k=3\], the function returned f32\[1\]"
    with pytest.raises(DLBridgeError, match=words):
        kernel(x, k=3)


# ---- torch -------------------------------------------------------------------------------------


def test_torch_differentiates_and_batches(framework: Any, resize: Any) -> None:
    torch = framework("torch")
    x = torch.arange(4.0, requires_grad=True)
    resize(x, k=3).sum().backward()
    assert x.grad.tolist() == [1, 1, 1, 0]
    assert torch.vmap(lambda x: resize(x, k=3))(torch.ones(2, 5)).shape == (2, 3)
    assert torch.vmap(lambda x: resize(x, k=3))(torch.ones(0, 5)).shape == (0, 3)


def test_torch_compiles_once_for_all_sizes(framework: Any, resize: Any, ones: Any) -> None:
    """The second value makes a symbol of the scalar; then there is nothing to compile."""
    torch = framework("torch")
    graphs = []

    def backend(graph: Any, _: Any) -> Any:
        graphs.append(graph)
        return graph.forward

    def call(x: Any, k: int) -> Any:
        return resize(x, k=k) + ones.torch(n=k)

    compiled = torch.compile(call, backend=backend, fullgraph=True)
    for k in (2, 3, 5, 6, 7):
        assert torch.equal(compiled(torch.arange(4.0), k), call(torch.arange(4.0), k))
    assert len(graphs) == 2
    with pytest.raises(Exception, match="expected int >= 0"):
        compiled(torch.arange(4.0), -1)


def test_torch_compiles_sizes_that_are_data(framework: Any, resize: Any) -> None:
    torch = framework("torch")
    compiled = torch.compile(lambda x, k: resize(x, k=k.item()), backend="aot_eager")
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert compiled(torch.arange(4.0), torch.tensor(3)).tolist() == [0, 1, 2]


def test_torch_exports_sizes_that_are_computed(framework: Any, resize: Any) -> None:
    torch = framework("torch")

    class Twice(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return resize(x, k=x.shape[0] * 2)

    shapes = {"x": {0: torch.export.Dim("n", min=2, max=100)}}
    program = torch.export.export(Twice(), (torch.ones(4),), dynamic_shapes=shapes)
    for n in (3, 9):
        assert program.module()(torch.ones(n)).sum() == n
        assert program.module()(torch.ones(n)).shape == (2 * n,)


# ---- JAX ---------------------------------------------------------------------------------------


def test_jax_compiles_sizes_in(framework: Any, resize: Any) -> None:
    """However many there are: other scalars become operands at some point."""
    jax = framework("jax")
    x = jax.numpy.arange(4.0)
    assert [resize(x, k=k).shape for k in range(30)] == [(k,) for k in range(30)]
    compiled = jax.jit(lambda x, k: resize(x, k=k), static_argnames="k")
    assert compiled(x, k=3).tolist() == [0, 1, 2]
    with pytest.raises(ArgumentError, match=REFUSED):
        compiled(x, k=-1)


def test_jax_differentiates_and_batches(framework: Any, resize: Any) -> None:
    jax = framework("jax")
    grad = jax.grad(lambda x: resize(x, k=3).sum())
    batched = jax.jit(jax.vmap(grad))(jax.numpy.ones((2, 5)))
    assert batched.tolist() == [[1, 1, 1, 0, 0]] * 2


def test_jax_cannot_trace_a_size(framework: Any, resize: Any) -> None:
    """The shapes of a program are known when it is made."""
    jax = framework("jax")
    native = dlbridge.wrap(
        lambda x, *, k: x[:k],
        "sizes::native(x: f32[n], *, k: int) -> f32[k]",
        abi="python:jax",
    )
    for kernel in (resize, native):
        compiled = jax.jit(lambda x, k, kernel=kernel: kernel(x, k=k))
        with pytest.raises(UnsupportedTypeError, match=r"must be static: jit\(f, static_argnames"):
            compiled(jax.numpy.arange(4.0), 3)


# ---- TensorFlow --------------------------------------------------------------------------------


def test_tensorflow_knows_shapes_as_far_as_scalars_are_known(tf: Any, resize: Any) -> None:
    """A symbolic scalar is a size that is known when the kernel runs."""
    x = tf.range(4, dtype=tf.float32)

    def call(x: Any, k: Any) -> Any:
        return resize(x, k=k)

    traced = tf.function(call)
    assert traced.get_concrete_function(x, 3).structured_outputs.shape == (3,)
    assert traced(x, 3).numpy().tolist() == [0, 1, 2]
    unknown = traced.get_concrete_function(x, tf.constant(3)).structured_outputs
    assert unknown.shape.as_list() == [None]
    assert traced(x, tf.constant(6)).numpy().tolist() == [0, 1, 2, 3, 0, 0]
    with pytest.raises(tf.errors.InvalidArgumentError, match=REFUSED):
        traced(x, tf.constant(-1))


def test_tensorflow_differentiates_and_batches(tf: Any, resize: Any) -> None:
    x = tf.range(4, dtype=tf.float32)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = tf.reduce_sum(resize(x, k=3))
    assert tape.gradient(y, x).numpy().tolist() == [1, 1, 1, 0]
    assert tf.vectorized_map(lambda x: resize(x, k=3), tf.ones((2, 5))).shape == (2, 3)
    assert [resize(x, k=k).shape[0] for k in range(70)] == list(range(70))

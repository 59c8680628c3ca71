"""Derivatives of kernels with complex tensors: one rule serves callers of every framework.

A rule has cotangents and gradients as torch, TensorFlow and Paddle have them. JAX's are the
conjugates. Each framework must find what it finds for the same function of its own.
"""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import wrap

RANDOM = np.random.default_rng(0)


def complexes(*shape):
    parts = RANDOM.standard_normal((2, *shape))
    return (parts[0] + 1j * parts[1]).astype(np.complex64)


X, Y, GRAD, T, U = (complexes(4) for _ in range(5))
R, S = RANDOM.standard_normal((2, 4)).astype(np.float32)
SCHEMA = "complex_{}::f(x: c64[n], y: c64[n], r: f32[n]) -> (z: c64[n], size: f32[n])"


# ---- one function that is holomorphic in x alone, and real in r ----------------------------------


def in_numpy(x, y, r):
    return x * x * np.conj(y) + r, abs(x * r)


def rule(x, y, r, size, grad_z, grad_size):
    """Return the gradients, written in operators that arrays of all frameworks have."""
    to_size = grad_size * r * r / size  # the derivative of |x r| by x is r² x / |x r|
    return (
        grad_z * conj(2 * x * conj(y)) + widen(to_size, x) * x,
        conj(grad_z) * x * x,
        real(grad_z) + grad_size * real(x * conj(x)) * r / size,
    )


def conj(x):
    module = tensorflow_of(x)
    return module.math.conj(x) if module else x.conj()


def real(x):
    module = tensorflow_of(x)
    if module:
        return module.math.real(x)
    return x.real() if callable(x.real) else x.real  # Paddle's is a method


def widen(x, like):
    module = tensorflow_of(x)
    return module.cast(x, like.dtype) if module else x


def tensorflow_of(x):
    """Return TensorFlow for its tensors, which have no such methods, else None."""
    is_its_own = type(x).__module__.startswith("tensorflow")
    return pytest.importorskip("tensorflow") if is_its_own else None


BY_NUMPY = wrap(
    rule,
    "complex_numpy::rule(x: c64[n], y: c64[n], r: f32[n], size: f32[n], grad_z: c64[n], "
    "grad_size: f32[n]) -> (grad_x: c64[n], grad_y: c64[n], grad_r: f32[n])",
    abi="python:numpy",
)


def in_torch(x, y, r):
    return x * x * y.conj() + r, (x * r).abs()


def in_jax(x, y, r):
    return x * x * y.conj() + r, abs(x * r)


def in_tensorflow(x, y, r):
    tf = pytest.importorskip("tensorflow")
    wide = tf.cast(r, x.dtype)
    return x * x * tf.math.conj(y) + wide, tf.abs(x * wide)


def kernel(kind):
    """Return the kernel with a derivative of one kind."""
    options = {
        "rule": (in_numpy, "python:numpy", rule),
        "kernel": (in_numpy, "python:numpy", BY_NUMPY),
        "torch": (in_torch, "python:torch", "torch"),
        "jax": (in_jax, "python:jax", "jax"),
    }
    function, abi, vjp = options[kind]
    return wrap(function, SCHEMA.format(kind), abi=abi, vjp=vjp)


@pytest.fixture(params=["rule", "kernel", "torch", "jax"])
def made(request):
    if request.param in ("torch", "jax"):
        pytest.importorskip(request.param)
    return kernel(request.param)


def close(found, expected):
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(
            dlbridge.to_numpy(one), dlbridge.to_numpy(other), rtol=1e-4, atol=1e-4
        )


# ---- torch ---------------------------------------------------------------------------------------


def test_gradients_in_torch_are_those_of_torch(made) -> None:
    torch = pytest.importorskip("torch")
    x, y, grad = map(torch.from_numpy, (X, Y, GRAD))
    r, s = map(torch.from_numpy, (R, S))
    _, own = torch.func.vjp(in_torch, x, y, r)
    _, found = torch.func.vjp(made, x, y, r)
    close(found((grad, s)), own((grad, s)))


def test_tangents_in_torch_are_those_of_torch() -> None:
    torch = pytest.importorskip("torch")
    x, y, t, u = map(torch.from_numpy, (X, Y, T, U))
    r, s = map(torch.from_numpy, (R, S))
    _, own = torch.func.jvp(in_torch, (x, y, r), (t, u, s))
    close(torch.func.jvp(kernel("rule"), (x, y, r), (t, u, s))[1], own)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_derived_rules_have_derivatives_again(kind) -> None:
    torch, jax = pytest.importorskip("torch"), pytest.importorskip("jax")
    derived = kernel(kind)

    def loss(function, imaginary):
        def call(x, y, r):
            z, size = function(x, y, r)
            return (imaginary(z * z) * size).sum()

        return call

    def second(grad, function, imaginary, arrays, direction):
        def along(x, y, r):
            first = grad(loss(function, imaginary))(x, y, r)
            return (first * direction).real.sum()

        return [grad(along, place)(*arrays) for place in range(3)]

    in_torch_arrays = [torch.from_numpy(each) for each in (X, Y, R)]
    args = in_torch_arrays, torch.from_numpy(T)

    def torch_grad(function, place=0):
        return torch.func.grad(function, argnums=place)

    def imaginary_of(z):
        return z.imag

    close(
        second(torch_grad, derived, imaginary_of, *args),
        second(torch_grad, in_torch, imaginary_of, *args),
    )
    arrays = [jax.numpy.asarray(each) for each in (X, Y, R)]
    args = arrays, jax.numpy.asarray(T)
    close(
        second(jax.grad, derived.jax, imaginary_of, *args),
        second(jax.grad, in_jax, imaginary_of, *args),
    )


# ---- JAX -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_in_jax_are_those_of_jax(made, compiled) -> None:
    jax = pytest.importorskip("jax")
    x, y, grad, r, s = map(jax.numpy.asarray, (X, Y, GRAD, R, S))
    _, own = jax.vjp(in_jax, x, y, r)
    _, found = jax.vjp(jax.jit(made.jax) if compiled else made.jax, x, y, r)
    close(found((grad, s)), own((grad, s)))


@pytest.mark.parametrize("kind", ["rule", "torch", "jax"])
def test_tangents_in_jax_are_those_of_jax(kind) -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("torch")
    x, y, t, u, r, s = map(jax.numpy.asarray, (X, Y, T, U, R, S))
    _, own = jax.jvp(in_jax, (x, y, r), (t, u, s))
    close(jax.jvp(kernel(kind).jax, (x, y, r), (t, u, s))[1], own)


# ---- TensorFlow, Paddle --------------------------------------------------------------------------


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_in_tensorflow_are_those_of_tensorflow(made, compiled) -> None:
    tf = pytest.importorskip("tensorflow")

    def gradients(function):
        x, y, r, grad, s = map(tf.constant, (X, Y, R, GRAD, S))
        with tf.GradientTape() as tape:
            tape.watch([x, y, r])
            made = function(x, y, r)
        return tape.gradient(made, [x, y, r], output_gradients=[grad, s])

    call = tf.function(made) if compiled else made
    close(gradients(call), gradients(in_tensorflow))


def test_gradients_in_paddle_are_those_of_paddle(made) -> None:
    paddle = pytest.importorskip("paddle")

    def gradients(function):
        arrays = [paddle.to_tensor(each, stop_gradient=False) for each in (X, Y, R)]
        found = function(*arrays)
        cotangents = [paddle.to_tensor(GRAD), paddle.to_tensor(S)]
        paddle.autograd.backward(list(found), cotangents)  # paddle.grad keeps what a layer saved
        return [each.grad.detach() for each in arrays]

    def own(x, y, r):
        return x * x * y.conj() + r.astype("complex64"), (x * r.astype("complex64")).abs()

    close(gradients(made), gradients(own))


# ---- kernels that call others --------------------------------------------------------------------


def test_lists_of_complex_tensors_in_jax() -> None:
    jax = pytest.importorskip("jax")
    pytest.importorskip("torch")
    total = wrap(
        lambda xs, w: [x * x * w for x in xs],
        "complex_lists::scale(xs: c64[n][k], w: c64[n]) -> c64[n][k]",
        abi="python:torch",
        vjp="torch",
    )
    xs, w = [jax.numpy.asarray(each, "complex64") for each in (X, Y)], jax.numpy.asarray(U)

    def loss(scale):
        return lambda xs, w: sum(abs(each).sum() for each in scale(xs, w.astype("complex64")))

    own = jax.grad(loss(lambda xs, w: [x * x * w for x in xs]), (0, 1))(xs, w)
    found = jax.grad(loss(total.jax), (0, 1))(xs, w)
    for one, other in zip(jax.tree.leaves(found), jax.tree.leaves(own), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-5)


def test_a_spectrum_by_torch_is_differentiated_in_jax() -> None:
    jax, torch = pytest.importorskip("jax"), pytest.importorskip("torch")
    spectrum = wrap(
        lambda x: torch.fft.fft(x),
        "complex_fft::fft(x: c64[n]) -> c64[n]",
        abi="python:torch",
        vjp="torch",
    )
    x = jax.numpy.asarray(X, "complex64")
    weights = jax.numpy.arange(4.0)

    def loss(fft):
        return jax.jit(jax.value_and_grad(lambda x: (abs(fft(x)) ** 2 * weights).sum()))

    value, gradient = loss(spectrum.jax)(x)
    own, expected = loss(jax.numpy.fft.fft)(x)
    np.testing.assert_allclose(value, own, rtol=1e-5)
    np.testing.assert_allclose(gradient, expected, rtol=1e-4, atol=1e-5)
    assert dlbridge.to_numpy(gradient).dtype == "complex64"


# ---- results whose size the kernel says ----------------------------------------------------------


def upper(z):
    return z[z.imag > 0] ** 2


def pull_upper(z, grad):
    found = np.zeros_like(z)
    found[z.imag > 0] = grad * np.conj(2 * z[z.imag > 0])
    return found


@pytest.fixture(params=["rule", "torch", "jax"])
def counted(request):
    schema = f"complex_counted_{request.param}::upper(z: c64[n]) -> c64[k<=n]"
    if request.param != "rule":
        pytest.importorskip(request.param)
        return wrap(upper, schema, abi=f"python:{request.param}", vjp=request.param)
    vjp = wrap(
        pull_upper,
        "complex_counted_rule::upper_vjp(z: c64[n], grad: c64[k]) -> c64[n]",
        abi="python:numpy",
    )
    return wrap(upper, schema, abi="python:numpy", vjp=vjp)


KNOWN = np.array([1 + 1j, 2 - 1j, -1 + 3j, 0.5 + 0.5j], np.complex64)
FACTOR = 2 - 3j  # of a loss that is real, and not symmetric in the two parts


def test_gradients_of_results_of_unknown_size_in_torch(counted) -> None:
    torch = pytest.importorskip("torch")
    found = []
    for function in (counted, upper):
        z = torch.tensor(KNOWN, requires_grad=True)
        (FACTOR * function(z)).sum().real.backward()
        found.append(z.grad.numpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("kind", ["torch", "jax"])
def test_tangents_of_results_of_unknown_size_in_torch(kind) -> None:
    """The transpose of the rule that was derived, which looks at values again."""
    torch = pytest.importorskip("torch")
    pytest.importorskip(kind)
    schema = f"complex_pushed_{kind}::upper(z: c64[n]) -> c64[k<=n]"
    kernel = wrap(upper, schema, abi=f"python:{kind}", vjp=kind)
    z, t = torch.tensor(KNOWN), torch.tensor(T)
    for found, right in zip(
        torch.func.jvp(kernel, (z,), (t,)), torch.func.jvp(upper, (z,), (t,)), strict=True
    ):
        np.testing.assert_allclose(found.numpy(), right.numpy(), rtol=1e-5)


def test_gradients_of_results_of_unknown_size_in_jax(counted) -> None:
    jax = pytest.importorskip("jax")
    found = [
        np.asarray(jax.grad(lambda z, f=f: (FACTOR * f(z)).sum().real)(jax.numpy.asarray(KNOWN)))
        for f in (counted.jax, upper)
    ]
    np.testing.assert_allclose(*found, rtol=1e-5)


@pytest.mark.parametrize("compiled", [False, True])
def test_gradients_of_results_of_unknown_size_in_tensorflow(counted, compiled) -> None:
    tf = pytest.importorskip("tensorflow")
    own = lambda z: tf.boolean_mask(z, tf.math.imag(z) > 0) ** 2  # noqa: E731
    found = []
    for function in (counted.tensorflow, own):
        called = tf.function(function, autograph=False) if compiled else function
        z = tf.constant(KNOWN)
        with tf.GradientTape() as tape:
            tape.watch(z)
            loss = tf.math.real(tf.reduce_sum(FACTOR * called(z)))
        found.append(tf.convert_to_tensor(tape.gradient(loss, z)).numpy())
    np.testing.assert_allclose(*found, rtol=1e-5)


# ---- several devices -----------------------------------------------------------------------------

SHARDS = """
import jax, numpy as np
import dlbridge
from jax.sharding import PartitionSpec

product = dlbridge.wrap(
    lambda x, y: x * np.exp(y) * y.conj(),
    "complex_shards::product(x: c64[n], y: c64[n]) -> c64[n]", abi="python:numpy",
    vjp=lambda x, y, grad: (
        grad * (jax.numpy.exp(y) * y.conj()).conj(),
        grad * (x * jax.numpy.exp(y) * y.conj()).conj() + grad.conj() * x * jax.numpy.exp(y),
    ),
    sharding="n",
)
mesh = jax.sharding.Mesh(np.array(jax.devices()), ("d",))
specs = PartitionSpec("d"), PartitionSpec()
x = jax.numpy.asarray([1 + 2j, 3 - 1j, -2 + 0.5j, 1j], "complex64")
y = jax.numpy.asarray([0.5 - 1j, 1 + 1j], "complex64")

def derivatives(function, compiled):
    split = jax.shard_map(function, mesh=mesh, in_specs=specs, out_specs=specs[0])
    gradients = jax.grad(lambda x, y: ((2 - 3j) * split(x, y)).sum().real, (0, 1))
    tangents = lambda x, y: jax.jvp(split, (x, y), (1j * x, y + 1))[1]
    if compiled:
        gradients, tangents = jax.jit(gradients), jax.jit(tangents)
    return *gradients(x, y), tangents(x, y)

for compiled in (False, True):
    found = derivatives(product.jax, compiled)
    right = derivatives(lambda x, y: x * jax.numpy.exp(y) * y.conj(), compiled)
    for one, other in zip(found, right, strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4)
print("done")
"""


@pytest.mark.subprocess
@pytest.mark.preloaded("jax")
def test_derivatives_on_shards_in_jax(run_python, framework) -> None:
    """In `shard_map`, by an argument that is split and by one that all devices have."""
    jax = framework("jax")
    if jax.__version_info__ < (0, 7):
        pytest.skip("jax.shard_map does not check axes here")
    flags = "--xla_force_host_platform_device_count=2"
    assert "done" in run_python(SHARDS, timeout=200, XLA_FLAGS=flags).check()

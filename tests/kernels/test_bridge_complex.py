"""Bridged functions of complex and real tensors: derivatives are those of the same function there.

The gradient of a complex number in JAX is the conjugate of that in torch and TensorFlow.
"""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge

torch = pytest.importorskip("torch")
jax = pytest.importorskip("jax")
jnp = pytest.importorskip("jax.numpy")

RANDOM = np.random.default_rng(0)


def real(*shape):
    return RANDOM.standard_normal(shape).astype(np.float32)


def complexes(*shape):
    return (real(*shape) + 1j * real(*shape)).astype(np.complex64)


Z, X = complexes(3, 4), real(3, 4)
OWN = {"r": real(4), "w": complexes(4)}
COTANGENTS = (real(3, 4), complexes(3, 4), real(3, 4))
TANGENTS = ({"r": real(4), "w": complexes(4)}, complexes(3, 4), real(3, 4))


# ---- one function that is holomorphic in nothing, in each framework ------------------------------


def in_jax(own, z, x):
    a = z * own["w"] + x * own["r"]
    return jnp.abs(a) * own["r"], jnp.conj(a) * z.real + 1j * a**2, jnp.sin(a.imag * x)


def in_torch(own, z, x):
    a = z * own["w"] + x * own["r"]
    return a.abs() * own["r"], a.conj() * z.real + 1j * a**2, torch.sin(a.imag * x)


class Module(torch.nn.Module):
    def __init__(self):
        super().__init__()
        for name, each in OWN.items():
            self.register_parameter(name, torch.nn.Parameter(torch.from_numpy(each.copy())))

    def forward(self, z, x):
        return in_torch({"r": self.r, "w": self.w}, z, x)


def in_tensorflow(own, z, x):
    import tensorflow as tf

    def widen(values):
        return tf.cast(values, tf.complex64)

    a = z * own["w"] + widen(x * own["r"])
    second = tf.math.conj(a) * widen(tf.math.real(z)) + 1j * a**2
    return tf.abs(a) * own["r"], second, tf.sin(tf.math.imag(a) * x)


def tensorflow_params():
    tf = pytest.importorskip("tensorflow")
    return {name: tf.constant(each) for name, each in OWN.items()}


def close(found, expected):
    pairs = zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True)
    for one, other in pairs:
        np.testing.assert_allclose(one, other, rtol=1e-3, atol=1e-3)


def by_ring(transforms):
    """Return the names of transforms: the longer ones are for the full ring."""
    full = {"grad of grad of grad", "grad of jvp", "vmap of grad", "grad of vmap"}
    return [
        pytest.param(name, marks=pytest.mark.full) if name in full else name for name in transforms
    ]


# ---- to JAX --------------------------------------------------------------------------------------


def bridged_to_jax(source):
    """Return the function of another framework as one like `in_jax`."""
    if source == "torch":
        function, params = dlbridge.bridge(Module(), to="jax", batch="batched")
    else:
        own = tensorflow_params()
        function, params = dlbridge.bridge(in_tensorflow, to="jax", params=own, batch="batched")
    return lambda own, z, x: function({**params, "params": own}, z, x)


def jax_loss(f):
    return lambda *args: sum((jnp.abs(y) ** 2 * jnp.cos(y.real)).sum() for y in f(*args))


def jax_slope(f):
    return jax.grad(jax_loss(f), argnums=(0, 1, 2))


def jax_norm(tree):
    return sum((jnp.abs(each) ** 2).sum() + each.imag.sum() for each in jax.tree.leaves(tree))


def jax_slope_of_slope(f):
    return jax.grad(lambda *args: jax_norm(jax_slope(f)(*args)), argnums=(0, 1, 2))


IN_JAX = {
    "vjp": lambda f: jax.jit(lambda *args: jax.vjp(f, *args)[1](COTANGENTS)),
    "jvp": lambda f: jax.jit(lambda *args: jax.jvp(f, args, TANGENTS)),
    "grad": jax_slope,
    "grad of grad": jax_slope_of_slope,
    "grad of grad of grad": lambda f: jax.grad(
        lambda *args: jax_norm(jax_slope_of_slope(f)(*args))
    ),
    "jvp of grad": lambda f: lambda *args: jax.jvp(jax_slope(f), args, TANGENTS),
    "grad of jvp": lambda f: jax.grad(lambda *args: jax_norm(jax.jvp(f, args, TANGENTS)[1])),
    "vmap of grad": lambda f: jax.vmap(jax_slope(f), (None, 0, 0)),
    "grad of vmap": lambda f: jax_slope(jax.vmap(f, (None, 0, 0))),
    "linear_transpose of jvp": lambda f: (
        lambda *args: jax.linear_transpose(lambda *moving: jax.jvp(f, args, moving)[1], *args)(
            COTANGENTS
        )
    ),
}


@pytest.mark.parametrize("transform", by_ring(IN_JAX))
@pytest.mark.parametrize("source", ["torch", "tensorflow"])
def test_derivatives_in_jax_are_those_of_the_same_function_of_jax(source, transform):
    args = jax.tree.map(jnp.asarray, (OWN, Z, X))
    function = IN_JAX[transform]
    close(function(bridged_to_jax(source))(*args), function(in_jax)(*args))


@pytest.mark.parametrize("source", ["torch", "tensorflow"])
def test_a_loss_of_complex_parameters_falls_as_fast_in_jax(source):
    def trained(f):
        @jax.jit
        def step(own):
            gradients = jax.grad(jax_loss(f))(own, Z, X)
            return jax.tree.map(lambda w, g: w - 1e-4 * jnp.conj(g), own, gradients)

        own = jax.tree.map(jnp.asarray, OWN)
        for _ in range(5):
            own = step(own)
        return own

    found = trained(bridged_to_jax(source))
    close(found, trained(in_jax))
    assert jax_loss(in_jax)(found, Z, X) < jax_loss(in_jax)(OWN, Z, X)


def test_tensors_that_torch_conjugates_lazily_have_values_and_derivatives():
    class Lazy(torch.nn.Module):
        def forward(self, z):
            return z.conj(), z.conj().imag, z.mT.conj()

    function, params = dlbridge.bridge(Lazy(), to="jax")

    def expected(z):
        return jnp.conj(z), jnp.conj(z).imag, jnp.conj(z.mT)

    cotangents = (complexes(3, 4), real(3, 4), complexes(4, 3))
    close(jax.jit(function)(params, Z), expected(Z))
    found = jax.vjp(lambda z: function(params, z), Z)[1](cotangents)
    close(found, jax.vjp(expected, Z)[1](cotangents))


# ---- to torch ------------------------------------------------------------------------------------


def bridged_to_torch(source):
    if source == "jax":
        return dlbridge.bridge(in_jax, to="torch", params=OWN)
    return dlbridge.bridge(in_tensorflow, to="torch", params=tensorflow_params())


def functional(module):
    """Return a module as a function like `in_torch`."""
    return lambda own, z, x: torch.func.functional_call(module, own, (z, x))


def torch_loss(f):
    return lambda *args: sum((y.abs() ** 2 * y.real.cos()).sum() for y in f(*args))


def torch_slope(f):
    return torch.func.grad(torch_loss(f), argnums=(0, 1, 2))


def torch_norm(tree):
    leaves = jax.tree.leaves(tree)
    imaginary = sum(each.imag.sum() for each in leaves if each.is_complex())
    return sum((each.abs() ** 2).sum() for each in leaves) + imaginary


def torch_pull(f):
    def pull(*args):
        cotangents = tuple(map(torch.from_numpy, COTANGENTS))
        return torch.func.vjp(f, *args)[1](cotangents)

    return pull


def torch_push(f):
    return lambda *args: torch.func.jvp(f, args, of_torch(TANGENTS))


def of_torch(tree):
    return jax.tree.map(lambda each: torch.from_numpy(np.array(each)), tree)


IN_TORCH = {
    "vjp": torch_pull,
    "jvp": torch_push,
    "grad": torch_slope,
    "grad of grad": lambda f: torch.func.grad(lambda *args: torch_norm(torch_slope(f)(*args))),
    "jvp of grad": lambda f: torch_push(torch_slope(f)),
    "grad of jvp": lambda f: torch.func.grad(lambda *args: torch_norm(torch_push(f)(*args)[1])),
    "vmap of grad": lambda f: torch.vmap(torch_slope(f), (None, 0, 0)),
}


@pytest.mark.parametrize("transform", by_ring(IN_TORCH))
@pytest.mark.parametrize("source", ["jax", "tensorflow"])
def test_derivatives_in_torch_are_those_of_the_same_function_of_torch(source, transform):
    args = of_torch((OWN, Z, X))
    function = IN_TORCH[transform]
    found = function(functional(bridged_to_torch(source)))(*args)
    close(found, function(in_torch)(*args))


@pytest.mark.parametrize("prepare", ["eager", pytest.param("compiled", marks=pytest.mark.full)])
@pytest.mark.parametrize("source", ["jax", "tensorflow"])
def test_a_loss_of_complex_parameters_falls_as_fast_in_torch(source, prepare):
    def trained(module):
        call = module
        if prepare == "compiled":
            call = torch.compile(module, fullgraph=True, backend="aot_eager")
        optimizer = torch.optim.Adam(module.parameters(), lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            torch_loss(call)(*of_torch((Z, X))).backward()
            optimizer.step()
        return {name: each.detach() for name, each in module.named_parameters()}

    found = trained(bridged_to_torch(source))
    close(found, trained(Module()))
    assert torch_loss(in_torch)(found, *of_torch((Z, X))) < torch_loss(in_torch)(
        *of_torch((OWN, Z, X))
    )

"""Kernels under JAX's transformations: grad, vmap, control flow, devices, export, caches."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels.wrap import wrap


@pytest.fixture(scope="module")
def kernels() -> Any:
    from kernels import jax_kernels

    return jax_kernels


@pytest.fixture
def check_grads(jax: Any) -> Any:
    jax.config.update("jax_enable_x64", True)
    from jax.test_util import check_grads

    yield check_grads
    jax.config.update("jax_enable_x64", False)


# ---- gradients -----------------------------------------------------------------------------------


def test_gradients_agree_with_differences(jax: Any, kernels: Any, check_grads: Any) -> None:
    axpy = kernels.axpy()
    x, y = (np.random.default_rng(seed).normal(size=5) for seed in (1, 2))
    array = jax.numpy.asarray  # the differences come as arrays of NumPy
    x, y = array(x), array(y)
    for alpha in (1.0, -0.5):
        check_grads(
            lambda x, y, alpha=alpha: axpy.jax(array(x), array(y), alpha=alpha) ** 2,
            (x, y),
            order=1,
            modes=["rev"],
        )
    traced = jax.jit(jax.grad(lambda x, a: axpy.jax(x, y, alpha=a).sum()))
    assert traced(x, 3.0).tolist() == [3.0] * 5


def test_derivatives_keep_no_tracers(jax: Any, jnp: Any, kernels: Any) -> None:
    mul = kernels.mul("mul_without_leaks")
    cube = lambda x: mul.jax(mul.jax(x, x), x).sum()  # noqa: E731
    with jax.checking_leaks():
        second = jax.jit(jax.grad(lambda x: (jax.grad(cube)(x) ** 2).sum()))
        assert second(jnp.ones(3)).tolist() == [36.0] * 3
        tangent = jax.jit(lambda x: jax.jvp(jax.grad(cube), (x,), (x,))[1])
        assert tangent(jnp.ones(3)).tolist() == [6.0] * 3


def test_second_derivatives_where_the_vjp_can_be_differentiated(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    mul = kernels.mul("mul_twice")
    x = jnp.array([1.0, 2.0, 3.0])
    cube = lambda x: mul.jax(mul.jax(x, x), x).sum()  # noqa: E731
    assert np.allclose(jax.grad(cube)(x), 3 * x**2)
    second = jax.grad(lambda x: jax.grad(cube)(x).sum())
    assert np.allclose(second(x), 6 * x)
    assert np.allclose(jax.jit(second)(x), 6 * x)


def test_a_kernel_as_vjp(jax: Any, jnp: Any, kernels: Any) -> None:
    rule = wrap(
        lambda grad, x, y: (grad * y, grad * x),
        "jaxtests::mul_rule(grad: f32[..., n], x: f32[..., n], y: f32[..., n]) "
        "-> (dx: f32[..., n], dy: f32[..., n])",
        abi="python:numpy",
    )
    mul = kernels.mul("mul_by_kernel", vjp=rule)
    x, y = jnp.arange(3.0), jnp.full(3, 5.0)
    dx, dy = jax.jit(jax.grad(lambda x, y: mul.jax(x, y).sum(), (0, 1)))(x, y)
    assert dx.tolist() == [5, 5, 5]
    assert dy.tolist() == [0, 1, 2]


def test_results_without_a_cotangent_and_arguments_without_a_gradient(jax: Any, jnp: Any) -> None:
    """Integers on both sides, an optional tensor, a result that nobody uses."""

    def split(x: Any, k: Any, w: Any) -> Any:
        return x * k.astype(x.dtype), x + (x * 0 if w is None else w), k.max()

    def rule(k: Any, grad_a: Any, grad_b: Any) -> Any:
        return {"x": grad_a * k + grad_b, "w": grad_b}

    kernel = wrap(
        split,
        "jaxtests::split(x: f32[n], k: i32[n], w: f32[n]? = None) -> "
        "(a: f32[n], b: f32[n], c: i32[])",
        abi="python:numpy",
        vjp=rule,
    )
    x, k, w = jnp.arange(3.0), jnp.array([1, 2, 3]), jnp.ones(3)
    used = lambda x, k, w=None: sum(kernel.jax(x, k, w)[:2]).sum()  # noqa: E731
    assert jax.grad(used)(x, k).tolist() == [2, 3, 4]
    assert jax.grad(used, 2)(x, k, w).tolist() == [1, 1, 1]
    assert jax.grad(lambda x: kernel.jax(x, k)[0].sum())(x).tolist() == [1, 2, 3]
    whole = jax.grad(used, 1, allow_int=True)(x, k)
    assert whole.dtype == jax.dtypes.float0


def test_forward_mode(jax: Any, jnp: Any, kernels: Any) -> None:
    def jvp(tangent_x: Any, tangent_y: Any, alpha: Any) -> Any:
        return alpha * tangent_x + tangent_y

    x, y = jnp.arange(3.0), jnp.ones(3)
    forward = kernels.axpy(name="jaxtests::axpy_forward", vjp=None, jvp=jvp)
    both = kernels.axpy(name="jaxtests::axpy_both", jvp=jvp)
    for axpy in (forward, both):
        call = lambda x, axpy=axpy: axpy.jax(x, y, alpha=3.0)  # noqa: E731
        out, tangent = jax.jvp(call, (x,), (y,))
        assert out.tolist() == [1, 4, 7]
        assert tangent.tolist() == [3, 3, 3]
        assert jax.grad(lambda x, call=call: call(x).sum())(x).tolist() == [3, 3, 3]
        assert jax.jacfwd(call)(x).tolist() == (3 * np.eye(3)).tolist()
        assert jax.jacrev(call)(x).tolist() == (3 * np.eye(3)).tolist()
        assert jax.vmap(jax.grad(lambda x, call=call: call(x).sum()))(x[None]).tolist() == [
            [3, 3, 3]
        ]


FORWARD = {
    "jvp": lambda jax, f, x, y, weights: lambda x, y: jax.jvp(f, (x, y), (y, weights)),
    "jvp of one": lambda jax, f, x, y, weights: (
        lambda x, y: jax.jvp(lambda x: f(x, y), (x,), (weights,))
    ),
    "linearize": lambda jax, f, x, y, weights: jax.linearize(f, x, y)[1],
    "jacfwd": lambda jax, f, *_: jax.jacfwd(f),
    "jacfwd of the second": lambda jax, f, *_: jax.jacfwd(f, 1),
    "jacrev": lambda jax, f, *_: jax.jacrev(f),
    "hessian": lambda jax, f, x, y, weights: jax.hessian(
        lambda x, y: (f(x, y) * weights).sum(), (0, 1)
    ),
    "jacfwd of jacfwd": lambda jax, f, *_: jax.jacfwd(jax.jacfwd(f)),
    "jacrev of jacfwd": lambda jax, f, *_: jax.jacrev(jax.jacfwd(f, 1)),
    "grad of jvp": lambda jax, f, x, y, weights: jax.grad(
        lambda x, y: jax.jvp(f, (x, y), (y, x))[1].sum(), (0, 1)
    ),
    "vmap of jacfwd": lambda jax, f, *_: (
        lambda x, y: jax.vmap(jax.jacfwd(f), (0, None))(jax.numpy.stack([x, y]), y)
    ),
    "vmap of jvp": lambda jax, f, *_: (
        lambda x, y: jax.vmap(lambda t: jax.jvp(f, (x, y), (t, y))[1], out_axes=1)(jax.numpy.eye(3))
    ),
    "checkpoint": lambda jax, f, *_: jax.jacfwd(jax.checkpoint(f)),
    "scan": lambda jax, f, *_: jax.jacfwd(
        lambda x, y: jax.lax.scan(lambda c, _: (f(c, y), c), x, None, 3)
    ),
    "cond": lambda jax, f, *_: jax.jacfwd(
        lambda x, y: jax.lax.cond(x.sum() > 0, f, lambda x, y: x, x, y)
    ),
}


@pytest.mark.parametrize("name", FORWARD)
@pytest.mark.fast(lambda name: name in ("jvp", "linearize", "hessian", "vmap of jvp"))
def test_forward_mode_of_a_kernel_with_only_a_vjp(
    jax: Any, jnp: Any, kernels: Any, name: str
) -> None:
    """The vjp is linear in its cotangents: its transpose is the tangent."""
    calls = []

    def vjp(grad: Any, alpha: Any) -> Any:
        calls.append(1)
        return alpha * grad, grad

    axpy = kernels.axpy(name="jaxtests::only_a_vjp", vjp=vjp)
    x, y, weights = jnp.arange(3.0), jnp.ones(3), jnp.array([1.0, 2.0, 4.0])
    call = lambda x, y: axpy.jax(x * x, y, alpha=3.0) * y  # noqa: E731
    formula = lambda x, y: (3.0 * x * x + y) * y  # noqa: E731
    assert axpy.jax(x, y).tolist() == [1, 2, 3]
    assert not calls
    transform = lambda f: FORWARD[name](jax, f, x, y, weights)  # noqa: E731
    for compiled in (lambda f: f, jax.jit):
        got = compiled(transform(call))(x, y)
        inside = transform(compiled(call))(x, y)
        expected = transform(formula)(x, y)
        for one in (got, inside):
            jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, 1e-5), one, expected)


def test_forward_mode_without_what_its_vjp_needs(jax: Any, jnp: Any, kernels: Any) -> None:
    """JAX's own words name neither the kernel nor what to do."""
    schema = "jaxtests::{}(x: f32[n], y: f32[n], grad: f32[n], *, alpha: float)"
    schema += " -> (grad_x: f32[n], grad_y: f32[n])"
    opaque = wrap(
        lambda x, y, grad, alpha: (alpha * grad, grad), schema.format("opaque"), abi="python:numpy"
    )
    in_c = kernels.axpy(name="jaxtests::only_a_kernel", vjp=opaque)
    calling = kernels.axpy(
        name="jaxtests::calling", vjp=lambda x, y, grad, alpha: opaque.jax(x, y, grad, alpha=alpha)
    )
    x = jnp.arange(3.0)
    for axpy, words in (
        (in_c, "jaxtests::only_a_kernel: .*only a vjp, a Kernel that has no vjp= .*jvp="),
        (calling, "jaxtests::opaque: a derivative would pass through this kernel.*vjp="),
    ):
        total = lambda x, axpy=axpy: axpy.jax(x, x).sum()  # noqa: E731
        for transformed in (
            lambda x, total=total: jax.jvp(total, (x,), (x,)),
            jax.jacfwd(total),
            jax.jit(jax.jacfwd(total)),
        ):
            with pytest.raises(KernelError, match=words):
                transformed(x)
        assert jax.grad(total)(x).tolist() == [2.0, 2.0, 2.0]
        assert jax.grad(jax.jit(total))(x).tolist() == [2.0, 2.0, 2.0]
        assert jax.jit(jax.vmap(jax.grad(total)))(x[None]).tolist() == [[2.0, 2.0, 2.0]]


def test_forward_mode_of_a_kernel_with_a_kernel_that_has_a_gradient(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    pull = wrap(
        lambda x, y, grad: (y * grad, x * grad),
        "jaxtests::pull(x: f32[n], y: f32[n], grad: f32[n]) -> (grad_x: f32[n], grad_y: f32[n])",
        abi="python:numpy",
        vjp=lambda x, y, grad, grad_grad_x, grad_grad_y: (
            grad * grad_grad_y,
            grad * grad_grad_x,
            y * grad_grad_x + x * grad_grad_y,
        ),
    )
    schema = "jaxtests::product(x: f32[n], y: f32[n]) -> f32[n]"
    product = wrap(lambda x, y: x * y, schema, abi="python:numpy", vjp=pull)
    x = jnp.arange(3.0)
    assert jax.jvp(product.jax, (x, x), (x, x))[1].tolist() == [0, 2, 8]
    assert jax.hessian(lambda x: product(x, x).sum())(x).tolist() == (2 * np.eye(3)).tolist()


def test_forward_mode_with_integers_optional_tensors_results_and_scalars(
    jax: Any, jnp: Any
) -> None:
    def rule(x: Any, w: Any, y: Any, by: Any, grad_y: Any, grad_z: Any) -> dict[str, Any]:
        grads = {"x": by * grad_y * (1 if w is None else w) + 2 * y * 0 + grad_z.sum()}
        return grads if w is None else {**grads, "w": by * x * grad_y}

    @wrap(
        schema="jaxtests::mixed(x: f32[n], k: i32[n], w: f32[n]? = None, *, by: float = 2.0)"
        " -> (y: f32[n], count: i32[], z: f32[])",
        abi="python:numpy",
        vjp=rule,
    )
    def mixed(x: Any, k: Any, w: Any, *, by: float) -> Any:
        return by * x * (1 if w is None else w), np.int32(len(k)), x.sum()

    x, k, w = jnp.arange(3.0), jnp.arange(3), jnp.array([1.0, 3.0, 5.0])
    value, tangent = jax.jvp(lambda x: mixed.jax(x, k), (x,), (w,))
    assert [each.tolist() for each in value] == [[0, 2, 4], 3, 3]
    assert tangent[0].tolist() == [2, 6, 10]
    assert tangent[1].dtype == jax.dtypes.float0
    assert tangent[2] == 9
    both = jax.jit(lambda x, w: jax.jvp(lambda x, w: mixed.jax(x, k, w, by=3.0)[0], (x, w), (w, x)))
    assert both(x, w)[1].tolist() == [3, 30, 87]
    steps = jax.jit(lambda x, by: jax.jvp(lambda x: mixed.jax(x, k, by=by)[0], (x,), (w,))[1])
    assert steps(x, 5.0).tolist() == [5, 15, 25]
    with pytest.raises(KernelError, match="argument 'by': no gradient passes to a scalar"):
        jax.jvp(lambda by: mixed.jax(x, k, by=by)[0], (2.0,), (1.0,))


def test_forward_mode_of_complex_numbers(jax: Any, jnp: Any) -> None:
    product = wrap(
        lambda x, y: x.conj() * y,
        "jaxtests::conjugated(x: c64[n], y: c64[n]) -> c64[n]",
        abi="python:numpy",
        vjp=lambda x, y, grad: (jnp.conj(grad) * y, grad * x),
    )
    values = np.random.default_rng(0).normal(size=(4, 3, 2)).astype("f4").view("c8")[..., 0]
    x, y, t, u = map(jnp.asarray, values)
    for function in (product.jax, jax.jit(product.jax)):
        value, tangent = jax.jvp(function, (x, y), (t, u))
        np.testing.assert_allclose(value, x.conj() * y, 1e-5)
        np.testing.assert_allclose(tangent, t.conj() * y + x.conj() * u, 1e-5)


def test_a_missing_gradient_is_never_silent(jax: Any, jnp: Any, kernels: Any) -> None:
    """The error names the kernel and says what to do; no derivative asked for, no error."""
    axpy = kernels.axpy(name="jaxtests::no_gradient", vjp=None)
    x = jnp.arange(3.0)
    total = lambda x: axpy.jax(x, x).sum()  # noqa: E731
    for transformed in (
        jax.grad(total),
        jax.jit(jax.grad(total)),
        jax.grad(jax.jit(total)),
        lambda x: jax.jvp(total, (x,), (x,)),
        jax.grad(lambda x: jax.vmap(axpy.jax)(x[None], x[None]).sum()),
        jax.grad(jax.checkpoint(total)),
        jax.grad(lambda x: jax.lax.scan(lambda c, _: (axpy.jax(c, c), None), x, None, 2)[0].sum()),
    ):
        with pytest.raises(KernelError, match=r"jaxtests::no_gradient: .*vjp="):
            transformed(x)
    stopped = lambda x: (axpy.jax(jax.lax.stop_gradient(x), x * 0 + 1.0) * x).sum()  # noqa: E731
    with pytest.raises(KernelError):
        jax.grad(stopped)(x)
    constant = lambda x: (axpy.jax(jax.lax.stop_gradient(x), jnp.ones(3)) * x).sum()  # noqa: E731
    assert jax.grad(constant)(x).tolist() == [1, 2, 3]
    assert jax.jit(jax.grad(constant))(x).tolist() == [1, 2, 3]


def test_integer_results_need_no_gradient(jax: Any, jnp: Any) -> None:
    """Nothing can flow through them."""
    sign = wrap(
        lambda x: (x > 1).astype("int32"), "jaxtests::sign(x: f32[n]) -> i32[n]", abi="python:numpy"
    )
    assert jax.grad(lambda x: (sign.jax(x) * x).sum())(jnp.arange(4.0)).tolist() == [0, 0, 1, 1]


def test_no_gradient_of_a_scalar(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x = jnp.arange(3.0)
    with pytest.raises(KernelError, match="argument 'alpha': no gradient"):
        jax.grad(lambda a: axpy.jax(x, x, alpha=a).sum())(2.0)


def test_in_place_kernels_have_no_gradient(jax: Any, jnp: Any, kernels: Any) -> None:
    scale = kernels.scale()
    with pytest.raises(KernelError, match="jaxtests::scale"):
        jax.grad(lambda x: scale.jax(x, factor=2.0).sum())(jnp.ones(3))


def test_a_wrong_gradient_is_refused(jax: Any, jnp: Any, kernels: Any) -> None:
    x = jnp.ones(3)
    for rule, kind in [
        (lambda grad: (grad, grad[:2]), ArgumentError),
        (lambda grad: (grad, grad.astype("int32")), UnsupportedTypeError),
        (lambda grad: grad, UnsupportedTypeError),
    ]:
        axpy = kernels.axpy(name="jaxtests::wrong_gradient", vjp=rule)
        with pytest.raises(kind, match="jaxtests::wrong_gradient"):
            jax.grad(lambda x, axpy=axpy: axpy.jax(x, x).sum())(x)


# ---- batches -------------------------------------------------------------------------------------


def batch_rule(axis_size: int, is_batched: Any, x: Any, y: Any, **scalars: Any) -> Any:
    assert len(is_batched) == 2
    wide = [each if flag else each[None] for each, flag in zip((x, y), is_batched, strict=True)]
    return wide[0] * wide[1] * np.ones((axis_size, 1), "float32")


@pytest.mark.fast(lambda axes: axes in ((0, 0), (None, 1)))
@pytest.mark.parametrize(
    "batch", ["sequential", "broadcast", batch_rule], ids=["sequential", "broadcast", "rule"]
)
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, None), (None, 1)], ids=str)
def test_vmap(jax: Any, jnp: Any, kernels: Any, batch: Any, axes: Any) -> None:
    mul = kernels.mul("mul_batched", batch=batch)
    rng = np.random.default_rng(3)
    x, y = (
        jnp.asarray(rng.normal(size=(4,) if axis is None else (3, 4) if axis == 0 else (4, 3)))
        for axis in axes
    )
    x, y = x.astype("float32"), y.astype("float32")
    mapped = jax.vmap(mul.jax, in_axes=axes)
    expected = jax.vmap(lambda x, y: x * y, in_axes=axes)(x, y)
    for call in (mapped, jax.jit(mapped)):
        assert np.allclose(call(x, y), expected)
    total = jax.grad(lambda x, y: (mapped(x, y) ** 2).sum(), (0, 1))
    plain = jax.grad(lambda x, y: (jax.vmap(lambda a, b: a * b, axes)(x, y) ** 2).sum(), (0, 1))
    for found, wanted in zip(total(x, y), plain(x, y), strict=True):
        assert np.allclose(found, wanted, atol=1e-5)
    single = jax.vmap(jax.grad(lambda x, y: (mul.jax(x, y) ** 2).sum()), in_axes=axes)
    direct = jax.vmap(jax.grad(lambda x, y: ((x * y) ** 2).sum()), in_axes=axes)
    assert np.allclose(jax.jit(single)(x, y), direct(x, y), atol=1e-5)


@pytest.mark.parametrize("batch", ["sequential", "broadcast"])
def test_nested_vmap_and_several_results(jax: Any, jnp: Any, kernels: Any, batch: str) -> None:
    extent = kernels.make(
        "extent", "jaxtests::extent(x: f32[..., n]) -> (low: f32[...], sum: f32[...])", batch=batch
    )
    x = jnp.arange(24.0).reshape(2, 3, 4)
    low, total = jax.jit(jax.vmap(jax.vmap(extent.jax)))(x)
    assert np.array_equal(low, x.min(-1))
    assert np.array_equal(total, x.sum(-1))


def test_broadcast_calls_the_kernel_once_and_sequential_once_for_each(jax: Any, jnp: Any) -> None:
    """Weights without leading dimensions stay as they are; where they are batched, it is one by
    one."""
    shapes: list[Any] = []

    def apply(x: Any, w: Any) -> Any:
        shapes.append((x.shape, w.shape))
        return x * w

    for batch, kinds in (("broadcast", 1), ("sequential", 5)):
        kernel = wrap(
            apply,
            f"jaxtests::apply_{batch}(x: f32[..., n], w: f32[n]) -> f32[..., n]",
            abi="python:numpy",
            batch=batch,
        )
        shapes.clear()
        x, w = jnp.ones((5, 2)), jnp.full(2, 3.0)
        assert jax.vmap(kernel.jax, in_axes=(0, None))(x, w).sum() == 30
        assert len(shapes) == kinds
        shapes.clear()
        assert jax.vmap(kernel.jax, in_axes=(None, 0))(w, x).shape == (5, 2)
        assert len(shapes) == 5


@pytest.mark.fast(lambda axes: axes == (1, 0))
@pytest.mark.parametrize("axes", [(0, 0), (1, 0), (0, None), (None, 1)])
def test_grad_of_vmap_of_a_kernel_with_both_rules(jax: Any, jnp: Any, axes: Any) -> None:
    """The linear map in the derivative is transposed with its batch, which may lie anywhere."""
    kernel = dlbridge.wrap(
        lambda x, y: x * x * y,
        "jax_linear::square(x: f32[n], y: f32[n]) -> f32[n]",
        abi="python:numpy",
        vjp=lambda x, y, grad: (2 * x * y * grad, x * x * grad),
        jvp=lambda x, y, tangent_x, tangent_y: 2 * x * y * tangent_x + x * x * tangent_y,
    )
    base = jnp.arange(1.0, 7.0).reshape(3, 2)
    arranged = {0: base, 1: base.T, None: base[1]}

    def gradients(function: Any) -> Any:
        mapped = jax.vmap(function, axes)
        return jax.grad(lambda x, y: (mapped(x, y) * base).sum(), (0, 1))(*map(arranged.get, axes))

    pairs = zip(gradients(kernel.jax), gradients(lambda x, y: x * x * y), strict=True)
    for found, expected in pairs:
        assert found.shape == expected.shape
        assert jnp.allclose(found, expected)


def test_vmap_over_a_traced_scalar(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x = jnp.ones(3)
    out = jax.vmap(lambda a: axpy.jax(x, x, alpha=a))(jnp.arange(3.0))
    assert out[:, 0].tolist() == [1, 2, 3]


def test_vmap_of_what_is_written_in_place(jax: Any, jnp: Any, kernels: Any) -> None:
    swap = kernels.swap()
    x, y = jnp.arange(6.0).reshape(2, 3), jnp.ones((2, 3))
    out, new = jax.jit(jax.vmap(swap.jax))(x, y)
    assert np.array_equal(out, x + y)
    assert np.array_equal(new, x)


def test_a_wrong_batch_rule_is_refused(jax: Any, jnp: Any, kernels: Any) -> None:
    mul = kernels.mul("mul_wrong", batch=lambda axis_size, is_batched, x, y: x[0] * y[0])
    with pytest.raises(ArgumentError, match="jaxtests::mul_wrong: batch= returned"):
        jax.vmap(mul.jax)(jnp.ones((2, 3)), jnp.ones((2, 3)))


# ---- control flow --------------------------------------------------------------------------------


def test_control_flow(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x = jnp.arange(4.0)
    step = lambda c: axpy.jax(c, jnp.ones_like(c), alpha=2.0)  # noqa: E731
    expected = np.asarray(x) * 8 + 7
    lax = jax.lax
    programs = [
        lambda x: lax.fori_loop(0, 3, lambda _, c: step(c), x),
        lambda x: lax.scan(lambda c, _: (step(c), c.sum()), x, None, 3)[0],
        lambda x: lax.while_loop(lambda p: p[0] < 3, lambda p: (p[0] + 1, step(p[1])), (0, x))[1],
        lambda x: lax.cond(x.sum() > 0, lambda x: step(step(step(x))), lambda x: x, x),
        lambda x: jax.checkpoint(lambda x: step(step(step(x))))(x),
    ]
    for program in programs:
        assert np.array_equal(program(x), expected)
        assert np.array_equal(jax.jit(program)(x), expected)
    for program in (programs[1], programs[3], programs[4]):
        gradient = jax.grad(lambda x, program=program: program(x).sum())
        assert gradient(x).tolist() == [8] * 4
        assert jax.jit(gradient)(x).tolist() == [8] * 4


def test_a_kernel_without_results_runs_as_often_as_it_is_called(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    """Its effect is not optimised away."""
    tick = kernels.make("tick", "jaxtests::tick(x: f32[])")
    from dlbridge.kernels.library import compile_c  # the same library: compiled once

    count = compile_c(kernels.SOURCE, "tick", flags=["-O1"]).functions["cpu"]
    assert count is not None
    x = jnp.float32(0)
    assert tick.jax(x) is None
    jitted = jax.jit(lambda x: (tick.jax(x), tick.jax(x), x + 1)[-1])
    text = jitted.lower(x).as_text()
    assert text.count("jaxtests::tick") >= 2
    assert jitted(x) == 1


# ---- devices -------------------------------------------------------------------------------------

DEVICES = """
    import sys
    import jax, jax.numpy as jnp, numpy as np
    from kernels import jax_kernels
    try:
        from jax import shard_map
    except ImportError:
        from jax.experimental.shard_map import shard_map
    from jax.sharding import Mesh, NamedSharding, PartitionSpec as P

    axpy, scale = jax_kernels.axpy(), jax_kernels.scale()
    assert jax.device_count() == 2
    x, y = jnp.arange(8.0).reshape(4, 2), jnp.ones((4, 2))
    mesh = Mesh(np.array(jax.devices()), ("a",))
    rows = lambda x, y: jnp.stack([axpy.jax(a, b, alpha=2.0) for a, b in zip(x, y)])
    unchecked = {} if jax.__version_info__ >= (0, 6) else {"check_rep": False}
    mapped = shard_map(rows, mesh=mesh, in_specs=P("a"), out_specs=P("a"), **unchecked)
    expected = 2 * np.asarray(x) + 1
    for call in (mapped, jax.jit(mapped)):
        assert np.array_equal(call(x, y), expected)
    total = jax.grad(lambda x: mapped(x, y).sum())
    assert np.array_equal(total(x), np.full((4, 2), 2.0))
    if hasattr(jax, "pmap"):
        both = jax.pmap(lambda x, y: axpy.jax(x, y, alpha=2.0))
        assert np.array_equal(both(x[:2], y[:2]), expected[:2])

    # Arrays on several devices are gathered for the kernel, and on another device stay there.
    flat, ones = jnp.arange(8.0), jnp.ones(8)
    spread = jax.device_put(flat, NamedSharding(mesh, P("a")))
    for call in (axpy.jax, jax.jit(axpy.jax), axpy):
        assert np.array_equal(call(spread, ones), flat + 1)
        assert np.array_equal(call(spread, spread), 2 * flat)
    second = jax.device_put(flat, jax.devices()[1])
    out = axpy.jax(second, second)
    assert out.devices() == {jax.devices()[1]}
    assert np.array_equal(scale.jax(spread, factor=2.0), 2 * flat)
    assert np.array_equal(spread, flat)
    print("done")
"""


SHARDED = """
    import jax, jax.numpy as jnp, numpy as np, dlbridge
    from jax.sharding import Mesh, PartitionSpec as P

    rules = {
        "vjp": lambda x, w, grad: (2 * x * w * grad, x * x * grad),
        "jvp": lambda x, w, tangent_x, tangent_w: 2 * x * w * tangent_x + x * x * tangent_w,
    }
    mesh = Mesh(np.array(jax.devices()), ("a",))
    x, w = jnp.arange(1.0, 5.0), jnp.array([2.0, 3.0])
    for names in (("vjp",), ("jvp",), ("vjp", "jvp")):
        kernel = dlbridge.wrap(
            lambda x, w: x * x * w,
            f"sharded::{'_'.join(names)}(x: f32[n], w: f32[n]) -> f32[n]",
            abi="python:numpy",
            **{name: rules[name] for name in names},
        )

        def compare(make):
            ways = [
                jax.shard_map(make(f), mesh=mesh, in_specs=(P("a"), P()), out_specs=P("a"))
                for f in (kernel.jax, lambda x, w: x * x * w)
            ]
            whole = [make_whole(way) for way in ways for make_whole in (
                lambda way: way,
                lambda way: jax.jit(way),
                lambda way: jax.grad(lambda x, w: way(x, w).sum(), (0, 1)),
                lambda way: jax.jit(jax.grad(lambda x, w: (way(x, w) ** 2).sum(), (0, 1))),
            )]
            half = len(whole) // 2
            for own, expected in zip(whole[:half], whole[half:]):
                jax.tree.map(np.testing.assert_allclose, own(x, w), expected(x, w))

        compare(lambda f: f)
        compare(lambda f: jax.grad(lambda x, w: f(x, w).sum()))
        compare(lambda f: lambda x, w: jax.jvp(f, (x, w), (x, w))[1])
    print("done")
"""


@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.full
def test_derivatives_within_shard_map(run_python: Any, jax: Any) -> None:
    """Also of what is the same on all devices, whose gradient is the sum of theirs."""
    if jax.__version_info__ < (0, 7):
        pytest.skip("jax.shard_map does not check axes here")
    flags = "--xla_force_host_platform_device_count=2"
    assert "done" in run_python(SHARDED, timeout=400, XLA_FLAGS=flags).check()  # XLA compiles much


@pytest.mark.full
@pytest.mark.preloaded("jax")
@pytest.mark.subprocess
@pytest.mark.usefixtures("jax")
def test_two_devices(run_python: Any) -> None:
    flags = "--xla_force_host_platform_device_count=2"
    assert "done" in run_python(DEVICES, XLA_FLAGS=flags).check()


# ---- export and caches ---------------------------------------------------------------------------

EXPORT = """
    import sys
    import jax, jax.numpy as jnp
    from jax import export
    from kernels import jax_kernels

    axpy, extent = jax_kernels.axpy(), jax_kernels.make(
        "extent", "jaxtests::extent(x: f32[..., n]) -> (low: f32[...], sum: f32[...])")

    def program(x, y, a):
        low, total = extent.jax(axpy.jax(x, y, alpha=a))
        return low + total, axpy.jax(x, y)

    n, m = export.symbolic_shape("n, m")
    checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    like = jax.ShapeDtypeStruct((n,), "float32")
    made = export.export(jax.jit(program), disabled_checks=checks)(
        like, like, jax.ShapeDtypeStruct((), "float32"))
    open(sys.argv[1], "wb").write(made.serialize())
"""

IMPORT = """
    import sys
    import jax.numpy as jnp
    from jax import export
    from kernels import jax_kernels

    made = export.deserialize(open(sys.argv[1], "rb").read())
    def call(n):
        return made.call(jnp.arange(float(n)), jnp.ones(n), jnp.float32(2))
    if sys.argv[2] == "missing":
        import dlbridge.frameworks.jax.binding
        try:
            call(3)
        except Exception as error:
            print(error)
        sys.exit()
    if sys.argv[2] == "changed":
        jax_kernels.make("copy", "jaxtests::axpy(x: f32[n]) -> f32[n]").jax
    else:
        jax_kernels.axpy().jax
    jax_kernels.make("extent", "jaxtests::extent(x: f32[..., n]) -> (low: f32[...], sum: f32[...])")
    try:
        for n in (3, 5):
            both, out = call(n)
            print(float(both), out.tolist())
    except Exception as error:
        print(error)
"""


@pytest.mark.preloaded("jax")
@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.usefixtures("jax")
def test_exported_programs_run_in_another_process(run_python: Any, tmp_path: Any) -> None:
    """Shapes stay symbolic; a kernel that is not there, or another, is told by name."""
    path = tmp_path / "program"
    run_python(EXPORT, path).check()
    out = run_python(IMPORT, path, "same").check()
    assert out.splitlines() == ["10.0 [1.0, 2.0, 3.0]", "26.0 [1.0, 2.0, 3.0, 4.0, 5.0]"]
    assert "NOT_FOUND: jaxtests::axpy" in run_python(IMPORT, path, "missing").check()
    assert "export it again" in run_python(IMPORT, path, "changed").check()


def test_symbolic_shapes_are_checked_while_tracing(jax: Any, jnp: Any, kernels: Any) -> None:
    export = pytest.importorskip("jax.export")
    mul = kernels.make("mul", "jaxtests::mul_vectors(x: f32[n], y: f32[n]) -> f32[n]")
    n, m = export.symbolic_shape("n, m")
    checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    make = export.export(jax.jit(mul.jax), disabled_checks=checks)
    with pytest.raises(ArgumentError, match=r"expected f32\[n=n\], got f32\[m\]"):
        make(jax.ShapeDtypeStruct((n,), "float32"), jax.ShapeDtypeStruct((m,), "float32"))


CACHE = """
    import sys, logging
    import jax, jax.numpy as jnp
    jax.config.update("jax_compilation_cache_dir", sys.argv[1])
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", -1)
    hits = []
    import jax.monitoring
    jax.monitoring.register_event_listener(
        lambda name, **_: hits.append(name) if "cache_hit" in name else None)
    from kernels import jax_kernels
    kernel = jax_kernels.axpy() if sys.argv[2] == "axpy" else jax_kernels.make(
        "mul", "jaxtests::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]")
    f = jax.jit(lambda x: kernel.jax(x, x * 3, alpha=2.0) + 1)
    print(f(jnp.arange(3.0)).tolist(), "hit" if hits else "missed")
"""


@pytest.mark.preloaded("jax")
@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.usefixtures("jax")
def test_the_persistent_cache_holds_names(run_python: Any, tmp_path: Any) -> None:
    """A second process finds the program, and calls the kernel that has the name there."""
    first = run_python(CACHE, tmp_path, "axpy").check()
    second = run_python(CACHE, tmp_path, "axpy").check()
    other = run_python(CACHE, tmp_path, "mul").check()
    assert first.strip() == "[1.0, 6.0, 11.0] missed"
    assert second.strip() == "[1.0, 6.0, 11.0] hit"
    assert other.strip() == "[1.0, 4.0, 13.0] hit"


def test_an_in_place_kernel_is_not_advised_to_have_a_vjp(jax: Any) -> None:
    def double(x):
        x *= 2

    kernel = wrap(double, "jaxtests::double(x!: f32[n])", abi="python:numpy")
    with pytest.raises(KernelError, match="wrap one that returns results") as caught:
        jax.grad(lambda x: kernel(x).sum())(jax.numpy.ones(3, "float32"))
    assert "vjp=" not in str(caught.value)

"""Rules for gradients: names, what they keep, what they return, with values of NumPy."""

from __future__ import annotations

import numpy as np
import pytest

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels import gradients
from dlbridge.kernels.wrap import wrap

AXPY = "vjps::axpy(x: f64[n], y: f64[n], *, alpha: float = 1.0) -> f64[n]"
SPLIT = "vjps::split(x: f64[n], k: i64[n], w: f64[n]? = None) -> (a: f64[n], b: f64[n], c: i64[])"


def axpy(x, y, *, alpha):
    return alpha * x + y


def split(x, k, w):
    return x, x, np.int64(0)


def make(vjp, schema=AXPY, function=axpy, jvp=None):
    return wrap(function, schema, abi="python:numpy", vjp=vjp, jvp=jvp)


ONE, TWO, THREE = (np.full(4, value) for value in (1.0, 2.0, 3.0))


@pytest.fixture
def wide(framework):
    """Let JAX have 64-bit types, for one test."""
    config = framework("jax").config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    yield
    config.update("jax_enable_x64", before)


def test_names_of_arguments_scalars_and_grad() -> None:
    vjp = gradients.make_vjp(make(lambda x, grad, alpha: (alpha * grad, x)))
    assert vjp.saved == ((0,), ())
    dx, dy = vjp([TWO, None], [5.0], [None], [THREE])
    assert dx.tolist() == [15] * 4
    assert dy.tolist() == [2] * 4


def test_names_of_results_and_their_cotangents() -> None:
    """Integer results have no cotangent; integer arguments no gradient."""

    def rule(grad_b, a, *, grad_a):
        return grad_a + a, grad_b

    vjp = gradients.make_vjp(make(rule, SPLIT, split))
    assert vjp.saved == ((), (0,))
    assert vjp.wanted == (0, 2)
    found = vjp([TWO, None, ONE], [], [THREE, None, None], [ONE, TWO, None])
    assert [None if one is None else one.tolist() for one in found] == [[4.0] * 4, None, [2.0] * 4]


def test_a_dict_by_argument_leaves_zeros_out() -> None:
    vjp = gradients.make_vjp(make(lambda grad: {"y": grad, "x": None}))
    assert vjp([ONE, ONE], [1.0], [None], [TWO])[0] is None
    assert vjp([ONE, ONE], [1.0], [None], [TWO])[1] is TWO


def test_one_gradient_may_be_bare_or_none() -> None:
    schema = "vjps::double(x: f64[n]) -> f64[n]"
    vjp = gradients.make_vjp(make(lambda grad: 2 * grad, schema, lambda x: 2 * x))
    assert vjp([ONE], [], [None], [ONE])[0].tolist() == [2] * 4
    vjp = gradients.make_vjp(make(lambda: None, schema, lambda x: 2 * x))
    assert vjp([ONE], [], [None], [ONE]) == [None]


def test_a_rule_with_keywords_gets_everything() -> None:
    vjp = gradients.make_vjp(make(lambda **given: (given["x"], given["grad"])))
    assert vjp.saved == ((0, 1), (0,))
    assert vjp([ONE, TWO], [1.0], [TWO], [THREE])[1] is THREE


def test_a_parameter_of_another_name_keeps_its_default() -> None:
    vjp = gradients.make_vjp(make(lambda grad, /, factor=7: (factor * grad, grad)))
    assert vjp([ONE, ONE], [1.0], [None], [ONE])[0].tolist() == [7] * 4


def test_a_kernel_is_a_rule() -> None:
    rule = wrap(
        lambda grad, x, *, alpha: (alpha * grad, x),
        "vjps::axpy_rule(grad: f64[n], x: f64[n], *, alpha: float) -> (dx: f64[n], dy: f64[n])",
        abi="python:numpy",
    )
    vjp = gradients.make_vjp(make(rule))
    assert vjp.saved == ((0,), ())
    dx, dy = vjp([TWO, None], [5.0], [None], [THREE])
    assert dx.tolist() == [15] * 4
    assert dy.tolist() == [2] * 4


def test_a_kernels_results_may_name_their_arguments() -> None:
    rule = wrap(
        lambda grad: 3 * grad, "vjps::y_only(grad: f64[n]) -> (grad_y: f64[n])", abi="python:numpy"
    )
    vjp = gradients.make_vjp(make(rule))
    dx, dy = vjp([ONE, ONE], [1.0], [None], [ONE])
    assert dx is None
    assert dy.tolist() == [3] * 4


def test_the_rule_is_made_once() -> None:
    kernel = make(lambda grad: (grad, grad))
    assert gradients.make_vjp(kernel) is gradients.make_vjp(kernel)
    assert gradients.make_vjp(make(None)) is None
    assert gradients.make_jvp(kernel) is None


# ---- what a rule returns -----------------------------------------------------------------------

WRONG = {
    "shape": (
        lambda grad: (grad[:2], grad),
        ArgumentError,
        "vjps::axpy: gradient of 'x': expected f64[4], got f64[2] (numpy.ndarray, cpu)",
    ),
    "dtype": (
        lambda grad: (grad, grad.astype("float32")),
        UnsupportedTypeError,
        "vjps::axpy: gradient of 'y': expected f64[4], got f32[4] (numpy.ndarray, cpu)",
    ),
    "count": (
        lambda grad: (grad, grad, grad),
        UnsupportedTypeError,
        "vjps::axpy: its vjp must return 2 gradients: x, y; it returned 3 of them",
    ),
    "bare": (
        lambda grad: grad,
        UnsupportedTypeError,
        "vjps::axpy: its vjp must return 2 gradients: x, y; it returned 1 of them",
    ),
    "name": (
        lambda grad: {"z": grad},
        UnsupportedTypeError,
        "vjps::axpy: its vjp must return only x, y; it returned a gradient of 'z'",
    ),
    "kind": (
        lambda grad: (1.0, grad),
        UnsupportedTypeError,
        "vjps::axpy: its vjp must return a gradient; it returned for 'x': float is not a tensor",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_the_result_of_a_rule_is_checked(case: str) -> None:
    rule, kind, text = WRONG[case]
    vjp = gradients.make_vjp(make(rule))
    with pytest.raises(kind) as caught:
        vjp([ONE, ONE], [1.0], [None], [ONE])
    assert str(caught.value) == text


def test_without_its_primals_the_caller_says_what_is_expected() -> None:
    from dlbridge.kernels.schema import described

    vjp = gradients.make_vjp(make(lambda grad: (grad, grad[:2])))
    expected = [described(ONE), described(ONE)]
    assert vjp([None, None], [1.0], [None], [ONE])[1].shape == (2,)
    with pytest.raises(ArgumentError, match="gradient of 'y'"):
        vjp([None, None], [1.0], [None], [ONE], expected)


def test_an_argument_that_happens_to_be_integer_has_no_gradient() -> None:
    schema = "vjps::number(x: number[n], y: f64[n]) -> f64[n]"
    vjp = gradients.make_vjp(make(lambda grad: (grad, grad), schema, lambda x, y: x * y))
    found = vjp([np.ones(4, "int64"), ONE], [], [None], [ONE])
    assert found[0] is None
    assert found[1] is ONE


# ---- refused when it is wrapped ----------------------------------------------------------------


def test_an_unknown_name_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        make(lambda x, cotangent: None)
    assert str(caught.value) == (
        "wrap: vjps::axpy: its vjp asks for 'cotangent'; what it can have is "
        "out, grad, grad_out, alpha, x, y"
    )
    with pytest.raises(UnsupportedTypeError, match="asks for '\\*everything'"):
        make(lambda *everything: None)
    with pytest.raises(UnsupportedTypeError, match="asks for 'grad_c'"):
        make(lambda grad_c: None, SPLIT, split)


def test_kernels_that_cannot_be_differentiated_are_refused() -> None:
    def rule(grad):
        return grad

    with pytest.raises(ArgumentError, match="vjp= of a kernel that writes into x"):
        make(rule, "vjps::inplace(x!: f64[n]) -> f64[n]", lambda x: x)
    with pytest.raises(ArgumentError, match="nothing to differentiate: no tensor argument"):
        make(rule, "vjps::count(x: i64[n]) -> f64[n]", lambda x: x)
    with pytest.raises(ArgumentError, match="nothing to differentiate: no result"):
        make(rule, "vjps::argmax(x: f64[n]) -> i64[]", lambda x: x)
    with pytest.raises(ArgumentError, match="needs a schema"):
        wrap(axpy, abi="python:numpy", vjp=rule)


def test_a_rule_must_be_callable_and_readable() -> None:
    with pytest.raises(UnsupportedTypeError, match="got 7"):
        make(7)
    with pytest.raises(UnsupportedTypeError, match="no parameters that can be read"):
        make(type("Odd", (), {"__call__": print, "__signature__": 3})())
    with pytest.raises(ArgumentError, match="got 'tensorflow'"):
        make("tensorflow")


def test_a_kernel_as_a_rule_must_fit() -> None:
    scalar = wrap(
        lambda g, *, x: g, "vjps::s(g: f64[n], *, x: float) -> f64[n]", abi="python:numpy"
    )
    with pytest.raises(UnsupportedTypeError, match="asks for 'g'"):
        make(scalar)
    kind = wrap(
        lambda grad, *, x: (grad, grad),
        "vjps::kind(grad: f64[n], *, x: float) -> (a: f64[n], b: f64[n])",
        abi="python:numpy",
    )
    with pytest.raises(UnsupportedTypeError, match="takes 'x' as float, but here it is tensor"):
        make(kind)
    writes = wrap(lambda grad: None, "vjps::writes(grad!: f64[n])", abi="python:numpy")
    with pytest.raises(UnsupportedTypeError, match="must have a schema with results"):
        make(writes)


# ---- jvp ---------------------------------------------------------------------------------------


def test_a_jvp_names_tangents() -> None:
    kernel = make(None, jvp=lambda tangent_x, alpha, tangent_y: alpha * tangent_x + tangent_y)
    jvp = gradients.make_jvp(kernel)
    assert jvp([ONE, ONE], [3.0], [ONE, TWO])[0].tolist() == [5] * 4
    with pytest.raises(UnsupportedTypeError, match="its jvp asks for 'grad'"):
        make(None, jvp=lambda grad: grad)
    wrong = gradients.make_jvp(make(None, jvp=lambda tangent_x: tangent_x[:1]))
    with pytest.raises(
        ArgumentError, match="tangent of 'out': expected f64\\[4\\], got f64\\[1\\]"
    ):
        wrong([ONE, ONE], [3.0], [ONE, TWO])


# ---- derived -----------------------------------------------------------------------------------

CUBE = "vjps::cube_{}(x: f64[n], k: i64[n], y: f64[n], *, alpha: float) -> (a: f64[n], b: i64[n])"


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_the_frameworks_differentiate_their_own_functions(name: str, framework, wide) -> None:
    """Differentiated once, twice and forwards, from another framework."""
    framework(name)

    def cube(x, k, y, *, alpha):
        return alpha * x**3 * y, k

    kernel = wrap(cube, CUBE.format(name), abi=f"python:{name}", vjp=name, jvp=name)
    vjp = gradients.make_vjp(kernel)
    x, y, k = np.arange(1.0, 5), TWO, np.arange(4)
    dx, dk, dy = vjp([x, k, y], [5.0], [None, None], [ONE, None])
    np.testing.assert_allclose(dx, 5 * 3 * x**2 * y)
    np.testing.assert_allclose(dy, 5 * x**3)
    assert dk is None
    second = gradients.make_vjp(vjp.rule.function)
    ddx, _, ddy, dg = second([x, k, y, ONE], [5.0], [None, None], [ONE, np.zeros(4)])
    np.testing.assert_allclose(ddx, 5 * 6 * x * y)
    np.testing.assert_allclose(ddy, 5 * 3 * x**2)
    np.testing.assert_allclose(dg, 5 * 3 * x**2 * y)
    tangent = gradients.make_jvp(kernel)([x, k, y], [5.0], [ONE, None, ONE])
    np.testing.assert_allclose(tangent[0], 15 * x**2 * y + 5 * x**3)


def test_kernels_without_a_derivative_are_refused(framework) -> None:
    framework("torch")

    def fill(x, out):
        out.copy_(x)

    cases = [
        (fill, "vjps::fill(x: f32[n]) -> f32[n]", "writes into `out`"),
        (lambda x: x, "vjps::optional(x: f32[n]?) -> f32[2]", "the tensor x is optional"),
    ]
    for function, schema, why in cases:
        with pytest.raises(ArgumentError, match=why):
            wrap(function, schema, abi="python:torch", vjp="torch")
    with pytest.raises(ArgumentError, match="differentiates a Python function of torch"):
        make("torch")


# ---- through the frameworks --------------------------------------------------------------------


def test_an_argument_called_as_a_cotangent_is_refused() -> None:
    with pytest.raises(ArgumentError, match="an argument is called 'grad', as a gradient is"):
        make(lambda grad: grad, "vjps::clash(grad: f64[n]) -> f64[n]", lambda grad: grad)


TANH = "vjps::tanh_{}(x: float[*rows, n], w: float[n], *, alpha: float = 0.5) -> float[*rows, n]"


def kernels(framework):
    """Return the same function, differentiated by a rule, by torch and by JAX."""
    torch, jax = framework("torch"), framework("jax")

    def rule(out, x, w, grad, alpha):
        inner = alpha * grad * (1 - out * out)
        return inner * w, (inner * x).sum(0)

    made = {
        "numpy": (lambda x, w, *, alpha: np.tanh(alpha * x * w), rule),
        "torch": (lambda x, w, *, alpha: torch.tanh(alpha * x * w), "torch"),
        "jax": (lambda x, w, *, alpha: jax.numpy.tanh(alpha * x * w), "jax"),
    }
    return {
        name: wrap(function, TANH.format(name), abi=f"python:{name}", vjp=vjp)
        for name, (function, vjp) in made.items()
    }


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_gradcheck_of_torch_agrees(name: str, framework, wide) -> None:
    torch, kernel = framework("torch"), kernels(framework)[name]
    x = torch.linspace(-1, 1, 6, dtype=torch.float64).reshape(2, 3).requires_grad_()
    w = torch.linspace(1, 2, 3, dtype=torch.float64, requires_grad=True)
    assert torch.autograd.gradcheck(lambda x, w: kernel(x, w, alpha=0.7), (x, w))
    if name != "numpy":  # whose rule is made of torch's own operations then
        assert torch.autograd.gradgradcheck(lambda x, w: kernel(x, w, alpha=0.7), (x, w))


@pytest.mark.fast(lambda name: name == "numpy")
@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_check_grads_of_jax_agrees(name: str, framework, wide) -> None:
    jax, kernel = framework("jax"), kernels(framework)[name]
    check_grads = framework("jax.test_util").check_grads
    x = jax.numpy.linspace(-1, 1, 6, dtype="float64").reshape(2, 3)
    w = jax.numpy.linspace(1, 2, 3, dtype="float64")
    order = 2 if name != "numpy" else 1
    as_jax = jax.numpy.asarray  # check_grads itself calls with NumPy's arrays
    for function in (lambda x, w: kernel(as_jax(x), as_jax(w)), jax.jit(kernel.jax)):
        check_grads(function, (x, w), order=order, modes=["rev", "fwd"])


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_tensorflow_agrees(name: str, framework, wide) -> None:
    tensorflow, kernel = framework("tensorflow"), kernels(framework)[name]
    x = tensorflow.reshape(tensorflow.linspace(-1.0, 1.0, 6), (2, 3))
    w = tensorflow.linspace(1.0, 2.0, 3)

    def gradient(function):
        with tensorflow.GradientTape() as tape:
            tape.watch([x, w])
            total = tensorflow.reduce_sum(function(x, w) ** 2)
        return tape.gradient(total, [x, w])

    def by_hand(x, w):
        return tensorflow.tanh(0.5 * x * w)

    for ours, theirs in zip(gradient(kernel), gradient(by_hand), strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-6)

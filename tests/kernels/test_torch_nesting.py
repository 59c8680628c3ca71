"""Derivatives of derivatives in torch: what a kernel gives is what its formula gives, or an error.

Every transform of torch.func, backward and dual levels around every other one.
"""

from __future__ import annotations

import itertools
import random

import pytest
from kernels.nested_samples import (
    SCHEMA,
    SOURCE,
    VJP_SCHEMA,
    formula,
    jvp,
    second_jvp,
    second_vjp,
    vjp,
)

import dlbridge
from dlbridge.errors import DLBridgeError


def compiled(function, name, schema, **rules):
    return dlbridge.compile_c(SOURCE, function, f"nesting::{name}{schema}", **rules)


def with_rules():
    return compiled("square", "rules", SCHEMA, vjp=vjp, jvp=jvp)


def with_broadcast():
    return compiled("square", "broadcast", SCHEMA, vjp=vjp, jvp=jvp, batch="broadcast")


def with_vjp():
    return compiled("square", "only_vjp", SCHEMA, vjp=vjp)


def with_vjp_of_gradient():
    twice = compiled("square_vjp", "second_vjp", VJP_SCHEMA, vjp=second_vjp)
    return compiled("square", "two_vjps", SCHEMA, vjp=twice)


def with_kernel_alone():
    once = compiled("square_vjp", "alone_vjp", VJP_SCHEMA)
    return compiled("square", "alone", SCHEMA, vjp=once)


def with_jvp():
    return compiled("square", "only_jvp", SCHEMA, jvp=jvp)


def with_kernel():
    once = compiled("square_vjp", "once_vjp", VJP_SCHEMA)
    return compiled("square", "once", SCHEMA, vjp=once, jvp=jvp)


def with_kernel_of_gradient():
    rules = {"vjp": second_vjp, "jvp": second_jvp}
    twice = compiled("square_vjp", "twice_vjp", VJP_SCHEMA, **rules)
    return compiled("square", "twice", SCHEMA, vjp=twice, jvp=jvp)


def with_numpy():
    def function(x, y, alpha):
        return alpha * x * x * y

    schema = f"nesting::numpy{SCHEMA}"
    return dlbridge.wrap(function, schema, abi="python:numpy", vjp=vjp, jvp=jvp)


def with_jax():
    def function(x, y, alpha):
        return alpha * x * x * y

    schema = f"nesting::jax{SCHEMA}".replace("f64", "f32")
    return dlbridge.wrap(function, schema, abi="python:jax", vjp="jax", jvp="jax")


COMPLETE = (
    with_rules, with_broadcast, with_numpy, with_kernel_of_gradient, with_vjp, with_vjp_of_gradient
)  # fmt: skip
KERNELS = (*COMPLETE, with_jvp, with_kernel, with_kernel_alone, with_jax)
_MADE = {}


@pytest.fixture
def torch(framework):
    return framework("torch")


# ---- transforms ----------------------------------------------------------------------------------


def of_sum(function):
    return lambda x: function(x).sum()


def grad(torch, function):
    return torch.func.grad(of_sum(function))


def jacrev(torch, function):
    return torch.func.jacrev(function)


def jacfwd(torch, function):
    return torch.func.jacfwd(function)


def hessian(torch, function):
    return torch.func.hessian(of_sum(function))


def vmap(torch, function):
    return lambda x: torch.vmap(function)(torch.stack([x, x.cos()]))


def vmap_grad(torch, function):
    return vmap(torch, grad(torch, function))


def func_vjp(torch, function):
    def run(x):
        value, pull_back = torch.func.vjp(function, x)
        return pull_back(value.sin())[0]

    return run


def func_jvp(torch, function):
    return lambda x: torch.func.jvp(function, (x,), (x.sin(),))[1]


def value_and_grad(torch, function):
    def run(x):
        gradient, value = torch.func.grad_and_value(of_sum(function))(x)
        return gradient * value

    return run


def backward(torch, function):
    def run(x):
        x = x.detach().clone().requires_grad_()
        function(x).sum().backward()
        return x.grad

    return run


def double_backward(torch, function):
    def run(x):
        x = x.detach().clone().requires_grad_()
        (first,) = torch.autograd.grad(function(x).sum(), x, create_graph=True)
        (second,) = torch.autograd.grad((first * x).sum(), x)
        return second

    return run


def dual(torch, function):
    forward_ad = torch.autograd.forward_ad

    def run(x):
        with forward_ad.dual_level():
            value, tangent = forward_ad.unpack_dual(function(forward_ad.make_dual(x, x.cos())))
            return torch.zeros_like(value) if tangent is None else tangent

    return run


def dual_backward(torch, function):
    return backward(torch, dual(torch, function))


def without_grad(torch, function):
    def run(x):
        with torch.no_grad():
            return function(x)

    return run


def plain(torch, function):
    return function


INNER = (
    grad, jacrev, jacfwd, hessian, vmap, vmap_grad, func_vjp, func_jvp, value_and_grad, without_grad
)  # fmt: skip
OUTER = (*INNER, backward, double_backward, dual, dual_backward, plain)


def name_of(made):
    return made.__name__ if callable(made) else None


# ---- cases ---------------------------------------------------------------------------------------


def compare(torch, make, nesting):
    """Compare a kernel under nested transforms, the outermost first, with its formula."""
    if make not in _MADE:
        _MADE[make] = make()
    dtype = torch.float32 if make is with_jax else torch.double
    x = torch.tensor([0.5, 0.8], dtype=dtype)
    expected = attempt(torch, formula, nesting, x)
    got = attempt(torch, _MADE[make], nesting, x)
    if isinstance(expected, Exception):
        assert isinstance(got, Exception), f"torch refuses this: {expected}"
    elif isinstance(got, Exception):
        assert isinstance(got, DLBridgeError), got
        assert make not in COMPLETE, got
    else:
        bound = 1e-9 if dtype is torch.double else 1e-3
        torch.testing.assert_close(got, expected, rtol=bound, atol=bound)


def attempt(torch, kernel, nesting, x):
    constant = x.cos()

    def function(x):
        mixed = kernel(x, x.sin(), alpha=0.5)
        return mixed * mixed + kernel(constant.expand_as(x), x, alpha=2.0) * kernel(
            x, constant.expand_as(x), alpha=1.0
        )

    for transform in reversed(nesting):
        function = transform(torch, function)
    try:
        return function(x)
    except (RuntimeError, DLBridgeError) as error:
        return error


@pytest.mark.fast(lambda make: make in (with_rules, with_kernel_of_gradient, with_kernel))
@pytest.mark.parametrize("make", KERNELS, ids=name_of)
@pytest.mark.parametrize(("outer", "inner"), [*itertools.product(OUTER, INNER)], ids=name_of)
def test_two_derivatives_are_the_formulas_or_refused(torch, outer, inner, make) -> None:
    compare(torch, make, (outer, inner))


@pytest.mark.full
@pytest.mark.parametrize("seed", range(20))
def test_three_derivatives_are_the_formulas_or_refused(torch, seed) -> None:
    chosen = random.Random(seed)
    for _ in range(40):
        make = chosen.choice(KERNELS)
        nesting = chosen.choice(OUTER), chosen.choice(INNER), chosen.choice(INNER)
        compare(torch, make, nesting)


# ---- torch.compile -------------------------------------------------------------------------------

COMPILED = (
    (hessian,), (grad, grad), (jacrev, grad), (vmap_grad, grad), (jacfwd,), (func_jvp, jacrev),
    (grad, func_jvp), (grad, grad, grad), (dual,), (dual, grad),
)  # fmt: skip


def compiled_in(nesting):
    """Return transforms that compile what `nesting` makes of a function."""

    def transform(torch, function):
        for each in reversed(nesting):
            function = each(torch, function)
        torch._dynamo.reset()
        return torch.compile(function, backend="aot_eager", fullgraph=True)

    return transform


@pytest.mark.timeout(180)
@pytest.mark.full
@pytest.mark.parametrize("make", [with_rules, with_vjp], ids=name_of)
@pytest.mark.parametrize("nesting", COMPILED, ids=lambda made: "-".join(map(name_of, made)))
def test_compiled_derivatives_are_the_formulas(torch, nesting, make) -> None:
    compare(torch, make, (compiled_in(nesting),))


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_a_compiled_dual_level_keeps_the_tangent(torch, backend) -> None:
    """Its graph enters the level without the number by which torch's Python knows it."""
    cube = dlbridge.wrap(
        lambda x: x**3,
        "nesting::cube(x: f64[n]) -> f64[n]",
        abi="python:numpy",
        jvp=lambda x, tangent_x: 3 * x * x * tangent_x,
    )
    x = torch.tensor([1.0, 2, 3], dtype=torch.double)
    for function in (cube, cube.torch):
        torch._dynamo.reset()
        compiled = torch.compile(dual(torch, function), backend=backend, fullgraph=True)
        assert torch.allclose(compiled(x), 3 * x**2 * x.cos())


@pytest.mark.full
@pytest.mark.parametrize("inner", [grad, func_vjp])
def test_backward_passes_over_compiled_derivatives(torch, inner) -> None:
    compare(torch, with_rules, (backward, compiled_in((inner,))))


def test_a_gradient_without_a_gradient_is_refused_by_name_when_compiled(torch) -> None:
    kernel = with_kernel()
    x = torch.tensor([0.5, 0.8], dtype=torch.double)
    function = compiled_in((grad, grad))(torch, lambda x: kernel(x, x, alpha=1.0))
    with pytest.raises(Exception, match="nesting::once_vjp: it has no gradient"):
        function(x)


# ---- modes of the caller -------------------------------------------------------------------------


def test_levels_around_follow_the_modes_of_the_caller(torch) -> None:
    kernel = with_rules()
    x = torch.tensor([0.5, 0.8], dtype=torch.double, requires_grad=True)

    def function(x):
        return kernel(x, x, alpha=1.0).sum()

    with torch.no_grad():
        first = torch.func.grad(function)(x)
    assert not first.requires_grad
    torch.testing.assert_close(first, 3 * x.detach() ** 2)
    assert torch.func.grad(function)(x).requires_grad
    assert torch.is_grad_enabled()


def test_a_pulled_back_function_outlives_its_transform(torch) -> None:
    kernel = with_rules()
    x = torch.tensor([0.5, 0.8], dtype=torch.double, requires_grad=True)
    value, pull_back = torch.func.vjp(lambda x: kernel(x, x, alpha=1.0), x)
    for _ in range(2):
        (first,) = pull_back(torch.ones_like(value))
        (second,) = torch.autograd.grad(first.sum(), x, retain_graph=True)
        torch.testing.assert_close(second, 6 * x.detach())

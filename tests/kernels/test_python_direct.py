"""Python kernels called with tensors of their own framework."""

from __future__ import annotations

import numpy as np
import pytest

from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.kernels.wrap import wrap

SCALE = "own::scale(x: float[n], *, alpha: float = 2.0) -> float[n]"


@pytest.fixture
def torch(framework):
    return framework("torch")


@pytest.fixture
def jax(framework):
    return framework("jax")


def scale(x, *, alpha):
    return alpha * x


def test_torch_gets_the_callers_own_tensors(torch) -> None:
    seen = []
    kernel = wrap(lambda x: (seen.append(x), x + 1)[1], "own::id(x: f32[n]) -> f32[n]",
                  abi="python:torch")  # fmt: skip
    x = torch.ones(3, requires_grad=True)
    kernel(x)
    kernel.torch(x)
    assert seen[0] is x
    assert seen[1] is x


def test_torch_differentiates_it_by_itself(torch) -> None:
    for vjp in (None, "torch"):
        kernel = wrap(scale, SCALE, abi="python:torch", vjp=vjp)
        x = torch.arange(3.0, dtype=torch.float64, requires_grad=True)
        assert torch.autograd.gradcheck(lambda x, kernel=kernel: kernel(x, alpha=3.0), (x,))
        assert torch.autograd.gradgradcheck(lambda x, kernel=kernel: kernel(x) ** 2, (x,))
        rows = torch.ones(2, 3)
        assert torch.vmap(kernel.torch)(rows).tolist() == [[2] * 3] * 2
        assert torch.func.jacrev(kernel.torch)(torch.ones(2)).tolist() == [[2, 0], [0, 2]]


def test_a_vjp_of_its_own_counts(torch) -> None:
    kernel = wrap(scale, SCALE, abi="python:torch", vjp=lambda grad: 100 * grad)
    x = torch.ones(3, requires_grad=True)
    kernel(x).sum().backward()
    assert x.grad.tolist() == [100] * 3


def test_results_are_compared_with_the_schema(torch) -> None:
    kernel = wrap(lambda x: x.double(), "own::wide(x: f32[n]) -> f32[n]", abi="python:torch")
    with pytest.raises(UnsupportedTypeError) as caught:
        kernel(torch.ones(3))
    assert str(caught.value) == (
        "own::wide: result 'out': expected f32[n=3], the function returned f64[3] "
        "(torch.Tensor, cpu); cast it with out.to(torch.float32)"
    )
    kernel = wrap(lambda x: (x, x), "own::two(x: f32[n]) -> f32[n]", abi="python:torch")
    with pytest.raises(UnsupportedTypeError, match="1 result, the function returned 2"):
        kernel(torch.ones(3))
    with pytest.raises(ArgumentError, match="argument 'x': expected f32"):
        kernel(torch.ones(3, 3))


def test_out_is_written(torch) -> None:
    x, out = torch.ones(3), torch.zeros(3)
    kernel = wrap(scale, SCALE, abi="python:torch")
    assert kernel(x, out=out) is out
    assert out.tolist() == [2] * 3

    def fill(x, *, alpha, out):
        torch.mul(x, alpha, out=out)

    kernel = wrap(fill, SCALE.replace("scale", "fill"), abi="python:torch")
    assert kernel(x, alpha=5, out=out) is out
    assert out.tolist() == [5] * 3
    assert kernel(x, alpha=7).tolist() == [7] * 3
    with pytest.raises(ArgumentError, match="argument 'out': expected float"):
        kernel(x, out=torch.zeros(4))


def test_arguments_are_written_in_place(torch) -> None:
    kernel = wrap(lambda x: x.add_(1), "own::add1(x!: f32[n])", abi="python:torch")
    x = torch.zeros(3)
    assert kernel(x) is None
    assert x.tolist() == [1] * 3
    assert x._version == 1


@pytest.mark.parametrize("backend", ["aot_eager", pytest.param("inductor", marks=pytest.mark.full)])
def test_torch_compile_traces_the_function_itself(torch, backend) -> None:
    kernel = wrap(scale, SCALE, abi="python:torch")
    x = torch.arange(3.0, requires_grad=True)
    for function in (kernel, kernel.torch):
        compiled = torch.compile(
            lambda x, function=function: function(x, alpha=3.0).sum(),
            fullgraph=True,
            backend=backend,
        )
        x.grad = None
        compiled(x).backward()
        assert x.grad.tolist() == [3] * 3
    out = torch.zeros(3)
    compiled = torch.compile(lambda x, out: kernel(x, out=out) + 1, fullgraph=True, backend=backend)
    compiled(x.detach(), out)
    assert out.tolist() == [0, 2, 4]


def test_jax_traces_differentiates_and_batches_it(jax) -> None:
    kernel = wrap(scale, SCALE, abi="python:jax", vjp="jax")
    x = jax.numpy.arange(3.0)
    assert jax.jit(kernel.jax)(x).tolist() == [0, 2, 4]
    assert jax.grad(lambda x: kernel(x, alpha=3.0).sum())(x).tolist() == [3] * 3
    assert jax.vmap(kernel.jax)(jax.numpy.ones((2, 3))).tolist() == [[2] * 3] * 2
    assert "dlbridge" not in str(jax.make_jaxpr(kernel.jax)(x))
    with pytest.raises(ExchangeError, match="immutable"):
        kernel(x, out=x)


def test_a_rule_of_its_own_counts_in_jax_too(jax) -> None:
    vjp = wrap(scale, SCALE, abi="python:jax", vjp=lambda x, grad: 100 * grad * x)
    x = jax.numpy.arange(3.0)
    assert jax.grad(lambda x: vjp(x).sum())(x).tolist() == [0, 100, 200]
    twice = jax.grad(lambda x: jax.grad(lambda x: vjp(x).sum())(x).sum())
    assert twice(x).tolist() == [100] * 3
    jvp = wrap(scale, SCALE, abi="python:jax", jvp=lambda tangent_x: 7 * tangent_x)
    assert jax.jvp(jvp.jax, (x,), (x,))[1].tolist() == [0, 7, 14]
    assert jax.grad(lambda x: jvp(x).sum())(x).tolist() == [7] * 3


def test_the_other_framework_needs_a_rule(torch, jax) -> None:
    kernel = wrap(scale, SCALE, abi="python:torch")
    with pytest.raises(KernelError, match="own::scale"):
        jax.grad(lambda x: kernel(x).sum())(jax.numpy.ones(3))
    kernel = wrap(scale, SCALE, abi="python:jax")
    with pytest.raises(KernelError, match="own::scale"):
        kernel(torch.ones(3, requires_grad=True)).sum().backward()


# ---- the rules of all kernels hold ---------------------------------------------------------------


def arrays(framework, name):
    """Return a function that makes an array of one framework of numbers, and one that reads it."""
    if name == "numpy":
        return lambda values: np.array(values, "f4"), lambda x: x.tolist()
    if name == "jax":
        jnp = framework("jax").numpy
        return lambda values: jnp.array(values, "float32"), lambda x: x.tolist()
    torch = framework("torch")
    return lambda values: torch.tensor(values), lambda x: x.tolist()


@pytest.mark.parametrize("name", ["numpy", "jax", "torch"])
def test_a_write_that_is_not_declared_is_refused_in_every_framework(framework, name) -> None:
    torch = framework("torch")
    make, _ = arrays(framework, name)
    writes = {
        "x": lambda x, y: x.mul_(9) + y,
        "y": lambda x, y: x + y[1:].add_(1).sum(),
        "out": lambda x, y: torch.add(x, y, out=y),
    }
    for which, function in writes.items():
        kernel = wrap(function, "direct::w(x: f32[n], y: f32[n]) -> f32[n]", abi="python:torch")
        argument = "x" if which == "x" else "y"
        with pytest.raises(KernelError, match=f"^direct::w wrote into '{argument}', which is not"):
            kernel(make([1.0, 2.0]), make([3.0, 4.0]))


def test_declared_writes_and_views_of_what_they_write_are_taken(framework) -> None:
    torch = framework("torch")
    kernel = wrap(
        lambda x, y: y.add_(1) + 0, "direct::w(x: f32[n], y!: f32[n]) -> f32[n]", abi="python:torch"
    )
    y = torch.ones(2)
    assert kernel(torch.ones(2), y).tolist() == [2, 2]
    assert kernel(y, y).tolist() == [3, 3]
    assert y.tolist() == [3, 3]
    with torch.inference_mode():
        assert kernel(torch.ones(2), torch.ones(2)).tolist() == [2, 2]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_results_are_memory_of_their_own_in_every_framework(framework, name) -> None:
    torch = framework("torch")
    make, read = arrays(framework, name)
    kept, several = torch.zeros(2), torch.zeros(2, 2)
    functions = {
        "the argument": lambda x: x,
        "a view of it": lambda x: x.view(-1),
        "a buffer that is used again": lambda x: kept.copy_(x),
        "a view of one": lambda x: several[0].copy_(x),
        "detached": lambda x: x.detach(),
    }
    for what, function in functions.items():
        kernel = wrap(function, "direct::own(x: f32[n]) -> f32[n]", abi="python:torch")
        x = make([1.0, 2.0])
        first = kernel(x)
        second = kernel(make([5.0, 6.0]))
        first += 10
        assert read(x) == [1, 2], what
        assert read(first) == [11, 12], what
        assert read(second) == [5, 6], what


def test_two_results_share_no_memory(framework) -> None:
    torch = framework("torch")
    schema = "direct::two(x: f32[n]) -> (f32[n], f32[n])"
    low, high = wrap(lambda x: (x + 1,) * 2, schema, abi="python:torch")(torch.zeros(2))
    low += 1
    assert (low.tolist(), high.tolist()) == ([2, 2], [1, 1])


def test_results_that_are_new_are_not_copied(framework) -> None:
    torch = framework("torch")
    seen = []

    def function(x):
        made = (x + 1)[1:]
        seen.append(made.data_ptr())
        return made

    kernel = wrap(
        lambda x, y: function(x), "direct::new(x: f32[n+1], y: f32[n]) -> f32[n]",
        abi="python:torch",
    )  # fmt: skip
    assert kernel(torch.zeros(3), torch.zeros(2)).data_ptr() == seen[-1]
    x = torch.zeros(3, requires_grad=True)
    assert kernel(x.exp(), torch.zeros(2)).data_ptr() == seen[-1]


def test_results_may_be_the_arguments_where_that_is_allowed(framework) -> None:
    torch = framework("torch")
    schema, x = "direct::same(x: f32[n]) -> f32[n]", torch.ones(2)
    assert wrap(lambda x: x, schema, abi="python:torch", overlap="allow")(x) is x


@pytest.mark.parametrize("way", ["eager", "grad", "vmap", "compile"])
def test_an_identity_is_differentiated_batched_and_compiled(framework, way) -> None:
    torch = framework("torch")
    kernel = wrap(lambda x: x, "direct::same(x: f32[...]) -> f32[...]", abi="python:torch")
    x = torch.ones(2)
    if way == "eager":
        leaf = torch.ones(2, requires_grad=True)
        kernel(leaf).sum().backward()
        assert leaf.grad.tolist() == [1, 1]
    elif way == "grad":
        assert torch.func.grad(lambda x: kernel(x).sum())(x).tolist() == [1, 1]
    elif way == "vmap":
        assert torch.vmap(kernel)(x).tolist() == [1, 1]
    else:
        torch.compiler.reset()
        y = torch.compile(lambda x: kernel(x), fullgraph=True, backend="aot_eager")(x)
        y += 1
        assert x.tolist() == [1, 1]

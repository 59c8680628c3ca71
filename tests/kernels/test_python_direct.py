"""Python kernels called with tensors of their own framework."""

from __future__ import annotations

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
    kernel = wrap(lambda x: (seen.append(x), x)[1], "own::id(x: f32[n]) -> f32[n]",
                  abi="python:torch")  # fmt: skip
    x = torch.ones(3, requires_grad=True)
    assert kernel(x) is x
    assert kernel.torch(x) is x
    assert seen[0] is x


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
    assert "own::wide: argument 'out': expected f32[n=3], got f64[3] (torch.Tensor" in str(
        caught.value
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

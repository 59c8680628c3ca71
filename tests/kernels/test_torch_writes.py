"""Operators that write: versions, gradients, inference mode; and that every tensor dies."""

from __future__ import annotations

import gc
import weakref

import pytest
from kernels.torch_samples import ops as ops

from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError


@pytest.fixture
def torch(framework):
    return framework("torch")


@pytest.fixture
def xy(torch):
    return torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)


# ---- writes --------------------------------------------------------------------------------------


def test_declared_writes_bump_the_version(torch, ops) -> None:
    x = torch.zeros(3)
    for call in (ops.torch_ops.add_to, ops.torch_ops.add_to.default, ops.add_to, ops.add_to.torch):
        before = x._version
        assert call(x, by=2) is None
        assert x._version == before + 1
    assert x.tolist() == [8.0, 8.0, 8.0]


# ---- within torch.func ---------------------------------------------------------------------------


def transforms(torch):
    """Return functions that differentiate a loss at `w`, in all ways that torch.func has."""
    grad, w = torch.func.grad, torch.ones(3, dtype=torch.double)
    return {
        "grad": lambda loss: grad(loss)(w),
        "grad of grad": lambda loss: grad(lambda v: grad(lambda u: loss(u) * v.sum())(v).sum())(w),
        "vjp": lambda loss: torch.func.vjp(loss, w)[1](torch.tensor(1.0, dtype=torch.double)),
        "jvp": lambda loss: torch.func.jvp(loss, (w,), (w,)),
        "grad of jvp": lambda loss: grad(lambda v: torch.func.jvp(loss, (v,), (w,))[1])(w),
        "compiled grad": lambda loss: torch.compile(
            lambda v: grad(loss)(v), fullgraph=True, backend="aot_eager"
        )(w),
    }


WAYS = ["grad", "grad of grad", "vjp", "jvp", "grad of jvp", "compiled grad"]


@pytest.mark.parametrize("way", WAYS)
def test_kernels_write_within_torch_func_what_is_not_differentiated(torch, ops, way) -> None:
    """Statistics, counters and caches: what is computed of the loss is as without them."""
    torch.compiler.reset()
    differentiate = transforms(torch)[way]

    def loss(w):
        ops.add_to(counter, by=2)
        ops.mul(w.detach(), w.detach(), out=squares)
        scaled = ops.mul(torch.full_like(w, 3).detach(), w.detach(), out=torch.empty_like(w))
        return (w * w * scaled.detach()).sum()

    counter, squares = torch.zeros(3), torch.zeros(3, dtype=torch.double)
    versions = counter._version, squares._version
    found = differentiate(loss)
    expected = differentiate(lambda w: (w * w * (3 * w).detach()).sum())
    torch.testing.assert_close(found, expected)
    assert counter.tolist() == [2.0] * 3
    assert squares.tolist() == [1.0] * 3
    assert counter._version > versions[0]
    assert squares._version > versions[1]


@pytest.mark.parametrize("way", WAYS[:-1])
@pytest.mark.parametrize("which", ["read", "written", "out"])
def test_a_write_that_would_lose_gradients_of_torch_func_is_refused(torch, ops, way, which) -> None:
    """Whichever level differentiates the tensor."""
    buffer = torch.zeros(3, dtype=torch.double)
    calls = {
        "read": lambda w: ops.mul(w, buffer, out=buffer),
        "written": lambda w: ops.add_to(w.float()[1:]),
        "out": lambda w: ops.mul(buffer, buffer, out=w),
    }
    with pytest.raises(ExchangeError, match=r"pass x.detach\(\), or use no_grad") as caught:
        transforms(torch)[way](lambda w: (calls[which](w), (w * w).sum())[1])
    assert caught.value.reason == "requires_grad"
    assert buffer.tolist() == [0.0] * 3


def test_autograd_notices_what_a_kernel_overwrote(torch, ops) -> None:
    x = torch.ones(3, requires_grad=True)
    y = x * 1
    squared = y * y  # keeps y
    ops.torch_ops.add_to(y.detach(), by=1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        squared.sum().backward()


def test_writes_that_autograd_must_know_of_are_refused(torch, ops, xy) -> None:
    """Into a leaf, from an argument with a gradient, into a buffer with one; before any effect."""
    x, y = xy
    odd = x.clone().requires_grad_()
    out = torch.zeros_like(x)
    calls = [(odd, y, out), (x, y, out.clone().requires_grad_())]
    for first, second, buffer in calls:
        with pytest.raises(ExchangeError) as caught:
            ops.mul(first, second, out=buffer)
        assert caught.value.reason == "requires_grad"
        with pytest.raises((RuntimeError, ExchangeError), match="requires_grad"):
            ops.torch_ops.mul.out(first, second, buffer)
        assert not buffer.any()
    leaf = torch.zeros(3, requires_grad=True)
    with pytest.raises(ExchangeError, match="no_grad"):
        ops.add_to(leaf)
    with torch.no_grad():
        ops.add_to(leaf)
    assert leaf.tolist() == [1.0, 1.0, 1.0]


def test_inference_tensors_are_written_in_inference_mode_only(torch, ops) -> None:
    with torch.inference_mode():
        x = torch.zeros(3)
        ops.torch_ops.add_to(x)
        ops.add_to(x)
    assert x.tolist() == [2.0, 2.0, 2.0]
    with pytest.raises((RuntimeError, ExchangeError)):
        ops.torch_ops.add_to(x)
    assert x.tolist() == [2.0, 2.0, 2.0]


# ---- leaks ---------------------------------------------------------------------------------------


def test_every_call_gives_its_tensors_back(torch, ops, xy) -> None:
    """Tensors die with their last name, after calls that ended well, and that did not."""
    references = call_in_every_way(torch, ops)
    gc.collect()
    assert all(reference() is None for reference in references)


def call_in_every_way(torch, ops):
    """Return weak references to all tensors and storages that calls had to do with."""
    x, y = (torch.ones(3, 4, dtype=torch.double) for _ in range(2))
    z, out = torch.ones(3), torch.zeros_like(x)
    result = ops.torch_ops.mul(x, y)
    ops.torch_ops.mul.out(x, y, out)
    ops.torch_ops.affine(z, None, m=1, sign="n")
    ops.torch_ops.affine(z, z)
    for operator, *arguments in (
        (ops.torch_ops.mul, x, y.float()),
        (ops.torch_ops.mul.out, x, y, x),
        (ops.torch_ops.mul.out, x, y, out[:1]),
        (ops.torch_ops.fail, z),
        (ops.mul, x, y[:2]),
        (ops.fail, z.clone().requires_grad_()),
    ):
        with pytest.raises((RuntimeError, ArgumentError, ExchangeError, UnsupportedTypeError)):
            operator(*arguments)
    tensors = (x, y, z, out, result)
    return [weakref.ref(part) for each in tensors for part in (each, each.untyped_storage())]

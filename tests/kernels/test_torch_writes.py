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

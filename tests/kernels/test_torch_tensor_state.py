"""State of torch tensors that their memory does not show: lazy bits, gradients, versions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import pytest
from kernels.elementwise import SOURCE

import dlbridge
from dlbridge.errors import UnsupportedTypeError


def test_a_negative_bit_reaches_no_kernel(twice: Any, framework: Callable[[str], Any]) -> None:
    """`np.from_dlpack`, jax, tvm-ffi and torch's exchange table all give 3.0 for this -3.0."""
    torch = framework("torch")
    x = torch.tensor([1 + 3j, 2 - 5j]).conj().imag
    assert x.is_neg()
    assert twice(x).tolist() == [-6.0, 10.0]
    assert twice.torch(x).tolist() == [-6.0, 10.0]


def test_a_lazy_conjugate_reaches_no_kernel(framework: Callable[[str], Any]) -> None:
    """torch's exchange table hands out the memory of conjugate tensors without a word."""
    torch = framework("torch")
    source = SOURCE.replace("float *", "double *").replace("2 * x[i]", "x[i]")
    copy = dlbridge.compile_c(
        source.replace("count *= x->shape[i];", "count *= x->shape[i];\n    count *= 2;"),
        "twice",
        "hazards::copy(x: c128[n]) -> c128[n]",
    )
    x = torch.tensor([1 + 3j, 2 - 5j], dtype=torch.complex128).conj()
    assert copy(x).tolist() == [1 - 3j, 2 + 5j]


def test_a_read_only_wrapper_is_read_and_not_written(
    twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    torch = framework("torch")
    wrapper = getattr(torch.utils.dlpack, "ReadOnlyTensorWrapper", None)
    if wrapper is None:
        pytest.skip(f"torch {torch.__version__} has no ReadOnlyTensorWrapper")
    total = dlbridge.wrap(sum, "hazards::total(xs: f32[n][]) -> f32[n]", abi="python:numpy")
    x = torch.ones(3)
    wrapped = wrapper(x)
    for kernel in (twice, twice.torch):
        y = kernel(wrapped)
        assert type(y) is torch.Tensor
        assert y.tolist() == [2, 2, 2]
    assert twice(wrapper(x.requires_grad_())).requires_grad
    assert total([wrapped, x.detach()]).tolist() == [2, 2, 2]
    for write in (lambda: increment(wrapped), lambda: twice(x.detach(), out=wrapped)):
        with pytest.raises(BufferError, match=r"hazards::.*writable.*read-only.*wraps"):
            write()
    assert x.tolist() == [1, 1, 1]


def test_a_gradient_is_never_dropped(
    twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    """torch's exchange table exports tensors that require gradients; tvm-ffi loses them."""
    torch = framework("torch")
    x = torch.ones(3, requires_grad=True)
    y = twice(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"hazards::twice.*vjp"):
        y.sum().backward()
    with pytest.raises(BufferError, match="hazards::increment"):
        increment(x)
    with pytest.raises(BufferError, match="hazards::twice"):
        twice(torch.ones(3), out=x)
    assert x.tolist() == [1, 1, 1]


def test_the_gradient_of_a_scalar_is_never_dropped(framework: Callable[[str], Any]) -> None:
    """torch's dispatcher reads the value of a tensor without dimensions and forgets the rest."""
    torch = framework("torch")
    kernel = dlbridge.compile_c(
        SOURCE, "twice", "hazards::scaled(x: f32[n], *, alpha: float) -> f32[n]"
    )
    with pytest.raises(UnsupportedTypeError, match=r"'alpha': expected float, got .*torch.Tensor"):
        kernel(torch.ones(2), alpha=torch.tensor(3.0, requires_grad=True))
    assert kernel(torch.ones(2), alpha=3.0).tolist() == [2, 2]


def test_a_gradient_is_never_dropped_without_a_schema(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    f = dlbridge.to_pytorch_func(dlbridge.compile_c(SOURCE, "twice"))
    x, out = torch.ones(3), torch.zeros(3)
    f(x, out)
    assert out.tolist() == [2, 2, 2]
    with pytest.raises(BufferError, match="gradient"):
        f(x.requires_grad_(), out)
    with torch.no_grad():
        f(x, out)


@pytest.mark.preloaded("torch")
@pytest.mark.full
def test_a_fake_tensor_reaches_no_kernel(run_python: Callable[..., Any], framework: Any) -> None:
    """A FakeTensor comes through the exchange table with a NULL pointer: others crash on it."""
    framework("torch")
    code = f"""
        import torch, dlbridge
        from torch._subclasses.fake_tensor import FakeTensorMode
        twice = dlbridge.compile_c({SOURCE!r}, "twice", "hazards::twice(x: f32[...]) -> f32[...]")
        bare = dlbridge.to_pytorch_func(dlbridge.compile_c({SOURCE!r}, "twice"))
        with FakeTensorMode():
            x = torch.ones(5)
            y = twice(x)
            print(type(y).__name__, tuple(y.shape))
            try:
                bare(x, torch.ones(5))
            except BufferError as error:
                print("BufferError")
        """
    assert run_python(code).check().split() == ["FakeTensor", "(5,)", "BufferError"]


def test_declared_mutation_bumps_the_version(
    increment: Any, twice: Any, framework: Callable[[str], Any]
) -> None:
    """Without that, autograd computes gradients of values that were overwritten."""
    torch = framework("torch")
    z = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    for write in (increment, increment.torch, lambda z: twice(torch.ones(3), out=z)):
        product = w * z  # keeps z for the gradient of w
        version = z._version
        write(z)
        assert z._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta", "subclass"])
def test_tensors_without_plain_memory_are_refused_or_handled_by_torch(
    kind: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    torch = framework("torch")
    x = torch.ones(4)
    if kind == "meta":
        assert twice(x.to("meta")).device.type == "meta"
        return
    if kind == "subclass":
        plain = type("Plain", (torch.Tensor,), {})
        assert twice(x.as_subclass(plain)).tolist() == [2, 2, 2, 2]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = {
            "sparse": lambda: x.to_sparse(),
            "quantized": lambda: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
        }
        value = makers[kind]()
    with pytest.raises((BufferError, TypeError, RuntimeError)):
        twice(value)


def test_a_sparse_tensor_cannot_be_written(twice: Any, framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    x = torch.ones(4)
    with pytest.raises(
        BufferError, match=r"argument 'out': expected f32.* got a sparse tensor; "
    ) as e:
        twice(x, out=x.to_sparse())
    assert "pass a dense tensor to write into" in str(e.value)


def test_a_kernel_that_failed_counts_what_it_may_have_written(framework: Any) -> None:
    """So that autograd does not use what it saved; by the direct path, and by the general one."""
    torch = framework("torch")

    def fail(x: Any, y: Any) -> None:
        y += x
        raise ValueError("too late")

    kernel = dlbridge.wrap(fail, "failing::add(x: f32[n], y!: f32[n])", abi="python:numpy")
    x, y = torch.ones(2), torch.zeros(2)
    with pytest.raises(ValueError, match="too late"):
        kernel(x, y)
    assert (x._version, y._version) == (0, 1)

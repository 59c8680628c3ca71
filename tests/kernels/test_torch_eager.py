"""Differentiated calls of plain tensors in eager mode: the way past the dispatcher, and its twin.

Each test runs in both ways, and both must agree: what C serves directly is nothing but faster.
"""

from __future__ import annotations

import contextlib
import functools
import re
import threading

import pytest
from kernels.torch_samples import compiled, make_mul

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels.kernel import Shortcut


@pytest.fixture
def torch(framework):
    return framework("torch")


def leaf(torch, *shape):
    return torch.rand(*shape or (3, 4), dtype=torch.double, requires_grad=True)


def settled(torch, kernel):
    """Return the kernel after its first differentiated call, which settles its way."""
    kernel(leaf(torch), leaf(torch))
    assert kernel.shortcut is not None
    return kernel


@pytest.fixture(params=["eager", "operator"])
def mul(request, torch):
    kernel = settled(torch, make_mul("ops_eager", f"mul_{request.param}"))
    if request.param == "operator":
        kernel.shortcut = Shortcut("torch", lambda *_: NotImplemented)
    elif not torch_is_proved():
        pytest.skip("this version of torch has no direct calls")
    return kernel


def torch_is_proved():
    from dlbridge._core import native
    from dlbridge.frameworks.torch import eager

    return native.torch_direct_allows(eager._PROBE)


def is_served(kernel, *args, **kwargs):
    return kernel.shortcut.call(kernel, args, kwargs) is not NotImplemented


def test_plain_tensors_are_served_and_everything_else_is_left_to_the_operator(torch) -> None:
    from torch.autograd import forward_ad
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Subclass(torch.Tensor):
        pass

    kernel = settled(torch, make_mul("ops_eager", "served"))
    if not torch_is_proved():
        pytest.skip("this version of torch has no direct calls")
    x, y = leaf(torch), leaf(torch)
    assert is_served(kernel, x, y)
    assert is_served(kernel, x, y.detach(), alpha=2.0)
    assert is_served(kernel, torch.nn.Parameter(x.detach()), y=y)
    assert not is_served(kernel, x.detach(), y.detach())
    assert not is_served(kernel, x, y, out=torch.empty(3, 4))
    assert not is_served(kernel, x)
    assert not is_served(kernel, x, y[:2])
    assert not is_served(kernel, x, y.as_subclass(Subclass))
    for mode in (
        torch.no_grad(),
        torch.inference_mode(),
        forward_ad.dual_level(),
        TorchFunctionMode(),
        TorchDispatchMode(),
        torch.profiler.profile(),
    ):
        with mode, contextlib.suppress(RuntimeError):
            assert not is_served(kernel, x, y), mode
    for mode in (torch.autocast("cpu"), torch.device("meta")):  # which leave kernels alone
        with mode:
            assert is_served(kernel, x, y), mode
            (gradient,) = torch.autograd.grad(kernel(x, y).sum(), x)
        assert gradient.device.type == "cpu"
        assert torch.equal(gradient, y)
    seen = []
    torch.func.grad(lambda x: (seen.append(is_served(kernel, x, y)), kernel(x, y).sum())[1])(x)
    torch.vmap(lambda x: (seen.append(is_served(kernel, x, y)), x)[1])(x)
    assert seen == [False, False]


def test_gradients_of_every_order_are_those_of_the_operator(torch, mul) -> None:
    x, y = leaf(torch), leaf(torch)
    assert torch.autograd.gradcheck(lambda x, y: mul(x, y, alpha=2.0), (x, y),
                                    check_forward_ad=True, check_batched_grad=True)  # fmt: skip
    assert torch.autograd.gradgradcheck(lambda x, y: mul(x, y, alpha=2.0), (x, y))
    # The operator of a name that was wrapped before has a version.
    name = re.sub(r"__v\d+(?=Backward$)", "", type(mul(x, y).grad_fn).__name__)
    assert name == f"{mul.name.replace('::', '_')}Backward"


def test_saved_tensors_pass_their_hooks_and_versions_are_checked(torch, mul) -> None:
    x, y = leaf(torch), leaf(torch)
    packed = []

    def pack(tensor):
        packed.append(tensor.shape)
        return tensor.detach().clone()

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        result = mul(x, y)
    assert packed == [(3, 4)] * 2
    result.sum().backward()
    assert torch.equal(x.grad, y)
    middle = x * 1
    result = mul(middle, y)
    middle.detach().add_(1)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_graph_is_used_once_unless_it_is_retained(torch, mul) -> None:
    x, y = leaf(torch), leaf(torch)
    result = mul(x, y).sum()
    result.backward(retain_graph=True)
    result.backward()
    assert torch.allclose(x.grad, 2 * y)
    with pytest.raises(RuntimeError, match="second time"):
        result.backward()


def test_checkpoints_and_hooks_see_the_call(torch, mul) -> None:
    from torch.utils.checkpoint import checkpoint

    x, y = leaf(torch), leaf(torch)
    seen = []
    result = checkpoint(mul, x, y, use_reentrant=False)
    result.register_hook(lambda grad: seen.append(grad.shape))
    result.sum().backward()
    assert torch.equal(x.grad, y)
    assert seen == [(3, 4)]


def test_results_may_be_written_in_place_and_differentiated_further(torch, mul) -> None:
    x, y = leaf(torch), leaf(torch)
    mul(x, y).mul_(3.0).sum().backward()
    assert torch.allclose(x.grad, 3 * y)


def test_results_without_a_cotangent_or_a_gradient(torch) -> None:
    """A result that nothing was made of has zeros as its cotangent; None is no gradient."""
    kernel = compiled(
        "nothing", "ops_eager::two(x: f64[n], y: f64[n]) -> (a: f64[n], b: f64[n], n: i64[])",
        vjp=lambda grad_a, grad_b: (grad_a + 2 * grad_b, None),
    )  # fmt: skip
    for _ in range(3):  # the first call settles the way
        x, y = leaf(torch, 3), leaf(torch, 3)
        a, b, n = kernel(x, y)
        assert (a.requires_grad, b.requires_grad, n.requires_grad) == (True, True, False)
        torch.autograd.backward(b, torch.ones(3, dtype=torch.double))
        assert torch.equal(x.grad, torch.full((3,), 2.0, dtype=torch.double))
        assert y.grad is None


def test_wrong_gradients_are_refused_in_the_same_words(torch) -> None:
    for wrong, error, text in (
        (lambda grad: grad[:2], ArgumentError, "expected f64\\[3\\], got f64\\[2\\]"),
        (lambda grad: grad.float(), UnsupportedTypeError, "got f32"),
        (lambda grad: (grad, grad), UnsupportedTypeError, "2 of them"),
        (lambda grad: grad.numpy(), UnsupportedTypeError, "torch tensors"),
    ):
        kernel = compiled("nothing", "ops_eager::wrong(x: f64[n]) -> f64[n]", vjp=wrong)
        for _ in range(3):
            x = leaf(torch, 3)
            with pytest.raises(error, match=text):
                kernel(x).sum().backward()


def in_order(x, y, grad):
    return grad * (2 * y), grad * (3 * x)


def with_a_default(x, y, grad, unused=None):
    return in_order(x, y, grad)


RULES = {
    "in order": in_order,
    "another order": lambda grad, y, x: in_order(x, y, grad),
    "the arguments the other way round": lambda y, x, grad: in_order(x, y, grad),
    "by name": lambda *, grad, x, y: in_order(x, y, grad),
    "by position only": lambda grad, x, y, /: in_order(x, y, grad),
    "a default": with_a_default,
    "wrapped, with names alone": functools.wraps(in_order)(lambda **given: in_order(**given)),
    "part of them": lambda y, grad: (grad * (2 * y), None),
}


@pytest.mark.parametrize("name", RULES)
def test_rules_get_what_their_parameters_name(name, torch) -> None:
    kernel = compiled(
        "nothing", "ops_eager::named(x: f64[n], y: f64[n]) -> f64[n]", vjp=RULES[name]
    )
    grad = torch.tensor([1.0, 2.0, 4.0], dtype=torch.double)
    for with_gradient in ((True, True), (True, True), (True, False), (False, True)):
        x, y = (leaf(torch, 3).detach().requires_grad_(each) for each in with_gradient)
        kernel(x, y).backward(grad)
        for tensor, found in zip((x, y), in_order(x.detach(), y.detach(), grad), strict=True):
            is_left = name == "part of them" and tensor is y
            assert (tensor.grad is None) == (is_left or not tensor.requires_grad)
            assert tensor.grad is None or torch.equal(tensor.grad, found)


def test_a_second_derivative_of_a_rule_of_torch(torch) -> None:
    """Its tensors are those of the call, so that what it does with them is recorded."""
    kernel = compiled("nothing", "ops_eager::twice(x: f64[n], y: f64[n]) -> f64[n]", vjp=in_order)
    for _ in range(2):
        x, y = leaf(torch, 3), leaf(torch, 3)
        one = torch.ones(3, dtype=torch.double)
        (dx,) = torch.autograd.grad(kernel(x, y), x, one, create_graph=True)
        (dxdy,) = torch.autograd.grad(dx, y, one)
        assert torch.equal(dxdy, torch.full((3,), 2.0, dtype=torch.double))


@pytest.mark.usefixtures("proved_torch")
def test_a_kernel_whose_name_is_wrapped_again_is_served_as_before(torch) -> None:
    first = settled(torch, make_mul("ops_eager", "again"))
    make_mul("ops_eager", "again")
    assert is_served(first, leaf(torch), leaf(torch))


def test_eight_threads_use_a_kernel_first_at_once(torch) -> None:
    kernel = make_mul("ops_eager", "threads")
    barrier, wrong = threading.Barrier(8), []

    def work() -> None:
        barrier.wait()
        for _ in range(50):
            x, y = leaf(torch), leaf(torch)
            kernel(x, y).sum().backward()
            if not torch.equal(x.grad, y.detach()):
                wrong.append(x)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong

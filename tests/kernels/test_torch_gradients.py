"""torch differentiates kernels: backward, forward, twice, under torch.func; and batches them."""

from __future__ import annotations

import threading

import numpy as np
import pytest
from kernels.torch_samples import MUL, compiled, make_mul
from kernels.torch_samples import ops as ops

import dlbridge
from dlbridge import wrap
from dlbridge._core import native
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError


@pytest.fixture
def torch(framework):
    return framework("torch")


@pytest.fixture
def xy(torch):
    return tuple(torch.rand(3, 4, dtype=torch.double, requires_grad=True) for _ in range(2))


# ---- gradients -----------------------------------------------------------------------------------


def test_gradients_are_right_of_every_order_and_direction(torch, ops, xy) -> None:
    def scaled(x, y):
        return ops.mul(x, y, alpha=2.0)

    assert torch.autograd.gradcheck(scaled, xy, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(scaled, xy)


def test_the_operator_has_the_kernels_gradient(torch, ops, xy) -> None:
    x, y = xy
    result = ops.torch_ops.mul(x, y, alpha=3.0)
    assert "mul" in type(result.grad_fn).__name__
    (gradient,) = torch.autograd.grad(result.sum(), x)
    assert torch.equal(gradient, 3 * y)


def test_only_what_is_needed_gets_a_gradient(torch, ops, xy) -> None:
    x, y = xy
    ops.mul(x, y.detach()).sum().backward()
    assert torch.equal(x.grad, y.detach())
    assert y.grad is None


def test_cotangents_may_be_broadcast_or_transposed(torch, ops, xy) -> None:
    x, y = xy
    for cotangent in (
        torch.ones(1, dtype=torch.double).expand(3, 4),
        torch.rand(4, 3).double().t(),
    ):
        (gradient,) = torch.autograd.grad(ops.mul(x, y), x, cotangent)
        assert torch.equal(gradient, cotangent * y)


def test_without_a_vjp_backward_raises_and_never_drops(torch, ops) -> None:
    x = torch.ones(3, requires_grad=True)
    for call in (ops.affine, ops.affine.torch, ops.torch_ops.affine):
        result = call(x)
        assert result.requires_grad
        with pytest.raises(KernelError, match=r"affine: it has no gradient: .* vjp="):
            (result.sum() + x.sum()).backward()
    with pytest.raises(KernelError, match="jvp="):
        torch.func.jvp(ops.affine, (torch.ones(3),), (torch.ones(3),))


def test_a_tangent_is_by_the_transpose_of_the_vjp(torch) -> None:
    """Of what is left out, of integers and of zero gradients as well."""
    calls = []

    def rule(x, w, by, grad_y, grad_z):
        calls.append(1)
        grads = {"x": by * grad_y * (1 if w is None else w) + grad_z}
        return grads if w is None else {**grads, "w": by * x * grad_y}

    @wrap(
        schema="ops_forward::mixed(x: f64[n], k: i64[n], w: f64[n]? = None, *, by: float = 2.0)"
        " -> (y: f64[n], count: i64[], z: f64[], constant: f64[])",
        abi="python:numpy",
        vjp=rule,
    )
    def mixed(x, k, w, *, by):
        return by * x * (1 if w is None else w), np.int64(len(k)), x.sum(), np.float64(1)

    x, k = torch.arange(3.0).double(), torch.arange(3)
    w = torch.tensor([1.0, 3.0, 5.0]).double()
    func = torch.func
    mixed(x, k)
    assert not calls
    values, tangents = func.jvp(lambda x: mixed(x, k), (x,), (w,))
    assert [each.tolist() for each in values] == [[0, 2, 4], 3, 3, 1]
    assert tangents[0].tolist() == [2, 6, 10]
    assert [tangents[2].item(), tangents[3].item()] == [9, 0]
    assert func.jvp(lambda x, w: mixed(x, k, w)[0], (x, w), (w, x))[1].tolist() == [2, 20, 58]
    assert func.jvp(lambda w: mixed(x, k, w, by=3.0)[0], (w,), (x,))[1].tolist() == [0, 3, 12]
    assert func.jacfwd(lambda w: mixed(x, k, w)[2])(w).tolist() == [0, 0, 0]
    with torch.autograd.forward_ad.dual_level():
        dual = torch.autograd.forward_ad.make_dual(x, w)
        found = torch.autograd.forward_ad.unpack_dual(mixed(dual, k, x)[0])
        assert found.tangent.tolist() == [0, 6, 20]


def test_tangents_of_complex_numbers_are_by_the_transpose_too(torch) -> None:
    """Which in torch is the adjoint: gradients there are those of the conjugate."""
    product = wrap(
        lambda x, y: x.conj() * y,
        "ops_forward::conjugated(x: c128[n], y: c128[n]) -> c128[n]",
        abi="python:numpy",
        vjp=lambda x, y, grad: (grad.conj() * y, grad * x),
    )
    x, y, t, u = torch.randn(4, 3, dtype=torch.complex128, generator=torch.Generator())
    value, tangent = torch.func.jvp(product, (x, y), (t, u))
    assert torch.allclose(value, x.conj() * y)
    assert torch.allclose(tangent, t.conj() * y + x.conj() * u)


def test_tangents_by_a_vjp_that_jax_derived(torch, framework) -> None:
    framework("jax")

    @wrap(schema="ops_forward::cube(x: f32[n]) -> f32[n]", abi="python:jax", vjp="jax")
    def cube(x):
        return x * x * x

    x = torch.tensor([1.0, 2.0])
    assert torch.func.jvp(cube, (x,), (x,))[1].tolist() == [3, 24]
    assert torch.func.hessian(lambda x: cube(x).sum())(x).tolist() == [[6, 0], [0, 12]]


def test_a_tangent_without_what_it_needs_is_refused_by_name(torch) -> None:
    schema = "ops_forward::opaque(x: f64[n], y: f64[n], grad: f64[n])"
    opaque = wrap(
        lambda x, y, grad: (grad * y, grad * x),
        f"{schema} -> (grad_x: f64[n], grad_y: f64[n])",
        abi="python:numpy",
    )
    own = "ops_forward::{}(x: f64[n], y: f64[n]) -> f64[n]"
    kernel = wrap(lambda x, y: x * y, own.format("kernel"), abi="python:numpy", vjp=opaque)
    calling = wrap(
        lambda x, y: x * y,
        own.format("calling"),
        abi="python:numpy",
        vjp=lambda x, y, grad: opaque(x, y, grad),
    )
    x = torch.arange(3.0).double()
    for function, words in (
        (kernel, "ops_forward::kernel: it has no tangent: .*a Kernel, has no vjp= of its own"),
        (calling, "ops_forward::opaque: it has no gradient"),
    ):
        with pytest.raises(KernelError, match=words):
            torch.func.jvp(function, (x, x), (x, x))
        assert torch.func.grad(lambda x, f=function: f(x, x).sum())(x).tolist() == [0, 2, 4]


def test_results_that_are_not_floating_have_no_gradient(torch) -> None:
    kernel = compiled("nothing", "ops_int::f(x: f32[n]) -> (count: i64[], y: f32[n])",
                      vjp=lambda grad_y: grad_y)  # fmt: skip
    count, y = kernel(torch.ones(3, requires_grad=True))
    assert not count.requires_grad
    assert y.requires_grad
    with torch.no_grad():
        assert not kernel(torch.ones(3, requires_grad=True))[1].requires_grad


def test_only_what_the_vjp_names_is_kept(torch) -> None:
    kept = []

    def pack(tensor):
        kept.append(tensor)
        return tensor

    kernel = compiled("mul", f"ops_kept::{MUL}", vjp=lambda y, out, grad: (grad * y, grad * out))
    x, y = (torch.ones(3, dtype=torch.double, requires_grad=True) for _ in range(2))
    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        out = kernel(x, y)
    assert [each.data_ptr() for each in kept] == [y.data_ptr(), out.data_ptr()]


def test_a_saved_argument_that_was_overwritten_is_noticed(torch, ops, xy) -> None:
    x, y = xy[0], xy[1].detach().clone()
    result = ops.mul(x, y)
    ops.mul(x.detach(), x.detach(), out=y)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        result.sum().backward()


def test_a_gradient_of_the_wrong_shape_is_refused(torch) -> None:
    kernel = compiled("mul", f"ops_wrong::{MUL}", vjp=lambda grad: (grad[:1], grad))
    x = torch.ones(3, dtype=torch.double, requires_grad=True)
    with pytest.raises(ArgumentError, match="gradient of 'x'"):
        kernel(x, x).sum().backward()


def test_a_rule_that_returns_arrays_of_others_is_refused_by_name(torch) -> None:
    kernel = compiled(
        "mul",
        f"ops_foreign::{MUL}",
        vjp=lambda grad: (grad.numpy(), grad),
        jvp=lambda tangent_x: tangent_x.numpy(),
    )
    x = torch.ones(3, dtype=torch.double, requires_grad=True)
    with pytest.raises(UnsupportedTypeError, match=r"foreign::mul: its vjp .*returned .*ndarray"):
        kernel(x, x).sum().backward()
    forward_ad = torch.autograd.forward_ad
    with forward_ad.dual_level(), pytest.raises(UnsupportedTypeError, match="its jvp must return"):
        kernel(forward_ad.make_dual(x.detach(), x.detach()), x.detach())


# ---- torch.func ----------------------------------------------------------------------------------


def test_torch_func_differentiates_kernels(torch, ops, xy) -> None:
    x, y = (each.detach() for each in xy)
    assert torch.equal(torch.func.grad(lambda x: ops.mul(x, y).sum())(x), y)
    assert torch.equal(torch.func.jvp(lambda x: ops.mul(x, y), (x,), (x,))[1], x * y)
    hessian = torch.func.hessian(lambda x: ops.mul(x, x).sum())(x)
    assert torch.equal(hessian.reshape(12, 12), 2 * torch.eye(12, dtype=torch.double))
    jacobian = torch.func.jacrev(lambda x: ops.mul(x, y))(x)
    assert torch.equal(jacobian.reshape(12, 12), torch.diag(y.flatten()))


def test_writes_have_no_meaning_within_vmap(torch, ops) -> None:
    x = torch.zeros(2, 3)
    for transformed in (
        torch.vmap(ops.add_to),
        torch.vmap(ops.torch_ops.add_to),
        torch.vmap(torch.func.grad(lambda x: (ops.add_to(x.detach()), x.sum())[1])),
        torch.vmap(lambda x: ops.affine(x, out=x.clone())),
    ):
        with pytest.raises(KernelError, match="writes into its arguments"):
            transformed(x)
    assert not x.any()


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["sequential", "broadcast", "function"])
def test_vmap_follows_the_batch_rule(torch, way) -> None:
    calls = []

    def rule(size, is_batched, x, y, *, alpha):
        calls.append((size, is_batched, alpha))
        x, y = (each if batched else each.expand(size, *each.shape)
                for each, batched in zip((x, y), is_batched, strict=True))  # fmt: skip
        return kernel(x, y, alpha=alpha)

    kernel = make_mul("ops_batch", f"mul_{way}", batch=rule if way == "function" else way)
    x, y = torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)
    assert torch.equal(torch.vmap(kernel)(x, y), x * y)
    assert torch.equal(torch.vmap(kernel, in_dims=(1, None))(x, y[:, 0]), (x * y[:, :1]).t())
    assert torch.equal(torch.vmap(lambda x, y: kernel(x, y=y, alpha=2.0))(x, y), 2 * x * y)
    assert torch.vmap(kernel)(x[:0], y[:0]).shape == (0, 4)
    assert torch.equal(torch.vmap(torch.vmap(kernel))(x, y), x * y)
    both = torch.vmap(torch.func.grad(lambda x, y: kernel(x, y).sum()))(x, y)
    assert torch.equal(both, y)
    summed = torch.func.grad(lambda x: torch.vmap(kernel)(x, y).sum())(x)
    assert torch.equal(summed, y)
    if way == "function":
        assert calls[0] == (3, (True, True), 1.0)
        assert calls[1] == (4, (True, False), 1.0)


def spied(monkeypatch, answers):
    """Note whether C computed each batch."""
    call = native.torch_call_batch

    def spy(*args, **kwargs):
        answers.append(call(*args, **kwargs))
        return answers[-1]

    monkeypatch.setattr(native, "torch_call_batch", spy)


@pytest.mark.parametrize("axes", [(0, 0), (1, None), (None, 0), (1, 1)])
def test_vmap_loops_in_c_with_the_numbers_of_a_loop_in_python(torch, monkeypatch, axes) -> None:
    """Strided, expanded and misplaced batches, several results, and what only torch may do."""
    answers: list[bool] = []
    spied(monkeypatch, answers)
    kernel = make_mul("ops_batch", "mul_in_c")
    sources = {
        "plain": torch.rand(4, 4, dtype=torch.double),
        "strided": torch.rand(8, 4, dtype=torch.double)[::2],
        "shifted": torch.rand(17, dtype=torch.double)[1:].reshape(4, 4),
        "expanded": torch.rand(4, dtype=torch.double).expand(4, 4),
    }
    for x in sources.values():
        for y in sources.values():
            given = [
                each if axis is not None else each[0]
                for each, axis in zip((x, y), axes, strict=True)
            ]
            rows = [
                kernel(
                    *[
                        each if axis is None else each.select(axis, place)
                        for each, axis in zip(given, axes, strict=True)
                    ]
                )
                for place in range(4)
            ]
            found = torch.vmap(kernel, in_dims=axes)(*given)
            assert torch.equal(found, torch.stack(rows))
            assert found.is_contiguous()
    is_in_c = native.torch_direct_allows(torch.ones(1))  # else row by row, by torch's dispatcher
    assert answers == ([True] * 16 if is_in_c else [])
    x, y = sources["plain"], sources["strided"]
    assert torch.equal(torch.vmap(torch.vmap(kernel))(x, y), x * y)
    assert torch.equal(torch.vmap(torch.func.grad(lambda x, y: kernel(x, y).sum()))(x, y), y)
    leaf = x.clone().requires_grad_()
    torch.vmap(kernel)(leaf, y).sum().backward()
    assert torch.equal(leaf.grad, y)


def test_a_kernel_that_fails_within_a_batch_says_so_once(torch) -> None:
    kernel = compiled("fail_on_second", "ops_batch::fails(x: f64[n]) -> f64[n]")
    with pytest.raises(KernelError, match="returned status 7"):
        torch.vmap(kernel)(torch.tensor([[0.0], [1.0], [2.0]], dtype=torch.double))


def test_batches_in_eight_threads(torch) -> None:
    kernel = make_mul("ops_batch", "mul_in_threads")
    wrong = []

    def work(seed: int) -> None:
        x = torch.full(
            (2000 if native.torch_direct_allows(torch.ones(1)) else 20, 3),
            float(seed),
            dtype=torch.double,
        )
        for _ in range(20):
            if not torch.equal(torch.vmap(kernel)(x, x), x * x):
                wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not wrong
    assert not any(thread.is_alive() for thread in threads)


def test_vmap_stacks_several_results_and_leaves_out_what_is_left_out(torch, ops) -> None:
    x = torch.tensor([[3.0, 1.0], [0.0, 5.0]])
    low, high = torch.vmap(ops.minmax)(x)
    assert (low.tolist(), high.tolist()) == ([1.0, 0.0], [3.0, 5.0])
    assert torch.equal(torch.vmap(lambda x: ops.affine(x, None, m=2))(x), 2 * x)


@pytest.mark.parametrize(("middle", "scalars"), [("", {}), ("size: int = 0, ", {"size": 3})])
def test_tensors_by_name_only_are_batched_and_differentiated(torch, middle, scalars) -> None:
    """torch batches tensors by position only, so the operator has them there."""
    name = f"mul{len(scalars)}"
    schema = f"ops_named::{name}(x: f64[n], {middle}*, y: f64[n], alpha: float = 1.0) -> f64[n]"
    kernel = compiled("nothing" if middle else "mul", schema, vjp=lambda y, grad: (grad * y, grad))
    x, y = torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)
    both = torch.vmap(lambda x, y: kernel(x, y=y))(x, y)
    one = torch.vmap(lambda y: kernel(x[0], y=y))(y)
    assert both.shape == one.shape == (3, 4)
    first = x[0].clone().requires_grad_()
    assert torch.equal(torch.autograd.grad(kernel(first, y=y[0]).sum(), first)[0], y[0])
    operator = getattr(torch.ops.ops_named, name)
    assert operator(x[0], y=y[0], **scalars).shape == (4,)
    if not middle:
        assert torch.equal(both, x * y)
        assert torch.library.opcheck(operator.default, (x[0], y[0]))


def test_broadcast_falls_back_where_an_argument_has_no_room(torch) -> None:
    """A batched argument without leading dimensions is computed one by one."""
    schema = "ops_batch::row(x: f64[..., n], y: f64[n], *, alpha: float = 1.0) -> f64[..., n]"
    kernel = compiled("mul", schema, batch="broadcast")
    x, y = torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)
    assert torch.equal(torch.vmap(kernel)(x, y), x * y)


# ---- threads -------------------------------------------------------------------------------------


def test_python_kernels_run_in_backward_on_many_threads(torch) -> None:
    """The operator runs without the GIL and its kernel takes it: no deadlock, right numbers."""
    times = dlbridge.wrap(
        lambda x, y: x * y, "ops_threads::times(x: f64[n], y: f64[n]) -> f64[n]", abi="python:numpy"
    )
    square = dlbridge.wrap(
        lambda x: x * x, "ops_threads::square(x: f64[n]) -> f64[n]", abi="python:numpy",
        vjp=lambda x, grad: times(2 * x, grad),
    )  # fmt: skip
    wrong = []

    def work() -> None:
        x = torch.arange(5.0, dtype=torch.double, requires_grad=True)
        for _ in range(30):
            (gradient,) = torch.autograd.grad((square(x) + square(x)).sum(), x)
            if not torch.equal(gradient, 4 * x):
                wrong.append(gradient)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not any(thread.is_alive() for thread in threads)
    assert not wrong


def test_results_that_are_integers_have_no_tangent(torch) -> None:
    """As x.argmax() and x.nonzero() have none: what is multiplied by them is differentiated."""

    def places(x):
        return np.asarray(x.argmax(), "int32"), np.asarray(x.argmin(), "int32")

    schema = "torch_gradients::places(x: f32[n]) -> (i32[], i32[])"
    kernel = dlbridge.wrap(places, schema, abi="python:numpy")
    x, tangent = torch.tensor([1.0, 0.0, 3.0]), torch.tensor([1.0, 2.0, 3.0])

    def function(x):
        last, first = kernel(x)
        return x * x * last + first

    value, moved = torch.func.jvp(function, (x,), (tangent,))
    assert value.tolist() == [3, 1, 19]
    assert moved.tolist() == [4, 0, 36]
    assert (
        torch.func.hessian(lambda x: function(x).sum())(x).tolist() == np.diag([4.0] * 3).tolist()
    )
    tangents = torch.vmap(lambda t: torch.func.jvp(function, (x,), (t,))[1])(torch.eye(3))
    assert tangents.tolist() == torch.diag(4 * x).tolist()


def test_a_jvp_may_leave_out_the_tangent_of_a_floating_result(framework) -> None:
    torch = framework("torch")
    kernel = dlbridge.wrap(
        lambda x: (2 * x, 0 * x),
        "left_out::twice(x: f32[n]) -> (y: f32[n], z: f32[n])",
        abi="python:numpy",
        jvp=lambda tangent_x: {"y": 2 * tangent_x},
    )
    x = torch.arange(3.0)
    _, moved = torch.func.jvp(kernel, (x,), (torch.ones(3),))
    assert [each.tolist() for each in moved] == [[2, 2, 2], [0, 0, 0]]

"""Kernels as operators of torch's dispatcher: arguments, results, errors."""

from __future__ import annotations

import numpy as np
import pytest
from kernels.torch_samples import compiled, make_mul
from kernels.torch_samples import ops as ops

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError


@pytest.fixture
def torch(framework):
    return framework("torch")


@pytest.fixture
def xy(torch):
    return torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)


# ---- arguments and results -----------------------------------------------------------------------


def test_an_operator_computes_what_the_kernel_does(torch, ops, xy) -> None:
    x, y = xy
    assert torch.equal(ops.torch_ops.mul(x, y), x * y)
    assert torch.equal(ops.torch_ops.mul(x, y=y, alpha=2), 2 * x * y)
    assert torch.equal(ops.torch_ops.mul.default(x.t(), y.t()), (x * y).t())


def test_the_out_overload_writes_into_a_buffer(torch, ops, xy) -> None:
    """By position and by name; the version counter tells autograd of it."""
    x, y = xy
    out = torch.zeros_like(x)
    assert ops.torch_ops.mul.out(x, y, out) is None
    assert torch.equal(out, x * y)
    assert ops.torch_ops.mul.out(x, y, alpha=3.0, out=out) is None
    assert torch.equal(out, 3 * x * y)
    assert out._version == 2


def test_buffers_may_have_any_strides(torch, ops, xy) -> None:
    x, y = xy
    out = torch.zeros(4, 3, dtype=torch.double).t()
    ops.torch_ops.mul.out(x, y, out)
    assert torch.equal(out, x * y)


def test_several_results_come_as_a_tuple(torch, ops) -> None:
    x = torch.tensor([3.0, 1.0, 2.0])
    low, high = ops.torch_ops.minmax(x)
    assert (low.item(), high.item()) == (1.0, 3.0)
    buffers = torch.zeros(()), torch.zeros(())
    ops.torch_ops.minmax.out(x, *buffers)
    assert [each.item() for each in buffers] == [1.0, 3.0]
    assert ops.minmax(x, out=buffers) == buffers


@pytest.mark.parametrize("shape", [(2, 0), (0, 3), (2, 0, 3)])
def test_results_without_elements_have_the_strides_of_torch_empty(torch, ops, shape) -> None:
    x = torch.empty(shape, dtype=torch.double)
    for made in (ops.torch_ops.mul(x, x), ops.mul(x, x)):
        assert made.shape == x.shape
        assert made.is_contiguous()
        assert made.stride() == x.stride()


@pytest.mark.parametrize(
    ("scalars", "factor"),
    [({}, 1), ({"m": 3}, 3), ({"m": 0}, 0), ({"m": 2, "ten": True}, 20),
     ({"m": 2, "sign": "negative"}, -2)],
)  # fmt: skip
def test_scalars_and_optional_arguments_arrive(torch, ops, scalars, factor) -> None:
    x = torch.arange(4.0)
    assert torch.equal(ops.torch_ops.affine(x, **scalars), factor * x)
    assert torch.equal(ops.torch_ops.affine(x, None, **scalars), factor * x)
    assert torch.equal(ops.torch_ops.affine(x, x, **scalars), factor * x + x)


def test_tensors_without_elements_or_dimensions(torch, ops, xy) -> None:
    x, y = xy
    assert ops.torch_ops.mul(x[:0], y[:0]).shape == (0, 4)
    assert ops.torch_ops.mul(x[0, 0], y[0, 0]) == x[0, 0] * y[0, 0]


def test_the_schema_is_torchs_own(ops) -> None:
    schema = str(ops.torch_ops.mul.default._schema)
    assert schema.endswith("::mul(Tensor x, Tensor y, *, float alpha=1.) -> Tensor")
    schema = str(ops.torch_ops.mul.out._schema)
    assert "(Tensor x, Tensor y, Tensor(r0!) out, *, float alpha=1.) -> ()" in schema
    assert "affine.out(Tensor x, Tensor? y=None, *, " in str(ops.torch_ops.affine.out._schema)
    assert ops.torch_ops.add_to.overloads() == ["default"]


def test_buffers_follow_a_default_by_name(torch) -> None:
    """torch refuses a positional argument without a default after one with, and has no scalars
    by name here that would separate them."""
    kernel = dlbridge.wrap(
        lambda x, bias: x if bias is None else x + bias,
        "ops_bias::add(x: f32[n], bias: f32[n]? = None) -> f32[n]",
        abi="python:numpy",
        vjp=lambda bias, grad: (grad, None if bias is None else grad),
    )
    x, out = torch.arange(3.0), torch.zeros(3)
    leaf = x.clone().requires_grad_()
    kernel(leaf, leaf).sum().backward()
    assert leaf.grad.tolist() == [2, 2, 2]
    torch.ops.ops_bias.add.out(x, x, out=out)
    assert out.tolist() == [0, 2, 4]
    assert torch.equal(torch.compile(kernel, fullgraph=True, backend="eager")(x, out=out), x)


def test_names_of_buffers_keep_clear_of_those_of_arguments(torch) -> None:
    text = "ops_names::minmax(out0: f32[n], out1: f32[n]) -> (low: f32[], high: f32[])"
    kernel = compiled("nothing", text)
    kernel.torch
    x, low, high = torch.ones(3), torch.ones(()), torch.ones(())
    torch.ops.ops_names.minmax.out(x, x, out0_=low, out1_=high)


def test_as_many_buffers_as_a_kernel_can_have(torch) -> None:
    names = ", ".join(f"r{i}: f32[n]" for i in range(32))
    kernel = dlbridge.wrap(
        lambda n: tuple(np.full(n, i, np.float32) for i in range(32)),
        f"ops_many::fill(*, n: int) -> ({names})",
        abi="python:numpy",
    )
    assert [each.tolist() for each in kernel.torch(n=2)] == [[i, i] for i in range(32)]
    buffers = {f"out{i}": torch.empty(2) for i in range(32)}
    torch.ops.ops_many.fill.out(n=2, **buffers)
    assert [each.tolist() for each in buffers.values()] == [[i, i] for i in range(32)]


# ---- errors --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("change", "kind", "got"),
    [
        (lambda x: (x, x.float()), UnsupportedTypeError, "f32[3, 4]"),
        (lambda x: (x, x[:2]), ArgumentError, "f64[2, 4]"),
    ],
)
def test_mismatches_have_one_text_and_the_right_class(torch, ops, xy, change, kind, got) -> None:
    """A call of the kernel has the class; torch.ops gives the same text as a RuntimeError."""
    text = f"argument 'y': expected f64[...=(3, 4)], got {got} (torch.Tensor, cpu)"
    arguments = change(xy[0])
    odd = [arguments[0].requires_grad_(), arguments[1]]
    for call in (ops.mul, ops.mul.torch):
        with pytest.raises(kind) as caught:
            call(*odd)
        assert text in str(caught.value)
    with pytest.raises((RuntimeError, kind)) as caught:
        ops.torch_ops.mul(*arguments)
    assert text in str(caught.value)


def test_a_kernel_that_fails_says_why(torch, ops) -> None:
    x = torch.ones(3, requires_grad=True)
    with pytest.raises(KernelError, match=r"fail: no luck with 2 tensors"):
        ops.fail(x)
    with pytest.raises(RuntimeError, match=r"fail: no luck with 2 tensors"):
        ops.torch_ops.fail(torch.ones(3))


def test_an_error_that_was_caught_is_not_raised_later(torch, ops) -> None:
    """A Python kernel may call operators that fail, and then fail for a reason of its own."""

    def tries(x):
        with pytest.raises(RuntimeError, match="no luck"):
            ops.torch_ops.fail(torch.ones(3))
        raise RuntimeError("something else")

    kernel = dlbridge.wrap(
        tries, f"{ops.namespace}::tries(x: f32[n]) -> f32[n]", abi="python:numpy"
    )
    with pytest.raises(RuntimeError, match="something else"):
        kernel(torch.ones(3, requires_grad=True))


def test_an_exception_of_a_python_kernel_comes_out_as_it_is(torch, ops) -> None:
    def raises(x):
        raise KeyError("its own")

    schema = f"{ops.namespace}::raises(x: f32[n]) -> f32[n]"
    kernel = dlbridge.wrap(raises, schema, abi="python:numpy")
    with pytest.raises(KeyError, match="its own") as caught:
        kernel(torch.ones(3, requires_grad=True))
    assert any(entry.name == "raises" for entry in caught.traceback)


def test_devices_must_agree(torch, ops, xy) -> None:
    x, y = xy
    with pytest.raises(ExchangeError, match=r"argument 'y': .*on meta as 'x'.* one device"):
        ops.mul(x.to("meta"), y)
    with pytest.raises(NotImplementedError, match=r"::mul.*SparseCPU"):
        ops.torch_ops.mul(x.to_sparse(), y)


def test_meta_tensors_give_meta_tensors(torch, ops, xy) -> None:
    out = ops.mul(*(each.to("meta") for each in xy))
    assert (out.device.type, out.shape, out.dtype) == ("meta", (3, 4), torch.double)
    with pytest.raises(UnsupportedTypeError, match=r"argument 'y'.*torch.Tensor, meta"):
        ops.mul(xy[0].to("meta"), xy[1].to("meta").float())


def test_a_kernel_without_a_schema_has_no_operator(torch, framework) -> None:
    from dlbridge.kernels.binding import binding

    with pytest.raises(ArgumentError, match="needs a schema"):
        binding("torch").operator(compiled("nothing", None))


# ---- what memory alone does not say --------------------------------------------------------------


def test_lazy_conjugates_and_negations_are_resolved(torch, ops) -> None:
    """DLPack knows neither; the dispatcher resolves them before the body runs."""
    x = torch.tensor([1 + 3j, 2 - 5j], dtype=torch.complex128).conj().imag
    assert x.is_neg()
    one = torch.ones(2, dtype=torch.double)
    assert ops.torch_ops.mul(x, one).tolist() == [-3.0, 5.0]
    assert ops.mul(x, one).tolist() == [-3.0, 5.0]
    with pytest.raises(ExchangeError, match="lazy") as caught:
        ops.mul(one, one, out=x)
    assert caught.value.reason == "negative_bit"


def test_a_storage_that_was_resized_is_not_read(torch, ops, xy) -> None:
    """It segfaults torch's own operators."""
    x = xy[0].clone()
    x.untyped_storage().resize_(8)
    with pytest.raises((RuntimeError, ExchangeError)):
        ops.torch_ops.mul(x, xy[1])


def test_results_never_share_memory_with_arguments_unasked(torch, ops, xy) -> None:
    x, y = xy
    with pytest.raises(ExchangeError) as caught:
        ops.mul(x.requires_grad_().detach(), y, out=x.detach())
    assert caught.value.reason == "overlap"


def test_subclasses_and_modes_see_the_operator(torch, ops, xy) -> None:
    from torch.overrides import TorchFunctionMode
    from torch.utils._python_dispatch import TorchDispatchMode

    class Plain(torch.Tensor):
        pass

    class Intercepting(torch.Tensor):
        @classmethod
        def __torch_function__(cls, func, types, args=(), kwargs=None):
            return func

    class Dispatching(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    class Functional(TorchFunctionMode):
        def __torch_function__(self, func, types, args=(), kwargs=None):
            seen.append(func)
            return func(*args, **(kwargs or {}))

    x, y = xy
    seen = []
    assert type(ops.mul(x.as_subclass(Plain), y)) is Plain
    assert ops.mul(x.as_subclass(Intercepting), y) is ops.torch_ops.mul.default
    with Dispatching():
        assert torch.equal(ops.mul(x, y), x * y)
    with Functional():
        ops.mul(x, y)
    assert seen.count(ops.torch_ops.mul.default) == 2


def test_autocast_and_parameters(torch, ops, xy) -> None:
    x, y = xy
    with torch.autocast("cpu"):
        assert torch.equal(ops.mul(x, y), x * y)
    assert ops.mul(torch.nn.Parameter(x), y).requires_grad
    with torch.no_grad():
        assert not ops.mul(torch.nn.Parameter(x), y).requires_grad


# ---- names ---------------------------------------------------------------------------------------


def test_torch_ops_has_a_kernel_as_soon_as_it_is_wrapped(torch) -> None:
    """Exported programs look their operators up there; nobody has called the kernel yet."""
    text = "ops_found::{}(x: f32[n]) -> f32[n]"
    dlbridge.wrap(lambda x: 2 * x, text.format("twice"), abi="python:numpy")
    dlbridge.wrap(lambda x: 3 * x, text.format("thrice"), abi="python:numpy")
    x = torch.ones(2)
    assert torch.ops.ops_found.twice(x).tolist() == [2, 2]
    assert hasattr(torch.ops.ops_found, "thrice")
    assert not hasattr(torch.ops.ops_found, "four_times")


def test_the_buffers_place_follows_the_defaults_of_a_kernel_wrapped_again(torch) -> None:
    def add(x, bias, by):
        return by * x if bias is None else by * x + bias

    x = torch.ones(2)
    for default in ("", " = None"):
        text = f"ops_anew::add(x: f32[n], bias: f32[n]?{default}, *, by: float = 1.0) -> f32[n]"
        kernel = dlbridge.wrap(add, text, abi="python:numpy")
        out = torch.zeros(2)
        operator = getattr(torch.ops.ops_anew, kernel.key.partition("::")[2])
        operator.out(x, x, by=2.0, out=out)
        assert out.tolist() == [3, 3]
        assert kernel.torch(x, None, by=4).tolist() == [4, 4]


# ---- tensors of other kinds, and none at all -----------------------------------------------------

KINDS = {
    "sparse": lambda torch: torch.ones(3, dtype=torch.double).to_sparse(),
    "quantised": lambda torch: torch.quantize_per_tensor(torch.ones(3), 0.1, 0, torch.qint8),
    "nested": lambda torch: torch.nested.nested_tensor([torch.ones(3), torch.ones(2)]),
    "mkldnn": lambda torch: torch.ones(3).to_mkldnn(),
}


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("kind", KINDS)
def test_tensors_without_strides_are_refused_by_name(torch, kind) -> None:
    kernel = make_mul(f"kinds_{kind}")
    x = KINDS[kind](torch)
    for call in (kernel, kernel.torch):
        with pytest.raises(dlbridge.ExchangeError, match=f"argument 'x'.*got a {kind} tensor; "):
            call(x, x)


def test_symbolic_trace_records_the_operator(torch) -> None:
    kernel = make_mul("symbolic")
    own = dlbridge.wrap(lambda x: x * 2, "symbolic::own(x: f64[n]) -> f64[n]", abi="python:torch")
    x = torch.rand(3, dtype=torch.double)
    for call in (kernel, kernel.torch):
        module = torch.fx.symbolic_trace(lambda x: own(call(x, x, alpha=3.0)) + 1)  # noqa: B023
        assert "symbolic.mul" in module.code
        assert torch.allclose(module(x), 6 * x * x + 1)
    with pytest.raises(dlbridge.ExchangeError, match="stands for a tensor that is traced"):
        torch.fx.symbolic_trace(lambda x: dlbridge.to_numpy(x))

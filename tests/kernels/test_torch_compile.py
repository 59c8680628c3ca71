"""torch.compile, torch.export and torch.library.opcheck take kernels for operators of torch."""

from __future__ import annotations

import io
import shutil

import pytest
from kernels.torch_samples import MUL, compiled, make_mul
from kernels.torch_samples import ops as ops

import dlbridge
from dlbridge.errors import ArgumentError

pytestmark = pytest.mark.timeout(180)


@pytest.fixture
def torch(framework):
    return framework("torch")


@pytest.fixture
def compile_(torch):
    """Return torch.compile without a graph break, through AOTAutograd but not its C++ backend."""
    torch.compiler.reset()
    return lambda function: torch.compile(function, fullgraph=True, backend="aot_eager")


@pytest.fixture
def xy(torch):
    return torch.rand(3, 4, dtype=torch.double), torch.rand(3, 4, dtype=torch.double)


def test_the_kernel_itself_and_its_torch_function_compile(torch, ops, compile_, xy) -> None:
    x, y = xy
    function = ops.mul.torch
    for compiled_ in (
        compile_(lambda x, y: ops.mul(x, y, alpha=2.0) + 1),
        compile_(lambda x, y: ops.mul.torch(x, y, alpha=2.0) + 1),
        compile_(lambda x, y: function(x, y=y, alpha=2.0) + 1),
        compile_(lambda x, y: ops.torch_ops.mul(x, y, alpha=2.0) + 1),
    ):
        assert torch.allclose(compiled_(x, y), 2 * x * y + 1)


def test_a_kernel_that_was_never_called_compiles(torch, compile_, xy) -> None:
    """The operator is registered, and the function made, while dynamo traces."""
    first = make_mul("compile_first")
    second = make_mul("compile_second")
    x, y = xy
    assert torch.equal(compile_(lambda x, y: first(x, y))(x, y), x * y)
    assert torch.equal(compile_(lambda x, y: second.torch(x, y))(x, y), x * y)
    assert torch.equal(second.torch(x, y), x * y)


@pytest.mark.full
def test_dynamo_is_not_imported_for_it(run_python, framework) -> None:
    """It takes seconds; functions that exist by then are told when it is imported."""
    framework("torch")
    run_python(
        f"""
        import sys, torch, dlbridge
        from kernels.torch_samples import compiled
        kernel = compiled("mul", "late::{MUL}")
        function = kernel.torch
        x = torch.ones(3, dtype=torch.double)
        function(x, x)
        assert "torch._dynamo" not in sys.modules
        result = torch.compile(lambda x: function(x, x) + 1, fullgraph=True, backend="eager")(x)
        assert result.tolist() == [2.0] * 3
        """
    ).check()


def test_buffers_writes_scalars_and_optional_arguments_compile(torch, ops, compile_, xy) -> None:
    x, y = xy

    def writes(x, y, out):
        return ops.mul(x, y, alpha=2.0, out=out) + 1

    def adds(x):
        ops.add_to(x, by=3)
        return x * 2

    out, z = torch.zeros_like(x), torch.zeros(4)
    assert torch.allclose(compile_(writes)(x, y, out), 2 * x * y + 1)
    assert torch.equal(out, 2 * x * y)
    assert compile_(adds)(z).tolist() == [6.0] * 4
    assert z.tolist() == [3.0] * 4
    f = torch.arange(4.0)
    affine = compile_(lambda f: ops.affine(f, None, m=3, sign="negative") + ops.affine(f, f))
    assert torch.equal(affine(f), -f)


def test_scalars_and_sizes_may_be_symbolic(torch, ops, xy) -> None:
    function = torch.compile(
        lambda f, m: ops.affine(f, m=m), fullgraph=True, backend="aot_eager", dynamic=True
    )
    for size in (3, 5, 7):
        assert torch.equal(function(torch.ones(size), size), torch.full((size,), float(size)))


@pytest.fixture
def data_dependent(torch):
    """Let dynamo trace numbers and sizes that come out of data."""
    torch.compiler.reset()
    with torch._dynamo.config.patch(
        capture_scalar_outputs=True, capture_dynamic_output_shape_ops=True
    ):
        yield


@pytest.mark.parametrize("call", ["the kernel", "its function", "the operator"])
def test_numbers_may_come_out_of_data(torch, ops, compile_, data_dependent, call: str) -> None:
    """A dimension of the result, and a number that is none; also backward."""
    kernel = compiled("ones_at", "numbers::fill(x: f32[k], *, rows: int) -> f32[rows]")
    calls = {
        "the kernel": (kernel, ops.affine),
        "its function": (kernel.torch, ops.affine.torch),
        "the operator": (torch.ops.numbers.fill, ops.torch_ops.affine),
    }
    fill, affine = calls[call]

    def f(x, i):
        return fill(x, rows=(i.max() + 1).item()).sum(), affine(x, m=i.max().item())

    function, x = compile_(f), torch.ones(2)
    for largest in (3, 6):
        size, scaled = function(x, torch.tensor([0, largest]))
        assert size == largest + 1
        assert scaled.tolist() == [largest] * 2


def test_a_number_out_of_data_that_is_no_extent_is_refused_when_it_is_known(
    torch, compile_, data_dependent
) -> None:
    kernel = compiled("ones_at", "numbers::fill(x: f32[k], *, rows: int) -> f32[rows]")
    function = compile_(lambda x, i: kernel(x, rows=i.item()))
    assert function(torch.ones(1), torch.tensor(2)).shape == (2,)
    with pytest.raises(RuntimeError, match="argument 'rows': expected int >= 0"):
        function(torch.ones(1), torch.tensor(-1))


def test_sizes_may_come_out_of_data(torch, ops, compile_, data_dependent) -> None:
    """Two that must agree are compared when the kernel is called."""
    function = compile_(lambda x, y: ops.affine(x[x > 0], y[y > 0], m=2))
    for count in (1, 3):
        x = torch.cat([torch.ones(count), -torch.ones(2)])
        assert function(x, x.flip(0)).tolist() == [3.0] * count
    refused = ArgumentError, RuntimeError  # from Python and from C
    with pytest.raises(refused, match=r"argument 'y': expected f32\[n=1\]\?, got f32\[2\]"):
        function(torch.tensor([1.0, -1]), torch.ones(2))
    unequal = compile_(lambda x: ops.affine(x[x > 0], torch.nn.functional.pad(x[x > 0], (0, 1))))
    with pytest.raises(Exception, match="argument 'y': expected"):  # they can never agree
        unequal(x)


def test_gradients_flow_through_compiled_code(torch, ops, compile_, xy) -> None:
    x, y = (each.requires_grad_() for each in xy)
    compiled_ = compile_(lambda x, y: ops.mul(x, y, alpha=2.0).sum())
    for found, expected in zip(torch.autograd.grad(compiled_(x, y), (x, y)), (y, x), strict=True):
        assert torch.equal(found, 2 * expected)
    transformed = compile_(torch.vmap(torch.func.grad(lambda x, y: ops.mul(x, y).sum())))
    assert torch.equal(transformed(x.detach(), y.detach()), y)


@pytest.mark.full
def test_inductor_compiles_forward_and_backward(torch, xy) -> None:
    """Only a missing C++ compiler skips this: inductor's errors are ours until shown otherwise."""
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("inductor needs a C++ compiler")
    kernel = make_mul("compile_inductor")
    x, y = (each.requires_grad_() for each in xy)
    loss = torch.compile(lambda x, y: kernel(x.sin(), y).cos().sum(), fullgraph=True)(x, y)
    found = torch.autograd.grad(loss, (x, y))
    expected = torch.autograd.grad((x.sin() * y).cos().sum(), (x, y))
    for one, other in zip(found, expected, strict=True):
        assert torch.allclose(one, other)


def test_python_kernels_of_others_compile_as_operators(torch, compile_) -> None:
    kernel = dlbridge.wrap(
        lambda x: x + 1, "compile_numpy::next(x: f32[n]) -> f32[n]", abi="python:numpy"
    )
    x = torch.arange(3.0)
    assert torch.equal(compile_(lambda x: kernel(x) * 2)(x), (x + 1) * 2)


def test_numbers_may_be_symbolic_and_a_name_wrapped_again_on_any_torch(torch, compile_) -> None:
    """Torch 2.11 could not trace how arguments were told from those that are left out."""

    def wrap(step):
        return dlbridge.wrap(
            lambda x, b=None, *, m=1: x * m + step + (0 if b is None else b),
            "compile_again::affine(x: f32[n], b: f32[n]? = None, *, m: int = 1) -> f32[n]",
            abi="python:numpy",
        )

    x = torch.arange(3.0)
    for step in range(3):
        kernel = wrap(step)
        function = torch.compile(
            lambda x, m, kernel=kernel: kernel(x, m=m), fullgraph=True, backend="aot_eager",
            dynamic=True,
        )  # fmt: skip
        for m in (2, 5):
            assert torch.equal(function(x, m), x * m + step)
        assert torch.equal(compile_(lambda x, kernel=kernel: kernel(x, x, m=3))(x), x * 4 + step)
        operator = getattr(torch.ops.compile_again, kernel.key.partition("::")[2])
        assert torch.equal(operator(x), x + step)


# ---- optional tensors that are written -----------------------------------------------------------


def make_tap(torch, name, schema="x: f32[n], y!: f32[n]? = None, *, z!: f32[n]? = None"):
    def tap(x, y, z):
        if y is not None:
            y[:] = x + 1
        if z is not None:
            z[:] = x + 2
        return 2 * x

    return dlbridge.wrap(tap, f"optional::{name}({schema}) -> f32[n]", abi="python:numpy")


LEFT_OUT = {
    "both": lambda kernel, x, y: kernel(x),
    "both, by None": lambda kernel, x, y: kernel(x, None, z=None),
    "the first": lambda kernel, x, y: kernel(x, z=y),
    "the second": lambda kernel, x, y: kernel(x, y),
}


@pytest.mark.parametrize("which", LEFT_OUT)
def test_graphs_have_no_written_argument_that_is_left_out(torch, which) -> None:
    """Inductor cannot compile it; what is left out has an overload without it."""
    kernel, targets = make_tap(torch, "tap"), []

    def backend(graph, _):
        targets.extend(node.target for node in graph.graph.nodes if node.op == "call_function")
        assert not any(None in (*node.args, *node.kwargs.values()) for node in graph.graph.nodes)
        return graph.forward

    torch.compiler.reset()
    function = torch.compile(
        lambda x, y: LEFT_OUT[which](kernel, x, y) + 1, fullgraph=True, backend=backend
    )
    x, y, expected = torch.ones(3), torch.zeros(3), torch.zeros(3)
    assert function(x, y).tolist() == (LEFT_OUT[which](kernel, x, expected) + 1).tolist()
    assert y.tolist() == expected.tolist()
    assert str(targets[0]).partition(".without_")[1]
    arguments = (x,) if "both" in which else (x, y)
    assert torch.library.opcheck(targets[0], arguments[: len(targets[0]._schema.arguments)])
    with pytest.raises(Exception, match="requires_grad"):
        function(torch.ones(3, requires_grad=True), torch.zeros(3))


@pytest.mark.full
def test_inductor_compiles_calls_that_leave_out_what_would_be_written(torch) -> None:
    if not any(map(shutil.which, ("g++", "clang++", "c++"))):
        pytest.skip("inductor needs a C++ compiler")
    kernel = make_tap(torch, "inductor")
    torch.compiler.reset()
    for call in LEFT_OUT.values():
        x, y, expected = torch.ones(3), torch.zeros(3), torch.zeros(3)
        function = torch.compile(lambda x, y, call=call: call(kernel, x, y) + 1, fullgraph=True)
        assert function(x, y).tolist() == (call(kernel, x, expected) + 1).tolist()
        assert y.tolist() == expected.tolist()


# ---- what does not fit ---------------------------------------------------------------------------


def test_mismatches_are_told_while_tracing(torch, ops, compile_, xy) -> None:
    x, y = xy
    text = r"argument 'y': expected f64\[...=\(3, 4\)\], got f32\[3, 4\] \(torch.Tensor, cpu\)"
    with pytest.raises(Exception, match=text):
        compile_(lambda x, y: ops.mul(x, y))(x, y.float())
    with pytest.raises(Exception, match="requires_grad"):
        compile_(lambda x, y, out: ops.mul(x, y, out=out))(x.requires_grad_(), y, y.clone())


def test_a_kernel_that_fails_says_so_from_compiled_code(torch, ops, compile_) -> None:
    with pytest.raises(RuntimeError, match="fail: no luck with 2 tensors"):
        compile_(lambda x: ops.fail(x))(torch.ones(3))


def test_fake_tensors_never_reach_a_kernel(torch, framework) -> None:
    """Their data pointer is NULL."""
    from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode

    def never(x):
        raise AssertionError("called")

    kernel = dlbridge.wrap(never, "compile_fake::f(x: f32[n]) -> f32[n, 2*n]", abi="python:numpy")
    with FakeTensorMode():
        x = torch.ones(5)
        for result in (kernel(x), kernel.torch(x), torch.ops.compile_fake.f(x)):
            assert isinstance(result, FakeTensor)
            assert result.shape == (5, 10)


# ---- export, tracing, checks ---------------------------------------------------------------------


@pytest.mark.parametrize("strict", [False, True])
def test_export_keeps_the_operator_and_a_dynamic_dimension(torch, ops, xy, strict) -> None:
    class Module(torch.nn.Module):
        def forward(self, x, y):
            return ops.mul(x, y, alpha=2.0) + 1

    rows = torch.export.Dim("rows")
    shapes = {"x": {0: rows}, "y": {0: rows}}
    program = torch.export.export(Module(), xy, dynamic_shapes=shapes, strict=strict)
    stream = io.BytesIO()
    torch.export.save(program, stream)
    stream.seek(0)
    program = torch.export.load(stream)
    targets = [node.target for node in program.graph.nodes if node.op == "call_function"]
    assert ops.torch_ops.mul.default in targets
    x = torch.rand(7, 4, dtype=torch.double)
    assert torch.allclose(program.module()(x, x), 2 * x * x + 1)


def test_other_tracers_see_the_operator(torch, ops, xy) -> None:
    from torch.fx.experimental.proxy_tensor import make_fx

    x, y = xy
    code = make_fx(lambda x, y: ops.mul(x, y))(x, y).code
    assert f"torch.ops.{ops.namespace}.mul.default" in code
    assert code.count("torch.ops") == 1


def test_opcheck_is_content(torch, ops, xy) -> None:
    """Schemas, aliases, autograd, fake kernels and AOT dispatch, as torch itself checks them."""
    x, y = xy
    f = torch.arange(4.0)
    grad = [each.clone().requires_grad_() for each in xy]
    for overload, args, kwargs in (
        (ops.torch_ops.mul.default, grad, {"alpha": 2.0}),
        (ops.torch_ops.mul.out, (x, y, torch.zeros_like(x)), {}),
        (ops.torch_ops.affine.default, (f,), {}),
        (ops.torch_ops.affine.default, (f, f), {"m": 3, "sign": "negative", "ten": True}),
        (ops.torch_ops.affine.out, (f,), {"m": 3, "out": torch.zeros(4)}),
        (ops.torch_ops.add_to.default, (f.clone(),), {"by": 2}),
        (ops.torch_ops.minmax.default, (f,), {}),
    ):
        found = torch.library.opcheck(overload, args, kwargs)
        assert set(found.values()) == {"SUCCESS"}


# ---- names that are wrapped again ----------------------------------------------------------------


def test_a_name_wrapped_again_has_an_operator_of_its_own(torch, ops, compile_, xy) -> None:
    """Held overloads and the graphs of them run the kernel that they were made for."""
    x, y = xy
    make_mul(ops.namespace, "again")
    held = ops.torch_ops.again.default
    graph = compile_(lambda x, y: held(x, y) + 1)
    assert torch.equal(graph(x, y), x * y + 1)
    add_to = compiled("add_to", f"{ops.namespace}::again(x!: f32[n], *, by: int = 1)")
    assert add_to.key == f"{ops.namespace}::again__v2"
    f = torch.arange(4.0)
    add_to(f)
    ops.torch_ops.again__v2(f, by=2)
    assert f.tolist() == [3.0, 4.0, 5.0, 6.0]
    assert torch.library.opcheck(ops.torch_ops.again__v2.default, (f,))
    assert ops.torch_ops.again.default is held
    assert torch.equal(held(x, y), x * y)
    assert torch.equal(graph(x, y), x * y + 1)
    x.requires_grad_()
    assert torch.equal(torch.autograd.grad(held(x, y).sum(), x)[0], y)


def test_a_kernel_whose_name_was_taken_goes_on(torch, ops, xy) -> None:
    """Also one that had no operator by then."""
    x, y = xy
    first = make_mul(ops.namespace, "taken")
    second = compiled("mul", f"{ops.namespace}::{MUL.replace('mul', 'taken')}")
    x.requires_grad_()
    assert torch.equal(torch.autograd.grad(first(x, y).sum(), x)[0], y)
    with pytest.raises(dlbridge.KernelError, match="it has no gradient"):
        second(x, y).sum().backward()
    assert torch.equal(torch.func.grad(lambda x: first(x, y).sum())(x.detach()), y)


def test_a_function_of_torch_that_needs_out_compiles(torch, compile_) -> None:
    def twice(x, out):
        out.copy_(2 * x)

    kernel = dlbridge.wrap(twice, "compiled_out::twice(x: f32[n]) -> f32[n]", abi="python:torch")
    x = torch.arange(3.0)
    assert torch.equal(compile_(lambda x: kernel(x) + 1)(x), 2 * x + 1)
    out = torch.zeros(3)
    compile_(lambda x, out: kernel(x, out=out))(x, out)
    assert torch.equal(out, 2 * x)

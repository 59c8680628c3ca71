"""`autocast=`: what a kernel's arguments are cast to in regions of torch.autocast."""

from __future__ import annotations

import shutil
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest

import dlbridge
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.testing import check_kernel

torch = pytest.importorskip("torch")
bf16, f16, f32, f64 = torch.bfloat16, torch.float16, torch.float32, torch.float64

SOURCE = r"""
#include "dlbridge_kernel.hpp"

DLB_KERNEL(multiply) {
    dlb::visit<dlb::float16, dlb::bfloat16, float, double>(call.tensor(0), [&](auto type) {
        using T = decltype(type);
        auto x = call.flat<const T>(0), y = call.flat<const T>(1);
        auto out = call.flat<T>(2);
        for (int64_t i = 0; i < x.size(); i++)
            out[i] = T(x[i] * y[i]);
    });
}

DLB_KERNEL(plus_one) {  // f32 alone
    auto x = call.flat<const float>(0);
    auto out = call.flat<float>(1);
    for (int64_t i = 0; i < x.size(); i++)
        out[i] = x[i] + 1;
}
"""
MULTIPLY = "autocast::{}(x: float[*s], y: float[*s]) -> float[*s]"


def region(dtype: Any = bf16, **options: Any) -> Any:
    """Return a region of torch.autocast on the CPU."""
    return torch.autocast("cpu", dtype=dtype, **options)


@pytest.fixture(scope="module")
def kernels() -> Any:
    """Kernels in C++: `lower` and `full` multiply, by the region's dtype and in float32."""
    if shutil.which("c++") is None:
        pytest.skip("there is no C++ compiler")
    found = SimpleNamespace()
    for name, rule in {"lower": "lower_precision_fp", "full": "float32", "wide": "promote",
                       "half": torch.float16, "plain": None}.items():  # fmt: skip
        kernel = dlbridge.compile_cpp(
            SOURCE, "multiply", MULTIPLY.format(name), autocast=rule, vjp=_multiply_vjp
        )
        setattr(found, name, kernel)
    found.plus_one = dlbridge.compile_cpp(
        SOURCE, "plus_one", "autocast::plus_one(x: f32[*s]) -> f32[*s]", autocast="float32"
    )
    return found


def _multiply_vjp(grad: Any, x: Any, y: Any) -> Any:
    return grad * y, grad * x


@pytest.fixture
def xy() -> Any:
    """Two float32 tensors that float16 and bfloat16 round."""
    generator = torch.Generator().manual_seed(3)
    return tuple(torch.rand(3, 4, generator=generator, requires_grad=True) for _ in range(2))


# ---- rules ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [bf16, f16])
def test_lower_precision_is_the_dtype_of_the_region(kernels, xy, dtype) -> None:
    x, y = xy
    with region(dtype):
        found = kernels.lower(x, y)
        also = kernels.lower(x.to(bf16), y.to(f16))
    assert torch.equal(found, kernels.lower(x.to(dtype), y.to(dtype)))
    assert found.dtype == also.dtype == dtype


@pytest.mark.parametrize("needs_gradient", [True, False])
def test_calls_before_the_region_change_nothing_within(kernels, xy, needs_gradient) -> None:
    """Calls of kernels without a rule are as short within as they are outside."""
    x, y = (each.detach().requires_grad_(needs_gradient) for each in xy)
    for _ in range(3):
        outside = kernels.lower(x, y), kernels.plain(x, y)
        with region():
            within = kernels.lower(x, y), kernels.plain(x, y)
        assert [each.dtype for each in outside + within] == [f32, f32, bf16, f32]
        assert torch.equal(outside[1], within[1])
        assert all(each.requires_grad == needs_gradient for each in outside + within)


def test_a_dtype_is_that_dtype_in_every_region(kernels, xy) -> None:
    x, y = xy
    with region(bf16):
        assert torch.equal(kernels.half(x, y), kernels.plain(x.half(), y.half()))
        assert torch.equal(kernels.full(x.half(), y), kernels.plain(x.half().float(), y))
        assert torch.equal(kernels.plus_one(x.bfloat16()), x.bfloat16().float() + 1)


def test_promote_is_the_widest_of_the_arguments(kernels, xy) -> None:
    x, y = xy
    with region(bf16):
        assert kernels.wide(x.half(), y).dtype == f32
        assert kernels.wide(x.half(), y.half()).dtype == f16
        assert kernels.wide(x.half(), y.bfloat16()).dtype == f32


def test_without_a_rule_and_outside_a_region_nothing_is_cast(kernels, xy) -> None:
    x, y = xy
    for call in (lambda: kernels.lower(x, y), lambda: kernels.half(x, y)):
        assert call().dtype == f32
        with region():
            assert call().dtype != f32
            with region(enabled=False):
                assert call().dtype == f32
            assert kernels.plain(x, y).dtype == f32
            with torch.autocast("cpu", dtype=f16):  # the inner one counts
                assert kernels.lower(x, y).dtype == f16


def test_float64_is_left_alone(kernels, xy) -> None:
    x, y = (each.double() for each in xy)
    with region():
        assert torch.equal(kernels.lower(x, y), x * y)
        with pytest.raises(UnsupportedTypeError, match="'y'"):
            kernels.lower(x, y.float())


def test_an_argument_of_one_dtype_is_cast_to_it() -> None:
    @dlbridge.wrap(
        schema="autocast::own(x: f16|bf16[n], by: f32[], at: i64[n], m: f32[]? = None) -> like x",
        abi="python:torch", autocast="lower_precision_fp", vjp=lambda grad, by: (grad * by, None),
    )  # fmt: skip
    def scaled(x, by, at, m):
        assert (by.dtype, at.dtype) == (f32, torch.int64)
        return (x * by).to(x.dtype)

    x, at = torch.rand(3), torch.arange(3)
    with region():
        assert scaled(x, torch.tensor(2.0, dtype=bf16), at).dtype == bf16
        assert scaled(x, torch.tensor(2.0), at, x[0].half()).dtype == bf16


# ---- what may be around a call -------------------------------------------------------------------


def test_gradients_have_the_dtypes_of_the_arguments(kernels, xy) -> None:
    x, y = xy
    with region():
        found = kernels.lower(x, y)
        second = kernels.lower(found, y)
        inside = torch.autograd.grad(second.float().sum(), xy, retain_graph=True)
    outside = torch.autograd.grad(second.float().sum(), xy)
    right = torch.autograd.grad(
        kernels.plain(kernels.plain(x.bfloat16(), y.bfloat16()), y.bfloat16()).float().sum(), xy
    )
    for each in (inside, outside):
        assert [one.dtype for one in each] == [f32, f32]
        assert all(map(torch.equal, each, right))


def test_torch_func_differentiates_and_batches(kernels, xy) -> None:
    x, y = (each.detach() for each in xy)

    def loss(x, y):
        return kernels.lower.torch(x, y).float().sum()

    with region():
        assert torch.equal(torch.func.grad(loss)(x, y), y.bfloat16().float())
        batch = torch.vmap(kernels.lower.torch)(x, y)
        assert torch.equal(batch, kernels.lower(x, y))
        assert batch.dtype == bf16
        shared = torch.vmap(kernels.full.torch, (0, None))(x.half(), y[0])
        assert torch.equal(shared, kernels.plain(x.half().float(), y[0].expand(3, 4)))
        rows = torch.vmap(torch.func.grad(loss))(x, y)
        assert torch.equal(rows, y.bfloat16().float())
        _, moved = torch.func.jvp(lambda x: kernels.lower.torch(x, y), (x,), (torch.ones_like(x),))
        assert torch.equal(moved, y.bfloat16())
        empty = torch.vmap(kernels.lower.torch)(x[:0], y[:0])
        assert (empty.dtype, empty.shape) == (bf16, (0, 4))


def test_a_batch_rule_of_its_own_gets_what_was_cast(xy) -> None:
    def rule(size, is_batched, x, y):
        assert not torch.is_autocast_enabled("cpu")
        return x * y

    def multiply(x, y):
        return x * y

    kernel = dlbridge.wrap(
        multiply, MULTIPLY.format("own_rule"), abi="python:numpy", autocast="float32", batch=rule
    )
    x, y = (each.detach() for each in xy)
    with region():
        assert torch.equal(torch.vmap(kernel.torch)(x.bfloat16(), y), x.bfloat16().float() * y)


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_compiled_programs_have_the_casts(kernels, xy, backend: str) -> None:
    x, y = xy

    def program(x, y):
        with region(f16):
            found = kernels.lower(x, y)
            wide = kernels.full(found, y)
            with region(enabled=False):
                return found, wide, kernels.lower(x, y)

    function = torch.compile(program, fullgraph=True, backend=backend)
    found, right = function(x, y), program(x, y)
    for each, other in zip(found, right, strict=True):
        torch.testing.assert_close(each, other, rtol=0, atol=0)
    gradients = [torch.autograd.grad([one.float().sum() for one in each], xy)
                 for each in (found, right)]  # fmt: skip
    torch.testing.assert_close(*gradients, rtol=0, atol=0)

    around = torch.compile(lambda x, y: kernels.lower(x, y), fullgraph=True, backend=backend)
    assert around(x, y).dtype == f32
    with region():
        assert around(x, y).dtype == bf16
    assert around(x, y).dtype == f32


def test_exported_programs_have_the_casts(kernels, xy) -> None:
    class Module(torch.nn.Module):
        def forward(self, x, y):
            with region(f16):
                return kernels.lower(x, y)

    args = tuple(each.detach() for each in xy)
    program = torch.export.export(Module(), args)
    for each in (program, program.run_decompositions()):
        assert torch.equal(each.module()(*args), Module()(*args))
    casts = [node for node in program.run_decompositions().graph.nodes if "to_copy" in node.name]
    assert len(casts) == 2


def test_a_function_of_torch_runs_without_autocast(xy) -> None:
    """It has no vjp= of its own, so that torch looks into it."""

    def matrix(x, y):
        assert not torch.is_autocast_enabled("cpu")
        return x @ y.T

    schema = "autocast::{}(x: float[n, m], y: float[k, m]) -> float[n, k]"
    full = dlbridge.wrap(matrix, schema.format("full_matrix"), abi="python:torch", autocast="f32")
    x, y = xy
    right = x.bfloat16().float() @ y.T
    with region():
        found = full(x.bfloat16(), y)
        assert torch.equal(found, right)
        (gradient,) = torch.autograd.grad(found.sum(), y)
        assert gradient.dtype == f32
    compiled = torch.compile(full, fullgraph=True, backend="aot_eager")
    with region():
        assert torch.equal(compiled(x.bfloat16(), y), right)
    out = torch.empty(3, 3, dtype=bf16)
    other = dlbridge.wrap(lambda x, y: x @ y.T, schema.format("others"), abi="python:torch",
                          autocast="float32")  # fmt: skip
    with region():
        other(x.bfloat16().detach(), y.bfloat16().detach(), out=out)  # as they are
    assert torch.equal(out, x.bfloat16() @ y.bfloat16().T)


def test_lists_are_cast_together(kernels) -> None:
    def rule(xs, by, grad):
        return [each * by for each in grad], None

    @dlbridge.wrap(
        schema="autocast::each(xs: float[n][k], by: float[]) -> float[n][k]",
        abi="python:torch", autocast="promote", vjp=rule,
    )  # fmt: skip
    def each(xs, by):
        return [x * by for x in xs]

    xs, by = [torch.rand(2, requires_grad=True), torch.rand(2).half()], torch.tensor(3.0).half()
    with region():
        found = each(xs, by)
        assert [one.dtype for one in found] == [f32, f32]
        (gradient,) = torch.autograd.grad(found[0].sum(), xs[0])
        assert torch.equal(gradient, torch.full((2,), 3.0))
        assert [one.dtype for one in each([xs[1]], by)] == [f16]
        batch = torch.vmap(each.torch, (0, None))([xs[0].detach()[None], xs[1][None]], by)
        assert [one.dtype for one in batch] == [f32, f32]
    assert each.torch([], by) == []


def test_results_whose_size_the_kernel_says() -> None:
    @dlbridge.wrap(schema="autocast::keep(x: f16|f32[n]) -> f16|f32[k<=n]", abi="python:numpy",
                   autocast="float16")  # fmt: skip
    def keep(x):
        return x[x > 0]

    x = torch.tensor([1.0, -1.0, 2.0])
    with region():
        assert torch.equal(keep(x), torch.tensor([1.0, 2.0]).half())
        assert keep.bounded(x)[0].dtype == f16
    assert keep(x).dtype == f32


def test_eight_threads_have_regions_of_their_own(kernels) -> None:
    schema = "autocast::first(x: float[n], y: float[n]) -> float[n]"
    fresh = dlbridge.wrap(kernels.plain, schema, autocast="lower_precision_fp")
    start, dtypes = Barrier(8), [bf16, f16, None, bf16, f16, None, bf16, None]

    def work(dtype):
        x = torch.rand(5)
        start.wait()
        with region(dtype or bf16, enabled=dtype is not None):
            return {fresh(x, x).dtype for _ in range(20)}

    with ThreadPoolExecutor(8) as pool:
        assert [*pool.map(work, dtypes)] == [{dtype or f32} for dtype in dtypes]


# ---- arguments that are written ------------------------------------------------------------------


def test_an_argument_that_is_written_is_never_cast() -> None:
    def add(p, x):
        p += x

    kernel = dlbridge.wrap(
        add, "autocast::add(p!: A=float[n], x: A[n])", abi="python:torch", autocast="float32"
    )
    p, x = torch.zeros(2), torch.ones(2, dtype=bf16)
    with region():
        kernel(p, x)
        assert torch.equal(p, torch.ones(2))
        half = torch.zeros(2, dtype=f16)
        for call in (kernel, kernel.torch):
            with pytest.raises(
                UnsupportedTypeError, match=r"'p': expected f32 within torch.autocast"
            ):
                call(half, x)
        assert torch.equal(half, torch.zeros(2, dtype=f16))
        with region(enabled=False):
            kernel(half, x.half())
    assert torch.equal(half, torch.ones(2, dtype=f16))


def test_optional_arguments_that_are_written_may_be_left_out_under_the_compiler() -> None:
    def norm(x, seen):
        if seen is not None:
            seen += 1
        return x * 2

    kernel = dlbridge.wrap(
        norm, "autocast::norm(x: float[n], seen!: i64[]? = None) -> float[n]", abi="python:numpy",
        autocast="float16",
    )  # fmt: skip
    compiled = torch.compile(lambda x: kernel(x), fullgraph=True, backend="aot_eager")
    x = torch.rand(3)
    with region():
        assert compiled(x).dtype == kernel(x).dtype == f16


def test_calls_with_out_are_left_alone(kernels, xy) -> None:
    x, y = (each.detach() for each in xy)
    out = torch.empty(3, 4)
    with region():
        kernels.lower(x, y, out=out)
    assert torch.equal(out, x * y)


# ---- declarations --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("schema", "rule", "text"),
    [
        ("(x: float[n])", "lower", "autocast must be 'float16', .*got 'lower'"),
        ("(x: float[n])", "int8", "autocast must be .*got 'int8'"),
        ("(x: float[n])", "float64", "autocast must be .*got 'float64'"),
        ("(x: float[n])", "lower_precision", "did you mean 'lower_precision_fp'"),
        ("(x: f32|f16[n])", "bfloat16", r"'x' of f32\|f16 does not take bf16"),
        ("(x: f32|f16[n])", "lower_precision_fp", "does not take bf16.*'float16' always casts"),
        ("(x: f16|bf16[n])", "promote", "does not take f32"),
        ("(x: f32[n], y: i64[n])", "float16", "casts arguments to f16, which no argument takes"),
        ("(x: i64[n])", "float32", "which no argument takes"),
        ("(x: f64[n])", "float32", "which no argument takes"),
    ],
)
def test_a_rule_that_the_schema_does_not_take(schema: str, rule: Any, text: str) -> None:
    with pytest.raises(ArgumentError, match=text):
        dlbridge.wrap(lambda *_: None, f"autocast::wrong{schema} -> f32[n]", abi="python:numpy",
                      autocast=rule)  # fmt: skip


def test_a_rule_needs_a_schema_and_goes_with_it() -> None:
    with pytest.raises(ArgumentError, match="autocast= needs a schema"):
        dlbridge.wrap(lambda x: x, autocast="float32", abi="python:torch")
    schema = "autocast::rewrapped(x: float[n]) -> float[n]"
    first = dlbridge.wrap(lambda x: x * 1, schema, abi="python:numpy", autocast="half")
    assert first.autocast == "float16"
    assert dlbridge.wrap(first, gil="hold").autocast == "float16"
    again = dlbridge.wrap(first, autocast="promote")
    assert (again.autocast, first.autocast) == ("promote", "float16")
    assert dlbridge.wrap(first, "autocast::other(x: f64[n]) -> f64[n]").autocast is None
    x = torch.rand(3)
    with region():
        assert (first(x).dtype, again(x).dtype) == (f16, f32)


def test_a_rule_does_not_cast_to_a_dtype_that_the_call_says() -> None:
    kernel = dlbridge.wrap(
        lambda x, y, to: (x * 1).astype(to),
        "autocast::cast(x: A=float[n], y: to[n], *, to: dtype) -> to[n]",
        abi="python:numpy", autocast="float16",
    )  # fmt: skip
    x = torch.rand(3)
    with region():
        assert kernel(x, x, to=torch.float32).dtype == f32


def test_check_kernel_looks_at_the_rule(kernels) -> None:
    def multiply(x, y):
        return x * y

    report = check_kernel(
        kernels.lower, multiply, frameworks=["torch"], skip=("threads", "opcheck", "gradcheck")
    )
    rows = {row.check: row.status for row in report.rows}
    assert rows["autocast"] == "passed"
    report = check_kernel(
        kernels.plain, multiply, frameworks=["torch"], skip=("threads", "opcheck", "gradcheck")
    )
    rows = {row.check: row.text for row in report.rows}
    assert rows["autocast"] == "the kernel has no autocast="

"""Triton kernels: what their parameters are given, grids, constants; with Triton itself if it is
installed, interpreted on the CPU or compiled on a GPU.
"""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError
from dlbridge.kernels.kinds import cuda_launch, triton
from dlbridge.kernels.schema import Schema

torch = pytest.importorskip("torch")


def stand_in(name: str = "JITFunction") -> type:
    """Return a class that dlbridge takes for one of Triton's, whose launches are noted."""

    class Kernel:
        def __init__(self, fn: Any, **more: Any) -> None:
            self.fn, self.launches = fn, []
            vars(self).update(more)

        def __getitem__(self, grid: Any) -> Any:
            def launch(*args: Any, **kwargs: Any) -> None:
                own = inspect.signature(self.fn).parameters
                meta = {key: value for key, value in kwargs.items() if key in own}
                self.launches.append((grid(meta), args, kwargs))

            return launch

    Kernel.__name__, Kernel.__module__ = name, "triton.runtime.jit"
    return Kernel


constexpr = type("constexpr", (), {})


def scale(x_ptr, out_ptr, a, n, BLOCK: constexpr):
    """The names of this kernel's parameters say their meaning."""


def launch_of(kernel: Any, schema: str, abi: str | None = None, **options: Any) -> Any:
    """Return the function that launches a kernel."""
    given = {"grid": 1, "block": None, "shared": None, "constants": None} | options
    return triton.launcher(kernel, abi, Schema.parse(schema), cuda_launch.read_launch(**given))


GRID = {"grid": "(n + BLOCK - 1) // BLOCK", "constants": {"BLOCK": 4, "num_warps": 8}}


# ---- names ---------------------------------------------------------------------------------------


def test_parameters_are_given_what_their_names_say() -> None:
    kernel = stand_in()(scale)
    x, out = torch.zeros(10), torch.zeros(10)
    launch_of(kernel, "t::scale(x: f32[n], *, a: float) -> f32[n]", **GRID)(x, a=2.0, out=out)
    ((grid, args, kwargs),) = kernel.launches
    assert grid == (3,)
    assert args == ()
    assert kwargs.pop("x_ptr") is x
    assert kwargs.pop("out_ptr") is out
    assert kwargs == {"a": 2.0, "n": 10, "BLOCK": 4, "num_warps": 8}


def test_results_and_packs_have_names_of_their_own() -> None:
    def kernel(first_ptr, second, size, m): ...

    made = stand_in()(kernel)
    schema = "t::both(first!: f32[*size], y: f32[m]?) -> (second: f32[*size])"
    x, out = torch.zeros(2, 3), torch.zeros(2, 3)
    launch_of(made, schema, grid=("size", 2), constants={"m": 1})(x, None, out=out)
    ((grid, _, kwargs),) = made.launches
    assert grid == (6, 2)
    assert kwargs["size"] == 6
    assert kwargs["first_ptr"] is x
    assert kwargs["second"] is out


def test_positions_say_what_names_do_not() -> None:
    def matmul(pa, pb, pc, stride_a, stride_b, half, BLOCK: constexpr = 2): ...

    kernel = stand_in()(matmul)
    schema = "t::matmul(a: f32[m,k], b: f32[k,n]) -> f32[m,n]"
    launch = launch_of(kernel, schema, "(a, b, out, k, n, m // 2)", grid=("m", "n"))
    a, b, out = torch.zeros(4, 3), torch.zeros(3, 5), torch.zeros(4, 5)
    launch(a, b, out=out)
    ((grid, args, kwargs),) = kernel.launches
    assert grid == (4, 5)
    assert all(got is wanted for got, wanted in zip(args, (a, b, out), strict=False))
    assert args[3:] == (3, 5, 2)
    assert kwargs == {}


def test_configurations_and_heuristics_say_constants() -> None:
    """The grid is computed when they are chosen."""

    def kernel(x, n, BLOCK: constexpr, EVEN: constexpr): ...

    config = type("Config", (), {"kwargs": {"BLOCK": 8}})()
    inner = stand_in()(kernel)
    tuned = stand_in("Autotuner")(inner, configs=[config])
    chosen = stand_in("Heuristics")(tuned, values={"EVEN": None})
    launch_of(chosen, "t::tuned(x!: f32[n])", grid="n // BLOCK")
    with pytest.raises(ArgumentError, match="parameter 'EVEN' means nothing here"):
        launch_of(tuned, "t::tuned(x!: f32[n])", grid="n // BLOCK")


# ---- what wrap refuses ---------------------------------------------------------------------------

SCHEMA = "t::refused(x: f32[n], *, a: float) -> f32[n]"
REFUSED: dict[str, tuple[str, str | None, dict[str, Any], str]] = {
    "no grid": (SCHEMA, None, {"grid": None}, "needs grid="),
    "block": (SCHEMA, None, GRID | {"block": 128}, "Triton chooses block"),
    "unknown in grid": (SCHEMA, None, GRID | {"grid": "q"}, "grid: 'q' means nothing here"),
    "no text of a grid": (SCHEMA, None, GRID | {"grid": "n +"}, "t::refused: grid"),
    "constant missing": (SCHEMA, None, {"grid": 1}, "constants={'BLOCK'"),
    "unknown name": (
        "t::refused(x: f32[m], *, a: float) -> f32[m]", None, GRID | {"grid": 1}, "parameter 'n'",
    ),
    "result without memory": (
        "t::refused(x: f32[n], *, a: float) -> (y: f32[n], out: f32[n])", None, GRID,
        "must write 'y'",
    ),
    "too many": (SCHEMA, "(x, out, a, n, 1, 2)", GRID, "has 6 arguments"),
    "only in an expression": (
        "t::refused(x: f32[2*n], *, a: float) -> f32[2*n]", None, GRID,
        "parameter 'n' means nothing here",
    ),
    "a dtype": (
        "t::refused(x: f32[n], *, a: dtype) -> a[n]", None, GRID,
        "parameter 'a' means nothing here",
    ),
    "unknown in abi": (SCHEMA, "(x, out, q)", GRID, "abi: 'q' means nothing here"),
}  # fmt: skip


@pytest.mark.parametrize("kind", REFUSED)
def test_arguments_that_do_not_fit_are_refused_by_wrap(kind: str) -> None:
    schema, abi, options, text = REFUSED[kind]
    with pytest.raises(ArgumentError, match=text.replace("(", r"\(").replace("{", r"\{")):
        dlbridge.wrap(stand_in()(scale), schema, abi=abi, **options)


def test_a_schema_is_needed() -> None:
    with pytest.raises(ArgumentError, match="Triton kernel scale needs a schema"):
        dlbridge.wrap(stand_in()(scale), **GRID)


def test_constants_are_of_triton() -> None:
    with pytest.raises(ArgumentError, match="constants must be a dict"):
        dlbridge.wrap(stand_in()(scale), SCHEMA, constants=[("BLOCK", 1)])
    with pytest.raises(ArgumentError, match="GPU kernels"):
        dlbridge.wrap(np.sin, "t::host(x: f32[n])", constants={"BLOCK": 1})


def test_compiled_kernels_are_for_cuda() -> None:
    kernel = dlbridge.wrap(stand_in()(scale), SCHEMA.replace("refused", "cuda"), **GRID)
    assert kernel.platforms == ("cuda",)
    assert kernel.kind == "a Triton kernel"


# ---- calls ---------------------------------------------------------------------------------------


class Interpreted(stand_in("InterpretedFunction")):
    """A kernel that is run in Python, block by block, on tensors of the CPU."""

    def __getitem__(self, grid: Any) -> Any:
        def launch(*args: Any, **kwargs: Any) -> None:
            kwargs.pop("num_warps", None)
            bound = inspect.signature(self.fn).bind(*args, **kwargs)
            (blocks,) = grid(bound.arguments)
            for program in range(blocks):
                self.fn.program = program
                self.fn(*bound.args, **bound.kwargs)

        return launch


Interpreted.__name__, Interpreted.__module__ = "InterpretedFunction", "triton.runtime.interpreter"


def scale_blocks(x_ptr, out_ptr, a, n, BLOCK: constexpr):
    begin = scale_blocks.program * BLOCK
    end = min(begin + BLOCK, n)
    out_ptr[begin:end] = x_ptr[begin:end] * a


def test_interpreted_kernels_run_on_the_cpu_in_every_framework() -> None:
    kernel = dlbridge.wrap(
        Interpreted(scale_blocks), "t::blocks(x: f32[n], *, a: float) -> f32[n]", **GRID
    )
    assert kernel.platforms == ("cpu",)
    x = np.arange(10, dtype=np.float32)
    assert np.array_equal(kernel(x, a=3.0), 3 * x)
    assert torch.equal(kernel(torch.from_numpy(x), a=3.0), torch.from_numpy(3 * x))
    out = torch.zeros(10)
    assert kernel(torch.from_numpy(x)[:], a=2.0, out=out) is out
    assert torch.equal(out, torch.from_numpy(2 * x))


def test_interpreted_kernels_run_in_jax() -> None:
    jax = pytest.importorskip("jax")
    kernel = dlbridge.wrap(
        Interpreted(scale_blocks), "t::jax_blocks(x: f32[n], *, a: float) -> f32[n]", **GRID
    )
    x = jax.numpy.arange(10, dtype="float32")
    assert np.array_equal(jax.jit(lambda x: kernel(x, a=2.0))(x), 2 * np.arange(10))


# ---- with Triton ---------------------------------------------------------------------------------


@pytest.fixture
def language() -> Any:
    """Return triton.language."""
    pytest.importorskip("triton")
    import triton.language

    return triton.language


def make_scale(jit: Any, tl: Any) -> Any:
    """Return a kernel of Triton's."""
    space = {"tl": tl}

    def scale(x_ptr, out_ptr, a, n, BLOCK: tl.constexpr):
        places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
        inside = places < n
        tl.store(out_ptr + places, a * tl.load(x_ptr + places, mask=inside), mask=inside)

    scale.__globals__.update(space)
    return jit(scale)


def test_triton_itself_interprets(language: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import triton

    monkeypatch.setattr(triton.knobs.runtime, "interpret", True)
    kernel = dlbridge.wrap(
        make_scale(triton.jit, language), "t::real(x: f32[n], *, a: float) -> f32[n]", **GRID
    )
    x = np.arange(10, dtype=np.float32)
    assert np.array_equal(kernel(x, a=3.0), 3 * x)


@pytest.mark.gpu
@pytest.mark.parametrize("is_tuned", [False, True], ids=["jit", "autotune"])
def test_triton_compiles_and_runs_on_the_callers_stream(language: Any, is_tuned: bool) -> None:
    import triton

    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    made, options = make_scale(triton.jit, language), GRID
    if is_tuned:
        configs = [triton.Config({"BLOCK": block}, num_warps=4) for block in (128, 256)]
        made = triton.autotune(configs=configs, key=["n"])(made)
        options = {"grid": GRID["grid"]}
    name = "tuned" if is_tuned else "compiled"
    kernel = dlbridge.wrap(made, f"t::{name}(x: f32[n], *, a: float) -> f32[n]", **options)
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        x = torch.arange(1000.0, device="cuda")
        torch.cuda._sleep(10_000_000)
        x += 1
        assert torch.equal(kernel(x, a=3.0), 3 * x)
        compiled = torch.compile(lambda x: kernel(x, a=3.0) + 1, fullgraph=True)
        assert torch.equal(compiled(x), 3 * x + 1)
    stream.synchronize()


@pytest.mark.gpu
def test_triton_kernels_are_captured(language: Any) -> None:
    """A kernel compiled before is launched on the stream that is captured."""
    import triton

    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    kernel = dlbridge.wrap(
        make_scale(triton.jit, language), "t::captured(x: f32[n], *, a: float) -> f32[n]", **GRID
    )
    x, out = torch.ones(1000, device="cuda"), torch.zeros(1000, device="cuda")
    kernel(x, a=3.0, out=out)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kernel(x, a=3.0, out=out)
    x.fill_(5)
    graph.replay()
    assert torch.equal(out, torch.full_like(out, 15))

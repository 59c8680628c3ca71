"""Kernels with JAX arrays: eager calls, jit, scalars, dtypes, writing in place, refusals."""

from __future__ import annotations

import gc
import importlib
import inspect
import itertools
import struct
import threading
from typing import Any

import hypothesis
import numpy as np
import pytest
from hypothesis import strategies as st
from measuring import growth, objects, until

import dlbridge
from dlbridge._core import native
from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.kernels.wrap import wrap


@pytest.fixture(scope="module")
def kernels() -> Any:
    from kernels import jax_kernels

    return jax_kernels


@pytest.fixture
def x64(jax: Any) -> Any:
    jax.config.update("jax_enable_x64", True)
    yield
    jax.config.update("jax_enable_x64", False)


def error_class(jax: Any) -> tuple[type[Exception], ...]:
    """What JAX raises of XLA's errors: by version, by the error's code, by the path of the call."""
    return getattr(jax.errors, "JaxRuntimeError", RuntimeError), RuntimeError, ValueError


# ---- calls ---------------------------------------------------------------------------------------


def test_an_eager_call_gives_a_jax_array(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x, y = jnp.arange(4.0), jnp.ones(4)
    for call in (axpy.jax, axpy):
        for _ in range(3):
            out = call(x, y, alpha=2.0)
            assert isinstance(out, jax.Array)
            assert out.tolist() == [1, 3, 5, 7]
    assert axpy.jax(x, y).tolist() == [1, 2, 3, 4]
    assert axpy.jax(y=y, x=x, alpha=0.5).tolist() == [1, 1.5, 2, 2.5]
    assert axpy.jax(x, x).tolist() == [0, 2, 4, 6]


def test_a_form_of_call_is_not_mistaken_for_another(jnp: Any, kernels: Any) -> None:
    """Keywords in another order, and values that compare equal, are calls of their own."""
    axpy = kernels.axpy()
    x, y = jnp.arange(4.0), jnp.full(4, 10.0)
    for _ in range(2):
        assert axpy.jax(x=x, y=y).tolist() == [10, 11, 12, 13]
        assert axpy.jax(y=x, x=y).tolist() == [10, 11, 12, 13]
        assert axpy.jax(x, x).tolist() == [0, 2, 4, 6]
        assert axpy.jax(x, y).tolist() == [10, 11, 12, 13]
        assert axpy.jax(y, x, alpha=-1.0).tolist() == [-10, -9, -8, -7]
        signs = [np.signbit(axpy.jax(y, -jnp.zeros(4), alpha=a)[0]) for a in (0.0, -0.0)]
        assert signs == [False, True]


def test_the_bound_function_is_a_builtin_with_a_signature(jax: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    assert inspect.isbuiltin(axpy.jax)
    assert axpy.jax is axpy.jax
    parameters = inspect.signature(axpy.jax).parameters
    assert list(parameters)[:3] == ["x", "y", "alpha"]
    assert parameters["alpha"].kind is inspect.Parameter.KEYWORD_ONLY


def test_several_results_are_a_tuple(jnp: Any, kernels: Any) -> None:
    extent = kernels.make(
        "extent", "jaxtests::extent(x: f32[..., n]) -> (low: f32[...], sum: f32[...])"
    )
    low, total = extent.jax(jnp.array([[3.0, 1.0], [2.0, 5.0]]))
    assert low.tolist() == [1, 2]
    assert total.tolist() == [4, 7]


def test_memory_is_shared_with_the_kernel(jax: Any, jnp: Any, kernels: Any) -> None:
    """The addresses that the kernel sees are those of the arrays."""
    where = kernels.where()
    x, y = jnp.arange(100.0), jnp.ones(100)
    out, at = where.jax(x, y)
    seen = np.asarray(at).view(np.uint64).tolist()
    assert seen == [each.unsafe_buffer_pointer() for each in (x, y, out)]


def test_odd_layouts_come_in_row_major(jax: Any, jnp: Any, kernels: Any) -> None:
    copy = kernels.make("copy", "jaxtests::copy_float(x: f32[...]) -> f32[...]")
    x = jnp.arange(12.0).reshape(3, 4)
    assert copy.jax(x.T).tolist() == np.asarray(x).T.tolist()
    turned = jax.jit(lambda x: copy.jax(x.T[1:, ::-1]))
    assert turned(x).tolist() == np.asarray(x).T[1:, ::-1].tolist()


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 1), (2, 3, 4)])
def test_any_rank_and_no_elements(jax: Any, jnp: Any, kernels: Any, shape: tuple[int]) -> None:
    copy = kernels.make("copy", "jaxtests::copy_float(x: f32[...]) -> f32[...]")
    x = jnp.ones(shape)
    for out in (copy.jax(x), jax.jit(copy.jax)(x)):
        assert out.shape == shape
        assert np.array_equal(out, x)


# ---- scalars -------------------------------------------------------------------------------------

SHOW = (
    "jaxtests::show(x: f64[n], y: f64[n]? = None, *, i: int = 3, f: float = 0.5, b: bool = False, "
    "s: str = 'four', o: float? = None) -> f64[11]"
)
DEFAULTS = [1, 3, 2, 0.5, 1, 0, 3, 4, 0, 0, 1]


def changed(**places: float) -> list[float]:
    values: list[float] = list(DEFAULTS)
    for name, value in places.items():
        values[int(name[1:])] = value
    return values


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, DEFAULTS),
        ({"i": -(2**40)}, changed(_1=-(2**40))),
        ({"f": 2}, changed(_3=2)),
        ({"b": True}, changed(_5=1)),
        ({"s": "żółw"}, changed(_7=7)),
        ({"s": ""}, changed(_7=0)),
        ({"o": 0.0}, changed(_8=2)),
        ({"i": 7, "o": 1.5}, changed(_1=7, _8=2, _9=1.5)),
        ({"f": float("inf")}, changed(_3=float("inf"))),
    ],
)
@pytest.mark.usefixtures("x64")
def test_scalars_of_every_kind_arrive(
    jax: Any, jnp: Any, kernels: Any, given: dict[str, Any], expected: list[float]
) -> None:
    show = kernels.make("show", SHOW)
    x = jnp.ones(2)
    jitted = jax.jit(lambda x: show.jax(x, **given))
    for _ in range(2):
        assert show.jax(x, **given).tolist() == expected
        assert jitted(x).tolist() == expected
    assert show.jax(x, x, **given).tolist() == [*expected[:10], 0]
    assert show.jax(x, y=None, **given).tolist() == expected


@pytest.mark.usefixtures("x64")
def test_traced_scalars_are_operands(jax: Any, jnp: Any, kernels: Any) -> None:
    show = kernels.make("show", SHOW)
    jitted = jax.jit(lambda x, i, f, b, o: show.jax(x, i=i, f=f, b=b, o=o))
    got = jitted(jnp.ones(2), 8, 0.25, True, jnp.bfloat16(1.5))
    assert got.tolist() == changed(_1=8, _3=0.25, _5=1, _8=2, _9=1.5)
    assert jitted._cache_size() == 1
    jitted(jnp.ones(2), 9, 0.75, False, jnp.bfloat16(2.5))
    assert jitted._cache_size() == 1
    with pytest.raises(UnsupportedTypeError, match=r"expected float, got complex64\[\]"):
        jax.jit(lambda f: show.jax(jnp.ones(2), f=f))(jnp.complex64(1))
    with pytest.raises(UnsupportedTypeError, match=r"expected float, got float64\[3\]"):
        jax.jit(lambda f: show.jax(jnp.ones(2), f=f))(jnp.ones(3))


def test_a_new_value_in_each_step_does_not_compile_each_time(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    """And keeps all 64 bits, although JAX has only 32 here."""
    schema = "jaxtests::bits(x: f32[n], *, f: float, i: int) -> u32[4]"
    bits = kernels.make("bits", schema)
    x = jnp.ones(1)
    calls = dlbridge.kernels.binding.binding("jax").calls(bits)
    for step in range(40):
        f, i = 0.1 * step + 1e-14, 2**60 + step
        out = np.asarray(bits.jax(x, f=f, i=i)).tobytes()
        assert struct.unpack("<dq", out) == (f, i)
    assert len(calls.programs) < 12


def without_python(calls: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let no call of the kernel reach Python from here on."""

    def fail(*_: Any) -> None:
        raise AssertionError("the call was served in Python")

    monkeypatch.setattr(type(calls), "prepare", fail)


def test_numbers_that_vary_go_to_the_program_without_python(
    jnp: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The block that C makes is that of `make_block`, and of each type that was seen."""
    bits = kernels.make("bits", "jaxtests::bits(x: f32[n], *, f: float, i: int) -> u32[4]")
    x = jnp.ones(1)
    for step in range(20):
        bits.jax(x, f=float(step), i=step)
    without_python(dlbridge.kernels.binding.binding("jax").calls(bits), monkeypatch)
    make_block = importlib.import_module("dlbridge.frameworks.jax.program").make_block

    @hypothesis.given(
        st.floats(), st.integers(-(2**63), 2**63 - 1), st.sampled_from([bits.jax, bits])
    )
    @hypothesis.settings(max_examples=60, deadline=None)
    def check(f: float, i: int, call: Any) -> None:
        assert np.asarray(call(x, f=f, i=i)).tobytes() == make_block([f, i]).tobytes()

    check()
    for converted in ({"f": np.float64(2)}, {"f": 1}):
        with pytest.raises(AssertionError, match="in Python"):
            bits.jax(x, **{"f": 1.5, "i": 2, **converted})
    for i in (2**63, -(2**63) - 1):
        with pytest.raises(ArgumentError, match="at most 64 bits"):
            bits.jax(x, f=1.5, i=i)


@pytest.mark.usefixtures("x64")
def test_numbers_that_vary_beside_defaults_and_text(
    jnp: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    show = kernels.make("show", SHOW)
    x = jnp.ones(2)
    for step in range(20):
        show.jax(x, f=step / 4, b=True)
        show.jax(x, s="ab", b=step % 2 == 0, i=step)
    without_python(dlbridge.kernels.binding.binding("jax").calls(show), monkeypatch)
    for step in range(20, 30):
        expected = changed(_3=step / 4, _5=1)
        assert show.jax(x, f=step / 4, b=True).tolist() == expected
        expected = changed(_1=-step, _5=step % 3 == 0, _7=2)
        assert show.jax(x, s="ab", b=step % 3 == 0, i=-step).tolist() == expected
    with pytest.raises(AssertionError, match="in Python"):
        show.jax(x, s="other", b=True, i=3)


def test_numbers_that_vary_with_a_derivative_in_python(
    jnp: Any, kernels: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    axpy = kernels.axpy()
    x = jnp.arange(3.0)
    for step in range(20):
        axpy.jax(x, x, alpha=float(step))
    without_python(dlbridge.kernels.binding.binding("jax").calls(axpy), monkeypatch)
    assert axpy.jax(x, x, alpha=40.5).tolist() == [0, 41.5, 83]


def test_a_number_that_jax_lacks_is_no_operand_of_its_own(jnp: Any) -> None:
    """Behind the block, JAX gets the numbers as it takes Python's."""
    x = jnp.ones(1)
    caller = native.JaxCaller(lambda *_: "in Python", type(x), "call", "")
    caller.remember((None, 1, 0.5), (), (0,), lambda *given: given, (1, 2), 1, True)
    call = caller.function()
    for i in (2**31 - 1, -(2**31), 0):
        array, block, *shadows = call(x, i)
        assert array is x
        assert struct.unpack("<qd", block.tobytes()) == (i, 0.5)
        assert shadows == [i, 0.5]
    assert {call(x, i) for i in (2**31, -(2**31) - 1, 2**80, True, 1.0)} == {"in Python"}


def test_no_more_programs_are_kept_than_needed(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    calls = dlbridge.kernels.binding.binding("jax").calls(axpy)
    x = jnp.ones(2)
    for step in range(30):
        assert float(jax.jit(lambda x, a=float(step): axpy.jax(x, x, alpha=a))(x)[0]) == step + 1
    assert len(calls.programs) <= 64


# ---- dtypes --------------------------------------------------------------------------------------


DTYPES = """
    bool int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 bfloat16 float32 float64
    complex64 complex128 float8_e4m3fn float8_e5m2 float8_e4m3b11fnuz float8_e4m3fnuz
    float8_e5m2fnuz float8_e3m4 float8_e4m3 float8_e8m0fnu int4 uint4 int2 uint2 float4_e2m1fn
"""
FEW_DTYPES = ("bool", "int64", "bfloat16", "complex128", "float8_e5m2", "uint4", "float4_e2m1fn")
NARROW = ("int4", "uint4", "int2", "uint2", "float4_e2m1fn")


@pytest.mark.fast(lambda name: name in FEW_DTYPES)
@pytest.mark.usefixtures("x64")
@pytest.mark.parametrize("name", DTYPES.split())
def test_every_dtype_passes(jax: Any, jnp: Any, kernels: Any, name: str) -> None:
    """Bytes arrive as they are; elements narrower than a byte are packed for the kernel."""
    if not hasattr(jnp, name if name != "bool" else "bool_"):
        pytest.skip(f"this JAX has no {name}")
    copy = kernels.make("copy", "jaxtests::copy_any(x: any[n]) -> any[n]")
    try:
        x = jnp.array([0, 1, 1, 0, 1]).astype(name)
        jax.jit(lambda x: x.reshape(1, 5))(x).block_until_ready()
    except Exception as error:
        pytest.skip(f"this JAX cannot compute with {name}: {type(error).__name__}")
    if np.dtype(x.dtype).name in NARROW and jax.__version_info__ < (0, 6):
        with pytest.raises(UnsupportedTypeError, match=r"from 0\.6 on"):
            copy.jax(x)
        return
    for out in (copy.jax(x), jax.jit(copy.jax)(x)):
        assert out.dtype == x.dtype
        assert np.asarray(out).tobytes() == np.asarray(x).tobytes()


def test_wide_dtypes_need_x64(jnp: Any, kernels: Any) -> None:
    """JAX would narrow them silently."""
    wide = kernels.make("copy", "jaxtests::widen(x: f32[n]) -> f64[n]")
    with pytest.raises(UnsupportedTypeError, match="result 'out': JAX has float64 only with"):
        wide.jax(jnp.ones(2))


@pytest.mark.usefixtures("x64")
def test_one_kernel_serves_several_dtypes(jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    for dtype in ("float32", "float64"):
        out = axpy.jax(jnp.ones(3, dtype), jnp.ones(3, dtype), alpha=0.1)
        assert out.dtype == dtype
        assert np.allclose(out, 1.1)


# ---- in place ------------------------------------------------------------------------------------


def test_arguments_written_in_place_are_returned_after_the_results(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    swap = kernels.swap()
    x, y = jnp.arange(3.0), jnp.full(3, 7.0)
    for call in (swap.jax, jax.jit(swap.jax), swap):
        out, new = call(x, y)
        assert out.tolist() == [7, 8, 9]
        assert new.tolist() == [0, 1, 2]
        assert y.tolist() == [7, 7, 7]
        assert x.tolist() == [0, 1, 2]


def test_only_new_values_are_returned_where_there_are_no_results(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    scale = kernels.scale()
    x = jnp.arange(3.0)
    held = np.asarray(x).copy()
    for _ in range(3):
        assert scale.jax(x, factor=3.0).tolist() == [0, 3, 6]
        assert scale.jax(x, factor=jnp.float32(2)).tolist() == [0, 2, 4]
    assert np.array_equal(x, held)


def test_a_donated_argument_is_written_where_it_lies(jax: Any, jnp: Any, kernels: Any) -> None:
    scale = kernels.scale()
    if jax.__version_info__ < (0, 4, 38):
        pytest.skip("this JAX cannot tell XLA what is written in place")
    step = jax.jit(lambda x: scale.jax(x, factor=2.0), donate_argnums=0)
    x = jnp.arange(64.0) + 0
    at = x.unsafe_buffer_pointer()
    out = step(x)
    assert out.unsafe_buffer_pointer() == at
    assert x.is_deleted()
    assert out[3] == 6
    with pytest.raises(ExchangeError, match=r"'x': .* was deleted or donated"):
        scale.jax(x, factor=2.0)


def test_values_of_jax_never_change(jax: Any, jnp: Any, kernels: Any) -> None:
    """Whatever way they reach a kernel that writes: memory is compared before and after."""
    scale, swap = kernels.scale(), kernels.swap()
    source = np.arange(64, dtype="float32")
    x = jnp.asarray(source.copy())
    view = np.from_dlpack(x) if hasattr(x, "__dlpack__") else np.asarray(x)
    twice = jax.jit(lambda x: (scale.jax(x, factor=2.0), x, swap.jax(x, x)))
    doubled, same, (_, new) = twice(x)
    assert np.array_equal(doubled, 2 * source)
    assert np.array_equal(same, source)
    assert np.array_equal(new, source)
    scale.jax(x, factor=5.0)
    scale(x, factor=5.0)
    assert np.array_equal(view, source)


def test_out_is_refused(jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x = jnp.ones(3)
    for call in (axpy.jax, axpy):
        with pytest.raises(ExchangeError, match="immutable") as caught:
            call(x, x, out=x)
        assert caught.value.reason == "readonly"
    assert x.tolist() == [1, 1, 1]


# ---- without a schema ----------------------------------------------------------------------------


def test_without_a_schema_the_last_argument_is_the_new_value(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    mul = kernels.make("mul", None)
    x, y, z = jnp.arange(3.0), jnp.full(3, 2.0), jnp.zeros(3)
    for call in (mul.jax, jax.jit(mul.jax)):
        assert call(x, y, z).tolist() == [0, 2, 4]
    assert z.tolist() == [0, 0, 0]
    with pytest.raises(UnsupportedTypeError, match="schema"):
        mul.jax(x, y, z, 2.0)


# ---- refusals ------------------------------------------------------------------------------------

MISMATCHES = [
    (((3,), "float32"), ArgumentError, r"argument 'y': expected f32[n=4], got f32[3] (jax.Array, "),
    (((4,), "int32"), UnsupportedTypeError, r"expected f32[n=4], got i32[4] (jax.Array, "),
    (((4, 1), "float32"), ArgumentError, r"expected f32[n=4], got f32[4, 1] (jax.Array, "),
]


@pytest.mark.parametrize(("like", "kind", "text"), MISMATCHES, ids=["extent", "dtype", "rank"])
def test_a_mismatch_is_told_in_the_one_form_eager_and_traced(
    jax: Any, jnp: Any, kernels: Any, like: Any, kind: type[Exception], text: str
) -> None:
    mul = kernels.make("mul", "jaxtests::mul_vectors(x: f32[n], y: f32[n]) -> f32[n]")
    x, y = jnp.ones(4), jnp.zeros(*like)
    for call in (mul.jax, jax.jit(mul.jax), mul, lambda x, y: jax.eval_shape(mul.jax, x, y)):
        with pytest.raises(kind) as caught:
            call(x, y)
        assert text in str(caught.value)
        assert str(caught.value).startswith("jaxtests::mul_vectors: ")


def test_arrays_of_other_frameworks_are_refused(jnp: Any, kernels: Any) -> None:
    axpy = kernels.axpy()
    x = jnp.ones(4)
    for call, args in [
        (axpy.jax, (x, np.ones(4, "float32"))),
        (axpy.jax, (np.ones(4, "float32"), np.ones(4, "float32"))),
        (axpy, (x, np.ones(4, "float32"))),
        (axpy.jax, (x, [1.0, 2.0, 3.0, 4.0])),
    ]:
        with pytest.raises(UnsupportedTypeError):
            call(*args)
    for args, kwargs in [((), {}), ((x,), {}), ((x, x, x), {}), ((x, x), {"beta": 1.0})]:
        with pytest.raises(UnsupportedTypeError):
            axpy.jax(*args, **kwargs)


def test_a_key_array_is_refused(jax: Any, kernels: Any) -> None:
    copy = kernels.make("copy", "jaxtests::copy_any(x: any[n]) -> any[n]")
    with pytest.raises(UnsupportedTypeError):
        copy.jax(jax.random.split(jax.random.key(0), 3))


def test_a_failing_kernel_raises_its_own_text(jax: Any, jnp: Any, kernels: Any) -> None:
    """Eager calls raise KernelError; in a program of the user's it is JAX that raises."""
    fail = kernels.make("fail", "jaxtests::fail(x: f32[n]) -> f32[n]")
    x = jnp.ones(4)
    for _ in range(3):
        for call in (fail.jax, fail):
            with pytest.raises(KernelError, match=r"^jaxtests::fail: no luck with 2 tensors$"):
                call(x)
    with pytest.raises(error_class(jax), match="jaxtests::fail: no luck with 2 tensors") as caught:
        jax.jit(lambda x: fail.jax(x) + 1)(x).block_until_ready()
    assert "failure" not in str(caught.value)
    assert "INTERNAL" in str(caught.value)


def call_target(jax: Any, *args: Any, shape: Any = (4,), **attributes: Any) -> Any:
    """Call XLA's target as a program from elsewhere may do it: with nothing checked before."""
    from dlbridge.frameworks.jax import program as jax_program

    struct_ = jax.ShapeDtypeStruct(shape, "float32")
    call = jax_program.ffi.ffi_call("dlbridge", struct_, vmap_method="sequential")
    return jax.jit(lambda *args: call(*args, **attributes))(*args).block_until_ready()


def test_programs_that_do_not_fit_the_kernel_are_refused(jax: Any, jnp: Any, kernels: Any) -> None:
    """A program may be older than the kernel; nothing is written before the check."""
    axpy, x = kernels.axpy(), jnp.ones(4)
    kernels.scale(), kernels.swap()
    binding = dlbridge.kernels.binding.binding("jax")
    assert binding.name == "jax"
    one = np.float64(1)
    cases = [
        ((x, x), {"kernel": "jaxtests::nowhere"}, "NOT_FOUND.*jaxtests::nowhere.*wrap"),
        ((x, x), {}, "NOT_FOUND.*kernel"),
        ((x,), {"kernel": "jaxtests::axpy", "s00": one}, "passes 1 tensors, 1 results"),
        ((x, x), {"kernel": "jaxtests::axpy"}, "INVALID_ARGUMENT.*scalar 0"),
        ((x, x), {"kernel": "jaxtests::axpy", "s00": "a"}, "scalar 0: expected float, got str"),
        ((x, x), {"kernel": "jaxtests::axpy", "s00": one, "s01": one}, "2 scalars"),
        ((x, x), {"kernel": "jaxtests::axpy", "s99": one}, "scalar 99"),
        ((x, x), {"kernel": "jaxtests::axpy", "s00": one, "layout": "tm"}, "2 tensors, 0 results"),
        (
            (x, x),
            {"kernel": "jaxtests::swap", "layout": "mt"},
            "2 tensors, 0 results|which tensors",
        ),
        ((x, x), {"kernel": "jaxtests::scale", "layout": "tm", "s00": one}, "passes 2 tensors"),
        ((x,), {"kernel": "jaxtests::scale", "layout": "m"}, "scalar 0: expected float, got none"),
        ((x, x), {"kernel": "jaxtests::axpy", "layout": "tttt"}, "fewer operands"),
        ((x, x), {"kernel": "jaxtests::axpy", "layout": "t#Af"}, r"no uint32\[2\]"),
        (
            (x, jnp.ones(5)),
            {"kernel": "jaxtests::axpy", "s00": one},
            r"expected .*n=4.*got f32\[5\]",
        ),
        ((x,), {"kernel": "jaxtests::scale", "s00": one}, "passes 1 tensors, 1 results"),
        ((), {"kernel": "jaxtests::axpy", "s00": one}, "passes 0 tensors"),
    ]
    for args, attributes, text in cases:
        with pytest.raises(error_class(jax), match=text):
            call_target(jax, *args, **attributes)
    assert x.tolist() == [1, 1, 1, 1]
    with pytest.raises(error_class(jax), match=r"argument 'out': expected .*n=4.*got f32\[9\]"):
        call_target(jax, x, x, shape=(9,), kernel="jaxtests::axpy", s00=one)
    assert axpy.jax(x, x).tolist() == [2] * 4


def test_a_size_is_compared_with_the_shapes_in_every_call(jax: Any, jnp: Any) -> None:
    """Also where the same thread has just made a call of the same shapes, whose checks it kept."""
    schema = "jaxtests::sized(x: f32[k], *, k: int) -> f32[k]"
    wrap(lambda x, k: x * 2, schema, abi="python:numpy")
    x = jnp.ones(4)
    for _ in range(2):
        fits = call_target(jax, x, kernel="jaxtests::sized", s00=np.int64(4))
        assert fits.tolist() == [2] * 4
        with pytest.raises(error_class(jax), match=r"argument 'x': expected .*k=3.*got f32\[4\]"):
            call_target(jax, x, kernel="jaxtests::sized", s00=np.int64(3))


def test_an_exported_program_says_that_the_kernel_of_its_name_takes_other_arguments(
    jax: Any, jnp: Any, kernels: Any
) -> None:
    """As in a process that has wrapped another kernel under the name."""
    wrap(lambda x: x, "jaxtests::renewed(x: f32[n]) -> f32[n]", abi="python:numpy")
    x = jnp.ones(4)
    for key in ("jaxtests::renewed", "jaxtests::renewed__v12"):
        assert call_target(jax, x, kernel=key).tolist() == [1] * 4
    for key in ("jaxtests::renewed__v", "jaxtests::renewed__x2", "jaxtests::__v2", "__v2", "2"):
        with pytest.raises(error_class(jax), match="no kernel of this name is known"):
            call_target(jax, x, kernel=key).block_until_ready()
    with pytest.raises(error_class(jax), match="trace and export it again"):
        call_target(jax, x, kernel="jaxtests::renewed", s00=np.int64(4)).block_until_ready()


# ---- many calls ----------------------------------------------------------------------------------


@pytest.mark.full
def test_nothing_is_left_behind(jax: Any, jnp: Any, kernels: Any) -> None:
    """Neither by calls nor by failures; kernels that nobody holds go with their programs."""
    fail = kernels.make("fail", "jaxtests::fail(x: f32[n]) -> f32[n]")
    axpy = kernels.axpy()
    x = jnp.ones(8)

    steps = itertools.count()

    def step() -> None:
        axpy.jax(x, x, alpha=float(next(steps)))
        axpy.jax(x, x)
        with pytest.raises(KernelError):
            fail.jax(x)

    for _ in range(300):
        step()
    gc.collect()
    before = native.live()
    assert growth(step, 300, objects) < 0.5
    assert native.live() == before


def test_threads_call_at_once(jax: Any, jnp: Any, kernels: Any) -> None:
    axpy, mul = kernels.axpy(), kernels.mul()
    x = jnp.arange(16.0)
    jitted = jax.jit(lambda x: mul.jax(axpy.jax(x, x, alpha=2.0), x))
    wrong: list[Any] = []

    def work(seed: int) -> None:
        mine = x + seed
        expected = np.asarray(3 * mine * mine)
        for _ in range(1000):
            for out in (jitted(mine), mul.jax(axpy.jax(mine, mine, alpha=2.0), mine)):
                if not np.array_equal(out, expected):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_the_gil_is_free_while_a_kernel_runs(jnp: Any, kernels: Any) -> None:
    """It ends when Python says so in another thread, or fails after a minute."""
    meet = kernels.make("meet", "jaxtests::meet(x: f32[n], *, at: int) -> f32[n]")
    x = jnp.ones(4)
    said = np.zeros(2, np.int32)  # by the kernel, and to it
    calls: list[Any] = []

    def call() -> None:
        calls.append(meet.jax(x, at=said.ctypes.data).block_until_ready())

    thread = threading.Thread(target=call)
    thread.start()
    until(lambda: said[0], "the kernel")
    said[1] = 1
    thread.join()
    assert calls


def test_second_derivatives_beside_a_kernel_whose_results_are_integers(jax: Any) -> None:
    """As beside x.argmax(), which has none."""
    schema = "jax_tests::place(x: f32[n]) -> i32[]"
    kernel = dlbridge.wrap(lambda x: np.asarray(x.argmax(), "int32"), schema, abi="python:numpy")
    x = jax.numpy.array([1.0, 0.0, 3.0])

    def function(x: Any) -> Any:
        return (x * x * kernel(x)).sum()

    twice = jax.grad(lambda x: jax.grad(function)(x).sum())
    assert twice(x).tolist() == jax.jit(twice)(x).tolist() == [4, 4, 4]
    assert jax.hessian(function)(x).tolist() == np.diag([4.0] * 3).tolist()
    assert jax.jvp(jax.grad(function), (x,), (x,))[1].tolist() == [4, 0, 12]

"""compile_cpp and dlbridge_kernel.hpp: views, dispatch, errors, loops over several threads."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, KernelError
from dlbridge.testing import check_kernel

INCLUDE = Path(__file__).resolve().parents[2] / "include"
COMPILERS = ("c++", "g++", "clang++")
HEADER = '#include "dlbridge_kernel.hpp"\n'
ROWS = """
DLB_KERNEL(row_sums) {
    dlb::visit<float, double>(call.tensor(0), [&](auto type) {
        using T = decltype(type);
        auto x = call.view<const T, 2>(0);
        auto out = call.view<T, 1>(1);
        dlb::parallel_for(0, x.extent(0), 1, [&](int64_t i) {
            T sum = 0;
            for (int64_t j = 0; j < x.extent(1); j++)
                sum += x(i, j);
            out(i) = sum;
        });
    });
}
"""
ROWS_SCHEMA = "(x: f32|f64[n, m]) -> f32|f64[n]"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Give each test a cache of its own."""
    if not any(map(shutil.which, COMPILERS)):
        pytest.skip("there is no C++ compiler here")
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


def compile_(name: str, body: str, schema: str = "(x: f64[n]) -> f64[n]", **options: Any) -> Any:
    """Return a kernel; a body without DLB_KERNEL is put into one."""
    text = body if "DLB_KERNEL" in body else f"DLB_KERNEL({name}) {{ {body} }}"
    return dlbridge.compile_cpp(HEADER + text, name, f"cpp::{name}{schema}", **options)


@pytest.mark.fast(lambda flags: not flags)
@pytest.mark.parametrize("flags", [(), ("-fopenmp",), ("-UNDEBUG",)], ids=["", "openmp", "checks"])
def test_views_dispatch_and_parallel_loops(flags: tuple[str, ...]) -> None:
    try:
        kernel = compile_("row_sums", ROWS, ROWS_SCHEMA, flags=flags, layout="strided")
    except ArgumentError as error:
        if "-fopenmp" not in flags or "omp" not in str(error):
            raise
        pytest.skip("the compiler has no OpenMP")
    check_kernel(kernel, lambda x: x.sum(axis=1), frameworks=["numpy"], sizes={"n": 97})


def test_it_is_an_operator_of_every_framework(framework: Callable[[str], Any]) -> None:
    framework("torch"), framework("jax")
    kernel = compile_(
        "squares",
        "auto x = call.flat<const double>(0); auto out = call.flat<double>(1);"
        "for (int64_t i = 0; i < x.size(); i++) out[i] = x[i] * x[i];",
        "(x: f64[...]) -> f64[...]",
        vjp=lambda x, grad: 2 * x * grad,
    )
    check_kernel(kernel, lambda x: x * x, frameworks=["torch", "jax"])


@pytest.mark.full
def test_the_same_text_is_compiled_once(cache: Path) -> None:
    compile_("row_sums", ROWS, ROWS_SCHEMA)
    (library,) = cache.iterdir()
    before = library.stat()
    compile_("row_sums", ROWS, ROWS_SCHEMA)
    (again,) = cache.iterdir()
    assert (again.stat().st_ino, again.stat().st_mtime_ns) == (before.st_ino, before.st_mtime_ns)


def cases(name: str, bodies: dict[str, str], **options: Any) -> Any:
    """Return a kernel that runs the body of a number: one compilation for all of them."""
    branches = [f"if (call.get_int(0) == {at}) {{ {body} }}" for at, body in enumerate(bodies)]
    return compile_(name, "\n".join(branches), "(x: f64[n], *, at: int) -> f64[n]", **options)


FAILURES = {
    'dlb::check(call.count() == 9, "got ", call.count(), " tensors");': "got 2 tensors",
    'throw std::invalid_argument("its own");': "its own",
    "call.view<const double, 2>(0);": "a view of 2 dimensions on a tensor of 1",
    "call.view<const float, 1>(0);": "a view of another dtype than its tensor",
    "call.flat<const int32_t>(0);": "a view of another dtype than its tensor",
    "dlb::visit<float, int>(call.tensor(0), [](auto) {});": "no code for dtype",
    "call.tensor(2);": "tensor 2 of 2",
    "call.get_float(1);": "scalar 1 of 1",
    "call.get_string(0);": "scalar 0 is no text",
    "dlb::parallel_for(0, 100, 1, [](int64_t i) { dlb::check(i != 77, i); });": "77",
}
OUTSIDE = {
    "call.view<double, 1>(0)(3) = 1;": "index 3 of dimension 0, which has 3",
    "call.view<double, 1>(0)(-1) = 1;": "index -1 of dimension 0",
    "call.flat<double>(0)[3] = 1;": "index 3 of 3 elements",
}


def test_exceptions_are_errors_of_the_call() -> None:
    kernel = cases("fails", FAILURES)
    for at, text in enumerate(FAILURES.values()):
        with pytest.raises(KernelError, match=text):
            kernel(np.ones(3), at=at)


@pytest.mark.full
def test_indices_are_checked_in_debug_builds() -> None:
    kernel = cases("outside", OUTSIDE, flags=["-UNDEBUG"])
    for at, text in enumerate(OUTSIDE.values()):
        with pytest.raises(KernelError, match=text):
            kernel(np.ones(3), at=at)


@pytest.mark.full
def test_a_flat_view_needs_contiguous_memory() -> None:
    kernel = compile_("flattened", "call.flat<const double>(0);", layout="strided")
    kernel(np.ones(6))
    with pytest.raises(KernelError, match="needs a contiguous tensor"):
        kernel(np.ones(6)[::2])


def test_scalars_and_missing_tensors() -> None:
    kernel = compile_(
        "scalars",
        'dlb::check(std::string(call.get_string(2)) == "b" && call.is_none(3), "wrong");'
        "call.view<double, 1>(2)(0) = call.get_float(0) + call.get_int(1) + call.is_missing(1);",
        "(x: f64[n], y: f64[n]? = None, *, f: float, i: int, s: str, o: int? = None) -> f64[n]",
    )
    assert kernel(np.ones(1), f=0.5, i=3, s="b").tolist() == [4.5]
    assert kernel(np.ones(1), np.ones(1), f=0.5, i=3, s="b").tolist() == [3.5]


@pytest.mark.full
def test_every_half_precision_number_is_converted_as_numpy_does() -> None:
    """All patterns to float, and back from float with what is between and beyond them."""
    widen = compile_(
        "widen",
        "auto x = call.flat<const dlb::float16>(0); auto out = call.flat<float>(1);"
        "for (int64_t i = 0; i < x.size(); i++) out[i] = x[i];",
        "(x: f16[n]) -> f32[n]",
    )
    narrow = compile_(
        "narrow",
        "auto x = call.flat<const float>(0); auto out = call.flat<dlb::float16>(1);"
        "for (int64_t i = 0; i < x.size(); i++) out[i] = x[i];",
        "(x: f32[n]) -> f16[n]",
    )
    every = np.arange(1 << 16, dtype=np.uint16).view(np.float16)
    wide = every.astype(np.float32)
    np.testing.assert_array_equal(widen(every), wide)
    finite = np.sort(wide[np.isfinite(wide)])
    between = (finite[1:] + finite[:-1]) / 2
    near = [np.nextafter(between, np.float32(to), dtype=np.float32) for to in (-np.inf, np.inf)]
    beyond = np.array([65519.9, 65520, 1e30, -1e30, np.inf, -np.inf, np.nan], np.float32)
    values = np.concatenate([finite, between, *near, beyond])
    with np.errstate(over="ignore"):
        right = values.astype(np.float16)
    np.testing.assert_array_equal(narrow(values), right)


@pytest.mark.full
def test_bfloat16_is_rounded_to_nearest_even() -> None:
    narrow = compile_(
        "brain",
        "auto x = call.flat<const float>(0); auto out = call.flat<float>(1);"
        "for (int64_t i = 0; i < x.size(); i++) out[i] = dlb::bfloat16(x[i]);",
        "(x: f32[n]) -> f32[n]",
    )
    x = np.array([1, 1 + 2**-8, 1 + 3 * 2**-8, 3.4e38, 1e-40, -np.inf, np.nan], np.float32)
    expected = np.array([1, 1, 1 + 2**-6, np.inf, 1e-40, -np.inf, np.nan], np.float32)
    got = narrow(x)
    np.testing.assert_allclose(got, expected, rtol=2**-7, atol=1e-41)
    assert got[1:3].tolist() == expected[1:3].tolist()


def test_mistakes_are_refused_in_its_own_name(monkeypatch: pytest.MonkeyPatch) -> None:
    for text, name, said in (
        ("int f(", "f", r"compile_cpp: \S+ cannot compile the source"),
        ("static int f() { return 0; }", "f", r'no function .f. that .*DLB_KERNEL, or extern "C"'),
        ("int f(void *, DLTensor *, int) { return 0; }", "f", "compile_cpp: the source has no"),
        ("", "f(", "compile_cpp: name must be that of a C"),
    ):
        with pytest.raises(ArgumentError, match=said):
            dlbridge.compile_cpp(HEADER + text, name, "cpp::f(x: f64[n]) -> f64[n]")
    source = 'extern "C" void f(const double *x, double *out, int n) { out[n - 1] = *x; }'
    abi = "void(const double *x, double *out, int64_t n)"
    with pytest.raises(ArgumentError, match="compile_cpp: the source defines 'f' otherwise"):
        dlbridge.compile_cpp(source, "f", "cpp::f(x: f64[n]) -> f64[n]", abi)
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(KernelError, match=r"compile_cpp: there is no C\+\+ compiler here"):
        dlbridge.compile_cpp("", "f")


def test_views_of_complex_numbers() -> None:
    kernel = compile_(
        "squares",
        "dlb::visit<float, std::complex<float>, std::complex<double>>(call.tensor(0), [&](auto t) {"
        "    auto x = call.view<const decltype(t), 1>(0);"
        "    auto out = call.view<decltype(t), 1>(1);"
        "    for (int64_t i = 0; i < x.size(); i++) out(i) = x(i) * x(i);"
        "});",
        "(x: f32|c64|c128[n]) -> like x",
    )
    for dtype in ("complex64", "complex128"):
        assert kernel(np.array([1 + 2j, 3], dtype)).tolist() == [-3 + 4j, 9]


def test_complex_numbers_are_spelled_as_in_cpp() -> None:
    source = """
    #include <complex>
    #include <cstdint>
    extern "C" void turn(const std::complex<float> *x, std::complex<float> *out, int64_t n) {
        for (int64_t i = 0; i < n; i++) out[i] = std::conj(x[i]);
    }
    """
    abi = "void(const std::complex<float> *x, std::complex<float> *out, int64_t n)"
    kernel = dlbridge.compile_cpp(source, "turn", "cpp::turn(x: c64[n]) -> c64[n]", abi)
    assert kernel(np.array([1 + 2j], np.complex64)).tolist() == [1 - 2j]


@pytest.mark.fast(lambda standard: standard == "c++17")
@pytest.mark.parametrize("standard", ["c++17", "c++20", "c++23"])
def test_the_header_compiles_without_warnings(standard: str, tmp_path: Path) -> None:
    source = tmp_path / "rows.cpp"
    export = f'DLB_EXPORT(row_sums, "cpp::row_sums{ROWS_SCHEMA}");\n'
    source.write_text(HEADER + ROWS + export)
    strict = ("-Wall", "-Wextra", "-Wpedantic", "-Wmissing-declarations", "-Wshadow", "-Werror")
    compiler = next(name for name in COMPILERS if shutil.which(name))
    library = tmp_path / "librows.so"
    command = [compiler, f"-std={standard}", *strict, f"-I{INCLUDE}", "-shared", "-fPIC"]
    done = subprocess.run(
        [*command, "-pthread", "-o", library, source], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    kernel = dlbridge.load_library(library).row_sums
    assert kernel(np.ones((2, 3))).tolist() == [3.0, 3.0]


def test_a_view_of_a_tensor_that_was_left_out_is_an_error() -> None:
    for name, view in (
        ("view_of_none", "view<const double, 1>"),
        ("flat_of_none", "flat<const double>"),
    ):
        kernel = compile_(
            name,
            f"auto y = call.{view}(1); call.flat<double>(2)[0] = y.data()[0];",
            "(x: f64[n], y: f64[n]? = None) -> f64[n]",
        )
        assert kernel(np.zeros(1), np.ones(1)) == [1]
        with pytest.raises(KernelError, match="an optional tensor that was left out"):
            kernel(np.zeros(1))


def test_a_tensor_behind_a_list_may_be_left_out() -> None:
    kernel = compile_(
        "behind_a_list",
        "call.flat<double>(call.count() - 1)[0] = dlb_is_missing(&call.tensors(1)[0]);",
        "(xs: f64[n][], y: f64[n]? = None) -> f64[n]",
    )
    x = np.ones(1)
    assert [kernel([x, x])[0], kernel([x, x], x)[0], kernel([x], x)[0]] == [1, 0, 0]

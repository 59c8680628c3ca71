"""check_kernel passes right kernels, and each of its checks finds a kernel that is broken."""

from __future__ import annotations

import shutil
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, FrameworkMissingError
from dlbridge.testing import KernelReport, check_kernel, checking

Framework = Callable[[str], Any]
OWN = [
    (name, check)
    for name, checks in checking.OWN_CHECKS.items()
    for check in checks
    if check not in ("autocast", "jvp")  # which need another kernel: see below
]
SCHEMA = "(x: f64[n], *, by: float = 2.0) -> f64[n]"


def times(x: Any, *, by: float = 2.0) -> Any:
    return by * x


def wrap(name: str, function: Any, schema: str = SCHEMA, **options: Any) -> dlbridge.Kernel:
    return dlbridge.wrap(function, f"checked::{name}{schema}", abi="python:numpy", **options)


def compile_(name: str, body: str, schema: str = SCHEMA, **options: Any) -> dlbridge.Kernel:
    """Return a kernel of C: the body sees n, x and out."""
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler here")
    source = f"""
        #include "dlbridge_kernel.h"
        int {name}(void *context, DLTensor *tensors, int count) {{
            int64_t n = tensors[0].shape[0];
            double *x = tensors[0].data, *out = tensors[1].data;
            (void)context; (void)count;
            {body}
            return 0;
        }}
    """
    return dlbridge.compile_c(source, name, f"checked::{name}{schema}", **options)


def failed(kernel: dlbridge.Kernel, *, framework: str = "numpy", **options: Any) -> dict[str, str]:
    """Return what `check_kernel` finds wrong: check -> text."""
    with pytest.raises(AssertionError, match=rf"check_kernel: {kernel.name}: ") as caught:
        check_kernel(kernel, options.pop("reference", times), frameworks=[framework], **options)
    rows = [line.strip() for line in str(caught.value).splitlines() if ": failed: " in line]
    return dict(row.removeprefix(f"{framework}.").split(": failed: ") for row in rows)


def statuses(report: KernelReport) -> dict[str, str]:
    return {row.check: row.status for row in report.rows}


# ---- right kernels -------------------------------------------------------------------------------


def test_a_right_kernel_passes_every_check_of_numpy() -> None:
    kernel = wrap("right", times, "(x: f16|f32|f64[n, m], *, by: float = 2.0) -> f16|f32|f64[n, m]")
    report = check_kernel(kernel, times, frameworks=["numpy"])
    assert statuses(report) == dict.fromkeys((*checking.CHECKS, *checking.MEMORY_CHECKS), "passed")
    assert str(report).startswith("checked::right: 6 passed, 0 failed, 0 skipped\n")


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_a_right_kernel_passes_every_check_of(name: str, framework: Framework) -> None:
    framework(name)
    kernel = compile_(
        "fine",
        "for (int64_t i = 0; i < n; i++) out[i] = dlb_get_float(context, 0) * x[i];",
        vjp=lambda grad, by: by * grad,
        jvp=lambda tangent_x, by: by * tangent_x,
    )
    report = check_kernel(kernel, times, frameworks=[name], scalars={"by": 3.0})
    found = statuses(report)
    assert {*checking.OWN_CHECKS[name], *checking.CHECKS} <= found.keys()
    found.pop("autocast", None)  # which leaves float64 alone
    assert {*found.values()} == {"passed"}, report


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_results_that_are_numbers_of_each_kind(name: str, framework: Framework) -> None:
    """Operators of torch.ops cannot return an unknown float: its checks are for `.tensors`."""
    framework(name)

    def count(x: Any) -> Any:
        return float(x.sum()), int((x > 0).sum()), bool(x.sum() > 1)

    kernel = wrap(f"counted_{name}", count, "(x: f64[n]) -> (float, int, bool)")
    report = check_kernel(kernel, count, frameworks=[name])
    found = statuses(report)
    assert found["numbers"] == "passed"
    assert found.get("opcheck", "passed") == "passed", report


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
@pytest.mark.parametrize("is_right", [True, False])
def test_gradients_of_complex_numbers(name: str, is_right: bool, framework: Framework) -> None:
    framework(name)

    def turn(x: Any, r: Any) -> Any:
        return x * x * r

    def pull(x: Any, r: Any, grad: Any) -> Any:
        to_x, to_r = grad * np.conj(2 * x * r), (grad * np.conj(x * x)).real
        return to_x if is_right else np.conj(to_x), to_r

    rule = wrap(
        f"turn_vjp_{name}_{is_right}",
        pull,
        "(x: c128[n], r: f64[n], grad: c128[n]) -> (grad_x: c128[n], grad_r: f64[n])",
    )
    kernel = wrap(f"turn_{name}_{is_right}", turn, "(x: c128[n], r: f64[n]) -> c128[n]", vjp=rule)
    options: Any = {"reference": turn, "framework": name}
    if is_right:
        found = statuses(check_kernel(kernel, turn, frameworks=[name]))
        assert found["gradient"] == found.get("gradcheck", "passed") == "passed"
    else:
        assert "the gradient of x[" in failed(kernel, **options)["gradient"]


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
@pytest.mark.parametrize("is_right", [True, False])
def test_a_jvp_is_compared_with_differences_of_the_reference(
    name: str, is_right: bool, framework: Framework
) -> None:
    """Of each floating result, whatever the vjp is."""
    framework(name)

    def both(x: Any, y: Any) -> Any:
        return x * y, np.arange(3), x - y

    def push(x: Any, y: Any, tangent_x: Any, tangent_y: Any) -> Any:
        second = tangent_x - tangent_y if is_right else tangent_x + tangent_y
        return x * tangent_y + y * tangent_x, second

    kernel = wrap(
        f"both_{name}_{is_right}",
        both,
        "(x: f64|c128[n], y: f64[n]) -> (z: f64|c128[n], i64[3], d: f64|c128[n])",
        jvp=push,
    )
    if is_right:
        report = check_kernel(kernel, both, frameworks=[name])
        assert statuses(report)["jvp"] == "passed", report
    else:
        text = failed(kernel, framework=name, reference=both)["jvp"]
        assert text.startswith("the tangent of d[")


def test_dtypes_that_numpy_lacks_are_skipped_without_ml_dtypes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As where only NumPy and torch are installed; one with no other dtype says what it needs."""
    monkeypatch.setitem(sys.modules, "ml_dtypes", None)
    monkeypatch.setattr(dlbridge.dtype, "_exported", {})
    kernel = wrap("halves", times, "(x: float[n, m], *, by: float = 2.0) -> float[n, m]")
    report = check_kernel(kernel, times, frameworks=["numpy"])
    assert statuses(report)["values"] == "passed"
    assert statuses(report)["bfloat16"] == "skipped"
    assert "cannot import ml_dtypes" in str(report)
    kernel = wrap("brains", times, "(x: bf16[n, m], *, by: float = 2.0) -> bf16[n, m]")
    with pytest.raises(FrameworkMissingError, match="cannot import ml_dtypes"):
        check_kernel(kernel, times, frameworks=["numpy"])


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_arguments_that_a_kernel_writes_are_compared(name: str, framework: Framework) -> None:
    framework(name)

    def add(x: Any, y: Any) -> Any:
        x += y

    kernel = wrap(f"adds_{name}", add, "(x!: f64[n], y: f64[n])")
    report = check_kernel(kernel, add, frameworks=[name])
    assert not report.failed
    assert statuses(report)["values"] == "passed"

    def wrong(x: Any, y: Any) -> Any:
        x -= y

    found = failed(kernel, reference=wrong, framework=name)
    assert "x[" in found["values"]


def test_several_results_packs_sizes_and_inputs() -> None:
    def take(x: Any, at: Any, *, k: int) -> Any:
        return x[..., at], np.full(k, 1.0)

    kernel = wrap(
        "take", take, "(x: f64[*b, n], at: i64[m], *, k: int) -> (f64[*b, m], ones: f64[k])"
    )
    report = check_kernel(
        kernel,
        take,
        frameworks=["numpy"],
        sizes={"b": (2, 1), "n": 9, "k": 2},
        inputs={"at": lambda rng, shape: rng.integers(0, 9, shape)},
        skip=["empty"],
    )
    assert statuses(report)["values"] == "passed"
    assert statuses(report)["empty"] == "skipped"


def test_every_installed_framework_is_checked_by_default(framework: Framework) -> None:
    framework("torch")
    kernel = wrap("everywhere", times)
    report = check_kernel(kernel, times, skip=["jax", "tensorflow", "paddle", "tvm"])
    done = {row.framework for row in report.rows if row.check == "values"}
    assert {"numpy", "torch"} <= done
    assert "torch.gradient: skipped: the kernel has no vjp" in str(report)
    assert "torch.jvp: skipped: the kernel has no jvp" in str(report)


def test_a_framework_without_the_dtype_is_skipped_and_the_report_says_why(
    framework: Framework,
) -> None:
    framework("mlx")
    report = check_kernel(wrap("wide", times), times, frameworks=["numpy", "mlx"])
    (row,) = [row for row in report.rows if row.framework == "mlx"]
    assert row.status == "skipped"
    assert "the dtype cannot be represented" in row.text


def test_without_flatbuffers_programs_of_jax_are_not_exported(
    framework: Framework, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`pip install jax` brings none."""
    framework("jax")
    monkeypatch.setitem(sys.modules, "flatbuffers", None)
    report = check_kernel(wrap("unexported", times), times, frameworks=["jax"])
    assert statuses(report)["export"] == "skipped"
    assert "flatbuffers, which is not installed" in str(report)


def test_nothing_checked_is_a_failure(framework: Framework) -> None:
    """A test that skips everything would pass for ever."""
    with pytest.raises(AssertionError, match="nothing could be checked"):
        check_kernel(wrap("idle", times), times, frameworks=["numpy"], skip=["numpy"])


def test_sizes_that_the_schema_excludes_are_no_failure() -> None:
    """With n = 0 an argument would have -2 elements: only k can be 0."""

    def inner(x: Any, y: Any, w: Any) -> Any:
        return x[1:-1] + y + w.sum()

    kernel = wrap("inner", inner, "(x: f64[n], y: f64[n-2], w: f64[k]) -> f64[n-2]")
    report = check_kernel(kernel, inner, frameworks=["numpy"])
    assert statuses(report)["empty"] == "passed"
    with pytest.raises(ArgumentError, match=r"check_kernel: checked::inner: n-2 is -1; pass other"):
        check_kernel(kernel, inner, frameworks=["numpy"], sizes={"n": 1})


def test_a_reference_that_is_wrong_for_empty_tensors_is_a_failure() -> None:
    kernel = wrap("emptied", times)
    found = failed(kernel, reference=lambda x, by: by * x if len(x) else np.zeros(1))
    assert "the reference of checked::emptied returned 'out' of shape (1,)" in found["empty"]


# ---- broken kernels ------------------------------------------------------------------------------


def test_wrong_values_of_one_dtype_are_found() -> None:
    def narrow(x: Any, *, by: float) -> Any:
        return by * x if x.dtype == np.float64 else x

    found = failed(wrap("narrow", narrow, "(x: f32|f64[n], *, by: float = 2.0) -> f32|f64[n]"))
    assert found.keys() == {"values"}
    assert found["values"].startswith("with float32, out[")


def test_an_argument_that_is_written_is_found() -> None:
    kernel = compile_("spoils", "for (int64_t i = 0; i < n; i++) out[i] = 2 * x[i], x[i] = 7;")
    assert "the argument x, which the schema does not mark" in failed(kernel)["inputs"]


def test_an_error_for_empty_tensors_is_found() -> None:
    kernel = compile_(
        "nonempty",
        "for (int64_t i = 0; i < n; i++) out[i] = 2 * x[i];"
        'if (n == 0) return dlb_set_error(context, "n is 0");',
    )
    assert failed(kernel).keys() == {"empty"}


def test_an_error_for_an_empty_pack_is_found() -> None:
    def nonempty(x: Any, *, by: float) -> Any:
        if not x.size:
            raise ValueError("nothing")
        return by * x

    kernel = wrap("nonempty_pack", nonempty, "(x: f64[...], *, by: float = 2.0) -> f64[...]")
    assert failed(kernel).keys() == {"empty"}


def test_a_kernel_that_depends_on_its_thread_is_found() -> None:
    home = threading.get_ident()

    def local(x: Any, *, by: float) -> Any:
        return by * x if threading.get_ident() == home else x

    assert failed(wrap("local", local)).keys() == {"threads"}


def test_a_kernel_that_ignores_strides_is_found() -> None:
    kernel = compile_(
        "flat", "for (int64_t i = 0; i < n; i++) out[i] = 2 * x[i];", layout="strided"
    )
    assert failed(kernel).keys() == {"layouts"}


def test_a_result_that_is_not_written_in_full_is_found() -> None:
    kernel = compile_("short_", "for (int64_t i = 0; i + 1 < n; i++) out[i] = 2 * x[i];")
    assert "out[3]" in failed(kernel)["out"]


def test_a_write_beside_a_result_is_found() -> None:
    kernel = compile_("long_", "for (int64_t i = 0; i <= n; i++) out[i] = i < n ? 2 * x[i] : 0;")
    found = failed(kernel, skip=set(checking.CHECKS) | {"layouts"})
    assert found == {"out": "it wrote beside 'out', whose memory is too small for it"}


@pytest.mark.parametrize(("name", "check"), OWN, ids=[".".join(each) for each in OWN])
def test_a_broken_kernel_fails(name: str, check: str, framework: Framework) -> None:
    """Values and derivative are both wrong: each check finds it without the help of others."""
    framework(name)
    kernel = wrap(f"broken_{name}_{check}", _next(), vjp=lambda grad, by: (by + 1) * grad)
    known = {*checking.CHECKS, *checking.MEMORY_CHECKS, *checking.OWN_CHECKS[name]}
    assert failed(kernel, framework=name, skip=known - {check}).keys() == {check}


def _next() -> Any:
    """Return a function that gives something else each time."""
    calls: list[int] = []

    def function(x: Any, *, by: float) -> Any:
        calls.append(0)
        return by * x + len(calls)

    return function


def test_a_kernel_that_is_broken_within_autocast_is_found(framework: Framework) -> None:
    """Of the dtypes that autocast casts; float64 is none."""
    framework("torch")
    schema = "(x: f32|f64[n], *, by: float = 2.0) -> f32|f64[n]"
    kernel = wrap("broken_autocast", _next(), schema, autocast="float32")
    own = {*checking.CHECKS, *checking.MEMORY_CHECKS, *checking.OWN_CHECKS["torch"]}
    found = failed(kernel, framework="torch", skip=own - {"autocast"})
    assert found.keys() == {"autocast"}


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_wrong_rule_for_batches_is_found(name: str, framework: Framework) -> None:
    framework(name)
    kernel = wrap(f"batched_{name}", times, batch=lambda size, is_batched, x, by: x)
    own = {"vmap"} | ({"opcheck"} if name == "torch" else set())
    assert {"vmap"} <= failed(kernel, framework=name).keys() <= own


# ---- the call ------------------------------------------------------------------------------------


def test_a_wrong_sharding_rule_is_found() -> None:
    kernel = wrap("running", lambda x: np.cumsum(x), "(x: f64[n]) -> f64[n]", sharding="n")
    found = failed(kernel, reference=np.cumsum)
    assert list(found) == ["sharding"]
    assert "of one half along axis 0" in found["sharding"]


@pytest.mark.parametrize("name", ["numpy", "torch", "jax"])
def test_calls_that_can_be_split_pass(name: str, framework: Framework) -> None:
    framework(name)
    kernel = wrap(
        f"product_{name}", np.matmul, "(x: f64[..., m, k], y: f64[k, n]) -> f64[..., m, n]",
        sharding="..., m, n",
    )  # fmt: skip
    report = check_kernel(kernel, np.matmul, frameworks=[name], sizes={"...": (2, 3)})
    assert [row.status for row in report.rows if row.check == "sharding"] == ["passed"]


def test_mistakes_in_the_call_are_refused() -> None:
    kernel = wrap("called", times)
    for options, text in (
        ({"skip": ["thread"]}, "there is no check 'thread'; did you mean 'threads'"),
        ({"sizes": {"m": 3}}, "sizes: checked::called has no 'm'; it has n"),
        ({"scalars": {"bye": 3.0}}, "scalars: checked::called has no 'bye'"),
        ({"inputs": {"y": None}}, "inputs: checked::called has no 'y'"),
        ({"frameworks": ["torhc"]}, "unknown framework 'torhc'"),
        ({"frameworks": "torch"}, "frameworks must be a list"),
    ):
        with pytest.raises(ArgumentError, match=f"check_kernel: .*{text}|{text}"):
            check_kernel(kernel, times, **options)
    with pytest.raises(ArgumentError, match="kernel must be a Kernel, got"):
        check_kernel(times, times)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="reference must be a function"):
        check_kernel(kernel, None)  # type: ignore[arg-type]
    with pytest.raises(ArgumentError, match="has no schema"):
        check_kernel(dlbridge.wrap(times, abi="python:numpy"), times)
    needy = wrap("needy", times, "(x: f64[n], *, by: float) -> f64[n]")
    with pytest.raises(ArgumentError, match=r"needs a value of 'by': pass scalars="):
        check_kernel(needy, times)
    with pytest.raises(ArgumentError, match=r"returned 'out' of shape \(\); by the schema"):
        check_kernel(kernel, lambda x, by: x.sum())


def add(xs: Any, y: Any, z: Any = None, bias: Any = None) -> Any:
    return sum([x * x for x in xs], y) + (0 if z is None else z) + (0 if bias is None else 3 * bias)


ADD = "(xs: f64[n][k], y: f64[n], z: f64[n]? = None, bias: f64[n]? = None) -> f64[n]"
ADD_VJP = (
    "(grad: f64[n], xs: f64[n][k], z: f64[n]?, bias: f64[n]?)"
    " -> (grad_xs: f64[n][k], grad_y: f64[n], grad_z: f64[n]? if z, grad_bias: f64[n]? if bias)"
)


def pull_add(grad: Any, xs: Any, z: Any, bias: Any) -> Any:
    to_z, to_bias = None if z is None else grad, None if bias is None else 3 * grad
    return [2 * x * grad for x in xs], grad.copy(), to_z, to_bias


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_tensors_that_may_be_none_are_left_out(name: str, framework: Framework) -> None:
    framework(name)
    rule = wrap(f"add_vjp_{name}", pull_add, ADD_VJP)
    kernel = wrap(f"add_{name}", add, ADD, vjp=rule)
    found = statuses(check_kernel(kernel, add, frameworks=[name]))
    assert found["optional"] == found.get("gradient", "passed") == "passed"


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_a_kernel_that_is_wrong_without_an_optional_tensor_is_found(
    name: str, framework: Framework
) -> None:
    framework(name)

    def wrong(xs: Any, y: Any, z: Any = None, bias: Any = None) -> Any:
        if z is None and bias is None:
            raise ValueError("it needs one of them")
        return add(xs, y, z, bias) + (0 if z is not None else 1)

    kernel = wrap(f"add_wrong_{name}", wrong, ADD)
    text = failed(kernel, reference=add, framework=name)["optional"]
    assert text.startswith("with z=None, out")


@pytest.mark.parametrize("name", ["torch", "jax", "tensorflow"])
def test_a_gradient_that_is_wrong_without_an_optional_tensor_is_found(
    name: str, framework: Framework
) -> None:
    framework(name)

    def wrong(grad: Any, xs: Any, z: Any, bias: Any) -> Any:
        to_xs, *others = pull_add(grad, xs, z, bias)
        return [x if bias is None else each for x, each in zip(xs, to_xs, strict=True)], *others

    rule = wrap(f"add_wrong_vjp_{name}", wrong, ADD_VJP)
    kernel = wrap(f"add_wrong_rule_{name}", add, ADD, vjp=rule)
    found = failed(kernel, reference=add, framework=name)
    assert found["gradient"].startswith("with bias=None, the gradient of xs[0]"), found


def test_optional_tensors_that_are_written_or_the_only_ones() -> None:
    def count(x: Any, seen: Any = None) -> Any:
        if seen is not None:
            seen += x
        return 2 * x

    kernel = wrap("count", count, "(x: f64[n], seen!: f64[n]? = None) -> f64[n]")
    assert statuses(check_kernel(kernel, count, frameworks=["numpy"]))["optional"] == "passed"

    def total(x: Any = None, *, n: int) -> Any:
        return np.zeros(n) if x is None else x + 1

    kernel = wrap("total", total, "(x: f64[n]? = None, *, n: int) -> f64[n]")
    assert statuses(check_kernel(kernel, total, frameworks=["numpy"]))["optional"] == "passed"


def test_a_reference_too_coarse_for_differences_is_named(framework: Framework) -> None:
    framework("torch")
    kernel = wrap("halved", lambda x: 0.5 * x, "(x: f64[n]) -> f64[n]", vjp=lambda grad: 0.5 * grad)
    coarse = failed(
        kernel, framework="torch", reference=lambda x: (0.5 * x).astype("float32"), rtol=1e-5
    )
    assert "returned 'out' as float32, which is too coarse" in coarse["gradient"]

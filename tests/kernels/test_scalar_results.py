"""Results that are numbers: `count(x: f32[n]) -> int`, and `.tensors`, which makes the calls."""

from __future__ import annotations

import gc
import inspect
import math
import pickle
import shutil
import subprocess
import sys
import warnings
import weakref
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge._core import ffi
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels.schema import Schema
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"
#include <math.h>
#include <stdbool.h>

int64_t count(const float *x, int64_t n, double above) {
    int64_t found = 0;
    for (int64_t i = 0; i < n; i++)
        found += x[i] > above;
    return found;
}

double mean(const float *x, int64_t n) {
    double sum = 0;
    for (int64_t i = 0; i < n; i++)
        sum += x[i];
    return sum / n;
}

float mean32(const float *x, int64_t n) {
    return (float)mean(x, n);
}

bool any(const float *x, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        if (x[i] != 0)
            return true;
    return false;
}

/* Twice x, how many are above 0, their mean, and whether there is one. */
void all(const float *x, int64_t n, float *y, int64_t *k, double *m, bool *is_any) {
    for (int64_t i = 0; i < n; i++)
        y[i] = 2 * x[i];
    *k = count(x, n, 0);
    *m = mean(x, n);
    *is_any = any(x, n);
}

/* A status, and the number by a pointer. */
int32_t length(const float *x, int64_t n, int64_t *out) {
    (void)x;
    *out = n;
    return n == 2;
}

/* The number behind more parameters than there are registers. */
double ninth(const float *x, double a, double b, double c, double d, double e, double f, double g,
             double h, double i) {
    return x[0] + a + b + c + d + e + f + g + h + 10 * i;
}

int8_t least(const float *x) {
    return (int8_t)x[0];
}

int dltensors(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    if (count != 3 || args[2].ndim != 0)
        return dlb_set_error(context, "%d tensors", count);
    *(float *)args[1].data = x[0];
    *(int64_t *)args[2].data = args[0].shape[0];
    return 0;
}
"""
X_IN_C = "const float *x, int64_t n"
COUNT = "scalar::count(x: f32[n], *, above: float = 0.5) -> int"
ALL = "scalar::all(x: f32[n]) -> (y: f32[n], k: int, m: float, is_any: bool)"
X = np.array([0.25, 0.75, 1.0, 0.5], "f4")
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow", "dlbridge")


@pytest.fixture(scope="module")
def count(compiled: Any) -> dlbridge.Kernel:
    abi = f"int64_t({X_IN_C}, double above)"
    return dlbridge.compile_c(SOURCE, "count", COUNT, abi=abi)


@pytest.fixture(scope="module")
def everything(compiled: Any) -> dlbridge.Kernel:
    abi = f"void({X_IN_C}, float *y, int64_t *k, double *m, bool *is_any)"
    return dlbridge.compile_c(SOURCE, "all", ALL, abi=abi, vjp=lambda grad_y: 2 * grad_y)


def tensor(framework: str, values: Any = X) -> Any:
    pytest.importorskip(framework)
    return dlbridge.convert(np.asarray(values, "f4"), framework, copy=True)


def given(found: Any) -> Any:
    """Return tensors as lists, and numbers, of which `==` does not tell 1 from True, with types."""
    if isinstance(found, tuple):
        return tuple([given(each) for each in found])
    if found is None or isinstance(found, bool | int | float):
        return type(found), found
    return dlbridge.to_numpy(found, grad="detach").tolist()


def returning(kind: str, value: Any, framework: str = "numpy") -> dlbridge.Kernel:
    schema = f"scalar::returned(x: f32[n]) -> {kind}"
    return dlbridge.wrap(lambda x: value, schema, abi=f"python:{framework}")


# ---- schemas -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "tensors", "torch"),
    [
        (COUNT, "i64[]", "SymInt"),
        ("scalar::f(x: f64[n]) -> float", "f64[]", "float"),
        ("scalar::f(x: bool[n]) -> bool", "bool[]", "bool"),
        (
            "scalar::f(x: A=f64[n], *, k: int) -> (f32[k], norm: float? if b, bool)".replace(
                "*,", "b: i64[]?, *,"
            ),
            "(f32[k], norm: f64[]? if b, bool[])",
            "(Tensor, float?, bool)",
        ),
        ("scalar::f(x: f32[n]) -> (f32[k<=n], int)", "(f32[k<=n], i64[])", "(Tensor, SymInt)"),
    ],
)
def test_a_schema_has_another_one_with_tensors(text: str, tensors: str, torch: str) -> None:
    schema = Schema.parse(text)
    assert Schema.parse(str(schema)) == schema == pickle.loads(pickle.dumps(schema))
    assert str(schema) == text
    assert str(schema.as_tensors()).endswith(f" -> {tensors}")
    assert schema.torch_schema().endswith(f" -> {torch}")
    assert "out" not in schema.signature().parameters
    assert "int of Python" in Schema.parse(COUNT).help()


def test_a_word_with_brackets_is_a_tensor_of_a_set_of_dtypes_as_before() -> None:
    schema = Schema.parse("scalar::f(x: float[n], y: int[n]) -> (float[n], int[])")
    assert not schema.numbers
    assert Schema.parse("scalar::f(x: float[n]) -> (float[n], float)").numbers == (1,)


# ---- calls ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_call_returns_numbers_of_python(
    framework: str, count: dlbridge.Kernel, everything: dlbridge.Kernel
) -> None:
    x = tensor(framework)
    assert given(count(x)) == (int, 2)
    assert given(getattr(count, framework)(x, above=0.6)) == (int, 2)
    assert given(count(x[:0])) == (int, 0)
    expected = [0.5, 1.5, 2, 1], (int, 4), (float, 0.625), (bool, True)
    assert given(everything(x)) == expected
    assert given(getattr(everything, framework)(x)) == expected
    assert given(everything(tensor(framework, [0.0])))[1:] == ((int, 0), (float, 0), (bool, False))
    assert math.isnan(everything(x[:0])[2])


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_tensors_is_the_kernel_that_returns_tensors(
    framework: str, everything: dlbridge.Kernel
) -> None:
    found = everything.tensors(tensor(framework))
    assert [tuple(each.shape) for each in found] == [(4,), (), (), ()]
    assert everything.tensors.tensors is everything.tensors
    assert everything.bounded is everything.tensors


def test_there_is_no_out_but_that_of_tensors(count: dlbridge.Kernel) -> None:
    with pytest.raises(
        UnsupportedTypeError,
        match=r"'out': not expected; a result is a number, .*"
        r"`\.tensors` of the kernel takes out=",
    ):
        count(X, out=np.zeros((), "i8"))
    out = np.zeros((), "i8")
    count.tensors(X, out=out)
    assert out == 2


def test_arguments_are_checked_in_the_name_of_the_kernel(count: dlbridge.Kernel) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"scalar::count: argument 'x': expected f32"):
        count(X.astype("f8"))
    with pytest.raises(UnsupportedTypeError, match="scalar::count: argument 'above'"):
        count(X, above="much")
    with pytest.raises(UnsupportedTypeError, match="scalar::count: argument 'x'"):
        count()
    by_python = returning("int", 3)
    for kernel in (count, by_python):
        with pytest.raises(UnsupportedTypeError, match=r"'y': not expected; it takes x(, above)?$"):
            kernel(X, y=1)
    with pytest.raises(UnsupportedTypeError, match="no tensor determines the framework"):
        dlbridge.wrap(lambda n: n, "scalar::same(*, n: int) -> int", abi="python:numpy")(n=3)


def test_a_call_without_tensors_names_the_framework(framework: Any) -> None:
    same = dlbridge.wrap(lambda n: n, "scalar::same(*, n: int) -> int", abi="python:numpy")
    for name in ("numpy", "torch", "jax", "tensorflow"):
        framework(name)
        assert getattr(same, name)(n=3) == 3


def test_eight_threads_call_it_for_the_first_time(compiled: Any) -> None:
    kernel = dlbridge.compile_c(SOURCE, "mean", "scalar::m(x: f32[n]) -> float",
                                abi=f"double({X_IN_C})")  # fmt: skip
    with ThreadPoolExecutor(8) as pool:
        assert set(pool.map(kernel, [X] * 64)) == {0.625}


def test_a_kernel_that_was_wrapped_again_is_freed_with_its_tensors() -> None:
    kernel = returning("int", 3)
    held = [weakref.ref(kernel), weakref.ref(kernel.tensors)]
    assert kernel(X) == 3
    returning("int", 4)
    del kernel
    gc.collect()
    assert [each() for each in held] == [None, None]


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow", "dlbridge"])
def test_the_function_of_a_framework_takes_its_tensors_alone(
    framework: str, count: dlbridge.Kernel
) -> None:
    x = tensor(framework)
    function = getattr(count, framework)
    assert function(x, above=0.6) == 2
    assert "above" in str(inspect.signature(function))
    other = tensor("torch" if framework == "numpy" else "numpy")
    with pytest.raises(UnsupportedTypeError, match="scalar::count: argument 'x': expected"):
        function(other)


def test_dynamo_traces_none_of_our_code_behind_a_graph_break(
    count: dlbridge.Kernel, framework: Any
) -> None:
    torch = framework("torch")

    def add(x: Any) -> Any:
        return x + 1 if count(x) > 1 else x - 1

    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        function = torch.compile(add, backend="eager")
        assert function(torch.tensor(X)).tolist() == (X + 1).tolist()
        assert function(torch.zeros(3)).tolist() == [-1] * 3


def test_kernels_and_their_tensors_are_pickled_by_name(count: dlbridge.Kernel) -> None:
    for kernel in (count, count.tensors):
        assert pickle.loads(pickle.dumps(kernel)) is kernel


def test_either_kernel_is_wrapped_again_under_another_name(
    count: dlbridge.Kernel, framework: Any
) -> None:
    jax = framework("jax")
    again = dlbridge.wrap(count, name="scalar::again")
    tensors = dlbridge.wrap(count.tensors, name="scalar::tensors")
    assert given(again(X)) == (int, 2)
    for kernel in (count, count.tensors, again, tensors):
        assert int(jax.jit(kernel)(X)) == 2
    assert tensors.tensors is tensors


@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "tensorflow"])
def test_lists_optional_results_and_sizes_that_the_kernel_says(framework: str) -> None:
    total = dlbridge.wrap(
        lambda xs, names: (len(xs), len(names) if names else None),
        "scalar::total(xs: f32[?n][], *, names: int[]? = None) -> (int, float? if names)",
        abi="python:numpy",
    )
    x = tensor(framework)
    assert given(total([x, x[:1]])) == ((int, 2), (type(None), None))
    assert given(total([x], names=[1, 2])) == ((int, 1), (float, 2.0))
    above = dlbridge.wrap(
        lambda x: (x[x > 0.5], float(x.max())),
        "scalar::above(x: f32[n]) -> (f32[k<=n], most: float)",
        abi="python:numpy",
    )
    assert given(above(x)) == ([0.75, 1.0], (float, 1.0))
    rows, most, said = above.bounded(x)
    assert given(rows[:2]) == [0.75, 1.0]
    assert (float(most), int(said)) == (1.0, 2)


@pytest.mark.parametrize("framework", ["jax", "tensorflow"])
def test_new_values_of_what_it_writes_come_after_the_results(framework: str) -> None:
    def add(x: Any, total: Any) -> int:
        total += x.sum()
        return len(x)

    kernel = dlbridge.wrap(add, "scalar::add(x: f32[n], total!: f32[1]) -> int", abi="python:numpy")
    assert given(kernel(tensor(framework), tensor(framework, [1]))) == ((int, 4), [3.5])
    total = np.ones(1, "f4")
    assert kernel(X, total) == 4
    assert total == 3.5


# ---- functions -----------------------------------------------------------------------------------


@pytest.mark.parametrize("caller", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "jax", "dlbridge"])
def test_a_function_of_python_returns_numbers(framework: str, caller: str) -> None:
    pytest.importorskip(framework)

    def double(x: Any) -> Any:
        array = dlbridge.to_numpy(x)
        y = dlbridge.convert(2 * array, framework)
        return y, np.int32(len(array)), np.float32(0.5), np.bool_(True)

    schema = "scalar::double(x: f32[n]) -> (f32[n], int, float, bool)"
    kernel = dlbridge.wrap(double, schema, abi=f"python:{framework}")
    found = kernel(tensor(caller))
    assert given(found) == ([0.5, 1.5, 2, 1], (int, 4), (float, 0.5), (bool, True))


@pytest.mark.parametrize("caller", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("framework", ["numpy", "torch", "dlbridge"])
def test_one_that_writes_tensors_into_out_returns_the_numbers(framework: str, caller: str) -> None:
    pytest.importorskip(framework)

    def fill(x: Any, out: Any) -> Any:
        array = dlbridge.to_numpy(out, copy=False)
        array[...] = 2 * dlbridge.to_numpy(x)
        return 7, False

    schema = "scalar::fill(x: f32[n]) -> (a: int, y: f32[n], b: bool)"
    kernel = dlbridge.wrap(fill, schema, abi=f"python:{framework}")
    assert given(kernel(tensor(caller))) == ((int, 7), [0.5, 1.5, 2, 1], (bool, False))


def test_sizes_come_after_the_numbers_of_one_that_writes_into_out() -> None:
    def fill(x: Any, out: Any) -> Any:
        found = x[x > 0.5]
        out[: len(found)] = found
        return 9, len(found)

    schema = "scalar::fill(x: f32[n]) -> (f32[k<=n], int)"
    kernel = dlbridge.wrap(fill, schema, abi="python:numpy")
    assert given(kernel(X)) == ([0.75, 1.0], (int, 9))


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        ("int", 2**63 - 1, 2**63 - 1),
        ("int", -(2**63), -(2**63)),
        ("int", np.int8(-3), -3),
        ("float", 3, 3.0),
        ("float", math.inf, math.inf),
        ("float", -0.0, -0.0),
        ("float", 5e-324, 5e-324),
        ("float", np.float32(0.1), float(np.float32(0.1))),
        ("bool", np.True_, True),
    ],
)
def test_numbers_come_as_they_are(kind: str, value: Any, expected: Any) -> None:
    found = returning(kind, value)(X)
    assert (type(found).__name__, found) == (kind, expected)
    assert math.copysign(1, found) == math.copysign(1, expected)


def test_a_float_may_be_nan() -> None:
    assert math.isnan(returning("float", math.nan)(X))


@pytest.mark.parametrize(
    ("kind", "value", "got"),
    [
        ("int", True, "bool"),
        ("int", 2.0, "float"),
        ("int", np.float32(2), "numpy.float32"),
        ("int", np.array(3), "numpy.ndarray; a number of a tensor without .* is x.item()"),
        ("int", "3", "str"),
        ("int", (1,), "tuple"),
        ("float", True, "bool"),
        ("float", 1j, "complex"),
        ("bool", 1, "int"),
        ("int", None, "None"),
    ],
)
def test_what_is_no_such_number_is_refused(kind: str, value: Any, got: str) -> None:
    with pytest.raises(UnsupportedTypeError, match=f"scalar::returned: .*returned {got}"):
        returning(kind, value)(X)


@pytest.mark.parametrize(
    ("kind", "value"),
    [("int", 2**63), ("int", -(2**63) - 1), ("int", np.uint64(2**63)), ("float", 10**400)],
)
def test_an_int_beyond_64_bits_is_refused(kind: str, value: Any) -> None:
    with pytest.raises(ArgumentError, match=r"result 'out': .* int that does not fit 64 bits"):
        returning(kind, value)(X)


def test_the_number_of_values_is_compared_with_the_schema() -> None:
    with pytest.raises(UnsupportedTypeError, match="must return 2 values, it returned 3"):
        returning("(int, int)", (1, 2, 3))(X)
    with pytest.raises(UnsupportedTypeError, match="parameter 'out', and no result is a tensor"):
        dlbridge.wrap(lambda x, out: 1, "scalar::o(x: f32[n]) -> int", abi="python:numpy")


@pytest.mark.parametrize(
    ("name", "schema", "abi", "expected"),
    [
        ("mean", "scalar::c(x: f32[n]) -> float", f"double({X_IN_C})", 0.625),
        ("any", "scalar::c(x: f32[n]) -> bool", f"bool({X_IN_C})", True),
        ("length", "scalar::c(x: f32[n]) -> int", f"int32_t({X_IN_C}, int64_t *out)", 4),
        ("mean32", "scalar::c(x: f32[n]) -> f32[]", f"float({X_IN_C})", 0.625),
        ("least", "scalar::c(x: f32[n]) -> i8[]", "int8_t(const float *x)", 0),
    ],
)
def test_a_function_of_c_returns_the_number_or_writes_it(
    name: str, schema: str, abi: str, expected: Any, compiled: Any, framework: Any
) -> None:
    kernel = dlbridge.compile_c(SOURCE, name, schema, abi=abi)
    found = [kernel(X), kernel(tensor("torch"))]
    assert found == [expected] * 2
    for each in ("jax", "tensorflow"):
        assert framework(each) is not None
        assert float(kernel(tensor(each))) == expected


def test_parameters_beyond_the_registers(compiled: Any) -> None:
    names = "abcdefghi"
    schema = f"scalar::ninth(x: f32[n], {', '.join(f'{each}: float' for each in names)}) -> float"
    abi = f"double(const float *x, {', '.join(f'double {each}' for each in names)})"
    ninth = dlbridge.compile_c(SOURCE, "ninth", schema, abi=abi)
    assert ninth(X, *range(1, 10)) == 0.25 + 36 + 90


def test_a_status_is_one_where_each_number_has_a_parameter(compiled: Any) -> None:
    abi = f"int32_t({X_IN_C}, int64_t *out)"
    length = dlbridge.compile_c(SOURCE, "length", "scalar::length(x: f32[n]) -> int", abi=abi)
    with pytest.raises(KernelError, match="scalar::length: the kernel returned status 1"):
        length(X[:2])


def test_python_makes_the_calls_that_the_core_cannot(compiled: Any) -> None:
    from dlbridge.kernels.kinds import raw

    for name, result, abi, expected in (
        ("mean", "float", f"double({X_IN_C})", 0.625),
        ("any", "bool", f"bool({X_IN_C})", True),
        ("length", "int", f"int32_t({X_IN_C}, int64_t *out)", 4),
    ):
        schema = f"scalar::python(x: f32[n]) -> {result}"
        kernel = dlbridge.compile_c(SOURCE, name, schema, abi=abi)
        assert kernel.schema is not None
        address = kernel.functions["cpu"].address
        call = raw.raw_caller(address, abi, kernel.schema.as_tensors())
        out = np.zeros((), {"float": "f8", "bool": "?", "int": "i8"}[result])
        call(dlbridge.from_dlpack(X), out=dlbridge.from_dlpack(out), stream=0)
        assert out == expected


@pytest.mark.parametrize(
    ("schema", "abi", "why"),
    [
        ("-> int", "double(const float *x, int64_t n)", "'double' cannot be returned for 'out'"),
        ("-> float", "float(const float *x, int64_t n)", "'float' cannot be returned for 'out'"),
        ("-> (int, int)", "int64_t(const float *x, int64_t n)", "must write 'out_0', but no"),
        ("-> f32[n]", "double(const float *x, float *out)", "'double' cannot be returned"),
    ],
)  # fmt: skip
def test_other_types_than_that_of_the_number_are_not_returned(
    schema: str, abi: str, why: str
) -> None:
    with pytest.raises(ArgumentError, match=why):
        dlbridge.wrap(
            ffi.cast("void(*)(void)", 4096), f"scalar::wrong(x: f32[n]) {schema}", abi=abi
        )


def test_a_function_of_dltensors_has_a_tensor_for_it(compiled: Any) -> None:
    schema = "scalar::first(x: f32[n]) -> (f32[], int)"
    first = dlbridge.compile_c(SOURCE, "dltensors", schema)
    assert given(first(X)) == (0.25, (int, 4))


def test_a_function_of_tvm_ffi_returns_the_number(framework: Any) -> None:
    tvm_ffi = framework("tvm_ffi")
    seen = []

    def count(x: Any, above: float, y: Any) -> int:
        array = np.from_dlpack(x)
        np.from_dlpack(y)[...] = 2 * array
        seen.append(above)
        return int((array > above).sum())

    schema = "scalar::tvm(x: f32[n], above: float) -> (int, f32[n])"
    kernel = dlbridge.wrap(tvm_ffi.convert(count), schema)
    for name in ("numpy", "torch", "jax", "tensorflow"):
        framework(name)
        assert given(kernel(tensor(name), 0.5)) == ((int, 2), [0.5, 1.5, 2, 1])
    assert seen == [0.5] * 4
    with pytest.raises(ArgumentError, match="a function of tvm-ffi returns one number"):
        dlbridge.wrap(tvm_ffi.convert(count), "scalar::tvm2(x: f32[n]) -> (int, int)")


# ---- torch ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", ["eager", "aot_eager"])
def test_torch_compiles_one_program_for_all_numbers(
    backend: str, everything: dlbridge.Kernel, framework: Any
) -> None:
    torch = framework("torch")

    def scaled(x: Any) -> Any:
        y, k, m, is_any = everything(x)
        return y + k, m, is_any

    function = torch.compile(scaled, fullgraph=True, backend=backend)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        for values in (X, -X, np.zeros(4, "f4")):
            x = torch.tensor(values)
            assert given(function(x)) == given(scaled(x))


def test_the_next_kernel_that_is_compiled_has_its_numbers_in_other_places(framework: Any) -> None:
    torch = framework("torch")
    for schema, value in (
        ("(int, f32[n])", lambda x: (7, x)),
        ("(f32[n], float)", lambda x: (x, 2.5)),
        ("(int, f32[n], bool)", lambda x: (8, x, True)),
        ("float", lambda x: -1.5),
    ):
        kernel = dlbridge.wrap(value, f"scalar::next(x: f32[n]) -> {schema}", abi="python:numpy")
        function = torch.compile(lambda x, k=kernel: k(x), fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            assert given(function(torch.tensor(X))) == given(kernel(X))


def test_torch_computes_on_with_an_int_as_a_size(count: dlbridge.Kernel, framework: Any) -> None:
    torch = framework("torch")

    def head(x: Any) -> Any:
        k = count(x)
        torch._check_is_size(k)  # older torch needs more than k >= 0
        torch._check(k <= x.shape[0])
        return x.sort(descending=True).values.narrow(0, 0, k)

    class Head(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return head(x)

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        compiled = torch.compile(head, fullgraph=True, backend="aot_eager")
        for values in (X, [0.0, 1.0], [2.0, 3.0, 4.0]):
            assert torch.equal(compiled(torch.tensor(values)), head(torch.tensor(values)))
    program = torch.export.export(Head(), (torch.tensor(X),)).module()
    assert program(torch.tensor(X)).tolist() == [1.0, 0.75]


@pytest.mark.parametrize("strict", [False, True])
def test_torch_exports_numbers_of_each_kind(
    strict: bool, everything: dlbridge.Kernel, framework: Any
) -> None:
    torch = framework("torch")

    class Module(torch.nn.Module):  # type: ignore[misc,name-defined]
        def forward(self, x: Any) -> Any:
            return everything(x)

    program = torch.export.export(Module(), (torch.tensor(X),), strict=strict).module()
    for values in (X, np.zeros(4, "f4")):
        assert given(program(torch.tensor(values))) == given(everything(values))


def test_torch_ops_returns_numbers(everything: dlbridge.Kernel, framework: Any) -> None:
    torch = framework("torch")
    x = torch.tensor(X)
    assert given(torch.ops.scalar.all(x)) == given(everything(X))
    schema = str(torch.ops.scalar.all.default._schema)
    assert schema.endswith("(Tensor x) -> (Tensor, SymInt, float, bool)")
    maybe = dlbridge.wrap(
        lambda x, k: (x, 1 if k is not None else None),
        "scalar::maybe(x: f32[n], *, k: int? = None) -> (f32[n], int? if k)",
        abi="python:numpy",
    )
    maybe.torch
    assert torch.ops.scalar.maybe(x)[1] is None
    assert torch.ops.scalar.maybe(x, k=0)[1] == 1


def test_what_torch_ops_returns_is_a_symbol_where_it_is_an_int(
    count: dlbridge.Kernel, framework: Any
) -> None:
    torch = framework("torch")
    count.torch
    x = torch.tensor(X)
    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        double = torch.compile(
            lambda x: x * torch.ops.scalar.count(x), fullgraph=True, backend="aot_eager"
        )
        assert double(x).tolist() == (2 * X).tolist()
        mean = dlbridge.wrap(
            lambda x: float(x.mean()), "scalar::mean(x: f32[n]) -> float", abi="python:numpy"
        )
        mean.torch
        function = torch.compile(
            lambda x: x * torch.ops.scalar.mean(x), fullgraph=True, backend="aot_eager"
        )
        with pytest.raises(Exception, match="result 'out' is not known while a program is traced"):
            function(x)


def test_a_batch_of_torch_gives_each_element_its_number(
    everything: dlbridge.Kernel, count: dlbridge.Kernel, framework: Any
) -> None:
    """A number within torch.vmap is a tensor without dimensions, as in jax.vmap."""
    torch = framework("torch")
    two = torch.tensor(np.stack([X, X + 1]))
    assert torch.vmap(count)(two).tolist() == [count(each) for each in two] == [2, 4]
    assert torch.vmap(torch.vmap(count))(two[None]).tolist() == [[2, 4]]
    assert torch.vmap(count.tensors)(two).tolist() == [2, 4]
    batch = torch.vmap(everything)(two)
    for place in range(4):
        singly = [everything(each)[place] for each in two]
        assert batch[place].tolist() == [np.asarray(each).tolist() for each in singly]

    def scaled(x: Any) -> Any:
        return (x * count(x)).sum()

    expected = [[2.0] * len(X), [4.0] * len(X)]
    for function in (
        torch.vmap(torch.func.grad(scaled)),
        torch.func.grad(lambda x: torch.vmap(scaled)(x).sum()),
    ):
        assert function(two).tolist() == expected
        compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
        assert compiled(two).tolist() == expected
    with pytest.raises(RuntimeError, match="data-dependent control flow"):
        torch.vmap(lambda x: x if count(x) > 2 else -x)(two)


def test_tensors_on_meta_have_no_number(count: dlbridge.Kernel, framework: Any) -> None:
    torch = framework("torch")
    with pytest.raises(KernelError, match=r"on 'meta' have no values; call \.tensors"):
        count(torch.empty(3, device="meta"))
    assert count.tensors(torch.empty(3, device="meta")).dtype == torch.int64


def test_torch_fx_records_the_call(everything: dlbridge.Kernel, framework: Any) -> None:
    torch = framework("torch")
    traced = torch.fx.symbolic_trace(lambda x: everything(x))
    assert given(traced(torch.tensor(X))) == given(everything(X))


# ---- derivatives ---------------------------------------------------------------------------------


def test_numbers_are_constants_and_tensors_beside_them_have_gradients(
    everything: dlbridge.Kernel, framework: Any
) -> None:
    torch, jax, tf = framework("torch"), framework("jax"), framework("tensorflow")

    def loss(x: Any) -> Any:
        y, k, m, _ = everything(x)
        return (y * m).sum() + k

    x = torch.tensor(X, requires_grad=True)
    loss(x).backward()
    assert x.grad.tolist() == [1.25] * 4
    for differentiate in (jax.grad(loss), jax.jit(jax.grad(loss))):
        assert differentiate(jax.numpy.asarray(X)).tolist() == [1.25] * 4
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        y, _, m, _ = everything(x)
        total = tf.reduce_sum(y * m)
    assert tape.gradient(total, x).numpy().tolist() == [1.25] * 4

    @tf.function
    def gradient(x: Any) -> Any:
        with tf.GradientTape() as tape:
            tape.watch(x)
            y, _, m, _ = everything(x)
            total = tf.reduce_sum(y * tf.cast(m, tf.float32))
        return tape.gradient(total, x)

    assert gradient(tf.constant(X)).numpy().tolist() == [1.25] * 4


def test_a_kernel_of_numbers_alone_needs_no_vjp(count: dlbridge.Kernel, framework: Any) -> None:
    torch, jax, tf = framework("torch"), framework("jax"), framework("tensorflow")
    x = torch.tensor(X, requires_grad=True)
    (x * count(x)).sum().backward()
    assert x.grad.tolist() == [2] * 4
    for array in (X, jax.numpy.asarray(X)):
        assert jax.grad(lambda x: (x * count(x)).sum())(array).tolist() == [2] * 4
    assert jax.jit(jax.grad(lambda x: (x * count(x)).sum()))(X).tolist() == [2] * 4
    x = tf.Variable(X)
    with tf.GradientTape() as tape:
        total = tf.reduce_sum(x * count(x))
    assert tape.gradient(total, x).numpy().tolist() == [2] * 4


def test_a_vjp_gets_a_number_as_a_tensor_and_no_cotangent_of_it(framework: Any) -> None:
    torch, jax = framework("torch"), framework("jax")

    def scale(x: Any) -> Any:
        return 3 * x, 3.0

    schema = "scalar::scale(x: f64[n]) -> (y: f64[n], by: float)"
    kernel = dlbridge.wrap(scale, schema, abi="python:numpy", vjp=lambda grad_y, by: grad_y * by)
    x = torch.ones(2, dtype=torch.float64, requires_grad=True)
    kernel(x)[0].sum().backward()
    assert x.grad.tolist() == [3, 3]
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with switch(True):
        assert jax.grad(lambda x: kernel(x)[0].sum())(jax.numpy.ones(2)).tolist() == [3, 3]
    with pytest.raises(UnsupportedTypeError, match="its vjp asks for 'grad_by'"):
        dlbridge.wrap(scale, schema, abi="python:numpy", vjp=lambda grad_y, grad_by: grad_y)
    with pytest.raises(ArgumentError, match=r"a number is a constant, and f32\[\] a result with"):
        dlbridge.wrap(scale, "scalar::s(x: f64[n]) -> float", abi="python:numpy", vjp=scale)


def test_derivatives_pass_by_a_call_that_gives_numbers_alone(framework: Any) -> None:
    """Without a vjp= or jvp=, in forward mode as well; a tensor that is left out is none."""
    torch, jax, tf = framework("torch"), framework("jax"), framework("tensorflow")
    mean = dlbridge.wrap(
        lambda x: float(x.mean()), "scalar::mean(x: f32[n]) -> float", abi="python:numpy"
    )
    chosen = dlbridge.wrap(
        lambda x, *, save: (float(x.mean()), x if save else None),
        "scalar::mean_and(x: f32[n], *, save: bool = False) -> (float, f32[n]? if save)",
        abi="python:numpy",
    )
    x, one = torch.tensor(X), torch.ones(len(X))
    for kernel in (mean, lambda x: chosen(x)[0]):
        function = lambda x, kernel=kernel: x * kernel(x)  # noqa: E731
        expected = [float(X.mean())] * len(X)
        assert torch.func.jvp(function, (x,), (one,))[1].tolist() == expected
        assert torch.func.jacfwd(function)(x).diagonal().tolist() == expected
        square = lambda x, kernel=kernel: (x * x * kernel(x)).sum()  # noqa: E731
        assert torch.func.hessian(square)(x).diagonal().tolist() == [2 * expected[0]] * len(X)
        array = jax.numpy.asarray(X)
        assert jax.jvp(function, (array,), (array / array,))[1].tolist() == expected
        for derived in (jax.grad(square), jax.jit(jax.grad(square))):
            assert derived(array).tolist() == (2 * X * expected[0]).tolist()
        value = tf.constant(X)
        with tf.autodiff.ForwardAccumulator(value, tf.ones_like(value)) as moved:
            result = function(value)
        assert moved.jvp(result).numpy().tolist() == expected
        with tf.GradientTape() as tape:
            tape.watch(value)
            loss = tf.reduce_sum(function(value))
        assert tape.gradient(loss, value).numpy().tolist() == expected
    assert torch.func.jvp(mean.tensors, (x,), (one,))[1].item() == 0
    with pytest.raises(KernelError, match="it has no tangent"):
        torch.func.jvp(lambda x: chosen(x, save=True)[0], (x,), (one,))
    with pytest.raises(KernelError, match="a derivative would pass through"):
        jax.grad(lambda x: chosen(x, save=True)[0] * x.sum())(array)


def test_forward_mode_moves_the_tensors_alone(everything: dlbridge.Kernel, framework: Any) -> None:
    torch, jax = framework("torch"), framework("jax")
    by_jvp = dlbridge.wrap(
        lambda x: (2 * x, 3.0),
        "scalar::forward(x: f32[n]) -> (y: f32[n], by: float)",
        abi="python:numpy",
        jvp=lambda tangent_x: 2 * tangent_x,
    )
    for kernel in (by_jvp, everything):  # or by the transpose of the vjp
        _, moved = torch.func.jvp(
            lambda x, kernel=kernel: kernel(x)[0], (torch.tensor(X),), (torch.ones(4),)
        )
        assert moved.tolist() == [2] * 4
    x = jax.numpy.asarray(X)
    for transformed in (lambda f: f, jax.jit):
        function = transformed(lambda x: jax.jvp(lambda x: by_jvp(x)[0], (x,), (x,))[1])
        assert function(x).tolist() == (2 * X).tolist()
    with pytest.raises(ArgumentError, match="batch='broadcast' cannot be where 'out' is a number"):
        dlbridge.wrap(
            lambda x: 3, "scalar::b(x: f32[..., n]) -> int", abi="python:numpy", batch="broadcast"
        )


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_a_function_of_the_framework_itself_is_differentiated_by_it(
    name: str, framework: Any
) -> None:
    torch, jax = framework("torch"), framework("jax")

    def square(x: Any) -> Any:  # of JAX, a number that is traced is an array
        number = (x > 0.5).sum()
        return x * x, number.item() if name == "torch" else number

    schema = "scalar::square(x: f32[n]) -> (f32[n], int)"
    kernel = dlbridge.wrap(square, schema, abi=f"python:{name}")
    assert given(kernel(X)) == ((X * X).tolist(), (int, 2))
    if name == "torch":
        x = torch.tensor(X, requires_grad=True)
        kernel(x)[0].sum().backward()
        assert x.grad.tolist() == (2 * X).tolist()
        compiled = torch.compile(kernel, fullgraph=True, backend="aot_eager")
        with torch._dynamo.config.patch(capture_scalar_outputs=True):
            assert given(compiled(torch.tensor(X))) == given(kernel(X))
    else:
        x = jax.numpy.asarray(X)
        assert jax.grad(lambda x: kernel(x)[0].sum())(x).tolist() == (2 * X).tolist()
        assert int(jax.jit(kernel)(x)[1]) == 2
        assert jax.vmap(kernel)(jax.numpy.stack([x, x + 1]))[1].tolist() == [2, 4]


# ---- programs of JAX and TensorFlow --------------------------------------------------------------


def test_jax_without_64_bits_names_its_own_arrays_in_refusals(framework: Any) -> None:
    jax = framework("jax")
    kernel = dlbridge.wrap(
        lambda x: float(x.sum()), "scalar::total(x: f64[n]) -> float", abi="python:numpy"
    )
    advice = r"got f32\[4\] \(jax\.Array, cpu\).*jax\.config\.update\(\"jax_enable_x64\", True\)"
    with pytest.raises(UnsupportedTypeError, match=advice):
        kernel(jax.numpy.asarray(X))


@pytest.mark.parametrize("is_wide", [False, True], ids=["32 bits", "64 bits"])
def test_numbers_of_traced_programs_of_jax_are_arrays_without_dimensions(
    is_wide: bool, everything: dlbridge.Kernel, framework: Any
) -> None:
    jax = framework("jax")
    switch = jax.enable_x64 if hasattr(jax, "enable_x64") else jax.experimental.enable_x64
    with switch(is_wide):
        x = jax.numpy.asarray(X)
        _, k, m, is_any = jax.jit(everything)(x)
        assert (int(k), float(m), bool(is_any)) == (4, 0.625, True)
        names = ("int64", "float64") if is_wide else ("int32", "float32")
        assert (k.dtype, m.dtype, is_any.dtype) == (*names, "bool")
        assert float(jax.jit(lambda x: 2 * everything(x)[2])(x)) == 1.25
        _, k, m, _ = jax.vmap(everything)(jax.numpy.stack([x, -x]))
        assert k.tolist() == [4, 0]
        assert m.tolist() == [0.625, -0.625]
        assert given(everything(x))[1:] == ((int, 4), (float, 0.625), (bool, True))


@pytest.mark.parametrize("value", [2**40, -(2**40), 2**31, 2**31 - 1, -(2**31), -5, 0])
def test_an_int_beyond_32_bits_is_the_nearest_one_where_jax_has_no_int64(
    value: int, framework: Any
) -> None:
    jax = framework("jax")
    kernel, x = returning("int", value), jax.numpy.asarray(X)
    assert kernel(x) == value
    assert int(jax.jit(kernel)(x)) == min(max(value, -(2**31)), 2**31 - 1)


@pytest.mark.parametrize(
    "value", [0.1, -1 / 3, 1e300, -1e300, 1e-300, -0.0, math.inf, math.nan, 2.0**127, 16777217.0,
              16777219.0, 3.4028235677973366e38, 1.17549435e-38]
)  # fmt: skip
def test_a_float_is_rounded_where_jax_has_no_float64(value: float, framework: Any) -> None:
    jax = framework("jax")
    kernel, x = returning("float", value), jax.numpy.asarray(X)
    assert str(kernel(x)) == str(value)
    with np.errstate(over="ignore"):
        expected = np.float32(value)
    found = np.asarray(jax.jit(kernel)(x))
    assert found.dtype == "float32"
    assert np.array_equal(found, expected, equal_nan=True)
    assert np.signbit(found) == np.signbit(expected)


def test_numbers_in_a_tf_function_are_tensors(everything: dlbridge.Kernel, framework: Any) -> None:
    tf = framework("tensorflow")
    function = tf.function(lambda x: everything(x)[1:])
    found = function(tf.constant(X))
    assert [each.dtype.name for each in found] == ["int64", "float64", "bool"]
    assert [each.numpy() for each in found] == [4, 0.625, True]
    two = tf.constant(np.stack([X, -X]))
    found = tf.vectorized_map(lambda x: everything(x)[1], two)
    assert found.numpy().tolist() == [4, 0]


# ---- what ships kernels --------------------------------------------------------------------------


def test_nodes_of_onnxruntime_have_tensors(count: dlbridge.Kernel, framework: Any) -> None:
    onnxruntime, onnx = framework("onnxruntime"), framework("onnx")
    options = onnxruntime.SessionOptions()
    dlbridge.register_onnxruntime(options, count)
    helper, kinds = onnx.helper, onnx.TensorProto
    node = helper.make_node("count", ["x"], ["k"], domain="scalar", above=0.5)
    graph = helper.make_graph(
        [node],
        "g",
        [helper.make_tensor_value_info("x", kinds.FLOAT, ["n"])],
        [helper.make_tensor_value_info("k", kinds.INT64, [])],
    )
    opsets = [helper.make_opsetid("scalar", 1), helper.make_opsetid("", 17)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=8)
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    (found,) = session.run(None, {"x": X})
    assert (found.shape, int(found)) == ((), 2)


def test_graphs_have_tensors(count: dlbridge.Kernel, framework: Any) -> None:
    framework("array_api_compat")
    from dlbridge import graph

    with graph.Graph().as_default():
        found = graph.call(count, [graph.constant(X)], above=0.6)
        assert found.shape.as_list() == []
        with graph.Session() as session:
            assert int(session.run(found)) == 2


def test_a_library_that_describes_itself(tmp_path: Path, compiled: Any) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    source = tmp_path / "scalar.c"
    exports = (
        f'DLB_EXPORT(count, "{COUNT.replace("scalar", "scalars")}", '
        f'.abi = "int64_t({X_IN_C}, double above)");\n'
        'DLB_EXPORT(dltensors, "scalars::first(x: f32[n]) -> (f32[], int)");\n'
    )
    source.write_text(SOURCE + exports)
    made = tmp_path / "libscalar.so"
    include = Path(__file__).resolve().parents[2] / "include"
    flags = ["-shared", "-fPIC", f"-I{include}", "-o", str(made)]
    subprocess.run([compiler, *flags, str(source)], check=True)
    library = dlbridge.load_library(made)
    assert given(library.count(X)) == (int, 2)
    assert given(library.first(X)) == (0.25, (int, 4))


def test_stubs_have_numbers_and_no_out(everything: dlbridge.Kernel) -> None:
    from dlbridge.frameworks.stubs import write_stub
    from dlbridge.kernels.exports import Export

    export = Export("all", 0, everything.schema, "dltensors", "", "", {})
    text = write_stub([export], ["numpy", "torch"])
    returned = "tuple[torch.Tensor, int, float, bool]"
    assert f"def __call__(self, x: torch.Tensor) -> {returned}: ..." in text


def test_paddle(everything: dlbridge.Kernel, framework: Any) -> None:
    paddle = framework("paddle")
    x = paddle.to_tensor(X, stop_gradient=False)
    y, k, m, is_any = everything(x)
    assert given((k, m, is_any)) == ((int, 4), (float, 0.625), (bool, True))
    (y * m).sum().backward()
    assert x.grad.numpy().tolist() == [1.25] * 4


def test_debug_mode_finds_a_number_that_is_not_written(compiled: Any) -> None:
    from dlbridge.errors import KernelDefectError

    source = "#include <stdint.h>\nvoid none(const float *x, int64_t *out) { (void)x; (void)out; }"
    kernel = dlbridge.compile_c(
        source, "none", "scalar::none(x: f32[n]) -> int", abi="void(const float *x, int64_t *out)"
    )
    with dlbridge.debug_kernels(), pytest.raises(KernelDefectError, match="scalar::none: result"):
        kernel(X)


def test_check_kernel(count: dlbridge.Kernel, framework: Any) -> None:
    framework("torch")  # which has a check of vmap
    report = check_kernel(
        count, lambda x, above: int((x > above).sum()), frameworks=["numpy", "torch", "jax"]
    )
    assert {row.check for row in report.rows if row.status == "passed"} >= {"numbers", "vmap"}


def test_check_kernel_finds_a_wrong_number(count: dlbridge.Kernel) -> None:
    with pytest.raises(AssertionError, match=r"numpy\.values"):
        check_kernel(count, lambda x, above: 77, frameworks=["numpy"])


PROGRAM = """
import sys
import numpy as np
import torch
import dlbridge

count = dlbridge.wrap(
    lambda x: (2 * x, int((x > 0.5).sum()), float(x.mean())),
    "scalar_saved::count(x: f32[n]) -> (f32[n], int, float)",
    abi="python:numpy",
)
x = torch.tensor([0.25, 0.75, 1.0, 0.5])

class Module(torch.nn.Module):
    def forward(self, x):
        return count(x)

if sys.argv[1] == "save":
    torch.export.save(torch.export.export(Module(), (x,)), sys.argv[2])
else:
    y, k, mean = torch.export.load(sys.argv[2]).module()(x)
    assert (y.tolist(), k, mean) == ([0.5, 1.5, 2.0, 1.0], 2, 0.625)
"""


@pytest.mark.full
def test_another_process_loads_a_program_with_numbers(tmp_path: Path, framework: Any) -> None:
    framework("torch")
    for what in ("save", "load"):
        command = [sys.executable, "-c", PROGRAM, what, str(tmp_path / "program.pt2")]
        subprocess.run(command, check=True, timeout=300)

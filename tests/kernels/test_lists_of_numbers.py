"""Arguments that are lists of numbers: `axes: int[]`, `shape: int[2]`, `weights: float[]`."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge
from dlbridge._core import native
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, KernelDefectError, UnsupportedTypeError
from dlbridge.kernels.schema import Described, Schema, write_list
from dlbridge.kernels.schema.parts import read_list
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

/* x times the sum of axes[i] * (i + 1) and of the weights; without axes, of 100 and those. */
int weigh(void *context, DLTensor *args, int count) {
    int64_t axis_count, weight_count;
    const int64_t *axes = dlb_get_ints(context, 0, &axis_count);
    const double *weights = dlb_get_floats(context, 1, &weight_count);
    double sum = axes == NULL ? 100 : 0;
    for (int64_t i = 0; i < axis_count; i++)
        sum += (double)axes[i] * (i + 1);
    for (int64_t i = 0; i < weight_count; i++)
        sum += weights[i];
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        ((float *)args[1].data)[i] = (float)(((float *)args[0].data)[i] * sum);
    return 0;
}

int full(void *context, DLTensor *args, int count) {
    int64_t rank, total = 1;
    const int64_t *shape = dlb_get_ints(context, 0, &rank);
    for (int64_t i = 0; i < rank; i++)
        total *= shape[i];
    for (int64_t i = 0; i < total; i++)
        ((float *)args[1].data)[i] = ((float *)args[0].data)[0];
    return rank == args[1].ndim ? 0 : dlb_set_error(context, "another rank");
}

void raw(float *out, int64_t n, const int64_t *axes, int32_t axes_count, const double *w) {
    for (int64_t i = 0; i < n; i++) {
        out[i] = (float)w[1];
        for (int32_t j = 0; j < axes_count; j++)
            out[i] += (float)axes[j];
    }
}

int nan_of_list(void *context, DLTensor *args, int count) {
    for (int64_t i = 0; i < args[1].shape[0]; i++)
        ((float *)args[1].data)[i] = (float)dlb_get_floats(context, 0, NULL)[0];
    return 0;
}
"""
WEIGH = "listed::weigh(x: f32[n], axes: int[]? = [1, 2], *, w: float[] = [0.5]) -> f32[n]"
FULL = "listed::full(x: f32[1], shape: int[]) -> f32[*shape]"
RAW = "listed::raw(*, n: int, axes: int[], w: float[2]) -> f32[n]"
INCLUDE = Path(__file__).resolve().parents[2] / "include"
FRAMEWORKS = ("numpy", "torch", "jax", "tensorflow")
F32 = DType("float32")


@pytest.fixture(scope="module")
def weigh(compiled: Any) -> dlbridge.Kernel:
    def vjp(grad: Any, *, axes: Any, w: Any) -> Any:
        assert all(type(each) is tuple for each in (axes, w) if each is not None)
        return made(grad, axes, w=w)

    made = dlbridge.compile_c(SOURCE, "weigh", WEIGH, vjp=vjp)
    return made


@pytest.fixture(scope="module")
def full(compiled: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(SOURCE, "full", FULL)


def weighed(x: Any, axes: Any = (1, 2), *, w: Any = (0.5,)) -> Any:
    sum_ = 100 if axes is None else sum(axis * (i + 1) for i, axis in enumerate(axes))
    return x * np.float32(sum_ + sum(w))


def tensor(name: str, values: Any) -> Any:
    return dlbridge.convert(np.asarray(values, "f4"), name, copy=True)


# ---- schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        WEIGH,
        FULL,
        RAW,
        "a::f(x: f32[...], axes: int[2] = [1, -2], s: float[]? = None) -> f32[...]",
        "a::f(x: f32[n], *, a: float[] = [1.0, inf, nan], b: int[0] = []) -> f32[n]",
        "a::f(x: f32[*size, c], *, size: int[2] = [3, 4]) -> f32[c, *size]",
    ],
)
def test_a_schema_is_read_back_from_its_text(text: str) -> None:
    schema = Schema.parse(text)
    assert str(schema) == text
    assert Schema.parse(str(schema)).encode() == schema.encode()


@pytest.mark.parametrize(
    "text",
    [
        "a::f(x: float[n], s: float[]) -> float[n]",
        "a::f(s: int[], x: int[n])",
        "a::f(s: float[]) -> float[]",
        "a::f(x: f32[n], s!: int[2])",
        "a::f(x: f32[n], s: K=int[2]) -> K[n]",
        "a::f(x: f32[n], s: i8|i16|i32|i64[])",
        "a::f(x: f32[n], s: bool[2])",
    ],
)
def test_brackets_stay_tensors_where_a_dtype_is_meant(text: str) -> None:
    schema = Schema.parse(text)
    assert str(schema) == text
    assert not schema.scalars


@pytest.mark.parametrize("kind", ["int", "float"])
def test_a_tensor_that_would_be_read_as_a_list_is_written_with_its_dtypes(kind: str) -> None:
    parsed = Schema.parse(f"a::f(x: {kind}[n], s: {kind}[])")
    schema = Schema("a", "f", parsed.parameters[1:])
    assert Schema.parse(str(schema)) == schema
    assert Schema.parse(str(schema)).tensors[0].dtype.dtypes == parsed.tensors[0].dtype.dtypes


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a::f(a: int[2] = [1])", "the default must have 2 numbers, got 1"),
        ("a::f(a: int[] = 3)", "the default of a list stands in brackets, got '3'"),
        ("a::f(a: int[] = [1.5])", "the default of int must be int, got 1.5"),
        ("a::f(a: int[] = [None])", "only an optional argument"),
        ("a::f(a: int[] = [1", "expected ',' or ']', got the end"),
        ("a::f(a: int[] = None)", "only an optional argument"),
        ("a::f(a: int[] = [9223372036854775808])", "does not fit 64 bits"),
        ("a::f(a: int[65])", "at most 64 numbers in a list, got 65"),
        (f"a::f(a: float[] = {[1] * 65})", "at most 64 numbers in a list, got 65"),
        (f"a::f({', '.join(f'a{i}: int[]' for i in range(9))})", "at most 8 lists of numbers"),
        ("a::f(x: f32[*s], s: int[]?)", r"'s' is a pack: it must be int\[\], not int\[\]\?"),
        ("a::f(x: f32[*s], s: float[])", r"'s' is a pack: it must be int\[\], not float\[\]"),
        ("a::f(x: f32[*s], s: int)", r"'s' is a pack: it must be int\[\], not int"),
        ("a::f(s: int[] = [1, -1]) -> f32[*s]", r"'s' is a pack: it cannot be \[1, -1\]"),
        ("a::f(x: f32[s], s: int[])", r"'s' is a dimension: it must be int, not int\[\]"),
        ("a::f(s: str[])", "unknown dtype 'str'"),
    ],
)
def test_a_schema_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Schema.parse(text)


def test_a_list_and_a_dtype_of_one_name_are_refused_where_parts_are_put_together() -> None:
    listed = Schema.parse("a::f(s: int[])").parameters
    dtype = Schema.parse("a::f(x: int[n])").parameters
    with pytest.raises(ArgumentError, match="'int' is the dtype of a tensor, and 's' no list"):
        Schema("a", "f", [*listed, *dtype])


def test_a_list_binds_the_dimensions_of_its_name() -> None:
    schema = Schema.parse("a::f(x: f32[n, *s], s: int[]) -> f32[*s, n]")
    x = Described((2, 3, 4), F32, "numpy.ndarray", "cpu")
    assert schema.results_of(schema.bind([x], [(3, 4)])) == [((3, 4, 2), F32)]
    assert schema.results_of(schema.bind([x], [None])) == [((3, 4, 2), F32)]
    with pytest.raises(ArgumentError, match=r"'x': expected f32\[n, \*s=\(3, 5\)\], got f32"):
        schema.bind([x], [(3, 5)])


def test_help_stub_and_signature_say_what_it_is(weigh: Any, full: Any) -> None:
    assert "axes: list or tuple of int, or None; [1, 2] if left out." in weigh.__doc__
    assert "shape: list or tuple of int; dimensions, at least 0." in full.__doc__
    assert weigh.__signature__.parameters["axes"].default == (1, 2)
    assert Schema.parse(RAW).parameters[2].type_text == "float[2]"


@given(numbers=st.lists(st.integers(-(2**63), 2**63 - 1), max_size=64))
def test_integers_cross_as_text(numbers: list[int]) -> None:
    assert read_list(write_list(numbers), "int[]") == tuple(numbers)


@given(numbers=st.lists(st.floats(), max_size=64))
def test_floats_cross_as_text_with_every_bit(numbers: list[float]) -> None:
    found = read_list(write_list(numbers), "float[]")
    assert np.array(found).tobytes() == np.array(numbers, "f8").tobytes()


@pytest.mark.parametrize(("text", "kind"), [("1,", "int[]"), ("a", "int[]"), ("1.5", "float[]")])
def test_a_text_that_is_not_a_list_is_refused(text: str, kind: str) -> None:
    with pytest.raises(ValueError, match="is not a list of"):
        read_list(text, kind)


# ---- eager calls -------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_lists_and_tuples_are_taken(name: str, weigh: Any, framework: Any) -> None:
    framework(name)
    x = np.array([1, -2], "f4")
    given: Any
    for given in ([3], (3, 4), [np.int64(3), 4], (), None, [2**40]):
        for _ in range(2):  # C remembers the first call
            found = weigh(tensor(name, x), given, w=(1, 2.5))
            assert np.allclose(np.asarray(found), weighed(x, given, w=(1, 2.5)))
    assert np.allclose(np.asarray(weigh(tensor(name, x))), weighed(x))


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_list_is_the_shape_of_a_result(name: str, full: Any, framework: Any) -> None:
    framework(name)
    x = tensor(name, [7])
    for shape in ([2, 3], [2, 3], [3, 2], (), [4, 0], [1] * 5):
        found = np.asarray(full(x, shape))
        assert found.shape == tuple(shape)
        assert (found == 7).all()


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_list_that_the_caller_changes_counts_anew(name: str, weigh: Any, framework: Any) -> None:
    framework(name)
    x, axes = tensor(name, [1]), [1]
    for axis in (1, 5, -3):
        axes[0] = axis
        assert np.asarray(weigh(x, axes)).tolist() == [axis + 0.5]


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (3, UnsupportedTypeError, r"'axes': expected int\[\]\?, got 3 \(int\)"),
        (range(3), UnsupportedTypeError, r"'axes': expected int\[\]\?, got range"),
        (np.arange(3), UnsupportedTypeError, r"got numpy.ndarray; pass a list of Python numbers"),
        ([1.5], UnsupportedTypeError, r"'axes\[0\]': expected int, got 1.5 \(float\)"),
        ([1, True], UnsupportedTypeError, r"'axes\[1\]': expected int, got True \(bool\)"),
        ([1, [2]], UnsupportedTypeError, r"'axes\[1\]': expected int, got \[2\] \(list\)"),
        ([1, 2**63], ArgumentError, r"'axes\[1\]': expected int of at most 64 bits"),
        ([1] * 65, ArgumentError, r"'axes': expected int\[\]\? of at most 64 numbers, got 65"),
    ],
)
def test_what_is_no_list_is_refused(weigh: Any, value: Any, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        weigh(np.ones(2, "f4"), value)


def test_a_list_of_another_length_is_refused(compiled: Any) -> None:
    kernel = dlbridge.compile_c(
        SOURCE, "raw", RAW, abi="void(float *out, int64_t n, const int64_t *axes, "
        "int32_t axes_count, const double *w)",
    )  # fmt: skip
    assert kernel.numpy(n=2, axes=[1, 2], w=[9, 0.5]).tolist() == [3.5, 3.5]
    assert kernel.numpy(n=1, axes=[], w=(0, 1)).tolist() == [1]
    with pytest.raises(ArgumentError, match=r"'w': expected float\[2\], got 1 of them"):
        kernel.numpy(n=2, axes=[1], w=[9])


def test_a_negative_extent_is_refused(full: Any) -> None:
    with pytest.raises(ArgumentError, match=r"'shape\[1\]': expected int >= 0, got -1"):
        full(np.ones(1, "f4"), [2, -1])
    out = np.zeros((2, 2), "f4")
    with pytest.raises(ArgumentError, match=r"'out': expected f32\[\*shape=\(2, 3\)\]"):
        full(np.ones(1, "f4"), [2, 3], out=out)
    assert full(np.ones(1, "f4"), [2, 2], out=out) is out
    assert (out == 1).all()


@pytest.mark.parametrize(
    ("signature", "words"),
    [
        ("int64_t *axes", "must be const|is not how C takes"),
        ("const double *axes", r"is not how C takes int\[\]"),
        ("const int *axes", r"is not how C takes int\[\]"),
        ("float axes_count", "must be an integer"),
    ],
)
def test_a_c_signature_that_does_not_fit_is_refused(signature: str, words: str) -> None:
    text = "listed::bad(*, n: int, axes: int[]) -> f32[n]"
    source = f"#include <stdint.h>\nvoid f(float *out, {signature}) {{}}"
    with pytest.raises(ArgumentError, match=words):
        dlbridge.compile_c(source, "f", text, abi=f"void(float *out, {signature})")


# ---- other kernels -----------------------------------------------------------------------------


@pytest.mark.parametrize("abi", ["python:numpy", "python:torch", "python:jax", "python:dlbridge"])
def test_python_functions_get_tuples(abi: str, framework: Any) -> None:
    name = abi.partition(":")[2]
    if name != "dlbridge":
        framework(name)
    given: list[Any] = []

    def sized(x: Any, *, size: Any, w: Any) -> Any:
        given.append((size, w))
        return x

    text = "listed::sized(x: f32[*size], *, size: int[], w: float[]? = None) -> f32[*size]"
    kernel = dlbridge.wrap(sized, text, abi=abi)
    for caller in ("numpy", "torch" if name == "dlbridge" else name.replace("dlbridge", "numpy")):
        if caller != "numpy":
            framework(caller)
        assert kernel(tensor(caller, [[1, 2]]), size=[1, 2], w=[1]).shape == (1, 2)
        assert kernel(tensor(caller, [[1, 2]]), size=(1, 2)).shape == (1, 2)
        assert given[-2:] == [((1, 2), (1.0,)), ((1, 2), None)]
        assert [type(each) for each in given[-2]] == [tuple, tuple]


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_kernels_in_cpp_get_them() -> None:
    source = r"""
    #include "dlbridge_kernel.hpp"
    DLB_KERNEL(sums) {
        double sum = 0;
        for (int64_t each : call.get_ints(0))
            sum += each;
        auto weights = call.get_floats(1);
        for (int64_t i = 0; i < weights.size(); i++)
            sum += weights[i];
        call.view<float, 1>(0)(0) = sum + (sum > 100 ? weights[7] : 0);
    }
    """
    text = "listed::sums(*, a: int[], w: float[]) -> f32[1]"
    kernel = dlbridge.compile_cpp(source, "sums", text)
    assert kernel.numpy(a=[1, 2], w=[0.5, 1]).tolist() == [4.5]
    with pytest.raises(dlbridge.errors.KernelError, match="number 7 of a list of 1"):
        kernel.numpy(a=[1000], w=[0.5])


def test_functions_of_tvm_are_refused_by_name(framework: Any) -> None:
    function = framework("tvm_ffi").convert(lambda x, axes: None)
    with pytest.raises(ArgumentError, match="argument 'axes': a function of tvm-ffi cannot"):
        dlbridge.wrap(function, "listed::tvm(x!: f32[n], axes: int[])")


def test_a_library_that_describes_itself_has_them(compiled: Any, tmp_path: Any) -> None:
    source, target = tmp_path / "listed.c", tmp_path / "liblisted.so"
    export = f'DLB_EXPORT(weigh, "{WEIGH.replace("listed", "shipped")}");'
    source.write_text(f"{SOURCE}{export}\n")
    command = ["cc", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", target, source]
    subprocess.run(command, check=True)
    library = dlbridge.load_library(target)
    assert library.weigh(np.ones(1, "f4"), [4]).tolist() == [4.5]


def test_debug_mode_looks_at_such_calls(weigh: Any, full: Any, compiled: Any) -> None:
    text = "listed::nans(x: f32[n], *, w: float[]) -> f32[n]"
    nans = dlbridge.compile_c(SOURCE, "nan_of_list", text)
    source = SOURCE.replace("NULL)[0];", "NULL)[0] + 0.0 / 0.0;")
    born = dlbridge.compile_c(source, "nan_of_list", text.replace("nans", "born"))
    x = np.ones(2, "f4")
    with dlbridge.debug_kernels():
        assert weigh(x, [2]).tolist() == [2.5, 2.5]
        assert full(x[:1], [2, 2]).shape == (2, 2)
        assert np.isnan(nans(x, w=[np.nan])).all()
        with pytest.raises(KernelDefectError, match="NaN"):
            born(x, w=[1])


def test_kernels_of_such_schemas_can_be_checked(weigh: Any, full: Any) -> None:
    report = check_kernel(weigh, weighed, scalars={"axes": [1, 2], "w": (0.25, 1)})
    assert "0 failed" in str(report)
    report = check_kernel(full, lambda x, shape: np.full(shape, x[0]), scalars={"shape": [3, 2]})
    assert "0 failed" in str(report)


# ---- frameworks --------------------------------------------------------------------------------


def test_torch(weigh: Any, full: Any, framework: Any) -> None:
    torch = framework("torch")
    x = torch.tensor([0.5, 1.5])
    operator = torch.ops.listed.weigh
    assert str(operator.default._schema).endswith(
        "weigh(Tensor x, SymInt[]? axes, *, float[] w=[0.5]) -> Tensor"  # torch reads no more
    )
    assert str(torch.ops.listed.full.default._schema).endswith("SymInt[] shape) -> Tensor")
    assert torch.equal(operator(x, [3]), x * 3.5)
    assert torch.equal(operator(x, [3], w=[1, 2]), x * 6)
    assert torch.equal(operator(x, None), x * 100.5)
    torch.library.opcheck(operator.default, (x, [3]), {"w": [1.0]})
    torch.library.opcheck(torch.ops.listed.full.default, (x[:1], [3, 2]))
    with pytest.raises(RuntimeError, match="a list has at most 64 numbers"):
        operator(x, [1] * 65)
    assert full(torch.ones(1, device="meta"), [2, 3]).shape == (2, 3)
    batch = torch.vmap(lambda x: weigh(x, [2]))(torch.stack([x, x]))
    assert torch.equal(batch, torch.stack([x, x]) * 2.5)


def test_gradients_of_torch_have_the_list_of_the_call(weigh: Any, framework: Any) -> None:
    torch = framework("torch")
    for function in (weigh, torch.ops.listed.weigh):
        x, axes = torch.ones(2, requires_grad=True), [3]
        y = function(x, axes, w=[1])
        axes[0] = 100
        y.sum().backward()
        assert x.grad.tolist() == [4, 4]
    assert torch.func.jvp(lambda x: weigh(x, [3], w=[1]), (x,), (x,))[1].tolist() == [4, 4]


def test_operators_of_a_libtorch_without_lists_are_in_python(
    weigh: Any, framework: Any, monkeypatch: Any
) -> None:
    torch = framework("torch")
    monkeypatch.setattr(native, "torch_op_has_lists", lambda: False)
    kernel = dlbridge.compile_c(SOURCE, "weigh", WEIGH.replace("listed", "listed_in_python"))
    x = torch.tensor([0.5, 1.5])
    assert torch.equal(torch.ops.listed_in_python.weigh(x, [3], w=[1]), x * 4)
    torch.library.opcheck(torch.ops.listed_in_python.weigh.default, (x, [3]))
    assert torch.equal(kernel(x, [3]), x * 3.5)


def test_torch_compiles_and_exports_symbolic_numbers(weigh: Any, full: Any, framework: Any) -> None:
    torch = framework("torch")

    def function(x: Any, a: int) -> Any:
        return full(x[:1], [x.shape[0], 2]) + weigh(x, [a, 1], w=(0.5, 1))[:, None]

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return function(x, 3)

    made = torch.compile(function, fullgraph=True, backend="aot_eager", dynamic=True)
    for size, a in ((2, 2), (3, 4), (5, 7)):
        x = torch.arange(1.0, size + 1)
        assert torch.equal(made(x, a), function(x, a))
    dims = {"x": {0: torch.export.Dim("n", min=2)}}
    program = torch.export.export(Module(), (torch.ones(3),), dynamic_shapes=dims)
    x = torch.arange(1.0, 6)
    assert torch.equal(program.module()(x), function(x, 3))
    torch.compiler.reset()


def test_sizes_that_come_out_of_data_are_dimensions(full: Any, framework: Any) -> None:
    torch = framework("torch")

    @torch.compile(fullgraph=True, backend="aot_eager")
    def function(x: Any, n: Any) -> Any:
        return full(x, [n.item(), 2])

    with torch._dynamo.config.patch(capture_scalar_outputs=True):
        assert function(torch.ones(1), torch.tensor(3)).shape == (3, 2)
    torch.compiler.reset()


def test_jax(weigh: Any, full: Any, framework: Any) -> None:
    jax = framework("jax")
    x = jax.numpy.array([0.5, 1.5])
    for call in (weigh, weigh.jax, jax.jit(lambda x, a: weigh(x, a), static_argnums=1)):
        assert call(x, (3, 1)).tolist() == (x * 5.5).tolist()
    shaped = jax.jit(full.jax, static_argnames="shape")
    assert shaped(x[:1], shape=(2, 3)).shape == (2, 3)
    assert jax.grad(lambda x: weigh(x, [3]).sum())(x).tolist() == [3.5, 3.5]
    assert jax.vmap(lambda x: weigh(x, [3]))(jax.numpy.stack([x, x])).shape == (2, 2)
    floats = [0.1, -0.0, float("inf")]
    assert jax.jit(lambda x: weigh(x, [], w=floats))(x).tolist() == [np.inf, np.inf]
    with pytest.raises(UnsupportedTypeError, match=r"'axes\[1\]': expected int that is known"):
        jax.jit(lambda x, a: weigh(x, [1, a]))(x, 3)


def test_jax_exports_them(weigh: Any, framework: Any) -> None:
    jax = framework("jax")
    from jax import export

    x = jax.numpy.array([0.5, 1.5])
    unchecked = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    program = export.export(jax.jit(lambda x: weigh(x, [3], w=[1])), disabled_checks=unchecked)(x)
    loaded = export.deserialize(program.serialize())
    assert loaded.call(x).tolist() == [2, 6]


def test_tensorflow(weigh: Any, full: Any, framework: Any) -> None:
    tf = framework("tensorflow")
    x = tf.constant([0.5, 1.5])

    @tf.function
    def function(x: Any) -> Any:
        return weigh(x, [3], w=(1,)), full(x[:1], [2, 3])

    found, shaped = function(x)
    assert found.numpy().tolist() == [2, 6]
    assert shaped.shape == (2, 3)
    assert function.get_concrete_function(x).output_shapes[1] == (2, 3)
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = weigh(x, [3])
    assert tape.gradient(y, x).numpy().tolist() == [3.5, 3.5]
    batch = tf.vectorized_map(lambda x: weigh(x, [3]), tf.stack([x, x]))
    assert batch.shape == (2, 2)
    with pytest.raises(UnsupportedTypeError, match="the numbers of a list must be known"):
        tf.function(lambda x, a: weigh(x, [a]))(x, tf.constant(3))


def test_damaged_lists_of_a_graph_are_refused(weigh: Any, framework: Any) -> None:
    tf = framework("tensorflow")
    x = tf.constant([0.5, 1.5])
    weigh(x)  # registers the op
    from tensorflow.python.framework import op_def_library

    @tf.function
    def function(x: Any, text: str) -> Any:
        _, _, _, results = op_def_library._apply_op_helper(
            "DlbridgeCall", inputs=[x], kernel="listed::weigh", present="", batched="",
            scalars=f"s{len(text)}:{text},n0:,", Tout=[1],
        )  # fmt: skip
        return results[0]

    for text in ("1,x", "1,", "1.5", "9" * 20, ",".join(["1"] * 65)):
        with pytest.raises(Exception, match=r"scalar 0: expected a list of int"):
            function(x, text)


@pytest.fixture(autouse=True)
def _collected() -> Iterator[None]:
    yield
    gc.collect()

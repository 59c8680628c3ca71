"""Kernels as operators of ONNX Runtime: in models, with attributes, shapes, errors and threads."""

from __future__ import annotations

import gc
import shutil
import subprocess
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.kernels.library import include_directory

ort = pytest.importorskip("onnxruntime")
onnx = pytest.importorskip("onnx")
helper = onnx.helper

SOURCE = """
#include "dlbridge_kernel.h"
#include <string.h>

static int64_t count(const DLTensor *x) {
    int64_t total = 1;
    for (int i = 0; i < x->ndim; i++)
        total *= x->shape[i];
    return total;
}

int scale(void *context, DLTensor *t, int n) {
    double factor = dlb_get_float(context, 0);
    if (factor == 13)
        return dlb_set_error(context, "%g is unlucky", factor);
    for (int64_t i = 0; i < count(t); i++)
        if (t[0].dtype.bits == 32)
            ((float *)t[1].data)[i] = (float)(factor * ((float *)t[0].data)[i]);
        else
            ((double *)t[1].data)[i] = factor * ((double *)t[0].data)[i];
    return 0;
}

/* out[0 .. n) = x, out[n .. 2 n) = y or 0, out[2 n] = how many scalars are there */
int join(void *context, DLTensor *t, int n) {
    int64_t size = t[0].shape[0];
    float *out = t[3].data;
    for (int64_t i = 0; i < size; i++) {
        out[i] = ((float *)t[0].data)[i];
        out[size + i] = dlb_is_missing(&t[1]) ? 0 : ((float *)t[1].data)[i];
    }
    out[2 * size] = dlb_is_missing(&t[2]) ? -1 : ((float *)t[2].data)[0];
    return 0;
}

int tell(void *context, DLTensor *t, int n) {
    const dlb_context *call = context;
    double *out = t[1].data;
    out[0] = (double)dlb_get_int(context, 0);
    out[1] = (double)dlb_get_int(context, 1);
    out[2] = (double)strlen(call->scalars[2].value.s);
    out[3] = call->scalars[3].kind == DLB_NONE ? -1 : dlb_get_float(context, 3);
    return 0;
}

/* How long both lists are, or -1; the ends of each. */
int ends(void *context, DLTensor *t, int n) {
    int64_t counts[2] = {-1, -1};
    const int64_t *axes = dlb_get_ints(context, 0, &counts[0]);
    const double *weights = dlb_get_floats(context, 1, &counts[1]);
    double *out = t[1].data;
    memset(out, 0, 6 * sizeof *out);
    out[0] = axes == NULL ? -1 : (double)counts[0];
    out[3] = weights == NULL ? -1 : (double)counts[1];
    if (counts[0] > 0) {
        out[1] = (double)axes[0];
        out[2] = (double)axes[counts[0] - 1];
    }
    if (counts[1] > 0) {
        out[4] = weights[0];
        out[5] = weights[counts[1] - 1];
    }
    return 0;
}

int fill(void *context, DLTensor *t, int n) {
    for (int64_t i = 0; i < count(&t[1]); i++)
        ((float *)t[1].data)[i] = *(float *)t[0].data;
    return 0;
}

int increase(void *context, DLTensor *t, int n) {
    for (int64_t i = 0; i < count(t); i++)
        ((float *)t[0].data)[i] += 1;
    *(int64_t *)t[1].data = count(t);
    return 0;
}
"""
NUMBERS = {np.dtype(name): number for name, number in (("f4", 1), ("f8", 11), ("i8", 7))}
DOMAIN = "ort_tests"


def compiled(name: str, schema: str) -> Any:
    """Return a kernel of SOURCE."""
    return dlbridge.compile_c(SOURCE, name, f"{DOMAIN}::{schema}")


@pytest.fixture(scope="module")
def scale() -> Any:
    return compiled("scale", "scale(x: A=f32|f64[*s], *, factor: float = 2.0) -> A[*s]")


def node(op: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    return helper.make_node(op, list(inputs), list(outputs), domain=DOMAIN, **attributes)


def model(nodes: Sequence[Any], inputs: dict[str, Any], outputs: Sequence[str]) -> bytes:
    """Return a model; an input is (dtype, shape), the outputs are to be inferred."""
    graph = helper.make_graph(
        list(nodes),
        "graph",
        [
            helper.make_tensor_value_info(name, NUMBERS[np.dtype(dtype)], shape)
            for name, (dtype, shape) in inputs.items()
        ],
        [onnx.ValueInfoProto(name=name) for name in outputs],
    )
    domains = [helper.make_opsetid("", 17), helper.make_opsetid(DOMAIN, 1)]
    made: bytes = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    return made


def opened(kernels: Any, *args: Any) -> Any:
    """Return a session of `model(*args)` with kernels."""
    options = ort.SessionOptions()
    options.log_severity_level = 4
    dlbridge.register_onnxruntime(options, kernels)
    return ort.InferenceSession(model(*args), options)


def chain(op: str, dtype: str, shape: Sequence[Any], length: int = 1, **attributes: Any) -> Any:
    """Return the arguments of a model of nodes in a row."""
    nodes = [node(op, [f"v{i}"], [f"v{i + 1}"], **attributes) for i in range(length)]
    return nodes, {"v0": (dtype, shape)}, [f"v{length}"]


@pytest.mark.parametrize("dtype", ["f4", "f8"])
def test_nodes_of_each_dtype_run_and_their_results_are_inferred(scale: Any, dtype: str) -> None:
    session = opened(scale, *chain("scale", dtype, ["batch", 3], 3, factor=3.0))
    (output,) = session.get_outputs()
    assert (output.type, output.shape) == (
        {"f4": "tensor(float)", "f8": "tensor(double)"}[dtype],
        ["batch", 3],
    )
    x = np.arange(6, dtype=dtype).reshape(2, 3)
    (y,) = session.run(None, {"v0": x})
    assert (y.dtype, y.tolist()) == (np.dtype(dtype), (27 * x).tolist())


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1, 2, 1, 2, 1, 2, 1)])
def test_each_rank_and_no_elements(scale: Any, shape: tuple[int, ...]) -> None:
    session = opened(scale, *chain("scale", "f8", shape))
    x = np.arange(np.prod(shape, dtype=int), dtype="f8").reshape(shape)
    (y,) = session.run(None, {"v0": x})
    assert (y.shape, y.tolist()) == (shape, (2 * x).tolist())


@pytest.mark.parametrize(
    ("given", "factor"),
    [({}, 2.0), ({"factor": 0.5}, 0.5), ({"factor": 3}, 3.0), ({"factor": "0.1"}, 0.1)],
)
def test_scalars_are_attributes(scale: Any, given: dict[str, Any], factor: float) -> None:
    """Text has the float64 that no attribute of ONNX holds."""
    session = opened(scale, *chain("scale", "f8", [2], **given))
    assert session.run(None, {"v0": np.array([1.0, 10.0])})[0].tolist() == [factor, 10 * factor]


def test_scalars_of_every_kind() -> None:
    kernel = compiled(
        "tell",
        "tell(x: f64[4], *, flag: bool, count: int = -7, word: str = 'abc', rest: float? = None)"
        " -> f64[4]",
    )
    x = {"v0": np.zeros(4)}
    session = opened(kernel, *chain("tell", "f8", [4], flag=1))
    assert session.run(None, x)[0].tolist() == [1, -7, 3, -1]
    session = opened(kernel, *chain("tell", "f8", [4], flag=0, count=2**62, word="", rest=1.5))
    assert session.run(None, x)[0].tolist() == [0, 2**62, 0, 1.5]
    with pytest.raises(Exception, match=f"{DOMAIN}::tell: attribute 'flag' is missing"):
        opened(kernel, *chain("tell", "f8", [4]))
    for wrong in ({"count": 1.5}, {"count": "1"}, {"word": 1}, {"rest": "much"}):
        with pytest.raises(Exception, match=f"attribute '{next(iter(wrong))}' is of another kind"):
            opened(kernel, *chain("tell", "f8", [4], flag=1, **wrong))


INTS, FLOATS = onnx.AttributeProto.INTS, onnx.AttributeProto.FLOATS
ENDS = "ends(x: f64[6], axes: int[]? = [7, -8], weights: float[]? = None) -> f64[6]"


def listed(attributes: Sequence[Any]) -> list[float]:
    """Return what a node of `ends` with these attributes gives."""
    made = node("ends", ["x"], ["y"])
    made.attribute.extend([helper.make_attribute(*each) for each in attributes])
    session = opened(compiled("ends", ENDS), [made], {"x": ("f8", [6])}, ["y"])
    found: list[float] = session.run(None, {"x": np.zeros(6)})[0].tolist()
    return found


@pytest.mark.parametrize(
    ("attributes", "expected"),
    [
        ([], [2, 7, -8, -1, 0, 0]),
        ([("axes", [2**53, 1, 0]), ("weights", [0.5])], [3, 2**53, 0, 1, 0.5, 0.5]),
        ([("weights", [3, 4])], [2, 7, -8, 2, 3, 4]),
        ([("weights", "0.1, 2, inf")], [2, 7, -8, 3, 0.1, np.inf]),
        ([("axes", [], "", INTS), ("weights", [], "", FLOATS)], [0, 0, 0, 0, 0, 0]),
        ([("axes", range(64))], [64, 0, 63, -1, 0, 0]),
    ],
)
def test_lists_of_numbers_are_attributes(attributes: Sequence[Any], expected: Any) -> None:
    """Ints are floats as well, and text has the float64 that no attribute of ONNX holds."""
    assert listed(attributes) == expected


@pytest.mark.parametrize(
    ("name", "value"),
    [("axes", 1), ("axes", "1"), ("axes", [1.0]), ("axes", b""), ("weights", 0.5),
     ("weights", ""), ("weights", "much"), ("weights", "1,,2"), ("weights", "1,"),
     ("weights", ", ".join("1" * 65))],
)  # fmt: skip
def test_an_attribute_that_is_no_list_of_the_kind_is_refused(name: str, value: Any) -> None:
    with pytest.raises(Exception, match=f"ends: attribute '{name}' is of another kind; .* a list"):
        listed([(name, value)])


def test_lists_of_another_length_are_refused_when_the_model_is_opened() -> None:
    with pytest.raises(Exception, match="attribute 'axes' has another number of elements"):
        listed([("axes", range(65))])
    kernel = compiled("ends", "pair(x: f64[6], axes: int[2], weights: float[1]? = None) -> f64[6]")
    with pytest.raises(Exception, match=r"'axes' has another number .* takes a list, int\[\] of 2"):
        opened(kernel, *chain("pair", "f8", [6], axes=[1, 2, 3]))
    with pytest.raises(Exception, match="attribute 'axes' is missing"):
        opened(kernel, *chain("pair", "f8", [6]))
    session = opened(kernel, *chain("pair", "f8", [6], axes=[1, 2]))
    assert session.run(None, {"v0": np.zeros(6)})[0].tolist() == [2, 1, 2, -1, 0, 0]


def test_a_list_is_the_shape_of_a_result() -> None:
    """In first runs, and in later ones, which go by what the first one has found."""
    kernel = compiled("fill", "fill(value: f32[], extents: int[]) -> f32[*extents]")
    session = opened(kernel, *chain("fill", "f4", [], extents=[2, 0, 3]))
    assert session.run(None, {"v0": np.array(2, "f4")})[0].shape == (2, 0, 3)
    session = opened(kernel, *chain("fill", "f4", [], extents=[2, 1]))
    for value in (1, 2, 3):
        (filled,) = session.run(None, {"v0": np.array(value, "f4")})
        assert filled.tolist() == [[value], [value]]
    session = opened(kernel, *chain("fill", "f4", [], extents=[2, -1]))
    with pytest.raises(Exception, match=f"{DOMAIN}::fill: argument 'extents.*expected int >= 0"):
        session.run(None, {"v0": np.array(1, "f4")})


def test_a_python_kernel_gets_a_tuple_of_an_attribute() -> None:
    def weigh(x: Any, axes: Any, weights: Any) -> Any:
        return np.float32([axes == (3, 4), weights == (0.5,)])

    text = f"{DOMAIN}::weigh(x: f32[2], axes: int[], weights: float[]) -> f32[2]"
    kernel = dlbridge.wrap(weigh, text, abi="python:numpy")
    session = opened(kernel, *chain("weigh", "f4", [2], axes=[3, 4], weights=[0.5]))
    assert session.run(None, {"v0": np.zeros(2, "f4")})[0].tolist() == [1, 1]


def test_optional_inputs_may_be_left_out_anywhere() -> None:
    kernel = compiled("join", "join(x: f32[n], y: f32[n]? = None, z: f32[1]? = None) -> f32[2*n+1]")
    inputs = {name: ("f4", [2]) for name in "xy"} | {"z": ("f4", [1])}
    feeds = {"x": np.float32([1, 2]), "y": np.float32([3, 4]), "z": np.float32([5])}
    for given, expected in (
        (["x"], [1, 2, 0, 0, -1]),
        (["x", "y"], [1, 2, 3, 4, -1]),
        (["x", "", "z"], [1, 2, 0, 0, 5]),
        (["x", "y", "z"], [1, 2, 3, 4, 5]),
    ):
        used = {name: inputs[name] for name in given if name}
        session = opened(kernel, [node("join", given, ["out"])], used, ["out"])
        (y,) = session.run(None, {name: feeds[name] for name in used})
        assert y.tolist() == expected


def test_shapes_of_results_are_computed_where_they_are_known() -> None:
    kernel = compiled("join", "lengthen(x: f32[n], y: f32[n], z: f32[1]) -> f32[2*n+1]")
    inputs = {"x": ("f4", ["n"]), "y": ("f4", [4]), "z": ("f4", [1])}
    session = opened(kernel, [node("lengthen", "xyz", ["out"])], inputs, ["out"])
    assert session.get_outputs()[0].shape == [9]
    inputs["y"] = ("f4", ["m"])
    session = opened(kernel, [node("lengthen", "xyz", ["out"])], inputs, ["out"])
    feeds = {"x": np.float32([1]), "y": np.float32([2]), "z": np.float32([3])}
    assert session.run(None, feeds)[0].tolist() == [1, 2, 3]


def test_a_written_argument_is_an_output_and_the_input_stays() -> None:
    kernel = compiled("increase", "increase(x!: f32[n]) -> i64[]")
    session = opened(
        kernel, [node("increase", ["x"], ["count", "y"])], {"x": ("f4", ["n"])}, ["count", "y", "x"]
    )
    assert [each.shape for each in session.get_outputs()][1:] == [["n"], ["n"]]
    x = np.float32([1, 2, 3])
    count, y, same = session.run(None, {"x": x})
    assert (count.item(), y.tolist(), same.tolist()) == (3, [2, 3, 4], [1, 2, 3])
    assert x.tolist() == [1, 2, 3]


def test_a_failing_kernel_says_so_in_its_own_words(scale: Any) -> None:
    session = opened(scale, *chain("scale", "f8", [2], factor=13.0))
    with pytest.raises(Exception, match=f"{DOMAIN}::scale: 13 is unlucky"):
        session.run(None, {"v0": np.ones(2)})


def test_a_mismatch_names_the_argument() -> None:
    kernel = compiled("join", "unequal(x: f32[n], y: f32[n], z: f32[1]) -> f32[2*n+1]")
    inputs = {"x": ("f4", ["a"]), "y": ("f4", ["b"]), "z": ("f4", ["c"])}
    session = opened(kernel, [node("unequal", "xyz", ["out"])], inputs, ["out"])
    feeds = {"x": np.ones(2, "f4"), "y": np.ones(3, "f4"), "z": np.ones(1, "f4")}
    with pytest.raises(Exception, match=r"argument 'y': expected f32\[n=2\], got f32\[3\]"):
        session.run(None, feeds)


def test_a_dtype_that_the_schema_lacks_is_refused_at_load(scale: Any) -> None:
    with pytest.raises(Exception, match=r"tensor\(int64\)"):
        opened(scale, *chain("scale", "i8", [2]))


def test_python_functions_and_their_exceptions() -> None:
    def halve(x: Any) -> Any:
        if x[0] < 0:
            raise ValueError("no negative numbers")
        return x / 2

    kernel = dlbridge.wrap(halve, f"{DOMAIN}::halve(x: f64[n]) -> f64[n]", abi="python:numpy")
    session = opened(kernel, *chain("halve", "f8", ["n"], 2))
    assert session.run(None, {"v0": np.array([4.0, 8.0])})[0].tolist() == [1, 2]
    with pytest.raises(Exception, match="no negative numbers"):
        session.run(None, {"v0": np.array([-1.0])})


def test_debug_mode_checks_the_nodes_of_a_session() -> None:
    kernel = compiled("tell", "short(x: f32[n], *, a: int, b: int, c: str, d: float?) -> f64[5]")
    attributes = {"a": 1, "b": 2, "c": "three"}
    session = opened(kernel, *chain("short", "f4", [2], **attributes))
    x = np.zeros(2, "f4")
    for _ in range(2):  # the second time the node is known
        session.run(None, {"v0": x})
        with dlbridge.debug_kernels(), pytest.raises(Exception, match=r"left 1 of 5 .* at \[4\]"):
            session.run(None, {"v0": x})


def test_many_threads_run_one_session(scale: Any) -> None:
    session = opened(scale, *chain("scale", "f8", ["n"], 20, factor=1.5))

    def run(number: int) -> bool:
        x = np.arange(number, dtype="f8")
        return bool((session.run(None, {"v0": x})[0] == x * 1.5**20).all())

    with ThreadPoolExecutor(4) as pool:
        assert all(pool.map(run, range(200)))


def test_a_session_keeps_the_kernels_that_it_was_opened_with() -> None:
    """Also where the name means another kernel now."""

    def open_one(factor: float) -> Any:
        schema = f"renewed(x: f64[n], *, factor: float = {factor}) -> f64[n]"
        return opened(compiled("scale", schema), *chain("renewed", "f8", [1]))

    old, new = open_one(2.0), open_one(5.0)
    gc.collect()
    x = {"v0": np.ones(1)}
    assert (old.run(None, x)[0].item(), new.run(None, x)[0].item()) == (2, 5)


def test_options_may_get_kernels_in_several_calls_and_of_several_namespaces(scale: Any) -> None:
    other = dlbridge.compile_c(
        SOURCE, "scale", "ort_tests_2::triple(x: f64[n], *, factor: float = 3.0) -> f64[n]"
    )
    graph = helper.make_graph(
        [
            node("scale", ["x"], ["y"]),
            helper.make_node("triple", ["y"], ["z"], domain="ort_tests_2"),
        ],
        "graph",
        [helper.make_tensor_value_info("x", 11, [1])],
        [helper.make_tensor_value_info("z", 11, [1])],
    )
    domains = [helper.make_opsetid(name, 1) for name in (DOMAIN, "ort_tests_2")]
    data = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    for calls in ([[scale, other]], [[scale], [other]]):
        options = ort.SessionOptions()
        for kernels in calls:
            dlbridge.register_onnxruntime(options, kernels)
        session = ort.InferenceSession(data, options)
        assert session.run(None, {"x": np.ones(1)})[0].item() == 6


def test_a_library_that_describes_itself_brings_all_of_its_kernels(tmp_path: Path) -> None:
    source, built = tmp_path / "own.c", tmp_path / "libown.so"
    exports = """
    static int own(void *context, DLTensor *t, int n) {
        *(double *)t[1].data = *(double *)t[0].data + dlb_get_float(context, 0);
        return 0;
    }
    DLB_EXPORT(own, "ort_tests_3::raised(x: f64[], *, by: float = 1.0) -> f64[]");
    """
    source.write_text(f'#include "dlbridge_kernel.h"\n{exports}')
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler")
    include = f"-I{include_directory()}"
    subprocess.run(
        [compiler, "-std=c11", "-shared", "-fPIC", include, source, "-o", built], check=True
    )
    graph = helper.make_graph(
        [helper.make_node("raised", ["x"], ["y"], domain="ort_tests_3", by=2.5)],
        "graph",
        [helper.make_tensor_value_info("x", 11, [])],
        [helper.make_tensor_value_info("y", 11, [])],
    )
    domains = [helper.make_opsetid("ort_tests_3", 1)]
    data = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
    options = ort.SessionOptions()
    dlbridge.register_onnxruntime(options, dlbridge.load_library(built))
    assert ort.InferenceSession(data, options).run(None, {"x": np.array(1.0)})[0].item() == 3.5


def test_values_cross_in_the_same_memory_by_io_binding(scale: Any) -> None:
    if not hasattr(ort.OrtValue, "from_dlpack"):
        pytest.skip("onnxruntime before 1.31 imports no DLPack")
    session = opened(scale, *chain("scale", "f4", [4]))
    x, y = np.arange(4, dtype="f4"), np.zeros(4, "f4")
    binding = session.io_binding()
    binding.bind_ortvalue_input("v0", dlbridge.to_onnxruntime(x))
    binding.bind_ortvalue_output("v1", dlbridge.to_onnxruntime(y))
    session.run_with_iobinding(binding)
    assert y.tolist() == [0, 2, 4, 6]


def test_shapes_may_change_from_run_to_run_and_back(scale: Any) -> None:
    """Runs like the first take a shorter way than the others."""
    session = opened(scale, *chain("scale", "f8", ["a", "b"], 2))
    for shape in ((2, 3), (2, 3), (3, 2), (2, 3), (0, 3), (6, 1), (2, 3)):
        x = np.random.default_rng(len(shape)).random(shape)
        assert session.run(None, {"v0": x})[0].tolist() == (4 * x).tolist()


def test_an_error_after_good_runs_is_told_as_well() -> None:
    def inverse(x: Any) -> Any:
        return 1 / x

    source = """
    #include "dlbridge_kernel.h"
    int inverse(void *context, DLTensor *t, int n) {
        double x = *(double *)t[0].data;
        *(double *)t[1].data = 1 / x;
        return x == 0 ? dlb_set_error(context, "no inverse of zero") : 0;
    }
    """
    kernel = dlbridge.compile_c(source, "inverse", f"{DOMAIN}::inverse(x: f64[]) -> f64[]")
    session = opened(kernel, *chain("inverse", "f8", []))
    for _ in range(3):
        assert session.run(None, {"v0": np.array(4.0)})[0].item() == inverse(4.0)
        with pytest.raises(Exception, match=f"{DOMAIN}::inverse: no inverse of zero"):
            session.run(None, {"v0": np.array(0.0)})


def test_an_output_bound_to_the_memory_of_an_input_is_refused(scale: Any) -> None:
    """In the first run and in later ones; memory beside it is fine."""
    if not hasattr(ort.OrtValue, "from_dlpack"):
        pytest.skip("onnxruntime before 1.31 imports no DLPack")
    session = opened(scale, *chain("scale", "f4", [4]))
    memory = np.arange(12, dtype="f4")

    def run(start: int) -> None:
        binding = session.io_binding()
        binding.bind_ortvalue_input("v0", dlbridge.to_onnxruntime(memory[4:8]))
        binding.bind_ortvalue_output("v1", dlbridge.to_onnxruntime(memory[start : start + 4]))
        session.run_with_iobinding(binding)

    for _ in range(2):
        for start in (1, 4, 7):
            with pytest.raises(Exception, match=r"memory shared with 'x'.*\[overlap\]"):
                run(start)
        run(0)
        run(8)
    assert memory.tolist() == [8, 10, 12, 14, 4, 5, 6, 7, 8, 10, 12, 14]


def test_a_kernel_that_needs_alignment_gets_it_from_any_memory() -> None:
    if not hasattr(ort.OrtValue, "from_dlpack"):
        pytest.skip("onnxruntime before 1.31 imports no DLPack")
    source = """
    #include "dlbridge_kernel.h"
    int address(void *context, DLTensor *t, int n) {
        *(int64_t *)t[1].data = (int64_t)((uintptr_t)t[0].data % 64);
        return 0;
    }
    """
    schema = f"{DOMAIN}::address(x: f32[4]) -> i64[]"
    kernel = dlbridge.compile_c(source, "address", schema, align=64)
    session = opened(kernel, *chain("address", "f4", [4]))
    memory = np.zeros(64, "f4")
    for start in range(16):
        binding = session.io_binding()
        x = dlbridge.to_onnxruntime(memory[start : start + 4])
        binding.bind_ortvalue_input("v0", x)
        binding.bind_output("v1")
        session.run_with_iobinding(binding)
        assert binding.copy_outputs_to_cpu()[0].item() == 0


def test_a_kernel_that_cannot_be_an_operator_is_refused_before_any_is_registered(
    scale: Any,
) -> None:
    options = ort.SessionOptions()

    def check(kernels: Any, match: str, options: Any = options) -> None:
        with pytest.raises(ArgumentError, match=f"register_onnxruntime: .*{match}"):
            dlbridge.register_onnxruntime(options, kernels)

    check(scale, "session_options must be an onnxruntime.SessionOptions, got int", 3)
    check(3, "kernels must be kernels, got int")
    check([scale, 3], "kernels must be kernels, got int")
    check([scale, scale], f"two of the kernels are called {DOMAIN}::scale")
    check(dlbridge.compile_c(SOURCE, "scale"), "has no schema")
    check(compiled("scale", "complex(x: c64[n]) -> c64[n]"), "c64, which ONNX Runtime does not")
    check(compiled("increase", "nothing(x: f32[n]) -> ()"), "has no results")
    check(compiled("join", "all(x: A=any[n], y: B=any[n], z: C=any[n]) -> A[n]"), "1000")
    dlbridge.register_onnxruntime(options, [])


def test_options_take_the_kernels_of_a_namespace_in_one_call(scale: Any) -> None:
    """ONNX Runtime would refuse to open a session; those that are there are passed over."""
    options = ort.SessionOptions()
    dlbridge.register_onnxruntime(options, scale)
    dlbridge.register_onnxruntime(options, [scale])
    other = dlbridge.wrap(lambda x: x, "onnx_other::same(x: f32[n]) -> f32[n]", abi="python:numpy")
    dlbridge.register_onnxruntime(options, [scale, other])
    beside = compiled("scale", "beside(x: f32[n]) -> f32[n]")
    with pytest.raises(ArgumentError, match=f"have {DOMAIN}::scale already, .* in one call"):
        dlbridge.register_onnxruntime(options, [beside])
    dlbridge.register_onnxruntime(ort.SessionOptions(), [beside, scale])
    node = onnx.helper.make_node("same", ["x"], ["y"], domain="onnx_other")
    value = onnx.helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])
    graph = onnx.helper.make_graph([node], "g", [value], [onnx.ValueInfoProto(name="y")])
    domains = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("onnx_other", 1)]
    model = onnx.helper.make_model(graph, opset_imports=domains, ir_version=8)
    session = ort.InferenceSession(model.SerializeToString(), options)
    assert session.run(None, {"x": np.ones(2, "f4")})[0].tolist() == [1, 1]


def test_of_a_library_those_kernels_are_registered_that_a_model_can_have(tmp_path: Path) -> None:
    """Beside some with lists, dtypes, sizes that the kernel says, or dtypes that ONNX lacks."""
    schemas = {
        "one": "some::one(x: f32[n]) -> f32[n]",
        "two": "some::two(xs: f32[n][]) -> f32[1]",
        "three": "some::three(x: f32[n], *, to: dtype) -> to[n]",
        "four": "some::four(x: f32[n]) -> f32[k<=n]",
        "five": "some::five(x: f32[n], *, at: bool = False) -> (f32[n], i64[n]? if at)",
        "six": "some::six(x: c64[n]) -> c64[n]",
        "seven": "some::seven(x!: f32[n])",
        "eight": "some::eight(x: f32[n]) -> float",
    }
    source, path = tmp_path / "some.c", tmp_path / "libsome.so"
    source.write_text(
        '#include "dlbridge_kernel.h"\n'
        + "".join(
            f"static int {name}(void *c, DLTensor *t, int n) {{ (void)c; (void)t; return n < 0; }}"
            f'DLB_EXPORT({name}, "{schema}");\n'
            for name, schema in schemas.items()
        )
    )
    compiler = shutil.which("cc") or pytest.skip("there is no C compiler here")
    flags = ["-shared", "-fPIC", f"-I{include_directory()}", "-o", path, source]
    subprocess.run([compiler, *flags], check=True)
    library = dlbridge.load_library(path)
    options = ort.SessionOptions()
    dlbridge.register_onnxruntime(options, library)
    helper = onnx.helper
    for name in schemas:
        graph = helper.make_graph(
            [helper.make_node(name, ["x"], ["y"], domain="some")],
            "graph",
            [helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, ["n"])],
            [onnx.ValueInfoProto(name="y")],
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("some", 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=8).SerializeToString()
        if name in ("one", "seven", "eight"):
            ort.InferenceSession(model, options)
        else:
            with pytest.raises(Exception, match=f"some:{name}"):
                ort.InferenceSession(model, options)
    with pytest.raises(ArgumentError, match="some::two: it has a list of tensors"):
        dlbridge.register_onnxruntime(options, list(library.kernels.values()))


def test_the_core_is_no_library_of_operators_by_itself() -> None:
    with pytest.raises(Exception, match=r"call dlbridge\.register_onnxruntime"):
        ort.SessionOptions().register_custom_ops_library(native.__file__)

"""Dimensions that only an expression determines: `glu(x: f32[..., 2*n]) -> f32[..., n]`."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

import dlbridge
from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema import Described, Schema
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

static int64_t rows(const DLTensor *x) {
    int64_t count = 1;
    for (int i = 0; i + 1 < x->ndim; i++)
        count *= x->shape[i];
    return count;
}

/* The first half of each row times the second. */
int glu(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    float *out = args[1].data;
    int64_t n = args[1].shape[args[1].ndim - 1];
    for (int64_t i = 0; i < rows(&args[0]); i++)
        for (int64_t k = 0; k < n; k++)
            out[i * n + k] = x[2 * i * n + k] * x[(2 * i + 1) * n + k];
    return 0;
}

int glu_vjp(void *context, DLTensor *args, int count) {
    const float *x = args[0].data, *grad = args[1].data;
    float *out = args[2].data;
    int64_t n = args[1].shape[args[1].ndim - 1];
    for (int64_t i = 0; i < rows(&args[0]); i++)
        for (int64_t k = 0; k < n; k++) {
            out[2 * i * n + k] = x[(2 * i + 1) * n + k] * grad[i * n + k];
            out[(2 * i + 1) * n + k] = x[2 * i * n + k] * grad[i * n + k];
        }
    return 0;
}

void raw(const float *x, float *out, int64_t n) {
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)n + x[2 * i];
}
"""
GLU = "solved::glu(x: f32[..., 2*n]) -> f32[..., n]"
REFUSED = r"solved::glu: argument 'x': expected f32\[\.\.\.=\(3\), 2\*n\], got f32\[3, 5\]"
F32 = dlbridge.DType("float32")


@pytest.fixture(scope="module")
def glu(compiled: Any) -> dlbridge.Kernel:
    vjp = dlbridge.compile_c(
        SOURCE, "glu_vjp", "solved::glu_vjp(x: f32[..., 2*n], grad: f32[..., n]) -> f32[..., 2*n]"
    )
    return dlbridge.compile_c(SOURCE, "glu", GLU, vjp=vjp)


def formula(x: Any) -> Any:
    n = x.shape[-1] // 2
    return x[..., :n] * x[..., n:]


def tensor(*shape: Any) -> Described:
    return Described(shape, F32, "numpy.ndarray", "cpu")


def names(text: str, *shapes: Any, scalars: Any = ()) -> dict[str, Any]:
    return Schema.parse(text).bind([tensor(*shape) for shape in shapes], scalars).names


# ---- schemas -----------------------------------------------------------------------------------

SOLVED = [
    ("a::f(x: f32[2*n])", [(6,)], {"n": 3}),
    ("a::f(x: f32[2*n])", [(0,)], {"n": 0}),
    ("a::f(x: f32[n+1])", [(1,)], {"n": 0}),
    ("a::f(x: f32[5-n])", [(3,)], {"n": 2}),
    ("a::f(x: f32[(n-1)*3+2])", [(11,)], {"n": 4}),
    ("a::f(x: f32[n*m+k], y: f32[m], z: f32[k])", [(7,), (2,), (1,)], {"m": 2, "k": 1, "n": 3}),
    ("a::f(x: f32[n+m+k, 2*n, m-n])", [(9, 4, 1), ], {"n": 2, "m": 3, "k": 4}),
    ("a::f(x: f32[*b, 2*n, c])", [(5, 6, 4, 7)], {"c": 7, "n": 2}),
    ("a::f(x: f32[2*n, *b])", [(4, 6, 7)], {"n": 2}),
    ("a::f(x: f32[m//2*n], y: f32[m])", [(6,), (5,)], {"m": 5, "n": 3}),
    ("a::f(x: f32[n-m+m*1], y: f32[m])", [(4,), (9,)], {"m": 9, "n": 4}),
    ("a::f(x: f32[2*n])", [(None,)], {"n": None}),
]  # fmt: skip
UNSOLVED = [
    ("a::f(x: f32[2*n])", [(5,)], "argument 'x': expected f32[2*n], got f32[5]"),
    ("a::f(x: f32[n+2])", [(1,)], "argument 'x': expected f32[n+2], got f32[1]"),
    ("a::f(x: f32[5-n])", [(6,)], "argument 'x': expected f32[5-n], got f32[6]"),
    ("a::f(y: f32[m], x: f32[n*m])", [(0,), (0,)], "argument 'x': expected f32[n*m], got f32[0]"),
    ("a::f(x: f32[2*n], z: f32[3*n])", [(4,), (9,)], "argument 'z': expected f32[3*n=6], got f32"),
    ("a::f(x: f32[n, 2*m, n+m])", [(1, 4, 4)], "argument 'x': expected f32[n=1, 2*m=4, n+m=3]"),
]
NOT_DETERMINED = [
    "n*n", "n//2", "n+m", "n*m", "2//n", "n-n+1-n//1", "n*(n-1)", "(n+1)//2*2",
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes", "expected"), SOLVED)
def test_an_expression_with_one_unknown_is_solved(text: str, shapes: Any, expected: Any) -> None:
    assert names(text, *shapes) == expected


@pytest.mark.parametrize(("text", "shapes", "words"), UNSOLVED)
def test_an_extent_without_a_solution_is_refused(text: str, shapes: Any, words: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        names(text, *shapes)
    assert words in str(caught.value)


@pytest.mark.parametrize("expression", NOT_DETERMINED)
def test_what_is_not_linear_in_one_unknown_is_refused_when_the_schema_is_made(
    expression: str,
) -> None:
    with pytest.raises(ArgumentError, match="is not determined by any argument"):
        Schema.parse(f"a::f(x: f32[{expression}])")


def test_only_tensors_that_must_be_passed_determine_a_dimension() -> None:
    with pytest.raises(ArgumentError, match="dimension 'n' of 'x' is not determined"):
        Schema.parse("a::f(x: f32[2*n]?)")
    schema = Schema.parse("a::f(x: f32[2*n], y: f32[n]? = None) -> f32[n]")
    assert schema.bind([tensor(6), None]).names == {"n": 3}
    with pytest.raises(ArgumentError, match=r"argument 'x': expected f32\[2\*n=4\], got f32\[6\]"):
        schema.bind([tensor(6), tensor(2)])


def test_a_derivative_has_the_same_solutions() -> None:
    schema = Schema.parse("a::f(x: f32[2*n]) -> f32[n+1]").vjp()
    assert str(schema) == "a::f_vjp(x: f32[2*n], grad: f32[n+1]) -> (grad_x: f32[2*n])"
    assert Schema.parse(str(schema)).solved == schema.solved == ((0, 0, "n"),)


@given(
    st.lists(st.tuples(st.sampled_from("+-*"), st.integers(0, 4) | st.just("m")), max_size=4),
    st.integers(0, 6),
    st.integers(0, 4),
    st.integers(-1, 1),
)
def test_the_native_core_solves_as_python_does(
    steps: list[tuple[str, Any]], n: int, m: int, error: int
) -> None:
    """And what is found is what the extent was made of, where no other would do."""
    text = "n"
    for operation, operand in steps:
        text = f"({text}{operation}{operand})"
    extent = eval(text, {"n": n, "m": m}) + error
    assume(0 <= extent <= 10_000)
    try:
        schema = Schema.parse(f"a::f(x: f32[{text}], y: f32[m]) -> f32[n]")
    except ArgumentError:  # multiplied by 0, or it is simply n
        assume(False)
    said = found = ""
    try:
        bindings = schema.bind([tensor(extent), tensor(m)])
        found = bindings.names["n"]
    except ArgumentError as refused:
        said = str(refused)
    tensors = [dlbridge.empty(each, "float32") for each in ((extent,), (m,))]
    kernel = dlbridge.wrap(lambda x, y: np.zeros(out, "f4"), schema, abi="python:numpy")
    out = found if said == "" else 0
    if said:
        with pytest.raises(ArgumentError) as caught:
            kernel.run([*tensors, dlbridge.empty((0,), "float32")], (), "numpy.ndarray")
        assert str(caught.value) == said
    else:
        kernel.run([*tensors, dlbridge.empty((found,), "float32")], (), "numpy.ndarray")
        if error == 0 and schema.solved:
            assert found == n


def test_the_largest_extents_are_solved_without_overflow() -> None:
    schema = Schema.parse("a::f(x: f32[4611686018427387904*n-1]) -> f32[0*n]")
    assert schema.bind([tensor(2**62 - 1)]).names == {"n": 1}
    with pytest.raises(ArgumentError):
        schema.bind([tensor(2**63 - 1)])  # n would be 2, and the product beyond 64 bits


# ---- calls -------------------------------------------------------------------------------------


def test_numpy(glu: Any) -> None:
    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    for each in (x, x, x[:, :, ::2], x[0, 0], x[:0], np.zeros((3, 0), "f4")):
        assert np.array_equal(glu(each), formula(each))
    out = np.zeros((2, 3, 2), "f4")
    assert glu(x, out=out) is out
    with pytest.raises(ArgumentError, match=REFUSED):
        glu(np.zeros((3, 5), "f4"))
    with pytest.raises(
        ArgumentError, match=r"argument 'out': expected f32\[\.\.\.=\(2, 3\), n=2\]"
    ):
        glu(x, out=np.zeros((2, 3, 3), "f4"))


def test_c_signatures_and_costs_have_the_dimension(compiled: Any) -> None:
    signature = "void(const float *x, float *out, int64_t n)"
    text = "solved::raw(x: f32[2*n, size+1]) -> f32[n]"
    kernel = dlbridge.compile_c(SOURCE, "raw", text, abi=signature, cost="n * size")
    assert kernel(np.zeros((6, 3), "f4")).tolist() == [3.0] * 3
    with pytest.raises(ArgumentError, match="'size' stands in no tensor by itself"):
        dlbridge.compile_c(SOURCE, "raw", text, abi=signature.replace(" n)", " size)"))


def test_torch(glu: Any, framework: Any) -> None:
    torch = framework("torch")
    x = torch.arange(24.0).reshape(2, 3, 4)
    assert torch.equal(glu(x), formula(x))
    assert torch.equal(torch.ops.solved.glu(x), formula(x))
    with pytest.raises(ArgumentError, match=REFUSED):
        glu(torch.zeros(3, 5))
    weights = x.requires_grad_()
    (got,) = torch.autograd.grad((glu(weights) ** 2).sum(), x)
    (expected,) = torch.autograd.grad((formula(weights) ** 2).sum(), x)
    assert torch.equal(got, expected)
    torch.library.opcheck(torch.ops.solved.glu.default, (x,))
    assert torch.equal(torch.vmap(glu)(x), formula(x))


@pytest.mark.full
def test_torch_compiles_and_exports_with_sizes_that_change(glu: Any, framework: Any) -> None:
    torch = framework("torch")

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return glu(x * 2) + 1

    compiled = torch.compile(lambda x: glu(x * 2) + 1, fullgraph=True, dynamic=True)
    half = torch.export.Dim("half", min=1, max=64)
    exported = torch.export.export(
        Module(), (torch.ones(3, 8),), dynamic_shapes=({1: 2 * half},)
    ).module()
    for n in (4, 6, 3):
        x = torch.randn(3, 2 * n, generator=torch.Generator().manual_seed(n))
        expected = formula(x * 2) + 1
        assert torch.allclose(compiled(x), expected)
        assert torch.allclose(exported(x), expected)
    with pytest.raises(Exception, match=r"expected f32\[\.\.\.=.*, 2\*n\], got"):
        glu(torch.ones(3, 5))
    with pytest.raises(Exception, match=r"argument 'x': expected f32"):
        compiled(torch.ones(3, 5))


def test_jax(glu: Any, framework: Any) -> None:
    jax = framework("jax")
    x = jax.numpy.arange(24.0).reshape(2, 3, 4)
    for function in (glu, glu.jax, jax.jit(glu.jax), jax.vmap(glu.jax)):
        assert np.array_equal(function(x), formula(x))
    got, expected = (jax.grad(lambda x, f=f: (f(x) ** 2).sum())(x) for f in (glu.jax, formula))
    assert np.array_equal(got, expected)
    for function in (glu, jax.jit(glu.jax)):
        with pytest.raises(ArgumentError, match=REFUSED):
            function(jax.numpy.zeros((3, 5)))


def test_jax_exports_with_sizes_that_change(glu: Any, framework: Any) -> None:
    jax = framework("jax")
    export = framework("jax.export")
    (b, n) = export.symbolic_shape("b, n")
    struct = jax.ShapeDtypeStruct((b, 2 * n), "float32")
    checks = [export.DisabledSafetyCheck.custom_call("dlbridge")]
    exported = export.export(jax.jit(glu.jax), disabled_checks=checks)(struct)
    assert exported.out_avals[0].shape == (b, n)
    x = jax.numpy.arange(24.0).reshape(4, 6)
    assert np.array_equal(exported.call(x), formula(x))


def test_tensorflow(glu: Any, framework: Any) -> None:
    tf = framework("tensorflow")
    x = tf.reshape(tf.range(24.0), (2, 3, 4))
    shapes = []

    @tf.function(input_signature=[tf.TensorSpec((None, 3, None), tf.float32)])
    def dynamic(x: Any) -> Any:
        shapes.append(glu(x).shape.as_list())
        return glu(x)

    @tf.function
    def static(x: Any) -> Any:
        shapes.append(glu(x).shape.as_list())
        return glu(x)

    for function in (glu, dynamic, static):
        assert np.array_equal(function(x), formula(x.numpy()))
    assert shapes == [[None, 3, None], [2, 3, 2]]
    with tf.GradientTape() as tape:
        tape.watch(x)
        total = tf.reduce_sum(dynamic(x) ** 2)
    a, b = x.numpy()[..., :2], x.numpy()[..., 2:]
    expected = np.concatenate([2 * a * b * b, 2 * a * a * b], -1)
    assert np.array_equal(tape.gradient(total, x), expected)
    with pytest.raises(Exception, match=r"expected f32\[\.\.\.=.*, 2\*n\], got"):
        dynamic(tf.zeros((2, 3, 5)))


def test_onnxruntime(glu: Any, framework: Any) -> None:
    onnx, ort = framework("onnx"), framework("onnxruntime")
    helper = onnx.helper

    def session(shape: list[Any]) -> Any:
        graph = helper.make_graph(
            [helper.make_node("glu", ["x"], ["y"], domain="solved")],
            "graph",
            [helper.make_tensor_value_info("x", 1, shape)],
            [onnx.ValueInfoProto(name="y")],
        )
        domains = [helper.make_opsetid("", 17), helper.make_opsetid("solved", 1)]
        model = helper.make_model(graph, opset_imports=domains, ir_version=8)
        options = ort.SessionOptions()
        options.log_severity_level = 4
        dlbridge.register_onnxruntime(options, glu)
        return ort.InferenceSession(model.SerializeToString(), options)

    x = np.arange(24, dtype="f4").reshape(2, 3, 4)
    static, dynamic = session([2, 3, 4]), session(["batch", 3, "wide"])
    assert static.get_outputs()[0].shape == [2, 3, 2]
    for one in (static, dynamic):
        assert np.array_equal(one.run(None, {"x": x})[0], formula(x))
    with pytest.raises(Exception, match=r"expected f32\[\.\.\.=.*, 2\*n\], got"):
        dynamic.run(None, {"x": np.zeros((2, 3, 5), "f4")})


def test_kernels_of_such_schemas_can_be_checked(glu: Any) -> None:
    assert "0 failed" in str(check_kernel(glu, formula))

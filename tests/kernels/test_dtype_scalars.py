"""Arguments that are dtypes: `cast(x: any[n], *, to: dtype) -> to[n]`."""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, KernelError, UnsupportedTypeError
from dlbridge.kernels.schema import Described, Schema
from dlbridge.testing import check_kernel

SOURCE = r"""
#include "dlbridge_kernel.h"

static double get(const DLTensor *x, int64_t i) {
    if (x->dtype.code == kDLInt)
        return ((int32_t *)x->data)[i];
    return x->dtype.bits == 64 ? ((double *)x->data)[i] : ((float *)x->data)[i];
}

int cast(void *context, DLTensor *args, int count) {
    DLDataType to = dlb_get_dtype(context, 0);
    for (int64_t i = 0; i < args[0].shape[0]; i++) {
        if (to.code == kDLInt && to.bits == 32)
            ((int32_t *)args[1].data)[i] = (int32_t)get(&args[0], i);
        else if (to.code == kDLFloat && to.bits == 32)
            ((float *)args[1].data)[i] = (float)get(&args[0], i);
        else if (to.code == kDLFloat && to.bits == 64)
            ((double *)args[1].data)[i] = get(&args[0], i);
        else
            return dlb_set_error(context, "no cast to code %d, %d bits, %d lanes", to.code,
                                 to.bits, to.lanes);
    }
    return 0;
}

/* Without a dtype, -1. */
int bits(void *context, DLTensor *args, int count) {
    const dlb_scalar *scalar = &((dlb_context *)context)->scalars[0];
    int is_none = scalar->kind == DLB_NONE;
    ((int32_t *)args[1].data)[0] = is_none ? -1 : dlb_get_dtype(context, 0).bits;
    return 0;
}

void raw(float *out, int64_t n, DLDataType to) {
    for (int64_t i = 0; i < n; i++)
        out[i] = (float)(to.code * 1000 + to.bits);
}
"""
INCLUDE = Path(__file__).resolve().parents[2] / "include"
CAST = "typed::cast(x: f32|f64|i32[n], *, to: dtype = i32) -> to[n]"
RAW = "typed::raw(*, n: int, to: dtype) -> f32[n]"
F32, F64, I32 = map(DType, ("float32", "float64", "int32"))


@pytest.fixture(scope="module")
def cast(compiled: Any) -> dlbridge.Kernel:
    def vjp(x: Any, grad: Any) -> Any:
        return made(grad, to=x.dtype)

    made = dlbridge.compile_c(SOURCE, "cast", CAST, vjp=vjp)
    return made


@pytest.fixture
def wide(framework: Any) -> Iterator[None]:
    """Let JAX have 64-bit types, for one test."""
    config = framework("jax").config
    before = config.jax_enable_x64
    config.update("jax_enable_x64", True)
    yield
    config.update("jax_enable_x64", before)


def described(*shape: Any, dtype: DType = F32) -> Described:
    return Described(shape, dtype, "numpy.ndarray", "cpu")


# ---- schemas -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        CAST,
        "a::f(x: f32[n], *, to: dtype) -> to[n]",
        "a::f(x: to[n], to: dtype) -> (to[n], f32[n])",
        "a::f(x: f32[n], *, dtype: dtype = bf16) -> dtype[n]",
        "a::f(x: to[n], *, to: dtype? = None) -> f32[n]",
        "a::f(x: f32[n], to: dtype? = f8e4m3fn, more: dtype = f32x4)",
        "a::f(x: f32[n], *, to: dtype in f16|bf16) -> to[n]",
        "a::f(x: to[n], to: dtype in float? = None, more: dtype in i8|f32x4 = i8)",
    ],
)
def test_a_schema_is_read_back_from_its_text(text: str) -> None:
    schema = Schema.parse(text)
    assert str(schema) == text
    assert Schema.parse(str(schema)).encode() == schema.encode()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a::f(x: f32[n], *, to: dtype = 3)", "expected the name of a dtype, as in 'f32'"),
        ("a::f(x: f32[n], *, to: dtype = f31)", "unknown dtype 'f31'"),
        ("a::f(x: f32[n], *, to: dtype = None)", "only an optional argument"),
        ("a::f(x: f32[n], *, to!: dtype)", "'!' marks tensors"),
        ("a::f(x: f32[to], *, to: dtype)", "'to' is a dimension: it must be int, not dtype"),
        ("a::f(x: to=f32[n], *, to: dtype)", "'to' is defined already"),
        ("a::f(x: f32|to[n], *, to: dtype)", "the variable 'to' cannot be part of a union"),
        ("a::f(x: f32[n], *, f32: dtype)", "'f32' is a dtype, not a name for one"),
        ("a::f(x: f32[n], *, to: dtype in)", "expected a dtype after 'in', got '\\)'"),
        ("a::f(x: f32[n], *, to: dtype in f31)", "unknown dtype 'f31'"),
        ("a::f(x: A=f32|f64[n], *, to: dtype in A)", "the variable 'A' cannot be part of a union"),
        ("a::f(x: f32[n], *, to: dtype in f32|)", "expected a dtype after '\\|'"),
        ("a::f(x: f32[n], *, to: dtype in float = i8)", "the default must be one of float"),
        ("a::f(x: f32[n], *, to: int in i8)", "expected ',' or '\\)', got 'in'"),
        ("a::f(x: to=f32[n], *, to: dtype in f32)", "'to' is defined already"),
        ("a::f(*, to: dtype?) -> to[3]", "dtype 'to' of 'out' is not determined by any argument"),
    ],
)
def test_a_schema_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(ArgumentError, match=words):
        Schema.parse(text)


def test_an_argument_binds_the_dtype_of_tensors() -> None:
    schema = Schema.parse("a::f(x: to[n], *, to: dtype? = None, as_: dtype = f64) -> as_[n]")
    assert schema.results_of(schema.bind([described(3)], [None, I32])) == [((3,), I32)]
    assert schema.results_of(schema.bind([described(3)], [F32, F64])) == [((3,), F64)]
    with pytest.raises(UnsupportedTypeError, match=r"'x': expected to=f64\[n\], got f32\[3\]"):
        schema.bind([described(3)], [F64, F64])


def test_a_dtype_may_be_one_of_a_set() -> None:
    schema = Schema.parse("a::f(x: to[n], *, to: dtype in f32|f64? = None, of: dtype in int = i32)")
    assert schema.bind([described(3)], [None, I32]).dtypes["to"] is F32
    with pytest.raises(UnsupportedTypeError, match=r"'x': expected to\[n\], got i32\[3\]"):
        schema.bind([described(3, dtype=I32)], [None, I32])
    with pytest.raises(UnsupportedTypeError, match=r"'to': expected dtype in f32\|f64\?, got i32$"):
        schema.bind([described(3)], [I32, I32])
    with pytest.raises(UnsupportedTypeError, match=r"'of': expected dtype in int, got f32$"):
        schema.bind([described(3)], [F32, F32])
    assert "of: dtype; of any framework, or its name; one of int;" in schema.help("", "contiguous")
    assert "one of float32 or float64" in schema.help("", "contiguous")
    many = ", ".join(f"a{i}: dtype in i{8 << i % 4}" for i in range(16))
    with pytest.raises(ArgumentError, match="at most 16 different dtypes and sets, got 17"):
        Schema.parse(f"a::f(x: f32[n], {many})")


def test_integers_alone_have_no_gradient() -> None:
    with pytest.raises(ArgumentError, match="it has no floating result"):
        Schema.parse("a::f(x: f32[n], *, to: dtype in int) -> to[n]").vjp()
    text = str(Schema.parse("a::f(x: f32[n], *, to: dtype in float) -> to[n]").vjp())
    assert text == "a::f_vjp(x: f32[n], grad: to[n], *, to: dtype in float) -> (grad_x: f32[n])"


def test_a_vjp_is_given_the_dtype() -> None:
    arguments = "x: f32|f64|i32[n], grad: to[n], *, to: dtype = i32"
    text = f"typed::cast_vjp({arguments}) -> (grad_x: f32|f64|i32[n])"
    assert str(Schema.parse(CAST).vjp()) == text


# ---- calls -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("to", "expected"),
    [
        (np.float64, "f8"),
        (np.dtype("f4"), "f4"),
        ("f64", "f8"),
        ("float32", "f4"),
        (float, "f8"),
        (F32, "f4"),
        (np.int32, "i4"),
    ],
)
def test_every_name_of_a_dtype_is_taken(cast: Any, to: Any, expected: str) -> None:
    x = np.array([1.5, -2.5], "f4")
    for _ in range(2):  # C remembers the first call
        assert cast(x, to=to).dtype == expected
        assert cast(x).tolist() == [1, -2]
        assert cast(x).dtype == "i4"


@pytest.mark.parametrize(
    ("value", "got"),
    [
        (3, r"got 3 \(int\); "),
        ("nope", r"got 'nope' \(str\); "),
        ("u8", r"got 'u8' \(str\); 'u8' is uint8 in bits, and NumPy's uint64 in bytes"),
        (np.dtype("M8[s]"), r"got dtype\('<M8\[s\]'\) "),
        (None, "got None"),
        (np.zeros(2), "got array"),
    ],
)
def test_what_is_no_dtype_is_refused(cast: Any, value: Any, got: str) -> None:
    with pytest.raises(UnsupportedTypeError, match="argument 'to': expected dtype, " + got):
        cast(np.zeros(2, "f4"), to=value)


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_calls_with_a_dtype_that_was_seen_before_are_made_in_c(
    cast: Any, name: str, framework: Any, slow_calls: list[Any]
) -> None:
    """Whatever stands for it; what is none is refused each time alike."""
    given = ["f64", "float64", np.float64, np.dtype("f8"), F64, float]
    if name == "torch":
        given.append(framework("torch").float64)
    x = dlbridge.convert(np.ones(2, "f4"), name)
    for to in given:
        first = cast(x, to=to)
        slow_calls.clear()
        again = cast(x, to=to)
        assert slow_calls == []
        assert type(again) is type(x)
        assert DType(first.dtype) is DType(again.dtype) is F64
        assert again.tolist() == [1, 1]
    for wrong in ("f65", [], {}, (2, 64.0), 1, True, np.ones(1)):
        for _ in range(2):
            with pytest.raises((UnsupportedTypeError, ArgumentError), match="argument 'to'"):
                cast(x, to=wrong)


class Hashing:
    """Stands for no dtype, and its hash is interrupted."""

    def __hash__(self) -> int:
        raise KeyboardInterrupt


def test_an_interrupt_reaches_the_caller(cast: Any) -> None:
    with pytest.raises(KeyboardInterrupt):
        cast(np.ones(2, "f4"), to=Hashing())


def test_the_kernel_itself_refuses_a_dtype_that_it_does_not_know(cast: Any) -> None:
    with pytest.raises(KernelError, match="no cast to code 4, 16 bits, 1 lanes"):
        cast(np.zeros(2, "f4"), to=dlbridge.DType("bfloat16"))


WITHIN = "typed::within(x: f32|f64|i32[n], *, to: dtype in f32|i32 = i32) -> to[n]"
REFUSED = r"argument \\?'to\\?': expected dtype in f32\|i32, got f64"


@pytest.fixture(scope="module")
def within(compiled: Any) -> dlbridge.Kernel:
    return dlbridge.compile_c(
        SOURCE,
        "cast",
        WITHIN,
        vjp=lambda x, grad: dlbridge.convert(grad, "dlbridge", dtype=x.dtype),
    )


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_a_dtype_that_is_not_in_the_set_is_refused(within: Any, name: str, framework: Any) -> None:
    """By C, in calls with dtypes that were seen before, and before the kernel runs."""
    framework(name)
    x = dlbridge.convert(np.ones(2, "f4"), name, copy=True)
    for _ in range(3):
        assert DType(within(x, to="f32").dtype) is F32
        assert DType(within(x).dtype) is I32
        with pytest.raises(UnsupportedTypeError, match=f"typed::within: {REFUSED}"):
            within(x, to="f64")
    with dlbridge.debug_kernels(), pytest.raises(UnsupportedTypeError, match=REFUSED):
        within(x, to="f64")


def test_a_set_holds_in_programs_as_well(within: Any, framework: Any) -> None:
    torch = framework("torch")
    x = torch.ones(2)
    for call in (
        lambda: torch.ops.typed.within(x, to=torch.float64),
        lambda: torch.ops.typed.within.out(x, to=torch.float64, out=x.double()),
        lambda: torch.compile(lambda x: within(x, to="f64"), fullgraph=True, backend="eager")(x),
        lambda: torch.vmap(lambda x: within(x, to=torch.float64))(x[None]),
        lambda: within(x.to("meta"), to=torch.float64),
        lambda: within(x.clone().requires_grad_(), to=torch.float64),
    ):
        with pytest.raises(Exception, match=REFUSED):
            call()
    torch.compiler.reset()
    made = torch.compile(lambda x: within(x, to=torch.float32), fullgraph=True, backend="eager")
    assert torch.equal(made(x), x)
    jax = framework("jax")
    tf = framework("tensorflow")
    for program, each in ((jax.jit, jax.numpy.ones(2)), (tf.function, tf.ones(2))):
        with pytest.raises(UnsupportedTypeError, match=REFUSED):
            program(lambda x: within(x, to="f64"))(each)
        found = program(lambda x: within(x, to="f32"))(each)
        assert np.asarray(found).tolist() == [1, 1]


def test_other_kinds_of_kernels_have_sets_too(compiled: Any) -> None:
    """C signatures, kernels with lists, with numbers as results, and that say sizes."""
    signature = "void(float *out, int64_t n, DLDataType to)"
    raw = dlbridge.compile_c(
        SOURCE, "raw", "typed::raw_within(*, n: int, to: dtype in f32|i32) -> f32[n]", abi=signature
    )
    x = np.ones(3, "f4")
    schema = "typed::{}({}, *, to: dtype in f32|i32) -> {}"

    def wrap(name: str, arguments: str, results: str, function: Any) -> Any:
        return dlbridge.wrap(function, schema.format(name, arguments, results), abi="python:numpy")

    each = wrap("each", "xs: f32[n][k]", "to[n][k]", lambda xs, to: [x.astype(to) for x in xs])
    count = wrap("count", "x: f32[n]", "int", lambda x, to: len(x))
    some = wrap("some", "x: f32[n]", "to[k<=n]", lambda x, to: x[:2].astype(to))
    assert raw.numpy(n=1, to="f32").tolist() == [2032]
    assert each([x], to="i32")[0].dtype == "i4"
    assert count(x, to="f32") == 3
    assert some(x, to="i32").dtype == "i4"
    for call in (
        lambda: raw.numpy(n=1, to="f64"),
        lambda: each([x], to="f64"),
        lambda: count(x, to="f64"),
        lambda: some(x, to="f64"),
    ):
        with pytest.raises(UnsupportedTypeError, match=REFUSED):
            call()


def test_a_buffer_for_the_result_has_the_dtype(cast: Any) -> None:
    x, out = np.ones(2, "f4"), np.zeros(2, "f8")
    assert cast(x, to="f64", out=out) is out
    assert out.tolist() == [1, 1]
    with pytest.raises(UnsupportedTypeError, match=r"'out': expected to=f32\[n=2\], got f64\[2\]"):
        cast(x, to="f32", out=out)


def test_c_signatures_take_a_dtype_by_value(compiled: Any) -> None:
    signature = "void(float *out, int64_t n, DLDataType to)"
    kernel = dlbridge.compile_c(SOURCE, "raw", RAW, abi=signature)
    assert kernel.numpy(n=2, to="bf16").tolist() == [4016, 4016]
    source = SOURCE.replace("DLDataType to)", "int to)").replace("to.code * 1000 + to.bits", "to")
    with pytest.raises(ArgumentError, match="'int to' is not how C takes dtype"):
        dlbridge.compile_c(source, "raw", RAW, abi=signature.replace("DLDataType", "int"))


def test_python_functions_get_the_dtype_of_their_framework() -> None:
    given: list[Any] = []

    def numpy_like(*, n: int, to: Any) -> Any:
        given.append(to)
        return np.zeros(n, to)

    def tensors(*, n: int, to: Any) -> Any:
        given.append(to)
        return dlbridge.zeros((n,), to)

    text = "typed::zeros(*, n: int, to: dtype = f32) -> to[n]"
    for function, abi in ((numpy_like, "python:numpy"), (tensors, "python:dlbridge")):
        kernel = dlbridge.wrap(function, text, abi=abi)
        assert kernel.numpy(n=2).dtype == "f4"
        assert kernel.numpy(n=2, to="i64").dtype == "i8"
    assert [type(each) for each in given] == [
        type(np.dtype("f4")),
        type(np.dtype("i8")),
        DType,
        DType,
    ]
    assert given == ["f4", "i8", DType("float32"), DType("int64")]


@pytest.mark.skipif(shutil.which("c++") is None, reason="there is no C++ compiler")
def test_kernels_in_cpp_get_it() -> None:
    source = r"""
    #include "dlbridge_kernel.hpp"
    DLB_KERNEL(bits) { call.view<float, 1>(0)(0) = call.get_dtype(0).bits; }
    """
    kernel = dlbridge.compile_cpp(source, "bits", "typed::bits(*, to: dtype) -> f32[1]")
    assert kernel.numpy(to="f64").tolist() == [64]


def test_tvm_functions_get_tvms_dtype(framework: Any) -> None:
    tvm_ffi = framework("tvm_ffi")
    given = []
    function = tvm_ffi.convert(lambda x, to: given.append(str(to)))
    kernel = dlbridge.wrap(function, "typed::told(x!: f32[n], to: dtype)")
    kernel(np.zeros(2, "f4"), "bf16")
    assert given == ["bfloat16"]


def test_debug_mode_looks_at_such_calls(cast: Any) -> None:
    with dlbridge.debug_kernels():
        assert cast(np.array([1.5], "f4"), to="f64").tolist() == [1.5]


def test_kernels_of_such_schemas_can_be_checked(cast: Any) -> None:
    report = check_kernel(cast, lambda x, *, to: x.astype(to.to("numpy")), scalars={"to": "f64"})
    assert "0 failed" in str(report)


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_a_dtype_may_be_left_out(name: str, compiled: Any, framework: Any) -> None:
    framework(name)
    text = "typed::bits(x: to[n], to: dtype? = None) -> i32[1]"
    kernel = dlbridge.compile_c(SOURCE, "bits", text)
    x = dlbridge.convert(np.zeros(2, "f4"), name, copy=True)
    found = [kernel(x), kernel(x, None), kernel(x, "float32")]
    assert [np.asarray(each).tolist() for each in found] == [[-1], [-1], [32]]
    with pytest.raises(UnsupportedTypeError, match=r"'x': expected to=f64\[n\], got f32\[2\]"):
        kernel(x, "float64")


# ---- frameworks --------------------------------------------------------------------------------


def test_torch(cast: Any, framework: Any) -> None:
    torch = framework("torch")
    x = torch.tensor([0.5, 1.5])
    assert torch.equal(cast(x, to=torch.float64), x.double())
    assert torch.equal(torch.ops.typed.cast(x, to=torch.int32), x.int())
    assert torch.equal(cast(x), x.int())
    assert cast(x.to("meta"), to=torch.float64).dtype is torch.float64
    x.requires_grad_()
    (got,) = torch.autograd.grad(cast(x, to=torch.float64).sum(), x)
    assert torch.equal(got, torch.ones(2))
    assert not cast(x, to=torch.int32).requires_grad
    torch.library.opcheck(torch.ops.typed.cast.default, (x,), {"to": torch.float64})
    batch = torch.stack([x, x]).detach()
    assert torch.equal(torch.vmap(lambda x: cast(x, to="f64"))(batch), batch.double())
    with pytest.raises(Exception, match=r"quint8|QUInt8"):
        cast(x, to=torch.quint8)


def test_torch_compiles_and_exports_it(cast: Any, framework: Any) -> None:
    torch = framework("torch")
    x = torch.tensor([0.5, 1.5])

    class Module(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return cast(x, to=torch.float64)

    for to in (torch.float64, "f64", F64):
        torch.compiler.reset()
        made = torch.compile(lambda x, to=to: cast(x, to=to) + 1, fullgraph=True, backend="eager")
        assert torch.equal(made(x), x.double() + 1)
    torch.compiler.reset()
    made = torch.compile(lambda x: cast(x) + 1, fullgraph=True, backend="aot_eager")
    assert torch.equal(made(x), x.int() + 1)
    assert torch.equal(torch.export.export(Module(), (x,)).module()(x), x.double())
    with pytest.raises(Exception, match=r"argument \\?'to\\?': expected dtype, got \\?'nope"):
        torch.compile(lambda x: cast(x, to="nope"), fullgraph=True, backend="eager")(x)


def test_functions_of_torch_get_torchs_dtype_eagerly_and_compiled(framework: Any) -> None:
    torch = framework("torch")
    text = "typed::own(x: f32[n], *, to: dtype = f64) -> to[n]"
    kernel = dlbridge.wrap(lambda x, *, to: x.to(to), text, abi="python:torch")
    x = torch.ones(2)
    made = torch.compile(
        lambda x: (kernel(x), kernel(x, to="i32")), fullgraph=True, backend="eager"
    )
    for found in (made(x), (kernel(x), kernel(x, to=torch.int32))):
        assert [each.dtype for each in found] == [torch.float64, torch.int32]
    assert kernel(np.ones(2, "f4"), to="f16").dtype == "f2"


def test_jax(cast: Any, framework: Any, wide: Any) -> None:
    jax = framework("jax")
    x = jax.numpy.array([0.5, 1.5], "float32")
    for to in (jax.numpy.float64, "f64", F64):
        for function in (lambda x, to=to: cast(x, to=to), lambda x, to=to: cast.jax(x, to=to)):
            for call in (function, function, jax.jit(function)):
                assert np.array_equal(call(x), np.array([0.5, 1.5]))
                assert call(x).dtype == "float64"
    static = jax.jit(cast.jax, static_argnames="to")
    assert static(x, to="int32").dtype == "int32"
    assert cast(x).dtype == "int32"
    batch = jax.numpy.stack([x, x])
    assert np.array_equal(jax.vmap(lambda x: cast(x, to="f64"))(batch), batch)
    gradient = jax.grad(lambda x: cast(x, to="f64").sum())(x)
    assert gradient.dtype == "float32"
    assert gradient.tolist() == [1, 1]
    primal, tangent = jax.jvp(lambda x: cast(x, to="f64"), (x,), (x,))
    assert primal.dtype == tangent.dtype == "float64"


def test_functions_of_jax_get_numpys_dtype(framework: Any) -> None:
    jax = framework("jax")
    text = "typed::own_jax(x: f32[n], *, to: dtype = i32) -> to[n]"
    kernel = dlbridge.wrap(lambda x, *, to: x.astype(to), text, abi="python:jax")
    x = jax.numpy.ones(2)
    assert kernel(x).dtype == jax.jit(kernel.jax)(x).dtype == "int32"
    assert kernel(np.ones(2, "f4"), to="f16").dtype == "f2"


def test_tensorflow(cast: Any, framework: Any) -> None:
    tf = framework("tensorflow")
    x = tf.constant([0.5, 1.5])
    for function in (cast, tf.function(cast.tensorflow)):
        assert function(x, to=tf.float64).dtype == tf.float64
        assert function(x, to=tf.int32).numpy().tolist() == [0, 1]
        assert function(x).dtype == tf.int32
    for gradient in (
        lambda x: derivative(tf, cast, x),
        tf.function(lambda x: derivative(tf, cast, x)),
    ):
        assert gradient(x).numpy().tolist() == [1, 1]
        assert gradient(x).dtype == tf.float32
    found = tf.vectorized_map(lambda x: cast(x, to=tf.float64), tf.stack([x, x]))
    assert found.dtype == tf.float64


def derivative(tf: Any, cast: Any, x: Any) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(x)
        y = cast(x, to=tf.float64)
    return tape.gradient(y, x)


def test_onnxruntime_refuses_it_by_name(cast: Any, framework: Any) -> None:
    ort = framework("onnxruntime")
    with pytest.raises(ArgumentError, match="typed::cast: argument 'to' is a dtype"):
        dlbridge.register_onnxruntime(ort.SessionOptions(), cast)


# ---- libraries ---------------------------------------------------------------------------------


def test_an_exported_kernel_has_it(compiled: Any, tmp_path: Path) -> None:
    text = CAST.replace("typed::", "exported::")
    (tmp_path / "typed.c").write_text(f'{SOURCE}\nDLB_EXPORT(cast, "{text}");\n')
    command = ["cc", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", "libtyped.so", "typed.c"]
    subprocess.run(command, cwd=tmp_path, check=True)
    library = dlbridge.load_library(tmp_path / "libtyped.so")
    assert library.cast(np.array([1.5], "f4"), to="f64").tolist() == [1.5]

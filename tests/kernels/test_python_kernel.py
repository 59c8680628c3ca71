"""Python functions as kernels: what they are given, what they return, how they fail."""

from __future__ import annotations

import traceback

import numpy as np
import pytest

from dlbridge import empty, from_dlpack, to_numpy
from dlbridge._core import native
from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.kernels.wrap import wrap

ADD = "py::add(x: f32[n], y: f32[n]) -> f32[n]"
FRAMEWORKS = ("numpy", "torch", "jax", "dlbridge")


def run(function, schema, arrays, scalars=(), abi="python:numpy", **options):
    """Run a Python function as a kernel on NumPy arrays: inputs, then results."""
    kernel = wrap(function, schema, abi=abi, **options)
    tensors = [None if array is None else from_dlpack(array) for array in arrays]
    return kernel.run(tensors, scalars, "numpy.ndarray")


def three(dtype="float32", count=4):
    x = np.arange(count, dtype=dtype)
    return x, np.ones(count, dtype), np.zeros(count, dtype)


# ---- what a function is given ------------------------------------------------------------------

TYPES = {"numpy": "numpy.ndarray", "torch": "torch.Tensor", "jax": "jaxlib._jax.ArrayImpl",
         "dlbridge": "dlbridge.tensor.tensor.Tensor"}  # fmt: skip


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_function_is_given_its_own_frameworks_tensors(name: str, framework) -> None:
    framework("jax" if name == "jax" else name if name == "torch" else "numpy")
    seen = []

    def function(x, y):
        seen.append((type(x), type(y)))
        return np.asarray(x) + np.asarray(y)

    x, y, out = three()
    run(function, ADD, (x, y, out), abi=f"python:{name}")
    assert out.tolist() == [1, 2, 3, 4]
    kinds = {f"{kind.__module__}.{kind.__qualname__}" for kind in seen[0]}
    assert kinds == {TYPES[name]} or name == "jax"


@pytest.mark.parametrize("name", ["numpy", "torch", "dlbridge"])
def test_memory_is_shared(name: str, framework) -> None:
    framework("torch" if name == "torch" else "numpy")
    seen = []

    def function(x, y, out):
        seen.extend(from_dlpack(each).data_ptr for each in (x, y, out))

    arrays = three()
    run(function, ADD, arrays, abi=f"python:{name}")
    assert seen == [array.ctypes.data for array in arrays]


def test_scalars_go_by_keyword_with_their_own_types() -> None:
    seen = []

    def function(x, *, i, f, b, s, o):
        seen.append((i, f, b, s, o))
        return x

    schema = (
        "py::scalars(x: f32[n], *, i: int, f: float, b: bool, s: str, o: int? = None) -> f32[n]"
    )
    x, _, out = three()
    run(function, schema, (x, out), (3, 2.5, True, "é", None))
    assert [(value, type(value)) for value in seen[0]] == [
        (3, int), (2.5, float), (True, bool), ("é", str), (None, type(None))
    ]  # fmt: skip


def test_an_optional_tensor_that_is_left_out_is_none() -> None:
    x, _, out = three()
    run(lambda x, y: x if y is None else y, ADD.replace("y: f32[n]", "y: f32[n]?"), (x, None, out))
    assert out.tolist() == x.tolist()


def test_out_is_one_tensor_or_a_tuple() -> None:
    def function(x, out):
        first, second = out
        first[:] = x + 1
        second[...] = x.sum()

    x, _, out = three()
    total = np.zeros((), "float32")
    run(function, "py::two(x: f32[n]) -> (a: f32[n], b: f32[])", (x, out, total))
    assert out.tolist() == [1, 2, 3, 4]
    assert total == 6


def test_arguments_that_are_declared_to_be_written_are_written(framework) -> None:
    framework("torch")
    for abi in ("python:numpy", "python:torch", "python:dlbridge"):
        x = three()[0]

        def function(x):
            np.asarray(x)[...] += 1

        run(function, "py::increment(x!: f32[n])", (x,), abi=abi)
        assert x.tolist() == [1, 2, 3, 4]


def test_a_ufunc_and_an_njit_function_are_kernels(framework) -> None:
    x, y, out = three()
    run(np.add, ADD, (x, y, out))
    assert out.tolist() == [1, 2, 3, 4]
    numba = framework("numba")
    run(numba.njit(lambda x, y: x * 2 + y), ADD, (x, y, out))
    assert out.tolist() == [1, 3, 5, 7]


def test_a_builtin_without_signature_returns_its_result(framework) -> None:
    torch = framework("torch")
    x, y, out = three()
    run(torch.add, ADD, (x, y, out), abi="python:torch")
    assert out.tolist() == [1, 2, 3, 4]


def test_a_parameter_called_stream_gets_the_stream() -> None:
    seen = []
    x, y, out = three()
    run(lambda x, y, *, stream: (seen.append(stream), x)[1], ADD, (x, y, out))
    assert seen == [0]


@pytest.mark.parametrize("name", ["torch", "jax"])
def test_layouts_that_a_framework_lacks_are_copied(name: str, framework) -> None:
    """Negative strides, and for JAX unaligned memory; what is written is copied back."""
    framework(name)
    x, y, out = three()
    arrays = (x[::-1], y, out[::-1])
    if name == "torch":
        run(lambda x, y, out: out.copy_(x + y), ADD, arrays, abi="python:torch", layout="strided")
    else:
        run(lambda x, y: x + y, ADD, arrays, abi="python:jax", layout="strided")
    assert out.tolist() == [1, 2, 3, 4]


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_refused_argument_is_named_with_its_kernel(name: str, framework) -> None:
    """Packed elements of 4 bits; the caller of the kernel has passed no copy=."""
    framework(name)
    packed = empty((3,), dtype="int4")
    text = rf": to_{name}: the dtype cannot be represented: got .*int4\[3\].*; cast it before"
    kernel = wrap(lambda x, y: None, "py::packed(x: f32[n], y: any[n])", abi=f"python:{name}")
    with pytest.raises(ExchangeError, match="^py::packed: argument 'y'" + text) as caught:
        kernel(empty((3,), dtype="float32"), packed)
    assert caught.value.reason == "dtype"
    assert "copy=" not in str(caught.value)
    bare = wrap(lambda x, y: None, abi=f"python:{name}")
    with pytest.raises(ExchangeError, match="^<lambda>: argument 1" + text):
        bare(empty((3,), dtype="float32"), packed)
    allowed = wrap(lambda x: None, "py::unpacked(x: any[n])", abi="python:numpy")
    assert allowed(to_numpy(packed, dtype="int8")) is None


@pytest.mark.parametrize("dtype", ["int64", "float64", "bool", "complex64", "float16", "uint16"])
@pytest.mark.parametrize("name", ["numpy", "torch", "dlbridge"])
def test_dtypes(name: str, dtype: str, framework) -> None:
    framework("torch" if name == "torch" else "numpy")
    x = np.arange(6).astype(dtype).reshape(2, 3)
    out = np.zeros_like(x)
    run(lambda x: x, "py::same(x: any[...]) -> any[...]", (x, out), abi=f"python:{name}")
    assert (out == x).all()


@pytest.mark.full
def test_jax_has_wide_types_only_where_it_says_so(framework, run_python) -> None:
    framework("jax")
    code = """
        import numpy as np, jax, dlbridge
        from dlbridge.kernels.wrap import wrap
        x = np.arange(3.0)
        k = wrap(lambda x: 2 * x, "py::wide(x: f64[n]) -> f64[n]", abi="python:jax")
        try:
            k(x)
        except dlbridge.ExchangeError as error:
            print(error.reason)
        jax.config.update("jax_enable_x64", True)
        print(k(x).tolist())
    """
    assert run_python(code).check().split("\n")[:2] == ["dtype", "[0.0, 2.0, 4.0]"]


@pytest.mark.parametrize("shape", [(), (0,), (2, 0, 3), (1,) * 12])
@pytest.mark.parametrize("name", FRAMEWORKS)
def test_shapes_at_the_edge(name: str, shape: tuple[int, ...], framework) -> None:
    framework("torch" if name == "torch" else "jax" if name == "jax" else "numpy")
    x, out = np.ones(shape, "float32"), np.zeros(shape, "float32")
    run(lambda x: x, "py::edge(x: f32[...]) -> f32[...]", (x, out), abi=f"python:{name}")
    assert (out == 1).all()


# ---- what a function returns -------------------------------------------------------------------


def test_any_frameworks_tensor_may_be_returned(framework) -> None:
    torch, jax = framework("torch"), framework("jax")
    x, y, out = three()
    for made in (
        torch.ones(4),
        torch.ones(4, requires_grad=True),
        jax.numpy.ones(4),
        from_dlpack(np.ones(4, "float32")),
        [np.ones(4, "float32")],
        np.broadcast_to(np.float32(1), 4),
    ):
        out[:] = 0
        run(lambda x, y, made=made: made, ADD, (x, y, out))
        assert out.tolist() == [1] * 4


def test_a_numpy_scalar_is_a_result_without_dimensions() -> None:
    x, out = np.ones(4, "float32"), np.zeros((), "float32")
    run(lambda x: x.sum(), "py::sum(x: f32[n]) -> f32[]", (x, out))
    assert out == 4


WRONG = {
    "dtype": (
        lambda x, y: x.astype("float64"),
        UnsupportedTypeError,
        (
            "py::add: result 'out': expected f32[n=4], the function returned f64[4] "
            '(numpy.ndarray, cpu); cast it with out.astype("float32")'
        ),
    ),
    "shape": (
        lambda x, y: x[:2],
        ArgumentError,
        (
            "py::add: result 'out': expected f32[n=4], the function returned f32[2] "
            "(numpy.ndarray, cpu)"
        ),
    ),
    "none": (
        lambda x, y: None,
        UnsupportedTypeError,
        (
            "py::add: the function returned None instead of its result; one that writes into its "
            "result has a parameter `out`"
        ),
    ),
    "count": (
        lambda x, y: (x, y),
        UnsupportedTypeError,
        "py::add: the schema has 1 result, the function returned 2",
    ),
    "kind": (
        lambda x, y: "x",
        UnsupportedTypeError,
        "py::add: the function returned str, which is not a tensor",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_results_are_compared_with_the_schema(case: str) -> None:
    function, kind, text = WRONG[case]
    with pytest.raises(kind) as caught:
        run(function, ADD, three())
    assert str(caught.value) == text


# ---- errors ------------------------------------------------------------------------------------


def test_an_exception_keeps_type_and_traceback() -> None:
    class Boom(ValueError):
        pass

    def inner(x):
        raise Boom("bang")

    def function(x, y):
        inner(x)

    with pytest.raises(Boom, match=r"^bang$") as caught:
        run(function, ADD, three())
    names = [frame.name for frame in traceback.extract_tb(caught.value.__traceback__)]
    assert names[-2:] == ["function", "inner"]


def test_an_exception_lets_go_of_the_tensors_in_its_frames(framework) -> None:
    """Its traceback is kept, with the lines; variables are cleared, also those of its causes."""
    framework("torch")

    def function(x, y):
        local = x[1:]
        try:
            raise KeyError("first")
        except KeyError as error:
            raise ValueError(local.shape) from error

    for abi in ("python:numpy", "python:torch"):
        before = native.live()
        with pytest.raises(ValueError) as caught:
            run(function, ADD, three(), abi=abi)
        assert isinstance(caught.value.__cause__, KeyError)
        assert native.live()["exports"] == before["exports"]
        assert not hasattr(caught.value, "__notes__")


def test_an_exception_that_carries_a_tensor_says_so() -> None:
    def function(x, y):
        raise ValueError(x)

    with pytest.raises(ValueError) as caught:
        run(function, ADD, three())
    assert caught.value.__notes__ == ["py::add also kept 'x' alive: copy it"]
    assert caught.value.args[0].tolist() == [0, 1, 2, 3]


def test_interrupts_pass_through() -> None:
    def function(x, y):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(function, ADD, three())


# ---- refused when it is wrapped ----------------------------------------------------------------


def test_parameters_must_be_those_of_the_schema() -> None:
    with pytest.raises(UnsupportedTypeError) as caught:
        wrap(lambda x: x, ADD, abi="python:numpy")
    assert str(caught.value) == (
        "wrap: py::add: its schema calls the function as <lambda>(x, y), but it takes (x): too "
        "many positional arguments"
    )
    schema = "py::scale(x: f32[n], *, alpha: float) -> f32[n]"
    with pytest.raises(UnsupportedTypeError, match="<lambda>\\(x, alpha=…\\), but it takes"):
        wrap(lambda x, beta: x, schema, abi="python:numpy")
    with pytest.raises(UnsupportedTypeError, match="positional"):
        wrap(lambda x, alpha, /: x, schema, abi="python:numpy")
    wrap(lambda x, **scalars: x, schema, abi="python:numpy")


def test_jax_functions_write_nothing(framework) -> None:
    framework("jax")
    with pytest.raises(ArgumentError, match="a function of JAX arrays cannot write into x"):
        wrap(lambda x: x, "py::no(x!: f32[n])", abi="python:jax")


def test_cupy_without_a_gpu_says_so(framework) -> None:
    cupy = framework("cupy")
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU")
    with pytest.raises(ExchangeError, match="finds no GPU"):
        run(lambda x, y: x, ADD, three(), abi="python:cupy")


def test_a_missing_framework_is_told_when_it_is_wrapped(monkeypatch) -> None:
    from dlbridge.exchange import adapter

    monkeypatch.setattr(adapter, "_STARTED", set())
    monkeypatch.setattr(adapter.adapter("cupy"), "module", "no_such_module")
    with pytest.raises(FrameworkMissingError, match="no_such_module"):
        wrap(lambda x, y: x, ADD, abi="python:cupy")


def test_a_target_needs_a_python_function() -> None:
    with pytest.raises(TypeError, match="a target needs a function"):
        native.KernelBase("py::bare", None, None, [(1, "python", None, len)])


def test_the_core_counts_scalars() -> None:
    """A kernel whose function was made for another schema fails, and nothing is called."""
    target = wrap(lambda x, *, a: x, "py::one(x: f32[n], *, a: int) -> f32[n]", abi="python:numpy")
    assert repr(target)
    from dlbridge.kernels.kinds.python_kernel import target as make
    from dlbridge.kernels.schema import Schema

    schema = Schema.parse("py::none(x: f32[n]) -> f32[n]")
    other = Schema.parse("py::one(x: f32[n], *, a: int) -> f32[n]")
    user = make(lambda x, *, a: x, "numpy", other)
    assert "as a kernel" in repr(user)
    kernel = native.KernelBase(
        "py::none", schema.encode(), schema.encode_arguments(), [(1, "python", None, user)],
        schema=schema, keeps=(user,),
    )  # fmt: skip
    x, _, out = three()
    with pytest.raises(KernelError, match="called with 0 scalars, its function takes 1"):
        kernel.run([from_dlpack(x), from_dlpack(out)])

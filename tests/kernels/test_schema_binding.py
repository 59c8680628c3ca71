"""Tensors against a schema: what they bind, what the results are, which refusal and its text."""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import cache
from itertools import chain, product
from types import CodeType
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.schema_strategies import bound_calls, schemas

from dlbridge.dtype import DType
from dlbridge.errors import (
    ArgumentError,
    DLBridgeError,
    ExchangeError,
    KernelError,
    UnsupportedTypeError,
)
from dlbridge.kernels.binding import explain_mismatch as explain
from dlbridge.kernels.schema import Bindings, Described, Schema, unfit

F32, F64, I64 = DType("float32"), DType("float64"), DType("int64")


def tensor(*shape: Any, dtype: DType = F32) -> Described:
    return Described(shape, dtype, "torch.Tensor", "cpu")


def bind(text: str, *tensors: Described | None) -> Bindings:
    return Schema.parse(text).bind(tensors)


def results(text: str, *tensors: Described | None) -> list[Any]:
    schema = Schema.parse(text)
    return schema.results_of(schema.bind(tensors))


def refusal(kind: type[DLBridgeError], text: str, *tensors: Described | None) -> str:
    schema = Schema.parse(text)
    with pytest.raises(DLBridgeError) as caught:
        schema.results_of(schema.bind(tensors))
    assert type(caught.value) is kind
    return str(caught.value)


# ---- what is bound -----------------------------------------------------------------------------


def test_names_packs_and_dtypes_are_bound_by_the_first_tensor_that_has_them() -> None:
    bindings = bind(
        "a::f(x: float[*batch, m, k], y: float[k, n], z: A=int[...])",
        tensor(7, 8, 2, 3),
        tensor(3, 4),
        tensor(dtype=I64),
    )
    assert bindings.names == {"m": 2, "k": 3, "n": 4}
    assert bindings.packs == {"batch": (7, 8), "...": ()}
    assert bindings.dtypes == {"float": F32, "A": I64}
    assert repr(bindings).startswith("Bindings(names={'m': 2,")


@pytest.mark.parametrize(
    ("dims", "shape", "pack"),
    [
        ("*b, n, m", (1, 2, 3, 4), (1, 2)),
        ("n, *b, m", (3, 1, 2, 4), (1, 2)),
        ("n, m, *b", (3, 4, 1, 2), (1, 2)),
        ("n, *b, m", (3, 4), ()),
    ],
)
def test_a_pack_takes_what_both_sides_leave(dims: str, shape: Any, pack: Any) -> None:
    bindings = bind(f"a::f(x: f32[{dims}])", tensor(*shape))
    assert bindings.names == {"n": 3, "m": 4}
    assert bindings.packs == {"b": pack}


def test_a_name_may_come_after_the_expression_that_needs_it() -> None:
    assert bind("a::f(x: f32[2*n], y: f32[n])", tensor(6), tensor(3)).names == {"n": 3}


def test_an_absent_tensor_binds_no_dimension() -> None:
    text = "a::f(x: f32[n], w: f32[m, k]? = None, v: f32[k]? = None) -> f32[n]"
    assert results(text, tensor(3), None, None) == [((3,), F32)]
    assert results(text, tensor(3), None, tensor(5)) == [((3,), F32)]
    assert bind(text, tensor(3), tensor(4, 5), tensor(5)).names == {"n": 3, "m": 4, "k": 5}


# ---- results -----------------------------------------------------------------------------------

RESULTS = [
    ("a::f(x: f32[m, k], y: f32[k, n]) -> f32[m, n]", [(2, 3), (3, 4)], [(2, 4)]),
    ("a::f(x: f32[n]) -> f32[n-1]", [(1,)], [(0,)]),
    ("a::f(x: f32[n]) -> f32[]", [(9,)], [()]),
    ("a::f(x: f32[*b, n], y: f32[n]) -> (f32[*b], f32[2, *b])", [(5, 6, 3), (3,)],
     [(5, 6), (2, 5, 6)]),
    ("a::f(x: f32[n, m]) -> f32[(n+m)//2*2-1]", [(3, 4)], [(5,)]),
    ("a::f(x: f32[n]) -> f32[(1-n)//2+5]", [(4,)], [(3,)]),  # floor, as Python divides
]  # fmt: skip


@pytest.mark.parametrize(("text", "shapes", "expected"), RESULTS, ids=[row[0] for row in RESULTS])
def test_results_follow_from_what_is_bound(text: str, shapes: Any, expected: Any) -> None:
    assert results(text, *[tensor(*shape) for shape in shapes]) == [
        (shape, F32) for shape in expected
    ]


def test_results_have_the_dtype_of_their_variable_or_their_own() -> None:
    found = results(
        "a::f(x: float[n], y: A=any[n]) -> (float[n], A[n], i64[])", tensor(3, dtype=F64), tensor(3)
    )
    assert found == [((3,), F64), ((3,), F32), ((), I64)]


IMPOSSIBLE = [
    ("f32[n-4]", 3, "expected f32[n-4], but n-4 is -1 where n=3"),
    ("f32[6//n]", 0, "expected f32[6//n], but 6//n divides by zero where n=0"),
    ("f32[n*n]", 2**40, f"expected f32[n*n], but n*n exceeds 64 bits where n={2**40}"),
]


@pytest.mark.parametrize(("result", "n", "why"), IMPOSSIBLE, ids=[row[2] for row in IMPOSSIBLE])
def test_a_result_without_a_size_is_refused(result: str, n: int, why: str) -> None:
    text = refusal(ArgumentError, f"a::f(x: f32[n]) -> {result}", tensor(n))
    assert text == f"a::f: result 'out': {why}"


def test_a_result_has_254_dimensions_at_most() -> None:
    text = refusal(ArgumentError, "a::f(x: f32[...]) -> f32[1, ...]", tensor(*[1] * 254))
    assert text == "a::f: result 'out': expected at most 254 dimensions, got 255"


# ---- refusals ----------------------------------------------------------------------------------

MM = "mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]"
REFUSED: list[tuple[type[DLBridgeError], str, list[Described | None], str]] = [
    (
        UnsupportedTypeError,
        MM,
        [tensor(56, 56), tensor(56, 56, dtype=F64)],
        (
            "mylib::mm: argument 'y': expected f32[k=56, n], got f64[56, 56] (torch.Tensor, cpu); "
            "cast it with y.to(torch.float32)"
        ),
    ),
    (
        ArgumentError,
        MM,
        [tensor(56, 56), tensor(55, 56)],
        "mylib::mm: argument 'y': expected f32[k=56, n], got f32[55, 56] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        MM,
        [tensor(56), tensor(55, 56)],
        "mylib::mm: argument 'x': expected f32[m, k], got f32[56] (torch.Tensor, cpu)",
    ),
    (
        UnsupportedTypeError,
        MM,
        [tensor(56, 56), None],
        "mylib::mm: argument 'y': expected f32[k=56, n], got None",
    ),
    (
        ArgumentError,
        "a::f(x: f32[n, n])",
        [tensor(3, 4)],
        "a::f: argument 'x': expected f32[n, n], got f32[3, 4] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        "a::f(x: f32[3, _, n])",
        [tensor(4, 4, 4)],
        "a::f: argument 'x': expected f32[3, _, n], got f32[4, 4, 4] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        "a::f(x: f32[...], y: f32[..., n], z: f32[*b])",
        [tensor(2, 3), tensor(2, 4, 5), tensor()],
        "a::f: argument 'y': expected f32[...=(2, 3), n], got f32[2, 4, 5] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        "a::f(x: f32[*b], y: f32[*b]?)",
        [tensor(2), tensor()],
        "a::f: argument 'y': expected f32[*b=(2)]?, got f32[] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        "a::f(x: f32[2*n], y: f32[n])",
        [tensor(7), tensor(3)],
        "a::f: argument 'x': expected f32[2*n=6], got f32[7] (torch.Tensor, cpu)",
    ),
    (
        ArgumentError,
        "a::f(n: f32[n], x: f32[6//n])",
        [tensor(0), tensor(3)],
        "a::f: argument 'x': expected f32[6//n], got f32[3] (torch.Tensor, cpu)",
    ),
    (
        UnsupportedTypeError,
        "a::f(x: float[n], y: float[n])",
        [tensor(3), tensor(3, dtype=F64)],
        (
            "a::f: argument 'y': expected float=f32[n=3], got f64[3] (torch.Tensor, cpu); "
            "cast it with y.to(torch.float32)"
        ),
    ),
    (
        UnsupportedTypeError,
        "a::f(x: A=float[n], y: B=float[n], z: A[n])",
        [tensor(3), tensor(3, dtype=F64), tensor(3, dtype=F64)],
        (
            "a::f: argument 'z': expected A=f32[n=3], got f64[3] (torch.Tensor, cpu); "
            "cast it with z.to(torch.float32)"
        ),
    ),
    (
        UnsupportedTypeError,
        "a::f(x: A=f32|i32[n])",
        [tensor(3, dtype=F64)],
        (
            "a::f: argument 'x': expected A=f32|i32[n], got f64[3] (torch.Tensor, cpu); "
            "cast it with x.to(torch.float32)"
        ),
    ),
]


@pytest.mark.parametrize(
    ("kind", "text", "tensors", "message"), REFUSED, ids=[row[3] for row in REFUSED]
)
def test_a_refusal_names_argument_and_everything_bound_before_it(
    kind: type[DLBridgeError], text: str, tensors: list[Described | None], message: str
) -> None:
    assert refusal(kind, text, *tensors) == message


def test_the_dtype_is_looked_at_before_the_shape() -> None:
    """Code that retries on a TypeError with another dtype must be able to."""
    text = refusal(UnsupportedTypeError, "a::f(x: f32[3])", tensor(4, dtype=F64))
    assert text == (
        "a::f: argument 'x': expected f32[3], got f64[4] (torch.Tensor, cpu); "
        "cast it with x.to(torch.float32)"
    )


def test_the_first_argument_that_does_not_fit_is_named() -> None:
    text = refusal(ArgumentError, "a::f(x: f32[3], y: f32[3])", tensor(4), tensor(3, dtype=F64))
    assert "argument 'x'" in text


def test_expressions_come_after_everything_else() -> None:
    """In C and in Python, so that both name the same argument."""
    text = refusal(
        ArgumentError, "a::f(x: f32[2*n], y: f32[n], z: f32[3])", tensor(5), tensor(3), tensor(4)
    )
    assert "argument 'z'" in text


def test_the_number_of_tensors_is_that_of_the_schema() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"^mylib::mm: expected 2 tensors, got 1$"):
        Schema.parse(MM).bind([tensor(3, 4)])


# ---- out= --------------------------------------------------------------------------------------


def check_out(
    text: str,
    inputs: list[Described | None],
    outs: list[Described | None],
    *,
    returned: bool = False,
) -> None:
    schema = Schema.parse(text)
    schema.check_out(schema.bind(inputs), outs, returned=returned)


def test_an_argument_written_in_place_must_have_the_dtype() -> None:
    schema = Schema.parse("a::f(x: f32[n])").with_mutated(["x"])
    assert str(schema.error("x", tensor(3, dtype=F64))) == (
        "a::f: argument 'x': expected f32[n], got f64[3] (torch.Tensor, cpu); "
        "pass one of float32: a cast would be a copy, and this is written in place"
    )


CASTS = [
    ("numpy.ndarray", "f32", 'x.astype("float32")'),
    ("numpy.ndarray", "bf16", "x.astype(ml_dtypes.bfloat16)"),
    ("torch.Tensor", "bf16", "x.to(torch.bfloat16)"),
    ("jax.Array", "f32", 'x.astype("float32")'),
    ("tf.Tensor", "i32", 'tf.cast(x, "int32")'),
    ("mlx.array", "bool", "x.astype(mlx.core.bool_)"),
    ("pyarrow.DoubleArray", "f32", 'x.cast("float32")'),
    ("tvm_ffi.Tensor", "f32", 'dlbridge.to_tvm(x, dtype="float32")'),
    ("warp.array", "f32", 'dlbridge.to_warp(x, dtype="float32")'),
    ("dlbridge.Tensor", "f32", 'dlbridge.asarray(x, "float32")'),
    ("array.array", "f32", 'dlbridge.asarray(x, "float32")'),
    ("torch.Tensor", "f16|f32", "x.to(torch.float32)"),
    ("torch.Tensor", "i8|i64", "x.to(torch.int64)"),
]


@pytest.mark.parametrize(("source", "dtypes", "how"), CASTS)
def test_a_wrong_dtype_is_cast_in_the_words_of_its_framework(
    source: str, dtypes: str, how: str
) -> None:
    given = Described((3,), F64, source, "cpu")
    text = refusal(UnsupportedTypeError, f"a::f(x: {dtypes}[n])", given)
    assert text.endswith(f"; cast it with {how}")


def test_jax_casts_to_64_bits_once_they_are_switched_on() -> None:
    given = Described((3,), F32, "jax.Array", "cpu")
    text = refusal(UnsupportedTypeError, "a::f(x: f64[n])", given)
    assert '; cast it with x.astype("float64")' in text
    jax = sys.modules.get("jax")
    assert (jax is not None and jax.config.jax_enable_x64) or text.endswith(
        'for which first switch 64-bit types on with jax.config.update("jax_enable_x64", True)'
    )


def test_out_must_be_what_the_result_will_be() -> None:
    inputs: list[Described | None] = [tensor(2, 3), tensor(3, 4)]
    check_out(MM, inputs, [tensor(2, 4)])
    with pytest.raises(ArgumentError) as shape:
        check_out(MM, inputs, [tensor(4, 2)])
    assert str(shape.value) == (
        "mylib::mm: argument 'out': expected f32[m=2, n=4], got f32[4, 2] (torch.Tensor, cpu)"
    )
    with pytest.raises(UnsupportedTypeError) as dtype:
        check_out(MM, inputs, [tensor(2, 4, dtype=F64)])
    assert str(dtype.value) == (
        "mylib::mm: argument 'out': expected f32[m=2, n=4], got f64[2, 4] (torch.Tensor, cpu); "
        "pass one of float32, or leave out= away"
    )
    with pytest.raises(UnsupportedTypeError) as result:
        check_out(MM, inputs, [tensor(2, 4, dtype=F64)], returned=True)
    assert str(result.value) == (
        "mylib::mm: result 'out': expected f32[m=2, n=4], the function returned f64[2, 4] "
        "(torch.Tensor, cpu); cast it with out.to(torch.float32)"
    )


def test_one_of_several_outs_is_named_by_its_number() -> None:
    text = "a::f(x: float[n]) -> (float[n], s: float[])"
    inputs: list[Described | None] = [tensor(3)]
    check_out(text, inputs, [tensor(3), tensor()])
    with pytest.raises(ArgumentError) as caught:
        check_out(text, inputs, [tensor(3), tensor(1)])
    assert str(caught.value) == (
        "a::f: argument 'out[1]': expected float=f32[], got f32[1] (torch.Tensor, cpu)"
    )
    with pytest.raises(UnsupportedTypeError) as count:
        check_out(text, inputs, [tensor(3)])
    assert str(count.value) == (
        "a::f: argument 'out': expected a tuple of 2 tensors, got 1 of them"
    )
    with pytest.raises(UnsupportedTypeError, match=r"argument 'out\[0\]': .* got None$"):
        check_out(text, inputs, [None, tensor()])


# ---- single errors, the hook -------------------------------------------------------------------


def test_an_error_can_be_asked_for_by_place_or_name() -> None:
    schema = Schema.parse(MM)
    bindings = schema.bind([tensor(2, 3), tensor(3, 4)])
    for place in (1, "y"):
        error = schema.error(place, tensor(1), bindings)
        assert type(error) is ArgumentError
        assert str(error) == (
            "mylib::mm: argument 'y': expected f32[k=3, n=4], got f32[1] (torch.Tensor, cpu)"
        )
    assert (
        str(schema.error("out", None)) == "mylib::mm: argument 'out': expected f32[m, n], got None"
    )
    with pytest.raises(
        ArgumentError, match=r"^mylib::mm: no tensor argument or result is called 'z'$"
    ):
        schema.error("z", None)


def test_memory_that_a_kernel_cannot_take_is_a_buffer_error() -> None:
    schema = Schema.parse(MM)
    error = unfit(schema, 2, "readonly", ("writable", "read-only"), tensor(3, 4), "pass a copy")
    assert type(error) is ExchangeError
    assert error.reason == "readonly"
    assert str(error) == (
        "mylib::mm: argument 'out': expected writable f32[m, n], "
        "got read-only f32[3, 4] (torch.Tensor, cpu); pass a copy [readonly]"
    )


def test_refusals_of_the_native_core_have_the_same_texts() -> None:
    schema = Schema.parse(MM)
    x = ((56, 56), (2, 32, 1), "torch.Tensor", (1, 0))
    y = ((56, 56), (2, 64, 1), "torch.Tensor", (1, 0))
    error = explain(schema, [x, y])
    assert type(error) is UnsupportedTypeError
    assert str(error) == REFUSED[0][3]
    assert str(explain(schema, [x, None])) == REFUSED[3][3]
    assert str(explain(schema, [x, x, y])) == (
        "mylib::mm: argument 'out': expected f32[m=56, n=56], got f64[56, 56] (torch.Tensor, cpu); "
        "pass one of float32, or leave out= away"
    )
    assert str(explain(schema, [x, x, y], returned=True)) == (
        "mylib::mm: result 'out': expected f32[m=56, n=56], the function returned f64[56, 56] "
        "(torch.Tensor, cpu); cast it with out.to(torch.float32)"
    )


def test_an_explanation_that_finds_nothing_wrong_says_so() -> None:
    x = ((5, 5), F32, "numpy.ndarray", "cpu")
    error = explain(Schema.parse(MM), [x, x])
    assert type(error) is KernelError
    assert str(error) == (
        f"mylib::mm: the native check refused what {MM} takes: "
        "f32[5, 5] (numpy.ndarray, cpu), f32[5, 5] (numpy.ndarray, cpu); "
        "this is a defect of dlbridge, please report it"
    )


# ---- extents that are not known, or symbols ----------------------------------------------------


def test_unknown_extents_fit_everything_and_are_passed_on() -> None:
    """TensorFlow's shape functions see shapes with unknown extents, or of unknown rank."""
    assert results(MM, tensor(None, 3), tensor(None, 4)) == [((None, 4), F32)]
    assert bind(MM, tensor(2, None), tensor(3, 4)).names == {"m": 2, "k": 3, "n": 4}
    assert results("a::f(x: f32[n]) -> f32[2*n+1]", tensor(None)) == [((None,), F32)]
    unranked = Described(None, F32)
    assert results(MM, unranked, tensor(3, 4)) == [((None, 4), F32)]
    assert results("a::f(x: f32[..., n]) -> f32[...]", unranked) == [(None, F32)]
    assert bind("a::f(x: f32[*b], y: f32[*b])", tensor(None, 2), tensor(1, None)).packs == {
        "b": (1, 2)
    }
    check_out(MM, [unranked, unranked], [tensor(7, 8)])


def test_unknown_extents_are_shown_as_a_question_mark() -> None:
    text = refusal(ArgumentError, "a::f(x: f32[2, n])", tensor(3, None))
    assert text == "a::f: argument 'x': expected f32[2, n], got f32[3, ?] (torch.Tensor, cpu)"
    text = refusal(UnsupportedTypeError, "a::f(x: f32[n])", Described(None, F64))
    assert text == (
        "a::f: argument 'x': expected f32[n], got f64[?...]; "
        'cast it with dlbridge.asarray(x, "float32")'
    )


class Symbol:
    """An extent that knows equality and arithmetic, and refuses to become a number."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Symbol) and self.text == other.text

    __hash__ = None  # type: ignore[assignment]

    def __mul__(self, other: object) -> Symbol:
        return Symbol(f"{self}*{other}")

    def __rmul__(self, other: object) -> Symbol:
        return Symbol(f"{other}*{self}")

    def __floordiv__(self, other: object) -> Symbol:
        return Symbol(f"{self}//{other}")

    def __str__(self) -> str:
        return self.text


def test_symbols_are_compared_and_computed_with_and_never_counted() -> None:
    s = Symbol("s")
    text = "a::f(x: f32[n], y: f32[2*n], z: f32[n]) -> f32[n*m//2, 3*n, m]"
    with pytest.raises(ArgumentError, match="not determined"):
        Schema.parse(text)
    text = text.replace("z: f32[n]", "z: f32[n, m]")
    ((shape, _),) = results(text, tensor(s), tensor(Symbol("2*s")), tensor(s, 5))
    assert list(map(str, shape)) == ["s*5//2", "3*s", "5"]
    assert refusal(ArgumentError, text, tensor(s), tensor(4), tensor(s, 5)) == (
        "a::f: argument 'y': expected f32[2*n=2*s], got f32[4] (torch.Tensor, cpu)"
    )


def test_torchs_symbolic_sizes_stay_symbolic(framework: Callable[[str], Any]) -> None:
    """A dynamic dimension that became a number would be baked into an exported program."""
    torch = framework("torch")
    from torch.export import Dim, export

    schema = Schema.parse("a::f(x: f32[n, 4], y: f32[n, k]) -> f32[2*n, k]")
    seen: list[Any] = []

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any, y: Any) -> Any:
            bindings = schema.bind([tensor(*x.shape), tensor(*y.shape)])
            ((shape, _),) = schema.results_of(bindings)
            seen.append(shape)
            return torch.zeros(shape) + x.sum() + y.sum()

    n = Dim("n", min=2, max=64)
    exported = export(
        Module(), (torch.zeros(3, 4), torch.zeros(3, 5)), dynamic_shapes=({0: n}, {0: n}),
        strict=False,
    )  # fmt: skip
    assert not isinstance(seen[-1][0], int)
    assert exported.module()(torch.zeros(7, 4), torch.zeros(7, 5)).shape == (14, 5)


def test_jaxs_symbolic_sizes_stay_symbolic(framework: Callable[[str], Any]) -> None:
    jax = framework("jax")
    export = framework("jax.export")
    schema = Schema.parse("a::f(x: f32[n, 4], y: f32[n, k]) -> f32[2*n, k]")
    seen: list[Any] = []

    def run(x: Any, y: Any) -> Any:
        ((shape, _),) = schema.results_of(schema.bind([tensor(*x.shape), tensor(*y.shape)]))
        seen.append(shape)
        return jax.numpy.zeros(shape) + x.sum() + y.sum()

    b, k = export.symbolic_shape("b, k")
    arguments = [jax.ShapeDtypeStruct((b, 4), "float32"), jax.ShapeDtypeStruct((b, k), "float32")]
    exported = export.export(jax.jit(run))(*arguments)
    assert str(seen[-1][0]) == "2*b"
    assert exported.call(jax.numpy.zeros((7, 4)), jax.numpy.zeros((7, 5))).shape == (14, 5)
    with pytest.raises(ArgumentError, match=r"expected f32\[n=b, k\], got f32\[k, b\]"):
        schema.bind([tensor(b, 4), tensor(k, b)])


# ---- against an oracle -------------------------------------------------------------------------


Call = tuple[Schema, list[Described | None], list[Any]]


LARGEST_SOLUTION = 30  # of a name that an expression determines: n - 5*5 == 5


def solve(case: Call) -> dict[str, Any] | None:
    """Return names, packs and variables that make every tensor fit, by trying all that may.

    None also where an expression has the same extent whatever the name that it should determine.
    """
    schema, tensors, scalars = case
    given = {name: scalars[place] for place, name in schema.sizes}
    spread = {name: scalars[place] for place, name in schema.spread}
    if any(extent < 0 for extent in chain(given.values(), *spread.values())):
        return None
    found: dict[str, Any] = dict(given)
    found |= {f"pack {name}": extents for name, extents in spread.items()}
    found |= {
        f"dtype {name}": scalars[place]
        for place, name in schema.typed
        if scalars[place] is not None
    }
    occurring = sorted({extent for one in tensors if one for extent in one.shape or ()} or {0})
    solved = {solution.name for solution in schema.solved}
    open_names = [name for name in schema.names if name not in given]
    candidates = [
        range(LARGEST_SOLUTION + 1) if name in solved else occurring for name in open_names
    ]
    for extents in product(*candidates):
        names = dict(zip(open_names, extents, strict=True))
        solution = fit(schema, tensors, found | names)
        if solution is not None:
            return solution if is_determined(schema, tensors, solution) else None
    return None


def is_determined(
    schema: Schema, tensors: list[Described | None], solution: dict[str, Any]
) -> bool:
    """Return whether each expression that gives a name its value has another one for the next."""
    bound = {
        dim.value
        for part, one in zip(schema.tensors, tensors, strict=True)
        if one is not None
        for dim in part.dims
        if dim.kind == "name"
    }
    for place, index, name in schema.solved:
        text = str(schema.tensors[place].dims[index])
        after = solution | {name: solution[name] + 1}
        if name not in bound and compute(text, solution) == compute(text, after):
            return False
    return True


def fit(
    schema: Schema, tensors: list[Described | None], known: dict[str, Any]
) -> dict[str, Any] | None:
    """Return what is known, and the packs and dtypes of tensors that fit it."""
    found = dict(known)
    for part, one in zip(schema.tensors, tensors, strict=True):
        if one is None and part.optional:
            continue
        if one is None or part.dtype is None or one.shape is None:
            return None
        if part.dtype.dtypes and one.dtype not in part.dtype.dtypes:
            return None
        if found.setdefault(f"dtype {part.dtype.variable}", one.dtype) != one.dtype:
            return None
        shape = list(one.shape)
        spare = len(shape) - len(part.dims) + 1
        wanted: list[Any] = []
        for dim in part.dims:
            if dim.kind == "pack":
                taken = tuple(shape[len(wanted) : len(wanted) + max(spare, 0)])
                wanted += found.setdefault(f"pack {dim.value}", taken)
            elif dim.kind == "any":
                wanted.append(shape[len(wanted)] if len(wanted) < len(shape) else None)
            else:
                wanted.append(compute(str(dim), known))
        if wanted != shape:
            return None
    return found


def compute(text: str, names: dict[str, Any]) -> int:
    """Return the value of a dimension by Python's own reading of its text; -1 if it has none."""
    try:
        return int(eval(as_code(text), {}, names))
    except ZeroDivisionError:
        return -1


@cache
def as_code(text: str) -> CodeType:
    return compile(text, "a dimension", "eval")


@given(bound_calls())
def test_binding_agrees_with_trying_everything(case: Call) -> None:
    schema, tensors, scalars = case
    solution = solve(case)
    if solution is None:
        with pytest.raises(DLBridgeError) as caught:
            schema.bind(tensors, scalars)
        assert str(caught.value).startswith("ns::f: argument '")
        return
    bindings = schema.bind(tensors, scalars)
    for name, extent in bindings.names.items():
        assert solution[name] == extent
    for name, extents in bindings.packs.items():
        assert solution[f"pack {name}"] == extents
    for variable, dtype in bindings.dtypes.items():
        assert solution[f"dtype {variable}"] is dtype


@given(bound_calls())
def test_results_agree_with_pythons_reading_of_their_text(case: Call) -> None:
    schema, tensors, scalars = case
    solution = solve(case)
    if solution is None:
        return
    expected = []
    for result in schema.results:
        shape: list[int] = []
        for dim in result.dims:
            if dim.kind == "pack":
                shape += solution[f"pack {dim.value}"]
            else:
                shape.append(compute(str(dim), solution))
        expected.append(tuple(shape))
    bindings = schema.bind(tensors, scalars)
    if any(extent < 0 for shape in expected for extent in shape):
        with pytest.raises(ArgumentError, match="result"):
            schema.results_of(bindings)
    else:
        assert [shape for shape, _ in schema.results_of(bindings)] == expected


@given(schemas(), st.data())
def test_a_wrong_dtype_alone_is_a_type_error(schema: Schema, data: st.DataObject) -> None:
    strange = Described((1,), DType("handle"))
    if any(part.dtype is not None and not part.dtype.dtypes for part in schema.tensors):
        return
    with pytest.raises(UnsupportedTypeError):
        schema.bind([strange] * len(schema.tensors))


def test_a_call_of_the_core_with_other_scalars_than_the_schema_has_is_refused() -> None:
    schema = Schema.parse("t::f(x: f32[n], k: int, axes: int[]) -> f32[n]")
    given = [((3,), (0, 32, 1))]  # the dtype is wrong as well
    assert "takes 2 scalars, got 1" in str(explain(schema, given, [1]))
    assert "is not a list of int" in str(explain(schema, given, [1, "1;2"]))
    assert "got i32[3]" in str(explain(schema, given, [1, "1,2"]))

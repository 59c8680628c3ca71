"""Arguments of a call against a schema: sorted as Python sorts them, scalars converted strictly."""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import IntEnum
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.schema_strategies import schemas

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, DLBridgeError, UnsupportedTypeError
from dlbridge.kernels.schema import Arguments, Schema

AXPY = Schema.parse(
    "mylib::axpy(x: f32[n], y: f32[n], w: f32[n]? = None, *, alpha: float = 1.0, axis: int?)"
    " -> f32[n]"
)


class Thing:
    """Stands for a tensor."""

    shape = (3,)


X, Y, Z = Thing(), Thing(), Thing()


def arrange(*args: Any, **kwargs: Any) -> Arguments:
    return AXPY.arrange(args, kwargs)


def refusal(schema: Schema, *args: Any, **kwargs: Any) -> str:
    with pytest.raises(UnsupportedTypeError) as caught:
        schema.arrange(args, kwargs)
    return str(caught.value)


# ---- sorting -----------------------------------------------------------------------------------


def test_tensors_and_scalars_come_in_the_order_of_the_schema() -> None:
    assert arrange(X, Y, axis=2) == Arguments([X, Y, None], [1.0, 2], None)
    assert arrange(y=Y, x=X, axis=None, alpha=3) == Arguments([X, Y, None], [3.0, None], None)
    assert arrange(X, Y, Z, axis=None).tensors == [X, Y, Z]


def test_the_objects_are_the_callers_own() -> None:
    """Nothing looks at a tensor here: it may be a tracer, or of any framework."""
    assert arrange(X, Y, axis=0).tensors[0] is X


@pytest.mark.parametrize("out", [Z, (Z,), [Z]])
def test_out_is_one_tensor_or_a_tuple_of_one(out: Any) -> None:
    assert arrange(X, Y, axis=0, out=out).out == [Z]
    assert arrange(X, Y, axis=0, out=None).out is None


def test_out_is_a_tuple_for_several_results() -> None:
    schema = Schema.parse("a::f(x: f32[n]) -> (f32[n], s: f32[])")
    assert schema.arrange((X,), {"out": (Y, Z)}).out == [Y, Z]
    name = f"{__name__.partition('.')[0]}.Thing"
    wanted = "a::f: argument 'out': expected a tuple of 2 tensors, got"
    assert refusal(schema, X, out=Y) == f"{wanted} {name}"
    assert refusal(schema, X, out=(Y,)) == f"{wanted} tuple ({name})"
    assert refusal(schema, X, out=[Y, None]) == f"{wanted} list ({name}, NoneType)"
    assert refusal(AXPY, X, Y, axis=0, out=()) == (
        "mylib::axpy: argument 'out': expected one tensor, got tuple ()"
    )


def test_without_results_out_is_a_name_like_any_other() -> None:
    schema = Schema.parse("a::f(x: f32[n], out!: f32[n])")
    assert schema.arrange((X,), {"out": Y}) == Arguments([X, Y], [], None)
    assert refusal(Schema.parse("a::f(x!: f32[n])"), X, out=Y) == (
        "a::f: argument 'out': not expected; it has no results"
    )


WRONG_CALLS: list[tuple[tuple[Any, ...], dict[str, Any], str]] = [
    ((), {}, "argument 'x': expected f32[n], got nothing"),
    ((X,), {"axis": 0}, "argument 'y': expected f32[n], got nothing"),
    ((X, Y), {}, "argument 'axis': expected int?, got nothing"),
    ((X, None), {"axis": 0}, "argument 'y': expected f32[n], got None"),
    ((X, Y), {"axis": 0, "alpha": None}, "argument 'alpha': expected float, got None"),
    ((X, Y), {"x": X}, "argument 'x': given by position and by name"),
    (
        (X, Y),
        {"beta": 1},
        "argument 'beta': not expected; it takes x, y, w, alpha, axis, out",
    ),
    (
        (X, Y),
        {"axsi": 1},
        "argument 'axsi': not expected; it takes x, y, w, alpha, axis, out; did you mean 'axis'?",
    ),
    (
        (X, Y, Z, 2.0),
        {},
        "expected at most 3 arguments by position (x, y, w), got 4; by name only: alpha, axis",
    ),
]


@pytest.mark.parametrize(
    ("args", "kwargs", "why"), WRONG_CALLS, ids=[row[2] for row in WRONG_CALLS]
)
def test_a_wrong_call_says_which_argument(
    args: tuple[Any, ...], kwargs: dict[str, Any], why: str
) -> None:
    assert refusal(AXPY, *args, **kwargs) == f"mylib::axpy: {why}"


def test_a_kernel_without_arguments_takes_none() -> None:
    schema = Schema.parse("a::f()")
    assert schema.arrange((), {}) == Arguments([], [], None)
    assert refusal(schema, 1) == "a::f: expected at most 0 arguments by position, got 1"
    assert refusal(schema, x=1) == "a::f: argument 'x': not expected; it takes none"


@given(schemas(), st.data())
def test_arguments_are_sorted_as_python_sorts_them(schema: Schema, data: st.DataObject) -> None:
    """`inspect.Signature.bind` decides the same about every call."""
    values: dict[str, Any] = {"tensor": X, "int": 5, "float": 2.5, "bool": True, "str": "s"}
    values |= {"dtype": DType("float32"), "int[]": (1, 2), "float[]": (0.5, 1.5)}
    listed = schema.parameters
    count = data.draw(st.integers(0, len(listed) + 1))
    args = tuple([values[part.kind] for part in listed[:count]]) + (X,) * (count - len(listed))
    kwargs = {
        part.name: values[part.kind]
        for part in listed
        if data.draw(st.booleans() if part in listed[:count] else st.sampled_from((0, 1, 1, 1)))
    }
    try:
        bound = inspect_bind(schema, args, kwargs)
    except TypeError:
        with pytest.raises(UnsupportedTypeError):
            schema.arrange(args, kwargs)
        return
    arranged = schema.arrange(args, kwargs)
    assert repr(arranged.tensors) == repr([bound[part.name] for part in schema.tensors])
    assert repr(arranged.scalars) == repr([bound[part.name] for part in schema.scalars])


def inspect_bind(schema: Schema, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    bound = schema.signature().bind(*args, **kwargs)
    bound.apply_defaults()
    return bound.arguments


# ---- scalars -----------------------------------------------------------------------------------


def convert(kind: str, value: Any, **options: Any) -> Any:
    schema = Schema.parse(f"a::f(*, s: {kind})")
    (scalar,) = schema.arrange((), {"s": value}, **options).scalars
    return scalar


class Three(IntEnum):
    THREE = 3


ACCEPTED: list[tuple[str, Any, Any]] = [
    ("int", 3, 3),
    ("int", -(2**63), -(2**63)),
    ("int", 2**63 - 1, 2**63 - 1),
    ("int", np.int8(-3), -3),
    ("int", np.uint64(3), 3),
    ("int", Three.THREE, 3),
    ("float", 3, 3.0),
    ("float", 2**70, 2.0**70),
    ("float", 1.5, 1.5),
    ("float", math.inf, math.inf),
    ("float", np.float16(1.5), 1.5),
    ("float", np.float32(1.5), 1.5),
    ("float", np.float64(1.5), 1.5),
    ("float", np.longdouble(1.5), 1.5),
    ("float", np.int32(3), 3.0),
    ("bool", True, True),
    ("bool", np.False_, False),
    ("str", "é", "é"),
    ("str", np.str_("a"), "a"),
    ("int?", None, None),
]


@pytest.mark.parametrize(("kind", "value", "converted"), ACCEPTED, ids=repr)
def test_scalars_become_pythons_own(kind: str, value: Any, converted: Any) -> None:
    scalar = convert(kind, value)
    assert scalar == converted
    assert type(scalar) is type(converted)


def test_nan_is_a_float() -> None:
    assert math.isnan(convert("float", math.nan))
    assert math.isnan(convert("float", np.float32(math.nan)))


def test_the_scalars_of_ml_dtypes_are_numbers() -> None:
    """They are NumPy scalars of kinds that NumPy itself cannot name."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    assert convert("float", ml_dtypes.bfloat16(1.5)) == 1.5
    assert convert("int", ml_dtypes.int4(-3)) == -3
    assert refused("int", ml_dtypes.bfloat16(1.5)).startswith("a::f: argument 's': expected int")


def refused(kind: str, value: Any) -> str:
    with pytest.raises(DLBridgeError) as caught:
        convert(kind, value)
    return str(caught.value)


REFUSED: list[tuple[str, Any, str]] = [
    ("int", True, "int, got True (bool)"),
    ("int", np.True_, "int, got np.True_ (numpy.bool)"),
    ("int", 1.0, "int, got 1.0 (float)"),
    ("int", np.float64(1.0), "int, got np.float64(1.0) (numpy.float64)"),
    ("int", "1", "int, got '1' (str)"),
    ("int", [1], "int, got [1] (list)"),
    ("int", np.timedelta64(1), "int, got np.timedelta64(1) (numpy.timedelta64)"),
    ("float", True, "float, got True (bool)"),
    ("float", 1j, "float, got 1j (complex)"),
    ("float", np.complex64(1), "float, got np.complex64(1+0j) (numpy.complex64)"),
    ("float", "1", "float, got '1' (str)"),
    ("float", Fraction(1, 2), "float, got Fraction(1, 2) (fractions.Fraction)"),
    ("bool", 1, "bool, got 1 (int)"),
    ("str", b"a", "str, got b'a' (bytes)"),
    ("str", 1, "str, got 1 (int)"),
]


@pytest.mark.parametrize(("kind", "value", "why"), REFUSED, ids=[row[2] for row in REFUSED])
def test_a_scalar_of_another_kind_is_a_type_error(kind: str, value: Any, why: str) -> None:
    if "np." in why and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 writes its scalars in another way")
    assert refused(kind, value) == f"a::f: argument 's': expected {why}"
    with pytest.raises(TypeError):
        convert(kind, value)


@pytest.mark.parametrize("kind", ["int", "float", "bool"])
def test_an_array_is_no_scalar_whatever_its_rank(kind: str) -> None:
    """The value of a 0-d array on a device would need a synchronisation that nobody asked for."""
    assert refused(kind, np.array(1)) == (
        f"a::f: argument 's': expected {kind}, got numpy.ndarray; "
        f"pass a Python number, as {kind}(x) gives"
    )
    assert refused("str", np.array("a")) == "a::f: argument 's': expected str, got numpy.ndarray"


TOO_LARGE: list[tuple[str, Any, str]] = [
    ("int", 2**63, "int of at most 64 bits, got 9223372036854775808"),
    ("int", -(2**63) - 1, "int of at most 64 bits, got -9223372036854775809"),
    ("int", np.uint64(2**63), "int of at most 64 bits, got np.uint64(9223372036854775808)"),
    ("float", 10**400, f"float, got {10**400}"),
    ("str", "a\0b", "str of Unicode text without NUL characters, got 'a\\x00b'"),
    ("str", "\ud800", "str of Unicode text without NUL characters, got '\\ud800'"),
]


@pytest.mark.parametrize(
    ("kind", "value", "why"), TOO_LARGE, ids=[row[2][:50] for row in TOO_LARGE]
)
def test_a_scalar_that_does_not_fit_is_a_value_error(kind: str, value: Any, why: str) -> None:
    if "np." in why and np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 writes its scalars in another way")
    assert refused(kind, value) == f"a::f: argument 's': expected {why}"
    with pytest.raises(ArgumentError):
        convert(kind, value)


@pytest.mark.parametrize("kind", ["int", "float", "bool"])
def test_a_traced_scalar_is_left_alone_where_that_is_asked_for(kind: str) -> None:
    tracer = Thing()
    assert convert(kind, tracer, traced=True) is tracer
    for value in ("1", [1], None):
        with pytest.raises(UnsupportedTypeError):
            convert(kind, value, traced=True)


def test_a_tracer_is_no_string() -> None:
    with pytest.raises(UnsupportedTypeError):
        convert("str", Thing(), traced=True)


def test_a_tracer_of_jax_is_a_traced_scalar(
    framework: Callable[[str], Any],
) -> None:
    jax = framework("jax")
    seen: list[Any] = []

    def trace(value: Any) -> Any:
        seen.append(convert("float", value, traced=True))
        with pytest.raises(UnsupportedTypeError, match="argument 's': expected float, got jax"):
            convert("float", value)
        return value

    jax.jit(trace)(1.5)
    assert isinstance(seen[0], jax.core.Tracer)

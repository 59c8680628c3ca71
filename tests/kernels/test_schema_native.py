"""The native core and Python read a schema alike: what fits, what results are, what is said."""

from __future__ import annotations

import ctypes
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from kernels.schema_strategies import bound_calls, schemas

import dlbridge
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from dlbridge.kernels import kernel as _hooks  # noqa: F401  (connects the texts)
from dlbridge.kernels.schema import Described, Schema

FUNCTION = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
MOST_ELEMENTS = 10_000


@FUNCTION
def nothing(context: object, tensors: object, count: int) -> int:
    """Stand for a kernel."""
    return 0


def make(schema: Schema) -> native.KernelBase:
    address = ctypes.cast(nothing, ctypes.c_void_p).value
    return native.KernelBase(
        schema.qualified,
        schema.encode(),
        schema.encode_arguments(),
        [(1, "dltensors", address, None)],
        schema=schema,
        may_overlap=True,
    )


def allocate(described: Described | None) -> dlbridge.Tensor | None:
    if described is None or described.shape is None:
        return None
    return dlbridge.empty(described.shape, dtype=described.dtype)


def check(schema: Schema, inputs: Any, outs: Any, scalars: Any = ()) -> str:
    """Return what Python says of a call, "" if all is well."""
    try:
        bindings = schema.bind(inputs, scalars)
        schema.check_out(bindings, outs)
    except DLBridgeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def run(schema: Schema, inputs: Any, outs: Any, scalars: Any = ()) -> str:
    """Return what the native core says of a call, "" if all is well."""
    tensors = [allocate(one) for one in (*inputs, *outs)]
    try:
        make(schema).run(tensors, scalars, "numpy.ndarray")
    except DLBridgeError as error:
        return f"{type(error).__name__}: {error}"
    return ""


def results_of(schema: Schema, inputs: Any, scalars: Any) -> list[Described]:
    """Return the results, or something in their place where there are none."""
    try:
        found = schema.results_of(schema.bind(inputs, scalars))
    except DLBridgeError:
        found = [((), dlbridge.DType("float32")) for _ in schema.results]
    return [Described(shape, dtype, "numpy.ndarray", "cpu") for shape, dtype in found]


@given(bound_calls(), st.data())
def test_c_and_python_take_and_refuse_the_same_with_the_same_words(
    case: tuple[Schema, list[Described | None], list[Any]], data: st.DataObject
) -> None:
    schema, inputs, scalars = case
    outs: list[Described] = results_of(schema, inputs, scalars)
    if outs and data.draw(st.integers(0, 3)) == 0:
        place = data.draw(st.integers(0, len(outs) - 1))
        shape = data.draw(st.lists(st.integers(0, 3), max_size=3))
        dtype = data.draw(st.sampled_from((outs[place].dtype, dlbridge.DType("int8"))))
        outs[place] = Described(tuple(shape), dtype, "numpy.ndarray", "cpu")
    if any(math.prod(one.shape or ()) > MOST_ELEMENTS for one in outs):
        return
    assert run(schema, inputs, outs, scalars) == check(schema, inputs, outs, scalars)


@given(schemas())
def test_the_native_core_takes_every_schema(schema: Schema) -> None:
    assert make(schema).name == schema.qualified


def test_the_limits_of_schemas_are_those_of_the_native_core() -> None:
    names = ", ".join([f"n{number}" for number in range(32)])
    tensors = ", ".join([f"x{number}: f32[{names}]" for number in range(31)])
    scalars = ", ".join([f"s{number}: int" for number in range(16)])
    assert make(Schema.parse(f"a::f({tensors}, {scalars}) -> f32[{'+'.join(['n0'] * 16)}]"))
    sets = ", ".join([f"x{number}: A{number}=float[*p{number % 4}]" for number in range(16)])
    assert make(Schema.parse(f"a::f({sets})"))


@pytest.mark.parametrize("extent", [2**31, 2**63 - 2, 2**63 - 1])
def test_the_largest_constants_are_the_same_on_both_sides(extent: int) -> None:
    assert make(Schema.parse(f"a::f(x: f32[{extent}], n: int) -> f32[n]"))


@pytest.mark.parametrize("right", range(8))
def test_the_native_stack_holds_the_deepest_expression(right: int) -> None:
    """An expression that leans to the right needs a place on the stack for each operand."""
    text = "n" + "-(n" * 15 + ")" * 15
    schema = Schema.parse(f"a::f(x: f32[n], y: f32[{text}])")
    inputs = [Described((3,), dlbridge.DType("float32"), "numpy.ndarray", "cpu"),
              Described((right,), dlbridge.DType("float32"), "numpy.ndarray", "cpu")]  # fmt: skip
    assert run(schema, inputs, []) == check(schema, inputs, [])


@pytest.mark.parametrize(
    "expression", ["n*n*n*n//(n*n*n)", "0-n*n*n*n", "n//(n-n)", "(n-n-1)//1+2", "n-2*n+n+1"]
)
def test_arithmetic_beyond_64_bits_is_refused_on_both_sides(expression: str) -> None:
    schema = Schema.parse(f"a::f(x: f32[0, n], y: f32[{expression}])")
    inputs = [Described((0, 2**20), dlbridge.DType("float32"), "numpy.ndarray", "cpu"),
              Described((1,), dlbridge.DType("float32"), "numpy.ndarray", "cpu")]  # fmt: skip
    assert run(schema, inputs, []) == check(schema, inputs, [])

"""Readers of a schema: the native core, torch, `inspect`, `help`, derivatives."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given
from kernels.schema_strategies import schemas

from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema import Schema

EVERYTHING = Schema.parse(
    "ns::axpy(x: f32[n], b!: f32|f64[*s, 3, _, 2*n-1], w: f32[n]? = None, *, alpha: float = 1.0,"
    ' axis: int? = None, mode: str = "a", flag: bool) -> (f32[*s], i64[])'
)


def key(code: int, bits: int) -> int:
    return code | bits << 8 | 1 << 16


# ---- the native core ---------------------------------------------------------------------------


def test_the_native_core_reads_plain_tuples() -> None:
    assert EVERYTHING.encode() == (
        ((key(2, 32),), (key(2, 32), key(2, 64)), (key(0, 64),)),
        1,
        1,
        (
            (0, (("n", 0),), False, False),
            (
                1,
                (
                    ("p", 0),
                    ("c", 3),
                    ("_",),
                    ("e", (("c", 2), ("n", 0), ("*", 0), ("c", 1), ("-", 0))),
                ),
                False,
                True,
            ),
            (0, (("n", 0),), True, False),
        ),
        ((0, (("p", 0),)), (2, ())),
        (
            ("float", False, -1, -1, -1, -1),
            ("int", True, -1, -1, -1, -1),
            ("str", False, -1, -1, -1, -1),
            ("bool", False, -1, -1, -1, -1),
        ),
        (),
    )
    schema = Schema.parse("a::f(x: f32[n], *, s: float, k: int) -> f32[n, 2*k]")
    assert schema.encode()[1] == 2
    assert schema.encode()[5] == (("float", False, -1, -1, -1, -1), ("int", False, 1, -1, -1, -1))
    schema = Schema.parse("a::f(x: f32[2*n, n*m], y: f32[1, m+k], *, k: int) -> f32[n]")
    assert schema.encode()[6] == ((0, 0, 0), (0, 1, 1))


def test_arguments_are_counted_by_kind() -> None:
    assert EVERYTHING.encode_arguments() == (
        ("x", "tensor", 0, False, False, None),
        ("b", "tensor", 1, False, False, None),
        ("w", "tensor", 2, False, True, None),
        ("alpha", "float", 0, True, True, 1.0),
        ("axis", "int", 1, True, True, None),
        ("mode", "str", 2, True, True, "a"),
        ("flag", "bool", 3, True, False, None),
    )


def test_any_dtype_is_an_empty_set() -> None:
    assert Schema.parse("a::f(x: any[n])").encode()[0] == ((),)


# ---- torch -------------------------------------------------------------------------------------

TORCH = [
    (
        str(EVERYTHING),
        (
            "axpy(Tensor x, Tensor(a!) b, Tensor? w=None, *, float alpha=1.0, SymInt? axis=None, "
            'str mode="a", bool flag) -> (Tensor, Tensor)'
        ),
    ),
    ("a::f(x: f32[n]) -> f32[n]", "f(Tensor x) -> Tensor"),
    ("a::f(x!: f32[n], y!: f32[n]?)", "f(Tensor(a!) x, Tensor(a1!)? y) -> ()"),
    ("a::f(*, x: f32[n], k: int = -3)", "f(*, Tensor x, SymInt k=-3) -> ()"),
    ("a::f(*, k: float = inf, b: bool = True)", "f(*, float k, bool b=True) -> ()"),
    ("a::f(i: int = 1, k: float = nan, b: int = 2)", "f(SymInt i, float k, SymInt b=2) -> ()"),
    ("a::f(*, k: float = 1e-320, z: float = -0.0)", "f(*, float k, float z=-0.0) -> ()"),
    ("a::f(*, s: str = 'it\\'s')", 'f(*, str s="it\'s") -> ()'),
    ("a::f(*, s: str = 'é', t: str = 'a\\n')", "f(*, str s, str t) -> ()"),
]


@pytest.mark.parametrize(("text", "torchs"), TORCH, ids=[row[1] for row in TORCH])
def test_torchs_schema(text: str, torchs: str) -> None:
    assert Schema.parse(text).torch_schema() == torchs


@given(schemas())
def test_torch_reads_every_schema(framework: Callable[[str], Any], schema: Schema) -> None:
    torch = framework("torch")
    read = torch._C.parse_schema(f"{schema.namespace}::{schema.torch_schema()}")
    assert [argument.name for argument in read.arguments] == [
        part.name for part in schema.parameters
    ]
    assert [argument.kwarg_only for argument in read.arguments] == [
        part.keyword_only for part in schema.parameters
    ]
    assert [argument.is_write for argument in read.arguments] == [
        part.mutated for part in schema.parameters
    ]
    assert len(read.returns) == len(schema.results)
    for argument, part in zip(read.arguments, schema.parameters, strict=True):
        if argument.has_default_value():
            default = argument.default_value
            assert (tuple(default) if isinstance(default, list) else default) == part.default


# ---- Python ------------------------------------------------------------------------------------


def test_the_signature_is_the_call() -> None:
    assert str(EVERYTHING.signature()) == (
        "(x: 'f32[n]', b: 'f32|f64[*s, 3, _, 2*n-1]', w: 'f32[n]?' = None, *, "
        "alpha: 'float' = 1.0, axis: 'int?' = None, mode: 'str' = 'a', flag: 'bool', "
        "out: 'tuple?' = None) -> '(f32[*s], i64[])'"
    )
    assert str(Schema.parse("a::f(x!: f32[n])").signature()) == "(x: 'f32[n]') -> None"
    assert str(Schema.parse("a::f(x: f32[n]) -> f32[n]").signature()) == (
        "(x: 'f32[n]', *, out: 'tensor?' = None) -> 'f32[n]'"
    )


HELP = """\
Add.

ns::axpy(x: f32[n], b!: f32|f64[*s, 3, _, 2*n-1], w: f32[n]? = None, *, alpha: float = 1.0, \
axis: int? = None, mode: str = "a", flag: bool) -> (f32[*s], i64[])

Args:
    x: float32 tensor of shape [n]; shared if it is row-major, else copied.
    b: float32 or float64 tensor of shape [*s, 3, _, 2*n-1]; written in place, through a copy \
unless it is row-major.
    w: float32 tensor of shape [n], or None; shared if it is row-major, else copied; \
None if left out.
    alpha: float; 1.0 if left out.
    axis: int, or None; None if left out.
    mode: str; "a" if left out.
    flag: bool.
    out: a tuple of tensors (out_0, out_1) to write the results into, and to return.

Returns:
    out_0: float32 tensor of shape [*s]; new memory of the caller's framework, or `out`.
    out_1: int64 tensor without dimensions; new memory of the caller's framework, or `out`.

Raises:
    TypeError: a wrong number or kind of arguments, or a wrong dtype.
    ValueError: a wrong shape, or a scalar that does not fit.
    BufferError: memory that the kernel cannot take: its device, its layout, …
    KernelError: the kernel failed; the text is its own.
"""


def test_the_help_has_a_line_for_each_argument_and_result() -> None:
    assert EVERYTHING.help("Add.") == HELP


def test_the_help_says_which_arguments_share_a_dtype() -> None:
    schema = Schema.parse("a::f(x: float[n], y!: float[n], k: A=any[n], j: A[n]) -> float[]")
    lines = schema.help(layout="strided").splitlines()
    assert lines[:3] == ["Run the kernel a::f.", "", str(schema)]
    assert lines[5:10] == [
        "    x: float tensor of shape [n], of one dtype with y and out; shared.",
        "    y: float tensor of shape [n], of one dtype with x and out; written in place.",
        "    k: tensor of any dtype, of shape [n], of one dtype with j; shared.",
        "    j: tensor of any dtype, of shape [n], of one dtype with k; shared.",
        "    out: a tensor to write the result into, of the same framework, and to return.",
    ]


# ---- derivatives -------------------------------------------------------------------------------

VJPS = [
    (
        "a::mm(x: A=float[m, k], y: A[k, n], *, alpha: float = 1.0) -> A[m, n]",
        (
            "a::mm_vjp(x: A=float[m, k], y: A[k, n], grad: A[m, n], *, alpha: float = 1.0)"
            " -> (grad_x: A[m, k], grad_y: A[k, n])"
        ),
    ),
    (
        "a::f(x: f32[n], i: i64[m], s: int) -> (y: f32[n], k: i64[], z: f64[2*n])",
        (
            "a::f_vjp(x: f32[n], i: i64[m], grad_y: f32[n], grad_z: f64[2*n], *, s: int)"
            " -> (grad_x: f32[n])"
        ),
    ),
    (
        "a::f(x: f32[_, n, _], x_0: c64[x_2]) -> f32[n]",
        (
            "a::f_vjp(x: f32[x_0, n, x_2_], x_0: c64[x_2], grad: f32[n])"
            " -> (grad_x: f32[x_0, n, x_2_], grad_x_0: c64[x_2])"
        ),
    ),
    (
        "a::f(x: f32[n], w: f32[n]? = None) -> f32[n]",
        "a::f_vjp(x: f32[n], w: f32[n]?, grad: f32[n]) -> (grad_x: f32[n], grad_w: f32[n])",
    ),
]


@pytest.mark.parametrize(("text", "vjp"), VJPS, ids=[row[0] for row in VJPS])
def test_the_schema_of_a_derivative(text: str, vjp: str) -> None:
    assert str(Schema.parse(text).vjp()) == vjp


def test_a_derivative_may_have_another_name() -> None:
    assert Schema.parse("a::f(x: f32[n]) -> f32[n]").vjp("b::g").qualified == "b::g"


NO_VJPS = [
    ("a::f(x: f32[n], b!: f32[n]) -> f32[n]", "it writes b in place"),
    ("a::f(x: i32[n]) -> f32[n]", "it has no floating argument"),
    ("a::f(x: f32[n]) -> i32[n]", "it has no floating result"),
    (
        "a::f(x: f32[n], w: f32[m]?) -> f32[n]",
        (
            "Schema: a::f_vjp: dimension 'm' of 'grad_w' is not determined by any argument that "
            "must be passed"
        ),
    ),
]


@pytest.mark.parametrize(("text", "why"), NO_VJPS, ids=[row[1] for row in NO_VJPS])
def test_where_there_is_no_derivative_the_text_says_why(text: str, why: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        Schema.parse(text).vjp()
    assert str(caught.value) == f"a::f: no schema of a vjp can be derived: {why}"

"""The notation of schemas: what is read, what is refused and where, what is written back."""

from __future__ import annotations

import copy
import math
import pickle
from typing import Any

import pytest
from hypothesis import given
from kernels.schema_strategies import schemas

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.kernels.schema import MISSING, Dim, Parameter, Result, Schema

EVERYTHING = (
    "ns::name(x: f32[n], y: f32|f64[n, 2*k], z: float[...], k: i8[k], b!: f32[*batch, 3, _],"
    ' w: f32[n]? = None, *, alpha: float = 1.0, axis: int? = None, mode: str = "a")'
    " -> (out: f32[n], s: i64[])"
)


def parse(text: str) -> Schema:
    return Schema.parse(text)


# ---- what is read ------------------------------------------------------------------------------


def test_every_part_of_the_notation_is_read() -> None:
    schema = parse(EVERYTHING)
    assert (schema.namespace, schema.name, schema.qualified) == ("ns", "name", "ns::name")
    assert [part.name for part in schema.tensors] == ["x", "y", "z", "k", "b", "w"]
    assert [(part.name, part.kind) for part in schema.scalars] == [
        ("alpha", "float"), ("axis", "int"), ("mode", "str"),
    ]  # fmt: skip
    assert schema.mutated == (4,)
    assert schema.names == ("n", "k")
    assert schema.packs == ("...", "batch")
    assert [part.keyword_only for part in schema.parameters] == [False] * 6 + [True] * 3
    assert [part.default for part in schema.scalars] == [1.0, None, "a"]
    assert schema.tensors[0].default is MISSING
    assert schema.tensors[5].default is None
    assert [(result.name, str(result.dtype)) for result in schema.results] == [
        ("out", "f32"), ("s", "i64"),
    ]  # fmt: skip


def test_dimensions_are_read_by_kind() -> None:
    (x,) = parse("a::f(x: f32[n, 3, _, *batch, 2*(n + 1)//3])").tensors
    assert [dim.kind for dim in x.dims] == ["name", "constant", "any", "pack", "expression"]
    assert x.dims[4].steps == (
        ("c", 2), ("n", "n"), ("c", 1), ("+", ""), ("*", ""), ("c", 3), ("/", ""),
    )  # fmt: skip
    assert x.dims[4].evaluate({"n": 4}) == 3


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("n - (m + k)", "n-(m+k)"),
        ("(n - m) + k", "n-m+k"),
        ("n * (m // k)", "n*(m//k)"),
        ("(n * m) // k", "n*m//k"),
        ("2 * (n + m)", "2*(n+m)"),
        ("((n))", "n"),
        ("2 * 3 + 1", "7"),
        ("7 // 2 - 3", "0"),
    ],
)
def test_expressions_are_written_with_the_fewest_parentheses(written: str, canonical: str) -> None:
    schema = parse(f"a::f(x: f32[n, m, k], y: f32[{written}])")
    assert str(schema.tensors[1].dims[0]) == canonical
    assert parse(str(schema)) == schema


@pytest.mark.parametrize(
    ("written", "dtypes"),
    [
        ("f32", ["float32"]),
        ("float32", ["float32"]),
        ("bf16", ["bfloat16"]),
        ("u8", ["uint8"]),
        ("bool", ["bool"]),
        ("c64", ["complex64"]),
        ("complex128", ["complex128"]),
        ("f8e4m3fn", ["float8_e4m3fn"]),
        ("f4e2m1fn", ["float4_e2m1fn"]),
        ("i4x2", ["int4x2"]),
        ("float32x4", ["float32x4"]),
        ("float", ["float16", "bfloat16", "float32", "float64"]),
        ("int", ["int8", "int16", "int32", "int64"]),
        ("uint", ["uint8", "uint16", "uint32", "uint64"]),
        ("complex", ["complex64", "complex128"]),
        ("f32|i8|f32", ["float32", "int8"]),
        ("complex|f32", ["complex64", "complex128", "float32"]),
        ("any", []),
    ],
)
def test_dtypes_have_short_and_full_names_and_sets(written: str, dtypes: list[str]) -> None:
    dtype = parse(f"a::f(x: {written}[n])").tensors[0].dtype
    assert dtype is not None
    assert list(dtype.dtypes) == [DType(name) for name in dtypes]


def test_number_is_every_integer_and_every_floating_dtype() -> None:
    (x,) = parse("a::f(x: number[])").tensors
    assert x.dtype is not None
    assert len(x.dtype.dtypes) == 14
    assert not x.dtype.accepts(DType("bool"))


def test_one_set_is_one_variable_however_it_is_written() -> None:
    """`f64|f32` and `float32|float64` are the same set: two variables there would surprise."""
    schema = parse("a::f(x: f64|f32[n], y: float32|float64[n]) -> f32|f64[n]")
    assert len(schema.dtypes) == 1
    assert str(schema) == "a::f(x: f64|f32[n], y: f64|f32[n]) -> f64|f32[n]"


def test_named_variables_over_one_set_are_different_variables() -> None:
    schema = parse("a::f(x: A=float[n], y: B=float[n], z: float[n]) -> (A[n], B[n])")
    assert [dtype.variable for dtype in schema.dtypes] == ["A", "B", "float"]
    assert str(schema) == "a::f(x: A=float[n], y: B=float[n], z: float[n]) -> (A[n], B[n])"


@pytest.mark.parametrize(
    ("written", "canonical"),
    [
        ("(x: f16|f32[b, 2*d], pos: i64[b]) -> like x", "-> f16|f32[b, 2*d]"),
        ("(mask: bool[...], x: any[...], y: like x) -> like mask", "y: any[...]) -> bool[...]"),
        ("(x: A=float[*b], y!: like x, z: like y? = None)", "y!: A[*b], z: A[*b]? = None)"),
        ("(x: f32[n], like: i8[n]) -> (like like, more: like x)", "-> (i8[n], more: f32[n])"),
        ("(x: to[n], *, to: dtype) -> like x", "-> to[n]"),
    ],
)
def test_like_is_the_type_of_another_argument(written: str, canonical: str) -> None:
    schema = Schema.parse(f"a::f{written}")
    assert str(schema).endswith(canonical)
    assert Schema.parse(str(schema)) == schema


def test_results_have_names_of_their_own_or_by_number() -> None:
    assert [result.name for result in parse("a::f(x: f32[n]) -> f32[n]").results] == ["out"]
    several = parse("a::f(x: f32[n]) -> (f32[n], s: f32[], f32[])")
    assert [result.name for result in several.results] == ["out_0", "s", "out_2"]
    assert str(several) == "a::f(x: f32[n]) -> (f32[n], s: f32[], f32[])"


@pytest.mark.parametrize("end", ["", " -> ()"])
def test_without_results_there_is_no_arrow(end: str) -> None:
    assert str(parse(f"a::f(x!: f32[n]){end}")) == "a::f(x!: f32[n])"


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("float = 2", 2.0),
        ("float = -1.5e-3", -0.0015),
        ("float = .5", 0.5),
        ("float = 5.", 5.0),
        ("float = inf", math.inf),
        ("float = -inf", -math.inf),
        ("int = -7", -7),
        ("bool = True", True),
        ("int? = None", None),
        ("str = 'it\\'s'", "it's"),
        ('str = "tab\\t, quote \\", slash \\\\, \\u00e9"', 'tab\t, quote ", slash \\, é'),
    ],
)
def test_defaults_are_literals_of_python(written: str, value: Any) -> None:
    schema = parse(f"a::f(x: {written})")
    assert schema.scalars[0].default == value
    assert type(schema.scalars[0].default) is type(value)
    assert parse(str(schema)).scalars[0].default == value


def test_a_default_of_nan_makes_equal_schemas() -> None:
    """NaN is unequal to itself; schemas are compared by their text."""
    assert parse("a::f(x: float = nan)") == parse("a::f(x: float = nan)")


def test_a_schema_may_span_lines_and_end_lists_with_a_comma() -> None:
    text = """
        mylib::mm(
            x: f32[m, k],
            y: f32[k, n],
        ) -> (
            f32[m, n],
        )
    """
    assert str(parse(text)) == "mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]"


# ---- what is written ---------------------------------------------------------------------------


def test_the_canonical_text_of_everything() -> None:
    assert str(parse(EVERYTHING)) == EVERYTHING
    assert parse(EVERYTHING).text == EVERYTHING


@given(schemas())
def test_the_text_of_a_schema_is_read_back_as_the_same(schema: Schema) -> None:
    again = parse(str(schema))
    assert again == schema
    assert hash(again) == hash(schema)
    assert again.encode() == schema.encode()
    parts = again.parameters, again.results  # by their texts, as NaN equals nothing
    assert repr(parts) == repr((schema.parameters, schema.results))
    assert pickle.loads(pickle.dumps(schema)) == schema


def test_a_schema_is_a_value() -> None:
    schema = parse("a::f(x: float32[n]) -> float32[n]")
    assert schema == parse("a::f( x :f32[ n ] )->( out: f32[n] )")
    assert schema != parse("a::g(x: f32[n]) -> f32[n]")
    assert schema != "a::f(x: f32[n]) -> f32[n]"
    assert {schema: 1}[copy.deepcopy(schema)] == 1
    assert repr(schema) == "Schema.parse('a::f(x: f32[n]) -> f32[n]')"
    assert eval(repr(schema)) == schema
    with pytest.raises(AttributeError, match=r"^Schema is immutable: cannot set name$"):
        schema.name = "g"
    with pytest.raises(AttributeError, match=r"^Schema is immutable: cannot delete name$"):
        del schema.name


# ---- what is refused ---------------------------------------------------------------------------

REFUSED = """
expected a namespace, as in 'mylib::axpy(…)', got '::'
| ::f(x: f32[n])
  ^
expected '::' after the namespace, as in 'mylib::f(…)', got '('
| f(x: f32[n])
   ^
expected the kernel's name after '::', got '('
| a::(x: f32[n])
     ^
expected '(' after the name 'f', got the end
| a::f
      ^
expected an argument's name, '*' or ')', got the end
| a::f(
       ^
expected an argument's name, '*' or ')', got ','
| a::f(,)
       ^
expected ':' after 'x', got 'f32'
| a::f(x f32[n])
         ^
expected a dtype, as in 'f32[n]', or a scalar type, got ')'
| a::f(x: )
          ^
expected '[' after 'f32' (scalars are int, float, bool, str, dtype), got ')'
| a::f(x: f32)
             ^
a result must be a tensor or a number (int, float, bool), not 'str'; return a tensor of \
numbers instead
| a::f(x: f32[n]) -> str
                     ^
unknown dtype 'f33' (f32, bf16, bool, float32, …; float, int, uint, complex, number, any)
| a::f(x: f33[n])
          ^
unknown dtype 'T' (f32, bf16, bool, float32, …; float, int, uint, complex, number, any); \
a name for several is defined first, as in 'T=f32|f64[n]'
| a::f(x: T[n]) -> T[n]
          ^
expected a dtype after '|', got '['
| a::f(x: f32|[n])
              ^
'any' stands alone: it takes every dtype
| a::f(x: f32|any[n])
              ^
the variable 'A' cannot be part of a union
| a::f(x: A=float[n], y: i8|A[n])
                            ^
'like y': expected a tensor argument before it (x)
| a::f(x: f32[n], k: int) -> like y
                                  ^
'like x': expected a tensor argument before it (there is none)
| a::f(x: like x)
               ^
'like x': 'x' has a dimension '_', whose extent has no name to refer to; give it one
| a::f(x: f32[_]) -> like x
                          ^
expected the end, got '['
| a::f(x: f32[n]) -> like x[n]
                           ^
'A' is defined already; refer to it with 'A[…]'
| a::f(x: A=float[n], y: A=float[n])
                         ^
'f32' is a dtype, not a name for several, as in 'T=f32|f64[n]'; \
a scalar with a default is one of int, float, bool, str, dtype
| a::f(x: f32=float[n])
          ^
'f64' is a dtype, not a name for several, as in 'T=f32|f64[n]'; \
a scalar with a default is one of int, float, bool, str, dtype
| a::f(x: f32[n], s: f64 = 1.0)
                     ^
expected a dtype after 'A=', got '['
| a::f(x: A=[n])
            ^
expected ',' or ']', got 'n'
| a::f(x: f32[2n])
               ^
expected ',' or ']', got the end
| a::f(x: f32[n
               ^
expected a dimension after ',', got ']'
| a::f(x: f32[n,])
                ^
expected a dimension (a name, an integer, '_', '...', '*name' or '2*n'), got '-'
| a::f(x: f32[-1])
              ^
expected a dimension (a name, an integer, '_', '...', '*name' or '2*n'), got ']'
| a::f(x: f32[n + ])
                  ^
expected a dimension (a name, an integer, '_', '...', '*name' or '2*n'), got '1.5'
| a::f(x: f32[1.5])
              ^
expected ')' after the expression, got ']'
| a::f(x: f32[(n])
                ^
expected the name of a pack after '*', got ']'
| a::f(x: f32[*])
               ^
'_' stands alone: it has no value to compute with
| a::f(x: f32[2*_])
                ^
a dimension must be from 0 to 2**63 - 1, got -1
| a::f(x: f32[2-3])
              ^
a dimension must be from 0 to 2**63 - 1, got 9223372036854775808
| a::f(x: f32[9223372036854775808])
              ^
this expression divides by zero
| a::f(x: f32[1//0])
              ^
unexpected character '@'
| a::f(x: f32[m @ n])
                ^
unexpected character '/'
| a::f(x: f32[n/2])
               ^
'!' marks tensors that are written, this is a scalar
| a::f(x!: int)
           ^
expected ',' or ')', got ']'
| a::f(x: f32[n]])
                ^
a second '*'
| a::f(*, x: f32[n], *, y: f32[n])
                     ^
no argument after '*'
| a::f(x: f32[n], *)
                  ^
a tensor's default can only be None
| a::f(x: f32[n]? = 1)
                    ^
only an optional argument ('?' after its type) can be None
| a::f(x: int = None)
                ^
the default of int must be int, got 1.5
| a::f(x: int = 1.5)
                ^
the default of int must be int, got True
| a::f(x: int = True)
                ^
the default of str must be str, got 1
| a::f(x: str = 1)
                ^
expected a number after '-', got 'True'
| a::f(x: int = -True)
                 ^
expected a number, a string in quotes, True, False or None, got 'yes'
| a::f(x: bool = yes)
                 ^
a string with a bad escape
| a::f(x: str = "\\xq")
                ^
unexpected character '"'
| a::f(x: str = "a)
                ^
the default 9223372036854775808 does not fit 64 bits
| a::f(x: int = 9223372036854775808)
       ^
a string must be Unicode text without NUL characters
| a::f(x: str = "a\\0")
       ^
expected '->' or the end, got '-'
| a::f(x: f32[n]) - f32[n]
                  ^
expected the end, got ','
| a::f(x: f32[n]) -> f32[n], f32[n]
                           ^
the name 'x' is given twice
| a::f(x: f32[n], x: f32[n])
                  ^
the name 'x' is given twice
| a::f(x: f32[n]) -> (x: f32[n])
                      ^
'lambda' cannot be the name of an argument
| a::f(lambda: f32[n])
       ^
an argument cannot be called 'out': that is where results go
| a::f(out: f32[n]) -> f32[n]
       ^
argument 'y' without a default after 'x', which has one
| a::f(x: f32[n]? = None, y: f32[n])
                          ^
'x' has more than one pack: *a, *b
| a::f(x: f32[*a, *b])
       ^
'out' has more than one pack: *a, *b
| a::f(x: f32[*a], y: f32[*b]) -> f32[*a, *b]
                                  ^
dimension 'm' of 'out' is not determined by any argument that must be passed
| a::f(x: f32[n]) -> f32[m]
                     ^
dimension 'm' of 'out' is not determined by any argument that must be passed
| a::f(x: f32[n], w: f32[m]?) -> f32[m]
                                 ^
dimension '...' of 'out' is not determined by any argument that must be passed
| a::f(x: f32[n]) -> f32[...]
                     ^
dimension 'm' of 'x' is not determined by any argument that must be passed
| a::f(x: f32[m*m])
       ^
dimension 'm' of 'x' is not determined by any argument that must be passed
| a::f(x: f32[m//2])
       ^
dimension 'm' of 'x' is not determined by any argument that must be passed
| a::f(x: f32[m+n])
       ^
dimension 'm' of 'x' is not determined by any argument that must be passed
| a::f(x: f32[2*m]?)
       ^
dtype 'float' of 'out' is not determined by any argument that must be passed
| a::f(x: f32[n], w: float[n]?) -> float[n]
                                   ^
'out' is a result: '_' says nothing about its size
| a::f(x: f32[n]) -> f32[_]
                     ^
'b' is a dimension and a pack
| a::f(x: f32[b], y: f32[*b])
       ^
"""


def refused() -> list[Any]:
    """Return (text, whole message) for each case above."""
    lines = REFUSED.strip("\n").split("\n")
    cases = []
    for why, text, mark in zip(lines[::3], lines[1::3], lines[2::3], strict=True):
        message = f"Schema: {why}\n    {text[2:]}\n    {mark[2:]}"
        cases.append(pytest.param(text[2:], message, id=text[2:]))
    return cases


@pytest.mark.parametrize(("text", "message"), refused())
def test_invalid_schemas_are_refused_at_the_place_of_the_mistake(text: str, message: str) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(text)
    assert str(caught.value) == message


def test_only_the_line_with_the_mistake_is_shown() -> None:
    with pytest.raises(ArgumentError) as caught:
        parse("a::f(x: f32[n],\n\ty: f33[n],\n\tz: f32[n])")
    assert str(caught.value).endswith("number, any)\n     y: f33[n],\n        ^")


def test_a_schema_that_is_no_text_is_refused() -> None:
    with pytest.raises(UnsupportedTypeError, match=r"^Schema: expected str, got bytes b'a::f'$"):
        Schema.parse(b"a::f")


# ---- limits ------------------------------------------------------------------------------------


def listed(count: int, item: str) -> str:
    return ", ".join([item.replace("#", str(number)) for number in range(count)])


SETS = ("f16", "f32", "f64", "bf16", "i8", "i16", "i32", "i64", "u8", "u16", "u32", "u64", "bool",
        "c64", "c128", "i4", "i2")  # fmt: skip

LIMITS = [
    (32, "x#: f32[n]", "tensors, results included"),
    (16, "x#: int", "scalars"),
    (32, "n#", "named dimensions"),
    (4, "x#: f32[*p#]", "packs"),
]


@pytest.mark.parametrize(("limit", "item", "what"), LIMITS, ids=[row[2] for row in LIMITS])
def test_the_limits_are_those_of_the_native_core(limit: int, item: str, what: str) -> None:
    form = "a::f(x: f32[{}])" if item == "n#" else "a::f({})"
    assert parse(form.format(listed(limit, item)))
    with pytest.raises(ArgumentError) as caught:
        parse(form.format(listed(limit + 1, item)))
    assert str(caught.value).startswith(f"Schema: at most {limit} {what}, got {limit + 1}\n")


def test_results_count_as_tensors() -> None:
    with pytest.raises(ArgumentError, match=r"^Schema: at most 32 tensors, results included"):
        parse(f"a::f({listed(20, 'x#: f32[n]')}) -> ({listed(13, 'f32[n]')})")


def test_there_are_16_dtypes_at_most() -> None:
    items = [f"x{name}: {name}[n]" for name in SETS]
    assert parse(f"a::f({', '.join(items[:16])})")
    with pytest.raises(
        ArgumentError, match=r"^Schema: at most 16 different dtypes and sets, got 17"
    ):
        parse(f"a::f({', '.join(items)})")


def test_an_expression_has_16_operands_at_most() -> None:
    assert parse(f"a::f(x: f32[n, {'+'.join('n' * 16)}])")
    with pytest.raises(ArgumentError, match="is too long: at most 16 operands"):
        parse(f"a::f(x: f32[n, {'+'.join('n' * 17)}])")


def test_parentheses_stand_in_one_another_32_deep_at_most() -> None:
    assert str(parse(f"a::f(x: f32[m, {'(' * 32}n{')' * 32}])")) == "a::f(x: f32[m, n])"
    for depth in (33, 1_000, 100_000):
        with pytest.raises(ArgumentError, match="at most 32 parentheses in one another, got 33"):
            parse(f"a::f(x: f32[m, {'(' * depth}n{')' * depth}])")


@pytest.mark.parametrize(
    ("form", "item", "limit"),
    [
        ("a::f({}, -)", "x#: T#=f32[n#]", 32),
        ("a::f() -> ({}, -)", "y#: f32[3]", 32),
        ("a::f({}, -)", "x#: int", 16),
        ("a::f(x: f32[{}, -])", "n#", 254),
        ("a::f(x: f32[{} -])", "n# +", 16),
    ],
)
def test_reading_ends_where_a_schema_has_no_more_room(form: str, item: str, limit: int) -> None:
    """So the mistake at the end of a long text, which comes later, is not the one that is named."""
    text = form.format(listed(limit - 1, item).replace("+,", "+"))
    with pytest.raises(ArgumentError, match=r"expected .*, got "):
        parse(text)
    longer = form.format(listed(100 * limit, item).replace("+,", "+"))
    with pytest.raises(ArgumentError, match=rf"(at most|more than) {limit} "):
        parse(longer)


def test_of_a_very_long_line_a_refusal_shows_what_is_near_the_place() -> None:
    with pytest.raises(ArgumentError) as caught:
        parse(f"a::f(x: f32[{', '.join('n' * 400)}])")
    why, line, mark = str(caught.value).split("\n")
    assert why == "Schema: more than 254 dimensions"
    assert line.startswith("    …, n, n")
    assert len(line) < 500
    assert line[len(mark) - 1] == "n"
    assert mark.strip() == "^"


def test_too_many_parts_are_refused_before_they_are_compared() -> None:
    part = parse("a::f(x: f32[n])").tensors[0]
    again = [part] * 100_000  # of one name, which would be refused as well
    with pytest.raises(ArgumentError, match="at most 32 tensors, results included, got 100000"):
        Schema("a", "f", again)


# ---- made from parts ---------------------------------------------------------------------------


def test_a_schema_can_be_made_from_parts() -> None:
    dtype = parse("a::f(x: float[n])").tensors[0].dtype
    assert dtype is not None
    n = Dim("name", "n")
    made = Schema("a", "f", [Parameter("x", "tensor", dtype, (n,))], [Result("out", dtype, (n,))])
    assert made == parse("a::f(x: float[n]) -> float[n]")


@pytest.mark.parametrize("qualified", ["a", "a::", "::f", "a::b::c", "a.b::f", "1::f", "a::f g"])
def test_names_of_operators_are_plain(qualified: str) -> None:
    with pytest.raises(ArgumentError, match=r"^Schema: '.*' cannot name an operator$"):
        parse("a::f(x: f32[n])").named(qualified)


def test_a_schema_keeps_everything_but_its_name_when_renamed() -> None:
    renamed = parse(EVERYTHING).named("other::thing")
    assert str(renamed) == EVERYTHING.replace("ns::name", "other::thing")


def test_arguments_are_marked_as_written_by_name_or_place() -> None:
    schema = parse("a::f(x: f32[n], y!: f32[n], z: f32[n], *, k: int = 0)")
    assert schema.with_mutated(["z"]).mutated == (1, 2)
    assert str(schema.with_mutated([0])) == "a::f(x!: f32[n], y!: f32[n], z: f32[n], *, k: int = 0)"
    assert schema.with_mutated([]) == schema


@pytest.mark.parametrize("name", ["k", "q", 3, -1])
def test_only_tensor_arguments_can_be_written(name: Any) -> None:
    with pytest.raises(ArgumentError) as caught:
        parse("a::f(x: f32[n], *, k: int = 0)").with_mutated([name])
    assert str(caught.value) == (f"a::f: mutates: expected tensor arguments (x), got {name!r}")


@pytest.mark.parametrize(
    "text",
    [
        f"a::f(x: f32[{'9' * 5000}]) -> f32[2]",
        f"a::f(x: f32[n]) -> f32[n * {'9' * 5000}]",
        f"a::f(x: f32[n], a: float = {'9' * 400}) -> f32[n]",
        f"a::f(x: f32[n], a: int = {'9' * 5000}) -> f32[n]",
        f"a::f(x: f32x{'9' * 5000}[n]) -> f32[n]",
        f"a::f(x: f32[n], a: float = {'9' * 400}.0) -> f32[n]",
        "a::f(x: f32[n], a: float = -1e999) -> f32[n]",
        f"a::f(x: f32[n], a: float = 1e{'9' * 5000}) -> f32[n]",
    ],
)
def test_numbers_of_thousands_of_digits_are_refused_with_their_place(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"(?s)^Schema: .*\^$"):
        Schema.parse(text)


@pytest.mark.parametrize(
    "text",
    [
        "m::f(x: int[n]) -> f32[n]",
        "m::f(x: int[n, 2]) -> f32[n]",
        "m::f(x: K=int[2]) -> K[2]",
        "m::f(x: i8|i16|i32|i64[2]) -> f32[2]",
        "m::f(x: int[n], y: int[2]) -> f32[n]",
        "m::f(x: bool[2]) -> f32[2]",
    ],
)
def test_tensors_of_sets_that_are_called_as_scalars_stay(text: str) -> None:
    assert str(Schema.parse(text)) == text


def test_a_set_that_is_known_by_another_name_prints_as_what_parses() -> None:
    schema = Schema.parse("m::f(x: int[n], y: i8|i16|i32|i64[2]) -> f32[n]")
    assert Schema.parse(str(schema)) == schema

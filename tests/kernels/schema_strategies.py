"""Random schemas, and tensors that fit them or do not quite."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dlbridge.dtype import DType
from dlbridge.errors import ArgumentError
from dlbridge.kernels.schema import Described, Dim, Schema

DTYPES = ("f32", "f64", "i32", "bool", "float|bool", "int|bool", "f32|i32", "any", "complex|f64")
NAMES = ("n", "m", "k")
DEFAULTS: dict[str, Any] = {
    "int": st.integers(-(2**63), 2**63 - 1).map(str),
    "float": st.floats().map(repr),
    "bool": st.booleans().map(str),
    "str": st.sampled_from(['"a"', "''", '"\\""', "'\\t'", '"é"']),
    "dtype": st.sampled_from(["f32", "float64", "bool", "i4x2"]),
    "int[]": st.lists(st.integers(-(2**63), 2**63 - 1), max_size=3).map(str),
    "int[2]": st.sampled_from(["[1, -2]", "[0, 9]"]),
    "float[]": st.lists(st.floats(), max_size=3).map(str),
}


@st.composite
def expressions(draw: Any, depth: int = 2) -> str:
    """Return an expression, as text."""
    if depth == 0 or draw(st.booleans()):
        return str(draw(st.sampled_from(NAMES) | st.integers(0, 4)))
    left, right = draw(expressions(depth - 1)), draw(expressions(depth - 1))
    return f"({left} {draw(st.sampled_from(('+', '-', '*', '//')))} {right})"


dims = st.one_of(
    st.sampled_from(NAMES),
    st.sampled_from(NAMES),
    st.sampled_from(("1", "2", "_")),
    expressions(),
)


TYPED = ((), (), ("to: dtype",), ("to: dtype? = f32",), ("to: dtype in int|f32? = f32",))


@st.composite
def tensor_types(draw: Any, dtypes: tuple[str, ...] = DTYPES) -> str:
    """Return `dtype[dims]`."""
    listed = draw(st.lists(dims, max_size=3))
    if draw(st.integers(0, 3)) == 0:
        listed.insert(draw(st.integers(0, len(listed))), draw(st.sampled_from(("...", "*b"))))
    return f"{draw(st.sampled_from(dtypes))}[{', '.join(listed)}]"


@st.composite
def scalars(draw: Any, number: int) -> str:
    """Return `name: kind = default`, or without the default."""
    kind = draw(st.sampled_from(sorted(DEFAULTS)))
    optional = draw(st.sampled_from(("", "?")))
    default = draw(st.none() | DEFAULTS[kind])
    return f"s{number}: {kind}{optional}" + (f" = {default}" if default else "")


@st.composite
def sizes(draw: Any) -> list[str]:
    """Return ints that are dimensions, where tensors name them: `name: int = default`."""
    return [
        f"{name}: int" + (f" = {default}" if default is not None else "")
        for name in draw(st.lists(st.sampled_from(NAMES), max_size=2, unique=True))
        for default in [draw(st.none() | st.integers(0, 4))]
    ]


@st.composite
def extents(draw: Any) -> list[str]:
    """Return a list that is a pack, where tensors name it: `b: int[] = default`."""
    if draw(st.integers(0, 3)):
        return []
    default = draw(st.none() | st.lists(st.integers(0, 4), max_size=3))
    return ["b: int[]" + (f" = {default}" if default is not None else "")]


@st.composite
def schema_texts(draw: Any) -> str:
    """Return a text that is a schema, apart from rules between its parts."""
    typed = draw(st.sampled_from(TYPED))
    dtypes = (*DTYPES, "to", "to", "to") if typed else DTYPES  # the dtype that an argument says
    tensors = draw(st.lists(tensor_types(dtypes), min_size=1, max_size=4))
    items = []
    for number, text in enumerate(tensors):
        mark = draw(st.sampled_from(("", "", "!")))
        items.append(f"x{number}{mark}: {text}{draw(st.sampled_from(('', '', '?')))}")
    by_name = [draw(scalars(number)) for number in range(draw(st.integers(0, 3)))]
    by_name = draw(st.permutations([*by_name, *draw(sizes()), *draw(extents()), *typed]))
    if by_name:
        items += ["*", *by_name]
    results = draw(st.lists(tensor_types(dtypes), max_size=2))
    return f"ns::f({', '.join(items)})" + (f" -> ({', '.join(results)})" if results else "")


def is_schema(text: str) -> bool:
    """Return whether a text also keeps to the rules between its parts."""
    try:
        Schema.parse(text)
    except ArgumentError:
        return False
    return True


def schemas() -> st.SearchStrategy[Schema]:
    """Return schemas of every kind."""
    return schema_texts().filter(is_schema).map(Schema.parse)


# ---- tensors -----------------------------------------------------------------------------------

SOME_DTYPES = tuple([DType(name) for name in ("float32", "float64", "int32", "bool")])
FEW_SIZES = st.integers(0, 5)


VALUES = {
    "int": 5,
    "float": 2.5,
    "bool": True,
    "str": "é",
    "dtype": SOME_DTYPES[1],
    "int[]": (7, -8),
    "float[]": (0.5, 1.5),
}


@st.composite
def bound_calls(draw: Any) -> tuple[Schema, list[Described | None], list[Any]]:
    """Return a schema, tensors and scalars for it; most of the time they fit."""
    schema = draw(schemas())
    names = {name: draw(FEW_SIZES) for name in schema.names}
    packs = {name: tuple(draw(st.lists(FEW_SIZES, max_size=2))) for name in schema.packs}
    dtypes = {
        part.variable: draw(st.sampled_from(part.dtypes or SOME_DTYPES)) for part in schema.dtypes
    }
    tensors: list[Described | None] = []
    for part in schema.tensors:
        if draw(st.integers(0, 3)) == 0 and (part.optional or draw(st.integers(0, 5)) == 0):
            tensors.append(None)
            continue
        assert part.dtype is not None
        shape = [extent for dim in part.dims for extent in extents_of(dim, names, packs)]
        dtype = dtypes[part.dtype.variable]
        if draw(st.integers(0, 9)) == 0:
            dtype = draw(st.sampled_from(SOME_DTYPES))
        if draw(st.integers(0, 9)) == 0:
            shape[draw(st.integers(0, len(shape))) :] = draw(st.lists(FEW_SIZES, max_size=2))
        tensors.append(Described(tuple(shape), dtype, "numpy.ndarray", "cpu"))
    values: list[Any] = [None if part.optional else VALUES[part.kind] for part in schema.scalars]
    for place, name in schema.sizes:
        values[place] = draw(st.integers(-1, 5)) if draw(st.integers(0, 9)) == 0 else names[name]
    for place, name in schema.spread:
        values[place] = packs[name]
        if draw(st.integers(0, 5)) == 0:
            values[place] = tuple(draw(st.lists(st.integers(-1, 5), max_size=2)))
    for place, name in schema.typed:
        if not (schema.scalars[place].optional and draw(st.booleans())):
            values[place] = dtypes[name]
    return schema, tensors, values


def extents_of(dim: Dim, names: dict[str, int], packs: dict[str, Any]) -> tuple[int, ...]:
    """Return the extents that a dimension stands for; something where it has no value."""
    if dim.kind == "pack":
        extents: tuple[int, ...] = packs[str(dim.value)]
        return extents
    if dim.kind == "any":
        return (3,)
    try:
        return (max(dim.evaluate(names), 0),)
    except ArithmeticError:
        return (1,)

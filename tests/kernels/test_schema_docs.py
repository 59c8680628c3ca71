"""Everything that docs/schema.md shows is so."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dlbridge import errors
from dlbridge.dtype import DType
from dlbridge.kernels.schema import SETS, Described, Schema, short_name
from dlbridge.kernels.schema import parts as schema_rules

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "schema.md").read_text()
FENCED = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, re.MULTILINE | re.DOTALL)
BLOCKS = [text for language, text in FENCED if not language]
PROGRAMS = [text for language, text in FENCED if language == "python"]
SCHEMAS = [
    *[line for block in BLOCKS for line in block.splitlines() if line.startswith("mylib::")],
    *re.findall(r"`(mylib::\w+\([^`]*)`", PAGE.replace("\n", " ")),
]
SCHEMAS = [text for text in SCHEMAS if not re.match(r"mylib::\w+: ", text)]


def rows(heading: str) -> list[list[str]]:
    """Return the cells of the first table below a heading."""
    lines = PAGE.partition(f"# {heading}\n")[2].split("\n")
    start = next(index for index, line in enumerate(lines) if line.startswith("| ---"))
    table = []
    for line in lines[start + 1 :]:
        if not line.startswith("|"):
            break
        table.append([cell.strip() for cell in line.strip("|").split(" | ")])
    return table


def test_the_page_has_schemas_of_every_kind() -> None:
    text = " ".join(SCHEMAS)
    assert len(SCHEMAS) >= 9
    for sign in ("!", "?", "*batch", "...", "2*n", "A=", "->", "= 1e-6"):
        assert sign in text


@pytest.mark.parametrize("text", SCHEMAS)
def test_every_schema_on_the_page_is_one(text: str) -> None:
    schema = Schema.parse(text)
    if "like " in text:  # of which the canonical notation has the dtype and the shape
        assert Schema.parse(str(schema)) == schema
    else:
        assert str(schema) == text.replace("1e-6", "1e-06")


@pytest.mark.parametrize("row", rows("Tensors"), ids=lambda row: row[0])
def test_every_argument_in_the_table_is_one(row: list[str]) -> None:
    written = row[0].strip("`")
    assert str(Schema.parse(f"a::f({written})")) == f"a::f({written})"


@pytest.mark.parametrize("row", rows("Dtypes"), ids=lambda row: row[0])
def test_the_table_of_sets_is_complete(row: list[str]) -> None:
    name = row[0].strip("`")
    if name in ("number", "any"):
        everything = {
            dtype for other in ("float", "int", "uint", "complex") for dtype in SETS[other]
        }
        assert set(SETS[name]) == (everything if name == "number" else set())
    else:
        assert row[1] == ", ".join([short_name(dtype) for dtype in SETS[name]])
    assert {cells[0].strip("`") for cells in rows("Dtypes")} == set(SETS)


@pytest.mark.parametrize(
    "dim", re.findall(r"`([^`]+)`", str([row[0] for row in rows("Dimensions")]))
)
def test_every_dimension_in_the_table_is_one(dim: str) -> None:
    assert Schema.parse(f"a::f(x: f32[n, m, k], y: f32[{dim}])")


def test_the_error_on_the_page_is_the_error() -> None:
    shown = next(block for block in BLOCKS if block.startswith("mylib::mm: argument"))
    schema = Schema.parse("mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]")
    x = Described((56, 56), DType("float32"), "torch.Tensor", "cpu")
    with pytest.raises(errors.UnsupportedTypeError) as caught:
        schema.bind([x, x._replace(dtype=DType("float64"))])
    assert f"{caught.value}\n" == shown


@pytest.mark.parametrize("row", rows("Calls"), ids=lambda row: row[0])
def test_the_errors_are_of_these_classes(row: list[str]) -> None:
    found = re.fullmatch(r"`(\w+)`, an? (\w+)", row[0])
    assert found is not None
    kind = getattr(errors, found[1])
    assert found[2] in [base.__name__ for base in kind.__mro__]


def test_the_mistake_on_the_page_is_refused_like_that() -> None:
    shown = next(block for block in BLOCKS if block.startswith("Schema: "))
    with pytest.raises(errors.ArgumentError) as caught:
        Schema.parse(shown.splitlines()[1].strip())
    assert f"{caught.value}\n" == shown


def test_the_limits_on_the_page_are_the_limits() -> None:
    text = PAGE.partition("A schema has at most ")[2].partition(".")[0]
    assert [int(number) for number in re.findall(r"\d+", text)] == [
        schema_rules.MAX_TENSORS,
        schema_rules.MAX_SCALARS,
        schema_rules.MAX_NAMES,
        schema_rules.MAX_PACKS,
        schema_rules.MAX_DTYPES,
        (schema_rules.MAX_STEPS + 1) // 2,
    ]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_every_program_on_the_page_prints_what_it_says(
    program: str, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(compile(program, "docs/schema.md", "exec"), {})
    assert capsys.readouterr().out.splitlines() == re.findall(r"\)  # (.*)$", program, re.MULTILINE)

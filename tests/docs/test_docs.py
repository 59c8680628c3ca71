"""The site's sources agree with the package; `make docs` builds it and runs its examples."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import operator
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import dlbridge
import dlbridge.graph as tf
from dlbridge import errors
from dlbridge.graph.core.opdef import op_def

ROOT = Path(__file__).resolve().parents[2]
DOCS = ROOT / "docs"
PAGES = sorted(path for path in DOCS.rglob("*.md") if "generated" not in path.parts)


def load(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_citation_has_the_version_of_the_package() -> None:
    """A release changes both."""
    found = re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)
    assert found is not None
    assert found[1] == dlbridge.__version__


def test_the_reference_has_every_public_name() -> None:
    listed = {
        name
        for path in (DOCS / "reference").glob("*.md")
        for block in re.findall(r"currentmodule:: dlbridge\n(.*?)```", path.read_text(), re.DOTALL)
        for name in re.findall(r"^(?:\.\. py:data:: |   |             )(\w+)$", block, re.MULTILINE)
    }
    for block in re.findall(
        r"autosummary::(.*?)```", (DOCS / "reference" / "exchange.md").read_text(), re.DOTALL
    ):
        listed.update(re.findall(r"^   (\w+)$", block, re.MULTILINE))
    assert listed == set(dlbridge.__all__)


@pytest.mark.parametrize("module", ["check", "proto", "mpi"])
def test_the_reference_has_every_name_of(module: str) -> None:
    names = importlib.import_module(f"dlbridge.{module}").__all__
    page = (DOCS / "reference" / f"{module}.md").read_text()
    head = f"currentmodule:: dlbridge.{module}\n"
    listed = re.findall(r"^   (\w+)$", page.partition(head)[2].partition("```")[0], re.MULTILINE)
    assert sorted(listed) == sorted(names)


def test_the_reference_has_every_name_of_errors() -> None:
    """Each exception as `dlbridge.<name>`, or with the errors of other parts."""
    page = (DOCS / "reference" / "check.md").read_text()
    listed = page.partition("currentmodule:: dlbridge.errors")[2]
    other = re.findall(r"^(?:   |\.\. autodata:: )([A-Z]\w+)$", listed, re.MULTILINE)
    defined = {
        name
        for name, value in vars(errors).items()
        if isinstance(value, type) and issubclass(value, Exception)
    }
    assert defined <= set(errors.__all__)
    assert set(errors.__all__) == {*(name for name in dlbridge.__all__ if name in defined), *other}


def test_the_reference_has_every_name_of_graphs() -> None:
    """Of `tf` and of its modules, each once; what a program begins with has pages of its own."""
    reference = load("graph_reference")
    listed = []
    for page in reference.pages().values():
        module = ""
        for kind, name in re.findall(r"^\.\. (?:py:|auto)(\w+):: (\S+)$", page, re.MULTILINE):
            module = name if kind == "currentmodule" else module
            listed += [] if kind == "currentmodule" else [f"{module}.{name}"]
    listed += [f"dlbridge.graph.{name}" for name in reference.begun()]
    spaces = {"dlbridge.graph": tf} | {
        f"dlbridge.graph.{name}": space
        for name, space in ((name, getattr(tf, name)) for name in dir(tf))
        if isinstance(space, ModuleType)
    }
    assert {"dlbridge.graph.nn", "dlbridge.graph.linalg"} < spaces.keys()
    for path, space in spaces.items():
        public = {
            name
            for name in getattr(space, "__all__", dir(space))
            if name[0] != "_" and not isinstance(getattr(space, name), ModuleType)
        }
        public -= {"annotations"}
        found = [name.rpartition(".")[2] for name in listed if name.rpartition(".")[0] == path]
        assert public <= set(found), path
        assert len(found) == len(set(found)), path


def test_the_reference_has_the_values_of_numbers_and_not_what_int_says() -> None:
    pages = load("graph_reference").pages()
    assert ".. py:data:: ABORTED\n   :value: 10\n" in pages["tf-errors.rst"]
    assert "int([x]) -> integer" not in "".join(pages.values())


def test_the_reference_has_no_object_twice() -> None:
    """Sphinx refuses that, and a reader would not know which of two entries counts."""
    own = {id(getattr(dlbridge, name)): name for name in dlbridge.__all__}
    for entry in load("graph_reference").entries():
        if id(entry.value) in own and (inspect.isclass(entry.value) or callable(entry.value)):
            assert entry.same == f"dlbridge.{own[id(entry.value)]}"


def test_each_docstring_of_graphs_says_more_than_its_name() -> None:
    reference = load("graph_reference")
    for entry in reference.entries():
        if callable(entry.value) and entry.name not in tf._MESSAGES:
            text = inspect.getdoc(entry.value) or ""
            said = {*re.findall(r"[a-z]+", text.lower())} - {"return", "a", "an", "the", "of"}
            assert len(said - {*re.findall(r"[a-z]+", entry.name.lower())}) >= 3, entry.shown


@pytest.mark.parametrize(
    ("name", "made"),
    [
        ("cos", ["Cos"]),
        ("reduce_sum", ["Sum"]),
        ("tensor_scatter_nd_max", ["TensorScatterMax"]),
        ("div", ["RealDiv", "FloorDiv"]),
        ("nn.max_pool", ["MaxPool"]),
        ("get_variable", []),
        ("Session", []),
    ],
)
def test_an_entry_of_graphs_names_the_op_types_that_its_function_makes(
    name: str, made: list[str]
) -> None:
    reference = load("graph_reference")
    function = operator.attrgetter(name)(tf)
    assert reference.op_types(function) == made
    shown = "\n".join(reference.declarations(function))
    assert [str(op_def(each)).partition("(")[0] in shown for each in made] == [True] * len(made)


@pytest.mark.parametrize("page", PAGES, ids=[str(path.relative_to(DOCS)) for path in PAGES])
def test_a_page_with_examples_says_that_they_run(page: Path) -> None:
    """Without the head, Sphinx would show the examples and run none."""
    text = page.read_text()
    assert ("{code-cell}" in text) == text.startswith("---\nfile_format: mystnb\n")


def test_the_pictures_are_those_of_their_commands() -> None:
    """`python docs/concept_pictures.py` draws them again."""
    for name, drawn in load("concept_pictures").PICTURES.items():
        assert (DOCS / name).read_text() == drawn() + "\n"


def test_broken_links_of_the_built_site_are_found(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<p id="here"></p><a href="b.html#there">1</a><a href="c.html">2</a><a href="#here">3</a>'
        '<img src="gone.png"><a href="https://example.org/x">4</a>'
    )
    (tmp_path / "b.html").write_text('<a href="a.html#here">1</a>')
    assert load("links").broken(tmp_path) == [
        "a.html: no anchor b.html#there",
        "a.html: no file c.html",
        "a.html: no file gone.png",
    ]


def test_the_explorer_says_what_an_exchange_does(framework: Callable[[str], object]) -> None:
    framework("torch")
    explorer = load("explorer")
    base = dlbridge.zeros((4, 8), "float32").numpy()
    state = explorer._state(("each row padded to 8", "x[::2]", "x[:, 1:]", "x", "read-only"), base)
    assert state["fields"]["shape"] == "(2, 5)"
    assert state["fields"]["strides"].startswith("(16, 1)")
    assert state["fields"]["offset"].startswith("4 bytes")
    assert state["fields"]["alignment"] == "4 bytes"
    assert state["fields"]["read-only"] == "yes"
    assert state["targets"]["numpy"] == "shared"
    assert state["targets"]["torch"] == "refused: readonly"

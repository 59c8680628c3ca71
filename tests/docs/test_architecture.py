"""docs/architecture.md and its picture agree with the tree."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlbridge"
PAGE = (ROOT / "docs" / "architecture.md").read_text()
# Folders of which there is one for each framework.
MANY = {"frameworks"}


def section(heading: str) -> str:
    """Return the text from a heading to the next one of its level."""
    sections = re.split(r"^## (.*)\n", PAGE, flags=re.MULTILINE)
    return sections[sections.index(heading) + 1]


def bold(heading: str) -> list[str]:
    """Return what has a paragraph or sentence of its own in a section."""
    return re.findall(r"\*\*([\w/]+)\*\*", section(heading))


@pytest.fixture(scope="module")
def drawing() -> ModuleType:
    spec = importlib.util.spec_from_file_location("architecture", ROOT / "docs" / "architecture.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_every_package_folder_is_named_once() -> None:
    packages = {path.parent.relative_to(PACKAGE) for path in PACKAGE.rglob("*/__init__.py")}
    expected = {str(path) for path in packages if path.parent.as_posix() not in MANY}
    named = bold("Python: `dlbridge/`")
    assert len(named) == len(set(named))
    folders = {name for name in named if not (PACKAGE / f"{name}.py").exists()}
    assert folders == expected


def test_every_folder_of_the_core_is_named_once() -> None:
    named = bold("C: `dlbridge/_core/`")
    assert len(named) == len(set(named))
    sources = (PACKAGE / "_core").glob("*/*.c")
    assert set(named) == {path.parent.name for path in sources}


PATH = re.compile(r"`((?:[\w<>]+/)+\w+\.(?:py|c|h))`")


def test_every_file_it_names_exists() -> None:
    for path in PATH.findall(PAGE):
        pattern = path.replace("<name>", "*")
        assert (ROOT / path).exists() or [*PACKAGE.glob(pattern)], path


def test_every_function_it_names_is_defined_in_the_file_it_names() -> None:
    pattern = rf"((?:`\w+`(?:,| and) )*`\w+`) in\s+{PATH.pattern}"
    named = re.findall(pattern, section("How data goes"))
    assert len(named) > 20
    for functions, path in named:
        text = (PACKAGE / path).read_text()
        for name in re.findall(r"\w+(?=`)", functions):
            definition = rf"(?:def |class |^[A-Za-z][\w \*]*[ \*]){name}\b|^{name}(?: =|:)"
            assert re.search(definition, text, re.MULTILINE), (name, path)


@pytest.mark.full
def test_the_picture_shows_the_imports_of_today(drawing: ModuleType) -> None:
    """`python docs/architecture.py` draws it again."""
    assert drawing.read_edges(drawing.PICTURE.read_text()) == drawing.find_edges()


def test_every_box_of_the_picture_is_a_layer(drawing: ModuleType) -> None:
    from core import test_core_layers
    from package import test_layers

    named = {drawing.TOGETHER.get(name, name) for name in test_layers.RANKS}
    assert named == set(drawing.PYTHON)
    assert set(test_core_layers.LAYERS) == set(drawing.C)


def test_arrows_that_follow_from_others_are_left_out(drawing: ModuleType) -> None:
    edges = {("a", "b"), ("b", "c"), ("a", "c"), ("a", "d")}
    assert drawing.reduce(edges) == {("a", "b"), ("b", "c"), ("a", "d")}

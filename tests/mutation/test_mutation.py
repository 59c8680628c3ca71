"""`make mutants`: which mistakes are planted, who is asked, and what the verdicts are."""

from __future__ import annotations

import ast
import random
import re
from pathlib import Path

import pytest
from areas import TESTS, area_of, nearest_tests
from judging import (
    EQUIVALENT,
    ROOT,
    Campaign,
    Copies,
    draw,
    first_failure,
    known_equivalent,
    print_scores,
)
from planting import in_c, in_python

PYTHON = b'''\
"""A text: 1 < 2."""
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import one


def f(x: int = 3, *, flag: bool = True) -> int:
    if (x) < (2) and flag:
        raise ValueError(f"{x - 1}")
    table["x"] = x
    return x
'''
OF_PYTHON = """\
-def f(x: int = 3, *, flag: bool = True) -> int:
+def f(x: int = 4, *, flag: bool = True) -> int:
-def f(x: int = 3, *, flag: bool = True) -> int:
+def f(x: int = 3, *, flag: bool = False) -> int:
-    if (x) < (2) and flag:
+    if (not ((x) < (2) and flag)):
-    if (x) < (2) and flag:
+    if (x) < (2) or flag:
-    if (x) < (2) and flag:
+    if True and flag:
-    if (x) < (2) and flag:
+    if (x) < (2) and True:
-    if (x) < (2) and flag:
+    if (x) <= (2) and flag:
-    if (x) < (2) and flag:
+    if (x) < (3) and flag:
-        raise ValueError(f"{x - 1}")
+        pass
-    table["x"] = x
+    pass
"""
C = b"""\
#if A < 1
#endif
static const int table[] = {1, 2};

int f(struct s *x, int n) { /* n < 1 */
    int y = n;
    char *text = "n < 1";
    for (; y < n; y++)
        g(text);
    if (x != NULL && x->flag)
        goto done;
    x->n -= y + 0x10;
    return true;
}
"""
OF_C = """\
-    for (; y < n; y++)
+    for (; y <= n; y++)
-        g(text);
+        ;
-    if (x != NULL && x->flag)
+    if (!(x != NULL && x->flag))
-    if (x != NULL && x->flag)
+    if (x == NULL && x->flag)
-    if (x != NULL && x->flag)
+    if (x != NULL || x->flag)
-    if (x != NULL && x->flag)
+    if (x != NULL && 1)
-        goto done;
+        ;
-    x->n -= y + 0x10;
+    ;
-    x->n -= y + 0x10;
+    x->n += y + 0x10;
-    x->n -= y + 0x10;
+    x->n -= y - 0x10;
-    x->n -= y + 0x10;
+    x->n -= y + 17;
-    return true;
+    return false;
"""


@pytest.mark.parametrize(
    ("find", "text", "expected"), [(in_python, PYTHON, OF_PYTHON), (in_c, C, OF_C)]
)
def test_mistakes_are_those_of_a_reader(find, text, expected) -> None:
    found = [each.diff(text) for each in find(text)]
    assert found == re.findall(r"-.*\n\+.*", expected)


def test_mistakes_know_where_they_stand() -> None:
    found = next(each for each in in_c(C) if each.kind == "condition")
    assert (found.function, found.line(C)) == ("f", 10)
    assert {each.function for each in in_python(PYTHON)} == {"f"}


def test_python_with_a_mistake_is_still_python() -> None:
    mistakes = list(draw("python", "exchange", 0, ROOT))
    assert len(mistakes) > 500
    for _, file, mistake in random.Random(0).sample(mistakes, 100):
        ast.parse(mistake.plant((ROOT / file).read_bytes()))


def test_a_seed_draws_the_same_mistakes() -> None:
    first, again, other = (list(draw("c", "_core/layout", seed, ROOT)) for seed in (1, 1, 2))
    assert first == again
    assert first != other
    assert sorted(first) == sorted(other)


# ---- who is asked --------------------------------------------------------------------------------


def test_every_folder_has_an_area_with_tests() -> None:
    files = [*ROOT.glob("dlbridge/**/*.py"), *ROOT.glob("dlbridge/**/*.c")]
    areas = {area_of(path.relative_to(ROOT).as_posix()) for path in files}
    assert areas == set(TESTS)
    for path in files[::20]:
        assert nearest_tests(ROOT, path.relative_to(ROOT).as_posix(), "")


@pytest.mark.parametrize(
    ("file", "near", "test"),
    [
        ("dlbridge/proto/wire.py", "decode_varints", "tests/proto/test_wire.py"),
        ("dlbridge/_core/engine/loops.c", "make_loops", "tests/execution/test_loops.py"),
        ("dlbridge/frameworks/mlx.py", "mlx", "tests/peers/test_mlx.py"),
    ],
)
def test_the_nearest_test_comes_first(file: str, near: str, test: str) -> None:
    assert test in nearest_tests(ROOT, file, near)[:2]


@pytest.mark.parametrize(
    ("printed", "test"),
    [
        ("tests/a.py::b[x y] FAILED [ 5%]\nFAILED tests/a.py::b[x y] - E: no\n", "b[x y]"),
        ("tests/a.py::c PASSED [ 5%]\ntests/a.py::b[1 - 2] \nFatal Python error\n", "b[1 - 2]"),
        ("tests/a.py::c PASSED [ 5%]\ntests/a.py::b ", "b"),
    ],
)
def test_the_first_failure_is_found(printed: str, test: str) -> None:
    assert first_failure(printed).strip() == f"tests/a.py::{test}"


def test_a_module_that_cannot_be_collected_is_a_failure() -> None:
    assert first_failure("ERROR tests/a.py - ImportError: no\n") == "tests/a.py"
    assert first_failure("") == "tests/test_conftest.py"


# ---- verdicts ------------------------------------------------------------------------------------

MODULE = "def is_small(x):\n    return x < 3\n\n\ndef unseen(x):\n    return x < 3\n"
TEST = """
from pathlib import Path
from dlbridge.proto import sizes

def test_unreliable():
    assert False

def test_is_small():
    assert [sizes.is_small(x) for x in (2, 3)] == [True, False]
"""


class Tiny(Copies):
    """Copies of a project without a core."""

    def __post_init__(self) -> None:
        for name, text in {
            "dlbridge/__init__.py": "",  # else the package that is installed comes before it
            "dlbridge/proto/__init__.py": "",
            "dlbridge/proto/sizes.py": MODULE,
            "tests/proto/test_s.py": TEST,
        }.items():
            path = self.unchanged / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)


@pytest.fixture
def campaign(tmp_path: Path) -> Campaign:
    copies = Tiny(tmp_path)
    drawn = iter(list(draw("python", "", 0, copies.unchanged)))
    return Campaign(copies, drawn, count=100, limit=60, known=set())


@pytest.mark.unsanitized("each of the processes that it starts takes a minute")
@pytest.mark.subprocess
@pytest.mark.full
def test_verdicts_and_scores(campaign: Campaign, capsys: pytest.CaptureFixture[str]) -> None:
    """One of the functions is tested, by a test behind one that always fails."""
    text = MODULE.encode()
    drawn = list(campaign.drawn)
    known = next(each for each in drawn if each.mistake.function == "unseen")
    campaign.known.add(known.key(text))
    campaign.drawn = iter(drawn)
    directory = campaign.copies.make(0)
    campaign.work(directory)
    campaign.settle(directory)
    words = {(each.planted.mistake.function, each.word) for each in campaign.verdicts}
    assert len(campaign.verdicts) == len(drawn) == 4
    assert words >= {("is_small", "killed"), ("unseen", "survived")}
    by = {each.by for each in campaign.verdicts if each.word == "killed"}
    assert by == {"tests/proto/test_s.py::test_is_small"}
    assert campaign.unreliable == ["tests/proto/test_s.py::test_unreliable"]
    assert (campaign.copies.directory / "0/dlbridge/proto/sizes.py").read_bytes() == text

    score = print_scores(campaign.verdicts)
    printed = capsys.readouterr().out
    assert "dlbridge/proto/sizes.py:6 (unseen)" in printed
    assert f"{score:5.1f} %" in printed
    assert 0 < score < 100


def test_equivalent_mistakes_have_a_reason() -> None:
    """Those whose lines have changed are out of date, and only that: they are drawn again."""
    import tomllib

    for row in tomllib.loads(EQUIVALENT.read_text())["equivalent"]:
        assert row.keys() == {"file", "change", "why"}
        assert len(row["why"]) > 20
        before, after = row["change"].strip("\n").split("\n", 1)
        assert (before[0], after[0]) == ("-", "+")
    assert len(known_equivalent()) == len(tomllib.loads(EQUIVALENT.read_text())["equivalent"])


def test_the_command_is_the_one_that_the_docs_name() -> None:
    docs, makefile = (ROOT / "CONTRIBUTING.md").read_text(), (ROOT / "Makefile").read_text()
    for command in ("mutants", "nightly"):
        assert f"`make {command}" in docs
        assert f"\n{command}:" in makefile

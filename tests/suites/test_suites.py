"""`make test-peers` on a suite of a few lines: what it reports, and what it puts in the suite."""

from __future__ import annotations

import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest

from suites import __main__ as command
from suites.runner import (
    ALONE,
    CONSUMER,
    HERE,
    PRODUCER,
    Known,
    Outcome,
    Row,
    Suite,
    judge,
    read_known,
    run_suite,
)
from suites.table import SUITES

pytestmark = pytest.mark.subprocess

EACH_OUTCOME = """
    import os, time
    import numpy as np
    import pytest

    def test_passes():
        np.from_dlpack(np.arange(3))

    def test_fails():
        assert np.from_dlpack(np.arange(3)).sum() == 4, "the sum"

    def test_crashes():
        os.abort()

    def test_is_skipped():
        pytest.skip("not today")

    def test_hangs():
        time.sleep(600)

    def test_exchanges_nothing():
        pass

    @pytest.mark.parametrize("n", [1, 2])
    def test_comes_after(n):
        np.from_dlpack(np.arange(n))
"""
BOTH_SIDES = """
    import numpy as np

    def from_dlpack(x):
        return type(x).__name__

    def handed_back(x):
        return x

    def tested(first, *, second):
        return [type(x[0]).__name__ for x in (first, second)]

    def test_our_tensor_is_the_argument():
        assert from_dlpack(np.arange(3)) == "Tensor"

    def test_our_tensor_makes_the_capsule():
        assert np.arange(3).astype(">f4").__dlpack__(max_version=(1, 0)) is not None

    def test_our_tensor_is_in_a_list():
        assert tested([np.arange(3)], second=(np.arange(3),)) == ["Tensor", "Tensor"]

    def test_an_array_is_handed_back():
        x = np.arange(3)
        assert handed_back(x) is x

    def test_our_function_is_called():
        assert np.from_dlpack(np.arange(3).astype(">f4")).dtype == "f4"
"""


def write(folder: Path, text: str, **settings: object) -> Suite:
    (folder / "test_mini.py").write_text(textwrap.dedent(text))
    return Suite("mini", (), ("test_mini.py",), "write it", **settings)  # type: ignore[arg-type]


def outcomes(
    suite: Suite, folder: Path, direction: str, seconds: float = 60
) -> dict[str, tuple[str, str, bool]]:
    results, problem = run_suite(suite, folder, sys.executable, direction, seconds)
    assert problem == ""
    return {r.test.partition("::")[2]: (r.outcome, r.text, r.touched) for r in results}


@pytest.mark.full
def test_each_outcome_is_reported_and_the_rest_runs(tmp_path: Path) -> None:
    found = outcomes(write(tmp_path, EACH_OUTCOME), tmp_path, PRODUCER, seconds=10)
    assert found == {
        "test_passes": ("passed", "", True),
        "test_fails": ("failed", "AssertionError: the sum", True),
        "test_crashes": ("failed", "the process was ended by SIGABRT", True),
        "test_is_skipped": ("skipped", found["test_is_skipped"][1], False),
        "test_hangs": ("failed", "the process did not go on for 10 s", True),
        "test_exchanges_nothing": ("passed", "", False),
        "test_comes_after[1]": ("passed", "", True),
        "test_comes_after[2]": ("passed", "", True),
    }
    assert "not today" in found["test_is_skipped"][1]


@pytest.mark.full
def test_dlbridge_is_the_side_that_it_is_said_to_be(tmp_path: Path) -> None:
    suite = write(tmp_path, BOTH_SIDES, tested=("tested", "handed*"))
    passing = {
        direction: {t for t, r in outcomes(suite, tmp_path, direction).items() if r[0] == "passed"}
        for direction in (ALONE, PRODUCER, CONSUMER)
    }
    # By itself NumPy refuses this byte order.
    assert passing == {
        ALONE: {"test_an_array_is_handed_back"},
        PRODUCER: {
            "test_an_array_is_handed_back",
            "test_our_tensor_is_the_argument",
            "test_our_tensor_makes_the_capsule",
            "test_our_tensor_is_in_a_list",
            "test_our_function_is_called",
        },
        CONSUMER: {"test_an_array_is_handed_back", "test_our_function_is_called"},
    }
    assert not list(tmp_path.rglob("*.pyc"))


@pytest.mark.full
@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("import no_such_module", "No module named 'no_such_module'"),
        ("import os; os.abort()", "the process was ended by SIGABRT"),
    ],
)
def test_a_suite_that_cannot_be_collected_is_no_success(
    text: str, says: str, tmp_path: Path
) -> None:
    results, problem = run_suite(write(tmp_path, text), tmp_path, sys.executable, ALONE, 60)
    assert results == []
    assert says in problem


# ---- what is expected ----

LISTED = Known("mini", PRODUCER, "design", "our own words", ("t.py::listed[a*]",))
BY_TEXT = Known("mini", PRODUCER, "design", "empty", ("t.py::numbered*",), "ValueError not *")


def judged(*results: Outcome, alone: tuple[Outcome, ...] = ()) -> Row:
    judge(row := Row("mini", "1.0", PRODUCER), alone, results, [LISTED, BY_TEXT])
    return row


def test_only_tests_in_which_dlbridge_took_part_are_counted() -> None:
    row = judged(
        Outcome("t.py::a", "passed", touched=True),
        Outcome("t.py::b", "passed"),
        Outcome("t.py::c", "skipped", touched=True),
    )
    assert (row.run, row.passed, row.failed, row.skipped) == (1, 1, 0, 2)
    assert not row.unexpected


def test_a_listed_failure_has_its_reason() -> None:
    row = judged(Outcome("t.py::listed[a-1]", "failed", "boom", touched=True))
    assert row.reasons == {("design", "our own words"): ["t.py::listed[a-1]"]}
    assert (row.failed, row.count("design"), row.unexpected) == (1, 1, [])


def test_a_failure_may_be_listed_by_its_text() -> None:
    row = judged(
        Outcome("t.py::numbered1", "failed", "ValueError not raised", touched=True),
        Outcome("t.py::numbered2", "passed", touched=True),
    )
    assert row.reasons == {("design", "empty"): ["t.py::numbered1"]}
    assert not row.unexpected


def test_a_failure_without_dlbridge_is_theirs() -> None:
    failure = Outcome("t.py::a", "failed", "boom", touched=True)
    assert judged(failure, alone=(failure,)).count("theirs") == 1


@pytest.mark.parametrize(
    "result",
    [
        Outcome("t.py::a", "failed", "boom", touched=True),
        Outcome("t.py::listed[b]", "failed", "boom", touched=True),
        Outcome("t.py::listed[a-1]", "passed", touched=True),
        Outcome("t.py::numbered1", "failed", "another error", touched=True),
    ],
)
def test_anything_else_is_unexpected(result: Outcome) -> None:
    (line,) = judged(result).unexpected
    assert result.test in line


def test_the_listed_failures_name_a_suite_and_a_reason() -> None:
    known = read_known(HERE / "known.toml")
    assert {entry.suite for entry in known} <= {suite.name for suite in SUITES}
    patterns = [(k.suite, k.direction, test, k.error) for k in known for test in k.tests]
    assert len(set(patterns)) == len(patterns)


def test_a_listed_failure_needs_a_reason(tmp_path: Path) -> None:
    path = tmp_path / "known.toml"
    path.write_text(
        '[[mini]]\ndirection = "producer"\nwhose = "nobody"\nreason = "?"\ntests = []\n'
    )
    with pytest.raises(ValueError, match="whose is one of"):
        read_known(path)


# ---- the command ----


def run_command(monkeypatch: pytest.MonkeyPatch, suite: Suite, known: Path) -> int:
    monkeypatch.setattr(command, "SUITES", (suite,))
    monkeypatch.setattr(sys, "argv", ["test-peers", "--known", str(known)])
    return command.main()


@pytest.mark.full
def test_the_exit_status_says_whether_all_is_as_listed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy before 2 does not refuse this with a BufferError")
    # A byte order that NumPy refuses, and dlbridge copies.
    suite = write(
        tmp_path,
        """
        import numpy as np, pytest

        def test_refuses():
            with pytest.raises(BufferError):
                np.from_dlpack(np.arange(3).astype(">f4"))
        """,
    )
    known = tmp_path / "known.toml"
    known.write_text("")
    monkeypatch.setenv("PEER_MINI", str(tmp_path))
    assert run_command(monkeypatch, suite, known) == 1
    assert "UNEXPECTED test_mini.py::test_refuses" in capsys.readouterr().out
    known.write_text(
        "".join(
            f'[[mini]]\ndirection = "{direction}"\nwhose = "design"\nreason = "copies"\n'
            'tests = ["test_mini.py::test_refuses"]\n'
            for direction in (PRODUCER, CONSUMER)
        )
    )
    assert run_command(monkeypatch, suite, known) == 0
    printed = capsys.readouterr().out
    assert "| mini | its checkout | the producer | 1 | 0 | 1 | 0 | 0 | 1 | 0 |" in printed
    assert "1 design: copies" in printed


def test_a_suite_that_is_not_there_is_a_line_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("PEER_MINI", raising=False)
    monkeypatch.delenv("PEERS", raising=False)
    known = tmp_path / "known.toml"
    known.write_text("")
    assert run_command(monkeypatch, Suite("mini", (), ("t.py",), "write it"), known) == 0
    assert run_command(monkeypatch, Suite("mini", ("no-such-package",), ("t.py",), ""), known) == 0
    printed = capsys.readouterr().out
    assert "mini: write it, and set PEER_MINI=<its folder>" in printed
    assert "mini: needs no-such-package: pip install no-such-package" in printed

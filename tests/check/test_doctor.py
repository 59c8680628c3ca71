"""`dlbridge doctor`: what is installed, what is broken, and which defects are known."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import cli, registry
from dlbridge.check import diagnosis
from dlbridge.check import doctor as diagnose
from dlbridge.errors import ArgumentError
from dlbridge.exchange import adapter
from dlbridge.exchange.adapter import Quirk

PATIENT = ("--within", "300")  # where other tests have the processors
BUILT_IN = [row.name for row in registry.rows()]


@pytest.fixture
def only(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Return a function after which these frameworks alone count as installed."""

    def choose(*names: str) -> None:
        monkeypatch.setattr(adapter, "is_installed", names.__contains__)

    return choose


# ---- rows of known defects -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("versions", "version", "is_seen"),
    [
        ("2.13", "2.13", True),
        ("2.13", "2.13.1", True),
        ("2.13", "2.13+cpu", True),
        ("2.13", "2.131.0", False),  # another number, though the text begins alike
        ("2.13", "2.1", False),
        ("2", "2.4.0", True),
        ("2", "1.26.4", False),
        ("all", "0.1", True),
        ("2.13", "", False),
    ],
)
def test_a_series_is_compared_number_by_number(versions: str, version: str, is_seen: bool) -> None:
    assert Quirk(1, versions, "", "").was_seen_in(version) is is_seen


@pytest.mark.parametrize("name", BUILT_IN)
def test_each_row_has_a_series_that_can_be_compared_and_advice(name: str) -> None:
    for row in adapter.adapter(name).quirks:
        series = row.versions.split(", ")
        assert series == ["all"] or all(each.replace(".", "").isdigit() for each in series)
        assert row.advice


# ---- what is installed ---------------------------------------------------------------------------


def test_numpy_speaks_versioned_dlpack_and_has_the_defects_of_its_version(
    only: Callable[..., None],
) -> None:
    only("numpy")
    found = diagnose()
    (numpy,) = found.frameworks
    assert (numpy.name, numpy.version, numpy.error) == ("numpy", np.__version__, "")
    assert numpy.dlpack == ((1, 0) if np.__version__ >= "2.1" else (0, 8))
    rows = adapter.adapter("numpy").quirks
    seen = [row.defect for row in rows if row.was_seen_in(np.__version__)]
    assert [defect.defect for defect in numpy.defects] == seen
    assert numpy.unmeasured == len(rows) - len(seen)
    assert "broken" not in [row[0] for row in found.rows()]
    assert not found.is_broken


def test_the_command_prints_json_for_programs(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    only("numpy")
    assert cli.main(["doctor", *PATIENT, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["frameworks"][0]["version"] == np.__version__
    assert found["is_broken"] is False


# ---- made-up broken states -----------------------------------------------------------------------


@pytest.mark.fast(lambda text, timeout: timeout == 300 and "abort" in text)
@pytest.mark.parametrize(
    ("text", "timeout", "error"),
    [
        ("raise OSError('no library')", 300, "cannot be imported: OSError: no library"),
        ("import os; os.abort()", 300, "its process ended by SIGABRT"),
        ("import time; time.sleep(600)", 1, "no answer in 1 s"),
    ],
)
def test_a_framework_that_cannot_be_imported_is_broken(
    text: str,
    timeout: float,
    error: str,
    only: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    """A crash of the framework is a line of the report, not the end of it."""
    only("mxnet")
    (tmp_path / "mxnet.py").write_text(text)
    monkeypatch.syspath_prepend(tmp_path)
    found = diagnose(timeout=timeout)
    (mxnet,) = found.frameworks
    assert mxnet.error.startswith(error)
    assert found.is_broken


def test_the_command_ends_with_1_if_something_is_broken(
    only: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    only()
    monkeypatch.setenv("DLBRIDGE_CUDA_DRIVER", str(tmp_path / "none.so"))
    assert cli.main(["doctor", *PATIENT]) == 1
    verdict = capsys.readouterr().out.splitlines()[-1]
    assert verdict.startswith("broken: DLBRIDGE_CUDA_DRIVER (frameworks: 0, ")


def test_the_verdict_is_the_last_line_and_defects_are_listed_on_request(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    only("numpy")
    assert cli.main(["doctor", *PATIENT]) == 0
    short = capsys.readouterr().out
    assert short.splitlines()[-1].startswith("nothing is broken (frameworks: 1, ")
    assert "known defect " not in short
    assert cli.main(["doctor", *PATIENT, "--defects"]) == 0
    assert "known defect " in capsys.readouterr().out


def test_progress_begins_before_the_first_process(only: Callable[..., None]) -> None:
    """Who waits sees at once for what."""
    only("numpy")
    seen: list[tuple[int, int]] = []
    diagnose(progress=lambda done, total: seen.append((done, total)))
    assert seen == [(0, 2), (1, 2), (2, 2)]


def test_a_fast_path_that_closes_although_it_was_proved_is_broken() -> None:
    judge: Any = diagnosis._judge
    answer = {"expected": "direct", "path": "general: torch is not as it was proved"}
    report, (finding,) = judge("torch", answer, {})
    assert (finding.level, report.error) == ("broken", "")
    _, (finding,) = judge("torch", {"expected": "general: x", "path": "general: x"}, {})
    assert finding.level == "warning"
    assert judge("torch", {"expected": "direct", "path": "direct"}, {})[1] == []


def test_frameworks_that_clash_are_named_with_the_order_that_works(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(diagnosis, "find_spec", lambda _: None)
    found = [*diagnosis._find_clashes(["tensorflow", "paddle"])]
    assert [each.advice for each in found] == ["import paddle before tensorflow"]
    assert [*diagnosis._find_clashes(["paddle"])] == []


def test_a_package_that_clashes_is_named_where_it_is_installed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "triton.py").write_text("raise AssertionError('imported')")
    monkeypatch.syspath_prepend(tmp_path)
    (found,) = diagnosis._find_clashes(["tensorflow", "torch"])
    assert (found.level, found.advice) == ("warning", "import triton before tensorflow")
    assert "importing triton after tensorflow crashes" in found.what
    assert [*diagnosis._find_clashes(["torch"])] == []


def test_a_chosen_cache_that_cannot_be_used_is_broken(
    only: Callable[..., None], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    only()
    file = tmp_path / "file"
    file.touch()
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(file))
    assert diagnose().is_broken
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "not made yet"))
    found = diagnose()
    assert not found.is_broken
    assert not (tmp_path / "not made yet").exists()


def test_a_native_module_of_another_version_is_broken(
    only: Callable[..., None], monkeypatch: pytest.MonkeyPatch
) -> None:
    only()
    monkeypatch.setattr(diagnosis.protocol, "VERSION", (1, 9))
    assert diagnose().is_broken


def test_without_a_native_module_of_this_python_the_error_names_those_there_are(
    tmp_path: Path,
) -> None:
    """Nothing of dlbridge can be imported then, so that the command can say no more."""
    shutil.copytree(
        Path(dlbridge.__file__).parent,
        tmp_path / "dlbridge",
        ignore=shutil.ignore_patterns("*.so", "__pycache__"),
    )
    (tmp_path / "dlbridge/_core/_cffi.cpython-30-other.so").touch()
    done = subprocess.run(
        [sys.executable, "-m", "dlbridge", "doctor"],
        env={**os.environ, "PYTHONPATH": str(tmp_path)},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "cannot load the native module" in done.stderr
    assert "there is _cffi.cpython-30-other.so" in done.stderr


SLOW = "import time; time.sleep(600)"


@pytest.mark.full
def test_a_framework_that_is_not_imported_in_time_is_known_by_its_package(
    only: Callable[..., None],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Who asks for all of them does not wait for the slowest, and nothing is taken for broken."""
    only("mxnet", "cupy")
    for name in ("mxnet", "cupy"):
        (tmp_path / f"{name}.py").write_text(SLOW)
    monkeypatch.syspath_prepend(tmp_path)
    assert cli.main(["doctor", "--within", "0.5"]) == 0
    printed = capsys.readouterr()
    assert printed.out.splitlines()[-1].startswith(
        "nothing is known to be broken, 2 not imported (frameworks: 2, warnings: 1,"
    )
    assert printed.err.startswith("Importing cupy, mxnet, each in a process of its own, for at mo")
    (finding,) = diagnose(within=0.5).findings
    assert (finding.level, finding.what) == ("warning", "not imported within 0.5 s: cupy, mxnet")
    assert finding.advice == "`dlbridge doctor cupy mxnet` takes the time that it needs"
    found = diagnose(["MXNet"], within=0.5)
    (mxnet,) = found.frameworks
    assert (mxnet.error, mxnet.dlpack, mxnet.note) == ("", None, "not imported in time")


def test_a_framework_that_is_named_is_alone_and_has_all_the_time(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    only("numpy", "torch")
    assert cli.main(["doctor", "np", "--json"]) == 0
    printed = capsys.readouterr()
    assert [each["name"] for each in json.loads(printed.out)["frameworks"]] == ["numpy"]
    assert printed.err == "Importing np, each in a process of its own …\n"


def test_a_framework_that_is_unknown_or_not_there_is_refused(
    only: Callable[..., None], capsys: pytest.CaptureFixture[str]
) -> None:
    only("numpy")
    with pytest.raises(ArgumentError, match=r"^doctor: 'torhc' is no.*; did you mean 'torch'\?$"):
        diagnose(["torhc"])
    assert cli.main(["doctor", "torch"]) == 2
    assert capsys.readouterr().err.endswith("dlbridge doctor: torch is not installed here\n")


def test_a_timeout_must_be_positive() -> None:
    with pytest.raises(ArgumentError, match=r"doctor: within must be a positive number"):
        diagnose(within=-1)
    with pytest.raises(ArgumentError, match=r"doctor: timeout must be a positive number"):
        diagnose(timeout=0)

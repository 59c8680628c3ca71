"""The rules of DLPack: a faultless peer breaks none, and each planted fault breaks its own."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

import dlbridge as dlb
from dlbridge import cli
from dlbridge.check import rules

sys.path.insert(0, str(Path(__file__).parent))  # also for the processes of the checks

from faultless import PLANTED


def test_the_catalogue_is_complete() -> None:
    """Each rule says what it demands, why, and where the standard has it."""
    assert len(rules("producer")) + len(rules("consumer")) == len(rules()) >= 60
    assert all(each.reason.endswith(".") and each.clause for each in rules())


@pytest.mark.subprocess
def test_a_faultless_producer_breaks_no_rule() -> None:
    """A rule that the faultless breaks would be wrong itself."""
    report = dlb.check_producer("faultless:make")
    assert not report.broken, str(report)


@pytest.mark.subprocess
@pytest.mark.parametrize("name", PLANTED)
def test_a_planted_fault_breaks_its_own_rule_only(name: str) -> None:
    """Otherwise an author would look in the wrong place."""
    report = dlb.check_producer(f"faultless:{name}")
    assert [each.rule for each in report.broken] == [f"producer.{PLANTED[name]}"], str(report)


@pytest.mark.subprocess
def test_a_crash_is_a_line_of_the_report() -> None:
    """The rules after it are checked all the same."""
    report = dlb.check_producer("faultless:Crashing")
    found = {each.rule: each for each in report.verdicts}
    assert found["producer.stream_on_cpu_refused"].outcome == "crashed"
    assert "SIGSEGV" in found["producer.stream_on_cpu_refused"].text
    assert len(found) == len(rules("producer"))


@pytest.mark.subprocess
def test_reports_as_json_junit_and_html(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """All three tell the same; the exit status is for CI."""
    page, suite = tmp_path / "r.html", tmp_path / "r.xml"
    only = ["--only", "producer.device_pair", "--only", "producer.flags_known"]
    files = ["--json", "--html", str(page), "--junit", str(suite)]
    assert cli.main(["check", "faultless:NoDevice", *only, *files]) == 1
    (report,) = json.loads(capsys.readouterr().out)
    assert [each["outcome"] for each in report["verdicts"]] == ["failed", "passed"]
    root = ET.parse(suite).getroot()
    assert [len(case) for case in root.iter("testcase")] == [1, 0]
    text = page.read_text(encoding="utf-8")
    assert "producer.device_pair" in text
    assert "http" not in text, "the page needs no other file"


def test_what_cannot_be_checked_is_an_error() -> None:
    """The exit status 2 is not that of a broken rule."""
    with pytest.raises(dlb.ArgumentError, match="unknown rules"):
        dlb.check_producer("numpy:array", only=["producer.nothing"])
    with pytest.raises(dlb.ArgumentError, match="other processes cannot find"):
        dlb.check_producer(lambda array: array)
    assert cli.main(["check"]) == 2
    assert cli.main(["check", "no_such_module:make"]) == 2

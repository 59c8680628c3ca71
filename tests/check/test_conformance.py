"""The rules of DLPack: a faultless peer breaks none, and each planted fault breaks its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any
from xml.etree import ElementTree as ET

import pytest

import dlbridge as dlb
from dlbridge import cli
from dlbridge.check import conformance, rules
from dlbridge.check.conformance import (
    Report,
    Verdict,
    judge,
    make_case,
    write_html,
    write_junit,
)
from dlbridge.check.processes import describe_end

sys.path.insert(0, str(Path(__file__).parent))  # also for the processes of the checks

import faultless
import planted
from broken import BROKEN
from faultless import ENDING_CONSUMERS, PLANTED, PLANTED_CONSUMERS
from mistakes import MISTAKES
from planted import ENDING, SHARED, TABLES

DLBRIDGE_SANITIZED = "DLBRIDGE_SANITIZED" in os.environ
LEAKS = {"exports_leak_nothing", "exports_on_many_threads", "imports_leak_nothing"}  # take long


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
def test_dlbridge_breaks_no_rule() -> None:
    """As producer, as consumer, and as the Tensor that it makes of another framework's."""
    for report in (
        dlb.check_producer("dlbridge:from_dlpack"),
        dlb.check_consumer("dlbridge:from_dlpack"),
    ):
        assert not report.broken, str(report)


@pytest.mark.parametrize("name", sorted(set(PLANTED) - {"Crashing"}))
def test_a_planted_fault_breaks_its_own_rule_only(name: str) -> None:
    """Otherwise an author would look in the wrong place."""
    case = make_case("producer", getattr(faultless, name))
    outcomes = {r.id: judge(r, case) for r in rules("producer") if not r.alone}
    broken = {rule: text for rule, (outcome, text) in outcomes.items() if outcome == "failed"}
    assert set(broken) == {f"producer.{PLANTED[name]}"}, broken


def broken_by(side: str, peer: Any, *, quick: bool) -> set[str]:
    """Return the names of the rules that a peer breaks, in this process."""
    case = make_case(side, peer)
    chosen = [each for each in rules(side) if not each.alone]
    names = {each: each.id.partition(".")[2] for each in chosen}
    return {
        names[each]
        for each in chosen
        if (names[each] in LEAKS) is not quick and judge(each, case)[0] == "failed"
    }


def expected(planted_for: set[str], *, quick: bool) -> set[str]:
    """Return which of the rules are broken here: a sanitizer's malloc tells of no growth."""
    unseen = {each for each in LEAKS if "leak" in each} if DLBRIDGE_SANITIZED else set()
    return {each for each in planted_for - unseen if (each in LEAKS) is not quick}


def shared(fault: str) -> Any:
    """Return a factory of tensors that share their memory, with that fault."""
    return planted.with_table(fault) if fault in TABLES else partial(planted.Shared, fault=fault)


@pytest.mark.parametrize("quick", [True, pytest.param(False, marks=pytest.mark.full)])
@pytest.mark.parametrize("fault", sorted(SHARED | TABLES))
def test_a_fault_planted_in_shared_memory_breaks_its_own_rules(fault: str, quick: bool) -> None:
    """Who never releases fails wherever releases are counted; most faults break one rule."""
    found = broken_by("producer", shared(fault), quick=quick)
    assert found == expected((SHARED | TABLES)[fault], quick=quick)


@pytest.mark.fast(lambda check: check is dlb.check_consumer)
@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("check", "peer", "rule"),
    [
        *((dlb.check_producer, f"planted:{name}", rule) for name, rule in ENDING.items()),
        *(
            (dlb.check_consumer, f"faultless:{name}", rule)
            for name, rule in ENDING_CONSUMERS.items()
        ),
    ],
)
def test_a_fault_that_ends_the_process_breaks_its_rule(check: Any, peer: str, rule: str) -> None:
    """Where the process of the checks ends is a part of the verdict."""
    side = check.__name__.removeprefix("check_")
    (found,) = check(peer, only=[f"{side}.{rule}"], timeout=30).verdicts
    assert found.outcome == "crashed", found


def test_every_rule_has_a_fault_that_breaks_it() -> None:
    """A rule that nothing breaks in a test might never fail."""
    producers = [*SHARED.values(), *TABLES.values(), {*PLANTED.values()}, {*ENDING.values()}]
    consumers = [*PLANTED_CONSUMERS.values(), {*ENDING_CONSUMERS.values()}]
    found = {f"producer.{name}" for names in producers for name in names}
    found |= {f"consumer.{name}" for names in consumers for name in names}
    assert found == {each.id for each in rules()}


@pytest.mark.subprocess
def test_a_faultless_consumer_breaks_no_rule() -> None:
    """The one in Python that the faults are planted in."""
    report = dlb.check_consumer("faultless:take")
    assert not report.broken, str(report)


@pytest.mark.parametrize("quick", [True, False], ids=["quick", "leaks"])
@pytest.mark.parametrize("fault", PLANTED_CONSUMERS)
@pytest.mark.fast(
    lambda fault, quick: quick or any(each in LEAKS for each in PLANTED_CONSUMERS[fault])
)
def test_a_fault_planted_in_a_consumer_breaks_its_own_rules(fault: str, quick: bool) -> None:
    """Some faults are several at once: who never releases fails wherever releases are counted."""
    found = broken_by("consumer", faultless.Take(fault), quick=quick)
    assert found == expected(PLANTED_CONSUMERS[fault], quick=quick)


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.parametrize("known", BROKEN, ids=lambda known: f"{known[0]} {known[2]}")
def test_each_framework_breaks_the_rules_that_it_is_known_to_break(
    known: tuple[str, str, str, str],
) -> None:
    """What was measured by hand, the rules must find; what they find, nobody need measure."""
    package, series, side, peer = known
    try:
        found = version(package)
    except PackageNotFoundError:
        pytest.skip(f"{package} is not installed")
    if not found.startswith(series):
        pytest.skip(f"the list is that of {package} {series}, not {found}")
    check = dlb.check_producer if side == "producer" else dlb.check_consumer
    report = check(peer, timeout=120)
    broken = [
        each.rule.partition(".")[2] + ("!" if each.outcome == "crashed" else "")
        for each in report.broken
    ]
    assert sorted(broken) == BROKEN[known].split(), str(report)


@pytest.mark.subprocess
def test_a_crash_is_a_line_of_the_report() -> None:
    """The rules after it are checked all the same."""
    chosen = ["device_pair", "stream_on_cpu_refused", "byte_order_refused", "text_refused"]
    only = [f"producer.{each}" for each in chosen]
    report = dlb.check_producer("faultless:Crashing", only=only)
    found = {each.rule: each for each in report.verdicts}
    assert found["producer.stream_on_cpu_refused"].outcome == "crashed"
    ending = "ABORTING" if "DLBRIDGE_SANITIZED" in os.environ else "SIGSEGV"
    assert ending in found["producer.stream_on_cpu_refused"].text
    assert [*found] == only


@pytest.mark.parametrize(
    ("printed", "text"),
    [
        (b"F0000 x.cc:5] Check failed: a == b\n    @ 0x7f f()\n", "Check failed: a == b"),
        (b"terminate called\n  what():  strides\nFatal Python error: Aborted\n", "strides"),
        (b"x: f.c:3: f: Assertion `n > 0' failed.\nAborted\n", "Assertion `n > 0' failed."),
        (b"one\nlast\n", "last"),
        (b"", ""),
    ],
)  # fmt: skip
def test_the_text_of_a_crash_says_why_and_not_where(printed: bytes, text: str) -> None:
    """Below the reason is a stack trace, which says little in a table."""
    ending = f": {text}" if text else ""
    assert describe_end(-6, printed) == f"its process ended by SIGABRT{ending}"


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.unsanitized("what is freed too early ends the process instead")
@pytest.mark.parametrize("name", MISTAKES)
def test_a_mistake_of_an_author_is_named_by_its_rule(name: str) -> None:
    """Classes that know nothing of dlbridge.faults: what is broken is what they do wrong."""
    named, besides = MISTAKES[name]
    report = dlb.check_producer(f"mistakes:{name}", timeout=60)
    broken = {each.rule.partition(".")[2] for each in report.broken}
    assert set(named.split()) <= broken, str(report)
    assert besides == "!" or broken <= {*named.split(), *besides.split()}, str(report)


@pytest.mark.subprocess
def test_strides_in_bytes_are_recognised() -> None:
    """The values alone would not tell an author what to mend."""
    (found,) = dlb.check_producer("mistakes:StridesInBytes", only=["producer.values_agree"]).broken
    assert "strides are (12, 4), in bytes? They count elements" in found.text


@pytest.mark.fast(lambda name: name == "forks")
@pytest.mark.subprocess
@pytest.mark.parametrize("name", ["forks", "prints", "leaves_a_process"])
def test_a_factory_may_fork_and_print(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A forked process makes no checks of its own, and none is waited for that stays behind."""
    only = [f"producer.{each}" for each in ("device_pair", "values_agree", "capsule_name")]
    left = tmp_path / "left"
    monkeypatch.setenv("DLBRIDGE_TEST_LEFT", str(left))
    report = dlb.check_producer(f"mistakes:{name}", only=only, timeout=90)
    assert [each.outcome for each in report.verdicts] == ["passed"] * 3
    for each in left.read_text().split() if left.exists() else ():
        os.kill(int(each), signal.SIGKILL)  # it was there, and nobody has waited for it
    assert left.exists() == (name == "leaves_a_process")


@pytest.mark.subprocess
@pytest.mark.parametrize(
    ("check", "peer", "text"),
    [
        (
            dlb.check_producer,
            "mistakes:makes_nothing",
            r"\(2, 3\), it returned NoneType, which has",
        ),
        (dlb.check_producer, "numpy:zeros", r"called with .* shape \(2, 3\), it raised TypeError"),
        (dlb.check_producer, "mistakes:ends_well", "ended with status 0 before it answered"),
        (dlb.check_producer, "mistakes:hangs", "no answer in 3 s"),
        (dlb.check_producer, "numpy:pi", "a function is needed, got float"),
        (dlb.check_consumer, "mistakes:hangs", "no answer in 3 s"),
        (dlb.check_consumer, "mistakes:ends_well", "ended with status 0 before it answered"),
        (dlb.check_consumer, "numpy", "numpy: MODULE:EXPRESSION is needed"),
    ],
)
@pytest.mark.fast(lambda peer: peer in ("mistakes:makes_nothing", "mistakes:ends_well", "numpy:pi"))
def test_a_peer_that_cannot_be_checked_is_one_error(check: Any, peer: str, text: str) -> None:
    """And not a report in which all rules are broken, after an hour."""
    with pytest.raises(dlb.ArgumentError, match=text):
        check(peer, timeout=3 if peer.endswith("hangs") else 60)


def test_a_text_ends_with_one_full_stop() -> None:
    """Messages of exceptions bring their own."""
    verdict = Verdict("producer.x", "must", "clause", "It must.", "failed", "It raised.")
    (row, _) = Report("producer", "m:f", (verdict,)).rows()
    assert row[-1] == "It raised. It must."


def test_the_catalogue_on_the_command_line(capsys: pytest.CaptureFixture[str]) -> None:
    """Where an author finds the names for --only."""
    assert cli.main(["check", "--rules"]) == 0
    printed = capsys.readouterr().out
    assert all(each.id in printed for each in rules())
    assert cli.main(["check", "--rules", "--json"]) == 0
    assert [each["rule"] for each in json.loads(capsys.readouterr().out)] == [r.id for r in rules()]


@pytest.mark.subprocess
def test_progress_begins_before_the_first_rule_and_the_verdict_comes_last(
    capsys: pytest.CaptureFixture[str],
) -> None:
    only = ["producer.device_pair", "producer.flags_known"]
    seen: list[tuple[int, int]] = []
    dlb.check_producer("numpy:array", only=only, progress=lambda *done: seen.append(done))
    assert (seen[0], seen[-1]) == ((0, 2), (2, 2))
    assert seen == sorted(seen)
    assert cli.main(["check", "numpy:array", "--only", only[0]]) == 0
    (verdict,) = capsys.readouterr().out.splitlines()
    assert verdict == "producer numpy:array: 1 passed, 0 failed, 0 crashed, 0 skipped"


@pytest.mark.subprocess
@pytest.mark.parametrize("processors", [1, 2, None])
@pytest.mark.fast(lambda processors: processors == 2)
def test_a_rule_with_a_process_of_its_own_runs_beside_the_others(
    processors: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As many processes at once as there are processors; a peer takes seconds to import."""
    alone = next(each.id for each in rules("producer") if each.alone)
    only = ["producer.device_pair", "producer.device_known", alone]
    most = [0]
    listen = conformance._Run._listen

    def watch(run: Any) -> Any:
        most.append(len(run._running))
        return listen(run)

    monkeypatch.setattr(conformance.os, "cpu_count", lambda: processors)
    monkeypatch.setattr(conformance._Run, "_listen", watch)
    report = dlb.check_producer("numpy:array", only=only)
    assert [each.outcome for each in report.verdicts] == ["passed"] * 3
    assert max(most) == (processors or 1)


@pytest.mark.subprocess
def test_an_interrupt_of_a_check_ends_all_its_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[Any] = []
    start = conformance._Child.__init__

    def remember(child: Any, *arguments: Any) -> None:
        start(child, *arguments)
        children.append(child)

    def interrupt(run: Any) -> Any:
        raise KeyboardInterrupt

    monkeypatch.setattr(conformance.os, "cpu_count", lambda: 4)
    monkeypatch.setattr(conformance._Child, "__init__", remember)
    monkeypatch.setattr(conformance._Run, "_listen", interrupt)
    with pytest.raises(KeyboardInterrupt):
        dlb.check_producer("mistakes:hangs")
    assert len(children) > 1
    assert all(child._process.poll() is not None for child in children)


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


def test_objects_that_cannot_be_checked_are_an_error() -> None:
    """The exit status 2 is not that of a broken rule."""
    with pytest.raises(dlb.ArgumentError, match="unknown rules"):
        dlb.check_producer("numpy:array", only=["producer.nothing"])
    with pytest.raises(dlb.ArgumentError, match="other processes cannot find"):
        dlb.check_producer(lambda array: array)
    assert cli.main(["check"]) == 2
    assert cli.main(["check", "no_such_module:make"]) == 2


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["--only", "producer.nothing"], "a producer has no rules producer.nothing"),
        (["--only", "consumer.null_deleter"], "a producer has no rules consumer.null_deleter"),
        (["--only", "producer.nothing"], "see dlbridge check --rules"),
        (
            ["--only", "producer.device_pair", "--html", "no/folder.html"],
            "the folder no does not exist",
        ),
        (["--only", "producer.device_pair", "--html", "."], "cannot write .: it is a folder"),
        (["--only", "producer.device_pair", "--html", ""], "its name is empty"),
        (["--only", "producer.device_pair", "--junit", "no/folder.xml"], "cannot write no/folder"),
    ],
)
@pytest.mark.subprocess
def test_arguments_that_lead_to_nothing_end_with_2(
    arguments: list[str],
    text: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: Any,
    tmp_path: Path,
) -> None:
    """A misspelt rule must not look like a report without a finding."""
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", "numpy:array", *arguments]) == 2
    assert text in capsys.readouterr().err


def test_reports_follow_no_symbolic_link(tmp_path: Path) -> None:
    """Whoever can write to the folder must not choose which file is overwritten."""
    target = tmp_path / "target"
    target.write_text("kept")
    for write in (write_junit, write_html):
        path = tmp_path / write.__name__
        path.symlink_to(target)
        write([], str(path))
        assert not path.is_symlink()
        assert path.stat().st_size > 0
    assert target.read_text() == "kept"

"""Check a producer or a consumer against the catalogue of rules, and report.

The checks run in a child process, one after the other, beside it those that need a process of their
own. Where one crashes or hangs, that is its verdict, and a new child goes on with the next rule.
"""

from __future__ import annotations

import functools
import html
import json
import os
import pickle
import re
import select
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from importlib import import_module
from importlib.util import find_spec
from types import TracebackType
from typing import Any
from xml.etree import ElementTree as ET

from dlbridge import registry
from dlbridge.calls import public, words
from dlbridge.check.processes import describe_end, environment
from dlbridge.check.rules import BrokenError, NotApplicableError, Rule, Side, rules
from dlbridge.errors import ArgumentError
from dlbridge.files import write_file
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean, escape_controls

SEVERITIES = ("must", "should", "hazard")
_STYLE = (
    "body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:72em;padding:0 1em;"
    "color:#1c2733;background:#fff}table{border-collapse:collapse;width:100%}"
    "th,td{text-align:left;padding:.35em .7em;border-bottom:1px solid #dde3ea;vertical-align:top}"
    "code{font-size:.93em}.outcome{white-space:nowrap;font-weight:600}.passed{color:#1a7f37}"
    ".failed,.crashed{color:#c0231c}.skipped{color:#6b7a8a}small{color:#5b6876}"
    "@media(max-width:48em){thead{display:none}tr{display:block;padding:.5em 0;"
    "border-bottom:1px solid #dde3ea}td{display:inline-block;border:0;padding:.1em .8em .1em 0}"
    "td:last-child{display:block}}"
    "@media(prefers-color-scheme:dark){body{color:#d7dee6;background:#12181f}th,td,tr{"
    "border-color:#2c3947}.passed{color:#4cc26b}.failed,.crashed{color:#ff7b72}"
    ".skipped,small{color:#93a1b0}}"
)


@dataclass(frozen=True)
class Verdict:
    """The outcome of one rule.

    Attributes:
        rule: its id.
        severity: "must", "should" or "hazard".
        clause: where the standard rules it.
        reason: what it demands and why.
        outcome: "passed", "failed", "crashed" (or no answer in time) or "skipped" where the rule
            says nothing of this peer.
        text: how it is broken, or why it was skipped; "" where it passed.
    """

    rule: str
    severity: str
    clause: str
    reason: str
    outcome: str
    text: str = ""

    @property
    def is_broken(self) -> bool:
        """Whether the rule is broken."""
        return self.outcome in ("failed", "crashed")


@dataclass(frozen=True)
class Report:
    """The verdicts on one producer or consumer, in the order of the rules.

    Attributes:
        side: "producer" or "consumer".
        peer: what was checked.
        verdicts: one for each rule.
    """

    side: Side
    peer: str
    verdicts: tuple[Verdict, ...]

    @property
    def broken(self) -> tuple[Verdict, ...]:
        """The rules that are broken."""
        return tuple(each for each in self.verdicts if each.is_broken)

    def fails(self, severity: str = "must") -> bool:
        """Return whether a rule of this severity, or a graver one, is broken."""
        grave = SEVERITIES[: SEVERITIES.index(severity) + 1]
        return any(each.severity in grave for each in self.broken)

    def summary(self) -> str:
        """Return one line: how many rules passed, failed, crashed and were skipped."""
        counts = Counter(each.outcome for each in self.verdicts)
        parts = [f"{counts[name]} {name}" for name in ("passed", "failed", "crashed", "skipped")]
        return f"{self.side} {self.peer}: {', '.join(parts)}"

    def rows(self) -> Iterator[tuple[str, str, str, str]]:
        """Yield (outcome, severity, rule, text) of what did not pass, then a summary."""
        for each in self.verdicts:
            if each.is_broken:
                said = escape_controls(f"{each.text.rstrip('.')}. {each.reason}", lines=True)
                yield each.outcome, each.severity, each.rule, said
        yield "", "", "", escape_controls(self.summary(), lines=True)

    def __str__(self) -> str:
        return "\n".join("  ".join(cell for cell in row if cell) for row in self.rows())

    def to_dict(self) -> dict[str, Any]:
        """Return the same as dicts, lists and text, for JSON."""
        plain: dict[str, Any] = json.loads(json.dumps(asdict(self)))
        return plain

    def to_junit(self) -> str:
        """Return JUnit XML: a test case for each rule."""
        return _junit([self])

    def to_html(self) -> str:
        """Return one HTML page that needs no other file: what is broken comes first."""
        return _html([self])


def write_junit(reports: Sequence[Report], file: str) -> None:
    """Write reports as JUnit XML, a suite for each."""
    write_file(file, [_junit(reports).encode()])


def write_html(reports: Sequence[Report], file: str) -> None:
    """Write reports as one HTML page."""
    write_file(file, [_html(reports).encode()])


def _junit(reports: Sequence[Report]) -> str:
    root = ET.Element("testsuites")
    tags = {"failed": "failure", "crashed": "error", "skipped": "skipped"}
    for report in reports:
        counts = Counter(each.outcome for each in report.verdicts)
        suite = ET.SubElement(
            root,
            "testsuite",
            name=_plain(f"dlpack {report.side} {report.peer}"),
            tests=str(len(report.verdicts)),
            failures=str(counts["failed"]),
            errors=str(counts["crashed"]),
            skipped=str(counts["skipped"]),
        )
        for each in report.verdicts:
            case = ET.SubElement(suite, "testcase", classname=_plain(report.peer), name=each.rule)
            if each.outcome in tags:
                child = ET.SubElement(case, tags[each.outcome], message=_plain(each.text))
                child.text = _plain(f"[{each.severity}] {each.reason} ({each.clause})")
    return '<?xml version="1.0" encoding="utf-8"?>\n' + ET.tostring(root, encoding="unicode")


def _html(reports: Sequence[Report]) -> str:
    parts = [_html_part(each) for each in reports]
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width"><title>DLPack rules</title>'
        f"<style>{_STYLE}</style></head><body>{chr(10).join(parts)}</body></html>\n"
    )


def _html_part(report: Report) -> str:
    order = {"crashed": 0, "failed": 1, "passed": 2, "skipped": 3}
    cells = []
    for each in sorted(
        report.verdicts, key=lambda v: (order[v.outcome], SEVERITIES.index(v.severity))
    ):
        said = f"<br><b>{_escape(each.text)}</b>" if each.text else ""
        cells.append(
            f'<tr><td class="outcome {each.outcome}">{each.outcome}</td>'
            f"<td>{each.severity}</td><td><code>{_escape(each.rule)}</code></td>"
            f"<td>{_marked(each.reason)}{said}<br><small>{_escape(each.clause)}</small></td></tr>"
        )
    return (
        f"<h1>DLPack {report.side} <code>{_escape(report.peer)}</code></h1>"
        f"<p>{_escape(report.summary())}.</p><table><thead><tr><th>outcome</th><th>severity</th>"
        f"<th>rule</th><th>what it demands, and what was found</th></tr></thead>"
        f"<tbody>\n{chr(10).join(cells)}\n</tbody></table>"
    )


def _escape(text: str) -> str:
    return html.escape(escape_controls(text, lines=True))


def _marked(text: str) -> str:
    """Return escaped text, with what stands in backticks as code."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", _escape(text))


def _plain(text: str) -> str:
    """Return text that XML can hold."""
    return escape_controls(text, lines=True).encode("utf-8", "backslashreplace").decode()


# ---- the run -------------------------------------------------------------------------------------


@public
def check_producer(
    make: Callable[..., Any] | str,
    *,
    only: Sequence[str] | None = None,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check the tensors that a factory makes against every rule for producers.

    Args:
        make: takes a NumPy array and returns a new tensor with its values, as `torch.tensor` does;
            or takes nothing, and rules that need certain values are skipped. It is called in other
            processes: a function of a module, or "MODULE:EXPRESSION".
        only: ids of the rules to check; all by default.
        timeout: seconds for one rule, the import of the module included.
        progress: called with the number of rules that were checked, and of all.

    Raises:
        ArgumentError: the factory cannot be found there or fails; an id is unknown.

    >>> print(check_producer("numpy:array", only=["producer.values_agree"]).summary())
    producer numpy:array: 1 passed, 0 failed, 0 crashed, 0 skipped
    """
    return _run("producer", make, only, timeout, progress)


@public
def check_consumer(
    from_dlpack: Callable[..., Any] | str,
    *,
    only: Sequence[str] | None = None,
    timeout: float = 60.0,
    progress: Callable[[int, int], None] | None = None,
) -> Report:
    """Check a function that imports tensors against every rule for consumers.

    Args:
        from_dlpack: takes an object with `__dlpack__` and returns a tensor, which is read by its
            own `__dlpack__` or by NumPy. Found as the factory of `check_producer` is.
        only: ids of the rules to check; all by default.
        timeout: seconds for one rule, the import of the module included.
        progress: called with the number of rules that were checked, and of all.

    Raises:
        ArgumentError: the function cannot be found there; an id is unknown.
    """
    return _run("consumer", from_dlpack, only, timeout, progress)


def resolve(text: str) -> Any:
    """Return the value of MODULE:EXPRESSION; "np", "jnp", "tf" and so on are modules as well.

    Raises:
        ArgumentError: the text has another form, or the module lacks a name.
    """
    module, colon, expression = text.partition(":")
    if not (re.fullmatch(r"[\w.]+", module) and colon and expression):
        root, _, rest = text.partition(".")
        meant = f"{root}:{rest}" if root.isidentifier() and rest else "numpy:zeros(3)"
        raise ArgumentError(f"MODULE:EXPRESSION is needed, such as {meant!r}, got {text!r}")
    home = import_module(_module_of(module))
    try:
        return eval(expression, vars(home))  # noqa: S307  (the user's own)
    except not_from_handler(NameError) as error:
        if error.__traceback__ is not None and _depth(error.__traceback__) > _EVALUATED:
            raise  # of what is called there
        nearest = did_you_mean(error.name, dir(home))
        raise ArgumentError(f"{home.__name__} has no name {error.name!r}{nearest}") from None


_EVALUATED = 2  # frames: `resolve` and the expression


def _depth(traceback: TracebackType | None) -> int:
    return 0 if traceback is None else 1 + _depth(traceback.tb_next)


def _module_of(name: str) -> str:
    """Return the module that a program may have imported as `name`; any other as it is."""
    if find_spec(name.partition(".")[0]) is not None:
        return name
    if name == "jnp":
        return "jax.numpy"
    for row in registry.rows():
        expressions = registry.adapter(row.name).expressions
        if expressions is not None and name in expressions.modules:
            return str(expressions.modules[name])
    return name


def _name_of(peer: Callable[..., Any] | str, call: str) -> str:
    """Return MODULE:EXPRESSION for a peer."""
    if isinstance(peer, str):
        return peer
    module, name = getattr(peer, "__module__", None), getattr(peer, "__qualname__", "")
    try:
        pickle.dumps(peer)
    except Exception as error:  # noqa: BLE001
        raise ArgumentError(f"{call}: other processes cannot find {peer!r}: {error}") from None
    if not module or module == "__main__" or not name:
        raise ArgumentError(f"{call}: needs a function of a module or its name, got {peer!r}")
    return f"{module}:{name}"


def _run(
    side: Side,
    peer: Callable[..., Any] | str,
    only: Sequence[str] | None,
    timeout: float,
    progress: Callable[[int, int], None] | None,
) -> Report:
    call = f"check_{side}"
    name = _name_of(peer, call)
    chosen = rules(side)
    if only is not None:
        unknown = sorted(set(words(call, "only", only)) - {each.id for each in chosen})
        if unknown:
            raise ArgumentError(f"{call}: unknown rules {unknown}; see dlbridge.check.rules()")
        chosen = tuple(each for each in chosen if each.id in only)
    seconds: object = timeout
    if not isinstance(seconds, (int, float)) or not seconds > 0:
        raise ArgumentError(
            f"{call}: timeout must be a positive number of seconds, got {timeout!r}"
        )
    outcomes = _Run(call, side, name, timeout, progress).outcomes_of(chosen)
    return Report(
        side,
        name,
        tuple(
            Verdict(each.id, each.severity, each.clause, each.reason, *outcomes[each.id])
            for each in chosen
        ),
    )


_Outcomes = dict[str, tuple[str, str]]


class _Run:
    """The processes in which rules are checked, as many at once as there are processors."""

    def __init__(
        self,
        call: str,
        side: Side,
        name: str,
        timeout: float,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        self._call, self._side, self._name, self._timeout = call, side, name, timeout
        self._progress = progress or (lambda _done, _total: None)
        self._running: dict[int, _Child] = {}

    def outcomes_of(self, chosen: Sequence[Rule]) -> _Outcomes:
        """Check rules: those that need a process of their own beside the others."""
        outcomes: _Outcomes = {}
        together = [each for each in chosen if not each.alone]
        waiting = [together] if together else []
        waiting += [[each] for each in chosen if each.alone]
        try:
            while waiting or self._running:
                done = len(outcomes) + sum(child.done for child in self._running.values())
                self._progress(done, len(chosen))
                while waiting and len(self._running) < (os.cpu_count() or 1):
                    child = _Child(self._side, self._name, waiting.pop(0), self._timeout)
                    self._running[child.reader] = child
                for child in self._listen():
                    del self._running[child.reader]
                    outcomes |= child.outcomes(self._call)
                    rest = [each for each in child.chosen if each.id not in outcomes]
                    if rest:
                        waiting.insert(0, rest)
        finally:  # also after an interrupt
            for child in self._running.values():
                child.end()
        self._progress(len(outcomes), len(chosen))
        return outcomes

    def _listen(self) -> list[_Child]:
        """Wait until a process says something or its time is over; return those that are done."""
        first = min(child.deadline for child in self._running.values())
        patience = max(0.0, first - time.monotonic())
        ready, _, _ = select.select([*self._running], [], [], patience)
        return [
            child
            for child in self._running.values()
            if (child.read() if child.reader in ready else child.deadline <= time.monotonic())
        ]


class _Child:
    """A process that checks rules up to the first crash, or all."""

    def __init__(self, side: Side, name: str, chosen: Sequence[Rule], timeout: float) -> None:
        self.name, self.chosen, self.timeout = name, chosen, timeout
        self.reader, writer = os.pipe()
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115
        code = "import sys; from dlbridge.check.conformance import serve; serve(*sys.argv[1:])"
        words = [side, name, str(writer), *(each.id for each in chosen)]
        try:
            self._process = subprocess.Popen(
                [sys.executable, "-c", code, *words],
                env=environment(),
                pass_fds=[writer],
                stdin=subprocess.DEVNULL,
                stdout=self._errors,
                stderr=self._errors,
            )
        finally:
            os.close(writer)
        self._text = b""
        self._in_time = False
        self.deadline = time.monotonic() + timeout

    @property
    def done(self) -> int:
        """How many rules are done: the last that began is not."""
        return max(0, self._text.count(b'["start"') - 1)

    def read(self) -> bool:
        """Read what it says; return whether that was the last."""
        more = os.read(self.reader, 65536)
        self._text += more
        self.deadline = time.monotonic() + self.timeout
        self._in_time = not more or self._text.endswith(json.dumps(_END).encode() + b"\n")
        return self._in_time

    def end(self) -> bytes:
        """End the process, if it has not ended, and return what it printed."""
        os.close(self.reader)
        self._process.kill()
        self._process.wait()
        with self._errors:
            self._errors.seek(0)
            return self._errors.read()

    def outcomes(self, call: str) -> _Outcomes:
        """Return the outcomes of a process that is done or late."""
        try:
            self._process.wait(timeout=self.timeout if self._in_time else 0.01)
        except subprocess.TimeoutExpired:
            self._in_time = False
        finally:  # also after an interrupt
            printed = self.end()
        ending = _ending(self._process.returncode, self._in_time, self.timeout, printed)
        whole = self._text[: self._text.rfind(b"\n") + 1]
        lines: list[list[str]] = [json.loads(line) for line in whole.splitlines()]
        outcomes: _Outcomes = {}
        running = None
        for line in lines:
            if line == _END:
                break
            if line[0] == "error":
                raise ArgumentError(f"{call}: {self.name}: {line[1]}")
            if line[0] == "start":
                running = line[1]
            else:
                outcomes[line[0]] = (line[1], line[2])
                running = None
        first = self.chosen[0]
        if running is not None:
            outcomes[running] = ("crashed", ending or _SILENT)
        elif not lines:
            raise ArgumentError(f"{call}: {self.name} cannot be used: {ending or _SILENT}")
        elif first.alone and ending and outcomes[first.id][0] == "passed":
            outcomes[first.id] = ("crashed", ending)
        return outcomes


_END = ["end"]  # the last line: a process that the peer left behind may keep the pipe open
_SILENT = "its process ended with status 0 before it answered"


def _ending(status: int, in_time: bool, timeout: float, printed: bytes) -> str:
    if not in_time:
        return f"no answer in {timeout:g} s"
    return describe_end(status, printed) if status != 0 else ""


# ---- in the child --------------------------------------------------------------------------------


def serve(side: Side, name: str, writer: str, *ids: str) -> None:
    """Check the rules one after the other, and write what is begun and what came of it."""
    pipe = int(writer)
    os.set_inheritable(pipe, False)

    def say(*words: str) -> None:
        line = json.dumps(words).encode() + b"\n"
        while line:
            line = line[os.write(pipe, line) :]

    try:
        case = make_case(side, resolve(name))
    except ArgumentError as error:
        say("error", str(error))
        return
    except Exception as error:  # noqa: BLE001  (whatever the module raises)
        say("error", f"{type(error).__name__}: {error}")
        return
    known = {each.id: each for each in rules(side)}
    for each in ids:
        say("start", each)
        say(each, *judge(known[each], case))
    say(*_END)
    os.close(pipe)


def make_case(side: Side, peer: Any) -> Any:
    """Return what the checks get; the peer is tried once.

    Raises:
        ArgumentError: the peer cannot be called; a factory fails, or makes no tensor.
    """
    from dlbridge.check.consumer_rules import ConsumerCase
    from dlbridge.check.producer_rules import ProducerCase, text

    if not callable(peer):
        raise ArgumentError(f"a function is needed, got {type(peer).__name__}")
    peer = _in_this_process(peer)
    if side == "consumer":
        consumer = ConsumerCase(peer)
        consumer.try_out()
        return consumer
    case = ProducerCase(peer)
    given = "with a float32 array of shape (2, 3)" if case.takes_array else "without arguments"
    try:
        made = case.new()
    except Exception as error:
        raise ArgumentError(f"called {given}, it raised {text(error)}") from error
    if not hasattr(made, "__dlpack__"):
        kind = type(made).__name__
        raise ArgumentError(f"called {given}, it returned {kind}, which has no __dlpack__")
    return case


def _in_this_process(peer: Callable[..., Any]) -> Callable[..., Any]:
    """Return a peer whose calls end a process that they fork: checks are for one process."""
    own = os.getpid()

    @functools.wraps(peer, assigned=(), updated=())
    def call(*args: Any, **keywords: Any) -> Any:
        try:
            return peer(*args, **keywords)
        finally:
            if os.getpid() != own:
                os._exit(0)

    return call


def judge(each: Rule, case: Any) -> tuple[str, str]:
    """Return outcome and text of one rule in this process."""
    try:
        each.check(case)
    except NotApplicableError as why:
        return "skipped", str(why)
    except BrokenError as how:
        return "failed", str(how)
    except Exception as error:  # noqa: BLE001  (whatever the peer raises)
        return "failed", f"{type(error).__name__}: {str(error).strip()[:300]}"
    return "passed", ""

"""`pytest --cpu`: the CPU seconds of each folder, file and item, and of everything together.

Seconds of a busy machine say little; those of the processor are the same with other work beside it.
Each is split into those of the process itself and those of child processes that have ended.
"""

from __future__ import annotations

import resource
from collections import Counter
from collections.abc import Iterator
from pathlib import PurePath
from typing import Any, NamedTuple

import pytest
from preloading import Preloaded

FILES, ITEMS = 40, 60  # how many of each are listed


class Cpu(NamedTuple):
    """Seconds of the processor, user and system together."""

    own: float
    children: float

    @classmethod
    def now(cls) -> Cpu:
        """Return what this process has used so far."""
        both = map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
        own, children = (used.ru_utime + used.ru_stime for used in both)
        return cls(own, children)

    @classmethod
    def of_item(cls) -> Cpu:
        """Return the same with what was forked elsewhere, by a process that is not over."""
        own, children = cls.now()
        return cls(own, children + Preloaded.seconds)

    def since(self, before: Cpu) -> Cpu:
        """Return what was used after `before`."""
        return Cpu(self.own - before.own, self.children - before.children)


class Table:
    """Collects the figures, also those of the workers of pytest-xdist, and prints them."""

    def __init__(self) -> None:
        self.start = Cpu(0, 0)
        self.items: list[tuple[str, Cpu]] = []
        self.processes: list[Cpu] = []

    @pytest.hookimpl(wrapper=True, tryfirst=True)
    def pytest_runtest_protocol(self) -> Iterator[None]:
        """Note when an item begins."""
        self.start = Cpu.of_item()
        return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, call: pytest.CallInfo[None]) -> Iterator[Any]:
        """Write the figures of an item into the last of its reports."""
        report = yield
        if call.when == "teardown":
            report.cpu = list(Cpu.of_item().since(self.start))
        return report

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Keep the figures of an item."""
        if hasattr(report, "cpu"):
            self.items.append((report.nodeid, Cpu(*report.cpu)))

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Send the figures of a worker to the process that prints, or keep those of this one."""
        output = getattr(session.config, "workeroutput", None)
        if output is not None:
            output["cpu"] = list(Cpu.now())
        elif not self.processes:
            self.processes.append(Cpu.now())

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """Keep the figures of a worker."""
        self.processes.append(Cpu(*getattr(node, "workeroutput", {}).get("cpu", (0, 0))))

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        """Print the table."""
        write = terminalreporter.write_line
        terminalreporter.section("CPU seconds: own, of child processes, items")
        for part, of, most in (("folders", _folder, FILES), ("files", _file, FILES)):
            write(f"{part}:")
            sums: dict[str, list[Cpu]] = {}
            for item, cpu in self.items:
                sums.setdefault(of(item), []).append(cpu)
            rows = [
                (name, *map(sum, zip(*each, strict=True)), len(each)) for name, each in sums.items()
            ]
            for name, own, children, count in sorted(rows, key=lambda row: -row[1] - row[2])[:most]:
                write(f"{own:9.1f} {children:7.1f} {count:6} {name}")
        write("items:")
        for name, cpu in sorted(self.items, key=lambda item: -sum(item[1]))[:ITEMS]:
            write(f"{cpu.own:9.1f} {cpu.children:7.1f}        {name}")
        spread = Counter(_decade(sum(cpu)) for _, cpu in self.items)
        write("items by seconds: " + ", ".join(f"{spread[each]} {each}" for each in _DECADES))
        of_items = sum(sum(cpu) for _, cpu in self.items)
        whole = sum(map(sum, self.processes))
        write(f"{whole:.0f} CPU seconds in {len(self.processes)} processes and their children")
        write(f"of these {of_items:.0f} in {len(self.items)} items, the rest to start and collect")


_DECADES = ("below 0.01", "below 0.1", "below 1", "above 1")


def _decade(seconds: float) -> str:
    return _DECADES[sum(seconds >= bound for bound in (0.01, 0.1, 1))]


def _file(item: str) -> str:
    return item.partition("::")[0]


def _folder(item: str) -> str:
    return PurePath(_file(item)).parent.as_posix()

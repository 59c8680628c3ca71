"""The plugin for pytest: every rule of DLPack a test, and synthetic peers as fixtures.

    pytest --dlpack-producer pkg:make --dlpack-consumer pkg:from_dlpack

adds a test for each rule to those that pytest finds. `dlpack_producer` and `dlpack_consumer` are
fixtures that make synthetic peers. pytest imports this module in every session where dlbridge is
installed: dlbridge itself is imported when a test asks for it.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from dlbridge.check.faults import Consumer, Producer


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the two options."""
    group = parser.getgroup("dlpack", "rules of DLPack")
    text = "MODULE:FACTORY of tensors, to check by every rule of DLPack for producers"
    group.addoption("--dlpack-producer", metavar="NAME", help=text)
    text = "MODULE:FUNCTION that imports tensors, to check by every rule for consumers"
    group.addoption("--dlpack-consumer", metavar="NAME", help=text)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    session: pytest.Session, config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Add a test for each rule."""
    for side in ("producer", "consumer"):
        peer = config.getoption(f"dlpack_{side}")
        if peer is not None:
            from dlbridge.check.rules import rules

            for each in rules(side):  # type: ignore[arg-type, unused-ignore]
                items.append(  # noqa: PERF401
                    RuleItem.from_parent(
                        session, name=f"{each.id}[{peer}]", rule=each.id, peer=peer
                    )
                )


class RuleItem(pytest.Item):
    """One rule for one peer."""

    def __init__(self, *, rule: str, peer: str, **keywords: Any) -> None:
        super().__init__(**keywords)
        self.rule, self.peer = rule, peer

    def runtest(self) -> None:
        """Look up the verdict; the first test asks for all that were chosen, in one process."""
        verdicts = self.session.stash.setdefault(VERDICTS, {})
        if (self.rule, self.peer) not in verdicts:
            from dlbridge.check.conformance import check_consumer, check_producer

            side = self.rule.partition(".")[0]
            chosen = [i for i in self.session.items if isinstance(i, RuleItem)]
            only = [i.rule for i in chosen if i.peer == self.peer and i.rule.startswith(f"{side}.")]
            check = check_producer if side == "producer" else check_consumer
            for each in check(self.peer, only=only).verdicts:
                verdicts[each.rule, self.peer] = each
        found = verdicts[self.rule, self.peer]
        if found.outcome == "skipped":
            pytest.skip(found.text)
        if found.is_broken:
            raise RuleBrokenError(
                f"{found.rule} ({found.severity}) {found.outcome}: {found.text}\n"
                f"{found.reason}\n{found.clause}"
            )

    def repr_failure(self, excinfo: pytest.ExceptionInfo[BaseException], style: Any = None) -> Any:
        """Return the text of the verdict, without a traceback."""
        if isinstance(excinfo.value, RuleBrokenError):
            return str(excinfo.value)
        return super().repr_failure(excinfo, style)

    def reportinfo(self) -> tuple[Any, int | None, str]:
        """Return where the test is: nowhere."""
        return self.path, None, self.name


class RuleBrokenError(Exception):
    """A rule is broken."""


VERDICTS = pytest.StashKey[dict[tuple[str, str], Any]]()


@pytest.fixture
def dlpack_producer() -> Iterator[Callable[..., Producer]]:
    """Return `make(what, style="modern")`: a synthetic producer of an array or a Description.

    Styles are those of `faults.STYLES`. The test fails at its end if a deleter of what it exported
    was not called exactly once.
    """
    from dlbridge.check import faults

    made: list[Producer] = []

    def make(what: Any, style: str = "modern") -> Producer:
        made.append(faults.STYLES[style](what))
        return made[-1]

    yield make
    gc.collect()
    for producer in made:
        calls = [loan.deleted for loan in producer.loans if loan.struct.deleter]
        assert all(n == 1 for n in calls), f"calls of the deleters: {calls}"


@pytest.fixture
def dlpack_consumer() -> Iterator[Callable[..., Consumer]]:
    """Return `take(tensor, versioned=True)`: a consumer of its capsule, released at the end."""
    from dlbridge.check import faults

    taken: list[Consumer] = []

    def take(tensor: Any, versioned: bool = True) -> Consumer:
        taken.append(faults.Consumer(faults.exported(tensor, versioned)))
        return taken[-1]

    yield take
    for consumer in taken:
        if not consumer.released:
            consumer.release()

"""The defaults of a thread: the graph of new operations, and the session of `eval`."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation
    from dlbridge.graph.core.tensor import Tensor


class DefaultStack(threading.local):
    """A stack of defaults, one for each thread.

    Attributes:
        items: the defaults, the innermost last.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []

    def block(self, item: Any, enforce_nesting: bool = True) -> DefaultBlock:
        """Return a block in which `item` is the default."""
        return DefaultBlock(self, item, enforce_nesting)


class DefaultBlock:
    """A `with` block in which one item is the default; it returns the item."""

    __slots__ = ("_enforce_nesting", "_item", "_stack")

    def __init__(self, stack: DefaultStack, item: Any, enforce_nesting: bool) -> None:
        self._stack = stack
        self._item = item
        self._enforce_nesting = enforce_nesting

    def __enter__(self) -> Any:
        self._stack.items.append(self._item)
        return self._item

    def __exit__(self, *details: object) -> None:
        items = self._stack.items
        if items and items[-1] is self._item:
            items.pop()
        elif self._enforce_nesting:
            raise AssertionError(
                f"Nesting violated: {self._item!r} was left while "
                f"{items[-1] if items else None!r} is the default; leave the inner block first"
            )
        else:
            items.remove(self._item)


GRAPHS = DefaultStack()
SESSIONS = DefaultStack()


# ---- sessions ----------------------------------------------------------------------------------


class Session(Protocol):
    """The methods of a session that elements of a graph call."""

    @property
    def graph(self) -> Graph:
        """The graph that it runs."""

    def run(
        self, fetches: Any, feed_dict: Mapping[Any, Any] | None = None, *, as_: str = "numpy"
    ) -> Any:
        """Return the values of `fetches`."""

    def state_of(self, variable: Any) -> Any:
        """Return the state of a variable."""


def get_default_session() -> Any:
    """Return the innermost session of this thread, or None."""
    return SESSIONS.items[-1] if SESSIONS.items else None


def current_session(call: str) -> Session:
    """Return the default session for a call that was given none.

    Raises:
        ValueError: there is none.
    """
    session: Session | None = get_default_session()
    if session is None:
        raise ValueError(
            f"{call}: No default session is registered. Use `with sess.as_default()` or pass an "
            "explicit session"
        )
    return session


def evaluate(
    fetch: Tensor | Operation,
    feed_dict: Mapping[Any, Any] | None,
    session: Session | None,
    call: str,
) -> Any:
    """Run a tensor (`call` is "eval") or an operation ("run") in a session, or the default one."""
    chosen: Session | None = session or get_default_session()
    if chosen is None:
        action = "evaluate tensor" if call == "eval" else "execute operation"
        raise ValueError(
            f"Cannot {action} using `{call}()`: No default session is registered. Use `with "
            f"sess.as_default()` or pass an explicit session to `{call}(session=sess)`"
        )
    if session is None and chosen.graph is not fetch.graph:
        raise ValueError(
            f"Cannot use the default session to evaluate {fetch!r}: its graph is different "
            "from the session's graph. Pass an explicit session of its graph"
        )
    return chosen.run(fetch, feed_dict)

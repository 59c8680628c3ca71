"""What is the default in a thread: the graph of new operations, the session of `eval`."""

from __future__ import annotations

import threading
from typing import Any


class Stack(threading.local):
    """A stack of defaults, for each thread its own.

    Attributes:
        items: the defaults, the innermost last.
    """

    def __init__(self) -> None:
        self.items: list[Any] = []

    def entering(self, item: Any, enforce_nesting: bool = True) -> Entering:
        """Return a block in which `item` is the default."""
        return Entering(self, item, enforce_nesting)


class Entering:
    """A `with` block in which one item is the default; it returns the item."""

    __slots__ = ("_enforce_nesting", "_item", "_stack")

    def __init__(self, stack: Stack, item: Any, enforce_nesting: bool) -> None:
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


SESSIONS = Stack()
"""The sessions that are the default of each thread."""

"""The state of queues in one session, or on one task of a cluster."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

from dlbridge import registry
from dlbridge.execution import waiting
from dlbridge.execution.errors import CancelledError, InvalidArgumentError, OutOfRangeError
from dlbridge.execution.registry import Ends, Node
from dlbridge.execution.variables import describe, fits, key_of
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims

Element = tuple[Any, ...]
"""An array for each component."""


class _Ticket:
    """The place of one caller in a line."""

    __slots__ = ("is_cancelled",)

    def __init__(self) -> None:
        self.is_cancelled = False


class QueueState:
    """The elements of a queue, which a resource handle carries.

    Those who enqueue stand in one line and those who dequeue in another: the first of a line goes
    on until it has all that it asked for. `ends` are those of the run, None in a local session.

    Attributes:
        name: of the queue, for errors.
        dtypes: of the components of an element.
        dims: their static shapes; () where none were declared.
        capacity: how many elements it holds, below 0 as many as come.
    """

    __slots__ = (
        "_changed",
        "_dequeuing",
        "_elements",
        "_enqueuing",
        "_is_closed",
        "_is_released",
        "capacity",
        "dims",
        "dtypes",
        "name",
    )  # fmt: skip

    def __init__(
        self, name: str, dtypes: tuple[DataType, ...], dims: tuple[Dims | None, ...], capacity: int
    ) -> None:
        self.name = name
        self.dtypes = dtypes
        self.dims = dims
        self.capacity = capacity
        self._changed = threading.Condition(registry.lock())
        self._elements: deque[Element] = deque()
        self._enqueuing: deque[_Ticket] = deque()
        self._dequeuing: deque[_Ticket] = deque()
        self._is_closed = False
        self._is_released = False

    def __getattr__(self, name: str) -> Any:
        """Refuse what operations on variables ask a handle for.

        Raises:
            InvalidArgumentError: one was given the handle of a queue.
        """
        if name.startswith("__"):
            raise AttributeError(name)
        raise InvalidArgumentError(
            f"the handle of queue '{self.name}' was given to an operation on variables"
        )

    @property
    def size(self) -> int:
        """How many elements it holds."""
        return len(self._elements)

    @property
    def is_closed(self) -> bool:
        """Whether nothing can be enqueued any more."""
        return self._is_closed

    def enqueue(self, elements: Sequence[Element], ends: Ends | None) -> None:
        """Add elements at the end, waiting for room.

        Raises:
            InvalidArgumentError: a component has another shape than was declared.
            CancelledError: the queue is closed.
        """
        for element in elements:
            self._check(element)
        left, ticket = deque(elements), _Ticket()

        def advance() -> bool:
            if ticket.is_cancelled:
                raise CancelledError(f"FIFOQueue '{self.name}' was closed while this waited")
            while left and not 0 <= self.capacity <= len(self._elements):
                self._elements.append(left.popleft())
                self._changed.notify_all()
            return not left

        with self._changed:
            if self._is_closed:
                raise CancelledError(f"FIFOQueue '{self.name}' is closed.")
            self._enqueuing.append(ticket)
        self._wait(self._enqueuing, ticket, advance, ends)

    def dequeue(
        self, count: int, ends: Ends | None, *, allows_fewer: bool = False
    ) -> list[Element]:
        """Take elements from the front, waiting for so many.

        Raises:
            OutOfRangeError: the queue is closed, and has fewer; with `allows_fewer` none.
        """
        taken: list[Element] = []
        is_done = False

        def advance() -> bool:
            nonlocal is_done
            while len(taken) < count and self._elements:
                taken.append(self._elements.popleft())
                self._changed.notify_all()
            is_done = len(taken) == count
            if not is_done and self._is_closed and not self._enqueuing:
                is_done = allows_fewer and bool(taken)
                if not is_done:
                    raise OutOfRangeError(
                        f"FIFOQueue '{self.name}' is closed and has insufficient elements "
                        f"(requested {count}, current size {len(taken)})"
                    )
            return is_done

        ticket = _Ticket()
        with self._changed:
            self._dequeuing.append(ticket)
        try:
            self._wait(self._dequeuing, ticket, advance, ends)
        finally:
            if not is_done and taken:
                with self._changed:
                    self._elements.extendleft(reversed(taken))
                    self._changed.notify_all()
        return taken

    def _wait(
        self, line: deque[_Ticket], ticket: _Ticket, advance: Callable[[], bool], ends: Ends | None
    ) -> None:
        """Wait until a ticket is the first of its line and `advance` says that it is done."""
        try:
            while True:
                with self._changed:
                    if self._is_released:
                        raise CancelledError(f"FIFOQueue '{self.name}': its session was closed")
                    if line[0] is ticket:
                        if ends is not None:
                            ends.check()
                        if advance():
                            return
                    self._changed.wait(waiting.TURN)
                waiting.check()
                if ends is not None:
                    ends.pause()
        finally:
            with self._changed:
                line.remove(ticket)
                self._changed.notify_all()

    def close(self, cancels: bool = False) -> None:
        """Let nothing be enqueued any more, and with `cancels` nothing that waits for room.

        Raises:
            CancelledError: it is closed already, without `cancels`.
        """
        with self._changed:
            if self._is_closed and not cancels:
                raise CancelledError(f"FIFOQueue '{self.name}' is already closed.")
            self._is_closed = True
            for each in self._enqueuing if cancels else ():
                each.is_cancelled = True
            self._changed.notify_all()

    def release(self) -> None:
        """Release the elements; those who wait get a CancelledError."""
        with self._changed:
            self._is_closed = self._is_released = True
            self._elements.clear()
            self._changed.notify_all()

    def _check(self, element: Element) -> None:
        for i, (dims, value) in enumerate(zip(self.dims, element, strict=False)):
            if not fits(dims, tuple(value.shape)):
                raise InvalidArgumentError(
                    f"Shape mismatch in tuple component {i}. Expected {describe(dims)}, got "
                    f"{describe(tuple(value.shape))}"
                )


def queue_of(node: Node, resources: dict[str, Any]) -> QueueState:
    """Return the state of a queue among those of a session; it is created if there is none.

    Raises:
        InvalidArgumentError: another queue of the same name has other components or another
            capacity.
    """
    name = key_of(node)
    wanted = (
        tuple(node.attrs["component_types"]),
        tuple([each.dims for each in node.attrs["shapes"]]),
        node.attrs["capacity"],
    )
    made = QueueState(name.partition("/")[2], *wanted)
    state: QueueState = resources.setdefault(f"queue {name}", made)
    if (state.dtypes, state.dims, state.capacity) != wanted:
        raise InvalidArgumentError(
            f"Shared queue '{state.name}' has component types "
            f"{', '.join(each.name for each in state.dtypes)}, shapes "
            f"{', '.join(map(describe, state.dims)) or 'of any kind'} and capacity "
            f"{state.capacity}; another operation of that name asks for others",
            node,
        )
    return state

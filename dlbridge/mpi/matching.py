"""Receives from any rank, matched with their messages here.

MPI would match them too, if they were posted. But MPICH over UCX's TCP loses a message that comes
before the receive from any rank that it belongs to, and hangs. Messages that are looked for are
found. As in MPI, a message belongs to the first receive that it fits, in the order of the calls, so
a receive that is begun while one from any rank has no message is matched here as well.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dlbridge.mpi.channel import Channel
    from dlbridge.mpi.engine import Operation, Steps

UNMATCHED: list[Receive] = []
"""Receives that have no message yet, in the order of their calls."""


class Receive:
    """A receive that is not posted.

    Attributes:
        wanted: its source and its tag, or MPI's numbers for any.
        message: what came, with its status; None before that.
    """

    __slots__ = ("channel", "message", "operation", "wanted")

    def __init__(
        self, channel: Channel, operation: Operation, source: int | None, tag: int | None
    ) -> None:
        mpi = channel.mpi
        self.channel = channel
        self.operation = operation
        self.wanted = (
            mpi.ANY_SOURCE if source is None else source,
            mpi.ANY_TAG if tag is None else tag,
        )
        self.message: Any = None

    def fits(self, source: int, tag: int) -> bool:
        """Return whether it may receive such a message."""
        mpi = self.channel.mpi
        return self.wanted[0] in (mpi.ANY_SOURCE, source) and self.wanted[1] in (mpi.ANY_TAG, tag)

    def wait(self) -> Steps:
        """Wait for the message."""
        UNMATCHED.append(self)
        self.operation.may_cancel = True
        try:
            while self.message is None:
                _match(self.channel)
                if self.message is None:
                    yield None
        finally:
            if self in UNMATCHED:
                UNMATCHED.remove(self)
        return self.message

    def take(self, source: int) -> bool:
        """Take the first message of a rank that fits, unless a receive in C was faster."""
        self.message = self.channel.messages.Improbe(source, self.wanted[1])
        if self.message is None:
            return False
        UNMATCHED.remove(self)
        self.operation.may_cancel = False
        return True


def must_wait(channel: Channel, source: int | None) -> bool:
    """Return whether a receive that begins now is matched here: MPI must not match it before."""
    return source is None or any(each.channel is channel for each in UNMATCHED)


def _match(channel: Channel) -> None:
    """Give receives the messages that have come."""
    while _match_one(channel, [each for each in UNMATCHED if each.channel is channel]):
        pass


def _match_one(channel: Channel, receives: list[Receive]) -> bool:
    """Give one receive its message; return whether it got one."""
    status = channel.mpi.Status()
    for wanted in dict.fromkeys(each.wanted for each in receives):
        if channel.messages.Iprobe(*wanted, status):
            source, tag = status.Get_source(), status.Get_tag()
            return next(each for each in receives if each.fits(source, tag)).take(source)
    return False

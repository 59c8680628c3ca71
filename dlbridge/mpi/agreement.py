"""Agreement: do all ranks of a collective make the same call, with the same shape and dtype?

It is settled before the collective itself starts: each rank sends its ballot to a partner, merges
what it receives, and so on with partners twice as far away each time, so that after log2(n) rounds
every rank knows what all others said. A message has a fixed largest size, so a rank that says
something else does no harm. Payloads of up to 16 KiB travel with the ballot and are reduced on
the way: a small allreduce is the agreement. Otherwise it costs one small message a round.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from functools import lru_cache
from hashlib import blake2b
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError
from dlbridge.mpi.channel import Channel
from dlbridge.mpi.engine import Operation, Steps
from dlbridge.mpi.values import Kind

HEAD = 64
MOST = 16 * 1024  # bytes of a payload that travels with the ballot
_SPACE = HEAD + MOST + 1024  # a description of a tensor may come before the payload
_FORM = struct.Struct("<BBI16s16s")
_TEXT = 256  # bytes in which a rank says what it passed, where ranks do not agree

Block = np.ndarray[Any, Any]


@lru_cache(maxsize=1024)
def _digest_call(name: str, arguments: str) -> bytes:
    return blake2b(f"{name}({arguments})".encode(), digest_size=16).digest()


@lru_cache(maxsize=4096)
def _digest_kind(kind: Kind) -> bytes:
    return blake2b(kind.pack(), digest_size=16).digest()


class Ballot:
    """A rank's description of its call, merged with those of other ranks.

    Args:
        call: what must be the same: the function,
        arguments: and its arguments, such as the root.
        kind: the tensor's shape and dtype, None where this rank leaves it to the others.
        payload: bytes that travel with it.
        combine: reduces the second block of payload into the first; else one rank's is taken.
        error: why this rank cannot take part: then no rank does.
    """

    __slots__ = (
        "agreed", "block", "call", "combine", "error", "known", "said", "size", "tensor",
    )  # fmt: skip

    def __init__(
        self,
        call: str,
        arguments: str,
        kind: Kind | None,
        payload: Any = b"",
        combine: Callable[[Block, Block], None] | None = None,
        error: Exception | None = None,
    ) -> None:
        self.call = _digest_call(call, arguments)
        self.said = call, kind, arguments
        self.known = kind is not None
        self.tensor = _digest_kind(kind) if kind is not None else bytes(16)
        self.combine = combine
        self.error = error
        self.agreed = error is None
        self.size = len(payload)
        self.block: Block = np.empty(HEAD + self.size, np.uint8)
        self.block[HEAD:] = np.frombuffer(payload, np.uint8)

    def sealed(self) -> tuple[Block, int]:
        """Return the message, and how many bytes of it go out."""
        size = self.size if self.agreed else 0
        _FORM.pack_into(self.block.data, 0, self.agreed, self.known, size, self.call, self.tensor)
        return self.block, HEAD + size

    def merge(self, block: Block) -> None:
        """Take in what another rank said."""
        agreed, known, size, call, tensor = _FORM.unpack_from(block.data)
        is_same = not (self.known and known) or tensor == self.tensor
        fits = size == self.size if self.combine is not None else size <= block.size - HEAD
        if not (agreed and self.agreed and call == self.call and is_same and fits):
            self.agreed = False
            return
        if known and not self.known:
            self.known, self.tensor = True, tensor
        if self.combine is not None:
            self.combine(self.payload, block[HEAD : HEAD + size])
        elif size and not self.size:
            self.size, self.block = size, block[: HEAD + size].copy()

    @property
    def payload(self) -> Block:
        """The payload, as bytes."""
        return self.block[HEAD : HEAD + self.size]


def agree(channel: Channel, operation: Operation, ballot: Ballot) -> Steps:
    """Merge the ballots of all ranks into each rank's own.

    Raises:
        ArgumentError: they do not agree, with the same text on all ranks.
    """
    tag, rank, comm = channel.next_call(), channel.rank, channel.collective
    byte, power = channel.mpi.BYTE, 1 << channel.size.bit_length() - 1
    extra = channel.size - power  # this many ranks have a partner beyond the power of two
    space = np.empty(_SPACE, np.uint8) if channel.size > 1 else ballot.block
    operation.kept.append(space)

    def send(to: int) -> Any:
        block, size = ballot.sealed()
        operation.kept.append(block)
        return comm.Isend([block, size, byte], to, tag)

    def receive(source: int) -> Any:
        return comm.Irecv([space, _SPACE, byte], source, tag)

    if rank >= power:
        yield (receive(rank - power), send(rank - power))
        _replace(ballot, space)
    else:
        if rank < extra:
            yield (receive(rank + power),)
            ballot.merge(space)
        distance = 1
        while distance < power:
            partner = rank ^ distance
            yield (receive(partner), send(partner))
            ballot.merge(space)
            distance *= 2
        if rank < extra:
            yield (send(rank + power),)
    if not ballot.agreed:
        yield from _disagree(channel, operation, ballot)


def _replace(ballot: Ballot, block: Block) -> None:
    """Take over what the others agreed on, which this rank's ballot is part of already."""
    agreed, _, size, _, _ = _FORM.unpack_from(block.data)
    ballot.agreed = bool(agreed)
    ballot.size, ballot.block = size, block[: HEAD + size]


def _disagree(channel: Channel, operation: Operation, ballot: Ballot) -> Steps:
    """Exchange what each rank passed, and raise the same text everywhere."""
    yield from channel.turn(operation)
    name, kind, arguments = ballot.said
    passed = ", ".join(filter(None, (str(kind), arguments)))
    said = f"{name}({passed})" if ballot.error is None else str(ballot.error)
    text = said.encode()[:_TEXT].ljust(_TEXT, b"\0")
    texts = bytearray(_TEXT * channel.size)
    operation.kept += [text, texts]
    byte = channel.mpi.BYTE
    request = channel.collective.Iallgather([text, _TEXT, byte], [texts, _TEXT, byte])
    channel.pass_turn(operation)
    yield (request,)
    who: dict[str, list[str]] = {}
    for rank in range(channel.size):
        line = bytes(texts[rank * _TEXT : (rank + 1) * _TEXT]).rstrip(b"\0")
        who.setdefault(line.decode(errors="replace"), []).append(str(rank))
    if len(who) == 1 and ballot.error is not None:
        raise ballot.error
    lines = [f"rank {', '.join(ranks)}: {line}" for line, ranks in who.items()]
    raise ArgumentError(
        "mpi: all ranks must make the same call with the same shape and dtype; nothing was "
        f"exchanged; got {'; '.join(lines)}"
    ) from ballot.error

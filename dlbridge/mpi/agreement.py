"""Agreement: do all ranks of a collective make the same call, with the same shape and dtype?

It is settled before the collective itself starts, by `native.Ballot`. Payloads of up to 16 KiB
travel with the ballot and are reduced on the way: a small allreduce is the agreement. Otherwise it
costs one small message for each doubling of the number of ranks; the values of a large allreduce
may follow in the same rounds.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Any, NamedTuple

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.mpi.channel import Channel
from dlbridge.mpi.engine import Operation, Steps
from dlbridge.mpi.values import Kind
from dlbridge.tensor.memory import empty

_TEXT = 256  # bytes in which a rank says what it passed, where ranks do not agree,
_MARK = 8  # and by which they compare each tensor of a tree

_TREE = re.compile(r"a tree of (\d+) tensors")

Combine = Callable[[memoryview, memoryview, bool], None]
Values = tuple[native.TensorBase, native.TensorBase, native.Reduction]


@lru_cache(maxsize=1024)
def digest(name: str, arguments: str) -> bytes:
    """Return the 16 bytes by which ranks compare a function and its arguments."""
    return blake2b(f"{name}({arguments})".encode(), digest_size=16).digest()


class TreeArguments(str):
    """The arguments of a call with a tree.

    Attributes:
        leaves: the path, shape and dtype of each tensor.
    """

    __slots__ = ("leaves",)

    leaves: tuple[str, ...]

    @classmethod
    def of(cls, call: str, leaves: Sequence[str], nbytes: int, arguments: str) -> TreeArguments:
        """Return them with the arguments beside the tree."""
        structure = digest(call, "; ".join(leaves)).hex()[:8]
        made = cls(
            f"a tree of {len(leaves)} tensors, {nbytes} bytes, with paths, shapes and "
            f"dtypes {structure}, {arguments}"
        )
        made.leaves = tuple(leaves)
        return made


class Ballot:
    """A rank's description of its call, merged with those of other ranks.

    Args:
        peers: all that have to agree.
        call: what must be the same: the function,
        arguments: and its arguments, such as the root.
        kind: the tensor's shape and dtype, None where this rank leaves it to the others.
        payload: bytes that travel with it.
        combine: `combine(own, other, own_is_first)` reduces the payload of another rank, of the
            same size, into one's own.
        error: why this rank cannot take part: then no rank does.
        state: what is under way already, as C has begun it.
        values: the tensor that is reduced once all agree, the one for the result, and how.
        takes: whether the payload of one rank is taken by all; with neither this nor `combine`, no
            rank has a payload.
        follows: whether it follows another one, on which all agreed, in the turn of its call.
        scatters: whether each rank gets but its row of the payload.
        gathers: whether each rank writes one row of the payload, and all ranks receive all rows.
    """

    __slots__ = ("error", "said", "state")

    def __init__(
        self,
        peers: native.Peers | None,
        call: str,
        arguments: str,
        kind: Kind | None,
        payload: Any = b"",
        combine: Combine | None = None,
        error: Exception | None = None,
        state: native.Ballot | None = None,
        values: Values | None = None,
        takes: bool = False,
        follows: bool = False,
        scatters: bool = False,
        gathers: bool = False,
    ) -> None:
        self.said = call, kind, arguments
        self.error = error
        if state is None:
            said = digest(call, arguments)
            state = native.Ballot(
                *(peers, said, kind, payload, combine, error is None, values, takes, follows),
                scatters=scatters,
                gathers=gathers,
            )
        self.state = state

    @property
    def payload(self) -> bytes:
        """The payload."""
        return self.state.payload


class TreeCall(NamedTuple):
    """A call with a tree that C makes, as a Ballot."""

    said: tuple[str, None, str]
    state: native.TreeBallot
    error: None = None


def agree(channel: Channel, operation: Operation, ballot: Ballot | TreeCall) -> Steps:
    """Merge the ballots of all ranks into each rank's own.

    Raises:
        ArgumentError: they do not agree, with the same text on all ranks.
    """
    operation.kept.append(ballot.state)
    operation.ballot = operation.ballot or ballot.state
    while not ballot.state.advance():
        yield None
    if not ballot.state.agreed:
        yield from _disagree(channel, operation, ballot)


def copy(
    over: Channel,
    operation: Operation,
    ballot: native.Ballot | native.TreeBallot,
    name: str,
    source: native.TensorBase | None,
    target: native.TensorBase | None,
    root: int = 0,
    made: native.Collective | None = None,
    *,
    passes: bool = True,
) -> Steps:
    """Copy from tensor to tensor, after a ballot on which the ranks agreed, or did not.

    Args:
        over: the channel.
        operation: what is under way.
        ballot: the ballot.
        name: of the collective.
        source: what goes out, None where this rank sends nothing.
        target: where it goes to, None where this rank receives nothing.
        root: of those that have one.
        made: what copies it, if that was made before.
        passes: whether the turn of the operation is over then.
    """
    operation.kept += [source, target]
    if not over.peers.is_direct:
        yield from over.turn(operation)
        request = _post(over, name, source, target, root)
        if passes:
            over.pass_turn(operation)
        yield (request,)
        return
    state = made or native.Collective(over.peers, name, source, target, root)
    operation.kept.append(state)
    state.begin(ballot)
    while not state.advance():
        yield None


def _post(
    over: Channel,
    name: str,
    source: native.TensorBase | None,
    target: native.TensorBase | None,
    root: int,
) -> Any:
    """Begin a collective of MPI: with many ranks its messages are fewer."""
    byte, on = over.mpi.BYTE, over.collective
    if name == "bcast":
        tensor = source if over.rank == root else target
        assert tensor is not None
        return on.Ibcast([over.memory(tensor), tensor.nbytes, byte], root)
    is_root = over.rank == root
    rows = {"allgather": (1, over.size), "alltoall": (over.size,) * 2, "gather": (1, over.size)}
    sent_rows, received_rows = rows.get(name, (over.size, 1))
    sent = received = None
    if source is not None and (name != "scatter" or is_root):
        sent = [over.memory(source), source.nbytes // sent_rows, byte]
    if target is not None and (name != "gather" or is_root):
        received = [over.memory(target), target.nbytes // received_rows, byte]
    function = getattr(on, f"I{name}")
    return function(sent, received, *([root] if name in ("gather", "scatter") else []))


def _disagree(channel: Channel, operation: Operation, ballot: Ballot | TreeCall) -> Steps:
    """Exchange what each rank passed, and raise the same text everywhere."""
    name, kind, arguments = ballot.said
    is_tree = arguments.startswith("a tree")  # which has no shape and dtype of its own
    passed = ", ".join(filter(None, ("" if is_tree else str(kind), arguments)))
    said = f"{name}({passed})" if ballot.error is None else str(ballot.error)
    texts = yield from _texts_of_all(channel, operation, ballot, said)
    if len({*texts}) == 1 and ballot.error is not None:
        raise ballot.error
    what = f"got {_by_rank(texts)}"
    counts = [int(found[1]) for found in map(_TREE.search, texts) if found is not None]
    differ = len({text.rpartition(", ")[0] for text in texts}) > 1
    if differ and len(counts) == channel.size and isinstance(arguments, TreeArguments):
        first = yield from _first_difference(channel, operation, ballot, arguments, max(counts))
        what += f"; the first tensor that differs is, of {_by_rank(first)}"
    raise ArgumentError(
        "mpi: all ranks must make the same call with the same shape and dtype; nothing was "
        f"exchanged; {what}"
    ) from ballot.error


def _by_rank(texts: Sequence[str]) -> str:
    who: dict[str, list[str]] = {}
    for rank, text in enumerate(texts):
        who.setdefault(text, []).append(str(rank))
    return "; ".join(f"rank {', '.join(ranks)}: {text}" for text, ranks in who.items())


def _rows_of_all(
    channel: Channel, operation: Operation, ballot: Ballot | TreeCall, row: bytes
) -> Generator[Any, None, list[bytes]]:
    """Return the row of each rank; all are of one size."""
    own, rows = empty((len(row),), "uint8"), empty((channel.size, len(row)), "uint8")
    np.asarray(own)[:] = np.frombuffer(row, np.uint8)
    yield from copy(channel, operation, ballot.state, "allgather", own, rows, passes=False)
    return [bytes(each) for each in np.asarray(rows)]


def _texts_of_all(
    channel: Channel, operation: Operation, ballot: Ballot | TreeCall, text: str
) -> Generator[Any, None, list[str]]:
    row = text.encode()[:_TEXT].ljust(_TEXT, b"\0")
    rows = yield from _rows_of_all(channel, operation, ballot, row)
    return [each.rstrip(b"\0").decode(errors="replace") for each in rows]


def _first_difference(
    channel: Channel,
    operation: Operation,
    ballot: Ballot | TreeCall,
    arguments: TreeArguments,
    count: int,
) -> Generator[Any, None, list[str]]:
    """Return what each rank has where their trees, of at most so many tensors, first differ."""
    leaves = arguments.leaves
    marks = b"".join(blake2b(leaf.encode(), digest_size=_MARK).digest() for leaf in leaves)
    row = marks.ljust(count * _MARK, b"\0")
    rows = yield from _rows_of_all(channel, operation, ballot, row)
    starts = range(0, count * _MARK, _MARK)
    differs = (len({each[start : start + _MARK] for each in rows}) > 1 for start in starts)
    number = next((number for number, found in enumerate(differs) if found), 0)
    own = leaves[number] if number < len(leaves) else "none"
    return (yield from _texts_of_all(channel, operation, ballot, own))

"""Collectives of trees: containers of tensors, such as a state dict, in one call.

The ranks agree once on all tensors. Then each large tensor goes by itself, from where it is; small
ones of one dtype are packed into buckets, whose results share their memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, MPIError
from dlbridge.exchange.trees import tensors_of, with_tensors
from dlbridge.mpi import reductions
from dlbridge.mpi.agreement import Ballot, agree, digest
from dlbridge.mpi.channel import Channel, begins, check_rank
from dlbridge.mpi.collectives import Call, prepare
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.quick import QUICK, learn_call
from dlbridge.mpi.values import Kind
from dlbridge.tensor.memory import empty
from dlbridge.tensor.values import raw_bytes

_LARGE = 4 * 1024 * 1024  # bytes from which a tensor is sent from where it is
_FULL = 16 * 1024 * 1024  # bytes of a bucket: MPI is fastest with few large messages
_ALIGNED = 64  # bytes: where the tensors of a bucket begin

Result = Callable[[Kind], Kind]


class Bucket:
    """Tensors that go together.

    Attributes:
        calls: one for each tensor.
        starts: where each of them begins, in bytes.
        source: the compact memory that goes out.
        target: that of the result, None where there is none.
        ballot: by which the values are reduced, None: MPI does that.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.starts: list[int] = []
        self.target: native.TensorBase | None = None
        self.ballot: Ballot | None = None
        if len(calls) == 1:
            assert calls[0].source is not None
            self.source = calls[0].source.tensor
            self.starts.append(0)
        else:
            self.source = self._pack()

    @property
    def dtype(self) -> tuple[int, int, int]:
        """The dtype of all of them."""
        return self.source._dtype_triple

    def _pack(self) -> native.TensorBase:
        sources = [call.source.tensor for call in self.calls if call.source is not None]
        size = 0
        for source in sources:
            self.starts.append(size)
            size += -(-source.nbytes // _ALIGNED) * _ALIGNED
        packed = empty((size // sources[0].itemsize,), sources[0].dtype)
        memory = np.asarray(raw_bytes(packed))
        for start, source in zip(self.starts, sources, strict=True):
            memory[start : start + source.nbytes] = np.asarray(raw_bytes(source))
            memory[start + source.nbytes : start + -(-source.nbytes // _ALIGNED) * _ALIGNED] = 0
        return packed

    def allocate(self, count: int | None = None) -> None:
        """Allocate the result: of the shape of the source, or so many of these."""
        if len(self.calls) == 1:
            (call,) = self.calls
            assert call.kind is not None
            self.target = call.receive(call.kind)
        else:
            (size,) = self.source.shape
            shape = (size,) if count is None else (count, size)
            self.target = empty(shape, self.source.dtype)

    def finish(self) -> Iterator[Any]:
        """Return the results to the user, one for each tensor."""
        assert self.target is not None
        if len(self.calls) == 1:
            yield self.calls[0].finish(self.target)
            return
        for call, start in zip(self.calls, self.starts, strict=True):
            assert call.kind is not None
            assert call.source is not None
            shape = call.kind.shape
            strides = list(call.source.tensor.strides)
            if len(shape) > len(strides):  # one in each row
                strides.insert(0, self.target.shape[1])
            part = self.target._view(shape, strides, start)
            yield call.finish(part if part.is_contiguous else part.copy())


class Tree:
    """One call with a tree, checked as far as one rank can.

    Attributes:
        buckets: what is sent.
        order: for each result, in the order of the buckets, which tensor of the tree it is.
        error: why this rank cannot take part.
    """

    def __init__(
        self, name: str, tree: Any, out: Any, arguments: str, result: Result, gets_result: bool
    ) -> None:
        self.name = name
        self.tree = tree
        self.arguments = f"a tree, {arguments}"
        self.error: Exception | None = None
        self.buckets: list[Bucket] = []
        self.order: list[int] = []
        self.nbytes = 0
        try:
            self._take(out, result, gets_result)
        except (DLBridgeError, TypeError, ValueError, MemoryError) as error:
            self.error = error

    def _take(self, out: Any, result: Result, gets_result: bool) -> None:
        found = tensors_of(self.tree)
        outs: list[Any] = [None] * len(found)
        if out is not None:
            places = tensors_of(out)
            if [path for path, _ in places] != [path for path, _ in found]:
                raise ArgumentError(
                    f"{self.name}: out must be a tree with tensors in the same places as the "
                    f"first one, {len(found)}, got {len(places)}; make it like that"
                )
            outs = [x for _, x in places]
        calls, said = [], []
        for (path, x), to in zip(found, outs, strict=True):
            call = prepare(self.name, x, to, result)
            if call.error is not None:
                call.error.add_note(f"at {path} of the tree")
                raise call.error
            assert call.source is not None
            calls.append(call)
            said.append(f"{path}: {call.source.kind}")
            self.nbytes += call.source.tensor.nbytes
        structure = digest(self.name, "; ".join(said)).hex()[:8]
        self.arguments = (
            f"a tree of {len(calls)} tensors, {self.nbytes} bytes, with paths, shapes and dtypes "
            f"{structure}, {self.arguments.removeprefix('a tree, ')}"
        )
        self._fill(calls)
        if gets_result:
            self._allocate()

    def _fill(self, calls: list[Call]) -> None:
        open_buckets: dict[tuple[int, int, int], list[int]] = {}
        plan: list[list[int]] = []
        sizes: dict[int, int] = {}
        for number, call in enumerate(calls):
            assert call.source is not None
            nbytes, dtype = call.source.tensor.nbytes, call.source.kind.dtype
            if nbytes >= _LARGE or dtype[1] % 8 or _ALIGNED % call.source.tensor.itemsize:
                plan.append([number])
                continue
            members = open_buckets.get(dtype)
            if members is None or sizes[id(members)] + nbytes > _FULL:
                open_buckets[dtype] = members = []
                sizes[id(members)] = 0
                plan.append(members)
            members.append(number)
            sizes[id(members)] += nbytes
        for members in plan:
            self.buckets.append(Bucket([calls[number] for number in members]))
            self.order += members

    def _allocate(self) -> None:
        for bucket in self.buckets:
            call = bucket.calls[0]
            assert call.source is not None
            assert call.kind is not None
            has_rows = len(call.kind.shape) > len(call.source.kind.shape)
            bucket.allocate(call.kind.shape[0] if has_rows else None)

    def ballot(self, over: Channel) -> Ballot:
        """Return what this rank says of the call."""
        return Ballot(over.peers, self.name, self.arguments, None, error=self.error)

    def finish(self, out: Any) -> Any:
        """Return the results to the user."""
        made: list[Any] = [None] * len(self.order)
        results = (result for bucket in self.buckets for result in bucket.finish())
        for number, result in zip(self.order, results, strict=True):
            made[number] = result
        return out if out is not None else with_tensors(self.tree, made)


Post = Callable[[Bucket], Any]


def _run(
    over: Channel, tree: Tree, post: Post, finish: Callable[[], Any], operation: Operation
) -> Steps:
    """Agree, then post everything in one turn, and wait for it."""
    yield from agree(over, operation, tree.ballot(over))
    yield from over.turn(operation)
    requests = []
    for bucket in tree.buckets:
        operation.kept += [bucket.source, bucket.target]
        if bucket.ballot is not None:
            operation.kept.append(bucket.ballot.state)
            bucket.ballot.state.advance()
        elif bucket.source.nbytes:
            requests.append(post(bucket))
    over.pass_turn(operation)
    ballots = [bucket.ballot.state for bucket in tree.buckets if bucket.ballot is not None]
    under_way = ballots
    while under_way := [each for each in under_way if not each.advance()]:
        yield None
    if not all(each.agreed for each in ballots):
        raise MPIError(
            f"{tree.name}: other ranks go on with it in another way; run the same dlbridge on all "
            "ranks"
        )
    if requests:
        yield tuple(requests)
    return finish()


def _start(over: Channel, tree: Tree, post: Post, finish: Callable[[], Any]) -> Request:
    operation = over.operation(tree.name)
    operation.nbytes = tree.nbytes
    steps = _run(over, tree, post, finish, operation)
    return over.engine.start(operation, over.in_turn(operation, steps))


@begins("allreduce")
def iallreduce(over: Channel, x: Any, op: str, out: Any) -> Request:
    """Begin an allreduce of a tree."""

    def result(kind: Kind) -> Kind:
        reductions.find("allreduce", op)
        reductions.numpy_dtype("allreduce", op, kind)
        return kind

    def dtype_of(bucket: Bucket) -> np.dtype[Any]:
        return reductions.numpy_dtype("allreduce", op, Kind((), bucket.dtype))

    tree = Tree("allreduce", x, out, f"op={op!r}", result, True)
    try:
        reductions.find("allreduce", op)
        for bucket in tree.buckets if tree.error is None else ():
            _follow(over, op, bucket, dtype_of(bucket))
    except (DLBridgeError, MemoryError) as error:
        tree.error = error

    def post(bucket: Bucket) -> Any:
        kind = Kind((), bucket.dtype)
        datatype, operator = reductions.operators(over).get(op, kind, dtype_of(bucket))
        count = bucket.source.size
        assert bucket.target is not None
        return over.collective.Iallreduce(
            [over.memory(bucket.source), count, datatype],
            [over.memory(bucket.target), count, datatype],
            operator,
        )

    def finish() -> Any:
        for bucket in tree.buckets:
            assert bucket.target is not None
            reductions.finish(op, dtype_of(bucket), bucket.target, over.size)
        return tree.finish(out)

    return _start(over, tree, post, finish)


def _follow(over: Channel, op: str, bucket: Bucket, dtype: np.dtype[Any]) -> None:
    """Have the values of a bucket reduced by a ballot, where that is faster."""
    if not reductions.follow_ballot(over, bucket.source, dtype):
        return
    key = reductions.known_as(op, None)
    learn_call(key, partial(reductions.quick, op, digest("allreduce", f"op={op!r}")))
    bucket.source = reductions.aligned(bucket.source)
    assert bucket.target is not None
    values = bucket.source, bucket.target, QUICK.calls[key]
    kind = Kind((bucket.source.size,), bucket.dtype)
    bucket.ballot = Ballot(
        over.peers, "allreduce", "a part of a tree", kind, values=values, follows=True
    )


@begins("bcast")
def ibcast(over: Channel, x: Any, root: int, _: str, out: Any) -> Request:
    """Begin a bcast of a tree: all ranks pass one."""
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        return kind

    tree = Tree("bcast", x, out, f"root={root}", result, not is_root or out is not None)
    if tree.error is None:
        tree.error = _refusal("bcast", root, over)

    def post(bucket: Bucket) -> Any:
        memory = bucket.source if is_root else bucket.target
        assert memory is not None
        return over.collective.Ibcast([over.memory(memory), memory.nbytes, over.mpi.BYTE], root)

    def finish() -> Any:
        if not is_root:
            return tree.finish(out)
        if out is None:
            return x
        for bucket in tree.buckets:
            assert bucket.target is not None
            np.asarray(raw_bytes(bucket.target))[:] = np.asarray(raw_bytes(bucket.source))
        return tree.finish(out)

    return _start(over, tree, post, finish)


@begins("gather")
def igather(over: Channel, x: Any, root: int, out: Any) -> Request:
    """Begin a gather of a tree."""
    is_root = root == over.rank

    def result(kind: Kind) -> Kind:
        if kind.is_packed:
            raise ArgumentError(f"gather: {kind} has several elements in a byte; convert it first")
        return Kind((over.size, *kind.shape), kind.dtype)

    tree = Tree("gather", x, out if is_root else None, f"root={root}", result, is_root)
    if tree.error is None:
        tree.error = _refusal("gather", root, over)

    def post(bucket: Bucket) -> Any:
        part, byte = bucket.source.nbytes, over.mpi.BYTE
        received = None
        if is_root:
            assert bucket.target is not None
            received = [over.memory(bucket.target), part, byte]
        return over.collective.Igather([over.memory(bucket.source), part, byte], received, root)

    return _start(over, tree, post, lambda: tree.finish(out) if is_root else None)


def _refusal(name: str, root: Any, over: Channel) -> Exception | None:
    try:
        check_rank(name, "root", root, over.size)
    except DLBridgeError as error:
        return error
    return None

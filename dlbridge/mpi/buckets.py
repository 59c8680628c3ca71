"""Collectives of trees: containers of tensors, such as a state dict, in one call.

The ranks agree once on all tensors. Then each large tensor goes by itself, from where it is; small
ones are packed, and their results share memory.

A call is a `native.TreeBallot`, which C begins by itself for trees whose `native.TreePlan` it has
learnt. Buckets have what MPI moves: among many ranks, and dtypes that C does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from itertools import zip_longest
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError
from dlbridge.exchange.trees import tensors_of, with_tensors
from dlbridge.mpi import reductions
from dlbridge.mpi.agreement import Ballot, TreeArguments, TreeCall, agree, digest
from dlbridge.mpi.channel import Channel, begins, check_rank
from dlbridge.mpi.collectives import Call, prepare
from dlbridge.mpi.engine import Operation, Request, Steps
from dlbridge.mpi.quick import QUICK, TREE
from dlbridge.mpi.values import Kind
from dlbridge.signals import not_from_handler
from dlbridge.tensor.memory import empty
from dlbridge.tensor.values import raw_bytes

_LARGE = 64 * 1024  # bytes from which a tensor is sent from where it is
_MOST_PLANS = 8  # plans that C remembers for each call and op or root
_FULL = 16 * 1024 * 1024  # bytes of a bucket: MPI is fastest with few large messages
_ALIGNED = 64  # bytes: where the tensors of a bucket begin

_REFUSALS = DLBridgeError, TypeError, ValueError, MemoryError, RecursionError

Result = Callable[[Kind], Kind]
Places = list[tuple[str, Any]]


class Bucket:
    """Tensors that go together.

    Attributes:
        calls: one for each tensor.
        starts: where each of them begins, in bytes.
        source: the compact memory that goes out.
        target: that of the result, None where there is none.
    """

    def __init__(self, calls: list[Call]) -> None:
        self.calls = calls
        self.starts: list[int] = []
        self.target: native.TensorBase | None = None
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


def _at(path: str, error: Exception) -> Exception:
    """Return a refusal whose text says which tensor of a tree it is about."""
    text, reason = str(error), ""
    if isinstance(error, ExchangeError):
        text, reason = text.removesuffix(f" [{error.reason}]"), f" [{error.reason}]"
    error.args = (f"{text} (at {path} of the tree){reason}",)
    return error


class Tree:
    """One call with a tree, checked as far as one rank can.

    Attributes:
        buckets: what is sent.
        order: for each result, in the order of the buckets, which tensor of the tree it is.
        error: why this rank cannot take part.
    """

    def __init__(self, name: str, tree: Any, out: Any, arguments: str, result: Result) -> None:
        self.name = name
        self.tree = tree
        self.arguments = f"a tree, {arguments}"
        self.error: Exception | None = None
        self.calls: list[Call] = []
        self.buckets: list[Bucket] = []
        self.order: list[int] = []
        self.nbytes = 0
        with self.refusing():
            self._take(out, result)

    @contextmanager
    def refusing(self) -> Iterator[None]:
        """Note why this rank cannot take part, where that turns out within."""
        try:
            yield
        except not_from_handler(*_REFUSALS) as error:
            self.error = error

    def _take(self, out: Any, result: Result) -> None:
        found = tensors_of(self.tree)
        outs: list[Any] = [None] * len(found)
        if out is not None:
            places = tensors_of(out)
            _check_places(self.name, found, places)
            outs = [x for _, x in places]
        said = []
        for (path, x), to in zip(found, outs, strict=True):
            call = prepare(self.name, x, to, result)
            if call.error is not None:
                raise _at(path, call.error)
            assert call.source is not None
            self.calls.append(call)
            said.append(f"{path}: {call.source.kind}")
            self.nbytes += call.source.tensor.nbytes
        arguments = self.arguments.removeprefix("a tree, ")
        self.arguments = TreeArguments.of(self.name, said, self.nbytes, arguments)

    def fill(self, gets_result: bool) -> None:
        """Pack small tensors, and allocate the results."""
        with self.refusing():
            self._fill()
            if gets_result:
                self._allocate()

    def _fill(self) -> None:
        open_buckets: dict[tuple[int, int, int], list[int]] = {}
        plan: list[list[int]] = []
        sizes: dict[int, int] = {}
        for number, call in enumerate(self.calls):
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
            self.buckets.append(Bucket([self.calls[number] for number in members]))
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
        return self.made_of(made, out)

    def made_of(self, results: list[Any], out: Any) -> Any:
        """Return the tree of these results, or `out`, whose tensors they are."""
        return out if out is not None else with_tensors(self.tree, results, keeps_keys=True)


def _check_places(call: str, found: Places, out: Places) -> None:
    pairs = zip_longest((path for path, _ in found), (path for path, _ in out), fillvalue="none")
    for wanted, got in pairs:
        if wanted != got:
            raise ArgumentError(
                f"{call}: out must be a tree with tensors in the same places as the first one, "
                f"{len(found)}, got {len(out)}; the first place that differs is "
                f"{got or 'the whole'} instead of {wanted}; a tensor that occurs twice counts once"
            )


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
        if bucket.source.nbytes:
            requests.append(post(bucket))
    over.pass_turn(operation)
    if requests:
        yield tuple(requests)
    return finish()


def _start(over: Channel, tree: Tree, post: Post, finish: Callable[[], Any]) -> Request:
    operation = over.operation(tree.name)
    operation.nbytes = tree.nbytes
    steps = _run(over, tree, post, finish, operation)
    return over.engine.start(operation, over.in_turn(operation, steps))


# ---- calls that C makes -------------------------------------------------------------------------


def _plan(tree: Tree, key: Any, how: native.Reduction | str, root: int = 0) -> native.TreePlan:
    """Return the plan of a call with a tree, and let C remember it."""
    leaves = [x for _, x in tensors_of(tree.tree)]
    tensors = [call.source.tensor for call in tree.calls if call.source is not None]
    said = digest(tree.name, tree.arguments)
    plan = native.TreePlan(*(tree.tree, leaves, tensors, said, tree.arguments, how, root))
    if plan.is_plain:
        known = QUICK.calls.get(key, ())
        QUICK.calls[key] = (plan, *known[: _MOST_PLANS - 1])
    return plan


def _start_by_c(
    over: Channel, tree: Tree, plan: native.TreePlan, out: Any, *, gives: bool, instead: Any = None
) -> Request:
    """Begin a call that C makes; `instead` is returned on ranks without results."""
    states: list[native.TreeBallot] = []  # one, unless this rank cannot take part
    with tree.refusing():
        sources = [call.source.tensor for call in tree.calls if call.source is not None]
        if tree.name == "allreduce":
            sources = [reductions.aligned(source) for source in sources]
        states.append(native.TreeBallot(over.peers, plan, sources, gives))

    def finish() -> Any:
        if not gives:
            return instead
        results = zip(tree.calls, states[0].results(), strict=True)
        return tree.made_of([call.finish(made) for call, made in results], out)

    ballot = _call(states[0]) if states else tree.ballot(over)
    return _start_agreed(over, tree.name, ballot, tree.nbytes, finish)


def _call(state: native.TreeBallot) -> TreeCall:
    return TreeCall((state.name, None, state.arguments), state)


def _start_agreed(
    over: Channel,
    name: str,
    ballot: Ballot | TreeCall,
    nbytes: int,
    finish: Callable[[], Any],
) -> Request:
    operation = over.operation(name)
    operation.nbytes = nbytes

    def steps() -> Steps:
        yield from agree(over, operation, ballot)
        return finish()

    made = steps() if over.peers.is_direct else over.in_turn(operation, steps())
    return over.engine.start(operation, made)


def go_on(comm: Any, state: native.TreeBallot) -> Request:
    """Go on with a call that C has begun, and whose result it makes."""

    def wait(over: Channel) -> Request:
        return _start_agreed(over, state.name, _call(state), state.nbytes, state.result)

    return begins(state.name)(wait)(comm)


# ---- each call ----------------------------------------------------------------------------------


@begins("allreduce")
def iallreduce(over: Channel, x: Any, op: str, out: Any) -> Request:
    """Begin an allreduce of a tree."""

    def result(kind: Kind) -> Kind:
        reductions.find("allreduce", op)
        reductions.numpy_dtype("allreduce", op, kind)
        return kind

    def dtype_of(bucket: Bucket) -> np.dtype[Any]:
        return reductions.numpy_dtype("allreduce", op, Kind((), bucket.dtype))

    tree = Tree("allreduce", x, out, f"op={op!r}", result)
    with tree.refusing():
        reductions.find("allreduce", op)
        if tree.error is None:
            kinds = {call.source.kind.dtype for call in tree.calls if call.source is not None}
            how = reductions.learn(op, op, digest("allreduce", f"op={op!r}"), *kinds)
            plan = _plan(tree, (op, TREE), how)
            if plan.fits(over.peers):
                return _start_by_c(over, tree, plan, out, gives=True)
            tree.fill(gets_result=True)

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


@begins("bcast")
def ibcast(over: Channel, x: Any, root: int, _: str, out: Any) -> Request:
    """Begin a bcast of a tree: all ranks pass one."""
    is_root = root == over.rank
    gets_result = not is_root or out is not None

    def result(kind: Kind) -> Kind:
        return kind

    tree = Tree("bcast", x, out, f"root={root}", result)
    with tree.refusing():
        check_rank("bcast", "root", root, over.size)
        if tree.error is None:
            plan = _plan(tree, ("bcast", int(root), TREE), "bcast", int(root))
            if plan.fits(over.peers):
                return _start_by_c(over, tree, plan, out, gives=gets_result, instead=x)
            tree.fill(gets_result)

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

    out = out if is_root else None
    tree = Tree("gather", x, out, f"root={root}", result)
    with tree.refusing():
        check_rank("gather", "root", root, over.size)
        if tree.error is None:
            plan = _plan(tree, ("gather", int(root), TREE), "gather", int(root))
            if plan.fits(over.peers):
                return _start_by_c(over, tree, plan, out, gives=is_root)
            tree.fill(is_root)

    def post(bucket: Bucket) -> Any:
        part, byte = bucket.source.nbytes, over.mpi.BYTE
        received = None
        if is_root:
            assert bucket.target is not None
            received = [over.memory(bucket.target), part, byte]
        return over.collective.Igather([over.memory(bucket.source), part, byte], received, root)

    return _start(over, tree, post, lambda: tree.finish(out) if is_root else None)

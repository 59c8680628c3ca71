"""Server: this process as one task of a cluster, and the sessions that run graphs on it.

The processes are those of an MPI job. A session drives the other tasks, which serve it in `join` or
while they wait in runs of their own; or every task makes the same runs (`spmd=True`).

A run is a step, whose number no other step has. Of a driven one, the driver tells each task that
takes part (`_RUN`), and waits until each has said that it is done. A task that fails tells the
driver (`_FAILED`), which tells all others (`_ABORT`): that comes after `_RUN`, so none waits for
what will not come. In an SPMD run a task that fails tells all others itself; all tasks end a run
together, so that each run fails on all of them or on none. Both kinds leave out the words that end
a run where the values of the run show that all nodes have run (`Part.heard`).

Messages of an SPMD run carry which run it is, so that those of different runs never meet: tasks
that make different ones wait for each other, say which one they are in (`_WAITS`), or that they
compare a new one, and all of them find out.

A task whose script has ended serves the others until all scripts have. It tells which SPMD runs it
has made (`_END`): it makes no other.
"""

from __future__ import annotations

import json
import math
import struct
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from time import monotonic, perf_counter_ns
from typing import Any, NamedTuple, cast
from zlib import crc32

import numpy as np

from dlbridge import mpi, registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, MPIError, UnsupportedTypeError
from dlbridge.execution.builder import Runtime
from dlbridge.execution.errors import (
    CancelledError,
    OpError,
    UnavailableError,
    UnknownError,
    failure,
)
from dlbridge.execution.queues import QueueState
from dlbridge.execution.trace import Trace
from dlbridge.execution.variables import VariableState
from dlbridge.files import write_file
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.distributed import arena, timeline
from dlbridge.graph.distributed.cluster import ClusterSpec, Task
from dlbridge.graph.distributed.running import Ends, LocalPart, Part, cut
from dlbridge.graph.session import feeds as fed
from dlbridge.graph.session import fetches as fetched
from dlbridge.graph.session import targets
from dlbridge.graph.session.config import DeadlineTrace
from dlbridge.graph.session.limits import Limit
from dlbridge.mpi.channel import channel
from dlbridge.mpi.engine import engine
from dlbridge.mpi.job import Nap
from dlbridge.signals import is_from_handler, not_from_handler

__all__ = ["Server"]

_PLAN, _RUN, _FAILED, _ABORT, _FORGET, _JOIN, _CLOCK, _EVENTS, _WAITS, _END = range(10)
_DONE = 0xF0000000  # edges by which tasks say that they are done
_ROUND = 0xF1000000  # and by which all of them end a step together
_PLAN_NUMBER = struct.Struct("<Q")
_PLAN_BITS = 32  # of the number of a plan, below that of a traced run, in `_RUN`
_TIME = struct.Struct("<q")  # nanoseconds of `time.perf_counter_ns`
_IDENTITY = struct.Struct("<II")  # of a run that all tasks make, and comparisons, in `_WAITS`
_STEPS_MADE = struct.Struct("<QQ")  # a session that all tasks make, and its steps, in `_END`
_SIZES = {  # of each number
    _RUN: _PLAN_NUMBER.size,
    _FORGET: _PLAN_NUMBER.size,
    _CLOCK: _TIME.size,
    _WAITS: _IDENTITY.size,
    _END: _STEPS_MADE.size,
}
_RANK_BITS = 40  # of the number of a step, below the rank of its driver
_SPMD = 1 << 63
_COUNT_BITS = 40  # of the number of an SPMD step, below that of its session
_LEAD = 32  # runs of an SPMD session that a task may be ahead of another
_LOOK = 0.01  # seconds between two looks of a node that waits at who has left
_TURN = 0.5  # seconds between two looks of `join` at who has left


class _OtherRunError(Exception):
    """Tasks are in different SPMD runs, and all of them raise its cause."""


class _ElsewhereError(Exception):
    """A step failed on another task; carries nothing: the error is that of the step."""


class Server:
    """One task of a cluster: it keeps variables, and runs its parts of graphs.

    Every process of the MPI job (`mpiexec -n 3 python script.py`) makes one, each for another task
    of the same cluster; the call waits for the others. The addresses of the cluster are not used.

    Args:
        server_or_cluster_def: a ClusterSpec, or a dict as it takes, with as many tasks as the job
            has processes.
        job_name, task_index: which task this is; by default that of the process's rank, where the
            tasks are counted job by job.
        protocol: None or "mpi".
        config: without effect.
        start: without effect: a server serves while it is in `join`, or waits in a run.

    Raises:
        ArgumentError: tasks and processes do not correspond, on all of them.
        FrameworkMissingError: mpi4py is not installed, or finds no MPI library.

    Example:
        >>> import dlbridge.graph as tf
        >>> server = tf.train.Server({"worker": ["localhost:0"]})  # doctest: +SKIP
        >>> with tf.device("/job:worker/task:0"):  # doctest: +SKIP
        ...     x = tf.constant(1.0)
        >>> tf.Session(server.target).run(x)  # doctest: +SKIP
        1.0
    """

    def __init__(
        self,
        server_or_cluster_def: Any,
        job_name: str | None = None,
        task_index: int | None = None,
        protocol: str | None = None,
        config: Any = None,
        start: bool = True,
    ) -> None:
        if protocol not in (None, "mpi"):
            raise ArgumentError(f'Server: protocol must be None or "mpi", got {protocol!r}')
        self.cluster = ClusterSpec(server_or_cluster_def)
        self._running = engine()
        self.rank, size = mpi.rank(), mpi.size()
        self.task = _own_task(self.cluster, job_name, task_index, self.rank, size)
        self.ranks = _settle(self.cluster, self.task)
        self.tasks = {rank: Task(*_split(name)) for name, rank in self.ranks.items()}
        self.resources: dict[str, Any] = {}
        self.transport = self._open()
        self.near = arena.share(self.transport, self.rank)
        self._lock = registry.lock()
        self.steps = native.StepNumbers(self.rank << _RANK_BITS)  # that this task drives
        self._clocks: dict[tuple[int, int], int | None] = {}  # rank, question -> what came
        self._questions = registry.SerialNumbers(1)
        self._events: dict[int, dict[int, bytes | None]] = {}  # traced run -> rank -> what came
        self._sessions = registry.SerialNumbers(1)
        self._plans = registry.SerialNumbers(1)
        self._parts: dict[tuple[int, int], _ServedPart] = {}
        self._requests: deque[tuple[int, int, _ServedPart | None, int]] = deque()
        self._idle = 0
        self._next_look = 0.0  # of a node that waits for runs of other tasks
        self._active: set[int] = set()
        self._together: dict[int, native.StepNumbers] = {}  # those of SPMD sessions
        self._errors: dict[int, bytes] = {}
        self.others = frozenset(self.ranks.values()) - {self.rank}
        self._joined: set[int] = set()
        self._known_lost: frozenset[int] = frozenset()
        self._waiting: dict[int, dict[int, tuple[int, int]]] = {}  # SPMD step -> rank -> `_WAITS`
        self.compared: dict[int, int] = {}  # base of SPMD steps -> comparisons that all have made
        self.compare: dict[int, Callable[[int], None]] = {}  # base -> how a run is compared
        self._made: dict[
            int, dict[int, int]
        ] = {}  # rank whose script has ended -> session -> steps
        self._spare: Any = None  # communicator of what tasks exchange beside runs
        self._running.others.append(self.transport.progress)
        self._running.job.ending.append(self._serve_to_the_end)
        targets.add(self.target, self._target)

    @property
    def target(self) -> str:
        """The target that makes a `Session` of this process run on the cluster."""
        return f"mpi://{self.task}"

    @property
    def server_def(self) -> dict[str, Any]:
        """The cluster, and which task this is."""
        return {
            "cluster": self.cluster.as_dict(),
            "job_name": self.task.job,
            "task_index": self.task.task,
            "protocol": "mpi",
        }

    @staticmethod
    def create_local_server(config: Any = None, start: bool = True) -> Server:
        """Return the server of a cluster of this process alone, as its only task."""
        return Server({"local": ["localhost:0"]}, "local", 0, None, config, start)

    def start(self) -> None:
        """Do nothing: see `join`."""

    def join(self) -> None:
        """Serve the sessions of other tasks until all of these have ended, or are in `join`.

        Raises:
            MPIError: this process was forked from the task's.
        """
        job = self._running.job
        job.check_process("Server.join")
        others = frozenset(range(job.size)) - {self.rank}
        for rank in others:
            self.transport.tell(rank, 0, _JOIN, b"")
        while others - job.left - self._joined:
            self._serve_requests()
            self._idle += 1
            try:
                came = self.transport.wait(_TURN)
            except MPIError as error:
                self.check_lost(error)
                came = False
            finally:
                self._idle -= 1
            if not came:
                job.notice()

    def save_trace(self, trace: Trace, path: str | Path) -> None:
        """Write the traces that all tasks have of the same run, as one file.

        A process of the file is a task, and an arrow goes from each send to its receive. The clocks
        of different hosts are compared over MPI, to a few microseconds. `chrome://tracing` and
        https://ui.perfetto.dev open it.

        Args:
            trace: of this task: `session.run(..., trace=trace)`. In a session with `spmd=True` all
                tasks make this call, each with its own trace of the run. The trace of a run that
                drove other tasks has their parts already, and only its task makes the call.
            path: of the file. With `spmd=True` the process of rank 0 writes it.

        Example:
            >>> trace = tf.Trace()  # doctest: +SKIP
            >>> with tf.Session(server.target, spmd=True) as session:  # doctest: +SKIP
            ...     session.run(y, trace=trace)
            >>> server.save_trace(trace, "run.json")  # doctest: +SKIP
        """
        if trace.others is not None:
            rows = [timeline.Row(str(self.task), trace.began, trace.events)]
            rows += [timeline.Row(task, *part) for task, part in trace.others.items()]
            write_file(path, [timeline.merge(rows).encode()])
            return
        self._running.job.check_process("Server.save_trace")
        if self._spare is None:
            self._spare = channel("save_trace", None).mpi.COMM_WORLD.Dup()
        rows = timeline.gather(str(self.task), trace.began, trace.events, self._spare)
        if rows:
            write_file(path, [timeline.merge(rows).encode()])

    def _serve_to_the_end(self) -> None:
        """Serve while the process waits for the scripts of the others to end."""
        self._idle += 1
        self._running.others.append(self._serve_all)
        made = [_STEPS_MADE.pack(number, of.ended) for number, of in self._together.items()]
        self.tell_all(self.others, 0, _END, b"".join(made))

    def _serve_all(self) -> bool:
        self._serve_requests()
        return False

    def __repr__(self) -> str:
        return f"<Server of {self.task}, rank {self.rank}>"

    # ---- messages ----

    def _open(self) -> native.Transport:
        over = channel("Server", None)
        module = over.mpi
        world = module.COMM_WORLD
        self._communicators = world.Dup(), world.Dup()
        self._running.job.watched += self._communicators
        messages, payloads, byte = (
            module._handleof(each) & (1 << 64) - 1 for each in (*self._communicators, module.BYTE)
        )
        return native.Transport(
            module.__file__,
            messages,
            payloads,
            byte,
            module.ANY_SOURCE,
            self.rank,
            over.size,
            over.highest_tag,
            self._take_news,
            self._look,
            self._failed,
        )

    def _take_news(self, sender: int, step: int, kind: int, data: bytes) -> None:
        """Note what another task says; must not wait.

        Raises:
            MPIError: it is nothing that a task of this version says.
        """
        wanted = _SIZES.get(kind, 1)
        is_one = kind in (_RUN, _WAITS)
        if kind > _END or len(data) % wanted or (is_one and len(data) != wanted):
            raise MPIError(
                f"{self.tasks[sender]} says {len(data)} bytes of the kind {kind}, which no task of "
                "this version does; run the same dlbridge on all ranks"
            )
        if kind == _PLAN:
            self._parts[sender, step] = _ServedPart(self, data)
        elif kind == _FORGET:
            for number in np.frombuffer(data, np.uint64).tolist():
                self._parts.pop((sender, number), None)
        elif kind == _JOIN:
            self._joined.add(sender)
        elif kind == _END:
            self._made[sender] = dict(_STEPS_MADE.iter_unpack(data))
        elif kind == _WAITS:
            if self._is_awaited(step):
                self._waiting.setdefault(step, {})[sender] = _IDENTITY.unpack(data)
        elif kind in (_CLOCK, _EVENTS):
            self._take_times(sender, step, kind, data)
        elif kind == _RUN:
            self._take_request(sender, step, data)
        elif self._is_awaited(step):
            self._errors.setdefault(step, data)
            self.transport.fail(step)

    def _take_times(self, sender: int, number: int, kind: int, data: bytes) -> None:
        """Answer a question for the time, or keep another task's answer."""
        if kind == _EVENTS:
            replies = self._events.get(number, {})
            if sender in replies:
                replies[sender] = data
        elif not data:
            self.transport.tell(sender, number, _CLOCK, _TIME.pack(perf_counter_ns()))
        elif (sender, number) in self._clocks:
            self._clocks[sender, number] = _TIME.unpack_from(data)[0]

    def _take_request(self, sender: int, step: int, data: bytes) -> None:
        """Have a step run for another task."""
        self._active.add(step)
        (number,) = _PLAN_NUMBER.unpack(data)
        traced, plan = divmod(number, 1 << _PLAN_BITS)
        self._requests.append((sender, step, self._parts.get((sender, plan)), traced))
        if not self._idle:
            threading.Thread(target=self._serve_requests, daemon=True).start()

    def _is_awaited(self, step: int) -> bool:
        """Return whether a step is under way, or, of an SPMD session, yet to come."""
        if not step & _SPMD:
            return step in self._active or self.transport.runs(step)
        session, number = divmod(step & ~_SPMD, 1 << _COUNT_BITS)
        steps = self._together.get(session)
        return steps is None or number > steps.ended

    def _failed(self, _step: int) -> Exception:
        return _ElsewhereError()

    def _look(self, peers: frozenset[int] | None, step: int = 0, plan: int = 0) -> None:
        """Raise where a task for which a thread waits in a step cannot come."""
        job = self._running.job
        job.notice()
        self._raise_lost(peers or frozenset())
        if not step & _SPMD:
            return  # they serve until all scripts have ended, this one's as well
        self._compare_runs(step, plan)
        gone = job.gone(peers or frozenset())
        gone = frozenset(rank for rank in gone if not self._has_made(rank, step))
        if gone:
            raise UnavailableError(
                f"{self._names(gone)} has ended while {self.task} waits for it; with spmd=True all "
                "tasks make the same runs"
            )

    def _has_made(self, rank: int, step: int) -> bool:
        """Return whether a task whose script has ended had made an SPMD step before."""
        session, number = divmod(step & ~_SPMD, 1 << _COUNT_BITS)
        return number <= self._made.get(rank, {}).get(session, 0)

    def say_run(self, step: int, plan: int, compared: int) -> None:
        """Tell the other tasks which SPMD run a step is here; 0: a new one is compared."""
        for old in list(self._waiting):
            if not self._is_awaited(old):
                self._waiting.pop(old, None)
        self._waiting.setdefault(step, {})[self.rank] = plan, compared
        self.tell_all(self.others, step, _WAITS, _IDENTITY.pack(plan, compared))

    def _compare_runs(self, step: int, plan: int) -> None:
        """Say which run a step is that waits here, and raise where other tasks are in another one.

        A step ends on no task before all are in the same run of it.
        """
        base = step >> _COUNT_BITS << _COUNT_BITS
        made = self.compared.get(base, 0)
        if self._waiting.get(step, {}).get(self.rank) != (plan, made):
            self.say_run(step, plan, made)
        said = self._waiting[step]
        runs = [said[rank][0] if rank in said else 0 for rank in range(len(self.ranks))]
        try:
            if any(not other and compared >= made for other, compared in said.values()):
                self.compare[base](plan)  # what is new there may be known here
            elif all(runs):
                _check_same(runs, self.tasks)
        except (ArgumentError, OpError) as error:
            raise _OtherRunError from error

    def _names(self, ranks: frozenset[int]) -> str:
        return ", ".join(str(self.tasks[rank]) for rank in sorted(ranks))

    def _forget_lost(self) -> None:
        """Let what was under way with tasks that were lost fail here, instead of in a later run."""
        lost = self._running.job.lost
        if self._known_lost != lost:
            self._known_lost = lost
            self._finish()

    def _finish(self) -> None:
        nap, end = Nap(0.0), monotonic() + _TURN
        is_under_way = True
        while is_under_way and monotonic() < end:
            with suppress(MPIError):  # of one message; the others are looked at in the next turn
                is_under_way = self.transport.progress()
            nap.rest()

    def _raise_lost(self, peers: frozenset[int]) -> None:
        self._forget_lost()
        lost = self._running.job.lost & peers
        if lost:
            self._finish()  # what this run has sent to them
            raise UnavailableError(
                f"{self._names(lost)} was lost; runs that need none of its nodes go on"
            )

    def check_lost(self, error: MPIError) -> None:
        """Raise an error of MPI, unless it reports a process that was lost."""
        known = self._running.job.explain("Server", error, self.others)
        if known is error:
            raise error
        self._forget_lost()

    def lost_by(self, error: BaseException, ranks: frozenset[int]) -> BaseException:
        """Return the error of a step: UnavailableError where MPI fails for a lost task."""
        cause = error
        while not isinstance(cause, MPIError) and cause.__cause__ is not None:
            cause = cause.__cause__
        if isinstance(cause, MPIError):
            self._running.job.explain("Server", cause, ranks)
            try:
                self._raise_lost(ranks)
            except UnavailableError as found:
                found.__cause__ = error
                return found
        return error

    def tell_all(self, ranks: Collection[int], step: int, kind: int, data: bytes) -> None:
        """Tell all of these tasks that can still hear something; nothing in a forked child."""
        for rank in ranks:
            if self._running.job.is_there(rank):
                self.transport.tell(rank, step, kind, data)

    # ---- serving ----

    def check_step(self, step: int) -> None:
        """Raise if a step has failed on another task."""
        if step in self._errors:
            raise self._failed(step)

    def pause(self, rendezvous: native.Rendezvous) -> None:
        """Serve other tasks while a node waits for their runs; raise where they cannot come."""
        if self._requests:  # came while a thread was idle that waits now
            threading.Thread(target=self._serve_requests, daemon=True).start()
        self.transport.progress()
        step = rendezvous.step
        if (now := monotonic()) < self._next_look:
            return
        self._next_look = now + _LOOK
        self._look(rendezvous.peers, step, rendezvous.plan)
        driver = step >> _RANK_BITS
        if not step & _SPMD and driver != self.rank and driver in self._running.job.left:
            raise CancelledError(f"{self.tasks[driver]} has ended, whose run this is")

    def _serve_requests(self) -> None:
        while self._requests:
            try:
                request = self._requests.popleft()
            except not_from_handler(IndexError):  # another thread has it
                return
            self._serve(*request)

    def _serve(self, driver: int, step: int, part: _ServedPart | None, traced: int) -> None:
        """Run one step of a plan of another task, which waits for a trace of that, or 0."""
        trace = Trace() if traced else None
        try:
            if part is None:
                raise UnknownError(f"{self.task} has no such plan of {self.tasks[driver]}")
            if part.run(step, trace):
                self.transport.post(driver, step, _DONE + self.rank, b"")
        except BaseException as error:
            error = self.lost_by(error, self.others)
            if step not in self._errors:  # else the driver knows
                self.tell_all((driver,), step, _FAILED, self.describe(error))
            self.transport.give_up(step)
            if isinstance(error, KeyboardInterrupt | SystemExit) or is_from_handler(error):
                raise
        finally:
            self._active.discard(step)
            self._errors.pop(step, None)
            if trace is not None:
                said = timeline.encode(trace.began, trace.events)
                self.tell_all((driver,), traced, _EVENTS, said)

    # ---- traces of driven runs ----

    def next_trace(self) -> int:
        """Return the number of a traced run of this task."""
        return next(self._questions)

    @contextmanager
    def events(self, number: int, ranks: Collection[int]) -> Iterator[Callable[[Trace], None]]:
        """Keep what other tasks say of a traced run, and give what adds that to its trace."""
        replies: dict[int, bytes | None] = dict.fromkeys(ranks)

        def add_to(trace: Trace) -> None:
            found = {}
            for rank in replies:
                self._wait_for(rank, partial(self._has_come, replies, rank), trace)
                data = replies[rank] or b""
                clock, began, events = timeline.decode(data, str(self.tasks[rank]))
                ahead = timeline.lead(clock, partial(self._ask_time, rank, trace))
                found[str(self.tasks[rank])] = began - ahead, events
            trace.others = found

        try:
            try:
                self._events[number] = replies
                yield add_to
            finally:
                self._events.pop(number, None)
        finally:  # once more, for an interrupt of the first time
            self._events.pop(number, None)

    @staticmethod
    def _has_come(replies: dict[int, bytes | None], rank: int) -> bool:
        return replies[rank] is not None

    def _ask_time(self, rank: int, trace: Trace) -> int:
        """Return what the clock of another task says, within the time of a traced run."""
        asked = rank, next(self._questions)
        try:
            self._clocks[asked] = None
            self.transport.tell(*asked, _CLOCK, b"")
            self._wait_for(rank, lambda: self._clocks[asked] is not None, trace)
        finally:
            time = self._clocks.pop(asked, None)
        return cast("int", time)

    def _wait_for(self, rank: int, has_come: Callable[[], bool], trace: Trace) -> None:
        """Wait for what another task says of a traced run, within the time of that.

        Raises:
            DeadlineExceededError: the time is over.
            UnavailableError: it has ended.
        """
        limited = trace if isinstance(trace, DeadlineTrace) else None
        while not has_come():
            left = math.inf if limited is None else limited.end - monotonic()
            if limited is not None and left <= 0:
                raise limited.late()
            if not self.transport.wait(min(left, _TURN)):
                self._look(frozenset((rank,)))

    # ---- errors ----

    def describe(self, error: BaseException) -> bytes:
        """Return what is said of an error to other tasks."""
        if not isinstance(error, Exception):
            kind = type(error).__name__
            error = CancelledError(f"{kind}: the run was interrupted on {self.task}")
        known = error if isinstance(error, OpError) else failure(None, error)
        name = getattr(known.op, "name", None)
        text = {"code": known.error_code, "message": known.message, "node": name}
        return json.dumps({**text, "task": str(self.task)}).encode()

    def take_error(self, step: int, graph: Graph) -> OpError | None:
        """Return the error with which a step failed on another task, or None."""
        data = self._errors.get(step)
        return None if data is None else _read_error(data, graph)

    # ---- steps of sessions ----

    def _target(self, spmd: bool) -> targets.Target:
        return _Together(self) if spmd else _Driver(self)

    def check_process(self) -> None:
        """Refuse a run in a forked child, and one after MPI was finalised."""
        self._running.job.check_process("Session.run")

    def next_plan(self) -> int:
        """Return the number of a new plan of this task."""
        return next(self._plans)

    def next_session(self) -> native.StepNumbers:
        """Return the steps of a new SPMD session, with the same numbers on all tasks."""
        number = next(self._sessions)
        steps = native.StepNumbers(_SPMD | number << _COUNT_BITS)
        self._together[number] = steps
        return steps

    def drop_error(self, step: int) -> None:
        """Forget what was said of a step that has ended."""
        self._errors.pop(step, None)

    def release(self) -> None:
        """Release the variables of this task."""
        for each in self.resources.values():
            if isinstance(each, VariableState | QueueState):
                each.release()
        self.resources.clear()


def _read_error(data: bytes, graph: Graph) -> OpError:
    """Return the error that another task has described, about a node of `graph` if it has it."""
    try:
        said = json.loads(data)
        node, task, message, code = (said[key] for key in ("node", "task", "message", "code"))
    except not_from_handler(ValueError, KeyError, TypeError, RecursionError):  # another version's
        return UnknownError(
            f"another task failed, and says of it what cannot be read: {data!r:.200}"
        )
    kinds = {str(kind.code): kind for kind in OpError.__subclasses__()}
    op = None
    if isinstance(node, str):
        try:
            op = graph.get_operation_by_name(node)
        except not_from_handler(KeyError, ValueError):
            pass
    return kinds.get(str(code), UnknownError)(f"From {task}:\n{message}", op)


class _ServedPart:
    """A plan of another task's session, made when it first runs."""

    def __init__(self, server: Server, data: bytes) -> None:
        self._server = server
        self._data = data
        self._lock = registry.lock()
        self._made: LocalPart | None = None
        self._answers = True

    def run(self, step: int, trace: Trace | None) -> bool:
        """Run a step; return whether the driver waits for word of it."""
        with self._lock:
            if self._made is None:
                (size,) = _PLAN_NUMBER.unpack_from(self._data)
                start = _PLAN_NUMBER.size
                options = json.loads(self._data[start : start + size])
                targets_ = tuple(options.pop("targets"))
                part = Part(self._data[start + size :], targets=targets_)
                self._answers = options["answers"]
                self._made = _plan(self._server, part, options)
                self._data = b""
            rendezvous = self._made.ends.rendezvous
            try:
                rendezvous.step = step
                if trace is None:
                    self._made.plan.call()
                else:
                    trace.run(self._made.plan, ())
                rendezvous.flush()
            finally:
                rendezvous.end()
            return self._answers


def _options(runtime: Runtime, max_bytes: int | None) -> dict[str, Any]:
    """Return how the parts of a session run, as JSON has it."""
    return {
        "framework": runtime.framework,
        "seed": runtime.seed,
        "soft": runtime.soft,
        "compiled": sorted(runtime.compiled),
        "max_bytes": max_bytes,
    }


def _plan(
    server: Server,
    part: Part,
    options: Mapping[str, Any],
    keys: Sequence[Any] = (),
    to: str = "numpy",
    copy: bool = True,
    single: bool = False,
) -> LocalPart:
    most = options["max_bytes"]
    limit = None if most is None else Limit(most)
    ends = Ends(server.transport, server.ranks, server.near, limit, server.check_step, server.pause)
    ends.rendezvous.peers = server.others
    runtime = Runtime(
        options["framework"],
        options["seed"],
        options["soft"],
        frozenset(options["compiled"]),
        limit=limit,
        resources=server.resources,
        ends=ends,
    )
    return LocalPart(part, runtime, ends, keys, to, copy, single)


class _ClusterRunner:
    """Runs a fetch on a cluster: this task's part itself, those of others by what they are told.

    Attributes:
        call: called with one value for each key of the feed dict.
        size: about how many nodes its plan has.
    """

    def __init__(
        self, session: _Session, graph: Graph, fetch: Any, keys: Any, to: str, copy: bool
    ) -> None:
        server = session.server
        server.check_process()  # before other tasks hear of the plan
        if not graph.version:
            raise RuntimeError("The Session graph is empty. Add operations to the graph before.")
        self._server = server
        self._session = session
        self._graph = graph
        self._lock = registry.lock()
        self._fetches = fetched.resolve(graph, fetch)
        self._feeds = fed.resolve(graph, keys)
        found, given = self._fetches, self._feeds.tensors
        try:
            parts = cut(
                graph,
                found.tensors,
                found.targets,
                given,
                server.cluster.tasks(),
                session.default(),
                session.clients(),
            )
            self._local = _plan(
                server,
                parts[server.task],
                session.options,
                given,
                to,
                copy,
                single=found.build is None,
            )
        except Exception as error:
            session.refuse(error)
            raise
        # From then on only what one task does for itself can fail: NumPy's copies of results.
        ends_alone = to == "numpy" and session.options["max_bytes"] is None
        self._protocol = session.prepare(parts, ends_alone)
        self._local.ends.rendezvous.peers = self._protocol.ranks
        self._local.ends.rendezvous.plan = self._protocol.identity
        self.plan = self._local.plan
        self.size = sum(max(1, len(step.nodes)) for step in self.plan.steps)
        self.call = self._over(self.plan.call, self._protocol)

    def traced(self, trace: Trace) -> Callable[..., Any]:
        """Return the call whose steps on this task `trace` records, within its time."""
        rendezvous = self._local.ends.rendezvous

        def run(*values: Any) -> Any:
            if isinstance(trace, DeadlineTrace):
                rendezvous.limit(trace.end, trace.late())
            return trace.run(self.plan, values)

        is_looked_at = not isinstance(trace, DeadlineTrace) or trace.is_looked_at
        if is_looked_at and self._session.tells_everybody:
            return self._followed(run, trace)
        return self._over(run, self._protocol)

    def _followed(self, run: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
        """Return the call that adds the parts of the tasks that it drives to a trace."""
        server, told, request = self._server, self._protocol.told, self._protocol.request
        number = server.next_trace()
        (plan,) = _PLAN_NUMBER.unpack(request)
        request = _PLAN_NUMBER.pack(number << _PLAN_BITS | plan)
        call = self._over(run, self._protocol._replace(request=request))

        def followed(*values: Any) -> Any:
            trace.others = {}
            with server.events(number, told) as add_to:
                result = call(*values)
                add_to(trace)
            return result

        return followed

    def _over(self, program: Callable[..., Any], protocol: _Protocol) -> Callable[..., Any]:
        """Return what makes one step of each call of `program`."""
        build, spread = self._fetches.build, self._feeds.spread
        call: Callable[..., Any] = native.ClusterCall(
            self._local.ends.rendezvous,
            self._session.steps,
            program,
            len(self._feeds.tensors),
            self._local.numbers,
            self._lock,
            self._server.check_process,
            self._explain,
            protocol.told,
            _RUN,
            protocol.request,
            protocol.answers,
            protocol.rounds,
            protocol.every,
            len(self._server.ranks),
        )
        bare = call
        if spread is not None:

            def call(*values: Any) -> Any:
                return bare(*spread(values))

        if build is None:
            return call
        return lambda *values: build(call(*values))

    def _explain(self, step: int, error: BaseException) -> BaseException:
        """Tell the others that a step failed here; return the error to raise."""
        server, ranks = self._server, self._protocol.ranks
        if (other := _other_run(error)) is not None:
            server.transport.give_up(step)
            server.drop_error(step)
            return other
        error = server.lost_by(error, ranks)
        known = server.take_error(step, self._graph)
        if self._session.tells_everybody or known is None:
            server.tell_all(ranks, step, _ABORT, server.describe(error))
        server.transport.give_up(step)
        server.drop_error(step)
        if known is not None and isinstance(error, Exception):
            known.__suppress_context__ = True
            return known
        if isinstance(error, OpError):
            described = _read_error(server.describe(error), self._graph)
            described.__cause__ = error
            return described
        return error


class _Protocol(NamedTuple):
    """How the steps of one plan begin and end; see native.ClusterCall.

    Attributes:
        ranks: of the other tasks that take part.
        told, request: the ranks that are told to begin, and what they are told.
        answers: the edges at which tasks say that they are done.
        rounds: the first edge by which all end a step together, or 0.
        every: which steps they end so: those whose numbers are multiples of it.
        identity: of the run, where all tasks make it; or 0.
    """

    ranks: frozenset[int]
    told: tuple[int, ...] = ()
    request: bytes = b""
    answers: tuple[int, ...] = ()
    rounds: int = 0
    every: int = 1
    identity: int = 0


class _Session:
    """The part of a session that both kinds share.

    Attributes:
        steps: the numbers of its steps.
        tells_everybody: whether other tasks learn here of an error of one of them.
    """

    options: dict[str, Any]
    _graph: Graph
    tells_everybody = False

    def __init__(self, server: Server, steps: native.StepNumbers) -> None:
        self.server = server
        self.steps = steps

    def open(self, graph: Graph, runtime: Runtime, max_bytes: int | None) -> _Session:
        """Begin the session."""
        self._graph = graph
        self.options = _options(runtime, max_bytes)
        return self

    def runner(
        self,
        graph: Graph,
        runtime: Runtime,
        fetch: Any,
        keys: Any,
        to: str,
        copy: bool,
    ) -> _ClusterRunner:
        """Return what runs a fetch."""
        return _ClusterRunner(self, graph, fetch, keys, to, copy)

    def forget(self) -> None:
        """Drop the plans of other tasks."""

    def close(self) -> None:
        """End the session; the variables stay on their tasks."""
        self.forget()

    def default(self) -> Task:
        """Return the task of nodes that are placed nowhere."""
        raise NotImplementedError

    def clients(self) -> list[Task]:
        """Return the tasks that feed and fetch."""
        raise NotImplementedError

    def prepare(self, parts: Mapping[Task, Part], ends_alone: bool) -> _Protocol:
        """Make a plan known to the tasks that take part in it.

        Args:
            parts: of all tasks.
            ends_alone: whether a task may end a step without a word from those of which the values
                that it has received show that all their nodes have run.
        """
        raise NotImplementedError

    def refuse(self, error: Exception) -> None:
        """Hear why a plan cannot be made here."""


class _Driver(_Session):
    """A session whose task tells the others what to run."""

    tells_everybody = True

    def __init__(self, server: Server) -> None:
        super().__init__(server, server.steps)
        self._plans: list[tuple[int, int]] = []  # rank, number

    def default(self) -> Task:
        return self.server.task

    def clients(self) -> list[Task]:
        return [self.server.task]

    def prepare(self, parts: Mapping[Task, Part], ends_alone: bool) -> _Protocol:
        server, transport, number = self.server, self.server.transport, self.server.next_plan()
        heard = parts[server.task].heard if ends_alone else ()
        told, answers = [], []
        for task, part in parts.items():
            if part.targets and task != server.task:
                rank = server.ranks[str(task)]
                options = {**self.options, "targets": part.targets, "answers": task not in heard}
                head = json.dumps(options).encode()
                data = _PLAN_NUMBER.pack(len(head)) + head + part.graph
                transport.tell(rank, number, _PLAN, data)
                told.append(rank)
                if task not in heard:
                    answers.append(_DONE + rank)
                self._plans.append((rank, number))
        request = _PLAN_NUMBER.pack(number)
        return _Protocol(frozenset(told), tuple(told), request, tuple(answers))

    def forget(self) -> None:
        plans, self._plans = self._plans, []
        for rank in {rank for rank, _ in plans}:
            numbers = np.array([n for r, n in plans if r == rank], np.uint64)
            self.server.tell_all((rank,), 0, _FORGET, numbers.tobytes())


class _Together(_Session):
    """A session that all tasks make, with the same runs."""

    def __init__(self, server: Server) -> None:
        super().__init__(server, server.next_session())
        server.compare[self.steps.base] = self._compare

    def default(self) -> Task:
        return self.server.cluster.tasks()[0]

    def clients(self) -> list[Task]:
        return self.server.cluster.tasks()

    def prepare(self, parts: Mapping[Task, Part], ends_alone: bool) -> _Protocol:
        identity = self._agree(parts, ends_alone)
        all_know = ends_alone and all(part.heard.issuperset(parts) for part in parts.values())
        # A task without nodes is not heard: else the others could run ahead of it without end.
        every = _LEAD if all_know else 1
        return _Protocol(self.server.others, rounds=_ROUND, every=every, identity=identity)

    def _agree(self, parts: Mapping[Task, Part], ends_alone: bool) -> int:
        """Return the identity of the run; raise, on all tasks, unless all have cut it alike."""
        total = crc32(repr((self.options["max_bytes"], ends_alone)).encode())
        for task, part in parts.items():
            total = crc32(str(task).encode() + part.graph, total)
        total = max(total, 1)  # 0 is none
        self._compare_new(total)
        return total

    def refuse(self, error: Exception) -> None:
        """Let all tasks know; raise the error of the first that refuses, unless all have the same.

        Raises:
            OpError: the same one on all tasks.
        """
        self._compare_new(crc32(str(error).encode()), error)

    def _compare_new(self, total: int, error: Exception | None = None) -> None:
        """Compare a run before its first step.

        One that is refused has a number: other tasks may have been in a step of a run they know.
        """
        try:
            self._compare(total, error)
        except (ArgumentError, OpError):
            self.steps.skip()
            raise

    def _compare(self, total: int, error: Exception | None = None) -> None:
        base = self.steps.base
        count = self.server.compared.get(base, 0)
        self.server.say_run(base | self.steps.ended + 1, 0, count)
        said = mpi.allgather(np.array([base, total, error is not None], np.uint64))
        self.server.compared[base] = count + 1
        refusing = np.flatnonzero(said[:, 2]).tolist()
        if refusing and (said[:, 0] == said[0, 0]).all():
            if len(refusing) == len(said) and (said == said[0]).all():
                return
            said_by_first = None
            if self.server.rank == refusing[0]:
                assert error is not None
                said_by_first = np.frombuffer(self.server.describe(error), np.uint8)
            text = bytes(mpi.bcast(said_by_first, refusing[0]))
            raise _read_error(text, self._graph) from error
        _check_same(said.tolist(), self.server.tasks)


def _check_same(said: Sequence[object], tasks: Mapping[int, Task]) -> None:
    """Raise unless all tasks say the same of a run, each in its place by rank."""
    differing = [str(tasks[rank]) for rank, row in enumerate(said) if row != said[0]]
    if differing:
        raise ArgumentError(
            "Session.run: with spmd=True all tasks make the same runs of the same graph, in "
            f"sessions of the same max_bytes; those of {', '.join(differing)} differ from that of "
            f"{tasks[0]}"
        )


def _other_run(error: BaseException) -> BaseException | None:
    """Return what all tasks raise, if a step failed since they are in different runs."""
    cause: BaseException | None = error
    while cause is not None and not isinstance(cause, _OtherRunError):
        cause = cause.__cause__
    return None if cause is None else cause.__cause__


# ---- who is which task -------------------------------------------------------------------------


def _split(name: str) -> tuple[str, int]:
    job, _, task = name.removeprefix("/job:").partition("/replica:0/task:")
    return job, int(task)


def _own_task(
    cluster: ClusterSpec, job: str | None, index: int | None, rank: int, size: int
) -> Task:
    """Return the task of this process, without a look at others."""
    tasks = cluster.tasks()
    if job is None and index is None:
        return tasks[rank] if rank < len(tasks) else Task("", rank)
    if index is not None and (isinstance(index, bool) or not hasattr(index, "__index__")):
        raise UnsupportedTypeError(f"Server: task_index must be an integer, got {index!r}")
    if job is None and len(cluster.jobs) == 1:
        job = cluster.jobs[0]
    of_job = [each for each in tasks if each.job == job]
    if index is None and len(of_job) == 1:
        return of_job[0]
    wanted = Task(str(job), -1 if index is None else int(index))
    if wanted not in tasks:
        raise ArgumentError(
            f"Server: job_name {job!r} and task_index {index!r} are no task of {cluster!r}; this "
            f"is process {rank} of {size}"
        )
    return wanted


def _settle(cluster: ClusterSpec, task: Task) -> dict[str, int]:
    """Return the rank of each task, by what all processes say.

    Raises:
        ArgumentError: on all of them: they have different clusters, or do not make up this one.
    """
    tasks = cluster.tasks()
    number = tasks.index(task) if task in tasks else -1
    spec = json.dumps(cluster.as_dict(), sort_keys=True).encode()
    said = mpi.allgather(np.array([crc32(spec), number], np.int64))
    names = [
        str(tasks[i] if 0 <= i < len(tasks) else Task("", rank))
        for rank, i in enumerate(said[:, 1].tolist())
    ]
    wanted = sorted(map(str, tasks))
    if (said[:, 0] != said[0, 0]).any():
        raise ArgumentError(
            f"Server: the processes of this job have different clusters; that of {task} is "
            f"{cluster!r}"
        )
    if sorted(names) != wanted:
        raise ArgumentError(
            f"Server: each process of the MPI job must be one task of the cluster; the processes "
            f"are {names}, the tasks {wanted}; start as many with mpiexec -n {len(wanted)}"
        )
    return {each: rank for rank, each in enumerate(names)}

"""Batches of a loader as trees of another framework's tensors, converted ahead in a thread.

A Stream, the consumer's end, and the thread share a `_Feed` and nothing else: a Stream that nobody
has any more is freed, and its thread ends. Between the two there are no locks, which an interrupt
could leave locked. Each side changes the state first and then puts a token for the other side, and
looks at the state again before it waits for a token.
"""

from __future__ import annotations

import atexit
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from operator import index
from queue import Empty, SimpleQueue
from threading import Thread, current_thread, get_ident
from types import TracebackType
from typing import Any, Literal, NamedTuple, Self, Unpack

from dlbridge import registry
from dlbridge._core import native
from dlbridge.cuda.driver import NONE, wait_for
from dlbridge.errors import ArgumentError, DLBridgeError, ExchangeError
from dlbridge.exchange import adapter, exchange, protocol, trees
from dlbridge.exchange.context import (
    Policies,
    Receipt,
    is_recording,
    receipts,
    record,
    unrecorded_context,
)
from dlbridge.signals import not_from_handler


def stream(
    iterable: Iterable[Any],
    /,
    to: object,
    *,
    prefetch: int = 2,
    fresh: bool | None = None,
    unknown: Literal["refuse", "keep"] = "refuse",
    **policies: Unpack[Policies],
) -> Stream:
    """Return an iterator over the batches of `iterable`, converted for the framework `to`.

    A thread takes the batches of the iterable, a DataLoader, a tf.data or grain pipeline or a
    generator, and converts them, as `convert_tree` does, while the consumer works on earlier ones.
    Each batch comes once, in its order. What the iterable or a conversion raises is raised after
    the batches before it, with its traceback; so it is again by each further `next`.

    The thread ends with the last batch, with `close()`, the end of a `with` block, when the Stream
    is dropped, as `for` does after `break`, and with the program. It first ends the batch that the
    iterable is making; `close` and the end of a `with` block wait for that. An iterator that has
    a `close` is closed when it is left early: it has made batches ahead that nobody will see.

    **Memory.** A generator may fill one buffer again and again, so that what would be shared is
    copied, unless the memory is known not to be written again: values of JAX and TensorFlow, the
    batches of a torch DataLoader with the default collate function, of a tf.data.Dataset or its
    `as_numpy_iterator()`, and of another Stream. `fresh` overrules this.

    Args:
        iterable: makes the batches, trees as of `convert_tree`; `iter` is called here, what follows
            in the thread, with the present context variables and the present device for new
            arrays, of `jax.default_device` or `tf.device`. Other settings that a framework keeps
            for each thread, such as `jax.enable_x64()` in a `with` block, do not hold there.
        to: the framework, as of `convert`.
        prefetch: how many batches are made ahead at most, at least 1.
        fresh: True if each batch has memory of its own that nobody writes again: it is then shared
            as by `convert_tree`. False copies always. None finds out as above.
        unknown: as of `convert_tree`.
        **policies: as of `convert_tree`.

    Returns:
        A Stream: an iterator for one thread at a time, and a context manager.

    Raises:
        ArgumentError: the target, a policy or an argument is unknown, or `iterable` is none.
        FrameworkMissingError: the framework is not installed.

    Example:
        >>> import numpy
        >>> batches = ({"x": numpy.full(2, i)} for i in range(3))
        >>> with stream(batches, "dlbridge") as ahead:
        ...     [batch["x"].tolist() for batch in ahead]
        [[0, 0], [1, 1], [2, 2]]
    """
    framework = exchange.check("stream", to, policies)
    if unknown not in ("refuse", "keep"):
        raise ArgumentError(f"stream: unknown must be one of 'refuse', 'keep', got {unknown!r}")
    if fresh is not None and not isinstance(fresh, bool):
        raise ArgumentError(f"stream: fresh must be one of None, True, False, got {fresh!r}")
    ahead = _check_prefetch(prefetch)
    iterator = _iterator_of(iterable)
    if fresh is None and _gives_new_memory(iterable):
        fresh = True
    scope = framework.device_scope()
    conversion = _Conversion(protocol.describe(iterable), to, fresh, unknown, policies, scope)
    return Stream(framework.name, iterator, conversion, ahead)


class StreamRow(NamedTuple):
    """Tensors of a stream that came in the same way.

    Attributes:
        source: the framework of the batches.
        copied_by: who copied, or None for shared memory; as in a Receipt.
        why: the reason code of the copy, or None.
        tensors: how many.
        nbytes: their size in bytes.
    """

    source: str
    copied_by: str | None
    why: str | None
    tensors: int
    nbytes: int


class StreamReport:
    """What a stream has handed out so far; `str` of it is a table.

    Attributes:
        target: the framework that the batches went to.
        batches: how many were handed out.
        rows: one StreamRow for each way in which tensors came, those of most bytes first.
    """

    __slots__ = ("batches", "rows", "target")

    def __init__(self, target: str, batches: int, rows: tuple[StreamRow, ...]) -> None:
        self.target = target
        self.batches = batches
        self.rows = rows

    @property
    def nbytes_copied(self) -> int:
        """Return how many bytes of tensors were copied."""
        return sum(row.nbytes for row in self.rows if row.copied_by is not None)

    def __str__(self) -> str:
        table = [("from", "memory", "tensors", "bytes")]
        table += [
            (row.source, _memory(row), f"{row.tensors:,}", f"{row.nbytes:,}") for row in self.rows
        ]
        wide = [max(map(len, column)) for column in zip(*table, strict=True)]
        lines = [
            f"{source:{wide[0]}}  {memory:{wide[1]}}  {tensors:>{wide[2]}}  {nbytes:>{wide[3]}}"
            for source, memory, tensors, nbytes in table
        ]
        return "\n".join([f"{self.batches:,} batches to {self.target}", *lines])

    def __repr__(self) -> str:
        copied = self.nbytes_copied
        return f"<StreamReport of {self.batches} batches to {self.target}: {copied} bytes copied>"


def _memory(row: StreamRow) -> str:
    return "shared" if row.copied_by is None else f"copied by {row.copied_by} ({row.why})"


class Stream(Iterator[Any]):
    """Batches that a thread converts ahead: what `dlbridge.stream` returns."""

    __slots__ = ("__weakref__", "_feed", "_given", "_inside", "_target", "_thread", "_totals")

    _feed: _Feed
    _thread: Thread

    def __init__(
        self, target: str, iterator: Iterator[Any], conversion: _Conversion, prefetch: int
    ) -> None:
        self._target = target
        self._given = 0
        self._totals: _Totals = {}
        self._inside: dict[str, int] = {}
        feed = _Feed(prefetch)
        feed.thread = Thread(
            target=unrecorded_context().run,
            args=(_work, feed, iterator, conversion),
            name=f"dlbridge.stream to {target}",
            daemon=True,  # else the program would wait for it before it is told to end
        )
        self._feed, self._thread = feed, feed.thread
        atexit.register(feed.leave)
        native.defer_signals(self._thread.start)  # else threading drops a thread that has begun

    def __iter__(self) -> Stream:
        return self

    def __next__(self) -> Any:
        inside = self._inside
        if inside.setdefault("thread", get_ident()) != get_ident():
            raise ArgumentError(
                "stream: another thread is waiting for the next batch; a stream is for one thread "
                "at a time"
            )
        try:
            entry = self._feed.head()
            if entry is None:
                raise self._end()
            if is_recording():
                for receipt in entry.receipts:
                    record(receipt)
            entry.receipts = ()
            given = self._given + 1
        except BaseException:
            inside.pop("thread", None)
            raise
        # Handlers of signals run after calls and where loops begin again. There is none of these
        # from here on: an interrupted `next` has handed out nothing, and the batch comes again.
        batch = entry.batch
        entry.batch = None
        entry.is_given = True
        self._given = given
        self._totals = entry.totals
        del inside["thread"]
        return batch

    def _end(self) -> BaseException:
        """Return what is raised in place of a batch, once the thread has ended."""
        feed = self._feed
        if feed.is_stopped:
            return StopIteration()
        self._thread.join()  # it has said that it ends
        if feed.error is None:
            return StopIteration()
        return feed.error.with_traceback(feed.traceback)

    def close(self) -> None:
        """End the thread and drop the batches made ahead; wait for the one that is being made.

        Raises:
            BaseException: what closing the iterable's iterator has raised.
        """
        self._feed.leave()
        if self._thread is not current_thread():
            self._feed.entries.clear()
        error = self._feed.failed_close
        if error is not None:
            self._feed.failed_close = None
            raise error

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def __del__(self) -> None:
        feed = getattr(self, "_feed", None)
        if feed is not None:  # no waiting here: the collector may run while anything is locked
            feed.is_dropped = True
            feed.stop()
            if not feed.has_thread():
                atexit.unregister(feed.leave)

    def __repr__(self) -> str:
        return f"<dlbridge.Stream to {self._target}, {self._given} batches handed out>"

    def __reduce__(self) -> Any:
        raise TypeError("a dlbridge.Stream has a thread of its own and cannot be pickled or copied")

    def report(self) -> StreamReport:
        """Return what was shared and what was copied, by whom and why, in the batches handed out.

        Example:
            >>> import numpy
            >>> with stream([numpy.ones(2), numpy.ones(2)], "numpy") as ahead:
            ...     _ = list(ahead)
            >>> print(ahead.report())
            2 batches to numpy
            from   memory                         tensors  bytes
            numpy  copied by dlbridge (requested)       2     32
        """
        totals = self._totals
        rows = [StreamRow(*way, *sums) for way, sums in totals.items()]
        rows.sort(key=lambda row: -row.nbytes)
        return StreamReport(self._target, self._given, tuple(rows))


# ---- between the two threads ---------------------------------------------------------------------

# By source, copied_by and why: the number of tensors and of bytes. Never changed once it is made.
_Totals = dict[tuple[str, str | None, str | None], tuple[int, int]]


# Seconds of a wait after which Python looks for signals: where polars has put its handler of SIGINT
# in the place of Python's, a signal ends no wait.
_LOOK = 1.0


class _Entry:
    """One batch, ready to be handed out.

    Attributes:
        number: of the batch, from 0.
        batch: converted; None once it is given.
        receipts: of its tensors.
        totals: of all batches up to this one.
        is_given: whether it was handed out.
    """

    __slots__ = ("batch", "is_given", "number", "receipts", "totals")

    def __init__(self, number: int, batch: Any, made: list[Receipt], totals: _Totals) -> None:
        self.number = number
        self.batch = batch
        self.receipts = tuple(made)
        self.totals = totals
        self.is_given = False


class _Feed:
    """The state that a Stream and its thread share.

    Attributes:
        entries: batches in their order; the first may be given already.
        made: how many batches the thread has put into `entries`.
        claimed: how many the consumer has asked for, as the thread sees it.
        is_stopped: whether the consumer wants no more.
        is_dropped: whether there is no consumer any more.
        is_ended: whether the thread makes no more; set after all else.
        error: what the iterable or a conversion raised in place of the next batch, or None.
        failed_close: what closing the iterator raised, or None.
        room, ready: tokens for the thread, and for the consumer: the state has changed.
    """

    __slots__ = (
        *("claimed", "entries", "error", "failed_close", "is_dropped", "is_ended"),
        *("is_stopped", "made", "prefetch", "process", "ready", "room", "thread", "traceback"),
    )

    thread: Thread

    def __init__(self, prefetch: int) -> None:
        self.prefetch = prefetch
        self.process = os.getpid()
        self.entries: deque[_Entry] = deque()
        self.made = 0
        self.claimed = 0
        self.is_stopped = False
        self.is_dropped = False
        self.is_ended = False
        self.error: BaseException | None = None
        self.traceback: TracebackType | None = None
        self.failed_close: BaseException | None = None
        self.room: SimpleQueue[None] = SimpleQueue()
        self.ready: SimpleQueue[None] = SimpleQueue()

    # ---- the consumer's side ----

    def head(self) -> _Entry | None:
        """Wait for the next batch and return its entry, or None at the end.

        It is the same entry until it is marked as given, however often the wait is interrupted.
        """
        self._check_process()
        while not self.is_stopped:
            is_ended = self.is_ended  # before the look at the entries, the last of which it follows
            while self.entries and self.entries[0].is_given:
                self.entries.popleft()
            if self.entries:
                entry = self.entries[0]
                self.claimed = entry.number + 1
                self.room.put(None)
                if not self.ready.empty():  # or tokens would pile up
                    self.ready.get_nowait()
                return entry
            if is_ended:
                return None
            try:
                self.ready.get(timeout=_LOOK)
            except Empty:
                pass
        return None

    def _check_process(self) -> None:
        if self.process != os.getpid():
            raise ArgumentError(
                "stream: this process was forked from the one that made the stream, and has not "
                "its thread; make a stream in each process"
            )

    def stop(self) -> None:
        """Have the thread end."""
        if self.process == os.getpid():
            self.is_stopped = True
            self.room.put(None)

    def leave(self) -> None:
        """Have the thread end, and wait for it."""
        self.stop()
        if self.has_thread() and self.thread is not current_thread():
            self.thread.join()

    def has_thread(self) -> bool:
        """Return whether the thread was started, in this process."""
        return self.process == os.getpid() and self.thread.ident is not None

    # ---- the side of the thread ----

    def has_room(self) -> bool:
        """Wait until one more batch may be made; return False where no more is wanted."""
        while not self.is_stopped and self.made - self.claimed >= self.prefetch:
            self.room.get()
        return not self.is_stopped

    def put(self, entry: _Entry) -> None:
        """Add a batch."""
        self.entries.append(entry)
        self.made += 1
        self.ready.put(None)

    def end(self, error: BaseException | None) -> None:
        """Say that there are no more batches, but perhaps an error."""
        if error is not None:
            # Without the frames of this thread's loop, which have this object. Outermost first.
            trace = error.__traceback__
            while trace is not None and trace.tb_frame.f_code in _LOOP:
                trace = trace.tb_next
            self.error, self.traceback = error.with_traceback(trace), trace
        self.is_ended = True
        self.ready.put(None)


# ---- the thread ----------------------------------------------------------------------------------


def _work(feed: _Feed, iterator: Iterator[Any], conversion: _Conversion) -> None:
    """Make batches until there are no more, or no more are wanted."""
    error = None
    try:
        with conversion.scope():
            _make_all(feed, iterator, conversion)
    except BaseException as raised:  # noqa: BLE001  (the consumer raises it)
        error = raised
    try:
        if feed.is_stopped:
            _close(iterator)
    except BaseException as raised:  # noqa: BLE001  (`close` raises it)
        feed.failed_close = raised
    feed.end(error)
    atexit.unregister(feed.leave)
    if feed.is_dropped and feed.failed_close is not None:  # nobody else will tell
        raise feed.failed_close


def _make_all(feed: _Feed, iterator: Iterator[Any], conversion: _Conversion) -> None:
    totals: _Totals = {}
    while feed.has_room():
        batch = _next(iterator, feed.made)
        if batch is _NONE:
            return
        with receipts() as log:  # not of what the iterable itself converts
            made = conversion.convert(batch, feed.made)
        _finish(log)
        totals = _sum(totals, log)
        feed.put(_Entry(feed.made, made, log, totals))
        del batch, made


_LOOP = (_work.__code__, _make_all.__code__)
_NONE = object()


def _next(iterator: Iterator[Any], number: int) -> Any:
    try:
        return next(iterator, _NONE)
    except BaseException as error:
        _note(error, number)
        raise


def _note(error: BaseException, number: int) -> None:
    error.add_note(f"in batch {number} of dlbridge.stream, counted from 0")


def _close(iterator: Iterator[Any]) -> None:
    close = getattr(iterator, "close", None)
    if callable(close):
        close()


def _finish(log: list[Receipt]) -> None:
    """Wait for work on CUDA memory: the consumer's thread has a current stream of its own."""
    for number, device in {(each.stream, each.device) for each in log}:
        if number is not None and number != NONE and device is not None:
            wait_for(number, device.id)


def _sum(totals: _Totals, log: list[Receipt]) -> _Totals:
    made = dict(totals)
    for each in log:
        way = each.source, each.copied_by, each.why
        tensors, nbytes = made.get(way, (0, 0))
        made[way] = tensors + 1, nbytes + (each.nbytes or 0)
    return made


class _Conversion:
    """How the batches of one stream are converted.

    Attributes:
        maker: the class of the iterable, for texts.
        is_fresh: whether the memory of the batches is not written again; None: it depends on what
            is in the batch.
        scope: makes the context of the thread.
    """

    __slots__ = ("is_fresh", "maker", "policies", "scope", "to", "unknown")

    def __init__(
        self,
        maker: str,
        to: object,
        is_fresh: bool | None,
        unknown: Literal["refuse", "keep"],
        policies: Policies,
        scope: Callable[[], AbstractContextManager[Any]],
    ) -> None:
        self.maker = maker
        self.scope = scope
        self.to = to
        self.is_fresh = is_fresh
        self.unknown = unknown
        self.policies = policies

    def convert(self, batch: Any, number: int) -> Any:
        """Return the batch converted, a copy where its memory may be written again."""
        try:
            policies = self.policies
            if not self._may_share(batch):
                policies = self._copying()
            return trees.convert_tree(batch, self.to, unknown=self.unknown, **policies)
        except DLBridgeError as error:
            text = str(error).removeprefix("convert_tree: ").removeprefix("stream: ")
            error.args = (f"stream: batch {number}: {text}",)
            raise
        except not_from_handler(StopIteration) as error:
            _note(error, number)
            raise RuntimeError(f"stream: batch {number}: a tensor raised StopIteration") from error
        except BaseException as error:
            _note(error, number)
            raise

    def _may_share(self, batch: Any) -> bool:
        if self.is_fresh is not None:
            return self.is_fresh
        if self.policies.get("copy") is True:
            return True  # nothing will be shared
        items = batch.values() if type(batch) is dict else batch
        if type(batch) in (dict, list, tuple) and any(map(_is_mutable, items)):
            return False  # no walk through the rest
        return all(_is_immutable(leaf) for _, leaf in trees.tensors_of(batch, keeps_unknown=True))

    def _copying(self) -> Policies:
        policies = self.policies.copy()
        if policies.get("copy") is False:
            raise ExchangeError(
                "copy_required",
                f"stream: the {self.maker} may write into the memory of a batch again, and "
                "copy=False forbids the copy that keeps it; pass fresh=True if each batch has "
                "memory of its own, or copy=None",
            )
        policies["copy"] = True
        return policies


def _is_mutable(leaf: Any) -> bool:
    found = adapter.adapter_of_type(type(leaf))
    return found is not None and not found.immutable


def _is_immutable(leaf: Any) -> bool:
    found = adapter.adapter_of_type(type(leaf))
    return found is not None and found.immutable and type(leaf) is found.array_type()


# ---- arguments -----------------------------------------------------------------------------------


def _check_prefetch(prefetch: Any) -> int:
    if not isinstance(prefetch, bool) and hasattr(prefetch, "__index__") and index(prefetch) > 0:
        return index(prefetch)
    raise ArgumentError(
        f"stream: prefetch must be a number of batches, at least 1, got {prefetch!r}; without a "
        "thread, call convert_tree in the loop"
    )


def _iterator_of(iterable: Any) -> Iterator[Any]:
    if isinstance(iterable, (Mapping, str, bytes)):
        raise ArgumentError(
            f"stream: a {protocol.describe(iterable)} is not an iterable of batches; pass a "
            "loader, a generator or a list of trees"
        )
    try:
        return iter(iterable)
    except not_from_handler(TypeError) as error:
        if not hasattr(type(iterable), "__iter__") and not hasattr(type(iterable), "__getitem__"):
            raise ArgumentError(
                f"stream: {protocol.describe(iterable)} is not iterable; pass a loader, a "
                "generator or a list of trees"
            ) from error
        raise


def _gives_new_memory(iterable: Any) -> bool:
    if isinstance(iterable, Stream):
        return True
    row = registry.row_of_root(protocol.root_module(type(iterable)))
    return row is not None and adapter.adapter(row.name).gives_new_memory(iterable)

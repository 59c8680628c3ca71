"""Batches that a thread converts ahead: each once, in order, and nothing left in the end."""

from __future__ import annotations

import contextvars
import copy
import gc
import pickle
import signal
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from itertools import islice
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import ArgumentError, ExchangeError, UnsupportedTypeError, stream
from dlbridge.exchange.stream import _Feed

WAIT = 60  # seconds until a wait that should be over is a failure


def batches(count: int, size: int = 4) -> Iterator[dict[str, Any]]:
    for i in range(count):
        yield {"x": np.full(size, i, np.float32), "n": i}


def numbers(made: Any) -> list[int]:
    return [int(batch["x"][0]) for batch in made]


# ---- batches -------------------------------------------------------------------------------------


@pytest.mark.parametrize("prefetch", [1, 2, 7, np.int64(3)])
def test_each_batch_comes_once_and_in_order(prefetch: Any) -> None:
    ahead = stream(batches(20), "numpy", prefetch=prefetch)
    assert iter(ahead) is ahead
    assert numbers(ahead) == list(range(20))
    assert not ahead._thread.is_alive()
    with pytest.raises(StopIteration):
        next(ahead)


def test_at_most_prefetch_batches_are_made_ahead() -> None:
    made: list[int] = []
    third = threading.Event()

    def make() -> Iterator[Any]:
        for i in range(10):
            made.append(i)
            if i == 2:
                third.set()
            yield np.ones(1)

    with stream(make(), "numpy", prefetch=2) as ahead:
        next(ahead)
        assert third.wait(WAIT)  # one is handed out, and two are made
        assert ahead._feed.made - ahead._feed.claimed <= 2
    assert made == [0, 1, 2]


def test_the_tree_and_the_policies_are_those_of_convert_tree(framework: Any) -> None:
    framework("jax")
    x = np.arange(3)
    tree = {"a": [x, (x, "name")], "b": 7}
    (batch,) = stream([tree], to="jax", narrow="checked")
    again = dlbridge.convert_tree(tree, "jax", narrow="checked")
    assert str(batch) == str(again)
    assert batch["a"][0] is batch["a"][1][0]  # tied in the tree, tied in the batch
    with pytest.raises(ExchangeError, match=r'^stream: batch 0: .*narrow="checked"') as caught:
        next(stream([tree], "jax"))
    assert caught.value.reason == "dtype"


@pytest.mark.parametrize(
    ("keywords", "text"),
    [
        ({"to": "nump"}, "stream: unknown framework 'nump'.*numpy"),
        ({"narow": "checked"}, "stream: unknown policy 'narow'.*narrow"),
        ({"layout": "c"}, "stream: layout must be one of"),
        ({"prefetch": 0}, "stream: prefetch must be a number of batches, at least 1, got 0"),
        ({"prefetch": True}, "stream: prefetch must be"),
        ({"prefetch": 1.0}, "stream: prefetch must be"),
        ({"unknown": "drop"}, "stream: unknown must be one of"),
        ({"fresh": "yes"}, "stream: fresh must be one of"),
    ],
)
def test_arguments_are_checked_before_the_first_batch(keywords: Any, text: str) -> None:
    made = batches(3)
    with pytest.raises(ArgumentError, match=text):
        stream(made, **{"to": "numpy", **keywords})
    assert len(list(made)) == 3


@pytest.mark.parametrize("iterable", [{"x": np.ones(2)}, "text", b"bytes", 3, None])
def test_an_object_without_batches_is_refused(iterable: Any) -> None:
    with pytest.raises(ArgumentError, match=r"^stream: .*pass a loader, a generator or a list"):
        stream(iterable, "numpy")


# ---- memory --------------------------------------------------------------------------------------


def overwriting(count: int) -> Iterator[Any]:
    buffer = np.empty(4, np.float32)
    for i in range(count):
        buffer[:] = i
        yield {"x": buffer}


def test_a_buffer_that_is_filled_again_is_copied() -> None:
    assert numbers(list(stream(overwriting(5), "numpy", prefetch=3))) == [0, 1, 2, 3, 4]


def test_memory_is_shared_if_the_caller_knows_it_to_be_new() -> None:
    made = [{"x": np.ones(4)} for _ in range(3)]
    shared = list(stream(made, "dlbridge", fresh=True))
    assert [b["x"].data_ptr for b in shared] == [m["x"].ctypes.data for m in made]
    shared = list(stream(made, "dlbridge", fresh=True, copy=False))
    assert [b["x"].data_ptr for b in shared] == [m["x"].ctypes.data for m in made]
    copied = stream(made, "dlbridge", fresh=True, copy=True)
    assert all(b["x"].data_ptr != m["x"].ctypes.data for b, m in zip(copied, made, strict=True))


def test_a_copy_that_is_forbidden_and_needed_is_refused() -> None:
    with pytest.raises(ExchangeError, match=r"batch 0: the generator .*fresh=True") as caught:
        next(stream(overwriting(2), "numpy", copy=False))
    assert caught.value.reason == "copy_required"


def test_values_of_jax_are_shared_from_any_generator(framework: Any) -> None:
    jnp = framework("jax.numpy")
    made = [{"x": jnp.ones(16)} for _ in range(3)]
    for batch, value in zip(stream(iter(made), "dlbridge"), made, strict=True):
        assert batch["x"].data_ptr == value["x"].unsafe_buffer_pointer()
    mixed = [{"x": jnp.ones(16), "y": np.ones(2)}]
    (batch,) = stream(mixed, "dlbridge")
    assert batch["y"].data_ptr != mixed[0]["y"].ctypes.data


def test_batches_of_a_torch_loader_are_shared(framework: Any) -> None:
    torch = framework("torch")
    data = torch.utils.data
    x = torch.arange(12.0).reshape(6, 2)
    loader = data.DataLoader(data.TensorDataset(x), batch_size=2)
    for loading in (loader, iter(loader)):
        ahead = stream(loading, "numpy")
        assert [batch[0].tolist() for batch in ahead] == x.reshape(3, 2, 2).tolist()
        assert [row.copied_by for row in ahead.report().rows] == [None]


def test_batches_of_a_torch_loader_with_a_buffer_of_its_own_are_copied(framework: Any) -> None:
    torch = framework("torch")
    data = torch.utils.data
    x, buffer = torch.arange(12.0).reshape(6, 2), torch.empty(2, 2)
    collating = data.DataLoader(
        x, batch_size=2, collate_fn=lambda rows: torch.stack(rows, out=buffer)
    )
    assert [batch.tolist() for batch in list(stream(collating, "numpy"))] == x.reshape(
        3, 2, 2
    ).tolist()
    rows = data.DataLoader(x, batch_size=None)  # each is a view of the data
    (first, *_) = list(stream(rows, "torch"))
    first.zero_()
    assert x[0].tolist() == [0, 1]
    assert x[0].data_ptr() != first.data_ptr()


@pytest.mark.preloaded("torch")
def test_a_torch_loader_with_processes_of_its_own(framework: Any, run_python: Any) -> None:
    framework("torch")
    run = run_python(
        """
        import torch, dlbridge
        from torch.utils.data import DataLoader, TensorDataset

        x = torch.arange(24.0).reshape(12, 2)
        loader = DataLoader(TensorDataset(x), batch_size=2, num_workers=1)
        ahead = dlbridge.stream(loader, "numpy")
        print([batch[0].tolist() for batch in ahead] == x.reshape(6, 2, 2).tolist())
        print(ahead.report().nbytes_copied)
        with dlbridge.stream(loader, "numpy") as ahead:
            print(next(ahead)[0].tolist())
        """
    )
    assert run.stdout.splitlines() == ["True", "0", "[[0.0, 1.0], [2.0, 3.0]]"], run.stderr
    assert run.returncode == 0


def test_text_of_a_dataset_stays_beside_its_numbers(framework: Any) -> None:
    tf = framework("tensorflow")
    data = tf.data.Dataset.from_tensor_slices({"x": [1.0, 2.0], "name": ["a", "b"]}).batch(2)
    (batch,) = dlbridge.stream(data, "numpy")
    assert batch["x"].tolist() == [1.0, 2.0]
    assert batch["name"].numpy().tolist() == [b"a", b"b"]
    (batch,) = dlbridge.stream(data.as_numpy_iterator(), "numpy", readonly="share")
    assert batch["name"].tolist() == [b"a", b"b"]


@pytest.mark.parametrize("as_numpy", [False, True])
def test_batches_of_a_tensorflow_dataset_are_shared(framework: Any, as_numpy: bool) -> None:
    tf = framework("tensorflow")
    x = np.arange(64, dtype=np.float32).reshape(4, 16)
    data = tf.data.Dataset.from_tensor_slices({"x": x}).batch(2)
    ahead = stream(data.as_numpy_iterator() if as_numpy else data, "dlbridge")
    made = list(ahead)
    assert np.array_equal(np.concatenate([batch["x"] for batch in made]), x)
    assert [row.copied_by for row in ahead.report().rows] == [None]


def test_batches_of_grain_are_copied_unless_they_are_fresh(framework: Any) -> None:
    grain = framework("grain")
    data = [{"x": np.full(4, i, np.float32), "y": np.int64(i)} for i in range(12)]
    pipeline = grain.MapDataset.source(data).batch(3).to_iter_dataset()
    for fresh, copied in ((None, 4 * (48 + 24)), (True, 0)):
        ahead = stream(pipeline, "dlbridge", fresh=fresh)
        assert [batch["y"].tolist() for batch in ahead] == np.arange(12).reshape(4, 3).tolist()
        assert ahead.report().nbytes_copied == copied
    with stream(iter(pipeline), "dlbridge") as ahead:
        next(ahead)


# ---- errors --------------------------------------------------------------------------------------


def failing(error: BaseException) -> Iterator[Any]:
    yield from batches(2)
    raise error


@pytest.mark.parametrize("error", [ValueError("bad row"), KeyboardInterrupt(), SystemExit(3)])
def test_an_error_comes_after_the_batches_before_it_with_its_traceback(
    error: BaseException,
) -> None:
    ahead = stream(failing(error), "numpy", prefetch=5)
    assert numbers([next(ahead), next(ahead)]) == [0, 1]
    depths = set()
    for _ in range(3):  # it stays the end of the stream
        with pytest.raises(type(error)) as caught:
            next(ahead)
        assert caught.value is error
        frames = traceback.extract_tb(error.__traceback__)
        assert [frame.name for frame in frames][-1] == "failing"
        depths.add(len(frames))
    assert len(depths) == 1
    assert error.__notes__ == ["in batch 2 of dlbridge.stream, counted from 0"]
    assert not ahead._thread.is_alive()


def test_an_error_of_the_conversion_names_batch_and_path() -> None:
    ahead = stream([{"x": np.ones(2)}, {"x": [1, object()]}], "numpy")
    next(ahead)
    with pytest.raises(UnsupportedTypeError, match=r"^stream: batch 1: the object at \['x'\]\[1\]"):
        next(ahead)


def test_a_stop_iteration_of_a_tensor_does_not_look_like_the_end() -> None:
    class Odd:
        def __dlpack_device__(self) -> Any:
            return 1, 0

        @property
        def __dlpack__(self) -> Any:
            raise StopIteration

    with pytest.raises((RuntimeError, ExchangeError)):
        list(stream([Odd()], "numpy"))


def test_an_error_of_iter_is_raised_by_the_call() -> None:
    class Loader:
        def __iter__(self) -> Any:
            raise OSError("no such file")

    with pytest.raises(OSError, match="no such file"):
        stream(Loader(), "numpy")


# ---- interrupts ----------------------------------------------------------------------------------


def test_an_interrupt_while_waiting_loses_no_batch() -> None:
    goes_on, main = threading.Event(), threading.main_thread().ident
    assert main is not None

    def make() -> Iterator[Any]:
        for i, batch in enumerate(batches(4)):
            if i == 2:
                signal.pthread_kill(main, signal.SIGINT)  # it waits for this batch, or soon will
                assert goes_on.wait(WAIT)
            yield batch

    usual = signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs ignore it
    ahead = stream(make(), "numpy", prefetch=1)
    seen: list[Any] = []
    interrupts = 0
    while len(seen) < 4:
        try:
            while len(seen) < 4:
                seen.extend(islice(ahead, 1))  # a batch is in the list, or was not handed out
        except KeyboardInterrupt:
            interrupts += 1
            goes_on.set()
    signal.signal(signal.SIGINT, usual)
    assert (numbers(seen), interrupts) == ([0, 1, 2, 3], 1)
    assert next(ahead, None) is None


def test_an_interrupt_at_any_line_of_the_wait_loses_no_batch() -> None:
    """Handlers run between lines as well; those after the wait have no call, so that none does."""

    class Interrupt(BaseException):
        pass

    steps = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal steps
        if frame.f_code is not _Feed.head.__code__:
            return trace
        steps -= event == "line"
        if steps == 0 and event == "line":
            raise Interrupt
        return trace

    for step in range(1, 30):
        ahead = stream(batches(4), "numpy", prefetch=2)
        seen: list[int] = []
        while len(seen) < 4:
            steps, before = step, sys.gettrace()
            sys.settrace(trace)
            try:
                batch = next(ahead)
            except Interrupt:
                sys.settrace(before)
                batch = next(ahead)
            finally:
                sys.settrace(before)
            seen.append(batch["n"])
        assert seen == [0, 1, 2, 3], step
        assert next(ahead, None) is None


@pytest.mark.full
def test_signals_at_any_time_lose_no_batch() -> None:
    """`extend` takes a batch from the stream into the list in one step."""

    class Interrupt(BaseException):
        pass

    def handler(number: int, frame: Any) -> None:
        if frame is not None and frame.f_code.co_filename == _Feed.head.__code__.co_filename:
            raise Interrupt

    before = signal.signal(signal.SIGPROF, handler)
    try:
        for prefetch in (1, 2, 8):
            ahead = stream(({"n": i} for i in range(10000)), "numpy", prefetch=prefetch)
            seen: list[Any] = []
            signal.setitimer(signal.ITIMER_PROF, 1e-4, 1e-4)
            while len(seen) < 10000:
                try:
                    seen.extend(islice(ahead, 1))
                except Interrupt:
                    pass
            signal.setitimer(signal.ITIMER_PROF, 0)
            assert [batch["n"] for batch in seen] == list(range(10000))
            assert next(ahead, None) is None
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


# ---- the end -------------------------------------------------------------------------------------


def endless(ended: threading.Event) -> Iterator[Any]:
    try:
        while True:
            yield np.ones(2)
    finally:
        ended.set()


def test_close_ends_the_thread_and_closes_the_generator() -> None:
    ended = threading.Event()
    ahead = stream(endless(ended), "numpy")
    next(ahead)
    ahead.close()
    assert ended.is_set()
    assert not ahead._thread.is_alive()
    assert list(ahead) == []
    ahead.close()


def test_a_with_block_ends_the_thread_whatever_is_raised_in_it() -> None:
    ended = threading.Event()
    with pytest.raises(ZeroDivisionError), stream(endless(ended), "numpy") as ahead:
        raise ZeroDivisionError(next(ahead))
    assert ended.is_set()
    assert not ahead._thread.is_alive()


def test_a_break_ends_the_thread() -> None:
    ended = threading.Event()
    ahead = stream(endless(ended), "numpy")
    thread, gone = ahead._thread, weakref.ref(ahead)
    for _ in ahead:
        break
    del ahead
    gc.collect()
    assert gone() is None
    assert ended.wait(WAIT)
    thread.join(WAIT)
    assert not thread.is_alive()


def test_a_stream_that_nobody_reads_ends_when_it_is_dropped() -> None:
    ended = threading.Event()
    thread = stream(endless(ended), "numpy")._thread
    gc.collect()
    assert ended.wait(WAIT)
    thread.join(WAIT)
    assert not thread.is_alive()


def test_close_wakes_a_consumer_in_another_thread() -> None:
    waits, goes_on = threading.Event(), threading.Event()
    seen: list[Any] = []

    def make() -> Iterator[Any]:
        yield np.ones(1)
        waits.set()
        assert goes_on.wait(WAIT)
        yield np.ones(1)

    ahead = stream(make(), "numpy", prefetch=1)
    consumer = threading.Thread(target=lambda: seen.append(len(list(ahead))))
    consumer.start()
    assert waits.wait(WAIT)
    ahead._feed.stop()
    goes_on.set()
    ahead.close()
    consumer.join(WAIT)
    assert not consumer.is_alive()
    assert seen in ([0], [1])


def test_close_raises_what_closing_the_generator_raises() -> None:
    def make() -> Iterator[Any]:
        try:
            yield np.ones(1)
            yield np.ones(1)
            yield np.ones(1)
        finally:
            raise OSError("cannot close")

    ahead = stream(make(), "numpy", prefetch=1)
    next(ahead)
    with pytest.raises(OSError, match="cannot close"):
        ahead.close()
    ahead.close()


def test_an_error_of_closing_a_dropped_generator_is_reported(monkeypatch: Any) -> None:
    told: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", lambda args: told.append(args.exc_value))

    def make() -> Iterator[Any]:
        try:
            while True:
                yield np.ones(1)
        finally:
            raise OSError("cannot close")

    thread = stream(make(), "numpy")._thread
    gc.collect()
    thread.join(WAIT)
    assert [str(each) for each in told] == ["cannot close"]


def test_a_stream_without_a_thread_leaves_nothing(monkeypatch: Any) -> None:
    def refuse(self: Any) -> None:
        raise RuntimeError("can't start new thread")

    left: list[Any] = []
    monkeypatch.setattr("atexit.register", left.append)
    monkeypatch.setattr("atexit.unregister", left.remove)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="new thread"):
        stream(batches(1), "numpy")
    gc.collect()
    assert left == []


def test_batches_are_freed_once_they_are_handed_out() -> None:
    class Item:
        pass

    with stream([Item() for _ in range(3)], "numpy", unknown="keep") as ahead:
        gone = weakref.ref(next(ahead))
        next(ahead)
    gc.collect()
    assert gone() is None


def test_streams_nest() -> None:
    inner = stream(overwriting(6), "dlbridge")
    outer = stream(inner, "numpy")
    assert numbers(outer) == list(range(6))
    assert [row.copied_by for row in outer.report().rows] == [None]
    inner = stream(batches(10**6), "dlbridge")
    with stream(inner, "numpy") as outer:
        next(outer)
    assert not inner._thread.is_alive()


def test_a_stream_made_in_a_generator_of_another() -> None:
    def make() -> Iterator[Any]:
        for i in range(3):
            yield from stream(batches(i), "dlbridge")

    assert numbers(stream(make(), "numpy")) == [0, 0, 1]


def test_a_second_thread_at_the_same_time_is_refused() -> None:
    waits, goes_on = threading.Event(), threading.Event()

    def make() -> Iterator[Any]:
        waits.set()
        assert goes_on.wait(WAIT)
        yield {"x": np.ones(1)}

    ahead = stream(make(), "numpy")
    seen: list[Any] = []
    ahead._inside["thread"] = -1  # as while another thread waits
    with pytest.raises(ArgumentError, match="one thread at a time"):
        next(ahead)
    del ahead._inside["thread"]
    assert waits.wait(WAIT)
    goes_on.set()
    consumer = threading.Thread(target=lambda: seen.extend(ahead))
    consumer.start()
    consumer.join(WAIT)
    assert len(seen) == 1


def test_a_forked_process_is_refused_and_the_parent_goes_on(run_python: Any) -> None:
    run = run_python(
        """
        import os, numpy, dlbridge

        ahead = dlbridge.stream([numpy.full(1, i) for i in range(4)], "numpy")
        print(next(ahead), flush=True)
        child = os.fork()
        if child == 0:
            try:
                next(ahead)
            except dlbridge.ArgumentError as error:
                print(error, flush=True)
            ahead.close()
        else:
            os.waitpid(child, 0)
            print(*ahead)
        """,
        PYTHONWARNINGS="ignore::DeprecationWarning",  # Python 3.12's, of forks with threads
    )
    first, refusal, rest = run.stdout.splitlines()
    assert "make a stream in each process" in refusal
    assert (first, rest) == ("[0]", "[1] [2] [3]")
    assert (run.returncode, run.stderr) == (0, "")


def test_a_program_ends_with_a_stream_open(run_python: Any) -> None:
    run = run_python(
        """
        import numpy, dlbridge

        def make():
            try:
                while True:
                    yield numpy.ones(4)
            finally:
                print("closed", flush=True)

        ahead = dlbridge.stream(make(), "numpy")
        next(ahead)
        """
    )
    assert (run.returncode, run.stdout, run.stderr) == (0, "closed\n", "")


def test_a_stream_is_neither_copied_nor_pickled() -> None:
    with stream(batches(2), "numpy") as ahead:
        for act in (copy.copy, pickle.dumps):
            with pytest.raises(TypeError, match="a thread of its own"):
                act(ahead)


def test_context_variables_are_those_of_the_call() -> None:
    variable = contextvars.ContextVar("variable", default=0)
    variable.set(7)

    def make() -> Iterator[Any]:
        yield np.full(1, variable.get())

    assert [x.tolist() for x in stream(make(), "numpy")] == [[7]]


# ---- receipts ------------------------------------------------------------------------------------


def test_the_report_counts_what_was_handed_out() -> None:
    made = ({"x": np.ones(4, ">f4"), "y": np.ones(2)} for _ in range(3))
    ahead = stream(made, "dlbridge", fresh=True)
    assert ahead.report().rows == ()
    next(ahead)
    assert (ahead.report().batches, ahead.report().nbytes_copied) == (1, 16)
    list(ahead)
    report = ahead.report()
    assert (report.target, report.batches, report.nbytes_copied) == ("dlbridge", 3, 48)
    assert [tuple(row) for row in report.rows] == [
        ("numpy", "numpy", "byte_order", 3, 48),
        ("numpy", None, None, 3, 48),
    ]
    assert str(report).splitlines() == [
        "3 batches to dlbridge",
        "from   memory                        tensors  bytes",
        "numpy  copied by numpy (byte_order)        3     48",
        "numpy  shared                              3     48",
    ]
    assert repr(report) == "<StreamReport of 3 batches to dlbridge: 48 bytes copied>"


def test_receipts_come_to_the_thread_that_takes_the_batch() -> None:
    with dlbridge.receipts() as outer:
        ahead = stream(batches(3), "numpy", prefetch=3)
        next(ahead)
        with dlbridge.receipts() as inner:
            next(ahead)
        assert len(outer) == 2
    assert len(inner) == 1
    list(ahead)
    assert len(outer) == 2

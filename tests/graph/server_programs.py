"""Programs that tests/graph/test_server.py runs on several ranks, each of which is a task.

`mpiexec -n 2 python server_programs.py FOLDER spmd a b`: all tasks run the programs `a` and `b`;
with `driven` task 0 does, and the others serve.
"""

from __future__ import annotations

import gc
import json
import os
import random
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from functools import partial, reduce
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from measuring import (
    PATIENCE,
    lasts,
    lazily,
    now,
    pause,
    say_where_on_request,
    trace_clock,
    until,
)

import dlbridge.graph as tf
from dlbridge import mpi
from dlbridge._core import native
from dlbridge.errors import ArgumentError, MPIError
from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.distributed import timeline
from dlbridge.graph.distributed.server import _read_error
from dlbridge.graph.session import feeds, fetches
from dlbridge.mpi.engine import engine

pytest = lazily("pytest")  # few of the programs that run alone need it

SERVER: Any = None
SPMD = True
PROCESSES: Any = ()  # their numbers, by rank
KEPT: list[Any] = []
DTYPES = (
    "bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16",
    "bfloat16", "float32", "float64", "complex64", "complex128",
)  # fmt: skip
SHAPES = ((), (0,), (3, 0, 2), (3, 2), (33, 400))  # the last one is sent on its own


def session(graph: Any = None) -> Any:
    return tf.Session(SERVER.target, graph=graph, spmd=SPMD)


def tasks() -> int:
    return len(SERVER.ranks)


def on(task: int) -> Any:
    return tf.device(f"/job:worker/task:{task % tasks()}")


def same(got: Any, wanted: Any) -> None:
    got, wanted = np.asarray(got), np.asarray(wanted)
    assert got.dtype == wanted.dtype, (got.dtype, wanted.dtype)
    assert got.shape == wanted.shape, (got.shape, wanted.shape)
    np.testing.assert_array_equal(got, wanted)


# ---- values ------------------------------------------------------------------------------------


def random_graph(rng: random.Random, placed: bool) -> tuple[Any, list[Any], dict[Any, Any]]:
    """Return a random graph; the same one for the same seed, placed on tasks or not."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float64, [None], name="x")
        v = None
        values, ops = [x], []
        for _ in range(rng.randint(3, 30)):
            task, kind = rng.randrange(8), rng.randrange(7)
            before = rng.sample(ops, min(len(ops), rng.choice((0, 0, 1, 2))))
            a, b = rng.choice(values), rng.choice(values)
            device = f"/job:worker/task:{task % tasks()}" if placed else ""
            with tf.device(device), tf.control_dependencies(before):
                if kind == 0:
                    made = tf.constant(float(rng.randint(1, 9)), tf.float64)
                elif kind == 1 and v is None:
                    v = tf.Variable(tf.constant([1.0, 2.0], tf.float64), use_resource=True)
                    made = v.read_value()
                elif kind == 2 and v is not None:
                    made = tf.reduce_sum(a) + 1.0
                elif kind == 3:
                    made = tf.reduce_max(a) * b
                elif kind == 4:
                    made = tf.minimum(a, b) - 1.0
                else:
                    made = a + b * 0.5
            values.append(made)
            ops.append(made.op)
        fetches = rng.sample(values, min(len(values), 3))
        start = tf.global_variables_initializer()
    return graph, [start, fetches], {x.name: np.array([1.5, -2.0])}


def random_graphs() -> None:
    """The values of one process, for random graphs on random tasks."""
    crossed = 0
    for seed in range(40):
        graph, (start, fetches), feeds = random_graph(random.Random(seed), False)
        with tf.Session(graph=graph) as one:
            one.run(start, feeds)
            wanted = one.run(fetches, feeds)
        graph, (start, fetches), feeds = random_graph(random.Random(seed), True)
        sent = SERVER.transport.counts()[0]
        with session(graph) as many:
            many.run(start, feeds)
            got = [many.run(fetches, feeds) for _ in range(3)]
        crossed += SERVER.transport.counts()[0] > sent
        for values in got:
            for a, b in zip(values, wanted, strict=True):
                same(a, b)
    assert crossed > 20, crossed


def dtypes_and_shapes() -> None:
    """Each value comes as it was sent, also 0-d, empty, and of an open static shape."""
    for dtype in DTYPES:
        kind = getattr(tf, dtype)
        for shape in SHAPES:
            value = np.random.default_rng(1).integers(0, 2, shape).astype(kind.as_numpy_dtype)
            with tf.Graph().as_default():
                with on(0):
                    x = tf.placeholder(kind)
                    y = tf.identity(tf.reshape(x, tf.shape(x)))
                with on(1):
                    z = tf.stack([y, y])
                with session() as s:
                    same(s.run(z, {x: value}), np.stack([value, value]))


def strings() -> None:
    value = np.array([[b"a", b"\0b\xff"], [b"", b"x" * 20000]], object)
    with tf.Graph().as_default():
        with on(0):
            x = tf.placeholder(tf.string)
            y = tf.string_join([x, x])
        with on(1):
            z = tf.string_join([y, "!"])
        with session() as s:
            for _ in range(5):  # also where memory is used again
                got = s.run(z, {x: value}).tolist()
                assert got == [[2 * a + b"!" for a in row] for row in value]


def structures() -> None:
    """Fetches in any structure; what is fed may be fetched; no node runs twice."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [2])
        with on(1):
            y = x * 2.0
        with session() as s:
            got = s.run({"a": [x, y], "b": (y.op, "mul:0")}, {x: [1, 2]})
            same(got["a"][0], np.float32([1, 2]))
            same(got["a"][1], np.float32([2, 4]))
            assert got["b"][0] is None
            same(s.run(y, {y: np.float32([7, 8])}), np.float32([7, 8]))
            f = s.make_callable([y], [x])
            same(f([3, 4])[0], np.float32([6, 8]))
            assert s.run([]) == []
            torch = s.run(y, {x: [1, 2]}, to="dlbridge")
            assert torch.shape == (2,)


def variables_stay() -> None:
    """Variables belong to their task: another session of the cluster sees them."""
    with tf.Graph().as_default() as graph:
        with on(1):
            v = tf.get_variable("kept", initializer=[1.0], use_resource=True)
            add = tf.assign_add(v, [1.0])
        with session(graph) as s:
            s.run(v.initializer)
            s.run(add)
        with session(graph) as s:
            s.run(add.op)
            same(s.run(v.read_value()), np.float32([3]))


def references() -> None:
    """A variable of the old kind is read when its value is sent."""
    with tf.Graph().as_default():
        with on(1):
            v = tf.Variable([1.0, 2.0], use_resource=False, name="old")
            add = tf.assign_add(v, [1.0, 1.0])
        with on(0), tf.control_dependencies([add]):
            y = v * 10.0
        with session() as s:
            s.run(tf.global_variables_initializer())
            same(s.run(y), np.float32([20, 30]))
            same(s.run(y), np.float32([30, 40]))


def control_dependencies() -> None:
    """What must run before runs before, on another task as well."""
    with tf.Graph().as_default():
        with on(1):
            v = tf.get_variable("order", initializer=0.0, use_resource=True)
            first = tf.assign(v, 5.0)
        with on(0), tf.control_dependencies([first]):
            then = tf.no_op()
        with on(1), tf.control_dependencies([then]):
            y = v.read_value() + 1.0
        with session() as s:
            s.run(tf.global_variables_initializer())
            for _ in range(20):
                assert s.run(y) == 6.0


def back_and_forth() -> None:
    """Many edges both ways at the same point, and large ones, wait for nobody forever."""
    sums = []
    with tf.Graph().as_default():
        values = []
        for i in range(2 * tasks()):
            with on(i):
                values.append(tf.fill([50_000], float(i)))
                sums.append(float(i))
        for i in range(40):
            with on(i):
                a, b = i % 4, len(values) - 1 - i % 3
                values.append(values[a] + values[b])
                sums.append(sums[a] + sums[b])
        total = tf.add_n(values)
        with session() as s:
            for _ in range(5):
                same(s.run(total), np.full(50_000, sum(sums), np.float32))


def results_are_kept() -> None:
    """A result is its user's: later runs leave it alone, and nothing else keeps it."""
    with tf.Graph().as_default():
        with on(0):
            x = tf.placeholder(tf.float32, [None])
            y = x + 1.0
        with on(1):
            z = y * 2.0
        with session() as s:
            s.run(z, {x: np.ones(5000)})
            kept = [s.run(z, {x: np.full(5000, i)}) for i in range(100)]
            for i, each in enumerate(kept):
                assert (each == 2 * (i + 1)).all()
                each += 1
    kept.clear()
    gc.collect()
    assert SERVER.transport.counts()[3] == 0


def frameworks() -> None:
    """Nodes in torch and JAX on their tasks: what crosses is shared with them."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [None])
        with on(0), tf.framework("torch"):
            y = tf.exp(x)
        with on(1), tf.framework("jax"):
            z = tf.square(y)
        with on(0), tf.framework("torch"):
            w = z + y
        for values in (np.float32([0, 1]), np.ones(30000, np.float32)):
            with session() as s:
                np.testing.assert_allclose(
                    s.run(w, {x: values}), np.exp(values) ** 2 + np.exp(values), rtol=1e-6
                )


def frameworks_of_mpi() -> None:
    """The same frameworks in calls of `dlbridge.mpi`: they are imported once for both."""
    import_module("mpi.mpi_programs").frameworks()


# ---- errors ------------------------------------------------------------------------------------


def failing(where: int) -> tuple[Any, Any]:
    """Return a fetch which fails on a task when it is fed 0, and what to feed."""
    x = tf.placeholder(tf.int32, [])
    with on(0):
        a = x + 1
    with on(where):
        b = tf.floordiv(a * 0 + 12, x, name=f"divide_{where}")
    with on(where + 1):
        c = b + 1
    with on(0):
        d = c + a
    return d, x


def errors() -> None:
    """An error on any task is the same error on all that wait, names both, and ends the step."""
    for where in range(tasks()):
        with tf.Graph().as_default() as graph:
            d, x = failing(where)
            with session(graph) as s:
                assert s.run(d, {x: 3}) == 12 // 3 + 1 + 4
                for _ in range(3):
                    with pytest.raises(tf.errors.InvalidArgumentError) as info:
                        s.run(d, {x: 0})
                    text = str(info.value)
                    assert f"From /job:worker/replica:0/task:{where}" in text, text
                    assert "division by zero" in text, text
                    assert info.value.op is graph.get_operation_by_name(f"divide_{where}")
                    assert s.run(d, {x: 4}) == 12 // 4 + 1 + 5
    assert SERVER.transport.counts()[3] == 0


def deadlines() -> None:
    """A wait that takes too long ends the run on all tasks, and the next run works."""
    late = tf.errors.DeadlineExceededError
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [])
        with on(0):
            a = x + 1.0
        with on(1):
            b = tf.py_func(_sleep, [a], tf.float32) if SPMD else a * 1.0
        with on(0):
            c = b + 1.0
        with session() as s:
            for timeout in (100, 150, 200):
                assert s.run(c, {x: 0.0}) == 2.0
                options = tf.RunOptions(timeout_in_ms=timeout) if SERVER.rank == 0 else None
                if not SPMD:
                    os.kill(int(PROCESSES[1]), signal.SIGSTOP)
                try:
                    with (
                        lasts(0.0 if SERVER.rank else timeout / 1e3),
                        pytest.raises(late, match=f"timed out after {timeout} ms"),
                    ):
                        s.run(c, {x: 1.0}, options=options)
                finally:
                    if not SPMD:
                        os.kill(int(PROCESSES[1]), signal.SIGCONT)
            for _ in range(3):
                options = tf.RunOptions(timeout_in_ms=60_000)
                assert s.run(c, {x: 0.0}, options=options) == 2.0
    assert SERVER.transport.counts()[3] == 0


def _sleep(x: Any) -> Any:
    pause(0.5 * float(x > 1))  # fed with 1.0: x is 2
    return x


def late_errors() -> None:
    """An error after all that a task sends is the error of all, though they have its values."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.int32, [])
        with on(0):
            a = x + 1
        with on(1):
            b = a * 2
            late = tf.floordiv(b, x, name="late")
        with on(0):
            c = b + 1
        with session() as s:
            for _ in range(5):
                with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
                    s.run([c, late.op], {x: 0})
                assert s.run([c, late.op], {x: 2}) == [7, None]


def no_idle_messages() -> None:
    """Where values tell each task that all nodes have run, nothing else is sent."""
    with tf.Graph().as_default():
        with on(0):
            x = tf.random_uniform([])
        with on(1):
            y = x + 1.0
        with on(0):
            z = y + 1.0
        with session() as s:
            s.run(z)
            sent = messages_of(partial(s.run, z))
    if SPMD:  # the value for task 1 and the result for all others; its answer
        assert sent == {0: tasks(), 1: 1}.get(SERVER.rank, 0), sent
    else:  # the request and the value
        assert sent == 2, sent


def messages_of(run: Any) -> float:
    """Return how many messages a run sends: a task that waits for long tells all others besides."""
    counts = [SERVER.transport.counts()[0]]
    for _ in range(21):
        run()
        counts.append(SERVER.transport.counts()[0])
    return float(np.min(np.diff(counts)))


def values_go_together() -> None:
    """Values between the same tasks at the same point are one message, up to 8 KiB of them."""
    with tf.Graph().as_default():
        for count, size in ((100, 1), (60, 16)):  # 80 or 200 bytes each with their headers
            with on(0):
                shape, kind = [size] if size > 1 else [], tf.float64
                xs = [tf.random_uniform(shape, dtype=kind) for _ in range(count)]
            with on(1):
                ys = [x + 1.0 for x in xs]
            with on(0):
                zs = [y - x for x, y in zip(xs, ys, strict=True)]
                z = tf.add_n([tf.reduce_sum(each) for each in zs])
            with session() as s:
                s.run(z.op)
                sent = messages_of(partial(s.run, z.op))
                assert np.isclose(s.run(z), count * size)
            most = -(-count * (size * 8 + 72 + 8) // 8192) + 4
            assert sent <= most, (sent, most)


def values_in_bursts() -> None:
    """Many small values, where feeds and their shapes change, runs fail, and come too late."""
    count, last = 30, tasks() - 1
    with tf.Graph().as_default():
        x = tf.placeholder(tf.int64, [])
        y = tf.placeholder(tf.int64)  # of any shape
        with on(0):
            xs = [x + i for i in range(count)]
        zs = []
        for each in xs:
            with on(1):
                z = each * 2 - y
            with on(last):
                z = z // (each + 5)
            with on(0):
                zs.append(z + each)
        with on(last):
            total = tf.add_n(zs)
        late = tf.py_func(_sleep_a_little, [total], tf.int64)

        def wanted(a: int, b: Any) -> Any:
            b = np.asarray(b)
            return sum([((a + i) * 2 - b) // (a + i + 5) + a + i for i in range(count)])

        with session() as s:
            for _ in range(3):
                for a, b in ((1, 5), (2, [1, 2]), (-40, [[7]]), (3, np.ones((3, 0), int)), (0, 0)):
                    same(s.run(total, {x: a, y: b}), wanted(a, b))
                with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
                    s.run(total, {x: -20, y: 1})
                same(s.run([total, zs[3]], {x: 9, y: 1})[0], wanted(9, 1))
                options = tf.RunOptions(timeout_in_ms=100) if SERVER.rank == 0 else None
                with pytest.raises(tf.errors.DeadlineExceededError):
                    s.run(late, {x: 1000, y: 1}, options=options)
                same(s.run(late, {x: -5 - count, y: 3}), wanted(-5 - count, 3))
            if SPMD:
                return
            wrong: list[Any] = []

            def work(a: int) -> None:
                for b in range(20):
                    got = s.run(total, {x: a, y: [b] * (a % 3)})
                    if not np.array_equal(got, wanted(a, [b] * (a % 3))):
                        wrong.append((a, b, got))

            threads = [threading.Thread(target=work, args=(a,)) for a in range(8)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
    assert not wrong, wrong


def _sleep_a_little(x: Any) -> Any:
    pause(0.4 * bool(np.any(x > 10_000)))
    return x


def values_do_not_wait_for_functions() -> None:
    """What has been computed goes before a function that may wait for another task."""
    meets = [] if SPMD else [0]

    def meet(x: Any) -> Any:
        if not meets:
            mpi.barrier()
        return x

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [])
        with on(0):
            values = [x + float(i) for i in range(5)]
            here = tf.py_func(meet, [values[-1]], tf.float32)
            late = [each * 2.0 for each in values]
        others = []
        for task in range(1, tasks()):
            with on(task):
                total = tf.add_n(values)
                others.append(tf.py_func(meet, [total], tf.float32) if SPMD else total)
                others.append(tf.add_n(late))
        with session() as s:
            for _ in range(5):
                got = s.run([here, *others], {x: 1.0})
                assert got == [5.0, *[15.0, 30.0] * (tasks() - 1)], got


def no_task_is_far_ahead() -> None:
    """A task that waits for no value of a slow one does not pile up values for it."""
    with tf.Graph().as_default():
        with on(0):
            x = tf.random_uniform([])
        with session() as s:
            s.run(x)
            if SERVER.rank == tasks() - 1:
                pause(0.5)
            began = now()
            for _ in range(100):
                s.run(x)
            ended = now()
    said = mpi.allgather(np.array([began, ended]))
    assert (said[:, 1] >= said[-1, 0]).all(), said


def memory_is_reused() -> None:
    """Large values are received into memory that results of earlier runs have given back."""
    with tf.Graph().as_default():
        with on(1):
            y = tf.random_uniform([1_000_000])
        with session() as s:
            addresses = set()
            for _ in range(10):
                got = s.run(y)
                addresses.add(got.ctypes.data)
                del got
    if SERVER.rank != 1:
        assert all(address % 64 == 0 for address in addresses)
        assert len(addresses) <= 3, addresses


# ---- values that are lent --------------------------------------------------------------------


def settled_arena() -> None:
    """Wait until all memory that was lent came back, on all tasks."""
    for _ in range(500):
        used = int(mpi.allreduce(np.array(SERVER.transport.arena()[1])))
        if not used:
            return
        pause(0.01)
    raise AssertionError(f"{used} bytes of the arenas are still in use")


def large_values_are_lent() -> None:
    """A large result is allocated where its consumers read it; what lies elsewhere is copied."""
    count = tasks()
    with tf.Graph().as_default() as graph:
        with on(0):
            v = tf.get_variable("lent", initializer=tf.ones([300, 40]), use_resource=True)
            x = tf.placeholder(tf.float32, [300, 40])
            made = x + v
        there = []
        for task in range(1, count):
            with on(task):
                there += [made * float(task), tf.reduce_sum(tf.transpose(made))]
        with on(0):
            total = tf.add_n(there[::2])
            turned = tf.transpose(made)
        with on(1):
            back = turned + 0.0
        value = np.arange(12000, dtype=np.float32).reshape(300, 40)
        plus = value + 1
        with session(graph) as s:
            s.run(v.initializer)
            for _ in range(3):
                before = SERVER.transport.arena()[3]
                got, sums, other = s.run([total, there[1::2], back], {x: value})
                assert SERVER.transport.arena()[3] > before
                same(got, sum(plus * np.float32(task) for task in range(1, count)))
                same(other, plus.T)
                np.testing.assert_allclose(sums, plus.sum(dtype=np.float64), rtol=1e-5)
                for each in (got, other):
                    assert each.flags.writeable
                    each[:] = -1  # nobody else sees that
            same(s.run(v), np.ones((300, 40), np.float32))
        del got, other
    if SPMD:
        settled_arena()


def _large(task: int, count: int = 5000) -> Any:
    """Return a large value that a task makes, different in each run."""
    with on(task):
        return tf.random_uniform([count]) + 1.0


def lent_values_are_kept() -> None:
    """Views of 100 runs stay as they were; their memory comes back when they go."""
    with tf.Graph().as_default():
        y = _large(1)
        total = tf.reduce_sum(y)
        with session() as s:
            kept = []
            for _ in range(100):
                got, sum_ = s.run([y, total], copy=False)
                kept.append((got, got.copy(), sum_))
                if SERVER.rank != 1:
                    assert not got.flags.writeable
                    assert got.ctypes.data % 64 == 0
            assert len({each.ctypes.data for each, _, _ in kept}) == 100
            for got, copy, _ in kept:
                same(got, copy)
            assert len({got[:8].tobytes() for got, _, _ in kept}) == 100
            for got, _, sum_ in kept:
                np.testing.assert_allclose(got.sum(dtype=np.float64), sum_, rtol=1e-5)
            kept = got = copy = None
            if SPMD:
                settled_arena()


def one_copy_for_several_tasks() -> None:
    """What a task must copy to lend it is copied once, and lent to all that take it."""
    count = 100_000
    others = range(1, tasks())
    with tf.Graph().as_default():
        with on(0):
            v = tf.get_variable("shared", [count], tf.float64, use_resource=True)
            old = tf.Variable(tf.ones([count], tf.float64), use_resource=False, name="old_shared")
            x = tf.placeholder(tf.float64, [count])
            function = tf.py_func(lambda: np.full(count, 7.0), [], tf.float64)
            function = tf.reshape(function, [count])
            sources = [
                (v.read_value(), 5.0), (tf.constant(np.full(count, 6.0)), 6.0), (function, 7.0),
                (tf.reshape(tf.transpose(tf.reshape(x, [count, 1])), [count]), 8.0),
            ]  # fmt: skip
            start = tf.group(
                v.assign(tf.fill([count], tf.constant(5.0, tf.float64))), old.initializer
            )
            add = tf.assign_add(old, tf.ones([count], tf.float64))
        there = []
        for source, _ in sources:
            for i in others:
                with on(i):
                    there.append(tf.identity(source))
        with session() as s:
            s.run(start)
            for number, (_, wanted) in enumerate(sources):
                gc.collect()
                fetch = there[number * len(others) : (number + 1) * len(others)]
                for _ in range(3):
                    before = SERVER.transport.arena()[2]
                    if SPMD:
                        mpi.barrier()
                    got = s.run(fetch, {x: np.full(count, 8.0)}, copy=False)
                    if SPMD:
                        mpi.barrier()
                    blocks = SERVER.transport.arena()[2]
                    if SERVER.rank == 0:
                        assert blocks - before <= 1, (number, before, blocks)
                    for each in got:
                        same(each, np.full(count, wanted))
                    if SPMD:
                        mpi.barrier()
                    got = each = None
                    if SPMD:
                        settled_arena()
            for i in others:  # a reference is read by each send
                with on(i), tf.control_dependencies([add]):
                    there.append(old + 0.0)
            fetch = there[-len(others) :]
            for n in range(3):
                for each in s.run(fetch):
                    same(each, np.full(count, n + 2.0))


def lent_values_outlive_the_session() -> None:
    with tf.Graph().as_default():
        y = _large(1)
        with session() as s:
            got = s.run(y, copy=False)
        gc.collect()
        copy = got.copy()
        with session() as s:
            for _ in range(5):
                s.run(y, copy=False)
        same(got, copy)


def lent_values_that_are_passed_on() -> None:
    """A task that is lent a value lends it to others; it stays where it is."""
    with tf.Graph().as_default():
        x = y = _large(0)
        for task in [*range(1, tasks()), 0] * 3:
            with on(task):
                y = tf.identity(y)
                if task:
                    y = tf.reshape(tf.reshape(y, [50, 100]), [5000])
        with on(0):
            same_ = tf.reduce_all(tf.equal(x, y))
        with session() as s:
            for _ in range(3):
                assert s.run(same_)
        if SPMD:
            settled_arena()


def lent_values_of_failed_runs() -> None:
    """What was lent to a step that failed comes back."""

    def fail(x: Any) -> Any:
        raise ValueError("on purpose")

    with tf.Graph().as_default():
        x = _large(1)
        with on(0):
            z = tf.py_func(fail, [x], tf.float32)
            z.set_shape([5000])
            late = z + _large(1)
        with on(tasks() - 1):
            y = tf.reduce_sum(z) + tf.reduce_sum(_large(0))
        with session() as s:
            for _ in range(5):
                with pytest.raises(tf.errors.OpError, match="on purpose"):
                    s.run([late, y])
            s.run(tf.reduce_sum(x))
        gc.collect()
        if SPMD:
            settled_arena()


def lent_values_in_a_forked_child() -> None:
    """A child has views of what was lent, but gives nothing back that is its parent's."""
    with tf.Graph().as_default():
        y = _large(1)
        with session() as s:
            got = s.run(y, copy=False)
            copy = got.copy()
            child = os.fork()
            if child == 0:
                try:
                    same(got, copy)
                    del got
                    fresh = native.InArena(SERVER.transport, lambda: np.ones(9000))()
                    fresh[:] = 2
                    del fresh
                    gc.collect()
                    os._exit(0)
                finally:
                    os._exit(1)
            assert os.waitpid(child, 0)[1] == 0
            for _ in range(5):
                s.run(y, copy=False)
            same(got, copy)
            del got
            if SPMD:
                settled_arena()


def lent_values_in_threads() -> None:
    """Threads run several plans at once; each value is that of its run."""
    with tf.Graph().as_default():
        graphs = []
        for i in range(3):
            x = tf.placeholder(tf.float64, [])
            with on(0):
                y = tf.fill([3000 + i], 1.0) * tf.cast(x, tf.float32)
            with on(1):
                graphs.append((x, y * 2.0))
        with session() as s:
            failed: list[BaseException] = []

            def work(i: int) -> None:
                try:
                    x, y = graphs[i]
                    kept = []
                    for number in range(30):
                        kept.append(s.run(y, {x: number}, copy=number % 2 == 0))
                    for number, got in enumerate(kept):
                        same(got, np.full(3000 + i, 2.0 * number, np.float32))
                except BaseException as error:
                    failed.append(error)

            threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
            for each in threads:
                each.start()
            for each in threads:
                each.join()
            if failed:
                raise failed[0]


def full_arena() -> None:
    """Where there is no room, or nothing is shared, values are sent as between hosts."""
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    room, *_ = server.transport.arena()
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0"):
            values = [tf.random_uniform([300_000]) for _ in range(4)]  # 1.2 MB each
        with tf.device("/job:worker/task:1"):
            total = tf.add_n([tf.reduce_sum(each) for each in values])
        with tf.device("/job:worker/task:0"):
            here = tf.add_n([tf.reduce_sum(each) for each in values])
        with tf.Session(server.target, spmd=True) as s:
            for _ in range(3):
                there, wanted, *got = s.run([total, here, *values], copy=False)
                same(there, wanted)
                np.testing.assert_allclose(sum(each.sum() for each in got), wanted, rtol=1e-3)
    KEPT.extend(got)  # alive when the process ends
    print(f"room {room // 2**20} MiB, lent {server.transport.arena()[3] > 0}")


def different_arenas() -> None:
    """A task whose variable of the environment is not a number: all learn it."""
    os.environ["DLBRIDGE_ARENA_BYTES"] = ("1e9", "1000000000")[mpi.rank()]
    with pytest.raises(ArgumentError, match="DLBRIDGE_ARENA_BYTES must be a number of bytes"):
        tf.train.Server(tf.train.ClusterSpec.from_mpi())
    os.environ["DLBRIDGE_ARENA_BYTES"] = ("0", "1000000000")[mpi.rank()]
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    assert server.transport.arena()[0] == 0
    print("refused")


def python_functions() -> None:
    """A Python function runs on the task of its session; its exception comes back there."""

    def function(x: Any) -> Any:
        if x[0] < 0:
            raise ValueError("below zero")
        return x + np.float32(1)

    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [1])
        with on(0):
            y = tf.py_func(function, [x], tf.float32)
        with on(1):
            z = y * 2.0
        with session() as s:
            same(s.run(z, {x: [1]}), np.float32([4]))
            with pytest.raises(tf.errors.InvalidArgumentError, match="below zero"):
                s.run(z, {x: [-1]})
            same(s.run(z, {x: [2]}), np.float32([6]))


def wrong_feeds() -> None:
    """A value that does not fit is refused where it is fed; the next run works."""
    with tf.Graph().as_default():
        with on(0):
            x = tf.placeholder(tf.float32, [2], name="fed")
        with on(1):
            y = x + 1.0
        with session() as s:
            for _ in range(3):
                with pytest.raises((ValueError, tf.errors.OpError), match="fed:0"):
                    s.run(y, {x: [1, 2, 3]})
                same(s.run(y, {x: [1, 2]}), np.float32([2, 3]))


def limits() -> None:
    """A value of more than max_bytes is not sent: fed, of a variable, or text; others are.

    With spmd=True each task feeds its own nodes, so that nothing fed is sent.
    """
    with tf.Graph().as_default():
        with on(0):
            x = tf.placeholder(tf.float32, [None], name="fed")
            texts = tf.placeholder(tf.string, [None], name="texts")
            old = tf.Variable(tf.ones([5000]), use_resource=False, name="old")
        with on(1):
            y, length = tf.reduce_sum(x), tf.size(texts)
            total = tf.reduce_sum(old)
        with session() as s:
            s.run(tf.global_variables_initializer())
            same(s.run(total), np.float32(5000))
        with tf.Session(SERVER.target, max_bytes=10_000, spmd=SPMD) as s:
            for _ in range(2):
                with pytest.raises(tf.errors.ResourceExhaustedError, match="max_bytes=10000"):
                    s.run(total)
                same(s.run(y, {x: np.ones(2500, np.float32)}), np.float32(2500))
                assert s.run(length, {texts: np.array([b"a" * 9_000], object)}) == 1
                for fetch, feed, value in (
                    (y, x, np.ones(2501, np.float32)),
                    (length, texts, np.array([b"a" * 20_000], object)),
                ):
                    if SPMD:
                        s.run(fetch, {feed: value})
                        continue
                    with pytest.raises(tf.errors.ResourceExhaustedError, match="max_bytes=10000"):
                        s.run(fetch, {feed: value})
    assert SERVER.transport.counts()[3] == 0


def other_limits() -> None:
    """Tasks whose sessions have different limits all learn it, before anything runs."""
    with tf.Graph().as_default():
        x = tf.constant(1.0)
        with (
            tf.Session(SERVER.target, max_bytes=1000 + mpi.rank(), spmd=True) as s,
            pytest.raises(ArgumentError, match="the same max_bytes"),
        ):
            s.run(x)


def crafted_news() -> None:
    """What no task of this version says is refused where it comes; the next run works."""
    with tf.Graph().as_default():
        with on(0):
            x = tf.constant(1.0)
        with on(1):
            y = x + 1.0
        with session() as s:
            same(s.run(y), np.float32(2))
            told = [(1, b"short"), (1, b""), (1, bytes(16)), (4, bytes(7)), (6, bytes(9)), (8, b""),
                    (99, b"{}")]  # fmt: skip
            for kind, data in told:
                with pytest.raises(MPIError, match="which no task of this version does"):
                    SERVER._take_news(0, 1, kind, data)
                same(s.run(y), np.float32(2))
            graph = tf.get_default_graph()
            known = {"code": 3, "message": "\x1b[2Jm", "node": y.op.name, "task": "t"}
            found = _read_error(json.dumps(known).encode(), graph)
            assert isinstance(found, tf.errors.InvalidArgumentError)
            assert found.op is y.op
            assert "\x1b" not in str(found)
            for data in NO_ERRORS:
                found = _read_error(data, graph)
                assert isinstance(found, tf.errors.OpError), data
                assert "\x1b" not in str(found)


NO_ERRORS = [
    b"", b"\xff\xfe", b"{", b"[]", b"{}", b"5", b"[" * 100_000, b'"\x1b[2J"',
    b'{"code": [], "message": 5, "node": [1], "task": {}}',
    b'{"code": 1e999, "message": null, "node": "^x", "task": "\\u001b[2J"}',
    b'{"code": 3, "message": "", "node": "nobody:5", "task": ""}',
]  # fmt: skip


def wrong_devices() -> None:
    with tf.Graph().as_default():
        with tf.device("/job:nobody"):
            x = tf.constant(1.0)
        with session() as s, pytest.raises(tf.errors.InvalidArgumentError, match="these tasks"):
            s.run(x)


def disagreements() -> None:
    """Tasks that do not make the same run all learn it, before anything runs."""
    with tf.Graph().as_default():
        x, y = tf.constant(1.0), tf.constant(2.0)
        with session() as s:
            with pytest.raises(ArgumentError, match="all tasks make the same runs"):
                s.run(x if mpi.rank() else y)
            assert s.run(y) == 2.0


def disagreements_about_known_runs() -> None:
    """Also where all tasks have made both runs before, or one of them makes a new one."""
    rank, last = SERVER.rank, tasks() - 1
    with tf.Graph().as_default():
        x, parts, alone = tf.placeholder(tf.float32, [None]), [], []
        for i in range(tasks()):
            with on(i):
                parts.append(x * float(i + 1))
                alone.append(tf.group(parts[-1]))
        with on(0):
            total = tf.add_n(parts)
        with on(last):
            root, more, other = tf.sqrt(total), tf.exp(total), tf.log(total)
        runs = [total, root, alone[0], alone[last], tf.group(*alone)]
        fed = {x: np.ones(2, np.float32)}
        sum_ = tasks() * (tasks() + 1) / 2
        with session() as s:
            for run in runs:
                s.run(run, fed)
            texts = []
            for mine, others in ((0, 1), (1, 0), (2, 3), (4, 2), (3, 1)):
                with pytest.raises(ArgumentError, match="all tasks make the same runs") as caught:
                    s.run(runs[mine if rank == 0 else others], fed)
                texts.append(str(caught.value))
                same(s.run(total, fed), np.full(2, sum_, np.float32))
            for who in (0, last):
                with pytest.raises(ArgumentError, match="all tasks make the same runs") as caught:
                    s.run((more if who else other) if rank == who else total, fed)
                texts.append(str(caught.value))
                same(s.run(total, fed), np.full(2, sum_, np.float32))
            if rank == 0:
                tf.constant(1.0)  # which changes no run, but has it compared again
            same(s.run(total, fed), np.full(2, sum_, np.float32))
    seen = mpi.allgather(np.frombuffer("".join(texts).encode(), np.uint8))
    assert (seen == seen[0]).all(), texts


def several_threads() -> None:
    """Sessions of several threads, each with runs of its own, one after the other per plan."""
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float64, [None])
        fetches = []
        for i in range(4):
            with on(0):
                a = x + float(i)
            with on(1):
                b = a * 2.0
            with on(0):
                fetches.append(b - 1.0)
    wrong: list[Any] = []

    def work(i: int, one: Any) -> None:
        for n in range(30):
            value = np.full(1 + n * 100, float(n))
            got = one.run(fetches[i], {x: value})
            if not (got == (value + i) * 2 - 1).all():
                wrong.append((i, n))

    with session(graph) as one, session(graph) as other:
        threads = [
            threading.Thread(target=work, args=(i, s)) for i in range(4) for s in (one, other)
        ]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
    assert not wrong, wrong


def queues() -> None:
    """A run that waits at a queue of another task goes on when another run enqueues there."""
    with tf.Graph().as_default():
        with on(1):
            queue = tf.FIFOQueue(2, [tf.int64, tf.string], [[2], []], shared_name="queues")
        x, text = tf.placeholder(tf.int64, [2]), tf.placeholder(tf.string, [])
        put, first = queue.enqueue([x, text]), queue.dequeue()
        close = queue.close()
        with session() as s, session() as other:
            got: list[Any] = []
            taker = threading.Thread(target=lambda: got.extend(s.run(first) for _ in range(5)))
            taker.start()
            for i in range(5):  # the queue holds two
                other.run(put, {x: [i, -i], text: b"%d" % i})
            taker.join()
            assert [row[0].tolist() for row in got] == [[i, -i] for i in range(5)]
            assert [row[1] for row in got] == [b"%d" % i for i in range(5)]
            late = tf.RunOptions(timeout_in_ms=100)
            with pytest.raises(tf.errors.DeadlineExceededError):
                s.run(first, options=late)
            other.run(put, {x: [8, 9], text: b"kept"})  # the run that has failed takes it no more
            assert s.run(first)[0].tolist() == [8, 9]
            ended: list[Any] = []

            def wait_in_vain() -> None:
                with pytest.raises(tf.errors.OutOfRangeError, match="is closed and has insuff"):
                    s.run(first)
                ended.append(True)

            taker = threading.Thread(target=wait_in_vain)
            taker.start()
            other.run(close)
            taker.join()
            assert ended
            with pytest.raises(tf.errors.CancelledError, match="is closed"):
                other.run(put, {x: [0, 0], text: b""})


def synchronous_workers() -> None:
    """Workers add gradients on the server, and wait for a token before the next step."""
    cluster = tf.train.ClusterSpec.from_mpi({"ps": 1})
    server = tf.train.Server(cluster)
    if server.task.job == "ps":
        server.join()
        sys.stdout.write("served\n")
        return
    count, worker = cluster.num_tasks("worker"), server.task.task
    with tf.Graph().as_default(), tf.device(f"/job:worker/task:{worker}"):
        with tf.device("/job:ps/task:0"):
            weight = tf.get_variable("weight", initializer=1.0)
            gradients = tf.FIFOQueue(count, tf.float32, [()], shared_name="gradients")
            tokens = [
                tf.FIFOQueue(1, tf.int64, [()], shared_name=f"token{i}") for i in range(count)
            ]
            started = tf.FIFOQueue(-1, tf.bool, [()], shared_name="started")
        read = weight.read_value()
        push = gradients.enqueue(read * float(worker + 1))
        with tf.device("/job:ps/task:0"):
            mean = tf.reduce_mean(gradients.dequeue_many(count))
            update = tf.assign_sub(weight, 0.1 * mean)
            with tf.control_dependencies([update]):
                release = tf.group(*[each.enqueue(tf.constant(0, tf.int64)) for each in tokens])
        wait, start = tokens[worker].dequeue(), tf.global_variables_initializer()
        announce = started.enqueue_many([tf.fill([count], True)])
        begin = started.dequeue()
        with tf.Session(server.target) as s:
            if worker == 0:
                s.run(start)
                s.run(announce)
            s.run(begin)
            for _ in range(20):
                s.run(push)
                if worker == 0:  # the chief
                    s.run(release)
                s.run(wait)
            wanted = 1.0
            for _ in range(20):
                wanted -= 0.1 * wanted * (count + 1) / 2
            np.testing.assert_allclose(s.run(read), wanted, rtol=1e-5)
    sys.stdout.write(f"worker {worker} is done\n")


def interrupted() -> None:
    """Ctrl-C in the middle of a run ends that run, and the next one works."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32, [])
        with on(1):
            y = tf.py_func(_slow, [x], tf.float32) if SPMD else x + 1.0
        with on(0):
            z = tf.reduce_sum(tf.fill([10, 100], 1.0)) * y
        with session() as s:
            s.run(z, {x: 0})
            for _ in range(3):
                timer = threading.Timer(0.01, os.kill, (os.getpid(), signal.SIGINT))
                with pytest.raises(KeyboardInterrupt):
                    _run_on(lambda: s.run(z, {x: 0}), timer)
                timer.join()
                assert s.run(z, {x: 0}) == 1000.0
    assert SERVER.transport.counts()[3] == 0


def _run_on(run: Callable[[], Any], timer: threading.Timer) -> None:
    """Run until the timer interrupts it."""
    timer.start()
    while True:
        run()


def _slow(x: Any) -> Any:
    return x + np.float32(1)


def interrupted_anywhere() -> None:
    """Interrupts come between any two instructions of the session's task; the next run works."""
    random = np.random.default_rng(0)
    armed, interrupted = False, 0

    def interrupt(_number: int, _frame: Any) -> None:
        if armed:
            raise KeyboardInterrupt

    usual = signal.signal(signal.SIGALRM, interrupt)
    try:
        with tf.Graph().as_default(), session() as s:
            x = tf.placeholder(tf.float32, [None])
            y = x
            for task in (1, 0, 1, 0):
                with on(task):
                    y = y * 2.0 + 1.0
            for number in range(300):
                value = np.full(random.choice([1, 3000, 30000]), float(number % 7), np.float32)
                armed = True
                try:
                    signal.setitimer(signal.ITIMER_REAL, random.uniform(1e-6, 2e-3))
                    for _ in range(2000):  # longer than the timer takes, on any machine
                        s.run(y, {x: value})
                    armed = False
                except KeyboardInterrupt:
                    armed = False
                    interrupted += 1
                same(s.run(y, {x: value}), value * 16 + 15)
    finally:
        signal.signal(signal.SIGALRM, usual)
    assert interrupted > 100, interrupted
    assert SERVER.transport.counts()[3] == 0


def no_memory_stays() -> None:
    def run() -> None:
        with tf.Graph().as_default():
            with on(0):
                x = tf.placeholder(tf.float32, [None])
                y = x + 1.0
            with on(1):
                z = y * 2.0
            with session() as s:
                for _ in range(5):
                    s.run(z, {x: np.ones(20000)})

    run()
    gc.collect()
    before = native.live()
    for _ in range(5):
        run()
    gc.collect()
    assert native.live() == before, (before, native.live())
    if SPMD:  # the others may still be in the last run
        until(lambda: not SERVER.transport.progress(), "the end of what is under way")


# ---- collectives -------------------------------------------------------------------------------

REDUCED = ("bfloat16", "float16", "float32", "float64", "int32", "int64")
MERGES = {"Add": np.add, "Mul": np.multiply, "Min": np.minimum, "Max": np.maximum}


def member_values(dtype: Any, shape: Any = (3, 2)) -> list[Any]:
    rng = np.random.default_rng(5)
    return [rng.integers(-3, 4, shape).astype(dtype.as_numpy_dtype) for _ in range(tasks())]


def all_reduced(values: Any, merge: str = "Add", final: str = "Id", key: int = 1) -> list[Any]:
    made = []
    for i, value in enumerate(values):
        with on(i):
            made.append(
                tf.collective_ops.all_reduce(value, len(values), 7, key, merge, final_op=final)
            )
    return made


def collective_reductions() -> None:
    """NumPy's reductions, of every dtype and operation, with the same bits on all members."""
    for dtype in REDUCED:
        kind = getattr(tf, dtype)
        values = member_values(kind)
        wanted, made = [], []
        with tf.Graph().as_default() as graph:
            for key, (merge, ufunc) in enumerate(MERGES.items()):
                made += all_reduced([tf.constant(each, kind) for each in values], merge, key=key)
                wanted += [reduce(ufunc, values)] * tasks()
            made += all_reduced([tf.constant(each, kind) for each in values], final="Div", key=9)
            total = reduce(np.add, values)
            mean = total / kind.as_numpy_dtype(tasks())
            mean = np.trunc(mean) if kind.is_integer else mean
            wanted += [mean.astype(total.dtype)] * tasks()
            with session() as s:
                for _ in range(3):
                    for got, value in zip(s.run(made), wanted, strict=True):
                        # Of many members, products are rounded in another order than here.
                        if kind in (tf.bfloat16, tf.float16) and tasks() > 4:
                            exact = value.astype(np.float64)
                            np.testing.assert_allclose(got.astype(np.float64), exact, rtol=0.05)
                        else:
                            same(got, value)
        assert len(graph.get_operations()) == tasks() * 10


def collective_rounding() -> None:
    """Sums of numbers that round have the same bits on all members: small, large, halves."""
    rng = np.random.default_rng(3)
    for dtype, shape in ((tf.float32, ()), (tf.float32, (70000,)), (tf.bfloat16, (100,))):
        values = [rng.standard_normal(shape).astype(dtype.as_numpy_dtype) for _ in range(tasks())]
        with tf.Graph().as_default(), session() as s:
            got = s.run(all_reduced([tf.constant(each, dtype) for each in values]))
        for each in got:
            same(each, got[0])
        exact = np.sum(np.stack(values).astype(np.float64), 0)
        close = 1e-4 if dtype is tf.float32 else 0.3
        np.testing.assert_allclose(got[0].astype(np.float64), exact, atol=close)


def collective_gathers_and_broadcasts() -> None:
    """Rows in the order of the tasks; the sender's value everywhere, also where shapes are open."""
    ops, size = tf.collective_ops, tasks()
    rows = member_values(tf.int32, (2, 3))
    with tf.Graph().as_default() as graph:
        gathered, sent = [], []
        x = tf.placeholder(tf.float32, [None, 2])
        for i in reversed(range(size)):
            with on(i):
                gathered.append(ops.all_gather(tf.constant(rows[i]), size, 1, 1))
                gathered.append(ops.all_gather(tf.identity(x), size, 1, 2))
                if i == size - 1:
                    value = tf.constant([[True, False]])
                    sent.append(ops.broadcast_send(value, [1, 2], tf.bool, size, 1, 3))
                else:
                    sent.append(ops.broadcast_recv([1, 2], tf.bool, size, 1, 3))
        fed = np.float32([[1, 2], [3, 4], [5, 6]])
        with session(graph) as s:
            for _ in range(2):
                first, second = s.run([gathered, sent], {x: fed})
                for one, other in zip(first[::2], first[1::2], strict=True):
                    same(one, np.concatenate(rows))
                    same(other, np.concatenate([fed] * size))
                for each in second:
                    same(each, np.array([[True, False]]))


def second_versions_of_collectives() -> None:
    """Their keys are constants of the graph; a GraphDef of them goes there and back."""
    size, sums, how = tasks(), "CollectiveReduceV2", {"merge_op": "Add", "final_op": "Id"}
    with tf.Graph().as_default() as graph:
        made = []
        for i in range(size):
            with on(i):
                keys = [tf.constant(n, tf.int32) for n in (size, 4, 2)]
                made += apply(sums, (tf.constant([i + 1.0]), *keys, []), how).outputs
                keys[2] = tf.constant(3)
                made += apply("CollectiveGatherV2", (tf.constant([i]), *keys, []), {}).outputs
                keys[2] = tf.constant(4)
                if i:
                    attrs = {"T": tf.float64}
                    made += apply("CollectiveBcastRecvV2", (*keys, [2]), attrs).outputs
                else:
                    value = tf.constant([5.0, 6.0], tf.float64)
                    made += apply("CollectiveBcastSendV2", (value, *keys), {}).outputs
        copy = tf.load_graph(tf.dump_graph(graph))
        with on(0):
            open_key = tf.placeholder(tf.int32, [])
            unknown = apply(sums, (tf.constant(1.0), 1, open_key, 1, []), how).outputs[0]
    with session(copy) as s:
        got = s.run([copy.get_tensor_by_name(each.name) for each in made])
    for i in range(size):
        same(got[3 * i], np.float32([size * (size + 1) / 2]))
        same(got[3 * i + 1], np.arange(size, dtype=np.int32))
        same(got[3 * i + 2], np.array([5.0, 6.0]))
    with session(graph) as s, pytest.raises(tf.errors.InvalidArgumentError, match="group_key must"):
        s.run(unknown, {open_key: 1})


def collectives_in_random_graphs() -> None:
    """Collectives between other nodes on random tasks give what NumPy does, in any order."""
    for seed in range(15):
        rng = random.Random(seed)
        with tf.Graph().as_default() as graph:
            values = [(np.float64([i, 2.0]), None) for i in range(1, 4)]
            values = [(value, tf.constant(value)) for value, _ in values]
            for key in range(rng.randint(1, 6)):
                for _ in range(rng.randint(0, 4)):
                    (a, x), (b, y) = rng.choice(values), rng.choice(values)
                    with on(rng.randrange(8)):
                        values.append((a + 0.5 * b, x + 0.5 * y))
                chosen = [rng.choice(values) for _ in range(rng.randint(1, 5))]
                places = rng.sample(range(8), len(chosen))
                total = np.sum([value for value, _ in chosen], axis=0)
                for place, (_, tensor) in zip(places, chosen, strict=True):
                    with on(place):
                        made = tf.collective_ops.all_reduce(tensor, len(chosen), key, key)
                    values.append((total, made))
            with session(graph) as s:
                for _ in range(2):
                    got = s.run([tensor for _, tensor in values])
                    for each, (wanted, _) in zip(got, values, strict=True):
                        np.testing.assert_allclose(each, wanted, rtol=1e-12)


def collectives_that_do_not_fit() -> None:
    """Each is an error on all tasks, which names the operations; the next run works."""
    ops, size = tf.collective_ops, tasks()

    def group(**changed: Any) -> list[Any]:
        made = []
        for i in range(size):
            call: dict[str, Any] = {"t": [1.0, 2.0], "group_size": size, "instance_key": 3}
            if i == size - 1:
                call |= changed
            with on(i):
                made.append(ops.all_reduce(group_key=5, **call))
        return made

    for changed, text in (
        ({"group_size": size + 1}, f"same group_size.* group_size {size}; .*group_size {size + 1}"),
        ({"t": [1.0, 2.0, 3.0]}, r"same kind, dtype and shape.*\(2,\).*\(3,\)"),
        ({"t": [1, 2]}, "same kind, dtype and shape.*float32.*int32"),
        ({"merge_op": "Max"}, "Add and Id.*Max and Id"),
        ({"instance_key": 4}, f"have group_size {size}, and this run has {size - 1} of them"),
    ):
        with tf.Graph().as_default(), session() as s:
            made, good = group(**changed), all_reduced([tf.constant(1.0)] * size)
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                s.run(made)
            same(s.run(good)[0], np.float32(size))

    with tf.Graph().as_default(), session() as s:  # open shapes: seen when it runs
        x = tf.placeholder(tf.float32, [None])
        with on(1):
            longer = tf.concat([x, x], 0)
        values = [longer if i == 1 else x for i in range(size)]
        made = all_reduced(values)
        text = r"all members of its group must have tensors of the same shape, got \[.\], \[.\]"
        for _ in range(2):
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                s.run(made, {x: [1.0]})
            for got in s.run(made, {x: []}):
                same(got, np.zeros(0, np.float32))

    with tf.Graph().as_default(), session() as s:  # they wait for each other
        with on(0):
            one = ops.all_reduce(tf.constant(1.0), 2, 7, 2)
            late = ops.all_reduce(one, 2, 7, 3)
        with on(1):
            other = ops.all_reduce(tf.constant(1.0), 2, 7, 3)
            with tf.control_dependencies([other]):
                last = ops.all_reduce(tf.constant(1.0), 2, 7, 2)
        text = "wait for each other: (CollectiveReduce[_0-9]*,? ?){4};"
        with pytest.raises(tf.errors.InvalidArgumentError, match=text):
            s.run([late, last])
        with on(1):
            own = ops.all_reduce(ops.all_reduce(tf.constant(1.0), 2, 8, 1), 2, 8, 1)
        with pytest.raises(tf.errors.InvalidArgumentError, match="result of its own group"):
            s.run(own)

    with tf.Graph().as_default(), session() as s:
        with on(0):
            made = mpi.allreduce(tf.constant(1.0))
        for _ in range(2):  # one task alone cannot make its part
            text = r"in a graph is of sessions of one process.* tf\.collective_ops exchanges"
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                s.run(made)

    if SPMD:  # tasks whose graphs differ
        with tf.Graph().as_default(), session() as s:
            made = group(group_size=size + (SERVER.rank == 0))
            text = r"From /job:worker/replica:0/task:0:\nCollective .* have the same group_size"
            with pytest.raises(tf.errors.InvalidArgumentError, match=text):
                s.run(made)
            same(s.run(all_reduced([tf.constant(1.0)] * size))[0], np.float32(size))


def failing_members() -> None:
    """A member that fails is an error of all, and no value of it is left for the next run."""
    with tf.Graph().as_default(), session() as s:
        x = tf.placeholder(tf.int32)
        values = []
        for i in range(tasks()):
            with on(i):
                values.append(tf.floordiv(tf.constant(6), x) if i == 1 else tf.constant(1))
        made = all_reduced(values)
        for _ in range(3):
            with pytest.raises(tf.errors.InvalidArgumentError, match="division by zero"):
                s.run(made, {x: 0})
            for got in s.run(made, {x: 2}):
                same(got, np.int32(2 + tasks()))


# ---- traces ------------------------------------------------------------------------------------


def one_trace() -> None:
    """One file has the bars of all tasks, and an arrow for each message, forward in time."""
    path = Path(sys.argv[1]) / "trace.json"
    with tf.Graph().as_default(), session() as s:
        value = tf.constant(np.ones(10_000))
        for i in range(2 * tasks()):
            with on(i):
                value = tf.sqrt(value, name=f"hop_{i}")
        for options in (None, None, tf.RunOptions(timeout_in_ms=60_000)):
            trace = tf.Trace()
            s.run(value, options=options, trace=trace)
            SERVER.save_trace(trace, path)
        if SPMD:
            mpi.barrier()
            hops, ends = 2 * tasks() - 1, tasks() - 1
        else:
            hops, ends = 2 * tasks() - 1, 1
            others = {str(task) for task in SERVER.tasks.values()} - {str(SERVER.task)}
            assert set(trace.others) == others, trace.others
            assert not SERVER._events
            assert not SERVER._clocks
    events = json.loads(path.read_text())["traceEvents"]
    named = {e["pid"]: e["args"]["name"] for e in events if e["name"] == "process_name"}
    assert named == {rank: str(task) for rank, task in SERVER.tasks.items()}, named
    bars = [event for event in events if event["ph"] == "X"]
    for i in range(2 * tasks()):
        (bar,) = [each for each in bars if each["args"]["nodes"] == [f"hop_{i}"]]
        assert bar["pid"] == i % tasks(), bar
    messages = [each for each in bars if each["cat"] == "message"]
    # Each hop goes on to the next task, and the last value to all that fetch it.
    assert len(messages) == 2 * (hops + ends), len(messages)
    starts = {event["id"]: event for event in events if event["ph"] == "s"}
    finishes = {event["id"]: event for event in events if event["ph"] == "f"}
    assert len(starts) == len(finishes) == hops + ends
    for number, begin in starts.items():
        end = finishes[number]
        assert end["bp"] == "e", end
        assert begin["name"] == end["name"]
        assert begin["pid"] != end["pid"]
        for flow, kind in ((begin, "_Send"), (end, "_Recv")):
            (bar,) = [
                each
                for each in messages
                if each["args"]["message"] == flow["name"] and each["args"]["types"] == [kind]
            ]
            assert (bar["pid"], bar["tid"]) == (flow["pid"], flow["tid"])
            assert bar["ts"] <= flow["ts"] <= bar["ts"] + bar["dur"]
        assert begin["ts"] < end["ts"], (begin, end)  # as the clock of rank 0 has it
    assert min(each["ts"] for each in bars) >= 0


def clocks_of_other_hosts() -> None:
    """Where tasks have clocks of their own, they are compared by messages."""
    with tf.Graph().as_default(), session() as s, pytest.MonkeyPatch.context() as patch:
        patch.setattr(timeline, "clock", lambda: f"one of {os.getpid()}")
        with on(1):
            there = tf.sqrt(tf.placeholder_with_default(4.0, []), name="there")
        trace, before = tf.Trace(), trace_clock()
        s.run(there, trace=trace)
        if not SPMD and tasks() > 1:
            began, events = trace.others[str(SERVER.tasks[1])]
            assert [each["args"]["nodes"] for each in events][-2] == ["there"], events
            assert abs(began - before) < PATIENCE * 1e9  # the clocks are the same, in truth
        SERVER.save_trace(trace, Path(sys.argv[1]) / "clocks.json")
    assert not SERVER._clocks


def failing_traces() -> None:
    """A traced run that fails leaves nothing to wait for, and the next one has all parts."""
    path = Path(sys.argv[1]) / "failed.json"
    for where in range(tasks()):
        with tf.Graph().as_default(), session() as s:
            d, x = failing(where)
            for number in (1, 0, 2):
                trace = tf.Trace()
                if number:
                    assert s.run(d, {x: number}, trace=trace) == s.run(d, {x: number})
                    assert len(trace.others) == len({0, where % tasks(), (where + 1) % tasks()}) - 1
                else:
                    with pytest.raises(tf.errors.InvalidArgumentError, match=f"divide_{where}"):
                        s.run(d, {x: number}, trace=trace)
                    assert trace.others == {}
                SERVER.save_trace(trace, path)
                assert json.loads(path.read_text())["traceEvents"]
    assert not SERVER._events
    with tf.Graph().as_default(), session() as s:  # nothing runs elsewhere
        with on(0):
            here = tf.constant(1.0) + 1.0
        trace = tf.Trace()
        s.run(here, trace=trace)
        SERVER.save_trace(trace, path)


def late_traces() -> None:
    """A traced run waits for the parts of other tasks until its time is over, and no longer."""
    options = tf.RunOptions(timeout_in_ms=300)
    with tf.Graph().as_default(), session() as s:
        with on(1):
            there = tf.constant(1.0) + 1.0
        with on(0):
            here = there * 2.0
        usual = SERVER._has_come
        SERVER._has_come = lambda _replies, _rank: False  # as if it never came
        trace = tf.Trace()
        with (
            lasts(0.25),
            pytest.raises(tf.errors.DeadlineExceededError, match="timed out after 300 ms"),
        ):
            s.run(here, options=options, trace=trace)
        assert trace.others == {}
        assert s.run(here, options=options) == 4.0  # nobody looks at its steps
        SERVER._has_come = usual
        assert s.run(here, options=tf.RunOptions(timeout_in_ms=60_000), trace=trace) == 4.0
        assert len(trace.others) == 1
    assert not SERVER._events


# ---- structures, children, interrupts ----------------------------------------------------------


class Pair(NamedTuple):
    first: Any
    rest: Any


class Boxed:
    """A type that users register, as keys of feeds and as fetches."""

    def __init__(self, inner: Any, name: str) -> None:
        self.inner = inner
        self.name = name


def registered_structures() -> None:
    """Values of other tasks inside of named tuples, sparse tensors and registered types."""
    fetches.register(
        Boxed,
        lambda box: fetches.Parts((box.inner,), lambda got: Boxed(got[0], box.name), box.name),
    )
    feeds.register(Boxed, lambda box: feeds.Composite((box.inner,), lambda value: (value.inner,)))
    for count in (3, 5000):  # in a message, and lent
        with tf.Graph().as_default(), session() as s:
            with on(0):
                x = tf.placeholder(tf.float64, [count])
                sparse = tf.sparse_placeholder(tf.float64, [count])
            with on(1):
                y, z = x + 1.0, x * 2.0
                indices, values = tf.identity(sparse.indices), sparse.values * 3.0
                moved = tf.SparseTensor(indices, values, sparse.dense_shape)
            fetch = Pair(Boxed(y, "y"), {"z": [z, Pair(moved, ())], "x": (x,), "op": y.op})
            box = Boxed(x, "x")
            value = np.arange(float(count))
            rows = np.arange(0, count, 2)[:, None]
            fed = tf.SparseTensorValue(rows, np.ones(len(rows)), [count])
            kept = []
            for n in range(5):
                feed = {box: Boxed(value + n, ""), sparse: fed}
                got = s.run(fetch, feed, copy=n % 2 == 0)
                kept.append(got)
            for n, got in enumerate(kept):
                assert type(got) is Pair
                assert type(got.first) is Boxed
                assert (got.first.name, got.rest["op"], got.rest["z"][1].rest) == ("y", None, ())
                same(got.first.inner, value + n + 1)
                same(got.rest["z"][0], (value + n) * 2)
                same(got.rest["x"][0], value + n)
                back = got.rest["z"][1].first
                assert type(back) is tf.SparseTensorValue
                same(back.indices, rows)
                same(back.values, np.full(len(rows), 3.0))
            kept.clear()
            got = None
    if SPMD:
        settled_arena()


def children_of_tasks() -> None:
    """In a forked child all that would speak to other tasks is refused; its parent goes on."""
    kept = tf.Trace()
    with tf.Graph().as_default(), session() as s:
        with on(1):
            y = tf.sqrt(tf.placeholder_with_default(4.0, [], name="sent"))
            large = _large(1)
        sums = all_reduced([tf.constant(1.0)] * tasks())
        s.run([y, large, sums])
        s.run(y, trace=kept)
        path = Path(sys.argv[1]) / "forked.json"
        SERVER.save_trace(kept, path)
        calls: dict[str, Callable[[], Any]] = {
            "a run": lambda: s.run(y),
            "another run": lambda: s.run([large]),
            "a deadline": lambda: s.run(y, options=tf.RunOptions(timeout_in_ms=1000)),
            "a new plan with a deadline": lambda: s.run(
                [y, large], options=tf.RunOptions(timeout_in_ms=1000)
            ),
            "a collective": lambda: s.run(sums),
            "a trace": lambda: s.run(y, trace=tf.Trace()),
            "a session": lambda: session().run(y),
            "a server": lambda: tf.train.Server(SERVER.cluster),
            "to serve": lambda: SERVER.join(),
        }
        if SPMD:
            calls["a trace of all"] = lambda: SERVER.save_trace(kept, path)
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            os.close(reader)
            said = {}
            for name, call in calls.items():
                try:
                    call()
                    said[name] = "taken"
                except BaseException as error:
                    said[name] = f"{type(error).__name__}: {error}"
            s.close()
            gc.collect()
            os.write(writer, json.dumps(said).encode())
            os._exit(0)
        os.close(writer)
        for _ in range(20):  # while the child tries
            assert s.run(y) == 2.0
            for each in s.run(sums):
                same(each, np.float32(tasks()))
        with os.fdopen(reader) as file:
            said = json.loads(file.read())
        os.waitpid(child, 0)
        assert said.keys() == calls.keys()
        for name, text in said.items():
            assert text.startswith("MPIError"), (name, text)
            assert "forked" in text, (name, text)
        for _ in range(5):
            assert s.run(y) == 2.0
            s.run([large, sums])
    assert SERVER.transport.counts()[3] == 0


def interrupted_copies() -> None:
    """Ctrl-C while a value is copied to where others read it: the block is free again."""
    count = 2_000_000  # 16 MB: the copy takes milliseconds
    value = np.arange(float(count))
    with tf.Graph().as_default(), session() as s:
        with on(0):
            x = tf.placeholder(tf.float64, [count])
        with on(1):
            last = tf.identity(x)[-1]
        stopped = 0
        wanted = value[-1]
        assert s.run(last, {x: value}) == wanted
        for number in range(30):
            timer = threading.Timer(1e-3 + number * 5e-4, os.kill, (os.getpid(), signal.SIGINT))
            try:
                _run_on(lambda: s.run(last, {x: value}), timer)
            except KeyboardInterrupt:
                stopped += 1
            timer.join()
            assert s.run(last, {x: value + number}) == wanted + number
        assert stopped == 30
        for _ in range(500):
            if not SERVER.transport.arena()[1]:
                break
            s.run(last, {x: value})
            pause(0.01)
        assert SERVER.transport.arena()[1] == 0
    assert SERVER.transport.counts()[3] == 0


# ---- how tasks end -----------------------------------------------------------------------------


def ending(end: Callable[[], object]) -> None:
    """Task 1 ends while task 0 waits for it."""
    global SERVER
    SERVER = tf.train.Server({"worker": ["a:1", "b:1"]})
    with on(0):
        x = tf.placeholder(tf.float32, [])
    with on(1):
        y = x + 1.0
    if SERVER.rank == 1:
        pause(0.2)
        end()
        return
    with tf.Session(SERVER.target) as s:
        try:
            s.run(y, {x: 1})
        except tf.errors.UnavailableError as error:
            print("unavailable:", error, flush=True)
            raise


def serves_to_the_end(finalises: bool = False) -> None:
    """The scripts of all tasks but one have ended, and MPI says so, when that one drives them."""
    global SERVER
    import_module("dlbridge.mpi.job").GRACE = 0.0
    SERVER = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    last = tasks() - 1
    job = engine().job
    if SERVER.rank != last:
        if finalises:
            job.mpi.Finalize()
        return
    while len(job.left) < last:
        job.notice()
    with tf.Graph().as_default(), tf.Session(SERVER.target) as s:
        x, parts = tf.placeholder(tf.float32, [None]), []
        for i in range(tasks()):
            with on(i):
                parts.append(x * float(i + 1))
        for size in (2, 20000):
            same(s.run(parts, {x: np.ones(size, np.float32)})[0], np.ones(size, np.float32))
        with on(0):
            wrong = tf.matmul(tf.reshape(x, [1, -1]), tf.ones([3, 1]))
        with pytest.raises(tf.errors.InvalidArgumentError, match="task:0"):
            s.run(wrong, {x: np.ones(2, np.float32)})
        same(s.run(parts[0], {x: np.ones(2, np.float32)}), np.ones(2, np.float32))
    print("served to the end")


def serves_in_finalize() -> None:
    """The same, where they call MPI.Finalize."""
    serves_to_the_end(finalises=True)


def one_script_ends_first() -> None:
    """The runs that it has made end on all tasks; one that it never makes fails."""
    global SERVER
    import_module("dlbridge.mpi.job").GRACE = 0.0
    SERVER = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    with on(1):
        x = tf.constant(1.0)
    s = tf.Session(SERVER.target, spmd=True)
    for _ in range(3):
        assert s.run(x) == 1.0
    if SERVER.rank == 0:
        return
    job = engine().job
    while not job.left:
        job.notice()
        SERVER.transport.progress()
    first = 1 << 63 | 1 << 40  # of the first session
    SERVER._look(frozenset((0,)), first | 3, 1)
    with pytest.raises(tf.errors.UnavailableError, match="task:0 has ended"):
        SERVER._look(frozenset((0,)), first | 4, 1)
    print("told apart", SERVER.rank, flush=True)


def raises() -> None:
    def end() -> None:
        raise ValueError("on purpose")

    ending(end)


def is_killed() -> None:
    ending(lambda: os.kill(os.getpid(), signal.SIGKILL))


def others_survive() -> None:
    """The last task is killed in a run: UnavailableError; the others go on without it.

    What it has lent stays readable, and what is sent to its mailbox fills that up in vain.
    """
    global SERVER, SPMD
    SPMD = False
    SERVER = tf.train.Server({"worker": [f"host:{i}" for i in range(mpi.size())]})
    last = tasks() - 1
    processes = mpi.allgather(np.array(os.getpid()))
    if SERVER.rank:
        SERVER.join()
        print("served", SERVER.rank)
        return
    with tf.Graph().as_default(), session() as s:
        with on(1):
            near = tf.sqrt(tf.constant(np.ones(3)))
        with on(0):
            x = tf.placeholder(tf.float64, [])
            sent = [tf.fill([100], 1.0) * tf.cast(x, tf.float32) for _ in range(400)]  # 160 kB
        with on(last):
            far = near + 1.0
            total = tf.add_n([tf.reduce_sum(each) for each in sent])
        lent = _large(last)
        assert s.run(total, {x: 2.0}) == 80_000.0
        kept = s.run(lent, copy=False)
        copy = kept.copy()
        same(s.run(far), np.full(3, 2.0))
        threading.Timer(0.2, os.kill, (int(processes[last]), signal.SIGKILL)).start()

        def until_it_fails() -> None:
            while True:
                same(s.run(far), np.full(3, 2.0))

        with pytest.raises(tf.errors.UnavailableError, match=f"task:{last} was lost"):
            until_it_fails()
        for _ in range(3):
            same(s.run(near), np.ones(3))
            for fetch in (far, total, lent):
                with pytest.raises(tf.errors.UnavailableError, match=f"task:{last} was lost"):
                    s.run(fetch, {x: 2.0})
            same(kept, copy)
    print("driven on")


def workers() -> None:
    """Each worker drives steps of its own on the parameter server, which keeps the variable."""
    size, rank = mpi.size(), mpi.rank()
    cluster = tf.train.ClusterSpec({"ps": ["ps:1"], "worker": [f"w{i}:1" for i in range(size - 1)]})
    job, index = ("ps", 0) if rank == 0 else ("worker", rank - 1)
    server = tf.train.Server(cluster, job_name=job, task_index=index)
    if job == "ps":
        server.join()
        print("served")
        return
    with tf.device(tf.train.replica_device_setter(cluster=cluster)):
        w = tf.get_variable("w", initializer=0.0, use_resource=True)
        add = tf.assign_add(w, 1.0)
        ready = tf.is_variable_initialized(w)
    with tf.Session(server.target) as s:
        if index == 0:
            s.run(tf.global_variables_initializer())
        while not s.run(ready):
            pause(0.01)
        for _ in range(50):
            s.run(add)
        until(lambda: s.run(w) == 50.0 * (size - 1), "the last worker's addition")
        print("worker", index, "is done")


def refused() -> None:
    """Processes that are not the tasks of one cluster all learn it."""
    size, rank = mpi.size(), mpi.rank()
    for make in (
        lambda: tf.train.Server({"worker": ["a:1"] * (size + 1)}),
        lambda: tf.train.Server({"worker": ["a:1"] * size}, "worker", 0),
        lambda: tf.train.Server({f"w{rank}": ["a:1"] * size}),
    ):
        with pytest.raises(ArgumentError, match=r"Server: .*process"):
            make()
    cluster = tf.train.ClusterSpec.from_mpi({"ps": 1})
    assert cluster.num_tasks("ps") == 1
    assert cluster.task_address("worker", 0).endswith(":1"), cluster
    with pytest.raises(ArgumentError, match="processes"):
        tf.train.ClusterSpec.from_mpi({"ps": size + 1})
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    with pytest.raises(tf.errors.NotFoundError, match=r"known: 'mpi:///job:worker"):
        tf.Session("grpc://a:1")
    print("refused", server.target)


def main() -> None:
    global SERVER, SPMD, PROCESSES
    say_where_on_request()
    folder, kind, *names = sys.argv[1:]
    if folder == "-":
        globals()[kind]()
        return
    SPMD = kind == "spmd"
    PROCESSES = mpi.allgather(np.array(os.getpid()))
    SERVER = tf.train.Server({"worker": [f"host:{i}" for i in range(mpi.size())]})
    with (Path(folder) / str(mpi.rank())).open("w") as file:
        if not SPMD and SERVER.rank:
            SERVER.join()
            names = ["join"]
        for name in names:
            try:
                if name != "join":
                    globals()[name]()
                said = "ok"
            except BaseException:
                said = traceback.format_exc()
            file.write(json.dumps([name, said]) + "\n")
            file.flush()


if __name__ == "__main__":
    main()

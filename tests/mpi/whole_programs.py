"""Programs as people write them over `dlbridge.mpi`; test_whole_programs.py runs them on ranks.

Each compares with what one process computes from all data. They run undisturbed, with ranks that
are late and interrupted, over a link that is cut for a while, and with a rank that ends.
"""

from __future__ import annotations

import itertools
import json
import os
import random
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path
from typing import Any

import numpy as np
from measuring import pause, say_where_on_request
from mpi4py import MPI

import dlbridge.graph as tf
from dlbridge import mpi
from dlbridge.errors import MPITimeoutError

RANK, SIZE = mpi.rank(), mpi.size()


def near(got: Any, wanted: Any) -> None:
    np.testing.assert_allclose(got, wanted, rtol=1e-9, atol=1e-12)


def bucketed_data_parallel() -> None:
    """Gradients as a tree, one allreduce a step: the weights of training on all samples."""

    def begun(tree: Any) -> Any:
        return mpi.iallreduce(tree, "mean").wait()

    random = np.random.default_rng(0)
    x, y = random.standard_normal((4 * SIZE, 5)), random.standard_normal((4 * SIZE, 2))

    def train(x: Any, y: Any, reduce: Any) -> dict[str, Any]:
        model = {"w": np.zeros((5, 2)), "b": np.zeros(2)}
        for _ in range(20):
            miss = x @ model["w"] + model["b"] - y
            gradient = reduce({"w": x.T @ miss / len(x), "b": miss.mean(0)})
            model = {name: model[name] - 0.1 * gradient[name] for name in model}
        return model

    mine = slice(4 * RANK, 4 * RANK + 4)
    for reduce in (lambda tree: mpi.allreduce(tree, "mean"), begun):
        got = train(x[mine], y[mine], reduce)
        for name, wanted in train(x, y, lambda tree: tree).items():
            near(got[name], wanted)


def mixture_of_experts() -> None:
    """Tokens go to the expert of their choice, and come back to their places."""
    random = np.random.default_rng(RANK)
    tokens, experts = random.standard_normal((9, 4)), random.integers(0, SIZE, 9)
    order = np.argsort(experts, kind="stable")
    counts = np.bincount(experts, minlength=SIZE).tolist()
    rows, came = mpi.alltoallv(tokens[order], counts)
    back, again = mpi.alltoallv(rows * (RANK + 1.0), came)
    assert again == counts
    result = np.empty_like(tokens)
    result[order] = back
    near(result, tokens * (experts + 1.0)[:, None])


def pipeline() -> None:
    """Micro-batches pass through a stage of each rank, several under way."""
    batches = [np.full((3, 700), float(i)) for i in range(6)]
    sent = []
    for i, batch in enumerate(batches):
        given = batch if RANK == 0 else mpi.recv(RANK - 1, i)
        made = given * 2.0 + RANK
        if RANK < SIZE - 1:
            sent.append(mpi.isend(made, RANK + 1, i))
        else:
            wanted = batch
            for stage in range(SIZE):
                wanted = wanted * 2.0 + stage
            near(made, wanted)
    mpi.waitall(sent)


def halo() -> None:
    """Heat on a rod, whose ends have no neighbour."""
    from mpi4py import MPI

    grid = MPI.COMM_WORLD.Create_cart([SIZE], [False])
    left, right = grid.Shift(0, 1)
    whole = np.random.default_rng(1).standard_normal(8 * SIZE)
    mine = np.zeros(10)
    mine[1:-1] = whole[8 * RANK : 8 * RANK + 8]
    for _ in range(15):
        mpi.sendrecv(mine[1:2], left, right, out=mine[-1:], comm=grid)
        mpi.sendrecv(mine[-2:-1], right, left, out=mine[:1], comm=grid)
        mine[1:-1] += 0.2 * (mine[:-2] - 2 * mine[1:-1] + mine[2:])
        ends = np.concatenate(([0.0], whole, [0.0]))
        whole = whole + 0.2 * (ends[:-2] - 2 * whole + ends[2:])
    near(mine[1:-1], whole[8 * RANK : 8 * RANK + 8])
    grid.Free()


def ring() -> None:
    """Each rank sees the blocks of all in turn, as in ring attention."""
    blocks = np.random.default_rng(2).standard_normal((SIZE, 40, 8))
    query, block, total = blocks[RANK], blocks[RANK], np.zeros((40, 8))
    for _ in range(SIZE):
        total += query @ block.T @ block
        block = mpi.sendrecv(block, (RANK + 1) % SIZE, (RANK - 1) % SIZE)
    near(block, blocks[RANK])
    near(total, sum(query @ each.T @ each for each in blocks))


def parameter_server() -> None:
    """Rank 0 takes whatever comes first, and answers its sender."""
    steps, weights = 5, np.zeros(3)
    if RANK == 0:
        for _ in range(steps * (SIZE - 1)):
            request = mpi.irecv()
            weights = weights + request.wait()
            mpi.send(weights, request.source)
    else:
        before = 0.0
        for _ in range(steps):
            mpi.send(np.full(3, float(RANK)), 0)
            seen = mpi.recv(0)
            assert seen[0] >= before + RANK
            before = seen[0]
    near(mpi.bcast(weights if RANK == 0 else None), np.full(3, steps * SIZE * (SIZE - 1) / 2))


def scattered_work() -> None:
    """The root hands out rows, and collects what was made of them."""
    rows = np.arange(SIZE * 6.0).reshape(SIZE, 6)
    mine = mpi.scatter(rows if RANK == 0 else None)
    found = mpi.gather({"square": mine**2, "sum": mine.sum(keepdims=True)})
    if RANK == 0:
        near(found["square"], rows**2)
        near(found["sum"], rows.sum(1, keepdims=True))
    else:
        assert found is None


def sharded_optimizer() -> None:
    """Each rank keeps the momentum of its shard of the weights alone."""
    gradients = np.random.default_rng(3).standard_normal((10, SIZE, SIZE * 3))
    weights, momentum = np.zeros(SIZE * 3), np.zeros(3)
    whole, its_momentum = np.zeros(SIZE * 3), np.zeros(SIZE * 3)
    for each in gradients:
        momentum = 0.9 * momentum + mpi.reduce_scatter(each[RANK].reshape(SIZE, 3), "mean")
        weights = weights - 0.1 * mpi.allgather(momentum).reshape(-1)
        its_momentum = 0.9 * its_momentum + each.mean(0)
        whole = whole - 0.1 * its_momentum
    near(weights, whole)


def transform_in_two_dimensions() -> None:
    """A Fourier transform of rows, a transposition over all ranks, and one of columns."""
    side = 4 * SIZE
    whole = np.random.default_rng(4).standard_normal((side, side))
    mine = np.fft.fft(whole[4 * RANK : 4 * RANK + 4])
    columns = mpi.alltoall(mine.reshape(4, SIZE, 4).transpose(1, 2, 0))
    got = np.fft.fft(columns.transpose(1, 0, 2).reshape(4, side))
    near(got, np.fft.fft2(whole).T[4 * RANK : 4 * RANK + 4])


def spmd_graph() -> None:
    """All tasks make the same runs of one graph; its variable is that of the first task."""
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    with tf.Graph().as_default():
        with tf.device("/job:worker/task:0"):
            total = tf.Variable(tf.constant(0.0, tf.float64), use_resource=True)
        parts = []
        for task in range(SIZE):
            with tf.device(f"/job:worker/task:{task}"):
                parts.append(tf.constant(float(task + 1), tf.float64) * 2.0)
        add = tf.assign_add(total, tf.add_n(parts))
        start = tf.global_variables_initializer()
        with tf.Session(server.target, spmd=True) as session:
            session.run(start)
            for step in range(1, 5):
                assert session.run(add) == step * SIZE * (SIZE + 1)


def random_calls() -> None:
    """Collectives of tensors and trees, waited for or begun, on communicators that come and go."""
    draw, own = random.Random(next(SEEDS)), random.Random(RANK)
    parity = sorted(range(RANK % 2, SIZE, 2), reverse=True)
    world = MPI.COMM_WORLD
    made = [(world.Dup(), range(SIZE)), (world.Split(RANK % 2, -RANK), parity)]
    begun: list[tuple[Any, Any]] = []
    for _ in range(40):
        comm, members = draw.choice([(world, range(SIZE)), *made])
        call, kind, salt = draw.choice(CALLS), draw.choice(KINDS), draw.random()
        sizes = [draw.choice([0, 1, 100, 3000, 40_000]) for _ in range(draw.choice([1, 2, 5]))]
        number = draw.randrange(SIZE)
        trees = [tree_of(kind, sizes, salt + rank) for rank in members]
        own_place, root = members.index(RANK), number % len(members)
        arguments = trees[own_place], *([] if call == "allreduce" else [root])
        wanted = {
            "allreduce": lambda trees=trees: together(sum, trees),
            "bcast": lambda trees=trees, root=root: trees[root],
            "gather": lambda trees=trees: together(np.stack, trees),
        }[call]()
        if call == "gather" and root != own_place:
            wanted = None
        if draw.random() < 0.4:
            same(getattr(mpi, call)(*arguments, comm=comm), wanted)
        else:
            begun.append((getattr(mpi, f"i{call}")(*arguments, comm=comm), wanted))
        if len(begun) == 8:
            finish(begun, own)
    finish(begun, own)
    for comm, _ in made:
        comm.Free()


CALLS, KINDS = ("allreduce", "bcast", "gather"), ("tensor", "list", "dict")
SEEDS = itertools.count()  # of the same programs on all ranks


def tree_of(kind: str, sizes: list[int], start: float) -> Any:
    arrays = [np.arange(size) + start for size in sizes]
    return {
        "tensor": arrays[0],
        "list": arrays,
        "dict": {"first": arrays[0], "rest": {"arrays": arrays[1:], "name": "x"}},
    }[kind]


def together(combine: Callable[[list[Any]], Any], trees: list[Any]) -> Any:
    """Return a tree of what `combine` makes of the arrays at each place."""
    first = trees[0]
    if isinstance(first, dict):
        return {key: together(combine, [tree[key] for tree in trees]) for key in first}
    if isinstance(first, list):
        return [together(combine, list(each)) for each in zip(*trees, strict=True)]
    return first if isinstance(first, str) else combine(trees)


def same(got: Any, wanted: Any) -> None:
    if isinstance(wanted, dict):
        assert list(got) == list(wanted)
        got, wanted = list(got.values()), list(wanted.values())
    if isinstance(wanted, list):
        for pair in zip(got, wanted, strict=True):
            same(*pair)
    elif isinstance(wanted, np.ndarray):
        near(got, wanted)
    else:
        assert got == wanted


def finish(begun: list[tuple[Any, Any]], own: random.Random) -> None:
    """Wait for calls in an order of this rank's own, and several times for some."""
    own.shuffle(begun)
    for request, wanted in begun:
        found: list[Any] = []
        while not found:
            with suppress(MPITimeoutError):
                found.append(request.wait(timeout=own.choice([0, 0.001, 60])))
        same(found[0], wanted)
    begun.clear()


# ---- disturbances --------------------------------------------------------------------------------


@contextmanager
def undisturbed() -> Iterator[range]:
    yield range(1)


@contextmanager
def late() -> Iterator[range]:
    """Signals come at random times, into waits as into steps, and delay what they interrupt."""
    chosen = random.Random(RANK)

    def handle(*_: Any) -> None:
        if chosen.random() < 0.3:
            pause(0.02)
        signal.setitimer(signal.ITIMER_REAL, chosen.uniform(0.0005, 0.01))

    before = signal.signal(signal.SIGALRM, handle)
    signal.setitimer(signal.ITIMER_REAL, 0.001)
    try:
        yield range(10)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def cut() -> Iterator[range]:
    """The link between the hosts is down for a moment, then up again."""

    def link() -> None:
        for state in ("down", "up"):
            subprocess.run(["ip", "link", "set", "e0", state], check=True)
            pause(0.3)

    thread = threading.Thread(target=link)
    if RANK == 0:
        thread.start()
    try:
        yield range(20)
    finally:
        if RANK == 0:
            thread.join()


DISTURBANCES: dict[str, Callable[[], AbstractContextManager[range]]] = {
    "undisturbed": undisturbed,
    "late": late,
    "cut": cut,
}
ENDS = {"killed": signal.SIGKILL, "interrupted": signal.SIGINT}


def main() -> None:
    say_where_on_request()
    folder, how, *names = sys.argv[1:]
    if how in ENDS:
        repeat_until(ENDS[how], *names)
    with (Path(folder) / str(RANK)).open("w") as file:
        for name in names:
            program = globals()[name]
            try:
                with DISTURBANCES[how]() as rounds:
                    for _ in rounds:
                        program()
                said = "ok"
            except BaseException:
                said = traceback.format_exc()
            file.write(json.dumps([name, said]) + "\n")
            file.flush()


def repeat_until(number: int, name: str) -> None:
    """Repeat a program without end; the last rank gets a signal that it does not survive."""
    program = globals()[name]
    program()
    if RANK == SIZE - 1:
        seconds = random.uniform(0.001, 0.05)
        threading.Timer(seconds, os.kill, (os.getpid(), number)).start()
    while True:
        program()


if __name__ == "__main__":
    main()

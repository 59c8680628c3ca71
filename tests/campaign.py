"""Operations by the million: the process stays as large as it was, and nothing stays alive.

    python -m tests.campaign                              # all kinds and scenes, a short run
    python -m tests.campaign --count 10000000             # the long one
    python -m tests.campaign threads --count 1000000

A kind is one operation, made `--count` times in a process of its own, in three rounds. A scene is
several that meet: `threads` (eight, each `--count` operations of all kinds, exports deleted on
threads that Python never saw), `asyncio`, `forks` and `interrupts`, which make a hundredth or a
thousandth as many. Each line has the operations, the seconds, and by how many bytes the process
grew in the round where it grew least.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import random
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

import numpy as np  # noqa: E402
from core.allocation_steps import TWICE  # noqa: E402
from dlpack_peers import (  # noqa: E402
    Consumer,
    ModernProducer,
    NativePeer,
    compile_peer,
    describe,
    on_threads,
)

import dlbridge  # noqa: E402
import dlbridge.graph as tf  # noqa: E402
from dlbridge._core import native  # noqa: E402

ROUNDS = 3
BATCH = 50_000  # operations after which everything must have been given back
GROWTH = 1 << 20  # bytes that the process may grow by; 16 bytes leaked each time are more than that

Step = Callable[[], object]


def refused(call: Callable[[], object]) -> None:
    """Make a call that is refused."""
    try:
        call()
    except BufferError:
        return
    raise AssertionError("nothing was refused")


def make_numpy_steps(framework: Any, peer: NativePeer) -> dict[str, Step]:
    """Return exchanges that need NumPy only."""
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    tensor = dlbridge.from_dlpack(array)
    what = describe(array)
    wrong = what.but(shape=(-1, 4))
    version = (1, 3)

    def refuse_struct() -> None:
        capsule = peer.disposable(wrong)
        refused(lambda: native.take_capsule(capsule))

    return {
        "from_dlpack(numpy)": lambda: dlbridge.from_dlpack(array),
        "to_numpy(numpy tensor)": lambda: dlbridge.to_numpy(tensor),
        "numpy.from_dlpack": lambda: np.from_dlpack(tensor),
        "view": lambda: tensor[1:, ::2],
        "buffer": lambda: memoryview(tensor),
        "legacy capsule, dropped": lambda: tensor.__dlpack__(),
        "versioned capsule, taken": lambda: native.take_capsule(
            tensor.__dlpack__(max_version=version)
        ),
        "legacy capsule of C": lambda: native.take_capsule(peer.disposable(what, versioned=False)),
        "versioned capsule of C": lambda: native.take_capsule(peer.disposable(what)),
        "copy": lambda: tensor.__dlpack__(copy=True),
        "refused export": lambda: refused(lambda: tensor.__dlpack__(dl_device=(2, 0))),
        "refused struct": refuse_struct,
    }


def make_torch_steps(framework: Any, peer: NativePeer) -> dict[str, Step]:
    """Return exchanges with torch."""
    torch = framework("torch")
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    theirs = torch.arange(12.0).reshape(3, 4)
    needs_grad = torch.zeros(3, requires_grad=True)
    return {
        "from_dlpack(torch)": lambda: dlbridge.from_dlpack(theirs),
        "to_numpy(torch)": lambda: dlbridge.to_numpy(theirs),
        "to_torch(numpy)": lambda: dlbridge.to_torch(array),
        "torch.from_dlpack": lambda: torch.from_dlpack(dlbridge.from_dlpack(array)),
        "refused by guard": lambda: refused(lambda: dlbridge.to_numpy(needs_grad)),
    }


def make_larger_steps(framework: Any, peer: NativePeer) -> dict[str, Step]:
    """Return operations that consist of several exchanges, without a framework."""
    x = np.arange(4, dtype=np.float32)
    tensor = dlbridge.from_dlpack(x)
    tree = {"a": x, "b": [tensor, (x, 3)]}
    kernel = dlbridge.compile_c(TWICE, "twice", "campaign::twice(x: f32[n]) -> f32[n]")
    with tf.Graph().as_default() as graph:
        fed = tf.placeholder(tf.float32, [None])
        fetched = (fed + 1.0) * 2.0
    session = tf.Session(graph=graph)

    def record() -> None:
        with dlbridge.receipts():
            dlbridge.to_numpy(tensor)

    return {
        "Python producer": lambda: dlbridge.from_dlpack(ModernProducer(describe(x))),
        "tree": lambda: dlbridge.convert_tree(tree, "numpy"),
        "pickle": lambda: pickle.loads(pickle.dumps(tensor)),
        "receipts": record,
        "kernel in C": lambda: kernel(x),
        "graph": lambda: session.run(fetched, {fed: x}),
    }


def make_jax_steps(framework: Any, peer: NativePeer) -> dict[str, Step]:
    """Return exchanges with JAX."""
    framework("jax")
    theirs = dlbridge.to_jax(dlbridge.zeros((3, 4), "float32"))
    array = np.arange(12, dtype=np.float32)
    return {
        "from_dlpack(jax)": lambda: dlbridge.from_dlpack(theirs),
        "to_jax(numpy)": lambda: dlbridge.to_jax(array),
    }


def make_tensorflow_steps(framework: Any, peer: NativePeer) -> dict[str, Step]:
    """Return exchanges with TensorFlow."""
    framework("tensorflow")
    theirs = dlbridge.to_tensorflow(dlbridge.zeros((3, 4), "float32"))
    array = np.arange(12, dtype=np.float32)
    return {
        "from_dlpack(tensorflow)": lambda: dlbridge.from_dlpack(theirs),
        "to_tensorflow(numpy)": lambda: dlbridge.to_tensorflow(array),
    }


STEPS: dict[str, tuple[Callable[[Any, NativePeer], dict[str, Step]], float]] = {
    "from_dlpack(numpy)": (make_numpy_steps, 1.0),
    "to_numpy(numpy tensor)": (make_numpy_steps, 1.0),
    "numpy.from_dlpack": (make_numpy_steps, 1.0),
    "view": (make_numpy_steps, 0.2),
    "buffer": (make_numpy_steps, 1.0),
    "legacy capsule, dropped": (make_numpy_steps, 1.0),
    "versioned capsule, taken": (make_numpy_steps, 1.0),
    "legacy capsule of C": (make_numpy_steps, 0.2),
    "versioned capsule of C": (make_numpy_steps, 0.2),
    "copy": (make_numpy_steps, 0.2),
    "refused export": (make_numpy_steps, 0.2),
    "refused struct": (make_numpy_steps, 0.2),
    "from_dlpack(torch)": (make_torch_steps, 1.0),
    "to_numpy(torch)": (make_torch_steps, 1.0),
    "to_torch(numpy)": (make_torch_steps, 1.0),
    "torch.from_dlpack": (make_torch_steps, 0.2),
    "refused by guard": (make_torch_steps, 0.2),
    "Python producer": (make_larger_steps, 0.1),
    "tree": (make_larger_steps, 0.1),
    "pickle": (make_larger_steps, 0.1),
    "receipts": (make_larger_steps, 0.1),
    "kernel in C": (make_larger_steps, 0.1),
    "graph": (make_larger_steps, 0.1),
    "from_dlpack(jax)": (make_jax_steps, 0.2),
    "to_jax(numpy)": (make_jax_steps, 0.2),
    "from_dlpack(tensorflow)": (make_tensorflow_steps, 0.2),
    "to_tensorflow(numpy)": (make_tensorflow_steps, 0.2),
}
SHARES = sum(share for _, share in STEPS.values())


def resident() -> int:
    """Return the bytes of memory that this process has in RAM."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def at_rest() -> dict[str, int]:
    """Return what is alive when nothing is given back any more, of whoever ran before."""
    now, before = native.live(), None
    while now != before:
        gc.collect()
        time.sleep(0.1)
        now, before = native.live(), now
    return now


def growth(step: Step, count: int) -> list[int]:
    """Make an operation `count` times; return by how many bytes the process grew in each round.

    JAX gives our memory back on a thread of its own, which lags behind on a busy machine: what
    waits there is not leaked, but the pages stay with the process. So it may catch up now and then.
    """
    quiet = at_rest()
    for _ in range(5_000):
        step()
    left_over(quiet)
    found = []
    for _ in range(ROUNDS):
        before = resident()
        for start in range(0, count // ROUNDS, BATCH):
            for _ in range(min(BATCH, count // ROUNDS - start)):
                step()
            gc.collect()  # when JAX frees the tracebacks of its arrays
            left_over(quiet)
        found.append(resident() - before)
    return found


# ---- scenes --------------------------------------------------------------------------------------


def threads(framework: Any, peer: NativePeer, count: int) -> int:
    """Eight threads make `count` operations each, of all kinds in turn; return how many in all.

    Every thirty-second is an export that a foreign thread deletes, without the GIL.
    """
    steps = list(make_numpy_steps(framework, peer).values())
    steps += make_larger_steps(framework, peer).values()
    if importlib.util.find_spec("torch"):
        steps += make_torch_steps(framework, peer).values()

    def work(number: int) -> None:
        array = np.full(8, number, np.float32)
        held = []
        for i in range(count):
            if i % 32 == 31:
                tensor = dlbridge.from_dlpack(array)
                held.append(Consumer(tensor.__dlpack__(max_version=(1, 3))))
                assert held[-1].data == array.ctypes.data
            else:
                steps[(i + number) % len(steps)]()
            if len(held) == 64:
                peer.delete_on_threads(held, threads=2)
                held = []
                assert (dlbridge.to_numpy(dlbridge.from_dlpack(array)) == number).all()
        if held:
            peer.delete_on_threads(held)

    on_threads(8, work)
    return 8 * count


def tasks(framework: Any, peer: NativePeer, count: int) -> int:
    """Tasks of asyncio take turns in the middle of blocks; each sees its own receipts only."""

    async def exchange(number: int) -> None:
        array = np.full(number % 7 + 1, number, np.float32)
        with dlbridge.receipts() as made:
            for length in range(1, 4):
                await asyncio.sleep(0)
                got = dlbridge.to_numpy(array, copy=True)
                assert (got == number).all()
                assert len(made) == length
                await asyncio.to_thread(dlbridge.to_numpy, array) if number % 50 == 0 else None
                assert len(made) <= 2 * length
                del made[length:]

    async def main() -> None:
        for start in range(0, count, 100):
            await asyncio.gather(*map(exchange, range(start, min(start + 100, count))))

    asyncio.run(main())
    return 3 * count


def forks(framework: Any, peer: NativePeer, count: int) -> int:
    """Fork while four threads exchange, and start fresh processes with pickled tensors."""
    array = np.arange(8, dtype=np.float32)
    tensor = dlbridge.from_dlpack(array)
    stop = threading.Event()

    def work() -> None:
        while not stop.is_set():
            exchange_in_child(dlbridge.from_dlpack(array))

    workers = [threading.Thread(target=work) for _ in range(4)]
    for worker in workers:
        worker.start()
    try:
        for _ in range(count):
            child = os.fork()
            if child == 0:
                signal.alarm(60)  # a lock that nobody holds any more would be waited for
                exchange_in_child(tensor)
                os._exit(0)
            assert os.waitpid(child, 0)[1] == 0
    finally:
        stop.set()
        for worker in workers:
            worker.join()
    for method in ("spawn", "forkserver"):
        with multiprocessing.get_context(method).Pool(2) as pool:
            assert pool.map(exchange_in_child, [tensor] * 8) == [28.0] * 8
    return count + 16


def exchange_in_child(tensor: Any) -> float:
    """Exchange a tensor of 0 to 7 both ways; return its sum."""
    taken = native.take_capsule(tensor.__dlpack__(max_version=(1, 3)))
    return float(dlbridge.to_numpy(taken).sum())


def interrupts(framework: Any, peer: NativePeer, count: int) -> int:
    """A signal every few hundred microseconds raises KeyboardInterrupt wherever Python then is.

    Nothing is half done: all that was taken is given back, and no block stays open.
    """
    larger = make_larger_steps(framework, peer)
    del larger["Python producer"]  # its destructor is Python: there ctypes loses an interrupt
    steps = [*make_numpy_steps(framework, peer).values(), *larger.values()]
    draw = random.Random(0)
    quiet = native.live()
    seen = 0
    armed = False

    def interrupt(*_: object) -> None:
        nonlocal seen
        if armed:
            seen += 1
            raise KeyboardInterrupt

    def burst() -> None:
        nonlocal armed
        signal.setitimer(signal.ITIMER_REAL, draw.uniform(2e-5, 5e-4))
        armed = True
        try:
            for _ in range(1_000):
                for step in steps:
                    step()
        finally:
            armed = False

    before = signal.signal(signal.SIGALRM, interrupt)
    hook, sys.unraisablehook = sys.unraisablehook, lambda *_: None  # interrupts in __del__
    try:
        for _ in range(count):
            try:
                burst()
            except KeyboardInterrupt:
                pass
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        sys.unraisablehook = hook
    for step in steps:
        step()
    assert seen > count // 2, f"{seen} interrupts"
    left_over(quiet)
    return seen


def left_over(before: dict[str, int]) -> None:
    """Raise if the core has more, or fewer, alive of anything than before."""
    until = time.monotonic() + 60
    while time.monotonic() < until:
        gc.collect()
        now = native.live()
        left = {kind: n - before[kind] for kind, n in now.items() if n != before[kind]}
        left = {kind: n for kind, n in left.items() if kind not in KEPT}
        if not left:
            return
    raise AssertionError(f"alive: {left}")


KEPT = ("kernels", "plans", "programs", "nodes")  # of modules and caches
SCENES: dict[str, tuple[Callable[[Any, NativePeer, int], int], float]] = {
    "threads": (threads, 1.0),
    "asyncio": (tasks, 0.01),
    "forks": (forks, 0.0001),
    "interrupts": (interrupts, 0.001),
}


# ---- the command ---------------------------------------------------------------------------------


def run(name: str, count: int) -> str:
    """Run one kind or scene in this process; return its line."""
    with tempfile.TemporaryDirectory() as folder:
        peer = NativePeer(compile_peer(Path(folder)))
        start = time.monotonic()
        if name in SCENES:
            scene, share = SCENES[name]
            scene(importlib.import_module, peer, 100)
            gc.collect()
            alive, before = native.live(), resident()
            made = scene(importlib.import_module, peer, max(1, int(count * share)))
            left_over(alive)
            grown = f"{(resident() - before) >> 10} KiB"
        else:
            step = STEPS[name][0](importlib.import_module, peer)[name]
            step()
            time.sleep(0.5)  # JAX gives some of our memory back on a thread of its own
            gc.collect()
            alive = native.live()
            made, growths = count, growth(step, count)
            left_over(alive)
            if ROUNDS * min(growths) >= GROWTH:
                raise AssertionError(f"{name}: {growths} bytes more after {count}")
            grown = f"{min(growths) >> 10} KiB"
        seconds = time.monotonic() - start
    return f"| {name} | {made:,} | {seconds:.0f} | {grown} |"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.campaign", description=__doc__)
    names = [*STEPS, *SCENES]
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"of {', '.join(names)}; all")
    parser.add_argument("--count", type=int, default=100_000)
    parser.add_argument("--child", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if unknown := set(given.names) - set(names):
        parser.error(f"no such kind or scene: {', '.join(sorted(unknown))}")
    if given.child:
        print(run(given.names[0], given.count), flush=True)
        return 0
    failed = 0
    for name in given.names or names:
        command = [sys.executable, "-X", "faulthandler", "-m", "tests.campaign", name, "--child"]
        code = subprocess.call([*command, "--count", str(given.count)])
        if code != 0:
            failed += 1
            print(f"| {name} | failed (exit code {code}) | | |", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())

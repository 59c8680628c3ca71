"""Many threads at the same tensors, capsules, containers and kernels; also without a GIL.

On a free-threaded Python, `PYTHON_GIL=0 python -m tests.test_threads` prints what two threads do
against one.
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np

import dlbridge
from dlbridge._core import native

THREADS = 8
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


def run_together(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run `work(i)` in threads that begin at once; raise what the first of them raised."""
    failures: list[BaseException] = []
    start = threading.Barrier(count)

    def run(i: int) -> None:
        start.wait()
        try:
            work(i)
        except BaseException as error:  # raised below
            failures.append(error)

    threads = [threading.Thread(target=run, args=(i,)) for i in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def test_threads_exchange_view_and_release_the_same_tensor() -> None:
    array = np.arange(64.0).reshape(8, 8)
    shared = dlbridge.from_dlpack(array)
    before = native.live()["tensors"]

    def work(i: int) -> None:
        for _ in range(400):
            tensor = dlbridge.from_dlpack(array)
            assert tensor.dtype is shared.dtype
            assert tensor.device is shared.device
            row = shared[i % 8]
            assert float(dlbridge.to_numpy(row)[0]) == 8.0 * (i % 8)
            assert dlbridge.to_numpy(shared.reshape(64)).shape == (64,)
            assert np.from_dlpack(row).shape == (8,)
            assert memoryview(tensor).nbytes == 512

    run_together(work)
    assert native.live()["tensors"] == before
    assert array.sum() == 2016


def test_of_many_threads_one_gets_the_memory_of_a_capsule() -> None:
    tensor = dlbridge.from_dlpack(np.zeros(4))
    for _ in range(60):
        capsule = tensor.__dlpack__()
        taken: list[Any] = []
        refusals: list[str] = []

        def work(
            _i: int,
            capsule: Any = capsule,
            taken: list[Any] = taken,
            refusals: list[str] = refusals,
        ) -> None:
            try:
                taken.append(native.take_capsule(capsule))
            except BufferError as error:
                refusals.append(str(error))

        run_together(work, 4)
        assert len(taken) == 1
        assert len(refusals) == 3
        assert all("consumed before" in text for text in refusals)


def test_threads_that_meet_dtypes_first_get_one_object() -> None:
    for lanes in (77, 78, 79, 81):  # of no other test
        seen: list[Any] = []

        def work(_i: int, lanes: int = lanes, seen: list[Any] = seen) -> None:
            tensor = dlbridge.empty((2,), f"float32x{lanes}")
            seen.append(tensor.dtype)

        run_together(work)
        assert len({id(dtype) for dtype in seen}) == 1


def test_convert_tree_while_another_thread_changes_the_containers() -> None:
    array = np.zeros(2)
    tree: dict[str, Any] = {f"k{i}": [array] * 4 for i in range(16)}
    done = threading.Event()

    def work(i: int) -> None:
        if i == 0:
            for step in range(3000):
                tree["k0"] = [array] * (step % 5)
                tree["k1"].append(array)
                tree["k1"].pop()
            done.set()
        while not done.is_set():
            made = dlbridge.convert_tree(tree, "numpy")
            assert made["k2"][0] is array

    run_together(work, 4)


def test_threads_call_one_kernel_with_more_shapes_than_it_keeps() -> None:
    increment = SIGNATURE(lambda _context, _tensors: 0)
    kernel = dlbridge.wrap(increment, "tests::nothing_in_threads(x: f64[n]) -> f64[n]")

    def work(i: int) -> None:
        out = [np.zeros(n + 1) for n in range(8)]
        for step in range(600):
            n = (step + i) % 8
            kernel(np.zeros(n + 1), out=out[n])

    run_together(work)


def main() -> None:
    """Print how often from_dlpack runs in one thread and in two, each with its own array."""
    once = 300_000

    def work(_i: int) -> None:
        array, take = np.zeros(4), dlbridge.from_dlpack
        for _ in range(once):
            take(array)

    rates = []
    for count in (1, 2):
        begin = time.perf_counter()
        run_together(work, count)
        rates.append(count * once / (time.perf_counter() - begin))
    is_on = getattr(sys, "_is_gil_enabled", lambda: True)()
    print(f"from_dlpack(numpy), GIL {'on' if is_on else 'off'}: {rates[0] / 1e6:.2f} M/s in one")
    print(f"thread, {rates[1] / 1e6:.2f} M/s in two: {rates[1] / rates[0]:.2f} times as many")


if __name__ == "__main__":
    main()

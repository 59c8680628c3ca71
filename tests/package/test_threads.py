"""Many threads at the same tensors, capsules, containers and kernels; also without a GIL.

On a free-threaded Python, `PYTHONPATH=tests PYTHON_GIL=0 python tests/package/test_threads.py`
prints what a call takes in one thread and in each of two, beside calls of NumPy and CPython.
"""

from __future__ import annotations

import ctypes
import math
import os
import shutil
import sys
import sysconfig
import threading
import time
from collections.abc import Callable
from functools import partial
from operator import attrgetter
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import pytest
from dlpack_peers import on_threads
from measuring import is_over, pause, soon

import dlbridge
from dlbridge import registry
from dlbridge._core import native
from dlbridge.exchange import adapter
from dlbridge.mpi.agreement import digest
from dlbridge.tensor import allocator

THREADS = 8
FLOAT64 = np.dtype(np.float64).num
HAS_GIL = getattr(sys, "_is_gil_enabled", lambda: True)()
SIGNATURE = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p)


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

    on_threads(THREADS, work)
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

        on_threads(4, work)
        assert len(taken) == 1
        assert len(refusals) == 3
        assert all("consumed before" in text for text in refusals)


def test_threads_that_meet_dtypes_first_get_one_object() -> None:
    for lanes in (77, 78, 79, 81):  # of no other test
        seen: list[Any] = []

        def work(_i: int, lanes: int = lanes, seen: list[Any] = seen) -> None:
            tensor = dlbridge.empty((2,), f"float32x{lanes}")
            seen.append(tensor.dtype)

        on_threads(THREADS, work)
        assert len({id(dtype) for dtype in seen}) == 1


def test_names_put_together_at_run_time_are_found_by_what_they_say() -> None:
    """Equal names are as quick as one name: without a GIL each took the slow path, in Python."""
    memory = sys.modules["dlbridge.tensor.memory"]
    slow: list[Any] = []

    def counted(*args: Any, **keywords: Any) -> Any:
        slow.append(args)
        return memory._empty(*args, **keywords)

    def work(_i: int) -> None:
        for _ in range(200):
            for name, nbytes in (("float32", 8), ("float64", 16), ("int8", 2), ("bool", 2)):
                assert dlbridge.empty((2,), "".join([*name])).nbytes == nbytes

    if not sysconfig.get_config_var("Py_GIL_DISABLED"):  # names are found by their address
        on_threads(THREADS, work)
        return
    work(0)
    native.set_hooks(slow_empty=counted)
    try:
        on_threads(THREADS, work)
    finally:
        native.set_hooks(slow_empty=memory._empty)
    assert not slow


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

    on_threads(4, work)


def test_threads_call_one_kernel_with_more_shapes_than_it_keeps() -> None:
    increment = SIGNATURE(lambda _context, _tensors: 0)
    kernel = dlbridge.wrap(increment, "tests::nothing_in_threads(x: f64[n]) -> f64[n]")

    def work(i: int) -> None:
        out = [np.zeros(n + 1) for n in range(8)]
        for step in range(600):
            n = (step + i) % 8
            kernel(np.zeros(n + 1), out=out[n])

    on_threads(THREADS, work)


def test_sixteen_threads_exchange_view_wrap_and_call_the_same_things() -> None:
    """As long as DLBRIDGE_THREADS_SECONDS says: a minute under ThreadSanitizer."""
    array = np.arange(64.0).reshape(8, 8)
    shared = dlbridge.from_dlpack(array)
    increment = SIGNATURE(lambda _context, _tensors: 0)
    kernel = dlbridge.wrap(increment, "tests::of_sixteen(x: f64[n, m]) -> f64[n, m]")
    end = soon(float(os.environ.get("DLBRIDGE_THREADS_SECONDS", "1")))
    before = native.live()["tensors"]
    rounds = [0] * 16

    def work(i: int) -> None:
        while rounds[i] < 3 or not is_over(end):
            tensor = dlbridge.from_dlpack(array)
            part = shared[i % 8 :, ::2].T
            assert dlbridge.to_numpy(part).tolist() == array[i % 8 :, ::2].T.tolist()
            assert dlbridge.to_numpy(tensor.reshape(4, 16))[1, 0] == 16.0
            assert np.from_dlpack(shared.copy())[7, 7] == 63.0
            assert dlbridge.empty((i + 1, 2), "float32").shape == (i + 1, 2)
            assert kernel(shared, out=tensor.copy()) is not None
            own = dlbridge.wrap(increment, f"tests::of_thread_{i}(x: f64[n]) -> f64[n]")
            assert own(array[0]).shape == (8,)
            again = dlbridge.wrap(increment, "tests::of_all(x: f64[n]) -> f64[n]")
            assert again(array[i % 8]).shape == (8,)
            with dlbridge.receipts() as log:
                dlbridge.convert(shared, "numpy")
            assert len(log) == 1
            rounds[i] += 1

    on_threads(16, work)
    assert min(rounds) >= 3
    assert native.live()["tensors"] == before


@pytest.mark.skipif(HAS_GIL, reason="a GIL lets only one thread count at a time")
def test_objects_shared_by_threads_are_not_counted_by_each_of_them() -> None:
    """Counted in one place, a kernel was called half as often by two threads as by one."""
    kernel = dlbridge.wrap(SIGNATURE(lambda _c, _t: 0), "tests::held_by_all(x: f64[n]) -> f64[n]")
    lanes = dlbridge.empty((1,), "float32x83")  # of no other test
    for held in (
        kernel,
        kernel.numpy,
        dlbridge.to_numpy,
        lanes.dtype,
        lanes.device,
        dlbridge.Device("cuda:83"),
    ):
        assert sys.getrefcount(held) > 2**30, held
    assert sys.getrefcount(lanes) < 10


def test_threads_send_summaries_with_numbers_of_their_own() -> None:
    numbers = registry.SerialNumbers(5)
    got: list[list[int]] = [[] for _ in range(THREADS)]
    on_threads(THREADS, lambda i: got[i].extend(next(numbers) for _ in range(2000)))
    assert sorted(number for each in got for number in each) == list(range(5, 5 + 2000 * THREADS))


def test_an_allocator_stays_set_while_other_devices_are_given_and_lose_one() -> None:
    """`set_allocator` once told the core that there is none, though another thread had set one."""
    chosen = allocator._chosen
    assert not chosen
    last = dlbridge.CUDAAllocator()

    def work(i: int) -> None:
        for _ in range(300):
            dlbridge.set_allocator(f"cuda:{i}", last)
            dlbridge.set_allocator(f"cuda:{i}", None)
        dlbridge.set_allocator(f"cuda:{i}", last)

    try:
        on_threads(4, work)
        assert len(chosen) == 4
    finally:
        for i in range(4):
            dlbridge.set_allocator(f"cuda:{i}", None)
    assert not chosen


@pytest.fixture(scope="module")
def mpi_library(tmp_path_factory: pytest.TempPathFactory) -> str:
    if shutil.which("cc") is None:
        pytest.skip("needs a C compiler")
    from fuzz.compiling import compile_library  # this file is a program as well

    source = Path(__file__).parents[1] / "fuzz" / "mpi_stand_in.c"
    return str(compile_library(source, tmp_path_factory.mktemp("mpi"))._name)


def test_small_calls_of_mpi_go_on_while_what_they_know_is_set_anew(mpi_library: str) -> None:
    """Of one process, which needs no message."""

    def new_peers() -> native.Peers:
        return native.Peers(mpi_library, 1, 2, 3, 4, 0, 1, 10**6, -1)

    array, calls, shared = np.arange(8.0), native.Quick(), new_peers()
    found = adapter.adapter("numpy")
    adapter.start(found)
    tags: list[list[int]] = [[] for _ in range(THREADS)]

    def renew() -> None:
        calls.types[np.ndarray] = (adapter.converter_of(found), None, True)
        calls.calls["sum"] = native.Reduction(digest("allreduce", "sum"), np.add, (FLOAT64,))
        calls.calls["key"] = bytes(bytearray(16))
        calls.active, calls.peers = {}, new_peers()

    def work(i: int) -> None:
        for _ in range(400):
            if i < 2:
                renew()
                continue
            assert calls.allreduce(array, "sum", None).tolist() == array.tolist()
            assert calls.allgather(array, None, "key").shape == (1, 8)
            assert calls.barrier("key") is None
            tags[i].append(shared.next_payload())

    renew()
    on_threads(THREADS, work)
    given = [tag for each in tags for tag in each]
    assert sorted(given) == list(range(min(given), min(given) + len(given)))


def test_the_deadline_of_a_step_is_set_while_another_thread_waits(mpi_library: str) -> None:
    transport = native.Transport(
        mpi_library, 1, 2, 3, -1, 0, 4, 1000, lambda *_: None, lambda *_: None, lambda *_: OSError()
    )
    meeting = native.Rendezvous(transport)
    receives = native.Edge(meeting, 1, 1, np.dtype(np.float32))

    def work(i: int) -> None:
        for _ in range(40):
            if i > 0:
                meeting.limit(soon(0.001), TimeoutError())
                meeting.peers = frozenset({i})
                pause(0.0005)
                continue
            meeting.step = 1
            meeting.limit(soon(0.001), TimeoutError())
            with pytest.raises(TimeoutError):
                receives()
            meeting.end()

    on_threads(3, work)


NOTHING = """
#include "dlpack.h"
int nothing(void *context, DLTensor *arguments, int count) { return 0; }
"""
ONCE = 300_000
Work = Callable[[int], object]  # of so many calls


def calls(function: Callable[..., object], *make: Callable[[], object]) -> Work:
    """Return what calls the function with arguments of its own."""

    def work(count: int) -> None:
        call, arguments = function, [each() for each in make]
        for _ in range(count):
            call(*arguments)

    return work


def writes(function: Callable[..., object], make: Callable[[], object]) -> Work:
    """Return what calls the function with an argument and a result of its own."""

    def work(count: int) -> None:
        call, argument, out = function, make(), make()
        for _ in range(count):
            call(argument, out=out)

    return work


def reads(name: str) -> Work:
    """Return what reads an attribute of a Tensor of its own."""

    def work(count: int) -> None:
        tensor, read = dlbridge.from_dlpack(np.zeros(4)), attrgetter(name)
        for _ in range(count):
            read(tensor)

    return work


def time_calls(work: Work, threads: int) -> tuple[float, float]:
    """Return the nanoseconds of a call in these threads, each on its processor.

    First the processor time of the slowest, then what passes from the first call to the last.
    """
    spent, begun, ended = ([0.0] * threads for _ in range(3))
    ready = threading.Barrier(threads)

    def run(i: int) -> None:
        os.sched_setaffinity(0, {processors[i]})
        ready.wait()
        begun[i], begin = time.perf_counter(), time.thread_time()
        work(ONCE)
        spent[i] = time.thread_time() - begin
        ended[i] = time.perf_counter()

    processors = sorted(os.sched_getaffinity(0))
    on_threads(threads, run)
    return max(spent) / ONCE * 1e9, (max(ended) - min(begun)) / ONCE * 1e9


def main() -> None:
    """Print what a call takes in one thread and in two.

    The time is that of the thread's own processor, so that other processes do not count, and beside
    it the wall clock's, which on a machine that does something else counts that as well: of it, the
    best of all runs. On 3.13t
    code that was imported before the first thread began counts references to its own constants, and
    the names of a call's keywords are one: that is what `out=` costs there, in NumPy as well.
    """
    if len(os.sched_getaffinity(0)) < 2:
        sys.exit("two threads need two processors")
    schema = "tests::nothing(x: f64[n]) -> f64[n]"
    kernel = dlbridge.compile_c(NOTHING, "nothing", schema)
    schema = "tests::in_place(x: f64[n], y: f64[n]) -> ()"
    in_place = dlbridge.compile_c(NOTHING, "nothing", schema, mutates=["y"])
    array = partial(np.zeros, 4)
    tensor = partial(dlbridge.empty, (4,), "float64")
    own_shape, own_name = partial(tuple, [4]), partial("".join, ["float", "64"])
    works = {
        "from_dlpack(numpy)": calls(dlbridge.from_dlpack, array),
        "a wrapped kernel(numpy, numpy)": calls(in_place, array, array),
        "a wrapped kernel(Tensor, Tensor)": calls(in_place, tensor, tensor),
        "kernel.numpy(numpy, numpy)": calls(in_place.numpy, array, array),
        "a wrapped kernel(numpy, out=numpy)": writes(kernel, array),
        "a wrapped kernel(numpy) -> numpy": calls(kernel, array),
        "to_numpy(numpy)": calls(dlbridge.to_numpy, array),
        "to_numpy(Tensor)": calls(dlbridge.to_numpy, tensor),
        'convert(Tensor, "numpy")': calls(dlbridge.convert, tensor, lambda: "numpy"),
        "np.from_dlpack(Tensor)": calls(np.from_dlpack, tensor),
        "Tensor.__dlpack__()": calls(dlbridge.Tensor.__dlpack__, tensor),
        "Tensor[1:3]": calls(dlbridge.Tensor.__getitem__, tensor, lambda: slice(1, 3)),
        "Tensor.dtype": reads("dtype"),
        "Tensor.copy()": calls(dlbridge.Tensor.copy, tensor),
        "empty": calls(dlbridge.empty, own_shape, own_name),
        "beside: math.gcd": calls(math.gcd, lambda: 4, lambda: 6),
        "beside: np.negative(x, out=y)": writes(np.negative, array),
        "beside: np.negative(x, y)": calls(np.negative, array, array),
        "beside: np.copy": calls(np.copy, array),
        "beside: np.empty": calls(np.empty, lambda: 4),
    }
    print(f"GIL {'on' if HAS_GIL else 'off'}; ns of processor for a call, the median of five")
    for name, work in works.items():
        times: dict[int, list[tuple[float, float]]] = {1: [], 2: []}
        for _ in range(5):
            for count, taken in times.items():
                taken.append(time_calls(work, count))
        one, two = (median(own for own, _ in taken) for taken in times.values())
        first, both = (min(wall for _, wall in taken) for taken in times.values())
        print(
            f"{name:37}{one:5.0f} in one thread {two:5.0f} in two: {2 * one / two:.2f} x the calls"
            f"; by the clock {first:5.0f} {both:5.0f}: {2 * first / both:.2f}"
        )


if __name__ == "__main__":
    main()

"""NumPy's arrays in memory of dlbridge: `aligned_numpy` and `set_aligned_numpy`."""

from __future__ import annotations

import asyncio
import contextvars
import gc
import pickle
import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import dlbridge

try:
    from numpy._core.multiarray import get_handler_name
except ImportError:  # NumPy 1
    from numpy.core.multiarray import get_handler_name  # type: ignore[no-redef]

OURS = "dlbridge_aligned"


def address(array: np.ndarray[Any, Any]) -> int:
    return array.ctypes.data


@pytest.mark.parametrize("size", [0, 1, 7, 100, 1025, 100_000, 1_000_003])
def test_arrays_are_aligned(size: int) -> None:
    with dlbridge.aligned_numpy():
        made = [
            np.empty(size),
            np.zeros(size, "int8"),
            np.arange(size),
            np.ones(size, "c16") + 1,
            np.array([1.5] * size),
            np.full((size, 2), 7.0).T.copy(),
        ]
    for array in made:
        assert address(array) % 64 == 0
        assert get_handler_name(array) == OURS
    assert not made[1].any()
    assert get_handler_name(np.empty(3)) != OURS


def test_arrays_are_shared_with_jax_and_tensorflow(framework: Any) -> None:
    framework("jax"), framework("tensorflow")
    with dlbridge.aligned_numpy():
        array = np.arange(1000, dtype="float32")
    with dlbridge.receipts() as log:
        dlbridge.to_jax(array)
        dlbridge.to_tensorflow(array)
    assert [receipt.shared for receipt in log] == [True, True]
    assert "aligned_numpy" not in repr(log)


def test_a_refusal_names_the_way_to_aligned_arrays(framework: Any) -> None:
    framework("jax")
    memory = np.ones(64, "float32")
    start = -address(memory) % 64 // 4 + 4
    with pytest.raises(dlbridge.ExchangeError, match=r"dlbridge\.aligned_numpy"):
        dlbridge.to_jax(memory[start : start + 8], copy=False)


def test_arrays_outlive_the_block() -> None:
    kept = []
    for size in (10, 10_000, 1_000_000):
        with dlbridge.aligned_numpy():
            kept.append(np.arange(size))
        kept.append(np.arange(size))
    gc.collect()
    dlbridge.trim()
    for array in kept:
        assert np.array_equal(array, np.arange(array.size))
        array.resize(2 * array.size, refcheck=False)
        assert not array[array.size // 2 :].any()
    assert pickle.loads(pickle.dumps(kept[0])).tolist() == kept[0].tolist()


def test_blocks_nest() -> None:
    name = get_handler_name()
    again = dlbridge.aligned_numpy()
    with dlbridge.aligned_numpy():
        assert get_handler_name() == OURS
        with again, again:
            assert get_handler_name() == OURS
        assert dlbridge.set_aligned_numpy(False) is True
        with dlbridge.aligned_numpy():
            assert get_handler_name() == OURS
        assert get_handler_name() == name
    assert get_handler_name() == name


def test_an_exception_ends_the_block() -> None:
    with pytest.raises(ZeroDivisionError), dlbridge.aligned_numpy():
        _ = 1 / 0
    assert get_handler_name() != OURS
    with pytest.raises(RuntimeError, match="without __enter__"):
        dlbridge.aligned_numpy().__exit__(None, None, None)


def test_a_call_is_for_good_in_its_context() -> None:
    def work() -> None:
        assert dlbridge.set_aligned_numpy() is False
        assert dlbridge.set_aligned_numpy() is True
        assert get_handler_name(np.empty(3)) == OURS

    contextvars.copy_context().run(work)
    assert get_handler_name() != OURS


def test_a_thread_begins_with_numpys_own_handler() -> None:
    names = []
    with dlbridge.aligned_numpy():
        fresh = contextvars.Context()  # as a thread has by itself before Python 3.14
        thread = threading.Thread(target=lambda: names.append(fresh.run(get_handler_name)))
        thread.start()
        thread.join()
    assert len(names) == 1
    assert names != [OURS]


def test_a_task_has_its_own() -> None:
    async def inside(is_ours: bool) -> str:
        if is_ours:
            dlbridge.set_aligned_numpy()
        await asyncio.sleep(0)
        return str(get_handler_name())

    async def both() -> list[str]:
        return await asyncio.gather(inside(True), inside(False))

    names = asyncio.run(both())
    assert names[0] == OURS != names[1]


def test_arrays_made_in_one_thread_are_freed_in_another() -> None:
    def work() -> None:
        with dlbridge.aligned_numpy():
            for _ in range(200):
                arrays.append(np.full(5000, 3.0))
                if len(arrays) > 8:
                    assert (arrays.pop(0) == 3).all()

    arrays: list[Any] = []
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


@given(st.lists(st.integers(0, 300_000), min_size=1, max_size=8))
def test_resizing_keeps_the_values(sizes: list[int]) -> None:
    with dlbridge.aligned_numpy():
        array = np.arange(sizes[0])
        expected = np.arange(sizes[0])
        for size in sizes[1:]:
            array.resize(size, refcheck=False)
            kept = expected[:size]
            expected = np.concatenate([kept, np.zeros(size - kept.size, kept.dtype)])
            assert np.array_equal(array, expected)
            assert address(array) % 64 == 0


def test_freed_arrays_are_kept_for_reuse() -> None:
    dlbridge.trim()
    with dlbridge.aligned_numpy():
        array = np.empty(1 << 20, "uint8")
        before = address(array)
        del array
        assert address(np.empty(1 << 20, "uint8")) == before
    assert dlbridge.trim() > 1 << 20

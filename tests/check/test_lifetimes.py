"""`dlbridge.ledger`: what is alive, never consumed, consumed twice, and where it was made."""

from __future__ import annotations

import ctypes
import gc
import os
import signal
import sys
import threading
from typing import Any

import numpy as np
import pytest

import dlbridge as dlb
from dlbridge.check import Ledger

pytestmark = pytest.mark.skipif(
    not hasattr(np.ones(1), "__dlpack__"), reason="NumPy before 1.22 has no DLPack"
)


def kinds(found: Ledger) -> list[str]:
    return sorted(each.kind for each in found.alive)


def test_live_objects_are_listed_with_their_place_in_user_code() -> None:
    """The frames of dlbridge itself say nothing to a user."""
    with dlb.ledger() as found:
        x = dlb.from_dlpack(np.ones(3))
    (entry,) = found.alive
    assert entry.kind == "object"
    assert entry.place is not None
    assert entry.place.startswith(f"{__file__}:")
    assert entry.place.endswith("in test_live_objects_are_listed_with_their_place_in_user_code")
    del x
    assert found.alive == []
    assert found.made == 1


def test_an_export_has_its_shape_dtype_and_device_until_its_deleter_ran() -> None:
    """The consumer ends it, wherever it is."""
    x = dlb.ones((2, 3), "float32")
    with dlb.ledger() as found:
        capsule = x.__dlpack__(max_version=(1, 0))
    (entry,) = found.alive
    assert (entry.kind, entry.shape) == ("export", (2, 3))
    assert (entry.dtype, entry.device) == (dlb.float32, dlb.Device("cpu"))
    y = dlb.from_dlpack(capsule)
    assert kinds(found) == ["export"]  # y was made after the block
    del y
    assert found.alive == []
    assert found.misuses == []


def test_a_shape_of_many_dimensions_is_cut() -> None:
    """An entry has room for sixteen."""
    x = dlb.ones((1,) * 40, "int8")
    with dlb.ledger() as found:
        capsule = x.__dlpack__()
    assert found.alive[0].shape == (1,) * 16
    del capsule


def test_a_capsule_that_nobody_consumed_is_told_when_it_is_dropped() -> None:
    """Nothing leaks, but whoever asked for it did not use it."""
    x = dlb.ones((4,), "int16")
    with dlb.ledger() as found:
        capsule = x.__dlpack__()
        assert found.never_consumed == []
        del capsule
    (misuse,) = found.never_consumed
    assert misuse.entry.shape == (4,)
    assert misuse.place is not None
    assert __file__ in misuse.place
    assert found.alive == []


def test_a_capsule_is_told_that_is_dropped_after_the_block() -> None:
    """What counts is that it was made in the block."""
    x = dlb.ones((4,), "int16")
    with dlb.ledger() as found:
        capsule = x.__dlpack__()
    del capsule
    assert len(found.never_consumed) == 1


@pytest.mark.parametrize("version", [None, (1, 0)])
def test_a_second_consumption_is_told_with_both_places(version: Any) -> None:
    """The error says that it happened, the ledger where the capsule came from."""
    x = dlb.ones((4,), "int16")
    with dlb.ledger() as found:
        capsule = x.__dlpack__(max_version=version)
        first = dlb.from_dlpack(capsule)
        with pytest.raises(dlb.ExchangeError, match="consumed before"):
            dlb.from_dlpack(capsule)
    (misuse,) = found.consumed_twice
    assert misuse.entry.shape == (4,)
    assert misuse.entry.place != misuse.place
    del first


def test_a_second_consumption_is_told_of_a_capsule_whose_tensor_is_gone() -> None:
    """The address may be another export's by then: nothing is said of its shape."""
    x = dlb.ones((4,), "int16")
    with dlb.ledger() as found:
        capsule = x.__dlpack__()
        dlb.from_dlpack(capsule)
        others = [dlb.ones((5,), "int8").__dlpack__() for _ in range(100)]
        with pytest.raises(dlb.ExchangeError, match="consumed before"):
            dlb.from_dlpack(capsule)
    (misuse,) = found.consumed_twice
    assert misuse.entry.shape in (None, (4,))
    del others


def test_a_second_call_of_a_deleter_is_told() -> None:
    """Some frameworks call it when they refuse a tensor, and leave the capsule as it was."""
    x = dlb.ones((4,), "int16")
    with dlb.ledger() as found:
        capsule = x.__dlpack__()
        managed = dlb.ffi.cast("DLManagedTensor *", pointer_of(capsule))
        managed.deleter(managed)
        del capsule  # calls it again
    (misuse,) = found.deleted_twice
    assert misuse.entry.shape == (4,)
    assert found.never_consumed == []


def pointer_of(capsule: object) -> int:
    get = ctypes.pythonapi.PyCapsule_GetPointer
    get.restype, get.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]
    return int(get(capsule, b"dltensor"))


def test_blocks_nest_and_each_sees_its_own() -> None:
    """As two tools of one program may both look."""
    with dlb.ledger() as outer:
        first = dlb.from_dlpack(np.ones(1))
        with dlb.ledger() as inner:
            second = dlb.from_dlpack(np.ones(2))
        third = dlb.from_dlpack(np.ones(3))
    fourth = dlb.from_dlpack(np.ones(4))
    assert (len(outer.alive), len(inner.alive)) == (3, 1)
    assert (outer.made, inner.made) == (3, 1)
    del second
    assert (len(outer.alive), len(inner.alive)) == (2, 0)
    del first, third, fourth


def test_a_ledger_is_for_one_block() -> None:
    """What it says afterwards belongs to that block."""
    found = dlb.ledger()
    assert found.alive == []
    with found:
        pass
    with pytest.raises(RuntimeError, match="one `with` block"), found:
        pass


def test_a_ledger_that_is_dropped_in_its_block_ends() -> None:
    """As by an exception: recording does not stay on."""
    with dlb.ledger() as found:
        pass
    before = dlb.ledger().__enter__()
    assert before.made == 0
    del before, found
    x = dlb.from_dlpack(np.ones(3))
    with dlb.ledger() as found:
        assert found.made == 0
    del x


def test_eight_threads_record_into_one_ledger() -> None:
    """Births and deaths of all threads are in the table, none is missed."""
    barrier = threading.Barrier(8)
    kept: list[Any] = []

    def work() -> None:
        barrier.wait()
        for i in range(500):
            x = dlb.from_dlpack(np.ones(3))
            y = np.from_dlpack(x)
            if i % 100 == 0:
                kept.append(y)

    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with dlb.ledger() as found:
            threads = [threading.Thread(target=work) for _ in range(8)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
    finally:
        sys.setswitchinterval(before)
    assert found.made == 8 * 500 * 2
    assert kinds(found) == ["export"] * 40 + ["object"] * 40
    kept.clear()
    assert found.alive == []


def test_a_child_after_a_fork_has_a_ledger_of_its_own() -> None:
    """Whatever another thread was doing with the table at that moment."""
    over = threading.Event()

    def work() -> None:
        while not over.is_set():
            dlb.from_dlpack(np.ones(3))

    with dlb.ledger() as found:
        thread = threading.Thread(target=work)
        thread.start()
        try:
            for _ in range(5):
                pid = os.fork()
                if pid == 0:
                    signal.alarm(20)
                    x = dlb.from_dlpack(np.ones(3))
                    os._exit(0 if found.alive and x.ndim == 1 else 1)
                assert os.waitpid(pid, 0)[1] == 0
        finally:
            over.set()
            thread.join()
    gc.collect()
    assert found.alive == []


def test_an_interrupt_at_any_line_leaves_nothing_on() -> None:
    """The block begins and ends in C, where no exception can come between."""

    def user() -> None:
        with dlb.ledger() as found:
            str(found)

    for stop in range(200):
        lines = 0

        def trace(frame: Any, event: str, arg: Any, stop: int = stop) -> Any:
            nonlocal lines
            if event == "line":
                lines += 1
                if lines == stop + 1:
                    raise KeyboardInterrupt
            return trace

        sys.settrace(trace)
        try:
            user()
        except KeyboardInterrupt:
            pass
        else:
            break
        finally:
            sys.settrace(None)
        x = dlb.from_dlpack(np.ones(3))
        with dlb.ledger() as found:
            assert found.made == 0
        del x, found
    else:
        pytest.fail("the function has more lines than that")
    assert stop > 5


def test_the_report_counts_what_is_alike() -> None:
    """A leak in a loop is one line."""
    with dlb.ledger() as found:
        kept = [dlb.from_dlpack(np.ones(3)) for _ in range(7)]
    lines = str(found).splitlines()
    assert lines[0] == "ledger: 7 made, 7 alive, 0 misused"
    assert lines[1] == "alive:"
    assert lines[2].startswith("  7 x object, made at ")
    assert len(lines) == 3
    del kept


def test_a_process_reports_at_its_end(run_python: Any) -> None:
    """DLBRIDGE_LEDGER=1, for programs that are not to be changed."""
    code = """
    import numpy, dlbridge
    kept = dlbridge.from_dlpack(numpy.ones(3))
    dropped = dlbridge.ones((2,), "int8").__dlpack__()
    del dropped
    """
    said = run_python(code, DLBRIDGE_LEDGER="1").stderr
    assert "never consumed at <string>:5" in said
    assert "1 x object, made at <string>:3" in said
    assert run_python(code, DLBRIDGE_LEDGER="0").stderr == ""

"""Synthetic producers and consumers: what they are told to do, they do, faults included."""

from __future__ import annotations

import gc
import sys
import threading
from typing import Any

import numpy as np
import pytest
from measuring import PATIENCE, lasts

import dlbridge as dlb
from dlbridge import faults
from dlbridge.check.consumer_rules import counted_peer


@pytest.mark.parametrize("versioned", [True, False])
def test_a_deleter_runs_on_a_thread_that_python_has_not_made(versioned: bool) -> None:
    """Frameworks release on threads of their own, without the GIL."""
    producer = faults.ModernProducer(np.arange(3.0))
    found = faults.Consumer(faults.exported(producer, versioned))
    found.release(off_thread=True)
    assert producer.deleted == 1
    assert producer.loans[0].threads != [threading.get_ident()]


def test_a_consumer_can_call_the_deleter_twice() -> None:
    """The second call is counted; it must not crash what checks for it."""
    producer = faults.ModernProducer(np.arange(3.0))
    faults.Consumer(producer.capsule()).release(times=2)
    assert producer.deleted == 2


def test_a_slow_deleter_lets_other_threads_run() -> None:
    """A consumer must not hold a lock that another thread needs while it releases.

    The thread that releases the tensor also makes it: a free-threaded Python leaves the last
    release of an object to the thread that made it.
    """
    inside, seen = threading.Event(), threading.Event()
    slow = faults.slow(0.2)

    def delete() -> None:
        inside.set()
        slow()
        assert seen.wait(PATIENCE)

    what = faults.describe(np.arange(3.0), on_delete=delete)
    producer = faults.ModernProducer(what)
    thread = threading.Thread(target=dlb.from_dlpack, args=(producer,))
    with lasts(0.2):
        thread.start()
        assert inside.wait(PATIENCE)
        seen.set()  # before the deleter has come to its end
        thread.join()
    assert producer.deleted == 1


def test_a_raising_deleter_is_reported_and_the_loan_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever called it has no place for an exception."""
    seen: list[Any] = []
    monkeypatch.setattr(sys, "unraisablehook", lambda caught: seen.append(caught.exc_type))
    what = faults.describe(np.arange(3.0), on_delete=faults.raising(ValueError("no")))
    producer = faults.ModernProducer(what)
    tensor = dlb.from_dlpack(producer)
    del tensor
    gc.collect()
    assert producer.deleted == 1
    assert seen == [ValueError]


def test_a_null_deleter_is_never_called() -> None:
    """The standard allows it: the producer keeps what it lent."""
    producer = faults.ModernProducer(faults.describe(np.arange(3.0), has_deleter=False))
    found = faults.Consumer(producer.capsule())
    assert not found.has_deleter
    found.release()
    found = faults.Consumer(producer.capsule())
    found.release(off_thread=True)
    assert producer.deleted == 0


@pytest.mark.parametrize("device", [(2, 0), (10, 3), (14, 0), (99, 0)])
def test_a_tensor_of_any_device_needs_none(device: tuple[int, int]) -> None:
    """Tests of device rules run on machines without a GPU."""
    what = faults.Description(device=device, data=0x1000, dtype=(17, 4, 2), flags=5)
    found = faults.Consumer(faults.ModernProducer(what).capsule())
    assert (found.device, found.data, found.dtype) == (device, 0x1000, (17, 4, 2))
    assert (found.flags, found.version) == (5, (1, 3))
    found.release()


@pytest.mark.parametrize("versioned", [True, False])
@pytest.mark.parametrize("data", [0x1000, 0xFFFF_FFC0])  # as a refcount, the latter is immortal
def test_deletions_are_counted_without_python(data: int, versioned: bool) -> None:
    """Whatever the struct says, and whether Python counts references in its first word or not."""
    producer = counted_peer(data=data, version=(0xFFFF_FFC0, 0))
    found = faults.Consumer(producer.capsule(versioned))
    assert producer.deleted == 0
    found.release(times=3, off_thread=True)
    assert producer.deleted == 3
    assert found.has_deleter
    assert producer.loans[0].deleted == 0, "the deleter in Python was called"

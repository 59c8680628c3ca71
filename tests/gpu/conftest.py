"""Needs of the tests on a GPU: a GPU, or the reason why there is none; frameworks that see it."""

from __future__ import annotations

import ctypes
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cuda")]

from gpu_frameworks import Framework, find  # noqa: E402

# Nanoseconds of a slow kernel here: more than a framework needs to enqueue what comes after it.
SPIN = 100_000_000

from dlbridge import cuda  # noqa: E402
from dlbridge._core import native  # noqa: E402


@pytest.fixture(autouse=True)
def needs_a_gpu(request: pytest.FixtureRequest) -> None:
    """Skip what is marked `gpu` where there is none, and say why."""
    if request.node.get_closest_marker("gpu") is None:
        return
    why = native.cuda_open()
    if why is not None:
        pytest.skip(f"there is no GPU here: {why}")
    if not cuda.device_count():
        pytest.skip("there is no GPU here: the driver counts 0 devices")


@pytest.fixture(autouse=True)
def nothing_is_out_of_order(needs_a_gpu: None) -> Iterator[None]:
    """Ask the driver for what it saw out of order, where it is the fake one of a rehearsal."""
    yield
    cuda.collect()  # also what other processes have let go of
    path = os.environ.get("DLBRIDGE_CUDA_DRIVER")
    library = ctypes.CDLL(path) if path else None
    if hasattr(library, "fake_fault_count"):
        library.fake_fault.restype = ctypes.c_char_p
        faults = [library.fake_fault(i).decode() for i in range(library.fake_fault_count())]
        library.fake_forget_faults()
        assert not faults, "\n".join(["the driver saw what was out of order:", *faults])


@pytest.fixture
def load() -> Callable[[str], Framework]:
    """Return a function that gives a framework by name, or skips the test and says why."""

    def find_or_skip(name: str) -> Framework:
        found = find(name)
        if isinstance(found, str):
            pytest.skip(found)
        return found

    return find_or_skip


@pytest.fixture
def machine(needs_a_gpu: None) -> Iterator[Any]:
    """Return the GPU as the stream scenarios see it: slow kernels, counted waits of the host.

    That the host has not waited, by whoever's call, is `not machine.is_through(stream)` of a stream
    with a slow kernel.
    """
    from real_machine import RealMachine

    found = RealMachine(spin=SPIN)
    found.reset()  # from here on waits are counted
    yield found
    found.close()
    cuda.collect()

"""A pytest plugin for processes with the stand-in for CuPy: what each test leaves is looked at."""

from __future__ import annotations

import gc
import os
from collections.abc import Iterator

import pytest
from fake_driver import FakeDriver

from dlbridge import cuda


class Machine:
    """The fake driver of this process, whose memory and streams CuPy keeps from test to test."""

    def __init__(self) -> None:
        self.driver = FakeDriver(os.environ["DLBRIDGE_CUDA_DRIVER"])

    @property
    def faults(self) -> list[str]:
        return self.driver.faults

    def forget_faults(self) -> list[str]:
        """Return the faults so far, which the test expects, and forget them."""
        found = self.faults
        self.driver.library.fake_forget_faults()
        return found

    @property
    def host_waits(self) -> int:
        """How often the host has waited for a device."""
        return int(self.driver.library.fake_host_waits())


_MACHINES: list[Machine] = []


@pytest.fixture
def machine() -> Iterator[Machine]:
    """The fake driver; at the end nothing may be out of order."""
    if not _MACHINES:
        _MACHINES.append(Machine())
    machine = _MACHINES[0]
    machine.forget_faults()
    yield machine
    gc.collect()
    cuda.synchronize("cuda:0")
    cuda.synchronize("cuda:1")
    assert cuda.collect() == 0
    assert machine.forget_faults() == []

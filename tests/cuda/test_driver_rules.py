"""Rules of the driver that dlbridge relies on: what the fake driver says, and what a real one does.

On a machine with a GPU each test runs on both. Where they differ, the fake driver is wrong.
"""

from __future__ import annotations

import ctypes
from typing import Any

import pytest
from driver_calls import DriverError
from machine import GLOBAL, KERNEL, RELAXED, THREAD_LOCAL

UNSUPPORTED, INVALIDATED, INVALID_VALUE = 900, 901, 1


def forget_fault(machine: Any, kind: str) -> None:
    if machine.is_fake:
        machine.expect_fault(kind)


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL])
def test_loading_a_module_may_break_a_capture_of_its_thread(machine: Any, mode: int) -> None:
    """It does on the fake driver; that of CUDA 13.0 lets it pass."""
    stream = machine.stream()
    library, made = machine.driver.library, ctypes.c_void_p()
    with machine.driver.on(0):
        machine.driver.call("cuStreamBeginCapture_v2", stream, mode)
        loaded = library.cuModuleLoadData(ctypes.byref(made), KERNEL.read_bytes() + b"\0")
        ended = library.cuStreamEndCapture(stream, ctypes.byref(ctypes.c_void_p()))
    codes = [(UNSUPPORTED, INVALIDATED)] + ([] if machine.is_fake else [(0, 0)])
    assert (loaded, ended) in codes
    forget_fault(machine, "capture")


def test_loading_a_module_leaves_a_relaxed_capture_alone(machine: Any) -> None:
    stream = machine.stream()
    with machine.capture(stream, RELAXED):
        machine.driver.make("cuModuleLoadData", KERNEL.read_bytes() + b"\0")


def test_a_capture_frees_no_memory_from_outside(machine: Any) -> None:
    """A free is a node of the graph, for an allocation that is one."""
    stream = machine.stream()
    memory = machine.alloc(64, stream=stream)
    with machine.capture(stream), pytest.raises(DriverError) as caught:
        machine.driver.call("cuMemFreeAsync", memory, stream)
    assert caught.value.code == INVALID_VALUE
    forget_fault(machine, "misuse")

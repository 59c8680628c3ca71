"""Scopes of streams and contexts: an interrupt at any bytecode leaves nothing entered."""

from __future__ import annotations

from typing import Any

import pytest
from interrupts import check

from dlbridge import cuda
from dlbridge._core import ffi
from dlbridge.cuda.driver import entered, relaxed


def current_context() -> int:
    found = ffi.new("CUcontext *")
    assert cuda.driver().cuCtxGetCurrent(found) == 0
    return int(ffi.cast("uintptr_t", found[0]))


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_a_stream(fake_machine: Any, by: str) -> None:
    stream = fake_machine.stream()
    check(lambda: cuda.stream(stream), cuda.current_stream, by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_a_stream_inside_of_another(fake_machine: Any, by: str) -> None:
    outer, inner = fake_machine.stream(), fake_machine.stream()
    with cuda.stream(outer):
        check(lambda: cuda.stream(inner), cuda.current_stream, by)
        assert cuda.current_stream() == outer
    assert cuda.current_stream() == 1


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_a_context(fake_machine: Any, by: str) -> None:
    with entered(0):
        check(lambda: entered(1), current_context, by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_relaxed_mode_of_captures(fake_machine: Any, by: str) -> None:
    driver = cuda.driver()

    def mode() -> int:
        """The mode of this thread: it is exchanged, and exchanged back."""
        found = ffi.new("int *", 0)
        driver.cuThreadExchangeStreamCaptureMode(found)
        before = int(found[0])
        driver.cuThreadExchangeStreamCaptureMode(found)
        return before

    with entered(0):
        assert mode() == 0
        check(lambda: relaxed(driver), mode, by)

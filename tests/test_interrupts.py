"""Context managers: an interrupt at any bytecode leaves nothing entered."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.exchange.context import _LOGS, is_recording


class Interrupt(BaseException):
    """As a KeyboardInterrupt, which a test runner would take for one of its user."""


def _interrupt_at(step: int, act: Callable[[], None], by: str) -> bool:
    """Call `act` and interrupt it at a line, or at a bytecode; return whether it got that far."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename == __file__:
            return None
        frame.f_trace_opcodes = by == "opcode"
        if event == by:
            count += 1
            if count == step:
                raise Interrupt
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        act()
    except Interrupt:
        pass
    finally:
        sys.settrace(before)
    return count >= step


def _check(
    manager: Callable[[], AbstractContextManager[Any]], state: Callable[[], object], by: str
) -> None:
    def act() -> None:
        with manager():
            pass

    act()
    before = state()
    step = 1
    while _interrupt_at(step, act, by):
        assert state() == before, f"{by} {step}"
        step += 1
    assert step > 5


def _watched() -> bool:
    """Return whether an exchange of a plain array leaves the C path."""
    called = []

    def profile(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            called.append(frame.f_code.co_name)

    x = np.ones(3)
    before = sys.getprofile()
    sys.setprofile(profile)
    try:
        dlbridge.from_dlpack(x)
    finally:
        sys.setprofile(before)
    return "from_dlpack" in called


def test_the_probe_sees_an_open_log() -> None:
    assert not _watched()
    with dlbridge.receipts():
        assert _watched()
    assert not _watched()


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_receipts(by: str) -> None:
    _check(dlbridge.receipts, lambda: (_watched(), is_recording()), by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_receipts_inside_of_others(by: str) -> None:
    with dlbridge.receipts() as outer:
        _check(dlbridge.receipts, lambda: (_watched(), _LOGS.get() == (outer,)), by)
    assert not _watched()


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_pause_of_the_collector_during_an_import(by: str) -> None:
    from dlbridge.graph.graphdef import importer

    _check(lambda: importer._uninterrupted(10**6), gc.isenabled, by)

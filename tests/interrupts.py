"""Interrupt a context manager, or a call, at every line or bytecode of its own."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import FrameType
from typing import Any

_TESTS = f"{Path(__file__).parent}/"  # the code of tests is not interrupted


class Interrupt(BaseException):
    """As a KeyboardInterrupt, which a test runner would take for one of its user."""


def _interrupt_at(step: int, act: Callable[[], object], by: str) -> bool:
    """Call `act` and interrupt it at a line, or at a bytecode; return whether it got that far."""
    count = 0

    def trace(frame: FrameType, event: str, _: object) -> Any:
        nonlocal count
        if frame.f_code.co_filename.startswith(_TESTS):
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


def check(
    manager: Callable[[], AbstractContextManager[Any]], state: Callable[[], object], by: str
) -> None:
    """Interrupt `with manager()` at each line or bytecode; `state()` must stay as it was."""

    def act() -> None:
        with manager():
            pass

    check_call(act, state, by)


def check_call(act: Callable[[], object], state: Callable[[], object], by: str) -> None:
    """Interrupt `act()` at each line or bytecode; `state()` must stay as it was."""
    act()
    _interrupt_at(0, act, by)  # Python 3.12 traces the bytecodes of a function from its second call
    before = state()
    step = 1
    while _interrupt_at(step, act, by):
        assert state() == before, f"{by} {step}"
        step += 1
    assert step > 5

"""Context managers: an interrupt at any bytecode leaves nothing entered."""

from __future__ import annotations

import gc
import sys
from types import FrameType

import numpy as np
import pytest
from interrupts import check

import dlbridge
from dlbridge.exchange.context import _LOGS, is_recording


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
    check(dlbridge.receipts, lambda: (_watched(), is_recording()), by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_receipts_inside_of_others(by: str) -> None:
    with dlbridge.receipts() as outer:
        check(dlbridge.receipts, lambda: (_watched(), _LOGS.get() == (outer,)), by)
    assert not _watched()


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_pause_of_the_collector_during_an_import(by: str) -> None:
    from dlbridge.graph.graphdef import importer

    check(lambda: importer._uninterrupted(10**6), gc.isenabled, by)

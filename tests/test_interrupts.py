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
from interrupts import Interrupt, check

import dlbridge
import dlbridge.graph as tf
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


# ---- graphs ------------------------------------------------------------------------------------


def _graph_state() -> object:
    from dlbridge.graph.core.scopes import GRAPHS, SESSIONS
    from dlbridge.graph.variables.variable_scope import get_variable_scope

    scopes = tf.get_default_graph()._scopes
    return list(GRAPHS.items), list(SESSIONS.items), scopes.state, get_variable_scope()


GRAPH_BLOCKS: dict[str, Callable[[Any], AbstractContextManager[Any]]] = {
    "as_default": lambda graph: tf.Graph().as_default(),
    "session as_default": lambda graph: tf.Session(graph=graph).as_default(),
    "graph.name_scope": lambda graph: graph.name_scope("a"),
    "name_scope": lambda graph: tf.name_scope("a"),
    "device": lambda graph: graph.device("/cpu:0"),
    "framework": lambda graph: graph.framework("torch"),
    "control_dependencies": lambda graph: graph.control_dependencies([]),
    "colocate_with": lambda graph: graph.colocate_with(None, ignore_existing=True),
    "variable_scope": lambda graph: tf.variable_scope("a"),
    "variable_scope without a name scope": lambda graph: tf.variable_scope(
        "a", auxiliary_name_scope=False
    ),
}


@pytest.mark.parametrize("by", ["line", "opcode"])
@pytest.mark.parametrize("name", GRAPH_BLOCKS)
@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in __del__
def test_blocks_of_a_graph(name: str, by: str) -> None:
    with tf.Graph().as_default() as graph, tf.name_scope("outer"), graph.device("/job:w"):
        check(lambda: GRAPH_BLOCKS[name](graph), _graph_state, by)


class _Entering:
    """Enters a session; only that is interrupted."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __enter__(self) -> None:
        self._session.__enter__()

    def __exit__(self, *details: object) -> None:
        sys.settrace(None)
        self._session.__exit__(*details)


def test_entering_a_session() -> None:
    with tf.Graph().as_default():
        session: Any = None

        def manager() -> AbstractContextManager[Any]:
            nonlocal session
            session = tf.Session()  # alive when the state is compared
            return _Entering(session)

        check(manager, lambda: (_graph_state(), session._entered), "line")


class _Leaving:
    """Leaves a session, and only that is interrupted: before anything was left, again."""

    def __init__(self, session: Any) -> None:
        self._session = session

    def __enter__(self) -> None:
        trace = sys.gettrace()
        sys.settrace(None)
        self._session.__enter__()
        sys.settrace(trace)

    def __exit__(self, *details: object) -> None:
        try:
            self._session.__exit__(*details)
        except Interrupt:
            sys.settrace(None)
            if self._session._entered:
                self._session.__exit__(*details)
            raise


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in __del__
def test_leaving_a_session() -> None:
    with tf.Graph().as_default(), tf.Session() as outer:
        session: Any = None

        def manager() -> AbstractContextManager[Any]:
            nonlocal session
            session = None  # its end is not interrupted
            session = tf.Session()
            return _Leaving(session)

        check(manager, lambda: (_graph_state(), tf.get_default_session() is outer), "line")

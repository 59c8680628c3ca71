"""Context managers: an interrupt at any bytecode leaves nothing entered."""

from __future__ import annotations

import ast
import gc
import operator
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from interrupts import Interrupt, check, check_call

import dlbridge
import dlbridge.graph as tf
from dlbridge.exchange.context import _LOGS, is_recording
from dlbridge.execution import waiting


def _watched() -> bool:
    """Return whether C counts a log as open, so that it looks for logs to write to."""
    log: list[dlbridge.Receipt] = []
    before = _LOGS.get()
    _LOGS.set((log,))
    try:
        dlbridge.from_dlpack(np.ones(3))
    finally:
        _LOGS.set(before)
    return bool(log)


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


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_traces_of_other_tasks(by: str) -> None:
    from dlbridge.graph.distributed.server import Server

    server = object.__new__(Server)  # no MPI: the block only keeps what comes
    server._events = {}
    check(lambda: server.events(3, (1, 2)), lambda: list(server._events), by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_end_of_what_a_run_waits_for(by: str) -> None:
    seen: list[object] = []

    def look() -> None:
        seen.append(waiting._DEADLINE.limit)

    call = partial(waiting.call_until, 1.0, TimeoutError, look)
    check_call(call, lambda: waiting._DEADLINE.limit, by)
    assert (1.0, TimeoutError) in seen
    assert waiting._DEADLINE.limit is None


# ---- inside of calls ---------------------------------------------------------------------------


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_grad_modes_of_a_nested_transform(by: str, framework: Any) -> None:
    torch = framework("torch")
    from dlbridge.frameworks.torch.operators import grad_modes

    def modes() -> object:
        return torch.is_grad_enabled(), torch._C._is_fwd_grad_enabled()

    assert modes() == (True, True)
    check(lambda: grad_modes(False, False), modes, by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_switches_of_torchs_own_tests(by: str, framework: Any) -> None:
    framework("torch")
    from dlbridge.frameworks.torch.internals import _switched

    entered: list[None] = []
    on, off = partial(operator.iadd, entered, [None]), entered.clear
    check(lambda: _switched(on, off), lambda: len(entered), by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_autocast_that_torch_is_tested_with(by: str, framework: Any) -> None:
    torch = framework("torch")
    from dlbridge.frameworks.torch.internals import _autocast

    check(lambda: _autocast(torch, "cuda"), lambda: torch.is_autocast_enabled("cuda"), by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_autocast_of_a_bridged_module(by: str, framework: Any) -> None:
    torch = framework("torch")
    from dlbridge.frameworks.torch.modules import _switched

    def state() -> object:
        return torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")

    check(lambda: _switched([("cpu", torch.float16)]), state, by)


@pytest.mark.parametrize("by", ["line", "opcode"])
def test_the_operands_that_a_bridged_module_has_during_a_backward_pass(
    by: str, framework: Any
) -> None:
    torch = framework("torch")
    from dlbridge.frameworks.torch.modules import Module

    weight = torch.ones(3)
    bridged = Module(torch.nn.Linear(2, 1))
    part = bridged._copy.module
    before = part.weight

    def act() -> None:
        bridged.hold(lambda: part._parameters.update(weight=weight))

    check_call(act, lambda: (bridged.is_held, part.weight is before), by)


# Each context manager in Python, and why it is not in a test of this file or of
# tests/cuda/test_interrupted_scopes.py, if it is not. Those in C are one step for an interrupt.
MANAGERS = {
    "check/producer_rules.py": {"taken": "of a process that ends", "held": "the same"},
    "cuda/driver.py": {"entered": "", "relaxed": "", "_working_on": ""},
    "exchange/context.py": {"receipts": ""},
    "exchange/stream.py": {"Stream": "it enters nothing, and ends when it is dropped"},
    "exchange/trees.py": {"_inside": "its state ends with the walk"},
    "frameworks/torch/internals.py": {"_switched": "", "_autocast": ""},
    "frameworks/torch/modules.py": {
        "_seeded": "a lock, and what torch itself restores",
        "_switched": "",
    },
    "frameworks/torch/operators.py": {"grad_modes": ""},
    "graph/core/default_graph.py": {"name_scope": ""},
    "graph/core/scopes.py": {"Block": "", "DefaultBlock": ""},
    "graph/distributed/server.py": {"events": ""},
    "graph/graphdef/importer.py": {"_uninterrupted": ""},
    "graph/ops/shared.py": {"scope": "two blocks of the graph, one inside of the other"},
    "graph/session/session.py": {"Session": ""},
    "graph/summary.py": {"FileWriter": "it enters nothing"},
    "graph/variables/variable_scope.py": {"variable_scope": "", "_current": ""},
    "mpi/buckets.py": {"refusing": "it enters nothing"},
    "kernels/debugging.py": {"debug_kernels": "it switches before its block is entered"},
    "terminal.py": {"progress": "what it shows is rich's"},
    "testing/checking.py": {"naming_choice": "it enters nothing"},
}


def test_every_context_manager_is_known() -> None:
    root = Path(dlbridge.__file__).parent
    found: dict[str, set[str]] = {}
    for path in root.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if (
                isinstance(node, ast.FunctionDef)
                and any("contextmanager" in ast.unparse(each) for each in node.decorator_list)
            ) or (
                isinstance(node, ast.ClassDef)
                and any(getattr(each, "name", "") == "__enter__" for each in node.body)
            ):
                found.setdefault(path.relative_to(root).as_posix(), set()).add(node.name)
    assert found == {file: set(names) for file, names in MANAGERS.items()}

"""Op types and kernels are loaded by the first thread that needs them; others wait for all."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from dlbridge.execution import registry
from dlbridge.execution.backend import FRAMEWORKS
from dlbridge.execution.registry import FirstUse

FRAMEWORK_FOLDERS = Path(__file__).resolve().parents[2] / "dlbridge" / "frameworks"

# In a fresh process, where nothing is loaded yet; switches between threads after each bytecode.
PROGRAM = """
import sys
import threading

import dlbridge.graph as tf
from dlbridge.execution import registry
from dlbridge.graph.core import opdef

sys.setswitchinterval(1e-6)
barrier = threading.Barrier(8)
answers = []

def ask(number):
    barrier.wait()
    try:
        if number % 2:
            names = len(opdef.names())
        registry.load_framework({framework!r})
        types, names = len(registry.types()), len(opdef.names())
        with tf.Graph().as_default(), tf.Session(framework={framework!r}) as session:
            total = session.run(tf.reduce_sum(tf.nn.relu(tf.constant([-1.0, 2.0, 3.0]))))
        answers.append((types, names, float(total)))
    except BaseException as error:
        answers.append(repr(error))

threads = [threading.Thread(target=ask, args=(number,)) for number in range(8)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
expected = len(registry.types()), len(opdef.names()), 5.0
assert answers == [expected] * 8, answers
"""


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_eight_threads_may_use_op_types_first(name: str, framework: object) -> None:
    framework(name)
    subprocess.run([sys.executable, "-c", PROGRAM.format(framework=name)], check=True)


def test_a_loader_that_fails_runs_again_at_the_next_use() -> None:
    calls = []

    def load() -> None:
        calls.append(len(calls))
        if len(calls) == 1:
            raise OSError("no disk")

    first_use = FirstUse()
    first_use.add(load)
    with pytest.raises(OSError, match="no disk"):
        first_use()
    first_use()
    first_use()
    assert calls == [0, 1]


def test_a_loader_may_use_what_it_fills() -> None:
    calls = []
    first_use = FirstUse()
    first_use.add(lambda: (first_use(), calls.append(1)))
    first_use()
    assert calls == [1]


def test_frameworks_that_run_nodes_have_a_backend() -> None:
    assert {path.parent.name for path in FRAMEWORK_FOLDERS.glob("*/graph.py")} == set(FRAMEWORKS)


def test_a_module_whose_import_was_interrupted_registers_its_kernels_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Python executes it again; two modules may not register kernels for one op type."""
    monkeypatch.setattr(registry, "_SPECS", {})
    text = "@kernel('Once', framework='numpy')\ndef {}(node, context):\n    return abs\n"
    for _ in range(2):
        exec(compile(text.format("once"), "kernels.py", "exec"), {"kernel": registry.kernel})
    with pytest.raises(AssertionError, match="two kernels for"):
        exec(compile(text.format("other"), "kernels.py", "exec"), {"kernel": registry.kernel})

"""Op types and kernels are loaded by the first thread that needs them; others wait for all."""

from __future__ import annotations

import subprocess
import sys
from importlib import import_module, invalidate_caches
from pathlib import Path

import pytest

from dlbridge.execution import registry
from dlbridge.execution.backend import FRAMEWORKS
from dlbridge.execution.registry import FirstUse
from dlbridge.graph.core import opdef

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


@pytest.mark.fast(lambda name: name == "numpy")
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
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Python executes it again; two modules may not register kernels for one op type."""
    monkeypatch.setattr(registry, "_SPECS", {})
    monkeypatch.setattr(registry, "_ORIGINS", {})
    monkeypatch.syspath_prepend(tmp_path)
    line = "kernel('Once', framework='numpy', ufunc='abs')(ufunc('abs'))\n"
    begin = "from dlbridge.execution.registry import kernel\n"
    begin += "from dlbridge.graph.ops.kernels import _in_namespace as ufunc\n"
    end = "import stopped\n"
    (tmp_path / "first_kernels.py").write_text(begin + line + end)
    (tmp_path / "other_kernels.py").write_text(begin + line)
    (tmp_path / "stopped.py").write_text("raise KeyboardInterrupt\n")
    with pytest.raises(KeyboardInterrupt):
        import_module("first_kernels")
    (tmp_path / "stopped.py").write_text("")
    monkeypatch.delitem(sys.modules, "stopped", raising=False)
    invalidate_caches()
    first = import_module("first_kernels")
    assert registry._ORIGINS["Once", "numpy"]._globals is vars(first)
    with pytest.raises(AssertionError, match="two kernels for"):
        import_module("other_kernels")
    (tmp_path / "twice_kernels.py").write_text(begin + 2 * line.replace("Once", "Twice"))
    with pytest.raises(AssertionError, match="two kernels for"):
        import_module("twice_kernels")
    for name in ("first_kernels", "stopped"):
        monkeypatch.delitem(sys.modules, name)


# Raises KeyboardInterrupt at the end of each module of the package, once: where the most is done.
INTERRUPTED = """
import sys

interrupted = set()

def trace(frame, event, _):
    name = frame.f_globals.get("__name__", "")
    is_ours = name.startswith("dlbridge") and not name.startswith("dlbridge._core")
    is_first = is_ours and name not in interrupted
    return at_its_end if is_first and frame.f_code.co_name == "<module>" else None

def at_its_end(frame, event, _):
    name = frame.f_globals["__name__"]
    if event == "return" and name not in interrupted:
        interrupted.add(name)
        raise KeyboardInterrupt
    return at_its_end

def use():
    import dlbridge.graph as tf
    from dlbridge.execution import registry
    from dlbridge.graph.core import opdef

    registry.load_framework("numpy")
    return tf, registry.types(), opdef.names()

while True:
    sys.settrace(trace)
    try:
        tf, *interrupted_names = use()
        break
    except KeyboardInterrupt:
        pass
    finally:
        sys.settrace(None)
assert len(interrupted) > 100, interrupted
with tf.Graph().as_default() as graph, tf.Session() as session:
    x = tf.placeholder("float32", [None], name="x")
    v = tf.get_variable("v", initializer=1.0)
    session.run(v.initializer)
    y = tf.reduce_sum(tf.nn.relu(x * 2 + v)[1:], name="y")
    assert session.run(y, {x: [1, 2, 3]}) == 12
    data = graph.as_graph_def().SerializeToString()
assert tf.load_graph(data).get_operation_by_name("y").type == "Sum"
print(*map(len, interrupted_names))
"""


@pytest.mark.full
def test_an_import_that_was_interrupted_anywhere_can_be_repeated() -> None:
    """Also that of op types, kernels and frameworks when they are first used."""
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    origins = {name: opdef._ORIGINS[name]._globals["__name__"] for name in opdef.names()}
    ours = [name for name, module in origins.items() if module.startswith("dlbridge.")]
    assert len(ours) > 300
    assert done.stdout.split() == [str(len(ours))] * 2

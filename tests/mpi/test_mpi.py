"""dlbridge.mpi, on real processes that mpiexec starts: the programs are in mpi_programs.py."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mpi_jobs
import pytest
from mpi import pmi
from mpi_jobs import (
    MANY,
    Said,
    needs_mpi,
    needs_openmpi,
    needs_ulfm,
    run_together,
    said_by,
    start,
)

ROOT = Path(__file__).resolve().parents[2]
PROGRAMS = Path(__file__).with_name("mpi_programs.py")
pytestmark = [pytest.mark.mpi]

# Programs that run one after the other in the same processes, with NumPy alone, and their ranks.
TOGETHER = (
    "reductions",
    "means",
    "means_by_c",
    "copies",
    "gathered_and_scattered",
    "rows_travel_with_the_agreement",
    "gathered_by_c",
    "roots_of_smaller_communicators",
    "freed_with_calls_under_way",
    "copies_of_freed_communicators",
    "no_tensors_to_exchange",
    "ragged_rows",
    "trees",
    "trees_by_c",
    "trees_begun_by_c",
    "trees_copied_in_pieces",
    "trees_that_do_not_agree",
    "quick_calls",
    "collectives_begun_by_c",
    "rows_are_reduced_as_the_whole",
    "begun_collectives_that_do_not_agree",
    "begun_collectives_are_late",
    "begun_collectives_in_threads",
    "collectives_of_many_ranks",
    "many_under_way",
    "waits_for_all",
    "large_reductions",
    "no_memory_for_a_result",
    "nan_is_kept",
    "layouts",
    "disagreements",
    "refusals",
    "names_in_refusals",
    "messages",
    "receives_from_any_rank",
    "messages_by_c",
    "messages_begun_by_c",
    "messages_passed_on",
    "messages_that_do_not_fit",
    "contents_longer_than_announced",
    "failed_exchanges_leave_nothing",
    "messages_without_memory",
    "passed_on_without_memory",
    "exchanges_with_nobody",
    "timeouts",
    "cancelled_receives",
    "messages_in_threads",
    "late_contents",
    "non_blocking",
    "communicators",
    "in_graphs",
    "out_of_communicators",
    "no_owner_stays",
    "interrupted",
    "interrupted_messages",
    "interrupted_trees",
    "interrupts_while_c_waits",
    "interrupted_anywhere",
    "new_communicators",
    "waiting_is_idle",
    "forked",
    "children",
)
RANKS = (2, 3, 4)
# Programs with more to import, or to move, in processes of their own.
ALONE = {
    "frameworks": 2,
    "every_framework": 3,
    "trees_of_frameworks": 2,
    "huge": 2,
    "first_use_in_threads": 2,
    "interrupted_at_each_instruction": 2,
    "started": 2,
    "torch_gradients": 2,
    "torch_order": 2,
    "jax_gradients": 2,
    "jax_order": 2,
    "mixed_operators": 2,
}
NEEDED = {
    "frameworks": ("torch",),
    "every_framework": ("torch", "jax", "tensorflow"),
    "trees_of_frameworks": ("torch", "jax"),
    "torch_gradients": ("torch",),
    "torch_order": ("torch",),
    "jax_gradients": ("jax",),
    "jax_order": ("jax",),
    "mixed_operators": ("torch", "jax"),
}


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Said]:
    """Return a function that runs all programs of TOGETHER on so many ranks, once."""
    known: dict[int, Said] = {}

    def run(count: int) -> Said:
        if count not in known:
            folder = tmp_path_factory.mktemp(f"ranks{count}")
            known[count] = run_together(folder, count, PROGRAMS, folder, *TOGETHER)
        return known[count]

    return run


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.timeout(MANY + 60)
@pytest.mark.parametrize("name", TOGETHER)
@pytest.mark.parametrize("count", RANKS)
@pytest.mark.fast(lambda count: count == 3)  # not a power of two
def test_program(name: str, count: int, together: Callable[[int], Said]) -> None:
    """What the program's function says, on two, three and four ranks."""
    said = together(count)
    assert said.get(name) == ["ok"] * count, said.get(name, said["the end"])


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.timeout(MANY + 60)
@pytest.mark.parametrize("count", RANKS)
@pytest.mark.fast(lambda count: count == 3)  # not a power of two
def test_all_ranks_end_well(count: int, together: Callable[[int], Said]) -> None:
    said = together(count)
    assert said["the end"][0] == 0, said["the end"][1]


def test_a_late_job_counts_as_far_as_it_came(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def start(*_: object, timeout: float) -> None:
        (tmp_path / "0").write_text('["first", "ok"]\n')
        raise AssertionError(f"is not over after {timeout} s")

    monkeypatch.setattr(mpi_jobs, "start", start)
    said = run_together(tmp_path, 1, PROGRAMS, "first", "second")
    assert said == {"first": ["ok"], "the end": [-9, f"is not over after {MANY} s"]}


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("name", ALONE)
@pytest.mark.fast(lambda name: name == "first_use_in_threads")  # "frameworks": test_server.py
def test_program_of_its_own(name: str, tmp_path: Path, framework: Any) -> None:
    """Frameworks mixed in one call; more than 2 GiB; traced and differentiated calls."""
    for each in NEEDED.get(name, ()):
        if importlib.util.find_spec(each) is None:
            pytest.skip(f"{each} is not installed")
    count = ALONE[name]
    said = said_by(tmp_path, count, start(count, PROGRAMS, tmp_path, name))
    assert said.get(name) == ["ok"] * count, said


ENDS = {
    "raises": "on purpose",
    "exits": "waits for rank 0, which has ended",
    "returns": "waits for rank 0, which has ended",
    "is_killed": "signal 9",
    "begins_no_collective": "iallreduce: waits for rank 0, which has ended",
    "is_killed_amid_collectives": "signal 9",
    "is_terminated": "signal 15",
    "is_interrupted": "KeyboardInterrupt",
    "only_announces": "recv: waits for rank 0, which has ended",
    "is_killed_when_it_has_announced": "signal 9",
    "is_interrupted_at_its_end": "KeyboardInterrupt",
    "receives_nothing": "send: waits for rank 0, which has ended",
    "never_uses_a_communicator": "the first use of a communicator waits for rank 0",
    "waits_for_one_that_has_dropped_a_call": "allreduce: waits for rank 0, which has ended",
}


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.fast(lambda name: name in ("raises", "exits"))
def test_no_rank_waits_for_one_that_has_ended(name: str) -> None:
    """Whatever ends rank 0, rank 1, which waits for it, ends as well and the job fails."""
    done = start(2, PROGRAMS, "-", name, timeout=100)
    assert done.returncode != 0
    assert ENDS[name] in done.stdout + done.stderr, done.stdout + done.stderr


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_a_rank_at_the_end_of_its_script_says_for_whom_it_waits() -> None:
    done = start(2, PROGRAMS, "-", "says_whom_it_waits_for", timeout=100)
    assert "rank 0 has come to the end of its script, and waits for rank 1 to end" in done.stdout


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_a_rank_may_end_early() -> None:
    ends_well(2, "ends_early")


def ends_well(count: int, name: str) -> None:
    """Run a program on so many ranks, of which none fails and none waits for ever."""
    done = start(count, PROGRAMS, "-", name, timeout=100)
    assert done.returncode == 0, done.stderr


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("name", ["drops_calls", "drops_calls_that_others_make_late"])
def test_the_end_waits_for_no_call_that_no_rank_makes(name: str, count: int) -> None:
    ends_well(count, name)


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("count", [3, 5])
def test_ranks_do_not_wait_for_one_that_never_makes_their_call(count: int) -> None:
    ends_well(count, "drops_calls_while_others_wait")


@needs_mpi
@pytest.mark.subprocess
def test_a_call_is_completed_after_ranks_that_have_made_it_have_left() -> None:
    ends_well(4, "late_for_ranks_that_have_left")


@needs_mpi
@pytest.mark.subprocess
def test_ctrl_c_ends_the_job_though_it_comes_again() -> None:
    done = start(2, PROGRAMS, "-", "is_interrupted_again_and_again", timeout=100)
    assert done.returncode == 130, done.stderr
    assert "KeyboardInterrupt" in done.stdout + done.stderr


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_a_script_may_finalise_mpi_itself() -> None:
    done = start(3, PROGRAMS, "-", "finalises_mpi_itself", timeout=100)
    assert done.returncode == 0, done.stderr


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
def test_the_script_of_the_documentation_prints_what_it_says(
    tmp_path: Path, framework: Any
) -> None:
    framework("torch")
    text = (ROOT / "docs" / "distributed.md").read_text()
    code = text.partition("```python\n")[2].partition("```")[0]
    printed = text.partition("python two.py\n")[2].partition("```")[0]
    script = tmp_path / "two.py"
    script.write_text(code)
    done = start(2, script)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == sorted(printed.splitlines())


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
def test_two_frameworks_train_one_model(framework: Any) -> None:
    """The example compares its losses with those of one process."""
    framework("torch")
    framework("jax")
    done = start(2, script=ROOT / "examples" / "data_parallel.py")
    assert done.returncode == 0, done.stderr
    for who in ("rank 0 of 2, PyTorch", "rank 1 of 2, JAX"):
        assert f"{who}: the loss went from" in done.stdout


@needs_mpi
def test_mpi_starts_with_the_first_call(run_python: Callable[..., Any]) -> None:
    """Importing dlbridge, its graphs and dlbridge.mpi itself leaves MPI alone."""
    run_python(
        """
        import sys
        import dlbridge, dlbridge.graph, dlbridge.mpi
        assert "mpi4py" not in sys.modules
        assert dlbridge.mpi.size() == 1
        assert "mpi4py.MPI" in sys.modules
        """
    ).check()


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_other_launchers_start_ranks_by_the_environment_alone(tmp_path: Path) -> None:
    """As Slurm's srun does: nothing of mpiexec is needed."""
    import_path = os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")])
    environment = {**pmi.without_jobs(), "PYTHONPATH": import_path.rstrip(os.pathsep)}
    program = """
import numpy as np
import dlbridge.graph as tf
from dlbridge import mpi

server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
with tf.device(f"/job:worker/task:{mpi.size() - 1}"):
    x = tf.fill([5000], 2.0) + 1.0
with tf.Session(server.target, spmd=True) as session:
    assert (session.run(x) == 3.0).all()
total = mpi.allreduce(np.arange(3))
print(mpi.rank(), mpi.size(), server.task, total.tolist())
"""
    command = [sys.executable, "-c", program]
    codes, texts, finished = pmi.launch(3, command, environment, tmp_path)
    assert codes == [0] * 3, texts
    assert texts == [f"{i} 3 /job:worker/replica:0/task:{i} [0, 3, 6]\n" for i in range(3)]
    assert finished == 3


def test_without_mpi4py_the_refusal_says_what_to_install(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import sys
        sys.modules["mpi4py"] = None
        from dlbridge import FrameworkMissingError, mpi
        try:
            mpi.rank()
        except FrameworkMissingError as error:
            assert "pip install 'dlbridge[mpi]'" in str(error), error
        else:
            raise SystemExit("not refused")
        """
    ).check()


# ---- OpenMPI instead of MPICH ------------------------------------------------------------------


@needs_openmpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize("count", RANKS)
def test_all_programs_run_on_openmpi(count: int, tmp_path: Path) -> None:
    done = start(count, PROGRAMS, tmp_path, *TOGETHER, openmpi=True)
    said = said_by(tmp_path, count, done)
    assert said.pop("the end")[0] == 0, done.stderr
    assert said == dict.fromkeys(TOGETHER, ["ok"] * count)


@needs_openmpi
@pytest.mark.subprocess
@pytest.mark.full
def test_processes_that_a_rank_of_openmpi_starts_are_no_ranks(tmp_path: Path) -> None:
    said = said_by(tmp_path, 2, start(2, PROGRAMS, tmp_path, "started", openmpi=True))
    assert said["started"] == ["ok"] * 2, said


@needs_openmpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize("name", ENDS)
def test_no_rank_of_openmpi_waits_for_one_that_has_ended(name: str) -> None:
    done = start(2, PROGRAMS, "-", name, timeout=100, openmpi=True)
    assert done.returncode != 0
    assert ENDS[name] in done.stdout + done.stderr, done.stdout + done.stderr


@needs_ulfm
@pytest.mark.subprocess
def test_ranks_go_on_without_one_that_was_killed() -> None:
    """MPI with ULFM: calls that need it raise MPIError; the others are a communicator again."""
    done = start(4, PROGRAMS, "-", "ranks_survive", timeout=100, ulfm=True)
    assert sorted(done.stdout.splitlines()) == [f"go on {rank}" for rank in range(3)], done.stderr


CHANGED_BY_FINALIZERS = """
import collections, gc
import numpy as np
import dlbridge.mpi as mpi

def make():
    return {"a": collections.OrderedDict(b=np.ones(3)), "c": np.ones(200), "d": [np.ones(2)]}

class Garbage:
    def __del__(self):
        tree.clear()
        self.memory = [bytearray(500) for _ in range(50)]

for _ in range(3):
    mpi.allreduce(make())
for threshold in range(1, 60):
    tree = make()
    gc.disable()
    garbage = Garbage()
    garbage.cycle = garbage
    del garbage
    gc.set_threshold(threshold)
    gc.enable()
    try:
        mpi.allreduce(tree)
    except ValueError:
        pass
"""


@needs_mpi
@pytest.mark.subprocess
def test_a_tree_may_be_changed_by_garbage_that_is_collected_meanwhile() -> None:
    """Before Python 3.12, each allocation in C may run finalizers."""
    environment = {**os.environ, "PYTHONMALLOC": "debug"}
    program = [sys.executable, "-c", CHANGED_BY_FINALIZERS]
    done = subprocess.run(program, env=environment, capture_output=True, text=True, timeout=MANY)
    assert done.returncode == 0, done.stderr


MOVED_MEANWHILE = """
import threading
import jax, jax.numpy as jnp
import torch
import dlbridge.mpi as mpi

slow = jax.jit(lambda a: jax.lax.fori_loop(0, 60, lambda i, a: a @ a * 0.001, a))
a = slow(jnp.ones((400, 400))).block_until_ready()
small = [torch.ones(3) for _ in range(50)]
is_over = threading.Event()

def move():
    value = 0.0
    while not is_over.wait(0.0005):
        value = 1 - value
        for x in small:
            x.data = torch.full((3,), value)
        others = [torch.full((3,), 7.0) for _ in range(300)]

for _ in range(3):
    mpi.allreduce([*small, a])
thread = threading.Thread(target=move)
thread.start()
try:
    for _ in range(20):
        got = mpi.allreduce([*small, slow(a)])[:-1]
        assert {float(v) for x in got for v in x} <= {0.0, 1.0}
finally:
    is_over.set()
    thread.join()
"""


@needs_mpi
@pytest.mark.subprocess
def test_tensors_of_a_tree_may_move_while_another_is_waited_for(framework: Any) -> None:
    framework("torch"), framework("jax")
    program = [sys.executable, "-c", MOVED_MEANWHILE]
    done = subprocess.run(program, capture_output=True, text=True, timeout=MANY, check=False)
    assert done.returncode == 0, done.stderr

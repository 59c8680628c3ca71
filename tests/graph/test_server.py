"""Graphs over several tasks, on real processes that mpiexec starts; see server_programs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
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

import dlbridge.graph as tf

PROGRAMS = Path(__file__).with_name("server_programs.py")
pytestmark = [pytest.mark.mpi]

BOTH = (
    "random_graphs",
    "dtypes_and_shapes",
    "strings",
    "structures",
    "registered_structures",
    "variables_stay",
    "references",
    "control_dependencies",
    "back_and_forth",
    "results_are_kept",
    "errors",
    "late_errors",
    "deadlines",
    "no_idle_messages",
    "values_go_together",
    "values_in_bursts",
    "values_do_not_wait_for_functions",
    "memory_is_reused",
    "large_values_are_lent",
    "lent_values_are_kept",
    "one_copy_for_several_tasks",
    "lent_values_outlive_the_session",
    "lent_values_that_are_passed_on",
    "lent_values_of_failed_runs",
    "lent_values_in_a_forked_child",
    "python_functions",
    "wrong_feeds",
    "limits",
    "wrong_devices",
    "collective_reductions",
    "collective_rounding",
    "collective_gathers_and_broadcasts",
    "second_versions_of_collectives",
    "collectives_in_random_graphs",
    "collectives_that_do_not_fit",
    "failing_members",
    "one_trace",
    "clocks_of_other_hosts",
    "children_of_tasks",
    "no_memory_stays",
)
TOGETHER = {
    "spmd": (
        *BOTH,
        "crafted_news",
        "disagreements",
        "disagreements_about_known_runs",
        "other_limits",
        "no_task_is_far_ahead",
    ),
    "driven": (
        *BOTH,
        "several_threads",
        "queues",
        "lent_values_in_threads",
        "interrupted",
        "interrupted_copies",
        "interrupted_anywhere",
        "failing_traces",
        "late_traces",
    ),
}
CASES = [(kind, name) for kind, names in TOGETHER.items() for name in names]
RANKS = (2, 3, 4, 16)


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str, int], Said]:
    """Return a function that runs all programs of a kind on so many ranks, once."""
    known: dict[tuple[str, int], Said] = {}

    def run(kind: str, count: int) -> Said:
        if (kind, count) not in known:
            folder = tmp_path_factory.mktemp(f"{kind}{count}")
            programs = TOGETHER[kind]
            known[kind, count] = run_together(folder, count, PROGRAMS, folder, kind, *programs)
        return known[kind, count]

    return run


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.timeout(MANY + 60)
@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize(("kind", "name"), CASES)
@pytest.mark.fast(lambda count: count == 2)
def test_program(kind: str, name: str, count: int, together: Callable[[str, int], Said]) -> None:
    """What the program's function says, where one task drives the others and where all run."""
    said = together(kind, count)
    assert said.get(name) == ["ok"] * (count if kind == "spmd" else 1), said.get(
        name, said["the end"]
    )


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.timeout(MANY + 60)
@pytest.mark.parametrize("count", RANKS)
@pytest.mark.parametrize("kind", TOGETHER)
@pytest.mark.fast(lambda count: count == 2)
def test_all_ranks_end_well(kind: str, count: int, together: Callable[[str, int], Said]) -> None:
    """Also those in `join`, when all that drove them have ended."""
    said = together(kind, count)
    assert said["the end"][0] == 0, said["the end"][1]
    assert kind == "spmd" or said["join"] == ["ok"] * (count - 1)


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("kind", TOGETHER)
@pytest.mark.full
def test_values_cross_frameworks_and_tasks(kind: str, tmp_path: Path, framework: Any) -> None:
    framework("torch")
    framework("jax")
    programs = ("frameworks", "frameworks_of_mpi") if kind == "spmd" else ("frameworks",)
    said = said_by(tmp_path, 2, start(2, PROGRAMS, tmp_path, kind, *programs))
    for name in programs:
        assert said.get(name) == ["ok"] * (2 if kind == "spmd" else 1), said


ENDS = {
    "raises": "on purpose",
    "is_killed": "signal 9",
}


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("name", ENDS)
@pytest.mark.fast(lambda name: name == "is_killed")
def test_a_session_does_not_wait_for_a_task_that_has_ended(name: str) -> None:
    """With MPICH a task that is killed takes the whole job with it."""
    done = start(2, PROGRAMS, "-", name, timeout=170)
    assert done.returncode != 0
    assert ENDS[name] in done.stdout + done.stderr, done.stdout + done.stderr


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("program", ["serves_to_the_end", "serves_in_finalize"])
@pytest.mark.fast(lambda program: program == "serves_to_the_end")
def test_a_task_whose_script_has_ended_serves_the_others(program: str) -> None:
    done = start(3, PROGRAMS, "-", program, timeout=170)
    assert done.returncode == 0, done.stderr
    assert done.stdout == "served to the end\n"


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_a_task_that_ends_first_fails_no_run_that_it_has_made() -> None:
    done = start(3, PROGRAMS, "-", "one_script_ends_first", timeout=170)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["told apart 1", "told apart 2"]


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_several_workers_use_one_parameter_server() -> None:
    """Each worker has a session of its own; the server serves all of them, then ends."""
    done = start(3, PROGRAMS, "-", "workers", timeout=170)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["served", "worker 0 is done", "worker 1 is done"]


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.full
def test_workers_in_step_wait_for_tokens_of_the_server(count: int) -> None:
    """The synchronous parameter-server program: queues of gradients and of tokens."""
    done = start(count, PROGRAMS, "-", "synchronous_workers", timeout=170)
    assert done.returncode == 0, done.stderr
    workers = [f"worker {i} is done" for i in range(count - 1)]
    assert sorted(done.stdout.splitlines()) == ["served", *workers]


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
def test_the_parameter_server_example() -> None:
    """Both workers learn the weights, in as many steps as both have made."""
    done = start(3, PROGRAMS.parents[2] / "examples" / "parameter_server.py")
    assert done.returncode == 0, done.stderr
    said = sorted(done.stdout.splitlines())
    assert [line.partition(":")[0] for line in said] == ["Worker 0", "Worker 1"]
    assert all("in 300 steps of 2 workers" in line for line in said), said


ARENAS = {  # DLBRIDGE_ARENA_BYTES: MiB that blocks may have, and whether anything is lent
    None: (None, True),
    str(2**32): (4094, True),
    str(6 * 2**20): (4, True),  # for some of the values
    str(3 * 2**20): (0, False),
    "0": (0, False),
}


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.parametrize("size", ARENAS)
@pytest.mark.fast(lambda size: size == "0")
def test_values_that_find_no_room_are_sent(size: str | None, monkeypatch: Any) -> None:
    monkeypatch.delenv("DLBRIDGE_ARENA_BYTES", raising=False)
    if size is not None:
        monkeypatch.setenv("DLBRIDGE_ARENA_BYTES", size)
    done = start(2, PROGRAMS, "-", "full_arena", timeout=170)
    assert done.returncode == 0, done.stderr
    room, lends = ARENAS[size]
    said = sorted(line.split(", ") for line in done.stdout.splitlines())
    assert len(said) == 2
    assert f"lent {lends}" in [lent for _, lent in said]
    assert room is None or {first for first, _ in said} == {f"room {room} MiB"}


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_all_tasks_of_a_host_share_memory_or_none_does() -> None:
    done = start(2, PROGRAMS, "-", "different_arenas", timeout=170)
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines() == ["refused"] * 2


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_processes_that_are_no_cluster_are_refused_on_all_of_them() -> None:
    done = start(2, PROGRAMS, "-", "refused", timeout=170)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 2


@needs_mpi
def test_one_process_is_a_cluster_as_well(run_python: Callable[..., Any]) -> None:
    run_python(
        """
        import dlbridge.graph as tf
        server = tf.train.Server.create_local_server()
        assert server.target == "mpi:///job:local/replica:0/task:0"
        assert server.server_def["cluster"] == {"local": ["localhost:0"]}
        with tf.device("/job:local"):
            x = tf.constant([1.0, 2.0])
        for spmd in (False, True):
            with tf.Session(server.target, spmd=spmd) as session:
                assert session.run(x * 2).tolist() == [2.0, 4.0]
        """
    ).check()


@needs_mpi
@pytest.mark.skipif(
    np.lib.NumpyVersion(np.__version__) < "2.0.0",
    reason="NumPy 1 has no context variable for what it does with floating-point errors",
)
def test_a_repeated_run_of_a_cluster_has_one_python_frame(run_python: Callable[..., Any]) -> None:
    """That of `Session.run`, also after a run that failed and one that was traced."""
    run_python(
        """
        import sys
        import numpy as np
        import dlbridge.graph as tf
        server = tf.train.Server.create_local_server()
        v = tf.get_variable("v", initializer=np.ones(2), use_resource=True)
        z = tf.sqrt(v - 2.0) / 0.0
        frames = []

        def note(frame, event, _):
            if event == "call":
                frames.append(frame.f_code.co_name)

        for spmd in (False, True):
            with tf.Session(server.target, spmd=spmd) as session:
                session.run(v.initializer)
                for state in server.resources.values():
                    state.release()
                try:
                    session.run(z)
                except tf.errors.FailedPreconditionError:
                    pass
                else:
                    raise AssertionError("an uninitialized variable was read")
                session.run(v.initializer)
                session.run(z)
                session.run(z, trace=tf.Trace())
                frames.clear()
                sys.setprofile(note)
                value = session.run(z)
                sys.setprofile(None)
                assert np.isnan(value).all()
                assert frames == ["run"], frames
        """
    ).check()


def test_a_target_needs_a_server_of_this_process() -> None:
    with pytest.raises(tf.errors.NotFoundError, match=r"make a tf.train.Server first"):
        tf.Session("grpc://localhost:2222")
    with pytest.raises(ValueError, match=r"pass the target of a tf.train.Server"):
        tf.Session(spmd=True)


def test_a_part_of_a_partitioned_graph_needs_a_cluster() -> None:
    """A part that a partition made can be read, but runs only beside the others."""
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            x = tf.constant(1.0)
        with tf.device("/job:worker/task:1"):
            y = tf.identity(x)
        parts = tf.train.partition_graph(y.op, cluster={"worker": ["a:1", "b:1"]})
    part = parts["/job:worker/replica:0/task:1"]
    for node in part.node:
        node.device = ""
    graph = tf.load_graph(part.SerializeToString())
    (received,) = [op for op in graph.get_operations() if op.type == "_Recv"]
    with (
        tf.Session(graph=graph) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match=r"the target of a tf.train.Server"),
    ):
        session.run(received.outputs[0])


# ---- OpenMPI instead of MPICH ------------------------------------------------------------------


@needs_openmpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.timeout(180)
@pytest.mark.parametrize("count", [2, 3])
@pytest.mark.parametrize("kind", TOGETHER)
def test_all_programs_run_on_openmpi(kind: str, count: int, tmp_path: Path) -> None:
    done = start(count, PROGRAMS, tmp_path, kind, *TOGETHER[kind], openmpi=True)
    said = said_by(tmp_path, count, done)
    assert said.pop("the end")[0] == 0, done.stderr
    if kind == "driven":
        assert said.pop("join") == ["ok"] * (count - 1)
    assert said == dict.fromkeys(TOGETHER[kind], ["ok"] * (count if kind == "spmd" else 1))


@needs_openmpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize("name", ENDS)
def test_no_session_of_openmpi_waits_for_a_task_that_has_ended(name: str) -> None:
    done = start(2, PROGRAMS, "-", name, timeout=170, openmpi=True)
    assert done.returncode != 0
    assert ENDS[name] in done.stdout + done.stderr, done.stdout + done.stderr


@needs_ulfm
@pytest.mark.subprocess
def test_tasks_go_on_without_one_that_was_killed() -> None:
    """MPI with ULFM: runs that need it raise UnavailableError; others work, and `join` ends."""
    done = start(4, PROGRAMS, "-", "others_survive", timeout=170, ulfm=True)
    said = sorted(done.stdout.splitlines())
    assert said == ["driven on", "served 1", "served 2"], (said, done.stderr)

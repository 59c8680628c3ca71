"""Whole programs over several ranks give the values of one process; see whole_programs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import MANY, WHOLE_PROGRAMS, Said, needs_mpi, run_together, said_by, start

PROGRAMS = Path(__file__).with_name("whole_programs.py")
pytestmark = [pytest.mark.mpi]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int, str], Said]:
    """Return a function that runs all programs on so many ranks, once for each disturbance."""
    known: dict[tuple[int, str], Said] = {}

    def run(count: int, how: str) -> Said:
        if (count, how) not in known:
            folder = tmp_path_factory.mktemp(f"ranks{count}")
            programs = WHOLE_PROGRAMS
            known[count, how] = run_together(folder, count, PROGRAMS, folder, how, *programs)
        return known[count, how]

    return run


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.timeout(MANY + 60)
@pytest.mark.parametrize(
    ("count", "how"),
    [(2, "undisturbed"), (3, "undisturbed"), (4, "undisturbed"), (2, "late"), (3, "late")],
)
@pytest.mark.parametrize("name", WHOLE_PROGRAMS)
def test_a_program_gives_the_values_of_one_process(
    name: str, count: int, how: str, together: Callable[[int, str], Said]
) -> None:
    said = together(count, how)
    assert said.get(name) == ["ok"] * count, said.get(name, said["the end"])


@pytest.mark.full
@needs_mpi
@pytest.mark.subprocess
def test_receives_from_any_rank_find_messages_that_mpich_loses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over UCX's TCP, those that come before a receive from any rank is posted."""
    monkeypatch.setenv("UCX_TLS", "tcp,self")
    monkeypatch.setenv("MPIR_CVAR_NOLOCAL", "1")  # else MPICH uses memory that is shared
    done = start(3, PROGRAMS, tmp_path, "undisturbed", "parameter_server", timeout=100)
    assert said_by(tmp_path, 3, done)["parameter_server"] == ["ok"] * 3, done.stderr


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize("how", ["killed", "interrupted"])
@pytest.mark.parametrize("name", WHOLE_PROGRAMS)
def test_a_rank_that_ends_in_the_middle_ends_the_job(name: str, how: str, tmp_path: Path) -> None:
    done = start(3, PROGRAMS, tmp_path, how, name, timeout=100)
    assert done.returncode != 0
    if how == "interrupted":
        assert "KeyboardInterrupt" in done.stderr, done.stderr

"""Whole programs over several ranks give the values of one process; see whole_programs.py."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from mpi_jobs import Said, needs_mpi, said_by, start

PROGRAMS = Path(__file__).with_name("whole_programs.py")
NAMES = (
    "bucketed_data_parallel",
    "mixture_of_experts",
    "pipeline",
    "halo",
    "ring",
    "parameter_server",
    "scattered_work",
    "sharded_optimizer",
    "transform_in_two_dimensions",
    "spmd_graph",
)
pytestmark = [pytest.mark.mpi]


@pytest.fixture(scope="module")
def together(tmp_path_factory: pytest.TempPathFactory) -> Callable[[int], Said]:
    """Return a function that runs all programs on so many ranks, once."""
    known: dict[int, Said] = {}

    def run(count: int) -> Said:
        if count not in known:
            folder = tmp_path_factory.mktemp(f"ranks{count}")
            known[count] = said_by(folder, count, start(count, PROGRAMS, folder, *NAMES))
        return known[count]

    return run


@needs_mpi
@pytest.mark.subprocess
@pytest.mark.full
@pytest.mark.parametrize("count", [2, 3, 4])
@pytest.mark.parametrize("name", NAMES)
def test_a_program_gives_the_values_of_one_process(
    name: str, count: int, together: Callable[[int], Said]
) -> None:
    said = together(count)
    assert said.get(name) == ["ok"] * count, said.get(name, said["the end"])

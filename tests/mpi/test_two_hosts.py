"""Two hosts, made of network namespaces: ranks of different networks, names and process numbers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from measuring import until
from mpi_jobs import WHOLE_PROGRAMS, needs_mpi, said_by

from benchmarks import two_hosts

HERE = Path(__file__).resolve().parent
pytestmark = [pytest.mark.mpi, pytest.mark.subprocess, pytest.mark.full, needs_mpi]


@pytest.fixture
def hosts() -> Iterator[two_hosts.Hosts]:
    try:
        with two_hosts.hosts() as both:
            yield both
    except two_hosts.NoHostsError as reason:
        pytest.skip(f"this machine makes no hosts: {reason}")


def start(hosts: two_hosts.Hosts, *arguments: object, ranks: int = 2, netmod: str = "ucx") -> Any:
    """Start Python with these arguments on both hosts."""
    path = os.pathsep.join([*map(str, HERE.parents[:2]), os.environ.get("PYTHONPATH", "")])
    return subprocess.Popen(
        hosts.command(*arguments, ranks=ranks, netmod=netmod),
        env={**os.environ, "PYTHONPATH": path.rstrip(os.pathsep)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("name", ["values", "link_is_cut"])
def test_program(name: str, hosts: two_hosts.Hosts) -> None:
    with start(hosts, HERE / "two_hosts_programs.py", name, hosts.folder) as job:
        try:
            out, error = job.communicate(timeout=150)
        finally:
            job.kill()
    assert job.returncode == 0, out + error
    assert sorted(out.splitlines()) == [f"{name} ok 0", f"{name} ok 1"]


@pytest.mark.timeout(300)
@pytest.mark.parametrize(("ranks", "netmod"), [(2, "ucx"), (4, "ofi")])
def test_collectives_that_c_makes(
    ranks: int, netmod: str, hosts: two_hosts.Hosts, tmp_path: Path
) -> None:
    """Programs of mpi_programs.py, with the messages and collectives of MPICH over TCP."""
    names = ("gathered_by_c", "gathered_and_scattered", "copies", "trees", "trees_by_c",
             "trees_begun_by_c", "trees_that_do_not_agree", "interrupted_trees",
             "quick_calls")  # fmt: skip
    program, given = HERE / "mpi_programs.py", {"ranks": ranks, "netmod": netmod}
    with start(hosts, program, tmp_path, *names, **given) as job:
        try:
            out, error = job.communicate(timeout=280)
        finally:
            job.kill()
    said = said_by(tmp_path, ranks, subprocess.CompletedProcess([], job.returncode, out, error))
    status, error = said.pop("the end")
    assert status == 0, error
    assert said == dict.fromkeys(names, ["ok"] * ranks)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("ranks", "netmod", "how"),
    [
        (2, "ucx", "undisturbed"),
        (4, "ucx", "late"),
        (4, "ofi", "undisturbed"),
        (2, "ucx", "cut"),
        (4, "ofi", "cut"),
    ],
)
def test_whole_programs_give_the_values_of_one_process(
    ranks: int, netmod: str, how: str, hosts: two_hosts.Hosts, tmp_path: Path
) -> None:
    program, given = HERE / "whole_programs.py", {"ranks": ranks, "netmod": netmod}
    with start(hosts, program, tmp_path, how, *WHOLE_PROGRAMS, **given) as job:
        try:
            out, error = job.communicate(timeout=280)
        finally:
            job.kill()
    said = said_by(tmp_path, ranks, subprocess.CompletedProcess([], job.returncode, out, error))
    status, error = said.pop("the end")
    assert status == 0, error
    assert said == dict.fromkeys(WHOLE_PROGRAMS, ["ok"] * ranks)


def test_a_host_that_dies_ends_the_job(hosts: two_hosts.Hosts) -> None:
    with start(hosts, HERE / "two_hosts_programs.py", "host_dies", hosts.folder) as job:
        try:
            until((hosts.folder / "waits").exists, "the wait of a rank")
            hosts.kill(2)
            out, error = job.communicate(timeout=100)
        finally:
            job.kill()
    assert job.returncode != 0, out + error
    assert "ok" not in out


def test_the_benchmark_prints_both_sizes(
    hosts: two_hosts.Hosts, capsys: pytest.CaptureFixture[str]
) -> None:
    del hosts  # only whether there can be any
    figures = two_hosts.run(quick=True)
    assert figures is not None
    assert set(figures) == set(two_hosts.SIZES)
    assert {way for row in figures.values() for way in row} == {"mpi4py", "messages", "graph"}
    assert "16 MiB: mpi4py" in capsys.readouterr().out


def test_a_machine_without_network_namespaces_says_so(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert two_hosts.run(quick=True) is None
    assert "Two hosts: left out, " in capsys.readouterr().out
    monkeypatch.setenv("PATH", "")
    assert two_hosts.run(quick=True) is None
    assert "there is no program ip" in capsys.readouterr().out

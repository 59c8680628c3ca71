"""A launcher of MPI jobs that is not mpiexec: it starts ranks as Slurm's `srun --mpi=pmi2` does.

Each rank gets PMI_RANK, PMI_SIZE and, as PMI_FD, a socket on which it speaks version 1 of PMI, the
process management interface: lines of `key=value`. Slurm's plugin understands that as well.
"""

from __future__ import annotations

import os
import selectors
import socket
import subprocess
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

_LIMITS = "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024 rc=0"


class _Job:
    """What the ranks of a job have told."""

    def __init__(self, count: int) -> None:
        self._count = count
        self._values = {"PMI_process_mapping": f"(vector,(0,1,{count}))"}
        self._waiting: list[socket.socket] = []  # in the barrier
        self.finished = 0

    def answer(self, rank: socket.socket, line: str) -> None:
        """Answer one line of a rank."""
        said = dict(word.partition("=")[::2] for word in line.split())
        kind = said["cmd"]
        if kind == "barrier_in":
            self._waiting.append(rank)
            if len(self._waiting) == self._count:
                for each in self._waiting:
                    each.sendall(b"cmd=barrier_out rc=0\n")
                self._waiting.clear()
            return
        if kind == "put":
            self._values[said["key"]] = said["value"]
        self.finished += kind == "finalize"
        rank.sendall(f"{self._answers(said)[kind]}\n".encode())

    def _answers(self, said: Mapping[str, str]) -> dict[str, str]:
        value = self._values.get(said.get("key", ""))
        return {
            "init": "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0",
            "get_maxes": _LIMITS,
            "get_appnum": "cmd=appnum appnum=0 rc=0",
            "get_universe_size": f"cmd=universe_size size={self._count} rc=0",
            "get_my_kvsname": "cmd=my_kvsname kvsname=job rc=0",
            "put": "cmd=put_result rc=0 msg=success",
            "get": "cmd=get_result rc=-1 msg=unknown_key value=unknown"
            if value is None
            else f"cmd=get_result rc=0 msg=success value={value}",
            "finalize": "cmd=finalize_ack rc=0",
        }


def launch(
    count: int,
    command: Sequence[str],
    environment: Mapping[str, str],
    folder: Path,
    timeout: float = 100,
) -> tuple[list[int], list[str], int]:
    """Run a command on so many ranks.

    Returns:
        The exit status of each rank, what each has printed, and how many have ended MPI.
    """
    job, selector = _Job(count), selectors.DefaultSelector()
    ranks, unread = [], {}
    for rank in range(count):
        ours, theirs = socket.socketpair()
        with theirs, (folder / f"rank{rank}.txt").open("w") as printed:
            number = theirs.fileno()
            own = {"PMI_FD": str(number), "PMI_RANK": str(rank), "PMI_SIZE": str(count)}
            started = subprocess.Popen(
                command, env={**environment, **own}, pass_fds=[number], stdout=printed,
                stderr=subprocess.STDOUT,
            )  # fmt: skip
            ranks.append(started)
        selector.register(ours, selectors.EVENT_READ)
        unread[ours] = b""
    try:
        until = time.monotonic() + timeout
        while selector.get_map():
            for key, _ in selector.select(max(0.0, until - time.monotonic())):
                rank_socket = key.fileobj
                assert isinstance(rank_socket, socket.socket)
                data = rank_socket.recv(65536)
                if not data:
                    selector.unregister(rank_socket)
                    rank_socket.close()
                *lines, unread[rank_socket] = (unread[rank_socket] + data).split(b"\n")
                for line in lines:
                    job.answer(rank_socket, line.decode())
            if time.monotonic() > until:
                raise TimeoutError(f"{len(selector.get_map())} of {count} ranks are still there")
        codes = [each.wait(max(0.0, until - time.monotonic())) for each in ranks]
    finally:
        for each in ranks:
            each.kill()
            each.wait()
        for each_socket in unread:
            each_socket.close()
        selector.close()
    texts = [(folder / f"rank{rank}.txt").read_text() for rank in range(count)]
    return codes, texts, job.finished


def without_jobs(environment: Mapping[str, str] = os.environ) -> dict[str, str]:
    """Return an environment of no job."""
    return {name: value for name, value in environment.items() if not name.startswith("PMI")}

"""Two hosts on one machine: network namespaces with a link between them, and MPICH over TCP.

Each rank has a network, a host name and processes of its own. That needs root and iproute2.
`benchmarks.distributed` runs this module on both, tests/mpi/test_two_hosts.py its programs.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
SIZES = {"8 B": 8, "16 MiB": 2**24}
BARS = {"8 B": 1.2, "16 MiB": 1.1}  # of messages, as a multiple of mpi4py
_LAUNCHER = """#!/bin/sh
# In the place of ssh: [-x] ADDRESS COMMAND...
while case $1 in -*) true ;; *) false ;; esac; do shift; done
number=${{1##*.}}
shift
echo $$ > {folder}/launcher$number
exec ip netns exec {prefix}$number unshare --uts --pid --fork --mount-proc --kill-child \\
    sh -c "hostname {prefix}$number; $*"
"""
_NUMBERS = count()  # of the pairs of hosts that this process has made
_OVER_TCP = {
    "ucx": {"UCX_TLS": "tcp,self", "UCX_NET_DEVICES": "e0"},
    "ofi": {"MPIR_CVAR_CH4_NETMOD": "ofi", "FI_PROVIDER": "tcp", "FI_TCP_IFACE": "e0"},
}


class NoHostsError(Exception):
    """This machine lets nobody make hosts, for the reason in the text."""


class Hosts(NamedTuple):
    """Two hosts.

    Attributes:
        prefix: of their names, to which 1 or 2 is added.
        folder: of what belongs to them.
    """

    prefix: str
    folder: Path

    def command(self, *arguments: object, ranks: int = 2, netmod: str = "ucx") -> list[str]:
        """Return the command that runs Python with these arguments, half of the ranks on each.

        MPICH sends by UCX or by libfabric, "ofi".
        """
        beside = Path(sys.executable).parent
        mpiexec = shutil.which("mpiexec", path=f"{beside}{os.pathsep}{os.environ['PATH']}")
        chosen = _OVER_TCP[netmod]
        settings = [word for pair in chosen.items() for word in ("-genv", *pair)]
        return [
            *("ip", "netns", "exec", f"{self.prefix}1"),
            *("env", *(f"{name}={value}" for name, value in chosen.items()), str(mpiexec)),
            *("-launcher", "ssh", "-launcher-exec", str(self.folder / "launch")),
            *("-hosts", "10.77.0.1,10.77.0.2", "-n", str(ranks), "-ppn", str(ranks // 2)),
            *settings,
            *(sys.executable, *map(str, arguments)),
        ]

    def kill(self, number: int) -> None:
        """End all processes of a host at once."""
        process = int((self.folder / f"launcher{number}").read_text())
        os.kill(process, 9)


def _ip(*arguments: str) -> str:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True)
    if done.returncode != 0:
        raise NoHostsError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
    return done.stdout


@contextmanager
def hosts() -> Iterator[Hosts]:
    """Make two hosts.

    Raises:
        NoHostsError: this machine has no network namespaces for this user, or lacks a program.
    """
    for program in ("ip", "unshare"):
        if shutil.which(program) is None:
            raise NoHostsError(f"there is no program {program}")
    if os.geteuid() != 0:
        raise NoHostsError("network namespaces need root")
    prefix = f"dlb{os.getpid()}n{next(_NUMBERS)}h"
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        made = Hosts(prefix, Path(name))
        for number in "12":
            _ip("netns", "add", prefix + number)
            stack.callback(_remove, prefix + number)
        _ip("link", "add", "e0", "netns", f"{prefix}1", "type", "veth",
            "peer", "name", "e0", "netns", f"{prefix}2")  # fmt: skip
        for number in "12":
            of = ("-n", prefix + number)
            _ip(*of, "addr", "add", f"10.77.0.{number}/24", "dev", "e0")
            _ip(*of, "link", "set", "e0", "up")
            _ip(*of, "link", "set", "lo", "up")
        for number in "12":
            _wait_for_link(prefix + number)
        launcher = made.folder / "launch"
        launcher.write_text(_LAUNCHER.format(folder=name, prefix=prefix))
        launcher.chmod(0o755)
        yield made


def _wait_for_link(host: str) -> None:
    """Return when the kernel says that the link is up, which it does a moment after it was set."""
    end = time.monotonic() + 10.0
    while " state UP " not in _ip("-n", host, "link", "show", "e0"):
        if time.monotonic() > end:
            raise NoHostsError(f"the link of {host} does not come up")
        time.sleep(0.01)


def _remove(name: str) -> None:
    with suppress(NoHostsError):
        _ip("netns", "del", name)


def measured(module: str, options: list[str]) -> Any:
    """Return what a module of the benchmarks writes to a file on both hosts, None without hosts."""
    environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{os.environ.get('PYTHONPATH')}"}
    try:
        with hosts() as both:
            figures = both.folder / "figures.json"
            words = both.command("-m", module, figures, *options)
            done = subprocess.run(
                words, env=environment, capture_output=True, text=True, timeout=600
            )
            if done.returncode != 0:
                raise RuntimeError(f"status {done.returncode}: {done.stdout}\n{done.stderr}")
            return json.loads(figures.read_text())
    except NoHostsError as reason:
        print(f"Two hosts: left out, {reason}")
        return None


def run(*, quick: bool) -> dict[str, Any] | None:
    """Measure on both hosts, and print the table; return the figures, None without hosts."""
    us: dict[str, Any] | None = measured("benchmarks.two_hosts", ["--quick"] if quick else [])
    if us is None:
        return None
    print("Two hosts, MPICH over TCP, there and back; us: the fastest of all, in turn\n")
    for size, row in us.items():
        ours = ", ".join(
            f"{way} {time_:,.0f} ({time_ / row['mpi4py']:.2f} x)"
            for way, time_ in row.items()
            if way != "mpi4py"
        )
        print(f"  {size}: mpi4py {row['mpi4py']:,.0f}, {ours}")
    print()
    return us


def main() -> None:
    """Measure, on each rank; rank 0 writes the figures to the file that the command line names."""
    import dlbridge.graph as tf
    from dlbridge import mpi
    from dlbridge.mpi.engine import engine

    rounds = 20 if "--quick" in sys.argv else 400
    rank, world = mpi.rank(), engine().job.mpi.COMM_WORLD
    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    with tf.device("/job:worker/task:0"):
        fed = tf.placeholder(tf.float32, [None])
    with tf.device("/job:worker/task:1"):
        there = tf.identity(fed)
    with tf.device("/job:worker/task:0"):
        back = tf.identity(there)
    us: dict[str, dict[str, float]] = {}
    session = tf.Session(server.target, spmd=True)
    for name, nbytes in SIZES.items():
        x = np.ones(nbytes // 4, np.float32)
        into = np.empty_like(x)

        def raw(x: Any = x, into: Any = into) -> None:
            if rank == 0:
                world.Send(x, 1)
                world.Recv(into, 1)
            else:
                world.Recv(into, 0)
                world.Send(into, 0)

        def messages(x: Any = x, into: Any = into) -> None:
            if rank == 0:
                mpi.send(x, 1)
                mpi.recv(1, out=into)
            else:
                mpi.send(mpi.recv(0, out=into), 0)

        def graph(x: Any = x) -> None:
            session.run(back.op, {fed: x})

        ways: dict[str, Callable[[], None]] = {"mpi4py": raw, "messages": messages, "graph": graph}
        best = dict.fromkeys(ways, float("inf"))
        for _ in range(rounds if nbytes < 2**20 else max(3, rounds // 10)):
            for way, call in ways.items():
                begun = time.perf_counter()
                call()
                best[way] = min(best[way], 1e6 * (time.perf_counter() - begun))
        us[name] = best
    if rank == 0:
        Path(sys.argv[1]).write_text(json.dumps(us))  # the output has warnings of MPI's as well


if __name__ == "__main__":
    main()

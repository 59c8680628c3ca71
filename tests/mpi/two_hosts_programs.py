"""Programs that tests/mpi/test_two_hosts.py runs, each rank on a host of its own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from measuring import pause

import dlbridge.graph as tf
from dlbridge import mpi
from dlbridge.errors import MPITimeoutError
from dlbridge.mpi.channel import channel
from dlbridge.mpi.engine import engine

SERVER: Any = None


def link(state: str) -> None:
    """Cut the link of this host, or mend it."""
    subprocess.run(["ip", "link", "set", "e0", state], check=True)


def there_and_back(count: int) -> Any:
    """Return a placeholder and what rank 1 makes of it, of so many elements."""
    with tf.device("/job:worker/task:0"):
        x = tf.placeholder(tf.float32, [count])
        doubled = x * 2.0
    with tf.device("/job:worker/task:1"):
        more = doubled + 1.0
    with tf.device("/job:worker/task:0"):
        return x, tf.identity(more)


def values(_: Path) -> None:
    rank = mpi.rank()
    for count in (2, 3000, 1 << 20):
        x = np.arange(count, dtype=np.float32)
        np.testing.assert_array_equal(mpi.allreduce(x), 2 * x)
        np.testing.assert_array_equal(mpi.sendrecv(x + rank, 1 - rank, 1 - rank), x + 1 - rank)
        np.testing.assert_array_equal(mpi.allgather(x + rank), np.stack([x, x + 1]))
        np.testing.assert_array_equal(mpi.bcast(x if rank == 0 else None), x)
    assert not channel("").is_near  # waits are longer
    assert channel("", engine().job.mpi.COMM_SELF).is_near
    assert not SERVER.near, "no memory is shared across namespaces of processes"
    assert not any(SERVER.transport.arena())
    for count in (2, 1 << 20):
        x, back = there_and_back(count)
        fed = np.arange(count, dtype=np.float32)
        with tf.Session(SERVER.target, spmd=True) as s:
            for _ in range(3):
                np.testing.assert_array_equal(s.run(back, {x: fed}), 2 * fed + 1)


def link_is_cut(_: Path) -> None:
    """Waits end in time while the link is cut, and the next calls are right once it is back."""
    ones = np.ones(4, np.float32)
    x, back = there_and_back(4)
    mpi.barrier()
    if mpi.rank() == 1:
        mpi.send(2 * mpi.recv(0), 0)
        SERVER.join()
        return
    link("down")
    sent = mpi.isend(ones, 1)
    with pytest.raises(MPITimeoutError, match="no message has come after"):
        mpi.recv(1, timeout=0.5)
    link("up")
    np.testing.assert_array_equal(mpi.recv(1, timeout=100), 2 * ones)
    sent.wait(100)
    config = tf.ConfigProto(operation_timeout_in_ms=500)
    with tf.Session(SERVER.target, config=config) as cut, tf.Session(SERVER.target) as s:
        np.testing.assert_array_equal(s.run(back, {x: ones}), 3 * ones)
        link("down")
        with pytest.raises(tf.errors.DeadlineExceededError):
            cut.run(back, {x: ones})
        link("up")
        np.testing.assert_array_equal(s.run(back, {x: ones}), 3 * ones)


def host_dies(folder: Path) -> None:
    """Rank 0 waits for a rank whose host is no more."""
    mpi.barrier()
    if mpi.rank() == 0:
        (folder / "waits").touch()
        mpi.recv(1)
    pause(600)


def main() -> None:
    global SERVER
    name, folder = sys.argv[1:]
    SERVER = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    globals()[name](Path(folder))
    print(name, "ok", mpi.rank(), flush=True)


if __name__ == "__main__":
    main()

"""What a value takes from task to task where there are many more tasks than processors.

`benchmarks.distributed` starts 16 ranks with mpiexec, each of which runs this module: a graph
passes eight bytes on through all tasks and back to the first one, and all tasks run it.
"""

from __future__ import annotations

import json
import sys
import time
from statistics import median
from typing import Any

import numpy as np

RANKS = 16
RUNS = 200


def main() -> None:
    """Measure as one of the tasks; rank 0 prints the microseconds of each hop in each run."""
    import dlbridge.graph as tf
    from dlbridge import mpi

    server = tf.train.Server(tf.train.ClusterSpec.from_mpi())
    size, runs = mpi.size(), 20 if "--quick" in sys.argv else RUNS
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            x: Any = tf.get_variable("x", initializer=np.float64(0), use_resource=True)
        for i in range(1, size + 1):
            with tf.device(f"/job:worker/task:{i % size}"):
                x = x + 1.0
        with tf.device("/job:worker/task:0"):
            done = x.op
        start = tf.global_variables_initializer()
    took = []
    with tf.Session(server.target, graph, spmd=True) as session:
        session.run(start)
        for _ in range(runs):
            began = time.perf_counter()
            session.run(done)
            took.append((time.perf_counter() - began) / size * 1e6)
    if server.rank == 0:
        print(f"{size} ranks")
        print(json.dumps({"median": median(took), "fastest": min(took)}))


if __name__ == "__main__":
    main()

"""The graphs of `benchmarks.servers` in TensorFlow's own session over gRPC, between two processes.

`benchmarks.distributed` starts this module where TensorFlow is installed. It starts the other
process itself; the first one drives, and prints.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import socket
import sys
from functools import partial
from typing import Any

from benchmarks import servers

SIZES = ("8 B", "64 MiB")


def main() -> None:
    """Measure as the task that drives the other one; print the figures."""
    from benchmarks.distributed import QUICK, THOROUGH

    batches = QUICK.batches if "--quick" in sys.argv else THOROUGH.batches // 2
    with socket.socket() as one, socket.socket() as other:  # two ports that are free
        for each in (one, other):
            each.bind(("localhost", 0))
        cluster = {"worker": [f"localhost:{each.getsockname()[1]}" for each in (one, other)]}
    context = multiprocessing.get_context("spawn")
    process = context.Process(target=_serve, args=(cluster, 1), daemon=True)
    process.start()
    tf, server = _start(cluster, 0)
    us = {}
    for label in SIZES:
        graph, z = servers.echo(tf.compat.v1, servers.SIZES[label])
        us[label] = _measure(tf, server, graph, z, batches if label == "8 B" else 5)
    graph, z = servers.many(tf.compat.v1)
    us[servers.MANY_LABEL] = _measure(tf, server, graph, z, batches)
    print(f"TensorFlow {tf.version.VERSION}")
    print(json.dumps(us), flush=True)
    process.kill()
    os._exit(0)  # TensorFlow has no way to end a server


def _measure(tf: Any, server: Any, graph: Any, fetch: Any, batches: int) -> float:
    with tf.compat.v1.Session(server.target, graph=graph) as session:
        session.run(graph.get_operation_by_name("init"))
        return servers.fastest(partial(session.run, fetch), batches)


def _start(cluster: dict[str, list[str]], task: int) -> tuple[Any, Any]:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "3"
    os.environ["CUDA_VISIBLE_DEVICES"] = ""
    import tensorflow as tf

    return tf, tf.distribute.Server(cluster, "worker", task)


def _serve(cluster: dict[str, list[str]], task: int) -> None:
    _start(cluster, task)[1].join()


if __name__ == "__main__":
    main()

"""The parameter-server program of TensorFlow 1.x: workers train one model, which a server keeps.

    mpiexec -n 3 python examples/parameter_server.py

The first process is the task of "ps": it has the variables and serves the others in `join`. Each
other process is a worker with a graph, a session and samples of its own. All of them read the
weights from the server and subtract their gradients there whenever they have one, without waiting
for each other. `tf.gradients` is not built yet, so the gradients of this linear model are written
out. Run without `mpiexec`, one process trains alone.
"""

from __future__ import annotations

import time

import numpy as np

import dlbridge.graph as tf
from dlbridge import mpi

STEPS, RATE, BATCH = 150, 0.2, 32
TRUE_WEIGHTS, TRUE_BIAS = np.float32([[2.0], [-3.0], [0.5]]), np.float32([0.7])


def samples(seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return a batch of inputs and of what they should give, with a little noise."""
    random = np.random.default_rng(seed)
    x = random.standard_normal((BATCH, 3)).astype(np.float32)
    noise = 0.01 * random.standard_normal((BATCH, 1)).astype(np.float32)
    return x, x @ TRUE_WEIGHTS + TRUE_BIAS + noise


def train(target: str, device: object, worker: int, workers: int) -> str:
    """Build the graph, train, and return what was learned."""
    with tf.Graph().as_default():
        with tf.device(device):
            weights = tf.get_variable("weights", [3, 1], initializer=tf.zeros_initializer())
            bias = tf.get_variable("bias", [1], initializer=tf.zeros_initializer())
            global_step = tf.get_variable("global_step", initializer=0, trainable=False)
            x = tf.placeholder(tf.float32, [None, 3])
            y = tf.placeholder(tf.float32, [None, 1])
            miss = tf.matmul(x, weights) + bias - y
            loss = tf.reduce_mean(tf.square(miss))
            slope = 2.0 * miss / tf.cast(tf.shape(miss)[0], tf.float32)  # of the loss, by the miss
            updates = [
                tf.assign_sub(weights, RATE * tf.matmul(x, slope, transpose_a=True)),
                tf.assign_sub(bias, RATE * tf.reduce_sum(slope, axis=0)),
            ]
            with tf.control_dependencies(updates):
                step = tf.assign_add(global_step, 1)
            ready = tf.is_variable_initialized(global_step)
            start = tf.global_variables_initializer()
        with tf.Session(target) as session:
            if worker == 0:  # the chief
                session.run(start)
            while not session.run(ready):
                time.sleep(0.01)
            first = session.run(loss, feeds := dict(zip((x, y), samples(worker), strict=True)))
            for i in range(STEPS):
                session.run(step, dict(zip((x, y), samples(i * workers + worker), strict=True)))
            while session.run(global_step) < STEPS * workers:  # others are still at work
                time.sleep(0.01)
            last, found, total = session.run([loss, weights, global_step], feeds)
    assert total == STEPS * workers, total
    np.testing.assert_allclose(found, TRUE_WEIGHTS, atol=0.05)
    return f"the loss went from {first:.3f} to {last:.5f} in {total} steps of {workers} workers."


def main() -> None:
    """Be the task that this process's rank says."""
    if mpi.size() == 1:
        print("One process:", train("", None, 0, 1))
        return
    cluster = tf.train.ClusterSpec.from_mpi({"ps": 1})
    server = tf.train.Server(cluster)
    if server.task.job == "ps":
        server.join()
        return
    worker, workers = server.task.task, cluster.num_tasks("worker")
    device = tf.train.replica_device_setter(
        cluster=cluster, worker_device=f"/job:worker/task:{worker}"
    )
    print(f"Worker {worker}:", train(server.target, device, worker, workers))


if __name__ == "__main__":
    main()

"""Prints, for random graphs, where TensorFlow's parts of them and ours differ.

`python partition_oracle.py SEEDS`: a cluster of three tasks in this process runs each graph.
"""

from __future__ import annotations

import os
import random
import re
import socket
import sys
from collections import Counter
from typing import Any

os.environ.update(CUDA_VISIBLE_DEVICES="-1", TF_CPP_MIN_LOG_LEVEL="3")

import tensorflow.compat.v1 as tf

import dlbridge.graph as ours

TASKS = 3
LARGE = [float(i) for i in range(100)]  # TensorFlow 2 makes copies of small constants
ADDED = re.compile(r"(.*?)(/ctrl)?_S\d+")
KEPT = ("T", "tensor_type", "client_terminated", "send_device", "recv_device", "_src")


def build(rng: random.Random) -> tuple[Any, list[str], list[str]]:
    """Return a random graph as a GraphDef, and names of what is fetched and fed."""
    devices = ["", "/job:worker", "/cpu:0", *(f"/job:worker/task:{i}" for i in range(TASKS))]
    with tf.Graph().as_default() as graph:
        values, ops = [], []
        for number in range(rng.randint(2, 24)):
            with (
                tf.device(rng.choice(devices[-TASKS:] if rng.random() < 0.8 else devices)),
                tf.control_dependencies(rng.sample(ops, min(len(ops), rng.choice((0, 0, 1, 3))))),
            ):
                made = make(rng, values, f"n{number}")
            ops.append(made)
            values += made.outputs
        fetches = rng.sample([*values], rng.randint(1, min(4, len(values))))
        names = list(dict.fromkeys(each.name for each in fetches))
        feeds = [each.outputs[0].name for each in ops if each.type == "Placeholder"]
        feeds += [each.name for each in values if rng.random() < 0.05 and each.name not in feeds]
        targets = [each.name for each in ops if rng.random() < 0.1 and each.type != "Placeholder"]
        return graph.as_graph_def(), [*names, *targets], feeds


def make(rng: random.Random, values: list[Any], name: str) -> Any:
    """Add one operation."""
    kind = rng.randrange(10) if values else rng.randrange(2)
    if kind == 0:
        return tf.placeholder(tf.float32, [100], name=name).op
    if kind == 1:
        return tf.constant(LARGE, name=name).op
    if kind == 2:
        return tf.no_op(name)
    if kind == 3:
        return tf.add_n([rng.choice(values) for _ in range(3)], name=name).op
    if kind == 4:
        return tf.identity_n([rng.choice(values) for _ in range(2)], name=name)[0].op
    if kind == 6:
        with tf.device(f"/job:worker/task:{rng.randrange(TASKS)}"):
            variable = tf.get_variable(f"v{name}", [100], use_resource=True)
        others = tf.get_collection(tf.GraphKeys.GLOBAL_VARIABLES)
        return rng.choice(others).assign_add(rng.choice(values) + variable, read_value=False)
    if kind == 5:
        return tf.negative(rng.choice(values), name=name).op
    return tf.multiply(rng.choice(values), rng.choice(values), name=name).op


def describe(parts: dict[str, Any]) -> Counter[Any]:
    """Return the nodes of all parts, without the numbers in the names of those that were added."""

    def plain(task: str, text: str) -> str:
        name, _, index = text.lstrip("^").partition(":")
        found = ADDED.fullmatch(name)
        what = name if found is None else f"{types[task, name]} of {found[1]}"
        if found is not None and types[task, name] == "_Recv":
            what += senders[tensor_names[task, name]]
        return f"{'^' * text.startswith('^')}{what}:{index or 0}"

    types = {(task, node.name): node.op for task, part in parts.items() for node in part.node}
    tensor_names = {
        (task, node.name): node.attr["tensor_name"].s
        for task, part in parts.items()
        for node in part.node
        if node.op == "_Recv"
    }
    senders: dict[bytes, str] = {}
    for part in parts.values():
        for node in part.node:
            if node.op == "_Send" and not node.attr["client_terminated"].b:
                tensor_name = node.attr["tensor_name"].s
                assert tensor_name not in senders, tensor_name
                assert re.fullmatch(rb"edge_\d+_" + node.attr["_src"].s, tensor_name), tensor_name
                senders[tensor_name] = node.input[0].partition(":")[2]
    found: Counter[Any] = Counter()
    for task, part in parts.items():
        for node in part.node:
            inputs = [plain(task, each) for each in node.input]
            data = [each for each in inputs if each[0] != "^"]
            attrs = []
            if node.op in ("_Send", "_Recv"):
                keys = [key for key in KEPT if key in node.attr]
                attrs = [(key, str(node.attr[key]).strip()) for key in keys]
            row = (
                plain(task, node.name),
                node.op,
                node.device,
                *data,
                *sorted({*inputs} - {*data}),
            )
            found[(*row, *attrs)] += 1
    return found


def config() -> Any:
    """Return a ConfigProto that leaves graphs as they are."""
    made = tf.ConfigProto()
    made.graph_options.optimizer_options.opt_level = -1
    made.graph_options.rewrite_options.disable_meta_optimizer = True
    return made


def ports() -> list[int]:
    held = [socket.socket() for _ in range(TASKS)]
    for each in held:
        each.bind(("localhost", 0))
    found = [each.getsockname()[1] for each in held]
    for each in held:
        each.close()
    return found


def main() -> None:
    cluster = {"worker": [f"localhost:{port}" for port in ports()]}
    servers = [tf.train.Server(tf.train.ClusterSpec(cluster), "worker", i) for i in range(TASKS)]
    options = tf.RunOptions(output_partition_graphs=True)
    differing = pairs = 0
    for seed in range(int(sys.argv[1])):
        message, fetches, feeds = build(random.Random(seed))
        with tf.Graph().as_default():
            tf.import_graph_def(message, name="")
            metadata = tf.RunMetadata()
            with tf.Session(servers[0].target, config=config()) as session:
                values = dict.fromkeys(feeds, LARGE)
                starts = [op for op in session.graph.get_operations() if op.name[-6:] == "Assign"]
                session.run(starts)
                session.run(fetches, values, options=options, run_metadata=metadata)
        theirs = {
            part.node[0].device.removesuffix("/device:CPU:0"): part
            for part in metadata.partition_graphs
            if part.node
        }
        with ours.Graph().as_default():
            ours.import_graph_def(message.SerializeToString(), name="")
            own = ours.train.partition_graph(fetches, feeds, cluster=cluster)
        a, b = describe(theirs), describe(own)
        pairs += sum(node.op == "_Recv" for part in own.values() for node in part.node)
        if a != b:
            differing += 1
            print(f"seed {seed}: fetches {fetches}, feeds {feeds}")
            print("only TensorFlow's", *(a - b).items(), sep="\n  ")
            print("only ours", *(b - a).items(), sep="\n  ")
    print(f"{differing} differ, {pairs} receives", flush=True)
    os._exit(0)  # TensorFlow's servers cannot be stopped


if __name__ == "__main__":
    main()

"""Graphs over the tasks of a cluster: where nodes run, and the parts with their _Send and _Recv."""

from __future__ import annotations

import random
import sys
from pathlib import Path
from typing import Any

import pytest

import dlbridge.graph as tf
from dlbridge.errors import ArgumentError
from dlbridge.graph.distributed.cluster import Task
from dlbridge.graph.distributed.running import cut
from dlbridge.graph.errors import InvalidArgumentError

HERE = Path(__file__).parent
CLUSTER = {"ps": ["a:1"], "worker": ["b:1", "c:1", "d:1"]}


@pytest.fixture(autouse=True)
def graph() -> Any:
    with tf.Graph().as_default() as made:
        yield made


def worker(index: int) -> Any:
    return tf.device(f"/job:worker/task:{index}")


def names(parts: dict[str, Any]) -> dict[str, set[str]]:
    """Return the names of the nodes of each task."""
    short = {task: task.replace("/replica:0", "") for task in parts}
    return {short[task]: {node.name for node in part.node} for task, part in parts.items()}


def of_type(parts: dict[str, Any], kind: str) -> list[Any]:
    """Return the nodes of a type that pass values between tasks."""
    return [
        node
        for part in parts.values()
        for node in part.node
        if node.op == kind and not node.attr["client_terminated"].b
    ]


# ---- parts ---------------------------------------------------------------------------------------


@pytest.mark.subprocess
@pytest.mark.full
def test_parts_are_those_of_tensorflow(framework: Any, run_python: Any) -> None:
    """Random graphs with placements, control dependencies, feeds, fetches, in its own cluster."""
    framework("tensorflow")
    done = run_python((HERE / "partition_oracle.py").read_text(), 60, timeout=300).check()
    differing, _, receives = done.splitlines()[-1].partition(" differ, ")
    assert differing == "0", done
    assert int(receives.split()[0]) > 300


def test_a_value_is_sent_once_to_each_task() -> None:
    with worker(0):
        x = tf.placeholder(tf.float32, [2], name="x")
        y = tf.negative(x, name="y")
    made = []
    for index in (1, 1, 2):
        with worker(index):
            made.append(y * y + y)
    parts = tf.train.partition_graph([each.op for each in made], [x], cluster=CLUSTER)
    assert len(of_type(parts, "_Send")) == len(of_type(parts, "_Recv")) == 2


def test_names_and_attributes_are_tensorflows() -> None:
    with worker(0):
        x = tf.constant([1.0, 2.0], name="x")
    with worker(1):
        y = tf.negative(x, name="y")
        with tf.control_dependencies([x.op]):
            z = tf.no_op(name="z")
    parts = tf.train.partition_graph([y.op, z], cluster=CLUSTER)
    assert names(parts) == {
        "/job:worker/task:0": {"x", "x_S0", "x/ctrl_S2", "x_S3"},
        "/job:worker/task:1": {"y", "z", "x_S1", "x_S4", "x_S5"},
    }
    nodes = {node.name: node for part in parts.values() for node in part.node}
    assert list(nodes["y"].input) == ["x_S1"]
    assert list(nodes["z"].input) == ["^x_S5"]
    assert list(nodes["x_S5"].input) == ["x_S4"]
    assert list(nodes["x/ctrl_S2"].input) == ["^x"]
    assert [each.size for each in nodes["x/ctrl_S2"].attr["value"].tensor.tensor_shape.dim] == [0]
    attr = nodes["x_S1"].attr
    assert attr["tensor_name"].s == nodes["x_S0"].attr["tensor_name"].s == b"edge_0_x"
    assert attr["send_device"].s == b"/job:worker/replica:0/task:0/device:CPU:0"
    assert attr["recv_device"].s == b"/job:worker/replica:0/task:1/device:CPU:0"
    assert set(attr) == {
        "tensor_type", "tensor_name", "send_device", "send_device_incarnation", "recv_device",
        "client_terminated", "_src", "_dst",
    }  # fmt: skip


def test_names_that_the_graph_has_are_not_used_again() -> None:
    with worker(0):
        x = tf.constant(1.0, name="x")
        other = tf.constant(1.0, name="x_S0")
    with worker(1):
        y = tf.add(x, other, name="y")
    parts = tf.train.partition_graph(y.op, cluster=CLUSTER)
    every = [node.name for part in parts.values() for node in part.node]
    assert len(every) == len(set(every)) == 7


def test_references_are_sent_to_each_consumer_after_all_else() -> None:
    """What another consumer has received may have been overwritten since."""
    with tf.device("/job:ps"):
        v = tf.get_default_graph().create_op(
            "VariableV2", (), attrs={"shape": [2], "dtype": tf.float32}, name="v"
        )
    with worker(0), tf.control_dependencies([tf.constant(1.0)]):
        reads = [tf.identity(v.outputs[0], name=f"read{i}") for i in range(2)]
    parts = tf.train.partition_graph([each.op for each in reads], cluster=CLUSTER)
    received = [node for node in of_type(parts, "_Recv") if node.attr["_src"].s == b"v"]
    assert len(received) == 2
    assert [list(node.input) for node in received] == [["^Const"], ["^Const"]]


# ---- where nodes run -----------------------------------------------------------------------------


def test_operations_on_a_variable_run_where_it_is() -> None:
    """Also in a block of `tf.device` of a worker, where it says otherwise."""
    with tf.device("/job:ps/task:0"):
        v = tf.get_variable("v", [2], use_resource=True)
    with worker(1):
        value = tf.constant([1.0, 2.0], name="value")
        update = v.assign_add(value, read_value=False)
        minus = tf.negative(v, name="minus")
    assert update.device == "/job:worker/task:1"
    parts = names(tf.train.partition_graph([update, minus.op], cluster=CLUSTER))
    assert {"v", update.name, "minus/ReadVariableOp", "value_S1"} <= parts["/job:ps/task:0"]
    assert parts["/job:worker/task:1"] == {"value", "value_S0", "minus", "minus/ReadVariableOp_S3"}


def test_a_variable_anywhere_is_where_its_user_asks() -> None:
    v = tf.get_variable("v", [2], use_resource=True)
    with worker(2):
        update = v.assign_add([1.0, 2.0], read_value=False)
    parts = names(tf.train.partition_graph(update, cluster=CLUSTER))
    assert list(parts) == ["/job:worker/task:2"]


def test_a_variable_anywhere_is_where_its_first_user_asks() -> None:
    v = tf.get_variable("v", [2], use_resource=True)
    for index in (1, 2):
        with worker(index):
            v.assign_add([1.0, 2.0])
    parts = names(tf.train.partition_graph(v.op, cluster=CLUSTER))
    assert parts == {"/job:worker/task:1": {"v"}}


def test_an_unknown_task_is_refused() -> None:
    with tf.device("/job:worker/task:7"):
        x = tf.constant(1.0, name="x")
    with pytest.raises(InvalidArgumentError, match=r"operation x: .*task:7.*these tasks: /job:ps"):
        tf.train.partition_graph(x, cluster=CLUSTER)


def test_nodes_that_share_a_task_must_not_ask_for_two() -> None:
    with worker(0):
        x = tf.constant(1.0, name="x")
    with tf.colocate_with(x.op):
        y = tf.constant(1.0, name="y")
    y.op.device = "/job:worker/task:1"
    with pytest.raises(
        InvalidArgumentError, match=r"y for /job:worker/task:1.*for /job:worker/task:0"
    ):
        tf.train.partition_graph(y, cluster=CLUSTER)


@pytest.mark.parametrize("client", ["/job:none", "/job:worker/task:9", "/job:none/task:0"])
def test_the_client_must_be_a_task(client: str) -> None:
    x = tf.constant(1.0)
    with pytest.raises(ArgumentError, match="client must be a task of the cluster"):
        tf.train.partition_graph(x, cluster=CLUSTER, client=client)


# ---- clusters ------------------------------------------------------------------------------------


def test_cluster_specs_are_tensorflows(framework: Any) -> None:
    theirs = framework("tensorflow").train.ClusterSpec
    for given in (CLUSTER, {"w": {3: "a:1", 1: "b:2"}}, {}):
        spec, other = tf.train.ClusterSpec(given), theirs(given)
        assert (spec.jobs, spec.as_dict(), bool(spec)) == (other.jobs, other.as_dict(), bool(other))
        assert spec == tf.train.ClusterSpec(spec)
        for job in spec.jobs:
            for name in ("num_tasks", "task_indices", "job_tasks"):
                assert getattr(spec, name)(job) == getattr(other, name)(job), (given, name)


@pytest.mark.parametrize(
    "wrong", [3, ["a:1"], {"w": "a:1"}, {"w": [1]}, {"w": {-1: "a"}}, {"": []}]
)
def test_invalid_clusters_are_refused(wrong: Any) -> None:
    with pytest.raises(TypeError, match="ClusterSpec: "):
        tf.train.ClusterSpec(wrong)


def test_unknown_jobs_and_tasks() -> None:
    spec = tf.train.ClusterSpec(CLUSTER)
    with pytest.raises(ValueError, match="No such job in cluster: 'none'"):
        spec.num_tasks("none")
    with pytest.raises(ValueError, match="No task with index 5 in job 'worker'"):
        spec.task_address("worker", 5)


def test_replica_device_setter_is_tensorflows(framework: Any) -> None:
    v1 = framework("tensorflow").compat.v1
    cluster = {"ps": ["a:1", "a:2"], "worker": ["b:1"]}
    for arguments in (
        {"cluster": cluster},
        {"ps_tasks": 3, "worker_device": "/job:worker/task:1/gpu:0"},
        {"ps_tasks": 2, "merge_devices": False},
        {"ps_tasks": 2, "ps_device": "/job:ps/cpu:0"},
    ):
        found = []
        for each in (tf, v1):
            with (
                each.Graph().as_default(),
                each.device(each.train.replica_device_setter(**arguments)),
            ):
                devices = []
                for i in range(5):
                    v = each.get_variable(f"v{i}", [2], use_resource=True)
                    with each.device("/cpu:1"):
                        w = each.get_variable(f"w{i}", [2], use_resource=True)
                    devices += [v.device, w.device, each.identity(each.constant(1.0)).device]
            found.append(devices)
        assert found[0] == found[1], arguments
    assert tf.train.replica_device_setter() is None
    assert tf.train.replica_device_setter(cluster={"worker": ["a:1"]}) is None


# ---- order ---------------------------------------------------------------------------------------


def nodes_of(graph: tf.Graph, fetches: list[Any], count: int) -> list[list[Any]]:
    """Return the nodes that each of some tasks runs, in their order."""
    tasks = [Task("worker", i) for i in range(count)]
    outputs = [each for each in fetches if isinstance(each, tf.Tensor)]
    targets = [each for each in fetches if not isinstance(each, tf.Tensor)]
    parts = cut(graph, outputs, targets, [], tasks, tasks[0], tasks[:1])
    return [list(tf.GraphDef.FromString(parts[each].graph).node) for each in tasks]


def kinds_of(nodes: list[Any]) -> list[str]:
    """Return what a task does, in short: constants left out, equal ones that follow once."""
    kinds = [node.op for node in nodes if node.op not in ("Const", "VarHandleOp")]
    return [kind for i, kind in enumerate(kinds) if i == 0 or kinds[i - 1] != kind]


def run_out(parts: list[list[Any]]) -> None:
    """Run all parts, each in its order; fail where all that are left wait."""
    sent: set[bytes] = set()
    waiting = [iter(part) for part in parts]
    heads = [next(each, None) for each in waiting]
    done: list[set[str]] = [set() for _ in parts]
    while any(heads):
        moved = False
        for i, nodes in enumerate(waiting):
            while (node := heads[i]) is not None:
                name = node.attr["tensor_name"].s
                if node.op == "_Recv" and name not in sent:
                    break
                for each in node.input:
                    assert each.lstrip("^").partition(":")[0] in done[i], (node.name, each)
                if node.op == "_Send":
                    sent.add(name)
                done[i].add(node.name)
                heads[i], moved = next(nodes, None), True
        assert moved, [node.name for node in heads if node is not None]


@pytest.mark.parametrize("seed", range(60))
def test_no_task_waits_for_what_waits_for_it(seed: int) -> None:
    """In random graphs of short and long operations, with state, references and control edges."""
    rng = random.Random(seed)
    count = rng.choice([2, 3, 5])
    with tf.Graph().as_default() as graph:
        values: list[Any] = []
        for i in range(rng.randint(2, 60)):
            before = rng.sample(values, min(len(values), rng.choice([0, 0, 0, 1, 2])))
            dims = [] if rng.random() < 0.8 else [5000]
            with (
                worker(rng.randrange(count)),
                tf.control_dependencies([each.op for each in before]),
            ):
                pair = rng.sample(values, 2) if len(values) > 1 else []
                kind = rng.randrange(6)
                if kind == 0:
                    made = tf.random_uniform(dims)
                elif kind == 1:
                    made = tf.get_variable(f"v{i}", dims, use_resource=rng.random() < 0.5)
                    made = made.read_value() if rng.random() < 0.5 else made.value()
                elif kind == 2 and values:
                    made = tf.py_func(abs, [rng.choice(values)], tf.float32)
                elif kind > 3 and pair:
                    made = tf.add(*pair)
                else:
                    made = tf.negative(rng.choice(values) if values else tf.zeros(dims))
            values.append(made)
        fetches = rng.sample(values, rng.randint(1, min(3, len(values))))
        fetches += [each.op for each in values if rng.random() < 0.3]
    run_out(nodes_of(graph, fetches, count))


def test_values_for_one_task_go_together_though_their_consumers_are_apart() -> None:
    with tf.Graph().as_default() as graph:
        with worker(0):
            xs = [tf.random_uniform([]) for _ in range(20)]
        ys, zs = [], []
        for x in xs:
            with worker(1):
                ys.append(x * x)
            with worker(0):
                zs.append(ys[-1] + 1.0)
        with worker(0):
            total = tf.add_n(zs)
    zero, one = nodes_of(graph, [total], 2)
    assert kinds_of(zero) == ["RandomUniform", "_Send", "_Recv", "AddV2", "AddN"]
    assert kinds_of(one) == ["_Recv", "Mul", "_Send"]


def test_nobody_waits_before_what_needs_no_other_task() -> None:
    """Neither here nor there: what is made before the wait is sent before it."""
    with tf.Graph().as_default() as graph:
        with worker(0):
            x = tf.random_uniform([])
        with worker(1):
            own = tf.random_uniform([])
            both = x + own
            alone = tf.negative(own)
        with worker(0):
            result = alone + both
    _, one = nodes_of(graph, [result], 2)
    assert kinds_of(one) == ["RandomUniform", "Neg", "_Send", "_Recv", "AddV2", "_Send"]


def test_nothing_passes_what_may_take_long() -> None:
    with tf.Graph().as_default() as graph:
        with worker(0):
            xs = [tf.random_uniform([5000]) for _ in range(3)]
        with worker(1):
            ys = [tf.reduce_sum(x) for x in xs]
    zero, one = nodes_of(graph, [y.op for y in ys], 2)
    assert kinds_of(zero) == ["RandomUniform", "_Send"] * 3
    assert kinds_of(one) == ["_Recv", "Sum"] * 3


def test_state_of_a_task_is_used_in_the_order_in_which_its_operations_were_created() -> None:
    with tf.Graph().as_default() as graph:
        made = []
        for i in range(12):
            with worker(i % 3):
                made.append(tf.random_uniform([], name=f"n{i}"))
    for i, part in enumerate(nodes_of(graph, [each.op for each in made], 3)):
        names = [node.name for node in part if node.op == "RandomUniform"]
        assert names == [f"n{k}/RandomUniform" for k in range(i, 12, 3)]


def test_a_task_knows_the_sizes_of_what_it_receives() -> None:
    with tf.Graph().as_default() as graph:
        with worker(0):
            known, unknown = tf.random_uniform([2, 3]), tf.placeholder(tf.float32)
            other = tf.negative(unknown)
        with worker(1):
            results = [tf.negative(known), tf.negative(other)]
    part = nodes_of(graph, [each.op for each in results], 2)[1]
    with tf.Graph().as_default() as graph:
        message = tf.GraphDef()
        message.node.extend([node for node in part if node.op == "_Recv"])
        for node in message.node:
            del node.input[:]
        tf.import_graph_def(message, name="")
    shapes = [op.outputs[0].shape for op in graph.get_operations()]
    assert shapes == [tf.TensorShape([2, 3]), tf.TensorShape(None)]


# ---- work ----------------------------------------------------------------------------------------


def test_values_tell_a_task_which_others_are_done() -> None:
    """Not one that has nodes which no message waits for."""
    zero, one = tasks = [Task("worker", 0), Task("worker", 1)]
    with tf.Graph().as_default() as graph:
        with tf.device("/job:worker/task:0"):
            x = tf.random_uniform([])
        with tf.device("/job:worker/task:1"):
            y = x + 1.0
            late = tf.negative(y)
        with tf.device("/job:worker/task:0"):
            z = y + 1.0
    driven = cut(graph, [z], [], [], tasks, zero, [zero])
    assert driven[zero].heard == {zero, one}
    assert driven[one].heard == {one}  # its part ends before z is made
    together = cut(graph, [z], [], [], tasks, zero, tasks)
    assert together[zero].heard == together[one].heard == {zero, one}
    with_late = cut(graph, [z], [late.op], [], tasks, zero, tasks)
    assert with_late[zero].heard == {zero}
    assert with_late[one].heard == {zero, one}
    fed = cut(graph, [z], [], [x], tasks, zero, tasks)
    assert fed[zero].heard == {zero, one}


def test_work_grows_with_the_number_of_nodes_alone() -> None:
    """Not with nodes times tasks, nor with the square of the consumers of a value."""

    def calls(count: int, tasks: int) -> int:
        cluster = tf.train.ClusterSpec({"worker": [f"h:{i}" for i in range(tasks)]}).tasks()
        with tf.Graph().as_default() as graph:
            with worker(0):
                shared = each = tf.constant(1.0)
            for i in range(count):
                with worker(i % tasks):
                    each = tf.add(each, shared)
        found = 0

        def add(frame: Any, event: str, argument: Any) -> None:
            nonlocal found
            found += 1

        sys.setprofile(add)
        try:
            cut(graph, [each], [], [], cluster, cluster[0], cluster[:1])
        finally:
            sys.setprofile(None)
        return found

    assert calls(4000, 128) < 5 * calls(1000, 32)

"""Variables of both kinds in graphs that TensorFlow wrote: run, and frozen, as TensorFlow does."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours

FRAMEWORKS = ("numpy", "torch", "jax")
KINDS = {"resource": True, "reference": False}


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def build(tf: Any, is_resource: bool) -> bytes:
    """Return the GraphDef of a graph that uses a variable in every way."""
    with tf.Graph().as_default() as graph:
        start = np.arange(6, dtype=np.float32).reshape(3, 2)
        v = tf.Variable(start, name="v", use_resource=is_resource)
        count = tf.Variable(0, name="count", use_resource=is_resource, dtype=tf.int64)
        tf.global_variables_initializer()
        delta = tf.placeholder(tf.float32, [3, 2], name="delta")
        tf.identity(v, name="read")
        tf.add(v, 1.0, name="plus")
        tf.matmul(v, [[1.0], [2.0]], name="product")
        tf.identity(tf.assign_add(v, delta), name="added")
        tf.identity(tf.assign_sub(v, delta), name="subtracted")
        tf.identity(tf.assign(v, delta * 2.0), name="assigned")
        tf.identity(tf.assign_add(count, 1), name="counted")
        tf.identity(count, name="total")
        tf.identity(tf.scatter_add(v, [0, 2, 0], tf.ones([3, 2])), name="scattered")
        tf.identity(tf.scatter_sub(v, [1], [[1.0, 2.0]]), name="unscattered")
        tf.identity(tf.scatter_update(v, [1], [[9.0, 8.0]]), name="written")
        tf.identity(tf.scatter_nd_update(v, [[0, 1]], [7.0]), name="written_deep")
        tf.gather(v, [2, 0], name="rows")
        tf.identity(tf.shape(v), name="extents")
        tf.identity(tf.is_variable_initialized(v), name="known")
        with tf.control_dependencies([tf.assign_add(v, tf.ones([3, 2]))]):
            tf.identity(v.read_value(), name="after")
        return graph.as_graph_def().SerializeToString()


STEPS = (
    "read", "plus", "added", "read", "counted", "counted", "subtracted", "scattered", "product",
    "unscattered", "written", "written_deep", "rows", "extents", "known", "after", "assigned",
    "read", "total",
)  # fmt: skip


def results(tf: Any, graph_def: Any, **arguments: Any) -> list[Any]:
    """Return what a graph gives in one run after another."""
    with tf.Graph().as_default() as graph:
        tf.import_graph_def(graph_def, name="")
        delta = {"delta:0": np.full((3, 2), 0.5, np.float32)}
        with tf.Session(graph=graph, **arguments) as session:
            out = [session.run("known:0")]
            session.run("init")
            return out + [session.run(f"{name}:0", delta) for name in STEPS]


def parsed(tf1: Any, data: bytes) -> Any:
    return tf1.GraphDef.FromString(data)


@pytest.mark.fast(lambda place: place == "numpy")
@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_variables_of_imported_graphs_work_as_in_tensorflow(framework, tf1, kind, place) -> None:
    framework(place)
    data = build(tf1, KINDS[kind])
    got, wanted = results(ours, data, framework=place), results(tf1, parsed(tf1, data))
    for name, ours_, theirs in zip(("known", *STEPS), got, wanted, strict=True):
        assert ours_.dtype == theirs.dtype, name
        assert np.array_equal(ours_, theirs), name


def test_a_graph_of_ours_works_in_tensorflow(tf1) -> None:
    """Its variables are resources there."""
    data = build(ours, True)
    got, wanted = results(ours, data), results(tf1, parsed(tf1, data))
    for ours_, theirs in zip(got, wanted, strict=True):
        assert np.array_equal(ours_, theirs)


@pytest.mark.parametrize("place", FRAMEWORKS)
@pytest.mark.parametrize("kind", KINDS)
def test_a_frozen_graph_has_the_values_of_the_session(framework, tf1, kind, place) -> None:
    framework(place)
    graph_def = ours.GraphDef.FromString(build(tf1, KINDS[kind]))
    outputs = ["plus", "product", "rows", "extents"]
    with ours.Graph().as_default(), ours.Session(framework=place) as session:
        ours.import_graph_def(graph_def, name="")
        session.run("init")
        session.run("scattered:0")
        frozen = ours.graph_util.convert_variables_to_constants(session, graph_def, outputs)
        wanted = session.run([f"{name}:0" for name in outputs])
    assert not any("Var" in node.op for node in frozen.node)
    for tf, given in ((ours, frozen), (tf1, parsed(tf1, frozen.SerializeToString()))):
        with tf.Graph().as_default() as graph, tf.Session() as session:
            tf.import_graph_def(given, name="")
            assert graph.get_operations()
            got = session.run([f"{name}:0" for name in outputs])
        for each, expected in zip(got, wanted, strict=True):
            assert np.array_equal(each, expected)


# ---- reference variables -----------------------------------------------------------------------


@pytest.fixture
def references(tf1) -> Any:
    """Give a session with a graph of reference variables."""
    with ours.Graph().as_default() as graph, ours.Session() as session:
        ours.import_graph_def(build(tf1, False), name="")
        yield graph, session


def test_a_reference_is_fetched_as_the_value(references) -> None:
    _, session = references
    with pytest.raises(ours.errors.FailedPreconditionError, match="uninitialized value v"):
        session.run("v:0")
    session.run("init")
    assert session.run("v:0").tolist() == [[0.0, 1.0], [2.0, 3.0], [4.0, 5.0]]


def test_all_readers_see_the_value_fed_for_a_reference(references) -> None:
    _, session = references
    fed = {"v:0": np.ones((3, 2), np.float32)}
    got = session.run(["v:0", "read:0", "product:0"], fed)
    assert [each.tolist()[0] for each in got] == [[1.0, 1.0], [1.0, 1.0], [3.0]]
    with pytest.raises(ours.errors.InvalidArgumentError, match="was fed"):
        session.run("scattered:0", fed)


def test_an_edge_of_a_reference_reads_the_variable_when_it_is_used(references) -> None:
    """Also where the reference was made before an assignment, and with memory that is shared."""
    graph, session = references
    session.run("init")
    reference = graph.get_tensor_by_name("v:0")
    early = ours.identity(reference, "early")
    with ours.control_dependencies([early]):
        changed = ours.group(graph.get_operation_by_name("written"))
        assigned = ours.get_default_graph().create_op(
            "Assign", [reference, ours.zeros([3, 2])], attrs={"use_locking": True}
        )
    with ours.control_dependencies([assigned]):
        late = ours.identity(reference, "late")
    assert changed.type == "NoOp"
    memory = np.full((3, 2), 3.0, np.float32)
    for share in (False, True):
        if share:
            session.state_of(reference.op).share(memory)
        before = session.run("v:0").tolist()
        got = session.run([early, late])
        assert got[0].tolist() == before
        assert got[1].tolist() == np.zeros((3, 2)).tolist()
    assert memory.tolist() == np.zeros((3, 2)).tolist()


def test_an_assignment_need_not_keep_the_shape_if_it_says_so(references) -> None:
    graph, session = references
    value = ours.ones([4])
    attrs = {"validate_shape": False}
    reference = graph.get_tensor_by_name("v:0")
    assigned = graph.create_op("Assign", [reference, value], attrs=attrs)
    assert assigned.outputs[0].shape.as_list() == [4]
    assert session.run(assigned.outputs[0]).tolist() == [1.0] * 4
    with pytest.raises(ValueError, match="equal rank"):
        graph.create_op("Assign", [reference, value])

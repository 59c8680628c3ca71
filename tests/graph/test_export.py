"""Graphs as messages, bytes and files."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from graph.graph_texts import A, B, attr, identity, node, placeholder

import dlbridge.graph as tf
from dlbridge.proto import messages


def a_graph() -> tf.Graph:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        parts = tf.split(x, 2, axis=1, name="s")
        with graph.device("/gpu:1"), graph.control_dependencies([x]):
            tf.add(parts[1], parts[0], name="y")
    return graph


def test_nodes_are_written_as_tensorflow_writes_them() -> None:
    text = """
        name: "y" op: "AddV2" input: "s:1" input: "s" device: "/device:GPU:1"
        attr { key: "T" value { type: DT_FLOAT } }
    """
    from google.protobuf import text_format

    graph = a_graph()
    op = graph.get_operation_by_name("y")
    expected = text_format.Parse(text, messages.NodeDef())
    expected.op = op.type
    del expected.input[:]
    expected.input.extend(["s:1", "s", *(f"^{each.name}" for each in op.control_inputs)])
    assert op.node_def == expected
    assert str(op) == str(op.node_def)
    assert graph.as_graph_def().node[-1] == expected


def test_defaults_are_not_written() -> None:
    """Readers that do not know a newer attribute would refuse the graph."""
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [2, 2], name="x")
        tf.matmul(x, x, transpose_a=True)
    assert sorted(graph.as_graph_def().node[-1].attr) == ["T", "transpose_a"]


def test_the_same_graph_gives_the_same_bytes_with_attributes_in_order() -> None:
    data = tf.dump_graph(a_graph())
    assert data == tf.dump_graph(a_graph())
    assert data == tf.dump_graph(tf.load_graph(data))
    for message in messages.GraphDef.FromString(data).node:
        order = [data.index(b"\n%c%s" % (len(key), key.encode())) for key in sorted(message.attr)]
        assert order == sorted(order)


def test_shapes_are_written_on_request() -> None:
    graph = a_graph()
    shapes = graph.as_graph_def(add_shapes=True).node[-1].attr["_output_shapes"].list.shape
    assert [[dim.size for dim in each.dim] for each in shapes] == [[-1, 2]]
    assert "_output_shapes" not in graph.as_graph_def().node[-1].attr
    again = tf.load_graph(graph.as_graph_def(add_shapes=True))
    assert tf.dump_graph(again) == tf.dump_graph(graph)


def test_only_what_was_added_since_a_version_is_written() -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.no_op("a")
        version = graph.version
        tf.no_op("b")
    assert [each.name for each in graph.as_graph_def(from_version=version).node] == ["b"]


def test_versions_are_ours_or_those_that_were_read() -> None:
    assert tf.Graph().graph_def_versions.producer == 2474
    graph = tf.load_graph(A + "versions { producer: 27 min_consumer: 12 }")
    assert graph.as_graph_def().versions == graph.graph_def_versions
    assert (graph.graph_def_versions.producer, graph.graph_def_versions.min_consumer) == (27, 12)


@pytest.mark.parametrize("as_text", [True, False])
def test_write_graph_writes_a_file_that_load_graph_reads(tmp_path: Path, as_text: bool) -> None:
    graph = a_graph()
    name = "g.pbtxt" if as_text else "g.pb"
    for source in (graph, graph.as_graph_def()):
        path = tf.io.write_graph(source, str(tmp_path / "new" / "folder"), name, as_text=as_text)
        assert path == str(tmp_path / "new" / "folder" / name)
        assert tf.dump_graph(tf.load_graph(path)) == tf.dump_graph(graph)
        assert [each.name for each in Path(path).parent.iterdir()] == [name]
    with pytest.raises(TypeError, match="GraphDef"):
        tf.io.write_graph("graph", str(tmp_path), name)


def test_the_message_classes_have_their_names() -> None:
    assert tf.GraphDef is messages.GraphDef
    assert isinstance(tf.Graph().as_graph_def(), tf.GraphDef)
    with pytest.raises(AttributeError, match="NoSuchDef"):
        tf.NoSuchDef


# ---- graph_util --------------------------------------------------------------------------------


def test_a_sub_graph_has_what_is_needed_in_the_same_order() -> None:
    text = A + placeholder("z") + B + identity("c", "b ^z") + identity("d", "a")
    graph_def = tf.load_graph(text).as_graph_def()
    part = tf.graph_util.extract_sub_graph(graph_def, ["c"])
    assert [each.name for each in part.node] == ["a", "z", "b", "c"]
    assert part.versions == graph_def.versions
    with pytest.raises(AssertionError, match="nothing is not in graph"):
        tf.graph_util.extract_sub_graph(graph_def, ["nothing"])
    with pytest.raises(TypeError):
        tf.graph_util.extract_sub_graph(graph_def, "c")
    with pytest.raises(TypeError):
        tf.graph_util.extract_sub_graph(b"", ["c"])


def test_nodes_that_only_training_needs_are_taken_out() -> None:
    text = (
        A + B + identity("c", "b") + identity("held", "c") + node("n", "NoOp", "^held")
        + identity("out", "c")
    )  # fmt: skip
    graph_def = tf.load_graph(text).as_graph_def()
    made = tf.graph_util.remove_training_nodes(graph_def, protected_nodes=["out"])
    assert [(each.name, list(each.input)) for each in made.node] == [
        ("a", []), ("held", ["a"]), ("n", ["^held"]), ("out", ["a"]),
    ]  # fmt: skip


def frozen(text: str, values: dict[str, float], outputs: list[str]) -> tf.GraphDef:
    graph = tf.load_graph(text)
    with tf.Session(graph=graph) as session:
        for name, value in values.items():
            session.run(f"{name}/assign", {f"{name}/value:0": np.float32(value)})
        return tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), outputs)


SCALAR = attr("dtype", "type: DT_FLOAT") + attr("shape", "shape { }")
DTYPE = attr("dtype", "type: DT_FLOAT")
REFERENCE = (
    node("v", "VariableV2", "", SCALAR) + placeholder("v/value")
    + node("v/assign", "Assign", "v v/value", attr("T", "type: DT_FLOAT"))
    + identity("v/read", "v") + A + node("y", "AddV2", "v/read a", attr("T", "type: DT_FLOAT"))
)  # fmt: skip
RESOURCE = (
    node("v", "VarHandleOp", "", SCALAR) + placeholder("v/value")
    + node("v/assign", "AssignVariableOp", "v v/value", DTYPE)
    + node("v/read", "ReadVariableOp", "v", DTYPE)
    + A + node("y", "AddV2", "v/read a", attr("T", "type: DT_FLOAT"))
)  # fmt: skip


@pytest.mark.parametrize("text", [REFERENCE, RESOURCE], ids=["references", "resources"])
def test_variables_become_constants(text: str) -> None:
    graph_def = frozen(text, {"v": 2.5}, ["y"])
    assert {each.name: each.op for each in graph_def.node} == {
        "v": "Const", "v/read": "Identity", "a": "Placeholder", "y": "AddV2",
    }  # fmt: skip
    graph = tf.load_graph(graph_def)
    with tf.Session(graph=graph) as session:
        assert session.run("y:0", {"a:0": np.float32(1)}) == 3.5


@pytest.mark.parametrize("text", [REFERENCE, RESOURCE], ids=["references", "resources"])
def test_assignments_cannot_be_frozen(text: str) -> None:
    with pytest.raises(ValueError, match=r"'v/assign'.*constant in place of the variable 'v'"):
        frozen(text, {"v": 2.5}, ["y", "v/assign"])


def test_variables_can_be_left_out() -> None:
    graph = tf.load_graph(RESOURCE)
    with tf.Session(graph=graph) as session:
        made = tf.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["y"], variable_names_blacklist=["v"]
        )
        assert {each.op for each in made.node if each.name == "v"} == {"VarHandleOp"}
        made = tf.graph_util.convert_variables_to_constants(
            session, graph.as_graph_def(), ["y"], variable_names_whitelist=[]
        )
        assert {each.op for each in made.node if each.name == "v"} == {"VarHandleOp"}
        with pytest.raises(tf.errors.FailedPreconditionError):
            tf.graph_util.convert_variables_to_constants(session, graph.as_graph_def(), ["y"])

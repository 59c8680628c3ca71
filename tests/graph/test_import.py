"""Imports without TensorFlow: sources, all or nothing, contents that are shared, functions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from graph import graph_texts
from graph.graph_texts import A, B, attr, identity, node, placeholder
from graph.small_graphs import exported

import dlbridge.graph as tf
from dlbridge.errors import ArgumentError, WireError
from dlbridge.proto import messages


def names(graph: tf.Graph) -> list[str]:
    return [op.name for op in graph.get_operations()]


# ---- sources -----------------------------------------------------------------------------------


def test_a_graph_def_may_be_a_message_bytes_text_or_a_path(tmp_path: Path) -> None:
    graph = tf.load_graph(A + B)
    message, data = graph.as_graph_def(), tf.dump_graph(graph)
    text = str(message)
    (tmp_path / "g.pb").write_bytes(data)
    (tmp_path / "g.pbtxt").write_text(text)
    sources: list[Any] = [message, data, bytearray(data), memoryview(data), text]
    sources += [tmp_path / "g.pb", str(tmp_path / "g.pb"), tmp_path / "g.pbtxt"]
    for source in sources:
        assert tf.dump_graph(tf.load_graph(source)) == data
        with tf.Graph().as_default() as other:
            tf.import_graph_def(source)
        assert names(other) == ["import/a", "import/b"]


@pytest.mark.parametrize("source", [None, 3, 3.5, [], object(), messages.VersionDef()])
def test_anything_else_is_a_type_error(source: object) -> None:
    with tf.Graph().as_default(), pytest.raises(TypeError):
        tf.import_graph_def(source)


def test_text_that_is_no_graph_def_is_refused_where_it_is_wrong() -> None:
    with pytest.raises(WireError, match="1:"):
        tf.load_graph("node { nam: 'a' }")


def test_a_missing_file_is_the_error_of_the_file_system(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        tf.load_graph(tmp_path / "missing.pb")


def test_a_message_is_not_changed() -> None:
    message = tf.load_graph(A + B).as_graph_def()
    before = message.SerializeToString(deterministic=True)
    tf.load_graph(message)
    assert message.SerializeToString(deterministic=True) == before


# ---- all or nothing ----------------------------------------------------------------------------


@pytest.mark.parametrize("case", [*graph_texts.REFUSED, *graph_texts.REFUSED_BY_US])
def test_a_failed_import_leaves_the_graph_as_it_was(case: str) -> None:
    """The first node is right: it would be there if nodes were added one by one."""
    text = placeholder("first") + {**graph_texts.REFUSED, **graph_texts.REFUSED_BY_US}[case]
    graph = tf.Graph()
    with graph.as_default():
        x = tf.placeholder(tf.float32, name="x")
        before = tf.dump_graph(graph)
        with pytest.raises(Exception) as caught:
            tf.import_graph_def(text, {"first": x})
        assert isinstance(caught.value, ValueError | tf.errors.NotFoundError)
        assert tf.dump_graph(graph) == before
        assert x.consumers() == []
        assert graph.unique_name("import") == "import"


@pytest.mark.parametrize(
    "arguments",
    [
        {"input_map": {"a": 1}},
        {"input_map": {"zz": 1.0}},
        {"return_elements": ["b", "zz:0"]},
        {"return_elements": ["b:1"]},
    ],
)
def test_wrong_arguments_leave_the_graph_as_it_was(arguments: dict[str, Any]) -> None:
    graph = tf.Graph()
    with graph.as_default():
        with pytest.raises(ValueError):
            tf.import_graph_def(A + B, **arguments)
        assert names(graph) == []
        tf.import_graph_def(A + B)
    assert names(graph) == ["import/a", "import/b"]


def test_a_finalized_graph_takes_nothing() -> None:
    graph = tf.Graph()
    graph.finalize()
    with graph.as_default(), pytest.raises(RuntimeError, match="finalized"):
        tf.import_graph_def(A)
    assert names(graph) == []


def test_a_tensor_of_another_graph_cannot_be_mapped() -> None:
    with tf.Graph().as_default():
        x = tf.placeholder(tf.float32)
    with tf.Graph().as_default(), pytest.raises(ValueError, match="not of the graph"):
        tf.import_graph_def(A + B, {"a": x})


def test_an_operation_stands_in_for_a_control_input_only() -> None:
    with tf.Graph().as_default():
        op = tf.no_op("n")
        found = tf.import_graph_def(A + identity("b", "a ^a"), {"^a": op}, ["b"])
        assert found is not None
        assert found[0].control_inputs == (op,)
        with pytest.raises(TypeError, match="control input"):
            tf.import_graph_def(A + B, {"a": op})


# ---- errors say what is wrong ------------------------------------------------------------------

MESSAGES = {
    "a name that is not unique": r"node 'a'.*not unique",
    "no attribute T": r"node 'b' \(Identity\): attribute 'T' is required",
    "two nodes in a cycle": r"cycle with 2 nodes, including: ",
    "a result that does not exist": r"input 'a:1' is result 1 of 'a', which has 1",
    "an input that does not exist": r"unknown input node 'zz'",
    "a control input before data": r"control inputs, which must be last",
    "a type that is not allowed": r"'T' is string, which is not in the list of allowed values: ",
    "N below its minimum": r"'N' is 0, but the minimum is 1",
    "an N that is not the number of inputs": r"required are 2 inputs, got 1",
    "a list below its minimum": r"'ksize' has 3 elements, but the minimum is 4",
    "a list of the wrong kind": r"'squeeze_dims' .*kind list\(int\), got list\(float\)",
    "a type that differs from the input's": r"passed float from .*a:0, .*expected int32",
    "readers must be newer": r"min_consumer is 100000",
    "_output_shapes that contradict": r"_output_shapes is inconsistent.* result 0",
    "colocation with what does not exist": r"colocated with unknown node 'zz'",
    "no device": r"node 'a' \(Placeholder\): device 'zzz'",
}


@pytest.mark.parametrize("case", MESSAGES)
def test_errors_name_the_node_and_what_is_wrong(case: str) -> None:
    with pytest.raises(ArgumentError, match=MESSAGES[case]):
        tf.load_graph(graph_texts.REFUSED[case])


def test_a_long_cycle_is_named_without_what_only_hangs_on_it() -> None:
    nodes = [node(f"n{i}", "NoOp", f"^n{(i + 1) % 3}") for i in range(3)]
    with pytest.raises(ArgumentError, match="cycle with 3 nodes") as caught:
        tf.load_graph("".join(nodes) + node("tail", "NoOp", "^n0"))
    assert "tail" not in str(caught.value)


# ---- order -------------------------------------------------------------------------------------


def test_a_chain_of_any_length_is_imported_in_any_order() -> None:
    """No recursion: its depth would be that of the graph."""
    count = 5000
    nodes = [identity(f"n{i}", f"n{i - 1}" if i else "a") for i in range(count)]
    graph = tf.load_graph("".join(reversed(nodes)) + A)
    assert names(graph) == ["a", *(f"n{i}" for i in range(count))]


# ---- devices, frameworks, shapes ---------------------------------------------------------------


def test_a_framework_is_written_and_read_again() -> None:
    with tf.Graph().as_default() as graph, graph.framework("torch"):
        tf.placeholder(tf.float32, name="a")
    assert graph.as_graph_def().node[0].attr["_dlbridge_framework"].s == b"torch"
    op = tf.load_graph(tf.dump_graph(graph)).get_operation_by_name("a")
    assert op.framework == "torch"
    assert "_dlbridge_framework" not in op.attrs


def test_the_framework_of_a_node_counts_before_that_of_the_block() -> None:
    text = A + placeholder("b", attr("_dlbridge_framework", "s: 'torch'"))
    with tf.Graph().as_default() as graph, graph.framework("jax"):
        tf.import_graph_def(text, name="")
    assert [op.framework for op in graph.get_operations()] == ["jax", "torch"]


LATER = A + "".join(identity(x, "a", graph_texts.T + attr("later", "i: 3")) for x in ("b", "c"))


def test_an_unknown_attribute_is_ignored_with_a_warning_and_written_back() -> None:
    with tf.Graph().as_default() as graph, tf.Session() as session:
        with pytest.warns(UserWarning, match=r"'b' \(Identity\): attribute 'later'") as warned:
            tf.import_graph_def(LATER, name="")
        assert len(warned) == 1  # of each op type
        assert warned[0].filename == __file__
        assert session.run("c:0", {"a:0": [1.0, 2.0]}).tolist() == [1.0, 2.0]
        assert graph.get_operation_by_name("b").get_attr("later") == 3
        assert [each.attr["later"].i for each in graph.as_graph_def().node] == [0, 3, 3]


@pytest.mark.filterwarnings("error")
def test_a_warning_that_is_an_error_leaves_the_graph_as_it_was() -> None:
    with tf.Graph().as_default() as graph, pytest.raises(UserWarning, match="'later'"):
        tf.import_graph_def(LATER, name="")
    assert names(graph) == []


def test_an_unknown_framework_is_refused() -> None:
    with pytest.raises(ArgumentError, match="'abacus'; known are"):
        tf.load_graph(placeholder("b", attr("_dlbridge_framework", "s: 'abacus'")))


def test_references_are_taken_where_values_are_wanted_and_not_the_other_way() -> None:
    variable = node(
        "v", "VariableV2", "", attr("dtype", "type: DT_FLOAT") + attr("shape", "shape { }")
    )
    assign = node("s", "Assign", "v a", graph_texts.T)
    graph = tf.load_graph(A + variable + identity("r", "v") + assign)
    assert graph.get_tensor_by_name("v:0").dtype.is_ref
    assert not graph.get_tensor_by_name("r:0").dtype.is_ref
    with pytest.raises(ArgumentError, match="float_ref"):
        tf.load_graph(A + node("s", "Assign", "a a", graph_texts.T))


# ---- contents ----------------------------------------------------------------------------------


def test_large_constants_are_views_of_the_buffer() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(np.arange(1 << 20, dtype=np.float32), name="c")
    data = np.frombuffer(tf.dump_graph(graph), np.uint8)
    value = tf.load_graph(data).get_operation_by_name("c").attrs["value"].array
    assert np.shares_memory(value, data)
    assert not value.flags.writeable
    np.testing.assert_array_equal(value, np.arange(1 << 20, dtype=np.float32))


def test_large_constants_are_written_from_their_own_memory() -> None:
    with tf.Graph().as_default() as graph:
        tf.constant(np.ones(1 << 20, np.float32), name="c")
    memory = graph.get_operation_by_name("c").attrs["value"].array
    buffers = tf.dump_graph_buffers(graph)
    assert any(np.shares_memory(np.frombuffer(each, np.uint8), memory) for each in buffers)
    assert b"".join(map(bytes, buffers)) == tf.dump_graph(graph)


def test_a_splat_of_32_gib_needs_no_memory() -> None:
    text = graph_texts.ACCEPTED["a constant of 32 GiB"]
    value = tf.load_graph(text).get_operation_by_name("a").attrs["value"]
    assert value.shape == (2**33,)
    assert value.array.strides == (0,)


# ---- functions ---------------------------------------------------------------------------------

LIBRARY = "library { function { signature { name: 'f' input_arg { name: 'x' type: DT_FLOAT } } } }"


def test_functions_are_kept_and_written_again() -> None:
    graph = tf.load_graph(A + LIBRARY)
    message = graph.as_graph_def()
    assert [each.signature.name for each in message.library.function] == ["f"]
    assert message.versions.min_consumer == 12
    with graph.as_default():
        tf.import_graph_def(LIBRARY)
        with pytest.raises(ValueError, match=r"function .f..*different"):
            tf.import_graph_def("library { function { signature { name: 'f' } } }")


def test_a_call_of_a_function_is_an_op_type_that_we_do_not_know() -> None:
    with pytest.raises(tf.errors.NotFoundError, match=r"'f'.*function of the graph's library"):
        tf.load_graph(A + LIBRARY + node("c", "f", "a"))


# ---- what is returned --------------------------------------------------------------------------

RETURNS = {
    "zz": "Requested return node 'zz' not found in graph def",
    "zz:0": "Requested return tensor 'zz:0' not found in graph def",
    "a:1": r"Invalid return output 1 of node 'a', which has 1 output\(s\)",
}


@pytest.mark.parametrize("name", RETURNS)
def test_a_missing_element_cannot_be_returned(name: str) -> None:
    written = exported(lambda: tf.placeholder(tf.float32, name="a"))
    with pytest.raises(ValueError, match=RETURNS[name]):
        tf.import_graph_def(written, return_elements=[name])


def test_a_mapped_tensor_is_returned_in_place_of_the_node() -> None:
    written = exported(lambda: tf.identity(tf.placeholder(tf.float32, name="a")))
    x = tf.constant(1.0)
    assert tf.import_graph_def(written, {"a": x}, ["a:0"]) == [x]


def test_all_unknown_op_types_are_named() -> None:
    """With a library's functions and known types among them; one alone keeps its own text."""
    text = "".join(
        f"node {{ name: 'n{i}' op: '{kind}' }} "
        for i, kind in enumerate(["Foo", "NoOp", "Bar", "Foo", "Zap"])
    )
    with pytest.raises(
        tf.errors.NotFoundError, match=r"'Bar', 'Foo', 'Zap'\. The first of these: .*'Foo'"
    ):
        tf.load_graph(text)
    with pytest.raises(tf.errors.NotFoundError, match=r"^load_graph: Op type not registered 'Foo'"):
        tf.load_graph("node { name: 'a' op: 'Foo' }")


def test_bytes_that_are_no_text_are_refused_in_our_words() -> None:
    made = messages.GraphDef()
    node = made.node.add(name="c", op="Conv2D", input=["a", "a"])
    made.node.add(name="a", op="Placeholder").attr["dtype"].type = 1
    node.attr["T"].type = 1
    node.attr["strides"].list.i.extend([1, 1, 1, 1])
    node.attr["padding"].s = b"\xff\xfe"
    with tf.Graph().as_default(), pytest.raises(ArgumentError, match="not in the list of allowed"):
        tf.import_graph_def(made)
    del made.node[0]
    with tf.Graph().as_default(), pytest.raises(ArgumentError):
        tf.import_graph_def(made, return_elements=[b"\xff"])


@pytest.mark.parametrize("number", [20, 21])
def test_a_constant_handle_without_a_variable_cannot_be_fetched(number: int) -> None:
    """A constant of dtype resource or variant has no value."""
    message = messages.GraphDef()
    node = message.node.add(name="a", op="Const")
    node.attr["dtype"].type = node.attr["value"].tensor.dtype = number
    graph = tf.load_graph(message.SerializeToString())
    with (
        tf.Session(graph=graph) as session,
        pytest.raises(tf.errors.InvalidArgumentError, match="no variable behind it"),
    ):
        session.run("a:0")

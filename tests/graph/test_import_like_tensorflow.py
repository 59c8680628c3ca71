"""Imports, case by case as TensorFlow does them: errors, names, devices, shapes, versions."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from graph import graph_texts
from graph.graph_texts import A, attr, identity, placeholder

import dlbridge.graph as tf
from dlbridge.execution.errors import NotFoundError


@pytest.fixture(scope="module")
def v1(framework: Callable[[str], Any]) -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return framework("tensorflow").compat.v1


def theirs(v1: Any, text: str) -> Any:
    """Return the GraphDef of a text, as TensorFlow's message."""
    from google.protobuf import text_format

    return text_format.Parse(text, v1.GraphDef())


def outcome(module: Any, graph_def: Any, **arguments: Any) -> Any:
    """Return what an import gave: its operations, or the kind of its error."""
    graph = module.Graph()
    try:
        with graph.as_default():
            module.import_graph_def(graph_def, **arguments)
    except Exception as error:
        return next(
            kind
            for kind in ("NotFoundError", "ValueError", "TypeError", "RuntimeError", "Exception")
            if kind in [each.__name__ for each in type(error).__mro__]
        )
    return description(graph)


def description(graph: Any) -> Any:
    """Return what can be compared of the operations of a graph, ours or TensorFlow's."""
    return [
        (
            op.name,
            op.type,
            op.device,
            [tensor.name for tensor in op.inputs],
            [each.name for each in op.control_inputs],
            [(tensor.name, tensor.dtype.name, shape(tensor)) for tensor in op.outputs],
        )
        for op in graph.get_operations()
    ]


def shape(tensor: Any) -> Any:
    return None if tensor.shape.rank is None else tensor.shape.as_list()


@pytest.mark.parametrize("case", graph_texts.REFUSED)
def test_refusals_have_the_class_of_tensorflows(v1: Any, case: str) -> None:
    text = graph_texts.REFUSED[case]
    expected = outcome(v1, theirs(v1, text), name="")
    assert isinstance(expected, str), "TensorFlow accepts this"
    assert outcome(tf, text, name="") == expected


@pytest.mark.filterwarnings("ignore:import_graph_def")
@pytest.mark.parametrize("case", graph_texts.ACCEPTED)
def test_accepted_graphs_give_the_same_operations(v1: Any, case: str) -> None:
    text = graph_texts.ACCEPTED[case]
    expected = outcome(v1, theirs(v1, text), name="")
    assert not isinstance(expected, str), "TensorFlow refuses this"
    assert outcome(tf, text, name="") == expected


@pytest.mark.parametrize("case", graph_texts.REFUSED_BY_US)
def test_some_graphs_are_refused_that_tensorflow_accepts(v1: Any, case: str) -> None:
    """A value needs its shape and type."""
    text = graph_texts.REFUSED_BY_US[case]
    assert not isinstance(outcome(v1, theirs(v1, text), name=""), str)
    assert outcome(tf, text, name="") == "ValueError"


TWO = A + identity("b", "a") + identity("c", "b ^a")


def in_scopes(module: Any, graph_def: Any) -> None:
    with module.name_scope("s"):
        module.import_graph_def(graph_def)
    with module.name_scope("s"):
        module.import_graph_def(graph_def, name="q")
    with module.name_scope("s"):
        module.import_graph_def(graph_def, name="")
    module.import_graph_def(graph_def, name="x/")


def on_devices(module: Any, graph_def: Any) -> None:
    with module.device("/job:w/gpu:1"):
        module.import_graph_def(graph_def)
    with module.device(lambda op: "/device:CPU:3"):
        module.import_graph_def(graph_def)
    with module.device("/job:w"), module.device(lambda op: "/task:3"), module.device("/gpu:1"):
        module.import_graph_def(graph_def)


def after_control_inputs(module: Any, graph_def: Any) -> None:
    first, second = module.no_op("first"), module.no_op("second")
    with module.control_dependencies([first]), module.control_dependencies([second, first]):
        module.import_graph_def(graph_def)


def with_input_map(module: Any, graph_def: Any) -> None:
    x = module.placeholder(module.float32, [3], name="x")
    module.import_graph_def(graph_def, input_map={"a:0": x})
    module.import_graph_def(graph_def, input_map={"a": x, "^a": x})
    module.import_graph_def(graph_def, input_map={"a": 3.0, "b:0": [1.0, 2.0]})
    module.import_graph_def(graph_def, input_map={"c:0": x}, name="")


def many_times(module: Any, graph_def: Any) -> None:
    module.no_op("a")
    module.no_op("b/inner")
    module.no_op("C")
    for _ in range(3):
        module.import_graph_def(graph_def, name="")
    for _ in range(3):
        module.import_graph_def(graph_def)
    module.no_op("A")
    module.no_op("import")
    module.no_op("b")


@pytest.mark.parametrize(
    "build",
    [in_scopes, on_devices, after_control_inputs, with_input_map, many_times],
    ids=lambda build: build.__name__,
)
def test_contexts_names_and_input_maps_give_the_same_operations(
    v1: Any, build: Callable[[Any, Any], None]
) -> None:
    text = TWO + placeholder("d", "device: '/cpu:0'") + placeholder("e", "device: '/task:2'")
    ours, other = tf.Graph(), v1.Graph()
    with ours.as_default():
        build(tf, text)
    with other.as_default():
        build(v1, theirs(v1, text))
    assert description(ours) == description(other)


ARGUMENTS: dict[str, dict[str, Any]] = {
    "a tensor that is not there": {"input_map": {"zz:0": 1.0}},
    "a result that is not there": {"input_map": {"a:1": 1.0}},
    "a control input that is not there": {"input_map": {"^zz": 1.0}},
    "no name of a tensor": {"input_map": {"a:x": 1.0}},
    "a key that is no text": {"input_map": {3: 1.0}},
    "no dictionary": {"input_map": [("a", 1.0)]},
    "a value of another type": {"input_map": {"a": 1}},
    "a value without a scope": {"input_map": {"a": 1.0}, "name": ""},
    "an operation to return that is not there": {"return_elements": ["zz"]},
    "a tensor to return that is not there": {"return_elements": ["a:3"]},
    "a control input to return": {"return_elements": ["^a"]},
    "no name to return": {"return_elements": ["a:x"]},
    "a number to return": {"return_elements": [1]},
    "a name with a space": {"name": "a b"},
    "a name that is no text": {"name": 3},
}


@pytest.mark.parametrize("case", ARGUMENTS)
def test_wrong_arguments_are_refused_with_the_same_class_of_errors(v1: Any, case: str) -> None:
    expected = outcome(v1, theirs(v1, TWO), **ARGUMENTS[case])
    assert isinstance(expected, str), "TensorFlow accepts this"
    assert outcome(tf, TWO, **ARGUMENTS[case]) == expected


def test_returned_elements_are_the_same(v1: Any) -> None:
    names = ["c:0", "c", b"a:0", "b", "b"]
    found = []
    for module, graph_def in ((tf, TWO), (v1, theirs(v1, TWO))):
        with module.Graph().as_default():
            x = module.placeholder(module.float32, name="x")
            given = {"a:0": x}
            elements = module.import_graph_def(graph_def, given, names)
        found.append([each.name for each in elements])
        with module.Graph().as_default():
            assert module.import_graph_def(graph_def, return_elements=[]) == []
            assert module.import_graph_def(graph_def) is None
    assert found[0] == found[1]


@pytest.mark.parametrize("numbers", [((5, 0), (9, 3)), ((9, 3), (5, 0)), ((3000, 3), (3001, 2))])
def test_versions_of_several_imports_are_merged_as_in_tensorflow(v1: Any, numbers: Any) -> None:
    merged = []
    for module in (tf, v1):
        graph = module.Graph()
        with graph.as_default():
            for producer, consumer in numbers:
                text = (
                    f"{A} versions {{ producer: {producer} min_consumer: {consumer} "
                    f"bad_consumers: {producer} bad_consumers: 7 }}"
                )
                module.import_graph_def(theirs(v1, text))
        versions = graph.graph_def_versions
        merged.append((versions.producer, versions.min_consumer, list(versions.bad_consumers)))
    assert merged[0] == merged[1]


def test_a_message_of_tensorflow_is_not_changed(v1: Any) -> None:
    """TensorFlow adds the defaults of attributes to the message that it is given."""
    message = theirs(v1, TWO)
    before = message.SerializeToString(deterministic=True)
    with tf.Graph().as_default():
        tf.import_graph_def(message)
    assert message.SerializeToString(deterministic=True) == before


def test_op_types_that_a_producer_list_explains_may_have_unknown_defaults(v1: Any) -> None:
    from google.protobuf import text_format
    from tensorflow.core.framework import op_def_pb2

    known = text_format.Parse(
        "op { name: 'Identity' attr { name: 'later' type: 'int' default_value { i: 3 } } }",
        op_def_pb2.OpList(),
    )
    for value, fits in (("i: 3", True), ("i: 4", False)):
        text = A + identity("b", "a", graph_texts.T + attr("later", value))
        with tf.Graph().as_default() as graph:
            if fits:
                tf.import_graph_def(text, producer_op_list=known, name="")
                assert "later" not in graph.get_operation_by_name("b").attrs
            else:
                with pytest.raises(ValueError, match=r"'later'.*unknown"):
                    tf.import_graph_def(text, producer_op_list=known)


def test_errors_of_unknown_op_types_are_those_of_a_running_graph() -> None:
    with tf.Graph().as_default(), pytest.raises(NotFoundError, match="'NoSuchOp'") as caught:
        tf.import_graph_def("node { name: 'a' op: 'NoSuchOp' }")
    assert caught.value.error_code == 5


@pytest.mark.parametrize("resource", [False, True], ids=["references", "resources"])
def test_graphs_with_variables_run_the_same_and_can_be_frozen(v1: Any, resource: bool) -> None:
    built = v1.Graph()
    with built.as_default():
        x = v1.placeholder(v1.float32, [None, 2], name="x")
        w = v1.Variable([[1.0, 2.0], [3.0, 4.0]], name="w", use_resource=resource)
        y = v1.matmul(x, w, name="y")
        with v1.control_dependencies([y]):
            step = v1.assign_add(w, v1.ones([2, 2])).op.name
        v1.global_variables_initializer()
    text = built.as_graph_def().SerializeToString()
    fetches, feeds = ["y:0", step], {"x:0": [[1.0, -1.0]]}
    found = []
    for module, graph in ((tf, tf.load_graph(text)), (v1, built)):
        with module.Session(graph=graph) as session:
            session.run("init")
            values = [session.run(fetches[0], feeds), session.run(fetches, feeds)[0]]
            values.append(session.run(fetches[0], feeds))
            frozen = module.graph_util.convert_variables_to_constants(
                session, graph.as_graph_def(), ["y"]
            )
        found.append([each.tolist() for each in values])
        for reader in (tf, v1):
            data = v1.GraphDef.FromString(frozen.SerializeToString())
            with reader.Graph().as_default() as again:
                reader.import_graph_def(data, name="")
            with reader.Session(graph=again) as session:
                assert session.run("y:0", feeds).tolist() == values[-1].tolist()
    assert found[0] == found[1]

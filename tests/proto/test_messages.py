"""Messages: our own `.proto` files say what TensorFlow's do, and never meet TensorFlow's."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import descriptors
import pytest

from dlbridge.proto import messages

# Of TensorFlow's fields those that we leave unknown, and of ours the one that no file has.
LEFT_OUT = {("GraphDef", "debug_info")}
OUR_OWN = {("TensorProto", "external_content")}


@pytest.fixture(scope="module")
def theirs(framework: Any) -> dict[str, Any]:
    """Return TensorFlow's descriptors of the same messages by name."""
    framework("tensorflow")
    from tensorflow.core.framework import graph_pb2, op_def_pb2  # isort: skip

    pool = graph_pb2.DESCRIPTOR.pool
    assert op_def_pb2.DESCRIPTOR.pool is pool
    return {name: pool.FindMessageTypeByName(f"tensorflow.{name}") for name in NAMES}


def describe(message: Any) -> dict[str, Any]:
    """Return everything about a message's fields that changes bytes, text or access."""
    return {
        field.name: (
            field.number,
            field.type,
            field.is_repeated if hasattr(type(field), "is_repeated") else field.label == 3,
            field.is_packed if hasattr(field, "is_packed") else None,
            field.containing_oneof and field.containing_oneof.name,
            kind(field),
        )
        for field in message.fields
        if (message.name, field.name) not in LEFT_OUT | OUR_OWN
    }


def kind(field: Any) -> Any:
    target = field.message_type or field.enum_type
    return target and target.full_name.partition(".")[2]


def enumerators(message: Any) -> dict[str, Any]:
    return {
        field.enum_type.name: sorted(field.enum_type.values_by_name)
        for field in message.fields
        if field.enum_type
    }


NAMES = (
    "AttrValue", "FullTypeDef", "FunctionDef", "FunctionDefLibrary", "GradientDef", "GraphDef",
    "NameAttrList", "NodeDef", "OpDef", "OpDeprecation", "OpList", "RegisteredGradient",
    "ResourceHandleProto", "TensorProto", "TensorShapeProto", "VariantTensorDataProto",
    "VersionDef",
)  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_a_message_has_tensorflows_fields(theirs: dict[str, Any], name: str) -> None:
    pairs = [(getattr(messages, name).DESCRIPTOR, theirs[name])]
    while pairs:
        ours, other = pairs.pop()
        assert describe(ours) == describe(other), ours.full_name
        assert enumerators(ours) == enumerators(other)
        nested = other.nested_types_by_name
        assert set(ours.nested_types_by_name) == set(nested)
        pairs += [(inner, nested[inner.name]) for inner in ours.nested_types]


def require_protoc() -> None:
    """Skip without grpcio-tools, which must not be imported beside TensorFlow."""
    if importlib.util.find_spec("grpc_tools") is None:
        pytest.skip("grpcio-tools is not installed")


def test_descriptors_are_those_of_the_sources() -> None:
    """The checked-in file is up to date: run `python tests/descriptors.py`."""
    require_protoc()
    assert descriptors.compile_descriptors() == descriptors.TARGET.read_bytes()


def test_wrong_sources_are_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    require_protoc()
    (tmp_path / "wrong.proto").write_text("nonsense")
    monkeypatch.setattr(descriptors, "FOLDER", tmp_path)
    with pytest.raises(RuntimeError, match="wrong"):
        descriptors.compile_descriptors()


ROUND_TRIP = """
import numpy as np
{first}
{second}
message = make_tensor_proto(np.arange(6, dtype=np.float32))
graph = GraphDef()
graph.node.add(name="a", op="Const").attr["value"].tensor.CopyFrom(message)
theirs = graph_pb2.GraphDef.FromString(graph.SerializeToString())
assert theirs.node[0].attr["value"].tensor.tensor_content == message.tensor_content
assert type(theirs) is not type(graph)
assert str(theirs) == str(graph)
assert load_graph_def(theirs).message == graph
print("both")
"""
OURS = "from dlbridge.proto import GraphDef, load_graph_def, make_tensor_proto; GraphDef()"
THEIRS = "from tensorflow.core.framework import graph_pb2; import tensorflow"


@pytest.mark.full
@pytest.mark.parametrize(("first", "second"), [(OURS, THEIRS), (THEIRS, OURS)], ids=["ours", "tf"])
def test_tensorflow_may_be_imported_before_or_after(
    framework: Any, run_python: Callable[..., Any], first: str, second: str
) -> None:
    framework("tensorflow")
    out = run_python(ROUND_TRIP.format(first=first, second=second), TF_CPP_MIN_LOG_LEVEL="3")
    assert out.check() == "both\n"


def test_the_python_implementation_of_protobuf_serves_too(run_python: Callable[..., Any]) -> None:
    code = """
    from google.protobuf.internal import api_implementation
    assert api_implementation.Type() == "python"
    import numpy as np
    from dlbridge.proto import GraphDef, dump_graph_def, load_graph_def, make_value, read_attr
    from dlbridge.proto import write_attr
    graph = GraphDef()
    node = graph.node.add(name="a", op="Const")
    value = make_value(np.arange(3000.0))
    contents = []
    write_attr(value, node.attr["value"], contents)
    loaded = load_graph_def(dump_graph_def(graph, contents))
    assert read_attr(loaded.message.node[0].attr["value"], loaded.contents) == value
    """
    run_python(code, PROTOCOL_BUFFERS_PYTHON_IMPLEMENTATION="python").check()


def test_protobuf_is_imported_when_a_message_is_asked_for(run_python: Callable[..., Any]) -> None:
    """Values go over the wire without it."""
    code = """
    import sys
    import numpy as np
    import dlbridge.proto as proto
    value = proto.read_tensor(proto.dump_tensor(np.ones(3)))
    assert proto.load_tensor(proto.dump_tensor(value)).tolist() == [1, 1, 1]
    assert not [name for name in sys.modules if name.startswith("google")]
    proto.GraphDef
    assert "google.protobuf" in sys.modules
    """
    run_python(code).check()


@pytest.mark.parametrize("stub", ["raise ImportError('none')", "__version__ = '4.25.1'"])
def test_missing_or_old_protobuf_names_the_extra(
    run_python: Callable[..., Any], tmp_path: Path, stub: str
) -> None:
    package = tmp_path / "google" / "protobuf"
    package.mkdir(parents=True)
    (tmp_path / "google" / "__init__.py").write_text("")
    for name in ("__init__", "descriptor_pb2", "descriptor_pool", "message_factory"):
        (package / f"{name}.py").write_text(stub)
    code = f"""
    import sys
    sys.path.insert(0, {str(tmp_path)!r})
    import dlbridge.proto
    try:
        dlbridge.proto.GraphDef
    except ImportError as error:
        assert "dlbridge[graph]" in str(error), error
        assert error.reason == "missing"
        print("refused")
    """
    assert run_python(code).check() == "refused\n"


def test_unknown_messages_are_attribute_errors() -> None:
    """And leave the classes that there are as they are."""
    known = messages.GraphDef
    for name in ("MetaGraphDef", "graph_def", "_GraphDef"):
        with pytest.raises(AttributeError, match=name):
            getattr(messages, name)
    assert messages.GraphDef is known


def test_bytes_that_are_no_message_are_refused() -> None:
    with pytest.raises(ValueError, match="these 4 bytes are not a GraphDef"):
        messages.parse("GraphDef", b"\xff" * 4)


def test_messages_are_recognised(framework: Any) -> None:
    framework("tensorflow")
    theirs = sys.modules["tensorflow"].compat.v1.GraphDef()
    theirs.node.add(name="x", op="NoOp")
    assert messages.is_message(theirs, "GraphDef")
    assert not messages.is_message(theirs, "NodeDef")
    assert not messages.is_message(b"", "GraphDef")

"""Texts of a GraphDef that are not UTF-8: they are imported, or refused for what they are."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
from google.protobuf import text_format

import dlbridge.graph as tf
from dlbridge.graph import graph_util
from dlbridge.graph.core import opdef
from dlbridge.proto import messages

# A graph with a text in every field that may have one; no text is part of another.
GRAPH = """
node { name: 'input' op: 'Placeholder' device: '/job:w/cpu:0'
  attr { key: 'dtype' value { type: DT_FLOAT } } }
node { name: 'last' op: 'Identity' input: 'input' input: '^input'
  attr { key: 'T' value { type: DT_FLOAT } }
  attr { key: '_class' value { list { s: 'loc:@input' } } }
  attr { key: '_bytes' value { s: 'content' } }
  attr { key: '_function' value { func { name: 'called'
    attr { key: 'argument' value { s: 'given' } } } } }
  attr { key: '_several' value { list { s: 'itemtext' } } }
  attr { key: '_functions' value { list { func { name: 'inlist' } } } }
  attr { key: '_named' value { list { shape { dim { size: 1 name: 'rowname' } } } } }
  attr { key: '_tensor' value { tensor { dtype: DT_STRING string_val: 'element'
    tensor_shape { dim { size: 1 name: 'extent' } } } } }
  experimental_debug_info { original_node_names: 'source' original_func_names: 'origin' } }
library {
  function {
    signature { name: 'signature' summary: 'shortly' description: 'at length'
      input_arg { name: 'taken' type: DT_FLOAT } output_arg { name: 'handed' type: DT_FLOAT }
      attr { name: 'option' type: 'type' description: 'meaning' } }
    node_def { name: 'within' op: 'Identity' input: 'taken'
      attr { key: 'T' value { type: DT_FLOAT } } }
    ret { key: 'handed' value: 'within:output:0' } }
  gradient { function_name: 'signature' gradient_func: 'backward' } }
versions { producer: 20 }
"""
TEXT = re.compile(r"'([^']*)'")
BAD = b"\xff"


def spoilt_graphs() -> Iterator[bytes]:
    """Yield the graph with the first byte of each text made a byte that UTF-8 never has."""
    message = text_format.Parse(GRAPH, messages.GraphDef())
    data = message.SerializeToString(deterministic=True)
    for text in sorted(set(TEXT.findall(GRAPH))):
        sized = bytes([len(text)]) + text.encode()
        places = [match.start() + 1 for match in re.finditer(re.escape(sized), data)]
        assert places, text
        for place in places:
            yield data[:place] + BAD + data[place + 1 :]


def use(data: bytes) -> str:
    """Import, print and write a graph; return what came of it."""
    try:
        graph = tf.load_graph(data)
        [repr(each) for each in graph.get_operations()]
        written = tf.dump_graph(graph)
        message = messages.GraphDef.FromString(written)
        last = message.node[-1].name
        graph_util.extract_sub_graph(message, [last])
        graph_util.remove_training_nodes(message, [last])
    except UnicodeError as error:
        return f"UnicodeError: {error}"
    except (ValueError, TypeError, tf.errors.NotFoundError):
        return "refused"
    return "imported"


def test_every_text_of_a_graph_may_be_anything_but_utf8() -> None:
    outcomes = [use(data) for data in spoilt_graphs()]
    assert set(outcomes) == {"imported", "refused"}
    assert len(outcomes) > len(set(TEXT.findall(GRAPH)))


# ---- attributes of op types ----------------------------------------------------------------------


def has_text(op_type: str) -> bool:
    """Return whether an op type has a string that may be any, or the name of a function."""
    attributes = opdef.op_def(op_type).attributes.values()
    return any(each.kind in KINDS and not each.allowed for each in attributes)


KINDS = ("string", "list(string)", "func")
OP_TYPES = [name for name in opdef.names() if has_text(name)]
MARK = "MARKED"  # the name of a function, where protobuf takes nothing but UTF-8


def node_with_bad_texts(op_type: str) -> bytes:
    """Return a graph of placeholders and a node "x" whose every text is no UTF-8."""
    definition, graph = opdef.op_def(op_type), messages.GraphDef()
    node = messages.NodeDef(name="x", op=op_type)
    dtypes: dict[str, int] = {}
    counts = {each.number_attr for each in definition.inputs}
    for name, each in definition.attributes.items():
        value = node.attr[name]
        if each.kind == "type":
            value.type = dtypes[name] = (*each.allowed, tf.float32)[0].as_datatype_enum
        elif each.kind == "string":
            value.s = each.allowed[0] if each.allowed else BAD
        elif each.kind == "list(string)":
            value.list.s.append(BAD)
        elif each.kind == "func":
            value.func.name = MARK
        elif each.kind == "list(type)":
            value.list.type.append(tf.float32.as_datatype_enum)
        elif each.kind == "int":
            value.i = 2 if name in counts else max(each.minimum or 0, 1)
        elif each.kind == "shape":
            value.shape.unknown_rank = True
        else:
            del node.attr[name]
    for each in definition.inputs:
        known = each.type.as_datatype_enum if each.type else dtypes.get(each.type_attr or "")
        for _ in range(2 if each.number_attr else 1):
            fed = graph.node.add(name=f"fed{len(graph.node)}", op="Placeholder")
            fed.attr["dtype"].type = known or tf.float32.as_datatype_enum
            node.input.append(fed.name)
    graph.node.append(node)
    data: bytes = graph.SerializeToString(deterministic=True)
    return data.replace(MARK.encode(), BAD * len(MARK))


def value_for(tensor: Any, shape: tuple[int, ...]) -> Any:
    if tensor.dtype == tf.string:
        return np.full(shape, BAD, object)
    return np.ones(shape, tensor.dtype.as_numpy_dtype)


@pytest.mark.parametrize("op_type", OP_TYPES)
def test_texts_of_op_types_may_be_anything_but_utf8(op_type: str) -> None:
    """The node is refused or imported, and runs or fails with an error that is no UnicodeError."""
    data = node_with_bad_texts(op_type)
    assert BAD in data
    if use(data) != "imported":
        assert use(data) == "refused"
        return
    graph = tf.load_graph(data)
    fed = [each.outputs[0] for each in graph.get_operations() if each.type == "Placeholder"]
    fed = [each for each in fed if each.dtype != tf.resource]  # which nobody can feed
    for shape in ((), (2,), (2, 2)):
        with tf.Session(graph=graph) as session:
            feeds = {each: value_for(each, shape) for each in fed}
            try:
                session.run(graph.get_operation_by_name("x"), feeds)
            except UnicodeError as error:
                pytest.fail(f"{op_type}: {error}")
            except (RuntimeError, ValueError, TypeError, tf.errors.OpError):
                continue


@pytest.mark.parametrize(
    ("use_name", "text"),
    [
        (lambda graph: graph.as_graph_element(b"\xff:0"), "does not exist"),
        (lambda graph: graph.as_graph_element(b"\xff"), "not in the graph"),
        (lambda graph: graph.get_tensor_by_name(b"\xff:0"), "not bytes"),
        (lambda graph: graph.get_operation_by_name(b"\xff"), "not bytes"),
        (lambda graph: tf.Session(graph=graph).run(b"\xff:0"), "does not exist"),
        (lambda graph: tf.Session(graph=graph).run("c:0", {b"\xff:0": 1.0}), "does not exist"),
    ],
    ids=["tensor", "operation", "tensor by name", "operation by name", "fetch", "feed"],
)
def test_a_name_that_is_no_utf8_does_not_exist(use_name: Callable[[Any], Any], text: str) -> None:
    graph = tf.Graph()
    with graph.as_default():
        tf.constant(1.0, name="c")
    with pytest.raises((KeyError, ValueError, TypeError), match=text) as caught:
        use_name(graph)
    assert not isinstance(caught.value, UnicodeError)

"""Values and graphs on the wire: TensorProto, AttrValue and GraphDef as TensorFlow writes them.

    datatypes      DataType: TensorFlow's dtypes
    values         TensorValue, FunctionName: values of attributes; make_value, as tf.constant
    tensors        load_tensor, read_tensor, dump_tensor, dump_tensor_buffers, make_tensor_proto, …
    attributes     read_attr, write_attr: AttrValue
    graph_bytes    load_graph_def, dump_graph_def, …: GraphDef, large contents left in place
    messages       GraphDef, NodeDef, … as classes of `protobuf`, imported on first use
    wire           the wire format: fields and varints

Messages are also names of this package: `dlbridge.proto.GraphDef`.
"""

from typing import Any

from dlbridge.proto import messages as messages
from dlbridge.proto.attributes import read_attr, write_attr
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.graph_bytes import (
    LoadedGraph,
    dump_graph_def,
    dump_graph_def_buffers,
    dump_graph_text,
    load_graph_def,
)
from dlbridge.proto.tensors import (
    dump_tensor,
    dump_tensor_buffers,
    load_tensor,
    make_ndarray,
    make_tensor_proto,
    read_tensor,
)
from dlbridge.proto.values import FunctionName, TensorValue, make_value

__all__ = [
    "DataType",
    "FunctionName",
    "LoadedGraph",
    "TensorValue",
    "as_dtype",
    "dump_graph_def",
    "dump_graph_def_buffers",
    "dump_graph_text",
    "dump_tensor",
    "dump_tensor_buffers",
    "load_graph_def",
    "load_tensor",
    "make_ndarray",
    "make_tensor_proto",
    "make_value",
    "read_attr",
    "read_tensor",
    "write_attr",
]


def __getattr__(name: str) -> Any:
    """Return the class of a message."""
    return getattr(messages, name)

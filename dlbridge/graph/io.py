"""`tf.io`: graphs and tensors in files."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dlbridge.errors import UnsupportedTypeError
from dlbridge.files import write_file
from dlbridge.graph.core.exporter import dump_graph_buffers, graph_def
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.ops.strings import decode_raw
from dlbridge.proto import messages

__all__ = ["decode_raw", "write_graph"]


def write_graph(
    graph_or_graph_def: Any, logdir: str | os.PathLike[str], name: str, as_text: bool = True
) -> str:
    """Write a graph into a file.

    Args:
        graph_or_graph_def: a Graph, or a GraphDef message, ours or TensorFlow's.
        logdir: the folder; it is created.
        name: of the file.
        as_text: whether as text (`.pbtxt`) or as bytes (`.pb`).

    Returns:
        The path of the file, which is never there in part: it takes its name when it is complete.
    """
    is_graph = isinstance(graph_or_graph_def, Graph)
    if not is_graph and not messages.is_message(graph_or_graph_def, "GraphDef"):
        raise UnsupportedTypeError(
            "write_graph: graph_or_graph_def must be a Graph or a GraphDef, got "
            f"{type(graph_or_graph_def).__name__}"
        )
    path = Path(logdir) / name
    path.parent.mkdir(parents=True, exist_ok=True)
    if as_text:
        message = graph_def(graph_or_graph_def) if is_graph else graph_or_graph_def
        buffers = [_text(message).encode()]
    elif is_graph:
        buffers = dump_graph_buffers(graph_or_graph_def)
    else:
        buffers = [graph_or_graph_def.SerializeToString(deterministic=True)]
    write_file(path, buffers)
    return str(path)


def _text(message: Any) -> str:
    from google.protobuf import text_format

    text: str = text_format.MessageToString(message)
    return text

"""GraphDef as bytes, text and messages, with large contents of tensors left where they are.

A GraphDef of ours may be accompanied by `contents`, a list of buffers. A TensorProto in it that has
no content of its own then refers to one: its field `external_content` is 1 + the place in the list.
So a frozen graph of a gigabyte is read without copying its weights, and written from the tensors'
own memory. The field exists only between these functions:

    loaded = load_graph_def(source)                   # bytes, a path, text or a message
    read_attr(node.attr["value"], loaded.contents)    # for node in loaded.message.node

    message, contents = messages.GraphDef(), []
    write_attr(value, node.attr["value"], contents)   # for node = message.node.add()
    dump_graph_def(message, contents)                 # bytes, as TensorFlow writes them
    dump_graph_def_buffers(message, contents)         # the same in pieces, nothing copied
    dump_graph_text(message, contents)

Messages that were passed in are never changed.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError, WireError
from dlbridge.proto import messages
from dlbridge.proto.attributes import LARGE
from dlbridge.proto.graph_rewriting import Excision, Splice
from dlbridge.proto.tensor_writer import MOST_BYTES
from dlbridge.proto.wire import flatten

# Below this it is cheaper to let protobuf copy everything than to look for large contents.
SCANNED_FROM = 1 << 20

_TEXT_SUFFIXES = frozenset((".pbtxt", ".pbtext", ".prototxt", ".textproto", ".txt"))


class LoadedGraph(NamedTuple):
    """A GraphDef of ours, and the contents that its tensors refer to, as views of what was read."""

    message: Any
    contents: Sequence[memoryview] = ()


def load_graph_def(source: Any) -> LoadedGraph:
    """Return a GraphDef from wherever it is.

    Args:
        source: a GraphDef message, ours or TensorFlow's; a LoadedGraph; serialised bytes in any
            object with the buffer protocol, which is kept alive and must not change; a path (str or
            os.PathLike) to a file in text format (`.pbtxt`) or serialised; or text format itself, a
            str with a brace or a line break in it.

    Returns:
        The message, which is `source` itself if that is ours and else belongs to the caller; and
        the contents of at least 4 KiB in graphs of at least 1 MiB, as views of the buffer.

    Raises:
        WireError: no GraphDef.
        OSError: the file cannot be read.
        UnsupportedTypeError: `source` is nothing of these.
        FrameworkMissingError: protobuf is not installed.
    """
    if isinstance(source, LoadedGraph):
        return source
    if isinstance(source, str | os.PathLike):
        return _load_text_or_file(source)
    if messages.is_message(source, "GraphDef"):
        if isinstance(source, messages.GraphDef):
            return LoadedGraph(source)
        source = source.SerializeToString()
    elif hasattr(source, "DESCRIPTOR"):
        name = source.DESCRIPTOR.full_name
        raise UnsupportedTypeError(f"load_graph_def: a GraphDef is required, got a {name}")
    return _load_bytes(flatten(source, "load_graph_def"))


def _load_text_or_file(source: str | os.PathLike[str]) -> LoadedGraph:
    if isinstance(source, str) and (not source.strip() or "{" in source or "\n" in source):
        return LoadedGraph(_parse_text(source))
    path = Path(source)
    if path.suffix in _TEXT_SUFFIXES:
        return LoadedGraph(_parse_text(path.read_text("utf-8")))
    return _load_bytes(memoryview(path.read_bytes()))


def _load_bytes(data: memoryview) -> LoadedGraph:
    if len(data) < SCANNED_FROM:
        return LoadedGraph(messages.parse("GraphDef", data))
    excision = Excision(data, LARGE)
    skeleton = excision.run()
    if len(skeleton) >= MOST_BYTES:
        raise WireError("a GraphDef without its contents has less than 2 GiB")
    return LoadedGraph(messages.parse("GraphDef", skeleton), excision.contents)


def _parse_text(text: str) -> Any:
    message = messages.GraphDef()
    from google.protobuf import text_format

    try:
        return text_format.Parse(text, message)
    except Exception as error:  # ParseError, and RecursionError for text that is nested too deeply
        raise WireError(f"this text is no GraphDef: {error}") from error


def dump_graph_def(message: Any, contents: Sequence[Any] = ()) -> bytes:
    """Return a GraphDef as TensorFlow reads it, its maps in order; see `dump_graph_def_buffers`.

    Raises:
        ArgumentError: it takes 2 GiB or more, which protobuf and so TensorFlow do not read.
        WireError: a tensor refers to a content that is not there, or of a wrong length.
    """
    buffers = dump_graph_def_buffers(message, contents)
    return buffers[0] if len(buffers) == 1 else native.join(buffers)


def dump_graph_def_buffers(message: Any, contents: Sequence[Any] = ()) -> list[Any]:
    """Return a GraphDef as buffers to be written one after the other.

    Args:
        message: a GraphDef of ours.
        contents: the buffers that its tensors refer to.

    Returns:
        Bytes in turn with the contents, which are shared.
    """
    skeleton: bytes = message.SerializeToString(deterministic=True)
    pieces = Splice(skeleton, contents).run() if len(contents) else [skeleton]
    nbytes = sum(map(len, pieces))
    if nbytes >= MOST_BYTES:
        raise ArgumentError(
            f"a GraphDef holds less than 2 GiB, this one needs {nbytes} bytes; keep large values "
            "in variables or feeds"
        )
    return pieces


def dump_graph_text(message: Any, contents: Sequence[Any] = ()) -> str:
    """Return a GraphDef of ours in text format, contents included."""
    from google.protobuf import text_format

    if len(contents):
        message = messages.parse("GraphDef", dump_graph_def(message, contents))
    text: str = text_format.MessageToString(message)
    return text

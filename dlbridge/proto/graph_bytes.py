"""GraphDef as bytes, text and messages, with large contents of tensors left where they are.

A GraphDef may be accompanied by `contents`, a list of buffers. A TensorProto without content then
refers to one of them: its field `external_content` is 1 + the index in the list. A frozen graph of
a gigabyte is thus read without copying its weights, and written from the tensors' own memory. The
field exists only between these functions:

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
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError, WireError
from dlbridge.proto import messages, wire
from dlbridge.proto.attributes import LARGE
from dlbridge.proto.tensors import CONTENT, MOST_BYTES, TensorFields
from dlbridge.proto.wire import flatten, varint
from dlbridge.signals import not_from_handler

# Below this it is cheaper to let protobuf copy everything than to look for large contents.
SCANNED_FROM = 1 << 20

EXTERNAL = varint(536870911 << 3)
"""The tag of TensorProto.external_content."""

_EXTERNAL_TAG = 536870911 << 3
_MOST_DEPTH = 100  # of messages in messages, as in protobuf

_TEXT_SUFFIXES = frozenset((".pbtxt", ".pbtext", ".prototxt", ".textproto", ".txt"))


class LoadedGraph(NamedTuple):
    """One of our GraphDefs, and the contents its tensors refer to, as views of the source."""

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
        The message, which is `source` itself if that is one of ours, else a new one; and the
        contents of at least 4 KiB in graphs of at least 1 MiB, as views of the buffer.

    Raises:
        WireError: the source is not a GraphDef.
        OSError: the file cannot be read.
        UnsupportedTypeError: `source` is none of these.
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
        try:
            text = path.read_text("utf-8")
        except not_from_handler(UnicodeDecodeError) as error:
            raise WireError(f"{path} is not a GraphDef as text: {error}") from error
        return LoadedGraph(_parse_text(text))
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
    except not_from_handler(Exception) as error:
        # ParseError, and RecursionError for text that is nested too deeply
        raise WireError(f"this text is not a GraphDef: {error}") from error


def dump_graph_def(message: Any, contents: Sequence[Any] = ()) -> bytes:
    """Return a GraphDef as TensorFlow reads it, its maps in order; see `dump_graph_def_buffers`.

    Raises:
        ArgumentError: it takes 2 GiB or more, which protobuf and TensorFlow cannot read.
        WireError: a tensor refers to a content that does not exist or has the wrong length.
    """
    messages.require("dump_graph_def", message, "GraphDef")
    buffers = dump_graph_def_buffers(message, contents)
    return buffers[0] if len(buffers) == 1 else native.join(buffers)


def dump_graph_def_buffers(message: Any, contents: Sequence[Any] = ()) -> list[Any]:
    """Return a GraphDef as buffers to be written one after the other.

    Args:
        message: a GraphDef of ours.
        contents: the buffers that its tensors refer to.

    Returns:
        Bytes alternating with the contents, which are shared.
    """
    messages.require("dump_graph_def_buffers", message, "GraphDef")
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

    messages.require("dump_graph_text", message, "GraphDef")
    if len(contents):
        message = messages.parse("GraphDef", dump_graph_def(message, contents))
    text: str = text_format.MessageToString(message)
    return text


# ---- large contents, taken out and put back ------------------------------------------------------
#
# Both directions walk down to the relevant TensorProtos and update the length of every message
# around them; everything else is passed on unchanged, including unknown fields.

Grammar = dict[int, Any]


def _grammar() -> Grammar:
    """Return, for messages around tensors, the tags of fields that may hold one, and with what."""
    tensor: Grammar = {}
    entry: Grammar = {}
    function_name = {2 << 3 | 2: entry}
    several = {8 << 3 | 2: tensor, 9 << 3 | 2: function_name}
    attr_value = {1 << 3 | 2: several, 8 << 3 | 2: tensor, 10 << 3 | 2: function_name}
    entry[2 << 3 | 2] = attr_value
    node = {5 << 3 | 2: entry}
    function = {3 << 3 | 2: node, 5 << 3 | 2: entry}
    return {1 << 3 | 2: node, 2 << 3 | 2: {1 << 3 | 2: function}}


_GRAPH = _grammar()


class _Rewriting(ABC):
    """A walk over a GraphDef in which some TensorProtos are replaced."""

    def __init__(self, data: memoryview | bytes) -> None:
        self.data = memoryview(data)

    @abstractmethod
    def matters(self, start: int, stop: int) -> bool:
        """Return whether a message may hold a tensor to be replaced."""

    @abstractmethod
    def replace(self, start: int, stop: int) -> list[Any] | None:
        """Return the replacement of a TensorProto in pieces, or None to keep it."""

    def pieces(self) -> list[Any]:
        """Return the graph with all replacements, in pieces."""
        return self._walk(0, len(self.data), _GRAPH, 0) or [self.data]

    def _walk(self, at: int, end: int, grammar: Grammar, depth: int) -> list[Any] | None:
        if depth > _MOST_DEPTH:
            raise WireError("malformed protocol buffer: messages are nested too deeply")
        pieces: list[Any] = []
        kept = before = at
        for tag, start, stop in wire.fields(self.data, at, end):
            inner = grammar.get(tag)
            if inner is not None and self.matters(start, stop):
                if inner:
                    new = self._walk(start, stop, inner, depth + 1)
                else:
                    new = self.replace(start, stop)
                if new is not None:
                    head = varint(tag) + varint(sum(map(len, new)))
                    pieces += [self.data[kept:before], head, *new]
                    kept = stop
            before = stop
        return [*pieces, self.data[kept:end]] if pieces else None


class Excision(_Rewriting):
    """Contents of at least `least` bytes become references to `contents`."""

    def __init__(self, data: memoryview, least: int) -> None:
        super().__init__(data)
        self.least = least
        self.contents: list[memoryview] = []

    def run(self) -> bytes:
        """Return the graph without its large contents, which are in `contents` then.

        Raises:
            WireError: malformed, or it has references already, which are dlbridge's own.
        """
        skeleton = b"".join(self.pieces())
        if skeleton.count(EXTERNAL) != len(self.contents):  # names and values may look like one
            self.least = 0
            self.contents.clear()
            skeleton = b"".join(self.pieces())
        return skeleton

    def matters(self, start: int, stop: int) -> bool:
        """Return whether the message is large enough to hold a large content."""
        return stop - start >= self.least

    def replace(self, start: int, stop: int) -> list[Any] | None:
        """Return the TensorProto without its content, if that is large."""
        kept: list[Any] = []
        content: memoryview | None = None
        before = start
        for tag, begin, end in wire.fields(self.data, start, stop):
            if tag == _EXTERNAL_TAG:
                raise WireError("a TensorProto of this graph has the field 536870911, which is "
                                "dlbridge's own and stands in no file")  # fmt: skip
            if tag == CONTENT[0]:
                content = self.data[begin:end]
            else:
                kept.append(self.data[before:end])
            before = end
        if content is None or len(content) < max(self.least, 1):
            return None
        self.contents.append(content)
        return [*kept, EXTERNAL + varint(len(self.contents))]


class Splice(_Rewriting):
    """References become the contents themselves."""

    def __init__(self, skeleton: bytes, contents: Sequence[Any]) -> None:
        super().__init__(skeleton)
        self.skeleton = skeleton
        self.contents = contents

    def run(self) -> list[Any]:
        """Return the graph as buffers: bytes, and the contents between them."""
        shared = set(map(id, self.contents))
        joined: list[Any] = []
        for own, group in groupby(self.pieces(), lambda piece: id(piece) not in shared):
            run = list(group)
            joined += [b"".join(run)] if own else run
        return joined

    def matters(self, start: int, stop: int) -> bool:
        """Return whether something in the message looks like a reference."""
        return self.skeleton.find(EXTERNAL, start, stop) >= 0

    def replace(self, start: int, stop: int) -> list[Any] | None:
        """Return the TensorProto with the content that it refers to."""
        before = start
        for tag, value, end in wire.fields(self.data, start, stop):
            if tag == _EXTERNAL_TAG and value:
                if value > len(self.contents):
                    raise WireError(
                        f"a TensorProto refers to content {value} of {len(self.contents)}"
                    )
                content = self.contents[value - 1]
                rest = [self.data[start:before], self.data[end:stop]]
                TensorFields(memoryview(b"".join(rest))).attach(memoryview(content))
                return [rest[0], CONTENT + varint(len(content)), content, rest[1]]
            before = end
        return None

"""A serialised GraphDef without its large contents, and with them again.

Both directions walk down to the TensorProtos that matter and give every message around them its new
length; all else is passed on as it is, unknown fields included.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import groupby
from typing import Any

from dlbridge.errors import WireError
from dlbridge.proto import wire
from dlbridge.proto.tensor_fields import TensorFields
from dlbridge.proto.tensor_writer import CONTENT
from dlbridge.proto.wire import varint

EXTERNAL = varint(536870911 << 3)
"""The tag of TensorProto.external_content."""

_EXTERNAL_TAG = 536870911 << 3
_MOST_DEPTH = 100  # of messages in messages, as in protobuf

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
        """Tell whether a message may hold a tensor to be replaced."""

    @abstractmethod
    def replace(self, start: int, stop: int) -> list[Any] | None:
        """Return what replaces a TensorProto, in pieces, or None to leave it as it is."""

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
                new = (
                    self._walk(start, stop, inner, depth + 1)
                    if inner
                    else self.replace(start, stop)
                )
                if new is not None:
                    head = varint(tag) + varint(sum(map(len, new)))
                    pieces += [self.data[kept:before], head, *new]
                    kept = stop
            before = stop
        return [*pieces, self.data[kept:end]] if pieces else None

    def _enter(self, start: int, stop: int, inner: Grammar, depth: int) -> list[Any] | None:
        return self._walk(start, stop, inner, depth + 1) if inner else self.replace(start, stop)


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
        if skeleton.count(EXTERNAL) != len(self.contents):  # perhaps: names and values may look so
            self.least = 0
            self.contents.clear()
            skeleton = b"".join(self.pieces())
        return skeleton

    def matters(self, start: int, stop: int) -> bool:
        """Tell whether the message is large enough to hold a large content."""
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
        """Tell whether something in the message looks like a reference."""
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

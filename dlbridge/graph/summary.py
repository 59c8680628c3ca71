"""`tf.summary`: event files, from which TensorBoard shows a graph.

An event file is a sequence of TFRecords, each with an `Event` message: its length (8 bytes,
little-endian), a checksum of the length, the message, a checksum of the message. The checksums
are masked CRC-32C.
"""

from __future__ import annotations

import os
import socket
import struct
import time
from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from dlbridge import registry
from dlbridge._core import ffi, lib
from dlbridge.graph.core.exporter import dump_graph_buffers
from dlbridge.graph.core.graph import Graph
from dlbridge.proto.wire import varint

__all__ = ["FileWriter"]

_VERSION = b"brain.Event:2"
_serial = registry.SerialNumbers()

# Field numbers and wire types of `Event`, as the byte that stands before a value.
_WALL_TIME, _FILE_VERSION, _GRAPH_DEF = b"\x09", b"\x1a", b"\x22"


class FileWriter:
    """Writes one event file that TensorBoard opens.

    Args:
        logdir: the directory, created if missing; the name of the file is unique.
        graph: a Graph to write at once.
        filename_suffix: the end of the file's name.

    It is a context manager that closes at its end.

    Example:
        >>> import tempfile, dlbridge.graph as tf
        >>> with tf.Graph().as_default() as graph, tempfile.TemporaryDirectory() as logdir:
        ...     total = tf.constant(1.0) + tf.constant(2.0)
        ...     with tf.summary.FileWriter(logdir, graph) as writer:
        ...         print(writer.path.name.startswith("events.out.tfevents."))
        True
    """

    def __init__(
        self, logdir: str | os.PathLike[str], graph: Graph | None = None, filename_suffix: str = ""
    ) -> None:
        folder = Path(logdir)
        folder.mkdir(parents=True, exist_ok=True)
        now = time.time()
        host = socket.gethostname()
        unique = f"{os.getpid()}.{next(_serial)}"
        self.path = folder / f"events.out.tfevents.{int(now):010d}.{host}.{unique}{filename_suffix}"
        self._file = self.path.open("xb")
        try:
            self._write(_FILE_VERSION, [_VERSION])
            if graph is not None:
                self.add_graph(graph)
        except BaseException:
            self._file.close()
            self.path.unlink(missing_ok=True)
            raise

    def get_logdir(self) -> str:
        """Return the directory."""
        return str(self.path.parent)

    def add_graph(self, graph: Graph) -> None:
        """Write a graph as it is now.

        Raises:
            ValueError: the file was closed.
        """
        self._write(_GRAPH_DEF, dump_graph_buffers(graph))
        self.flush()

    def flush(self) -> None:
        """Write everything to the file system."""
        self._file.flush()

    def close(self) -> None:
        """Close the file; closing it again does nothing."""
        self._file.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def _write(self, field: bytes, parts: Iterable[Any]) -> None:
        """Write an event with the present time and one field of bytes."""
        if self._file.closed:
            raise ValueError(f"FileWriter: {self.path} was closed")
        buffers = [memoryview(part).cast("B") for part in parts]
        size = varint(sum(map(len, buffers)))
        buffers.insert(0, memoryview(_WALL_TIME + struct.pack("<d", time.time()) + field + size))
        length = struct.pack("<Q", sum(map(len, buffers)))
        self._file.write(length + _checksum([memoryview(length)]))
        for buffer in buffers:
            self._file.write(buffer)
        self._file.write(_checksum(buffers))


def _checksum(buffers: Iterable[memoryview]) -> bytes:
    """Return the masked CRC-32C of consecutive buffers."""
    crc = 0
    for buffer in buffers:
        crc = lib.dlb_crc32c(crc, ffi.from_buffer(buffer), len(buffer))
    return struct.pack("<I", ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF)

"""tf.summary.FileWriter: event files as TensorFlow reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge._core import ffi, lib


def crc32c(data: bytes) -> int:
    return lib.dlb_crc32c(0, data, len(data))


@pytest.mark.parametrize(
    ("data", "checksum"),
    [(b"", 0), (b"123456789", 0xE3069283), (bytes(32), 0x8A9136AA), (b"\xff" * 32, 0x62A8AB43)],
)
def test_the_checksum_is_that_of_rfc_3720(data: bytes, checksum: int) -> None:
    assert crc32c(data) == checksum


def test_a_checksum_goes_on_over_several_buffers() -> None:
    whole = bytes(range(256)) * 3
    first = lib.dlb_crc32c(0, whole[:100], 100)
    assert lib.dlb_crc32c(first, ffi.from_buffer(whole[100:]), len(whole) - 100) == crc32c(whole)


@pytest.fixture
def graph() -> Any:
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        weights = tf.constant(np.arange(8, dtype=np.float32).reshape(4, 2), name="layer/weights")
        tf.matmul(x, weights, name="layer/product")
    return graph


def test_tensorflow_reads_the_events_and_the_graph_in_them(
    framework: Any, graph: Any, tmp_path: Path
) -> None:
    tensorflow = framework("tensorflow")
    with tf.summary.FileWriter(tmp_path / "logs", graph) as writer:
        assert writer.get_logdir() == str(tmp_path / "logs")
    path = str(writer.path)
    first, second = tensorflow.compat.v1.train.summary_iterator(path)
    assert first.file_version == "brain.Event:2"
    found = tensorflow.compat.v1.GraphDef.FromString(second.graph_def)
    assert [(node.name, node.op) for node in found.node] == [
        (op.name, op.type) for op in graph.get_operations()
    ]
    assert second.wall_time >= first.wall_time > 1.6e9


def test_large_constants_are_written_whole(framework: Any, tmp_path: Path) -> None:
    """The writer takes them from where they are, in several buffers."""
    tensorflow = framework("tensorflow")
    values = np.random.default_rng(0).normal(size=(300, 300)).astype(np.float32)
    with tf.Graph().as_default() as graph:
        tf.constant(values, name="values")
    with tf.summary.FileWriter(tmp_path, graph, ".suffix") as writer:
        assert writer.path.name.endswith(".suffix")
    _, event = tensorflow.compat.v1.train.summary_iterator(str(writer.path))
    (node,) = tensorflow.compat.v1.GraphDef.FromString(event.graph_def).node
    assert np.array_equal(tensorflow.make_ndarray(node.attr["value"].tensor), values)


def test_two_writers_at_once_have_files_of_their_own(graph: Any, tmp_path: Path) -> None:
    with tf.summary.FileWriter(tmp_path) as one, tf.summary.FileWriter(tmp_path) as other:
        assert one.path != other.path


def test_a_closed_writer_says_so(graph: Any, tmp_path: Path) -> None:
    writer = tf.summary.FileWriter(tmp_path)
    writer.close()
    writer.close()
    with pytest.raises(ValueError, match="was closed"):
        writer.add_graph(graph)

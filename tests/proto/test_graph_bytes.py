"""GraphDef: bytes, text, files and messages; large contents stay where they are."""

from __future__ import annotations

import copy
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge.errors import WireError
from dlbridge.proto import (
    FunctionName,
    GraphDef,  # type: ignore[attr-defined]
    LoadedGraph,
    dump_graph_def,
    dump_graph_def_buffers,
    dump_graph_text,
    graph_bytes,
    load_graph_def,
    make_value,
    read_attr,
    write_attr,
)
from dlbridge.proto.graph_bytes import EXTERNAL, Splice
from dlbridge.proto.tensors import TensorFields

WEIGHTS = [np.full(300_000 + 7 * i, i, np.float32) for i in range(4)]


def build(weights: list[Any], contents: list[Any] | None) -> Any:
    """Return a GraphDef with constants in every place that a tensor can have."""
    graph = GraphDef()
    graph.versions.producer = 1882
    for number, array in enumerate(weights):
        node = graph.node.add(name=f"w{number}", op="Const", input=["^x"])
        write_attr(make_value(array), node.attr["value"], contents)
    value = make_value(weights[0])
    node = graph.node.add(name="list", op="Several")
    write_attr([value, make_value(1), value], node.attr["values"], contents)
    write_attr(FunctionName("f", {"inner": value, "n": 3}), node.attr["f"], contents)
    write_attr([FunctionName("f", {"inner": value})], node.attr["fs"], contents)
    function = graph.library.function.add()
    function.signature.name = "g"
    write_attr(value, function.node_def.add(name="c", op="Const").attr["value"], contents)
    write_attr(value, function.attr["a"], contents)
    return graph


@pytest.fixture(scope="module")
def plain() -> bytes:
    data: bytes = build(WEIGHTS, None).SerializeToString(deterministic=True)
    return data


def test_a_graph_with_contents_is_written_like_one_without(plain: bytes) -> None:
    contents: list[Any] = []
    graph = build(WEIGHTS, contents)
    assert graph.ByteSize() < 2000
    assert dump_graph_def(graph, contents) == plain
    buffers = dump_graph_def_buffers(graph, contents)
    assert b"".join(buffers) == plain
    assert sum(any(piece is content for content in contents) for piece in buffers) == len(contents)


def test_large_contents_are_views_of_what_was_read(plain: bytes) -> None:
    message, contents = load_graph_def(plain)
    assert message.ByteSize() < 2000
    memory = np.frombuffer(plain, np.uint8)
    for number, array in enumerate(WEIGHTS):
        value = read_attr(message.node[number].attr["value"], contents)
        assert np.shares_memory(value.array, memory)
        assert np.array_equal(value.array, array)
    assert read_attr(message.node[4].attr["f"], contents).attrs["n"] == 3
    assert dump_graph_def(message, contents) == plain


def test_every_source_gives_the_same_graph(framework: Any, tmp_path: Path) -> None:
    tf = framework("tensorflow")
    plain = build([array[:9] for array in WEIGHTS], None).SerializeToString(deterministic=True)
    theirs = tf.compat.v1.GraphDef.FromString(plain)
    before = copy.deepcopy(theirs)
    binary, text = tmp_path / "graph.pb", tmp_path / "graph.pbtxt"
    binary.write_bytes(plain)
    written = dump_graph_text(*load_graph_def(plain))
    text.write_text(written)
    sources = (plain, bytearray(plain), memoryview(plain), np.frombuffer(plain, np.uint8), binary,
               str(binary), text, str(text), written, str(theirs), theirs,
               GraphDef.FromString(plain), load_graph_def(plain))  # fmt: skip
    for source in sources:
        assert dump_graph_def(*load_graph_def(source)) == plain
    assert theirs == before


def test_text_has_the_contents() -> None:
    contents: list[Any] = []
    graph = build([np.full(2000, 65, np.uint16).view(np.int16)], contents)
    assert len(contents) == 0  # 4000 bytes are not many
    graph = build([np.full(3000, 0x4141, np.int16)], contents)
    assert contents
    assert "A" * 6000 in dump_graph_text(graph, contents)
    assert "external" not in dump_graph_text(graph, contents)


def test_a_message_of_ours_is_taken_as_it_is() -> None:
    graph = GraphDef()
    assert load_graph_def(graph).message is graph
    assert load_graph_def(b"") == LoadedGraph(GraphDef())
    assert load_graph_def("") == LoadedGraph(GraphDef())


@pytest.mark.parametrize(
    ("source", "error", "text"),
    [
        (b"\xff\xff\xff", WireError, "not a GraphDef"),
        ("node { title: 1 }", WireError, "this text is not a GraphDef"),
        ("node {" * 5000, WireError, "this text is not a GraphDef"),
        (3, TypeError, "load_graph_def: bytes or another buffer"),
        ("no/such/file.pb", FileNotFoundError, "no/such/file"),
        ("no/such/file.pbtxt", FileNotFoundError, "no/such/file"),
        (GraphDef().node.add(), TypeError, "a GraphDef is required, got a dlbridge.NodeDef"),
    ],
    ids=itertools.count(),
)
def test_anything_but_a_graph_is_refused(source: Any, error: type[Exception], text: str) -> None:
    with pytest.raises(error, match=text):
        load_graph_def(source)


def test_fields_that_we_do_not_know_are_kept(plain: bytes) -> None:
    for tail in (b"\x2a\x03\x0a\x01x", b"\xfa\x7f\x02ab"):  # debug_info, and one of the future
        assert dump_graph_def(*load_graph_def(plain + tail)) == plain + tail


def test_text_without_contents_needs_none() -> None:
    graph = GraphDef()
    graph.node.add(name="a", op="NoOp")
    assert dump_graph_text(graph) == 'node {\n  name: "a"\n  op: "NoOp"\n}\n'


# ---- references ---------------------------------------------------------------------------------


def test_references_in_a_file_are_refused(plain: bytes) -> None:
    """They are dlbridge's own: a file must not look into the contents of other tensors."""
    graph = GraphDef.FromString(plain)
    graph.node[4].attr["values"].list.tensor[1].external_content = 1
    with pytest.raises(WireError, match="field 536870911"):
        load_graph_def(graph.SerializeToString())
    with pytest.raises(WireError, match="content 1 of 0"):
        read_attr(graph.node[4].attr["values"])


def test_text_that_looks_like_a_reference_is_kept(plain: bytes) -> None:
    graph = GraphDef.FromString(plain)
    graph.node.add(name="x", op="y").attr["s"].s = EXTERNAL + b"\x01"
    write_attr(make_value(np.frombuffer(EXTERNAL * 20, np.uint8)), graph.node[-1].attr["t"])
    data = graph.SerializeToString(deterministic=True)
    message, contents = load_graph_def(data)
    assert dump_graph_def(message, contents) == data


def test_references_to_nothing_are_refused_when_written() -> None:
    contents: list[Any] = []
    graph = build(WEIGHTS[:1], contents)
    with pytest.raises(WireError, match=f"content {len(contents)} of {len(contents) - 1}"):
        dump_graph_def(graph, contents[:-1])
    with pytest.raises(WireError, match="needs 1200000 bytes, got 2"):
        dump_graph_def(graph, [b"ab"] * len(contents))


def test_two_gigabytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    graph = GraphDef()
    graph.node.add(name="a" * 100)
    monkeypatch.setattr(graph_bytes, "MOST_BYTES", 100)
    with pytest.raises(ValueError, match="less than 2 GiB, this one needs 104"):
        dump_graph_def(graph)
    monkeypatch.setattr(graph_bytes, "SCANNED_FROM", 0)
    with pytest.raises(WireError, match="less than 2 GiB"):
        load_graph_def(graph.SerializeToString())


@pytest.mark.parametrize("depth", [40, 200, 2000])
def test_functions_in_functions_have_an_end(depth: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """It is ours, before protobuf's or that of Python's stack."""
    data = b""
    for _ in range(depth):  # NameAttrList.attr, its entry's value, AttrValue.func
        for tag in (0x52, 0x12, 0x12):
            data = bytes((tag,)) + graph_bytes_varint(len(data)) + data
    for tag in (0x52, 0x12, 0x2A, 0x0A):  # AttrValue.func, ..., NodeDef.attr, GraphDef.node
        data = bytes((tag,)) + graph_bytes_varint(len(data)) + data
    monkeypatch.setattr(graph_bytes, "SCANNED_FROM", 0)
    monkeypatch.setattr(graph_bytes, "LARGE", 0)
    with pytest.raises(WireError, match="nested too deeply"):
        load_graph_def(data)


def graph_bytes_varint(value: int) -> bytes:
    from dlbridge.proto.wire import varint

    return varint(value)


# ---- random bytes -------------------------------------------------------------------------------


@given(
    cut=st.one_of(st.none(), st.integers(0, 400)),
    edits=st.lists(st.tuples(st.integers(0, 399), st.integers(0, 255)), max_size=4),
)
def test_mutilated_graphs_are_read_as_by_protobuf_or_refused(
    cut: int | None, edits: list[tuple[int, int]]
) -> None:
    """With contents excised from 8 bytes on, the graph must be the one without excision."""
    small = [np.arange(5, dtype=np.float32), np.arange(3, dtype=np.uint8)]
    data = bytearray(build(small, None).SerializeToString(deterministic=True))
    for at, value in edits:
        data[at % len(data)] = value
    original = bytes(data[:cut])
    try:
        expected = GraphDef.FromString(original)
    except Exception:
        expected = None
    try:
        skeleton, contents = excise(original)
        again = b"".join(Splice(skeleton, contents).run())
        message = GraphDef.FromString(again)
    except WireError:
        assert expected is None or EXTERNAL in original or not is_sound(expected)
    except Exception:
        assert expected is None
    else:
        assert expected is None or message == expected


def is_sound(message: Any) -> bool:
    """Return whether all tensors in a message can be read; nonsense is not written again."""
    if message.DESCRIPTOR.name == "TensorProto":
        try:
            TensorFields(memoryview(message.SerializeToString()))
        except WireError:
            return False
    parts: list[Any] = []
    for field, value in message.ListFields():
        if field.message_type is None:
            continue
        if field.message_type.GetOptions().map_entry:
            parts += [part for part in value.values() if hasattr(part, "DESCRIPTOR")]
        else:
            parts += [value] if hasattr(value, "DESCRIPTOR") else value
    return all(map(is_sound, parts))


def excise(data: bytes) -> tuple[bytes, list[memoryview]]:
    from dlbridge.proto.graph_bytes import Excision

    excision = Excision(memoryview(data), 8)
    return excision.run(), excision.contents


@given(st.binary(max_size=300))
def test_random_bytes_never_crash(data: bytes) -> None:
    for load in (load_graph_def, lambda data: excise(data)):
        try:
            load(data)
        except WireError:
            pass


def test_a_text_file_of_no_text_is_refused(tmp_path: Path) -> None:
    """As all bytes that are no graph are: by an error of ours."""
    path = tmp_path / "graph.pbtxt"
    path.write_bytes(b"\xff\xfe{")
    with pytest.raises(WireError, match="is not a GraphDef as text"):
        load_graph_def(path)

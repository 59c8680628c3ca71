"""A graph of TensorFlow is data: whatever its nodes say of a kernel, no memory is at risk.

Each of these graphs read or wrote memory that is not the tensors', or ended the process. So they
run in a process of their own. `python -m tests.fuzz nodes` looks for more, without TensorFlow.
"""

from __future__ import annotations

import ast
from typing import Any

import pytest

ATTACKS = r"""
import sys
import numpy as np
import tensorflow as tf
import dlbridge
from kernels.tensorflow_samples import SCHEMAS, SOURCE

SCHEMAS |= {
    "big": "tf_test::big(n: int) -> f32[n, n]",
    "empty": "tf_test::empty(n: int) -> f32[n, n, n-n]",
    "less": "tf_test::less(x: f32[n]) -> f32[n-4]",
    "wide": "tf_test::wide(x!: f64[n])",
    "both": "tf_test::both(x!: f32[n], y: f32[n])",
    "eight": "tf_test::eight(x: f32[n]) -> f32[n+8]",
    "give": "tf_test::give(x: f32[n], *, a: float, b: int) -> f32[n]",
    "typed": "tf_test::typed(x: f32[n], *, to: dtype) -> to[n]",
}
for name in ("twice", "axpy", "kinds", "big", "empty", "less", "wide", "give", "halves",
             "fill", "both", "eight", "typed"):
    uses_nothing = ("big", "empty", "less", "wide", "give", "both", "eight", "typed")
    function = "same" if name in uses_nothing else name
    dlbridge.compile_c(SOURCE, function, SCHEMAS[name]).tensorflow


def node(kernel, inputs, outputs, scalars="", present="", batched=""):
    "Run a graph of one node over constants; return its outputs, or the class of the error."
    graph = tf.compat.v1.GraphDef()
    graph.versions.producer = 1000
    types = []
    for i, value in enumerate(inputs):
        made = graph.node.add(name=f"x{i}", op="Placeholder")
        value = np.asarray(value)
        number = tf.as_dtype(value.dtype).as_datatype_enum
        made.attr["dtype"].type = number
        types.append(number)
    call = graph.node.add(name="call", op="DlbridgeCall")
    call.input.extend([f"x{i}" for i in range(len(inputs))])
    call.attr["kernel"].s = ("tf_test::" + kernel).encode()
    call.attr["scalars"].s = scalars.encode()
    call.attr["present"].s = present.encode()
    call.attr["batched"].s = batched.encode()
    call.attr["Tin"].list.type.extend(types)
    call.attr["Tout"].list.type.extend([tf.as_dtype(each).as_datatype_enum for each in outputs])
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with tf.compat.v1.Session() as session:
            feeds = {f"x{i}:0": value for i, value in enumerate(inputs)}
            try:
                fetched = [f"call:{i}" for i in range(len(outputs))] or ["call"]
                return [np.asarray(each).tolist() for each in session.run(fetched, feeds)]
            except tf.errors.OpError as error:
                return type(error).__name__


def gradient(scalars="", present="", batched=""):
    "Differentiate a node; the class of the error."
    with tf.Graph().as_default() as graph:
        x = tf.compat.v1.placeholder("float32", [3])
        types = [tf.float32.as_datatype_enum] * 2
        attributes = {"kernel": b"tf_test::axpy", "scalars": scalars, "present": present}
        attributes["batched"] = batched
        values = {
            name: tf.compat.v1.AttrValue(s=value if isinstance(value, bytes) else value.encode())
            for name, value in attributes.items()
        }
        for name, count in (("Tin", 2), ("Tout", 1)):
            values[name] = tf.compat.v1.AttrValue()
            values[name].list.type.extend(types[:count])
        node = tf.compat.v1.NodeDef(name="call", op="DlbridgeCall", attr=values)
        y = tf.Operation.from_node_def(node, graph, [x, x]).outputs[0]
        try:
            tf.gradients(y, x)
        except Exception as error:
            return type(error).__name__
    return "differentiated"


def give(*scalars):
    "Run the node whose scalars are traced."
    return node("give", [ones, *scalars], ["float32"], "t0:,t0:,")


zero = "f16:" + "0" * 16 + ","
ones = np.ones(1000, np.float32)
rows = np.ones((2, 3), np.float32)
empty = np.ones((2**60, 0), np.float32)
addresses = np.full(64, 0x4141414141414141, np.int64).view(np.float64)
CASES = {
    "a kernel as it is": lambda: node("twice", [ones[:2]], ["float32"]),
    "written numbers as strings": lambda: node("wide", [addresses], ["string"]),
    "written numbers as bytes": lambda: node("wide", [np.ones(2**20)], ["uint8"]),
    "written numbers as resources": lambda: node("wide", [addresses], ["resource"]),
    "a result of another dtype": lambda: node("axpy", [ones, ones], ["float64"], zero),
    "results left out": lambda: node("halves", [ones], ["int64"]),
    "a result too many": lambda: node("twice", [ones], ["float32", "float32"]),
    "a product beyond 64 bits": lambda: node("big", [], ["float32"], f"i10:{2**32},"),
    "bits beyond 63 bits": lambda: node("big", [], ["float32"], f"i10:{2**30},"),
    "no elements of beyond 64 bits": lambda: node("empty", [], ["float32"], f"i10:{2**32},"),
    "a negative extent": lambda: node("less", [ones[:2]], ["float32"]),
    "a traced float16": lambda: give(np.float16(1), np.int64(1)),
    "a traced int8": lambda: give(np.float64(1), np.int8(1)),
    "a traced complex": lambda: give(np.complex64(1), np.int64(1)),
    "a traced text": lambda: give(np.array(b"a" * 100), np.int64(1)),
    "a traced vector": lambda: give(np.ones(0), np.int64(1)),
    "a length beyond 64 bits": lambda: node("give", [ones], ["float32"], f"s{2**64 - 1}:,i1:1,"),
    "a negative length": lambda: node("give", [ones], ["float32"], "s-1:,i1:1,"),
    "more scalars than inputs": lambda: node("twice", [], ["float32"], "t0:," * 4),
    "too many scalars": lambda: node("twice", [ones], ["float32"], "i1:1," * 17),
    "too many absent": lambda: node("twice", [ones], ["float32"], present="0" * 300),
    "all absent": lambda: node("axpy", [], ["float32"], zero, present="00"),
    "too many inputs": lambda: node("twice", [ones] * 300, ["float32"]),
    "a gradient of damaged scalars": lambda: gradient("f16:5,"),
    "a gradient of cut scalars": lambda: gradient("f1600:5,"),
    "a gradient of unknown scalars": lambda: gradient("x1:5,"),
    "a gradient of more scalars": lambda: gradient(zero * 2),
    "a gradient of traced scalars": lambda: gradient("t0:,"),
    "a gradient of too many absent": lambda: gradient(zero, "1" * 40),
    "a gradient of bytes that are no text": lambda: gradient(b"s1:\xff,"),
    "a gradient of a length of many digits": lambda: gradient("i" + "1" * 5000 + ":1,"),
    "a gradient of tensors neither there nor absent": lambda: gradient(zero, "xx"),
    "neither there nor absent": lambda: node("twice", [ones], ["float32"], present="x"),
    "a number that ends in letters": lambda: node("big", [], ["float32"], "i3:2xy,"),
    "a number of nothing": lambda: node("big", [], ["float32"], "i0:,"),
    "a number beyond 64 bits": lambda: node("big", [], ["float32"], "i20:" + "9" * 20 + ","),
    "a number after a space": lambda: node("big", [], ["float32"], "i2: 2,"),
    "bits of fewer digits": lambda: node("give", [ones], ["float32"], "f2:00,i1:1,"),
    "a length with a sign": lambda: node("give", [ones], ["float32"], "f+16:" + zero[4:] + "i1:1,"),
    "None with a value": lambda: node("big", [], ["float32"], "n1:2,"),
    "a name with a zero byte": lambda: node("twice\0x", [ones], ["float32"]),
    "a dimension that is None": lambda: node("big", [], ["float32"], "n0:,"),
    "a dimension that is text": lambda: node("big", [], ["float32"], "s3:abc,"),
    "a traced dimension below 0": lambda: node("big", [np.int64(-3)], ["float32"], "t0:,"),
    "a dtype that is none": lambda: node("typed", [ones], ["float32"], "i1:5,"),
    "a dtype below 0": lambda: node("typed", [ones], ["float32"], "i2:-1,"),
    "a dtype beyond 32 bits": lambda: node("typed", [ones], ["float64"], f"i19:{2**62},"),
    "another dtype than the output's": lambda: node("typed", [ones], ["float32"], "i5:81922,"),
    "a dtype that is text": lambda: node("typed", [ones], ["float32"], "s3:f32,"),
    "a traced dtype": lambda: node("typed", [ones, np.int64(81922)], ["float32"], "t0:,"),
    "too many dimensions in all": lambda: node("twice", [ones.reshape([1] * 31 + [-1])] * 20, []),
    "batches of two sizes": lambda: node("axpy", [rows, rows[:1]], ["float32"], zero, "", "11"),
    "a batch of a number": lambda: node("axpy", [rows, ones[0]], ["float32"], zero, "", "01"),
    "written, but no batch": lambda: node("both", [ones, rows], ["float32"], batched="01"),
    "a batch of an absent tensor": lambda: node("fill", [rows], ["float32"], "", "10", "11"),
    "more marks than tensors": lambda: node("twice", [rows], ["float32"], batched="11"),
    "marks that are no marks": lambda: node("twice", [rows], ["float32"], batched="x"),
    "more than there is memory": lambda: node("eight", [empty], ["float32"], batched="1"),
    "rows of another size": lambda: node("axpy", [rows, ones[:4]], ["float32"], zero, "", "10"),
    "a batch as an element": lambda: node("axpy", [rows, ones[:2]], ["float32"], zero, "", "10"),
    "a gradient of no marks": lambda: gradient(zero, "", "1x"),
    "a gradient of more marks": lambda: gradient(zero, "", "111"),
    "too many outputs": lambda: node("twice", [ones], ["float32"] * 300),
}
for name in sys.argv[1:] or CASES:
    print(repr((name, CASES[name]())), flush=True)
"""

NAME = r"""
import tensorflow as tf
import dlbridge
from kernels.tensorflow_samples import SCHEMAS, SOURCE

dlbridge.compile_c(SOURCE, "twice", SCHEMAS["twice"]).tensorflow
graph = tf.compat.v1.GraphDef()
graph.versions.producer = 1000
for name, scalars in ((b"\x1b[2J\n\xe2\x80\xae", b""), (b"\x1b[2J\n\xe2\x80\xae", b"x")):
    del graph.node[:]
    call = graph.node.add(name="call", op="DlbridgeCall")
    call.attr["kernel"].s, call.attr["scalars"].s = name, scalars
    call.attr["Tin"].list.SetInParent()
    call.attr["Tout"].list.SetInParent()
    with tf.Graph().as_default() as imported:
        tf.import_graph_def(graph, name="")
        with tf.compat.v1.Session() as session:
            try:
                session.run("call")
            except tf.errors.OpError as error:
                print(repr(str(error)))
"""

GOOD = ("a kernel as it is", [[2.0, 2.0]])


@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
@pytest.mark.usefixtures("tf", "compiled")
@pytest.mark.full
def test_nodes_that_do_not_agree_with_their_kernel_are_refused(run_python: Any) -> None:
    """And what is refused is refused before anything is read or written."""
    lines = run_python(ATTACKS).check().splitlines()
    first, *refused = [ast.literal_eval(line) for line in lines]
    assert first == GOOD
    assert len(refused) == ATTACKS.count(": lambda") - 1
    assert {result for _, result in refused} == {"InvalidArgumentError", "ArgumentError"}


@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
@pytest.mark.usefixtures("tf", "compiled")
@pytest.mark.full
def test_the_name_of_an_unknown_kernel_is_shown_without_control_characters(run_python: Any) -> None:
    lines = run_python(NAME).check().splitlines()
    unknown, damaged = [ast.literal_eval(line) for line in lines]
    shown = r"\x1b[2J\x0a\xe2\x80\xae: "
    assert shown + "no kernel of this name is wrapped" in unknown
    assert shown + "the node's attributes are damaged" in damaged
    assert not {"\x1b", "\u202e"} & set(unknown + damaged)


TEXTS = r"""
import numpy as np
import tensorflow as tf
import dlbridge
from kernels.tensorflow_samples import SCHEMAS, SOURCE

dlbridge.compile_c(SOURCE, "twice", SCHEMAS["twice"]).tensorflow
graph = tf.compat.v1.GraphDef()
graph.versions.producer = 1000
fed = graph.node.add(name="x", op="Placeholder")
fed.attr["dtype"].type = tf.string.as_datatype_enum
call = graph.node.add(name="call", op="DlbridgeCall", input=["x"])
call.attr["kernel"].s = b"tf_test::twice"
call.attr["Tin"].list.type.append(tf.string.as_datatype_enum)
call.attr["Tout"].list.type.append(tf.float32.as_datatype_enum)
with tf.Graph().as_default() as imported:
    tf.import_graph_def(graph, name="")
    with tf.compat.v1.Session() as session:
        try:
            session.run("call:0", {"x:0": np.array([b"a", b"b"], object)})
        except tf.errors.InvalidArgumentError as error:
            print(error.message)
"""


@pytest.mark.preloaded("tensorflow")
@pytest.mark.subprocess
@pytest.mark.usefixtures("tf", "compiled")
def test_a_tensor_of_a_dtype_that_no_kernel_takes_is_refused_by_number(run_python: Any) -> None:
    text = run_python(TEXTS).check()
    assert "tf_test::twice: kernels cannot take TensorFlow's dtype number 7" in text

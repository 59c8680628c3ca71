"""Operations: inputs, attributes and their checks; create_op, register_op; the first session."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core import opdef
from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.notation import Declaration, parse, write
from dlbridge.graph.core.opdef import OpDef
from dlbridge.proto import messages


@pytest.fixture
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


# ---- the first session -------------------------------------------------------------------------


def test_the_classic_first_session(run_python) -> None:
    """As every introduction to TensorFlow 1.x has it, in a process of its own."""
    code = """
        import dlbridge.graph as tf
        a = tf.constant(3.0, dtype=tf.float32)
        b = tf.constant(4.0)
        total = a + b
        print(a); print(b); print(total)
        with tf.Session() as session:
            value = session.run(total)
        print(value, type(value))
    """
    assert run_python(code).check().splitlines() == [
        'Tensor("Const:0", shape=(), dtype=float32)',
        'Tensor("Const_1:0", shape=(), dtype=float32)',
        'Tensor("add:0", shape=(), dtype=float32)',
        "7.0 <class 'numpy.float32'>",
    ]


def test_building_a_graph_needs_neither_protobuf_nor_a_framework(run_python) -> None:
    """They are imported when a message is asked for, or a node runs there."""
    code = """
        import sys
        import dlbridge.graph as tf
        x = tf.placeholder(tf.float32, [None, 3])
        with tf.device("/gpu:0"), tf.name_scope("s"), tf.control_dependencies([x]):
            y = tf.identity(x + [1.0, 2.0, 3.0])
        heavy = {"google", "tensorflow", "torch", "jax", "array_api_compat"}
        print(*sorted(heavy & set(sys.modules)))
    """
    assert run_python(code).check().strip() == ""


# ---- inputs ------------------------------------------------------------------------------------


def refused(kind: type[Exception], text: str, *args: Any, **keywords: Any) -> None:
    with pytest.raises(kind, match=text):
        apply(*args, **keywords)


def test_dtypes_of_inputs_must_agree(graph) -> None:
    a, b = tf.constant(1.0), tf.constant(1)
    text = "Input 'y' of 'AddV2' Op has type int32 that does not match type float32 of argument 'x'"
    refused(TypeError, text, "AddV2", (a, b))
    refused(TypeError, text, "AddV2", (a, b))  # also on the way of inputs seen before


def test_dtypes_of_inputs_must_be_allowed(graph) -> None:
    x = tf.constant(True)
    text = "parameter 'x' of 'AddV2' Op has DataType bool not in list of allowed values: bfloat16"
    refused(TypeError, text, "AddV2", (x, x))


def test_dtypes_that_an_op_type_fixes_are_required(graph) -> None:
    text = "Input 'x' of 'LogicalNot' Op has type float32 that does not match expected type of bool"
    refused(TypeError, text, "LogicalNot", (tf.constant(1.0),))


def test_operands_take_the_dtype_of_tensors_beside_them(graph) -> None:
    x = tf.constant([1.0], tf.float64)
    assert apply("AddV2", (1, x)).inputs[0].dtype is tf.float64
    refused(TypeError, "input 'y' of 'AddV2' Op: Expected float64, but got 'a'", "AddV2", (x, "a"))


def test_lists_must_be_lists_of_one_dtype(graph) -> None:
    a, b = tf.constant(1.0), tf.constant(1)
    refused(TypeError, r"types \[float32, int32\] that don't all match", "Pack", ([a, b],))
    refused(TypeError, "Expected list for 'values' argument to 'Pack' Op", "Pack", (a,))
    refused(
        ValueError, "'N' of 'Pack' Op passed 0 less than minimum 1", "Pack", ([],), {"T": "int8"}
    )
    refused(ValueError, "has 2 tensors, but N is 3", "Pack", ([a, a],), {"N": 3})


def test_inputs_are_counted(graph) -> None:
    refused(TypeError, r"takes 2 inputs \(x, y\), got 1", "AddV2", (tf.constant(1.0),))


def test_tensors_of_two_graphs_are_told_apart(graph) -> None:
    x = tf.constant(1.0)
    with tf.Graph().as_default():
        refused(ValueError, "must be from the same graph as", "AddV2", (x, tf.constant(1.0)))
        refused(ValueError, "must be from the same graph as", "Pack", ([x, tf.constant(1.0)],))


def test_unknown_op_types_are_not_found(graph) -> None:
    refused(tf.errors.NotFoundError, "Op type not registered 'Nonsense'", "Nonsense")


# ---- attributes --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("attrs", "kind", "text"),
    [
        ({}, ValueError, "Placeholder Op is missing attr 'dtype'"),
        ({"dtype": "float32", "zzz": 1}, ValueError, "has no attr 'zzz'; it has dtype, shape"),
        ({"dtype": "nonsense"}, TypeError, "Expected type for attr 'dtype' .* got 'nonsense'"),
        ({"dtype": "float32", "shape": "a"}, TypeError, "Expected shape for attr 'shape'"),
        ({"dtype": "float32", "shape": [-1]}, TypeError, "Expected shape for attr 'shape'"),
    ],
    ids=lambda x: str(x)[:30],
)
def test_attributes_are_checked(graph, attrs: Any, kind: type[Exception], text: str) -> None:
    refused(kind, text, "Placeholder", (), attrs)


def test_attributes_of_any_kind_are_read_or_refused(graph) -> None:
    """One op type that has them all; each is given right, then wrong."""
    tf.register_op(
        'AllKinds(*, i: int >= 2, f: float, b: bool, s: {"a", "b"}, t: {float32, int8}, '
        "h: shape, v: tensor, g: func, li: list(int) >= 1, ls: list(string), lt: list({int8}))"
    )  # fmt: skip
    right = {
        "i": np.int64(2), "f": 1, "b": np.True_, "s": "a", "t": np.float32, "h": (None, 2),
        "v": np.ones(2), "g": "name", "li": (1, 2), "ls": ["x", b"y"], "lt": ["int8"],
    }  # fmt: skip
    attrs = graph.create_op("AllKinds", [], attrs=right).attrs
    assert (attrs["i"], attrs["f"], attrs["b"], attrs["s"]) == (2, 1.0, True, b"a")
    assert (attrs["t"], attrs["h"], attrs["ls"]) == (tf.float32, (None, 2), [b"x", b"y"])
    assert (attrs["g"].name, attrs["li"], attrs["lt"]) == ("name", [1, 2], [tf.int8])
    wrong = {
        "i": (1, 1.5, "1"), "f": ("1", None), "b": (1, "true"), "s": ("c", 1), "t": ("int32", 2.5),
        "h": (3.5, [-2]), "g": (1,), "li": ([], 1, [1.5]), "ls": ("a", [1]), "lt": (["int32"],),
    }  # fmt: skip
    for name, values in wrong.items():
        for value in values:
            with pytest.raises((TypeError, ValueError), match=f"{name!r}|parameter"):
                graph.create_op("AllKinds", [], attrs={**right, name: value})


def test_attributes_with_an_underscore_are_free(graph) -> None:
    op = graph.create_op("NoOp", [], attrs={"_mine": b"x"})
    assert op.get_attr("_mine") == b"x"


# ---- create_op ---------------------------------------------------------------------------------


def test_create_op_takes_inputs_in_one_row(graph) -> None:
    a, b = tf.constant([1.0]), tf.constant([2.0])
    assert graph.create_op("Pack", [a, b]).outputs[0].shape == (2, 1)
    assert graph.create_op("AddV2", [a, b], [tf.float32], name="sum").name == "sum"
    number = messages.AttrValue(i=1)
    assert graph.create_op("Pack", [a, b], attrs={"axis": number}).outputs[0].shape == (1, 2)
    assert graph.create_op("ConcatV2", [a, b, tf.constant(0)]).outputs[0].shape == (2,)


@pytest.mark.parametrize(
    ("op_type", "count", "keywords", "kind", "text"),
    [
        ("AddV2", 1, {}, ValueError, "'AddV2' Op takes 2 inputs, got 1"),
        ("AddV2", 3, {}, ValueError, "'AddV2' Op takes 2 inputs, got 3"),
        ("AddV2", 2, {"dtypes": ["int32"]}, TypeError, "dtypes of 'AddV2' Op must be"),
        ("AddV2", 2, {"input_types": ["int32"]}, TypeError, "input_types of 'AddV2' Op"),
        ("AddV2", 2, {"attrs": {"T": "int32"}}, TypeError, "match type int32"),
        ("Pack", 2, {"attrs": {"N": 3}}, ValueError, "takes 3 inputs, got 2"),
    ],
)  # fmt: skip
def test_create_op_checks(
    graph, op_type: str, count: int, keywords: Any, kind: type[Exception], text: str
) -> None:
    with pytest.raises(kind, match=text):
        graph.create_op(op_type, [tf.constant(1.0)] * count, **keywords)


# ---- register_op -------------------------------------------------------------------------------


def test_registered_ops_run_in_every_framework(graph, framework) -> None:
    tf.register_op(
        "Blend(x: T, y: T, *, share: float = 0.5, T: {float32}) -> z: T",
        shape=lambda c: [c.dims(0)],
        kernel=lambda node, context: lambda x, y: x * node.attrs["share"] + y,
    )
    x = tf.placeholder(tf.float32, [None, 2])
    z = graph.create_op("Blend", [x, x], attrs={"share": 2.0}).outputs[0]
    assert str(z.shape) == "(?, 2)"
    for name in ("numpy", "torch", "jax"):
        framework(name)
        with tf.Session(framework=name) as session:
            assert session.run(z, {x: [[1, 2]]}).tolist() == [[3, 6]]
    with pytest.raises(ArgumentError, match="'Blend' is defined already"):
        tf.register_op("Blend()")


def test_an_op_def_is_a_message(graph) -> None:
    op = tf.constant(1.0).op
    assert [each.name for each in op.op_def.attr] == ["value", "dtype"]
    assert op.op_def.output_arg[0].type_attr == "dtype"
    assert op.op_def is tf.constant(2.0).op.op_def
    assert op.node_def.op == "Const"
    assert 'op: "Const"' in str(op)


def test_a_declaration_says_what_an_op_def_holds() -> None:
    declared = parse(
        'X(a: ref T, b: N * float32, c: list(Tin), *, N: int >= 2, k: {"p", "q"} = "q", '
        "s: shape = <unknown>, l: list(int) = [1, 2], T: {int8, half}) -> (d: T, e: list(Tin))",
    )  # fmt: skip
    found = OpDef(*declared, lambda c: [])
    assert [each.is_list for each in found.inputs] == [False, True, True]
    assert found.attributes["N"].minimum == 2
    assert found.attributes["k"].allowed == (b"p", b"q")
    assert found.defaults["l"] == [1, 2]
    assert found.inputs[0].is_ref
    assert found.attributes["Tin"].kind == "list(type)"


# Each after "Bad(", with what the refusal says.
NO_DECLARATIONS = {
    "x: T, *, b: bool = fals) -> y: T": "expected true or false, got 'fals'",
    "*, n: int >= one)": "expected an integer, got 'one'",
    "*, n: int = two)": "expected an integer, got 'two'",
    "*, n: int = 1.5)": "expected an integer, got '1.5'",
    f"*, n: int = {2**63})": "this integer does not fit 64 bits",
    f"*, n: int = {'9' * 9_999})": "this integer does not fit 64 bits",
    "*, n: int >= 2 = 1)": "the default is below the minimum of 2",
    "*, n: list(int) >= 2 = [1])": "the default is below the minimum of 2",
    "*, f: float = 1,0)": "expected the name of an attribute, or ')', got '0'",
    "*, f: float = 1e39)": "this number does not fit 32 bits; infinity is inf",
    "*, f: float >= 1)": "a minimum is for int and lists, this is float",
    "*, s: string = word)": "expected a string in double quotes, got 'word'",
    '*, s: string = "open)': "expected a string in double quotes, got '\"'",
    '*, s: string = "\ud800")': "half of a surrogate pair is no Unicode text",
    '*, s: {"a", "b"} = "c")': "the default is not one of the values allowed",
    '*, s: {"a", float32})': "expected a string in double quotes, got 'float32'",
    "*, T: {})": "a set without members",
    "*, T: {float32, nope})": "'nope' is not a dtype",
    "*, T: {float32_ref})": "a reference is declared as 'ref float32'",
    "*, T: {float32": "',' or '}', got the end",
    "*, T: typ)": "'typ' is not a kind of attribute",
    "*, T: )": "expected a kind: int, float",
    "*, l: list(int) = 1)": "expected '[' after '=', as the default of a list, got '1'",
    "*, l: list(list(int)))": "'list' is not a kind of attribute",
    "*, s: shape = [-2])": "a dimension is from 0, or -1 where it is unknown",
    f"*, s: shape = [{'1, ' * 255}])": "a shape has at most 254 dimensions, got 255",
    "*, t: tensor = 1)": "the notation has no values of kind tensor",
    "*, f: func = g)": "the notation has no values of kind func",
    "*, T: type, T: type)": "the name 'T' is given twice",
    "x: T, x: T) -> y: T": "the name 'x' is given twice",
    "x: T) -> x: T": "the name 'x' is given twice",
    "x: T, *, x: int) -> y: T": "the name 'x' is given twice",
    "x: T, *, T: int) -> y: T": "'T' must be of kind type here, and is int",
    "x: N * T, *, N: type)": "'N' must be of kind int here, and is type",
    "x: list(T), *, T: type)": "'T' must be of kind list(type) here, and is type",
    "X: T, y: X)": "'X' is an input or result, not an attribute",
    "x: float99)": "'float99' is neither a dtype nor an attribute declared here",
    "x T)": "expected ':' after 'x', got 'T'",
    "x: )": "expected a type",
    "x: T y: T)": "expected ',' or ')', got 'y'",
    "x: \x1b[31m)": r"got '\x1b'",
    "x: T, *, *, T: type)": "expected the name of an attribute, or ')', got '*'",
    "x: T": "expected ',' or ')', got the end",
    "x: T -> y: T": "expected ',' or ')', got '->'",
    "x: T) => y: T": "expected '->' or the end, got '='",
    "x: T) y: T": "expected '->' or the end, got 'y'",
    "x: T) -> y: T)": "expected the end, got ')'",
    "x: T) ->": "expected the name of an input or result",
    "": "expected the name of an input or result, '*' or ')', got the end",
}


@pytest.mark.parametrize("rest", NO_DECLARATIONS)
def test_a_mistake_in_a_declaration_is_refused_at_its_place(rest: str) -> None:
    known = opdef.names()
    with pytest.raises(ArgumentError) as caught:
        tf.register_op(f"Bad({rest}")
    why, line, mark = str(caught.value).split("\n")
    assert why.startswith("register_op: ")
    assert NO_DECLARATIONS[rest] in why
    assert line.strip()
    assert mark.strip() == "^"
    assert opdef.names() == known


@pytest.mark.parametrize("text", ["", "Bad", "bad op()", "Bad>()", "1()", "Bad\x1b[31m()", "Öl()"])
def test_a_declaration_begins_with_a_name_and_a_parenthesis(text: str) -> None:
    with pytest.raises(ArgumentError, match=r"^register_op: expected "):
        tf.register_op(text)


def test_register_op_checks_its_arguments_before_it_registers() -> None:
    for arguments in ({"shape": 3}, {"kernel": "times"}):
        with pytest.raises(UnsupportedTypeError, match=r"^register_op: (shape|kernel) must be a f"):
            tf.register_op("Half(x: T, *, T: {float32}) -> y: T", **arguments)
    with pytest.raises(UnsupportedTypeError, match="the declaration must be text, got NoneType"):
        tf.register_op(None)
    assert "Half" not in opdef.names()


def test_a_declaration_has_values_of_every_kind() -> None:
    declared = parse(
        "Ns>Op(\n  x: T,\n  *,\n  a: int = -3, b: float = -1.5e2, c: float = inf, "
        'd: bool = true, e: string = "a, (b", f: type = half, '
        "g: shape = [2, -1], h: list(shape) = [<unknown>, []], "
        "i: list(bool) = [true, false], j: list({int8, int16}) >= 1 = [int16], k: shape = []\n)"
    )
    assert declared.name == "Ns>Op"
    values = {name: each.default for name, each in declared.attributes.items()}
    assert [values[name] for name in "abcdef"] == [
        -3, -150.0, float("inf"), True, b"a, (b", tf.float16
    ]  # fmt: skip
    assert [values[name] for name in "ghijk"] == [
        tf.TensorShape([2, None]), [tf.TensorShape(None), tf.TensorShape([])], [True, False],
        [tf.int16], tf.TensorShape([]),
    ]  # fmt: skip


def test_every_declaration_is_written_as_it_is_read() -> None:
    """The reference shows them, and `str` of what `register_op` returns."""
    declared = [
        parse("Ns>Op(x: ref N * T, y: list(Tin), *, a: float = -1.5e2, b: float = inf, c: bool = "
              "false, d: list({int8, half}) >= 1 = [half], g: shape = [2, -1], h: list(shape) = "
              '[<unknown>, []], k: {"p", "q"} = "q", N: int >= 2)'),
        *(Declaration(x.name, x.inputs, x.outputs, x.attributes) for x in
          map(opdef.op_def, opdef.names())),
    ]  # fmt: skip
    for each in declared:
        found = parse(write(each))
        assert repr(found) == repr(each)
    assert str(opdef.op_def("Cos")) == (
        "Cos(x: T, *, T: {bfloat16, float16, float32, float64, complex64, complex128}) -> y: T"
    )


# ---- DLPack ------------------------------------------------------------------------------------


def test_a_symbolic_tensor_is_evaluated_for_a_consumer(graph, framework) -> None:
    torch = framework("torch")
    y = tf.constant([1.0, 2.0]) + 1.0
    with tf.Session():
        assert np.from_dlpack(y).tolist() == [2, 3]
        assert y.__dlpack_device__() == (1, 0)
        assert torch.from_dlpack(y).tolist() == [2, 3]


def test_a_consumer_runs_the_graph_once(graph) -> None:
    calls = []
    y = tf.py_func(lambda: calls.append(1) or np.ones(2, np.float32), [], tf.float32)
    with tf.Session():
        np.from_dlpack(y)
    assert len(calls) == 1


def test_without_a_session_a_symbolic_tensor_refuses_to_be_exported(graph) -> None:
    """A BufferError: consumers try again, in other ways, after a TypeError."""
    y = tf.constant(1.0)
    with pytest.raises(BufferError, match="in the default session, and there is none") as caught:
        np.from_dlpack(y)
    assert caught.value.reason == "lazy"
    with tf.Session(graph=tf.Graph()), pytest.raises(BufferError, match="runs another graph"):
        np.from_dlpack(y)


def test_arrays_and_tensors_add_up_either_way(graph) -> None:
    """ndarray + tensor must ask the tensor, not turn it into an array of objects."""
    x = tf.placeholder(tf.float32, [3])
    assert (np.ones(3, np.float32) + x).op.type == "AddV2"
    assert (x + np.ones(3, np.float32)).shape == (3,)
    with pytest.raises(NotImplementedError, match="Cannot convert the symbolic Tensor"):
        np.array(x)


def test_operations_and_tensors_take_little_memory(graph) -> None:
    op = tf.constant(1.0).op
    assert not hasattr(op, "__dict__")
    assert not hasattr(op.outputs[0], "__dict__")
    assert sys.getsizeof(op) < 200


def test_data_inputs_are_written_without_index_0_and_control_inputs_last(graph) -> None:
    first, second = tf.split(tf.constant([1.0, 2.0]), 2, name="b")
    with tf.control_dependencies([tf.no_op(name="ctrl")]):
        found = [list(tf.identity(each).op.node_def.input) for each in (first, second)]
    assert found == [["b", "^ctrl"], ["b:1", "^ctrl"]]


def test_attributes_are_floats_of_32_bits(graph) -> None:
    """A GraphDef holds no more: a graph must compute the same before and after its export."""
    x = tf.constant([-1.0], tf.float64)
    for slope in (tf.nn.leaky_relu(x), tf.nn.leaky_relu(x, 0.3)):
        alpha = slope.op.get_attr("alpha")
        assert alpha == float(np.float32(alpha))
    assert np.float32(0.2) == apply("LeakyRelu", [x], {}, None).get_attr("alpha")

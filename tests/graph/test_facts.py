"""Rules of graphs that no other file asks for, one by one; TensorFlow's answers are written down.

Section numbers are those of what was measured of TensorFlow 1.15 and 2.21.
"""

from __future__ import annotations

import builtins
import copy
import pickle
import types
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.execution.errors import InvalidArgumentError


@pytest.fixture(autouse=True)
def graph():
    with tf.Graph().as_default() as graph:
        yield graph


def controls(*ops: Any) -> list[list[str]]:
    return [[each.name for each in op.control_inputs] for op in ops]


def exported(*build: Callable[[], Any]) -> Any:
    with tf.Graph().as_default() as graph:
        for each in build:
            each()
    return graph.as_graph_def()


# ---- 1.1 and 1.2: names, tensors, operations ---------------------------------------------------

OPERATORS: list[tuple[str, str, Callable[[Any], Any]]] = [
    ("add", "AddV2", lambda x: x + x),
    ("sub", "Sub", lambda x: x - x),
    ("mul", "Mul", lambda x: x * x),
    ("truediv", "RealDiv", lambda x: x / x),
    ("floordiv", "FloorDiv", lambda x: x // x),
    ("mod", "FloorMod", lambda x: x % x),
    ("pow", "Pow", lambda x: x**x),
    ("and", "LogicalAnd", lambda x: (x < x) & (x < x)),
    ("or", "LogicalOr", lambda x: (x < x) | (x < x)),
    ("matmul", "MatMul", lambda x: x @ x),
    ("strided_slice", "StridedSlice", lambda x: x[0]),
    ("Neg", "Neg", lambda x: -x),
    ("Abs", "Abs", abs),
    ("Less", "Less", lambda x: x < x),
]


@pytest.mark.parametrize(
    ("name", "kind", "of"), OPERATORS, ids=lambda x: x if isinstance(x, str) else ""
)
def test_an_operator_gives_its_operation_this_name(name: str, kind: str, of: Any) -> None:
    result = of(tf.constant([[1.0]]))
    assert (result.op.name, result.op.type) == (name, kind)


def test_data_inputs_are_written_without_index_0_and_control_inputs_last() -> None:
    first, second = tf.split(tf.constant([1.0, 2.0]), 2, name="b")
    with tf.control_dependencies([tf.no_op(name="ctrl")]):
        found = [list(tf.identity(each).op.node_def.input) for each in (first, second)]
    assert found == [["b", "^ctrl"], ["b:1", "^ctrl"]]


def test_none_in_a_list_is_named() -> None:
    """The 1 before it is right, and not what to look for."""
    with pytest.raises(TypeError, match="None values not supported"):
        tf.constant([1, None])


@pytest.mark.parametrize("how", [copy.deepcopy, pickle.dumps], ids=["deepcopy", "pickle"])
@pytest.mark.parametrize("what", ["graph", "op", "tensor", "session"])
def test_graphs_and_what_is_in_them_have_no_copies(graph: Any, what: str, how: Any) -> None:
    """A copy of a graph would share its lists; that of a tensor would be of no graph."""
    x = tf.constant(1.0)
    with tf.Session() as session:
        thing = {"graph": graph, "op": x.op, "tensor": x, "session": session}[what]
        with pytest.raises(TypeError, match="load_graph"):
            how(thing)


def test_a_shallow_copy_is_refused_of_a_graph_and_the_same_of_a_tensor(graph: Any) -> None:
    x = tf.constant(1.0)
    assert copy.copy(x) is x
    assert copy.copy(x.op) is x.op
    with pytest.raises(TypeError, match="load_graph"):
        copy.copy(graph)
    with tf.Session() as session, pytest.raises(TypeError, match="load_graph"):
        copy.copy(session)


def test_importing_all_names_hides_no_builtin_and_no_module() -> None:
    names: dict[str, Any] = {}
    exec("from dlbridge.graph import *", names)
    del names["__builtins__"]
    assert not [name for name in names if hasattr(builtins, name)]
    assert not [name for name, value in names.items() if isinstance(value, types.ModuleType)]
    assert {"constant", "Session", "reduce_sum", "float32", "Graph", "Variable"} <= names.keys()


# ---- 1.4 and 1.5: control dependencies, devices ------------------------------------------------


def test_control_dependencies_take_what_stands_for_operations() -> None:
    a, b, i, d = (tf.constant(1.0, name=name) for name in "abid")
    v = tf.Variable(1.0, name="v")
    slices = tf.IndexedSlices(a, i, d)
    with tf.control_dependencies([b.op, "d", v, slices]):
        done = tf.no_op()
    assert controls(done)[0][:2] == ["b", "d"]
    assert controls(done)[0][2].startswith("v")
    assert len(controls(done)[0]) == 4


def test_nothing_is_created_in_a_finalized_graph_within_control_dependencies(graph: Any) -> None:
    x = tf.constant(1.0)
    graph.finalize()
    with (
        tf.control_dependencies([x]),
        pytest.raises(RuntimeError, match="Graph is finalized and cannot be modified"),
    ):
        tf.no_op()


def test_what_was_imported_in_a_block_waits_already() -> None:
    written = exported(lambda: tf.identity(tf.constant(1.0), name="i"))
    with tf.control_dependencies([tf.no_op(name="a")]):
        (found,) = tf.import_graph_def(written, name="", return_elements=["i:0"])
        after = tf.identity(found)
    assert controls(found.op, after.op) == [["a"], []]


def test_imports_are_placed_with_what_the_block_says() -> None:
    def build() -> None:
        with tf.device("/cpu:0"):
            x = tf.constant(1.0, name="x")
        with tf.colocate_with(x):
            tf.constant(2.0, name="y")
        tf.constant(3.0, name="z")

    written = exported(build)
    with tf.device("/gpu:2"):
        base = tf.constant(1.0, name="base")
    with tf.colocate_with(base), tf.device("/job:w"):
        found = tf.import_graph_def(written, return_elements=["x", "y", "z"])
    assert {op.device for op in found} == {"/device:GPU:2"}
    assert [op.colocation_groups() for op in found] == [[b"loc:@base"]] * 3


def test_imports_are_placed_with_operations_that_have_no_device() -> None:
    written = exported(lambda: tf.constant(3.0, name="z"))
    base = tf.constant(1.0, name="base")
    with tf.device("/job:w"), tf.colocate_with(base):
        (found,) = tf.import_graph_def(written, return_elements=["z"])
    assert (found.device, found.get_attr("_class")) == ("", [b"loc:@base"])


def test_a_missing_device_harms_only_what_needs_it() -> None:
    """In TensorFlow every run of the session fails."""
    with tf.device("/gpu:7"):
        far = tf.constant(1.0, name="far")
    near = tf.constant(2.0)
    with tf.Session() as session:
        assert session.run(near) == 2.0
        with pytest.raises(InvalidArgumentError, match="Cannot assign a device for operation far"):
            session.run(far)
        assert session.run(near) == 2.0


# ---- 1.10: static shapes -----------------------------------------------------------------------


def test_errors_of_shapes_list_them_as_tensorflow_does() -> None:
    x, y = (tf.placeholder(tf.float32, [2, extent]) for extent in (3, 2))
    with pytest.raises(ValueError, match="Dimensions must be equal, but are 3 and 2 for") as error:
        x + y
    assert str(error.value).endswith(" with input shapes: [2,3], [2,2].")


def test_set_shape_does_not_touch_the_attribute() -> None:
    x = tf.placeholder(tf.float32, [None, 3])
    before = tf.identity(x)
    x.set_shape([2, None])
    assert (x.shape, before.shape) == ([2, 3], [None, 3])
    assert x.op.get_attr("shape").dim[0].size == -1


def test_known_extents_beyond_int32_are_refused_where_they_are_asked_for() -> None:
    x = tf.placeholder(tf.float32, [2**40, 2])
    for of in (tf.shape, tf.size):
        with pytest.raises(ValueError, match="do not fit int32"):
            of(x)
        assert of(x, out_type=tf.int64).dtype == tf.int64


SCALARS: dict[str, Callable[[Any], Any]] = {
    "ArgMax": lambda wrong: ((tf.zeros([2, 3]), wrong), {}),
    "Bincount": lambda wrong: ((tf.constant([1]), wrong, tf.constant([1.0])), {}),
    "Concat": lambda wrong: ((wrong, [tf.zeros([2]), tf.zeros([2])]), {}),
    "ConcatV2": lambda wrong: (([tf.zeros([2]), tf.zeros([2])], wrong), {}),
    "LinSpace": lambda wrong: ((0.0, 1.0, wrong), {}),
    "Multinomial": lambda wrong: ((tf.zeros([2, 2]), wrong), {}),
    "TopKV2": lambda wrong: ((tf.zeros([2, 2]), wrong), {}),
    "UnsortedSegmentSum": lambda wrong: ((tf.zeros([2]), tf.constant([0, 1]), wrong), {}),
}


@pytest.mark.parametrize("value", [[1], [1, 2], np.zeros((1, 0), np.int32)], ids=["1", "2", "0"])
@pytest.mark.parametrize("name", SCALARS)
def test_a_vector_where_a_number_is_needed_is_an_error_of_shapes(name: str, value: Any) -> None:
    """Found by random graphs: such a constant ended in an error of NumPy's."""
    from dlbridge.graph.core.default_graph import apply

    inputs, attrs = SCALARS[name](tf.constant(value, tf.int32))
    with pytest.raises(ValueError, match="Shape must be rank 0 but is rank"):
        apply(name, inputs, attrs, None)


def test_a_shape_is_a_vector() -> None:
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 2"):
        tf.fill([[1]], 1.0)
    with pytest.raises(ValueError, match="Shape must be rank 1 but is rank 0"):
        tf.placeholder(tf.float32, [1, 4, 4, 1]).graph.create_op(
            "MaxPoolV2",
            [tf.zeros([1, 4, 4, 1]), tf.constant([1, 2, 2, 1]), tf.constant(1)],
            attrs={"padding": b"SAME"},
        )


BOMBS: dict[str, Callable[[], Any]] = {
    "transpose": lambda: tf.transpose(unknown(), many()),
    "pad": lambda: tf.pad(unknown(), many(2)),
    "slice": lambda: tf.slice(unknown(), many(), many()),
    "unstack": lambda: tf.unstack(many()),
    "ranks": lambda: tf.expand_dims(tf.placeholder(tf.float32, [1] * 254), 0),
    "dims": lambda: tf.fill([1] * 300, 1.0),
    "extents": lambda: tf.concat([tf.placeholder(tf.float32, [2**62])] * 2, 0),
    "elements": lambda: tf.placeholder(tf.float32, [2**40, 2**40]),
    "tiles": lambda: tf.tile(tf.placeholder(tf.float32, [2**62]), [4]),
}


def unknown() -> Any:
    return tf.placeholder(tf.float32)


def many(*more: int) -> Any:
    return tf.placeholder(tf.int32, [2**33, *more])


@pytest.mark.parametrize("name", BOMBS)
def test_a_result_that_no_tensor_can_be_is_refused_where_it_is_made(name: str) -> None:
    """Not when somebody looks at its shape, nor by 64 GiB of unknown extents."""
    with pytest.raises(ValueError, match=r"at most are|2\*\*63 - 1"):
        BOMBS[name]()


def test_integers_of_any_size_are_numbers_or_an_error() -> None:
    assert tf.constant(2**80, tf.float32).dtype == tf.float32
    for value, dtype in (
        (2**80, tf.int64),
        ([2**80, 1], tf.int32),
        (2**80, None),
        (1 << 2000, tf.float64),
    ):
        with pytest.raises((ValueError, TypeError), match="bits does not fit"):
            tf.constant(value, dtype)


# ---- 1.11: imports -----------------------------------------------------------------------------

RETURNS = {
    "zz": "Requested return node 'zz' not found in graph def",
    "zz:0": "Requested return tensor 'zz:0' not found in graph def",
    "a:1": r"Invalid return output 1 of node 'a', which has 1 output\(s\)",
}


@pytest.mark.parametrize("name", RETURNS)
def test_what_is_not_there_cannot_be_returned(name: str) -> None:
    written = exported(lambda: tf.placeholder(tf.float32, name="a"))
    with pytest.raises(ValueError, match=RETURNS[name]):
        tf.import_graph_def(written, return_elements=[name])


def test_what_was_mapped_is_returned_in_place_of_the_node() -> None:
    written = exported(lambda: tf.identity(tf.placeholder(tf.float32, name="a")))
    x = tf.constant(1.0)
    assert tf.import_graph_def(written, {"a": x}, ["a:0"]) == [x]

"""Partitioned variables: the same programs here and in TensorFlow."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours

WHOLE = np.arange(10, dtype="float32").reshape(5, 2)


@pytest.fixture(scope="module")
def tf1(framework) -> Any:
    tensorflow = framework("tensorflow")
    return tensorflow.compat.v1


def run(tf: Any, program: Callable[[Any, Any], Any]) -> Any:
    """Return what a program gives in a graph and session of its own, or the class of its error."""
    with tf.Graph().as_default(), tf.Session() as session:
        tf.get_variable_scope().set_use_resource(True)
        try:
            return program(tf, session)
        except (TypeError, ValueError) as error:
            return next(kind for kind in (TypeError, ValueError) if isinstance(error, kind))


def made(tf: Any, count: int = 2, shape: Any = (5, 2), axis: int = 0, **kwargs: Any) -> Any:
    kwargs.setdefault("initializer", tf.zeros_initializer())
    kwargs.setdefault("partitioner", tf.fixed_size_partitioner(count, axis))
    return tf.get_variable("w", shape, **kwargs)


def filled(tf: Any, session: Any, **kwargs: Any) -> Any:
    """Return an initialized variable with the numbers of WHOLE."""
    variable = made(tf, initializer=WHOLE, **kwargs)
    session.run(tf.global_variables_initializer())
    return variable


def described(variable: Any) -> Any:
    """Return names, dtype, shapes, and where each partition lies."""
    if not hasattr(variable, "__len__"):
        return variable.name
    places = [each._get_save_slice_info() for each in variable]
    return (
        variable.name, variable.dtype.name, variable.shape.as_list(), len(variable),
        [(each.name, each.shape.as_list()) for each in variable],
        [(at.full_name, at.full_shape, at.var_offset, at.var_shape) for at in places],
    )  # fmt: skip


def operations(tf: Any) -> Any:
    return [
        (op.type, op.name, [each.name for each in (*op.inputs, *op.control_inputs)])
        for op in tf.get_default_graph().get_operations()
    ]


# ---- making them -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "count", "axis"),
    [
        ((5,), 2, 0), ((5,), 5, 0), ((5,), 9, 0), ((7, 3), 3, 0), ((4, 4), 2, 1), ((4, 4), 2, -1),
        ((4, 4), 1, 0), ((), 2, 0), ((0, 2), 2, 0),
    ],
)  # fmt: skip
def test_partitions_are_tensorflows(shape: Any, count: int, axis: int, tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        variable = made(tf, count, shape, axis)
        return described(variable), operations(tf)

    assert run(ours, program) == run(tf1, program)


INITIALIZERS: dict[str, Callable[[Any], Any]] = {
    "none": lambda tf: {"initializer": None},
    "none of integers": lambda tf: {"initializer": None, "dtype": tf.int32},
    "zeros, the class": lambda tf: {"initializer": tf.zeros_initializer},
    "glorot, of the whole shape": lambda tf: {"initializer": tf.glorot_uniform_initializer()},
    "a list": lambda tf: {"initializer": WHOLE.tolist()},
    "integers for floats": lambda tf: {"initializer": WHOLE.astype(int).tolist()},
    "a tensor": lambda tf: {"initializer": tf.constant(WHOLE)},
    "a tensor, which has a shape": lambda tf: {"initializer": tf.constant(WHOLE), "shape": None},
    "a tensor of integers": lambda tf: {"initializer": tf.constant(WHOLE.astype(int))},
    "a tensor of another shape": lambda tf: {"initializer": tf.constant(WHOLE), "shape": [4, 2]},
    "a list, and no shape": lambda tf: {"initializer": [1.0, 2.0], "shape": None},
    "a function without arguments": lambda tf: {"initializer": lambda: [1.0], "shape": None},
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_initializers_make_the_operations_of_tensorflow(name: str, tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        variable = made(tf, **INITIALIZERS[name](tf))
        limits = [op.outputs[0] for op in tf.get_default_graph().get_operations()
                  if op.name.endswith(("/min", "/max"))]  # fmt: skip
        session.run(tf.global_variables_initializer())
        values = session.run(list(variable)) if not limits else session.run(limits)
        found = [each.tolist() for each in values]
        return described(variable), operations(tf), found

    assert run(ours, program) == run(tf1, program)


class Places:
    """An initializer that notes where each partition lies."""

    def __init__(self, tf: Any) -> None:
        self.tf = tf
        self.found: list[Any] = []

    def __call__(self, shape: Any, dtype: Any, partition_info: Any) -> Any:
        at = partition_info and (partition_info.full_shape, partition_info.var_offset)
        self.found.append((list(shape), dtype.name, at))
        return self.tf.zeros(shape, dtype)


def test_an_initializer_learns_where_its_partition_lies(tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        noted = Places(tf)
        made(tf, 3, initializer=noted)
        tf.get_variable("single", [2], initializer=noted)
        return noted.found

    found = run(ours, program)
    assert found == run(tf1, program)
    assert found[1:] == [
        ([2, 2], "float32", ([5, 2], [2, 0])),
        ([1, 2], "float32", ([5, 2], [4, 0])),
        ([2], "float32", None),
    ]


def test_an_initializer_without_that_parameter_is_called_without_it(tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        given: list[Any] = []

        def ones(shape: Any, **kwargs: Any) -> Any:
            given.append(sorted(kwargs))
            return tf.ones(shape, kwargs["dtype"])

        made(tf, initializer=ones)
        return given

    assert run(ours, program) == run(tf1, program) == [["dtype"], ["dtype"]]


# ---- partitioners ------------------------------------------------------------------------------

SIZES = (
    ("min_max_variable_partitioner", {}),
    ("min_max_variable_partitioner", {"max_partitions": 3, "min_slice_size": 8}),
    ("min_max_variable_partitioner", {"max_partitions": 99, "min_slice_size": 8, "axis": 1}),
    ("min_max_variable_partitioner", {"max_partitions": 99, "min_slice_size": 8, "axis": -1}),
    ("min_max_variable_partitioner", {"max_partitions": 99, "bytes_per_string_element": 9999}),
    ("min_max_variable_partitioner", {"axis": 2}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 8}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 20}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 8, "max_shards": 2}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 1, "axis": 1}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 33, "bytes_per_string_element": 3}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 1e9}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 0}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 8, "bytes_per_string_element": 0}),
    ("variable_axis_size_partitioner", {"max_shard_bytes": 8, "max_shards": -1}),
    ("fixed_size_partitioner", {"num_shards": 4}),
)


@pytest.mark.parametrize(("name", "kwargs"), SIZES)
@pytest.mark.parametrize("shape", [(5, 2), (16, 4), (None, 2)])
def test_partitioners_count_as_tensorflows(name: str, kwargs: Any, shape: Any, tf1: Any) -> None:
    if None in shape and not name.startswith("variable"):
        pytest.skip("TensorFlow fails in its own way; get_variable asks with known shapes only")

    def program(tf: Any, session: Any) -> Any:
        partitioner = getattr(tf, name)(**kwargs)
        kinds = (tf.float32, tf.int64, tf.bool, tf.string)
        return [partitioner(shape=tf.TensorShape(shape), dtype=kind) for kind in kinds]

    assert run(ours, program) == run(tf1, program)


def test_an_axis_without_elements_is_refused() -> None:
    """TensorFlow divides by zero."""
    with ours.Graph().as_default(), pytest.raises(ValueError, match="no elements"):
        made(ours, shape=[0, 2], partitioner=ours.variable_axis_size_partitioner(8))


ANSWERS: dict[str, Any] = {
    "not callable": 3,
    "a number": lambda shape, dtype: 2,
    "nothing": lambda shape, dtype: None,
    "an array": lambda shape, dtype: np.array([2, 1]),
    "a tuple": lambda shape, dtype: (2, 1),
    "too few": lambda shape, dtype: [2],
    "zero": lambda shape, dtype: [0, 1],
    "two axes": lambda shape, dtype: [2, 2],
    "floats": lambda shape, dtype: [2.0, 1],
    "more than elements": lambda shape, dtype: [7, 1],
    "other parameters": lambda one, other: [2, 1],
}


@pytest.mark.parametrize("name", ANSWERS)
@pytest.mark.parametrize("shape", [[5, 2], [None, 2], None])
def test_the_result_of_a_partitioner_is_checked(name: str, shape: Any, tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        return described(made(tf, shape=shape, partitioner=ANSWERS[name]))

    assert run(ours, program) == run(tf1, program)


# ---- scopes and reuse --------------------------------------------------------------------------


def scopes(tf: Any, session: Any) -> Any:
    two, three = tf.fixed_size_partitioner(2), tf.fixed_size_partitioner(3)
    count = partial(tf.get_variable, shape=[6])
    with tf.variable_scope("a", partitioner=two) as a:
        found = [a.partitioner is two]
        with tf.variable_scope("b") as b:
            found += [b.partitioner is two, len(count("w"))]
        with tf.variable_scope("c", partitioner=three):
            found.append(len(count("w")))
        b.set_partitioner(three)
        found.append(b.partitioner is three)
    with tf.variable_scope(a):
        found.append(len(count("w")))
    with tf.variable_scope(a, partitioner=three):
        found.append(len(count("v")))
    tf.get_variable_scope().set_partitioner(three)
    return *found, len(count("v"))


def reuse(tf: Any, session: Any) -> Any:
    with tf.variable_scope("a", partitioner=tf.fixed_size_partitioner(2)) as scope:
        first = tf.get_variable("w", [5, 2])
    with tf.variable_scope("a", reuse=True):
        again = [tf.get_variable("w", [5, 2]), tf.get_variable("w")]
        part = tf.get_variable("w/part_0", [3, 2])
    with tf.variable_scope(scope, reuse=True):
        again.append(tf.get_variable("w", [5, 2]))
    return [each is first for each in again], part is next(iter(first))


def custom_getters(tf: Any, session: Any) -> Any:
    asked = []

    def getter(getter: Any, name: str, partitioner: Any = None, **kwargs: Any) -> Any:
        asked.append((name, partitioner is not None))
        kept = partitioner if name.endswith("w") else None
        return getter(name, partitioner=kept, **kwargs)

    two = tf.fixed_size_partitioner(2)
    with tf.variable_scope("a", partitioner=two, custom_getter=getter):
        return described(tf.get_variable("w", [4])), tf.get_variable("v", [4]).name, asked


def collections(tf: Any, session: Any) -> Any:
    made(tf, regularizer=tf.reduce_sum)
    with tf.variable_scope("b"):
        made(tf, trainable=False, collections=["mine"])
        tf.get_local_variable("l", [4], partitioner=tf.fixed_size_partitioner(2))
    keys = ("mine", *(getattr(tf.GraphKeys, key) for key in KEYS))
    return [[each.name for each in tf.get_collection(key)] for key in keys]


KEYS = ("GLOBAL_VARIABLES", "TRAINABLE_VARIABLES", "LOCAL_VARIABLES", "REGULARIZATION_LOSSES")


@pytest.mark.parametrize("program", [scopes, reuse, custom_getters, collections])
def test_scopes_work_as_in_tensorflow(program: Any, tf1: Any) -> None:
    assert run(ours, program) == run(tf1, program)


def get(count: int = 0, reuse: Any = False, shape: Any = (5, 2), dtype: str = "float32") -> Any:
    """Return what gets the variable in `count` partitions; 0 is without a partitioner."""

    def getting(tf: Any) -> Any:
        mode = tf.AUTO_REUSE if reuse == "auto" else reuse
        split = tf.fixed_size_partitioner(count) if count else None
        with tf.variable_scope(tf.get_variable_scope(), reuse=mode):
            return tf.get_variable("w", shape, getattr(tf, dtype), partitioner=split)

    return getting


def parts(*extents: int) -> Any:
    """Return what makes variables that have the names of partitions."""

    def making(tf: Any) -> None:
        for i, extent in enumerate(extents):
            tf.get_variable(f"w/part_{i}", [extent, 2])

    return making


@pytest.mark.parametrize("reuse", [False, None, True, "auto"])
@pytest.mark.parametrize("first", [get(2), get(), parts(3), parts(3, 2), parts(3, 2, 1), parts()])
@pytest.mark.parametrize(
    "then",
    [{"count": 2}, {}, {"count": 3}, {"count": 2, "shape": [6, 2]}, {"shape": [6, 2]},
     {"shape": None}, {"count": 2, "dtype": "int32"}, {"dtype": "int32"}],
    ids=str,
)  # fmt: skip
def test_existing_variables_are_reused_or_refused_as_in_tensorflow(
    first: Any, then: Any, reuse: Any, tf1: Any
) -> None:
    def program(tf: Any, session: Any) -> Any:
        first(tf)
        return described(get(**then, reuse=reuse)(tf))

    assert run(ours, program) == run(tf1, program)


# ---- values ------------------------------------------------------------------------------------

USES: dict[str, Callable[[Any, Any], Any]] = {
    "as a tensor": lambda tf, v: v.as_tensor(),
    "converted": lambda tf, v: tf.convert_to_tensor(v),
    "converted, to a dtype": lambda tf, v: tf.convert_to_tensor(v, tf.float32),
    "converted, to another dtype": lambda tf, v: tf.convert_to_tensor(v, tf.float64),
    "multiplied": lambda tf, v: tf.matmul(v, tf.ones([2, 1])),
    "by an operator": lambda tf, v: v @ tf.ones([2, 1]),
    "in a list": lambda tf, v: tf.concat([v, v], 0),
    "gathered": lambda tf, v: tf.gather(v, [0, 4, 2]),
    "looked up": lambda tf, v: tf.nn.embedding_lookup(v, [0, 4, 2], "div"),
    "looked up, dealt out": lambda tf, v: tf.nn.embedding_lookup(v, [[0, 4], [2, 3]]),
    "its partitions": lambda tf, v: list(v),
    "assigned": lambda tf, v: v.assign(tf.ones([5, 2])),
    "assigned by partition": lambda tf, v: v.assign([tf.ones([3, 2]), tf.zeros([2, 2])]),
    "assigned itself": lambda tf, v: v.assign(v),
    "assigned by the function": lambda tf, v: tf.assign(v, WHOLE + 1),
    "added to": lambda tf, v: v.assign_add(WHOLE),
    "subtracted from": lambda tf, v: v.assign_sub(tf.ones([5, 2])),
    "assigned another shape": lambda tf, v: v.assign(tf.ones([4, 2])),
    "fetched": lambda tf, v: v,
    "with an operator": lambda tf, v: v + 1.0,
    "sliced": lambda tf, v: v[0],
    "a control input": lambda tf, v: tf.group(v),
}


@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("name", USES)
def test_values_are_tensorflows(name: str, count: int, tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        found = USES[name](tf, filled(tf, session, count=count))
        values = session.run(found)
        names = [each.name for each in found] if isinstance(found, list) else found.name
        return names, np.concatenate([np.ravel(each) for each in values]).tolist()

    if name == "assigned by partition" and count != 2:
        pytest.skip("it has values for two partitions")
    assert run(ours, program) == run(tf1, program)


def test_only_the_operations_of_assignments_are_returned_where_asked() -> None:
    """TensorFlow fails at that."""
    with ours.Graph().as_default(), ours.Session() as session:
        v = filled(ours, session)
        ops = v.assign_add(WHOLE, read_value=False)
        assert [each.type for each in ops] == ["AssignAddVariableOp"] * 2
        session.run(ops)
        assert session.run(v.as_tensor()).tolist() == (2 * WHOLE).tolist()


def test_a_list_needs_a_value_for_each_partition() -> None:
    with ours.Graph().as_default(), pytest.raises(ValueError, match="each of its 2 partitions"):
        made(ours).assign([1.0])


def test_control_dependencies_do_not_reach_the_reads(tf1: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        variable = made(tf)
        with tf.control_dependencies([tf.constant(1)]):
            variable.as_tensor()
        return operations(tf)

    assert run(ours, program) == run(tf1, program)


def test_a_variable_of_its_own_is_no_partition() -> None:
    with ours.Graph().as_default():
        assert ours.get_variable("w", [2])._get_save_slice_info() is None

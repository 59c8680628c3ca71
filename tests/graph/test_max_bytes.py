"""`Session(max_bytes=...)` refuses a value that is too large before it is allocated."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from measuring import peak

import dlbridge
import dlbridge.graph as tf

LIMIT = 2**20
LARGE = 2**25  # elements
FRAMEWORKS = ["numpy", "torch", "jax"]


@pytest.fixture
def place(request: pytest.FixtureRequest, framework: Any) -> str:
    """Return the name of a framework that is installed."""
    framework(request.param)
    return str(request.param)


def fed(value: Any, dtype: Any = tf.int32) -> Any:
    """Return a tensor whose value static shapes do not know."""
    return tf.placeholder_with_default(tf.constant(value, dtype), tf.constant(value).shape)


def dilated() -> Any:
    """Few elements go in and out, but SAME padding is as wide as the window."""
    image, window = tf.ones([1, 1, 1, 1]), tf.ones([2, 2, 1, 1])
    return tf.nn.conv2d(image, window, [1, 1, 1, 1], "SAME", dilations=[1, 2**13, 2**13, 1])


GROWING: dict[str, Callable[[], Any]] = {
    "Fill": lambda: tf.fill(fed([LARGE]), 1.0),
    "Tile": lambda: tf.tile(tf.ones([4]), fed([LARGE])),
    "BroadcastTo": lambda: tf.broadcast_to(tf.ones([1]), fed([LARGE])),
    "Range": lambda: tf.range(0, fed(LARGE)),
    "LinSpace": lambda: tf.linspace(0.0, 1.0, fed(LARGE)),
    "OneHot": lambda: tf.one_hot([0, 1], fed(LARGE)),
    "Pad": lambda: tf.pad(tf.ones([2]), fed([[0, LARGE]])),
    "PadV2": lambda: tf.pad(tf.ones([2]), fed([[0, LARGE]]), constant_values=2.0),
    "RandomUniform": lambda: tf.random_uniform(fed([LARGE])),
    "RandomUniformInt": lambda: tf.random_uniform(fed([LARGE]), 0, 9, tf.int32),
    "RandomStandardNormal": lambda: tf.random_normal(fed([LARGE])),
    "TruncatedNormal": lambda: tf.truncated_normal(fed([LARGE])),
    "ScatterNd": lambda: tf.scatter_nd([[0]], [1.0], fed([LARGE])),
    "AddV2": lambda: tf.reshape(tf.ones([2**13]), fed([2**13, 1])) + tf.ones([1, 2**13]),
    "MatMul": lambda: tf.matmul(
        tf.reshape(tf.ones([2**13]), fed([2**13, 1])), tf.reshape(tf.ones([2**13]), fed([1, 2**13]))
    ),
    "GatherV2": lambda: tf.gather(
        tf.ones([4, 2**13]), tf.cast(tf.range(0, fed(2**14)) * 0, tf.int32)
    ),
    "Concat": lambda: tf.concat([tf.tile(tf.ones([2**17]), fed([2]))] * 64, 0),
    "Cast": lambda: tf.cast(tf.fill(fed([LIMIT]), tf.constant(1, tf.int8)), tf.float64),
    "ResizeBilinear": lambda: tf.image.resize_bilinear(tf.ones([1, 1, 1, 1]), fed([2**13, 2**13])),
    "MatrixDiag": lambda: tf.linalg.diag(tf.tile(tf.ones([2**13]), fed([1]))),
}


def peak_refused(run: Callable[[], Any], most: int) -> int:
    """Return the most bytes that a call had at once; it is refused."""

    def refused() -> None:
        with pytest.raises(tf.errors.ResourceExhaustedError, match="max_bytes=1048576"):
            run()

    return peak(refused, most)


def refused_by_numpy(graph: tf.Graph, result: Any) -> None:
    """Run what NumPy itself must refuse: it got no memory, though tracemalloc counts it."""
    with (
        tf.Session(graph=graph, max_bytes=LIMIT) as session,
        pytest.raises(tf.errors.ResourceExhaustedError, match="on the way to its results") as found,
    ):
        session.run(result)
    assert isinstance(found.value.__cause__, MemoryError)


@pytest.mark.parametrize("place", FRAMEWORKS, indirect=True)
@pytest.mark.parametrize("name", GROWING)
def test_each_op_type_whose_result_follows_from_data_is_refused(name: str, place: str) -> None:
    with tf.Graph().as_default() as graph:
        result = GROWING[name]()
    with tf.Session(graph=graph, framework=place, max_bytes=LIMIT) as session:
        assert peak_refused(lambda: session.run(result), 8 * LIMIT) < 8 * LIMIT


def test_the_error_says_which_operation_and_how_much() -> None:
    with tf.Graph().as_default() as graph:
        tf.fill(fed([3, LARGE]), 1.0, name="wide")
    with (
        tf.Session(graph=graph, max_bytes=LIMIT) as session,
        pytest.raises(tf.errors.ResourceExhaustedError) as caught,
    ):
        session.run("wide:0")
    assert str(caught.value).startswith(
        f"wide (Fill) needs {12 * LARGE} bytes for shape [3,{LARGE}] of float32; "
        f"the session allows max_bytes={LIMIT} for one value"
    )
    assert caught.value.op.name == "wide"


@pytest.mark.parametrize("place", FRAMEWORKS, indirect=True)
def test_values_up_to_the_limit_are_computed(place: str) -> None:
    with tf.Graph().as_default() as graph:
        total = tf.reduce_sum(tf.fill(fed([LIMIT // 4]), 1.0) * tf.constant(2.0))
    with tf.Session(graph=graph, framework=place, max_bytes=LIMIT) as session:
        assert session.run(total) == LIMIT // 2


def test_temporary_memory_of_a_kernel_counts() -> None:
    with tf.Graph().as_default() as graph:
        result = dilated()
    refused_by_numpy(graph, result)


@pytest.mark.parametrize("place", FRAMEWORKS, indirect=True)
def test_a_repeated_constant_is_refused_before_it_is_decoded(place: str) -> None:
    graph_def = tf.Graph().as_graph_def()
    node = graph_def.node.add(name="c", op="Const")
    node.attr["dtype"].type = tf.int32.as_datatype_enum
    value = node.attr["value"].tensor
    value.dtype = tf.int32.as_datatype_enum
    value.tensor_shape.dim.add(size=LARGE)
    value.int_val[:] = [1, 2]
    graph_def.node.add(name="d", op="Identity", input=["c"]).attr["T"].type = value.dtype
    graph_def.node.add(name="go", op="NoOp")
    late = graph_def.node.add(name="late", op="Const", input=["^go"])
    for key in node.attr:
        late.attr[key].CopyFrom(node.attr[key])
    graph = tf.load_graph(graph_def)
    with tf.Session(graph=graph, framework=place, max_bytes=LIMIT) as session:
        for name in ("c:0", "d:0", "late:0"):
            assert peak_refused(lambda name=name: session.run(name), LIMIT) < LIMIT


def test_long_texts_count() -> None:
    with tf.Graph().as_default() as graph:
        text = tf.constant(b"x")
        for _ in range(40):
            text = tf.string_join([text, text])
        wide = tf.as_string(fed([1, 2]), width=2**30)
        precise = tf.as_string(tf.cast(fed([1, 2]), tf.float32), precision=2**30)
        many = tf.fill(fed([LARGE]), "x")
    with tf.Session(graph=graph, max_bytes=LIMIT) as session:
        for each in (text, wide, precise, many):
            assert peak_refused(lambda each=each: session.run(each), 8 * LIMIT) < 8 * LIMIT


def test_arrays_that_a_function_makes_in_numpy_count() -> None:
    with tf.Graph().as_default() as graph:
        result = tf.py_func(lambda: np.zeros(LARGE).sum(), [], tf.float64)
    refused_by_numpy(graph, result)


def test_variables_run_under_a_limit() -> None:
    with tf.Graph().as_default() as graph:
        variable = tf.get_variable("v", [8], initializer=tf.zeros_initializer())
        grown = variable.assign_add(tf.ones([8]))
        start = tf.global_variables_initializer()
    with tf.Session(graph=graph, max_bytes=LIMIT) as session:
        session.run(start)
        assert session.run(grown).tolist() == [1.0] * 8


def test_the_limit_is_that_of_a_run_alone() -> None:
    """NumPy's own arrays, before and after it, are as large as they like, and stay valid."""
    with tf.Graph().as_default() as graph:
        total = fed([1, 2]) + 1
        wide = tf.fill(fed([LARGE]), 1.0)
    with dlbridge.aligned_numpy(), tf.Session(graph=graph, max_bytes=LIMIT) as session:
        kept = session.run(total)
        with pytest.raises(tf.errors.ResourceExhaustedError):
            session.run(wide)
        assert np.zeros(LARGE).ctypes.data % 64 == 0
    assert np.zeros(LARGE).size == LARGE
    assert kept.tolist() == [2, 3]


@pytest.mark.parametrize(
    ("value", "error"), [(0, ValueError), (-1, ValueError), ("8", TypeError), (1.5, TypeError)]
)
def test_a_limit_is_a_positive_number_of_bytes(value: Any, error: type[Exception]) -> None:
    with tf.Graph().as_default(), pytest.raises(error, match="max_bytes"):
        tf.Session(max_bytes=value)


CHILD = r"""
    import dlbridge.graph as tf
    from measuring import allow_memory, peak_of_process
    graph_def = tf.Graph().as_graph_def()
    node = graph_def.node.add(name="c", op="Const")
    node.attr["dtype"].type = 3
    value = node.attr["value"].tensor
    value.dtype = 3
    value.tensor_shape.dim.add(size=2**29)
    value.int_val[:] = [1, 2]
    shape = graph_def.node.add(name="s", op="Shape", input=["c"])
    fill = graph_def.node.add(name="f", op="Fill", input=["s", "one"])
    one = graph_def.node.add(name="one", op="Const")
    one.attr["dtype"].type = one.attr["value"].tensor.dtype = 3
    one.attr["value"].tensor.int_val[:] = [1]
    one.attr["value"].tensor.tensor_shape.SetInParent()
    for each, key in ((shape, "T"), (fill, "T")):
        each.attr[key].type = 3
    image = tf.Graph()
    with image.as_default():
        pixel, window = tf.ones([1, 1, 1, 1]), tf.ones([2, 2, 1, 1])
        strides, dilations = [1, 1, 1, 1], [1, 2**14, 2**14, 1]
        wide = tf.nn.conv2d(pixel, window, strides, "SAME", dilations=dilations)
    data = graph_def.SerializeToString()
    assert len(data) < 365, len(data)
    allow_memory(2**27)
    with tf.Session(graph=tf.load_graph(data), max_bytes=2**20) as session:
        with tf.Session(graph=image, max_bytes=2**20) as other:
            for run in (session, "c:0"), (session, "f:0"), (other, wide):
                try:
                    run[0].run(run[1])
                except tf.errors.ResourceExhaustedError as error:
                    assert "max_bytes" in str(error), error
                else:
                    raise AssertionError(run)
    print(peak_of_process())
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the limit of a process's memory is Linux's")
def test_few_bytes_do_not_exhaust_a_small_machine(run_python: Any) -> None:
    """Values of 2 GiB, in a process that may take 128 MiB more."""
    assert int(run_python(CHILD).check()) < 2**29


LONG = 2**24  # values, whose list in Python would take half a gigabyte

NAMING: dict[str, Callable[[Any], Any]] = {
    "Sum": lambda host: tf.reduce_sum(tf.ones([1]), host),
    "Reshape": lambda host: tf.reshape(tf.ones([1]), host),
    "Fill": lambda host: tf.fill(host, 1.0),
    "Tile": lambda host: tf.tile(tf.ones([1]), host),
    "BroadcastTo": lambda host: tf.broadcast_to(tf.ones([1]), host),
    "Transpose": lambda host: tf.transpose(tf.ones([1]), host),
    "ReverseV2": lambda host: tf.reverse(tf.ones([1]), host),
    "SplitV": lambda host: tf.split(tf.ones([1]), host, num=2),
    "StridedSlice": lambda host: tf.strided_slice(tf.ones([1]), host, host, host),
    "RandomUniform": lambda host: tf.random_uniform(host),
    "BroadcastArgs": lambda host: tf.broadcast_dynamic_shape(host, host),
    "ScatterNd": lambda host: tf.scatter_nd([[0]], [1.0], host),
    "UnravelIndex": lambda host: tf.unravel_index([0], host),
    "SparseToDense": lambda host: tf.sparse_to_dense([[0]], host, [1.0]),
}


@pytest.mark.parametrize("name", NAMING)
def test_shapes_and_axes_of_millions_of_values_are_refused_without_a_look(name: str) -> None:
    """A list of them took half a minute, though no tensor has so many dimensions."""
    with tf.Graph().as_default() as graph:
        host = tf.placeholder_with_default(np.ones(1, np.int32), [None])
        result = NAMING[name](host)
    value = np.ones(LONG, np.int32)
    with tf.Session(graph=graph) as session:

        def run() -> None:
            with pytest.raises(tf.errors.InvalidArgumentError):
                session.run(result, {host: value})

        assert peak(run, 2**23) < 2**23  # what is imported on the way included


def test_many_shifts_along_one_axis_are_their_sum() -> None:
    with tf.Graph().as_default() as graph:
        shifts, axes = tf.placeholder(tf.int32, [None]), tf.placeholder(tf.int32, [None])
        rolled = tf.roll(tf.reshape(tf.range(12), [3, 4]), shifts, axes)
    by, along = np.array([5, -3, 2, 1, -7]), np.array([0, 1, -1, 0, 1])
    with tf.Session(graph=graph) as session:
        found = session.run(rolled, {shifts: by, axes: along})
        assert (
            session.run(rolled, {shifts: [], axes: []}).tolist()
            == np.r_[:12].reshape(3, 4).tolist()
        )
    expected = np.roll(np.r_[:12].reshape(3, 4), tuple(by), tuple(along))
    assert np.array_equal(found, expected)


@pytest.mark.parametrize("value", [["a" * 5000], ["a"] * 5000, [b"a"] * 5000])
def test_a_fed_text_that_cannot_be_converted_is_refused_by_name(value: Any) -> None:
    texts = tf.placeholder(tf.string, [None], name="texts")
    with tf.Session(max_bytes=10_000) as session:
        with pytest.raises(tf.errors.ResourceExhaustedError, match=r"'texts.*max_bytes"):
            session.run(tf.size(texts), {texts: value})
        assert session.run(tf.size(texts), {texts: np.array([b"a" * 5000], object)}) == 1


def test_fed_numbers_that_cannot_be_converted_are_refused_by_name() -> None:
    """Arrays of the dtype are shared, and so they are no new memory."""
    x = tf.placeholder(tf.float32, [None], name="x")
    with tf.Session(max_bytes=10_000) as session:
        for value in ([1.0] * 5000, np.ones(5000)):
            with pytest.raises(tf.errors.ResourceExhaustedError, match=r"'x.*max_bytes"):
                session.run(tf.reduce_sum(x), {x: value})
        assert session.run(tf.reduce_sum(x), {x: np.ones(5000, np.float32)}) == 5000

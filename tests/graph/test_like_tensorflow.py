"""Corners in which programs for TensorFlow have been seen to come out otherwise: it is asked."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as ours

Program = Callable[[Any, Any], Any]  # of the library and a session


@pytest.fixture(scope="module")
def tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


def outcome(tf: Any, program: Program) -> Any:
    """Return the value of a program with its dtypes and shapes, or the error and its text."""
    with tf.Graph().as_default(), tf.Session() as session:
        try:
            return described(program(tf, session))
        except Exception as error:
            kinds = (TypeError, ValueError, RuntimeError, tf.errors.OpError)
            return next(kind.__name__ for kind in kinds if isinstance(error, kind)), str(error)


def described(value: Any) -> Any:
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if isinstance(value, np.ndarray | np.generic):
        return str(value.dtype), value.shape, value.tolist()
    return value


def is_tensorflows(program: Program, tensorflow: Any, text: str = "") -> None:
    """Check that a program has TensorFlow's value, or its class of error and some of its text."""
    theirs, found = outcome(tensorflow, program), outcome(ours, program)
    if isinstance(theirs, tuple) and isinstance(theirs[1], str):
        assert found[0] == theirs[0], (found, theirs)
        assert text in found[1], found
        assert text in theirs[1], theirs
    else:
        assert found == theirs
        assert not text


# ---- checks in a run ---------------------------------------------------------------------------


def top_k(x: Any, k: Any) -> Program:
    def program(tf: Any, session: Any) -> Any:
        fed = tf.placeholder(tf.int32)
        values = tf.placeholder(tf.float32)
        return list(session.run(tf.nn.top_k(values, fed), {fed: k, values: x}))

    return program


@pytest.mark.parametrize(
    ("x", "k", "text"),
    [
        ([1.0, 3.0, 2.0], 2, ""),
        ([1.0, 3.0, 2.0], 0, ""),
        ([1.0, 3.0, 2.0], -1, "Need k >= 0, got -1"),
        ([1.0, 3.0, 2.0], 4, "input must have at least k columns. Had 3, needed 4"),
        ([1.0, 3.0, 2.0], [1], "k must be scalar, got shape [1]"),
        (1.0, 0, "input must be >= 1-D, got shape []"),
    ],
)
def test_top_k_refuses_a_fed_k_as_tensorflow_does(
    x: Any, k: Any, text: str, tensorflow: Any
) -> None:
    is_tensorflows(top_k(x, k), tensorflow, text)


@pytest.mark.parametrize(
    ("axis", "shapes", "text"),
    [
        (1, ([2, 3], [2, 5], [2, 1]), ""),
        (-1, ([2, 3], [2, 5]), ""),
        (1, ([2, 3], [4, 5]), "All dimensions except 1 must match. Input 1 has shape [4 5] and "),
        (0, ([2, 3, 4], [4, 3, 5]), "doesn't match input 0 with shape [2 3 4]."),
        (1, ([2, 3], [4, 5, 6]), "input 1 should contain 2 elements, but got 3"),
        (0, ([2, 3], [[2, 5]]), "input 2 should be a vector, but got shape [1,2]"),
        (5, ([2, 3], [2, 5]), "Concat dim is out of range: 5 vs. 2"),
        (-3, ([2, 3], [2, 3]), "Concat dim is out of range: -3 vs. 2"),
        ([0], ([2, 3], [2, 3]), "Concat dim tensor should be a scalar integer, but got shape [1]"),
    ],
)
def test_concat_offset_refuses_what_cannot_be_joined(
    axis: Any, shapes: Any, text: str, tensorflow: Any
) -> None:
    graph = tensorflow.Graph()
    with graph.as_default():
        dim = tensorflow.placeholder(np.int32, name="dim")
        rows = [tensorflow.placeholder(np.int32, name=f"row_{i}") for i in range(len(shapes))]
        out = tensorflow.raw_ops.ConcatOffset(concat_dim=dim, shape=rows)
    feeds = {f"row_{i}:0": shape for i, shape in enumerate(shapes)} | {"dim:0": axis}
    names = [each.name for each in out]
    wire = graph.as_graph_def().SerializeToString()

    def program(tf: Any, session: Any) -> Any:
        tf.import_graph_def(tf.GraphDef.FromString(wire), name="")
        return session.run(names, feeds)

    is_tensorflows(program, tensorflow, text)


@pytest.mark.parametrize(
    ("result", "text"),
    [
        ([[1, 2, 3]], ""),
        ([5], ""),
        ([[5]], ""),
        ([(1, 2)], ""),
        (((1, 2),), ""),
        ([np.array([1, 2])], ""),
        ([[[1, 2], [3, 4]]], ""),
        ([1, 2, 3], "returns 3 values, but expects to see 1 values"),
        ([[1, 2], [3, 4]], "returns 2 values, but expects to see 1 values"),
        ([], "returns 0 values, but expects to see 1 values"),
    ],
    ids=str,
)
def test_a_list_is_the_results_of_a_function_not_one_result(
    result: Any, text: str, tensorflow: Any
) -> None:
    def program(tf: Any, session: Any) -> Any:
        return session.run(tf.py_func(lambda: result, [], tf.int64))

    is_tensorflows(program, tensorflow, text)


# ---- feeds -------------------------------------------------------------------------------------


def waiting(fetch: str, fed: str | None) -> Program:
    """Return a program that runs what waits for a placeholder, or for a function."""

    def program(tf: Any, session: Any) -> Any:
        log: list[int] = []

        def function(x: Any) -> Any:
            log.append(1)
            return x

        one = tf.py_func(function, [7.0], tf.float64)
        with tf.control_dependencies([one]):
            nodes = {
                "placeholder": tf.placeholder(tf.float32),
                "default": tf.placeholder_with_default(1.0, []),
                "function": tf.py_func(function, [1.0], tf.float64),
            }
        with tf.control_dependencies([nodes["placeholder"]]):
            after_placeholder = tf.constant(1.0)
        with tf.control_dependencies([nodes["function"]]):
            after_function = tf.constant(2.0)
        with tf.control_dependencies([nodes["default"]]):
            after_default = tf.constant(3.0)
        fetches = {
            "after placeholder": after_placeholder,
            "after function": after_function,
            "after default": after_default,
            "placeholder": nodes["placeholder"].op,
            "all": [after_placeholder, after_function, after_default, nodes["placeholder"]],
        }
        result = session.run(fetches[fetch], {} if fed is None else {nodes[fed]: 3.0})
        return [result, len(log)]

    return program


@pytest.mark.parametrize("fed", [None, "placeholder", "function", "default"])
@pytest.mark.parametrize(
    "fetch", ["after placeholder", "after function", "after default", "placeholder", "all"]
)
def test_a_feed_stands_in_for_the_control_output_of_a_placeholder(
    fetch: str, fed: str | None, tensorflow: Any
) -> None:
    is_tensorflows(waiting(fetch, fed), tensorflow)


# ---- building ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("build", "text"),
    [
        (lambda tf: tf.constant(1, name=None), ""),
        (lambda tf: tf.conj([1 + 2j]), ""),
        (lambda tf: tf.conj([1.5]), ""),
        (lambda tf: tf.conj(3), ""),
        (lambda tf: tf.conj("a"), "Expected numeric or variant tensor, got dtype tf.string."),
        (lambda tf: tf.conj(True), "Expected numeric or variant tensor, got dtype tf.bool."),
    ],
)
def test_graphs_are_built_or_refused(
    build: Callable[[Any], Any], text: str, tensorflow: Any
) -> None:
    def program(tf: Any, session: Any) -> Any:
        return session.run(build(tf))

    is_tensorflows(program, tensorflow, text)


def test_a_session_is_entered_once_at_a_time(tensorflow: Any) -> None:
    def twice(tf: Any, session: Any) -> Any:
        with tf.Session() as outer, outer:
            return "entered"

    def as_default(tf: Any, session: Any) -> Any:
        with tf.Session() as outer, outer.as_default(), outer.as_default():
            return outer.run(tf.constant(1))

    def within(tf: Any, session: Any) -> Any:
        with session:
            return "entered"

    is_tensorflows(twice, tensorflow, "Session context managers are not re-entrant.")
    is_tensorflows(within, tensorflow, "Session context managers are not re-entrant.")
    is_tensorflows(as_default, tensorflow)


def test_dtypes_equal_what_tensorflows_equal(tensorflow: Any) -> None:
    kinds = ["int32", "int64", "float32", "float64", "bool", "string", "complex128", "int32_ref"]
    others = [int, float, bool, str, complex, object, None, "int32", "foo", np.int32, np.float32]

    def program(tf: Any, session: Any) -> Any:
        dtypes = [tf.as_dtype(each) for each in kinds]
        return [[(kind == each, kind != each) for each in others] for kind in dtypes]

    is_tensorflows(program, tensorflow)


# ---- functions and their operations --------------------------------------------------------------


def fed(*feeds: Any) -> Callable[[Callable[..., Any]], Program]:
    """Return what makes a program of a function of `tf` and placeholders that are fed these."""

    def decorate(build: Callable[..., Any]) -> Program:
        def program(tf: Any, session: Any) -> Any:
            arrays = [np.asarray(each) for each in feeds]
            places = [tf.placeholder(tf.as_dtype(each.dtype)) for each in arrays]
            return session.run(build(tf, *places), dict(zip(places, arrays, strict=True)))

        return program

    return decorate


def run(build: Callable[[Any], Any]) -> Program:
    """Return the program that runs what `build` makes."""
    return lambda tf, session: session.run(build(tf))


NOTHING = np.zeros((0, 3), np.float32)

STRINGS: dict[str, Program] = {
    "scatter_nd": run(lambda tf: tf.scatter_nd([[1], [3]], ["a", "b"], [5])),
    "scatter_nd, one place": run(lambda tf: tf.scatter_nd([[1], [1]], ["a", "b"], [3])),
    "scatter_nd of rows": run(lambda tf: tf.scatter_nd([[1], [0]], [["a"], ["b"]], [3, 1])),
    "add": run(lambda tf: tf.add(["a"], ["b"])),
    "add of a Tensor": run(lambda tf: tf.add(tf.constant(["a"]), "b")),
    "add of an array": run(lambda tf: tf.add(np.array(["a"], object), [["b"], ["c"]])),
    "the type of add": lambda tf, _: tf.add(["a"], ["b"], name="q").op.type,
    "the type of +": lambda tf, _: (tf.constant(["a"]) + "b").op.type,
    "the type of a reflected +": lambda tf, _: ("a" + tf.constant(["b"])).op.type,
    "+": run(lambda tf: "a" + tf.constant(["b"])),
    "the type of add of numbers": lambda tf, _: tf.add([1.0], [2.0]).op.type,
    "hexadecimal": run(lambda tf: tf.string_to_number(["0xF", "-0x1p3", " 0X1.8P+1 ", "+0x.8"])),
    "hexadecimal in float64": run(
        lambda tf: tf.string_to_number("0x1.921fb54442d18p1", tf.float64)
    ),
    "no hexadecimal digit": run(lambda tf: tf.string_to_number("0xg")),
    "only a prefix": run(lambda tf: tf.string_to_number("0x")),
    "hexadecimal integers": run(lambda tf: tf.string_to_number("0xF", tf.int32)),
    "an underscore": run(lambda tf: tf.string_to_number("1_0")),
    "an underscore in integers": run(lambda tf: tf.string_to_number("1_0", tf.int64)),
}
EMPTY: dict[str, Program] = {
    "reshape": run(lambda tf: tf.reshape(NOTHING, [0, -1, 3])),
    "reshape to known extents": run(lambda tf: tf.reshape(NOTHING, [-1, 0])),
    "reshape, several zeros": run(lambda tf: tf.reshape(np.zeros((2, 0, 3)), [0, -1, 0])),
    "reshape, a product": run(lambda tf: tf.reshape(np.zeros((0, 4)), [-1, 2, 0])),
    "reshape that rounds": run(lambda tf: tf.reshape(np.zeros((0, 5)), [-1, 2, 0])),
    "reshape without zeros": run(lambda tf: tf.reshape(np.zeros(0), [-1, 2])),
    "reshape of a tensor": fed(NOTHING)(lambda tf, x: tf.reshape(x, [0, -1, 3])),
    "reshape by a tensor": fed([0, -1, 3])(lambda tf, dims: tf.reshape(NOTHING, dims)),
    "reshape of elements to none": fed([[1.0, 2.0]])(lambda tf, x: tf.reshape(x, [0, -1])),
    "random_uniform": run(lambda tf: tf.random_uniform([0], 1, 1, tf.int32)),
    "random_uniform, crossed": run(lambda tf: tf.random_uniform([0, 2], 3, 1, tf.int32)),
    "random_uniform of one": run(lambda tf: tf.random_uniform([1], 1, 1, tf.int32)),
    "scatter_nd": run(lambda tf: tf.scatter_nd(np.zeros((0, 1), int), np.zeros(0), [0])),
}
BUILT: dict[str, tuple[Program, str]] = {
    "fill, negative": (lambda tf, _: tf.fill([-1], 1.0), "Fill dimensions must be >= 0"),
    "fill with a vector": (lambda tf, _: tf.fill([1, 2], [7]), "must be rank 0 but is rank 1"),
    "scatter_nd into nothing": (lambda tf, _: tf.scatter_nd([[0]], [1], [0]), "for empty input"),
    "scatter_nd of what is not known": (
        lambda tf, _: tf.scatter_nd(tf.placeholder(tf.int32), [[1]], [1, 0]), "for empty input"
    ),
    "scatter_nd of indices": (
        lambda tf, _: tf.scatter_nd(tf.placeholder(tf.int32, [2, 1]), tf.placeholder(tf.int8), [0]),
        "for empty input",
    ),
    "axes of a sum": (lambda tf, _: tf.reduce_sum([[1.0]], [[0]]), "must be at most rank 1"),
    "axes of a maximum": (lambda tf, _: tf.reduce_max([[1]], [[0], [1]]), "must be at most rank 1"),
    "axes of all": (lambda tf, _: tf.reduce_all([[True]], [[0]]), "must be at most rank 1"),
    "axes of an unknown rank": (
        lambda tf, _: tf.reduce_sum(tf.placeholder(tf.int32), [[0]]), "must be at most rank 1"
    ),
    "axes that are not known": (
        lambda tf, _: tf.reduce_sum([[1]], tf.placeholder(tf.int32, [1, 1])),
        "must be at most rank 1",
    ),
    "sparse_to_dense by a matrix": (
        lambda tf, _: tf.sparse_to_dense([[0]], [[2]], [1.0]), "must be rank 1 but is rank 2"
    ),
    "sparse_to_dense by a scalar": (
        lambda tf, _: tf.sparse_to_dense([[0]], 2, [1.0]), "must be rank 1 but is rank 0"
    ),
    "concat of one along a float": (lambda tf, _: tf.concat(1, 4.2), ""),
    "conj of text": (lambda tf, _: tf.conj("a"), ""),
}  # fmt: skip


@pytest.mark.parametrize("name", STRINGS)
def test_strings_come_out_as_in_tensorflow(name: str, tensorflow: Any) -> None:
    is_tensorflows(STRINGS[name], tensorflow)


@pytest.mark.parametrize("name", EMPTY)
def test_empty_tensors_come_out_as_in_tensorflow(name: str, tensorflow: Any) -> None:
    is_tensorflows(EMPTY[name], tensorflow)


@pytest.mark.parametrize("name", BUILT)
def test_shapes_are_refused_when_tensorflow_refuses_them(name: str, tensorflow: Any) -> None:
    program, text = BUILT[name]
    is_tensorflows(program, tensorflow, text)


MATRIX = np.array([[1.0, 2.0], [3.0, 4.0]], np.float32)


def of_unknown_rank(build: Callable[..., Any], *arrays: Any, digits: int = 4) -> Program:
    """Return the program that runs a function of placeholders of unknown rank, and rounds."""

    def program(tf: Any, session: Any) -> Any:
        places = [tf.placeholder(tf.as_dtype(np.asarray(each).dtype)) for each in arrays]
        feeds = dict(zip(places, arrays, strict=True))
        return np.asarray(session.run(build(tf, *places), feeds)).round(digits)

    return program


UNKNOWN: dict[str, Program] = {
    "tensordot by a number": of_unknown_rank(lambda tf, x: tf.tensordot(x, MATRIX, 1), MATRIX),
    "tensordot, all axes": of_unknown_rank(
        lambda tf, x, y: tf.tensordot(x, y, 2), MATRIX, MATRIX
    ),
    "tensordot, no axes": of_unknown_rank(lambda tf, x: tf.tensordot(x, MATRIX[0], 0), MATRIX),
    "tensordot by axes": of_unknown_rank(
        lambda tf, x, y: tf.tensordot(x, y, [[-1, 0], [1, 0]]), MATRIX, np.ones((2, 2, 3), "f")
    ),
    "tensordot by one axis each": of_unknown_rank(
        lambda tf, x: tf.tensordot(MATRIX, x, [0, -1]), MATRIX
    ),
    "tensordot by a tensor": of_unknown_rank(
        lambda tf, axes: tf.tensordot(MATRIX, MATRIX, axes), np.array([[1], [0]], np.int32)
    ),
    "tensordot, extents": of_unknown_rank(lambda tf, x: tf.tensordot(x, MATRIX, 1), MATRIX[:, :1]),
    "tensordot, no such axis": of_unknown_rank(
        lambda tf, x: tf.tensordot(x, MATRIX, [[5], [0]]), MATRIX
    ),
    "tensordot, counts": of_unknown_rank(
        lambda tf, x: tf.tensordot(x, MATRIX, [[0, 1], [0]]), MATRIX
    ),
    "tensordot, negative": of_unknown_rank(lambda tf, x: tf.tensordot(x, MATRIX, -1), MATRIX),
    "gather_nd": of_unknown_rank(
        lambda tf, places: tf.gather_nd(MATRIX, places, batch_dims=1), np.array([[0], [1]])
    ),
    "gather_nd of rows": of_unknown_rank(
        lambda tf, places: tf.gather_nd(MATRIX.reshape(1, 2, 2), places, batch_dims=2),
        np.array([[[1], [0]]]),
    ),
    "softmax": of_unknown_rank(
        lambda tf, axis: tf.nn.softmax(MATRIX, axis), np.array(0, np.int32)
    ),
    "softmax from the end": of_unknown_rank(
        lambda tf, axis: tf.nn.softmax(MATRIX.reshape(2, 1, 2), axis), np.array(-3, np.int32)
    ),
    "log_softmax by a constant": of_unknown_rank(
        lambda tf: tf.nn.log_softmax(MATRIX, tf.constant(0))
    ),
    "the shape of softmax": lambda tf, _: tf.nn.softmax(
        MATRIX, tf.placeholder(tf.int32, [])
    ).shape.as_list(),
    "softmax, no such axis": lambda tf, _: tf.nn.softmax(MATRIX, tf.constant(2)),
    "einsum without the ellipsis": of_unknown_rank(
        lambda tf, x: tf.einsum("...->", x), np.float32(2)
    ),
    "einsum of a vector": lambda tf, _: tf.einsum("...->", tf.constant([1.0])),
    "einsum of a vector, when run": of_unknown_rank(lambda tf, x: tf.einsum("...->", x), [1.0]),
    "einsum with a label": run(lambda tf: tf.einsum("...i->i", tf.constant([1.0, 2.0]))),
}  # fmt: skip


@pytest.mark.parametrize("name", UNKNOWN)
def test_ranks_and_axes_may_be_known_in_a_run_only(name: str, tensorflow: Any) -> None:
    is_tensorflows(UNKNOWN[name], tensorflow)


@pytest.mark.parametrize("x", [MATRIX, "of unknown rank"], ids=["known", "unknown"])
def test_a_number_of_axes_may_be_one_of_numpy(x: Any) -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        fed = {} if x is MATRIX else {(x := ours.placeholder(ours.float32)): MATRIX}
        found = session.run(ours.tensordot(x, MATRIX, np.int64(1)), fed)
    assert found.tolist() == (MATRIX @ MATRIX).tolist()


@pytest.mark.parametrize(
    "call",
    [
        lambda: ours.nn.softmax(MATRIX, axis=0, dim=0),
        lambda: ours.nn.log_softmax(MATRIX, axis=0, dim=0),
        lambda: ours.nn.softmax_cross_entropy_with_logits_v2(MATRIX, MATRIX, axis=0, dim=0),
        lambda: ours.nn.l2_normalize(MATRIX, axis=0, dim=0),
        lambda: ours.nn.moments(MATRIX, 0, keep_dims=True, keepdims=True),
        lambda: ours.norm(MATRIX, axis=0, keep_dims=True, keepdims=True),
        lambda: ours.count_nonzero(MATRIX, input=MATRIX),
        lambda: ours.decode_raw(b"1234", "int32", bytes=b"1234"),
        lambda: ours.string_to_number("1", input="1"),
        lambda: ours.nn.convolution(MATRIX, MATRIX, "SAME", dilation_rate=1, dilations=1),
    ],
)
def test_two_names_of_one_argument_exclude_each_other(call: Callable[[], Any]) -> None:
    with ours.Graph().as_default(), pytest.raises(ValueError, match=r" and "):
        call()


def test_numbers_may_be_those_of_numpy() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        mean, _ = ours.nn.moments(MATRIX, np.int64(0))
        drawn = ours.random_uniform([100, 2], 0, np.float32([1e-3, 1e3]))
        found, numbers = session.run([mean, drawn])
    assert found.tolist() == MATRIX.mean(0).tolist()
    assert (numbers[:, 0] < 1e-3).all()
    assert numbers[:, 1].max() > 1


def test_slices_are_multiplied_by_a_scalar() -> None:
    with ours.Graph().as_default(), ours.Session() as session:
        slices = ours.IndexedSlices(ours.constant([1.0, 2.0]), ours.constant([0, 3]))
        scaled = ours.scalar_mul(3.0, slices)
        assert isinstance(scaled, ours.IndexedSlices)
        assert scaled.indices is slices.indices
        assert session.run(scaled.values).tolist() == [3.0, 6.0]


@pytest.mark.parametrize("place", ["torch", "jax"])
def test_they_run_in_other_frameworks(place: str, framework: Any) -> None:
    framework(place)
    with ours.Graph().as_default(), ours.Session(framework=place) as session:
        x, axis = ours.placeholder(ours.float32), ours.placeholder(ours.int32, [])
        built = [
            ours.tensordot(x, MATRIX, 1),
            ours.einsum("...ij->ij", x),
            ours.nn.softmax(MATRIX, axis),
            ours.gather_nd(MATRIX, ours.placeholder_with_default([[0], [1]], None), batch_dims=1),
        ]
        found = session.run(built, {x: MATRIX, axis: 0})
    expected = MATRIX @ MATRIX, MATRIX, np.exp(MATRIX) / np.exp(MATRIX).sum(0), [1.0, 4.0]
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_allclose(one, other, 1e-5)


# ---- sparse tensors and slices -------------------------------------------------------------------


def sparse(tf: Any) -> Any:
    return tf.SparseTensor([[0, 1], [1, 0], [2, 3]], [1.0, -2.0, 3.0], [3, 4])


def slices(tf: Any) -> Any:
    values, indices = tf.constant([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]]), tf.constant([0, 2, 0])
    return tf.IndexedSlices(values, indices, tf.constant([3, 2]))


SPARSE: dict[str, Callable[[Any, Any], Any]] = {
    "identity": lambda tf, x: tf.identity(x),
    "identity, named": lambda tf, x: tf.identity(x, "n"),
    "stop_gradient": lambda tf, x: tf.stop_gradient(x),
    "tuple": lambda tf, x: tf.tuple([x, tf.constant(1.0)]),
    "group": lambda tf, x: [each.name for each in tf.group(x, [x]).control_inputs],
    "zeros_like": lambda tf, x: tf.zeros_like(x),
    "zeros_like, of a dtype": lambda tf, x: tf.zeros_like(x, tf.int32),
    "clip_by_average_norm": lambda tf, x: tf.clip_by_average_norm(x, 0.5),
    "consumers": lambda tf, x: [tf.identity(x.values).op.name, x.consumers()[0].name],
    "text": str,
}


@pytest.mark.parametrize("made", [sparse, slices])
@pytest.mark.parametrize("name", SPARSE)
def test_functions_of_sparse_tensors_and_slices(made: Any, name: str, tensorflow: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        found = SPARSE[name](tf, made(tf))
        if isinstance(found, str) or (isinstance(found, list) and isinstance(found[0], str)):
            return found
        return session.run(found)

    is_tensorflows(program, tensorflow)


def test_slices_have_the_name_of_their_values(tensorflow: Any) -> None:
    is_tensorflows(lambda tf, session: slices(tf).name, tensorflow)


def test_a_sparse_tensor_is_divided(tensorflow: Any) -> None:
    is_tensorflows(lambda tf, session: session.run(tf.divide(sparse(tf), 2.0)), tensorflow)


def test_a_sparse_tensor_is_not_scattered(tensorflow: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        v = tf.get_variable("v", [3], initializer=tf.zeros_initializer(), use_resource=True)
        return v.scatter_add(sparse(tf))

    is_tensorflows(program, tensorflow, "IndexedSlices")


@pytest.mark.parametrize("limit", [0.1, 2.0, 100.0])
@pytest.mark.parametrize("x", [[[1.0, -2.0], [3.0, 4.0]], [0.0, 0.0], [], 3.0, [1, 2], "a"])
def test_clip_by_average_norm(x: Any, limit: float, tensorflow: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        clipped = tf.clip_by_average_norm(x, limit, name="c")
        return clipped.name, clipped.shape.as_list(), np.round(session.run(clipped), 6)

    is_tensorflows(program, tensorflow)


@pytest.mark.parametrize("axis", [[0], (0,), [], [0, 1]])
def test_argmax_takes_no_list_of_axes(axis: Any, tensorflow: Any) -> None:
    is_tensorflows(lambda tf, session: tf.argmax([[1, 2]], axis), tensorflow, "axis must be int")


@pytest.mark.parametrize("axis", [[0], (0,), [0, 0], [0, 1, 0]])
def test_a_norm_takes_one_axis_or_two(axis: Any, tensorflow: Any) -> None:
    x = [[1.0, 2.0], [3.0, 4.0]]
    is_tensorflows(lambda tf, session: tf.norm(x, axis=axis), tensorflow, "2 unique integers")


@pytest.mark.parametrize(
    "value", [1.0, 1, True, "a", 2j, np.float16(2), np.int64(3), [1.0], ["a"], [["a"]], []]
)
def test_functions_get_scalars_as_in_tensorflow(value: Any, tensorflow: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        def names(x: Any) -> str:
            return f"{type(x).__name__} {getattr(x, 'dtype', '')} {getattr(x, 'shape', '')}"

        return session.run(tf.py_func(names, [tf.constant(value)], tf.string))

    is_tensorflows(program, tensorflow)


def test_the_result_of_setdiff1d_has_names(tensorflow: Any) -> None:
    def program(tf: Any, session: Any) -> Any:
        found = tf.setdiff1d([1, 2, 3], [2])
        return session.run([found.out, found.idx]), type(session.run(found)).__name__

    is_tensorflows(program, tensorflow)

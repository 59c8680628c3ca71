"""Where op types are at an edge: nothing, scalars, NaN and infinity, wide unsigned integers.

The values are TensorFlow 2.21's, unless docs/graph.md lists the difference.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import dlbridge.graph as tf
from dlbridge.execution import registry
from dlbridge.graph.core.default_graph import apply

FRAMEWORKS = ("numpy", "torch", "jax")


@pytest.fixture(autouse=True)
def only_with_what_is_installed(request: pytest.FixtureRequest) -> None:
    """Skip the cases of a framework that is not installed, and those of torch alone without it."""
    if np.lib.NumpyVersion(np.__version__) < "2.0.0":
        pytest.skip("NumPy 1 promotes scalars otherwise")
    parameters = request.node.callspec.params if hasattr(request.node, "callspec") else {}
    is_of_torch = "torch" in request.node.originalname
    pytest.importorskip("torch" if is_of_torch else parameters.get("framework", "numpy"))


NAN, INF = np.nan, np.inf


def f32(*values: Any) -> Any:
    return np.array(values if len(values) != 1 else values[0], np.float32)


def i32(*values: Any) -> Any:
    return np.array(values, np.int32)


def computed(
    op: str, inputs: list[Any], framework: str, *, known: bool = True, **attrs: Any
) -> list[Any]:
    """Return the results of one operation, of constants or of what is known only in the run."""
    with tf.Graph().as_default():
        if not known:
            inputs = [tf.placeholder_with_default(each, None) for each in inputs]
        op_ = apply(op, inputs, attrs, None)
        found: list[Any] = tf.Session(framework=framework).run(list(op_.outputs))
    return found


def assert_equal(found: Any, wanted: Any) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(wanted), strict=False)
    assert np.shape(found) == np.shape(wanted)


# ---- nothing and scalars -------------------------------------------------------------------------

ONES, SAME, VALID = [1, 1, 1, 1], {"padding": b"SAME"}, {"padding": b"VALID"}
EMPTY: dict[str, tuple[str, list[Any], dict[str, Any], Any]] = {
    "Conv3D without output channels": (
        "Conv3D", [f32(np.ones((2, 1, 1, 5, 1))), f32(np.ones((1, 1, 2, 1, 0)))],
        {"strides": [1] * 5, **VALID}, np.zeros((2, 1, 1, 4, 0)),
    ),
    "Conv2D without output channels": (
        "Conv2D", [f32(np.ones((2, 1, 5, 1))), f32(np.ones((1, 2, 1, 0)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 4, 0)),
    ),
    "DepthwiseConv2dNative without channels": (
        "DepthwiseConv2dNative", [f32(np.ones((2, 1, 5, 0))), f32(np.ones((1, 2, 0, 3)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 4, 0)),
    ),
    "DepthwiseConv2dNative without a multiplier": (
        "DepthwiseConv2dNative", [f32(np.ones((2, 1, 5, 2))), f32(np.ones((1, 2, 2, 0)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 4, 0)),
    ),
    "Conv2DBackpropInput of no gradient": (
        "Conv2DBackpropInput",
        [i32(2, 1, 5, 1), f32(np.ones((1, 2, 1, 0))), f32(np.ones((2, 1, 4, 0)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 5, 1)),
    ),
    "Conv2DBackpropInput of no window": (
        "Conv2DBackpropInput",
        [i32(2, 1, 5, 1), f32(np.ones((1, 0, 1, 3))), f32(np.ones((2, 1, 5, 3)))],
        {"strides": ONES, **SAME}, np.zeros((2, 1, 5, 1)),
    ),
    "Conv2DBackpropInput for no channels": (
        "Conv2DBackpropInput",
        [i32(2, 1, 5, 0), f32(np.ones((1, 2, 1, 3))), f32(np.ones((2, 1, 4, 3)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 5, 0)),
    ),
    "Conv2DBackpropInput for no channels, of a filter without": (
        "Conv2DBackpropInput",
        [i32(2, 1, 5, 0), f32(np.ones((1, 2, 0, 3))), f32(np.ones((2, 1, 4, 3)))],
        {"strides": ONES, **VALID}, np.zeros((2, 1, 5, 0)),
    ),
    "MatrixSolve without right-hand sides": (
        "MatrixSolve", [f32(np.zeros((2, 2))), f32(np.zeros((2, 0)))], {}, np.zeros((2, 0)),
    ),
    "Pad of a scalar": ("Pad", [f32(3), np.zeros((0, 2), np.int32)], {}, 3),
    "PadV2 of a scalar": ("PadV2", [f32(3), np.zeros((0, 2), np.int32), f32(7)], {}, 3),
    "Tile of a scalar": ("Tile", [f32(3), np.zeros(0, np.int32)], {}, 3),
}  # fmt: skip


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", EMPTY)
def test_nothing_and_scalars_are_computed(case: str, framework: str, known: bool) -> None:
    op, inputs, attrs, wanted = EMPTY[case]
    (found,) = computed(op, inputs, framework, known=known, **attrs)
    assert_equal(found, wanted)
    assert found.dtype == np.float32


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_filter_without_elements_is_refused_where_there_are_results(framework: str) -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="filter must not have zero elements"):
        computed(
            "Conv2D", [f32(np.ones((2, 1, 5, 1))), f32(np.ones((1, 0, 1, 2)))], framework,
            strides=ONES, **SAME,
        )  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_images_without_channels_are_refused_with_our_own_words(framework: str) -> None:
    inputs = [f32(np.ones((2, 1, 5, 0))), f32(np.ones((1, 2, 1, 2)))]
    with pytest.raises(ValueError, match="Number of groups must not be 0"):
        computed("Conv2D", inputs, framework, strides=ONES, **SAME)
    with pytest.raises(tf.errors.InvalidArgumentError, match="Number of groups must not be 0"):
        computed("Conv2D", inputs, framework, known=False, strides=ONES, **SAME)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_right_hand_sides_of_other_matrices_are_refused_with_our_own_words(framework: str) -> None:
    inputs = [f32(np.ones((2, 2, 2))), f32(np.ones((3, 2, 0)))]
    with pytest.raises(tf.errors.InvalidArgumentError, match="the same outer dimensions"):
        computed("MatrixSolve", inputs, framework, known=False)


# ---- NaN and infinity ----------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("start", "stop", "wanted"),
    [
        (0, INF, [0, INF, INF]),
        (-1.5, -INF, [-1.5, -INF, -INF]),
        (INF, 1, [INF, NAN, 1]),
        (-INF, INF, [-INF, NAN, INF]),
        (0, NAN, [0, NAN, NAN]),
        (NAN, 1, [NAN, NAN, 1]),
    ],
)
def test_linspace_has_its_ends_whatever_is_between(
    start: float, stop: float, wanted: list[float], framework: str
) -> None:
    (found,) = computed("LinSpace", [f32(start), f32(stop), np.int32(3)], framework)
    assert_equal(found, wanted)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("op", ["FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3"])
def test_the_reserves_of_no_images_are_zero(op: str, framework: str) -> None:
    inputs = [np.zeros((0, 3, 3, 2), np.float32), f32(1, 2), f32(0, 1), f32(()), f32(())]
    y, mean, variance, *reserves = computed(op, inputs, framework)
    assert y.shape == (0, 3, 3, 2)
    assert np.isnan([mean, variance]).all()
    assert_equal(reserves[0], [0, 0])
    assert_equal(reserves[1], [0, 0])


NANS: dict[str, tuple[str, list[Any], dict[str, Any], Any]] = {
    "MaxPool": (
        "MaxPool", [f32([NAN, 1, 2, NAN]).reshape(1, 4, 1, 1)],
        {"ksize": [1, 2, 1, 1], "strides": ONES, **VALID}, f32([NAN, 2, NAN]).reshape(1, 3, 1, 1),
    ),
    "MaxPool3D": (
        "MaxPool3D", [f32([1, NAN, NAN, 1]).reshape(1, 4, 1, 1, 1)],
        {"ksize": [1, 2, 1, 1, 1], "strides": [1] * 5, **VALID},
        f32([NAN, NAN, NAN]).reshape(1, 3, 1, 1, 1),
    ),
    "MaxPool of -infinity": (
        "MaxPool", [np.full((1, 2, 2, 1), -INF, np.float32)],
        {"ksize": [1, 2, 2, 1], "strides": ONES, **SAME}, np.full((1, 2, 2, 1), -INF),
    ),
    **{
        f"Segment{name} with NaN {place}": (
            f"Segment{name}", [f32(values), i32(0, 0)], {}, f32([NAN])
        )
        for name in ("Max", "Min")
        for place, values in (("first", [NAN, 14]), ("last", [14, NAN]))
    },
    **{
        f"UnsortedSegment{name} with NaN {place}": (
            f"UnsortedSegment{name}", [f32(values), i32(0, 0), np.int32(1)], {}, f32([NAN])
        )
        for name in ("Max", "Min")
        for place, values in (("first", [NAN, 14]), ("last", [14, NAN]))
    },
}  # fmt: skip


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("case", NANS)
def test_the_greatest_and_the_least_of_nan_are_nan_wherever_it_stands(
    case: str, framework: str
) -> None:
    op, inputs, attrs, wanted = NANS[case]
    assert_equal(computed(op, inputs, framework, **attrs)[0], wanted)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("place", range(3))
def test_nan_comes_last_in_top_k_wherever_it_stands(place: int, framework: str) -> None:
    x = np.insert(f32([1, -5]), place, NAN).astype(np.float32)
    values, indices = computed("TopKV2", [x, np.int32(3)], framework, sorted=True)
    assert_equal(values, f32([1, -5, NAN]))
    assert indices[2] == place


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("value", [NAN, INF])
def test_one_nan_or_infinity_makes_nan_of_its_row_in_a_softmax(
    value: float, framework: str
) -> None:
    x = f32([[1, value, 2], [3, 3, -INF]]).reshape(2, 3)
    (found,) = computed("Softmax", [x], framework)
    assert_equal(found, f32([[NAN, NAN, NAN], [0.5, 0.5, 0]]).reshape(2, 3))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_squares_of_integers_do_not_overflow_in_a_norm(framework: str) -> None:
    (found,) = computed("EuclideanNorm", [i32(2**20, 2**20), i32(0)], framework)
    assert (found, found.dtype) == (1482910, np.int32)


def test_the_sum_of_sparse_tensors_keeps_nan() -> None:
    indices, shape = np.array([[0], [1]]), np.array([3])
    inputs = [indices, f32(NAN, 1), shape, indices, f32(2, -1), shape, np.float32(0.5)]
    found, values, _ = computed("SparseAdd", inputs, "numpy")
    assert found.tolist() == [[0]]
    assert np.isnan(values).all()


# ---- integers ------------------------------------------------------------------------------------


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize(
    ("dtype", "values", "wanted"),
    [
        ("uint64", [2**63, 2**62], 6917529027641081856),
        ("uint64", [2**64 - 1], 2**64 - 1),
        ("uint64", [2**63, 2**63 + 2], 1),  # the sum is 2, modulo 2**64
        ("int64", [2**62, 2**62, 2**62], -1537228672809129301),
        ("int32", [2**31 - 1, 2**31 - 1], 2**31 - 1),
        ("uint32", [2**32 - 1, 2**32 - 3], 2**32 - 2),
        ("int8", [100, 100, 100], 100),
    ],
)
def test_the_mean_of_large_integers(
    dtype: str, values: list[int], wanted: int, framework: str
) -> None:
    (found,) = computed("Mean", [np.array(values, dtype), i32(0)], framework)
    assert (int(found), found.dtype) == (wanted, dtype)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_quotients_of_sparse_integers_are_rounded_towards_zero(framework: str) -> None:
    indices, shape = np.array([[0], [1]]), np.array([2])
    for dtype, values, dense, wanted in (
        ("int32", [-7, 9], [2, -2], [-3, -4]),
        ("uint8", [7, 9], [2, 200], [3, 0]),
        ("uint64", [2**64 - 1, 9], [2, 2], [2**63 - 1, 4]),
    ):
        inputs = [indices, np.array(values, dtype), shape, np.array(dense, dtype)]
        (found,) = computed("SparseDenseCwiseDiv", inputs, framework)
        assert (found.tolist(), found.dtype) == (wanted, dtype)


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_a_sparse_integer_divided_by_zero_is_refused(framework: str) -> None:
    inputs = [np.array([[0]]), i32(1), np.array([2]), i32(1, 0)]
    with pytest.raises(tf.errors.InvalidArgumentError, match="Integer division by zero"):
        computed("SparseDenseCwiseDiv", inputs, framework)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_nothing_is_divided_by_zero(framework: str) -> None:
    nothing = np.zeros((3, 0), np.int32)
    for op in ("Div", "FloorDiv", "TruncateDiv", "FloorMod", "Mod", "TruncateMod"):
        assert computed(op, [nothing, i32(0)], framework)[0].shape == (3, 0)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_difference_of_the_tolerance_is_approximately_equal(framework: str) -> None:
    (found,) = computed(
        "ApproximateEqual", [f32(1.25, 0.25, 2), f32(3, 0.75, 2.5)], framework, tolerance=0.5
    )
    assert found.tolist() == [False, True, True]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_digamma_of_zero_is_not_a_number(framework: str) -> None:
    (found,) = computed("Digamma", [f32(0, 1)], framework)
    assert np.isnan(found).tolist() == [True, False]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_einsum_adds_up_integers_of_each_operand(framework: str) -> None:
    operands = [i32([1, 2], [3, 4]), i32(2**31 - 1, 1)]
    (found,) = computed("Einsum", [operands], framework, equation=b"ij,j->")
    assert (int(found), found.dtype) == (2, np.int32)  # 4 * (2**31 - 1) + 6, modulo 2**32


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_the_diagonal_of_a_matrix_without_rows_is_set(framework: str) -> None:
    inputs = [np.zeros((2, 0, 3), np.float32), np.zeros((2, 0), np.float32)]
    assert computed("MatrixSetDiag", inputs, framework)[0].shape == (2, 0, 3)


@pytest.mark.parametrize("framework", FRAMEWORKS)
@pytest.mark.parametrize("dtype", ["complex64", "complex128"])
def test_complex_numbers_are_clipped_part_by_part(dtype: str, framework: str) -> None:
    x = np.array([1 + 2j, 3, -5 - 5j, complex(NAN, 0.5), INF], dtype)
    low, high = np.array(-1j, dtype), np.array(2 + 1j, dtype)
    (found,) = computed("ClipByValue", [x, low, high], framework)
    assert_equal(found, np.array([1 + 1j, 2, -1j, complex(NAN, 0.5), 2], dtype))
    assert found.dtype == dtype


UNSIGNED: dict[str, Callable[[Any], Any]] = {
    "bias_add": lambda x: tf.nn.bias_add(x, x[0]),
    "assign_add": lambda x: tf.assign_add(
        tf.Variable(np.zeros((2, 3), x.dtype.numpy), use_resource=True), x
    ),
    "scatter_nd": lambda x: tf.scatter_nd([[0], [1]], x, [4, 3]),
    "tensor_scatter_nd_update": lambda x: tf.tensor_scatter_nd_update(x, [[0]], x[:1]),
    "tensor_scatter_nd_max": lambda x: tf.tensor_scatter_nd_max(x, [[0]], x[1:]),
    "sparse_to_dense": lambda x: tf.sparse_to_dense([0, 2], [4], x[0, :2]),
    "gather_nd": lambda x: tf.gather_nd(x, [[1, 2], [0, 1]]),
    "gather_batches": lambda x: tf.gather(x, [[1], [0]], batch_dims=1),
    "roll": lambda x: tf.roll(x, 1, 1),
    "boolean_mask": lambda x: tf.boolean_mask(x, [True, False]),
    "transpose_reverse": lambda x: tf.reverse(tf.transpose(x), [0]),
    "pad_tile": lambda x: tf.tile(tf.pad(x, [[1, 0], [0, 2]]), [2, 1]),
}


@pytest.mark.parametrize("dtype", ["uint16", "uint32", "uint64"])
@pytest.mark.parametrize("case", UNSIGNED)
def test_torch_sessions_compute_wide_unsigned_integers_as_numpy_does(case: str, dtype: str) -> None:
    values = (np.iinfo(dtype).max - np.arange(6, dtype=dtype)).reshape(2, 3)
    found = []
    for framework in ("numpy", "torch"):
        with tf.Graph().as_default():
            x = tf.placeholder(tf.as_dtype(dtype), [2, 3])
            y = UNSIGNED[case](x)
            with tf.Session(framework=framework) as session:
                session.run(tf.global_variables_initializer())
                found.append(session.run(y, {x: values}))
    assert found[0].dtype == found[1].dtype == dtype
    assert found[0].tolist() == found[1].tolist()


def test_torch_keeps_the_op_types_of_wide_unsigned_integers_that_only_move_them() -> None:
    """They stay in torch, and all that there are exist."""
    with tf.Graph().as_default():
        x = tf.placeholder(tf.uint32, [2, 3])
        moved, added = tf.reshape(x, [3, 2]).op, (x + x).op
        assert registry.find(moved, "torch").only == ()
        assert registry.find(added, "torch").only == ("numpy",)
    assert registry._MOVING["torch"] <= registry.types()


# ---- attributes ----------------------------------------------------------------------------------


@pytest.mark.parametrize("known", [True, False])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_shapes_that_do_not_fit_are_unequal_as_a_whole_where_that_is_allowed(
    framework: str, known: bool
) -> None:
    for op, wanted in (("Equal", False), ("NotEqual", True)):
        kept = {"known": known, "incompatible_shape_error": False}
        assert computed(op, [f32(1, 2), f32(1, 2, 3)], framework, **kept)[0] == wanted
        (found,) = computed(op, [f32(1, 2), f32(1, 3)], framework, **kept)
        assert found.tolist() == [not wanted, wanted]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bad_indices_are_ignored_where_the_node_says_so(framework: str) -> None:
    indices, ignore = np.array([[1], [7], [-1]], np.int32), {"bad_indices_policy": b"IGNORE"}
    (found,) = computed("GatherNd", [f32(0, 1, 2, 3), indices], framework, **ignore)
    assert found.tolist() == [1, 0, 0]
    (found,) = computed("ScatterNd", [indices, f32(1, 2, 3), i32(4)], framework, **ignore)
    assert found.tolist() == [0, 1, 0, 0]
    for how, wanted in (("Update", 1), ("Add", 3), ("Sub", 1), ("Max", 2), ("Min", 1)):
        inputs = [f32(2, 2, 2), indices, f32(1, 9, 9)]
        (found,) = computed(f"TensorScatter{how}", inputs, framework, **ignore)
        assert found.tolist() == [2, wanted, 2]
    (found,) = computed("GatherNd", [np.array([b"a", b"b"], object), indices], framework, **ignore)
    assert found.tolist() == [b"b", b"", b""]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_bad_indices_into_a_variable_are_ignored_where_the_node_says_so(framework: str) -> None:
    with tf.Graph().as_default() as graph, tf.Session(framework=framework) as session:
        variable = tf.Variable(f32(5, 5, 5), use_resource=True)
        indices = tf.constant(np.array([[1], [7]], np.int32))
        attrs = {"bad_indices_policy": b"IGNORE"}
        update = graph.create_op(
            "ResourceScatterNdUpdate", [variable.handle, indices, tf.constant(f32(1, 2))],
            attrs=attrs,
        )  # fmt: skip
        session.run(tf.global_variables_initializer())
        session.run(update)
        assert session.run(variable).tolist() == [5, 1, 5]


def test_a_policy_for_bad_indices_that_there_is_not_is_refused() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match="'IGNORE', got 'FOO'"):
        computed("GatherNd", [f32(1, 2), np.array([[0]])], "numpy", bad_indices_policy=b"FOO")


@pytest.mark.parametrize(
    ("value", "attrs", "wanted"),
    [
        (np.uint8([7]), {"fill": b"+"}, b"7"),
        (np.uint8([7]), {"fill": b"+", "width": 4}, b"   7"),
        (np.uint16([7]), {"fill": b" "}, b"7"),
        (i32(7), {"fill": b"+"}, b"+7"),
        (np.int8([-7]), {"fill": b"0", "width": 4}, b"-007"),
        (f32([NAN]), {"fill": b"0", "width": 6}, b"   nan"),
        (f32([NAN]), {"fill": b"+", "width": 6}, b"  +nan"),
        (f32([-INF]), {"fill": b"-", "width": 6}, b"-inf  "),
        (-f32([NAN]), {}, b"-nan"),
        (np.array([NAN + 1j * INF], np.complex64), {"fill": b"0", "width": 6}, b"(   nan,   inf)"),
        (np.array([True]), {"fill": b"-", "width": 6}, b"true"),
        (np.array([b"ab"], object), {"fill": b"-", "width": 4}, b"ab  "),
        (np.array([b"ab"], object), {"fill": b"0", "width": 4}, b"  ab"),
        (np.array([b"abc"], object), {"precision": 2}, b"abc"),
    ],
)
def test_as_string_fills_as_c_does(value: Any, attrs: dict[str, Any], wanted: bytes) -> None:
    assert computed("AsString", [value], "numpy", **attrs)[0].tolist() == [wanted]


def test_as_string_refuses_a_precision_of_integers() -> None:
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"precision.* not supported"):
        computed("AsString", [np.array([7])], "numpy", precision=4)


# ---- compiled in torch ---------------------------------------------------------------------------

COMPILED: dict[str, Callable[[Any], Any]] = {
    "ones": lambda x: x + tf.ones([4]),
    "zeros": lambda x: tf.concat([x, tf.zeros([1, 4])], 0),
    "fill": lambda x: x + tf.fill([4], 2.0),
    "reshape": lambda x: tf.reshape(x, [2, -1]),
    "strided_slice": lambda x: x[::2, 1:],
    "transpose": lambda x: tf.transpose(x, [1, 0]),
    "weights": lambda x: tf.matmul(x, tf.constant(np.arange(8.0).reshape(4, 2), tf.float32)),
}


@pytest.mark.full
@pytest.mark.parametrize("imported", [False, True])
def test_torch_compiles_graphs_whose_constants_are_read_only_views(
    imported: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What torch traces is the question here, not what its compiler makes of it."""
    torch = pytest.importorskip("torch")
    monkeypatch.setattr(torch, "compile", partial(torch.compile, backend="eager"))
    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4], name="x")
        for name, build in COMPILED.items():
            tf.identity(build(x), name=f"{name}_of_x")
    if imported:
        graph = tf.load_graph(tf.dump_graph(graph))  # the constants lie in these bytes
    fetches = {name: f"{name}_of_x:0" for name in COMPILED}
    feeds = {"x:0": np.arange(16, dtype=np.float32).reshape(4, 4)}
    plain, compiled = (
        tf.Session(graph=graph, framework="torch", compile=each).run(fetches, feeds)
        for each in (False, True)
    )
    for name in COMPILED:
        np.testing.assert_allclose(compiled[name], plain[name], rtol=1e-6, err_msg=name)

"""Functions of arithmetic on every framework, against TensorFlow: names, static shapes, values."""

from __future__ import annotations

import os
import warnings
from functools import partial
from typing import Any

import numpy as np
import pytest
from answers import Answers
from graph.graph_oracle import (
    Case,
    Outcome,
    assert_close,
    bfloat16,
    families,
    plain,
    refines,
    static,
    tensorflow,
    together,
    values,
)

import dlbridge.graph as tf

RANDOM = np.random.default_rng(11)
FLOATS = ("float16", "bfloat16", "float32", "float64")
COMPLEX = ("complex64", "complex128")
INTEGERS = ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64")
SIGNED = INTEGERS[:4]
# JAX has no float of these functions' width, or TensorFlow no kernel.
NUMPY_TORCH = ("numpy", "torch")


def of(dtype: str, *values: Any) -> Any:
    array = np.array(values)
    return bfloat16(array) if dtype == "bfloat16" else array.astype(dtype)


def random(dtype: str, *shape: int, low: Any = -4, high: Any = 4) -> Any:
    x = RANDOM.uniform(low, high, shape)
    if np.dtype(dtype if dtype != "bfloat16" else "float32").kind == "c":
        x = x + 1j * RANDOM.uniform(low, high, shape)
    if dtype in INTEGERS:
        x = RANDOM.integers(max(low, 0) if dtype[0] == "u" else low, high + 1, shape)
    return bfloat16(x) if dtype == "bfloat16" else np.asarray(x).astype(dtype)


# ---- element-wise --------------------------------------------------------------------------------

NAN, INF = np.nan, np.inf
EXTREMES = (NAN, INF, -INF, 0.0, -0.0, 1.0, -1.0, 0.5, 1.5, 2.5, -2.5, 30.0, -30.0)


def unary(names: str, dtypes: tuple[str, ...], *values: float) -> list[Case]:
    """One case for each function and dtype: the numbers, a matrix, a scalar, nothing."""
    return [
        Case(
            f"{name}-{dtype}",
            partial(_each, _calling(name)),
            (
                of(dtype, *(values or EXTREMES)),
                random(dtype, 2, 3, low=0.1, high=0.9),
                random(dtype, low=0.1, high=0.9),
                random(dtype, 0, 3),
            ),
        )
        for name in names.split()
        for dtype in dtypes
    ]


def _calling(name: str) -> Any:
    def build(tf: Any, *x: Any) -> Any:
        function = tf
        for part in name.split("."):
            function = getattr(function, part)
        return function(*x)

    return build


def operator(name: str) -> Any:
    return {
        "+": lambda tf, x, y: x + y,
        "-": lambda tf, x, y: x - y,
        "*": lambda tf, x, y: x * y,
        "/": lambda tf, x, y: x / y,
        "//": lambda tf, x, y: x // y,
        "%": lambda tf, x, y: x % y,
        "<": lambda tf, x, y: x < y,
        "<=": lambda tf, x, y: x <= y,
        ">": lambda tf, x, y: x > y,
        ">=": lambda tf, x, y: x >= y,
        "&": lambda tf, x, y: x & y,
        "|": lambda tf, x, y: x | y,
        "^": lambda tf, x, y: x ^ y,
        "@": lambda tf, x, y: x @ y,
        "**": lambda tf, x, y: x**y,
    }[name]


def binary(names: str, dtypes: tuple[str, ...], low: float = -4, high: float = 4) -> list[Case]:
    """One case for each function and dtype: broadcast operands, scalars, nothing, extremes."""
    cases = []
    for name in names.split():
        build = operator(name) if name[0] in "+-*/%<>&|^@" else _calling(name)
        for dtype in dtypes:
            make = partial(random, dtype, low=low, high=high)
            pairs = [(make(3, 1, 4), make(2, 1)), (make(), make()), (make(0, 3), make(1))]
            if dtype in FLOATS:
                pairs.append(tuple(np.meshgrid(of(dtype, *EXTREMES[:9]), of(dtype, *EXTREMES[:9]))))
            inputs = tuple(each for pair in pairs for each in pair)
            cases.append(Case(f"{name}-{dtype}", partial(_pairwise, build), inputs))
    return cases


def _each(build: Any, tf: Any, *inputs: Any) -> list[Any]:
    return [build(tf, x) for x in inputs]


def _pairwise(build: Any, tf: Any, *inputs: Any) -> list[Any]:
    return [build(tf, x, y) for x, y in zip(inputs[::2], inputs[1::2], strict=True)]


ELEMENTWISE = [
    *unary("negative abs square", (*FLOATS, *COMPLEX)),
    *unary("sign", FLOATS),
    *unary("negative abs sign square round", SIGNED, 0, 1, -1, 100, -100),
    *unary("sqrt exp log1p sinh cosh tanh asinh sigmoid", FLOATS, NAN, INF, 0.0, 0.1, 0.7, 2.0),
    *unary("rsqrt reciprocal log atan expm1 sin cos", FLOATS, NAN, -1.0, 0.5, 0.9, 4.0, 1.5),
    *unary("tan asin acos atanh", FLOATS, NAN, 0.0, 0.25, -0.5, 0.9),
    *unary("acosh", FLOATS, 1.0, 1.5, 4.0),
    *unary("floor ceil round is_nan is_inf is_finite", FLOATS),
    *unary("rint", ("float32", "float64")),
    *unary("erf erfc", FLOATS, NAN, 0.0, 0.1, -1.5, 3.0),
    *unary("lgamma", ("float16", "float32", "float64"), INF, 0.0, 1.0, 2.0, 0.5, 3.5, 10.0, -1.5),
    *unary("digamma", ("float16", "float32", "float64"), 1.0, 0.5, 3.5, 10.0, -1.5),
    *unary("math.erfinv math.ndtri", ("float32", "float64"), 0.0, 0.1, 0.5, 0.9, 1.0),
    *unary("sqrt exp log sin cos tanh sigmoid reciprocal", COMPLEX, 0.5, 1 + 2j, -1 - 1j),
    *unary("real imag angle conj", COMPLEX, 0.5, 1 + 2j, -1 - 1j, 0, -2),
    *unary("real conj", ("float32",), 1.0, 2.0),
    *unary("logical_not", ("bool",), True, False),
    *unary("bitwise.invert", INTEGERS, 0, 1, 100),
    *binary("+ - * add subtract multiply", (*FLOATS, *COMPLEX, *INTEGERS)),
    *binary("/ realdiv div_no_nan maximum minimum squared_difference", FLOATS),
    *binary("math.multiply_no_nan // % floormod floordiv truncatediv", FLOATS),
    *binary("truncatemod", ("float32", "float64")),
    *binary("math.xdivy math.xlogy math.xlog1py atan2", FLOATS, low=0.1),
    *binary("/ div_no_nan squared_difference", COMPLEX),
    *binary("maximum minimum", INTEGERS),
    *binary("/ // % floormod truncatediv", INTEGERS, low=1, high=9),
    *binary("truncatemod", ("int32", "int64"), low=1),
    *binary("pow **", ("float32", "float64"), low=0),
    *binary("pow", ("int32", "int64"), low=0),
    *binary("squared_difference", ("int32", "int64")),
    *binary("bitwise.bitwise_and bitwise.bitwise_or bitwise.bitwise_xor", INTEGERS),
    *binary("& | ^", ("int32", "uint8", "bool"), low=0),
    *binary("bitwise.left_shift bitwise.right_shift", INTEGERS, low=0),
    *binary("< <= > >= equal not_equal less greater_equal", (*FLOATS, *INTEGERS)),
    *binary("equal not_equal", ("complex64", "bool")),
    *binary("logical_and logical_or logical_xor", ("bool",)),
    *binary("complex", ("float32", "float64")),
]
M = random("float32", 3, 4)
V = random("float32", 4)
I = random("int32", 3, 4)
C = random("complex64", 2, 3)
STRINGS = np.array([b"a", b"b", b"a"], object)
BIG = of("float64", 300.7, -1.5, 2e9, 3e9, -3e9, 1e19, -1e19, INF, -INF, NAN, 127.9, -0.9)

OPERATORS = [
    Case("const-right", lambda tf, x: x + 1.0, (V,)),
    Case("const-left", lambda tf, x: 1.0 + x, (V,)),
    Case("const-names", lambda tf, x: [2.0 - x, x - 2.0, 3.0 * x, x % 2.0, 2.0**x], (V,)),
    Case("truediv-int", lambda tf, x: [x / 2, 5 / (x * x + 1), x / x.dtype.max], (I,)),
    Case("divisions", lambda tf, x: [tf.divide(x, 2.0), tf.div(x, 2.0), tf.truediv(x, 2.0)], (V,)),
    Case("divisions-int", lambda tf, x: [tf.div(x, 3), tf.truediv(x, 3), x // 3, x % 3], (I,)),
    Case("named", lambda tf, x: [tf.div(x, 2, name="q"), tf.divide(x, 2, name="r")], (I,)),
    Case("reflected", lambda tf, x: [1 / x, 7 // x, 7 % x, 1 - x], (abs(I) + 1,)),
    Case("array-left", lambda tf, x: [V + x, V / x, x > V, V * x], (V + 9,)),
    Case("matmul", lambda tf, x: [x @ M.T, M.T @ x], (M,)),
    Case("comparison", lambda tf, x: [x < 1.0, x <= 1.0], (V,)),
    Case("invert", lambda tf, x, i: [~x, ~i, True & x, x | False, x ^ True], (V > 0, I)),
    Case("unary", lambda tf, x: [-x, abs(x)], (V,)),
    Case("complex-abs", lambda tf, x: [abs(x), -x], (C,)),
    Case("in-scope", lambda tf, x: _in_scope(tf, x), (V,)),
    Case("scalar_mul", lambda tf, x: tf.scalar_mul(2.0, x), (V,)),
    Case("polyval", lambda tf, x: tf.math.polyval([x, 2.0 * x, 3.0 * x], x), (V,), named=False),
    Case("add_n", lambda tf, x: tf.add_n([x, x, x]), (V,)),
    Case("add_n-one", lambda tf, x: tf.add_n([x]), (V,)),
    Case("accumulate_n", lambda tf, x: tf.accumulate_n([x, x]), (V,)),
    Case("clip", lambda tf, x: tf.clip_by_value(x, -1.0, 1.0), (of("float32", *EXTREMES),)),
    Case("clip_by_norm", lambda tf, x: tf.clip_by_norm(x, 1.0), (M,)),
    Case("clip_by_norm-axes", lambda tf, x: tf.clip_by_norm(x, 1.0, [1]), (M,)),
    Case(
        "clip_by_global_norm",
        lambda tf, x, y: [*tf.clip_by_global_norm([x, y], 1.0)[0], tf.global_norm([x, y])],
        (M, V),
    ),
    Case("angle-real", lambda tf, x: tf.angle(x), (V,), named=False),
    Case("imag-real", lambda tf, x: tf.imag(x), (V,), named=False),
    Case("equal-strings", lambda tf, x: tf.equal(x, "a"), (STRINGS,), frameworks=("numpy",)),
]


def _in_scope(tf: Any, x: Any) -> Any:
    with tf.name_scope("outer"):
        return [x + 1.0, tf.reduce_sum(x), x / 2.0, tf.matmul([[1.0]], [[2.0]]), tf.zeros([2])]


CASTS = [
    Case(f"cast-{source}-{target}", lambda tf, x, target=target: tf.cast(x, target), (x,))
    for source, x in (
        ("float64", BIG),
        ("float32", BIG.astype("float32")),
        ("bfloat16", bfloat16(BIG)),
        ("float16", of("float16", 3.7, -2.5, INF, NAN)),
    )
    for target in ("int32", "int64", "bool", *FLOATS, "complex64")
]
CASTS += [
    Case(f"cast-{source}-{target}", lambda tf, x, target=target: tf.cast(x, target), (x,))
    for source, x in (
        ("small", of("float32", 0.0, 1.9, -1.9, 100.5, -100.5)),
        ("ints", of("int32", 0, 1, -1, 300, 2**31 - 1)),
        ("bool", of("bool", True, False)),
        ("complex", of("complex64", 1 + 2j, 0, -3.7)),
    )
    for target in (*INTEGERS, "float32", "bool", "complex128")
    if not (source in ("small", "complex") and target[0] == "u")
]
CASTS += [
    Case("cast-constant", lambda tf: tf.cast(2.5, tf.int32)),
    Case("cast-same", lambda tf, x: tf.cast(x, tf.float32), (V,)),
    Case("to", lambda tf, x: [tf.to_int32(x), tf.to_double(x), tf.to_float(x)], (V,)),
    *(
        Case(f"saturate-{k}", lambda tf, x, k=k: tf.saturate_cast(x, k), (BIG[:-3],))
        for k in ("uint8", "int8", "int16", "int32")
    ),
    Case("saturate-ints", lambda tf, x: tf.saturate_cast(x, tf.uint8), (of("int32", 300, -5, 7),)),
    Case("bitcast", lambda tf, x: tf.bitcast(x, tf.int32), (V,)),
    Case("bitcast-narrow", lambda tf, x: tf.bitcast(x, tf.uint8), (V,)),
    Case("bitcast-wide", lambda tf, x: tf.bitcast(x, tf.float64), (random("float32", 3, 2),)),
]

# ---- selection, reductions -----------------------------------------------------------------------

SELECTION = [
    Case("where", lambda tf, x: tf.where(x), (M > 0,)),
    Case(
        "where-floats", lambda tf, x: tf.where(x), (of("float32", NAN, 0, -0.0, 1),), static=False
    ),
    Case("where-none", lambda tf, x: tf.where(x), (np.zeros((0, 3), bool),)),
    Case("select", lambda tf, c, x, y: tf.where(c, x, y), (M > 0, M, -M)),
    Case("select-scalar", lambda tf, c, x, y: tf.where(c, x, y), (np.asarray(True), M, -M)),
    Case("select-rows", lambda tf, c, x, y: tf.where(c, x, y), (M[:, 0] > 0, M, -M)),
    Case("select-wrong", lambda tf, c, x, y: tf.where(c, x, y), (V > 0, M, -M), error="x"),
    Case("select-ints", lambda tf, c, x: tf.where(c, x, -x), (I > 0, I)),
    Case("where_v2", lambda tf, c, x: tf.where_v2(c, x, 0.0), (V > 0, M)),
    Case(
        "strings", lambda tf, c, x: tf.where(c, x, x), (V[:3] > 0, STRINGS), frameworks=("numpy",)
    ),
]
AXES: tuple[Any, ...] = (None, 0, -1, [0, 1], [1, -3], [])
T = random("float32", 2, 3, 4)
REDUCTIONS = [
    Case(
        f"{name}-{axis}-{keep}",
        lambda tf, x, name=name, axis=axis, keep=keep: getattr(tf, name)(x, axis, keepdims=keep),
        (T > 0 if name in ("reduce_all", "reduce_any") else T,),
    )
    for name in [
        "reduce_sum",
        "reduce_mean",
        "reduce_prod",
        "reduce_max",
        "reduce_min",
        "reduce_all",
        "reduce_any",
    ]
    for axis in AXES
    for keep in (False, True)
]
REDUCTIONS += [
    Case(
        f"{name}-{dtype}",
        lambda tf, x, name=name: getattr(tf, name)(x, 1),
        (random(dtype, 2, 5, 3),),
    )
    for name in ("reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min")
    for dtype in (*FLOATS, "int8", "int32", "int64", "uint8", "uint16")
]
REDUCTIONS += [
    Case(
        f"{name}-empty-{axis}", lambda tf, x, name=name, axis=axis: getattr(tf, name)(x, axis), (x,)
    )
    for name in ("reduce_sum", "reduce_mean", "reduce_prod", "reduce_max", "reduce_min")
    for axis, x in ((0, random("float32", 0, 3)), (1, random("int32", 2, 0)))
]
REDUCTIONS += [
    Case(
        "nan",
        lambda tf, x: [tf.reduce_max(x), tf.reduce_min(x), tf.argmax(x), tf.argmin(x)],
        (of("float32", 1, NAN, 3),),
    ),
    Case(
        "complex", lambda tf, x: [tf.reduce_sum(x), tf.reduce_mean(x, 1), tf.reduce_prod(x)], (C,)
    ),
    Case("axis-tensor", lambda tf, x, a: tf.reduce_sum(x, a), (T, of("int32", 1))),
    Case(
        "axis-tensor-keep", lambda tf, x, a: tf.reduce_sum(x, a, keepdims=True), (T, of("int32", 1))
    ),
    Case("axis-int64", lambda tf, x: tf.reduce_sum(x, np.int64(1)), (T,)),
    Case("old-names", lambda tf, x: tf.reduce_sum(x, reduction_indices=[1], keep_dims=True), (T,)),
    Case("both-names", lambda tf, x: tf.reduce_sum(x, 1, reduction_indices=[1]), (T,), error="x"),
    Case("bad-axis", lambda tf, x: tf.reduce_sum(x, 3), (T,), error="x"),
    Case("bad-axis-run", lambda tf, x, a: tf.reduce_sum(x, a), (T, of("int32", 5)), error="x"),
    Case("twice-axis", lambda tf, x: tf.reduce_sum(x, [0, 0]), (T,), error="x"),
    Case("bools", lambda tf, x: tf.reduce_sum(x), (T > 0,), error="x"),
    Case(
        "logsumexp", lambda tf, x: [tf.reduce_logsumexp(x), tf.reduce_logsumexp(x, 1)], (100 * T,)
    ),
    Case("logsumexp-keep", lambda tf, x: tf.reduce_logsumexp(x, [0, 2], keepdims=True), (T,)),
    Case("logsumexp-infinite", lambda tf, x: tf.reduce_logsumexp(x), (of("float32", -INF, -INF),)),
    Case("std", lambda tf, x: [tf.math.reduce_std(x), tf.math.reduce_variance(x, 1)], (T,)),
    Case("std-complex", lambda tf, x: tf.math.reduce_variance(x, 1), (C,), named=False),
    Case("euclidean", lambda tf, x: tf.math.reduce_euclidean_norm(x, 1), (T,)),
    Case("euclidean-int", lambda tf, x: tf.math.reduce_euclidean_norm(x), (I,)),
    Case("euclidean-complex", lambda tf, x: tf.math.reduce_euclidean_norm(x, 1), (C,)),
    Case("count_nonzero", lambda tf, x: [tf.count_nonzero(x), tf.count_nonzero(x, 1)], (I,)),
    Case("count_nonzero-kind", lambda tf, x: tf.count_nonzero(x, 0, dtype=tf.int32), (I > 0,)),
    Case("argmax", lambda tf, x: [tf.argmax(x), tf.argmax(x, 1), tf.argmin(x, -1)], (T,)),
    Case("argmax-kind", lambda tf, x: tf.argmax(x, axis=1, output_type=tf.int32), (T,)),
    Case("argmax-ties", lambda tf, x: [tf.argmax(x), tf.argmin(x)], (of("int32", 1, 3, 3, 1),)),
    Case("argmax-bool", lambda tf, x: tf.argmax(x), (of("bool", False, True, True),)),
    Case(
        "argmax-nan",
        lambda tf, x: tf.argmax(x, 1),
        (np.array([[NAN, 1, NAN], [NAN] * 3], "float32"),),
    ),
    Case("argmax-half", lambda tf, x: tf.argmax(x, 1), (random("bfloat16", 3, 4),)),
    Case("argmax-empty", lambda tf, x: tf.argmax(x, 1), (random("float32", 3, 0),), error="x"),
    Case("argmax-of-none", lambda tf, x: tf.argmax(x, 1), (random("float32", 0, 3),)),
    Case("argmax-bad", lambda tf, x: tf.argmax(x, 3), (T,), error="x"),
    *(
        Case(
            f"{name}-{dtype}-{exclusive}-{reverse}",
            lambda tf, x, name=name, e=exclusive, r=reverse: getattr(tf, name)(x, 1, e, r),
            (random(dtype, 2, 5, 2),),
        )
        for name in ("cumsum", "cumprod")
        for dtype in ("float32", "float64", "int32", "int64", "uint8", "int8")
        for exclusive in (False, True)
        for reverse in (False, True)
    ),
    Case("cumsum-empty", lambda tf, x: tf.cumsum(x, 1, True), (random("float32", 2, 0),)),
    Case("cumsum-half", lambda tf, x: tf.cumsum(x), (of("bfloat16", 1, 2, 3),)),
    Case("cumsum-bad", lambda tf, x: tf.cumsum(x, 3), (V,), error="x"),
    *(
        Case(
            f"cumulative_logsumexp-{exclusive}",
            lambda tf, x, e=exclusive: tf.math.cumulative_logsumexp(x, 1, e, True),
            (random(dtype, 2, 3),),
        )
        for exclusive in (False, True)
        for dtype in ("float32", "float64")
    ),
    Case(
        "segment-all",
        lambda tf, x, i: [
            tf.segment_sum(x, i),
            tf.segment_mean(x, i),
            tf.segment_max(x, i),
            tf.segment_min(x, i),
            tf.segment_prod(x, i),
        ],
        (random("float32", 5, 2), of("int32", 0, 0, 2, 2, 4)),
    ),
    Case("segment-int", lambda tf, x, i: tf.segment_mean(x, i), (I, of("int64", 1, 1, 3))),
    Case(
        "segment-wrong", lambda tf, x, i: tf.segment_sum(x, i), (I, of("int64", 1, 0, 3)), error="x"
    ),
    Case(
        "segment-less", lambda tf, x, i: tf.segment_sum(x, i), (I, of("int64", -1, 0, 3)), error="x"
    ),
    Case("segment-none", lambda tf, x, i: tf.segment_sum(x, i), (I[:0], of("int64"))),
    Case(
        "unsorted-all",
        lambda tf, x, i: [
            tf.unsorted_segment_sum(x, i, 5),
            tf.unsorted_segment_max(x, i, 5),
            tf.unsorted_segment_min(x, i, 5),
            tf.unsorted_segment_prod(x, i, 5),
        ],
        (random("float32", 5, 2), of("int32", 3, -1, 0, 3, 4)),
    ),
    Case(
        "unsorted-rank2",
        lambda tf, x, i: tf.unsorted_segment_sum(x, i, 3),
        (T, of("int32", [0, 1, 2], [2, 2, 0])),
    ),
    Case(
        "unsorted-wrong",
        lambda tf, x, i: tf.unsorted_segment_sum(x, i, 3),
        (I, of("int32", 0, 1, 3)),
        error="x",
        frameworks=NUMPY_TORCH,
    ),
    Case(
        "unsorted-half",
        lambda tf, x, i: tf.unsorted_segment_sum(x, i, 3),
        (of("bfloat16", 1, 2, 3), of("int32", 0, 0, 2)),
    ),
    Case("unique", lambda tf, x: list(tf.unique(x)), (of("int32", 3, 1, 3, 2),)),
    Case("unique-nan", lambda tf, x: list(tf.unique(x)), (of("float32", NAN, 1, NAN, 0.0, -0.0),)),
    Case(
        "unique-strings",
        lambda tf, x: list(tf.unique(x, tf.int64)),
        (STRINGS,),
        frameworks=("numpy",),
    ),
    Case("unique-counts", lambda tf, x: list(tf.unique_with_counts(x)), (of("int32", 3, 1, 3, 2),)),
    Case("unique-none", lambda tf, x: list(tf.unique(x)), (of("int32"),)),
    Case(
        "bincount",
        lambda tf, x: tf.bincount(x),
        (of("int32", 1, 1, 5, 2),),
        named=False,
        static=False,
    ),
    Case(
        "bincount-weights",
        lambda tf, x, w: tf.bincount(x, w, 7),
        (of("int32", 1, 1, 5), V[:3]),
        named=False,
        static=False,
    ),
    Case(
        "bincount-most",
        lambda tf, x: tf.bincount(x, maxlength=3),
        (of("int32", 1, 1, 5),),
        named=False,
        static=False,
    ),
]

# ---- linear algebra, generation ------------------------------------------------------------------

S = random("float64", 3, 3) + 4 * np.eye(3)
# S @ S.T, whose last digits depend on the BLAS of NumPy, and the recorded answers on them.
P = np.array(
    [
        [48.654359844192186, -49.16481563259446, 3.4601095652161784],
        [-49.16481563259446, 76.95958792231276, -6.875019336723608],
        [3.4601095652161784, -6.875019336723608, 8.860360930768072],
    ]
)
LINEAR = [
    *(
        Case(
            f"matmul-{dtype}-{flip_a}-{flip_b}",
            lambda tf, x, y, a=flip_a, b=flip_b: tf.matmul(x, y, transpose_a=a, transpose_b=b),
            (
                random(dtype, *((4, 3) if flip_a else (3, 4))),
                random(dtype, *((2, 4) if flip_b else (4, 2))),
            ),
        )
        for dtype in (*FLOATS, *COMPLEX, "int32", "int64")
        for flip_a in (False, True)
        for flip_b in (False, True)
    ),
    Case("matmul-adjoint", lambda tf, x: tf.matmul(x, x, adjoint_a=True), (C,)),
    Case(
        "matmul-consts", lambda tf, x: [tf.matmul([[1.0] * 3], x), tf.matmul(x, [[1.0]] * 4)], (M,)
    ),
    Case(
        "matmul-nothing",
        lambda tf, x, y: tf.matmul(x, y),
        (random("float32", 2, 0), random("float32", 0, 3)),
    ),
    Case("matmul-wrong", lambda tf, x: tf.matmul(x, x), (M,), error="x"),
    Case("matmul-both", lambda tf, x: tf.matmul(x, x, True, adjoint_a=True), (M,), error="x"),
    Case("matmul-vector", lambda tf, x, y: tf.matmul(x, y), (M, V), error="x"),
    *(
        Case(
            f"batch-{dtype}-{a}-{b}",
            lambda tf, x, y, a=a, b=b: tf.matmul(x, y, a, b),
            (random(dtype, 2, 1, 3, 3), random(dtype, 4, 3, 3)),
        )
        for dtype in ("float32", "float16", "bfloat16", "complex64", "int32")
        for a in (False, True)
        for b in (False, True)
    ),
    Case(
        "batch-adjoint",
        lambda tf, x: tf.matmul(x, x, adjoint_b=True),
        (random("complex64", 2, 3, 3),),
    ),
    Case(
        "batch-wrong",
        lambda tf, x, y: tf.matmul(x, y),
        (random("float32", 2, 3, 3), random("float32", 3, 3, 3)),
        error="x",
    ),
    Case("matvec", lambda tf, x, y: tf.linalg.matvec(x, y), (M, V)),
    *(
        Case(
            f"einsum-{text}",
            lambda tf, *x, text=text: tf.einsum(text, *x),
            tuple(random("float32", *shape) for shape in shapes),
        )
        for text, shapes in (
            ("ij,jk->ik", ((2, 3), (3, 4))),
            ("ij,jk", ((2, 3), (3, 4))),
            ("ij->ji", ((2, 3),)),
            ("ij->", ((2, 3),)),
            ("ii->i", ((3, 3),)),
            ("bij,bjk->bik", ((2, 3, 4), (2, 4, 2))),
            ("...ij,...jk->...ik", ((2, 3, 4), (4, 2))),
            ("bhid,bhjd->bhij", ((2, 2, 3, 4), (2, 2, 5, 4))),
            ("i,j->ij", ((2,), (3,))),
            ("i,i", ((3,), (3,))),
            ("ab...,b->a...", ((2, 3, 4), (3,))),
        )
    ),
    Case(
        "einsum-three",
        lambda tf, x, y: tf.einsum("ij,jk,ik->i", x, y, x),
        (M[:, :3], M[:, :3]),
        named=False,
    ),
    Case("sign-complex", lambda tf, x: tf.sign(x), (of("complex64", 3 + 4j, 0, -2j),), named=False),
    Case("einsum-half", lambda tf, x: tf.einsum("ij,kj->ik", x, x), (random("bfloat16", 3, 4),)),
    Case("einsum-complex", lambda tf, x: tf.einsum("ij,kj->ik", x, x), (C,)),
    Case("einsum-wrong", lambda tf, x: tf.einsum("ij,jk->ik", x, x), (M,), error="x"),
    Case("einsum-rank", lambda tf, x: tf.einsum("ijk->ik", x), (M,), error="x"),
    Case(
        "tensordot",
        lambda tf, x, y: [tf.tensordot(x, y, 1), tf.tensordot(x, y, [[0, 1], [1, 0]])],
        (random("float32", 3, 4), random("float32", 4, 3)),
        named=False,
        static=False,
    ),
    Case("tensordot-more", lambda tf, x, y: tf.tensordot(x, y, [[2], [0]]), (T, M.T), static=False),
    Case("tensordot-outer", lambda tf, x: tf.tensordot(x, x, 0), (V,), named=False, static=False),
    Case(
        "norm",
        lambda tf, x: [
            tf.norm(x),
            tf.norm(x, axis=1),
            tf.norm(x, 1, axis=0),
            tf.norm(x, np.inf),
            tf.norm(x, 3, keepdims=True),
        ],
        (M,),
        named=False,
    ),
    Case(
        "norm-matrix",
        lambda tf, x: [
            tf.norm(x, "fro", [0, 1]),
            tf.norm(x, 1, [0, 1]),
            tf.norm(x, np.inf, [-2, -1]),
        ],
        (M,),
        named=False,
    ),
    Case("norm-complex", lambda tf, x: tf.norm(x, axis=1), (C,), named=False),
    Case("diag", lambda tf, x: [tf.matrix_diag(x), tf.linalg.diag(x)], (M,)),
    Case("diag_part", lambda tf, x: tf.matrix_diag_part(x), (T,)),
    Case("set_diag", lambda tf, x, y: tf.matrix_set_diag(x, y), (T, random("float32", 2, 3))),
    Case("set_diag-tall", lambda tf, x, y: tf.matrix_set_diag(x, y), (M.T, random("float32", 3))),
    *(
        Case(
            f"band-{lower}-{upper}",
            lambda tf, x, a=lower, b=upper: tf.matrix_band_part(x, a, b),
            (T,),
        )
        for lower in (-1, 0, 2)
        for upper in (-1, 0, 1)
    ),
    Case("band-wrong", lambda tf, x: tf.matrix_band_part(x, 7, 0), (T,), error="x"),
    Case("inverse", lambda tf, x: [tf.matrix_inverse(x), tf.matrix_inverse(x, adjoint=True)], (S,)),
    Case(
        "inverse-batch", lambda tf, x: tf.matrix_inverse(x), (np.stack([S, S.T]).astype("float32"),)
    ),
    Case(
        "singular",
        lambda tf, x: tf.matrix_inverse(x),
        (np.zeros((2, 2)),),
        error="x",
        frameworks=NUMPY_TORCH,
    ),
    Case("solve", lambda tf, x, y: tf.matrix_solve(x, y), (S, random("float64", 3, 2))),
    Case("determinant", lambda tf, x: tf.matrix_determinant(x), (np.stack([S, P]),)),
    Case("cholesky", lambda tf, x: tf.cholesky(x), (np.stack([P, np.eye(3)]),)),
    Case(
        "cross", lambda tf, x, y: tf.cross(x, y), (random("float32", 2, 3), random("float32", 2, 3))
    ),
    Case("trace", lambda tf, x: tf.trace(x), (T,)),
]
GENERATION = [
    Case("range", lambda tf: [tf.range(3), tf.range(1, 10, 2), tf.range(5, 0, -2), tf.range(3, 3)]),
    Case(
        "range-floats", lambda tf: [tf.range(0.0, 1.0, 0.1), tf.range(3.0), tf.range(1, 2.5, 0.25)]
    ),
    Case(
        "range-kinds",
        lambda tf: [tf.range(3, dtype=tf.int64), tf.range(np.int64(4)), tf.range(2**33, 2**33 + 2)],
    ),
    Case("range-tensor", lambda tf, n: tf.range(n), (of("int32", 4)[0],)),
    Case("range-zero", lambda tf: tf.range(0, 5, 0), error="x"),
    Case("range-away", lambda tf: tf.range(0, 5, -1), error="x"),
    Case("range-away-run", lambda tf, n: tf.range(n, 5, -1), (of("int32", 0)[0],), error="x"),
    Case("fill", lambda tf: [tf.fill([2, 3], 1.5), tf.fill([], 2), tf.fill([0], True)]),
    Case("fill-tensor", lambda tf, n, x: tf.fill(n, x), (of("int32", 2, 3), of("float32", 7.0)[0])),
    Case(
        "fill-negative", lambda tf, n: tf.fill(n, 1.0), (of("int32", -1),), error="x", static=False
    ),
    Case("fill-strings", lambda tf: tf.fill([2], "a"), frameworks=("numpy",)),
    Case("linspace", lambda tf: tf.linspace(0.0, 1.0, 7), named=False),
    Case("linspace-one", lambda tf: tf.linspace(2.0, 5.0, 1), named=False),
    Case(
        "zeros",
        lambda tf: [tf.zeros([2, 3]), tf.zeros([]), tf.ones((2,), tf.int32), tf.ones([2], tf.bool)],
    ),
    Case("zeros-large", lambda tf: [tf.zeros([20, 60]), tf.ones([20, 60], tf.int64)]),
    Case("zeros-tensor", lambda tf, n: [tf.zeros(n), tf.ones(n, tf.int32)], (of("int32", 2, 3),)),
    Case("zeros-strings", lambda tf: tf.zeros([2], tf.string), frameworks=("numpy",)),
    Case("zeros-half", lambda tf: [tf.zeros([2], tf.bfloat16), tf.ones([2], tf.float16)]),
    Case("like", lambda tf, x: [tf.zeros_like(x), tf.ones_like(x)], (M,)),
    Case(
        "like-kind",
        lambda tf, x: [tf.zeros_like(x, tf.int32), tf.ones_like(x, dtype=tf.bool)],
        (M,),
    ),
    Case(
        "eye",
        lambda tf: [tf.eye(3), tf.eye(2, 3), tf.eye(2, dtype=tf.int32), tf.eye(2, batch_shape=[3])],
        named=False,
    ),
]

CASES = [*ELEMENTWISE, *OPERATORS, *CASTS, *SELECTION, *REDUCTIONS, *LINEAR, *GENERATION]
# The other dtypes of a class have the same kernels: they are in the long ring.
FULL = ("float16", "float64", "complex128", "int8", "int16", "int64", "uint16", "uint32", "uint64")


def is_fast(case: Case) -> bool:
    """Return whether a case has one dtype of each class, or is about no dtype."""
    return case.name.rpartition("-")[2] not in FULL


def in_ring(cases: list[Case]) -> list[Case]:
    """Return the cases of the ring that this process belongs to."""
    if os.environ.get("DLBRIDGE_TESTS_RING", "all") == "all":
        return cases
    return [case for case in cases if is_fast(case)]


def ask_static(case: Case, known: str) -> Outcome:
    """Return TensorFlow's names, dtypes and static shapes."""
    return static(tensorflow(), case, known)


def ask_values(case: Case) -> Outcome:
    """Return TensorFlow's values."""
    one = tensorflow()
    return values(one, case, config=plain(one))


FAMILIES = families(CASES)
each_family = pytest.mark.parametrize("family", FAMILIES)
has_fast = pytest.mark.fast(lambda family: any(map(is_fast, FAMILIES[family])))


@has_fast
@each_family
def test_names_dtypes_and_static_shapes_are_tensorflows(answers: Answers, family: str) -> None:
    """Also those of inputs of which less is known; what is wrong then shows as early as there."""
    for case in in_ring(FAMILIES[family]):
        question = f"static {case.name}"
        all_known = [*answers(f"{question} all", partial(ask_static, case, "all"), *case.inputs)]
        # The composite is another one where `static` is false, and so what is known of it.
        for known in ("all", "some", "rank", "nothing") if case.static else ("all",):
            ours = static(tf, case, known)
            ask = partial(ask_static, case, known)
            less_known = answers(f"{question} {known}", ask, *case.inputs)
            for truth, theirs in zip(all_known, less_known, strict=True):
                check_static(case, ours, Outcome(*theirs), Outcome(*truth))


def check_static(case: Case, ours: Outcome, theirs: Outcome, truth: Outcome) -> None:
    """Check our outcome against TensorFlow's, and against that with all known."""
    truth = theirs if truth.error else truth
    assert ours.error == theirs.error
    if ours.error:
        return
    for got, wanted, true in zip(ours.results, theirs.results, truth.results, strict=True):
        assert got[1] == wanted[1]
        if case.static:
            assert refines(got[2], wanted[2])
            assert refines(true[2], got[2])
        if case.named:
            assert got[0] == wanted[0]


@has_fast
@pytest.mark.parametrize("framework_name", ["numpy", "torch", "jax"])
@each_family
def test_values_are_tensorflows(
    answers: Answers, framework: Any, family: str, framework_name: str
) -> None:
    """In one graph for the functions of a family, but for those that fail."""
    cases = [each for each in in_ring(FAMILIES[family]) if framework_name in each.frameworks]
    if not cases:
        pytest.skip(f"{framework_name} cannot do this, or cannot tell")
    framework(framework_name)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        warnings.filterwarnings("ignore", "Error .* persistent compilation cache")  # JAX's own
        outcomes = together(tf, cases, framework=framework_name)
    for case, got in zip(cases, outcomes, strict=True):
        for answer in answers(f"values {case.name}", partial(ask_values, case), *case.inputs):
            wanted = Outcome(*answer)
            assert got.error == wanted.error, case.name
            if case.error:
                assert wanted.error is not None
                continue
            for one, other in zip(got.results, wanted.results, strict=True):
                assert_close(one, other, of=case.name)

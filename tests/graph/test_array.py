"""Functions that move elements, on every framework, against TensorFlow: names, shapes, values."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import pytest
from answers import Answers
from graph.graph_oracle import families

import dlbridge.graph as tf
from dlbridge.execution.errors import OpError

FRAMEWORKS = ("numpy", "torch", "jax")
RANDOM = np.random.default_rng(4)


def counted(*shape: int, dtype: Any = "float32") -> Any:
    """Return an array whose elements all differ."""
    return np.arange(np.prod(shape, dtype=int)).reshape(shape).astype(dtype)


def ints(*values: Any, dtype: Any = "int32") -> Any:
    return np.array(values if len(values) != 1 else values[0], dtype)


def scalar(tf: Any, tensor: Any) -> Any:
    """Return the tensor in the shape of a scalar."""
    return tf.reshape(tensor, np.zeros(0, np.int32))


class Case(NamedTuple):
    """A graph, built by functions of `tf` on placeholders, and the values fed to these."""

    name: str
    build: Callable[..., Any]
    inputs: tuple[Any, ...] = ()


X = counted(2, 3, 4)
EMPTY = counted(0, 3)
SCALAR = counted()


def on(*inputs: Any, **builds: Callable[..., Any]) -> list[Case]:
    """Return a case for each function, all with the same inputs."""
    return [Case(name, build, inputs) for name, build in builds.items()]


SHAPES = [
    *on(
        X,
        shape=lambda tf, x: tf.shape(x),
        shape64=lambda tf, x: tf.shape(x, out_type=tf.int64, name="s"),
        size=lambda tf, x: tf.size(x),
        size64=lambda tf, x: tf.size(x, out_type=tf.int64),
        rank=lambda tf, x: tf.rank(x),
        shape_n=lambda tf, x: tf.shape_n([x, x]),
        identity_n=lambda tf, x: tf.identity_n([x, tf.constant([1, 2])]),
        ensure_shape=lambda tf, x: tf.ensure_shape(x, [None, 3, 4]),
    ),
    *on(SCALAR, shape0=lambda tf, x: tf.shape(x), size0=lambda tf, x: tf.size(x)),
    *on(EMPTY, shape_empty=lambda tf, x: tf.shape(x), size_empty=lambda tf, x: tf.size(x)),
    *on(
        ints(3, 1),
        ints(2, 1, 4),
        broadcast_dynamic_shape=lambda tf, a, b: tf.broadcast_dynamic_shape(a, b),
    ),
]
RESHAPES = [
    *on(
        X,
        reshape=lambda tf, x: tf.reshape(x, [4, 6]),
        reshape_infer=lambda tf, x: tf.reshape(x, [-1, 8]),
        reshape_flat=lambda tf, x: tf.reshape(x, [-1], name="flat"),
        reshape_64=lambda tf, x: tf.reshape(x, np.array([2, -1], np.int64)),
        reshape_scalar=lambda tf, x: tf.reshape(x, -1),
        reshape_wrong=lambda tf, x: tf.reshape(x, [5, -1]),
        reshape_chain=lambda tf, x: tf.reshape(x, tf.stack([tf.shape(x)[0], 12])),
        reshape_chain_concat=lambda tf, x: tf.reshape(x, tf.concat([tf.shape(x)[:1], [-1]], 0)),
        reshape_like=lambda tf, x: tf.reshape(x, tf.shape(x)),
        squeeze_nothing=lambda tf, x: tf.squeeze(x),
        expand_dims=lambda tf, x: tf.expand_dims(x, 0),
        expand_dims_last=lambda tf, x: tf.expand_dims(x, -1),
        expand_dims_old=lambda tf, x: tf.expand_dims(x, dim=1, name="e"),
        expand_dims_wrong=lambda tf, x: tf.expand_dims(x, 4),
        expand_dims_none=lambda tf, x: tf.expand_dims(x),
    ),
    *on(
        counted(1, 3, 1),
        squeeze=lambda tf, x: tf.squeeze(x),
        squeeze_axis=lambda tf, x: tf.squeeze(x, 0),
        squeeze_axes=lambda tf, x: tf.squeeze(x, [0, -1]),
        squeeze_dims=lambda tf, x: tf.squeeze(x, squeeze_dims=[2]),
        squeeze_wrong=lambda tf, x: tf.squeeze(x, [1]),
        squeeze_none=lambda tf, x: tf.squeeze(x, [3]),
        squeeze_both=lambda tf, x: tf.squeeze(x, axis=[0], squeeze_dims=[0]),
    ),
    *on(
        EMPTY,
        reshape_empty=lambda tf, x: tf.reshape(x, [3, 0]),
        reshape_empty_infer=lambda tf, x: tf.reshape(x, [-1, 3]),
    ),
    *on(
        SCALAR,
        reshape_0d=lambda tf, x: tf.reshape(x, [1, 1]),
        reshape_to_0d=lambda tf, x: scalar(tf, tf.reshape(x, [1])),
        expand_0d=lambda tf, x: tf.expand_dims(x, 0),
        squeeze_0d=lambda tf, x: tf.squeeze(x),
    ),
    *on(X, ints(3, -1), reshape_fed=lambda tf, x, s: tf.reshape(x, s)),
    *on(X, ints(-2), expand_dims_fed=lambda tf, x, a: tf.expand_dims(x, scalar(tf, a))),
]
ORDERS = [
    *on(
        X,
        transpose=lambda tf, x: tf.transpose(x),
        transpose_perm=lambda tf, x: tf.transpose(x, [1, 0, 2]),
        transpose_name=lambda tf, x: tf.transpose(x, perm=(2, 0, 1), name="t"),
        transpose_conjugate=lambda tf, x: tf.transpose(x, conjugate=True),
        transpose_short=lambda tf, x: tf.transpose(x, [1, 0]),
        transpose_wrong=lambda tf, x: tf.transpose(x, [0, 1, 3]),
        matrix_transpose=lambda tf, x: tf.matrix_transpose(x),
        reverse=lambda tf, x: tf.reverse(x, [1]),
        reverse_two=lambda tf, x: tf.reverse(x, [0, -1]),
        reverse_none=lambda tf, x: tf.reverse(x, np.zeros(0, np.int32)),
        reverse_wrong=lambda tf, x: tf.reverse(x, [3]),
        reverse_twice=lambda tf, x: tf.reverse(x, [0, -3]),
        reverse_v2=lambda tf, x: tf.reverse_v2(x, [2], name="r"),
        reverse_sequence=lambda tf, x: tf.reverse_sequence(x, [2, 3], seq_axis=1, batch_axis=0),
        reverse_sequence_other=lambda tf, x: tf.reverse_sequence(
            x, [0, 1, 2, 2], seq_dim=0, batch_dim=2
        ),
        reverse_sequence_wrong=lambda tf, x: tf.reverse_sequence(x, [2, 3, 1], 1, 0),
    ),
    *on(X, ints(2, 0, 1), transpose_fed=lambda tf, x, p: tf.transpose(x, p)),
    *on(
        X.astype("complex64") * 1j,
        conjugate_transpose=lambda tf, x: tf.transpose(x, conjugate=True),
        conjugate_matrix=lambda tf, x: tf.matrix_transpose(x, conjugate=True),
    ),
    *on(SCALAR, transpose_0d=lambda tf, x: tf.transpose(x)),
    *on(ints(2, 0, 3, 1), invert_permutation=lambda tf, x: tf.invert_permutation(x)),
    *on(ints(2, 0, 1, dtype="int64"), invert_permutation64=lambda tf, x: tf.invert_permutation(x)),
    *on(
        counted(3, 1),
        broadcast_to=lambda tf, x: tf.broadcast_to(x, [2, 3, 4]),
        broadcast_wrong=lambda tf, x: tf.broadcast_to(x, [2, 4]),
        broadcast_same=lambda tf, x: tf.broadcast_to(x, [3, 1], name="b"),
        broadcast_empty=lambda tf, x: tf.broadcast_to(x, [0, 3, 1]),
    ),
    *on(counted(3), ints(2, 3), broadcast_fed=lambda tf, x, s: tf.broadcast_to(x, s)),
]
JOINS = [
    *on(
        X,
        counted(2, 1, 4),
        concat=lambda tf, x, y: tf.concat([x, y], 1),
        concat_negative=lambda tf, x, y: tf.concat([x, y, x], -2, name="c"),
        concat_wrong=lambda tf, x, y: tf.concat([x, y], 0),
        concat_axis=lambda tf, x, y: tf.concat([x, y], 3),
        concat_constant=lambda tf, x, y: tf.concat([x, np.zeros((2, 2, 4), np.float32)], 1),
        stack_wrong=lambda tf, x, y: tf.stack([x, y]),
    ),
    *on(
        X,
        concat_one=lambda tf, x: tf.concat([x], 1),
        concat_alone=lambda tf, x: tf.concat(x, 0),
        concat_type=lambda tf, x: tf.concat([x, tf.constant([[[1]]])], 0),
        stack=lambda tf, x: tf.stack([x, x]),
        stack_axis=lambda tf, x: tf.stack([x, x, x], axis=1),
        stack_last=lambda tf, x: tf.stack([x, x], axis=-1, name="s"),
        stack_beyond=lambda tf, x: tf.stack([x, x], axis=5),
        parallel=lambda tf, x: tf.stack([x]),
        unstack=lambda tf, x: tf.unstack(x),
        unstack_axis=lambda tf, x: tf.unstack(x, axis=-1),
        unstack_num=lambda tf, x: tf.unstack(x, 3, 1, name="u"),
        unstack_wrong=lambda tf, x: tf.unstack(x, 5, 1),
        unstack_beyond=lambda tf, x: tf.unstack(x, 2, axis=3),
        split=lambda tf, x: tf.split(x, 2),
        split_axis=lambda tf, x: tf.split(x, 2, axis=-1, name="s"),
        split_wrong=lambda tf, x: tf.split(x, 2, 1),
        split_sizes=lambda tf, x: tf.split(x, [1, 0, 3], 2),
        split_rest=lambda tf, x: tf.split(x, [1, -1], 1),
        split_sizes_wrong=lambda tf, x: tf.split(x, [1, 1], 1),
        split_one=lambda tf, x: tf.split(x, 1, 1),
        split_beyond=lambda tf, x: tf.split(x, 2, 3),
        split_sizes_tensor=lambda tf, x: tf.split(x, tf.constant([2, 1]), 1),
    ),
    *on(
        ints(5),
        stack_numbers=lambda tf, x: tf.stack([1, 2, 3]),
        stack_mixed=lambda tf, x: tf.stack([scalar(tf, x), 2, 3]),
        stack_nested=lambda tf, x: tf.stack([[scalar(tf, x), 1], [2, 3]]),
        concat_scalars=lambda tf, x: tf.concat([scalar(tf, x), 3], 0),
        unstack_constant=lambda tf, x: tf.unstack([[1, 2], [3, 4]]),
    ),
    *on(X, ints(1), concat_fed=lambda tf, x, a: tf.concat([x, x], scalar(tf, a))),
    *on(X, ints(1), split_fed=lambda tf, x, a: tf.split(x, 3, scalar(tf, a))),
    *on(X, ints(2, 1), split_sizes_fed=lambda tf, x, s: tf.split(x, s, 1, num=2)),
    *on(
        EMPTY,
        concat_empty=lambda tf, x: tf.concat([x, x], 0),
        pack_empty=lambda tf, x: tf.stack([x, x]),
    ),
]
SLICES = [
    *on(
        X,
        slice=lambda tf, x: tf.slice(x, [0, 1, 1], [2, 2, 3]),
        slice_rest=lambda tf, x: tf.slice(x, [1, 0, 2], [-1, 2, -1], name="s"),
        slice_empty=lambda tf, x: tf.slice(x, [2, 0, 0], [-1, -1, -1]),
        slice_wrong=lambda tf, x: tf.slice(x, [0, 0], [1, 1]),
        slice_list=lambda tf, x: tf.slice(x, [0, 0, 0], tf.stack([tf.shape(x)[0], 2, 2])),
        strided=lambda tf, x: tf.strided_slice(x, [0, 1, 0], [2, 3, 4], [1, 1, 2]),
        strided_ones=lambda tf, x: tf.strided_slice(x, [0], [1]),
        strided_masks=lambda tf, x: tf.strided_slice(
            x, [1, 1, 0], [2, 0, 3], begin_mask=1, end_mask=2, shrink_axis_mask=4
        ),
        strided_new=lambda tf, x: tf.strided_slice(
            x, [0, 0, 1], [0, 0, 2], [1, 1, 1], ellipsis_mask=1, new_axis_mask=2
        ),
        strided_ellipses=lambda tf, x: tf.strided_slice(x, [0, 0], [1, 1], ellipsis_mask=3),
        item=lambda tf, x: x[0],
        item_negative=lambda tf, x: x[-1],
        item_beyond=lambda tf, x: x[2],
        items=lambda tf, x: x[1, 2, 3],
        too_many=lambda tf, x: x[1, 2, 3, 0],
        whole=lambda tf, x: x[:],
        whole_ellipsis=lambda tf, x: x[...],
        mixed=lambda tf, x: x[..., 1:3, None],
        backwards=lambda tf, x: x[::-1, ::-2],
        new_first=lambda tf, x: x[None, :, 1],
        new_and_ellipsis=lambda tf, x: x[None, ..., None, 0],
        stepped=lambda tf, x: x[:, :2, 1::2],
        empty_range=lambda tf, x: x[:, 2:1],
        beyond_range=lambda tf, x: x[-9:9, 5:],
        zero_step=lambda tf, x: x[::0],
        float_index=lambda tf, x: x[1.5],
        string_index=lambda tf, x: x["a"],
        from_shape=lambda tf, x: x[: tf.shape(x)[0] - 1],
        numpy_index=lambda tf, x: x[np.int32(1), np.int64(2)],
        empty_tuple=lambda tf, x: x[()],
        shape_part=lambda tf, x: tf.shape(x)[1:],
    ),
    *on(X, ints(1), tensor_bounds=lambda tf, x, i: x[scalar(tf, i) :, : scalar(tf, i)]),
    *on(X, ints(1), tensor_index=lambda tf, x, i: x[scalar(tf, i)]),
    *on(X, ints(0, 1, 1), fed_begin=lambda tf, x, b: tf.strided_slice(x, b, [2, 3, 4])),
    *on(X, ints(1, dtype="int64"), tensor_index64=lambda tf, x, i: x[0, scalar(tf, i)]),
    *on(SCALAR, item_0d=lambda tf, x: x[...], new_0d=lambda tf, x: x[None, ..., None]),
]
EXTENSIONS = [
    *on(
        X,
        tile=lambda tf, x: tf.tile(x, [1, 2, 3]),
        tile_zero=lambda tf, x: tf.tile(x, [1, 0, 1], name="t"),
        tile_wrong=lambda tf, x: tf.tile(x, [1, 2]),
        pad=lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [3, 0]]),
        pad_value=lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [3, 0]], constant_values=-1.5),
        pad_int=lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [3, 0]], constant_values=2),
        pad_reflect=lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [3, 0]], "REFLECT"),
        pad_symmetric=lambda tf, x: tf.pad(x, [[2, 2], [1, 2], [3, 0]], "symmetric", name="p"),
        pad_mode=lambda tf, x: tf.pad(x, [[0, 0], [1, 2], [3, 0]], "wrap"),
        pad_wrong=lambda tf, x: tf.pad(x, [[0, 0], [1, 2]]),
        pad_columns=lambda tf, x: tf.pad(x, [[0], [1], [2]]),
        pad_nothing=lambda tf, x: tf.pad(x, [[0, 0]] * 3),
    ),
    *on(X, ints([[1, 0], [0, 0], [2, 2]]), pad_fed=lambda tf, x, p: tf.pad(x, p)),
    *on(X, ints(2, 1, 1), tile_fed=lambda tf, x, m: tf.tile(x, m)),
    *on(
        ints(0, 2, -1, 3),
        one_hot=lambda tf, i: tf.one_hot(i, 3),
        one_hot_axis=lambda tf, i: tf.one_hot(i, 3, axis=0, dtype=tf.int32),
        one_hot_values=lambda tf, i: tf.one_hot(i, 3, 5.0, -1.0, name="o"),
        one_hot_bool=lambda tf, i: tf.one_hot(i, 3, True, False),
        one_hot_types=lambda tf, i: tf.one_hot(i, 3, 1.0, dtype=tf.int32),
        one_hot_wrong=lambda tf, i: tf.one_hot(i, 3, axis=2),
        one_hot_zero=lambda tf, i: tf.one_hot(i, 0),
        one_hot_bfloat16=lambda tf, i: tf.one_hot(i, 3, dtype=tf.float16),
    ),
    *on(
        ints([[0, 1], [2, 0]], dtype="int64"),
        one_hot_matrix=lambda tf, i: tf.one_hot(i, 3, axis=1),
    ),
    *on(ints(1), one_hot_0d=lambda tf, i: tf.one_hot(scalar(tf, i), 3)),
    *on(
        counted(2, 4, 6, 3),
        space_to_depth=lambda tf, x: tf.space_to_depth(x, 2),
        space_to_batch_nd=lambda tf, x: tf.space_to_batch_nd(x, [2, 3], [[0, 0], [1, 2]]),
        space_to_batch_one=lambda tf, x: tf.space_to_batch_nd(x, [2], [[1, 1]], name="s"),
        space_to_batch_wrong=lambda tf, x: tf.space_to_batch_nd(x, [3, 3], [[0, 0], [0, 0]]),
        space_to_batch=lambda tf, x: tf.space_to_batch(x, [[0, 0], [0, 0]], block_size=2),
    ),
    *on(
        counted(12, 2, 2, 3),
        depth_to_space_wrong=lambda tf, x: tf.depth_to_space(x, 2),
        batch_to_space_nd=lambda tf, x: tf.batch_to_space_nd(x, [2, 3], [[0, 1], [1, 2]]),
        batch_to_space=lambda tf, x: tf.batch_to_space(x, [[0, 0], [0, 1]], 2),
        batch_to_space_wrong=lambda tf, x: tf.batch_to_space_nd(x, [5], [[0, 0]]),
        batch_to_space_crops=lambda tf, x: tf.batch_to_space_nd(x, [2], [[3, 2]]),
    ),
]
INDICES = [
    *on(
        X,
        gather=lambda tf, x: tf.gather(x, [1, 0, 1]),
        gather_scalar=lambda tf, x: tf.gather(x, 1),
        gather_axis=lambda tf, x: tf.gather(x, [[0, 3], [1, 1]], axis=2),
        gather_negative_axis=lambda tf, x: tf.gather(x, [2, 0], axis=-2, name="g"),
        gather_batch=lambda tf, x: tf.gather(x, [[0, 1, 1], [2, 0, 1]], axis=2, batch_dims=1),
        gather_batch_default=lambda tf, x: tf.gather(x, [[0, 1], [2, 0]], batch_dims=1),
        gather_batch_negative=lambda tf, x: tf.gather(x, [[0, 1], [2, 0]], batch_dims=-1, axis=1),
        gather_batch_wrong=lambda tf, x: tf.gather(x, [[0, 1]] * 3, batch_dims=1),
        gather_beyond=lambda tf, x: tf.gather(x, [0], axis=3),
        gather_empty=lambda tf, x: tf.gather(x, np.zeros((0, 2), np.int32)),
        batch_gather=lambda tf, x: tf.batch_gather(x, [[0, 1], [2, 0]]),
        gather_nd=lambda tf, x: tf.gather_nd(x, [[0, 1], [1, 2]]),
        gather_nd_full=lambda tf, x: tf.gather_nd(x, [[[0, 1, 3]], [[1, 2, 0]]]),
        gather_nd_none=lambda tf, x: tf.gather_nd(x, np.zeros((2, 0), np.int32)),
        gather_nd_deep=lambda tf, x: tf.gather_nd(x, [[0, 0, 0, 0]]),
        gather_nd_one=lambda tf, x: tf.gather_nd(x, [1], name="n"),
        update=lambda tf, x: tf.tensor_scatter_nd_update(
            x, [[0, 1], [1, 2]], np.ones((2, 4), "f4")
        ),
        add=lambda tf, x: tf.tensor_scatter_nd_add(x, [[0], [0]], np.ones((2, 3, 4), "f4")),
        sub=lambda tf, x: tf.tensor_scatter_nd_sub(x, [[0], [0]], np.ones((2, 3, 4), "f4")),
        most=lambda tf, x: tf.tensor_scatter_nd_max(x, [[0], [1]], np.full((2, 3, 4), 9, "f4")),
        least=lambda tf, x: tf.tensor_scatter_nd_min(x, [[0], [1]], np.full((2, 3, 4), 9, "f4")),
        update_wrong=lambda tf, x: tf.tensor_scatter_nd_update(x, [[0, 1]], np.ones((2, 4), "f4")),
    ),
    *on(X, ints(2, 0), gather_fed=lambda tf, x, i: tf.gather(x, i, axis=1)),
    *on(
        X, ints([[0, 1], [1, 0]], dtype="int64"), gather_nd_fed=lambda tf, x, i: tf.gather_nd(x, i)
    ),
    *on(X, ints(1), gather_axis_fed=lambda tf, x, a: tf.gather(x, [0, 1], axis=scalar(tf, a))),
    *on(
        ints([[1], [3], [1]]),
        counted(3, 2),
        scatter_nd=lambda tf, i, u: tf.scatter_nd(i, u, [5, 2]),
        scatter_nd_shape=lambda tf, i, u: tf.scatter_nd(i, u, [5, 3]),
        scatter_nd_chain=lambda tf, i, u: tf.scatter_nd(i, u, tf.stack([4, tf.shape(u)[1]])),
    ),
    *on(
        ints([[1], [3], [1]], dtype="int64"),
        ints(1, 2, 3),
        np.array([4]),
        scatter_nd_fed=lambda tf, i, u, s: tf.scatter_nd(i, u, s),
    ),
]
PARTITIONS = [
    *on(
        X,
        roll=lambda tf, x: tf.roll(x, 1, 1),
        roll_axes=lambda tf, x: tf.roll(x, [1, -5], [0, -1], name="r"),
        roll_wrong=lambda tf, x: tf.roll(x, [1, 2], [0]),
        dynamic_partition=lambda tf, x: tf.dynamic_partition(x, [1, 0], 3),
        dynamic_partition_deep=lambda tf, x: tf.dynamic_partition(x, [[0, 1, 0], [1, 1, 1]], 2),
        dynamic_partition_wrong=lambda tf, x: tf.dynamic_partition(x, [1, 2], 2),
        dynamic_stitch=lambda tf, x: tf.dynamic_stitch([[0, 3], [1]], [x, x[:1]]),
        dynamic_stitch_scalar=lambda tf, x: tf.dynamic_stitch([4, [1, 0]], [x[0], x], name="d"),
        dynamic_stitch_wrong=lambda tf, x: tf.dynamic_stitch([[0, 3], [1]], [x, x]),
        guarantee_const=lambda tf, x: tf.guarantee_const(x),
    ),
    *on(
        ints(5, 0, 7),
        unravel_index=lambda tf, i: tf.unravel_index(i, [2, 4]),
        unravel_index_wrong=lambda tf, i: tf.unravel_index(i, [2, 3]),
        setdiff1d=lambda tf, i: list(tf.setdiff1d(i, [0, 9])),
    ),
    *on(
        np.array([b"1.5", b"-2e3"], object),
        to_number=lambda tf, x: tf.string_to_number(x),
        to_number_wrong=lambda tf, x: tf.strings.to_number(x, tf.int32),
        strings_join=lambda tf, x: tf.strings.join([x, x], name="j"),
    ),
]
KINDS = (
    "bool",
    "uint8",
    "int8",
    "int16",
    "uint32",
    "float16",
    ml_dtypes.bfloat16,
    "float64",
    "int64",
    "complex64",
)
DTYPES = [
    Case(
        f"moved_{np.dtype(kind).name}",
        lambda tf, x: [
            tf.concat([x[::-1], tf.reverse(x, [1])], 1),
            tf.gather(x, [1, 0, 1]),
            tf.pad(tf.transpose(x), [[1, 0], [0, 2]]),
            tf.stack(tf.unstack(x, num=2, axis=1), axis=0),
            tf.tile(x, [2, 1]),
            tf.gather_nd(x, [[0, 1]]),
        ],
        (counted(2, 2, dtype=kind),),
    )
    for kind in KINDS
]
STRINGS = [
    *on(
        np.array([[b"a", b"bc"], [b"", b"\xff"]], object),
        string_moved=lambda tf, x: [
            tf.concat([x, x[::-1]], 1),
            tf.gather(x, [1, 0]),
            tf.transpose(x),
            tf.stack([x, x]),
            tf.reshape(x, [-1]),
            tf.reverse(x, [0]),
            tf.tile(x, [1, 2]),
            tf.shape(x),
        ],
        string_join=lambda tf, x: tf.string_join([x, "-", x], "+"),
        string_join_name=lambda tf, x: tf.string_join([x], name="j"),
    ),
    *on(
        ints(1, -20, 300),
        as_string=lambda tf, x: tf.as_string(x),
        as_string_wide=lambda tf, x: tf.as_string(x, width=5, fill="0"),
    ),
    *on(
        np.array([1.5, -2e10, 1e-7, np.inf, np.nan], "float32"),
        as_string_float=lambda tf, x: tf.as_string(x),
        as_string_precision=lambda tf, x: tf.as_string(x, precision=2, width=8),
        as_string_scientific=lambda tf, x: tf.as_string(x, scientific=True, name="n"),
        as_string_shortest=lambda tf, x: tf.as_string(x, shortest=True),
    ),
    *on(np.array([True, False]), as_string_bool=lambda tf, x: tf.as_string(x)),
    *on(
        np.array([1.5 + 2j], "complex64"),
        as_string_complex=lambda tf, x: tf.as_string(x, precision=3),
    ),
    *on(
        np.array([b"abcdefgh", b"12345678"], object),
        decode_raw=lambda tf, x: tf.decode_raw(x, tf.int32),
        decode_raw_big=lambda tf, x: tf.decode_raw(x, tf.uint16, little_endian=False, name="d"),
        decode_raw_bytes=lambda tf, x: tf.decode_raw(bytes=x, out_type=tf.uint8),
        decode_raw_complex=lambda tf, x: tf.decode_raw(x, tf.complex64, little_endian=False),
    ),
]
CASES = [
    *SHAPES, *RESHAPES, *ORDERS, *JOINS, *SLICES, *EXTENSIONS, *INDICES, *DTYPES, *STRINGS,
    *PARTITIONS,
]  # fmt: skip


def tensorflow() -> Any:
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    return pytest.importorskip("tensorflow").compat.v1


LOOSENED: dict[str, Callable[[Any], Any]] = {
    "known": lambda x: x.shape,
    "batch": lambda x: (None, *x.shape[1:]) if x.ndim else (),
    "extents": lambda x: (None,) * x.ndim,
    "rank": lambda x: None,
}


def built(tf: Any, case: Case, how: str) -> tuple[Any, list[Any], list[Any]]:
    """Return the graph, the placeholders and the results of a case."""
    graph = tf.Graph()
    with graph.as_default():
        return graph, *placed(tf, case, how)


def placed(tf: Any, case: Case, how: str) -> tuple[list[Any], list[Any]]:
    """Return placeholders and results of a case in the current graph."""
    holders = [
        tf.placeholder(tf.string if x.dtype == object else x.dtype, LOOSENED[how](x))
        for x in case.inputs
    ]
    out = case.build(tf, *holders)
    return holders, list(out) if isinstance(out, list | tuple) else [out]


# We know more than TensorFlow: the batches of `params` and `indices` are one; the rank of the
# result of expand_dims does not depend on the axis.
KNOWN_BETTER = {
    "expand_dims_fed",
    "gather_batch",
    "gather_batch_default",
    "gather_batch_negative",
    "one_hot_wrong",
    "gather_batch_wrong",
}
# One GatherV2 instead of 17 operations; constants below slices are those of TensorFlow 1.15, which
# 2.21 casts one by one; nested lists are packed from inside.
OTHER_OPERATIONS = {
    "batch_gather",
    "from_shape",
    "tensor_bounds",
    "tensor_index64",
    "stack_nested",
}


class Summary(NamedTuple):
    """The outcome of building a case: results as (name, dtype, shape), or an error."""

    results: Any
    operations: dict[str, str]


def summary(tf: Any, case: Case, how: str) -> Summary:
    """Return names, dtypes and static shapes of results, and the operations that they need."""
    try:
        _, _, results = built(tf, case, how)
    except (TypeError, ValueError) as error:
        return Summary(ValueError if isinstance(error, ValueError) else TypeError, {})
    shapes = [None if each.shape.rank is None else each.shape.as_list() for each in results]
    rows = [
        (each.name, each.dtype.name, shape) for each, shape in zip(results, shapes, strict=True)
    ]
    return Summary(rows, behind(results))


def behind(tensors: list[Any]) -> dict[str, str]:
    """Return name and type of all operations that tensors depend on."""
    found: dict[str, str] = {}
    stack = [each.op for each in tensors]
    while stack:
        op = stack.pop()
        if op.name not in found:
            found[op.name] = op.type
            stack += [each.op for each in op.inputs]
    return found


def knows_as_much(found: Any, wanted: Any) -> bool:
    """Return whether static shapes contain all that the others do; an error knows everything."""
    if found is ValueError:
        return True
    for one, other in zip(found, wanted, strict=True):
        shape = tf.TensorShape(one[2])
        if one[:2] != other[:2] or shape.merge_with(other[2]) != shape:
            return False
    return True


def ask_summary(case: Case, how: str) -> Summary:
    return summary(tensorflow(), case, how)


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_names_types_and_static_shapes_are_tensorflows(case: Case, answers: Answers) -> None:
    """Of results, and of all operations behind them: graphs of one serve readers of the other."""
    for how in LOOSENED:
        found = summary(tf, case, how)
        ask = partial(ask_summary, case, how)
        for answer in answers(f"summary {case.name} {how}", ask, *case.inputs):
            check_summary(case, how, found, Summary(*answer))


def check_summary(case: Case, how: str, found: Summary, wanted: Summary) -> None:
    if case.name in KNOWN_BETTER:
        assert knows_as_much(found.results, wanted.results), how
    elif case.name == "batch_gather":
        assert [each[1:] for each in found.results] == [each[1:] for each in wanted.results]
    else:
        assert found.results == wanted.results, how
    if case.name not in OTHER_OPERATIONS and found.results is not ValueError:
        assert found.operations == wanted.operations, how


def ask_values(case: Case) -> Any:
    """Return TensorFlow's values, the code of its error, or None if it refuses the graph."""
    v1 = tensorflow()
    try:
        graph, holders, results = built(v1, case, "rank")
    except (TypeError, ValueError):
        return None
    with v1.Session(graph=graph) as session:
        try:
            return session.run(results, dict(zip(holders, case.inputs, strict=True)))
        except v1.OpError as error:
            return error.error_code


FAMILIES = families(CASES, "_")


@pytest.mark.parametrize("name", FRAMEWORKS)
@pytest.mark.parametrize("family", FAMILIES)
def test_values_and_errors_are_tensorflows(
    family: str, name: str, framework: Any, answers: Answers
) -> None:
    """With nothing known before the run, so that kernels see what is wrong.

    In one graph for the cases of a function, but for those that fail.
    """
    framework(name)
    sound, fetches, feeds = [], [], {}
    with tf.Graph().as_default(), tf.Session(framework=name) as session:
        for case in FAMILIES[family]:
            asked = [*answers(f"values {case.name}", partial(ask_values, case), *case.inputs)]
            if any(wanted is None for wanted in asked):
                continue  # it is refused while the graph is built
            holders, results = placed(tf, case, "rank")
            fed = dict(zip(holders, case.inputs, strict=True))
            if any(isinstance(wanted, int) for wanted in asked):
                with pytest.raises(OpError) as caught:
                    session.run(results, fed)
                assert asked == [caught.value.error_code] * len(asked), case.name
                continue
            sound.append((case, asked))
            fetches.append(results)
            feeds.update(fed)
        found = session.run(fetches, feeds) if fetches else []
    for (case, asked), values in zip(sound, found, strict=True):
        for wanted in asked:
            for value, want in zip(values, wanted, strict=True):
                assert value.shape == want.shape, case.name
                assert value.dtype == want.dtype, case.name
                np.testing.assert_array_equal(value, want, case.name)


@pytest.mark.parametrize("sizes", [[2, 2], [1, 3]])
def test_parts_of_small_arrays_are_compact(sizes: list[int]) -> None:
    """The nodes after them then run on NumPy's inner loops; for large arrays it is not worth it."""

    def is_compact(part: np.ndarray) -> np.bool:
        return np.bool(part.flags.c_contiguous)

    with tf.Graph().as_default() as graph:
        x = tf.placeholder(tf.float32, [None, 4])
        parts = tf.split(x + x, sizes, 1)
        seen = [tf.py_func(is_compact, [part], tf.bool) for part in parts]
        session = tf.Session(graph=graph)
    for rows, wanted in ((3, True), (1 << 14, False)):
        fed = np.arange(rows * 4, dtype=np.float32).reshape(rows, 4)
        found, compact = session.run((parts, seen), {x: fed})
        for part, expected in zip(found, np.split(fed + fed, [sizes[0]], 1), strict=True):
            np.testing.assert_array_equal(part, expected)
        assert compact == [wanted] * len(parts)

"""Pooling: maxima and means in windows that slide over images."""

from __future__ import annotations

from collections.abc import Sequence

from dlbridge.graph.core.inference import Inference, require_rank
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.convolution.declarations import VOLUME, known_extent, layout_of_node
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.graph.ops.nn.declarations import FLOATS, REALS
from dlbridge.shape import Dims


def _pool(c: Inference) -> Shapes:
    return [_pooled(c, c.attrs["ksize"], c.attrs["strides"])]


def _pool_of_inputs(c: Inference) -> Shapes:
    for i in (1, 2):
        require_rank(c.dims(i), 1, c)
    windows, strides = c.constant(1), c.constant(2)
    if windows is None or strides is None:
        return [require_rank(None, 4, c)]
    return [_pooled(c, windows.tolist(), strides.tolist())]


def _pool_with_argmax(c: Inference) -> Shapes:
    return _pool(c) * 2


def _pooled(c: Inference, windows: Sequence[int], strides: Sequence[int]) -> Dims:
    layout = layout_of_node(c, strides)
    dims = require_rank(c.dims(0), layout.rank, c)
    if len(windows) != layout.rank:
        raise c.error(f"ksize: required {layout.rank} values, got {len(windows)}")
    out = list(dims)
    for dimension in (*layout.spatial, layout.channel):
        window = windows[dimension]
        out[dimension] = known_extent(c, layout, dimension, dims[dimension], window)
    return tuple(out)


_POOLED = (
    "{float16, bfloat16, float32, float64, int32, int64, uint8, int16, int8, uint16, qint8} "
    "= float32"
)


define(
    f"MaxPool(input: T, *, T: {_POOLED}, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'padding: {"SAME", "VALID", "EXPLICIT"}, explicit_paddings: list(int) = [], '
    'data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") -> output: T',
    shape=_pool,
)


define(
    f"MaxPoolV2(input: T, ksize: int32, strides: int32, *, T: {_POOLED}, "
    'padding: {"SAME", "VALID"}, data_format: {"NHWC", "NCHW", "NCHW_VECT_C"} = "NHWC") '
    "-> output: T",
    shape=_pool_of_inputs,
)


define(
    "AvgPool(value: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    f'padding: {{"SAME", "VALID"}}, data_format: {{"NHWC", "NCHW"}} = "NHWC", T: {FLOATS}) '
    "-> output: T",
    shape=_pool,
)


define(
    "MaxPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{VOLUME}, T: {{float16, bfloat16, float32}}) -> output: T",
    shape=_pool,
)


define(
    "AvgPool3D(input: T, *, ksize: list(int) >= 5, strides: list(int) >= 5, "
    f"{VOLUME}, T: {FLOATS}) -> output: T",
    shape=_pool,
)


define(
    "MaxPoolWithArgmax(input: T, *, ksize: list(int) >= 4, strides: list(int) >= 4, "
    'Targmax: {int32, int64} = int64, padding: {"SAME", "VALID"}, '
    f"include_batch_in_index: bool = false, T: {REALS}) -> (output: T, argmax: Targmax)",
    shape=_pool_with_argmax,
)

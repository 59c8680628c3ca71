"""NumPy: results written in place, without its Python wrappers, and the functions that it lacks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from importlib import import_module
from itertools import product
from statistics import NormalDist
from typing import Any

import numpy as np
from array_api_compat import numpy as xp

from dlbridge._core import ffi, lib
from dlbridge.execution.plan import find_ufunc
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Array,
    Function,
    arithmetic,
    axes_of,
    convolution,
    element,
    in_wider,
    indexing,
    joining,
    number,
    require_part_dtype,
    widened,
    wider,
)
from dlbridge.graph.ops.kernels.images import is_resized, neighbours, sizes
from dlbridge.graph.ops.kernels.linear import batch_product, contraction, matrix_product
from dlbridge.graph.ops.windows import Axis, padded, tap
from dlbridge.proto.datatypes import DataType, float32, float64
from dlbridge.signals import not_from_handler

# ---- element-wise functions ----------------------------------------------------------------------


@kernel("Complex", framework="numpy")
def complex_(node: Node, context: Context) -> Function:
    """The parts are set one by one: arithmetic would make NaN of infinite ones."""
    require_part_dtype(node)
    return _combiner(node.output_types[0])


def _combiner(kind: DataType) -> Function:
    def combine(real: Array, imag: Array) -> Array:
        out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), kind.numpy)
        out.real, out.imag = real, imag
        return out

    return combine


@kernel("ClipByValue", framework="numpy")
def clip(node: Node, context: Context) -> Function:
    kind = element(node)
    return arithmetic.clip(node, context, _combiner(kind) if kind.is_complex else None)


@kernel("Relu", framework="numpy")
def relu(node: Node, context: Context) -> Function:
    zero = number(context, 0, node.output_types[0])
    return lambda x: np.maximum(x, zero)


@kernel("Relu6", framework="numpy")
def relu6(node: Node, context: Context) -> Function:
    zero, six = (number(context, bound, node.output_types[0]) for bound in (0, 6))

    def run(x: Any) -> Any:
        out = np.maximum(x, zero)
        return np.minimum(out, six, out=out if out.ndim else None)

    return run


@kernel("Sigmoid", framework="numpy", ufunc="sigmoid")
def sigmoid(node: Node, context: Context) -> Function:
    """The same as for all, in one pass, or in one array where the ufunc has no loop."""
    kind = element(node)
    if kind in (float32, float64):
        return find_ufunc("sigmoid")
    one = number(context, 1, wider(kind))

    def run(x: Any) -> Any:
        out = np.asarray(np.negative(x))
        np.exp(out, out)
        np.add(out, one, out)
        return np.divide(one, out, out)

    return in_wider(context, kind, run)


@kernel("Softmax", framework="numpy")
def softmax(node: Node, context: Context) -> Function:
    def run(logits: Any) -> Any:
        if logits.size == 0:
            return logits
        out = logits - logits.max(-1, keepdims=True)
        np.exp(out, out=out)
        out /= out.sum(-1, keepdims=True)
        return out

    return widened(run, node, context)


# Numbers of `enum dlb_special` in the core.
_IN_C = {"Erf": 0, "Erfc": 1, "Lgamma": 2}


@kernel(*_IN_C, framework="numpy")
def from_library(node: Node, context: Context) -> Function:
    """The C library's own, for doubles and floats; halves as floats."""
    number, is_float = _IN_C[node.type], element(node) is not float64

    def function(x: Array) -> Array:
        x = np.require(x, requirements=("C", "A"))  # constants lie anywhere in their message
        out = np.empty_like(x)
        source, target = (ffi.from_buffer(each) for each in (x, out))
        lib.dlb_special(number, is_float, source, target, x.size)
        return out

    return in_wider(context, element(node), function)


# ---- by SciPy, or one by one -------------------------------------------------------------------


def _normal_quantile(p: float) -> float:
    if 0 < p < 1:
        return NormalDist().inv_cdf(p)
    return {0.0: -math.inf, 1.0: math.inf}.get(p, math.nan)


def _inverse_error(x: float) -> float:
    """Improve the quantile of the normal distribution, which loses digits near 0."""
    guess = _normal_quantile((x + 1) / 2) / math.sqrt(2)
    if not math.isfinite(guess):
        return guess
    for _ in range(2):
        slope = 2 / math.sqrt(math.pi) * math.exp(-guess * guess)
        error = math.erf(guess) - x if abs(x) < 0.9 else math.erfc(abs(guess)) - (1 - abs(x))
        if not slope:
            break
        guess -= (error if abs(x) < 0.9 else -math.copysign(error, x)) / slope
    return guess


def _digamma(x: float) -> float:
    """Reflect, go up to 10, and take the asymptotic series."""
    if x == -math.inf or (x <= 0 and x == math.floor(x)):
        return math.nan
    if math.isinf(x):
        return x
    if x < 0:
        return _digamma(1 - x) - math.pi / math.tan(math.pi * x)
    low = 0.0
    while x < 10:
        low -= 1 / x
        x += 1
    square = 1 / (x * x)
    series = square * (
        1 / 12 - square * (1 / 120 - square * (1 / 252 - square * (1 / 240 - square / 132)))
    )
    return low + math.log(x) - 0.5 / x - series


# Op type -> its name in `scipy.special`, the function of one number.
_SPECIAL: dict[str, tuple[str, Callable[[float], float]]] = {
    "Erfinv": ("erfinv", _inverse_error),
    "Ndtri": ("ndtri", _normal_quantile),
    "Digamma": ("digamma", _digamma),
}


@kernel(*_SPECIAL, framework="numpy")
def special(node: Node, context: Context) -> Function:
    """Computed in float64: by SciPy where it is installed, else element by element."""
    kind = element(node).numpy
    function = special_function(node.type)
    return lambda x: np.asarray(function(np.asarray(x, np.float64))).astype(kind)


def special_function(op_type: str) -> Function:
    """Return the function of float64 arrays that an op type is."""
    name, one = _SPECIAL[op_type]
    try:
        function: Function = getattr(import_module("scipy.special"), name)
    except not_from_handler(ImportError):
        return np.frompyfunc(one, 1, 1)
    if op_type != "Digamma":
        return function
    return lambda x: np.where(x == 0, np.nan, function(x))  # SciPy has infinities there


# ---- linear algebra ------------------------------------------------------------------------------


_WORTH_PLANNING = 4096  # elements, above which NumPy's search for products of matrices pays


@kernel("MatMul", framework="numpy")
def matmul(node: Node, context: Context) -> Function:
    return matrix_product(node, _product(context, element(node)))


@kernel("BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", framework="numpy")
def batch_matmul(node: Node, context: Context) -> Function:
    return batch_product(node, context, _product(context, node.output_types[0]))


def _product(context: Context, kind: DataType) -> Function:
    """Return matmul; NumPy's has no half precision, whose products are added up in float32."""
    return in_wider(context, kind, np.matmul)


@kernel("Einsum", framework="numpy")
def einsum(node: Node, context: Context) -> Function:
    return contraction(node, context, _planned)


def _planned(text: str, *arrays: Array) -> Array:
    size = sum([array.size for array in arrays])
    return np.einsum(text, *arrays, optimize=size > _WORTH_PLANNING)


@kernel("Cholesky", framework="numpy")
def cholesky(node: Node, context: Context) -> Function:
    """The lower triangle; NaN where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Array) -> Array:
        try:
            return np.linalg.cholesky(x)
        except np.linalg.LinAlgError:
            if x.ndim == 2:
                return np.where(np.tri(x.shape[-1], dtype=bool), np.nan, 0).astype(x.dtype)
            return np.stack([decompose(each) for each in x])

    return in_wider(context, element(node), decompose)


# ---- reductions ----------------------------------------------------------------------------------


_REDUCTIONS: dict[str, Any] = {
    "Sum": np.add,
    "Prod": np.multiply,
    "All": np.logical_and,
    "Any": np.logical_or,
}


@kernel(*_REDUCTIONS, framework="numpy", host=(1,))
def reduction(node: Node, context: Context) -> Function:
    """The ufunc's own reduction, halves in float32."""
    kind = node.output_types[0]
    reduce, keep = _REDUCTIONS[node.type].reduce, node.attrs["keep_dims"]
    work, dtype = wider(kind).numpy, kind.numpy

    def function(x: Array, axes: Any) -> Array:
        where = axes_of(axes, x.ndim, node)
        if not where:
            return x
        result = reduce(x, axis=where, dtype=work, keepdims=keep)
        return result if work is dtype else result.astype(dtype)

    return function


# ---- joining -------------------------------------------------------------------------------------


@kernel("ConcatV2", framework="numpy", host=(-1,))
def concat_v2(node: Node, context: Context) -> Function:
    """NumPy itself refuses shapes that do not fit; the kernel for all says why."""
    general = joining.concat_v2(node, context)

    def join(*values: Any) -> Any:
        try:
            return np.concatenate(values[:-1], int(values[-1]))
        except not_from_handler(ValueError):
            return general(*values)

    return join


# ---- indexing ------------------------------------------------------------------------------------


def _slices(node: Node, context: Context) -> indexing.Slices:
    """NumPy itself refuses indices that are too large; negative ones are checked here."""

    def slices(params: Array, indices: Array, axis: int) -> Array:
        extent = indexing.extent_of(params, axis, node)
        if indices.size and indices.min() >= 0:
            try:
                return params.take(indices, axis)
            except not_from_handler(IndexError):
                pass
        indexing.check_range(context, node, indices, extent)
        return params.take(indices, axis)

    return slices


@kernel("GatherV2", framework="numpy", host=(2,))
def gather_v2(node: Node, context: Context) -> Function:
    return indexing.gather_v2(node, context, _slices(node, context))


@kernel("Gather", framework="numpy")
def gather(node: Node, context: Context) -> Function:
    return indexing.gather(node, context, _slices(node, context))


@kernel("GatherNd", framework="numpy")
def gather_nd(node: Node, context: Context) -> Function:
    """NumPy's own indexing refuses indices that are too large, but takes negative ones."""
    general = indexing.gather_nd(node, context)

    def gather(params: Any, indices: Any) -> Any:
        depth = indices.shape[-1] if indices.ndim else 0
        if 0 < depth <= params.ndim and indices.size and indices.min() >= 0:
            try:
                return params[tuple([indices[..., i] for i in range(depth)])]
            except not_from_handler(IndexError):
                pass
        return general(params, indices)

    return gather


# ---- convolution ---------------------------------------------------------------------------------


# The columns of a product, and the parts of a sum, are made for blocks of about this many bytes, so
# that the cache still has them; smaller ones would cost more calls than they save.
BLOCK_BYTES = 4 << 20


@kernel("Conv2D", "Conv3D", framework="numpy")
def conv(node: Node, context: Context) -> Function:
    general = convolution.by_columns(context)

    def convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        simple = groups == 1 and images.dtype.kind == "f" and images.size
        return (_convolve if simple else general)(images, weights, axes, groups)

    return convolution.convolution(node, context, convolve)


def _convolve(images: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the convolution, a block of rows of the result after the other."""
    filters = weights.reshape(-1, weights.shape[-1])
    images = padded(xp, images, axes)
    shape = (images.shape[0], *[axis.output for axis in axes], weights.shape[-1])
    if all(axis.window == 1 for axis in axes):
        seen = tap(images, axes, (0,) * len(axes))
        simple: Array = np.matmul(seen.reshape(-1, len(filters)), filters)
        return simple.reshape(shape)
    windows = _windows(images, axes)
    out = np.empty(shape, np.result_type(images, weights))
    _multiply(windows, filters, out)
    return out


def _windows(images: Array, axes: Sequence[Axis]) -> Array:
    """Return a view (batch, *outputs, *windows, channels) of what each window sees."""
    batch, *spatial, channels = images.strides
    return np.lib.stride_tricks.as_strided(
        images,
        (
            images.shape[0],
            *[axis.output for axis in axes],
            *[axis.window for axis in axes],
            images.shape[-1],
        ),
        (
            batch,
            *[stride * axis.stride for stride, axis in zip(spatial, axes, strict=True)],
            *[stride * axis.dilation for stride, axis in zip(spatial, axes, strict=True)],
            channels,
        ),
        writeable=False,
    )


def _multiply(windows: Array, filters: Array, out: Array) -> None:
    """Fill `out` with the products of windows and filters; the columns of one block at a time."""
    width, channels = filters.shape
    row = math.prod(windows.shape[2:])
    buffer = np.empty(0, out.dtype)
    for block in _blocks(out, row):
        part = windows[block]
        if part.size > buffer.size:  # at the first block, which is the largest
            buffer = np.empty(part.size, out.dtype)
        columns = buffer[: part.size].reshape(part.shape)
        np.copyto(columns, part)
        np.matmul(columns.reshape(-1, width), filters, out=out[block].reshape(-1, channels))


def _blocks(out: Array, row: int) -> Iterator[tuple[slice, slice]]:
    """Yield indices of blocks of the result: some whole images, or some rows of one.

    Args:
        out: the result, (batch, rows, …).
        row: how many elements the work on one row takes.
    """
    batch, rows = out.shape[:2]
    fitting = max(BLOCK_BYTES // max(row * out.itemsize, 1), 1)
    images = max(fitting // max(rows, 1), 1)
    step = min(fitting, rows)
    for first in range(0, batch, images):
        for top in range(0, rows, step):
            yield slice(first, min(first + images, batch)), slice(top, min(top + step, rows))


@kernel("DepthwiseConv2dNative", framework="numpy")
def depthwise(node: Node, context: Context) -> Function:
    return convolution.depthwise_convolution(node, context, _depthwise)


def _depthwise(images: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the sum over the taps, block by block of rows so that it stays in cache."""
    multiplier = weights.shape[-1]
    images = padded(xp, images, axes)
    rows, columns = axes
    shape = (images.shape[0], rows.output, columns.output, groups * multiplier)
    out = np.empty(shape, images.dtype)
    if multiplier > 1:
        images = np.repeat(images, multiplier, -1)
    filters = weights.reshape(*weights.shape[:2], -1)
    for images_part, rows_part in _blocks(out, 2 * columns.output * shape[-1]):
        count = rows_part.stop - rows_part.start
        block = images[images_part, rows_part.start * rows.stride :]
        axes = rows._replace(output=count), columns
        _sum_taps(block, filters, axes, out[images_part, rows_part])
    return out


def _sum_taps(images: Array, filters: Array, axes: Sequence[Axis], out: Array) -> None:
    """Fill `out` with the sum over the taps of the window: elements times filter."""
    part = np.empty_like(out)
    for count, indices in enumerate(product(*[range(axis.window) for axis in axes])):
        seen = tap(images, axes, indices)
        if count == 0:
            np.multiply(seen, filters[indices], out=out)
        else:
            np.multiply(seen, filters[indices], out=part)
            np.add(out, part, out=out)


@kernel("Conv2DBackpropInput", framework="numpy", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    return convolution.transposed_convolution(node, context, _spread)


def _spread(gradient: Array, weights: Array, axes: Sequence[Axis], groups: int) -> Array:
    """Return the sum of what each tap gives to the elements that it saw."""
    parts = convolution.shares(xp, gradient, weights, groups)
    out = np.zeros((gradient.shape[0], *[axis.size for axis in axes], parts.shape[-1]), parts.dtype)
    for indices in product(*[range(axis.window) for axis in axes]):
        seen = [axis.inner_tap(i) for axis, i in zip(axes, indices, strict=True)]
        target = out[(slice(None), *[where for where, _ in seen])]
        target += parts[indices][(slice(None), *[windows for _, windows in seen])]
    return out


# ---- images --------------------------------------------------------------------------------------


@kernel("ResizeBilinear", framework="numpy", host=(1,))
def resize_bilinear(node: Node, context: Context) -> Function:
    """Image by image, in memory that stays in the cache; the same to the bit as for all."""

    def run(x: Array, size: Array) -> Array:
        height, width = sizes(node, x, size)
        x = x.astype(np.float32, copy=False)
        batch, rows, columns, channels = x.shape
        if is_resized(columns, width, node):
            first, second, part = neighbours(columns, width, node)
            channel = np.arange(channels)
            of_columns = (
                *[(each[:, None] * channels + channel).reshape(-1) for each in (first, second)],
                np.repeat(part, channels),
            )
        else:
            of_columns = None
        if is_resized(rows, height, node):
            first, second, part = neighbours(rows, height, node)
            of_rows = first, second, part[:, None]
        else:
            of_rows = None
        if of_columns is None and of_rows is None:
            return x
        out = np.empty((batch, height, width * channels), np.float32)
        narrow = np.empty((rows, width * channels), np.float32)
        spare = np.empty((max(rows, height), width * channels), np.float32)
        for image, resized in zip(x.reshape(batch, rows, columns * channels), out, strict=True):
            seen = image
            if of_columns is not None:
                seen = resized if of_rows is None else narrow
                _blend(image, 1, of_columns, seen, spare)
            if of_rows is not None:
                _blend(seen, 0, of_rows, resized, spare)
        return out.reshape(batch, height, width, channels)

    return run


def _blend(
    x: Array, axis: int, between: tuple[Array, Array, Array], out: Array, spare: Array
) -> None:
    """Fill `out` with what lies between two elements each along an axis."""
    first, second, part = between
    other = spare[: len(out)]
    x.take(first, axis, out=out, mode="clip")  # with a mode, NumPy writes there itself
    x.take(second, axis, out=other, mode="clip")
    other -= out
    other *= part
    out += other


# ---- pooling -------------------------------------------------------------------------------------


def _along(x: Array, dimension: int, axis: Axis, combine: np.ufunc, start: Any) -> Array:
    """Return the windows along one dimension, combined tap by tap in place."""
    before = (slice(None),) * dimension
    shape = (*x.shape[:dimension], axis.output, *x.shape[dimension + 1 :])
    out = np.full(shape, start, x.dtype)
    for index in range(axis.window):
        seen, windows = axis.inner_tap(index)
        target = out[(*before, windows)]
        combine(target, x[(*before, seen)], out=target)
    return out


def _maximum(node: Node, context: Context) -> convolution.Reduce:
    bottom = convolution.lowest(context, node)

    def reduce(x: Array, axes: Sequence[Axis]) -> Array:
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                x = _along(x, dimension, axis, np.maximum, bottom)
        return x

    return reduce


def _mean(x: Array, axes: Sequence[Axis]) -> Array:
    for dimension, axis in enumerate(axes):
        if not axis.is_trivial:
            x = _along(x, dimension, axis, np.add, 0)
            shape = [-1 if i == dimension else 1 for i in range(len(axes))]
            x /= convolution.counts(axis).reshape(shape).astype(x.dtype)
    return x


convolution.register_pools(_maximum, lambda *_: _mean, "numpy")

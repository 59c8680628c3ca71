"""PyTorch: its own functions, without the promotion of the array API, and what it lacks."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch.nn import functional

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel, only_stores
from dlbridge.graph.ops.kernels import (
    Function,
    arithmetic,
    array,
    convolution,
    element,
    in_wider,
    register_functions,
    require_part_dtype,
)
from dlbridge.graph.ops.kernels.arithmetic import bit_count, clamped_shift
from dlbridge.graph.ops.kernels.generate import extents
from dlbridge.graph.ops.kernels.linear import contraction
from dlbridge.graph.ops.kernels.reduce import logsumexp_scan
from dlbridge.graph.ops.kernels.slicing import selector
from dlbridge.graph.ops.windows import Axis
from dlbridge.proto.datatypes import uint16, uint32, uint64

_FUNCTIONS = {
    "Add": torch.add,
    "AddV2": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Atan2": torch.atan2,
    "NextAfter": torch.nextafter,
    "Neg": torch.neg,
    "Abs": torch.abs,
    "Square": torch.square,
    "Sqrt": torch.sqrt,
    "Rsqrt": torch.rsqrt,
    "Exp": torch.exp,
    "Expm1": torch.expm1,
    "Log": torch.log,
    "Log1p": torch.log1p,
    "Sin": torch.sin,
    "Cos": torch.cos,
    "Tan": torch.tan,
    "Asin": torch.asin,
    "Acos": torch.acos,
    "Atan": torch.atan,
    "Sinh": torch.sinh,
    "Cosh": torch.cosh,
    "Tanh": torch.tanh,
    "Asinh": torch.asinh,
    "Acosh": torch.acosh,
    "Atanh": torch.atanh,
    "Sigmoid": torch.sigmoid,
    "Erf": torch.erf,
    "Erfc": torch.erfc,
    "Erfinv": torch.erfinv,
    "Ndtri": torch.special.ndtri,
    "Lgamma": torch.lgamma,
    "Floor": torch.floor,
    "Ceil": torch.ceil,
    "Rint": torch.round,
    "IsNan": torch.isnan,
    "IsInf": torch.isinf,
    "IsFinite": torch.isfinite,
    "Less": torch.lt,
    "LessEqual": torch.le,
    "Greater": torch.gt,
    "GreaterEqual": torch.ge,
    "LogicalAnd": torch.logical_and,
    "LogicalOr": torch.logical_or,
    "LogicalNot": torch.logical_not,
    "SelectV2": torch.where,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "Invert": torch.bitwise_not,
    "Elu": functional.elu,
    "Selu": functional.selu,
    "Softsign": functional.softsign,
}
register_functions("torch", _FUNCTIONS)

# PyTorch stores arrays of these dtypes and computes with hardly any of them: all op types run in
# NumPy but those that move elements as they are.
WIDE_UNSIGNED = (torch.uint16, torch.uint32, torch.uint64)
only_stores(
    "torch",
    (uint16, uint32, uint64),
    [
        "Const", "Placeholder", "PlaceholderWithDefault", "Identity", "IdentityN", "StopGradient",
        "PreventGradient", "Snapshot", "GuaranteeConst", "NoOp", "EnsureShape", "Print",
        "Reshape", "ExpandDims", "Squeeze", "Transpose", "Slice", "StridedSlice", "Split", "SplitV",
        "Unpack", "Pack", "Concat", "ConcatV2", "BroadcastTo", "Reverse", "ReverseV2",
        "Fill", "ZerosLike", "OnesLike", "Pad", "PadV2", "Tile", "Relu", "Relu6",
        "Shape", "ShapeN", "Size", "Rank", "VariableShape",
        "VarHandleOp", "Variable", "VariableV2", "ReadVariableOp", "AssignVariableOp", "Assign",
        "VarIsInitializedOp", "IsVariableInitialized", "DestroyResourceOp",
        "DLBridge>Call", "DLBridge>StatefulCall", "DLBridge>Mpi", "DLBridge>Combine",
        "CollectiveBcastRecv", "CollectiveBcastRecvV2", "CollectiveBcastSend",
        "CollectiveBcastSendV2", "CollectiveGather", "CollectiveGatherV2",
    ],
)  # fmt: skip


# ---- element-wise functions ----------------------------------------------------------------------


@kernel("ComplexAbs", "Angle", framework="torch")
def polar(node: Node, context: Context) -> Function:
    """The absolute value, or the argument."""
    require_part_dtype(node)
    function: Function = torch.abs if node.type == "ComplexAbs" else torch.angle
    return function


@kernel("Complex", framework="torch")
def complex_(node: Node, context: Context) -> Function:
    """PyTorch does not broadcast the parts."""
    require_part_dtype(node)
    return lambda real, imag: torch.complex(*torch.broadcast_tensors(real, imag))


@kernel("ClipByValue", framework="torch")
def clip(node: Node, context: Context) -> Function:
    return arithmetic.clip(node, context, torch.complex if element(node).is_complex else None)


@kernel("Sign", framework="torch")
def sign(node: Node, context: Context) -> Function:
    """NaN has none, and stays."""
    if element(node).is_floating:
        return lambda x: torch.where(x.isnan(), x, torch.sgn(x))
    return torch.sgn  # type: ignore[no-any-return]


@kernel("Conj", framework="torch")
def conjugate(node: Node, context: Context) -> Function:
    """In memory, since no other framework knows PyTorch's lazy conjugates."""
    return torch.conj_physical  # type: ignore[no-any-return]


@kernel("Round", framework="torch")
def round_(node: Node, context: Context) -> Function:
    """Integers are round."""
    return (lambda x: x) if element(node).is_integer else torch.round


@kernel("Digamma", framework="torch")
def digamma(node: Node, context: Context) -> Function:
    """NaN at 0, as at the negative integers; PyTorch has infinities there."""
    return lambda x: torch.where(x == 0, torch.nan, torch.digamma(x))


@kernel("LeftShift", framework="torch")
def left_shift(node: Node, context: Context) -> Function:
    return clamped_shift(node, context, torch.bitwise_left_shift)


@kernel("RightShift", framework="torch")
def right_shift(node: Node, context: Context) -> Function:
    return clamped_shift(node, context, torch.bitwise_right_shift)


@kernel("PopulationCount", framework="torch")
def population_count(node: Node, context: Context) -> Function:
    return bit_count(node, context, torch.bitwise_right_shift)


@kernel("Fill", framework="torch", host=(0,))
def fill(node: Node, context: Context) -> Function:
    """A scalar, repeated; in memory of its own."""
    return lambda dims, value: value.expand(extents(dims, node)).clone()


# ---- shapes and slices ---------------------------------------------------------------------------


SIGNED = {torch.uint16: torch.int16, torch.uint32: torch.int32, torch.uint64: torch.int64}


def flip(x: Any, axis: Any) -> Any:
    """Return x in reverse order along axes; unsigned integers go as the signed of their size."""
    signed = SIGNED.get(x.dtype)
    if signed is None:
        return torch.flip(x, tuple(axis))
    return torch.flip(x.view(signed), tuple(axis)).view(x.dtype)


@kernel("ReverseV2", host=(1,), framework="torch")
def reverse_v2(node: Node, context: Context) -> Function:
    return array.reversing(node, flip)


@kernel("Reverse", host=(1,), framework="torch")
def reverse(node: Node, context: Context) -> Function:
    return array.reversing_flagged(node, flip)


@kernel("Transpose", host=(1,), framework="torch")
def transpose(node: Node, context: Context) -> Function:
    return array.transposing(node, torch.permute)


@kernel("ConjugateTranspose", host=(1,), framework="torch")
def conjugate_transpose(node: Node, context: Context) -> Function:
    return array.conjugating(node, context, array.transposing(node, torch.permute))


@kernel("StridedSlice", host=(1, 2, 3), framework="torch")
def strided_slice(node: Node, context: Context) -> Function:
    select = selector(node)

    def cut(x: Any, *bounds: Any) -> Any:
        index = list(select(x.shape, *bounds))
        flipped = []
        axis = 0
        for i, each in enumerate(index):
            if isinstance(each, slice) and each.step < 0:
                index[i] = _backwards(each)
                flipped.append(axis)
            axis += not isinstance(each, int)
        result = x[tuple(index)]
        return flip(result, flipped) if flipped else result

    return cut


def _backwards(walk: slice) -> slice:
    """Return the slice of the same elements in the opposite order."""
    stop = -1 if walk.stop is None else walk.stop
    count = len(range(walk.start, stop, walk.step))
    if not count:
        return slice(0, 0, 1)
    last = walk.start + (count - 1) * walk.step
    return slice(last, walk.start + 1, -walk.step)


# ---- linear algebra ------------------------------------------------------------------------------


@kernel("Einsum", framework="torch")
def einsum(node: Node, context: Context) -> Function:
    """Integers are added up in int64, as PyTorch does itself, and then refuses the next product."""
    kind = element(node)
    if not kind.is_integer:
        return contraction(node, context, torch.einsum)
    dtype = context.dtype(kind)

    def product(text: str, *arrays: Any) -> Any:
        return torch.einsum(text, *[each.to(torch.int64) for each in arrays]).to(dtype)

    return contraction(node, context, product)


@kernel("Cholesky", framework="torch")
def cholesky(node: Node, context: Context) -> Function:
    """NaN where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        lower, information = torch.linalg.cholesky_ex(x)
        failed = (information != 0)[..., None, None]
        return torch.where(failed, torch.full_like(lower, torch.nan).tril(), lower)

    return in_wider(context, element(node), decompose)


# ---- reductions ----------------------------------------------------------------------------------


@kernel("CumulativeLogsumexp", framework="torch", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, torch.logcumsumexp)


@kernel("UnsortedSegmentSum", framework="torch", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; negative ones are left out.

    Where values are not checked, those that are too large are left out as well.
    """

    def reduce(data: Any, identifiers: Any, number: Any) -> Any:
        count, rank = int(number), identifiers.ndim
        flat = identifiers.reshape(-1).to(torch.int64)
        too_large = flat >= count
        if data.shape[:rank] != identifiers.shape or (context.checks and bool(too_large.any())):
            raise InvalidArgumentError(
                f"segment_ids must be less than {count} and their shape start data's: "
                f"{list(identifiers.shape)} and {list(data.shape)}",
                node,
            )
        rows = data.reshape(flat.shape[0], *data.shape[rank:])
        out = torch.zeros((count + 1, *data.shape[rank:]), dtype=data.dtype, device=data.device)
        return out.index_add_(0, torch.where((flat < 0) | too_large, count, flat), rows)[:count]

    return in_wider_data(context, node, reduce)


def in_wider_data(context: Context, node: Node, function: Function) -> Function:
    """Compute a half in float32; only the first argument is one."""
    if element(node).name not in ("float16", "bfloat16"):
        return function
    kind = context.dtype(element(node))
    return lambda data, *others: function(data.to(torch.float32), *others).to(kind)


# ---- networks ------------------------------------------------------------------------------------


@kernel("Relu", framework="torch")
def relu(node: Node, context: Context) -> Function:
    return (lambda x: x) if node.output_types[0].is_unsigned else torch.relu


@kernel("Relu6", framework="torch")
def relu6(node: Node, context: Context) -> Function:
    def run(x: Any) -> Any:
        if x.dtype not in WIDE_UNSIGNED:
            return x.clamp(0, 6)
        if x.dtype is torch.uint64:
            numbers = x.view(torch.int64)  # those that are negative are large
            return torch.where(numbers < 0, 6, numbers.clamp(max=6)).to(x.dtype)
        return x.to(torch.int64).clamp(max=6).to(x.dtype)

    return run


@kernel("LeakyRelu", framework="torch")
def leaky_relu(node: Node, context: Context) -> Function:
    alpha = node.attrs["alpha"]
    return lambda x: functional.leaky_relu(x, alpha)


@kernel("Softmax", framework="torch")
def softmax(node: Node, context: Context) -> Function:
    return lambda x: torch.softmax(x, -1)


@kernel("LogSoftmax", framework="torch")
def log_softmax(node: Node, context: Context) -> Function:
    return lambda x: torch.log_softmax(x, -1)


CONVOLUTIONS = {1: functional.conv2d, 2: functional.conv2d, 3: functional.conv3d}


def _symmetric(x: Any, axes: Sequence[Axis], value: float = 0) -> tuple[Any, list[int]]:
    """Return images, channels first, padded where both ends differ, and the padding left."""
    if all(axis.before == axis.after for axis in axes):
        return x, [axis.before for axis in axes]
    pairs = [each for axis in reversed(axes) for each in (axis.before, axis.after)]
    return functional.pad(x, pairs, value=value), [0] * len(axes)


def _convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Convolve in the memory format of the images, which is PyTorch's channels_last."""
    rank = weights.ndim
    x, padding = _symmetric(images.movedim(-1, 1), axes)
    filters = weights.permute(rank - 1, rank - 2, *range(rank - 2))
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    out = CONVOLUTIONS[len(axes)](x, filters, None, strides, padding, dilations, groups)
    return out.movedim(1, -1)


def _depthwise(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    *windows, depth, multiplier = weights.shape
    return _convolve(images, weights.reshape(*windows, 1, depth * multiplier), axes, groups)


def _spread(gradient: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Return the gradient of `_convolve` for its images: all that the taps reach, cut to size."""
    filters = weights.permute(3, 2, 0, 1)
    strides, dilations = [axis.stride for axis in axes], [axis.dilation for axis in axes]
    x = gradient.movedim(-1, 1)
    out = functional.conv_transpose2d(x, filters, None, strides, 0, 0, groups, dilations)
    pairs = []
    for axis, reached in zip(reversed(axes), reversed(out.shape[2:]), strict=True):
        pairs += [-axis.before, axis.before + axis.size - reached]
    return functional.pad(out, pairs).movedim(1, -1)


@kernel("Conv2D", "Conv3D", framework="torch")
def conv(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return convolution.conv(node, context)
    return convolution.convolution(node, context, _guarded(_convolve, context))


@kernel("DepthwiseConv2dNative", framework="torch")
def depthwise(node: Node, context: Context) -> Function:
    return convolution.depthwise_convolution(node, context, _guarded(_depthwise, context))


@kernel("Conv2DBackpropInput", framework="torch", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return convolution.backprop_input(node, context)
    return convolution.transposed_convolution(node, context, _spread)


def _guarded(convolve: Function, context: Context) -> Function:
    """Leave empty images to the kernel for all, as PyTorch refuses some of them."""
    general = {_convolve: convolution.by_columns, _depthwise: convolution.by_taps}[convolve](
        context
    )

    def run(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
        return (general if 0 in images.shape else convolve)(images, weights, axes, groups)

    return run

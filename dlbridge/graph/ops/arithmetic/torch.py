"""Arithmetic in PyTorch: its own functions, without the promotion that the array API asks for."""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.execution.context import Context
from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel, lacks
from dlbridge.graph.ops.kernel_support import Function, element, in_wider
from dlbridge.proto.datatypes import uint16, uint32, uint64

# Op type -> the function of PyTorch that is this op on all dtypes that it takes.
_SAME = {
    "Add": torch.add,
    "AddV2": torch.add,
    "Sub": torch.sub,
    "Mul": torch.mul,
    "Maximum": torch.maximum,
    "Minimum": torch.minimum,
    "Atan2": torch.atan2,
    "BitwiseAnd": torch.bitwise_and,
    "BitwiseOr": torch.bitwise_or,
    "BitwiseXor": torch.bitwise_xor,
    "NextAfter": torch.nextafter,
    "Invert": torch.bitwise_not,
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
    "Digamma": torch.digamma,
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
    "ComplexAbs": torch.abs,
    "Angle": torch.angle,
}


def _plain(function: Any) -> Any:
    def factory(node: Node, context: Context) -> Function:
        return function  # type: ignore[no-any-return]

    return factory


for _type, _function in _SAME.items():
    kernel(_type, framework="torch")(_plain(_function))


# PyTorch stores wide unsigned integers, and computes with hardly any.
_WITH_RULES = (
    "Div FloorDiv TruncateDiv FloorMod LeftShift RightShift AddN AccumulateNV2 ClipByValue Equal "
    "NotEqual Select Where MatMul BatchMatMul BatchMatMulV2 Einsum Cross Sum Prod Mean Max Min "
    "EuclideanNorm ArgMax ArgMin Cumsum Cumprod TopK TopKV2 PopulationCount Cast MatrixDiag "
    "MatrixDiagPart MatrixSetDiag MatrixBandPart UnsortedSegmentSum"
)
lacks("torch", (uint16, uint32, uint64), [*_SAME, *_WITH_RULES.split()])


@kernel("Complex", framework="torch")
def complex_(node: Node, context: Context) -> Function:
    """PyTorch does not broadcast the parts."""
    return lambda real, imag: torch.complex(*torch.broadcast_tensors(real, imag))


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


@kernel("Cholesky", framework="torch")
def cholesky(node: Node, context: Context) -> Function:
    """NaN where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        lower, information = torch.linalg.cholesky_ex(x)
        failed = (information != 0)[..., None, None]
        return torch.where(failed, torch.full_like(lower, torch.nan).tril(), lower)

    return in_wider(context, element(node), decompose)


@kernel("UnsortedSegmentSum", framework="torch", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; negative ones are left out.

    Where values are not looked at, those that are too large are left out, too.
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

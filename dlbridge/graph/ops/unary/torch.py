"""Element-wise functions of one operand in PyTorch, without the promotion of the array API."""

from __future__ import annotations

import torch

from dlbridge.execution.registry import Context, Node, kernel, lacks
from dlbridge.graph.ops.kernels import WIDE_UNSIGNED, Function, element, register_functions

_FUNCTIONS = {
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
    "ComplexAbs": torch.abs,
    "Angle": torch.angle,
}
register_functions("torch", _FUNCTIONS)
lacks("torch", WIDE_UNSIGNED, [*_FUNCTIONS, "Cast"])


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

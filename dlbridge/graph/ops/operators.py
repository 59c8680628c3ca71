"""Python's operators on Tensors."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dlbridge.graph.core.default_graph import apply
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.arithmetic import truediv
from dlbridge.graph.ops.linear import matmul
from dlbridge.graph.ops.logic import logical_xor
from dlbridge.graph.ops.shared import as_tensor, scope
from dlbridge.graph.ops.sparse_tensor import SparseTensor
from dlbridge.graph.ops.unary import abs as absolute
from dlbridge.proto.datatypes import DataType, string

# Operator -> op type, name of the operation.
_ARITHMETIC = {
    "sub": ("Sub", "sub"),
    "floordiv": ("FloorDiv", "floordiv"),
    "mod": ("FloorMod", "mod"),
    "pow": ("Pow", "pow"),
}
# Reflected comparisons are Python's: `1 > x` asks for `x < 1`.
_COMPARISONS = {"lt": "Less", "le": "LessEqual", "gt": "Greater", "ge": "GreaterEqual"}
# Operator -> op types on bool, on integers.
_LOGIC = {
    "and": ("LogicalAnd", "BitwiseAnd"),
    "or": ("LogicalOr", "BitwiseOr"),
    "xor": (None, "BitwiseXor"),
}

Operator = Callable[[Tensor, Any], Tensor]


def _plain(op_type: str, name: str) -> tuple[Operator, Operator]:
    def forward(self: Tensor, other: Any) -> Tensor:
        return apply(op_type, (self, other), None, name).outputs[0]

    def reflected(self: Tensor, other: Any) -> Tensor:
        return apply(op_type, (other, self), None, name).outputs[0]

    return forward, reflected


def _logical(name: str, on_bool: str | None, on_integers: str) -> tuple[Operator, Operator]:
    def combine(x: Any, y: Any, dtype: Any) -> Tensor:
        if dtype.is_bool and on_bool is not None:
            return apply(on_bool, (x, y), None, name).outputs[0]
        with scope(None, name, (x, y)) as full:
            if dtype.is_bool:
                first, second = (
                    as_tensor(each, dtype, each_name) for each, each_name in ((x, "x"), (y, "y"))
                )
                return logical_xor(first, second, full)
            return apply(on_integers, (x, y)).outputs[0]

    return _both(combine)


def _both(combine: Callable[[Any, Any, DataType], Tensor]) -> tuple[Operator, Operator]:
    """Return an operator and its reflection; `combine` also gets the dtype of the Tensor."""

    def forward(self: Tensor, other: Any) -> Tensor:
        return combine(self, other, self.dtype)

    def reflected(self: Tensor, other: Any) -> Tensor:
        return combine(other, self, self.dtype)

    return forward, reflected


def _sum(x: Any, y: Any, dtype: DataType) -> Tensor:
    op_type = "Add" if dtype.base_dtype is string else "AddV2"
    return apply(op_type, (x, y), None, "add").outputs[0]


def _mul(self: Tensor, other: Any) -> Any:
    if isinstance(other, SparseTensor):
        return NotImplemented
    return apply("Mul", (self, other), None, "mul").outputs[0]


def _neg(self: Tensor) -> Tensor:
    return apply("Neg", (self,)).outputs[0]


def _invert(self: Tensor) -> Tensor:
    return apply("LogicalNot" if self.dtype.is_bool else "Invert", (self,)).outputs[0]


def _define(name: str, forward: Operator, reflected: Operator) -> None:
    setattr(Tensor, f"__{name}__", forward)
    setattr(Tensor, f"__r{name}__", reflected)


for _name, (_type, _operation) in _ARITHMETIC.items():
    _define(_name, *_plain(_type, _operation))
for _name, (_boolean, _integer) in _LOGIC.items():
    _define(_name, *_logical(_name, _boolean, _integer))
for _name, _type in _COMPARISONS.items():
    setattr(Tensor, f"__{_name}__", _plain(_type, _type)[0])
_define("add", *_both(_sum))
_define("mul", _mul, _plain("Mul", "mul")[1])
_define("truediv", truediv, lambda self, other: truediv(other, self))
_define("matmul", *_both(lambda x, y, _: matmul(x, y, name="matmul")))
for _name, _function in (("neg", _neg), ("invert", _invert), ("abs", absolute)):
    setattr(Tensor, f"__{_name}__", _function)

"""Operators and methods of arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from cupy._run import Array, run

_SCALARS = (bool, int, float, complex, np.generic)

_OPERATORS = {
    "add": np.add, "sub": np.subtract, "mul": np.multiply, "truediv": np.true_divide,
    "floordiv": np.floor_divide, "mod": np.remainder, "pow": np.power, "matmul": np.matmul,
    "and": np.bitwise_and, "or": np.bitwise_or, "xor": np.bitwise_xor,
    "lshift": np.left_shift, "rshift": np.right_shift,
}  # fmt: skip
_COMPARISONS = {
    "lt": np.less, "le": np.less_equal, "gt": np.greater, "ge": np.greater_equal,
    "eq": np.equal, "ne": np.not_equal,
}  # fmt: skip
_UNARY = {"neg": np.negative, "pos": np.positive, "abs": np.absolute, "invert": np.invert}
_METHODS = (
    "all", "any", "argmax", "argmin", "argsort", "clip", "conj", "conjugate", "cumprod", "cumsum",
    "diagonal", "dot", "flatten", "max", "mean", "min", "nonzero", "prod", "ravel", "repeat",
    "reshape", "round", "squeeze", "std", "sum", "swapaxes", "trace", "transpose", "var", "view",
)  # fmt: skip


def _operator(function: Any, is_reversed: bool) -> Callable[..., Any]:
    def operate(self: Any, other: Any) -> Any:
        if not isinstance(other, (Array, np.ndarray, *_SCALARS)):
            return NotImplemented
        return run(function, other, self) if is_reversed else run(function, self, other)

    return operate


def _in_place(function: Any) -> Callable[..., Any]:
    def operate(self: Any, other: Any) -> Any:
        run(function, self, other, out=self)
        return self

    return operate


def _method(name: str) -> Callable[..., Any]:
    function = getattr(np.ndarray, name)
    return lambda self, *arguments, **keywords: run(function, self, *arguments, **keywords)


def _unary(function: Any) -> Callable[..., Any]:
    return lambda self: run(function, self)


def _part(read: Callable[[Any], Any]) -> property:
    return property(lambda self: run(read, self))


class Arithmetic(Array):
    """The operators of NumPy's arrays."""

    __hash__ = None  # type: ignore[assignment]
    T = _part(lambda host: host.T)
    mT = _part(lambda host: np.swapaxes(host, -1, -2))
    real = _part(lambda host: host.real)
    imag = _part(lambda host: host.imag)


for _name, _function in _OPERATORS.items():
    setattr(Arithmetic, f"__{_name}__", _operator(_function, False))
    setattr(Arithmetic, f"__r{_name}__", _operator(_function, True))
    setattr(Arithmetic, f"__i{_name}__", _in_place(_function))
for _name, _function in _COMPARISONS.items():
    setattr(Arithmetic, f"__{_name}__", _operator(_function, False))
for _name, _function in _UNARY.items():
    setattr(Arithmetic, f"__{_name}__", _unary(_function))
for _name in _METHODS:
    setattr(Arithmetic, _name, _method(_name))

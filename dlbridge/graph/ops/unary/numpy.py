"""Special functions, which NumPy lacks: from the C library, from SciPy, or one by one."""

from __future__ import annotations

import math
from collections.abc import Callable
from importlib import import_module
from statistics import NormalDist

import numpy as np

from dlbridge._core import ffi, lib
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, element, in_wider
from dlbridge.proto.datatypes import float64

# Numbers of `enum dlb_special` in the core.
_IN_C = {"Erf": 0, "Erfc": 1, "Lgamma": 2}


@kernel(*_IN_C, framework="numpy")
def from_library(node: Node, context: Context) -> Function:
    """The C library's own, for doubles and floats; halves as floats."""
    number, is_float = _IN_C[node.type], element(node) is not float64

    def function(x: Array) -> Array:
        x = np.ascontiguousarray(x).reshape(np.shape(x))
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
    except ImportError:
        return np.frompyfunc(one, 1, 1)
    if op_type != "Digamma":
        return function
    return lambda x: np.where(x == 0, np.nan, function(x))  # SciPy has infinities there

"""Arithmetic in NumPy: reductions without their Python wrappers, functions that NumPy lacks."""

from __future__ import annotations

import math
from collections.abc import Callable
from statistics import NormalDist
from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.kernels.math_support import Function, axes_of, element, in_wider, wider
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel

Array = Any

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


@kernel("Complex", framework="numpy")
def complex_(node: Node, context: Context) -> Function:
    """The parts are set one by one: arithmetic would make NaN of infinite ones."""
    kind = node.output_types[0].numpy

    def combine(real: Array, imag: Array) -> Array:
        out = np.empty(np.broadcast_shapes(np.shape(real), np.shape(imag)), kind)
        out.real, out.imag = real, imag
        return out

    return combine


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


# ---- special functions -------------------------------------------------------------------------


def _log_gamma(x: float) -> float:
    try:
        return math.lgamma(x)
    except ValueError:  # a pole
        return math.inf


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
    if x <= 0 and (x == math.floor(x) or math.isinf(x)):
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


_SPECIAL: dict[str, Callable[[float], float]] = {
    "Erf": math.erf,
    "Erfc": math.erfc,
    "Erfinv": _inverse_error,
    "Ndtri": _normal_quantile,
    "Lgamma": _log_gamma,
    "Digamma": _digamma,
}


@kernel(*_SPECIAL, framework="numpy")
def special(node: Node, context: Context) -> Function:
    """Computed one by one in float64."""
    function, kind = np.frompyfunc(_SPECIAL[node.type], 1, 1), element(node).numpy
    return lambda x: np.asarray(function(np.asarray(x, np.float64))).astype(kind)

"""Arithmetic in NumPy: reductions without their Python wrappers, functions that NumPy lacks."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.context import Context
from dlbridge.execution.node import Node
from dlbridge.execution.registry import kernel
from dlbridge.graph.ops.kernel_support import Function, axes_of, element, in_wider, wider

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

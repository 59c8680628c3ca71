"""JAX: what `jax.numpy` lacks, or has under other rules."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax

from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import (
    Function,
    arithmetic,
    convolution,
    element,
    in_wider,
    register_functions,
    require_part_dtype,
)
from dlbridge.graph.ops.kernels.reduce import logsumexp_scan
from dlbridge.graph.ops.windows import Axis

_FUNCTIONS = {
    "Rsqrt": lax.rsqrt,
    # NaN at 0, as at the negative integers: JAX has an infinity there from 0.12 on.
    "Digamma": lambda x: jnp.where(x == 0, jnp.nan, lax.digamma(x)),
    "Erf": lax.erf,
    "Erfc": lax.erfc,
    "Erfinv": lax.erf_inv,
    "Lgamma": lax.lgamma,
    "Ndtri": jax.scipy.special.ndtri,
    "PopulationCount": lambda x: lax.population_count(x).astype(jnp.uint8),
}
register_functions("jax", _FUNCTIONS)


# ---- element-wise functions ----------------------------------------------------------------------


@kernel("Complex", framework="jax")
def complex_(node: Node, context: Context) -> Function:
    """The parts are put together: arithmetic would make NaN of infinite ones."""
    require_part_dtype(node)
    return lambda real, imag: lax.complex(*jnp.broadcast_arrays(real, imag))


@kernel("ClipByValue", framework="jax")
def clip(node: Node, context: Context) -> Function:
    return arithmetic.clip(node, context, lax.complex if element(node).is_complex else None)


@kernel("Pow", framework="jax")
def power(node: Node, context: Context) -> Function:
    """Integers by all bits of the exponent, of which `jnp.power` looks at six.

    Where the exponent is negative the fraction is cut off: a compiled run cannot refuse it.
    """
    if not element(node).is_integer:
        return jnp.power

    def run(x: Any, y: Any) -> Any:
        x, y = jnp.broadcast_arrays(x, y)
        is_one = (x == 1) | (y == 0) | ((x == -1) & (y & 1 == 0))
        inverse = jnp.where(is_one, 1, jnp.where(x == -1, -1, 0)).astype(x.dtype)
        _, _, found = lax.while_loop(
            lambda state: (state[1] > 0).any(), _square, (x, y, jnp.ones_like(x))
        )
        return jnp.where(y < 0, inverse, found)

    return run


def _square(state: tuple[Any, Any, Any]) -> tuple[Any, Any, Any]:
    """Take one bit of the exponents into the product."""
    base, exponent, product = state
    return base * base, exponent >> 1, jnp.where(exponent & 1 == 1, product * base, product)


# ---- linear algebra ------------------------------------------------------------------------------


@kernel("Cholesky", framework="jax")
def cholesky(node: Node, context: Context) -> Function:
    """NaN in the lower triangle where a matrix is not positive definite, as in TensorFlow."""

    def decompose(x: Any) -> Any:
        return jnp.tril(jnp.linalg.cholesky(x, symmetrize_input=False))

    return in_wider(context, element(node), decompose)


# ---- reductions ----------------------------------------------------------------------------------


@kernel("CumulativeLogsumexp", framework="jax", host=(1,))
def cumulative_logsumexp(node: Node, context: Context) -> Function:
    return logsumexp_scan(node, context, lax.cumlogsumexp)


@kernel("UnsortedSegmentSum", framework="jax", host=(2,))
def unsorted_segment_sum(node: Node, context: Context) -> Function:
    """Add rows to the rows that identifiers name; those out of range are left out, as in XLA."""

    def reduce(data: Any, identifiers: Any, number: Any) -> Any:
        count, rank = int(number), identifiers.ndim
        flat = identifiers.reshape(-1)
        rows = data.reshape(flat.shape[0], *data.shape[rank:])
        out = jnp.zeros((count, *data.shape[rank:]), data.dtype)
        return out.at[jnp.where(flat < 0, count, flat)].add(rows, mode="drop")

    return reduce


# ---- convolution and pooling ---------------------------------------------------------------------


# Channels last, filters as TensorFlow has them.
DIMENSIONS = {2: ("NHWC", "HWIO", "NHWC"), 3: ("NDHWC", "DHWIO", "NDHWC")}


def _convolve(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    return lax.conv_general_dilated(
        images,
        weights,
        [axis.stride for axis in axes],
        [(axis.before, axis.after) for axis in axes],
        rhs_dilation=[axis.dilation for axis in axes],
        dimension_numbers=DIMENSIONS[len(axes)],
        feature_group_count=groups,
    )


def _depthwise(images: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    *windows, depth, multiplier = weights.shape
    return _convolve(images, weights.reshape(*windows, 1, depth * multiplier), axes, groups)


def _spread(gradient: Any, weights: Any, axes: Sequence[Axis], groups: int) -> Any:
    """Return the gradient of `_convolve` for its images: JAX transposes it."""
    depth = weights.shape[2] * groups
    shape = (gradient.shape[0], *[axis.size for axis in axes], depth)
    images = jax.ShapeDtypeStruct(shape, gradient.dtype)
    transposed = jax.linear_transpose(lambda x: _convolve(x, weights, axes, groups), images)
    return transposed(gradient)[0]


@kernel("Conv2D", "Conv3D", framework="jax")
def conv(node: Node, context: Context) -> Function:
    return convolution.convolution(node, context, _convolve)


@kernel("DepthwiseConv2dNative", framework="jax")
def depthwise(node: Node, context: Context) -> Function:
    return convolution.depthwise_convolution(node, context, _depthwise)


@kernel("Conv2DBackpropInput", framework="jax", host=(0,))
def backprop_input(node: Node, context: Context) -> Function:
    if not node.output_types[0].is_floating:
        return convolution.backprop_input(node, context)
    return convolution.transposed_convolution(node, context, _spread)


def _reduce(x: Any, axes: Sequence[Axis], start: Any, combine: Function) -> Any:
    return lax.reduce_window(
        x,
        start,
        combine,
        [axis.window for axis in axes],
        [axis.stride for axis in axes],
        [(axis.before, axis.after) for axis in axes],
    )


def _maximum(node: Node, context: Context) -> convolution.Reduce:
    bottom = convolution.lowest(context, node)
    return lambda x, axes: _reduce(x, axes, x.dtype.type(bottom), lax.max)


def _mean(node: Node, context: Context) -> convolution.Reduce:
    def reduce(x: Any, axes: Sequence[Axis]) -> Any:
        out = _reduce(x, axes, x.dtype.type(0), lax.add)
        for dimension, axis in enumerate(axes):
            if not axis.is_trivial:
                shape = [-1 if i == dimension else 1 for i in range(len(axes))]
                out = out / convolution.counts(axis).reshape(shape).astype(x.dtype)
        return out

    return reduce


convolution.register_pools(_maximum, _mean, "jax")

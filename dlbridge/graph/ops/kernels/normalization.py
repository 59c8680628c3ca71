"""Normalization of channels on the array API."""

from __future__ import annotations

from typing import Any

from dlbridge.execution.errors import UnimplementedError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Function, element, require_rank, require_shape, widened


@kernel("FusedBatchNorm", "FusedBatchNormV2", "FusedBatchNormV3")
def batch_norm(node: Node, context: Context) -> Function:
    """Normalised images, the statistics, and the reserves that TensorFlow's gradient takes."""
    attrs = node.attrs
    normalise = _trained(node, context) if attrs["is_training"] else _inferred(node, context)
    third = len(node.output_types) == 6
    rank = len(attrs["data_format"])
    xp = context.xp

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> Any:
        require_rank(x, rank, node, "x")
        channels = x.shape[1 if attrs["data_format"][1:2] == b"C" else -1]
        require_shape(scale, (channels,), node, "scale")
        require_shape(offset, (channels,), node, "offset")
        if not attrs["is_training"] or attrs["exponential_avg_factor"] != 1:
            require_shape(mean, (channels,), node, "mean")
            require_shape(variance, (channels,), node, "variance")
        if 0 in x.shape:  # the statistics of no images are NaN, the reserves zero
            unknown, zero = xp.full_like(scale, xp.nan), xp.zeros_like(scale)
            out = x, unknown, unknown, zero, zero
        else:
            out = normalise(x, scale, offset, mean, variance)
        if not third:
            return out
        return (*out, xp.zeros((0,), dtype=scale.dtype, device=context.device))

    return widened(run, node, context)


def _across(node: Node, xp: Any) -> tuple[Function, tuple[int, ...]]:
    """Return what lays a vector along the channels, and the other dimensions."""
    data_format = node.attrs["data_format"]
    rank = len(data_format)
    if data_format[1:2] != b"C":
        return (lambda vector: vector), tuple(range(rank - 1))
    shape = (-1, *(1,) * (rank - 2))
    return (lambda vector: xp.reshape(vector, shape)), (0, *range(2, rank))


def _inferred(node: Node, context: Context) -> Function:
    xp, epsilon = context.xp, node.attrs["epsilon"]
    across, _ = _across(node, xp)

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        factor = scale / xp.sqrt(variance + epsilon)
        y = (x - across(mean)) * across(factor) + across(offset)
        return y, mean, variance, mean, variance

    return run


def _trained(node: Node, context: Context) -> Function:
    """The variance that is returned has Bessel's correction, the one that normalises has not."""
    xp, attrs = context.xp, node.attrs
    epsilon, weight = attrs["epsilon"], attrs["exponential_avg_factor"]
    across, others = _across(node, xp)

    def run(x: Any, scale: Any, offset: Any, mean: Any, variance: Any) -> tuple[Any, ...]:
        count = 1
        for dimension in others:
            count *= x.shape[dimension]
        own_mean = xp.mean(x, axis=others)
        centred = x - across(own_mean)
        own_variance = xp.mean(centred * centred, axis=others)
        y = centred * across(scale / xp.sqrt(own_variance + epsilon)) + across(offset)
        new_mean, new_variance = own_mean, own_variance * (count / max(count - 1, 1))
        if weight != 1:
            new_mean = (1 - weight) * mean + weight * new_mean
            new_variance = (1 - weight) * variance + weight * new_variance
        return y, new_mean, new_variance, own_mean, own_variance

    return run


@kernel("BatchNormWithGlobalNormalization")
def global_norm(node: Node, context: Context) -> Function:
    """The first form of batch normalisation."""
    if not element(node).is_floating:
        raise UnimplementedError(
            f"there is no kernel for {node.type} of {element(node).name}", node
        )
    xp, epsilon = context.xp, node.attrs["variance_epsilon"]
    scaled = node.attrs["scale_after_normalization"]

    def run(t: Any, m: Any, v: Any, beta: Any, gamma: Any) -> Any:
        require_rank(t, 4, node, "t")
        for name, given in (("m", m), ("v", v), ("beta", beta), ("gamma", gamma)):
            require_shape(given, tuple(t.shape[-1:]), node, name)
        factor = 1 / xp.sqrt(v + epsilon)
        return (t - m) * (factor * gamma if scaled else factor) + beta

    return widened(run, node, context)


@kernel("LRN")
def lrn(node: Node, context: Context) -> Function:
    """Each channel divided by a power of the squares of its neighbours' sum."""
    xp, attrs = context.xp, node.attrs
    radius, bias, alpha, beta = (attrs[name] for name in ("depth_radius", "bias", "alpha", "beta"))

    def run(x: Any) -> Any:
        require_rank(x, 4, node, "input")
        depth = x.shape[-1]
        reach = min(radius, max(depth - 1, 0))
        edge = xp.zeros((*x.shape[:-1], reach), dtype=x.dtype, device=context.device)
        squares = xp.concat([edge, x * x, edge], axis=-1)
        total = squares[..., :depth]
        for start in range(1, 2 * reach + 1):
            total = total + squares[..., start : start + depth]
        return x * (bias + alpha * total) ** -beta

    return widened(run, node, context)

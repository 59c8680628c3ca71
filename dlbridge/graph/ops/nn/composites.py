"""Functions of `tf.nn` that are made of several operations: layers, dropout, look-up."""

from __future__ import annotations

import math
from typing import Any

from dlbridge.graph.core.default_graph import constant, convert_to_tensor, get_seed, name_scope
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.array.functions import shape
from dlbridge.graph.ops.basic.functions import identity
from dlbridge.graph.ops.functions import one_of, result
from dlbridge.graph.ops.indexing.functions import gather
from dlbridge.graph.ops.joining.functions import concat
from dlbridge.graph.ops.nn.functions import bias_add, relu, softplus
from dlbridge.proto.datatypes import float32

__all__ = [
    "crelu", "dropout", "embedding_lookup", "gelu", "log_sigmoid", "relu_layer", "silu", "swish",
    "xw_plus_b", "zero_fraction",
]  # fmt: skip


def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """Return matmul(x, weights) + biases.

    Args:
        x: (batch, in).
        weights: (in, out).
        biases: (out,).
        name: of the last operation.
    """
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as full:
        return bias_add(result("MatMul", (x, weights)), biases, name=full)


def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """Return relu(matmul(x, weights) + biases); arguments as of `xw_plus_b`."""
    with name_scope(name, "relu_layer", [x, weights, biases]) as full:
        return relu(bias_add(result("MatMul", (x, weights)), biases), full)


def crelu(features: Any, name: str | None = None, axis: int = -1) -> Tensor:
    """Return relu of features and of their negatives, side by side along an axis."""
    with name_scope(name, "CRelu", [features]) as full:
        x = convert_to_tensor(features, name="features")
        both = concat([x, result("Neg", (x,))], axis, name=full)
        return relu(both)


def silu(features: Any, beta: float = 1.0) -> Tensor:
    """Return features * sigmoid(beta * features)."""
    x = convert_to_tensor(features, name="features")
    scaled = x if beta == 1.0 else result("Mul", (beta, x), "mul")
    return result("Mul", (x, result("Sigmoid", (scaled,))), "mul")


swish = silu


def log_sigmoid(x: Any, name: str | None = None) -> Tensor:
    """Return log(1 / (1 + exp(-x))), with all its digits, for floats of any shape."""
    with name_scope(name, "LogSigmoid", [x]) as full:
        x = convert_to_tensor(x, name="x")
        return result("Neg", (softplus(result("Neg", (x,))),), full)


def gelu(features: Any, approximate: bool = False, name: str | None = None) -> Tensor:
    """Return features, each times the probability that a normal variable is below it.

    Args:
        features: floats, any shape.
        approximate: whether that probability is computed from a tanh.
        name: of the scope of its operations.
    """
    with name_scope(name, "Gelu", [features]):
        x = convert_to_tensor(features, name="features")
        half = result("Mul", (0.5, x), "mul")
        if not approximate:  # erfc has digits left where 1 + erf has none
            below = result("Mul", (result("Neg", (x,)), math.sqrt(0.5)), "mul")
            return result("Mul", (half, result("Erfc", (below,))), "mul")
        cube = result("Mul", (0.044715, result("Pow", (x, 3.0))), "mul")
        inside = result("Mul", (math.sqrt(2 / math.pi), result("AddV2", (x, cube), "add")), "mul")
        return result(
            "Mul", (half, result("AddV2", (1.0, result("Tanh", (inside,))), "add")), "mul"
        )


def dropout(
    x: Any,
    keep_prob: Any = None,
    noise_shape: Any = None,
    seed: int | None = None,
    name: str | None = None,
    rate: Any = None,
) -> Tensor:
    """Return a tensor of which random elements are 0 and the others larger: the mean stays.

    Args:
        x: floats.
        keep_prob: the probability that an element stays, the old form of 1 - rate.
        noise_shape: the shape of the random choice, which broadcasts with `x`; None is that of
            `x`.
        seed: of the operation.
        name: of the scope of its operations.
        rate: the probability that an element becomes 0, a number in [0, 1).

    Raises:
        ValueError: neither or both of the probabilities; one out of range; no floats.
    """
    if keep_prob is not None:
        keep_prob = one_of("dropout", keep_prob=keep_prob, rate=rate)
        rate = 1 - keep_prob
    if rate is None:
        raise ValueError("You must provide a rate to dropout.")
    if isinstance(rate, int | float) and not 0 <= rate < 1:
        raise ValueError(
            f"`rate` must be a scalar tensor or a float in the range [0, 1), got {rate}"
        )
    with name_scope(name, "dropout", [x]):
        given = convert_to_tensor(x, name="x")
        kind = given.dtype
        if not kind.is_floating:
            raise ValueError(f"`x.dtype` must be a floating point tensor, got {kind.name}")
        if isinstance(rate, int | float) and rate == 0:
            return given
        kept = result("Sub", (constant(1, kind), rate), "sub")
        scaled = result("RealDiv", (given, kept), "truediv")
        random = _uniform(shape(given) if noise_shape is None else noise_shape, given, seed)
        stays = result("GreaterEqual", (random, rate))
        return result("SelectV2", (stays, scaled, constant(0, kind)))


def _uniform(dims: Any, x: Tensor, seed: int | None) -> Tensor:
    first, second = get_seed(seed)
    return result("RandomUniform", (dims,), None, dtype=x.dtype, seed=first or 0, seed2=second or 0)


def embedding_lookup(
    params: Any,
    ids: Any,
    partition_strategy: str = "mod",
    name: str | None = None,
    validate_indices: bool = True,  # noqa: ARG001
    max_norm: float | None = None,
) -> Tensor:
    """Return the rows of a table that `ids` name.

    Args:
        params: (rows, …), or a list with that one table.
        ids: int32 or int64, any shape.
        partition_strategy: "mod" or "div": of several tables, which are not supported.
        name: of the operation.
        validate_indices: not used, as in TensorFlow.
        max_norm: the length that no row exceeds, or None.

    Returns:
        A tensor of the shape of `ids`, then that of a row.

    Raises:
        ValueError: several tables.
    """
    if partition_strategy not in {"mod", "div"}:
        raise ValueError(f'partition_strategy must be "mod" or "div", got {partition_strategy!r}')
    tables = params if isinstance(params, list | tuple) else [params]
    if len(tables) != 1:
        raise ValueError(
            f"embedding_lookup: required one table, got {len(tables)}: concatenate them first"
        )
    with name_scope(name, "embedding_lookup", [*tables, ids]) as full:
        rows = gather(tables[0], ids, name=full)
        clipped = rows if max_norm is None else _clipped(rows, ids, max_norm)
        return identity(clipped)


def _clipped(rows: Tensor, ids: Any, max_norm: float) -> Tensor:
    """Return rows of which none is longer than `max_norm`."""
    rank, lead = rows.shape.rank, convert_to_tensor(ids).shape.rank
    if rank is None or lead is None:
        raise ValueError("embedding_lookup: max_norm needs the ranks of params and ids to be known")
    squares = result("Sum", (result("Square", (rows,)), list(range(lead, rank))), keep_dims=True)
    length = result("Sqrt", (squares,))
    limited = result("Maximum", (length, float(max_norm)))
    return result("RealDiv", (result("Mul", (rows, float(max_norm)), "mul"), limited), "truediv")


def zero_fraction(value: Any, name: str | None = None) -> Tensor:
    """Return the share of elements that are 0, a float32 scalar."""
    with name_scope(name, "zero_fraction", [value]):
        x = convert_to_tensor(value, name="value")
        zeros = result("Equal", (x, constant(0, x.dtype)))
        flat = result("Reshape", (result("Cast", (zeros,), DstT=float32), [-1]))
        return result("Mean", (flat, [0]), "fraction")

"""Activations, softmax, losses, bias."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.graph.core.default_graph import (
    apply,
    constant,
    convert_to_tensor,
    get_seed,
    name_scope,
)
from dlbridge.graph.core.inference import (
    Inference,
    broadcast_dims,
    constant_value,
    merge_dim,
    require_rank,
    scalars,
    unchanged,
)
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.arithmetic import clip_by_norm
from dlbridge.graph.ops.array import reshape, shape, transpose
from dlbridge.graph.ops.basic import identity, stop_gradient
from dlbridge.graph.ops.indexing import dynamic_partition, dynamic_stitch, gather
from dlbridge.graph.ops.joining import concat
from dlbridge.graph.ops.linear import matmul
from dlbridge.graph.ops.shared import (
    HALF_FIRST,
    NUMBER,
    REAL,
    Shapes,
    at_least,
    at_most_one,
    define,
    one_of,
    result,
)
from dlbridge.graph.ops.slicing import slice as slice_of
from dlbridge.graph.ops.unary import cast
from dlbridge.proto.datatypes import bfloat16, float16, float32, int32
from dlbridge.shape import Dims

__all__ = [
    "bias_add", "crelu", "dropout", "elu", "embedding_lookup", "gelu", "in_top_k", "l2_loss",
    "leaky_relu", "log_sigmoid", "log_softmax", "relu", "relu6", "relu_layer", "selu",
    "sigmoid_cross_entropy_with_logits", "silu", "softmax", "softmax_cross_entropy_with_logits",
    "softmax_cross_entropy_with_logits_v2", "softplus", "softsign",
    "sparse_softmax_cross_entropy_with_logits", "swish", "weighted_cross_entropy_with_logits",
    "xw_plus_b", "zero_fraction",
]  # fmt: skip


# ==== op types ====================================================================================


def _logits(c: Inference) -> Shapes:
    """The shape of the logits, which have rows."""
    return [at_least(c.dims(0), 1, c)]


def _cross_entropy(c: Inference) -> Shapes:
    """A loss for each row, and the gradient of each logit; the two inputs are broadcast."""
    logits, labels = c.dims(0), c.dims(1)
    if logits is None or labels is None:  # one that is known has the rows, unless there is one
        known = require_rank(labels if logits is None else logits, 2, c)
        dims = tuple([None if dim == 1 else dim for dim in known])
    else:
        dims = require_rank(broadcast_dims(logits, labels, c), 2, c)
    return [dims[:1], dims]


def _sparse_cross_entropy(c: Inference) -> Shapes:
    logits = require_rank(c.dims(0), 2, c)
    labels = require_rank(c.dims(1), 1, c)
    batch = merge_dim(logits[0], labels[0], c)
    return [(batch,), (batch, logits[1])]


def _bias_add(c: Inference) -> Shapes:
    channels_first = c.attrs.get("data_format") == b"NCHW"
    dims = at_least(c.dims(0), 3 if channels_first else 2, c)
    (length,) = require_rank(c.dims(1), 1, c)
    if dims is None:
        return [None]
    axis = 1 if channels_first else len(dims) - 1
    return [(*dims[:axis], merge_dim(dims[axis], length, c), *dims[axis + 1 :])]


def _in_top_k(c: Inference) -> Shapes:
    predictions = require_rank(c.dims(0), 2, c)
    targets = require_rank(c.dims(1), 1, c)
    return [(merge_dim(predictions[0], targets[0], c),)]


define(
    f"Relu(features: T, *, T: {REAL[:-1]}, qint8}}) -> activations: T",
    shape=unchanged,
)
define(f"Relu6(features: T, *, T: {REAL}) -> activations: T", shape=unchanged)
for _name in ("Elu", "Selu", "Softplus", "Softsign"):
    define(f"{_name}(features: T, *, T: {HALF_FIRST}) -> activations: T", shape=unchanged)
define(
    f"LeakyRelu(features: T, *, alpha: float = 0.2, T: {HALF_FIRST} = float32) -> activations: T",
    shape=unchanged,
)
define(f"Softmax(logits: T, *, T: {HALF_FIRST}) -> softmax: T", shape=_logits)
define(f"LogSoftmax(logits: T, *, T: {HALF_FIRST}) -> logsoftmax: T", shape=_logits)
define(
    f"SoftmaxCrossEntropyWithLogits(features: T, labels: T, *, T: {HALF_FIRST}) "
    "-> (loss: T, backprop: T)",
    shape=_cross_entropy,
)
define(
    "SparseSoftmaxCrossEntropyWithLogits(features: T, labels: Tlabels, *, "
    f"T: {HALF_FIRST}, Tlabels: {{int32, int64}} = int64) -> (loss: T, backprop: T)",
    shape=_sparse_cross_entropy,
)
define(
    f"BiasAdd(value: T, bias: T, *, T: {NUMBER}, "
    'data_format: {"NHWC", "NCHW"} = "NHWC") -> output: T',
    shape=_bias_add,
)
define(f"BiasAddV1(value: T, bias: T, *, T: {NUMBER}) -> output: T", shape=_bias_add)
define(f"L2Loss(t: T, *, T: {HALF_FIRST}) -> output: T", shape=scalars)
define(
    "InTopK(predictions: float32, targets: T, *, k: int, T: {int32, int64} = int32) "
    "-> precision: bool",
    shape=_in_top_k,
)
define(
    "InTopKV2(predictions: float32, targets: T, k: T, *, T: {int32, int64} = int32) "
    "-> precision: bool",
    shape=_in_top_k,
)


# ==== functions: one operation each ===============================================================


def relu(features: Any, name: str | None = None) -> Tensor:
    """Return max(features, 0).

    Args:
        features: a tensor of real numbers, any shape.
        name: of the operation.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.nn.relu([-1.0, 2.0]))
        array([0., 2.], dtype=float32)
    """
    return apply("Relu", (features,), None, name).outputs[0]


def relu6(features: Any, name: str | None = None) -> Tensor:
    """Return features cut to 0 … 6; arguments as of `relu`."""
    return apply("Relu6", (features,), None, name).outputs[0]


def elu(features: Any, name: str | None = None) -> Tensor:
    """Return features, and exp(features) - 1 where they are negative.

    Args:
        features: a tensor of floats, any shape.
        name: of the operation.
    """
    return apply("Elu", (features,), None, name).outputs[0]


def selu(features: Any, name: str | None = None) -> Tensor:
    """Return scaled exponential linear units, which keep mean 0 and variance 1; as `elu`."""
    return apply("Selu", (features,), None, name).outputs[0]


def leaky_relu(features: Any, alpha: float = 0.2, name: str | None = None) -> Tensor:
    """Return features, and alpha * features where they are negative.

    Args:
        features: a tensor of floats, any shape; integers are taken as float32.
        alpha: slope of the negative part.
        name: of the operation.
    """
    with name_scope(name, "LeakyRelu", [features]) as full:
        x = convert_to_tensor(features, name="features")
        if x.dtype.is_integer:
            x = apply("Cast", (x,), {"DstT": "float32"}, None).outputs[0]
        return apply("LeakyRelu", (x,), {"alpha": float(alpha)}, full).outputs[0]


def softplus(features: Any, name: str | None = None) -> Tensor:
    """Return log(1 + exp(features)); arguments as of `elu`."""
    return apply("Softplus", (features,), None, name).outputs[0]


def softsign(features: Any, name: str | None = None) -> Tensor:
    """Return features / (1 + abs(features)); arguments as of `elu`."""
    return apply("Softsign", (features,), None, name).outputs[0]


def softmax(logits: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """Return exp(logits), divided by their sum along an axis.

    Args:
        logits: a tensor of floats of rank 1 or more.
        axis: the dimension of the classes, also a scalar Tensor; None is the last. `dim` is its old
            name.
        name: of the operation.

    Raises:
        InvalidArgumentError: no such dimension.
    """
    return _along("Softmax", logits, at_most_one("softmax", -1, axis=axis, dim=dim), name)


def log_softmax(logits: Any, axis: Any = None, name: str | None = None, dim: Any = None) -> Tensor:
    """Return the logarithm of `softmax`, with all its digits; arguments as there."""
    return _along("LogSoftmax", logits, at_most_one("log_softmax", -1, axis=axis, dim=dim), name)


def _along(op_type: str, logits: Any, axis: Any, name: str | None) -> Tensor:
    """Apply what works on the last dimension to another one."""
    x = convert_to_tensor(logits)
    rank = x.shape.rank
    if isinstance(axis, Tensor):
        value = constant_value(axis)
        axis = axis if value is None else int(value)
    if axis == -1 or (rank is not None and axis == rank - 1):
        return apply(op_type, (x,), None, name).outputs[0]
    order, dims = exchanged(x, axis), x.shape
    x = apply("Transpose", (x, order), None, "transpose").outputs[0]
    x = apply(op_type, (x,), None, None).outputs[0]
    out = apply("Transpose", (x, order), None, name or "transpose").outputs[0]
    out.set_shape(dims)
    return out


def exchanged(x: Tensor, axis: Any) -> Any:
    """Return the permutation that exchanges a dimension and the last one.

    Args:
        x: of known rank.
        axis: an integer, or a scalar Tensor; the permutation is a Tensor then.

    Raises:
        ValueError: the rank is unknown.
        InvalidArgumentError: no such dimension.
    """
    rank = x.shape.rank
    if rank is None:
        raise ValueError(
            f"axis {axis} of {x.name!r}, whose rank is unknown: call set_shape first, or use the "
            "last axis, -1"
        )
    if isinstance(axis, Tensor):
        numbers = np.arange(rank, dtype=axis.dtype.numpy)
        place = result("FloorMod", (axis, rank))
        moved = result("SelectV2", (result("Equal", (numbers, rank - 1)), place, numbers))
        return result("SelectV2", (result("Equal", (numbers, place)), rank - 1, moved))
    if not -rank <= axis < rank:
        raise InvalidArgumentError(f"`axis` must be in the range [{-rank}, {rank}), got {axis}")
    order = list(range(rank))
    order[axis], order[-1] = order[-1], order[axis]
    return order


def bias_add(
    value: Any, bias: Any, data_format: str | None = None, name: str | None = None
) -> Tensor:
    """Return the sum of images, or of rows, and a vector along their channels.

    Args:
        value: a tensor of rank 2 or more.
        bias: a vector with as many elements as `value` has channels, of the same dtype.
        data_format: "N…C" (channels last, as for None) or "NC…" (channels in dimension 1).
        name: of the operation.

    Raises:
        ValueError: another data format; shapes that do not fit.
    """
    formats = {None: "NHWC", "NC": "NCHW"}
    layout = formats.get(data_format and data_format[:2])
    if layout is None and data_format is not None and data_format[:1] + data_format[-1:] == "NC":
        layout = "NHWC"
    if layout is None:
        raise ValueError(
            f"`data_format` must be of the form `N...C` or `NC...`, got {data_format!r}"
        )
    with name_scope(name, "BiasAdd", [value, bias]) as full:
        x = convert_to_tensor(value, name="input")
        other = convert_to_tensor(bias, x.dtype, "bias")
        return apply("BiasAdd", (x, other), {"data_format": layout.encode()}, full).outputs[0]


def l2_loss(t: Any, name: str | None = None) -> Tensor:
    """Return half the sum of squares, a scalar.

    Args:
        t: a tensor of floats, any shape.
        name: of the operation.
    """
    return apply("L2Loss", (t,), None, name).outputs[0]


def in_top_k(predictions: Any, targets: Any, k: Any, name: str | None = None) -> Tensor:
    """Tell for each row whether its target is among the k largest predictions.

    Args:
        predictions: (batch, classes), float32; a row with a value that is not finite has no top.
        targets: (batch,), class numbers.
        k: how many; ties count as inside.
        name: of the operation.
    """
    with name_scope(name, "in_top_k", [predictions, targets]):
        return apply("InTopKV2", (predictions, targets, k), None, "InTopKV2").outputs[0]


# ==== functions: layers, dropout, look-up =========================================================


def xw_plus_b(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """Return matmul(x, weights) + biases.

    Args:
        x: (batch, in).
        weights: (in, out).
        biases: (out,).
        name: of the last operation.
    """
    with name_scope(name, "xw_plus_b", [x, weights, biases]) as full:
        return bias_add(matmul(x, weights), biases, name=full)


def relu_layer(x: Any, weights: Any, biases: Any, name: str | None = None) -> Tensor:
    """Return relu(matmul(x, weights) + biases); arguments as of `xw_plus_b`."""
    with name_scope(name, "relu_layer", [x, weights, biases]) as full:
        return relu(bias_add(matmul(x, weights), biases), full)


def crelu(features: Any, name: str | None = None, axis: int = -1) -> Tensor:
    """Return relu of features and of their negatives, side by side along an axis."""
    with name_scope(name, "CRelu", [features]) as full:
        x = convert_to_tensor(features, name="features")
        both = concat([x, result("Neg", (x,))], axis, name=full)
        return relu(both)


def silu(features: Any, beta: float = 1.0) -> Tensor:
    """Return features * sigmoid(beta * features), for floats of any shape; `beta` is a number."""
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
        params: (rows, …); or a list of such tables, or a PartitionedVariable, which together are
            the table.
        ids: int32 or int64, any shape.
        partition_strategy: which rows of the table the tables of a list are: "mod" deals them out
            one by one, row i to table i % len(params); "div" gives each as many rows in sequence,
            the first ones one more if they are not equal, as a PartitionedVariable is split.
        name: of the operation.
        validate_indices: not used, as in TensorFlow.
        max_norm: the length that no row exceeds, or None.

    Returns:
        A tensor of the shape of `ids`, then that of a row.

    Raises:
        ValueError: another strategy; no table.
        InvalidArgumentError: when run, there is no such row.

    Example:
        >>> import dlbridge.graph as tf
        >>> even, odd = [[0.0], [2.0]], [[1.0], [3.0]]
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     session.run(tf.nn.embedding_lookup([even, odd], [3, 0])).tolist()
        [[3.0], [0.0]]
    """
    if partition_strategy not in {"mod", "div"}:
        raise ValueError(f'partition_strategy must be "mod" or "div", got {partition_strategy!r}')
    is_split = isinstance(params, list | tuple) or hasattr(params, "partitions")
    tables = list(params) if is_split else [params]
    if not tables:
        raise ValueError("embedding_lookup: required one table at least, got none")
    with name_scope(name, "embedding_lookup", [*tables, ids]) as full:
        if len(tables) == 1:
            rows = _clipped(gather(tables[0], ids, name=full), ids, max_norm)
            return identity(rows)  # type: ignore[no-any-return]
        given = convert_to_tensor(ids, name="ids")
        return _clipped(_rows_of(tables, given, partition_strategy, full), given, max_norm)


def _rows_of(tables: list[Any], ids: Tensor, strategy: str, name: str) -> Tensor:
    """Return the rows that `ids` name of a table that is given in pieces."""
    count = len(tables)
    flat: Any = reshape(ids, [-1])
    if strategy == "mod":
        table, row = flat % count, flat // count
    else:
        total: Any = result("AddN", ([_extents(each, ids.dtype)[0] for each in tables],))
        fewer, longer = total // count, total % count  # the first `longer` tables have one more
        table = result("Maximum", (flat // (fewer + 1), (flat - longer) // fewer))
        row = result("SelectV2", (table < longer, flat % (fewer + 1), (flat - longer) % fewer))
    table = cast(table, int32)
    order = result("Range", (0, _extents(flat)[0], 1))
    rows = [
        gather(one, here)
        for one, here in zip(tables, dynamic_partition(row, table, count), strict=True)
    ]
    joined = dynamic_stitch(dynamic_partition(order, table, count), rows, name)
    return reshape(joined, concat([shape(ids), _extents(tables[0])[1:]], 0))


def _extents(x: Any, dtype: Any = int32) -> Any:
    return shape(x, out_type=dtype)


def _clipped(rows: Tensor, ids: Any, max_norm: float | None) -> Tensor:
    """Return rows of which none is longer than `max_norm`."""
    if max_norm is None:
        return rows
    rank, lead = rows.shape.rank, convert_to_tensor(ids).shape.rank
    if rank is None or lead is None:
        raise ValueError("embedding_lookup: max_norm needs the ranks of params and ids to be known")
    return clip_by_norm(rows, max_norm, list(range(lead, rank)))  # type: ignore[no-any-return]


def zero_fraction(value: Any, name: str | None = None) -> Tensor:
    """Return the share of elements that are 0, a float32 scalar."""
    with name_scope(name, "zero_fraction", [value]):
        x = convert_to_tensor(value, name="value")
        if x.dtype.kind == "s":
            raise TypeError(f"value must be a tensor of numbers, got {value!r}")
        zeros = result("Equal", (x, constant(0, x.dtype)))
        flat = result("Reshape", (result("Cast", (zeros,), DstT=float32), [-1]))
        return result("Mean", (flat, [0]), "fraction")


# ==== functions: losses ===========================================================================


def softmax_cross_entropy_with_logits(
    labels: Any = None,
    logits: Any = None,
    dim: int = -1,
    name: str | None = None,
    axis: int | None = None,
) -> Tensor:
    """Return the cross entropy of labels and softmax(logits); no gradient goes to the labels.

    Args:
        labels: probabilities, of the shape of `logits`.
        logits: floats; 16-bit ones are computed in 32 bits.
        axis: of the classes; `dim` is its old name.
        name: of the scope of its operations.

    Returns:
        A tensor without that axis, of the dtype of `logits`.
    """
    labels, logits = _given("softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "softmax_cross_entropy_with_logits_sg", [logits, labels]) as full:
        labels = stop_gradient(labels, "labels_stop_gradient")
        axis = dim if axis is None else axis
        return softmax_cross_entropy_with_logits_v2(labels, logits, axis, full)


def softmax_cross_entropy_with_logits_v2(
    labels: Any,
    logits: Any,
    axis: int | None = None,
    name: str | None = None,
    dim: int | None = None,
) -> Tensor:
    """Return the cross entropy of labels and softmax(logits).

    Args:
        labels: probabilities, of the shape of `logits`.
        logits: floats; 16-bit ones are computed in 32 bits.
        axis: of the classes, None is the last; `dim` is its old name.
        name: of the scope of its operations.

    Returns:
        A tensor without that axis, of the dtype of `logits`.
    """
    axis = at_most_one("softmax_cross_entropy_with_logits_v2", None, axis=axis, dim=dim)
    with name_scope(name, "softmax_cross_entropy_with_logits", [logits, labels]) as full:
        logits = convert_to_tensor(logits, name="logits")
        labels = convert_to_tensor(labels, name="labels")
        kind = logits.dtype
        precise = _widened(logits)
        labels = _cast(labels, precise.dtype)
        if axis not in {None, -1} and axis != (precise.shape.rank or 0) - 1:
            assert axis is not None
            order = _moved_last(precise, axis)
            precise, labels = transpose(precise, order), transpose(labels, order)
        out_shape = _without_last(precise)
        flat, flat_labels = _rows(precise), _rows(labels)
        cost = apply("SoftmaxCrossEntropyWithLogits", (flat, flat_labels), None, full).outputs[0]
        dims = precise._dims
        cost = reshape(cost, out_shape)
        if dims is not None:
            cost.set_shape(dims[:-1])
        return _cast(cost, kind)


def sparse_softmax_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Return the cross entropy of softmax(logits) and labels that are class numbers.

    Args:
        labels: int32 or int64, of the shape of `logits` without its last dimension.
        logits: floats; 16-bit ones are computed in 32 bits.
        name: of the scope of its operations.

    Returns:
        A tensor of the shape of `labels` and the dtype of `logits`. A label that is no class
        number is an InvalidArgumentError when it runs, and NaN in JAX.

    Raises:
        ValueError: shapes that do not fit.
    """
    labels, logits = _given("sparse_softmax_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "SparseSoftmaxCrossEntropyWithLogits", [labels, logits]):
        labels = convert_to_tensor(labels)
        logits = convert_to_tensor(logits)
        _check_sparse(labels._dims, logits._dims)
        kind = logits.dtype
        precise = _widened(logits)
        if precise.shape.rank == 2:
            return _cast(_sparse(precise, labels), kind)
        out_shape = shape(labels)
        cost = _sparse(_rows(precise), reshape(labels, [-1]))
        cost = reshape(cost, out_shape)
        if labels._dims is not None:
            cost.set_shape(labels._dims)
        return _cast(cost, kind)


def _sparse(logits: Tensor, labels: Tensor) -> Tensor:
    return result("SparseSoftmaxCrossEntropyWithLogits", (logits, labels))


def _check_sparse(labels: Dims | None, logits: Dims | None) -> None:
    if logits is not None and not logits:
        raise ValueError("Logits cannot be scalars - received shape ().")
    if labels is None or logits is None:
        return
    if len(labels) != len(logits) - 1:
        raise ValueError(
            f"Rank mismatch: Rank of labels (received {len(labels)}) should equal rank of logits "
            f"minus 1 (received {len(logits)})."
        )
    for one, other in zip(labels, logits[:-1], strict=True):
        if one is not None and other is not None and one != other:
            raise ValueError(
                "`labels.shape` must equal `logits.shape` except for the last dimension. "
                f"Received: labels.shape={labels} and logits.shape={logits}"
            )


def sigmoid_cross_entropy_with_logits(
    labels: Any = None, logits: Any = None, name: str | None = None
) -> Tensor:
    """Return the cross entropy of labels and sigmoid(logits), element by element.

    Args:
        labels: probabilities of classes that do not exclude each other.
        logits: of the same shape and dtype.
        name: of the scope of its operations.

    Raises:
        ValueError: shapes that differ.
    """
    labels, logits = _given("sigmoid_cross_entropy_with_logits", labels, logits)
    with name_scope(name, "logistic_loss", [logits, labels]) as full:
        labels, logits = _of_one_shape(labels, logits)
        zeros = result("ZerosLike", (logits,), "zeros_like")
        positive = result("GreaterEqual", (logits, zeros))
        above = result("Select", (positive, logits, zeros))
        below = result("Select", (positive, result("Neg", (logits,)), logits))
        linear = result("Sub", (above, result("Mul", (logits, labels), "mul")), "sub")
        return result("AddV2", (linear, result("Log1p", (result("Exp", (below,)),))), full)


def weighted_cross_entropy_with_logits(
    labels: Any = None,
    logits: Any = None,
    pos_weight: Any = None,
    name: str | None = None,
    targets: Any = None,
) -> Tensor:
    """Return `sigmoid_cross_entropy_with_logits` whose positive term is weighted.

    Args:
        labels: probabilities; `targets` is its old name.
        logits: of the same shape and dtype.
        pos_weight: factor of the positive term.
        name: of the scope of its operations.

    Raises:
        ValueError: shapes that differ.
    """
    labels = one_of("weighted_cross_entropy_with_logits", labels=labels, targets=targets)
    with name_scope(name, "logistic_loss", [logits, labels]) as full:
        labels, logits = _of_one_shape(labels, logits)
        more = result("Mul", (result("Sub", (pos_weight, 1.0), "sub"), labels), "mul")
        factor = result("AddV2", (1.0, more), "add")
        linear = result("Mul", (result("Sub", (1.0, labels), "sub"), logits), "mul")
        below = result("Neg", (result("Abs", (logits,)),))
        logarithm = result("Log1p", (result("Exp", (below,)),))
        bend = result("AddV2", (logarithm, relu(result("Neg", (logits,)))), "add")
        return result("AddV2", (linear, result("Mul", (factor, bend), "mul")), full)


# ---- shared parts ------------------------------------------------------------------------------


def _given(call: str, labels: Any, logits: Any) -> tuple[Any, Any]:
    if labels is None or logits is None:
        raise ValueError(f"Both `labels` and `logits` must be provided to {call}, by name")
    return labels, logits


def _of_one_shape(labels: Any, logits: Any) -> tuple[Tensor, Tensor]:
    """Return both as Tensors of the dtype of `logits`."""
    one = convert_to_tensor(logits, name="logits")
    other = convert_to_tensor(labels, one.dtype, "labels")
    if not one.shape.is_compatible_with(other.shape):
        raise ValueError(
            f"`logits` and `labels` must have the same shape, received ({one.shape} vs "
            f"{other.shape})."
        )
    return other, one


def _widened(logits: Tensor) -> Tensor:
    return _cast(logits, float32) if logits.dtype in {float16, bfloat16} else logits


def _cast(x: Tensor, dtype: Any) -> Tensor:
    if x.dtype is dtype:
        return x
    return apply("Cast", (x,), {"DstT": dtype}).outputs[0]


def _moved_last(x: Tensor, axis: int) -> list[int]:
    """Return the permutation that moves a dimension to the end."""
    order = sorted(exchanged(x, axis))
    order.append(order.pop(axis))
    return order


def _rows(x: Tensor) -> Tensor:
    """Return a tensor as a matrix, all dimensions but the last made into one."""
    dims = x._dims
    if dims is not None and dims[-1] is not None:
        return reshape(x, [-1, dims[-1]])
    whole = shape(x)
    count = apply("Rank", (x,)).outputs[0]
    last = slice_of(whole, [result("Sub", (count, 1), "sub")], [1])
    out = reshape(x, concat([[-1], last], 0))
    out.set_shape((None, None if dims is None else dims[-1]))
    return out


def _without_last(x: Tensor) -> Any:
    """Return the shape without its last dimension, a list where it is known."""
    dims = x._dims
    if dims is not None and None not in dims[:-1]:
        return list(dims[:-1])
    if dims is not None:
        return slice_of(shape(x), [0], [len(dims) - 1])
    count = apply("Rank", (x,)).outputs[0]
    return slice_of(shape(x), [0], [result("Sub", (count, 1), "sub")])

"""Activations, softmax, losses and bias."""

from __future__ import annotations

from dlbridge.graph.core.inference import (
    Inference,
    broadcast_dims,
    merge_dim,
    require_rank,
    scalars,
    unchanged,
)
from dlbridge.graph.core.opdef import define
from dlbridge.graph.ops.declarations import Shapes
from dlbridge.shape import Dims

FLOATS = "{float16, bfloat16, float32, float64}"
REALS = (
    "{float32, float64, int32, uint8, int16, int8, int64, bfloat16, uint16, float16, uint32, "
    "uint64}"
)
NUMBERS = (
    "{float32, float64, int32, uint8, int16, int8, complex64, int64, qint8, quint8, qint32, "
    "bfloat16, qint16, quint16, uint16, complex128, float16, uint32, uint64}"
)


def at_least(dims: Dims | None, rank: int, c: Inference) -> Dims | None:
    """Return the dimensions; raise where the rank is known and smaller."""
    if dims is not None and len(dims) < rank:
        raise c.error(f"Shape must be at least rank {rank} but is rank {len(dims)}")
    return dims


def _rows(c: Inference) -> Shapes:
    """The shape of the logits, which have rows."""
    return [at_least(c.dims(0), 1, c)]


def _cross_entropy(c: Inference) -> Shapes:
    """A loss for each row, and the gradient of each logit."""
    dims = broadcast_dims(c.dims(0), c.dims(1), c)
    dims = require_rank(dims, 2, c)
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
    if dims is None or c.dims(1) is None:
        return [None]  # also of a bias of unknown rank, as in TensorFlow
    axis = 1 if channels_first else len(dims) - 1
    return [(*dims[:axis], merge_dim(dims[axis], length, c), *dims[axis + 1 :])]


def _in_top_k(c: Inference) -> Shapes:
    predictions = require_rank(c.dims(0), 2, c)
    targets = require_rank(c.dims(1), 1, c)
    return [(merge_dim(predictions[0], targets[0], c),)]


define(
    f"Relu(features: T, *, T: {REALS[:-1]}, qint8}}) -> activations: T",
    shape=unchanged,
)
define(f"Relu6(features: T, *, T: {REALS}) -> activations: T", shape=unchanged)
for _name in ("Elu", "Selu", "Softplus", "Softsign"):
    define(f"{_name}(features: T, *, T: {FLOATS}) -> activations: T", shape=unchanged)
define(
    f"LeakyRelu(features: T, *, alpha: float = 0.2, T: {FLOATS} = float32) -> activations: T",
    shape=unchanged,
)
define(f"Softmax(logits: T, *, T: {FLOATS}) -> softmax: T", shape=_rows)
define(f"LogSoftmax(logits: T, *, T: {FLOATS}) -> logsoftmax: T", shape=_rows)
define(
    f"SoftmaxCrossEntropyWithLogits(features: T, labels: T, *, T: {FLOATS}) "
    "-> (loss: T, backprop: T)",
    shape=_cross_entropy,
)
define(
    "SparseSoftmaxCrossEntropyWithLogits(features: T, labels: Tlabels, *, "
    f"T: {FLOATS}, Tlabels: {{int32, int64}} = int64) -> (loss: T, backprop: T)",
    shape=_sparse_cross_entropy,
)
define(
    f"BiasAdd(value: T, bias: T, *, T: {NUMBERS}, "
    'data_format: {"NHWC", "NCHW"} = "NHWC") -> output: T',
    shape=_bias_add,
)
define(f"BiasAddV1(value: T, bias: T, *, T: {NUMBERS}) -> output: T", shape=_bias_add)
define(f"L2Loss(t: T, *, T: {FLOATS}) -> output: T", shape=scalars)
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

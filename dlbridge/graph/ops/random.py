"""Random numbers."""

from __future__ import annotations

from types import NoneType
from typing import Any

from dlbridge.graph.core.default_graph import get_seed, graph_of
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.inference import Inference, require_rank, unchanged
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.generate import filled, shape_tensor
from dlbridge.graph.ops.shared import (
    HALF_FIRST,
    INDEX,
    REAL,
    Shapes,
    as_tensor,
    define,
    result,
    scope,
)
from dlbridge.proto.datatypes import as_dtype, float32, int32, int64

__all__ = ["multinomial", "random_normal", "random_shuffle", "random_uniform", "truncated_normal"]


# ==== op types ====================================================================================


def _rows(c: Inference) -> Shapes:
    """One row of samples for each row of the input."""
    rows, _ = require_rank(c.dims(0), 2, c)
    return [(rows, c.integer(1))]


_SEEDS = "seed: int = 0, seed2: int = 0"


for _name in ("RandomUniform", "RandomStandardNormal", "TruncatedNormal"):
    define(
        f"{_name}(shape: T, *, {_SEEDS}, dtype: {HALF_FIRST}, T: {INDEX}) -> output: dtype",
        shape=filled,
        stateful=True,
    )


define(
    f"RandomUniformInt(shape: T, minval: Tout, maxval: Tout, *, {_SEEDS}, Tout: {INDEX}, "
    f"T: {INDEX}) -> output: Tout",
    shape=filled,
    stateful=True,
)


define(
    f"RandomShuffle(value: T, *, {_SEEDS}, T: type) -> output: T", shape=unchanged, stateful=True
)


define(
    f"Multinomial(logits: T, num_samples: int32, *, {_SEEDS}, T: {REAL}, "
    f"output_dtype: {INDEX} = int64) -> output: output_dtype",
    shape=_rows,
    stateful=True,
)


# ==== functions ===================================================================================
# The streams are dlbridge's own: with the same seeds TensorFlow draws other numbers. NumPy draws
# them whatever the framework, so that they are the same in all of them. An operation with a seed
# starts its stream again in each session, and continues it from run to run.


def _seeds(seed: int | None, graph: Graph) -> dict[str, Any]:
    with graph.as_default():
        first, second = get_seed(seed)
    return {"seed": first or 0, "seed2": second or 0}


def _as_shape(shape: Any) -> Tensor:
    return as_tensor(shape_tensor(shape), None, "shape")


def random_uniform(
    shape: Any,
    minval: Any = 0,
    maxval: Any = None,
    dtype: object = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return numbers spread evenly from `minval` up to, and without, `maxval`.

    Args:
        shape: of the result, as of `fill`.
        minval, maxval: the range; of floating numbers [0, 1) by default. For these they may be
            tensors that are broadcast with the result; for integers they are scalars.
        dtype: float16, bfloat16, float32, float64, int32 or int64.
        seed: makes the numbers repeatable, see `set_random_seed`; they are not TensorFlow's, but
            the same in every framework.
        name: of the scope.

    Raises:
        ValueError: another dtype, integers without `maxval`, or a negative extent.
        TypeError: bounds that are not of the dtype.

    Integers without a range (minval >= maxval) end a run with InvalidArgumentError.

    Example:
        A session starts the stream again; a second run continues it.

        >>> import dlbridge.graph as tf
        >>> graph = tf.Graph()
        >>> with graph.as_default():
        ...     numbers = tf.random_uniform([2], 0, 1000, dtype=tf.int32, seed=1)
        >>> with tf.Session(graph=graph) as one, tf.Session(graph=graph) as other:
        ...     first, second, again = one.run(numbers), one.run(numbers), other.run(numbers)
        >>> bool((first == again).all()), bool((first == second).all())
        (True, False)
    """
    kind = as_dtype(dtype)
    if maxval is None and kind.is_integer:
        raise ValueError(f"Must specify maxval for integer dtype {kind!r}")
    if not kind.is_floating and kind not in (int32, int64):
        raise ValueError(f"Argument `dtype` got invalid value {kind!r}")
    with scope(name, "random_uniform", (shape, minval, maxval)) as full:
        dims = _as_shape(shape)
        seeds = _seeds(seed, dims.graph)
        if kind.is_integer:
            low, high = as_tensor(minval, kind, "min"), as_tensor(maxval, kind, "max")
            return result("RandomUniformInt", (dims, low, high), full, **seeds)
        plain = (int, float, NoneType)
        if type(minval) in plain and type(maxval) in plain and minval == 0 and maxval in (None, 1):
            return result("RandomUniform", (dims,), **seeds, dtype=kind)
        low = as_tensor(minval, kind, "min")
        high = as_tensor(1 if maxval is None else maxval, kind, "max")
        numbers = result("RandomUniform", (dims,), **seeds, dtype=kind)
        width = result("Sub", (high, low), "sub")
        return result("AddV2", (result("Mul", (numbers, width), "mul"), low), full)


def _normal(
    op_type: str, default: str, shape: Any, mean: Any, stddev: Any, dtype: object, seed: int | None,
    name: str | None,
) -> Tensor:  # fmt: skip
    kind = as_dtype(dtype)
    with scope(name, default, (shape, mean, stddev)) as full:
        dims = _as_shape(shape)
        mean, stddev = as_tensor(mean, kind, "mean"), as_tensor(stddev, kind, "stddev")
        numbers = result(op_type, (dims,), **_seeds(seed, dims.graph), dtype=kind)
        return result("AddV2", (result("Mul", (numbers, stddev), "mul"), mean), full)


def random_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: object = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return normally distributed numbers.

    Args:
        shape, seed, name: as of `random_uniform`.
        mean, stddev: numbers, or Tensors of the dtype that are broadcast with the result.
        dtype: float16, bfloat16, float32 or float64.

    Raises:
        TypeError: another dtype.
        ValueError: a negative extent; a Tensor of another dtype.
    """
    return _normal("RandomStandardNormal", "random_normal", shape, mean, stddev, dtype, seed, name)


def truncated_normal(
    shape: Any,
    mean: Any = 0.0,
    stddev: Any = 1.0,
    dtype: object = float32,
    seed: int | None = None,
    name: str | None = None,
) -> Tensor:
    """Return normally distributed numbers, none further than two deviations from the mean.

    Numbers further off are drawn again, so that the standard deviation is about 0.88 `stddev`.
    Arguments and errors as of `random_normal`.
    """
    return _normal("TruncatedNormal", "truncated_normal", shape, mean, stddev, dtype, seed, name)


def random_shuffle(value: Any, seed: int | None = None, name: str | None = None) -> Tensor:
    """Return the rows of a tensor in random order, each of them once.

    Args:
        value: a Tensor of any dtype, or what becomes one; its first dimension is shuffled. A scalar
            stays as it is.
        seed: as of `random_uniform`.
        name: of the operation, "RandomShuffle" by default.
    """
    return result("RandomShuffle", (value,), name, **_seeds(seed, graph_of((value,))))


def multinomial(
    logits: Any,
    num_samples: Any,
    seed: int | None = None,
    name: str | None = None,
    output_dtype: object = None,
) -> Tensor:
    """Return classes drawn by the unnormalised logarithms of their probabilities.

    Args:
        logits: [rows, classes] of floating numbers or integers.
        num_samples: how many for each row, an int32 scalar.
        seed: as of `random_uniform`.
        name: of the scope.
        output_dtype: int32 or int64 (None).

    Returns:
        Tensor: [rows, num_samples], numbers from 0 to below the number of classes.

    Raises:
        ValueError: logits that are no matrix, or a negative number of samples.

    No classes at all end a run with InvalidArgumentError.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.multinomial([[0.0, -1e9], [-1e9, 0.0]], 3))
        array([[0, 0, 0],
               [1, 1, 1]])
    """
    with scope(name, "multinomial", (logits, num_samples)):
        attrs = _seeds(seed, graph_of((logits, num_samples)))
        kind = int64 if output_dtype is None else as_dtype(output_dtype)
        return result("Multinomial", (logits, num_samples), **attrs, output_dtype=kind)

"""Random numbers, drawn by NumPy for every framework, so that they are the same in all."""

from __future__ import annotations

import numpy as np

from dlbridge.execution.errors import InvalidArgumentError
from dlbridge.execution.registry import Context, Node, kernel
from dlbridge.graph.ops.kernels import Array, Function, require_rank
from dlbridge.graph.ops.kernels.generate import extents
from dlbridge.proto.datatypes import DataType, bfloat16, float16, float64

# Fractional bits of a half just below 1: a draw must not be rounded up to 1.
_DIGITS = {float16: 11, bfloat16: 8}


class Stream:
    """The generator of one operation in one session, a resource of the session.

    Attributes:
        draw: NumPy's generator, which locks itself while it draws.
    """

    __slots__ = ("draw",)

    def __init__(self, seeds: list[int]) -> None:
        sequence = np.random.SeedSequence(seeds if any(seeds) else None)
        self.draw = np.random.Generator(np.random.Philox(sequence))

    def release(self) -> None:
        """Do nothing: a generator holds no memory to speak of."""


def generator(node: Node, context: Context) -> np.random.Generator:
    """Return the generator of an operation in this session."""
    key = f"generator of {node.name}"
    found = context.resources.get(key)
    if found is None:
        seeds = [node.attrs[name] & (2**64 - 1) for name in ("seed", "seed2")]
        found = context.resources.setdefault(key, Stream(seeds))
    stream: Stream = found
    return stream.draw


def _uniform(draw: np.random.Generator, shape: tuple[int, ...], kind: DataType) -> Array:
    if kind is float64:
        return draw.random(shape)
    numbers = draw.random(shape, dtype=np.float32)
    if kind in _DIGITS:
        scale = np.float32(1 << _DIGITS[kind])
        numbers = np.floor(numbers * scale) / scale
    return numbers.astype(kind.numpy, copy=False)


def _normal(draw: np.random.Generator, shape: tuple[int, ...], kind: DataType) -> Array:
    if kind is float64:
        return draw.standard_normal(shape)
    return draw.standard_normal(shape, dtype=np.float32).astype(kind.numpy, copy=False)


def _truncated(draw: np.random.Generator, shape: tuple[int, ...], kind: DataType) -> Array:
    """Draw again values that are more than two standard deviations from the mean."""
    numbers = _normal(draw, shape, kind).reshape(-1)
    while True:
        far = np.flatnonzero(np.abs(numbers) > 2)
        if not len(far):
            return numbers.reshape(shape)
        numbers[far] = _normal(draw, far.shape, kind)


_DRAWS = {"RandomUniform": _uniform, "RandomStandardNormal": _normal, "TruncatedNormal": _truncated}


@kernel(*_DRAWS, only=("numpy",))
def random(node: Node, context: Context) -> Function:
    """Draw from [0, 1), or from the standard normal distribution."""
    draw, function, kind = generator(node, context), _DRAWS[node.type], node.output_types[0]
    return lambda shape: function(draw, extents(shape, node), kind)


@kernel("RandomUniformInt", only=("numpy",))
def random_integers(node: Node, context: Context) -> Function:
    """Draw integers from the least up to, and without, the limit."""
    draw, kind = generator(node, context), node.output_types[0].numpy
    assert kind is not None

    def integers(shape: Array, low: Array, high: Array) -> Array:
        dims = extents(shape, node)
        if 0 in dims:
            return np.empty(dims, kind)
        if int(low) >= int(high):
            raise InvalidArgumentError(f"Need minval < maxval, got {low} >= {high}", node)
        return draw.integers(int(low), int(high), dims, dtype=kind)

    return integers


@kernel("RandomShuffle", only=("numpy",))
def shuffle(node: Node, context: Context) -> Function:
    """Put the rows in another order."""
    draw = generator(node, context)
    return lambda x: x[draw.permutation(len(x))] if np.ndim(x) else x


@kernel("Multinomial", only=("numpy",))
def multinomial(node: Node, context: Context) -> Function:
    """Draw classes by their unnormalised logarithms of probabilities."""
    draw, kind = generator(node, context), node.output_types[0].numpy

    def classes(logits: Array, amount: Array) -> Array:
        require_rank(logits, 2, node, "logits")
        require_rank(amount, 0, node, "num_samples")
        if amount < 0:
            raise InvalidArgumentError(f"num_samples should be nonnegative, got {amount}", node)
        wide = logits.astype(np.float64)
        if not wide.shape[1]:
            raise InvalidArgumentError("num_classes should be positive, got 0", node)
        chances = np.cumsum(np.exp(wide - wide.max(axis=1, keepdims=True)), axis=1)
        points = draw.random((len(wide), int(amount))) * chances[:, -1:]
        out = np.empty(points.shape, kind)
        for row, (limits, chosen) in enumerate(zip(chances, points, strict=True)):
            out[row] = np.searchsorted(limits, chosen, side="right")
        return out

    return classes

"""Initializers: what a variable starts with, as functions of its shape and dtype."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.graph.building import apply
from dlbridge.graph.constants import constant
from dlbridge.graph.functions.math_generate import eye, ones, zeros
from dlbridge.graph.functions.math_random import random_normal, random_uniform, truncated_normal
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import as_dtype, float32
from dlbridge.shape import as_shape

__all__ = [
    "constant_initializer",
    "glorot_normal_initializer",
    "glorot_uniform_initializer",
    "ones_initializer",
    "random_normal_initializer",
    "random_uniform_initializer",
    "truncated_normal_initializer",
    "variance_scaling_initializer",
    "zeros_initializer",
]

Initializer = Callable[..., Tensor]


@dataclass(frozen=True)
class Zeros:
    """Zeros."""

    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        return zeros(shape, dtype or self.dtype)


@dataclass(frozen=True)
class Ones:
    """Ones."""

    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        return ones(shape, dtype or self.dtype)


@dataclass(frozen=True)
class Constant:
    """One value, or an array of the variable's shape."""

    value: Any = 0
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        return constant(self.value, dtype or self.dtype, shape)


@dataclass(frozen=True)
class RandomUniform:
    """Numbers equally likely from `minval` to below `maxval` (1 if None)."""

    minval: float = 0
    maxval: float | None = None
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        high = 1.0 if self.maxval is None else self.maxval
        return random_uniform(shape, self.minval, high, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class RandomNormal:
    """Normally distributed numbers."""

    mean: float = 0.0
    stddev: float = 1.0
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        return random_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class TruncatedNormal:
    """Normally distributed numbers within two standard deviations of the mean."""

    mean: float = 0.0
    stddev: float = 1.0
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        return truncated_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class VarianceScaling:
    """Random numbers whose variance is `scale` over the number of connections.

    Attributes:
        scale: of the variance.
        mode: which connections count: "fan_in", "fan_out" or "fan_avg", the mean of both.
        distribution: "uniform", "untruncated_normal", or "truncated_normal" (also "normal").
        seed: of the random numbers.
        dtype: of the variable.

    Raises:
        ValueError: another mode or distribution, or a scale that is not positive.
    """

    scale: float = 1.0
    mode: str = "fan_in"
    distribution: str = "truncated_normal"
    seed: int | None = None
    dtype: object = float32

    def __post_init__(self) -> None:
        if self.scale <= 0:
            raise ValueError(f"VarianceScaling: scale must be positive, got {self.scale}")
        if self.mode not in _FANS:
            raise ValueError(f"VarianceScaling: mode must be one of {list(_FANS)}")
        if self.distribution not in _DISTRIBUTIONS:
            raise ValueError(f"VarianceScaling: distribution must be one of {list(_DISTRIBUTIONS)}")

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        connections = _FANS[self.mode](_fans(as_shape(shape).as_list()))  # type: ignore[arg-type]
        variance = self.scale / max(1.0, connections)
        draw = _DISTRIBUTIONS[self.distribution]
        return draw(shape, variance, as_dtype(dtype or self.dtype), self.seed)


def glorot_uniform_initializer(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after Glorot and Bengio (2010), uniform: `get_variable`'s own."""
    return VarianceScaling(1.0, "fan_avg", "uniform", seed, dtype)


def glorot_normal_initializer(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after Glorot and Bengio (2010), truncated normal."""
    return VarianceScaling(1.0, "fan_avg", "truncated_normal", seed, dtype)


def he_normal(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after He et al. (2015), truncated normal."""
    return VarianceScaling(2.0, "fan_in", "truncated_normal", seed, dtype)


def he_uniform(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after He et al. (2015), uniform."""
    return VarianceScaling(2.0, "fan_in", "uniform", seed, dtype)


def lecun_normal(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after LeCun et al. (1998), truncated normal."""
    return VarianceScaling(1.0, "fan_in", "truncated_normal", seed, dtype)


def lecun_uniform(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
    """Return the initializer after LeCun et al. (1998), uniform."""
    return VarianceScaling(1.0, "fan_in", "uniform", seed, dtype)


@dataclass(frozen=True)
class Identity:
    """A matrix with `gain` on the diagonal, zeros elsewhere.

    Raises:
        ValueError: when called: the shape is not that of a matrix.
    """

    gain: float = 1.0
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: None = None) -> Tensor:
        dims = as_shape(shape).as_list()
        if len(dims) != 2:
            raise ArgumentError(f"Identity matrix initializer needs a matrix, got shape {dims}")
        kind = as_dtype(dtype or self.dtype)
        matrix = eye(dims[0], dims[1], dtype=kind)
        return matrix if self.gain == 1.0 else apply("Mul", (self.gain, matrix)).outputs[0]


# TensorFlow 1.x's names.
identity_initializer = Identity
zeros_initializer = Zeros
ones_initializer = Ones
constant_initializer = Constant
random_uniform_initializer = RandomUniform
random_normal_initializer = RandomNormal
truncated_normal_initializer = TruncatedNormal
variance_scaling_initializer = VarianceScaling

_FANS: dict[str, Callable[[tuple[float, float]], float]] = {
    "fan_in": lambda fans: fans[0],
    "fan_out": lambda fans: fans[1],
    "fan_avg": lambda fans: sum(fans) / 2,
}


def _fans(dims: Sequence[int]) -> tuple[float, float]:
    """Return the number of connections in and out of a unit; kernels have theirs in front."""
    if not dims:
        return 1, 1
    if len(dims) == 1:
        return dims[0], dims[0]
    field = math.prod(dims[:-2])
    return dims[-2] * field, dims[-1] * field


# The standard deviation of a normal distribution that is cut off at two of them.
_TRUNCATED = 0.87962566103423978


def _uniform(shape: object, variance: float, dtype: Any, seed: int | None) -> Tensor:
    limit = math.sqrt(3.0 * variance)
    return random_uniform(shape, -limit, limit, dtype, seed)


def _truncated(shape: object, variance: float, dtype: Any, seed: int | None) -> Tensor:
    return truncated_normal(shape, 0.0, math.sqrt(variance) / _TRUNCATED, dtype, seed)


def _normal(shape: object, variance: float, dtype: Any, seed: int | None) -> Tensor:
    return random_normal(shape, 0.0, math.sqrt(variance), dtype, seed)


_DISTRIBUTIONS: dict[str, Callable[..., Tensor]] = {
    "uniform": _uniform,
    "normal": _truncated,
    "truncated_normal": _truncated,
    "untruncated_normal": _normal,
}

"""Initializers: the initial values of variables, as functions of shape and dtype.

Each is called with a fully known shape, and optionally a dtype that overrides its own; it adds
operations to the default graph and returns a Tensor of that shape. `partition_info` says where a
partition lies in a partitioned variable, whose whole shape counts for `VarianceScaling`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.default_graph import apply, constant
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.generate import eye, ones, zeros
from dlbridge.graph.ops.random import random_normal, random_uniform, truncated_normal
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
    """Initialize with zeros (False, empty strings) of any dtype; see `zeros`.

    Attributes:
        dtype: of the variable; the call may override it.
    """

    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        return zeros(shape, dtype or self.dtype)


@dataclass(frozen=True)
class Ones:
    """Initialize with ones (True) of any dtype but string; see `ones`.

    Attributes:
        dtype: as of `Zeros`.
    """

    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        return ones(shape, dtype or self.dtype)


@dataclass(frozen=True)
class Constant:
    """Initialize with one value, or with an array that fills the variable's shape.

    Attributes:
        value: a number, which is repeated, or an array or lists of as many elements as the shape
            has, in row-major order.
        dtype: as of `Zeros`; the value must fit it.

    Raises:
        ValueError: when called: another number of elements, unless it is one.
        TypeError: when called: a value that is not of the dtype.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.constant_initializer([1, 2, 3, 4])([2, 2]))
        array([[1., 2.],
               [3., 4.]], dtype=float32)
    """

    value: Any = 0
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        return constant(self.value, dtype or self.dtype, shape)


@dataclass(frozen=True)
class RandomUniform:
    """Initialize from the uniform distribution on [`minval`, `maxval`); see `random_uniform`.

    Attributes:
        minval, maxval: the range, in which None stands for 1; for integers name an integer.
        seed: makes the numbers repeatable; they are not TensorFlow's.
        dtype: float16, bfloat16, float32, float64, int32 or int64, unless the call names another.
    """

    minval: float = 0
    maxval: float | None = None
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        high = 1.0 if self.maxval is None else self.maxval
        return random_uniform(shape, self.minval, high, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class RandomNormal:
    """Initialize from the normal distribution; see `random_normal`.

    Attributes:
        mean, stddev: of the distribution.
        seed: as of `RandomUniform`.
        dtype: float16, bfloat16, float32 or float64, unless the call names another.
    """

    mean: float = 0.0
    stddev: float = 1.0
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        return random_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class TruncatedNormal:
    """Initialize from the normal distribution, truncated at two standard deviations.

    Attributes as of `RandomNormal`; see `truncated_normal`.
    """

    mean: float = 0.0
    stddev: float = 1.0
    seed: int | None = None
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        return truncated_normal(shape, self.mean, self.stddev, dtype or self.dtype, self.seed)


@dataclass(frozen=True)
class VarianceScaling:
    """Initialize with random numbers whose variance is `scale` over the number of connections.

    The connections (fan-in, fan-out) of a shape [..., in, out] are `in` and `out`, each times the
    product of the leading dimensions, the receptive field; those of a vector are its length.

    Attributes:
        scale: of the variance, positive.
        mode: which connections count: "fan_in", "fan_out" or "fan_avg", the mean of both.
        distribution: "uniform", "untruncated_normal", or "truncated_normal" (also "normal"), which
            is widened so that the variance holds after the cut.
        seed: as of `RandomUniform`.
        dtype: float16, bfloat16, float32 or float64, unless the call names another.

    Raises:
        ValueError: another mode or distribution, or a scale that is not positive.

    Example:
        >>> import dlbridge.graph as tf
        >>> start = tf.variance_scaling_initializer(mode="fan_avg", distribution="uniform")
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     numbers = session.run(start([20, 30]))
        >>> bool(abs(numbers).max() < (3 / 25) ** 0.5)
        True
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

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
        whole = shape if partition_info is None else partition_info.full_shape
        connections = _FANS[self.mode](_fans(as_shape(whole).as_list()))  # type: ignore[arg-type]
        variance = self.scale / max(1.0, connections)
        draw = _DISTRIBUTIONS[self.distribution]
        return draw(shape, variance, as_dtype(dtype or self.dtype), self.seed)


def _scaling(
    name: str, authors: str, scale: float, mode: str, distribution: str
) -> Callable[..., VarianceScaling]:
    """Return the function that makes one kind of `VarianceScaling`."""

    def make(seed: int | None = None, dtype: object = float32) -> VarianceScaling:
        return VarianceScaling(scale, mode, distribution, seed, dtype)

    make.__name__ = make.__qualname__ = name
    make.__doc__ = f"""Return the initializer after {authors}.

    It is `VarianceScaling` of {scale:g}, {mode!r}, {distribution!r}, which says how connections are
    counted and what `seed` and `dtype` are.
    """
    return make


_GLOROT, _HE, _LECUN = "Glorot and Bengio (2010)", "He et al. (2015)", "LeCun et al. (1998)"
_NORMAL = "truncated_normal"
glorot_uniform_initializer = _scaling(
    "glorot_uniform_initializer", _GLOROT, 1.0, "fan_avg", "uniform"
)
glorot_normal_initializer = _scaling("glorot_normal_initializer", _GLOROT, 1.0, "fan_avg", _NORMAL)
he_normal = _scaling("he_normal", _HE, 2.0, "fan_in", _NORMAL)
he_uniform = _scaling("he_uniform", _HE, 2.0, "fan_in", "uniform")
lecun_normal = _scaling("lecun_normal", _LECUN, 1.0, "fan_in", _NORMAL)
lecun_uniform = _scaling("lecun_uniform", _LECUN, 1.0, "fan_in", "uniform")


@dataclass(frozen=True)
class Identity:
    """Initialize with a matrix that has `gain` on the diagonal and zeros elsewhere.

    Attributes:
        gain: a number that the dtype has.
        dtype: as of `Zeros`: any of numbers.

    Raises:
        ValueError: when called: the shape is not that of a matrix.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.initializers.identity(2.0)([2, 3]))
        array([[2., 0., 0.],
               [0., 2., 0.]], dtype=float32)
    """

    gain: float = 1.0
    dtype: object = float32

    def __call__(self, shape: object, dtype: object = None, partition_info: Any = None) -> Tensor:
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
    """Return the fan-in and fan-out of a shape."""
    if not dims:
        return 1, 1
    if len(dims) == 1:
        return dims[0], dims[0]
    field = math.prod(dims[:-2])
    return dims[-2] * field, dims[-1] * field


# The standard deviation of the standard normal distribution truncated to [-2, 2].
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

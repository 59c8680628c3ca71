"""Parts of complex numbers: what users call."""

from __future__ import annotations

from typing import Any

from dlbridge.graph.core.tensor import Tensor
from dlbridge.graph.ops.arguments import as_tensor, result, scope

__all__ = ["angle", "conj", "imag", "real"]


def _part(op_type: str, input: Any, name: str | None) -> Tensor:
    with scope(name, op_type, (input,)) as full:
        x = as_tensor(input, None, "input")
        return result(op_type, (x,), {"Tout": x.dtype.base_dtype.real_dtype}, full)


def real(input: Any, name: str | None = None) -> Tensor:
    """Return the real part: float32 of complex64, float64 of complex128.

    Args:
        input: a Tensor, or what becomes one; what is not complex is returned as it is.
        name: of the operation, "Real" by default.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run([tf.real([1 + 2j]), tf.imag([1 + 2j]), tf.imag([1.0])])
        [array([1.]), array([2.]), array([0.], dtype=float32)]
    """
    x = as_tensor(input, None, "input")
    return _part("Real", x, name) if x.dtype.is_complex else x


def imag(input: Any, name: str | None = None) -> Tensor:
    """Return the imaginary part, zeros of a real tensor; dtypes and an example as of `real`."""
    x = as_tensor(input, None, "input")
    return _part("Imag", x, name) if x.dtype.is_complex else result("ZerosLike", (x,), None, name)


def angle(input: Any, name: str | None = None) -> Tensor:
    """Return the argument in radians, from -π to π; π of a negative real number, 0 of another.

    Args:
        input: a Tensor of complex or floating numbers, or what becomes one.
        name: of the operation, "Angle" by default.

    Returns:
        Tensor: of the shape of `input`: float32 of complex64, float64 of complex128, and of
        floating numbers their own dtype.

    Raises:
        TypeError: integers; cast them first.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Session(graph=tf.Graph()) as session:
        ...     session.run(tf.angle([1j, -1.0]))
        array([1.57079633, 3.14159265])
    """
    x = as_tensor(input, None, "input")
    if x.dtype.is_complex:
        return _part("Angle", x, name)
    with scope(name, "Angle", (x,)) as full:
        zeros = result("ZerosLike", (x,))
        half_turn = result("AddV2", (zeros, 3.141592653589793))
        return result("SelectV2", (result("Less", (x, zeros)), half_turn, zeros), None, full)


def conj(x: Any, name: str | None = None) -> Tensor:
    """Return the complex conjugate, in the dtype of x; what is not complex is returned as it is."""
    x = as_tensor(x, None, "x")
    return result("Conj", (x,), None, name) if x.dtype.is_complex else x

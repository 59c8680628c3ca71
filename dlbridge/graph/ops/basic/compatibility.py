"""Functions of `tensorflow.compat.v1` that ask about the environment."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dlbridge.graph.core.default_graph import convert_to_tensor
from dlbridge.graph.core.inference import constant_value, partial_value
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.call.functions import py_func

__all__ = [
    "disable_eager_execution",
    "disable_v2_behavior",
    "executing_eagerly",
    "get_static_value",
    "is_tensor",
    "numpy_function",
]


def executing_eagerly() -> bool:
    """Return False: operations are always added to a graph here."""
    return False


def disable_eager_execution() -> None:
    """Do nothing: operations are always added to a graph here."""


def disable_v2_behavior() -> None:
    """Do nothing: this is always version 1 here."""


def is_tensor(x: Any) -> bool:
    """Tell whether `x` is a Tensor, or a Variable or SparseTensor of a graph."""
    return isinstance(x, Tensor) or hasattr(x, "_as_graph_tensor") or hasattr(x, "dense_shape")


def get_static_value(tensor: Any, partial: bool = False) -> Any:
    """Return the value that a Tensor has in every run, or None where it is not known.

    Args:
        tensor: a Tensor, or what `constant` takes.
        partial: return vectors of integers of which some elements are known, None for the others.

    Returns:
        A read-only NumPy array; a value fed in its place counts in that run only.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     x = tf.placeholder(tf.float32, [2, 3])
        ...     print(tf.get_static_value(tf.shape(x)[1] * 2), tf.get_static_value(x))
        6 None
    """
    tensor = convert_to_tensor(tensor)
    if partial:
        return partial_value(tensor)
    return constant_value(tensor)


def numpy_function(
    func: Callable[..., Any] | None = None,
    inp: Sequence[Any] = (),
    Tout: Any = None,  # noqa: N803
    stateful: bool = True,
    name: str | None = None,
) -> Any:
    """Create an operation that calls a Python function with NumPy arrays; see `py_func`."""
    if func is None:
        raise TypeError("numpy_function: func is missing, the function to be called")
    return py_func(func, inp, Tout, stateful, name)

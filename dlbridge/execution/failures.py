"""What a kernel raises, as TensorFlow's error of the operation that failed."""

from __future__ import annotations

from typing import Any

from dlbridge.errors import DLBridgeError
from dlbridge.execution.errors import (
    InvalidArgumentError,
    OpError,
    OutOfRangeError,
    ResourceExhaustedError,
    UnimplementedError,
    UnknownError,
)

# Of what a user's Python function raises, after TensorFlow's py_func.
_OF_FUNCTIONS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (OpError, UnknownError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
)
# Of what NumPy and the frameworks raise at values that they cannot take.
_OF_KERNELS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (IndexError, InvalidArgumentError),
    (ZeroDivisionError, InvalidArgumentError),
    (MemoryError, ResourceExhaustedError),
    (RuntimeError, InvalidArgumentError),
)


def failure(node: Any, error: Exception, calls_user: bool = False) -> OpError:
    """Return the error of a node whose kernel raised `error`: itself, if it is an OpError already.

    Args:
        node: what failed.
        error: what its kernel raised.
        calls_user: whether the kernel runs a user's Python function, so that an OpError comes from
            another graph or session.
    """
    if isinstance(error, OpError) and not calls_user:
        if error.op is None:
            error.op = node
        return error
    if isinstance(error, DLBridgeError) and not calls_user:
        return InvalidArgumentError(str(error), node)
    table = _OF_FUNCTIONS if calls_user else _OF_KERNELS
    kind = next((kind for cause, kind in table if isinstance(error, cause)), UnknownError)
    if type(error).__name__ in ("OutOfMemoryError", "_ArrayMemoryError"):
        kind = ResourceExhaustedError
    return kind(f"{type(error).__name__}: {error}", node)

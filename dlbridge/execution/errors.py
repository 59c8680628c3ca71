"""Errors of a running graph: TensorFlow's classes and codes.

    OpError (DLBridgeError)
    ├── CancelledError             1      ├── AbortedError          10
    ├── UnknownError               2      ├── OutOfRangeError       11
    ├── InvalidArgumentError       3      ├── UnimplementedError    12
    ├── DeadlineExceededError      4      ├── InternalError         13
    ├── NotFoundError              5      ├── UnavailableError      14
    ├── AlreadyExistsError         6      ├── DataLossError         15
    ├── PermissionDeniedError      7      └── UnauthenticatedError  16
    ├── ResourceExhaustedError     8
    └── FailedPreconditionError    9

Mistakes in building a graph raise ValueError or TypeError, as in TensorFlow; these errors are for
failures of a run or an import.
"""

from __future__ import annotations

from typing import Any, ClassVar

from dlbridge.errors import DLBridgeError

_OURS = ("message", "op")
_TENSORFLOWS = ("node_def", "op", "message", "error_code")


class OpError(DLBridgeError):
    """An operation failed.

    Args:
        *given: `message, op`, of which `op` may be left out; or as in TensorFlow
            `node_def, op, message, error_code`, of which the last is of this class alone. The
            first of TensorFlow's is never a str.
        node_def, op, message, error_code: the same by name.

    Attributes:
        message: the text without the operation.
        op: the Operation, or None where no single one is to blame.
        node_def: its NodeDef, or None.
        error_code: one of the 16 codes of TensorFlow; `reason` is its name.
    """

    code: ClassVar[int] = 2
    reason = "unknown"

    def __init__(self, *given: Any, **named: Any) -> None:
        names = _OURS if given and isinstance(given[0], str) else _TENSORFLOWS
        found = dict(zip(names, given, strict=False))
        if len(given) > len(names) or found.keys() & named or named.keys() - set(_TENSORFLOWS):
            raise TypeError(
                f"{type(self).__name__} takes (message, op) or (node_def, op, message), by place "
                f"or by name; got {len(given)} arguments and {', '.join(named) or 'no names'}"
            )
        found |= named
        super().__init__(found.get("message") or "")
        self.message: str = self.args[0]
        self.op = found.get("op")
        self._node_def = found.get("node_def")
        self.error_code: int = found.get("error_code") or self.code

    @property
    def node_def(self) -> Any:
        """The NodeDef of the operation, or None."""
        if self._node_def is not None or self.op is None:
            return self._node_def
        return self.op.node_def

    def __str__(self) -> str:
        where = "" if self.op is None else f"\n\t [[node {self.op.name} ({self.op.type})]]"
        return f"{self.message}{where}"


class CancelledError(OpError):
    """The step was cancelled."""

    code = 1
    reason = "cancelled"


class UnknownError(OpError):
    """A failure of no other class, such as an error of a Python function."""


class InvalidArgumentError(OpError):
    """An operation got a value that it cannot take; a placeholder was not fed."""

    code = 3
    reason = "invalid_argument"


class DeadlineExceededError(OpError):
    """The time allowed was over."""

    code = 4
    reason = "deadline_exceeded"


class NotFoundError(OpError):
    """Something that was named does not exist: an op type, a file, a resource."""

    code = 5
    reason = "not_found"


class AlreadyExistsError(OpError):
    """Something that was to be made exists."""

    code = 6
    reason = "already_exists"


class PermissionDeniedError(OpError):
    """The caller may not do that."""

    code = 7
    reason = "permission_denied"


class ResourceExhaustedError(OpError):
    """Memory or another resource was used up."""

    code = 8
    reason = "resource_exhausted"


class FailedPreconditionError(OpError):
    """The state does not allow it: a variable was not initialised."""

    code = 9
    reason = "failed_precondition"


class AbortedError(OpError):
    """The operation was given up because of another."""

    code = 10
    reason = "aborted"


class OutOfRangeError(OpError):
    """The end of an input was passed."""

    code = 11
    reason = "out_of_range"


class UnimplementedError(OpError):
    """There is no kernel of this operation for these dtypes or this framework."""

    code = 12
    reason = "unimplemented"


class InternalError(OpError):
    """An invariant of dlbridge itself was broken."""

    code = 13
    reason = "internal"


class UnavailableError(OpError):
    """A service is not to be reached just now."""

    code = 14
    reason = "unavailable"


class DataLossError(OpError):
    """Data is corrupt or lost."""

    code = 15
    reason = "data_loss"


class UnauthenticatedError(OpError):
    """The caller is not known."""

    code = 16
    reason = "unauthenticated"


# ---- failures of kernels -----------------------------------------------------------------------

# Errors of a user's Python function, after TensorFlow's py_func.
_OF_FUNCTIONS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (OpError, UnknownError),
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (StopIteration, OutOfRangeError),
    (MemoryError, ResourceExhaustedError),
)
# Exceptions of NumPy and the frameworks for values that they refuse.
_OF_KERNELS: tuple[tuple[type[Exception], type[OpError]], ...] = (
    (NotImplementedError, UnimplementedError),
    (ValueError, InvalidArgumentError),
    (TypeError, InvalidArgumentError),
    (IndexError, InvalidArgumentError),
    (ArithmeticError, InvalidArgumentError),  # a division by zero, a number beyond a dtype's
    (MemoryError, ResourceExhaustedError),
    (RuntimeError, InvalidArgumentError),
)


def failure(node: Any, error: Exception, calls_user: bool = False) -> OpError:
    """Return the error of a node whose kernel raised `error`: itself, if it is an OpError already.

    Args:
        node: what failed.
        error: what its kernel raised.
        calls_user: whether the kernel runs a user's Python function. An OpError of no operation is
            what the function has to say of this node, and keeps its class; one of another
            operation comes from another graph or session.
    """
    if isinstance(error, OpError) and calls_user and error.op is None:
        kind = next(each for each in type(error).__mro__ if each.__module__ == __name__)
        made: OpError = kind(error.message, node)
        made.error_code = error.error_code
        return made
    if isinstance(error, OpError) and (not calls_user or error.op is node):
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

"""Errors of graphs: TensorFlow's classes, those of `dlbridge.execution.errors` included."""

from __future__ import annotations

from dlbridge.execution.errors import AbortedError as AbortedError
from dlbridge.execution.errors import AlreadyExistsError as AlreadyExistsError
from dlbridge.execution.errors import CancelledError as CancelledError
from dlbridge.execution.errors import DataLossError as DataLossError
from dlbridge.execution.errors import DeadlineExceededError as DeadlineExceededError
from dlbridge.execution.errors import FailedPreconditionError as FailedPreconditionError
from dlbridge.execution.errors import InternalError as InternalError
from dlbridge.execution.errors import InvalidArgumentError as InvalidArgumentError
from dlbridge.execution.errors import NotFoundError as NotFoundError
from dlbridge.execution.errors import OpError as OpError
from dlbridge.execution.errors import OutOfRangeError as OutOfRangeError
from dlbridge.execution.errors import PermissionDeniedError as PermissionDeniedError
from dlbridge.execution.errors import ResourceExhaustedError as ResourceExhaustedError
from dlbridge.execution.errors import UnauthenticatedError as UnauthenticatedError
from dlbridge.execution.errors import UnavailableError as UnavailableError
from dlbridge.execution.errors import UnimplementedError as UnimplementedError
from dlbridge.execution.errors import UnknownError as UnknownError
from dlbridge.graph.core.operation import (
    OperatorNotAllowedInGraphError as OperatorNotAllowedInGraphError,
)

# The values of `error_code`.
OK = 0
CANCELLED = 1
UNKNOWN = 2
INVALID_ARGUMENT = 3
DEADLINE_EXCEEDED = 4
NOT_FOUND = 5
ALREADY_EXISTS = 6
PERMISSION_DENIED = 7
RESOURCE_EXHAUSTED = 8
FAILED_PRECONDITION = 9
ABORTED = 10
OUT_OF_RANGE = 11
UNIMPLEMENTED = 12
INTERNAL = 13
UNAVAILABLE = 14
DATA_LOSS = 15
UNAUTHENTICATED = 16

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

"""The state of variables in one session."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np

from dlbridge import adapter
from dlbridge._core import native
from dlbridge.errors import ArgumentError
from dlbridge.exchange import as_tensor
from dlbridge.execution.errors import FailedPreconditionError, InvalidArgumentError
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims


class VariableState:
    """The value of one variable in one session: what a resource handle or a reference carries.

    A value is never changed once it is assigned: who has read it keeps what was read. The one
    exception is memory that was shared on request (`share`): assignments are written into it, so
    that all who share it see them.

    Attributes:
        name: of the variable, for errors.
        dtype: of the value.
        dims: the static shape.
        value: an array of any framework, or None before the first assignment.
        is_shared: whether `value` is memory that others see, too.
        lock: held from reading to writing where the new value depends on the old one.
    """

    __slots__ = ("_views", "dims", "dtype", "is_shared", "lock", "name", "value")

    def __init__(self, name: str, dtype: DataType, dims: Dims | None) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.value: Any = None
        self.is_shared = False
        self.lock = threading.RLock()
        self._views: dict[str, Any] = {}  # framework -> its array over the value's memory

    def read(self, framework: str) -> Any:
        """Return the value as an array of a framework, over the same memory.

        Raises:
            FailedPreconditionError: nothing was assigned yet.
        """
        with self.lock:
            if self.value is None:
                raise FailedPreconditionError(
                    f"Attempting to use uninitialized value {self.name}: run its initializer, or "
                    "global_variables_initializer(), in this session first"
                )
            view = self._views.get(framework)
            if view is None:
                view = self._views[framework] = move(self.value, framework)
            return view

    def assign(self, value: Any, *, is_fresh: bool = False) -> None:
        """Make `value` the variable's: a copy of it, unless nobody else has it (`is_fresh`).

        Raises:
            InvalidArgumentError: its shape is not that of the variable.
        """
        self._check(tuple(value.shape))
        with self.lock:
            if self.is_shared:
                write_into(self.value, value)
                return
            self.value = value if is_fresh else duplicate(value)
            self._views.clear()

    def update(self, framework: str, change: Callable[[Any], Any]) -> Any:
        """Assign what `change` makes of the present value; return it."""
        with self.lock:
            value = change(self.read(framework))
            self.assign(value, is_fresh=True)
            return self.read(framework)

    def share(self, array: Any) -> None:
        """Make the memory of `array` the variable's.

        Raises:
            ArgumentError: dtype or shape are not the variable's.
            ExchangeError: the memory is not writable, or not to be had.
        """
        tensor = as_tensor(array, copy=False)
        if tensor.dtype is not self.dtype.dlpack:
            raise ArgumentError(
                f"share: variable {self.name!r} has dtype {self.dtype.name}, the array has "
                f"{tensor.dtype}"
            )
        if tensor.readonly:
            raise ArgumentError(f"share: the array for variable {self.name!r} is read-only")
        self._check(tensor.shape)
        with self.lock:
            self.value, self.is_shared = array, True
            self._views.clear()

    def release(self) -> None:
        """Forget the value; memory that is shared stays with those who share it."""
        with self.lock:
            self.value, self.is_shared = None, False
            self._views.clear()

    def _check(self, shape: tuple[int, ...]) -> None:
        dims = self.dims
        if dims is None:
            return
        fits = len(dims) == len(shape) and all(
            dim is None or dim == extent for dim, extent in zip(dims, shape, strict=True)
        )
        if not fits:
            wanted = ",".join("?" if dim is None else str(dim) for dim in dims)
            raise InvalidArgumentError(
                f"Assign requires shapes of both tensors to match. variable {self.name!r} has "
                f"shape [{wanted}], the value [{','.join(map(str, shape))}]"
            )


def move(value: Any, framework: str) -> Any:
    """Return an array as one of a framework, over the same memory where that can be."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.dtype == object):
        return value if framework == "numpy" else move(np.asarray(value), framework)
    return adapter.converter(framework)(value, readonly="share")


def duplicate(value: Any) -> Any:
    """Return a copy in the same framework."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    clone = getattr(value, "clone", None) or value.copy  # torch calls it clone
    return clone()


def write_into(target: Any, value: Any) -> None:
    """Write the elements of `value` into the memory of `target`, an array of any framework."""
    source = as_tensor(move(value, "numpy"))
    native.copy_into(as_tensor(target, copy=False), source)

"""The state of variables in one session."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import cache, lru_cache
from typing import Any

import numpy as np

from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, DLBridgeError, name_call
from dlbridge.exchange.adapter import adapter
from dlbridge.exchange.exchange import as_tensor
from dlbridge.execution.backend import Move, device_object, device_of, mover, settled
from dlbridge.execution.errors import FailedPreconditionError, InvalidArgumentError
from dlbridge.execution.registry import Node
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims


class VariableState:
    """The value of one variable in one session, which a resource handle or a reference carries.

    A value is never changed once it is assigned: who has read it keeps what was read. The one
    exception is memory that was shared on request (`share`): assignments are written into it, so
    that all who share it see them.

    Attributes:
        name: of the variable, for errors.
        dtype: of the value.
        dims: the static shape.
        value: an array of any framework, or None before the first assignment.
        is_shared: whether others see the memory of `value`.
        lock: held from reading to writing where the new value depends on the old one.
    """

    __slots__ = ("_views", "dims", "dtype", "is_shared", "lock", "name", "value")

    def __init__(self, name: str, dtype: DataType, dims: Dims | None) -> None:
        self.name = name
        self.dtype = dtype
        self.dims = dims
        self.value: Any = None
        self.is_shared = False
        self.lock = registry.lock()
        self._views: dict[str, Any] = {}  # by `_place`: the value there

    def read(self, framework: str, keeps: bool = False, device: str = "") -> Any:
        """Return the value as an array of a framework, over the same memory if possible.

        NumPy's arrays are read-only. To another device each value is copied once.

        Args:
            framework: its name.
            keeps: whether the array must stay as it is while shared memory is written to.
            device: the name of the framework's device, "GPU:1"; "" is the host.

        Raises:
            FailedPreconditionError: nothing was assigned yet.
        """
        with self.lock:
            if self.value is None:
                raise FailedPreconditionError(
                    f"Attempting to use uninitialized value {self.name}: run its initializer, or "
                    "global_variables_initializer(), in this session first"
                )
            view = self._views.get(_place(framework, device))
            if view is None:
                view = self._view(framework, device)
            return duplicate(view) if keeps and self.is_shared else view

    def _view(self, framework: str, device: str) -> Any:
        """Return the value in a framework; cache it unless it misses changes of the memory."""
        if self.is_shared and adapter(framework).immutable:
            return move(duplicate(move(self.value, "numpy")), framework, device)
        view = move(self.value, framework, device)
        if isinstance(view, np.ndarray):
            view = view.view()
            view.flags.writeable = False
        if not self.is_shared or _address(view) == _address(self.value):
            self._views[_place(framework, device)] = view
        return view

    def assign(self, value: Any, *, is_fresh: bool = False) -> None:
        """Make `value` the variable's: a copy of it, unless nobody else has it (`is_fresh`).

        Raises:
            InvalidArgumentError: its shape is not that of the variable.
        """
        self._check(tuple(value.shape))
        with self.lock:
            if self.is_shared:
                self._write(value)
                return
            self.value = settled(value if is_fresh else duplicate(value))
            self._views.clear()

    def _write(self, value: Any) -> None:
        """Write into the memory that was shared, which keeps its shape."""
        shape, wanted = tuple(value.shape), tuple(self.value.shape)
        if shape != wanted:
            raise InvalidArgumentError(
                f"Assign requires shapes of both tensors to match. The memory shared with variable "
                f"{self.name!r} has shape {describe(wanted)}, the value {describe(shape)}"
            )
        write_into(self.value, value)

    def update(self, framework: str, change: Callable[[Any], Any], device: str = "") -> None:
        """Assign what `change` makes of the present value there, which is an array of its own."""
        with self.lock:
            self.assign(change(self.read(framework, device=device)), is_fresh=True)

    def share(self, array: Any) -> None:
        """Make the memory of `array` the variable's.

        Raises:
            ArgumentError: dtype or shape are not the variable's, or the memory is read-only.
            ExchangeError: the memory is not to be had.
        """
        detach = getattr(array, "detach", None)  # a parameter in torch, whose gradients stay out
        array = array if detach is None else detach()
        try:
            tensor: Any = native.convert(array, "dlbridge", copy=False)
        except DLBridgeError as error:
            name_call(error, "Variable.share: array")
            raise
        if tensor.dtype is not self.dtype.dlpack:
            raise ArgumentError(
                f"Variable.share: variable {self.name!r} has dtype {self.dtype.name}, the array "
                f"has {tensor.dtype}; convert the array first"
            )
        if tensor.readonly:
            raise ArgumentError(
                f"Variable.share: the array for variable {self.name!r} is read-only, as those of "
                "JAX are; pass writable memory, or assign its value"
            )
        if not fits(self.dims, tensor.shape):
            raise ArgumentError(
                f"Variable.share: variable {self.name!r} has shape {describe(self.dims)}, the "
                f"array {describe(tensor.shape)}"
            )
        with self.lock:
            self.value, self.is_shared = array, True
            self._views.clear()

    def release(self) -> None:
        """Release the value; shared memory stays with those who share it."""
        with self.lock:
            self.value, self.is_shared = None, False
            self._views.clear()

    def _check(self, shape: tuple[int, ...]) -> None:
        if not fits(self.dims, shape):
            raise InvalidArgumentError(
                f"Assign requires shapes of both tensors to match. variable {self.name!r} has "
                f"shape {describe(self.dims)}, the value {describe(shape)}"
            )


def reader(framework: str, device: str) -> Callable[[VariableState], Any]:
    """Return `VariableState.read` for one place; a value that was read before needs no lock."""
    return native.Lookup(
        "_views", _place(framework, device), lambda state: state.read(framework, False, device)
    )


@cache
def _place(framework: str, device: str) -> str:
    """Return one name, the same object each time: dicts find it at once."""
    return f"{framework}:{device}"


def fits(dims: Dims | None, shape: tuple[int, ...]) -> bool:
    """Return whether a shape is among those that `dims` allow."""
    return dims is None or (
        len(dims) == len(shape)
        and all(dim is None or dim == extent for dim, extent in zip(dims, shape, strict=True))
    )


def describe(dims: Dims | None) -> str:
    """Return a shape as TensorFlow's errors have it: `[2,?]`."""
    if dims is None:
        return "<unknown>"
    return f"[{','.join('?' if dim is None else str(dim) for dim in dims)}]"


# ---- variables in a graph ----------------------------------------------------------------------

VARIABLES = frozenset({"VarHandleOp", "VariableV2", "Variable"})
READERS = frozenset({  # and what takes handles of queues, which are no variables
    "IsVariableInitialized", "QueueCloseV2", "QueueDequeueManyV2", "QueueDequeueUpToV2",
    "QueueDequeueV2", "QueueEnqueueManyV2", "QueueEnqueueV2", "QueueIsClosedV2", "QueueSizeV2",
    "ReadVariableOp", "ResourceGather", "ResourceGatherNd",
    "VarIsInitializedOp", "VariableShape",
})  # fmt: skip


def key_of(node: Node) -> str:
    """Return the name of the state that a node of a variable has in a session."""
    name = (node.attrs["shared_name"] or node.name.encode()).decode()
    return f"{node.attrs['container'].decode()}/{name}"


def state_of(node: Node, resources: dict[str, Any]) -> VariableState:
    """Return the state of a variable among those of a session; it is created if there is none.

    Raises:
        InvalidArgumentError: another variable of the same name has another dtype.
    """
    key = key_of(node)
    dtype, dims = node.attrs["dtype"], node.attrs["shape"].dims
    state: VariableState = resources.setdefault(
        key, VariableState(key.partition("/")[2], dtype, dims)
    )
    if state.dtype is not dtype:
        raise InvalidArgumentError(
            f"Trying to access variable {state.name!r} with dtype {dtype.name}; another operation "
            f"of that name has {state.dtype.name}",
            node,
        )
    return state


def typed(node: Node, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return `function` of a handle, checked where only the run shows which variable it is."""
    handle = node.inputs[0]
    if handle.op.type == "VarHandleOp" or handle.dtype.is_ref:  # checked when the node was made
        return function
    dtype = node.attrs.get("dtype", node.attrs.get("T"))

    def run(state: VariableState, *values: Any) -> Any:
        if state.dtype is not dtype:
            raise InvalidArgumentError(
                f"Trying to access variable {state.name!r} with wrong dtype. Expected "
                f"{state.dtype.name} got {dtype.name}",
                node,
            )
        return function(state, *values)

    return run


def variable_of(output: Any) -> str | None:
    """Return the name of the state behind a handle or reference; None if it is not known."""
    node = output.op
    while node.type not in VARIABLES:
        if not node.inputs or not is_handle(node.inputs[0]):
            return None
        node = node.inputs[0].op
    return key_of(node)


def is_handle(output: Any) -> bool:
    """Return whether an output carries a VariableState."""
    dtype: DataType = output.dtype
    return dtype.is_ref or dtype.kind == "h"


class Written:
    """The variables that some node may write to.

    Args:
        nodes: of one plan.
    """

    def __init__(self, nodes: Iterable[Any]) -> None:
        self._names = {
            variable_of(each)
            for node in nodes
            if node.type not in READERS
            for each in node.inputs
            if is_handle(each)
        }

    def __contains__(self, output: Any) -> bool:
        """Return whether the variable behind a handle or reference may be written to."""
        names = self._names
        return bool(names) and (None in names or variable_of(output) in names)


# ---- arrays ------------------------------------------------------------------------------------


def move(value: Any, framework: str, device: str = "") -> Any:
    """Return an array as one of a framework, over the same memory where that can be."""
    if isinstance(value, np.generic) or (isinstance(value, np.ndarray) and value.dtype == object):
        return value if framework == "numpy" else move(np.asarray(value), framework, device)
    return _mover(framework, device)(value)


@lru_cache
def _mover(framework: str, device: str) -> Move:
    return mover(framework, device_object(framework, device))


def duplicate(value: Any) -> Any:
    """Return a copy in the same framework, on the same device."""
    if isinstance(value, np.ndarray | np.generic):
        return np.array(value)
    copy = getattr(value, "copy", None) or value.clone  # JAX has both, and its clone shares memory
    with device_of(value):
        return copy()


def write_into(target: Any, value: Any) -> None:
    """Write the elements of `value` into the memory of `target`, an array of any framework."""
    copy = getattr(target, "copy_", None)  # torch's, which reaches every device
    if copy is not None:
        copy(move(value, "torch"))
        return
    with device_of(target):
        native.copy_into(as_tensor(target, copy=False), as_tensor(move(value, "numpy")))


def _address(value: Any) -> tuple[object, int]:
    tensor = as_tensor(value, copy=False)
    return tensor.device, tensor.data_ptr

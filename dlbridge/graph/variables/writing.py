"""Operations that change a variable."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.graph.core.building import apply
from dlbridge.graph.core.constants import convert_to_tensor
from dlbridge.graph.core.operation import Operation
from dlbridge.graph.core.tensor import Tensor
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import TensorShape


class Writing:
    """The methods of a Variable that change it.

    Attributes:
        handle: the Tensor of the handle.
        dtype: the DataType of the values.
    """

    handle: Tensor
    dtype: DataType
    _shape: TensorShape

    @property
    def name(self) -> str:
        """The name of the variable."""
        raise NotImplementedError

    def _after(self) -> AbstractContextManager[Any]:
        raise NotImplementedError

    def _assigned(self, op: Operation) -> Any:
        """Return the variable as it is after `op`."""
        raise NotImplementedError

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return the variable as it is after it was assigned `value`.

        Args:
            value: of the variable's dtype and shape. It is copied when run.
            use_locking: without effect: changes of one variable never overlap.
            name: of the operation.
            read_value: False returns only the Operation.

        Returns:
            What can be fetched and used as the variable itself, and assigns first.

        Raises:
            ValueError: the static shapes contradict each other.
            TypeError: the dtype differs.
        """
        return self._change("assign", "AssignVariableOp", value, name, read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return the variable as it is after `delta` was added to its value; see `assign`.

        No change of another thread falls between reading and writing.
        """
        return self._change("assign_add", "AssignAddVariableOp", delta, name, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return the variable as it is after `delta` was subtracted from its value; see `assign`.

        No change of another thread falls between reading and writing.
        """
        return self._change("assign_sub", "AssignSubVariableOp", delta, name, read_value)

    def _change(
        self, call: str, op_type: str, value: Any, name: str | None, read_value: bool
    ) -> Any:
        """Return the variable after an operation with a value of its dtype and shape."""
        kind = getattr(value, "dtype", None)
        if isinstance(kind, DataType) and kind.base_dtype is not self.dtype:
            raise TypeError(
                f"{call}: the value {value!r} has type {kind.base_dtype.name} that does not match "
                f"type {self.dtype.name} of variable {self.name!r}; use tf.cast"
            )
        with self._after():
            tensor = convert_to_tensor(value, self.dtype)
            if not self._shape.is_compatible_with(tensor.shape):
                raise ArgumentError(
                    f"{call}: Shape mismatch. The variable {self.name!r} has shape {self._shape}, "
                    f"and the value shape {tensor.shape}"
                )
            return self._write(op_type, (tensor,), name, read_value)

    def _write(
        self, op_type: str, values: Iterable[Any], name: str | None, read_value: bool = True
    ) -> Any:
        """Return the variable after an operation on its handle, or only the Operation."""
        with self._after():
            op = apply(op_type, (self.handle, *values), {}, name)
        return self._assigned(op) if read_value else op

    def scatter_add(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Return the variable after slices were added to its own; they may repeat.

        Args:
            sparse_delta: IndexedSlices.
            use_locking: without effect: changes of one variable never overlap.
            name: of the operation.

        Raises:
            TypeError: no IndexedSlices.
            InvalidArgumentError: when run, an index is out of range.
        """
        return self._scatter("ResourceScatterAdd", sparse_delta, name)

    def scatter_sub(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Return the variable after slices were subtracted from its own; see `scatter_add`."""
        return self._scatter("ResourceScatterSub", sparse_delta, name)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Return the variable after slices were written over its own; see `scatter_add`."""
        return self._scatter("ResourceScatterUpdate", sparse_delta, name)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Return the variable after writing slices at vectors of indices, as in `scatter_nd`."""
        values = (indices, convert_to_tensor(updates, self.dtype))
        return self._write("ResourceScatterNdUpdate", values, name)

    def _scatter(self, op_type: str, slices: Any, name: str | None) -> Any:
        if not (hasattr(slices, "indices") and hasattr(slices, "values")):
            raise TypeError(f"sparse_delta is not IndexedSlices: {slices!r}")
        return self._write(op_type, (slices.indices, slices.values), name)

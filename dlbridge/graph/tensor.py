"""Tensor: the symbolic result of an operation, an edge of the graph."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims, TensorShape, as_shape

if TYPE_CHECKING:
    from dlbridge.graph.graph import Graph
    from dlbridge.graph.operation import Operation


class Tensor:
    """One result of an Operation: a value that exists while a session runs.

    Tensors compare and hash by identity. They are made by operations, not by calling the class.

    Attributes:
        op: the Operation whose result this is.
        value_index: its position among the results.
        dtype: its DataType.
    """

    __slots__ = ("__weakref__", "_consumers", "_dims", "dtype", "op", "value_index")
    __array_priority__ = 100  # so that ndarray + tensor asks tensor.__radd__

    def __init__(self, op: Operation, value_index: int, dtype: DataType, dims: Dims | None) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self._dims = dims
        self._consumers: list[Operation] = []

    @property
    def name(self) -> str:
        """The name of the operation and the index, as in "Const:0"."""
        return f"{self.op.name}:{self.value_index}"

    @property
    def graph(self) -> Graph:
        """The Graph that it belongs to."""
        return self.op.graph

    @property
    def device(self) -> str:
        """The device string of its operation."""
        return self.op.device

    @property
    def shape(self) -> TensorShape:
        """What is known of its shape."""
        return as_shape(self._dims)

    def get_shape(self) -> TensorShape:
        """Return what is known of its shape."""
        return self.shape

    def set_shape(self, shape: object) -> None:
        """Add what the caller knows of the shape; ValueError where it contradicts what is known."""
        self._dims = self.shape.merge_with(shape).dims

    def consumers(self) -> list[Operation]:
        """Return the operations that take it, one entry for each use, in order of creation."""
        return list(self._consumers)

    def eval(self, feed_dict: dict[Any, Any] | None = None, session: Any = None) -> Any:
        """Run it in `session`, or in the default session."""
        from dlbridge.graph.session import evaluate

        return evaluate(self, feed_dict, session)

    def __str__(self) -> str:
        return f'Tensor("{self.name}", shape={self.shape}, dtype={self.dtype.name})'

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self.shape} dtype={self.dtype.name}>"

    def __bool__(self) -> NoReturn:
        raise TypeError(
            f"using the symbolic Tensor {self.name!r} as a Python bool: its value is known only "
            "while a session runs; compare with `is None`, or use tf.where"
        )

    def __iter__(self) -> NoReturn:
        raise TypeError(
            f"Tensor {self.name!r} is symbolic and cannot be iterated over; use tf.unstack"
        )

    def __len__(self) -> NoReturn:
        raise TypeError(f"len of the symbolic Tensor {self.name!r}; use tf.shape(x)[0]")

"""Tensor: the symbolic result of an operation, an edge of the graph."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from dlbridge.errors import ExchangeError
from dlbridge.graph.core.defaults import Session, evaluate, get_default_session
from dlbridge.graph.core.element import GraphElement, OperatorNotAllowedInGraphError
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims, TensorShape, as_shape

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation


class Tensor(GraphElement):
    r"""One result of an Operation: a value that exists while a session runs.

    Tensors compare and hash by identity, except for what `functions.operators` adds. They are made
    by operations, not by calling the class.

    Attributes:
        op: the Operation whose result this is.
        value_index: its position among the results.
        dtype: its DataType.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     x = tf.placeholder(tf.float32, (None, 3), "x")
        >>> print(x, repr(x), repr(x.op), x.shape.as_list(), sep="\n")
        Tensor("x:0", shape=(?, 3), dtype=float32)
        <tf.Tensor 'x:0' shape=(?, 3) dtype=float32>
        <tf.Operation 'x' type=Placeholder>
        [None, 3]
    """

    __slots__ = ("__weakref__", "_consumers", "_dims", "dtype", "op", "value_index")
    __array_priority__ = 100  # so that ndarray + tensor asks tensor.__radd__
    __array_ufunc__ = None  # and np.add does not look for elements

    def __init__(self, op: Operation, value_index: int, dtype: DataType, dims: Dims | None) -> None:
        self.op = op
        self.value_index = value_index
        self.dtype = dtype
        self._dims = dims
        self._consumers: list[Operation] | None = None  # made with the first one

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
        """The static shape, as far as it is known."""
        return as_shape(self._dims)

    def get_shape(self) -> TensorShape:
        """Return the static shape, as far as it is known."""
        return self.shape

    def set_shape(self, shape: object) -> None:
        """Refine the static shape; tensors computed from this one before are not updated.

        Args:
            shape: what `TensorShape` takes; None adds nothing.

        Raises:
            ValueError: it contradicts the static shape.
        """
        dims = self.shape.merge_with(shape).dims
        if dims != self._dims:
            self._dims = dims
            self.op.graph._changes += 1

    def consumers(self) -> list[Operation]:
        """Return the operations that take it, one entry for each use, in order of creation."""
        return list(self._consumers or ())

    def eval(
        self, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
    ) -> Any:
        """Run it in `session`, or in the default session; see `Session.run`.

        Raises:
            ValueError: there is neither.
        """
        return evaluate(self, feed_dict, session, "eval")

    def __str__(self) -> str:
        shape = "" if self._dims is None else f", shape={self.shape}"
        device = f", device={self.op.device}" if self.op.device else ""
        return f'Tensor("{self.name}"{shape}, dtype={self.dtype.name}{device})'

    def __repr__(self) -> str:
        return f"<tf.Tensor '{self.name}' shape={self.shape} dtype={self.dtype.name}>"

    # ---- operators that need a value ----

    def __bool__(self) -> NoReturn:
        raise OperatorNotAllowedInGraphError(
            f"Using the symbolic Tensor {self.name!r} as a Python bool is not allowed: its value "
            "is known only while a session runs; compare with `is None`, or use tf.where"
        )

    def __iter__(self) -> NoReturn:
        raise OperatorNotAllowedInGraphError(
            f"Iterating over the symbolic Tensor {self.name!r} is not allowed; use tf.unstack"
        )

    def __len__(self) -> NoReturn:
        raise TypeError(
            f"len is not well defined for the symbolic Tensor {self.name!r}; use x.shape[0] or "
            "tf.shape(x)[0]"
        )

    def __contains__(self, item: object) -> NoReturn:
        raise TypeError(
            f"`in` is not defined for the symbolic Tensor {self.name!r}; use tf.reduce_any(x == y)"
        )

    def __array__(self, *args: object, **kwargs: object) -> NoReturn:
        raise NotImplementedError(
            f"Cannot convert the symbolic Tensor {self.name!r} to a NumPy array: it has a value "
            "only while a session runs; session.run(x) returns it"
        )

    # ---- DLPack ----

    def __dlpack__(self, **kwargs: Any) -> Any:
        """Evaluate it in the default session and return the capsule of the value.

        Raises:
            BufferError: there is no default session of its graph.
        """
        session = _session_of(self)
        if _pending.tensor is self and _pending.session is session:
            value = _pending.value
            _pending.keep(None, None, None)
        else:
            value = session.run(self, as_="dlbridge")
        return value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Evaluate it in the default session and return (device type, device id) of the value."""
        session = _session_of(self)
        value = session.run(self, as_="dlbridge")
        _pending.keep(self, session, value)
        device: tuple[int, int] = value.__dlpack_device__()
        return device


class _Pending(threading.local):
    """The value that `__dlpack_device__` computed, until `__dlpack__` takes it.

    A consumer asks for the device first; the graph is to run once.
    """

    tensor: Tensor | None = None
    session: Session | None = None
    value: Any = None

    def keep(self, tensor: Tensor | None, session: Session | None, value: Any) -> None:
        """Keep one value in place of the previous one."""
        self.tensor, self.session, self.value = tensor, session, value


_pending = _Pending()


def _session_of(tensor: Tensor) -> Session:
    """Return the default session; ExchangeError unless it runs the graph of `tensor`."""
    session: Session | None = get_default_session()
    if session is None or session.graph is not tensor.graph:
        which = "there is none" if session is None else "the current one runs another graph"
        raise ExchangeError(
            "lazy",
            f"__dlpack__ of {tensor!r}: a symbolic tensor is evaluated in the default session, and "
            f"{which}; use `with tf.Session():`, or pass session.run(x, as_='dlbridge')",
        )
    return session

"""The elements of a graph: Operation, a node, and Tensor, an edge."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NoReturn, Self

from dlbridge.errors import DLBridgeError, ExchangeError
from dlbridge.graph.core.exporter import node_def
from dlbridge.graph.core.opdef import OpDef
from dlbridge.graph.core.scopes import Session, evaluate, get_default_session
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.shape import Dims, TensorShape, as_shape

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph


class OperatorNotAllowedInGraphError(DLBridgeError, TypeError):
    """A symbolic Tensor was used where Python needs a value: as a condition, in a loop."""

    reason = "symbolic"


class NonCopyable:
    """Refuses to be copied or pickled, and says what to do instead."""

    __slots__ = ()

    def __reduce_ex__(self, protocol: object) -> NoReturn:
        raise TypeError(
            f"{type(self).__name__}: graphs, their elements and sessions are neither copied nor "
            "pickled; dump_graph(graph) gives bytes, and load_graph(bytes) a graph like it"
        )


class GraphElement(NonCopyable):
    """An operation or tensor of a graph: a shallow copy is the same object, as of a function."""

    __slots__ = ()

    def __copy__(self) -> Self:
        return self


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

    if TYPE_CHECKING:  # what the modules of `graph.ops` add

        def __add__(self, other: Any) -> Tensor: ...
        def __radd__(self, other: Any) -> Tensor: ...
        def __sub__(self, other: Any) -> Tensor: ...
        def __rsub__(self, other: Any) -> Tensor: ...
        def __mul__(self, other: Any) -> Tensor: ...
        def __rmul__(self, other: Any) -> Tensor: ...
        def __truediv__(self, other: Any) -> Tensor: ...
        def __rtruediv__(self, other: Any) -> Tensor: ...
        def __floordiv__(self, other: Any) -> Tensor: ...
        def __rfloordiv__(self, other: Any) -> Tensor: ...
        def __mod__(self, other: Any) -> Tensor: ...
        def __rmod__(self, other: Any) -> Tensor: ...
        def __pow__(self, other: Any) -> Tensor: ...
        def __rpow__(self, other: Any) -> Tensor: ...
        def __matmul__(self, other: Any) -> Tensor: ...
        def __rmatmul__(self, other: Any) -> Tensor: ...
        def __and__(self, other: Any) -> Tensor: ...
        def __rand__(self, other: Any) -> Tensor: ...
        def __or__(self, other: Any) -> Tensor: ...
        def __ror__(self, other: Any) -> Tensor: ...
        def __xor__(self, other: Any) -> Tensor: ...
        def __rxor__(self, other: Any) -> Tensor: ...
        def __lt__(self, other: Any) -> Tensor: ...
        def __le__(self, other: Any) -> Tensor: ...
        def __gt__(self, other: Any) -> Tensor: ...
        def __ge__(self, other: Any) -> Tensor: ...
        def __neg__(self) -> Tensor: ...
        def __invert__(self) -> Tensor: ...
        def __abs__(self) -> Tensor: ...
        def __getitem__(self, key: Any) -> Tensor: ...

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
            value = session.run(self, to="dlbridge")
        return value.__dlpack__(**kwargs)

    def __dlpack_device__(self) -> tuple[int, int]:
        """Evaluate it in the default session and return (device type, device id) of the value."""
        session = _session_of(self)
        value = session.run(self, to="dlbridge")
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
            f"{which}; use `with tf.Session():`, or pass session.run(x, to='dlbridge')",
        )
    return session


class Operation(GraphElement):
    """A node of a Graph: an op type, its inputs, its attributes, its results.

    Operations are made by functions such as `add`, or by `Graph.create_op`. They compare and hash
    by identity, and satisfy `dlbridge.execution.registry.Node`.

    Attributes:
        graph: the Graph that it belongs to.
        id: its number in the graph, in order of creation, from 0.
        name: unique in the graph.
        definition: the OpDef of its op type; `op_def` is the same as a message.
        inputs, outputs: tuples of Tensors.
        control_inputs: Operations that run before it.
        attrs: decoded attributes, defaults filled in; see `dlbridge.proto.attributes`. Operations
            may share it: it is not to be written to.
        output_types: the DataType of each result.
        device: a canonical device string, or "".
        framework: the framework that it was placed on with `framework(...)`, or None.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     op = tf.constant([1.0, 2.0], name="c").op
        >>> op, op.type, op.outputs, op.get_attr("dtype")
        (<tf.Operation 'c' type=Const>, 'Const', (<tf.Tensor 'c:0' shape=(2,) dtype=float32>,),
         tf.float32)
    """

    __slots__ = (
        "__weakref__",
        "attrs",
        "control_inputs",
        "definition",
        "device",
        "framework",
        "graph",
        "id",
        "inputs",
        "name",
        "output_types",
        "outputs",
    )

    id: int
    name: str
    graph: Graph
    definition: OpDef
    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    control_inputs: tuple[Operation, ...]
    attrs: dict[str, Any]
    output_types: tuple[DataType, ...]
    device: str
    framework: str | None

    @property
    def type(self) -> str:
        """The op type."""
        return self.definition.name

    @property
    def stateful(self) -> bool:
        """Whether two runs of it may differ."""
        return self.definition.is_stateful

    @property
    def op_def(self) -> Any:
        """The OpDef message of its op type; all operations of a type share it."""
        return self.definition.to_proto()

    @property
    def node_def(self) -> Any:
        """The operation as a new NodeDef message, as in a GraphDef."""
        return node_def(self)

    @property
    def _id(self) -> int:
        return self.id

    def get_attr(self, name: str) -> Any:
        """Return an attribute as TensorFlow does.

        Args:
            name: of the attribute; defaults count.

        Returns:
            A DataType, bytes, int, float or bool; a TensorShapeProto, TensorProto or NameAttrList
            message; or a list of one of these. A message is a copy.

        Raises:
            ValueError: there is no such attribute.
            TypeError: `name` is not a string.
        """
        if not isinstance(name, str):
            raise TypeError(f"Operation.get_attr: name must be a string, got {name!r}")
        if name not in self.attrs:
            raise ValueError(f"Operation {self.name!r} has no attr named {name!r}.")
        return _as_messages(self.attrs[name])

    def values(self) -> tuple[Tensor, ...]:
        """Return its results."""
        return self.outputs

    def colocation_groups(self) -> list[bytes]:
        """Return the groups of operations that share a device: only its own by default."""
        groups = [group for group in self.attrs.get("_class", ()) if group.startswith(b"loc:@")]
        return groups or [f"loc:@{self.name}".encode()]

    def run(
        self, feed_dict: Mapping[Any, Any] | None = None, session: Session | None = None
    ) -> None:
        """Run it in `session`, or in the default session; see `Session.run`.

        Raises:
            ValueError: there is neither.
        """
        evaluate(self, feed_dict, session, "run")

    def __str__(self) -> str:
        return str(self.node_def)

    def __repr__(self) -> str:
        return f"<tf.Operation '{self.name}' type={self.type}>"


def _as_messages(value: Any) -> Any:
    """Return shapes, tensors and functions as messages, all else as it is."""
    if isinstance(value, list | tuple) and not isinstance(value, FunctionName):
        return [_as_messages(each) for each in value]
    if not isinstance(value, TensorShape | TensorValue | FunctionName):
        return value
    message = messages.AttrValue()
    write_attr(value, message)
    return getattr(message, message.WhichOneof("value"))

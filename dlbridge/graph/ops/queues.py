"""Queues: what one run enqueues, others dequeue, also those of other tasks."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dlbridge.graph.core.default_graph import apply, convert_to_tensor
from dlbridge.graph.core.inference import Inference, merge, nothing, require_rank, scalars
from dlbridge.graph.core.operation import Operation, Tensor
from dlbridge.graph.ops.shared import Shapes, define, scope
from dlbridge.proto.datatypes import DataType, as_dtype, int32
from dlbridge.shape import Dims, TensorShape

__all__ = ["FIFOQueue"]


# ==== op types ====================================================================================


def _declared(c: Inference) -> list[Dims | None] | None:
    """Return the shapes of a queue's components where they are known."""
    found = [each.dims for each in c.inputs[0].op.attrs.get("shapes", ())]
    return found or None


def _enqueued(c: Inference) -> Shapes:
    for i, dims in enumerate(_declared(c) or ()):
        if i + 1 < len(c.inputs):
            merge(dims, c.dims(i + 1), c)
    return []


def _enqueued_rows(c: Inference) -> Shapes:
    for i, dims in enumerate(_declared(c) or ()):
        rows = c.dims(i + 1) if i + 1 < len(c.inputs) else None
        if rows is not None and dims is not None:
            merge((None, *dims), rows, c)
    return []


def _dequeued(c: Inference) -> Shapes:
    found = _declared(c)
    return [None] * c.output_count if found is None else found[: c.output_count]


def _dequeued_rows(c: Inference) -> Shapes:
    require_rank(c.dims(1), 0, c)
    count = c.integer(1) if c.type == "QueueDequeueManyV2" else None
    return [None if each is None else (count, *each) for each in _dequeued(c)]


define(
    "FIFOQueueV2(*, component_types: list(type) >= 1, shapes: list(shape) >= 0 = [], "
    'capacity: int = -1, container: string = "", shared_name: string = "") -> handle: resource',
    shape=scalars,
    stateful=True,
)
for _name, _shape in (("", _enqueued), ("Many", _enqueued_rows)):
    define(
        f"QueueEnqueue{_name}V2(handle: resource, components: list(Tcomponents), *, "
        "Tcomponents: list(type) >= 1, timeout_ms: int = -1)",
        shape=_shape,
        stateful=True,
    )
define(
    "QueueDequeueV2(handle: resource, *, component_types: list(type) >= 1, timeout_ms: int = -1) "
    "-> components: list(component_types)",
    shape=_dequeued,
    stateful=True,
)
for _name in ("Many", "UpTo"):
    define(
        f"QueueDequeue{_name}V2(handle: resource, n: int32, *, "
        "component_types: list(type) >= 1, timeout_ms: int = -1) "
        "-> components: list(component_types)",
        shape=_dequeued_rows,
        stateful=True,
    )
define(
    "QueueCloseV2(handle: resource, *, cancel_pending_enqueues: bool = false)",
    shape=nothing,
    stateful=True,
)
define("QueueIsClosedV2(handle: resource) -> is_closed: bool", shape=scalars, stateful=True)
define("QueueSizeV2(handle: resource) -> size: int32", shape=scalars, stateful=True)


# ==== functions ===================================================================================


class FIFOQueue:
    """A queue in a graph: elements are dequeued in the order in which they were enqueued.

    Its elements are those of the session, or of the task of its device, where sessions of several
    tasks meet by `shared_name`. An operation that waits holds up its own run, and on its task what
    comes behind it in that run; other runs go on. The wait ends with the timeout of the run, at an
    interrupt, and when the session is closed.

    Args:
        capacity: how many elements it holds; -1 is as many as come.
        dtypes: of the components of an element: one, or a list.
        shapes: of the components, as many; those that dequeue many need them.
        names: of the components: elements are dicts then.
        shared_name: under which operations of other graphs find the same queue; that of the
            operation by default.
        name: of the operation.

    Raises:
        ValueError: as many shapes or names are required as dtypes.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     tokens = tf.FIFOQueue(10, tf.int64, shapes=[()])
        ...     session.run(tokens.enqueue_many([[1, 2, 3]]))
        ...     print(session.run(tokens.dequeue()), session.run(tokens.size()))
        1 2
    """

    def __init__(
        self,
        capacity: int,
        dtypes: Any,
        shapes: Any = None,
        names: Sequence[str] | None = None,
        shared_name: str | None = None,
        name: str = "fifo_queue",
    ) -> None:
        kinds = dtypes if isinstance(dtypes, list | tuple) else [dtypes]
        self._dtypes = [as_dtype(each) for each in kinds]
        self._shapes = None if shapes is None else _shapes(shapes, len(self._dtypes))
        self._names = None if names is None else _names_of(names, len(self._dtypes))
        attrs = {
            "component_types": self._dtypes,
            "shapes": self._shapes or [],
            "capacity": capacity,
            "shared_name": (shared_name or "").encode(),
        }
        self._handle = apply("FIFOQueueV2", (), attrs, name).outputs[0]

    @property
    def queue_ref(self) -> Tensor:
        """The handle."""
        return self._handle

    @property
    def name(self) -> str:
        """The name of the operation."""
        return self._handle.op.name

    @property
    def dtypes(self) -> list[DataType]:
        """The dtypes of the components."""
        return list(self._dtypes)

    @property
    def shapes(self) -> list[TensorShape]:
        """The shapes of the components; unknown ones where none were declared."""
        return list(self._shapes or [TensorShape(None)] * len(self._dtypes))

    @property
    def names(self) -> list[str] | None:
        """The names of the components, or None."""
        return None if self._names is None else list(self._names)

    def enqueue(self, vals: Any, name: str | None = None) -> Operation:
        """Create an operation that adds one element, once there is room.

        Args:
            vals: the component, a list of them, or with `names` a dict.
            name: of the operation.

        Raises:
            CancelledError: when run and the queue is closed.
        """
        return self._enqueue("QueueEnqueueV2", vals, name or f"{self.name}_enqueue")

    def enqueue_many(self, vals: Any, name: str | None = None) -> Operation:
        """Create an operation that adds an element for each row of the components.

        Args:
            vals: as in `enqueue`, each with one dimension more, whose extents are the same.
            name: of the operation.
        """
        return self._enqueue("QueueEnqueueManyV2", vals, name or f"{self.name}_EnqueueMany")

    def dequeue(self, name: str | None = None) -> Any:
        """Return the first element, once there is one: a Tensor, a list, or with `names` a dict.

        Raises:
            OutOfRangeError: when run and the queue is closed and empty.
        """
        return self._dequeue("QueueDequeueV2", (), name or f"{self.name}_Dequeue")

    def dequeue_many(self, n: Any, name: str | None = None) -> Any:
        """Return the first `n` elements, stacked, once there are so many.

        Raises:
            OutOfRangeError: when run and the queue is closed and has fewer.
        """
        return self._dequeue("QueueDequeueManyV2", (n,), name or f"{self.name}_DequeueMany")

    def dequeue_up_to(self, n: Any, name: str | None = None) -> Any:
        """Return the first `n` elements, stacked; of a queue that is closed also fewer, but one."""
        return self._dequeue("QueueDequeueUpToV2", (n,), name or f"{self.name}_DequeueUpTo")

    def close(self, cancel_pending_enqueues: bool = False, name: str | None = None) -> Operation:
        """Create an operation after which nothing can be enqueued.

        Args:
            cancel_pending_enqueues: whether what waits for room fails with CancelledError.
            name: of the operation.
        """
        attrs = {"cancel_pending_enqueues": cancel_pending_enqueues}
        return self._apply("QueueCloseV2", (), attrs, name or f"{self.name}_Close")

    def is_closed(self, name: str | None = None) -> Tensor:
        """Return whether the queue is closed."""
        return self._apply("QueueIsClosedV2", (), {}, name or f"{self.name}_is_closed").outputs[0]

    def size(self, name: str | None = None) -> Tensor:
        """Return how many elements there are."""
        return self._apply("QueueSizeV2", (), {}, name or f"{self.name}_Size").outputs[0]

    def __repr__(self) -> str:
        return f"<FIFOQueue {self.name!r} of {', '.join(each.name for each in self._dtypes)}>"

    def _apply(
        self, op_type: str, inputs: Sequence[Any], attrs: dict[str, Any], name: str
    ) -> Operation:
        with self._handle.graph.as_default():
            return apply(op_type, (self._handle, *inputs), attrs, name)

    def _enqueue(self, op_type: str, vals: Any, name: str) -> Operation:
        with scope(None, name, [self._handle]) as full:
            given = self._components(vals)
            tensors = [
                convert_to_tensor(value, dtype, f"component_{i}")
                for i, (value, dtype) in enumerate(zip(given, self._dtypes, strict=True))
            ]
            return apply(op_type, (self._handle, tensors), {}, full)

    def _components(self, vals: Any) -> list[Any]:
        if isinstance(vals, Mapping) != (self._names is not None):
            form = "a dict by name" if self._names else "a tensor or a list: it has no names"
            raise ValueError(f"FIFOQueue {self.name!r}: an element is {form}, got {vals!r}")
        if self._names is not None:
            if sorted(vals) != sorted(self._names):
                raise ValueError(
                    f"FIFOQueue {self.name!r}: the components are {self._names}, got {list(vals)}"
                )
            return [vals[each] for each in self._names]
        found = list(vals) if isinstance(vals, list | tuple) else [vals]
        if len(found) != len(self._dtypes):
            raise ValueError(
                f"FIFOQueue {self.name!r}: an element has {len(self._dtypes)} components, got "
                f"{len(found)}"
            )
        return found

    def _dequeue(self, op_type: str, counts: Sequence[Any], name: str) -> Any:
        attrs = {"component_types": self._dtypes}
        with scope(None, name, [self._handle]) as full:
            counts = [convert_to_tensor(each, int32, "n") for each in counts]
            found = apply(op_type, (self._handle, *counts), attrs, full).outputs
        if self._names is not None:
            return dict(zip(self._names, found, strict=True))
        return found[0] if len(found) == 1 else list(found)


def _shapes(shapes: Any, count: int) -> list[TensorShape]:
    """Return the shapes of so many components; a single one may stand by itself."""
    if isinstance(shapes, TensorShape) or not isinstance(shapes, list | tuple):
        shapes = [shapes]
    elif count == 1 and all(isinstance(each, int) for each in shapes):
        shapes = [shapes] if shapes or isinstance(shapes, tuple) else shapes
    found = [TensorShape(each) for each in shapes]
    if len(found) != count:
        raise ValueError(f"FIFOQueue: {count} shapes are required, one a component, got {shapes}")
    if any(each.dims is None or None in each.dims for each in found):
        raise ValueError(f"FIFOQueue: shapes must be fully known, got {found}")
    return found


def _names_of(names: Any, count: int) -> list[str]:
    found = [names] if isinstance(names, str) else list(names)
    if len(found) != count:
        raise ValueError(f"FIFOQueue: {count} names are required, one a component, got {found}")
    return found

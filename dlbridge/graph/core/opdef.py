"""OpDef: the signature of an op type, and the registry of all op types.

`notation` says how op types are declared. The declarations agree with TensorFlow's own registry:
names, order, defaults, allowed values.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.execution import registry
from dlbridge.execution.errors import NotFoundError
from dlbridge.execution.registry import FirstUse
from dlbridge.graph.core.attributes import Signature
from dlbridge.graph.core.inference import Inference, checked, unknown
from dlbridge.graph.core.notation import MISSING, Argument, Attribute, parse
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType
from dlbridge.shape import Dims

ShapeFunction = Callable[[Inference], Sequence[Dims | None]]


class OpDef:
    """The inputs, results and attributes of an op type.

    Attributes:
        name: the op type.
        inputs, outputs: an Argument each.
        attributes: by name.
        defaults: values of the attributes that have one.
        shape: the static shape function, see `dlbridge.graph.core.inference`.
        is_stateful: two runs may differ: never merged, pruned only where not asked for.
        is_commutative, is_aggregate, allows_uninitialized_input: as in TensorFlow's OpDef.
    """

    __slots__ = (
        "_message",
        "_signature",
        "allows_uninitialized_input",
        "attributes",
        "defaults",
        "inputs",
        "is_aggregate",
        "is_commutative",
        "is_keyed",
        "is_plain",
        "is_stateful",
        "name",
        "outputs",
        "settled",
        "shape",
    )

    def __init__(
        self,
        name: str,
        inputs: tuple[Argument, ...],
        outputs: tuple[Argument, ...],
        attributes: dict[str, Attribute],
        shape: ShapeFunction,
    ) -> None:
        self.name = name
        self.inputs = inputs
        self.outputs = outputs
        self.attributes = attributes
        self.shape = checked(shape)
        self.is_stateful = False
        self.is_commutative = False
        self.is_aggregate = False
        self.allows_uninitialized_input = False
        self.defaults: Mapping[str, Any] = {
            each.name: each.default for each in attributes.values() if each.default is not MISSING
        }
        self.is_plain = not any(each.is_list for each in inputs)
        # Attributes as keys of a dict: 0.0 is -0.0 there, and a tensor is compared bit by bit.
        kinds = {each.kind for each in attributes.values()}
        self.is_keyed = kinds.isdisjoint(("float", "tensor", "func"))
        self.settled: dict[Any, tuple[dict[str, Any], tuple[DataType, ...]]] = {}
        self._message: Any = None
        self._signature: Signature | None = None

    @property
    def signature(self) -> Signature:
        """The checks of attributes and dtypes of operations of the type."""
        if self._signature is None:
            self._signature = Signature(self.inputs, self.outputs, self.attributes, self.defaults)
        return self._signature

    def to_proto(self) -> Any:
        """Return it as an OpDef message, the same one each time: do not write to it."""
        if self._message is None:
            self._message = _to_message(self)
        return self._message

    def __repr__(self) -> str:
        return f"<OpDef {self.name}>"


_FLAGS = ("is_stateful", "is_commutative", "is_aggregate", "allows_uninitialized_input")


def _to_message(definition: OpDef) -> Any:
    """Return a new OpDef message; descriptions are left out."""
    message = messages.OpDef(name=definition.name)
    for argument in definition.inputs:
        _write_argument(argument, message.input_arg.add())
    for argument in definition.outputs:
        _write_argument(argument, message.output_arg.add())
    for attribute in definition.attributes.values():
        _write_attribute(attribute, message.attr.add())
    for flag in _FLAGS:
        if getattr(definition, flag):
            setattr(message, flag, True)
    return message


def _write_argument(argument: Argument, message: Any) -> None:
    message.name = argument.name
    if argument.type is not None:
        message.type = argument.type.number
    for field in ("type_attr", "number_attr", "type_list_attr"):
        value = getattr(argument, field)
        if value is not None:
            setattr(message, field, value)
    if argument.is_ref:
        message.is_ref = True


def _write_attribute(attribute: Attribute, message: Any) -> None:
    message.name = attribute.name
    message.type = attribute.kind
    if attribute.default is not MISSING:
        write_attr(attribute.default, message.default_value)
    if attribute.minimum is not None:
        message.has_minimum = True
        message.minimum = attribute.minimum
    if attribute.allowed:
        write_attr(list(attribute.allowed), message.allowed_values)


# ---- registry ----------------------------------------------------------------------------------

_OPS: dict[str, OpDef] = {}


def define(
    declaration: str,
    *,
    shape: ShapeFunction,
    stateful: bool = False,
    commutative: bool = False,
    aggregate: bool = False,
    allows_uninitialized_input: bool = False,
) -> OpDef:
    """Declare an op type, in the notation of this module, and add it to the registry."""
    op_def = OpDef(*parse(declaration), shape)
    op_def.is_stateful = stateful
    op_def.is_commutative = commutative
    op_def.is_aggregate = aggregate
    op_def.allows_uninitialized_input = allows_uninitialized_input
    if op_def.name in _OPS:
        raise ArgumentError(f"register_op: op type {op_def.name!r} is defined already")
    _OPS[op_def.name] = op_def
    return op_def


def register_op(
    declaration: str,
    *,
    shape: ShapeFunction | None = None,
    kernel: Callable[[Any, Any], Callable[..., Any]] | None = None,
    stateful: bool = False,
    commutative: bool = False,
    aggregate: bool = False,
    allows_uninitialized_input: bool = False,
) -> OpDef:
    """Add an op type of your own, for `Graph.create_op` and for graphs that are imported.

    Args:
        declaration: name, inputs, attributes and results, in the notation of this module.
        shape: the static shape function, see `dlbridge.graph.core.inference`; with None all shapes
            are unknown.
        kernel: a function `(node, context)` that is called once for each node and plan and returns
            the function of the input arrays; see `dlbridge.execution.registry`. It works in every
            framework through `context.xp`, the array API namespace of the one it runs in.
        stateful: two runs may differ, or have effects.
        commutative: the inputs may be exchanged.
        aggregate: the inputs may be summed up in any order.
        allows_uninitialized_input: references may be to variables without a value.

    Raises:
        ArgumentError: the op type exists, or the declaration cannot be read.

    Example:
        >>> import dlbridge.graph as tf
        >>> def times(node, context):
        ...     factor = node.attrs["factor"]
        ...     return lambda x: x * factor
        >>> tf.register_op("Times(x: T, *, factor: int = 2, T: {float32}) -> y: T", kernel=times)
        <OpDef Times>
        >>> with tf.Graph().as_default() as graph, tf.Session() as session:
        ...     op = graph.create_op("Times", [tf.constant([1.0, 2.0])], attrs={"factor": 3})
        ...     print(session.run(op.outputs[0]))
        [3. 6.]
    """
    load()
    made = define(
        declaration,
        shape=shape or unknown,
        stateful=stateful,
        commutative=commutative,
        aggregate=aggregate,
        allows_uninitialized_input=allows_uninitialized_input,
    )
    if kernel is not None:
        registry.kernel(made.name)(kernel)
    return made


def op_def(name: str) -> OpDef:
    """Return the OpDef of an op type.

    Raises:
        NotFoundError: there is none of that name.
    """
    found = _OPS.get(name)
    if found is None:
        load()
        found = _OPS.get(name)
        if found is None:
            raise NotFoundError(f"Op type not registered {name!r}: dlbridge does not know it; "
                                "register_op adds one")  # fmt: skip
    return found


def names() -> list[str]:
    """Return the names of all op types."""
    load()
    return sorted(_OPS)


load = FirstUse()
"""Loads the declarations of every family of op types."""


def on_first_use(loader: Callable[[], None]) -> None:
    """Let `loader` declare op types when the first one is looked up."""
    load.add(loader)

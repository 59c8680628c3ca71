"""OpDef: the signature of an op type, and the registry of all op types.

The declarations agree with TensorFlow's own registry: names, order, defaults, allowed values.

An op type is declared in one line, in the notation of `graph.core.notation`:

    define("MatMul(a: T, b: T, *, transpose_a: bool = false, T: {float32, int32}) -> product: T")
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from ctypes import c_float
from operator import index
from typing import Any

import numpy as np

from dlbridge._core import native
from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.exchange.protocol import describe
from dlbridge.execution import registry
from dlbridge.execution.errors import NotFoundError
from dlbridge.execution.registry import FirstUse
from dlbridge.graph.core.inference import Inference, checked, unknown
from dlbridge.graph.core.notation import MISSING, Argument, Attribute, Declaration, parse, write
from dlbridge.proto import messages
from dlbridge.proto.attributes import write_attr
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.proto.values import FunctionName, TensorValue
from dlbridge.registry import Origin
from dlbridge.shape import Dims, TensorShape, as_shape

# ---- signatures: the attributes and dtypes of an operation are checked ---------------------------

MOST_RESULTS = 2**16
"""A node of 30 bytes may ask for any number of results; no graph in use comes near this many."""

KINDS: dict[str, type] = {
    "string": bytes,
    "int": int,
    "float": float,
    "bool": bool,
    "type": DataType,
    "shape": TensorShape,
    "tensor": TensorValue,
    "func": FunctionName,
}

Types = tuple[DataType, ...]
Check = Callable[[Any], None]

_MOST_TYPES = 256  # combinations of dtypes and lengths that a Signature keeps


class InvalidAttributeError(Exception):
    """An attribute breaks a rule of the OpDef.

    Attributes:
        rule: "missing", "unknown", "kind", "element" (the kind of one), "reference", "allowed" or
            "minimum".
        name: of the attribute.
        value: what breaks the rule; the list of names where some are missing.
    """

    def __init__(self, rule: str, name: str, value: Any) -> None:
        super().__init__(rule, name, value)
        self.rule = rule
        self.name = name
        self.value = value


class InvalidCountError(Exception):
    """The number of inputs or results is wrong; the text says how."""


class Signature:
    """The inputs, results and attributes of an op type, prepared for checking many operations.

    Attributes:
        kinds: the Python type of each attribute's values.
    """

    __slots__ = (
        "_checks",
        "_defaults",
        "_inputs",
        "_key",
        "_outputs",
        "_required",
        "_types",
        "kinds",
    )

    def __init__(
        self,
        inputs: Sequence[Argument],
        outputs: Sequence[Argument],
        attributes: Mapping[str, Attribute],
        defaults: Mapping[str, Any],
    ) -> None:
        self.kinds = {
            name: list if each.kind.startswith("list(") else KINDS[each.kind]
            for name, each in attributes.items()
        }
        self._checks = {name: _check_of(each) for name, each in attributes.items()}
        self._defaults = dict(defaults)
        self._required = frozenset(attributes) - frozenset(defaults)
        self._inputs = inputs
        self._outputs = outputs
        self._key = _names_in((*inputs, *outputs))
        self._types: dict[Any, tuple[Types, Types]] = {}

    def settle(self, given: Mapping[str, Any], unknown: list[str] | None = None) -> dict[str, Any]:
        """Return all attributes of an operation: those given, checked, and defaults.

        Args:
            given: decoded. Names with `_` in front are free.
            unknown: takes the names of attributes that the op type does not have; they are kept.
                None refuses them.

        Raises:
            InvalidAttributeError: one is missing, unknown, of the wrong kind, or not allowed.
        """
        attrs = {**self._defaults, **given}
        if not self._required <= attrs.keys():
            missing = [name for name in self.kinds if name not in attrs]
            raise InvalidAttributeError("missing", missing[0], missing)
        kinds, checks = self.kinds, self._checks
        for name, value in given.items():
            kind = kinds.get(name)
            if kind is None:
                if name[0:1] != "_":
                    if unknown is None:
                        raise InvalidAttributeError("unknown", name, value)
                    unknown.append(name)
            elif type(value) is not kind:
                raise InvalidAttributeError("kind", name, value)
            else:
                check = checks[name]
                if check is not None:
                    check(value)
        return attrs

    def types(self, attrs: Mapping[str, Any], given: int) -> tuple[Types, Types]:
        """Return the dtypes of inputs and results, those of references as such.

        Args:
            attrs: what `settle` returned.
            given: the number of inputs of the operation, which bounds the work.

        Raises:
            InvalidCountError: another number of inputs is required; there are too many results.
        """
        key = tuple([_frozen(attrs[name]) for name in self._key])
        found = self._types.get(key)
        if found is None:
            _require_count(_count(self._inputs, attrs), given)
            results = _count(self._outputs, attrs)
            if results > MOST_RESULTS:
                raise InvalidCountError(f"{results} results; at most are {MOST_RESULTS}")
            found = _expand(self._inputs, attrs), _expand(self._outputs, attrs)
            if len(self._types) < _MOST_TYPES:
                self._types[key] = found
        _require_count(len(found[0]), given)
        return found


# ---- rules -------------------------------------------------------------------------------------


def _check_of(attribute: Attribute) -> Check | None:
    """Return what refuses a value of the right Python type, or None where any is right."""
    name, minimum = attribute.name, attribute.minimum
    element = attribute.kind.removeprefix("list(").removesuffix(")")
    is_list = element != attribute.kind
    allowed = frozenset(attribute.allowed)
    required = KINDS[element]
    is_type = element == "type"

    def check_one(value: Any) -> None:
        if is_list and type(value) is not required:
            raise InvalidAttributeError("element", name, value)
        if is_type and value.is_ref:
            raise InvalidAttributeError("reference", name, value)
        if allowed and value not in allowed:
            raise InvalidAttributeError("allowed", name, value)

    def check_list(values: list[Any]) -> None:
        if minimum is not None and len(values) < minimum:
            raise InvalidAttributeError("minimum", name, values)
        for value in values:
            check_one(value)

    def check_number(value: int) -> None:
        if value < minimum:  # type: ignore[operator]
            raise InvalidAttributeError("minimum", name, value)

    if is_list:
        return check_list
    if minimum is not None:
        return check_number
    return check_one if allowed or is_type else None


def _names_in(arguments: Sequence[Argument]) -> tuple[str, ...]:
    """Return the names of the attributes on which the dtypes of inputs and results depend."""
    found: dict[str, None] = {}
    for each in arguments:
        for name in (each.type_attr, each.number_attr, each.type_list_attr):
            if name is not None:
                found[name] = None
    return tuple(found)


def _frozen(value: Any) -> Any:
    return tuple(value) if type(value) is list else value


def _require_count(required: int, given: int) -> None:
    if required != given:
        raise InvalidCountError(f"required are {required} inputs, got {given}")


def _count(arguments: Sequence[Argument], attrs: Mapping[str, Any]) -> int:
    """Return the number of tensors of all arguments."""
    count = 0
    for each in arguments:
        if each.type_list_attr is not None:
            count += len(attrs[each.type_list_attr])
        elif each.number_attr is not None:
            count += max(attrs[each.number_attr], 0)
        else:
            count += 1
    return count


def _expand(arguments: Sequence[Argument], attrs: Mapping[str, Any]) -> Types:
    """Return the DataType of each tensor of all arguments."""
    types: list[DataType] = []
    for each in arguments:
        if each.type_list_attr is not None:
            found = list(attrs[each.type_list_attr])
        else:
            kind = each.type or attrs[each.type_attr or ""]
            found = [kind] * (attrs[each.number_attr] if each.number_attr is not None else 1)
        types += [kind.as_ref for kind in found] if each.is_ref else found
    return tuple(types)


# ---- decoding ----------------------------------------------------------------------------------


def decode(attribute: Attribute, value: Any) -> Any:
    """Return a value that Python code passed for an attribute, decoded.

    Args:
        attribute: the attribute.
        value: decoded, or one that is easily read as that: a name for a type, a str for bytes.

    Raises:
        TypeError, ValueError: it cannot be read.
    """
    kind = attribute.kind
    if not kind.startswith("list("):
        return _READERS[kind](value)
    if not isinstance(value, list | tuple):
        raise TypeError
    reader = _READERS[kind[5:-1]]
    return [reader(each) for each in value]


def _read_float(value: Any) -> float:
    if isinstance(value, str | bytes):
        raise TypeError("expected a number")
    return c_float(float(value)).value  # a GraphDef holds 32 bits


def _read_bool(value: Any) -> bool:
    if not isinstance(value, bool | np.bool_):
        raise TypeError("expected True or False")
    return bool(value)


def _read_string(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode()
    if not isinstance(value, bytes):
        raise TypeError("expected bytes or str")
    return bytes(value)


def _read_tensor(value: Any) -> TensorValue:
    if isinstance(value, TensorValue):
        return value
    array = np.asarray(value)
    return TensorValue(as_dtype(array.dtype), array.copy())


def _read_function(value: Any) -> FunctionName:
    if isinstance(value, FunctionName):
        return value
    if not isinstance(value, str):
        raise TypeError("expected a FunctionName or the name of a function")
    return FunctionName(value)


_READERS: dict[str, Callable[[Any], Any]] = {
    "int": lambda value: int(index(value)),
    "float": _read_float,
    "bool": _read_bool,
    "string": _read_string,
    "type": as_dtype,
    "shape": as_shape,
    "tensor": _read_tensor,
    "func": _read_function,
}


# ---- definitions ---------------------------------------------------------------------------------

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
        is_commutative, is_aggregate, allows_uninitialized_input, is_distributed_communication: as
            in TensorFlow's OpDef.
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
        "is_distributed_communication",
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
        self.is_distributed_communication = False
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

    def __str__(self) -> str:
        """Return its declaration, in the notation of `register_op`."""
        return write(Declaration(self.name, self.inputs, self.outputs, dict(self.attributes)))


_FLAGS = (
    "is_stateful",
    "is_commutative",
    "is_aggregate",
    "allows_uninitialized_input",
    "is_distributed_communication",
)


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
_ORIGINS: dict[str, Origin] = {}


def define(
    declaration: str,
    *,
    shape: ShapeFunction,
    stateful: bool = False,
    commutative: bool = False,
    aggregate: bool = False,
    allows_uninitialized_input: bool = False,
    distributed: bool = False,
    kernel: Callable[[Any, Any], Callable[..., Any]] | None = None,
    origin: Origin | None = None,
) -> OpDef:
    """Declare an op type, in the notation of `graph.core.notation`, and add it to the registry.

    It may replace what an interrupted execution of the same module has declared.
    """
    op_def = OpDef(*parse(declaration), shape)
    op_def.is_stateful = stateful
    op_def.is_commutative = commutative
    op_def.is_aggregate = aggregate
    op_def.allows_uninitialized_input = allows_uninitialized_input
    op_def.is_distributed_communication = distributed
    native.defer_signals(_add, op_def, kernel, origin or Origin())
    return op_def


def _add(
    op_def: OpDef, kernel: Callable[[Any, Any], Callable[..., Any]] | None, origin: Origin
) -> None:
    if not origin.may_replace(_ORIGINS.setdefault(op_def.name, origin)):
        raise ArgumentError(f"register_op: op type {op_def.name!r} is defined already")
    _ORIGINS[op_def.name] = origin
    _OPS[op_def.name] = op_def
    if kernel is not None:
        registry.kernel(op_def.name)(kernel)


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
        declaration: name, inputs, attributes and results, in the notation of
            `dlbridge.graph.core.notation`.
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
        ArgumentError: the op type exists, or the declaration cannot be read; the place is marked.
        UnsupportedTypeError: the declaration is no text, or `shape` or `kernel` no function.

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
    for argument, given in (("shape", shape), ("kernel", kernel)):
        if given is not None and not callable(given):
            raise UnsupportedTypeError(
                f"register_op: {argument} must be a function, got {describe(given)}"
            )
    load()
    return define(
        declaration,
        shape=shape or unknown,
        stateful=stateful,
        commutative=commutative,
        aggregate=aggregate,
        allows_uninitialized_input=allows_uninitialized_input,
        kernel=kernel,
    )


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

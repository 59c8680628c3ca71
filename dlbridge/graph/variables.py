"""Variable: a tensor whose value lives in a session from one run to the next.

A variable is a handle (`VarHandleOp`) to state that each session keeps for itself, under the
names that TensorFlow's resource variables have: `v`, `v/Initializer/initial_value`, `v/Assign`,
`v/IsInitialized/VarIsInitializedOp`, `v/Read/ReadVariableOp`. Graphs with the older reference
variables (`VariableV2`) can be imported and run, too; new ones are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

from dlbridge.graph.building import apply
from dlbridge.graph.collecting import GraphKeys
from dlbridge.graph.constants import convert_to_tensor
from dlbridge.graph.functions.basic import group, no_op
from dlbridge.graph.graph import Graph, get_default_graph
from dlbridge.graph.operation import Operation
from dlbridge.graph.tensor import Tensor
from dlbridge.proto.datatypes import DataType, as_dtype
from dlbridge.shape import TensorShape, as_shape

__all__ = [
    "Variable",
    "assign",
    "assign_add",
    "assign_sub",
    "global_variables",
    "global_variables_initializer",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "report_uninitialized_variables",
    "scatter_add",
    "scatter_sub",
    "scatter_update",
    "trainable_variables",
    "variables_initializer",
]


class Variable:
    """A tensor whose value stays in a session from one run to the next.

    Args:
        initial_value: what `constant` takes, a Tensor, or a function without arguments that
            returns one of them; its static shape becomes the variable's.
        trainable: whether it is added to `trainable_variables()`.
        collections: keys of the collections that it is added to, `GLOBAL_VARIABLES` by default.
        validate_shape: False allows an initial value of unknown shape, and later ones of others.
        name: of the handle's operation, "Variable" by default.
        dtype: to convert the initial value to.
        shape: the static shape, where it is less than that of the initial value.

    Attributes:
        op: the operation of the handle.
        handle: its Tensor, of dtype resource.
        initializer: the operation that assigns the initial value.
        initial_value: the Tensor assigned.

    Raises:
        ValueError: no initial value, or one of unknown shape with `validate_shape`.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     count = tf.Variable(0, name="count")
        ...     session.run(count.initializer)
        ...     session.run(count.assign_add(2)).item()
        2
    """

    __array_priority__ = 100

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool = True,
        collections: Iterable[str] | None = None,
        validate_shape: bool = True,
        caching_device: None = None,
        name: str | None = None,
        dtype: object = None,
        shape: object = None,
    ) -> None:
        if initial_value is None:
            raise ValueError("initial_value must be specified.")
        if caching_device is not None:
            raise ValueError("Variable: caching_device is not supported; leave it out")
        self.graph: Graph = get_default_graph()
        self.trainable = trainable
        with self.graph.control_dependencies(None):
            self._build(initial_value, validate_shape, name or "Variable", dtype, shape)
        keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(GraphKeys.TRAINABLE_VARIABLES)
        for key in keys:
            self.graph.add_to_collection(key, self)

    def _build(
        self, value: Any, validate_shape: bool, name: str, dtype: object, shape: object
    ) -> None:
        with self.graph.name_scope(name) as scope:
            with self.graph.name_scope("Initializer"):
                value = value() if callable(value) else value
                self.initial_value = convert_to_tensor(value, dtype, name="initial_value")
            self.dtype: DataType = self.initial_value.dtype.base_dtype
            self._shape = _static_shape(self.initial_value, validate_shape, shape)
            attrs = {
                "dtype": self.dtype,
                "shape": self._shape,
                "shared_name": scope[:-1].encode(),
            }
            self.handle = apply("VarHandleOp", (), attrs, scope).outputs[0]
            self.op: Operation = self.handle.op
            with self.graph.name_scope("IsInitialized"):
                self._is_initialized = apply("VarIsInitializedOp", (self.handle,)).outputs[0]
            inputs = (self.handle, self.initial_value)
            self.initializer = apply("AssignVariableOp", inputs, {}, "Assign")
            with self.graph.name_scope("Read"):
                self._snapshot = self._read()

    def _read(self, name: str | None = None) -> Tensor:
        return apply("ReadVariableOp", (self.handle,), {"dtype": self.dtype}, name).outputs[0]

    # ---- what it is ----

    @property
    def name(self) -> str:
        """The name of the handle's Tensor, as in "v:0"."""
        return self.handle.name

    @property
    def shape(self) -> TensorShape:
        """The static shape."""
        return self._shape

    @property
    def device(self) -> str:
        """The device string of the handle's operation."""
        return self.op.device

    def get_shape(self) -> TensorShape:
        """Return the static shape."""
        return self._shape

    # ---- reading ----

    def value(self) -> Tensor:
        """Return the Tensor `v/Read/ReadVariableOp`, the value at some time in the run."""
        return self._snapshot

    def read_value(self) -> Tensor:
        """Return a new Tensor that reads the value after the control dependencies in force."""
        return self._read("read")

    def initialized_value(self) -> Tensor:
        """Return the initial value."""
        return self.initial_value

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Return a bool Tensor: whether a value was assigned in the session."""
        if name is None:
            return self._is_initialized
        return apply("VarIsInitializedOp", (self.handle,), {}, name).outputs[0]

    def eval(self, session: Any = None) -> Any:
        """Return the value in `session`, or in the default session."""
        return self._snapshot.eval(session=session)

    def _as_graph_tensor(self, dtype: DataType | None, name: str, as_ref: bool) -> Tensor:
        """Return the value, read anew, for an operation that takes the variable as an input."""
        if as_ref:
            raise TypeError(
                f"variable {self.name!r} is a resource, and a reference is required; use its "
                "methods assign, assign_add, scatter_update and so on"
            )
        inside, _, _ = name.removesuffix("/").rpartition("/")
        read = self.graph._unique(f"{inside}/ReadVariableOp" if inside else "ReadVariableOp")
        return self._read(f"{read}/")

    # ---- writing ----

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return a Tensor of the new value (an Operation if not `read_value`) that assigns first.

        Raises:
            ValueError: the static shapes contradict each other.
            TypeError: the dtype differs.
        """
        return self._write("AssignVariableOp", value, name or "Assign", read_value)

    def assign_add(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return a Tensor of the value plus `delta`, which becomes the variable's; see `assign`."""
        return self._write("AssignAddVariableOp", delta, name or "AssignAdd", read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Return a Tensor of the value minus `delta`, which becomes the variable's; see `assign`."""
        return self._write("AssignSubVariableOp", delta, name or "AssignSub", read_value)

    def scatter_add(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Return the new value after adding `updates` to the slices at `indices`."""
        return self._scatter("ResourceScatterAdd", indices, updates, name)

    def scatter_sub(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Return the new value after subtracting `updates` from the slices at `indices`."""
        return self._scatter("ResourceScatterSub", indices, updates, name)

    def scatter_update(self, indices: Any, updates: Any, name: str | None = None) -> Tensor:
        """Return the new value after writing `updates` to the slices at `indices`."""
        return self._scatter("ResourceScatterUpdate", indices, updates, name)

    def _write(self, op_type: str, value: Any, name: str, read_value: bool) -> Any:
        tensor = convert_to_tensor(value, self.dtype, name="value")
        self._shape.assert_is_compatible_with(tensor.shape)
        op = apply(op_type, (self.handle, tensor), {}, name)
        return self._after(op) if read_value else op

    def _scatter(self, op_type: str, indices: Any, updates: Any, name: str | None) -> Tensor:
        values = convert_to_tensor(updates, self.dtype)
        return self._after(apply(op_type, (self.handle, indices, values), {}, name))

    def _after(self, op: Operation) -> Tensor:
        """Return the value read after `op`."""
        with self.graph.control_dependencies([op]):
            return self._read()

    def load(self, value: Any, session: Any = None) -> None:
        """Assign `value` in `session`, or in the default session, without a new operation."""
        from dlbridge.graph.session import current_session

        feeds = {self.initial_value: value}
        (session or current_session("Variable.load")).run(self.initializer, feeds)

    # ---- sharing ----

    def share(self, array: Any, session: Any = None) -> None:
        """Make the memory of `array` the variable's in a session: what either writes, both see.

        Assignments in the graph are written into that memory, and the next run reads what others
        wrote into it, so the state can live in a module of PyTorch or in a NumPy array.

        Args:
            array: a writable tensor of any framework, of the variable's dtype and shape.
            session: a Session; None is the default session.

        Raises:
            ArgumentError: another dtype or shape, or read-only memory.
        """
        from dlbridge.graph.session import current_session

        (session or current_session("Variable.share")).state_of(self).share(array)

    def state(self, session: Any = None, as_: str = "numpy") -> Any:
        """Return the state in a session as an array of a framework, over the same memory.

        It is valid until the next assignment in that session, and beyond if the memory was shared
        with `share`. Do not write to it unless it was.
        """
        from dlbridge.graph.session import current_session

        return (session or current_session("Variable.state")).state_of(self).read(as_)

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"

    def __iter__(self) -> Any:
        raise TypeError("'Variable' object is not iterable.")


def _static_shape(value: Tensor, validate_shape: bool, shape: object) -> TensorShape:
    if not validate_shape:
        return as_shape(shape)
    if shape is not None:
        return as_shape(shape)
    if not value.shape.is_fully_defined():
        raise ValueError(
            f"initial_value must have a shape specified: {value}; pass validate_shape=False for a "
            "variable of unknown shape"
        )
    return value.shape


# Operators of Tensor that a Variable has, too, applied to its value.
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "and", "rand", "or", "ror", "xor", "rxor",
    "lt", "le", "gt", "ge", "neg", "abs", "invert", "getitem",
)  # fmt: skip


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: Variable, *others: Any) -> Any:
        return getattr(self.value(), name)(*others)

    operator.__name__ = name
    return operator


for _operator in _OPERATORS:
    setattr(Variable, f"__{_operator}__", _delegate(f"__{_operator}__"))


# ---- all variables of a graph ------------------------------------------------------------------


def global_variables(scope: str | None = None) -> list[Variable]:
    """Return the default graph's variables, those whose names match `scope` if it is given."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `LOCAL_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables that are to be trained; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def variables_initializer(variables: Sequence[Variable], name: str = "init") -> Operation:
    """Return an operation that runs the initializers of `variables`."""
    if not variables:
        return no_op(name)
    return group(*[each.initializer for each in variables], name=name)


def global_variables_initializer() -> Operation:
    """Return an operation that initialises every variable made so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Return an operation that initialises the variables in `LOCAL_VARIABLES`."""
    return variables_initializer(local_variables())


def is_variable_initialized(variable: Variable) -> Tensor:
    """Return a bool Tensor: whether `variable` has a value in the session."""
    return variable.is_initialized()


def report_uninitialized_variables(
    variables: Sequence[Variable] | None = None, session: Any = None
) -> list[str]:
    """Return the names of the variables that have no value in a session yet.

    Unlike TensorFlow's function of that name this asks the session at once.
    """
    from dlbridge.graph.session import current_session

    asked = [*global_variables(), *local_variables()] if variables is None else list(variables)
    running = session or current_session("report_uninitialized_variables")
    known = running.run([each.is_initialized() for each in asked])
    return [each.op.name for each, is_known in zip(asked, known, strict=True) if not is_known]


# ---- functions of TensorFlow 1.x ---------------------------------------------------------------


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool = True,
    use_locking: bool = False,
    name: str | None = None,
) -> Tensor:
    """Return a Tensor of `value`, which becomes that of the variable `ref`."""
    return ref.assign(value, name=name)  # type: ignore[no-any-return]


def assign_add(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Return a Tensor of the sum, which becomes the value of the variable `ref`."""
    return ref.assign_add(value, name=name)  # type: ignore[no-any-return]


def assign_sub(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Tensor:
    """Return a Tensor of the difference, which becomes the value of the variable `ref`."""
    return ref.assign_sub(value, name=name)  # type: ignore[no-any-return]


def scatter_add(ref: Variable, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """Return the new value of `ref` after adding `updates` to the slices at `indices`."""
    return ref.scatter_add(indices, updates, name)


def scatter_sub(ref: Variable, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """Return the new value of `ref` after subtracting `updates` from the slices at `indices`."""
    return ref.scatter_sub(indices, updates, name)


def scatter_update(ref: Variable, indices: Any, updates: Any, name: str | None = None) -> Tensor:
    """Return the new value of `ref` after writing `updates` to the slices at `indices`."""
    return ref.scatter_update(indices, updates, name)

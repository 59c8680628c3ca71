"""Variable: a tensor whose value a session keeps from one run to the next.

A variable is a handle (`VarHandleOp`) to state of which each session has its own, with operations
named as TensorFlow's resource variables have them: `v`, `v/Initializer/initial_value`, `v/Assign`,
`v/IsInitialized/VarIsInitializedOp`, `v/Read/ReadVariableOp`. Graphs with the older reference
variables (`VariableV2`) can be imported and run as well; new ones are never made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, NoReturn

import numpy as np

from dlbridge.errors import ArgumentError, UnsupportedTypeError
from dlbridge.graph.core.default_graph import (
    GraphKeys,
    apply,
    constant,
    convert_to_tensor,
    get_default_graph,
)
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Operation, OperatorNotAllowedInGraphError, Tensor
from dlbridge.graph.core.scopes import Session, chosen_session
from dlbridge.graph.ops.basic import group, no_op
from dlbridge.graph.ops.indexing import boolean_mask
from dlbridge.graph.ops.joining import stack
from dlbridge.graph.ops.logic import logical_not
from dlbridge.graph.ops.shared import as_list
from dlbridge.graph.ops.sparse_tensor import IndexedSlices
from dlbridge.graph.session import feeds
from dlbridge.proto.datatypes import DataType, string
from dlbridge.shape import TensorShape, as_shape

__all__ = [
    "Variable",
    "all_variables",
    "assign",
    "assign_add",
    "assign_sub",
    "global_variables",
    "global_variables_initializer",
    "initialize_all_variables",
    "is_variable_initialized",
    "local_variables",
    "local_variables_initializer",
    "model_variables",
    "report_uninitialized_variables",
    "scatter_add",
    "scatter_nd_update",
    "scatter_sub",
    "scatter_update",
    "trainable_variables",
    "variables_initializer",
]


@dataclass(frozen=True, slots=True)
class SaveSliceInfo:
    """Where the partition of a partitioned variable lies; initializers get it as `partition_info`.

    Attributes:
        full_name: the name of the whole variable.
        full_shape: its shape.
        var_offset: the first index of the partition along each axis.
        var_shape: the shape of the partition.
    """

    full_name: str
    full_shape: list[int]
    var_offset: list[int]
    var_shape: list[int]


class Variable:
    """A tensor whose value a session keeps from one run to the next.

    Operators and functions read the current value, after the control dependencies in force where
    they are called. `Session.run` takes it as a fetch, and as a feed: every read in that run has
    the value that was fed.

    Args:
        initial_value: what `constant` takes, a Tensor, or a function without arguments that
            returns one of them; its static shape becomes the variable's.
        trainable: whether it is added to `trainable_variables()`.
        collections: keys of the collections that it is added to, `GLOBAL_VARIABLES` by default.
        validate_shape: False allows an initial value of unknown shape, and later ones of others.
        name: of the handle's operation, "Variable" by default.
        dtype: what the initial value is converted to.
        use_resource: without effect: there is one kind of variable.
        shape: the static shape, if it is less specific than that of the initial value.
        constraint: a function of a value that optimizers apply after their updates; it is kept.
        caching_device: without effect: reads share the memory of a variable.
        variable_def, expected_shape, import_scope: not supported.

    Attributes:
        op: the operation of the handle.
        handle: its Tensor, of dtype resource.
        initializer: the operation that assigns the initial value.
        initial_value: the Tensor assigned.
        dtype: the DataType of the values.
        trainable, constraint: as given.
        graph: the Graph that it belongs to.

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

    __array_priority__ = 100  # so that ndarray + variable asks variable.__radd__
    __array_ufunc__ = None

    _save_slice_info: SaveSliceInfo | None = None

    def __init__(
        self,
        initial_value: Any = None,
        trainable: bool = True,
        collections: Iterable[str] | None = None,
        validate_shape: bool = True,
        caching_device: Any = None,
        name: str | None = None,
        variable_def: None = None,
        dtype: object = None,
        expected_shape: None = None,
        import_scope: None = None,
        constraint: Callable[[Any], Any] | None = None,
        use_resource: bool | None = None,
        shape: object = None,
    ) -> None:
        refuse(
            "Variable",
            variable_def=variable_def,
            expected_shape=expected_shape,
            import_scope=import_scope,
        )
        if constraint is not None and not callable(constraint):
            raise ArgumentError("The `constraint` argument must be a callable.")
        if initial_value is None:
            raise ArgumentError("Variable: initial_value must be specified.")
        self.graph: Graph = get_default_graph()
        self.trainable = trainable
        self.constraint = constraint
        with self.graph.control_dependencies(None):
            self._build(initial_value, validate_shape, name or "Variable", dtype, shape)
        keys = [GraphKeys.GLOBAL_VARIABLES] if collections is None else list(collections)
        if trainable and GraphKeys.TRAINABLE_VARIABLES not in keys:
            keys.append(GraphKeys.TRAINABLE_VARIABLES)
        self.graph.add_to_collections(keys, self)

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
                apply("VarIsInitializedOp", (self.handle,))
            inputs = (self.handle, self.initial_value)
            self.initializer = apply("AssignVariableOp", inputs, {}, "Assign")
            with self.graph.name_scope("Read"):
                self._snapshot = self._read()

    def _read(self, name: str | None = None) -> Tensor:
        """Return a new Tensor of the value, in the current scope."""
        with self._after():
            inputs, attrs = (self.handle,), {"dtype": self.dtype}
            return apply("ReadVariableOp", inputs, attrs, name).outputs[0]

    def _after(self) -> AbstractContextManager[Any]:
        """Return a block whose operations see this state of the variable."""
        return nullcontext()

    # ---- properties ----

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

    def _get_save_slice_info(self) -> SaveSliceInfo | None:
        """Return where it lies in a partitioned variable; None if it is no partition of one."""
        return self._save_slice_info

    # ---- reading ----

    def value(self) -> Tensor:
        """Return a new Tensor that reads the value after the control dependencies in force."""
        return self._read()

    def read_value(self) -> Tensor:
        """Return `value` as TensorFlow builds it: an Identity of the read."""
        with self.graph.name_scope("Read"):
            value = self._read()
        return apply("Identity", (value,)).outputs[0]

    def initialized_value(self) -> Tensor:
        """Return the initial value."""
        return self.initial_value

    def is_initialized(self, name: str | None = None) -> Tensor:
        """Return a bool Tensor: whether a value was assigned in the session."""
        return apply("VarIsInitializedOp", (self.handle,), {}, name).outputs[0]

    def sparse_read(self, indices: Any, name: str | None = None) -> Tensor:
        """Return the slices at `indices` of the first axis, without a copy of the whole value.

        Raises:
            InvalidArgumentError: when run, an index is out of range.
        """
        with self._after():
            attrs = {"dtype": self.dtype}
            inputs = (self.handle, indices)
            return apply("ResourceGather", inputs, attrs, name or "Gather").outputs[0]

    def eval(self, session: Session | None = None) -> Any:
        """Return the value in `session`, or in the default session."""
        return self._snapshot.eval(session=session)

    def _as_graph_element(self) -> Tensor:
        """Return the Tensor that is fetched for the variable."""
        return self._snapshot

    def _as_graph_operation(self) -> Operation:
        """Return the operation that a control dependency on the variable waits for: the handle."""
        return self.op

    def _as_graph_tensor(
        self, dtype: DataType | None = None, name: str = "", as_ref: bool = False
    ) -> Tensor:
        """Return a new read of the value for an operation that takes the variable as an input."""
        if as_ref:
            raise TypeError(
                f"variable {self.name!r} is a resource, and a reference is required; use its "
                "methods assign, assign_add, scatter_update and so on"
            )
        if not name:
            return self._read()
        inside, _, _ = name.removesuffix("/").rpartition("/")
        read = self.graph._unique(f"{inside}/ReadVariableOp" if inside else "ReadVariableOp")
        return self._read(f"{read}/")

    def _assigned(self, op: Operation) -> Variable:
        return Assigned(self, op)

    # ---- writing ----

    def assign(
        self,
        value: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Assign `value`, and return the variable after that.

        Args:
            value: of the variable's dtype and shape. It is copied when run.
            use_locking: without effect: changes of one variable never overlap.
            name: of the operation.
            read_value: False returns only the Operation.

        Returns:
            The variable after the assignment: fetching or using it assigns first.

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
        """Add `delta` to the value, and return the variable after that; see `assign`.

        It is atomic: no other thread changes the variable in between.
        """
        return self._change("assign_add", "AssignAddVariableOp", delta, name, read_value)

    def assign_sub(
        self,
        delta: Any,
        use_locking: bool = False,
        name: str | None = None,
        read_value: bool = True,
    ) -> Any:
        """Subtract `delta` from the value, and return the variable after that; see `assign`.

        It is atomic: no other thread changes the variable in between.
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
        """Add to slices, which may repeat, and return the variable after that.

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
        """Subtract from slices, and return the variable after that; see `scatter_add`."""
        return self._scatter("ResourceScatterSub", sparse_delta, name)

    def scatter_update(self, sparse_delta: Any, use_locking: bool = False, name: Any = None) -> Any:
        """Overwrite slices, and return the variable after that; see `scatter_add`."""
        return self._scatter("ResourceScatterUpdate", sparse_delta, name)

    def scatter_nd_update(self, indices: Any, updates: Any, name: str | None = None) -> Any:
        """Overwrite slices at vectors of indices, and return the variable; see `scatter_nd`."""
        values = (indices, convert_to_tensor(updates, self.dtype))
        return self._write("ResourceScatterNdUpdate", values, name)

    def _scatter(self, op_type: str, slices: Any, name: str | None) -> Any:
        if not isinstance(slices, IndexedSlices):
            raise TypeError(f"sparse_delta is not IndexedSlices: {slices!r}")
        return self._write(op_type, (slices.indices, slices.values), name)

    # ---- state in a session ----

    def load(self, value: Any, session: Session | None = None) -> None:
        """Assign `value` in `session`, or in the default session, without a new operation.

        Raises:
            ValueError: there is no session; another shape.
        """
        feeds = {self.initializer.inputs[1]: value}
        chosen_session(session, "Variable.load").run(self.initializer, feeds)

    def share(self, array: Any, session: Session | None = None) -> None:
        """Let the variable use the memory of `array` as its state in a session.

        Assignments in the graph write into that memory, and runs read what others wrote into it,
        so the state can live in a module of PyTorch or in a NumPy array. Within one run a value
        that was read does not change when the run assigns to the variable later.

        Args:
            array: a writable tensor of any framework, of the variable's dtype and shape.
            session: a Session; None is the default session.

        Raises:
            ArgumentError: another dtype or shape, or read-only memory such as JAX's.
            ExchangeError: the memory cannot be shared.

        Example:
            >>> import dlbridge.graph as tf
            >>> import numpy as np
            >>> weights = np.zeros(2, np.float32)
            >>> with tf.Graph().as_default(), tf.Session() as session:
            ...     v = tf.Variable([0.0, 0.0])
            ...     v.share(weights)
            ...     weights[0] = 5.0
            ...     print(session.run(v.assign_add([1.0, 1.0])), weights)
            [6. 1.] [6. 1.]
        """
        chosen_session(session, "Variable.share").state_of(self).share(array)

    def state(self, session: Session | None = None, to: str = "numpy") -> Any:
        """Return the state in a session as an array of a framework, over the same memory.

        Args:
            session: a Session; None is the default session.
            to: the framework.

        Returns:
            An array that later assignments do not change, unless the memory was given by `share`.
            NumPy's is read-only then; of the other frameworks' arrays do not write to it.

        Raises:
            FailedPreconditionError: nothing was assigned yet.
        """
        return chosen_session(session, "Variable.state").state_of(self).read(to)

    # ---- Python ----

    def __getitem__(self, item: Any) -> Tensor:
        return self._read()[item]

    def __repr__(self) -> str:
        return f"<tf.Variable '{self.name}' shape={self.shape} dtype={self.dtype.name}>"

    def __iter__(self) -> NoReturn:
        raise OperatorNotAllowedInGraphError(
            f"Iterating over the variable {self.name!r} is not allowed; use tf.unstack"
        )

    def __bool__(self) -> NoReturn:
        raise OperatorNotAllowedInGraphError(
            f"Using the variable {self.name!r} as a Python bool is not allowed: its value is known "
            "only while a session runs; compare with `is None`, or use tf.where"
        )

    def __array__(self, *args: object, **kwargs: object) -> np.ndarray:
        raise NotImplementedError(
            f"Cannot convert the variable {self.name!r} to a NumPy array: session.run(v) returns "
            "its value, v.state(session) its memory"
        )

    def __iadd__(self, other: object) -> NoReturn:
        raise RuntimeError(
            "`variable += value` is not supported: use `variable.assign_add(value)` to change it, "
            "or `total = variable + value` for a Tensor"
        )


class Assigned(Variable):
    """A variable after an operation changed it: reads wait for that operation.

    Args:
        variable: the variable that is changed.
        op: the operation that changes it.

    Attributes:
        op: the operation that changed it.
    """

    def __init__(self, variable: Variable, op: Operation) -> None:
        self.graph = variable.graph
        self.trainable = variable.trainable
        self.constraint = variable.constraint
        self.initial_value = variable.initial_value
        self.initializer = variable.initializer
        self.dtype = variable.dtype
        self.handle = variable.handle
        self.op = op
        self._shape = variable.shape
        self._snapshot = self._read()

    @property
    def name(self) -> str:
        """The name of the operation that changed it."""
        return self.op.name

    def _after(self) -> AbstractContextManager[Any]:
        return self.graph.control_dependencies([self.op])


def _feed(variable: Variable) -> feeds.Composite:
    """Return the handle, whose reads a value fed for the variable replaces."""
    return feeds.Composite((variable.handle,), lambda value: (value,))


feeds.register(Variable, _feed)


def refuse(call: str, **arguments: object) -> None:
    """Raise ArgumentError for arguments of TensorFlow that are not supported, unless None."""
    for name, value in arguments.items():
        if value is not None:
            raise ArgumentError(f"{call}: {name} is not supported; leave it out")


def _static_shape(value: Tensor, validate_shape: bool, shape: object) -> TensorShape:
    if shape is not None:
        return as_shape(shape)
    if not validate_shape:
        return as_shape(None)
    if not value.shape.is_fully_defined():
        raise ArgumentError(
            f"Variable: initial_value must have a shape specified: {value}; pass "
            "validate_shape=False for a variable of unknown shape"
        )
    return value.shape


# Operators of Tensor that a Variable has as well, applied to its value.
_OPERATORS = (
    "add", "radd", "sub", "rsub", "mul", "rmul", "truediv", "rtruediv", "floordiv", "rfloordiv",
    "mod", "rmod", "pow", "rpow", "matmul", "rmatmul", "and", "rand", "or", "ror",
    "xor", "rxor", "lt", "le", "gt", "ge", "neg", "abs", "invert",
)  # fmt: skip


def _delegate(name: str) -> Callable[..., Any]:
    def operator(self: Variable, *others: Any) -> Any:
        return getattr(self.value(), name)(*others)

    operator.__name__ = name
    operator.__doc__ = "Apply the operator to the current value."
    return operator


for _operator in _OPERATORS:
    setattr(Variable, f"__{_operator}__", _delegate(f"__{_operator}__"))


# ---- functions on variables ----------------------------------------------------------------------


def global_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables of the default graph, or those whose names match `scope`."""
    return get_default_graph().get_collection(GraphKeys.GLOBAL_VARIABLES, scope)


def local_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `LOCAL_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.LOCAL_VARIABLES, scope)


def model_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `MODEL_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.MODEL_VARIABLES, scope)


def trainable_variables(scope: str | None = None) -> list[Variable]:
    """Return the variables in the collection `TRAINABLE_VARIABLES`; see `global_variables`."""
    return get_default_graph().get_collection(GraphKeys.TRAINABLE_VARIABLES, scope)


def variables_initializer(variables: Sequence[Variable], name: str = "init") -> Operation:
    """Return an operation that runs the initializers of `variables`."""
    if not variables:
        return no_op(name)
    asked = as_list("variables", variables)
    return group(*[_its(each, "initializer", "each of variables") for each in asked], name=name)


def global_variables_initializer() -> Operation:
    """Return an operation that initializes every variable made so far."""
    return variables_initializer(global_variables())


def local_variables_initializer() -> Operation:
    """Return an operation that initializes the variables in `LOCAL_VARIABLES`."""
    return variables_initializer(local_variables())


# Their older names.
all_variables = global_variables
initialize_all_variables = global_variables_initializer


def is_variable_initialized(variable: Variable) -> Tensor:
    """Return a bool Tensor: whether `variable` has a value in the session."""
    return _its(variable, "is_initialized", "variable")()  # type: ignore[no-any-return]


def report_uninitialized_variables(
    var_list: Sequence[Variable] | None = None, name: str = "report_uninitialized_variables"
) -> Tensor:
    """Return a vector of strings: the names of the variables that have no value in the session.

    Args:
        var_list: the variables to check, by default the global and local ones.
        name: of the scope.
    """
    asked = [*global_variables(), *local_variables()] if var_list is None else list(var_list)
    graph = get_default_graph()
    with graph.name_scope(name):
        if not asked:
            return constant([], string)
        missing = logical_not(stack([each.is_initialized() for each in asked]))
        return boolean_mask(constant([each.op.name for each in asked]), missing)


# ---- functions of TensorFlow 1.x ---------------------------------------------------------------


def assign(
    ref: Variable,
    value: Any,
    validate_shape: bool = True,  # noqa: ARG001
    use_locking: bool = True,
    name: str | None = None,
) -> Any:
    """Assign `value` to the variable `ref`, and return it after that; see `Variable.assign`.

    Args:
        ref: a Variable.
        value: of its dtype and shape.
        validate_shape: without effect: a value of another shape needs a variable that was made
            with `validate_shape=False`.
        use_locking: without effect: changes of one variable never overlap.
        name: of the operation.
    """
    return _its(ref, "assign")(value, use_locking, name)


def assign_add(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Any:
    """Add `value` to the variable `ref`, and return it after that; see `Variable.assign_add`."""
    return _its(ref, "assign_add")(value, use_locking, name)


def assign_sub(
    ref: Variable, value: Any, use_locking: bool = False, name: str | None = None
) -> Any:
    """Subtract `value` from `ref`, and return it after that; see `Variable.assign_sub`."""
    return _its(ref, "assign_sub")(value, use_locking, name)


def scatter_add(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Add `updates` to the slices of `ref` at `indices`, which may repeat, and return it.

    Args:
        ref: a Variable.
        indices: integers, of any shape.
        updates: of the shape of the indices and then of the slices.
        use_locking: without effect: changes of one variable never overlap.
        name: of the operation.

    Raises:
        InvalidArgumentError: when run, an index is out of range.
    """
    return _scatter(ref, "ResourceScatterAdd", indices, updates, name)


def scatter_sub(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = False,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Subtract `updates` from the slices of `ref` at `indices`; see `scatter_add`."""
    return _scatter(ref, "ResourceScatterSub", indices, updates, name)


def scatter_update(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Overwrite the slices of `ref` at `indices` with `updates`; see `scatter_add`."""
    return _scatter(ref, "ResourceScatterUpdate", indices, updates, name)


def scatter_nd_update(
    ref: Variable,
    indices: Any,
    updates: Any,
    use_locking: bool = True,  # noqa: ARG001
    name: str | None = None,
) -> Any:
    """Overwrite slices of `ref` at vectors of indices; see `scatter_nd`."""
    return _scatter(ref, "ResourceScatterNdUpdate", indices, updates, name)


def _scatter(
    ref: Variable,
    op_type: str,
    indices: Any,
    updates: Any,
    name: str | None,
) -> Any:
    write = _its(ref, "_write")
    return write(op_type, (indices, convert_to_tensor(updates, ref.dtype)), name)


def _its(variable: Any, attribute: str, argument: str = "ref") -> Any:
    """Return an attribute of a Variable; what has none is refused."""
    found = getattr(variable, attribute, None)
    if found is None:
        raise UnsupportedTypeError(
            f"{argument} must be a Variable, got {variable!r} of type {type(variable).__name__}"
        )
    return found

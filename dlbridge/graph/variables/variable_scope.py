"""variable_scope and get_variable: variables that are shared by name."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Iterator, Mapping
from contextlib import contextmanager
from enum import Enum
from functools import partial
from inspect import signature
from typing import Any, TypeVar

from dlbridge.graph.core.default_graph import GraphKeys, convert_to_tensor, get_default_graph
from dlbridge.graph.core.graph import Graph
from dlbridge.graph.core.operation import Tensor
from dlbridge.graph.ops.slicing import slice as slice_of
from dlbridge.graph.variables.initializers import (
    Initializer,
    glorot_uniform_initializer,
    zeros_initializer,
)
from dlbridge.graph.variables.partitioned import (
    PartitionedVariable,
    Partitioner,
    ask_partitioner,
    slices,
)
from dlbridge.graph.variables.variable import SaveSliceInfo, Variable
from dlbridge.proto.datatypes import as_dtype, float32
from dlbridge.shape import as_shape
from dlbridge.signals import not_from_handler

__all__ = [
    "AUTO_REUSE",
    "VariableScope",
    "get_local_variable",
    "get_variable",
    "get_variable_scope",
    "variable_scope",
]


class Reuse(Enum):
    """The third value of `reuse`, besides True and False."""

    AUTO_REUSE = 1


AUTO_REUSE = Reuse.AUTO_REUSE
"""Reuse the variable of a name if there is one, else create it."""


Getter = Callable[..., Any]
"""Called as `getter(getter=…, name=…, shape=…, …)`: the next getter, and what it takes."""


class VariableScope:
    """The settings of `get_variable`: a prefix of names, reuse, and defaults.

    Attributes:
        name: the prefix, without a trailing slash.
        reuse: False: variables must be new; True: they must exist; AUTO_REUSE: either.
        initializer, regularizer, dtype, caching_device, partitioner, custom_getter, constraint: the
            defaults of variables; see `get_variable`.
        original_name_scope: the name scope that it opened, with a trailing slash.
    """

    def __init__(
        self,
        reuse: bool | Reuse = False,
        name: str = "",
        initializer: Initializer | None = None,
        regularizer: Callable[..., Any] | None = None,
        dtype: object = float32,
        original_name_scope: str = "",
        caching_device: Any = None,
        custom_getter: Getter | None = None,
        constraint: Callable[[Any], Any] | None = None,
        partitioner: Partitioner | None = None,
    ) -> None:
        self.name = name
        self.reuse = reuse
        self.initializer = initializer
        self.regularizer = regularizer
        self.dtype = dtype
        self.original_name_scope = original_name_scope
        self.caching_device = caching_device
        self.custom_getter = custom_getter
        self.constraint = constraint
        self.partitioner = partitioner

    def reuse_variables(self) -> None:
        """Require variables to exist from now on."""
        self.reuse = True

    def set_initializer(self, initializer: Initializer) -> None:
        """Set the default initializer of variables."""
        self.initializer = initializer

    def set_regularizer(self, regularizer: Any) -> None:
        """Set the default regularizer of variables."""
        self.regularizer = regularizer

    def set_caching_device(self, caching_device: Any) -> None:
        """Set the default caching device of variables, which is without effect."""
        self.caching_device = caching_device

    def set_partitioner(self, partitioner: Partitioner | None) -> None:
        """Set the default partitioner of variables."""
        self.partitioner = partitioner

    def set_use_resource(self, use_resource: bool) -> None:
        """Do nothing: there is one kind of variable."""

    def set_custom_getter(self, custom_getter: Getter | None) -> None:
        """Set the default custom getter of variables."""
        self.custom_getter = custom_getter

    def set_dtype(self, dtype: object) -> None:
        """Set the default dtype of variables."""
        self.dtype = dtype

    def get_collection(self, name: Any) -> list[Any]:
        """Return the items of a collection of the default graph that are in this scope."""
        return get_default_graph().get_collection(name, f"{self.name}/" if self.name else None)

    def global_variables(self) -> list[Variable]:
        """Return the global variables in this scope."""
        return self.get_collection(GraphKeys.GLOBAL_VARIABLES)

    def local_variables(self) -> list[Variable]:
        """Return the local variables in this scope."""
        return self.get_collection(GraphKeys.LOCAL_VARIABLES)

    def trainable_variables(self) -> list[Variable]:
        """Return the trainable variables in this scope."""
        return self.get_collection(GraphKeys.TRAINABLE_VARIABLES)


class _Scopes:
    """The variable scopes of one thread in one graph.

    Attributes:
        current: the scope in force.
        opened: full name -> how often a scope of that name was opened.
    """

    def __init__(self) -> None:
        self.current = VariableScope()
        self.opened: dict[str, int] = {}

    def unique(self, default: str) -> str:
        """Return a name under the current scope that no scope was opened with."""
        full = join(self.current.name, default)
        if not self.opened.get(full):
            return default
        number = 1
        while self.opened.get(f"{full}_{number}"):
            number += 1
        return f"{default}_{number}"

    def leave(self, name: str) -> None:
        """Reset the counts of scopes below one, whose names may be opened again."""
        for each in self.opened:
            if each.startswith(f"{name}/"):
                self.opened[each] = 0


def _scopes(graph: Graph) -> _Scopes:
    """Return the scopes of this thread."""
    local: Any = graph._scopes
    found: _Scopes | None = getattr(local, "variable_scopes", None)
    if found is None:
        found = local.variable_scopes = _Scopes()
    return found


def join(prefix: str, name: str) -> str:
    """Return the full name of `name` under a prefix."""
    return f"{prefix}/{name}" if prefix and name else prefix or name


def get_variable_scope() -> VariableScope:
    """Return the variable scope in force in this thread and graph."""
    return _scopes(get_default_graph()).current


@contextmanager
def variable_scope(
    name_or_scope: str | VariableScope | None,
    default_name: str | None = None,
    values: Any = None,  # noqa: ARG001
    initializer: Initializer | None = None,
    regularizer: Callable[..., Any] | None = None,
    caching_device: Any = None,
    partitioner: Partitioner | None = None,
    custom_getter: Getter | None = None,
    reuse: bool | Reuse | None = None,
    dtype: object = None,
    use_resource: bool | None = None,  # noqa: ARG001
    constraint: Callable[[Any], Any] | None = None,
    auxiliary_name_scope: bool = True,
) -> Iterator[VariableScope]:
    """Prefix the names of `get_variable`, and open the name scope of that name.

    Args:
        name_or_scope: added to the prefix; a VariableScope replaces it; None takes a new one made
            from `default_name`.
        default_name: made unique among the scopes opened here.
        values: without effect.
        initializer: the default of variables in the scope.
        regularizer: the default of variables in the scope.
        caching_device: without effect: reads share the memory of a variable.
        partitioner: the default of variables in the scope.
        custom_getter: called in place of `get_variable` for variables in the scope, around the
            getter of the outer scope.
        reuse: True or AUTO_REUSE; None and False inherit it.
        dtype: the default of variables in the scope.
        use_resource: without effect: there is one kind of variable.
        constraint: the default of variables in the scope, but not in scopes inside of it.
        auxiliary_name_scope: whether the name scope is opened.

    Raises:
        TypeError: no name at all.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default():
        ...     with tf.variable_scope("layer"):
        ...         first = tf.get_variable("w", [2, 3])
        ...     with tf.variable_scope("layer", reuse=True):
        ...         print(tf.get_variable("w") is first, first.name)
        True layer/w:0
    """
    graph = get_default_graph()
    scopes = _scopes(graph)
    base, name, leaf = _enter(scopes, name_or_scope, default_name)
    scope = VariableScope(
        reuse or base.reuse,
        name,
        base.initializer if initializer is None else initializer,
        base.regularizer if regularizer is None else regularizer,
        base.dtype if dtype is None else dtype,
        _original_name_scope(graph, name_or_scope),
        base.caching_device if caching_device is None else caching_device,
        _wrapped(custom_getter, base.custom_getter),
        constraint,
        base.partitioner if partitioner is None else partitioner,
    )
    again = isinstance(name_or_scope, VariableScope)
    with _current(scopes, scope, again):
        if not (auxiliary_name_scope and leaf):
            yield scope
            return
        with graph.name_scope(leaf) as full:
            if not again:
                scope.original_name_scope = full
            yield scope


def _wrapped(getter: Getter | None, outer: Getter | None) -> Getter | None:
    """Return a custom getter inside of that of the outer scope: it is called first."""
    if getter is None or outer is None:
        return getter or outer
    inner, around = getter, outer

    def wrapped(getter: Getter, *args: Any, **kwargs: Any) -> Any:
        return inner(partial(around, getter), *args, **kwargs)

    return wrapped


@contextmanager
def _current(scopes: _Scopes, scope: VariableScope, again: bool) -> Iterator[None]:
    """Make a scope the one in force; `again` if it was opened before."""
    outer, opened = scopes.current, dict(scopes.opened)

    def restore() -> None:
        scopes.current = outer
        if again:
            scopes.opened = opened
        else:
            scopes.leave(scope.name)

    try:
        try:
            scopes.current = scope
            scopes.opened[scope.name] = scopes.opened.get(scope.name, 0) + 1
            yield
        finally:
            restore()
    finally:  # once more, for an interrupt of the first time
        restore()


def _original_name_scope(graph: Graph, asked: object) -> str:
    """Return the name scope of a scope that opens none: its own, or the one in force."""
    if isinstance(asked, VariableScope):
        return asked.original_name_scope
    name = graph.get_name_scope()
    return f"{name}/" if name else ""


def _enter(
    scopes: _Scopes, asked: str | VariableScope | None, default: str | None
) -> tuple[VariableScope, str, str]:
    """Return the scope that gives the defaults, the prefix, and the name of the name scope."""
    if isinstance(asked, VariableScope):
        return asked, asked.name, asked.name.rpartition("/")[2]
    if asked is None:
        if default is None:
            raise TypeError("variable_scope: name_or_scope is required, or default_name")
        asked = scopes.unique(default)
    return scopes.current, join(scopes.current.name, asked), asked


# ---- get_variable ------------------------------------------------------------------------------


def _store(graph: Graph) -> dict[str, Variable | PartitionedVariable]:
    """Return the variables made by `get_variable`, by name; partitioned ones and their parts."""
    found = graph.get_collection_ref(("variable store",))
    if not found:
        found.append({})
    variables: dict[str, Variable | PartitionedVariable] = found[0]
    return variables


def get_variable(
    name: str,
    shape: object = None,
    dtype: object = None,
    initializer: Any = None,
    regularizer: Callable[..., Any] | None = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    caching_device: Any = None,
    partitioner: Partitioner | None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    custom_getter: Getter | None = None,
    constraint: Callable[[Any], Any] | None = None,
) -> Any:
    """Return the variable of a name in the variable scope, a new or an existing one.

    Args:
        name: under the prefix of the scope.
        shape: of a new variable; must be left out if `initializer` is a value, or a function
            without arguments.
        dtype: of a new variable; None is that of a value, else the scope's, float32.
        initializer: a function of shape and dtype, a value, or a function without arguments that
            returns one; None is the scope's, else `glorot_uniform_initializer` for floating dtypes,
            zeros for others.
        regularizer: a function of the variable; its result, unless None, is added to the
            collection `REGULARIZATION_LOSSES`. None is the scope's.
        trainable: as for `Variable`.
        collections: as for `Variable`.
        caching_device: without effect: reads share the memory of a variable.
        partitioner: a function of shape and dtype that returns the number of partitions along each
            axis, such as `fixed_size_partitioner`; with one, the variable is a PartitionedVariable
            with the variables "name/part_0", "name/part_1" and so on, unless it is a scalar. A
            value as the initializer is split; a function is called for each partition, and gets
            a `partition_info` that says where it lies if it has a parameter of that name.
            None is the scope's.
        validate_shape: as for `Variable`.
        use_resource: without effect: there is one kind of variable.
        custom_getter: called with `getter`, which makes the variable or calls the next custom
            getter, and with the other arguments, by name; its result is returned. `name` is the
            full one. None is the scope's.
        constraint: as for `Variable`; None is the scope's.

    Returns:
        A Variable, or a PartitionedVariable.

    Raises:
        ValueError: the variable exists and the scope does not reuse, or the reverse; the shape,
            dtype or partitions differ from those of the existing one; no shape; what the
            partitioner returns does not fit the shape.

    Example:
        >>> import dlbridge.graph as tf
        >>> def halved(getter, name, *args, **kwargs):
        ...     return getter(name, *args, **kwargs) / 2
        >>> with tf.Graph().as_default(), tf.Session() as session:
        ...     half = tf.get_variable("w", initializer=lambda: [3.0], custom_getter=halved)
        ...     session.run(tf.global_variables_initializer())
        ...     session.run(half)
        array([1.5], dtype=float32)
    """
    scope = get_variable_scope()
    full = join(scope.name, name)
    getter = scope.custom_getter if custom_getter is None else custom_getter
    partitioner = scope.partitioner if partitioner is None else partitioner
    if getter is None and partitioner is None and full in _store(get_default_graph()):
        return _get(full, shape, dtype, reuse=scope.reuse)
    initializer = scope.initializer if initializer is None else initializer
    if dtype is None and (partitioner is not None or not _has_own_dtype(initializer, shape)):
        dtype = as_dtype(scope.dtype)
    settings = {
        "shape": shape,
        "dtype": dtype,
        "initializer": initializer,
        "regularizer": scope.regularizer if regularizer is None else regularizer,
        "reuse": scope.reuse,
        "trainable": trainable,
        "collections": collections,
        "caching_device": scope.caching_device if caching_device is None else caching_device,
        "partitioner": partitioner,
        "validate_shape": validate_shape,
        "use_resource": use_resource,
        "constraint": constraint or scope.constraint,
        "synchronization": None,
        "aggregation": None,
    }
    if getter is not None and not callable(getter):
        raise ValueError(f"Passed a custom_getter which is not callable: {getter!r}")
    with get_default_graph().name_scope(None):
        if getter is None:
            return _get(full, **settings)
        return getter(getter=_get, name=full, **settings)


def _get(
    name: str,
    shape: object = None,
    dtype: object = float32,
    initializer: Any = None,
    regularizer: Callable[..., Any] | None = None,
    reuse: bool | Reuse | None = None,
    trainable: bool = True,
    collections: Iterable[str] | None = None,
    caching_device: Any = None,
    partitioner: Partitioner | None = None,
    validate_shape: bool = True,
    use_resource: bool | None = None,
    constraint: Callable[[Any], Any] | None = None,
    synchronization: None = None,  # noqa: ARG001
    aggregation: None = None,  # noqa: ARG001
) -> Variable | PartitionedVariable:
    """Return the variable of a full name: the innermost getter, with TensorFlow's arguments."""
    make = partial(
        _get_single,
        regularizer=regularizer,
        reuse=reuse,
        trainable=trainable,
        collections=collections,
        caching_device=caching_device,
        validate_shape=validate_shape,
        use_resource=use_resource,
        constraint=constraint,
    )
    if partitioner is not None and not (isinstance(shape, list | tuple) and not shape):
        return _get_partitioned(name, shape, dtype, initializer, reuse, partitioner, make)
    store = _store(get_default_graph())
    known = store.get(name)
    if isinstance(known, PartitionedVariable) and reuse is True:
        return _reused(known, name, reuse, shape, dtype)
    if f"{name}/part_0" in store:
        raise ValueError(
            "No partitioner was provided, but a partitioned version of the variable was found: "
            f"{name}/part_0. Perhaps a variable of the same name was already created with "
            "partitioning?"
        )
    return make(name, shape, dtype, initializer)


def _get_single(
    name: str,
    shape: object,
    dtype: object,
    initializer: Any,
    part: SaveSliceInfo | None = None,
    *,
    regularizer: Any,
    reuse: bool | Reuse | None,
    trainable: bool,
    collections: Iterable[str] | None,
    caching_device: Any,
    validate_shape: bool,
    use_resource: bool | None,
    constraint: Callable[[Any], Any] | None,
) -> Variable:
    """Return the variable of a full name that is not partitioned, or is the partition `part`."""
    store = _store(get_default_graph())
    known = store.get(name)
    if isinstance(known, Variable):
        return _reused(known, name, reuse, shape, dtype)
    if reuse is True:
        raise ValueError(
            f"Variable {name} does not exist, or was not created with tf.get_variable(). Did you "
            "mean to set reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    start, kind = _initial(name, shape, dtype, initializer, part)
    variable = Variable(
        start,
        trainable,
        collections,
        validate_shape,
        caching_device,
        name,
        dtype=kind,
        constraint=constraint,
        use_resource=use_resource,
    )
    store[name] = variable
    _regularize(variable, name, regularizer)
    return variable


def _get_partitioned(
    name: str,
    shape: object,
    dtype: object,
    initializer: Any,
    reuse: bool | Reuse | None,
    partitioner: Partitioner,
    make: Callable[..., Variable],
) -> PartitionedVariable:
    """Return the partitioned variable of a full name; `make` gets or makes a partition."""
    if not callable(partitioner):
        raise ValueError(f"Partitioner must be callable, but received: {partitioner}")
    graph = get_default_graph()
    store = _store(graph)
    known = store.get(name)
    if isinstance(known, Variable):
        raise ValueError(
            "A partitioner was provided, but an unpartitioned version of the variable was found: "
            f"{name}. Perhaps a variable of the same name was already created without "
            "partitioning?"
        )
    whole, kind = as_shape(shape), as_dtype(dtype)
    if isinstance(initializer, Tensor):
        whole, kind = whole.merge_with(initializer.shape), initializer.dtype.base_dtype
    partitions = ask_partitioner(partitioner, whole, kind)
    if known is not None:
        known = _reused(known, name, reuse, whole, kind)
        if partitions != known.partitions:
            raise ValueError(
                f"Trying to reuse partitioned variable {name}, but specified partitions "
                f"{partitions} and found partitions {known.partitions}."
            )
        return known
    if reuse is True:
        raise ValueError(
            f"PartitionedVariable {name} does not exist, or was not created with "
            "tf.get_variable(). Did you mean to set reuse=False or reuse=tf.AUTO_REUSE in the "
            "variable_scope?"
        )
    places = [*slices(name, whole, partitions)]
    _check_parts(store, name, len(places))
    parts = []
    for i, place in enumerate(places):
        part = f"{name}/part_{i}"
        start = initializer
        if initializer is not None and not callable(initializer):
            with graph.name_scope(f"{part}/PartitionedInitializer"):
                value = convert_to_tensor(initializer, kind)
                start = slice_of(value, place.var_offset, place.var_shape)
        shape = place.var_shape if callable(start) or start is None else None
        variable = make(part, shape, kind, start, place)
        variable._save_slice_info = place
        parts.append(variable)
    store[name] = made = PartitionedVariable(name, whole, kind, parts, partitions)
    return made


def _check_parts(store: Mapping[str, Any], name: str, count: int) -> None:
    """Raise ValueError where partitions exist, and not as many as there are to be."""
    if f"{name}/part_0" not in store:
        return
    missing, extra = f"{name}/part_{count - 1}", f"{name}/part_{count}"
    if missing not in store or extra in store:
        what = f"{missing} was not" if missing not in store else f"so was the extra shard {extra}"
        raise ValueError(
            "Partitioner returned a different partitioning than what was already found. "
            f"Partitioner returned {count} shards, and shard {name}/part_0 was found, but {what}."
        )


def _regularize(variable: Variable, name: str, regularizer: Any) -> None:
    """Add the loss of a regularizer to its collection."""
    if regularizer is not None:
        with variable.graph.name_scope(f"{name}/Regularizer/"):
            loss = regularizer(variable)
        if loss is not None:
            variable.graph.add_to_collection(GraphKeys.REGULARIZATION_LOSSES, loss)


_Known = TypeVar("_Known", Variable, PartitionedVariable)


def _reused(
    known: _Known, name: str, reuse: bool | Reuse | None, shape: object, dtype: object
) -> _Known:
    if reuse is False:
        raise ValueError(
            f"Variable {name} already exists, disallowed. Did you mean to set reuse=True or "
            "reuse=tf.AUTO_REUSE in the variable_scope?"
        )
    if shape is not None and not known.shape.is_compatible_with(as_shape(shape)):
        raise ValueError(
            f"Trying to share variable {name}, but specified shape {as_shape(shape)} and found "
            f"shape {known.shape}."
        )
    if dtype is not None and as_dtype(dtype) is not known.dtype:
        raise ValueError(
            f"Trying to share variable {name}, but specified dtype {as_dtype(dtype).name} and "
            f"found dtype {known.dtype.name}."
        )
    return known


def _initial(
    name: str, shape: object, dtype: object, initializer: Any, part: SaveSliceInfo | None
) -> tuple[Any, object]:
    """Return the initial value, or a function that makes it, and its dtype or None for its own."""
    if _has_own_dtype(initializer, shape):
        if shape is not None:
            raise ValueError("If initializer is a constant, do not specify shape.")
        return initializer, dtype
    kind = as_dtype(float32 if dtype is None else dtype)
    if shape is None or not as_shape(shape).is_fully_defined():
        raise ValueError(
            f"Shape of a new variable ({name}) must be fully defined, but instead was {shape}."
        )
    if initializer is None:
        initializer = glorot_uniform_initializer if kind.is_floating else zeros_initializer
    if isinstance(initializer, type) or initializer is glorot_uniform_initializer:
        initializer = initializer()  # tf.zeros_initializer itself, not called
    given = {"partition_info": part} if "partition_info" in _parameters(initializer) else {}

    def make() -> Any:
        return initializer(shape, dtype=kind, **given)

    return make, kind


def _parameters(function: Callable[..., Any]) -> Container[str]:
    """Return the names of the parameters of a function; none if it does not say."""
    try:
        return signature(function).parameters
    except not_from_handler(TypeError, ValueError):
        return ()


def _has_own_dtype(initializer: Any, shape: object) -> bool:
    """Return whether an initializer is a value, or a function without arguments that makes one."""
    if initializer is None or not callable(initializer):
        return initializer is not None
    if shape is not None or isinstance(initializer, type):
        return False
    try:
        signature(initializer).bind()
    except not_from_handler(TypeError, ValueError):  # it takes arguments, or does not say
        return False
    return True


def get_local_variable(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return `get_variable` of a local variable: not trainable, in `LOCAL_VARIABLES` only."""
    kwargs.setdefault("collections", [GraphKeys.LOCAL_VARIABLES])
    return get_variable(name, *args, **{**kwargs, "trainable": False})

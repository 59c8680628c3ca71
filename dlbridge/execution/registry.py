"""The kernels of operations: how each op type is computed in a framework.

A kernel is a factory: called once for each node of a plan, with the Node and the Context of its
framework, it returns the function that is called with the input values in each run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple, Protocol, TypeVar

import numpy as np

from dlbridge import registry
from dlbridge.execution.backend import backend, namespace
from dlbridge.execution.errors import UnimplementedError
from dlbridge.proto.datatypes import DataType


class Output(Protocol):
    """One result of a node, the end of an edge."""

    @property
    def op(self) -> Any:
        """The Node whose result this is."""

    @property
    def value_index(self) -> int:
        """Its position among the node's results."""

    @property
    def dtype(self) -> DataType:
        """Its DataType."""


class Node(Protocol):
    """One operation as the back end sees it; `dlbridge.graph.Operation` is one.

    Attributes:
        id: its number in order of creation, dense from 0.
        name: unique in its graph.
        type: the name of its OpDef, which chooses the kernel.
        attrs: decoded values, defaults filled in; see `dlbridge.proto.attributes`.
        inputs: the edges in, in order.
        outputs: its results, the start of the edges out.
        control_inputs: nodes that must run before.
        output_types: a DataType for each result.
        stateful: whether its runs differ from each other, so that none is left out or merged.
        framework: the name of the framework asked for, or None for the session's.
        device: a canonical device string, or "".
    """

    @property
    def id(self) -> int: ...
    @property
    def name(self) -> str: ...
    @property
    def type(self) -> str: ...
    @property
    def attrs(self) -> Mapping[str, Any]: ...
    @property
    def inputs(self) -> Sequence[Output]: ...
    @property
    def outputs(self) -> Sequence[Output]: ...
    @property
    def control_inputs(self) -> Sequence[Any]: ...
    @property
    def output_types(self) -> tuple[DataType, ...]: ...
    @property
    def stateful(self) -> bool: ...
    @property
    def framework(self) -> str | None: ...
    @property
    def device(self) -> str: ...


class Ends(Protocol):
    """Makes what passes values between the parts of a graph in several processes."""

    def sender(self, node: Any) -> Callable[..., Any]:
        """Return the function that sends the value of a `_Send`."""

    def receiver(self, node: Any) -> Callable[..., Any]:
        """Return the function that waits for the value of a `_Recv`, and returns it."""

    def allocated(self, steps: Sequence[Any]) -> Sequence[Any]:
        """Return the steps of a plan, which allocate what they send where it suits the sends."""

    def check(self) -> None:
        """Raise if the run has failed elsewhere, before a node takes what others could have."""

    def pause(self) -> None:
        """Let other tasks go on while a node waits for their runs; raise where they cannot."""


class Context:
    """A framework, a device and the state of a session, for the factories of kernels.

    Attributes:
        framework: its name.
        backend: what is special about it.
        xp: its array API namespace.
        checks: whether kernels look at values to refuse them: on the host, but not in a trace of
            JAX. On a device the host would have to wait for them; what TensorFlow does there is
            done.
        device: its own device object, or None for its default.
        device_name: that device as a place calls it, "GPU:1"; "" is the host.
        resources: the session's state by name, shared by all its contexts.
        seed: the graph's seed for random numbers, or None.
        ends: makes the functions of nodes that pass values to other tasks, or None.
    """

    __slots__ = (
        "_dtypes", "backend", "checks", "device", "device_name", "ends", "framework", "resources",
        "seed", "xp",
    )  # fmt: skip

    def __init__(
        self,
        framework: str,
        resources: dict[str, Any] | None = None,
        device: object = None,
        seed: int | None = None,
        device_name: str = "",
        ends: Ends | None = None,
    ) -> None:
        self.framework = framework
        self.xp = namespace(framework)
        self.backend = backend(framework)
        self.checks = self.backend.reads_values and not device_name
        self.device = device
        self.device_name = device_name
        self.resources = {} if resources is None else resources
        self.seed = seed
        self.ends = ends
        self._dtypes: dict[DataType, Any] = {}

    def dtype(self, data_type: DataType) -> Any:
        """Return the framework's dtype object."""
        found = self._dtypes.get(data_type)
        if found is None:
            found = self.backend.dtype(data_type)
            self._dtypes[data_type] = found
        return found

    def asarray(self, host: Any) -> Any:
        """Return a host NumPy array as the framework's, on its device, shared if it can be.

        Under a trace of JAX it becomes a constant.
        """
        return self.backend.asarray(np.asarray(host), self.device)


Factory = Callable[[Any, Context], Callable[..., Any]]
F = TypeVar("F", bound=Factory)


class Given:
    """A function without arguments that always returns the same object: a constant of a plan.

    Attributes:
        value: the result.
    """

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __call__(self) -> Any:
        """Return the result."""
        return self.value


class Spec(NamedTuple):
    """One kernel and its properties that a plan depends on.

    Attributes:
        factory: makes the function for one node.
        ufunc: the name of the NumPy ufunc that computes the same on NumPy arrays of its dtypes, or
            None; the plan may then run it in C. In another framework its backend says for which
            dtypes that gives the same (`Backend.is_exact`).
        only_if: tells of which nodes `ufunc` is true; None: of all.
        folds: whether it applies `ufunc` to its inputs, which have the same shape, from left to
            right.
        host: indices of inputs that arrive as NumPy arrays in host memory whatever the framework
            (negative ones count from the end): shapes, axes, permutations.
        host_result: the results are NumPy arrays whatever the framework.
        only: the frameworks that it can run in, or () for all; it is placed on the first of them
            where the one asked for is not among them.
        handles: indices of inputs that may be handles of variables (of dtype resource) or
            references to them (of dtype `..._ref`), which it takes as they are. For every other
            input the plan reads the variable of a reference first, and refuses a handle.
        traceable: whether it can run inside `jax.jit`, its host inputs being constant there.
        forwards: whether its one result is its first input, so that nothing needs to run.
        calls_user: whether it runs a Python function of the user, who may see its arguments and
            keep its results, and whose exceptions map to errors as those of TensorFlow's py_func.
    """

    factory: Factory
    ufunc: str | None = None
    only_if: Callable[[Any], bool] | None = None
    folds: bool = False
    host: tuple[int, ...] = ()
    host_result: bool = False
    only: tuple[str, ...] = ()
    handles: tuple[int, ...] = ()
    traceable: bool = True
    forwards: bool = False
    calls_user: bool = False


class FirstUse:
    """Functions that run once, before the first use of the table they fill.

    The first thread runs them, and others wait for it. One that raises, or is interrupted, runs
    again at the next use.
    """

    __slots__ = ("_is_running", "_lock", "_pending")

    def __init__(self) -> None:
        self._pending: list[Callable[[], None]] = []
        self._lock = registry.lock()
        self._is_running = False

    def add(self, function: Callable[[], None]) -> None:
        """Let `function` run before the next use."""
        with self._lock:
            self._pending.append(function)

    def __call__(self) -> None:
        """Run the functions that have not run yet."""
        if self._pending:
            registry.load(self._run)

    def _run(self) -> None:
        with self._lock:
            if self._is_running:  # a function itself uses the table
                return
            self._is_running = True
            try:
                while self._pending:
                    self._pending[0]()
                    del self._pending[0]
            finally:
                self._is_running = False


load = FirstUse()
"""Loads the kernels of every family of op types."""

_SPECS: dict[tuple[str, str | None], Spec] = {}
_ORIGINS: dict[tuple[str, str | None], registry.Origin] = {}
_STORED: dict[str, frozenset[DataType]] = {}
_MOVING: dict[str, frozenset[str]] = {}
_loaders: list[Callable[[str], None]] = []
_frameworks: dict[str, FirstUse] = {}
_ready: set[str] = set()


def kernel(
    *types: str,
    framework: str | None = None,
    ufunc: str | None = None,
    only_if: Callable[[Any], bool] | None = None,
    folds: bool = False,
    host: tuple[int, ...] = (),
    host_result: bool = False,
    only: tuple[str, ...] = (),
    handles: tuple[int, ...] = (),
    traceable: bool = True,
    forwards: bool = False,
    calls_user: bool = False,
) -> Callable[[F], F]:
    """Register the decorated factory for these op types, in one framework or in any."""

    def register(factory: F) -> F:
        origin = registry.Origin()
        spec = Spec(
            factory, ufunc, only_if, folds, host, host_result, only, handles, traceable, forwards,
            calls_user,
        )  # fmt: skip
        for name in types:
            key = name, framework
            known = _ORIGINS.setdefault(key, origin)
            assert origin.may_replace(known), f"two kernels for {key}"
            _ORIGINS[key] = origin
            _SPECS[key] = spec
        return factory

    return register


SAME_UFUNC = "same"
"""Of a framework's kernel: the ufunc is that of the kernel for all, which may come later."""


def only_stores(framework: str, dtypes: Iterable[DataType], moving: Iterable[str]) -> None:
    """Say that a framework does not compute in some dtypes: nodes with one run in NumPy.

    Args:
        framework: its name.
        dtypes: those that it only stores.
        moving: op types that it has nevertheless: they move or copy elements as they are.
    """
    _STORED[framework] = frozenset(dtypes)
    _MOVING[framework] = frozenset(moving)


def _is_lacking(node: Node, framework: str) -> bool:
    """Return whether a framework lacks the op type of a node in one of its dtypes."""
    if node.type in _MOVING[framework] or (node.type, None) not in _SPECS:
        return False
    return not _STORED[framework].isdisjoint(_dtypes(node))


def _dtypes(node: Node) -> Iterator[DataType]:
    for kind in node.output_types:
        yield kind.base_dtype
    for each in node.inputs:
        yield each.op.output_types[each.value_index].base_dtype


def find(node: Node, framework: str) -> Spec:
    """Return the kernel for a node: the framework's own, or the one for all.

    Raises:
        UnimplementedError: there is none.
    """
    if framework not in _ready:
        load_framework(framework)
        _ready.add(framework)
    if framework in _MOVING and _is_lacking(node, framework):
        return find(node, "numpy")._replace(only=("numpy",))
    spec, general = _SPECS.get((node.type, framework)), _SPECS.get((node.type, None))
    if spec is not None and spec.ufunc == SAME_UFUNC:
        ufunc, folds = (None, False) if general is None else (general.ufunc, general.folds)
        spec = spec._replace(ufunc=ufunc, folds=folds)
        _SPECS[node.type, framework] = spec
    spec = spec or general
    if spec is None:
        raise UnimplementedError(f"there is no kernel for op type {node.type!r}", node)
    return spec


def add_families(loader: Callable[[str], None]) -> None:
    """Let a package of families of op types load its kernels when they are needed.

    Args:
        loader: imports the modules of a name in all families: `loader("kernels")` those for every
            framework, `loader("torch")` those for torch alone.
    """
    _loaders.append(loader)
    load.add(lambda: loader("kernels"))
    for framework, first_use in list(_frameworks.items()):
        first_use.add(partial(loader, framework))
    _ready.clear()


def load_framework(framework: str) -> None:
    """Load the kernels that the families of op types have for one framework alone.

    Raises:
        FrameworkMissingError: it is not installed.
    """
    load()  # a framework's kernels refer to those for all
    first_use = _frameworks.get(framework)
    if first_use is None:
        namespace(framework)
        made = FirstUse()
        for loader in _loaders:
            made.add(partial(loader, framework))
        first_use = _frameworks.setdefault(framework, made)
    first_use()


def types() -> set[str]:
    """Return the op types that have a kernel."""
    load()
    return {name for name, _ in _SPECS}

"""The backend of a framework, found in its folder: how nodes run there."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import lru_cache
from importlib import import_module
from typing import Any

from dlbridge.errors import ArgumentError, FrameworkMissingError
from dlbridge.exchange.adapter import adapter
from dlbridge.proto.datatypes import DataType

FRAMEWORKS = ("numpy", "torch", "jax", "cupy")
"""The frameworks that run nodes; the folder of each has a module `graph` with its `BACKEND`."""


class Backend:
    """How nodes run in one framework; subclasses override what differs.

    Attributes:
        name: of the framework.
        namespace: the module of its array API namespace.
        has_host: whether it computes in host memory.
        reads_values: whether kernels on the host may read values: there is no trace.
        converts_small: whether a compiled function takes small NumPy arrays faster as they are.
        lacking: names of dtypes that it does not exchange; nodes with one run in NumPy.
        twin: the framework that runs nodes whose device this one does not have, or None.
        guard: makes the block in which steps run, or None.
    """

    name: str = ""
    namespace: str = ""
    has_host: bool = True
    reads_values: bool = True
    converts_small: bool = False
    lacking: frozenset[str] = frozenset()
    twin: str | None = None
    guard: Callable[[], AbstractContextManager[Any]] | None = None

    def devices(self) -> list[tuple[str, Any]]:
        """Return the names ("CPU:0", "GPU:1") and objects of its devices, the host first.

        Raises:
            FrameworkMissingError: it runs on devices only that are not here.
        """
        return [("CPU:0", None)]

    def default_device(self) -> Any:
        """Return the device object of nodes that ask for none; None is the first device."""
        return None

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        """Return a block in which a device is the framework's current one."""
        return nullcontext()

    def dtype(self, data_type: DataType) -> Any:
        """Return the framework's dtype object."""
        return data_type.numpy if data_type.dlpack is None else data_type.dlpack.to(self.name)

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        """Return the function that makes any framework's array one of this framework.

        Args:
            device: its own device object; None is the host.
            looks: whether values may be on a device though the host is meant.
        """
        raise NotImplementedError

    def asarray(self, host: Any, device: Any) -> Any:
        """Return a host NumPy array as one of the framework on a device."""
        move = self.mover(device, True)
        if device is None:
            return move(host)
        with self.entered(device):
            return move(host)

    def wide(self, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
        """Return a function called with 64-bit types enabled, or not, where they are optional."""
        return function

    def compile(self, body: Any, count: int, device: Any) -> Callable[..., Any]:
        """Return the function of a `compiled.Body`: `count` arrays, then its host arguments."""
        raise NotImplementedError

    def wait(self, result: Any, device: str) -> None:
        """Wait until a step's result on a device is computed."""


@lru_cache
def backend(name: str) -> Backend:
    """Return the backend of a framework, which is imported if need be.

    Raises:
        ArgumentError: it runs no nodes.
        FrameworkMissingError: it is not installed.
    """
    if name not in FRAMEWORKS:
        raise ArgumentError(f"framework {name!r} runs no nodes; known are {', '.join(FRAMEWORKS)}")
    found = adapter(name)
    package = type(found).__module__.rpartition(".")[0]
    try:
        made: Backend = import_module(f"{package}.graph").BACKEND
    except ModuleNotFoundError:
        found.import_module()  # raises FrameworkMissingError if that is what is missing
        raise
    return made


def namespace(framework: str) -> Any:
    """Return the array API namespace of a framework, imported if need be."""
    found = backend(framework)
    adapter(framework).import_module()
    try:
        return import_module(found.namespace)
    except ImportError as error:
        raise FrameworkMissingError(
            f"running a graph needs {error.name}: pip install 'dlbridge[graph]'"
        ) from error


def wide(framework: str, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
    """Return a function with 64-bit types enabled, which JAX leaves out by default."""
    if framework not in FRAMEWORKS:
        return function
    return backend(framework).wide(function, enabled)

"""Context: one framework as kernels see it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np

from dlbridge.errors import ArgumentError, FrameworkMissingError
from dlbridge.exchange import adapter
from dlbridge.execution.transfer import mover
from dlbridge.proto.datatypes import DataType

# Framework -> its array API namespace.
NAMESPACES = {
    "numpy": "array_api_compat.numpy",
    "torch": "array_api_compat.torch",
    "jax": "jax.numpy",
    "cupy": "array_api_compat.cupy",
}


class Context:
    """A framework, a device and the state of a session, for the factories of kernels.

    Attributes:
        framework: its name.
        xp: its array API namespace.
        device: its own device object, or None for its default.
        device_name: that device as a place calls it, "GPU:1"; "" is the host.
        resources: the session's state by name, shared by all its contexts.
        seed: the graph's seed for random numbers, or None.
    """

    __slots__ = ("_dtypes", "device", "device_name", "framework", "resources", "seed", "xp")

    def __init__(
        self,
        framework: str,
        resources: dict[str, Any] | None = None,
        device: object = None,
        seed: int | None = None,
        device_name: str = "",
    ) -> None:
        self.framework = framework
        self.xp = namespace(framework)
        self.device = device
        self.device_name = device_name
        self.resources = {} if resources is None else resources
        self.seed = seed
        self._dtypes: dict[DataType, Any] = {}

    @property
    def checks(self) -> bool:
        """Whether kernels look at values to refuse them: on the host, but not in a trace of JAX.

        On a device the host would have to wait for them. What TensorFlow does there is done.
        """
        return self.framework != "jax" and not self.device_name

    def dtype(self, data_type: DataType) -> Any:
        """Return the framework's dtype object."""
        found = self._dtypes.get(data_type)
        if found is None:
            name = "numpy" if self.framework == "jax" else self.framework
            if name == "numpy" or data_type.dlpack is None:
                found = data_type.numpy
            else:
                found = data_type.dlpack.to(name)
            self._dtypes[data_type] = found
        return found

    def asarray(self, host: Any) -> Any:
        """Return a host NumPy array as the framework's, on its device, shared if it can be.

        Under a trace of JAX it becomes a constant.
        """
        array = np.asarray(host)
        if self.framework == "numpy":
            return array
        if self.framework == "jax":
            return import_module("dlbridge.frameworks.jax.graph_values").asarray(array, self.device)
        return mover(self.framework, self.device)(array)


def namespace(framework: str) -> Any:
    """Return the array API namespace of a framework, imported if need be."""
    if framework not in NAMESPACES:
        raise ArgumentError(
            f"framework {framework!r} runs no nodes; known are {', '.join(NAMESPACES)}"
        )
    adapter.adapter(framework).import_module()
    try:
        return import_module(NAMESPACES[framework])
    except ImportError as error:
        raise FrameworkMissingError(
            f"running a graph needs {error.name}: pip install 'dlbridge[graph]'"
        ) from error

"""Context: one framework as kernels see it."""

from __future__ import annotations

from typing import Any

import numpy as np

from dlbridge.execution.backend import backend, namespace
from dlbridge.proto.datatypes import DataType


class Context:
    """A framework, a device and the state of a session, for the factories of kernels.

    Attributes:
        framework: its name.
        xp: its array API namespace.
        checks: whether kernels look at values to refuse them: on the host, but not in a trace of
            JAX. On a device the host would have to wait for them; what TensorFlow does there is
            done.
        device: its own device object, or None for its default.
        device_name: that device as a place calls it, "GPU:1"; "" is the host.
        resources: the session's state by name, shared by all its contexts.
        seed: the graph's seed for random numbers, or None.
    """

    __slots__ = (
        "_backend", "_dtypes", "checks", "device", "device_name", "framework", "resources", "seed",
        "xp",
    )  # fmt: skip

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
        self._backend = backend(framework)
        self.checks = self._backend.reads_values and not device_name
        self.device = device
        self.device_name = device_name
        self.resources = {} if resources is None else resources
        self.seed = seed
        self._dtypes: dict[DataType, Any] = {}

    def dtype(self, data_type: DataType) -> Any:
        """Return the framework's dtype object."""
        found = self._dtypes.get(data_type)
        if found is None:
            found = self._backend.dtype(data_type)
            self._dtypes[data_type] = found
        return found

    def asarray(self, host: Any) -> Any:
        """Return a host NumPy array as the framework's, on its device, shared if it can be.

        Under a trace of JAX it becomes a constant.
        """
        return self._backend.asarray(np.asarray(host), self.device)

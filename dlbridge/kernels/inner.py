"""Kernels whose calls are made by another kernel, which frameworks and compilers understand."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

from dlbridge import registry

if TYPE_CHECKING:
    from dlbridge.kernels.kernel import Kernel
    from dlbridge.kernels.schema import Schema


class Inner(ABC):
    """The calls of a kernel, and the kernel that makes them, which is made once it is needed.

    Attributes:
        whole: the kernel.
    """

    def __init__(self, whole: Kernel) -> None:
        self.whole = whole
        self._kernel: Kernel | None = None
        self._lock = registry.lock()

    @property
    def schema(self) -> Schema:
        """The schema of the kernel."""
        assert self.whole.schema is not None
        return self.whole.schema

    @property
    def kernel(self) -> Kernel:
        """The kernel that makes the calls."""
        if self._kernel is None:
            with self._lock:
                if self._kernel is None:
                    self._kernel = self._make()
        return self._kernel

    @abstractmethod
    def _make(self) -> Kernel:
        """Return a new kernel that makes the calls."""

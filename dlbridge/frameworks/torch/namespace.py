"""torch.ops: operators are registered when they are first looked up there.

Exported and compiled programs find their operators by name. So a kernel that was wrapped has one as
soon as somebody asks, and those that torch never sees cost nothing.
"""

from __future__ import annotations

from typing import Any

import torch

from dlbridge.frameworks.torch.registry import operator, registered
from dlbridge.kernels.kernel import Kernel, published


class _Namespace(torch._ops._OpNamespace):  # type: ignore[misc]
    """`torch.ops.<namespace>` of kernels; it may hold operators of others, too."""

    __module__ = torch._ops._OpNamespace.__module__  # operators are pickled by it

    def __getattr__(self, name: str) -> Any:
        kernel = published(f"{self.name}::{name}")
        if kernel is not None and not registered(kernel.name):
            operator(kernel)
        return super().__getattr__(name)


def offer(kernel: Kernel) -> None:
    """Have torch.ops find the operator of a kernel, which must have a schema."""
    assert kernel.schema is not None
    namespace = getattr(torch.ops, kernel.schema.namespace)
    if type(namespace) is torch._ops._OpNamespace:
        namespace.__class__ = _Namespace

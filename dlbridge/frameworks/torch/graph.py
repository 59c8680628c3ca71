"""How torch runs the nodes of a graph."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch

from dlbridge.execution.backend import Backend, converting_mover, device_object
from dlbridge.execution.plan import Body


class _Torch(Backend):
    name = "torch"
    namespace = "array_api_compat.torch"

    def devices(self) -> list[tuple[str, Any]]:
        count = torch.cuda.device_count() if torch.cuda.is_available() else 0
        return [
            ("CPU:0", torch.device("cpu")),
            *((f"GPU:{i}", torch.device("cuda", i)) for i in range(count)),
        ]

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        return torch.cuda.device(device)  # type: ignore[no-any-return]

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        return converting_mover("torch", device, looks)

    @staticmethod
    def guard() -> AbstractContextManager[Any]:
        """Return a block in which torch records nothing: a graph has no gradients of its own.

        Results are ordinary tensors, as those of `torch.inference_mode` are not.
        """
        return torch.no_grad()  # type: ignore[no-any-return]

    def compile(self, body: Body, count: int, device: Any) -> Callable[..., Any]:
        compiled: Callable[..., Any] = torch.compile(
            lambda *values: body(values[:count], values[count:])
        )
        return compiled

    def wait(self, result: Any, device: str) -> None:
        if device:
            torch.cuda.synchronize(device_object("torch", device))


BACKEND = _Torch()

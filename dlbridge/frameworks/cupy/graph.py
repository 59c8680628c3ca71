"""How CuPy runs the nodes of a graph: on GPUs only, which are found when one is needed."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from importlib import import_module
from typing import Any

from dlbridge.errors import FrameworkMissingError
from dlbridge.execution.backend import Backend, converting_mover, device_object


class _CuPy(Backend):
    name = "cupy"
    namespace = "array_api_compat.cupy"
    has_host = False
    lacking = frozenset({"bfloat16"})
    twin = "numpy"

    def devices(self) -> list[tuple[str, Any]]:
        cuda = import_module("cupy").cuda
        if not cuda.is_available():
            raise FrameworkMissingError(
                "running nodes in cupy needs a GPU with a driver, and there is none here; run them "
                "in numpy, torch or jax"
            )
        return [(f"GPU:{i}", cuda.Device(i)) for i in range(cuda.runtime.getDeviceCount())]

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        return device  # type: ignore[no-any-return]

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        return converting_mover("cupy", device, looks)

    def wait(self, result: Any, device: str) -> None:
        device_object("cupy", device).synchronize()


BACKEND = _CuPy()

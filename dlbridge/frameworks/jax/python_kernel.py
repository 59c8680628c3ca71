"""Python functions of JAX arrays as kernels: what the calls need of JAX."""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager
from functools import cache
from typing import Any

import jax
import numpy

from dlbridge._core import native
from dlbridge.errors import KernelError
from dlbridge.kernels.kinds.python_kernel import Support


class JaxSupport(Support):
    """Arrays of JAX, which never change."""

    immutable = True

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        if native.inside_xla():
            raise KernelError(
                f"{self.name}: this function of JAX arrays is called from inside a computation of "
                "JAX on a device, where it would wait for itself; call it outside of jax.jit"
            )
        return super().contexts(kind, index, stream)

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, kept apart from what the calling thread traces or waits for."""
        is_clean = getattr(sys.modules.get("jax._src.core"), "trace_state_clean", lambda: False)

        def run(*args: Any, **kwargs: Any) -> Any:
            if native.inside_xla():
                return self._elsewhere(function, args, kwargs)
            if is_clean():
                return function(*args, **kwargs)
            with jax.ensure_compile_time_eval():
                return function(*args, **kwargs)

        return run

    def _elsewhere(
        self, function: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """Call the function on a CPU device whose threads are not those that wait for it."""
        device = _spare_device()
        if device is None:
            raise KernelError(
                f"{self.name}: this function of JAX arrays is called from inside a computation of "
                "JAX, where it would wait for itself; call it outside of jax.jit"
            )
        moved = [None if x is None else jax.device_put(numpy.asarray(x), device) for x in args]
        with jax.default_device(device):
            return function(*moved, **kwargs)

    def settle(self, _: object) -> None:
        """Drop the references that jaxlib keeps until somebody with the GIL comes by."""
        for callback in gc.callbacks:
            if getattr(callback, "__module__", "") == "jax._src.lib":
                callback("stop", {})

    def save(self, tensor: Any, address: int) -> None:
        """Delete the array: using it raises then, instead of reading foreign memory."""
        if tensor is not None:
            tensor.delete()


@cache
def _spare_device() -> Any:
    """Return a CPU device with threads of its own, or None where jaxlib makes none."""
    try:
        client = sys.modules["jax._src.lib"].xla_client.make_cpu_client(asynchronous=False)
        return client.local_devices()[0]
    except Exception:  # noqa: BLE001  (a private function: whatever it does, there is no device)
        return None


SUPPORT = JaxSupport

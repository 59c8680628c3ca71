"""What calls of Python kernels need of Python now and then; `_core/abi/python.c` asks for it."""

from __future__ import annotations

import gc
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, ExitStack
from functools import cache, partial
from typing import Any

import numpy

from dlbridge import cuda
from dlbridge._core import native
from dlbridge.cuda.streams import stream_of_cupy
from dlbridge.errors import ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.exchange import exchange
from dlbridge.exchange.protocol import describe

_CUDA_KINDS = (2, 13)  # kDLCUDA, kDLCUDAManaged
_LEGACY = 1  # the legacy default stream, which frameworks call 0


class Support:
    """The rare steps of calls of one kernel; the methods are called by C, by their names."""

    def __init__(self, name: str) -> None:
        self.name = name

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function as it is called."""
        return function

    # ---- results ----

    def take(self, value: Any) -> native.TensorBase:
        """Return a Tensor over what the function returned, of whatever framework."""
        if value is None:
            raise UnsupportedTypeError(
                f"{self.name}: the function returned None instead of its result; one that writes "
                "into its result has a parameter `out`"
            )
        try:
            tensor: native.TensorBase = exchange.convert(value, "dlbridge", grad="detach")
        except UnsupportedTypeError:
            raise UnsupportedTypeError(
                f"{self.name}: the function returned {describe(value)}, which is no tensor"
            ) from None
        return tensor

    def wrong_count(self, expected: int, got: int) -> Exception:
        """Return the exception for a tuple of the wrong length."""
        plural = "" if expected == 1 else "s"
        return UnsupportedTypeError(
            f"{self.name}: the schema has {expected} result{plural}, the function returned {got}"
        )

    def source(self, value: Any) -> str:
        """Return what error texts call a value: "torch.Tensor"."""
        return describe(value)

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        """Copy a result on a device into the caller's memory, on the caller's stream."""
        if destination._device_pair[0] not in _CUDA_KINDS:
            raise ExchangeError(
                "device", f"{self.name}: the result is on a device where only `out=` can be written"
            )
        with cuda.stream(stream or _LEGACY, destination._device_pair[1]):
            native.copy_into(destination, self.take(value))

    # ---- devices ----

    def enter(self, kind: int, index: int, stream: int) -> ExitStack:
        """Make the caller's device and stream the framework's current ones, until `close()`."""
        with ExitStack() as entered:
            for context in self.contexts(kind, index, stream):
                entered.enter_context(context)
            return entered.pop_all()

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        """Yield contexts in which the framework works on that device and stream."""
        if kind in _CUDA_KINDS:
            yield cuda.stream(stream or _LEGACY, index)

    # ---- loans ----

    def settle(self, _: object) -> None:
        """Have the framework release what it only puts off releasing."""

    def collect(self, _: object) -> None:
        """Free what only cycles hold."""
        gc.collect()

    def clear_frames(self, exception: BaseException) -> None:
        """Let go of the variables of the frames in a traceback; its lines stay."""
        seen: set[int] = set()
        waiting: list[BaseException | None] = [exception]
        while waiting:
            error = waiting.pop()
            if error is None or id(error) in seen:
                continue
            seen.add(id(error))
            traceback.clear_frames(error.__traceback__)
            waiting += [error.__cause__, error.__context__]

    def save(self, tensor: Any, address: int) -> None:
        """Give what was kept memory of its own, or make it unusable; `tensor` may be None."""


class _Torch(Support):
    def save(self, tensor: Any, address: int) -> None:
        """Move the storage into memory of its own: all views of it move along."""
        torch: Any = sys.modules["torch"]
        for found in _tensors_over(address, tensor, torch):
            storage = found.untyped_storage()
            if storage.device.type == "cpu":
                storage.share_memory_()  # no other call replaces a storage's memory
                return
            # On a device each of the tensors gets its place in a copy of the storage.
            place = found.storage_offset(), found.size(), found.stride()
            found.data = torch.empty(0, dtype=found.dtype, device=found.device).set_(
                storage.clone(), *place
            )

    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        yield from super().contexts(kind, index, stream)
        torch: Any = sys.modules["torch"]
        yield torch.cuda.device(index)
        if (torch.cuda.current_stream(index).cuda_stream or _LEGACY) == (stream or _LEGACY):
            return
        is_default = stream in (0, _LEGACY)
        own = (
            torch.cuda.default_stream if is_default else partial(torch.cuda.ExternalStream, stream)
        )
        yield torch.cuda.stream(own(index))

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        torch: Any = sys.modules["torch"]
        if isinstance(value, torch.Tensor):
            exchange.convert(destination, "torch").copy_(value.detach())
        else:
            super().copy(destination, value, stream)


def _tensors_over(address: int, tensor: Any, torch: Any) -> Iterator[Any]:
    """Yield tensors whose storage starts at `address`."""
    for found in [tensor] if tensor is not None else gc.get_objects():
        if not isinstance(found, torch.Tensor) or found.layout is not torch.strided:
            continue
        try:
            is_over_it = found.untyped_storage().data_ptr() == address
        except RuntimeError:  # fake, functorch and the like: no storage
            continue
        if is_over_it:
            yield found


class _Cupy(Support):
    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        yield from super().contexts(kind, index, stream)
        module: Any = sys.modules["cupy"].cuda
        yield module.Device(index)
        yield stream_of_cupy(module, stream, index)

    def copy(self, destination: native.TensorBase, value: Any, stream: int) -> None:
        if isinstance(value, sys.modules["cupy"].ndarray):
            exchange.convert(destination, "cupy")[...] = value
        else:
            super().copy(destination, value, stream)


class _Jax(Support):
    def contexts(self, kind: int, index: int, stream: int) -> Iterable[AbstractContextManager[Any]]:
        if native.inside_xla():
            raise KernelError(
                f"{self.name}: this function of JAX arrays is called from inside a computation of "
                "JAX on a device, where it would wait for itself; call it outside of jax.jit"
            )
        return super().contexts(kind, index, stream)

    def prepare(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Return the function, kept apart from what the calling thread traces or waits for."""
        jax: Any = sys.modules["jax"]
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
        jax: Any = sys.modules["jax"]
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
        """Delete the array: whoever kept it is told so, instead of reading foreign memory."""
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


_SUPPORT: dict[str, type[Support]] = {"torch": _Torch, "cupy": _Cupy, "jax": _Jax}


def support_for(framework: str, name: str) -> Support:
    """Return the support of the kernel called `name`, a function of `framework`'s tensors."""
    return _SUPPORT.get(framework, Support)(name)

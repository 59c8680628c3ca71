"""How JAX runs the nodes of a graph: many as one program of XLA, with 64-bit types enabled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any

import jax
import numpy as np

from dlbridge.exchange import adapter
from dlbridge.execution.backend import Backend, is_on_device
from dlbridge.execution.plan import Body, host_key
from dlbridge.proto.datatypes import DataType

PROGRAMS_KEPT = 64  # by one run, for as many values of its shapes and axes
SHAPES_KEPT = 256  # by one program, for as many shapes of its arrays; then it is made again

# Raised where a kernel needs a value that JAX does not have while it compiles.
NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


Tracer = jax.core.Tracer
enable_x64 = jax.enable_x64


class _JAX(Backend):
    name = "jax"
    namespace = "jax.numpy"
    reads_values = False  # a trace has none
    immutable = True
    converts_small = True

    def devices(self) -> list[tuple[str, Any]]:
        names = {"cuda": "GPU", "rocm": "GPU"}
        found = {}
        for platform in dict.fromkeys(("cpu", jax.default_backend())):
            for device in jax.devices(platform):
                kind = names.get(device.platform, device.platform.upper())
                found[f"{kind}:{device.id}"] = device
        return list(found.items())

    def default_device(self) -> Any:
        return jax.devices()[0]

    def entered(self, device: Any) -> AbstractContextManager[Any]:
        return jax.default_device(device)  # type: ignore[no-any-return]

    def dtype(self, data_type: DataType) -> Any:
        return data_type.numpy

    def asarray(self, host: Any, device: Any) -> Any:
        """Keep the dtype; under a trace the array becomes a constant."""
        with enable_x64(True):
            return jax.numpy.asarray(host, device=device)

    def mover(self, device: Any, looks: bool) -> Callable[[Any], Any]:
        convert = adapter.converter("jax")

        def move(value: Any) -> Any:
            if isinstance(value, Tracer):
                return value
            if isinstance(value, np.generic):
                return self.asarray(value, device)
            where = "cpu" if device is None and looks and is_on_device(value) else device
            with enable_x64(True):
                return convert(value, readonly="share", device=where)

        return move

    def wide(self, function: Callable[..., Any], enabled: bool = True) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            with enable_x64(enabled):
                return function(*arguments)

        return call

    def compile(self, body: Body, count: int, device: Any) -> Callable[..., Any]:
        body.keep = NOT_TRACEABLE
        run = _Run(body, count, device)
        return run if body.hosts else run.program(())

    def wait(self, result: Any, device: str) -> None:
        jax.block_until_ready(result)

    def own(self, x: Any) -> Any:
        return x

    def put(self, how: str) -> Callable[[Any, Any, Any], Any]:
        method = {"Update": "set", "Sub": "subtract"}.get(how, how.lower())
        return lambda table, numbers, rows: getattr(table.at[numbers], method)(rows, mode="drop")

    def take_filled(self, xp: Any, x: Any, numbers: Any, axis: int) -> Any:
        numbers = xp.where(numbers < 0, x.shape[axis], numbers)
        return xp.take(x, numbers, axis=axis, mode="fill", fill_value=0)


BACKEND = _JAX()


class _Run:
    """The programs of one run, one for each value of its arguments on the host."""

    def __init__(self, body: Body, count: int, device: Any) -> None:
        self._body = body
        self._count = count
        self._device = device
        self._programs: OrderedDict[Any, Callable[..., Any]] = OrderedDict()

    def __call__(self, *values: Any) -> Any:
        """Compute the results."""
        arrays, hosts = values[: self._count], values[self._count :]
        key = host_key(hosts)
        found = self._programs.get(key)
        if found is None:
            found = self._programs[key] = self.program(hosts)
            if len(self._programs) > PROGRAMS_KEPT:
                self._programs.popitem(last=False)
        return found(*arrays)

    def program(self, hosts: Sequence[Any]) -> Callable[..., Any]:
        """Return the compiled function of the arrays for fixed values on the host.

        It may be compiled again for other arrays when its caller has changed the memory fed.
        """
        body, device = self._body, self._device
        hosts = [np.array(each) for each in hosts]
        shapes, is_traceable = 0, True

        def trace(*arrays: Any) -> Any:
            nonlocal shapes
            shapes += 1
            return body(arrays, hosts)

        compiled = jax.jit(trace)

        def call(*arrays: Any) -> Any:
            nonlocal compiled, shapes, is_traceable
            with enable_x64(True):
                if shapes > SHAPES_KEPT:  # JAX knows programs by their function
                    compiled, shapes = jax.jit(lambda *arrays: trace(*arrays)), 0
                if is_traceable:
                    try:
                        return compiled(*arrays)
                    except NOT_TRACEABLE:
                        is_traceable = False
                return body([jax.numpy.asarray(each) for each in arrays], hosts)

        return call if device is None else _on(device, call)


def _on(device: Any, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*values: Any) -> Any:
        with jax.default_device(device):
            return function(*values)

    return call

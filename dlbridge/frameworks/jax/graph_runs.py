"""Runs of JAX: many nodes as one program of XLA."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Sequence
from typing import Any

import jax
import numpy as np

from dlbridge.execution.compiled import Body, host_key
from dlbridge.frameworks.jax.graph_values import enable_x64

PROGRAMS_KEPT = 64  # by one run, for as many values of its shapes and axes
SHAPES_KEPT = 256  # by one program, for as many shapes of its arrays; then it begins anew

# Raised where a kernel needs a value that JAX does not have while it compiles.
NOT_TRACEABLE = (
    jax.errors.ConcretizationTypeError,
    jax.errors.TracerArrayConversionError,
    jax.errors.TracerIntegerConversionError,
    jax.errors.NonConcreteBooleanIndexError,
)


def compile_body(body: Body, count: int, device: Any) -> Callable[..., Any]:
    """Return the function of a run: `count` arrays, then what it depends on, on the host."""
    body.keep = NOT_TRACEABLE
    run = _Run(body, count, device)
    return run if body.hosts else run.program(())


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

"""Where GPU kernels of several libraries are on a device: the address of their CUfunction there.

A loader is called by the core, once for each device, with the device's primary context current. The
libraries load and unload by themselves; what a loader returned is kept for as long as it lives.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from importlib import import_module
from typing import Any

from dlbridge._core import ffi
from dlbridge.errors import ArgumentError, KernelError

Loader = Callable[[int], int]


def of_cupy(kernel: Any) -> Loader:
    """Return the loader of a `cupy.RawKernel`, which is compiled for each device."""
    if getattr(kernel, "enable_cooperative_groups", False):
        raise ArgumentError(
            f"wrap: the RawKernel {kernel.name!r} has cooperative groups, whose grids dlbridge "
            "does not launch; wrap a Python function that calls it, with abi='python:cupy'"
        )
    kept = []

    def load(device: int) -> int:
        with sys.modules["cupy"].cuda.Device(device):
            function = kernel.kernel
        kept.append(function)
        return int(function.ptr)

    return load


def of_cuda_core(kernel: Any) -> Loader:
    """Return the loader of a `cuda.core.Kernel`; the kernel keeps its library."""

    def load(device: int) -> int:
        return find_address(getattr(kernel, "handle", None) or kernel._handle, device)

    return load


def find_address(handle: Any, device: int) -> int:
    """Return the address of a CUfunction, or of that of a CUkernel on the current device."""
    if type(handle).__name__ == "CUkernel":
        return _find_function(handle, device)
    return int(getattr(handle, "value", handle))


def of_library_kernel(handle: Any) -> Loader:
    """Return the loader of a `CUkernel`, which the driver loads where it is needed."""
    return partial(_find_function, handle)


def _find_function(handle: Any, device: int) -> int:
    code, function = import_module("cuda.bindings.driver").cuKernelGetFunction(handle)
    if int(code):
        raise KernelError(f"cuKernelGetFunction on cuda:{device}: {code.name}")
    return int(function)


def of_address(handle: Any) -> Loader:
    """Return the loader of a `CUfunction`, which is of one context only."""
    address = int(ffi.cast("uintptr_t", handle)) if isinstance(handle, ffi.CData) else int(handle)
    if not address:
        raise ArgumentError("wrap: a CUfunction that is NULL cannot be launched")
    return lambda _: address


def of_module(function: Any) -> Loader:
    """Return the loader of a function of a `dlbridge.cuda.Module`."""
    return function.load  # type: ignore[no-any-return]

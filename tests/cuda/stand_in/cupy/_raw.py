"""`cupy.RawKernel` and `cupy.RawModule`: the fake driver has kernels of some names built in."""

from __future__ import annotations

from typing import Any

from cupy import _driver
from cupy.cuda.function import Function, Module

_COMPILED = b".version 8.0"  # what stands for the result of NVRTC: the fake has no compiler


class RawModule:
    """A module of the source that it was given, loaded on each device that needs it."""

    def __init__(self, *, code: str, options: tuple[str, ...] = (), backend: str = "nvrtc") -> None:
        self.code, self.options, self.backend = code, options, backend
        self._modules: dict[int, Module] = {}

    @property
    def module(self) -> Module:
        """The module on the current device."""
        device = _driver.current_device()
        if device not in self._modules:
            is_text = self.code.lstrip().startswith(".version")
            self._modules[device] = Module(self.code.encode() if is_text else _COMPILED)
        return self._modules[device]

    def get_function(self, name: str) -> RawKernel:
        """Return a kernel."""
        kernel = RawKernel(self.code, name, self.options, self.backend)
        kernel._module = self
        return kernel


class RawKernel:
    """A kernel of the source that it was given.

    Attributes:
        name, code, options, backend: as given.
        kernel: its Function on the current device; `kernel.ptr` is the CUfunction.
    """

    enable_cooperative_groups = False

    def __init__(
        self, code: str, name: str, options: tuple[str, ...] = (), backend: str = "nvrtc"
    ) -> None:
        self.code, self.name, self.options, self.backend = code, name, options, backend
        self._module: Any = RawModule(code=code)
        self._functions: dict[int, Function] = {}

    @property
    def kernel(self) -> Function:
        """The kernel on the current device."""
        device = _driver.current_device()
        if device not in self._functions:
            self._functions[device] = self._module.module.get_function(self.name)
        return self._functions[device]

    def compile(self) -> None:
        """Load it on the current device."""
        self.kernel

    def __call__(
        self,
        grid: tuple[int, ...],
        block: tuple[int, ...],
        args: tuple[Any, ...],
        *,
        shared_mem: int = 0,
    ) -> None:
        """Launch it on the current stream."""
        self.kernel(grid, block, args, shared_mem)

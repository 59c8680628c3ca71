"""GPU code that is compiled already: PTX, cubin or fatbin, loaded on each device that needs it."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from dlbridge import registry
from dlbridge._core import ffi
from dlbridge.cuda.driver import check, entered, relaxed
from dlbridge.errors import ArgumentError
from dlbridge.signals import not_from_handler


class Module:
    """GPU code with its kernels, found by name: `dlbridge.wrap(module["scale"], …)`.

    It is loaded when a kernel is first launched on a device, into its primary context, and never
    unloaded: CUDA graphs may launch its kernels until the process ends. Loading is no work of a
    stream: a capture goes on, and the graph contains nothing of it.

    Args:
        image: a cubin, a fatbin or PTX as bytes, or the path of a file.

    Raises:
        ArgumentError: the image is empty, or the file cannot be read.

    Example:
        >>> module = Module(b".version 8.0 and so on")
        >>> module["scale"]
        Function('scale')
    """

    def __init__(self, image: bytes | str | os.PathLike[str]) -> None:
        self._image = image if isinstance(image, bytes) else _read(image)
        if not self._image:
            raise ArgumentError("Module: the image is empty")
        self._loaded: dict[int, Any] = {}
        self._lock = registry.lock()

    def __getitem__(self, name: Any) -> Function:
        """Return the kernel called `name`; its first launch shows whether there is one."""
        if not isinstance(name, str) or not name:
            raise ArgumentError(f"Module: a kernel's name must be text, got {name!r}")
        return Function(self, name)

    def image(self, device: int) -> bytes:
        """Return the code for a device; it is the same for all, unless it is compiled for each."""
        return self._image

    def load(self, device: int) -> Any:
        """Return the CUmodule on a device, loaded if it is not.

        Raises:
            CUDAError: the driver cannot load the image there.
        """
        with self._lock, entered(device) as functions:
            if device not in self._loaded:
                made = ffi.new("CUmodule *")
                image = ffi.from_buffer(self.image(device) + b"\0")  # PTX ends with NUL
                with relaxed(functions):
                    code = functions.cuModuleLoadData(made, image)
                check("Module", code, "cuModuleLoadData")
                self._loaded[device] = made[0]
            return self._loaded[device]


class Function:
    """One kernel of a Module; `dlbridge.wrap` takes it.

    Attributes:
        module: where it is.
        name: as the driver knows it.
        signature: its C signature, "void(const float *x, int n)", where its source is at hand.
        parameters: what they are compiled to, where that is known: "u", "f" or "b" for an integer
            or address, a float, bytes; and the size in bytes.
    """

    def __init__(
        self,
        module: Module,
        name: str,
        signature: str | None = None,
        parameters: tuple[tuple[str, int], ...] | None = None,
    ) -> None:
        self.module = module
        self.name = name
        self.signature = signature
        self.parameters = parameters

    def load(self, device: int) -> int:
        """Return the address of its CUfunction on a device.

        Raises:
            CUDAError: the module cannot be loaded there, or has no such kernel.
        """
        module = self.module.load(device)
        found = ffi.new("CUfunction *")
        with entered(device) as functions, relaxed(functions):  # it may load the kernel
            code = functions.cuModuleGetFunction(found, module, self.name.encode())
        check(f"Module[{self.name!r}]", code, "cuModuleGetFunction")
        return int(ffi.cast("uintptr_t", found[0]))

    def __repr__(self) -> str:
        return f"Function({self.name!r})"


def _read(path: str | os.PathLike[str]) -> bytes:
    try:
        return Path(os.fspath(path)).read_bytes()
    except not_from_handler(OSError, TypeError, ValueError) as error:
        raise ArgumentError(f"Module: the image must be bytes or a file: {error}") from error

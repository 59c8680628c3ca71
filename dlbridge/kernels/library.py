"""load_library: the functions of a shared library, to be wrapped as kernels."""

from __future__ import annotations

import ctypes
import os
from pathlib import Path
from typing import Any

from dlbridge.errors import ArgumentError
from dlbridge.kernels.kernel import Kernel
from dlbridge.kernels.wrap import wrap


class Library:
    """A shared library that stays loaded; its functions are found by name.

    `library["axpy"]` and `library.axpy` are ctypes functions without a prototype, as `wrap` takes
    them with an abi; `library.wrap("axpy", schema)` is the Kernel.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            self._library = ctypes.CDLL(path)
        except OSError as error:
            raise ArgumentError(f"load_library: {path} cannot be loaded: {error}") from error

    def __getitem__(self, name: str) -> Any:
        """Return the function called `name` in the library's symbol table."""
        if not isinstance(name, str):
            raise ArgumentError(f"load_library: a symbol's name must be text, got {name!r}")
        try:
            return self._library[name]
        except AttributeError:
            raise ArgumentError(
                f"load_library: {self.path} has no symbol {name!r}; C++ functions need extern "
                '"C", and hidden ones __attribute__((visibility("default")))'
            ) from None

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        try:
            return self[name]
        except ArgumentError as error:
            raise AttributeError(str(error)) from None

    def __contains__(self, name: object) -> bool:
        return isinstance(name, str) and hasattr(self._library, name)

    def wrap(
        self, name: str, schema: Any = None, *, abi: str = "dltensors", **options: Any
    ) -> Kernel:
        """Return the function called `name` as a Kernel; the options are those of `wrap`."""
        return wrap(self[name], schema, abi=abi, **options)

    def __repr__(self) -> str:
        return f"Library({self.path!r})"


def load_library(path: str | os.PathLike[str]) -> Library:
    """Load a shared library, for its functions to be wrapped as kernels.

    It is never unloaded: compiled graphs may call its kernels until the process ends. A library
    that changed on disk is loaded again only under another path.

    Args:
        path: of the library. A bare name without a slash is searched for as `dlopen` does, unless
            there is such a file here.

    Raises:
        ArgumentError: it cannot be loaded.

    Example:
        >>> libm = load_library("libm.so.6")
        >>> "cos" in libm, "cosine" in libm
        (True, False)
    """
    given = os.fspath(path)
    found = Path(given)
    return Library(str(found.resolve()) if found.is_file() else given)

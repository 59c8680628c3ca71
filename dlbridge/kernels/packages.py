"""Kernel libraries where they are installed: `load_package`; and what a file exports, listed."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, distribution, packages_distributions
from importlib.util import find_spec
from pathlib import Path

from dlbridge import registry
from dlbridge.calls import public
from dlbridge.errors import ArgumentError
from dlbridge.exchange.protocol import describe
from dlbridge.kernels.builds import SHARED, exports_kernels
from dlbridge.kernels.elf import Image
from dlbridge.kernels.exports import TABLE, Export, read_exports
from dlbridge.kernels.library import Library, load_library
from dlbridge.signals import not_from_handler
from dlbridge.text import did_you_mean


@public
def load_package(name: str) -> Library:
    """Load the library inside an installed package that exports kernels with `DLB_EXPORT`.

    The package is not imported, and needs no Python code: a wheel with the library in it will do.

    Args:
        name: of the distribution, as it was installed, or of the package, as it would be imported.

    Raises:
        ArgumentError: no such package is installed, none or several of its libraries export
            kernels, or `load_library` refuses the one that does.

    Example:
        >>> load_package("numpy")
        Traceback (most recent call last):
        dlbridge.errors.ArgumentError: load_package: no library of numpy exports kernels with ...
    """
    return load_library(find_library(name))


def find_library(name: str) -> Path:
    """Return the library of an installed package that exports kernels; nothing is loaded.

    Raises:
        ArgumentError: as `load_package`.
    """
    _check(name)
    libraries = registry.load(_libraries, name)
    exporting = [path for path in libraries if exports_kernels(path)]
    if len(exporting) == 1:
        return exporting[0]
    if exporting:
        paths = "\n    ".join(map(str, exporting))
        raise ArgumentError(
            f"load_package: {len(exporting)} libraries of {name} export kernels; pass one of them "
            f"to load_library:\n    {paths}"
        )
    found = ", ".join(path.name for path in libraries[:5]) + (", …" if libraries[5:] else "")
    raise ArgumentError(
        f"load_package: no library of {name} exports kernels with DLB_EXPORT; "
        + (f"it has {found}" if libraries else "there is no file *.so in it")
    )


def _check(name: object) -> None:
    if not isinstance(name, str) or not name:
        given = repr(name) if isinstance(name, str) else describe(name)
        raise ArgumentError(f"load_package: name must be that of a package, got {given}")


def _libraries(name: str) -> list[Path]:
    """Return the shared libraries of a package, each once."""
    found: dict[Path, None] = {}
    folders = list(_folders(name))
    for folder in folders:
        for path in sorted(folder.rglob("*.so*")):
            found[path.resolve()] = None
    try:
        files = distribution(name).files or ()
    except not_from_handler(PackageNotFoundError, ValueError):
        if not folders:
            packages = packages_distributions()
            known = {each for names in packages.values() for each in names}
            modules = {each for each in packages if each.isidentifier()}  # a path may be of others
            nearest = did_you_mean(name, sorted(known | modules))
            raise ArgumentError(
                f"load_package: no package {name!r} is installed here{nearest}"
            ) from None
        files = ()
    for file in files:
        if SHARED.fullmatch(file.name):
            found[Path(str(file.locate())).resolve()] = None
    return [path for path in found if SHARED.fullmatch(path.name) and path.is_file()]


def _folders(name: str) -> Iterator[Path]:
    """Yield the folders of a package by the name that it is imported by; nothing is imported."""
    first, *inner = name.split(".")
    try:
        spec = find_spec(first) if first else None
    except not_from_handler(ValueError):  # of a module that is there without a spec, as __main__
        return
    for location in (spec.submodule_search_locations or ()) if spec is not None else ():
        folder = Path(location, *inner)
        if folder.is_dir():
            yield folder


def list_exports(path: Path) -> list[Export]:
    """Return what a library exports with `DLB_EXPORT`, from its file: nothing of it runs.

    Raises:
        ArgumentError: it is no shared library for Linux, or describes a function wrongly.
        OSError: it cannot be read.
    """
    if path.exists() and not path.is_file():
        raise ArgumentError(f"{path} cannot be read: it is not a file")
    try:
        image = Image(path)
        address = image.find(TABLE)
        return [] if address is None else read_exports(str(path), address, image)
    except struct.error as error:
        raise ArgumentError(f"{path} cannot be read: it is damaged: {error}") from None

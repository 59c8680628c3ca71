"""Folders that hold one kernel library for several machines, as Hugging Face's kernels are built.

    build/tvm-ffi01-cpu-x86_64-linux/<package>.so     and so on: <framework>-<backend>-<machine>

Builds for torch link against one version of it, and are for torch alone; those for tvm-ffi load
here. What the names mean is the format's; nothing of the Python code in the folder runs.
"""

from __future__ import annotations

import mmap
import platform
import re
import sys
from collections.abc import Iterable
from pathlib import Path

from dlbridge import cuda
from dlbridge.errors import ArgumentError
from dlbridge.kernels.described import PREFIX as TVM_PREFIX
from dlbridge.kernels.exports import PREFIX

SHARED = re.compile(r".*\.so(\.\d+)*")  # the name of a shared library
_BUILD = re.compile(r"tvm-ffi\d+-(?P<backend>cpu|cu\d+)-(?P<machine>\w+-\w+)")


def exports_kernels(path: Path, prefixes: Iterable[str] = (PREFIX,)) -> bool:
    """Return whether a file has a symbol that begins so: of an entry in the table of DLB_EXPORT."""
    with path.open("rb") as file:
        if not path.stat().st_size:
            return False
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as contents:
            return any(contents.find(b"\0" + prefix.encode()) >= 0 for prefix in prefixes)


def find_built(folder: Path) -> Path:
    """Return the library in a folder that is for this machine.

    Args:
        folder: with the folder "build", or one of the folders in that.

    Raises:
        ArgumentError: there is none for this machine, or more than one.
    """
    chosen = _choose(folder) if (folder / "build").is_dir() else folder
    found = {path.resolve() for path in chosen.rglob("*.so*") if SHARED.fullmatch(path.name)}
    prefixes = (PREFIX, TVM_PREFIX)
    found = {path for path in found if path.is_file() and exports_kernels(path, prefixes)}
    if len(found) != 1:
        names = "".join(f"\n    {path}" for path in sorted(found))
        count = len(found) or "no"
        raise ArgumentError(
            f"load_library: {chosen} has {count} libraries with kernels, of DLB_EXPORT or for "
            f"tvm-ffi; one is needed{':' if found else ''}{names}"
        )
    return found.pop()


def _choose(folder: Path) -> Path:
    """Return the build for this machine: for CUDA where there is a GPU and such a build."""
    machine = f"{platform.machine()}-{sys.platform}"
    names = sorted(each.name for each in (folder / "build").iterdir() if each.is_dir())
    built = [found for name in names if (found := _BUILD.fullmatch(name)) is not None]
    fitting = [found for found in built if found["machine"] == machine]
    for_cuda = [found[0] for found in fitting if found["backend"] != "cpu"]
    for_cpu = [found[0] for found in fitting if found["backend"] == "cpu"]
    chosen = for_cuda if for_cuda and cuda.is_available() else for_cpu
    if len(chosen) == 1:
        return folder / "build" / chosen[0]
    if chosen:
        raise ArgumentError(
            f"load_library: {folder} has several builds for this machine, {', '.join(chosen)}; "
            f"pass the folder of one, {folder / 'build' / chosen[0]}"
        )
    raise ArgumentError(
        f"load_library: {folder} has no build for tvm-ffi on this machine, as in "
        f"build/tvm-ffi01-cpu-{machine}; it has {', '.join(names) or 'none at all'}"
    )

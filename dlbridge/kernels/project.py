"""A new project of a kernel library, which builds and passes its tests as it is written.

The files are those of the folder "template", in which NAME is the name of the library.
"""

from __future__ import annotations

import re
import sys
from keyword import iskeyword
from pathlib import Path

from dlbridge.errors import ArgumentError
from dlbridge.signals import not_from_handler

_TEMPLATE = Path(__file__).parent / "template"
_NAME = re.compile(r"\bNAME\b|(?<=_)NAME\b")


def write_project(name: str, into: Path) -> list[Path]:
    """Write the project of a library into the folder `into / name`.

    Args:
        name: of the distribution, the package and the namespace of its operators.
        into: an existing folder.

    Returns:
        The files that were written.

    Raises:
        ArgumentError: no package can have the name, the folder is there and not empty, or a file
            cannot be written.
    """
    _check_name(name)
    root = into / name
    try:
        _check_place(into, root)
        return _write(name, root)
    except not_from_handler(OSError) as error:
        where, why = error.filename or root, str(error.strerror).lower()
        raise ArgumentError(f"new-kernel-library: cannot write {where}: {why}") from error


def _check_place(into: Path, root: Path) -> None:
    """Refuse a folder that is not there, and one that would be written over."""
    if not into.is_dir():
        kind = "it is not a folder" if into.exists() else "it does not exist; create it first"
        raise ArgumentError(f"new-kernel-library: cannot write into {into}: {kind}")
    if root.exists() and (not root.is_dir() or any(root.iterdir())):
        raise ArgumentError(f"new-kernel-library: {root} is there already; choose another name")


def _write(name: str, root: Path) -> list[Path]:
    written = []
    for path in sorted(_TEMPLATE.rglob("*.in")):
        place = _NAME.sub(name, str(path.relative_to(_TEMPLATE).with_suffix("")))
        target = root / (".gitignore" if place == "gitignore" else place)
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(_NAME.sub(name, path.read_text()))
        written.append(target)
    return written


def _check_name(name: str) -> None:
    """Refuse what cannot be imported, or would hide another module."""
    if not (name.isidentifier() and name.isascii() and name == name.lower()) or name[0] == "_":
        proposed = re.sub(r"\W+", "_", name.lower(), flags=re.ASCII).strip("_")
        advice = f"; {proposed!r} could be one" if proposed.isidentifier() else ""
        raise ArgumentError(
            "new-kernel-library: the name must also be one of a Python package, in lower case: got "
            f"{name!r}{advice}"
        )
    if iskeyword(name) or name in sys.stdlib_module_names or name in ("dlbridge", "test", "tests"):
        raise ArgumentError(f"new-kernel-library: {name!r} means something else to Python")

"""Sources without a native module give way to an installed dlbridge.

`pip install .` compiles the native module into the environment, not into the checkout. Python that
is started in the checkout finds the folder `dlbridge` there first, which cannot be imported. The
package imports this module before all others: it then puts the installed one in its place.
"""

from __future__ import annotations

import re
import sys
from importlib.machinery import EXTENSION_SUFFIXES, ModuleSpec, PathFinder
from importlib.util import module_from_spec
from pathlib import Path
from typing import NoReturn

_HERE = Path(__file__).parent
_VERSION = re.compile(r'^__version__ = "(.*)"$', re.MULTILINE)


def _give_way() -> None:
    """Import the installed dlbridge instead, if this folder is a checkout that is not compiled."""
    if _is_compiled(_HERE) or not (_HERE.parent / "pyproject.toml").is_file():
        return
    found = _find_installed()
    if found is None:
        _refuse("no dlbridge is installed for this Python")
    here, there = _version_of(_HERE), _version_of(Path(str(found.origin)).parent)
    if here != there:
        _refuse(f"the installed dlbridge is version {there}, and they are {here}")
    assert found.loader is not None
    del sys.modules[__name__]
    installed = sys.modules["dlbridge"] = module_from_spec(found)
    found.loader.exec_module(installed)


def _is_compiled(package: Path) -> bool:
    """Return whether there is a native module for this Python."""
    return any((package / "_core" / f"_cffi{suffix}").is_file() for suffix in EXTENSION_SUFFIXES)


def _find_installed() -> ModuleSpec | None:
    """Return the spec of another dlbridge on the path, which is compiled; None for none."""
    for entry in sys.path:
        spec = PathFinder.find_spec("dlbridge", [entry])
        origin = Path(spec.origin).resolve() if spec is not None and spec.origin else None
        if origin is not None and origin.parent != _HERE.resolve() and _is_compiled(origin.parent):
            return spec
    return None


def _version_of(package: Path) -> str:
    found = _VERSION.search((package / "__init__.py").read_text("utf-8"))
    return found[1] if found is not None else "unknown"


def _refuse(why: str) -> NoReturn:
    raise ImportError(
        f"dlbridge: {_HERE} are sources whose native module is not compiled for this Python "
        f"({sys.executable}), and {why}; run `pip install .` in {_HERE.parent} to install them, or "
        "`pip install --editable .` to work on them"
    )


_give_way()

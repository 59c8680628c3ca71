"""Op types, a folder for each family: `declarations`, `functions`, `kernels`, `<framework>`.

The modules of declarations and kernels are imported when the first op type or kernel is looked up.
"""

from __future__ import annotations

from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from dlbridge.execution import registry
from dlbridge.graph.core import opdef


def _load(module: str) -> None:
    """Import the module of this name in every family that has one."""
    for family in iter_modules(__path__):
        name = f"{__name__}.{family.name}.{module}"
        if family.ispkg and find_spec(name):
            import_module(name)


opdef.on_first_use(partial(_load, "declarations"))
registry.add_families(_load)

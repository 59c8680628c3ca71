"""Op types by family: declarations, the functions that users call, kernels."""

from __future__ import annotations

from importlib import import_module
from importlib.util import find_spec
from pkgutil import iter_modules

from dlbridge.graph.core import opdef


def _declare() -> None:
    for family in iter_modules(__path__):
        if family.ispkg and find_spec(f"{__name__}.{family.name}.declarations"):
            import_module(f"{__name__}.{family.name}.declarations")


opdef.on_first_use(_declare)

"""Op types: a module for each family, and its kernels under the same name in `kernels`.

A family declares its op types with their static shapes, and has the functions that users call. The
kernels of `kernels/<family>` are on the array API; `kernels/<framework>` has what a framework does
in its own way. They are imported when the first node runs, those of a framework with its first one.
"""

from __future__ import annotations

from importlib import import_module
from pkgutil import iter_modules

from dlbridge.execution import registry
from dlbridge.graph.core import opdef
from dlbridge.registry import rows


def _load_families() -> None:
    for module in iter_modules(__path__, f"{__name__}."):
        import_module(module.name)


def _load_kernels(which: str) -> None:
    """Import the kernels of one framework alone, or of every family: `"kernels"`."""
    package = import_module(f"{__name__}.kernels")
    names = {module.name for module in iter_modules(package.__path__)}
    wanted = names - {row.name for row in rows()} if which == "kernels" else names & {which}
    for name in sorted(wanted):
        import_module(f"{package.__name__}.{name}")


opdef.on_first_use(_load_families)
registry.add_families(_load_kernels)

"""The table of frameworks: how tensors come in and go out, what is shared, what to know."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version

from dlbridge import frameworks
from dlbridge.exchange import adapter
from dlbridge.terminal import Column, print_table

# mpi4py has no tensors of its own: its calls take a Tensor, and through it what others made.
BUFFERS = (
    "mpi4py",
    "",
    "`__dlpack__` of a Tensor",
    "out",
    "takes a Tensor in any call, also of JAX",
)

COLUMNS = (
    Column("framework"),
    Column("installed"),
    Column("in"),
    Column("out"),
    Column("path", wrap=True),
    Column("zero-copy", wrap=True),
    Column("notes", wrap=True),
)


def collect() -> list[tuple[str, ...]]:
    """Return name, way in, way out, zero-copy and notes of each framework."""
    known = map(adapter.adapter, frameworks.names())
    return [*((f.name, f.way_in, f.way_out, f.zero_copy, f.notes) for f in known), BUFFERS]


def render_markdown() -> str:
    """Return the table for the README; it is the same whatever is installed."""
    header = ("framework", "in", "out", "zero-copy", "notes")
    rows = [header, tuple("---" for _ in header), *collect()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def show() -> None:
    """Print the table, with the versions that are installed here."""
    providers = packages_distributions()
    rows = []
    for name, way_in, way_out, *cells in collect():
        plain = [cell.replace("`", "") for cell in (way_in, way_out, find_path(name), *cells)]
        rows.append([name, find_version(name, providers), *plain])
    print_table(COLUMNS, rows)


def find_version(name: str, providers: Mapping[str, list[str]]) -> str:
    """Return the version of what provides the framework, without importing it; "-" for none."""
    module = "mpi4py" if name == BUFFERS[0] else adapter.adapter(name).module
    for provider in providers.get(module.partition(".")[0], []):
        try:
            return version(provider)
        except PackageNotFoundError:
            continue
    return "-"


def find_path(name: str) -> str:
    """Return which path the tensors of an installed framework take, "" where there is one only."""
    if name == BUFFERS[0] or not adapter.is_installed(name):
        return ""
    return adapter.adapter(name).path()

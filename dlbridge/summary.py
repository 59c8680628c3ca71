"""The table of frameworks: how tensors come in and go out, what is shared, what to know."""

from __future__ import annotations

from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, packages_distributions, version
from typing import NamedTuple

from dlbridge import adapter, frameworks
from dlbridge.terminal import Column, print_table


class Ways(NamedTuple):
    """How tensors of a framework come in, go out, and when that takes no copy."""

    into: str
    out: str
    zero_copy: str


WAYS: dict[str, Ways] = {
    "numpy": Ways("C API", "C API", "both ways"),
    "torch": Ways("C exchange table", "C exchange table", "both ways"),
    "jax": Ways("jaxlib capsule", "jaxlib capsule", "both ways, compact layouts"),
    "tensorflow": Ways("capsule", "capsule", "both ways"),
    "tvm": Ways("tvm_ffi capsule", "tvm_ffi capsule", "both ways"),
    "mlx": Ways("`__dlpack__`", "`__dlpack__`", "in"),
    "pyarrow": Ways("`__dlpack__`", "versioned capsule", "both ways, no negative strides"),
    "paddle": Ways("C exchange table", "C exchange table", "both ways, no negative strides"),
    "dpnp": Ways("`__dlpack__`", "`__dlpack__`", "both ways on SYCL devices"),
    "cupy": Ways("`__dlpack__`", "`__dlpack__`", "both ways on GPUs"),
    "mxnet": Ways("capsule", "capsule", "both ways"),
}
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
    Column("zero-copy", wrap=True),
    Column("notes", wrap=True),
)


def collect() -> list[tuple[str, ...]]:
    """Return name, way in, way out, zero-copy and notes of each framework."""
    rows = [(name, *WAYS[name], adapter.adapter(name).notes) for name in frameworks.names()]
    return [*rows, BUFFERS]


def render_markdown() -> str:
    """Return the table for the README; it is the same whatever is installed."""
    header = ("framework", "in", "out", "zero-copy", "notes")
    rows = [header, tuple("---" for _ in header), *collect()]
    return "\n".join(f"| {' | '.join(row)} |" for row in rows)


def show() -> None:
    """Print the table, with the versions that are installed here."""
    providers = packages_distributions()
    rows = []
    for name, *cells in collect():
        plain = [cell.replace("`", "") for cell in cells]
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

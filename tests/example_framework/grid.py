"""A made-up array library: grids of 32-bit floats that know nothing of dlbridge.

With `grid_dlbridge` beside it, it is the example of how a framework is added; see CONTRIBUTING.md.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable


class Kind:
    """The dtype of a grid."""

    def __init__(self, name: str) -> None:
        self.name = name


kinds = {"float": Kind("float")}


class Grid:
    """Rows and columns of 32-bit floats, in memory of its own or of `memory`, a buffer."""

    def __init__(
        self, rows: int, columns: int, values: Iterable[float] = (), memory: object = None
    ) -> None:
        self.rows, self.columns = rows, columns
        self.memory = array("f", values) if memory is None else memory
        self.cells = memoryview(self.memory).cast("B").cast("f")  # type: ignore[arg-type]

    def __getitem__(self, at: tuple[int, int]) -> float:
        return self.cells[at[0] * self.columns + at[1]]

    def __setitem__(self, at: tuple[int, int], value: float) -> None:
        self.cells[at[0] * self.columns + at[1]] = value

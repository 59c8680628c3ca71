"""Print tables for people: with rich where it is installed, as plain text elsewhere."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from dlbridge.signals import not_from_handler
from dlbridge.text import escape_controls


class Column(NamedTuple):
    """A heading, and how its cells are set."""

    heading: str
    right: bool = False
    """Figures are aligned to the right."""
    wrap: bool = False
    """The one column that gives way when the terminal is narrow."""


STYLES = {"shared": "green", "same": "green", "copied": "yellow", "refused": "red"}


def print_table(columns: Sequence[Column], rows: Sequence[Sequence[str]]) -> None:
    """Print the rows below their headings; cells that begin with a key of `STYLES` get colour."""
    rows = [[escape_controls(cell, lines=True) for cell in row] for row in rows]
    try:
        from rich.console import Console
        from rich.table import Table
    except not_from_handler(ImportError):
        print(render_plain(columns, rows, shutil.get_terminal_size((120, 24)).columns))  # noqa: T201
        return
    table = Table(header_style="bold", border_style="dim")
    for column in columns:
        justify = "right" if column.right else "left"
        table.add_column(column.heading, justify=justify, no_wrap=not column.wrap)  # type: ignore[arg-type, unused-ignore]
    for row in rows:
        table.add_row(*map(paint, row))
    console = Console()
    if not console.is_terminal:
        console.width = 140
    console.print(table)


@contextmanager
def progress(what: str) -> Iterator[Callable[[int, int], None]]:
    """Yield a function that shows on standard error how many of how many are done.

    Nothing is shown where standard error is no terminal. The function may be called by any thread.
    """
    if not sys.stderr.isatty():
        yield lambda _done, _total: None
        return
    try:
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn
    except not_from_handler(ImportError):

        def show(done: int, total: int) -> None:
            print(f"\r{done:,} of {total:,} {what}", end="", file=sys.stderr)  # noqa: T201

        try:
            yield show
        finally:
            print(file=sys.stderr)  # noqa: T201
        return
    columns = (what, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(what)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def paint(cell: str) -> str:
    """Return the cell with rich's markup for its first word's style."""
    style = STYLES.get(cell.split(" ", 1)[0])
    text = cell.replace("[", r"\[")
    return f"[{style}]{text}[/{style}]" if style else text


def render_plain(columns: Sequence[Column], rows: Sequence[Sequence[str]], width: int) -> str:
    """Return the table as text of `width` columns, if the wrapped column can shrink that far."""
    cells = [[column.heading for column in columns], *map(list, rows)]
    widths = [max(map(len, entries)) for entries in zip(*cells, strict=True)]
    for index, column in enumerate(columns):
        if column.wrap:
            excess = sum(widths) + 2 * (len(widths) - 1) - width
            widths[index] = max(20, widths[index] - max(0, excess))
    lines = [line for row in cells for line in lay_out(columns, row, widths)]
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def lay_out(columns: Sequence[Column], row: Sequence[str], widths: Sequence[int]) -> list[str]:
    """Return the lines of one row."""
    wrapped = [textwrap.wrap(cell, width) or [""] for cell, width in zip(row, widths, strict=True)]
    lines = []
    for number in range(max(map(len, wrapped))):
        parts = [cell[number] if number < len(cell) else "" for cell in wrapped]
        set_parts = [
            part.rjust(width) if column.right else part.ljust(width)
            for column, part, width in zip(columns, parts, widths, strict=True)
        ]
        lines.append("  ".join(set_parts).rstrip())
    return lines

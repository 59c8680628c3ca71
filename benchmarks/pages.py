"""Tables in the documentation, which the benchmarks renew between two marks."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from dlbridge.files import write_file

_END = "<!-- end -->"


def put(page: Path, name: str, text: str) -> None:
    """Put text between `<!-- name -->` and the next `<!-- end -->` of a page.

    Raises:
        ValueError: the page has no such marks.
    """
    start = f"<!-- {name} -->"
    before, found, after = page.read_text().partition(start)
    _, ended, rest = after.partition(_END)
    if not (found and ended):
        raise ValueError(f"{page}: there is no {start} with an end")
    write_file(page, [f"{before}{start}\n{text}\n{_END}{rest}".encode()])


def table(header: Sequence[str], rows: Iterable[Sequence[str]], *, words: int = 1) -> str:
    """Return a table of Markdown; the first columns, so many, are words, the others numbers."""
    lines = [f"| {' | '.join(header)} |", f"|{'---|' * words}{'--:|' * (len(header) - words)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join(lines)

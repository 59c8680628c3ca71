"""Text of C, C++ and CUDA C++: what can be said of it without a compiler."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from dlbridge.errors import ArgumentError
from dlbridge.exchange.protocol import describe
from dlbridge.signals import not_from_handler

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


def check_text(what: str, value: object) -> None:
    """Refuse text that a compiler cannot read.

    Args:
        what: the argument, for the text; with the call where nobody else adds that.
        value: of it.

    Raises:
        ArgumentError: it is not text, or contains NUL or lone surrogates.
    """
    if not isinstance(value, str):
        raise ArgumentError(f"{what} must be text, got {describe(value)}")
    if "\0" in value or (
        not value.isascii() and value != value.encode("utf-8", "replace").decode()
    ):
        raise ArgumentError(f"{what} must be text without NUL and lone surrogates")


def lines_with(source: str, name: str) -> str:
    r"""Return "line 3, 7 of the source" for those that have a name outside of comments, or "".

    Example:
        >>> lines_with("int f(int);  // f\n\nint g(int x) { return f(x); }", "f")
        'line 1, 3 of the source'
    """
    text = COMMENT.sub(lambda each: "\n" * each[0].count("\n"), source)
    lines = [
        str(number)
        for number, line in enumerate(text.splitlines(), 1)
        if re.search(rf"\b{re.escape(name)}\b", line)
    ]
    return f"line {', '.join(lines)} of the source" if lines else ""


_INCLUDE = re.compile(r'^[ \t]*#[ \t]*include(?:_next)?[ \t]*(["<])([^">\n]+)[">]', re.MULTILINE)
_FOLDERS = ("--include-path", "-I")
_FILES = ("-include", "-imacros", "--pre-include")


def included(source: str, flags: Sequence[str], skipped: Sequence[str] = ()) -> list[str]:
    """Return path and text of each file of its author that a source includes, for a cache's key.

    They are looked for as compilers do: `"mine.h"` beside the file that includes it, for the source
    in the current folder, then in the folders of `-iquote`, and all in those of `-I`. Those of the
    system are left out, and so is what a macro names. Those in `#if 0` are not.

    Args:
        source: the text.
        flags: options of the compiler.
        skipped: names that are known otherwise.
    """
    folders = [Path(value) for value in _values(flags, _FOLDERS)]
    quoted = [*[Path(value) for value in _values(flags, ("-iquote",))], *folders]
    seen: set[Path] = set()  # by one path each: files may include each other
    found: dict[Path, str] = {}
    left = [(Path(), '"', value) for value in _values(flags, _FILES)]
    left += [(Path(), *each) for each in _INCLUDE.findall(source) if each[1] not in skipped]
    while left:
        beside, kind, name = left.pop()
        places = [beside, *quoted] if kind == '"' else folders
        path = next((each / name for each in places if (each / name).is_file()), None)
        if path is None or (own := path.parent.resolve() / path.name) in seen:
            continue
        seen.add(own)
        try:
            found[path] = path.read_text(errors="surrogateescape")
        except not_from_handler(OSError):
            continue  # the compiler says why
        left += [(path.parent, *each) for each in _INCLUDE.findall(found[path])]
    return [f"{path}\n{text}" for path, text in sorted(found.items())]


def _values(flags: Sequence[str], names: Sequence[str]) -> Iterator[str]:
    """Yield the values of options, which follow them or are the next flag."""
    following = iter(flags)
    for flag in following:
        name = next((each for each in names if flag.startswith(each)), None)
        if name is not None:
            value = flag[len(name) :].removeprefix("=") or next(following, "")
            if value:
                yield value

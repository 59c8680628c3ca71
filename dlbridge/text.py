"""Text from outside, made safe to show: in a terminal, a log, a table, a picture."""

from __future__ import annotations

import re

# C0 and C1 controls with DEL, marks and overrides of the direction of writing, line and paragraph
# separators, surrogates, the byte order mark.
_CONTROLS = re.compile(
    "[\0-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)
_EXCEPT_LINES = re.compile(
    "[\0-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff\ufeff]"
)


def escape_controls(text: str, lines: bool = False) -> str:
    r"""Return text with control characters as Python writes them, all others as they are.

    A name, value or schema may come from a file of somebody else. In it, an escape sequence would
    move the cursor of a terminal or rewrite its contents, and an override of the direction of
    writing would show other words than there are. Escaping twice is escaping once.

    Args:
        text: of any characters.
        lines: whether line feeds and tabs are kept: the text has several lines.

    Example:
        >>> print(escape_controls("\x1b[2Jdone\n"), escape_controls("één", lines=True))
        \x1b[2Jdone\n één
    """
    if text.isprintable():
        return text
    return (_EXCEPT_LINES if lines else _CONTROLS).sub(_as_written, text)


def _as_written(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]

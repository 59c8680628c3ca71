"""Text from outside, made safe to show: in a terminal, a log, a table, a picture."""

from __future__ import annotations

import re
from collections.abc import Iterable

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


_SHOWN = 200  # letters of a long line, on either side of the place


def point(text: str, place: int) -> str:
    r"""Return the line of a text in which a letter stands, and below it a mark under that letter.

    Of a very long line, what is near the letter is shown.

    Example:
        >>> print(point("one\ntwo, three", 9))
            two, three
                 ^
    """
    before, after = text[:place], text[place:]
    before, after = before[before.rfind("\n") + 1 :], after.partition("\n")[0]
    if len(before) + len(after) > 3 * _SHOWN:
        before = f"…{before[-_SHOWN:]}" if len(before) > _SHOWN else before
        after = f"{after[:_SHOWN]}…" if len(after) > _SHOWN else after
    before, after = (escape_controls(part.expandtabs(1)) for part in (before, after))
    return f"    {before}{after}\n    {' ' * len(before)}^"


def _as_written(found: re.Match[str]) -> str:
    return repr(found[0])[1:-1]


def did_you_mean(word: object, known: Iterable[str]) -> str:
    """Return the end of a text that refuses a word: the nearest of those that are known, or "".

    There is none for private names, for which programs such as inspect ask every module.

    Example:
        >>> did_you_mean("torhc", ["numpy", "torch"])
        "; did you mean 'torch'?"
    """
    if isinstance(word, str) and word.startswith("_"):
        return ""
    from difflib import get_close_matches  # only once somebody has made a mistake

    lowered = {each.lower(): each for each in known}
    found = get_close_matches(str(word).lower(), lowered, 1)
    return f"; did you mean {lowered[found[0]]!r}?" if found else ""

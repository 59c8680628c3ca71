"""Text of C, C++ and CUDA C++: what can be said of it without a compiler."""

from __future__ import annotations

import re

COMMENT = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)


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

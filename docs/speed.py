"""Draw speed.svg, and renew the table of the README, from the first table of performance.md.

`python docs/speed.py` after that table was renewed.
"""

from __future__ import annotations

import re
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
README = DOCS.parent / "README.md"
# What a reader of the README sees: each direction of the most common pairs, at most eight.
SHOWN = (
    "`to_numpy(torch)`", "`to_torch(numpy)`", "`to_torch(jax)`", "`to_jax(torch)`",
    "`to_jax(numpy)`", "`to_tensorflow(numpy)`", "`from_dlpack(torch)`",
)  # fmt: skip
WIDTH, ROW, LEFT, UNIT = 960, 24, 560, 300
FONT = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif" font-size="12"'
INK, PALE, FAST, SLOW = "#1f2a37", "#9aa7b5", "#2e7d4f", "#b26a00"


def rows(page: str) -> list[list[str]]:
    """Return the rows of the table of exchanges: ours, theirs, two times and their ratio."""
    found = re.search(r"<!-- benchmark -->\n(.*?)\n\n", page, re.DOTALL)
    if found is None:
        raise ValueError("performance.md has no table of exchanges")
    return [line.strip("| ").split(" | ") for line in found[1].splitlines()[2:]]


def machine(page: str) -> str:
    """Return the line that says what the table was measured on."""
    found = re.search(r"<!-- benchmark -->\n.*?\n\n(\(.*?\))\n<!-- end -->", page, re.DOTALL)
    if found is None:
        raise ValueError("performance.md does not say what the table was measured on")
    return found[1]


def table(page: str) -> str:
    """Return the short table: of each row that is shown, the best that others have."""
    lines = ["| dlbridge | the fastest other | ns | theirs | ratio |", "|---|---|--:|--:|--:|"]
    for name in SHOWN:
        best = max((row for row in rows(page) if row[0] == name), key=lambda row: float(row[4]))
        lines.append(f"| {' | '.join(best)} |")
    return "\n".join([*lines, "", machine(page)])


def picture(page: str) -> str:
    """Return the ratio of every row as a bar, with a line where both sides take the same time."""
    found = rows(page)
    height = ROW * (len(found) + 2)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" {FONT}>',
        f'<rect width="{WIDTH}" height="{height}" fill="white"/>',
    ]
    for at, (ours, theirs, _, _, ratio) in enumerate(found):
        y = ROW * (at + 1)
        label = escape(f"{ours} / {theirs}".replace("`", ""))
        length = UNIT * float(ratio)
        colour = FAST if float(ratio) <= 1 else SLOW
        parts += [
            f'<text x="{LEFT - 8}" y="{y + 12}" text-anchor="end" fill="{INK}">{label}</text>',
            f'<rect x="{LEFT}" y="{y}" width="{length:.0f}" height="{ROW - 8}" fill="{colour}"/>',
            f'<text x="{LEFT + length + 5:.0f}" y="{y + 12}" fill="{INK}">{ratio}</text>',
        ]
    x, end = LEFT + UNIT, ROW * (len(found) + 1)
    parts += [
        f'<path d="M{x},{ROW - 8} V{end}" stroke="{PALE}" stroke-dasharray="4 3"/>',
        f'<text x="{x}" y="{end + 14}" text-anchor="middle" fill="{INK}">same time</text>',
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def renewed(readme: str, page: str) -> str:
    """Return the README with the short table of today's page."""
    text = f"<!-- speed -->\n{table(page)}\n<!-- end -->"
    return re.sub(r"<!-- speed -->.*?<!-- end -->", lambda _: text, readme, flags=re.DOTALL)


if __name__ == "__main__":
    performance = (DOCS / "performance.md").read_text()
    (DOCS / "speed.svg").write_text(picture(performance))
    README.write_text(renewed(README.read_text(), performance))

"""Draw the pictures of the concept pages: `python docs/concept_pictures.py` writes them."""

from __future__ import annotations

import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))

from picture import FONTS, INK, LINE, PALE, arrow, box, text  # noqa: E402

BLUE, GREEN, AMBER = "#3f6fb5", "#2e7d4f", "#b26a00"


def frame(width: int, height: int, title: str, parts: list[str]) -> str:
    """Return a picture with a white ground."""
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" {FONTS}>',
            f"<title>{title}</title>",
            f'<rect width="{width}" height="{height}" rx="12" fill="white"/>',
            *parts,
            "</svg>",
        ]
    )


def card(x: float, y: float, w: float, title: str, lines: list[str], stroke: str) -> list[str]:
    """Return a box with a heading and a few lines."""
    parts = [box(x, y, w, 34 + 18 * len(lines), PALE, stroke)]
    parts += [text(x + w / 2, y + 23, title, 14, weight="bold")]
    for row, line in enumerate(lines):
        parts += [text(x + w / 2, y + 43 + 18 * row, line, 12)]
    return parts


def labelled(x1: float, x2: float, y: float, words: str, stroke: str = LINE) -> list[str]:
    """Return a straight arrow with words above it."""
    return [arrow(x1, y, x2, y, stroke), text((x1 + x2) / 2, y - 8, words, 12, stroke)]


def back(x1: float, x2: float, y: float, words: str) -> list[str]:
    """Return an arrow to the left with words below it."""
    return [
        f'<path d="M{x1},{y} H{x2 + 7}" stroke="{AMBER}" stroke-dasharray="5 4" fill="none"/>',
        f'<path d="M{x2},{y} l8,-4.5 v9 z" fill="{AMBER}"/>',
        text((x1 + x2) / 2, y + 18, words, 12, AMBER),
    ]


def ownership() -> str:
    """Return the way of a capsule from the producer to the deleter."""
    parts = [
        *card(30, 60, 190, "producer", ["its array", "and its memory"], GREEN),
        *card(350, 60, 250, "managed tensor", ["data, shape, strides", "deleter, reference"], BLUE),
        *card(730, 60, 190, "consumer", ["its array over", "the same memory"], GREEN),
        *labelled(220, 350, 88, "1. exports", GREEN),
        *labelled(600, 730, 88, "2. takes", GREEN),
        *back(730, 600, 118, "3. deleter"),
        *back(350, 220, 118, "4. gives up"),
        *card(30, 230, 890, "one block of memory", [], LINE),
    ]  # fmt: skip
    for x in (125, 475, 825):
        parts += [
            f'<path d="M{x},131 V222" stroke="{LINE}" stroke-width="1.4" stroke-dasharray="2 3"/>',
            f'<path d="M{x},230 l-4.5,-8 h9 z" fill="{LINE}"/>',
        ]
    parts += [text(487, 190, "all three point to it", 12, INK, anchor="start")]
    parts += [text(475, 30, "a capsule carries the managed tensor, and is used up by step 2", 13)]
    return frame(
        950, 290, "Who owns the memory of an exchanged tensor, and who gives it back", parts
    )


def streams() -> str:
    """Return two streams with the events between them."""
    parts = [text(30, 40, "time", 12, "#5b6b7c", anchor="start"), arrow(70, 36, 200, 36)]
    for y, name in ((100, "producer's stream"), (220, "consumer's stream")):
        parts += [text(30, y + 5, name, 13, weight="bold", anchor="start")]
        parts += [arrow(170, y, 920, y)]
    blocks = [
        (190, 100, 130, "kernel writes x", GREEN),
        (420, 220, 190, "kernel reads x", BLUE),
        (730, 100, 150, "memory used again", GREEN),
    ]
    for x, y, w, words, stroke in blocks:
        parts += [box(x, y - 20, w, 40, PALE, stroke), text(x + w / 2, y + 5, words, 13)]
    for x1, y1, x2, y2, words, at in (
        (340, 100, 405, 220, "event: x is ready", (358, 168, "end")),
        (630, 220, 718, 100, "event: x is free", (690, 168, "start")),
    ):
        parts += [
            f'<circle cx="{x1}" cy="{y1}" r="5" fill="{AMBER}"/>',
            f'<path d="M{x1},{y1} L{x2},{y2}" stroke="{AMBER}" stroke-width="1.6" fill="none"/>',
            f'<circle cx="{x2}" cy="{y2}" r="5" fill="white" stroke="{AMBER}" stroke-width="1.6"/>',
            text(at[0], at[1], words, 12, AMBER, anchor=at[2]),
        ]
    words = "a stream waits at each ring until the event has happened; the host never waits"
    parts += [text(475, 285, words, 13)]
    return frame(950, 310, "Two streams and the two events of an exchange", parts)


PICTURES = {"ownership.svg": ownership, "streams.svg": streams}


if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (HERE / name).write_text(drawn() + "\n")

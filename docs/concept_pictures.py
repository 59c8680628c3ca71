"""Draw the pictures of the pages: `python docs/concept_pictures.py` writes them."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import dlbridge.graph as tf

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


# ---- the parts of a graph ----------------------------------------------------------------------

STEP, ROW, NODE = 110, 62, 86  # pixels from column to column and row to row, and of a node


def parts_of_a_graph() -> dict[str, Any]:
    """Return the parts of a small graph: two workers, and a task that has the value of both."""
    cluster = {"ps": ["a:2222"], "worker": ["b:2222", "c:2222"]}
    with tf.Graph().as_default():
        with tf.device("/job:ps"):
            w = tf.constant([1.0, 2.0], name="w")
        made = []
        for i in range(2):
            with tf.device(f"/job:worker/task:{i}"):
                made.append(tf.square(w, name=f"square_{i}"))
        with tf.device("/job:ps"):
            total = tf.add(*made, name="total")
        with tf.device("/job:worker/task:1"), tf.control_dependencies([total]):
            done = tf.no_op(name="done")
        return tf.train.partition_graph([total, done], cluster=cluster)


def edges_of(nodes: dict[tuple[str, str], Any]) -> list[tuple[Any, Any, str]]:
    """Return the edges between nodes: "value", "control" or "message"."""
    found, ends = [], {}
    for (task, name), node in nodes.items():
        for each in node.input:
            source = each.removeprefix("^").partition(":")[0]
            kind = "control" if each.startswith("^") else "value"
            found.append(((task, source), (task, name), kind))
        if node.op in ("_Send", "_Recv") and not node.attr["client_terminated"].b:
            ends[node.attr["tensor_name"].s, node.op] = task, name
    for (message, op), key in ends.items():
        if op == "_Send":
            found.append((key, ends[message, "_Recv"], "message"))
    return found


def partition() -> str:
    """Return the parts of a graph with the messages between them, as `partition_graph` cuts it."""
    graphs = parts_of_a_graph()
    nodes = {(task, node.name): node for task, part in graphs.items() for node in part.node}
    edges = edges_of(nodes)
    columns = dict.fromkeys(nodes, 0)
    for _ in nodes:  # as often as the longest way has nodes at most
        for source, target, _kind in edges:
            columns[target] = max(columns[target], columns[source] + 1)
    at: dict[Any, tuple[float, float]] = {}
    pieces, top = [], 20.0
    width = 40 + (max(columns.values()) + 1) * STEP
    for task in graphs:
        inside = [key for key in nodes if key[0] == task]
        taken: dict[int, int] = {}
        for key in inside:
            row = taken[columns[key]] = taken.get(columns[key], -1) + 1
            at[key] = 26 + columns[key] * STEP, top + 34 + row * ROW
        height = 34 + (max(taken.values()) + 1) * ROW
        pieces += [box(12, top, width - 24, height, PALE, LINE)]
        pieces += [text(24, top + 21, task, 13, weight="bold", anchor="start")]
        top += height + 26
    for source, target, kind in edges:
        (x1, y1), (x2, y2) = at[source], at[target]
        stroke = {"value": LINE, "control": LINE, "message": AMBER}[kind]
        line = arrow(x1 + NODE, y1 + 22, x2, y2 + 22, stroke)
        dashes = {"value": "", "control": "2 3", "message": "6 4"}[kind]
        pieces.append(line.replace(' fill="none"', f' fill="none" stroke-dasharray="{dashes}"', 1))
    for key, node in nodes.items():
        (x, y), is_end = at[key], node.op in ("_Send", "_Recv")
        pieces += [box(x, y, NODE, 44, "#fff4e0" if is_end else "white", AMBER if is_end else BLUE)]
        pieces += [text(x + NODE / 2, y + 19, shortened(node.name), 11, weight="bold")]
        pieces += [text(x + NODE / 2, y + 35, node.op, 11)]
    words = (
        "dashed: a message over MPI; dotted: runs after; _send_total_0 gives the result to the user"
    )
    pieces += [text(width / 2, top + 4, words, 12)]
    return frame(width, int(top + 20), "The parts of a graph and their messages", pieces)


def shortened(name: str) -> str:
    """Return a name that fits into a node."""
    return name if len(name) <= 14 else f"{name[:13]}…"


PICTURES = {"ownership.svg": ownership, "partition.svg": partition, "streams.svg": streams}


if __name__ == "__main__":
    for name, drawn in PICTURES.items():
        (HERE / name).write_text(drawn() + "\n")

"""Draw bridge.svg, the picture in the README: `python docs/picture.py > docs/bridge.svg`."""

from __future__ import annotations

FRAMEWORKS = [
    "NumPy", "PyTorch", "JAX", "TensorFlow", "TVM", "CuPy",
    "Paddle", "MXNet", "MLX", "dpnp", "PyArrow", "ONNX Runtime", "Warp", "mpi4py",
]  # fmt: skip
WAYS_IN = [
    ("C exchange table", "PyTorch, Paddle"),
    ("NumPy C API", "NumPy"),
    ("buffer protocol", "bytes, mmap, memoryview"),
    ("DLPack capsule", "JAX, TensorFlow, all others"),
    ("array interfaces", "CUDA and NumPy style"),
]
QUESTIONS = ["dtype", "device", "strides", "alignment", "read-only", "lazy flags"]
ANSWERS = [
    ("share", "same memory, no copy", "#2e7d4f"),
    ("copy", "the receipt says who and why", "#b26a00"),
    ("refuse", "one exception, a reason code", "#b3372f"),
]
INK, PALE, LINE = "#1f2a37", "#f4f6f9", "#9aa7b5"
FONTS = 'font-family="Helvetica, Arial, DejaVu Sans, sans-serif"'
WIDTH, HEIGHT = 1040, 420


def box(x: float, y: float, w: float, h: float, fill: str = "white", stroke: str = LINE) -> str:
    """Return a rounded rectangle."""
    return (
        f'<rect x="{x}" y="{y}" width="{w}" height="{h}" rx="7" fill="{fill}" stroke="{stroke}"/>'
    )


def text(
    x: float, y: float, words: str, size: int = 13, fill: str = INK, weight: str = "normal",
    anchor: str = "middle",
) -> str:  # fmt: skip
    """Return one line of text with its baseline at `y`."""
    return (
        f'<text x="{x}" y="{y}" font-size="{size}" fill="{fill}" font-weight="{weight}" '
        f'text-anchor="{anchor}">{words}</text>'
    )


def arrow(x1: float, y1: float, x2: float, y2: float, stroke: str = LINE) -> str:
    """Return a curve with a head, horizontal at both ends."""
    middle = (x1 + x2) / 2
    return (
        f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2 - 7},{y2}" fill="none" '
        f'stroke="{stroke}" stroke-width="1.6"/>'
        f'<path d="M{x2},{y2} l-8,-4.5 v9 z" fill="{stroke}"/>'
    )


def column(x: float, title: str, w: float) -> list[str]:
    """Return a heading over a column."""
    return [text(x + w / 2, 38, title, 14, weight="bold")]


def frameworks(x: float, title: str, left_out: str = "") -> list[str]:
    """Return the stack of frameworks."""
    parts = column(x, title, 110)
    names = [name for name in FRAMEWORKS if name != left_out]
    for row, name in enumerate(names):
        y = 56 + row * 25
        parts += [box(x, y, 110, 21, PALE), text(x + 55, y + 15, name, 12)]
    return parts


def ways_in(x: float) -> list[str]:
    """Return the entry points, fastest first."""
    parts = column(x, "fastest safe way in", 180)
    for row, (name, who) in enumerate(WAYS_IN):
        y = 80 + row * 60
        parts += [box(x, y, 180, 46), text(x + 90, y + 20, name, 13, weight="bold")]
        parts += [text(x + 90, y + 37, who, 11, "#5b6b7c"), arrow(150, 230, x, y + 23)]
        parts += [arrow(x + 180, y + 23, 410, 230)]
    return parts


def tensor(x: float) -> list[str]:
    """Return the Tensor and what is asked about it."""
    parts = column(x, "one native owner", 200)
    parts += [box(x, 80, 200, 286, "#e9f0fb", "#3f6fb5")]
    parts += [text(x + 100, 110, "Tensor", 18, "#24508f", "bold")]
    parts += [text(x + 100, 131, "shape · strides · dtype · device", 11)]
    parts += [text(x + 100, 148, "released once, on any thread", 11)]
    parts += [f'<path d="M{x + 20},164 h160" stroke="#3f6fb5" stroke-dasharray="3 3"/>']
    parts += [text(x + 100, 187, "before the other side sees it:", 11, "#5b6b7c")]
    for row, question in enumerate(QUESTIONS):
        y = 200 + row * 26
        parts += [box(x + 40, y, 120, 21, "white", "#b9cbe6"), text(x + 100, y + 15, question, 12)]
    return parts


def answers(x: float) -> list[str]:
    """Return what may come out of an exchange."""
    parts = column(x, "never silently", 200)
    for row, (word, meaning, colour) in enumerate(ANSWERS):
        y = 100 + row * 88
        parts += [arrow(610, 230, x, y + 32, colour), box(x, y, 200, 64, "white", colour)]
        parts += [text(x + 100, y + 28, word, 16, colour, "bold")]
        parts += [text(x + 100, y + 48, meaning, 11.5)]
        if word != "refuse":
            parts += [arrow(x + 200, y + 32, 900, 230, colour)]
    return parts


def draw() -> str:
    """Return the picture."""
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {HEIGHT}" {FONTS}>',
        "<title>How a tensor of one framework becomes a tensor of another</title>",
        f'<rect width="{WIDTH}" height="{HEIGHT}" rx="12" fill="white"/>',
        *frameworks(30, "a tensor of …", left_out="mpi4py"),
        *ways_in(190),
        *tensor(410),
        *answers(650),
        *frameworks(900, "… becomes one of"),
        "</svg>",
    ]
    return "\n".join(parts)


if __name__ == "__main__":
    print(draw())

"""Draw architecture.svg from the real imports: `python docs/architecture.py`.

Boxes are the layers that tests/package/test_layers.py and tests/core/test_core_layers.py check.
An arrow goes from a layer to one that it imports (Python) or includes and calls (C). Arrows that
follow from others are left out. `dot` of Graphviz places the boxes.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PICTURE = ROOT / "docs" / "architecture.svg"
sys.path.insert(0, str(ROOT / "tests"))

Edges = set[tuple[str, str]]

# Layers that are one box.
TOGETHER = {
    "graph.ops.kernels": "graph.ops",
    **dict.fromkeys(("signals", "calls", "files", "registry", "device", "shape"), "dtype"),
    **dict.fromkeys(("text", "checkout"), "errors"),
    **dict.fromkeys(("demo", "terminal", "__main__"), "cli"),
    "testing": "check",
}
# Title and purpose of each box.
PYTHON = {
    "errors": ("errors · text", "exceptions, safe text"),
    "_core": ("_core", "the C core"),
    "dtype": ("files · registry · dtype · device · shape", "names and rules without memory"),
    "cuda": ("cuda", "streams, memory, modules"),
    "tensor": ("tensor", "Tensor, views, allocators"),
    "exchange": ("exchange", "take, fit, give"),
    "kernels.schema": ("kernels/schema", "the notation, argument checks"),
    "kernels.gradients": ("kernels/gradients", "derivatives of kernels"),
    "kernels.kinds": ("kernels/kinds", "what can be wrapped"),
    "kernels": ("kernels", "wrap, Kernel, compile_c"),
    "proto": ("proto", "TensorFlow's messages"),
    "check": ("check · testing", "of DLPack, of kernels"),
    "execution": ("execution", "plans and placement"),
    "frameworks": ("frameworks/<name>", "adapter, kernel binding"),
    "mpi": ("mpi", "collectives, messages"),
    "graph.core": ("graph/core", "Graph, Operation, Tensor"),
    "graph.distributed": ("graph/distributed", "clusters, parts of a graph"),
    "graph.session": ("graph/session", "feeds, fetches, runs"),
    "graph.ops": ("graph/ops", "op types and their kernels"),
    "graph.variables": ("graph/variables", "variables and scopes"),
    "graph.graphdef": ("graph/graphdef", "GraphDef in and out"),
    "graph": ("graph", "TensorFlow 1.x's names"),
    "cli": ("cli · demo", "the command dlbridge"),
}
C = {
    "core.h": ("core.h", "the contract"),
    "layout": ("layout", "checks on a DLTensor"),
    "memory": ("memory", "counted buffers, copies"),
    "cuda": ("cuda", "driver, streams, memory"),
    "python": ("python", "state, GIL, NumPy's table"),
    "mpi": ("mpi", "agreement, small tensors"),
    "engine": ("engine", "runs of a graph"),
    "tensor": ("tensor", "Tensor, capsules"),
    "torch": ("torch", "the inside of libtorch"),
    "kernel": ("kernel", "signatures, one call"),
    "peers": ("peers", "a row for each array type"),
    "exchange": ("exchange", "from_dlpack, convert"),
    "abi": ("abi", "calling conventions"),
    "xla": ("xla", "XLA's typed FFI"),
    "tensorflow": ("tensorflow", "the op of TensorFlow"),
    "onnxruntime": ("onnxruntime", "operators of models"),
    "call": ("call", "Python arguments to a call"),
    "torch_op": ("torch_op", "operators of torch"),
    "module.c": ("module.c", "the module"),
}
COLOURS = {"kernels": "#fdf1dd", "graph": "#e6f3ea", "execution": "#e6f3ea", "proto": "#e6f3ea"}
STYLE = (
    'graph [fontname="Helvetica", fontsize=17, nodesep=0.22, ranksep=0.3, pad=0.15]',
    "graph [labeljust=l, style=rounded]",
    'node [shape=box, style="rounded,filled", color="#9aa7b5", fontname="Helvetica"]',
    'node [fontsize=12, margin="0.14,0.05", height=0.1]',
    'edge [color="#6b7a8a", arrowsize=0.6]',
)
PANELS = (("", "Python: dlbridge/", PYTHON), ("_core/", "C: dlbridge/_core/", C))


def find_python_edges() -> Edges:
    """Return the imports between layers of Python modules; the package's root is above them all."""
    from package import test_layers as tests

    edges = set()
    for name, others in tests.import_graph(tests.MODULES).items():
        above = tests.layer(name)
        for below in filter(None, map(tests.layer, others)):
            if above is not None and tests.RANKS[above] > tests.RANKS[below]:  # as the tests demand
                edges.add((TOGETHER.get(above, above), TOGETHER.get(below, below)))
    return {(a, b) for a, b in edges if a != b}


def find_c_edges() -> Edges:
    """Return the includes and calls between folders of the C core."""
    from core import test_core_layers as tests

    uses = tests.find_uses(tests.CORE)
    edges = {(tests.layer_of(use.source), tests.layer_of(use.target)) for use in uses}
    return {(a, b) for a, b in edges if a != b}


def reduce(edges: Edges) -> Edges:
    """Return the edges that do not follow from others."""
    below: dict[str, set[str]] = {}
    for a, b in edges:
        below.setdefault(a, set()).add(b)

    def reachable(layer: str) -> set[str]:
        found: set[str] = set()
        rest = [layer]
        while rest:
            new = below.get(rest.pop(), set()) - found
            found |= new
            rest += new
        return found

    return {(a, b) for a, b in edges if not any(b in reachable(c) for c in below[a] - {b})}


def find_edges() -> Edges:
    """Return the arrows of the picture."""
    below = {(f"_core/{a}", f"_core/{b}") for a, b in reduce(find_c_edges())}
    return reduce(find_python_edges()) | below


def write_dot() -> str:
    """Return the picture in the language of Graphviz."""
    lines = ["digraph architecture {", *STYLE]
    edges = find_edges()
    layers = {layer for edge in edges for layer in edge}
    for prefix, title, words in PANELS:
        lines.append(f'subgraph "cluster{prefix}" {{ label="{title}"; color="#d5dbe2"; margin=14')
        for name, (head, purpose) in words.items():
            if prefix + name in layers:
                lines.append(f'"{prefix}{name}" [{describe(prefix, name, head, purpose)}]')
        lines.append("}")
    lines += [f'"{a}" -> "{b}"' for a, b in sorted(edges)]
    return "\n".join([*lines, "}"])


def describe(prefix: str, name: str, head: str, purpose: str) -> str:
    """Return the attributes of a box."""
    fill = "#eef1f5" if prefix else COLOURS.get(name.partition(".")[0], "#e9f0fb")
    small = f'<font point-size="10" color="#5b6b7c">{purpose}</font>'
    head = head.replace("<", "&lt;").replace(">", "&gt;")
    return f'label=<<b>{head}</b><br/>{small}>, fillcolor="{fill}"'


def read_edges(svg: str) -> Edges:
    """Return the arrows of a picture that was drawn."""
    import html
    import re

    titles = map(html.unescape, re.findall(r'class="edge">\s*<title>(.*?)</title>', svg))
    return {(a, b) for a, _, b in (title.partition("->") for title in titles)}


if __name__ == "__main__":
    drawn = subprocess.run(
        ["dot", "-Tsvg"], input=write_dot(), capture_output=True, text=True, check=True
    )
    PICTURE.write_text(drawn.stdout)

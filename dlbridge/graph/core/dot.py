"""Drawings of a graph: Graphviz's DOT language, and SVG where Graphviz is installed.

Operations are boxes in the colour of their framework, in a cluster for each name scope; edges show
dtype and shape. With the Trace of a run (`session.run(..., trace=True)`) the colours are those of
the frameworks that ran, and an edge on which a value moved to another framework is green where its
memory was shared and red where it was copied.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Any

from dlbridge.errors import FrameworkMissingError
from dlbridge.execution.trace import Crossing
from dlbridge.signals import not_from_handler
from dlbridge.text import escape_controls

if TYPE_CHECKING:
    from dlbridge.graph.core.graph import Graph
    from dlbridge.graph.core.operation import Operation, Tensor

# Framework -> fill; operations that were not placed, or did not run, are white.
COLOURS = {
    "numpy": "#d6e4f7",
    "torch": "#fbdccf",
    "jax": "#e4d8f3",
    "cupy": "#d5eecb",
}
_SHARED, _COPIED, _PLAIN = "#1a8f3c", "#c62828", "#707070"
_ROUND = frozenset(("Const", "Placeholder", "PlaceholderWithDefault", "VarHandleOp", "VariableV2"))

_HEAD = """digraph {
  graph [fontname="Helvetica", fontsize=11, ranksep=0.45, nodesep=0.3, pencolor="#b0b0b0"]
  node [fontname="Helvetica", fontsize=11, shape=box, style="rounded,filled", fillcolor=white, \
color="#606060", height=0.3, margin="0.12,0.05"]
  edge [fontname="Helvetica", fontsize=9, color="#707070", fontcolor="#505050", arrowsize=0.6]
"""


def to_dot(
    graph: Graph,
    places: Mapping[Operation, str] | None = None,
    crossings: Mapping[Tensor, Iterable[Crossing]] | None = None,
) -> str:
    r"""Return a graph in the DOT language.

    Args:
        graph: a Graph.
        places: the framework of each operation; by default the requested ones.
        crossings: for values that moved to another framework, whether they were copied.

    Example:
        >>> import dlbridge.graph as tf
        >>> with tf.Graph().as_default() as graph:
        ...     half = tf.constant(0.5, name="half")
        >>> print(to_dot(graph).splitlines()[-2].strip())
        "half" [label="half\nConst", shape=ellipse]
    """
    if places is None:
        places = {op: op.framework for op in graph.get_operations() if op.framework is not None}
    body = [
        *_scopes(graph.get_operations(), places),
        *_edges(graph.get_operations(), places, crossings or {}),
        *_legend(set(places.values())),
    ]
    return "\n".join([_HEAD.rstrip("\n"), *body, "}"])


def to_svg(dot: str) -> str:
    """Return the SVG that Graphviz draws of a text in DOT.

    Raises:
        FrameworkMissingError: the package graphviz or the program `dot` is not installed.
    """
    try:
        graphviz: Any = import_module("graphviz")
        svg: str = graphviz.pipe("dot", "svg", dot.encode()).decode()
    except not_from_handler(ImportError) as error:
        raise FrameworkMissingError(
            "to_svg: the package graphviz draws the picture: pip install graphviz"
        ) from error
    except graphviz.ExecutableNotFound as error:
        raise FrameworkMissingError(
            "to_svg: the program dot of Graphviz draws the picture, and is not installed"
        ) from error
    return svg


# ---- operations --------------------------------------------------------------------------------


def _scopes(ops: Iterable[Operation], places: Mapping[Operation, str]) -> Iterator[str]:
    """Yield operations in the clusters of their name scopes, in order of creation."""
    root: dict[str, Any] = {}
    for op in ops:
        *scopes, leaf = op.name.split("/")
        inside = root
        for scope in scopes:
            inside = inside.setdefault(f"{scope}/", {})
        inside[leaf] = op
    yield from _frame(root, places)


# A name may have tens of thousands of scopes: below these, indents and names grow no further.
_DEEPEST = 32


def _frame(members: dict[str, Any], places: Mapping[Operation, str]) -> Iterator[str]:
    clusters = 0
    open_ones = [("", iter(members.items()))]
    while open_ones:
        scope, rest = open_ones[-1]
        indent = "  " * min(len(open_ones), _DEEPEST)
        name, member = next(rest, ("", None))
        if member is None:
            open_ones.pop()
            if open_ones:
                yield f"{'  ' * min(len(open_ones), _DEEPEST)}}}"
            continue
        if isinstance(member, dict) and len(member) == 1:
            (only,) = member.values()
            member = member if isinstance(only, dict) else only  # a cluster of one adds nothing
        if not isinstance(member, dict):
            yield f"{indent}{_operation(member, places)}"
            continue
        clusters += 1
        inner = f"{scope}{name}" if len(open_ones) < _DEEPEST else f"{clusters}/"
        yield f"{indent}subgraph {_quote(f'cluster_{inner}')} {{"
        yield f"{indent}  label={_quote(name[:-1])}"
        open_ones.append((inner, iter(member.items())))


def _operation(op: Operation, places: Mapping[Operation, str]) -> str:
    leaf = op.name.rpartition("/")[2]
    attributes = {"label": f"{leaf}\n{op.type}" if leaf != op.type else leaf}
    colour = COLOURS.get(places.get(op, ""))
    if colour is not None:
        attributes["fillcolor"] = colour
    if op.type in _ROUND:
        attributes["shape"] = "ellipse"
    if op.device:
        attributes["xlabel"] = op.device
    return f"{_quote(op.name)} [{_list(attributes)}]"


def _legend(frameworks: set[str]) -> Iterator[str]:
    """Yield a legend of the colours, if there are several."""
    shown = [name for name in COLOURS if name in frameworks]
    if len(shown) < 2:
        return
    yield "  subgraph cluster__legend {"
    yield '    label="" pencolor=none'
    for name in shown:
        attributes = {"label": name, "fillcolor": COLOURS[name], "shape": "box", "color": "none"}
        yield f"    {_quote(f'legend {name}')} [{_list(attributes)}]"
    yield "  }"


# ---- edges -------------------------------------------------------------------------------------


def _edges(
    ops: Iterable[Operation],
    places: Mapping[Operation, str],
    crossings: Mapping[Tensor, Iterable[Crossing]],
) -> Iterator[str]:
    for op in ops:
        for tensor in op.inputs:
            attributes = {"label": f" {tensor.dtype.name} {tensor.shape}"}
            for crossing in crossings.get(tensor, ()):
                if crossing.target == places.get(op):
                    attributes.update(_crossing(crossing, attributes["label"]))
            yield f"  {_quote(tensor.op.name)} -> {_quote(op.name)} [{_list(attributes)}]"
        for control in op.control_inputs:
            yield f"  {_quote(control.name)} -> {_quote(op.name)} [style=dashed]"


def _crossing(crossing: Crossing, label: str) -> dict[str, str]:
    colour = _SHARED if crossing.shared else _COPIED
    text = "zero-copy" if crossing.shared else f"copied: {crossing.why}"
    return {
        "label": f"{label}\n {text}",
        "color": colour,
        "fontcolor": colour,
        "penwidth": "1.8",
    }


def _list(attributes: Mapping[str, str]) -> str:
    return ", ".join(f"{name}={_value(text)}" for name, text in attributes.items())


def _value(text: str) -> str:
    return text if text.isidentifier() else _quote(text)


def _quote(text: str) -> str:
    shown = escape_controls(text, lines=True)
    escaped = shown.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'

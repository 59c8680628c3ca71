"""The reference of dlbridge.graph: an entry for each public name, written from the package alone.

A function's entry is its docstring and the op types of the operations that it makes, as they are
declared. A name that means the same as another leads to it.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any, NamedTuple

import dlbridge
import dlbridge.graph as tf
from dlbridge import proto
from dlbridge.graph.core import opdef
from dlbridge.proto.datatypes import DataType

PAGE = Path(__file__).resolve().parent / "reference" / "graph.md"
FOLDER = PAGE.parent / "generated" / "graph"


class Entry(NamedTuple):
    """A public name, `shown` as users write it; `same` is the name that has its documentation."""

    module: str
    name: str
    value: Any
    home: str
    same: str = ""

    @property
    def shown(self) -> str:
        """The name after `tf.`, for the text."""
        return f"{self.module}.{self.name}".replace("dlbridge.graph", "tf", 1)


def spaces() -> dict[str, ModuleType]:
    """Return `dlbridge.graph` and its public modules by their names."""
    inner = [getattr(tf, name) for name in tf._MODULES]
    return {module.__name__: module for module in (tf, *inner)}


def names_of(module: ModuleType) -> list[str]:
    """Return the public names of one of them, without modules."""
    if module is tf:
        listed = [name for name in dir(tf) if name not in tf._MODULES]
    else:
        own = [name for name in vars(module) if name[0] != "_" and name != "annotations"]
        listed = list(getattr(module, "__all__", own))
    return sorted(name for name in listed if not isinstance(getattr(module, name), ModuleType))


def begun() -> list[str]:
    """Return what the page of graphs itself lists, each with a page of its own."""
    block = PAGE.read_text(encoding="utf-8").partition("autosummary::")[2].partition("```")[0]
    return re.findall(r"^   (\w+)$", block, re.MULTILINE)


def entries() -> list[Entry]:
    """Return an entry for each public name."""
    found: list[Entry] = []
    first: dict[int, str] = {}
    for name in dlbridge.__all__:
        first[id(getattr(dlbridge, name))] = f"dlbridge.{name}"
    for name in proto.__all__:
        first[id(getattr(proto, name))] = f"dlbridge.proto.{name}"
    above = begun()
    for name in above:
        first[id(getattr(tf, name))] = f"dlbridge.graph.{name}"
    homes = _homes()
    for path, module in spaces().items():
        names = names_of(module)
        # A function's own name comes before those that it has besides.
        names.sort(key=lambda name: getattr(getattr(module, name), "__name__", name) != name)
        for name in names:
            value, full = getattr(module, name), f"{path}.{name}"
            is_shared = value is not None and not isinstance(value, DataType | int)
            same = first.setdefault(id(value), full) if is_shared else full
            home = _home(name, value, homes) if module is tf else path
            found.append(Entry(path, name, value, home, "" if same == full else same))
    return [each for each in found if each.module != tf.__name__ or each.name not in above]


def _homes() -> dict[str, str]:
    """Return the first inner module of `dlbridge.graph` that exports each name."""
    public = spaces()
    found: dict[str, str] = {}
    for path, module in sorted(sys.modules.items()):
        if path.startswith("dlbridge.graph.") and path not in public:
            for name in getattr(module, "__all__", ()):
                found.setdefault(name, path)
    return found


def _home(name: str, value: Any, homes: dict[str, str]) -> str:
    """Return the module that exports a name of `tf`."""
    if isinstance(value, DataType):
        return "dlbridge.proto.datatypes"
    return homes.get(name) or str(getattr(value, "__module__", None) or tf.__name__)


# ---- pages ---------------------------------------------------------------------------------------


def pages() -> dict[str, str]:
    """Return the pages by their file's name."""
    by_page: dict[str, dict[str, list[Entry]]] = {}
    for each in entries():
        by_page.setdefault(_page_of(each), {}).setdefault(each.home, []).append(each)
    return {f"{name}.rst": "\n".join(_page(name, parts)) for name, parts in by_page.items()}


_TITLES = {"core": "Graphs and sessions", "variables": "Variables", "dtypes": "Dtypes and shapes"}


def _page_of(entry: Entry) -> str:
    if entry.module != tf.__name__:
        return f"tf-{entry.module.rpartition('.')[2]}"
    if entry.home.startswith("dlbridge.graph.ops."):
        return f"ops-{entry.home.rpartition('.')[2]}"
    if entry.home.startswith("dlbridge.graph.variables."):
        return "variables"
    return "dtypes" if entry.home in ("dlbridge.proto.datatypes", "dlbridge.shape") else "core"


def _page(name: str, parts: dict[str, list[Entry]]) -> Iterator[str]:
    title = _TITLES.get(name) or _title_of(next(iter(parts)))
    yield from (title, "=" * len(title), "")
    for home, members in parts.items():
        if len(parts) > 1:
            heading = _title_of(home)
            yield from (heading, "-" * len(heading), "")
        yield from (f".. py:currentmodule:: {members[0].module}", "")
        for each in sorted(members, key=lambda each: each.name.lower()):
            yield from _entry(each)


def _title_of(module: str) -> str:
    """Return the first line of a module's docstring as a heading."""
    text = (sys.modules[module].__doc__ or module).strip().partition("\n")[0]
    return re.sub(r"`([^`]*)`", r"\1", text.removesuffix(".")).replace("_", r"\_")


def _entry(entry: Entry) -> Iterator[str]:
    kind = "class" if inspect.isclass(entry.value) else "function"
    if entry.same:
        shown = entry.same.replace("dlbridge.graph", "tf", 1)
        yield from (f".. py:{kind}:: {entry.name}", "   :no-contents-entry:", "")
        yield from (f"   Another name of :py:obj:`{shown} <{entry.same}>`.", "")
    elif isinstance(entry.value, int):
        yield from (f".. py:data:: {entry.name}", f"   :value: {entry.value}", "")
    elif isinstance(entry.value, DataType):
        yield from (f".. py:data:: {entry.name}", "", f"   {describe_dtype(entry.value)}", "")
    elif entry.name in _MESSAGES:
        text = f"TensorFlow's message, imported on first use: {_MESSAGES[entry.name]}."
        yield from (f".. py:class:: {entry.name}", "", f"   {text}", "")
    elif kind == "class":
        yield from (f".. autoclass:: {entry.name}", "   :members:")
        yield from ("   :inherited-members: object, BaseException, tuple, int", "")
    elif callable(entry.value):
        yield from (f".. autofunction:: {entry.name}", "")
    else:
        text = _VALUES.get(entry.name) or inspect.getdoc(entry.value) or ""
        yield from (f".. py:data:: {entry.name}", "", f"   {text}", "")


_MESSAGES = {
    "AttrValue": "the value of an attribute of a node",
    "GraphDef": "a graph: its nodes, the functions that they call, and the versions that made it",
    "NodeDef": "a node: its name, its op type, its inputs, its device and its attributes",
    "OpDef": "an op type: its inputs, its results and its attributes",
    "OpList": "op types, an OpDef each",
    "VersionDef": "which versions made a graph, and which can read it",
}
_VALUES = {"newaxis": "None, for a new axis of extent 1 in `tensor[tf.newaxis, ...]`."}


def describe_dtype(dtype: DataType) -> str:
    """Return what there is to say of a dtype."""
    kind = {"f": "floating point", "i": "signed integers", "u": "unsigned integers"}.get(dtype.kind)
    said = [f"The DataType {dtype.name}, number {dtype.number} in TensorFlow's messages"]
    said += [kind] if kind else []
    if dtype.is_numpy_compatible and dtype.kind != "s":
        said.append(f"`{dtype.numpy}` in NumPy, {dtype.size} bytes an element")
    return "; ".join(said) + "."


# ---- op types ------------------------------------------------------------------------------------


def op_types(function: Any) -> list[str]:
    """Return the op types of the operations that a function itself makes, as its source names them.

    Each is the first argument of a call of `result`, `apply` or a helper.
    """
    function = inspect.unwrap(function)
    if not isinstance(function, FunctionType):
        return []
    known = set(opdef.names())
    closed = inspect.getclosurevars(function)
    scope = {**closed.globals, **closed.nonlocals}
    found: dict[str, None] = {}
    for call in ast.walk(ast.parse(textwrap.dedent(inspect.getsource(function)))):
        if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Name) and call.args):
            continue
        if call.func.id in ("scope", "name_scope"):
            continue
        for text in _texts(call.args[0], scope):
            if text in known:
                found[text] = None
    return [*found]


def _texts(node: ast.expr, scope: dict[str, Any]) -> Iterator[str]:
    if isinstance(node, ast.IfExp):
        yield from _texts(node.body, scope)
        yield from _texts(node.orelse, scope)
    elif isinstance(node, ast.Constant):
        yield str(node.value)
    elif isinstance(node, ast.Name):
        yield str(scope.get(node.id, ""))
    elif isinstance(node, ast.JoinedStr):
        inner = (x.value if isinstance(x, ast.FormattedValue) else x for x in node.values)
        yield "".join(text for each in inner for text in _texts(each, scope))


def declarations(function: Any) -> list[str]:
    """Return lines of reStructuredText about the operations that a function makes."""
    made = op_types(function)
    if not made:
        return []
    if len(made) > 3:
        return ["", f"It makes operations of the types {', '.join(f'``{x}``' for x in made)}.", ""]
    lines = ["", f"It makes operations of the type{'s' if len(made) > 1 else ''}::", ""]
    for name in made:
        text = str(opdef.op_def(name))
        lines += [f"    {line}" for line in textwrap.wrap(text, 76, subsequent_indent="    ")]
    return [*lines, ""]


def write() -> None:
    """Write the pages; those that have not changed stay as they are."""
    FOLDER.mkdir(parents=True, exist_ok=True)
    made = pages()
    for old in FOLDER.glob("*.rst"):
        if old.name not in made:
            old.unlink()
    for name, text in made.items():
        file = FOLDER / name
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.write_text(text, encoding="utf-8")

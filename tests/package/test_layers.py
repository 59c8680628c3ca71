"""Imports only go down: the layers of the package, checked in the source of every module.

Every import counts, also one inside a function or by `import_module` with a literal name: an import
that is put off hides a circle, it does not remove it. Imports for annotations alone
(`if TYPE_CHECKING`) do not count.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlbridge"

# Low to high. A module imports from its own layer (but in no circle) and from those above it here.
LAYERS = (
    ("text", "checkout"),
    ("errors",),
    ("_core",),
    ("signals",),
    ("calls",),
    ("files",),
    ("registry", "shape"),
    ("dtype", "device"),
    ("cuda",),
    ("tensor",),
    ("exchange",),
    ("kernels.schema",),
    ("kernels.kinds",),
    ("kernels.gradients",),
    ("kernels",),
    ("proto",),
    ("execution",),
    ("frameworks",),
    ("check", "testing"),
    ("mpi",),
    ("graph.core",),
    ("graph.session",),
    ("graph.ops",),
    ("graph.ops.kernels",),
    ("graph.variables",),
    ("graph.graphdef",),
    ("graph.distributed",),
    ("graph",),
    ("terminal",),
    ("demo",),
    ("cli",),
    ("__main__",),
)
RANKS = {name: rank for rank, names in enumerate(LAYERS) for name in names}

FRAMEWORKS = (
    "cupy", "dpctl", "dpnp", "jax", "jaxlib", "keras", "ml_dtypes", "mlx", "mpi4py", "mxnet",
    "numba", "onnx", "onnxruntime", "onnxscript", "openvino", "optree", "paddle", "pandas",
    "polars", "pyarrow", "tensorflow", "torch", "triton", "tvm", "tvm_ffi", "warp",
)  # fmt: skip


def modules(package: Path) -> dict[str, Path]:
    """Return the modules of a package by their dotted names."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


MODULES = {name: path for name, path in modules(PACKAGE).items() if not name.endswith(".build")}


def _for_annotations(tree: ast.AST) -> set[int]:
    return {
        id(node)
        for test in ast.walk(tree)
        if isinstance(test, ast.If) and "TYPE_CHECKING" in ast.unparse(test.test)
        for statement in test.body
        for node in ast.walk(statement)
    }


def imports(path: Path, known: dict[str, Path]) -> Iterator[tuple[str, int]]:
    """Yield dotted name and line of each import that runs, wherever it stands."""
    tree = ast.parse(path.read_text())
    skipped = _for_annotations(tree)
    for node in ast.walk(tree):
        if id(node) in skipped:
            continue
        if isinstance(node, ast.Import):
            yield from ((alias.name, node.lineno) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield (inner if inner in known else node.module or ""), node.lineno
        elif isinstance(node, ast.Call) and ast.unparse(node.func).endswith("import_module"):
            name = node.args[0] if node.args else None
            if isinstance(name, ast.Constant):
                yield name.value, node.lineno


@cache
def imports_of(module: str) -> list[tuple[str, int]]:
    """Return the imports of a module of the package, which is parsed once."""
    return [*imports(MODULES[module], MODULES)]


def layer(module: str) -> str | None:
    """Return the row of LAYERS that a module belongs to: its folder's, or its parent folder's."""
    parts = module.split(".")[1:]
    found = [".".join(parts[:size]) for size in range(len(parts), 0, -1)]
    return next((name for name in found if name in RANKS), None)


def circles(graph: dict[str, set[str]]) -> list[set[str]]:
    """Return the strongly connected components of more than one module (Tarjan)."""
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found = []

    def visit(name: str) -> None:
        index[name] = low[name] = len(index)
        stack.append(name)
        for other in sorted(graph[name]):
            if other not in index:
                visit(other)
                low[name] = min(low[name], low[other])
            elif other in stack:
                low[name] = min(low[name], index[other])
        if low[name] == index[name]:
            at = stack.index(name)
            found.append(set(stack[at:]))
            del stack[at:]

    for name in sorted(graph):
        if name not in index:
            visit(name)
    return [each for each in found if len(each) > 1]


def import_graph(known: dict[str, Path]) -> dict[str, set[str]]:
    """Return the modules that each module imports, itself and packages of its own left out."""

    def read(name: str) -> Iterable[tuple[str, int]]:
        return imports_of(name) if known is MODULES else imports(known[name], known)

    return {
        name: {other for other, _ in read(name) if other in known and other != name}
        for name in known
    }


@pytest.mark.parametrize("module", MODULES)
def test_imports_only_go_down(module: str) -> None:
    if module == "dlbridge":
        return
    own = layer(module)
    assert own is not None, f"{module} has no layer: add it to LAYERS"
    for name, line in imports_of(module):
        if name.partition(".")[0] != "dlbridge":
            continue
        assert name != "dlbridge", f"{MODULES[module]}:{line} imports the package root"
        other = layer(name)
        assert other is not None, f"{MODULES[module]}:{line} imports {name}, which has no layer"
        assert other == own or RANKS[other] < RANKS[own], f"{MODULES[module]}:{line}: {name}"


def test_no_modules_import_each_other() -> None:
    assert circles(import_graph(MODULES)) == []


def test_a_circle_is_found_wherever_its_imports_stand(tmp_path: Path) -> None:
    """The reader sees imports at the top, in functions and by name, but none for annotations."""
    (tmp_path / "p").mkdir()
    texts = {
        "__init__": "",
        "a": "from p import b",
        "b": "def f():\n    import p.c",
        "c": "from importlib import import_module\nimport_module('p.a')",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from p import e",
        "e": "from p.d import x",
    }
    for name, text in texts.items():
        (tmp_path / "p" / f"{name}.py").write_text(text)
    assert circles(import_graph(modules(tmp_path / "p"))) == [{"p.a", "p.b", "p.c"}]


@pytest.mark.parametrize("module", MODULES)
def test_frameworks_are_imported_by_what_is_theirs_only(module: str) -> None:
    """A framework's folder, the kernels of op types for it, and the kinds of kernels it makes."""
    parts = module.split(".")
    if parts[1:2] == ["frameworks"] or parts[-1].partition("_")[0] in FRAMEWORKS:
        return
    for name, line in imports_of(module):
        assert name.partition(".")[0] not in FRAMEWORKS, f"{MODULES[module]}:{line} imports {name}"

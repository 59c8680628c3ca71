"""`_core/_native.pyi` says of the native module exactly what the module is."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import BuiltinFunctionType, MethodDescriptorType
from typing import Any

import pytest

from dlbridge._core import native

STUB = Path(native.__spec__.origin).with_name("_native.pyi")
TREE = ast.parse(STUB.read_text())

Node = ast.Module | ast.ClassDef


def test_names_of_the_module_and_of_the_stub_are_the_same():
    assert public_names(TREE) == {name for name in vars(native) if not name.startswith("_")}


@pytest.mark.parametrize("kind", [x for x in vars(native).values() if isinstance(x, type)])
def test_every_type_has_the_members_of_the_stub(kind: type):
    assert public_names(class_of(kind)) == {name for name in vars(kind) if name[0] != "_"}


def test_every_function_and_method_has_a_signature():
    """With one, help() and editors show the parameters, and the tests below compare them."""
    missing = [name for name, found, _ in pairs() if found.__text_signature__ is None]
    assert not missing


def test_parameters_are_those_of_the_stub():
    differing = {}
    for name, found, node in pairs():
        known = list(inspect.signature(found).parameters)
        if known != (written := parameters(node)):
            differing[name] = (known, written)
    assert not differing


@pytest.mark.full
def test_stubtest_finds_nothing():
    """Kinds of parameters, defaults, and whether a type can be subclassed."""
    pytest.importorskip("mypy", reason="stubtest is part of mypy")
    command = [sys.executable, "-m", "mypy.stubtest", native.__name__, "--ignore-disjoint-bases"]
    command += ["--mypy-config-file", str(STUB.parents[2] / "pyproject.toml")]
    found = subprocess.run(
        command, capture_output=True, text=True, cwd=STUB.parents[2], timeout=600
    )
    assert found.returncode == 0, found.stdout + found.stderr


# ---- the stub ----


def pairs() -> Iterator[tuple[str, Any, ast.FunctionDef]]:
    """Yield each function and method of the module, with its definition in the stub."""
    for name, found in vars(native).items():
        if isinstance(found, BuiltinFunctionType):
            yield name, found, definition(TREE, name)
        if isinstance(found, type):
            for member, method in vars(found).items():
                if isinstance(method, MethodDescriptorType) and member[:2] != "__":
                    yield f"{name}.{member}", method, definition(class_of(found), member)


def class_of(kind: type) -> ast.ClassDef:
    return next(n for n in TREE.body if isinstance(n, ast.ClassDef) and n.name == kind.__name__)


def definition(node: Node, name: str) -> ast.FunctionDef:
    return next(n for n in node.body if isinstance(n, ast.FunctionDef) and n.name == name)


def public_names(node: Node) -> set[str]:
    names = set()
    for each in node.body:
        if isinstance(each, ast.FunctionDef | ast.ClassDef):
            names.add(each.name)
        elif isinstance(each, ast.AnnAssign) and isinstance(each.target, ast.Name):
            names.add(each.target.id)
    return {name for name in names if not name.startswith("_")}


def parameters(node: ast.FunctionDef) -> list[str]:
    given = node.args
    found = [*given.posonlyargs, *given.args, given.vararg, *given.kwonlyargs, given.kwarg]
    return [each.arg for each in found if each is not None]

"""Promises of the package as a whole: names, layers, imports, reasons, struct sizes."""

from __future__ import annotations

import ast
import inspect
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path

import pytest

import dlbridge
from dlbridge._core import ffi
from dlbridge.errors import REASONS

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "dlbridge"
MODULES = sorted(path for path in PACKAGE.rglob("*.py") if path.name != "build.py")

# ---- names -------------------------------------------------------------------------------------


def test_exports_are_sorted_and_exist() -> None:
    assert list(dlbridge.__all__) == sorted(set(dlbridge.__all__))
    for name in dlbridge.__all__:
        assert hasattr(dlbridge, name), name


@pytest.mark.parametrize("name", dlbridge.__all__)
def test_every_export_is_documented(name: str) -> None:
    thing = getattr(dlbridge, name)
    if not (inspect.isclass(thing) or callable(thing)):
        return
    assert inspect.getdoc(thing), name
    if inspect.isclass(thing) and thing.__module__.startswith("dlbridge"):
        for member, value in vars(thing).items():
            if not member.startswith("_") and (callable(value) or isinstance(value, property)):
                assert inspect.getdoc(value), f"{name}.{member}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_module_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text()))


def test_the_package_root_only_collects_names() -> None:
    """Only kernels are found on demand, for which a module has exactly two functions."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    functions = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)
    defined = [node.name for node in ast.walk(tree) if isinstance(node, functions)]
    assert sorted(defined) == ["__dir__", "__getattr__"]


def test_kernels_are_imported_when_one_of_their_names_is_used() -> None:
    """Whoever only exchanges tensors does not pay for them."""
    code = (
        "import sys, dlbridge;"
        "assert not [name for name in sys.modules if name.startswith('dlbridge.kernels')];"
        "assert set(dlbridge.__all__) <= set(dir(dlbridge));"
        "wrap = dlbridge.wrap; assert 'wrap' in vars(dlbridge);"
        "names = {}; exec('from dlbridge import *', names); assert names['wrap'] is wrap"
    )
    subprocess.check_call([sys.executable, "-c", code], cwd=ROOT)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="no attribute 'kernel_of'"):
        dlbridge.kernel_of


# ---- imports ----------------------------------------------------------------------------------


def test_the_import_loads_numpy_at_most() -> None:
    code = (
        "import sys; before = set(sys.modules); import dlbridge;"
        "new = {name.partition('.')[0] for name in set(sys.modules) - before};"
        "print(*sorted(new - sys.stdlib_module_names))"
    )
    out = subprocess.check_output([sys.executable, "-c", code], cwd=ROOT, text=True)
    new = {name for name in out.split() if "cython" not in name}  # NumPy 1's own runtime
    assert new <= {"dlbridge", "numpy", "_cffi_backend"}


@pytest.mark.parametrize(
    "path", sorted((ROOT / "tests").rglob("test_*.py")), ids=lambda path: path.stem
)
def test_the_tests_import_what_there_is(path: Path) -> None:
    """pytest leaves out, without a failure, a file of tests whose doctests cannot be imported."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dlbridge."):
            try:
                module = import_module(node.module or "")
            except ImportError as error:
                if (error.name or "").startswith("dlbridge"):
                    raise
                continue  # a framework that is not installed here
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                assert hasattr(module, alias.name) or find_spec(name), name


def test_every_package_is_installed() -> None:
    for path in MODULES:
        assert (path.parent / "__init__.py").exists(), f"{path.parent} would be left out"


# ---- reasons -----------------------------------------------------------------------------------


def words_in(paths: Iterator[Path]) -> set[str]:
    """Return every string in quotes that could be a code."""
    return {word for path in paths for word in re.findall(r"[\"'](\w+)[\"']", path.read_text())}


@pytest.fixture(scope="module")
def used_words() -> set[str]:
    files = (path for path in PACKAGE.rglob("*") if path.suffix in {".py", ".c", ".h"})
    return words_in(path for path in files if path.name not in {"errors.py", "_cffi.c"})


@pytest.fixture(scope="module")
def tested_words() -> set[str]:
    return words_in((ROOT / "tests").rglob("*.py"))


@pytest.mark.parametrize("code", REASONS)
def test_every_reason_is_given_somewhere_and_tested(
    code: str, used_words: set[str], tested_words: set[str]
) -> None:
    if code not in used_words:
        pytest.fail(f"no exchange ever gives the reason {code}")
    if code not in tested_words:
        pytest.fail(f"no test asks for the reason {code}")
    assert REASONS[code].strip() == REASONS[code] != ""


# ---- the header --------------------------------------------------------------------------------

# On a machine with 64-bit pointers, as the standard's own header compiles.
SIZES = {
    "DLPackVersion": 8,
    "DLDevice": 8,
    "DLDataType": 4,
    "DLTensor": 48,
    "DLManagedTensor": 64,
    "DLManagedTensorVersioned": 80,
    "DLPackExchangeAPIHeader": 16,
    "DLPackExchangeAPI": 56,
}
OFFSETS = {
    ("DLTensor", "device"): 8,
    ("DLTensor", "ndim"): 16,
    ("DLTensor", "dtype"): 20,
    ("DLTensor", "shape"): 24,
    ("DLTensor", "strides"): 32,
    ("DLTensor", "byte_offset"): 40,
    ("DLManagedTensor", "manager_ctx"): 48,
    ("DLManagedTensor", "deleter"): 56,
    ("DLManagedTensorVersioned", "manager_ctx"): 8,
    ("DLManagedTensorVersioned", "deleter"): 16,
    ("DLManagedTensorVersioned", "flags"): 24,
    ("DLManagedTensorVersioned", "dl_tensor"): 32,
    ("DLPackExchangeAPI", "managed_tensor_allocator"): 16,
    ("DLPackExchangeAPI", "current_work_stream"): 48,
}


@pytest.mark.parametrize(("struct", "size"), SIZES.items())
def test_struct_sizes_are_the_standards(struct: str, size: int) -> None:
    assert ffi.sizeof(struct) == size


@pytest.mark.parametrize(("field", "offset"), OFFSETS.items(), ids=str)
def test_field_offsets_are_the_standards(field: tuple[str, str], offset: int) -> None:
    assert ffi.offsetof(*field) == offset

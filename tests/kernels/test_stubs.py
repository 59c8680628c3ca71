"""`python -m dlbridge stubs`: what type checkers read of operators in a library."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from dlbridge import cli

ROOT = Path(__file__).resolve().parents[2]
SOURCE = """
#include "dlbridge_kernel.h"
#define EXPORT(name, ...)                                                              \\
    static int name(void *context, DLTensor *tensors, int count) {                     \\
        return context && tensors ? -count : -1;                                       \\
    }                                                                                  \\
    DLB_EXPORT(name, __VA_ARGS__)
EXPORT(scale, "typed::scale(x: f64[n], y: f64[n]? = None, *, by: float = 2.0, far: float = inf,"
              " k: int? = None, flag: bool, word: str = 'a') -> f64[n]");
EXPORT(split, "typed::split(x: f64[n], *, k: int) -> (low: f64[k], high: f64[n-k])");
EXPORT(cast, "typed::cast(x: f64[n], *, to: dtype = f32) -> to[n]");
EXPORT(add_to, "typed::add_to(x!: f64[n], y: f64[n])");
EXPORT(twice, "typed::twice(x: f64[n]) -> f64[n]");
EXPORT(other, "elsewhere::twice(x: f64[n]) -> f64[n]");
"""


@pytest.fixture
def library(tmp_path: Path) -> Path:
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))), None)
    if compiler is None:
        pytest.skip("there is no C compiler here")
    source, made = tmp_path / "typed.c", tmp_path / "libtyped.so"
    source.write_text(SOURCE)
    command = [compiler, f"-I{ROOT / 'include'}", "-shared", "-fPIC", "-o", made, source]
    subprocess.run(command, check=True)
    return made


def stub(library: Path, capsys: pytest.CaptureFixture[str], *options: str) -> dict[str, list[str]]:
    """Return the parameters and results of each kernel's overloads, as they are written."""
    assert cli.main(["stubs", str(library), *options]) == 0
    found = {}
    for node in ast.parse(capsys.readouterr().out).body:
        if isinstance(node, ast.ClassDef):
            calls = [each for each in node.body if isinstance(each, ast.FunctionDef)]
            found[node.name] = [
                f"{ast.unparse(each.args)} -> {ast.unparse(each.returns)}".removeprefix("self, ")
                for each in calls
                if each.returns is not None
            ]
    return found


def test_kernels_are_in_the_order_of_their_names(
    tmp_path: Path, library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Compilers arrange them in another one with other options, and a stub is kept in files."""
    optimised = tmp_path / "libtyped2.so"
    compiler = next(filter(None, map(shutil.which, ("cc", "gcc", "clang"))))
    command = [compiler, f"-I{ROOT / 'include'}", "-O2", "-shared", "-fPIC", "-o", optimised]
    subprocess.run([*command, tmp_path / "typed.c"], check=True)
    names = [[*stub(each, capsys, "--frameworks", "numpy")] for each in (library, optimised)]
    assert names == [["_add_to", "_cast", "_scale", "_split"]] * 2


def test_each_framework_has_an_overload(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = stub(library, capsys, "--frameworks", "torch,jax")
    rest = "*, by: float=2.0, far: float=..., k: int | None=None, flag: bool, word: str='a'"
    torch, jax = "torch.Tensor", "jax.Array"
    assert found["_scale"] == [
        f"x: {torch}, y: {torch} | None=None, {rest}, out: {torch} | None=None -> {torch}",
        f"x: {jax}, y: {jax} | None=None, {rest} -> {jax}",
    ]


def test_several_results_are_a_tuple(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (call,) = stub(library, capsys, "--frameworks", "jax")["_split"]
    assert call == "x: jax.Array, *, k: int -> tuple[jax.Array, jax.Array]"


def test_a_dtype_may_be_of_any_framework(library: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (call,) = stub(library, capsys, "--frameworks", "jax")["_cast"]
    assert call == "x: jax.Array, *, to: object=... -> jax.Array"


def test_a_written_argument_is_returned_where_arrays_never_change(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """MLX's never change, and are not returned either: there is no such call."""
    assert stub(library, capsys, "--frameworks", "torch,jax,mlx")["_add_to"] == [
        "x: torch.Tensor, y: torch.Tensor -> None",
        "x: jax.Array, y: jax.Array -> jax.Array",
    ]


def test_only_attributes_of_the_library_have_a_type(
    library: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Two namespaces have a `twice`, which `library.twice` does not give."""
    assert stub(library, capsys).keys() == {"_scale", "_split", "_cast", "_add_to"}


@pytest.mark.full
def test_mypy_knows_the_tensors_of_each_framework(
    library: Path, tmp_path: Path, framework: Callable[[str], object]
) -> None:
    framework("mypy"), framework("torch")
    (tmp_path / "typed").mkdir()
    assert cli.main(["stubs", str(library), "--output", str(tmp_path / "typed/__init__.pyi")]) == 0
    (tmp_path / "use.py").write_text(
        "import numpy\nimport torch\nimport typed\n"
        "reveal_type(typed.scale(numpy.zeros(2), flag=True))\n"
        "reveal_type(typed.scale(torch.zeros(2), flag=True))\n"
        "reveal_type(typed.split(torch.zeros(2), k=1))\n"
        "typed.scale(torch.zeros(2), flag=True, word=3)\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--cache-dir", tmp_path / "cache", "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    shown = [line.partition(": ")[2] for line in done.stdout.splitlines() if "use.py:" in line]
    assert "numpy.ndarray[Any, Any]" in shown[0], done.stdout
    assert "torch._tensor.Tensor" in shown[1]
    assert "tuple[torch._tensor.Tensor, torch._tensor.Tensor]" in shown[2]
    assert "No overload variant" in shown[3]


def test_mistakes_are_refused(
    library: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for options, status, text in (
        ([str(library), "--frameworks", "troch"], 2, "did you mean 'torch'"),
        ([str(library), "--output", str(tmp_path)], 2, "it is a folder"),
        ([str(library), "--output", str(tmp_path / ("a" * 300))], 2, "cannot write"),
        (["no_such_package"], 2, "no package 'no_such_package' is installed here"),
        ([str(tmp_path / "typed.c")], 2, "cannot be read"),
    ):
        assert cli.main(["stubs", *options]) == status
        assert text in capsys.readouterr().err

"""The README does not lie: its examples run, its tables and its commands are the real ones."""

from __future__ import annotations

import importlib.util
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

import dlbridge

ROOT = Path(__file__).resolve().parents[2]
CXX_COMPILERS = ("g++", "clang++", "c++")
README = (ROOT / "README.md").read_text()
FRAMEWORKS = (ROOT / "docs" / "reference" / "frameworks.md").read_text()


def load_script(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("example", blocks("python"), ids=["exchange", "kernel", "graph"])
def test_its_examples_run_and_print_what_they_say(
    example: str, framework: Callable[[str], object], capsys: pytest.CaptureFixture[str]
) -> None:
    for name in {*re.findall(r"^import (\w+)", example, re.MULTILINE), "jax"}:
        framework(name)
    if "torch.compile" in example and not any(map(shutil.which, CXX_COMPILERS)):
        pytest.skip("torch.compile needs a C++ compiler")
    capsys.readouterr()
    exec(compile(example, "README.md", "exec"), {})
    expected = re.findall(r"print\(.*\)\s+# (.*)", example)
    assert capsys.readouterr().out.splitlines() == expected


def test_ten_lines_are_ten_lines() -> None:
    lines = [line for line in blocks("python")[0].splitlines() if line.strip()]
    assert len(lines) <= 12


def test_there_are_exactly_two_set_up_commands() -> None:
    commands = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


@pytest.mark.full
@pytest.mark.timeout(300)
def test_the_commands_of_a_kernel_library_run(tmp_path: Path) -> None:
    """In a shell, one after the other; what is installed goes to a folder of this test."""
    if importlib.util.find_spec("scikit_build_core") is None:
        pytest.skip("scikit-build-core is not installed")
    if not any(map(shutil.which, ("cc", "gcc", "clang"))):
        pytest.skip("there is no C compiler here")
    (tmp_path / "bin").mkdir()
    for command, module in (("python", ""), ("pip", "-m pip"), ("pytest", "-m pytest")):
        script = tmp_path / "bin" / command
        script.write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
        script.chmod(0o755)
    (block,) = [block for block in blocks("sh") if "new-kernel-library" in block]
    path = [tmp_path / "bin", os.environ["PATH"]]
    modules = [tmp_path / "site", ROOT, os.environ.get("PYTHONPATH", "")]
    done = subprocess.run(
        ["sh", "-e"],
        input=block,
        cwd=tmp_path,
        env={
            **os.environ,
            "PATH": os.pathsep.join(map(str, path)),
            "PYTHONPATH": os.pathsep.join(map(str, modules)).rstrip(os.pathsep),
            "PIP_TARGET": str(tmp_path / "site"),
            "PIP_NO_DEPS": "1",  # this dlbridge, which no index has
            "TF_CPP_MIN_LOG_LEVEL": "3",
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "1 passed" in done.stdout
    (wheel,) = (tmp_path / "mylib" / "dist").iterdir()
    assert wheel.name.startswith("mylib-0.1.0-py3-none-")


def test_the_demonstration_is_small_and_says_so_without_running_anything() -> None:
    """It is what people run first: no TensorFlow, no byte code of what it does not import."""
    makefile = (ROOT / "Makefile").read_text().replace("\\\n", "")
    (needs,) = re.findall(r"^\.venv/\.demo: NEEDS = (.*)$", makefile, re.MULTILINE)
    assert "torch,jax" in needs
    assert "tensorflow" not in needs
    assert "[all" not in needs
    assert re.search(r"^\.venv/\.demo: PIP_ARGS = --no-compile$", makefile, re.MULTILINE)
    said = re.findall(r"^\w*ANNOUNCED :?= (.*)$", makefile, re.MULTILINE)
    assert len(said) == 3
    assert not any("`" in text or "$(shell" in text for text in said)  # `echo` would run it


def test_the_framework_table_is_the_commands_output() -> None:
    match = re.search(r"<!-- frameworks -->\n(.*?)<!-- end -->", FRAMEWORKS, re.DOTALL)
    assert match
    command = [sys.executable, "-m", "dlbridge", "frameworks", "--markdown"]
    assert match[1].strip() == subprocess.check_output(command, cwd=ROOT, text=True).strip()


def test_every_file_it_names_exists() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)|src=\"([\w./-]+)\"", README):
        assert (ROOT / (target[0] or target[1])).exists(), target


def test_every_function_it_names_exists() -> None:
    for name in re.findall(r"dlbridge\.(\w+)\(", README):
        assert hasattr(dlbridge, name), name


def test_it_has_at_most_150_lines() -> None:
    """It is the first page that anybody reads; what is longer stands in docs/."""
    assert len(README.splitlines()) <= 150


def test_its_first_half_says_what_works_and_where_to_go_on() -> None:
    """Nobody should have to scroll to the end for the state of the project."""
    half = "\n".join(README.splitlines()[:75])
    assert "## State" in half
    for page in ("quickstart.md", "tutorials/index.md", "comparison.md", "cuda.md", "peers.md"):
        assert f"](docs/{page})" in half, page


def test_its_table_of_times_is_that_of_the_performance_page() -> None:
    """`python docs/speed.py` renews both the table and the picture."""
    speed = load_script(ROOT / "docs" / "speed.py")
    page = (ROOT / "docs" / "performance.md").read_text()
    assert speed.renewed(README, page) == README
    assert (ROOT / "docs" / "speed.svg").read_text() == speed.picture(page)
    assert len(speed.SHOWN) <= 8

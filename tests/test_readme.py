"""The README does not lie: its example runs, its table and its commands are the real ones."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import dlbridge
from dlbridge.errors import REASONS

ROOT = Path(__file__).resolve().parent.parent
README = (ROOT / "README.md").read_text()


def blocks(language: str) -> list[str]:
    """Return the code blocks of one language."""
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_example_runs_and_prints_what_it_says(
    framework: object, capsys: pytest.CaptureFixture[str]
) -> None:
    example = blocks("python")[0]
    for name in re.findall(r"^import (\w+)", example, re.MULTILINE):
        pytest.importorskip(name)
    pytest.importorskip("jax")
    exec(compile(example, "README.md", "exec"), {})
    expected = re.findall(r"print\(.*\)\s+# (.*)", example)
    assert capsys.readouterr().out.splitlines() == expected
    assert len([line for line in example.splitlines() if line.strip()]) <= 12


def test_there_are_exactly_two_set_up_commands() -> None:
    commands = [line.split("#")[0].strip() for line in blocks("sh")[0].splitlines()]
    assert commands == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text()
    for command in commands:
        assert re.search(rf"^{command.removeprefix('make ')}:", makefile, re.MULTILINE)


def test_the_framework_table_is_the_commands_output() -> None:
    match = re.search(r"<!-- frameworks -->\n(.*?)<!-- end -->", README, re.DOTALL)
    assert match
    command = [sys.executable, "-m", "dlbridge", "frameworks", "--markdown"]
    assert match[1].strip() == subprocess.check_output(command, cwd=ROOT, text=True).strip()


def test_every_file_it_names_exists() -> None:
    for target in re.findall(r"\]\(([\w./-]+)\)|src=\"([\w./-]+)\"", README):
        assert (ROOT / (target[0] or target[1])).exists(), target


def test_every_function_it_names_exists() -> None:
    for name in re.findall(r"dlbridge\.(\w+)\(", README):
        assert hasattr(dlbridge, name), name


def test_it_names_every_reason() -> None:
    table = README[README.index("### Refusals") : README.index("## Speed")]
    assert set(re.findall(r"`(\w+)`", table)) - {"ExchangeError", "reason"} == set(REASONS)

"""The programs of docs/defects.md, each in a process of its own: what they are said to find."""

from __future__ import annotations

import os
import re
import signal
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "defects.md"
PACKAGES = {
    "NumPy": "numpy",
    "PyTorch": "torch",
    "JAX": "jax",
    "TensorFlow": "tensorflow-cpu",
    "MLX": "mlx",
    "pyarrow": "pyarrow",
    "tvm_ffi": "apache-tvm-ffi",
}
ENTRY = re.compile(
    r"### (?P<title>.+) \((?P<facts>[\d, ]+)\)\n\n```python\n(?P<program>.+?)```\n\n"
    r"Expected: (?P<expected>.+?)\nFound: (?P<found>.+)\n",
    re.DOTALL,
)


def read_page() -> list[tuple[str, dict[str, str]]]:
    """Return (library and version, entry) of each program."""
    found = []
    for section in PAGE.read_text().split("\n## ")[1:]:
        library, _, text = section.partition("\n")
        entries = [part for part in re.split(r"(?m)^(?=### )", text) if part.startswith("###")]
        for part in entries:
            entry = ENTRY.fullmatch(part.strip() + "\n")
            assert entry is not None, f"{library}: not in the form of an entry: {part[:80]}"
            found.append((library, entry.groupdict()))
    return found


ENTRIES = read_page()


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.unsanitized("the crashes of others are told by a sanitizer instead")
@pytest.mark.parametrize(
    ("library", "entry"), ENTRIES, ids=[f"{each[0]}: {each[1]['title']}" for each in ENTRIES]
)
def test_each_program_finds_what_the_page_says(
    library: str, entry: dict[str, str], run_python: Any
) -> None:
    """When this fails, the library has changed: the entry goes, and perhaps a copy of ours."""
    name, _, series = library.rpartition(" ")
    try:
        installed = version(PACKAGES[name])
    except PackageNotFoundError:
        pytest.skip(f"{name} is not installed")
    if not f"{installed}.".startswith(f"{series}."):
        pytest.skip(f"the page is about {library}, not {installed}")
    done = run_python(entry["program"], TF_CPP_MIN_LOG_LEVEL="3")
    found = entry["found"]
    if found.startswith("SIG"):
        assert done.returncode == -getattr(signal, found), done
    else:
        assert done.check().strip() == found.strip("`"), done


def test_the_page_leads_to_lines_of_the_other_page() -> None:
    """And each of its libraries has a package by which its version is found."""
    lines = re.findall(r"(?m)^\| (\d+) \|", PAGE.with_name("peers.md").read_text())
    facts = {fact for _, entry in ENTRIES for fact in entry["facts"].split(", ")}
    assert facts <= set(lines), facts - set(lines)
    assert {library.rpartition(" ")[0] for library, _ in ENTRIES} == set(PACKAGES)
    assert os.linesep not in "".join(entry["title"] for _, entry in ENTRIES)

"""The stand-in for CuPy, which the tests of adapters, kernels and graphs rely on."""

from __future__ import annotations

from pathlib import Path

import cases
import pytest


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("stand_in")


@pytest.mark.parametrize("name", cases.names("array_cases.py"))
def test_in_a_process_with_the_stand_in(name: str, directory: Path) -> None:
    cases.check("array_cases.py", name, directory)

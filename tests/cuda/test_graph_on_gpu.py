"""Graphs on devices, with the stand-in for CuPy on the fake driver, in a process of their own."""

from __future__ import annotations

from pathlib import Path

import cases
import pytest

MODULES = ("graph_cases.py", "op_cases.py", "meta_cases.py")
NAMES = [(module, name) for module in MODULES for name in cases.names(module)]


@pytest.fixture(scope="module")
def directory(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("array_api_compat")
    return tmp_path_factory.mktemp("graphs")


@pytest.mark.deeper  # test_math.in_ring: all dtypes
@pytest.mark.fast(
    lambda module, name: (
        module != "meta_cases.py" and name != "test_values_in_cupy_are_those_in_numpy"
    )
)
@pytest.mark.parametrize(("module", "name"), NAMES)
def test_in_a_process_with_the_stand_in(module: str, name: str, directory: Path) -> None:
    cases.check(module, name, directory)

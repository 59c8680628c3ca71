"""The table of frameworks: what follows from its rows, and a framework registered from outside."""

from __future__ import annotations

import inspect
import pickle
import sys
from collections.abc import Iterator
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError
from dlbridge.frameworks import __main__ as writer

SOURCE = """
#include "dlbridge_kernel.h"

int twice(void *context, DLTensor *tensors, int count) {
    const float *x = tensors[0].data;
    float *y = tensors[1].data;
    for (int64_t i = 0; i < tensors[0].shape[0] * tensors[0].shape[1]; i++)
        y[i] = 2 * x[i];
    return 0;
}
"""
SCHEMA = "frameworks::twice(x: f32[a, b]) -> f32[a, b]"
ROWS = [row for row in registry.rows() if row.package.startswith("dlbridge.")]

# ---- the rows ----------------------------------------------------------------------------------


@pytest.mark.parametrize("path", writer.WRITTEN, ids=lambda path: path.name)
def test_the_declarations_follow_from_the_rows(path: Path) -> None:
    """`python -m dlbridge.frameworks` writes them."""
    assert path.read_text() == writer.rewritten(path)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_row_has_a_folder_and_a_builtin_call(row: registry.Row) -> None:
    adapter = registry.adapter(row.name)
    assert (adapter.name, adapter.roots) == (row.name, row.roots)
    package = import_module(row.package)
    assert package.ADAPTER is adapter
    assert not hasattr(package, "__path__") or find_spec(f"{row.package}.binding") is not None
    kernel = dlbridge.compile_c(SOURCE, "twice", SCHEMA)
    assert native.bind_kernel(kernel, row.name, "twice", "").__name__ == "twice"


@pytest.mark.parametrize("row", [row for row in ROWS if row.name != "dlbridge"])
def test_a_row_has_its_functions(row: registry.Row) -> None:
    convert, bind = getattr(dlbridge, f"to_{row.name}"), getattr(dlbridge, row.func)
    assert {f"to_{row.name}", row.func} <= set(dlbridge.__all__)
    assert row.title in convert.__doc__
    assert row.title in bind.__doc__
    assert list(inspect.signature(convert).parameters)[:3] == ["x", "device", "copy"]


# ---- a framework of somebody else --------------------------------------------------------------


@pytest.fixture(scope="module")
def grid() -> Iterator[Any]:
    """Return the example's module, registered as its users would do."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "example_framework"))
    import grid

    dlbridge.register_framework("grid", "grid_dlbridge", ("grid",), title="Grid", noun="grid")
    yield grid
    sys.path.pop(0)
    for table in (registry._ROWS, registry._BY_ROOT, registry._ADAPTERS, registry._ORIGINS):
        table.pop("grid", None)


@pytest.fixture
def cells(grid: Any) -> Any:
    return grid.Grid(2, 3, range(6))


def test_a_grid_goes_through_convert(grid: Any, cells: Any) -> None:
    array = dlbridge.to_numpy(cells)
    assert array.tolist() == [[0, 1, 2], [3, 4, 5]]
    array[0, 0] = 7
    assert cells[0, 0] == 7
    back = dlbridge.convert(array, "grid")
    assert type(back) is grid.Grid
    back[1, 1] = 9
    assert array[1, 1] == 9
    assert dlbridge.convert(array, grid)[1, 1] == dlbridge.convert(array, grid.Grid)[1, 1] == 9


def test_a_grid_has_a_converter_of_its_own(grid: Any, cells: Any) -> None:
    with dlbridge.receipts() as log:
        made = dlbridge.to_grid(np.ones((2, 2), "f4").T)
    assert made[1, 1] == 1
    assert (log[0].source, log[0].target, log[0].why) == ("numpy", "grid", "strides")
    assert dlbridge.to_grid(cells) is cells
    assert pickle.loads(pickle.dumps(dlbridge.to_grid)) is dlbridge.to_grid
    assert "Grid" in (dlbridge.to_grid.__doc__ or "")


def test_dtypes_that_a_grid_lacks_are_refused(grid: Any) -> None:
    with pytest.raises(ExchangeError, match="to_grid: the dtype") as refused:
        dlbridge.to_grid(np.ones((2, 2), "f8"))
    assert refused.value.reason == "dtype"
    with pytest.raises(ExchangeError, match="to_grid") as refused:
        dlbridge.to_grid(np.ones(3, "f4"))
    assert refused.value.reason == "ndim"


def test_kernels_take_grids(grid: Any, cells: Any) -> None:
    kernel = dlbridge.compile_c(SOURCE, "twice", SCHEMA)
    for call in (kernel, kernel.grid, dlbridge.to_grid_func(kernel)):
        made = call(cells)
        assert type(made) is grid.Grid
        assert dlbridge.to_numpy(made).tolist() == [[0, 2, 4], [6, 8, 10]]
    assert inspect.isbuiltin(kernel.grid)
    assert kernel.grid is dlbridge.to_grid_func(kernel)
    with pytest.raises(UnsupportedTypeError, match="a tensor of grid"):
        kernel.grid(np.ones((2, 2), "f4"))


def test_its_dtypes_and_devices_are_read_and_made(grid: Any) -> None:
    assert dlbridge.DType(grid.kinds["float"]) is dlbridge.DType("float32")
    assert dlbridge.DType("float32").to("grid") is grid.kinds["float"]
    with pytest.raises(ExchangeError, match="grid has no dtype for int8"):
        dlbridge.DType("int8").to("grid")
    with pytest.raises(ArgumentError, match="grid has no device objects"):
        dlbridge.Device("cpu").to("grid")


def test_the_command_line_lists_it(grid: Any) -> None:
    from dlbridge import cli

    assert "grid" in [row[0] for row in cli.collect()]


def test_a_name_is_an_identifier_and_free(grid: Any) -> None:
    for name in ("grid", "torch", "dlbridge"):
        with pytest.raises(ArgumentError, match=f"there is a framework called '{name}'"):
            dlbridge.register_framework(name, "elsewhere", (name,))
    for name in ("two words", "Grid", "import", ""):
        with pytest.raises(ArgumentError, match="must be a lower-case identifier"):
            dlbridge.register_framework(name, "elsewhere", ("elsewhere",))

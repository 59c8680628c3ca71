"""`dlbridge matrix`: what arrives is really compared, and what crashes is a cell of the result."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import cli, registry
from dlbridge.check import compatibility, exchanges, heatmap, matrix
from dlbridge.check.compatibility import Cell, Matrix
from dlbridge.check.exchanges import Case, Exchange, is_written
from dlbridge.errors import ArgumentError
from dlbridge.exchange import adapter

LIBRARY = """
import ctypes, os, time, weakref
import numpy as np
__version__ = "1.0"

class Array:
    def __init__(self, a, source=None):
        self.a, self.source = a, None if source is None else weakref.ref(source)
    def __dlpack__(self, **keywords):
        return self.a.__dlpack__(**keywords)
    def __dlpack_device__(self):
        return 1, 0
    def __setitem__(self, index, value):
        ctypes.memset(self.a.ctypes.data, 255, self.a.itemsize)
    def values(self):
        return self.a * 0 if self.source and self.source() is None else self.a

def from_dlpack(x):
    a = np.from_dlpack(x)
    if a.dtype == np.int8:
        return Array(a + 1)
    if a.dtype == np.int16:
        os.abort()
    if a.dtype == np.int32 and a.flags.c_contiguous and a.ctypes.data % 64 == 0:
        time.sleep(600)
    if a.dtype == np.int64:
        raise BufferError("<b>no</b> int64")
    if a.dtype == np.uint8:
        return Array(a.copy())
    if a.dtype == np.uint16:
        return Array(a.copy(), x)
    return Array(a)
"""
ADAPTER = """
import sys
import numpy as np
from dlbridge.exchange.adapter import Expressions, Framework, Quirk, Sign

class Planted(Framework):
    name = module = "planted"
    roots = ("planted",)
    quirks = (
        Quirk(1, "1", "aborts on int16", "", sign=Sign("crashed", traits=("int16",))),
        Quirk(2, "1", "has no float64", "", sign=Sign("refused", traits=("float64",))),
        Quirk(3, "2", "has no float32", "", sign=Sign("refused", traits=("float32",))),
    )
    expressions = Expressions(
        {"planted": "planted"},
        make="planted.Array(a)",
        from_dlpack="planted.from_dlpack({})",
        values="x.values()",
        address="x.a.ctypes.data",
        is_view=True,
    )
    def recognises(self, cls):
        return cls is sys.modules["planted"].Array
    def give(self, tensor, policy, context):
        return self.import_module().Array(np.from_dlpack(tensor))

ADAPTER = Planted()
"""


@pytest.fixture
def planted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Register a made-up framework that is wrong, crashes and hangs; return its file."""
    file = tmp_path / "planted.py"
    file.write_text(LIBRARY)
    (tmp_path / "planted_dlbridge.py").write_text(ADAPTER)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("DLBRIDGE_CACHE_DIR", str(tmp_path / "cache"))
    dlbridge.register_framework("planted", "planted_dlbridge", ("planted",), title="<Planted>")
    yield file
    for table in (registry._ROWS, registry._BY_ROOT, registry._ADAPTERS, registry._ORIGINS):
        table.pop("planted", None)
    for name in ("planted", "planted_dlbridge"):
        sys.modules.pop(name, None)


def run(**options: Any) -> Matrix:
    return matrix(["numpy", "planted"], **{"quick": True, "timeout": 5, "workers": 2, **options})


def cell_of(found: Matrix, target: str, way: str, case: Case) -> Cell:
    (cell,) = (
        cell for cell in found.cells if (cell.target, cell.way, cell.case) == (target, way, case)
    )
    return cell


def plain(dtype: str, layout: str = "row-major", flag: str = "plain") -> Case:
    return Case(dtype, layout, "24 elements", flag)


# ---- judgements ----------------------------------------------------------------------------------


def test_defects_of_a_made_up_framework_are_found(planted: Path) -> None:
    """Each kind of outcome, next to cells that go well in the same processes."""
    found = run(cache=False)
    expected = {
        "float32": ("shared", ""),
        "uint8": ("copied", ""),
        "int64": ("refused", "BufferError: <b>no</b> int64"),
        "int8": ("wrong", "24 of 24 bytes differ"),
        "uint16": ("wrong", "once the source is gone, 23 of 48 bytes differ"),
        "int16": ("crashed", "its process ended by SIGABRT"),
        "int32": ("crashed", "no answer in 5 s"),
    }
    for dtype, (outcome, reason) in expected.items():
        cell = cell_of(found, "planted", "own", plain(dtype))
        assert cell.outcome == outcome, cell
        assert cell.reason.startswith(reason), cell
        assert cell_of(found, "planted", "dlbridge", plain(dtype)).outcome == "shared"
    cell = cell_of(found, "planted", "own", plain("float32", flag="read-only"))
    if np.lib.NumpyVersion(np.__version__) < "2.1.0":  # which exports no read-only memory
        assert cell.outcome == "absent", cell
    else:
        assert (cell.outcome, cell.reason) == ("wrong", "read-only memory was written through it")
    cell = cell_of(found, "planted", "own", plain("float32", flag="copy=True"))
    assert (cell.outcome, cell.reason) == ("absent", "no argument asks planted for a copy")
    cell = cell_of(found, "planted", "dlbridge", plain("float32", flag="copy=True"))
    assert cell.outcome == "copied"
    assert all(not cell.is_bad for cell in found.cells if cell.target == "numpy")
    traits = cell_of(found, "planted", "own", plain("float32", "reversed")).traits
    modern = [each for each in traits if each != "legacy"]  # NumPy before 2.1 has that alone
    assert modern == ["misaligned", "strided", "negative"]
    _check_known(found)


def _check_known(found: Matrix) -> None:
    """Rows of known defects explain cells; the others are news, and the exit status says so."""
    cell = cell_of(found, "planted", "own", plain("int16"))
    assert cell.known == "planted aborts on int16 (fact 1 of the documentation)"
    assert {each.known for each in found.defects if each.outcome == "wrong"} == {""}
    assert found.is_broken
    assert [*found.not_seen] == ["planted has no float64 (fact 2 of the documentation)"]
    known = [each.known != "" for each in found.defects]
    assert known == sorted(known), "new defects stand first"


@pytest.mark.fast(lambda text: "abort" in text)
@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("raise OSError('no library')", "cannot be imported: OSError: no library"),
        ("import os; os.abort()", "its process ended by SIGABRT"),
        ("class Array:\n    def __init__(self, a):\n        1 / 0", "made no array: Zero"),
    ],
)
def test_a_framework_that_cannot_be_used_is_left_out(planted: Path, text: str, reason: str) -> None:
    planted.write_text(text)
    found = run(cache=False)
    assert found.left_out["planted"].startswith(reason)
    assert [*found.versions] == ["numpy"]
    assert found.cells == ()
    assert not found.is_broken


@pytest.mark.parametrize(
    "name", ["torch", "jax", "tensorflow", "tvm", "mlx", "pyarrow", "onnxruntime"]
)
@pytest.mark.fast(lambda name: name == "pyarrow")
def test_real_frameworks_show_known_defects_only(name: str, tmp_path: Path) -> None:
    """With NumPy, both ways; and nothing is wrong or crashes through dlbridge."""
    if find_spec(adapter.adapter(name).module.partition(".")[0]) is None:
        pytest.skip(f"{name} is not installed")
    found = matrix(["numpy", name], quick=True, workers=1, cache=False, timeout=60)
    if name in found.left_out:
        pytest.skip(f"{name}: {found.left_out[name]}")
    assert [cell for cell in found.cells if cell.is_bad and not cell.known] == []
    assert [cell for cell in found.cells if cell.is_bad and cell.way == "dlbridge"] == []
    assert found.not_seen == ()
    if name == "torch" and found.versions[name].startswith("2.13"):
        cell = cell_of(found, "torch", "own", plain("float32", "reversed"))
        assert cell.outcome == "crashed"
        assert cell.known.startswith("torch aborts on negative strides")
    for way in exchanges.WAYS:
        assert cell_of(found, name, way, plain("float32")).outcome in ("shared", "copied")


# ---- tensors and signs ---------------------------------------------------------------------------


def test_no_narrower_type_holds_the_values() -> None:
    """Else an exchange that narrows would pass."""
    pytest.importorskip("ml_dtypes")
    for dtype in exchanges.DTYPES:
        array = exchanges.make_array(dtype, (4, 6))
        assert array.ctypes.data % 64 == 0
        assert len({bytes(each) for each in array.reshape(-1, 1).view(np.uint8)}) > 1
    for wide, narrow in (
        ("int64", "i4"),
        ("uint64", "u4"),
        ("float64", "f4"),
        ("complex128", "c8"),
    ):
        array = exchanges.make_array(wide, (4, 6))
        assert (array.astype(narrow).astype(wide) != array).any()


def test_quick_cases_are_among_all() -> None:
    quick, every = (exchanges.make_cases(quick=each) for each in (True, False))
    assert set(quick) < set(every)
    assert len(set(every)) == len(every)
    for axis, values in enumerate((exchanges.DTYPES, exchanges.LAYOUTS, exchanges.SIZES)):
        assert {case[axis] for case in quick} == set(values)


def test_values_are_read_where_the_capsule_says() -> None:
    """By strides, backwards, and from none."""
    array = np.arange(24, dtype="f4").reshape(4, 6)
    for view in (array, array.T, array[::-1, ::2], array[:0], array[1, 2]):
        view = np.asarray(view)
        assert exchanges.values(view).tolist() == view.tolist()
        assert exchanges.address(view) == view.ctypes.data or not view.size


def test_signs_name_outcomes_and_traits_that_exist() -> None:
    """A typing mistake would explain nothing, and nobody would see it."""
    traits = {"legacy", "read-only", "byte_offset", "misaligned", "strided", "negative"}
    words = {*traits, "empty", *exchanges.DTYPES, *exchanges.FLAGS}
    for row in registry.rows():
        for quirk in adapter.adapter(row.name).quirks:
            if quirk.sign is not None:
                assert quirk.sign.outcome in exchanges.OUTCOMES
                assert quirk.sign.role in (*compatibility.ROLES, "either")
                assert words.issuperset(quirk.sign.traits)


# ---- processes and cache -------------------------------------------------------------------------


def test_an_error_while_it_runs_ends_all_processes(planted: Path) -> None:
    """As an interrupt does."""
    children: list[subprocess.Popen[bytes]] = []
    start = compatibility._Child._start

    def remember(child: Any) -> subprocess.Popen[bytes]:
        children.append(start(child))
        return children[-1]

    def fail(done: int, total: int) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(compatibility._Child, "_start", remember)
        with pytest.raises(KeyboardInterrupt):
            run(cache=False, progress=fail)
    assert children
    for process in children:
        assert process.wait(30) is not None


@pytest.mark.full
def test_results_of_the_same_versions_are_kept(
    planted: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[int, int]] = []
    first = run(progress=lambda done, total: seen.append((done, total)))
    cells = len(first.cells)
    assert max(seen) == (cells, cells)
    asked: list[Exchange] = []
    real = compatibility._Child.run

    def remember(child: Any, exchange: Exchange) -> Any:
        asked.append(exchange)
        return real(child, exchange)

    monkeypatch.setattr(compatibility._Child, "run", remember)
    assert run().cells == first.cells
    hung = {(cell.case, cell.way) for cell in first.cells if cell.reason == "no answer in 5 s"}
    assert {(each.case, each.way) for each in asked if each.source != each.target} == hung
    asked.clear()
    monkeypatch.setattr(compatibility, "find_version", lambda module, providers: "1.5")
    run()
    assert len(asked) > cells


def test_a_cache_of_others_is_not_believed(planted: Path, tmp_path: Path) -> None:
    store = compatibility.Store()
    key = store.key(["1", "2"])
    result = ("shared", "", ("legacy",))
    exchange = Exchange("numpy", "planted", "own", plain("int8"))
    store.write("numpy", "planted", key, {exchange: result})
    assert store.read("numpy", "planted", key) == {exchange: result}
    assert store.read("numpy", "planted", store.key(["1", "3"])) == {}
    file = tmp_path / "cache" / "matrix" / "numpy-planted.json"
    kept = file.read_bytes()
    for text in (b"", b"[]", b'{"key": 1}', json.dumps({"key": key, "cells": [1]}).encode()):
        file.write_bytes(text)
        assert store.read("numpy", "planted", key) == {}
    file.write_bytes(kept)
    file.chmod(0o666)
    assert store.read("numpy", "planted", key) == {}


@pytest.mark.parametrize("value", [0, 1])
def test_a_write_is_seen_whatever_was_there(value: int) -> None:
    """A one over a one is a write that nobody sees."""
    base = np.full(3, value)
    assert is_written(base[1:2], base)
    base.flags.writeable = False
    assert not is_written(base[1:2], base)


@pytest.mark.parametrize(
    ("names", "options", "error"),
    [
        (["numpy"], {}, "two frameworks are needed"),
        (["numpy", "numpy"], {}, "two frameworks are needed"),
        (["numpy", "nothing"], {}, "^matrix: unknown framework 'nothing'"),
        (["numpy", "planted"], {"workers": 0}, "workers and timeout must be positive"),
        (["numpy", "planted"], {"timeout": 0}, "workers and timeout must be positive"),
        (["numpy", "planted"], {"timeout": float("nan")}, "must be positive"),
    ],
)
def test_bad_arguments_are_refused(
    planted: Path, names: list[str], options: dict[str, Any], error: str
) -> None:
    with pytest.raises(ArgumentError, match=error):
        matrix(names, **options)


# ---- command and page ----------------------------------------------------------------------------


def made_up() -> Matrix:
    """Return a small result with a new defect whose text is hostile."""
    bad = Cell("numpy", "torch", "own", plain("int8"), "wrong", "</script><b>\x1b[2J", ())
    good = Cell("torch", "numpy", "dlbridge", plain("int8"), "shared")
    return Matrix({"numpy": "2.0", "torch": "2.13"}, {"mlx": "no"}, (bad, good))


def test_the_page_needs_nothing_and_shows_text_as_text() -> None:
    page = heatmap.render(made_up())
    assert not re.search(r"https?://|src=|@import|url\(", page)
    assert "</script><b>" not in page
    assert "\x1b" not in page
    data = json.loads(page.partition('id="data">')[2].partition("</script>")[0])
    assert data["texts"][data["pairs"]["numpy torch"]["own"][1][0]] == "</script><b>\\x1b[2J"
    assert data["first"] == "numpy torch"


def test_the_command_tells_programs_by_its_status(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """1 for a defect that no row of known defects explains, 2 for what cannot be done."""
    monkeypatch.setattr("dlbridge.check.matrix", lambda *args, **options: made_up())
    file = tmp_path / "page.html"
    assert cli.main(["matrix", "--html", str(file), "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["is_broken"] is True
    assert file.read_text() == heatmap.render(made_up())
    assert cli.main(["matrix"]) == 1
    assert "new: wrong" in capsys.readouterr().out
    assert cli.main(["matrix", "--html", str(tmp_path / "none" / "page.html")]) == 2
    monkeypatch.undo()
    assert cli.main(["matrix", "--frameworks", "numpy"]) == 2
    assert "two frameworks" in capsys.readouterr().err


@pytest.mark.full
def test_the_command_runs_in_a_folder_of_its_own(tmp_path: Path) -> None:
    """NumPy and whatever else is here; the result does not depend on the current folder."""
    others = [name for name in ("torch", "pyarrow", "tvm") if adapter.is_installed(name)]
    if not others:
        pytest.skip("neither torch, pyarrow nor tvm_ffi is installed")
    options = f"--quick --json --workers 1 --no-cache --frameworks numpy,{others[-1]}"
    done = subprocess.run(
        [sys.executable, "-m", "dlbridge", "matrix", *options.split()],
        env={**os.environ, "PYTHONPATH": str(Path(dlbridge.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr.decode()
    found = json.loads(done.stdout)
    assert [*found["versions"]] == ["numpy", others[-1]]
    assert not os.listdir(tmp_path)

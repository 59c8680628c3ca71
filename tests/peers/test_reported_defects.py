"""Every line of docs/peers.md: which of `check`, `matrix` and `doctor` report it of which library.

`check` means a rule that `tests/check/broken.py` has for the library, against which the rules are
run; `matrix` a `Sign`, by which `tests/check/test_compatibility.py` judges; `doctor` a `Quirk` row,
shown for the versions in which the defect was seen. The rows of Paddle, dpnp, CuPy, MXNet, ONNX
Runtime and Warp are held by their tests, where these are installed.
"""

from __future__ import annotations

import re
import sys
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

import dlbridge as dlb
from dlbridge import registry
from dlbridge.check.diagnosis import find_version
from dlbridge.exchange import adapter

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "check"))

from broken import BROKEN

from peers.test_defects import ENTRIES

PAGE = Path(__file__).resolve().parents[2] / "docs" / "peers.md"

PACKAGES = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow-cpu",
    "mlx": "mlx",
    "pyarrow": "pyarrow",
    "tvm": "apache-tvm-ffi",
}
TITLES = {"NumPy": "numpy", "PyTorch": "torch", "tvm_ffi": "tvm"}

# line -> library -> the rules that `check` finds broken, and "matrix" where an exchange shows it;
# "" where only `doctor` has a row.
REPORTED: dict[int, dict[str, str]] = {
    1: {"torch": "honours_negative_strides! matrix"},
    2: {"tensorflow": "takes_any_alignment! matrix"},
    3: {"tensorflow": "text_refused! negative_extent_refused! overflowing_shape_refused!"},
    4: {"jax": "null_deleter!", "dpnp": ""},
    5: {"paddle": ""},
    6: {
        "numpy": "null_shape_refused!",
        "torch": "negative_ndim_refused! overflowing_shape_refused! null_shape_refused!",
        "jax": "null_shape_refused!",
        "mlx": "negative_extent_refused! null_data_refused! null_shape_refused!",
        "tvm": "negative_ndim_refused negative_extent_refused overflowing_shape_refused",
    },
    7: {"torch": "read_only_is_honoured matrix"},
    8: {"paddle": ""},
    9: {
        "mlx": "byte_offset_is_zero",
        "tensorflow": "matrix",
        "tvm": "",
        "paddle": "matrix",
        "dpnp": "matrix",
        "mxnet": "",
    },
    10: {"jax": "copy_true_copies matrix"},
    11: {"jax": "dtype_is_kept matrix", "mlx": "dtype_is_kept matrix"},
    12: {
        "tensorflow": "honours_lanes zero_lanes_refused",
        "tvm": "zero_lanes_refused odd_bits_refused",
        "paddle": "",
    },
    13: {"torch": ""},
    14: {"numpy": "null_data_refused"},
    15: {"numpy": ""},
    16: {
        "jax": "flag_read_only",
        "tensorflow": "flag_read_only",
        "pyarrow": "",
        "paddle": "matrix",
        "dpnp": "",
        "cupy": "",
        "mxnet": "",
    },
    17: {
        "tvm": "copy_true other_device_is_not_ignored device_number_is_not_ignored",
        "torch": "device_number_is_not_ignored",
        "mlx": "",
        "dpnp": "",
    },
    18: {"torch": "copy_true_is_marked"},
    19: {
        "jax": "versioned_on_request",
        "tensorflow": "versioned_on_request",
        "mlx": "versioned_on_request",
        "pyarrow": "takes_legacy takes_old_producers matrix",
    },
    20: {
        "jax": "asks_for_versions matrix",
        "tensorflow": "asks_for_versions matrix",
        "tvm": "asks_for_versions matrix",
        "mxnet": "",
        "onnxruntime": "matrix",
        "warp": "matrix",
    },
    21: {"numpy": ""},
    22: {"numpy": "matrix", "dpnp": "matrix"},
    23: {"jax": ""},
    24: {"paddle": "matrix"},
    25: {"jax": ""},
    26: {"tensorflow": "own_device_accepted matrix"},
    27: {"mlx": "errors_pass", "pyarrow": ""},
    28: {"tvm": "legacy_for_old_versions", "mxnet": ""},
    29: {"mxnet": ""},
    30: {
        "tvm": "",
        "mlx": "matrix",
        "pyarrow": "matrix",
        "paddle": "",
        "dpnp": "",
        "mxnet": "",
        "onnxruntime": "matrix",
        "warp": "",
    },
    31: {"jax": "matrix", "mlx": "memory_is_shared matrix", "dpnp": ""},
    33: {"jax": "capsule_tells_the_device", "paddle": "matrix", "mxnet": ""},
    34: {"pyarrow": "", "paddle": ""},
    36: {"torch": "deleter_after_refusal", "tensorflow": "deleter_after_refusal", "paddle": ""},
    37: {"mlx": "capsule_is_renamed"},
    38: {"cupy": ""},
    39: {"paddle": ""},
    40: {"tvm": ""},
    41: {"torch": "", "cupy": ""},
    42: {"torch": ""},
    43: {"torch": ""},
    44: {"jax": ""},
    46: {"torch": ""},
    47: {"onnxruntime": ""},
    48: {"tensorflow": ""},
    49: {"torch": ""},
}

# Lines of which nothing is reported.
LEFT_OUT = {
    32: "cuda.core, mpi4py and nanobind have no adapter; unknown flags are not ruled",
    35: "the standard lets a consumer call the deleter at any time",
    45: "pickles of torch are not DLPack",
}


def test_each_line_is_reported_or_left_out_for_a_reason() -> None:
    lines = re.findall(r"(?m)^\| (\d+) \|", PAGE.read_text())
    assert {*map(int, lines)} == {*REPORTED, *LEFT_OUT}
    assert not {*REPORTED} & {*LEFT_OUT}


def test_doctor_has_a_row_for_each_and_the_list_has_each_row() -> None:
    rows = {
        (quirk.fact, row.name)
        for row in registry.rows()
        if row.name != "dlbridge"
        for quirk in adapter.adapter(row.name).quirks
    }
    assert rows == {(fact, name) for fact, named in REPORTED.items() for name in named}


@pytest.mark.parametrize("fact", REPORTED)
def test_check_and_matrix_find_what_the_list_says(fact: int) -> None:
    for name, words in REPORTED[fact].items():
        found = {"matrix"} if any(q.sign for q in quirks(name, fact)) else set()
        if name in PACKAGES:
            broken = [rules for known, rules in BROKEN.items() if known[0] == PACKAGES[name]]
            found |= {*" ".join(broken).split()}
        assert {*words.split()} <= found, name
        assert ("matrix" in found) is ("matrix" in words.split()), name


def quirks(name: str, fact: int) -> list[adapter.Quirk]:
    return [each for each in adapter.adapter(name).quirks if each.fact == fact]


@pytest.mark.parametrize(
    ("library", "entry"), ENTRIES, ids=[f"{each[0]}: {each[1]['title']}" for each in ENTRIES]
)
def test_each_program_has_a_row_that_doctor_shows(library: str, entry: dict[str, str]) -> None:
    """One source: what is reported to a library is what its users are told here."""
    title, _, series = library.rpartition(" ")
    name = TITLES.get(title, title.lower())
    for fact in map(int, entry["facts"].split(", ")):
        assert any(row.was_seen_in(f"{series}.0") for row in quirks(name, fact)), fact


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.unsanitized("frameworks are imported by processes of their own")
def test_doctor_shows_the_rows_of_the_installed_versions() -> None:
    shown = {(row.fact, each.name) for each in dlb.doctor().frameworks for row in each.defects}
    providers = packages_distributions()
    for fact, named in REPORTED.items():
        for name in filter(adapter.is_installed, named):
            rows = quirks(name, fact)
            module = adapter.adapter(name).module
            versions = [find_version(row.of or module, providers) for row in rows]
            seen = [row.was_seen_in(v) for row, v in zip(rows, versions, strict=True)]
            assert any(seen) is ((fact, name) in shown), (fact, name, versions)

"""Views of more elements than memory can hold: sizes that wrap must not become small ones."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError

FLOAT = (2, 32, 1)
CPU = (1, 0)
# complex128 of 2**60 elements: as many bytes as a 64-bit size counts to 0
CALLS = """
import sys
import torch
import dlbridge

SCHEMA = "huge::first(x: complex128[n]) -> complex128[1]"
kernel = dlbridge.compile_c(
    '#include "dlbridge_kernel.h"\\nint first(dlb_context *c, DLTensor *t, int n) {return 0;}',
    "first",
    SCHEMA,
)
call = torch.ops.huge.first if sys.argv[1] == "operator" else kernel
for elements in (2**59, 2**60, 2**61):
    try:
        call(torch.zeros(1, dtype=torch.complex128).expand(elements))
    except (dlbridge.ExchangeError, RuntimeError) as error:  # torch knows RuntimeError alone
        assert getattr(error, "reason", "overflow") == "overflow", error
        assert "64 bits" in str(error), error
        print("refused")
"""


@pytest.mark.parametrize("way", ["direct", "operator"])
@pytest.mark.full
def test_a_kernel_refuses_views_by_expand_whose_bytes_cannot_be_counted(
    way: str, tmp_path: Path
) -> None:
    """torch makes them of one element; a copy for a kernel that wants row-major memory had a size
    of 0 bytes, and was written past its end."""
    pytest.importorskip("torch")
    file = tmp_path / "calls.py"
    file.write_text(CALLS)
    done = subprocess.run(
        [sys.executable, str(file), way],
        capture_output=True,
        check=False,
        text=True,
        env=_environment(),
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["refused"] * 3


def _environment() -> dict[str, str]:
    root = str(Path(dlbridge.__file__).resolve().parents[1])
    return {**os.environ, "PYTHONPATH": root}


@pytest.mark.parametrize(
    ("shape", "strides", "dtype"),
    [
        ((2,), (2**60 - 1,), (1, 8, 1)),  # the last element ends behind 2**63 bits
        ((2**61 - 1,), (0,), (17, 4, 1)),  # more than 2**63 - 8 bits: no room to round up
        ((2, 2), (2**59, 2**59), (1, 8, 1)),
    ],
)
def test_views_beyond_the_countable_bits_are_refused(
    shape: tuple[int, ...], strides: tuple[int, ...], dtype: tuple[int, int, int]
) -> None:
    memory = np.zeros(16, np.uint8)
    with pytest.raises(ExchangeError) as refused:
        native.take_object(memory, memory.ctypes.data, shape, strides, dtype, CPU)
    assert refused.value.reason == "overflow"


def test_tensors_too_far_apart_to_count_bits_count_as_overlapping() -> None:
    """Their addresses cannot both be real; nothing is written."""
    kernel = dlbridge.compile_c(
        '#include "dlbridge_kernel.h"\nint far(dlb_context *c, DLTensor *t, int n) {return 0;}',
        "far",
        "huge::far(x: f32[n], y!: f32[n])",
        layout="strided",
    )
    memory = np.zeros(4, np.float32)
    near = native.take_object(memory, 2**20, (2,), (2**57,), FLOAT, CPU)
    far = native.take_object(memory, 2**58 + 2**40, (2,), (2**40,), FLOAT, CPU)
    with pytest.raises(ExchangeError) as refused:
        kernel(near, far)
    assert refused.value.reason == "overlap"

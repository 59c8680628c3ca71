"""Kernels in C through `native.KernelBase`: binding, checks, copies, conventions, the registry."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sysconfig
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError

INCLUDE = Path(__file__).resolve().parents[2] / "include"
CPU = 1
F32 = 2 | 32 << 8 | 1 << 16

SOURCE = r"""
#include "dlbridge_kernel.h"

int nothing(void *context, DLTensor *args, int n) {
    return 0;
}
"""


@pytest.fixture(scope="session")
def functions(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """Return the kernels above, compiled."""
    directory = tmp_path_factory.mktemp("kernels")
    source, target = directory / "kernels.c", directory / "kernels.so"
    source.write_text(SOURCE)
    compiler = os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc"
    flags = ["-std=c11", "-O1", "-g", "-fPIC", "-shared", f"-I{INCLUDE}"]
    try:
        subprocess.run(
            [*compiler.split(), *flags, "-o", target, source], check=True, capture_output=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"kernels cannot be compiled here: {getattr(error, 'stderr', error)}")
    return ctypes.CDLL(str(target))


@pytest.fixture
def make(functions: ctypes.CDLL) -> Callable[..., native.KernelBase]:
    """Return `make(function, inputs, results, scalars=(), …)`: a kernel of a compiled function."""

    def build(function: str, count: int, results: int = 0, **options: Any) -> native.KernelBase:
        parameter, result = (0, (("n", 0),), False, False), (0, (("n", 0),))
        signature = (((F32,),), 1, 0, (parameter,) * count, (result,) * results, ())
        arguments = tuple((f"x{i}", "tensor", i, False, False, None) for i in range(count))
        address = ctypes.cast(getattr(functions, function), ctypes.c_void_p).value
        targets = [(CPU, "dltensors", address, None)]
        return native.KernelBase(f"test::{function}", signature, arguments, targets, **options)

    return build


def test_a_result_that_shares_memory_with_an_input_is_refused(make: Any) -> None:
    """The kernel would read what it has written."""
    x = dlbridge.from_dlpack(np.zeros(8, "f4"))
    with pytest.raises(ExchangeError) as caught:
        make("nothing", 1, 1).run([x, x])
    assert caught.value.reason == "overlap"

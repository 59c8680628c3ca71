"""Tensors on a GPU in dlbridge.mpi, on the fake driver: copied to the host, and the result back."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_driver import AS_DRIVER, build
from test_cuda_core import HEAD

HERE = Path(__file__).resolve().parent


@pytest.mark.mpi
@pytest.mark.skipif(importlib.util.find_spec("mpi4py") is None, reason="needs MPI and mpi4py")
def test_mpi_never_sees_memory_of_a_gpu(run_python: Callable[..., Any], tmp_path: Path) -> None:
    """MPI reads a device pointer as host memory; the copies are ordered by the fake driver."""
    driver = build(tmp_path, AS_DRIVER)
    code = """
from dlbridge import mpi

for shape in ((2, 3), (50, 300)):
    host = np.arange(np.prod(shape), dtype=np.float32).reshape(shape)
    x = dlbridge.from_dlpack(host).to("cuda:0")
    for source, values in ((x, host), (x.T, host.T)):
        for result in (mpi.allreduce(source), mpi.sendrecv(source, 0, 0, to="dlbridge")):
            assert np.array_equal(result.to("cpu").numpy(), values)
        assert mpi.allreduce(source).device == "cuda:0"
    out = dlbridge.empty(shape, "float32", device="cuda:0")
    assert mpi.allreduce(x, out=out) is out
    assert np.array_equal(out.to("cpu").numpy(), host)
    del x, source, result, out
finish()
"""
    head = HEAD.format(tests=str(HERE), path=str(driver))
    environment = {
        "LD_LIBRARY_PATH": str(driver.parent),
        "DLBRIDGE_CUDA_DRIVER": str(driver),
    }
    run_python(head + code, **environment).check()

"""Check an installed dlbridge from outside its source tree: what is there, and that it works."""

from __future__ import annotations

import shutil
import sys
from importlib.metadata import files
from pathlib import Path

import numpy as np

import dlbridge
from dlbridge.proto import dump_tensor, load_tensor

installed = [str(path) for path in files("dlbridge") or []]
compiled = [path for path in installed if path.endswith((".so", ".o", ".a", ".pyd"))]
strange = [path for path in installed if path.split("/")[0] in ("tests", "benchmarks", "examples")]
array = np.arange(6.0).reshape(2, 3)
tensor = dlbridge.from_dlpack(array)

assert len(compiled) == 1, compiled
assert not strange, strange
library = Path(dlbridge.__file__).parent.parent / compiled[0]
assert b".entry dlb_gather_16(" in library.read_bytes(), "the core lacks gather.ptx"
assert not any(path.endswith(".c") for path in installed), installed
assert "dlbridge/include/dlpack.h" in installed, installed
assert "dlbridge/include/dlbridge_kernelConfig.cmake" in installed, installed
assert "dlbridge/kernels/template/CMakeLists.txt.in" in installed, installed
assert "dlbridge/proto/descriptors.bin" in installed, installed
assert "dlbridge/proto/graph.proto" in installed, installed
assert "site-packages" in Path(dlbridge.__file__).parts
assert tensor.data_ptr == array.ctypes.data
assert dlbridge.to_numpy(tensor).tolist() == array.tolist()
assert load_tensor(dump_tensor(array)).tolist() == array.tolist()
source = """
#include "dlbridge_kernel.h"
int twice(void *context, DLTensor *tensors, int count) {
    for (int64_t i = 0; i < tensors[0].shape[0]; i++)
        ((double *)tensors[1].data)[i] = 2 * ((double *)tensors[0].data)[i];
    return count == 2 ? 0 : dlb_set_error(context, "%d tensors", count);
}
"""
if shutil.which("cc"):
    twice = dlbridge.compile_c(source, "twice", "installed::twice(x: f64[n]) -> f64[n]")
    assert twice(array[1]).tolist() == [6.0, 8.0, 10.0]
version = sys.version.split()[0]
print(f"Python {version}, NumPy {np.__version__}: {len(installed)} files, {compiled[0]}")

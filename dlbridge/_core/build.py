"""Build the one extension module of dlbridge: cffi declarations and the native types together.

`setup.py` hands `FFI_BUILDER` to setuptools. cffi parses `include/dlpack.h` itself; the C files
in the folders beside this one are compiled into the same shared object, whose second entry point,
`PyInit__native`, `dlbridge._core` loads by its file name.
"""

from __future__ import annotations

import json
import os
import re
import sysconfig
from pathlib import Path

import cffi
import numpy

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent

# Cold, Python-free functions that users and tests reach as `dlbridge.lib`.
LIB_DECLARATIONS = """
const char *dlb_layout_check(const DLTensor *tensor, uint64_t flags);
int64_t dlb_element_bits(DLDataType dtype, uint64_t flags);
int64_t dlb_packed_bytes(DLDataType dtype, uint64_t flags, int64_t count);
uint32_t dlb_crc32c(uint32_t crc, const void *bytes, size_t size);
typedef struct { bool is_pushed; } dlb_cuda_scope;
int dlb_cuda_enter(int32_t device, dlb_cuda_scope *scope);
void dlb_cuda_leave(const dlb_cuda_scope *scope);
int dlb_cuda_locate(const void *address, int32_t device, DLDevice *found);
void dlb_special(int function, bool is_float, const void *in, void *out, size_t count);
void dlb_count_deletion(void *managed);
"""

PREAMBLE = """
#include "cuda/cuda.h"
#include "dlpack.h"
#include "engine/engine.h"
#include "layout/layout.h"
#include "layout/shape.h"
#include "tensor/tensor.h"
"""


def embedded(path: Path, name: str) -> str:
    """Return a C definition of the text of a file."""
    lines = path.read_text().splitlines()
    quoted = "\n".join(json.dumps(f"{line}\n") for line in lines)
    return f"const char {name}[] =\n{quoted};\n"


def declarations(header: str) -> str:
    """Return `header` as cffi takes it: no guards or comments, macro values left open."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    text = re.sub(r"#ifdef __cplusplus.*?#endif", "", text, flags=re.DOTALL)
    text = re.sub(r"#define (\w+) (\d+)", r"#define \1 ...", text)
    kept = [
        line
        for line in text.splitlines()
        if not line.startswith("#") or line.rstrip().endswith("...")
    ]
    return "\n".join(kept)


def make_builder() -> cffi.FFI:
    """Return the cffi builder of `dlbridge._core._cffi`."""
    builder = cffi.FFI()
    builder.cdef(declarations((ROOT / "include" / "dlpack.h").read_text()))
    shape_header = HERE / "layout" / "shape.h"
    driver_header = HERE / "cuda" / "driver.h"
    builder.cdef(LIB_DECLARATIONS)
    builder.cdef(declarations(shape_header.read_text()))
    builder.cdef(declarations(driver_header.read_text()))
    extra = os.environ.get("DLBRIDGE_CFLAGS", "").split()
    builder.set_source(
        "dlbridge._core._cffi",
        PREAMBLE + embedded(HERE / "cuda" / "gather.ptx", "dlb_gather_ptx"),
        sources=[
            str(path.relative_to(ROOT))
            for path in sorted(HERE.rglob("*.c"))
            if path.name != "_cffi.c"
        ],
        include_dirs=["include", "dlbridge/_core", numpy.get_include()],
        extra_compile_args=[
            "-std=c11",
            "-O3",
            "-falign-functions=64",  # else timings vary by 5 % with the code before a function
            "-fexceptions",
            "-fvisibility=hidden",
            "-Wall",
            "-Wextra",
            *extra,
        ],
        extra_link_args=os.environ.get("DLBRIDGE_LDFLAGS", "").split(),
        define_macros=[
            *([("DLB_FREE_THREADED", "1")] if sysconfig.get_config_var("Py_GIL_DISABLED") else []),
            ("NPY_TARGET_VERSION", "NPY_1_22_API_VERSION"),
            ("NPY_NO_DEPRECATED_API", "NPY_1_7_API_VERSION"),
        ],
        libraries=["dl", "m", "pthread"],
        py_limited_api=False,
    )
    return builder


FFI_BUILDER = make_builder()

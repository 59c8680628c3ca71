"""Kernels made by the public functions, for the tests of these: in C, and of TVM."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import dlbridge

INCLUDE = Path(__file__).resolve().parents[2] / "include"

SOURCE = r"""
#include "dlbridge_kernel.h"

int axpy(void *context, DLTensor *args, int count) {
    const float *x = args[0].data, *y = args[1].data;
    float *out = args[2].data;
    float alpha = (float)dlb_get_float(context, 0);
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        out[i] = alpha * x[i] + y[i];
    return 0;
}

/* out = x + y along one dimension, with whatever strides. */
int add(void *context, DLTensor *args, int count) {
    const float *x = args[0].data, *y = args[1].data;
    float *out = args[2].data;
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        out[i * args[2].strides[0]] =
            x[i * args[0].strides[0]] + y[i * args[1].strides[0]];
    return 0;
}

int add_pointers(DLTensor *x, DLTensor *y, DLTensor *out) {
    DLTensor args[] = {*x, *y, *out};
    return add(NULL, args, 3);
}

int scale(void *context, DLTensor *args, int count) {
    float *x = args[0].data;
    for (int64_t i = 0; i < args[0].shape[0]; i++)
        x[i] *= (float)dlb_get_float(context, 0);
    return 0;
}

int minmax(void *context, DLTensor *args, int count) {
    const float *x = args[0].data;
    float *low = args[1].data, *high = args[2].data;
    *low = *high = x[0];
    for (int64_t i = 1; i < args[0].shape[0]; i++) {
        *low = x[i] < *low ? x[i] : *low;
        *high = x[i] > *high ? x[i] : *high;
    }
    return 0;
}

int fail(void *context, DLTensor *args, int count) {
    return dlb_set_error(context, "cannot do %d tensors", count);
}

void raw_axpy(const float *x, const float *y, float *out, int64_t n, float alpha) {
    for (int64_t i = 0; i < n; i++)
        out[i] = alpha * x[i] + y[i];
}

double not_a_kernel(double x) { return x; }
"""

SCHEMAS = {
    "axpy": "test::axpy(x: f32[n], y: f32[n], *, alpha: float = 1.0) -> f32[n]",
    "add": "test::add(x: f32[n], y: f32[n]) -> f32[n]",
    "scale": "test::scale(x!: f32[n], factor: float)",
    "minmax": "test::minmax(x: f32[n]) -> (low: f32[], high: f32[])",
    "fail": "test::fail(x: f32[n]) -> f32[n]",
}


@pytest.fixture(scope="session", autouse=True)
def cache_directory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep what the tests compile away from the user's cache."""
    before = os.environ.get("DLBRIDGE_CACHE_DIR")
    path = tmp_path_factory.mktemp("cache")
    os.environ["DLBRIDGE_CACHE_DIR"] = str(path)
    yield path
    if before is None:
        del os.environ["DLBRIDGE_CACHE_DIR"]
    else:
        os.environ["DLBRIDGE_CACHE_DIR"] = before


@pytest.fixture(scope="session")
def compiled() -> Callable[..., dlbridge.Kernel]:
    """Return `compiled(name, schema=…, **options)`: a function of SOURCE as a Kernel.

    Without `schema` it has the one in SCHEMAS; None is none.
    """
    if not any(shutil.which(name) for name in ("cc", "gcc", "clang")):
        pytest.skip("there is no C compiler")

    def build(name: str, schema: Any = "", **options: Any) -> dlbridge.Kernel:
        given = SCHEMAS[name] if schema == "" else schema
        return dlbridge.compile_c(SOURCE, name, given, **options)

    return build


@pytest.fixture(scope="session")
def library(compiled: Any, tmp_path_factory: pytest.TempPathFactory) -> dlbridge.Library:
    """Return the library that SOURCE is compiled to, as a user would compile it."""
    folder = tmp_path_factory.mktemp("library")
    (folder / "kernels.c").write_text(SOURCE)
    command = ["cc", "-shared", "-fPIC", f"-I{INCLUDE}", "-o", "kernels.so", "kernels.c"]
    subprocess.run(command, cwd=folder, check=True)
    return dlbridge.load_library(folder / "kernels.so")


@pytest.fixture(scope="session")
def matmul(framework: Any) -> Any:
    """Return the 4x4 matrix product of float32, compiled by TVM for the CPU."""
    tvm = framework("tvm")
    te = tvm.te
    a, b = (te.placeholder((4, 4), name=name, dtype="float32") for name in "ab")
    k = te.reduce_axis((0, 4), name="k")
    c = te.compute((4, 4), lambda i, j: te.sum(a[i, k] * b[k, j], axis=k), name="c")
    return tvm.compile(te.create_prim_func([a, b, c]), target="llvm")

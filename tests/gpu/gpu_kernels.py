"""One operation as a kernel of every kind: `a * x + y`, wrapped for every framework."""

from __future__ import annotations

import ctypes
import importlib
import os
import subprocess
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_frameworks import find, is_fake

import dlbridge
from dlbridge import cuda, ffi, wrap
from dlbridge.cuda.driver import entered
from dlbridge.errors import KernelError

# The fake driver has a kernel of this name, and takes text that begins with a comment for an image.
SOURCE = r"""// a * x + y
extern "C" __global__ void saxpy(float a, const float *x, const float *y, float *out,
                                 long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"""
ABI = "void(float a, const float *x, const float *y, float *out, int64_t n)"
GRID = {"grid": "(n + 127) // 128", "block": 128}


def schema(name: str) -> str:
    return f"gpu::{name}(x: f32[n], y: f32[n], a: float) -> f32[n]"


def expected(x: np.ndarray, y: np.ndarray, a: float) -> np.ndarray:
    return np.float32(a) * x + y


# ---- kinds ---------------------------------------------------------------------------------------


def of_cupy(folder: Path) -> Any:
    cupy = _need("cupy")
    return wrap(cupy.RawKernel(SOURCE, "saxpy"), schema("cupy_saxpy"), abi=ABI, **GRID)


def of_cuda_core(folder: Path) -> Any:
    core = _importable("cuda.core")
    device = core.Device(0)
    device.set_current()
    try:
        program = core.Program(SOURCE, "c++", core.ProgramOptions(arch=f"sm_{device.arch}"))
        code = program.compile("cubin")
    except Exception as error:
        pytest.skip(f"cuda.core cannot compile here: {error}")
    return wrap(code.get_kernel("saxpy"), schema("core_saxpy"), abi=ABI, **GRID)


def of_numba(folder: Path) -> Any:
    _need_machine_code()
    numba_cuda = _importable("numba.cuda")
    try:  # a numba older than NumPy's release misses functions of it as soon as it compiles
        numba_cuda.jit("void(float32[:])")(lambda x: None)
    except AttributeError as error:
        pytest.skip(f"numba cannot compile here: {error}")

    @numba_cuda.jit
    def saxpy(a, x, y, out):
        i = numba_cuda.grid(1)
        if i < out.size:
            out[i] = a * x[i] + y[i]

    return wrap(saxpy, schema("numba_saxpy"), **GRID)


def of_triton(folder: Path) -> Any:
    _importable("triton")
    _need("torch")  # Triton's driver finds the device by torch with CUDA
    kernels = importlib.import_module("gpu_triton")
    return wrap(kernels.saxpy, schema("triton_saxpy"), grid=GRID["grid"], constants={"BLOCK": 128})


def of_tvm_ffi(folder: Path) -> Any:
    _need_machine_code()
    cpp = _importable("tvm_ffi.cpp")
    os.environ.setdefault("TVM_FFI_CUDA_ARCH_LIST", ".".join(map(str, _capability())))
    module = cpp.load_inline(
        "gpu_saxpy", cuda_sources=SOURCE + TVM_LAUNCHER, functions="launch",
        build_directory=str(folder),
    )  # fmt: skip
    return wrap(platforms={"cuda": module.launch}, schema=schema("tvm_saxpy"))


def of_c(folder: Path) -> Any:
    """Return a launcher in CUDA C++ that is told the stream by its context."""
    _need_machine_code()
    include = Path(dlbridge.__file__).parent.parent / "include"
    source, binary = folder / "launcher.cu", folder / "launcher.so"
    source.write_text(SOURCE + C_LAUNCHER)
    command = ["nvcc", "-shared", "-Xcompiler", "-fPIC", f"-I{include}", str(source), "-o", binary]
    try:
        subprocess.run(command, check=True, capture_output=True, text=True)
    except FileNotFoundError:
        pytest.skip("there is no nvcc on the PATH")
    launch = ctypes.CDLL(str(binary)).launch
    return wrap(platforms={"cuda": launch}, schema=schema("c_saxpy"), abi="dltensors")


def of_torch(folder: Path) -> Any:
    _need("torch")
    return wrap(
        platforms={"cuda": lambda x, y, a: x * a + y},
        schema=schema("torch_saxpy"),
        abi="python:torch",
    )


def of_cupy_python(folder: Path) -> Any:
    _need("cupy")
    return wrap(
        platforms={"cuda": lambda x, y, a: x * np.float32(a) + y},
        schema=schema("cupy_python"),
        abi="python:cupy",
    )


def of_jax(folder: Path) -> Any:
    _need("jax")
    return wrap(
        platforms={"cuda": lambda x, y, a: x * a + y}, schema=schema("jax_saxpy"), abi="python:jax"
    )


def of_module(folder: Path) -> Any:
    """Return a kernel of PTX that the driver itself compiles."""
    module = cuda.Module(Path(__file__).parent / "saxpy.ptx")
    return wrap(module["saxpy"], schema("module_saxpy"), abi=ABI, **GRID)


def of_compile_cuda(folder: Path) -> Any:
    """Return a kernel of NVRTC, whose signature is read from its text."""
    try:
        return dlbridge.compile_cuda(SOURCE, "saxpy", schema("nvrtc_saxpy"), **GRID)
    except KernelError as error:
        pytest.skip(f"compile_cuda has no NVRTC here: {error}")


KINDS: dict[str, Callable[[Path], Any]] = {
    "cupy.RawKernel": of_cupy,
    "cuda.core": of_cuda_core,
    "numba": of_numba,
    "triton": of_triton,
    "tvm-ffi": of_tvm_ffi,
    "C launcher": of_c,
    "cuda.Module": of_module,
    "compile_cuda": of_compile_cuda,
    "python:torch": of_torch,
    "python:cupy": of_cupy_python,
    "python:jax": of_jax,
}

TVM_LAUNCHER = r"""
void launch(tvm::ffi::TensorView x, tvm::ffi::TensorView y, double a, tvm::ffi::TensorView out) {
    cudaStream_t stream = static_cast<cudaStream_t>(
        TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
    long long n = x.size(0);
    saxpy<<<(n + 127) / 128, 128, 0, stream>>>(
        static_cast<float>(a), static_cast<const float *>(x.data_ptr()),
        static_cast<const float *>(y.data_ptr()), static_cast<float *>(out.data_ptr()), n);
}
"""

C_LAUNCHER = r"""
#include "dlbridge_kernel.h"

extern "C" int launch(void *context, DLTensor *tensors, int count) {
    cudaStream_t stream = (cudaStream_t)((dlb_context *)context)->stream;
    long long n = tensors[0].shape[0];
    saxpy<<<(n + 127) / 128, 128, 0, stream>>>(
        (float)dlb_get_float(context, 0), (const float *)tensors[0].data,
        (const float *)tensors[1].data, (float *)tensors[2].data, n);
    return cudaGetLastError() == cudaSuccess ? 0 : dlb_set_error(context, "the launch failed");
}
"""


def _need(name: str) -> Any:
    """Return a framework's module, or skip the test where it is missing or finds no GPU."""
    found = find(name)
    if isinstance(found, str):
        pytest.skip(found)
    return found.root


def _need_machine_code() -> None:
    if is_fake():
        pytest.skip("the fake driver runs no machine code")


def _capability() -> tuple[int, int]:
    """Return the compute capability of device 0."""
    found = ffi.new("int[2]")
    with entered(0) as driver:
        driver.cuDeviceGetAttribute(found, 75, 0)
        driver.cuDeviceGetAttribute(found + 1, 76, 0)
    return found[0], found[1]


def _importable(name: str) -> Any:
    """Import a module, or skip the test and say why."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        pytest.skip(f"{name.partition('.')[0]} is not installed: {error}")


@cache
def make(kind: str, folder: Path) -> Any:
    """Return the kernel of a kind, wrapped once in this process."""
    folder.mkdir(exist_ok=True)
    return KINDS[kind](folder)

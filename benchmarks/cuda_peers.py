"""Peers of the CUDA benchmarks: tensors, streams and kernels of the installed packages."""

from __future__ import annotations

import ctypes
import platform
from collections.abc import Callable
from contextlib import suppress
from importlib import import_module
from importlib.metadata import PackageNotFoundError, version
from typing import Any, NamedTuple

import numpy as np

import dlbridge
from dlbridge import cuda
from dlbridge.cuda.driver import entered

SIZE = 1024
wrap: Any = dlbridge.wrap


class Row(NamedTuple):
    """One comparison: what it is of, our statement, the peers' by name, and the ratio to reach."""

    what: str
    ours: str
    peers: dict[str, str]
    target: float | None = None


# Names as in `make_names`: on device 0 `t` is a torch tensor, `c` a CuPy array, `j` a JAX array,
# `d` a dlbridge Tensor; on the host `h` is a torch tensor and `a` a NumPy array. `pending()` is a
# JAX array that is still being computed.
TVM = "tvm_ffi.from_dlpack"
EXCHANGES = [
    Row("from_dlpack(torch)", "from_dlpack(t)", {TVM: "tvm_from_dlpack(t)"}, 0.9),
    Row("from_dlpack(cupy)", "from_dlpack(c)", {TVM: "tvm_from_dlpack(c)"}, 0.9),
    Row("from_dlpack(jax)", "from_dlpack(j)", {TVM: "tvm_from_dlpack(j)"}, 0.9),
    Row("to_torch(cupy)", "to_torch(c)", {"torch.from_dlpack": "torch_from_dlpack(c)"}, 0.9),
    Row("to_torch(jax)", "to_torch(j)", {"torch.from_dlpack": "torch_from_dlpack(j)"}, 0.9),
    Row("to_cupy(torch)", "to_cupy(t)", {"cupy.from_dlpack": "cupy_from_dlpack(t)"}, 0.9),
    Row("to_cupy(jax)", "to_cupy(j)", {"cupy.from_dlpack": "cupy_from_dlpack(j)"}, 0.9),
    Row("to_jax(torch)", "to_jax(t)", {"jax.dlpack.from_dlpack": "jax_from_dlpack(t)"}, 0.9),
    Row("to_jax(cupy)", "to_jax(c)", {"jax.dlpack.from_dlpack": "jax_from_dlpack(c)"}, 0.9),
    Row("to_tvm(torch)", "to_tvm(t)", {TVM: "tvm_from_dlpack(t)"}),
    Row("torch on the GPU, against the CPU", "from_dlpack(t)", {"on the CPU": "from_dlpack(h)"},
        1.2),
    Row("Tensor to torch, against the CPU", "to_torch(d)", {"on the CPU": "to_torch(a)"}, 1.2),
    Row("across two streams", "to_cupy_aside(t)", {"cupy.from_dlpack": "cupy_aside(t)"}),
    Row("Tensor to Tensor", "from_dlpack(d)", {"on the CPU": "from_dlpack(e)"}, 1.2),
]  # fmt: skip
PEER_LAUNCHES = {
    "CuPy RawKernel": "raw(blocks, block, (two, c, c2, c3, n))",
    "Triton": "triton_launch(2.0, t, u, v)",
    "tvm-ffi": "tvm_launch(2.0, t, u, v)",
}
LAUNCHES = [
    Row("kernel on torch tensors", "raw_wrapped(2.0, t, u, v)", PEER_LAUNCHES, 0.7),
    Row("kernel on CuPy arrays", "raw_wrapped(2.0, c, c2, c3)", PEER_LAUNCHES, 0.7),
    Row("Triton kernel on torch tensors", "triton_wrapped(2.0, t, u, v)", PEER_LAUNCHES, 0.7),
    Row("kernel on Tensors", "raw_wrapped(2.0, d, d2, d3)", PEER_LAUNCHES, 0.7),
    # For information: what the driver's own call takes, and cuda.core's launch.
    Row("kernel on Tensors", "raw_wrapped(2.0, d, d2, d3)", {"cuLaunchKernel": "bare_launch()"}),
    Row("kernel on Tensors", "raw_wrapped(2.0, d, d2, d3)", {"cuda.core launch": "core_launch()"}),
]

SOURCE = r"""// a * x + y
extern "C" __global__ void saxpy(float a, const float *x, const float *y, float *out,
                                 long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n) out[i] = a * x[i] + y[i];
}
"""
ABI = "void(float a, const float *x, const float *y, float *out, int64_t n)"
SCHEMA = "benchmark::{}(a: float, x: f32[n], y: f32[n], out!: f32[n])"
GRID = {"grid": "(n + 127) // 128", "block": 128}
TVM_LAUNCHER = r"""
void launch(double a, tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView out) {
    cudaStream_t stream = static_cast<cudaStream_t>(
        TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
    long long n = x.size(0);
    saxpy<<<(n + 127) / 128, 128, 0, stream>>>(
        static_cast<float>(a), static_cast<const float *>(x.data_ptr()),
        static_cast<const float *>(y.data_ptr()), static_cast<float *>(out.data_ptr()), n);
}
"""


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed, or finds no GPU, is absent."""
    names: dict[str, Any] = {"from_dlpack": dlbridge.from_dlpack}
    array = np.ones(SIZE, np.float32)
    tensor = dlbridge.from_dlpack(array)
    names |= {"a": array, "e": tensor}
    names |= {name: tensor.to("cuda:0") for name in ("d", "d2", "d3")}
    for make in (_torch, _cupy, _jax, _tvm_ffi, _triton, _cuda_core):
        try:
            names |= make(names)
        except Exception as error:  # noqa: BLE001  (one peer less is no end, if it is said)
            print(f"left out: {make.__name__.strip('_')}: {type(error).__name__}: {error}")
    cuda.synchronize()
    return names


def is_possible(statement: str, names: dict[str, Any]) -> bool:
    """Return whether everything that the statement needs is here."""
    return set(compile(statement, "", "eval").co_names) <= names.keys()


def describe_gpu() -> dict[str, str]:
    """Return what the device is, and the versions of what takes part."""
    found: dict[str, str] = {}
    text, number = ctypes.create_string_buffer(100), dlbridge.ffi.new("int *")
    with entered(0) as driver:
        driver.cuDeviceGetName(dlbridge.ffi.from_buffer("char[]", text), len(text), 0)
        driver.cuDriverGetVersion(number)
    found["gpu"] = text.value.decode(errors="replace")
    found["driver"] = f"CUDA {number[0] // 1000}.{number[0] % 1000 // 10}"
    found["python"] = platform.python_version()
    for name in ("torch", "jax", "cupy-cuda13x", "triton", "cuda-core", "apache-tvm-ffi"):
        with suppress(PackageNotFoundError):
            found[name] = version(name)
    return found


# ---- frameworks ----------------------------------------------------------------------------------


def _torch(_names: dict[str, Any]) -> dict[str, Any]:
    torch = import_module("torch")
    if not torch.cuda.is_available():
        return {}
    tensors = {name: torch.ones(SIZE, device="cuda") for name in "tuv"}
    own = {"to_torch": dlbridge.to_torch, "torch_from_dlpack": torch.from_dlpack}
    return tensors | own | {"h": torch.ones(SIZE)}


def _cupy(names: dict[str, Any]) -> dict[str, Any]:
    cupy = import_module("cupy")
    if not cupy.cuda.is_available():
        return {}
    found = {name: cupy.ones(SIZE, np.float32) for name in ("c", "c2", "c3")}
    found |= {"to_cupy": dlbridge.to_cupy, "cupy_from_dlpack": cupy.from_dlpack}
    if hasattr(cupy, "RawKernel"):
        found |= _raw_kernel(cupy)
    if "t" in names:
        found |= _aside(cupy)
    return found


def _raw_kernel(cupy: Any) -> dict[str, Any]:
    """Return the kernel as CuPy launches it, and wrapped."""
    kernel = cupy.RawKernel(SOURCE, "saxpy")
    return {
        "raw": kernel,
        "raw_wrapped": wrap(kernel, SCHEMA.format("raw"), abi=ABI, **GRID),
        "blocks": ((SIZE + 127) // 128,),
        "block": (128,),
        "two": np.float32(2),
        "n": np.int64(SIZE),
    }


def _aside(cupy: Any) -> dict[str, Any]:
    """Return the exchange into another stream than the producer's, by us and by CuPy."""
    stream = cupy.cuda.Stream(non_blocking=True)

    def ours(x: Any) -> Any:
        with stream:
            return dlbridge.to_cupy(x)

    def theirs(x: Any) -> Any:
        with stream:
            return cupy.from_dlpack(x)

    return {"to_cupy_aside": ours, "cupy_aside": theirs}


def _jax(_names: dict[str, Any]) -> dict[str, Any]:
    jax = import_module("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        return {}
    own = {"to_jax": dlbridge.to_jax, "jax_from_dlpack": jax.dlpack.from_dlpack}
    x = jax.numpy.ones((4096, 4096))
    compute = jax.jit(lambda x: (x @ x)[0, :SIZE])
    return own | {"j": jax.numpy.ones(SIZE), "pending": lambda: compute(x)}


def _tvm_ffi(names: dict[str, Any]) -> dict[str, Any]:
    tvm_ffi = import_module("tvm_ffi")
    found = {"to_tvm": dlbridge.to_tvm, "tvm_from_dlpack": tvm_ffi.from_dlpack}
    if "t" in names:
        build = import_module("tvm_ffi.cpp")
        source = SOURCE + TVM_LAUNCHER
        module = build.load_inline("saxpy_cuda", cuda_sources=source, functions="launch")
        found["tvm_launch"] = module.launch
    return found


def _triton(names: dict[str, Any]) -> dict[str, Any]:
    if "t" not in names:
        return {}
    from benchmarks.cuda_triton import saxpy

    grid = ((SIZE + 127) // 128,)

    def launch(a: float, x: Any, y: Any, out: Any) -> None:
        saxpy[grid](a, x, y, out, SIZE, BLOCK=128)

    wrapped = wrap(saxpy, SCHEMA.format("triton"), grid=GRID["grid"], constants={"BLOCK": 128})
    return {"triton_launch": launch, "triton_wrapped": wrapped}


# ---- cuda.core and the bare driver ---------------------------------------------------------------


def _cuda_core(names: dict[str, Any]) -> dict[str, Any]:
    """Return the kernel as cuda.core launches it, and by the driver's own function."""
    core = import_module("cuda.core")
    device = core.Device(0)
    device.set_current()
    if not hasattr(core, "Program") or "raw" not in names:
        return {}
    address = names["raw"].kernel.ptr
    pointers = [names[name].data_ptr for name in ("d", "d2", "d3")]
    found: dict[str, Any] = {"bare_launch": _bare(address, pointers)}
    with suppress(Exception):  # without NVRTC there is no compiler
        program = core.Program(SOURCE, "c++", core.ProgramOptions(arch=f"sm_{device.arch}"))
        kernel = program.compile("cubin").get_kernel("saxpy")
        config = core.LaunchConfig(grid=(SIZE + 127) // 128, block=128)
        stream, two, count = device.default_stream, np.float32(2), np.int64(SIZE)
        found["core_launch"] = lambda: core.launch(stream, config, kernel, two, *pointers, count)
    return found


def _bare(address: int, pointers: list[int]) -> Callable[[], None]:
    """Return a call of cuLaunchKernel with arguments prepared once."""
    ffi = dlbridge.ffi
    addresses = [ffi.new("uint64_t *", each) for each in pointers]
    values = [ffi.new("float *", 2.0), *addresses, ffi.new("int64_t *", SIZE)]
    parameters = ffi.new("void *[]", [ffi.cast("void *", each) for each in values])
    function, launch = ffi.cast("CUfunction", address), cuda.driver().cuLaunchKernel
    blocks, stream = (SIZE + 127) // 128, ffi.cast("CUstream", 1)

    def call(_keeps: object = values) -> None:
        launch(function, blocks, 1, 1, 128, 1, 1, 0, stream, parameters, ffi.NULL)

    return call

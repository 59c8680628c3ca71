"""What takes part in the CUDA benchmarks: tensors, streams and kernels of whoever is installed."""

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
# `d` a dlbridge Tensor; on the host `h` is a torch tensor and `a` a NumPy array.
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
    "CuPy RawKernel": "raw_noop(one, block, raw_arguments)",
    "Triton": "triton_noop(t, u, v)",
    "tvm-ffi": "tvm_noop(t, u, v)",
}
LAUNCHES = [
    Row("kernel on torch tensors", "raw_wrapped(t, u, v)", PEER_LAUNCHES, 0.7),
    Row("kernel on CuPy arrays", "raw_wrapped(c, e3, f3)", PEER_LAUNCHES, 0.7),
    Row("Triton kernel on torch tensors", "triton_wrapped(t, u, v)", PEER_LAUNCHES, 0.7),
    Row("kernel on Tensors", "core_wrapped(d, d2, d3)", PEER_LAUNCHES, 0.7),
    # For information: what the driver's own call takes, and cuda.core's launch.
    Row("kernel on Tensors", "core_wrapped(d, d2, d3)", {"cuLaunchKernel": "bare_launch()"}),
    Row("kernel on Tensors", "core_wrapped(d, d2, d3)", {"cuda.core launch": "core_launch()"}),
]

SOURCE = r"""
extern "C" __global__ void noop(const float *x, const float *y, float *z, long long n) {
    if (n < 0) z[0] = x[0] + y[0];
}
"""
ABI = "void(const float *x, const float *y, float *z, int64_t n)"
SCHEMA = "benchmark::{}(x: f32[n], y: f32[n], z!: f32[n])"
TVM_SOURCE = r"""
__global__ void noop_kernel(const float *x, const float *y, float *z, int64_t n) {
    if (n < 0) z[0] = x[0] + y[0];
}
void noop(tvm::ffi::TensorView x, tvm::ffi::TensorView y, tvm::ffi::TensorView z) {
    cudaStream_t stream = static_cast<cudaStream_t>(
        TVMFFIEnvGetStream(x.device().device_type, x.device().device_id));
    noop_kernel<<<1, 128, 0, stream>>>(
        static_cast<const float *>(x.data_ptr()), static_cast<const float *>(y.data_ptr()),
        static_cast<float *>(z.data_ptr()), x.size(0));
}
"""


def make_names() -> dict[str, Any]:
    """Return what the statements mean; what is not installed, or finds no GPU, is absent."""
    names: dict[str, Any] = {name: getattr(dlbridge, name) for name in dlbridge.__all__}
    array = np.ones(SIZE, np.float32)
    tensor = dlbridge.from_dlpack(array)
    names |= {"a": array, "e": tensor}
    names |= {name: tensor.to("cuda:0") for name in ("d", "d2", "d3")}
    for make in (_torch, _cupy, _jax, _tvm_ffi, _triton, _cuda_core):
        with suppress(ImportError):
            names |= make(names)
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
    return tensors | {"h": torch.ones(SIZE), "torch_from_dlpack": torch.from_dlpack}


def _cupy(names: dict[str, Any]) -> dict[str, Any]:
    cupy = import_module("cupy")
    if not cupy.cuda.is_available():
        return {}
    found = {name: cupy.ones(SIZE, np.float32) for name in ("c", "e3", "f3")}
    found |= {"cupy_from_dlpack": cupy.from_dlpack}
    if hasattr(cupy, "RawKernel"):
        found |= _raw_kernel(cupy, found)
    if "t" in names:
        found |= _aside(cupy, names["to_cupy"])
    return found


def _raw_kernel(cupy: Any, found: dict[str, Any]) -> dict[str, Any]:
    """Return the kernel as CuPy launches it, and wrapped."""
    kernel = cupy.RawKernel(SOURCE, "noop")
    wrapped = wrap(kernel, SCHEMA.format("raw"), abi=ABI, grid="(n + 127) // 128", block=128)
    arguments = (found["c"], found["e3"], found["f3"], np.int64(SIZE))
    return {
        "raw_noop": kernel,
        "raw_wrapped": wrapped,
        "raw_arguments": arguments,
        "one": ((SIZE + 127) // 128,),
        "block": (128,),
    }


def _aside(cupy: Any, to_cupy: Callable[[Any], Any]) -> dict[str, Any]:
    """Return the exchange into another stream than the producer's, by us and by CuPy."""
    stream = cupy.cuda.Stream(non_blocking=True)

    def ours(x: Any) -> Any:
        with stream:
            return to_cupy(x)

    def theirs(x: Any) -> Any:
        with stream:
            return cupy.from_dlpack(x)

    return {"to_cupy_aside": ours, "cupy_aside": theirs}


def _jax(_names: dict[str, Any]) -> dict[str, Any]:
    jax = import_module("jax")
    if jax.default_backend() not in ("gpu", "cuda"):
        return {}
    return {"j": jax.numpy.ones(SIZE), "jax_from_dlpack": jax.dlpack.from_dlpack}


def _tvm_ffi(names: dict[str, Any]) -> dict[str, Any]:
    tvm_ffi = import_module("tvm_ffi")
    found = {"tvm_from_dlpack": tvm_ffi.from_dlpack}
    if "t" in names:
        build = import_module("tvm_ffi.cpp")
        module = build.load_inline("noop_cuda", cuda_sources=TVM_SOURCE, functions="noop")
        found["tvm_noop"] = module.noop
    return found


def _triton(names: dict[str, Any]) -> dict[str, Any]:
    if "t" not in names:
        return {}
    from benchmarks.cuda_triton import noop

    def launch(x: Any, y: Any, z: Any) -> None:
        noop[(1,)](x, y, z, SIZE, BLOCK=128)

    wrapped = wrap(noop, SCHEMA.format("triton"), grid="(n + 127) // 128", constants={"BLOCK": 128})
    return {"triton_noop": launch, "triton_wrapped": wrapped}


# ---- cuda.core and the bare driver ---------------------------------------------------------------


def _cuda_core(names: dict[str, Any]) -> dict[str, Any]:
    """Return the kernel as cuda.core launches it, wrapped, and by the driver's own function."""
    core = import_module("cuda.core")
    device = core.Device(0)
    device.set_current()
    program = core.Program(SOURCE, "c++", core.ProgramOptions(arch=f"sm_{device.arch}"))
    kernel = program.compile("cubin").get_kernel("noop")
    wrapped = wrap(kernel, SCHEMA.format("core"), abi=ABI, grid="(n + 127) // 128", block=128)
    pointers = [names[name].data_ptr for name in ("d", "d2", "d3")]
    config = core.LaunchConfig(grid=(SIZE + 127) // 128, block=128)
    stream, count = device.default_stream, np.int64(SIZE)
    address = int(kernel.handle)
    return {
        "core_wrapped": wrapped,
        "core_launch": lambda: core.launch(stream, config, kernel, *pointers, count),
        "bare_launch": _bare(address, pointers),
    }


def _bare(address: int, pointers: list[int]) -> Callable[[], None]:
    """Return a call of cuLaunchKernel with arguments prepared once."""
    ffi = dlbridge.ffi
    values = [*(ffi.new("uint64_t *", each) for each in pointers), ffi.new("int64_t *", SIZE)]
    parameters = ffi.new("void *[]", [ffi.cast("void *", each) for each in values])
    function, launch = ffi.cast("CUfunction", address), cuda.driver().cuLaunchKernel
    stream = ffi.cast("CUstream", 1)

    def call(_keeps: object = values) -> None:
        launch(function, 8, 1, 1, 128, 1, 1, 0, stream, parameters, ffi.NULL)

    return call

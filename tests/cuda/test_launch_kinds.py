"""GPU kernels of each library, called with its own arrays: on the fake driver, in own processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_driver import AS_DRIVER, build
from test_cuda_core import CORE, HEAD, needs

HERE = Path(__file__).resolve().parent

WRAP = """
def wrap(function, name, **options):
    return dlbridge.wrap(
        function, f"kinds::{name}(x: f32[n]) -> f32[n]",
        abi="void(const float *x, float *out, int64_t n)", grid="(n + 255) // 256", block=256,
        **options,
    )

def names():
    return [call.name for call in driver.calls]

def value(tensor):
    host = dlbridge.to_numpy(dlbridge.from_dlpack(tensor).to("cpu"))
    assert len(set(host.tolist())) == 1
    return host[0]
"""

RunFake = Callable[..., str]


@pytest.fixture(scope="module")
def driver_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"), AS_DRIVER)


@pytest.fixture
def run_fake(run_python: Callable[..., Any], driver_path: Path) -> RunFake:
    """Return a function that runs code in a process where `libcuda.so.1` is the fake driver."""

    def run(code: str) -> str:
        head = HEAD.format(tests=str(HERE), path=str(driver_path)) + WRAP
        environment = {
            "LD_LIBRARY_PATH": str(driver_path.parent),
            "DLBRIDGE_CUDA_DRIVER": str(driver_path),
        }
        return str(run_python(head + code + "\nfinish()\n", **environment).check())

    return run


# ---- cuda.core -----------------------------------------------------------------------------------


@needs("cuda.core")
def test_a_kernel_of_cuda_core_is_launched(run_fake: RunFake) -> None:
    """Its CUkernel serves all devices: the driver loads it where it is needed."""
    run_fake(
        CORE
        + """
kernel = wrap(add_one, "core")
assert kernel.kind == "a cuda.core Kernel"
for device in (0, 1, 0):
    x = dlbridge.zeros(1000, "float32", device=f"cuda:{device}")
    for _ in range(2):
        x = kernel(x)
    assert x.device == f"cuda:{device}" and value(x) == 2
assert names().count("cuKernelGetFunction") == 2
del x
"""
    )


@needs("cuda.core")
def test_handles_of_cuda_bindings_are_kernels(run_fake: RunFake) -> None:
    run_fake(
        CORE
        + """
from cuda.bindings import driver as bindings
x = dlbridge.zeros(1000, "float32", device="cuda")
_, library = bindings.cuLibraryLoadData(b"fake", [], [], 0, [], [], 0)
_, found = bindings.cuLibraryGetKernel(library, b"add_one")
kernel = wrap(found, "library")
assert kernel.kind == "a CUkernel of cuda.bindings" and value(kernel(x)) == 1
_, module = bindings.cuModuleLoadData(b"fake")
_, function = bindings.cuModuleGetFunction(module, b"add_one")
kernel = wrap(function, "function")
assert kernel.kind == "a CUfunction of cuda.bindings" and value(kernel(x)) == 1
del x
"""
    )


# ---- CuPy, by its stand-in -----------------------------------------------------------------------

CUPY = f"""
sys.path.insert(0, {str(HERE / "stand_in")!r})
import cupy
raw = cupy.RawKernel("fake", "add_one")
"""


def test_a_raw_kernel_runs_on_the_current_stream_of_cupy(run_fake: RunFake) -> None:
    """Results are CuPy's, allocated and ready on the very stream."""
    run_fake(
        CUPY
        + """
kernel = wrap(raw, "raw")
assert kernel.kind == "a CuPy RawKernel"
stream = cupy.cuda.Stream(non_blocking=True)
with stream:
    x = cupy.zeros(1000, "float32")
    y = kernel(kernel(x))
    launches = [call.stream for call in driver.calls if call.name == "cuLaunchKernel"]
    assert type(y) is cupy.ndarray and launches[-2:] == [stream.ptr] * 2
    out = cupy.empty(1000, "float32")
    assert kernel(y, out=out) is out
    assert cupy.asnumpy(out).tolist() == [3] * 1000
    assert kernel.cupy(x).shape == (1000,)
other = cupy.cuda.Stream(non_blocking=True)
other.wait_event(stream.record())
with other:
    assert set(cupy.asnumpy(kernel(y)).tolist()) == {3}
"""
    )


def test_a_raw_kernel_serves_tensors_and_several_devices(run_fake: RunFake) -> None:
    run_fake(
        CUPY
        + """
kernel = wrap(raw, "devices")
for device in (0, 1, 0):
    assert value(kernel(dlbridge.zeros(10, "float32", device=f"cuda:{device}"))) == 1
    with cupy.cuda.Device(device):
        assert kernel(cupy.zeros(10, "float32")).device.id == device
assert names().count("cuModuleLoadData") == 2
"""
    )


def test_a_raw_kernel_and_a_c_function_are_one_kernel_for_two_platforms(run_fake: RunFake) -> None:
    run_fake(
        CUPY
        + """
@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64)
def on_cpu(x, out, n):
    ctypes.memset(out, 0, 4 * n)
    return 0

kernel = dlbridge.wrap(
    on_cpu, "kinds::both(x: f32[n]) -> f32[n]", platforms={"cuda": raw},
    abi={"cpu": "int(const float *x, float *out, int64_t n)",
         "cuda": "void(const float *x, float *out, int64_t n)"},
    grid="(n + 255) // 256", block=256,
)
assert kernel.platforms == ("cpu", "cuda")
assert kernel(np.ones(3, "f4")).tolist() == [0, 0, 0]
assert value(kernel(dlbridge.zeros(3, "float32", device="cuda"))) == 1
assert kernel(cupy.zeros(3, "float32")).device.id == 0
"""
    )

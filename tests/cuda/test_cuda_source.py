"""compile_cuda on the fake driver: what is loaded where, and launched with which arguments."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_driver import AS_DRIVER, build
from test_cuda_core import HEAD

from dlbridge.cuda import nvrtc
from dlbridge.errors import KernelError

HERE = Path(__file__).resolve().parent
# The fake driver has kernels of these names, and takes what NVRTC makes for their code.
SOURCE = """
SOURCE = '''
extern "C" __global__ void saxpy(float a, const float *x, const float *y, float *out, long long n) {
    long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = a * x[i] + y[i];
}
extern "C" __global__ void add_one(const float *x, float *out, long long n) { out[0] = x[0] + 1; }
'''
GRID = dict(grid="(n + 255) // 256", block=256)

def count(name):
    return sum(call.name == name for call in driver.calls)

def value(tensor):
    host = dlbridge.to_numpy(tensor.to("cpu"))
    assert len(set(host.tolist())) == 1
    return host[0]
"""


@pytest.fixture
def run_fake(run_python: Callable[..., Any], tmp_path: Path) -> Callable[[str], str]:
    """Return a function that runs code in a process where `libcuda.so.1` is the fake driver."""
    try:
        nvrtc.open_nvrtc()
    except KernelError as error:
        pytest.skip(str(error))
    path = build(tmp_path, AS_DRIVER)
    head = HEAD.format(tests=str(HERE), path=str(path)) + SOURCE

    def run(code: str) -> str:
        environment = {
            "LD_LIBRARY_PATH": str(path.parent),
            "DLBRIDGE_CUDA_DRIVER": str(path),
            "DLBRIDGE_CACHE_DIR": str(tmp_path / "cache"),
        }
        return str(run_python(head + code + "\nfinish()\n", **environment).check())

    return run


def test_a_kernel_is_launched_on_each_device(run_fake: Callable[[str], str]) -> None:
    """With the parameters as they stand in the text; each device loads the module once."""
    run_fake("""
kernel = dlbridge.compile_cuda(
    SOURCE, "saxpy", "src::saxpy(x: f32[n], y: f32[n], a: float) -> f32[n]", **GRID)
assert count("cuModuleLoadData") == 0 and count("cuDevicePrimaryCtxRetain") == 0
for device in ("cuda:0", "cuda:1", "cuda:0"):
    x = dlbridge.full((1000,), 3.0, "float32", device=device)
    assert value(kernel(x, x, 2.0)) == 9
assert count("cuModuleLoadData") == 2
del x
""")


def test_kernels_of_one_text_are_of_one_module(run_fake: Callable[[str], str]) -> None:
    run_fake("""
saxpy = dlbridge.compile_cuda(
    SOURCE, "saxpy", "src::saxpy(x: f32[n], y: f32[n], a: float) -> f32[n]", **GRID)
add_one = dlbridge.compile_cuda(SOURCE, "add_one", "src::add_one(x: f32[n]) -> f32[n]", **GRID)
x = dlbridge.full((1000,), 3.0, "float32", device="cuda")
assert value(add_one(saxpy(x, x, 1.0))) == 7
assert count("cuModuleLoadData") == 1
both = dlbridge.wrap(
    dlbridge.compile_cuda(SOURCE)["add_one"], "src::again(x: f32[n]) -> f32[n]", **GRID)
assert value(both(x)) == 4 and count("cuModuleLoadData") == 1
del x
""")


def test_work_is_in_order_and_the_host_does_not_wait(run_fake: Callable[[str], str]) -> None:
    run_fake("""
add_one = dlbridge.compile_cuda(SOURCE, "add_one", "src::add_one(x: f32[n]) -> f32[n]", **GRID)
x = dlbridge.zeros(1000, "float32", device="cuda")
for _ in range(3):
    x = add_one(x)
assert driver.fake_host_waits() == 0
assert value(x) == 3
del x
""")


def test_one_operator_has_a_kernel_for_each_platform(run_fake: Callable[[str], str]) -> None:
    run_fake("""
kernel = dlbridge.wrap(
    lambda x: x + 1, "src::anywhere(x: f32[n]) -> f32[n]",
    platforms={"cuda": dlbridge.compile_cuda(SOURCE)["add_one"]},
    abi={"cpu": "python:numpy", "cuda": None}, **GRID,
)
assert kernel(np.zeros(5, "float32")).tolist() == [1] * 5
x = dlbridge.zeros(1000, "float32", device="cuda")
assert value(kernel(x)) == 1
del x
""")

"""NVIDIA's own packages run on the fake driver and exchange with dlbridge: nothing is out of order.

Each in a process of its own, whose `libcuda.so.1` is the fake one: there, a driver that does not
behave as NVIDIA's does would show, and so would a wrong order between streams.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from fake_driver import AS_DRIVER, build

RunFake = Callable[..., str]

HEAD = """
import ctypes, os, sys
sys.path.insert(0, {tests!r})
import numpy as np
import dlbridge
from fake_driver import FakeDriver

driver = FakeDriver({path!r})

def finish():
    assert driver.faults == [], "\\n".join(driver.faults)
    print("in order")
"""


@pytest.fixture(scope="module")
def driver_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(tmp_path_factory.mktemp("driver"), AS_DRIVER)


@pytest.fixture
def run_fake(run_python: Callable[..., Any], driver_path: Path) -> RunFake:
    """Return a function that runs code in a process where `libcuda.so.1` is the fake driver."""

    def run(code: str) -> str:
        head = HEAD.format(tests=str(Path(__file__).parent), path=str(driver_path))
        environment = {
            "LD_LIBRARY_PATH": str(driver_path.parent),
            "DLBRIDGE_CUDA_DRIVER": str(driver_path),
            "NUMBA_CUDA_DRIVER": str(driver_path),
        }
        return str(run_python(head + code + "\nfinish()\n", **environment).check())

    return run


def needs(package: str) -> pytest.MarkDecorator:
    # A part of a package that is missing cannot be asked for; cuda.core needs cuda.bindings.
    parts = ("cuda", package.partition(".")[0], package, "cuda.bindings")
    missing = next((part for part in parts if not importlib.util.find_spec(part)), None)
    return pytest.mark.skipif(missing is not None, reason=f"{missing} is not installed")


CORE = """
from cuda.core import Device, LaunchConfig, ObjectCode, launch
from cuda.core.utils import StridedMemoryView
device = Device(0)
device.set_current()
mine, theirs = device.create_stream(), device.create_stream()
add_one = ObjectCode.from_ptx(b"fake", name="kernels").get_kernel("add_one")

def run(stream, x, out, n):
    launch(stream, LaunchConfig(grid=1, block=256), add_one, x, out, np.int64(n))

def filled(n, stream):
    buffer = device.memory_resource.allocate(4 * n, stream=stream)
    driver.do("cuMemsetD32Async", int(buffer.handle), 0, n, int(stream.handle))
    return buffer
"""


@needs("cuda.core")
def test_a_buffer_of_cuda_core_is_taken_in_the_order_of_its_user(run_fake: RunFake) -> None:
    """Its `__dlpack__` looks at no stream and it has none: cuda.core leaves the order to users."""
    run_fake(
        CORE
        + """
buffer = filled(256, theirs)
mine.wait(theirs)
with dlbridge.cuda.stream(mine):
    tensor = dlbridge.from_dlpack(buffer)
assert tensor.device == dlbridge.Device("cuda:0")
assert tensor.shape == (1024,) and tensor.data_ptr == int(buffer.handle)
run(mine, tensor.data_ptr, tensor.data_ptr, 256)
assert driver.fake_host_waits() == 0
del tensor
mine.sync()
buffer.close(mine)
"""
    )


@needs("cuda.core")
def test_cuda_core_takes_a_tensor_on_its_stream(run_fake: RunFake) -> None:
    """Its view asks for the order with `__dlpack__(stream=)`; the tensor was filled on another."""
    run_fake(
        CORE
        + """
with dlbridge.cuda.stream(mine):
    tensor = dlbridge.empty((4, 64), "float32", device="cuda:0")
    run(mine, tensor.data_ptr, tensor.data_ptr, 0)
    driver.do("cuMemsetD32Async", tensor.data_ptr, 0x3F800000, 256, int(mine.handle))
    view = StridedMemoryView.from_any_interface(tensor, stream_ptr=int(theirs.handle))
    assert (view.ptr, view.shape, view.device_id) == (tensor.data_ptr, (4, 64), 0)
    out = dlbridge.empty((4, 64), "float32", device="cuda:0")
    to = StridedMemoryView.from_any_interface(out, stream_ptr=int(theirs.handle))
    run(theirs, view.ptr, to.ptr, 256)
    del view, to
    host = out.to("cpu")
assert dlbridge.to_numpy(host).tolist() == [[2.0] * 64] * 4
del tensor, out
dlbridge.cuda.collect()
"""
    )


@needs("cuda.core")
def test_memory_waits_for_kernels_of_cuda_core(run_fake: RunFake) -> None:
    """The kernel is slow, the tensor goes before it ends."""
    run_fake(
        CORE
        + """
tensor = dlbridge.empty(256, "float32", device="cuda:0")
view = StridedMemoryView.from_any_interface(tensor, stream_ptr=int(theirs.handle))
driver.do("fake_hold", int(theirs.handle))
run(theirs, view.ptr, view.ptr, 256)
del view, tensor
again = dlbridge.empty(256, "float32", device="cuda:0")
assert driver.fake_host_waits() == 0
del again
theirs.sync()
assert dlbridge.cuda.collect() == 0
"""
    )


@needs("cuda.core")
def test_a_kernel_of_cuda_core_can_be_captured_with_its_tensor(run_fake: RunFake) -> None:
    run_fake(
        CORE
        + """
tensor = dlbridge.empty(256, "float32", device="cuda:0")
driver.do("cuMemsetD32Async", tensor.data_ptr, 0, 256, 1)
dlbridge.cuda.synchronize(0)
driver.do("cuStreamBeginCapture_v2", int(mine.handle), 0)
with dlbridge.cuda.stream(mine):
    view = StridedMemoryView.from_any_interface(tensor, stream_ptr=int(mine.handle))
    run(mine, view.ptr, view.ptr, 256)
    del view
graph = driver.make_last("cuStreamEndCapture", int(mine.handle))
instance = driver.make("cuGraphInstantiateWithFlags", graph, 0)
for _ in range(2):
    driver.do("cuGraphLaunch", instance, int(mine.handle))
mine.sync()
found = np.ctypeslib.as_array((ctypes.c_float * 256).from_address(tensor.data_ptr))
assert found.tolist() == [2.0] * 256
"""
    )


NUMBA = """
import warnings
warnings.simplefilter("ignore")
from numba import cuda
mine, theirs = cuda.stream(), cuda.stream()
"""


@needs("numba.cuda")
def test_numba_takes_a_tensor(run_fake: RunFake) -> None:
    run_fake(
        NUMBA
        + """
with dlbridge.cuda.stream(mine):
    tensor = dlbridge.full((2, 3), 5, "int32", device="cuda:0")
array = cuda.as_cuda_array(tensor)
assert array.copy_to_host().tolist() == [[5, 5, 5], [5, 5, 5]]
"""
    )


@needs("numba.cuda")
def test_an_array_of_numba_comes_with_its_stream(run_fake: RunFake) -> None:
    """It says its stream in the CUDA array interface, and the kernel on ours waits for it."""
    run_fake(
        NUMBA
        + """
array = cuda.to_device(np.arange(12, dtype=np.float32).reshape(3, 4), stream=theirs)
before = driver.fake_host_waits()
tensor = dlbridge.from_dlpack(array, stream=mine)
assert tensor.shape == (3, 4)
handle = getattr(mine.handle, "value", mine.handle)  # a c_void_p in older releases
driver.touch(int(handle), reads=[(tensor.data_ptr, 48)])
assert driver.fake_host_waits() == before
driver.do("cuStreamSynchronize", int(handle))
del tensor
"""
    )

"""GPU kernels of each library, called with its own arrays: on the fake driver, in own processes."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

from cases import require_stand_in
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


@needs("cuda.core")
def test_memory_of_cuda_core_is_an_argument(run_fake: RunFake) -> None:
    """Objects with only DLPack or the CUDA array interface are taken; results are Tensors."""
    run_fake(
        CORE
        + """
kernel = wrap(add_one, "buffer")
class Interface:
    def __init__(self, buffer):
        self.buffer = buffer
        self.__cuda_array_interface__ = {
            "data": (int(buffer.handle), False), "shape": (256,), "typestr": "<f4",
            "strides": None, "version": 3, "stream": int(theirs.handle),
        }
buffer = filled(256, theirs)
with dlbridge.cuda.stream(mine):
    y = kernel(Interface(buffer))
    assert isinstance(y, dlbridge.Tensor) and value(y) == 1
del y
buffer.close(mine)
"""
    )


# ---- CuPy, by its stand-in -----------------------------------------------------------------------

CUPY = f"""
sys.path.insert(0, {str(HERE / "stand_in")!r})
import cupy
raw = cupy.RawKernel("fake", "add_one")
"""


def test_a_raw_kernel_runs_on_the_current_stream_of_cupy(run_fake: RunFake) -> None:
    """Results are CuPy's, allocated and ready on the very stream, without an event between."""
    require_stand_in()
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
    waits = [call.stream for call in driver.calls if call.name == "cuStreamWaitEvent"]
    assert stream.ptr not in waits  # nor does the host; a stream of dlbridge's may, for memory
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


def test_an_interrupt_in_a_call_like_one_before_is_raised(run_fake: RunFake) -> None:
    require_stand_in()
    run_fake(
        CUPY
        + """
kernel = wrap(raw, "interrupted")
x = cupy.zeros((1000,), "float32")
kernel(kernel(x))  # the first call is not one of C
calls = []
def current_stream(device=-1):
    calls.append(device)
    if len(calls) == 1:
        raise KeyboardInterrupt
    return cupy.cuda.get_current_stream(device)
dlbridge._core.native.cupy_open(cupy.ndarray, current_stream)
try:
    kernel(x)
except KeyboardInterrupt:
    assert calls == [0]
else:
    raise AssertionError("the interrupt was lost")
assert set(cupy.asnumpy(kernel(x)).tolist()) == {1}
"""
    )


def test_calls_give_back_the_dtypes_of_arrays_of_cupy(run_fake: RunFake) -> None:
    """These are NumPy's own, which nothing ever collects: only their count tells."""
    require_stand_in()
    run_fake(
        CUPY
        + """
from measuring import growth
kernel = wrap(raw, "raw")
x = cupy.zeros(8, "float32")
def step():
    kernel(x), kernel.cupy(x)
assert growth(step, 200, lambda: sys.getrefcount(x.dtype)) < 0.5
"""
    )


def test_plain_calls_with_arrays_of_cupy_run_no_code_of_dlbridge_in_python(
    run_fake: RunFake,
) -> None:
    """From the second call on: C reads the arrays, makes the results, and launches."""
    require_stand_in()
    run_fake(
        CUPY
        + """
kernel = wrap(raw, "plain")
x = cupy.zeros((1000,), "float32")
assert set(cupy.asnumpy(kernel(x)).tolist()) == {1}
slow = []
dlbridge._core.native.set_kernel_hooks(slow_call=lambda *call: slow.append(call))
stream = cupy.cuda.Stream(non_blocking=True)
for count in (1000, 1000, 7):
    with stream:
        x = cupy.zeros(count, "float32")
        driver_calls = len(driver.calls)
        y = kernel(kernel.cupy(x))
        out = cupy.empty(count, "float32")
        assert kernel(y, out=out) is out and type(y) is cupy.ndarray
        launches = [call.stream for call in driver.calls[driver_calls:]
                    if call.name == "cuLaunchKernel"]
        assert launches == [stream.ptr] * 3
        assert set(cupy.asnumpy(out).tolist()) == {3}
with cupy.cuda.Device(1):
    other = cupy.zeros(7, "float32")
    assert kernel(other).device.id == 1  # made on the second device, launched there
assert kernel(other).device.id == 1  # wherever CuPy is at the time
with stream:
    assert cupy.asnumpy(kernel(cupy.zeros((6,), "float32")[::2])).tolist() == [1, 1, 1]
assert slow == []
try:
    kernel(other, out=cupy.zeros(7, "float32"))
except dlbridge.ExchangeError as error:
    assert error.reason == "device" and "on cuda:1 as 'x'" in str(error)
else:
    raise AssertionError("two devices in one call")
"""
    )


def test_a_raw_kernel_serves_tensors_and_several_devices(run_fake: RunFake) -> None:
    require_stand_in()
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
    require_stand_in()
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


# ---- Numba ---------------------------------------------------------------------------------------

NUMBA = """
import warnings
warnings.simplefilter("ignore")
import numba
from numba import cuda

@cuda.jit
def scaled(x, out, factor, n):
    i = cuda.grid(1)
    if i < n:
        out[i, 0] = x[i] * factor

SCHEMA = "kinds::scaled(x: f32[n], *, factor: float) -> f32[n, 1]"
"""


@needs("numba.cuda")
def test_a_kernel_of_numba_gets_arrays_as_numba_passes_them(run_fake: RunFake) -> None:
    """Numba compiles for types: here it is only asked which, and the driver has the kernel."""
    run_fake(
        NUMBA
        + """
driver.add_kernel("numba_scaled", [8] * 18, lambda launch, parameters: found.append(
    [ctypes.cast(parameters[i], ctypes.POINTER(ctypes.c_int64))[0] for i in range(18)]))
found, asked = [], []
module = dlbridge.cuda.Module(b"fake")

class Kernel:
    cooperative = False
    def bind(self):
        pass
    @property
    def _codelibrary(self):
        return self
    def get_cufunc(self):
        self.handle = ctypes.c_void_p(module["numba_scaled"].load(cuda.current_context().device.id))
        return self

scaled.compile = lambda types: asked.append(types) or Kernel()
kernel = dlbridge.wrap(scaled, SCHEMA, grid="(n + 63) // 64", block=64)
assert kernel.kind == "a Numba CUDA kernel" and kernel.platforms == ("cuda",)
x = dlbridge.zeros(100, "float32", device="cuda")
for _ in range(2):
    y = kernel(x, factor=0.5)
t = numba.types
assert asked == [(t.Array(t.float32, 1, "C"), t.Array(t.float32, 2, "C"), t.float64, t.int64)]
half = int.from_bytes(np.float64(0.5).tobytes(), "little")
assert found[-1] == [
    0, 0, 100, 4, x.data_ptr, 100, 4,
    0, 0, 100, 4, y.data_ptr, 100, 1, 4, 4,
    half, 100,
]
del x, y
"""
    )


@needs("numba.cuda")
def test_a_kernel_of_numba_that_does_not_fit_its_schema_is_refused(run_fake: RunFake) -> None:
    run_fake(
        NUMBA
        + """
def refused(schema, text, **options):
    try:
        dlbridge.wrap(scaled, schema, **({"grid": 1, "block": 1} | options))
    except dlbridge.ArgumentError as error:
        assert text in str(error), error
    else:
        raise AssertionError(schema)

refused("k::b(x: f32[...], n: int, factor: float) -> f32[n, 1]", "fixed number of dimensions")
refused("k::c(x: f32|f64[n], factor: float) -> f32[n, 1]", "must have one dtype")
refused("k::d(x: f32[m], factor: float) -> f32[m, 1]", "'n' is not a dimension")
refused("k::e(x: f32[n], factor: str) -> f32[n, 1]", "is not a number")
refused("k::f(x: f32[n], factor: float) -> (y: f32[n, 1])", "'out' is not a dimension")
refused(SCHEMA, "cannot have abi=", abi="dltensors")
refused(SCHEMA, "needs grid= and block=", grid=None)
"""
    )

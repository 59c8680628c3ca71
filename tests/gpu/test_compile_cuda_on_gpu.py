"""Kernels that compile_cuda makes of text, on a GPU: values, architectures, variables, errors.

`test_kernels_on_gpu.py` has them among all kinds: each framework, streams, compilers, captures.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gpu_frameworks import is_fake

import dlbridge
from dlbridge import cuda, from_dlpack, to_numpy
from dlbridge.cuda import nvrtc
from dlbridge.errors import CUDAError, KernelError

pytestmark = pytest.mark.gpu

SOURCE = """
#include <stdint.h>
__constant__ int calls_begin_at = 1;
__device__ int calls;

extern "C" __global__ void count(const float *x, int *out, int64_t n) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[0] = calls_begin_at + atomicAdd(&calls, 1);
}

extern "C" __global__ void count_ten(const float *x, int *out, int64_t n) {
    if (blockIdx.x == 0 && threadIdx.x == 0)
        out[0] = calls_begin_at + atomicAdd(&calls, 10);
}

template <typename T, int factor> __global__ void times(const T *x, T *out, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = x[i] * T(factor);
}

// y = x * w, and its derivatives
namespace product {
__global__ void forward(const float *x, const float *w, float *y, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n)
        y[i] = x[i] * w[i];
}
__global__ void backward(const float *grad, const float *x, const float *w, float *gx, float *gw,
                         int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n) {
        gx[i] = grad[i] * w[i];
        gw[i] = grad[i] * x[i];
    }
}
}

// reversed within each block, by way of dynamic shared memory of `m` bytes and more
extern "C" __global__ void turned(const float *x, float *out, int64_t n) {
    extern __shared__ float seen[];
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    seen[threadIdx.x + 12 * 1024] = x[i];
    __syncthreads();
    out[i] = seen[blockDim.x - 1 - threadIdx.x + 12 * 1024];
}

extern "C" __global__ void stray(const float *x, float *out, int64_t n) {
    if (x[0] < 0)
        __trap();
}
"""
HALVES = """
#include <stdint.h>
#include <cuda_fp16.h>
#include <cuda_bf16.h>
extern "C" __global__ void mixed(const __half *x, const __nv_bfloat16 *y, __half *out, int64_t n) {
    int64_t i = blockIdx.x * (int64_t)blockDim.x + threadIdx.x;
    if (i < n)
        out[i] = __float2half(__half2float(x[i]) + __bfloat162float(y[i]));
}
"""
GRID: dict[str, Any] = {"grid": "(n + 255) // 256", "block": 256}
X = np.arange(1000, dtype=np.float32)


@pytest.fixture(autouse=True)
def needs_machine_code(needs_a_gpu: None) -> None:
    if is_fake():
        pytest.skip("the fake driver runs no machine code")
    try:
        nvrtc.open_nvrtc()
    except KernelError as error:
        pytest.skip(str(error))


def compile_cuda(name: str, schema: str, *arguments: Any, **options: Any) -> dlbridge.Kernel:
    return dlbridge.compile_cuda(
        SOURCE, name, f"nvrtc::{schema}", *arguments, **{**GRID, **options}
    )


def times(factor: int, name: str, **options: Any) -> dlbridge.Kernel:
    abi = "void(const float *x, float *out, int64_t n)"
    schema = f"{name}(x: f32[n]) -> f32[n]"
    return compile_cuda(f"times<float, {factor}>", schema, abi, **options)


def host(x: Any) -> np.ndarray:
    return to_numpy(from_dlpack(x).to("cpu"))


def test_templates_have_values_of_their_own() -> None:
    x = from_dlpack(X).to("cuda:0")
    for factor in (2, 3):
        assert (host(times(factor, f"times{factor}")(x)) == factor * X).all()
    schema = "nvrtc::times_i16(x: i16[n]) -> i16[n]"
    abi = "void(const int16_t *x, int16_t *out, int64_t n)"
    kernel = dlbridge.compile_cuda(SOURCE, "times<short, -1>", schema, abi, **GRID)
    whole = from_dlpack(X.astype(np.int16)).to("cuda:0")
    assert (host(kernel(whole)) == -X.astype(np.int16)).all()


def test_code_of_an_older_architecture_runs_by_its_ptx() -> None:
    """The driver compiles that for the device; machine code of its own generation runs as it is."""
    here = nvrtc.device_architecture(0)
    known = [number for number in nvrtc.open_nvrtc().architectures if number < here.number]
    x = from_dlpack(X).to("cuda:0")
    if known:
        for arch in (f"compute_{known[0]}", f"sm_{known[0]}", f"sm_{known[-1]}"):
            assert (host(times(5, "times_older", arch=arch)(x)) == 5 * X).all()
    assert (host(times(5, "times_own", arch=str(here))(x)) == 5 * X).all()


def test_an_architecture_that_is_newer_than_the_device_is_refused_at_the_call() -> None:
    here = nvrtc.device_architecture(0)
    newer = [number for number in nvrtc.open_nvrtc().architectures if number > here.number]
    if not newer:
        pytest.skip("NVRTC here knows no newer architecture")
    kernel = times(2, "times_newer", arch=f"sm_{newer[-1]}")
    with pytest.raises(dlbridge.DLBridgeError, match=f"newer than cuda:0, which is {here}"):
        kernel(from_dlpack(X).to("cuda:0"))


def test_kernels_of_one_text_share_its_variables() -> None:
    """Both are of one module, which is loaded once on the device."""
    x = from_dlpack(X).to("cuda:0")
    first = compile_cuda("count", "count(x: f32[n]) -> i32[1]")
    second = compile_cuda("count_ten", "count_ten(x: f32[n]) -> i32[1]")
    counts = [int(host(kernel(x))[0]) for kernel in (first, second, first)]
    assert [count - counts[0] for count in counts] == [0, 1, 11]


@pytest.mark.parametrize("caller", ["torch", "jax"])
def test_a_gradient_is_another_kernel_of_the_text(caller, load) -> None:
    framework = load(caller)
    backward = compile_cuda(
        "product::backward",
        "product_backward(grad: f32[n], x: f32[n], w: f32[n]) -> (gx: f32[n], gw: f32[n])",
    )
    forward = compile_cuda(
        "product::forward", "product(x: f32[n], w: f32[n]) -> (y: f32[n])",
        vjp=lambda grad, x, w: backward(grad, x, w),
    )  # fmt: skip
    x, w = X / 7, X[::-1].copy()
    if caller == "torch":
        left, right = (framework.put(each).requires_grad_() for each in (x, w))
        (forward(left, right) ** 2).sum().backward()
        found = [left.grad, right.grad]
    else:
        jax = framework.root
        loss = jax.jit(jax.grad(lambda u, v: (forward(u, v) ** 2).sum(), (0, 1)))
        found = loss(framework.put(x), framework.put(w))
    for gradient, other in zip(found, (w, x), strict=True):
        np.testing.assert_allclose(framework.get(gradient), 2 * x * w * other, rtol=1e-5)


def test_halves_are_those_of_torch(load) -> None:
    if not nvrtc.open_nvrtc(nvrtc.driver_version()[0]).include:
        pytest.skip("the headers of CUDA are not installed")
    torch = load("torch").root
    kernel = dlbridge.compile_cuda(
        HALVES, "mixed", "nvrtc::mixed(x: f16[n], y: bf16[n]) -> f16[n]", **GRID
    )
    torch.manual_seed(0)
    x = torch.randn(1000, device="cuda", dtype=torch.float16)
    y = torch.randn(1000, device="cuda", dtype=torch.bfloat16)
    assert torch.equal(kernel(x, y), (x.float() + y.float()).half())


def test_more_than_the_usual_shared_memory_is_had() -> None:
    kernel = compile_cuda(
        "turned", "turned(x: f32[n]) -> f32[n]", grid="n // 256", shared=4 * (12 * 1024 + 256)
    )
    x = np.arange(1024, dtype=np.float32)
    expected = x.reshape(4, 256)[:, ::-1].ravel()
    assert (host(kernel(from_dlpack(x).to("cuda:0"))) == expected).all()


def test_flags_decide_what_is_computed() -> None:
    source = (
        'extern "C" __global__ void f(const float *x, float *out, long long n) { out[0] = VALUE; }'
    )
    x = from_dlpack(X).to("cuda:0")
    for value in ("1.5f", "2.5f"):
        kernel = dlbridge.compile_cuda(
            source, "f", "nvrtc::flagged(x: f32[n]) -> f32[1]", grid=1, block=1,
            flags=[f"-DVALUE={value}"],
        )  # fmt: skip
        assert host(kernel(x)).tolist() == [float(value[:-1])]


def test_strided_arguments_are_copied_and_empty_ones_launch_nothing(load) -> None:
    torch = load("torch").root
    kernel = times(3, "times_layouts")
    x = torch.arange(20.0, device="cuda")
    assert kernel(x[::2]).tolist() == [6.0 * i for i in range(10)]
    assert kernel(x[:0]).shape == (0,)


TRAP = """
import numpy as np, dlbridge
from test_compile_cuda_on_gpu import SOURCE
kernel = dlbridge.compile_cuda(
    SOURCE, "stray", "nvrtc::stray(x: f32[n]) -> f32[n]", grid=1, block=1)
x = dlbridge.from_dlpack(np.full(3, -1.0, "float32")).to("cuda:0")
out = kernel(x)
try:
    dlbridge.cuda.synchronize()
except dlbridge.DLBridgeError as error:
    print(type(error).__name__)
"""


def test_a_kernel_that_fails_ends_the_context_with_an_error_of_cuda(run_python) -> None:
    here = Path(__file__).parent
    code = f"import sys; sys.path[:0] = [{str(here)!r}, {str(here.parent / 'cuda')!r}]\n{TRAP}"
    assert run_python(code).stdout.strip() == CUDAError.__name__


def test_a_process_finds_what_another_has_compiled(run_python, tmp_path) -> None:
    """The second one loads the machine code from the cache, without NVRTC's compiler."""
    code = """
import numpy as np, dlbridge
from dlbridge.cuda import nvrtc
compile_here, compiled = nvrtc.Nvrtc.compile, []
nvrtc.Nvrtc.compile = lambda *arguments: compiled.append(1) or compile_here(*arguments)
source = '''
extern "C" __global__ void f(const float *x, float *out, long long n) { out[0] = x[1]; }
'''
kernel = dlbridge.compile_cuda(source, "f", "nvrtc::f(x: f32[n]) -> f32[1]", grid=1, block=1)
x = dlbridge.from_dlpack(np.arange(3, dtype="float32")).to("cuda:0")
print(len(compiled), dlbridge.to_numpy(kernel(x).to("cpu")).tolist())
"""
    found = [
        run_python(code, DLBRIDGE_CACHE_DIR=str(tmp_path / "cache")).check().split("\n")[0]
        for _ in range(2)
    ]
    assert found == ["1 [1.0]", "0 [1.0]"]


def test_the_streams_of_threads_are_theirs(machine) -> None:
    """A kernel that is compiled before its first launch runs on the stream of its caller."""
    kernel = times(2, "times_streams")
    stream = machine.stream()
    with cuda.stream(stream):
        x = from_dlpack(X).to("cuda:0")
        kernel(x)
        cuda.synchronize()
        machine.launch(stream, slow=True)
        out = kernel(x)
        assert not machine.is_through(stream), "the host has waited"
        assert (host(out) == 2 * X).all()

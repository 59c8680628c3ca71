"""Programs for compute-sanitizer: exchanges, copies, kernels and captured graphs, checked.

`python tests/gpu/sanitized.py` prints one line for each scenario, and fails where values are wrong;
`--without jax` leaves a framework out, `--only jax` leaves out all but one and dlbridge,
`--scenario tiles` leaves out all other scenarios.

memcheck looks for memory that is read or written beyond its end or after it was freed, in stream
order; racecheck for races in shared memory, which `total` below uses, and dlbridge's own kernels
for transposed copies.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

HERE = Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parent / "cuda")]

# Frameworks allocate by cudaMallocAsync here: where their own caches hand memory out again,
# memcheck sees nothing of it.
os.environ.setdefault("PYTORCH_CUDA_ALLOC_CONF", "backend:cudaMallocAsync")
os.environ.setdefault("XLA_PYTHON_CLIENT_ALLOCATOR", "cuda_async")

import numpy as np  # noqa: E402
from gpu_frameworks import TARGETS, Dlbridge, Framework, find, is_fake  # noqa: E402
from gpu_kernels import ABI, GRID, SOURCE, expected, schema  # noqa: E402

import dlbridge  # noqa: E402
from dlbridge import convert, cuda, from_dlpack, to_numpy  # noqa: E402
from dlbridge._core import native  # noqa: E402

LENGTH = 10_007

# A sum of each block by way of shared memory.
TOTAL = r"""// sums of blocks
extern "C" __global__ void total(const float *x, float *out, long long n) {
    __shared__ float part[128];
    long long i = blockIdx.x * 128LL + threadIdx.x;
    part[threadIdx.x] = i < n ? x[i] : 0.0f;
    __syncthreads();
    for (int half = 64; half > 0; half /= 2) {
        if (threadIdx.x < half) part[threadIdx.x] += part[threadIdx.x + half];
        __syncthreads();
    }
    if (threadIdx.x == 0) out[blockIdx.x] = part[0];
}
"""


def data(length: int = LENGTH) -> np.ndarray:
    return np.arange(length, dtype=np.float32) % 13


def exchanges(frameworks: list[Framework]) -> None:
    """From every framework to every other one, the producer's reference gone first."""
    for ours in frameworks:
        for theirs in frameworks:
            if theirs.is_target and theirs.name != "dlbridge":
                y = convert(ours.put(data()), theirs.name)
                assert np.array_equal(theirs.get(y), data()), (ours.name, theirs.name)
                if theirs.name == "jax":  # how XLA waits for its copy to the host, no tool sees
                    cuda.synchronize()
                del y


def streams(frameworks: list[Framework]) -> None:
    """Memory goes to another stream and back, again and again, while kernels run."""
    for ours in frameworks:
        stream = ours.stream()
        for number in range(20):
            with ours.on(stream):
                x = from_dlpack(ours.put(data() + number))
            with cuda.stream(1):
                copy = x.copy()
                del x
                assert to_numpy(copy[:5].to("cpu")).tolist() == (data(5) + number).tolist()


def returns(frameworks: list[Framework]) -> None:
    """A framework's memory goes back to its own pool while another one's kernels still read it."""
    from real_machine import RealMachine

    machine = RealMachine()
    adding = [each for each in frameworks if each.name in ("torch", "cupy", "jax")]
    for ours in frameworks:
        for theirs in adding:
            if ours is theirs or not ours.has_streams:
                continue
            first, second = ours.stream(), theirs.stream()
            with theirs.on(second):
                total = theirs.put(data() * 0)
            cuda.synchronize()
            with ours.on(first):
                x = ours.put(data())
            with ours.on(first), theirs.on(second):  # a producer exports on its current stream
                y = convert(x, theirs.name)
            with theirs.on(second):
                machine.launch(theirs.handle(second), slow=True)
                total = total + y
            del x, y
            with ours.on(first):
                others = [ours.put(data() + 1) for _ in range(4)]
            cuda.synchronize()
            cuda.collect()
            assert np.array_equal(theirs.get(total), data()), (ours.name, theirs.name)
            assert np.array_equal(ours.get(others[0]), data() + 1)
    machine.close()


def tiles(_frameworks: list[Framework]) -> None:
    """Transposed copies, which go in tiles through shared memory; no tile divides the shapes."""
    for dtype in ("uint8", "int16", "float32", "float64", "complex128"):
        for shape in ((70, 45), (37, 70, 45), (32, 32), (33, 16)):
            array = (np.arange(np.prod(shape)).reshape(shape) % 251).astype(dtype)
            there = from_dlpack(array).to("cuda:0")
            order = tuple(reversed(range(len(shape))))
            copied = there.transpose(*order).copy("C")
            assert np.array_equal(to_numpy(copied.to("cpu")), array.transpose(order))
            there.transpose(*order)[...] = copied
            assert np.array_equal(to_numpy(there.to("cpu")), array)


def copies(_frameworks: list[Framework]) -> None:
    """Compact and strided memory between every two kinds of memory."""
    array = np.arange(30 * 20 * 10, dtype=np.int16).reshape(30, 20, 10)
    kinds = ("cpu", "cuda:0", "cuda_host")
    for source in kinds:
        for target in kinds:
            x = from_dlpack(array).to(source)[3:, ::2, 1:9]
            y = x.to(target)
            assert np.array_equal(to_numpy(y.to("cpu")), array[3:, ::2, 1:9])
            y[1:, 2] = x[1:, 2]
    large = np.arange((1 << 24) + 3, dtype=np.uint8)
    assert np.array_equal(to_numpy(from_dlpack(large).to("cuda:0").to("cpu")), large)


def kernels(_frameworks: list[Framework]) -> None:
    """Launches from C, with results that are allocated, and with shared memory."""
    cupy = find("cupy")
    if isinstance(cupy, str):
        print(f"  kernels of CuPy are left out: {cupy}")
        return
    kernel = cupy.root.RawKernel(SOURCE, "saxpy")
    saxpy = dlbridge.wrap(kernel, schema("sanitized"), abi=ABI, **GRID)
    for length in (1, 128, 129, LENGTH):
        x = from_dlpack(data(length)).to("cuda:0")
        for _ in range(10):
            out = saxpy(x, x, 2.0)
        assert np.array_equal(to_numpy(out.to("cpu")), expected(data(length), data(length), 2.0))
    if not is_fake():
        total = dlbridge.wrap(
            cupy.root.RawKernel(TOTAL, "total"),
            "gpu::total(x: f32[n], out!: f32[m])",
            abi="void(const float *x, float *out, int64_t n)",
            grid="m",
            block=128,
        )
        out = dlbridge.zeros((8,), "float32", device="cuda:0")
        total(from_dlpack(data(1000)).to("cuda:0"), out)
        assert float(to_numpy(out.to("cpu")).sum()) == float(data(1000).sum())


def captured(_frameworks: list[Framework]) -> None:
    """A graph of copies, launched after its tensors were overwritten."""
    from real_machine import RealMachine

    machine = RealMachine()
    stream = machine.stream()
    source = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    target = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    cuda.synchronize()
    with cuda.stream(stream), machine.capture(stream) as graph:
        target[...] = source
    source[...] = from_dlpack(np.full(LENGTH, 3, np.uint8)).to("cuda:0")
    cuda.synchronize()
    graph.launch(stream)
    cuda.synchronize()
    assert set(to_numpy(target.to("cpu")).tolist()) == {3}
    machine.close()


SCENARIOS: tuple[Callable[[list[Framework]], None], ...] = (
    exchanges,
    streams,
    returns,
    tiles,
    copies,
    kernels,
    captured,
)


def allocator_of_cupy(module: object) -> object:
    """Return what allocates by cudaMallocAsync; None, cudaMalloc, where CuPy has nothing for it."""
    pool = getattr(module, "MemoryAsyncPool", None)
    return pool and pool().malloc


def main() -> int:
    """Run the scenarios with what is installed; return the exit status."""
    parser = argparse.ArgumentParser(description="Programs for compute-sanitizer.")
    parser.add_argument("--without", choices=TARGETS, help="a framework to leave out")
    parser.add_argument("--only", choices=TARGETS, help="the one framework beside dlbridge")
    scenarios = {each.__name__: each for each in SCENARIOS}
    parser.add_argument("--scenario", choices=scenarios, help="the one scenario to run")
    arguments = parser.parse_args()
    why = native.cuda_open()
    if why is not None:
        print(f"nothing was checked: there is no GPU here: {why}")
        return 1
    names = [arguments.only] if arguments.only else TARGETS
    found = [find(name) for name in names if name != arguments.without]
    frameworks = [Dlbridge(), *(each for each in found if not isinstance(each, str))]
    for framework in frameworks:
        if framework.name == "cupy":  # its own pool would hide where memory ends
            framework.root.cuda.set_allocator(allocator_of_cupy(framework.root.cuda))
    print("frameworks:", *(each.name for each in frameworks))
    print(*(f"left out: {each}" for each in found if isinstance(each, str)), sep="\n")
    for scenario in SCENARIOS:
        if arguments.scenario not in (None, scenario.__name__):
            continue
        scenario(frameworks)
        cuda.synchronize()
        cuda.collect()
        print(f"{scenario.__name__}: ok", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())

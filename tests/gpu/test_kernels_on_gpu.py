"""Kernels of every kind on a GPU, called from every framework, in order and without a wait."""

from __future__ import annotations

import gpu_kernels
import numpy as np
import pytest
from gpu_kernels import KINDS, expected

import dlbridge
from dlbridge import cuda, from_dlpack, to_numpy

pytestmark = pytest.mark.gpu

LENGTH = 1000
CALLERS = ("torch", "cupy", "jax", "dlbridge")


def samples(length: int = LENGTH) -> tuple[np.ndarray, np.ndarray]:
    x = np.arange(length, dtype=np.float32)
    return x % 11, x % 7


@pytest.fixture
def kernel(tmp_path_factory):
    """Return a function that gives the kernel of a kind."""
    folder = tmp_path_factory.getbasetemp() / "kernels"
    folder.mkdir(exist_ok=True)
    return lambda kind: gpu_kernels.make(kind, folder / kind.replace(":", "_").replace(" ", "_"))


@pytest.mark.parametrize("caller", CALLERS)
@pytest.mark.parametrize("kind", KINDS)
def test_every_framework_calls_every_kind(kind, caller, kernel, load):
    framework, function = load(caller), kernel(kind)
    for length in (1, 127, 128, 129, LENGTH):
        x, y = samples(length)
        out = function(framework.put(x), framework.put(y), 3.0)
        assert str(from_dlpack(out).device) == "cuda:0"
        np.testing.assert_allclose(to_numpy(out, device="cpu"), expected(x, y, 3.0), rtol=1e-6)


@pytest.mark.parametrize("caller", ["torch", "cupy", "dlbridge"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_kernel_runs_on_the_callers_stream(kind, caller, kernel, load, machine):
    """Its arguments are written behind a slow kernel of that stream, which is not waited for."""
    framework, function = load(caller), kernel(kind)
    x, y = samples()
    first, second = framework.put(x), framework.put(y)
    function(first, second, 2.0)
    framework.settle()
    stream = framework.stream()
    waits = machine.host_synchronisations
    with framework.on(stream):
        machine.launch(framework.handle(stream), slow=True)
        middle = function(first, second, 2.0)
        out = function(middle, second, 3.0)
        assert not machine.is_through(framework.handle(stream)), "the host has waited"
        assert machine.host_synchronisations == waits
        once = expected(x, y, 2.0)
        got = to_numpy(from_dlpack(out).to("cpu"))
    np.testing.assert_allclose(got, expected(once, y, 3.0), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_results_may_be_written_where_the_caller_says(kind, kernel, load):
    torch = load("torch").root
    x, y = samples()
    left, right = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()
    out = torch.empty(LENGTH, device="cuda")
    kernel(kind)(left, right, 4.0, out=out)
    np.testing.assert_allclose(out.cpu().numpy(), expected(x, y, 4.0), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_torch_compiles_a_program_with_the_kernel_in_it(kind, kernel, load):
    torch = load("torch").root
    function = kernel(kind)
    x, y = samples()
    left, right = torch.from_numpy(x).cuda(), torch.from_numpy(y).cuda()
    torch.compiler.reset()  # the program of each kind counts as one of the same function again
    program = torch.compile(lambda u, v: function(u * 2, v, 3.0) + 1, fullgraph=True)
    want = expected(x * 2, y, 3.0) + 1
    np.testing.assert_allclose(program(left, right).cpu().numpy(), want, rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_jax_jits_a_program_with_the_kernel_in_it(kind, kernel, load):
    jax = load("jax")
    function = kernel(kind)
    x, y = samples()
    program = jax.root.jit(lambda u, v: function(u * 2, v, 3.0) + 1)
    for _ in range(3):
        got = np.asarray(program(jax.put(x), jax.put(y)))
        np.testing.assert_allclose(got, expected(x * 2, y, 3.0) + 1, rtol=1e-6)


CAPTURED = [kind for kind in KINDS if not kind.startswith("python:")]


@pytest.mark.parametrize("kind", CAPTURED)
def test_torch_captures_the_kernel_in_a_cuda_graph(kind, kernel, load):
    torch = load("torch").root
    function = kernel(kind)
    x, y = (torch.from_numpy(each).cuda() for each in samples())
    out = torch.zeros(LENGTH, device="cuda")
    function(x, y, 2.0, out=out)
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        function(x, y, 2.0, out=out)
    for number in range(4):
        x.fill_(number)
        graph.replay()
        assert out.cpu().tolist() == (2.0 * number + y.cpu()).tolist()


@pytest.mark.parametrize("kind", CAPTURED)
def test_a_stream_of_the_drivers_own_captures_the_kernel(kind, kernel, machine):
    function = kernel(kind)
    x, y = (from_dlpack(each).to("cuda:0") for each in samples())
    out = dlbridge.zeros((LENGTH,), "float32", device="cuda:0")
    function(x, y, 2.0, out=out)
    stream = machine.stream()
    cuda.synchronize()
    with cuda.stream(stream), machine.capture(stream) as graph:
        function(x, y, 5.0, out=out)
    graph.launch(stream)
    cuda.synchronize()
    np.testing.assert_allclose(to_numpy(out.to("cpu")), expected(*samples(), 5.0), rtol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_arguments_outlives_the_kernel(kind, kernel, load, machine):
    """Nobody but the kernel on its way needs the arguments any more."""
    torch = load("torch")
    function = kernel(kind)
    x, y = samples(1 << 16)
    stream = torch.stream()
    with torch.on(stream):
        out = function(torch.put(x), torch.put(y), 2.0)
        torch.settle()
        left, right = torch.put(x), torch.put(y)
        machine.launch(torch.handle(stream), slow=True)
        out = function(left, right, 2.0)
        del left, right
        assert not machine.is_through(torch.handle(stream)), "the host has waited"
        others = [torch.root.full((1 << 16,), 9.0, device="cuda") for _ in range(4)]
        got = torch.get(out)
    np.testing.assert_allclose(got, expected(x, y, 2.0), rtol=1e-6)
    assert torch.get(others[0]).tolist() == [9.0] * (1 << 16)


def test_arguments_that_do_not_fit_are_refused_before_a_launch(kernel, load):
    torch = load("torch").root
    function = kernel("cuda.Module")
    x = torch.ones(LENGTH, device="cuda")
    with pytest.raises(Exception, match="cpu"):
        function(x, torch.ones(LENGTH), 1.0)
    with pytest.raises(dlbridge.DLBridgeError, match="f64"):
        function(x, x.double(), 1.0)
    with pytest.raises(dlbridge.DLBridgeError, match="n"):
        function(x, x[:-1], 1.0)


def test_one_kernel_serves_the_cpu_and_the_gpu(load):
    torch = load("torch").root
    both = dlbridge.wrap(
        platforms={"cpu": np.add, "cuda": lambda x, y: x + y},
        schema="gpu::both(x: f32[n], y: f32[n]) -> f32[n]",
        abi={"cpu": "python:numpy", "cuda": "python:torch"},
    )
    for device in ("cpu", "cuda"):
        x = torch.ones(LENGTH, device=device)
        out = both(x, x)
        assert out.device.type == device
        assert out.cpu().tolist() == [2.0] * LENGTH

"""Kernels of torch's CUDA tensors: called directly and as operators, on torch's stream.

Without a GPU, tensors that call themselves CUDA's stand in (`torch_stand_in`), over the memory of
the fake driver. Whatever needs torch's own CUDA library is marked `gpu`.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from launchers import Launcher

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.frameworks.torch import internals

torch = pytest.importorskip("torch")
from torch_stand_in import Streams, over  # noqa: E402  (needs torch)

N = 16
BYTES = 4 * N


@pytest.fixture(scope="module")
def made_streams(proved_torch: None, tmp_path_factory: pytest.TempPathFactory) -> Streams:
    """Return the stand-in for torch's streams, compiled once."""
    return Streams(tmp_path_factory.mktemp("streams"))


@pytest.fixture
def streams(made_streams: Streams) -> Iterator[Streams]:
    """Yield torch's streams, with the guard open to CUDA."""
    made_streams.open()
    yield made_streams
    made_streams.close()


def copying(machine: Any, device: int = 0) -> Launcher:
    """Return a launcher that copies its first tensor into its last."""

    def copy(launch: Any) -> None:
        first, last = launch.addresses[0], launch.addresses[-1]
        reads, writes = [(first, BYTES)], [(last, BYTES)]
        machine.launch(launch.stream, reads=reads, writes=writes, device=device)

    return Launcher(copy)


@pytest.fixture
def memory(fake_machine: Any) -> Iterator[Any]:
    """Yield torch's allocator of CUDA memory: it takes the fake driver's."""

    def empty_strided(size: Any, stride: Any, *, device: Any, **_: Any) -> Any:
        address = fake_machine.alloc(BYTES, device.index)
        made.append(address)
        return over(address, tuple(size), device.index)

    made: list[int] = []
    library = torch.library.Library("aten", "IMPL")
    library.impl("empty_strided", empty_strided, "CUDA")
    yield made
    library._destroy()


# ---- the guard -----------------------------------------------------------------------------------


def test_the_words_of_cuda_are_those_of_a_fake_tensor() -> None:
    """FakeTensorMode makes tensors of CUDA on every machine; only its own keys come on top."""
    from torch._subclasses.fake_tensor import FakeTensorMode

    keys, own = torch._C._dispatch_keys, torch._C.DispatchKey
    with FakeTensorMode():
        plain = torch.empty(2, device="cuda")
        with torch.inference_mode():
            inference = torch.empty(2, device="cuda")
    found = [
        keys(each).remove(own.Python).remove(own.PythonTLSSnapshot).raw_repr()
        for each in (plain, inference)
    ]
    assert tuple(found) == internals.words(torch, "CUDA")


def test_the_words_of_the_cpu_follow_from_the_same_rule() -> None:
    x = torch.ones(2)
    with torch.inference_mode():
        y = torch.ones(2)
    found = tuple(torch._C._dispatch_keys(each).raw_repr() for each in (x, y))
    assert internals.words(torch, "CPU") == found


def test_a_torch_without_cuda_announces_nothing() -> None:
    library = Path(torch.__file__).parent / "lib" / "libtorch_cuda.so"
    assert internals.announce_cuda(torch) == (library.exists() and torch.version.hip is None)


def test_the_trial_passes_on_tensors_without_elements(streams: Streams) -> None:
    """Here on those of the CPU, which differ from CUDA's in their words only."""
    assert internals.behaves_on(torch, torch.device("cpu"))


def test_the_guard_is_tried_once(fake_machine: Any, streams: Streams) -> None:
    tried = []
    streams.open(lambda x: tried.append(x.device.index) or True)
    x = over(fake_machine.alloc(BYTES), (N,), 0)
    assert all(native.torch_direct_allows(x) for _ in range(3))
    assert native.torch_direct_allows(x, True)
    assert tried == [0]


@pytest.mark.parametrize("answer", [False, 1, "error"])
def test_the_guard_stays_closed_after_a_failed_trial(
    fake_machine: Any, streams: Streams, answer: Any
) -> None:
    def trial(_: Any) -> Any:
        tried.append(1)
        return answer

    tried: list[int] = []
    streams.open(trial)
    x = over(fake_machine.alloc(BYTES), (N,), 0)
    assert not any(native.torch_direct_allows(x) for _ in range(3))
    assert tried == [1]


def test_a_trial_may_be_put_off(fake_machine: Any, streams: Streams) -> None:
    """While a graph is captured nothing is tried."""
    answers = [None, None, True]
    streams.open(lambda _: answers.pop(0))
    x = over(fake_machine.alloc(BYTES), (N,), 0)
    assert [native.torch_direct_allows(x) for _ in range(4)] == [False, False, True, True]


def test_tensors_of_the_cpu_are_no_reason_to_try(streams: Streams) -> None:
    streams.open(lambda _: pytest.fail("CUDA was tried"))
    assert native.torch_direct_allows(torch.ones(2))
    assert not native.torch_direct_allows(torch.ones(2, requires_grad=True))


def test_memory_is_lent_with_its_device(fake_machine: Any, streams: Streams) -> None:
    address = fake_machine.alloc(BYTES, 1)
    x = over(address, (4, 4), 1)
    assert native.torch_borrow(x) == (address, (4, 4), (4, 1), (2, 32, 1), (2, 1))


# ---- direct calls --------------------------------------------------------------------------------


@pytest.mark.parametrize("device", [0, 1])
def test_direct_calls_run_on_torchs_stream_in_the_context_of_the_device(
    fake_machine: Any, streams: Streams, memory: list[int], device: int
) -> None:
    """The current device may be another one; results come from torch's allocator."""
    stream = fake_machine.stream(device)
    streams.set(stream, device)
    address = fake_machine.alloc(BYTES, device)
    fake_machine.launch(stream, writes=[(address, BYTES)], value=7, slow=True, device=device)
    launcher = copying(fake_machine, device)
    kernel = launcher.wrap("torchgpu::copy(x: f32[n]) -> f32[n]")
    x = over(address, (N,), device)
    results = [kernel(x) for _ in range(3)]  # the second one is recalled
    assert [launch.stream for launch in launcher.launches] == [stream] * 3
    assert [str(each.device) for each in results] == [f"cuda:{device}"] * 3
    assert [each.data_ptr() for each in results] == memory
    assert fake_machine.host_synchronisations == 0
    for each in memory:
        assert fake_machine.read_back(each, BYTES, device) == b"\7" * BYTES


def test_the_default_stream_is_called_by_its_own_number(
    fake_machine: Any, streams: Streams
) -> None:
    launcher = Launcher()
    kernel = launcher.wrap("torchgpu::default(x!: f32[n])")
    kernel(over(fake_machine.alloc(BYTES), (N,), 0))
    assert launcher.launches[0].stream == 1


def test_the_stream_is_that_of_each_call(fake_machine: Any, streams: Streams) -> None:
    launcher = Launcher()
    kernel = launcher.wrap("torchgpu::each(x!: f32[n])")
    x = over(fake_machine.alloc(BYTES), (N,), 0)
    used = [fake_machine.stream() for _ in range(3)]
    for stream in used:
        streams.set(stream)
        kernel(x)
    assert [launch.stream for launch in launcher.launches] == used


def test_recalled_calls_are_of_one_device(fake_machine: Any, streams: Streams) -> None:
    """A cached call on one device must not serve another one."""
    host, device = Launcher(), Launcher()
    kernel = dlbridge.wrap(
        host.function, "torchgpu::places(x!: f32[n])", abi="dltensors",
        platforms={"cuda": device.function},
    )  # fmt: skip
    tensors = [torch.ones(N), *(over(fake_machine.alloc(BYTES, i), (N,), i) for i in (0, 1))]
    for x in [*tensors, *tensors, *reversed(tensors)]:
        kernel(x)
    assert [launch.device for launch in host.launches] == [(1, 0)] * 3
    assert [launch.device[1] for launch in device.launches] == [0, 1, 0, 1, 1, 0]


def test_written_arguments_and_out_count_versions(fake_machine: Any, streams: Streams) -> None:
    kernel = Launcher().wrap("torchgpu::writes(x!: f32[n]) -> f32[n]")
    x, out = (over(fake_machine.alloc(BYTES), (N,), 0) for _ in range(2))
    assert kernel(x, out=out) is out
    assert (x._version, out._version) == (1, 1)


def test_tensors_of_two_devices_are_refused(fake_machine: Any, streams: Streams) -> None:
    kernel = Launcher().wrap("torchgpu::two(x: f32[n], y!: f32[n])")
    here, there = (over(fake_machine.alloc(BYTES, i), (N,), i) for i in (0, 1))
    for x, y in [(here, there), (there, here), (torch.ones(N), here), (here, torch.ones(N))]:
        with pytest.raises(ExchangeError, match=r"cuda:|cpu") as caught:
            kernel(x, y)
        assert caught.value.reason == "device"


def test_kernels_for_the_cpu_refuse_cuda(fake_machine: Any, streams: Streams) -> None:
    launcher = Launcher()
    kernel = dlbridge.wrap(launcher.function, "torchgpu::host(x!: f32[n])", abi="dltensors")
    with pytest.raises(ExchangeError, match="cuda:0"):
        kernel(over(fake_machine.alloc(BYTES), (N,), 0))
    assert launcher.launches == []


def test_threads_have_streams_of_their_own(fake_machine: Any, streams: Streams) -> None:
    """Nothing of a call is kept for another thread's."""
    launcher = Launcher()
    kernel = launcher.wrap("torchgpu::threads(x!: f32[n])")
    x = over(fake_machine.alloc(BYTES), (N,), 0)
    streams.set(fake_machine.stream())
    kernel(x)
    worker = threading.Thread(target=lambda: kernel(x))
    worker.start()
    worker.join()
    assert len({launch.stream for launch in launcher.launches}) == 1


# ---- operators -----------------------------------------------------------------------------------


def operator(kernel: Any) -> Any:
    """Return the kernel's operator, as torch's dispatcher calls it."""
    assert kernel.torch
    return getattr(getattr(torch.ops, kernel.name.split("::")[0]), kernel.__name__)


@pytest.mark.parametrize("device", [0, 1])
def test_operators_run_on_torchs_stream(
    fake_machine: Any, streams: Streams, memory: list[int], device: int
) -> None:
    stream = fake_machine.stream(device)
    streams.set(stream, device)
    address = fake_machine.alloc(BYTES, device)
    fake_machine.launch(stream, writes=[(address, BYTES)], value=7, slow=True, device=device)
    launcher = copying(fake_machine, device)
    made = operator(launcher.wrap(f"torchgpu::on_{device}(x: f32[n]) -> f32[n]"))
    x = over(address, (N,), device)
    result = made(x)
    assert launcher.launches[0].stream == stream
    assert launcher.launches[0].device == (2, device)
    assert result.data_ptr() == memory[0]
    assert fake_machine.read_back(memory[0], BYTES, device) == b"\7" * BYTES


def test_operators_write_into_out(fake_machine: Any, streams: Streams) -> None:
    launcher = Launcher()
    made = operator(launcher.wrap("torchgpu::into(x: f32[n]) -> f32[n]"))
    x, out = (over(fake_machine.alloc(BYTES), (N,), 0) for _ in range(2))
    made.out(x, out)
    assert launcher.launches[0].stream == 1
    assert launcher.launches[0].addresses == [x.data_ptr(), out.data_ptr()]


# ---- graphs --------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", ["direct", "operator"])
def test_calls_are_captured(fake_machine: Any, streams: Streams, way: str) -> None:
    """Nothing on the way queries, waits or allocates; the graph holds the kernel alone."""
    stream = fake_machine.stream()
    x, out = (over(fake_machine.alloc(BYTES), (N,), 0) for _ in range(2))
    launcher = copying(fake_machine)
    kernel = launcher.wrap("torchgpu::captured(x: f32[n]) -> f32[n]")
    kernel(x, out=out)
    call = operator(kernel).out if way == "operator" else lambda x, out: kernel(x, out=out)
    fake_machine.synchronise()
    streams.set(stream)
    with fake_machine.capture(stream, mode=0) as graph:
        call(x, out)
    assert launcher.launches[-1].stream == stream
    fake_machine.launch(stream, writes=[(x.data_ptr(), BYTES)], value=3)
    graph.launch(stream)
    assert fake_machine.read_back(out.data_ptr(), BYTES) == b"\3" * BYTES


# ---- tracing -------------------------------------------------------------------------------------


def test_fake_tensors_of_cuda_are_traced() -> None:
    """As torch.compile does it: shapes and devices without any kernel.

    Gradients of such tensors need torch's CUDA library, even to be traced.
    """
    from torch._subclasses.fake_tensor import FakeTensorMode
    from torch.fx.experimental.proxy_tensor import make_fx

    launcher = Launcher()
    kernel = launcher.wrap("torchgpu::traced(x: f32[m,n], y: f32[n]) -> f32[n,m]")
    with FakeTensorMode(), torch.no_grad():
        x, y = torch.empty(3, 4, device="cuda"), torch.empty(4, device="cuda")
        result = kernel(x, y)
        graph = make_fx(lambda x, y: kernel(x, y) + 1)(x, y)
    assert (str(result.device), tuple(result.shape)) == ("cuda:0", (4, 3))
    assert torch.ops.torchgpu.traced.default in [node.target for node in graph.graph.nodes]
    assert launcher.launches == []


def test_fake_tensors_of_two_devices_are_refused() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    kernel = Launcher().wrap("torchgpu::apart(x: f32[n], y: f32[n]) -> f32[n]")
    with FakeTensorMode():
        x, y = torch.empty(3, device="cuda"), torch.empty(3)
        with pytest.raises(Exception, match="on cuda:0 as 'x'"):
            kernel(x, y)


# ---- with a GPU ----------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Any:
    """Return torch.cuda of a machine that has a GPU."""
    if not torch.cuda.is_available():
        pytest.skip("torch finds no GPU")
    assert native.cuda_open() is None
    return torch.cuda


def add_one() -> Any:
    """Return a kernel for CUDA in C: x + 1."""
    module = dlbridge.cuda.Module(_ADD_ONE)
    return dlbridge.wrap(
        module["add_one"], "torchgpu::add_one(x: f32[n]) -> f32[n]", vjp=lambda grad: grad,
        abi="void(const float *x, float *out, int64_t n)", grid="(n + 255) // 256", block=256,
    )  # fmt: skip


_ADD_ONE = b"""
.version 7.0
.target sm_75
.address_size 64
.visible .entry add_one(.param .u64 x, .param .u64 y, .param .u64 n)
{
    .reg .pred %p<2>;
    .reg .f32 %f<3>;
    .reg .b32 %r<5>;
    .reg .b64 %rd<9>;
    ld.param.u64 %rd1, [x];
    ld.param.u64 %rd2, [y];
    ld.param.u64 %rd3, [n];
    mov.u32 %r1, %ctaid.x;
    mov.u32 %r2, %ntid.x;
    mov.u32 %r3, %tid.x;
    mad.lo.u32 %r4, %r1, %r2, %r3;
    cvt.u64.u32 %rd4, %r4;
    setp.ge.s64 %p1, %rd4, %rd3;
    @%p1 bra DONE;
    shl.b64 %rd5, %rd4, 2;
    add.s64 %rd6, %rd1, %rd5;
    ld.global.f32 %f1, [%rd6];
    add.f32 %f2, %f1, 0f3F800000;
    add.s64 %rd7, %rd2, %rd5;
    st.global.f32 [%rd7], %f2;
DONE:
    ret;
}
"""


@pytest.mark.gpu
def test_the_guard_opens_on_a_real_tensor(gpu: Any, proved_torch: None) -> None:
    assert internals.direct_is_open()
    x = torch.ones(3, device="cuda")
    assert internals.try_cuda(x) is True
    assert native.torch_direct_allows(x, True)
    assert not native.torch_direct_allows(torch.ones(3, device="cuda", requires_grad=True))


@pytest.mark.gpu
def test_eager_calls_follow_torchs_stream(gpu: Any) -> None:
    kernel, stream = add_one(), gpu.Stream()
    for _ in range(3):
        with gpu.stream(stream):
            x = torch.zeros(10_000, device="cuda")
            gpu._sleep(20_000_000)
            x += 1
            y = kernel(kernel(x))
        stream.synchronize()
        assert torch.equal(y, torch.full_like(y, 3))


@pytest.mark.gpu
def test_calls_on_another_device_than_the_current_one(gpu: Any) -> None:
    if gpu.device_count() < 2:
        pytest.skip("needs 2 GPUs")
    kernel = add_one()
    x = torch.zeros(100, device="cuda:1")
    assert gpu.current_device() == 0
    y = kernel(x)
    assert str(y.device) == "cuda:1"
    assert gpu.current_device() == 0
    assert torch.equal(y, x + 1)


@pytest.mark.gpu
def test_gradients_and_compiled_graphs(gpu: Any) -> None:
    kernel = add_one()
    x = torch.ones(100, device="cuda", requires_grad=True)
    assert torch.equal(torch.autograd.grad(kernel(x).sum(), x)[0], torch.ones_like(x))
    compiled = torch.compile(lambda x: kernel(x * 2) * 3, fullgraph=True)
    assert torch.equal(compiled(x), torch.full_like(x, 9))
    assert torch.equal(torch.autograd.grad(compiled(x).sum(), x)[0], torch.full_like(x, 6))


@pytest.mark.gpu
@pytest.mark.parametrize("mode", ["global", "thread_local", "relaxed"])
def test_calls_are_captured_by_torch(gpu: Any, mode: str) -> None:
    """The results come from the graph's own pool."""
    kernel = add_one()
    x = torch.zeros(1000, device="cuda")
    kernel(x)
    graph = gpu.CUDAGraph()
    with gpu.graph(graph, capture_error_mode=mode):
        y = kernel(kernel(x))
        z = torch.ops.torchgpu.add_one(y)
    x.fill_(5)
    graph.replay()
    assert torch.equal(y, torch.full_like(y, 7))
    assert torch.equal(z, torch.full_like(z, 8))


@pytest.mark.gpu
@pytest.mark.parametrize("framework", ["torch", "cupy", "dlbridge"])
def test_functions_in_python_run_on_torchs_stream(gpu: Any, framework: str) -> None:
    pytest.importorskip("torch" if framework == "dlbridge" else framework)
    inner = add_one()

    def inner_into(x: Any, out: Any) -> None:
        inner(x, out=out)

    bodies: dict[str, Any] = {
        "torch": lambda x: x + 1,
        "cupy": lambda x: x + 1,
        "dlbridge": inner_into,
    }
    schema = f"torchgpu::of_{framework}(x: f32[n]) -> f32[n]"
    kernel = dlbridge.wrap(
        platforms={"cuda": bodies[framework]}, schema=schema, abi=f"python:{framework}",
        vjp=lambda grad: grad,
    )  # fmt: skip
    stream = gpu.Stream()
    with gpu.stream(stream):
        x = torch.zeros(1000, device="cuda")
        gpu._sleep(20_000_000)
        x += 1
        y = kernel(x)
    stream.synchronize()
    assert torch.equal(y, torch.full_like(y, 2))


@pytest.mark.gpu
def test_nothing_waits_for_the_device(gpu: Any) -> None:
    kernel, x = add_one(), torch.zeros(1000, device="cuda")
    kernel(x)
    gpu.set_sync_debug_mode("error")
    try:
        gpu._sleep(200_000_000)
        kernel(x)
        assert not gpu.current_stream().query()
    finally:
        gpu.set_sync_debug_mode("default")

"""JAX on CUDA: the handler that XLA calls. Here it is called by hand, over the fake driver."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from cuda_peers import Framework, own_kernel
from cuda_peers import Xla as Peer
from launchers import Launch, Launcher
from sleeps import fewest_sleeps
from xla_calls import Operand, Xla

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import ExchangeError, KernelError
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.frameworks import jax as adapter
from dlbridge.frameworks.jax import streams

pytest.importorskip("jax")

N = 16
BYTES = 4 * N


class Scene:
    """Two operands and a result on a device, and a kernel that reads the first two."""

    def __init__(self, machine: Any, device: int = 0) -> None:
        self.machine, self.device = machine, device
        self.stream = machine.stream(device)
        self.x, self.y, self.out = (machine.alloc(BYTES, device) for _ in range(3))

    def operand(self, address: int) -> Operand:
        return Operand(address, (N,))

    def copying(self) -> Launcher:
        """Return a launcher that copies its first tensor into its last."""
        return Launcher(self._copy)

    def _copy(self, launch: Launch) -> None:
        first, last = launch.addresses[0], launch.addresses[-1]
        self.machine.launch(
            launch.stream, reads=[(first, BYTES)], writes=[(last, BYTES)], device=self.device
        )


@pytest.mark.parametrize("device", [0, 1])
@pytest.mark.parametrize("tells_device", [True, False], ids=["told", "found"])
def test_kernels_run_on_the_stream_and_device_of_xla(
    machine: Any, device: int, tells_device: bool
) -> None:
    """An older XLA does not tell the number of its device: then the memory does."""
    machine.need_devices(device + 1)
    scene = Scene(machine, device)
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=7, slow=True)
    launcher = scene.copying()
    kernel = launcher.wrap("jaxgpu::copy(x: f32[n]) -> f32[n]")
    xla = Xla(scene.stream, device if tells_device else None)
    for _ in range(3):  # the first call is checked, the others are known
        error = xla.run(kernel.name, [scene.operand(scene.x)], [scene.operand(scene.out)])
        assert error is None
    expected = Launch(scene.stream, (2, device), [scene.x, scene.out], [(N,), (N,)])
    assert launcher.launches == [expected] * 3
    assert machine.read_back(scene.out, BYTES, device) == b"\7" * BYTES


def test_the_host_waits_for_nothing(machine: Any) -> None:
    scene = Scene(machine)
    kernel = scene.copying().wrap("jaxgpu::patient(x: f32[n]) -> f32[n]")
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=7)
    before = machine.host_synchronisations
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(scene.stream).run(kernel.name, *operands) is None
    assert machine.host_synchronisations == before


def test_the_default_stream_is_called_by_its_own_number(machine: Any) -> None:
    """0 is another stream to code that was compiled for per-thread default streams."""
    scene = Scene(machine)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::default(x: f32[n]) -> f32[n]")
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(0).run(kernel.name, *operands) is None
    assert launcher.launches[0].stream == 1


def test_tensors_in_place_are_written_where_xla_aliased_them(machine: Any) -> None:
    scene = Scene(machine)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::aliased(x!: f32[n])")
    x = scene.operand(scene.x)
    assert Xla(scene.stream).run(kernel.name, [x], [x], {"layout": "m"}) is None
    assert launcher.launches[0].addresses == [scene.x]


@pytest.mark.parametrize("device", [0, 1])
def test_tensors_in_place_that_xla_did_not_alias_are_copied_on_its_stream(
    machine: Any, device: int
) -> None:
    """The kernel works on the new value; the old one is only read, after what wrote it."""
    machine.need_devices(device + 1)
    scene = Scene(machine, device)
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=5, slow=True)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::copied(x!: f32[n])")
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(scene.stream, device).run(kernel.name, *operands, {"layout": "m"}) is None
    assert launcher.launches[0].addresses == [scene.out]
    assert machine.read_back(scene.out, BYTES, device) == b"\5" * BYTES


def test_a_copy_that_fails_is_the_calls_error(fake_machine: Any) -> None:
    """On a GPU such an address would take the context down with it."""
    scene = Scene(fake_machine)
    kernel = Launcher().wrap("jaxgpu::broken(x!: f32[n])")
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    error = Xla(scene.stream, 5).run(kernel.name, *operands, {"layout": "m"})
    assert error is not None
    assert "jaxgpu::broken" in error
    assert "CUDA" in error


def test_scalars_travel_as_attributes(machine: Any) -> None:
    scene = Scene(machine)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::scaled(x: f32[n], *, alpha: float, k: int) -> f32[n]")
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(scene.stream).run(kernel.name, *operands, {"s00": 1.5, "s01": 3}) is None
    assert len(launcher.launches) == 1


def test_scalars_on_the_device_are_refused(machine: Any) -> None:
    """Reading one would make the host wait for all work before it."""
    scene = Scene(machine)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::traced(x: f32[n], *, alpha: float) -> f32[n]")
    operands = [scene.operand(scene.x), Operand(scene.y, ())]
    error = Xla(scene.stream).run(
        kernel.name, operands, [scene.operand(scene.out)], {"layout": "tA"}
    )
    assert error is not None
    assert "pass Python numbers" in error
    assert launcher.launches == []


def test_a_mismatch_is_refused_before_the_kernel_runs(machine: Any) -> None:
    scene = Scene(machine)
    launcher = Launcher()
    kernel = launcher.wrap("jaxgpu::pair(x: f32[n], y: f32[n]) -> f32[n]")
    operands = [scene.operand(scene.x), Operand(scene.y, (N // 2,))]
    error = Xla(scene.stream).run(kernel.name, operands, [scene.operand(scene.out)])
    assert error is not None
    assert "argument 'y'" in error
    assert launcher.launches == []


def test_kernels_for_the_cpu_only_are_refused(machine: Any) -> None:
    scene = Scene(machine)
    launcher = Launcher()
    kernel = dlbridge.wrap(launcher.function, "jaxgpu::host(x: f32[n]) -> f32[n]", abi="dltensors")
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    error = Xla(scene.stream).run(kernel.name, *operands)
    assert error is not None
    assert "cuda:0" in error
    assert launcher.launches == []


def test_known_calls_of_one_device_are_not_those_of_another(machine: Any) -> None:
    """A call cached on the CPU must not choose the function for a GPU."""
    scene = Scene(machine)
    host, device = Launcher(), Launcher()
    kernel = dlbridge.wrap(
        host.function, "jaxgpu::both(x: f32[n]) -> f32[n]", abi="dltensors",
        platforms={"cuda": device.function},
    )  # fmt: skip
    room = (ctypes.c_float * N)(), (ctypes.c_float * N)()
    on_host = [scene.operand(ctypes.addressof(each)) for each in room]
    for _ in range(2):
        assert Xla(0, platform="cpu").run(kernel.name, on_host[:1], on_host[1:]) is None
        operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
        assert Xla(scene.stream).run(kernel.name, *operands) is None
    assert [each.device for each in host.launches] == [(1, 0)] * 2
    assert [each.device for each in device.launches] == [(2, 0)] * 2


# ---- arrays on the way in ------------------------------------------------------------------------


@pytest.fixture
def jax_over(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return a function that gives a tensor to JAX on a GPU, with a stand-in for its XLA."""

    monkeypatch.setattr(adapter, "_has_several_devices", lambda: False)

    def over(peer: Any) -> Any:
        device = SimpleNamespace(platform="gpu", local_hardware_id=peer.device)
        dlpack = SimpleNamespace(from_dlpack=peer.from_dlpack)
        module = SimpleNamespace(dlpack=dlpack, local_devices=lambda: [device])
        monkeypatch.setattr(adapter.ADAPTER, "import_module", lambda call="": module)

        def ask(device: Any) -> None:
            assert Xla(peer.current, peer.device, "stream").run("", [], []) is None

        monkeypatch.setattr(streams, "ask", ask)
        policy, context = Policy(call="to_jax"), ExchangeContext("dlbridge", "jax")
        return lambda tensor: adapter.ADAPTER.give(tensor, policy, context)

    return over


@pytest.mark.parametrize("device", [0, 1])
def test_memory_goes_back_after_the_kernels_on_the_stream_that_computes(
    machine: Any, jax_over: Any, device: int
) -> None:
    """XLA drops its reference at once; the stream that it was asked for has nothing to do."""
    machine.need_devices(device + 1)
    producer, consumer = Framework(machine, machine.stream(device), device), Peer(machine, device)
    give = jax_over(consumer)
    y = give(dlbridge.from_dlpack(producer.full(7), stream=producer.current))
    result = y.copy(slow=True)
    y.free()
    assert machine.host_synchronisations == 0
    for stream in consumer.ready:
        machine.driver.call("cuStreamSynchronize", stream)
    cuda.collect()
    assert producer.pool.given_back == 0 or machine.is_through(consumer.current)
    assert result.value() == 7


def test_writes_of_dlbridge_come_after_the_kernels_on_the_computing_stream(
    machine: Any, jax_over: Any
) -> None:
    consumer, mine = Peer(machine), machine.stream()
    give = jax_over(consumer)
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    own_kernel(machine, tensor, mine, 7)
    y = give(tensor)
    result = y.copy(slow=True)
    own_kernel(machine, tensor, mine, 9)
    assert result.value() == 7
    y.free()


def test_other_work_on_the_stream_that_computes_waits_for_nothing(
    fake_machine: Any, jax_over: Any
) -> None:
    """XLA orders it after the memory when a program uses that: a slow producer stops no other."""
    consumer = Peer(fake_machine)
    give = jax_over(consumer)
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    own_kernel(fake_machine, tensor, fake_machine.stream(), 7)
    fake_machine.reset()
    consumer.order = lambda before, after: None  # nothing is computed yet
    y = give(tensor)
    waiting = [call.stream for call in fake_machine.calls if call.name == "cuStreamWaitEvent"]
    assert waiting
    assert consumer.current not in waiting
    y.free()


def test_a_stream_that_xla_does_not_tell_is_an_error() -> None:
    """Here the real JAX runs the program, on the CPU, where XLA has no streams."""
    import jax

    with pytest.raises(ExchangeError, match="XLA did not tell the stream") as caught:
        streams.ask(jax.devices("cpu")[0])
    assert caught.value.reason == "stream"
    assert "called no foreign function" not in str(caught.value)


# ---- arrays on the way out -----------------------------------------------------------------------


@pytest.fixture
def exports(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[Any]]:
    """The arguments of jaxlib's exporter after the array, call by call."""
    functions = adapter._jaxlib_functions()
    assert functions is not None
    calls: list[Any] = []

    def export(x: Any, *stream: Any) -> Any:
        calls.append(stream)
        return functions[0](x, *stream)

    monkeypatch.setattr(adapter, "_FUNCTIONS", [(export, functions[1])])
    native.forget_types()
    yield calls
    native.forget_types()


def test_jaxlib_is_not_asked_without_a_stream_for_what_is_not_on_the_cpu(
    exports: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It would make the host wait until the array is computed, by no call that we could count."""
    import jax

    x = jax.numpy.arange(3.0)
    assert native.take(x) is not None
    monkeypatch.setattr(jax, "local_devices", lambda backend: [])  # so x is elsewhere
    native.forget_types()
    assert native.take(x) is None
    assert exports == []


@pytest.fixture
def pending() -> Callable[[], Any]:
    """Return a function whose result is an array that is still being computed."""
    import jax

    compute = jax.jit(lambda x: x @ x @ x)
    x = jax.numpy.ones((1000, 1000))
    jax.block_until_ready(compute(x))
    return lambda: compute(x)


def test_a_wait_of_jaxlib_is_a_sleep_of_the_thread(pending: Callable[[], Any]) -> None:
    """So that a test can count what no call of the driver shows."""
    functions = adapter._jaxlib_functions()
    assert functions is not None
    ready = pending().block_until_ready()
    assert fewest_sleeps(functions[0], lambda: ready) == 0
    assert fewest_sleeps(functions[0], pending) > 0


def test_the_host_does_not_sleep_until_an_array_elsewhere_is_computed(
    pending: Callable[[], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    import jax

    monkeypatch.setattr(jax, "local_devices", lambda backend: [])  # so it is elsewhere
    native.forget_types()
    assert native.take(pending()) is None
    assert fewest_sleeps(native.take, pending) == 0
    native.forget_types()


# ---- Python kernels ------------------------------------------------------------------------------


def test_functions_of_tensors_work_on_the_stream_of_xla(machine: Any) -> None:
    """Their own calls of dlbridge are on that stream as well, and ordered with it."""
    scene = Scene(machine)
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=3, slow=True)
    inner = scene.copying()
    copy = inner.wrap("jaxgpu::inner(x: f32[n]) -> f32[n]")
    seen = []

    def function(x: Any, *, out: Any, stream: int) -> None:
        seen.append((stream, dlbridge.cuda.current_stream(), str(x.device)))
        copy(x, out=out)

    kernel = dlbridge.wrap(
        platforms={"cuda": function}, schema="jaxgpu::python(x: f32[n]) -> f32[n]",
        abi="python:dlbridge",
    )  # fmt: skip
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(scene.stream).run(kernel.name, *operands) is None
    assert seen == [(scene.stream, scene.stream, "cuda:0")]
    assert inner.launches[0].stream == scene.stream
    assert dlbridge.cuda.current_stream() == 1
    assert machine.read_back(scene.out, BYTES) == b"\3" * BYTES


def test_work_of_a_function_on_another_stream_comes_before_what_xla_does_next(
    machine: Any,
) -> None:
    """XLA knows of its own stream only."""
    scene, other = Scene(machine), machine.stream()
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=3, slow=True)
    copy = scene.copying().wrap("jaxgpu::aside(x: f32[n]) -> f32[n]")

    def function(x: Any, *, out: Any) -> None:
        with dlbridge.cuda.stream(other):
            copy(x, out=out)

    kernel = dlbridge.wrap(
        platforms={"cuda": function}, schema="jaxgpu::elsewhere(x: f32[n]) -> f32[n]",
        abi="python:dlbridge",
    )  # fmt: skip
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    assert Xla(scene.stream).run(kernel.name, *operands) is None
    machine.launch(scene.stream, reads=[(scene.out, BYTES)], writes=[(scene.y, BYTES)])
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=9)
    assert machine.read_back(scene.y, BYTES) == b"\3" * BYTES


def test_functions_of_jax_arrays_are_refused_inside_of_xla(machine: Any) -> None:
    """They would wait for the computation that waits for them."""
    scene = Scene(machine)
    kernel = dlbridge.wrap(
        platforms={"cuda": lambda x: x + 1}, schema="jaxgpu::own(x: f32[n]) -> f32[n]",
        abi="python:jax",
    )  # fmt: skip
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    error = Xla(scene.stream).run(kernel.name, *operands)
    assert error is not None
    assert "call it outside of jax.jit" in error


def test_a_kept_tensor_is_an_error_and_gets_memory_of_its_own(machine: Any) -> None:
    """XLA uses its own memory again as soon as the call is over."""
    scene = Scene(machine)
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=3)
    kept: list[Any] = []
    kernel = dlbridge.wrap(
        platforms={"cuda": lambda x, out: kept.append(x)},
        schema="jaxgpu::keeps(x: f32[n]) -> f32[n]",
        abi="python:dlbridge",
    )
    operands = [scene.operand(scene.x)], [scene.operand(scene.out)]
    error = Xla(scene.stream).run(kernel.name, *operands, {"eager": 1})
    assert error is not None
    assert "kept 'x' alive" in error
    with pytest.raises(KernelError, match="kept 'x' alive"):
        native.xla_call(_raise, RuntimeError(error))
    machine.launch(scene.stream, writes=[(scene.x, BYTES)], value=9)
    assert kept[0].data_ptr != scene.x
    assert machine.read_back(kept[0].data_ptr, BYTES) == b"\3" * BYTES
    kept.clear()


def _raise(error: Exception) -> None:
    raise error


# ---- with a GPU ----------------------------------------------------------------------------------


@pytest.fixture
def gpu() -> Any:
    """Return JAX's first GPU."""
    import jax

    found = [each for each in jax.devices() if each.platform in ("gpu", "cuda")]
    if not found:
        pytest.skip("JAX finds no GPU")
    assert native.cuda_open() is None
    return found[0]


def scale(name: str, **options: Any) -> Any:
    """Return a kernel for CUDA in C: a * x."""
    text = """extern "C" __global__ void scale(const float *x, float *out, float a, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) out[i] = a * x[i];
    }"""
    function = pytest.importorskip("cupy").RawKernel(text, "scale")
    return dlbridge.wrap(
        function, f"jaxgpu::{name}(x: f32[n], *, a: float) -> f32[n]",
        abi="void(const float *x, float *out, float a, long long n)",
        grid="(n + 255) // 256", block=256, **options,
    )  # fmt: skip


@pytest.mark.gpu
def test_kernels_run_in_jax(gpu: Any) -> None:
    """Eager, compiled, differentiated, batched."""
    import jax

    kernel = scale("gpu_scale", vjp=lambda grad, a: a * grad)
    x = jax.device_put(jax.numpy.arange(1000, dtype="float32"), gpu)
    assert jax.numpy.array_equal(kernel(x, a=3.0), 3 * x)
    compiled = jax.jit(lambda x: kernel(kernel(x + 1, a=2.0), a=3.0) - 1)
    for _ in range(3):
        assert jax.numpy.array_equal(compiled(x), 6 * (x + 1) - 1)
    assert jax.numpy.array_equal(jax.grad(lambda x: kernel(x, a=5.0).sum())(x), 0 * x + 5)
    rows = x.reshape(10, 100)
    assert jax.numpy.array_equal(jax.vmap(lambda x: kernel(x, a=2.0))(rows), 2 * rows)
    assert next(iter(kernel(x, a=1.0).devices())) == gpu


@pytest.mark.gpu
def test_the_host_does_not_wait_for_an_array_that_it_takes(gpu: Any) -> None:
    """jaxlib waits for a promise of its own: the clock shows it, and the thread's sleeps."""
    import jax

    cupy = pytest.importorskip("cupy")
    text = """extern "C" __global__ void spin(const float *x, float *out, long long n) {
        long long now, end;
        asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        for (end = now + 200000000; now < end;)
            asm volatile("mov.u64 %0, %globaltimer;" : "=l"(now));
        for (long long i = 0; i < n; i++) out[i] = x[i] + 1;
    }"""
    kernel = dlbridge.wrap(
        cupy.RawKernel(text, "spin"), "jaxgpu::spin(x: f32[n]) -> f32[n]",
        abi="void(const float *x, float *out, long long n)", grid=1, block=1,
    )  # fmt: skip
    compiled = jax.jit(lambda x: kernel(x))
    x = jax.device_put(jax.numpy.zeros(16, "float32"), gpu)
    compiled(x).block_until_ready()
    for function in (dlbridge.from_dlpack, lambda y: dlbridge.convert(y, "cupy")):
        function(x)
        y = compiled(x)
        taken = function(y)
        assert float(cupy.asarray(taken).sum()) == 16
        assert fewest_sleeps(function, lambda: compiled(x)) == 0


@pytest.mark.gpu
def test_tensors_in_place_are_new_values_in_jax(gpu: Any) -> None:
    """With and without donation: XLA aliases, or the handler copies on the device."""
    import jax

    cupy = pytest.importorskip("cupy")
    text = """extern "C" __global__ void bump(float *x, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) x[i] += 1;
    }"""
    kernel = dlbridge.wrap(
        cupy.RawKernel(text, "bump"), "jaxgpu::bump(x!: f32[n])",
        abi="void(float *x, long long n)", grid="(n + 255) // 256", block=256,
    )  # fmt: skip
    x = jax.device_put(jax.numpy.zeros(1000, "float32"), gpu)
    assert jax.numpy.array_equal(jax.jit(lambda x: kernel(x))(x), x + 1)
    assert jax.numpy.array_equal(x, 0 * x)
    donated = jax.jit(lambda x: kernel(x), donate_argnums=0)(x + 0)
    assert jax.numpy.array_equal(donated, x + 1)


@pytest.mark.gpu
@pytest.mark.parametrize("framework", ["torch", "cupy"])
def test_functions_of_other_frameworks_run_in_jax(gpu: Any, framework: str) -> None:
    """On XLA's stream: what comes before and after in the program is in order."""
    import jax

    pytest.importorskip(framework)
    kernel = dlbridge.wrap(
        platforms={"cuda": lambda x: x * 2}, abi=f"python:{framework}",
        schema=f"jaxgpu::of_{framework}(x: f32[n]) -> f32[n]",
    )  # fmt: skip
    x = jax.device_put(jax.numpy.arange(100_000, dtype="float32"), gpu)
    compiled = jax.jit(lambda x: kernel(kernel(x + 1) + 1) + 1)
    for _ in range(3):
        assert jax.numpy.array_equal(compiled(x), ((x + 1) * 2 + 1) * 2 + 1)

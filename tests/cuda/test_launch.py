"""GPU kernels on Tensors: what they are given, on which stream, after what."""

from __future__ import annotations

import threading
from pathlib import Path

import measuring
import numpy as np
import pytest
from driver_calls import LEGACY, PER_THREAD
from launchers import Launch, Launcher
from machine import GLOBAL, RELAXED, THREAD_LOCAL

import dlbridge
from dlbridge import cuda
from dlbridge._core import ffi, native
from dlbridge.errors import ArgumentError, CUDAError, ExchangeError, UnsupportedTypeError

IMAGE = Path(__file__).with_name("kernels.ptx")  # of kernels.cu

ADD_ONE = "void(const float *x, float *out, int64_t n)"
SCALE = "void(const float *x, float *out, float factor, int64_t n)"
SAXPY = "void(float a, const float *x, const float *y, float *out, int64_t n)"
ELEMENTWISE = {"grid": "(n + 255) // 256", "block": 256}


@pytest.fixture
def module(machine):
    """Return the kernels of tests, loaded on this machine."""
    return cuda.Module(IMAGE)


@pytest.fixture
def add_one(module):
    """Return a kernel whose result is its argument and one."""
    return dlbridge.wrap(
        module["add_one"], "launch::add_one(x: f32[n]) -> f32[n]", abi=ADD_ONE, **ELEMENTWISE
    )


@pytest.fixture
def add_one_to(module):
    """Return a kernel that adds one to what it is given."""
    return dlbridge.wrap(
        module["add_one"], "launch::add_one_to(x: f32[n], y!: f32[n])",
        abi="void(const float *x, float *y, int64_t n)", **ELEMENTWISE,
    )  # fmt: skip


def new(machine, count: int = 1000, device: int = 0, stream: int = LEGACY, *, slow: bool = False):
    """Return a Tensor of zeros that a kernel on `stream` writes."""
    with cuda.stream(stream, f"cuda:{device}"):
        tensor = dlbridge.empty((count,), "float32", device=f"cuda:{device}")
        native.cuda_begin(tensor, stream, True)
        written = [(tensor.data_ptr, 4 * count)]
        machine.launch(stream, writes=written, value=0, slow=slow, device=device)
    return tensor


def read(machine, tensor) -> np.ndarray:
    device = tensor.device.id
    raw = machine.read_back(tensor.data_ptr, 4 * int(np.prod(tensor.shape)), device)
    return np.frombuffer(raw, "float32")


# ---- what a kernel is given ----------------------------------------------------------------------


def test_a_result_is_new_memory_on_the_device(machine, add_one):
    x = new(machine)
    y = add_one(x)
    assert (y.device, y.shape, str(y.dtype)) == ("cuda:0", (1000,), "float32")
    assert machine.host_synchronisations == 0
    assert set(read(machine, y)) == {1}
    assert set(read(machine, x)) == {0}


def test_out_is_written_and_returned(machine, add_one):
    x, out = new(machine), new(machine)
    assert add_one(x, out=out) is out
    assert set(read(machine, out)) == {1}


def test_a_result_comes_from_the_allocator_that_was_set(machine, add_one):
    class Pool(dlbridge.Allocator):
        def allocate(self, nbytes, alignment):
            return machine.alloc(nbytes)

        def deallocate(self, address, nbytes):
            machine.free(address)

    pool, x = Pool("pool"), new(machine)
    add_one(x)
    dlbridge.set_allocator("cuda", pool)
    try:
        for _ in range(2):
            y = add_one(x)
            assert pool.statistics().bytes_in_use == 4000
            assert set(read(machine, y)) == {1}
            del y
            machine.finish()  # the event of its release may have been pending
            cuda.collect()
            cuda.collect()
    finally:
        dlbridge.set_allocator("cuda", None)


def test_scalars_have_the_types_of_the_signature(machine, module):
    saxpy = dlbridge.wrap(
        module["saxpy"], "launch::saxpy(x: f32[n], y: f32[n], *, a: float = 2.5) -> f32[n]",
        abi=SAXPY, **ELEMENTWISE,
    )  # fmt: skip
    ones = new(machine)
    for _ in range(2):  # both 0: 0 * a + 0
        assert set(read(machine, saxpy(ones, ones))) == {0}
    add_one = dlbridge.wrap(
        module["add_one"], "launch::one(x: f32[n]) -> f32[n]", abi=ADD_ONE, **ELEMENTWISE
    )
    one = add_one(ones)
    assert set(read(machine, saxpy(one, one))) == {3.5}
    assert set(read(machine, saxpy(one, one, a=-1))) == {0}


def test_a_call_like_the_one_before_is_the_same(machine, add_one):
    """A cached call holds for memory and shape, not for contents."""
    for count in (1000, 1000, 1000, 7, 1000):
        x = new(machine, count)
        y = add_one(add_one(x))
        assert y.shape == (count,)
        assert set(read(machine, y)) == {2}


def test_the_grid_covers_all_elements(machine, add_one):
    for count in (1, 255, 256, 257, 100_000):
        assert set(read(machine, add_one(new(machine, count)))) == {1}


def test_an_empty_grid_is_not_launched(fake_machine):
    """CUDA refuses a grid without blocks, and there is nothing to do."""
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::none(x: f32[n]) -> f32[n]", abi=ADD_ONE,
        **ELEMENTWISE,
    )  # fmt: skip
    y = add_one(dlbridge.empty((0,), "float32", device="cuda"))
    assert y.shape == (0,)
    assert "cuLaunchKernel" not in fake_machine.actions()


def test_a_pack_counts_the_product_of_its_dimensions(machine, module):
    add_one = dlbridge.wrap(
        module["add_one"], "launch::pack(x: f32[*shape]) -> f32[*shape]",
        abi="void(const float *x, float *out, int64_t shape)",
        grid="(shape + 255) // 256", block=256,
    )  # fmt: skip
    for shape in ((4, 5, 6), (4, 5, 6), (7,), ()):
        x = dlbridge.empty(shape, "float32", device="cuda")
        native.cuda_begin(x, LEGACY, True)
        machine.launch(LEGACY, writes=[(x.data_ptr, x.nbytes)], value=0)
        y = add_one(x)
        assert y.shape == shape
        assert set(read(machine, y)) == {1}


def test_a_dimension_that_is_an_argument_reaches_the_grid_and_the_kernel(machine, module):
    first = dlbridge.wrap(
        module["add_one"], "launch::first(x: f32[m], n: int) -> f32[n]",
        abi=ADD_ONE, grid="(n + 255) // 256", block=256,
    )  # fmt: skip
    x = new(machine)
    for count in (300, 300, 2):
        y = first(x, count)
        assert y.shape == (count,)
        assert set(read(machine, y)) == {1}


def test_cuda_words_may_stand_in_the_signature(machine, module):
    add_one = dlbridge.wrap(
        module["add_one"], "launch::words(x: f32[n]) -> f32[n]",
        abi='extern "C" __global__ void(const float *__restrict__ x, float *__restrict__ out, '
        "long long n)",
        **ELEMENTWISE,
    )  # fmt: skip
    assert set(read(machine, add_one(new(machine)))) == {1}


def test_a_handle_of_the_driver_is_a_kernel(machine, module):
    """A CUfunction of one's own, as cffi has it; it is of one device."""
    handle = ffi.cast("CUfunction", module["add_one"].load(0))
    add_one = dlbridge.wrap(handle, "launch::raw(x: f32[n]) -> f32[n]", abi=ADD_ONE, **ELEMENTWISE)
    assert set(read(machine, add_one(new(machine)))) == {1}


# ---- streams -------------------------------------------------------------------------------------


@pytest.mark.parametrize("before", ["legacy", "per-thread", "blocking", "non-blocking"])
@pytest.mark.parametrize("here", ["legacy", "per-thread", "blocking", "non-blocking"])
def test_a_kernel_comes_after_the_work_on_its_arguments(machine, add_one, before, here):
    x = new(machine, stream=machine.stream_of_kind(before), slow=True)
    with cuda.stream(machine.stream_of_kind(here)) as stream:
        y = add_one(x)
        assert native.cuda_ready_stream(y) == stream
    assert machine.host_synchronisations == 0
    assert set(read(machine, y)) == {1}


def test_a_kernel_does_not_write_what_is_being_read(machine, add_one_to):
    """On memory that a kernel on another stream still reads."""
    reader, writer = machine.stream(), machine.stream()
    x, y = new(machine), new(machine)
    result = machine.alloc(y.nbytes)
    native.cuda_begin(y, reader, False)
    machine.launch(reader, reads=[(y.data_ptr, y.nbytes)], writes=[(result, y.nbytes)], slow=True)
    with cuda.stream(writer):
        add_one_to(x, y)
    assert set(np.frombuffer(machine.read_back(result, y.nbytes), "float32")) == {0}
    assert set(read(machine, y)) == {1}


def test_memory_waits_for_the_kernels_that_read_it(machine, add_one):
    """The argument is dropped, and its memory allocated again, while the kernel still runs."""
    here, there = machine.stream(), machine.stream()
    x = new(machine, stream=here)
    with cuda.stream(there):
        machine.slow_down(there)
        y = add_one(x)
        del x
    with cuda.stream(here):
        z = dlbridge.empty((1000,), "float32", device="cuda")
        machine.launch(here, writes=[(z.data_ptr, z.nbytes)], value=0x7F)
    assert set(read(machine, y)) == {1}


def test_the_default_stream_is_ordered_with_the_callers(machine, module):
    add_one = dlbridge.wrap(
        module["add_one"], "launch::default(x: f32[n]) -> f32[n]", abi=ADD_ONE, stream="default",
        **ELEMENTWISE,
    )  # fmt: skip
    here = machine.stream()
    x = new(machine, stream=here, slow=True)
    with cuda.stream(here):
        y = add_one(x)
        assert native.cuda_ready_stream(y) == LEGACY
        result = machine.alloc(y.nbytes)
        machine.launch(here, reads=[(y.data_ptr, y.nbytes)], writes=[(result, y.nbytes)])
    assert machine.host_synchronisations == 0
    assert set(np.frombuffer(machine.read_back(result, y.nbytes), "float32")) == {1}


def test_a_captured_kernel_runs_with_the_graph(machine, add_one_to):
    stream = machine.stream()
    x, y = new(machine, stream=stream), new(machine, stream=stream)
    with cuda.stream(stream):
        add_one_to(x, y)  # loads the module, which a capture may refuse
        with machine.capture(stream) as graph:
            add_one_to(x, y)
            add_one_to(y, x)
    for _ in range(2):
        graph.launch(stream)
    assert machine.host_synchronisations == 0
    assert set(read(machine, x)) == {4}
    assert set(read(machine, y)) == {3}


@pytest.mark.parametrize("mode", [GLOBAL, THREAD_LOCAL, RELAXED])
def test_a_module_may_be_loaded_during_a_capture(machine, mode):
    """The driver forbids it unless the thread relaxes that; else the user's graph is lost."""
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::fresh(x: f32[n], y!: f32[n])",
        abi="void(const float *x, float *y, int64_t n)", **ELEMENTWISE,
    )  # fmt: skip
    stream = machine.stream()
    x, y = new(machine, stream=stream), new(machine, stream=stream)
    with cuda.stream(stream), machine.capture(stream, mode) as graph:
        add_one(x, y)
    graph.launch(stream)
    assert set(read(machine, y)) == {1}


def test_each_thread_works_on_its_own_stream(machine, add_one):
    x, results, waits, all_done = new(machine), {}, [], threading.Barrier(4)

    def work(number: int) -> None:
        with cuda.stream(PER_THREAD if number % 2 else streams[number]):
            y = x
            for _ in range(20):
                y = add_one(y)
            results[number] = y
        waits.append(machine.host_synchronisations)
        all_done.wait(60)

    streams = [machine.stream() for _ in range(4)]
    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert waits == [0] * 4
    for number in range(4):
        assert set(read(machine, results[number])) == {20}


def end_threads(machine, add_one, count: int) -> list[bool]:
    """Run threads with slow work on their default streams; return whether all was over."""
    x, is_through = new(machine), []

    def work() -> None:
        with cuda.stream(PER_THREAD):
            for i in range(20):
                y = add_one(x)
                machine.launch(PER_THREAD, reads=[(y.data_ptr, 64)], slow=i == 0)
                del y
        is_through.append(machine.is_through(PER_THREAD))

    threads = [threading.Thread(target=work) for _ in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
        wait_for_the_end_of(thread)
    return is_through


def test_a_thread_waits_at_its_end_for_its_default_stream(fake_machine):
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::add_one_in_threads(x: f32[n]) -> f32[n]",
        abi=ADD_ONE, **ELEMENTWISE,
    )  # fmt: skip
    assert end_threads(fake_machine, add_one, 1) == [False]
    assert fake_machine.host_synchronisations == 1


def test_all_work_ends_after_threads_that_used_their_default_streams(machine, add_one):
    """Drivers wait for ever once memory was freed in order after work on a stream that ended."""
    for _ in range(20):
        end_threads(machine, add_one, 4)
        machine.synchronise()


def test_memory_of_a_default_stream_is_freed_when_its_work_is_over(fake_machine):
    """Not in its order, by another stream: drivers then never end a later synchronisation."""
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::add_one_there(x: f32[n]) -> f32[n]",
        abi=ADD_ONE, **ELEMENTWISE,
    )  # fmt: skip
    x = new(fake_machine)
    with cuda.stream(PER_THREAD):
        y = add_one(x)
        fake_machine.launch(PER_THREAD, reads=[(y.data_ptr, 64)], slow=True)
        del y
    freed = [call.name for call in fake_machine.calls].count("cuMemFreeAsync")
    assert freed == 0
    fake_machine.finish()
    cuda.collect()
    assert [call.name for call in fake_machine.calls].count("cuMemFreeAsync") == 1
    assert fake_machine.host_synchronisations == 0


def wait_for_the_end_of(thread: threading.Thread) -> None:
    """Wait until the system has no such thread: `join` returns a little before."""
    task = Path(f"/proc/self/task/{thread.native_id}")
    measuring.until(lambda: not task.exists(), "the end of the thread")


def test_a_kernel_on_one_stream_needs_no_other_call_of_the_driver(fake_machine):
    """No event, no wait, no question: its arguments are ready there, and were allocated there."""
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::lean(x: f32[n]) -> f32[n]", abi=ADD_ONE,
        **ELEMENTWISE,
    )  # fmt: skip
    with cuda.stream(fake_machine.stream()) as stream:
        x, out = new(fake_machine, stream=stream), new(fake_machine, stream=stream)
        for _ in range(2):
            add_one(x, out=out)
        fake_machine.reset()
        add_one(x, out=out)
        assert fake_machine.actions() == ["cuLaunchKernel"]
        assert len(fake_machine.calls) <= 4  # the current context, pushed and popped
        fake_machine.reset()
        add_one(add_one(x))
        work = [name for name in fake_machine.actions() if name != "cuMemFreeAsync"]
        assert work == ["cuMemAllocAsync", "cuLaunchKernel"] * 2


# ---- C launchers ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["legacy", "per-thread", "non-blocking"])
def test_a_launcher_gets_the_stream_in_its_context(machine, kind):
    def fill(launch: Launch) -> None:
        machine.launch(
            launch.stream,
            reads=[(launch.addresses[0], 4000)],
            writes=[(launch.addresses[1], 4000)],
        )

    launcher = Launcher(fill)
    kernel = launcher.wrap("launch::copied(x: f32[n]) -> f32[n]")
    x = new(machine, slow=True)
    stream = machine.stream_of_kind(kind)
    with cuda.stream(stream):
        y = kernel(x)
    assert [launch.stream for launch in launcher.launches] == [stream]
    assert machine.host_synchronisations == 0
    assert set(read(machine, y)) == {0}


def test_a_launcher_in_c_takes_the_stream_by_its_name(machine):
    """`void *stream` in a C signature, beside bare pointers and sizes."""
    import ctypes

    calls = []
    prototype = ctypes.CFUNCTYPE(
        ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64, ctypes.c_void_p
    )

    @prototype
    def copy(x: int, out: int, n: int, stream: int) -> int:
        calls.append(stream)
        machine.launch(stream, reads=[(x, 4 * n)], writes=[(out, 4 * n)])
        return 0

    kernel = dlbridge.wrap(
        platforms={"cuda": copy},
        schema="launch::bare(x: f32[n]) -> f32[n]",
        abi="int(const float *x, float *out, int64_t n, void *stream)",
    )
    x, stream = new(machine, slow=True), machine.stream()
    with cuda.stream(stream):
        y = kernel(x)
    assert calls == [stream]
    assert set(read(machine, y)) == {0}


# ---- memory that a kernel does not take as it lies -----------------------------------------------


@pytest.mark.parametrize("here", ["legacy", "per-thread", "non-blocking"])
def test_strided_memory_is_copied_on_the_device(machine, add_one, add_one_to, here):
    x = new(machine, slow=True)
    with cuda.stream(machine.stream_of_kind(here)):
        y = add_one(x[::2])
        z = dlbridge.empty((1000,), "float32", device="cuda")
        native.cuda_begin(z, cuda.current_stream(), True)
        machine.launch(cuda.current_stream(), writes=[(z.data_ptr, z.nbytes)], value=0)
        for _ in range(2):
            add_one_to(y, z[1::2])
    assert y.shape == (500,)
    assert machine.host_synchronisations == 0
    assert set(read(machine, y)) == {1}
    assert list(read(machine, z)) == [0, 2] * 500


def test_misaligned_memory_is_copied_on_the_device(machine, module):
    kernel = dlbridge.wrap(
        module["add_one"], "launch::aligned(x: f32[n]) -> f32[n]", abi=ADD_ONE, align=256,
        **ELEMENTWISE,
    )  # fmt: skip
    y = kernel(new(machine)[1:])
    assert machine.host_synchronisations == 0
    assert list(read(machine, y)) == [1] * 999


def test_the_copy_of_an_argument_lives_until_the_kernel_is_through(machine, add_one):
    """Copies are freed by the time that the call returns, the kernel is not."""
    here = machine.stream()
    with cuda.stream(here):
        x = new(machine, stream=here, slow=True)
        results = [add_one(x[::2]) for _ in range(8)]
    assert machine.host_synchronisations == 0
    for y in results:
        assert set(read(machine, y)) == {1}


@pytest.mark.parametrize("is_written", [False, True])
def test_a_captured_kernel_copies_in_the_graph(machine, add_one_to, is_written):
    stream = machine.stream()
    x, y = new(machine, stream=stream), new(machine, stream=stream)
    with cuda.stream(stream):
        add_one_to(x, y)
        with machine.capture(stream) as graph:
            add_one_to(x[:500] if is_written else x[::2], y[::2] if is_written else y[:500])
    graph.launch(stream)
    assert machine.host_synchronisations == 0
    assert set(read(machine, y)) == {1}


# ---- devices -------------------------------------------------------------------------------------


def test_a_kernel_is_loaded_on_each_device_that_it_runs_on(machine, add_one):
    machine.need_devices(2)
    for device in (1, 0, 1):
        y = add_one(new(machine, device=device))
        assert y.device == f"cuda:{device}"
        assert set(read(machine, y)) == {1}


def test_tensors_of_two_devices_are_refused(machine, add_one_to):
    machine.need_devices(2)
    x, y = new(machine), new(machine, device=1)
    for _ in range(2):
        with pytest.raises(ExchangeError, match=r"on cuda:0 as 'x'.*move the tensors"):
            add_one_to(x, y)
    add_one_to(x, new(machine))
    with pytest.raises(ExchangeError, match=r"on cuda:0 as 'x'.*move the tensors"):
        add_one_to(x, y)


def test_tensors_of_the_cpu_are_refused(machine, add_one):
    with pytest.raises(ExchangeError, match="a device that the kernel was wrapped for"):
        add_one(dlbridge.zeros((3,), "float32"))


# ---- refusals, before anything is launched -------------------------------------------------------


def refused(fake_machine, error, match):
    """Expect a refusal without any launch."""
    fake_machine.reset()
    return pytest.raises(error, match=match)


@pytest.mark.parametrize(
    ("launch", "count", "text"),
    [
        ({"grid": 1, "block": "n"}, 1025, r"block\[0\] must be from 1 to 1024, got 1025"),
        ({"grid": 1, "block": ("n", "n", 2)}, 32, "at most 1024 threads, got 2048"),
        ({"grid": (1, "n"), "block": 1}, 70_000, r"grid\[1\] must be from 0 to 65535"),
        ({"grid": "n // (n - n)", "block": 1}, 4, "divides by zero or exceeds 64 bits"),
        ({"grid": 1, "block": 1, "shared": "1 - n"}, 4, "shared must be from 0 to"),
    ],
)
def test_sizes_that_cuda_does_not_take_are_refused(fake_machine, launch, count, text):
    kernel = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::sizes(x: f32[n], y!: f32[n])",
        abi="void(const float *x, float *y, int64_t n)", **launch,
    )  # fmt: skip
    x, y = new(fake_machine, count), new(fake_machine, count)
    fake_machine.reset()
    with pytest.raises(ArgumentError, match=text):
        kernel(x, y)
    assert "cuLaunchKernel" not in fake_machine.actions()


def test_numbers_that_a_parameter_cannot_hold_are_refused(fake_machine):
    kernel = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::narrow(x: f32[m], y!: f32[m], n: int)",
        abi="void(const float *x, float *y, int8_t n)", grid=1, block=1,
    )  # fmt: skip
    x, y = new(fake_machine), new(fake_machine)
    fake_machine.reset()
    with pytest.raises(ArgumentError, match="n is 128, which the kernel's signed integer of 8"):
        kernel(x, y, 128)
    assert "cuLaunchKernel" not in fake_machine.actions()


@pytest.mark.parametrize(
    ("text", "why"),
    [
        (
            "void(const float *x, float *y)",
            "the kernel has more than 2 parameters, its signature 2",
        ),
        (
            "void(const float *x, float *y, int64_t n, int64_t m)",
            "the kernel has 3 parameters, its signature 4",
        ),
        (
            "void(const float *x, float *y, int32_t n)",
            "parameter 2, n, has 4 bytes in the signature and 8 in the kernel",
        ),
    ],
)
def test_a_signature_that_is_not_the_kernels_is_refused(machine, module, text, why):
    """The driver knows the parameters of a kernel; a wrong one would write anywhere."""
    kernel = dlbridge.wrap(
        module["add_one"], "launch::other(x: f32[n], y!: f32[n], m: int = 1)", abi=text,
        **ELEMENTWISE,
    )  # fmt: skip
    x, y = new(machine), new(machine)
    for _ in range(2):
        with pytest.raises(ArgumentError, match=why):
            kernel(x, y)
    assert set(read(machine, y)) == {0}


def test_a_failed_launch_is_an_error_with_the_drivers_words(fake_machine):
    add_one = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::failing(x: f32[n]) -> f32[n]", abi=ADD_ONE,
        **ELEMENTWISE,
    )  # fmt: skip
    x = new(fake_machine)
    for function in ("cuModuleLoadData", "cuModuleGetFunction", "cuLaunchKernel"):
        fake_machine.fail(function, 700)
        with pytest.raises(CUDAError, match=f"{function}: CUDA_ERROR_ILLEGAL_ADDRESS"):
            add_one(x)
    assert set(read(fake_machine, add_one(x))) == {1}


def test_a_kernel_that_the_module_lacks_is_named(fake_machine):
    kernel = dlbridge.wrap(
        cuda.Module(IMAGE)["missing"], "launch::missing(x!: f32[n])",
        abi="void(float *x, int64_t n)", grid=1, block=1,
    )  # fmt: skip
    with pytest.raises(CUDAError, match=r"Module\['missing'\]: cuModuleGetFunction"):
        kernel(new(fake_machine))


def test_more_shared_memory_than_48_kib_is_asked_for_once(fake_machine):
    kernel = dlbridge.wrap(
        cuda.Module(IMAGE)["add_one"], "launch::shared(x: f32[n], y!: f32[n])",
        abi="void(const float *x, float *y, int64_t n)", shared="64 * n", **ELEMENTWISE,
    )  # fmt: skip
    x, y = new(fake_machine), new(fake_machine)
    fake_machine.reset()
    for _ in range(3):
        kernel(x, y)
    assert [call.name for call in fake_machine.calls].count("cuFuncSetAttribute") == 1
    assert set(read(fake_machine, y)) == {1}


TURNED = b"""
.version 6.3
.target sm_75
.address_size 64
.extern .shared .align 4 .b8 dynamic[];
.visible .entry turned(.param .u64 out)
{
    .shared .align 4 .b8 statics[16384];
    .reg .b32 %r<9>;
    .reg .b64 %rd<4>;
    mov.u32 %r1, %tid.x;
    shl.b32 %r2, %r1, 2;
    mov.u32 %r3, dynamic;
    add.u32 %r4, %r3, %r2;
    st.shared.u32 [%r4], %r1;
    bar.sync 0;
    add.u32 %r5, %r2, 4;
    and.b32 %r5, %r5, 127;
    add.u32 %r5, %r3, %r5;
    ld.shared.u32 %r6, [%r5];
    mov.u32 %r7, statics;
    add.u32 %r7, %r7, %r2;
    st.shared.u32 [%r7], %r6;
    bar.sync 0;
    ld.shared.u32 %r8, [%r7];
    ld.param.u64 %rd1, [out];
    cvt.u64.u32 %rd2, %r2;
    add.s64 %rd3, %rd1, %rd2;
    st.global.u32 [%rd3], %r8;
    ret;
}
"""


@pytest.fixture
def turned(machine):
    """Return a kernel with 16 KiB of static shared memory: thread i of 32 writes (i + 1) % 32.

    The fake driver has it as well, with as much.
    """
    return cuda.Module(TURNED)["turned"]


def with_shared(function, nbytes: int):
    """Return the kernel with so many bytes of dynamic shared memory."""
    return dlbridge.wrap(
        function, f"launch::turned_{nbytes}(out!: u32[n])", abi="void(unsigned *out)",
        grid=1, block=32, shared=nbytes,
    )  # fmt: skip


@pytest.mark.parametrize("dynamic", [128, 32 * 1024, 33 * 1024, 40 * 1024, 47 * 1024])
def test_static_and_dynamic_shared_memory_count_together(machine, turned, dynamic):
    """48 KiB of both need no asking: 16 of the one and 33 of the other do."""
    out = dlbridge.zeros(32, "uint32", device="cuda")
    kernel = with_shared(turned, dynamic)
    kernel(out)
    kernel(out)
    assert out.to("cpu").tolist() == [*range(1, 32), 0]


def test_no_kernel_lowers_the_limit_of_shared_memory_of_another(machine, turned):
    """It belongs to the function, which several kernels launch, and others than dlbridge."""
    out = dlbridge.zeros(32, "uint32", device="cuda")
    much, little = with_shared(turned, 45 * 1024), with_shared(turned, 34 * 1024)
    for kernel in (much, little, much, little):
        kernel(out)
    assert out.to("cpu").tolist() == [*range(1, 32), 0]


def test_threads_raise_the_limit_of_shared_memory_and_never_lower_it(machine, turned):
    outs = [dlbridge.zeros(32, "uint32", device="cuda") for _ in range(4)]
    cuda.synchronize()
    failures = []

    def launch(number):
        try:
            for _ in range(20):
                for more in range(4):
                    kernel = with_shared(turned, (34 + 3 * number + more) * 1024)
                    with cuda.stream(PER_THREAD):
                        kernel(outs[number])
        except Exception as error:
            failures.append(error)

    threads = [threading.Thread(target=launch, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []
    machine.synchronise()


# ---- refusals of wrap: no machine is needed ------------------------------------------------------

FUNCTION = cuda.Module(b".version 8.0")["add_one"]
SCHEMA = "launch::wrong(x: f32[n]) -> f32[n]"


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"grid": None}, "needs grid= and block="),
        ({"grid": "m"}, "grid: 'm' is not a dimension of the schema; there are n"),
        ({"grid": "n +"}, "grid: expected a dimension"),
        ({"grid": "n n"}, "grid: expected an operator or the end, got 'n'"),
        ({"grid": (1, 2, 3, 4)}, "grid must be one to three integers or expressions"),
        ({"grid": 1.5}, "grid must be one to three integers or expressions"),
        ({"grid": (1, 65536)}, r"launch: grid\[1\] must be from 0 to 65535, got 65536"),
        ({"block": 0}, r"launch: block\[0\] must be from 1 to 1024, got 0"),
        ({"shared": 1.0}, "shared must be bytes or an expression"),
        ({"abi": "int(const float *x, float *out, int64_t n)"}, "a GPU kernel returns void"),
        ({"abi": "void(const float *x, float *out, void *stream)"}, "'stream' is not a parameter"),
        ({"abi": "void(const float *x, const float *out)"}, "is const, but the kernel writes it"),
        ({"abi": "void(const double *x, float *out)"}, "does not point to f32"),
        ({"abi": "dltensors"}, "needs its C signature"),
        ({"schema": None}, "needs a schema"),
        (
            {
                "schema": "launch::wrong(x: f32[n], to: dtype) -> to[n]",
                "abi": "void(const float *x, void *out, DLDataType to)",
            },
            "'to' is a dtype, which a GPU kernel cannot read",
        ),
        (
            {
                "schema": "launch::wrong(x: f32[2*n]) -> f32[2*n]",
                "abi": "void(const float *x, float *out)",
            },
            "grid: 'n' stands in no tensor by itself, so its extent is not at hand",
        ),
    ],
)
def test_a_launch_that_does_not_fit_the_schema_is_refused_by_wrap(changes, text):
    options = {"schema": SCHEMA, "abi": ADD_ONE, "grid": "n", "block": 256} | changes
    with pytest.raises(ArgumentError, match=text):
        dlbridge.wrap(FUNCTION, options.pop("schema"), **options)


def test_grids_are_of_gpu_kernels():
    import ctypes

    function = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    with pytest.raises(ArgumentError, match="grid=, block= and shared= are of GPU kernels"):
        dlbridge.wrap(function(lambda *_: 0), "launch::cpu(x!: f32[n])", grid=1, block=1)


def test_a_module_is_bytes_or_a_file(tmp_path):
    for image in (b"", tmp_path / "missing.ptx", None):
        with pytest.raises(ArgumentError, match="Module: the image"):
            cuda.Module(image)
    with pytest.raises(ArgumentError, match="a kernel's name must be text"):
        cuda.Module(b"x")[""]
    with pytest.raises(UnsupportedTypeError):
        dlbridge.wrap(cuda.Module(b"x"), SCHEMA)


PARAMETER = ("x", "t", 0, 8, False, 0)
ONES = ((("c", 1),),) * 7


@pytest.mark.parametrize(
    ("values", "parameters", "programs"),
    [
        ((("n", ((32, 0, 1),)),), (), ONES),
        ((("n", ((-17, 0, 0),)),), (), ONES),
        ((("n", ((0, 0, 1),)),) * 129, (), ONES),
        (((1, ()),), (), ONES),
        ((), (PARAMETER,) * 193, ONES),
        ((), (("x", "t", 32, 8, False, 0),), ONES),
        ((), (("x", "v", 0, 8, False, 0),), ONES),
        ((), (("x", "q", 0, 8, False, 0),), ONES),
        ((), (("x", "t", 0, 9, False, 0),), ONES),
        ((), (("x", "t", 0, 8, False, -1),), ONES),
        ((), (PARAMETER,), ONES[:6]),
        ((), (PARAMETER,), (*ONES[:6], (("n", 0),))),
        ((), (PARAMETER,), (*ONES[:6], ())),
        ((), (PARAMETER,), (*ONES[:6], (("c", 1),) * 300)),
    ],
)
def test_the_core_checks_what_it_is_told_to_launch(values, parameters, programs):
    native.CudaLaunch(lambda device: device, (), (PARAMETER,), ONES)
    with pytest.raises((ValueError, TypeError)):
        native.CudaLaunch(lambda device: device, values, parameters, programs)

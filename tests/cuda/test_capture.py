"""Exchanges while a CUDA graph is captured: nothing that would break the capture is called.

A graph runs later, wherever it is launched. A captured stream therefore takes no order from outside
(whoever launches the graph orders it), gives none to streams outside, and nothing that happens on
other streams may reach into it.
"""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest
from cuda_peers import Framework, own_kernel
from driver_calls import LEGACY, DriverError
from machine import GLOBAL, RELAXED, THREAD_LOCAL

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import ExchangeError

MODES = {"global": GLOBAL, "thread local": THREAD_LOCAL, "relaxed": RELAXED}


@pytest.fixture(params=MODES)
def mode(request):
    """Every mode of cuStreamBeginCapture; torch captures in the global one."""
    return MODES[request.param]


def test_memory_from_outside_may_be_used_in_a_capture(machine, mode):
    producer, outside = Framework(machine, machine.stream()), machine.stream()
    with cuda.stream(outside):
        tensor = dlbridge.from_dlpack(producer.full(1))
    result = machine.alloc(64)
    consumer = Framework(machine, machine.stream())
    y = None
    with machine.capture(consumer.current, mode) as graph:
        y = consumer.from_dlpack(tensor)
        machine.launch(consumer.current, reads=y.range, writes=[(result, 64)])
    own_kernel(machine, tensor, outside, 7, slow=True)
    launching = machine.stream()
    machine.event_order(outside, launching)
    graph.launch(launching)
    assert machine.host_synchronisations == 0
    assert set(machine.read_back(result, 64)) == {7}
    y.free()


def test_an_exchange_inside_of_a_capture_is_part_of_it(machine, mode):
    """Producer, dlbridge and consumer on the captured stream; the graph runs twice."""
    stream = machine.stream()
    framework = Framework(machine, stream)
    x, result = framework.empty(), framework.empty()
    with machine.capture(stream, mode) as graph, cuda.stream(stream):
        x.write(7)
        y = framework.from_dlpack(dlbridge.from_dlpack(x))
        machine.launch(stream, reads=y.range, writes=result.range)
    graph.launch(stream)
    graph.launch(stream)
    assert machine.host_synchronisations == 0
    assert result.value() == 7
    y.free()


@pytest.mark.parametrize("auto_free", [False, True])
def test_memory_that_outlives_its_capture_belongs_to_one_launch(machine, mode, auto_free):
    """The graph allocates it at each launch, and refuses to while that of the last one is there."""
    stream = machine.stream()
    with cuda.stream(stream):
        with machine.capture(stream, mode, auto_free=auto_free) as graph:
            tensor = dlbridge.empty((64,), "uint8", device="cuda")
            machine.launch(stream, writes=[(tensor.data_ptr, 64)], value=7)
        graph.launch(stream)
        if auto_free:
            graph.launch(stream)
        else:
            with pytest.raises(DriverError, match="1"):
                graph.launch(stream)
        assert set(machine.read_back(tensor.data_ptr, 64)) == {7}
        del tensor


def test_memory_that_a_capture_frees_lets_the_graph_run_again(machine, mode):
    """Temporary memory is the graph's own; results go where memory was before the capture."""
    stream = machine.stream()
    with cuda.stream(stream):
        result = dlbridge.zeros((64,), "uint8", device="cuda")
        with machine.capture(stream, mode) as graph:
            tensor = dlbridge.empty((64,), "uint8", device="cuda")
            there = [(tensor.data_ptr, 64)]
            machine.launch(stream, writes=there, value=7)
            machine.launch(stream, reads=there, writes=[(result.data_ptr, 64)])
            del tensor
        for _ in range(3):
            graph.launch(stream)
    assert set(machine.read_back(result.data_ptr, 64)) == {7}


def test_two_streams_of_one_capture_are_ordered_in_the_graph(machine, mode):
    first, second = machine.stream(), machine.stream()
    producer, consumer = Framework(machine, first), Framework(machine, second)
    x, result = producer.empty(), consumer.empty()
    with machine.capture(first, mode) as graph:
        machine.event_order(first, second)
        x.write(7, slow=True)
        with cuda.stream(first):
            y = consumer.from_dlpack(dlbridge.from_dlpack(x))
        machine.launch(second, reads=y.range, writes=result.range)
        machine.event_order(second, first)
    graph.launch(first)
    assert result.value() == 7
    y.free()


def test_captured_work_is_not_handed_to_a_stream_outside(machine, mode):
    """The stream outside would read what nothing has written: the graph has not run."""
    stream = machine.stream()
    framework, outside = Framework(machine, stream), Framework(machine, machine.stream())
    x = framework.empty()
    with machine.capture(stream, mode) as graph:
        x.write(7)
        with cuda.stream(stream):
            tensor = dlbridge.from_dlpack(x)
        with pytest.raises(ExchangeError, match="captured into a CUDA graph") as caught:
            outside.from_dlpack(tensor)
        assert caught.value.reason == "stream"
    graph.launch(stream)
    assert x.value() == 7


@pytest.mark.parametrize("is_stream_named", [False, True])
def test_the_default_of_dlpack_is_refused_during_a_capture(machine, is_stream_named):
    """stream=None is the legacy default stream, which no captured work may touch."""
    stream = machine.stream()
    framework = Framework(machine, stream)
    x = framework.empty()
    with machine.capture(stream) as graph:
        x.write(7)
        with cuda.stream(stream):
            tensor = dlbridge.from_dlpack(x)
        with pytest.raises(ExchangeError, match="captured into a CUDA graph"):
            tensor.__dlpack__(stream=LEGACY if is_stream_named else None, max_version=(1, 3))
    graph.launch(stream)
    assert x.value() == 7


def test_an_exchange_beside_a_capture_leaves_it_alone(machine, mode):
    """Its streams are not those that are captured."""
    captured = machine.stream()
    framework = Framework(machine, captured)
    x = framework.empty()
    producer, consumer = (Framework(machine, machine.stream()) for _ in range(2))
    y = producer.full(7, slow=True)
    with machine.capture(captured, mode) as graph:
        x.write(9)
        with cuda.stream(machine.stream()):
            z = consumer.from_dlpack(dlbridge.from_dlpack(y))
    graph.launch(captured)
    assert z.copy().value() == 7
    assert x.value() == 9


def test_memory_may_be_let_go_during_a_capture(machine, mode):
    """Asking whether an event is over would break a capture in the global mode."""
    captured = machine.stream()
    x = Framework(machine, captured).empty()
    producer, consumer = (Framework(machine, machine.stream()) for _ in range(2))
    with cuda.stream(producer.current):
        y = consumer.from_dlpack(dlbridge.from_dlpack(producer.full(7)))
    result = y.copy(slow=True)
    with machine.capture(captured, mode) as graph:
        y.free()
        x.write(9)
        cuda.collect()
        x.write(8)
    graph.launch(captured)
    assert result.value() == 7
    assert x.value() == 8
    machine.finish()
    assert cuda.collect() == 0
    assert producer.pool.given_back == 1


def test_memory_of_a_capture_may_be_released_inside_it(machine, mode):
    """No event can tell when a graph is through; its user keeps the memory for it."""
    stream = machine.stream()
    framework = Framework(machine, stream)
    x = framework.full(7)
    result = framework.empty()
    with cuda.stream(stream):
        tensor = dlbridge.from_dlpack(x)
    with machine.capture(stream, mode) as graph:
        y = framework.from_dlpack(tensor)
        machine.launch(stream, reads=y.range, writes=result.range)
        y.free()
        del tensor
    graph.launch(stream)
    assert result.value() == 7


def test_after_a_capture_its_stream_is_a_stream_again(machine, mode):
    stream = machine.stream()
    framework = Framework(machine, stream)
    consumer = Framework(machine, machine.stream())
    x = framework.full(1)
    with machine.capture(stream, mode) as graph, cuda.stream(stream):
        x.write(7, slow=True)
        tensor = dlbridge.from_dlpack(x)
    graph.launch(stream)
    assert consumer.from_dlpack(tensor).copy().value() == 7


def test_a_capture_of_another_thread_is_left_alone(machine, in_thread):
    """A tensor is dropped in one thread while another one captures."""
    captured = machine.stream()
    x = Framework(machine, captured).empty()
    producer, consumer = (Framework(machine, machine.stream()) for _ in range(2))

    def exchange_and_drop():
        y = consumer.from_dlpack(dlbridge.from_dlpack(producer.full(7)))
        y.read(slow=True)
        y.free()
        cuda.collect()

    with machine.capture(captured, THREAD_LOCAL) as graph:
        x.write(9)
        in_thread(exchange_and_drop)
    graph.launch(captured)
    assert x.value() == 9


KERNELS = Path(__file__).with_name("kernels.ptx")
ADD_ONE = "void(const float *x, float *out, int64_t n)"


def _launch(x, stream):
    kernel = dlbridge.wrap(
        cuda.Module(KERNELS)["add_one"], "capture::add_one(x: f32[n]) -> f32[n]",
        abi=ADD_ONE, grid=1, block=256, shared=60 * 1024,
    )  # fmt: skip
    kernel(x)


def _drop_what_kernels_use(x, stream):
    y = x.copy()
    native.cuda_begin(y, stream, False)
    del y
    cuda.collect()


# Every public call that reaches the driver, on a stream that is not captured; cuda.synchronize,
# which waits for captured streams as well, is the caller's to leave out.
CALLS = {
    "empty": lambda x, stream: dlbridge.empty(64, "uint8", device="cuda:0"),
    "full": lambda x, stream: dlbridge.full((64,), 3.0, "float32", device="cuda:0"),
    "pinned": lambda x, stream: dlbridge.empty(1 << 20, "uint8", device="cuda_host"),
    "managed": lambda x, stream: dlbridge.empty(64, "uint8", device="cuda_managed"),
    "copy": lambda x, stream: x.copy(),
    "strided copy": lambda x, stream: x[::2].copy(),
    "to the host": lambda x, stream: x.to("cpu"),
    "from the host": lambda x, stream: dlbridge.zeros(64, "float32").to("cuda:0"),
    "in place": lambda x, stream: x.__setitem__(slice(0, 8), x[8:16]),
    "pickle": lambda x, stream: pickle.loads(pickle.dumps(x)),
    "from_dlpack": lambda x, stream: dlbridge.from_dlpack(x, stream=stream),
    "the array interface": lambda x, stream: x.__cuda_array_interface__,
    "launch": _launch,
    "trim": lambda x, stream: cuda.trim(),
    "collect": _drop_what_kernels_use,
    "memory_info": lambda x, stream: cuda.memory_info(),
    "device_count": lambda x, stream: cuda.device_count(),
    "is_available": lambda x, stream: cuda.is_available(),
    "current_stream": lambda x, stream: cuda.current_stream(),
}


@pytest.mark.parametrize("call", CALLS)
def test_no_call_breaks_the_global_capture_of_another_thread(machine, in_thread, call):
    """torch captures so; what may be unsafe is then forbidden to every thread."""
    captured, stream = machine.stream(), machine.stream()
    result = Framework(machine, captured).empty()
    with cuda.stream(stream):
        x = dlbridge.zeros(256, "float32", device="cuda:0")

    def work():
        with cuda.stream(stream):
            CALLS[call](x, stream)

    with machine.capture(captured, GLOBAL) as graph:
        result.write(7)
        in_thread(work)
    graph.launch(captured)
    assert result.value() == 7
    machine.synchronise()


def test_use_in_a_capture_is_no_order_for_what_comes_after_it(machine, mode):
    """The captured stream has not waited for anything; when it is a stream again, it must."""
    producer, stream = Framework(machine, machine.stream()), machine.stream()
    framework = Framework(machine, stream)
    with cuda.stream(producer.current):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
    with machine.capture(stream, mode):
        y = framework.from_dlpack(tensor).read()
    own_kernel(machine, tensor, stream, 9)
    assert y.value() == 9
    y.free()


def test_a_write_in_a_capture_does_not_make_readers_forgotten(machine, mode):
    """Readers outside of the graph go on, and the memory waits for them."""
    producer, stream = Framework(machine, machine.stream()), machine.stream()
    reader = Framework(machine, machine.stream())
    with cuda.stream(producer.current):
        tensor = dlbridge.from_dlpack(producer.full(7))
    y = reader.from_dlpack(tensor)
    result = y.copy(slow=True)
    y.free()
    with machine.capture(stream, mode):
        own_kernel(machine, tensor, stream, 9)
    del tensor
    assert result.value() == 7


# ---- work of ours beside and inside of a capture -------------------------------------------------


@pytest.mark.parametrize("work", ["allocate", "copy", "fill", "send"])
def test_work_on_a_default_stream_that_a_capture_blocks_is_refused(machine, mode, work):
    """The legacy default stream waits for blocking streams: work on it would end the capture."""
    captured = machine.stream(blocking=True)
    x = Framework(machine, captured).empty()
    a, b = (dlbridge.zeros(16, "float32", device="cuda") for _ in range(2))
    machine.synchronise()
    call = {
        "allocate": lambda: dlbridge.empty(16, "float32", device="cuda"),
        "copy": lambda: native.copy_into(a, b),
        "fill": lambda: native.fill(a, 0),
        "send": lambda: a.__setitem__(slice(None), dlbridge.zeros(16, "float32")),
    }[work]
    with machine.capture(captured, mode) as graph:
        x.write(7)
        with pytest.raises(ExchangeError, match="legacy default stream") as caught:
            call()
        assert caught.value.reason == "stream"
    graph.launch(captured)
    assert x.value() == 7


def test_memory_that_is_kept_may_be_freed_during_a_capture(machine, mode):
    """Freeing pinned memory is forbidden to a thread that captures."""
    captured = machine.stream()
    x = Framework(machine, captured).empty()
    pinned = dlbridge.empty(1024, "uint8", device="cuda_host")
    del pinned
    with machine.capture(captured, mode) as graph:
        cuda.trim()
        x.write(7)
    graph.launch(captured)
    assert x.value() == 7


def test_a_python_kernel_is_captured(machine, mode):
    """Its work on another stream of the capture comes before the caller's next work."""
    stream, side = machine.stream(), machine.stream()
    x, result = (Framework(machine, stream).empty() for _ in range(2))
    y = Framework(machine, stream).empty()

    def function(a, *, out):
        machine.event_order(stream, side)
        with cuda.stream(side):
            native.copy_into(out, a)

    kernel = dlbridge.wrap(
        platforms={"cuda": function}, schema="capture::python(x: u8[n]) -> u8[n]",
        abi="python:dlbridge",
    )  # fmt: skip
    with cuda.stream(stream):
        a, out = dlbridge.from_dlpack(x), dlbridge.from_dlpack(result)
        kernel(a, out=out)
        machine.synchronise()
        with machine.capture(stream, mode) as graph:
            x.write(7, slow=True)
            kernel(a, out=out)
            machine.launch(stream, reads=result.range, writes=y.range)
    graph.launch(stream)
    assert y.value() == 7


def test_memory_of_a_capture_is_freed_in_it_after_what_reads_it(machine, mode):
    """Also where that is on another stream of the capture."""
    stream, side = machine.stream(), machine.stream()
    result = Framework(machine, side).empty()
    with machine.capture(stream, mode) as graph:
        machine.event_order(stream, side)
        with cuda.stream(stream):
            memory = dlbridge.zeros(64, "uint8", device="cuda")
        native.cuda_begin(memory, side, False)
        machine.launch(side, reads=[(memory.data_ptr, 64)], writes=result.range, slow=True)
        del memory
        machine.event_order(side, stream)
    graph.launch(stream)
    assert result.value() == 0


def test_memory_that_waited_for_a_capture_outlives_its_stream(machine, mode):
    """Let go during the capture, freed after the block that had the stream."""
    stream = machine.stream()
    x = machine.alloc(64)
    with cuda.stream(stream):
        memory = dlbridge.zeros(64, "uint8", device="cuda")
        with machine.capture(stream, mode):
            del memory
            machine.launch(stream, writes=[(x, 64)], value=7)
    machine.synchronise()
    machine.destroy_stream(stream)
    dlbridge.zeros(64, "uint8", device="cuda")


def test_streams_are_kept_account_of_after_any_number_of_captures(machine):
    """A block that ends in a capture leaves no event; there is room for so many of these."""
    captured, stream, other = (machine.stream() for _ in range(3))
    framework = Framework(machine, captured)
    x = framework.empty()
    for _ in range(300):
        with machine.capture(captured), cuda.stream(captured):
            x.write(7)
            framework.from_dlpack(dlbridge.from_dlpack(x)).free()
    with cuda.stream(stream):
        memory = dlbridge.zeros(64, "uint8", device="cuda")
    machine.synchronise()
    machine.destroy_stream(stream)
    with cuda.stream(other):
        assert memory.to("cpu").tolist() == [0] * 64

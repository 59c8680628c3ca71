"""Consumers come after producers: every value of `stream` in the standard, every kind of stream."""

from __future__ import annotations

import threading

import pytest
from cuda_peers import Framework, Interface, own_kernel
from driver_calls import LEGACY, PER_THREAD
from machine import STREAM_KINDS

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import CUDAError, ExchangeError
from dlbridge.tensor.values import READ_ONLY

# ---- the two sides of an exchange ----------------------------------------------------------------


@pytest.mark.parametrize("theirs", STREAM_KINDS)
@pytest.mark.parametrize("ours", STREAM_KINDS)
def test_work_of_dlbridge_comes_after_the_producers(machine, theirs, ours):
    producer = Framework(machine, machine.stream_of_kind(theirs))
    stream = machine.stream_of_kind(ours)
    x = producer.full(7, slow=True)
    with cuda.stream(stream):
        tensor = dlbridge.from_dlpack(x)
    result = machine.alloc(x.nbytes)
    native.cuda_begin(tensor, stream, False)
    machine.launch(stream, reads=x.range, writes=[(result, x.nbytes)])
    assert machine.host_synchronisations == 0
    assert set(machine.read_back(result, x.nbytes)) == {7}


@pytest.mark.parametrize("theirs", STREAM_KINDS)
@pytest.mark.parametrize("ours", ["legacy", "non-blocking"])
@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_a_consumers_work_comes_after_the_producers(machine, theirs, ours, consumers):
    producer = Framework(machine, machine.stream_of_kind(theirs))
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    with cuda.stream(machine.stream_of_kind(ours)):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
        result = consumer.from_dlpack(tensor).copy()
    assert machine.host_synchronisations == 0
    assert result.value() == 7


@pytest.mark.parametrize("theirs", STREAM_KINDS)
def test_without_a_stream_a_consumer_works_on_the_legacy_default_one(machine, theirs):
    """The standard: "None: producer must assume the legacy default stream"."""
    producer = Framework(machine, machine.stream_of_kind(theirs))
    consumer = Framework(machine, LEGACY)
    with cuda.stream(machine.stream()):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
        result = consumer.from_dlpack(tensor, stream=None).copy()
    assert result.value() == 7


def test_the_producer_is_told_the_stream_that_dlbridge_works_on(machine):
    producer, stream = Framework(machine, machine.stream()), machine.stream()
    x = producer.full(1)
    dlbridge.from_dlpack(x)
    with cuda.stream(stream):
        dlbridge.from_dlpack(x)
    dlbridge.from_dlpack(x, stream=PER_THREAD)
    told = [keywords["stream"] for keywords in producer.capsules]
    assert told[0] in (None, LEGACY)
    assert told[1:] == [stream, PER_THREAD]


def test_a_stream_named_in_the_call_is_the_one_that_the_tensor_is_ready_on(machine):
    producer, stream = Framework(machine, machine.stream()), machine.stream()
    tensor = dlbridge.from_dlpack(producer.full(7, slow=True), stream=stream)
    assert native.cuda_ready_stream(tensor) == stream
    result = Framework(machine, stream).from_dlpack(tensor).copy()
    assert result.value() == 7


def test_on_one_stream_nothing_needs_an_event(fake_machine):
    """Order is there already; an event would only cost."""
    stream = fake_machine.stream()
    framework = Framework(fake_machine, stream)
    x = framework.full(7, slow=True)
    with cuda.stream(stream):
        tensor = dlbridge.from_dlpack(x)
        fake_machine.reset()
        y = framework.from_dlpack(tensor)
        assert [name for name in fake_machine.actions() if "Event" in name] == []
        assert y.copy().value() == 7


# ---- values that are special ---------------------------------------------------------------------


def test_stream_0_is_refused_before_anything_happens(fake_machine):
    """It may mean either default stream: the standard does not allow it."""
    tensor = dlbridge.from_dlpack(Framework(fake_machine, fake_machine.stream()).full(1))
    fake_machine.reset()
    with pytest.raises(BufferError, match="0 is ambiguous: pass 1 or 2") as caught:
        tensor.__dlpack__(stream=0, max_version=(1, 3))
    assert isinstance(caught.value, ExchangeError)
    assert caught.value.reason == "stream"
    assert fake_machine.actions() == []


@pytest.mark.parametrize(
    ("stream", "error"),
    [
        (-2, BufferError),
        (2**64, BufferError),
        (True, TypeError),
        (1.0, TypeError),
        ("1", TypeError),
    ],
)
def test_invalid_streams_are_refused(fake_machine, stream, error):
    """A number that no stream has is a refusal, of another type a mistake of the caller."""
    tensor = dlbridge.from_dlpack(Framework(fake_machine, fake_machine.stream()).full(1))
    with pytest.raises(error, match="stream must be"):
        tensor.__dlpack__(stream=stream, max_version=(1, 3))


def test_with_stream_minus_1_nothing_is_ordered(fake_machine):
    """The consumer answers for the order itself, and one that does not has a race."""
    producer = Framework(fake_machine, fake_machine.stream())
    consumer = Framework(fake_machine, fake_machine.stream())
    with cuda.stream(producer.current):
        tensor = dlbridge.from_dlpack(producer.full(1, slow=True))
        fake_machine.reset()
        y = consumer.from_dlpack(tensor, stream=-1)
        assert fake_machine.actions() == []
        y.read()
        fake_machine.expect_fault("race")
        fake_machine.synchronise()


def test_a_consumer_that_passes_minus_1_may_order_itself(machine):
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    with cuda.stream(producer.current):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
        machine.event_order(producer.current, consumer.current)
        y = consumer.from_dlpack(tensor, stream=-1)
        assert y.copy().value() == 7


def test_a_producer_asked_for_no_order_gives_none(fake_machine):
    producer = Framework(fake_machine, fake_machine.stream())
    x = producer.full(1, slow=True)
    fake_machine.reset()
    tensor = dlbridge.from_dlpack(x, stream=-1)
    assert producer.capsules[-1]["stream"] == -1
    assert [name for name in fake_machine.actions() if "Event" in name] == []
    fake_machine.synchronise()
    del tensor


# ---- threads -------------------------------------------------------------------------------------


def test_the_per_thread_stream_is_that_of_the_thread_that_said_so(machine, in_thread):
    """Stream 2 of one thread and stream 2 of another are two streams."""
    consumer = Framework(machine, PER_THREAD)
    kept = []

    def produce():
        with cuda.stream(PER_THREAD):
            kept.append(dlbridge.from_dlpack(Framework(machine, PER_THREAD).full(7, slow=True)))

    ready, done = threading.Event(), threading.Event()

    def produce_and_stay():
        produce()
        ready.set()
        assert done.wait(60)

    thread = threading.Thread(target=produce_and_stay)
    thread.start()
    try:
        assert ready.wait(60)
        with cuda.stream(PER_THREAD):
            result = consumer.from_dlpack(kept.pop()).copy()
    finally:
        done.set()
        thread.join()
    assert result.value() == 7


def test_the_work_of_a_thread_that_ended_is_waited_for(machine, in_thread):
    """A thread that comes after it may get its place in memory, but not its stream."""
    kept = []

    def produce():
        with cuda.stream(PER_THREAD):
            kept.append(dlbridge.from_dlpack(Framework(machine, PER_THREAD).full(7, slow=True)))

    def consume():
        with cuda.stream(PER_THREAD):
            kept.append(Framework(machine, PER_THREAD).from_dlpack(kept[0]).copy())

    in_thread(produce)
    in_thread(consume)
    assert kept.pop().value() == 7
    kept.clear()


def test_the_current_stream_is_the_threads_own(machine, in_thread):
    stream = machine.stream()
    seen = []
    with cuda.stream(stream):
        in_thread(lambda: seen.append(cuda.current_stream()))
        assert cuda.current_stream() == stream
    assert seen == [LEGACY]
    assert cuda.current_stream() == LEGACY


def test_many_threads_may_take_one_tensor(machine):
    producer = Framework(machine, machine.stream())
    tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
    results, errors = [], []

    def consume(stream):
        try:
            consumer = Framework(machine, stream)
            for _ in range(5):
                consumer.from_dlpack(tensor).read()
            results.append(consumer.from_dlpack(tensor).copy())
        except BaseException as error:
            errors.append(error)

    streams = [machine.stream() for _ in range(3)] + [LEGACY, PER_THREAD]
    threads = [threading.Thread(target=consume, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert [result.value() for result in results] == [7] * 5


# ---- several consumers ---------------------------------------------------------------------------


def test_a_second_consumer_sees_what_the_first_one_wrote(machine):
    first, second = Framework(machine, machine.stream()), Framework(machine, machine.stream())
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(1))
    y = first.from_dlpack(tensor).write(7, slow=True)
    assert second.from_dlpack(tensor).copy().value() == 7
    y.free()


def test_a_second_consumer_sees_what_one_wrote_that_is_gone(machine):
    first, second = Framework(machine, machine.stream()), Framework(machine, machine.stream())
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(1))
    y = first.from_dlpack(tensor).write(7, slow=True)
    y.free()
    assert second.from_dlpack(tensor).copy().value() == 7


@pytest.mark.parametrize("is_gone", [False, True], ids=["reading", "gone"])
def test_writes_of_dlbridge_come_after_readers(machine, is_gone):
    reader, stream = Framework(machine, machine.stream()), machine.stream()
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(7))
    y = reader.from_dlpack(tensor)
    result = y.copy(slow=True)
    if is_gone:
        y.free()
    own_kernel(machine, tensor, stream, 1)
    assert result.value() == 7


def test_writes_of_dlbridge_come_after_its_reads(machine):
    reading, writing, result = machine.stream(), machine.stream(), machine.alloc(64)
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(7))
    native.cuda_begin(tensor, reading, False)
    machine.launch(reading, [(tensor.data_ptr, 64)], [(result, 64)], slow=True)
    own_kernel(machine, tensor, writing, 1)
    assert set(machine.read_back(result, 64)) == {7}


def test_writes_of_dlbridge_come_after_read_only_consumers(machine):
    reader, writing = Framework(machine, machine.stream()), machine.stream()
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(7))
    part = tensor._view(tensor.shape, tensor.strides, set_flags=READ_ONLY)
    y = reader.from_dlpack(part)
    result = y.copy(slow=True)
    y.free()
    own_kernel(machine, tensor, writing, 1)
    assert result.value() == 7


@pytest.mark.parametrize("reader", ["dlbridge", "a consumer that is gone"])
def test_who_has_waited_before_waits_for_what_came_since(machine, reader):
    """Reads count where memory is ready, and used again, on the stream of its own table."""
    producer, consumer = (Framework(machine, machine.stream()) for _ in range(2))
    tensor = dlbridge.from_dlpack(producer.make_table_type()(producer.full(7)))
    result = producer.empty()
    y = consumer.from_dlpack(tensor)
    if reader == "dlbridge":
        native.cuda_begin(tensor, producer.current, False)
        there = [(tensor.data_ptr, 64)]
        machine.launch(producer.current, there, result.range, slow=True)
    else:
        z = producer.from_dlpack(tensor)
        machine.launch(producer.current, z.range, result.range, slow=True)
        z.free()
    y = consumer.from_dlpack(tensor).write(1)
    assert result.value() == 7
    y.free()


def test_readers_do_not_wait_for_each_other(fake_machine):
    """dlbridge's own kernels say whether they write; two that read may run side by side."""
    first, second, third = (fake_machine.stream() for _ in range(3))
    with cuda.stream(first):
        tensor = dlbridge.from_dlpack(Framework(fake_machine, first).full(7))
    own_kernel(fake_machine, tensor, second, slow=True)
    fake_machine.reset()
    own_kernel(fake_machine, tensor, third)
    events = [call for call in fake_machine.calls if call.name == "cuEventRecord"]
    assert second not in [call.stream for call in events]


def test_writers_on_three_streams_come_one_after_the_other(machine):
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(0, slow=True))
    for value in (1, 2, 3):
        own_kernel(machine, tensor, machine.stream(), value, slow=True)
    assert Framework(machine, machine.stream()).from_dlpack(tensor).copy().value() == 3


# ---- the other protocols -------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_the_stream_of_a_cuda_array_interface_is_waited_for(machine, kind):
    producer = Framework(machine, machine.stream_of_kind(kind))
    x = producer.full(7, slow=True)
    with cuda.stream(machine.stream()):
        tensor = dlbridge.from_dlpack(Interface(x, producer.current))
        result = Framework(machine, machine.stream()).from_dlpack(tensor).copy()
    assert result.value() == 7


def test_a_cuda_array_interface_without_a_stream_is_there(machine):
    producer = Framework(machine, machine.stream())
    x = producer.full(7)
    machine.synchronise()
    machine.reset()
    tensor = dlbridge.from_dlpack(Interface(x, None))
    assert Framework(machine, machine.stream()).from_dlpack(tensor).copy().value() == 7


@pytest.mark.parametrize("theirs", STREAM_KINDS)
@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_the_cuda_array_interface_of_a_tensor_names_its_stream(machine, theirs, consumers):
    producer = Framework(machine, machine.stream_of_kind(theirs))
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    with cuda.stream(machine.stream()):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
    assert consumer.from_interface(tensor).copy().value() == 7


@pytest.mark.parametrize("theirs", STREAM_KINDS)
def test_a_table_tells_the_stream_of_what_comes_through_it(machine, theirs):
    """None of its functions synchronises; what the producer enqueued is on its current stream."""
    producer = Framework(machine, machine.stream_of_kind(theirs))
    kind = producer.make_table_type()
    tensor = dlbridge.from_dlpack(kind(producer.full(7, slow=True)))
    assert Framework(machine, machine.stream()).from_dlpack(tensor).copy().value() == 7


@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_exports_by_a_table_are_ready_on_the_consumers_stream(machine, consumers):
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    table = consumer.make_table_type().__dlpack_c_exchange_api__
    tensor = dlbridge.from_dlpack(Framework(machine, machine.stream()).full(7, slow=True))
    assert native.give_table(tensor, table).copy().value() == 7


# ---- devices -------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_streams_are_those_of_the_tensors_device(machine, kind):
    """Whatever device is the current one; handles 1 and 2 exist on each."""
    machine.need_devices(2)
    producer = Framework(machine, machine.stream_of_kind(kind, 1), device=1)
    consumer = Framework(machine, machine.stream_of_kind("non-blocking", 1), device=1)
    with cuda.stream(machine.stream(1), "cuda:1"):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
        with machine.driver.on(0):
            result = consumer.from_dlpack(tensor).copy()
    assert result.value() == 7


def test_the_current_stream_is_one_for_each_device(machine):
    machine.need_devices(2)
    first, second = machine.stream(0), machine.stream(1)
    with cuda.stream(first, "cuda:0"), cuda.stream(second, "cuda:1"):
        assert (cuda.current_stream("cuda:0"), cuda.current_stream("cuda:1")) == (first, second)


def test_the_context_of_the_caller_stays_the_current_one(fake_machine):
    producer = Framework(fake_machine, fake_machine.stream(1), device=1)
    with fake_machine.driver.on(0):
        before = fake_machine.driver.make("cuCtxGetCurrent")
        tensor = dlbridge.from_dlpack(producer.full(7))
        Framework(fake_machine, fake_machine.stream(1), device=1).from_dlpack(tensor)
        assert fake_machine.driver.make("cuCtxGetCurrent") == before


# ---- what the driver refuses ---------------------------------------------------------------------


@pytest.mark.parametrize("function", ["cuEventCreate", "cuEventRecord", "cuStreamWaitEvent"])
def test_a_failure_of_the_driver_is_an_exception_and_leaves_the_tensor_usable(
    fake_machine, function
):
    producer = Framework(fake_machine, fake_machine.stream())
    consumer = Framework(fake_machine, fake_machine.stream())
    with cuda.stream(fake_machine.stream()):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
        fake_machine.fail(function, 801)
        with pytest.raises(CUDAError, match=f"__dlpack__: {function}: CUDA_ERROR_NOT_SUPPORTED"):
            tensor.__dlpack__(stream=consumer.current, max_version=(1, 3))
        assert consumer.from_dlpack(tensor).copy().value() == 7

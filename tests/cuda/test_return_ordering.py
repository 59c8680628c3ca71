"""Memory goes back when no kernel can still touch it: not earlier, and without making anyone wait.

The frameworks here write over memory as soon as they have it back, as a caching allocator's next
customer does. Whatever goes back too early is a race on the fake machine, and wrong bytes on a GPU.
"""

from __future__ import annotations

import gc
import threading

import pytest
from cuda_peers import RUBBISH, Framework, Interface, own_kernel
from driver_calls import LEGACY, PER_THREAD
from machine import STREAM_KINDS
from measuring import until

import dlbridge
from dlbridge import cuda
from dlbridge._core import native


def take(producer, value=7, stream=None):
    """Return a Tensor over new memory that only the tensor keeps."""
    with cuda.stream(stream or producer.current, producer.device):
        return dlbridge.from_dlpack(producer.full(value))


# ---- a consumer that is slower than its references -----------------------------------------------


@pytest.mark.parametrize("theirs", STREAM_KINDS)
@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_memory_waits_for_the_kernels_of_a_consumer_that_is_gone(machine, theirs, consumers):
    producer = Framework(machine, machine.stream_of_kind(theirs))
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    y = consumer.from_dlpack(take(producer))
    result = y.copy(slow=True)
    y.free()
    assert machine.host_synchronisations == 0
    assert result.value() == 7


@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_memory_waits_whoever_lets_go_last(machine, consumers):
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    tensor = take(producer)
    y = consumer.from_dlpack(tensor)
    result = y.copy(slow=True)
    y.free()
    del tensor
    assert machine.host_synchronisations == 0
    assert result.value() == 7


def test_memory_is_not_kept_longer_than_its_kernels(fake_machine):
    producer = Framework(fake_machine, fake_machine.stream())
    consumer = Framework(fake_machine, fake_machine.stream())
    y = consumer.from_dlpack(take(producer)).read(slow=True)
    y.free()
    assert producer.pool.given_back == 0
    assert cuda.collect() == 1
    fake_machine.finish()
    assert cuda.collect() == 0
    assert producer.pool.given_back == 1


def test_memory_that_nothing_runs_on_goes_back_at_once(machine):
    producer = Framework(machine, machine.stream())
    tensor = take(producer)
    machine.synchronise()
    del tensor
    assert cuda.collect() == 0
    assert producer.pool.given_back == 1


def test_memory_comes_back_without_any_further_call(machine):
    """A program that only waits must not keep memory without end."""
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    y = consumer.from_dlpack(take(producer)).read(slow=True)
    y.free()
    machine.finish()
    until(lambda: producer.pool.given_back)
    assert producer.pool.given_back == 1


def test_an_exchange_gives_back_what_is_over(fake_machine):
    producer = Framework(fake_machine, fake_machine.stream())
    consumer = Framework(fake_machine, fake_machine.stream())
    y = consumer.from_dlpack(take(producer)).read(slow=True)
    y.free()
    fake_machine.finish()
    other = Framework(fake_machine, fake_machine.stream())
    consumer.from_dlpack(take(other)).free()
    assert producer.pool.given_back == 1


# ---- more than one -------------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 0, 1), (1, 2, 0)])
def test_the_slowest_of_several_consumers_counts(machine, order):
    producer = Framework(machine, machine.stream())
    tensor = take(producer)
    consumers = [Framework(machine, machine.stream()) for _ in range(3)]
    arrays = [consumer.from_dlpack(tensor) for consumer in consumers]
    results = [array.copy(slow=i == 1) for i, array in enumerate(arrays)]
    del tensor
    for i in order:
        arrays[i].free()
    assert [result.value() for result in results] == [7] * 3


def test_two_exports_to_one_stream_are_two_uses(machine):
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    tensor = take(producer)
    first, second = consumer.from_dlpack(tensor), consumer.from_dlpack(tensor)
    del tensor
    first.free()
    machine.finish()  # what the first export may have had to wait for is over
    assert cuda.collect() == 0
    assert producer.pool.given_back == 0
    result = second.copy(slow=True)
    second.free()
    assert result.value() == 7


def test_views_keep_the_memory_and_wait_with_it(machine):
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    tensor = take(producer)
    part = tensor[8:24]
    del tensor
    y = consumer.from_dlpack(part)
    del part
    result = y.copy(slow=True)
    y.free()
    assert result.value() == 7


def test_a_chain_of_frameworks_waits_through(machine):
    """A tensor that was passed on comes back the same way: each hop is ordered after the next."""
    producer = Framework(machine, machine.stream())
    hops = [Framework(machine, machine.stream()) for _ in range(3)]
    array = producer.full(7, slow=True)
    for hop in hops:
        tensor = dlbridge.from_dlpack(array)
        array = hop.from_dlpack(tensor)
        del tensor
    result = array.copy(slow=True)
    array.free()
    del array
    assert machine.host_synchronisations == 0
    assert result.value() == 7


def test_a_framework_may_get_its_own_memory_back(machine):
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    there = consumer.from_dlpack(take(producer)).write(9, slow=True)
    back = producer.from_dlpack(dlbridge.from_dlpack(there))
    there.free()
    result = back.copy(slow=True)
    back.free()
    assert result.value() == 9


def test_uses_on_many_streams_are_all_waited_for(machine):
    """A use that ends leaves the others as they are, however many there are."""
    for count in (2, 3, 4, 5, 8):
        producer = Framework(machine, machine.stream())
        tensor = take(producer)
        y = Framework(machine, machine.stream()).from_dlpack(tensor)
        results = []
        for _ in range(count - 1):
            stream, result = machine.stream(), machine.alloc(64)
            native.cuda_begin(tensor, stream, False)
            machine.launch(stream, [(tensor.data_ptr, 64)], [(result, 64)], slow=True)
            results.append(result)
        del tensor
        y.free()
        assert all(set(machine.read_back(result, 64)) == {7} for result in results)


# ---- streams that do not outlive their work ------------------------------------------------------


def test_a_consumer_may_destroy_its_stream_once_it_has_let_go(machine):
    """Its work goes on; the memory waits for an event, not for the handle."""
    stream = machine.stream()
    tensor = take(Framework(machine, machine.stream()))
    y = Framework(machine, stream).from_dlpack(tensor).write(9, slow=True)
    y.free()
    machine.destroy_stream(stream)
    result = Framework(machine, machine.stream()).from_dlpack(tensor).copy()
    own_kernel(machine, tensor, machine.stream(), 3)
    del tensor
    assert result.value() == 9


def test_a_handle_that_is_used_again_is_another_stream(machine):
    """Drivers hand out the address of a destroyed stream again; what was on the old one counts."""
    machine.reuse_handles()
    producer = Framework(machine, machine.stream())
    tensor = take(producer)
    results = []
    for _ in range(3):
        stream = machine.stream()
        consumer = Framework(machine, stream)
        out = producer.empty()
        machine.event_order(producer.current, stream)
        y = consumer.from_dlpack(tensor)
        machine.launch(stream, reads=y.range, writes=out.range, slow=True)
        y.free()
        machine.destroy_stream(stream)
        results.append(out)
    del tensor
    assert [result.value() for result in results] == [7] * 3


def test_a_handle_of_a_block_that_ended_may_be_used_again(machine):
    """The next block there is on another stream, which waits for the end of the first one."""
    machine.reuse_handles()
    stream = machine.stream()
    with cuda.stream(stream):
        tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
        own_kernel(machine, tensor, stream, 5, slow=True)
    machine.destroy_stream(stream)
    again = machine.stream()
    assert again == stream or not machine.is_fake
    with cuda.stream(again):
        copy = tensor.copy()
        own_kernel(machine, tensor, again, 6)
    machine.destroy_stream(again)
    assert set(copy.to("cpu").tolist()) == {5}
    assert set(tensor.to("cpu").tolist()) == {6}


# ---- dlbridge's own kernels ----------------------------------------------------------------------


@pytest.mark.parametrize("kind", STREAM_KINDS)
def test_memory_waits_for_kernels_of_dlbridge(machine, kind):
    producer, stream = Framework(machine, machine.stream()), machine.stream_of_kind(kind)
    tensor = take(producer)
    result = machine.alloc(64)
    native.cuda_begin(tensor, stream, False)
    machine.launch(stream, reads=[(tensor.data_ptr, 64)], writes=[(result, 64)], slow=True)
    del tensor
    assert machine.host_synchronisations == 0
    assert set(machine.read_back(result, 64)) == {7}


def test_memory_waits_for_what_dlbridge_writes(machine):
    """Rubbish of the next owner must not be overwritten by the last one's result."""
    producer = Framework(machine, machine.stream())
    tensor = take(producer)
    address = tensor.data_ptr
    own_kernel(machine, tensor, machine.stream(), 1, slow=True)
    del tensor
    machine.finish()
    cuda.collect()
    assert set(machine.read_back(address, 64)) == {RUBBISH}


def test_a_tensor_made_and_dropped_does_not_wait_for_its_producer(machine):
    """The producer orders the work that it enqueued itself."""
    producer = Framework(machine, machine.stream())
    with cuda.stream(producer.current):
        tensor = dlbridge.from_dlpack(producer.full(7, slow=True))
    del tensor
    assert producer.pool.given_back == 1


# ---- what a Python function's framework holds ----------------------------------------------------


def python_kernel(function):
    return dlbridge.wrap(
        platforms={"cuda": function}, schema="returns::python(x: u8[n])", abi="python:dlbridge"
    )


def test_memory_held_by_a_framework_until_its_kernels_are_done_is_not_waited_for(machine):
    """XLA does: the function keeps nothing, and the caller's next work comes after the kernels."""
    stream = machine.stream()
    consumer = Framework(machine, machine.stream())
    held = []

    def function(x):
        y = consumer.from_dlpack(x)
        held.append((y, y.copy(slow=True)))

    kernel = python_kernel(function)
    with cuda.stream(stream):
        tensor = dlbridge.full((64,), 7, "uint8", device="cuda:0")
        kernel(tensor)
        assert machine.host_synchronisations == 0
        own_kernel(machine, tensor, stream, 9)
    y, copy = held.pop()
    assert copy.value() == 7
    y.free()


def test_memory_held_after_the_kernels_are_done_was_kept(fake_machine):
    consumer = Framework(fake_machine, fake_machine.stream())
    held = []

    def body(x):
        held.append(consumer.from_dlpack(x).read())
        fake_machine.synchronise()

    kernel = python_kernel(body)
    tensor = dlbridge.full((64,), 7, "uint8", device="cuda:0")
    with pytest.raises(dlbridge.KernelError, match="kept 'x' alive"):
        kernel(tensor)
    held.pop().free()


# ---- threads -------------------------------------------------------------------------------------


@pytest.mark.parametrize("consumers", STREAM_KINDS)
def test_the_deleter_may_run_on_another_thread(machine, in_thread, consumers):
    """The per-thread stream meant is that of the thread that took the memory."""
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream_of_kind(consumers))
    y = consumer.from_dlpack(take(producer))
    result = y.copy(slow=True)
    in_thread(y.free)
    assert result.value() == 7


def test_the_thread_that_took_the_memory_may_be_gone(machine, in_thread):
    producer = Framework(machine, machine.stream())
    kept = []

    def consume():
        y = Framework(machine, PER_THREAD).from_dlpack(take(producer))
        kept.extend([y, y.copy(slow=True)])

    in_thread(consume)
    result = kept.pop()
    kept.pop().free()
    assert result.value() == 7


def test_threads_that_take_and_drop_leave_nothing_behind(machine):
    producers = [Framework(machine, machine.stream(), eager=False) for _ in range(2)]
    errors = []

    def churn(stream):
        try:
            consumer = Framework(machine, stream)
            for i in range(25):
                with cuda.stream(stream):
                    tensor = dlbridge.from_dlpack(producers[i % 2].full(i, slow=i % 3 == 0))
                y = consumer.from_dlpack(tensor)
                del tensor
                y.write(i + 1, slow=i % 5 == 0)
                y.free()
        except BaseException as error:
            errors.append(error)

    streams = [machine.stream(), machine.stream(), LEGACY]
    threads = [threading.Thread(target=churn, args=(stream,)) for stream in streams]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    machine.finish()
    assert errors == []
    assert cuda.collect() == 0
    assert sum(producer.pool.given_back for producer in producers) == 75


# ---- what never came to be used ------------------------------------------------------------------


def test_a_capsule_that_nobody_took_gives_the_memory_back(machine):
    producer, stream = Framework(machine, machine.stream()), machine.stream()
    tensor = take(producer)
    capsule = tensor.__dlpack__(stream=stream, max_version=(1, 3))
    del tensor, capsule
    gc.collect()
    machine.finish()
    assert cuda.collect() == 0
    assert producer.pool.given_back == 1


def test_with_minus_1_the_consumer_answers_for_the_way_back(machine):
    """It asked for no order: it has waited for its kernels when it calls the deleter."""
    producer = Framework(machine, machine.stream())
    consumer = Framework(machine, machine.stream())
    tensor = take(producer)
    machine.event_order(producer.current, consumer.current)
    y = consumer.from_dlpack(tensor, stream=-1)
    del tensor
    result = y.copy()
    machine.synchronise()
    y.free()
    assert producer.pool.given_back == 1
    assert result.value() == 7


@pytest.mark.parametrize("stream", [None, LEGACY])
def test_memory_by_the_cuda_array_interface_waits_for_consumers(machine, stream):
    producer = Framework(machine, LEGACY)
    consumer = Framework(machine, machine.stream())
    x = producer.full(7)
    machine.synchronise()
    tensor = dlbridge.from_dlpack(Interface(x, stream))
    del x
    y = consumer.from_dlpack(tensor)
    del tensor
    result = y.copy(slow=True)
    y.free()
    assert result.value() == 7


@pytest.mark.parametrize("theirs", STREAM_KINDS)
def test_memory_by_a_table_waits_for_consumers(machine, theirs):
    """A table tells where its framework works, and therefore where it uses the memory again."""
    producer = Framework(machine, machine.stream_of_kind(theirs))
    consumer = Framework(machine, machine.stream())
    tensor = dlbridge.from_dlpack(producer.make_table_type()(producer.full(7)))
    y = consumer.from_dlpack(tensor)
    del tensor
    result = y.copy(slow=True)
    y.free()
    assert machine.host_synchronisations == 0
    assert result.value() == 7


def test_memory_of_another_device_waits_there(machine):
    machine.need_devices(2)
    producer = Framework(machine, machine.stream(1), device=1)
    consumer = Framework(machine, machine.stream(1), device=1)
    y = consumer.from_dlpack(take(producer))
    result = y.copy(slow=True)
    with machine.driver.on(0):
        y.free()
        cuda.collect()
    assert result.value() == 7

"""The streams of exchanges: what callers may ask for, what producers are asked with, receipts.

Whether the order that comes of it is enough is for the scenarios beside this file.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import weakref
from pathlib import Path

import cases
import numpy as np
import pytest
from cuda_peers import Framework, Interface, own_kernel
from driver_calls import LEGACY, PER_THREAD

import dlbridge
from dlbridge import cuda, registry
from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError
from dlbridge.exchange import adapter

ROOT = Path(__file__).parents[2]
NONE = -1


class StreamObject:
    """A stream as cuda.core and those that follow it have them."""

    def __init__(self, handle):
        self.handle = handle

    def __cuda_stream__(self):
        return 0, self.handle


class StandIn(adapter.Framework):
    """An adapter for a framework with an exchange table."""

    name = module = "stand_in"

    def __init__(self, framework):
        self.framework = framework
        self.kind = framework.make_table_type()

    def import_module(self, call="convert"):
        return self

    def array_type(self):
        return self.kind

    def give(self, tensor, policy, context):
        return native.give_table(tensor, self.kind.__dlpack_c_exchange_api__, context.stream)


@pytest.fixture
def stand_in(fake_machine, monkeypatch):
    """A framework on a stream of its own, which `convert(x, "stand_in")` knows."""
    framework = Framework(fake_machine, fake_machine.stream())
    row = registry.Row("stand_in", "stand_in", (), "stand-in", "array", "to_stand_in_func")
    monkeypatch.setitem(registry._ROWS, "stand_in", row)
    monkeypatch.setitem(registry._ADAPTERS, "stand_in", StandIn(framework))
    return framework


@pytest.fixture
def producer(fake_machine):
    return Framework(fake_machine, fake_machine.stream())


def asked(producer):
    """Return the streams that the producer was asked with."""
    return [each["stream"] for each in producer.capsules]


# ---- what producers are asked with ---------------------------------------------------------------


@pytest.mark.parametrize("stream", [None, "current"])
def test_a_producer_is_asked_with_the_current_stream(fake_machine, producer, stream):
    mine = fake_machine.stream()
    dlbridge.from_dlpack(producer.full(1), stream=stream)
    with cuda.stream(mine):
        dlbridge.from_dlpack(producer.full(1), stream=stream)
    dlbridge.from_dlpack(producer.full(1), stream=stream)
    assert asked(producer) == [LEGACY, mine, LEGACY]


def test_the_current_stream_is_that_of_the_device_of_the_memory(fake_machine):
    producer = Framework(fake_machine, fake_machine.stream(1), device=1)
    with cuda.stream(fake_machine.stream(0), 0), cuda.stream(mine := fake_machine.stream(1), 1):
        x = dlbridge.from_dlpack(producer.full(1))
    assert asked(producer) == [mine]
    assert x.device == "cuda:1"


@pytest.mark.parametrize("make", [int, StreamObject, np.uint64], ids=lambda make: make.__name__)
def test_a_stream_may_be_named_by_number_or_as_an_object(fake_machine, producer, make):
    mine = fake_machine.stream()
    dlbridge.from_dlpack(producer.full(1), stream=make(mine))
    assert asked(producer) == [mine]


@pytest.mark.parametrize("stream", ["none", -1])
def test_without_an_order_nothing_is_enqueued(fake_machine, producer, stream):
    x = producer.full(1)
    fake_machine.reset()
    tensor = dlbridge.from_dlpack(x, stream=stream)
    capsule = dlbridge.to_dlpack(tensor, stream=stream)
    assert asked(producer) == [NONE]
    assert fake_machine.actions() == []
    del capsule


def test_stream_0_is_refused_before_the_producer_is_asked(producer):
    with pytest.raises(ExchangeError, match="stream 0 is ambiguous") as caught:
        dlbridge.from_dlpack(producer.full(1), stream=0)
    assert caught.value.reason == "stream"
    assert asked(producer) == []


def test_stream_0_is_refused_before_a_capsule_is_consumed(producer):
    capsule = producer.full(5).__dlpack__(stream=LEGACY, max_version=(1, 0))
    with pytest.raises(ExchangeError, match="stream 0 is ambiguous"):
        dlbridge.from_dlpack(capsule, stream=0)
    assert dlbridge.as_tensor(capsule).nbytes


@pytest.mark.parametrize("stream", ["default", 2**63, 1.5, True, object(), -(2**70), b"1"])
def test_invalid_streams_are_refused(producer, stream):
    for call in (dlbridge.from_dlpack, dlbridge.to_dlpack):
        with pytest.raises((ArgumentError, ExchangeError), match="stream"):
            call(producer.full(1), stream=stream)
    assert set(asked(producer)) <= {LEGACY}


def test_memory_of_the_host_has_no_stream():
    x = np.arange(4.0)
    with dlbridge.receipts() as log:
        dlbridge.from_dlpack(x, stream="current")
        dlbridge.from_dlpack(x, stream=7)
    assert [(each.stream, each.ordered) for each in log] == [(None, None)] * 2


@pytest.mark.parametrize("stream", ["current", "none"])
def test_a_capsule_of_the_host_may_be_asked_for_in_words(stream):
    capsule = dlbridge.to_dlpack(np.arange(4.0), stream=stream)
    assert dlbridge.as_tensor(capsule).tolist() == [0, 1, 2, 3]


def test_as_tensor_takes_a_stream(fake_machine, producer):
    """Also for a Tensor, which is returned as it is without one."""
    mine = fake_machine.stream()
    tensor = dlbridge.as_tensor(producer.full(1), stream=mine)
    assert asked(producer) == [mine]
    assert dlbridge.as_tensor(tensor) is tensor
    other = Framework(fake_machine, fake_machine.stream())
    again = dlbridge.as_tensor(tensor, stream=other.current)
    fake_machine.launch(other.current, reads=[(again.data_ptr, again.nbytes)])


# ---- conversions ---------------------------------------------------------------------------------


def test_a_conversion_asks_with_the_stream_of_the_target(producer, stand_in):
    """One event between the two, not one more in the middle."""
    y = dlbridge.convert(producer.full(3), "stand_in")
    assert asked(producer) == [stand_in.current]
    assert y.copy().value() == 3


def test_a_conversion_may_name_the_stream_of_the_target(fake_machine, producer, stand_in):
    mine = fake_machine.stream()
    y = dlbridge.convert(producer.full(3), "stand_in", stream=mine)
    assert asked(producer) == [mine]
    with stand_in.use(mine):
        assert y.copy().value() == 3


def test_a_conversion_without_an_order_leaves_it_to_the_caller(fake_machine, producer, stand_in):
    x = producer.full(3)
    fake_machine.reset()
    y = dlbridge.convert(x, "stand_in", stream="none")
    assert fake_machine.actions() == []
    stand_in.order(producer.current, stand_in.current)
    assert y.copy().value() == 3


def test_a_stream_that_is_named_waits_also_for_what_is_at_home(fake_machine, stand_in):
    """Nothing is converted, but whoever named the stream works on it next."""
    x = adapter.adapter("stand_in").kind(stand_in.full(3))
    mine = fake_machine.stream()
    with dlbridge.receipts() as log:
        assert dlbridge.convert(x, "stand_in", stream=mine) is x
        fake_machine.launch(mine, reads=x.producer.range)
        stand_in.order(mine, stand_in.current)  # x is the framework's, and so is the way back
        assert dlbridge.convert(x, "stand_in") is x
        assert dlbridge.convert(x, "stand_in", stream="none") is x
    assert [each.stream for each in log] == [mine, stand_in.current, NONE]
    assert [each.ordered for each in log] == [True, True, False]


def test_an_exchange_on_one_stream_calls_nothing_of_the_driver(fake_machine, stand_in):
    x = stand_in.make_table_type()(stand_in.full(3))
    fake_machine.reset()
    tensor = dlbridge.from_dlpack(x)
    y = dlbridge.convert(tensor, "stand_in")
    del tensor, x
    assert fake_machine.calls == []
    assert y.address
    del y  # the framework writes over it
    assert "cuLaunchKernel" in fake_machine.actions()
    assert not [name for name in fake_machine.actions() if name.startswith("cuEvent")]


def test_a_tensor_is_lent_to_its_consumer_once(fake_machine, producer):
    """A second export for the same stream finds it in order."""
    mine = fake_machine.stream()
    tensor = dlbridge.from_dlpack(producer.full(1))
    first = tensor.__dlpack__(stream=mine)
    fake_machine.reset()
    second = tensor.__dlpack__(stream=mine)
    assert fake_machine.calls == []
    del first, second


def test_the_stream_of_the_contents_waits_for_a_consumer_once(fake_machine):
    """Afterwards whoever waits for that stream has also waited for the consumer."""
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    consumer = Framework(fake_machine, fake_machine.stream())
    consumer.from_dlpack(tensor).write(5, slow=True)
    counts = []
    for _ in range(2):
        fake_machine.reset()
        capsule = tensor.__dlpack__(stream=LEGACY)
        counts.append(fake_machine.actions().count("cuStreamWaitEvent"))
        del capsule
    assert counts == [1, 0]
    other = Framework(fake_machine, fake_machine.stream())
    assert other.from_dlpack(tensor).copy().value() == 5


def test_memory_that_is_lent_for_ever_keeps_account_of_what_still_runs(fake_machine):
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    streams = [fake_machine.stream() for _ in range(3)]
    for i in range(300):
        capsule = tensor.__dlpack__(stream=streams[i % 3])
        del capsule
        fake_machine.finish()
    assert fake_machine.fake.alive("event") < 20


@pytest.mark.parametrize(("stream", "expected"), [(None, LEGACY), ("current", 0), ("none", NONE)])
def test_to_dlpack_takes_the_policies(fake_machine, producer, stream, expected):
    tensor = dlbridge.from_dlpack(producer.full(1), stream="none")
    native.cuda_set_streams(tensor, producer.current, NONE)
    mine = fake_machine.stream()
    fake_machine.reset()
    with cuda.stream(mine):
        capsule = dlbridge.to_dlpack(tensor, stream=stream)
    waits = [call.stream for call in fake_machine.calls if call.name == "cuStreamWaitEvent"]
    assert waits == ([] if expected == NONE else [expected or mine])
    del capsule


@pytest.mark.parametrize("stream", ["current", "none", LEGACY])
def test_to_dlpack_takes_a_capsule_once(producer, stream):
    capsule = producer.full(1).__dlpack__(stream=LEGACY)
    assert dlbridge.as_tensor(dlbridge.to_dlpack(capsule, stream=stream)).nbytes


# ---- receipts ------------------------------------------------------------------------------------


def test_a_receipt_says_on_which_stream_the_consumer_works(fake_machine, producer, stand_in):
    mine = fake_machine.stream()
    with dlbridge.receipts() as log:
        dlbridge.from_dlpack(producer.full(1))
        dlbridge.from_dlpack(producer.full(1), stream=mine)
        dlbridge.from_dlpack(producer.full(1), stream="none")
        dlbridge.convert(producer.full(1), "stand_in")
    assert [each.stream for each in log] == [LEGACY, mine, NONE, stand_in.current]
    assert [each.ordered for each in log] == [True, True, False, True]
    assert f"for stream {mine:#x}" in repr(log[1])
    assert "for no stream" in repr(log[2])


def test_explain_says_the_stream_and_orders_nothing_itself(fake_machine, producer, stand_in):
    tensor = dlbridge.from_dlpack(producer.full(1))
    fake_machine.reset()
    receipt = dlbridge.explain(tensor, "stand_in")
    assert (receipt.stream, receipt.ordered) == (stand_in.current, True)
    assert fake_machine.actions() == []


# ---- streams that are gone -----------------------------------------------------------------------


def test_a_stream_may_be_destroyed_at_the_end_of_its_block(fake_machine, producer):
    """Tensors of the block wait for an event from there on."""
    mine = fake_machine.stream()
    with cuda.stream(mine):
        ours = dlbridge.zeros((64,), "uint8", device="cuda:0")
        theirs = dlbridge.from_dlpack(producer.full(3))
        own_kernel(fake_machine, ours, mine, 5, slow=True)
    fake_machine.destroy_stream(mine)
    consumer = Framework(fake_machine, fake_machine.stream())
    assert consumer.from_dlpack(ours).copy().value() == 5
    assert consumer.from_dlpack(theirs).copy().value() == 3


def test_memory_of_a_block_is_freed_after_its_stream(fake_machine):
    mine = fake_machine.stream()
    with cuda.stream(mine):
        ours = dlbridge.zeros((64,), "uint8", device="cuda:0")
        own_kernel(fake_machine, ours, mine, 5, slow=True)
    fake_machine.destroy_stream(mine)
    fake_machine.reset()
    del ours
    (freed,) = (call for call in fake_machine.calls if call.name == "cuMemFreeAsync")
    assert freed.stream not in (mine, LEGACY)
    assert fake_machine.host_synchronisations == 0


def test_blocks_may_be_nested_and_come_again(fake_machine, producer):
    one, other = fake_machine.stream(), fake_machine.stream()
    for _ in range(300):
        with cuda.stream(one), cuda.stream(other):
            assert cuda.current_stream() == other
            x = dlbridge.from_dlpack(producer.full(3))
        assert cuda.current_stream() == LEGACY
    consumer = Framework(fake_machine, fake_machine.stream())
    assert consumer.from_dlpack(x).copy().value() == 3


def test_the_object_of_a_stream_lives_as_long_as_the_tensor(fake_machine, producer):
    stream = StreamObject(fake_machine.stream())
    alive = weakref.ref(stream)
    tensor = dlbridge.from_dlpack(producer.full(1), stream=stream)
    del stream
    gc.collect()
    assert alive() is not None
    del tensor
    fake_machine.finish()
    cuda.collect()
    assert alive() is None


def test_memory_whose_stream_cannot_be_asked_waits_for_the_device(fake_machine, producer):
    """Its consumer destroyed the stream too early: nobody can tell when its kernels are over."""
    mine = fake_machine.stream()
    capsule = dlbridge.from_dlpack(producer.full(1)).__dlpack__(stream=mine)
    fake_machine.fail("cuEventRecord", 400)
    del capsule
    fake_machine.finish()
    assert cuda.collect() == 1
    assert producer.pool.given_back == 0
    cuda.synchronize()
    assert producer.pool.given_back == 1


# Each of them ends all work of the process, says cuda.h.
STICKY = (226, 700, 702, 710, 714, 715, 716, 717, 718, 719, 721)
# What a call may return while kernels run on: launches that are refused, peer access, registered
# memory, a call that a host function must not make.
PASSING = (701, 703, 704, 705, 708, 709, 711, 712, 713, 720, 800)


@pytest.mark.parametrize("code", STICKY)
def test_memory_of_a_broken_device_goes_back(fake_machine, producer, code):
    """After a kernel has failed, no other one runs; every call says so."""
    mine = fake_machine.stream()
    capsule = dlbridge.from_dlpack(producer.full(1)).__dlpack__(stream=mine)
    fake_machine.fail("cuEventRecord", code)
    del capsule
    assert producer.pool.given_back == 1


@pytest.mark.parametrize("function", ["cuEventRecord", "cuEventQuery"])
@pytest.mark.parametrize("code", PASSING)
def test_memory_does_not_go_back_for_an_error_that_stops_no_kernel(
    fake_machine, producer, function, code
):
    """A deleter that a host function runs gets 800 for each of its calls, for example."""
    mine = fake_machine.stream()
    tensor = dlbridge.from_dlpack(producer.full(1))
    capsule = tensor.__dlpack__(stream=mine)
    own_kernel(fake_machine, tensor, mine, 3, slow=True)
    del tensor
    fake_machine.fail(function, code)
    del capsule
    assert producer.pool.given_back == 0
    fake_machine.finish()
    cuda.synchronize()
    assert producer.pool.given_back == 1


# ---- captures ------------------------------------------------------------------------------------


def test_captured_work_cannot_be_waited_for_outside(fake_machine):
    captured, outside = fake_machine.stream(), fake_machine.stream()
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    fake_machine.synchronise()
    with fake_machine.capture(captured):
        own_kernel(fake_machine, tensor, captured, 5)
        with pytest.raises(ExchangeError, match="captured into a CUDA graph") as caught:
            tensor.__dlpack__(stream=outside)
        capsule = tensor.__dlpack__(stream=-1)
    assert caught.value.reason == "stream"
    del capsule


def test_the_legacy_default_stream_is_left_alone_while_it_is_out_of_use(fake_machine):
    """To use it would end the capture of every blocking stream."""
    captured, outside = fake_machine.stream(blocking=True), fake_machine.stream()
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    loan = tensor.__dlpack__(stream=LEGACY)
    with fake_machine.capture(captured):
        with pytest.raises(ExchangeError, match="non-blocking") as caught:
            tensor.__dlpack__(stream=outside)
        del loan
        del tensor
    assert caught.value.reason == "stream"


@pytest.mark.parametrize("mode", [0, 1, 2], ids=["global", "thread-local", "relaxed"])
def test_memory_is_asked_after_while_others_capture(fake_machine, producer, mode):
    captured, mine = fake_machine.stream(), fake_machine.stream()
    capsule = dlbridge.from_dlpack(producer.full(1)).__dlpack__(stream=mine)
    fake_machine.finish()
    with fake_machine.capture(captured, mode):
        del capsule
        fake_machine.finish()
        assert cuda.collect() == 0


# ---- the CUDA array interface --------------------------------------------------------------------


@pytest.mark.parametrize("says", [True, False], ids=["with its stream", "without a stream"])
def test_the_interface_of_a_producer_is_waited_for(fake_machine, says):
    """One without a stream is taken to be in order with the legacy default stream."""
    stream = fake_machine.stream(blocking=not says)
    x = Framework(fake_machine, stream).full(3, slow=True)
    tensor = dlbridge.from_dlpack(Interface(x, stream if says else None))
    consumer = Framework(fake_machine, fake_machine.stream())
    y = consumer.from_dlpack(tensor).copy()
    assert y.value() == 3
    x.free()


def test_our_interface_names_the_stream_where_the_contents_are(fake_machine):
    mine = fake_machine.stream()
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    own_kernel(fake_machine, tensor, mine, 5, slow=True)
    assert tensor.__cuda_array_interface__["stream"] == mine
    consumer = Framework(fake_machine, fake_machine.stream())
    assert consumer.from_interface(tensor).copy().value() == 5


def test_our_interface_waits_for_what_consumers_wrote(fake_machine):
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    writer = Framework(fake_machine, fake_machine.stream())
    writer.from_dlpack(tensor).write(5, slow=True)
    reader = Framework(fake_machine, fake_machine.stream())
    assert reader.from_interface(tensor).copy().value() == 5


def test_memory_of_our_interface_waits_for_the_legacy_default_stream(fake_machine):
    """Its consumers do not say when they are through, and mostly work there."""
    mine = fake_machine.stream()
    with cuda.stream(mine):
        tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    consumer = Framework(fake_machine, LEGACY)
    y = consumer.from_interface(tensor).read(slow=True)
    del tensor, y


# ---- threads, processes --------------------------------------------------------------------------


def test_per_thread_streams_of_two_threads_are_two(fake_machine, producer, in_thread):
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    own_kernel(fake_machine, tensor, PER_THREAD, 5, slow=True)
    seen = []

    def read():
        there = Framework(fake_machine, PER_THREAD)
        seen.append(there.from_dlpack(tensor).copy())

    in_thread(read)
    assert seen[0].value() == 5


def run_process(code: str, fake_path: str) -> subprocess.CompletedProcess[str]:
    text = textwrap.dedent(
        """
        import sys
        sys.path[:0] = [{here!r}, {root!r}, {tests!r}]
        import os, dlbridge
        from dlbridge import cuda
        from dlbridge._core import native
        from fake_machine import FakeMachine
        from cuda_peers import Framework
        assert native.cuda_open({path!r}) is None
        machine = FakeMachine({path!r})
        producer = Framework(machine, machine.stream())
        """
    ).format(here=str(ROOT / "tests/cuda"), root=str(ROOT), tests=str(ROOT / "tests"),
             path=fake_path)  # fmt: skip
    environment = {**os.environ, "PYTHONPATH": os.environ.get("PYTHONPATH", "")}
    return subprocess.run(
        [sys.executable, "-c", text + textwrap.dedent(code)],
        capture_output=True,
        text=True,
        timeout=120,
        env=environment,
    )


def test_waiting_owners_are_released_at_the_end_of_the_process(fake_machine):
    """The frameworks that own it may have something to do with it."""
    done = run_process(
        """
        import atexit
        consumer = Framework(machine, machine.stream())
        y = consumer.from_dlpack(dlbridge.from_dlpack(producer.full(3))).read(slow=True)
        y.free()
        assert producer.pool.given_back == 0
        native.cuda_drain()
        print("given back:", producer.pool.given_back)
        """,
        fake_machine.path,
    )
    assert done.returncode == 0, done.stderr
    assert "given back: 1" in done.stdout


def test_a_forked_process_has_no_driver(fake_machine):
    """CUDA does not outlive a fork: calls are refused, and what was inherited can be dropped."""
    done = run_process(
        """
        tensor = dlbridge.from_dlpack(producer.full(3))
        kept = tensor.__dlpack__(stream=machine.stream())
        child = os.fork()
        if child == 0:
            try:
                tensor.__dlpack__(stream=1)
            except dlbridge.CUDAError as error:
                print("refused:", "spawn" in str(error))
            producer.machine.is_open = False
            del kept, tensor
            print("dropped", native.cuda_collect(), flush=True)
            os._exit(0)
        print("child", os.waitpid(child, 0)[1], flush=True)
        os._exit(0)
        """,
        fake_machine.path,
    )
    assert done.stdout.splitlines() == ["refused: True", "dropped 0", "child 0"], done.stderr


# ---- adapters ------------------------------------------------------------------------------------


class JaxArray:
    """A jax.Array on a GPU, as far as its adapter looks at one."""

    dtype = np.dtype("uint8")
    sharding = type("Sharding", (), {"device_set": frozenset((0,))})()

    def __init__(self, array):
        self.array = array

    def is_deleted(self):
        return False

    def __dlpack_device__(self):
        return self.array.__dlpack_device__()


def test_jax_is_asked_with_the_stream_of_the_consumer(fake_machine, producer, monkeypatch):
    """jaxlib takes any number for the address of a stream: -1 must not come there."""
    from dlbridge.frameworks import jax

    asked = []

    def export(x, *stream):
        asked.append(stream)
        return x.array.__dlpack__(stream=stream[0] if stream else -1)

    monkeypatch.setattr(jax, "_FUNCTIONS", [(export, None)])
    monkeypatch.setattr(jax, "_sharing", lambda x: x)
    monkeypatch.setattr(jax.Jax, "array_type", lambda self: JaxArray)
    monkeypatch.setattr(jax.Jax, "recognises", lambda self, cls: cls is JaxArray)
    monkeypatch.setattr(JaxArray, "__module__", "jax")
    mine = fake_machine.stream()
    with dlbridge.receipts() as log:
        tensor = dlbridge.from_dlpack(JaxArray(producer.full(3)), stream=mine)
        dlbridge.from_dlpack(JaxArray(producer.full(3)), stream="none")
        dlbridge.from_dlpack(JaxArray(producer.full(3)))
    assert asked == [(mine,), (), (LEGACY,)]
    assert [each.stream for each in log] == [mine, NONE, LEGACY]
    assert native.cuda_ready_stream(tensor) == mine


class JaxDevice:
    platform, local_hardware_id = "gpu", 0

    def __init__(self, stream):
        self.get_stream_for_external_ready_events = lambda: stream


def test_jax_gets_a_tensor_in_order_for_the_stream_that_it_asks_with(fake_machine, monkeypatch):
    """It lets its own streams wait for that one; another one would not do."""
    from dlbridge.exchange.context import ExchangeContext, Policy
    from dlbridge.frameworks import jax

    theirs, mine = fake_machine.stream(), fake_machine.stream()
    lent = []

    class Module:
        @staticmethod
        def local_devices():
            return [JaxDevice(theirs)]

        class dlpack:
            @staticmethod
            def from_dlpack(x):
                assert x.__dlpack_device__() == (2, 0)
                lent.append(x.__dlpack__(stream=theirs))
                return lent[-1]

    jax_adapter = jax.Jax()
    monkeypatch.setattr(jax, "_FUNCTIONS", [None])
    monkeypatch.setattr(jax, "_has_several_devices", lambda: False)
    monkeypatch.setattr(jax, "compute_stream", lambda device, index: theirs)
    monkeypatch.setattr(jax_adapter, "import_module", lambda: Module)
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    for policy in (
        Policy("to_jax"),
        Policy("to_jax", stream=mine),
        Policy("to_jax", stream="none"),
    ):
        context = ExchangeContext("", "jax", stream_of=jax_adapter.stream)
        assert context.stream_of(0) == theirs
        fake_machine.reset()
        jax_adapter.give(tensor, policy, context)
        waits = [call.stream for call in fake_machine.calls if call.name == "cuStreamWaitEvent"]
        assert set(waits) == (set() if policy.stream == NONE else {theirs})
        lent.clear()


def test_jax_without_a_stream_for_others_gets_a_tensor_in_order_for_its_kernels(
    fake_machine, monkeypatch
):
    """jax.dlpack lets UNIMPLEMENTED pass, and asks with stream=None, for which nothing waits."""
    from dlbridge.exchange.context import ExchangeContext, Policy
    from dlbridge.frameworks import jax

    computing = fake_machine.stream()
    device = JaxDevice(0)

    def fail():
        raise RuntimeError(f"{code}: no such stream of this client")

    device.get_stream_for_external_ready_events = fail

    class Module:
        @staticmethod
        def local_devices():
            return [device]

        class dlpack:
            @staticmethod
            def from_dlpack(x):
                return x.__dlpack__(stream=None)

    jax_adapter = jax.Jax()
    monkeypatch.setattr(jax, "_FUNCTIONS", [None])
    monkeypatch.setattr(jax, "_has_several_devices", lambda: False)
    monkeypatch.setattr(jax, "compute_stream", lambda device, index: computing)
    monkeypatch.setattr(jax_adapter, "import_module", lambda: Module)
    code = "UNIMPLEMENTED"
    assert jax_adapter.stream(0) == computing
    tensor = dlbridge.zeros((64,), "uint8", device="cuda:0")
    context = ExchangeContext("", "jax", stream_of=jax_adapter.stream)
    fake_machine.reset()
    given = jax_adapter.give(tensor, Policy("to_jax"), context)
    waits = [call.stream for call in fake_machine.calls if call.name == "cuStreamWaitEvent"]
    assert waits == [computing]
    assert context.stream == computing
    del given
    code = "INTERNAL"
    with pytest.raises(RuntimeError, match="INTERNAL"):
        jax_adapter.stream(0)


def test_tvm_is_known_by_its_current_stream(fake_machine, monkeypatch):
    """It ignores the stream that it is asked with."""
    tvm_ffi = pytest.importorskip("tvm_ffi")
    producer = Framework(fake_machine, fake_machine.stream())
    x = tvm_ffi.from_dlpack(producer.full(3).__dlpack__(stream=-1))
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda:0"), producer.current):
        tensor = dlbridge.from_dlpack(x)
        assert native.cuda_ready_stream(tensor) == producer.current
        fake_machine.reset()
        y = dlbridge.convert(tensor, "tvm")
        assert fake_machine.actions() == []
    assert adapter.adapter("tvm").stream(0) == LEGACY
    mine = fake_machine.stream()
    with dlbridge.receipts() as log:
        z = dlbridge.convert(tensor, "tvm", stream=mine)
    assert log[0].stream == mine
    del x, y, z


@pytest.fixture(scope="module")
def directory(tmp_path_factory):
    return tmp_path_factory.mktemp("stand_in")


@pytest.mark.parametrize("name", cases.names("exchange_cases.py"))
def test_with_the_stand_in_for_cupy(name, directory):
    cases.check("exchange_cases.py", name, directory)


# ---- batches that a thread converts ahead --------------------------------------------------------


@pytest.mark.parametrize("fresh", [True, None])
def test_batches_of_a_stream_are_complete_on_any_stream(machine, fresh):
    """The thread that converts them has a current stream of its own, which nobody else knows."""
    producer = Framework(machine, machine.stream())
    batches = ({"x": producer.full(value, slow=True)} for value in range(1, 4))
    with dlbridge.stream(batches, "dlbridge", prefetch=1, fresh=fresh) as ahead:
        for value, batch in enumerate(ahead, 1):
            own = machine.stream()
            machine.launch(own, reads=[(batch["x"].data_ptr, 64)])
            assert machine.read_back(batch["x"].data_ptr, 64) == bytes([value]) * 64
            machine.synchronise()
            del batch


def test_device_memory_that_is_written_again_is_copied_before(machine):
    producer = Framework(machine, machine.stream())

    def make():
        buffer = producer.empty()
        for value in range(1, 5):
            yield [buffer.write(value, slow=True)]

    with dlbridge.stream(make(), "dlbridge", prefetch=3) as ahead:
        made = list(ahead)
    machine.synchronise()
    found = [machine.read_back(batch[0].data_ptr, 64) for batch in made]
    assert found == [bytes([value]) * 64 for value in range(1, 5)]

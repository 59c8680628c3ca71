"""CUDA tensors between processes: the memory stays where it is, the order is kept."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest

import dlbridge
from dlbridge import cuda, from_dlpack, to_numpy

pytestmark = pytest.mark.gpu

LENGTH = 1 << 16


def add_one(inbox, outbox):
    """Runs in the other process: take a tensor, say what is in it, write to it."""
    tensor = inbox.get(timeout=60)
    values = to_numpy(tensor.to("cpu"))
    outbox.put((str(tensor.device), float(values.min()), float(values.max())))
    tensor[...] = from_dlpack(values + 1).to("cuda:0")
    cuda.synchronize()
    outbox.put("written")
    inbox.get(timeout=60)
    del tensor
    cuda.collect()
    outbox.put("gone")


@pytest.fixture
def other():
    """Return two queues of a process that runs `add_one`."""
    context = multiprocessing.get_context("spawn")
    inbox, outbox = context.Queue(), context.Queue()
    process = context.Process(target=add_one, args=(inbox, outbox), daemon=True)
    process.start()
    yield inbox, outbox
    process.join(10)
    process.kill()


def exchange(tensor, other, value, *, is_shared):
    """Send a tensor, check what the other process sees, and who sees what it wrote.

    Memory of the driver's pools, as dlbridge's own, has no handle: the other process has a copy.
    """
    inbox, outbox = other
    inbox.put(tensor)
    assert outbox.get(timeout=60) == ("cuda:0", value, value)
    assert outbox.get(timeout=60) == "written"
    assert set(to_numpy(tensor.to("cpu")).tolist()) == {value + is_shared}
    inbox.put("done")
    assert outbox.get(timeout=60) == "gone"


def test_the_other_process_gets_what_is_in_the_memory(other):
    tensor = from_dlpack(np.full(LENGTH, 5, np.float32)).to("cuda:0")
    exchange(tensor, other, 5.0, is_shared=False)


def test_work_that_is_still_enqueued_comes_first(other, machine):
    tensor = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    stream = machine.stream()
    cuda.synchronize()
    with cuda.stream(stream):
        machine.launch(stream, slow=True)
        tensor[...] = from_dlpack(np.full(LENGTH, 9, np.uint8)).to("cuda:0")
        exchange(tensor, other, 9.0, is_shared=False)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_memory_of_a_framework_can_be_sent(name, other, load):
    framework = load(name)
    x = framework.put(np.full(LENGTH, 3, np.float32))
    exchange(from_dlpack(x), other, 3.0, is_shared=True)
    framework.settle()


def test_a_pickle_may_be_read_in_the_same_process():
    tensor = from_dlpack(np.arange(10, dtype=np.float32)).to("cuda:0")
    again = pickle.loads(pickle.dumps(tensor))
    assert again.device == "cuda:0"
    assert to_numpy(again.to("cpu")).tolist() == list(range(10))

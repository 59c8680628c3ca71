"""Streams of real frameworks: what one enqueued late is what the other reads; nobody waits."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from gpu_frameworks import WITH_STREAMS

import dlbridge
from dlbridge import convert, cuda, from_dlpack, receipts, to_cupy, to_torch

pytestmark = pytest.mark.gpu

LENGTH = 1 << 16
OWNERS = tuple(name for name in WITH_STREAMS if name != "dlbridge")  # they can add
PAIRS = list(itertools.product(OWNERS, repeat=2))


def ones() -> np.ndarray:
    return np.ones(LENGTH, np.float32)


@pytest.mark.parametrize(("source", "target"), PAIRS)
def test_a_consumer_on_its_own_stream_sees_what_was_enqueued_before(source, target, load, machine):
    """The addition waits behind a slow kernel; without an event the consumer would read 1.

    The slow kernel still runs when everything is enqueued: no call of either framework has waited.
    """
    ours, theirs = load(source), load(target)
    x = ours.add(ours.put(ones()), 0)  # kernels are loaded at their first use
    theirs.add(convert(x, target), 0)
    ours.settle()
    first, second = ours.stream(), theirs.stream()
    waits = machine.host_synchronisations
    with ours.on(first):
        machine.launch(ours.handle(first), slow=True)
        x = ours.add(x, 41)
    with theirs.on(second):
        with receipts() as log:
            y = convert(from_dlpack(x, stream=ours.handle(first)), target)
        z = theirs.add(y, 1)
    assert not machine.is_through(ours.handle(first)), "the host has waited for the producer"
    assert machine.host_synchronisations == waits
    assert log[-1].ordered
    ours.settle()
    assert theirs.get(z).tolist() == [43.0] * LENGTH


@pytest.mark.parametrize(("source", "target"), [pair for pair in PAIRS if len({*pair}) == 2])
def test_memory_is_used_again_only_after_the_consumers_kernels(source, target, load, machine):
    """Caching allocators hand memory out again as soon as the last reference is gone."""
    ours, theirs = load(source), load(target)
    first, second = ours.stream(), theirs.stream()
    with ours.on(first):
        x = ours.put(ones())
    with theirs.on(second):
        total = theirs.put(ones() * 0)
        total += convert(x, target)  # compiles what is compiled at first use
        total = theirs.put(ones() * 0)
    ours.settle()
    with theirs.on(second):
        y = convert(x, target)
        machine.launch(theirs.handle(second), slow=True)
        total += y
    del x, y
    assert not machine.is_through(theirs.handle(second)), "the host has waited for the consumer"
    with ours.on(first):
        others = [ours.put(ones() * 7) for _ in range(4)]
    ours.settle()
    cuda.collect()
    assert theirs.get(total).tolist() == [1.0] * LENGTH
    assert ours.get(others[0]).tolist() == [7.0] * LENGTH


@pytest.mark.parametrize("name", OWNERS)
def test_dlbridge_takes_from_the_stream_that_works_on_a_tensor(name, load, machine):
    framework = load(name)
    x = framework.add(framework.put(ones()), 0)
    framework.settle()
    stream, other = framework.stream(), framework.stream()
    with framework.on(stream):
        machine.launch(framework.handle(stream), slow=True)
        x = framework.add(x, 1)
        with cuda.stream(framework.handle(other)):
            copy = from_dlpack(x).copy()
        assert not machine.is_through(framework.handle(stream))
    assert dlbridge.to_numpy(copy.to("cpu")).tolist() == [2.0] * LENGTH


@pytest.mark.parametrize("name", OWNERS)
def test_none_means_no_order_and_the_receipt_says_so(name, load, machine):
    framework = load(name)
    x = framework.put(ones())
    framework.settle()
    with receipts() as log:
        from_dlpack(x, stream="none")
        from_dlpack(x, stream=-1)
    assert [receipt.ordered for receipt in log] == [False, False]


def test_the_per_thread_default_stream_is_one_for_each_thread(load, machine):
    cupy = load("cupy")
    found: list[list[float]] = []
    kept = []  # what one thread frees must not be what another one gets

    def work(number: int) -> None:
        with cupy.root.cuda.Stream.ptds:
            x = cupy.put(ones() * number)
            kept.append(x)
            machine.launch(2, slow=True)
            x += 1
            tensor = from_dlpack(x, stream=2)
            with cuda.stream(2):
                found.append(dlbridge.to_numpy(tensor.to("cpu"))[:2].tolist())

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(found) == [[number + 1.0] * 2 for number in range(4)]


def test_a_long_chain_between_two_frameworks_stays_in_order(load, machine):
    torch, cupy = load("torch"), load("cupy")
    x = torch.put(ones())
    torch.settle()
    first, second = torch.stream(), cupy.stream()
    for _ in range(50):
        with torch.on(first), cupy.on(second):
            y = to_cupy(torch.add(x, 1))
            y += 1
            x = to_torch(y)
    with torch.on(first):  # on which it is ready: torch's default stream does not wait for it
        got = torch.get(x)
    assert got.tolist() == [101.0] * LENGTH

"""CUDA tensors pickled from one process to another: the memory stays as long as it is needed."""

from __future__ import annotations

import ast
import gc
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import cuda, from_dlpack
from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError
from dlbridge.tensor.pickling import rebuild_cuda

RECEIVER = """
import os, pickle, sys
import dlbridge
from dlbridge import cuda
from fake_driver import FakeDriver

driver = FakeDriver(os.environ["DLBRIDGE_CUDA_DRIVER"])
driver.fake_set_devices(2, 1)
held = []

def take(data):
    held.append(pickle.loads(bytes.fromhex(data)))
    tensor = held[-1]
    return str(tensor.device), tensor.shape, dlbridge.to_numpy(tensor.to("cpu")).tolist()

def write(value):
    held[-1][...] = dlbridge.full(held[-1].shape, float(value), held[-1].dtype)
    cuda.synchronize()

def drop(_):
    held.clear()
    cuda.synchronize()
    return cuda.collect()

for line in sys.stdin:
    name, _, data = line.strip().partition(" ")
    try:
        print(repr(globals()[name](data)), flush=True)
    except Exception as error:
        print(repr(f"{type(error).__name__}: {error}"), flush=True)
assert driver.faults == [], driver.faults
"""

Ask = Callable[..., Any]


@pytest.fixture
def receiver(fake_machine: Any) -> Iterator[Callable[[], Ask]]:
    """Return a function that starts a process, which does what it is asked by name."""
    here = Path(__file__).resolve().parent
    path = os.pathsep.join([str(here.parents[1]), str(here), os.environ.get("PYTHONPATH", "")])
    environment = {**os.environ, "PYTHONPATH": path, "DLBRIDGE_CUDA_DRIVER": fake_machine.path}
    started: list[subprocess.Popen[str]] = []

    def start() -> Ask:
        command = [sys.executable, "-c", RECEIVER]
        pipe = subprocess.PIPE
        process = subprocess.Popen(command, env=environment, stdin=pipe, stdout=pipe, text=True)
        started.append(process)

        def ask(name: str, data: object = "") -> Any:
            if name == "die":
                process.kill()
                return process.wait()
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{name} {data}\n")
            process.stdin.flush()
            return ast.literal_eval(process.stdout.readline() or "'the process has ended'")

        return ask

    yield start
    for process in started:
        assert process.stdin is not None
        process.stdin.close()
        assert process.wait(60) in (0, -9)
        assert process.stdout is not None
        process.stdout.close()


def plain(machine: Any, values: object) -> tuple[Any, int]:
    """Return a tensor over memory that has a handle, and the memory's address."""
    array = np.asarray(values, np.float32)
    address = machine.alloc(array.nbytes)
    tensor: Any = native.take_object((), address, array.shape, None, (2, 32, 1), (2, 0))
    tensor[...] = from_dlpack(array)
    return tensor, address


def give_back(machine: Any, address: int) -> None:
    cuda.synchronize()
    cuda.collect()
    machine.free(address)


def sent(tensor: object, protocol: int = 5) -> str:
    return pickle.dumps(tensor, protocol).hex()


def read(tensor: Any) -> Any:
    return dlbridge.to_numpy(tensor.to("cpu")).tolist()


def test_the_receiver_has_the_same_memory(fake_machine: Any, receiver: Callable[[], Ask]) -> None:
    ask = receiver()
    tensor, address = plain(fake_machine, [[1, 2, 3], [4, 5, 6]])
    assert ask("take", sent(tensor)) == ("cuda:0", (2, 3), [[1, 2, 3], [4, 5, 6]])
    ask("write", 7)
    assert read(tensor) == [[7] * 3] * 2
    assert ask("drop") == 0
    del tensor
    give_back(fake_machine, address)


def test_views_are_sent_as_they_lie(fake_machine: Any, receiver: Callable[[], Ask]) -> None:
    ask = receiver()
    tensor, address = plain(fake_machine, np.arange(12).reshape(3, 4))
    view = tensor[1:, ::2].T
    assert ask("take", sent(view)) == ("cuda:0", (2, 2), [[4, 8], [6, 10]])
    ask("write", 0)
    assert read(tensor) == [[0, 1, 2, 3], [0, 5, 0, 7], [0, 9, 0, 11]]
    assert ask("drop") == 0
    del tensor, view
    give_back(fake_machine, address)


@pytest.mark.parametrize("device", ["cuda:0", "cuda_managed"])
def test_memory_without_a_handle_is_copied(
    fake_machine: Any, receiver: Callable[[], Ask], device: str
) -> None:
    """The driver's pools, which dlbridge's own memory is from, have none."""
    ask = receiver()
    tensor = dlbridge.full((4,), 3.0, "float32", device=device)
    assert ask("take", sent(tensor)) == ("cuda:0", (4,), [3.0] * 4)
    ask("write", 8)
    assert read(tensor) == [3.0] * 4
    assert ask("drop") == 0
    cuda.synchronize()
    del tensor
    cuda.collect()


def test_the_receiver_waits_for_work_that_is_enqueued(
    fake_machine: Any, receiver: Callable[[], Ask]
) -> None:
    """It is in order without any host waiting: `check` of both processes would say so."""
    ask = receiver()
    tensor, address = plain(fake_machine, [1, 2])
    cuda.synchronize()
    stream = fake_machine.stream()
    with cuda.stream(stream):
        tensor[...] = dlbridge.full((2,), 5.0, "float32", device="cuda:0")
        before = fake_machine.host_synchronisations
        data = sent(tensor)
        assert fake_machine.host_synchronisations == before
    assert ask("take", data)[2] == [5.0, 5.0]
    assert ask("drop") == 0
    del tensor
    give_back(fake_machine, address)


def test_the_sender_keeps_the_memory_until_the_receiver_lets_go(
    fake_machine: Any, receiver: Callable[[], Ask]
) -> None:
    ask = receiver()
    before = native.live()["buffers"]
    tensor, address = plain(fake_machine, [1, 2])
    data = sent(tensor)
    del tensor
    cuda.collect()
    assert native.live()["buffers"] > before, "nobody has taken it yet"
    assert ask("take", data)[2] == [1, 2]
    cuda.collect()
    assert native.live()["buffers"] > before, "the receiver has it"
    ask("drop")
    give_back(fake_machine, address)
    assert native.live()["buffers"] == before


def test_a_receiver_that_dies_has_let_go(fake_machine: Any, receiver: Callable[[], Ask]) -> None:
    ask = receiver()
    before = native.live()["buffers"]
    tensor = dlbridge.full((4,), 3.0, "float32", device="cuda:0")
    ask("take", sent(tensor))
    ask("die")
    del tensor
    cuda.synchronize()
    cuda.collect()
    assert native.live()["buffers"] == before


def test_two_receivers_of_one_pickle(fake_machine: Any, receiver: Callable[[], Ask]) -> None:
    one, two = receiver(), receiver()
    tensor = dlbridge.full((2,), 3.0, "float32", device="cuda:0")
    data = sent(tensor)
    del tensor
    assert one("take", data)[2] == [3, 3]
    assert one("take", data)[2] == [3, 3]
    assert two("take", data)[2] == [3, 3]
    one("drop")
    cuda.collect()
    assert two("write", 4) is None
    two("drop")
    cuda.synchronize()
    cuda.collect()
    assert "it was taken and given back before; pickle it again" in two("take", data)


def test_pickled_in_the_same_process_it_is_the_same_memory(fake_machine: Any) -> None:
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        tensor, address = plain(fake_machine, [[1, 2], [3, 4]])
        again = pickle.loads(pickle.dumps(tensor.T, protocol))
        assert again.data_ptr == tensor.data_ptr
        assert read(again) == [[1, 3], [2, 4]]
        del tensor
        cuda.collect()
        assert read(again) == [[1, 3], [2, 4]]
        del again
        gc.collect()
        give_back(fake_machine, address)


def test_what_a_tensor_is_stays(fake_machine: Any) -> None:
    empty = dlbridge.empty((0, 3), "int16", device="cuda:1")
    again = pickle.loads(pickle.dumps(empty))
    assert (again.shape, again.dtype, again.device) == (empty.shape, empty.dtype, empty.device)
    readonly = dlbridge.full((2,), 1, "uint8", device="cuda:0").broadcast_to((3, 2))
    assert pickle.loads(pickle.dumps(readonly)).readonly
    del readonly
    cuda.synchronize()
    cuda.collect()


def test_a_stream_that_is_captured_cannot_send(fake_machine: Any) -> None:
    """Another process cannot wait for work of a graph."""
    tensor = dlbridge.full((2,), 1.0, "float32", device="cuda:0")
    stream = fake_machine.stream()
    cuda.synchronize()
    refusal = pytest.raises(ExchangeError, match="pickle after the capture")
    with fake_machine.capture(stream), cuda.stream(stream), refusal as refused:
        pickle.dumps(tensor)
    assert refused.value.reason == "stream"


def test_a_sender_that_has_ended_is_named(fake_machine: Any) -> None:
    ticket = ((2**22 + 1, 5, 3, 0), b"\0" * 16, b"\0" * 64, b"\0" * 64, 0, 64)
    with pytest.raises(ExchangeError, match=r"process 4194305 .*has ended") as refused:
        rebuild_cuda(dlbridge.Tensor, ticket, 0, (4,), (1,), (2, 32, 1), 0)
    assert refused.value.reason == "device"


@pytest.mark.parametrize(
    "change",
    [
        {"ticket": ()},
        {"ticket": (1, 2)},
        {"shape": (-1,)},
        {"shape": (17,)},
        {"strides": (8,)},
        {"strides": (1, 1)},
        {"strides": (-1,)},
        {"dtype": (2, 32)},
        {"flags": 2},
    ],
)
def test_a_pickle_that_does_not_agree_is_refused(change: dict[str, object]) -> None:
    ticket = ((1, 5, 3, 0), b"\0" * 16, b"\0" * 64, b"\0" * 64, 0, 64)
    good: dict[str, Any] = {"ticket": ticket, "device": 0, "shape": (4,), "strides": (1,)}
    good |= {"dtype": (2, 32, 1), "flags": 0}
    with pytest.raises(ArgumentError, match="unpickling"):
        rebuild_cuda(dlbridge.Tensor, **good | change)

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
from dlbridge.cuda import ipc
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


def let_go_of_all() -> None:
    """Give back what nobody uses: events that the first look records may be pending at once."""
    for _ in range(2):
        cuda.synchronize()
        cuda.collect()


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
    before = native.live()["references"]
    tensor, address = plain(fake_machine, [1, 2])
    data = sent(tensor)
    del tensor
    cuda.collect()
    assert native.live()["references"] > before, "nobody has taken it yet"
    assert ask("take", data)[2] == [1, 2]
    cuda.collect()
    assert native.live()["references"] > before, "the receiver has it"
    ask("drop")
    give_back(fake_machine, address)
    assert native.live()["references"] == before


def test_a_receiver_that_dies_has_let_go(fake_machine: Any, receiver: Callable[[], Ask]) -> None:
    ask = receiver()
    before = native.live()["buffers"]
    tensor = dlbridge.full((4,), 3.0, "float32", device="cuda:0")
    ask("take", sent(tensor))
    ask("die")
    del tensor
    let_go_of_all()
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


def test_shape_dtype_and_device_survive_a_pickle(fake_machine: Any) -> None:
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


# ---- tickets that were made up ----

HOLDER = """
import fcntl, os, sys
file, row = map(int, sys.argv[1:])
opened = os.open(f"/proc/{os.getppid()}/fd/{file}", os.O_RDWR)
fcntl.lockf(opened, fcntl.LOCK_EX, 1, row)
print("locked", flush=True)
sys.stdin.read()
"""


def arguments_of(tensor: object) -> tuple[Any, ...]:
    """Return what a pickle calls `rebuild_cuda` with."""
    function, arguments = tensor.__reduce_ex__(5)[:2]  # type: ignore[misc]
    assert function is rebuild_cuda
    return arguments


def repickled(arguments: tuple[Any, ...]) -> str:
    """Return a pickle of a tensor that says this."""

    class Forged:
        def __reduce__(self) -> Any:
            return rebuild_cuda, arguments

    return pickle.dumps(Forged()).hex()


def with_ticket(arguments: tuple[Any, ...], **changes: Any) -> tuple[Any, ...]:
    ticket = tuple(ipc.Ticket(*arguments[1])._replace(**changes))
    return (arguments[0], ticket, *arguments[2:])


@pytest.mark.parametrize(
    "change",
    [
        {"origin": ("self/root/tmp", 0, "../ledger", 0)},
        {"origin": ("1", 0, 3, 0)},
        {"origin": (1, 0, True, 0)},
        {"origin": (1, 0, -1, 0)},
        {"origin": (1, 0, 3, 2**63)},
        {"origin": (1, 0, 3)},
        {"origin": 5},
        {"device": b""},
        {"memory": b"\0" * 63},
        {"memory": bytearray(64)},
        {"event": b"\0" * 8},
        {"offset": -8},
        {"offset": 2**70},
        {"offset": 0.0},
        {"nbytes": 2**70},
        {"nbytes": "64"},
    ],
)
def test_no_ticket_is_refused_before_anything_is_opened(change: dict[str, Any]) -> None:
    given = ipc.Ticket((1, 5, 3, 0), b"\0" * 16, b"\0" * 64, b"\0" * 64, 0, 64)
    with pytest.raises(ArgumentError, match="no ticket of CUDA memory"):
        rebuild_cuda(dlbridge.Tensor, tuple(given._replace(**change)), 0, (4,), (1,), (2, 32, 1), 0)


@pytest.mark.parametrize("dims", [{"shape": (2**63, 0)}, {"strides": (2**63, 1)}, {"shape": (0,)}])
def test_dims_beyond_64_bits_are_refused(dims: dict[str, Any]) -> None:
    given = {"shape": (0, 1), "strides": (1, 1)} | dims
    with pytest.raises(ArgumentError, match="do not agree"):
        rebuild_cuda(dlbridge.Tensor, (), 0, dtype=(2, 32, 1), flags=0, **given)


def test_no_file_of_another_process_is_opened_but_its_ledger(
    fake_machine: Any, tmp_path: Path
) -> None:
    """Any number may stand in a ticket; that file was opened for writing, and written."""
    target = tmp_path / "target"
    target.write_bytes(b"\0" * 16)
    with target.open("r+b") as file:
        born = ipc._born(os.getpid())
        for number in (file.fileno(), os.memfd_create("other"), os.pipe()[0]):
            origin = ipc._Origin(os.getpid(), born, number, 3)
            with pytest.raises(ExchangeError, match="no such ledger"):
                ipc._Neighbour(origin)
            if number != file.fileno():
                os.close(number)
    assert target.read_bytes() == b"\0" * 16


def test_a_ledger_of_another_user_is_not_opened(monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = ipc._Ledger()
    origin = ipc._Origin(os.getpid(), ledger._born, ledger._file, 0)
    assert ipc._Neighbour(origin)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    with pytest.raises(ExchangeError, match="no such ledger"):
        ipc._Neighbour(origin)
    os.close(ledger._file)


def test_more_than_the_allocation_has_is_refused(
    fake_machine: Any, receiver: Callable[[], Ask]
) -> None:
    """Whatever the ticket says of it: here and in another process, the driver is asked."""
    ask = receiver()
    tensor, address = plain(fake_machine, [1, 2, 3, 4])
    cls, ticket, device, _, _, dtype, flags = arguments_of(tensor)
    for changes, shape, strides in [
        ({"nbytes": 2**40}, (2**20,), (1,)),
        ({"nbytes": 2**40}, (2,), (2**30,)),
        ({"nbytes": 2**40, "offset": 2**30}, (1,), (1,)),
        ({"nbytes": 2**62, "offset": 2**61}, (4,), (-1,)),
    ]:
        arguments = (cls, ticket, device, shape, strides, dtype, flags)
        forged = repickled(with_ticket(arguments, **changes))
        assert "ArgumentError: unpickling: the elements lie in bytes" in ask("take", forged)
        if "offset" not in changes:  # the memory here is known without it
            with pytest.raises(ArgumentError, match="the elements lie in bytes"):
                pickle.loads(bytes.fromhex(forged))
    assert ask("drop") == 0
    del tensor, arguments, ticket
    give_back(fake_machine, address)


def test_a_read_only_tensor_stays_read_only_whatever_the_pickle_says(fake_machine: Any) -> None:
    tensor, address = plain(fake_machine, [1, 2, 3, 4])
    view = tensor._view((4,), (1,), set_flags=1)
    arguments = arguments_of(view)
    assert rebuild_cuda(*arguments[:-1], 0).readonly
    del tensor, view, arguments
    gc.collect()
    give_back(fake_machine, address)


def test_a_byte_that_somebody_has_locked_is_waited_for_but_not_for_good(
    fake_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ipc, "_PATIENCE", 0.05)
    ledger = ipc._Ledger()
    os.pwrite(ledger._file, b"\0", 7)
    command = [sys.executable, "-c", HOLDER, str(ledger._file), "7"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        origin = ipc._Origin(os.getpid(), ledger._born, ledger._file, 7)
        with pytest.raises(ExchangeError, match=r"locked it for 0\.05 seconds"):
            ipc._Neighbour(origin).take(origin)
        process.communicate("")
    ipc._Neighbour(origin).take(origin)()
    os.close(ledger._file)

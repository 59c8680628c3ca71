"""Who gives CUDA memory, and to whom and when it goes back."""

from __future__ import annotations

import ctypes
import types

import pytest

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    CUDAError,
    ExchangeError,
    FrameworkMissingError,
)
from dlbridge.frameworks.torch import TorchAllocator
from dlbridge.tensor.allocator import CUDAAllocator


@pytest.fixture(autouse=True)
def driver_again():
    yield
    for device in ("cuda", "cuda:1", "cuda_host", "cuda_managed"):
        dlbridge.set_allocator(device, None)


class Arena(dlbridge.Allocator):
    """Memory of the machine, which is seen to go back when the kernels are over."""

    def __init__(self, machine):
        super().__init__("arena")
        self.machine = machine
        self.given_back = []

    def allocate(self, nbytes, alignment):
        return self.machine.alloc(nbytes)

    def deallocate(self, address, nbytes):
        self.given_back.append(address)
        self.machine.free(address)


class OutOfMemoryError(RuntimeError):
    """As torch has it."""


def torch_over(machine, given_back, fails=False):
    """Return as much of torch as its allocator takes."""

    def alloc(nbytes, device, stream):
        if fails:
            raise OutOfMemoryError("CUDA out of memory")
        address = machine.alloc(nbytes, device)
        streams.append(stream)
        return address

    def delete(address):
        given_back.append(address)
        machine.free(address)

    streams = []
    names = {"caching_allocator_alloc": alloc, "caching_allocator_delete": delete}
    return types.SimpleNamespace(cuda=types.SimpleNamespace(**names), streams=streams)


# ---- the driver's pool ---------------------------------------------------------------------------


def test_memory_is_allocated_and_freed_in_the_order_of_the_current_stream(fake_machine):
    stream = fake_machine.stream()
    with cuda.stream(stream):
        cuda.memory_info()
        dlbridge.empty((3,), "int8", device="cuda")
        fake_machine.reset()
        tensor = dlbridge.empty((3,), "int8", device="cuda")
        del tensor
    assert [(call.name, call.stream) for call in fake_machine.calls if "Async" in call.name] == [
        ("cuMemAllocAsync", stream),
        ("cuMemFreeAsync", stream),
    ]
    assert fake_machine.host_synchronisations == 0


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda_host", "cuda_managed:1"])
def test_statistics_and_kinds(machine, device):
    machine.need_place(device)
    pair = dlbridge.Device(device).pair
    before = CUDAAllocator().statistics(pair)
    tensor = dlbridge.empty((5, 3), "float32", device=device)
    view = tensor[1:]
    after = CUDAAllocator().statistics(pair)
    assert after.bytes_in_use - before.bytes_in_use == 60
    assert after.total - before.total == 1
    assert tensor.data_ptr % 256 == 0
    assert tensor.buffer.kind == "allocator"
    assert tensor.device == device
    del tensor
    assert CUDAAllocator().statistics(pair).count == before.count + 1
    del view
    assert CUDAAllocator().statistics(pair).count == before.count


def test_tensors_without_elements_take_no_memory(fake_machine):
    fake_machine.reset()
    tensor = dlbridge.empty((0, 3), "float32", device="cuda")
    assert tensor.to("cpu").tolist() == []
    assert tensor.copy().shape == (0, 3)
    assert not [call for call in fake_machine.calls if call.name.startswith("cuMem")]


@pytest.mark.parametrize("device", ["cuda_host", "cuda_managed"])
def test_pinned_and_managed_blocks_are_used_again(fake_machine, device):
    """To get and to free one stops the device."""
    first = dlbridge.empty((1000,), "int8", device=device)
    address = first.data_ptr
    del first
    fake_machine.reset()
    again = dlbridge.empty((4000,), "int8", device=device)
    assert again.data_ptr == address
    assert not fake_machine.actions()
    del again
    cuda.trim()
    assert {"cuda_host": "cuMemFreeHost", "cuda_managed": "cuMemFree"}[device] in [
        call.name.removesuffix("_v2") for call in fake_machine.calls
    ]


@pytest.mark.parametrize("function", ["cuMemAllocAsync", "cuMemHostAlloc", "cuMemAllocManaged"])
def test_when_memory_runs_out_what_is_kept_is_freed_and_asked_once_more(fake_machine, function):
    device = {"cuMemAllocAsync": "cuda", "cuMemHostAlloc": "cuda_host"}.get(
        function, "cuda_managed"
    )
    dlbridge.empty((1 << 20,), "int8", device="cuda_host")
    dlbridge.empty((3,), "int8", device="cuda")
    fake_machine.reset()
    fake_machine.fail(function, 2)
    tensor = dlbridge.empty((1 << 22,), "int8", device=device)
    names = [call.name for call in fake_machine.calls]
    assert names.count(function) == 2
    assert "cuMemFreeHost" in names
    assert "cuMemPoolTrimTo" in names
    assert tensor.nbytes == 1 << 22


def test_more_than_a_device_has_is_refused_without_asking_it(fake_machine):
    """While it tries, the driver takes all memory that other processes may want."""
    fake_machine.reset()
    with pytest.raises(AllocationError, match=f"{1 << 50} bytes of device memory"):
        dlbridge.empty((1 << 50,), "int8", device="cuda")
    assert "cuMemAllocAsync" not in [call.name for call in fake_machine.calls]


def test_the_error_of_a_full_device_names_sizes(machine):
    machine.need_devices(2)
    total = cuda.memory_info("cuda:1").total
    for make in (
        lambda: dlbridge.empty((1 << 50,), "int8", device="cuda:1"),
        lambda: dlbridge.zeros((1,), "int8").broadcast_to((1 << 50,)).to("cuda:1"),
    ):
        with pytest.raises(AllocationError) as caught:
            make()
        text = str(caught.value)
        assert f"{1 << 50} bytes of device memory" in text
        assert f"of the {total} bytes of cuda:1 are free" in text
    with pytest.raises(AllocationError, match=f"{1 << 50} bytes of pinned memory") as caught:
        dlbridge.empty((1 << 50,), "int8", device="cuda_host")
    assert "are free" not in str(caught.value)  # those of a device say nothing here


def test_a_device_that_is_not_there_is_named(machine):
    with pytest.raises((CUDAError, ExchangeError)):
        dlbridge.empty((3,), "int8", device=f"cuda:{len(machine.devices)}")


def test_more_alignment_than_the_driver_gives_is_refused(machine):
    with pytest.raises(ArgumentError, match="256"):
        dlbridge.empty((3,), "int8", device="cuda", alignment=4096)


# ---- chosen allocators ---------------------------------------------------------------------------


def test_memory_of_an_allocator_comes_back_when_kernels_are_over(fake_machine):
    arena = Arena(fake_machine)
    dlbridge.set_allocator("cuda", arena)
    tensor = dlbridge.zeros((64,), "uint8", device="cuda")
    copied = dlbridge.zeros((64,), "uint8").to("cuda")
    assert arena.statistics().count == 2
    stream = fake_machine.stream()
    native.cuda_begin(tensor, stream, True)
    fake_machine.launch(stream, writes=[(tensor.data_ptr, 64)], value=1, slow=True)
    address = tensor.data_ptr
    del tensor
    assert address not in arena.given_back
    fake_machine.finish()
    cuda.collect()
    assert arena.given_back == [address]
    del copied
    fake_machine.finish()
    cuda.collect()
    assert arena.statistics().bytes_in_use == 0


def test_one_device_may_have_an_allocator_of_its_own(machine):
    machine.need_devices(2)
    arena = Arena(machine)
    arena.allocate = lambda nbytes, alignment: machine.alloc(nbytes, 1)
    dlbridge.set_allocator("cuda:1", arena)
    here = dlbridge.zeros((8,), "uint8", device="cuda:0")
    assert arena.statistics().total == 0
    there = here.to("cuda:1")
    assert arena.statistics().total == 1
    assert there.to("cpu").tolist() == [0] * 8
    dlbridge.set_allocator("cuda:1", None)
    here.to("cuda:1")
    assert arena.statistics().total == 1


def test_torch_gives_memory_for_the_current_stream(machine, monkeypatch):
    given_back = []
    fake = torch_over(machine, given_back)
    monkeypatch.setitem(__import__("sys").modules, "torch", fake)
    dlbridge.set_allocator("cuda", "torch")
    tensor = dlbridge.full((5,), 3, "int16", device="cuda")
    stream = machine.stream()
    with cuda.stream(stream):
        native.cuda_begin(tensor, stream, False)
        other = tensor.copy()
    assert fake.streams[0] == 0, "torch's handle of the legacy default stream"
    assert fake.streams[-1] == stream
    assert other.to("cpu").tolist() == [3] * 5
    address = tensor.data_ptr
    machine.synchronise()
    del tensor, other
    machine.finish()
    cuda.collect()
    assert address in given_back


def test_torch_out_of_memory_is_ours(machine, monkeypatch):
    fake = torch_over(machine, [], fails=True)
    monkeypatch.setitem(__import__("sys").modules, "torch", fake)
    dlbridge.set_allocator("cuda", "torch")
    with pytest.raises(AllocationError, match="'torch': 10 bytes of device memory") as caught:
        dlbridge.empty((10,), "int8", device="cuda")
    assert isinstance(caught.value.__cause__, OutOfMemoryError)


def test_frameworks_have_device_memory_only(machine, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "torch", torch_over(machine, []))
    with pytest.raises(ArgumentError, match="device memory only"):
        dlbridge.set_allocator("cuda_host", "torch")
    with pytest.raises(ExchangeError) as caught:
        dlbridge.empty((10,), "int8", device="cuda_host", allocator=TorchAllocator())
    assert caught.value.reason == "device"


@pytest.mark.parametrize(
    ("device", "allocator", "text"),
    [
        ("cpu", None, "CUDA device is required"),
        ("cuda", "numpy", "driver, cupy, torch"),
        ("cuda", 5, "must be an Allocator"),
    ],
)
def test_invalid_allocators_are_refused(device, allocator, text):
    with pytest.raises(ArgumentError, match=text):
        dlbridge.set_allocator(device, allocator)


def test_a_framework_that_is_missing_is_named(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "cupy", None)
    with pytest.raises(FrameworkMissingError, match="cupy"):
        dlbridge.set_allocator("cuda", "cupy")


# ---- captures ------------------------------------------------------------------------------------


def test_memory_that_dies_during_a_capture_is_freed_after_it(fake_machine):
    stream = fake_machine.stream()
    with cuda.stream(stream):
        tensor = dlbridge.zeros((64,), "uint8", device="cuda")
        with fake_machine.capture(stream):
            fake_machine.reset()
            del tensor
            assert "cuMemFreeAsync" not in fake_machine.actions()
        dlbridge.zeros((64,), "uint8", device="cuda")
    fake_machine.finish()
    cuda.collect()
    cuda.trim()
    assert "cuMemFreeAsync" in fake_machine.actions()


@pytest.mark.parametrize("device", ["cuda", "cuda_managed", "cuda_host"])
@pytest.mark.parametrize("mode", [0, 1, 2])
def test_a_thread_captures_in_its_own_mode_afterwards(machine, device, mode):
    """To allocate and to free, dlbridge relaxes it for a moment."""

    def exchange(number):
        current = ctypes.c_int(number)
        machine.driver.call("cuThreadExchangeStreamCaptureMode", ctypes.byref(current))
        return current.value

    before = exchange(mode)
    try:
        memory = dlbridge.empty((5 << 20,), "uint8", device=device)
        assert exchange(mode) == mode
        del memory
        cuda.trim()
        assert exchange(mode) == mode
    finally:
        exchange(before)

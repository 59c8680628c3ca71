"""A producer that is wrong about its device is refused where the driver knows better."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from dlpack_peers import Description, ModernProducer

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.cuda import memory
from dlbridge.errors import ArgumentError, CUDAError, ExchangeError


class Array:
    """A CUDA array of an unknown framework, which says its device nowhere."""

    def __init__(self, address: int, **fields: object) -> None:
        described = {"shape": (4,), "typestr": "<f4", "data": (address, False), "version": 3}
        self.__cuda_array_interface__ = described | fields


def test_the_driver_says_on_which_device_an_array_is(fake_machine: Any) -> None:
    """The CUDA array interface has no field for it."""
    for device in (0, 1):
        address = fake_machine.alloc(16, device)
        assert dlbridge.from_dlpack(Array(address)).device == dlbridge.Device(f"cuda:{device}")
        cuda.collect()
        fake_machine.free(address)


@pytest.mark.parametrize("claimed", [(2, 0), (2, 1), (3, 0), (13, 0)])
def test_a_wrong_device_is_refused_and_both_are_named(
    fake_machine: Any, claimed: tuple[int, int]
) -> None:
    address = fake_machine.alloc(16, 1)
    producer = ModernProducer(Description(data=address, shape=(4,), device=claimed))
    if claimed == (2, 1):
        assert dlbridge.from_dlpack(producer).data_ptr == address
    else:
        with pytest.raises(ExchangeError, match=r"says that its memory .* on cuda:1") as refused:
            dlbridge.from_dlpack(producer)
        assert refused.value.reason == "device"
        assert str(dlbridge.Device(claimed)) in str(refused.value)
    cuda.collect()
    fake_machine.free(address)


def test_memory_of_the_host_is_not_on_a_gpu(fake_machine: Any) -> None:
    host = dlbridge.zeros((4,), "float32")
    producer = ModernProducer(Description(data=host.data_ptr, shape=(4,), device=(2, 0)))
    with pytest.raises(ExchangeError, match="no memory of the driver's"):
        dlbridge.from_dlpack(producer)


@pytest.mark.parametrize("name", ["cuda:1", "cuda_host", "cuda_managed"])
def test_the_driver_knows_every_kind_of_memory(fake_machine: Any, name: str) -> None:
    tensor = dlbridge.empty((4,), "float32", device=name)
    assert memory.device_of(tensor.data_ptr) == tensor.device.pair
    what = Description(data=tensor.data_ptr, shape=(4,), device=tensor.device.pair)
    again = dlbridge.from_dlpack(ModernProducer(what))
    assert again.device == tensor.device


@pytest.mark.parametrize("claimed", [(2, 1), (2, 0), (2, 9), (3, 0)])
def test_a_thread_without_a_context_is_given_one_to_ask_in(
    machine: Any, in_thread: Any, claimed: tuple[int, int]
) -> None:
    """The driver may refuse to say where an address is, which is no reason to refuse the memory."""
    device = len(machine.devices) - 1
    address = machine.alloc(16, device)
    depths = []

    def take() -> None:
        assert memory.device_of(address, claimed[1]) == (2, device)
        producer = ModernProducer(Description(data=address, shape=(4,), device=claimed))
        if claimed == (2, device):
            assert dlbridge.from_dlpack(producer).data_ptr == address
        else:
            with pytest.raises(ExchangeError, match=f"on cuda:{device}"):
                dlbridge.from_dlpack(producer)
        depths.append(machine.driver.make("cuCtxGetCurrent"))

    in_thread(take)
    assert depths == [0], "the context was left behind"


def test_without_a_driver_nothing_is_asked() -> None:
    native.cuda_close()
    tensor = native.take_object((), 0xDEAD00, (4,), None, (2, 32, 1), (2, 0))
    memory.check_device(tensor, "somebody", "from_dlpack")


FAILING = """
import os, sys
sys.path.insert(0, {tests!r})
import numpy as np
import dlbridge
from dlbridge import cuda
from fake_driver import FakeDriver

driver = FakeDriver(os.environ["DLBRIDGE_CUDA_DRIVER"])
tensor = dlbridge.from_dlpack(np.arange(10)).to("cuda:0")
view = tensor[2:]
{fail}
for call in (lambda: tensor.to("cpu"), lambda: dlbridge.empty(3, "int8", device="cuda:0")):
    try:
        call()
    except dlbridge.CUDAError as error:
        assert error.name == {name!r}, error
    else:
        raise AssertionError("it went well")
del tensor, view
assert cuda.collect() == 0
assert driver.faults == []
"""


@pytest.mark.parametrize(
    ("fail", "name"),
    [
        ("driver.fake_break(700)", "CUDA_ERROR_ILLEGAL_ADDRESS"),
        ("driver.fake_shut_down(1)", "CUDA_ERROR_DEINITIALIZED"),
    ],
)
def test_a_driver_that_has_failed_or_gone_is_an_error_and_no_crash(
    fake_machine: Any, run_python: Any, fail: str, name: str
) -> None:
    """Enqueued work will never end, and the process still lets go and ends."""
    code = FAILING.format(tests=str(Path(__file__).parent), fail=fail, name=name)
    run_python(code, DLBRIDGE_CUDA_DRIVER=fake_machine.path).check()


def test_the_machine_with_a_gpu_counts_the_waits_of_dlbridge(fake_machine: Any) -> None:
    """Each test opens the driver again, which fills the table of functions once more."""
    from real_machine import RealMachine

    native.cuda_close()
    machine = RealMachine(fake_machine.path)
    for _ in range(2):
        assert native.cuda_open(machine.path) is None
        machine.reset()
        assert machine.host_synchronisations == 0
        cuda.synchronize()
        assert machine.host_synchronisations == 1
    machine.close()


def test_a_block_on_a_device_that_is_not_there_is_refused(fake_machine: Any) -> None:
    """It would set the stream of nothing, and whoever wrote it would wonder."""
    with pytest.raises(CUDAError, match=r"no device cuda:9; this machine has 2"):
        cuda.stream(1, "cuda:9").__enter__()
    for call in (cuda.current_stream, cuda.memory_info, cuda.synchronize):
        with pytest.raises(ArgumentError, match="index must be from 0"):
            call(-1)

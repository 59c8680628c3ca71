"""The devices that tensors name: each library reads only memory that it can reach."""

from __future__ import annotations

import pytest
from dlpack_peers import ModernProducer, describe

import dlbridge
from dlbridge import convert, from_dlpack
from peers.checks import refused
from peers.consumers import each_consumer, require_all, settles
from peers.readers import filled, has

require_all()


@pytest.mark.skipif(not has("mlx"), reason="mlx is not installed")
@pytest.mark.fact(17)
def test_cpu_memory_is_one_device_whatever_index_is_asked_for() -> None:
    """MLX and torch accept a request for cpu:7; MLX writes that index into the capsule."""
    import mlx.core as mx
    import torch

    for x in (mx.array([1.0, 2]), torch.ones(2)):
        tensor = from_dlpack(x, device=(1, 7))
        assert tensor.device == "cpu"
        assert tensor.__dlpack_device__() == (1, 0)


@pytest.mark.fact(24)
def test_a_device_index_of_none_counts_as_zero() -> None:
    """Paddle's `__dlpack_device__()` is (kDLCPU, None)."""
    x = filled((3,), "float32")
    assert from_dlpack(ModernProducer(x, device=(1, None)), device="cpu").device == "cpu"


FOREIGN = {"cuda": 2, "opencl": 4, "metal": 8, "rocm": 10, "ext_dev": 12, "oneapi": 14, "maia": 17}


@each_consumer
@pytest.mark.parametrize("device", FOREIGN)
@pytest.mark.fact(33)
def test_memory_of_other_devices_is_not_read_on_the_cpu(consumer: str, device: str) -> None:
    """A CPU build of a library that takes such a pointer reads it as host memory."""
    x = filled((3,), "float32")
    producer = ModernProducer(describe(x, device=(FOREIGN[device], 0)))
    if consumer == "tvm":  # takes any device, and reads nothing itself
        assert convert(producer, consumer).__dlpack_device__() == (FOREIGN[device], 0)
        return
    refused("device", convert, producer, consumer)
    refused("device", convert, producer, consumer, copy=True)
    assert settles(lambda: producer.deleted == len(producer.loans))


@pytest.mark.parametrize("device", [3, 11, 13])
@pytest.mark.fact(33)
def test_pinned_and_managed_memory_is_host_memory_to_numpy(device: int) -> None:
    """NumPy takes kDLCUDAHost, kDLROCMHost and kDLCUDAManaged; torch's CPU build takes none.

    Pinned memory goes to torch as what it is to the host, CPU memory.
    """
    x = filled((3,), "float32")
    y = dlbridge.to_numpy(ModernProducer(describe(x, device=(device, 0))))
    assert y.ctypes.data == x.ctypes.data
    producer = ModernProducer(describe(x, device=(device, 0)))
    if device == 3:
        assert dlbridge.to_torch(producer).data_ptr() == x.ctypes.data
    else:
        refused("device", dlbridge.to_torch, producer)

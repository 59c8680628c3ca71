"""Copies between host, devices and kinds of memory: every layout, every size, in stream order."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu_frameworks import is_fake

import dlbridge
from dlbridge import cuda, from_dlpack, to_numpy
from dlbridge._core import native

pytestmark = pytest.mark.gpu

KINDS = ("cpu", "cuda:0", "cuda_host")  # and managed memory: test_managed_on_gpu.py
SIZES = (0, 1, 7, 4096, (1 << 20) + 3, (1 << 26) + 5)  # bytes; the last ones are staged in pieces


def bytes_like(count: int) -> np.ndarray:
    return (np.arange(count, dtype=np.uint32) * 2654435761 >> 13).astype(np.uint8)


@pytest.mark.parametrize("count", SIZES)
@pytest.mark.parametrize(("source", "target"), list(itertools.product(KINDS, repeat=2)))
def test_bytes_arrive_from_every_kind_of_memory_in_every_other(source, target, count):
    expected = bytes_like(count)
    there = from_dlpack(expected).to(source)
    assert there.device == source
    moved = there.to(target)
    assert moved.device == target
    assert np.array_equal(to_numpy(moved.to("cpu")), expected)


LAYOUTS = {
    "transposed": lambda x: x.transpose(2, 1, 0),
    "every second": lambda x: x[::2, 1::3],
    "reversed": lambda x: x[::-1, :, ::-1],
    "a column": lambda x: x[:, 3:4, 5],
    "broadcast": lambda x: x[:1],
    "a box": lambda x: x[2:9, 1:5, 3:11],
}


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "complex128"])
@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_memory_becomes_compact(layout, dtype):
    array = (np.arange(12 * 10 * 14) % 97).reshape(12, 10, 14).astype(dtype)
    view = LAYOUTS[layout](from_dlpack(array).to("cuda:0"))
    expected = LAYOUTS[layout](array)
    for made in (view.contiguous(), view.copy(), view.to("cpu")):
        assert np.array_equal(to_numpy(made.to("cpu")), expected)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_strided_memory_is_written_in_place(layout):
    array = np.zeros((12, 10, 14), np.float32)
    tensor = from_dlpack(array).to("cuda:0")
    view, expected = LAYOUTS[layout](tensor), LAYOUTS[layout](array)
    values = np.arange(expected.size, dtype=np.float32).reshape(expected.shape)
    view[...] = from_dlpack(values).to("cuda:0")
    expected[...] = values
    assert np.array_equal(to_numpy(tensor.to("cpu")), array)


LARGE = {
    "transposed": lambda x: x.transpose(2, 1, 0),
    "turned in pairs": lambda x: x.transpose(0, 2, 1)[:, ::-1],
    "every second": lambda x: x[:, :, ::2],
    "reversed": lambda x: x[::-1, ::-1, ::-1],
    "bytes of a row": lambda x: x[:, :, 1:4],
}


@pytest.mark.parametrize("dtype", ["uint8", "float16", "float32", "float64", "complex128"])
@pytest.mark.parametrize("layout", LARGE)
def test_the_kernels_for_strided_copies_move_every_size_of_element(layout, dtype):
    """In shapes that no tile and no block divides, both ways."""
    array = (np.arange(37 * 70 * 45) % 251).reshape(37, 70, 45).astype(dtype)
    expected = np.ascontiguousarray(LARGE[layout](array))
    view = LARGE[layout](from_dlpack(array).to("cuda:0"))
    copied = view.copy("C")
    assert np.array_equal(to_numpy(copied.to("cpu")), expected)
    back = dlbridge.zeros(array.shape, dtype, device="cuda:0")
    LARGE[layout](back)[...] = copied
    assert np.array_equal(to_numpy(LARGE[layout](back).to("cpu")), expected)


def test_more_than_two_to_the_31_elements_are_copied():
    if is_fake():
        pytest.skip("the fake driver's memory is the host's")
    count = (1 << 31) + 12345
    whole = dlbridge.zeros((2 * count,), "uint8", device="cuda:0")
    places = (0, 1, 1 << 20, (1 << 31) - 1, 1 << 31, count - 1)
    for number, place in enumerate(places, 1):
        whole[2 * place] = number
    copied = whole[::2].copy()
    for number, place in enumerate(places, 1):
        assert to_numpy(copied[place : place + 1].to("cpu")).tolist() == [number]


def test_a_copy_waits_for_the_work_before_it_and_the_host_for_neither(machine):
    stream = machine.stream()
    tensor = dlbridge.zeros((1 << 20,), "uint8", device="cuda:0")
    cuda.synchronize()
    waits = machine.host_synchronisations
    with cuda.stream(stream):
        machine.launch(stream, slow=True)
        native.cuda_begin(tensor, stream, True)
        machine.fill(tensor.data_ptr, tensor.nbytes, 5, stream)
    with cuda.stream(machine.stream()):
        copy = tensor.copy()
    assert not machine.is_through(stream), "the host has waited"
    assert machine.host_synchronisations == waits
    assert set(to_numpy(copy.to("cpu")).tolist()) == {5}


def test_pinned_memory_is_the_hosts_and_the_devices():
    pinned = dlbridge.empty((1000,), "float32", device="cuda_host")
    array = to_numpy(pinned)
    array[:] = 3
    there = pinned.to("cuda:0")
    assert to_numpy(there.to("cpu")).tolist() == [3.0] * 1000
    assert array.ctypes.data == pinned.data_ptr


def test_pinned_memory_of_torch_comes_in(load):
    tensor = from_dlpack(load("torch").root.ones(100).pin_memory())
    assert tensor.device in ("cpu", "cuda_host")
    assert to_numpy(tensor).tolist() == [1.0] * 100


def test_the_device_may_be_chosen_in_the_exchange_itself(load):
    array = np.arange(10, dtype=np.float32)
    there = from_dlpack(array, device="cuda:0")
    assert there.device == "cuda:0"
    assert to_numpy(from_dlpack(there, device="cpu")).tolist() == array.tolist()
    again = np.from_dlpack(there, device="cpu") if np.__version__ >= "2.1" else array
    assert again.tolist() == array.tolist()


def test_a_device_that_is_not_there_is_refused():
    missing = f"cuda:{cuda.device_count()}"
    with pytest.raises(dlbridge.DLBridgeError, match=f"machine has {cuda.device_count()} "):
        dlbridge.empty((4,), "uint8", device=missing)


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_a_framework_may_be_the_allocator(name, load):
    framework = load(name)
    dlbridge.set_allocator("cuda", name)
    try:
        tensor = dlbridge.full((1 << 20,), 2.0, "float32", device="cuda:0")
        assert set(to_numpy(tensor[:10].to("cpu")).tolist()) == {2.0}
        if name == "torch":
            assert framework.root.cuda.memory_allocated() >= tensor.nbytes
        elif not is_fake():  # the stand-in has no pool to ask
            assert framework.root.get_default_memory_pool().used_bytes() >= tensor.nbytes
    finally:
        dlbridge.set_allocator("cuda", None)


def test_two_gpus_copy_to_each_other(machine):
    machine.need_devices(2)
    array = np.arange(1 << 20, dtype=np.int32)
    there = from_dlpack(array).to("cuda:0").to("cuda:1")
    assert there.device == "cuda:1"
    view = there[::2].to("cuda:0")
    assert to_numpy(view.to("cpu")).tolist() == array[::2].tolist()

"""Tensors go round between all frameworks on a GPU, in the same memory, with the same values."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from gpu_frameworks import NAMES, TARGETS

import dlbridge
from dlbridge import ExchangeError, Tensor, convert, cuda, from_dlpack, receipts, to_numpy
from dlbridge._core import native

pytestmark = pytest.mark.gpu

DTYPES = ("bool", "int8", "uint8", "int16", "int32", "int64", "float16", "float32", "float64",
          "complex64", "complex128")  # fmt: skip
NARROWED = ("int64", "float64", "complex128")  # by JAX, without its x64 setting
LENGTH = 4096
WAITS_ITSELF = ("numba",)  # as_cuda_array waits for the stream that an array names
UNORDERED = ("tvm",)  # tvm_ffi.from_dlpack orders nothing: its functions are told the stream


def sample(dtype: str = "float32", shape: tuple[int, ...] = (4, 6)) -> np.ndarray:
    return (np.arange(np.prod(shape)).reshape(shape) % 7).astype(dtype)


@pytest.mark.parametrize("name", NAMES)
def test_a_tensor_of_every_framework_comes_in_where_it_is(name, load):
    framework = load(name)
    x = framework.put(sample())
    tensor = dlbridge.as_tensor(x)
    assert isinstance(tensor, Tensor)
    assert str(tensor.device) == "cuda:0"
    assert tensor.shape == (4, 6)
    assert tensor.data_ptr == framework.pointer(x)
    assert to_numpy(tensor, device="cpu").tolist() == sample().tolist()


@pytest.mark.parametrize("name", NAMES)
def test_every_framework_takes_a_tensor_of_dlbridge_by_its_own_function(name, load):
    framework = load(name)
    tensor = from_dlpack(sample()).to("cuda:0")
    x = framework.take(tensor)
    framework.settle()
    assert framework.pointer(x) == tensor.data_ptr
    assert framework.get(x).tolist() == sample().tolist()


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in itertools.product(NAMES, TARGETS) if len({*pair}) == 2]
)
def test_every_pair_shares_memory_and_goes_back(source, target, load):
    ours, theirs = load(source), load(target)
    x = ours.put(sample())
    with receipts() as log:
        y = convert(x, target)
    assert log[-1].shared, log[-1]
    assert theirs.pointer(y) == ours.pointer(x)
    assert theirs.get(y).tolist() == sample().tolist()
    if ours.is_target:
        back = convert(y, source)
        assert ours.pointer(back) == ours.pointer(x)
        assert ours.get(back).tolist() == sample().tolist()


@pytest.mark.parametrize(
    ("source", "target"), [pair for pair in itertools.product(NAMES, TARGETS) if len({*pair}) == 2]
)
def test_no_pair_makes_the_host_wait(source, target, load, machine):
    """Behind a slow kernel on the producer's stream, which still runs when the exchange is over."""
    ours, theirs = load(source), load(target)
    x = ours.put(sample())
    convert(x, target)  # what is compiled or loaded at its first use
    ours.settle()
    stream = ours.stream()
    with ours.on(stream):
        machine.launch(ours.handle(stream), slow=True)
        y = convert(x, target)
    assert not machine.is_through(ours.handle(stream)), "the host has waited for the producer"
    ours.settle()
    assert theirs.get(y).tolist() == sample().tolist()


@pytest.mark.parametrize("name", [name for name in NAMES if name not in UNORDERED])
def test_frameworks_take_by_their_own_functions_what_is_still_being_written(name, load, machine):
    """The tensor is filled behind a slow kernel on a stream that the framework does not know."""
    framework = load(name)
    tensor = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    framework.get(framework.take(tensor))
    stream = machine.stream()
    cuda.synchronize()
    with cuda.stream(stream):
        machine.launch(stream, slow=True)
        native.cuda_begin(tensor, stream, True)
        machine.fill(tensor.data_ptr, tensor.nbytes, 7, stream)
        x = framework.take(tensor)
    if name not in WAITS_ITSELF:
        assert not machine.is_through(stream), "the host has waited for dlbridge"
    assert set(framework.get(x).tolist()) == {7}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_dtype_arrives_as_it_was(dtype, target, load):
    framework = load(target)
    if target == "jax" and dtype in NARROWED:
        pytest.skip("jax has 64-bit types only with jax_enable_x64")
    if target == "tvm" and dtype.startswith("complex"):
        pytest.skip("tvm has no complex numbers")
    array = sample(dtype)
    y = convert(from_dlpack(array).to("cuda:0"), target)
    assert to_numpy(y, device="cpu").dtype == array.dtype
    assert framework.get(y).tolist() == array.tolist()


@pytest.mark.parametrize(("source", "target"), [("torch", "jax"), ("jax", "torch")])
def test_bfloat16_goes_between_those_that_have_it(source, target, load):
    ml_dtypes = pytest.importorskip("ml_dtypes")
    load(source), load(target)
    array = sample().astype(ml_dtypes.bfloat16)
    x = convert(from_dlpack(array).to("cuda:0"), source)
    y = convert(x, target)
    assert to_numpy(y, device="cpu").astype(np.float32).tolist() == sample().tolist()


@pytest.mark.parametrize("name", ["torch", "cupy"])
def test_views_keep_their_strides(name, load):
    framework = load(name)
    x = framework.put(sample())
    view = x.T[1:, ::2]
    tensor = from_dlpack(view)
    assert tensor.strides == (1, 12)
    assert tensor.data_ptr == framework.pointer(view)
    assert to_numpy(tensor, device="cpu").tolist() == sample().T[1:, ::2].tolist()


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_scalars_and_empty_tensors_go_through(name, shape, load):
    framework = load(name)
    y = convert(from_dlpack(sample("float32", shape)).to("cuda:0"), name)
    assert framework.get(y).shape == shape


@pytest.mark.parametrize("name", NAMES)
def test_memory_of_a_gpu_is_never_read_as_if_it_were_the_hosts(name, load):
    framework = load(name)
    x = dlbridge.as_tensor(framework.put(sample()))
    with pytest.raises(ExchangeError) as refusal:
        to_numpy(x)
    assert refusal.value.reason == "device"
    with pytest.raises(BufferError):
        memoryview(x)


@pytest.mark.parametrize("name", ["torch", "cupy", "jax"])
def test_the_host_sends_to_a_gpu_and_gets_back(name, load):
    framework = load(name)
    y = convert(sample(), name, device="cuda:0")
    assert str(from_dlpack(y).device) == "cuda:0"
    assert framework.get(y).tolist() == sample().tolist()
    assert to_numpy(y, device="cpu").tolist() == sample().tolist()


@pytest.mark.parametrize("name", ["torch", "cupy", "numba"])
def test_the_cuda_array_interface_is_enough(name, load):
    """For libraries that speak nothing else."""

    class Interface:
        def __init__(self, owner: object) -> None:
            self.owner = owner
            self.__cuda_array_interface__ = owner.__cuda_array_interface__

    framework = load(name)
    x = framework.put(sample())
    tensor = dlbridge.as_tensor(Interface(x))
    assert (tensor.data_ptr, str(tensor.device)) == (framework.pointer(x), "cuda:0")
    interface = tensor.__cuda_array_interface__
    assert interface["version"] == 3
    assert interface["data"] == (framework.pointer(x), False)
    assert to_numpy(tensor, device="cpu").tolist() == sample().tolist()


def test_many_exchanges_leave_no_memory_behind(load):
    torch = load("torch").root
    from_dlpack(torch.zeros(1 << 20, device="cuda"))
    cuda.synchronize()
    cuda.collect()
    before = torch.cuda.memory_allocated()
    for _ in range(1000):
        tensor = from_dlpack(torch.empty(1 << 20, device="cuda"))
        del tensor
    cuda.synchronize()
    cuda.collect()
    assert torch.cuda.memory_allocated() == before

"""A view of memory on a GPU outlives what its producer does later: docs/concepts/ownership.md."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from gpu_frameworks import TARGETS, is_fake

import dlbridge
from dlbridge import ExchangeError, convert, from_dlpack, receipts, to_numpy

pytestmark = pytest.mark.gpu

LENGTH = 1 << 16
VALUES = np.arange(LENGTH, dtype=np.float32) % 11
LEND: dict[str, Callable[[Any], Any]] = {
    "from_dlpack": from_dlpack,
    "a slice": lambda x: from_dlpack(x)[:],
    "capsule": lambda x: from_dlpack(x).__dlpack__(max_version=(1, 1)),
    **{f"to {name}": lambda x, name=name: convert(x, name) for name in TARGETS},
}
lends = pytest.mark.parametrize("lend", LEND)


def values(lent: Any) -> list[float]:
    """Return what is there now, after all that is enqueued."""
    return to_numpy(from_dlpack(lent), device="cpu").tolist()


# ---- PyTorch ----


def set_data(torch: Any, x: Any) -> None:
    x.data = torch.full_like(x, 5)


def set_storage(torch: Any, x: Any) -> None:
    x.set_(torch.full_like(x, 5))


def swap(torch: Any, x: Any) -> None:
    torch.utils.swap_tensors(x, torch.full_like(x, 5))


def cast(torch: Any, x: Any) -> None:
    module = torch.nn.Module()
    module.register_buffer("x", x)
    module.double()


def move(torch: Any, x: Any) -> None:
    module = torch.nn.Module()
    module.weight = torch.nn.Parameter(x)
    module.cpu()


@pytest.mark.parametrize("lend", [name for name in LEND if name != "to torch"])
@pytest.mark.parametrize("change", [set_data, set_storage, swap, cast, move])
def test_a_view_survives_a_torch_tensor_that_gets_another_storage(lend, change, load):
    torch = load("torch").root
    if lend.startswith("to "):
        load(lend.removeprefix("to "))
    x = torch.from_numpy(VALUES).to("cuda:0")
    lent = LEND[lend](x)
    change(torch, x)
    del x
    others = [torch.full((LENGTH,), 9.0, device="cuda:0") for _ in range(8)]
    assert values(lent) == VALUES.tolist()
    del others


# ---- JAX ----


@lends
@pytest.mark.parametrize("change", ["delete", "delete shards"])
def test_a_view_survives_the_deletion_of_a_jax_array(lend, change, load):
    jax = load("jax")
    if lend.startswith("to "):
        load(lend.removeprefix("to "))
    x = jax.put(VALUES)
    lent = LEND[lend](x)
    if change == "delete":
        x.delete()
    else:
        for shard in x.addressable_shards:
            shard.data.delete()
    del x
    others = [jax.put(np.full(LENGTH, 9.0, np.float32)) for _ in range(8)]
    if not (lend == "to jax" and lent.is_deleted()):
        assert values(lent) == VALUES.tolist()
    del others


@pytest.mark.parametrize("lend", [name for name in LEND if name != "to jax"])
def test_xla_refuses_to_donate_what_was_lent(lend, load):
    jax = load("jax")
    if lend.startswith("to "):
        load(lend.removeprefix("to "))
    x = jax.put(VALUES)
    lent = LEND[lend](x)
    double = jax.root.jit(lambda x: x * 2, donate_argnums=0)
    with pytest.raises(RuntimeError, match="Donation requested for buffer with external ref"):
        double(x)
    assert values(lent) == VALUES.tolist()
    del lent
    jax.root.block_until_ready(double(jax.put(VALUES)))


def test_memory_of_jax_is_read_only_where_it_can_be(load):
    jax, torch, cupy = load("jax"), load("torch"), load("cupy")
    x = jax.put(VALUES)
    tensor = from_dlpack(x)
    assert tensor.readonly
    with pytest.raises(ExchangeError, match="read-only"):
        tensor[0] = 1
    for framework in (torch, cupy):  # they cannot protect memory
        shared = convert(x, framework.name)
        assert framework.pointer(shared) == jax.pointer(x)
        with pytest.raises(ExchangeError) as refusal:
            convert(x, framework.name, immutable="respect")
        assert refusal.value.reason == "readonly"
        with receipts() as log:
            own = convert(x, framework.name, immutable="copy")
        assert not log[-1].shared
        framework.add(own, 1)
        framework.settle()
        assert framework.get(own).tolist() == (VALUES + 1).tolist()
        assert jax.get(x).tolist() == VALUES.tolist()


@pytest.mark.parametrize("dtype", ["float64", "int64", "uint64", "complex128"])
@pytest.mark.parametrize("target", ["torch", "cupy", "dlbridge"])
def test_numbers_of_64_bits_go_both_ways_with_x64_on(dtype, target, load):
    jax, framework = load("jax"), load(target)
    with jax.root.enable_x64(True):
        array = (np.arange(100) % 13).astype(dtype)
        x = jax.put(array)
        assert x.dtype == dtype
        y = from_dlpack(x) if target == "dlbridge" else convert(x, target)
        assert framework.pointer(y) == jax.pointer(x)
        back = convert(y, "jax")
        assert (back.dtype, jax.pointer(back)) == (dtype, jax.pointer(x))
        assert jax.get(back).tolist() == array.tolist()


@pytest.mark.parametrize("dtype", ["bfloat16", "float8_e4m3fn", "float8_e5m2"])
def test_narrow_numbers_of_jax_are_shared_with_torch(dtype, load):
    jax, torch = load("jax"), load("torch")
    x = jax.root.numpy.asarray(np.arange(8), getattr(jax.root.numpy, dtype))
    y = dlbridge.to_torch(x)
    assert torch.pointer(y) == jax.pointer(x)
    assert y.float().tolist() == list(range(8))


@pytest.mark.parametrize("dtype", ["int4", "uint4", "int2", "uint2"])
def test_numbers_that_jax_does_not_export_need_a_device_for_their_copy(dtype, load):
    """Which can be made on the host alone."""
    jax = load("jax")
    x = jax.root.numpy.asarray(np.arange(2), getattr(jax.root.numpy, dtype))
    for call in (from_dlpack, to_numpy, dlbridge.as_tensor):
        with pytest.raises(ExchangeError, match='pass device="cpu" for a copy') as refusal:
            call(x)
        assert refusal.value.reason == "device"
    assert to_numpy(x, device="cpu").tolist() == [0, 1]
    assert str(from_dlpack(x, device="cpu").device) == "cpu"


# ---- CuPy ----


@lends
@pytest.mark.parametrize("change", ["free_all_blocks", "another allocator"])
def test_a_view_holds_its_block_of_cupys_pool(lend, change, load):
    cupy = load("cupy").root
    if is_fake():
        pytest.skip("the stand-in for CuPy has no pool")
    if lend.startswith("to "):
        load(lend.removeprefix("to "))
    x = cupy.asarray(VALUES)
    lent = LEND[lend](x)
    del x
    before = cupy.cuda.get_allocator()
    try:
        if change == "another allocator":
            cupy.cuda.set_allocator(cupy.cuda.MemoryPool().malloc)
        cupy.get_default_memory_pool().free_all_blocks()
        others = [cupy.full(LENGTH, 9, np.float32) for _ in range(8)]
        assert values(lent) == VALUES.tolist()
        del others
    finally:
        cupy.cuda.set_allocator(before)

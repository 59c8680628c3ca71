"""Many exchanges, and any layout: memory stays flat and values stay right.

`DLBRIDGE_STRESS=10000000` sets how many exchanges are made in all, `HYPOTHESIS_PROFILE=thorough`
how many layouts are tried.
"""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from campaign import GROWTH, ROUNDS, SCENES, SHARES, STEPS, growth
from dlpack_peers import (
    DTYPES,
    IS_COPIED,
    STYLES,
    Consumer,
    Description,
    ModernProducer,
    NativePeer,
    describe,
    row_major,
)
from hypothesis import given
from hypothesis import strategies as st

import dlbridge

# ---- memory stays flat ---------------------------------------------------------------------------

EXCHANGES = int(os.environ.get("DLBRIDGE_STRESS", "1500000"))
# Those that real programs make most often; the long ring makes the others as well.
OFTEN = ("from_dlpack(numpy)", "to_numpy(torch)", "to_torch(numpy)", "versioned capsule, taken")


@pytest.mark.fast(lambda name: name in OFTEN)
@pytest.mark.skipif(not Path("/proc/self").exists(), reason="needs Linux's /proc")
@pytest.mark.unsanitized("sanitizers keep freed memory")
@pytest.mark.parametrize("name", STEPS)
def test_millions_of_exchanges_leave_the_process_as_large_as_it_was(
    name: str, framework: Any, native_peer: NativePeer
) -> None:
    """Leaks of a few bytes show here that no counter counts."""
    make, share = STEPS[name]
    step = make(framework, native_peer)[name]
    count = int(EXCHANGES * share / SHARES)
    growths = growth(step, count)
    # A leak grows in each round; the heap of a process that ran other tests may grow in one.
    grown = ROUNDS * min(growths)
    assert grown < GROWTH, f"{growths} bytes more after {count} exchanges"


@pytest.mark.full
@pytest.mark.subprocess
@pytest.mark.unsanitized("forks of a sanitized process")
@pytest.mark.parametrize("name", SCENES)
def test_threads_tasks_forks_and_interrupts_leave_nothing_alive(name: str, run_python: Any) -> None:
    """`python -m tests.campaign` makes more; here each thread makes 20,000 operations."""
    count = 20_000 if name == "threads" else 200_000
    code = f"import campaign; print(campaign.run({name!r}, {count}))"
    assert run_python(code, timeout=500).check().startswith(f"| {name} |")


# ---- values stay right ---------------------------------------------------------------------------


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray[Any, Any]:
    """Draw an array of any dtype and any layout that basic indexing and broadcasting make."""
    dtype = np.dtype(draw(st.sampled_from(sorted(DTYPES))))
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    count = int(np.prod(shape, dtype=int))
    base = np.arange(count) % (2 if dtype.kind == "b" else 100)
    array = base.astype(dtype).reshape(shape)
    if dtype.kind == "c":
        array = (array * (1 - 2j)).astype(dtype)
    index: list[Any] = []
    for extent in shape:
        kind = draw(st.sampled_from(["all", "all", "slice", "reverse", "one", "new"]))
        if kind == "slice":
            index.append(draw(st.slices(extent)))
        elif kind == "reverse":
            index.append(slice(None, None, -1))
        elif kind == "one" and extent:
            index.append(draw(st.integers(0, extent - 1)))
        else:
            index += [None, slice(None)] if kind == "new" else [slice(None)]
    array = array[tuple(index)]
    if not isinstance(array, np.ndarray):
        array = np.asarray(array)
    array = array.transpose(draw(st.permutations(range(array.ndim))))
    if draw(st.booleans()):
        array = np.broadcast_to(array, (draw(st.integers(0, 3)), *array.shape))
    return array


@st.composite
def descriptions(draw: st.DrawFn) -> Description:
    """Draw a truthful description, the pointer split at random between data and byte_offset."""
    array = draw(arrays())
    truth = describe(array)
    address: Any = truth.data
    offset = draw(st.sampled_from([0, 0, array.itemsize, 64, 4096, 3]))
    if array.flags.c_contiguous and draw(st.booleans()):
        truth = truth.but(strides=None)
    return truth.but(
        data=address - offset,
        byte_offset=offset,
        version=draw(st.sampled_from([(1, 0), (1, 3), (1, 99)])),
    )


@given(what=descriptions(), style=st.sampled_from(sorted(STYLES)), versioned=st.booleans())
def test_any_layout_and_dtype_arrives_value_by_value(
    what: Description, style: str, versioned: bool
) -> None:
    """Producer to dlbridge to consumer, neither of which is ours, against NumPy."""
    array: Any = what.keeps
    producer = STYLES[style](what)
    tensor = dlbridge.from_dlpack(producer)
    assert (tensor.shape, tensor.dtype.triple) == (array.shape, what.dtype)
    assert tensor.size == array.size
    assert tensor.nbytes == array.nbytes
    assert tensor.is_contiguous == array.flags.c_contiguous
    # As for JAX and TensorFlow: `__dlpack__` gives no legacy capsule of read-only memory.
    consumer = Consumer(tensor._capsule(versioned, force_readonly=True))
    assert np.array_equal(consumer.values(), array)
    if array.size:
        assert consumer.data == array.ctypes.data
    consumer.release()
    del tensor
    assert producer.deleted == 1


@given(what=descriptions())
def test_a_copy_of_any_layout_is_compact_and_equal(what: Description) -> None:
    array: Any = what.keeps
    tensor = dlbridge.from_dlpack(ModernProducer(what))
    consumer = Consumer(tensor.__dlpack__(copy=True, max_version=(1, 3)))
    assert consumer.flags == IS_COPIED
    assert np.array_equal(consumer.values(), array)
    if array.size:
        assert consumer.strides == row_major(array.shape)
        assert not np.shares_memory(array, _window(consumer.data, array.nbytes))
    consumer.release()


def _window(address: int, nbytes: int) -> np.ndarray[Any, Any]:
    """Return the bytes at an address as an array."""
    memory: Any = (ctypes.c_char * nbytes).from_address(address)
    return np.frombuffer(memory, np.uint8)


@given(what=descriptions())
def test_numpy_gets_any_layout_without_a_copy(what: Description) -> None:
    array: Any = what.keeps
    tensor = dlbridge.from_dlpack(ModernProducer(what))
    result = dlbridge.to_numpy(tensor)
    assert result.dtype == array.dtype
    assert np.array_equal(result, array)
    assert result.flags.writeable == (not tensor.readonly)
    if array.size:
        assert result.ctypes.data == array.ctypes.data


@given(array=arrays())
def test_numpys_own_arrays_take_the_fast_way_to_the_same_result(
    array: np.ndarray[Any, Any],
) -> None:
    """The C path through NumPy's API and the path through `__dlpack__` must not differ."""
    fast = dlbridge.from_dlpack(array)
    slow = dlbridge.from_dlpack(ModernProducer(array))
    for name in ("shape", "_dtype_triple", "_device_pair", "readonly", "size", "nbytes", "flags"):
        assert getattr(fast, name) == getattr(slow, name), name
    if array.size:
        assert fast.strides == slow.strides
        assert fast.data_ptr == slow.data_ptr
    assert fast.buffer.owner is array


# ---- below a byte --------------------------------------------------------------------------------

PACKED = [(0, 1, 1), (1, 2, 1), (0, 4, 1), (1, 4, 1), (17, 4, 1), (15, 6, 1), (16, 6, 1), (6, 1, 1)]


def element(memory: bytes, position: int, bits: int) -> int:
    """Return one packed element: the lowest bits come first, across bytes where need be."""
    whole = int.from_bytes(memory, "little")
    return whole >> (position * bits) & ((1 << bits) - 1)


def positions(shape: tuple[int, ...], strides: tuple[int, ...]) -> Iterator[int]:
    """Yield the place of each element, in elements, in row-major order."""
    for index in np.ndindex(*shape):
        yield sum(i * step for i, step in zip(index, strides, strict=True))


@given(
    memory=st.binary(min_size=64, max_size=64),
    dtype=st.sampled_from(PACKED),
    shape=st.lists(st.integers(0, 5), min_size=1, max_size=3).map(tuple),
    strides=st.lists(st.integers(0, 6), min_size=3, max_size=3).map(tuple),
)
def test_packed_elements_of_any_layout_are_copied_bit_by_bit(
    memory: bytes,
    dtype: tuple[int, int, int],
    shape: tuple[int, ...],
    strides: tuple[int, ...],
) -> None:
    """Elements below a byte have no address of their own; the rest of the last byte is nobody's."""
    array = np.frombuffer(memory, np.uint8).copy()
    strides = strides[: len(shape)]
    what = describe(array, shape=shape, strides=strides, dtype=dtype)
    producer = ModernProducer(what)
    consumer = Consumer(dlbridge.from_dlpack(producer).__dlpack__(copy=True, max_version=(1, 3)))
    assert (consumer.dtype, consumer.shape) == (dtype, shape)
    bits = dtype[1]
    count = int(np.prod(shape, dtype=int))
    if count:
        assert consumer.strides == row_major(shape)
        copied = ctypes.string_at(consumer.data, -(-count * bits // 8))
        expected = [element(memory, at, bits) for at in positions(shape, strides)]
        assert [element(copied, at, bits) for at in range(count)] == expected
    consumer.release()
    assert producer.deleted == 1

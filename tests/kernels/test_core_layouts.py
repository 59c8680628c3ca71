"""Any view of any memory: the kernel computes the same, and what overlaps is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.lib.stride_tricks import as_strided

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.kernels.schema import Schema

CPU = 1
SCHEMA = Schema.parse("test::negate(x: f32[...]) -> f32[...]")
STEPS = (-3, -2, -1, 1, 1, 2, 3)


def kernel(address: int, **options: Any) -> native.KernelBase:
    targets = [(CPU, "dltensors", address, None)]
    encoded = SCHEMA.encode(), SCHEMA.encode_arguments()
    return native.KernelBase(SCHEMA.qualified, *encoded, targets, schema=SCHEMA, **options)


def take(array: np.ndarray) -> dlbridge.Tensor:
    """Return a Tensor with the strides as they are, for which NumPy has its own rules."""
    strides = [step // array.itemsize for step in array.strides]
    address = array.__array_interface__["data"][0]
    return native.take_object(array, address, array.shape, strides, (2, 32, 1), (CPU, 0))


@st.composite
def views(draw: Any, shape: tuple[int, ...], memory: np.ndarray | None = None) -> np.ndarray:
    """Return a view of this shape: axes permuted, stepped over, reversed, somewhere in memory."""
    order = draw(st.permutations(range(len(shape))))
    steps = [draw(st.sampled_from(STEPS)) for _ in shape]
    sizes = [shape[axis] * abs(steps[axis]) for axis in order]
    count = int(np.prod(sizes))
    offset = draw(st.integers(0, 2))
    if memory is None:
        memory = np.arange(offset + count, dtype="f4")
    elif memory.size - count < offset:
        offset = max(memory.size - count, 0)
    block = memory[offset : offset + count].reshape(sizes)
    cuts = tuple([slice(None, None, steps[axis]) for axis in order])
    return block[(*cuts, ...)].transpose([order.index(axis) for axis in range(len(shape))])


shapes = st.lists(st.integers(0, 4), max_size=4).map(tuple)


@given(data=st.data(), shape=shapes, alignment=st.sampled_from((1, 8, 64)))
def test_a_kernel_computes_the_same_in_any_layout(
    functions: Any, data: Any, shape: tuple[int, ...], alignment: int
) -> None:
    x, out = data.draw(views(shape)), data.draw(views(shape))
    memory = out.base if out.base is not None else out
    untouched = np.ones(memory.size, bool)
    untouched[(out.__array_interface__["data"][0] - memory.ctypes.data) // 4 + offsets(out)] = False
    before = memory.reshape(-1).copy()
    kernel(functions("negate"), alignment=alignment).run([take(x), take(out)])
    assert np.array_equal(out, -x)
    assert np.array_equal(memory.reshape(-1)[untouched], before[untouched])


def offsets(array: np.ndarray) -> np.ndarray:
    """Return where each element is, counted from the first one."""
    total = np.zeros(array.shape, "i8")
    for axis, step in enumerate(array.strides):
        shape = [-1 if axis == other else 1 for other in range(array.ndim)]
        total += np.arange(array.shape[axis]).reshape(shape) * (step // array.itemsize)
    return total.reshape(-1)


@pytest.mark.parametrize("shape", [(), (0,), (63,), (64,), (65,), (2,) * 6, (1,) * 8, (1,) * 9])
@pytest.mark.parametrize("alignment", [1, 64, 128])
def test_copies_of_every_size_are_the_kernels_own(
    functions: Any, shape: tuple[int, ...], alignment: int
) -> None:
    """Small ones lie in the call itself: up to 256 bytes of 8 dimensions, 64-byte aligned."""
    size = int(np.prod(shape))
    memory = np.arange(4.0 * size + 8, dtype="f4")
    x = memory[1 : 1 + 2 * size : 2].reshape(shape)
    out = memory[3 + 2 * size : 3 + 4 * size : 2][::-1].reshape(shape)
    before = memory.copy()
    kernel(functions("negate"), alignment=alignment).run([take(x), take(out)])
    np.testing.assert_array_equal(out, -before[1 : 1 + 2 * size : 2].reshape(shape))
    out[...] = before[3 + 2 * size : 3 + 4 * size : 2][::-1].reshape(shape)
    np.testing.assert_array_equal(memory, before)


@given(data=st.data(), shape=shapes)
def test_nothing_that_overlaps_is_let_through(
    functions: Any, data: Any, shape: tuple[int, ...]
) -> None:
    memory = np.zeros(3 ** len(shape) * int(np.prod(shape)) + 2, "f4")
    x, out = data.draw(views(shape, memory)), data.draw(views(shape, memory))
    run = kernel(functions("nothing"), contiguous=False).run
    if np.shares_memory(x, out):
        with pytest.raises(ExchangeError) as caught:
            run([take(x), take(out)])
        assert caught.value.reason == "overlap"
    elif not np.may_share_memory(x, out):
        run([take(x), take(out)])


@given(
    dims=st.lists(st.tuples(st.integers(0, 4), st.integers(-6, 6)), max_size=4),
)
def test_no_result_that_overlaps_itself_is_let_through(
    functions: Any, dims: list[tuple[int, int]]
) -> None:
    """Where every dimension steps over what the smaller ones reach, nothing is refused."""
    shape = tuple(extent for extent, _ in dims)
    memory = np.zeros(200, "f4")
    out = as_strided(memory[100:], shape, [4 * step for _, step in dims])
    places = offsets(out)
    run = kernel(functions("nothing"), contiguous=False).run
    x = take(np.zeros(shape, "f4"))
    if len(set(places.tolist())) < places.size:
        with pytest.raises(ExchangeError) as caught:
            run([x, take(out)])
        assert caught.value.reason == "overlap"
    elif is_nested(dims):
        run([x, take(out)])


def is_nested(dims: list[tuple[int, int]]) -> bool:
    """Return whether each dimension steps over all of the smaller ones, as in a slice."""
    reach = 0
    for step, extent in sorted((abs(step), extent) for extent, step in dims if extent > 1):
        if step <= reach:
            return False
        reach += step * (extent - 1)
    return True


def test_packed_elements_overlap_by_bits(functions: Any) -> None:
    """Two int4 tensors share a byte, and one of them is written."""
    schema = Schema.parse("test::f(x: i4[n]) -> i4[n]")
    targets = [(CPU, "dltensors", functions("nothing"), None)]
    encoded = schema.encode(), schema.encode_arguments()
    packed = native.KernelBase("test::f", *encoded, targets, schema=schema, contiguous=False)
    memory = np.zeros(8, "u1")

    def part(byte: int, count: int, step: int = 1) -> dlbridge.Tensor:
        address = memory.ctypes.data + byte
        return native.take_object(memory, address, (count,), (step,), (0, 4, 1), (CPU, 0))

    packed.run([part(0, 3), part(2, 3)])
    packed.run([part(0, 4, 4), part(1, 4, 4)])
    for x, out in ((part(0, 3), part(1, 3)), (part(0, 2, 8), part(4, 2))):
        with pytest.raises(ExchangeError) as caught:
            packed.run([x, out])
        assert caught.value.reason == "overlap"

"""The strided copy: against NumPy for whole bytes, against a bit by bit model below that."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge import from_dlpack
from dlbridge._core import native
from dlbridge.errors import ExchangeError

PADDED = 4  # DLPACK_FLAG_BITMASK_IS_SUBBYTE_TYPE_PADDED

# Element sizes with a loop of their own, and some without; as (code, bits, lanes).
WHOLE = {
    1: (1, 8, 1),
    2: (4, 16, 1),
    4: (2, 32, 1),
    8: (2, 64, 1),
    12: (2, 32, 3),
    16: (5, 128, 1),
    24: (0, 64, 3),
}


def tensor(
    memory: np.ndarray[Any, Any],
    offset: int,
    shape: Any,
    strides: Any,
    dtype: tuple[int, int, int],
    flags: int = 0,
) -> Any:
    """A Tensor over `memory` from byte `offset` on; strides in elements."""
    pointer = memory.ctypes.data + offset
    return native.take_object(memory, pointer, shape, strides, dtype, (1, 0), flags)


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> tuple[list[int], int, int]:
    """Strides of some order, steps and signs over `shape`; the first element; all elements."""
    strides = [0] * len(shape)
    reach = 1
    for axis in draw(st.permutations(range(len(shape)))):
        strides[axis] = reach * draw(st.sampled_from([1, 1, 1, 2, 3]))
        reach = strides[axis] * max(shape[axis], 1)
    first = 0
    for axis, extent in enumerate(shape):
        if draw(st.sampled_from([False, False, True])):
            first += strides[axis] * max(extent - 1, 0)
            strides[axis] = -strides[axis]
    return strides, first, reach


def broadcast(draw: st.DrawFn, strides: list[int]) -> list[int]:
    """Some of the strides zero: one element read many times."""
    return [0 if draw(st.sampled_from([False] * 4 + [True])) else stride for stride in strides]


@st.composite
def copies(draw: st.DrawFn, extent: int = 6) -> tuple[tuple[int, ...], Any, Any]:
    shape = tuple(draw(st.lists(st.integers(0, extent), max_size=4)))
    if draw(st.booleans()):
        shape = (*shape[:2], draw(st.integers(30, 70)), *shape[2:3])
    return shape, draw(layouts(shape)), draw(layouts(shape))


def random_bytes(count: int, seed: int) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)


@given(copies(), st.sampled_from(sorted(WHOLE)), st.data())
def test_whole_bytes_as_numpy_copies_them(drawn: Any, size: int, data: Any) -> None:
    shape, (to_strides, to_first, to_all), (from_strides, from_first, from_all) = drawn
    from_strides = broadcast(data.draw, from_strides)
    skew = data.draw(st.integers(0, 3))  # alignment is never assumed
    to, source = random_bytes(to_all * size + skew, 1), random_bytes(from_all * size + skew, 2)
    expected = to.copy()

    def view(memory: Any, first: int, strides: Any) -> Any:
        return np.ndarray(
            shape, f"V{size}", memory, skew + first * size, [stride * size for stride in strides]
        )

    view(expected, to_first, to_strides)[...] = view(source, from_first, from_strides)
    native.copy_into(
        tensor(to, skew + to_first * size, shape, to_strides, WHOLE[size]),
        tensor(source, skew + from_first * size, shape, from_strides, WHOLE[size]),
    )
    assert np.array_equal(to, expected)


def model(to: Any, source: Any, shape: Any, dtype: Any, flags: Any, layouts_: Any) -> Any:
    """The bits of `to` after an element by element copy."""
    code, bits, lanes = dtype
    pitches = [8 if flag else bits for flag in flags]
    result, given_bits = (np.unpackbits(memory, bitorder="little") for memory in (to, source))
    for index in np.ndindex(*shape):
        for lane in range(lanes):
            at, origin = (
                ((first + int(np.dot(index, strides))) * lanes + lane) * pitch
                for (strides, first), pitch in zip(layouts_, pitches, strict=True)
            )
            value = given_bits[origin : origin + bits]
            if flags[0] and flags[1]:
                value = given_bits[origin : origin + 8]
            elif flags[0]:
                fill = value[-1] if code == 0 else 0
                value = np.concatenate([value, np.full(8 - bits, fill, np.uint8)])
            result[at : at + len(value)] = value
    return result


def aligned(first: int, total: int, element_bits: int) -> tuple[int, int]:
    """Move the first element to where a byte begins."""
    moved = next(first + more for more in range(8) if (first + more) * element_bits % 8 == 0)
    return moved, total + moved - first


@given(
    copies(extent=4),
    st.sampled_from([(0, 4), (1, 2), (1, 1), (0, 1), (15, 6), (17, 4), (6, 1)]),
    st.integers(1, 3),
    st.tuples(st.booleans(), st.booleans()),
)
def test_bits_as_copied_one_by_one(drawn: Any, kind: Any, lanes: int, padded: Any) -> None:
    shape = drawn[0]
    dtype = (*kind, lanes)
    memories, tensors, layouts_ = [], [], []
    for flag, (strides, first, total), seed in zip(padded, drawn[1:], (3, 4), strict=True):
        element = (8 if flag else kind[1]) * lanes
        first, total = aligned(first, total, element)
        memory = random_bytes((total * element + 7) // 8 or 1, seed)
        memories.append(memory)
        layouts_.append((strides, first))
        at = first * element // 8
        tensors.append(tensor(memory, at, shape, strides, dtype, PADDED * flag))
    expected = model(*memories, shape, dtype, padded, layouts_)
    native.copy_into(*tensors)
    assert np.array_equal(np.unpackbits(memories[0], bitorder="little"), expected)


@pytest.mark.parametrize(
    "name", ["int4", "uint4", "int2", "uint2", "float4_e2m1fn", "float6_e3m2fn"]
)
def test_packed_and_back_keeps_values_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes", reason="ml_dtypes is not installed")
    from dlbridge.dtype import DType

    dtype = DType(name)
    values = np.arange(-64, 64).reshape(4, 32) % (1 << dtype.bits)
    if dtype.is_integer:
        values = values - (dtype.code == 0) * (1 << dtype.bits >> 1)
    values = values.astype(getattr(ml_dtypes, name))
    packed = native.allocate(values.shape, dtype.triple)
    back = np.empty(values.shape, values.dtype)
    strides = (1, 4)
    source = np.ascontiguousarray(values.T).T  # column-major
    native.copy_into(packed, tensor(source, 0, values.shape, strides, dtype.triple, PADDED))
    native.copy_into(tensor(back, 0, values.shape, (32, 1), dtype.triple, PADDED), packed)
    assert packed.nbytes == dtype.packed_bytes(values.size)
    assert np.array_equal(back.astype(np.float32), values.astype(np.float32))


@pytest.mark.parametrize("size", sorted(WHOLE))
@pytest.mark.parametrize("shape", [(257, 130), (4, 1030), (1030, 3), (65, 65, 5)])
def test_transposes_across_tiles(size: int, shape: tuple[int, ...]) -> None:
    source = random_bytes(int(np.prod(shape)) * size, 5).view(f"V{size}").reshape(shape)
    expected = np.ascontiguousarray(source.T)
    result = np.zeros_like(expected)
    strides = [stride // size for stride in source.T.strides]
    compact = [stride // size for stride in expected.strides]
    native.copy_into(
        tensor(result, 0, expected.shape, compact, WHOLE[size]),
        tensor(source, 0, expected.shape, strides, WHOLE[size]),
    )
    assert result.tobytes() == expected.tobytes()


def test_many_dimensions() -> None:
    shape = (1,) * 240 + (2,) * 14
    source = np.arange(1 << 14, dtype=np.int32)
    strides = [1] * 240 + [1 << axis for axis in range(14)]
    result = native.allocate(shape, (0, 32, 1))
    native.copy_into(result, tensor(source, 0, shape, strides, (0, 32, 1)))
    expected = source.reshape((2,) * 14).transpose()
    copied = np.from_dlpack(result.reshape(1 << 14))
    assert np.array_equal(copied, expected.reshape(-1))


def test_nothing_is_copied_into_read_only_memory():
    array = np.ones(4, np.float32)
    fixed = array.copy()
    fixed.flags.writeable = False
    with pytest.raises(ExchangeError, match="the destination is read-only") as caught:
        native.copy_into(from_dlpack(fixed), from_dlpack(array * 2))
    assert caught.value.reason == "readonly"
    assert fixed.tolist() == [1] * 4

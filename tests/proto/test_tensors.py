"""TensorProto: byte for byte what TensorFlow writes, and whatever it writes is read."""

from __future__ import annotations

import gc
import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from wire_oracle import Oracle, same, sample

import dlbridge
from dlbridge._core import native
from dlbridge.proto import (
    TensorValue,
    dump_tensor,
    dump_tensor_buffers,
    load_tensor,
    make_ndarray,
    make_tensor_proto,
    read_tensor,
    tensors,
)
from dlbridge.proto.datatypes import DATA_TYPES, DataType

VALUES = [dtype for dtype in DATA_TYPES.values() if not dtype.is_ref and dtype.kind != "h"]
DENSE = [dtype for dtype in VALUES if dtype.dlpack is not None]
SHAPES = [(), (1,), (2,), (1, 1), (2, 3), (0,), (2, 0, 3), (300,), (5, 1, 7)]


@pytest.fixture(scope="module")
def oracle(framework: Any) -> Oracle:
    return Oracle(framework("tensorflow"))


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.name)
def test_bytes_are_tensorflows(oracle: Oracle, dtype: DataType, shape: tuple[int, ...]) -> None:
    array = sample(dtype, shape)
    expected = oracle.write(array, dtype if dtype.is_quantized else None)
    if expected is None:  # TensorFlow has no typed field for three kinds of float8; its C++ does
        assert dtype.name in ("float8_e4m3fnuz", "float8_e4m3b11fnuz", "float8_e5m2fnuz")
    else:
        assert dump_tensor(array) == expected
    assert read_tensor(dump_tensor(array)) == TensorValue(dtype, array)


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.name)
def test_tensorflow_reads_our_tensors(oracle: Oracle, dtype: DataType) -> None:
    for shape in SHAPES:
        array = sample(dtype, shape)
        assert same(oracle.read(dump_tensor(array), dtype), array, dtype), shape


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.name)
def test_both_writers_of_tensorflow_are_read(oracle: Oracle, dtype: DataType) -> None:
    """tf.io.serialize_tensor writes content always; strings it has in string_val."""
    for shape in SHAPES:
        array = sample(dtype, shape)
        try:
            with oracle.tf.device("cpu"):
                data = oracle.tf.io.serialize_tensor(oracle.tf.constant(array)).numpy()
        except (oracle.tf.errors.NotFoundError, ValueError, TypeError):
            pytest.skip(f"TensorFlow has no kernel that serialises {dtype.name}")
        assert read_tensor(data) == TensorValue(dtype, array)


@pytest.mark.parametrize("dtype", DENSE, ids=lambda dtype: dtype.name)
def test_load_gives_the_tensor_and_dumps_again(dtype: DataType) -> None:
    for shape in SHAPES:
        data = dump_tensor(sample(dtype, shape))
        tensor = load_tensor(data)
        assert tensor.shape == shape
        assert tensor.dtype is dtype.dlpack
        assert dump_tensor(tensor) == data


@pytest.mark.parametrize("dtype", DENSE, ids=lambda dtype: dtype.name)
def test_packed_tensors_are_unpacked_on_the_wire(dtype: DataType) -> None:
    """Below 8 bits DLPack may share bytes; TensorFlow never does."""
    if dtype.dlpack is None or dtype.dlpack.bits >= 8:
        return
    array = sample(dtype, (5,))
    packed = dlbridge.empty((5,), dtype.dlpack)
    packed[:] = array
    assert packed.nbytes < 5
    assert read_tensor(dump_tensor(packed)) == TensorValue(dtype, array)


# ---- memory -------------------------------------------------------------------------------------


def test_large_content_is_shared_both_ways() -> None:
    array = np.arange(1 << 16, dtype=np.float32).reshape(256, 256)
    header, memory = dump_tensor_buffers(array)
    assert np.shares_memory(memory, array)
    data = bytearray(b"".join((header, memory)))
    tensor = load_tensor(data)
    assert tensor.data_ptr == np.frombuffer(data, np.uint8).ctypes.data + len(header)
    assert not tensor.readonly
    assert np.shares_memory(read_tensor(data).array, np.frombuffer(data, np.uint8))
    assert not read_tensor(data).array.flags.writeable


@pytest.mark.parametrize("dtype", ["complex64", "complex128", "bool"])
def test_typed_fields_that_are_as_memory_are_shared_too(dtype: str) -> None:
    array = np.ones((64, 64), dtype)
    header, memory = dump_tensor_buffers(array)
    assert np.shares_memory(memory, array)
    assert load_tensor(header + memory.tobytes()).tolist() == array.tolist()


def test_the_buffer_lives_as_long_as_the_tensor() -> None:
    before = native.live()
    data = bytearray(dump_tensor(np.arange(1000.0)))
    tensor = load_tensor(data)
    with pytest.raises(BufferError):
        data.extend(b"more")
    view = tensor[10:12]
    del tensor
    gc.collect()
    assert view.tolist() == [10, 11]
    del view
    gc.collect()
    data.extend(b"more")
    assert native.live() == before


def test_a_mapped_file_is_a_buffer(tmp_path: Path) -> None:
    path = tmp_path / "tensor.pb"
    path.write_bytes(dump_tensor(np.arange(5000.0)))
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        tensor = load_tensor(mapped)
        assert tensor.readonly
        assert float(np.asarray(tensor).sum()) == 4999 * 2500
        del tensor
        gc.collect()


def test_content_that_is_not_aligned_is_copied_by_those_who_need_it(framework: Any) -> None:
    jax = framework("jax")
    array = np.arange(1000, dtype=np.float32)
    data = b"x" + dump_tensor(array)
    tensor = load_tensor(memoryview(data)[1:])
    assert dlbridge.convert(tensor, "jax").tolist() == array.tolist()
    for offset in range(4):  # one of them is aligned by chance
        data = b"x" * offset + dump_tensor(array)
        tensor = load_tensor(memoryview(data)[offset:])
        assert dlbridge.to_numpy(tensor, readonly="share").tolist() == array.tolist()
        if tensor.data_ptr % 64:
            with pytest.raises(BufferError) as refusal:
                dlbridge.convert(tensor, "jax", copy=False)
            assert refusal.value.reason == "alignment"
    assert jax is not None


def test_any_framework_and_layout_is_written(framework: Any) -> None:
    torch = framework("torch")
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    expected = dump_tensor(array)
    assert dump_tensor(torch.from_numpy(array)) == expected
    assert dump_tensor(torch.from_numpy(array.T.copy()).T) == expected
    assert dump_tensor(dlbridge.as_tensor(array)) == expected
    assert dump_tensor(np.asfortranarray(array)) == expected
    assert dump_tensor(array.astype(">f4")) == expected
    assert dump_tensor(np.repeat(array, 2, 1)[:, ::2]) == expected
    bfloat16 = torch.arange(3, dtype=torch.bfloat16)
    assert load_tensor(dump_tensor(bfloat16)).tolist() == [0, 1, 2]


def test_memory_on_a_device_is_refused() -> None:
    tensor = dlbridge.as_tensor(np.zeros(3))
    elsewhere = native.take_object(tensor, tensor.data_ptr, (3,), None, (2, 64, 1), (2, 0))
    with pytest.raises(BufferError, match="out of the CPU's reach") as refusal:
        dump_tensor(elsewhere)
    assert refusal.value.reason == "device"


def test_a_tensor_of_254_dimensions_goes_both_ways() -> None:
    array = np.arange(6.0)
    data = dump_tensor(array)
    many = dlbridge.as_tensor(array).reshape(*(1,) * 253, 6)
    head = b"\x08\x02\x12" + b"\xf8\x07" + b"\x12\x02\x08\x01" * 253 + b"\x12\x02\x08\x06"
    assert load_tensor(head + data[8:]).shape == many.shape
    with pytest.raises(ValueError, match="NumPy has no arrays of shape"):
        read_tensor(head + data[8:])


def test_two_gigabytes_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    half = np.broadcast_to(np.zeros(1, np.uint8), (1 << 31,))
    value = TensorValue("uint8", half)
    parts = tensors.Parts(b"", b"\x22", memoryview(b""))
    assert b"".join(parts.buffers()) == b"\x22\x00"

    class Large:
        def __len__(self) -> int:
            return 1 << 31

    with pytest.raises(ValueError, match="less than 2 GiB"):
        tensors.Parts(b"", b"\x22", Large()).buffers()
    assert len(dump_tensor(value)) < 30  # one value, repeated


# ---- TensorFlow's functions ---------------------------------------------------------------------


@pytest.mark.parametrize("dtype", VALUES, ids=lambda dtype: dtype.name)
def test_make_ndarray_reads_both_messages(oracle: Oracle, dtype: DataType) -> None:
    array = sample(dtype, (2, 3))
    ours = make_tensor_proto(array)
    theirs = oracle.TensorProto.FromString(ours.SerializeToString())
    for message in (ours, theirs):
        again = make_ndarray(message)
        assert again.dtype == array.dtype
        assert same(again, array, dtype)
        assert again.flags.writeable
    assert make_tensor_proto(theirs) is theirs


def test_make_tensor_proto_is_tensorflows(oracle: Oracle) -> None:
    for values, dtype, shape in (
        (3.0, None, None), (7, None, (2, 3)), ([1, 2, 3, 4], "int64", (2, 2)), ("text", None, None),
        (["a", b"b\0"], None, None), ([], None, None), ([True, False], None, None),
        (1j, None, None),
        (0.0, "float16", (1000,)), ([[1.5]], "bfloat16", None), (2**40, None, None),
        (5, "float32", (1,)), ([(1,), (2,)], "qint8", None),
    ):  # fmt: skip
        number = dtype and dlbridge.proto.as_dtype(dtype).number
        expected = oracle.tf.make_tensor_proto(values, dtype=number, shape=shape)
        ours = make_tensor_proto(values, dtype=dtype, shape=shape)
        assert ours.SerializeToString() == expected.SerializeToString(), (values, dtype, shape)
    with pytest.raises(ValueError, match="not both"):
        make_tensor_proto(1, verify_shape=True, allow_broadcast=True)


# ---- what is not a tensor ------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["string", "qint8"])
def test_load_tensor_names_read_tensor_for_what_dlpack_lacks(dtype: str) -> None:
    data = dump_tensor(sample(dlbridge.proto.as_dtype(dtype), (2,)))
    with pytest.raises(BufferError, match="read_tensor") as refusal:
        load_tensor(data)
    assert refusal.value.reason == "dtype"


def test_anything_but_a_buffer_is_refused() -> None:
    with pytest.raises(TypeError, match="load_tensor: bytes or another buffer"):
        load_tensor("text")
    with pytest.raises(ValueError, match="contiguous"):
        load_tensor(memoryview(b"abcd")[::2])
    released = memoryview(b"abcd")
    released.release()
    with pytest.raises(ValueError, match="load_tensor"):
        load_tensor(released)


def test_buffers_of_other_formats_are_bytes() -> None:
    data = dump_tensor(np.arange(4.0))
    padded = data + b"\x18\x00" * ((-len(data) % 4) // 2 + 2)
    words = np.frombuffer(padded[: len(padded) // 2 * 2], np.uint16)
    assert load_tensor(words).tolist() == [0, 1, 2, 3]

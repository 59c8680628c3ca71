"""NumPy's own rules: what becomes of arrays that DLPack cannot say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from dlpack_peers import Description, LegacyProducer, ModernProducer, describe

import dlbridge
from dlbridge import ExchangeError, UnsupportedTypeError, from_dlpack, to_numpy
from peers.checks import receipt_of, refused
from peers.readers import filled, has


@pytest.mark.parametrize("dtype", [">f4", ">i8", ">c16", ">u2"])
def test_a_foreign_byte_order_is_copied_by_numpy(dtype: str) -> None:
    x = np.arange(6).astype(dtype).reshape(2, 3)
    y = from_dlpack(x)
    assert y.tolist() == x.tolist()
    assert np.asarray(y).dtype.isnative
    receipt = receipt_of(x, "dlbridge")
    assert (receipt.copied_by, receipt.why) == ("numpy", "byte_order")
    refused("byte_order", from_dlpack, x, copy=False)


def test_one_byte_has_no_byte_order() -> None:
    x = np.arange(3).astype(">u1")
    assert from_dlpack(x, copy=False).data_ptr == x.ctypes.data


UNNAMEABLE = {
    "object": np.array([1, "a"], object),
    "bytes": np.array([b"a"]),
    "text": np.array(["a"]),
    "structured": np.zeros(2, "f4,i4"),
    "void": np.zeros(2, "V4"),
    "datetime": np.zeros(2, "M8[s]"),
    "timedelta": np.zeros(2, "m8[s]"),
    "longdouble": np.zeros(2, np.longdouble),
    "clongdouble": np.zeros(2, np.clongdouble),
}


@pytest.mark.parametrize("name", UNNAMEABLE)
def test_dtypes_that_dlpack_cannot_name_are_refused(name: str) -> None:
    x = UNNAMEABLE[name]
    for call in (from_dlpack, to_numpy, dlbridge.as_tensor):
        if call is to_numpy:
            assert to_numpy(x) is x  # nothing is exchanged
        else:
            refused("dtype", call, x)
    refused("dtype", to_numpy, x, copy=True)


def test_new_strings_are_refused() -> None:
    if not hasattr(np.dtypes if hasattr(np, "dtypes") else np, "StringDType"):
        pytest.skip("this NumPy has no StringDType")
    refused("dtype", from_dlpack, np.array(["a"], np.dtypes.StringDType()))


def _field() -> np.ndarray[Any, Any]:
    table = np.zeros(4, [("a", "u1"), ("b", "f4")])
    table["b"] = [1, 2, 3, 4]
    return table["b"]  # steps of five bytes


def test_strides_of_no_whole_elements_are_copied_by_numpy() -> None:
    x = _field()
    assert x.strides == (5,)
    assert from_dlpack(x).tolist() == [1, 2, 3, 4]
    receipt = receipt_of(x, "dlbridge")
    assert (receipt.copied_by, receipt.why) == ("numpy", "strides")
    refused("strides", from_dlpack, x, copy=False)


def test_scalars_are_copied() -> None:
    x = np.float32(2.5)
    assert from_dlpack(x).shape == ()
    assert to_numpy(x).tolist() == 2.5
    assert receipt_of(x, "dlbridge").copied_by == "numpy"
    refused("copy_required", from_dlpack, x, copy=False)


def test_read_only_memory_stays_read_only(tmp_path: Path) -> None:
    path = tmp_path / "x"
    np.arange(4.0).tofile(path)
    x = np.memmap(path, mode="r", dtype=np.float64)
    tensor = from_dlpack(x)
    assert tensor.readonly
    back = to_numpy(tensor)
    assert not back.flags.writeable
    assert back.ctypes.data == x.ctypes.data
    assert to_numpy(tensor, readonly="copy") is not None
    assert to_numpy(x, copy=True).flags.writeable


def test_a_writable_memmap_is_shared(tmp_path: Path) -> None:
    x = np.memmap(tmp_path / "x", mode="w+", dtype=np.float64, shape=(3,))
    y = to_numpy(x)
    y[0] = 7
    assert x[0] == 7


def test_masks() -> None:
    masked = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
    refused("masked", from_dlpack, masked)
    refused("masked", to_numpy, masked)
    unmasked = np.ma.array([1.0, 2, 3])
    assert from_dlpack(unmasked).data_ptr == unmasked.data.ctypes.data
    all_false = np.ma.array([1.0, 2], mask=[0, 0])
    refused("masked", from_dlpack, all_false)


@pytest.mark.filterwarnings("ignore:the matrix subclass")
def test_subclasses() -> None:
    matrix = np.matrix([[1.0, 2], [3, 4]])
    assert from_dlpack(matrix).shape == (2, 2)

    class Own(np.ndarray):
        pass

    x = np.arange(3.0).view(Own)
    assert from_dlpack(x).data_ptr == x.ctypes.data
    assert type(to_numpy(x)) is np.ndarray
    record = np.rec.array([(1, 2.0)], dtype=[("a", "i4"), ("b", "f8")])
    refused("dtype", from_dlpack, record)


def test_anything_but_an_array_is_refused() -> None:
    for x in (object(), None, "text", {1, 2}, np.dtype("f4"), np):
        with pytest.raises(UnsupportedTypeError):
            from_dlpack(x)


@pytest.mark.parametrize(
    "name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "uint4", "int2", "float4_e2m1fn"]
)
def test_dtypes_of_ml_dtypes_go_round(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    x = np.array([0, 1, -2 if not name.startswith("u") else 2, 1], getattr(ml_dtypes, name))
    tensor = from_dlpack(x)
    assert tensor.dtype == name
    assert tensor.data_ptr == x.ctypes.data  # one element per byte: padded, and shared
    back = to_numpy(tensor)
    assert back.dtype == x.dtype
    assert back.tobytes() == x.tobytes()
    packed = from_dlpack(tensor.copy()) if tensor.dtype.bits >= 8 else dlbridge.empty((4,), name)
    assert packed.nbytes <= x.nbytes


def test_the_layout_policy() -> None:
    x = filled((4, 6), "float32")
    assert not to_numpy(from_dlpack(x.T)).flags.c_contiguous
    compact = to_numpy(x.T, layout="contiguous")
    assert compact.flags.c_contiguous
    assert np.array_equal(compact, x.T)
    refused("strides", to_numpy, x.T, layout="contiguous", copy=False)
    assert to_numpy(x, layout="contiguous", copy=False).ctypes.data == x.ctypes.data


def test_the_device_policy() -> None:
    x = filled((3,), "float32")
    assert to_numpy(x, device="cpu").ctypes.data == x.ctypes.data
    refused("device", to_numpy, x, device="cuda:0")


def test_the_readonly_policy_changes_nothing_for_numpy() -> None:
    x = filled((3,), "float32")
    x.flags.writeable = False
    producer = ModernProducer(x)
    for readonly in ("respect", "share", "copy"):
        assert not to_numpy(producer, readonly=readonly).flags.writeable


def test_an_array_is_its_own_conversion() -> None:
    x = np.arange(3.0)
    assert to_numpy(x) is x
    assert to_numpy(x, copy=True) is not x
    assert receipt_of(x, "numpy").route == "identity"


def test_the_c_path_and_the_python_path_agree() -> None:
    x = filled((4, 6), "float32")
    producer = ModernProducer(describe(x))
    fast = to_numpy(from_dlpack(x))
    with dlbridge.receipts():
        slow = to_numpy(from_dlpack(x))
    for y in (fast, slow, to_numpy(producer)):
        assert (y.ctypes.data, y.strides, y.dtype) == (x.ctypes.data, x.strides, x.dtype)
        assert y.flags.writeable


def test_errors_are_both_ours_and_buffer_errors() -> None:
    with pytest.raises(BufferError):
        from_dlpack(UNNAMEABLE["object"])
    assert issubclass(ExchangeError, BufferError)


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.fact(14)
def test_elements_at_a_null_pointer_are_refused() -> None:
    """NumPy returns uninitialised memory of its own for them."""
    refused("null_data", dlbridge.to_numpy, ModernProducer(Description(shape=(3,), data=None)))


@pytest.mark.fact(15)
def test_a_mask_is_never_dropped() -> None:
    """NumPy exports the data of a masked array, and not which elements count."""
    x = np.ma.array([1.0, 2, 3], mask=[0, 1, 0])
    assert "filled" in refused("masked", from_dlpack, x)
    assert from_dlpack(np.ma.array([1.0, 2])).tolist() == [1, 2]


@pytest.mark.fact(21)
def test_imports_of_legacy_capsules_are_writable() -> None:
    """NumPy's own import marks them read-only."""
    x = filled((3,), "float32")
    y = dlbridge.to_numpy(LegacyProducer(x))
    assert y.flags.writeable
    assert y.ctypes.data == x.ctypes.data


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["complex32", "bcomplex32"])
def test_complex_numbers_of_16_bit_parts_are_those_of_ml_dtypes(name: str) -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    if not hasattr(ml_dtypes, name):
        pytest.skip(f"this ml_dtypes has no {name}")
    x = np.array([1 + 2j, -0.5]).astype(getattr(ml_dtypes, name))
    tensor = dlbridge.from_dlpack(x)
    assert (tensor.dtype, tensor.tolist()) == (dlbridge.DType(name), [1 + 2j, -0.5])
    assert dlbridge.to_numpy(tensor).dtype == x.dtype
    assert dlbridge.to_numpy(tensor).ctypes.data == x.ctypes.data
    wide = dlbridge.to_numpy(x, dtype="complex64")
    assert wide.tolist() == [1 + 2j, -0.5]
    assert dlbridge.to_numpy(wide, dtype=name).tobytes() == x.tobytes()
    if hasattr(pytest.importorskip("torch"), name):
        shared = dlbridge.to_torch(x)
        assert dlbridge.to_numpy(shared).ctypes.data == shared.data_ptr() == x.ctypes.data


@pytest.mark.fact(22)
def test_bfloat16_is_shared_with_torch_in_both_directions() -> None:
    """NumPy neither imports nor exports any dtype of ml_dtypes through DLPack."""
    torch = pytest.importorskip("torch")
    ml_dtypes = pytest.importorskip("ml_dtypes")
    x = torch.tensor([1.5, -2], dtype=torch.bfloat16)
    y = dlbridge.to_numpy(x)
    assert y.dtype == ml_dtypes.bfloat16
    assert y.ctypes.data == x.data_ptr()
    assert dlbridge.to_torch(y).data_ptr() == x.data_ptr()
    if has("pyarrow"):
        refused("dtype", dlbridge.to_pyarrow, x)

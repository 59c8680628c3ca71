"""PyArrow's own rules: nulls, bits, pieces, and memory that never changes."""

from __future__ import annotations

import gc
import sys
from typing import Any

import numpy as np
import pytest
from dlpack_peers import ModernProducer, describe

import dlbridge
from dlbridge import ExchangeError, UnsupportedTypeError, from_dlpack, to_numpy, to_pyarrow
from dlbridge._core import native
from dlbridge.frameworks import pyarrow as adapter
from peers.checks import receipt_of, refused
from peers.readers import filled, read

pa = pytest.importorskip("pyarrow")
pc = pytest.importorskip("pyarrow.compute")

REFUSED = {
    "nulls": ("masked", lambda: pa.array([1, None, 3])),
    "all nulls": ("masked", lambda: pa.nulls(3, pa.int32())),
    "nulls in a chunk": ("masked", lambda: pa.chunked_array([[1, None]])),
    "bool": ("dtype", lambda: pa.array([True, False])),
    "text": ("dtype", lambda: pa.array(["a"])),
    "date": ("dtype", lambda: pa.array([1], pa.date32())),
    "time": ("dtype", lambda: pa.array([1], pa.timestamp("s"))),
    "duration": ("dtype", lambda: pa.array([1], pa.duration("s"))),
    "decimal": ("dtype", lambda: pa.array([1], pa.decimal128(5, 2))),
    "list": ("dtype", lambda: pa.array([[1], [2, 3]])),
    "dictionary": ("dtype", lambda: pa.array([1, 1]).dictionary_encode()),
    "struct": ("dtype", lambda: pa.array([{"a": 1}])),
    "sparse": ("sparse", lambda: pa.SparseCOOTensor.from_dense_numpy(np.eye(2))),
    "sparse rows": ("sparse", lambda: pa.SparseCSRMatrix.from_dense_numpy(np.eye(2))),
}


@pytest.mark.parametrize("name", REFUSED)
def test_arrays_of_other_kinds_than_numbers_are_refused(name: str) -> None:
    reason, make = REFUSED[name]
    for call in (from_dlpack, to_numpy):
        refused(reason, call, make())


ADVICE = {
    "bool": ('x.cast("uint8")', lambda x: x.cast("uint8"), [1, 0]),
    "date": ('x.cast("int32")', lambda x: x.cast("int32"), [1]),
    "time": ('x.cast("int64")', lambda x: x.cast("int64"), [1]),
    "duration": ('x.cast("int64")', lambda x: x.cast("int64"), [1]),
    "decimal": ('x.cast("float64")', lambda x: x.cast("float64"), [1.0]),
    "list": ("pyarrow.compute.list_flatten(x)", lambda x: pc.list_flatten(x), [1, 2, 3]),
    "dictionary": ("x.indices", lambda x: x.indices, [0, 0]),
    "struct": ("pyarrow.Table.from_struct_array(x)", lambda x: pa.Table.from_struct_array(x), [1]),
}


@pytest.mark.parametrize("name", ADVICE)
def test_the_advice_gives_the_numbers(name: str) -> None:
    """Of an array and, but for a dictionary, of one in chunks."""
    words, way, expected = ADVICE[name]
    array = REFUSED[name][1]()
    for x in (array, pa.chunked_array([array])):
        with pytest.raises(ExchangeError) as caught:
            from_dlpack(x)
        assert words in str(caught.value)
        if name != "dictionary" or x is array:
            made = dlbridge.convert_tree(way(x), "numpy")
            assert (made["a"] if name == "struct" else made).tolist() == expected


def test_tables_readers_and_scalars_are_no_tensors() -> None:
    table = pa.table({"a": [1]})
    cases = {
        "pass the table to convert_tree for a dict of its columns": (table, table),
        "pass x.read_all(), a table, to convert_tree": (table.to_reader(), table),
        "pass x.as_py() to as_tensor": (pa.scalar(3), pa.scalar(3).as_py()),
    }
    for words, (x, inside) in cases.items():
        with pytest.raises(UnsupportedTypeError) as caught:
            from_dlpack(x)
        assert words in str(caught.value)
        if "table" in words:
            assert dlbridge.convert_tree(inside, "numpy")["a"].tolist() == [1]
        else:
            assert dlbridge.as_tensor(inside).tolist() == 3


def test_arrays_are_read_only_and_shared() -> None:
    x = pa.array(np.arange(5.0))
    for view in (x, x[2:]):
        tensor = from_dlpack(view)
        assert tensor.readonly
        assert (tensor.tolist(), tensor.data_ptr) == (view.to_pylist(), read("pyarrow", view)[1])
        assert not to_numpy(view).flags.writeable


def test_a_slice_without_its_nulls_goes_out() -> None:
    assert from_dlpack(pa.array([1, 2, None])[:2]).tolist() == [1, 2]


def test_chunks() -> None:
    one = pa.chunked_array([[1, 2, 3]])
    assert from_dlpack(one, copy=False).data_ptr == one.chunk(0).buffers()[1].address
    several = pa.chunked_array([[1, 2], [3]])
    assert from_dlpack(several).tolist() == [1, 2, 3]
    assert receipt_of(several, "numpy").copied_by == "pyarrow"
    assert "chunks" in refused("copy_required", from_dlpack, several, copy=False)
    none = pa.chunked_array([], pa.int64())
    assert from_dlpack(none).shape == (0,)


def test_tensors() -> None:
    x = np.arange(6.0).reshape(2, 3)
    mutable = pa.Tensor.from_numpy(x)
    assert not from_dlpack(mutable).readonly
    assert from_dlpack(mutable).data_ptr == x.ctypes.data
    x.flags.writeable = False
    assert from_dlpack(pa.Tensor.from_numpy(x)).readonly


def test_arrays_of_tensors() -> None:
    x = np.arange(6.0).reshape(3, 2)
    array = pa.FixedShapeTensorArray.from_numpy_ndarray(x)
    tensor = from_dlpack(array)
    assert tensor.tolist() == x.tolist()
    assert tensor.readonly


def test_nulls_inside_of_an_array_of_tensors_are_refused() -> None:
    """Arrow counts whole tensors that are null; single numbers in them would become values."""
    storage = pa.array([[1, None], [3, 4]], pa.list_(pa.int32(), 2))
    array = pa.ExtensionArray.from_storage(pa.fixed_shape_tensor(pa.int32(), [2]), storage)
    assert array.null_count == 0
    for call in (from_dlpack, to_numpy):
        assert "1 nulls" in refused("masked", call, array)
    assert from_dlpack(array[1:]).tolist() == [[3, 4]]


def test_lists_of_one_length_are_one_more_dimension() -> None:
    numbers = [[1, 2], [3, 4], [5, 6]]
    array = pa.array(numbers, pa.list_(pa.int32(), 2))
    tensor = from_dlpack(array, copy=False)
    assert tensor.tolist() == numbers
    assert tensor.readonly
    assert tensor.data_ptr == array.flatten().buffers()[1].address
    assert from_dlpack(array[1:], copy=False).tolist() == numbers[1:]
    nested = pa.array([[[1.0, 2.0]], [[3.0, 4.0]]], pa.list_(pa.list_(pa.float32(), 2), 1))
    assert from_dlpack(nested, copy=False).shape == (2, 1, 2)
    assert from_dlpack(array[:0]).shape == (0, 2)
    assert from_dlpack(pa.array([[], []], pa.list_(pa.int8(), 0))).shape == (2, 0)


def test_lists_with_nulls_and_of_bits_are_refused() -> None:
    for numbers in ([[1, 2], None], [[1, None]]):
        array = pa.array(numbers, pa.list_(pa.int32(), 2))
        assert "1 nulls" in refused("masked", to_numpy, array)
    bits = pa.array([[True, False]], pa.list_(pa.bool_(), 2))
    assert "cast it to uint8" in refused("dtype", to_numpy, bits)


@pytest.mark.parametrize("make", [lambda table: table, lambda table: table.to_batches()[0]])
def test_a_table_is_a_dict_of_its_columns(make: Any) -> None:
    pairs = pa.array([[1, 2], [3, 4]], pa.list_(pa.int32(), 2))
    table = make(pa.table({"x": [1.0, 2.0], "pairs": pairs}))
    made = dlbridge.convert_tree({"table": table}, "dlbridge", copy=False)["table"]
    assert {name: x.tolist() for name, x in made.items()} == {
        "x": [1, 2],
        "pairs": [[1, 2], [3, 4]],
    }
    addresses = [table["x"], table["pairs"]]
    chunks = [x.chunk(0) if isinstance(x, pa.ChunkedArray) else x for x in addresses]
    assert made["x"].data_ptr == chunks[0].buffers()[1].address
    assert made["pairs"].data_ptr == chunks[1].flatten().buffers()[1].address


def test_a_column_in_several_chunks_or_with_nulls() -> None:
    table = pa.table({"x": [1, 2]})
    twice = pa.concat_tables([table, table])
    with dlbridge.receipts() as log:
        made = dlbridge.convert_tree(twice, "numpy")
    assert made["x"].tolist() == [1, 2, 1, 2]
    assert [each.copied_by for each in log] == ["pyarrow"]
    said = refused("copy_required", dlbridge.convert_tree, twice, "numpy", copy=False)
    assert "at ['x']" in said
    empty = table.schema.empty_table()
    assert dlbridge.convert_tree(empty, "numpy", copy=False)["x"].shape == (0,)
    assert "at ['x']" in refused(
        "masked", dlbridge.convert_tree, pa.table({"x": [1, None]}), "numpy"
    )


def test_a_table_whose_columns_have_one_name_is_refused() -> None:
    table = pa.Table.from_arrays([[1], [2]], names=["x", "x"])
    with pytest.raises(dlbridge.ArgumentError, match="two of its columns are called 'x'"):
        dlbridge.convert_tree(table, "numpy")


def test_buffers() -> None:
    buffer = pa.py_buffer(b"abc")
    tensor = from_dlpack(buffer)
    assert (tensor.tolist(), tensor.readonly) == ([97, 98, 99], True)


DTYPES = ["float16", "float32", "float64"]
DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    x = filled((2, 3), name)
    tensor = to_pyarrow(x)
    assert (tensor.to_numpy().dtype, tensor.to_numpy().ctypes.data) == (x.dtype, x.ctypes.data)
    assert from_dlpack(tensor).dtype == name


@pytest.mark.parametrize(
    "triple", [(6, 8, 1), (5, 64, 1), (4, 16, 1), (10, 8, 1), (0, 4, 1), (3, 64, 1)]
)
def test_dtypes_that_arrow_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_pyarrow, native.allocate((4,), triple))


def test_read_only_is_kept() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    tensor = to_pyarrow(x)
    assert not tensor.is_mutable
    assert tensor.to_numpy().ctypes.data == x.ctypes.data
    assert to_pyarrow(filled((4,), "float32")).is_mutable


@pytest.mark.fact(30)
def test_layouts() -> None:
    """Arrow takes no negative strides, not even of single elements."""
    x = filled((4, 6), "float32")
    for view in (x.T, x[::2], x[1:, 2:]):
        assert to_pyarrow(view, copy=False).to_numpy().tolist() == view.tolist()
    assert receipt_of(x[::-1], "pyarrow").why == "strides"
    refused("strides", to_pyarrow, x[::-1], copy=False)
    odd = ModernProducer(describe(x, shape=(1, 24), strides=(-3, 1)))
    assert to_pyarrow(odd, copy=False).shape == (1, 24)


@pytest.mark.fact(19)
def test_a_producer_of_legacy_capsules_reaches_arrow() -> None:
    """Arrow takes versioned capsules only."""

    class Legacy:
        tensor = from_dlpack(filled((4,), "float32"))

        def __dlpack__(self, **keywords: object) -> object:
            return self.tensor.__dlpack__()

        def __dlpack_device__(self) -> tuple[int, int]:
            return (1, 0)

    assert to_pyarrow(Legacy()).to_numpy().ctypes.data == Legacy.tensor.data_ptr
    with pytest.raises(ValueError, match="PyCapsule"):
        pa.Tensor.from_dlpack(Legacy())  # which is why there is a way round
    del Legacy.tensor


def test_zero_size_and_scalars() -> None:
    assert to_pyarrow(np.zeros((0, 3))).shape == (0, 3)
    assert to_pyarrow(np.float64(2.5)).to_numpy().tolist() == 2.5
    assert from_dlpack(pa.array([], pa.int64())).shape == (0,)


def test_an_arrow_without_from_dlpack_takes_a_numpy_array(monkeypatch: pytest.MonkeyPatch) -> None:
    class Old:
        from_numpy = staticmethod(pa.Tensor.from_numpy)

    class Module:
        Tensor = Old

    monkeypatch.setattr(adapter.PyArrow, "import_module", lambda self: Module)
    x = filled((4, 6), "float32")
    tensor = to_pyarrow(x.T)
    assert tensor.to_numpy().ctypes.data == x.ctypes.data
    assert tensor.shape == (6, 4)


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.fact(16)
def test_legacy_capsules_of_arrays_are_read_only() -> None:
    """Arrow marks its versioned capsules only."""
    array = pa.array([1, 2, 3])
    assert from_dlpack(array).readonly
    pytest.importorskip("torch")
    refused("readonly", dlbridge.to_torch, array)


# ---- the C path: the same as what Python does ----------------------------------------------------


@pytest.mark.parametrize("dtype", ["int8", "uint64", "float16", "float32", "float64"])
@pytest.mark.parametrize("shape", [(), (0,), (1,), (2, 0), (3, 4)])
@pytest.mark.parametrize("is_readonly", [False, True])
def test_c_makes_the_tensor_that_python_makes(dtype: str, shape: Any, is_readonly: bool) -> None:
    x = filled(shape, dtype) if shape else filled((1,), dtype).reshape(())
    x.flags.writeable = not is_readonly
    fast = to_pyarrow(x)
    with dlbridge.receipts() as log:
        slow = to_pyarrow(x)
    assert log[0].shared
    for made in (fast, slow):
        assert (made.type, made.shape, made.strides) == (slow.type, slow.shape, slow.strides)
        assert (made.is_mutable, made.size) == (slow.is_mutable, x.size)
        assert np.array_equal(made.to_numpy(), x)


@pytest.mark.parametrize("values", [[1, 2, 3], [1.5], [], [1, None]])
@pytest.mark.parametrize("kind", [pa.int8(), pa.uint64(), pa.float32(), pa.float64()])
def test_c_takes_the_array_as_python_does(values: Any, kind: Any) -> None:
    if any(value != int(value or 0) for value in values if value) and pa.types.is_integer(kind):
        values = [1]
    x = pa.array(values, kind)
    for part in (x, x[1:]):
        if part.null_count:
            refused("masked", from_dlpack, part)
            continue
        fast = from_dlpack(part)
        with dlbridge.receipts():
            slow = from_dlpack(part)
        assert describe_both(fast) == describe_both(slow)


def describe_both(tensor: Any) -> Any:
    return tensor.data_ptr, tensor.shape, tensor.strides, tensor.dtype, tensor.flags


def test_an_array_goes_out_without_a_warning(recwarn: Any) -> None:
    """PyArrow deprecates capsules without a version: they are asked for with one."""
    to_numpy(pa.array([1.0, 2.0]))
    assert not recwarn.list


def test_the_memory_of_an_array_is_kept() -> None:
    tensor = from_dlpack(pa.array(np.arange(1000)))
    other = [pa.array(np.ones(1000)) for _ in range(20)]
    assert tensor.tolist() == list(range(1000))
    assert len(other) == 20


def test_an_array_goes_to_arrow_as_it_is_and_lives_as_long():
    """Arrow's own function gets the array itself, where nothing is to be changed."""
    array = np.arange(6.0).reshape(2, 3)
    dlbridge.to_pyarrow(array)  # the first call is Python's
    alive = native.live()["tensors"]
    made = dlbridge.to_pyarrow(array)
    assert native.live()["tensors"] == alive
    assert made.to_numpy().ctypes.data == array.ctypes.data
    assert made.is_mutable
    references = sys.getrefcount(array)
    again = dlbridge.to_pyarrow(array, copy=False)
    assert sys.getrefcount(array) == references + 1
    del again
    assert sys.getrefcount(array) == references
    array.flags.writeable = False
    assert not dlbridge.to_pyarrow(array).is_mutable
    single = np.arange(4.0)[:1][::-1]  # Arrow takes no negative strides, not even of one element
    assert dlbridge.to_pyarrow(single).strides == (8,)
    kept = dlbridge.to_pyarrow(np.full(1000, 7.0))
    assert (kept.to_numpy() == 7).all()


def test_the_buffer_of_a_tensor_is_held_without_a_memoryview():
    tensor = pa.Tensor.from_numpy(np.arange(6.0).reshape(2, 3))
    taken = dlbridge.from_dlpack(tensor)
    assert "managedbuffer" not in {type(each).__name__ for each in gc.get_referrers(tensor)}
    del tensor
    gc.collect()
    assert np.asarray(taken).tolist() == [[0, 1, 2], [3, 4, 5]]

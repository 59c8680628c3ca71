"""pandas and polars: columns are tensors, tables are dicts of them, nothing is copied unasked."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import ArgumentError, ExchangeError, UnsupportedTypeError, convert_tree, from_dlpack


@pytest.fixture
def pd(framework: Any) -> Any:
    return framework("pandas")


@pytest.fixture
def pl(framework: Any) -> Any:
    return framework("polars")


def refusal(reason: str, x: Any, **policies: Any) -> str:
    """Return the text of the refusal, which names the call that was made."""
    with pytest.raises(ExchangeError) as caught:
        from_dlpack(x, **policies)
    assert caught.value.reason == reason
    assert str(caught.value).startswith("from_dlpack: ")
    with pytest.raises(ExchangeError, match=r"^convert_tree: at \['a'\]\[0\]: "):
        convert_tree({"a": [x]}, "numpy", **policies)
    return str(caught.value)


# ---- pandas --------------------------------------------------------------------------------------

NUMBERS = [
    "bool",
    *(f"{s}int{b}" for s in ("", "u") for b in (8, 16, 32, 64)),
    "float32",
    "float64",
]


@pytest.mark.parametrize("dtype", [*NUMBERS, "complex128"])
def test_a_series_is_shared(pd: Any, dtype: str) -> None:
    x = pd.Series([1, 0, 1], dtype=dtype)
    tensor = from_dlpack(x, copy=False)
    assert (tensor.dtype, tensor.tolist()) == (dtype, x.tolist())
    assert tensor.data_ptr == x.to_numpy().ctypes.data
    assert tensor.readonly is not x.to_numpy().flags.writeable


@pytest.mark.parametrize("dtype", ["boolean", "Int8", "UInt16", "Int64", "Float32"])
def test_a_masked_series_is_shared_where_nothing_is_missing(pd: Any, dtype: str) -> None:
    x = pd.Series([1, 0, 1], dtype=dtype)
    for each in (x, x.array, pd.Index(x)):
        tensor = from_dlpack(each, copy=False)
        assert (tensor.dtype, tensor.tolist()) == (x.dtype.numpy_dtype, [1, 0, 1])
        assert tensor.readonly  # a copy of the Series may share the memory
    plain = x.to_numpy(dtype=x.dtype.numpy_dtype)
    assert from_dlpack(x).data_ptr == plain.ctypes.data
    said = refusal("masked", pd.Series([1, None, 1], dtype=dtype))
    assert f"1 missing values of the pandas.Series of {x.dtype}" in said
    assert "x.fillna(value)" in said


def test_a_series_of_arrow_is_shared(pd: Any, framework: Any) -> None:
    framework("pyarrow")
    x = pd.Series([1, 2], dtype="int64[pyarrow]")
    tensor = from_dlpack(x, copy=False)
    assert tensor.tolist() == [1, 2]
    assert tensor.data_ptr == x.array.__arrow_array__().chunk(0).buffers()[1].address
    assert "x.fillna(value)" in refusal("masked", pd.Series([1, None], dtype="int64[pyarrow]"))


def test_nan_is_a_number_and_an_index_a_tensor(pd: Any) -> None:
    assert np.isnan(from_dlpack(pd.Series([1.0, None])).tolist()[1])
    assert from_dlpack(pd.Index([3, 4])).tolist() == [3, 4]
    assert from_dlpack(pd.RangeIndex(3)).tolist() == [0, 1, 2]


@pytest.mark.parametrize(
    ("make", "reason", "advice"),
    [
        (lambda pd: pd.Series(["a"]), "dtype", "leave it out"),
        (lambda pd: pd.Series([1, "a"]), "dtype", "leave it out"),
        (lambda pd: pd.Series(["a"], dtype="category"), "dtype", "x.cat.codes"),
        (lambda pd: pd.Series(pd.to_datetime(["2020-01-01"])), "dtype", 'x.astype("int64")'),
        (lambda pd: pd.Series(pd.to_datetime(["2020-01-01"], utc=True)), "dtype", "since 1970"),
        (lambda pd: pd.Series(pd.to_timedelta([1], unit="s")), "dtype", 'x.astype("int64")'),
        (lambda pd: pd.Series(pd.arrays.SparseArray([0, 1])), "sparse", "x.sparse.to_dense()"),
        (lambda pd: pd.arrays.SparseArray([0, 1]), "sparse", "pass x.to_dense()"),
        (lambda pd: pd.Categorical(["a"]), "dtype", "pass x.codes"),
        (lambda pd: pd.CategoricalIndex(["a"]), "dtype", "pass x.codes"),
        (lambda pd: pd.period_range("2020", "2021"), "dtype", 'x.astype("int64")'),
    ],
)
def test_columns_without_numbers_get_advice(pd: Any, make: Any, reason: str, advice: str) -> None:
    assert advice in refusal(reason, make(pd))


def test_a_frame_is_a_dict_of_its_columns(pd: Any) -> None:
    frame = pd.DataFrame({"a": [1, 2], "b": [0.5, 1.5], 3: [True, False]})
    made = convert_tree([frame, frame["a"]], "dlbridge", copy=False)
    assert {name: x.tolist() for name, x in made[0].items()} == {
        "a": [1, 2],
        "b": [0.5, 1.5],
        3: [True, False],
    }
    assert made[0]["b"].data_ptr == frame["b"].to_numpy().ctypes.data
    block = pd.DataFrame(np.arange(6.0).reshape(3, 2), columns=["x", "y"])
    assert convert_tree(block, "dlbridge", copy=False)["y"].tolist() == [1, 3, 5]


def test_frames_that_no_dict_can_be(pd: Any) -> None:
    twice = pd.DataFrame([[1, 2]], columns=["a", "a"])
    with pytest.raises(ArgumentError, match=r"at \[0\] cannot be rebuilt: two .* called 'a'"):
        convert_tree([twice], "numpy")
    with pytest.raises(ExchangeError, match=r"^convert_tree: at \['name'\]: the pandas.Series"):
        convert_tree(pd.DataFrame({"x": [1], "name": ["a"]}), "numpy")
    with pytest.raises(UnsupportedTypeError, match="a table to convert_tree for a dict"):
        from_dlpack(twice)


def test_policies_and_receipts_are_those_of_other_sources(pd: Any, framework: Any) -> None:
    framework("torch")
    x = pd.Series([1.0, 2.0])
    x = x if not x.to_numpy().flags.writeable else pd.Series(x.to_numpy().view())
    assert dlbridge.to_torch(x, readonly="copy").tolist() == [1, 2]
    with dlbridge.receipts() as log:
        dlbridge.to_torch(x, copy=True)
    (receipt,) = log
    assert (receipt.source, receipt.copied_by) == ("pandas", "dlbridge")
    assert receipt.route.startswith("pandas to_numpy -> ")
    assert dlbridge.explain(x, "numpy").shared


def test_a_library_of_columns_is_no_target(pd: Any) -> None:
    for target in ("pandas", pd, pd.Series):
        with pytest.raises(ArgumentError):
            dlbridge.convert(np.ones(2), target)
    assert not hasattr(dlbridge, "to_pandas")


# ---- polars --------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [name.title().replace("Ui", "UI") for name in NUMBERS[1:]])
def test_a_polars_series_is_shared(pl: Any, dtype: str) -> None:
    x = pl.Series([1, 0, 1, 2], dtype=getattr(pl, dtype))
    for each in (x, x[1:]):
        tensor = from_dlpack(each, copy=False)
        assert (tensor.dtype, tensor.tolist()) == (dtype.lower(), each.to_list())
        assert tensor.readonly
        assert tensor.data_ptr == each.to_numpy(allow_copy=False).ctypes.data


def test_arrays_of_one_shape_are_more_dimensions(pl: Any) -> None:
    x = pl.Series([[1, 2], [3, 4], [5, 6]], dtype=pl.Array(pl.Int16, 2))
    assert from_dlpack(x, copy=False).tolist() == x.to_list()
    assert from_dlpack(x[1:], copy=False).tolist() == x[1:].to_list()
    nested = pl.Series([[[1, 2]], [[3, 4]]], dtype=pl.Array(pl.Array(pl.Float32, 2), 1))
    assert from_dlpack(nested, copy=False).shape == (2, 1, 2)
    assert from_dlpack(x[:0]).shape == (0, 2)


def test_a_polars_series_in_several_chunks_is_joined_or_refused(pl: Any) -> None:
    x = pl.Series([1, 2]).append(pl.Series([3]))
    receipt = dlbridge.explain(x, "numpy")
    assert (receipt.copied_by, receipt.why) == ("polars", "copy_required")
    assert from_dlpack(x).tolist() == [1, 2, 3]
    assert "x.get_chunks()" in refusal("copy_required", x, copy=False)


@pytest.mark.parametrize(
    ("values", "dtype", "reason", "advice"),
    [
        ([1, None], "Int64", "masked", "1 nulls of the polars.Series.*x.fill_null"),
        ([[1, None], [2, 3]], "pairs", "masked", "1 nulls"),
        ([None, [2, 3]], "pairs", "masked", "1 nulls"),
        ([True], "Boolean", "dtype", "x.cast"),
        (["a"], "String", "dtype", "leave it out"),
        (["a"], "Categorical", "dtype", r"x.to_physical\(\)"),
        ([1], "Date", "dtype", r"x.to_physical\(\)"),
        ([[1], [2, 3]], None, "dtype", r"x.list.to_array\(n\)"),
        ([{"a": 1}], None, "dtype", r"x.struct.unnest\(\)"),
    ],
)
def test_columns_of_polars_without_numbers_get_advice(
    pl: Any, values: Any, dtype: Any, reason: str, advice: str
) -> None:
    kind = pl.Array(pl.Int64, 2) if dtype == "pairs" else dtype and getattr(pl, dtype)
    x = pl.Series(values, dtype=kind, strict=False)
    with pytest.raises(ExchangeError, match=advice):
        from_dlpack(x)
    refusal(reason, x)


def test_a_polars_frame_is_a_dict_of_its_columns(pl: Any) -> None:
    frame = pl.DataFrame(
        {"a": [1, 2], "b": pl.Series([[1.0, 2.0], [3.0, 4.0]], dtype=pl.Array(pl.Float64, 2))}
    )
    made = convert_tree(frame, "dlbridge", copy=False)
    assert {name: x.tolist() for name, x in made.items()} == frame.to_dict(as_series=False)
    assert made["a"].data_ptr == frame["a"].to_numpy(allow_copy=False).ctypes.data
    with pytest.raises(UnsupportedTypeError, match="a table to convert_tree for a dict"):
        from_dlpack(frame)


def test_a_query_of_polars_is_collected_first(pl: Any) -> None:
    query = pl.LazyFrame({"a": [1, 2]}).filter(pl.col("a") > 1)
    for call in (from_dlpack, lambda x: convert_tree(x, "numpy")):
        with pytest.raises(UnsupportedTypeError, match=r"pass x\.collect\(\), a table, to convert"):
            call(query)
    assert convert_tree(query.collect(), "numpy")["a"].tolist() == [2]
    with pytest.raises(UnsupportedTypeError, match=r"no buffer$"):
        from_dlpack(pl.col("a"))


def test_frames_go_through_a_stream(pl: Any) -> None:
    frames = (pl.DataFrame({"x": [i, i + 1]}) for i in range(3))
    ahead = dlbridge.stream(frames, "numpy")
    assert [batch["x"].tolist() for batch in ahead] == [[0, 1], [1, 2], [2, 3]]
    assert [row.source for row in ahead.report().rows] == ["polars"]

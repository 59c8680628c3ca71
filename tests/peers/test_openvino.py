"""openvino.Tensor: its memory, as the type that its element_type names."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import ExchangeError, from_dlpack


@pytest.fixture
def ov(framework: Any) -> Any:
    return framework("openvino")


@pytest.mark.parametrize(
    "name", ["bool", "int8", "int64", "uint16", "float16", "float32", "float64"]
)
def test_numbers_are_shared(ov: Any, name: str) -> None:
    x = np.array([[1, 0, 1], [0, 1, 1]], name)
    tensor = from_dlpack(ov.Tensor(x, shared_memory=True), copy=False)
    assert (tensor.dtype, tensor.tolist()) == (name, x.tolist())
    assert tensor.data_ptr == x.ctypes.data
    assert not tensor.readonly


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(("bf16", "bfloat16"), ("f8e4m3", "float8_e4m3fn"), ("f8e5m2", "float8_e5m2")),
        ("f8e8m0", "float8_e8m0fnu"),
    ],
)
def test_short_floats_are_those_of_element_type_and_not_of_data(
    ov: Any, framework: Any, kind: str, name: str
) -> None:
    ml_dtypes = framework("ml_dtypes")
    values = np.array([1, 2, 0.5], getattr(ml_dtypes, name))
    x = ov.Tensor(getattr(ov.Type, kind), [3])
    x.data.view(np.uint8)[:] = values.view(np.uint8)
    assert x.data.dtype != values.dtype
    tensor = from_dlpack(x, copy=False)
    assert (tensor.dtype, tensor.tolist()) == (name, [1, 2, 0.5])


@pytest.mark.parametrize(("kind", "values"), [("u4", [1, 2, 15]), ("i4", [1, -2, -8])])
def test_packed_integers_keep_their_order(ov: Any, kind: str, values: list[int]) -> None:
    op = pytest.importorskip("openvino.op")
    packed = op.Constant(getattr(ov.Type, kind), ov.Shape([3]), values).get_data()
    x = ov.Tensor(getattr(ov.Type, kind), [3])
    x.data.view(np.uint8)[:] = packed.view(np.uint8)
    assert from_dlpack(x).tolist() == values


def test_a_region_of_another_tensor_has_its_strides(ov: Any) -> None:
    whole = ov.Tensor(np.arange(12.0).reshape(3, 4))
    part = ov.Tensor(whole, ov.Coordinate([0, 0]), ov.Coordinate([3, 2]))
    tensor = from_dlpack(part, copy=False)
    assert (tensor.strides, tensor.tolist()) == ((4, 1), [[0, 1], [4, 5], [8, 9]])


def test_the_memory_lives_as_long_as_the_tensor_over_it(ov: Any) -> None:
    tensor = from_dlpack(ov.Tensor(np.arange(1000.0)))
    assert tensor.tolist() == list(range(1000))


@pytest.mark.parametrize("kind", ["u1", "nf4", "string"])
def test_types_without_a_name_in_dlpack_are_refused(ov: Any, kind: str) -> None:
    with pytest.raises(ExchangeError, match=f"no name for openvino's {kind}") as caught:
        from_dlpack(ov.Tensor(getattr(ov.Type, kind), [8]))
    assert caught.value.reason == "dtype"


def test_results_of_a_model_are_a_tree(ov: Any) -> None:
    tree = {"scores": ov.Tensor(np.ones((2, 3), np.float32))}
    with dlbridge.receipts() as log:
        made = dlbridge.convert_tree(tree, "numpy", copy=False)
    assert made["scores"].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert [(each.source, each.shared) for each in log] == [("openvino", True)]

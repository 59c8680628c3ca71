"""einops on Tensors: the values are NumPy's, views share memory, arithmetic is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import UnsupportedTypeError

einops = pytest.importorskip("einops")

X = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


@pytest.mark.parametrize(
    ("pattern", "axes"),
    [
        ("a b c -> c a b", {}),
        ("a b c -> a (b c)", {}),
        ("a b c -> (c a) b", {}),
        ("a b (c d) -> a d b c", {"d": 2}),
        ("a b c -> a 1 b c 1", {}),
        ("... c -> c ...", {}),
        ("a b c -> (a b c)", {}),
    ],
)
def test_rearrange_gives_numpys_values(pattern: str, axes: dict[str, int]) -> None:
    made = einops.rearrange(dlbridge.from_dlpack(X), pattern, **axes)
    expected = einops.rearrange(X, pattern, **axes)
    assert type(made) is dlbridge.Tensor
    assert made.shape == expected.shape
    assert np.array_equal(made, expected)


def test_rearrangements_that_strides_describe_are_views() -> None:
    x = dlbridge.from_dlpack(X)
    assert einops.rearrange(x, "a b c -> c (a b)").data_ptr == X.ctypes.data
    assert einops.rearrange(x, "a b c -> (c b) a").data_ptr != X.ctypes.data


@pytest.mark.parametrize(
    "pattern", ["a b c -> a n b c", "a b c -> (n a) b c", "a b c -> a b (c n)"]
)
def test_repeat_gives_numpys_values(pattern: str) -> None:
    made = einops.repeat(dlbridge.from_dlpack(X), pattern, n=3)
    assert np.array_equal(made, einops.repeat(X, pattern, n=3))


def test_lists_are_stacked() -> None:
    tensors = [dlbridge.from_dlpack(X), dlbridge.from_dlpack(X + 1)]
    assert np.array_equal(einops.rearrange(tensors, "n a b c -> a b c n"), np.stack([X, X + 1], -1))


def test_packed_tensors_are_unpacked() -> None:
    tensors = [dlbridge.from_dlpack(X), dlbridge.from_dlpack(X[:, 0])]
    packed, shapes = einops.pack(tensors, "a * c")
    assert np.array_equal(packed, einops.pack([X, X[:, 0]], "a * c")[0])
    for made, given in zip(einops.unpack(packed, shapes, "a * c"), tensors, strict=True):
        assert np.array_equal(made, given)


def test_shapes_are_parsed_and_values_are_numpys() -> None:
    x = dlbridge.from_dlpack(X)
    assert einops.parse_shape(x, "a _ c") == {"a": 2, "c": 4}
    assert np.array_equal(einops.asnumpy(x), X)


@pytest.mark.parametrize(
    "call",
    [
        lambda x: einops.reduce(x, "a b c -> a", "sum"),
        lambda x: einops.reduce(x, "a b c -> a", "mean"),
        lambda x: einops.einsum(x, x, "a b c, a b c -> a"),
    ],
    ids=["sum", "mean", "einsum"],
)
def test_arithmetic_is_refused(call: Any) -> None:
    with pytest.raises(UnsupportedTypeError, match=r"^einops\.\w+: a dlbridge\.Tensor has no "):
        call(dlbridge.from_dlpack(X))


@pytest.mark.subprocess
@pytest.mark.parametrize("order", ["import dlbridge, einops", "import einops, dlbridge"])
def test_einops_may_be_imported_first_or_last(run_python: Any, order: str) -> None:
    code = "print(einops.rearrange(dlbridge.zeros((2, 3), 'int8'), 'a b -> b a').shape)"
    assert run_python(f"{order}\n{code}").check().strip() == "(3, 2)"

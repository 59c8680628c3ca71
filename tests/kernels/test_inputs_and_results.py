"""Layouts, small shapes and byte orders of inputs; types of results."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ExchangeError, UnsupportedTypeError


def layouts() -> dict[str, np.ndarray]:
    """Return arrays that hold 0 … 5 in memory of every kind."""
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    misaligned = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    misaligned[...] = want
    return {
        "transposed": np.ascontiguousarray(want.T).T,
        "reversed": want[::-1, ::-1].copy()[::-1, ::-1],
        "stepped": np.repeat(want, 2, axis=1)[:, ::2],
        "misaligned": misaligned,
    }


@pytest.mark.parametrize("layout", layouts())
def test_every_layout_gives_the_same_result(layout: str, twice: Any) -> None:
    x = layouts()[layout]
    assert twice(x).tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_small_shapes_work_everywhere(
    library: str, shape: tuple[int, ...], twice: Any, framework: Callable[[str], Any]
) -> None:
    framework(library)
    x = dlbridge.convert(np.full(shape, 3, np.float32), library)
    y = twice(x)
    assert type(y) is type(x)
    assert dlbridge.to_numpy(y).tolist() == np.full(shape, 6, np.float32).tolist()


def test_a_broadcast_input_is_read_as_what_it_shows(twice: Any) -> None:
    x = np.broadcast_to(np.float32(4), (2, 2))
    assert twice(x).tolist() == [[8, 8], [8, 8]]


def test_foreign_byte_order_is_refused(twice: Any) -> None:
    with pytest.raises((ExchangeError, UnsupportedTypeError)):
        twice(np.ones(3, ">f4"))


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_results_are_the_callers_framework(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    """tvm-ffi gives back its own type for NumPy and JAX, and allocates for torch alone."""
    framework(library)
    x = dlbridge.convert(np.ones(3, np.float32), library)
    assert type(twice(x)) is type(x)

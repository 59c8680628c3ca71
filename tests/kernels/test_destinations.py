"""Where a kernel writes: dtypes, strides and overlap of its destinations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ExchangeError, UnsupportedTypeError


def test_a_destination_of_another_dtype_is_refused(twice: Any) -> None:
    """nanobind converts it: the kernel writes into a copy that nobody sees."""
    with pytest.raises(UnsupportedTypeError, match=r"'out'.*f64\[3\]"):
        twice(np.ones(3, np.float32), out=np.zeros(3))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_strided_destination_is_written(
    library: str, twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    xp = framework(library)
    base = xp.zeros((4, 6), dtype=xp.float32)
    view = base[::2, 1::2]
    assert twice(xp.ones((2, 3), dtype=xp.float32), out=view) is view
    increment(view)
    assert view.tolist() == [[3, 3, 3], [3, 3, 3]]
    assert float(base.sum()) == 18


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_overlap_is_refused_before_anything_is_written(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    xp = framework(library)
    memory = xp.arange(6, dtype=xp.float32)
    with pytest.raises(ExchangeError, match="overlap"):
        twice(memory[:4], out=memory[1:5])
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_destination_that_overlaps_itself_is_refused(twice: Any, increment: Any) -> None:
    one = np.zeros(1, np.float32)
    broad = np.lib.stride_tricks.as_strided(one, (3,), (0,))
    for write in (increment, lambda z: twice(np.ones(3, np.float32), out=z)):
        with pytest.raises(ExchangeError):
            write(broad)
    assert one.tolist() == [0]


@pytest.mark.parametrize("framework", ["numpy", "torch"])
def test_one_destination_for_two_results_is_refused(framework: str) -> None:
    torch = pytest.importorskip("torch")
    schema = f"destinations::both_{framework}(x: f32[n]) -> (f32[n], f32[n])"
    both = dlbridge.wrap(lambda x: (x + 1, x + 2), schema, abi=f"python:{framework}")
    x, out = torch.ones(2), torch.zeros(2)
    for call in (both, both.torch):
        with pytest.raises(ExchangeError, match=r"'out(_1|.1.)'.* memory shared with 'out"):
            call(x, out=(out, out))
    assert out.tolist() == [0, 0]
    assert [each.tolist() for each in both(x, out=(out, torch.zeros(2)))] == [[2, 2], [3, 3]]

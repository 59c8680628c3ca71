"""Random layouts to every library here: right, value for value, or refused before it is entered."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_peers import BareProducer, ModernProducer, describe
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import dlbridge
from dlbridge import ExchangeError
from peers.readers import has, memory, read

MODULES = {
    "numpy": "numpy",
    "torch": "torch",
    "jax": "jax",
    "tensorflow": "tensorflow",
    "tvm": "tvm_ffi",
    "mlx": "mlx",
    "pyarrow": "pyarrow",
    "dlbridge": "dlbridge",
}
POLICIES: tuple[dict[str, Any], ...] = (
    {},
    {"copy": True},
    {"copy": False},
    {"layout": "contiguous"},
)
DTYPES = ["float32", "int32", "uint8", "int8", "float16", "int64", "float64", "bool"]
FAIR = {"strides", "alignment", "copy_required"}  # the reasons that a copy takes away


@st.composite
def layouts(draw: st.DrawFn) -> tuple[np.ndarray[Any, Any], tuple[int, ...]]:
    """Return a view into memory of its own, and its strides in elements as a producer says them."""
    shape = tuple(draw(st.lists(st.sampled_from([0, 1, 1, 2, 3, 4]), max_size=5)))
    steps = st.sampled_from([0, 1, 1, 2, 3, -1, -2, 5, 12, 24])
    strides = tuple(draw(st.lists(steps, min_size=len(shape), max_size=len(shape))))
    offset = draw(st.sampled_from([0, 0, 8, 64, 1]))
    base = memory((2048,), draw(st.sampled_from(DTYPES)), offset)
    base[...] = np.arange(2048).astype(base.dtype)
    in_bytes = tuple(step * base.itemsize for step in strides)
    return np.lib.stride_tricks.as_strided(base[1024:], shape, in_bytes), strides


@pytest.mark.parametrize("consumer", [name for name, module in MODULES.items() if has(module)])
@settings(suppress_health_check=[HealthCheck.too_slow], deadline=None)
@given(layout=layouts(), kind=st.sampled_from([ModernProducer, BareProducer]))
def test_a_random_layout(consumer: str, layout: Any, kind: type[ModernProducer]) -> None:
    view, strides = layout
    start = view.__array_interface__["data"][0]
    producer = kind(describe(view, strides=strides, data=start, keeps=view))
    for policies in POLICIES:
        result, reason = _attempt(producer, consumer, policies)
        if reason is None:
            assert tuple(result.shape) == view.shape
            assert read(consumer, result)[0] == view.tobytes()
        else:
            assert reason == "dtype" or (reason in FAIR and policies.get("copy") is False)


def _attempt(x: Any, consumer: str, policies: dict[str, Any]) -> tuple[Any, str | None]:
    try:
        return dlbridge.convert(x, consumer, **policies), None
    except ExchangeError as error:
        return None, error.reason


@pytest.mark.parametrize("consumer", [name for name, module in MODULES.items() if has(module)])
def test_the_stride_of_a_single_element_may_be_any_number(consumer: str) -> None:
    """-2**63 has no positive counterpart, which MLX and pyarrow would be given."""
    array = memory((1,), "float32")
    start = array.__array_interface__["data"][0]
    for step in (-(2**63), 2**63 - 1, -5, 0):
        producer = ModernProducer(describe(array, strides=(step,), data=start, keeps=array))
        assert tuple(dlbridge.convert(producer, consumer).shape) == (1,)

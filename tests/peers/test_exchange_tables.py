"""The C exchange tables of other libraries, `__dlpack_c_exchange_api__`."""

from __future__ import annotations

from typing import Any

import pytest

import dlbridge
from dlbridge import from_dlpack
from dlbridge._core import native
from peers.consumers import require_all
from peers.readers import filled

require_all()


@pytest.fixture
def memory_view() -> Any:
    module = pytest.importorskip("cuda.core.utils", exc_type=ImportError)
    return module.StridedMemoryView


@pytest.mark.fact(39)
def test_a_table_is_used_where_it_is_offered(memory_view: Any) -> None:
    """torch, Paddle and cuda.core have one; it is the fastest way in."""
    import torch

    x = filled((2, 3), "float32")
    for source in (torch.from_numpy(x), memory_view.from_any_interface(x, stream_ptr=-1)):
        assert hasattr(type(source), "__dlpack_c_exchange_api__")
        tensor = from_dlpack(source)
        assert tensor.data_ptr == x.ctypes.data
        assert dlbridge.to_numpy(source).tolist() == x.tolist()


@pytest.mark.fact(41)
def test_a_failing_allocator_is_an_error_however_it_reports(memory_view: Any) -> None:
    """cuda.core raises instead of calling SetError; torch calls every cause MemoryError."""
    import torch

    table = torch.Tensor.__dlpack_c_exchange_api__
    with pytest.raises(MemoryError):
        native.allocate_table(table, (3,), (17, 4, 1), (1, 0))
    with pytest.raises(NotImplementedError):
        native.allocate_table(memory_view.__dlpack_c_exchange_api__, (3,), (2, 32, 1), (1, 0))
    assert native.allocate_table(table, (3,), (2, 32, 1), (1, 0)).shape == (3,)

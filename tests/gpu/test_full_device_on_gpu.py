"""More memory than there is: alone on the machine, since others may find none meanwhile."""

from __future__ import annotations

import pytest

import dlbridge
from dlbridge import AllocationError, cuda

pytestmark = pytest.mark.gpu


def test_memory_that_no_gpu_has_is_refused_with_the_sizes():
    total = cuda.memory_info("cuda:0").total
    with pytest.raises(AllocationError) as refusal:
        dlbridge.empty((2 * total,), "uint8", device="cuda:0")
    text = str(refusal.value)
    assert str(2 * total) in text.replace(",", "")
    assert "cuda:0" in text
    dlbridge.empty((1 << 20,), "uint8", device="cuda:0")  # and the next one is fine

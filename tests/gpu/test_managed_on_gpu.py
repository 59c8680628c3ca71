"""Managed memory, in a file of its own: a program that asks for too much of it can hang a device.

Each test takes a few MiB, and the file runs last.
"""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import cuda, from_dlpack, to_numpy

pytestmark = pytest.mark.gpu

MANAGED = "cuda_managed"
KINDS = ("cpu", "cuda:0", "cuda_host", MANAGED)


@pytest.mark.parametrize("count", [0, 1, 7, 4096, (1 << 20) + 3])
@pytest.mark.parametrize("kind", KINDS)
def test_bytes_arrive_in_managed_memory_and_come_back(kind, count):
    expected = (np.arange(count) % 251).astype(np.uint8)
    managed = from_dlpack(expected).to(kind).to(MANAGED)
    assert managed.device == MANAGED
    back = managed.to(kind)
    assert back.device == kind
    assert np.array_equal(to_numpy(back.to("cpu")), expected)


def test_managed_memory_is_read_by_both(machine):
    managed = dlbridge.zeros((1000,), "uint8", device=MANAGED)
    machine.fill(managed.data_ptr, 1000, 9)
    cuda.synchronize()
    assert set(to_numpy(managed).tolist()) == {9}


@pytest.mark.parametrize("kind", KINDS)
def test_strided_views_are_copied_from_and_to_managed_memory(kind):
    array = np.arange(30 * 20 * 10, dtype=np.int16).reshape(30, 20, 10)
    view = from_dlpack(array).to(MANAGED)[3:, ::2, 1:9]
    moved = view.to(kind)
    assert np.array_equal(to_numpy(moved.to("cpu")), array[3:, ::2, 1:9])
    target = dlbridge.zeros((27, 10, 8), "int16", device=MANAGED)
    target[1:, 2] = moved[1:, 2]
    cuda.synchronize()
    assert np.array_equal(to_numpy(target)[1:, 2], array[4:, 4, 1:9])

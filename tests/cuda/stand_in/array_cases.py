"""The stand-in for CuPy is as strict as CuPy, and the fake driver sees what it does."""

from __future__ import annotations

from typing import Any

import cupy
import numpy as np
import pytest

import dlbridge


def test_it_is_the_stand_in(machine: Any) -> None:
    assert "tests" in cupy.__file__
    assert cupy.cuda.runtime.getDeviceCount() == 2


@pytest.mark.parametrize(
    "compute",
    [
        lambda xp, x: xp.sum(x * 2 + 1, axis=0),
        lambda xp, x: xp.reshape(x, (3, 2))[1:, ::-1],
        lambda xp, x: xp.where(x > 2, x, -x),
        lambda xp, x: xp.concatenate([x, x.T.reshape(2, 3)], axis=1),
        lambda xp, x: xp.matmul(x, x.T),
        lambda xp, x: xp.argsort(-x, axis=1),
        lambda xp, x: x[..., None].astype("int64"),
    ],
)
def test_it_computes_as_numpy_does(machine: Any, compute: Any) -> None:
    host = np.arange(6.0).reshape(2, 3)
    found, expected = compute(cupy, cupy.asarray(host)), compute(np, host)
    assert found.dtype == expected.dtype
    assert found.get().tolist() == expected.tolist()


def test_refusals_are_those_of_cupy(machine: Any) -> None:
    x = cupy.ones(3)
    with pytest.raises(TypeError, match="Implicit conversion"):
        np.asarray(x)
    with pytest.raises(TypeError, match="Unsupported type"):
        x + np.ones(3)
    with pytest.raises(TypeError, match="CPU arrays"):
        cupy.from_dlpack(np.ones(3))
    with cupy.cuda.Device(1), pytest.raises(ValueError, match="current device"):
        x + 1


def test_indices_out_of_range_wrap_around(machine: Any) -> None:
    x = cupy.asarray([1.0, 2.0, 3.0])
    at = cupy.asarray([0, 4, -1])
    assert cupy.take(x, at).get().tolist() == [1.0, 2.0, 3.0]
    assert x[at].get().tolist() == [1.0, 2.0, 3.0]


def test_views_share_memory_and_copies_do_not(machine: Any) -> None:
    x = cupy.zeros((2, 3))
    x[0].T[1] = 5.0
    assert x.get().tolist() == [[0, 5, 0], [0, 0, 0]]
    y = x.copy()
    y[...] = 1.0
    cupy.add.at(x, (cupy.asarray([1, 1]), cupy.asarray([0, 0])), cupy.asarray([2.0, 3.0]))
    assert x.get().tolist() == [[0, 5, 0], [5, 0, 0]]


def test_work_on_two_streams_without_an_order_is_found(machine: Any) -> None:
    x = cupy.zeros(3)
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        y = x + 1
    assert "race" in machine.forget_faults()[0]
    cupy.cuda.get_current_stream().wait_event(stream.record())
    del y


def test_an_event_is_an_order(machine: Any) -> None:
    x = cupy.zeros(3)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    with stream:
        y = x + 1
    cupy.cuda.get_current_stream().wait_event(stream.record())
    assert machine.faults == []
    del y


def test_the_pool_uses_memory_again_at_once(machine: Any) -> None:
    """As CuPy's does; who still has a kernel on it when the array is gone is found out."""
    x = cupy.zeros(3)
    address = x.data.ptr
    del x
    assert cupy.zeros(3).data.ptr == address
    x = cupy.zeros(3)
    stream = cupy.cuda.Stream(non_blocking=True)
    stream.wait_event(cupy.cuda.get_current_stream().record())
    with stream:
        y = x + 1
    del x
    assert "race" in machine.forget_faults()[0]
    cupy.cuda.get_current_stream().wait_event(stream.record())
    del y


def test_only_what_needs_the_host_waits(machine: Any) -> None:
    before = machine.host_waits
    x = cupy.asarray(np.arange(6.0))
    y = cupy.sum(x[x.shape[0] // 2 :] * 2)
    assert machine.host_waits == before
    assert float(y) == 24.0
    assert machine.host_waits == before + 1


# ---- exchange ------------------------------------------------------------------------------------


def test_dlpack_orders_the_consumer_after_the_current_stream(machine: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.asarray([1.0, 2.0, 3.0])
        tensor = dlbridge.from_dlpack(x)
    back = dlbridge.convert(tensor, "cupy")
    assert back.data.ptr == x.data.ptr
    y = back * 2
    assert machine.faults == []
    assert y.get().tolist() == [2.0, 4.0, 6.0]
    del tensor, back, x


def test_memory_that_was_lent_is_not_used_again_too_early(machine: Any) -> None:
    """The pool has it back only when the consumer's kernels are through."""
    stream = cupy.cuda.Stream(non_blocking=True)
    before = machine.host_waits
    for _ in range(5):
        x = cupy.zeros(1000)
        tensor = dlbridge.from_dlpack(x)
        del x
        with stream:
            y = dlbridge.convert(tensor, "cupy")
            del tensor
            total = cupy.sum(y)
            del y
        cupy.zeros(1000)
    assert machine.faults == []
    assert machine.host_waits == before
    del total


@pytest.mark.parametrize("stream", [None, 1, 2, -1])
def test_every_stream_of_the_standard_is_taken(machine: Any, stream: int | None) -> None:
    x = cupy.ones(3)
    capsule = x.__dlpack__(stream=stream, max_version=(1, 0))
    assert "dltensor_versioned" in repr(capsule)
    assert cupy.from_dlpack(capsule).data.ptr == x.data.ptr
    with pytest.raises(ValueError, match="consumed multiple times"):
        cupy.from_dlpack(capsule)


def test_a_capsule_that_nobody_takes_frees_its_array(machine: Any) -> None:
    used = cupy._outside._dlpack._EXPORTED
    before = len(used)
    capsule = cupy.ones(3).__dlpack__()
    assert len(used) == before + 1
    del capsule
    assert len(used) == before


def test_an_array_of_another_device_is_exported_in_its_order(machine: Any) -> None:
    """CuPy orders the current stream of the current device, whatever the array's device is."""
    with cupy.cuda.Device(1):
        x = cupy.zeros(3)
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.wait_event(cupy.cuda.get_current_stream().record())
        with stream:
            x += 1
        stream.use()
    try:
        back = dlbridge.convert(dlbridge.from_dlpack(x), "cupy")
        with cupy.cuda.Device(1):
            assert (back * 2).get().tolist() == [2.0, 2.0, 2.0]
    finally:
        with cupy.cuda.Device(1):
            cupy.cuda.Stream.null.use()
            cupy.cuda.Stream.null.wait_event(stream.record())
    del back, x


# ---- kernels -------------------------------------------------------------------------------------


def test_a_raw_kernel_runs_on_the_current_stream(machine: Any) -> None:
    code = """extern "C" __global__
    void add_one(const float *x, float *out, long long n) {
        long long i = blockIdx.x * (long long)blockDim.x + threadIdx.x;
        if (i < n) out[i] = x[i] + 1;
    }"""
    kernel = cupy.RawKernel(code, "add_one")
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.asarray(np.arange(3, dtype=np.float32))
        out = cupy.empty_like(x)
        kernel((1,), (3,), (x, out, 3))
        assert out.get().tolist() == [1.0, 2.0, 3.0]
        del x, out
    assert kernel.kernel.ptr == kernel.kernel.ptr

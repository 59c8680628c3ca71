"""CuPy's adapter: which streams it asks, and what it keeps alive."""

from __future__ import annotations

import gc
import sys
import weakref
from typing import Any

import cupy
import numpy as np
import pytest

import dlbridge
from dlbridge import cuda
from dlbridge._core import native


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The streams that CuPy's arrays were asked with."""
    streams: list[Any] = []
    export = cupy.ndarray.__dlpack__

    def asked_with(self: Any, *, stream: Any = None, **others: Any) -> Any:
        streams.append(stream)
        return export(self, stream=stream, **others)

    monkeypatch.setattr(cupy.ndarray, "__dlpack__", asked_with)
    return streams


def alive(machine: Any) -> int:
    return int(machine.driver.alive("stream"))


def test_its_current_stream_is_noted(machine: Any, asked: list[Any]) -> None:
    """CuPy itself would record an event for each export."""
    with cupy.cuda.Stream(non_blocking=True) as stream:
        tensor = dlbridge.from_dlpack(cupy.ones(3))
    assert asked == [-1]
    assert native.cuda_ready_stream(tensor) == stream.ptr


def test_its_current_stream_is_that_of_the_device_of_the_array(machine: Any) -> None:
    with cupy.cuda.Device(1):
        stream = cupy.cuda.Stream(non_blocking=True)
        stream.use()
        x = cupy.ones(3)
    tensor = dlbridge.from_dlpack(x)
    assert tensor.device == "cuda:1"
    assert native.cuda_ready_stream(tensor) == stream.ptr
    with cupy.cuda.Device(1):
        assert dlbridge.convert(tensor, "cupy").sum().get() == 3
        cupy.cuda.Stream.null.use()


def test_a_stream_lives_until_its_memory_is_gone(machine: Any) -> None:
    """CuPy destroys a stream with the last reference to it."""
    before = alive(machine)
    with cupy.cuda.Stream(non_blocking=True):
        tensor = dlbridge.from_dlpack(cupy.ones(3))
    gc.collect()
    assert alive(machine) == before + 1
    assert dlbridge.convert(tensor, "cupy").sum().get() == 3
    del tensor
    cuda.synchronize()
    gc.collect()
    assert alive(machine) <= before + 1  # the side stream on which dlbridge watches


def test_a_consumers_stream_lives_until_it_gives_the_memory_back(machine: Any) -> None:
    """An event at its end must be recorded then."""
    tensor = dlbridge.zeros((3,), "float32", device="cuda:0")
    with cupy.cuda.Stream(non_blocking=True) as stream:
        y = dlbridge.convert(tensor, "cupy")
        y += 1
    handle = stream.ptr
    del stream
    gc.collect()
    del y
    assert machine.faults == []
    assert handle
    assert dlbridge.convert(tensor, "cupy").sum().get() == 3


def test_policies_and_receipts(machine: Any) -> None:
    tensor = dlbridge.zeros((3,), "float32", device="cuda:0")
    current, other = cupy.cuda.Stream(non_blocking=True), cupy.cuda.Stream(non_blocking=True)
    with dlbridge.receipts() as log, current:
        dlbridge.convert(tensor, "cupy")
        dlbridge.convert(tensor, "cupy", stream=other)
        dlbridge.convert(tensor, "cupy", stream=cupy.cuda.Stream.null)
        dlbridge.convert(tensor, "cupy", stream="none")
        dlbridge.from_dlpack(cupy.ones(3))
    assert [each.stream for each in log] == [current.ptr, other.ptr, 1, -1, 1]
    assert [each.ordered for each in log] == [True, True, True, False, True]


def test_a_round_trip_on_one_stream_enqueues_nothing(machine: Any) -> None:
    x = cupy.ones(3)
    dlbridge.convert(dlbridge.from_dlpack(x), "cupy")
    before = len(machine.driver.calls)
    y = dlbridge.convert(dlbridge.from_dlpack(x), "cupy")
    assert y.data.ptr == x.data.ptr
    quiet = ("cuCtx", "cuPointer", "cuDevice")
    calls = [call.name for call in machine.driver.calls[before:]]
    assert [name for name in calls if not name.startswith(quiet)] == []


def test_arrays_of_three_streams_are_in_order(machine: Any) -> None:
    streams = [cupy.cuda.Stream(non_blocking=True) for _ in range(3)]
    with streams[0]:
        x = cupy.arange(6.0)
        x += 1
        tensor = dlbridge.from_dlpack(x)
    with streams[1]:
        y = dlbridge.convert(tensor, "cupy")
        y *= 2
        tensor = dlbridge.from_dlpack(y)
    with streams[2]:
        z = dlbridge.convert(tensor, "cupy")
        del x, tensor, y
        assert z.sum().get() == 42


@pytest.mark.filterwarnings("error")
def test_it_is_told_a_stream_as_it_wants_to_be(machine: Any) -> None:
    """CuPy 14 warns of ExternalStream."""
    double = dlbridge.wrap(
        platforms={"cuda": lambda x: x + x},
        schema="told::double(x: f32[n]) -> f32[n]",
        abi="python:cupy",
    )
    dlbridge.set_allocator("cuda", "cupy")
    try:
        for stream in (1, 2, cupy.cuda.Stream(non_blocking=True)):
            with cuda.stream(stream):
                x = dlbridge.full((3,), 2, "float32", device="cuda:0")
                assert np.asarray(double(x).to("cpu")).tolist() == [4, 4, 4]
    finally:
        dlbridge.set_allocator("cuda", None)


# ---- the C path ----------------------------------------------------------------------------------


def python_path(call: Any) -> list[str]:
    """Return the functions of dlbridge/exchange that a call enters, once it is warm."""
    call()
    entered: list[str] = []

    def note(frame: Any, event: str, _: Any) -> None:
        if event == "call" and "dlbridge/exchange/" in frame.f_code.co_filename:
            entered.append(frame.f_code.co_name)

    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
    return entered


def test_exchanges_stay_in_c(machine: Any) -> None:
    x = cupy.asarray([1.0, 2.0, 3.0])
    tensor = dlbridge.from_dlpack(x)
    assert python_path(lambda: dlbridge.from_dlpack(x)) == []
    assert python_path(lambda: dlbridge.to_cupy(tensor)) == []
    assert dlbridge.to_cupy(x) is x
    assert dlbridge.to_cupy(tensor).data.ptr == x.data.ptr


def test_a_stream_that_may_end_is_kept_by_what_was_lent(machine: Any) -> None:
    stream = cupy.cuda.Stream(non_blocking=True)
    with stream:
        x = cupy.asarray([1.0, 2.0, 3.0])
        tensor = dlbridge.from_dlpack(x)
        y = dlbridge.to_cupy(tensor)
    alive = weakref.ref(stream)
    del stream, x
    gc.collect()
    assert alive() is not None
    del tensor, y
    gc.collect()
    assert alive() is None

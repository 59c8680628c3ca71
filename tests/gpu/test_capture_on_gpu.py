"""Exchanges and copies while a CUDA graph is captured, by the frameworks' own ways to capture."""

from __future__ import annotations

import numpy as np
import pytest

import dlbridge
from dlbridge import ExchangeError, cuda, from_dlpack, to_cupy, to_numpy, to_torch

pytestmark = pytest.mark.gpu

LENGTH = 4096


class Handle:
    """A stream of someone else's, as CUDA's stream protocol has it."""

    def __init__(self, address: int) -> None:
        self.address = address

    def __cuda_stream__(self) -> tuple[int, int]:
        return 0, self.address


def test_torch_captures_an_exchange_with_cupy(load, machine):
    """CuPy works on the stream that torch captures; each replay reads what is there then."""
    torch, cupy = load("torch").root, load("cupy").root
    x, out = torch.zeros(LENGTH, device="cuda"), torch.zeros(LENGTH, device="cuda")
    view = to_cupy(out)
    cupy.add(to_cupy(x), 1, out=view)  # kernels are loaded at their first use
    out *= 2
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with cupy.cuda.Stream.from_external(Handle(torch.cuda.current_stream().cuda_stream)):
            cupy.add(to_cupy(x), 1, out=to_cupy(out))
        out *= 2
    for number in range(5):
        x.fill_(number)
        graph.replay()
        assert out.cpu().tolist() == [2.0 * (number + 1)] * LENGTH


def test_cupy_captures_an_exchange_with_torch(load, machine):
    torch, cupy = load("torch").root, load("cupy").root
    x, out = cupy.zeros(LENGTH, np.float32), cupy.zeros(LENGTH, np.float32)
    stream = cupy.cuda.Stream(non_blocking=True)
    torch.add(to_torch(x), 3, out=to_torch(out))
    cuda.synchronize()
    with stream, torch.cuda.stream(torch.cuda.ExternalStream(stream.ptr)):
        stream.begin_capture()
        torch.add(to_torch(x), 3, out=to_torch(out))
        graph = stream.end_capture()
    for number in range(5):
        x.fill(number)
        cuda.synchronize()
        graph.launch(stream)
        stream.synchronize()
        assert cupy.asnumpy(out).tolist() == [number + 3.0] * LENGTH


def test_copies_of_dlbridge_are_captured(machine):
    stream = machine.stream()
    source = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    target = dlbridge.zeros((LENGTH,), "uint8", device="cuda:0")
    cuda.synchronize()
    with cuda.stream(stream), machine.capture(stream) as graph:
        target[...] = source
    for number in (3, 7):
        machine.fill(source.data_ptr, LENGTH, number)
        cuda.synchronize()
        graph.launch(stream)
        cuda.synchronize()
        assert set(to_numpy(target.to("cpu")).tolist()) == {number}


def test_captured_work_cannot_be_waited_for_outside(load, machine):
    torch, cupy = load("torch").root, load("cupy").root
    x = torch.zeros(LENGTH, device="cuda")
    to_cupy(x + 1)
    outside = cupy.cuda.Stream(non_blocking=True)
    cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph), outside:
        y = x + 1
        with pytest.raises(ExchangeError) as refusal:
            to_cupy(y)
    assert refusal.value.reason == "stream"
    graph.replay()
    torch.cuda.synchronize()
    assert y.cpu().tolist() == [1.0] * LENGTH


def test_memory_that_ends_while_something_is_captured_goes_back_later(load, machine):
    """A deleter that asked an event, or freed memory, would end the capture."""
    torch, cupy = load("torch").root, load("cupy").root
    x = cupy.ones(LENGTH, np.float32)
    shared = to_torch(x)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        shared += 1
    out = torch.zeros(LENGTH, device="cuda")
    out += 0
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        out += 1
        del shared, x
        from_dlpack(out)
    graph.replay()
    torch.cuda.synchronize()
    assert out.cpu().tolist() == [1.0] * LENGTH
    cuda.collect()

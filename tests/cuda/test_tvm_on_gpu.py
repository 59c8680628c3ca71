"""Functions of tvm-ffi on CUDA tensors: tvm_ffi itself, over the memory of a machine."""

from __future__ import annotations

import threading
from typing import Any

import pytest

import dlbridge
from dlbridge._core import native
from dlbridge.errors import DLBridgeError

tvm_ffi = pytest.importorskip("tvm_ffi")

N = 16
BYTES = 4 * N


class Memory:
    """Keeps nothing: the machine owns its memory."""


def tensor(machine: Any, device: int = 0, stream: int = 1) -> Any:
    """Return a Tensor over new memory, which is ready on a stream."""
    address = machine.alloc(BYTES, device)
    made = native.take_object(Memory(), address, (N,), None, (2, 32, 1), (2, device))
    native.cuda_set_streams(made, stream, -1)
    return made


class Copy:
    """A packed function that copies its first tensor into its last, on tvm-ffi's stream."""

    def __init__(self, machine: Any) -> None:
        self.machine = machine
        self.streams: list[int] = []
        self.devices: list[str] = []
        self.function = tvm_ffi.convert(self._run)

    def _run(self, x: Any, out: Any) -> None:
        device = x.device
        stream = tvm_ffi.get_raw_stream(device)
        self.streams.append(stream)
        self.devices.append(str(device))
        pairs = [[(address_of(each), BYTES)] for each in (x, out)]
        self.machine.launch(stream, reads=pairs[0], writes=pairs[1], device=device.index)


def address_of(x: Any) -> int:
    """Return where the data of a tensor of tvm_ffi is."""
    return dlbridge.from_dlpack(x, stream="none").data_ptr


@pytest.mark.parametrize("device", [0, 1])
def test_functions_run_on_the_callers_stream_and_device(machine: Any, device: int) -> None:
    """tvm-ffi's own stream is the caller's for as long as the call lasts, then what it was."""
    machine.need_devices(device + 1)
    stream, copy = machine.stream(device), Copy(machine)
    kernel = dlbridge.wrap(
        platforms={"cuda": copy.function}, schema="tvmgpu::copy(x: f32[n]) -> f32[n]"
    )
    x, out = tensor(machine, device, stream), tensor(machine, device)
    machine.launch(stream, writes=[(x.data_ptr, BYTES)], value=7, slow=True)
    own = tvm_ffi.device("cuda", device)
    before = tvm_ffi.get_raw_stream(own)
    with dlbridge.cuda.stream(stream, device):
        kernel(x, out=out)
    assert copy.streams == [stream]
    assert copy.devices == [f"cuda:{device}"]
    assert tvm_ffi.get_raw_stream(own) == before
    assert machine.read_back(out.data_ptr, BYTES, device) == b"\7" * BYTES


def test_work_on_other_streams_comes_before(machine: Any) -> None:
    """The argument is ready elsewhere, and the result is read elsewhere."""
    there, here = machine.stream(), machine.stream()
    copy = Copy(machine)
    kernel = dlbridge.wrap(
        platforms={"cuda": copy.function}, schema="tvmgpu::across(x: f32[n]) -> f32[n]"
    )
    x, out = tensor(machine, 0, there), tensor(machine)
    machine.launch(there, writes=[(x.data_ptr, BYTES)], value=7, slow=True)
    with dlbridge.cuda.stream(here):
        kernel(x, out=out)
        twice = dlbridge.empty((N,), "float32", device="cuda")
    with dlbridge.cuda.stream(there):
        kernel(out, out=twice)
    assert copy.streams == [here, there]
    assert machine.host_synchronisations == 0
    assert machine.read_back(twice.data_ptr, BYTES) == b"\7" * BYTES


def test_functions_without_a_schema_serve_both_kinds_of_memory(machine: Any) -> None:
    """As TVM's own bridges do it: the last tensor is written."""
    copy = Copy(machine)
    kernel = dlbridge.wrap(copy.function)
    assert kernel.platforms == ("cpu", "cuda")
    stream = machine.stream()
    x, out = tensor(machine, 0, stream), tensor(machine)
    machine.launch(stream, writes=[(x.data_ptr, BYTES)], value=5, slow=True)
    with dlbridge.cuda.stream(stream):
        kernel(x, out)
    assert copy.streams == [stream]
    assert machine.read_back(out.data_ptr, BYTES) == b"\5" * BYTES


def test_the_stream_is_put_back_after_an_error(machine: Any) -> None:
    def fail(x: Any) -> None:
        raise ValueError("no such thing")

    kernel = dlbridge.wrap(
        platforms={"cuda": tvm_ffi.convert(fail)}, schema="tvmgpu::fails(x!: f32[n])"
    )
    own = tvm_ffi.device("cuda", 0)
    before = tvm_ffi.get_raw_stream(own)
    with (
        dlbridge.cuda.stream(machine.stream()),
        pytest.raises((DLBridgeError, ValueError), match="no such thing"),
    ):
        kernel(tensor(machine))
    assert tvm_ffi.get_raw_stream(own) == before


def test_optional_tensors_that_are_left_out_do_not_say_the_device(machine: Any) -> None:
    seen = []

    def note(bias: Any, x: Any) -> None:
        seen.append((bias, tvm_ffi.get_raw_stream(x.device)))

    kernel = dlbridge.wrap(
        platforms={"cuda": tvm_ffi.convert(note)},
        schema="tvmgpu::optional(bias: f32[n]?, x!: f32[n])",
    )
    stream = machine.stream()
    with dlbridge.cuda.stream(stream):
        kernel(None, tensor(machine))
    assert seen == [(None, stream)]


def test_threads_have_streams_of_their_own(machine: Any) -> None:
    copy = Copy(machine)
    kernel = dlbridge.wrap(
        platforms={"cuda": copy.function}, schema="tvmgpu::threads(x: f32[n]) -> f32[n]"
    )
    streams = [machine.stream() for _ in range(4)]

    def run(stream: int) -> None:
        x, out = tensor(machine, 0, stream), tensor(machine)
        with dlbridge.cuda.stream(stream):
            machine.launch(stream, writes=[(x.data_ptr, BYTES)], value=1)
            kernel(x, out=out)

    workers = [threading.Thread(target=run, args=(stream,)) for stream in streams]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert sorted(copy.streams) == sorted(streams)


def test_calls_are_captured(machine: Any) -> None:
    copy, stream = Copy(machine), machine.stream()
    kernel = dlbridge.wrap(
        platforms={"cuda": copy.function}, schema="tvmgpu::captured(x: f32[n]) -> f32[n]"
    )
    x, out = tensor(machine, 0, stream), tensor(machine, 0, stream)
    with dlbridge.cuda.stream(stream):
        kernel(x, out=out)
        machine.synchronise()
        with machine.capture(stream) as graph:
            kernel(x, out=out)
    machine.launch(stream, writes=[(x.data_ptr, BYTES)], value=3)
    graph.launch(stream)
    assert machine.read_back(out.data_ptr, BYTES) == b"\3" * BYTES


def test_tensors_of_tvm_ffi_are_used_on_its_own_stream(machine: Any) -> None:
    """Like operations of its own: its environment says the stream."""
    copy, stream = Copy(machine), machine.stream()
    kernel = dlbridge.wrap(
        platforms={"cuda": copy.function}, schema="tvmgpu::own(x: f32[n]) -> f32[n]"
    )
    x, out = tensor(machine, 0, stream), tensor(machine, 0, stream)
    with tvm_ffi.use_raw_stream(tvm_ffi.device("cuda", 0), stream):
        machine.launch(stream, writes=[(x.data_ptr, BYTES)], value=9, slow=True)
        theirs = [dlbridge.convert(each, "tvm") for each in (x, out)]
        kernel(theirs[0], out=theirs[1])
    assert copy.streams == [stream]
    assert machine.read_back(out.data_ptr, BYTES) == b"\11" * BYTES
    del theirs

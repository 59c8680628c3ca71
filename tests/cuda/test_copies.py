"""Copies between memory of the host and of CUDA devices: values, order, who waits for what."""

from __future__ import annotations

import ctypes
import math

import numpy as np
import pytest
from dlpack_peers import Borrow, DLTensor, ExchangeTable, capsule_address
from hypothesis import HealthCheck, given, reject, settings
from hypothesis import strategies as st

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import ExchangeError

PLACES = ("cpu", "cuda_host", "cuda:0", "cuda:1", "cuda_managed:0", "cuda_managed:1")
DTYPES = ("int8", "float16", "float32", "complex128", "bool", "int4", "uint2", "float4_e2m1fn")
PADDED = 4

quick = settings(
    max_examples=50,
    deadline=None,
    suppress_health_check=[
        HealthCheck.function_scoped_fixture,
        HealthCheck.too_slow,
        HealthCheck.filter_too_much,
    ],
)


def random_bytes(count: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, count, np.uint8)


def tensor_of(shape, dtype, padded=False) -> dlbridge.Tensor:
    """Return a CPU tensor of these elements, any bits."""
    kind = dlbridge.DType(dtype)
    each = 8 if padded else kind.itembits
    nbytes = (math.prod(shape) * each + 7) // 8
    raw = dlbridge.from_dlpack(random_bytes(nbytes))
    flags = PADDED if padded else 0
    return native.take_object(raw, raw.data_ptr, shape, None, kind.triple, (1, 0), flags)


def bytes_of(tensor) -> bytes:
    """Return the memory of a contiguous tensor, wherever it is."""
    host = tensor.to("cpu")
    raw = native.take_object(host, host.data_ptr, (host.nbytes,), None, (1, 8, 1), (1, 0))
    found = bytearray(raw)
    used = host.size * host.dtype.itembits % 8
    if used and not host.flags & PADDED:  # nothing is said of the bits behind the last element
        found[-1] &= (1 << used) - 1
    return bytes(found)


# ---- layouts -------------------------------------------------------------------------------------


@st.composite
def embeddings(draw, shape, *, repeats):
    """Draw a base shape, and how a view of `shape` lies in it."""
    ndim = len(shape)
    order = draw(st.permutations(range(ndim)))
    steps = [draw(st.sampled_from((1, 1, 1, 2, -1, -2))) for _ in shape]
    before = [draw(st.integers(0, 1)) for _ in shape]
    after = [draw(st.integers(0, 1)) for _ in shape]
    repeated = [repeats and draw(st.integers(0, 3)) == 0 for _ in shape]
    return order, steps, before, after, repeated


def base_shape(shape, embedding):
    order, steps, before, after, repeated = embedding
    extents = [
        before[i] + (1 if repeated[i] else max(n, 1) * abs(steps[i])) + after[i]
        for i, n in enumerate(shape)
    ]
    return tuple(extents[i] for i in order)


def embed(base, shape, embedding):
    """Return the view of `base` that has this shape."""
    order, steps, before, _after, repeated = embedding
    inverse = sorted(range(len(order)), key=order.__getitem__)
    view = base.transpose(inverse)
    for i, n in enumerate(shape):
        first = slice(before[i], before[i] + (1 if repeated[i] else n * abs(steps[i])))
        step = slice(None, None, 1 if repeated[i] else steps[i])
        key = (slice(None),) * i
        view = view[(*key, first)][(*key, step)]
    layout = [0 if repeated[i] else view.strides[i] for i in range(len(shape))]
    return view._view(shape, layout)


def embed_or_reject(base, shape, embedding):
    """Do so, unless the view would begin inside a byte."""
    try:
        return embed(base, shape, embedding)
    except ExchangeError:
        reject()


@st.composite
def copies(draw):
    shape = tuple(draw(st.lists(st.integers(0, 5), max_size=4)))
    dtype = draw(st.sampled_from(DTYPES))
    sub_byte = dlbridge.DType(dtype).itembits < 8
    padded = [sub_byte and draw(st.booleans()) for _ in range(2)]
    source = draw(embeddings(shape, repeats=True))
    target = draw(embeddings(shape, repeats=False))
    places = draw(st.sampled_from(PLACES)), draw(st.sampled_from(PLACES))
    return shape, dtype, padded, source, target, places


@quick
@given(case=copies(), on_stream=st.booleans())
def test_every_layout_is_copied_between_every_two_places(machine, case, on_stream):
    """Compared with the same copy on the host, all bytes around the view included."""
    shape, dtype, padded, source, target, places = case
    if len(machine.devices) == 1:
        places = [place.replace(":1", ":0") for place in places]
    bases = [
        tensor_of(base_shape(shape, embedding), dtype, pad)
        for embedding, pad in zip((source, target), padded, strict=True)
    ]
    from_base = embed_or_reject(bases[0], shape, source)
    to_base = embed_or_reject(bases[1], shape, target)
    stream = machine.stream(0) if on_stream else 1
    with cuda.stream(stream, 0):
        there = [base.to(place, copy=True) for base, place in zip(bases, places, strict=True)]
        native.copy_into(embed(there[1], shape, target), embed(there[0], shape, source))
        found = [bytes_of(tensor) for tensor in there]
        native.copy_into(to_base, from_base)
        assert found == [bytes_of(base) for base in bases]
        del there
    if on_stream:
        machine.destroy_stream(stream)


@quick
@given(data=st.data(), shape=st.lists(st.integers(0, 4), max_size=4).map(tuple))
def test_views_survive_a_journey(machine, data, shape):
    """Through any places, by `to` and `copy`, as NumPy sees the view."""
    places = [each for each in PLACES if len(machine.devices) > 1 or not each.endswith(":1")]
    embedding = data.draw(embeddings(shape, repeats=False))
    whole = base_shape(shape, embedding)
    base = np.arange(math.prod(whole)).astype("f4").reshape(whole)
    tensor = embed(dlbridge.from_dlpack(base), shape, embedding)
    expected = tensor.tolist()
    for place in data.draw(st.lists(st.sampled_from(places), max_size=4)):
        tensor = tensor.to(place)
        if data.draw(st.booleans()):
            tensor = tensor.copy(data.draw(st.sampled_from("CFK")))
        assert tensor.shape == shape
    assert tensor.to("cpu").tolist() == expected


# ---- what comes out ------------------------------------------------------------------------------


def test_the_order_of_dimensions_is_kept_and_the_copy_is_compact(machine):
    machine.need_devices(2)
    tensor = dlbridge.from_dlpack(np.arange(24.0).reshape(2, 3, 4)).transpose(2, 0, 1)
    there = tensor.to("cuda:1")
    assert there.strides == tensor.strides
    assert there.copy().is_contiguous
    assert there.copy("F").T.is_contiguous
    assert not there.readonly
    assert there.to("cuda:1") is there
    assert there.to("cuda:1", copy=True).data_ptr != there.data_ptr


def test_a_subclass_stays_one(machine):
    class Named(dlbridge.Tensor):
        """A subclass."""

    tensor = dlbridge.zeros((2,), "int8")
    named = tensor._view(tensor.shape, tensor.strides, cls=Named)
    assert type(named.to("cuda")) is Named
    assert type(named.to("cuda").copy()) is Named


def test_repr_shows_what_is_known_without_reading(machine):
    machine.need_devices(2)
    assert repr(dlbridge.zeros((2, 3), "int16", device="cuda:1")) == (
        "Tensor(<not read>, shape=(2, 3), dtype=int16, device=cuda:1)"
    )
    assert machine.host_synchronisations == 0


# ---- driver calls --------------------------------------------------------------------------------


def test_compact_tensors_take_one_copy_and_nothing_else(fake_machine):
    a = dlbridge.zeros((64, 64), "float32", device="cuda")
    b = dlbridge.empty((64, 64), "float32", device="cuda")
    fake_machine.reset()
    native.copy_into(b, a)
    native.copy_into(b.T, a.T)
    assert fake_machine.actions() == ["cuMemcpyAsync"] * 2


@pytest.mark.parametrize(
    ("view", "calls"),
    [
        (lambda t: t[:, 8:24], ["cuMemcpy2DAsync"]),
        (lambda t: t[::2], ["cuMemcpy2DAsync"]),
        (lambda t: t.reshape(4, 4, 2, 16)[:, :3, 0], ["cuMemcpy3DAsync"]),
        (lambda t: t.reshape(4, 2, 2, 32)[:, :, 1, :16], ["cuMemcpy2DAsync"]),
        (lambda t: t[2::-1], ["cuMemcpyAsync"] * 3),
    ],
    ids=["columns", "rows", "planes", "merged", "reversed"],
)
def test_long_rows_take_copies_of_the_copy_engine(fake_machine, view, calls):
    host = dlbridge.from_dlpack(np.arange(512.0).reshape(16, 32))
    there = host.to("cuda")
    fake_machine.finish()
    cuda.collect()  # or the staging memory is asked for in between
    fake_machine.reset()
    copied = view(there).copy()
    assert fake_machine.actions()[1:] == calls
    assert copied.to("cpu").tolist() == view(host).tolist()


def test_a_copy_of_the_current_stream_makes_the_host_wait_for_nothing(machine):
    tensor = dlbridge.zeros((1 << 10,), "uint8", device="cuda")
    other = dlbridge.zeros((1 << 10,), "uint8", device="cuda_host")
    small = dlbridge.zeros((1 << 10,), "uint8")
    machine.reset()
    there = tensor.copy()
    native.copy_into(tensor, other)
    native.copy_into(other, there)
    native.copy_into(there, small)
    tensor[::2] = there[1::2]
    assert machine.host_synchronisations == 0


def test_reading_on_the_host_waits_for_one_event(fake_machine):
    """Not for the stream, on which more work may have been enqueued since."""
    tensor = dlbridge.full((1 << 10,), 7, "uint8", device="cuda")
    with fake_machine.driver.on(0):
        fake_machine.slow_down(1)
    fake_machine.reset()
    assert set(bytes(tensor.to("cpu"))) == {7}
    waits = [name for name in fake_machine.actions() if "Synchronize" in name]
    assert waits == ["cuEventSynchronize"]


# ---- order ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["legacy", "per-thread", "blocking", "non-blocking"])
@pytest.mark.parametrize("place", ["cuda:0", "cuda:1", "cpu", "cuda_host"])
def test_a_copy_comes_after_slow_work_of_another_stream(machine, kind, place):
    machine.need_devices(2)
    tensor = dlbridge.zeros((256,), "uint8", device="cuda:0")
    slow, other = machine.stream(0), machine.stream_of_kind(kind, 0)
    native.cuda_begin(tensor, slow, True)
    machine.launch(slow, writes=[(tensor.data_ptr, 256)], value=9, slow=True)
    with cuda.stream(other, 0):
        copied = tensor.to(place, copy=True)
        native.cuda_begin(tensor, slow, True)  # the next write waits for the copy
        machine.launch(slow, writes=[(tensor.data_ptr, 256)], value=1)
        assert set(bytes(copied.to("cpu"))) == {9}
        del copied
    del tensor


@pytest.mark.parametrize("place", ["cuda:0", "cuda:1", "cpu", "cuda_host"])
def test_a_copy_comes_after_what_another_stream_reads(machine, place):
    """Who reads the memory that is written finds what was there before."""
    machine.need_devices(2)
    tensor = dlbridge.full((256,), 3, "uint8", device="cuda:0")
    seen = dlbridge.zeros((256,), "uint8", device="cuda:0")
    source = dlbridge.full((256,), 8, "uint8", device=place)
    reader = machine.stream(0)
    native.cuda_begin(tensor, reader, False)
    native.cuda_begin(seen, reader, True)
    ranges = {"reads": [(tensor.data_ptr, 256)], "writes": [(seen.data_ptr, 256)]}
    machine.launch(reader, **ranges, slow=True)
    with cuda.stream(machine.stream(0), 0):
        native.copy_into(tensor, source)
        assert set(bytes(seen.to("cpu"))) == {3}
        assert set(bytes(tensor.to("cpu"))) == {8}


def test_pinned_memory_is_read_when_the_copy_into_it_has_ended(machine):
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    machine.reset()
    pinned = tensor.to("cuda_host")
    assert machine.host_synchronisations == 0
    assert set(pinned.tolist()) == {5}


def test_the_array_struct_of_pinned_memory_waits_for_the_copy_into_it(machine):
    class Struct:
        def __init__(self, tensor):
            self.tensor = tensor

        @property
        def __array_struct__(self):
            return self.tensor.__array_struct__

    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    array = np.asarray(Struct(tensor.to("cuda_host")))
    assert set(array.tolist()) == {5}
    assert not hasattr(tensor, "__array_struct__")


def test_to_device_works_on_the_stream_that_is_named(machine):
    stream = machine.stream()
    tensor = dlbridge.full((256,), 3, "uint8")
    assert tensor.to_device("cpu") is tensor
    before = dlbridge.cuda.current_stream()
    there = tensor.to_device("cuda:0", stream=stream)
    assert there.device == "cuda:0"
    assert native.cuda_ready_stream(there) == stream
    assert dlbridge.cuda.current_stream() == before
    assert there.to_device(there.device, stream=stream) is there
    back = there.to_device("cpu", stream=stream)
    assert set(back.tolist()) == {3}
    assert there.to_device("cpu").tolist() == back.tolist()
    with pytest.raises(dlbridge.ArgumentError, match="stream"):
        there.to_device("cpu", stream="no stream")


@pytest.mark.parametrize("write", ["fill", "copy"])
def test_pinned_memory_is_written_by_the_host_when_it_has_been_sent(machine, write):
    pinned = dlbridge.full((256,), 3, "uint8", device="cuda_host")
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    native.copy_into(tensor, pinned)
    if write == "fill":
        pinned[...] = 4
    else:
        native.copy_into(pinned, dlbridge.full((256,), 4, "uint8"))
    assert set(bytes(tensor.to("cpu"))) == {3}


@pytest.mark.parametrize("to_device", [True, False])
def test_an_assignment_moves_pinned_memory_by_the_copy_engine_and_is_over(machine, to_device):
    """No other memory lies between, and the host may go on with its memory at once."""
    stream = machine.stream()
    with cuda.stream(stream):
        there = dlbridge.full((256,), 5, "uint8", device="cuda:0")
        pinned = dlbridge.full((256,), 3, "uint8", device="cuda_host")
        host = dlbridge.to_numpy(pinned)
        machine.launch(stream, writes=[(there.data_ptr, 256)], value=7, slow=True)
        if to_device:
            there[...] = pinned
        else:
            pinned[...] = there
        host[:] += 1
        assert set(there.to("cpu").tolist()) == ({3} if to_device else {7})
        assert set(host.tolist()) == ({4} if to_device else {8})


def test_an_assignment_of_pinned_memory_becomes_part_of_a_captured_graph(machine):
    stream = machine.stream()
    there = dlbridge.zeros((256,), "uint8", device="cuda:0")
    pinned = dlbridge.full((256,), 3, "uint8", device="cuda_host")
    cuda.synchronize()
    with cuda.stream(stream), machine.capture(stream) as graph:
        there[...] = pinned
    dlbridge.to_numpy(pinned)[:] = 6
    graph.launch(stream)
    machine.finish()
    assert machine.read_back(there.data_ptr, 256) == b"\6" * 256


def test_pinned_memory_is_not_reused_while_a_copy_reads_it(machine):
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    pinned = dlbridge.full((256,), 3, "uint8", device="cuda_host")
    native.copy_into(tensor, pinned)
    del pinned
    dlbridge.full((256,), 8, "uint8", device="cuda_host")
    assert set(bytes(tensor.to("cpu"))) == {3}


def test_numpy_gets_pinned_memory_that_is_ready(machine):
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    pinned = tensor.to("cuda_host")
    assert set(dlbridge.to_numpy(pinned).tolist()) == {5}
    assert set(np.from_dlpack(pinned).tolist()) == {5}


@pytest.fixture
def torch_with_cuda(monkeypatch):
    """Return torch, with the limits that it has where it sees a GPU."""
    torch = pytest.importorskip("torch")
    from dlbridge.frameworks import torch as adapter

    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    adapter._limits.cache_clear()
    native.forget_types()
    yield torch
    adapter._limits.cache_clear()


def test_torch_gets_pinned_memory_as_memory_of_the_cpu(machine, torch_with_cuda):
    """Its importer knows neither pinned nor managed memory, and pinned memory is the host's."""
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    pinned = tensor.to("cuda_host")
    x = dlbridge.convert(pinned, "torch")
    assert x.device.type == "cpu"
    assert x.data_ptr() == pinned.data_ptr
    assert set(x.tolist()) == {5}


def test_managed_memory_is_refused_for_torch_before_it_is_asked(machine, torch_with_cuda):
    managed = dlbridge.zeros((256,), "uint8", device="cuda_managed")
    with pytest.raises(dlbridge.ExchangeError, match=r"x.to\('cuda:0'\)") as caught:
        dlbridge.convert(managed, "torch")
    assert caught.value.reason == "device"


def test_values_of_pageable_memory_are_taken_before_the_copy_returns(machine):
    for count in (1 << 10, 1 << 20, 9 << 20):
        array = np.full(count, 3, np.uint8)
        tensor = dlbridge.empty((count,), "uint8", device="cuda")
        stream = machine.stream()
        native.cuda_begin(tensor, stream, True)
        machine.launch(stream, writes=[(tensor.data_ptr, 1024)], value=5, slow=True)
        native.copy_into(tensor, dlbridge.from_dlpack(array))
        array[:] = 4
        assert set(np.from_dlpack(tensor.to("cpu")).tolist()) == {3}


def test_small_strided_values_are_taken_before_the_copy_returns(machine):
    """Whatever they are packed in, the next copy leaves it alone while a kernel spins."""
    stream = machine.stream()
    tensors = [dlbridge.empty((16,), "uint8", device="cuda") for _ in range(4)]
    for tensor in tensors:
        native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensors[0].data_ptr, 16)], value=9, slow=True)
    with cuda.stream(stream):
        for number, tensor in enumerate(tensors):
            array = np.full(32, number, np.uint8)
            native.copy_into(tensor, dlbridge.from_dlpack(array[::2]))
    for number, tensor in enumerate(tensors):
        assert set(np.from_dlpack(tensor.to("cpu")).tolist()) == {number}


# ---- large ones ----------------------------------------------------------------------------------


@pytest.mark.parametrize("mebibytes", [1, 5, 40])
def test_large_tensors_go_in_pieces_through_pinned_memory(machine, mebibytes):
    """Those of 40 MiB by several threads; strided ones are packed on the way."""
    rows = mebibytes << 10
    array = random_bytes(rows << 10).reshape(rows, 1 << 10)
    host = dlbridge.from_dlpack(array)
    there = host.to("cuda")
    assert np.array_equal(np.from_dlpack(there.to("cpu")), array)
    part = host[1::2, 3:700].to("cuda")
    assert np.array_equal(np.from_dlpack(part.to("cpu")), array[1::2, 3:700])
    back = dlbridge.empty((1 << 10, rows), "uint8")
    native.copy_into(back.T, there)
    assert np.array_equal(np.from_dlpack(back), array.T)


@pytest.mark.parametrize("nbytes", [1, 4096, 1 << 20])
def test_the_driver_is_given_no_pageable_memory(fake_machine, nbytes):
    """It might make the host wait for the stream, or read the values when the copy has returned."""
    host = dlbridge.zeros((nbytes,), "uint8")
    fake_machine.reset()
    there = host.to("cuda")
    assert fake_machine.fake.fake_pageable_copies() == 0
    assert there.to("cpu").tolist() == host.tolist()
    assert fake_machine.fake.fake_pageable_copies() == 0


# ---- values from the host ------------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda_host", "cuda_managed"])
def test_zeros_and_full_on_a_device(machine, device):
    machine.need_place(device)
    assert set(dlbridge.zeros((300,), "int32", device=device).to("cpu").tolist()) == {0}
    assert set(dlbridge.full((7, 301), 1.5, "float64", device=device).to("cpu").view(
        "float64").reshape(-1).tolist()) == {1.5}  # fmt: skip
    assert dlbridge.full((5,), -3, "int4", device=device).to("cpu").tolist() == [-3] * 5


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda_managed"])
def test_assignment_as_in_numpy(machine, device):
    machine.need_place(device)
    array = np.zeros((6, 5), np.int64)
    tensor = dlbridge.zeros((6, 5), "int64", device=device)
    row, block = np.arange(5), np.arange(6).reshape(3, 2)
    for target in (array, tensor):
        target[1:, ::2] = 7
        target[2] = row
        target[::2, 3:] = block
        target[:, 1] = [1, 2, 3, 4, 5, 6]
        target[::-1, 0] = target[:, 1]
        target[1:] = target[:-1]
        target[4, 4] = np.int64(11)
    assert tensor.to("cpu").tolist() == array.tolist()


def test_assignment_of_a_tensor_of_another_device(machine):
    machine.need_devices(2)
    there = dlbridge.full((3, 4), 2.5, "float32", device="cuda:1")
    here = dlbridge.zeros((3, 4), "float32", device="cuda:0")
    here[1] = there[0]
    host = dlbridge.zeros((2, 4), "float32")
    host[1] = here[1]
    assert host.tolist() == [[0.0] * 4, [2.5] * 4]


def test_assignment_of_cuda_memory_converts_nothing(machine):
    there = dlbridge.zeros((3,), "float32", device="cuda")
    with pytest.raises(ExchangeError, match=r'\.to\("cpu"\)') as caught:
        dlbridge.zeros((3,), "float64")[...] = there
    assert caught.value.reason == "device"


# ---- captures ------------------------------------------------------------------------------------


def test_copies_on_the_device_and_of_pinned_memory_are_captured(machine):
    a = dlbridge.full((256,), 1, "uint8", device="cuda")
    b = dlbridge.zeros((256,), "uint8", device="cuda")
    pinned = dlbridge.full((256,), 2, "uint8", device="cuda_host")
    stream = machine.stream()
    with cuda.stream(stream):
        for tensor in (a, b):
            native.cuda_begin(tensor, stream, True)
        with machine.capture(stream) as graph:
            native.copy_into(b, a)
            native.copy_into(a, pinned)
        graph.launch(stream)
        graph.launch(stream)
        assert set(bytes(b.to("cpu"))) == {2}
    machine.synchronise()


def test_pageable_memory_is_refused_in_a_capture_which_goes_on(machine):
    a = dlbridge.zeros((256,), "uint8", device="cuda")
    host = dlbridge.zeros((256,), "uint8")
    stream = machine.stream()
    with cuda.stream(stream):
        native.cuda_begin(a, stream, True)
        with machine.capture(stream) as graph:
            for to, origin in ((a, host), (host, a)):
                with pytest.raises(ExchangeError, match="not pinned") as caught:
                    native.copy_into(to, origin)
                assert caught.value.reason == "stream"
            machine.launch(stream, writes=[(a.data_ptr, 256)], value=6)
        graph.launch(stream)
        assert set(bytes(a.to("cpu"))) == {6}
    machine.synchronise()


# ---- devices of an exchange ----------------------------------------------------------------------


@pytest.mark.parametrize("device", ["cuda:0", "cuda:1", "cuda_managed"])
def test_from_dlpack_and_convert_copy_to_the_device_asked_for(machine, device):
    machine.need_place(device)
    array = np.arange(12.0).reshape(3, 4)
    with dlbridge.receipts() as log:
        there = dlbridge.from_dlpack(array, device=device)
        back = dlbridge.convert(there, "numpy", device="cpu", layout="contiguous")
    assert there.device == device
    assert np.array_equal(back, array)
    copied = [(receipt.copied_by, receipt.why) for receipt in log]
    managed = device == "cuda_managed"  # which the host reads itself
    assert copied == [("dlbridge", "device"), (None, None) if managed else ("dlbridge", "device")]
    assert dlbridge.explain(there, "numpy", device="cpu").shared is managed


def test_copy_false_moves_nothing(machine):
    with pytest.raises(ExchangeError, match="copy=False") as caught:
        dlbridge.from_dlpack(np.zeros(3), device="cuda", copy=False)
    assert caught.value.reason == "device"


def test_dl_device_and_copy_of_the_standard(machine):
    tensor = dlbridge.full((5,), 4, "int32", device="cuda:0")
    for dl_device in ((1, 0), (2, 1), (3, 0)):
        machine.need_devices(2)
        capsule = tensor.__dlpack__(max_version=(1, 3), dl_device=dl_device)
        copied = native.take_capsule(capsule)
        assert copied.__dlpack_device__() == dl_device
        assert copied.flags & 2, "the capsule says that it was copied"
        assert copied.to("cpu").tolist() == [4] * 5
        with pytest.raises(ExchangeError) as caught:
            tensor.__dlpack__(dl_device=dl_device, copy=False)
        assert caught.value.reason == "device"
    copied = native.take_capsule(tensor.__dlpack__(max_version=(1, 3), copy=True))
    assert copied.device == tensor.device
    assert copied.data_ptr != tensor.data_ptr


@pytest.mark.parametrize("is_named", [True, False])
def test_copies_to_a_device_are_ready_on_the_consumers_stream(machine, is_named):
    """The producer is on the CPU, which has no streams; the copy is on a device that has them."""
    side, theirs = machine.stream(), machine.stream() if is_named else 1
    values = dlbridge.from_dlpack(random_bytes(1 << 16))
    result = machine.alloc(1 << 16)
    with cuda.stream(side):
        capsule = values.__dlpack__(
            max_version=(1, 3), dl_device=(2, 0), stream=theirs if is_named else None
        )
    there = native.take_capsule(capsule)
    machine.launch(theirs, reads=[(there.data_ptr, 1 << 16)], writes=[(result, 1 << 16)])
    assert machine.read_back(result, 1 << 16) == bytes_of(values)


def test_pinned_memory_that_is_borrowed_is_ready_for_the_host(machine):
    """By the exchange table, which does not say whether a host or a device reads it."""
    tensor = dlbridge.zeros((256,), "uint8", device="cuda")
    stream = machine.stream()
    native.cuda_begin(tensor, stream, True)
    machine.launch(stream, writes=[(tensor.data_ptr, 256)], value=5, slow=True)
    pinned = tensor.to("cuda_host")
    address = capsule_address(dlbridge.Tensor.__dlpack_c_exchange_api__)
    borrow = Borrow(ExchangeTable.from_address(address).borrow)
    view = DLTensor()
    assert borrow(pinned, view) == 0
    assert set(ctypes.string_at(view.data, 256)) == {5}


def test_refusals_say_what_was_called_and_where_the_data_is(fake_machine):
    """Names that a reader can look up: no pair of numbers, no function that there is not."""
    tensor = dlbridge.zeros((4,), "float32", device="cuda:0")
    for call, text in (
        (lambda: dlbridge.from_dlpack(tensor, device="cuda:1", copy=False), "^from_dlpack: "),
        (lambda: dlbridge.from_dlpack(tensor, device="rocm"), "^from_dlpack: device rocm:0"),
        (lambda: tensor.to("rocm"), "^to: the data is on cuda:0, and"),
    ):
        with pytest.raises(ExchangeError, match=text) as caught:
            call()
        assert caught.value.reason == "device"

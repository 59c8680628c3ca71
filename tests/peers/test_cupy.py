"""CuPy's own rules. Tests that need a GPU are marked; others run with CuPy alone, or a stand-in."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from dlpack_peers import CUDA, READ_ONLY, ModernProducer, describe

import dlbridge
from dlbridge import from_dlpack, to_cupy, to_numpy
from dlbridge._core import native
from dlbridge.exchange import adapter
from peers.checks import refused
from peers.readers import filled, has

# ---- a stand-in, for the decisions alone -------------------------------------------------------


class _Array:
    """What CuPy's array is to the adapter: a producer of memory that is said to be a GPU's."""

    __module__ = "cupy"

    def __init__(self, array: np.ndarray[Any, Any]) -> None:
        self.array = array
        self.calls: list[dict[str, Any]] = []

    def __dlpack__(self, **keywords: Any) -> object:
        self.calls.append(keywords)
        to_host = keywords.get("dl_device") == (1, 0)
        memory = self.array.copy() if to_host else self.array
        device = (1, 0) if to_host else (CUDA, 0)
        return ModernProducer(describe(memory, device=device)).capsule()

    def __dlpack_device__(self) -> tuple[int, int]:
        return (CUDA, 0)

    @property
    def device(self) -> _Device:
        return _Device(0)


_Array.__name__ = "ndarray"


class _Device:
    used: list[int] = []  # noqa: RUF012

    def __init__(self, index: int) -> None:
        self.index = self.id = index

    def __enter__(self) -> None:
        self.used.append(self.index)

    def __exit__(self, *error: object) -> None:
        pass


@pytest.fixture
def cupy(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """A module that looks like CuPy with one GPU.

    The core must forget its class afterwards: no public call does that, since no user needs it.
    """
    module = types.ModuleType("cupy")
    module.__dict__.update(
        ndarray=_Array,
        from_dlpack=lambda x: ("shared", from_dlpack(x)),
        asarray=lambda x: ("copied", x),
        cuda=types.SimpleNamespace(
            runtime=types.SimpleNamespace(is_hip=False),
            is_available=lambda: True,
            Device=_Device,
            get_current_stream=lambda device=0: types.SimpleNamespace(ptr=0),
        ),
    )
    monkeypatch.setitem(sys.modules, "cupy", module)
    monkeypatch.setattr(adapter, "_STARTED", set(adapter._STARTED))
    native.forget_types()
    adapter._BY_TYPE.pop(id(_Array), None)
    yield module
    native.forget_types()
    adapter._BY_TYPE.pop(id(_Array), None)


def test_gpu_memory_is_shared(cupy: Any) -> None:
    gpu = ModernProducer(describe(filled((3,), "float32"), device=(CUDA, 0)))
    kind, tensor = to_cupy(gpu)
    assert kind == "shared"
    assert tensor.device == "cuda:0"
    assert to_cupy(gpu, copy=False)[0] == "shared"
    assert dlbridge.explain(gpu, "cupy").shared


@pytest.mark.fact(38)
def test_host_memory_is_copied_by_cupy(cupy: Any) -> None:
    """`cupy.from_dlpack` refuses it with a TypeError."""
    x = filled((3,), "float32")
    kind, array = to_cupy(x)
    assert kind == "copied"
    assert array.tolist() == [0, 1, 2]
    receipt = dlbridge.explain(x, "cupy")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "cupy", "device")
    assert "copy=False" in refused("device", to_cupy, x, copy=False)
    x.flags.writeable = False
    assert to_cupy(x)[0] == "copied"


def test_the_device_of_the_copy(cupy: Any) -> None:
    x = filled((3,), "float32")
    _Device.used.clear()
    assert to_cupy(x, device="cuda:1")[0] == "copied"
    assert _Device.used == [1]
    refused("device", to_cupy, x, device="rocm:0")


@pytest.mark.fact(16)
def test_read_only_memory_of_a_gpu_is_refused(cupy: Any) -> None:
    """CuPy ignores READ_ONLY, and would write into it."""
    gpu = ModernProducer(describe(filled((3,), "float32"), device=(CUDA, 0), flags=READ_ONLY))
    refused("readonly", to_cupy, gpu)
    assert to_cupy(gpu, readonly="share")[0] == "shared"


def test_memory_of_other_devices_is_refused(cupy: Any) -> None:
    for device in (4, 8, 10, 14):
        other = ModernProducer(describe(filled((3,), "float32"), device=(device, 0)))
        refused("device", to_cupy, other)


@pytest.mark.parametrize("triple", [(4, 16, 1), (10, 8, 1), (0, 4, 1), (5, 32, 1), (3, 64, 1)])
def test_dtypes_that_cupy_lacks_are_refused(cupy: Any, triple: tuple[int, int, int]) -> None:
    refused("dtype", to_cupy, native.allocate((4,), triple))


def test_gpu_memory_stays_there_unless_the_host_is_asked_for(cupy: Any) -> None:
    x = _Array(filled((3,), "float32"))
    assert from_dlpack(x).device == "cuda:0"
    refused("device", to_numpy, x)
    refused("device", to_numpy, x, device="cpu", copy=False)
    with dlbridge.receipts() as log:
        y = to_numpy(x, device="cpu")
    assert y.tolist() == [0, 1, 2]
    assert (log[0].copied_by, log[0].why) == ("cupy", "device")
    assert x.calls[-1]["dl_device"] == (1, 0)


@pytest.mark.fact(41)
def test_cupy_is_asked_for_no_order_since_its_current_stream_is_known(cupy: Any) -> None:
    """It would make an event each time, also where producer and consumer share a stream."""
    x = _Array(filled((3,), "float32"))
    assert native.cuda_ready_stream(from_dlpack(x)) == 1
    assert x.calls[-1]["stream"] == -1


def test_an_array_of_its_own_is_returned(cupy: Any) -> None:
    x = _Array(filled((3,), "float32"))
    assert to_cupy(x) is x


def test_without_a_gpu_it_says_so(cupy: Any) -> None:
    cupy.cuda.is_available = lambda: False
    for policies in ({}, {"copy": True}, {"device": "cuda:0"}):
        assert "no GPU" in refused("device", to_cupy, filled((3,), "float32"), **policies)


def test_on_rocm_the_devices_are_others(cupy: Any) -> None:
    cupy.cuda.runtime.is_hip = True
    hip = ModernProducer(describe(filled((3,), "float32"), device=(10, 0)))
    assert to_cupy(hip)[0] == "shared"
    refused("device", to_cupy, ModernProducer(describe(filled((3,), "float32"), device=(CUDA, 0))))


# ---- CuPy itself -------------------------------------------------------------------------------


@pytest.fixture
def real() -> Any:
    if not has("cupy"):
        pytest.skip("cupy is not installed")
    return pytest.importorskip("cupy", exc_type=(ImportError, RuntimeError))


def test_cupy_without_a_driver_refuses_with_a_reason(real: Any) -> None:
    if real.cuda.is_available():
        pytest.skip("there is a GPU here")
    refused("device", to_cupy, filled((3,), "float32"))
    assert adapter.adapter("cupy").recognises(real.ndarray)


@pytest.mark.gpu
def test_cupy_with_a_gpu(real: Any) -> None:
    if not real.cuda.is_available():
        pytest.skip("there is no GPU here")
    x = real.arange(6.0).reshape(2, 3)
    tensor = from_dlpack(x)
    assert (tensor.device, tensor.data_ptr) == ("cuda:0", x.data.ptr)
    assert to_cupy(tensor).data.ptr == x.data.ptr
    assert to_numpy(x, device="cpu").tolist() == x.get().tolist()
    assert real.array_equal(to_cupy(np.arange(6.0).reshape(2, 3)), x)

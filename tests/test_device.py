"""Device: every device type of the standard, and every framework's objects there and back."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from enum import IntEnum
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dlbridge._core import ffi, lib
from dlbridge.device import Device, DeviceType, as_device, make_device
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError

pairs = st.tuples(st.sampled_from([*DeviceType]), st.integers(-(2**31), 2**31 - 1))


# ---- the value ---------------------------------------------------------------------------------


def test_the_types_are_those_of_the_header() -> None:
    enum = ffi.typeof("DLDeviceType").relements
    assert {kind.name.replace("_", "") for kind in DeviceType} == {
        name.removeprefix("kDL").upper() for name in enum
    }
    for name, number in enum.items():
        assert DeviceType(number).name.replace("_", "") == name.removeprefix("kDL").upper()


def test_the_core_and_device_know_the_same_types() -> None:
    tensor = ffi.new("DLTensor *", {"data": ffi.cast("void *", 64), "dtype": (0, 8, 1)})
    for number in range(100):
        tensor.device = (number, 0)
        is_carried = lib.dlb_layout_check(tensor, 0) == ffi.NULL
        assert is_carried == (number in [*DeviceType] or number > DeviceType.ASCEND)


@given(pairs)
def test_there_is_one_object_for_each_device(pair: tuple[int, int]) -> None:
    device = make_device(*pair)
    assert device.pair == pair
    assert all(type(number) is int for number in device.pair)
    assert Device(pair) is Device(device) is copy.deepcopy(device) is device
    assert pickle.loads(pickle.dumps(device)) is device
    if pair[1] >= 0:
        assert Device(str(device)) is eval(repr(device)) is device


def test_text() -> None:
    assert str(Device("cpu")) == "cpu"
    assert str(Device("cpu:1")) == "cpu:1"
    assert str(Device("CUDA")) == "cuda:0"
    assert repr(Device((13, 2))) == "Device('cuda_managed:2')"


def test_host_memory_that_the_cpu_can_read() -> None:
    readable = {kind for kind in DeviceType if make_device(kind).is_host_accessible}
    assert {kind.name for kind in readable} == {
        *("CPU", "CUDA_HOST", "ROCM_HOST", "CUDA_MANAGED", "TPU_HOST"),
    }


def test_a_device_is_immutable() -> None:
    with pytest.raises(AttributeError, match="immutable"):
        Device("cpu").id = 3
    with pytest.raises(AttributeError, match="immutable"):
        del Device("cpu").type


# ---- what is read ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "pair"),
    [
        ("cpu", (1, 0)),
        ("cuda:3", (2, 3)),
        ("gpu:1", (2, 1)),
        ("cuda_host", (3, 0)),
        ("mps", (8, 0)),
        ("metal:0", (8, 0)),
        ("rocm:1", (10, 1)),
        ("hip", (10, 0)),
        ("xpu:2", (14, 2)),
        ("oneapi:0", (14, 0)),
        ("trn", (18, 0)),
        ("tpu", (19, 0)),
        ("tpu_host:1", (20, 1)),
        ("ascend", (21, 0)),
        ("/cpu:0", (1, 0)),
        ("/device:GPU:2", (2, 2)),
        ("/job:localhost/replica:0/task:0/device:CPU:0", (1, 0)),
        ("/physical_device:GPU:1", (2, 1)),
    ],
)
def test_names(name: str, pair: tuple[int, int]) -> None:
    assert Device(name).pair == pair
    assert Device(name) == name
    assert Device(name) == pair


@pytest.mark.parametrize(
    "name",
    [
        "",
        "npu",
        "cuda:",
        "cuda:-1",
        "cuda:1:2",
        "/device:CPU:*",
        "/job:a",
        "device",
        "cuda:x",
        "cuda:" + "9" * 5000,
    ],
    ids=lambda name: name[:20],
)
def test_unknown_names_are_told_the_known_ones(name: str) -> None:
    with pytest.raises(ArgumentError, match="known are cpu, cuda, "):
        Device(name)
    assert Device("cpu") != name


def test_pairs_as_producers_return_them() -> None:
    class Kind(IntEnum):
        kDLCUDA = 2

    assert Device((Kind.kDLCUDA, 1)) is Device("cuda:1")
    assert Device((1, None)) is Device("cpu")
    assert Device("cuda:1") == (Kind.kDLCUDA, 1)
    assert (1, 0) == Device("cpu")  # noqa: SIM300


@pytest.mark.parametrize("pair", [(0, 0), (5, 0), (-1, 0), (2**31, 0), (1, 2**31)])
def test_fields_outside_the_standard_are_refused(pair: tuple[int, int]) -> None:
    with pytest.raises(ExchangeError) as caught:
        Device(pair)
    assert caught.value.reason == "device"


def test_a_type_that_is_newer_than_the_standard_is_written_by_its_number() -> None:
    device = Device((25, 1))
    assert (str(device), device.pair, device.type.name) == ("type25:1", (25, 1), "TYPE25")
    assert Device("type25:1") is Device("TYPE25:1") is device != Device("type26:1")
    assert pickle.loads(pickle.dumps(device)) is device
    assert not device.is_host_accessible
    assert [*DeviceType][-1] is DeviceType.ASCEND


@pytest.mark.parametrize(
    "name", ["type5", "type21", "type025", "type", "type-25", "type" + "9" * 10]
)
def test_numbers_in_names_are_those_of_newer_types_alone(name: str) -> None:
    with pytest.raises(ArgumentError, match="unknown name"):
        Device(name)


@pytest.mark.parametrize("x", [None, 1, [1, 0], (1,), (1, 0, 0), ("cpu", 0), (1.5, 0), object()])
def test_an_invalid_device_is_a_type_error(x: object) -> None:
    with pytest.raises(UnsupportedTypeError, match="as a device; pass a name such as 'cuda:0'"):
        Device(x)
    assert Device("cpu") != x


def test_cffi_structs_are_read() -> None:
    assert Device(ffi.new("DLDevice *", (10, 4))[0]) is Device("rocm:4")
    with pytest.raises(UnsupportedTypeError):
        Device(ffi.new("DLDataType *", (1, 8, 1)))


# ---- every framework ---------------------------------------------------------------------------


def check_refused(name: str, framework: str) -> None:
    with pytest.raises(ExchangeError, match=f"{framework} has no device for {name}") as caught:
        Device(name).to(framework)
    assert caught.value.reason == "device"


def test_numpy_has_the_cpu_only() -> None:
    assert Device("cpu").to("numpy") == Device("cuda_host").to("numpy") == "cpu"
    check_refused("cuda:0", "numpy")


def test_torch_both_ways(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    names = {"cpu": "cpu", "cuda:1": "cuda:1", "mps:0": "metal:0", "xpu:2": "oneapi:2"}
    for theirs, ours in names.items():
        if theirs.startswith("cuda") and torch.version.hip is not None:
            ours = ours.replace("cuda", "rocm")
        device = Device(torch.device(theirs))
        assert str(device) == ours
        assert device.to("torch") == torch.device(theirs)
        assert device == torch.device(theirs)
        assert torch.device(theirs) == device
    assert Device(torch.device("cuda")).id == 0
    assert Device("cuda_host:3").to("torch") == torch.device("cpu")
    check_refused("trn:0", "torch")
    with pytest.raises(ExchangeError, match="DLPack has no device for"):
        Device(torch.device("meta"))
    with pytest.raises(UnsupportedTypeError):
        Device(torch.ones(2))


def test_torch_cuda_is_not_rocm(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    check_refused("cuda:0" if torch.version.hip is not None else "rocm:0", "torch")


def test_jax_both_ways(framework: Callable[[str], Any]) -> None:
    jax = framework("jax")
    for device in jax.local_devices(backend="cpu"):
        assert Device(device).pair == (1, device.id)
        assert Device(device).to("jax") is device
        assert Device(device) == device
    check_refused("cpu:4096", "jax")
    with pytest.raises(UnsupportedTypeError):
        Device(jax.numpy.ones(2))


@pytest.mark.parametrize(
    ("platform", "version", "hardware", "pair"),
    [
        ("gpu", "PJRT C API cuda 12090", 1, (2, 1)),
        ("gpu", "PJRT C API rocm 60300", 1, (10, 1)),
        ("cuda", "", None, (2, 5)),
        ("cpu", "cpu", 0, (1, 5)),
        ("tpu", "", 1, (19, 1)),
    ],
)
def test_jax_devices_of_other_machines(
    platform: str, version: str, hardware: int | None, pair: tuple[int, int]
) -> None:
    """DLPack counts the devices of this process's machine, JAX those of all machines."""

    class Client:
        platform_version = version

    fields = {"platform": platform, "id": 5, "local_hardware_id": hardware, "client": Client}
    jax_device = type("Device", (), {"__module__": "jaxlib._jax", **fields})()
    assert Device(jax_device).pair == pair


def test_a_platform_of_jax_that_has_no_name_in_dlpack() -> None:
    fields = {"platform": "neuron", "id": 0, "local_hardware_id": 0}
    with pytest.raises(ExchangeError, match="DLPack has no device for"):
        Device(type("Device", (), {"__module__": "jaxlib._jax", **fields})())


def test_tensorflow_both_ways(framework: Callable[[str], Any]) -> None:
    tf = framework("tensorflow")
    assert Device(tf.constant([1.0]).device) is Device("cpu")
    assert Device(tf.config.list_physical_devices("CPU")[0]) is Device("cpu")
    assert Device(tf.config.list_logical_devices("CPU")[0]) is Device("cpu")
    assert Device(tf.DeviceSpec.from_string("/job:w/gpu:1")) is Device("cuda:1")
    with tf.device(Device("cpu").to("tensorflow")):
        assert Device(tf.constant([1.0]).device) is Device("cpu")
    assert Device("cuda:2").to("tensorflow") == "/device:GPU:2"
    check_refused("metal:0", "tensorflow")


def test_tvm_both_ways(framework: Callable[[str], Any]) -> None:
    tvm_ffi = framework("tvm_ffi")
    for kind in DeviceType:
        device = make_device(kind, 1)
        assert Device(device.to("tvm")) is device
    assert Device(tvm_ffi.device("cuda", 3)) == "cuda:3"


def test_mlx_both_ways(framework: Callable[[str], Any]) -> None:
    mx = framework("mlx.core")
    assert Device(mx.cpu) is Device(mx.Device(mx.cpu, 0)) is Device("cpu")
    assert Device("cpu").to("mlx") == mx.Device(mx.cpu, 0)
    gpu = Device(mx.Device(mx.gpu, 1))
    assert gpu == ("cuda:1" if mx.cuda.is_available() else "metal:1")
    assert gpu.to("mlx") == mx.Device(mx.gpu, 1)
    check_refused("rocm:0", "mlx")


def test_paddle_both_ways(framework: Callable[[str], Any]) -> None:
    paddle = framework("paddle")
    assert Device(paddle.CPUPlace()) is Device(paddle.to_tensor(1.0).place) is Device("cpu")
    assert Device(Device("cpu").to("paddle")) is Device("cpu")
    assert Device("cuda_managed").to("paddle") == paddle.CPUPlace()


@pytest.mark.parametrize(
    ("text", "pair"), [("gpu:1", (2, 1)), ("gpu_pinned", (3, 0)), ("cpu", (1, 0))]
)
def test_paddle_places(text: str, pair: tuple[int, int]) -> None:
    fields = {"__module__": "paddle.base.libpaddle", "__str__": lambda self: f"Place({text})"}
    assert Device(type("Place", (), fields)()).pair == pair


def test_devices_known_by_their_module_only() -> None:
    """CUDA's own package, and SYCL queues and devices behind dpnp's device objects."""
    cuda = type("Device", (), {"__module__": "cuda.core._device", "device_id": 2})()
    assert Device(cuda) is Device("cuda:2")
    sycl = type("SyclDevice", (), {"__module__": "dpctl", "get_device_id": lambda self: 1})()
    dpnp = type("Device", (), {"__module__": "dpnp.tensor._device", "sycl_device": sycl})()
    assert Device(sycl) is Device(dpnp) is Device("oneapi:1")


def test_dpnp_devices(framework: Callable[[str], Any]) -> None:
    dpnp = framework("dpnp")
    array = dpnp.ones(3)
    assert Device(array.device) is Device(array.sycl_device) is as_device(array.__dlpack_device__())


def test_unknown_frameworks_are_told_the_known_ones() -> None:
    with pytest.raises(ArgumentError, match="unknown framework 'caffe'; known are numpy, torch"):
        Device("cpu").to("caffe")


def test_the_dlpack_device_protocol_is_spoken_both_ways():
    class Foreign:
        def __dlpack_device__(self):
            return 2, 3

    class Strict:
        __module__ = "array_api_strict._array_object"

        def __init__(self, name):
            self._device = name

    assert Device("cuda:3").__dlpack_device__() == (2, 3)
    assert Device(Foreign()) is Device("cuda:3")
    assert Device("cuda:3") == Foreign()
    assert Device(Strict("CPU_DEVICE")) is Device("cpu")
    with pytest.raises(ExchangeError):
        Device(Strict("device1"))
    for x in (Foreign, np.ones(2)):
        with pytest.raises(UnsupportedTypeError):
            Device(x)


def test_tvm_ffi_reads_a_device_as_a_device():
    tvm_ffi = pytest.importorskip("tvm_ffi")
    echo = tvm_ffi.get_global_func("testing.echo")
    got = echo(Device("cuda:3"))
    assert isinstance(got, tvm_ffi.Device)
    assert Device(got) is Device("cuda:3")

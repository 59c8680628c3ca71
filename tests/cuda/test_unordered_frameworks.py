"""TensorFlow, MXNet and Paddle without a table: no stream in their exchange, so no CUDA memory.

None of their builds here has a GPU: what they would hand out on one is a capsule without an order,
of memory that a kernel on a non-blocking stream of their own still writes.
"""

from __future__ import annotations

import importlib.util
import sys
import weakref
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import cuda
from dlbridge._core import native
from dlbridge.errors import ExchangeError
from dlbridge.exchange import exchange
from dlbridge.exchange.adapter import Framework
from dlbridge.exchange.context import ExchangeContext, Policy
from dlbridge.frameworks import mxnet as mxnet_adapter
from dlbridge.frameworks import paddle as paddle_adapter

HERE = Path(__file__).resolve().parent
N = 16
BYTES = 4 * N
FLOAT32 = (2, 32, 1)


class Owner:
    """The memory of a framework, which takes it back when the last capsule is gone."""


class Producer:
    """What hands out capsules of memory that a kernel of its own still writes."""

    def __init__(self, machine: Any) -> None:
        self.machine, self.stream = machine, machine.stream()
        self.address = machine.alloc(BYTES)
        self.loans: list[weakref.ref[Owner]] = []

    def export(self, x: object = None) -> object:
        self.machine.launch(self.stream, writes=[(self.address, BYTES)], value=7, slow=True)
        owner = Owner()
        self.loans.append(weakref.ref(owner))
        lent = native.take_object(owner, self.address, (N,), None, FLOAT32, (2, 0))
        return lent._capsule(False, 0, True, -1)

    def has_all_back(self) -> bool:
        self.machine.finish()
        cuda.collect()
        return bool(self.loans) and all(loan() is None for loan in self.loans)


@pytest.fixture
def producer(fake_machine: Any) -> Producer:
    return Producer(fake_machine)


def refused(producer: Producer, call: Any, *words: str) -> None:
    """Assert that memory is refused before anything reads it, and goes back at once."""
    with pytest.raises(ExchangeError) as caught:
        call()
    assert caught.value.reason == "device"
    for word in ("no stream in its exchange", *words):
        assert word in str(caught.value)
    del caught
    assert producer.has_all_back()


# ---- out of them ---------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["dlbridge", "numpy", "torch"])
def test_cuda_memory_of_tensorflow_is_refused(
    producer: Producer, monkeypatch: pytest.MonkeyPatch, to: str
) -> None:
    """Its kernels run on a non-blocking stream, which the legacy stream does not wait for."""
    tf = pytest.importorskip("tensorflow")
    x = tf.Variable(np.zeros(N, "float32"))
    monkeypatch.setattr(tf.experimental.dlpack, "to_dlpack", producer.export)
    call = dlbridge.from_dlpack if to == "dlbridge" else getattr(dlbridge, f"to_{to}")
    refused(producer, lambda: call(x), "EagerTensor is on cuda:0", "tf.identity(x)")


@pytest.mark.full
@pytest.mark.subprocess
def test_the_c_path_leaves_cuda_memory_of_tensorflow_to_the_refusal(
    run_python: Any, new_fake: Any
) -> None:
    """Eager tensors are taken by a C function of TensorFlow's own."""
    if importlib.util.find_spec("tensorflow") is None:
        pytest.skip("tensorflow is not installed")
    with new_fake() as machine:
        path = machine.path
    run_python(
        """
        import sys
        sys.path.insert(0, sys.argv[1])
        import numpy as np, tensorflow as tf
        from tensorflow.python import pywrap_tfe
        import dlbridge
        from dlbridge._core import native
        from fake_machine import FakeMachine
        from test_unordered_frameworks import N, Producer

        assert native.cuda_open(sys.argv[2]) is None
        producer = Producer(FakeMachine(sys.argv[2]))
        x, plain = tf.zeros(N), pywrap_tfe.TFE_ToDlpackCapsule
        def export(value):
            return producer.export() if value is x else plain(value)
        pywrap_tfe.TFE_ToDlpackCapsule = export
        tf.experimental.dlpack.to_dlpack = export
        assert dlbridge.from_dlpack(tf.ones(3)).shape == (3,)
        for call in (dlbridge.from_dlpack, dlbridge.to_numpy):
            try:
                call(x)
            except dlbridge.DLBridgeError as error:
                assert "no stream in its exchange" in str(error), error
            else:
                raise AssertionError(f"{call} took it")
        assert producer.has_all_back()
        """,
        HERE,
        path,
    ).check()


def test_cuda_memory_of_mxnet_is_refused(producer: Producer) -> None:
    x = SimpleNamespace(stype="default", grad=None, to_dlpack_for_write=producer.export)
    context = ExchangeContext("mxnet", "dlbridge")
    refused(
        producer,
        lambda: mxnet_adapter.ADAPTER.take(x, Policy("from_dlpack"), context),
        "x.as_in_context(mxnet.cpu())",
    )


class PaddleTensor:
    """A tensor of a Paddle without an exchange table."""

    stop_gradient = True
    producer: Producer

    def is_dist(self) -> bool:
        return False

    def is_dense(self) -> bool:
        return True

    def __dlpack__(self, **_: object) -> object:
        return self.producer.export()

    def __dlpack_device__(self) -> tuple[int, int]:
        return 2, 0


class PaddleTensorWithTable(PaddleTensor):
    __dlpack_c_exchange_api__ = object()


def install_paddle(monkeypatch: pytest.MonkeyPatch, tensor: type = PaddleTensor) -> None:
    """Have the adapter meet a Paddle with CUDA whose tensors are of this class."""
    static = SimpleNamespace(Variable=type("Variable", (), {}))
    paddle = SimpleNamespace(Tensor=tensor, static=static, is_compiled_with_cuda=lambda: True)
    monkeypatch.setitem(sys.modules, "paddle", paddle)


def test_cuda_memory_of_paddle_without_a_table_is_refused(
    producer: Producer, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_paddle(monkeypatch)
    x = PaddleTensor()
    x.producer = producer
    context = ExchangeContext("paddle", "dlbridge")
    refused(
        producer,
        lambda: paddle_adapter.ADAPTER.take(x, Policy("from_dlpack"), context),
        "PaddleTensor is on cuda:0",
        "x.cpu()",
    )


def test_paddle_with_a_table_takes_cuda_memory(
    fake_machine: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its table tells the stream."""
    tensor = dlbridge.full((N,), 7, "float32", device="cuda:0")
    adapter = paddle_adapter.ADAPTER
    install_paddle(monkeypatch, PaddleTensorWithTable)
    assert adapter.orders_cuda()
    assert adapter.refusal(tensor) is None
    install_paddle(monkeypatch)
    assert not adapter.orders_cuda()
    assert adapter.refusal(tensor) == "device"


# ---- into them -----------------------------------------------------------------------------------


@pytest.fixture(params=["tensorflow", "mxnet", "paddle"])
def framework(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Framework:
    """One of them, in a build that has a GPU."""
    if request.param == "paddle":
        install_paddle(monkeypatch)
        return paddle_adapter.ADAPTER
    if request.param == "mxnet":
        mxnet = SimpleNamespace(
            context=SimpleNamespace(num_gpus=lambda: 1),
            util=SimpleNamespace(is_np_shape=lambda: True),
        )
        monkeypatch.setitem(sys.modules, "mxnet", mxnet)
        return mxnet_adapter.ADAPTER
    tf = pytest.importorskip("tensorflow")
    gpu = tf.config.PhysicalDevice("/physical_device:GPU:0", "GPU")
    monkeypatch.setattr(tf.config, "list_physical_devices", lambda kind=None: [gpu])
    from dlbridge.frameworks import tensorflow as tensorflow_adapter

    return tensorflow_adapter.ADAPTER


def entered(framework: Framework, tensor: native.TensorBase, **policies: Any) -> Any:
    """Return what a framework would be given for a tensor."""
    policy = Policy(f"to_{framework.name}", **policies)
    context = ExchangeContext("dlbridge", framework.name)
    return exchange.fit(tensor, framework, policy, context)


@pytest.mark.parametrize("copy", [None, True, False])
def test_cuda_memory_does_not_get_into_them(
    fake_machine: Any, framework: Framework, copy: bool | None
) -> None:
    """They drop their reference with kernels still enqueued on streams that nobody knows."""
    tensor = dlbridge.full((N,), 7, "float32", device="cuda:0")
    while fake_machine.finish() or cuda.collect():
        pass  # the memory of the host that it was copied from waits for the copy
    fake_machine.reset()
    with pytest.raises(ExchangeError, match="no stream in its exchange") as caught:
        entered(framework, tensor, copy=copy)
    assert caught.value.reason == "device"
    assert str(caught.value).startswith(f"to_{framework.name}: ")
    assert 'pass device="cpu" for a copy on the host' in str(caught.value)
    assert fake_machine.actions() == []  # refused before a copy is made


def test_they_get_a_copy_on_the_host_where_it_is_asked_for(
    fake_machine: Any, framework: Framework
) -> None:
    tensor = dlbridge.full((N,), 7, "float32", device="cuda:0")
    made = entered(framework, tensor, device="cpu")
    assert made.device == "cpu"
    assert dlbridge.to_numpy(made).tolist() == [7.0] * N


def test_nothing_is_copied_to_a_gpu_for_them(fake_machine: Any, framework: Framework) -> None:
    tensor = dlbridge.full((N,), 7, "float32")
    fake_machine.reset()
    with pytest.raises(ExchangeError, match="device cuda:0 asked for") as caught:
        entered(framework, tensor, device="cuda:0")
    assert caught.value.reason == "device"
    assert "no stream in its exchange" in str(caught.value)
    assert fake_machine.calls == []


def test_managed_memory_is_copied_for_them_by_its_owner(framework: Framework) -> None:
    """On the host it is where it was, so that device="cpu" would copy nothing."""
    host = np.full(N, 7, "float32")
    tensor = native.take_object(host, host.ctypes.data, (N,), None, FLOAT32, (13, 0))
    with pytest.raises(ExchangeError, match=r"copy it: x\.to\('cpu'\)"):
        entered(framework, tensor)


def test_to_tensorflow_refuses_cuda_memory(fake_machine: Any) -> None:
    pytest.importorskip("tensorflow")
    tensor = dlbridge.full((N,), 7, "float32", device="cuda:0")
    for call in (dlbridge.to_tensorflow, lambda x: dlbridge.explain(x, "tensorflow")):
        with pytest.raises(ExchangeError, match="no stream in its exchange"):
            call(tensor)
    assert dlbridge.to_tensorflow(tensor, device="cpu").numpy().tolist() == [7.0] * N

"""The frameworks on the direct route: what each gives back, what each cannot."""

from __future__ import annotations

import array
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import frameworks
from dlbridge.errors import (
    ArgumentError,
    ExchangeError,
    FrameworkMissingError,
    UnsupportedTypeError,
)
from dlbridge.exchange import adapter
from dlbridge.exchange.adapter import is_installed
from dlbridge.kernels.binding import binding

# framework -> the module to import for it
HOSTS = {
    "numpy": "numpy",
    "dlbridge": "dlbridge",
    "tvm": "tvm_ffi",
    "mlx": "mlx.core",
    "pyarrow": "pyarrow",
    "onnxruntime": "onnxruntime",
    "warp": "warp",
    "paddle": "paddle",
    "mxnet": "mxnet",
}
WRITABLE = [name for name in HOSTS if name not in ("mlx", "pyarrow")]
X = np.arange(1, 5, dtype="f4")


def into(name: str, framework: Any, x: Any = X) -> Any:
    """Return `x` as a tensor of a framework."""
    framework(HOSTS[name])
    return dlbridge.convert(np.array(x), name)


def numbers(x: Any) -> list[float]:
    """Return the values of any tensor."""
    return dlbridge.to_numpy(x, readonly="share").tolist()


def kind(name: str) -> type | None:
    """Return the type whose objects a framework's functions give."""
    return adapter.adapter(name).array_type()


@pytest.mark.parametrize("name", HOSTS)
def test_results_are_the_frameworks_own(name: str, framework: Any, compiled: Any) -> None:
    """By the kernel itself, and by its bound function."""
    x = into(name, framework)
    kernel = compiled("axpy")
    for function in (kernel, getattr(kernel, name)):
        result = function(x, x, alpha=2)
        assert isinstance(result, kind(name) or object)
        assert numbers(result) == [3, 6, 9, 12]


@pytest.mark.parametrize("name", HOSTS)
def test_several_results_and_none(name: str, framework: Any, compiled: Any) -> None:
    """As a tuple, and as None."""
    framework(HOSTS[name])
    if name in ("mxnet", "warp"):
        pytest.skip(f"{name} has no arrays without dimensions by default")
    low, high = compiled("minmax")(into(name, framework))
    assert [dlbridge.to_numpy(each, readonly="share").item() for each in (low, high)] == [1, 4]


@pytest.mark.parametrize("name", WRITABLE)
def test_in_place_and_out(name: str, framework: Any, compiled: Any) -> None:
    """In the caller's memory."""
    x, out = into(name, framework), into(name, framework, np.zeros(4, "f4"))
    assert compiled("scale")(x, 10) is None
    assert numbers(x) == [10, 20, 30, 40]
    assert compiled("axpy")(x, x, out=out) is out
    assert numbers(out) == [20, 40, 60, 80]


@pytest.mark.parametrize("name", ["mlx", "pyarrow"])
def test_immutable_values_are_never_written(name: str, framework: Any, compiled: Any) -> None:
    """They are inputs only."""
    module = framework(HOSTS[name])
    x = module.array(X.tolist())
    if name == "pyarrow":
        x = module.array(X)
    with pytest.raises(ExchangeError) as caught:
        compiled("scale")(x, 10)
    assert caught.value.reason == "readonly"
    assert str(caught.value).startswith("test::scale: argument 'x': expected ")
    with pytest.raises(ExchangeError):
        compiled("axpy")(x, x, out=x)


@pytest.mark.parametrize("name", HOSTS)
def test_misfits_are_told_in_the_one_form(name: str, framework: Any, compiled: Any) -> None:
    """Whatever the framework."""
    x = into(name, framework)
    y = into(name, framework, np.ones(3, "f4"))
    with pytest.raises(ArgumentError) as caught:
        compiled("axpy")(x, y)
    assert "test::axpy: argument 'y': expected f32[n=4], got f32[3] (" in str(caught.value)


def test_mlx_lacks_dtypes_before_the_kernel_runs(framework: Any) -> None:
    """A float64 result is refused, not narrowed."""
    module = framework("mlx.core")
    ran: list[int] = []

    def make(x: Any) -> Any:
        ran.append(1)
        return np.zeros(4)

    kernel = dlbridge.wrap(make, "test::wide(x: f32[n]) -> f64[n]", abi="python:numpy")
    with pytest.raises(ExchangeError, match=r"to_mlx: .*dtype"):
        kernel(module.array(X.tolist()))
    assert ran == []


def test_arrow_arrays_with_nulls_are_refused(framework: Any, compiled: Any) -> None:
    """They would be computed with."""
    pyarrow = framework("pyarrow")
    x = pyarrow.array([1.0, None], pyarrow.float32())
    with pytest.raises(ExchangeError) as caught:
        compiled("axpy")(x, x)
    assert caught.value.reason == "masked"


def test_mutable_arrow_tensors_can_be_written(framework: Any, compiled: Any) -> None:
    """Those over NumPy's memory are."""
    pyarrow = framework("pyarrow")
    memory = X.copy()
    tensor = pyarrow.Tensor.from_numpy(memory)
    if not tensor.is_mutable:
        pytest.skip("this pyarrow has no mutable tensors")
    compiled("scale")(tensor, 10)
    assert memory.tolist() == [10, 20, 30, 40]


def test_buffers_and_interfaces_are_no_tensors_of_a_framework(compiled: Any) -> None:
    """A buffer has no dtype to rely on: as_tensor says how it is meant."""
    with pytest.raises(UnsupportedTypeError, match=r"expected a tensor, got array\.array"):
        compiled("axpy")(array.array("f", X), array.array("f", X))
    x = dlbridge.as_tensor(array.array("f", X))
    assert numbers(compiled("axpy")(x, x)) == [2, 4, 6, 8]


def test_read_only_tensors_are_respected(compiled: Any) -> None:
    """The flag travels with the Tensor."""
    x = dlbridge.as_tensor(bytes(16)).view("float32")
    assert numbers(compiled("axpy")(x, x)) == [0] * 4
    with pytest.raises(ExchangeError, match="expected writable"):
        compiled("scale")(x, 2)


def test_paddle_gradients_are_refused(framework: Any, compiled: Any) -> None:
    """paddle.Tensor with stop_gradient=False would lose its gradient."""
    paddle = framework("paddle")
    x = paddle.ones([4])
    x.stop_gradient = False
    with pytest.raises(ExchangeError) as caught:
        compiled("axpy")(x, x)
    assert caught.value.reason == "requires_grad"


def test_mxnet_does_not_record_kernels(framework: Any, compiled: Any) -> None:
    """Under autograd.record() the call would be missing in the gradient."""
    mxnet = framework("mxnet")
    x = mxnet.nd.ones((4,))
    with mxnet.autograd.record(), pytest.raises(ExchangeError, match=r"autograd\.pause"):
        compiled("axpy")(x, x)
    with mxnet.autograd.pause():
        assert numbers(compiled("axpy")(x, x)) == [2] * 4


def test_mxnet_gives_the_kind_of_array_that_it_got(framework: Any, compiled: Any) -> None:
    """mxnet.np arrays and NDArrays are two classes."""
    mxnet = framework("mxnet")
    for make in (mxnet.nd.ones, mxnet.np.ones):
        x = make((4,))
        assert type(compiled("axpy")(x, x)) is type(x)


def test_cupy_without_a_gpu_says_so(framework: Any, compiled: Any) -> None:
    """There can be no array to call it with; the function itself exists."""
    cupy = framework("cupy")
    if cupy.cuda.is_available():
        pytest.skip("there is a GPU")
    kernel = compiled("axpy")
    with pytest.raises(UnsupportedTypeError, match=r"expected a tensor of cupy, got numpy"):
        kernel.cupy(X, X)


def test_every_framework_has_a_binding(framework: Any) -> None:
    """Whose name is its own; an unknown one is refused with the known ones."""
    needed = {"numpy", "torch", "jax", "tensorflow"}  # by the modules of their bindings
    for name in set(frameworks.names()) - {"paddle"}:  # which cannot be imported after TensorFlow
        if name not in needed or is_installed(name):
            assert binding(name).name == name
        else:
            with pytest.raises(FrameworkMissingError, match=name):
                binding(name)
    with pytest.raises(ArgumentError, match=r"unknown framework 'theano'; known are numpy, torch"):
        binding("theano")


def test_memory_of_another_device_reaches_no_kernel_of_the_host(
    framework: Any, compiled: Any
) -> None:
    """dpnp's arrays live on a SYCL device, also where that is the processor."""
    dpnp = framework("dpnp")
    x = dpnp.ones(3, dtype="f4")
    with pytest.raises(ExchangeError) as caught:
        compiled("axpy")(x, x, alpha=2.0)
    assert caught.value.reason == "device"

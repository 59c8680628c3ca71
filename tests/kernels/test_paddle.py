"""Kernels in Paddle: values, memory, gradients, compilers (in a process without TensorFlow)."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels.tensorflow_samples import SOURCE

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError


@pytest.fixture(scope="module")
def paddle(framework: Callable[[str], Any]) -> Any:
    """Return Paddle."""
    return framework("paddle")


def rule(grad: Any, alpha: float) -> tuple[Any, Any]:
    """Return the gradients of axpy."""
    return alpha * grad, grad


# ---- values and memory -------------------------------------------------------------------------


def test_tensors_of_paddle_come_back(paddle: Any, samples: Any) -> None:
    """Both the kernel itself and its bound function."""
    axpy = samples("axpy")
    x, y = paddle.to_tensor([1.0, 2.0]), paddle.to_tensor([10.0, 20.0])
    for function in (axpy, axpy.paddle):
        result = function(x, y, alpha=2.0)
        assert isinstance(result, paddle.Tensor)
        assert result.tolist() == [12, 24]


def test_memory_is_used_where_it_lies(paddle: Any, samples: Any) -> None:
    """Inputs, what is written in place, and out=."""
    x = paddle.to_tensor([1.0, 2.0])
    assert int(samples("where")(x)) == x.data_ptr()
    before = x.inplace_version
    assert samples("twice")(x) is None
    assert x.tolist() == [2, 4]
    assert x.inplace_version > before
    out = paddle.zeros([2])
    assert samples("axpy")(x, x, out=out) is out
    assert out.tolist() == [4, 8]


@pytest.mark.parametrize(
    "name",
    [
        *("float16", "float64", "bfloat16", "complex64", "complex128"),
        *("int8", "int16", "int32", "int64", "uint8", "bool"),
    ],
)
def test_dtypes_arrive(paddle: Any, samples: Any, name: str) -> None:
    """Those that Paddle can exchange."""
    assert int(samples("where")(paddle.ones([3]).astype(name))) != 0


def test_strided_and_empty_tensors_work(paddle: Any, samples: Any) -> None:
    """The kernel sees contiguous memory all the same."""
    axpy, fill = samples("axpy"), samples("fill")
    assert fill(paddle.arange(8, dtype="float32")[::2]).tolist() == [0, 2, 4, 6]
    x = paddle.arange(6, dtype="float32").reshape([2, 3])
    assert axpy(x.T, paddle.zeros([3, 2])).tolist() == x.T.tolist()
    assert axpy(paddle.zeros([0, 3]), paddle.zeros([0, 3])).shape == [0, 3]
    assert fill(x[0], paddle.to_tensor(5.0)).tolist() == [5, 6, 7]


def test_refusals_have_the_usual_form(paddle: Any, samples: Any) -> None:
    """The class by kind, the text by the schema, the failure with the kernel's own words."""
    axpy, x = samples("axpy"), paddle.ones([2])
    text = r"tf_test::axpy: argument 'y': expected f32\[...=\(2\)\], got "
    with pytest.raises(ArgumentError, match=text + r"f32\[3\] \(paddle.Tensor, cpu\)"):
        axpy(x, paddle.ones([3]))
    with pytest.raises(UnsupportedTypeError, match=text + r"f64\[2\]"):
        axpy(x, paddle.ones([2], "float64"))
    with pytest.raises(UnsupportedTypeError, match="argument 'y'"):
        axpy(x, np.ones(2, "f4"))
    with pytest.raises(KernelError, match="cannot do 2 tensors"):
        samples("fail")(x)


def test_to_paddle_func_writes_into_the_last_tensor(paddle: Any, samples: Any) -> None:
    """Without a schema, as TVM's bridges do it."""
    function = dlbridge.to_paddle_func(dlbridge.compile_c(SOURCE, "twice"))
    x = paddle.ones([2])
    function(x)
    assert x.tolist() == [2, 2]


# ---- gradients ---------------------------------------------------------------------------------


@pytest.mark.parametrize("native", [True, False])
def test_gradients_pass_through_the_vjp(paddle: Any, samples: Any, native: bool) -> None:
    """By a kernel and by a Python function, for the tensors that want one."""
    axpy = samples("axpy", vjp=samples("axpy_vjp") if native else rule)
    for stops in ((False, False), (False, True), (True, False)):
        x = paddle.to_tensor([1.0, 2.0], stop_gradient=stops[0])
        y = paddle.to_tensor([3.0, 4.0], stop_gradient=stops[1])
        (axpy(x, y, alpha=2.0) * paddle.to_tensor([5.0, 6.0])).sum().backward()
        found = [None if each.grad is None else each.grad.tolist() for each in (x, y)]
        assert found == [None if stops[0] else [10, 12], None if stops[1] else [5, 6]]


def test_gradients_are_never_lost(paddle: Any, samples: Any) -> None:
    """Without a vjp, or into out=, a tensor that wants a gradient is refused."""
    x = paddle.to_tensor([1.0, 2.0], stop_gradient=False)
    cases = [
        (samples("axpy"), {}, "vjp="),
        (samples("axpy", vjp=rule), {"out": x.detach()}, "out="),
    ]
    for axpy, options, advice in cases:
        with pytest.raises(ExchangeError, match=advice) as caught:
            axpy(x, x, **options)
    assert caught.value.reason == "requires_grad"
    with pytest.raises(ExchangeError, match="gradient"):
        samples("twice")(x)
    with paddle.no_grad():
        assert samples("axpy")(x, x).tolist() == [2, 4]
        samples("twice")(x)
    assert x.tolist() == [2, 4]
    assert samples("axpy")(x.detach(), x.detach()).stop_gradient


def test_an_argument_stays_if_the_rule_asks_for_it(paddle: Any) -> None:
    class Array(np.ndarray):
        """An array of which there can be weak references."""

    def stays(vjp: Any) -> bool:
        """Return whether the memory of an argument is kept for the backward pass."""
        schema = "paddletests::square(x: f32[n]) -> f32[n]"
        kernel = dlbridge.wrap(np.square, schema, abi="python:numpy", vjp=vjp)
        array = np.array([1.0, 4.0], np.float32).view(Array)
        kept = weakref.ref(array)
        x = paddle.from_dlpack(array)
        x.stop_gradient = False
        y = kernel(x)
        del array, x
        gc.collect()
        found = kept() is not None
        y.sum().backward()
        return found

    assert stays(lambda x, grad: 2 * x * grad)
    assert not stays(lambda grad: grad)


# ---- compilers ---------------------------------------------------------------------------------


def test_to_static_calls_kernels_outside_of_its_graph(paddle: Any, samples: Any) -> None:
    """A graph of the whole function is refused, since nothing of ours can be in it."""
    axpy = samples("axpy")

    def function(x: Any) -> Any:
        return axpy(x * 2, x) + axpy.paddle(x, x)

    x = paddle.ones([2])
    assert paddle.jit.to_static(function, full_graph=False)(x).tolist() == [5, 5]
    with pytest.raises(UnsupportedTypeError, match=r"tf_test::axpy: .*cannot call kernels"):
        paddle.jit.to_static(function, full_graph=True)(x)

"""Kernels in MXNet: values, memory, what is recorded, a kernel as TVM's bridge calls it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError


@pytest.fixture(scope="module")
def mx(framework: Callable[[str], Any]) -> Any:
    """Return MXNet."""
    return framework("mxnet")


MATMUL = r"""
#include "dlbridge_kernel.h"

/* Destination-passing, as TVM compiles it: c = a b. */
int matmul(void *context, DLTensor *args, int count) {
    const float *a = args[0].data, *b = args[1].data;
    float *c = args[2].data;
    int64_t m = args[0].shape[0], k = args[0].shape[1], n = args[1].shape[1];
    for (int64_t i = 0; i < m; i++)
        for (int64_t j = 0; j < n; j++) {
            float sum = 0;
            for (int64_t l = 0; l < k; l++)
                sum += a[i * k + l] * b[l * n + j];
            c[i * n + j] = sum;
        }
    return 0;
}
"""


def test_to_mxnet_func_does_what_tvm_s_did(mx: Any, compiled: object) -> None:
    """The 56x56 product with which TVM introduced its bridge to MXNet."""
    function = dlbridge.to_mxnet_func(dlbridge.compile_c(MATMUL, "matmul"))
    a, b = (mx.nd.random.uniform(shape=(56, 56)) for _ in range(2))
    c = mx.nd.empty((56, 56))
    assert function(a, b, c) is None
    np.testing.assert_allclose(c.asnumpy(), mx.nd.dot(a, b).asnumpy(), rtol=1e-5)


def test_arrays_come_back_in_the_class_of_the_first(mx: Any, samples: Any) -> None:
    """mxnet.nd and mxnet.np are two faces of the same arrays."""
    axpy = samples("axpy")
    for module in (mx.nd, mx.np):
        x = module.array([1.0, 2.0])
        for function in (axpy, axpy.mxnet):
            result = function(x, x, alpha=2.0)
            assert type(result) is type(x)
            assert result.asnumpy().tolist() == [3, 6]


def test_memory_is_written_where_it_lies(mx: Any, samples: Any) -> None:
    """In place and into out=; work that is queued on the memory is waited for."""
    ones = mx.nd.ones((300, 300))
    x = mx.nd.dot(ones, ones)
    assert samples("twice")(x) is None
    assert (x.asnumpy() == 600).all()
    out = mx.nd.zeros((300, 300))
    assert samples("axpy")(x, x, out=out) is out
    assert ((out + 1).asnumpy() == 1201).all()


def test_views_work(mx: Any, samples: Any) -> None:
    """A slice lies within other memory; a transpose is MXNet's own copy."""
    fill, axpy = samples("fill"), samples("axpy")
    assert fill(mx.nd.arange(8)[2:5]).asnumpy().tolist() == [2, 3, 4]
    x = mx.nd.arange(6).reshape((2, 3))
    assert axpy(x.T, mx.nd.zeros((3, 2))).asnumpy().tolist() == x.T.asnumpy().tolist()


def test_a_recorded_call_is_refused(mx: Any, samples: Any) -> None:
    """MXNet's gradients would leave it out; outside of a record nothing is lost."""
    axpy = samples("axpy")
    x = mx.nd.array([1.0, 2.0])
    x.attach_grad()
    with mx.autograd.record(), pytest.raises(ExchangeError, match=r"autograd\.pause") as caught:
        axpy(x, x)
    assert caught.value.reason == "requires_grad"
    with mx.autograd.record(), mx.autograd.pause():
        assert axpy(x, x).asnumpy().tolist() == [2, 4]
    samples("twice")(x)
    assert x.asnumpy().tolist() == [2, 4]


def test_refusals_have_the_usual_form(mx: Any, samples: Any) -> None:
    """The class by kind, the text by the schema, the failure with the kernel's own words."""
    axpy, x = samples("axpy"), mx.nd.ones(2)
    text = r"tf_test::axpy: argument 'y': expected f32\[...=\(2\)\], got "
    with pytest.raises(ArgumentError, match=text + r"f32\[3\] \(mxnet.NDArray, cpu\)"):
        axpy(x, mx.nd.ones(3))
    with pytest.raises(UnsupportedTypeError, match=text + r"f64\[2\]"):
        axpy(x, mx.nd.ones(2, dtype="float64"))
    with pytest.raises(UnsupportedTypeError, match="argument 'x'"):
        axpy(mx.sym.var("x"), x)
    with pytest.raises(ExchangeError, match="stype 'csr'"):
        axpy(mx.nd.ones((2, 2)).tostype("csr"), mx.nd.ones((2, 2)))
    with pytest.raises(KernelError, match="cannot do 2 tensors"):
        samples("fail")(x)


def test_a_result_without_dimensions_is_refused_before_the_kernel_runs(
    mx: Any, samples: Any
) -> None:
    """MXNet reads its shape as unknown, unless it is told otherwise."""
    x = mx.nd.ones(2)
    with pytest.raises(ExchangeError, match="set_np"):
        samples("halves")(x)
    assert x.asnumpy().tolist() == [1, 1]

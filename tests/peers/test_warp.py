"""Warp: arrays in and out in the same memory, vectors, gradients, and what it cannot hold."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import from_dlpack, to_numpy, to_warp
from dlbridge._core import native
from dlbridge.frameworks import warp as adapter
from peers.checks import receipt_of, refused
from peers.readers import filled

wp = pytest.importorskip("warp")


@pytest.fixture(scope="module", autouse=True)
def quiet() -> None:
    """Have Warp print no banner where others look at what is printed."""
    wp.config.quiet = True


def on_cpu(x: Any, **keywords: Any) -> Any:
    return wp.array(x, device="cpu", **keywords)


@pytest.mark.parametrize("triple", adapter._DTYPES)
def test_each_dtype_crosses_both_ways_in_the_same_memory(triple: tuple[int, int, int]) -> None:
    x = native.allocate((2, 3), triple)
    array = to_warp(x)
    assert type(array) is wp.array
    assert (array.ptr, array.shape) == (x.data_ptr, (2, 3))
    back = from_dlpack(array, copy=False)
    assert (back.data_ptr, back.shape, back._dtype_triple) == (x.data_ptr, (2, 3), triple)


def test_writes_are_seen_on_both_sides() -> None:
    x = filled((4, 6), "float32")
    array = to_warp(x)
    x[1, 2] = 77
    assert array.numpy()[1, 2] == 77
    to_numpy(array)[0, 0] = -5
    assert x[0, 0] == -5
    assert receipt_of(x, "warp").route.endswith("-> warp.from_dlpack")
    assert receipt_of(array, "numpy").shared


def test_strided_and_empty_arrays_are_shared() -> None:
    x = filled((4, 6), "float32")
    for view in (x.T, x[::2], x[:, ::-1], x[1:, 2:], x[:0]):
        array = to_warp(view, copy=False)
        assert array.numpy().tolist() == view.tolist()
        back = from_dlpack(array, copy=False)
        assert (back.shape, back.tolist()) == (view.shape, view.tolist())


def test_components_of_vectors_and_matrices_are_further_dimensions() -> None:
    vectors = on_cpu(filled((5, 3), "float32"), dtype=wp.vec3)
    assert vectors.shape == (5,)
    assert from_dlpack(vectors, copy=False).tolist() == filled((5, 3), "float32").tolist()
    matrices = wp.zeros((2, 4), dtype=wp.mat33, device="cpu")
    assert from_dlpack(matrices, copy=False).shape == (2, 4, 3, 3)
    turned = wp.zeros((2, 5), dtype=wp.vec3, device="cpu").transpose()
    assert from_dlpack(turned, copy=False).strides == (3, 15, 1)


@pytest.mark.fact(30)
def test_one_to_four_dimensions_are_taken() -> None:
    assert to_warp(np.ones((1, 2, 1, 2))).shape == (1, 2, 1, 2)
    refused("ndim", to_warp, np.ones((1,) * 5))
    refused("ndim", to_warp, np.float32(3))


@pytest.mark.fact(20)
def test_read_only_memory_is_refused_copied_or_shared_on_request() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    refused("readonly", to_warp, x)
    assert to_warp(x, readonly="copy").ptr != x.ctypes.data
    assert to_warp(x, readonly="share").ptr == x.ctypes.data


def test_an_array_that_requires_a_gradient_is_detached_on_request_only() -> None:
    array = on_cpu(filled((4,), "float32"), requires_grad=True)
    for call in (from_dlpack, to_numpy):
        assert 'grad="detach"' in refused("requires_grad", call, array)
    assert to_numpy(array, grad="detach").ctypes.data == array.ptr
    assert to_numpy(array.grad).tolist() == [0] * 4


def test_an_object_that_is_no_tensor_is_refused() -> None:
    @wp.struct
    class Particle:
        mass: wp.float32

    structs = wp.zeros(2, dtype=Particle, device="cpu")
    assert "one by one" in refused("dtype", from_dlpack, structs)
    refused("dtype", to_warp, np.ones(2, "complex64"))
    refused("lazy", from_dlpack, wp.array(dtype=wp.float32))


def test_either_side_keeps_the_memory() -> None:
    x = filled((1000,), "float64")
    expected, alive = x.tolist(), weakref.ref(x)
    part = to_warp(x)[10:]
    del x
    gc.collect()
    assert alive() is not None
    assert part.numpy().tolist() == expected[10:]
    del part
    gc.collect()
    assert alive() is None
    tensor = from_dlpack(on_cpu(np.arange(1000.0)))
    gc.collect()
    assert tensor.tolist() == list(range(1000))


def test_an_array_is_returned_as_it_is() -> None:
    array = on_cpu(np.ones(3))
    assert to_warp(array) is array
    assert dlbridge.convert(array, wp) is array
    assert dlbridge.convert(array, "wp", copy=True).ptr != array.ptr

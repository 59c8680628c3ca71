"""Values that must not change, among libraries that cannot say so."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import convert, faults
from peers.checks import refused
from peers.consumers import require_all
from peers.readers import filled, has, read

require_all()


def immutable_values(dtype: str) -> list[Any]:
    import jax
    import tensorflow as tf

    return [jax.numpy.ones(4, dtype), tf.ones(4, dtype)]


def flags_of(capsule: object) -> int:
    consumer = faults.Consumer(capsule)
    consumer.release()
    return consumer.flags


# The policies are those of C and, while a log of receipts is open, of Python.
WAYS = {"C": nullcontext, "Python": dlbridge.receipts}


@pytest.mark.fact(16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_immutable_values_are_read_only_for_whoever_can_protect_them(dtype: str, way: str) -> None:
    """JAX and TensorFlow export values that must never change without the READ_ONLY flag."""
    for x in immutable_values(dtype):
        with WAYS[way]():
            tensor, array = dlbridge.from_dlpack(x), dlbridge.to_numpy(x)
            others = [dlbridge.to_numpy(tensor), dlbridge.to_numpy(tensor[1:])]
        assert tensor.readonly
        assert not any(each.flags.writeable for each in (array, *others))
        assert array.ctypes.data == tensor.data_ptr
        with pytest.raises(ValueError, match="read-only"):
            array[0] = 2
        refused("readonly", tensor.__setitem__, 0, 2)
        assert memoryview(tensor.view("uint8")).readonly
        capsule = tensor.__dlpack__(max_version=(1, 0))
        assert flags_of(capsule) == faults.READ_ONLY
        assert flags_of(tensor.__dlpack__()) == 0  # a legacy one has none


@pytest.mark.fact(16)
@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_the_policy_decides_where_immutable_values_cannot_be_protected(
    dtype: str, way: str
) -> None:
    """PyTorch protects no memory."""
    for x in immutable_values(dtype):
        tensor = dlbridge.from_dlpack(x)
        for source in (x, tensor, tensor[:], tensor.reshape(2, 2), tensor.view("uint8")):
            with WAYS[way]():
                assert dlbridge.to_torch(source).data_ptr() == tensor.data_ptr
                refused("readonly", dlbridge.to_torch, source, immutable="respect")
                shared = dlbridge.to_torch(source, immutable="respect", readonly="share")
                copied = dlbridge.to_torch(source, immutable="copy")
            assert shared.data_ptr() == tensor.data_ptr
            assert copied.data_ptr() != tensor.data_ptr
            with pytest.raises(dlbridge.ExchangeError, match=r"copy=False .*readonly"):
                dlbridge.to_torch(source, immutable="copy", copy=False)
        refused("readonly", dlbridge.to_torch, tensor.broadcast_to((2, 4)))  # as of any memory


@pytest.mark.parametrize("way", WAYS)
def test_copies_of_immutable_values_may_be_written(way: str) -> None:
    for x in immutable_values("float32"):
        for policy in ({"immutable": "copy"}, {"copy": True}):
            with WAYS[way]():
                array = dlbridge.to_numpy(x, **policy)
            array[...] = 2
            assert dlbridge.to_numpy(x).tolist() == [1] * 4
        assert dlbridge.explain(x, "numpy", immutable="copy").why == "readonly"
    x = filled((4,), "float32")  # NumPy's values may change
    assert dlbridge.to_numpy(dlbridge.from_dlpack(x), immutable="copy").ctypes.data == x.ctypes.data


def test_immutable_values_are_protected_in_trees() -> None:
    for x in immutable_values("float32"):
        tree = dlbridge.convert_tree({"x": [x]}, "numpy")
        assert not tree["x"][0].flags.writeable
        tree = dlbridge.convert_tree({"x": [x]}, "numpy", immutable="copy")
        assert tree["x"][0].flags.writeable


@pytest.mark.fact(20)
def test_read_only_memory_reaches_consumers_of_legacy_capsules() -> None:
    """They request no versioned capsule, and NumPy exports such memory in no other."""
    x = filled((16,), "float32")
    x.flags.writeable = False
    for consumer in ("jax", "tensorflow"):  # their values never change: they protect it
        assert read(consumer, convert(x, consumer))[1] == x.ctypes.data
    if has("tvm_ffi"):
        refused("readonly", dlbridge.to_tvm, x)
        assert dlbridge.to_tvm(x, readonly="copy").data_ptr() != x.ctypes.data


def read_only(x: np.ndarray) -> np.ndarray:
    x.flags.writeable = False
    return x


IMAGE = np.arange(24, dtype="u1").reshape(2, 4, 3)
COPIED_ANYWAY: dict[str, tuple[Any, dict[str, Any]]] = {
    "flipped channels": (IMAGE[..., ::-1], {}),
    "flipped rows": (IMAGE[::-1], {}),
    "byte order": (np.arange(3, dtype=">f4"), {}),
    "strides": (np.zeros(3, dtype=[("a", "i1"), ("b", "f8")])["b"], {}),
    "dtype": (IMAGE, {"dtype": "float32"}),
    "layout": (IMAGE.T, {"layout": "contiguous"}),
    "copy": (IMAGE, {"copy": True}),
}


@pytest.mark.parametrize("policy", [{}, {"readonly": "share"}, {"readonly": "copy"}], ids=str)
@pytest.mark.parametrize("case", COPIED_ANYWAY)
def test_read_only_memory_that_is_copied_in_any_case_is_not_refused(
    case: str, policy: dict[str, str]
) -> None:
    """The policy is about memory that torch would share, and let anyone write."""
    x, more = COPIED_ANYWAY[case]
    x = read_only(x.view())
    wanted = x.astype(more.get("dtype", x.dtype.newbyteorder("=")))
    tensor = dlbridge.as_tensor(x)  # read-only, unless it is a copy
    for source in (x, tensor) if tensor.readonly else (x,):
        result = dlbridge.to_torch(source, **policy, **more)
        np.testing.assert_array_equal(result.numpy(), wanted)
        result.zero_()  # of its own memory
        np.testing.assert_array_equal(x, wanted)
        with dlbridge.receipts() as log:
            dlbridge.to_torch(source, **policy, **more)
        assert (log[0].shared, log[0].why != "readonly") == (False, True)
        tree = dlbridge.convert_tree({"x": source}, "torch", **policy, **more)
        np.testing.assert_array_equal(tree["x"].numpy(), wanted)
    if not policy:
        assert dlbridge.explain(x, "torch", **more).shared is False


def test_read_only_memory_without_elements_is_not_refused() -> None:
    """Nobody can write to it."""
    for shape in ((0,), (0, 3), (4, 0)):
        assert dlbridge.to_torch(read_only(np.zeros(shape))).shape == shape


def test_read_only_memory_that_must_be_copied_and_may_not_is_refused_for_the_copy() -> None:
    refused("strides", dlbridge.to_torch, read_only(IMAGE[::-1]), copy=False)
    refused("readonly", dlbridge.to_torch, read_only(IMAGE.view()), copy=False)


def test_values_that_must_not_change_are_copied_where_that_is_due() -> None:
    import jax

    x = jax.numpy.arange(6.0).reshape(2, 3)
    flipped = dlbridge.from_dlpack(x)[::-1]
    assert dlbridge.to_torch(flipped, immutable="respect").tolist() == [[3, 4, 5], [0, 1, 2]]
    refused("readonly", dlbridge.to_torch, x, immutable="respect")
    cast = dlbridge.to_torch(x, immutable="respect", dtype="float64")
    assert cast.tolist() == x.tolist()

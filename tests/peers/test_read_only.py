"""Values that must not change, among libraries that cannot say so."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge import convert
from peers.checks import refused
from peers.consumers import require_all
from peers.readers import filled, has, read

require_all()


@pytest.mark.fact(16)
def test_immutable_values_are_protected_on_request() -> None:
    """JAX and TensorFlow export values that must never change without the READ_ONLY flag."""
    import jax
    import tensorflow as tf

    for x in (jax.numpy.ones(4), tf.ones(4)):
        shared = dlbridge.to_torch(x)
        assert shared.data_ptr() == dlbridge.from_dlpack(x).data_ptr
        refused("readonly", dlbridge.to_torch, x, immutable="respect")
        assert not dlbridge.to_numpy(x, immutable="respect").flags.writeable


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

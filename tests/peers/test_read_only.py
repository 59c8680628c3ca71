"""Values that must not change, among libraries that cannot say so."""

from __future__ import annotations

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

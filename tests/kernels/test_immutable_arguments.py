"""Arguments that must not change are read, and never written."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels.elementwise import SOURCE

import dlbridge
from dlbridge.errors import ExchangeError


def test_jax_arrays_are_never_written(
    twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    """tvm-ffi and nanobind take them as outputs, and write."""
    framework("jax")
    import jax.numpy as jnp

    x, z = jnp.ones(3), jnp.zeros(3)
    with pytest.raises(ExchangeError, match="out"):
        twice(x, out=z)
    y = increment.jax(x)
    assert x.tolist() == [1, 1, 1]
    assert y.tolist() == [2, 2, 2]
    bare = dlbridge.to_jax_func(dlbridge.compile_c(SOURCE, "twice"))
    assert bare(x, z).tolist() == [2, 2, 2]
    assert z.tolist() == [0, 0, 0]


def test_read_only_numpy_arrays_are_read_and_never_written(twice: Any, increment: Any) -> None:
    """tvm-ffi refuses them as inputs; what writes must refuse them."""
    x = np.ones(3, np.float32)
    x.flags.writeable = False
    assert twice(x).tolist() == [2, 2, 2]
    for write in (increment, lambda x: twice(np.ones(3, np.float32), out=x)):
        with pytest.raises(ExchangeError) as caught:
            write(x)
        assert caught.value.reason == "readonly"
    assert x.tolist() == [1, 1, 1]


def test_tensorflow_tensors_are_never_written(
    increment: Any, twice: Any, framework: Callable[[str], Any]
) -> None:
    tensorflow = framework("tensorflow")
    x = tensorflow.ones(3)
    assert increment(x).numpy().tolist() == [2, 2, 2]
    assert x.numpy().tolist() == [1, 1, 1]
    with pytest.raises(ExchangeError):
        twice(x, out=tensorflow.zeros(3))

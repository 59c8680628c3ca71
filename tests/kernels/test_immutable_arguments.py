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


@pytest.mark.parametrize("view", [dlbridge.from_dlpack, dlbridge.to_numpy])
@pytest.mark.parametrize("name", ["jax", "tensorflow"])
def test_views_of_immutable_values_are_never_written(
    twice: Any, increment: Any, framework: Callable[[str], Any], name: str, view: Any
) -> None:
    """Tensors and NumPy arrays over their memory are read-only."""
    framework(name)
    source = np.ones(16, np.float32)
    x = view(dlbridge.convert(source, name, copy=True))
    assert np.asarray(twice(x)).tolist() == [2] * 16
    python = dlbridge.wrap(
        lambda x: x.__iadd__(1), f"immutable::add_{name}(x!: f32[n])", abi="python:numpy"
    )
    for write in (increment, python, lambda x: twice(view(source), out=x)):
        with pytest.raises(ExchangeError) as caught:
            write(x)
        assert caught.value.reason == "readonly"
    assert np.asarray(x).tolist() == [1] * 16


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


# ---- Python functions that write into what they are given ----------------------------------------


def writers(name: str) -> list[Any]:
    """Return kernels of torch tensors that write into `x`, seen by torch and behind its back."""

    def seen(x: Any) -> Any:
        x += 1
        return x * 2

    def unseen(x: Any) -> Any:
        x.numpy()[...] = 7
        return x * 2

    return [
        dlbridge.wrap(
            each, f"immutable::{each.__name__}_{name}(x: f32[n]) -> f32[n]", abi="python:torch"
        )
        for each in (seen, unseen)
    ]


def read_only_array() -> Any:
    x = np.ones(33, np.float32)
    x.flags.writeable = False
    return x


@pytest.mark.parametrize("kind", ["jax", "jit", "tensorflow", "numpy", "view"])
def test_a_python_function_cannot_write_what_is_immutable(
    kind: str, framework: Callable[[str], Any]
) -> None:
    """torch protects no memory: its functions get a copy of what must never change."""
    framework("torch")
    seen, unseen = writers(kind)
    given, call = read_only_array(), lambda kernel, x: kernel(x)
    if kind in ("jax", "jit"):
        jax = framework("jax")
        given = jax.numpy.ones(33)
    if kind == "jit":
        call = lambda kernel, x: jax.jit(lambda x: kernel(x))(x).block_until_ready()  # noqa: E731
    if kind == "tensorflow":
        given = framework("tensorflow").ones(33)
    if kind == "view":
        given = read_only_array()[::2]
    with pytest.raises(Exception, match="which is not declared to be written"):
        call(seen, given)
    assert np.asarray(given).tolist() == [1] * len(given)
    assert np.asarray(call(unseen, given)).tolist() == [14] * len(given)
    assert np.asarray(given).tolist() == [1] * len(given)


def test_without_a_schema_it_cannot_either(framework: Callable[[str], Any]) -> None:
    framework("torch")
    jax = framework("jax")

    def write(x: Any, out: Any) -> None:
        x += 1
        out.copy_(x)

    kernel = dlbridge.wrap(write, abi="python:torch")
    x = jax.numpy.ones(3)
    out = np.zeros(3, np.float32)
    kernel(read := read_only_array()[:3], out)
    assert (read.tolist(), out.tolist()) == ([1] * 3, [2] * 3)
    with pytest.raises(Exception, match="which is not declared to be written"):
        dlbridge.to_jax_func(kernel)(x, jax.numpy.zeros(3)).block_until_ready()
    assert x.tolist() == [1] * 3

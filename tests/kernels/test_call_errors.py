"""Errors of calls: their text is the same in every framework and names the argument."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from kernels.elementwise import SOURCE

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_a_failing_kernel_says_so_in_its_own_words(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    framework(library)
    x = dlbridge.convert(np.array([-1, 0], np.float32), library)
    with pytest.raises(KernelError, match=r"hazards::twice.*the first element must not be -1"):
        twice(x)


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_errors_have_one_form_in_every_framework(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    framework(library)
    x = dlbridge.convert(np.ones((2, 3), np.int32), library)
    sources = {"jax": "jax.Array", "tensorflow": "tf.Tensor", "torch": "torch.Tensor"}
    with pytest.raises(UnsupportedTypeError) as caught:
        twice(x)
    source = sources.get(library, "numpy.ndarray")
    casts = {"torch": "x.to(torch.float32)", "tensorflow": 'tf.cast(x, "float32")'}
    how = casts.get(library, 'x.astype("float32")')
    assert str(caught.value) == (
        f"hazards::twice: argument 'x': expected f32[...], got i32[2, 3] ({source}, cpu); "
        f"cast it with {how}"
    )


def test_two_frameworks_in_one_call_are_refused(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    add = dlbridge.compile_c(SOURCE, "twice", "hazards::pair(x: f32[n], y: f32[n])")
    with pytest.raises(UnsupportedTypeError, match=r"torch.*numpy|numpy.*torch"):
        add(torch.ones(2), np.ones(2, np.float32))


def test_an_integer_is_no_pointer() -> None:
    """cuda.core takes a Python int for a device pointer."""
    with pytest.raises(UnsupportedTypeError, match="Python int is never taken for an address"):
        dlbridge.wrap(140737488355328, "hazards::wild(x: f32[n])")
    scale = dlbridge.compile_c(SOURCE, "twice", "hazards::one(x: f32[n]) -> f32[n]")
    with pytest.raises(UnsupportedTypeError, match="expected a tensor, got int"):
        scale(140737488355328)


def test_a_wrong_shape_is_a_value_error(framework: Callable[[str], Any]) -> None:
    mm = dlbridge.compile_c(SOURCE, "twice", "hazards::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]")
    x, y = np.ones((2, 56), np.float32), np.ones((8, 3), np.float32)
    with pytest.raises(ArgumentError) as caught:
        mm(x, y)
    assert str(caught.value) == (
        "hazards::mm: argument 'y': expected f32[k=56, n], got f32[8, 3] (numpy.ndarray, cpu)"
    )


def test_a_result_that_the_framework_cannot_hold_is_named() -> None:
    """NumPy's int4 has a byte for each element, so a kernel's packed int4 cannot become one."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    source = '#include "dlpack.h"\nint f(void *c, DLTensor *t, int n) { return 0; }'
    kernel = dlbridge.compile_c(source, "f", "errors::narrow(x: i4[n]) -> (out: i4[n])")
    with pytest.raises(ExchangeError, match=r"errors::narrow: result 'out': .*int4") as raised:
        kernel(np.zeros(4, ml_dtypes.int4))
    assert raised.value.reason == "dtype"


PAD = "errors::pad(x: f32[n], *, left: int) -> f32[left+n]"


@pytest.mark.parametrize("name", ["numpy", "torch", "jax", "tensorflow"])
def test_a_size_beyond_64_bits_is_named_with_the_result(framework, name):
    framework(name)
    pad = dlbridge.wrap(lambda x, *, left: np.pad(x, (left, 0)), PAD, abi="python:numpy")
    x = dlbridge.convert(np.ones(3, np.float32), name)
    with pytest.raises(ArgumentError, match=r"'out': expected f32\[left\+n\], but left\+n exceeds"):
        pad(x, left=2**63 - 1)
    with pytest.raises(ArgumentError, match=r"'out': expected f32\[left\+n\] of less than 2\*\*63"):
        pad(x, left=2**62)
    assert pad(x, left=1).shape[0] == 4


@pytest.mark.parametrize("abi", ["python:numpy", "python:jax"])
def test_a_deleted_array_of_jax_is_named(framework, abi):
    jax = framework("jax")
    add = dlbridge.wrap(lambda x, y: x + y, "errors::add(x: f32[n], y: f32[n]) -> f32[n]", abi=abi)
    x, y = jax.numpy.ones(3), jax.numpy.ones(3)
    for _ in range(3):  # from the second call on, C makes them
        add(x, y)
    y.delete()
    match = r"errors::add: argument 'y': .* was deleted or donated; .* pass a copy \[lazy\]"
    for call in (lambda: add(x, y), lambda: add.jax(x, y), lambda: jax.jit(lambda x: add(x, y))(x)):
        with pytest.raises(ExchangeError, match=match):
            call()
    assert add(x, x).tolist() == [2, 2, 2]

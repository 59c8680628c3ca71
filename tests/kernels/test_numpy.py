"""Kernels called with NumPy arrays: functional and in place, every kind of array that there is."""

from __future__ import annotations

import ctypes
import threading
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, UnsupportedTypeError

KERNEL = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
NOTHING = KERNEL(lambda context, tensors, count: 0)
COPY = r"""
#include <string.h>
#include "dlbridge_kernel.h"
int copy(void *context, DLTensor *args, int count) {
    int64_t n = args[0].dtype.bits / 8;
    for (int i = 0; i < args[0].ndim; i++)
        n *= args[0].shape[i];
    memcpy(args[1].data, args[0].data, n);
    return 0;
}
"""


@pytest.fixture(scope="module")
def copy(compiled: Any) -> dlbridge.Kernel:
    """Return a kernel that copies whatever it is given."""
    return dlbridge.compile_c(COPY, "copy", "test::copy(x: any[...]) -> any[...]")


# ---- what comes out ------------------------------------------------------------------------------


@pytest.mark.parametrize("code", list("?bBhHiIlLefdFD"))
def test_every_dtype_goes_through(copy: dlbridge.Kernel, code: str) -> None:
    """The result has the very dtype of the input."""
    x = np.arange(6).reshape(2, 3).astype(code)
    result = copy(x)
    assert (type(result), result.dtype, result.shape) == (np.ndarray, x.dtype, x.shape)
    np.testing.assert_array_equal(result, x)
    assert result.flags.writeable
    assert result.flags.c_contiguous


def test_dtypes_of_ml_dtypes_go_through(copy: dlbridge.Kernel) -> None:
    """bfloat16 and float8 have names of their own in NumPy only through ml_dtypes."""
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for dtype in (ml_dtypes.bfloat16, ml_dtypes.float8_e4m3fn):
        x = np.array([1, 2], dtype)
        assert copy(x).dtype == dtype
        assert copy(x).tolist() == [1, 2]


@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,) * 8])
def test_odd_shapes_go_through(copy: dlbridge.Kernel, shape: tuple[int, ...]) -> None:
    """No dimensions, no elements, many dimensions."""
    x = np.ones(shape, "f4")
    result = copy(x)
    assert type(result) is np.ndarray
    assert result.shape == shape
    np.testing.assert_array_equal(result, x)


def test_results_are_aligned_for_any_kernel(copy: dlbridge.Kernel) -> None:
    """NumPy's own memory is aligned to 16 bytes."""
    wide = dlbridge.wrap(copy, name="test::wide_copy", align=64)
    x = np.ones(5, "f4")
    for kernel in (copy, wide):
        assert kernel(x).tolist() == [1] * 5


@pytest.mark.parametrize(
    "view",
    [
        lambda x: x[::2],
        lambda x: x[::-1],
        lambda x: x.T,
        lambda x: np.broadcast_to(x[:1], x.shape),
        lambda x: np.asfortranarray(x),
        lambda x: x[1:, 1:],
    ],
)
def test_every_layout_goes_in(copy: dlbridge.Kernel, view: Any) -> None:
    """A row-major copy is made where the kernel needs one."""
    x = view(np.arange(12, dtype="f4").reshape(3, 4))
    np.testing.assert_array_equal(copy(x), x)
    out = np.zeros((6, 8), "f4")[: x.shape[0], ::2][:, : x.shape[1]]
    assert copy(x, out=out) is out
    np.testing.assert_array_equal(out, x)


# ---- what comes in -------------------------------------------------------------------------------


def test_scalars_of_numpy_are_arrays_without_dimensions(copy: dlbridge.Kernel) -> None:
    """They have a dtype, which Python numbers have not."""
    result = copy(np.float32(2.5))
    assert (type(result), result.shape, float(result)) == (np.ndarray, (), 2.5)
    kernel = dlbridge.wrap(NOTHING, "test::write(x!: f32[])")
    with pytest.raises(ExchangeError) as caught:
        kernel(np.float32(1))
    assert caught.value.reason == "copy_required"


def test_subclasses_that_are_plain_memory_go_in(copy: dlbridge.Kernel, tmp_path: Any) -> None:
    """Results are ordinary arrays."""

    class Array(np.ndarray):
        """A subclass without a meaning of its own."""

    mapped = np.memmap(tmp_path / "numbers", "f4", "w+", shape=(3,))
    mapped[:] = 7
    for x in (np.ones(3, "f4").view(Array), mapped):
        result = copy(x)
        assert type(result) is np.ndarray
        np.testing.assert_array_equal(result, np.asarray(x))


def test_a_mask_is_refused_and_none_is_not(copy: dlbridge.Kernel) -> None:
    """The kernel would compute with what is masked."""
    with pytest.raises(ExchangeError) as caught:
        copy(np.ma.masked_array([1.0, 2.0], [True, False]))
    assert caught.value.reason == "masked"
    assert str(caught.value).startswith("test::copy: argument 'x': the mask of")
    assert copy(np.ma.masked_array([1.0, 2.0])).tolist() == [1, 2]


def test_another_byte_order_is_refused(copy: dlbridge.Kernel) -> None:
    """Its numbers would be others."""
    with pytest.raises(ExchangeError) as caught:
        copy(np.ones(2, ">f4"))
    assert caught.value.reason == "byte_order"


@pytest.mark.parametrize(
    "x",
    [
        np.array(["text"]),
        np.array([None]),
        np.array([(1, 2.0)], dtype="i4,f4"),
        np.array(["2020-01-01"], "M8[D]"),
    ],
    ids=["text", "object", "record", "date"],
)
def test_arrays_without_numbers_are_refused(copy: dlbridge.Kernel, x: Any) -> None:
    """DLPack has no name for it."""
    with pytest.raises((ExchangeError, UnsupportedTypeError)):
        copy(x)


# ---- in place ------------------------------------------------------------------------------------


def test_in_place_means_the_callers_memory(compiled: Any) -> None:
    """Strided memory is staged and written back."""
    x = np.arange(6, dtype="f4")
    compiled("scale")(x[::2], 10)
    assert x.tolist() == [0, 1, 20, 3, 40, 5]


def test_read_only_arrays_are_never_written(compiled: Any) -> None:
    """Whether passed as an argument or as out=."""
    x, frozen = np.ones(3, "f4"), np.ones(3, "f4")
    frozen.flags.writeable = False
    with pytest.raises(ExchangeError, match=r"argument 'x': expected writable f32\[n\]"):
        compiled("scale")(frozen, 2)
    with pytest.raises(ExchangeError, match=r"argument 'out': expected writable f32\[n\]"):
        compiled("axpy")(x, x, out=frozen)
    assert frozen.tolist() == [1] * 3


def test_a_wrong_out_changes_nothing(compiled: Any) -> None:
    """Every check comes before the first write."""
    x, out = np.ones(3, "f4"), np.zeros(3, "f8")
    with pytest.raises(UnsupportedTypeError) as caught:
        compiled("axpy")(x, x, out=out)
    assert str(caught.value) == (
        "test::axpy: argument 'out': expected f32[n=3], got f64[3] (numpy.ndarray, cpu); "
        "pass one of float32, or leave out= away"
    )
    with pytest.raises(ArgumentError, match=r"expected f32\[n=3\], got f32\[4\]"):
        compiled("axpy")(x, x, out=np.zeros(4, "f4"))
    assert out.tolist() == [0] * 3


def test_several_outs_are_a_tuple(compiled: Any) -> None:
    """All of them or none."""
    x = np.array([2, 1, 3], "f4")
    outs = np.zeros((), "f4"), np.zeros((), "f4")
    assert compiled("minmax")(x, out=outs) == outs
    assert [float(each) for each in outs] == [1, 3]
    with pytest.raises(UnsupportedTypeError, match="expected a tuple of 2 tensors"):
        compiled("minmax")(x, out=outs[0])


# ---- threads -------------------------------------------------------------------------------------


def test_the_gil_is_released_during_the_call() -> None:
    """Two kernels that wait for each other would never end else."""
    barrier = threading.Barrier(2, timeout=30)

    def meet(context: int, tensors: int, count: int) -> int:
        barrier.wait()
        return 0

    kernel = dlbridge.wrap(KERNEL(meet), "test::meet(x: f32[n]) -> f32[n]")
    x = np.zeros(2, "f4")
    threads = [threading.Thread(target=kernel, args=(x,)) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)
    assert not any(thread.is_alive() for thread in threads)
    assert not barrier.broken


def test_many_threads_call_one_kernel(compiled: Any) -> None:
    """Each has its own arguments and results."""
    kernel = compiled("axpy")
    failures: list[Any] = []

    def work(seed: int) -> None:
        x = np.full(100, seed, "f4")
        for _ in range(300):
            if kernel(x, x, alpha=2).tolist() != [3 * seed] * 100:
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []

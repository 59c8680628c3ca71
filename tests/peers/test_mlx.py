"""MLX's own rules: evaluated on the way out, copied on the way in."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from dlpack_peers import ModernProducer, describe

import dlbridge
from dlbridge import explain, from_dlpack, to_mlx, to_numpy, to_torch
from dlbridge._core import native
from dlbridge.errors import DLBridgeError
from peers.checks import receipt_of, refused
from peers.readers import filled, read

mx = pytest.importorskip("mlx.core")


def test_an_array_is_evaluated_when_it_goes_out() -> None:
    x = mx.ones((2, 3)) + mx.ones((2, 3))
    assert to_numpy(x).tolist() == [[2, 2, 2], [2, 2, 2]]
    lazy = mx.ones(3) * 3
    assert from_dlpack(lazy).tolist() == [3, 3, 3]


def test_inside_a_transformation_there_is_no_memory() -> None:
    reasons: list[str] = []

    def inside(x: Any) -> Any:
        for call in (from_dlpack, to_numpy):
            reasons.append(refused("lazy", call, x))
        return x * 2

    mx.eval(mx.compile(inside)(mx.ones(3)))
    mx.eval(mx.vmap(inside)(mx.ones((2, 3))))
    assert len(reasons) == 4


def test_every_import_is_a_copy_and_says_so() -> None:
    x = filled((4, 6), "float32")
    receipt = receipt_of(x, "mlx")
    assert (receipt.shared, receipt.copied_by, receipt.why) == (False, "mlx", "copy_required")
    y = to_mlx(x)
    x[...] = 0
    assert np.array(y).sum() > 0
    refused("copy_required", to_mlx, x, copy=False)
    assert receipt_of(x, "mlx", copy=True).copied_by == "mlx"  # one copy is enough
    assert receipt_of(x[::-1], "mlx").copied_by == "dlbridge, mlx"


def test_an_array_of_its_own_is_returned() -> None:
    x = mx.ones(3)
    assert to_mlx(x) is x
    assert to_mlx(x, copy=False) is x
    assert to_mlx(x, copy=True) is not x


DTYPES = ["bool", "float16", "float32", "bfloat16", "complex64"]
DTYPES += [f"{kind}{bits}" for kind in ("int", "uint") for bits in (8, 16, 32, 64)]


@pytest.mark.parametrize("name", DTYPES)
def test_every_dtype_goes_round(name: str) -> None:
    x = mx.array([[0, 1, 0], [1, 1, 0]]).astype(getattr(mx, "bool_" if name == "bool" else name))
    tensor = from_dlpack(x)
    assert tensor.dtype == name
    back = to_mlx(tensor)
    assert back.dtype == x.dtype
    assert read("mlx", back)[0] == read("mlx", x)[0]


@pytest.mark.parametrize("triple", [(2, 64, 1), (5, 128, 1), (10, 8, 1), (0, 4, 1), (3, 64, 1)])
def test_dtypes_that_mlx_would_narrow_or_lacks_are_refused(triple: tuple[int, int, int]) -> None:
    refused("dtype", to_mlx, native.allocate((4,), triple))


def test_float64_of_the_cpu_goes_out() -> None:
    x = mx.array([1.5, 2], dtype=mx.float64)
    assert from_dlpack(x).dtype == "float64"
    assert to_numpy(x).tolist() == [1.5, 2]


def test_views_with_an_offset_go_out_shared() -> None:
    x = mx.array(np.arange(24, dtype="float32").reshape(4, 6))
    for view in (x[1:], x[:, ::-1], x[::2, 1::2], x.T, x[1, 2]):
        tensor = from_dlpack(view)
        assert tensor.data_ptr == read("mlx", view)[1]
        assert tensor.tolist() == view.tolist()


def test_read_only_memory_is_copied_as_any_other() -> None:
    x = filled((4,), "float32")
    x.flags.writeable = False
    assert to_mlx(x).tolist() == [0, 1, 2, 3]


@pytest.mark.fact(30)
def test_single_elements_may_have_any_stride() -> None:
    """MLX refuses a negative stride even there."""
    x = filled((6,), "float32")
    odd = ModernProducer(describe(x, shape=(1, 6), strides=(-6, 1)))
    assert to_mlx(odd).tolist() == [[0, 1, 2, 3, 4, 5]]


def test_zero_size_and_scalars() -> None:
    assert to_numpy(mx.zeros((0, 3))).shape == (0, 3)
    assert to_mlx(np.zeros((0, 3), "float32")).shape == (0, 3)
    assert to_mlx(np.float32(2.5)).item() == 2.5
    assert to_numpy(mx.array(2.5)).tolist() == 2.5


def test_rank() -> None:
    assert to_mlx(np.zeros((1,) * 40, "float32")).ndim == 40


def test_the_memory_lives_as_long_as_the_result() -> None:
    y = to_torch(mx.arange(1000) + 1) if _has_torch() else to_numpy(mx.arange(1000) + 1)
    for _ in range(10):
        mx.eval(mx.zeros(1000))
    assert y.sum() == 500500


def _has_torch() -> bool:
    try:
        import torch  # noqa: F401
    except ImportError:
        return False
    return True


# ---- known defects -----------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", ["float64", "complex128"])
@pytest.mark.fact(11)
def test_wide_floats_are_refused_instead_of_narrowed(dtype: str) -> None:
    """MLX reads float64 as float32 and complex128 as complex64."""
    refused("dtype", dlbridge.to_mlx, filled((4,), dtype))


@pytest.mark.fact(31)
def test_aligned_memory_is_copied_like_any_other() -> None:
    """MLX's documentation says that it shares where possible; on the CPU it never does."""
    assert explain(filled((16,), "float32"), "mlx").copied_by == "mlx"
    refused("copy_required", dlbridge.to_mlx, filled((16,), "float32", offset=4), copy=False)


@pytest.mark.parametrize("name", ["float32", "Device", "array"])
def test_other_objects_of_mlx_are_refused(name: str, framework: Any) -> None:
    """Objects of MLX's modules that have no memory."""
    mx = framework("mlx.core")
    thing = mx.Device(mx.cpu) if name == "Device" else getattr(mx, name)
    with pytest.raises(DLBridgeError) as caught:
        from_dlpack(thing)
    assert caught.value.reason in ("type", "producer")

"""Kernels in C through `native.KernelBase.run`: what arrives, what is refused, what is copied."""

from __future__ import annotations

import ctypes
from typing import Any

import numpy as np
import pytest
from numpy.lib.stride_tricks import as_strided

import dlbridge
from dlbridge._core import native
from dlbridge.errors import (
    AllocationError,
    ArgumentError,
    ExchangeError,
    KernelError,
    UnsupportedTypeError,
)

CPU, CUDA, CUDA_HOST, METAL = 1, 2, 3, 8
UNARY = "test::unary(x: f32[...]) -> f32[...]"
IN_PLACE = "test::in_place(x!: f32[...], *, fail: int = 0)"


def tensors(*arrays: Any) -> list[dlbridge.Tensor]:
    return [dlbridge.from_dlpack(array) for array in arrays]


def misaligned(array: np.ndarray) -> np.ndarray:
    """Return a copy that starts one byte off."""
    memory = np.zeros(array.nbytes + 1, "u1")
    view = memory[1:].view(array.dtype).reshape(array.shape)
    view[...] = array
    return view


def on_device(device: int, array: np.ndarray, flags: int = 0) -> Any:
    """Return a Tensor that says its memory is elsewhere."""
    return native.take_object(
        array, array.ctypes.data, array.shape, None, (2, 32, 1), (device, 0), flags
    )


# ---- what arrives ------------------------------------------------------------------------------


def test_a_kernel_sees_the_memory_of_its_caller(make: Any) -> None:
    """Pointers, extents and strides are the tensors' own: nothing is copied."""
    log = (ctypes.c_int64 * 64)()
    x, y = np.zeros((3, 4), "f4"), np.zeros((3, 4), "f4")
    kernel = make("record", UNARY, user=ctypes.addressof(log))
    kernel.run(tensors(x, y))
    assert log[:2] == [2, 0]
    assert log[2:8] == [x.ctypes.data, 2, 0, CPU, 3, 4]
    assert log[8:14] == [y.ctypes.data, 2, 0, CPU, 3, 4]


def test_a_left_out_tensor_has_no_rank(make: Any) -> None:
    kernel = make("count_missing", "t::f(x: f32[n], w: f32[n]? = None) -> i64[]")
    x, count = np.zeros(2, "f4"), np.array(0)
    kernel.run([*tensors(x), None, *tensors(count)])
    assert count == 1
    kernel.run(tensors(x, x, count))
    assert count == 0


def test_scalars_have_the_kind_of_the_schema(make: Any) -> None:
    """An int is taken for a float, as Python does, and nothing else is converted."""
    schema = "t::f(x: f32[n], *, a: int, b: float, c: bool, d: str, e: int? = None) -> f64[n]"
    out = np.zeros(15)
    kernel = make("show_scalars", schema)
    kernel.run(tensors(np.zeros(15, "f4"), out), (7, 2, True, "text", None))
    assert out.reshape(5, 3).tolist() == [[1, 7, 7], [2, 2, 2], [1, 1, 1], [3, 116, 0], [0, 0, 0]]


@pytest.mark.parametrize(
    ("schema", "values"),
    [
        ("int", ["1"]),
        ("int", [1.0]),
        ("int", [True]),
        ("int", [None]),
        ("int", [2**63]),
        ("bool", [1]),
        ("float", [object()]),
        ("str", ["a\0b"]),
        ("str", []),
        ("str", ["a", "b"]),
    ],
)
def test_scalars_of_another_kind_are_refused(make: Any, schema: str, values: list[object]) -> None:
    kernel = make("nothing", f"t::f(x: f32[n], *, k: {schema})")
    with pytest.raises(UnsupportedTypeError, match="t::f: "):
        kernel.run(tensors(np.zeros(2, "f4")), values)


def test_text_that_is_not_unicode_keeps_its_error(make: Any) -> None:
    kernel = make("nothing", "t::f(x: f32[n], *, k: str)")
    with pytest.raises(UnicodeEncodeError):
        kernel.run(tensors(np.zeros(2, "f4")), ["\ud800"])


def test_without_a_schema_any_tensors_go_and_the_last_is_written(make: Any) -> None:
    x, y = np.zeros(3, "f4"), np.array([[1, 2]], "f8")
    make("nothing").run(tensors(y, x))
    y.flags.writeable = False
    make("nothing").run(tensors(y, x))
    make("nothing", mutates=[1]).run(tensors(y, x, y))
    make("nothing").run([])
    with pytest.raises(ExchangeError) as caught:
        make("nothing").run(tensors(x, y))
    assert caught.value.reason == "readonly"


def test_at_most_32_tensors_and_16_scalars(make: Any) -> None:
    x = tensors(np.zeros(3, "f4"))
    kernel = make("nothing", mutates=())
    kernel.run(x * 32, range(16))
    with pytest.raises(UnsupportedTypeError, match="32"):
        kernel.run(x * 33)
    with pytest.raises(UnsupportedTypeError, match="16"):
        kernel.run(x, range(17))


@pytest.mark.parametrize("wrong", [[1], ["x"], [np.zeros(3, "f4")], 5])
def test_anything_but_tensors_is_refused(make: Any, wrong: Any) -> None:
    with pytest.raises(TypeError):
        make("nothing").run(wrong)


# ---- what is refused ---------------------------------------------------------------------------


def refused(kernel: Any, arguments: list[Any]) -> str:
    with pytest.raises(ExchangeError) as caught:
        kernel.run(arguments)
    assert str(caught.value).startswith("test::")
    return caught.value.reason


def test_memory_that_is_written_is_written_by_nobody_else(make: Any) -> None:
    """The kernel would read what it has written. Inputs may share memory with each other."""
    kernel = make("nothing", "test::f(x: f32[n], y: f32[n]) -> f32[n]")
    memory = np.zeros(8, "f4")
    x, y = memory[:4], memory[4:]
    kernel.run(tensors(x, x, y))
    assert refused(kernel, tensors(x, y, x)) == "overlap"
    assert refused(kernel, tensors(y, x, memory[1:5])) == "overlap"
    both = make("nothing", "test::f(x!: f32[n], y!: f32[n])")
    assert refused(both, tensors(x, memory[3:7])) == "overlap"
    both.run(tensors(x, y))
    allowed = make("nothing", "test::f(x: f32[n]) -> f32[n]", may_overlap=True)
    allowed.run(tensors(x, x))


def test_views_that_only_interleave_do_not_overlap(make: Any) -> None:
    kernel = make("nothing", UNARY, contiguous=False)
    memory = np.zeros((6, 8), "f4")
    kernel.run(tensors(memory[:, :3], memory[:, 3:6]))
    kernel.run(tensors(memory[::2], memory[1::2]))
    kernel.run(tensors(memory[:, 0], memory[::-1, 1]))
    kernel.run(tensors(memory[:, ::2], memory[:, 1::2]))
    kernel.run(tensors(memory[:3, :4], memory[3:, 4:]))
    assert refused(kernel, tensors(memory[:, :4], memory[:, 3:7])) == "overlap"
    assert refused(kernel, tensors(memory[::2], memory[2::-1])) == "overlap"
    assert refused(kernel, tensors(memory[:3, ::2], memory[:3, 2:6])) == "overlap"


def test_a_result_that_overlaps_itself_is_refused(make: Any) -> None:
    """Of a broadcast result, which of the values would stay?"""
    kernel = make("nothing", UNARY)
    x = np.zeros((4, 4), "f4")
    broadcast = as_strided(np.zeros(4, "f4"), (4, 4), (0, 4))
    windows = as_strided(np.zeros(7, "f4"), (4, 4), (4, 4))
    assert refused(kernel, tensors(x, broadcast)) == "overlap"
    assert refused(kernel, tensors(x, windows)) == "overlap"
    assert refused(make("nothing", UNARY, may_overlap=True), tensors(x, windows)) == "overlap"
    kernel.run(tensors(broadcast, x))
    kernel.run(tensors(windows, x.T[::-1]))


def test_read_only_memory_is_never_written(make: Any) -> None:
    frozen = np.zeros(3, "f4")
    frozen.flags.writeable = False
    assert refused(make("nothing", UNARY), tensors(np.zeros(3, "f4"), frozen)) == "readonly"
    assert refused(make("nothing", "test::f(x!: f32[n])"), tensors(frozen)) == "readonly"
    make("nothing", UNARY).run(tensors(frozen, np.zeros(3, "f4")))


def test_tensors_of_one_call_are_on_one_device_that_the_kernel_serves(make: Any) -> None:
    """Pinned memory also counts as the CPU's."""
    x, y = np.zeros(3, "f4"), np.zeros(3, "f4")
    kernel = make("nothing", UNARY)
    assert refused(kernel, [on_device(CUDA, x), *tensors(y)]) == "device"
    assert refused(kernel, [*tensors(x), on_device(CUDA, y)]) == "device"
    assert refused(kernel, [on_device(CUDA, x), on_device(CUDA, y)]) == "device"
    kernel.run([on_device(CUDA_HOST, x), *tensors(y)])
    kernel.run([*tensors(x), on_device(CUDA_HOST, y)])
    elsewhere = make("nothing", UNARY, device=CUDA)
    elsewhere.run([on_device(CUDA, x), on_device(CUDA, y)])
    assert refused(elsewhere, tensors(x, y)) == "device"


def test_memory_of_a_device_is_not_copied_by_the_cpu(make: Any) -> None:
    x = native.take_object(b"", 4096, (3,), (2,), (2, 32, 1), (CUDA, 0))
    y = native.take_object(b"", 8192, (3,), (1,), (2, 32, 1), (CUDA, 0))
    odd = native.take_object(b"", 16385, (3,), (1,), (2, 32, 1), (CUDA, 0))
    assert refused(make("nothing", UNARY, device=CUDA), [x, y]) == "strides"
    assert refused(make("nothing", UNARY, device=CUDA, alignment=4), [y, odd]) == "alignment"
    make("nothing", UNARY, device=CUDA, contiguous=False).run([x, y])


# ---- what is copied ----------------------------------------------------------------------------

LAYOUTS = {
    "row-major": lambda x: x,
    "transposed": lambda x: x.T.copy().T,
    "reversed": lambda x: x[::-1].copy()[::-1],
    "reversed twice": lambda x: x[::-1, ::-1].copy()[::-1, ::-1],
    "every second": lambda x: np.repeat(x, 2, 1)[:, ::2],
    "misaligned": misaligned,
    "without elements": lambda x: x[:, :0],
    "without elements, strided": lambda x: np.zeros((6, 0), "f4")[::3],
    "of one element": lambda x: x[1:2, ::5],
    "0-d": lambda x: x[1:2, 1:2].reshape(()),
}


@pytest.mark.parametrize("name", LAYOUTS)
@pytest.mark.parametrize("alignment", [1, 4, 64, 4096])
def test_other_layouts_are_copied_for_the_kernel_and_back(
    make: Any, name: str, alignment: int
) -> None:
    kernel = make("negate", UNARY, alignment=max(alignment, 4))
    values = np.arange(12, dtype="f4").reshape(3, 4)
    x, out = LAYOUTS[name](values), LAYOUTS[name](values * 0)
    expected = -x.copy()
    plain = np.zeros(x.shape, "f4")
    kernel.run(tensors(x, plain))
    assert np.array_equal(plain, expected)
    kernel.run(tensors(x.copy(), out))
    assert np.array_equal(out, expected)
    kernel.run(tensors(x, out))
    assert np.array_equal(out, expected)


def test_broadcast_inputs_are_copied_out(make: Any) -> None:
    x, out = np.broadcast_to(np.arange(4, dtype="f4"), (3, 4)), np.zeros((3, 4), "f4")
    make("negate", UNARY).run(tensors(x, out))
    assert np.array_equal(out, -x)


def test_in_place_arguments_are_copied_back_only_after_success(make: Any) -> None:
    kernel = make("increment", IN_PLACE)
    memory = np.arange(12, dtype="f4").reshape(3, 4)
    kernel.run(tensors(memory[:, ::2]), [0])
    assert memory.tolist() == [[1, 1, 3, 3], [5, 5, 7, 7], [9, 9, 11, 11]]
    before = memory.copy()
    with pytest.raises(KernelError, match="told to fail"):
        kernel.run(tensors(memory[:, ::2]), [1])
    assert np.array_equal(memory, before)


def test_without_a_schema_the_last_tensor_is_copied_in_and_back(make: Any) -> None:
    memory = np.arange(6, dtype="f4")
    make("increment").run(tensors(memory[:3].copy(), memory[::2]))
    assert memory.tolist() == [1, 1, 3, 3, 5, 5]


def test_a_strided_kernel_gets_strides(make: Any) -> None:
    log = (ctypes.c_int64 * 64)()
    x, y = np.zeros((6, 4), "f4")[::-2], np.zeros((3, 4), "f4")
    make("record", UNARY, contiguous=False, user=ctypes.addressof(log)).run(tensors(x, y))
    assert log[2:8] == [x.ctypes.data, 2, 0, CPU, 3, -8]


def test_elements_padded_to_bytes_are_packed_for_the_kernel(make: Any) -> None:
    """Kernels see no flags: an int4 is half a byte."""
    kernel = make("copy_bytes", "t::f(x: i4[n]) -> u8[n//2]")
    x = np.array([1, 2, 3, 4], "i1")
    padded = native.take_object(x, x.ctypes.data, (4,), None, (0, 4, 1), (CPU, 0), 4)
    packed = native.take_object(x, x.ctypes.data, (4,), None, (0, 4, 1), (CPU, 0), 0)
    out = np.zeros(2, "u1")
    kernel.run([padded, *tensors(out)])
    assert out.tolist() == [0x21, 0x43]
    kernel.run([packed, *tensors(out)])
    assert out.tolist() == [1, 2]


def test_a_copy_that_cannot_be_had_is_an_error_of_memory(make: Any) -> None:
    x = np.broadcast_to(np.zeros(1, "f4"), (2**50,))
    kernel = make("nothing", "test::f(x: f32[n])")
    with pytest.raises(AllocationError, match=r"test::f: no memory for a copy of tensor 0"):
        kernel.run(tensors(x))


# ---- failures ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("function", "text"),
    [
        ("fail_with_text", "test::unary: 2 tensors are too many"),
        ("fail_with_status", "test::unary: the kernel returned status 7"),
        ("fail_with_both", "test::unary: no luck (status 7)"),
        ("fail_with_latin", "test::unary: gr\N{REPLACEMENT CHARACTER}"),
        ("fail_at_length", "test::unary: " + "x" * 1000),
    ],
)
def test_a_failing_kernel_says_which_it_is_and_why(make: Any, function: str, text: str) -> None:
    with pytest.raises(KernelError) as caught:
        make(function, UNARY).run(tensors(np.zeros(3, "f4"), np.zeros(3, "f4")))
    assert str(caught.value).startswith(text)


def test_a_mismatch_is_told_in_the_one_form(make: Any) -> None:
    kernel = make("nothing", "mylib::mm(x: f32[m, k], y: f32[k, n]) -> f32[m, n]")
    x, y = np.zeros((56, 56), "f4"), np.zeros((55, 56), "f4")
    with pytest.raises(ArgumentError) as caught:
        kernel.run(tensors(x, y, x.copy()), source="numpy.ndarray")
    text = "mylib::mm: argument 'y': expected f32[k=56, n], got f32[55, 56] (numpy.ndarray, cpu)"
    assert str(caught.value) == text
    with pytest.raises(UnsupportedTypeError, match=r"'y': expected f32\[k=56, n\], got f64\[56"):
        kernel.run(tensors(x, x.astype("f8"), x.copy()))
    with pytest.raises(UnsupportedTypeError, match="got 1 tensors"):
        kernel.run(tensors(x))

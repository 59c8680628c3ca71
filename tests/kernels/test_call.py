"""The direct call: what C serves by itself, what it leaves to Python, and that both agree."""

from __future__ import annotations

import ctypes
import gc
import inspect
import re
import sys
import threading
import warnings
import weakref
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest
from measuring import growth

import dlbridge
from dlbridge._core import native
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError
from dlbridge.kernels import binding
from dlbridge.kernels.schema import Schema

FRAMEWORKS = ("numpy", "torch", "dlbridge")


@pytest.fixture
def of(framework: Callable[[str], Any]) -> Callable[[str, Any], Any]:
    """Return `of(framework, values)`: a new float32 tensor that the caller may write."""

    def build(name: str, values: Any) -> Any:
        array = np.array(values, np.float32)
        if name == "torch":
            return framework("torch").from_numpy(array)
        if name == "jax":
            return framework("jax").numpy.asarray(array)
        return dlbridge.from_dlpack(array) if name == "dlbridge" else array

    return build


def values_of(x: Any) -> Any:
    """Return the elements as nested lists."""
    return x.tolist() if hasattr(x, "tolist") else np.asarray(x).tolist()


# ---- what is called directly -------------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_plain_tensors_of_one_framework_never_leave_c(
    name: str, of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """By position, by name, with scalars, with destinations; and the same call twice."""
    axpy = compiled("axpy")
    x, y = of(name, [1, 2, 3]), of(name, [10, 20, 30])
    for _ in range(2):
        result = axpy(x, y)
        assert type(result) is type(x)
        assert values_of(result) == [11, 22, 33]
        assert values_of(axpy(x, y, alpha=2)) == [12, 24, 36]
        assert values_of(axpy(y=y, x=x, alpha=0.5)) == [10.5, 21, 31.5]
        out = of(name, [0, 0, 0])
        assert axpy(x, y, out=out, alpha=3.0) is out
        assert values_of(out) == [13, 26, 39]
        assert values_of(getattr(axpy, name)(x, y, out=None)) == [11, 22, 33]
    assert slow_calls == []


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_calls_of_other_shapes_follow_each_other(
    name: str, of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """A cached call serves the next one only if that is like it."""
    add = compiled("add")
    for size in (3, 3, 5, 1, 1, 0, 0, 5, 5):
        x = of(name, range(size))
        assert values_of(add(x, x)) == [2 * i for i in range(size)]
        out = of(name, [0] * size)
        assert add(x, x, out=out) is out
        assert values_of(out) == [2 * i for i in range(size)]
    assert slow_calls == []


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_results_are_as_many_as_the_schema_says(
    name: str, of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """Several come as a tuple, also as `out=`; none is None."""
    minmax, scale = compiled("minmax"), compiled("scale")
    x = of(name, [3, 1, 2])
    out = of(name, 0), of(name, 0)
    for _ in range(2):
        low, high = minmax(x)
        assert (values_of(low), values_of(high)) == (1, 3)
        assert minmax(x, out=out) is out
        assert list(map(values_of, out)) == [1, 3]
    assert scale(x, 2) is None
    assert scale(x, factor=0.5) is None
    assert values_of(x) == [3, 1, 2]
    assert slow_calls == []


def test_without_a_schema_tensors_and_numbers_come_in_any_order(
    compiled: Any, of: Any, slow_calls: list[Any]
) -> None:
    """The last tensor is the destination, and nothing is returned."""
    add = compiled("add", None)
    for name in FRAMEWORKS:
        x, out = of(name, [1, 2]), of(name, [0, 0])
        assert add(x, 7, x, out, "text") is None
        assert values_of(out) == [2, 4]
    assert slow_calls == []


def test_jax_arrays_are_lent_without_a_copy(
    framework: Callable[[str], Any], functions: Any, slow_calls: list[Any]
) -> None:
    """Inputs of any dtype and layout, bfloat16 among them, which no buffer describes."""
    jax = framework("jax")
    seen = _recording(functions)
    arrays = [jax.numpy.arange(6.0).reshape(2, 3), jax.numpy.ones(3, "bfloat16")]
    arrays += [jax.numpy.zeros((0, 2), "int8"), jax.numpy.float32(2.5)]
    for array in arrays:
        assert seen(array) == (array.unsafe_buffer_pointer(), array.shape)
    assert slow_calls == []


def _recording(functions: Any) -> Callable[[Any], Any]:
    """Return a function that passes a tensor to a kernel and tells what the kernel saw."""
    seen = (ctypes.c_int64 * 8)()
    schema = Schema.parse("test::record(x: any[...])")
    kernel = native.KernelBase(
        "test::record",
        schema.encode(),
        schema.encode_arguments(),
        [(1, "dltensors", functions("show_tensor"), ctypes.addressof(seen))],
        schema=schema,
        contiguous=False,
    )

    def show(x: Any) -> Any:
        assert kernel(x) is None
        return seen[0], tuple(seen[2 : 2 + seen[1]])

    return show


# ---- what is left to Python --------------------------------------------------------------------


def test_a_call_with_wrong_arguments_is_explained_by_python(
    compiled: Any, slow_calls: list[Any]
) -> None:
    """C looks, finds that it does not fit, and has changed nothing."""
    axpy, x = compiled("axpy"), np.ones(3, np.float32)
    calls: list[tuple[Any, Any, type[Exception], str]] = [
        ((x,), {}, TypeError, "y"),
        ((x, x, x), {}, TypeError, "3"),
        ((x, x), {"beta": 1}, TypeError, "beta"),
        ((x, x), {"x": x}, TypeError, "x"),
        ((x, x), {"alpha": "2"}, TypeError, "alpha"),
        ((x, x), {"alpha": 1j}, TypeError, "alpha"),
        ((x, None), {}, TypeError, "y"),
        ((x, [1.0]), {}, TypeError, "y"),
        ((x, x.astype("f8")), {}, TypeError, "f64[3]"),
        ((x, x[:2]), {}, ValueError, "f32[2]"),
        ((x, x[None]), {}, ValueError, "f32[1, 3]"),
        ((x, x), {"out": np.zeros(2, np.float32)}, ValueError, "f32[2]"),
        ((x, x), {"out": (x, x)}, TypeError, "out"),
    ]
    for number, (args, kwargs, kind, text) in enumerate(calls, 1):
        with pytest.raises(kind, match=re.escape(text)):
            axpy(*args, **kwargs)
        assert len(slow_calls) == number
    assert x.tolist() == [1, 1, 1]


def test_numbers_of_numpy_are_converted_by_python(compiled: Any, slow_calls: list[Any]) -> None:
    """C takes Python's own numbers only, and leaves very large integers to Python."""
    axpy, x = compiled("axpy"), np.ones(2, np.float32)
    assert axpy(x, x, alpha=np.float64(2)).tolist() == [3, 3]
    assert axpy(x, x, alpha=np.int32(2)).tolist() == [3, 3]
    assert len(slow_calls) == 2
    assert axpy(x, x, alpha=2).tolist() == [3, 3]
    assert len(slow_calls) == 2


ODD_ARRAYS: dict[str, Callable[[], Any]] = {
    "big-endian": lambda: np.arange(4, dtype=">f4"),
    "matrix": lambda: np.matrix([[0, 1, 2, 3]], np.float32),
    "masked": lambda: np.ma.masked_equal(np.arange(4, dtype=np.float32), 2),
    "structured": lambda: np.zeros(4, [("a", "f4")]),
    "object": lambda: np.array([1, None, "x", 2]),
    "text": lambda: np.array(["a", "b", "c", "d"]),
    "odd strides": lambda: np.frombuffer(bytes(20), np.float32)[1:],
}


@pytest.mark.parametrize("kind", ["big-endian", "matrix", "masked", "structured", "object", "text"])
def test_odd_numpy_arrays_are_never_called_directly(
    kind: str, compiled: Any, slow_calls: list[Any]
) -> None:
    """Other byte orders, masks and matrices mean more than their memory."""
    add, plain, odd = compiled("add"), np.ones(4, np.float32), ODD_ARRAYS[kind]()
    for _ in range(2):
        with pytest.raises((TypeError, ValueError, BufferError)):
            add(odd, plain)
        add(plain, plain)
    assert len(slow_calls) == 2


def test_tensors_of_two_frameworks_are_left_to_python(
    of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """Also where only `out=` is another's; nothing was written."""
    add = compiled("add")
    for first, second in (("numpy", "torch"), ("torch", "numpy"), ("numpy", "dlbridge")):
        x, y = of(first, [1, 2]), of(second, [3, 4])
        with pytest.raises(TypeError):
            add(x, y)
        with pytest.raises(TypeError):
            add(x, x, out=y)
        with pytest.raises(TypeError):
            getattr(add, second)(x, x)
        assert values_of(y) == [3, 4]
    assert len(slow_calls) == 9


def test_jax_arrays_are_never_written(of: Any, compiled: Any, slow_calls: list[Any]) -> None:
    """Neither as `out=`, nor in place, nor as the last tensor of a kernel without a schema."""
    x, y = of("jax", [1, 2]), of("jax", [3, 4])
    with pytest.raises((ExchangeError, TypeError)):
        compiled("add")(x, x, out=y)
    compiled("add", None)(x, x, y)
    compiled("scale")(y, 2.0)
    assert (x.tolist(), y.tolist()) == ([1, 2], [3, 4])
    assert len(slow_calls) == 3


def test_read_only_arrays_are_read_but_not_written(compiled: Any, slow_calls: list[Any]) -> None:
    """Also when the call before was like this one, with memory that could be written."""
    add, x, out = compiled("add"), np.ones(2, np.float32), np.zeros(2, np.float32)
    x.flags.writeable = False
    for _ in range(2):
        assert add(x, x).tolist() == [2, 2]
        assert add(x, x, out=out) is out
    assert slow_calls == []
    out.flags.writeable = False
    with pytest.raises(ExchangeError) as caught:
        add(x, x, out=out)
    assert caught.value.reason == "readonly"


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_layouts_do_not_change_results(
    name: str, of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """After a contiguous call comes a strided one, and the other way round."""
    add, x, wide = compiled("add"), of(name, [1, 2, 3]), of(name, [1, 0, 2, 0, 3, 0])
    for _ in range(2):
        assert values_of(add(x, x)) == [2, 4, 6]
        assert values_of(add(wide[::2], x)) == [2, 4, 6]
        wide_out = of(name, [0] * 6)
        add(x, x, out=wide_out[::2])
        assert values_of(wide_out) == [2, 0, 4, 0, 6, 0]
    assert slow_calls == []


def test_misaligned_arrays_are_copied_for_the_kernel(compiled: Any, slow_calls: list[Any]) -> None:
    """Also right after a call with aligned ones of the same shape; results are copied back."""
    add, x = compiled("add"), np.array([1, 2], np.float32)
    odd = np.frombuffer(bytearray(9), np.uint8)[1:].view(np.float32)
    assert not odd.flags.aligned
    for _ in range(2):
        assert add(x, x).tolist() == [2, 4]
        odd[:] = [5, 6]
        assert add(x, odd).tolist() == [6, 8]
        assert add(x, x, out=odd) is odd
        assert odd.tolist() == [2, 4]
    assert slow_calls == []


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_overlap_is_refused_also_after_a_call_like_it(name: str, of: Any, compiled: Any) -> None:
    """A destination that is an input, a part of one, or one element many times."""
    add, x, out = compiled("add"), of(name, [1, 2, 3, 4]), of(name, [0, 0, 0])
    for _ in range(2):
        add(x[1:], x[:3], out=out)
        with pytest.raises(ExchangeError) as caught:
            add(x[1:], x[1:], out=x[:3])
        assert caught.value.reason == "overlap"
        with pytest.raises(ExchangeError):
            add(out, x[1:], out=out)
        assert values_of(x) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_the_text_of_an_overlap_names_the_arguments_of_this_call(
    name: str, of: Any, compiled: Any
) -> None:
    """Also without a schema, and after a call that was like it but for the memory."""
    add, x, out = compiled("add", None), of(name, [1, 2, 3, 4]), of(name, [0, 0, 0])
    for _ in range(2):
        add(x[1:], x[:3], out)
        with pytest.raises(ExchangeError, match=r"'2': .* memory shared with '0'"):
            add(x[1:], x[:3], x[:3])
        assert values_of(x) == [1, 2, 3, 4]


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_more_shapes_than_are_remembered(
    name: str, of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """Each call is as the first one of its shape, and an `out` that does not fit is refused."""
    add = compiled("add")
    for _ in range(2):
        for size in range(1, 8):
            x, out = of(name, [1] * size), of(name, [0] * size)
            assert values_of(add(x, x)) == [2] * size
            assert add(x, x, out=out) is out
            assert values_of(out) == [2] * size
            with pytest.raises(ArgumentError):
                add(x, x, out=of(name, [0] * (size + 1)))
    assert len(slow_calls) == 14


def test_inference_tensors_are_read_but_not_written_outside_of_the_mode(
    of: Any, compiled: Any, framework: Any, slow_calls: list[Any]
) -> None:
    """Also where the call before was like it, with tensors that may be written."""
    torch, add, x, out = (
        framework("torch"),
        compiled("add"),
        of("torch", [1, 2]),
        of("torch", [0, 0]),
    )
    with torch.inference_mode():
        inside = add(x, x)
    add(x, x, out=out)
    assert add(inside, x).tolist() == [3, 6]
    assert slow_calls == []
    with pytest.raises((ExchangeError, RuntimeError)):
        add(x, x, out=inside)
    with pytest.raises((ExchangeError, RuntimeError)):
        compiled("scale")(inside, 2.0)
    assert inside.tolist() == [2, 4]


def test_a_destination_with_stride_zero_is_refused(compiled: Any, of: Any) -> None:
    """Each element would be written several times."""
    torch_out = of("torch", [0.0]).expand(3)
    numpy_out = np.lib.stride_tricks.as_strided(np.zeros(1, np.float32), (3,), (0,))
    for x, out in ((of("torch", [1, 2, 3]), torch_out), (of("numpy", [1, 2, 3]), numpy_out)):
        with pytest.raises(ExchangeError) as caught:
            compiled("add")(x, x, out=out)
        assert caught.value.reason == "overlap"
        assert values_of(out) == [0, 0, 0]


# ---- torch -------------------------------------------------------------------------------------


def test_versions_of_written_tensors_count_up(of: Any, compiled: Any) -> None:
    """So that autograd sees that a saved tensor was changed; also if the kernel then failed."""
    add, scale, fail = compiled("add"), compiled("scale"), compiled("fail")
    x, out = of("torch", [1, 2]), of("torch", [0, 0])
    for number in range(1, 4):
        add(x, x, out=out)
        scale(x, 1.0)
        assert (x._version, out._version) == (number, number)
    assert add(x, x)._version == 0
    with pytest.raises(KernelError):
        fail(x, out=out)
    assert out._version == 4
    with pytest.raises(ExchangeError):
        add(x, x, out=x)
    assert x._version == 3
    compiled("add", None)(x, x, out)
    assert (x._version, out._version) == (3, 5)


def test_modes_that_change_nothing_are_direct(
    of: Any, compiled: Any, framework: Any, slow_calls: list[Any]
) -> None:
    """Without gradients, and in inference mode, whose results are inference tensors."""
    torch, add, x = framework("torch"), compiled("add"), of("torch", [1, 2])
    leaf = of("torch", [1, 2]).requires_grad_()
    with torch.no_grad():
        assert not add(x, leaf).requires_grad
        compiled("scale")(leaf, 2.0)
    assert leaf.tolist() == [2, 4]
    assert leaf._version == 1
    with torch.inference_mode():
        inside = add(x, x)
        assert inside.is_inference()
        add(x, x, out=inside)
        compiled("scale")(x, 2.0)
    assert x._version == 1
    assert inside.tolist() == [2, 4]
    assert slow_calls == []


def test_remembered_calls_do_not_hide_special_tensors(
    of: Any, compiled: Any, framework: Any, slow_calls: list[Any]
) -> None:
    """Each tensor of each call is looked at, however alike the calls are."""
    torch, add, x = framework("torch"), compiled("add"), of("torch", [1, 2])
    for _ in range(2):
        add(x, x)
    assert slow_calls == []
    complex_x = torch.complex(x, -x).conj().imag
    leaf = of("torch", [1, 2]).requires_grad_()
    shrunk = of("torch", [1, 2]).clone()
    shrunk.untyped_storage().resize_(4)
    assert add(complex_x, x).tolist() == [2, 4]
    with pytest.raises((ExchangeError, RuntimeError)):
        add(x, shrunk)
    try:
        add(leaf, x).sum().backward()
    except (NotImplementedError, RuntimeError, ExchangeError):
        pass
    else:
        raise AssertionError("the gradient was dropped")
    assert len(slow_calls) == 3


def test_a_lazy_clone_is_written_without_its_original(
    of: Any, compiled: Any, framework: Any
) -> None:
    """Two tensors share memory until one is written; the kernel's write must be the first."""
    torch = framework("torch")
    x = of("torch", [1, 2]).clone()
    clone = torch._lazy_clone(x)
    compiled("scale")(clone, 10.0)
    assert (x.tolist(), clone.tolist()) == ([1, 2], [10, 20])


def test_tensors_of_many_dimensions_and_odd_dtypes(
    functions: Any, framework: Any, slow_calls: list[Any]
) -> None:
    """The kernel sees the address and the shape that torch tells; odd integers are not bytes."""
    torch, seen = framework("torch"), _recording(functions)
    tensors = [torch.ones(2, 3)[1:], torch.ones(1, 2, 1, 1, 1, 1), torch.ones(3).to(torch.uint16)]
    tensors += [torch.ones(2, dtype=torch.bfloat16), torch.tensor(True), torch.ones(0, 3)]
    tensors += [torch.ones(2).to(torch.float8_e4m3fn)]
    for x in tensors:
        assert seen(x) == (x.data_ptr(), tuple(x.shape))
    assert slow_calls == []
    assert native.torch_borrow(torch.empty(2, dtype=torch.uint8).view(torch.uint4)) is None


# ---- what goes wrong on the way ----------------------------------------------------------------


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_a_failing_kernel_leaves_nothing_behind(name: str, of: Any, compiled: Any) -> None:
    """Its error is raised, its results are freed, its arguments are as referenced as before."""
    fail, x = compiled("fail"), of(name, [1, 2])
    gc.collect()  # what other tests left is not to go meanwhile
    before = sys.getrefcount(x)

    def call() -> None:
        with pytest.raises(KernelError, match="cannot do 2 tensors"):
            fail(x)

    assert abs(growth(call, 200, lambda: sys.getrefcount(None))) < 0.5
    assert sys.getrefcount(x) == before


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_calls_keep_no_references(name: str, of: Any, compiled: Any) -> None:
    """Arguments, results, names and numbers: each call gives back what it took."""
    axpy, minmax = compiled("axpy"), compiled("minmax")
    x, out, alpha = of(name, [1, 2]), of(name, [0, 0]), 123.456
    watched = (x, out, alpha, axpy)
    results: list[Any] = []

    def call() -> None:
        results[:] = [axpy(x, x), axpy(x, y=x, alpha=alpha), axpy(x, x, out=out), *minmax(x)]

    call()
    before = [sys.getrefcount(each) for each in watched]
    for _ in range(200):
        call()
    assert [sys.getrefcount(each) for each in watched] == before
    made, new = [each for each in results if each is not out], [object() for _ in range(4)]
    results.clear()
    assert [sys.getrefcount(each) for each in made] == [sys.getrefcount(each) for each in new]


def test_results_too_large_for_memory_raise(functions: Any) -> None:
    """The framework itself says so; no C++ exception passes through C."""
    schema = Schema.parse("test::nothing(x: f32[n]) -> f32[n, 1000000000, 100000]")
    kernel = native.KernelBase(
        *("test::nothing", schema.encode(), schema.encode_arguments()),
        [(1, "dltensors", functions("nothing"), None)],
        schema=schema,
    )
    kernel_calls: list[Any] = []
    native.set_kernel_hooks(slow_call=lambda *call: kernel_calls.append(call[1]))
    try:
        kernel(np.ones(5, np.float32))
        torch = sys.modules.get("torch")
        if torch is not None:
            kernel(torch.ones(5))
    finally:
        native.set_kernel_hooks(slow_call=binding.slow_call)
    assert kernel_calls == [None] * (1 if torch is None else 2)


# ---- threads -----------------------------------------------------------------------------------


@pytest.mark.parametrize("releases", [True, False])
def test_the_gil_is_released_where_the_kernel_says_so(releases: bool, make: Any) -> None:
    kernel = make("has_gil", "test::has_gil(x!: f32[n])", releases_gil=releases)
    for _ in range(2):  # the second call is recalled
        x = np.zeros(1, np.float32)
        kernel(x)
        assert x[0] == (FREE if releases else HELD)


@pytest.mark.parametrize(
    ("size", "options", "releases"),
    [
        (1, {}, False),
        (8191, {}, False),  # of 4 bytes: 32 KiB are too many
        (8192, {}, True),
        (1, {"gil": "release"}, True),
        (8192, {"gil": "hold"}, False),
        (1, {"cost": "n * 32768"}, True),
        (8192, {"cost": 0}, False),
        (8192, {"cost": "n // 4"}, False),
        (1, {"cost": "n // (n - 1)"}, True),  # not known
    ],
)
@pytest.mark.parametrize("of", ["numpy", "dlbridge"])
def test_the_gil_is_held_for_small_calls(
    of: str, size: int, options: dict[str, Any], releases: bool
) -> None:
    """`gil="auto"`, the default: the bytes of all tensors in sum decide, or cost=."""
    kernel = dlbridge.wrap(has_gil(), "test::has_gil(x!: f32[n])", **options)
    for _ in range(2):  # the second call is recalled
        x: Any = np.zeros(size, np.float32)
        kernel(x if of == "numpy" else dlbridge.from_dlpack(x))
        assert x[0] == (FREE if releases else HELD)


@pytest.mark.parametrize(("size", "releases"), [(1, False), (4096, True)])
def test_the_gil_is_held_for_small_calls_without_a_schema(size: int, releases: bool) -> None:
    kernel = dlbridge.wrap(has_gil())
    for _ in range(2):
        x = np.zeros(size, np.float32)
        kernel(x, np.ones_like(x))
        assert x[0] == (FREE if releases else HELD)


FREE, HELD = 1, 2


def has_gil() -> Any:
    """Return a kernel that writes whether its thread has the GIL into its first element."""
    return dlbridge.compile_c(
        """
        #include "dlbridge_kernel.h"
        int PyGILState_Check(void);
        int has_gil(void *context, DLTensor *tensors, int count) {
            (void)context, (void)count;
            *(float *)tensors->data = PyGILState_Check() ? 2 : 1;
            return 0;
        }
        """,
        "has_gil",
    )


@pytest.mark.parametrize("name", FRAMEWORKS)
def test_shapes_take_turns(name: str, of: Any, compiled: Any, slow_calls: list[Any]) -> None:
    """More of them than a kernel remembers; results given and new, memory aligned and not."""
    axpy = compiled("axpy")
    for _ in range(3):
        for size in (1, 2, 3, 4, 5, 6, 2, 2, 0):
            x = of(name, range(size))
            assert values_of(axpy(x, x, alpha=2.0)) == [3.0 * i for i in range(size)]
            out = of(name, np.zeros(size))
            assert axpy(x, x, alpha=3.0, out=out) is out
            assert values_of(out) == [4.0 * i for i in range(size)]
    assert slow_calls == []


def test_the_number_of_arguments_may_change_without_a_schema(functions: Any) -> None:
    """A cached call with two arrays does not serve one with three."""
    seen: list[int] = []
    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    kernel = dlbridge.wrap(kind(lambda context, tensors, count: seen.append(count) or 0))
    x = [np.zeros(2, np.float32) for _ in range(4)]
    for count in (1, 2, 3, 4, 3, 2, 1):
        kernel(*x[:count])
    kernel(x[0], 1.5, x[1])
    kernel(x[0], x[1])
    assert seen == [1, 2, 3, 4, 3, 2, 1, 2, 2]


def test_threads_call_one_kernel_with_different_shapes(compiled: Any, of: Any) -> None:
    """The cache belongs to all threads, the call itself to its own."""
    axpy, failures = compiled("axpy"), []
    names = ["numpy", "torch"] if find_spec("torch") else ["numpy"]

    def call(name: str, size: int) -> None:
        x = of(name, range(size))
        expected = [3.0 * i for i in range(size)]
        for _ in range(400):
            if values_of(axpy(x, x, alpha=2.0)) != expected:
                failures.append((name, size))

    threads = [
        threading.Thread(target=call, args=(name, size)) for size in (2, 3, 7) for name in names
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


@pytest.mark.parametrize("name", ["numpy", "torch"])
def test_a_new_shape_during_the_call_does_not_reach_the_kernel(name: str, of: Any) -> None:
    """The GIL is free meanwhile: what other threads do to the array must not move its dims away."""
    x, seen = of(name, np.zeros((2, 3, 4))), []

    def run(context: int, tensors: int, count: int) -> int:
        if name == "numpy":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)
                x.shape = (24,)
        else:
            x.resize_(24)
        ndim = ctypes.c_int32.from_address(tensors + 16).value
        dims = [ctypes.c_void_p.from_address(tensors + at).value for at in (24, 32)]
        seen.append([list((ctypes.c_int64 * ndim).from_address(at)) for at in dims if at])
        return 0

    kind = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int)
    kernel = dlbridge.wrap(kind(run), "test::reshapes(x: f32[...])")
    for _ in range(2):  # the second call is recalled
        kernel(x)
        x = of(name, np.zeros((2, 3, 4)))
    assert seen == 2 * [[[2, 3, 4], [12, 4, 1]]]


# ---- builtin functions -------------------------------------------------------------------------


def test_a_bound_call_is_a_builtin_function(compiled: Any) -> None:
    """With a name, a text and its kernel, as torch.compile and people look for them."""
    axpy = compiled("axpy")
    bound = native.bind_kernel(axpy, "numpy", "axpy", "axpy(x, y)\n--\n\nAdd.", "mylib")
    assert inspect.isbuiltin(bound)
    assert (bound.__name__, bound.__doc__, bound.__module__) == ("axpy", "Add.", "mylib")
    assert str(inspect.signature(bound)) == "(x, y)"
    assert bound.__self__.kernel is axpy
    x = np.ones(2, np.float32)
    assert bound(x, x, alpha=2).tolist() == [3, 3]
    anonymous = native.bind_kernel(axpy, None, "any", "")
    assert anonymous(x, x).tolist() == [2, 2]
    other = native.bind_kernel(axpy, "numpie", "axpy", "")
    with pytest.raises(UnsupportedTypeError, match="a tensor of numpie"):
        other(x, x)
    with pytest.raises(TypeError, match="framework must be a str or None, got 1"):
        native.bind_kernel(axpy, 1, "axpy", "")


def test_bound_calls_live_and_die_with_their_kernel(functions: Any) -> None:
    """A function keeps its kernel; a kernel that keeps its function is collected all the same."""

    class Kernel(native.KernelBase):
        pass

    def build() -> Any:
        targets = [(1, "dltensors", functions("nothing"), None)]
        return Kernel("test::nothing", None, None, targets)

    bound = native.bind_kernel(build(), None, "nothing", "")
    assert bound(np.ones(1, np.float32)) is None
    kernel: Any = build()
    kernel.numpy = native.bind_kernel(kernel, "numpy", "nothing", "")
    gone = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert gone() is None


def test_a_sealed_class_is_called_in_c(functions: Any, slow_calls: list[Any]) -> None:
    """Its Python `__call__` is there for compilers that trace it."""

    class Kernel(native.KernelBase):
        def __call__(self, *args: Any, **kwargs: Any) -> str:
            return "python"

    targets = [(1, "dltensors", functions("nothing"), None)]
    kernel: Any = Kernel("test::nothing", None, None, targets)
    x = np.ones(1, np.float32)
    assert kernel(x) == "python"
    native.seal_kernel_type(Kernel)
    assert kernel(x) is None
    assert kernel(*[x]) is None
    assert Kernel.__call__(kernel, x) == "python"
    assert slow_calls == []
    with pytest.raises(TypeError):
        native.seal_kernel_type(dict)  # type: ignore[arg-type]


def test_without_hooks_an_odd_call_says_so(run_python: Any) -> None:
    """The native module alone serves direct calls only."""
    code = """
        import ctypes
        from dlbridge._core import native
        address = ctypes.cast(ctypes.CDLL(None).abs, ctypes.c_void_p).value
        kernel = native.KernelBase("test::x", None, None, [(1, "dltensors", address, None)])
        try:
            kernel([1, 2])
        except RuntimeError as error:
            print("not initialised" in str(error))
    """
    assert run_python(code).check().strip() == "True"


def test_jax_arrays_with_results_go_to_the_compiled_program(
    of: Any, compiled: Any, slow_calls: list[Any]
) -> None:
    """Without the detour through Python's path, which is left what the program cannot take."""
    add, x = compiled("add"), of("jax", [1, 2])
    assert add(x, x).tolist() == [2, 4]
    assert slow_calls == []
    with pytest.raises(TypeError, match=r"torch\.Tensor"):
        add(x, of("torch", [1, 2]))
    assert slow_calls == [None]

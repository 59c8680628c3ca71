"""What goes silently wrong when kernels meet tensors elsewhere: here each has a right answer.

The hazards were measured with the frameworks' own functions, tvm-ffi, nanobind and others.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import dlbridge
from dlbridge.errors import ArgumentError, ExchangeError, KernelError, UnsupportedTypeError

SOURCE = """
#include "dlbridge_kernel.h"

static int64_t count_of(const DLTensor *x) {
    int64_t count = 1;
    for (int i = 0; i < x->ndim; i++)
        count *= x->shape[i];
    return count;
}

int twice(void *ctx, DLTensor *a, int n) {
    const float *x = a[0].data;
    float *out = a[1].data;
    int64_t count = count_of(&a[0]);
    if (count > 0 && x[0] == -1.0f)
        return dlb_set_error(ctx, "the first element must not be %d", -1);
    for (int64_t i = 0; i < count; i++)
        out[i] = 2 * x[i];
    return n == 2 ? 0 : 7;
}

int increment(void *ctx, DLTensor *a, int n) {
    float *x = a[0].data;
    int64_t count = count_of(&a[0]);
    (void)ctx, (void)n;
    for (int64_t i = 0; i < count; i++)
        x[i] += 1;
    return 0;
}
"""


@pytest.fixture(scope="module")
def twice() -> Any:
    return dlbridge.compile_c(SOURCE, "twice", "hazards::twice(x: f32[...]) -> f32[...]")


@pytest.fixture(scope="module")
def increment() -> Any:
    return dlbridge.compile_c(SOURCE, "increment", "hazards::increment(x!: f32[...])")


# ---- torch: what memory alone does not say -------------------------------------------------------


def test_a_negative_bit_reaches_no_kernel(twice: Any, framework: Callable[[str], Any]) -> None:
    """`np.from_dlpack`, jax, tvm-ffi and torch's exchange table all give 3.0 for this -3.0."""
    torch = framework("torch")
    x = torch.tensor([1 + 3j, 2 - 5j]).conj().imag
    assert x.is_neg()
    assert twice(x).tolist() == [-6.0, 10.0]
    assert twice.torch(x).tolist() == [-6.0, 10.0]


def test_a_lazy_conjugate_reaches_no_kernel(framework: Callable[[str], Any]) -> None:
    """torch's exchange table hands out the memory of conjugate tensors without a word."""
    torch = framework("torch")
    source = SOURCE.replace("float *", "double *").replace("2 * x[i]", "x[i]")
    copy = dlbridge.compile_c(
        source.replace("count *= x->shape[i];", "count *= x->shape[i];\n    count *= 2;"),
        "twice",
        "hazards::copy(x: c128[n]) -> c128[n]",
    )
    x = torch.tensor([1 + 3j, 2 - 5j], dtype=torch.complex128).conj()
    assert copy(x).tolist() == [1 - 3j, 2 + 5j]


def test_a_gradient_is_never_dropped(
    twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    """torch's exchange table exports tensors that require gradients; tvm-ffi loses them."""
    torch = framework("torch")
    x = torch.ones(3, requires_grad=True)
    y = twice(x)
    assert y.requires_grad
    with pytest.raises(RuntimeError, match=r"hazards::twice.*vjp"):
        y.sum().backward()
    with pytest.raises(BufferError, match="hazards::increment"):
        increment(x)
    with pytest.raises(BufferError, match="hazards::twice"):
        twice(torch.ones(3), out=x)
    assert x.tolist() == [1, 1, 1]


def test_the_gradient_of_a_scalar_is_never_dropped(framework: Callable[[str], Any]) -> None:
    """torch's dispatcher reads the value of a tensor without dimensions and forgets the rest."""
    torch = framework("torch")
    kernel = dlbridge.compile_c(
        SOURCE, "twice", "hazards::scaled(x: f32[n], *, alpha: float) -> f32[n]"
    )
    with pytest.raises(UnsupportedTypeError, match=r"'alpha': expected float, got .*torch.Tensor"):
        kernel(torch.ones(2), alpha=torch.tensor(3.0, requires_grad=True))
    assert kernel(torch.ones(2), alpha=3.0).tolist() == [2, 2]


def test_a_gradient_is_never_dropped_without_a_schema(framework: Callable[[str], Any]) -> None:
    torch = framework("torch")
    f = dlbridge.to_pytorch_func(dlbridge.compile_c(SOURCE, "twice"))
    x, out = torch.ones(3), torch.zeros(3)
    f(x, out)
    assert out.tolist() == [2, 2, 2]
    with pytest.raises(BufferError, match="gradient"):
        f(x.requires_grad_(), out)
    with torch.no_grad():
        f(x, out)


def test_a_fake_tensor_reaches_no_kernel(run_python: Callable[..., Any], framework: Any) -> None:
    """A FakeTensor comes through the exchange table with a NULL pointer: others crash on it."""
    framework("torch")
    code = f"""
        import torch, dlbridge
        from torch._subclasses.fake_tensor import FakeTensorMode
        twice = dlbridge.compile_c({SOURCE!r}, "twice", "hazards::twice(x: f32[...]) -> f32[...]")
        bare = dlbridge.to_pytorch_func(dlbridge.compile_c({SOURCE!r}, "twice"))
        with FakeTensorMode():
            x = torch.ones(5)
            y = twice(x)
            print(type(y).__name__, tuple(y.shape))
            try:
                bare(x, torch.ones(5))
            except BufferError as error:
                print("BufferError")
        """
    assert run_python(code).check().split() == ["FakeTensor", "(5,)", "BufferError"]


def test_declared_mutation_bumps_the_version(
    increment: Any, twice: Any, framework: Callable[[str], Any]
) -> None:
    """Without that, autograd computes gradients of values that were overwritten."""
    torch = framework("torch")
    z = torch.ones(3)
    w = torch.ones(3, requires_grad=True)
    for write in (increment, increment.torch, lambda z: twice(torch.ones(3), out=z)):
        product = w * z  # keeps z for the gradient of w
        version = z._version
        write(z)
        assert z._version > version
        with pytest.raises(RuntimeError, match="modified by an inplace operation"):
            product.sum().backward()


@pytest.mark.parametrize("kind", ["sparse", "quantized", "meta", "subclass"])
def test_tensors_without_plain_memory_are_refused_or_handled_by_torch(
    kind: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    torch = framework("torch")
    x = torch.ones(4)
    if kind == "meta":
        assert twice(x.to("meta")).device.type == "meta"
        return
    if kind == "subclass":
        plain = type("Plain", (torch.Tensor,), {})
        assert twice(x.as_subclass(plain)).tolist() == [2, 2, 2, 2]
        return
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        makers = {
            "sparse": lambda: x.to_sparse(),
            "quantized": lambda: torch.quantize_per_tensor(x, 0.5, 0, torch.qint8),
        }
        value = makers[kind]()
    with pytest.raises((BufferError, TypeError, RuntimeError)):
        twice(value)


# ---- values that must not change -----------------------------------------------------------------


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


# ---- destinations --------------------------------------------------------------------------------


def test_a_destination_of_another_dtype_is_refused(twice: Any) -> None:
    """nanobind converts it: the kernel writes into a copy that nobody sees."""
    with pytest.raises(UnsupportedTypeError, match=r"'out'.*f64\[3\]"):
        twice(np.ones(3, np.float32), out=np.zeros(3))


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_a_strided_destination_is_written(
    library: str, twice: Any, increment: Any, framework: Callable[[str], Any]
) -> None:
    xp = framework(library)
    base = xp.zeros((4, 6), dtype=xp.float32)
    view = base[::2, 1::2]
    assert twice(xp.ones((2, 3), dtype=xp.float32), out=view) is view
    increment(view)
    assert view.tolist() == [[3, 3, 3], [3, 3, 3]]
    assert float(base.sum()) == 18


@pytest.mark.parametrize("library", ["numpy", "torch"])
def test_overlap_is_refused_before_anything_is_written(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    xp = framework(library)
    memory = xp.arange(6, dtype=xp.float32)
    with pytest.raises(ExchangeError, match="overlap"):
        twice(memory[:4], out=memory[1:5])
    assert memory.tolist() == [0, 1, 2, 3, 4, 5]


def test_a_destination_that_overlaps_itself_is_refused(twice: Any, increment: Any) -> None:
    one = np.zeros(1, np.float32)
    broad = np.lib.stride_tricks.as_strided(one, (3,), (0,))
    for write in (increment, lambda z: twice(np.ones(3, np.float32), out=z)):
        with pytest.raises(ExchangeError):
            write(broad)
    assert one.tolist() == [0]


# ---- layouts and dtypes --------------------------------------------------------------------------


def layouts() -> dict[str, np.ndarray]:
    """Return arrays that hold 0 … 5 in memory of every kind."""
    want = np.arange(6, dtype=np.float32).reshape(2, 3)
    misaligned = np.zeros(25, np.uint8)[1:].view(np.float32).reshape(2, 3)
    misaligned[...] = want
    return {
        "transposed": np.ascontiguousarray(want.T).T,
        "reversed": want[::-1, ::-1].copy()[::-1, ::-1],
        "stepped": np.repeat(want, 2, axis=1)[:, ::2],
        "misaligned": misaligned,
    }


@pytest.mark.parametrize("layout", layouts())
def test_every_layout_gives_the_same_result(layout: str, twice: Any) -> None:
    x = layouts()[layout]
    assert twice(x).tolist() == [[0, 2, 4], [6, 8, 10]]


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
@pytest.mark.parametrize("shape", [(), (0,), (3, 0, 2), (1,)])
def test_small_shapes_work_everywhere(
    library: str, shape: tuple[int, ...], twice: Any, framework: Callable[[str], Any]
) -> None:
    framework(library)
    x = dlbridge.convert(np.full(shape, 3, np.float32), library)
    y = twice(x)
    assert type(y) is type(x)
    assert dlbridge.to_numpy(y).tolist() == np.full(shape, 6, np.float32).tolist()


def test_a_broadcast_input_is_read_as_what_it_shows(twice: Any) -> None:
    x = np.broadcast_to(np.float32(4), (2, 2))
    assert twice(x).tolist() == [[8, 8], [8, 8]]


def test_foreign_byte_order_is_refused(twice: Any) -> None:
    with pytest.raises((ExchangeError, UnsupportedTypeError)):
        twice(np.ones(3, ">f4"))


# ---- results and errors --------------------------------------------------------------------------


@pytest.mark.parametrize("library", ["numpy", "torch", "jax", "tensorflow"])
def test_results_are_the_callers_framework(
    library: str, twice: Any, framework: Callable[[str], Any]
) -> None:
    """tvm-ffi gives back its own type for NumPy and JAX, and allocates for torch alone."""
    framework(library)
    x = dlbridge.convert(np.ones(3, np.float32), library)
    assert type(twice(x)) is type(x)


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
    assert str(caught.value) == (
        f"hazards::twice: argument 'x': expected f32[...], got i32[2, 3] ({source}, cpu)"
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
